//! The arguments and results of operations: flags, attributes, directory entries.
//!
//! Values of flags and modes are those of Linux, so that the C interface passes them through.
//! Nothing here is an on-device layout.

use adit_base::clock::Timestamp;
use adit_store::BlobId;
use bitflags::bitflags;

bitflags! {
    /// How a file is opened; the values of Linux's `O_` flags.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct OpenFlags: u32 {
        /// For writing only. Neither this nor [`OpenFlags::READ_WRITE`]: for reading only.
        const WRITE_ONLY = libc::O_WRONLY as u32;
        /// For reading and writing.
        const READ_WRITE = libc::O_RDWR as u32;
        /// Make the file if it does not exist.
        const CREATE = libc::O_CREAT as u32;
        /// With CREATE: fail when it exists.
        const EXCLUSIVE = libc::O_EXCL as u32;
        /// Truncate an existing file to zero bytes.
        const TRUNCATE = libc::O_TRUNC as u32;
        /// Every write goes to the end of the file.
        const APPEND = libc::O_APPEND as u32;
        /// Data goes past the page cache, but coherently with it.
        const DIRECT = libc::O_DIRECT as u32;
        /// Every write returns after its data and the size are durable.
        const DSYNC = libc::O_DSYNC as u32;
        /// Each write is durable when it returns, with all attributes. Contains the bits of DSYNC.
        const SYNC = libc::O_SYNC as u32;
        /// Fail unless it is a directory.
        const DIRECTORY = libc::O_DIRECTORY as u32;
        /// Reading doesn't change the time of access. Only for the owner, else EPERM.
        const NOATIME = libc::O_NOATIME as u32;
        /// A handle on an inode of any kind (a symbolic link with [`OpenFlags::NOFOLLOW`]), without
        /// a right to its content. It keeps the inode.
        const PATH = libc::O_PATH as u32;
        /// Fail with ELOOP when the last component is a symbolic link.
        const NOFOLLOW = libc::O_NOFOLLOW as u32;
        /// A pipe or a socket is opened as well, for the rights of the access mode: it tells the
        /// holder's rights, and is neither read nor written. No other inode keeps the flag.
        const NODE = 1 << 30;
    }
}

impl OpenFlags {
    /// For its path, or for the rights on a pipe or socket: it has no content.
    const WITHOUT_CONTENT: OpenFlags = OpenFlags::PATH.union(OpenFlags::NODE);

    /// True if the access mode includes reading.
    pub const fn names_reading(self) -> bool {
        let mode = (self.bits() & libc::O_ACCMODE as u32) as i32;
        matches!(mode, libc::O_RDONLY | libc::O_RDWR)
    }

    /// True if the access mode includes writing.
    pub const fn names_writing(self) -> bool {
        let mode = (self.bits() & libc::O_ACCMODE as u32) as i32;
        matches!(mode, libc::O_WRONLY | libc::O_RDWR)
    }

    /// True if the descriptor may read.
    pub const fn readable(self) -> bool {
        self.names_reading() && !self.intersects(OpenFlags::WITHOUT_CONTENT)
    }

    /// True if a file opened with these flags is empty, and open for writing.
    pub const fn makes_content(self) -> bool {
        let exclusive = OpenFlags::CREATE.union(OpenFlags::EXCLUSIVE);
        self.writable() && (self.contains(exclusive) || self.contains(OpenFlags::TRUNCATE))
    }

    /// True if the descriptor may write.
    pub const fn writable(self) -> bool {
        self.names_writing() && !self.intersects(OpenFlags::WITHOUT_CONTENT)
    }
}

bitflags! {
    /// Variants of rename; the values of Linux's `RENAME_` flags.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct RenameFlags: u32 {
        /// Fail with EEXIST when the target exists.
        const NO_REPLACE = libc::RENAME_NOREPLACE;
        /// Swap the two names atomically; both must exist.
        const EXCHANGE = libc::RENAME_EXCHANGE;
    }
}

bitflags! {
    /// Modes of fallocate; the values of Linux's `FALLOC_FL_` flags.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct AllocateFlags: u32 {
        /// The size stays as it is.
        const KEEP_SIZE = libc::FALLOC_FL_KEEP_SIZE as u32;
        /// Give the range's pages back; it reads as zeroes. Needs KEEP_SIZE.
        const PUNCH_HOLE = libc::FALLOC_FL_PUNCH_HOLE as u32;
        /// The range reads as zeroes and stays allocated.
        const ZERO_RANGE = libc::FALLOC_FL_ZERO_RANGE as u32;
    }
}

