//! Locks that a forked child has anew.
//!
//! Another thread of the parent may have a lock when its process forks, and nobody unlocks it in
//! the child. To hold each lock while the process forks isn't always possible: the C library's own
//! work in `fork`, and other libraries', may need it.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

/// A value behind a lock.
pub(crate) struct Renewed<T: 'static> {
    first: RwLock<T>,
    /// That of this child; null: the first one.
    own: AtomicPtr<RwLock<T>>,
}

/// What a thread that forks prepared for the child to do.
pub(crate) type InChild = Box<dyn FnOnce()>;

impl<T> Renewed<T> {
    pub(crate) const fn new(value: T) -> Renewed<T> {
        Renewed {
            first: RwLock::new(value),
            own: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    fn now(&self) -> &RwLock<T> {
        // SAFETY: null, or a box of `renew`, which nobody frees.
        let own = unsafe { self.own.load(Ordering::Acquire).as_ref() };
        own.unwrap_or(&self.first)
    }

    pub(crate) fn lock(&self) -> RwLockWriteGuard<'_, T> {
        self.now().write().unwrap_or_else(PoisonError::into_inner)
    }

    /// For who changes nothing.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.now().read().unwrap_or_else(PoisonError::into_inner)
    }

    /// In a child, before it has a second thread: from here on this value is behind a lock that
    /// nobody has. What was behind the last one stays allocated: another thread of the parent may
    /// have been changing it.
    pub(crate) fn renew(&self, value: T) {
        let own = Box::into_raw(Box::new(RwLock::new(value)));
        self.own.store(own, Ordering::Release);
    }

    /// In a child, before it has a second thread: the lock is free. The value stays, or is `before`
    /// if another thread of the parent was changing it.
    pub(crate) fn in_child(&self, before: T)
    where
        T: Clone,
    {
        if let Ok(_) | Err(TryLockError::Poisoned(_)) = self.now().try_write() {
            return;
        }
        let value = match self.now().try_read() {
            Ok(value) => value.clone(),
            Err(_) => before,
        };
        self.renew(value);
    }

    /// In a thread that forks: keeps what is there for the child.
    pub(crate) fn at_fork(&'static self) -> InChild
    where
        T: Clone,
    {
        let before = self.read().clone();
        Box::new(|| self.in_child(before))
    }
}

impl<T: Default> Default for Renewed<T> {
    fn default() -> Renewed<T> {
        Renewed::new(T::default())
    }
}
