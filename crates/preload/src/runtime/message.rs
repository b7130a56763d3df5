//! What a person has to know, on stderr.

use crate::runtime::renewed::Renewed;
use std::fmt;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Messages that wait for the end of a call: stderr is a file of the volume, and whoever has
/// something to say may hold a lock that writing to it needs.
static DEFERRED: Renewed<Vec<String>> = Renewed::new(Vec::new());
static ARE_THERE_ANY: AtomicBool = AtomicBool::new(false);
/// More are not kept.
const DEFERRED_MAX: usize = 100;

/// Asks whether stderr is a file of the volume.
static ASK: OnceLock<fn() -> bool> = OnceLock::new();

/// How it is asked, from the start of the program on.
pub(crate) fn ask(whether: fn() -> bool) {
    let _ = ASK.set(whether);
}

pub(super) fn is_stderr_ours() -> bool {
    ASK.get().is_some_and(|ask| ask())
}

/// One line on stderr, in one write. A line that would wait for a reader is lost, and counted.
pub(crate) fn say(what: fmt::Arguments<'_>) {
    let line = format!("adit: {what}\n");
    if is_stderr_ours() {
        let mut deferred = DEFERRED.lock();
        if deferred.len() < DEFERRED_MAX {
            deferred.push(line);
        }
        ARE_THERE_ANY.store(true, Ordering::Release);
        return;
    }
    // A program without a stderr hears nothing.
    adit::log::write_to_stderr(&line);
}

/// Says what was deferred. The caller is in no call.
#[inline]
pub(crate) fn say_deferred() {
    if ARE_THERE_ANY.load(Ordering::Relaxed) && ARE_THERE_ANY.swap(false, Ordering::AcqRel) {
        let mut deferred = DEFERRED.lock();
        let lines = std::mem::take(&mut *deferred);
        drop(deferred);
        if is_stderr_ours() {
            let _ = std::io::stderr().write_all(lines.concat().as_bytes());
            return;
        }
        // The program has put something else there since.
        for line in lines {
            adit::log::write_to_stderr(&line);
        }
    }
}

/// In a forked child: its parent says what it deferred.
pub(crate) fn in_child() {
    ARE_THERE_ANY.store(false, Ordering::Release);
    DEFERRED.renew(Vec::new());
}

/// Says it once in the life of the process.
macro_rules! say_once {
    ($($what:tt)*) => {{
        static SAID: std::sync::Once = std::sync::Once::new();
        SAID.call_once(|| $crate::runtime::message::say(format_args!($($what)*)));
    }};
}
pub(crate) use say_once;
