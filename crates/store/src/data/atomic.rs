//! Atomic writes: several ranges of one blob, all of them or none, even if the process or the
//! machine dies in between.
//!
//! The ranges are staged as a transaction stages metadata: in shadows of their pages, which `apply`
//! makes visible in one step and the journal carries in one transaction. A checkpoint takes them
//! home later.
//!
//! Invariants:
//! 1. The blob's dirty pages are written back first, under the same locks. So no IO of its pages is
//!    in flight, the transaction has the whole change of size and map, and a commit of it makes
//!    earlier writes durable, too.
//! 2. From `apply` on the pages are JOURNALED: until the transaction is durable their bytes reach
//!    the device only as its records. A checkpoint that began before writes the images that `apply`
//!    saved.
//! 3. Steps before the transaction change nothing that can be read: holes get unwritten pages,
//!    allocated pages between the valid size and the ranges become unwritten.

use crate::blob::Blob;
use crate::cache::HeldAhead;
use crate::commit::{Intent, Transaction};
use crate::data::read::Source;
use crate::data::write_back::{
    DirtyPage, DirtyPages, PIECES_PER_TRANSACTION, SlotSizes, new_valid_size,
};
use crate::format::BlobId;
use crate::metadata::Need;
use crate::metadata::extents::MapEntry;
use crate::metadata::pages::Stop;
use crate::state::{Beside, ColdFuture, Store};
use adit_base::clock::Timestamp;
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_block::Buffer;
use adit_reactor::sync::WriteGuard;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

const PAGE: u64 = PAGE_BYTES as u64;

/// A range to write: offset and bytes.
pub type AtomicRange<'a> = (u64, &'a [u8]);

impl Store {
    /// Most pages (4 KiB) that one [`Store::write_atomic`] may touch: between 60 and 250, by the
    /// size of the journal.
    pub fn atomic_pages_max(&self) -> usize {
        // One more page may be needed between the valid size and the ranges.
        self.whole.progress.room.data_pages_max() - 1
    }

