//! mmap. A private mapping is a copy of the content. A shared one is memory that the file system
//! keeps equal to the file (`adit_fs`, `data/map.rs`).
//!
//! ```text
//! shared mapping ─ the kernel ─► the file's memory ◄─ reads and writes of all processes
//!                                   └─ msync, fsync, munmap, end ─► the file
//! ```
//! A server has one memory for all processes. The memory of an embedded volume dies with its
//! process, and stores since the last flush die with it; the kernel would keep them.
//!
//! Invariant: the file stays open here as long as a part of it is mapped, so its memory stays, too.

use crate::files::descriptors::{self, Open};
use crate::runtime::answer::{Answer, ToC, checked, errno, failed, pointer};
use crate::runtime::inside;
use crate::runtime::real::real;
use crate::runtime::renewed::Renewed;
use adit::{Errno, FileKind};
use adit_base::fork::Registered;
use adit_base::numbers;
use adit_fs::BlobId;
use adit_interposed::interposed;
use libc::{c_int, c_void, off_t, size_t};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const PAGE: u64 = 4096;

/// A file, and whether its memory may be written: then the descriptor is another one.
type Key = (BlobId, bool);

/// The memory of a file.
struct Shared {
    memory: Registered<File>,
    /// Holds it.
    open: Arc<Open>,
    mappings: usize,
    /// The volume had no room for its stores. It stays without mappings until there is some.
    is_unflushed: bool,
}

struct Mapping {
    address: usize,
    len: usize,
    of: Key,
}

#[derive(Default)]
pub(crate) struct Maps {
    shared: HashMap<Key, Shared>,
    mappings: Vec<Mapping>,
}

static MAPS: Mutex<Option<Maps>> = Mutex::new(None);

/// Begin and end of each mapping. Its lock is never held while memory is taken or the volume is
/// used: the allocator of any thread may unmap memory, also while another thread has the other
/// lock.
static RANGES: Renewed<Vec<(usize, usize)>> = Renewed::new(Vec::new());
/// How many there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn ranges(mappings: &[Mapping]) -> Vec<(usize, usize)> {
    let ranges = mappings.iter();
    ranges
        .map(|map| (map.address, map.address + map.len))
        .collect()
}

fn publish(mappings: &[Mapping]) {
    let mut ranges = ranges(mappings);
    COUNT.store(ranges.len(), Ordering::Release);
    std::mem::swap(&mut *RANGES.lock(), &mut ranges);
}

/// Does a mapping of ours lie in this range? No memory that is taken in the middle of a call is
/// one.
fn is_ours(address: *mut c_void, len: usize) -> bool {
    if COUNT.load(Ordering::Acquire) == 0 || inside::is_inside() {
        return false;
    }
    let (begin, end) = (address as usize, (address as usize).saturating_add(len));
    let ranges = RANGES.lock();
    ranges
        .iter()
        .any(|(first, last)| *first < end && begin < *last)
}

fn lock() -> MutexGuard<'static, Option<Maps>> {
    MAPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps other threads from the mappings while this one forks.
pub(crate) struct MapsLock(MutexGuard<'static, Option<Maps>>);

impl MapsLock {
    /// In the child, which has the mappings, too. Another thread of its parent may have looked at
    /// the ranges.
    pub(crate) fn in_child(&self) {
        if let Some(maps) = &*self.0 {
            RANGES.renew(ranges(&maps.mappings));
        }
    }
}

pub(crate) fn lock_maps() -> MapsLock {
    MapsLock(lock())
}

impl MapsLock {
    /// The files that are mapped.
    pub(crate) fn files(&self) -> impl Iterator<Item = Arc<Open>> {
        let maps = self.0.iter().flat_map(|maps| maps.shared.values());
        maps.map(|shared| shared.open.clone())
    }
}

impl Shared {
    /// Takes hold of the memory of a file, which has this range then.
    fn new(open: Arc<Open>, offset: u64, len: u64) -> Answer<Shared> {
        open.file.map(offset, len).map_err(errno)?;
        let memory = open.file.mapped_memory().map_err(errno);
        let memory = memory.and_then(numbers::kept);
        match memory {
            Ok(memory) => Ok(Shared {
                memory,
                open,
                mappings: 0,
                is_unflushed: false,
            }),
            Err(errno) => {
                let _ = open.file.unmap();
                Err(errno)
            }
        }
    }

    /// Writes the stores to the file.
    fn flush(&self) -> Answer<()> {
        self.open.file.flush_mapped().map_err(errno)
    }
}

/// At the end of the process.
pub(crate) fn flush_all() {
    let Some(maps) = lock().take() else { return };
    // A child that has asked for nothing has the mappings of its parent: the server sees to them.
    let own = maps
        .shared
        .values()
        .filter(|of| !of.open.file.is_inherited());
    for shared in own {
        if let Err(errno) = shared.flush() {
            let name = String::from_utf8_lossy(&shared.open.shown);
            crate::runtime::message::say(format_args!(
                "stores to a shared mapping of {name} are lost: {errno:?}"
            ));
        }
    }
    publish(&[]);
}

// ------------------------------------------------------------------------ the calls

#[interposed(mmap64)]
unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    if flags & libc::MAP_ANONYMOUS == 0
        && let Some(open) = descriptors::get(fd)
    {
        let mapped = inside::call(|| map(&open, address, len, protection, flags, offset));
        let mapped = pointer(mapped);
        return if mapped.is_null() {
            libc::MAP_FAILED
        } else {
            mapped
        };
    }
    real(address, len, protection, flags, fd, offset)
}

