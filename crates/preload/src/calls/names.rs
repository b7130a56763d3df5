//! Names: rename, link, unlink, symbolic links, directories, nodes.

use crate::calls::open::masked;
use crate::files::canonical::{target, without_ups};
use crate::files::path::{self, Location, Spot};
use crate::program;
use crate::runtime::answer::{Answer, ToC, checked, errno, failed};
use crate::runtime::inside;
use crate::runtime::real::{check_room, real, text};
use crate::volume::volume;
use adit::calls::{Link, MakeDirectory, MakeNode, MakeSymlink, RemoveDirectory, Rename, Unlink};
use adit::{Errno, FileKind};
use adit_fs::{Follow, RenameFlags};
use adit_interposed::interposed;
use libc::{c_char, c_int, c_uint, dev_t, mode_t, size_t, ssize_t};
use std::ffi::CString;

use super::{of_path, of_path_at};

of_path! {
    unlink: () -> c_int = remove_name;
    rmdir: () -> c_int = remove_directory;
    remove: () -> c_int = remove_either;
    mkdir: (mode: mode_t) -> c_int = make_directory;
    mkfifo: (mode: mode_t) -> c_int = make_pipe;
    mknod: (mode: mode_t, device: dev_t) -> c_int = make_node;
    truncate | truncate64: (size: libc::off_t) -> c_int = resize;
}
of_path_at! {
    unlinkat: (flags: c_int) -> c_int = remove_at;
    mkdirat: (mode: mode_t) -> c_int = make_directory;
    mkfifoat: (mode: mode_t) -> c_int = make_pipe;
    mknodat: (mode: mode_t, device: dev_t) -> c_int = make_node;
}

fn remove_name(spot: &Spot) -> Answer<()> {
    let place = spot.at().into();
    volume()?.call(Unlink { place })
}

fn remove_directory(spot: &Spot) -> Answer<()> {
    let place = spot.at().into();
    volume()?.call(RemoveDirectory { place })
}

fn remove_either(spot: &Spot) -> Answer<()> {
    match remove_name(spot) {
        Err(Errno::ISDIR | Errno::PERM) => remove_directory(spot),
        done => done,
    }
}

fn remove_at(spot: &Spot, flags: c_int) -> Answer<()> {
    match flags {
        0 => remove_name(spot),
        libc::AT_REMOVEDIR => remove_directory(spot),
        _ => Err(Errno::INVAL),
    }
}

fn make_directory(spot: &Spot, mode: mode_t) -> Answer<()> {
    let call = MakeDirectory {
        place: spot.at().into(),
        mode: masked(mode),
    };
    volume()?.call(call).map(drop)
}

fn make_pipe(spot: &Spot, mode: mode_t) -> Answer<()> {
    node(spot, FileKind::Fifo, mode, 0)
}

fn make_node(spot: &Spot, mode: mode_t, device: dev_t) -> Answer<()> {
    let kind = match mode & libc::S_IFMT {
        0 | libc::S_IFREG => FileKind::File,
        libc::S_IFIFO => FileKind::Fifo,
        libc::S_IFSOCK => FileKind::Socket,
        libc::S_IFCHR => FileKind::CharDevice,
        libc::S_IFBLK => FileKind::BlockDevice,
        libc::S_IFDIR => return Err(Errno::PERM),
        _ => return Err(Errno::INVAL),
    };
    node(spot, kind, mode, device)
}

fn node(spot: &Spot, kind: FileKind, mode: mode_t, device: dev_t) -> Answer<()> {
    let call = MakeNode {
        place: spot.at().into(),
        kind,
        mode: masked(mode),
        device,
    };
    volume()?.call(call).map(drop)
}

fn resize(spot: &Spot, size: libc::off_t) -> Answer<()> {
    if size < 0 {
        return Err(Errno::INVAL);
    }
    let open = super::open::open_at(spot.at(), &spot.shown, libc::O_WRONLY, 0)?;
    super::data::resize(&open, size)
}

/// As much of a link as there is room for.
unsafe fn give_link(target: &[u8], buffer: *mut c_char, room: size_t) -> Answer {
    // The kernel takes it for an int.
    if room as c_int <= 0 {
        return Err(Errno::INVAL);
    }
    let count = target.len().min(room);
    // SAFETY: the program's buffer has that room, it says.
    unsafe { std::ptr::copy_nonoverlapping(target.as_ptr(), buffer.cast(), count) };
    Ok(count as i64)
}

