//! Pages that programs have mapped: filling their memory, and flushing it (`blob/mapped.rs`).
//!
//! Invariant: filling and flushing read and write the file's cached and stored pages, and don't
//! pass those bytes to the memory: a flush that wrote to the memory would undo stores.

use crate::blob::{Blob, MappedMemory, MappedPages};
use crate::data::reserve::Promise;
use crate::data::seek::Sought;
use crate::state::Store;
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

const PAGE: u64 = PAGE_BYTES as u64;
/// Pages that are filled or flushed under one lock.
const PAGES_PER_LOCK: u64 = 64;
/// Runs of data or holes that are looked at under one lock.
const RUNS_PER_LOCK: u64 = 256;
/// After this many rounds, about two milliseconds, other tasks have a turn.
const ROUNDS_PER_TURN: u32 = 8;
/// A task that only yields keeps the driver from waiting for the device, and with it each fsync.
const TURN: Duration = Duration::from_micros(50);

impl Store {
    /// One more descriptor holds the memory of the blob's mappings, which `make` makes if there is
    /// none; `writes`: it may store. [`Store::release_mapped`] must follow.
    pub async fn hold_mapped(
        &self,
        blob: &Rc<Blob>,
        writes: bool,
        make: impl FnOnce() -> Result<MappedMemory>,
    ) -> Result<()> {
        // Exclusively: this recalls write grants, and no new one begins.
        let _exclusive = self.lock(blob).await;
        let mapped = match blob.mapped() {
            Some(mapped) => mapped,
            None => {
                let mapped = Rc::new(MappedPages::new(make()?));
                *blob.mapped.borrow_mut() = Some(mapped.clone());
                blob.shared.set_mapped(Some(mapped.memory.clone()));
                mapped
            }
        };
        mapped.holders.set(mapped.holders.get() + 1);
        mapped.is_written.set(mapped.is_written.get() || writes);
        Ok(())
    }

    /// Fills the missing pages that a range of bytes touches. Pages without data take no memory.
    /// `EINVAL` if no descriptor holds the memory, `ENOMEM` if other programs would have too
    /// little.
    pub async fn fill_mapped(&self, blob: &Rc<Blob>, range: Range<u64>) -> Result<()> {
        let Some(mapped) = blob.mapped() else {
            return Err(Error::with(
                Errno::INVAL,
                "map a file that is unmapped meanwhile",
            ));
        };
        mapped.memory.grow(range.end.next_multiple_of(PAGE))?;
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        // Holes up to this page are filled.
        let mut searched = pages.start;
        let mut fills = 0_u32;
        let mut buffer = Vec::new();
        for round in 0.. {
            self.let_others_work(round).await;
            let Some(gap) = mapped.pages.borrow().first_gap(pages.clone()) else {
                return Ok(());
            };
            if gap.start >= searched {
                let rest = gap.start..pages.end;
                searched = self.note_holes(blob, &mapped, rest).await?;
                continue;
            }
            let _exclusive = self.lock(blob).await;
            // Another call may have filled it meanwhile.
            let Some(gap) = mapped.pages.borrow().first_gap(gap.start..searched) else {
                continue;
            };
            let some = gap.start..gap.end.min(gap.start + PAGES_PER_LOCK);
            if fills.is_multiple_of(ROUNDS_PER_TURN) {
                mapped.memory.check_room()?;
            }
            fills += 1;
            mapped.memory.allocate(&some)?;
            buffer.resize(((some.end - some.start) * PAGE) as usize, 0);
            let count = self
                .read_stored(blob, some.start * PAGE, &mut buffer)
                .await?;
            buffer[count..].fill(0);
            for (page, content) in some.clone().zip(buffer.chunks(PAGE_BYTES)) {
                let is_zero = content.iter().all(|byte| *byte == 0);
                if !is_zero {
                    mapped.memory.write(page * PAGE, content)?;
                }
                // Readers in other processes ask from here on.
                self.frames.withdraw_hint(blob.key(page as u32));
            }
            mapped.note_filled(some)?;
        }
        unreachable!("it ends with the last page")
    }

    /// Notes missing pages without data as filled: they are zeroes, like the untouched memory.
    /// Returns the page up to which it looked.
    async fn note_holes(
        &self,
        blob: &Rc<Blob>,
        mapped: &MappedPages,
        pages: Range<u64>,
    ) -> Result<u64> {
        // No write-back runs, and no task writes.
        let _map = blob.map_lock.read().await;
        let _exclusive = self.lock(blob).await;
        let dirty = self.dirty_pages(blob);
        let mut page = pages.start;
        for _ in 0..RUNS_PER_LOCK {
            if page >= pages.end {
                break;
            }
            let (found, end) = if page * PAGE >= blob.size() {
                (Sought::Hole, pages.end)
            } else {
                self.run_at(blob, &dirty, page).await?
            };
            let end = end.min(pages.end);
            while found == Sought::Hole && page < end {
                let gap = mapped.pages.borrow().first_gap(page..end);
                let Some(gap) = gap else { break };
                page = gap.end;
                mapped.note_filled(gap)?;
            }
            page = end;
        }
        Ok(page)
    }

