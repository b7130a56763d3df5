//! Attributes, kinds, times and errors as FUSE wants them.

use adit_base::clock::Timestamp;
use adit_fs::{FileKind, SetTime, Stat};
use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The kind of an inode.
pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

/// The kind in the mode of `mknod`; none for kinds that it does not make.
pub(crate) fn kind_of_mode(mode: u32) -> Option<FileKind> {
    Some(match mode & libc::S_IFMT {
        0 | libc::S_IFREG => FileKind::File,
        libc::S_IFIFO => FileKind::Fifo,
        libc::S_IFSOCK => FileKind::Socket,
        libc::S_IFCHR => FileKind::CharDevice,
        libc::S_IFBLK => FileKind::BlockDevice,
        _ => return None,
    })
}

fn system_time(time: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let start = match time.seconds < 0 {
        true => UNIX_EPOCH.checked_sub(whole),
        false => UNIX_EPOCH.checked_add(whole),
    };
    start
        .and_then(|start| start.checked_add(Duration::from_nanos(time.nanoseconds.into())))
        .unwrap_or(UNIX_EPOCH)
}

fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp {
            seconds: since.as_secs() as i64,
            nanoseconds: since.subsec_nanos(),
        },
        Err(error) => {
            let before = error.duration();
            let borrow = u32::from(before.subsec_nanos() > 0);
            Timestamp {
                seconds: -(before.as_secs() as i64) - i64::from(borrow),
                nanoseconds: borrow * 1_000_000_000 - before.subsec_nanos(),
            }
        }
    }
}

/// A time to be set.
pub(crate) fn set_time(time: Option<TimeOrNow>) -> SetTime {
    match time {
        None => SetTime::Omit,
        Some(TimeOrNow::Now) => SetTime::Now,
        Some(TimeOrNow::SpecificTime(time)) => SetTime::To(timestamp(time)),
    }
}

/// Attributes of the inode that the kernel knows under this number.
pub(crate) fn attributes(ino: INodeNo, stat: &Stat) -> FileAttr {
    FileAttr {
        ino,
        size: stat.size_bytes,
        blocks: stat.allocated_bytes / 512,
        atime: system_time(stat.accessed),
        mtime: system_time(stat.modified),
        ctime: system_time(stat.changed),
        crtime: system_time(stat.created),
        kind: file_type(stat.kind),
        perm: (stat.mode & 0o7777) as u16,
        nlink: stat.links,
        uid: stat.uid,
        gid: stat.gid,
        // Device numbers of Linux have 32 bits; both sides encode them alike.
        rdev: stat.rdev as u32,
        blksize: stat.io_bytes,
        flags: 0,
    }
}

/// The errno for the kernel.
pub(crate) fn errno(error: &adit::Error) -> fuser::Errno {
    fuser::Errno::from_i32(error.errno().raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_come_back_as_they_went() {
        for (seconds, nanoseconds) in [(0, 0), (5, 7), (-1, 999_999_999), (-5, 0), (-5, 1)] {
            let time = Timestamp {
                seconds,
                nanoseconds,
            };
            assert_eq!(timestamp(system_time(time)), time);
        }
    }
}