    /// Writes all ranges, later ones over earlier ones, or none of them, whatever fails or dies.
    /// The next sync of the blob makes them durable, by one journal write. Reads through the worker
    /// see all ranges or none; reads of the cache past the worker see each page as a whole.
    ///
    /// E2BIG when the ranges touch more than [`Store::atomic_pages_max`] pages, or more than 16
    /// separate pieces of holes and preallocated space before the end of the blob. After any error
    /// nothing that can be read has changed.
    pub async fn write_atomic(&self, blob: &Rc<Blob>, ranges: &[AtomicRange<'_>]) -> Result<()> {
        let Some(write) = self.begin_atomic(blob, ranges).await? else {
            return Ok(());
        };
        let written = self.transact_writing(Some(&write), |_| Ok(()), |(), _| write.finish());
        written.await?
    }

    /// Locks the blob and makes it ready for a write that a transaction is to carry. None: there is
    /// nothing to write.
    pub async fn begin_atomic<'a>(
        &'a self,
        blob: &'a Rc<Blob>,
        ranges: &'a [AtomicRange<'a>],
    ) -> Result<Option<AtomicWrite<'a>>> {
        self.throttle(blob).await;
        let map = self.lock_map(blob).await;
        let exclusive = self.lock(blob).await;
        let (mut pages, size) = self.touched(blob, ranges)?;
        if pages.is_empty() {
            return Ok(None);
        }
        if blob.is_dirty() {
            let write_back: ColdFuture<'_, _> = Box::pin(self.write_back_locked(blob, false));
            write_back.await?;
        }
        let slot = SlotSizes::of(blob);
        let taken = |pages: &BTreeSet<u32>| -> DirtyPages {
            (pages.iter())
                .map(|page| DirtyPage {
                    page: *page,
                    granules: 0,
                })
                .collect()
        };
        let valid_size = new_valid_size(slot, &taken(&pages), size);
        if valid_size > slot.valid_size && !slot.valid_size.is_multiple_of(PAGE) {
            // Its bytes behind the valid size come along, unless it has no place.
            let tail = (slot.valid_size / PAGE) as u32;
            if let Source::Frame(_) = self.source(blob, tail, 1).await? {
                pages.insert(tail);
            }
        }
        let loaded = self.load_pages(blob, &pages).await?;
        self.give_places(blob, &pages, slot.valid_size).await?;
        let pages = taken(&pages);
        if valid_size > slot.valid_size {
            self.cover_gap(blob, &pages, &[], valid_size).await?;
        }
        for (offset, data) in ranges {
            self.prepare_write(blob, *offset, data.len() as u64)?;
        }
        Ok(Some(AtomicWrite {
            store: self,
            blob,
            ranges,
            pages,
            size,
            valid_size,
            near: self.allocation_hint(blob),
            _ahead: self.write_back.dirty.ahead().hold(blob.id.slot),
            _loaded: loaded,
            _exclusive: exclusive,
            _map: map,
        }))
    }

    /// Runs a transaction of operations that ask for their needs ([`Transaction::ask`]), staged
    /// after an atomic write. Once it is applied, and before any partition that it has changed does
    /// anything else, `applied` makes the result of the closure's, and finishes the write.
    pub async fn transact_writing<T, U>(
        &self,
        write: Option<&AtomicWrite<'_>>,
        mut f: impl FnMut(&mut Transaction<'_>) -> Result<T, Stop>,
        applied: impl FnMut(T, Beside<'_>) -> U,
    ) -> Result<U> {
        let need = write.map_or(Need::NONE, |write| {
            Need::STEP + Need::data(write.pages.len())
        });
        let staged = |transaction: &mut Transaction<'_>| {
            if let Some(write) = write {
                transaction.use_reserve(true);
                write.stage(transaction)?;
                transaction.use_reserve(false);
            }
            f(transaction)
        };
        let run = self.run_transaction_then(Intent::Change, need, staged, applied);
        run.await
    }

    /// The pages that the ranges touch, and the size of the blob afterwards.
    fn touched(&self, blob: &Blob, ranges: &[AtomicRange<'_>]) -> Result<(BTreeSet<u32>, u64)> {
        let max = self.atomic_pages_max();
        let mut pages = BTreeSet::new();
        let mut size = blob.size();
        for (offset, data) in ranges.iter().filter(|(_, data)| !data.is_empty()) {
            let end = self.check_write(blob, *offset, data.len() as u64)?;
            size = size.max(end);
            let touched = offset / PAGE..end.div_ceil(PAGE);
            pages.extend(touched.take(max + 1).map(|page| page as u32));
            if pages.len() > max {
                let what = format!("write more than {max} pages ({PAGE} bytes each) atomically");
                return Err(Error::with(Errno::TOOBIG, what));
            }
        }
        Ok((pages, size))
    }
}

/// A write that a transaction is to carry: its blob is locked, and ready for it. Dropped, it has
/// changed nothing that can be read.
pub struct AtomicWrite<'a> {
    store: &'a Store,
    blob: &'a Rc<Blob>,
    ranges: &'a [AtomicRange<'a>],
    pages: DirtyPages,
    size: u64,
    valid_size: u64,
    near: u64,
    /// Until readers see the size that the slot gets.
    _ahead: HeldAhead<'a>,
    _loaded: Vec<Buffer>,
    _exclusive: WriteGuard<'a>,
    _map: WriteGuard<'a>,
}

