//! Grows a volume while it is open, and changes its label.
//!
//! Two places have the size of a volume. The *superblock* has the pages of the device that it may
//! use, and recovery checks records against it; the *state page* has those that it does use, and
//! changes in one transaction with the number of groups, the count of free pages, and the map of
//! the formerly last, short group. The order is
//!
//! ```text
//!   device grows, flush -> both superblocks promise more -> state page, last map: one transaction -> commit
//! ```
//!
//! A crash anywhere leaves the old size or the new one: a superblock that promises more than the
//! state page uses is harmless (and another attempt to grow continues), an opening refuses the
//! reverse. Both superblocks, so that either of them alone admits the later records. The new pages
//! are free and unwritten; new groups get their maps at first use.
//!
//! Of several partitions, that transaction changes all copies of the state page, and all work with
//! the new size from its application on. The pages can be taken from the next fold on.
//!
//! The label is in the superblocks alone. A crash between the two leaves the old one or the new one.
//!
//! Not here: shrinking, which would have to move pages from behind the new end.

use crate::commit::{Intent, Transaction};
use crate::format::Superblock;
use crate::format::superblock::{Layout, geometry};
use crate::metadata::Need;
use crate::metadata::pages::Stop;
use crate::metadata::space::{SpaceGeometry, set};
use crate::state::{Beside, Store};
use crate::volume::info::not_the_first;
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, PAGE_BYTES, Result};

const PAGE: u64 = PAGE_BYTES as u64;
/// Bytes of a label in the superblock.
pub(super) const LABEL_BYTES_MAX: usize = 64;
/// Pages of a volume at most; with more, group numbers would not be 32 bits long.
pub(super) const VOLUME_PAGES_MAX: u64 = 1 << 45;

impl Store {
    /// Makes the volume `volume_bytes` large (rounded down to a page), durably. A file that is too
    /// small grows with it; any other device has to be that large. EINVAL for less than it has.
    /// The first partition does it.
    pub async fn grow(&self, volume_bytes: u64) -> Result<()> {
        self.lead.as_ref().ok_or_else(not_the_first)?;
        self.writable()?;
        let pages = volume_bytes / PAGE;
        let now = self.layout.get().volume_pages;
        if pages < now {
            return Err(Error::with(
                Errno::INVAL,
                format!("the volume has {} bytes and can't shrink", now * PAGE),
            ));
        }
        if pages > VOLUME_PAGES_MAX {
            return Err(Error::with(Errno::FBIG, "a volume has at most 128 PiB"));
        }
        self.grow_device(pages).await?;
        if !planted(Bug::EarlyGrowth) {
            self.raise_superblocks(pages).await?;
        }
        let stage = |txn: &mut Transaction<'_>| {
            let old = *self.space.borrow().geometry();
            let layout = self.layout.get().with_pages(pages);
            let new = geometry(&layout, old.cluster_pages);
            if new.volume_pages <= old.volume_pages {
                return Ok(None); // another call was faster
            }
            txn.stage_growth(&old, &new)?;
            Ok(Some((layout, new)))
        };
        let applied = |grown: Option<(Layout, SpaceGeometry)>, beside: Beside<'_>| {
            let Some((layout, geometry)) = grown else {
                return;
            };
            let old = self.space.borrow().geometry().capacity_pages();
            if self.is_divided() {
                self.whole.keep_gained(geometry.capacity_pages() - old);
            }
            for store in beside.all() {
                store.layout.set(layout);
                store.space.borrow_mut().set_geometry(geometry);
            }
        };
        self.run_transaction_then(Intent::Change, Need::STEP, stage, applied)
            .await?;
        self.commit().await
    }
}

impl Store {
    /// Gives the volume another label, durably. EINVAL for more than 64 bytes. The first partition
    /// does it.
    pub async fn set_label(&self, label: &str) -> Result<()> {
        self.lead.as_ref().ok_or_else(not_the_first)?;
        self.writable()?;
        let mut bytes = [0; LABEL_BYTES_MAX];
        let Some(room) = bytes.get_mut(..label.len()) else {
            let what =
                format!("label the volume: the label is longer than {LABEL_BYTES_MAX} bytes");
            return Err(Error::with(Errno::INVAL, what));
        };
        room.copy_from_slice(label.as_bytes());
        self.change_superblocks(|superblock| {
            let is_new = superblock.label != bytes;
            superblock.label = bytes;
            is_new
        })
        .await
    }
}

impl Store {
    async fn grow_device(&self, pages: u64) -> Result<()> {
        let device = self.reactor.device();
        if device.geometry().size_bytes / PAGE >= pages {
            return Ok(());
        }
        // A system call with the worker at hand: once in the life of a volume, and it only moves an
        // end.
        device
            .grow(pages * PAGE)
            .map_err(|error| error.context("the device is smaller than the volume is to be"))?;
        self.flush_home(self.whole.home_writes.note()).await
    }

    /// Lets both superblocks allow `pages`.
    async fn raise_superblocks(&self, pages: u64) -> Result<()> {
        self.change_superblocks(|superblock| {
            let is_more = superblock.volume_pages < pages;
            superblock.volume_pages = superblock.volume_pages.max(pages);
            is_more
        })
        .await
    }

    /// Changes both superblocks, unless `change` says that it has changed nothing.
    async fn change_superblocks(&self, change: impl FnOnce(&mut Superblock) -> bool) -> Result<()> {
        self.hold_superblock().await?;
        let result = self.change_held_superblocks(change).await;
        if let Err(error) = &result {
            self.fail(error.clone());
        }
        self.release_superblock();
        result
    }

    async fn change_held_superblocks(
        &self,
        change: impl FnOnce(&mut Superblock) -> bool,
    ) -> Result<()> {
        self.look_for_others().await?;
        let is_changed = change(&mut self.leading().superblock.borrow_mut());
        if !is_changed {
            return Ok(());
        }
        self.write_superblocks(self.whole.progress.ring.flushed_tail(), 0)
            .await
    }
}

impl Transaction<'_> {
    /// Stages the state page and the last group's map of a larger volume.
    fn stage_growth(&mut self, old: &SpaceGeometry, new: &SpaceGeometry) -> Result<(), Stop> {
        let initialized = self.state()?.groups_initialized;
        if let Some(last) = old.groups().checked_sub(1)
            && last < initialized
        {
            let (from, to) = (old.group_pages(last), new.group_pages(last));
            if to > from {
                self.with_group(last, |space, pages| {
                    let map = space.map_mut(pages, last)?;
                    set(&mut map.a, from, (to - from) as u32, false);
                    Ok(())
                })?;
            }
        }
        self.update_each_state(|state| {
            state.volume_pages = new.volume_pages;
            state.groups = u64::from(new.groups());
        })?;
        // Counted once: a commit adds the copies up. Until then nobody may take them, since the
        // other copies don't have them.
        let gained = new.capacity_pages() - old.capacity_pages();
        self.update_state(|state| state.free_pages += gained)
    }
}
