//! The memory behind shared mappings of a file, and which of the file's pages it has.
//!
//! ```text
//! programs ── load, store ──► memory ── flush: pages that differ ──► the file
//!                               ▲ filled once; then each write to the file
//! ```
//! Programs store to the memory past the worker, at any time. Invariants:
//! 1. Of a page that the memory has, the memory has the newest bytes: a read takes them from there,
//!    and a write changes the file first and then the memory, under the blob's `lock`.
//! 2. A page is filled from the file once: a second time would overwrite stores. After a takeover
//!    the memory already has all pages that the dead process had filled.
//! 3. A file beside named memory, which no program has, lists the filled pages as ranges. The
//!    memory itself can't tell: a touched page is zeroes.

use crate::cache::lent::{Lent, failed, make_file, open_left};
use adit_base::fork::Registered;
use adit_base::simulation::{self, Bug, planted};
use adit_base::{Errno, Error, PAGE_BYTES, Result, from_rustix, limits, numbers};
use rustix::fs::{
    FallocateFlags, FlockOperation, Mode, OFlags, SeekFrom, fallocate, fchmod, flock, fstat,
    ftruncate, open, seek,
};
use rustix::io::retry_on_intr;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

const PAGE: u64 = PAGE_BYTES as u64;

/// Memory that programs map in place of a file.
#[derive(Debug)]
pub struct MappedMemory {
    memory: Lent,
    /// Where another process finds it when this one is killed.
    name: Option<PathBuf>,
    /// The name stays.
    is_left: OnceLock<()>,
    /// Pages that an earlier process filled; None: the memory is new.
    filled: Option<PageSet>,
}

/// For errors.
const USE: &str = "use the memory of a mapping";
const MAKE: &str = "make memory for a mapping";
const TAKE_OVER: &str = "take over the memory of a mapping";

/// Less than an eighth of the machine's memory is free. Unknown without `/proc`.
fn memory_is_scarce() -> bool {
    let text = numbers::alone(|| std::fs::read_to_string("/proc/meminfo")).unwrap_or_default();
    let kib = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    match (kib("MemTotal:"), kib("MemAvailable:")) {
        (Some(total), Some(free)) => free < total / 8,
        _ => false,
    }
}

/// Suffix of the name of a memory's list of filled pages: ranges as first page and end,
/// little-endian.
const OF_FILLED: &str = ".filled";
const RANGE_BYTES: usize = 16;

fn name_of_filled(name: &Path) -> PathBuf {
    let mut text = name.as_os_str().to_owned();
    text.push(OF_FILLED);
    text.into()
}

/// Opens memory that a process of this user left.
fn open_own(name: &Path, access: OFlags) -> Result<Registered<OwnedFd>> {
    let own = rustix::process::geteuid().as_raw();
    open_left(name, access, own, TAKE_OVER)
}

impl MappedMemory {
    fn new(memory: Lent, name: Option<PathBuf>, filled: Option<PageSet>) -> MappedMemory {
        if name.is_some() {
            // The lock says that this process lives. A program that has the memory can only pretend
            // that.
            let _ = flock(&memory.file, FlockOperation::NonBlockingLockShared);
        }
        MappedMemory {
            memory,
            name,
            is_left: OnceLock::new(),
            filled,
        }
    }

    /// Memory without a name: it ends with the processes that have it.
    pub fn anonymous() -> Result<MappedMemory> {
        Ok(MappedMemory::new(Lent::anonymous(USE)?, None, None))
    }

    /// Memory that another process of this user finds under a name, if this one is killed; `name`
    /// lies on a tmpfs.
    pub fn named(name: PathBuf) -> Result<MappedMemory> {
        let filled = name_of_filled(&name);
        drop(make_file(&filled, MAKE)?);
        let file = make_file(&name, MAKE).inspect_err(|_| _ = std::fs::remove_file(filled))?;
        Ok(MappedMemory::new(Lent::new(file, USE), Some(name), None))
    }

