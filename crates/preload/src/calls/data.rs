//! Reading, writing, seeking, syncing.

use crate::files::descriptors::{self, Open};
use crate::runtime::answer::{Answer, errno};
use crate::runtime::inside;
use crate::runtime::real::check_room;
use crate::volume::settings;
use adit::{AllocateFlags, Errno, FileKind};
use adit_interposed::interposed;
use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};
use std::io::{IoSlice, IoSliceMut};

use super::of_descriptor;

/// No file is larger.
const FILE_BYTES_MAX: u64 = u32::MAX as u64 * 4096;
/// What every device writes as a whole.
const SECTOR_BYTES: usize = 512;

of_descriptor! {
    read | __read: (buffer: *mut c_void, len: size_t) -> ssize_t = read_next;
    __read_chk: (buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t = read_checked;
    pread | pread64 | __pread64: (buffer: *mut c_void, len: size_t, offset: off_t) -> ssize_t = read_at;
    __pread_chk | __pread64_chk: (buffer: *mut c_void, len: size_t, offset: off_t, room: size_t) -> ssize_t = read_at_checked;
    readv: (pieces: *const iovec, count: c_int) -> ssize_t = read_pieces;
    preadv | preadv64: (pieces: *const iovec, count: c_int, offset: off_t) -> ssize_t = read_pieces_at;
    preadv2 | preadv64v2: (pieces: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t = read_pieces_flagged;
    write | __write: (buffer: *const c_void, len: size_t) -> ssize_t = write_next;
    pwrite | pwrite64 | __pwrite64: (buffer: *const c_void, len: size_t, offset: off_t) -> ssize_t = write_at;
    writev: (pieces: *const iovec, count: c_int) -> ssize_t = write_pieces;
    pwritev | pwritev64: (pieces: *const iovec, count: c_int, offset: off_t) -> ssize_t = write_pieces_at;
    pwritev2 | pwritev64v2: (pieces: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t = write_pieces_flagged;
    lseek | lseek64 | __lseek: (offset: off_t, whence: c_int) -> off_t = seek;
    fsync: () -> c_int = sync_all;
    fdatasync: () -> c_int = sync_data;
    sync_file_range: (offset: off_t, len: off_t, flags: u32) -> c_int = sync_range;
    syncfs: () -> c_int = sync_volume;
    ftruncate | ftruncate64: (size: off_t) -> c_int = resize;
    fallocate | fallocate64: (mode: c_int, offset: off_t, len: off_t) -> c_int = allocate;
    readahead: (offset: off_t, len: size_t) -> ssize_t = nothing_to_read_ahead;
}

/// The most bytes that one call moves, as on Linux.
pub(crate) const LEN_MAX: usize = 0x7fff_f000;

pub(crate) unsafe fn memory<'a>(buffer: *mut c_void, len: usize) -> Answer<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    if buffer.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: the program's own memory, of which it says so.
    Ok(unsafe { std::slice::from_raw_parts_mut(buffer.cast(), len.min(LEN_MAX)) })
}

unsafe fn bytes<'a>(buffer: *const c_void, len: usize) -> Answer<&'a [u8]> {
    // SAFETY: as for this function; only read.
    unsafe { memory(buffer.cast_mut(), len) }.map(|memory| &*memory)
}

/// The kernel moves no bytes behind the last offset that there can be.
fn check_end(offset: u64, len: usize) -> Answer<()> {
    let end = offset.checked_add(len as u64);
    end.is_some_and(|end| i64::try_from(end).is_ok())
        .then_some(())
        .ok_or(Errno::INVAL)
}

fn offset(offset: off_t) -> Answer<u64> {
    u64::try_from(offset).map_err(|_| Errno::INVAL)
}

/// A directory's content is read by other calls.
fn check_content(open: &Open) -> Answer<()> {
    match open.kind {
        FileKind::Directory => Err(Errno::ISDIR),
        _ => Ok(()),
    }
}

// ------------------------------------------------------------------------ reading

/// Reads from a position.
pub(crate) fn read_from(open: &Open, memory: &mut [u8], offset: u64) -> Answer {
    open.check_readable()?;
    check_end(offset, memory.len())?;
    check_content(open)?;
    let count = open.file.read_at(memory, offset).map_err(errno)?;
    Ok(count as i64)
}

pub(crate) unsafe fn read_next(open: &Open, buffer: *mut c_void, len: size_t) -> Answer {
    open.check_readable()?;
    check_content(open)?;
    // SAFETY: as for this function.
    let memory = unsafe { memory(buffer, len)? };
    let mut position = open.position();
    let count = read_from(open, memory, *position)?;
    *position += count as u64;
    Ok(count)
}

unsafe fn read_checked(open: &Open, buffer: *mut c_void, len: size_t, room: size_t) -> Answer {
    check_room(len, room);
    // SAFETY: as for this function.
    unsafe { read_next(open, buffer, len) }
}

pub(crate) unsafe fn read_at(open: &Open, buffer: *mut c_void, len: size_t, at: off_t) -> Answer {
    // SAFETY: as for this function.
    read_from(open, unsafe { memory(buffer, len)? }, offset(at)?)
}

unsafe fn read_at_checked(
    open: &Open,
    buffer: *mut c_void,
    len: size_t,
    at: off_t,
    room: size_t,
) -> Answer {
    check_room(len, room);
    // SAFETY: as for this function.
    unsafe { read_at(open, buffer, len, at) }
}

/// The pieces, of which those behind `LEN_MAX` bytes are empty.
pub(crate) unsafe fn pieces(
    pieces: *const iovec,
    count: c_int,
) -> Answer<impl Iterator<Item = iovec>> {
    const PIECES_MAX: usize = 1024;
    let count = usize::try_from(count)
        .ok()
        .filter(|count| *count <= PIECES_MAX);
    let count = count.ok_or(Errno::INVAL)?;
    let pieces: &[iovec] = match count {
        0 => &[],
        _ if pieces.is_null() => return Err(Errno::FAULT),
        // SAFETY: as for this function.
        _ => unsafe { std::slice::from_raw_parts(pieces, count) },
    };
    let sum = pieces
        .iter()
        .try_fold(0usize, |sum, piece| sum.checked_add(piece.iov_len));
    if sum.is_none_or(|sum| sum > isize::MAX as usize) {
        return Err(Errno::INVAL);
    }
    let mut room = LEN_MAX;
    Ok(pieces.iter().map(move |piece| {
        let iov_len = piece.iov_len.min(room);
        room -= iov_len;
        iovec { iov_len, ..*piece }
    }))
}

unsafe fn read_vector(open: &Open, vector: *const iovec, count: c_int, offset: u64) -> Answer {
    open.check_readable()?;
    // SAFETY: as for this function.
    let pieces = unsafe { pieces(vector, count)? };
    let slice = |piece: iovec| {
        // SAFETY: as for this function.
        unsafe { memory(piece.iov_base, piece.iov_len) }.map(IoSliceMut::new)
    };
    let mut slices = pieces.map(slice).collect::<Answer<Vec<_>>>()?;
    let len: usize = slices.iter().map(|slice| slice.len()).sum();
    check_end(offset, len)?;
    if len == 0 {
        return Ok(0);
    }
    check_content(open)?;
    let count = open
        .file
        .read_vectored_at(&mut slices, offset)
        .map_err(errno)?;
    Ok(count as i64)
}

unsafe fn read_pieces(open: &Open, vector: *const iovec, count: c_int) -> Answer {
    let mut position = open.position();
    // SAFETY: as for this function.
    let read = unsafe { read_vector(open, vector, count, *position)? };
    *position += read as u64;
    Ok(read)
}

pub(crate) unsafe fn read_pieces_at(
    open: &Open,
    vector: *const iovec,
    count: c_int,
    at: off_t,
) -> Answer {
    // SAFETY: as for this function.
    unsafe { read_vector(open, vector, count, offset(at)?) }
}

unsafe fn read_pieces_flagged(
    open: &Open,
    vector: *const iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> Answer {
    const WRITES: c_int = libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND | RWF_NOAPPEND;
    open.check_readable()?;
    // Polling is a matter of the device; RWF_NOWAIT can't be promised. Those of writes say nothing
    // here.
    let known = match open.kind {
        FileKind::Directory => libc::RWF_HIPRI,
        _ => libc::RWF_HIPRI | WRITES,
    };
    let both = libc::RWF_APPEND | RWF_NOAPPEND;
    if flags & !known != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if flags & both == both {
        return Err(Errno::INVAL);
    }
    match at {
        // SAFETY: as for this function.
        -1 => unsafe { read_pieces(open, vector, count) },
        // SAFETY: as for this function.
        at => unsafe { read_pieces_at(open, vector, count, at) },
    }
}

fn nothing_to_read_ahead(open: &Open, _offset: off_t, _len: size_t) -> Answer {
    open.check_readable()?;
    match open.kind {
        FileKind::Directory => Err(Errno::INVAL),
        _ => Ok(0),
    }
}

// ------------------------------------------------------------------------ writing

/// The place and the length of a write.
struct Written {
    offset: u64,
    len: usize,
}

impl Written {
    fn count(self) -> i64 {
        self.len as i64
    }
}

/// Where a write goes: to an offset, or, None, to the end.
type WriteOffset = Option<u64>;

/// Another thread may change the file's flag: it is read once.
fn place(open: &Open, offset: u64) -> WriteOffset {
    (!open.appends()).then_some(offset)
}

/// Writes there. `atomic`: all of it or nothing survives a crash.
fn write_to(open: &Open, data: &[u8], place: WriteOffset, atomic: bool) -> Answer<Written> {
    open.check_writable()?;
    check_end(place.unwrap_or(0), data.len())?;
    let written = match place {
        None => open.file.append(data),
        Some(offset) if atomic || is_whole_by_promise(offset, data.len()) => {
            open.file.write_atomic(&[(offset, data)]).map(|()| offset)
        }
        Some(offset) => open.file.write_at(data, offset).map(|()| offset),
    };
    let len = data.len();
    let offset = written.map_err(errno)?;
    Ok(Written { offset, len })
}

/// Did `adit run --atomic-writes` promise it for this write? The pages of databases have a power of
/// two of bytes, and begin at a multiple of it: so the kernel's RWF_ATOMIC wants it, too. Other
/// writes (of a redo log, say) stay cheap. A sector is whole in any case.
fn is_promised_atomic(offset: u64, len: usize) -> bool {
    let Some(settings) = settings().filter(|settings| settings.atomic_bytes > 0) else {
        return false;
    };
    let is_page = len.is_power_of_two() && offset.is_multiple_of(len as u64);
    is_page && (SECTOR_BYTES + 1..=settings.atomic_bytes).contains(&len)
}

/// Was it promised that this write is whole or not at all, and isn't it by itself?
pub(crate) fn is_whole_by_promise(offset: u64, len: usize) -> bool {
    is_promised_atomic(offset, len)
}

/// Writes at the position, and moves it. An append needs no lock of it meanwhile: a process that is
/// stopped then keeps nobody from the position who shares it.
fn at_position(
    open: &Open,
    appends: bool,
    write: impl FnOnce(WriteOffset) -> Answer<Written>,
) -> Answer {
    let mut position = open.position();
    let before = *position;
    let place = (!appends).then_some(before);
    if place.is_none() {
        drop(position);
        let written = write(place)?;
        let end = written.offset + written.len as u64;
        position = open.position();
        // Behind what others have appended since, as if it had had its turn before them.
        if written.len > 0 && (*position == before || *position < end) {
            *position = end;
        }
        return Ok(written.count());
    }
    let count = write(place)?.count();
    *position += count as u64;
    Ok(count)
}

pub(crate) unsafe fn write_next(open: &Open, buffer: *const c_void, len: size_t) -> Answer {
    open.check_writable()?;
    // SAFETY: as for this function.
    let data = unsafe { bytes(buffer, len)? };
    at_position(open, open.appends(), |place| {
        write_to(open, data, place, false)
    })
}

pub(crate) unsafe fn write_at(
    open: &Open,
    buffer: *const c_void,
    len: size_t,
    at: off_t,
) -> Answer {
    // SAFETY: as for this function.
    let data = unsafe { bytes(buffer, len)? };
    let place = place(open, offset(at)?);
    write_to(open, data, place, false).map(Written::count)
}

unsafe fn write_vector(
    open: &Open,
    vector: *const iovec,
    count: c_int,
    place: WriteOffset,
    flags: c_int,
) -> Answer<Written> {
    open.check_writable()?;
    // SAFETY: as for this function.
    let pieces = unsafe { pieces(vector, count)? };
    let slice = |piece: iovec| {
        // SAFETY: as for this function.
        unsafe { bytes(piece.iov_base, piece.iov_len) }.map(IoSlice::new)
    };
    let slices = pieces.map(slice).collect::<Answer<Vec<_>>>()?;
    let len: usize = slices.iter().map(|slice| slice.len()).sum();
    check_end(place.unwrap_or(0), len)?;
    let is_promised = place.is_some_and(|offset| is_promised_atomic(offset, len));
    if place.is_some() && (flags & RWF_ATOMIC != 0 || is_promised) {
        let whole: Vec<u8> = slices
            .iter()
            .flat_map(|slice| slice.iter().copied())
            .collect();
        return write_to(open, &whole, place, flags & RWF_ATOMIC != 0);
    }
    let written = match place {
        None => open.file.append_vectored(&slices),
        Some(offset) => {
            let written = open.file.write_vectored_at(&slices, offset);
            written.map(|()| offset)
        }
    };
    let offset = written.map_err(errno)?;
    Ok(Written { offset, len })
}

/// All of it or nothing survives a crash.
pub(crate) const RWF_ATOMIC: c_int = 0x40;
/// `O_APPEND` doesn't count.
const RWF_NOAPPEND: c_int = 0x20;

unsafe fn write_pieces(open: &Open, vector: *const iovec, count: c_int) -> Answer {
    // SAFETY: as for this function.
    at_position(open, open.appends(), |place| unsafe {
        write_vector(open, vector, count, place, 0)
    })
}

unsafe fn write_pieces_at(open: &Open, vector: *const iovec, count: c_int, at: off_t) -> Answer {
    let place = place(open, offset(at)?);
    // SAFETY: as for this function.
    unsafe { write_vector(open, vector, count, place, 0).map(Written::count) }
}

pub(crate) unsafe fn write_pieces_flagged(
    open: &Open,
    vector: *const iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> Answer {
    let durable = libc::RWF_DSYNC | libc::RWF_SYNC;
    let both = libc::RWF_APPEND | RWF_NOAPPEND;
    open.check_writable()?;
    if flags & !(libc::RWF_HIPRI | durable | both | RWF_ATOMIC) != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if flags & both == both {
        return Err(Errno::INVAL);
    }
    let appends = match flags & both {
        0 => open.appends(),
        flag => flag == libc::RWF_APPEND,
    };
    if appends && flags & RWF_ATOMIC != 0 {
        // Its place is known only when it is made.
        return Err(Errno::OPNOTSUPP);
    }
    // SAFETY: as for this function.
    let write = |place| unsafe { write_vector(open, vector, count, place, flags) };
    let count = match at {
        -1 => at_position(open, appends, write)?,
        at => {
            let at = offset(at)?;
            write((!appends).then_some(at))?.count()
        }
    };
    match flags & durable {
        0 => {}
        flags if flags & libc::RWF_SYNC != 0 => open.file.sync_all().map_err(errno)?,
        _ => open.file.sync_data().map_err(errno)?,
    }
    Ok(count)
}

// ------------------------------------------------------------------------ position, size, syncs

pub(crate) fn seek(open: &Open, by: off_t, whence: c_int) -> Answer {
    open.check()?;
    if open.kind == FileKind::Directory {
        return super::directories::seek(open, by, whence);
    }
    let mut position = open.position();
    let from = |base: u64| {
        let base = i64::try_from(base).map_err(|_| Errno::INVAL)?;
        base.checked_add(by).ok_or(Errno::INVAL)
    };
    let to = match whence {
        libc::SEEK_SET => by,
        libc::SEEK_CUR => from(*position)?,
        libc::SEEK_END => from(open.file.len().map_err(errno)?)?,
        libc::SEEK_DATA | libc::SEEK_HOLE => {
            let start = u64::try_from(by).map_err(|_| Errno::NXIO)?;
            let found = match whence {
                libc::SEEK_DATA => open.file.next_data(start),
                _ => open.file.next_hole(start),
            };
            found.map_err(errno)? as i64
        }
        _ => return Err(Errno::INVAL),
    };
    let to = u64::try_from(to).map_err(|_| Errno::INVAL)?;
    if to > FILE_BYTES_MAX {
        return Err(Errno::INVAL);
    }
    *position = to;
    Ok(to as i64)
}

pub(crate) fn sync_all(open: &Open) -> Answer<()> {
    open.file.sync_all().map_err(errno)
}

pub(crate) fn sync_data(open: &Open) -> Answer<()> {
    open.file.sync_data().map_err(errno)
}

/// More than was asked for: it starts, or waits for, all of the file.
fn sync_range(open: &Open, at: off_t, len: off_t, flags: u32) -> Answer<()> {
    const WAIT: u32 = libc::SYNC_FILE_RANGE_WAIT_AFTER;
    const KNOWN: u32 = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | WAIT;
    open.check()?;
    let is_range = at >= 0 && at.checked_add(len).is_some_and(|end| end >= at);
    if flags & !KNOWN != 0 || !is_range {
        return Err(Errno::INVAL);
    }
    match flags & WAIT {
        0 => open.file.start_write_back().map_err(errno),
        _ => open.file.sync_data().map_err(errno),
    }
}

fn sync_volume(open: &Open) -> Answer<()> {
    open.check()?;
    crate::volume::volume()?.sync().map_err(errno)
}

pub(crate) fn resize(open: &Open, size: off_t) -> Answer<()> {
    let size = offset(size)?;
    open.check()?;
    if !open.is_writable() {
        return Err(Errno::INVAL);
    }
    open.file.set_len(size).map_err(errno)
}

/// That the kernel hands on to a file system.
const MODES: c_int = libc::FALLOC_FL_KEEP_SIZE
    | libc::FALLOC_FL_PUNCH_HOLE
    | libc::FALLOC_FL_COLLAPSE_RANGE
    | libc::FALLOC_FL_ZERO_RANGE
    | libc::FALLOC_FL_INSERT_RANGE
    | libc::FALLOC_FL_UNSHARE_RANGE;

fn allocate(open: &Open, mode: c_int, at: off_t, len: off_t) -> Answer<()> {
    open.check()?;
    let (at, len) = (offset(at)?, offset(len)?);
    if len == 0 {
        return Err(Errno::INVAL);
    }
    let is_punched = mode & libc::FALLOC_FL_PUNCH_HOLE != 0;
    let keeps = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    let moves = mode & (libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE) != 0;
    if mode & !MODES != 0 || is_punched && !keeps || moves && keeps {
        return Err(Errno::OPNOTSUPP);
    }
    open.check_writable()?;
    let flags = AllocateFlags::from_bits(mode as u32).ok_or(Errno::OPNOTSUPP)?;
    open.file.allocate(flags, at, len).map_err(errno)
}

/// What a function returns that has its error as its result, and sets no `errno`.
fn returned(answer: Answer<()>) -> c_int {
    answer.map_or_else(Errno::raw, |()| 0)
}

#[interposed(posix_fallocate64)]
unsafe extern "C" fn posix_fallocate(fd: c_int, at: off_t, len: off_t) -> c_int {
    match descriptors::get(fd) {
        Some(open) => returned(inside::call(|| allocate(&open, 0, at, len))),
        None => real(fd, at, len),
    }
}

/// Advice is not needed: the cache reads ahead by itself.
#[interposed(posix_fadvise64)]
unsafe extern "C" fn posix_fadvise(fd: c_int, at: off_t, len: off_t, advice: c_int) -> c_int {
    match descriptors::get(fd) {
        Some(open) => {
            let is_known = (0..=5).contains(&advice) && len >= 0;
            let known = if is_known { Ok(()) } else { Err(Errno::INVAL) };
            returned(open.check().and(known))
        }
        None => real(fd, at, len, advice),
    }
}
