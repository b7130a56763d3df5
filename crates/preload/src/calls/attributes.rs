//! stat and its relatives; modes, owners, times, rights.

use crate::calls::pipes;
use crate::files::descriptors::{self, Open};
use crate::files::path::{self, Location, Named, Spot};
use crate::runtime::answer::{Answer, ToC, errno, failed};
use crate::runtime::inside;
use crate::volume::{device, identity, settings, volume};
use adit::calls::{SetMode, SetOwner, SetTimes};
use adit::{Credentials, Errno, FileKind, SetTime, Timestamp};
use adit_fs::{Access, At, Follow, Stat};
use adit_interposed::interposed;
use libc::{
    c_char, c_int, c_uint, gid_t, mode_t, stat as StatC, statx as StatxC, timespec, timeval, uid_t,
};

use super::{of_descriptor, of_path, of_path_at, of_path_flagged};

const BLOCK: u64 = 512;

of_path! {
    stat | stat64: (buffer: *mut StatC) -> c_int = {stat_of(Follow::Yes)};
    lstat | lstat64: (buffer: *mut StatC) -> c_int = {stat_of(Follow::No)};
    chmod: (mode: mode_t) -> c_int = {set_mode(Follow::Yes)};
    lchmod: (mode: mode_t) -> c_int = {set_mode(Follow::No)};
    chown: (uid: uid_t, gid: gid_t) -> c_int = {set_owner(Follow::Yes)};
    lchown: (uid: uid_t, gid: gid_t) -> c_int = {set_owner(Follow::No)};
    access: (mode: c_int) -> c_int = {may(identity::real_credentials(), Follow::Yes)};
    eaccess | euidaccess: (mode: c_int) -> c_int = {may(identity::credentials(), Follow::Yes)};
    utime: (times: *const libc::utimbuf) -> c_int = set_seconds;
    utimes: (times: *const timeval) -> c_int = {set_microseconds(Follow::Yes)};
    lutimes: (times: *const timeval) -> c_int = {set_microseconds(Follow::No)};
}
of_descriptor! {
    fchmod: (mode: mode_t) -> c_int = set_mode_open;
    fchown: (uid: uid_t, gid: gid_t) -> c_int = set_owner_open;
    futimens: (times: *const timespec) -> c_int = set_nanoseconds_open;
    futimes: (times: *const timeval) -> c_int = set_microseconds_open;
}
of_path_at! {
    fchmodat: (mode: mode_t, flags: c_int) -> c_int = set_mode_at;
}
of_path_flagged! {
    fchownat: (uid: uid_t, gid: gid_t) -> c_int = set_owner_at;
    faccessat: (mode: c_int) -> c_int = may_at;
    utimensat: (times: *const timespec) -> c_int = set_nanoseconds_at;
}

// ------------------------------------------------------------------------ stat

fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
        _ => libc::S_IFREG,
    }
}

fn timespec_of(time: Timestamp) -> (i64, i64) {
    (time.seconds, i64::from(time.nanoseconds))
}

fn fill(stat: &Stat, buffer: *mut StatC) {
    // SAFETY: all zeroes are a value.
    let mut c: StatC = unsafe { std::mem::zeroed() };
    c.st_dev = device();
    c.st_ino = stat.inode;
    c.st_mode = type_bits(stat.kind) | stat.mode & 0o7777;
    c.st_nlink = u64::from(stat.links) as _;
    (c.st_uid, c.st_gid) = (stat.uid, stat.gid);
    c.st_rdev = stat.rdev;
    c.st_size = stat.size_bytes as i64;
    c.st_blksize = i64::from(stat.io_bytes) as _;
    c.st_blocks = (stat.allocated_bytes / BLOCK) as i64;
    (c.st_atime, c.st_atime_nsec) = timespec_of(stat.accessed);
    (c.st_mtime, c.st_mtime_nsec) = timespec_of(stat.modified);
    (c.st_ctime, c.st_ctime_nsec) = timespec_of(stat.changed);
    // SAFETY: the program's buffer.
    unsafe { buffer.write(c) };
}

fn attributes(at: At<'_>, follow: Follow) -> Answer<Stat> {
    volume()?.stat_at(at, follow).map_err(errno)
}

fn attributes_open(open: &Open) -> Answer<Stat> {
    Ok(*open.file.metadata().map_err(errno)?.stat())
}

fn stat_of(spot: &Spot, follow: Follow, buffer: *mut StatC) -> Answer<()> {
    attributes(spot.at(), follow).map(|stat| fill(&stat, buffer))
}

