//! The attributes and kinds of named inodes: symbolic links, special files, rights, owners, times,
//! extended attributes.

use crate::arguments::{answer, bytes, check_flags, handle, invalid, path, text};
use crate::file::{file, of_file};
use crate::handles::{FileHandle, VolumeHandle};
use crate::names::{of_name, on_name};
use crate::result::{guard, guard_unit};
use crate::types::{AditTime, NOFOLLOW, TIME_NOW, TIME_OMIT, XATTR_CREATE, XATTR_REPLACE};
use adit::{Access, FileKind, Follow, Result, SetTime, Timestamp, Volume, XattrMode};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

fn follow(flags: u32) -> Result<Follow> {
    check_flags(flags, NOFOLLOW)?;
    Ok(if flags & NOFOLLOW != 0 {
        Follow::No
    } else {
        Follow::Yes
    })
}

of_name! {
    adit_mknod(mode: c_uint, device: u64) = |volume, path| {
        let kind = FileKind::of_mode(mode);
        let kind = kind.ok_or_else(|| invalid("make a node of no known kind"))?;
        volume.make_node(path, kind, mode & !libc::S_IFMT, device)
    };
    adit_access(wanted: c_uint) = |volume, path| {
        let wanted = Access::from_bits(wanted).ok_or_else(|| invalid("ask for unknown rights"))?;
        volume.access(path, wanted)
    };
    adit_chmod(mode: c_uint, flags: c_uint) = |volume, path| {
        volume.set_mode_of(path, follow(flags)?, mode)
    };
    adit_chown(uid: u32, gid: u32, flags: c_uint) = |volume, path| {
        volume.set_owner_of(path, follow(flags)?, id(uid), id(gid))
    };
}
of_file! {
    adit_fchmod(mode: c_uint) = |file| file.set_mode(mode);
    adit_fchown(uid: u32, gid: u32) = |file| file.set_owner(id(uid), id(gid));
    adit_next_data(offset: u64) -> i64 = |file| file.next_data(offset);
    adit_next_hole(offset: u64) -> i64 = |file| file.next_hole(offset);
}

