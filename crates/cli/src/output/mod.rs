//! What a command says: values as JSON objects, and lines for people.
//!
//! - `log`: messages of Adit besides the result
//! - `progress`: a bar for long commands
//! - `interrupt`: what a signal leaves

pub(crate) mod interrupt;
pub(crate) mod log;
pub(crate) mod progress;

use adit::{Errno, FileKind, Inspector, Metadata, Owner, Stat};
use serde::Serialize;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

/// How a command that did not fail ended.
pub(crate) enum Outcome {
    Done,
    /// Some things failed, each of which was already said.
    Partly,
    /// `check` found problems.
    Problems,
}

impl Outcome {
    /// Says what has failed; the command goes on with the rest.
    pub(crate) fn failed(&mut self, error: &adit::Error) {
        complain(error);
        *self = Outcome::Partly;
    }
}

/// An inode in the JSON of `ls` and `stat`.
#[derive(Serialize)]
pub(crate) struct FileLine<'a> {
    /// Bytes that are not UTF-8 appear as U+FFFD; then `name_bytes` has all bytes.
    pub(crate) name: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name_bytes: Option<String>,
    pub(crate) kind: &'static str,
    pub(crate) size_bytes: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) inode: u64,
    pub(crate) generation: u32,
    /// The target of a symbolic link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target_bytes: Option<String>,
    /// Major and minor number of a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<String>,
    pub(crate) accessed: String,
    pub(crate) modified: String,
    pub(crate) changed: String,
    pub(crate) created: String,
}

impl<'a> FileLine<'a> {
    pub(crate) fn new(name: &'a Path, metadata: &Metadata, target: Option<&Path>) -> Self {
        let stat: &Stat = metadata.stat();
        FileLine {
            name: name.to_string_lossy(),
            name_bytes: bytes_unless_text(name),
            kind: kind_name(stat.kind),
            size_bytes: stat.size_bytes,
            allocated_bytes: stat.allocated_bytes,
            mode: stat.mode & 0o7777,
            links: stat.links,
            uid: stat.uid,
            gid: stat.gid,
            inode: stat.inode,
            generation: stat.generation,
            target: target.map(|target| target.to_string_lossy().into_owned()),
            target_bytes: target.and_then(bytes_unless_text),
            device: device(stat),
            accessed: time(metadata.accessed()),
            modified: time(metadata.modified()),
            changed: time(metadata.changed()),
            created: time(metadata.created()),
        }
    }
}

/// The process that has a volume open.
#[derive(Serialize)]
pub(crate) struct OwnerLine {
    /// None: it has no number in this pid namespace.
    pid: Option<u32>,
    command: String,
}

impl From<Owner> for OwnerLine {
    fn from(owner: Owner) -> Self {
        OwnerLine {
            pid: owner.pid,
            command: owner.command,
        }
    }
}

impl std::fmt::Display for OwnerLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "{pid} {}", plain(&self.command)),
            None => write!(f, "a process of another container"),
        }
    }
}

/// A volume's id as in the names of its files in shared memory.
pub(crate) fn volume_id(id: u128) -> String {
    format!("{id:032x}")
}

/// The bytes of a name that is not UTF-8, in hexadecimal: JSON has only text.
pub(crate) fn bytes_unless_text(name: &Path) -> Option<String> {
    let bytes = name.as_os_str().as_bytes();
    let hexadecimal = || bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    name.to_str().is_none().then(hexadecimal)
}

/// Standard output, named in its errors: its ENOSPC is not the volume's.
pub(crate) fn stdout() -> Stdout {
    Stdout(std::io::stdout().lock())
}

pub(crate) struct Stdout(std::io::StdoutLock<'static>);

impl Write for Stdout {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0.write(data).map_err(of_stdout)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush().map_err(of_stdout)
    }
}

/// Whether the reader of standard output has gone. A server that has gone is EPIPE, too.
pub(crate) fn reader_is_gone() -> bool {
    READER_IS_GONE.load(Ordering::Relaxed)
}

static READER_IS_GONE: AtomicBool = AtomicBool::new(false);

fn of_stdout(error: std::io::Error) -> std::io::Error {
    let kind = error.kind();
    if kind == std::io::ErrorKind::BrokenPipe {
        READER_IS_GONE.store(true, Ordering::Relaxed);
    }
    std::io::Error::new(
        kind,
        adit::Error::from(error).context("write standard output"),
    )
}

/// Reports a failure on standard error.
pub(crate) fn complain(error: &adit::Error) {
    tell(&format!("adit: {}", plain(&error.to_string())));
}

