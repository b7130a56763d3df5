//! Bringing metadata pages into the cache, verified.

use crate::cache::FrameId;
use crate::cache::FrameKey;
use crate::format::PageKind;
use crate::metadata::pages::Stop;
use adit_base::breakdown::{self, Layer};
use adit_base::{Errno, Error, Result};
use adit_block::Operation;

use crate::state::{ColdFuture, InFlight, Store};

impl Store {
    /// Brings a metadata page into the cache, verified.
    pub(crate) fn load(&self, page: u64, kind: PageKind) -> ColdFuture<'_, Result<()>> {
        Box::pin(self.load_page(page, kind))
    }

    /// Loads a page like [`Store::load`]. If it is a damaged group map, the allocator avoids the
    /// group from then on: another group may have room, and an operation that only verifies its
    /// pages goes on. (A read error is returned: the next read may succeed.) A group with damaged
    /// checksums gets no more data.
    pub(super) async fn load_or_avoid(&self, page: u64, kind: PageKind) -> Result<()> {
        match self.load(page, kind).await {
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
    }

    /// Prepares a stopped closure to run again.
    pub(crate) async fn unstop(&self, stop: Stop) -> Result<()> {
        match stop {
            Stop::Fail(error) => Err(error),
            Stop::Miss(page, kind) => self.load_or_avoid(page, kind).await,
            Stop::Busy(page) => {
                self.load_ended(page).await;
                Ok(())
            }
            Stop::Room => unreachable!("only transactions ask for room"),
        }
    }

    /// Waits while another task loads a metadata page.
    pub(super) async fn load_ended(&self, page: u64) {
        let key = FrameKey::meta(page);
        while (self.cache.find(key)).is_some_and(|frame| self.cache.is_loading(frame)) {
            self.frame_idle.wait().await;
        }
    }

    /// Makes at least `count` frames evictable for metadata: the others are live or loading. They
    /// are never dirty data: write-back needs frames itself, so data leaves it some
    /// ([`FRAMES_LEFT_BY_DATA`](crate::cache::FRAMES_LEFT_BY_DATA)).
    pub(super) fn make_room(&self, count: usize) -> ColdFuture<'_, Result<()>> {
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
        if page >= self.layout.get().volume_pages || page < self.layout.get().state_page {
            return Err(Error::with(
                Errno::UCLEAN,
                format!("follow metadata to page {page}, which can't hold {kind:?}"),
            ));
        }
        self.load_ended(page).await;
        let key = FrameKey::meta(page);
        if self.cache.find(key).is_some() {
            return Ok(());
        }
        let frame = self.allocate_frame().await?;
        if self.cache.find(key).is_some() {
            self.cache.free_allocated(frame);
            return self.load(page, kind).await;
        }
        self.cache.insert_loading(frame, key, kind as u8);
        self.cache.set_home(frame, page);
        let mut request = self.request(Operation::Read, page);
        request.buffers.push(self.cache.load_buffer(frame));
        let loading = InFlight::begin(&self.loading);
        let completion = self.reactor.submit(request).await;
        drop(loading);
        let read = completion.result;
        drop(completion.request);
        let result = read
            .map_err(|errno| self.failed_read(errno, format!("read metadata page {page}")))
            .and_then(|()| {
                self.cache
                    .with_loading(frame, |bytes| self.verify_metadata(page, kind, bytes))
            });
        match &result {
            Ok(()) => self.cache.loaded(frame),
            Err(_) => self.cache.remove(frame),
        }
        self.frame_idle.notify_all();
        result
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
        if self.volume.checksum(page, bytes, 0) != crc {
            return damaged("checksum does not match");
        }
        if bytes[5] != kind as u8 {
            return damaged("holds something else");
        }
        Ok(())
    }
}
