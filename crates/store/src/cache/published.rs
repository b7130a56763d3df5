//! Frames that other processes read without asking: version words, and the reader's side.
//!
//! A server hands out two descriptors for reading: the cache's mapping, and a file of one *version
//! word* for each frame, a [`SeqCount`] of its content and of the page that it holds. A reply
//! carries a [`Hint`]: the page's frame, its version, and the number of its bytes inside the file.
//! As long as the version is the same, so is all of that.
//!
//! ```text
//! writer:  begin ─ change the bytes ─ end                       retiring: no VALID ─ step
//! reader:  word == hint's? key? VALID? ─ copy ─ word as before?        else: ask the server
//! ```
//! Invariants:
//! 1. Every change of a VALID frame's content lies between two steps of its word, and so does
//!    nothing else; a frame that leaves the index takes a step. (`writing.rs`, `Frames::overwrite`,
//!    `Cache::retire`.)
//! 2. A file that becomes shorter changes or removes the frame of each page that loses bytes. So a
//!    hint's length is true while its version is.
//! 3. A reader writes nothing. It believes no byte before it has looked at the word again.
//! 4. Of a page of slots, a reader believes only those that the owner has verified since the page
//!    came into the frame (`is_verified`). While the version stands, they only become more; the
//!    step with which the page leaves the frame clears them.
//! 5. Before another process begins to change what a dead owner's mapping held, it marks the
//!    mapping as ended (`leftover.rs`), and so does an owner that closes. No reader believes it
//!    then.

use super::ahead_counts::{AHEAD_COUNTS, AheadCounts, AheadOf};
use super::frames::FrameMeta;
use super::header::{CacheHeader, MAGIC, META_OFFSET, VERSION, VERSION_OF_PARTS};
use super::{FrameFlags, FrameKey, PageBytes};
use crate::format::{BlobId, SLOTS_PER_PAGE, Slot};
use adit_base::fork::{self, Registered};
use adit_base::simulation::{Bug, planted};
use adit_base::sync::SeqCount;
use adit_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use adit_base::{Errno, Error, PAGE_BYTES, Result, SECTOR_BYTES, from_rustix, numbers};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use zerocopy::{FromZeros, IntoBytes};

/// Bits of a hint: of the frame's number, of the length, and of the version.
const FRAME_BITS: u32 = 24;
const LEN_BITS: u32 = 13;
const VERSION_BITS: u32 = u64::BITS - FRAME_BITS - LEN_BITS;
const VERSION_MASK: u64 = (1 << VERSION_BITS) - 1;

/// Where a page of a file is in the cache. 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hint(pub u64);

impl Hint {
    /// None for a frame whose number doesn't fit.
    pub(crate) fn new(frame: u32, len: usize, version: u64) -> Option<Hint> {
        let fits = frame < 1 << FRAME_BITS && 0 < len && len <= PAGE_BYTES && version & 1 == 0;
        fits.then(|| {
            let (frame, len) = (u64::from(frame), len as u64);
            Hint(frame << (LEN_BITS + VERSION_BITS) | len << VERSION_BITS | version & VERSION_MASK)
        })
    }

    fn frame(self) -> u32 {
        (self.0 >> (LEN_BITS + VERSION_BITS)) as u32
    }

    /// Bytes of the page that lie inside the file.
    pub fn len(self) -> usize {
        (self.0 >> VERSION_BITS & ((1 << LEN_BITS) - 1)) as usize
    }

    /// True if it is none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// The words of a cache's frames, in memory that readers can map.
#[derive(Debug)]
pub(super) struct VersionWords {
    words: NonNull<SeqCount>,
    frames: u32,
    file: Registered<OwnedFd>,
    /// Fork generation of its creation.
    generation: u32,
}

// SAFETY: atomics in memory that lives as long as `self`.
unsafe impl Send for VersionWords {}
// SAFETY: all threads reach the words as atomics only.
unsafe impl Sync for VersionWords {}

impl VersionWords {
    pub(super) fn new(frames: u32) -> Result<VersionWords> {
        let say = |errno| Error::with(from_rustix(errno), "make version words for readers");
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let make = || memfd_create("adit-versions", flags);
        let file = numbers::registered(make).map_err(say)?;
        let len = file_bytes(frames);
        ftruncate(&file, len as u64).map_err(say)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(say)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, of a file of this size, wherever the kernel likes.
        let start = unsafe {
            let nowhere = std::ptr::null_mut();
            mmap(nowhere, len, protection, MapFlags::SHARED, &file, 0).map_err(say)?
        };
        // SAFETY: the range is that of the mapping just made. A forked child has no cache.
        let _ = unsafe { madvise(start, len, Advice::LinuxDontFork) };
        Ok(VersionWords {
            words: NonNull::new(start.cast()).expect("the kernel maps nothing at 0"),
            frames,
            file,
            generation: fork::generation(),
        })
    }

