//! Handles: an operation's cell belongs to the worker and to its handle, and goes back once; who
//! awaits it is woken.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use adit_base::sync::model::Wrong::{Relaxed, Skipped};
use adit_base::sync::model::{Bug, check, spawn};
use adit_base::sync::{Condvar, Mutex};

use super::callers::start;

/// An executor of one task: a flag and somebody who waits for it.
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
fn who_awaits_an_operation_that_another_thread_finishes_is_woken() {
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
fn a_cell_goes_back_once_however_its_handle_and_its_operation_end() {
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
        // Whichever cell this takes is nobody else's.
        let again = engine.spawn(|state| async { Ok(state.count()) });
        assert_eq!(again.wait().expect("done"), 3);
    });
}

const OWNED: &str = "reactor/src/pooled.rs";
const AWAITED: &str =
    "models::handles::who_awaits_an_operation_that_another_thread_finishes_is_woken";
const ONCE: &str =
    "models::handles::a_cell_goes_back_once_however_its_handle_and_its_operation_end";

#[test]
fn planted_a_result_in_a_cell_that_is_announced_without_order_is_found() {
    Bug::planted(Relaxed, OWNED, "fn complete", "state.store").found_by(AWAITED);
}

#[test]
fn planted_a_result_in_a_cell_that_is_not_announced_is_found() {
    Bug::planted(Skipped, OWNED, "fn complete", "state.store").found_by(AWAITED);
}

#[test]
fn planted_a_reference_given_up_without_order_is_found() {
    Bug::planted(Relaxed, OWNED, "unsafe fn release", "fetch_sub").found_by(ONCE);
}
