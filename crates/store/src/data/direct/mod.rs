//! Direct IO: between the caller's memory and the device, coherent with the cache.
//!
//! A direct read takes cached pages from the cache and the rest from the device; where the device
//! has the newest bytes, the calling thread reads without the worker (`blob/published`). A direct
//! write of whole physical blocks of the device, in allocated, written pages, goes straight to them
//! and drops their frames, before and after, so that no page loaded meanwhile stays; then the
//! worker grants them, so the next write needs no worker (`blob/write_grant`). All other writes
//! (unaligned, new or live pages) take the cached path and are written back before the call
//! returns. On volumes with data checksums all direct writes do: see `Store::overwrite`.

use crate::blob::Blob;
use crate::blob::{DIRECT_BYTES_MAX, direct_read_unit, direct_write_unit};
use crate::cache::FrameFlags;
use crate::data::read::Source;
use crate::metadata::extents::{Extent, MapEntry};
use crate::state::{ColdFuture, Store};
use adit_base::clock::Timestamp;
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_block::{Buffer, Operation};
use std::rc::Rc;

const PAGE: u64 = PAGE_BYTES as u64;
/// Direct reads through the worker before it tries again to publish their extent.
const PUBLISH_AFTER: u32 = 16;
/// The worker checks this many pages in the time of a direct read.
const PAGES_PER_READ: u32 = 8;

impl Store {
    /// Reads at `offset` without filling the cache (but with the page in which the file ends). Any
    /// alignment works; whole logical blocks of the device (whole pages, where data has checksums)
    /// avoid a copy.
    pub async fn read_direct(
        &self,
        blob: &Rc<Blob>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let _shared = blob.lock.read().await;
        self.read_direct_locked(blob, offset, buffer).await
    }

    /// Writes at `offset`, past the cache where that is possible. As durable as any write: not
    /// before a sync.
    pub async fn write_direct(&self, blob: &Rc<Blob>, offset: u64, data: &[u8]) -> Result<()> {
        self.check_place(blob, offset, data.len() as u64)?;
        let aligned =
            (offset | data.len() as u64).is_multiple_of(self.write_unit()) && !data.is_empty();
        if aligned && self.overwrite(blob, offset, data).await? {
            return Ok(());
        }
        let through_the_cache: ColdFuture<'_, _> =
            Box::pin(self.write_through_the_cache(blob, offset, data, aligned));
        through_the_cache.await
    }

    async fn write_through_the_cache(
        &self,
        blob: &Rc<Blob>,
        offset: u64,
        data: &[u8],
        aligned: bool,
    ) -> Result<()> {
        self.write(blob, offset, data).await?;
        self.write_back(blob).await?;
        if aligned && !self.overwrites_in_place() {
            // A program that writes directly has its own cache.
            let _map = blob.map_lock.read().await;
            let _shared = blob.lock.read().await;
            let end = offset + data.len() as u64;
            for page in (offset / PAGE) as u32..(end / PAGE) as u32 {
                self.drop_clean_frames(blob, page, page + 1).await;
            }
        }
        Ok(())
    }
}

