//! Finds the mappings and claims of a volume, the owner of each, and whether the owner lives.
//!
//! Any user may put a file into `/dev/shm`. So this file parses the name, notes the file's owner,
//! and believes nothing: `takeover.rs` judges each one. Invariants: an error that leaves a file
//! unjudged (no descriptors, no memory, an IO error) is an error, never a shorter list; a lookup
//! changes nothing, only [`Leftover::delete`] and [`end`] do.

use super::header::{CacheHeader, boot_id};
use super::name::{ParsedName, prefix};
use super::salvage::{Abandoned, Header};
use super::tail::TailMemory;
use adit_base::fork::Registered;
use adit_base::simulation::{Bug, Host, host_error, planted};
use adit_base::{Errno, Error, Result, from_rustix, numbers};
use adit_block::Life;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, flock};
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The type that `statfs` returns for a tmpfs.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// Wait for the lock of an owner that seems to live: it may have been killed a moment ago.
const LIVING_MAX: Duration = Duration::from_millis(100);
/// Wait for the lock of an unknown owner: in another pid namespace, or a child that was just
/// forked.
const UNKNOWN_MAX: Duration = Duration::from_secs(2);
/// Wait for the lock of an owner that is known to be ending: on a busy machine it may starve.
const ENDING_MAX: Duration = Duration::from_secs(30);

/// A user namespace shows this number for users without a number there; elsewhere it is a user's.
const OVERFLOW_UID: u32 = 65534;

/// A file that may hold, or guard, state of a volume.
#[derive(Debug)]
pub struct Leftover {
    /// Where it is.
    pub path: PathBuf,
    /// The parsed name; None: no program of this version gave it.
    pub name: Option<ParsedName>,
    /// The owner of the file.
    pub uid: u32,
    /// Its content.
    pub content: Content,
}

/// The content of a [`Leftover`].
#[derive(Debug)]
pub enum Content {
    /// Its owner lives: the file is locked. With the header, if it can be read.
    Live(Option<Box<Header>>),
    /// It can't be read, and no process locks it.
    Unreadable(Error),
    /// It is no mapping, or none that this program understands.
    Strange(Error),
    /// A dead owner's; locked by us.
    Dead(Box<Dead>),
}

/// A file whose owner is dead, locked.
#[derive(Debug)]
pub struct Dead {
    file: Registered<OwnedFd>,
    /// The header in its first page.
    pub header: Header,
}

/// How a lookup locks the mappings of dead owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To look at them; others may look, too.
    Look,
    /// To take them over.
    TakeOver,
}

/// Whose a file is that this process may not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// This process's own user's: a rule of the host denies it.
    Own,
    /// The owner has no number in this user namespace.
    OfOtherNamespace,
    /// Another user's.
    Of(u32),
}

impl Denied {
    /// That of a file with this owner.
    pub fn of(uid: u32) -> Denied {
        // If it can't be read, all numbers count as users.
        let users = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        Denied::among(uid, rustix::process::geteuid().as_raw(), &users)
    }

    /// `users`: lines of a range's first number here, its first number outside, and its length.
    fn among(uid: u32, own: u32, users: &str) -> Denied {
        let has = |line: &str| {
            let mut numbers = line.split_whitespace().map(str::parse::<u32>);
            let (first, count) = (numbers.next()?.ok()?, numbers.nth(1)?.ok()?);
            Some(uid.checked_sub(first).is_some_and(|at| at < count))
        };
        let mut known = users.lines().filter_map(has).peekable();
        if uid == OVERFLOW_UID && known.peek().is_some() && !known.any(|has| has) {
            return Denied::OfOtherNamespace;
        }
        if uid == own {
            Denied::Own
        } else {
            Denied::Of(uid)
        }
    }

    /// How to open the volume instead.
    pub fn way(self) -> String {
        match self {
            Denied::Own => "Let this process read that file".into(),
            Denied::OfOtherNamespace => {
                "Open it in that user namespace, or as root outside of all".into()
            }
            Denied::Of(uid) => format!("Open it as user {uid} or as root"),
        }
    }
}

impl std::fmt::Display for Denied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Denied::Own => f.write_str(
                "it belongs to this user, but permission is denied, as by SELinux, \
                 AppArmor or the file's mode",
            ),
            Denied::OfOtherNamespace => {
                f.write_str("it belongs to a user of another user namespace")
            }
            Denied::Of(uid) => write!(f, "it belongs to user {uid}"),
        }
    }
}

