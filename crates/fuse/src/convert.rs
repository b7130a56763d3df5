//! Attributes, kinds, times and errors as FUSE wants them.

use adit_fs::{FileKind, SetTime, Stat};
use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};

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

/// A time to be set.
pub(crate) fn set_time(time: Option<TimeOrNow>) -> SetTime {
    match time {
        None => SetTime::Omit,
        Some(TimeOrNow::Now) => SetTime::Now,
        Some(TimeOrNow::SpecificTime(time)) => SetTime::To(time.into()),
    }
}

/// Attributes of the inode that the kernel knows under this number.
pub(crate) fn attributes(ino: INodeNo, stat: &Stat) -> FileAttr {
    FileAttr {
        ino,
        size: stat.size_bytes,
        blocks: stat.allocated_bytes / 512,
        atime: stat.accessed.into(),
        mtime: stat.modified.into(),
        ctime: stat.changed.into(),
        crtime: stat.created.into(),
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
