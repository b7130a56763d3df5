//! Work that a driver leaves behind finds its next driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use adit_base::{Error, Result};
use adit_block::{Device, Request};

use crate::common::{LIMIT, Mixed, State, is_keeper, poll, start, until, within, write_read};

async fn flush(state: &State) -> Result<()> {
    let flushed = state.reactor.submit(Request::flush(0)).await;
    flushed.result.map_err(Error::from)
}

/// Tries of a race with the keeper for an inline request. The submitter has a head start, but on a
/// busy machine it may lose many times.
const ROUNDS: usize = 500;

/// A device whose flush, if a thread other than the keeper executes it, lasts until the keeper has
/// driven and sleeps. The flag says that such a thread executed one.
fn with_long_flush() -> (Arc<dyn Device>, Arc<AtomicBool>) {
    let by_caller = Arc::new(AtomicBool::new(false));
    let seen = by_caller.clone();
    let device = Mixed::device(200, move || {
        if !is_keeper() {
            thread::sleep(Duration::from_millis(30));
            seen.store(true, Ordering::SeqCst);
        }
    });
    (device, by_caller)
}

/// A thread polled a write in a loop. The keeper, armed for the write's request, found that the
/// poller executed it, and slept without a deadline. The poller completed the write, which set a
/// timer for the write-back, and left without arming the keeper, since it polled in a loop. The
/// application went idle, and the data was never written back.
#[test]
fn the_last_poll_of_a_loop_leaves_its_timers_to_the_keeper() {
    within(LIMIT, || {
        for round in 0.. {
            let (device, by_caller) = with_long_flush();
            let engine = start(device);
            let written_back = Arc::new(AtomicBool::new(false));
            let seen = written_back.clone();
            let mut write = engine.spawn(move |state| async move {
                flush(state).await?;
                let reactor = state.reactor.clone();
                state.reactor.spawn_local(async move {
                    reactor.sleep(Duration::from_millis(5)).await;
                    written_back.store(true, Ordering::SeqCst);
                });
                Ok(())
            });
            while write.poll_once().is_none() {}
            until("the data is written back", || seen.load(Ordering::SeqCst));
            if by_caller.load(Ordering::SeqCst) {
                return;
            }
            assert!(round < ROUNDS, "the keeper is always faster");
        }
    });
}

/// One thread polls an operation in a loop; during a poll a second thread begins another operation,
/// and awaits it. The first operation then ends, or waits and isn't polled any more. The second
/// operation ends. True if the keeper slept meanwhile, as the test needs it.
fn await_behind_a_polling_loop(ends: bool) -> bool {
    let (device, by_caller) = with_long_flush();
    let engine = start(device);
    let [polling, awaited, missed, woken] = [(); 4].map(|()| Arc::new(AtomicBool::new(false)));
    let mut polled_in_loop = engine.spawn({
        let (polling, awaited, by_caller) = (polling.clone(), awaited.clone(), by_caller.clone());
        move |state| async move {
            flush(state).await?;
            if by_caller.load(Ordering::SeqCst) {
                // This thread has the lock, and the keeper sleeps, until the other operation is
                // awaited.
                polling.store(true, Ordering::SeqCst);
                until("the other one is awaited", || {
                    awaited.load(Ordering::SeqCst)
                });
            }
            // If the keeper executed the flush, the event may come before this operation waits. It
            // would wait for ever, and so would the engine's end: the count remembers the event.
            while !ends && state.count.get() == 0 {
                state.event.wait().await;
            }
            Ok(())
        }
    });
    thread::scope(|scope| {
        let awaiting = scope.spawn(|| {
            until("the first poll", || {
                polling.load(Ordering::SeqCst) || missed.load(Ordering::SeqCst)
            });
            if missed.load(Ordering::SeqCst) {
                return false;
            }
            let mut handle = engine.spawn(|state| write_read(state, 1, 1));
            let wake = woken.clone();
            let polled = poll(&mut handle, move || wake.store(true, Ordering::SeqCst));
            assert!(matches!(polled, Poll::Pending));
            awaited.store(true, Ordering::SeqCst);
            until("the waker is called", || woken.load(Ordering::SeqCst));
            true
        });
        let result = polled_in_loop.poll_once();
        assert!(ends || result.is_none(), "nobody has told it to end");
        if !by_caller.load(Ordering::SeqCst) {
            missed.store(true, Ordering::SeqCst);
        }
        let is_awaited = awaiting.join().expect("it ends");
        // A keeper that came late may have driven when the flush was over, and this thread left.
        let as_meant = is_awaited && result.is_some() == ends;
        let told = engine.run(|state| async {
            state.count.set(1);
            state.event.notify_all();
            Ok(())
        });
        told.expect("runs");
        as_meant
    })
}

/// While one thread drove in a polling loop, another one began an operation and awaited it. It
/// found the lock held and relied on the driver. The driver took the operation out of the inbox and
/// submitted its request, found its own operation done, and left without arming the keeper, since
/// it polled in a loop. No thread reaped the completion, and the other thread's waker was never
/// called.
#[test]
fn the_last_poll_of_a_loop_leaves_other_threads_work_to_the_keeper() {
    within(LIMIT, || {
        assert!((0..ROUNDS).any(|_| await_behind_a_polling_loop(true)));
    });
}

/// The operation polled in a loop is not done here: the next poll may come late, and only that
/// operation depends on it.
#[test]
fn work_that_another_thread_awaits_does_not_wait_for_the_next_poll_of_a_loop() {
    within(LIMIT, || {
        assert!((0..ROUNDS).any(|_| await_behind_a_polling_loop(false)));
    });
}
