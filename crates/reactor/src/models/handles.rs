//! Handles: the worker and the handle share an operation, which returns to the pool once; an
//! executor that awaits it is woken.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use adit_base::sync::model::Wrong::{Relaxed, Skipped};
use adit_base::sync::model::{Bug, check, spawn};
use adit_base::sync::{Condvar, Mutex};

use super::callers::start;

/// An executor of one task: a flag, and a thread that waits for it.
#[derive(Default)]
struct Parker {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        *self.woken.lock().expect("held") = true;
        self.changed.notify_one();
    }
}

fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    let parker = Arc::new(Parker {
        woken: Mutex::new(false),
        changed: Condvar::new(),
    });
    let waker = Waker::from(parker.clone());
    loop {
        if let Poll::Ready(value) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        let mut woken = parker.woken.lock().expect("held");
        while !*woken {
            woken = parker.changed.wait(woken).expect("held");
        }
        *woken = false;
    }
}

#[test]
fn an_executor_whose_operation_another_thread_finishes_is_woken() {
    check(4, || {
        let engine = start(false);
        let awaits = {
            let engine = engine.clone();
            spawn(move || {
                let handle = engine.spawn(|state| async {
                    while state.count.get() == 0 {
                        state.event.wait().await;
                    }
                    Ok(state.count())
                });
                block_on(handle).expect("done")
            })
        };
        let sets = engine.run(|state| async {
            state.count();
            state.event.notify_all();
            Ok(())
        });
        sets.expect("done");
        assert_eq!(awaits.join().expect("a thread"), 2);
    });
}

#[test]
fn a_pooled_operation_returns_to_the_pool_once_in_whatever_order_its_references_end() {
    check(5, || {
        let engine = start(false);
        let other = engine.clone();
        let handle = engine.spawn(|state| async {
            while state.count.get() == 0 {
                state.event.wait().await;
            }
            Ok(Box::new(state.count()))
        });
        let drops = spawn(move || drop(handle));
        let sets = other.run(|state| async {
            state.count();
            state.event.notify_all();
            Ok(())
        });
        sets.expect("done");
        drops.join().expect("a thread");
        // This operation takes the first one's memory, or new memory.
        let again = engine.spawn(|state| async { Ok(state.count()) });
        assert_eq!(again.wait().expect("done"), 3);
    });
}

const OWNED: &str = "reactor/src/reactor/pooled.rs";
const AWAITED: &str =
    "models::handles::an_executor_whose_operation_another_thread_finishes_is_woken";
const ONCE: &str = "models::handles::a_pooled_operation_returns_to_the_pool_once_in_whatever_order_its_references_end";

#[test]
fn planted_a_handles_result_that_is_published_without_order_is_found() {
    Bug::planted(Relaxed, OWNED, "fn complete", "state.store").found_by(AWAITED);
}

#[test]
fn planted_a_handles_result_that_is_not_published_is_found() {
    Bug::planted(Skipped, OWNED, "fn complete", "state.store").found_by(AWAITED);
}

#[test]
fn planted_a_reference_released_without_order_is_found() {
    Bug::planted(Relaxed, OWNED, "unsafe fn release", "fetch_sub").found_by(ONCE);
}
