//! Handles: an operation that runs on its own, as a future for any executor.
//!
//! A handle only looks at an operation. Polling it drives the worker if that is free, so an executor without any thread of ours makes
//! progress by polling; the waker is called by whichever driver finishes the operation. Dropping it cancels nothing.

use std::cell::Cell;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};

use adit_base::{Errno, Error, Result};

use crate::driver::{Core, Inside, Need, Purpose, forked};
use crate::owned::OwnedCell;
use crate::task::TaskKind;

/// What keeps a worker alive for its handles.
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
        cell: NonNull<OwnedCell>,
    },
    Failed(Error),
    Taken,
}

// SAFETY: the cell is shared with the worker by the rules of `owned.rs`; the result moves to whichever thread takes it.
unsafe impl<T: Send> Send for Handle<T> {}
// SAFETY: nothing can be done with a shared reference.
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
        let cell = host.core().pool.fill(TaskKind::Spawned, start);
        // SAFETY: just filled, for a worker and a handle.
        unsafe { host.core().hand_in(cell) };
        Handle {
            inner: Inner::Running { host, cell },
            result: PhantomData,
        }
    }

    /// The result, if the operation is done; EINVAL if it was taken before. Drives nothing.
    fn take(&mut self) -> Option<Result<T>> {
        match &self.inner {
            Inner::Running { host, .. } if host.core().is_forked() => Some(Err(forked())),
            Inner::Running { cell, .. } => {
                // SAFETY: the handle's reference keeps it valid, and T is its type.
                let result = unsafe { cell.as_ref().take::<T>() }?;
                self.release();
                Some(result)
            }
            _ => match std::mem::replace(&mut self.inner, Inner::Taken) {
                Inner::Failed(error) => Some(Err(error)),
                _ => Some(Err(Error::with(Errno::INVAL, "take a result twice"))),
            },
        }
    }

    /// Drives the worker if it is free, without blocking for the device's completions (but it may execute a request that waits for a
    /// thread, this operation's or another's); the result, if the operation is done.
    ///
    /// For callers that poll in a loop: while the operation isn't done, what it waits for is theirs, and the keeper isn't woken for it. They
    /// poll until it is done, or drop the handle, or await it. What others rely on never waits for the next poll.
    pub fn poll_once(&mut self) -> Option<Result<T>> {
        self.take().or_else(|| {
            self.help(true);
            self.take()
        })
    }

    /// Blocks until the operation is done.
    pub fn wait(mut self) -> Result<T> {
        if let Some(result) = self.take() {
            return result;
        }
        if let Inner::Running { host, cell } = &self.inner {
            let _inside = Inside::enter()?;
            // SAFETY: the handle's reference keeps it valid.
            let cell = unsafe { cell.as_ref() };
            let finished = host.core().run(|| {
                std::future::poll_fn(|context| {
                    if cell.is_done() {
                        return Poll::Ready(Ok(()));
                    }
                    cell.set_local_waiter(context.waker());
                    Poll::Pending
                })
            });
            if !cell.is_done() {
                finished?;
            }
        }
        self.take().unwrap_or_else(|| Err(Error::new(Errno::IO)))
    }

    /// Whether the operation is done.
    pub fn is_done(&self) -> bool {
        match &self.inner {
            // SAFETY: the handle's reference keeps it valid.
            Inner::Running { cell, .. } => unsafe { cell.as_ref() }.is_done(),
            _ => true,
        }
    }

    /// Drives if the worker is free; `returns`: the caller comes again until the operation is done.
    fn help(&self, returns: bool) {
        if let Inner::Running { host, cell } = &self.inner
            && let Ok(_inside) = Inside::enter()
        {
            // SAFETY: the handle's reference keeps it valid.
            let cell = unsafe { cell.as_ref() };
            let need = if returns { Need::None } else { Need::Driver };
            let returns = Cell::new(returns);
            host.core().help(&Purpose::Handle { cell, returns }, need);
        }
    }
}

impl<T> Handle<T> {
    fn release(&mut self) {
        if let Inner::Running { host, cell } = std::mem::replace(&mut self.inner, Inner::Taken) {
            // SAFETY: the handle's reference, given up once.
            unsafe { OwnedCell::release(cell, &host.core().pool) };
        }
    }
}

impl<T: Send + 'static> Future for Handle<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        if let Some(result) = self.take() {
            return Poll::Ready(result);
        }
        if let Inner::Running { cell, .. } = &self.inner {
            // SAFETY: the handle's reference keeps it valid.
            unsafe { cell.as_ref() }.set_waker(context.waker());
        }
        self.help(false);
        self.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        if let Inner::Running { host, cell } = &self.inner {
            if host.core().is_forked() {
                return;
            }
            // SAFETY: the handle's reference keeps it valid.
            if !unsafe { cell.as_ref() }.is_done()
                && let Ok(_inside) = Inside::enter()
            {
                // Whoever polled it by hand so far no longer does: somebody must.
                host.core().help(&Purpose::Glance, Need::Look);
            }
        }
        self.release();
    }
}
