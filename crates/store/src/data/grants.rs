//! Granting writes without the worker, and recalling the grants (`blob/write_grant`).

use crate::blob::{Blob, GRANT_FRAMES_AFTER, WriteGrant};
use crate::cache::{FrameFlags, FrameId};
use crate::metadata::extents::MapEntry;
use crate::state::Store;
use adit_base::PAGE_BYTES;
use adit_base::simulation::{Bug, planted};
use adit_reactor::sync::WriteGuard;
use std::mem;
use std::rc::Rc;

/// Direct writes through the worker before it tries again to grant their pages.
const GRANT_AFTER: u32 = 16;

/// Most writes that it waits after an unused grant.
const GRANT_PAUSE_MAX: u32 = 255;

/// Pages around a write that are granted if they are not cached, or unused enough to leave the
/// cache.
const GRANT_PAGES_MAX: u32 = 1 << 11;

/// The worker checks so many pages in the time of a direct write.
const PAGES_PER_WRITE: u32 = 32;

impl Store {
    /// Ends a recalled write grant: the last writer has left.
    pub fn end_granted_writes(&self, blob: &Rc<Blob>) {
        self.recall_again(blob);
    }

    /// Grants no more writes: the worker has something to note with each write.
    pub fn grant_no_writes(&self) {
        self.grants_writes.set(false);
    }
}

