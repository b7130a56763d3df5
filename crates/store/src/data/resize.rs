//! Changing a blob's extent: truncation, preallocation, punching holes, zeroing ranges, deletion.
//!
//! All of it happens with `map_lock` and `lock` held exclusively, so that no page is between
//! states, in transactions of bounded size, between which operations on other blobs run. A crash
//! between two of them leaves a blob whose pages
//! beyond its end, or whose slot without a name, are freed when it is deleted. Frames go right
//! after the transaction that freed their pages: an operation that fails has lost nothing.

use crate::blob::Blob;
use crate::commit::{Intent, Transaction};
use crate::data::reserve::Promise;
use crate::format::{BLOB_BYTES_MAX, BlobId};
use crate::format::{MAP_EXTENT_TREE, MAP_EXTENTS, Slot};
use crate::metadata::Need;
use crate::metadata::extents::{self, Extent, MapEntry};
use crate::metadata::pages::{Pages, Stop};
use crate::state::Store;
use adit_base::clock::Timestamp;
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

const PAGE: u64 = PAGE_BYTES as u64;
/// Most extents that one transaction adds or removes.
const EXTENTS_PER_TRANSACTION: usize = 16;

/// Whether preallocation moves the end of the blob.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocateMode {
    /// The size grows to the end of the range.
    Extend,
    /// The size stays.
    KeepSize,
}

impl Store {
    /// Sets the size. Growing leaves a hole that reads as zeroes; shrinking frees the pages behind.
    /// The next sync of the blob makes it durable.
    pub async fn resize(&self, blob: &Rc<Blob>, size: u64) -> Result<()> {
        self.set_size(blob, |_| Some(size)).await
    }

    /// Grows the blob to `size`; never shrinks a blob that others have grown meanwhile.
    pub async fn extend(&self, blob: &Rc<Blob>, size: u64) -> Result<()> {
        self.set_size(blob, |now| (now < size).then_some(size))
            .await
    }

    /// Under the locks, `size_of` returns the new size, or None to keep the old one.
    async fn set_size(
        &self,
        blob: &Rc<Blob>,
        size_of: impl FnOnce(u64) -> Option<u64>,
    ) -> Result<()> {
        let _map = self.lock_map(blob).await;
        let _exclusive = self.lock(blob).await;
        self.writable()?;
        let Some(size) = size_of(blob.size()) else {
            return Ok(());
        };
        check_size(size)?;
        let untouched = blob.slot.borrow().allocated_pages == 0 && blob.slot.borrow().size == size;
        if untouched && blob.size() == size && blob.dirty.borrow().is_empty() {
            // An empty file that is cut: its times change, with the next write-back.
            self.touch(blob);
            return Ok(());
        }
        if size <= blob.size() {
            if size > blob.slot.borrow().size {
                // Only these dirty pages may tell a takeover from this process that the blob is so
                // large.
                self.write_back_locked(blob, false).await?;
            }
            self.truncate_in_steps(blob, size).await?;
        } else {
            if blob.truncating_from.get() != 0 {
                self.truncate_in_steps(blob, blob.size()).await?;
            }
            self.write_back_locked(blob, false).await?;
            self.clear_behind_end(blob, size)?;
            self.grow_slot(blob, size).await?;
        }
        blob.mtime.set(None);
        blob.note_change(self.whole.progress.point());
        match blob.mapped() {
            None => Ok(()),
            Some(mapped) => mapped.note_cleared(size..BLOB_BYTES_MAX.next_multiple_of(PAGE)),
        }
    }

    /// Allocates pages for the whole range, so that writes there can't fail for lack of space, or
    /// none with ENOSPC. They read as zeroes until written.
    pub async fn allocate(
        &self,
        blob: &Rc<Blob>,
        range: Range<u64>,
        mode: AllocateMode,
    ) -> Result<()> {
        self.allocate_or_zero(blob, range, mode, false).await
    }

    /// Frees the pages inside of the range; it reads as zeroes afterwards. The size stays.
    pub async fn punch(&self, blob: &Rc<Blob>, range: Range<u64>) -> Result<()> {
        check_range(&range)?;
        let _map = self.lock_map(blob).await;
        let _exclusive = self.lock(blob).await;
        self.punch_locked(blob, &range).await?;
        self.touch(blob);
        blob.note_change(self.whole.progress.point());
        match blob.mapped() {
            None => Ok(()),
            Some(mapped) => mapped.note_cleared(range),
        }
    }

    /// Makes the range read as zeroes, with allocated pages.
    pub async fn zero_range(
        &self,
        blob: &Rc<Blob>,
        range: Range<u64>,
        mode: AllocateMode,
    ) -> Result<()> {
        self.allocate_or_zero(blob, range, mode, true).await
    }

