//! Finds data and holes of a blob, page by page.
//!
//! Data is pages that the map has as written, and dirty pages of the cache. Preallocated pages are
//! holes until a program writes to them, and so is everything behind the end.

use crate::blob::Blob;
use crate::cache::FrameFlags;
use crate::metadata::extents::MapEntry;
use crate::state::Store;
use adit_base::{Errno, PAGE_BYTES, Result, steps};
use std::rc::Rc;

const PAGE: u64 = PAGE_BYTES as u64;
/// A file may have millions of extents: after this many runs other tasks have a turn.
const RUNS_PER_TURN: u32 = 64;
/// Most dirty pages of a run; more are another run.
const DIRTY_PAGES_MAX: usize = 63;

/// The kind of range to look for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sought {
    /// Data.
    Data,
    /// A hole; there is one at the end in any case.
    Hole,
}

impl Store {
    /// The first byte of the sought kind from `from` on. ENXIO when `from` is not before the end,
    /// or no data follows.
    pub async fn seek(&self, blob: &Rc<Blob>, from: u64, sought: Sought) -> Result<u64> {
        // No write-back runs, and no task writes: a page without extent that is not dirty is a
        // hole.
        let _map = blob.map_lock.read().await;
        let _shared = blob.lock.read().await;
        let size = blob.size();
        if from >= size {
            return Err(Errno::NXIO.into());
        }
        let dirty = self.dirty_pages(blob);
        let mut page = from / PAGE;
        let mut runs = 0_u32;
        while page * PAGE < size {
            runs += 1;
            if runs.is_multiple_of(RUNS_PER_TURN) {
                self.reactor.yield_now().await;
            }
            let (found, end) = self.run_at(blob, &dirty, page).await?;
            if found == sought {
                return Ok(from.max(page * PAGE));
            }
            page = end;
        }
        match sought {
            Sought::Data => Err(Errno::NXIO.into()),
            Sought::Hole => Ok(size),
        }
    }
}

impl Store {
    /// Pages whose data may be in the cache only, ascending: some may be clean by now. There are as
    /// many as the cache may have dirty pages, so they are copied without a look at each.
    pub(crate) fn dirty_pages(&self, blob: &Blob) -> Vec<u32> {
        const COPIED_PER_STEP: usize = 64;
        let mut listed = blob.dirty.borrow_mut();
        steps::note(listed.len() / COPIED_PER_STEP);
        // Stable, since that is quick where most is in order already.
        listed.sort();
        listed.dedup();
        listed.clone()
    }

    fn is_dirty(&self, blob: &Blob, page: u32) -> bool {
        steps::note(1);
        let frame = self.cache.find(blob.key(page));
        frame.is_some_and(|frame| self.cache.has(frame, FrameFlags::DIRTY))
    }

    /// The kind of a page, and the page up to which this kind goes, as far as known. The caller
    /// holds `map_lock` and `lock`; `dirty`: [`Store::dirty_pages`].
    pub(crate) async fn run_at(
        &self,
        blob: &Rc<Blob>,
        dirty: &[u32],
        page: u64,
    ) -> Result<(Sought, u64)> {
        let valid_pages = blob.slot.borrow().valid_size.div_ceil(PAGE);
        let end = match self.map(blob, page as u32).await? {
            MapEntry::Extent(extent) if !extent.unwritten && page < valid_pages => {
                return Ok((Sought::Data, extent.end().min(valid_pages)));
            }
            MapEntry::Extent(extent) => extent.end(),
            MapEntry::Hole { pages } => page + u64::from(pages.max(1)),
        };
        let next = dirty.partition_point(|dirty| u64::from(*dirty) < page);
        let in_run = |dirty: &&u32| u64::from(**dirty) < end;
        let in_run = dirty[next..].iter().take_while(in_run);
        let mut in_run = in_run.filter(|dirty| self.is_dirty(blob, **dirty));
        Ok(match in_run.next().copied().map(u64::from) {
            Some(first) if first == page => {
                let run = in_run.map(|dirty| u64::from(*dirty)).zip(page + 1..);
                let run = run.take_while(|(dirty, page)| dirty == page);
                (
                    Sought::Data,
                    page + 1 + run.take(DIRTY_PAGES_MAX).count() as u64,
                )
            }
            Some(dirty) => (Sought::Hole, dirty),
            None => (Sought::Hole, end),
        })
    }
}