fn map(
    open: &Arc<Open>,
    address: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    offset: off_t,
) -> Answer<*mut c_void> {
    let at = check_map(open, len, protection, flags, offset)?;
    match flags & libc::MAP_TYPE {
        libc::MAP_PRIVATE => copy(open, address, len, protection, flags, at),
        _ => share(open, address, len, protection, flags, at),
    }
}

/// The kernel's checks in its order. The offset.
fn check_map(
    open: &Open,
    len: size_t,
    protection: c_int,
    flags: c_int,
    offset: off_t,
) -> Answer<u64> {
    /// Flags that `MAP_SHARED_VALIDATE` knows, beside the type.
    const KNOWN: c_int = libc::MAP_FIXED
        | libc::MAP_ANONYMOUS
        | libc::MAP_DENYWRITE
        | libc::MAP_EXECUTABLE
        | libc::MAP_GROWSDOWN
        | libc::MAP_LOCKED
        | libc::MAP_NORESERVE
        | libc::MAP_POPULATE
        | libc::MAP_NONBLOCK
        | libc::MAP_STACK
        | libc::MAP_HUGETLB
        | MAP_OF_MACHINE
        | libc::MAP_HUGE_2MB
        | libc::MAP_HUGE_1GB;
    const MAP_OF_MACHINE: c_int = if cfg!(target_arch = "x86_64") {
        0xc0
    } else {
        0
    };
    if !(offset as u64).is_multiple_of(PAGE) {
        return Err(Errno::INVAL);
    }
    open.check()?;
    if len == 0 {
        return Err(Errno::INVAL);
    }
    let end = offset.checked_add_unsigned(len as u64);
    let Some(at) = end.and_then(|_| u64::try_from(offset).ok()) else {
        // So long a one has no room anywhere.
        return Err(if len > isize::MAX as usize / 2 {
            Errno::NOMEM
        } else {
            Errno::OVERFLOW
        });
    };
    if len > ADDRESS_SPACE {
        return Err(Errno::NOMEM);
    }
    let writes = protection & libc::PROT_WRITE != 0;
    let of_files = match open.kind {
        FileKind::File => libc::MAP_SYNC,
        _ => 0,
    };
    match flags & libc::MAP_TYPE {
        libc::MAP_SHARED_VALIDATE if flags & !(libc::MAP_TYPE | KNOWN | of_files) != 0 => {
            return Err(Errno::OPNOTSUPP);
        }
        libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE if writes && !open.is_writable() => {
            return Err(Errno::ACCESS);
        }
        libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE | libc::MAP_PRIVATE => {}
        _ => return Err(Errno::INVAL),
    }
    if !open.is_readable() {
        return Err(Errno::ACCESS);
    }
    if open.kind != FileKind::File {
        return Err(Errno::NODEV);
    }
    match flags & libc::MAP_SYNC {
        0 => Ok(at),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// No process has more.
const ADDRESS_SPACE: usize = 1 << 56;

fn share(
    open: &Arc<Open>,
    address: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    offset: u64,
) -> Answer<*mut c_void> {
    let of = (open.id(), open.is_writable());
    let mut maps = lock();
    let maps = maps.get_or_insert_default();
    let shared = match maps.shared.get(&of) {
        Some(shared) => {
            let mapped = shared.open.file.map(offset, len as u64);
            mapped.map_err(errno).map(|()| None)
        }
        None => Shared::new(open.clone(), offset, len as u64).map(Some),
    };
    if let Some(new) = shared? {
        maps.shared.insert(of, new);
    }
    let shared = maps.shared.get_mut(&of).ok_or(Errno::IO)?;
    let fd = shared.memory.as_raw_fd();
    let mapped = real!(mmap(
        address => *mut c_void, len => size_t, protection => c_int, flags => c_int,
        fd => c_int, offset as off_t => off_t
    ) -> *mut c_void);
    if mapped == libc::MAP_FAILED {
        let errno = Errno::last();
        if shared.mappings == 0 {
            let _ = shared.open.file.unmap();
            maps.shared.remove(&of);
        }
        return Err(errno);
    }
    shared.mappings += 1;
    // MAP_FIXED replaced the mapping that was there.
    let len = len.next_multiple_of(PAGE as usize);
    cut(maps, mapped as usize, len);
    maps.mappings.push(Mapping {
        address: mapped as usize,
        len,
        of,
    });
    debug_assert!(
        maps.mappings
            .iter()
            .all(|map| maps.shared.contains_key(&map.of))
    );
    publish(&maps.mappings);
    Ok(mapped)
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
    let memory = checked(real!(mmap(
        address => *mut c_void, len => size_t, writable => c_int, flags => c_int, -1 => c_int,
        0 => off_t
    ) -> *mut c_void))?;
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
fn files_in(maps: &Maps, address: usize, len: usize) -> Vec<Key> {
    let end = address.saturating_add(len);
    let inside = maps.mappings.iter();
    let inside = inside.filter(|map| map.address < end && address < map.address + map.len);
    let mut files: Vec<Key> = inside.map(|map| map.of).collect();
    files.sort_unstable_by_key(|(file, writable)| (file.slot, file.generation, *writable));
    files.dedup();
    files
}

#[interposed]
unsafe extern "C" fn msync(address: *mut c_void, len: size_t, flags: c_int) -> c_int {
    let done = real(address, len, flags);
    if done != 0 || !is_ours(address, len) {
        return done;
    }
    inside::call(|| sync_mapped(address as usize, len, flags)).to_c()
}

fn sync_mapped(address: usize, len: usize, flags: c_int) -> Answer<()> {
    let maps = lock();
    let Some(maps) = maps.as_ref() else {
        return Ok(());
    };
    let sync = |shared: &Shared| match flags & libc::MS_SYNC {
        0 => shared.flush(),
        _ => shared.open.file.sync_data().map_err(errno),
    };
    let files = files_in(maps, address, len);
    let mut shared = files.iter().filter_map(|of| maps.shared.get(of));
    shared.try_for_each(sync)
}

#[interposed]
unsafe extern "C" fn munmap(address: *mut c_void, len: size_t) -> c_int {
    if is_ours(address, len) {
        let forgotten = inside::call(|| match lock().as_mut() {
            Some(maps) => forget(maps, address as usize, len),
            None => Ok(()),
        });
        if let Err(errno) = forgotten {
            return failed(errno);
        }
    }
    real(address, len)
}

/// Flushes the range that the caller unmaps. On a full volume its file's memory stays: munmap never
/// has ENOSPC on Linux, and programs don't look.
fn forget(maps: &mut Maps, address: usize, len: usize) -> Answer<()> {
    release(maps);
    for of in files_in(maps, address, len) {
        let Some(shared) = maps.shared.get_mut(&of) else {
            continue;
        };
        match shared.flush() {
            // A file that is lost: nobody can keep its memory.
            Ok(()) | Err(Errno::BADF) => shared.is_unflushed = false,
            Err(Errno::NOSPC) => shared.is_unflushed = true,
            Err(errno) => return Err(errno),
        }
    }
    cut(maps, address, len.next_multiple_of(PAGE as usize));
    publish(&maps.mappings);
    Ok(())
}

/// Lets go of the memory that had to stay, if the volume has room now.
fn release(maps: &mut Maps) {
    maps.shared.retain(|_, shared| {
        let stays = shared.mappings > 0 || shared.flush() == Err(Errno::NOSPC);
        if !stays {
            let _ = shared.open.file.unmap();
        }
        stays
    });
}

/// Takes a range of addresses from the mappings.
fn cut(maps: &mut Maps, address: usize, len: usize) {
    let end = address.saturating_add(len);
    let Maps { mappings, shared } = maps;
    let mut behind = Vec::new();
    for mapping in &mut *mappings {
        let (begin, last) = (mapping.address, mapping.address + mapping.len);
        if last <= address || end <= begin {
            continue;
        }
        if begin >= address {
            (mapping.address, mapping.len) = (end.min(last), last.saturating_sub(end));
            continue;
        }
        mapping.len = address - begin;
        if let Some(of) = shared.get_mut(&mapping.of)
            && end < last
        {
            // Two are left of it.
            of.mappings += 1;
            behind.push(Mapping {
                address: end,
                len: last - end,
                of: mapping.of,
            });
        }
    }
    mappings.append(&mut behind);
    mappings.retain(|mapping| {
        if mapping.len > 0 {
            return true;
        }
        if let Some(of) = shared.get_mut(&mapping.of) {
            of.mappings -= 1;
            if of.mappings == 0 && !of.is_unflushed {
                // Flushed before.
                let _ = of.open.file.unmap();
                shared.remove(&mapping.of);
            }
        }
        false
    });
}

/// `MADV_REMOVE` is refused, as by file systems that can't punch holes: the kernel would free pages
/// of the memory, and the file would keep their bytes.
#[interposed]
unsafe extern "C" fn madvise(address: *mut c_void, len: size_t, advice: c_int) -> c_int {
    if advice == libc::MADV_REMOVE && is_ours(address, len) {
        return failed(Errno::OPNOTSUPP);
    }
    // Allocators call it in their first moments: nothing is looked up for it.
    // SAFETY: as for this function.
    unsafe { libc::syscall(libc::SYS_madvise, address, len, advice) as c_int }
}

/// A shared mapping isn't moved: the program takes a new one.
#[interposed]
unsafe extern "C" fn mremap(
    address: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    if is_ours(address, old_len) {
        crate::runtime::message::say_once!("mremap of a shared mapping is not supported: ENOMEM");
        crate::runtime::answer::set_errno(Errno::NOMEM);
        return libc::MAP_FAILED;
    }
    real(address, old_len, new_len, flags, to)
}