#[interposed(fstat64)]
unsafe extern "C" fn fstat(fd: c_int, buffer: *mut StatC) -> c_int {
    if let Some(open) = descriptors::get(fd) {
        let stat = inside::call(|| attributes_open(&open));
        return stat.map(|stat| fill(&stat, buffer)).to_c();
    }
    let done = real(fd, buffer);
    if done == 0 {
        // SAFETY: the kernel has filled it.
        name_node(unsafe { &mut *buffer });
    }
    done
}

/// Of the host's pipe behind a node of the volume: the node's identity and rights.
fn name_node(found: &mut StatC) {
    if let Some(node) = pipes::node_of(found.st_mode, found.st_dev, found.st_ino) {
        (found.st_dev, found.st_ino) = (device(), node.inode);
        found.st_mode = libc::S_IFIFO | node.mode & 0o7777;
        (found.st_uid, found.st_gid) = (node.uid, node.gid);
        found.st_nlink = u64::from(node.links) as _;
    }
}

/// Flags that the kernel doesn't know are EINVAL.
pub(crate) fn check_flags(flags: c_int, known: c_int) -> Answer<()> {
    match flags & !known {
        0 => Ok(()),
        _ => Err(Errno::INVAL),
    }
}

fn follow(flags: c_int) -> Follow {
    match flags & libc::AT_SYMLINK_NOFOLLOW {
        0 => Follow::Yes,
        _ => Follow::No,
    }
}

/// The attributes that a call with a directory, a path and flags asks for; None: the host's.
///
/// # Safety
/// `path` is NULL or a C string.
unsafe fn attributes_at(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
) -> Result<Answer<Stat>, path::HostPath> {
    const KNOWN: c_int =
        libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_EMPTY_PATH | STATX_SYNC_TYPE;
    // NULL is as good as no text.
    let named = if path.is_null() && flags & libc::AT_EMPTY_PATH != 0 {
        c"".as_ptr()
    } else {
        path
    };
    // SAFETY: promised by the caller.
    match unsafe { path::find_named(directory, named, flags) } {
        Named::At(Location::Host(host)) => Err(host),
        _ if flags & !KNOWN != 0 => Ok(Err(Errno::INVAL)),
        Named::Open(open) => Ok(inside::call(|| attributes_open(&open))),
        Named::At(Location::Volume(spot)) => {
            Ok(inside::call(|| attributes(spot.at(), follow(flags))))
        }
    }
}

/// Both ways to ask a network file system.
const STATX_SYNC_TYPE: c_int = 0x6000;
/// A bit of a mask that means something else one day.
const STATX_RESERVED: c_uint = 1 << 31;

#[interposed(fstatat64)]
unsafe extern "C" fn fstatat(
    directory: c_int,
    path: *const c_char,
    buffer: *mut StatC,
    flags: c_int,
) -> c_int {
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { attributes_at(directory, path, flags) } {
        Ok(answer) => answer.map(|stat| fill(&stat, buffer)).to_c(),
        Err(host) => {
            let done = real(directory, host.pointer(path), buffer, flags);
            if done == 0 && flags & libc::AT_EMPTY_PATH != 0 {
                // SAFETY: the kernel has filled it.
                name_node(unsafe { &mut *buffer });
            }
            done
        }
    }
}

/// The names that programs of before glibc 2.33 call, with the version of the structure.
macro_rules! old_stat {
    ($($name:ident | $name64:ident = $new:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[interposed($name64)]
        unsafe extern "C" fn $name(_version: c_int, $($argument: $type),*) -> c_int {
            // SAFETY: the same structure on machines of 64 bits.
            unsafe { $new($($argument),*) }
        }
    )*};
}
old_stat! {
    __xstat | __xstat64 = stat(path: *const c_char, buffer: *mut StatC);
    __lxstat | __lxstat64 = lstat(path: *const c_char, buffer: *mut StatC);
    __fxstat | __fxstat64 = fstat(fd: c_int, buffer: *mut StatC);
    __fxstatat | __fxstatat64 = fstatat(directory: c_int, path: *const c_char, buffer: *mut StatC, flags: c_int);
}

#[interposed]
unsafe extern "C" fn statx(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    buffer: *mut StatxC,
) -> c_int {
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { attributes_at(directory, path, flags) } {
        Ok(_) if mask & STATX_RESERVED != 0 || flags & STATX_SYNC_TYPE == STATX_SYNC_TYPE => {
            failed(Errno::INVAL)
        }
        Ok(answer) => answer.map(|stat| fill_extended(&stat, buffer)).to_c(),
        Err(host) => real(directory, host.pointer(path), flags, mask, buffer),
    }
}

