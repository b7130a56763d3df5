//! What a volume does with names. Paths begin at the root, with or without a leading `/`.
//!
//! Errors carry the path in words; which errno means what is as in Linux's manual pages.

use crate::directory::ReadDir;
use crate::file::File;
use crate::metadata::{Metadata, set_time};
use crate::open_options::OpenOptions;
use crate::opened::StartedCall;
use crate::pending::Pending;
use crate::volume::Volume;
use adit_base::{Errno, Error, Result};
use adit_fs::{Access, At, FileKind, Follow, OpenFlags, RenameFlags, SetTime};
use adit_server::perform::PerformVolume;
use adit_store::XattrMode;
use adit_wire::calls::{
    Link, MakeDirectory, MakeNode, MakeSymlink, Place, ReadLink, RemoveDirectory, Rename, Stat,
    Truncate, Unlink,
};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The path's bytes.
pub(crate) fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// Puts into words what failed.
#[cold]
pub(crate) fn naming(error: Error, verb: &str, path: &Path) -> Error {
    error.context(format_args!("{verb} {}", path.display()))
}

#[cold]
fn naming_two(error: Error, verb: &str, from: &Path, to: &Path) -> Error {
    error.context(format_args!(
        "{verb} {} to {}",
        from.display(),
        to.display()
    ))
}

impl Volume {
    /// Does a call about a path. An error says what was to be done with which path.
    #[inline]
    pub(crate) fn on<'a, C>(&'a self, verb: &str, path: &Path, call: C) -> Result<C::Reply>
    where
        C: PerformVolume<'a> + Send,
    {
        self.opened
            .call(&self.who, call)
            .map_err(|error| naming(error, verb, path))
    }

    fn stat(&self, path: &Path, follow: Follow) -> Result<Metadata> {
        let stat = self.opened.stat(&self.who, place(path), follow);
        Ok(Metadata::new(
            stat.map_err(|error| naming(error, "stat", path))?,
        ))
    }
}

/// A path from the root.
pub(crate) fn place(path: &Path) -> Place<'_> {
    Place::root(bytes(path))
}

/// Attributes of what a path names, without blocking.
struct StartedStat(PathBuf);

impl StartedCall for StartedStat {
    type Reply = adit_fs::Stat;

    fn call(&self) -> impl PerformVolume<'_, Reply = Self::Reply> + Send {
        Stat {
            place: place(&self.0),
            follow: Follow::Yes,
        }
    }
}

/// Removing a name without blocking.
struct StartedUnlink(PathBuf);

impl StartedCall for StartedUnlink {
    type Reply = ();

    fn call(&self) -> impl PerformVolume<'_, Reply = ()> + Send {
        let place = place(&self.0);
        Unlink { place }
    }
}

/// Renaming without blocking.
struct StartedRename(PathBuf, PathBuf);

impl StartedCall for StartedRename {
    type Reply = ();

    fn call(&self) -> impl PerformVolume<'_, Reply = ()> + Send {
        Rename {
            from: place(&self.0),
            to: place(&self.1),
            flags: RenameFlags::empty(),
        }
    }
}

