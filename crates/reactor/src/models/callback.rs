//! A future that calls a function: no wake-up is lost, whichever thread polls.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use adit_base::sync::Mutex;
use adit_base::sync::atomic::{AtomicU32, Ordering};
use adit_base::sync::model::Wrong::Skipped;
use adit_base::sync::model::{Bug, check, spawn};

use crate::callback::call_when_done;

#[test]
fn the_function_is_called_once_whichever_thread_wakes_the_future() {
    check(20, || {
        // Ready when both were counted; each count is followed by a wake-up.
        let counted = Arc::new(AtomicU32::new(0));
        let waker: Arc<Mutex<Option<Waker>>> = Arc::default();
        let called = Arc::new(AtomicU32::new(0));
        let future = {
            let (counted, waker) = (counted.clone(), waker.clone());
            poll_fn(move |context| {
                *waker.lock().expect("held") = Some(context.waker().clone());
                match counted.load(Ordering::Acquire) {
                    2 => Poll::Ready(()),
                    _ => Poll::Pending,
                }
            })
        };
        let calls = called.clone();
        call_when_done(future, move |()| {
            calls.fetch_add(1, Ordering::Relaxed);
        });
        let threads = [0, 1].map(|_| {
            let (counted, waker) = (counted.clone(), waker.clone());
            spawn(move || {
                counted.fetch_add(1, Ordering::Release);
                let waker = waker.lock().expect("held").clone();
                waker.expect("it was polled").wake();
            })
        });
        for thread in threads {
            thread.join().expect("a thread");
        }
        assert_eq!(called.load(Ordering::Relaxed), 1);
        // The future holds a waker of itself.
        waker.lock().expect("held").take();
    });
}

const CALLED: &str =
    "models::callback::the_function_is_called_once_whichever_thread_wakes_the_future";

#[test]
fn planted_a_poller_that_leaves_without_a_check_is_found() {
    let (after, operation) = ("self.poll();", ".compare_exchange(POLLING");
    Bug::planted(Skipped, "reactor/src/callback.rs", after, operation).found_by(CALLED);
}