bitflags! {
    /// The rights that a caller asks for; the values of Linux's `R_OK`, `W_OK` and `X_OK`. None:
    /// does the inode exist?
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Access: u32 {
        /// Read its content, or the names in a directory.
        const READ = libc::R_OK as u32;
        /// Write its content, or add and remove names in a directory.
        const WRITE = libc::W_OK as u32;
        /// Execute it, or look up names in a directory.
        const EXECUTE = libc::X_OK as u32;
    }
}

/// The user on whose behalf an operation runs: it owns the inodes that it makes, and permission
/// bits bind it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Credentials {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Box<[u32]>,
    /// Permission bits do not bind it (the capabilities of Linux's superuser, all or none).
    pub privileged: bool,
}

impl Credentials {
    /// A user; number 0 is privileged.
    pub fn user(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        Credentials {
            uid,
            gid,
            groups: groups.into(),
            privileged: uid == 0,
        }
    }

    /// The effective user and group of this process, privileged: a process that can open a volume's
    /// device can do anything with it.
    pub fn process() -> Credentials {
        // SAFETY: neither call has preconditions or fails.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        Credentials {
            privileged: true,
            ..Credentials::user(uid, gid, &[])
        }
    }

    /// True if the credentials are this user with this group.
    pub fn is(&self, uid: u32, gid: u32) -> bool {
        self.uid == uid && self.gid == gid
    }
}

/// A path, its starting directory, and the credentials that follow it.
#[derive(Clone, Copy, Debug)]
pub struct At<'p> {
    pub(crate) caller: &'p Credentials,
    pub(crate) start: Option<BlobId>,
    pub(crate) path: Option<&'p [u8]>,
    pub(crate) links_below: &'p [u8],
}

impl<'p> At<'p> {
    /// A path from the root, with or without a leading slash.
    pub fn root(caller: &'p Credentials, path: &'p [u8]) -> At<'p> {
        At {
            caller,
            start: None,
            path: Some(path),
            links_below: &[],
        }
    }

    /// A path from a directory; from the root if it begins with a slash.
    pub fn inside(caller: &'p Credentials, directory: BlobId, path: &'p [u8]) -> At<'p> {
        At {
            caller,
            start: Some(directory),
            path: Some(path),
            links_below: &[],
        }
    }

    /// Where the caller sees the root (`/adit`): an absolute target of a symbolic link on the way
    /// leads into the volume if it lies below, and is EXDEV if not; `..` from the root is EXDEV,
    /// too. Empty, as it is at first: every absolute target begins at the root, and `..` from the
    /// root is the root.
    pub fn links_below(self, links_below: &'p [u8]) -> At<'p> {
        At {
            links_below,
            ..self
        }
    }

    /// The credentials that follow the path.
    pub fn caller(self) -> &'p Credentials {
        self.caller
    }

    /// The directory in which a relative path begins, or, without a path, the inode itself.
    pub fn start(self) -> Option<BlobId> {
        self.start
    }

    /// The path; none for an inode by its id.
    pub fn path(self) -> Option<&'p [u8]> {
        self.path
    }

    /// The path where the caller sees the root, from [`At::links_below`].
    pub fn below(self) -> &'p [u8] {
        self.links_below
    }

    /// An inode by its id, with or without a name.
    pub fn inode(caller: &'p Credentials, id: BlobId) -> At<'p> {
        At {
            caller,
            start: Some(id),
            path: None,
            links_below: &[],
        }
    }
}

/// The treatment of a symbolic link that is the last component of a path. (Links before it are
/// always followed, and so is one with a trailing slash.)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follow {
    /// Follow it.
    Yes,
    /// Use the link itself.
    No,
}

/// An operation of `flock`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FlockOperation {
    /// Take the lock together with other sharers.
    Shared {
        /// Wait for it; else EAGAIN.
        wait: bool,
    },
    /// Take the lock alone.
    Exclusive {
        /// Wait for it; else EAGAIN.
        wait: bool,
    },
    /// Give it back.
    Unlock,
}

/// The mode of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockMode {
    /// Several owners may hold it.
    Shared,
    /// One owner holds it.
    Exclusive,
}

