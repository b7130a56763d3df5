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
use adit_fs::Follow;
use libc::{c_char, c_int, c_void, size_t, ssize_t};

use super::{of_descriptor, of_path};

of_path! {
    getxattr: (name: *const c_char, value: *mut c_void, room: size_t) -> ssize_t = get_followed;
    lgetxattr: (name: *const c_char, value: *mut c_void, room: size_t) -> ssize_t = get_itself;
    setxattr: (name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int = set_followed;
    lsetxattr: (name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int = set_itself;
    listxattr: (list: *mut c_char, room: size_t) -> ssize_t = list_followed;
    llistxattr: (list: *mut c_char, room: size_t) -> ssize_t = list_itself;
    removexattr: (name: *const c_char) -> c_int = remove_followed;
    lremovexattr: (name: *const c_char) -> c_int = remove_itself;
}
of_descriptor! {
    fgetxattr: (name: *const c_char, value: *mut c_void, room: size_t) -> ssize_t = get_open;
    fsetxattr: (name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int = set_open;
    flistxattr: (list: *mut c_char, room: size_t) -> ssize_t = list_open;
    fremovexattr: (name: *const c_char) -> c_int = remove_open;
}

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
    match name.starts_with(b"system.posix_acl_") {
        true => Err(Errno::OPNOTSUPP),
        false => Ok(name),
    }
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

macro_rules! on_path {
    ($follow:expr, $get:ident $set:ident $list:ident $remove:ident) => {
        unsafe fn $get(spot: &Spot, name: *const c_char, to: *mut c_void, room: size_t) -> Answer {
            // SAFETY: as for this function.
            let name = unsafe { text(name)? };
            let volume = volume()?;
            let value = volume.call(GetXattr {
                place: spot.at().into(),
                follow: $follow,
                name,
            })?;
            // SAFETY: as for this function.
            unsafe { give(&value, to, room) }
        }

        unsafe fn $set(
            spot: &Spot,
            name: *const c_char,
            from: *const c_void,
            len: size_t,
            flags: c_int,
        ) -> Answer<()> {
            // SAFETY: as for this function.
            let (name, value) = unsafe { (text(name)?, value(from, len)?) };
            let (volume, mode) = (volume()?, mode(flags)?);
            volume.call(SetXattr {
                place: spot.at().into(),
                follow: $follow,
                name,
                value,
                mode,
            })
        }

        unsafe fn $list(spot: &Spot, to: *mut c_char, room: size_t) -> Answer {
            let volume = volume()?;
            let names = volume.call(ListXattrs {
                place: spot.at().into(),
                follow: $follow,
            })?;
            // SAFETY: as for this function.
            unsafe { give(&joined(&names), to.cast(), room) }
        }

        unsafe fn $remove(spot: &Spot, name: *const c_char) -> Answer<()> {
            // SAFETY: as for this function.
            let name = unsafe { text(name)? };
            let volume = volume()?;
            volume.call(RemoveXattr {
                place: spot.at().into(),
                follow: $follow,
                name,
            })
        }
    };
}
on_path!(Follow::Yes, get_followed set_followed list_followed remove_followed);
on_path!(Follow::No, get_itself set_itself list_itself remove_itself);

unsafe fn get_open(open: &Open, name: *const c_char, to: *mut c_void, room: size_t) -> Answer {
    // SAFETY: as for this function.
    let value = open.file.xattr(unsafe { text(name)? }).map_err(errno)?;
    // SAFETY: as for this function.
    unsafe { give(&value, to, room) }
}

unsafe fn set_open(
    open: &Open,
    name: *const c_char,
    from: *const c_void,
    len: size_t,
    flags: c_int,
) -> Answer<()> {
    // SAFETY: as for this function.
    let (name, value) = unsafe { (text(name)?, value(from, len)?) };
    let (volume, mode) = (volume()?, mode(flags)?);
    volume.call(SetXattr {
        place: open.to_change()?.into(),
        follow: Follow::No,
        name,
        value,
        mode,
    })
}

unsafe fn list_open(open: &Open, to: *mut c_char, room: size_t) -> Answer {
    let names = open.file.xattr_names().map_err(errno)?;
    // SAFETY: as for this function.
    unsafe { give(&joined(&names), to.cast(), room) }
}

unsafe fn remove_open(open: &Open, name: *const c_char) -> Answer<()> {
    // SAFETY: as for this function.
    let name = unsafe { text(name)? };
    let volume = volume()?;
    volume.call(RemoveXattr {
        place: open.to_change()?.into(),
        follow: Follow::No,
        name,
    })
}
