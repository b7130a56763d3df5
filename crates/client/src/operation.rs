//! An asynchronous operation as a program holds it.
//!
//! It is only a handle: the operation runs to its end whether or not anybody looks.

use adit_base::{Errno, Error, Result};
use adit_reactor::Handle;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// The result to come of an operation: a future for any executor, which can also be polled by hand or
/// waited for. Polling also drives the volume if no other thread does. Dropping it cancels nothing.
///
/// ```
/// # fn main() -> adit::Result<()> {
/// # let volume = adit::Volume::open("mem:64M")?;
/// # let file = volume.open_file("/a", adit::OpenOptions::new().write(true).create(true))?;
/// let mut sync = file.sync_data_async();
/// let done = loop {
///     match sync.poll_once() {
///         Some(result) => break result,
///         None => std::thread::yield_now(), // something useful
///     }
/// };
/// done?;
/// # Ok(()) }
/// ```
#[must_use = "the operation goes on without it, but its result is lost"]
pub struct Operation<T> {
    state: State<T>,
}

enum State<T> {
    Running(Handle<T>),
    Ready(Option<Result<T>>),
}

impl<T: Send + 'static> Operation<T> {
    pub(crate) fn running(handle: Handle<T>) -> Self {
        Operation {
            state: State::Running(handle),
        }
    }

    pub(crate) fn ready(result: Result<T>) -> Self {
        Operation {
            state: State::Ready(Some(result)),
        }
    }

    /// The result if it is there, after making what progress is possible without waiting. Once.
    pub fn poll_once(&mut self) -> Option<Result<T>> {
        match &mut self.state {
            State::Running(handle) => handle.poll_once(),
            State::Ready(result) => Some(taken(result)),
        }
    }

    /// Waits for the result.
    pub fn wait(self) -> Result<T> {
        match self.state {
            State::Running(handle) => handle.wait(),
            State::Ready(mut result) => taken(&mut result),
        }
    }

    /// Calls `done` once with the result, in whichever thread completes the operation, possibly this
    /// one before the call returns. It must neither block nor call Adit, other than by dropping what it
    /// has of it: the thread has its own work, and others may wait for that.
    pub fn on_complete(self, done: impl FnOnce(Result<T>) + Send + 'static) {
        let callback = Arc::new(Callback {
            turn: AtomicU8::new(IDLE),
            waiting: Mutex::new(Some((
                self,
                Box::new(done) as Box<dyn FnOnce(Result<T>) + Send>,
            ))),
        });
        callback.wake();
    }
}

fn taken<T>(result: &mut Option<Result<T>>) -> Result<T> {
    result
        .take()
        .unwrap_or_else(|| Err(Error::with(Errno::INVAL, "take a result twice")))
}

// Nothing in it is pinned: the operation itself lives elsewhere.
impl<T> Unpin for Operation<T> {}

impl<T: Send + 'static> Future for Operation<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        match &mut self.state {
            State::Running(handle) => Pin::new(handle).poll(context),
            State::Ready(result) => Poll::Ready(taken(result)),
        }
    }
}

impl<T> std::fmt::Debug for Operation<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operation").finish_non_exhaustive()
    }
}

/// Nobody polls.
const IDLE: u8 = 0;
/// Somebody polls.
const POLLING: u8 = 1;
/// Somebody polls, and was told meanwhile to do it again.
const AGAIN: u8 = 2;

/// An operation that is polled whenever it wakes, then handed to a function: an executor of one task.
///
/// ```text
/// IDLE ─ wake ─► POLLING ─ pending ─► IDLE
///                 │   ▲
///            wake ▼   │ pending
///                AGAIN
/// ```
struct Callback<T> {
    turn: AtomicU8,
    /// Touched by whoever polls; None once it was done.
    waiting: Mutex<Option<Waiting<T>>>,
}

type Waiting<T> = (Operation<T>, Box<dyn FnOnce(Result<T>) + Send>);

impl<T: Send + 'static> Wake for Callback<T> {
    fn wake(self: Arc<Self>) {
        // A wake-up may come from inside the very poll that it is for, so a lock alone won't do.
        let before = self
            .turn
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |turn| {
                Some(if turn == IDLE { POLLING } else { AGAIN })
            });
        if before != Ok(IDLE) {
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

impl<T: Send + 'static> Callback<T> {
    fn poll(self: &Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((operation, _)) = waiting.as_mut() else {
            return;
        };
        if let Poll::Ready(result) = Pin::new(operation).poll(&mut Context::from_waker(&waker)) {
            let finished = waiting.take();
            drop(waiting);
            if let Some((_, done)) = finished {
                done(result);
            }
        }
    }
}
