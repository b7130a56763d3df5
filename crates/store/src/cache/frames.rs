//! Operations of any thread on frames: find, pin, copy, unpin, overwrite. No locks, no allocation.
//!
//! State word of a frame (`FrameMeta::state`):
//!
//! ```text
//! bit 31 WRITING: the owner changes content or key; entered only from 0 pins. Or a thread overwrites
//!        content; entered from its own pin, the only one
//! bit 30 RETIRED: out of the index; whoever takes away the last pin pushes it onto the return stack
//! bits 0..24    pins (some of them for a moment only, by readers that find they are wrong and step back)
//!
//!        write()                     remove(), pinned          last unpin
//! idle ──────────► WRITING ──► idle ───────────────► RETIRED ────────────► returned ──(owner)──►
//! free
//! ```
//!
//! A reader adds a pin with one atomic addition. If WRITING or RETIRED was set it takes it back and
//! misses. Otherwise the owner's compare-and-swap from 0 to WRITING fails until the pin is gone, so
//! what the reader sees after it (VALID, its key) stays true while it copies. A miss may be false:
//! the slow path asks the owner.

use super::ahead_counts::{AHEAD_COUNTS, AheadCounts, AheadOf};
use super::hazards::Hazards;
use super::header::CacheHeader;
use super::index::{Index, zeroed};
use super::mapping::Mapping;
use super::owner::{Cache, KIND_SHIFT};
use super::published::{Hint, PublishedFrames, is_verified};
use super::{FrameFlags, FrameKey, PageBytes};
use crate::format::PageKind;
use adit_base::breakdown::{self, Layer};
use adit_base::simulation::{Bug, planted};
use adit_base::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use adit_base::sync::{SeqCount, spin_loop, tries};
use adit_base::{PAGE_BYTES, granules, memory};
use adit_block::{Buffer, BufferOwner};
use smallvec::SmallVec;
use std::sync::Arc;

/// A frame's metadata, in the mapping. A later process salvages it by this layout.
#[repr(C, align(64))]
#[cfg_attr(loom, derive(Default))]
pub(super) struct FrameMeta {
    /// Pins, WRITING, RETIRED.
    pub(super) state: AtomicU32,
    /// [`FrameFlags`] and, in bits 16 to 23, the page's kind.
    pub(super) flags: AtomicU32,
    pub(super) space: AtomicU64,
    /// Page number; the LSN of a journal buffer.
    pub(super) page: AtomicU64,
    /// Device page of a journaled frame.
    pub(super) home: AtomicU64,
    /// Granules changed since the last seal. Of a shadow: the granules that it has.
    pub(super) pending: AtomicU64,
    /// Generation of the blob.
    pub(super) generation: AtomicU32,
    /// Bytes of the page that are inside the file. Of a page of slots: which of them were verified,
    /// a bit each.
    pub(super) end: AtomicU32,
    /// Hash chain or return stack: frame number + 1, 0 at the end. A shadow's target in the same
    /// form.
    pub(super) next: AtomicU32,
    /// For the clock: looked at since the hand passed.
    pub(super) referenced: AtomicU32,
    /// References of buffers of a LOADING or raw frame; of a shadow: which `apply` it belongs to.
    pub(super) loads: AtomicU32,
    /// One more than in the frame that this one replaced.
    pub(super) sequence: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<FrameMeta>() == 64);

impl FrameMeta {
    /// Is that its page?
    #[inline]
    pub(super) fn has(&self, key: FrameKey) -> bool {
        self.space.load(Ordering::Relaxed) == key.space
            && self.page.load(Ordering::Relaxed) == key.page
    }

    /// For the clock. A store only when it changes something: the line stays shared between threads
    /// that only read.
    #[inline]
    pub(super) fn note_use(&self) {
        if self.referenced.load(Ordering::Relaxed) == 0 {
            self.referenced.store(1, Ordering::Relaxed);
        }
    }
}

