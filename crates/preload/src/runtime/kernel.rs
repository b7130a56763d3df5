//! System calls past the C library: without `errno`, a failure is the negative error number.

use adit::Errno;
use libc::{c_long, timespec};
use std::os::fd::AsFd;
use std::sync::atomic::AtomicI32;
use std::time::{Duration, Instant};

/// A system call that doesn't come through `syscall`, which is one of our functions.
///
/// # Safety
/// As for the system call.
pub(crate) unsafe fn call<const N: usize>(number: c_long, arguments: [usize; N]) -> c_long {
    let [a, b, c, d, e, f] = std::array::from_fn(|at| *arguments.get(at).unwrap_or(&0));
    let result: c_long;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: promised by the caller; the kernel changes these registers only.
    unsafe {
        std::arch::asm!(
            "syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c,
            in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!(
            "svc 0", in("x8") number, inlateout("x0") a => result, in("x1") b, in("x2") c,
            in("x3") d, in("x4") e, in("x5") f, options(nostack)
        );
    }
    result
}

/// Waits while the number is there, `timeout` at most. EINTR if a signal was handled meanwhile.
pub(crate) fn futex_wait(word: &AtomicI32, number: i32, timeout: Option<Duration>) -> Errno {
    // Without a timeout the kernel would go on after a signal.
    let timeout = as_timespec(timeout.unwrap_or(Duration::from_secs(1 << 31)));
    let arguments = [
        word.as_ptr() as usize,
        (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize,
        number as usize,
        &raw const timeout as usize,
    ];
    // SAFETY: addresses of things that outlive the call.
    let result = unsafe { call(libc::SYS_futex, arguments) };
    Errno::from_raw(-result as i32)
}

/// Wakes all who wait.
pub(crate) fn futex_wake(word: &AtomicI32) {
    let wake = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: it only compares the address.
    unsafe {
        call(
            libc::SYS_futex,
            [word.as_ptr() as usize, wake, i32::MAX as usize],
        )
    };
}

pub(crate) fn as_timespec(duration: Duration) -> timespec {
    timespec {
        tv_sec: duration.as_secs() as libc::time_t,
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// Adds one to an eventfd.
pub(crate) fn ring(eventfd: impl AsFd) {
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

/// Until when a call waits; None: for ever.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) fn after(timeout: Option<&timespec>) -> Deadline {
        Deadline(timeout.map(|timeout| {
            let seconds = u64::try_from(timeout.tv_sec).unwrap_or(0).min(1 << 31);
            let nanoseconds = u32::try_from(timeout.tv_nsec).unwrap_or(0);
            Instant::now() + Duration::new(seconds, nanoseconds)
        }))
    }

    /// How long from now on.
    pub(crate) fn left(self) -> Option<Duration> {
        let now = Instant::now();
        self.0
            .map(|deadline| deadline.saturating_duration_since(now))
    }
}
