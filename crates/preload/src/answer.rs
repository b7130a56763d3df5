//! From our results to those of C: a number, or -1 and `errno`.

use adit::Errno;
use libc::c_int;

/// The result of a call on the volume.
pub(crate) type Answer<T = i64> = Result<T, Errno>;

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the address of the thread's own variable.
    unsafe { *libc::__errno_location() = errno.raw() };
}

/// The errno of a failed call.
pub(crate) fn errno(error: adit::Error) -> Errno {
    error.errno()
}

/// What C gets: the number, or -1.
pub(crate) trait ToC {
    fn to_c(self) -> i64;
}

impl ToC for Answer<i64> {
    #[inline]
    fn to_c(self) -> i64 {
        self.unwrap_or_else(|errno| {
            set_errno(errno);
            -1
        })
    }
}

impl ToC for Answer<()> {
    fn to_c(self) -> i64 {
        self.map(|()| 0).to_c()
    }
}

impl ToC for Answer<c_int> {
    fn to_c(self) -> i64 {
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