/// The owner of a lock of a byte range. Different owners exclude each other, of either kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LockOwner {
    /// The descriptor (`F_OFD_SETLK`): closing it releases the lock.
    Descriptor,
    /// A process (`F_SETLK`), or another owner to which the caller gives an id.
    Posix {
        /// Tells owners apart.
        id: u64,
        /// Returned by a test for a conflicting lock, and not used otherwise.
        pid: i32,
    },
}

/// A lock of a range of bytes, as fcntl(2) has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RangeLock {
    /// Its owner.
    pub owner: LockOwner,
    /// Its mode.
    pub mode: LockMode,
    /// First byte; it may lie behind the end of the file.
    pub offset: u64,
    /// Bytes; 0: to the end of the file, also when it grows.
    pub len_bytes: u64,
}

impl RangeLock {
    /// A lock of `len_bytes` bytes from `offset` on.
    pub const fn new(owner: LockOwner, mode: LockMode, offset: u64, len_bytes: u64) -> RangeLock {
        RangeLock {
            owner,
            mode,
            offset,
            len_bytes,
        }
    }
}

/// The kind of an inode.
pub use adit_store::format::BlobKind as FileKind;

/// Attributes of an inode, as `struct stat` has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stat {
    /// Inode number: the slot address. Reused after a deletion, then with another generation.
    pub inode: u64,
    /// Distinguishes inodes that had the same number in succession.
    pub generation: u32,
    /// Its kind.
    pub kind: FileKind,
    /// Type and permissions as in `st_mode`.
    pub mode: u32,
    /// Names of the inode; for a directory 2 and one for each subdirectory.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u64,
    /// Bytes.
    pub size_bytes: u64,
    /// Allocated bytes, map pages included (`st_blocks` is this / 512).
    pub allocated_bytes: u64,
    /// Preferred IO size.
    pub io_bytes: u32,
    /// Last access; see [`AccessTimes`].
    pub accessed: Timestamp,
    /// Last change of the content.
    pub modified: Timestamp,
    /// Last change of the attributes.
    pub changed: Timestamp,
    /// Creation.
    pub created: Timestamp,
}

/// Space of the volume, as `struct statvfs` has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct StatFs {
    /// Allocation unit.
    pub block_bytes: u32,
    /// Bytes that files can use in all.
    pub total_bytes: u64,
    /// Bytes that nothing uses, nor is promised to cached writes.
    pub free_bytes: u64,
    /// Bytes that a new file can take: free bytes, less its metadata. Zero once the volume has
    /// failed.
    pub available_bytes: u64,
    /// Inodes in use (the number of inodes is not limited).
    pub inodes: u64,
    /// Inodes that would still fit.
    pub free_inodes: u64,
    /// Longest name.
    pub name_bytes_max: u32,
    /// Identity of the volume.
    pub volume_id: [u8; 16],
    /// Opened read-only, or fell back to that after an error.
    pub read_only: bool,
}

impl StatFs {
    /// Bytes that can still be written into a new file: zero if the volume is read-only.
    pub fn writable_bytes(&self) -> u64 {
        if self.read_only {
            0
        } else {
            self.available_bytes
        }
    }
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DirEntry {
    /// Inode number.
    pub inode: u64,
    /// Its kind.
    pub kind: FileKind,
    /// Pass this to go on behind this entry. Stable across insertions and deletions.
    pub cookie: u64,
    /// Name, 1 to 255 bytes, without `/` and NUL.
    pub name: Box<[u8]>,
}

/// A new time for `set_times`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// Leave it.
    Omit,
    /// The current time.
    Now,
    /// This one.
    To(Timestamp),
}

/// When reading changes an inode's time of access.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AccessTimes {
    /// Never.
    #[default]
    Never,
    /// When it isn't later than the last change, or is a day old: the rule of Linux's `relatime`.
    Relative,
}

/// Most symbolic links followed on the way along one path.
pub const LINKS_FOLLOWED_MAX: u32 = 40;
/// Most bytes of the targets of these together: the walk along a path holds others up.
pub const FOLLOWED_BYTES_MAX: usize = 2 * TARGET_BYTES_MAX;
/// Longest target of a symbolic link.
pub const TARGET_BYTES_MAX: usize = PATH_BYTES_MAX;
/// Largest file: 16 TiB less 4 KiB.
pub const FILE_BYTES_MAX: u64 = adit_store::BLOB_BYTES_MAX;
/// Longest name of a directory entry.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest path, as `PATH_MAX` without the NUL.
pub const PATH_BYTES_MAX: usize = 4095;
/// Most names of one inode.
pub const LINKS_MAX: u32 = 65_000;
