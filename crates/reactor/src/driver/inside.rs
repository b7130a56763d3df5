//! What a thread is marked with while it is inside a call.

use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

use adit_base::{Errno, Error, Result};

adit_base::sync::local! {
    /// This thread is inside a call of some worker.
    static INSIDE: AtomicBool = const { AtomicBool::new(false) };
}

/// Marks this thread as inside a call, so that a signal handler that calls again gets EDEADLK instead of waiting for itself.
pub(crate) struct Inside(bool);

impl Inside {
    #[inline]
    pub(crate) fn enter() -> Result<Inside> {
        INSIDE.with(|inside| {
            if inside.load(Ordering::Relaxed) {
                return Err(Error::new(Errno::DEADLK));
            }
            inside.store(true, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            Ok(Inside(false))
        })
    }

    /// Takes the mark off for as long as foreign code runs, which holds nothing of ours.
    pub(super) fn suspend() -> Inside {
        Inside(INSIDE.with(|inside| {
            let was = inside.load(Ordering::Relaxed);
            inside.store(false, Ordering::Relaxed);
            was
        }))
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        INSIDE.with(|inside| inside.store(self.0, Ordering::Relaxed));
    }
}

/// Our own bug while others point into this thread's stack: unwinding would leave them with a dead frame.
pub(super) struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        // Forgotten on the way out, so this is an unwinding. A model that failed says why instead.
        if cfg!(loom) {
            return;
        }
        std::process::abort();
    }
}
