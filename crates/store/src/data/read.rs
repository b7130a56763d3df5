//! Reads of blobs through the worker: missing pages come from the device.
//!
//! A miss loads the page, and for a sequential reader the pages that follow (`Streams`), with one
//! request into frames that are LOADING until the data is there. For a steady reader the next pages
//! load in the background, too, while it copies loaded ones and while it waits. Bytes beyond the
//! slot's `valid_size` become zeroes on the way. Holes and unwritten extents read as zeroes and
//! take no frame.

use crate::blob::{AHEAD_PAGES_MIN, Blob, LOAD_PAGES_MAX};
use crate::cache::FrameId;
use crate::format::PageKind;
use crate::metadata::extents::{Extent, MapEntry};
use crate::state::{ColdFuture, InFlight, Store};
use adit_base::breakdown::{self, Layer};
use adit_base::{PAGE_BYTES, Result, memory, steps};
use adit_block::{Buffer, Operation};
use smallvec::SmallVec;
use std::io::IoSliceMut;
use std::rc::Rc;

/// Where a page's content comes from.
pub(crate) enum Source {
    /// This frame has it.
    Frame(FrameId),
    /// It is all zeroes: a hole, unwritten, or beyond the valid size.
    Zero,
}

/// Whom a load is for.
enum Load<'m> {
    /// A call, which waits. The flag: it has loaded a page before. Only its first load tells
    /// whether a reader continues.
    For(&'m mut bool),
    /// A sequential reader that isn't there yet.
    Behind,
}

impl Store {
    /// Reads at `offset` through the cache and returns the bytes read: fewer than asked only at the
    /// end.
    pub async fn read(&self, blob: &Rc<Blob>, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let _shared = blob.lock.read().await;
        self.read_locked(blob, offset, buffer).await
    }

