//! Handles: an operation that runs on its own, as a future for any executor.
//!
//! A poll drives the worker if the lock is free, so an executor without any thread of ours makes
//! progress by polling. The driver that finishes the operation calls the waker. Dropping a handle
//! cancels nothing.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use adit_base::{Errno, Error, Result};

use crate::driver::{Core, DriverRole, Notify, ReentryGuard, forked};
use crate::pooled::PooledOperation;
use crate::queue::{CompletionQueue, Report};
use crate::task::TaskKind;

/// The engine, without its state's type; a handle keeps it alive.
pub(crate) trait Host: Send + Sync {
    fn core(&self) -> &Core;
}

/// An operation under way; a future of its result.
#[must_use = "the operation runs anyway, but its result is lost"]
pub struct Handle<T> {
    inner: Inner,
    result: PhantomData<fn() -> T>,
}

enum Inner {
    Running {
        host: Arc<dyn Host>,
        operation: NonNull<PooledOperation>,
    },
    Failed(Error),
    Consumed,
}

// SAFETY: the operation is shared with the worker by the rules of `pooled.rs`; the result moves to
// the thread that takes it.
unsafe impl<T: Send> Send for Handle<T> {}
// SAFETY: `is_done` is all that a shared reference offers, and it reads an atomic.
unsafe impl<T: Send> Sync for Handle<T> {}
impl<T> Unpin for Handle<T> {}

impl<T: Send + 'static> Handle<T> {
    pub(crate) fn failed(error: Error) -> Self {
        Handle {
            inner: Inner::Failed(error),
            result: PhantomData,
        }
    }

    pub(crate) fn begin<F, Fut>(host: Arc<dyn Host>, start: F) -> Self
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        let operation = host.core().pool.fill(TaskKind::Spawned, start);
        // SAFETY: new, with a reference for the worker and one for the handle.
        unsafe { host.core().submit_spawned(operation) };
        Handle {
            inner: Inner::Running { host, operation },
            result: PhantomData,
        }
    }

    /// The result, if the operation is done; EINVAL if it was taken before. Doesn't drive.
    fn take(&mut self) -> Option<Result<T>> {
        match &self.inner {
            Inner::Running { host, .. } if host.core().is_forked() => Some(Err(forked())),
            Inner::Running { operation, .. } => {
                // SAFETY: the handle's reference keeps it valid, and T is its type.
                let result = unsafe { operation.as_ref().take::<T>() }?;
                self.release();
                Some(result)
            }
            _ => match std::mem::replace(&mut self.inner, Inner::Consumed) {
                Inner::Failed(error) => Some(Err(error)),
                _ => Some(Err(Error::with(Errno::INVAL, "take a result twice"))),
            },
        }
    }

    /// Drives the worker if its lock is free. Returns the result if the operation is done. Doesn't
    /// wait for the device, but may execute an inline request, of this operation or another one.
    ///
    /// The caller polls in a loop until the operation is done, or drops or awaits the handle. It
    /// does the operation's work itself, so the keeper isn't woken for it. An operation begun by
    /// another thread never waits for the next poll. But one that another thread awaits, and that
    /// this poll advanced, may wait for the next poll.
    pub fn poll_once(&mut self) -> Option<Result<T>> {
        self.take().or_else(|| {
            self.drive(true);
            self.take()
        })
    }

    /// Blocks until the operation is done.
    pub fn wait(mut self) -> Result<T> {
        if let Some(result) = self.take() {
            return result;
        }
        if let Inner::Running { host, operation } = &self.inner {
            let _inside = ReentryGuard::enter()?;
            // SAFETY: the handle's reference keeps it valid.
            let operation = unsafe { operation.as_ref() };
            let finished = host.core().run(|| {
                std::future::poll_fn(|context| {
                    if operation.is_done() {
                        return Poll::Ready(Ok(()));
                    }
                    operation.set_local_waiter(context.waker());
                    Poll::Pending
                })
            });
            if !operation.is_done() {
                finished?;
            }
        }
        self.take().unwrap_or_else(|| Err(Error::new(Errno::IO)))
    }

    /// Whether the operation is done.
    pub fn is_done(&self) -> bool {
        match &self.inner {
            // SAFETY: the handle's reference keeps it valid.
            Inner::Running { operation, .. } => unsafe { operation.as_ref() }.is_done(),
            _ => true,
        }
    }

    /// Drives if the lock is free. `polls_again`: the thread does so until the operation is done.
    fn drive(&self, polls_again: bool) {
        if let Inner::Running { host, operation } = &self.inner
            && let Ok(_inside) = ReentryGuard::enter()
        {
            // SAFETY: the handle's reference keeps it valid.
            let operation = unsafe { operation.as_ref() };
            let notify = if polls_again {
                Notify::Never
            } else {
                Notify::IfHeld
            };
            let is_done = || operation.is_done();
            let role = DriverRole::poller(&is_done, polls_again);
            host.core().try_drive(&role, notify);
        }
    }

    /// Has the end of the operation reported to a queue as `key`, once, in the place of a waker.
    /// True: it is done already, or can't be in this process, and is not reported.
    pub fn report_to(&self, queue: &CompletionQueue, key: u64) -> bool {
        let Inner::Running { host, operation } = &self.inner else {
            return true;
        };
        if host.core().is_forked() {
            return true;
        }
        // SAFETY: the handle's reference keeps it valid.
        let operation = unsafe { operation.as_ref() };
        if std::ptr::eq(host.core(), queue.host().core()) {
            operation.set_queue(queue.shared(), key);
        } else {
            operation.set_waker(&Report::waker(queue, key));
        }
        operation.is_done() && operation.clear_listener()
    }
}