/// The text of a link; `is_named`: not the one behind a descriptor alone.
fn link_text(spot: &Spot, is_named: bool) -> Answer<Vec<u8>> {
    match is_named {
        true if spot.is_descriptor => Ok(without_ups(&spot.shown)),
        true => target(spot.at()),
        false => target(spot.at()).map_err(|error| match error {
            Errno::INVAL => Errno::NOENT,
            error => error,
        }),
    }
}

/// Without a path and with `AT_EMPTY_PATH`: the link behind the descriptor (`O_PATH`,
/// `O_NOFOLLOW`).
unsafe fn read_link(
    (directory, path): PathAt,
    flags: c_int,
    (buffer, room): (*mut c_char, size_t),
    host: impl FnOnce(*const c_char) -> ssize_t,
) -> ssize_t {
    if path.is_null() {
        return host(path);
    }
    // SAFETY: the program vouches for its arguments, as to the C library.
    let text = unsafe { text(path) };
    if let Some(shown) = program::copy::executed_at(text) {
        // SAFETY: as above.
        return unsafe { give_link(shown, buffer, room) }.to_c();
    }
    // SAFETY: as above.
    match unsafe { path::find_named(directory, path, flags) }.location() {
        Location::Host(of_host) => host(of_host.pointer(path)),
        Location::Volume(spot) => {
            let given = inside::call(|| {
                if room as c_int <= 0 {
                    return Err(Errno::INVAL);
                }
                let target = link_text(&spot, !text.is_empty())?;
                // SAFETY: as above.
                unsafe { give_link(&target, buffer, room) }
            });
            given.to_c()
        }
    }
}

#[interposed]
unsafe extern "C" fn readlink(path: *const c_char, buffer: *mut c_char, room: size_t) -> ssize_t {
    let host = |path| real(path, buffer, room);
    // SAFETY: as for this function.
    unsafe { read_link((libc::AT_FDCWD, path), 0, (buffer, room), host) }
}

#[interposed]
unsafe extern "C" fn readlinkat(
    directory: c_int,
    path: *const c_char,
    buffer: *mut c_char,
    room: size_t,
) -> ssize_t {
    let host = |path| real(directory, path, buffer, room);
    let flags = libc::AT_EMPTY_PATH;
    // SAFETY: as for this function.
    unsafe { read_link((directory, path), flags, (buffer, room), host) }
}

#[interposed]
unsafe extern "C" fn __readlink_chk(
    path: *const c_char,
    buffer: *mut c_char,
    room: size_t,
    size: size_t,
) -> ssize_t {
    check_room(room, size);
    // SAFETY: as for this function.
    unsafe { readlink(path, buffer, room) }
}

#[interposed]
unsafe extern "C" fn __readlinkat_chk(
    directory: c_int,
    path: *const c_char,
    buffer: *mut c_char,
    room: size_t,
    size: size_t,
) -> ssize_t {
    check_room(room, size);
    // SAFETY: as for this function.
    unsafe { readlinkat(directory, path, buffer, room) }
}

// ------------------------------------------------------------------------ two paths

/// A path as a call gives it.
type PathAt = (c_int, *const c_char);

/// Of two files of which one is the volume's.
#[derive(Clone, Copy)]
enum Across {
    Rename,
    /// The flags of `linkat`.
    Link(c_int),
}

/// The error of a call that has one path in the volume and one of the host's: EXDEV, unless the
/// kernel finds another one first. A rename looks at the directories, a link at the files.
unsafe fn across(kind: Across, from: (&Location, PathAt), to: (&Location, PathAt)) -> Errno {
    // SAFETY: the program vouches for its arguments, as to the C library.
    let found = unsafe {
        match kind {
            Across::Rename => {
                check_directory(from.0, from.1).and_then(|()| check_directory(to.0, to.1))
            }
            Across::Link(flags) => check_file(from.0, from.1, flags)
                .and_then(|()| check_directory(to.0, to.1))
                .and_then(|()| check_new(to.0, to.1)),
        }
    };
    found.err().unwrap_or(Errno::XDEV)
}

