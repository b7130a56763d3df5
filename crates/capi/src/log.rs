//! Messages: what Adit says besides the result of a call.

use crate::arguments::invalid;
use crate::result::guard_unit;
use adit::log::{self, Level};
use std::ffi::{CString, c_char, c_int, c_void};

/// `adit_log`.
pub type Log =
    Option<unsafe extern "C" fn(user_data: *mut c_void, level: c_int, message: *const c_char)>;

/// `ADIT_LOG_...`
pub(crate) const LOG_ERROR: c_int = 1;
pub(crate) const LOG_WARNING: c_int = 2;
pub(crate) const LOG_INFO: c_int = 3;
pub(crate) const LOG_DEBUG: c_int = 4;

/// What the callback gets back.
struct UserData(*mut c_void);

// SAFETY: by adit.h, the callback may be called by any thread, also by several at once.
unsafe impl Send for UserData {}
// SAFETY: as above.
unsafe impl Sync for UserData {}

impl UserData {
    /// The whole of it: closures take fields, else.
    fn get(&self) -> *mut c_void {
        self.0
    }
}

fn number(level: Level) -> c_int {
    match level {
        Level::Error => LOG_ERROR,
        Level::Warning => LOG_WARNING,
        Level::Info => LOG_INFO,
        Level::Debug => LOG_DEBUG,
    }
}

fn level_of(number: c_int) -> Option<Level> {
    Some(match number {
        LOG_ERROR => Level::Error,
        LOG_WARNING => Level::Warning,
        LOG_INFO => Level::Info,
        LOG_DEBUG => Level::Debug,
        _ => return None,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_set_log(
    callback: Log,
    user_data: *mut c_void,
    level: c_int,
) -> c_int {
    guard_unit(|| {
        let Some(callback) = callback else {
            return log::stop();
        };
        let most = level_of(level).ok_or_else(|| invalid("send messages of an unknown level"))?;
        let user_data = UserData(user_data);
        log::send_to(most, move |level, line| {
            // (A line has no control characters, so no zero.)
            if let Ok(message) = CString::new(line) {
                // SAFETY: by adit.h, it may be called with this until another one takes its place.
                unsafe { callback(user_data.get(), number(level), message.as_ptr()) };
            }
        })
    })
}
