//! Borrowed and lent memory.
//!
//! An `adit_buffer` belongs to the caller, so borrowing allocates nothing: the `Buffer` lies in its
//! `opaque` words. It is there exactly while `data` isn't NULL.

use crate::arguments::{handle, out};
use crate::handles::FileHandle;
use crate::handles::VolumeHandle;
use crate::result::{guard, guard_unit};
use crate::types::AditBuffer;
use adit::Buffer;
use std::ffi::c_int;

const _: () = assert!(size_of::<Buffer>() <= size_of::<[u64; 6]>());
const _: () = assert!(align_of::<Buffer>() <= align_of::<u64>());

const NOTHING: AditBuffer = AditBuffer {
    data: std::ptr::null_mut(),
    len: 0,
    opaque: [0; 6],
};

fn to_c(buffer: Buffer) -> AditBuffer {
    let memory = buffer.as_slice();
    let mut result = AditBuffer {
        data: memory.as_ptr().cast_mut().cast(),
        len: memory.len(),
        opaque: [0; 6],
    };
    // SAFETY: the words are large and aligned enough (asserted above), and nothing was in them.
    unsafe { (&raw mut result.opaque).cast::<Buffer>().write(buffer) };
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_pread_borrow(
    file: *mut FileHandle,
    len: usize,
    offset: u64,
    buffer: *mut AditBuffer,
) -> i64 {
    guard(|| {
        let result = out(buffer)?;
        // SAFETY: promised by adit.h.
        let buffer = unsafe { handle(file)? }.file.read_borrowed(len, offset)?;
        if buffer.is_empty() {
            result.put(NOTHING);
            return Ok(0);
        }
        let buffer = to_c(buffer);
        let len = buffer.len as i64;
        result.put(buffer);
        Ok(len)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_buffer_allocate(
    volume: *mut VolumeHandle,
    len: usize,
    buffer: *mut AditBuffer,
) -> c_int {
    guard_unit(|| {
        let result = out(buffer)?;
        // SAFETY: promised by adit.h.
        let buffer = unsafe { handle(volume)? }.volume.buffer(len)?;
        result.put(if len == 0 { NOTHING } else { to_c(buffer) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_buffer_release(buffer: *mut AditBuffer) {
    guard_unit(|| {
        // SAFETY: promised by adit.h.
        if let Some(buffer) = unsafe { buffer.as_mut() }
            && !buffer.data.is_null()
        {
            let held = std::mem::replace(buffer, NOTHING);
            // SAFETY: data isn't NULL, so `to_c` put a Buffer there; it is taken out once.
            drop(unsafe { (&raw const held.opaque).cast::<Buffer>().read() });
        }
        Ok(())
    });
}