    async fn allocate_or_zero(
        &self,
        blob: &Rc<Blob>,
        range: Range<u64>,
        mode: AllocateMode,
        zeroes: bool,
    ) -> Result<()> {
        check_range(&range)?;
        let _map = self.lock_map(blob).await;
        let _exclusive = self.lock(blob).await;
        self.write_back_locked(blob, false).await?;
        // First the step that may fail for lack of space.
        self.allocate_locked(blob, &range).await?;
        if zeroes {
            self.zero_locked(blob, &range).await?;
            if let Some(mapped) = blob.mapped() {
                mapped.note_cleared(range.clone())?;
            }
        }
        if mode == AllocateMode::Extend && range.end > blob.size() {
            self.clear_behind_end(blob, range.end)?;
            let grown = self.grow_slot(blob, range.end).await;
            grown.map_err(if zeroes { half_way } else { |error| error })?;
        }
        self.touch(blob);
        blob.note_change(self.whole.progress.point());
        Ok(())
    }

    /// Deletes a blob that nothing refers to: its data, then its slot. After a crash in between,
    /// the caller that still has its id calls again. `ECANCELED`: the volume is being closed, and
    /// the deletion is to be done again in the next opening.
    pub async fn delete(&self, id: BlobId) -> Result<()> {
        let blob = self.blob(id).await?;
        let _map = self.lock_map(&blob).await;
        let _exclusive = self.lock(&blob).await;
        self.writable()?;
        let end = blob.frames_end();
        let journaled = self.any_live(&blob, 0, u32::MAX);
        let mut resume = Some(0);
        while let Some(start) = resume {
            resume = self
                .transact_freeing(|txn| {
                    let mut slot = txn.slot(id)?;
                    (slot.size, slot.valid_size) = (0, 0);
                    if matches!(slot.map_kind, MAP_EXTENTS | MAP_EXTENT_TREE)
                        && let Some(left) =
                            free_range(txn, id, &mut slot, 0..u64::from(u32::MAX) + 1, journaled)?
                    {
                        txn.put(id, slot)?;
                        return Ok(Some(left));
                    }
                    if slot.xattr_page != 0 {
                        txn.free_page(slot.xattr_page)?;
                        slot.xattr_page = 0;
                        slot.count_pages(id.slot, -1);
                    }
                    if slot.allocated_pages != 0 {
                        return Err(Error::with(
                            Errno::UCLEAN,
                            format!("blob {} still has {} pages after its map was freed: run `adit check`", id.slot, slot.allocated_pages),
                        )
                        .into());
                    }
                    txn.put(id, slot)?;
                    txn.destroy(id)?;
                    Ok(None)
                })
                .await?;
            if resume.is_some() {
                blob.erased_at.set(self.whole.progress.point());
            }
            // Its slot may get another blob, whose pages an old handle's lock-free reads must not
            // find.
            blob.set_size(0);
            blob.truncating_from.set(end);
            self.drop_frames(&blob, start, resume.unwrap_or(u32::MAX));
            if resume.is_some() && self.whole.closing.is_set() {
                return Err(Errno::CANCELED.into());
            }
            self.let_others_run(resume.is_some()).await;
        }
        blob.dirty.borrow_mut().clear();
        blob.mtime.set(None);
        blob.truncating_from.set(0);
        Ok(())
    }
}

/// EROFS says that nothing was done. Where part of a range may be zero already, it is EIO.
fn half_way(error: Error) -> Error {
    match error.errno() {
        Errno::ROFS => Error::with(Errno::IO, format!("zero a range, half way: {error}")),
        _ => error,
    }
}

fn check_range(range: &Range<u64>) -> Result<()> {
    if range.start >= range.end {
        return Err(Error::with(Errno::INVAL, "an empty range"));
    }
    check_size(range.end)
}

fn check_size(size: u64) -> Result<()> {
    if size > BLOB_BYTES_MAX {
        let what = format!("a file has at most {BLOB_BYTES_MAX} bytes");
        return Err(Error::with(Errno::FBIG, what));
    }
    Ok(())
}

fn stamp(slot: &mut Slot, now: Timestamp) {
    (slot.mtime, slot.mtime_ns) = (now.seconds, now.nanoseconds);
    (slot.ctime, slot.ctime_ns) = (now.seconds, now.nanoseconds);
}

