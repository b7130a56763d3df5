//! Which blobs may be ahead of their slots, for who reads slots without the worker.

#[cfg(all(test, loom))]
mod models;

use adit_base::sync::atomic::{AtomicU32, Ordering};

/// For any thread: may the blob at a slot address be ahead of its slot? Counts the dirty blobs by
/// their slot addresses, many of which share a count.
///
/// Invariants, under the worker's lock:
/// 1. A blob is counted before the first change that its slot lacks is acknowledged.
/// 2. It is uncounted after the transaction became visible that put the last such change there. So
///    who reads the slot, then finds the blob uncounted, and then that no transaction became visible
///    meanwhile (`Frames::is_at`), has read what was acknowledged before.
#[derive(Debug)]
pub(crate) struct Ahead(Box<[AtomicU32]>);

impl Default for Ahead {
    fn default() -> Ahead {
        Ahead((0..AHEAD_COUNTS).map(|_| AtomicU32::new(0)).collect())
    }
}

const AHEAD_COUNTS: usize = if cfg!(loom) { 1 } else { 1 << 12 };

impl Ahead {
    fn count(&self, slot: u64) -> &AtomicU32 {
        &self.0[slot as usize % AHEAD_COUNTS]
    }

    /// May it be? Never a wrong no.
    pub(crate) fn may_contain(&self, slot: u64) -> bool {
        // Acquire: what was applied before the count fell is seen.
        self.count(slot).load(Ordering::Acquire) != 0
    }

    pub(crate) fn add(&self, slot: u64) {
        // The acknowledgement that follows publishes it.
        self.count(slot).fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, slot: u64) {
        let before = self.count(slot).fetch_sub(1, Ordering::Release);
        assert!(before > 0, "a blob is uncounted twice");
    }
}
