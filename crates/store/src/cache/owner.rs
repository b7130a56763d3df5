//! The owner's side of a cache: its state, frames' numbers and flags, how frames come and go.
//!
//! `&self` looks, `&mut self` changes, so a borrowed page can't change under its borrower; the
//! caller keeps a `Cache` in its worker state. The content of a published frame changes in place if
//! it is unpinned, else in a fresh frame that takes over its place in the index, its flags and its
//! numbers.
//!
//! Invariants: a frame is exactly one of free (in `free` or never used), in the index, raw (shadow,
//! journal buffer), just allocated, or retired and pinned. `counts` follow the flags, so flags
//! change only through `set_flags_word`. `used` counts every frame that isn't free.

use super::ahead::Ahead;
use super::frames::{Frames, Loads, RETIRED, WRITING};
use super::free::FreeFrames;
use super::header::NOTHING_APPLIED;
use super::index::Index;
use super::mapping::Mapping;
use super::{CacheOptions, CachePlacement, FrameFlags, FrameId, FrameKey, PageBytes};
use adit_base::Result;
use adit_block::Buffer;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) const KIND_SHIFT: u32 = 16;
pub(super) const FLAGS_MASK: u32 = (1 << KIND_SHIFT) - 1;

/// The frame can't be changed in place: a reader pins it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pinned;

/// Numbers of frames by state.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Used and free ones.
    pub total: u32,
    /// Not free.
    pub used: u32,
    /// With DIRTY.
    pub dirty: u32,
    /// With WRITEBACK.
    pub writeback: u32,
    /// With JOURNALED.
    pub journaled: u32,
    /// Could be evicted, apart from pins.
    pub clean: u32,
    /// Replaced or removed, waiting for their last pin to go.
    pub retired: u32,
}

/// A page cache, seen by its owner.
pub struct Cache {
    pub(super) frames: Arc<Frames>,
    pub(super) loads: Arc<Loads>,
    /// First and last LSN of journaled frames.
    pub(super) lsns: Vec<[u64; 2]>,
    pub(super) free: FreeFrames,
    /// Frames at and above it were never used.
    pub(super) touched: u32,
    /// Frames below it have memory behind them.
    pub(super) backed: u32,
    pub(super) backing_retry: u32,
    pub(super) ahead: Ahead,
    pub(super) hand: u32,
    pub(super) counts: Counts,
    /// Frames of metadata that are out of the index, and were read at that moment: each with a pin
    /// for its readers.
    pub(super) outlived: Vec<u32>,
    /// Number of the last apply; see `apply.rs`.
    pub(super) applies: u64,
    /// A transaction is being applied to several caches, this one among them.
    pub(super) changes_others: bool,
    /// Single owner: it may move to another thread, but is never shared.
    not_sync: std::marker::PhantomData<Cell<()>>,
}

impl Cache {
    /// Sets the memory aside: of this cache, and of all that share it ([`Frames::other_part`]). A
    /// shared cache that can't be had becomes an anonymous one, and [`Cache::placement`] says why.
    pub fn new(options: &CacheOptions) -> Result<Cache> {
        Ok(Cache::of(Mapping::new(options)?))
    }

    pub(super) fn of(mapping: Mapping) -> Cache {
        let total = mapping.frames();
        let frames = Arc::new(Frames::new(Arc::new(mapping), Index::new(total)));
        Cache {
            loads: Arc::new(Loads(frames.clone())),
            ahead: Ahead::new(frames.clone()),
            frames,
            lsns: vec![[0; 2]; total as usize],
            free: FreeFrames::new(total),
            touched: 0,
            backed: 0,
            backing_retry: 0,
            hand: 0,
            counts: Counts {
                total,
                ..Counts::default()
            },
            outlived: Vec::new(),
            applies: NOTHING_APPLIED,
            changes_others: false,
            not_sync: std::marker::PhantomData,
        }
    }

    /// The part that other threads read.
    pub fn frames(&self) -> &Arc<Frames> {
        &self.frames
    }

    /// Where the memory came to be; worth a line in the log when it has a `fallback`.
    pub fn placement(&self) -> &CachePlacement {
        self.frames.mapping().placement()
    }

    /// Numbers of frames by state. The next `allocate` stops counting retired frames without pins.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    // ---- finding and looking
    // -------------------------------------------------------------------------

    /// The frame of a page, LOADING ones included.
    #[inline]
    pub fn find(&self, key: FrameKey) -> Option<FrameId> {
        let frame = self.frames.index.find(self.frames.mapping(), key)?;
        Some(self.looked_at(frame))
    }