/// Removes and frees pages `range`, a bounded number of extents; returns where to continue.
fn free_range(
    txn: &mut Transaction<'_>,
    id: BlobId,
    slot: &mut Slot,
    range: Range<u64>,
    journaled: bool,
) -> Result<Option<u32>, Stop> {
    let mut runs = Vec::new();
    let resume = extents::remove(
        txn,
        slot,
        id.slot,
        range,
        EXTENTS_PER_TRANSACTION,
        &mut runs,
    )?;
    for run in runs {
        txn.free_run(run, journaled)?;
    }
    Ok(resume)
}

/// Makes allocated pages of the range unwritten, a bounded number of extents; returns where to
/// continue.
fn mark_some_unwritten(
    txn: &mut Transaction<'_>,
    id: BlobId,
    slot: &mut Slot,
    range: Range<u64>,
) -> Result<u64, Stop> {
    let mut page = range.start;
    for _ in 0..EXTENTS_PER_TRANSACTION {
        if page >= range.end {
            break;
        }
        page = match extents::lookup(txn, slot, id.slot, page as u32)? {
            MapEntry::Hole { pages } => page + u64::from(pages.max(1)),
            MapEntry::Extent(extent) => {
                let part = extent.cut(page..range.end);
                if !part.unwritten {
                    let pages = page..part.end();
                    extents::remove(txn, slot, id.slot, pages, usize::MAX, &mut Vec::new())?;
                    let unwritten = Extent {
                        unwritten: true,
                        ..part
                    };
                    extents::insert(txn, slot, id.slot, unwritten)?;
                }
                part.end()
            }
        };
    }
    Ok(page)
}

impl Store {
    /// It was changed now: the slot has it after the next write-back.
    fn touch(&self, blob: &Rc<Blob>) {
        blob.mtime.set(Some(Timestamp::now()));
        self.note_dirty(blob);
    }

    /// Ends a blob at `size`, at or before its end, and frees everything behind. Dirty pages before
    /// it stay dirty: truncation writes no data, and a failing device can't prevent it. The caller
    /// holds both locks.
    async fn truncate_in_steps(&self, blob: &Rc<Blob>, size: u64) -> Result<()> {
        blob.assert_exclusive();
        let end = blob.frames_end();
        let from = size.div_ceil(PAGE) as u32;
        let journaled = self.any_live(blob, from, u32::MAX);
        let now = Timestamp::now();
        let mut resume = Some(from);
        // Until readers see no byte behind the size that the slot gets.
        let mut ahead = Some(self.write_back.dirty.ahead().hold(blob.id.slot));
        while let Some(start) = resume {
            resume = self
                .transact_freeing(|txn| {
                    let mut slot = txn.slot(blob.id)?;
                    // Smaller where data that it would cover isn't home yet.
                    slot.size = slot.size.min(size);
                    slot.valid_size = slot.valid_size.min(size);
                    stamp(&mut slot, now);
                    let range = u64::from(start)..u64::from(u32::MAX) + 1;
                    let left = free_range(txn, blob.id, &mut slot, range, journaled)?;
                    txn.put(blob.id, slot)?;
                    Ok(left)
                })
                .await?;
            blob.shared.cut(|| {
                if start == from {
                    // First: a reader that sees the new size must find nothing behind it.
                    self.withdraw_hints(blob, (size / PAGE) as u32);
                }
                blob.set_size(size);
            });
            drop(ahead.take());
            blob.truncating_from.set(end);
            if resume.is_some() {
                blob.erased_at.set(self.whole.progress.point());
            }
            self.drop_frames(blob, start, resume.unwrap_or(u32::MAX));
            self.let_others_run(resume.is_some()).await;
        }
        self.zero_tail(blob, size).await?;
        blob.truncating_from.set(0);
        Ok(())
    }

    /// Moves the end of a blob of which nothing is dirty to `size`, behind its present one. Both
    /// locks are held.
    async fn grow_slot(&self, blob: &Rc<Blob>, size: u64) -> Result<()> {
        blob.assert_exclusive();
        self.check_write(blob, size, 0)?;
        // Until readers see the size that the slot gets.
        let _ahead = self.write_back.dirty.ahead().hold(blob.id.slot);
        self.transact(|txn| {
            let mut slot = txn.slot(blob.id)?;
            slot.size = slot.size.max(size);
            stamp(&mut slot, Timestamp::now());
            txn.put(blob.id, slot)
        })
        .await?;
        blob.set_size(blob.size().max(size));
        Ok(())
    }

