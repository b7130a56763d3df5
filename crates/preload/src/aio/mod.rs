//! Asynchronous IO: libaio, POSIX aio, and what becomes of io_uring.
//!
//! | module | |
//! |---|---|
//! | [`kernel`] | the kernel's structures and system calls |
//! | [`context`] | what stands beside a context of the kernel; waiting for its events |
//! | [`submission`] | requests of libaio on the volume's files |
//! | `libaio` | the functions of libaio, and `syscall`, `dlopen` as ways past them |
//! | `posix` | the functions of POSIX aio |
//! | `uring` | liburing's, which are refused: a ring goes past this library |
//!
//! A request is done at once where that is cheapest: on devices that answer at once (the caller
//! would execute it anyway), and in the cache. All others wait in the device's queue.

pub(crate) mod context;
pub(crate) mod kernel;
mod libaio;
mod posix;
mod submission;
mod uring;

pub(crate) use libaio::{is_libaio, own_handle, perform};

use crate::answer::Answer;
use crate::renewed::InChild;
use adit_base::fork;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

/// Do requests wait in the device's queue? If not, the caller does them.
pub(crate) fn is_queued() -> Answer<bool> {
    /// 0: not asked yet.
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    if KNOWN.load(Ordering::Relaxed) == 0 {
        let volume = crate::volume::volume()?;
        let queued = volume.is_queued().map_err(crate::answer::errno)?;
        KNOWN.store(1 + u8::from(queued), Ordering::Relaxed);
    }
    Ok(KNOWN.load(Ordering::Relaxed) == 2)
}

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
pub(crate) fn in_child() {
    UNCOLLECTED.store(0, Ordering::SeqCst);
    posix::in_child();
}

/// In a thread that forks.
pub(crate) fn at_fork() -> InChild {
    context::at_fork()
}

/// Waits for all requests, at the end of the process.
pub(crate) fn finish() {
    context::finish();
    loop {
        let left = UNCOLLECTED.load(Ordering::SeqCst);
        if left <= 0 {
            return;
        }
        kernel::futex_wait(&UNCOLLECTED, left, None);
    }
}