/// Is the file there? The flags are those of `linkat`.
unsafe fn check_file(place: &Location, given: PathAt, flags: c_int) -> Answer<()> {
    match place {
        Location::Volume(spot) => inside::call(|| {
            let found = volume()?.stat_at(spot.at(), follow(flags));
            found.map(drop).map_err(errno)
        }),
        Location::Host(host) => check_host(given.0, host.pointer(given.1), flags),
    }
}

/// May a file be made there? With a slash behind it the name must be one that is taken.
unsafe fn check_new(place: &Location, given: PathAt) -> Answer<()> {
    let (found, has_slash) = match place {
        Location::Volume(spot) => {
            let name = Location::Volume(spot.without_slashes());
            // SAFETY: it names nothing of the program's.
            (
                unsafe { check_file(&name, given, 0) },
                spot.ends_with_slash(),
            )
        }
        Location::Host(host) => {
            // SAFETY: NULL or a C string, says the program.
            let path = unsafe { text(host.pointer(given.1)) };
            let end = path.iter().rposition(|byte| *byte != b'/');
            let name = &path[..end.map_or(path.len(), |end| end + 1)];
            let name = CString::new(name).map_err(|_| Errno::INVAL)?;
            (check_host(given.0, name.as_ptr(), 0), path.ends_with(b"/"))
        }
    };
    match found {
        Ok(()) => Err(Errno::EXIST),
        Err(Errno::NOENT) if !has_slash => Ok(()),
        failed => failed,
    }
}

fn follow(flags: c_int) -> Follow {
    match flags & libc::AT_SYMLINK_FOLLOW {
        0 => Follow::No,
        _ => Follow::Yes,
    }
}

/// Is the directory there in which it is, or is to be?
unsafe fn check_directory(place: &Location, given: PathAt) -> Answer<()> {
    let host = match place {
        Location::Volume(spot) => return inside::call(|| spot.check_parent()),
        Location::Host(host) => host.pointer(given.1),
    };
    // SAFETY: NULL or a C string, says the program.
    let path = unsafe { text(host) };
    if path.is_empty() || path.len() >= libc::PATH_MAX as usize {
        return check_host(given.0, host, 0);
    }
    let end = path.iter().rposition(|byte| *byte != b'/');
    let slash = path[..end.unwrap_or(0)]
        .iter()
        .rposition(|byte| *byte == b'/');
    let above = match slash {
        Some(slash) => &path[..=slash],
        None => b"./",
    };
    let above = CString::new(above).map_err(|_| Errno::INVAL)?;
    check_host(given.0, above.as_ptr(), libc::AT_SYMLINK_FOLLOW)
}

fn check_host(directory: c_int, path: *const c_char, flags: c_int) -> Answer<()> {
    let flags = flags & libc::AT_EMPTY_PATH
        | match follow(flags) {
            Follow::Yes => 0,
            Follow::No => libc::AT_SYMLINK_NOFOLLOW,
        };
    // SAFETY: all zeroes are a value.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    let done = real!(fstatat(
        directory => c_int, path => *const c_char, &raw mut found => *mut libc::stat,
        flags => c_int
    ) -> c_int);
    checked(done).map(drop)
}

/// Both in the volume: `ours`. Both of the host: `host`. Else EXDEV.
unsafe fn of_two(
    kind: Across,
    from: PathAt,
    to: PathAt,
    ours: impl FnOnce(&Spot, &Spot) -> Answer<()>,
    host: impl FnOnce(*const c_char, *const c_char) -> c_int,
) -> c_int {
    let flags = match kind {
        Across::Rename => 0,
        Across::Link(flags) => flags,
    };
    // SAFETY: the program vouches for its arguments, as to the C library.
    let places = unsafe {
        let from = path::find_named(from.0, from.1, flags).location();
        (from, path::find(to.0, to.1))
    };
    match places {
        (Location::Volume(from), Location::Volume(to)) => inside::call(|| ours(&from, &to)).to_c(),
        (Location::Host(from_host), Location::Host(to_host)) => {
            host(from_host.pointer(from.1), to_host.pointer(to.1))
        }
        (from_place, to_place) => {
            // SAFETY: as above.
            failed(unsafe { across(kind, (&from_place, from), (&to_place, to)) })
        }
    }
}

