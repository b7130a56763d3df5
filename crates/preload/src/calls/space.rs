//! How much there is, and how much is left.

use crate::files::descriptors::{self, Open};
use crate::files::path::{self, Location, Spot};
use crate::runtime::answer::{Answer, ToC, errno};
use crate::runtime::inside;
use crate::volume::volume;
use adit::{FileKind, StatFs};
use adit_fs::Follow;
use adit_interposed::interposed;
use libc::{c_char, c_int, c_long, statfs as StatFsC, statvfs as StatVfsC};

use super::{of_descriptor, of_path};

of_path! {
    statfs | statfs64: (buffer: *mut StatFsC) -> c_int = {space_at(fill)};
    statvfs | statvfs64: (buffer: *mut StatVfsC) -> c_int = {space_at(fill_posix)};
}
of_descriptor! {
    fstatfs | fstatfs64: (buffer: *mut StatFsC) -> c_int = {space_of(fill)};
    fstatvfs | fstatvfs64: (buffer: *mut StatVfsC) -> c_int = {space_of(fill_posix)};
}

/// "ADIT"
const MAGIC: i64 = 0x5449_4441;

fn fill(space: &StatFs, buffer: *mut StatFsC) {
    // SAFETY: all zeroes are a value.
    let mut c: StatFsC = unsafe { std::mem::zeroed() };
    let block = u64::from(space.block_bytes);
    c.f_type = MAGIC;
    c.f_bsize = space.block_bytes as _;
    c.f_frsize = space.block_bytes as _;
    c.f_blocks = space.total_bytes / block;
    c.f_bfree = space.free_bytes / block;
    c.f_bavail = space.writable_bytes() / block;
    c.f_files = space.inodes + space.free_inodes;
    c.f_ffree = space.free_inodes;
    c.f_namelen = space.name_bytes_max as _;
    // SAFETY: the program's buffer.
    unsafe { buffer.write(c) };
}

fn fill_posix(space: &StatFs, buffer: *mut StatVfsC) {
    // SAFETY: all zeroes are a value.
    let mut c: StatVfsC = unsafe { std::mem::zeroed() };
    let block = u64::from(space.block_bytes);
    c.f_bsize = block;
    c.f_frsize = block;
    c.f_blocks = space.total_bytes / block;
    c.f_bfree = space.free_bytes / block;
    c.f_bavail = space.writable_bytes() / block;
    c.f_files = space.inodes + space.free_inodes;
    c.f_ffree = space.free_inodes;
    c.f_favail = if space.read_only {
        0
    } else {
        space.free_inodes
    };
    c.f_namemax = u64::from(space.name_bytes_max);
    c.f_flag = if space.read_only { libc::ST_RDONLY } else { 0 };
    // SAFETY: the program's buffer.
    unsafe { buffer.write(c) };
}

/// The place must exist.
fn space_at<C>(spot: &Spot, fill: fn(&StatFs, *mut C), buffer: *mut C) -> Answer<()> {
    volume()?.stat_at(spot.at(), Follow::Yes).map_err(errno)?;
    give(fill, buffer)
}

fn space_of<C>(_open: &Open, fill: fn(&StatFs, *mut C), buffer: *mut C) -> Answer<()> {
    give(fill, buffer)
}

fn give<C>(fill: fn(&StatFs, *mut C), buffer: *mut C) -> Answer<()> {
    fill(&volume()?.statfs().map_err(errno)?, buffer);
    Ok(())
}

// ------------------------------------------------------------------------ pathconf

/// What the C library looks at a file for; None: it tells the rest without one.
fn limit(name: c_int, kind: FileKind) -> Option<c_long> {
    Some(match name {
        libc::_PC_LINK_MAX => LINKS_MAX,
        libc::_PC_NAME_MAX => NAME_BYTES_MAX,
        libc::_PC_CHOWN_RESTRICTED | libc::_PC_2_SYMLINKS => 1,
        libc::_PC_ASYNC_IO if kind == FileKind::File => 1,
        libc::_PC_ASYNC_IO => -1,
        libc::_PC_FILESIZEBITS => 64,
        libc::_PC_REC_MIN_XFER_SIZE | libc::_PC_REC_XFER_ALIGN | libc::_PC_ALLOC_SIZE_MIN => {
            BLOCK_BYTES
        }
        _ => return None,
    })
}

const LINKS_MAX: c_long = 65_000;
const NAME_BYTES_MAX: c_long = 255;
const BLOCK_BYTES: c_long = 4096;

#[interposed]
unsafe extern "C" fn pathconf(path: *const c_char, name: c_int) -> c_long {
    // SAFETY: the program vouches for its arguments, as to the C library.
    let found = match unsafe { path::find(libc::AT_FDCWD, path) } {
        Location::Volume(spot) if limit(name, FileKind::File).is_some() => inside::call(|| {
            let found = volume()?.stat_at(spot.at(), Follow::Yes);
            let kind = found.map_err(errno)?.kind;
            Ok(limit(name, kind).unwrap_or(-1))
        }),
        _ => return real(path, name),
    };
    found.to_c()
}

#[interposed]
unsafe extern "C" fn fpathconf(fd: c_int, name: c_int) -> c_long {
    let open = descriptors::get(fd);
    let limit = open.and_then(|open| limit(name, open.kind));
    limit.unwrap_or_else(|| real(fd, name))
}

#[interposed]
unsafe extern "C" fn sync() {
    if let Some(volume) = crate::volume::opened()
        && let Ok(Err(error)) = crate::runtime::inside::call(|| Ok(volume.sync()))
    {
        crate::runtime::message::say(format_args!("sync: {error}"));
    }
    real()
}
