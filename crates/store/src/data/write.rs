//! Cached writes: into frames, acknowledged at once; `data/write_back.rs` takes them to the device.
//!
//! Invariants: space for a page without a place on the device is promised before its first byte is
//! accepted, so write-back never meets a full volume; a frame is DIRTY from the moment its bytes
//! change until its data is home (or in the journal); the size moves after the bytes are there, so
//! a reader never sees garbage.

use crate::blob::Blob;
use crate::cache::{FrameFlags, FrameId};
use crate::data::background::Busy;
use crate::data::read::Source;
use crate::data::reserve::Promise;
use crate::format::BLOB_BYTES_MAX;
use crate::format::PageKind;
use crate::metadata::extents::MapEntry;
use crate::state::{ColdFuture, Store};
use adit_base::breakdown::{self, Layer};
use adit_base::clock::Timestamp;
use adit_base::{Errno, Error, PAGE_BYTES, Result, granules, memory, steps};
use std::io::IoSlice;
use std::rc::Rc;

impl Store {
    /// Writes at `offset` through the cache. ENOSPC comes before any change. A failed read of a
    /// page that is written in part, or ENOMEM, may leave the bytes before it written.
    pub async fn write(&self, blob: &Rc<Blob>, offset: u64, data: &[u8]) -> Result<()> {
        self.write_vectored(blob, offset, &[IoSlice::new(data)])
            .await
    }

