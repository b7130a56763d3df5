//! Chooses homes for dirty pages, and writes the pages there.
//!
//! ```text
//!   taken pages ──▶ pieces: a place that they have, or fresh pages ──▶ written from pinned frames ──▶ a transaction maps them
//! ```
//!
//! Content with a checksum is not overwritten: its piece *replaces* it, with fresh pages whose
//! space is reserved first. Nor is content that was zeroed or cut off, before that is durable.
//! `data/write_back.rs` decides which pages go home, and what else their transaction carries.

use crate::blob::Blob;
use crate::commit::Transaction;
use crate::data::checksums::Sums;
use crate::data::write_back::DirtyPage;
use crate::format::{MAP_EXTENTS, RawExtent, SLOT_EXTENTS, Slot};
use crate::metadata::extents::{self, Extent, MapEntry};
use crate::metadata::pages::Stop;
use crate::metadata::space::Run;
use crate::state::{ColdFuture, Store, Work};
use adit_base::simulation::{Bug, planted};
use adit_base::{Error, PAGE_BYTES, Result};
use adit_block::Buffer;
use smallvec::SmallVec;
use std::rc::Rc;
use zerocopy::FromBytes;

const PAGE: u64 = PAGE_BYTES as u64;
/// Most pages of a piece on a volume whose data has checksums.
const SUMMED_PAGES_MAX: u32 = crate::format::CHECKSUMS_PER_PAGE as u32;
/// Most pages of one write home.
const HOME_PAGES_MAX: usize = 128;

/// A run of dirty pages on its way home.
pub(crate) struct Piece {
    pub(crate) page: u32,
    pub(crate) pages: u32,
    pub(crate) home: u64,
    /// Fresh pages, taken for it and not yet in the map.
    pub(crate) new: bool,
    /// In the map as unwritten.
    pub(crate) unwritten: bool,
    /// Other pages hold the old content: they are freed.
    pub(crate) replaces: bool,
    /// The checksums of the written pages.
    pub(crate) sums: Sums,
}

pub(crate) type Pieces = SmallVec<[Piece; 4]>;

impl Piece {
    pub(crate) fn changes_map(&self) -> bool {
        self.new || self.unwritten || !self.sums.is_empty()
    }
}

impl Store {
    /// Finds or takes a place for each page that goes home. ENOSPC if old content would have to
    /// move and can't.
    pub(crate) async fn take_homes(&self, blob: &Rc<Blob>, pages: &[DirtyPage]) -> Result<Pieces> {
        assert!(blob.map_lock.is_locked_exclusively(), "map_lock is held");
        let moving = self.count_moving(blob, pages).await?;
        if moving > 0 {
            // It can be written through the journal instead, but its map can't do without a node.
            self.reserve_spare(moving).await?;
        }
        let taken = self.take_places(blob, pages).await;
        if taken.is_err() {
            self.whole.reservations.end(moving);
        }
        taken
    }

    /// How many of these pages have content that they must not be written over.
    async fn count_moving(&self, blob: &Rc<Blob>, pages: &[DirtyPage]) -> Result<u64> {
        let mut moving = 0;
        if !self.overwrites_in_place() {
            for taken in pages {
                let entry = self.map(blob, taken.page).await?;
                moving += u64::from(self.movable_pages(blob, taken.page, entry).min(1));
            }
        }
        Ok(moving)
    }

    /// How many pages from `page` on have content that must not be written over: those with a
    /// checksum.
    fn movable_pages(&self, blob: &Blob, page: u32, entry: MapEntry) -> u32 {
        let valid_pages = blob.slot.borrow().valid_size.div_ceil(PAGE);
        match entry {
            MapEntry::Extent(extent) if !extent.unwritten && !self.overwrites_in_place() => {
                let end = extent.end().min(valid_pages);
                end.saturating_sub(page.into()) as u32
            }
            _ => 0,
        }
    }

    async fn take_places(&self, blob: &Rc<Blob>, pages: &[DirtyPage]) -> Result<Pieces> {
        let mut pieces = Pieces::new();
        let mut index = 0;
        while index < pages.len() {
            let page = pages[index].page;
            let run = pages[index..]
                .iter()
                .zip(page..)
                .take_while(|(have, want)| have.page == *want)
                .count() as u32;
            let run = match self.checksums {
                Some(_) => run.min(SUMMED_PAGES_MAX),
                None => run,
            };
            let entry = self.map(blob, page).await;
            let moving = (entry.as_ref()).map_or(0, |found| self.movable_pages(blob, page, *found));
            let near = || {
                pieces
                    .last()
                    .filter(|last: &&Piece| last.page + last.pages == page)
                    .map_or_else(
                        || self.allocation_hint(blob),
                        |last| last.home + u64::from(last.pages),
                    )
            };
            let piece = match entry {
                Ok(MapEntry::Extent(_)) if moving > 0 => self
                    .take_run(near(), run.min(moving))
                    .await
                    .map(|taken| Piece {
                        page,
                        pages: taken.pages,
                        home: taken.page,
                        new: true,
                        unwritten: false,
                        replaces: true,
                        sums: Sums::default(),
                    }),
                Ok(MapEntry::Extent(extent)) => {
                    let skip = page - extent.logical;
                    Ok(Piece {
                        page,
                        pages: run.min(extent.pages - skip),
                        home: extent.physical + u64::from(skip),
                        new: false,
                        unwritten: extent.unwritten,
                        replaces: false,
                        sums: Sums::default(),
                    })
                }
                Ok(MapEntry::Hole { pages: hole }) => self
                    .take_run(near(), run.min(hole))
                    .await
                    .map(|taken| Piece {
                        page,
                        pages: taken.pages,
                        home: taken.page,
                        new: true,
                        unwritten: false,
                        replaces: false,
                        sums: Sums::default(),
                    }),
                Err(error) => Err(error),
            };
            match piece {
                Ok(piece) => {
                    index += piece.pages as usize;
                    pieces.push(piece);
                }
                Err(error) => {
                    self.give_back(&pieces);
                    return Err(error);
                }
            }
        }
        Ok(pieces)
    }

