//! Which blobs may be ahead of their slots, for who reads slots without the worker.

#[cfg(all(test, loom))]
mod models;

use crate::cache::{AHEAD_COUNTS, AheadOf, Frames};
use adit_base::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// For any thread: may the blob at a slot address be ahead of its slot? Counts the dirty blobs by
/// their slot addresses, many of which share a count. Readers in other processes see the counts,
/// too, where the cache is published.
///
/// Invariants, under the worker's lock:
/// 1. A blob is counted before the first change that its slot lacks is acknowledged.
/// 2. It is uncounted after the transaction became visible that put the last such change there. So
///    who reads the slot, then finds the blob uncounted, and then that no transaction became
///    visible meanwhile (`Frames::is_at`), has read what was acknowledged before.
/// 3. While a transaction changes the size, it is counted until [`BlobShared`](super::BlobShared)
///    has that size, and until what lies behind the new end can't be read. While one punches a
///    hole, until what was there can't be.
/// 4. While a transaction changes several slots, which readers in other processes would see one by
///    one, all of them are counted.
pub(crate) enum Ahead {
    Own(Box<[AtomicU32]>),
    /// In the memory of version words, which other processes read.
    Published(Arc<Frames>),
}

/// Dropped, the blob is counted no more.
pub(crate) struct Held<'a> {
    ahead: &'a Ahead,
    slot: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.ahead.remove(self.slot);
    }
}

impl Default for Ahead {
    fn default() -> Ahead {
        Ahead::Own((0..AHEAD_COUNTS).map(|_| AtomicU32::new(0)).collect())
    }
}

impl Ahead {
    /// Where readers of these frames see it.
    pub(crate) fn of(frames: &Arc<Frames>) -> Ahead {
        match frames.ahead_counts(AheadOf::Attributes) {
            Some(_) => Ahead::Published(frames.clone()),
            None => Ahead::default(),
        }
    }

    fn count(&self, slot: u64) -> &AtomicU32 {
        let counts = match self {
            Ahead::Own(counts) => counts,
            Ahead::Published(frames) => frames
                .ahead_counts(AheadOf::Attributes)
                .expect("published once and for all"),
        };
        &counts[slot as usize % AHEAD_COUNTS]
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

    /// Counts a blob while its slot may be ahead of it: a transaction changes the slot, and a
    /// reader that sees the slot must not find the file as it was.
    pub(crate) fn hold(&self, slot: u64) -> Held<'_> {
        self.add(slot);
        Held { ahead: self, slot }
    }
}
