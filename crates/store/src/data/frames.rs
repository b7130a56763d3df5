//! Frames for data: taking them, making room for them, and dropping those of freed pages.

use crate::blob::Blob;
use crate::cache::{FRAMES_LEFT_BY_DATA, FrameFlags};
use crate::data::background::Busy;
use crate::state::{ColdFuture, Store};
use adit_base::{PAGE_BYTES, Result};

impl Store {
    /// True if one more dirty frame leaves enough frames to write-back.
    pub(super) fn leaves_room(&self) -> bool {
        self.cache.available() >= FRAMES_LEFT_BY_DATA as usize
    }

    /// Before a frame becomes dirty: makes room until the frames are left that write-back needs.
    pub(super) fn leave_room(&self) -> ColdFuture<'_, Result<()>> {
        Box::pin(async {
            while !self.leaves_room() {
                self.reclaim(FRAMES_LEFT_BY_DATA as usize).await?;
            }
            Ok(())
        })
    }

    /// Makes at least `count` frames evictable: writes back dirty data, then checkpoints. Not for a
    /// write-back, which would wait for itself.
    pub(crate) fn reclaim_frames(&self, count: usize) -> ColdFuture<'_, Result<()>> {
        Box::pin(self.reclaim(count)) // which needs frames itself
    }

    async fn reclaim(&self, count: usize) -> Result<()> {
        if self.cache.available() >= count && self.cache.counts().clean > 0 {
            // Clean but pinned at the moment, or looked at lately: let others finish.
            if let Some(frame) = self.cache.allocate() {
                self.cache.free_allocated(frame);
                return Ok(());
            }
        }
        let dirty = self.cache.counts().dirty;
        let written = if dirty > 0 {
            self.write_back_dirty(Busy::Skip).await
        } else {
            Ok(())
        };
        let mut settled = Ok(());
        if self.cache.available() < count && self.cache.counts().journaled > 0 {
            settled = self.checkpoint_all().await;
        }
        if self.cache.available() < count
            && (self.cache.counts().writeback > 0 || self.loading.get() > 0)
        {
            self.frame_idle.wait().await; // another task's write-back, or its load
            return Ok(());
        }
        if self.cache.available() < count {
            settled?; // somebody else's failure matters only now
            written?;
            return Err(self.cache_too_small());
        }
        self.reactor.yield_now().await;
        Ok(())
    }

    /// True if redo records may name pages of `[from, to)`.
    pub(crate) fn any_live(&self, blob: &Blob, from: u32, to: u32) -> bool {
        (self.cached_pages(blob, from, to).into_iter())
            .filter_map(|page| self.cache.find(blob.key(page)))
            .any(|frame| self.cache.has(frame, FrameFlags::JOURNALED))
    }

    /// Right after the transaction that freed pages `[from, to)`: drops their frames. The caller
    /// holds `lock` and `map_lock` exclusively, so that none of them is being loaded or written
    /// back.
    pub(crate) fn drop_frames(&self, blob: &Blob, from: u32, to: u32) {
        blob.assert_exclusive();
        for page in self.cached_pages(blob, from, to) {
            let Some(frame) = self.cache.find(blob.key(page)) else {
                continue;
            };
            if self.cache.has(frame, FrameFlags::DIRTY) && self.cache.home(frame) == 0 {
                self.whole.reservations.end(1);
            }
            self.changes.images.remove_freed(&self.cache, frame);
        }
    }

    /// Withdraws the hints of readers in other processes for pages from `from` on: the blob becomes
    /// shorter, and their frames go later. The caller holds `lock` and `map_lock` exclusively.
    pub(crate) fn withdraw_hints(&self, blob: &Blob, from: u32) {
        blob.assert_exclusive();
        if !self.frames.is_published() {
            return;
        }
        for page in self.cached_pages(blob, from, u32::MAX) {
            self.frames.withdraw_hint(blob.key(page));
        }
    }

    /// Pages of `[from, to)` that have a frame, ascending.
    fn cached_pages(&self, blob: &Blob, from: u32, to: u32) -> Vec<u32> {
        let end = blob.frames_end().div_ceil(PAGE_BYTES as u64);
        let to = u64::from(to).min(end) as u32;
        // A huge range has far fewer frames than pages: then ask the cache, not each page.
        let few = u64::from(to.saturating_sub(from)) <= 2 * u64::from(self.cache.counts().used);
        if few {
            (from..to)
                .filter(|page| self.cache.find(blob.key(*page)).is_some())
                .collect()
        } else {
            self.cache
                .pages_of(blob.id.slot, u64::from(from)..u64::from(to))
        }
    }
}
