//! Blobs: create, open, read, write, resize, sync, delete, attributes, iterate.

use crate::arguments::{answer, bytes, handle, invalid, out, text};
use crate::attributes::adit_flist_xattrs;
use crate::file::{
    adit_close, adit_file_size, adit_fsync, adit_ftruncate, adit_pread, adit_pwrite, file,
};
use crate::handles::{FileHandle, VolumeHandle};
use crate::result::{guard, guard_int, guard_unit};
use crate::types::AditBlobId;
use adit::{BlobId, Errno, Error, OpenOptions, Result};
use std::ffi::{c_char, c_int, c_void};

/// Behind `adit_blob *`: an open blob can do all that a file can.
pub type BlobHandle = FileHandle;

/// An id as C gives it. Its generation is wider than ours: then there is no such blob.
unsafe fn id(pointer: *const AditBlobId) -> Result<BlobId> {
    // SAFETY: as for this function.
    let id = unsafe { handle(pointer)? };
    match u32::try_from(id.generation) {
        Ok(generation) => Ok(BlobId {
            slot: id.slot,
            generation,
        }),
        Err(_) => Err(Error::with(Errno::NOENT, "find a blob of this generation")),
    }
}

impl From<BlobId> for AditBlobId {
    fn from(id: BlobId) -> Self {
        AditBlobId {
            slot: id.slot,
            generation: id.generation.into(),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_blob_create(
    volume: *mut VolumeHandle,
    result: *mut AditBlobId,
) -> c_int {
    guard_unit(|| {
        let result = out(result)?;
        // SAFETY: promised by adit.h.
        result.put(unsafe { handle(volume)? }.volume.create_blob()?.into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_blob_open(
    volume: *mut VolumeHandle,
    which: *const AditBlobId,
    result: *mut *mut BlobHandle,
) -> c_int {
    guard_unit(|| {
        let result = out(result)?;
        // SAFETY: promised by adit.h.
        let (volume, id) = unsafe { (&handle(volume)?.volume, id(which)?) };
        let opened = volume.open_blob(id, OpenOptions::new().read(true).write(true))?;
        result.give(BlobHandle::new(opened));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_blob_close(pointer: *mut BlobHandle) -> c_int {
    // SAFETY: as for this function.
    unsafe { adit_close(pointer) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_blob_delete(
    volume: *mut VolumeHandle,
    which: *const AditBlobId,
) -> c_int {
    // SAFETY: promised by adit.h.
    guard_unit(|| unsafe { handle(volume)?.volume.delete_blob(id(which)?) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_blob_size(pointer: *mut BlobHandle) -> i64 {
    // SAFETY: as for this function.
    unsafe { adit_file_size(pointer) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_blob_resize(pointer: *mut BlobHandle, size: u64) -> c_int {
    // SAFETY: as for this function.
    unsafe { adit_ftruncate(pointer, size) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_blob_read(
    pointer: *mut BlobHandle,
    data: *mut c_void,
    len: usize,
    offset: u64,
) -> i64 {
    // SAFETY: as for this function.
    unsafe { adit_pread(pointer, data, len, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_blob_write(
    pointer: *mut BlobHandle,
    data: *const c_void,
    len: usize,
    offset: u64,
) -> i64 {
    // SAFETY: as for this function.
    unsafe { adit_pwrite(pointer, data, len, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_blob_sync(pointer: *mut BlobHandle) -> c_int {
    // SAFETY: as for this function.
    unsafe { adit_fsync(pointer) }
}

// ------------------------------------------------------------------------ attributes

unsafe fn attribute<'a>(name: *const c_char) -> Result<&'a [u8]> {
    // SAFETY: as for this function.
    let name = unsafe { text(name)? }.to_bytes();
    if name.is_empty() || name.len() > 255 {
        return Err(invalid("name an attribute with other than 1 to 255 bytes"));
    }
    Ok(name)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_blob_set_xattr(
    pointer: *mut BlobHandle,
    name: *const c_char,
    value: *const c_void,
    len: usize,
) -> c_int {
    guard_unit(|| {
        // SAFETY: promised by adit.h.
        let (blob, name, value) = unsafe { (file(pointer)?, attribute(name)?, bytes(value, len)?) };
        blob.set_xattr(name, value)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_blob_get_xattr(
    pointer: *mut BlobHandle,
    name: *const c_char,
    value: *mut c_void,
    len: usize,
) -> i64 {
    guard(|| {
        // SAFETY: promised by adit.h.
        let (blob, name) = unsafe { (file(pointer)?, attribute(name)?) };
        let found = blob.xattr(name)?;
        // SAFETY: promised by adit.h.
        unsafe { answer(&found, value.cast(), len) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_blob_remove_xattr(
    pointer: *mut BlobHandle,
    name: *const c_char,
) -> c_int {
    guard_unit(|| {
        // SAFETY: promised by adit.h.
        let (blob, name) = unsafe { (file(pointer)?, attribute(name)?) };
        blob.remove_xattr(name)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_blob_list_xattrs(
    pointer: *mut BlobHandle,
    names: *mut c_char,
    len: usize,
) -> i64 {
    // SAFETY: as for this function.
    unsafe { adit_flist_xattrs(pointer, names, len) }
}

// ------------------------------------------------------------------------ all blobs

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_blob_next(
    volume: *mut VolumeHandle,
    which: *mut AditBlobId,
) -> c_int {
    guard_int(|| {
        let place = out(which)?;
        // SAFETY: promised by adit.h.
        let (volume, last) = unsafe { (&handle(volume)?.volume, id(which)?) };
        let mut following = match last.slot {
            0 => volume.blobs(),
            _ => volume.blobs_after(last),
        };
        let Some(next) = following.next() else {
            return Ok(0);
        };
        place.put(next?.into());
        Ok(1)
    })
}
