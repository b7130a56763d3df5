//! Open files: reading, writing, syncing, space, attributes, locks.

use crate::arguments::{
    bytes, bytes_mut, check_flags, close, growing_out, handle, invalid, items, out, path,
    with_slices, with_slices_mut,
};
use crate::handles::FileHandle;
use crate::handles::VolumeHandle;
use crate::result::{failed, guard, guard_int, guard_unit};
use crate::types::{
    AditRangeLock, AditReadRequest, AditStat, AditWriteRange, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE,
    FALLOC_ZERO_RANGE, LOCK_EXCLUSIVE, LOCK_NONBLOCKING, LOCK_POSIX, LOCK_SHARED, LOCK_UNLOCK,
    O_APPEND, O_CREAT, O_DIRECT, O_DIRECTORY, O_DSYNC, O_EXCL, O_NOATIME, O_NOFOLLOW, O_PATH,
    O_RDWR, O_SYNC, O_TRUNC, O_WRONLY, WRITE_DSYNC,
};
use adit::{
    AllocateFlags, File, FlockOperation, LockMode, LockOwner, OpenOptions, RangeLock, ReadRequest,
    Result,
};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::sync::PoisonError;

/// Functions of an open file: of a row with `-> i64` the result is the number, or an error, of
/// others 0.
macro_rules! of_file {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $number:ty)? = |$file:ident| $body:expr;)*) => {
        $($crate::file::of_file!(@ $name($($argument: $type),*) [$($number)?] |$file| $body);)*
    };
    (@ $name:ident($($argument:ident: $type:ty),*) [] |$file:ident| $body:expr) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            pointer: *mut $crate::handles::FileHandle $(, $argument: $type)*
        ) -> std::ffi::c_int {
            $crate::result::guard_unit(|| {
                // SAFETY: promised by adit.h.
                let $file = unsafe { $crate::file::file(pointer)? };
                $body
            })
        }
    };
    (@ $name:ident($($argument:ident: $type:ty),*) [$number:ty] |$file:ident| $body:expr) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            pointer: *mut $crate::handles::FileHandle $(, $argument: $type)*
        ) -> $number {
            $crate::result::guard(|| {
                // SAFETY: promised by adit.h.
                let $file = unsafe { $crate::file::file(pointer)? };
                Ok($body? as i64)
            })
        }
    };
}
pub(crate) use of_file;

#[inline]
pub(crate) unsafe fn file<'a>(pointer: *const FileHandle) -> Result<&'a File> {
    // SAFETY: as for this function.
    Ok(&unsafe { handle(pointer)? }.file)
}

of_file! {
    adit_fsync() = |file| file.sync_all();
    adit_fdatasync() = |file| file.sync_data();
    adit_start_write_back() = |file| file.start_write_back();
    adit_ftruncate(size: u64) = |file| file.set_len(size);
    adit_release_locks(owner: u64) = |file| file.release_locks(owner);
    adit_file_size() -> i64 = |file| file.len();
    adit_atomic_write_max() -> i64 = |file| file.atomic_write_max();
}

