//! mmap. Private mappings are a copy of the content; shared ones are memory of the process that is
//! kept equal to the file.
//!
//! ```text
//! shared mapping ─ the kernel ─► scratch (memfd of the file's length) ◄─ read, write, ftruncate
//!                                   └─ msync, fsync, munmap, end ─► the file: pages that differ
//! ```
//! Invariants: a file has at most one scratch, so all its mappings show the same bytes. While it has
//! one, each change of its content is done under the lock, to the file first and then to the pages
//! that the scratch has ([`change`]); a read takes those pages from the scratch ([`overlay`]). What
//! was written through a mapping and not flushed dies with the process: the kernel would keep it.

use crate::answer::{Answer, ToC, errno, pointer};
use crate::descriptors::{self, Open};
use crate::inside;
use crate::own::Own;
use crate::real::real;
use adit::{Errno, FileKind};
use adit_fs::BlobId;
use libc::{c_int, c_void, off_t, size_t};
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const PAGE: u64 = 4096;
/// Pages that are copied at once when a file is mapped.
const FILL_PAGES: u64 = 64;

/// The memory behind the shared mappings of a file.
struct Scratch {
    memory: Own,
    /// Pages that were copied into it.
    pages: BTreeSet<u64>,
    /// To read the file, and to write it if a mapping may.
    open: Arc<Open>,
    mappings: usize,
}

struct Mapping {
    address: usize,
    len: usize,
    file: BlobId,
}

#[derive(Default)]
pub(crate) struct Maps {
    scratches: HashMap<BlobId, Scratch>,
    mappings: Vec<Mapping>,
}

static MAPS: Mutex<Option<Maps>> = Mutex::new(None);
/// Files with a scratch.
static SCRATCHES: AtomicUsize = AtomicUsize::new(0);

const SHELVES: usize = 4096;
/// The same files, by their number: whoever uses a file on an empty shelf takes no lock. (LevelDB
/// maps up to 1000 tables, and writes its log meanwhile.)
static SHELF: [AtomicU32; SHELVES] = [const { AtomicU32::new(0) }; SHELVES];

fn shelf(file: BlobId) -> &'static AtomicU32 {
    let hash = file.slot.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &SHELF[(hash >> 52) as usize]
}

/// Says that there is a scratch of the file, or will be.
fn announce(file: BlobId) {
    shelf(file).fetch_add(1, Ordering::SeqCst);
    SCRATCHES.fetch_add(1, Ordering::SeqCst);
}

fn withdraw(file: BlobId) {
    shelf(file).fetch_sub(1, Ordering::AcqRel);
    SCRATCHES.fetch_sub(1, Ordering::AcqRel);
}

/// Begin and end of each mapping. Its lock is never held while memory is taken or the volume is used:
/// the allocator of any thread may unmap memory, also while another thread has the other lock.
static RANGES: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

fn publish(mappings: &[Mapping]) {
    let ranges = mappings.iter();
    let mut ranges: Vec<_> = ranges
        .map(|map| (map.address, map.address + map.len))
        .collect();
    std::mem::swap(
        &mut *RANGES.lock().unwrap_or_else(PoisonError::into_inner),
        &mut ranges,
    );
}

/// Does a mapping of ours lie in this range? No memory that is taken in the middle of a call is one.
fn is_ours(address: *mut c_void, len: usize) -> bool {
    if !are_there_any() || inside::is_inside() {
        return false;
    }
    let (begin, end) = (address as usize, (address as usize).saturating_add(len));
    let ranges = RANGES.lock().unwrap_or_else(PoisonError::into_inner);
    ranges
        .iter()
        .any(|(first, last)| *first < end && begin < *last)
}

fn lock() -> MutexGuard<'static, Option<Maps>> {
    MAPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps other threads from the mappings while this one forks.
