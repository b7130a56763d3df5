//! The partitions of a volume ([0041](../../../../docs/decisions/0041-partitions.md)).
//!
//! Each is a [`Store`] with a cache, groups, blobs and dirty data of its own; they share
//! [`Whole`](super::Whole), the journal with it. A page belongs to the partition of its group, a
//! blob to that of its slot, and each partition has a copy of the state page
//! (`commit/ledgers.rs`). A transaction finds the partition of each page that it needs.
//!
//! Today one worker has them all, and nothing but tests opens more than one.

use super::Store;
use crate::format::BlobId;
use crate::metadata::slot_page::slot_place;
use adit_base::{Errno, Error, Result};
use smallvec::SmallVec;
use std::rc::Weak;

impl Store {
    /// The partitions of the volume, in their order. A volume with one has this one.
    pub fn partitions(&self) -> SmallVec<[Store; 1]> {
        let partitions = self.peers.borrow();
        partitions
            .iter()
            .filter_map(Weak::upgrade)
            .map(Store)
            .collect()
    }

    /// The first partition, which has the page memory for journal writes.
    pub(crate) fn lead(&self) -> Store {
        let first = self.peers.borrow().first().and_then(Weak::upgrade);
        Store(first.expect("the first partition lives as long as the others"))
    }

    /// The number of the partition, from 0 on.
    pub fn partition(&self) -> u32 {
        self.partition
    }

    /// How many partitions the volume has.
    pub fn partitions_count(&self) -> u32 {
        self.options.partitions
    }

    /// The partition that has a blob, or would have it. Only the first partition knows, which
    /// [`Store::open`] returns.
    #[inline]
    pub fn of(&self, id: BlobId) -> &Store {
        if self.options.partitions == 1 {
            return self;
        }
        match self.owner(slot_place(id.slot).0) {
            own if own == self.partition => self,
            other => {
                let others = self
                    .others
                    .get()
                    .expect("the first partition knows the others");
                &others[other as usize - 1]
            }
        }
    }

    /// Pages that were freed and may not be used yet.
    pub(crate) fn pending_pages(&self) -> u64 {
        if self.options.partitions == 1 {
            return self.changes.frees.pages();
        }
        let partitions = self.partitions();
        (partitions.iter().map(|store| store.changes.frees.pages())).sum()
    }

    /// The number of the partition that has a page.
    #[inline]
    pub(crate) fn owner(&self, page: u64) -> u32 {
        if self.options.partitions == 1 {
            return self.partition;
        }
        let first_group = self.layout.get().first_group;
        self.division.get().owner_of_page(page, first_group)
    }

    /// OPNOTSUPP on a volume with several partitions.
    pub fn check_undivided(&self, what: &str) -> Result<()> {
        if self.options.partitions == 1 {
            return Ok(());
        }
        let what = format!("{what} a volume with several partitions: open it with one");
        Err(Error::with(Errno::OPNOTSUPP, what))
    }
}

/// The partitions of a volume, as seen from one of them.
pub(crate) struct Owners<'s> {
    own: &'s Store,
    /// All of them, where there are several.
    all: SmallVec<[Store; 1]>,
}

impl<'s> Owners<'s> {
    #[inline]
    pub(crate) fn new(own: &'s Store) -> Owners<'s> {
        let all = if own.options.partitions == 1 {
            SmallVec::new()
        } else {
            own.partitions()
        };
        Owners { own, all }
    }

    /// The one with this number.
    #[inline]
    pub(crate) fn of(&self, partition: u32) -> &Store {
        if self.all.is_empty() || partition == self.own.partition {
            self.own
        } else {
            &self.all[partition as usize]
        }
    }

    /// All, where there are several.
    #[inline]
    pub(crate) fn all(&self) -> &[Store] {
        &self.all
    }

    /// The number of the one that has a page of a group.
    #[inline]
    pub(crate) fn number(&self, page: u64) -> u32 {
        if self.all.is_empty() {
            self.own.partition
        } else {
            self.own.owner(page)
        }
    }

    /// The one that has a page of a group.
    #[inline]
    pub(crate) fn of_page(&self, page: u64) -> &Store {
        if self.all.is_empty() {
            return self.own;
        }
        self.of(self.own.owner(page))
    }
}
