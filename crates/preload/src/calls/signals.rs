//! Threads and signals, for programs whose own system calls are caught ([`caught`]).
//!
//! Each thread has its calls caught, and SIGSYS is neither blocked nor taken. Otherwise all goes on to
//! the C library as it is.

use crate::caught;
use adit_interposed::interposed;
use libc::{c_int, c_void, pthread_attr_t, pthread_t, sighandler_t, sigset_t};

/// A thread's function, and its argument.
struct Begun<F> {
    function: F,
    argument: *mut c_void,
}

impl<F> Begun<F> {
    fn boxed(function: F, argument: *mut c_void) -> *mut c_void {
        Box::into_raw(Box::new(Begun { function, argument })).cast()
    }
}

macro_rules! begin {
    ($($name:ident: $function:ty, $result:ty;)*) => {$(
        /// The thread may end inside: nothing is left to be dropped then.
        unsafe extern "C-unwind" fn $name(begun: *mut c_void) -> $result {
            // SAFETY: this thread's, of the function that begins it.
            let begun = unsafe { *Box::from_raw(begun.cast::<Begun<$function>>()) };
            let Begun { function, argument } = begun;
            caught::in_thread();
            // SAFETY: the program vouches for it.
            unsafe { function(argument) }
        }
    )*};
}

type Function = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;
/// That of C11's threads.
type IntFunction = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

begin! {
    begin: Function, *mut c_void;
    begin_c11: IntFunction, c_int;
}

#[interposed]
unsafe extern "C" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    function: Function,
    argument: *mut c_void,
) -> c_int {
    let create = |function: Function, argument| real(thread, attributes, function, argument);
    if !caught::is_on() {
        return create(function, argument);
    }
    let begun = Begun::boxed(function, argument);
    let failed = create(begin, begun);
    if failed != 0 {
        // SAFETY: made above; there is no thread that has it.
        drop(unsafe { Box::from_raw(begun.cast::<Begun<Function>>()) });
    }
    failed
}

#[interposed]
unsafe extern "C" fn thrd_create(
    thread: *mut pthread_t,
    function: IntFunction,
    argument: *mut c_void,
) -> c_int {
    let create = |function: IntFunction, argument| real(thread, function, argument);
    if !caught::is_on() {
        return create(function, argument);
    }
    let begun = Begun::boxed(function, argument);
    let failed = create(begin_c11, begun);
    if failed != 0 {
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(begun.cast::<Begun<IntFunction>>()) });
    }
    failed
}

#[interposed]
unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let set = |new, old| real(signal, new, old);
    // SAFETY: NULL, or the program's structure.
    let given = match unsafe { new.as_ref() } {
        _ if !caught::is_on() => return set(new, old),
        given if signal == libc::SIGSYS => {
            let before = caught::swap_action(given);
            // SAFETY: as above.
            if let Some(old) = unsafe { old.as_mut() } {
                *old = before;
            }
            return 0;
        }
        None => return set(new, old),
        Some(given) => given,
    };
    let mut action = *given;
    action.sa_mask = caught::unblocked(&given.sa_mask);
    set(&raw const action, old)
}

#[interposed]
unsafe extern "C" fn signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    if number != libc::SIGSYS || !caught::is_on() {
        return real(number, handler);
    }
    // SAFETY: all zeroes are a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESTART;
    caught::swap_action(Some(&action)).sa_sigaction
}

/// Functions that set the thread's mask.
#[interposed(pthread_sigmask)]
unsafe extern "C" fn sigprocmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: NULL, or the program's mask.
    let given = unsafe { set.as_ref() }.filter(|_| how != libc::SIG_UNBLOCK && caught::is_on());
    let unblocked = given.map(caught::unblocked);
    let set = unblocked.as_ref().map_or(set, std::ptr::from_ref);
    real(how, set, old)
}

/// The handler that ends the wait runs with this mask.
#[interposed]
unsafe extern "C-unwind" fn sigsuspend(set: *const sigset_t) -> c_int {
    // SAFETY: the program's mask.
    let given = unsafe { set.as_ref() }.filter(|_| caught::is_on());
    let unblocked = given.map(caught::unblocked);
    let set = unblocked.as_ref().map_or(set, std::ptr::from_ref);
    real(set)
}
