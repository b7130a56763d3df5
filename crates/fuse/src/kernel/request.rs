//! A request of the kernel: its caller, the inode, and what is to be done.

use adit_base::clock::Timestamp;
use adit_base::{Errno, Result};
use adit_fs::SetTime;

/// A request.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// The number of its reply.
    pub(crate) unique: u64,
    /// The kernel's number of the inode that it is about.
    pub(crate) node: u64,
    /// The caller's user and group.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) operation: Operation<'a>,
}

/// What is to be done. `handle` is an open file, `offset` and `len` are bytes.
#[derive(Debug)]
pub(crate) enum Operation<'a> {
    Init {
        major: u32,
        minor: u32,
        readahead_bytes: u32,
        features: u64,
    },
    Destroy,
    /// Of another request, by its number.
    Interrupt(u64),
    Lookup(&'a [u8]),
    /// Inodes, and how many lookups of each the kernel forgets.
    Forget(Vec<(u64, u64)>),
    GetAttributes,
    SetAttributes(AttributesToSet),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        name: &'a [u8],
        mode: u32,
        device: u32,
    },
    MakeDirectory {
        name: &'a [u8],
        mode: u32,
    },
    Unlink(&'a [u8]),
    RemoveDirectory(&'a [u8]),
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    /// A further name, in `node`, of the inode `existing`.
    Link {
        existing: u64,
        name: &'a [u8],
    },
    Open {
        flags: u32,
    },
    Create {
        name: &'a [u8],
        flags: u32,
        mode: u32,
    },
    Read {
        handle: u64,
        offset: u64,
        len: u32,
    },
    Write {
        handle: u64,
        offset: u64,
        data: &'a [u8],
        /// The caller may not keep set-ID bits.
        kills_set_ids: bool,
        /// Of the open file: `O_APPEND` and the like.
        flags: u32,
    },
    StatFs,
    Release {
        handle: u64,
    },
    /// A descriptor is closed by the owner of POSIX locks; others of the same file may be open.
    Flush {
        handle: u64,
        owner: u64,
    },
    Sync {
        handle: u64,
        data_only: bool,
    },
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
    },
    /// A length of 0 asks for the length.
    GetXattr {
        name: &'a [u8],
        len: u32,
    },
    ListXattr {
        len: u32,
    },
    RemoveXattr(&'a [u8]),
    OpenDirectory {
        flags: u32,
    },
    ReadDirectory {
        handle: u64,
        from: u64,
        len: u32,
        with_attributes: bool,
    },
    TestLock(LockRequest),
    SetLock {
        lock: LockRequest,
        wait: bool,
    },
    Allocate {
        handle: u64,
        offset: u64,
        len: u64,
        mode: u32,
    },
    Seek {
        handle: u64,
        offset: u64,
        whence: u32,
    },
    CopyRange {
        from: u64,
        from_offset: u64,
        /// The inode of `to`.
        to_node: u64,
        to: u64,
        to_offset: u64,
        len: u64,
    },
    Ioctl,
    /// One that this process doesn't know, or leaves to the kernel.
    Other,
}

/// The attributes that a request sets.
#[derive(Debug)]
pub(crate) struct AttributesToSet {
    pub(crate) handle: Option<u64>,
    pub(crate) size_bytes: Option<u64>,
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) accessed: SetTime,
    pub(crate) modified: SetTime,
}

/// A lock that is asked for, released (`F_UNLCK`) or tested.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockRequest {
    pub(crate) handle: u64,
    /// A process, or an open file (`flock`, `F_OFD_SETLK`).
    pub(crate) owner: u64,
    pub(crate) first: u64,
    /// Inclusive.
    pub(crate) last: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub(crate) kind: i32,
    pub(crate) pid: u32,
    /// By flock(2).
    pub(crate) is_flock: bool,
}

impl<'a> Request<'a> {
    /// Reads a request. EINVAL if it is too short, which no kernel's is.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Request<'a>> {
        let mut fields = Fields(bytes);
        let _len = fields.u32()?;
        let opcode = fields.u32()?;
        let (unique, node) = (fields.u64()?, fields.u64()?);
        let (uid, gid, _pid) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let _padding = fields.u32()?;
        Ok(Request {
            unique,
            node,
            uid,
            gid,
            operation: operation(opcode, node, fields)?,
        })
    }

    /// Does the kernel wait for a reply?
    pub(crate) fn has_reply(&self) -> bool {
        !matches!(
            self.operation,
            Operation::Forget(_) | Operation::Interrupt(_)
        )
    }
}

