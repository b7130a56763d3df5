//! How a file is opened: a builder in the manner of `std::fs::OpenOptions`.
//!
//! It only collects wishes; whether they fit together is judged by the file system (`EINVAL`).

use adit_fs::OpenFlags;

/// Options of [`Volume::open_file`](crate::Volume::open_file). Starts with nothing allowed; ask for
/// [`read`](Self::read), [`write`](Self::write) or [`append`](Self::append).
///
/// ```
/// # fn main() -> adit::Result<()> {
/// # let volume = adit::Volume::open("mem:64M")?;
/// use adit::OpenOptions;
/// let log = volume.open_file("/log", OpenOptions::new().append(true).create(true))?;
/// log.append(b"first entry")?;
/// log.sync_data()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    create: bool,
    create_new: bool,
    truncate: bool,
    direct: bool,
    sync: bool,
    dsync: bool,
    directory: bool,
    no_follow: bool,
    path_only: bool,
    keep_accessed: bool,
    mode: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// Nothing allowed yet; files that are created get mode 0644.
    pub const fn new() -> Self {
        OpenOptions {
            read: false,
            write: false,
            append: false,
            create: false,
            create_new: false,
            truncate: false,
            direct: false,
            sync: false,
            dsync: false,
            directory: false,
            no_follow: false,
            path_only: false,
            keep_accessed: false,
            mode: 0o644,
        }
    }

    /// Reading is allowed.
    pub fn read(&mut self, yes: bool) -> &mut Self {
        self.read = yes;
        self
    }

    /// Writing is allowed.
    pub fn write(&mut self, yes: bool) -> &mut Self {
        self.write = yes;
        self
    }

    /// Writing is allowed, and every write goes to the end of the file, whatever its offset
    /// (`O_APPEND`).
    pub fn append(&mut self, yes: bool) -> &mut Self {
        self.append = yes;
        self
    }

    /// Creates the file if it does not exist.
    pub fn create(&mut self, yes: bool) -> &mut Self {
        self.create = yes;
        self
    }

    /// Creates the file; `EEXIST` if it exists. Overrides [`create`](Self::create) and
    /// [`truncate`](Self::truncate).
    pub fn create_new(&mut self, yes: bool) -> &mut Self {
        self.create_new = yes;
        self
    }

    /// Truncates the file to zero bytes.
    pub fn truncate(&mut self, yes: bool) -> &mut Self {
        self.truncate = yes;
        self
    }

    /// Reads and writes bypass the cache (`O_DIRECT`), coherently with cached access to the same
    /// file. They need no copy if memory, offset and length are multiples of 4096. Smaller pieces
    /// bypass the cache too, except on volumes with data checksums, if they are whole blocks of the
    /// device: logical blocks for reads, physical blocks for writes (4096 bytes in an image). All
    /// other sizes work through the cache.
    pub fn direct(&mut self, yes: bool) -> &mut Self {
        self.direct = yes;
        self
    }

    /// Each write ends with an fsync of its own (`O_SYNC`).
    pub fn sync(&mut self, yes: bool) -> &mut Self {
        self.sync = yes;
        self
    }

    /// Each write ends with an fdatasync of its own (`O_DSYNC`).
    pub fn dsync(&mut self, yes: bool) -> &mut Self {
        self.dsync = yes;
        self
    }

    /// `ENOTDIR` unless it is a directory. A directory is opened for reading only, for syncs and
    /// locks; [`Volume::read_dir`](crate::Volume::read_dir) lists it.
    pub fn directory(&mut self, yes: bool) -> &mut Self {
        self.directory = yes;
        self
    }

    /// `ELOOP` if the last component of the path is a symbolic link (`O_NOFOLLOW`); with
    /// [`path_only`](Self::path_only), the link itself is opened.
    pub fn no_follow(&mut self, yes: bool) -> &mut Self {
        self.no_follow = yes;
        self
    }

    /// A handle that keeps an inode of any kind alive and reads its attributes; all other
    /// operations are `EBADF` (`O_PATH`). It only needs the right to search the directories of the
    /// path.
    pub fn path_only(&mut self, yes: bool) -> &mut Self {
        self.path_only = yes;
        self
    }

    /// Reading leaves the time of access unchanged (`O_NOATIME`); `EPERM` unless the user owns the
    /// file.
    pub fn keep_accessed(&mut self, yes: bool) -> &mut Self {
        self.keep_accessed = yes;
        self
    }

    /// Permission bits of a new file.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }

    pub(crate) fn flags(&self) -> OpenFlags {
        let mut flags = match (self.read, self.write || self.append) {
            (true, true) => OpenFlags::READ_WRITE,
            (false, true) => OpenFlags::WRITE_ONLY,
            (_, false) => OpenFlags::empty(),
        };
        flags.set(OpenFlags::APPEND, self.append);
        flags.set(OpenFlags::CREATE, self.create || self.create_new);
        flags.set(OpenFlags::EXCLUSIVE, self.create_new);
        flags.set(OpenFlags::TRUNCATE, self.truncate && !self.create_new);
        flags.set(OpenFlags::DIRECT, self.direct);
        flags.set(OpenFlags::SYNC, self.sync);
        flags.set(OpenFlags::DSYNC, self.dsync);
        flags.set(OpenFlags::DIRECTORY, self.directory);
        flags.set(OpenFlags::NOFOLLOW, self.no_follow);
        flags.set(OpenFlags::PATH, self.path_only);
        flags.set(OpenFlags::NOATIME, self.keep_accessed);
        flags
    }

    pub(crate) fn create_mode(&self) -> u32 {
        self.mode
    }
}