unsafe fn rename_with(
    from: PathAt,
    to: PathAt,
    flags: c_uint,
    host: impl FnOnce(*const c_char, *const c_char) -> c_int,
) -> c_int {
    let ours = |from: &Spot, to: &Spot| {
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        let (from, to) = (from.at().into(), to.at().into());
        volume()?.call(Rename { from, to, flags })
    };
    // SAFETY: as for this function.
    unsafe { of_two(Across::Rename, from, to, ours, host) }
}

unsafe fn link_with(
    from: PathAt,
    to: PathAt,
    flags: c_int,
    host: impl FnOnce(*const c_char, *const c_char) -> c_int,
) -> c_int {
    let ours = |from: &Spot, to: &Spot| {
        let call = Link {
            existing: from.at().into(),
            follow: follow(flags),
            place: to.at().into(),
        };
        volume()?.call(call).map(drop)
    };
    // SAFETY: as for this function.
    unsafe { of_two(Across::Link(flags), from, to, ours, host) }
}

const HERE: c_int = libc::AT_FDCWD;

#[interposed]
unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the program vouches for its arguments, as to the C library.
    unsafe { rename_with((HERE, from), (HERE, to), 0, real) }
}

#[interposed]
unsafe extern "C" fn renameat(
    from_directory: c_int,
    from: *const c_char,
    to_directory: c_int,
    to: *const c_char,
) -> c_int {
    let host = |from, to| real(from_directory, from, to_directory, to);
    // SAFETY: the program vouches for its arguments, as to the C library.
    unsafe { rename_with((from_directory, from), (to_directory, to), 0, host) }
}

#[interposed]
unsafe extern "C" fn renameat2(
    from_directory: c_int,
    from: *const c_char,
    to_directory: c_int,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    const KNOWN: c_uint = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT;
    let host = |from, to| real(from_directory, from, to_directory, to, flags);
    if flags & !KNOWN != 0 {
        // The kernel says so.
        return host(from, to);
    }
    // SAFETY: the program vouches for its arguments, as to the C library.
    unsafe { rename_with((from_directory, from), (to_directory, to), flags, host) }
}

#[interposed]
unsafe extern "C" fn link(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the program vouches for its arguments, as to the C library.
    unsafe { link_with((HERE, from), (HERE, to), 0, real) }
}

#[interposed]
unsafe extern "C" fn linkat(
    from_directory: c_int,
    from: *const c_char,
    to_directory: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    let host = |from, to| real(from_directory, from, to_directory, to, flags);
    if flags & !(libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) != 0 {
        // The kernel says so.
        return host(from, to);
    }
    // SAFETY: the program vouches for its arguments, as to the C library.
    unsafe { link_with((from_directory, from), (to_directory, to), flags, host) }
}

/// The kernel says what is wrong with a target that it refuses.
unsafe fn symlink_with(
    target: *const c_char,
    (directory, path): PathAt,
    host: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: the program vouches for its arguments, as to the C library.
    let (place, is_refused) = unsafe { (path::find(directory, path), path::is_refused(target)) };
    match place {
        Location::Volume(_) if is_refused => host(path),
        Location::Host(of_host) => host(of_host.pointer(path)),
        Location::Volume(spot) => {
            let make = || {
                // SAFETY: as above.
                let (target, place) = (unsafe { text(target) }, spot.at().into());
                volume()?.call(MakeSymlink { target, place }).map(drop)
            };
            inside::call(make).to_c()
        }
    }
}

#[interposed]
unsafe extern "C" fn symlink(target: *const c_char, path: *const c_char) -> c_int {
    // SAFETY: the program vouches for its arguments, as to the C library.
    unsafe { symlink_with(target, (HERE, path), |path| real(target, path)) }
}

#[interposed]
unsafe extern "C" fn symlinkat(
    target: *const c_char,
    directory: c_int,
    path: *const c_char,
) -> c_int {
    let host = |path| real(target, directory, path);
    // SAFETY: the program vouches for its arguments, as to the C library.
    unsafe { symlink_with(target, (directory, path), host) }
}
