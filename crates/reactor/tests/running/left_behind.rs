//! What a driver leaves behind when it goes finds its next driver.

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

/// How often a race with the keeper for an inline request is tried. The submitter has a head start, which a busy machine may take from
/// it many times.
const ROUNDS: usize = 500;

/// A device whose flush, executed by a thread that isn't the keeper, lasts until the keeper has looked around and sleeps.
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

/// A write missed the cache, and its owner polled it by hand: the keeper, armed for it, found the request in the poller's hands and slept
/// without a deadline. The poller completed the write, which put off the write-back by a timer, and went without telling the keeper, since
/// it was polling by hand. The application went idle, and the data was never written back.
#[test]
fn the_last_poll_by_hand_leaves_its_timers_to_the_keeper() {
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

/// One thread polls an operation by hand; during this poll a second thread begins another operation, and awaits it. The first operation
/// then ends, or waits and isn't polled any more. Says whether the keeper kept out of it, as it was meant to; the second operation ended.
fn await_behind_a_poll_by_hand(ends: bool) -> bool {
    let (device, by_caller) = with_long_flush();
    let engine = start(device);
    let [polling, awaited, missed, woken] = [(); 4].map(|()| Arc::new(AtomicBool::new(false)));
    let mut by_hand = engine.spawn({
        let (polling, awaited, by_caller) = (polling.clone(), awaited.clone(), by_caller.clone());
        move |state| async move {
            flush(state).await?;
            if by_caller.load(Ordering::SeqCst) {
                // The worker is held, and the keeper sleeps, until the other operation is awaited.
                polling.store(true, Ordering::SeqCst);
                until("somebody awaits", || awaited.load(Ordering::SeqCst));
            }
            // Where the keeper executed the flush, the event may come before this operation waits.
            // It would wait for ever, and the engine's end for it: the count remembers the event.
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
        let result = by_hand.poll_once();
        if by_caller.load(Ordering::SeqCst) {
            assert_eq!(result.is_some(), ends);
        } else {
            missed.store(true, Ordering::SeqCst);
        }
        let as_meant = awaiting.join().expect("it ends");
        let told = engine.run(|state| async {
            state.count.set(1);
            state.event.notify_all();
            Ok(())
        });
        told.expect("runs");
        as_meant
    })
}

/// While one thread held the worker in a poll by hand, another one began an operation and awaited it: it found the worker busy and relied
/// on its holder. That one took the operation in and started its IO, saw its own operation done, and went without telling the keeper, since
/// it was polling by hand. Nobody collected the IO, and the other thread's waker was never called.
#[test]
fn the_last_poll_by_hand_leaves_what_others_await_to_the_keeper() {
    within(LIMIT, || {
        assert!((0..ROUNDS).any(|_| await_behind_a_poll_by_hand(true)));
    });
}

/// The same, but the operation that is polled by hand goes on: its owner, who may take its time, promised to come back for its own sake,
/// not for others'.
#[test]
fn what_others_await_does_not_wait_for_the_next_poll_by_hand() {
    within(LIMIT, || {
        assert!((0..ROUNDS).any(|_| await_behind_a_poll_by_hand(false)));
    });
}