pub(crate) struct MapsLock(#[expect(dead_code)] MutexGuard<'static, Option<Maps>>);

pub(crate) fn lock_maps() -> MapsLock {
    MapsLock(lock())
}

#[inline]
fn are_there_any() -> bool {
    SCRATCHES.load(Ordering::Acquire) > 0
}

/// May the file have a scratch?
#[inline]
fn may_have(file: BlobId) -> bool {
    shelf(file).load(Ordering::SeqCst) > 0
}

fn io(error: std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

impl Scratch {
    fn new(open: Arc<Open>) -> Answer<Scratch> {
        // SAFETY: a C string; the result is ours.
        let memory = unsafe {
            let fd = libc::memfd_create(c"adit-mapping".as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 {
                return Err(Errno::last());
            }
            Own::new(File::from_raw_fd(fd)).map_err(io)?
        };
        Ok(Scratch {
            memory,
            pages: BTreeSet::new(),
            open,
            mappings: 0,
        })
    }

    /// Makes it as long as that, and copies the pages that it doesn't have.
    fn fill(&mut self, offset: u64, len: u64) -> Answer<()> {
        let end = (offset + len).next_multiple_of(PAGE);
        if self.memory.metadata().map_err(io)?.len() < end {
            self.memory.set_len(end).map_err(io)?;
        }
        let mut buffer = Vec::new();
        let mut page = offset / PAGE;
        while page < end / PAGE {
            if self.pages.contains(&page) {
                page += 1;
                continue;
            }
            let limit = (page + FILL_PAGES).min(end / PAGE);
            let next = self.pages.range(page..limit).next();
            let limit = next.copied().unwrap_or(limit);
            buffer.resize(((limit - page) * PAGE) as usize, 0);
            let count = self.read_file(&mut buffer, page * PAGE)?;
            // Memory that was not written reads as zeroes, as the file does behind its end.
            self.memory
                .write_all_at(&buffer[..count], page * PAGE)
                .map_err(io)?;
            self.pages.extend(page..limit);
            page = limit;
        }
        Ok(())
    }

    /// Reads the file until the buffer is full, or the file ends.
    fn read_file(&self, buffer: &mut [u8], offset: u64) -> Answer<usize> {
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            match self.open.file.read_at(&mut buffer[done..], at) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) => return Err(errno(error)),
            }
        }
        Ok(done)
    }

    /// A page of the file; zeroes behind its end.
    fn of_file(&self, page: u64) -> Answer<[u8; PAGE as usize]> {
        let mut content = [0; PAGE as usize];
        self.read_file(&mut content, page * PAGE)?;
        Ok(content)
    }

    /// Writes the pages that differ to the file, up to its end.
    fn flush(&self) -> Answer<()> {
        if !self.open.is_writable() {
            return Ok(());
        }
        let size = self.open.file.len().map_err(errno)?;
        for page in self.pages.range(..size.div_ceil(PAGE)) {
            let at = page * PAGE;
            let mut content = [0; PAGE as usize];
            self.memory.read_exact_at(&mut content, at).map_err(io)?;
            let len = (size - at).min(PAGE) as usize;
            if content[..len] != self.of_file(*page)?[..len] {
                self.open
                    .file
                    .write_at(&content[..len], at)
                    .map_err(errno)?;
            }
        }
        Ok(())
    }

    /// Parts of a range that lie in its pages, as begin and end.
    fn parts(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
        let end = offset.saturating_add(len);
        let pages = self.pages.range(offset / PAGE..end.div_ceil(PAGE));
        pages.map(move |page| (offset.max(page * PAGE), end.min((page + 1) * PAGE)))
    }

    /// The file got these bytes.
    fn write(&self, data: &[u8], offset: u64) -> Answer<()> {
        for (begin, end) in self.parts(offset, data.len() as u64) {
            let part = &data[(begin - offset) as usize..(end - offset) as usize];
            self.memory.write_all_at(part, begin).map_err(io)?;
        }
        Ok(())
    }

    /// The file reads as zeroes there.
    fn clear(&self, offset: u64, len: u64) -> Answer<()> {
        for (begin, end) in self.parts(offset, len) {
            let zeroes = [0; PAGE as usize];
            let part = &zeroes[..(end - begin) as usize];
            self.memory.write_all_at(part, begin).map_err(io)?;
        }
        Ok(())
    }
}

/// What a change does to the content of a file.
pub(crate) enum Change<'c> {
    /// These bytes, at this offset.
    Write(&'c [u8], u64),
    /// The same in pieces.
    Pieces(&'c [IoSlice<'c>], u64),
    /// Zeroes: offset and length.
    Clear(u64, u64),
}

/// Changes the content of a file, and of its mappings likewise. `make` changes the file, and says
/// what became of it.
///
/// On an empty shelf there is no lock, only a count: [`share`] announces the scratch, and waits until
/// all that didn't see it are done. (Both sides write their word before they read the other's, so one
/// of them sees the other.)
#[inline]
pub(crate) fn change<'c, T>(
    open: &Open,
    make: impl FnOnce() -> Answer<(T, Change<'c>)>,
) -> Answer<T> {
    open.changes.fetch_add(1, Ordering::SeqCst);
    if !may_have(open.id()) {
        let made = make();
        open.changes.fetch_sub(1, Ordering::Release);
        return made.map(|(result, _)| result);
    }
    open.changes.fetch_sub(1, Ordering::Release);
    let maps = lock();
    let (result, change) = make()?;
    let scratches = maps.as_ref().map(|maps| &maps.scratches);
    if let Some(scratch) = scratches.and_then(|scratches| scratches.get(&open.id())) {
        match change {
            Change::Write(data, offset) => scratch.write(data, offset)?,
            Change::Pieces(pieces, mut offset) => {
                for piece in pieces {
                    scratch.write(piece, offset)?;
                    offset += piece.len() as u64;
                }
            }
            Change::Clear(offset, len) => scratch.clear(offset, len)?,
        }
    }
    Ok(result)
}

