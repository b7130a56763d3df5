//! stat and its relatives; modes, owners, times, rights.

use crate::calls::pipes;
use crate::files::descriptors::{self, Open};
use crate::files::path::{self, Named, Place, Spot};
use crate::runtime::answer::{Answer, ToC, errno};
use crate::runtime::inside;
use crate::volume::identity;
use crate::volume::{device, settings, volume};
use adit::calls::{SetMode, SetOwner, SetTimes};
use adit::{Credentials, Errno, FileKind, SetTime, Timestamp};
use adit_fs::{Access, At, Follow, Stat};
use adit_interposed::interposed;
use libc::{
    c_char, c_int, c_uint, gid_t, mode_t, stat as StatC, statx as StatxC, timespec, timeval, uid_t,
};

use super::{of_descriptor, of_path, of_path_at};

const BLOCK: u64 = 512;

of_path! {
    stat | stat64: (buffer: *mut StatC) -> c_int = stat_followed;
    lstat | lstat64: (buffer: *mut StatC) -> c_int = stat_itself;
    chmod: (mode: mode_t) -> c_int = change_mode;
    lchmod: (mode: mode_t) -> c_int = change_mode_itself;
    chown: (uid: uid_t, gid: gid_t) -> c_int = change_owner;
    lchown: (uid: uid_t, gid: gid_t) -> c_int = change_owner_itself;
    access: (mode: c_int) -> c_int = may;
    eaccess | euidaccess: (mode: c_int) -> c_int = may_effectively;
    utime: (times: *const libc::utimbuf) -> c_int = set_seconds;
    utimes: (times: *const timeval) -> c_int = set_microseconds;
    lutimes: (times: *const timeval) -> c_int = set_microseconds_itself;
}
of_descriptor! {
    fchmod: (mode: mode_t) -> c_int = change_mode_open;
    fchown: (uid: uid_t, gid: gid_t) -> c_int = change_owner_open;
    futimens: (times: *const timespec) -> c_int = set_times_open;
    futimes: (times: *const timeval) -> c_int = set_microseconds_open;
}
of_path_at! {
    fchmodat: (mode: mode_t, flags: c_int) -> c_int = change_mode_at;
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

unsafe fn stat_followed(spot: &Spot, buffer: *mut StatC) -> Answer<()> {
    attributes(spot.at(), Follow::Yes).map(|stat| fill(&stat, buffer))
}

unsafe fn stat_itself(spot: &Spot, buffer: *mut StatC) -> Answer<()> {
    attributes(spot.at(), Follow::No).map(|stat| fill(&stat, buffer))
}

#[interposed(fstat64)]
unsafe extern "C" fn fstat(fd: c_int, buffer: *mut StatC) -> c_int {
    if let Some(open) = descriptors::get(fd) {
        let stat = inside::call(|| attributes_open(&open));
        return stat.map(|stat| fill(&stat, buffer)).to_c() as c_int;
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
    let named = match path.is_null() && flags & libc::AT_EMPTY_PATH != 0 {
        true => c"".as_ptr(),
        false => path,
    };
    // SAFETY: promised by the caller.
    match unsafe { path::find_named(directory, named, flags) } {
        Named::At(Place::Host(host)) => Err(host),
        _ if flags & !KNOWN != 0 => Ok(Err(Errno::INVAL)),
        Named::Open(open) => Ok(inside::call(|| attributes_open(&open))),
        Named::At(Place::Volume(spot)) => Ok(inside::call(|| attributes(spot.at(), follow(flags)))),
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
        Ok(answer) => {
            crate::runtime::answer::ToC::to_c(answer.map(|stat| fill(&stat, buffer))) as c_int
        }
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
    ($($name:ident | $name64:ident = $new:ident($first:ident: $type:ty $(, $more:ident: $more_type:ty)*);)*) => {
        $(old_stat!(@ $name $new $first $type $(, $more $more_type)*);
        old_stat!(@ $name64 $new $first $type $(, $more $more_type)*);)*
    };
    (@ $name:ident $new:ident $first:ident $type:ty $(, $more:ident $more_type:ty)*) => {
        #[interposed]
        unsafe extern "C" fn $name(_version: c_int, $first: $type $(, $more: $more_type)*) -> c_int {
            // SAFETY: the same structure on machines of 64 bits.
            unsafe { $new($first $(, $more)*) }
        }
    };
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
            crate::runtime::answer::set_errno(Errno::INVAL);
            -1
        }
        Ok(answer) => {
            let answer = answer.map(|stat| fill_extended(&stat, buffer));
            crate::runtime::answer::ToC::to_c(answer) as c_int
        }
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

unsafe fn change_mode(spot: &Spot, mode: mode_t) -> Answer<()> {
    set_mode(spot, Follow::Yes, mode)
}

unsafe fn change_mode_itself(spot: &Spot, mode: mode_t) -> Answer<()> {
    set_mode(spot, Follow::No, mode)
}

/// With the flag that the C library knows.
unsafe fn change_mode_at(spot: &Spot, mode: mode_t, flags: c_int) -> Answer<()> {
    check_flags(flags, libc::AT_SYMLINK_NOFOLLOW)?;
    set_mode(spot, follow(flags), mode)
}

fn set_mode(spot: &Spot, follow: Follow, mode: mode_t) -> Answer<()> {
    set_mode_of(spot.at(), follow, mode)
}

fn set_mode_of(at: At<'_>, follow: Follow, mode: mode_t) -> Answer<()> {
    let volume = volume()?;
    volume.call(SetMode {
        place: at.into(),
        follow,
        mode: mode & 0o7777,
    })
}

unsafe fn change_mode_open(open: &Open, mode: mode_t) -> Answer<()> {
    set_mode_of(open.to_change()?, Follow::No, mode)
}

/// All ones: it stays.
fn id(id: u32) -> Option<u32> {
    (id != u32::MAX).then_some(id)
}

fn set_owner(at: At<'_>, follow: Follow, uid: uid_t, gid: gid_t) -> Answer<()> {
    let volume = volume()?;
    volume.call(SetOwner {
        place: at.into(),
        follow,
        uid: id(uid),
        gid: id(gid),
    })
}

unsafe fn change_owner(spot: &Spot, uid: uid_t, gid: gid_t) -> Answer<()> {
    set_owner(spot.at(), Follow::Yes, uid, gid)
}

unsafe fn change_owner_itself(spot: &Spot, uid: uid_t, gid: gid_t) -> Answer<()> {
    set_owner(spot.at(), Follow::No, uid, gid)
}

unsafe fn change_owner_open(open: &Open, uid: uid_t, gid: gid_t) -> Answer<()> {
    set_owner(open.to_change()?, Follow::No, uid, gid)
}

#[interposed]
unsafe extern "C" fn fchownat(
    directory: c_int,
    path: *const c_char,
    uid: uid_t,
    gid: gid_t,
    flags: c_int,
) -> c_int {
    use crate::runtime::answer::ToC;
    let set = |spot: &Spot| {
        check_flags(flags, libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH)?;
        set_owner(spot.at(), follow(flags), uid, gid)
    };
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { path::find_named(directory, path, flags) }.place() {
        Place::Volume(spot) => inside::call(|| set(&spot)).to_c() as c_int,
        Place::Host(host) => real(directory, host.pointer(path), uid, gid, flags),
    }
}

fn rights(spot: &Spot, who: &'static Credentials, mode: c_int, follow: Follow) -> Answer<()> {
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

unsafe fn may(spot: &Spot, mode: c_int) -> Answer<()> {
    rights(spot, identity::real_credentials(), mode, Follow::Yes)
}

unsafe fn may_effectively(spot: &Spot, mode: c_int) -> Answer<()> {
    rights(spot, identity::credentials(), mode, Follow::Yes)
}

#[interposed]
unsafe extern "C" fn faccessat(
    directory: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
) -> c_int {
    use crate::runtime::answer::ToC;
    const KNOWN: c_int = libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;
    let may = |spot: &Spot| {
        check_flags(flags, KNOWN)?;
        let who = match flags & libc::AT_EACCESS {
            0 => identity::real_credentials(),
            _ => identity::credentials(),
        };
        rights(spot, who, mode, follow(flags))
    };
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { path::find_named(directory, path, flags) }.place() {
        Place::Volume(spot) => inside::call(|| may(&spot)).to_c() as c_int,
        Place::Host(host) => real(directory, host.pointer(path), mode, flags),
    }
}

// ------------------------------------------------------------------------ times

/// The two times of a call; NULL: now.
unsafe fn times(times: *const timespec) -> Answer<(SetTime, SetTime)> {
    if times.is_null() {
        return Ok((SetTime::Now, SetTime::Now));
    }
    let time = |time: timespec| match time.tv_nsec {
        libc::UTIME_NOW => Ok(SetTime::Now),
        libc::UTIME_OMIT => Ok(SetTime::Omit),
        0..1_000_000_000 => Ok(SetTime::To(Timestamp {
            seconds: time.tv_sec,
            nanoseconds: time.tv_nsec as u32,
        })),
        _ => Err(Errno::INVAL),
    };
    // SAFETY: two of them, says the program.
    unsafe { Ok((time(*times)?, time(*times.add(1))?)) }
}

/// The same in microseconds.
unsafe fn microseconds(times: *const timeval) -> Answer<(SetTime, SetTime)> {
    if times.is_null() {
        return Ok((SetTime::Now, SetTime::Now));
    }
    let time = |time: timeval| match time.tv_usec {
        0..1_000_000 => Ok(SetTime::To(Timestamp {
            seconds: time.tv_sec,
            nanoseconds: time.tv_usec as u32 * 1000,
        })),
        _ => Err(Errno::INVAL),
    };
    // SAFETY: two of them, says the program.
    unsafe { Ok((time(*times)?, time(*times.add(1))?)) }
}

fn set(spot: &Spot, follow: Follow, times: (SetTime, SetTime)) -> Answer<()> {
    set_times(spot.at(), follow, times)
}

fn set_times(at: At<'_>, follow: Follow, (accessed, modified): (SetTime, SetTime)) -> Answer<()> {
    let volume = volume()?;
    volume.call(SetTimes {
        place: at.into(),
        follow,
        accessed,
        modified,
    })
}

fn set_open(open: &Open, times: (SetTime, SetTime)) -> Answer<()> {
    set_times(open.to_change()?, Follow::No, times)
}

unsafe fn set_seconds(spot: &Spot, given: *const libc::utimbuf) -> Answer<()> {
    let to = |seconds| {
        SetTime::To(Timestamp {
            seconds,
            nanoseconds: 0,
        })
    };
    // SAFETY: NULL, or one of them, says the program.
    let given = unsafe { given.as_ref() };
    let times = given.map(|given| (to(given.actime), to(given.modtime)));
    set(
        spot,
        Follow::Yes,
        times.unwrap_or((SetTime::Now, SetTime::Now)),
    )
}

unsafe fn set_microseconds(spot: &Spot, given: *const timeval) -> Answer<()> {
    // SAFETY: as for this function.
    set(spot, Follow::Yes, unsafe { microseconds(given)? })
}

unsafe fn set_microseconds_itself(spot: &Spot, given: *const timeval) -> Answer<()> {
    // SAFETY: as for this function.
    set(spot, Follow::No, unsafe { microseconds(given)? })
}

unsafe fn set_microseconds_open(open: &Open, given: *const timeval) -> Answer<()> {
    // SAFETY: as for this function.
    set_open(open, unsafe { microseconds(given)? })
}

unsafe fn set_times_open(open: &Open, given: *const timespec) -> Answer<()> {
    // SAFETY: as for this function.
    set_open(open, unsafe { times(given)? })
}

#[interposed]
unsafe extern "C" fn utimensat(
    directory: c_int,
    path: *const c_char,
    given: *const timespec,
    flags: c_int,
) -> c_int {
    use crate::runtime::answer::ToC;
    let set = |spot: &Spot| {
        // SAFETY: the program vouches for its arguments, as to the C library.
        let times = unsafe { times(given)? };
        check_flags(flags, libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH)?;
        set(spot, follow(flags), times)
    };
    // SAFETY: as above.
    match unsafe { path::find_named(directory, path, flags) }.place() {
        Place::Volume(spot) => inside::call(|| set(&spot)).to_c() as c_int,
        Place::Host(host) => real(directory, host.pointer(path), given, flags),
    }
}

/// Without a path: the file behind the descriptor.
#[interposed]
unsafe extern "C" fn futimesat(
    directory: c_int,
    path: *const c_char,
    given: *const timeval,
) -> c_int {
    use crate::runtime::answer::ToC;
    if path.is_null()
        && let Some(open) = descriptors::get(directory)
    {
        // SAFETY: the program vouches for its arguments, as to the C library.
        return inside::call(|| unsafe { set_microseconds_open(&open, given) }).to_c() as c_int;
    }
    // SAFETY: as above.
    match unsafe { path::find(directory, path) } {
        Place::Volume(spot) => {
            // SAFETY: as above.
            let set = inside::call(|| unsafe { set_microseconds(&spot, given) });
            set.to_c() as c_int
        }
        Place::Host(host) => real(directory, host.pointer(path), given),
    }
}

/// As the C library makes it of a file's numbers.
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
