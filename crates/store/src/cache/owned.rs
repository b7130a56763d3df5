//! The worker's handle on its page cache.
//!
//! [`Cache`] asks for `&mut self` where it changes; the store is single-owner and reaches its cache
//! from many places, some of which hold a page while they allocate another. So the cache sits in an
//! `UnsafeCell` and every method here borrows it for its own duration only.
//!
//! Why that is sound: `OwnedCache` is `!Sync`, no method calls back into the store, and a `&Page`
//! that is handed out points into frame memory, not into `Cache`. Its content changes only through
//! [`OwnedCache::write`], [`OwnedCache::apply`] or a shadow's pointer, none of which the store
//! calls while it holds the page (`transaction.rs`: pages are read through `&self`, changed through
//! `&mut self`). [`OwnedCache::fill_shadow`] changes only granules to which no reference was given
//! out. Threads overwrite only pages that the store doesn't look at meanwhile (`blob/write_grant`).

use crate::cache::{Applied, Cache, Counts, FrameFlags, FrameId, FrameKey, META_SPACE};
use crate::format::Page;
use adit_base::{PAGE_BYTES, granules};
use adit_block::Buffer;
use smallvec::SmallVec;
use std::cell::UnsafeCell;
use std::ops::Range;

/// Methods that hand on to [`Cache`].
macro_rules! forward {
    ($($(#[$attribute:meta])* $by:ident fn $name:ident($($arg:ident: $kind:ty),*) $(-> $answer:ty)?;)*) => {$(
        $(#[$attribute])*
        pub(crate) fn $name(&self $(, $arg: $kind)*) $(-> $answer)? {
            self.$by().$name($($arg),*)
        }
    )*};
}

/// Pairs of a target and its shadow.
pub(crate) type Edits = SmallVec<[(FrameId, FrameId); 12]>;

pub(crate) struct OwnedCache(UnsafeCell<Cache>);

/// META, for a page of metadata.
fn meta_flag(key: FrameKey) -> FrameFlags {
    match key.space {
        META_SPACE => FrameFlags::META,
        _ => FrameFlags::empty(),
    }
}

impl OwnedCache {
    pub(crate) fn new(cache: Cache) -> OwnedCache {
        OwnedCache(UnsafeCell::new(cache))
    }

    fn get(&self) -> &Cache {
        // SAFETY: single owner; no exclusive borrow outlives a method of this file.
        unsafe { &*self.0.get() }
    }

    #[allow(clippy::mut_from_ref)]
    fn get_mut(&self) -> &mut Cache {
        // SAFETY: single owner; the borrow ends with the method that asked for it, and none of them
        // calls another method of this type meanwhile.
        unsafe { &mut *self.0.get() }
    }

    forward! {
        get fn counts() -> Counts;
        #[inline]
        get fn find(key: FrameKey) -> Option<FrameId>;
        /// Prefetches the page's bytes at `offset`, then searches for its frame.
        #[inline]
        get fn find_fetching(key: FrameKey, offset: usize) -> Option<FrameId>;
        /// Begins to fetch the page's frame and its bytes at `offset` from memory.
        #[inline]
        get fn prefetch(key: FrameKey, offset: usize);
        get fn flags(frame: FrameId) -> FrameFlags;
        get fn key(frame: FrameId) -> FrameKey;
        get fn kind(frame: FrameId) -> u8;
        get fn home(frame: FrameId) -> u64;
        get_mut fn set_home(frame: FrameId, page: u64);
        get fn pending(frame: FrameId) -> u64;
        get_mut fn set_pending(frame: FrameId, granules: u64);
        /// Granules that `write` changed since the data was last taken to the device or the
        /// journal.
        get fn dirty_granules(frame: FrameId) -> u64;
        get_mut fn set_dirty_granules(frame: FrameId, granules: u64);
        get fn first_lsn(frame: FrameId) -> u64;
        get fn last_lsn(frame: FrameId) -> u64;
        get_mut fn set_lsns(frame: FrameId, first: u64, last: u64);
        get_mut fn set_kind(frame: FrameId, kind: u8);
        get_mut fn allocate() -> Option<FrameId>;
        get_mut fn free_allocated(frame: FrameId);
        get_mut fn allocate_raw() -> Option<FrameId>;
        get_mut fn free_raw(frame: FrameId);
        get_mut fn shadow_for(target: FrameId, decides: u32) -> Option<FrameId>;
        get_mut fn fill_shadow(shadow: FrameId, granules: u64);
        get_mut fn publish_journal_buffer(frame: FrameId, lsn: u64);
        get_mut fn unpublish_journal_buffer(frame: FrameId);
        get fn load_buffer(frame: FrameId) -> Buffer;
        get_mut fn loaded(frame: FrameId);
        get fn buffer(frame: FrameId) -> Buffer;
        get_mut fn pass(key: FrameKey) -> bool;
        get_mut fn remove(frame: FrameId);
    }

    /// Frames that can be had without write-back, pins apart.
    pub(crate) fn available(&self) -> usize {
        self.get().available() as usize
    }

    pub(crate) fn has(&self, frame: FrameId, flags: FrameFlags) -> bool {
        self.flags(frame).intersects(flags)
    }

    pub(crate) fn set(&self, frame: FrameId, flags: FrameFlags) {
        self.get_mut().set_flags(frame, flags);
    }

    pub(crate) fn clear(&self, frame: FrameId, flags: FrameFlags) {
        self.get_mut().clear_flags(frame, flags);
    }

    /// Begins write-back of a frame: from DIRTY to WRITEBACK. Returns the dirty granules.
    pub(crate) fn begin_write_back(&self, frame: FrameId) -> u64 {
        let cache = self.get_mut();
        let granules = cache.dirty_granules(frame);
        cache.set_dirty_granules(frame, 0);
        cache.change_flags(frame, FrameFlags::DIRTY, FrameFlags::WRITEBACK);
        granules
    }

    /// A write-back failed: from WRITEBACK to DIRTY, with these granules and those dirtied
    /// meanwhile.
    pub(crate) fn undo_write_back(&self, frame: FrameId, granules: u64) {
        let cache = self.get_mut();
        cache.change_flags(frame, FrameFlags::WRITEBACK, FrameFlags::DIRTY);
        let now = cache.dirty_granules(frame);
        cache.set_dirty_granules(frame, now | granules);
    }

    pub(crate) fn is_loading(&self, frame: FrameId) -> bool {
        self.has(frame, FrameFlags::LOADING)
    }

    /// Identity for salvage: the blob's generation and the bytes of the page that are inside of it.
    pub(crate) fn set_extent_in_file(&self, frame: FrameId, generation: u32, end_bytes: u32) {
        let cache = self.get_mut();
        cache.set_generation(frame, generation);
        if cache.end(frame) < end_bytes {
            cache.set_end(frame, end_bytes);
        }
    }

    pub(crate) fn limit_end(&self, frame: FrameId, end_bytes: u32) {
        self.get_mut().set_end(frame, end_bytes);
    }

    /// Which slots of a slot page were found sound since it came into the cache, a bit each. Kept
    /// where data frames have their end.
    pub(crate) fn verified_slots(&self, frame: FrameId) -> u32 {
        self.get().end(frame)
    }

    pub(crate) fn set_verified_slot(&self, frame: FrameId, index: u64) {
        let cache = self.get_mut();
        let slots = cache.end(frame) | 1 << index;
        cache.set_end(frame, slots);
    }

    #[inline]
    pub(crate) fn page(&self, frame: FrameId) -> &Page {
        debug_assert!(self.is_filled(frame, u64::MAX), "a shadow lacks granules");
        debug_assert!(
            !self.get().is_overwritten(frame),
            "a granted page is looked at"
        );
        // SAFETY: `Page` is `PageBytes` with an alignment that frames exceed; see the head of the
        // file for how long the reference may live.
        unsafe { &*self.page_ptr(frame) }
    }

    /// Some bytes of a page; of a shadow, whose other bytes may still be filled in.
    #[inline]
    pub(crate) fn bytes(&self, frame: FrameId, bytes: Range<usize>) -> &[u8] {
        assert!(bytes.start <= bytes.end && bytes.end <= PAGE_BYTES);
        debug_assert!(
            self.is_filled(frame, granules(bytes.clone())),
            "a shadow lacks granules"
        );
        let page = self.page_ptr(frame).cast::<u8>().cast_const();
        // SAFETY: within the page, as was asked above; see `page`.
        unsafe { std::slice::from_raw_parts(page.add(bytes.start), bytes.len()) }
    }

    /// True if these granules may be read: all but those that a shadow lacks.
    fn is_filled(&self, frame: FrameId, granules: u64) -> bool {
        !self.has(frame, FrameFlags::SHADOW) || granules & !self.pending(frame) == 0
    }

    #[inline]
    pub(crate) fn page_ptr(&self, frame: FrameId) -> *mut Page {
        self.get().page_ptr(frame).cast()
    }

    pub(crate) fn apply(
        &self,
        edits: &[(FrameId, FrameId)],
        decided: impl FnOnce(u64),
        report: impl FnMut(Applied),
    ) {
        self.get_mut().apply(edits, decided, report);
    }

    /// [`Cache::apply`] with edits in other partitions' caches, about which this one decides.
    pub(crate) fn apply_with(
        &self,
        edits: Edits,
        others: &[(&OwnedCache, Edits)],
        decided: impl FnOnce(u64),
        mut report: impl FnMut(usize, Applied),
    ) {
        let own = [(self, edits)];
        let all = || own.iter().chain(others);
        let number = self.get().next_apply();
        for (cache, edits) in all() {
            cache.get_mut().number_shadows(edits, number);
        }
        self.get_mut().decide(number, decided);
        for (at, (cache, edits)) in all().enumerate() {
            (cache.get_mut()).apply_decided(edits, |applied| report(at, applied));
        }
        self.get_mut().end_apply(number);
        for (cache, edits) in all() {
            cache.get_mut().free_shadows(edits);
        }
    }

    /// See [`Cache::begin_change`].
    pub(crate) fn begin_change(&self) {
        self.get_mut().begin_change();
    }

    /// See [`Cache::end_change`].
    pub(crate) fn end_change(&self) {
        self.get_mut().end_change();
    }

    /// A zero-filled, findable frame.
    pub(crate) fn insert_zeroed(&self, frame: FrameId, key: FrameKey, kind: u8) {
        self.insert_filled(frame, key, kind, |bytes| bytes.fill(0));
    }

    /// A findable frame whose content `fill` makes.
    pub(crate) fn insert_filled(
        &self,
        frame: FrameId,
        key: FrameKey,
        kind: u8,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let cache = self.get_mut();
        fill(cache.raw_mut(frame));
        cache.insert(frame, key, FrameFlags::VALID | meta_flag(key));
        cache.set_kind(frame, kind);
    }

    pub(crate) fn insert_loading(&self, frame: FrameId, key: FrameKey, kind: u8) {
        let cache = self.get_mut();
        cache.insert(frame, key, FrameFlags::LOADING | meta_flag(key));
        cache.set_kind(frame, kind);
    }

    /// The content of a frame whose load is complete, before it is published.
    pub(crate) fn with_loading<R>(&self, frame: FrameId, f: impl FnOnce(&mut [u8]) -> R) -> R {
        f(self.get_mut().loading_mut(frame))
    }

    #[inline]
    pub(crate) fn write(&self, frame: FrameId, change: impl FnOnce(&mut [u8])) -> Option<FrameId> {
        self.get_mut()
            .write_or_replace(frame, |bytes| change(bytes))
    }

    /// Pages of `space` in `pages` that have a frame, ascending.
    pub(crate) fn pages_of(&self, space: u64, pages: std::ops::Range<u64>) -> Vec<u32> {
        let mut found: Vec<u32> = self
            .get()
            .pages_of(space, pages)
            .map(|page| page as u32)
            .collect();
        found.sort_unstable();
        found
    }
}
