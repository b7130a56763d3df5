//! Where, when and by what something was measured.

use serde::Serialize;
use std::ffi::OsString;
use std::path::Path;

/// The machine, the place, the day, the command.
#[derive(Clone, Debug, Serialize)]
pub struct Environment {
    /// Version of Adit.
    pub adit: String,
    /// The revision that it was built from, if git knew it. What was changed since is not seen.
    pub revision: Option<String>,
    /// The machine's name.
    pub host: String,
    /// When the report was made: `2026-11-21T03:36Z`.
    pub date: String,
    /// The command that measured.
    pub command: String,
    /// Kernel release.
    pub kernel: String,
    /// The processor's name for itself.
    pub processor: String,
    /// Processors that may be used.
    pub cores: usize,
    /// Where the images and files were.
    pub place: String,
}

impl Environment {
    pub(crate) fn here(place: String) -> Environment {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = cpu
            .lines()
            .find_map(|line| line.strip_prefix("model name"))
            .and_then(|rest| rest.split_once(": "))
            .map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned());
        let uname = rustix::system::uname();
        Environment {
            adit: env!("CARGO_PKG_VERSION").to_owned(),
            revision: option_env!("ADIT_REVISION").map(str::to_owned),
            host: uname.nodename().to_string_lossy().into_owned(),
            date: now(),
            command: command(std::env::args_os()),
            kernel: uname.release().to_string_lossy().into_owned(),
            processor,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            place,
        }
    }

    /// `0.1.0 (2aab8f541234)`.
    pub(crate) fn version(&self) -> String {
        match &self.revision {
            Some(revision) => format!("{} ({revision})", self.adit),
            None => self.adit.clone(),
        }
    }
}

/// The minute, in UTC.
fn now() -> String {
    let seconds = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
    // SAFETY: numbers and a pointer that may be null.
    let mut at: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: reads the number, fills in `at`.
    if unsafe { libc::gmtime_r(&seconds, &mut at) }.is_null() {
        return "unknown".to_owned();
    }
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}Z",
        at.tm_year + 1900,
        at.tm_mon + 1,
        at.tm_mday,
        at.tm_hour,
        at.tm_min
    )
}

/// The words as a shell takes them, the program by its name.
fn command(words: impl Iterator<Item = OsString>) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+=:,@%".contains(letter);
    let words = words.enumerate().map(|(index, word)| {
        let word = match index {
            0 => Path::new(&word)
                .file_name()
                .unwrap_or(&word)
                .to_string_lossy(),
            _ => word.to_string_lossy(),
        };
        match !word.is_empty() && word.chars().all(plain) {
            true => word.into_owned(),
            false => format!("'{}'", word.replace('\'', "'\\''")),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::{Environment, command};

    #[test]
    fn a_report_says_when_where_and_by_what_it_was_made() {
        let words = [
            "/usr/bin/adit",
            "compare",
            "/dev/zram0",
            "--out",
            "a b's",
            "",
        ];
        assert_eq!(
            command(words.into_iter().map(Into::into)),
            "adit compare /dev/zram0 --out 'a b'\\''s' ''"
        );
        let here = Environment::here("a test".to_owned());
        assert_eq!(here.date.len(), "2026-11-21T03:36Z".len());
        assert!(
            here.date.ends_with('Z') && here.date.starts_with("20"),
            "{}",
            here.date
        );
        assert!(!here.host.is_empty() && !here.command.is_empty());
    }
}
