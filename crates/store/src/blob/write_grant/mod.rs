//! Pages lent to any thread that writes past the cache: it writes to the device by itself, without
//! the worker (decision 0017).
//!
//! The worker lends pages of a blob while it holds both of the blob's locks shared, and goes on
//! holding them until it has the pages back. So whoever wants a lock exclusively (truncation,
//! deletion, writes to the cache, write-back) waits until then, and who forgets to ask for them
//! waits for ever instead of writing to pages that are another blob's.
//!
//! ```text
//!            grant_writes()               recall(), somebody inside          the last one leaves, and tells the worker
//! not lent ─────────► OPEN ─────────────────────────────► RECALLED ────────────────────────────────► not lent
//!              ▲        │ recall(), nobody inside                        (end_grant)
//!              └────────┴──────────────────────────► not lent (end_grant)
//! ```
//! Invariants:
//! 1. While pages are lent, no frame holds one of them and the map doesn't change. Who brings a
//!    page of the blob into the cache without an exclusive lock (`load_data`) recalls them behind
//!    its entering, and waits, before it reads the device.
//! 2. Who is inside is counted; a count is taken back after the write, and after the write was
//!    noted. Whoever finds OPEN on entering is waited for. Whoever takes the last count back from
//!    RECALLED tells the worker.
//! 3. The blob stays among the dirty ones meanwhile, so whoever makes things durable recalls first,
//!    and hears of what was written.

#[cfg(all(test, loom))]
mod models;

use crate::blob::PublishedExtents;
use adit_base::clock::Timestamp;
use adit_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

const OPEN: u32 = 1 << 31;
const RECALLED: u32 = 1 << 30;
/// Writers inside, in the bits below.
const INSIDE: u32 = RECALLED - 1;

/// The part of it that writers see.
#[derive(Debug, Default)]
pub(crate) struct WriteGrant {
    /// OPEN, RECALLED, and how many are inside.
    word: AtomicU32,
    /// What is lent.
    pub(crate) extents: PublishedExtents,
    /// Somebody has written.
    written: AtomicBool,
    /// When last, in ns since 1970; 0: not, or that doesn't count any more.
    written_ns: AtomicU64,
}

impl WriteGrant {
    /// Any thread: goes inside, if something is lent. `Err(true)`: not, and the worker must be
    /// told.
    pub(crate) fn enter(&self) -> Result<(), bool> {
        if self.word.load(Ordering::Relaxed) & OPEN == 0 {
            return Err(false);
        }
        // Acquire: what is lent was told before it was opened.
        if self.word.fetch_add(1, Ordering::Acquire) & OPEN == 0 {
            return Err(self.leave());
        }
        Ok(())
    }

    /// For who is inside: something was written.
    pub(crate) fn note_written(&self, time: Timestamp) {
        let ns = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
        let ns = u64::try_from(ns).unwrap_or(0);
        self.written_ns.fetch_max(ns, Ordering::Relaxed);
        self.written.store(true, Ordering::Relaxed);
    }

    /// For who is inside: leaves. True: the worker waits for that and must be told.
    pub(crate) fn leave(&self) -> bool {
        // Release: what was written, and noted, comes before.
        let before = self.word.fetch_sub(1, Ordering::Release);
        before & RECALLED != 0 && before & INSIDE == 1
    }

    /// The worker: whoever enters from now on may write to the extents. Not while a recall waits
    /// for writers.
    pub(crate) fn open(&self) {
        if self.word.load(Ordering::Relaxed) & RECALLED != 0 {
            return;
        }
        self.word.fetch_or(OPEN, Ordering::Release);
    }

    /// The worker: nobody enters any more. True: nobody is inside.
    pub(crate) fn recall(&self) -> bool {
        if self.word.load(Ordering::Relaxed) & OPEN != 0 {
            // Acquire: who has left by now has written by now.
            let free = (self.word).compare_exchange(OPEN, 0, Ordering::Acquire, Ordering::Relaxed);
            if free.is_ok() {
                return true;
            }
            // OPEN becomes RECALLED.
            self.word.fetch_sub(OPEN - RECALLED, Ordering::Acquire);
        }
        self.end()
    }

    /// The worker, after [`WriteGrant::recall`]: whether nobody is inside any more.
    pub(crate) fn end(&self) -> bool {
        (self.word)
            .compare_exchange(RECALLED, 0, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// The worker: whether anybody has written since this was last asked.
    pub(crate) fn take_written(&self) -> bool {
        self.written.swap(false, Ordering::Relaxed)
    }

    /// Nobody enters any more: the blob leaves memory, and nobody asks who is inside.
    pub(crate) fn close(&self) {
        self.word.fetch_and(!OPEN, Ordering::Relaxed);
    }

    /// When somebody last wrote, if anybody did.
    pub(crate) fn written_at(&self) -> Option<Timestamp> {
        let ns = self.written_ns.load(Ordering::Relaxed);
        (ns != 0).then_some(Timestamp {
            seconds: (ns / 1_000_000_000) as i64,
            nanoseconds: (ns % 1_000_000_000) as u32,
        })
    }

    /// Times were set by hand since.
    pub(crate) fn forget_time(&self) {
        self.written_ns.store(0, Ordering::Relaxed);
    }
}
