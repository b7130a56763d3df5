//! What a person has to know, on stderr.

use std::fmt;
use std::io::Write;

/// One line on stderr, in one write.
pub(crate) fn say(what: fmt::Arguments<'_>) {
    let line = format!("adit: {what}\n");
    // A program without a stderr hears nothing.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Says it once in the life of the process.
macro_rules! say_once {
    ($($what:tt)*) => {{
        static SAID: std::sync::Once = std::sync::Once::new();
        SAID.call_once(|| $crate::message::say(format_args!($($what)*)));
    }};
}
pub(crate) use say_once;
