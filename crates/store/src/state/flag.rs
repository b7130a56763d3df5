//! A fact about a volume that is true from some time on.

use adit_base::sync::atomic::{AtomicBool, Ordering};

/// False, until it is set.
#[derive(Default)]
pub(crate) struct Flag(AtomicBool);

impl Flag {
    /// One that is set already, or not yet.
    pub(crate) fn new(is_set: bool) -> Flag {
        Flag(AtomicBool::new(is_set))
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Sets or clears it, before anything relies on it.
    pub(crate) fn set_to(&self, value: bool) {
        self.0.store(value, Ordering::Relaxed);
    }
}
