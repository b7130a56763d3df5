//! Long random sequences of operations.

use adit_base::clock::Timestamp;
use adit_base::random::Prng;
use adit_fs::{
    Access, AllocateFlags, FileKind, Follow, OpenFlags, RenameFlags, SetTime, XattrMode,
};
use adit_operations::Call;
use bumpalo::Bump;

/// Who calls: user, group, supplementary groups.
pub(crate) const PEOPLE: [(u32, u32, &[u32]); 4] = [
    (0, 0, &[]),
    (1000, 1000, &[]),
    (1001, 1000, &[2000]),
    (1002, 1002, &[1000]),
];

/// Bytes of the largest file.
const FILE_BYTES_MAX: u64 = (16 << 40) - 4096;

/// Slots that a sequence has.
pub(crate) const SLOTS: usize = 3;

/// Makes operations from a seed; what they refer to is in an arena.
pub(crate) struct Generator<'a> {
    random: Prng,
    arena: &'a Bump,
    /// A mount takes part: what the kernel itself does differently above FUSE is left out.
    mounted: bool,
}

impl<'a> Generator<'a> {
    pub(crate) fn new(seed: u64, mounted: bool, arena: &'a Bump) -> Generator<'a> {
        Generator {
            random: Prng::new(seed),
            arena,
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
    fn path(&mut self) -> &'a str {
        if self.chance(200) {
            return self.pick(&["", "/", ".", "..", "//", "/.."]);
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
        self.arena.alloc_str(&path)
    }

    fn mode(&mut self) -> u32 {
        let special = self.pick(&[0, 0, 0, 0, 0, 0, 0o1000, 0o2000, 0o4000, 0o6000]);
        let modes = [
            0o777, 0o777, 0o777, 0o755, 0o755, 0o700, 0o644, 0o600, 0o444, 0o070, 0o007, 0,
        ];
        let mode = self.pick(&modes) | special;
        // Above FUSE the kernel keeps set-group-ID where it means mandatory locking, whoever
        // writes.
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

    fn time(&mut self) -> SetTime {
        match self.below(6) {
            0 => SetTime::Omit,
            1 | 2 => SetTime::Now,
            3 => SetTime::To(Timestamp {
                seconds: 1,
                nanoseconds: 1_000_000_000,
            }),
            _ => SetTime::To(Timestamp {
                seconds: self.below(2_000_000_000) as i64,
                nanoseconds: self.below(1_000_000_000) as u32,
            }),
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

    fn xattr(&mut self) -> &'static str {
        self.pick(&[
            "user.a",
            "user.b",
            "user.",
            "trusted.a",
            "security.a",
            "other.a",
            "",
            "user",
            "system.x",
        ])
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

    fn follow(&mut self, one_in: usize) -> Follow {
        match self.chance(one_in) {
            true => Follow::Yes,
            false => Follow::No,
        }
    }

    fn bytes(&mut self, len: usize, byte: u8) -> &'a [u8] {
        self.arena.alloc_slice_fill_copy(len, byte)
    }

    /// The next operation, and who performs it.
    pub(crate) fn next(&mut self) -> (usize, Call<'a>) {
        let who = if self.chance(2) {
            0
        } else {
            self.below(PEOPLE.len())
        };
        let at = self.below(SLOTS);
        let operation = match self.below(100) {
            0..16 => Call::Open(at, self.path(), self.open_flags(), self.mode()),
            16..18 => Call::Close(at),
            18..23 => Call::Read(at, self.offset(), self.below(10_000)),
            23..31 => {
                let len = self.below(10_000);
                // A write that crosses the end of the largest file is refused here, and cut short
                // by Linux.
                let offset = match self.below(40) {
                    0 => FILE_BYTES_MAX - len as u64,
                    1 => FILE_BYTES_MAX,
                    _ => self.offset(),
                };
                let byte = self.below(256) as u8;
                Call::Write(at, offset, self.bytes(len, byte))
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
                Call::Fallocate(at, flags, from, self.below(100_000) as u64)
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
            56..60 => {
                let (from, to) = (self.path(), self.path());
                Call::Link(from, self.follow(3), to)
            }
            60..64 => {
                let target = match self.below(12) {
                    0 => {
                        let target = "x".repeat(300 + self.below(3700));
                        self.arena.alloc_str(&target)
                    }
                    1 => "",
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
            72..76 => Call::Chmod(self.path(), Follow::Yes, self.mode()),
            76 => Call::Fchmod(at, self.mode()),
            77..81 => {
                let (path, uid, gid) = (self.path(), self.id(), self.id());
                Call::Chown(path, self.follow(2), uid, gid)
            }
            81..84 => {
                let (path, accessed, modified) = (self.path(), self.time(), self.time());
                Call::Utimens(path, self.follow(2), accessed, modified)
            }
            84..87 => {
                let path = self.path();
                let wanted = Access::from_bits_truncate(self.below(8) as u32);
                Call::Access(path, Follow::Yes, wanted)
            }
            87..90 => Call::Stat(self.path(), self.follow(2)),
            90 => Call::Fstat(at),
            91..93 => Call::List(self.path(), OpenFlags::empty()),
            93..96 => {
                let (any, create) = (XattrMode::Any, XattrMode::Create);
                let mode = self.pick(&[any, any, create, XattrMode::Replace]);
                let (path, name, len) = (self.path(), self.xattr(), self.below(60));
                Call::Setxattr(path, Follow::No, name, self.bytes(len, 7), mode)
            }
            96 | 97 => Call::Getxattr(self.path(), Follow::No, self.xattr()),
            98 => Call::Listxattr(self.path(), Follow::No),
            _ => Call::Removexattr(self.path(), Follow::No, self.xattr()),
        };
        (who, operation)
    }
}