/// Waits until nobody changes the file without the lock.
fn await_changes(file: BlobId) {
    for fd in descriptors::in_range(0, c_int::MAX) {
        let Some(open) = descriptors::get(fd) else {
            continue;
        };
        while open.id() == file && open.changes.load(Ordering::SeqCst) > 0 {
            crate::aio::progress();
        }
    }
}

/// Is some of it mapped, shared with the file, or about to be?
#[inline]
pub(crate) fn is_mapped(file: BlobId) -> bool {
    may_have(file)
}

/// After a read of the file: what mappings have is newer.
#[inline]
pub(crate) fn overlay(file: BlobId, memory: &mut [u8], offset: u64) -> Answer<()> {
    if !may_have(file) {
        return Ok(());
    }
    let maps = lock();
    let Some(scratch) = maps.as_ref().and_then(|maps| maps.scratches.get(&file)) else {
        return Ok(());
    };
    for (begin, end) in scratch.parts(offset, memory.len() as u64) {
        let part = &mut memory[(begin - offset) as usize..(end - offset) as usize];
        scratch.memory.read_exact_at(part, begin).map_err(io)?;
    }
    Ok(())
}

/// Before a sync of the file: what was written through mappings belongs to it.
pub(crate) fn flush(file: BlobId) -> Answer<()> {
    if !may_have(file) {
        return Ok(());
    }
    let maps = lock();
    let scratch = maps.as_ref().and_then(|maps| maps.scratches.get(&file));
    scratch.map_or(Ok(()), Scratch::flush)
}

/// At the end of the process.
pub(crate) fn flush_all() {
    let Some(maps) = lock().take() else { return };
    for scratch in maps.scratches.values() {
        if let Err(errno) = scratch.flush() {
            let name = String::from_utf8_lossy(&scratch.open.shown);
            crate::message::say(format_args!(
                "what was written to a mapping of {name} is lost: {errno:?}"
            ));
        }
    }
    maps.scratches.keys().copied().for_each(withdraw);
}

// ------------------------------------------------------------------------ the calls

