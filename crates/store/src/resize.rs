//! Changing a blob's extent: truncation, preallocation, punching holes, zeroing ranges, deletion.
//!
//! All of it happens with `map_lock` and `lock` held exclusively and the blob's dirty data written back (so no
//! page is between states), in transactions of bounded size: a crash between two of them leaves a blob whose
//! pages beyond its end, or whose slot without a name, are freed when it is deleted.

use crate::blob::{BLOB_BYTES_MAX, Blob, BlobId};
use crate::extents::{self, Extent, Mapping};
use crate::format::{MAP_EXTENT_TREE, MAP_EXTENTS, Slot};
use crate::pages::{Pages, Stop};
use crate::transaction::Transaction;
use crate::volume::{Inner, Store};
use crate::write::Promise;
use adit_base::clock::Timestamp;
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use std::ops::Range;
use std::rc::Rc;

const PAGE: u64 = PAGE_BYTES as u64;
/// Extents that one transaction adds or removes.
const EXTENTS_PER_TRANSACTION: usize = 32;

/// Does preallocation move the end of the blob?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocateMode {
    /// The size grows to the end of the range.
    Extend,
    /// The size stays.
    KeepSize,
}

impl Store {
    /// Sets the size. Growing leaves a hole that reads as zeroes; shrinking frees the pages behind.
    pub async fn resize(&self, blob: &Rc<Blob>, size: u64) -> Result<()> {
        if size > BLOB_BYTES_MAX {
            return Err(Error::with(
                Errno::FBIG,
                format!("a file has at most {BLOB_BYTES_MAX} bytes"),
            ));
        }
        let inner = &self.0;
        let _map = blob.map_lock.write().await;
        let _exclusive = blob.lock.write().await;
        let untouched = blob.slot.borrow().allocated_pages == 0 && blob.slot.borrow().size == size;
        if untouched && blob.size() == size && blob.dirty.borrow().is_empty() {
            return Ok(()); // as when a new file is truncated
        }
        let shrinks = size < blob.size();
        if !shrinks {
            inner.write_back(blob, false).await?;
        }
        let (from, to) = (size.div_ceil(PAGE) as u32, u32::MAX);
        let mut live = if shrinks {
            inner.drop_frames(blob, from, to).await
        } else {
            Vec::new()
        };
        let journaled = !live.is_empty();
        if shrinks {
            blob.shared.set_size(size);
            inner.zero_tail(blob, size).await?;
            if !blob.dirty.borrow().is_empty() {
                inner.write_back(blob, false).await?;
            }
        }
        let now = Timestamp::now();
        let mut resume = Some(from);
        while let Some(start) = resume {
            resume = self
                .transact_freeing(|txn| {
                    let mut slot = txn.slot(blob.id)?;
                    slot.size = size;
                    slot.valid_size = slot.valid_size.min(size);
                    stamp(&mut slot, now);
                    let left = free_range(
                        txn,
                        blob.id,
                        &mut slot,
                        u64::from(start)..u64::from(to) + 1,
                        journaled,
                    )?;
                    txn.put(blob.id, slot)?;
                    Ok(left)
                })
                .await?;
            inner.drop_freed(blob, &mut live, resume.unwrap_or(to));
            blob.shared.set_size(size);
        }
        blob.mtime.set(None);
        blob.point.set(inner.journal.point());
        Ok(())
    }

    /// Gives the range pages of its own, so that writing there can't fail for lack of space. Reads as zeroes
    /// until written. All of it or ENOSPC and nothing.
    pub async fn allocate(
        &self,
        blob: &Rc<Blob>,
        range: Range<u64>,
        mode: AllocateMode,
    ) -> Result<()> {
        check_range(&range)?;
        let inner = &self.0;
        let _map = blob.map_lock.write().await;
        let _exclusive = blob.lock.write().await;
        inner.write_back(blob, false).await?;
        inner.allocate_locked(blob, &range).await?;
        if mode == AllocateMode::Extend && range.end > blob.size() {
            self.transact(|txn| {
                let mut slot = txn.slot(blob.id)?;
                slot.size = slot.size.max(range.end);
                stamp(&mut slot, Timestamp::now());
                txn.put(blob.id, slot)
            })
            .await?;
            blob.shared.set_size(blob.size().max(range.end));
        }
        blob.point.set(inner.journal.point());
        Ok(())
    }