pub(super) const WRITING: u32 = 1 << 31;
pub(super) const RETIRED: u32 = 1 << 30;
pub(super) const PINS: u32 = (1 << 24) - 1;
/// Readers stop adding pins here, far from the end, since many may overshoot at once.
const PINS_MAX: u32 = 1 << 23;
/// Longest way along a chain that readers go: beyond, they ask the owner.
const STEPS_MAX: u32 = 64;
/// Looks at a frame that is being written before a reader gives up; a write takes some 100 ns.
const SPINS_MAX: u32 = tries(64);
/// Starts at the head after the frame vanished between finding and pinning it.
const RETRIES_MAX: u32 = tries(3);
/// Pages of which the first bytes are fetched while their metadata is.
const FETCHED_MAX: usize = 2;
/// Pages that a reader pins at the same time.
const PINNED_MAX: usize = 8;

enum Try {
    Pinned,
    Busy,
    Gone,
}

/// The part of a cache that all threads share: memory, metadata and one owner's index.
pub struct Frames {
    mapping: Arc<Mapping>,
    pub(super) index: Index,
    /// Frames whose last pin went after they were retired: frame number + 1, linked by `next`.
    returned: AtomicU32,
    /// Of each frame: granules with data newer than at home and in the journal.
    dirty_granules: Box<[AtomicU64]>,
    /// See `held.rs`.
    versions: Versions,
    hazards: Hazards,
    /// Counts of blobs that are ahead of their slots, where they are not published.
    ahead: Box<[AtomicU32]>,
    syncs: Syncs,
}

/// How far the journal is. In a cache line of its own: each commit writes it.
#[derive(Default)]
#[repr(align(64))]
struct Syncs {
    /// See [`Frames::bind_syncs`].
    need: AtomicU64,
    /// See [`Frames::note_durable`].
    durable: AtomicU64,
}

/// Counts transactions that begin and end to become visible. In its own cache line: every look at
/// metadata reads it.
#[derive(Default)]
#[repr(align(64))]
struct Versions(SeqCount);

