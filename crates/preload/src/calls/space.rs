//! How much there is, and how much is left.

use crate::answer::{Answer, errno};
use crate::descriptors::Open;
use crate::path::Spot;
use crate::volume::volume;
use adit::StatFs;
use adit_interposed::interposed;
use libc::{c_int, statfs as StatFsC, statvfs as StatVfsC};

use super::{of_descriptor, of_path};

of_path! {
    statfs | statfs64: (buffer: *mut StatFsC) -> c_int = file_system;
    statvfs | statvfs64: (buffer: *mut StatVfsC) -> c_int = file_system_posix;
}
of_descriptor! {
    fstatfs | fstatfs64: (buffer: *mut StatFsC) -> c_int = file_system_open;
    fstatvfs | fstatvfs64: (buffer: *mut StatVfsC) -> c_int = file_system_posix_open;
}

/// "ADIT"
const MAGIC: i64 = 0x5449_4441;

fn space() -> Answer<StatFs> {
    volume()?.statfs().map_err(errno)
}

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
fn check(spot: &Spot) -> Answer<()> {
    let volume = volume()?;
    let found = volume.stat_at(spot.at(), adit_fs::Follow::Yes);
    found.map(drop).map_err(errno)
}

unsafe fn file_system(spot: &Spot, buffer: *mut StatFsC) -> Answer<()> {
    check(spot)?;
    space().map(|space| fill(&space, buffer))
}

unsafe fn file_system_posix(spot: &Spot, buffer: *mut StatVfsC) -> Answer<()> {
    check(spot)?;
    space().map(|space| fill_posix(&space, buffer))
}

unsafe fn file_system_open(_open: &Open, buffer: *mut StatFsC) -> Answer<()> {
    space().map(|space| fill(&space, buffer))
}

unsafe fn file_system_posix_open(_open: &Open, buffer: *mut StatVfsC) -> Answer<()> {
    space().map(|space| fill_posix(&space, buffer))
}

#[interposed]
unsafe extern "C" fn sync() {
    if let Some(volume) = crate::volume::opened()
        && let Ok(Err(error)) = crate::inside::call(|| Ok(volume.sync()))
    {
        crate::message::say(format_args!("sync: {error}"));
    }
    crate::real::real!(sync() -> ())
}
