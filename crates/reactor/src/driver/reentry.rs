//! Refuses a call from inside a call of the same thread.

use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

use adit_base::{Errno, Error, Result};

adit_base::sync::local! {
    /// This thread is inside a call of some worker.
    static INSIDE: AtomicBool = const { AtomicBool::new(false) };
}

/// Marks this thread as inside a call, so that a signal handler that calls again gets EDEADLK
/// instead of waiting for itself.
#[derive(Debug)]
pub struct ReentryGuard(bool);

impl ReentryGuard {
    /// EDEADLK inside a call.
    #[inline]
    pub fn enter() -> Result<ReentryGuard> {
        INSIDE.with(|inside| {
            if inside.load(Ordering::Relaxed) {
                return Err(Error::new(Errno::DEADLK));
            }
            inside.store(true, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            Ok(ReentryGuard(false))
        })
    }

    /// Removes the mark while a waker of another executor runs, which may call us, or while a
    /// simulated world does so in place of a sleep.
    pub(super) fn suspend() -> ReentryGuard {
        ReentryGuard(INSIDE.with(|inside| {
            let was = inside.load(Ordering::Relaxed);
            inside.store(false, Ordering::Relaxed);
            was
        }))
    }
}

impl Drop for ReentryGuard {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        INSIDE.with(|inside| inside.store(self.0, Ordering::Relaxed));
    }
}

/// True if this thread is inside a call of a worker. Then it must not wait.
pub fn is_inside_call() -> bool {
    INSIDE.with(|inside| inside.load(Ordering::Relaxed))
}

/// Aborts if a bug of ours unwinds while other threads point into this thread's stack.
pub(super) struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        // Otherwise forgotten. A model that fails unwinds, and says why.
        if cfg!(loom) {
            return;
        }
        std::process::abort();
    }
}