impl Store {
    /// Recalls the write grant, and takes the blob's `map_lock` exclusively.
    pub(crate) async fn lock_map<'a>(&self, blob: &'a Rc<Blob>) -> WriteGuard<'a> {
        self.recall(blob);
        blob.map_lock.write().await
    }

    /// Takes the blob's `map_lock` exclusively if it is free. It waits for writers under a write
    /// grant: a later try would find them, too.
    pub(crate) async fn try_lock_map<'a>(&self, blob: &'a Rc<Blob>) -> Option<WriteGuard<'a>> {
        self.wait_for_recall(blob).await;
        blob.map_lock.try_write()
    }

    /// Recalls the write grant, and takes the blob's `lock` exclusively.
    pub(crate) async fn lock<'a>(&self, blob: &'a Rc<Blob>) -> WriteGuard<'a> {
        self.recall(blob);
        blob.lock.write().await
    }

    /// Waits until no thread writes to the blob under a write grant. Until the caller gives way,
    /// none may begin.
    pub(crate) async fn wait_for_recall(&self, blob: &Rc<Blob>) {
        while !self.recall(blob) {
            blob.recalling.set(blob.recalling.get() + 1);
            self.frame_idle.wait().await;
            blob.recalling.set(blob.recalling.get() - 1);
        }
    }

    /// Recalls the write grant; true if no writer is left.
    pub(crate) fn recall(&self, blob: &Rc<Blob>) -> bool {
        if !blob.granted.get() {
            return true;
        }
        let ended = (blob.shared.write_grant()).is_none_or(WriteGrant::recall);
        if ended {
            self.end_grant(blob);
        }
        ended
    }

    /// Recalls the write grant before the worker reads this frame; true if no writer is left.
    #[inline]
    pub(crate) fn recall_for(&self, blob: &Rc<Blob>, frame: FrameId) -> bool {
        !blob.granted.get() || !self.cache.has(frame, FrameFlags::DIRTY) || self.recall(blob)
    }

    /// Recalls the grants of all blobs, and ends all tails: no thread writes past the worker.
    pub(crate) fn recall_all(&self) {
        self.end_tails();
        for blob in self.write_back.dirty.all() {
            self.recall(&blob);
        }
    }

    /// Ends a recalled write grant once the last writer has left.
    fn recall_again(&self, blob: &Rc<Blob>) {
        if blob.granted.get() && blob.shared.write_grant().is_some_and(WriteGrant::end) {
            self.end_grant(blob);
        }
    }

    /// Ends a grant: notes its writes, and releases both locks.
    fn end_grant(&self, blob: &Rc<Blob>) {
        blob.assert_shared();
        if let Some(grant) = blob.shared.write_grant() {
            grant.extents.forget();
            self.note_granted_writes(blob);
            let written_at = grant.written_at();
            let is_used = grant.take_synced() | written_at.is_some();
            let pause = (2 * blob.grant_pause.get() + 1).min(GRANT_PAUSE_MAX);
            blob.grant_pause.set(if is_used { 0 } else { pause });
            if is_used && !blob.extents_granted.get() {
                // Frames are granted again in no time.
                blob.grant_after.set(0);
            }
            if let Some(time) = written_at {
                blob.mtime
                    .set(Some(blob.mtime.get().map_or(time, |other| other.max(time))));
                grant.forget_time();
            }
        }
        blob.granted.set(false);
        blob.extents_granted.set(false);
        blob.lock.return_read();
        blob.map_lock.return_read();
        if blob.recalling.get() > 0 {
            self.frame_idle.notify_all();
        }
    }

    /// Notes what threads have written to the device.
    pub(crate) fn note_granted_writes(&self, blob: &Blob) {
        let grant = blob.shared.write_grant();
        if grant.is_some_and(WriteGrant::take_written_home) && !planted(Bug::UnnotedDirectWrite) {
            blob.home_sequence.set(self.whole.home_writes.note());
        }
    }

    /// After a direct write: grants the page and those around it that no frame holds, as far as its
    /// extent goes. The caller holds both locks shared and doesn't give way in between.
    pub(crate) fn grant_writes(&self, blob: &Rc<Blob>, page: u32) {
        blob.assert_shared();
        let wait = blob.grant_after.get();
        if wait > 0 && blob.shared.write_grant().is_some() {
            return blob.grant_after.set(wait - 1);
        }
        blob.grant_after.set(GRANT_AFTER);
        let device = self.reactor.device();
        let settled = blob.dirty.borrow().is_empty() && self.may_grant(blob);
        let lendable = self.overwrites_in_place() && device.capabilities().inline;
        let Some((_, MapEntry::Extent(mut extent))) = blob.map_hint.get() else {
            return;
        };
        let grant = blob.shared.write_grant().filter(|_| blob.granted.get());
        let known = grant.is_some_and(|grant| grant.extents.find(page.into(), 1).is_some());
        if !settled || !lendable || extent.unwritten || known {
            return;
        }
        let valid_pages = blob.slot.borrow().valid_size / PAGE_BYTES as u64;
        let window = page - page % GRANT_PAGES_MAX;
        let first = window.max(extent.logical);
        let end = (u64::from(window) + u64::from(GRANT_PAGES_MAX))
            .min(extent.end())
            .min(valid_pages) as u32;
        if !(first..end).contains(&page) {
            return;
        }
        blob.grant_after
            .set((end - first) / PAGES_PER_WRITE + blob.grant_pause.get());
        // Up to the nearest that stay in the cache.
        let (mut from, mut to) = (first, end);
        for other in first..end {
            if self.cache.pass(blob.key(other)) {
                if other < page {
                    from = other + 1
                } else {
                    to = to.min(other)
                }
            }
        }
        if to == page {
            return;
        }
        if !self.hold_locks(blob) {
            return;
        }
        extent.physical += u64::from(from - extent.logical);
        (extent.logical, extent.pages) = (from, to - from);
        let grant = &blob.direct(device).grant;
        grant.extents.publish(extent);
        blob.extents_granted.set(true);
        grant.open();
    }

    /// After a cached write: grants overwrites of the blob's dirty frames. The caller has returned
    /// `lock`.
    pub(crate) fn grant_frames(&self, blob: &Rc<Blob>) {
        let wait = blob.grant_after.get();
        if wait > 0 {
            return blob.grant_after.set(wait - 1);
        }
        (blob.grant_after).set(GRANT_FRAMES_AFTER + blob.grant_pause.get());
        if self.may_grant(blob) && self.hold_locks(blob) {
            blob.direct(self.reactor.device()).grant.open();
        }
    }

    fn may_grant(&self, blob: &Blob) -> bool {
        self.grants_writes.get()
            && blob.truncating_from.get() == 0
            && !blob.deleted.get()
            && blob.recalling.get() == 0
            && !blob.shared.is_mapped()
            && self.writable().is_ok()
    }

    /// Takes both locks of the blob shared, for the grant; false: a task has one of them
    /// exclusively, or waits for it.
    fn hold_locks(&self, blob: &Rc<Blob>) -> bool {
        if blob.granted.get() {
            return true;
        }
        let (Some(map), Some(shared)) = (blob.map_lock.try_read(), blob.lock.try_read()) else {
            return false;
        };
        mem::forget((map, shared));
        blob.granted.set(true);
        self.note_dirty(blob);
        true
    }
}
