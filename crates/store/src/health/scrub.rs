//! Reads all data from the device, used or not, to notice slow loss while copies still exist
//! elsewhere.
//!
//! A worker scrubs the blobs of its own partitions: a step ends before the first one of another
//! worker, whose step is next.
//!
//! A scrub reports data that doesn't match its checksum, or can't be read, with its place. Data
//! without a checksum (after a crash, or a repair) gets one. It works on a volume in use: a chunk
//! at a time is locked against writers, and the cache isn't filled. A scrub is done in steps.
//!
//! Not here: metadata, which [`Store::check`] reads; names of files, which the layer above knows.

use crate::blob::Blob;
use crate::cache::FrameFlags;
use crate::format::BlobId;
use crate::format::{MAP_EXTENT_TREE, MAP_EXTENTS};
use crate::metadata::extents::MapEntry;
use crate::state::Store;
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_block::Operation;
use std::rc::Rc;

const PAGE: u64 = PAGE_BYTES as u64;
/// Pages of one read.
const CHUNK_PAGES: u32 = 128;
/// Blobs that are listed at once.
const BLOBS_LISTED: usize = 4096;
/// Damages that a step lists; of others only the number is told.
const DAMAGES_MAX: usize = 1000;

/// Where a step of a scrub begins.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ScrubPlace {
    /// Address of a slot; the blobs before it are done.
    pub slot: u64,
    /// Page of its blob.
    pub page: u32,
}

/// Data that is lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// Whose.
    pub blob: BlobId,
    /// From where on, bytes.
    pub offset: u64,
    /// How much.
    pub len_bytes: u64,
    /// The first page of the device.
    pub page: u64,
    /// The problem.
    pub what: String,
}

/// The result of a step of a scrub.
#[derive(Clone, Default, Debug)]
pub struct ScrubReport {
    /// Bytes of data read.
    pub bytes: u64,
    /// Bytes among them that had no checksum, on a volume whose data has some; they have one now,
    /// unless it is read-only.
    pub unchecked_bytes: u64,
    /// The losses, in no order.
    pub damages: Vec<Damage>,
    /// Damages beyond those listed.
    pub damages_omitted: u64,
    /// About the bytes of data on the volume.
    pub total_bytes: u64,
    /// Where the next step begins; None: this was the last one.
    pub next: Option<ScrubPlace>,
}

impl ScrubReport {
    /// Adds the step that follows.
    pub fn add(&mut self, step: ScrubReport) {
        self.bytes += step.bytes;
        self.unchecked_bytes += step.unchecked_bytes;
        self.damages.extend(step.damages);
        let omitted = self.damages.len().saturating_sub(DAMAGES_MAX);
        self.damages.truncate(DAMAGES_MAX);
        self.damages_omitted += step.damages_omitted + omitted as u64;
        (self.total_bytes, self.next) = (step.total_bytes, step.next);
    }
}

struct Scrubber<'a> {
    store: &'a Store,
    bytes_max: u64,
    only_reads: bool,
    report: ScrubReport,
}

impl Store {
    /// Reads data of all blobs from the device, or from a place on, about `bytes_max` bytes, up to
    /// the first blob of another worker. `only_reads`: data without a checksum gets none. Fails if
    /// metadata on the way can't be read, unless it is that of one blob only.
    pub async fn scrub(
        &self,
        from: ScrubPlace,
        bytes_max: u64,
        only_reads: bool,
    ) -> Result<ScrubReport> {
        let free = self.state().await?.free_pages;
        let capacity = self.space.borrow().geometry().capacity_pages();
        let mut scrubber = Scrubber {
            store: self,
            bytes_max,
            only_reads,
            report: ScrubReport {
                total_bytes: capacity.saturating_sub(free) * PAGE,
                ..ScrubReport::default()
            },
        };
        scrubber.report.next = scrubber.run(from).await?;
        if scrubber.report.next.is_none() && !only_reads && self.writable().is_ok() {
            self.settle_all().await?;
        }
        Ok(scrubber.report)
    }

    /// The blobs with extents from a slot address on, a bounded number.
    async fn some_blobs(&self, from: u64) -> Result<Vec<BlobId>> {
        let mut blobs = Vec::new();
        let listed = self
            .for_each_blob_from(from, &mut |id, slot| {
                if blobs.len() == BLOBS_LISTED {
                    return Err(Error::new(Errno::CANCELED)); // enough for now
                }
                if matches!(slot.map_kind, MAP_EXTENTS | MAP_EXTENT_TREE) {
                    blobs.push(id);
                }
                Ok(())
            })
            .await;
        match listed {
            Err(error) if error.errno() != Errno::CANCELED => Err(error),
            _ => Ok(blobs),
        }
    }
}