    /// Frees the pages inside of the range; it reads as zeroes afterwards. The size stays.
    pub async fn punch(&self, blob: &Rc<Blob>, range: Range<u64>) -> Result<()> {
        check_range(&range)?;
        let inner = &self.0;
        let _map = blob.map_lock.write().await;
        let _exclusive = blob.lock.write().await;
        inner.punch_locked(blob, &range).await?;
        blob.point.set(inner.journal.point());
        Ok(())
    }

    /// Makes the range read as zeroes and keeps (or gives) it pages of its own.
    pub async fn zero_range(
        &self,
        blob: &Rc<Blob>,
        range: Range<u64>,
        mode: AllocateMode,
    ) -> Result<()> {
        self.punch(
            blob,
            range.start..range.end.min(blob.size().max(range.start + 1)),
        )
        .await?;
        self.allocate(blob, range, mode).await
    }

    /// Deletes a blob that nothing refers to: its data, then its slot. After a crash in between, whoever
    /// still has its id calls again.
    pub async fn delete(&self, id: BlobId) -> Result<()> {
        let blob = self.blob(id).await?;
        let inner = &self.0;
        let _map = blob.map_lock.write().await;
        let _exclusive = blob.lock.write().await;
        blob.deleted.set(true);
        blob.dirty.borrow_mut().clear();
        blob.mtime.set(None);
        let mut live = inner.drop_frames(&blob, 0, u32::MAX).await;
        let journaled = !live.is_empty();
        let mut resume = Some(0);
        while resume.is_some() {
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
                        slot.allocated_pages = slot.allocated_pages.saturating_sub(1);
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
            inner.drop_freed(&blob, &mut live, resume.unwrap_or(u32::MAX));
        }
        // Its slot may get another blob, whose pages an old handle's lock-free reads must not find.
        blob.shared.set_size(0);
        inner.blobs.remove(id.slot);
        Ok(())
    }
}

fn check_range(range: &Range<u64>) -> Result<()> {
    if range.start >= range.end {
        return Err(Error::with(Errno::INVAL, "an empty range"));
    }
    if range.end > BLOB_BYTES_MAX {
        return Err(Error::with(
            Errno::FBIG,
            format!("a file has at most {BLOB_BYTES_MAX} bytes"),
        ));
    }
    Ok(())
}

fn stamp(slot: &mut Slot, now: Timestamp) {
    (slot.mtime, slot.mtime_ns) = (now.seconds, now.nanoseconds);
    (slot.ctime, slot.ctime_ns) = (now.seconds, now.nanoseconds);
}

/// Unmaps and frees pages `range`, a bounded number of extents; answers where to go on.
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

