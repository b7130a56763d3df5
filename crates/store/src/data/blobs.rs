//! Finding a blob: in memory, or by its slot; and where its pages lie.

use crate::blob::Blob;
use crate::cache::{FrameFlags, FrameKey};
use crate::format::{BlobId, SLOTS_PER_PAGE, Slot};
use crate::metadata::extents::MapEntry;
use crate::state::Store;
use adit_base::clock::Timestamp;
use adit_base::{Result, SECTOR_BYTES, granules};
use std::rc::Rc;

impl Store {
    /// The blob, from memory or from its slot. ESTALE when it is gone.
    pub async fn blob(&self, id: BlobId) -> Result<Rc<Blob>> {
        if let Some(blob) = self.blobs.resident(id.slot)
            && blob.id == id
        {
            return Ok(blob);
        }
        let slot = self.view(|view| view.slot(id)).await?;
        // Loading may have taken a while: another task may have been faster.
        Ok(self
            .0
            .blobs
            .resident(id.slot)
            .filter(|blob| blob.id == id)
            .unwrap_or_else(|| self.adopt(id, slot)))
    }

    /// It was read at that time: the slot has it after the next write-back.
    pub fn note_accessed(&self, blob: &Rc<Blob>, time: Timestamp) {
        blob.atime.set(Some(time));
        self.note_dirty(blob);
    }

    /// The blob if it is in memory.
    pub fn blob_resident(&self, id: BlobId) -> Option<Rc<Blob>> {
        self.blobs.resident(id.slot).filter(|blob| blob.id == id)
    }

    /// The blob if cached reads and writes may have left its size and times ahead of its slot,
    /// which has them otherwise.
    pub fn blob_ahead(&self, id: BlobId) -> Option<Rc<Blob>> {
        let ahead = self.write_back.dirty.contains(id.slot);
        ahead.then(|| self.blob_resident(id)).flatten()
    }

    /// The blob without waiting, given the slot that a `view` or `transact` closure just read.
    pub fn blob_from_slot(&self, id: BlobId, slot: &Slot) -> Rc<Blob> {
        self.blob_resident(id)
            .unwrap_or_else(|| self.adopt(id, *slot))
    }
}

impl Store {
    fn adopt(&self, id: BlobId, slot: Slot) -> Rc<Blob> {
        let point = self.slot_point(id.slot);
        // It may have been in memory before, with writes that are not flushed yet.
        let home_sequence = self.whole.home_writes.written();
        let blob = Rc::new(Blob::new(id, slot, &self.frames, point, home_sequence));
        self.blobs.insert(blob.clone(), |other| {
            // Only in memory is it known that data changed and the slot didn't, within a tick.
            let point = other.point.get();
            !self.whole.progress.is_durable(point) && self.slot_point(other.id.slot) < point
        });
        blob
    }

    /// The place in the order of transactions that covers the last change of a slot.
    fn slot_point(&self, slot: u64) -> crate::journal::Point {
        let (page, offset) = crate::metadata::slot_page::slot_place(slot);
        let frame = (self.cache.find(FrameKey::meta(page)))
            .filter(|frame| self.cache.has(*frame, FrameFlags::JOURNALED));
        let Some(frame) = frame else {
            return crate::journal::Point::default();
        };
        let mask = granules(offset..offset + SECTOR_BYTES);
        if self.cache.pending(frame) & mask != 0 {
            self.whole.progress.point()
        } else {
            crate::journal::Point(self.whole.progress.commits.sealed())
        }
    }

    /// No slot of the volume has this address, or a higher one.
    pub fn slots_end(&self) -> u64 {
        self.layout.get().volume_pages * SLOTS_PER_PAGE
    }

    /// Queues a blob for write-back, which runs later.
    pub(crate) fn note_dirty(&self, blob: &Rc<Blob>) {
        self.write_back.dirty.add(blob);
        if !self.write_back.running.get() {
            self.spawn_writeback();
        }
    }

    /// Refuses an extent outside the pages of data: maps come from a device, and pages are written
    /// where they say.
    pub(crate) fn within_volume(
        &self,
        entry: MapEntry,
    ) -> Result<MapEntry, crate::metadata::pages::Stop> {
        if let MapEntry::Extent(extent) = entry
            && !self.space.borrow().geometry().contains(extent.run())
        {
            let what = format_args!("is no place for data, but a map names it: run `adit check`");
            return Err(crate::metadata::page_view::corrupt(extent.physical, what));
        }
        Ok(entry)
    }

    /// The map's entry at page `page` of the blob.
    pub(crate) async fn map(&self, blob: &Blob, page: u32) -> Result<MapEntry> {
        if let Some(entry) = hinted(blob, page) {
            return Ok(entry);
        }
        let entry = self.view(|view| {
            let slot = blob.slot.borrow();
            let entry = crate::metadata::extents::lookup(view, &slot, blob.id.slot, page)?;
            self.within_volume(entry)
        });
        let entry = entry.await?;
        let first = match entry {
            MapEntry::Extent(extent) => extent.logical,
            MapEntry::Hole { .. } => page,
        };
        blob.map_hint.set(Some((first, entry)));
        Ok(entry)
    }
}

/// The map's entry at `page`, if the last lookup found it; a hole begins at `page`.
fn hinted(blob: &Blob, page: u32) -> Option<MapEntry> {
    let (first, entry) = blob.map_hint.get()?;
    match entry {
        MapEntry::Extent(extent) => (page >= first && page - first < extent.pages).then_some(entry),
        MapEntry::Hole { pages } => {
            (page >= first && page - first < pages).then(|| MapEntry::Hole {
                pages: pages - (page - first),
            })
        }
    }
}