    /// Writes several pieces of memory, one behind the other.
    pub async fn write_vectored(
        &self,
        blob: &Rc<Blob>,
        offset: u64,
        data: &[IoSlice<'_>],
    ) -> Result<()> {
        self.throttle(blob).await;
        let mut exclusive = self.lock(blob).await;
        let mut promise = self.promise(blob, offset, data).await?;
        let (mut at, mut locked) = (offset, 0);
        for piece in data {
            for part in piece.chunks(LOCKED_BYTES_MAX) {
                if locked + part.len() > LOCKED_BYTES_MAX {
                    drop(exclusive);
                    self.throttle(blob).await;
                    exclusive = self.lock(blob).await;
                    locked = 0;
                }
                self.write_locked(blob, at, part, &mut promise).await?;
                at += part.len() as u64;
                locked += part.len();
            }
        }
        drop(exclusive);
        if offset % PAGE + (at - offset) <= PAGE {
            self.grant_frames(blob);
        }
        Ok(())
    }

    /// Writes at the end, atomically with respect to other appends, and returns where that was.
    pub async fn append(&self, blob: &Rc<Blob>, data: &[u8]) -> Result<u64> {
        self.append_vectored(blob, &[IoSlice::new(data)]).await
    }

    /// Appends several pieces of memory, one behind the other, like [`Store::append`].
    pub async fn append_vectored(&self, blob: &Rc<Blob>, data: &[IoSlice<'_>]) -> Result<u64> {
        self.throttle(blob).await;
        let _exclusive = self.lock(blob).await;
        let offset = blob.size();
        let mut promise = self.promise(blob, offset, data).await?;
        self.note_append(offset);
        let mut at = offset;
        for part in data.iter().flat_map(|piece| piece.chunks(LOCKED_BYTES_MAX)) {
            if self.is_crowded(blob) {
                // `throttle` under the lock: it skips pages that others write back. fsync reports
                // an error.
                let write_back: ColdFuture<'_, _> = Box::pin(self.write_back_dirty(Busy::Skip));
                let _ = write_back.await;
            }
            self.write_locked(blob, at, part, &mut promise).await?;
            at += part.len() as u64;
        }
        Ok(offset)
    }
}

const PAGE: u64 = PAGE_BYTES as u64;

/// Bytes written under one lock; longer writes let others in between.
const LOCKED_BYTES_MAX: usize = 1 << 20;

/// Pages written before threads that wait get their turn: new ones take 2 µs each where the system
/// has to find memory.
const PAGES_PER_TURN: u32 = 8;

/// The frame that a write goes to.
enum Target {
    /// It has the old content.
    Old(FrameId),
    /// It was made with the new bytes.
    Filled(FrameId),
}

impl Store {
    /// Refuses an impossible write, and reserves all pages that it needs, or fails with ENOSPC. The
    /// caller holds `blob.lock` exclusively.
    async fn promise(
        &self,
        blob: &Rc<Blob>,
        offset: u64,
        data: &[IoSlice<'_>],
    ) -> Result<Promise<'_>> {
        debug_assert!(blob.lock.is_locked_exclusively(), "lock is held");
        let len: u64 = data.iter().map(|piece| piece.len() as u64).sum();
        let end = self.check_write(blob, offset, len)?;
        let (first, last) = (offset / PAGE, end.div_ceil(PAGE));
        let mut promise = Promise::none(self);
        // A single page makes its own reservation, in `frame_to_write`.
        if last.saturating_sub(first) <= 1 {
            return Ok(promise);
        }
        let mut missing = 0;
        for page in first as u32..last as u32 {
            if self.cache.find(blob.key(page)).is_none()
                && let MapEntry::Hole { .. } = self.map(blob, page).await?
            {
                missing += 1;
            }
        }
        if missing > 0 {
            self.reserve(missing).await?;
            promise.pages = missing;
        }
        Ok(promise)
    }

    /// Refuses an impossible write; returns the end of the write. The caller holds `blob.lock`, so
    /// that no running truncation looks like a failed one.
    pub(crate) fn check_write(&self, blob: &Blob, offset: u64, len: u64) -> Result<u64> {
        let end = self.check_place(blob, offset, len)?;
        if end > blob.size() && blob.truncating_from.get() != 0 {
            let what = "extend a file whose truncation failed half way: truncate it again";
            return Err(Error::with(Errno::IO, what));
        }
        Ok(end)
    }

    /// Refuses a write to a deleted blob or beyond the largest size; returns the end of the write.
    pub(crate) fn check_place(&self, blob: &Blob, offset: u64, len: u64) -> Result<u64> {
        self.writable()?;
        if blob.deleted.get() {
            return Err(Error::with(Errno::STALE, "write to a deleted blob"));
        }
        let end = offset.saturating_add(len);
        if end > BLOB_BYTES_MAX {
            let what = format!("write beyond {BLOB_BYTES_MAX} bytes, the most that a file has");
            return Err(Error::with(Errno::FBIG, what));
        }
        Ok(end)
    }

    /// Writes to the blob and to the memory of mappings; the caller holds `blob.lock` exclusively.
    pub(crate) async fn write_locked(
        &self,
        blob: &Rc<Blob>,
        offset: u64,
        data: &[u8],
        promise: &mut Promise<'_>,
    ) -> Result<()> {
        self.prepare_write(blob, offset, data.len() as u64)?;
        let Some(mapped) = blob.mapped() else {
            return self.write_stored(blob, offset, data, promise).await;
        };
        let before_end = blob.size().saturating_sub(offset).min(data.len() as u64);
        let (before, behind) = data.split_at(before_end as usize);
        // First: the next opening takes the file's end for that of a dead process's append.
        mapped.note_write(offset + before_end, behind)?;
        self.write_stored(blob, offset, data, promise).await?;
        mapped.note_write(offset, before)
    }

    /// Writes stored bytes, without the memory of mappings; the caller holds `blob.lock`
    /// exclusively.
    pub(crate) async fn write_stored(
        &self,
        blob: &Rc<Blob>,
        offset: u64,
        data: &[u8],
        promise: &mut Promise<'_>,
    ) -> Result<()> {
        debug_assert!(blob.lock.is_locked_exclusively(), "lock is held");
        self.check_write(blob, offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(());
        }
        blob.shared.withdraw_extents();
        let mut done = 0;
        while done < data.len() {
            if promise.turn == PAGES_PER_TURN {
                self.reactor.give_way().await;
                promise.turn = 0;
            }
            promise.turn += 1;
            steps::note(1);
            let at = offset + done as u64;
            let within = (at % PAGE) as usize;
            let count = (PAGE_BYTES - within).min(data.len() - done);
            let page = (at / PAGE) as u32;
            let piece = &data[done..done + count];
            let written = match (self.frame_to_write(blob, page, within, piece, promise)).await {
                Ok(Target::Old(frame)) => self.write_frame(blob, page, frame, within, piece).await,
                Ok(Target::Filled(frame)) => {
                    self.note_written(blob, page, frame, within, piece.len());
                    Ok(())
                }
                Err(error) => Err(error),
            };
            if let Err(error) = written {
                self.drop_beyond_end(blob, page);
                // Bytes written before stay, and have to get home.
                if done > 0 {
                    blob.mtime.set(Some(Timestamp::now()));
                    self.note_dirty(blob);
                }
                return Err(error);
            }
            done += count;
            if at + count as u64 > blob.size() {
                // First, and in the same step: no look at attributes may see it shrink again.
                self.note_dirty(blob);
                blob.set_size(at + count as u64);
            }
        }
        blob.mtime.set(Some(Timestamp::now()));
        self.note_dirty(blob);
        Ok(())
    }

    /// A write into page `page` failed: a frame that it made beyond the end of the blob must not
    /// stay.
    fn drop_beyond_end(&self, blob: &Blob, page: u32) {
        debug_assert!(blob.lock.is_locked_exclusively(), "lock is held");
        if u64::from(page) * PAGE >= blob.size()
            && let Some(frame) = self.cache.find(blob.key(page))
            && !self.cache.is_loading(frame)
            && !(self.cache).has(frame, FrameFlags::JOURNALED | FrameFlags::WRITEBACK)
        {
            if self.cache.has(frame, FrameFlags::DIRTY) && self.cache.home(frame) == 0 {
                self.whole.reservations.end(1);
            }
            self.cache.remove(frame);
        }
    }

    async fn write_frame(
        &self,
        blob: &Blob,
        page: u32,
        mut frame: FrameId,
        within: usize,
        data: &[u8],
    ) -> Result<()> {
        debug_assert!(blob.lock.is_locked_exclusively(), "lock is held");
        let cache = &self.cache;
        loop {
            self.note_dirty_page(blob, page, frame);
            let copying = breakdown::enter(Layer::Copy);
            let written = cache.write(frame, |bytes| {
                memory::copy(data, &mut bytes[within..within + data.len()])
            });
            drop(copying);
            if let Some(current) = written {
                self.note_written(blob, page, current, within, data.len());
                return Ok(());
            }
            // Pinned, and no frame to replace it with.
            self.reclaim_frames(1).await?;
            frame = cache.find(blob.key(page)).ok_or(Error::new(Errno::NOMEM))?;
        }
    }

    fn note_dirty_page(&self, blob: &Blob, page: u32, frame: FrameId) {
        if !self.cache.has(frame, FrameFlags::DIRTY) {
            blob.dirty.borrow_mut().push(page);
            self.cache.set(frame, FrameFlags::DIRTY);
        }
    }

    /// A frame has new bytes.
    fn note_written(&self, blob: &Blob, page: u32, frame: FrameId, within: usize, len: usize) {
        debug_assert!(blob.lock.is_locked_exclusively(), "lock is held");
        self.note_dirty_page(blob, page, frame);
        let (cache, end) = (&self.cache, within + len);
        // Last: should the process die before, there is nothing of this write, not its length
        // without it.
        cache.set_extent_in_file(frame, blob.id.generation, end as u32);
        let dirty = cache.dirty_granules(frame);
        cache.set_dirty_granules(frame, dirty | granules(within..end));
        if dirty == 0
            && let Some(unsynced) = blob.shared.unsynced()
        {
            unsynced.note(page);
        }
    }

    /// The frame of a page that is about to be written: loaded first unless all of it is new.
    async fn frame_to_write(
        &self,
        blob: &Rc<Blob>,
        page: u32,
        within: usize,
        data: &[u8],
        promise: &mut Promise<'_>,
    ) -> Result<Target> {
        debug_assert!(blob.lock.is_locked_exclusively(), "lock is held");
        let key = blob.key(page);
        loop {
            if !self.leaves_room() {
                self.leave_room().await?;
            }
            match self.cache.find(key) {
                Some(frame) if self.cache.is_loading(frame) => {
                    self.frame_idle.wait().await;
                    continue;
                }
                Some(frame) => return Ok(Target::Old(frame)),
                None => {}
            }
            let whole = data.len() == PAGE_BYTES;
            let entry = self.map(blob, page).await?;
            let home = match entry {
                MapEntry::Extent(extent) => extent.physical + u64::from(page - extent.logical),
                MapEntry::Hole { .. } => 0,
            };
            if home != 0
                && !whole
                && let Source::Frame(frame) = self.source(blob, page, 1).await?
            {
                return Ok(Target::Old(frame));
            }
            // A new page, or one of which nothing is worth reading.
            if home == 0 && !promise.take() {
                self.reserve(1).await?;
            }
            let frame = match self.allocate_frame().await {
                Ok(frame) => frame,
                Err(error) => {
                    if home == 0 {
                        self.whole.reservations.end(1);
                    }
                    return Err(error);
                }
            };
            if self.cache.find(key).is_some() {
                self.cache.free_allocated(frame);
                if home == 0 {
                    self.whole.reservations.end(1);
                }
                continue;
            }
            // With its new content at once: readers on other threads see the frame from here on.
            let copying = breakdown::enter(Layer::Copy);
            self.cache
                .insert_filled(frame, key, PageKind::Data as u8, |bytes| {
                    let end = within + data.len();
                    bytes[..within].fill(0);
                    memory::copy(data, &mut bytes[within..end]);
                    bytes[end..].fill(0);
                });
            drop(copying);
            // Unwritten pages have a place, but its content is not theirs: the map must change with
            // them.
            self.cache.set_home(frame, home);
            return Ok(Target::Filled(frame));
        }
    }

    /// Frames that are dirty or in write-back.
    fn busy_frames(&self) -> u32 {
        let counts = self.cache.counts();
        counts.dirty + counts.writeback
    }

    /// True if writers of the blob must wait: when a third of the cache is dirty or in write-back.
    /// Heavy writers don't hold up a blob with at most a sixty-fourth of the cache dirty: its
    /// writers wait from a half on, or from five twelfths on if the blobs of its
    /// [writer](Blob::set_writer) had more dirty pages when the present flush began.
    fn is_crowded(&self, blob: &Blob) -> bool {
        let total = self.cache.counts().total;
        let (busy, little) = (self.busy_frames(), total as usize / 64);
        if busy <= total / 3 || busy > total / 2 {
            return busy > total / 3;
        }
        if blob.dirty.borrow().len() > little {
            return true;
        }
        let writer = blob.writer.get();
        let has_more = || {
            let pages = self.write_back.pages_by_writer.borrow();
            writer != 0 && pages.get(&writer).is_some_and(|pages| *pages > little)
        };
        busy > total / 12 * 5 && has_more()
    }

    /// When a quarter of the cache is dirty, background write-back starts. Writers wait for it (and
    /// help: a waiting thread drives) while the cache [is crowded](Store::is_crowded), but not
    /// while they hold a blob's lock: write-back takes the `map_lock`s, which come first.
    pub(crate) async fn throttle(&self, blob: &Blob) {
        if self.busy_frames() <= self.cache.counts().total / 4 {
            return;
        }
        let wait: ColdFuture<'_, _> = Box::pin(async {
            self.start_flush();
            // Should all of it fail, the write is let through: fsync reports that.
            while self.is_crowded(blob) && self.write_back.flushing.get() {
                self.frame_idle.wait().await;
            }
        });
        wait.await;
    }

    /// Throttles a takeover. No sync follows it: an error ends the takeover, instead of another
    /// write-back of all data before each page.
    pub(crate) async fn throttle_or_fail(&self, blob: &Blob) -> Result<()> {
        if self.is_crowded(blob) {
            self.write_back_dirty(Busy::Wait).await
        } else {
            Ok(())
        }
    }
}
