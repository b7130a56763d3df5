//! Chooses huge pages for chunks of the cache's memory while they cost less than small ones.
//!
//! A huge page saves translation misses, and 2 MiB at once are cleared in 0.1 ms. On a virtual
//! machine whose host has taken free memory back, the same 2 MiB took 4.6 ms and more, while pages
//! of 4 KiB, which the guest had used before, took 1.2 ms. So a slow one is followed by a pause.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The cost of 512 page faults of 2.3 µs: above it small pages are faster.
const SLOW: Duration = Duration::from_micros(1200);
/// Chunks of small pages after a slow huge one: 126 MiB.
const PAUSE_CHUNKS: u32 = 63;

/// The choice, by the time of the last huge page; and its results.
#[derive(Default)]
pub(super) struct HugePages {
    /// Chunks to come that get small pages.
    pause: AtomicU32,
    /// Chunks that are huge pages.
    huge: AtomicU32,
}

impl HugePages {
    /// True if the next chunk should be a huge page. Counts the chunk.
    pub(super) fn are_due(&self) -> bool {
        let less = |pause: u32| pause.checked_sub(1);
        let counted = (self.pause).fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        counted.is_err()
    }

    /// Notes whether a chunk became a huge page, and the time that the attempt took.
    pub(super) fn note(&self, is_huge: bool, took: Duration) {
        self.huge.fetch_add(is_huge.into(), Ordering::Relaxed);
        if took > SLOW {
            self.pause.store(PAUSE_CHUNKS, Ordering::Relaxed);
        }
    }

    /// Chunks that are huge pages.
    pub(super) fn count(&self) -> usize {
        self.huge.load(Ordering::Relaxed) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_huge_page_is_followed_by_small_ones_and_another_trial() {
        let pages = HugePages::default();
        for _ in 0..2 {
            assert!(pages.are_due());
            pages.note(true, Duration::from_micros(100));
        }
        assert!(pages.are_due());
        pages.note(false, Duration::from_millis(5));
        for _ in 0..PAUSE_CHUNKS {
            assert!(!pages.are_due());
        }
        assert!(pages.are_due());
        assert_eq!(pages.count(), 2);
    }
}
