//! Threads of a library inside its user's process.

use crate::sync::thread::{Builder, JoinHandle};
use std::panic::resume_unwind;

/// Starts a thread that gets no signals: the application's handlers are for its own threads.
pub fn spawn_without_signals(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    without_signals(|| Builder::new().name(name.to_owned()).spawn(work))
}

/// Runs `work` in a new thread with this umask; the process's other threads keep theirs. If the
/// kernel allows no such thread, the process's umask counts.
pub fn with_umask<T: Send>(mask: u32, work: &(impl Fn() -> T + Sync)) -> T {
    let masked = || {
        // SAFETY: no memory is involved. From here on this thread shares its mask with no other.
        if unsafe { libc::unshare(libc::CLONE_FS) } == 0 {
            // Not by the C library: under `adit run` its function notes the program's mask.
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask));
        }
        work()
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new();
        match without_signals(|| thread.spawn_scoped(scope, masked)) {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => work(),
        }
    })
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
    // SAFETY: it puts back the mask that was read above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    spawned
}

/// Keeps the signals that ask a program to end from doing so by themselves, in this thread and in
/// those that it starts: for a thread that waits for them.
pub fn block_ending_signals() -> libc::sigset_t {
    // SAFETY: a set is made empty before it is used; the calls have no other preconditions.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigemptyset(&mut signals);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&mut signals, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut());
        signals
    }
}
