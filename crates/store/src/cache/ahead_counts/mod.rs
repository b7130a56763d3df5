//! Counts the blobs that may be ahead of their slots, for readers of slots without the worker.
//!
//! Blobs are counted by slot address; many addresses share a count. Where the cache is published,
//! the counts lie behind the version words (`published.rs`), and readers in other processes see
//! them, too.
//!
//! Invariants, under the worker's lock:
//! 1. A blob is counted before the first change that its slot lacks is acknowledged.
//! 2. It is uncounted after the transaction became visible that put the last such change there. So
//!    a reader that reads the slot, then finds the blob uncounted, and then that no transaction
//!    became visible meanwhile (`Frames::is_at`, or the version of the slot's page), has read all
//!    that was acknowledged before.
//! 3. While a transaction changes the size, it is counted until
//!    [`BlobShared`](crate::blob::BlobShared) has that size, and until bytes behind the new end
//!    can't be read. While one punches a hole, until its old bytes can't be read.
//! 4. While a transaction changes several slots, which readers in other processes would see one by
//!    one, all of them are counted.

#[cfg(all(test, loom))]
mod models;

use adit_base::sync::atomic::{AtomicU32, Ordering};

/// Counts of each kind.
const COUNTS: usize = if cfg!(loom) { 1 } else { 1 << 12 };
/// Of both kinds.
pub(super) const AHEAD_COUNTS: usize = 2 * COUNTS;

/// The attribute in which a blob is ahead of its slot. The number is the place of its counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AheadOf {
    /// Size or times.
    Attributes = 0,
    /// The size: it is another one than the slot's. Only readers in other processes ask.
    Size = 1,
}

/// The counts of one kind.
#[derive(Clone, Copy)]
pub(crate) struct AheadCounts<'m>(&'m [AtomicU32]);

/// Uncounts the blob when dropped.
pub(crate) struct HeldAhead<'m> {
    counts: AheadCounts<'m>,
    slot: u64,
}

impl Drop for HeldAhead<'_> {
    fn drop(&mut self) {
        self.counts.remove(self.slot);
    }
}

impl<'m> AheadCounts<'m> {
    /// Among the counts of both kinds.
    pub(super) fn among(counts: &'m [AtomicU32], of: AheadOf) -> AheadCounts<'m> {
        AheadCounts(&counts[of as usize * COUNTS..][..COUNTS])
    }

    fn count(&self, slot: u64) -> &AtomicU32 {
        &self.0[slot as usize % COUNTS]
    }

    /// True if the blob may be ahead. Never wrongly false, if no transaction became visible
    /// meanwhile.
    #[inline]
    pub(crate) fn may_contain(&self, slot: u64) -> bool {
        // That check comes behind a fence: it sees transactions applied before the count fell.
        self.count(slot).load(Ordering::Relaxed) != 0
    }

    pub(crate) fn add(&self, slot: u64) {
        // The acknowledgement that follows publishes it.
        self.count(slot).fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, slot: u64) {
        // Release: a reader that sees it uncounted sees all that came before.
        let before = self.count(slot).fetch_sub(1, Ordering::Release);
        assert!(before > 0, "a blob is uncounted twice");
    }

    /// Counts a blob while its slot may be ahead of it: a transaction changes the slot, and a
    /// reader that sees the slot must not find the file as it was.
    pub(crate) fn hold(self, slot: u64) -> HeldAhead<'m> {
        self.add(slot);
        HeldAhead { counts: self, slot }
    }
}
