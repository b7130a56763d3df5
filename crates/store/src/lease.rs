//! Pages lent to any thread that writes past the cache: it writes to the device by itself, without the worker (decision 0017).
//!
//! The worker lends pages of a blob while it holds both of the blob's locks shared, and goes on holding them until it has the pages back.
//! So whoever wants a lock exclusively (truncation, deletion, writes to the cache, write-back) waits until then, and who forgets to ask for
//! them waits for ever instead of writing to pages that are another blob's.
//!
//! ```text
//!            lend()               recall(), somebody inside          the last one leaves, and tells the worker
//! not lent ─────────► OPEN ─────────────────────────────► RECALLED ────────────────────────────────► not lent
//!              ▲        │ recall(), nobody inside                        (end_lease)
//!              └────────┴──────────────────────────► not lent (end_lease)
//! ```
//! Invariants:
//! 1. While pages are lent, no frame holds one of them and the map doesn't change. Who brings a page of the blob into the cache
//!    without an exclusive lock (`load_data`) recalls them behind its entering, and waits, before it reads the device.
//! 2. Who is inside is counted; a count is taken back after the write, and after the write was noted. Whoever finds OPEN on entering is
//!    waited for. Whoever takes the last count back from RECALLED tells the worker.
//! 3. The blob stays among the dirty ones meanwhile, so whoever makes things durable recalls first, and hears of what was written.

#[cfg(all(test, loom))]
mod models;

use crate::blob::Blob;
use crate::extents::Mapping;
use crate::places::Places;
use crate::volume::{Inner, Store};
use adit_base::PAGE_BYTES;
use adit_base::clock::Timestamp;
use adit_base::simulation::{Bug, planted};
use adit_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use adit_reactor::sync::WriteGuard;
use std::mem;
use std::rc::Rc;

const OPEN: u32 = 1 << 31;
const RECALLED: u32 = 1 << 30;
/// Writers inside, in the bits below.
const INSIDE: u32 = RECALLED - 1;

/// Direct writes through the worker before it asks again whether it can lend their pages.
const LEND_AFTER: u32 = 16;
/// Direct writes that it waits at most because nobody used what was lent.
const LEND_PAUSE_MAX: u32 = 255;
/// Pages around a write that are lent if they are not cached, or leave the cache because nobody looks at them.
const LENT_PAGES_MAX: u32 = 1 << 11;
/// So many pages are looked at in the time of a direct write.
const PAGES_PER_WRITE: u32 = 32;

/// The part of it that writers see.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    /// OPEN, RECALLED, and how many are inside.
    word: AtomicU32,
    /// What is lent.
    pub(crate) places: Places,
    /// Somebody has written.
    written: AtomicBool,
    /// When last, in ns since 1970; 0: not, or that doesn't count any more.
    written_ns: AtomicU64,
}

impl Lease {
    /// Any thread: goes inside, if something is lent. `Err(true)`: not, and the worker must be told.
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

    /// The worker: whoever enters from now on may write to the places.
    fn open(&self) {
        self.word.fetch_or(OPEN, Ordering::Release);
    }

    /// The worker: nobody enters any more. True: nobody is inside.
    fn recall(&self) -> bool {
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

    /// The worker, after [`Lease::recall`]: whether nobody is inside any more.
    fn end(&self) -> bool {
        (self.word)
            .compare_exchange(RECALLED, 0, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
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

impl Store {
    /// Somebody who wrote without the worker was the last to leave.
    pub fn end_direct_writes(&self, blob: &Rc<Blob>) {
        self.0.recall_again(blob);
    }

    /// From now on all direct writes are the worker's, which has something to note with each.
    pub fn keep_direct_writes(&self) {
        self.0.lends.set(false);
    }
}

impl Inner {
    /// The blob's `map_lock`, exclusively.
    pub(crate) async fn lock_map<'a>(&self, blob: &'a Rc<Blob>) -> WriteGuard<'a> {
        self.recall(blob);
        blob.map_lock.write().await
    }

    /// Likewise, if that needs no waiting.
    pub(crate) fn try_lock_map<'a>(&self, blob: &'a Rc<Blob>) -> Option<WriteGuard<'a>> {
        self.recall(blob);
        blob.map_lock.try_write()
    }

