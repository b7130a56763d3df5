//! Plain device access before there is a store, and choosing the superblock.

use super::finding::{Finding, FindingKind, Findings};
use crate::format::superblock::{self};
use crate::format::{Page, SUPERBLOCK_PAGES, Superblock};
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_block::{Buffer, BufferPool, Operation, Request};
use adit_reactor::Reactor;
use smallvec::SmallVec;
use std::sync::Arc;

/// Pages read by one request while scanning.
pub(crate) const SCAN_PAGES: u64 = 128;

/// Plain device access before there is a store.
pub(crate) struct RawIo {
    pub(crate) reactor: std::rc::Rc<Reactor>,
    pub(crate) pool: Arc<BufferPool>,
}

impl RawIo {
    async fn request(
        &self,
        operation: Operation,
        page: u64,
        buffer: Option<Buffer>,
    ) -> Result<Option<Buffer>> {
        let mut buffers = SmallVec::new();
        buffers.extend(buffer);
        let offset_bytes = page * PAGE_BYTES as u64;
        let completion = self
            .reactor
            .submit(Request {
                operation,
                offset_bytes,
                buffers,
                token: 0,
            })
            .await;
        completion
            .result
            .map_err(|errno| Error::with(errno, format!("device page {page}")))?;
        Ok(completion.request.buffers.into_iter().next())
    }

    /// Reads `pages` pages.
    pub(crate) async fn read(&self, page: u64, pages: u64) -> Result<Buffer> {
        let buffer = self.pool.get(pages as usize * PAGE_BYTES)?;
        let read = self.request(Operation::Read, page, Some(buffer)).await?;
        Ok(read.expect("a read returns its buffer"))
    }

    /// Reads a page unverified; `None` if the device can't read it.
    pub(crate) async fn page(&self, page: u64) -> Option<Box<Page>> {
        let read = self.read(page, 1).await.ok()?;
        Some(copy_of(&read.as_slice()[..PAGE_BYTES]))
    }

    /// Reads adjacent pages unverified; `None` for each that the device can't read.
    pub(crate) async fn pages(&self, first: u64, count: u64) -> Vec<Option<Box<Page>>> {
        let mut pages = Vec::with_capacity(count as usize);
        match self.read(first, count).await {
            Ok(read) => {
                let read = read.as_slice().chunks_exact(PAGE_BYTES);
                pages.extend(read.take(count as usize).map(|page| Some(copy_of(page))));
            }
            Err(_) => {
                for page in first..first + count {
                    pages.push(self.page(page).await);
                }
            }
        }
        pages
    }

    /// Writes `bytes`, whole pages.
    pub(crate) async fn write(&self, page: u64, bytes: &[u8], fua: bool) -> Result<()> {
        let mut buffer = self.pool.get(bytes.len())?;
        buffer
            .try_mut()
            .expect("a new buffer is unique")
            .copy_from_slice(bytes);
        self.request(Operation::Write { fua }, page, Some(buffer))
            .await
            .map(drop)
    }

    /// Flushes the device's cache, if it has one.
    pub(crate) async fn flush(&self) -> Result<()> {
        if !self.reactor.device().capabilities().volatile_cache {
            return Ok(());
        }
        self.request(Operation::Flush, 0, None).await.map(drop)
    }

    /// Reads the newest valid superblock. `leniently`, for a repair: fixes a flipped bit, and
    /// returns the problems.
    pub(crate) async fn superblock(&self, leniently: bool) -> Result<(Box<Superblock>, Findings)> {
        let device_bytes = self.reactor.device().geometry().size_bytes;
        if device_bytes < 2 * PAGE_BYTES as u64 {
            return Err(Error::with(
                Errno::INVAL,
                format!(
                    "not an Adit volume: {device_bytes} bytes hold none (make one with `adit mkfs`)"
                ),
            ));
        }
        if leniently {
            return self.superblock_leniently(device_bytes).await;
        }
        let pages = self.read(SUPERBLOCK_PAGES[0], 2).await?;
        let (first, second) = pages.as_slice().split_at(PAGE_BYTES);
        let superblock = superblock::choose([first, second], device_bytes)?;
        Ok((superblock, Findings::default()))
    }

    async fn superblock_leniently(&self, device_bytes: u64) -> Result<(Box<Superblock>, Findings)> {
        let mut findings = Findings::default();
        let mut pages = [Page::zeroed(), Page::zeroed()];
        for (index, page) in pages.iter_mut().enumerate() {
            let mut what = None;
            match self.read(SUPERBLOCK_PAGES[index], 1).await {
                Ok(read) => page.0.copy_from_slice(&read.as_slice()[..PAGE_BYTES]),
                Err(error) => what = Some(format!("it can't be read: {error}")),
            }
            if superblock::heal(index, &mut page.0) {
                what = Some("one flipped bit".into());
            }
            if let Some(what) = what {
                findings.add(superblock_finding(index, what));
            }
        }
        let pages = [&pages[0].0[..], &pages[1].0[..]];
        let superblock = superblock::choose(pages, device_bytes)?;
        for (index, what) in superblock::damage(pages).into_iter().enumerate() {
            let place = Some(SUPERBLOCK_PAGES[index]);
            if let Some(what) = what
                && findings.list.iter().all(|known| known.page != place)
            {
                findings.add(superblock_finding(index, what));
            }
        }
        Ok((superblock, findings))
    }

    /// Writes the next superblock to both places, durably, one after the other: the caller may rely
    /// on it even if one of them is damaged later.
    pub(crate) async fn write_superblocks(&self, superblock: &mut Superblock) -> Result<()> {
        let fua = self.reactor.device().capabilities().volatile_cache;
        for _ in SUPERBLOCK_PAGES {
            superblock.sequence += 1;
            let page = superblock::encode(superblock);
            let place = SUPERBLOCK_PAGES[(superblock.sequence % 2) as usize];
            self.write(place, &page.0, fua).await?;
        }
        Ok(())
    }
}

fn copy_of(bytes: &[u8]) -> Box<Page> {
    let mut copy = Box::new(Page::zeroed());
    copy.0.copy_from_slice(bytes);
    copy
}

fn superblock_finding(index: usize, what: String) -> Finding {
    Finding::new(
        FindingKind::Superblock,
        format!("superblock {}: {what}", ["A", "B"][index]),
        "the volume depends on the other one",
        "it is written anew",
    )
    .at_page(SUPERBLOCK_PAGES[index])
}
