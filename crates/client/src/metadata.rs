//! What `stat` knows of a file or directory, in the terms of `std`: a plain value, no handle.

use adit_base::clock::Timestamp;
use adit_fs::{FileKind, Stat};
use std::time::{Duration, SystemTime};

/// What `stat` knows of a file or directory.
#[derive(Clone, Debug)]
pub struct Metadata {
    stat: Stat,
}

impl Metadata {
    pub(crate) fn new(stat: Stat) -> Self {
        Metadata { stat }
    }

    /// All of it as plain numbers.
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// What it is.
    pub fn kind(&self) -> FileKind {
        self.stat.kind
    }

    /// Is it a regular file?
    pub fn is_file(&self) -> bool {
        self.stat.kind == FileKind::File
    }

    /// Is it a directory?
    pub fn is_dir(&self) -> bool {
        self.stat.kind == FileKind::Directory
    }

    /// Size in bytes.
    #[allow(clippy::len_without_is_empty)] // as in std::fs::Metadata
    pub fn len(&self) -> u64 {
        self.stat.size_bytes
    }

    /// Bytes of the device that are its own.
    pub fn allocated_bytes(&self) -> u64 {
        self.stat.allocated_bytes
    }

    /// Type and permissions as in `st_mode`.
    pub fn mode(&self) -> u32 {
        self.stat.mode
    }

    /// Inode number. A number is reused after a deletion, but never with the same
    /// [`generation`](Self::generation).
    pub fn inode(&self) -> u64 {
        self.stat.inode
    }

    /// Tells this inode from earlier ones with the same number.
    pub fn generation(&self) -> u32 {
        self.stat.generation
    }

    /// Number of names.
    pub fn links(&self) -> u32 {
        self.stat.links
    }

    /// Owner.
    pub fn uid(&self) -> u32 {
        self.stat.uid
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        self.stat.gid
    }

    /// Last access; kept only loosely.
    pub fn accessed(&self) -> SystemTime {
        system_time(self.stat.accessed)
    }

    /// Last change of the content.
    pub fn modified(&self) -> SystemTime {
        system_time(self.stat.modified)
    }

    /// Last change of content or attributes.
    pub fn changed(&self) -> SystemTime {
        system_time(self.stat.changed)
    }

    /// Creation.
    pub fn created(&self) -> SystemTime {
        system_time(self.stat.created)
    }
}

pub(crate) fn system_time(time: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let base = if time.seconds >= 0 {
        SystemTime::UNIX_EPOCH.checked_add(whole)
    } else {
        SystemTime::UNIX_EPOCH.checked_sub(whole)
    };
    // A time that the host cannot express comes from a damaged or foreign inode.
    base.and_then(|base| base.checked_add(Duration::from_nanos(u64::from(time.nanoseconds))))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => Timestamp {
            seconds: after.as_secs() as i64,
            nanoseconds: after.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            let (seconds, nanoseconds) = (before.as_secs() as i64, before.subsec_nanos());
            match nanoseconds {
                0 => Timestamp {
                    seconds: -seconds,
                    nanoseconds,
                },
                _ => Timestamp {
                    seconds: -seconds - 1,
                    nanoseconds: 1_000_000_000 - nanoseconds,
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_1970_survive_both_ways() {
        for nanoseconds in [-1_500_000_000_i64, -1, 0, 1, 1_999_999_999] {
            let time = match nanoseconds {
                0.. => SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds as u64),
                _ => SystemTime::UNIX_EPOCH - Duration::from_nanos(nanoseconds.unsigned_abs()),
            };
            assert!(timestamp(time).nanoseconds < 1_000_000_000);
            assert_eq!(system_time(timestamp(time)), time);
        }
    }
}