    /// Prefetches the page's bytes at `offset`, then searches for its frame.
    #[inline]
    pub fn find_fetching(&self, key: FrameKey, offset: usize) -> Option<FrameId> {
        let frames = &self.frames;
        let frame = frames.index.find_fetching(frames.mapping(), key, offset)?;
        Some(self.looked_at(frame))
    }

    #[inline]
    fn looked_at(&self, frame: u32) -> FrameId {
        let meta = self.frames.meta(frame);
        if meta.referenced.load(Ordering::Relaxed) == 0 {
            meta.referenced.store(1, Ordering::Relaxed);
        }
        FrameId(frame)
    }

    /// Begins to fetch the page's frame and its bytes at `offset` from memory.
    #[inline]
    pub fn prefetch(&self, key: FrameKey, offset: usize) {
        let frames = &self.frames;
        frames.index.prefetch(frames.mapping(), key, offset);
    }

    /// The page. Not while a device fills it.
    #[inline]
    pub fn bytes(&self, id: FrameId) -> &PageBytes {
        assert!(
            !self.flags(id).contains(FrameFlags::LOADING),
            "a frame is read while it is loaded"
        );
        // SAFETY: only the owner changes content, through `&mut self`.
        unsafe { self.frames.bytes(id.0) }
    }

    /// The frame's flags.
    #[inline]
    pub fn flags(&self, id: FrameId) -> FrameFlags {
        FrameFlags::from_bits_retain(self.flags_word(id.0) & FLAGS_MASK)
    }

    /// The kind number of the page, for the caller's use and for salvage.
    pub fn kind(&self, id: FrameId) -> u8 {
        (self.flags_word(id.0) >> KIND_SHIFT) as u8
    }

    /// The page that the frame holds.
    pub fn key(&self, id: FrameId) -> FrameKey {
        let meta = self.frames.meta(id.0);
        FrameKey {
            space: meta.space.load(Ordering::Relaxed),
            page: meta.page.load(Ordering::Relaxed),
        }
    }

    /// Device page of a journaled frame.
    pub fn home(&self, id: FrameId) -> u64 {
        self.frames.meta(id.0).home.load(Ordering::Relaxed)
    }

    /// Sets the device page of a journaled frame.
    pub fn set_home(&mut self, id: FrameId, device_page: u64) {
        let meta = self.frames.meta(id.0);
        meta.home.store(device_page, Ordering::Release);
    }

    /// Granules (64 bytes, bit 0 the first) changed since the last seal.
    pub fn pending(&self, id: FrameId) -> u64 {
        self.frames.meta(id.0).pending.load(Ordering::Relaxed)
    }

    /// Sets the granules changed since the last seal. Clear them only once a published journal
    /// buffer has them.
    pub fn set_pending(&mut self, id: FrameId, granules: u64) {
        let meta = self.frames.meta(id.0);
        meta.pending.store(granules, Ordering::Release);
    }

    /// Bytes of the page that are inside the file.
    pub fn end(&self, id: FrameId) -> u32 {
        self.frames.meta(id.0).end.load(Ordering::Relaxed)
    }

    /// Sets the number of the page's bytes inside the file.
    pub fn set_end(&mut self, id: FrameId, end_bytes: u32) {
        let meta = self.frames.meta(id.0);
        meta.end.store(end_bytes, Ordering::Release);
    }

    /// Generation of the blob.
    pub fn generation(&self, id: FrameId) -> u32 {
        self.frames.meta(id.0).generation.load(Ordering::Relaxed)
    }

    /// Sets the generation of the blob.
    pub fn set_generation(&mut self, id: FrameId, generation: u32) {
        let meta = self.frames.meta(id.0);
        meta.generation.store(generation, Ordering::Release);
    }

    /// LSN of the oldest record of this frame that isn't at home yet; the caller's.
    pub fn first_lsn(&self, id: FrameId) -> u64 {
        self.lsns[id.0 as usize][0]
    }

    /// LSN of the newest record of this frame; the caller's.
    pub fn last_lsn(&self, id: FrameId) -> u64 {
        self.lsns[id.0 as usize][1]
    }

    /// Granules with data newer than at home and in the journal; the caller's.
    pub fn dirty_granules(&self, id: FrameId) -> u64 {
        self.frames.dirty_granules(id.0).load(Ordering::Relaxed)
    }

