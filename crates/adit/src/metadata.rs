//! What `stat` knows of a file or directory, in the terms of `std`: a plain value, no handle.

use adit_fs::{FileKind, SetTime, Stat};
use std::time::SystemTime;

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
        self.stat.accessed.into()
    }

    /// Last change of the content.
    pub fn modified(&self) -> SystemTime {
        self.stat.modified.into()
    }

    /// Last change of content or attributes.
    pub fn changed(&self) -> SystemTime {
        self.stat.changed.into()
    }

    /// Creation.
    pub fn created(&self) -> SystemTime {
        self.stat.created.into()
    }
}

/// A time to set, or none.
pub(crate) fn set_time(time: Option<SystemTime>) -> SetTime {
    time.map_or(SetTime::Omit, |time| SetTime::To(time.into()))
}
