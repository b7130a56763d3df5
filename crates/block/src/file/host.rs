//! Facts from the host about an image file or a block device: kind, size, alignment, write cache.
//! It only reads, and makes no decisions about IO.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::{Identity, IdentityKind};

use adit_base::{Errno, Error, PAGE_BYTES, Result, SECTOR_BYTES, from_rustix};
use rustix::io::ReadWriteFlags;

/// Facts about an open image or block device.
#[derive(Clone, Debug)]
pub(super) struct HostFacts {
    /// A block device, not a regular file.
    pub(super) block_device: bool,
    /// Whole logical blocks only.
    pub(super) size_bytes: u64,
    /// 512 or 4096.
    pub(super) logical_block_bytes: u32,
    /// At least the logical block.
    pub(super) physical_block_bytes: u32,
    /// Opened with O_DIRECT.
    pub(super) direct: bool,
    /// With O_DIRECT, memory must be aligned to this.
    pub(super) memory_align: usize,
    /// Completed writes need a flush to be durable.
    pub(super) volatile_cache: bool,
    /// A write with RWF_DSYNC is durable.
    pub(super) dsync: bool,
    /// A durable write is cheaper than a write and a flush.
    pub(super) fua: bool,
    pub(super) discard: bool,
    pub(super) write_zeroes: bool,
    pub(super) identity: Identity,
    /// The owner's user id.
    pub(super) owner: u32,
}

impl HostFacts {
    pub(super) fn gather(file: &File, direct: bool) -> Result<HostFacts> {
        let metadata = file.metadata()?;
        let kind = metadata.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(Error::with(
                Errno::INVAL,
                "use it as a device (neither file nor disk)",
            ));
        }
        let block_device = kind.is_block_device();
        let (memory_align, offset_align) = direct_alignment(file).unwrap_or((0, 0));
        let logical_block_bytes = match (block_device, direct) {
            (true, _) => rustix::fs::ioctl_blksszget(file).map_err(from_rustix)?,
            (false, true) if offset_align > 0 => offset_align.max(SECTOR_BYTES as u32),
            // Without an answer from the kernel, assume values that are safe everywhere.
            (false, true) => PAGE_BYTES as u32,
            (false, false) => SECTOR_BYTES as u32,
        };
        if logical_block_bytes != 512 && logical_block_bytes != 4096 {
            let what = format!("use logical blocks of {logical_block_bytes} bytes");
            return Err(Error::with(Errno::INVAL, what));
        }
        let physical_block_bytes = if block_device {
            rustix::fs::ioctl_blkpbszget(file).map_err(from_rustix)?
        } else {
            // The device below is not known.
            PAGE_BYTES as u32
        };
        let queue = |name: &str| queue_attribute(metadata.rdev(), name);
        let supported = |name: &str| queue(name).is_some_and(|value| value != "0");
        let write_through =
            block_device && queue("write_cache").as_deref() == Some("write through");
        // Without O_DIRECT the host's page cache is a volatile cache too.
        let volatile_cache = !(write_through && direct);
        let dsync =
            accepts_dsync(file) && (block_device || file_system(file).is_ok_and(keeps_dsync));
        Ok(HostFacts {
            block_device,
            size_bytes: size_bytes(file)? / u64::from(logical_block_bytes)
                * u64::from(logical_block_bytes),
            logical_block_bytes,
            physical_block_bytes: physical_block_bytes.max(logical_block_bytes),
            direct,
            memory_align: if memory_align == 0 {
                PAGE_BYTES
            } else {
                memory_align as usize
            },
            volatile_cache,
            dsync,
            fua: !volatile_cache || (dsync && (!block_device || supported("fua"))),
            discard: !block_device || supported("discard_max_bytes"),
            write_zeroes: !block_device || supported("write_zeroes_max_bytes"),
            identity: identity(file, &metadata),
            owner: metadata.uid(),
        })
    }
}

/// The size of a file or block device.
pub(super) fn size_bytes(mut file: &File) -> Result<u64> {
    Ok(file.seek(SeekFrom::End(0))?)
}

/// Whether O_DIRECT on this file is content with pages. Some file systems want larger blocks, and
/// would refuse every request.
pub(super) fn takes_direct_pages(file: &File) -> bool {
    direct_alignment(file).is_none_or(|(memory, offset)| memory.max(offset) <= PAGE_BYTES as u32)
}

/// The path from the root; None: the kernel made it up for a descriptor, which may be closed.
pub(super) fn lasting_path(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let is_of_descriptor = path.starts_with("/proc") || path.starts_with("/dev/fd");
    (!is_of_descriptor).then_some(path)
}

/// True if the path leads to another file, or to none; false if the host doesn't tell.
pub fn leads_elsewhere(path: &Path, file: impl AsFd) -> bool {
    let Ok(ours) = rustix::fs::fstat(file) else {
        return false;
    };
    match rustix::fs::stat(path).map_err(from_rustix) {
        Ok(found) => (found.st_dev, found.st_ino) != (ours.st_dev, ours.st_ino),
        Err(errno) => matches!(errno, Errno::NOENT | Errno::NOTDIR),
    }
}

