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
    /// All but those of read and write.
    flags: OpenFlags,
    mode: u32,
}

/// The bit of `O_SYNC` that is not one of `O_DSYNC`.
const SYNC_BIT: OpenFlags = OpenFlags::SYNC.difference(OpenFlags::DSYNC);

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
            flags: OpenFlags::empty(),
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
        self.set(OpenFlags::APPEND, yes)
    }

    /// Creates the file if it does not exist.
    pub fn create(&mut self, yes: bool) -> &mut Self {
        self.set(OpenFlags::CREATE, yes)
    }

    /// Creates the file; `EEXIST` if it exists. Overrides [`create`](Self::create) and
    /// [`truncate`](Self::truncate).
    pub fn create_new(&mut self, yes: bool) -> &mut Self {
        self.set(OpenFlags::EXCLUSIVE, yes)
    }

    /// Truncates the file to zero bytes.
    pub fn truncate(&mut self, yes: bool) -> &mut Self {
        self.set(OpenFlags::TRUNCATE, yes)
    }

    /// Reads and writes bypass the cache (`O_DIRECT`), coherently with cached access to the same
    /// file. They need no copy if memory, offset and length are multiples of 4096. Smaller pieces
    /// bypass the cache too, except on volumes with data checksums, if they are whole blocks of the
    /// device: logical blocks for reads, physical blocks for writes (4096 bytes in an image). All
    /// other sizes work through the cache.
    pub fn direct(&mut self, yes: bool) -> &mut Self {
        self.set(OpenFlags::DIRECT, yes)
    }

    /// Each write ends with an fsync of its own (`O_SYNC`).
    pub fn sync(&mut self, yes: bool) -> &mut Self {
        self.set(SYNC_BIT, yes)
    }

    /// Each write ends with an fdatasync of its own (`O_DSYNC`).
    pub fn dsync(&mut self, yes: bool) -> &mut Self {
        self.set(OpenFlags::DSYNC, yes)
    }

    /// `ENOTDIR` unless it is a directory. A directory is opened for reading only, for syncs and
    /// locks; [`Volume::read_dir`](crate::Volume::read_dir) lists it.
    pub fn directory(&mut self, yes: bool) -> &mut Self {
        self.set(OpenFlags::DIRECTORY, yes)
    }

    /// `ELOOP` if the last component of the path is a symbolic link (`O_NOFOLLOW`); with
    /// [`path_only`](Self::path_only), the link itself is opened.
    pub fn no_follow(&mut self, yes: bool) -> &mut Self {
        self.set(OpenFlags::NOFOLLOW, yes)
    }

    /// A handle that keeps an inode of any kind alive and reads its attributes; all other
    /// operations are `EBADF` (`O_PATH`). It only needs the right to search the directories of the
    /// path.
    pub fn path_only(&mut self, yes: bool) -> &mut Self {
        self.set(OpenFlags::PATH, yes)
    }

    /// Reading leaves the time of access unchanged (`O_NOATIME`); `EPERM` unless the user owns the
    /// file.
    pub fn keep_accessed(&mut self, yes: bool) -> &mut Self {
        self.set(OpenFlags::NOATIME, yes)
    }

    /// Permission bits of a new file.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }

    fn set(&mut self, flag: OpenFlags, yes: bool) -> &mut Self {
        self.flags.set(flag, yes);
        self
    }

    pub(crate) fn flags(&self) -> OpenFlags {
        let access = match (
            self.read,
            self.write || self.flags.contains(OpenFlags::APPEND),
        ) {
            (true, true) => OpenFlags::READ_WRITE,
            (false, true) => OpenFlags::WRITE_ONLY,
            (_, false) => OpenFlags::empty(),
        };
        let mut flags = self.flags | access;
        flags.set(OpenFlags::DSYNC, flags.intersects(OpenFlags::SYNC));
        if flags.contains(OpenFlags::EXCLUSIVE) {
            flags.insert(OpenFlags::CREATE);
            flags.remove(OpenFlags::TRUNCATE);
        }
        flags
    }

    pub(crate) fn create_mode(&self) -> u32 {
        self.mode
    }
}

#[cfg(test)]
mod tests {
    use super::{OpenFlags, OpenOptions};

    /// `sync` alone was no synchronous opening: the absent `dsync` took the bit that both share.
    #[test]
    fn synchronous_writes_are_asked_for_in_every_combination() {
        for (sync, dsync) in [(true, false), (true, true), (false, true), (false, false)] {
            let mut options = OpenOptions::new();
            let flags = options.write(true).dsync(dsync).sync(sync).flags();
            assert_eq!(flags.contains(OpenFlags::SYNC), sync, "{flags:?}");
            assert_eq!(flags.contains(OpenFlags::DSYNC), sync || dsync, "{flags:?}");
        }
    }
}
