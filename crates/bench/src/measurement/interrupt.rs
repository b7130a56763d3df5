//! Ctrl-C ends a benchmark early and tidily: the jobs notice, the temporary files are removed.
//!
//! The handler only sets a flag. The previous handlers come back when the guard is dropped.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

const SIGNALS: [libc::c_int; 2] = [libc::SIGINT, libc::SIGTERM];

extern "C" fn remember(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Catches SIGINT and SIGTERM while it lives: measurements end with an error of kind `Interrupted`.
pub struct Guard {
    before: [libc::sigaction; 2],
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InterruptGuard").finish_non_exhaustive()
    }
}

impl Default for Guard {
    fn default() -> Guard {
        Guard::new()
    }
}

impl Guard {
    /// Begins to catch them, and forgets earlier ones.
    pub fn new() -> Guard {
        INTERRUPTED.store(false, Ordering::Relaxed);
        let before = SIGNALS.map(|signal| {
            // SAFETY: an all-zero sigaction is a valid value (default action, empty mask).
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = remember as extern "C" fn(libc::c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            exchange(signal, &action)
        });
        Guard { before }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        for (signal, action) in SIGNALS.into_iter().zip(&self.before) {
            exchange(signal, action);
        }
    }
}

fn exchange(signal: libc::c_int, action: &libc::sigaction) -> libc::sigaction {
    // SAFETY: an all-zero sigaction is a valid value.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live values; the handler only stores to an atomic.
    unsafe { libc::sigaction(signal, action, &mut before) };
    before
}

/// An error of kind `Interrupted` once a signal has come.
#[inline]
pub(crate) fn check() -> io::Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        return Err(io::Error::new(
            io::ErrorKind::Interrupted,
            "the benchmark was interrupted",
        ));
    }
    Ok(())
}
