//! From `Result` to numbers, and the words for the last error of a thread.
//!
//! Invariant: an error costs no formatting until somebody asks for its message.

use adit::{Errno, Error, Result};
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What `adit_error_message` tells.
struct LastError {
    error: Option<Error>,
    /// What was handed out last; NULL-terminated.
    message: Option<CString>,
}

thread_local! {
    static LAST_ERROR: RefCell<LastError> =
        const { RefCell::new(LastError { error: None, message: None }) };
}

/// Runs the body of a function: its value, or the negative errno of its error, whose words are
/// kept.
///
/// After a panic only the client crate uses the state that the closure touched, and it poisons the
/// volume itself.
#[inline]
pub(crate) fn guard(body: impl FnOnce() -> Result<i64>) -> i64 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => failed(error),
        Err(_) => failed(Error::with(
            Errno::IO,
            "complete an operation that panicked",
        )),
    }
}

/// [`guard`] for functions that answer 0.
#[inline]
pub(crate) fn guard_unit(body: impl FnOnce() -> Result<()>) -> c_int {
    guard(|| body().map(|()| 0)) as c_int
}

/// [`guard`] for functions that answer a small number.
#[inline]
pub(crate) fn guard_int(body: impl FnOnce() -> Result<c_int>) -> c_int {
    guard(|| body().map(i64::from)) as c_int
}

/// The result of an error.
pub(crate) fn negative(error: &Error) -> i64 {
    -i64::from(error.errno().raw())
}

/// The result of an error, whose words are kept.
#[cold]
pub(crate) fn failed(error: Error) -> i64 {
    let result = negative(&error);
    // At the exit of a thread its variables may be gone; then the number has to do.
    let _ = LAST_ERROR.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            last.error = Some(error);
        }
    });
    result
}

#[unsafe(no_mangle)]
pub extern "C" fn adit_error_message() -> *const c_char {
    LAST_ERROR
        .try_with(|last| {
            let mut last = last.try_borrow_mut().ok()?;
            let words = last.error.as_ref()?.to_string();
            // C ends a message at a NUL; a path can't have one.
            let message = CString::new(words.replace('\0', "")).ok()?;
            Some(last.message.insert(message).as_ptr())
        })
        .ok()
        .flatten()
        .unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn message() -> String {
        // SAFETY: the function returns a terminated string, which is copied at once.
        let message = unsafe { CStr::from_ptr(adit_error_message()) };
        message.to_str().expect("words are UTF-8").to_owned()
    }

    #[test]
    fn a_panic_becomes_an_errno() {
        assert_eq!(guard(|| panic!("on purpose")), -5);
        assert!(message().contains("panicked"));
    }

    #[test]
    fn the_message_is_that_of_the_last_failure_of_this_thread() {
        assert_eq!(message(), "");
        guard(|| Err(Error::with(Errno::NOENT, "open /a")));
        guard(|| Ok(7));
        assert_eq!(message(), "open /a: No such file or directory (ENOENT)");
        std::thread::spawn(|| assert_eq!(message(), ""))
            .join()
            .expect("no panic");
    }
}