    #[inline]
    pub(super) fn of(&self, frame: u32) -> &SeqCount {
        assert!(frame < self.frames, "frame number out of range");
        // SAFETY: in range, mapped as long as `self`; any bits are valid for an atomic.
        unsafe { self.words.add(frame as usize).as_ref() }
    }

    /// The counts of blobs that are ahead of their slots.
    pub(super) fn ahead_counts(&self) -> &[AtomicU32] {
        // SAFETY: behind the words, mapped as long as `self`; any bits are valid for atomics.
        unsafe { ahead_counts(self.words, self.frames) }
    }

    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }
}

impl Drop for VersionWords {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            return; // a forked child may have memory of its own there
        }
        // SAFETY: mapped by `new`, and no reference outlives `self`.
        let _ = unsafe { munmap(self.words.as_ptr().cast(), file_bytes(self.frames)) };
    }
}

fn words_bytes(frames: u32) -> usize {
    (frames as usize * size_of::<SeqCount>()).next_multiple_of(PAGE_BYTES)
}

/// The words, and behind them the counts.
fn file_bytes(frames: u32) -> usize {
    words_bytes(frames) + (AHEAD_COUNTS * size_of::<AtomicU32>()).next_multiple_of(PAGE_BYTES)
}

/// The counts behind the words of this many frames.
///
/// # Safety
/// `file_bytes(frames)` are mapped at `words`, as long as the result is used.
unsafe fn ahead_counts<'m>(words: NonNull<SeqCount>, frames: u32) -> &'m [AtomicU32] {
    // SAFETY: the caller's word.
    unsafe {
        let start = words.byte_add(words_bytes(frames)).cast::<AtomicU32>();
        std::slice::from_raw_parts(start.as_ptr(), AHEAD_COUNTS)
    }
}

/// The files and sizes that a reader in another process needs.
#[derive(Debug)]
pub struct PublishedFrames {
    /// The cache's mapping, for reading.
    pub memory: Registered<OwnedFd>,
    /// The version words and the counts of blobs that are ahead, for reading.
    pub versions: Registered<OwnedFd>,
    /// Number of frames.
    pub frames: u32,
    /// Where the frames begin in the mapping, bytes.
    pub memory_offset: u64,
}

/// Opens the cache's file again, for reading only.
pub(super) fn for_reading(file: &OwnedFd) -> Result<Registered<OwnedFd>> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    numbers::registered(|| rustix::fs::open(own, flags, Mode::empty()))
        .map_err(|errno| Error::with(from_rustix(errno), "open the cache for readers"))
}

/// The reader's side, in another process. It never writes to the memory.
#[derive(Debug)]
pub struct RemoteFrames {
    memory: NonNull<u8>,
    memory_bytes: usize,
    memory_offset: usize,
    versions: NonNull<SeqCount>,
    frames: u32,
    /// The memory is unmapped.
    is_released: AtomicBool,
    /// Fork generation of its creation.
    generation: u32,
}

// SAFETY: it reads atomics, and copies bytes that it believes only if their version says so.
unsafe impl Send for RemoteFrames {}
// SAFETY: threads only read it, by the protocol of the versions.
unsafe impl Sync for RemoteFrames {}

