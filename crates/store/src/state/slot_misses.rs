//! Where slot pages were missing lately: of neighbours, several are worth one request.
//!
//! The volume is divided into *windows* of adjacent pages. The table remembers the last windows
//! with a miss, as many as the cache has room for, so a miss far away in a volume that is larger
//! than the cache is alone, and pushes no more than a page out.

use adit_base::PAGE_BYTES;
use std::cell::Cell;
use std::ops::Range;

/// Pages of a window at most.
const WINDOW_PAGES_MAX: u64 = 64;
const NOWHERE: u64 = u64::MAX;

/// The windows with the last misses; 8 bytes each.
pub(crate) struct SlotMisses {
    window_pages: u64,
    /// By the window's number, modulo the length.
    windows: Vec<Cell<u64>>,
}

impl SlotMisses {
    pub(crate) fn new(cache_bytes: u64) -> SlotMisses {
        let frames = cache_bytes / PAGE_BYTES as u64;
        let window_pages = (frames / 64).clamp(1, WINDOW_PAGES_MAX);
        SlotMisses {
            window_pages,
            windows: vec![Cell::new(NOWHERE); (frames / window_pages).max(1) as usize],
        }
    }

    /// A slot page is missing. Returns its window, if another page of that was missing before.
    pub(crate) fn note(&self, page: u64) -> Option<Range<u64>> {
        let window = page / self.window_pages;
        let last = &self.windows[(window % self.windows.len() as u64) as usize];
        let first = window * self.window_pages;
        (last.replace(window) == window).then(|| first..first + self.window_pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_second_miss_in_a_window_is_near_another() {
        let misses = SlotMisses::new(256 << 20);
        assert_eq!(misses.note(1000), None);
        assert_eq!(misses.note(1001), Some(960..1024));
        assert_eq!(misses.note(1024), None);
        assert_eq!(misses.note(1000), Some(960..1024));
    }

    #[test]
    fn misses_all_over_a_volume_larger_than_the_cache_are_alone() {
        let misses = SlotMisses::new(8 << 20);
        for _ in 0..2 {
            for page in (0..1 << 20).step_by(32) {
                assert_eq!(misses.note(page), None);
            }
        }
    }
}
