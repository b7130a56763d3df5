//! Names: rename, link, unlink, symbolic links, directories, nodes.

use crate::answer::{Answer, ToC, set_errno};
use crate::calls::open::masked;
use crate::descriptors;
use crate::path::{self, Place, Spot};
use crate::real::{real, text};
use crate::volume::volume;
use adit::calls::{
    Link, MakeDirectory, MakeNode, MakeSymlink, ReadLink, RemoveDirectory, Rename, Unlink,
};
use adit::{Errno, FileKind};
use adit_fs::{At, Follow, RenameFlags};
use adit_interposed::interposed;
use libc::{c_char, c_int, c_uint, dev_t, mode_t, size_t, ssize_t};

use super::{of_path, of_path_at};

of_path! {
    unlink: () -> c_int = remove_name;
    rmdir: () -> c_int = remove_directory;
    remove: () -> c_int = remove_either;
    mkdir: (mode: mode_t) -> c_int = make_directory;
    mkfifo: (mode: mode_t) -> c_int = make_pipe;
    mknod: (mode: mode_t, device: dev_t) -> c_int = make_node;
    truncate | truncate64: (size: libc::off_t) -> c_int = resize;
    readlink: (buffer: *mut c_char, room: size_t) -> ssize_t = read_link;
    __readlink_chk: (buffer: *mut c_char, room: size_t, size: size_t) -> ssize_t = read_link_checked;
}
of_path_at! {
    unlinkat: (flags: c_int) -> c_int = remove_at;
    mkdirat: (mode: mode_t) -> c_int = make_directory;
    mkfifoat: (mode: mode_t) -> c_int = make_pipe;
    mknodat: (mode: mode_t, device: dev_t) -> c_int = make_node;
    readlinkat: (buffer: *mut c_char, room: size_t) -> ssize_t = read_link;
    __readlinkat_chk: (buffer: *mut c_char, room: size_t, size: size_t) -> ssize_t = read_link_checked;
}

unsafe fn remove_name(spot: &Spot) -> Answer<()> {
    let place = spot.at().into();
    volume()?.call(Unlink { place })
}

unsafe fn remove_directory(spot: &Spot) -> Answer<()> {
    let place = spot.at().into();
    volume()?.call(RemoveDirectory { place })
}

unsafe fn remove_either(spot: &Spot) -> Answer<()> {
    // SAFETY: as for this function.
    match unsafe { remove_name(spot) } {
        // SAFETY: as for this function.
        Err(Errno::ISDIR | Errno::PERM) => unsafe { remove_directory(spot) },
        done => done,
    }
}

unsafe fn remove_at(spot: &Spot, flags: c_int) -> Answer<()> {
    match flags {
        // SAFETY: as for this function.
        0 => unsafe { remove_name(spot) },
        // SAFETY: as for this function.
        libc::AT_REMOVEDIR => unsafe { remove_directory(spot) },
        _ => Err(Errno::INVAL),
    }
}

unsafe fn make_directory(spot: &Spot, mode: mode_t) -> Answer<()> {
    let call = MakeDirectory {
        place: spot.at().into(),
        mode: masked(mode),
    };
    volume()?.call(call).map(drop)
}

unsafe fn make_pipe(spot: &Spot, mode: mode_t) -> Answer<()> {
    node(spot, FileKind::Fifo, mode, 0)
}