/// Writes a line to standard error. There is nowhere to tell that it is full, or that its reader
/// has gone, and neither is a reason to stop: the exit code remains.
pub(crate) fn tell(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Writes a value as JSON and ends the line.
pub(crate) fn json(out: &mut dyn Write, value: &impl Serialize) -> adit::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value).map_err(std::io::Error::from)?;
    Ok(writeln!(out)?)
}

/// Lines for people: `name  value`, each below what they are about.
pub(crate) struct Rows<'o> {
    pub(crate) out: &'o mut dyn Write,
    /// Of the longest name.
    pub(crate) width: usize,
}

impl Rows<'_> {
    pub(crate) fn row(&mut self, name: &str, value: impl std::fmt::Display) -> adit::Result<()> {
        Ok(writeln!(
            self.out,
            "  {name:width$} {value}",
            width = self.width
        )?)
    }
}

/// Did it disappear while the process that has the volume open worked on?
pub(crate) fn vanished(volume: &Inspector, error: &adit::Error) -> bool {
    matches!(error.errno(), Errno::NOENT | Errno::NOTDIR) && volume.owner().is_some()
}

/// What is there; None: nothing.
pub(crate) fn found<T>(answer: adit::Result<T>) -> adit::Result<Option<T>> {
    match answer {
        Err(error) if error.errno() == Errno::NOENT => Ok(None),
        answer => answer.map(Some),
    }
}

/// Text without control characters, which a name may hold and a terminal would obey.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    if text.chars().any(char::is_control) {
        let escape = |c: char| {
            if c.is_control() {
                c.escape_default().to_string()
            } else {
                c.to_string()
            }
        };
        Cow::Owned(text.chars().map(escape).collect())
    } else {
        Cow::Borrowed(text)
    }
}

/// A name as it is printed: exactly, except on a terminal.
pub(crate) fn name(name: &OsStr) -> Cow<'_, [u8]> {
    if !std::io::stdout().is_terminal() {
        return Cow::Borrowed(name.as_bytes());
    }
    Cow::Owned(plain(&name.to_string_lossy()).into_owned().into_bytes())
}

pub(crate) fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Blob => "blob",
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
        _ => "unknown",
    }
}

/// `8:1`, of a device.
pub(crate) fn device(stat: &Stat) -> Option<String> {
    let is_device = matches!(stat.kind, FileKind::CharDevice | FileKind::BlockDevice);
    is_device.then(|| format!("{}:{}", libc::major(stat.rdev), libc::minor(stat.rdev)))
}

/// `drwxr-xr-x`.
pub(crate) fn mode_text(kind: FileKind, mode: u32) -> String {
    let first = match kind {
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        _ => '-',
    };
    let mut text = String::from(first);
    for (shift, special, letters) in [
        (6, 0o4000, ['s', 'S']),
        (3, 0o2000, ['s', 'S']),
        (0, 0o1000, ['t', 'T']),
    ] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => letters[0],
            (true, false) => letters[1],
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// `2026-11-21T03:36:03Z`.
pub(crate) fn time(time: SystemTime) -> String {
    let seconds = adit::Timestamp::from(time).seconds;
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// Date of a day counted from 1970-01-01 (Howard Hinnant's `civil_from_days`).
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Asks the user at the terminal; `None` without a terminal.
pub(crate) fn ask(question: &str) -> adit::Result<Option<bool>> {
    use std::io::{IsTerminal, Write};
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Ok(None);
    }
    let mut err = std::io::stderr().lock();
    write!(err, "{question} [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(Some(matches!(answer.trim(), "y" | "Y" | "yes")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn times_are_utc_in_iso_8601() {
        let at = |seconds| time(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(4_107_542_399), "2100-02-28T23:59:59Z");
        assert_eq!(
            time(UNIX_EPOCH - Duration::from_secs(1)),
            "1969-12-31T23:59:59Z"
        );
    }

    #[test]
    fn control_characters_of_names_do_not_reach_a_terminal() {
        assert_eq!(plain("two words, \u{e4}"), "two words, \u{e4}");
        assert_eq!(plain("\x1b[2Jx\n"), "\\u{1b}[2Jx\\n");
    }

    #[test]
    fn modes_look_as_in_ls() {
        assert_eq!(mode_text(FileKind::Directory, 0o755), "drwxr-xr-x");
        assert_eq!(mode_text(FileKind::File, 0o4640), "-rwSr-----");
        assert_eq!(mode_text(FileKind::Directory, 0o1777), "drwxrwxrwt");
    }
}
