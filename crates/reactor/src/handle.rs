//! Handles: an operation that runs on its own, as a future for any executor.
//!
//! A poll drives the worker if the lock is free, so an executor without any thread of ours makes
//! progress by polling. Inside an operation a poll drives nothing: the engine is notified once,
//! after the release. The driver that finishes the operation calls the waker. Dropping a handle
//! cancels nothing.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};

use adit_base::{Errno, Error, Result};

use crate::driver::{Core, DriverRole, Notify, ReentryGuard, forked};
use crate::reactor::Reactor;
use crate::reactor::pooled::PooledOperation;
use crate::reactor::task::{self, TaskKind};

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
        /// The engine was told to do the work although no poll drives it.
        notified: bool,
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
            inner: Inner::Running {
                host,
                operation,
                notified: false,
            },
            result: PhantomData,
        }
    }

    /// Begins an operation from inside one of the reactor's.
    pub(crate) fn begin_from<F, Fut>(host: Arc<dyn Host>, reactor: &Reactor, start: F) -> Self
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        let operation = host.core().pool.fill(TaskKind::Spawned, start);
        // SAFETY: new, with a reference for the worker and one for the handle.
        unsafe { host.core().submit_from(reactor, operation) };
        Handle {
            inner: Inner::Running {
                host,
                operation,
                notified: true,
            },
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
        if let Inner::Running {
            host, operation, ..
        } = &self.inner
        {
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
        self.running()
            .is_none_or(|(_, operation)| operation.is_done())
    }

    /// Drives if the lock is free. `polls_again`: the thread does so until the operation is done.
    pub(crate) fn drive(&self, polls_again: bool) {
        if let Inner::Running {
            host, operation, ..
        } = &self.inner
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

    /// The operation, if it is under way, and its engine.
    pub(crate) fn running(&self) -> Option<(&Arc<dyn Host>, &PooledOperation)> {
        match &self.inner {
            Inner::Running {
                host, operation, ..
            } => {
                // SAFETY: the handle's reference keeps it valid.
                Some((host, unsafe { operation.as_ref() }))
            }
            _ => None,
        }
    }
}

impl<T> Handle<T> {
    fn release(&mut self) {
        if let Inner::Running {
            host, operation, ..
        } = std::mem::replace(&mut self.inner, Inner::Consumed)
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
        if let Inner::Running {
            host,
            operation,
            notified,
        } = &mut self.inner
        {
            // SAFETY: the handle's reference keeps it valid.
            unsafe { operation.as_ref() }.set_waker(context.waker());
            // An operation that awaits the handle doesn't drive its engine.
            *notified = *notified || task::notify_after_release(host.core().number());
        }
        self.drive(false);
        self.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        if let Inner::Running {
            host, operation, ..
        } = &self.inner
        {
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