/// Files.
impl Volume {
    /// Opens a file, or a directory for reading.
    pub fn open_file(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File> {
        let (flags, mode) = (options.flags(), options.create_mode());
        self.open_path("open", path.as_ref(), flags, mode)
    }

    fn open_path(&self, verb: &str, path: &Path, flags: OpenFlags, mode: u32) -> Result<File> {
        let open = self.opened.open_file(&self.who, place(path), flags, mode);
        let open = open.map_err(|error| naming(error, verb, path))?;
        Ok(File::new(self.opened.clone(), open))
    }

    /// Opens what a path of the file system names.
    #[cfg(feature = "internal")]
    pub fn open_at(&self, at: At<'_>, flags: OpenFlags, mode: u32) -> Result<File> {
        let open = self.opened.open_file(at.caller(), at.into(), flags, mode)?;
        Ok(File::new(self.opened.clone(), open))
    }

    /// As [`open_file`](Self::open_file), without blocking.
    pub fn open_file_async(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Pending<File> {
        let (flags, mode) = (options.flags(), options.create_mode());
        let (opened, path) = (self.opened.clone(), path.as_ref().to_owned());
        let bytes = bytes(&path).to_vec();
        let then = move |open: Result<_>| match open {
            Ok(open) => Ok(File::new(opened, open)),
            Err(error) => Err(naming(error, "open", &path)),
        };
        (self.opened).start_open(self.who.clone(), bytes, (flags, mode), then)
    }

    /// Makes a small file durably: opens it, writes its content, and syncs as
    /// [`sync_all`](File::sync_all), so that content and name survive a power cut. The options say
    /// [`create_new`](OpenOptions::create_new) or [`truncate`](OpenOptions::truncate), and write
    /// access; else `EINVAL`.
    ///
    /// It is one operation, and up to 1 MiB one message to a server, but not atomic. After an error
    /// of the write or the sync the file is there: empty after `ENOSPC`, with any part of its
    /// content after `EIO`. After a power cut before the return it is absent, or has any part of
    /// its content. To replace a file atomically, make another one and rename it.
    ///
    /// ```
    /// # fn main() -> adit::Result<()> {
    /// # let volume = adit::Volume::open("mem:64M")?;
    /// use adit::OpenOptions;
    /// let mut new = OpenOptions::new();
    /// new.write(true).create_new(true);
    /// volume.create_and_sync("/CURRENT.new", &new, "MANIFEST-000001\n")?;
    /// volume.rename("/CURRENT.new", "/CURRENT")?;
    /// # Ok(()) }
    /// ```
    pub fn create_and_sync(
        &self,
        path: impl AsRef<Path>,
        options: &OpenOptions,
        content: impl AsRef<[u8]>,
    ) -> Result<File> {
        let (path, content) = (path.as_ref(), content.as_ref());
        let (flags, mode) = (options.flags(), options.create_mode());
        let created = self
            .opened
            .create_and_sync(&self.who, place(path), flags, mode, content);
        let created = created.map_err(|error| naming(error, "create", path))?;
        Ok(File::new(self.opened.clone(), created))
    }

    /// The whole content of a file.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let file = self.open_file(path, OpenOptions::new().read(true))?;
        let mut content = Vec::new();
        loop {
            let start = content.len();
            let more = file.len()?.saturating_sub(start as u64).clamp(1, 1 << 20) as usize;
            content.resize(start + more, 0);
            let got = file
                .read_at(&mut content[start..], start as u64)
                .map_err(|error| naming(error, "read", path))?;
            content.truncate(start + got);
            if got == 0 {
                return Ok(content);
            }
        }
    }

    /// Creates a file with this content, or replaces the content of an existing one. Not atomic; to
    /// replace a file atomically, write another one, sync it and rename it.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        self.open_file(path, &options)?
            .write_at(content.as_ref(), 0)
            .map_err(|error| naming(error, "write", path))
    }

    /// Sets the size of a file.
    pub fn truncate(&self, path: impl AsRef<Path>, size_bytes: u64) -> Result<()> {
        let path = path.as_ref();
        let place = place(path);
        self.on("truncate", path, Truncate { place, size_bytes })
    }

    /// Attributes of the target of the path.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.stat(path.as_ref(), Follow::Yes)
    }

    /// As [`metadata`](Self::metadata), without blocking.
    pub fn metadata_async(&self, path: impl AsRef<Path>) -> Pending<Metadata> {
        let call = StartedStat(path.as_ref().to_owned());
        (self.opened).start_call(self.who.clone(), call, |StartedStat(path), stat| {
            stat.map(Metadata::new)
                .map_err(|error| naming(error, "stat", path))
        })
    }

    /// True if the path names something.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.errno(), Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes a name of a file. A file without names exists until it is closed.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let place = place(path);
        self.on("remove", path, Unlink { place })
    }

    /// As [`remove_file`](Self::remove_file), without blocking.
    pub fn remove_file_async(&self, path: impl AsRef<Path>) -> Pending<()> {
        let call = StartedUnlink(path.as_ref().to_owned());
        (self.opened).start_call(self.who.clone(), call, |StartedUnlink(path), done| {
            done.map_err(|error| naming(error, "remove", path))
        })
    }

    /// Renames, atomically; replaces an existing `to`.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, to, RenameFlags::empty())
    }

    /// As [`rename`](Self::rename), but fails if `to` exists, or swaps the two.
    pub fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        flags: RenameFlags,
    ) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let call = Rename {
            from: place(from),
            to: place(to),
            flags,
        };
        self.opened
            .call(&self.who, call)
            .map_err(|error| naming_two(error, "rename", from, to))
    }

    /// As [`rename`](Self::rename), without blocking.
    pub fn rename_async(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Pending<()> {
        let call = StartedRename(from.as_ref().to_owned(), to.as_ref().to_owned());
        (self.opened).start_call(self.who.clone(), call, |StartedRename(from, to), done| {
            done.map_err(|error| naming_two(error, "rename", from, to))
        })
    }

    /// Gives a file another name.
    pub fn hard_link(&self, existing: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let (existing, path) = (existing.as_ref(), path.as_ref());
        let call = Link {
            existing: place(existing),
            follow: Follow::No,
            place: place(path),
        };
        self.opened
            .call(&self.who, call)
            .map(drop)
            .map_err(|error| naming_two(error, "link", existing, path))
    }
}