impl Frames {
    pub(super) fn new(mapping: Arc<Mapping>, index: Index) -> Frames {
        let has_counts = mapping.ahead_counts().is_some();
        Frames {
            ahead: zeroed(AHEAD_COUNTS * usize::from(!has_counts)),
            dirty_granules: zeroed(mapping.frames() as usize),
            mapping,
            index,
            returned: AtomicU32::new(0),
            versions: Versions::default(),
            hazards: Hazards::new(),
            syncs: Syncs::default(),
        }
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub(super) fn versions(&self) -> &SeqCount {
        &self.versions.0
    }

    pub(super) fn hazards(&self) -> &Hazards {
        &self.hazards
    }

    /// For the owner, after a store that its readers have to see: the frames among the wanted ones
    /// that threads read without a pin.
    pub(super) fn read_now(&self, is_wanted: impl Fn(u32) -> bool) -> SmallVec<[u32; 8]> {
        fence(Ordering::SeqCst);
        let mut found = SmallVec::new();
        self.hazards.each(|frame| {
            if is_wanted(frame) && !found.contains(&frame) {
                found.push(frame);
            }
        });
        found
    }

    /// The first page of the mapping: numbers for the process that salvages it.
    pub fn header(&self) -> &CacheHeader {
        self.mapping.header()
    }

    /// The clean end of a volume whose state is all on the device: a shared mapping's name goes
    /// away.
    pub fn delete_shared(&self) -> adit_base::Result<()> {
        self.mapping.delete()
    }

    /// The cache that has another part of the memory: once for each part.
    pub fn other_part(&self, part: u32) -> Cache {
        Cache::of(self.mapping.other_part(part))
    }

    /// The number of this part of the memory.
    pub(crate) fn part(&self) -> u32 {
        self.mapping.part()
    }

    /// Gives this part of the mapping up: its owner changes nothing in it. Once that is so of all
    /// parts, another process may salvage the mapping.
    pub fn abandon(&self) {
        self.mapping.give_up();
    }

    /// Readers in other processes believe nothing of it from here on.
    pub(crate) fn end_published(&self) {
        self.mapping.end_published();
    }

    /// True if the name of the mapping's file no longer leads to it, while the volume is open.
    pub(crate) fn is_nameless(&self) -> bool {
        self.mapping.is_nameless()
    }

    /// Bytes of all frames, the bound of the cache. Less than the wanted size if there was no room.
    pub(crate) fn bound_bytes(&self) -> u64 {
        self.memory().1 as u64
    }

    /// Bytes of memory that all parts put on huge pages.
    pub fn huge_bytes(&self) -> u64 {
        self.mapping.huge_bytes()
    }

    /// All frames as one piece of memory.
    pub fn memory(&self) -> (*const u8, usize) {
        self.mapping.memory()
    }

    /// Copies bytes of the pages from `key` on, beginning at `offset` of the first one. False: not
    /// all are cached (some may have been copied); ask the owner.
    ///
    /// Panics when `offset` is beyond a page.
    #[inline]
    pub fn read(&self, key: FrameKey, offset: usize, into: &mut [u8]) -> bool {
        assert!(offset <= PAGE_BYTES);
        if breakdown::is_on() {
            return self.read_in_layers(key, offset, into);
        }
        if into.len() > PAGE_BYTES - offset {
            return self.read_pages(key, offset, into);
        }
        let Some(frame) = self.acquire(key, Some(offset)) else {
            return false;
        };
        // SAFETY: within the page, as was asked above, and pinned.
        unsafe { self.copy(&[frame], offset, into) };
        self.unpin(frame);
        true
    }

    /// Pins some pages before it copies them: counting a pin waits for all that this thread has
    /// stored. Those that lie side by side are one copy: each begins with a wait for memory.
    fn read_pages(&self, mut key: FrameKey, mut offset: usize, mut into: &mut [u8]) -> bool {
        while !into.is_empty() {
            let pages = (offset + into.len()).div_ceil(PAGE_BYTES).min(PINNED_MAX);
            let mut frames = [0; PINNED_MAX];
            let mut pinned = 0;
            // Bytes of a long row aren't prefetched: that would hide the sequential access from the
            // processor.
            let mut fetch = (pages <= FETCHED_MAX).then_some(offset);
            while pinned < pages
                && let Some(frame) = self.acquire(key, fetch)
            {
                fetch = fetch.map(|_| 0);
                frames[pinned] = frame;
                pinned += 1;
                key.page += 1;
            }
            if pinned == pages {
                for row in frames[..pages].chunk_by(|frame, next| *next == frame + 1) {
                    let len = (row.len() * PAGE_BYTES - offset).min(into.len());
                    let (part, rest) = into.split_at_mut(len);
                    // SAFETY: the part ends with the last page of the row, all of which are pinned.
                    unsafe { self.copy(row, offset, part) };
                    into = rest;
                    offset = 0;
                }
            }
            for &frame in &frames[..pinned] {
                self.unpin(frame);
            }
            if pinned < pages {
                return false;
            }
        }
        true
    }

    /// [`Frames::read`] with guards of the breakdown, each of which would show in the time of so
    /// short a function.
    #[cold]
    fn read_in_layers(&self, mut key: FrameKey, mut offset: usize, mut into: &mut [u8]) -> bool {
        let _in = breakdown::enter(Layer::Cache);
        while !into.is_empty() {
            let (part, rest) = into.split_at_mut((PAGE_BYTES - offset).min(into.len()));
            let Some(frame) = self.acquire(key, Some(offset)) else {
                return false;
            };
            {
                let _in = breakdown::enter(Layer::Copy);
                // SAFETY: the part ends with the page, which is pinned.
                unsafe { self.copy(&[frame], offset, part) };
            }
            self.unpin(frame);
            (key.page, into, offset) = (key.page + 1, rest, 0);
        }
        true
    }

    /// Copies from a row of frames.
    ///
    /// # Safety
    /// There is at least one, and their numbers follow each other, so that their pages do. Offset
    /// and length stay within these. They are pinned, which keeps their content from changing while
    /// it is copied.
    #[inline]
    unsafe fn copy(&self, row: &[u32], offset: usize, into: &mut [u8]) {
        for &frame in row {
            self.mapping.accesses(frame).read();
        }
        // SAFETY: by the caller's word.
        unsafe {
            let from = self.mapping.page(row[0]).cast::<u8>().add(offset);
            memory::copy_nonoverlapping(from, into.as_mut_ptr(), into.len());
        }
    }

    /// Pins a cached page for as long as the answer lives; none: not there, ask the owner.
    #[inline]
    pub fn pin(self: &Arc<Self>, key: FrameKey) -> Option<PinnedFrame<'_>> {
        let frame = self.acquire(key, Some(0))?;
        Some(PinnedFrame {
            frames: self,
            frame,
        })
    }