// ------------------------------------------------------------------------ links

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_symlink(
    volume: *mut VolumeHandle,
    target: *const c_char,
    name: *const c_char,
) -> c_int {
    guard_unit(|| {
        // SAFETY: promised by adit.h.
        let (volume, target, name) =
            unsafe { (&handle(volume)?.volume, path(target)?, path(name)?) };
        volume.symlink(target, name)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_readlink(
    volume: *mut VolumeHandle,
    name: *const c_char,
    target: *mut c_char,
    len: usize,
) -> i64 {
    guard(|| {
        // SAFETY: promised by adit.h.
        let (volume, name) = unsafe { (&handle(volume)?.volume, path(name)?) };
        let found = volume.read_link(name)?;
        // SAFETY: promised by adit.h.
        unsafe { answer(found.as_os_str().as_bytes(), target.cast(), len) }
    })
}

/// A user or group; None: it stays.
fn id(id: u32) -> Option<u32> {
    (id != u32::MAX).then_some(id)
}

// ------------------------------------------------------------------------ times

/// What an array of two times says; NULL: both now.
unsafe fn times(times: *const AditTime) -> Result<(SetTime, SetTime)> {
    // SAFETY: as for this function.
    let Some(times) = (unsafe { times.cast::<[AditTime; 2]>().as_ref() }) else {
        return Ok((SetTime::Now, SetTime::Now));
    };
    let [accessed, modified] = times.map(|time| match time.nanoseconds {
        TIME_NOW => SetTime::Now,
        TIME_OMIT => SetTime::Omit,
        nanoseconds => SetTime::To(Timestamp {
            seconds: time.seconds,
            nanoseconds,
        }),
    });
    Ok((accessed, modified))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_utimens(
    volume: *mut VolumeHandle,
    name: *const c_char,
    given: *const AditTime,
    flags: c_uint,
) -> c_int {
    let set = |volume: &Volume, path: &Path| {
        // SAFETY: promised by adit.h.
        let (accessed, modified) = unsafe { times(given)? };
        volume.set_times_of(path, follow(flags)?, accessed, modified)
    };
    // SAFETY: promised by adit.h.
    unsafe { on_name(volume, name, set) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_futimens(pointer: *mut FileHandle, given: *const AditTime) -> c_int {
    guard_unit(|| {
        // SAFETY: promised by adit.h.
        let (file, (accessed, modified)) = unsafe { (file(pointer)?, times(given)?) };
        file.set_times_to(accessed, modified)
    })
}

// ------------------------------------------------------------------------ extended attributes

fn xattr_mode(flags: u32) -> Result<XattrMode> {
    match flags & (XATTR_CREATE | XATTR_REPLACE) {
        0 => Ok(XattrMode::Any),
        XATTR_CREATE => Ok(XattrMode::Create),
        XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => Err(invalid("set an attribute that must and must not exist")),
    }
}

/// Names one behind the other, each with its zero.
fn joined(names: Vec<Vec<u8>>) -> Vec<u8> {
    let mut list = Vec::new();
    for name in names {
        list.extend_from_slice(&name);
        list.push(0);
    }
    list
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_set_xattr(
    volume: *mut VolumeHandle,
    name: *const c_char,
    attribute: *const c_char,
    value: *const c_void,
    len: usize,
    flags: c_uint,
) -> c_int {
    let set = |volume: &Volume, path: &Path| {
        // SAFETY: promised by adit.h.
        let (attribute, value) = unsafe { (text(attribute)?, bytes(value, len)?) };
        let mode = xattr_mode(flags)?;
        let follow = follow(flags & !(XATTR_CREATE | XATTR_REPLACE))?;
        volume.set_xattr_of(path, follow, attribute.to_bytes(), value, mode)
    };
    // SAFETY: promised by adit.h.
    unsafe { on_name(volume, name, set) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_get_xattr(
    volume: *mut VolumeHandle,
    name: *const c_char,
    attribute: *const c_char,
    value: *mut c_void,
    len: usize,
    flags: c_uint,
) -> i64 {
    guard(|| {
        // SAFETY: promised by adit.h.
        let (volume, name, attribute) =
            unsafe { (&handle(volume)?.volume, path(name)?, text(attribute)?) };
        let found = volume.xattr_of(name, follow(flags)?, attribute.to_bytes())?;
        // SAFETY: promised by adit.h.
        unsafe { answer(&found, value.cast(), len) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_remove_xattr(
    volume: *mut VolumeHandle,
    name: *const c_char,
    attribute: *const c_char,
    flags: c_uint,
) -> c_int {
    let remove = |volume: &Volume, path: &Path| {
        // SAFETY: promised by adit.h.
        let attribute = unsafe { text(attribute)? };
        volume.remove_xattr_of(path, follow(flags)?, attribute.to_bytes())
    };
    // SAFETY: promised by adit.h.
    unsafe { on_name(volume, name, remove) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_list_xattrs(
    volume: *mut VolumeHandle,
    name: *const c_char,
    names: *mut c_char,
    len: usize,
    flags: c_uint,
) -> i64 {
    guard(|| {
        // SAFETY: promised by adit.h.
        let (volume, name) = unsafe { (&handle(volume)?.volume, path(name)?) };
        let found = volume.xattr_names_of(name, follow(flags)?)?;
        // SAFETY: promised by adit.h.
        unsafe { answer(&joined(found), names.cast(), len) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_fset_xattr(
    pointer: *mut FileHandle,
    attribute: *const c_char,
    value: *const c_void,
    len: usize,
    flags: c_uint,
) -> c_int {
    guard_unit(|| {
        // SAFETY: promised by adit.h.
        let (file, attribute, value) =
            unsafe { (file(pointer)?, text(attribute)?, bytes(value, len)?) };
        check_flags(flags, XATTR_CREATE | XATTR_REPLACE)?;
        file.set_xattr_with(attribute.to_bytes(), value, xattr_mode(flags)?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_fget_xattr(
    pointer: *mut FileHandle,
    attribute: *const c_char,
    value: *mut c_void,
    len: usize,
) -> i64 {
    guard(|| {
        // SAFETY: promised by adit.h.
        let (file, attribute) = unsafe { (file(pointer)?, text(attribute)?) };
        let found = file.xattr(attribute.to_bytes())?;
        // SAFETY: promised by adit.h.
        unsafe { answer(&found, value.cast(), len) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_fremove_xattr(
    pointer: *mut FileHandle,
    attribute: *const c_char,
) -> c_int {
    guard_unit(|| {
        // SAFETY: promised by adit.h.
        let (file, attribute) = unsafe { (file(pointer)?, text(attribute)?) };
        file.remove_xattr(attribute.to_bytes())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_flist_xattrs(
    pointer: *mut FileHandle,
    names: *mut c_char,
    len: usize,
) -> i64 {
    guard(|| {
        // SAFETY: promised by adit.h.
        let found = unsafe { file(pointer)? }.xattr_names()?;
        // SAFETY: promised by adit.h.
        unsafe { answer(&joined(found), names.cast(), len) }
    })
}

// ------------------------------------------------------------------------ sparse files

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_copy_range(
    from: *mut FileHandle,
    offset: u64,
    to: *mut FileHandle,
    to_offset: u64,
    len: u64,
) -> i64 {
    guard(|| {
        // SAFETY: promised by adit.h.
        let (from, to) = unsafe { (file(from)?, file(to)?) };
        Ok(from.copy_range(offset, to, to_offset, len)? as i64)
    })
}