    /// Memory that another process left under a name. `EPERM` if it can't be that of a process of
    /// this user.
    pub fn take_over(name: PathBuf) -> Result<MappedMemory> {
        let file = open_own(&name, OFlags::RDWR)?;
        let mut text = Vec::new();
        let filled = open_own(&name_of_filled(&name), OFlags::RDONLY)?;
        (&*filled.into_file()).read_to_end(&mut text)?;
        let mut pages = PageSet::default();
        for range in text.chunks_exact(RANGE_BYTES) {
            let number = |at: usize| {
                let bytes = range[at..at + 8].try_into().expect("eight bytes");
                u64::from_le_bytes(bytes)
            };
            pages.insert(number(0)..number(8));
        }
        let memory = Lent::new(file, USE);
        Ok(MappedMemory::new(memory, Some(name), Some(pages)))
    }

    /// Memory that another process left under the name `left`, which it renames to this one.
    pub fn take_over_as(name: PathBuf, left: &Path) -> Result<MappedMemory> {
        let (of_left, of_name) = (name_of_filled(left), name_of_filled(&name));
        // A process that is killed between these leaves a memory that has both.
        let from = open_own(&of_left, OFlags::RDONLY)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let to = numbers::high(|| open(of_name, flags, mode)).map_err(from_rustix)?;
        fchmod(&to, mode).map_err(from_rustix)?; // regardless of the umask
        std::io::copy(&mut &*from.into_file(), &mut &*to.into_file())?;
        simulation::pause();
        std::fs::rename(left, &name)?;
        simulation::pause();
        std::fs::remove_file(of_left)?;
        MappedMemory::take_over(name)
    }

    /// Deletes memory that another process left under a name, unless that process lives: the volume
    /// may be a copy of that process's volume.
    pub fn remove_left(name: &Path) {
        let is_free = |file: Registered<OwnedFd>| {
            flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        };
        if open_own(name, OFlags::RDONLY).is_ok_and(is_free) {
            MappedMemory::remove(name);
        }
    }

    fn remove(name: &Path) {
        let _ = std::fs::remove_file(name);
        let _ = std::fs::remove_file(name_of_filled(name));
    }

    /// The memory's name, if this is the name of a list of filled pages.
    pub fn is_name_of_filled(name: &str) -> Option<&str> {
        name.strip_suffix(OF_FILLED)
    }

    /// These pages have the file's content, which the next process has to know.
    fn note_filled(&self, pages: &Range<u64>) -> Result<()> {
        let Some(name) = &self.name else {
            return Ok(());
        };
        let what = "note what memory of a mapping is filled";
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let filled = numbers::high(|| open(name_of_filled(name), flags, Mode::empty()));
        let filled = filled.map_err(|errno| failed(errno, what))?;
        let range = [pages.start.to_le_bytes(), pages.end.to_le_bytes()].concat();
        match retry_on_intr(|| rustix::io::write(&filled, &range)) {
            Ok(RANGE_BYTES) => Ok(()),
            Ok(_) => Err(failed(rustix::io::Errno::NOSPC, what)),
            Err(errno) => Err(failed(errno, what)),
        }
    }

    /// Had a process before this one filled the page?
    pub(crate) fn was_filled(&self, page: u64) -> bool {
        let filled = self.filled.as_ref();
        filled.is_some_and(|filled| !filled.within(page..page + 1).is_empty())
    }

    /// A descriptor for a program that maps it.
    pub fn descriptor(&self, writable: bool) -> Result<Registered<OwnedFd>> {
        self.memory.descriptor(writable)
    }

    /// The next process goes on with it.
    pub fn leave(&self) {
        self.is_left.get_or_init(|| ());
    }

    /// Makes it at least so long.
    pub(crate) fn grow(&self, len: u64) -> Result<()> {
        let what = "make the memory of a mapping longer";
        let now = fstat(&self.memory.file).map_err(|errno| failed(errno, what))?;
        if now.st_size as u64 >= len {
            Ok(())
        } else {
            limits::check_file_size(len).map_err(|error| error.context(what))?;
            ftruncate(&self.memory.file, len).map_err(|errno| failed(errno, what))
        }
    }