    /// Sets the dirty granules.
    pub fn set_dirty_granules(&mut self, id: FrameId, granules: u64) {
        let of_frame = self.frames.dirty_granules(id.0);
        of_frame.store(granules, Ordering::Relaxed);
    }

    /// Where the page's bytes are. Reading and writing there is bound by the rules of
    /// [`Cache::bytes`] and [`Cache::raw_mut`].
    #[inline]
    pub fn page_ptr(&self, id: FrameId) -> *mut PageBytes {
        self.frames.mapping().page(id.0)
    }

    /// Pages of `space` in `pages` that have a frame, in no order. Looks at every frame.
    pub fn pages_of(
        &self,
        space: u64,
        pages: std::ops::Range<u64>,
    ) -> impl Iterator<Item = u64> + '_ {
        (0..self.touched).filter_map(move |frame| {
            let id = FrameId(frame);
            let key = self.key(id);
            let here = key.space == space && pages.contains(&key.page);
            (here && self.flags(id).contains(FrameFlags::INDEXED)).then_some(key.page)
        })
    }

    /// Sets both LSNs.
    pub fn set_lsns(&mut self, id: FrameId, first: u64, last: u64) {
        let [first_lsn, last_lsn] = &mut self.lsns[id.0 as usize];
        (*first_lsn, *last_lsn) = (first, last);
    }

    // ---- flags
    // -----------------------------------------------------------------------------------------

    /// Raises flags (DIRTY, JOURNALED, WRITEBACK, META, HELD).
    #[inline]
    pub fn set_flags(&mut self, id: FrameId, flags: FrameFlags) {
        let word = self.flags_word(id.0);
        if word & flags.bits() != flags.bits() {
            self.set_flags_word(id.0, word | flags.bits());
        }
    }

    /// Lowers flags.
    #[inline]
    pub fn clear_flags(&mut self, id: FrameId, flags: FrameFlags) {
        let word = self.flags_word(id.0);
        if word & flags.bits() != 0 {
            self.set_flags_word(id.0, word & !flags.bits());
        }
    }

    /// Lowers some flags and raises others in one step: a write-back begins with DIRTY → WRITEBACK,
    /// so that salvage finds one of them at each instant, and ends with WRITEBACK → nothing, or →
    /// DIRTY when it failed.
    #[inline]
    pub fn change_flags(&mut self, id: FrameId, lower: FrameFlags, raise: FrameFlags) {
        let word = self.flags_word(id.0) & !lower.bits() | raise.bits();
        self.set_flags_word(id.0, word);
    }

    /// Sets the kind number of the page.
    pub fn set_kind(&mut self, id: FrameId, kind: u8) {
        let word = self.flags_word(id.0);
        let kind = u32::from(kind) << KIND_SHIFT;
        self.set_flags_word(id.0, word & !(0xff << KIND_SHIFT) | kind);
    }

    #[inline]
    pub(super) fn flags_word(&self, frame: u32) -> u32 {
        self.frames.meta(frame).flags.load(Ordering::Relaxed)
    }

    /// The only place where flags change: keeps the counts.
    #[inline]
    pub(super) fn set_flags_word(&mut self, frame: u32, word: u32) {
        let meta = self.frames.meta(frame);
        let before = FrameFlags::from_bits_retain(meta.flags.load(Ordering::Relaxed));
        let after = FrameFlags::from_bits_retain(word);
        let step = |count: &mut u32, was: bool, is: bool| {
            *count = count
                .wrapping_add(u32::from(is))
                .wrapping_sub(u32::from(was));
        };
        let has = |flags: FrameFlags, flag| flags.contains(flag);
        let (dirty, journaled) = (FrameFlags::DIRTY, FrameFlags::JOURNALED);
        let counts = &mut self.counts;
        step(&mut counts.dirty, has(before, dirty), has(after, dirty));
        let writeback = FrameFlags::WRITEBACK;
        step(
            &mut counts.writeback,
            has(before, writeback),
            has(after, writeback),
        );
        step(
            &mut counts.journaled,
            has(before, journaled),
            has(after, journaled),
        );
        step(&mut counts.clean, before.is_clean(), after.is_clean());
        // Release: a thread that sees the flag sees the content behind it.
        meta.flags.store(word, Ordering::Release);
    }

    // ---- frames come and go
    // ------------------------------------------------------------------------

    /// Takes a frame for a page, outside the index and with stale content: a free one, else the
    /// next clean one without pins or recent use. None: all are dirty, busy or pinned; write back
    /// first.
    pub fn allocate(&mut self) -> Option<FrameId> {
        let frame = self.take_frame()?;
        let meta = self.frames.meta(frame);
        meta.home.store(0, Ordering::Relaxed);
        meta.pending.store(0, Ordering::Relaxed);
        meta.generation.store(0, Ordering::Relaxed);
        meta.end.store(0, Ordering::Relaxed);
        meta.referenced.store(0, Ordering::Relaxed);
        meta.sequence.store(0, Ordering::Relaxed);
        self.lsns[frame as usize] = [0; 2];
        self.set_dirty_granules(FrameId(frame), 0);
        Some(FrameId(frame))
    }

    /// A frame outside the index for the caller's own use: to become a journal buffer. Held until
    /// [`Cache::free_raw`].
    pub fn allocate_raw(&mut self) -> Option<FrameId> {
        let id = self.allocate()?;
        self.set_flags_word(id.0, FrameFlags::RAW.bits());
        Some(id)
    }

    /// Frees a shadow, a journal buffer or another raw frame, once IO on it is over.
    pub fn free_raw(&mut self, id: FrameId) {
        let flags = self.flags(id);
        assert!(flags.contains(FrameFlags::RAW), "not a raw frame");
        if flags.contains(FrameFlags::SHADOW) {
            let target = self.frames.meta(id.0).next.load(Ordering::Relaxed) - 1;
            self.clear_flags(FrameId(target), FrameFlags::SHADOWED);
        } else {
            self.assert_no_loads(id.0);
        }
        self.retire(id.0);
    }

    /// Frees an allocated frame that was not inserted.
    pub fn free_allocated(&mut self, id: FrameId) {
        assert!(self.flags(id).is_empty(), "a frame is in use");
        self.retire(id.0);
    }

    /// The content of a raw or just allocated frame, to fill.
    pub fn raw_mut(&mut self, id: FrameId) -> &mut PageBytes {
        let flags = self.flags(id);
        assert!(
            flags.is_empty() || flags.contains(FrameFlags::RAW),
            "a published frame is changed by `write`"
        );
        if !flags.contains(FrameFlags::SHADOW) {
            self.assert_no_loads(id.0);
        }
        // SAFETY: not VALID, so that readers step back without a look; `&mut self` excludes the
        // owner's own references.
        unsafe { self.frames.bytes_mut(id.0) }
    }

    /// From now on, this raw frame is journal page `lsn`, which salvage will replay; until
    /// [`Cache::free_raw`].
    pub fn publish_journal_buffer(&mut self, id: FrameId, lsn: u64) {
        assert_eq!(self.flags(id), FrameFlags::RAW, "not a plain raw frame");
        let meta = self.frames.meta(id.0);
        meta.page.store(lsn, Ordering::Relaxed);
        let flags = FrameFlags::RAW | FrameFlags::JOURNAL_BUFFER;
        self.set_flags_word(id.0, flags.bits());
    }

    /// Makes a journal buffer a plain raw frame again: its content is on the device.
    pub fn unpublish_journal_buffer(&mut self, id: FrameId) {
        self.set_flags_word(id.0, FrameFlags::RAW.bits());
    }

    /// Makes an allocated frame findable. With LOADING it is not read before [`Cache::loaded`];
    /// with VALID its content is complete (and `set_end`, `set_generation`, `set_home`,
    /// `set_pending` came before, if they matter after a crash).
    pub fn insert(&mut self, id: FrameId, key: FrameKey, flags: FrameFlags) {
        assert!(self.flags_word(id.0) == 0, "a frame is inserted twice");
        assert!(
            flags.contains(FrameFlags::VALID) != flags.contains(FrameFlags::LOADING),
            "a frame is either valid or loading"
        );
        assert!(
            !flags.intersects(FrameFlags::SHADOW | FrameFlags::JOURNAL_BUFFER | FrameFlags::RAW)
        );
        let mapping = self.frames.mapping();
        debug_assert!(self.frames.index.find(mapping, key).is_none());
        let meta = mapping.meta(id.0);
        meta.space.store(key.space, Ordering::Relaxed);
        meta.page.store(key.page, Ordering::Relaxed);
        self.set_flags_word(id.0, (flags | FrameFlags::INDEXED).bits());
        self.frames.index.insert(self.frames.mapping(), key, id.0);
    }

    /// The device's view of a LOADING frame: the only reference, to be dropped before
    /// [`Cache::loaded`] or [`Cache::remove`].
    pub fn load_buffer(&self, id: FrameId) -> Buffer {
        assert!(
            self.flags(id).contains(FrameFlags::LOADING),
            "a load into a published frame"
        );
        self.loads.buffer(id.0)
    }

    /// The page is there: from LOADING to VALID.
    pub fn loaded(&mut self, id: FrameId) {
        self.assert_no_loads(id.0);
        let flags = self.flags(id);
        assert!(flags.contains(FrameFlags::LOADING), "not a loading frame");
        let word = self.flags_word(id.0) & !FrameFlags::LOADING.bits();
        self.set_flags_word(id.0, word | FrameFlags::VALID.bits());
    }

    /// The content of a LOADING frame once its load buffer is gone, to verify or complete it before
    /// [`Cache::loaded`].
    pub fn loading_mut(&mut self, id: FrameId) -> &mut PageBytes {
        self.assert_no_loads(id.0);
        assert!(self.flags(id).contains(FrameFlags::LOADING), "not loading");
        // SAFETY: not VALID, so that readers step back without a look, and the device is done.
        unsafe { self.frames.bytes_mut(id.0) }
    }

    /// A buffer of the frame for IO out of memory. A page is pinned by it: until it is dropped,
    /// writers replace the frame instead of changing it. A raw frame's must be dropped before the
    /// frame is changed or freed.
    pub fn buffer(&self, id: FrameId) -> Buffer {
        let flags = self.flags(id);
        assert!(!flags.intersects(FrameFlags::LOADING | FrameFlags::SHADOW));
        if flags.contains(FrameFlags::RAW) {
            return self.loads.buffer(id.0);
        }
        assert!(flags.contains(FrameFlags::VALID), "IO of an empty frame");
        self.frames.repin(id.0);
        self.frames.buffer_of_pin(id.0)
    }

    /// Removes a page from the cache, whatever its flags. The frame is free now, or when its last
    /// pin goes.
    pub fn remove(&mut self, id: FrameId) {
        assert!(
            self.flags(id).contains(FrameFlags::INDEXED),
            "a frame that isn't in the index is removed"
        );
        assert!(!self.flags(id).contains(FrameFlags::SHADOWED));
        self.assert_no_loads(id.0);
        self.unindex(id.0);
        self.retire(id.0);
    }

    fn assert_no_loads(&self, frame: u32) {
        let loads = self.frames.meta(frame).loads.load(Ordering::Acquire);
        assert!(loads == 0, "a load buffer outlives its load");
    }

    pub(super) fn unindex(&mut self, frame: u32) {
        let key = self.key(FrameId(frame));
        let frames = &self.frames;
        frames.index.remove(frames.mapping(), key, frame);
    }

    /// Out of everything, then free: at once, or through the return stack.
    pub(super) fn retire(&mut self, frame: u32) {
        let is_meta = self.flags(FrameId(frame)).contains(FrameFlags::META);
        // Before RETIRED: no thread can see VALID on a frame whose last pin made it free.
        self.set_flags_word(frame, 0);
        if let Some(version) = self.frames.mapping().version(frame) {
            version.step();
        }
        if is_meta {
            self.pin_for_readers(frame);
        }
        let frames = &self.frames;
        let meta = frames.meta(frame);
        meta.loads.store(0, Ordering::Relaxed);
        let before = meta.state.fetch_or(RETIRED, Ordering::AcqRel);
        assert!(
            before & (RETIRED | WRITING) == 0,
            "a frame is retired twice"
        );
        if before == 0 && frames.claim_retired(meta) {
            self.free.push(frame);
            self.counts.used -= 1;
        } else {
            self.counts.retired += 1;
        }
    }

    /// Pins a frame that has left the index if threads read it. True if they do.
    pub(super) fn pin_for_readers(&mut self, frame: u32) -> bool {
        let is_read = !self.frames.read_now(|listed| listed == frame).is_empty();
        if is_read {
            self.frames.repin(frame);
            self.outlived.push(frame);
        }
        is_read
    }

    /// Takes away the pins of frames that no thread reads any more.
    #[cold]
    pub(super) fn unpin_unread(&mut self) {
        let (frames, outlived) = (&self.frames, &mut self.outlived);
        let read = frames.read_now(|frame| outlived.contains(&frame));
        outlived.retain(|frame| {
            let is_read = read.contains(frame);
            if !is_read {
                frames.unpin(*frame);
            }
            is_read
        });
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        // Pinned frames may keep the mapping alive in this process.
        self.frames.abandon();
    }
}
