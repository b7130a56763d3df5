//! An asynchronous operation as a program holds it.
//!
//! It is only a handle: the operation runs to its end independently of it.

use adit_base::{Errno, Error, Result};
use adit_reactor::{CompletionQueue, Handle, call_when_done};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// The future result of an operation, for any executor; it can also be polled by hand or waited
/// for. Polling also drives the volume if no other thread does. Dropping it cancels nothing.
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
pub struct Pending<T> {
    state: State<T>,
}

enum State<T> {
    Running(Handle<T>),
    Ready(Option<Result<T>>),
}

impl<T: Send + 'static> Pending<T> {
    pub(crate) fn running(handle: Handle<T>) -> Self {
        Pending {
            state: State::Running(handle),
        }
    }

    pub(crate) fn ready(result: Result<T>) -> Self {
        Pending {
            state: State::Ready(Some(result)),
        }
    }

    /// The result if the operation is done, after all progress that is possible without waiting.
    /// Returns the result once.
    ///
    /// Poll in a loop until the operation is done, or drop or await it: nobody else is woken for its
    /// work until then, nor for that of another thread's operation which this poll advanced.
    pub fn poll_once(&mut self) -> Option<Result<T>> {
        match &mut self.state {
            State::Running(handle) => handle.poll_once(),
            State::Ready(result) => Some(taken(result)),
        }
    }

    /// Whether the result is there. It only looks.
    pub fn is_done(&self) -> bool {
        match &self.state {
            State::Running(handle) => handle.is_done(),
            State::Ready(_) => true,
        }
    }

    /// Waits at most so long; says whether the result is there. `EBADF` in a forked child.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<bool> {
        Self::wait_any_of(1, |_| Some(&*self), Some(timeout))
    }

    /// Waits until at least one of the operations is done, or until the timeout (`None`: never).
    /// Returns the number of the first one that is. With a timeout of zero it makes all progress
    /// that is possible without waiting. `None` at once without any operation. A
    /// [`CompletionQueue`](crate::CompletionQueue) is better for hundreds of operations, and for
    /// several threads.
    ///
    /// ```
    /// # fn main() -> adit::Result<()> {
    /// # let volume = adit::Volume::open("mem:64M")?;
    /// # let file = volume.open_file("/a", adit::OpenOptions::new().write(true).create(true))?;
    /// let mut syncs = [file.sync_data_async(), file.sync_all_async()];
    /// let first = adit::Pending::wait_any(&mut syncs, None)?.expect("there is one");
    /// syncs[first].poll_once().expect("it is done")?;
    /// # Ok(()) }
    /// ```
    pub fn wait_any(
        operations: &mut [Pending<T>],
        timeout: Option<Duration>,
    ) -> Result<Option<usize>> {
        Self::wait_any_of(operations.len(), |at| operations.get(at), timeout)?;
        Ok(operations.iter().position(Pending::is_done))
    }

    /// The same for operations that lie anywhere; None is passed over. For the C interface.
    #[doc(hidden)]
    pub fn wait_any_of<'a>(
        count: usize,
        operation: impl Fn(usize) -> Option<&'a Pending<T>>,
        timeout: Option<Duration>,
    ) -> Result<bool> {
        let is_ready = |at| matches!(operation(at).map(|of| &of.state), Some(State::Ready(_)));
        if (0..count).any(is_ready) {
            return Ok(true);
        }
        let handle = |at| match operation(at).map(|of| &of.state) {
            Some(State::Running(handle)) => Some(handle),
            _ => None,
        };
        adit_reactor::wait_any(count, handle, timeout)
    }

    /// Has its end reported to a queue as `key`; true if it is done already, and is not reported.
    pub(crate) fn report_to(&self, queue: &CompletionQueue, key: u64) -> bool {
        match &self.state {
            State::Running(handle) => handle.report_to(queue, key),
            State::Ready(_) => true,
        }
    }

    /// Waits for the result.
    pub fn wait(self) -> Result<T> {
        match self.state {
            State::Running(handle) => handle.wait(),
            State::Ready(mut result) => taken(&mut result),
        }
    }

    /// Calls `done` once with the result, in the thread that completes the operation: possibly this
    /// one, before the call returns. `done` must neither block nor call Adit; it may drop handles.
    /// The thread has work of its own, which other threads may wait for.
    pub fn on_complete(self, done: impl FnOnce(Result<T>) + Send + 'static) {
        call_when_done(self, done);
    }
}

fn taken<T>(result: &mut Option<Result<T>>) -> Result<T> {
    result
        .take()
        .unwrap_or_else(|| Err(Error::with(Errno::INVAL, "take a result twice")))
}

// Nothing in it is pinned: the operation itself lives elsewhere.
impl<T> Unpin for Pending<T> {}

impl<T: Send + 'static> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        match &mut self.state {
            State::Running(handle) => Pin::new(handle).poll(context),
            State::Ready(result) => Poll::Ready(taken(result)),
        }
    }
}

impl<T> std::fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}