    /// Reads into several pieces of memory, one behind the other, through the cache or `direct`:
    /// one read, atomic with respect to changes of the blob. After an error in a later piece,
    /// returns the bytes before it.
    pub async fn read_vectored(
        &self,
        blob: &Rc<Blob>,
        offset: u64,
        buffers: &mut [IoSliceMut<'_>],
        direct: bool,
    ) -> Result<usize> {
        let _shared = blob.lock.read().await;
        let mut done = 0;
        for buffer in buffers {
            let at = offset.saturating_add(done as u64);
            let read = if direct {
                self.read_direct_locked(blob, at, buffer).await
            } else {
                self.read_locked(blob, at, buffer).await
            };
            match read {
                Ok(count) => {
                    done += count;
                    if count < buffer.len() {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Borrows bytes without a copy: at most to the end of their page, fewer at the end of the
    /// blob. Later writes don't change the buffer.
    pub async fn read_borrowed(&self, blob: &Rc<Blob>, offset: u64, len: usize) -> Result<Buffer> {
        let _shared = blob.lock.read().await;
        let within = (offset % PAGE_BYTES as u64) as usize;
        let len = blob.shared.readable(offset, len.min(PAGE_BYTES - within));
        if len == 0 {
            return Ok(Buffer::zeroed(0));
        }
        if blob.shared.is_mapped() {
            let mut bytes = vec![0; len];
            let read: ColdFuture<'_, _> = Box::pin(self.read_locked(blob, offset, &mut bytes));
            let count = read.await?;
            return Ok(Buffer::copy_of(&bytes[..count]));
        }
        let page = (offset / PAGE_BYTES as u64) as u32;
        match self.source_ahead(blob, page, 1, &mut false).await? {
            Source::Frame(frame) => Ok(self.cache.buffer(frame).slice(within..within + len)),
            Source::Zero => Ok(Buffer::zeroed(len)),
        }
    }
}

impl Store {
    /// Reads stored bytes and the stores of programs over them; the caller holds `blob.lock`.
    async fn read_locked(&self, blob: &Rc<Blob>, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let len = self.read_stored(blob, offset, buffer).await?;
        if let Some(mapped) = blob.mapped() {
            mapped.overlay(offset, &mut buffer[..len])?;
        }
        Ok(len)
    }

    /// Reads stored bytes, without the stores of programs; the caller holds `blob.lock`.
    pub(crate) async fn read_stored(
        &self,
        blob: &Rc<Blob>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        debug_assert!(blob.lock.is_locked(), "lock is held");
        let len = blob.shared.readable(offset, buffer.len());
        let end_page = ((offset + len as u64).div_ceil(PAGE_BYTES as u64)) as u32;
        let mut done = 0;
        let mut missed = false;
        while done < len {
            let at = offset + done as u64;
            let within = (at % PAGE_BYTES as u64) as usize;
            let count = (PAGE_BYTES - within).min(len - done);
            let page = (at / PAGE_BYTES as u64) as u32;
            steps::note(1);
            let source = self.source_ahead(blob, page, end_page - page, &mut missed);
            match source.await? {
                Source::Frame(frame) => {
                    let _in = breakdown::enter(Layer::Copy);
                    let bytes = &self.cache.page(frame).0;
                    memory::copy(
                        &bytes[within..within + count],
                        &mut buffer[done..done + count],
                    );
                }
                Source::Zero => buffer[done..done + count].fill(0),
            }
            done += count;
        }
        Ok(len)
    }
}

impl Store {
    /// Where page `page` of the blob is read from, loading up to `want` pages if it isn't in the
    /// cache. The caller holds the blob's `lock`, so that the map can't change.
    pub(crate) async fn source(&self, blob: &Rc<Blob>, page: u32, want: u32) -> Result<Source> {
        self.source_ahead(blob, page, want, &mut true).await
    }

    /// Finds the source of page `page`, and reads ahead for a sequential reader. `missed`: whether
    /// the call has loaded a page yet; only its first load tells whether the reader continues.
    async fn source_ahead(
        &self,
        blob: &Rc<Blob>,
        page: u32,
        want: u32,
        missed: &mut bool,
    ) -> Result<Source> {
        blob.assert_map_stays();
        loop {
            match self.cache.find(blob.key(page)) {
                Some(frame) if self.cache.is_loading(frame) => {
                    let mut streams = blob.streams.get();
                    let next = streams.catch_up(page);
                    blob.streams.set(streams);
                    if let Some(next) = next {
                        self.load_behind(blob, next);
                    }
                    self.frame_idle.wait().await;
                }
                // A thread may be overwriting it.
                Some(frame) if !self.recall_for(blob, frame) => self.wait_for_recall(blob).await,
                Some(frame) => return Ok(Source::Frame(frame)),
                None => match self.map(blob, page).await? {
                    MapEntry::Hole { .. } => return Ok(Source::Zero),
                    MapEntry::Extent(extent) if extent.unwritten => return Ok(Source::Zero),
                    MapEntry::Extent(_)
                        if u64::from(page) * PAGE_BYTES as u64 >= blob.slot.borrow().valid_size =>
                    {
                        return Ok(Source::Zero);
                    }
                    MapEntry::Extent(extent) => {
                        let load: ColdFuture<'_, _> =
                            Box::pin(self.load_data(blob, page, extent, want, Load::For(missed)));
                        load.await?;
                    }
                },
            }
        }
    }

    /// Loads pages from `page` on in the background, for a sequential reader that isn't there yet.
    fn load_behind(&self, blob: &Rc<Blob>, page: u32) {
        if self.whole.closing.is_set() || !self.reactor.device().capabilities().queued {
            return; // a thread would have to do it, and most likely the reader
        }
        let (store, blob) = (self.clone(), blob.clone());
        self.reactor.spawn_local(async move {
            let _shared = blob.lock.read().await;
            if u64::from(page) * PAGE_BYTES as u64 >= blob.slot.borrow().valid_size {
                return;
            }
            if let Ok(MapEntry::Extent(extent)) = store.map(&blob, page).await
                && !extent.unwritten
            {
                // A reader that needs an unreadable page loads it again, and gets the error.
                let load = store.load_data(&blob, page, extent, 1, Load::Behind);
                let _ = load.await;
            }
        });
    }

    /// Loads `page` and up to `want - 1` pages behind it in the same extent; more for a sequential
    /// reader.
    async fn load_data(
        &self,
        blob: &Rc<Blob>,
        page: u32,
        extent: Extent,
        want: u32,
        load: Load<'_>,
    ) -> Result<()> {
        blob.assert_map_stays();
        let valid_size = blob.slot.borrow().valid_size;
        let valid_pages = valid_size
            .div_ceil(PAGE_BYTES as u64)
            .min(u64::from(u32::MAX)) as u32;
        let in_extent = extent.logical + extent.pages - page;
        let mut streams = blob.streams.get();
        // In a small cache, many readers must not take each other's pages before they are read;
        // each has two loads.
        let most = LOAD_PAGES_MAX.min(self.cache.counts().total / 64);
        let ahead = match &load {
            Load::For(true) => 1,
            Load::For(false) => streams.ahead(page).min(most),
            Load::Behind => most,
        };
        let asked = want.max(ahead).min(LOAD_PAGES_MAX);
        let count = asked
            .min(in_extent)
            .min(valid_pages.saturating_sub(page))
            .max(1);
        let home = extent.physical + u64::from(page - extent.logical);
        let Some(sums) = self.sums(home, count).await? else {
            return Ok(()); // look again
        };
        let mut request = self.request(Operation::Read, home);
        let mut loading: SmallVec<[FrameId; 8]> = SmallVec::new();
        for index in 0..count {
            if self.cache.find(blob.key(page + index)).is_some() {
                break; // the first too: another reader may have come while this one looked up the map
            }
            // Only the page that was asked for is worth waiting for memory.
            let frame = match self.cache.allocate() {
                Some(frame) => frame,
                None if index > 0 || matches!(load, Load::Behind) => break,
                None => {
                    self.reclaim_frames(1).await?;
                    return Ok(()); // things have changed: look again
                }
            };
            self.cache
                .insert_loading(frame, blob.key(page + index), PageKind::Data as u8);
            self.cache.set_home(frame, home + u64::from(index));
            request.buffers.push(self.cache.load_buffer(frame));
            loading.push(frame);
        }
        if loading.is_empty() {
            return Ok(());
        }
        let behind = page + loading.len() as u32;
        let waits = match load {
            Load::For(missed) => {
                *missed = true;
                true
            }
            Load::Behind => false,
        };
        streams.note(page, asked, loading.len() as u32, waits);
        blob.streams.set(streams);
        if waits && ahead == most && most >= AHEAD_PAGES_MIN {
            self.load_behind(blob, behind);
        }
        let in_flight = InFlight::begin(&self.loading);
        if blob.extents_granted.get() {
            self.wait_for_recall(blob).await;
        }
        let completion = self.reactor.submit(request).await;
        drop(in_flight);
        let result = completion.result;
        drop(completion.request);
        let mut damaged = None;
        for (index, frame) in loading.iter().enumerate() {
            let sound = result.is_ok()
                && (self.cache)
                    .with_loading(*frame, |bytes| self.matches(home, index, &sums, bytes));
            if !sound {
                damaged = damaged.or(Some(index));
                self.cache.remove(*frame);
                continue;
            }
            let start = (u64::from(page) + index as u64) * PAGE_BYTES as u64;
            let valid = usize::try_from(valid_size.saturating_sub(start)).unwrap_or(usize::MAX);
            if valid < PAGE_BYTES {
                self.cache
                    .with_loading(*frame, |bytes| bytes[valid..].fill(0));
            }
            self.cache.loaded(*frame);
        }
        self.frame_idle.notify_all();
        if result.is_err() && loading.len() > want as usize {
            return Ok(()); // perhaps only the read-ahead failed: try again, for less
        }
        result.map_err(|errno| {
            let offset = u64::from(page) * PAGE_BYTES as u64;
            let blob = blob.id.slot;
            let what = format!("read blob {blob} at offset {offset} (device page {home})");
            self.failed_read(errno, what)
        })?;
        match damaged {
            // Another page may never be asked for, like any page that is loaded in the background.
            Some(0) if waits => Err(self.mismatch(blob.id.slot, page, home)),
            _ => Ok(()),
        }
    }
}
