//! A thread that is in a call on the volume may hold the engine's locks.
//!
//! So until the call ends, the thread is not cancelled (`pthread_cancel`), and a signal handler that
//! interrupted it and uses the volume gets EDEADLK: it would wait for itself for ever. Messages that
//! arise meanwhile wait, too, if stderr is a file of the volume.

use crate::runtime::answer::{Answer, keeping_errno};
use crate::runtime::message;
use crate::runtime::real::real;
use adit::Errno;
use libc::{c_int, c_void, size_t, ssize_t};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}
const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// Is the calling thread in a call on the volume?
#[inline]
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

/// Does the work of a call. `errno` stays: an error is a value here.
#[inline]
pub(crate) fn call<T>(work: impl FnOnce() -> Answer<T>) -> Answer<T> {
    keeping_errno(|| interposed(work))
}

/// Does work that doesn't fail. It isn't done by a signal handler that has interrupted a call.
pub(crate) fn run(work: impl FnOnce()) -> Answer<()> {
    call(|| {
        work();
        Ok(())
    })
}

/// Drops in a call what may close files of the volume.
pub(crate) fn let_go<T>(value: T) {
    let _ = run(|| drop(value));
}

/// The work of a call, in a function that is `#[interposed]` and does nothing else: it restores
/// `errno` itself.
#[inline]
pub(crate) fn interposed<T>(work: impl FnOnce() -> Answer<T>) -> Answer<T> {
    if INSIDE.replace(true) {
        return Err(interrupted());
    }
    let _inside = Inside {
        _uncancelled: Uncancelled::new(),
    };
    work()
}

/// Does what calls functions that end a cancelled thread, through frames that it can't be ended in.
pub(crate) fn uncancelled<T>(work: impl FnOnce() -> T) -> T {
    let _uncancelled = Uncancelled::new();
    work()
}

/// The thread isn't cancelled while this lives. Holds the state before.
struct Uncancelled(c_int);

impl Uncancelled {
    #[inline]
    fn new() -> Uncancelled {
        let mut before = 0;
        // SAFETY: sets the variable.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before) };
        Uncancelled(before)
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the old state of this thread; nobody wants to know the one before.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

/// Ends the thread, if it was cancelled. Called where nothing is left to be dropped.
#[inline]
pub(crate) fn cancel_if_asked() {
    // SAFETY: no preconditions.
    unsafe { pthread_testcancel() };
}

/// Restores what was before the call, also if it panics: the panic goes no further.
struct Inside {
    /// Dropped after the messages.
    _uncancelled: Uncancelled,
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
        let was_inside = INSIDE.replace(false);
        debug_assert!(was_inside, "a call ends once");
        message::say_deferred();
    }
}

#[cold]
fn interrupted() -> Errno {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) && !message::is_stderr_ours() {
        // No memory is taken here: the handler may have interrupted malloc.
        let line =
            b"adit: a signal handler used the volume while its thread was in a call: EDEADLK\n";
        real!(write(
            2 => c_int, line.as_ptr().cast() => *const c_void, line.len() => size_t
        ) -> ssize_t);
    }
    Errno::DEADLK
}