impl Store {
    /// Reads directly; the caller holds `blob.lock`.
    pub(crate) async fn read_direct_locked(
        &self,
        blob: &Rc<Blob>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        debug_assert!(blob.lock.is_locked(), "lock is held");
        let len = blob.shared.readable(offset, buffer.len());
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let within = (at % PAGE) as usize;
            let page = (at / PAGE) as u32;
            let part = (PAGE_BYTES - within).min(len - done);
            let rest = &mut buffer[done..len];
            done += match self.cache.find(blob.key(page)) {
                Some(frame) if self.cache.is_loading(frame) => {
                    self.frame_idle.wait().await;
                    0
                }
                Some(frame) if !self.recall_for(blob, frame) => {
                    self.wait_for_recall(blob).await;
                    0
                }
                Some(frame) => {
                    rest[..part].copy_from_slice(&self.cache.page(frame).0[within..within + part]);
                    part
                }
                None => self.read_device(blob, page, within, rest).await?,
            };
        }
        if let Some(mapped) = blob.mapped() {
            mapped.overlay(offset, &mut buffer[..len])?;
        }
        Ok(len)
    }

    /// Reads the start of `buffer` from page `page` on, from the device, as far as one request or
    /// one hole goes. Returns the number of bytes.
    async fn read_device(
        &self,
        blob: &Rc<Blob>,
        page: u32,
        within: usize,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let start = u64::from(page) * PAGE;
        let valid_size = blob.slot.borrow().valid_size;
        let part = (PAGE_BYTES - within).min(buffer.len());
        if start < valid_size && valid_size - start < PAGE {
            // Write-back of later pages may move this page although no program writes to it: see
            // `Store::cover_tail`.
            match self.source(blob, page, 1).await? {
                Source::Frame(frame) => {
                    buffer[..part].copy_from_slice(&self.cache.page(frame).0[within..within + part])
                }
                Source::Zero => buffer[..part].fill(0),
            }
            return Ok(part);
        }
        let extent = match self.map(blob, page).await? {
            MapEntry::Extent(extent) if !extent.unwritten && start < valid_size => extent,
            _ => {
                buffer[..part].fill(0);
                return Ok(part);
            }
        };
        self.publish_extent(blob, extent, valid_size);
        let home = extent.physical + u64::from(page - extent.logical);
        let failed = |errno| {
            let at = start + within as u64;
            let what = format!(
                "read blob {} at offset {at} (device page {home})",
                blob.id.slot
            );
            self.failed_read(errno, what)
        };
        let within = within as u64;
        let end = (extent.end() * PAGE).min(valid_size - valid_size % PAGE) - start;
        let most = (end - within).min(buffer.len().min(DIRECT_BYTES_MAX) as u64);
        let unit = match self.checksums {
            Some(_) => PAGE,
            None => direct_read_unit(self.reactor.device()),
        };
        let whole = most - most % unit;
        // One request, even of a whole page, rather than two.
        let whole = if within.is_multiple_of(unit) && (whole == most || most > PAGE - within) {
            whole
        } else {
            0
        };
        let pages = (within + whole).div_ceil(PAGE).max(1) as u32;
        let Some(sums) = self.sums(home, pages).await? else {
            return Ok(0); // look again
        };
        let mut request = self.request(Operation::Read, home);
        if whole == 0 {
            request.buffers.push(self.pool.get(PAGE_BYTES)?);
            let completion = self.reactor.submit(request).await;
            completion.result.map_err(failed)?;
            let read = completion.request.buffers[0].as_slice();
            if !self.matches(home, 0, &sums, read) {
                return Err(self.mismatch(blob.id.slot, page, home));
            }
            let within = within as usize;
            buffer[..part].copy_from_slice(&read[within..within + part]);
            return Ok(part);
        }
        let clean = (1..pages)
            .take_while(|index| self.cache.find(blob.key(page + index)).is_none())
            .count() as u64
            + 1;
        let bytes = whole.min(clean * PAGE - within) as usize;
        request.offset_bytes += within;
        // SAFETY: the caller of a direct read lends its memory until the operation is complete, and
        // operations run to completion.
        request
            .buffers
            .push(unsafe { Buffer::borrowed(buffer.as_mut_ptr(), bytes) });
        let completion = self.reactor.submit(request).await;
        completion.result.map_err(failed)?;
        // Where there are checksums, these are whole pages.
        let read = buffer[..bytes].chunks(PAGE_BYTES).enumerate();
        let sound = read.take_while(|(index, read)| self.matches(home, *index, &sums, read));
        match sound.count() {
            0 => Err(self.mismatch(blob.id.slot, page, home)),
            // The rest is read again, and its error is reported if the caller wants it.
            sound => Ok(bytes.min(sound * PAGE_BYTES)),
        }
    }

    /// Direct writes from the caller's memory are aligned to this, in offset and length.
    fn write_unit(&self) -> u64 {
        match self.checksums {
            Some(_) => PAGE,
            None => direct_write_unit(self.reactor.device()),
        }
    }

    /// Lets direct reads of this extent pass by the worker if everything in it is on the device,
    /// and nothing of the blob on its way there.
    fn publish_extent(&self, blob: &Blob, mut extent: Extent, valid_size: u64) {
        let wait = blob.publish_after.get();
        if wait > 0 {
            return blob.publish_after.set(wait - 1);
        }
        let device = self.reactor.device();
        let end = (extent.end().min(valid_size / PAGE)).min(u32::MAX.into()) as u32;
        let settled = blob.dirty.borrow().is_empty()
            && !blob.map_lock.is_locked_exclusively()
            && blob.truncating_from.get() == 0
            && !blob.deleted.get();
        // Checksums are the worker's to look at.
        if !settled
            || !self.overwrites_in_place()
            || end <= extent.logical
            || !device.capabilities().inline
        {
            return blob.publish_after.set(PUBLISH_AFTER);
        }
        extent.pages = end - extent.logical;
        let counts = self.cache.counts();
        let journaled = counts.journaled > 0;
        if !journaled || !self.any_live(blob, extent.logical, end) {
            blob.publish_extent(extent, device);
        }
        let looked_at = if journaled {
            extent.pages.min(counts.used.saturating_mul(2))
        } else {
            0
        };
        blob.publish_after
            .set(PUBLISH_AFTER + looked_at / PAGES_PER_READ);
    }

    /// Writes whole physical blocks of the device in place; false: their pages are not all
    /// allocated, written and free of live bytes.
    async fn overwrite(&self, blob: &Rc<Blob>, offset: u64, data: &[u8]) -> Result<bool> {
        if !self.overwrites_in_place() {
            // In place it would have to be, and the checksum of memory that its owner may change
            // meanwhile means nothing.
            return Ok(false);
        }
        let _map = blob.map_lock.read().await;
        let _shared = blob.lock.read().await;
        let end = (offset + data.len() as u64).next_multiple_of(PAGE);
        if end > blob.slot.borrow().valid_size || blob.shared.is_mapped() {
            return Ok(false);
        }
        let (first, last) = ((offset / PAGE) as u32, (end / PAGE) as u32);
        let mut page = first;
        while page < last {
            match self.map(blob, page).await? {
                MapEntry::Extent(extent) if !extent.unwritten => {
                    page = extent.logical + extent.pages
                }
                _ => return Ok(false),
            }
        }
        if !self.drop_clean_frames(blob, first, last).await {
            return Ok(false);
        }
        let written = self.overwrite_blocks(blob, offset, data).await;
        // After a failure too: some of it may be on the device.
        blob.home_sequence.set(self.whole.home_writes.note());
        self.drop_clean_frames(blob, first, last).await;
        written?;
        blob.mtime.set(Some(Timestamp::now()));
        self.note_dirty(blob);
        self.grant_writes(blob, last - 1);
        Ok(true)
    }

    /// Overwrites allocated pages in place.
    async fn overwrite_blocks(&self, blob: &Rc<Blob>, offset: u64, data: &[u8]) -> Result<()> {
        blob.assert_shared();
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let MapEntry::Extent(extent) = self.map(blob, (at / PAGE) as u32).await? else {
                return Err(Error::with(Errno::UCLEAN, "find a page that was there"));
            };
            let skip = at - u64::from(extent.logical) * PAGE;
            let there = u64::from(extent.pages) * PAGE - skip;
            let bytes = there.min((data.len() - done).min(DIRECT_BYTES_MAX) as u64) as usize;
            let home = extent.physical + skip / PAGE;
            let mut request = self.request(Operation::Write { fua: false }, home);
            request.offset_bytes += skip % PAGE;
            let data = &data[done..done + bytes];
            // SAFETY: as in `read_device`; a write only reads the memory.
            request
                .buffers
                .push(unsafe { Buffer::borrowed(data.as_ptr().cast_mut(), bytes) });
            let completion = self.reactor.submit(request).await;
            completion.result.map_err(|errno| {
                let what = format!(
                    "write blob {} at offset {at} (device page {home})",
                    blob.id.slot
                );
                Error::with(errno, what)
            })?;
            done += bytes;
        }
        Ok(())
    }

    /// Drops the clean frames of a range; false: one is dirty or has live bytes.
    async fn drop_clean_frames(&self, blob: &Blob, first: u32, last: u32) -> bool {
        let busy = FrameFlags::DIRTY | FrameFlags::JOURNALED | FrameFlags::WRITEBACK;
        for page in first..last {
            while let Some(frame) = self.cache.find(blob.key(page)) {
                if self.cache.is_loading(frame) {
                    self.frame_idle.wait().await;
                } else if self.cache.has(frame, busy) {
                    return false;
                } else {
                    self.cache.remove(frame);
                }
            }
        }
        true
    }
}
