//! Who may use an image: one opener exclusively, or any number for reading only. And who does, when it isn't us.
//!
//! The lock is a `flock`: it belongs to the open file, ends with its process, and excludes a second opening in the same process too. A
//! forked child would share it; `adit_base::fork` takes the descriptor away from children.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use adit_base::{Errno, Error, Result};
use rustix::fs::{FlockOperation, flock, major, minor};

/// Takes the lock or says who has it (EBUSY).
pub(super) fn take(file: &File, path: &Path, read_only: bool) -> Result<()> {
    let operation = match read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    loop {
        return match flock(file, operation) {
            Ok(()) => Ok(()),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => {
                let owner = owner(file).unwrap_or_else(|| "another process".to_owned());
                Err(busy(path, &format!("in use by {owner}")))
            }
            // A file system without locks (some network file systems): nothing can be promised there, but refusing would be worse.
            Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => Ok(()),
            Err(errno) => Err(Error::with(errno, format!("lock {}", path.display()))),
        };
    }
}

/// EBUSY with its reason.
fn busy(path: &Path, reason: &str) -> Error {
    Error::with(Errno::BUSY, format!("open {}: {reason}", path.display()))
}

/// EBUSY for a block device that the kernel didn't let us have exclusively.
pub(super) fn busy_device(path: &Path) -> Error {
    // Another volume of ours holds its lock too; a mount doesn't.
    match File::open(path).ok().and_then(|file| owner(&file)) {
        Some(owner) => busy(path, &format!("in use by {owner}")),
        None => busy(path, "mounted, or part of another device"),
    }
}

/// "adit (pid 123)" for the holder of a lock on this file, as far as /proc shows it.
fn owner(file: &File) -> Option<String> {
    let metadata = file.metadata().ok()?;
    let device = (
        u64::from(major(metadata.dev())),
        u64::from(minor(metadata.dev())),
    );
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let pid = locks
        .lines()
        .find_map(|line| holder(line, device, metadata.ino()))?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    match name {
        Some(name) => Some(format!("{} (pid {pid})", name.trim())),
        None => Some(format!("pid {pid}")),
    }
}

/// The holder in a line of /proc/locks: "1: FLOCK  ADVISORY  WRITE 123 fd:01:4711 0 EOF" (device in hexadecimal, inode in decimal).
fn holder(line: &str, device: (u64, u64), inode: u64) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    let (kind, _advisory, _mode, pid) =
        (words.next()?, words.next()?, words.next()?, words.next()?);
    let mut place = words.next()?.split(':');
    let major = u64::from_str_radix(place.next()?, 16).ok()?;
    let minor = u64::from_str_radix(place.next()?, 16).ok()?;
    let same = (major, minor) == device && place.next()?.parse() == Ok(inode);
    // A waiter's line has "->" before its kind; a holder from outside our pid namespace is 0.
    if kind == "FLOCK" && same {
        pid.parse().ok().filter(|&pid| pid != 0)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_in_its_line_only() {
        let line = "1: FLOCK  ADVISORY  WRITE 123 fd:01:4711 0 EOF";
        assert_eq!(holder(line, (0xfd, 1), 4711), Some(123));
        assert_eq!(holder(line, (0xfd, 1), 4712), None);
        assert_eq!(
            holder("2: POSIX ADVISORY READ 5 fd:01:4711 0 EOF", (0xfd, 1), 4711),
            None
        );
        assert_eq!(
            holder(
                "2: -> FLOCK ADVISORY READ 5 fd:01:4711 0 EOF",
                (0xfd, 1),
                4711
            ),
            None
        );
        for nonsense in ["", "1:", "1: FLOCK a b c d:e", "1: FLOCK a b 7 fd:01"] {
            assert_eq!(holder(nonsense, (0xfd, 1), 4711), None);
        }
    }
}
