//! One file operation with its arguments.

use adit_fs::{
    Access, AllocateFlags, FileKind, Follow, OpenFlags, RenameFlags, SetTime, XattrMode,
};
use std::fmt;

/// Characters of an operation that are printed. The bytes that it writes come last.
const PRINTED_MAX: usize = 300;

/// One operation, named like its system call. A `usize` in front is a slot of the target's table of
/// open files; an empty slot is `EBADF`. Relative paths start at the root.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "they are the system calls of these names")]
pub enum Call<'a> {
    /// Opens, and keeps the file in a slot; what was open there is closed.
    Open(usize, &'a str, OpenFlags, u32),
    /// Opens and closes.
    OpenClose(&'a str, OpenFlags, u32),
    Close(usize),
    Read(usize, u64, usize),
    Write(usize, u64, &'a [u8]),
    /// Of the library only.
    Append(usize, &'a [u8]),
    /// Of the library only: ranges, and whether they are durable.
    WriteAtomic(usize, &'a [(u64, &'a [u8])], bool),
    /// From a slot and offset to a slot and offset, so many bytes.
    CopyRange(usize, u64, usize, u64, u64),
    Truncate(&'a str, u64),
    Ftruncate(usize, u64),
    Fallocate(usize, AllocateFlags, u64, u64),
    /// The next data from an offset on.
    SeekData(usize, u64),
    /// The next hole from an offset on.
    SeekHole(usize, u64),
    Fsync(usize),
    /// Of the library only.
    Syncfs,
    /// A shared lock, without waiting.
    Flock(usize),
    Mkdir(&'a str, u32),
    Mknod(&'a str, FileKind, u32, u64),
    Symlink(&'a str, &'a str),
    Readlink(&'a str),
    /// Follow: a symbolic link that is the existing name.
    Link(&'a str, Follow, &'a str),
    Unlink(&'a str),
    Rmdir(&'a str),
    Rename(&'a str, &'a str, RenameFlags),
    /// Opens a directory with these flags, reads it, and closes it.
    List(&'a str, OpenFlags),
    /// From its beginning.
    Readdir(usize),
    Stat(&'a str, Follow),
    Fstat(usize),
    Access(&'a str, Follow, Access),
    Chmod(&'a str, Follow, u32),
    Fchmod(usize, u32),
    Chown(&'a str, Follow, Option<u32>, Option<u32>),
    Fchown(usize, Option<u32>, Option<u32>),
    /// Times of access and modification.
    Utimens(&'a str, Follow, SetTime, SetTime),
    Futimens(usize, SetTime, SetTime),
    Getxattr(&'a str, Follow, &'a str),
    Fgetxattr(usize, &'a str),
    Setxattr(&'a str, Follow, &'a str, &'a [u8], XattrMode),
    Fsetxattr(usize, &'a str, &'a [u8]),
    Removexattr(&'a str, Follow, &'a str),
    Listxattr(&'a str, Follow),
}

impl Call<'_> {
    /// The slot of the open file that it works on.
    pub fn slot(&self) -> Option<usize> {
        use Call::*;
        match *self {
            Close(slot) | Read(slot, ..) | Write(slot, ..) | Append(slot, _) => Some(slot),
            WriteAtomic(slot, ..) | CopyRange(_, _, slot, ..) | Ftruncate(slot, _) => Some(slot),
            Fallocate(slot, ..) | SeekData(slot, _) | SeekHole(slot, _) => Some(slot),
            Fsync(slot) | Flock(slot) | Readdir(slot) | Fstat(slot) => Some(slot),
            Fchmod(slot, _) | Fchown(slot, ..) | Futimens(slot, ..) => Some(slot),
            Fgetxattr(slot, _) | Fsetxattr(slot, ..) => Some(slot),
            _ => None,
        }
    }

    /// The paths in it.
    pub fn paths(&self) -> Vec<&str> {
        use Call::*;
        match *self {
            Link(from, _, to) | Rename(from, to, _) => vec![from, to],
            Open(_, path, ..) | OpenClose(path, ..) | Truncate(path, _) => vec![path],
            Mkdir(path, _) | Mknod(path, ..) | Symlink(_, path) | Readlink(path) => vec![path],
            Unlink(path) | Rmdir(path) | List(path, _) | Stat(path, _) => vec![path],
            Access(path, ..) | Chmod(path, ..) | Chown(path, ..) | Utimens(path, ..) => vec![path],
            Getxattr(path, ..) | Setxattr(path, ..) | Removexattr(path, ..) => vec![path],
            Listxattr(path, _) => vec![path],
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{self:?}");
        match text.char_indices().nth(PRINTED_MAX) {
            Some((end, _)) => write!(f, "{}…", &text[..end]),
            None => f.write_str(&text),
        }
    }
}
