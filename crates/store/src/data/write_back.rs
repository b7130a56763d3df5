//! Write-back of dirty data, and fsync.
//!
//! ```text
//!   dirty pages ──plan──┬─ few bytes that need a transaction anyway, or pages with live bytes:
//!                       │     as records, in the transaction of the slot             (no write of their own)
//!                       └─ all others: written home ──then──▶ the transaction that maps them
//!   fsync = write back, then make the transaction durable (which flushes the home writes first),
//!           or, if there is nothing to commit, flush the home writes
//! ```
//!
//! Invariants:
//! 1. A map, size or valid-size change joins the open transaction only after the writes of its data
//!    completed.
//! 2. A page with live bytes is never written home here (redo would overwrite acknowledged bytes).
//! 3. A page whose write failed is dirty again, its file is left out of the transaction, and each
//!    open descriptor hears of it once.
//! 4. Bytes between the valid size and new data are zeroes on the device, or their pages are
//!    unwritten, before the valid size passes them.
//!
//! 5. A transaction stays within its bounds: few pages through the journal, few pieces mapped by
//!    each.
//! 6. On a volume with data checksums, readable content is never overwritten at home: new data goes
//!    to fresh pages, or, if none are left, through the journal (`checksums.rs`).
//!
//! Write-back holds `map_lock` exclusively throughout, but not `lock`: writers go on, and pages
//! that they change meanwhile become dirty again (write-back reads pinned frames, which writers
//! replace). So a write-back takes on the dirty pages and the size in one step, from DIRTY to
//! WRITEBACK: later bytes are beyond the size that it makes durable, and only DIRTY marks them.

use crate::blob::Blob;
use crate::cache::{FrameFlags, FrameId};
use crate::commit::{Intent, Transaction};
use crate::data::checksums::Sums;
use crate::data::home::{Piece, Pieces, map_piece};
use crate::data::read::Source;
use crate::format::Slot;
use crate::metadata::extents::{self, Extent, MapEntry};
use crate::metadata::pages::Stop;
use crate::state::{ColdFuture, Store};
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, PAGE_BYTES, Result, granules};
use smallvec::SmallVec;
use std::rc::Rc;

/// Most bytes of data that go through the journal, instead of home, with a transaction that is
/// needed anyway, if no caller waits or the device has no latency.
const JOURNAL_DATA_BYTES_MIN: u32 = 8 << 10;
/// Bytes that a sync journals for each µs of the device's latency, which a write home would cost
/// once more. Half of that unless the journal is calm: journaled data is written twice, and
/// frequent syncs wait for checkpoints, too.
const JOURNAL_DATA_BYTES_PER_US: u64 = 1 << 10;
/// Most bytes of data that a sync journals, since each page may change the map as a piece does.
const JOURNAL_DATA_BYTES_MAX: u32 = (PIECES_PER_TRANSACTION * PAGE_BYTES) as u32;
/// Pages that may be journaled however few bytes, since each may be journaled whole.
const JOURNAL_DATA_PAGES_MIN: usize = 8;
/// Pieces that one transaction maps; each may change a leaf, its neighbour and a group's map.
pub(crate) const PIECES_PER_TRANSACTION: usize = 16;
/// Pieces that one transaction maps where each may also change checksums and free replaced pages.
const SUMMED_PIECES_PER_TRANSACTION: usize = 8;
/// Dirty pages that one plan covers at most; more take several rounds.
const PLAN_PAGES_MAX: usize = 4096;
/// A plan covers at most this part of the cache, so that writers wait for room only briefly.
const PLANS_PER_CACHE: usize = 16;
const PAGE: u64 = PAGE_BYTES as u64;

/// A page that a write-back has taken on.
#[derive(Clone, Copy)]
pub(crate) struct DirtyPage {
    pub(crate) page: u32,
    /// Its granules that were dirty.
    pub(crate) granules: u64,
}

/// The purpose of a write-back.
#[derive(Clone, Copy)]
struct Aim {
    /// The times become durable, too.
    times: bool,
    /// Most bytes of data that go through the journal instead of home.
    journal_bytes_max: u32,
}

/// Splits dirty pages between the journal and their homes.
#[derive(Default)]
struct Plan {
    /// Pages that become records of the transaction.
    journal: DirtyPages,
    home: Pieces,
}

