//! Sleeping on a 32-bit word, and waking a thread that sleeps there.
//!
//! A wake may come when the word is gone already (a caller's word is on its stack). The kernel only
//! compares addresses, so the worst outcome is a spurious wake-up of a thread that sleeps there
//! now, and every user of a futex expects those. This is not a lock.

use std::time::Duration;

use adit_base::clock::monotonic_ns;
use adit_base::simulation;
use adit_base::sync::atomic::AtomicU32;

/// Sleeps if `word` is `expected`, until a wake or the deadline (on the monotonic clock), or until
/// it wakes up for no reason.
pub(crate) fn wait(word: &AtomicU32, expected: u32, deadline_ns: Option<u64>) {
    if simulation::is_simulated() {
        if !simulation::run_others() {
            simulation::sleep(deadline_ns);
        }
        return;
    }
    let timeout = match deadline_ns {
        None => None,
        Some(deadline_ns) => {
            let left = Duration::from_nanos(deadline_ns.saturating_sub(monotonic_ns()));
            if left.is_zero() {
                return;
            }
            Some(libc::timespec {
                tv_sec: libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX),
                tv_nsec: left.subsec_nanos().into(),
            })
        }
    };
    let timeout = timeout
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word and the timeout are valid for the call; the kernel only reads them.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            timeout,
        );
    }
}

/// Wakes one sleeper at this address.
pub(crate) fn wake(word: *const AtomicU32) {
    // SAFETY: a private futex wake doesn't access the memory; see the header for words that are
    // gone.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word,
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            1,
        );
    }
}
