//! The calls that are compared, and long random sequences of them.

use adit_base::random::Prng;
use adit_fs::{Access, AllocateFlags, FileKind, OpenFlags, RenameFlags};

/// Who calls: user, group, supplementary groups.
pub(crate) const PEOPLE: [(u32, u32, &[u32]); 4] = [
    (0, 0, &[]),
    (1000, 1000, &[]),
    (1001, 1000, &[2000]),
    (1002, 1002, &[1000]),
];

/// Bytes of the largest file.
const FILE_BYTES_MAX: u64 = (16 << 40) - 4096;

/// Descriptors that a sequence has at most.
pub(crate) const DESCRIPTORS: usize = 3;

/// A time to be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Time {
    Omit,
    Now,
    To(i64, u32),
}

/// One call. Descriptors are places in a table; an empty place is EBADF.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Open(usize, String, OpenFlags, u32),
    Close(usize),
    Read(usize, u64, usize),
    Write(usize, u64, usize, u8),
    Truncate(String, u64),
    Ftruncate(usize, u64),
    Allocate(usize, AllocateFlags, u64, u64),
    Fsync(usize),
    Mkdir(String, u32),
    Mknod(String, FileKind, u32, u64),
    Rmdir(String),
    Unlink(String),
    /// The last one: follow a symbolic link that is the existing name.
    Link(String, String, bool),
    Symlink(String, String),
    Readlink(String),
    Rename(String, String, RenameFlags),
    Chmod(String, u32),
    Fchmod(usize, u32),
    Chown(String, Option<u32>, Option<u32>, bool),
    SetTimes(String, Time, Time, bool),
    Access(String, Access),
    Stat(String, bool),
    Fstat(usize),
    List(String),
    SetXattr(String, String, usize, u32),
    GetXattr(String, String),
    ListXattr(String),
    RemoveXattr(String, String),
}

impl Call {
    /// The open file that it is about.
    pub(crate) fn descriptor(&self) -> Option<usize> {
        match self {
            Call::Close(at)
            | Call::Read(at, ..)
            | Call::Write(at, ..)
            | Call::Ftruncate(at, _)
            | Call::Allocate(at, ..)
            | Call::Fsync(at)
            | Call::Fchmod(at, _)
            | Call::Fstat(at) => Some(*at),
            _ => None,
        }
    }

    /// The paths in it.
    pub(crate) fn paths(&self) -> Vec<&str> {
        match self {
            Call::Open(_, path, ..)
            | Call::Truncate(path, _)
            | Call::Mkdir(path, _)
            | Call::Mknod(path, ..)
            | Call::Rmdir(path)
            | Call::Unlink(path)
            | Call::Symlink(_, path)
            | Call::Readlink(path)
            | Call::Chmod(path, _)
            | Call::Chown(path, ..)
            | Call::SetTimes(path, ..)
            | Call::Access(path, _)
            | Call::Stat(path, _)
            | Call::List(path)
            | Call::SetXattr(path, ..)
            | Call::GetXattr(path, _)
            | Call::ListXattr(path)
            | Call::RemoveXattr(path, _) => vec![path],
            Call::Link(from, to, _) | Call::Rename(from, to, _) => vec![from, to],
            _ => Vec::new(),
        }
    }
}

/// Makes calls from a seed.
pub(crate) struct Calls {
    random: Prng,
    /// A mount takes part: what the kernel itself does differently above FUSE is left out.
    mounted: bool,
}

