//! The operations of a simulated application, as data, to print, omit and repeat.
//!
//! A task has a fixed set of names and a few slots for open files, so that operations drawn at
//! random often meet. An operation on an empty slot, or on a name that isn't there, is an operation
//! that fails, which is checked, too.

use adit_base::hash::mix64;
use adit_fs::{AllocateFlags, OpenFlags, RenameFlags};
use std::fmt;

/// Open files a task has at most.
pub const SLOTS: usize = 4;
/// Names that have a meaning; those from here on are `m0`, `m1`, … of the task's directory.
pub const NAMED: u8 = 12;
/// Names in all.
pub const NAMES: u8 = 60;

/// Name number so and so of the task that uses it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Name(pub u8);

impl Name {
    /// The path of this name for a task. All are in the task's own directory, or in `/s`, which the
    /// tasks share.
    pub fn path(self, task: usize) -> String {
        match self.0 {
            0 => format!("/t{task}/a"),
            1 => format!("/t{task}/b"),
            2 => format!("/t{task}/c"),
            3 => format!("/t{task}/d"),
            4 => format!("/t{task}/e"),
            5 => format!("/t{task}/d/a"),
            6 => format!("/t{task}/d/b"),
            7 => format!("/t{task}/e/a"),
            8 => format!("/t{task}/d/f"),
            9 => format!("/t{task}/d/f/a"),
            10 => format!("/s/{task}a"),
            11 => format!("/s/{task}b"),
            n => format!("/t{task}/m{}", n - NAMED),
        }
    }
}

/// The task that a path belongs to; None: it is one of the directories that were there before.
pub fn owner(path: &str) -> Option<usize> {
    let rest = match path.strip_prefix("/t") {
        Some(rest) => rest.split_once('/')?.0,
        None => path
            .strip_prefix("/s/")?
            .split(|c: char| !c.is_ascii_digit())
            .next()?,
    };
    rest.parse().ok()
}

/// One operation.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "they are the system calls of these names")]
pub enum Op {
    Open {
        slot: usize,
        name: Name,
        flags: OpenFlags,
    },
    Close {
        slot: usize,
    },
    Write {
        slot: usize,
        offset: u64,
        len: u64,
    },
    Append {
        slot: usize,
        len: u64,
    },
    Atomic {
        slot: usize,
        ranges: Vec<(u64, u64)>,
        durable: bool,
    },
    /// An atomic write, a rename and an unlink, in one transaction.
    Together {
        slot: usize,
        ranges: Vec<(u64, u64)>,
        name: Name,
        to: Name,
        gone: Name,
    },
    Truncate {
        slot: usize,
        size: u64,
    },
    Allocate {
        slot: usize,
        flags: AllocateFlags,
        offset: u64,
        len: u64,
    },
    Copy {
        from: usize,
        from_offset: u64,
        to: usize,
        to_offset: u64,
        len: u64,
    },
    Read {
        slot: usize,
        offset: u64,
        len: u64,
    },
    Fsync {
        slot: usize,
    },
    Fdatasync {
        slot: usize,
    },
    FsyncDirectory {
        name: Name,
    },
    SyncAll,
    Checkpoint,
    /// The volume becomes this large; refused if it is larger by now.
    Grow {
        bytes: u64,
    },
    Mkdir {
        name: Name,
    },
    Rmdir {
        name: Name,
    },
    Unlink {
        name: Name,
    },
    Link {
        name: Name,
        to: Name,
    },
    Rename {
        name: Name,
        to: Name,
        flags: RenameFlags,
    },
    Symlink {
        name: Name,
    },
    SetMode {
        name: Name,
        mode: u32,
    },
    SetXattr {
        name: Name,
        key: u8,
        len: u64,
    },
    RemoveXattr {
        name: Name,
        key: u8,
    },
    /// Nothing, for this many milliseconds: timers fire.
    Idle {
        ms: u64,
    },
}

/// An operation with its number in the plan, which determines its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Numbered {
    /// Its number.
    pub number: u32,
    /// The operation.
    pub op: Op,
}

/// The bytes that operation `number` writes at `offset`: no two operations write equal bytes.
pub fn stamped(number: u32, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len as usize + 16);
    let mut at = offset - offset % 8;
    while at < offset + len {
        bytes.extend_from_slice(&mix64((u64::from(number) << 40) | (at / 8)).to_le_bytes());
        at += 8;
    }
    bytes.drain(..(offset % 8) as usize);
    bytes.truncate(len as usize);
    bytes
}

impl fmt::Display for Numbered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>4} {:?}", self.number, self.op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_belongs_to_its_task() {
        for task in 0..4 {
            for name in 0..NAMES {
                assert_eq!(owner(&Name(name).path(task)), Some(task));
            }
        }
        for path in ["/s", "/t0", "/t3", "/lost+found"] {
            assert_eq!(owner(path), None);
        }
    }

    #[test]
    fn bytes_depend_on_their_place_and_not_on_where_the_write_began() {
        assert_eq!(stamped(7, 3, 20)[..], stamped(7, 0, 40)[3..23]);
        assert_ne!(stamped(7, 0, 8), stamped(8, 0, 8));
    }
}