/// The alignment of (memory, offsets) for O_DIRECT, where the kernel reports it.
fn direct_alignment(file: &File) -> Option<(u32, u32)> {
    // SAFETY: all-zero bytes are a valid statx.
    let mut facts: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, the path is an empty C string, `facts` is ours to fill.
    let failed = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            &mut facts,
        )
    };
    let answered = failed == 0 && facts.stx_mask & libc::STATX_DIOALIGN != 0;
    let usable = answered && facts.stx_dio_mem_align > 0 && facts.stx_dio_offset_align > 0;
    usable.then_some((facts.stx_dio_mem_align, facts.stx_dio_offset_align))
}

/// The kind of the file system that a file is in: its magic number (statfs(2)).
fn file_system(file: &File) -> Result<u32> {
    let facts = rustix::fs::fstatfs(file).map_err(from_rustix)?;
    Ok(facts.f_type as u32)
}

/// Whether a write with RWF_DSYNC is durable on this kind of file system, with and without
/// O_DIRECT. Of an unknown kind: no. Above FUSE (virtiofs too) the kernel passes the flag on, and
/// most servers ignore it; direct writes above 9p and SMB ignore it, and so did ZFS up to 0.7.
/// Above an overlay it depends on the file system beneath. A flush reaches all of them.
fn keeps_dsync(file_system: u32) -> bool {
    const EXT4: u32 = 0xef53;
    const XFS: u32 = 0x5846_5342;
    const BTRFS: u32 = 0x9123_683e;
    const F2FS: u32 = 0xf2f5_2010;
    const TMPFS: u32 = 0x0102_1994;
    const NFS: u32 = 0x6969;
    [EXT4, XFS, BTRFS, F2FS, TMPFS, NFS].contains(&file_system)
}

/// Whether the kernel has pwritev2. Writes nothing.
fn accepts_dsync(file: &File) -> bool {
    let empty = rustix::io::pwritev2(file.as_fd(), &[], 0, ReadWriteFlags::DSYNC);
    match empty.map_err(from_rustix) {
        // EBADF: open for reading only; nothing will be written.
        Ok(_) | Err(Errno::BADF) => true,
        Err(_) => false,
    }
}

/// `LOOP_GET_STATUS64`.
const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
/// `BLKGETDISKSEQ`, since Linux 5.15.
const BLKGETDISKSEQ: libc::Ioctl = 0x8008_1280u32 as libc::Ioctl;

/// The identity of an open file's storage. A loop device has that of the file behind it, so that an
/// image has one identity on every way to it.
fn identity(file: &File, metadata: &std::fs::Metadata) -> Identity {
    if metadata.file_type().is_file() {
        return Identity {
            kind: IdentityKind::File,
            device: metadata.dev(),
            number: metadata.ino(),
            offset_bytes: 0,
        };
    }
    let rdev = metadata.rdev();
    let partition = block_node(rdev).join("partition").exists();
    if !partition && let Some(backing) = loop_backing(file) {
        return backing;
    }
    let mut sequence = 0u64;
    // SAFETY: the request fills in one number, which is ours.
    let failed = unsafe { libc::ioctl(file.as_raw_fd(), BLKGETDISKSEQ, &mut sequence) };
    Identity {
        kind: IdentityKind::Block,
        device: rdev,
        number: if failed == 0 { sequence } else { 0 },
        offset_bytes: 0,
    }
}

/// The file behind a loop device; None: it is none.
fn loop_backing(file: &File) -> Option<Identity> {
    // struct loop_info64 has 232 bytes: lo_device, lo_inode, lo_rdevice, lo_offset, lo_sizelimit, …
    let mut info = [0u64; 29];
    // SAFETY: the request fills in at most the 232 bytes of the struct, which are ours.
    let failed = unsafe { libc::ioctl(file.as_raw_fd(), LOOP_GET_STATUS64, info.as_mut_ptr()) };
    // The kernel's encoding of a device number is glibc's below 2^32.
    (failed == 0).then_some(Identity {
        kind: IdentityKind::File,
        device: info[0],
        number: info[1],
        offset_bytes: info[3],
    })
}

/// An attribute of a block device's queue; a partition's is its disk's.
fn queue_attribute(device: u64, name: &str) -> Option<String> {
    let node = block_node(device);
    ["queue", "../queue"].iter().find_map(|queue| {
        let value = std::fs::read_to_string(node.join(queue).join(name)).ok()?;
        Some(value.trim().to_owned())
    })
}

/// Where the kernel describes a block device.
fn block_node(device: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    format!("/sys/dev/block/{major}:{minor}").into()
}

#[cfg(test)]
mod tests {
    use super::keeps_dsync;

    /// A volume on a FUSE mount with `direct_io` (virtiofs with `cache=never` is one) acknowledged
    /// syncs whose journal pages the FUSE server had not been asked to sync.
    #[test]
    fn only_file_systems_that_are_known_to_keep_dsync_are_trusted_with_it() {
        for magic in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x6969] {
            assert!(keeps_dsync(magic), "{magic:#x}");
        }
        // FUSE, 9p, CIFS, SMB2, an overlay, ZFS, unknown.
        for magic in [
            0x6573_5546,
            0x0102_1997,
            0xff53_4d42,
            0xfe53_4d42,
            0x794c_7630,
            0x2fc1_2fc1,
            0,
        ] {
            assert!(!keeps_dsync(magic), "{magic:#x}");
        }
    }
}