impl Inner {
    /// Zeroes what the cache holds of the last page behind `size`. (On the device the valid size does it.)
    async fn zero_tail(self: &Rc<Self>, blob: &Rc<Blob>, size: u64) -> Result<()> {
        let within = (size % PAGE) as usize;
        if within == 0 {
            return Ok(());
        }
        let page = (size / PAGE) as u32;
        while let Some(frame) = self.cache.find(blob.key(page)) {
            if self.cache.is_loading(frame) {
                self.frame_settled.wait().await;
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
    async fn allocate_locked(self: &Rc<Self>, blob: &Rc<Blob>, range: &Range<u64>) -> Result<()> {
        let (first, last) = (range.start / PAGE, range.end.div_ceil(PAGE));
        let mut missing = 0;
        let mut page = first;
        while page < last {
            let pages = match self.map(blob, page as u32).await? {
                Mapping::Extent(extent) => u64::from(extent.logical + extent.pages) - page,
                Mapping::Hole { pages } => {
                    let pages = u64::from(pages.max(1)).min(last - page);
                    missing += pages;
                    pages
                }
            };
            page += pages;
        }
        if missing == 0 {
            return Ok(());
        }
        self.reserve(missing).await?;
        let result = self.fill_holes(blob, first, last).await;
        self.unreserve(missing);
        result
    }

    async fn fill_holes(self: &Rc<Self>, blob: &Rc<Blob>, first: u64, last: u64) -> Result<()> {
        let store = Store(self.clone());
        let mut page = first;
        while page < last {
            let goal = self.goal(blob);
            let (filled, next_goal) = store
                .transact_freeing(|txn| {
                    let mut slot = txn.slot(blob.id)?;
                    // Behind the valid size nothing is read anyway, and appends need no conversion.
                    let valid_pages = slot.valid_size.div_ceil(PAGE);
                    let (mut at, mut goal) = (page, goal);
                    for _ in 0..EXTENTS_PER_TRANSACTION {
                        if at >= last {
                            break;
                        }
                        match extents::lookup(txn, &slot, blob.id.slot, at as u32)? {
                            Mapping::Extent(extent) => {
                                at = u64::from(extent.logical + extent.pages);
                                goal = extent.physical + u64::from(extent.pages);
                            }
                            Mapping::Hole { pages } => {
                                let unwritten = at < valid_pages;
                                let until = if unwritten {
                                    valid_pages.min(last)
                                } else {
                                    last
                                };
                                let want =
                                    u64::from(pages.max(1)).min(until - at).min(GROUP_RUN_MAX)
                                        as u32;
                                let run = txn.take_data(goal, want)?;
                                let extent = Extent {
                                    logical: at as u32,
                                    pages: run.pages,
                                    physical: run.page,
                                    unwritten,
                                };
                                extents::insert(txn, &mut slot, blob.id.slot, extent)?;
                                at += u64::from(run.pages);
                                goal = run.page + u64::from(run.pages);
                            }
                        }
                    }
                    txn.put(blob.id, slot)?;
                    Ok((at, goal))
                })
                .await?;
            page = filled;
            blob.goal.set(next_goal);
        }
        Ok(())
    }

    async fn punch_locked(self: &Rc<Self>, blob: &Rc<Blob>, range: &Range<u64>) -> Result<()> {
        self.writable()?;
        let end = range.end;
        let (first, last) = (range.start.div_ceil(PAGE), end / PAGE);
        // The edges stay, as zeroes.
        let head_end = (first * PAGE).min(end);
        self.zero_bytes(blob, range.start, head_end).await?;
        if last >= first {
            self.zero_bytes(blob, (last * PAGE).max(range.start), end)
                .await?;
        }
        self.write_back(blob, false).await?;
        if last <= first {
            return Ok(());
        }
        let mut live = self.drop_frames(blob, first as u32, last as u32).await;
        let journaled = !live.is_empty();
        let store = Store(self.clone());
        let mut resume = Some(first as u32);
        while let Some(start) = resume {
            resume = store
                .transact_freeing(|txn| {
                    let mut slot = txn.slot(blob.id)?;
                    let left =
                        free_range(txn, blob.id, &mut slot, u64::from(start)..last, journaled)?;
                    stamp(&mut slot, Timestamp::now());
                    txn.put(blob.id, slot)?;
                    Ok(left)
                })
                .await?;
            self.drop_freed(blob, &mut live, resume.unwrap_or(last as u32));
        }
        Ok(())
    }

    /// Writes zeroes to `[from, to)` within one page, if the page has content.
    async fn zero_bytes(self: &Rc<Self>, blob: &Rc<Blob>, from: u64, to: u64) -> Result<()> {
        let to = to.min(blob.size());
        if from >= to {
            return Ok(());
        }
        let page = (from / PAGE) as u32;
        let cached = self.cache.find(blob.key(page)).is_some();
        if !cached && matches!(self.map(blob, page).await?, Mapping::Hole { .. }) {
            return Ok(());
        }
        let zeroes = [0; PAGE_BYTES];
        let zeroes = &zeroes[..(to - from) as usize];
        self.write_locked(blob, from, zeroes, &mut Promise::none(self))
            .await
    }
}

/// Pages asked of the allocator at once; a group has fewer.
const GROUP_RUN_MAX: u64 = crate::format::GROUP_PAGES - 1;