macro_rules! mmap {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            address: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int,
            offset: off_t,
        ) -> *mut c_void {
            if flags & libc::MAP_ANONYMOUS == 0 && let Some(open) = descriptors::get(fd) {
                let mapped = inside::call(|| map(&open, address, len, protection, flags, offset));
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

fn map(
    open: &Arc<Open>,
    address: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    offset: off_t,
) -> Answer<*mut c_void> {
    let at = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
    if len == 0 || !at.is_multiple_of(PAGE) || at.checked_add(len as u64).is_none() {
        return Err(Errno::INVAL);
    }
    if !open.is_readable() {
        return Err(Errno::ACCESS);
    }
    if open.kind != FileKind::File {
        return Err(Errno::NODEV);
    }
    match flags & libc::MAP_TYPE {
        libc::MAP_PRIVATE => copy(open, address, len, protection, flags, at),
        _ if protection & libc::PROT_WRITE != 0 && !open.is_writable() => Err(Errno::ACCESS),
        _ => share(open, address, len, protection, flags, at),
    }
}

fn share(
    open: &Arc<Open>,
    address: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    offset: u64,
) -> Answer<*mut c_void> {
    let file = open.id();
    announce(file);
    await_changes(file);
    let mut maps = lock();
    let maps = maps.get_or_insert_default();
    let is_new = !maps.scratches.contains_key(&file);
    let mapped = (|| {
        if is_new {
            maps.scratches.insert(file, Scratch::new(open.clone())?);
        }
        let scratch = maps.scratches.get_mut(&file).ok_or(Errno::IO)?;
        if open.is_writable() && !scratch.open.is_writable() {
            scratch.open = open.clone();
        }
        if protection & libc::PROT_WRITE != 0 {
            claim(&scratch.open)?;
        }
        scratch.fill(offset, len as u64)?;
        let fd = scratch.memory.as_raw_fd();
        let mapped = real!(mmap(
            address => *mut c_void, len => size_t, protection => c_int, flags => c_int,
            fd => c_int, offset as off_t => off_t
        ) -> *mut c_void);
        if mapped == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        scratch.mappings += 1;
        maps.mappings.push(Mapping {
            address: mapped as usize,
            len: len.next_multiple_of(PAGE as usize),
            file,
        });
        publish(&maps.mappings);
        Ok(mapped)
    })();
    let is_unused = maps
        .scratches
        .get(&file)
        .is_some_and(|scratch| scratch.mappings == 0);
    if is_unused {
        maps.scratches.remove(&file);
    }
    if !is_new || mapped.is_err() {
        withdraw(file);
    }
    mapped
}

/// With a volume in a server, another process with memory of its own would not see what is written
/// to a mapping: SQLite's write-ahead log would lose commits.
fn claim(open: &Open) -> Answer<()> {
    let claimed = open.file.claim_mapping().map_err(errno);
    if claimed == Err(Errno::AGAIN) {
        crate::message::say_once!(
            "another process has a shared mapping of the same file that it writes: EAGAIN (SQLite: one \
             process at a time uses a write-ahead log)"
        );
    }
    claimed
}

fn copy(
    open: &Open,
    address: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    offset: u64,
) -> Answer<*mut c_void> {
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
        real!(munmap(memory => *mut c_void, len => size_t) -> c_int);
        error
    };
    let size = open.file.len().map_err(errno).map_err(unmap)?;
    let filled = size.saturating_sub(offset).min(len as u64) as usize;
    // SAFETY: that much of it was just mapped.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory.cast::<u8>(), filled) };
    let mut done = 0;
    while done < filled {
        let read = super::data::read_from(open, &mut bytes[done..], offset + done as u64);
        match read.map_err(unmap)? {
            0 => break,
            count => done += count as usize,
        }
    }
    // SAFETY: as above.
    if protection & writable != writable && unsafe { libc::mprotect(memory, len, protection) } != 0
    {
        return Err(unmap(Errno::last()));
    }
    Ok(memory)
}

/// Files whose mappings lie in a range of memory.
fn files_in(maps: &Maps, address: usize, len: usize) -> Vec<BlobId> {
    let end = address.saturating_add(len);
    let inside = maps.mappings.iter();
    let inside = inside.filter(|map| map.address < end && address < map.address + map.len);
    inside.map(|map| map.file).collect()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn msync(address: *mut c_void, len: size_t, flags: c_int) -> c_int {
    let done = real!(msync(address => *mut c_void, len => size_t, flags => c_int) -> c_int);
    if done != 0 || !is_ours(address, len) {
        return done;
    }
    inside::call(|| sync_mapped(address as usize, len, flags)).to_c() as c_int
}

fn sync_mapped(address: usize, len: usize, flags: c_int) -> Answer<()> {
    let maps = lock();
    let Some(maps) = maps.as_ref() else {
        return Ok(());
    };
    let sync = |file: BlobId| {
        let scratch = maps.scratches.get(&file).ok_or(Errno::IO)?;
        scratch.flush()?;
        match flags & libc::MS_SYNC {
            0 => Ok(()),
            _ => scratch.open.file.sync_data().map_err(errno),
        }
    };
    files_in(maps, address, len).into_iter().try_for_each(sync)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(address: *mut c_void, len: size_t) -> c_int {
    if is_ours(address, len) {
        let forgotten = inside::call(|| match lock().as_mut() {
            Some(maps) => forget(maps, address as usize, len),
            None => Ok(()),
        });
        if let Err(errno) = forgotten {
            return Answer::<c_int>::Err(errno).to_c() as c_int;
        }
    }
    real!(munmap(address => *mut c_void, len => size_t) -> c_int)
}

/// Flushes what is to be unmapped. A mapping of which a part is left counts until that goes, too.
fn forget(maps: &mut Maps, address: usize, len: usize) -> Answer<()> {
    for file in files_in(maps, address, len) {
        if let Some(scratch) = maps.scratches.get(&file) {
            scratch.flush()?;
        }
    }
    let end = address.saturating_add(len.next_multiple_of(PAGE as usize));
    for mapping in &mut maps.mappings {
        let (begin, last) = (mapping.address, mapping.address + mapping.len);
        if address <= begin && begin < end {
            mapping.address = end.min(last);
        } else if begin < address && last <= end && address < last {
            mapping.len = address - begin;
            continue;
        }
        mapping.len = last - mapping.address;
    }
    let Maps {
        mappings,
        scratches,
        ..
    } = maps;
    mappings.retain(|mapping| {
        if mapping.len > 0 {
            return true;
        }
        let scratch = scratches.get_mut(&mapping.file);
        let left = scratch.map(|scratch| {
            scratch.mappings -= 1;
            scratch.mappings
        });
        if left == Some(0) {
            scratches.remove(&mapping.file);
            withdraw(mapping.file);
        }
        false
    });
    publish(mappings);
    Ok(())
}

/// A shared mapping isn't moved: the program takes a new one.
#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    address: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    if is_ours(address, old_len) {
        crate::message::say_once!("mremap of a shared mapping is not supported: ENOMEM");
        crate::answer::set_errno(Errno::NOMEM);
        return libc::MAP_FAILED;
    }
    real!(mremap(
        address => *mut c_void, old_len => size_t, new_len => size_t, flags => c_int,
        to => *mut c_void
    ) -> *mut c_void)
}
