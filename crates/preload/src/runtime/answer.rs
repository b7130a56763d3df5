//! From our results to those of C: a number, or -1 and `errno`.

use adit::Errno;
use libc::{c_char, c_int};

/// The result of a call on the volume.
pub(crate) type Answer<T = i64> = Result<T, Errno>;

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the address of the thread's own variable.
    unsafe { *libc::__errno_location() = errno.raw() };
}

/// The calling thread's `errno`.
pub(crate) fn now() -> c_int {
    before().value
}

/// The thread's `errno` before a call, and where it is: to ask again costs as much as all of this.
#[derive(Clone, Copy)]
pub(crate) struct Before {
    place: *mut c_int,
    value: c_int,
}

#[inline]
pub(crate) fn before() -> Before {
    // SAFETY: the address of the thread's own variable.
    unsafe {
        let place = libc::__errno_location();
        Before {
            place,
            value: *place,
        }
    }
}

impl Before {
    /// Gives `errno` back the value that it had, unless the call has failed.
    #[inline]
    pub(crate) fn restore(self, result: &impl Outcome) {
        if result.is_success() {
            // SAFETY: of this thread, which is in the function that has asked.
            unsafe { *self.place = self.value };
        }
    }
}

/// Does work of the library's own, of which `errno` shows nothing.
#[inline]
pub(crate) fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    let errno = before();
    let done = work();
    errno.restore(&());
    done
}

/// What a function of C returns. An error number that is returned leaves `errno` alone.
pub(crate) trait Outcome {
    fn is_success(&self) -> bool;
}

impl Outcome for () {
    fn is_success(&self) -> bool {
        true
    }
}

/// A number that a function of C returns: -1 for a failure.
pub(crate) trait Number {
    fn of(number: i64) -> Self;
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Outcome for $number {
            fn is_success(&self) -> bool {
                *self != -1
            }
        }
        impl Number for $number {
            fn of(number: i64) -> $number {
                number as $number
            }
        }
    )*};
}
numbers!(c_int i64 isize);

/// Of a call that fails: sets `errno`.
pub(crate) fn failed<T: Number>(errno: Errno) -> T {
    set_errno(errno);
    T::of(-1)
}

/// Of `signal`: the handler before.
impl Outcome for libc::sighandler_t {
    fn is_success(&self) -> bool {
        *self != libc::SIG_ERR
    }
}

/// Of `umask`, which never fails.
impl Outcome for libc::mode_t {
    fn is_success(&self) -> bool {
        true
    }
}

/// The int of a function that answers yes, or no with an errno.
#[repr(transparent)]
pub(crate) struct Truth(pub(crate) c_int);

impl Outcome for Truth {
    fn is_success(&self) -> bool {
        self.0 != 0
    }
}

/// The C string of a function that empties it when it fails.
#[repr(transparent)]
pub(crate) struct Name(pub(crate) *mut c_char);

impl Outcome for Name {
    fn is_success(&self) -> bool {
        // SAFETY: the program's string, which the function has looked at.
        unsafe { *self.0 != 0 }
    }
}

impl<T> Outcome for *mut T {
    fn is_success(&self) -> bool {
        !self.is_null() && self.cast() != libc::MAP_FAILED
    }
}

/// What a function of the C library has returned; `errno`, if it has failed.
pub(crate) fn checked<T: Outcome>(result: T) -> Answer<T> {
    if result.is_success() {
        Ok(result)
    } else {
        Err(Errno::last())
    }
}

/// The errno of a failed call.
pub(crate) fn errno(error: adit::Error) -> Errno {
    error.errno()
}

/// What C gets: the number, or -1 and `errno`.
pub(crate) trait ToC {
    fn to_c<T: Number>(self) -> T;
}

impl ToC for Answer<i64> {
    #[inline]
    fn to_c<T: Number>(self) -> T {
        self.map_or_else(failed, T::of)
    }
}

impl ToC for Answer<()> {
    fn to_c<T: Number>(self) -> T {
        self.map(|()| 0).to_c()
    }
}

impl ToC for Answer<c_int> {
    fn to_c<T: Number>(self) -> T {
        self.map(i64::from).to_c()
    }
}

/// A pointer for C: NULL after a failure.
pub(crate) fn pointer<T>(answer: Answer<*mut T>) -> *mut T {
    answer.unwrap_or_else(|errno| {
        set_errno(errno);
        std::ptr::null_mut()
    })
}
