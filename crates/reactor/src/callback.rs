//! A future that calls a function at its end: an executor of one task, without a thread.
//!
//! The thread that wakes it polls it, one thread at a time:
//! ```text
//! IDLE ─ wake ─► POLLING ─ pending ─► IDLE
//!                 │   ▲
//!            wake ▼   │ pending
//!                AGAIN
//! ```
//! Invariants: of threads that wake it at the same time one polls, and polls again if another one
//! woke it after the poll began. The function is called once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use adit_base::sync::Mutex;
use adit_base::sync::atomic::{AtomicU8, Ordering};

use crate::lock::lock;

/// No thread polls.
const IDLE: u8 = 0;
/// A thread polls.
const POLLING: u8 = 1;
/// A thread polls, and will poll again.
const AGAIN: u8 = 2;

struct Callback<F, D> {
    turn: AtomicU8,
    /// Touched by the thread that polls; None after the call.
    waiting: Mutex<Option<(F, D)>>,
}

/// Calls `done` once with the future's output, in the thread that completes the future: possibly in
/// this one, before the call returns.
pub fn call_when_done<F, D>(future: F, done: D)
where
    F: Future + Unpin + Send + 'static,
    D: FnOnce(F::Output) + Send + 'static,
{
    let callback = Arc::new(Callback {
        turn: AtomicU8::new(IDLE),
        waiting: Mutex::new(Some((future, done))),
    });
    callback.wake();
}

impl<F, D> Wake for Callback<F, D>
where
    F: Future + Unpin + Send + 'static,
    D: FnOnce(F::Output) + Send + 'static,
{
    fn wake(self: Arc<Self>) {
        // A wake-up may come from inside the poll that it is for, so a lock alone doesn't suffice.
        if !self.begin() {
            return;
        }
        loop {
            self.poll();
            let quiet =
                self.turn
                    .compare_exchange(POLLING, IDLE, Ordering::AcqRel, Ordering::Acquire);
            if quiet.is_ok() {
                return;
            }
            self.turn.store(POLLING, Ordering::Release);
        }
    }
}

impl<F, D> Callback<F, D>
where
    F: Future + Unpin + Send + 'static,
    D: FnOnce(F::Output) + Send + 'static,
{
    /// Whether this thread is to poll; if not, the one that polls will poll again.
    fn begin(&self) -> bool {
        let mut turn = IDLE;
        loop {
            let next = if turn == IDLE { POLLING } else { AGAIN };
            let swap = self
                .turn
                .compare_exchange(turn, next, Ordering::AcqRel, Ordering::Acquire);
            match swap {
                Ok(_) => return turn == IDLE,
                Err(now) => turn = now,
            }
        }
    }

    fn poll(self: &Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut waiting = lock(&self.waiting);
        let Some((future, _)) = waiting.as_mut() else {
            return;
        };
        if let Poll::Ready(output) = Pin::new(future).poll(&mut Context::from_waker(&waker)) {
            let finished = waiting.take();
            drop(waiting);
            if let Some((_, done)) = finished {
                done(output);
            }
        }
    }
}
