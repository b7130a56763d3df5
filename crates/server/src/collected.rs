//! Writes that come in several messages: their pieces, in memory of the server's own until the last
//! one is there, so that such a write is one operation.
//!
//! Invariants: a slot has one such write at most, and any other message of the slot drops it. All of
//! a session's have [`COLLECTED_BYTES_MAX`] bytes at most, counted when the first piece comes: a
//! write that has begun never waits for another one.

use adit_base::{Errno, Error, Result};
use adit_wire::memory::COLLECTED_BYTES_MAX;
use adit_wire::slot::SLOTS;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The writes of a session of which pieces are to come.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    /// A bit for each slot that has one.
    slots: AtomicU64,
    pieces: Mutex<Vec<Option<Pieces>>>,
    /// Of all of them, when they are complete.
    bytes: Arc<AtomicUsize>,
}

/// The pieces of a write that have come.
#[derive(Debug)]
pub(crate) struct Pieces {
    data: Vec<u8>,
    total_bytes: usize,
    counted: Arc<AtomicUsize>,
}

impl Collected {
    fn lock(&self) -> MutexGuard<'_, Vec<Option<Pieces>>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what a slot has.
    pub(crate) fn take(&self, slot: usize) -> Option<Pieces> {
        let bit = 1 << slot;
        if self.slots.load(Ordering::Relaxed) & bit == 0 {
            return None;
        }
        self.slots.fetch_and(!bit, Ordering::Relaxed);
        self.lock().get_mut(slot)?.take()
    }

    /// Gives back what the slot is to go on with.
    pub(crate) fn keep(&self, slot: usize, pieces: Pieces) {
        let mut all = self.lock();
        all.resize_with(SLOTS, || None);
        let before = all[slot].replace(pieces);
        assert!(before.is_none(), "a slot has one such write");
        self.slots.fetch_or(1 << slot, Ordering::Relaxed);
    }

    /// Begins a write of so many bytes. `EAGAIN`: when another one of the session has ended.
    pub(crate) fn begin(&self, total_bytes: u64) -> Result<Pieces> {
        let total_bytes = usize::try_from(total_bytes).unwrap_or(usize::MAX);
        if total_bytes > COLLECTED_BYTES_MAX {
            let what = format!("write {total_bytes} bytes at once through a server");
            return Err(Error::with(Errno::TOOBIG, what));
        }
        let before = self.bytes.fetch_add(total_bytes, Ordering::Relaxed);
        let mut pieces = Pieces {
            data: Vec::new(),
            total_bytes,
            counted: self.bytes.clone(),
        };
        if before + total_bytes > COLLECTED_BYTES_MAX {
            return Err(Errno::AGAIN.into());
        }
        let reserved = pieces.data.try_reserve_exact(total_bytes);
        reserved.map_err(|_| Error::new(Errno::NOMEM))?;
        Ok(pieces)
    }

    /// Drops all of them.
    pub(crate) fn clear(&self) {
        let mut all = self.lock();
        all.clear();
        self.slots.store(0, Ordering::Relaxed);
    }
}

impl Pieces {
    /// Adds a piece. `EINVAL` if that is more than was said.
    pub(crate) fn add(&mut self, piece: &[u8]) -> Result<()> {
        if piece.len() > self.total_bytes - self.data.len() {
            let what = format!("write more than {} bytes", self.total_bytes);
            return Err(Error::with(Errno::INVAL, what));
        }
        self.data.extend_from_slice(piece);
        Ok(())
    }

    pub(crate) fn data(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        let before = self.counted.fetch_sub(self.total_bytes, Ordering::Relaxed);
        assert!(before >= self.total_bytes, "it was counted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_collects_so_much_at_a_time_and_gives_all_of_it_back() {
        let collected = Collected::default();
        let half = COLLECTED_BYTES_MAX as u64 / 2;
        let mut one = collected.begin(half).expect("room");
        let other = collected.begin(half).expect("room");
        assert_eq!(collected.begin(1).expect_err("full").errno(), Errno::AGAIN);
        let whole = collected.begin(2 * half + 1).expect_err("never");
        assert_eq!(whole.errno(), Errno::TOOBIG);
        one.add(b"piece").expect("fits");
        collected.keep(7, one);
        assert!(collected.take(8).is_none());
        assert_eq!(collected.take(7).expect("kept").data(), b"piece");
        assert!(collected.take(7).is_none());
        collected.keep(SLOTS - 1, other);
        collected.clear();
        assert!(collected.take(SLOTS - 1).is_none());
        let mut small = collected.begin(2).expect("room again");
        small.add(b"a").expect("fits");
        assert_eq!(small.add(b"bc").expect_err("more").errno(), Errno::INVAL);
        drop(small);
        drop(collected.begin(2 * half).expect("all of it"));
    }
}
