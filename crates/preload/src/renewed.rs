//! Locks that a forked child has anew.
//!
//! Another thread of the parent may have a lock when its process forks, and nobody unlocks it in the
//! child. To hold each lock while the process forks isn't always possible: the C library's own work
//! in `fork` may need it.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value behind a lock.
pub(crate) struct Renewed<T: 'static> {
    first: Mutex<T>,
    /// That of this child; null: the first one.
    own: AtomicPtr<Mutex<T>>,
}

impl<T> Renewed<T> {
    pub(crate) const fn new(value: T) -> Renewed<T> {
        Renewed {
            first: Mutex::new(value),
            own: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    pub(crate) fn lock(&'static self) -> MutexGuard<'static, T> {
        // SAFETY: null, or a box of `renew`, which nobody frees.
        let own = unsafe { self.own.load(Ordering::Acquire).as_ref() };
        own.unwrap_or(&self.first)
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// In a child, before it has a second thread: from here on this value is behind a lock that
    /// nobody has. What was behind the last one stays allocated: another thread of the parent may
    /// have been changing it.
    pub(crate) fn renew(&'static self, value: T) {
        let own = Box::into_raw(Box::new(Mutex::new(value)));
        self.own.store(own, Ordering::Release);
    }
}