    /// Between two locks: a mapping may be of gigabytes, and all of it in the cache, or holes.
    async fn let_others_work(&self, round: u32) {
        if round > 0 && round.is_multiple_of(ROUNDS_PER_TURN) {
            self.reactor.sleep(TURN).await;
        }
    }

    /// Before the end of the file moves there. Stores behind the end are not the file's, and no
    /// program stores to the new part before the move is acknowledged.
    pub(crate) fn clear_behind_end(&self, blob: &Blob, end: u64) -> Result<()> {
        match blob.mapped() {
            Some(mapped) if end > blob.size() => mapped.note_cleared(blob.size()..end),
            _ => Ok(()),
        }
    }

    /// Before a write to the file: reserves the memory's pages for those bytes, so that nothing
    /// fails afterwards for lack of room. `ENOMEM`: nothing has changed.
    pub(crate) fn prepare_write(&self, blob: &Blob, offset: u64, len: u64) -> Result<()> {
        self.clear_behind_end(blob, offset.saturating_add(len))?;
        match blob.mapped() {
            Some(mapped) if len > 0 => mapped.make_room(offset, len),
            _ => Ok(()),
        }
    }

    /// Writes the pages of the memory that differ to the file, up to its end.
    pub async fn flush_mapped(&self, blob: &Rc<Blob>) -> Result<()> {
        match blob.mapped() {
            Some(mapped) if mapped.is_written.get() => {
                let is_filled = |page| mapped.is_filled(page);
                self.flush_pages(blob, &mapped.memory, is_filled).await
            }
            _ => Ok(()),
        }
    }

    /// Writes the stores of programs to the blob, from memory that an earlier process left.
    pub async fn flush_memory(&self, blob: &Rc<Blob>, memory: &MappedMemory) -> Result<()> {
        let is_filled = |page| memory.was_filled(page);
        self.flush_pages(blob, memory, is_filled).await
    }

    /// Others are zeroes that the kernel put there at the first touch, not the file's content.
    async fn flush_pages(
        &self,
        blob: &Rc<Blob>,
        memory: &MappedMemory,
        is_filled: impl Fn(u64) -> bool,
    ) -> Result<()> {
        let (mut new, mut old) = (Vec::new(), Vec::new());
        let (mut at, mut round) = (0, 0);
        while let Some(data) = memory.data_from(at)? {
            at = data.start;
            while at < data.end {
                self.throttle(blob).await;
                round += 1;
                self.let_others_work(round).await;
                let _exclusive = self.lock(blob).await;
                let end = data.end.min(at + PAGES_PER_LOCK * PAGE).min(blob.size());
                if at >= end {
                    return Ok(());
                }
                let len = (end - at) as usize;
                new.resize(len, 0);
                old.resize(len, 0);
                self.read_stored(blob, at, &mut old).await?;
                memory.read(at, &mut new)?;
                let pages = new.chunks(PAGE_BYTES).zip(old.chunks(PAGE_BYTES));
                for (index, (new, old)) in pages.enumerate() {
                    let offset = at + index as u64 * PAGE;
                    if new != old && is_filled(offset / PAGE) {
                        let mut promise = Promise::none(self);
                        self.write_stored(blob, offset, new, &mut promise).await?;
                    }
                }
                at = end.next_multiple_of(PAGE);
            }
        }
        Ok(())
    }

    /// Releases a descriptor's hold on the memory, after its stores are in the file; the memory
    /// goes with the last one. The next sync reports an error, too.
    pub async fn release_mapped(&self, blob: &Rc<Blob>) -> Result<()> {
        let Some(mapped) = blob.mapped() else {
            return Ok(());
        };
        let flushed = if planted(Bug::UnflushedEnd) {
            Ok(())
        } else {
            self.flush_mapped(blob).await
        };
        if let Err(error) = &flushed {
            blob.shared.note_error(error.errno());
        }
        let _exclusive = self.lock(blob).await;
        assert!(mapped.holders.get() > 0, "released more often than held");
        mapped.holders.set(mapped.holders.get() - 1);
        if mapped.holders.get() == 0 {
            blob.mapped.borrow_mut().take();
            blob.shared.set_mapped(None);
        }
        flushed
    }
}