impl Leftover {
    /// All files in a directory that are named after a volume, by name; `own` is left out. A lock
    /// that a dying process may still have is waited for where the name belongs to this `opening`.
    pub fn list(
        directory: &Path,
        (volume_id, opening): (u128, u64),
        purpose: Purpose,
        own: Option<&Path>,
    ) -> Result<Vec<Leftover>> {
        // Anybody may lock a file with another name.
        let waits = |name: Option<ParsedName>| name.is_some_and(|name| name.is_sealed_by(opening));
        let mut found = Vec::new();
        for path in Leftover::paths(directory, &prefix(volume_id))? {
            if own != Some(&*path)
                && let Some(leftover) = Leftover::open(path, purpose, waits)?
            {
                found.push(leftover);
            }
        }
        Ok(found)
    }

    /// The file of this name; None: there is none. A process that wants to take it waits for those
    /// that look.
    pub fn at(path: PathBuf, purpose: Purpose) -> Result<Option<Leftover>> {
        Leftover::open(path, purpose, |_| purpose == Purpose::TakeOver)
    }

    /// The files in a directory whose names begin so, by name.
    pub fn paths(directory: &Path, prefix: &str) -> Result<Vec<PathBuf>> {
        let fail = |error: std::io::Error| {
            let what = format!("look for unsaved data in {}", directory.display());
            Error::from(error).context(what)
        };
        if let Some(errno) = host_error(Host::ListMappings) {
            if planted(Bug::UnlistedMappings) {
                return Ok(Vec::new());
            }
            return Err(fail(std::io::Error::from(errno)));
        }
        let entries = match std::fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(fail(error)),
        };
        let mut paths = Vec::new();
        for entry in entries {
            let entry = entry.map_err(fail)?;
            if entry.file_name().to_string_lossy().starts_with(prefix) {
                paths.push(entry.path());
            }
        }
        paths.sort();
        Ok(paths)
    }

    /// One of them; None: it is gone.
    fn open(
        path: PathBuf,
        purpose: Purpose,
        waits: impl Fn(Option<ParsedName>) -> bool,
    ) -> Result<Option<Leftover>> {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.and_then(ParsedName::parse);
        let unjudged = |errno| Error::with(errno, format!("judge {}", path.display()));
        let stat = match rustix::fs::lstat(&path).map_err(from_rustix) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(unjudged(errno)),
        };
        let leftover = |content| {
            Ok(Some(Leftover {
                path: path.clone(),
                name,
                uid: stat.st_uid,
                content,
            }))
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            let what = "it isn't a file";
            return leftover(Content::Strange(Error::with(Errno::INVAL, what)));
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let opened = match host_error(Host::ReadMapping) {
            None => numbers::registered(|| rustix::fs::open(&path, flags, Mode::empty()))
                .map_err(from_rustix),
            Some(errno) => Err(errno),
        };
        let file = match opened {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno @ (Errno::ACCESS | Errno::PERM)) => {
                let what = Denied::of(stat.st_uid).to_string();
                return if adit_block::is_locked(&stat) {
                    leftover(Content::Live(None))
                } else {
                    leftover(Content::Unreadable(Error::with(errno, what)))
                };
            }
            // A symbolic link by now, or a lease of another process: no program of ours makes
            // either.
            Err(Errno::LOOP) => {
                let what = "it became a symbolic link";
                return leftover(Content::Strange(Error::with(Errno::INVAL, what)));
            }
            Err(errno @ Errno::AGAIN) => {
                let what = "a process has a lease on it";
                return leftover(Content::Unreadable(Error::with(errno, what)));
            }
            Err(errno) => return Err(unjudged(errno)),
        };
        let header = Header::read(&file, &stat);
        let pid = header.as_ref().ok().map(|header| header.pid);
        if !lock(&file, purpose, waits(name), pid).map_err(unjudged)? {
            return leftover(Content::Live(header.ok().map(Box::new)));
        }
        // Its owner may have closed the volume while we waited.
        if rustix::fs::statat(rustix::fs::CWD, &path, AtFlags::SYMLINK_NOFOLLOW)
            .is_err_and(|errno| errno == rustix::io::Errno::NOENT)
        {
            return Ok(None);
        }
        // Once more: now no process changes it.
        let stat = rustix::fs::fstat(&file).map_err(|errno| unjudged(from_rustix(errno)))?;
        match Header::read(&file, &stat) {
            Ok(header) => leftover(Content::Dead(Box::new(Dead { file, header }))),
            Err(error) if error.errno() == Errno::INVAL => leftover(Content::Strange(error)),
            Err(error) => Err(error.context(format_args!("judge {}", path.display()))),
        }
    }

    /// Mappings of a volume that dead owners left, by name, not yet judged. For tests.
    #[doc(hidden)]
    pub fn abandoned(directory: &Path, volume_id: u128) -> Result<Vec<Abandoned>> {
        let found = Leftover::list(directory, (volume_id, 0), Purpose::TakeOver, None)?;
        let dead = found.into_iter().filter_map(|found| match found.content {
            Content::Dead(dead) => Some(dead.load(found.path)),
            _ => None,
        });
        Ok(dead.flatten().collect())
    }

    /// Removes the file, and ends a dead owner's mapping first.
    pub fn delete(&self) -> Result<()> {
        if let Content::Dead(dead) = &self.content {
            end(&dead.file, &self.path)?;
            TailMemory::remove_left(&self.path);
        }
        rustix::fs::unlink(&self.path)
            .map_err(from_rustix)
            .map_err(|errno| Error::with(errno, format!("delete {}", self.path.display())))
    }
}