impl RemoteFrames {
    /// Maps the files that the owner has sent. `EPROTO` if sizes don't fit together.
    pub fn map(
        memory: BorrowedFd<'_>,
        versions: BorrowedFd<'_>,
        frames: u32,
        memory_offset: u64,
    ) -> Result<RemoteFrames> {
        let foreign = || {
            Error::with(
                Errno::PROTO,
                "use the server's cache: it doesn't have Adit's format",
            )
        };
        let size = |fd: BorrowedFd<'_>| -> Result<usize> {
            let size = rustix::fs::fstat(fd).map_err(from_rustix)?.st_size;
            usize::try_from(size).map_err(|_| foreign())
        };
        let memory_offset = usize::try_from(memory_offset).map_err(|_| foreign())?;
        let metas_end = META_OFFSET + frames as usize * size_of::<FrameMeta>();
        let memory_bytes = memory_offset
            .checked_add(frames as usize * PAGE_BYTES)
            .ok_or_else(foreign)?;
        let fits = metas_end <= memory_offset && memory_offset.is_multiple_of(PAGE_BYTES);
        // The counts are found by the number of frames.
        if !fits || size(memory)? < memory_bytes || size(versions)? != file_bytes(frames) {
            return Err(foreign());
        }
        let map = |fd, len| {
            // SAFETY: a new mapping for reading, wherever the kernel likes.
            let start = unsafe {
                let nowhere = std::ptr::null_mut();
                mmap(nowhere, len, ProtFlags::READ, MapFlags::SHARED, fd, 0)
            };
            let start = start.map_err(from_rustix)?;
            // SAFETY: the range is that of the mapping just made.
            let _ = unsafe { madvise(start, len, Advice::LinuxDontFork) };
            Ok::<_, Error>(NonNull::new(start).expect("the kernel maps nothing at 0"))
        };
        let memory: NonNull<u8> = map(memory, memory_bytes)?.cast();
        let versions = match map(versions, file_bytes(frames)) {
            Ok(versions) => versions.cast(),
            Err(error) => {
                // SAFETY: mapped above, and used nowhere.
                let _ = unsafe { munmap(memory.as_ptr().cast(), memory_bytes) };
                return Err(error);
            }
        };
        let remote = RemoteFrames {
            memory,
            memory_bytes,
            memory_offset,
            versions,
            frames,
            is_released: AtomicBool::new(false),
            generation: fork::generation(),
        };
        let header = remote.header();
        let theirs = header.version.load(Ordering::Relaxed);
        if header.magic.load(Ordering::Relaxed) != MAGIC {
            return Err(foreign());
        }
        if theirs != VERSION && theirs != VERSION_OF_PARTS {
            let what = format!(
                "the server's cache has format {theirs}, this program knows {VERSION}: both sides \
                 need the same version of Adit"
            );
            return Err(Error::with(Errno::PROTO, what));
        }
        Ok(remote)
    }

    /// Gives the memory back. Every read fails from here on; threads may be reading.
    pub fn release(&self) {
        self.is_released.store(true, Ordering::SeqCst);
        if self.generation != fork::generation() {
            return;
        }
        let replace = |start: NonNull<u8>, len| {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
            // SAFETY: our own mapping, which stays one of as many readable bytes: zeroes, which are
            // values of all that a late reader looks at. A reader that copies some of them sees
            // `is_released` afterwards.
            let _ = unsafe { mmap_anonymous(start.as_ptr().cast(), len, ProtFlags::READ, flags) };
        };
        replace(self.memory, self.memory_bytes);
        replace(self.versions.cast(), file_bytes(self.frames));
    }

    fn header(&self) -> &CacheHeader {
        // SAFETY: the mapping begins with the header, whose fields are atomics.
        unsafe { self.memory.cast().as_ref() }
    }

    /// Copies bytes of a page, from `within` on, to where `into` points. False: ask the server;
    /// some bytes may have been copied.
    #[inline]
    pub fn read(&self, hint: Hint, key: FrameKey, within: usize, into: &mut [u8]) -> bool {
        self.read_while(hint, key, within, into, |_| true)
    }

    /// The slot of a blob, by where its page was; with size and times as cached reads and writes
    /// have left them. None: ask the server.
    #[inline]
    pub fn slot(&self, hint: Hint, id: BlobId) -> Option<Slot> {
        self.slot_that_has(hint, id, AheadOf::Attributes)
    }

    /// The size of a blob, by a hint of its slot.
    #[inline]
    pub fn size_bytes(&self, hint: Hint, id: BlobId) -> Option<u64> {
        let slot = self.slot_that_has(hint, id, AheadOf::Size)?;
        Some(slot.size)
    }

    #[inline]
    fn slot_that_has(&self, hint: Hint, id: BlobId, of: AheadOf) -> Option<Slot> {
        let mut slot = Slot::new_zeroed();
        let at = (id.slot % SLOTS_PER_PAGE) as usize * SECTOR_BYTES;
        // SAFETY: mapped as long as `self`.
        let counts = unsafe { ahead_counts(self.versions, self.frames) };
        let counts = AheadCounts::among(counts, of);
        // The hint may be that of another slot: it says where the page is.
        let is_right = |meta: &FrameMeta| {
            is_verified(meta, id.slot % SLOTS_PER_PAGE) && !counts.may_contain(id.slot)
        };
        let key = slot_page(id);
        let read = self.read_while(hint, key, at, slot.as_mut_bytes(), is_right);
        (read && slot.kind != 0 && slot.generation == id.generation).then_some(slot)
    }

    /// Reads if something else is right, too, at a moment at which the frame has this page with
    /// these bytes.
    #[inline]
    fn read_while(
        &self,
        hint: Hint,
        key: FrameKey,
        within: usize,
        into: &mut [u8],
        is_right_meanwhile: impl FnOnce(&FrameMeta) -> bool,
    ) -> bool {
        let frame = hint.frame();
        if frame >= self.frames || within + into.len() > hint.len() {
            return false;
        }
        // SAFETY: in range of the words.
        let word = unsafe { self.versions.add(frame as usize).as_ref() };
        // SAFETY: in range of the metadata, whose fields are atomics.
        let meta = unsafe {
            let metas = self.memory.add(META_OFFSET).cast::<FrameMeta>();
            metas.add(frame as usize).as_ref()
        };
        let version = word.read();
        let flags = FrameFlags::from_bits_retain(meta.flags.load(Ordering::Relaxed));
        let is_right = version
            .is_some_and(|version| version & VERSION_MASK == hint.0 & VERSION_MASK)
            && flags.contains(FrameFlags::VALID)
            && meta.space.load(Ordering::Relaxed) == key.space
            && meta.page.load(Ordering::Relaxed) == key.page;
        if !is_right && !planted(Bug::StaleMapped) {
            return false;
        }
        // SAFETY: within the frame by `hint.len()`, which is at most a page. The owner may change
        // the bytes meanwhile: then they aren't believed.
        unsafe {
            let page = self.memory.add(self.memory_offset).cast::<PageBytes>();
            let from = page.add(frame as usize).cast::<u8>().add(within);
            adit_base::memory::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len());
        }
        let is_right = is_right_meanwhile(meta)
            && version.is_some_and(|version| word.is_still(version))
            && !self.header().has_ended();
        // Last: after an unmap the copy may have read zeroes.
        is_right && !self.is_released.load(Ordering::Relaxed)
    }
}