    /// Where new pages of a blob are best: behind the last that it got. 0: anywhere.
    pub(crate) fn allocation_hint(&self, blob: &Blob) -> u64 {
        let slot = blob.slot.borrow();
        if blob.allocation_hint.get() == 0 && slot.map_kind == MAP_EXTENTS && slot.map_count > 0 {
            let last = usize::from(slot.map_count).min(SLOT_EXTENTS) - 1;
            if let Ok((extent, _)) =
                RawExtent::read_from_prefix(&slot.payload[last * size_of::<RawExtent>()..])
            {
                let pages = extent.pages_and_physical & 0xffff;
                blob.allocation_hint
                    .set((extent.pages_and_physical >> 16) + pages);
            }
        }
        blob.allocation_hint.get()
    }

    async fn take_run(&self, near: u64, pages: u32) -> Result<Run> {
        let store = self;
        // The pages were reserved when their data was accepted.
        store
            .transact_upkeep(|txn| txn.take_uncommitted(near, pages))
            .await
    }

    pub(crate) fn give_back(&self, pieces: &[Piece]) {
        for piece in pieces.iter().filter(|piece| piece.new) {
            let run = Run {
                page: piece.home,
                pages: piece.pages,
            };
            match self.owner(run.page) {
                own if own == self.partition => self.space.borrow_mut().give_back(run),
                other => self.workers().begin(self, other, Work::GiveBack(run)),
            }
        }
    }

    /// Writes the pieces home, from pinned buffers.
    pub(crate) async fn write_pieces(&self, blob: &Rc<Blob>, pieces: &mut [Piece]) -> Result<()> {
        assert!(blob.map_lock.is_locked_exclusively(), "map_lock is held");
        if !self.overwrites_in_place()
            && pieces.iter().any(|piece| !piece.new)
            && !planted(Bug::ZeroedOverwritten)
        {
            // After a crash these places may have the content from before the truncation, and then
            // it can be read.
            let erased: ColdFuture<'_, _> = Box::pin(self.commit_through(blob.erased_at.get()));
            erased.await?;
        }
        let cache = &self.cache;
        let mut writes = Vec::new();
        for piece in pieces.iter_mut() {
            let mut at = 0;
            while at < piece.pages {
                let count = (piece.pages - at).min(HOME_PAGES_MAX as u32);
                let mut buffers: SmallVec<[Buffer; 4]> = SmallVec::new();
                for page in piece.page + at..piece.page + at + count {
                    let frame = cache
                        .find(blob.key(page))
                        .expect("frames in write-back stay in the cache");
                    let buffer = cache.buffer(frame);
                    let home = piece.home + u64::from(page - piece.page);
                    if let Some(sum) = self.sum_of(home, buffer.as_slice()) {
                        piece.sums.push(sum);
                    }
                    buffers.push(buffer);
                }
                writes.push((piece.home + u64::from(at), buffers));
                at += count;
                self.reactor.give_way().await; // adding up the checksums of these took its time
            }
        }
        // All of them are under way at once; then each is waited for, in order.
        let under_way: Vec<_> = writes
            .into_iter()
            .map(|(home, buffers)| self.submit_write(home, buffers))
            .collect();
        let mut result = Ok(());
        for write in under_way {
            if let Err(errno) = write.await.result {
                result = Err(Error::with(
                    errno,
                    format!("write data of blob {}", blob.id.slot),
                ));
            }
        }
        if !pieces.is_empty() {
            blob.home_sequence.set(self.whole.home_writes.note());
        }
        result
    }
}

/// Maps one piece that was written home. New pages were promised.
pub(crate) fn map_piece(
    txn: &mut Transaction<'_>,
    slot: &mut Slot,
    address: u64,
    piece: &Piece,
) -> Result<(), Stop> {
    let range = u64::from(piece.page)..u64::from(piece.page) + u64::from(piece.pages);
    txn.set_checksums(piece.home, piece.sums.as_slice())?;
    if piece.new {
        let run = Run {
            page: piece.home,
            pages: piece.pages,
        };
        if piece.replaces {
            let mut replaced = Vec::new();
            extents::remove(txn, slot, address, range, usize::MAX, &mut replaced)?;
            for run in replaced {
                // No redo record names them: pages that go home have no live bytes.
                txn.free_run(run, false)?;
            }
        }
        txn.commit_run(run)?;
        txn.use_promise(piece.pages.into());
        let extent = Extent {
            logical: piece.page,
            pages: piece.pages,
            physical: piece.home,
            unwritten: false,
        };
        return extents::insert(txn, slot, address, extent);
    }
    match piece.unwritten {
        true => extents::mark_written(txn, slot, address, range),
        false => Ok(()),
    }
}