fn open_options(flags: u32, mode: u32) -> Result<OpenOptions> {
    let others = O_CREAT | O_EXCL | O_TRUNC | O_APPEND | O_DIRECT | O_DSYNC | O_SYNC | O_DIRECTORY;
    let others = others | O_NOFOLLOW | O_PATH | O_NOATIME;
    check_flags(flags, O_WRONLY | O_RDWR | others)?;
    let has = |flag| flags & flag != 0;
    if has(O_WRONLY) && has(O_RDWR) {
        return Err(invalid("open a file for two kinds of access"));
    }
    if has(O_EXCL) && !has(O_CREAT) {
        return Err(invalid("open a file with ADIT_O_EXCL alone"));
    }
    let writable = has(O_WRONLY) || has(O_RDWR);
    if !writable && (has(O_TRUNC) || has(O_APPEND)) {
        return Err(invalid("truncate or append to a file opened for reading"));
    }
    let mut options = OpenOptions::new();
    options
        .read(!has(O_WRONLY))
        .write(writable)
        .append(has(O_APPEND))
        .create(has(O_CREAT))
        .create_new(has(O_EXCL))
        .truncate(has(O_TRUNC))
        .direct(has(O_DIRECT))
        .dsync(has(O_DSYNC))
        .sync(has(O_SYNC))
        .directory(has(O_DIRECTORY))
        .no_follow(has(O_NOFOLLOW))
        .path_only(has(O_PATH))
        .keep_accessed(has(O_NOATIME))
        .mode(mode);
    Ok(options)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_open(
    volume: *mut VolumeHandle,
    name: *const c_char,
    flags: c_uint,
    mode: c_uint,
    result: *mut *mut FileHandle,
) -> c_int {
    guard_unit(|| {
        let result = out(result)?;
        // SAFETY: promised by adit.h.
        let (volume, path) = unsafe { (&handle(volume)?.volume, path(name)?) };
        let opened = volume.open_file(path, &open_options(flags, mode)?)?;
        result.give(FileHandle::new(opened));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_create_and_sync(
    volume: *mut VolumeHandle,
    name: *const c_char,
    flags: c_uint,
    mode: c_uint,
    data: *const c_void,
    len: usize,
    result: *mut *mut FileHandle,
) -> c_int {
    guard_unit(|| {
        // SAFETY: promised by adit.h.
        let (volume, path) = unsafe { (&handle(volume)?.volume, path(name)?) };
        // SAFETY: promised by adit.h.
        let content = unsafe { bytes(data, len)? };
        let created = volume.create_and_sync(path, &open_options(flags, mode)?, content)?;
        // Without a place for it the file is closed again.
        if let Ok(result) = out(result) {
            result.give(FileHandle::new(created));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_close(pointer: *mut FileHandle) -> c_int {
    // SAFETY: promised by adit.h.
    guard_unit(|| unsafe { close(pointer, |handle| handle.file.is_inherited()) })
}

// ------------------------------------------------------------------------ reading

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_pread(
    pointer: *mut FileHandle,
    data: *mut c_void,
    len: usize,
    offset: u64,
) -> i64 {
    guard(|| {
        // SAFETY: promised by adit.h.
        let (file, memory) = unsafe { (file(pointer)?, bytes_mut(data, len)?) };
        Ok(file.read_at(memory, offset)? as i64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_preadv(
    pointer: *mut FileHandle,
    vector: *const libc::iovec,
    count: c_int,
    offset: u64,
) -> i64 {
    guard(|| {
        // SAFETY: promised by adit.h.
        let file = unsafe { file(pointer)? };
        let read = |slices: &mut [IoSliceMut<'_>]| file.read_vectored_at(slices, offset);
        // SAFETY: promised by adit.h.
        Ok(unsafe { with_slices_mut(vector, count, read)? } as i64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_pread_many(
    pointer: *mut FileHandle,
    requests: *mut AditReadRequest,
    count: usize,
) -> c_int {
    guard_unit(|| {
        // SAFETY: promised by adit.h.
        let file = unsafe { file(pointer)? };
        if count == 0 {
            return Ok(());
        }
        if requests.is_null() || count > isize::MAX as usize / size_of::<AditReadRequest>() {
            return Err(invalid("use read requests that are not there"));
        }
        // SAFETY: promised by adit.h.
        let given = unsafe { std::slice::from_raw_parts_mut(requests, count) };
        let mut reads = Vec::with_capacity(count);
        for request in given.iter() {
            // SAFETY: promised by adit.h, also that these don't overlap.
            let memory = unsafe { bytes_mut(request.data, request.len)? };
            reads.push(ReadRequest::new(request.offset, memory));
        }
        file.read_many(&mut reads)?;
        for (request, read) in given.iter_mut().zip(reads) {
            request.result = match read.result {
                Ok(got) => got as i64,
                Err(error) => failed(error),
            };
        }
        Ok(())
    })
}

// ------------------------------------------------------------------------ writing

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_pwrite(
    pointer: *mut FileHandle,
    data: *const c_void,
    len: usize,
    offset: u64,
) -> i64 {
    guard(|| {
        // SAFETY: promised by adit.h.
        let (file, memory) = unsafe { (file(pointer)?, bytes(data, len)?) };
        file.write_at(memory, offset)?;
        Ok(len as i64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_pwritev(
    pointer: *mut FileHandle,
    vector: *const libc::iovec,
    count: c_int,
    offset: u64,
    flags: c_uint,
) -> i64 {
    guard(|| {
        check_flags(flags, WRITE_DSYNC)?;
        // SAFETY: promised by adit.h.
        let file = unsafe { file(pointer)? };
        let write = |slices: &[IoSlice<'_>]| {
            match flags & WRITE_DSYNC {
                0 => file.write_vectored_at(slices, offset)?,
                _ => file.write_and_sync(slices, offset)?,
            }
            Ok(slices.iter().map(|slice| slice.len()).sum::<usize>())
        };
        // SAFETY: promised by adit.h.
        Ok(unsafe { with_slices(vector, count, write)? } as i64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_append(
    pointer: *mut FileHandle,
    data: *const c_void,
    len: usize,
    offset: *mut u64,
) -> i64 {
    guard(|| {
        // SAFETY: promised by adit.h.
        let (file, memory) = unsafe { (file(pointer)?, bytes(data, len)?) };
        let at = file.append(memory)?;
        if let Ok(offset) = out(offset) {
            offset.put(at);
        }
        Ok(len as i64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_appendv(
    pointer: *mut FileHandle,
    vector: *const libc::iovec,
    count: c_int,
    flags: c_uint,
    offset: *mut u64,
) -> i64 {
    guard(|| {
        check_flags(flags, WRITE_DSYNC)?;
        // SAFETY: promised by adit.h.
        let file = unsafe { file(pointer)? };
        let append = |slices: &[IoSlice<'_>]| {
            let at = match flags & WRITE_DSYNC {
                0 => file.append_vectored(slices)?,
                _ => file.append_and_sync(slices)?,
            };
            Ok((at, slices.iter().map(|slice| slice.len()).sum::<usize>()))
        };
        // SAFETY: promised by adit.h.
        let (at, len) = unsafe { with_slices(vector, count, append)? };
        if let Ok(offset) = out(offset) {
            offset.put(at);
        }
        Ok(len as i64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_pwrite_atomic(
    pointer: *mut FileHandle,
    ranges: *const AditWriteRange,
    count: usize,
    flags: c_uint,
) -> c_int {
    guard_unit(|| {
        check_flags(flags, WRITE_DSYNC)?;
        // SAFETY: promised by adit.h.
        let (file, given) = unsafe { (file(pointer)?, items(ranges, count)?) };
        let mut pieces = Vec::with_capacity(count);
        for range in given {
            // SAFETY: promised by adit.h.
            pieces.push((range.offset, unsafe { bytes(range.data, range.len)? }));
        }
        if flags & WRITE_DSYNC != 0 {
            file.write_atomic_and_sync(&pieces)
        } else {
            file.write_atomic(&pieces)
        }
    })
}

// ------------------------------------------------------------------------ space

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_fallocate(
    pointer: *mut FileHandle,
    mode: c_uint,
    offset: u64,
    len: u64,
) -> c_int {
    guard_unit(|| {
        check_flags(
            mode,
            FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE | FALLOC_ZERO_RANGE,
        )?;
        let mut flags = AllocateFlags::empty();
        flags.set(AllocateFlags::KEEP_SIZE, mode & FALLOC_KEEP_SIZE != 0);
        flags.set(AllocateFlags::ZERO_RANGE, mode & FALLOC_ZERO_RANGE != 0);
        if mode & FALLOC_PUNCH_HOLE != 0 {
            // Punching never changes the size; only Linux wants that said.
            flags |= AllocateFlags::PUNCH_HOLE | AllocateFlags::KEEP_SIZE;
        }
        // SAFETY: promised by adit.h.
        unsafe { file(pointer)? }.allocate(flags, offset, len)
    })
}

// ------------------------------------------------------------------------ mapping

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_map_shared(
    pointer: *mut FileHandle,
    offset: u64,
    len: usize,
    memory: *mut *mut c_void,
) -> c_int {
    guard_unit(|| {
        // SAFETY: promised by adit.h.
        let (opened, memory) = unsafe { (handle(pointer)?, out(memory)?) };
        let mapping = opened.file.map_shared(offset, len)?;
        memory.put(mapping.as_ptr().cast());
        let mappings = opened.mappings.lock();
        mappings
            .unwrap_or_else(PoisonError::into_inner)
            .push(mapping);
        Ok(())
    })
}

// ------------------------------------------------------------------------ attributes, locks

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_fstat(pointer: *mut FileHandle, result: *mut AditStat) -> c_int {
    guard_unit(|| {
        // SAFETY: promised by adit.h.
        let result = unsafe { growing_out(result)? };
        // SAFETY: promised by adit.h.
        let metadata = unsafe { file(pointer)? }.metadata()?;
        result.put(&metadata.stat().into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_flock(pointer: *mut FileHandle, operation: c_int) -> c_int {
    guard_unit(|| {
        let wait = operation & LOCK_NONBLOCKING == 0;
        let operation = match operation & !LOCK_NONBLOCKING {
            LOCK_SHARED => FlockOperation::Shared { wait },
            LOCK_EXCLUSIVE => FlockOperation::Exclusive { wait },
            LOCK_UNLOCK => FlockOperation::Unlock,
            _ => return Err(invalid("lock a file in a way that has no meaning")),
        };
        // SAFETY: promised by adit.h.
        unsafe { file(pointer)? }.flock(operation)
    })
}

/// What a range lock asks for: the lock (None: to unlock), whose, and whether to wait.
fn range_lock(given: &AditRangeLock) -> Result<(Option<LockMode>, LockOwner, bool)> {
    let mode = match given.operation & !(LOCK_NONBLOCKING | LOCK_POSIX) {
        LOCK_SHARED => Some(LockMode::Shared),
        LOCK_EXCLUSIVE => Some(LockMode::Exclusive),
        LOCK_UNLOCK => None,
        _ => return Err(invalid("lock a range in a way that has no meaning")),
    };
    let owner = match given.operation & LOCK_POSIX {
        0 => LockOwner::Descriptor,
        _ => LockOwner::Posix {
            id: given.owner,
            pid: given.pid,
        },
    };
    Ok((mode, owner, given.operation & LOCK_NONBLOCKING == 0))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_lock_range(
    pointer: *mut FileHandle,
    lock: *const AditRangeLock,
) -> c_int {
    guard_unit(|| {
        // SAFETY: promised by adit.h.
        let (file, given) = unsafe { (file(pointer)?, handle(lock)?) };
        let (mode, owner, wait) = range_lock(given)?;
        let Some(mode) = mode else {
            return file.unlock_range(owner, given.offset, given.len);
        };
        let lock = RangeLock::new(owner, mode, given.offset, given.len);
        file.lock_range(&lock, wait)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_test_lock(
    pointer: *mut FileHandle,
    lock: *const AditRangeLock,
    blocker: *mut AditRangeLock,
) -> c_int {
    guard_int(|| {
        // SAFETY: promised by adit.h.
        let (file, given, blocker) = unsafe { (file(pointer)?, handle(lock)?, out(blocker)?) };
        let (mode, owner, _) = range_lock(given)?;
        let mode = mode.ok_or_else(|| invalid("ask what is in the way of unlocking"))?;
        let lock = RangeLock::new(owner, mode, given.offset, given.len);
        let Some(found) = file.test_lock(&lock)? else {
            return Ok(0);
        };
        let (posix, owner, pid) = match found.owner {
            LockOwner::Posix { id, pid } => (LOCK_POSIX, id, pid),
            _ => (0, 0, -1),
        };
        let mode = match found.mode {
            LockMode::Shared => LOCK_SHARED,
            LockMode::Exclusive => LOCK_EXCLUSIVE,
        };
        blocker.put(AditRangeLock {
            offset: found.offset,
            len: found.len_bytes,
            owner,
            pid,
            operation: mode | posix,
        });
        Ok(1)
    })
}