/// Directories.
impl Volume {
    /// Makes a directory with mode 0755.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.create_dir_with(path, 0o755)
    }

    /// Makes a directory with these permission bits.
    pub fn create_dir_with(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        let path = path.as_ref();
        let place = place(path);
        self.on("make directory", path, MakeDirectory { place, mode })
            .map(drop)
    }

    /// Makes a directory and its missing parents; it is no error if all exist.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        match self.create_dir(path) {
            Ok(()) => Ok(()),
            Err(error) if error.errno() == Errno::EXIST => {
                if self.metadata(path)?.is_dir() {
                    return Ok(());
                }
                Err(error)
            }
            Err(error) if error.errno() == Errno::NOENT => {
                let Some(parent) = path.parent() else {
                    return Err(error);
                };
                self.create_dir_all(parent)?;
                match self.create_dir(path) {
                    // Somebody else was faster.
                    Err(error)
                        if error.errno() == Errno::EXIST && self.metadata(path)?.is_dir() =>
                    {
                        Ok(())
                    }
                    done => done,
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let place = place(path);
        self.on("remove directory", path, RemoveDirectory { place })
    }

    /// Removes a directory and everything in it, or a file, or a symbolic link itself. Not atomic.
    /// What can't be removed stays, with the directories above it, and all else goes; the first
    /// error.
    ///
    /// Before anything is removed: `EBUSY` for the root of the volume, `EINVAL` for a path that
    /// ends with `..`.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        // A slash at the end would follow a link.
        let path = path.as_ref().components().as_path();
        let metadata = self.symlink_metadata(path)?;
        if !metadata.is_dir() {
            return self.remove_file(path);
        }
        // The last step, removing the directory itself, would fail: nothing below it may be gone by
        // then.
        if metadata.inode() == self.symlink_metadata("/")?.inode() {
            let what = format!("remove {}: it is the root of the volume", path.display());
            return Err(Error::with(Errno::BUSY, what));
        }
        if path.ends_with("..") {
            let what = format!("remove {}: it ends with ..", path.display());
            return Err(Error::with(Errno::INVAL, what));
        }
        // An explicit stack: how deep a tree is, is decided by whoever made it.
        let mut pending = vec![(path.to_owned(), false)];
        let mut all = Ok(());
        while let Some((directory, emptied)) = pending.pop() {
            if emptied {
                let removed = self.remove_dir(&directory);
                all = all.and(removed);
                continue;
            }
            let emptied = self.remove_files_of(&directory, &mut pending);
            all = all.and(emptied);
        }
        all
    }

    /// Removes all in a directory but directories, which come to the stack, after itself.
    fn remove_files_of(&self, directory: &Path, pending: &mut Vec<(PathBuf, bool)>) -> Result<()> {
        pending.push((directory.to_owned(), true));
        let mut all = Ok(());
        for entry in self.read_dir(directory)? {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return all.and(Err(error)),
            };
            let child = directory.join(std::ffi::OsStr::from_bytes(&entry.name));
            match entry.kind {
                FileKind::Directory => pending.push((child, false)),
                _ => {
                    let removed = self.remove_file(&child);
                    all = all.and(removed);
                }
            }
        }
        all
    }

    /// The names in a directory, without `.` and `..`. An entry that exists during the whole
    /// reading comes exactly once; one that is created or removed meanwhile, at most once.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        self.read_dir_from(path, 0)
    }

    /// As [`read_dir`](Self::read_dir), continuing after the entry with this cookie.
    pub fn read_dir_from(&self, path: impl AsRef<Path>, cookie: u64) -> Result<ReadDir> {
        let directory = self.open_path("read directory", path.as_ref(), OpenFlags::DIRECTORY, 0)?;
        Ok(ReadDir::new(directory, cookie))
    }
}