    /// Makes the allocated range read as zeroes. Nothing is dirty, both locks are held.
    async fn zero_locked(&self, blob: &Rc<Blob>, range: &Range<u64>) -> Result<()> {
        blob.assert_exclusive();
        // Behind the valid size nothing is read.
        let valid_pages = blob.slot.borrow().valid_size.div_ceil(PAGE);
        let (first, last) = (
            range.start.div_ceil(PAGE),
            (range.end / PAGE).min(valid_pages),
        );
        // The store must not forget that redo records name them.
        if last > first && self.any_live(blob, first as u32, last as u32) {
            self.checkpoint_all().await?;
        }
        self.zero_edges(blob, range).await?;
        if last <= first {
            return Ok(());
        }
        let marked = self.mark_unwritten(blob, first, last, Intent::Free).await;
        // Some of it may be, if not all.
        blob.erased_at.set(self.whole.progress.point());
        self.drop_frames(blob, first as u32, last as u32);
        marked.map_err(half_way)
    }

    /// Makes the allocated pages of `[from, to)` unwritten. The caller holds `map_lock`
    /// exclusively.
    pub(crate) async fn mark_unwritten(
        &self,
        blob: &Rc<Blob>,
        from: u64,
        to: u64,
        intent: Intent,
    ) -> Result<()> {
        let mut page = from;
        while page < to {
            page = match self.map(blob, page as u32).await? {
                MapEntry::Hole { pages } => page + u64::from(pages.max(1)),
                MapEntry::Extent(extent) if extent.unwritten => extent.end(),
                MapEntry::Extent(_) => {
                    self.run_transaction(intent, Need::STEP, |txn| {
                        let mut slot = txn.slot(blob.id)?;
                        let next = mark_some_unwritten(txn, blob.id, &mut slot, page..to)?;
                        txn.put(blob.id, slot)?;
                        Ok(next)
                    })
                    .await?
                }
            };
            self.let_others_run(page < to).await;
        }
        Ok(())
    }

    /// Zeroes the cached bytes of the last page behind `size`. (On the device the valid size does
    /// it.)
    async fn zero_tail(&self, blob: &Rc<Blob>, size: u64) -> Result<()> {
        blob.assert_exclusive();
        let within = (size % PAGE) as usize;
        if within == 0 {
            return Ok(());
        }
        let page = (size / PAGE) as u32;
        while let Some(frame) = self.cache.find(blob.key(page)) {
            if self.cache.is_loading(frame) {
                self.frame_idle.wait().await;
                continue;
            }
            self.cache.limit_end(frame, within as u32);
            if self
                .cache
                .write(frame, |bytes| bytes[within..].fill(0))
                .is_some()
            {
                break;
            }
            self.reclaim_frames(1).await?;
        }
        Ok(())
    }

    /// Fills the holes of a range with pages. Both locks are held, nothing is dirty.
    async fn allocate_locked(&self, blob: &Rc<Blob>, range: &Range<u64>) -> Result<()> {
        blob.assert_exclusive();
        let (first, last) = (range.start / PAGE, range.end.div_ceil(PAGE));
        let (mut missing, mut holes) = (0, Vec::new());
        let mut page = first;
        while page < last {
            let pages = match self.map(blob, page as u32).await? {
                MapEntry::Extent(extent) => u64::from(extent.logical + extent.pages) - page,
                MapEntry::Hole { pages } => {
                    let pages = u64::from(pages.max(1)).min(last - page);
                    missing += pages;
                    holes.push(page..page + pages);
                    pages
                }
            };
            page += pages;
        }
        if missing == 0 {
            return Ok(());
        }
        self.reserve_to_take(missing).await?;
        let promised = Cell::new(missing);
        let filling = self.fill_holes(blob, first, last, Intent::Free, &promised);
        let result = filling.await;
        self.whole.reservations.end(promised.get());
        if result.is_err() && self.writable().is_ok() {
            for hole in holes {
                let range = hole.start * PAGE..hole.end * PAGE;
                self.punch_locked(blob, &range).await?;
            }
        }
        result
    }

