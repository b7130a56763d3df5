//! Memory lent to programs: a file of a tmpfs, or one without a name, that another process maps.
//!
//! Invariants:
//! 1. This process never maps it, and copies by system calls: a program that shortens it can't
//!    fault this process, which looks at a program's bytes in its own copy.
//! 2. No other process has the descriptor that this one uses, whose flags decide where it writes.

use adit_base::fork::Registered;
use adit_base::{Errno, Error, Result, from_rustix, numbers};
use rustix::fs::{
    FileType, MemfdFlags, Mode, OFlags, SealFlags, fchmod, fcntl_add_seals, fstat, fstatfs,
    memfd_create, open,
};
use rustix::io::{pread, pwrite, retry_on_intr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, LazyLock};

/// Each memory holds a reference, which counts them in this process.
static COUNT: LazyLock<Arc<()>> = LazyLock::new(Arc::default);

const MODE: Mode = Mode::from_raw_mode(0o600);

/// Number of memories that this process lends, each with a descriptor.
pub fn memories_lent() -> usize {
    Arc::strong_count(&COUNT) - 1
}

/// An error of the memory, not of the volume.
pub(crate) fn failed(errno: rustix::io::Errno, what: &'static str) -> Error {
    match errno {
        rustix::io::Errno::NOSPC => Error::with(Errno::NOMEM, what),
        _ => Error::with(from_rustix(errno), what),
    }
}

/// Makes a file for this user alone, whatever the umask; `EEXIST` if the name is taken.
pub(crate) fn make_file(name: &Path, what: &'static str) -> Result<Registered<OwnedFd>> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let make = || {
        let file = numbers::high(|| open(name, flags, MODE))?;
        fchmod(&file, MODE)?;
        Ok(file)
    };
    make().map_err(|errno| failed(errno, what))
}

/// Opens a file that a process of this user has left. `EPERM`: it can't be that.
pub(crate) fn open_left(
    name: &Path,
    access: OFlags,
    uid: u32,
    what: &'static str,
) -> Result<Registered<OwnedFd>> {
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = numbers::high(|| open(name, flags, Mode::empty()));
    let file = file.map_err(|errno| failed(errno, what))?;
    let found = fstat(&file).map_err(|errno| failed(errno, what))?;
    let is_file = FileType::from_raw_mode(found.st_mode).is_file();
    if !is_file || found.st_nlink != 1 || found.st_uid != uid || found.st_mode & 0o077 != 0 {
        return Err(Error::with(Errno::PERM, what));
    }
    Ok(file)
}

/// The memory.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) file: Registered<OwnedFd>,
    /// Its name in errors.
    what: &'static str,
    _counted: Arc<()>,
}

impl Lent {
    pub(crate) fn new(file: Registered<OwnedFd>, what: &'static str) -> Lent {
        let _counted = COUNT.clone();
        Lent {
            file,
            what,
            _counted,
        }
    }

    /// Without a name: it ends with the processes that have it.
    pub(crate) fn anonymous(what: &'static str) -> Result<Lent> {
        let make = || {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = numbers::high(|| memfd_create("adit-mapped", flags))?;
            // A reader could open its descriptor again for writing otherwise.
            fchmod(&file, MODE)?;
            fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::SEAL)?;
            Ok(file)
        };
        let file = make().map_err(|errno| failed(errno, what))?;
        Ok(Lent::new(file, what))
    }

    /// An error of its use.
    pub(crate) fn failed(&self, errno: rustix::io::Errno) -> Error {
        failed(errno, self.what)
    }

    /// A descriptor for a program, with its own flags: O_APPEND makes a write ignore its offset.
    pub(crate) fn descriptor(&self, writable: bool) -> Result<Registered<OwnedFd>> {
        let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let access = if writable {
            OFlags::RDWR
        } else {
            OFlags::RDONLY
        };
        let opened = numbers::high(|| open(own, access | OFlags::CLOEXEC, Mode::empty()));
        opened.map_err(|errno| self.failed(errno))
    }

    /// Reads bytes; returns how many there are.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < into.len() {
            let rest = &mut into[done..];
            let got = retry_on_intr(|| pread(&self.file, &mut *rest, offset + done as u64));
            match got.map_err(|errno| self.failed(errno))? {
                0 => break,
                got => done += got,
            }
        }
        Ok(done)
    }

    /// Writes all of it, by one system call where that takes all.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < data.len() {
            let rest = &data[done..];
            let put = retry_on_intr(|| pwrite(&self.file, rest, offset + done as u64));
            done += put.map_err(|errno| self.failed(errno))?;
        }
        Ok(())
    }

    /// True if less than a quarter of its tmpfs is free: other programs need memory, too.
    pub(crate) fn is_scarce(&self) -> Result<bool> {
        let tmpfs = fstatfs(&self.file).map_err(|errno| self.failed(errno))?;
        // One without a bound says that it has no blocks at all.
        Ok(tmpfs.f_blocks > 0 && tmpfs.f_bavail < tmpfs.f_blocks / 4)
    }
}