    /// Overwrites bytes of a dirty page with `data`, from `offset` on; false: ask the owner. The
    /// page has content beyond them, has no live bytes, and no other thread pins it. If it had no
    /// dirty granules, `list` is called before another thread can see that it has.
    ///
    /// The owner must neither look at the page's bytes nor change its flags meanwhile: see
    /// `blob/write_grant`.
    pub(crate) fn overwrite(
        &self,
        key: FrameKey,
        offset: usize,
        data: &[u8],
        list: impl FnOnce(),
    ) -> bool {
        let end = offset + data.len();
        let Some(frame) = self.acquire(key, Some(offset)) else {
            return false;
        };
        let meta = self.meta(frame);
        // Acquire: the owner's reads while the page had live bytes are over.
        let flags = FrameFlags::from_bits_retain(meta.flags.load(Ordering::Acquire));
        let fits = flags.is_only_dirty() || flags.is_clean() && planted(Bug::CleanOverwritten);
        let fits = fits && meta.end.load(Ordering::Relaxed) as usize >= end;
        // Acquire: every reader's unpin was a release; their copies are complete.
        let alone = || {
            let state = &meta.state;
            state.compare_exchange(1, WRITING, Ordering::Acquire, Ordering::Relaxed)
        };
        if !fits || alone().is_err() {
            self.unpin(frame);
            return false;
        }
        self.begin_bytes(frame);
        // SAFETY: WRITING; the owner stays away.
        let page = unsafe { self.bytes_mut(frame) };
        memory::copy(data, &mut page[offset..end]);
        self.end_bytes(frame);
        let (granules, dirty) = (granules(offset..end), &self.dirty_granules[frame as usize]);
        // WRITING: no other thread changes them.
        let before = dirty.load(Ordering::Relaxed);
        if before & granules != granules && !planted(Bug::UnnotedOverwrite) {
            dirty.store(before | granules, Ordering::Relaxed);
        }
        if before == 0 {
            list();
        }
        meta.state.fetch_and(!WRITING, Ordering::Release);
        true
    }