    /// `ENOMEM`, if it is more than a small one and other programs would find little memory: less
    /// than a quarter of the tmpfs, or an eighth of the machine's memory, is free. A database's
    /// index is small, and a tmpfs may be full of the cache, a machine of a database's buffers.
    pub(crate) fn check_room(&self) -> Result<()> {
        const SMALL_BYTES: u64 = 2 << 20;
        let taken = fstat(&self.memory.file)
            .map_err(|errno| failed(errno, "look at a mapping's memory"))?;
        if taken.st_blocks as u64 * 512 < SMALL_BYTES {
            return Ok(());
        }
        if self.memory.is_scarce()? {
            let what = "map a file: less than a quarter of the tmpfs with the memory of mappings is \
                        free (make that larger, or map less)";
            return Err(Error::with(Errno::NOMEM, what));
        }
        if memory_is_scarce() {
            let what = "map a file: less than an eighth of this machine's memory is free";
            return Err(Error::with(Errno::NOMEM, what));
        }
        Ok(())
    }

    /// Takes memory for pages, so that no store to them fails.
    pub(crate) fn allocate(&self, pages: &Range<u64>) -> Result<()> {
        let len = (pages.end - pages.start) * PAGE;
        let allocated = retry_on_intr(|| {
            fallocate(
                &self.memory.file,
                FallocateFlags::empty(),
                pages.start * PAGE,
                len,
            )
        });
        allocated.map_err(|errno| failed(errno, "take memory for a mapping"))
    }

    /// Reads it; zeroes where it is shorter.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let got = self.memory.read(offset, buffer)?;
        buffer[got..].fill(0);
        Ok(())
    }

    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.memory.write(offset, data)
    }

    /// It reads as zeroes there.
    pub(crate) fn clear(&self, bytes: &Range<u64>) -> Result<()> {
        let (flags, len) = (
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            bytes.end - bytes.start,
        );
        let cleared = retry_on_intr(|| fallocate(&self.memory.file, flags, bytes.start, len));
        cleared.map_err(|errno| failed(errno, "clear the memory of a mapping"))
    }

    /// The next bytes from `offset` on that were ever written, in whole pages.
    pub(crate) fn data_from(&self, offset: u64) -> Result<Option<Range<u64>>> {
        let what = "look at the memory of a mapping";
        let start = match seek(&self.memory.file, SeekFrom::Data(offset as _)) {
            Ok(start) => start / PAGE * PAGE,
            Err(rustix::io::Errno::NXIO) => return Ok(None),
            Err(errno) => return Err(failed(errno, what)),
        };
        match seek(&self.memory.file, SeekFrom::Hole(start as _)) {
            Ok(end) => Ok(Some(start..end.next_multiple_of(PAGE))),
            // A writer has shortened it meanwhile.
            Err(rustix::io::Errno::NXIO) => Ok(None),
            Err(errno) => Err(failed(errno, what)),
        }
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        if let Some(name) = &self.name
            && self.is_left.get().is_none()
        {
            MappedMemory::remove(name);
        }
    }
}

/// The pages of a blob that programs have mapped.
pub(crate) struct MappedPages {
    pub(crate) memory: Arc<MappedMemory>,
    pub(crate) pages: RefCell<PageSet>,
    /// Descriptors that hold it.
    pub(crate) holders: Cell<u32>,
    /// One of them may have stored something.
    pub(crate) is_written: Cell<bool>,
}

impl MappedPages {
    pub(crate) fn new(memory: MappedMemory) -> MappedPages {
        // Also those that no session has claimed: a program may have stored to them, and ended.
        let filled = (memory.filled.clone()).filter(|_| !planted(Bug::FilledAgain));
        MappedPages {
            is_written: Cell::new(memory.filled.is_some()),
            memory: Arc::new(memory),
            pages: RefCell::new(filled.unwrap_or_default()),
            holders: Cell::new(0),
        }
    }

    /// Pages have the file's content from here on.
    pub(crate) fn note_filled(&self, pages: Range<u64>) -> Result<()> {
        self.memory.note_filled(&pages)?;
        self.pages.borrow_mut().insert(pages);
        Ok(())
    }

