//! A progress bar for long commands, on a terminal; elsewhere a line for some steps.

use super::{plain, tell};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between lines of a log.
const LINE_EVERY: Duration = Duration::from_secs(60);

/// The bar that is shown, for messages that come from elsewhere.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Writes to stderr without disturbing the bar, if there is one.
pub(crate) fn beside_the_bar(write: impl FnOnce()) {
    let shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let bar = shown.clone();
    drop(shown);
    match bar {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Counts bytes, which is invisible when stderr is no terminal, or steps.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// When the last line was written.
    line: Mutex<Instant>,
}

impl Progress {
    pub(crate) fn bytes(total: u64) -> Self {
        let style = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta} {wide_msg}";
        Progress::shown(total, style)
    }

    /// Named steps of a task of known length.
    pub(crate) fn steps() -> Self {
        Progress::shown(1000, "{bar:30} {percent:>3}% {wide_msg}")
    }

    fn shown(len: u64, style: &str) -> Self {
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::new(len)
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.clone());
        let line = Mutex::new(Instant::now());
        Progress { bar, line }
    }

    /// The step that is being done, and which part (0 to 1) of all is behind.
    pub(crate) fn step(&self, what: &str, done: f64) {
        if !self.bar.is_hidden() {
            self.bar.set_message(what.to_owned());
            self.bar.set_position((done * 1000.0) as u64);
        } else if let Ok(mut line) = self.line.lock()
            && line.elapsed() >= LINE_EVERY
        {
            *line = Instant::now();
            tell(&format!("{:3.0}% {}", done * 100.0, plain(what)));
        }
    }

    /// So many bytes of about so many are behind.
    pub(crate) fn reach(&self, done: u64, total: u64) {
        if !self.bar.is_hidden() {
            self.bar.set_length(total);
            self.bar.set_position(done);
        }
    }

    pub(crate) fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Names what is being worked on.
    pub(crate) fn at(&self, what: &std::path::Path) {
        if !self.bar.is_hidden() {
            self.bar
                .set_message(plain(&what.to_string_lossy()).into_owned());
        }
    }

    /// Prints a line without disturbing the bar.
    pub(crate) fn complain(&self, what: &str) {
        self.bar.suspend(|| tell(&format!("adit: {}", plain(what))));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        SHOWN.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.bar.finish_and_clear();
    }
}