/// Attributes.
impl Volume {
    /// Sets the permission bits.
    pub fn set_mode(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        self.set_mode_of(path, Follow::Yes, mode)
    }

    /// Sets owner and group; `None` leaves one unchanged.
    pub fn set_owner(
        &self,
        path: impl AsRef<Path>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        self.set_owner_of(path, Follow::Yes, uid, gid)
    }

    /// Sets the times of last access and last change; `None` leaves one unchanged.
    pub fn set_times(
        &self,
        path: impl AsRef<Path>,
        accessed: Option<SystemTime>,
        modified: Option<SystemTime>,
    ) -> Result<()> {
        self.set_times_of(path, Follow::Yes, set_time(accessed), set_time(modified))
    }
}

/// Symbolic links, special files and rights.
impl Volume {
    /// Attributes of the named inode: of a symbolic link itself.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.stat(path.as_ref(), Follow::No)
    }

    /// Makes a symbolic link at `path` to `target`.
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let target = bytes(target.as_ref());
        let path = path.as_ref();
        let place = place(path);
        self.on("make symbolic link", path, MakeSymlink { target, place })
            .map(drop)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let path = path.as_ref();
        let place = place(path);
        let target = self.on("read symbolic link", path, ReadLink { place })?;
        Ok(PathBuf::from(OsString::from_vec(target)))
    }

    /// Makes a pipe, socket or device node, or an empty file. `device` is its number as in
    /// `st_rdev`. Adit stores such nodes and their attributes; they can't be opened.
    pub fn make_node(
        &self,
        path: impl AsRef<Path>,
        kind: FileKind,
        mode: u32,
        device: u64,
    ) -> Result<()> {
        let path = path.as_ref();
        let call = MakeNode {
            place: place(path),
            kind,
            mode,
            device,
        };
        self.on("make node", path, call).map(drop)
    }

    /// Checks the rights of the user of this handle: `EACCES`, or `EROFS` for writing to a
    /// read-only volume.
    pub fn access(&self, path: impl AsRef<Path>, wanted: Access) -> Result<()> {
        let path = path.as_ref();
        (self.opened)
            .access(&self.who, place(path), Follow::Yes, wanted)
            .map_err(|error| naming(error, "access", path))
    }

    /// Sets owner and group of the named inode, of a symbolic link itself; `None` leaves one
    /// unchanged.
    pub fn set_symlink_owner(
        &self,
        path: impl AsRef<Path>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        self.set_owner_of(path, Follow::No, uid, gid)
    }

    /// Sets the times of the named inode, of a symbolic link itself.
    pub fn set_symlink_times(
        &self,
        path: impl AsRef<Path>,
        accessed: SetTime,
        modified: SetTime,
    ) -> Result<()> {
        self.set_times_of(path, Follow::No, accessed, modified)
    }

    /// Value of an extended attribute of the named inode (a symbolic link itself); `ENODATA` if it
    /// doesn't exist.
    pub fn xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.xattr_of(path, Follow::No, name)
    }

    /// Sets an extended attribute of the named inode (a symbolic link itself).
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.set_xattr_of(path, Follow::No, name, value, XattrMode::Any)
    }

    /// Removes an extended attribute of the named inode (a symbolic link itself); `ENODATA` if it
    /// doesn't exist.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<()> {
        self.remove_xattr_of(path, Follow::No, name)
    }

    /// Names of the extended attributes of the named inode (a symbolic link itself).
    pub fn xattr_names(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>> {
        self.xattr_names_of(path, Follow::No)
    }
}
