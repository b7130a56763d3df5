//! The working directory, and real paths.

use crate::files::canonical::{canonical, without_ups};
use crate::files::path::{self, Location, Spot};
use crate::files::{descriptors, nowhere};
use crate::program::copy;
use crate::runtime::answer::{Answer, ToC, errno, pointer};
use crate::runtime::inside;
use crate::runtime::path_text::squeezed;
use crate::runtime::real::{check_room, text};
use crate::volume::{opened, volume};
use adit::{Errno, FileKind};
use adit_base::fork;
use adit_fs::{Access, Follow};
use adit_interposed::interposed;
use libc::{c_char, c_int, size_t};
use std::ffi::CString;

#[interposed]
unsafe extern "C" fn chdir(name: *const c_char) -> c_int {
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { path::find(libc::AT_FDCWD, name) } {
        // A child of vfork has its parent's memory, but a working directory of its own.
        Location::Volume(spot) if fork::is_in_vfork() => inside::call(|| go_in_vfork(&spot)).to_c(),
        Location::Volume(spot) => inside::call(|| go_to(&spot)).to_c(),
        Location::Host(host) => {
            let done = real(host.pointer(name));
            if done == 0 {
                leave();
            }
            done
        }
    }
}

/// The working directory is the host's again.
fn leave() {
    if fork::is_in_vfork() {
        path::move_in_vfork();
    } else {
        path::leave();
    }
}

/// For the kernel only. An embedded volume that isn't open can't be asked now.
fn go_in_vfork(spot: &Spot) -> Answer<()> {
    if let Some(volume) = opened() {
        let found = volume.stat_at(spot.at(), Follow::Yes).map_err(errno)?;
        if found.kind != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        let may = volume.access_at(spot.at(), Follow::Yes, Access::EXECUTE);
        may.map_err(errno)?;
    }
    nowhere::go(&without_ups(&spot.shown));
    path::move_in_vfork();
    Ok(())
}

fn go_to(spot: &Spot) -> Answer<()> {
    let directory = super::open::open_at(spot.at(), &spot.shown, libc::O_DIRECTORY, 0)?;
    let shown = canonical(&spot.shown)?;
    path::enter(directory, shown)
}

#[interposed]
unsafe extern "C" fn fchdir(fd: c_int) -> c_int {
    match descriptors::get(fd) {
        Some(open) if fork::is_in_vfork() => {
            nowhere::go(&open.shown);
            path::move_in_vfork();
            0
        }
        Some(open) => {
            let entered = inside::call(|| {
                canonical(&open.shown).and_then(|shown| path::enter(open.clone(), shown))
            });
            entered.to_c()
        }
        None => {
            let done = real(fd);
            if done == 0 {
                leave();
            }
            done
        }
    }
}

/// Text for the program: into its buffer, or into memory of `malloc`.
unsafe fn give(text: &[u8], buffer: *mut c_char, room: size_t) -> Answer<*mut c_char> {
    let text = CString::new(text).map_err(|_| Errno::INVAL)?;
    let bytes = text.as_bytes_with_nul();
    if !buffer.is_null() || room > 0 {
        if room == 0 {
            return Err(Errno::INVAL);
        }
        if bytes.len() > room {
            return Err(Errno::RANGE);
        }
    }
    // SAFETY: memory for the whole text: the program's buffer, or made here.
    unsafe {
        let to = if buffer.is_null() {
            libc::malloc(room.max(bytes.len())).cast()
        } else {
            buffer
        };
        if to.is_null() {
            return Err(Errno::NOMEM);
        }
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, bytes.len());
        Ok(to)
    }
}

#[interposed]
unsafe extern "C" fn getcwd(buffer: *mut c_char, room: size_t) -> *mut c_char {
    match path::working_directory().transpose() {
        Some(shown) => {
            // SAFETY: the program vouches for its arguments, as to the C library.
            pointer(shown.and_then(|shown| unsafe { give(&shown, buffer, room) }))
        }
        None => real(buffer, room),
    }
}

#[interposed]
unsafe extern "C" fn __getcwd_chk(buffer: *mut c_char, room: size_t, size: size_t) -> *mut c_char {
    check_room(room, size);
    // SAFETY: as for this function.
    unsafe { getcwd(buffer, room) }
}

#[interposed]
unsafe extern "C" fn get_current_dir_name() -> *mut c_char {
    match path::working_directory().transpose() {
        Some(shown) => {
            // SAFETY: into memory of its own.
            pointer(shown.and_then(|shown| unsafe { give(&shown, std::ptr::null_mut(), 0) }))
        }
        None => real(),
    }
}

/// The C library looks at a name after the other, so its path may be longer than the kernel's: what
/// is left of it without `.` and repeated slashes.
unsafe fn shortened(name: *const c_char) -> Option<CString> {
    // SAFETY: NULL or a C string, says the program.
    let text = unsafe { text(name) };
    if text.len() < libc::PATH_MAX as usize {
        return None;
    }
    let squeezed = squeezed(text);
    CString::new(&squeezed[usize::from(text[0] != b'/')..]).ok()
}

#[interposed]
unsafe extern "C" fn realpath(name: *const c_char, buffer: *mut c_char) -> *mut c_char {
    // SAFETY: the program vouches for its arguments, as to the C library.
    if let Some(shown) = copy::executed_at(unsafe { text(name) }) {
        let room = if buffer.is_null() {
            0
        } else {
            libc::PATH_MAX as usize
        };
        // SAFETY: as above.
        return pointer(unsafe { give(shown, buffer, room) });
    }
    // SAFETY: as above.
    let short = unsafe { shortened(name) };
    let named = short.as_ref().map_or(name, |of| of.as_ptr());
    // SAFETY: as above.
    match unsafe { path::find(libc::AT_FDCWD, named) } {
        Location::Volume(spot) => {
            let found = inside::call(|| {
                // What is there, and whether a slash may be behind it.
                let there = volume()?.stat_at(spot.at(), Follow::Yes);
                there.map_err(errno)?;
                canonical(&spot.shown)
            });
            let room = if buffer.is_null() {
                0
            } else {
                libc::PATH_MAX as usize
            };
            // SAFETY: as above.
            pointer(found.and_then(|path| unsafe { give(&path, buffer, room) }))
        }
        Location::Host(host) => real(host.pointer(name), buffer),
    }
}

#[interposed]
unsafe extern "C" fn __realpath_chk(
    name: *const c_char,
    buffer: *mut c_char,
    _size: size_t,
) -> *mut c_char {
    // SAFETY: as for this function.
    unsafe { realpath(name, buffer) }
}

#[interposed]
unsafe extern "C" fn canonicalize_file_name(name: *const c_char) -> *mut c_char {
    // SAFETY: as for this function.
    unsafe { realpath(name, std::ptr::null_mut()) }
}
