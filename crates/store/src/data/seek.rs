//! Where a blob has data and where it has holes, page by page.
//!
//! Data is what was written since the page was last given back: what the map has as written, and
//! what the cache has that isn't home yet. Preallocated pages are holes until somebody writes to
//! them, and so is everything behind the end.

use crate::blob::Blob;
use crate::cache::FrameFlags;
use crate::metadata::extents::Mapping;
use crate::state::Store;
use adit_base::{Errno, PAGE_BYTES, Result, steps};
use std::rc::Rc;

const PAGE: u64 = PAGE_BYTES as u64;
/// A file may have millions of extents: after so many runs others have a turn.
const RUNS_PER_TURN: u32 = 64;
/// Most dirty pages of a run: what follows is another one.
const DIRTY_PAGES_MAX: usize = 63;

/// What to look for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sought {
    /// Data.
    Data,
    /// A hole; there is one at the end in any case.
    Hole,
}

impl Store {
    /// The first byte from `from` on that is what is sought. ENXIO when `from` is not before the
    /// end, or no data follows.
    pub async fn seek(&self, blob: &Rc<Blob>, from: u64, sought: Sought) -> Result<u64> {
        // Nothing is on its way home, and nobody writes: what is neither mapped nor dirty is a
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

    /// What is at a page, and the page up to which it is known to be that. The caller holds
    /// `map_lock` and `lock`; `dirty`: [`Store::dirty_pages`].
    pub(crate) async fn run_at(
        &self,
        blob: &Rc<Blob>,
        dirty: &[u32],
        page: u64,
    ) -> Result<(Sought, u64)> {
        let valid_pages = blob.slot.borrow().valid_size.div_ceil(PAGE);
        let end = match self.map(blob, page as u32).await? {
            Mapping::Extent(extent) if !extent.unwritten && page < valid_pages => {
                return Ok((Sought::Data, extent.end().min(valid_pages)));
            }
            Mapping::Extent(extent) => extent.end(),
            Mapping::Hole { pages } => page + u64::from(pages.max(1)),
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
