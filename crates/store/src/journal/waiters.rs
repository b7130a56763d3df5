//! Operations of any partition that wait for the end of a commit, whichever worker leads it.
//!
//! Invariant: an operation looks at what it waits for under the mutex, before its waker is in the
//! list. So of its look and a change before [`Waiters::wake`], the look sees the change, or the
//! wake finds the waker.

use adit_base::sync::{Mutex, MutexGuard};
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

/// Those of a volume.
#[derive(Default)]
pub(crate) struct Waiters(Mutex<Vec<Waker>>);

impl Waiters {
    fn list(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ready if `is_over` says so; else the operation is woken by the next [`Waiters::wake`].
    pub(crate) fn poll(&self, context: &Context<'_>, is_over: impl FnOnce() -> bool) -> Poll<()> {
        let mut list = self.list();
        if is_over() {
            return Poll::Ready(());
        }
        if !list.iter().any(|waker| waker.will_wake(context.waker())) {
            list.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// Something that they wait for has changed.
    pub(crate) fn wake(&self) {
        let woken = std::mem::take(&mut *self.list());
        woken.into_iter().for_each(Waker::wake);
    }
}
