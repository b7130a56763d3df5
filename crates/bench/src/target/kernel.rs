//! The kernel's file system in a directory, by the fewest system calls there are.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::flow::by_io_uring;
use super::{Access, Flow, Name, Target, TargetFile};
use crate::measurement::errors::while_doing;
use crate::measurement::sample::Sample;

/// The buffer of a listing; the C library takes 32 KiB.
const LISTING_BYTES: usize = 32 << 10;

/// A directory; names are resolved relative to its descriptor.
pub(crate) struct KernelTarget {
    directory: OwnedFd,
    label: String,
}

impl KernelTarget {
    pub(crate) fn new(directory: &Path) -> io::Result<KernelTarget> {
        let what = || format!("open the directory {}", directory.display());
        let fd = rustix::fs::open(
            directory,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(|error| while_doing(what(), error))?;
        let label = file_system_name(&fd);
        Ok(KernelTarget {
            directory: fd,
            label,
        })
    }

    fn open_with(&self, name: &Name, access: Access, extra: OFlags) -> io::Result<KernelFile> {
        let mut flags = OFlags::RDWR | OFlags::CLOEXEC | extra;
        if access == Access::Direct {
            flags |= OFlags::DIRECT;
        }
        let fd = rustix::fs::openat(&self.directory, name.relative(), flags, Mode::from(0o644))
            .map_err(|errno| self.refusal(access, errno))?;
        Ok(KernelFile(fd))
    }

    /// A file system without direct IO (tmpfs before Linux 6.6, some overlays and network file
    /// systems) returns EINVAL. It cannot do the job then; through its cache it would be another
    /// job.
    fn refusal(&self, access: Access, errno: Errno) -> io::Error {
        match (access, errno) {
            (Access::Direct, Errno::INVAL) => io::Error::new(
                io::ErrorKind::Unsupported,
                format!("{} has no direct IO here", self.label),
            ),
            _ => errno.into(),
        }
    }
}

/// The name that `df -T` prints, for common file systems.
fn file_system_name(fd: &OwnedFd) -> String {
    let Ok(statfs) = rustix::fs::fstatfs(fd) else {
        return "kernel".to_owned();
    };
    let name = match statfs.f_type as u64 & 0xFFFF_FFFF {
        0xEF53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683E => "btrfs",
        0x0102_1994 => "tmpfs",
        0x794C_7630 => "overlayfs",
        0xF2F5_2010 => "f2fs",
        0x2FC1_2FC1 => "zfs",
        0x6969 => "nfs",
        0xCA45_1A4E => "bcachefs",
        _ => "kernel",
    };
    name.to_owned()
}

impl Target for KernelTarget {
    type File = KernelFile;

    fn label(&self) -> &str {
        &self.label
    }

    fn create(&self, name: &Name, access: Access) -> io::Result<KernelFile> {
        self.open_with(name, access, OFlags::CREATE | OFlags::TRUNC)
    }

    fn open(&self, name: &Name, access: Access) -> io::Result<KernelFile> {
        self.open_with(name, access, OFlags::empty())
    }

    fn stat(&self, name: &Name) -> io::Result<u64> {
        let stat = rustix::fs::statat(&self.directory, name.relative(), AtFlags::empty())?;
        Ok(stat.st_size as u64)
    }

    fn rename(&self, from: &Name, to: &Name) -> io::Result<()> {
        let at = &self.directory;
        Ok(rustix::fs::renameat(
            at,
            from.relative(),
            at,
            to.relative(),
        )?)
    }

    fn unlink(&self, name: &Name) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(
            &self.directory,
            name.relative(),
            AtFlags::empty(),
        )?)
    }

    fn create_folder(&self, name: &Name) -> io::Result<()> {
        let mode = Mode::from(0o755);
        Ok(rustix::fs::mkdirat(&self.directory, name.relative(), mode)?)
    }

    fn remove_folder(&self, name: &Name) -> io::Result<()> {
        let flags = AtFlags::REMOVEDIR;
        Ok(rustix::fs::unlinkat(
            &self.directory,
            name.relative(),
            flags,
        )?)
    }

    fn list(&self, folder: &Name) -> io::Result<u64> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.directory, folder.relative(), flags, Mode::empty())?;
        let mut buffer = vec![MaybeUninit::uninit(); LISTING_BYTES];
        let mut entries = rustix::fs::RawDir::new(&fd, &mut buffer);
        let mut names = 0;
        while let Some(entry) = entries.next() {
            let name = entry?;
            names += u64::from(!matches!(name.file_name().to_bytes(), b"." | b".."));
        }
        Ok(names)
    }

    fn available_bytes(&self) -> io::Result<u64> {
        let statvfs = rustix::fs::fstatvfs(&self.directory)?;
        Ok(statvfs.f_bavail.saturating_mul(statvfs.f_frsize))
    }

    fn sync_everything(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.directory)?)
    }

    fn flow(
        &self,
        files: &[KernelFile],
        flow: &Flow<'_>,
        place: &mut dyn FnMut(u64) -> (usize, u64),
    ) -> io::Result<Sample> {
        by_io_uring(files, flow, place)
    }
}

/// A descriptor. Appends go to its position, which only appends move.
pub(crate) struct KernelFile(OwnedFd);

impl AsRawFd for KernelFile {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl TargetFile for KernelFile {
    #[inline]
    fn read_at(&self, into: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        let wanted = into.len();
        let got = rustix::io::pread(&self.0, into, offset_bytes)?;
        whole(got, wanted)
    }

    #[inline]
    fn write_at(&self, from: &[u8], offset_bytes: u64) -> io::Result<()> {
        whole(rustix::io::pwrite(&self.0, from, offset_bytes)?, from.len())
    }

    #[inline]
    fn append(&self, from: &[u8]) -> io::Result<()> {
        whole(rustix::io::write(&self.0, from)?, from.len())
    }

    #[inline]
    fn sync_data(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.0)?)
    }

    #[inline]
    fn sync_all(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.0)?)
    }

    fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        Ok(rustix::fs::ftruncate(&self.0, len_bytes)?)
    }
}

/// A short transfer on a local file means that something is wrong with the benchmark's place.
#[inline]
pub(crate) fn whole(done_bytes: usize, wanted_bytes: usize) -> io::Result<()> {
    if done_bytes == wanted_bytes {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::UnexpectedEof,
        format!("only {done_bytes} of {wanted_bytes} bytes were transferred"),
    ))
}

#[cfg(test)]
mod tests {
    use super::KernelTarget;
    use crate::target::Access;
    use rustix::io::Errno;
    use std::io::ErrorKind;

    #[test]
    fn no_direct_io_is_something_it_cannot_do_and_other_errors_are_errors() {
        let kernel = KernelTarget::new(std::path::Path::new("/")).unwrap();
        let kind = |access, errno| kernel.refusal(access, errno).kind();
        assert_eq!(kind(Access::Direct, Errno::INVAL), ErrorKind::Unsupported);
        assert_eq!(kind(Access::Cached, Errno::INVAL), ErrorKind::InvalidInput);
        assert_eq!(kind(Access::Direct, Errno::NOENT), ErrorKind::NotFound);
    }
}
