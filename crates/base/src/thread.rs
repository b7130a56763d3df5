//! Threads of a library inside its user's process.

use crate::sync::thread::{Builder, JoinHandle};

/// Starts a thread that gets no signals: the application's handlers are for its own threads.
pub fn spawn_without_signals(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    without_signals(|| Builder::new().name(name.to_owned()).spawn(work))
}

/// Starts threads that get no signals.
pub fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
    // SAFETY: plain calls on signal sets of our own; the mask is put back below.
    let before = unsafe {
        let mut all = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    };
    let spawned = spawn();
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    spawned
}
