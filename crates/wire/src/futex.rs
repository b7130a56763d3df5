//! Sleeping on a word of memory that two processes share.

use adit_base::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps if `word` is `expected`, until a wake or the timeout, or until it wakes up for no reason.
pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: the word and the timeout are valid for the call; the kernel only reads them.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            &raw const timeout,
        );
    }
}

/// Wakes up to `max` threads that sleep there, in any process. The call lasts as long as there are
/// such threads: a bound keeps a session with many sleepers from stopping the server.
pub(crate) fn wake(word: &AtomicU32, max: i32) {
    // SAFETY: the word is valid; a wake doesn't access it.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, max);
    }
}