/// Between two looks at the version of a slot's page, or while that is pinned: has the owner found
/// the slot sound since the page came into the cache?
#[inline]
pub(super) fn is_verified(meta: &FrameMeta, index: u64) -> bool {
    meta.end.load(Ordering::Relaxed) & 1 << index != 0
}

/// The page with a blob's slot.
pub fn slot_page(id: BlobId) -> FrameKey {
    FrameKey::meta(id.slot / SLOTS_PER_PAGE)
}

impl Drop for RemoteFrames {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            return; // a forked child may have memory of its own there
        }
        // SAFETY: mapped by `map`, and no reference outlives `self`.
        unsafe {
            let _ = munmap(self.memory.as_ptr().cast(), self.memory_bytes);
            let _ = munmap(self.versions.as_ptr().cast(), file_bytes(self.frames));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{Cache, CacheOptions, SharedName};
    use super::*;
    use crate::format::PageKind;
    use std::os::fd::AsFd;

    /// A session's hint is the page's: the one that it got for a slot it uses for the others, too.
    #[test]
    fn a_slot_that_the_owner_has_not_verified_is_not_read_by_the_hint_of_another_one() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("/dev/shm is writable");
        let mut options = CacheOptions::shared(64, SharedName::new(directory.path(), 42, 1));
        options.published = true;
        let mut cache = Cache::new(&options).expect("a cache");
        let [first, second] = [0, 1].map(|index| BlobId {
            slot: 7 * SLOTS_PER_PAGE + index,
            generation: 3,
        });
        let frame = cache.allocate().expect("a frame");
        for (id, sector) in [first, second]
            .iter()
            .zip(cache.raw_mut(frame).chunks_exact_mut(SECTOR_BYTES))
        {
            let mut slot = Slot::new_zeroed();
            (slot.kind, slot.generation, slot.size) = (1, id.generation, id.slot);
            sector.copy_from_slice(slot.as_bytes());
        }
        cache.insert(frame, slot_page(first), FrameFlags::VALID);
        cache.set_kind(frame, PageKind::Slots as u8);
        cache.set_end(frame, 0b01);
        let frames = cache.frames();
        let sent = (frames.published().expect("descriptors")).expect("it is published");
        let (memory, versions) = (sent.memory.as_fd(), sent.versions.as_fd());
        let remote = RemoteFrames::map(memory, versions, sent.frames, sent.memory_offset);
        let remote = remote.expect("mapped");
        let hint = frames.slot_hint(7, 0).expect("the first one is verified");
        assert_eq!(frames.slot_hint(7, 1), None);
        assert_eq!(remote.size_bytes(hint, first), Some(first.slot));
        assert_eq!(remote.size_bytes(hint, second), None);
        assert!(remote.slot(hint, second).is_none());
        cache.set_end(frame, 0b11);
        assert_eq!(remote.size_bytes(hint, second), Some(second.slot));
        assert!(remote.slot(hint, second).is_some());
    }

    #[test]
    fn a_hint_says_what_it_was_made_of() {
        let hint = Hint::new(77, 4096, 1 << 40 | 6).expect("fits");
        assert_eq!((hint.frame(), hint.len()), (77, 4096));
        assert_eq!(hint.0 & VERSION_MASK, 6);
        assert!(Hint::default().is_empty());
        for (frame, len, version) in [(1 << 24, 1, 0), (0, 0, 0), (0, 4097, 0), (0, 1, 3)] {
            assert_eq!(
                Hint::new(frame, len, version),
                None,
                "{frame} {len} {version}"
            );
        }
    }
}