/// The sizes in a blob's slot; a copy of the slot itself would move with each future.
#[derive(Clone, Copy)]
pub(crate) struct SlotSizes {
    size: u64,
    pub(crate) valid_size: u64,
}

impl SlotSizes {
    pub(crate) fn of(blob: &Blob) -> SlotSizes {
        let slot = blob.slot.borrow();
        SlotSizes {
            size: slot.size,
            valid_size: slot.valid_size,
        }
    }
}

pub(crate) type DirtyPages = SmallVec<[DirtyPage; 8]>;

/// Dirty pages of a blob that a sweep left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Remaining {
    Nothing,
    /// Pages still to come.
    Ahead,
    /// Only pages that became dirty after the sweep was there, or had begun.
    Behind,
}

impl Store {
    /// Takes a blob's dirty data home or into the open transaction, with the slot that belongs to
    /// it: all that is dirty now, in one sweep from the front, so that it ends however fast others
    /// go on writing. The caller holds its `map_lock` exclusively.
    pub(crate) fn write_back_locked<'a>(
        &'a self,
        blob: &'a Rc<Blob>,
        times: bool,
    ) -> impl Future<Output = Result<()>> + 'a {
        let aim = Aim {
            times,
            journal_bytes_max: JOURNAL_DATA_BYTES_MIN,
        };
        self.write_back_as(blob, aim)
    }

    /// Writes a blob back for a sync, which waits for the transaction. On a high-latency device
    /// more data goes through the journal, so that the sync waits only once.
    pub(crate) fn write_back_to_sync<'a>(
        &'a self,
        blob: &'a Rc<Blob>,
        times: bool,
    ) -> impl Future<Output = Result<()>> + 'a {
        let part = if self.whole.progress.is_calm(&self.cache) {
            1
        } else {
            2
        };
        let latency_us = self.whole.latency.us();
        let bytes = latency_us.saturating_mul(JOURNAL_DATA_BYTES_PER_US / part);
        let bytes = bytes.min(JOURNAL_DATA_BYTES_MAX.into()) as u32;
        let aim = Aim {
            times,
            journal_bytes_max: bytes.max(JOURNAL_DATA_BYTES_MIN),
        };
        self.write_back_as(blob, aim)
    }

    async fn write_back_as(&self, blob: &Rc<Blob>, aim: Aim) -> Result<()> {
        assert!(blob.map_lock.is_locked_exclusively(), "map_lock is held");
        self.writable()?;
        let size_now = blob.size();
        // The sweep doesn't wait for later appends.
        let listed = blob.dirty.borrow().iter().max().map_or(0, |page| page + 1);
        let pages = u32::try_from(size_now.div_ceil(PAGE)).unwrap_or(u32::MAX);
        let end = listed.max(pages);
        let mut next = 0;
        loop {
            if blob.deleted.get() {
                blob.dirty.borrow_mut().clear();
                return Ok(());
            }
            let (pages, left) = self.take_dirty(blob, &mut next, end);
            let reached = blob.slot.borrow().size.max(first_clean(&pages));
            let size = match left {
                Remaining::Nothing => blob.size(),
                // Not before the data that it covers.
                Remaining::Ahead => reached.min(blob.size()),
                // Pages that became dirty behind the sweep may be beyond the size of that time; up
                // to it all is done.
                Remaining::Behind => reached.max(size_now).min(blob.size()),
            };
            let last = left != Remaining::Ahead;
            let times = aim.times && last;
            self.write_back_pages(blob, pages, size, Aim { times, ..aim })
                .await?;
            if last {
                return Ok(());
            }
        }
    }

    /// Takes on a blob's dirty pages from `next` to `end`, ascending: at most one plan, of which a
    /// transaction can carry those with live bytes, and one more. Returns the kind of the remaining
    /// pages.
    fn take_dirty(&self, blob: &Blob, next: &mut u32, end: u32) -> (DirtyPages, Remaining) {
        let plan_pages = (self.cache.counts().total as usize / PLANS_PER_CACHE)
            .clamp(JOURNAL_DATA_PAGES_MIN, PLAN_PAGES_MAX);
        let mut listed = blob.dirty.borrow_mut();
        // Stable, since that is quick where most is in order already.
        listed.sort();
        listed.dedup();
        let first = listed.partition_point(|page| page < next);
        let behind = listed.partition_point(|page| *page < end);
        let mut taken = DirtyPages::new();
        let (mut until, mut live) = (first, 0);
        for page in listed[first..behind].iter().take(plan_pages) {
            if let Some(frame) = self.cache.find(blob.key(*page))
                && self.cache.has(frame, FrameFlags::DIRTY)
            {
                live += usize::from(self.cache.has(frame, FrameFlags::JOURNALED));
                if live == JOURNAL_PAGES_MAX {
                    break;
                }
                if self.is_home(frame) {
                    self.cache.clear(frame, FrameFlags::DIRTY);
                } else {
                    let granules = self.cache.begin_write_back(frame);
                    taken.push(DirtyPage {
                        page: *page,
                        granules,
                    });
                }
            }
            until += 1;
            *next = page + 1;
        }
        listed.drain(first..until);
        let left = if listed.is_empty() {
            Remaining::Nothing
        } else if until < behind {
            Remaining::Ahead
        } else {
            Remaining::Behind
        };
        (taken, left)
    }

    /// True if a thread has taken a dirty page home, and nobody wrote to it since.
    fn is_home(&self, frame: FrameId) -> bool {
        let cache = &self.cache;
        cache.dirty_granules(frame) == 0
            && cache.home(frame) != 0
            && !cache.has(frame, FrameFlags::JOURNALED)
    }

    async fn write_back_pages(
        &self,
        blob: &Rc<Blob>,
        mut pages: DirtyPages,
        size: u64,
        aim: Aim,
    ) -> Result<()> {
        assert!(blob.map_lock.is_locked_exclusively(), "map_lock is held");
        let times = aim.times;
        let slot = SlotSizes::of(blob);
        if pages.is_empty() && size == slot.size && !(times && blob.has_new_times()) {
            return Ok(());
        }
        let valid_size = new_valid_size(slot, &pages, size);
        if valid_size > slot.valid_size && leaves_tail(slot, &pages) {
            let cover: ColdFuture<'_, _> = Box::pin(self.cover_tail(blob, slot, &mut pages));
            if let Err(error) = cover.await {
                self.redirty(blob, &pages, &[]);
                return Err(error);
            }
        }
        let mut plan = Plan::default();
        let planned = self.plan(blob, slot, &pages, size, aim, &mut plan);
        if let Err(error) = planned.await {
            if error.errno() == Errno::NOSPC && !self.overwrites_in_place() {
                let in_place: ColdFuture<'_, _> =
                    Box::pin(self.write_back_in_place(blob, pages, size, times));
                return in_place.await;
            }
            self.redirty(blob, &pages, &[]);
            return Err(error);
        }
        let Plan { journal, mut home } = plan;
        let mut result = self.write_pieces(blob, &mut home).await;
        if result.is_ok() {
            result = self
                .map_pieces(blob, &journal, &mut home, size, valid_size, times)
                .await;
        }
        if let Err(error) = result {
            self.redirty(blob, &journal, &home);
            blob.shared.note_error(error.errno());
            return Err(error);
        }
        self.frame_idle.notify_all();
        Ok(())
    }

    /// There is no room for data to move: it goes through the journal to where it is, a few pages
    /// at a time.
    async fn write_back_in_place(
        &self,
        blob: &Rc<Blob>,
        mut pages: DirtyPages,
        size: u64,
        times: bool,
    ) -> Result<()> {
        assert!(blob.map_lock.is_locked_exclusively(), "map_lock is held");
        while !pages.is_empty() {
            let few = pages.len().min(JOURNAL_PAGES_MAX);
            let rest: DirtyPages = pages.drain(few..).collect();
            let slot = SlotSizes::of(blob);
            let size = if rest.is_empty() {
                size
            } else {
                slot.size.max(first_clean(&pages)).min(size)
            };
            let valid_size = new_valid_size(slot, &pages, size);
            let times = times && rest.is_empty();
            let done = self.map_pieces(blob, &pages, &mut [], size, valid_size, times);
            if let Err(error) = done.await {
                pages.extend(rest);
                self.redirty(blob, &pages, &[]);
                blob.shared.note_error(error.errno());
                return Err(error);
            }
            pages = rest;
        }
        self.frame_idle.notify_all();
        Ok(())
    }

    /// If the page of the valid size isn't among `pages`, its bytes behind the valid size become
    /// zeroes, in the same transaction, before the valid size passes its end.
    async fn cover_tail(
        &self,
        blob: &Rc<Blob>,
        slot: SlotSizes,
        pages: &mut DirtyPages,
    ) -> Result<()> {
        assert!(blob.map_lock.is_locked_exclusively(), "map_lock is held");
        let tail = (slot.valid_size / PAGE) as u32;
        let at = pages.partition_point(|taken| taken.page < tail);
        if let Source::Frame(frame) = self.source(blob, tail, 1).await? {
            let gap = granules((slot.valid_size % PAGE) as usize..PAGE_BYTES);
            let granules = self.cache.begin_write_back(frame) | gap;
            let taken = DirtyPage {
                page: tail,
                granules,
            };
            pages.insert(at, taken);
        }
        Ok(())
    }

    /// Decides which pages go through the journal and which home, and takes space for those
    /// without. The caller passes the place for the plan: its future would have it twice otherwise.
    async fn plan(
        &self,
        blob: &Rc<Blob>,
        slot: SlotSizes,
        pages: &[DirtyPage],
        size: u64,
        aim: Aim,
        plan: &mut Plan,
    ) -> Result<()> {
        assert!(blob.map_lock.is_locked_exclusively(), "map_lock is held");
        let cache = &self.cache;
        let few = self.fits_into_journal(pages, aim);
        let is_live = |taken: &DirtyPage| {
            let frame = cache.find(blob.key(taken.page));
            frame.is_some_and(|frame| cache.has(frame, FrameFlags::JOURNALED))
                && !planted(Bug::LiveBytesOverwritten)
        };
        // Where a transaction is needed anyway, all of few pages join it, and the commit waits for
        // the device once. With checksums it always is.
        let mut transacts = size != slot.size
            || !self.overwrites_in_place()
            || aim.times && blob.has_new_times()
            || pages.iter().any(is_live);
        if few && !transacts {
            for taken in pages {
                let entry = self.map(blob, taken.page).await?;
                let end = (u64::from(taken.page) + 1) * PAGE;
                transacts |= !matches!(entry, MapEntry::Extent(extent) if !extent.unwritten)
                    || end.min(size) > slot.valid_size;
            }
        }
        let small = transacts && few;
        let home: DirtyPages;
        (plan.journal, home) = pages
            .iter()
            .copied()
            .partition(|taken| small || is_live(taken));
        if !home.is_empty() {
            let take: ColdFuture<'_, _> = Box::pin(self.take_homes(blob, &home));
            plan.home = take.await?;
        }
        Ok(())
    }

    /// True if all of these pages may go through the journal, and that is cheaper.
    fn fits_into_journal(&self, pages: &[DirtyPage], aim: Aim) -> bool {
        let bytes_max = aim.journal_bytes_max;
        let bytes: u32 = pages
            .iter()
            .map(|taken| taken.granules.count_ones() * 64)
            .sum();
        let pages_max = (bytes_max as usize / PAGE_BYTES).max(JOURNAL_DATA_PAGES_MIN);
        let ignored = bytes_max > JOURNAL_DATA_BYTES_MIN && planted(Bug::UnboundedJournalData);
        bytes <= bytes_max && pages.len() <= pages_max && runs(pages) <= self.pieces_max()
            || ignored
    }

    /// Runs the transaction that maps pages written home and carries journaled pages.
    async fn map_pieces(
        &self,
        blob: &Rc<Blob>,
        journal: &[DirtyPage],
        home: &mut [Piece],
        size: u64,
        valid_size: u64,
        times: bool,
    ) -> Result<()> {
        assert!(blob.map_lock.is_locked_exclusively(), "map_lock is held");
        assert!(
            journal.len() <= JOURNAL_PAGES_MAX,
            "a transaction stays within its bounds"
        );
        // All but the last transaction only map: beyond the valid size nothing is read, below it
        // were holes.
        while (home.iter().filter(|piece| piece.changes_map())).count() > self.pieces_max() {
            self.map_some(blob, home).await?;
        }
        if valid_size > blob.slot.borrow().valid_size {
            self.cover_gap(blob, journal, home, valid_size).await?;
        }
        let slot = SlotSizes::of(blob);
        let changes = !journal.is_empty()
            || home.iter().any(Piece::changes_map)
            || size != slot.size
            || valid_size != slot.valid_size
            || (times && blob.has_new_times());
        if changes {
            let store = self;
            let near = self.allocation_hint(blob);
            let (mut atime, mut mtime) = (None, None);
            store
                .transact_upkeep(|txn| {
                    // Explicit times set while this waited have taken them back.
                    (atime, mtime) = (blob.atime.get(), blob.mtime.get());
                    let mut slot = txn.slot(blob.id)?;
                    let address = blob.id.slot;
                    for piece in home.iter() {
                        map_piece(txn, &mut slot, address, piece)?;
                    }
                    for taken in journal {
                        self.journal_page(txn, blob, &mut slot, *taken, size, near)?;
                    }
                    slot.size = slot.size.max(size);
                    slot.valid_size = slot.valid_size.max(valid_size);
                    if let Some(time) = atime {
                        (slot.atime, slot.atime_ns) = (time.seconds, time.nanoseconds);
                    }
                    if let Some(time) = mtime {
                        (slot.mtime, slot.mtime_ns) = (time.seconds, time.nanoseconds);
                        (slot.ctime, slot.ctime_ns) =
                            (slot.ctime, slot.ctime_ns).max((time.seconds, time.nanoseconds));
                    }
                    txn.put(blob.id, slot)
                })
                .await?;
            blob.note_change(self.whole.progress.point());
            if blob.atime.get() == atime {
                blob.atime.set(None);
            }
            if blob.mtime.get() == mtime {
                blob.mtime.set(None);
            }
        }
        let cache = &self.cache;
        for taken in journal {
            if let Some(frame) = cache.find(blob.key(taken.page)) {
                cache.clear(frame, FrameFlags::WRITEBACK);
                blob.allocation_hint.set(cache.home(frame) + 1);
            }
        }
        for piece in home {
            blob.allocation_hint
                .set(piece.home + u64::from(piece.pages));
            for index in 0..piece.pages {
                if let Some(frame) = cache.find(blob.key(piece.page + index)) {
                    cache.set_home(frame, piece.home + u64::from(index));
                    cache.clear(frame, FrameFlags::WRITEBACK);
                }
            }
        }
        Ok(())
    }

    /// Most pieces that one transaction maps.
    fn pieces_max(&self) -> usize {
        match self.checksums {
            Some(_) => SUMMED_PIECES_PER_TRANSACTION,
            None => PIECES_PER_TRANSACTION,
        }
    }

    /// Pages between the old valid size and the new one that are allocated but were not written
    /// become unwritten: the content of the device there is not the blob's. It happens before the
    /// valid size moves, in as many transactions as it takes.
    pub(crate) async fn cover_gap(
        &self,
        blob: &Rc<Blob>,
        journal: &[DirtyPage],
        home: &[Piece],
        valid_size: u64,
    ) -> Result<()> {
        assert!(blob.map_lock.is_locked_exclusively(), "map_lock is held");
        let mut written: SmallVec<[(u32, u32); 8]> = SmallVec::new();
        written.extend(journal.iter().map(|taken| (taken.page, 1)));
        written.extend(home.iter().map(|piece| (piece.page, piece.pages)));
        written.sort_unstable();
        let mut next = blob.slot.borrow().valid_size.div_ceil(PAGE);
        for (page, pages) in written {
            if u64::from(page) > next {
                let gap: ColdFuture<'_, _> =
                    Box::pin(self.mark_unwritten(blob, next, page.into(), Intent::Upkeep));
                gap.await?;
            }
            next = next.max(u64::from(page) + u64::from(pages));
        }
        debug_assert!(next >= valid_size.div_ceil(PAGE));
        Ok(())
    }

    /// Maps some of the pieces that were written home, in a separate transaction.
    async fn map_some(&self, blob: &Rc<Blob>, home: &mut [Piece]) -> Result<()> {
        assert!(blob.map_lock.is_locked_exclusively(), "map_lock is held");
        let some = home
            .iter_mut()
            .filter(|piece| piece.changes_map())
            .take(self.pieces_max());
        let some: SmallVec<[&mut Piece; PIECES_PER_TRANSACTION]> = some.collect();
        self.transact_upkeep(|txn| {
            let mut slot = txn.slot(blob.id)?;
            for piece in &some {
                map_piece(txn, &mut slot, blob.id.slot, piece)?;
            }
            txn.put(blob.id, slot)
        })
        .await?;
        for piece in some {
            for index in 0..piece.pages {
                if let Some(frame) = self.cache.find(blob.key(piece.page + index)) {
                    self.cache.set_home(frame, piece.home + u64::from(index));
                }
            }
            (piece.new, piece.unwritten, piece.replaces) = (false, false, false);
            piece.sums = Sums::default();
        }
        Ok(())
    }

    /// Stages one page that goes through the journal. A new page was promised.
    pub(crate) fn journal_page(
        &self,
        txn: &mut Transaction<'_>,
        blob: &Blob,
        slot: &mut Slot,
        taken_on: DirtyPage,
        size: u64,
        near: u64,
    ) -> Result<(), Stop> {
        assert!(blob.map_lock.is_locked_exclusively(), "map_lock is held");
        let (page, dirty) = (taken_on.page, taken_on.granules);
        let cache = &self.cache;
        let frame = cache
            .find(blob.key(page))
            .ok_or(Stop::Fail(Error::new(Errno::IO)))?;
        let start = u64::from(page) * PAGE;
        let in_page = |bytes: u64| bytes.saturating_sub(start).min(PAGE) as usize;
        let mut valid = in_page(slot.valid_size);
        let entry = extents::lookup(txn, slot, blob.id.slot, page)?;
        let home = match self.within_volume(entry)? {
            MapEntry::Extent(extent) => {
                if extent.unwritten {
                    extents::mark_written(
                        txn,
                        slot,
                        blob.id.slot,
                        u64::from(page)..u64::from(page) + 1,
                    )?;
                    valid = 0;
                }
                extent.physical + u64::from(page - extent.logical)
            }
            MapEntry::Hole { .. } => {
                let run = txn.take_data(near, 1)?;
                txn.use_promise(1);
                let extent = Extent {
                    logical: page,
                    pages: 1,
                    physical: run.page,
                    unwritten: false,
                };
                extents::insert(txn, slot, blob.id.slot, extent)?;
                valid = 0;
                run.page
            }
        };
        txn.forget_checksum(home)?;
        // The bytes at home beyond the valid size are not the blob's: journal them up to the end of
        // the file.
        let end = if slot.valid_size >= start + PAGE {
            PAGE_BYTES
        } else {
            in_page(size.max(slot.valid_size))
        };
        let mask = dirty | granules(valid..end);
        txn.journal_data(frame, home, mask);
        Ok(())
    }

    /// A write-back failed: its pages are dirty again.
    fn redirty(&self, blob: &Rc<Blob>, journal: &[DirtyPage], home: &[Piece]) {
        assert!(blob.map_lock.is_locked_exclusively(), "map_lock is held");
        self.give_back(home);
        let moving = home.iter().filter(|piece| piece.replaces);
        self.whole
            .reservations
            .end(moving.map(|piece| u64::from(piece.pages)).sum());
        // A failed write left unknown content on the device: these pages go again as a whole.
        let home = home.iter().flat_map(|piece| {
            (piece.page..piece.page + piece.pages).map(|page| DirtyPage {
                page,
                granules: u64::MAX,
            })
        });
        let mut dirty = blob.dirty.borrow_mut();
        for taken in journal.iter().copied().chain(home) {
            if let Some(frame) = self.cache.find(blob.key(taken.page)) {
                self.cache.undo_write_back(frame, taken.granules);
                dirty.push(taken.page);
            }
        }
        drop(dirty);
        blob.shared.owe_sync();
        self.write_back.dirty.add(blob);
        self.frame_idle.notify_all();
    }
}

/// True if the valid size ends inside a page that isn't among these.
fn leaves_tail(slot: SlotSizes, pages: &[DirtyPage]) -> bool {
    let tail = (slot.valid_size / PAGE) as u32;
    !slot.valid_size.is_multiple_of(PAGE)
        && pages
            .binary_search_by_key(&tail, |taken| taken.page)
            .is_err()
}

/// Runs of consecutive pages.
fn runs(pages: &[DirtyPage]) -> usize {
    let breaks = pages
        .windows(2)
        .filter(|two| two[1].page != two[0].page + 1);
    breaks.count() + 1
}

/// Most pages of data that one transaction carries.
const JOURNAL_PAGES_MAX: usize = 24;

/// End of the data that precedes the first page not in `pages`.
fn first_clean(pages: &[DirtyPage]) -> u64 {
    (pages.last()).map_or(0, |last| (u64::from(last.page) + 1) * PAGE)
}

/// The valid size once `pages` are on the device.
pub(crate) fn new_valid_size(slot: SlotSizes, pages: &[DirtyPage], size: u64) -> u64 {
    slot.valid_size.max(first_clean(pages).min(size))
}
