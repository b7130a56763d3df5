//! Files of the host, by descriptor.
//!
//! A [`Node`] is found without following a symbolic link and without opening the inode, so a pipe
//! does not block. The kernel's name for a descriptor, `/proc/self/fd/N`, leads to exactly that
//! node, of any kind and also after a rename: it is read and changed by that name.

use adit::{Error, FileKind};
use rustix::fs::{AtFlags, CWD, Dev, Dir, FileType, FlockOperation, Mode, OFlags};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Something in a file system of the host.
pub(super) struct Node(File);

impl Node {
    /// An argument; symbolic links are followed.
    pub(super) fn named(path: &Path) -> io::Result<Node> {
        Node::open(CWD, path.as_os_str(), OFlags::PATH)
    }

    /// The inode of a name in a directory; a symbolic link itself.
    pub(super) fn child(&self, name: &OsStr) -> io::Result<Node> {
        Node::open(&self.0, name, OFlags::PATH | OFlags::NOFOLLOW)
    }

    /// A directory below this one; ENOTDIR if another inode is on the way, like a symbolic link.
    pub(super) fn descend(&self, below: &Path) -> io::Result<Node> {
        let directory = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY;
        let mut node = Node::open(&self.0, OsStr::new("."), directory)?;
        for name in below {
            node = Node::open(&node.0, name, directory)?;
        }
        Ok(node)
    }

    fn open(at: impl std::os::fd::AsFd, path: &OsStr, flags: OFlags) -> io::Result<Node> {
        let opened = rustix::fs::openat(at, path, flags | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Node(File::from(opened)))
    }

    /// Makes a directory, or finds it.
    pub(super) fn make_directory(&self, name: &OsStr) -> io::Result<Node> {
        // Private until its attributes are set.
        match rustix::fs::mkdirat(&self.0, name, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => self.descend(Path::new(name)),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a file, to be written.
    pub(super) fn make_file(&self, name: &OsStr) -> io::Result<Node> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(Node(File::from(opened)))
    }

    pub(super) fn make_symlink(&self, target: &Path, name: &OsStr) -> io::Result<Node> {
        rustix::fs::symlinkat(target, &self.0, name)?;
        self.made(name, FileKind::Symlink)
    }

    /// The new inode, unless another process has replaced it.
    fn made(&self, name: &OsStr, wanted: FileKind) -> io::Result<Node> {
        let node = self.child(name)?;
        (kind(&node.metadata()?) == wanted)
            .then_some(node)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))
    }

    pub(super) fn make_special(
        &self,
        name: &OsStr,
        kind: FileKind,
        device: u64,
    ) -> io::Result<Node> {
        let node_type = match kind {
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
            FileKind::CharDevice => FileType::CharacterDevice,
            FileKind::BlockDevice => FileType::BlockDevice,
            _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
        };
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(&self.0, name, node_type, mode, device as Dev)?;
        self.made(name, kind)
    }

    /// Gives a file in another directory a name in this one.
    pub(super) fn link(&self, name: &OsStr, there: &Node, existing: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::linkat(
            &there.0,
            existing,
            &self.0,
            name,
            AtFlags::empty(),
        )?)
    }

    pub(super) fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// Gives an inode of this directory another name there, over what has that.
    pub(super) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, from, &self.0, to)?)
    }

    pub(super) fn metadata(&self) -> io::Result<Metadata> {
        self.0.metadata()
    }

    /// Is it a pipe or socket that is in no directory, such as `/dev/stdin` and `<(…)` name?
    pub(super) fn is_nameless(&self) -> bool {
        // PIPEFS_MAGIC, SOCKFS_MAGIC
        let is_theirs = |magic| matches!(magic, 0x5049_5045 | 0x534f_434b);
        rustix::fs::fstatfs(&self.0).is_ok_and(|system| is_theirs(system.f_type))
    }

    /// The kernel's name for it.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    /// A file made by [`make_file`](Self::make_file).
    pub(super) fn file(&self) -> &File {
        &self.0
    }

    /// Locks a file that is open for more than its name. False: another process has locked it. A
    /// file system without locks locks nothing.
    pub(super) fn lock(&self) -> bool {
        let locked = rustix::fs::flock(&self.0, FlockOperation::NonBlockingLockExclusive);
        locked != Err(rustix::io::Errno::WOULDBLOCK)
    }

    /// Opens the node to lock it: on NFS only a file that may be written can be locked.
    pub(super) fn opened(&self) -> io::Result<Node> {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true);
        options.custom_flags(libc::O_NONBLOCK);
        let written = options.open(self.path());
        Ok(Node(written.or_else(|_| self.open_to_read())?))
    }

    /// Opens it for reading; the time of access stays if the file is the user's own or the user is
    /// root.
    pub(super) fn open_to_read(&self) -> io::Result<File> {
        let open = |flags| {
            let mut options = std::fs::OpenOptions::new();
            options.read(true).custom_flags(libc::O_NONBLOCK | flags);
            options.open(self.path())
        };
        open(libc::O_NOATIME).or_else(|_| open(0))
    }

    /// Names in a directory, sorted, without `.` and `..`; and what ended the reading.
    pub(super) fn names(&self) -> (Vec<OsString>, io::Result<()>) {
        let mut names = Vec::new();
        let read = || -> io::Result<()> {
            for entry in Dir::new(self.open_to_read()?)? {
                let name = entry?.file_name().to_bytes().to_vec();
                if !matches!(&name[..], b"." | b"..") {
                    names.push(OsString::from_vec(name));
                }
            }
            Ok(())
        };
        let ended = { read }();
        names.sort_unstable();
        (names, ended)
    }

    pub(super) fn read_link(&self) -> io::Result<PathBuf> {
        let target = rustix::fs::readlinkat(&self.0, "", Vec::new())?;
        Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
    }
}

pub(super) fn kind(metadata: &Metadata) -> FileKind {
    let kind = metadata.file_type();
    match () {
        () if kind.is_dir() => FileKind::Directory,
        () if kind.is_symlink() => FileKind::Symlink,
        () if kind.is_fifo() => FileKind::Fifo,
        () if kind.is_socket() => FileKind::Socket,
        () if kind.is_char_device() => FileKind::CharDevice,
        () if kind.is_block_device() => FileKind::BlockDevice,
        () => FileKind::File,
    }
}

/// The error of a call on the host.
pub(super) fn local(error: impl Into<std::io::Error>, verb: &str, path: &Path) -> Error {
    Error::from(error.into()).context(format_args!("{verb} {}", path.display()))
}
