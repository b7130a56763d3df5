//! Bringing metadata pages into the cache, verified.
//!
//! Inodes that were made together lie together, and a walk through a tree needs all of them, in the
//! order of names. So the second slot page that is missing in a window (`state/slot_misses.rs`)
//! brings those around it along.

use super::View;
use crate::cache::FrameId;
use crate::cache::FrameKey;
use crate::format::PageKind;
use crate::metadata::pages::Stop;
use adit_base::breakdown::{self, Layer};
use adit_base::{Errno, Error, Result};
use adit_block::Operation;

use adit_reactor::sync::join_all;
use smallvec::SmallVec;
use std::ops::Range;

use crate::state::{ColdFuture, InFlight, Store, Work};

impl Store {
    /// Brings a metadata page into the cache of its partition, verified.
    pub(crate) fn load(&self, page: u64, kind: PageKind) -> ColdFuture<'_, Result<()>> {
        match self.owner(page) {
            // Each partition has its own copy of the state page.
            _ if kind == PageKind::State => Box::pin(self.load_page(page, kind)),
            own if own == self.partition => Box::pin(self.load_page(page, kind)),
            other => self.ask(other, Work::Load(page, kind)),
        }
    }

    /// Loads a page like [`Store::load`]. If it is a damaged group map, the allocator avoids the
    /// group from then on: another group may have room, and an operation that only verifies its
    /// pages goes on. (A read error is returned: the next read may succeed.) A group with damaged
    /// checksums gets no more data.
    pub(crate) fn load_or_avoid(&self, page: u64, kind: PageKind) -> ColdFuture<'_, Result<()>> {
        Box::pin(async move {
            if kind != PageKind::State && self.owner(page) != self.partition {
                return self.load(page, kind).await;
            }
            match self.load_page(page, kind).await {
                Err(error)
                    if kind == PageKind::GroupMap
                        && error.errno() == Errno::UCLEAN
                        && self.space.borrow_mut().avoid(page) =>
                {
                    let volume = self.reactor.name();
                    tracing::error!(%volume, %error, "nothing is allocated in this group: run `adit check`");
                    Ok(())
                }
                Err(error) if kind == PageKind::Checksums && error.errno() == Errno::UCLEAN => {
                    self.space.borrow_mut().avoid_data(page);
                    Err(error)
                }
                loaded => loaded,
            }
        })
    }

    /// Prepares a stopped closure to run again.
    pub(crate) async fn unstop(&self, stop: Stop) -> Result<()> {
        match stop {
            Stop::Fail(error) => Err(error),
            Stop::Miss(page, kind) => self.load_or_avoid(page, kind).await,
            Stop::Busy(page) => self.load_ended(page).await,
            Stop::Room | Stop::Group(_) => unreachable!("only transactions ask for room"),
            Stop::Partition(_) => unreachable!("the closure runs again beside it"),
        }
    }

    /// Waits while another task loads a metadata page.
    pub(super) async fn load_ended(&self, page: u64) -> Result<()> {
        let owner = self.owner(page);
        if owner != self.partition {
            // That one's kind is known there.
            return self.ask(owner, Work::LoadEnded(page)).await;
        }
        self.own_load_ended(page).await;
        Ok(())
    }

    /// Waits while another task loads a page of this partition.
    pub(crate) async fn own_load_ended(&self, page: u64) {
        let key = FrameKey::meta(page);
        while (self.cache.find(key)).is_some_and(|frame| self.cache.is_loading(frame)) {
            self.frame_idle.wait().await;
        }
    }

    /// Makes at least `count` frames evictable for metadata: the others are live or loading. They
    /// are never dirty data: write-back needs frames itself, so data leaves it some
    /// ([`FRAMES_LEFT_BY_DATA`](crate::cache::FRAMES_LEFT_BY_DATA)).
    pub(crate) fn make_room(&self, count: usize) -> ColdFuture<'_, Result<()>> {
        Box::pin(async move {
            if self.cache.available() < count && self.cache.counts().journaled > 0 {
                self.checkpoint_all().await?;
            }
            if self.cache.available() < count {
                if self.loading.get() == 0 {
                    return Err(self.cache_too_small());
                }
                self.frame_idle.wait().await;
            } else {
                self.reactor.yield_now().await; // clean ones may be pinned at the moment
            }
            Ok(())
        })
    }

    pub(crate) fn cache_too_small(&self) -> Error {
        let bytes = self.frames.bound_bytes();
        let what = format!("the page cache of {bytes} bytes is too small: all of it is in use");
        Error::with(Errno::NOMEM, what)
    }

    /// A frame, after making room if need be.
    pub(crate) async fn allocate_frame(&self) -> Result<FrameId> {
        loop {
            let allocating = breakdown::enter(Layer::Cache);
            let frame = self.cache.allocate();
            drop(allocating);
            if let Some(frame) = frame {
                return Ok(frame);
            }
            self.make_room(1).await?;
        }
    }

    async fn load_page(&self, page: u64, kind: PageKind) -> Result<()> {
        if kind == PageKind::Slots
            && let Some(window) = self.slot_misses.note(page)
        {
            match self.load_run(page, kind, window).await {
                // The page itself may be readable.
                Err(error) if error.errno() == Errno::IO => {}
                loaded => return loaded,
            }
        }
        self.load_run(page, kind, page..page + 1).await
    }

    /// Loads a page, and at the same time the slot pages in `window` that are not in the cache.
    async fn load_run(&self, page: u64, kind: PageKind, window: Range<u64>) -> Result<()> {
        if page >= self.layout.get().volume_pages || page < self.layout.get().state_page {
            return Err(Error::with(
                Errno::UCLEAN,
                format!("follow metadata to page {page}, which can't hold {kind:?}"),
            ));
        }
        self.own_load_ended(page).await;
        let key = FrameKey::meta(page);
        if self.cache.find(key).is_some() {
            return Ok(());
        }
        let frame = self.allocate_frame().await?;
        if self.cache.find(key).is_some() {
            self.cache.free_allocated(frame);
            return Box::pin(self.load_page(page, kind)).await;
        }
        if kind == PageKind::State && self.partition != 0 {
            self.make_ledger(frame);
            return Ok(());
        }
        self.begin_load(frame, page, kind);
        let mut loading = SmallVec::<[(u64, FrameId); 1]>::from([(page, frame)]);
        self.take_neighbours(window, &mut loading);
        let in_flight = InFlight::begin(&self.loading);
        let adjacent = loading.chunk_by(|(page, _), (next, _)| page + 1 == *next);
        let reads = adjacent.map(|run| {
            let mut request = self.request(Operation::Read, run[0].0);
            let buffers = run.iter().map(|(_, frame)| self.cache.load_buffer(*frame));
            request.buffers.extend(buffers);
            self.reactor.submit(request)
        });
        let mut read = Ok(());
        for completion in join_all(reads).await {
            read = read.and(completion.result);
        }
        drop(in_flight);
        // Slot pages, the only ones that come along, verify slot by slot.
        let result = read
            .map_err(|errno| self.failed_read(errno, format!("read metadata page {page}")))
            .and_then(|()| {
                self.cache
                    .with_loading(frame, |bytes| self.verify_metadata(page, kind, bytes))
            });
        for (_, frame) in loading {
            match &result {
                Ok(()) => self.cache.loaded(frame),
                Err(_) => self.cache.remove(frame),
            }
        }
        self.frame_idle.notify_all();
        result
    }

    /// Takes frames for the other slot pages in `window` that are not in the cache, as far as the
    /// window's map is known and frames can be had now.
    fn take_neighbours(&self, window: Range<u64>, loading: &mut SmallVec<[(u64, FrameId); 1]>) {
        let count = (window.end - window.start) as usize;
        if count == 1 || !self.is_roomy(count) {
            return;
        }
        let slots = (self.space.borrow()).slot_pages_in(&View::of_own(self), window);
        for near in slots.unwrap_or_default() {
            if self.cache.find(FrameKey::meta(near)).is_some() {
                continue;
            }
            let Some(frame) = self.cache.allocate() else {
                break;
            };
            self.begin_load(frame, near, PageKind::Slots);
            loading.push((near, frame));
        }
        loading.sort_unstable_by_key(|(page, _)| *page);
    }

    /// True if so many pages ahead push out no pages that an operation needs at the moment.
    fn is_roomy(&self, pages: usize) -> bool {
        self.cache.available() / 8 >= pages
    }

    /// Enters a frame that is about to be loaded with a page.
    fn begin_load(&self, frame: FrameId, page: u64, kind: PageKind) {
        (self.cache).insert_loading(frame, FrameKey::meta(page), kind as u8);
        self.cache.set_home(frame, page);
    }

    /// Loads pages of a kind at the same time, unless the first one is in the cache. A page that
    /// can't be loaded is left to the reader that needs it.
    pub async fn load_ahead(&self, pages: Vec<u64>, kind: PageKind) {
        let is_absent = |page: &u64| self.cache.find(FrameKey::meta(*page)).is_none();
        if pages.first().is_some_and(is_absent) && self.is_roomy(pages.len()) {
            let loads = pages.into_iter().filter(is_absent);
            join_all(loads.map(|page| self.load(page, kind))).await;
        }
    }

    fn verify_metadata(&self, page: u64, kind: PageKind, bytes: &[u8]) -> Result<()> {
        if !kind.has_header() {
            return Ok(()); // slots verify one by one
        }
        let damaged = |what: &str| {
            Err(Error::with(
                Errno::UCLEAN,
                format!("use metadata page {page} ({kind:?}): {what}"),
            ))
        };
        let crc = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if self.whole.volume.checksum(page, bytes, 0) != crc {
            return damaged("checksum does not match");
        }
        if bytes[5] != kind as u8 {
            return damaged("holds something else");
        }
        Ok(())
    }
}