impl Scrubber<'_> {
    /// Scrubs from a place on; returns where to continue.
    async fn run(&mut self, from: ScrubPlace) -> Result<Option<ScrubPlace>> {
        let mut next = from;
        loop {
            let blobs = self.store.some_blobs(next.slot).await?;
            if blobs.is_empty() {
                return Ok(None);
            }
            for id in blobs {
                let page = if id.slot == next.slot { next.page } else { 0 };
                let at = |page| ScrubPlace {
                    slot: id.slot,
                    page,
                };
                let Some(store) = self.store.of_this_worker(id) else {
                    return Ok(Some(at(page)));
                };
                if let Some(page) = self.blob(store, id, page).await? {
                    return Ok(Some(at(page)));
                }
                let Some(slot) = id.slot.checked_add(1) else {
                    return Ok(None);
                };
                next = ScrubPlace { slot, page: 0 };
            }
        }
    }

    /// Scrubs a blob from a page on; returns where to continue in it.
    async fn blob(&mut self, store: &Store, id: BlobId, from: u32) -> Result<Option<u32>> {
        let blob = match store.blob(id).await {
            Ok(blob) => blob,
            Err(error) if error.errno() == Errno::STALE => return Ok(None), // deleted meanwhile
            Err(error) => {
                self.damage(id, 0, 0, 0, error.to_string());
                return Ok(None);
            }
        };
        let mut page = from;
        while let Some(next) = self.chunk(store, &blob, page).await? {
            page = next;
            if self.report.bytes >= self.bytes_max {
                return Ok(Some(page));
            }
            // Lets others have the worker and the device.
            store.reactor.yield_now().await;
        }
        Ok(None)
    }

    /// Reads page `page` and some behind it; returns where to continue.
    async fn chunk(&mut self, store: &Store, blob: &Rc<Blob>, page: u32) -> Result<Option<u32>> {
        let _map = blob.map_lock.read().await;
        let _shared = blob.lock.read().await;
        let valid_pages = blob.slot.borrow().valid_size.div_ceil(PAGE);
        if blob.deleted.get() || u64::from(page) >= valid_pages {
            return Ok(None);
        }
        let extent = match store.map(blob, page).await {
            Ok(MapEntry::Hole { pages }) => return Ok(Some(page.saturating_add(pages.max(1)))),
            Ok(MapEntry::Extent(extent)) if extent.unwritten => {
                return Ok(Some(extent.end() as u32));
            }
            Ok(MapEntry::Extent(extent)) => extent,
            Err(error) => {
                self.damage(blob.id, page, 0, 0, error.to_string());
                return Ok(None);
            }
        };
        let end = extent
            .end()
            .min(valid_pages)
            .min(u64::from(page) + u64::from(CHUNK_PAGES));
        let count = (end - u64::from(page)) as u32;
        let home = extent.physical + u64::from(page - extent.logical);
        let sums = loop {
            match store.sums(home, count).await {
                Ok(Some(sums)) => break sums,
                Ok(None) => {} // the lock of the map keeps the data in its place
                Err(error) => {
                    self.damage(blob.id, page, home, count, error.to_string());
                    return Ok(Some(end as u32));
                }
            }
        };
        // No write journals one of these pages meanwhile, but a checkpoint may be taking one home.
        let live: Vec<bool> = (page..page + count)
            .map(|page| {
                let frame = store.cache.find(blob.key(page));
                frame.is_some_and(|frame| store.cache.has(frame, FrameFlags::JOURNALED))
            })
            .collect();
        let mut content = store.pool.get(count as usize * PAGE_BYTES)?;
        let mut request = store.request(Operation::Read, home);
        request.buffers.push(content);
        let completion = store.reactor.submit(request).await;
        let whole = completion.result;
        content = completion
            .request
            .buffers
            .into_iter()
            .next()
            .expect("a read returns its buffer");
        for (index, live) in live.iter().enumerate() {
            let (logical, device) = (page + index as u32, home + index as u64);
            let mut read = whole;
            let mut one = None;
            if read.is_err() && count > 1 {
                // Which of them is it?
                let mut request = store.request(Operation::Read, device);
                request.buffers.push(store.pool.get(PAGE_BYTES)?);
                let completion = store.reactor.submit(request).await;
                read = completion.result;
                one = completion.request.buffers.into_iter().next();
            }
            if let Err(errno) = read {
                self.damage(
                    blob.id,
                    logical,
                    device,
                    1,
                    format!("it can't be read: {}", Error::new(errno)),
                );
                continue;
            }
            let bytes = match &one {
                Some(one) => one.as_slice(),
                None => &content.as_slice()[index * PAGE_BYTES..][..PAGE_BYTES],
            };
            self.report.bytes += PAGE;
            if !store.matches(home, index, &sums, bytes) {
                self.damage(
                    blob.id,
                    logical,
                    device,
                    1,
                    "its checksum does not match".into(),
                );
            } else if sums.as_slice().get(index) == Some(&0)
                && !live
                && let Some(checksums) = &store.checksums
            {
                self.report.unchecked_bytes += PAGE;
                if !self.only_reads {
                    let sum = store.whole.volume.data_checksum(device, bytes);
                    checksums.settle_unless_known(device, sum);
                }
            }
        }
        Ok(Some(end as u32))
    }

    fn damage(&mut self, blob: BlobId, page: u32, device: u64, pages: u32, what: String) {
        let offset = u64::from(page) * PAGE;
        let len_bytes = u64::from(pages) * PAGE;
        if let Some(last) = self.report.damages.last_mut()
            && last.blob == blob
            && last.offset + last.len_bytes == offset
            && last.what == what
        {
            last.len_bytes += len_bytes;
            return;
        }
        if self.report.damages.len() == DAMAGES_MAX {
            self.report.damages_omitted += 1;
            return;
        }
        self.report.damages.push(Damage {
            blob,
            offset,
            len_bytes,
            page: device,
            what,
        });
    }
}