/// The rest of a request.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(len).ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(first)
    }

    fn u32(&mut self) -> Result<u32> {
        let bytes = self.bytes(4)?.try_into().expect("four bytes");
        Ok(u32::from_ne_bytes(bytes))
    }

    fn u64(&mut self) -> Result<u64> {
        let bytes = self.bytes(8)?.try_into().expect("eight bytes");
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Up to a zero, which is not a part of it.
    fn name(&mut self) -> Result<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0);
        let name = self.bytes(end.ok_or(Errno::INVAL)?)?;
        self.bytes(1)?;
        Ok(name)
    }

    fn lock(&mut self) -> Result<LockRequest> {
        const FLOCK: u32 = 1;
        Ok(LockRequest {
            handle: self.u64()?,
            owner: self.u64()?,
            first: self.u64()?,
            last: self.u64()?,
            kind: self.u32()? as i32,
            pid: self.u32()?,
            is_flock: self.u32()? & FLOCK != 0,
        })
    }
}

fn operation<'a>(opcode: u32, node: u64, mut fields: Fields<'a>) -> Result<Operation<'a>> {
    let fields = &mut fields;
    Ok(match opcode {
        1 => Operation::Lookup(fields.name()?),
        2 => Operation::Forget(vec![(node, fields.u64()?)]),
        3 => Operation::GetAttributes,
        4 => Operation::SetAttributes(attributes(fields)?),
        5 => Operation::ReadLink,
        6 => Operation::Symlink {
            name: fields.name()?,
            target: fields.name()?,
        },
        8 => {
            let (mode, device) = (fields.u32()?, fields.u32()?);
            fields.bytes(8)?;
            let name = fields.name()?;
            Operation::MakeNode { name, mode, device }
        }
        9 => {
            let mode = fields.u32()?;
            fields.bytes(4)?;
            let name = fields.name()?;
            Operation::MakeDirectory { name, mode }
        }
        10 => Operation::Unlink(fields.name()?),
        11 => Operation::RemoveDirectory(fields.name()?),
        12 | 45 => {
            let new_parent = fields.u64()?;
            let flags = match opcode {
                45 => (fields.u32()?, fields.u32()?).0,
                _ => 0,
            };
            Operation::Rename {
                name: fields.name()?,
                new_parent,
                new_name: fields.name()?,
                flags,
            }
        }
        13 => Operation::Link {
            existing: fields.u64()?,
            name: fields.name()?,
        },
        14 => Operation::Open {
            flags: fields.u32()?,
        },
        15 => Operation::Read {
            handle: fields.u64()?,
            offset: fields.u64()?,
            len: fields.u32()?,
        },
        16 => write(fields)?,
        17 => Operation::StatFs,
        18 | 29 => Operation::Release {
            handle: fields.u64()?,
        },
        20 | 30 => Operation::Sync {
            handle: fields.u64()?,
            data_only: fields.u32()? & 1 != 0,
        },
        21 => {
            let (len, flags) = (fields.u32()?, fields.u32()?);
            let name = fields.name()?;
            let value = fields.bytes(len as usize)?;
            Operation::SetXattr { name, value, flags }
        }
        22 => {
            let len = fields.u32()?;
            fields.bytes(4)?;
            let name = fields.name()?;
            Operation::GetXattr { name, len }
        }
        23 => Operation::ListXattr { len: fields.u32()? },
        24 => Operation::RemoveXattr(fields.name()?),
        25 => {
            let handle = fields.u64()?;
            fields.bytes(8)?;
            let owner = fields.u64()?;
            Operation::Flush { handle, owner }
        }
        26 => init(fields)?,
        27 => Operation::OpenDirectory {
            flags: fields.u32()?,
        },
        28 | 44 => Operation::ReadDirectory {
            handle: fields.u64()?,
            from: fields.u64()?,
            len: fields.u32()?,
            with_attributes: opcode == 44,
        },
        31 => Operation::TestLock(fields.lock()?),
        32 | 33 => Operation::SetLock {
            lock: fields.lock()?,
            wait: opcode == 33,
        },
        35 => {
            let (flags, mode) = (fields.u32()?, fields.u32()?);
            fields.bytes(8)?;
            let name = fields.name()?;
            Operation::Create { name, flags, mode }
        }
        36 => Operation::Interrupt(fields.u64()?),
        38 => Operation::Destroy,
        39 => Operation::Ioctl,
        42 => {
            let count = fields.u32()?;
            fields.bytes(4)?;
            let forgotten = (0..count).map(|_| Ok((fields.u64()?, fields.u64()?)));
            Operation::Forget(forgotten.collect::<Result<_>>()?)
        }
        43 => Operation::Allocate {
            handle: fields.u64()?,
            offset: fields.u64()?,
            len: fields.u64()?,
            mode: fields.u32()?,
        },
        46 => Operation::Seek {
            handle: fields.u64()?,
            offset: fields.u64()?,
            whence: fields.u32()?,
        },
        47 => Operation::CopyRange {
            from: fields.u64()?,
            from_offset: fields.u64()?,
            to_node: fields.u64()?,
            to: fields.u64()?,
            to_offset: fields.u64()?,
            len: fields.u64()?,
        },
        _ => Operation::Other,
    })
}

