//! Reading directories.

use crate::arguments::{close, handle, handle_mut, out, path};
use crate::handles::VolumeHandle;
use crate::result::{guard_int, guard_unit};
use crate::types::{AditDirent, dirent_type};
use adit::{Errno, Error, ReadDir};
use std::ffi::{c_char, c_int};

/// Behind `adit_dir *`.
pub struct DirectoryHandle {
    entries: ReadDir,
    /// The name that was returned last, and a zero.
    name: Vec<u8>,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_opendir(
    volume: *mut VolumeHandle,
    name: *const c_char,
    dir: *mut *mut DirectoryHandle,
) -> c_int {
    guard_unit(|| {
        let dir = out(dir)?;
        // SAFETY: promised by adit.h.
        let (volume, path) = unsafe { (&handle(volume)?.volume, path(name)?) };
        dir.give(DirectoryHandle {
            entries: volume.read_dir(path)?,
            name: Vec::new(),
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_readdir(dir: *mut DirectoryHandle, entry: *mut AditDirent) -> c_int {
    guard_int(|| {
        let result = out(entry)?;
        // SAFETY: promised by adit.h.
        let dir = unsafe { handle_mut(dir)? };
        let Some(entry) = dir.entries.next() else {
            return Ok(0);
        };
        let entry = entry?;
        dir.name.clear();
        dir.name.extend_from_slice(&entry.name);
        dir.name.push(0);
        result.put(AditDirent {
            ino: entry.inode,
            cookie: entry.cookie,
            name: dir.name.as_ptr().cast(),
            name_len: entry.name.len() as u32,
            kind: dirent_type(entry.kind),
        });
        Ok(1)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_seekdir(dir: *mut DirectoryHandle, cookie: u64) -> c_int {
    guard_unit(|| {
        // SAFETY: promised by adit.h.
        let dir = unsafe { handle_mut(dir)? };
        if dir.entries.is_inherited() {
            return Err(Error::new(Errno::BADF));
        }
        dir.entries.seek(cookie);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_closedir(dir: *mut DirectoryHandle) -> c_int {
    // SAFETY: promised by adit.h.
    guard_unit(|| unsafe { close(dir, |handle| handle.entries.is_inherited()) })
}
