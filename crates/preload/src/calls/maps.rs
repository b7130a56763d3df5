//! mmap: a copy of the file's content in memory of the process.
//!
//! Private mappings, and shared ones that are only read. Later writes to the file don't show in
//! them, and content behind the end reads as zeroes where the kernel would send SIGBUS. A shared
//! mapping for writing is refused.

use crate::answer::{Answer, errno, pointer};
use crate::descriptors::{self, Open};
use crate::message::say_once;
use crate::real::real;
use adit::{Errno, FileKind};
use libc::{c_int, c_void, off_t, size_t};

macro_rules! mmap {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            address: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int,
            offset: off_t,
        ) -> *mut c_void {
            if flags & libc::MAP_ANONYMOUS == 0 && let Some(open) = descriptors::get(fd) {
                let mapped = copy(&open, address, len, protection, flags, offset);
                let mapped = pointer(mapped);
                return if mapped.is_null() { libc::MAP_FAILED } else { mapped };
            }
            real!($name(
                address => *mut c_void, len => size_t, protection => c_int, flags => c_int,
                fd => c_int, offset => off_t
            ) -> *mut c_void)
        }
    )*};
}
mmap!(mmap mmap64);

fn copy(
    open: &Open,
    address: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    offset: off_t,
) -> Answer<*mut c_void> {
    const PAGE: off_t = 4096;
    let is_private = flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    if len == 0 || offset < 0 || offset % PAGE != 0 {
        return Err(Errno::INVAL);
    }
    if !open.is_readable() {
        return Err(Errno::ACCESS);
    }
    if open.kind != FileKind::File {
        return Err(Errno::NODEV);
    }
    if !is_private && protection & libc::PROT_WRITE != 0 {
        say_once!(
            "mmap of {}: a shared mapping for writing is not supported: ENODEV",
            String::from_utf8_lossy(&open.shown)
        );
        return Err(Errno::NODEV);
    }
    let kept = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE | libc::MAP_32BIT;
    let flags = flags & kept | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    let memory = real!(mmap(
        address => *mut c_void, len => size_t, writable => c_int, flags => c_int, -1 => c_int,
        0 => off_t
    ) -> *mut c_void);
    if memory == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    let unmap = |error| {
        // SAFETY: made above.
        unsafe { libc::munmap(memory, len) };
        error
    };
    let size = open.file.len().map_err(errno).map_err(unmap)?;
    let filled = size.saturating_sub(offset as u64).min(len as u64) as usize;
    // SAFETY: that much of it was just mapped.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory.cast::<u8>(), filled) };
    let mut done = 0;
    while done < filled {
        let read = open
            .file
            .read_at(&mut bytes[done..], offset as u64 + done as u64);
        match read.map_err(errno).map_err(unmap)? {
            0 => break,
            count => done += count,
        }
    }
    // SAFETY: as above.
    if protection & writable != writable && unsafe { libc::mprotect(memory, len, protection) } != 0
    {
        return Err(unmap(Errno::last()));
    }
    Ok(memory)
}
