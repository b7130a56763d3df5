//! Which chunks of the cache's memory are huge pages: only while those cost less than small ones.
//!
//! A huge page saves translation misses, and 2 MiB at once are cleared in 0.1 ms. On a virtual
//! machine whose host has taken free memory back, the same 2 MiB took 4.6 ms and more, while pages
//! of 4 KiB, which the guest had used before, took 1.2 ms. So a slow one is followed by a pause.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// What 512 page faults of 2.3 µs cost: from here on small pages are faster.
const SLOW: Duration = Duration::from_micros(1200);
/// Chunks of small pages after a slow huge one: 126 MiB.
const PAUSE_CHUNKS: u32 = 63;

/// The choice, from what the last huge page took; and what came of it.
pub(super) struct HugePages {
    /// Chunks to come that get small pages.
    pause: AtomicU32,
    /// By chunk: is it a huge page?
    huge: Box<[AtomicBool]>,
}

impl HugePages {
    /// Of so many chunks, none of which has memory.
    pub(super) fn new(chunks: u32) -> HugePages {
        HugePages {
            pause: AtomicU32::new(0),
            huge: (0..chunks).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// Is the next chunk to be a huge page? Counts it.
    pub(super) fn are_due(&self) -> bool {
        let less = |pause: u32| pause.checked_sub(1);
        let counted = (self.pause).fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        counted.is_err()
    }

    /// Notes whether the chunk became a huge page, and what that took, or the attempt.
    pub(super) fn note(&self, chunk: u32, is_huge: bool, took: Duration) {
        self.huge[chunk as usize].store(is_huge, Ordering::Relaxed);
        if took > SLOW {
            self.pause.store(PAUSE_CHUNKS, Ordering::Relaxed);
        }
    }

    /// The chunk's memory went back to the system.
    pub(super) fn forget(&self, chunk: u32) {
        self.huge[chunk as usize].store(false, Ordering::Relaxed);
    }

    /// Chunks that are huge pages.
    pub(super) fn count(&self) -> usize {
        let huge = self.huge.iter();
        huge.filter(|huge| huge.load(Ordering::Relaxed)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_huge_page_is_followed_by_small_ones_and_another_trial() {
        let pages = HugePages::new(2);
        for chunk in [0, 1, 1] {
            assert!(pages.are_due());
            pages.note(chunk, true, Duration::from_micros(100));
        }
        assert_eq!(pages.count(), 2);
        assert!(pages.are_due());
        pages.note(0, false, Duration::from_millis(5));
        for _ in 0..PAUSE_CHUNKS {
            assert!(!pages.are_due());
        }
        assert!(pages.are_due());
        pages.forget(1);
        assert_eq!(pages.count(), 0);
    }
}