    /// The blob's `lock`, exclusively.
    pub(crate) async fn lock<'a>(&self, blob: &'a Rc<Blob>) -> WriteGuard<'a> {
        self.recall(blob);
        blob.lock.write().await
    }

    /// Waits until nobody writes to the blob without the worker. Before the caller gives way, they may again.
    pub(crate) async fn recalled(&self, blob: &Rc<Blob>) {
        while !self.recall(blob) {
            blob.recalling.set(blob.recalling.get() + 1);
            self.frame_settled.wait().await;
            blob.recalling.set(blob.recalling.get() - 1);
        }
    }

    /// Asks for the pages back; true: they are.
    pub(crate) fn recall(&self, blob: &Rc<Blob>) -> bool {
        if !blob.lent.get() {
            return true;
        }
        let ended = (blob.shared.lease()).is_none_or(Lease::recall);
        if ended {
            self.end_lease(blob);
        }
        ended
    }

    /// As [`Inner::recall`], if somebody has asked.
    fn recall_again(&self, blob: &Rc<Blob>) {
        if blob.lent.get() && blob.shared.lease().is_some_and(Lease::end) {
            self.end_lease(blob);
        }
    }

    /// The pages are back: what was written is noted, and both locks returned.
    fn end_lease(&self, blob: &Rc<Blob>) {
        if let Some(lease) = blob.shared.lease() {
            lease.places.forget();
            let used = lease.written.swap(false, Ordering::Relaxed);
            if used && !planted(Bug::UnnotedDirectWrite) {
                blob.home_sequence.set(self.barriers.note_write());
            }
            let pause = (2 * blob.lend_pause.get() + 1).min(LEND_PAUSE_MAX);
            blob.lend_pause.set(if used { 0 } else { pause });
            if let Some(time) = lease.written_at() {
                blob.mtime
                    .set(Some(blob.mtime.get().map_or(time, |other| other.max(time))));
                lease.forget_time();
            }
        }
        blob.lent.set(false);
        blob.lock.return_read();
        blob.map_lock.return_read();
        self.frame_settled.notify_all();
    }

    /// After a direct write: lends the page and those around it that no frame holds, as far as its extent goes. The caller holds both
    /// locks shared and doesn't give way in between.
    pub(crate) fn lend(self: &Rc<Self>, blob: &Rc<Blob>, page: u32) {
        let wait = blob.lend_after.get();
        if wait > 0 {
            return blob.lend_after.set(wait - 1);
        }
        blob.lend_after.set(LEND_AFTER);
        let device = self.reactor.device();
        let settled = blob.dirty.borrow().is_empty()
            && blob.cut_from.get() == 0
            && !blob.deleted.get()
            && blob.recalling.get() == 0
            && self.writable().is_ok();
        let lendable = self.lends.get() && self.checksums.is_none() && device.capabilities().inline;
        let Some((_, Mapping::Extent(mut extent))) = blob.map_hint.get() else {
            return;
        };
        let lease = blob.shared.lease().filter(|_| blob.lent.get());
        let known = lease.is_some_and(|lease| lease.places.find(page.into(), 1).is_some());
        if !settled || !lendable || extent.unwritten || known {
            return;
        }
        let valid_pages = blob.slot.borrow().valid_size / PAGE_BYTES as u64;
        let window = page - page % LENT_PAGES_MAX;
        let first = window.max(extent.logical);
        let end = (u64::from(window) + u64::from(LENT_PAGES_MAX))
            .min(extent.end())
            .min(valid_pages) as u32;
        if !(first..end).contains(&page) {
            return;
        }
        blob.lend_after
            .set((end - first) / PAGES_PER_WRITE + blob.lend_pause.get());
        // Up to the nearest that stay in the cache.
        let (mut from, mut to) = (first, end);
        for other in first..end {
            if self.cache.pass(blob.key(other)) {
                match other < page {
                    true => from = other + 1,
                    false => to = to.min(other),
                }
            }
        }
        if to == page {
            return;
        }
        if !blob.lent.get() {
            // Not while somebody waits for one of them exclusively.
            let (Some(map), Some(shared)) = (blob.map_lock.try_read(), blob.lock.try_read()) else {
                return;
            };
            mem::forget((map, shared));
            blob.lent.set(true);
            self.note_dirty(blob);
        }
        extent.physical += u64::from(from - extent.logical);
        (extent.logical, extent.pages) = (from, to - from);
        let lease = &blob.shared.direct(device).lease;
        lease.places.publish(extent);
        if lease.word.load(Ordering::Relaxed) & RECALLED == 0 {
            lease.open();
        }
    }
}