    /// Pins a page that is dirty, has no live bytes, and isn't in write-back; None: ask the owner.
    /// As in [`Frames::overwrite`], the owner stays away from the page meanwhile.
    pub(crate) fn pin_dirty(self: &Arc<Self>, key: FrameKey) -> Option<DirtyFrame<'_>> {
        let pinned = self.pin(key)?;
        let flags = self.meta(pinned.frame).flags.load(Ordering::Acquire);
        let dirty = FrameFlags::from_bits_retain(flags).is_only_dirty();
        dirty.then_some(DirtyFrame(pinned))
    }

    /// This commit must be durable before any sync returns.
    pub(crate) fn bind_syncs(&self, commit: u64) {
        self.syncs.need.fetch_max(commit, Ordering::AcqRel);
    }

    /// Commits are durable up to this one.
    pub(crate) fn note_durable(&self, commit: u64) {
        self.syncs.durable.store(commit, Ordering::Release);
    }

    /// The commit of the last [`Frames::bind_syncs`].
    pub(crate) fn syncs_need(&self) -> u64 {
        self.syncs.need.load(Ordering::Acquire)
    }

    /// Whether that one is durable.
    pub(crate) fn is_durable_for_syncs(&self) -> bool {
        self.syncs.durable.load(Ordering::Acquire) >= self.syncs_need() || planted(Bug::UnboundSync)
    }

    /// The bytes of a VALID frame change from here on: it is WRITING.
    #[inline]
    pub(super) fn begin_bytes(&self, frame: u32) {
        if let Some(version) = self.mapping.version(frame) {
            version.begin();
        }
    }

    /// They have changed; it is WRITING still.
    #[inline]
    pub(super) fn end_bytes(&self, frame: u32) {
        if let Some(version) = self.mapping.version(frame) {
            version.end();
        }
    }

    /// Where a cached page is, for readers in other processes; `len` of its bytes lie inside the
    /// file. None: it isn't cached, or the cache isn't for them.
    pub fn hint(&self, key: FrameKey, len: impl FnOnce() -> Option<usize>) -> Option<Hint> {
        self.hint_if(key, |_| len())
    }

    /// Where a page of slots is, for readers of one of them; None: the page isn't cached, the cache
    /// isn't published, or the owner has not verified the slot yet.
    pub(crate) fn slot_hint(&self, page: u64, index: u64) -> Option<Hint> {
        self.hint_if(FrameKey::meta(page), |meta| {
            let kind = (meta.flags.load(Ordering::Relaxed) >> KIND_SHIFT) as u8;
            (kind == PageKind::Slots as u8 && is_verified(meta, index)).then_some(PAGE_BYTES)
        })
    }

    /// `len` looks at the frame while it is pinned.
    fn hint_if(
        &self,
        key: FrameKey,
        len: impl FnOnce(&FrameMeta) -> Option<usize>,
    ) -> Option<Hint> {
        self.mapping.version(0)?;
        let frame = self.acquire(key, None)?;
        // Pinned: neither the content changes, nor does a shorter file cut it.
        let version = self.mapping.version(frame).and_then(SeqCount::read);
        let meta = self.meta(frame);
        let len = len(meta);
        // A pinned frame may be replaced meanwhile: its word says so after its flags.
        let flags = FrameFlags::from_bits_retain(meta.flags.load(Ordering::Acquire));
        let version = version.filter(|_| flags.contains(FrameFlags::VALID));
        self.unpin(frame);
        Hint::new(self.mapping.number_among_all(frame), len?, version?)
    }

    /// True if readers in other processes have hints of pages.
    pub(crate) fn is_published(&self) -> bool {
        self.mapping.version(0).is_some()
    }

    /// Invalidates the hints that readers in other processes have of the page.
    pub(crate) fn withdraw_hint(&self, key: FrameKey) {
        if self.is_published()
            && let Some(frame) = self.acquire(key, None)
        {
            if let Some(version) = self.mapping.version(frame) {
                version.step();
            }
            self.unpin(frame);
        }
    }

    /// The blobs that are ahead of their slots.
    #[inline]
    pub(crate) fn ahead(&self, of: AheadOf) -> AheadCounts<'_> {
        AheadCounts::among(self.mapping.ahead_counts().unwrap_or(&self.ahead), of)
    }

    /// The files for readers in other processes; None: the cache isn't published.
    pub fn published(&self) -> adit_base::Result<Option<PublishedFrames>> {
        self.mapping.published()
    }

    pub(super) fn dirty_granules(&self, frame: u32) -> &AtomicU64 {
        &self.dirty_granules[frame as usize]
    }

    #[inline]
    pub(super) fn meta(&self, frame: u32) -> &FrameMeta {
        self.mapping.meta(frame)
    }

    /// The frame that has the page, or had it a moment ago; begins to fetch its bytes at `fetch`.
    #[inline]
    pub(super) fn find(&self, key: FrameKey, fetch: Option<usize>) -> Option<u32> {
        let mut link = self.index.head(key).load(Ordering::Acquire);
        for _ in 0..STEPS_MAX {
            let frame = link.checked_sub(1)?;
            if frame >= self.mapping.frames() {
                return None;
            }
            if let Some(offset) = fetch {
                // It most likely is the right one: its bytes are fetched while its metadata still
                // is.
                self.mapping.prefetch(frame, offset);
            }
            let meta = self.mapping.meta(frame);
            if meta.has(key) {
                return Some(frame);
            }
            link = meta.next.load(Ordering::Acquire);
        }
        None
    }

    /// Finds and pins a valid frame; begins to fetch its bytes at `fetch`.
    #[inline]
    pub(super) fn acquire(&self, key: FrameKey, fetch: Option<usize>) -> Option<u32> {
        let mut spins = 0;
        let mut retries = 0;
        loop {
            let frame = self.find(key, fetch)?;
            let meta = self.mapping.meta(frame);
            match self.try_pin(meta, key) {
                Try::Pinned => {
                    meta.note_use();
                    return Some(frame);
                }
                Try::Busy => {
                    if spins == SPINS_MAX {
                        return None;
                    }
                    while meta.state.load(Ordering::Relaxed) & WRITING != 0 && spins < SPINS_MAX {
                        spin_loop();
                        spins += 1;
                    }
                }
                Try::Gone => {
                    if retries == RETRIES_MAX {
                        return None;
                    }
                    retries += 1;
                }
            }
        }
    }

    #[inline]
    fn try_pin(&self, meta: &FrameMeta, key: FrameKey) -> Try {
        let before = meta.state.fetch_add(1, Ordering::Acquire);
        if before & (WRITING | RETIRED) == 0 && before < PINS_MAX {
            // Flags first: VALID is stored after the key that it speaks for.
            let flags = FrameFlags::from_bits_retain(meta.flags.load(Ordering::Acquire));
            if flags.contains(FrameFlags::VALID)
                && !flags.contains(FrameFlags::LOADING)
                && meta.space.load(Ordering::Relaxed) == key.space
                && meta.page.load(Ordering::Relaxed) == key.page
            {
                return Try::Pinned;
            }
        }
        self.unpin_meta(meta);
        if before & WRITING != 0 {
            Try::Busy
        } else {
            Try::Gone
        }
    }

    /// Adds a pin. The caller has one, or is the owner.
    pub(super) fn repin(&self, frame: u32) {
        let before = self.meta(frame).state.fetch_add(1, Ordering::Relaxed);
        assert!(
            before & WRITING == 0 && before & PINS < PINS_MAX,
            "pins of a frame"
        );
    }

    #[inline]
    pub(super) fn unpin(&self, frame: u32) {
        self.unpin_meta(self.meta(frame));
    }

    #[inline]
    fn unpin_meta(&self, meta: &FrameMeta) {
        // Release: the owner's next write comes after this reader's copy.
        let before = meta.state.fetch_sub(1, Ordering::Release);
        if before == RETIRED | 1 {
            self.give_back(meta);
        }
    }

    #[cold]
    fn give_back(&self, meta: &FrameMeta) {
        if !self.claim_retired(meta) {
            return;
        }
        let first: *const FrameMeta = self.meta(0);
        // SAFETY: both point into the one metadata area.
        let frame = unsafe { std::ptr::from_ref(meta).offset_from(first) } as u32;
        // It is empty most of the time, so that is tried first.
        let mut top = 0;
        loop {
            // A reader that still walks the old chain may follow this link: only a false miss.
            meta.next.store(top, Ordering::Relaxed);
            let swap = self.returned.compare_exchange_weak(
                top,
                frame + 1,
                Ordering::Release,
                Ordering::Relaxed,
            );
            match swap {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    /// Exactly one of the threads that see a retired frame without pins wins it.
    pub(super) fn claim_retired(&self, meta: &FrameMeta) -> bool {
        // Acquire: every unpin before it was a release; those readers are done.
        meta.state
            .compare_exchange(RETIRED, 0, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// For the owner: all frames on the return stack, as frame number + 1 of the first, linked by
    /// `next`.
    pub(super) fn take_returned(&self) -> u32 {
        if self.returned.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.returned.swap(0, Ordering::Acquire)
    }

    /// The content, for the owner or a thread with a pin.
    ///
    /// # Safety
    /// For the life of the reference, the caller has a pin or the owner doesn't change this frame,
    /// and no thread overwrites it.
    #[inline]
    pub(super) unsafe fn bytes(&self, frame: u32) -> &PageBytes {
        let _ = self.meta(frame);
        self.mapping.accesses(frame).read();
        // SAFETY: a frame in range; by the caller's promise no thread writes.
        unsafe { &*self.mapping.page(frame) }
    }

    /// The content, to change.
    ///
    /// # Safety
    /// The frame is WRITING, or hidden from other threads (not VALID, or RAW); no other reference
    /// exists.
    #[allow(clippy::mut_from_ref)]
    #[inline]
    pub(super) unsafe fn bytes_mut(&self, frame: u32) -> &mut PageBytes {
        let _ = self.meta(frame);
        self.mapping.accesses(frame).write();
        // SAFETY: a frame in range; exclusive by the caller's promise.
        unsafe { &mut *self.mapping.page(frame) }
    }

    /// A buffer that owns one pin, which is already counted.
    pub(super) fn buffer_of_pin(self: &Arc<Self>, frame: u32) -> Buffer {
        let owner: Arc<dyn BufferOwner> = self.clone();
        // SAFETY: the pin keeps the frame from being reused until the buffer gives it back; the
        // owner keeps the mapping.
        unsafe {
            Buffer::from_parts(
                self.mapping.page(frame).cast(),
                PAGE_BYTES as u32,
                owner,
                frame,
            )
        }
    }
}

// SAFETY: a reference is a pin, and a pinned frame is neither changed nor reused; the mapping lives
// as long as `self`.
unsafe impl BufferOwner for Frames {
    fn retain(&self, index: u32) {
        if self.mapping.is_ours() {
            self.repin(index);
        }
    }

    fn release(&self, index: u32) {
        // A forked child's copy of a buffer has nothing behind it.
        if self.mapping.is_ours() {
            self.unpin(index);
        }
    }

    fn is_unique(&self, _index: u32) -> bool {
        // Published content: readers may come at any time.
        false
    }
}

/// A cached page that stays as it is while this lives.
pub struct PinnedFrame<'a> {
    frames: &'a Arc<Frames>,
    frame: u32,
}

impl PinnedFrame<'_> {
    /// The page.
    pub fn bytes(&self) -> &PageBytes {
        // SAFETY: pinned while `self` lives.
        unsafe { self.frames.bytes(self.frame) }
    }

    /// The page as a buffer that keeps the pin (and the cache) alive: a read without a copy.
    pub fn into_buffer(self) -> Buffer {
        let buffer = self.frames.buffer_of_pin(self.frame);
        std::mem::forget(self);
        buffer
    }
}

impl Drop for PinnedFrame<'_> {
    fn drop(&mut self) {
        if self.frames.mapping.is_ours() {
            self.frames.unpin(self.frame);
        }
    }
}

/// A pinned page that is dirty, as its bytes and dirty granules stay while this lives.
pub(crate) struct DirtyFrame<'a>(PinnedFrame<'a>);