    /// True if the memory has the file's content there. A page that isn't filled may be touched,
    /// too: the zeroes that the kernel puts there are no stores.
    pub(crate) fn is_filled(&self, page: u64) -> bool {
        !self.pages.borrow().within(page..page + 1).is_empty()
    }

    /// The parts of a range of bytes that it has.
    fn parts(&self, offset: u64, len: u64) -> Vec<Range<u64>> {
        let end = offset.saturating_add(len);
        let pages = self.pages.borrow();
        let parts = pages.within(offset / PAGE..end.div_ceil(PAGE));
        let bytes = |pages: Range<u64>| offset.max(pages.start * PAGE)..end.min(pages.end * PAGE);
        parts.into_iter().map(bytes).collect()
    }

    /// After a read of the file: filled pages of the memory are newer.
    pub(crate) fn overlay(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        for part in self.parts(offset, buffer.len() as u64) {
            let (from, to) = ((part.start - offset) as usize, (part.end - offset) as usize);
            self.memory.read(part.start, &mut buffer[from..to])?;
        }
        Ok(())
    }

    /// The file is about to get bytes there.
    pub(crate) fn make_room(&self, offset: u64, len: u64) -> Result<()> {
        let end = offset.saturating_add(len);
        let parts = (self.pages.borrow()).within(offset / PAGE..end.div_ceil(PAGE));
        parts
            .iter()
            .try_for_each(|pages| self.memory.allocate(pages))
    }

    /// The file got these bytes.
    pub(crate) fn note_write(&self, offset: u64, data: &[u8]) -> Result<()> {
        for part in self.parts(offset, data.len() as u64) {
            let (from, to) = ((part.start - offset) as usize, (part.end - offset) as usize);
            self.memory.write(part.start, &data[from..to])?;
        }
        Ok(())
    }

    /// The file reads as zeroes there.
    pub(crate) fn note_cleared(&self, bytes: Range<u64>) -> Result<()> {
        let len = bytes.end.saturating_sub(bytes.start);
        let mut parts = self.parts(bytes.start, len).into_iter();
        parts.try_for_each(|part| self.memory.clear(&part))
    }
}

/// Pages of a file, as ranges: a mapping may reach far behind the file's end.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageSet {
    /// Disjoint, not adjacent; by their first page.
    ranges: BTreeMap<u64, u64>,
}

impl PageSet {
    pub(crate) fn insert(&mut self, pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        let Range { mut start, mut end } = pages;
        // All that touch it become one with it.
        while let Some((&first, &last)) = self.ranges.range(..=end).next_back()
            && last >= start
        {
            self.ranges.remove(&first);
            (start, end) = (start.min(first), end.max(last));
        }
        self.ranges.insert(start, end);
    }

    /// The parts of a range that it has.
    pub(crate) fn within(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        let mut parts = Vec::new();
        for (&first, &last) in self.ranges.range(..pages.end).rev() {
            if last <= pages.start {
                break;
            }
            parts.push(first.max(pages.start)..last.min(pages.end));
        }
        parts
    }

