//! Requests that end with a call of a function: nobody collects them, and the end of the process
//! waits for them.

use crate::runtime::kernel;
use adit_base::fork;
use std::sync::atomic::{AtomicI32, Ordering};

/// Requests of all kinds that are under way and that nobody collects.
static UNCOLLECTED: AtomicI32 = AtomicI32::new(0);

/// A request that ends with a call of a function, in whichever thread: nobody collects it.
pub(crate) struct Uncollected {
    /// Of the process that began it.
    generation: u32,
}

impl Uncollected {
    pub(crate) fn begin() -> Uncollected {
        UNCOLLECTED.fetch_add(1, Ordering::SeqCst);
        Uncollected {
            generation: fork::generation(),
        }
    }
}

impl Drop for Uncollected {
    fn drop(&mut self) {
        let is_own = self.generation == fork::generation();
        if is_own && UNCOLLECTED.fetch_sub(1, Ordering::SeqCst) == 1 {
            kernel::futex_wake(&UNCOLLECTED);
        }
    }
}

/// In a forked child: requests under way are its parent's, whose threads end them there.
pub(super) fn in_child() {
    UNCOLLECTED.store(0, Ordering::SeqCst);
}

/// Waits for all of them.
pub(super) fn finish() {
    loop {
        let left = UNCOLLECTED.load(Ordering::SeqCst);
        if left <= 0 {
            return;
        }
        kernel::futex_wait(&UNCOLLECTED, left, None);
    }
}