impl DirtyFrame<'_> {
    fn granules(&self) -> &AtomicU64 {
        &self.0.frames.dirty_granules[self.0.frame as usize]
    }

    /// Whether some of its bytes aren't at home.
    pub(crate) fn has_dirty_granules(&self) -> bool {
        self.granules().load(Ordering::Relaxed) != 0
    }

    /// All of its bytes are at home now.
    pub(crate) fn note_home(&self) {
        self.granules().store(0, Ordering::Relaxed);
    }

    /// The page, for a device that reads it.
    ///
    /// # Safety
    /// The buffer must be dropped before the frame.
    pub(crate) unsafe fn borrowed(&self) -> Buffer {
        let page = self.0.bytes().as_ptr().cast_mut();
        // SAFETY: pinned, so it stays as it is; by the caller's promise not longer than the pin.
        unsafe { Buffer::borrowed(page, PAGE_BYTES) }
    }
}

/// Counts buffers of frames that no reader may look at: those that a device fills (LOADING), and
/// raw ones. Not by pins: those of readers that are about to step back would make the only buffer
/// look shared.
pub(super) struct Loads(pub(super) Arc<Frames>);

impl Loads {
    pub(super) fn buffer(self: &Arc<Self>, frame: u32) -> Buffer {
        let owner: Arc<dyn BufferOwner> = self.clone();
        self.0.meta(frame).loads.fetch_add(1, Ordering::Relaxed);
        let page = self.0.mapping.page(frame);
        // SAFETY: the owner neither reuses nor reads the frame while it counts loads, and it keeps
        // the mapping.
        unsafe { Buffer::from_parts(page.cast(), PAGE_BYTES as u32, owner, frame) }
    }
}

// SAFETY: `Cache` asserts that `loads` is 0 before it changes, publishes or frees such a frame.
unsafe impl BufferOwner for Loads {
    fn retain(&self, index: u32) {
        if self.0.mapping.is_ours() {
            self.0.meta(index).loads.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn release(&self, index: u32) {
        if self.0.mapping.is_ours() {
            self.0.meta(index).loads.fetch_sub(1, Ordering::Release);
        }
    }

    fn is_unique(&self, index: u32) -> bool {
        if !self.0.mapping.is_ours() {
            return false;
        }
        // The owner may look at a raw frame while it is written to the device.
        let meta = self.0.meta(index);
        let flags = FrameFlags::from_bits_retain(meta.flags.load(Ordering::Relaxed));
        flags.contains(FrameFlags::LOADING) && meta.loads.load(Ordering::Acquire) == 1
    }
}