impl Calls {
    pub(crate) fn new(seed: u64, mounted: bool) -> Calls {
        Calls {
            random: Prng::new(seed),
            mounted,
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    fn component(&mut self) -> String {
        match self.below(120) {
            0 => ".".into(),
            1 | 2 => "..".into(),
            3 => String::new(),
            4 => "n".repeat(255),
            5 => "n".repeat(256),
            _ => self.pick(&["a", "b", "c", "d"]).into(),
        }
    }

    /// A path; a leading slash is the root of what is compared.
    fn path(&mut self) -> String {
        if self.chance(200) {
            return self.pick(&["", "/", ".", "..", "//", "/.."]).into();
        }
        // Short ones are likelier to exist.
        let depth = self.pick(&[1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 4]);
        let mut path = String::from(if self.chance(10) { "/" } else { "" });
        for index in 0..depth {
            if index > 0 {
                path.push('/');
            }
            path += &self.component();
        }
        if self.chance(20) {
            path.push('/');
        }
        path
    }

    fn mode(&mut self) -> u32 {
        let special = self.pick(&[0, 0, 0, 0, 0, 0, 0o1000, 0o2000, 0o4000, 0o6000]);
        let modes = [
            0o777, 0o777, 0o777, 0o755, 0o755, 0o700, 0o644, 0o600, 0o444, 0o070, 0o007, 0,
        ];
        let mode = self.pick(&modes) | special;
        // Above FUSE the kernel keeps set-group-ID where it means mandatory locking, whoever writes.
        match self.mounted && mode & 0o2010 == 0o2000 {
            true => mode | 0o010,
            false => mode,
        }
    }

    fn offset(&mut self) -> u64 {
        match self.below(20) {
            0 => 5 << 30,
            1..6 => self.below(40) as u64 * 4096,
            _ => self.below(100_000) as u64,
        }
    }

    fn size(&mut self) -> u64 {
        match self.below(12) {
            0 => 0,
            1 => FILE_BYTES_MAX,
            2 => FILE_BYTES_MAX + 1,
            _ => self.offset(),
        }
    }

    fn time(&mut self) -> Time {
        match self.below(6) {
            0 => Time::Omit,
            1 | 2 => Time::Now,
            3 => Time::To(1, 1_000_000_000),
            _ => Time::To(
                self.below(2_000_000_000) as i64,
                self.below(1_000_000_000) as u32,
            ),
        }
    }

    fn id(&mut self) -> Option<u32> {
        self.pick(&[
            None,
            Some(0),
            Some(1000),
            Some(1001),
            Some(1002),
            Some(2000),
        ])
    }

    fn xattr(&mut self) -> String {
        let names = [
            "user.a",
            "user.b",
            "user.",
            "trusted.a",
            "security.a",
            "other.a",
            "",
            "user",
            "system.x",
        ];
        self.pick(&names).into()
    }

    fn open_flags(&mut self) -> OpenFlags {
        let mut flags = self.pick(&[
            OpenFlags::empty(),
            OpenFlags::READ_WRITE,
            OpenFlags::READ_WRITE,
            OpenFlags::WRITE_ONLY,
        ]);
        for (one_in, flag) in [
            (2, OpenFlags::CREATE),
            (8, OpenFlags::EXCLUSIVE),
            (8, OpenFlags::TRUNCATE),
            (6, OpenFlags::APPEND),
            (10, OpenFlags::NOFOLLOW),
            (12, OpenFlags::DIRECTORY),
            (25, OpenFlags::NOATIME),
            (20, OpenFlags::PATH),
            (30, OpenFlags::SYNC),
        ] {
            if self.chance(one_in) {
                flags |= flag;
            }
        }
        // Without CREATE, what EXCLUSIVE means is not said.
        if !flags.contains(OpenFlags::CREATE) {
            flags.remove(OpenFlags::EXCLUSIVE);
        }
        flags
    }

    /// The next call, and who makes it.
    pub(crate) fn next(&mut self) -> (usize, Call) {
        let who = if self.chance(2) {
            0
        } else {
            self.below(PEOPLE.len())
        };
        let at = self.below(DESCRIPTORS);
        let call = match self.below(100) {
            0..16 => Call::Open(at, self.path(), self.open_flags(), self.mode()),
            16..18 => Call::Close(at),
            18..23 => Call::Read(at, self.offset(), self.below(10_000)),
            23..31 => {
                let len = self.below(10_000);
                // A write that crosses the end of the largest file is refused here, and cut short by Linux.
                let offset = match self.below(40) {
                    0 => FILE_BYTES_MAX - len as u64,
                    1 => FILE_BYTES_MAX,
                    _ => self.offset(),
                };
                Call::Write(at, offset, len, self.below(256) as u8)
            }
            31..33 => Call::Truncate(self.path(), self.size()),
            33..35 => Call::Ftruncate(at, self.size()),
            35..38 => {
                let flags = self.pick(&[
                    AllocateFlags::empty(),
                    AllocateFlags::KEEP_SIZE,
                    AllocateFlags::PUNCH_HOLE,
                    AllocateFlags::PUNCH_HOLE | AllocateFlags::KEEP_SIZE,
                    AllocateFlags::ZERO_RANGE,
                    AllocateFlags::ZERO_RANGE | AllocateFlags::KEEP_SIZE,
                ]);
                let from = self.below(200_000) as u64;
                Call::Allocate(at, flags, from, self.below(100_000) as u64)
            }
            38 => Call::Fsync(at),
            39..47 => Call::Mkdir(self.path(), self.mode()),
            47..49 => {
                let kinds = [
                    FileKind::File,
                    FileKind::Fifo,
                    FileKind::Socket,
                    FileKind::CharDevice,
                    FileKind::BlockDevice,
                ];
                Call::Mknod(self.path(), self.pick(&kinds), self.mode(), 0x0103)
            }
            49..52 => Call::Rmdir(self.path()),
            52..56 => Call::Unlink(self.path()),
            56..60 => Call::Link(self.path(), self.path(), self.chance(3)),
            60..64 => {
                let target = match self.below(12) {
                    0 => "x".repeat(300 + self.below(3700)),
                    1 => String::new(),
                    _ => self.path(),
                };
                Call::Symlink(target, self.path())
            }
            64 => Call::Readlink(self.path()),
            65..72 => {
                let flags = self.pick(&[
                    RenameFlags::empty(),
                    RenameFlags::empty(),
                    RenameFlags::empty(),
                    RenameFlags::NO_REPLACE,
                    RenameFlags::EXCHANGE,
                ]);
                Call::Rename(self.path(), self.path(), flags)
            }
            72..76 => Call::Chmod(self.path(), self.mode()),
            76 => Call::Fchmod(at, self.mode()),
            77..81 => Call::Chown(self.path(), self.id(), self.id(), self.chance(2)),
            81..84 => Call::SetTimes(self.path(), self.time(), self.time(), self.chance(2)),
            84..87 => Call::Access(
                self.path(),
                Access::from_bits_truncate(self.below(8) as u32),
            ),
            87..90 => Call::Stat(self.path(), self.chance(2)),
            90 => Call::Fstat(at),
            91..93 => Call::List(self.path()),
            93..96 => {
                let mode = self.pick(&[0, 0, 1, 2]);
                Call::SetXattr(self.path(), self.xattr(), self.below(60), mode)
            }
            96 | 97 => Call::GetXattr(self.path(), self.xattr()),
            98 => Call::ListXattr(self.path()),
            _ => Call::RemoveXattr(self.path(), self.xattr()),
        };
        (who, call)
    }
}