fn fill_extended(stat: &Stat, buffer: *mut StatxC) {
    // SAFETY: all zeroes are a value.
    let mut c: StatxC = unsafe { std::mem::zeroed() };
    c.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    c.stx_blksize = stat.io_bytes;
    c.stx_nlink = stat.links;
    (c.stx_uid, c.stx_gid) = (stat.uid, stat.gid);
    c.stx_mode = (type_bits(stat.kind) | stat.mode & 0o7777) as u16;
    c.stx_ino = stat.inode;
    c.stx_size = stat.size_bytes;
    c.stx_blocks = stat.allocated_bytes / BLOCK;
    let time = |time: Timestamp, c: &mut libc::statx_timestamp| {
        (c.tv_sec, c.tv_nsec) = (time.seconds, time.nanoseconds);
    };
    time(stat.accessed, &mut c.stx_atime);
    time(stat.modified, &mut c.stx_mtime);
    time(stat.changed, &mut c.stx_ctime);
    time(stat.created, &mut c.stx_btime);
    (c.stx_rdev_major, c.stx_rdev_minor) = (libc::major(stat.rdev), libc::minor(stat.rdev));
    let device = device();
    (c.stx_dev_major, c.stx_dev_minor) = (libc::major(device), libc::minor(device));
    // SAFETY: the program's buffer.
    unsafe { buffer.write(c) };
}

// ------------------------------------------------------------------------ modes and owners

fn set_mode_of(at: At<'_>, follow: Follow, mode: mode_t) -> Answer<()> {
    let (place, mode) = (at.into(), mode & 0o7777);
    volume()?.call(SetMode {
        place,
        follow,
        mode,
    })
}

fn set_mode(spot: &Spot, follow: Follow, mode: mode_t) -> Answer<()> {
    set_mode_of(spot.at(), follow, mode)
}

/// With the flag that the C library knows.
fn set_mode_at(spot: &Spot, mode: mode_t, flags: c_int) -> Answer<()> {
    check_flags(flags, libc::AT_SYMLINK_NOFOLLOW)?;
    set_mode(spot, follow(flags), mode)
}

fn set_mode_open(open: &Open, mode: mode_t) -> Answer<()> {
    set_mode_of(open.to_change()?, Follow::No, mode)
}

fn set_owner_of(at: At<'_>, follow: Follow, uid: uid_t, gid: gid_t) -> Answer<()> {
    // All ones: it stays.
    let id = |id: u32| (id != u32::MAX).then_some(id);
    volume()?.call(SetOwner {
        place: at.into(),
        follow,
        uid: id(uid),
        gid: id(gid),
    })
}

fn set_owner(spot: &Spot, follow: Follow, uid: uid_t, gid: gid_t) -> Answer<()> {
    set_owner_of(spot.at(), follow, uid, gid)
}

fn set_owner_at(spot: &Spot, uid: uid_t, gid: gid_t, flags: c_int) -> Answer<()> {
    check_flags(flags, libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH)?;
    set_owner(spot, follow(flags), uid, gid)
}

fn set_owner_open(open: &Open, uid: uid_t, gid: gid_t) -> Answer<()> {
    set_owner_of(open.to_change()?, Follow::No, uid, gid)
}

/// May this user do what the mode says?
fn may(spot: &Spot, who: &'static Credentials, follow: Follow, mode: c_int) -> Answer<()> {
    let wanted = Access::from_bits(mode as u32).ok_or(Errno::INVAL)?;
    let volume = volume()?;
    let may = volume
        .access_at(spot.for_user(who), follow, wanted)
        .map_err(errno);
    let noexec = settings().is_some_and(|settings| settings.noexec);
    if may.is_ok() && noexec && wanted.contains(Access::EXECUTE) {
        let found = volume.stat_at(spot.at(), follow).map_err(errno)?;
        if found.kind == FileKind::File {
            return Err(Errno::ACCESS);
        }
    }
    may
}

fn may_at(spot: &Spot, mode: c_int, flags: c_int) -> Answer<()> {
    const KNOWN: c_int = libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;
    check_flags(flags, KNOWN)?;
    let who = match flags & libc::AT_EACCESS {
        0 => identity::real_credentials(),
        _ => identity::credentials(),
    };
    may(spot, who, follow(flags), mode)
}

// ------------------------------------------------------------------------ times