impl AtomicWrite<'_> {
    /// The blob that it holds locked.
    pub fn blob_id(&self) -> BlobId {
        self.blob.id
    }

    fn stage(&self, txn: &mut Transaction<'_>) -> Result<(), Stop> {
        let (store, blob) = (self.store, self.blob);
        blob.assert_exclusive();
        let now = Timestamp::now();
        let mut slot = txn.slot(blob.id)?;
        let mut first = None;
        for taken in &self.pages {
            let staged = txn.stage_data(blob.key(taken.page))?;
            first.get_or_insert(staged);
        }
        let first = first.expect("a write of nothing is none");
        for (page, within, bytes) in self.ranges.iter().flat_map(pieces) {
            let index = self.pages.partition_point(|taken| taken.page < page);
            let to = &mut txn.data_mut(first + index).0[within..within + bytes.len()];
            to.copy_from_slice(bytes);
        }
        for taken in &self.pages {
            store.journal_page(txn, blob, &mut slot, *taken, self.size, self.near)?;
        }
        slot.size = slot.size.max(self.size);
        slot.valid_size = slot.valid_size.max(self.valid_size);
        (slot.mtime, slot.mtime_ns) = (now.seconds, now.nanoseconds);
        (slot.ctime, slot.ctime_ns) =
            (slot.ctime, slot.ctime_ns).max((now.seconds, now.nanoseconds));
        txn.put(blob.id, slot)
    }

    /// The transaction was applied: others see the size, and the blob is theirs again. An error
    /// says that the memory of its shared mappings doesn't have the bytes; the file does.
    pub fn finish(&self) -> Result<()> {
        let blob = self.blob;
        blob.forget_modified();
        if self.size > blob.size() {
            blob.set_size(self.size);
        }
        let Some(mapped) = blob.mapped() else {
            return Ok(());
        };
        let mut ranges = self.ranges.iter();
        ranges.try_for_each(|(offset, data)| mapped.note_write(*offset, data))
    }
}

/// A range divided by pages: page, offset in it, bytes.
fn pieces<'a>(range: &AtomicRange<'a>) -> impl Iterator<Item = (u32, usize, &'a [u8])> {
    let (mut at, mut rest) = *range;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let within = (at % PAGE) as usize;
        let (piece, behind) = rest.split_at(rest.len().min(PAGE_BYTES - within));
        let page = (at / PAGE) as u32;
        (at, rest) = (at + piece.len() as u64, behind);
        Some((page, within, piece))
    })
}

/// Consecutive pages, as first and end.
fn runs(pages: impl IntoIterator<Item = u32>) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some((_, end)) if *end == page => *end += 1,
            _ => runs.push((page, page + 1)),
        }
    }
    runs
}

impl Store {
    /// Brings in the pages that have content; they stay in the cache while the answer lives. The
    /// others read as zeroes.
    async fn load_pages(&self, blob: &Rc<Blob>, pages: &BTreeSet<u32>) -> Result<Vec<Buffer>> {
        let mut loaded = Vec::with_capacity(pages.len());
        for (first, end) in runs(pages.iter().copied()) {
            for page in first..end {
                if let Source::Frame(frame) = self.source(blob, page, end - page).await? {
                    loaded.push(self.cache.buffer(frame));
                }
            }
        }
        Ok(loaded)
    }

    /// Fills holes among the pages, so that a full volume fails now, and refuses a write that would
    /// change the map in too many places.
    async fn give_places(
        &self,
        blob: &Rc<Blob>,
        pages: &BTreeSet<u32>,
        valid_size: u64,
    ) -> Result<()> {
        let (mut holes, mut unwritten) = (Vec::new(), Vec::new());
        for page in pages.iter().copied() {
            let is_hole = match self.map(blob, page).await? {
                MapEntry::Hole { .. } => true,
                MapEntry::Extent(extent) if extent.unwritten => false,
                MapEntry::Extent(_) => continue,
            };
            if is_hole {
                holes.push(page);
            }
            if !is_hole || u64::from(page) * PAGE < valid_size {
                unwritten.push(page);
            }
        }
        if runs(unwritten).len() > PIECES_PER_TRANSACTION {
            let what = format!("fill more than {PIECES_PER_TRANSACTION} holes atomically");
            return Err(Error::with(Errno::TOOBIG, what));
        }
        if holes.is_empty() {
            return Ok(());
        }
        let missing = holes.len() as u64;
        self.reserve(missing).await?;
        let promised = Cell::new(missing);
        let filled: ColdFuture<'_, _> = Box::pin(async {
            for (first, end) in runs(holes) {
                let (first, end) = (first.into(), end.into());
                self.fill_holes(blob, first, end, Intent::Upkeep, &promised)
                    .await?;
            }
            Ok(())
        });
        let filled = filled.await;
        self.whole.reservations.end(promised.get());
        filled
    }
}
