//! System calls that a program makes without the C library's functions for them.
//!
//! - `by_number`: `syscall`
//! - `numbered`: its calls that name paths or descriptors, each done as the function of that name
//! - `handler`: those of the program's own code, which SIGSYS tells ([`caught`](crate::caught))

mod by_number;
#[cfg(target_arch = "x86_64")]
mod handler;
mod numbered;

/// The handler of SIGSYS.
#[cfg(target_arch = "x86_64")]
pub(crate) fn handler() -> Option<usize> {
    Some(handler::caught as *const () as usize)
}

/// Kernels that can are of 2026, and the handler needs its own registers.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn handler() -> Option<usize> {
    None
}
