//! The ring as numbers: which LSNs are live, in flight and free.
//!
//! ```text
//!   flushed_tail <= horizon <= next <= flushed_tail + pages
//!   |-- live: recovery would replay --|-- in flight --|-- free ring space --
//! ```

use adit_base::sync::atomic::{AtomicU64, Ordering};

/// The journal ring. An LSN is the absolute number of a journal page. The leader of a commit and a
/// checkpoint, which the first partition runs, change it.
#[derive(Debug)]
pub(crate) struct Ring {
    /// LSN that the next transaction gets.
    next: AtomicU64,
    /// Everything below is durable.
    horizon: AtomicU64,
    /// Tail in the superblock known to be durable.
    flushed_tail: AtomicU64,
    /// Pages of the ring.
    pages: u64,
}

impl Ring {
    /// A ring that is empty from `lsn` on.
    pub(crate) fn new(pages: u64, lsn: u64) -> Ring {
        Ring {
            next: AtomicU64::new(lsn),
            horizon: AtomicU64::new(lsn),
            flushed_tail: AtomicU64::new(lsn),
            pages,
        }
    }

    pub(crate) fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    pub(crate) fn horizon(&self) -> u64 {
        self.horizon.load(Ordering::Relaxed)
    }

    pub(crate) fn flushed_tail(&self) -> u64 {
        self.flushed_tail.load(Ordering::Relaxed)
    }

    /// Pages of the ring.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Pages that recovery would replay.
    pub(crate) fn live_pages(&self) -> u64 {
        self.next() - self.flushed_tail()
    }

    /// True if there is room for `pages` more pages. The last eighth is kept for the commit that
    /// begins a checkpoint.
    pub(crate) fn has_ordinary_room(&self, pages: u64) -> bool {
        self.live_pages() + pages <= self.pages - self.pages / 8
    }

    /// Gives out the next `pages` LSNs; returns the first.
    pub(crate) fn reserve(&self, pages: u64) -> u64 {
        let lsn = self.next();
        self.next.store(lsn + pages, Ordering::Relaxed);
        self.check();
        lsn
    }

    /// Everything below `horizon` is durable.
    pub(crate) fn advance_horizon(&self, horizon: u64) {
        assert!(self.horizon() <= horizon, "the horizon ascends");
        self.horizon.store(horizon, Ordering::Relaxed);
        self.check();
    }

    /// A durable superblock has this tail.
    pub(crate) fn advance_flushed_tail(&self, tail: u64) {
        assert!(self.flushed_tail() <= tail, "the tail ascends");
        self.flushed_tail.store(tail, Ordering::Relaxed);
        self.check();
    }

    fn check(&self) {
        assert!(
            self.flushed_tail() <= self.horizon()
                && self.horizon() <= self.next()
                && self.live_pages() <= self.pages,
            "a ring in order: {self:?}"
        );
    }
}
