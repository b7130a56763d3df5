//! Asynchronous IO: libaio, POSIX aio, and what becomes of io_uring.
//!
//! | module | |
//! |---|---|
//! | [`abi`] | the kernel's structures and system calls |
//! | [`context`] | what stands beside a context of the kernel; waiting for its events |
//! | [`submission`] | requests of libaio on the volume's files |
//! | [`libaio`] | the functions of libaio |
//! | `posix` | the functions of POSIX aio |
//! | `uncollected` | requests that end with a call of a function |
//! | `uring` | liburing's, which are refused: a ring goes past this library |
//!
//! A request is done at once where that is cheapest: on devices that answer at once (the caller
//! would execute it anyway), and in the cache. All others wait in the device's queue.

pub(crate) mod abi;
pub(crate) mod context;
pub(crate) mod libaio;
mod posix;
mod submission;
mod uncollected;
mod uring;

use crate::runtime::renewed::InChild;

/// In a forked child: requests under way are its parent's, whose threads end them there.
pub(crate) fn in_child() {
    uncollected::in_child();
    posix::in_child();
}

/// In a thread that forks.
pub(crate) fn at_fork() -> InChild {
    context::at_fork()
}

/// Waits for all requests, at the end of the process.
pub(crate) fn finish() {
    context::finish();
    uncollected::finish();
}