impl Dead {
    /// True if it was made in this boot of the machine; memory of another boot is void. A file on a
    /// tmpfs always was: a container may see another boot id.
    pub fn is_of_this_boot(&self) -> Result<bool> {
        let file_system = rustix::fs::fstatfs(&self.file).map_err(from_rustix)?.f_type;
        Ok(file_system as u64 == TMPFS_MAGIC || self.header.boot_id == boot_id()?)
    }

    /// Reads its metadata of frames.
    pub fn load(self, path: PathBuf) -> Result<Abandoned> {
        Abandoned::load(self.file, path, self.header)
    }
}

/// Ends a dead owner's mapping: readers in other processes, which may have it mapped, believe
/// nothing of it from here on. An opening does so before it changes anything, and once it is sure
/// that this mapping is the volume's.
pub(super) fn end(mapping: &OwnedFd, path: &Path) -> Result<()> {
    if planted(Bug::BelievedDead) {
        return Ok(());
    }
    let fail = |errno| {
        let what = format!("end {} for its readers", path.display());
        Error::with(from_rustix(errno), what)
    };
    let own = format!("/proc/self/fd/{}", mapping.as_raw_fd());
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let open = || rustix::fs::open(own, flags, Mode::empty());
    let file = numbers::registered(open).map_err(fail)?;
    let at = offset_of!(CacheHeader, ended) as u64;
    rustix::io::pwrite(&file, &1u32.to_ne_bytes(), at).map_err(fail)?;
    Ok(())
}

/// Takes the lock, unless a living process has it.
fn lock(file: &OwnedFd, purpose: Purpose, waits: bool, owner: Option<u32>) -> Result<bool, Errno> {
    let operation = match purpose {
        Purpose::Look => FlockOperation::NonBlockingLockShared,
        Purpose::TakeOver => FlockOperation::NonBlockingLockExclusive,
    };
    let begin = Instant::now();
    // When the owner was seen last.
    let mut seen = begin;
    loop {
        match flock(file, operation).map_err(from_rustix) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let life = owner.map(adit_block::life_of);
                let (since, max) = match life {
                    Some(Life::Runs) => (begin, LIVING_MAX),
                    Some(Life::Ends) => (begin, ENDING_MAX),
                    // It may have gone right now.
                    Some(Life::Gone) | None => (seen, UNKNOWN_MAX),
                };
                if let Some(Life::Runs | Life::Ends) = life {
                    seen = Instant::now();
                }
                if !waits || since.elapsed() >= max {
                    return Ok(false);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If SELinux, or another user namespace, kept a mapping from its own user, the message named
    /// "user 1000", the reader itself, or nobody.
    #[test]
    fn a_file_that_may_not_be_read_is_told_from_another_users() {
        let all = "         0          0 4294967295\n";
        let container = "0 100000 1000\n1000 1000 1\n1001 101001 64000\n";
        assert_eq!(Denied::among(1000, 1000, all), Denied::Own);
        assert_eq!(Denied::among(1000, 0, all), Denied::Of(1000));
        assert_eq!(Denied::among(65534, 0, all), Denied::Of(65534));
        assert_eq!(Denied::among(65534, 65534, all), Denied::Own);
        assert_eq!(Denied::among(65534, 0, container), Denied::OfOtherNamespace);
        assert_eq!(Denied::among(1000, 1000, container), Denied::Own);
        assert_eq!(Denied::among(65534, 0, "0 100000 65536"), Denied::Of(65534));
        for unknown in ["", "none", "0 0"] {
            assert_eq!(Denied::among(65534, 0, unknown), Denied::Of(65534));
        }
        assert_eq!(Denied::Of(7).way(), "Open it as user 7 or as root");
    }
}
