//! Ctrl-C and its like: what a command leaves, and how to go on, in words.
//!
//! A copy ends in order: the signal is noted, and looked for between two pieces of work. A second
//! one ends the process at once, since the first may have found it waiting for a device. Commands
//! that a signal may end anywhere only say what that leaves. A signal that is ignored (`nohup`)
//! stays ignored. After its words the process ends by the signal, so a shell's loop ends, too.

use adit::{Errno, Error};
use libc::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

const SIGNALS: [c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// The signal that was noted; 0: none.
static NOTED: AtomicI32 = AtomicI32::new(0);
static WORDS: OnceLock<String> = OnceLock::new();

/// From now on the first signal is noted, for [`check`].
pub(crate) fn note() {
    extern "C" fn noted(signal: c_int) {
        NOTED.store(signal, Ordering::Relaxed);
    }
    handle(noted);
}

/// From now on a signal says this before it ends the process.
pub(crate) fn say(words: &str) {
    extern "C" fn said(signal: c_int) {
        let words = WORDS.get().map_or("", String::as_str);
        // SAFETY: calls that a handler may make, with memory that stays. The signal is blocked until
        // this returns, and has its first meaning since the handler began.
        unsafe {
            libc::write(2, words.as_ptr().cast(), words.len());
            libc::raise(signal);
        }
    }
    // Behind a progress bar.
    debug_assert!(
        NOTED.load(Ordering::Relaxed) == 0,
        "a command notes signals or says words"
    );
    let _ = WORDS.set(format!("\nadit: interrupted: {words}\n"));
    handle(said);
}

fn handle(handler: extern "C" fn(c_int)) {
    for signal in SIGNALS {
        // SAFETY: plain calls with structs of our own; both handlers do what a handler may do.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as libc::sighandler_t;
            // Without SA_RESTART: a read of standard input ends, too.
            action.sa_flags = libc::SA_RESETHAND;
            let mut before: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, &action, &mut before);
            if before.sa_sigaction == libc::SIG_IGN {
                libc::sigaction(signal, &before, std::ptr::null_mut());
            }
        }
    }
}

/// `EINTR` once a signal was noted.
pub(crate) fn check() -> adit::Result<()> {
    match NOTED.load(Ordering::Relaxed) {
        0 => Ok(()),
        _ => Err(Error::with(Errno::INTR, "copy to the end")),
    }
}

/// Ends the process by the signal that was noted, if one was.
pub(crate) fn die() {
    let signal = NOTED.load(Ordering::Relaxed);
    if signal != 0 {
        // SAFETY: plain calls.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}