    /// `promised`: reserved pages that it may take. Taken pages leave the reservation.
    pub(crate) async fn fill_holes(
        &self,
        blob: &Rc<Blob>,
        first: u64,
        last: u64,
        intent: Intent,
        promised: &Cell<u64>,
    ) -> Result<()> {
        let store = self;
        let mut page = first;
        while page < last {
            let near = self.allocation_hint(blob);
            let (filled, next_goal, left) = store
                .run_transaction(intent, Need::STEP, |txn| {
                    let mut slot = txn.slot(blob.id)?;
                    // Behind the valid size nothing is read anyway, and appends need no conversion.
                    let valid_pages = slot.valid_size.div_ceil(PAGE);
                    let (mut at, mut near, mut left) = (page, near, promised.get());
                    let groups = txn.state()?.groups_initialized;
                    for _ in 0..EXTENTS_PER_TRANSACTION {
                        // A new group takes some tens of frames.
                        if at >= last || txn.state()?.groups_initialized != groups {
                            break;
                        }
                        match extents::lookup(txn, &slot, blob.id.slot, at as u32)? {
                            MapEntry::Extent(extent) => {
                                at = u64::from(extent.logical + extent.pages);
                                near = extent.physical + u64::from(extent.pages);
                            }
                            MapEntry::Hole { pages } => {
                                let unwritten = at < valid_pages;
                                let until = if unwritten {
                                    valid_pages.min(last)
                                } else {
                                    last
                                };
                                let want =
                                    u64::from(pages.max(1)).min(until - at).min(GROUP_RUN_MAX)
                                        as u32;
                                let run = txn.take_data(near, want)?;
                                let of_promise = u64::from(run.pages).min(left);
                                txn.use_promise(of_promise);
                                left -= of_promise;
                                let extent = Extent {
                                    logical: at as u32,
                                    pages: run.pages,
                                    physical: run.page,
                                    unwritten,
                                };
                                extents::insert(txn, &mut slot, blob.id.slot, extent)?;
                                at += u64::from(run.pages);
                                near = run.page + u64::from(run.pages);
                            }
                        }
                    }
                    txn.put(blob.id, slot)?;
                    Ok((at, near, left))
                })
                .await?;
            page = filled;
            blob.allocation_hint.set(next_goal);
            promised.set(left);
            self.let_others_run(page < last).await;
        }
        Ok(())
    }

    /// Between two steps of an operation on many extents.
    async fn let_others_run(&self, goes_on: bool) {
        if goes_on {
            self.reactor.yield_now().await;
        }
    }

    async fn punch_locked(&self, blob: &Rc<Blob>, range: &Range<u64>) -> Result<()> {
        blob.assert_exclusive();
        self.writable()?;
        let (first, last) = (range.start.div_ceil(PAGE), range.end / PAGE);
        self.write_back_locked(blob, false).await?;
        self.zero_edges(blob, range).await?;
        if last <= first {
            return Ok(());
        }
        let journaled = self.any_live(blob, first as u32, last as u32);
        let store = self;
        let mut resume = Some(first as u32);
        while let Some(start) = resume {
            // Until readers no longer find the pages that the slot has lost.
            let ahead = self.write_back.dirty.ahead().hold(blob.id.slot);
            resume = store
                .transact_freeing(|txn| {
                    let mut slot = txn.slot(blob.id)?;
                    let left =
                        free_range(txn, blob.id, &mut slot, u64::from(start)..last, journaled)?;
                    stamp(&mut slot, Timestamp::now());
                    txn.put(blob.id, slot)?;
                    Ok(left)
                })
                .await
                .map_err(half_way)?;
            self.drop_frames(blob, start, resume.unwrap_or(last as u32));
            drop(ahead);
            self.let_others_run(resume.is_some()).await;
        }
        Ok(())
    }

    /// Writes zeroes to the part of a range that lies in pages of which other parts stay. If the
    /// volume is read-only, nothing is done.
    async fn zero_edges(&self, blob: &Rc<Blob>, range: &Range<u64>) -> Result<()> {
        blob.assert_exclusive();
        self.writable()?;
        let (first, last) = (range.start.div_ceil(PAGE), range.end / PAGE);
        let head_end = (first * PAGE).min(range.end);
        let head = self.zero_bytes(blob, range.start, head_end);
        head.await.map_err(half_way)?;
        if last >= first {
            let tail = (last * PAGE).max(range.start);
            let tail = self.zero_bytes(blob, tail, range.end);
            tail.await.map_err(half_way)?;
        }
        Ok(())
    }

    /// Writes zeroes to `[from, to)` within one page, if the page has content.
    async fn zero_bytes(&self, blob: &Rc<Blob>, from: u64, to: u64) -> Result<()> {
        let to = to.min(blob.size());
        if from >= to {
            return Ok(());
        }
        let page = (from / PAGE) as u32;
        let cached = self.cache.find(blob.key(page)).is_some();
        if !cached && matches!(self.map(blob, page).await?, MapEntry::Hole { .. }) {
            return Ok(());
        }
        static ZEROES: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
        let zeroes = &ZEROES[..(to - from) as usize];
        self.write_locked(blob, from, zeroes, &mut Promise::none(self))
            .await
    }
}

/// Pages asked of the allocator at once; a group has fewer.
const GROUP_RUN_MAX: u64 = crate::format::GROUP_PAGES - 1;