/// Waits until at least one of the operations is done, or until the timeout (`None`: never); says
/// whether one is. `handle` gives the first `count` operations by number; None is passed over.
/// The thread drives the worker of the first of them; others are driven by their keepers. With a
/// timeout of zero it makes all progress that is possible without waiting.
///
/// The handles belong to this thread meanwhile. False at once without any operation. EBADF in a
/// forked child, EDEADLK from a signal handler that interrupted a call.
pub fn wait_any<'a, T: Send + 'static>(
    count: usize,
    handle: impl Fn(usize) -> Option<&'a Handle<T>>,
    timeout: Option<Duration>,
) -> Result<bool> {
    let running = |at| match handle(at).map(|handle: &Handle<T>| &handle.inner) {
        // SAFETY: the handle's reference keeps it valid.
        Some(Inner::Running { host, operation }) => Some((host, unsafe { operation.as_ref() })),
        _ => None,
    };
    let Some((home, _)) = (0..count).find_map(running) else {
        return Ok((0..count).any(|at| handle(at).is_some()));
    };
    if home.core().is_forked() {
        return Err(forked());
    }
    let is_done_at =
        |at| handle(at).is_some() && running(at).is_none_or(|(_, operation)| operation.is_done());
    let is_done = || (0..count).any(is_done_at);
    if is_done() {
        return Ok(true);
    }
    let is_home = |host: &Arc<dyn Host>| std::ptr::eq(host.core(), home.core());
    let foreign = |at: &usize| running(*at).is_some_and(|(host, _)| !is_home(host));
    let queue = (0..count)
        .any(|at| foreign(&at))
        .then(|| CompletionQueue::new(home.clone()));
    for at in (0..count).filter(foreign) {
        if let (Some(handle), Some(queue)) = (handle(at), &queue) {
            if handle.report_to(queue, 0) {
                return Ok(true);
            }
            handle.drive(false);
        }
    }
    let inside = ReentryGuard::enter()?;
    if timeout == Some(Duration::ZERO) {
        let role = DriverRole::poller(&is_done, queue.is_none());
        let notify = if queue.is_none() {
            Notify::Never
        } else {
            Notify::IfHeld
        };
        home.core().try_drive(&role, notify);
        return Ok(is_done());
    }
    let own = (0..count)
        .filter_map(running)
        .filter(|(host, _)| is_home(host));
    let is_done = &is_done;
    let waited = home.core().run(move || async move {
        // SAFETY: under the lock, as everything in this future.
        let reactor = unsafe { home.core().reactor() }.clone();
        let mut deadline = pin!(timeout.map(|timeout| reactor.sleep(timeout)));
        let mut own = Some(own);
        let mut watch = queue.as_ref().map(CompletionQueue::watch);
        std::future::poll_fn(|context| {
            for (_, operation) in own.take().into_iter().flatten() {
                operation.set_local_waiter(context.waker());
            }
            let sleep = deadline.as_mut().as_pin_mut();
            let is_over = sleep.is_some_and(|sleep| sleep.poll(context).is_ready());
            let is_reported = watch.as_mut().is_some_and(|watch| watch.poll(context));
            if is_done() || is_reported || is_over {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            }
        })
        .await
    });
    drop(inside);
    match waited {
        Err(error) if !is_done() => Err(error),
        _ => Ok(is_done()),
    }
}

impl<T> Handle<T> {
    fn release(&mut self) {
        if let Inner::Running { host, operation } =
            std::mem::replace(&mut self.inner, Inner::Consumed)
        {
            // SAFETY: the handle's reference, released once.
            unsafe { PooledOperation::release(operation, &host.core().pool) };
        }
    }
}

impl<T: Send + 'static> Future for Handle<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        if let Some(result) = self.take() {
            return Poll::Ready(result);
        }
        if let Inner::Running { operation, .. } = &self.inner {
            // SAFETY: the handle's reference keeps it valid.
            unsafe { operation.as_ref() }.set_waker(context.waker());
        }
        self.drive(false);
        self.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        if let Inner::Running { host, operation } = &self.inner {
            if host.core().is_forked() {
                return;
            }
            // SAFETY: the handle's reference keeps it valid.
            if !unsafe { operation.as_ref() }.is_done()
                && let Ok(_inside) = ReentryGuard::enter()
            {
                // A thread that polled it in a loop no longer does: the keeper has to know.
                host.core().try_drive(&DriverRole::OneBatch, Notify::Always);
            }
        }
        self.release();
    }
}