/// When a file was read, and when it was written.
type Times = (SetTime, SetTime);
const NOW: Times = (SetTime::Now, SetTime::Now);

fn at(seconds: i64, nanoseconds: i64) -> Answer<SetTime> {
    if !(0..1_000_000_000).contains(&nanoseconds) {
        return Err(Errno::INVAL);
    }
    Ok(SetTime::To(Timestamp {
        seconds,
        nanoseconds: nanoseconds as u32,
    }))
}

/// The two times of a call; NULL: now.
unsafe fn nanoseconds(times: *const timespec) -> Answer<Times> {
    if times.is_null() {
        return Ok(NOW);
    }
    let time = |time: timespec| match time.tv_nsec {
        libc::UTIME_NOW => Ok(SetTime::Now),
        libc::UTIME_OMIT => Ok(SetTime::Omit),
        nanoseconds => at(time.tv_sec, nanoseconds),
    };
    // SAFETY: two of them, says the program.
    unsafe { Ok((time(*times)?, time(*times.add(1))?)) }
}

/// The two times of a call that has microseconds; NULL: now.
unsafe fn microseconds(times: *const timeval) -> Answer<Times> {
    if times.is_null() {
        return Ok(NOW);
    }
    // So large a number stays one that is too large.
    let time = |time: timeval| at(time.tv_sec, time.tv_usec.saturating_mul(1000));
    // SAFETY: two of them, says the program.
    unsafe { Ok((time(*times)?, time(*times.add(1))?)) }
}

fn set_times(at: At<'_>, follow: Follow, (accessed, modified): Times) -> Answer<()> {
    volume()?.call(SetTimes {
        place: at.into(),
        follow,
        accessed,
        modified,
    })
}

unsafe fn set_seconds(spot: &Spot, given: *const libc::utimbuf) -> Answer<()> {
    // SAFETY: NULL, or one of them, says the program.
    let times = match unsafe { given.as_ref() } {
        Some(given) => (at(given.actime, 0)?, at(given.modtime, 0)?),
        None => NOW,
    };
    set_times(spot.at(), Follow::Yes, times)
}

unsafe fn set_microseconds(spot: &Spot, follow: Follow, given: *const timeval) -> Answer<()> {
    // SAFETY: as for this function.
    set_times(spot.at(), follow, unsafe { microseconds(given)? })
}

unsafe fn set_microseconds_open(open: &Open, given: *const timeval) -> Answer<()> {
    // SAFETY: as for this function.
    let times = unsafe { microseconds(given)? };
    set_times(open.to_change()?, Follow::No, times)
}

unsafe fn set_nanoseconds_open(open: &Open, given: *const timespec) -> Answer<()> {
    // SAFETY: as for this function.
    let times = unsafe { nanoseconds(given)? };
    set_times(open.to_change()?, Follow::No, times)
}

unsafe fn set_nanoseconds_at(spot: &Spot, given: *const timespec, flags: c_int) -> Answer<()> {
    // SAFETY: as for this function.
    let times = unsafe { nanoseconds(given)? };
    check_flags(flags, libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH)?;
    set_times(spot.at(), follow(flags), times)
}

/// Without a path: the file behind the descriptor.
#[interposed]
unsafe extern "C" fn futimesat(
    directory: c_int,
    path: *const c_char,
    given: *const timeval,
) -> c_int {
    if path.is_null()
        && let Some(open) = descriptors::get(directory)
    {
        // SAFETY: the program vouches for its arguments, as to the C library.
        return inside::call(|| unsafe { set_microseconds_open(&open, given) }).to_c();
    }
    // SAFETY: as above.
    match unsafe { path::find(directory, path) } {
        Location::Volume(spot) => {
            // SAFETY: as above.
            inside::call(|| unsafe { set_microseconds(&spot, Follow::Yes, given) }).to_c()
        }
        Location::Host(host) => real(directory, host.pointer(path), given),
    }
}

/// Makes the key of the device's and the inode's number, as the C library does.
#[interposed]
unsafe extern "C" fn ftok(path: *const c_char, project: c_int) -> libc::key_t {
    // SAFETY: all zeroes are a value, which the call fills; the program vouches for its path.
    let (found, known) = unsafe {
        let mut known: StatC = std::mem::zeroed();
        (stat(path, &mut known), known)
    };
    if found < 0 {
        return -1;
    }
    let (inode, device) = (known.st_ino & 0xffff, (known.st_dev & 0xff) << 16);
    (inode | device) as libc::key_t | (project & 0xff) << 24
}
