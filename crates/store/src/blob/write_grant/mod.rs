//! Write grants: any thread may overwrite pages of a blob without the worker: the granted extents
//! on the device (decision 0017), and dirty pages in the cache (decision 0021).
//!
//! The worker grants writes while it holds both of the blob's locks shared, and holds them until
//! the grant ends. Truncation, deletion, cached writes and write-back need a lock exclusively, so
//! they recall the grant and wait for its end: forgetting to recall deadlocks; it never corrupts.
//! Reads through the worker need no exclusive lock. `Store::load_data` and users of
//! `Store::recall_for` recall by themselves; if they forgot, they would return wrong bytes.
//!
//! ```text
//!            grant_writes()               recall(), somebody inside          the last one leaves, and tells the worker
//! NONE     ─────────► OPEN ─────────────────────────────► RECALLED ────────────────────────────────► NONE
//!              ▲        │ recall(), nobody inside                        (end_grant)
//!              └────────┴──────────────────────────► NONE (end_grant)
//! ```
//! Invariants:
//! 1. While a grant is out, no frame holds a page of the granted extents and the map doesn't
//!    change. `load_data`, which has no exclusive lock, enters its frame into the index, recalls,
//!    and waits for the end of the grant before it reads the device.
//! 2. While a grant is out, the worker neither looks at the bytes of the blob's dirty frames
//!    without live bytes nor changes their flags. Reads through the worker, which have no exclusive
//!    lock, recall first. (Commits and checkpoints do both to a frame with live bytes: nobody
//!    overwrites it.)
//! 3. A writer counts itself on entering, and takes its count back after it has written and noted
//!    the write. The worker waits for each writer that found OPEN on entering. The last writer to
//!    leave a RECALLED grant tells the worker.
//! 4. The blob stays on the dirty list meanwhile, so that the worker finds it. A sync learns of
//!    the writes: of dirty frames by recalling the grant, of the device by
//!    `Store::note_granted_writes`, or it is a thread's (`blob/unsynced`).

#[cfg(all(test, loom))]
mod models;

use crate::blob::PublishedExtents;
use adit_base::clock::Timestamp;
use adit_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Cached writes through the worker before it grants others.
pub(crate) const GRANT_FRAMES_AFTER: u32 = 4;

const OPEN: u32 = 1 << 31;
const RECALLED: u32 = 1 << 30;
/// Writers inside, in the bits below.
const INSIDE: u32 = RECALLED - 1;

/// The part of it that writers see.
#[derive(Debug, Default)]
pub(crate) struct WriteGrant {
    /// OPEN, RECALLED, and the number of writers inside.
    word: AtomicU32,
    /// The granted extents.
    pub(crate) extents: PublishedExtents,
    /// A writer has written to the device.
    written_home: AtomicBool,
    /// Time of the last write, in ns since 1970; 0: none that counts.
    written_ns: AtomicU64,
    /// A thread has synced within it.
    synced: AtomicBool,
}

impl WriteGrant {
    /// Any thread: goes inside, if something is granted. `Err(true)`: not, and the worker must be
    /// told.
    pub(crate) fn enter(&self) -> Result<(), bool> {
        if self.word.load(Ordering::Relaxed) & OPEN == 0 {
            return Err(false);
        }
        // Acquire: the extents were published before it was opened.
        if self.word.fetch_add(1, Ordering::Acquire) & OPEN == 0 {
            return Err(self.leave());
        }
        Ok(())
    }

    /// Notes a write to the device or to a frame. The caller is inside.
    pub(crate) fn note_written(&self, time: Timestamp, home: bool) {
        let ns = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
        let ns = u64::try_from(ns).unwrap_or(0);
        self.written_ns.fetch_max(ns, Ordering::Relaxed);
        if home {
            self.written_home.store(true, Ordering::Relaxed);
        }
    }

    /// Notes a write to the device whose time a frame's write has noted. The caller is inside.
    pub(crate) fn note_home(&self) {
        self.written_home.store(true, Ordering::Relaxed);
    }

    /// Notes a sync. The caller is inside.
    pub(crate) fn note_synced(&self) {
        self.synced.store(true, Ordering::Relaxed);
    }

    /// True if a thread has synced since the last call. The worker only.
    pub(crate) fn take_synced(&self) -> bool {
        self.synced.swap(false, Ordering::Relaxed)
    }

    /// Leaves the grant. True: the worker waits for this writer and must be told.
    pub(crate) fn leave(&self) -> bool {
        // Release: the write, and its note, come before.
        let before = self.word.fetch_sub(1, Ordering::Release);
        before & RECALLED != 0 && before & INSIDE == 1
    }

    /// Opens the grant: threads may enter and write to the extents. The worker only; not while a
    /// recall waits for writers.
    pub(crate) fn open(&self) {
        if self.word.load(Ordering::Relaxed) & RECALLED != 0 {
            return;
        }
        self.word.fetch_or(OPEN, Ordering::Release);
    }

    /// Recalls the grant: no thread enters. True: no writer is inside. The worker only.
    pub(crate) fn recall(&self) -> bool {
        if self.word.load(Ordering::Relaxed) & OPEN != 0 {
            // Acquire: writers that have left have written before.
            let free = (self.word).compare_exchange(OPEN, 0, Ordering::Acquire, Ordering::Relaxed);
            if free.is_ok() {
                return true;
            }
            // OPEN becomes RECALLED.
            self.word.fetch_sub(OPEN - RECALLED, Ordering::Acquire);
        }
        self.end()
    }

    /// True if the last writer has left, after [`WriteGrant::recall`]. The worker only.
    pub(crate) fn end(&self) -> bool {
        (self.word)
            .compare_exchange(RECALLED, 0, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// True if a writer has written to the device since the last call. The worker only.
    pub(crate) fn take_written_home(&self) -> bool {
        self.written_home.swap(false, Ordering::Relaxed)
    }

    /// Closes the grant for good: the blob leaves memory, and no recall follows.
    pub(crate) fn close(&self) {
        self.word.fetch_and(!OPEN, Ordering::Relaxed);
    }

    /// Time of the last write, if there was one.
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