unsafe fn make_node(spot: &Spot, mode: mode_t, device: dev_t) -> Answer<()> {
    let kind = match mode & libc::S_IFMT {
        0 | libc::S_IFREG => FileKind::File,
        libc::S_IFIFO => FileKind::Fifo,
        libc::S_IFSOCK => FileKind::Socket,
        libc::S_IFCHR => FileKind::CharDevice,
        libc::S_IFBLK => FileKind::BlockDevice,
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

unsafe fn resize(spot: &Spot, size: libc::off_t) -> Answer<()> {
    let open = super::open::open_at(spot.at(), &spot.shown, libc::O_WRONLY, 0)?;
    // SAFETY: only numbers.
    unsafe { super::data::resize(&open, size) }
}

pub(crate) fn target(at: At<'_>) -> Answer<Vec<u8>> {
    volume()?.call(ReadLink { place: at.into() })
}

unsafe fn read_link(spot: &Spot, buffer: *mut c_char, room: size_t) -> Answer {
    if room == 0 {
        return Err(Errno::INVAL);
    }
    let target = match spot.is_descriptor {
        true => super::working::without_ups(&spot.shown),
        false => target(spot.at())?,
    };
    let count = target.len().min(room);
    // SAFETY: the program's buffer has that room, it says.
    unsafe { std::ptr::copy_nonoverlapping(target.as_ptr(), buffer.cast(), count) };
    Ok(count as i64)
}

unsafe fn read_link_checked(
    spot: &Spot,
    buffer: *mut c_char,
    room: size_t,
    size: size_t,
) -> Answer {
    if room > size {
        std::process::abort();
    }
    // SAFETY: as for this function.
    unsafe { read_link(spot, buffer, room) }
}

// ------------------------------------------------------------------------ two paths

/// Both in the volume: `ours`. Both of the host: `host`. Else EXDEV.
unsafe fn of_two(
    (from_directory, from): (c_int, *const c_char),
    (to_directory, to): (c_int, *const c_char),
    ours: impl FnOnce(&Spot, &Spot) -> Answer<()>,
    host: impl FnOnce(*const c_char, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: the program vouches for its arguments, as to the C library.
    let places = unsafe {
        (
            path::find(from_directory, from),
            path::find(to_directory, to),
        )
    };
    match places {
        (Place::Volume(from), Place::Volume(to)) => {
            crate::inside::call(|| ours(&from, &to)).to_c() as c_int
        }
        (Place::Host(from_host), Place::Host(to_host)) => {
            host(from_host.pointer(from), to_host.pointer(to))
        }
        _ => {
            set_errno(Errno::XDEV);
            -1
        }
    }
}

fn move_name(from: &Spot, to: &Spot, flags: c_uint) -> Answer<()> {
    let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
    volume()?.call(Rename {
        from: from.at().into(),
        to: to.at().into(),
        flags,
    })
}

const HERE: c_int = libc::AT_FDCWD;

#[interposed]
unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    let host = |from, to| real!(rename(from => *const c_char, to => *const c_char) -> c_int);
    // SAFETY: the program vouches for its arguments, as to the C library.
    unsafe {
        of_two(
            (HERE, from),
            (HERE, to),
            |from, to| move_name(from, to, 0),
            host,
        )
    }
}

#[interposed]
unsafe extern "C" fn renameat(
    from_directory: c_int,
    from: *const c_char,
    to_directory: c_int,
    to: *const c_char,
) -> c_int {
    let host = |from, to| {
        real!(renameat(
            from_directory => c_int, from => *const c_char, to_directory => c_int, to => *const c_char
        ) -> c_int)
    };
    let ours = |from: &Spot, to: &Spot| move_name(from, to, 0);
    // SAFETY: the program vouches for its arguments, as to the C library.
    unsafe { of_two((from_directory, from), (to_directory, to), ours, host) }
}

#[interposed]
unsafe extern "C" fn renameat2(
    from_directory: c_int,
    from: *const c_char,
    to_directory: c_int,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    let host = |from, to| {
        real!(renameat2(
            from_directory => c_int, from => *const c_char, to_directory => c_int,
            to => *const c_char, flags => c_uint
        ) -> c_int)
    };
    let ours = |from: &Spot, to: &Spot| move_name(from, to, flags);
    // SAFETY: the program vouches for its arguments, as to the C library.
    unsafe { of_two((from_directory, from), (to_directory, to), ours, host) }
}

fn add_name(existing: At<'_>, to: &Spot, follow: Follow) -> Answer<()> {
    let call = Link {
        existing: existing.into(),
        follow,
        place: to.at().into(),
    };
    volume()?.call(call).map(drop)
}

#[interposed]
unsafe extern "C" fn link(from: *const c_char, to: *const c_char) -> c_int {
    let host = |from, to| real!(link(from => *const c_char, to => *const c_char) -> c_int);
    let ours = |from: &Spot, to: &Spot| add_name(from.at(), to, Follow::No);
    // SAFETY: the program vouches for its arguments, as to the C library.
    unsafe { of_two((HERE, from), (HERE, to), ours, host) }
}

#[interposed]
unsafe extern "C" fn linkat(
    from_directory: c_int,
    from: *const c_char,
    to_directory: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: the program vouches for its arguments, as to the C library.
    let by_number = flags & libc::AT_EMPTY_PATH != 0 && unsafe { text(from) }.is_empty();
    if by_number && let Some(open) = descriptors::get(from_directory) {
        // SAFETY: as above.
        let Place::Volume(spot) = (unsafe { path::find(to_directory, to) }) else {
            set_errno(Errno::XDEV);
            return -1;
        };
        let existing = At::inode(crate::volume::credentials(), open.id());
        let added = crate::inside::call(|| add_name(existing, &spot, Follow::No));
        return added.to_c() as c_int;
    }
    let host = |from, to| {
        real!(linkat(
            from_directory => c_int, from => *const c_char, to_directory => c_int,
            to => *const c_char, flags => c_int
        ) -> c_int)
    };
    let follow = match flags & libc::AT_SYMLINK_FOLLOW {
        0 => Follow::No,
        _ => Follow::Yes,
    };
    let ours = |from: &Spot, to: &Spot| add_name(from.at(), to, follow);
    // SAFETY: as above.
    unsafe { of_two((from_directory, from), (to_directory, to), ours, host) }
}

fn make_link(target: &[u8], spot: &Spot) -> Answer<()> {
    let place = spot.at().into();
    volume()?.call(MakeSymlink { target, place }).map(drop)
}

#[interposed]
unsafe extern "C" fn symlink(target: *const c_char, path: *const c_char) -> c_int {
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { path::find(HERE, path) } {
        Place::Volume(spot) => {
            // SAFETY: as above.
            let target = unsafe { text(target) };
            crate::inside::call(|| make_link(target, &spot)).to_c() as c_int
        }
        Place::Host(host) => {
            real!(symlink(target => *const c_char, host.pointer(path) => *const c_char) -> c_int)
        }
    }
}

#[interposed]
unsafe extern "C" fn symlinkat(
    target: *const c_char,
    directory: c_int,
    path: *const c_char,
) -> c_int {
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { path::find(directory, path) } {
        Place::Volume(spot) => {
            // SAFETY: as above.
            let target = unsafe { text(target) };
            crate::inside::call(|| make_link(target, &spot)).to_c() as c_int
        }
        Place::Host(host) => real!(symlinkat(
            target => *const c_char, directory => c_int, host.pointer(path) => *const c_char
        ) -> c_int),
    }
}
