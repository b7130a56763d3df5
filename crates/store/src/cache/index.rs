//! The index of cached pages: hash heads here, chains through the frames' metadata.
//!
//! The owner inserts, replaces and removes; readers follow the chains at any time without
//! protection. They may be led from one chain into another by a frame that moves, so they bound
//! their steps and check the key on the frame itself. Links are frame number + 1; 0 is the end.
//!
//! It knows nothing about pins or flags.

use super::FrameKey;
use super::mapping::Mapping;
use adit_base::sync::atomic::{AtomicU32, Ordering};
#[cfg(not(loom))]
use zerocopy::FromZeros;

/// Neighbouring pages whose heads share a cache line.
const GROUP_PAGES_LOG2: u32 = 4;

pub(super) struct Index {
    heads: Box<[AtomicU32]>,
    /// Groups of heads, as a shift of the hash.
    shift: u32,
    /// Unpredictable, so that no program can choose pages that collide.
    seed: [u64; 2],
}

impl Index {
    pub(super) fn new(frames: u32) -> Index {
        let groups = (frames as usize)
            .div_ceil(1 << GROUP_PAGES_LOG2)
            .next_power_of_two()
            .max(2);
        let heads = zeroed(groups << GROUP_PAGES_LOG2);
        advise_huge(&heads);
        let random = seed();
        Index {
            heads,
            shift: 64 - groups.trailing_zeros(),
            seed: [random as u64, (random >> 64) as u64 | 1],
        }
    }

    /// Pages of one group have their heads in one line, in an order that depends on the hash (a
    /// file read at a fixed stride still uses all of them).
    #[inline]
    pub(super) fn head(&self, key: FrameKey) -> &AtomicU32 {
        let group = key.page >> GROUP_PAGES_LOG2;
        let mixed = (key.space ^ self.seed[0]).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ group;
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(self.seed[1]);
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let line = (mixed >> self.shift) as usize;
        let place = (key.page ^ mixed) as usize & ((1 << GROUP_PAGES_LOG2) - 1);
        &self.heads[(line << GROUP_PAGES_LOG2) | place]
    }

    /// Prefetches the lines that a search for the page reads, and the page's bytes at `offset`: in
    /// a large cache each of them misses, and now the misses overlap.
    #[inline]
    pub(super) fn prefetch(&self, mapping: &Mapping, key: FrameKey, offset: usize) {
        if let Some(frame) = self.head(key).load(Ordering::Relaxed).checked_sub(1) {
            mapping.prefetch(frame, offset);
        }
    }

    /// The owner's search: the first frame of the chain with this key.
    #[inline]
    pub(super) fn find(&self, mapping: &Mapping, key: FrameKey) -> Option<u32> {
        search(mapping, key, self.head(key).load(Ordering::Relaxed))
    }

    /// Prefetches the page's bytes at `offset`, then searches for its frame.
    #[inline]
    pub(super) fn find_fetching(
        &self,
        mapping: &Mapping,
        key: FrameKey,
        offset: usize,
    ) -> Option<u32> {
        let link = self.head(key).load(Ordering::Relaxed);
        mapping.prefetch(link.checked_sub(1)?, offset);
        search(mapping, key, link)
    }

    /// Makes a frame findable. Its key is already in its metadata.
    pub(super) fn insert(&self, mapping: &Mapping, key: FrameKey, frame: u32) {
        let head = self.head(key);
        let next = head.load(Ordering::Relaxed);
        mapping.meta(frame).next.store(next, Ordering::Relaxed);
        head.store(frame + 1, Ordering::Release);
    }

    /// Takes a frame out of its chain.
    pub(super) fn remove(&self, mapping: &Mapping, key: FrameKey, frame: u32) {
        let next = mapping.meta(frame).next.load(Ordering::Relaxed);
        self.place_of(mapping, key, frame)
            .store(next, Ordering::Release);
    }

    /// Puts `new` where `old` was.
    pub(super) fn replace(&self, mapping: &Mapping, key: FrameKey, old: u32, new: u32) {
        let next = mapping.meta(old).next.load(Ordering::Relaxed);
        mapping.meta(new).next.store(next, Ordering::Relaxed);
        self.place_of(mapping, key, old)
            .store(new + 1, Ordering::Release);
    }

    /// The head or link that refers to a frame.
    fn place_of<'a>(&'a self, mapping: &'a Mapping, key: FrameKey, frame: u32) -> &'a AtomicU32 {
        let mut place = self.head(key);
        loop {
            let link = place.load(Ordering::Relaxed);
            if link == frame + 1 {
                return place;
            }
            assert!(link != 0, "a frame is missing from its chain");
            place = &mapping.meta(link - 1).next;
        }
    }
}

/// The first frame with this key, from a link of its chain on.
#[inline]
fn search(mapping: &Mapping, key: FrameKey, mut link: u32) -> Option<u32> {
    while let Some(frame) = link.checked_sub(1) {
        let meta = mapping.meta(frame);
        if meta.space.load(Ordering::Relaxed) == key.space
            && meta.page.load(Ordering::Relaxed) == key.page
        {
            return Some(frame);
        }
        link = meta.next.load(Ordering::Relaxed);
    }
    None
}

/// Atomics that are 0, in memory that stays untouched until they are used.
#[cfg(not(loom))]
pub(super) fn zeroed<T: FromZeros>(count: usize) -> Box<[T]> {
    <[T]>::new_box_zeroed_with_elems(count).expect("memory for the cache's index")
}

#[cfg(loom)]
pub(super) fn zeroed<T: Default>(count: usize) -> Box<[T]> {
    (0..count).map(|_| T::default()).collect()
}

/// A model needs the same seed each time.
fn seed() -> u128 {
    if cfg!(loom) {
        return 1;
    }
    adit_base::random::os_random_u128()
}

/// Heads of a large cache on huge pages: one translation miss less for each lookup.
fn advise_huge(heads: &[AtomicU32]) {
    const HUGE_PAGE_BYTES: usize = 2 << 20;
    let start = heads.as_ptr().cast::<u8>();
    let skip = start.addr().next_multiple_of(HUGE_PAGE_BYTES) - start.addr();
    let len_bytes = size_of_val(heads).saturating_sub(skip) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if len_bytes > 0 {
        // SAFETY: advice about our own memory that does not change its content; a refusal only
        // costs speed.
        let _ = unsafe {
            rustix::mm::madvise(
                start.add(skip).cast_mut().cast(),
                len_bytes,
                rustix::mm::Advice::LinuxHugepage,
            )
        };
    }
}