fn init<'a>(fields: &mut Fields<'a>) -> Result<Operation<'a>> {
    let (major, minor) = (fields.u32()?, fields.u32()?);
    let readahead_bytes = fields.u32()?;
    let low = fields.u32()?;
    // Only newer kernels have more of them.
    let high = fields.u32().unwrap_or(0);
    Ok(Operation::Init {
        major,
        minor,
        readahead_bytes,
        features: u64::from(high) << 32 | u64::from(low),
    })
}

fn write<'a>(fields: &mut Fields<'a>) -> Result<Operation<'a>> {
    const KILL_SET_IDS: u32 = 1 << 2;
    let (handle, offset) = (fields.u64()?, fields.u64()?);
    let (len, write_flags) = (fields.u32()?, fields.u32()?);
    let _owner = fields.u64()?;
    let flags = fields.u32()?;
    fields.bytes(4)?;
    Ok(Operation::Write {
        handle,
        offset,
        data: fields.bytes(len as usize)?,
        kills_set_ids: write_flags & KILL_SET_IDS != 0,
        flags,
    })
}

fn attributes(fields: &mut Fields<'_>) -> Result<AttributesToSet> {
    let valid = fields.u32()?;
    let has = |bit: u32| valid & 1 << bit != 0;
    fields.bytes(4)?;
    let (handle, size_bytes, _owner) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let seconds = [fields.u64()?, fields.u64()?, fields.u64()?];
    let nanoseconds = [fields.u32()?, fields.u32()?, fields.u32()?];
    let mode = fields.u32()?;
    fields.bytes(4)?;
    let (uid, gid) = (fields.u32()?, fields.u32()?);
    let time = |which: usize, set: u32, now: u32| match (has(set), has(now)) {
        (false, _) => SetTime::Omit,
        (true, true) => SetTime::Now,
        (true, false) => SetTime::To(Timestamp {
            seconds: seconds[which] as i64,
            nanoseconds: nanoseconds[which].min(999_999_999),
        }),
    };
    Ok(AttributesToSet {
        handle: has(6).then_some(handle),
        size_bytes: has(3).then_some(size_bytes),
        mode: has(0).then_some(mode),
        uid: has(1).then_some(uid),
        gid: has(2).then_some(gid),
        accessed: time(0, 4, 7),
        modified: time(1, 5, 8),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend((40 + body.len() as u32).to_ne_bytes());
        bytes.extend(opcode.to_ne_bytes());
        bytes.extend(7u64.to_ne_bytes());
        bytes.extend(3u64.to_ne_bytes());
        for number in [1000, 100, 42, 0u32] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend(body);
        bytes
    }

    #[test]
    fn no_beginning_of_a_request_panics_and_names_end_at_their_zero() {
        let rename = [&9u64.to_ne_bytes()[..], b"old\0new\0"].concat();
        let whole = request(12, &rename);
        for len in 0..whole.len() {
            assert!(Request::parse(&whole[..len]).is_err(), "{len}");
        }
        let parsed = Request::parse(&whole).expect("whole");
        assert_eq!((parsed.unique, parsed.node, parsed.uid), (7, 3, 1000));
        let Operation::Rename {
            name, new_parent, ..
        } = parsed.operation
        else {
            panic!("{parsed:?}");
        };
        assert_eq!((name, new_parent), (&b"old"[..], 9));
        for opcode in 0..60 {
            for len in 0..140 {
                let _ = Request::parse(&request(opcode, &vec![0; len]));
                let _ = Request::parse(&request(opcode, &vec![0xff; len]));
            }
        }
    }

    #[test]
    fn a_lock_of_flock_is_told_from_one_of_fcntl() {
        let mut body = Vec::new();
        for number in [5, 6, 0, i64::MAX as u64] {
            body.extend(u64::to_ne_bytes(number));
        }
        for number in [libc::F_WRLCK as u32, 42, 1, 0] {
            body.extend(u32::to_ne_bytes(number));
        }
        let is_flock = |bytes: &[u8]| match Request::parse(bytes).expect("whole").operation {
            Operation::SetLock { lock, wait: true } => lock.is_flock,
            other => panic!("{other:?}"),
        };
        assert!(is_flock(&request(33, &body)));
        body[40] = 0;
        assert!(!is_flock(&request(33, &body)));
    }
}
