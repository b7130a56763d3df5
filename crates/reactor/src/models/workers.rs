//! Several workers: no wake-up between them is lost, whichever thread drives which of them.

use std::sync::Arc;
use std::task::{Poll, Waker};

use adit_base::Result;
use adit_base::sync::Mutex;
use adit_base::sync::atomic::{AtomicBool, Ordering};
use adit_base::sync::model::Wrong::Skipped;
use adit_base::sync::model::{Bug, check, spawn};

use super::callers::start;

/// Waits for `done`; `told` has its waker.
fn waits_until(done: &AtomicBool, told: &Mutex<Option<Waker>>) -> impl Future<Output = Result<()>> {
    std::future::poll_fn(|context| {
        *told.lock().expect("held") = Some(context.waker().clone());
        match done.load(Ordering::Acquire) {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    })
}

#[test]
fn an_operation_that_awaits_one_of_another_worker_is_woken_whichever_thread_drives_that() {
    check(3, || {
        let (first, second) = (start(false), start(false));
        let counts = {
            let second = second.clone();
            spawn(move || {
                let count = second.run(|state| async { Ok(state.count()) });
                count.expect("done")
            })
        };
        let other = second.clone();
        let awaited = first.run(|state| async move {
            let begun = other.spawn_from(&state.reactor, |state| async { Ok(state.count()) });
            begun.await
        });
        let mut both = [awaited.expect("done"), counts.join().expect("a thread")];
        both.sort_unstable();
        assert_eq!(both, [1, 2]);
    });
}

#[test]
fn a_wake_up_by_a_thread_that_drives_no_worker_is_not_lost() {
    check(4, || {
        let engine = start(false);
        let told: Arc<Mutex<Option<Waker>>> = Arc::default();
        let done = Arc::new(AtomicBool::new(false));
        let wakes = {
            let (told, done) = (told.clone(), done.clone());
            spawn(move || {
                done.store(true, Ordering::Release);
                let waker = told.lock().expect("held").take();
                if let Some(waker) = waker {
                    waker.wake();
                }
            })
        };
        let waits = engine.run(|_| waits_until(&done, &told));
        waits.expect("done");
        wakes.join().expect("a thread");
    });
}

#[test]
fn an_operation_that_another_worker_wakes_is_driven_by_the_thread_that_wakes_it() {
    check(3, || {
        let (first, second) = (start(false), start(false));
        let told: Arc<Mutex<Option<Waker>>> = Arc::default();
        let done = Arc::new(AtomicBool::new(false));
        let wakes = {
            let (told, done) = (told.clone(), done.clone());
            spawn(move || {
                let wakes = second.run(|_| async {
                    done.store(true, Ordering::Release);
                    let waker = told.lock().expect("held").take();
                    if let Some(waker) = waker {
                        waker.wake();
                    }
                    Ok(())
                });
                wakes.expect("done");
            })
        };
        let waits = first.run(|_| waits_until(&done, &told));
        waits.expect("done");
        wakes.join().expect("a thread");
    });
}

const LOCK: &str = "reactor/src/lock.rs";
const AWAITED: &str = "models::workers::an_operation_that_awaits_one_of_another_worker_is_woken_whichever_thread_drives_that";
const NOT_LOST: &str = "models::workers::a_wake_up_by_a_thread_that_drives_no_worker_is_not_lost";

#[test]
fn planted_an_operation_that_is_lost_on_its_way_to_another_worker_is_found() {
    Bug::planted(Skipped, LOCK, "fn push", "compare_exchange_weak").found_by(AWAITED);
}

#[test]
fn planted_a_wake_up_of_another_worker_that_notifies_nobody_is_found() {
    Bug::planted(Skipped, LOCK, "fn acquire_or_notify", "fetch_or").found_by(NOT_LOST);
}
