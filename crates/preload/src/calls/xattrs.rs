//! Extended attributes.
//!
//! Access control lists are refused as by a file system without them: a volume would only store them,
//! and a program that has set one (`cp -a`, `sed -i`) believes that the mode is set, too.

use crate::files::descriptors::Open;
use crate::files::path::Spot;
use crate::runtime::answer::{Answer, errno};
use crate::runtime::real;
use crate::volume::volume;
use adit::calls::{GetXattr, ListXattrs, RemoveXattr, SetXattr};
use adit::{Errno, XattrMode};
use adit_fs::{At, Follow};
use libc::{c_char, c_int, c_void, size_t, ssize_t};

use super::{of_descriptor, of_path};

of_path! {
    getxattr: (name: Name, value: *mut c_void, room: size_t) -> ssize_t = {get(Follow::Yes)};
    lgetxattr: (name: Name, value: *mut c_void, room: size_t) -> ssize_t = {get(Follow::No)};
    setxattr: (name: Name, value: *const c_void, len: size_t, flags: c_int) -> c_int = {set(Follow::Yes)};
    lsetxattr: (name: Name, value: *const c_void, len: size_t, flags: c_int) -> c_int = {set(Follow::No)};
    listxattr: (list: *mut c_char, room: size_t) -> ssize_t = {names(Follow::Yes)};
    llistxattr: (list: *mut c_char, room: size_t) -> ssize_t = {names(Follow::No)};
    removexattr: (name: Name) -> c_int = {remove(Follow::Yes)};
    lremovexattr: (name: Name) -> c_int = {remove(Follow::No)};
}
of_descriptor! {
    fgetxattr: (name: Name, value: *mut c_void, room: size_t) -> ssize_t = get_open;
    fsetxattr: (name: Name, value: *const c_void, len: size_t, flags: c_int) -> c_int = set_open;
    flistxattr: (list: *mut c_char, room: size_t) -> ssize_t = names_open;
    fremovexattr: (name: Name) -> c_int = remove_open;
}

type Name = *const c_char;

/// Gives the bytes to the program; without room: their number.
unsafe fn give(bytes: &[u8], to: *mut c_void, room: size_t) -> Answer {
    if room > 0 {
        if bytes.len() > room {
            return Err(Errno::RANGE);
        }
        // SAFETY: the program's buffer has that room, it says.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
    }
    Ok(bytes.len() as i64)
}

unsafe fn value<'a>(value: *const c_void, len: size_t) -> Answer<&'a [u8]> {
    match (value.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Errno::FAULT),
        // SAFETY: the program's memory has that length, it says.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(value.cast(), len) }),
    }
}

/// The name of an attribute that volumes have.
unsafe fn text<'a>(name: *const c_char) -> Answer<&'a [u8]> {
    if name.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: as for this function.
    let name = unsafe { real::text(name) };
    if name.starts_with(b"system.posix_acl_") {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(name)
}

fn mode(flags: c_int) -> Answer<XattrMode> {
    match flags {
        0 => Ok(XattrMode::Any),
        libc::XATTR_CREATE => Ok(XattrMode::Create),
        libc::XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => Err(Errno::INVAL),
    }
}

fn joined(names: &[Vec<u8>]) -> Vec<u8> {
    names
        .iter()
        .flat_map(|name| name.iter().copied().chain([0]))
        .collect()
}

unsafe fn get(spot: &Spot, follow: Follow, name: Name, to: *mut c_void, room: size_t) -> Answer {
    // SAFETY: as for this function.
    let name = unsafe { text(name)? };
    let place = spot.at().into();
    let value = volume()?.call(GetXattr {
        place,
        follow,
        name,
    })?;
    // SAFETY: as for this function.
    unsafe { give(&value, to, room) }
}

unsafe fn get_open(open: &Open, name: Name, to: *mut c_void, room: size_t) -> Answer {
    // SAFETY: as for this function.
    let value = open.file.xattr(unsafe { text(name)? }).map_err(errno)?;
    // SAFETY: as for this function.
    unsafe { give(&value, to, room) }
}

unsafe fn names(spot: &Spot, follow: Follow, to: *mut c_char, room: size_t) -> Answer {
    let place = spot.at().into();
    let names = volume()?.call(ListXattrs { place, follow })?;
    // SAFETY: as for this function.
    unsafe { give(&joined(&names), to.cast(), room) }
}

unsafe fn names_open(open: &Open, to: *mut c_char, room: size_t) -> Answer {
    let names = open.file.xattr_names().map_err(errno)?;
    // SAFETY: as for this function.
    unsafe { give(&joined(&names), to.cast(), room) }
}

unsafe fn set_at(
    at: At<'_>,
    follow: Follow,
    name: Name,
    (from, len): (*const c_void, size_t),
    flags: c_int,
) -> Answer<()> {
    // SAFETY: as for this function.
    let (name, value) = unsafe { (text(name)?, value(from, len)?) };
    let (volume, mode) = (volume()?, mode(flags)?);
    volume.call(SetXattr {
        place: at.into(),
        follow,
        name,
        value,
        mode,
    })
}

unsafe fn set(
    spot: &Spot,
    follow: Follow,
    name: Name,
    from: *const c_void,
    len: size_t,
    flags: c_int,
) -> Answer<()> {
    // SAFETY: as for this function.
    unsafe { set_at(spot.at(), follow, name, (from, len), flags) }
}

unsafe fn set_open(
    open: &Open,
    name: Name,
    from: *const c_void,
    len: size_t,
    flags: c_int,
) -> Answer<()> {
    // SAFETY: as for this function.
    unsafe { set_at(open.to_change()?, Follow::No, name, (from, len), flags) }
}

unsafe fn remove_at(at: At<'_>, follow: Follow, name: Name) -> Answer<()> {
    // SAFETY: as for this function.
    let name = unsafe { text(name)? };
    let place = at.into();
    volume()?.call(RemoveXattr {
        place,
        follow,
        name,
    })
}

unsafe fn remove(spot: &Spot, follow: Follow, name: Name) -> Answer<()> {
    // SAFETY: as for this function.
    unsafe { remove_at(spot.at(), follow, name) }
}

unsafe fn remove_open(open: &Open, name: Name) -> Answer<()> {
    // SAFETY: as for this function.
    unsafe { remove_at(open.to_change()?, Follow::No, name) }
}