    /// The first part of a range that it doesn't have.
    pub(crate) fn first_gap(&self, pages: Range<u64>) -> Option<Range<u64>> {
        let before = self.ranges.range(..=pages.start).next_back();
        let start = before.map_or(pages.start, |(_, &last)| last.max(pages.start));
        let behind = self.ranges.range(start..).next();
        let end = behind.map_or(pages.end, |(&first, _)| first.min(pages.end));
        (start < end).then_some(start..end)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use adit_base::random::Prng;
    use std::collections::BTreeSet;

    #[test]
    fn a_set_of_pages_has_what_was_put_in() {
        let mut random = Prng::new(1);
        for _ in 0..200 {
            let (mut set, mut model) = (PageSet::default(), BTreeSet::new());
            for _ in 0..20 {
                let (a, b) = (random.below(40), random.below(40));
                let range = a.min(b)..a.max(b);
                if random.below(2) == 0 {
                    set.insert(range.clone());
                    model.extend(range.clone());
                }
                let (a, b) = (random.below(40), random.below(40));
                let range = a.min(b)..a.max(b);
                let mut within: Vec<u64> =
                    set.within(range.clone()).into_iter().flatten().collect();
                within.sort_unstable();
                let expected: Vec<u64> = model.range(range.clone()).copied().collect();
                assert_eq!(within, expected);
                let missing: Vec<u64> =
                    range.clone().filter(|page| !model.contains(page)).collect();
                let gap = set.first_gap(range.clone());
                assert_eq!(gap.as_ref().map(|gap| gap.start), missing.first().copied());
                assert!(gap.is_none_or(|gap| gap.clone().all(|page| missing.contains(&page))));
            }
        }
    }

    #[test]
    fn what_a_reader_gets_can_neither_be_mapped_for_writing_nor_shortened() {
        let memory = MappedMemory::anonymous().expect("memory");
        memory.grow(8192).expect("longer");
        memory.write(0, b"abc").expect("written");
        let map = |writable| {
            let descriptor = memory.descriptor(writable).expect("a descriptor");
            let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
            let nowhere = std::ptr::null_mut();
            // SAFETY: a new mapping, wherever the kernel likes.
            let mapped = unsafe {
                let flags = rustix::mm::MapFlags::SHARED;
                rustix::mm::mmap(nowhere, 4096, protection, flags, &descriptor, 0)
            };
            // SAFETY: as long as it was mapped, and used nowhere.
            mapped.map(|start| unsafe { rustix::mm::munmap(start, 4096) })
        };
        assert_eq!(map(false), Err(rustix::io::Errno::ACCESS));
        assert_eq!(map(true), Ok(Ok(())));
        let writer = memory.descriptor(true).expect("a descriptor");
        assert_eq!(ftruncate(&writer, 4096), Err(rustix::io::Errno::PERM));
        let sealed = rustix::fs::fcntl_add_seals(&writer, rustix::fs::SealFlags::GROW);
        assert_eq!(sealed, Err(rustix::io::Errno::PERM));
        assert_eq!(fstat(&writer).expect("there").st_mode & 0o777, 0o600);
        // Flags of that descriptor are not ours.
        rustix::fs::fcntl_setfl(&writer, OFlags::APPEND).expect("set");
        memory.write(4096, b"def").expect("written");
        let mut bytes = [0; 3];
        memory.read(4096, &mut bytes).expect("read");
        assert_eq!(&bytes, b"def");
        assert_eq!(fstat(&writer).expect("there").st_size, 8192);
    }

    #[test]
    fn named_memory_goes_with_its_owner_unless_it_is_left_to_the_next() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a tmpfs");
        let name = directory.path().join("memory");
        drop(MappedMemory::named(name.clone()).expect("memory"));
        assert!(!name.exists());
        let memory = MappedMemory::named(name.clone()).expect("memory");
        memory.grow(1 << 20).expect("longer");
        memory.allocate(&(0..4)).expect("room");
        assert_eq!(memory.data_from(0).expect("looked"), None);
        memory.write(3 * PAGE + 5, b"x").expect("written");
        memory.note_filled(&(3..4)).expect("noted");
        memory.leave();
        drop(memory);
        let memory = MappedMemory::take_over(name.clone()).expect("taken over");
        let data = memory.data_from(0).expect("looked");
        assert_eq!(data, Some(3 * PAGE..4 * PAGE));
        assert!(memory.was_filled(3) && !memory.was_filled(2));
        let other = directory.path().join("another");
        memory.leave();
        drop(memory);
        let memory = MappedMemory::take_over_as(other.clone(), &name).expect("taken over");
        assert!(memory.was_filled(3) && !name.exists());
        memory.leave();
        drop(memory);
        let name = other;
        std::fs::hard_link(&name, directory.path().join("other")).expect("linked");
        assert_eq!(
            MappedMemory::take_over(name)
                .expect_err("two names")
                .errno(),
            Errno::PERM
        );
    }
}
