//! The partitions of a volume ([0041](../../../../docs/decisions/0041-partitions.md)).
//!
//! Each is a [`Store`] with a cache, groups, blobs and dirty data of its own; they share
//! [`Whole`](super::Whole), the journal with it. A page belongs to the partition of its group, a
//! blob to that of its slot, and each partition has a copy of the state page
//! (`commit/ledgers.rs`). A transaction finds the partition of each page that it needs.
//!
//! One worker has them all, or each has its own (`workers.rs`).

use super::{Store, Whole};
use crate::format::BlobId;
use crate::metadata::slot_page::slot_place;
use adit_base::sync::atomic::Ordering;
use smallvec::SmallVec;

impl Whole {
    /// Keeps pages back that a larger volume has gained, until [`Whole::give_gained`].
    pub(crate) fn keep_gained(&self, pages: u64) {
        self.reservations.note(-(pages as i64));
        self.gained.fetch_add(pages, Ordering::AcqRel);
    }

    /// All copies of the state page have what a larger volume has gained.
    pub(crate) fn give_gained(&self) {
        let pages = self.gained.swap(0, Ordering::AcqRel);
        self.reservations.note(pages as i64);
    }
}

impl Store {
    /// The partitions of the volume that this worker has, in their order, as the first one of them
    /// knows them.
    pub fn partitions(&self) -> SmallVec<[Store; 1]> {
        let others = self.others.get().map_or(&[][..], |others| others);
        [self].into_iter().chain(others).cloned().collect()
    }

    /// The number of the partition, from 0 on.
    pub fn partition(&self) -> u32 {
        self.partition
    }

    /// How many partitions the volume has.
    pub fn partitions_count(&self) -> u32 {
        self.options.partitions
    }

    /// The partition that has a blob, or would have it, if one worker has all partitions. Only the
    /// first partition knows, which [`Store::open`] returns.
    #[inline]
    pub fn of(&self, id: BlobId) -> &Store {
        if self.options.partitions == 1 {
            return self;
        }
        self.of_this_worker(id)
            .expect("the first partition knows the others")
    }

    /// The partition that has a blob, or would have it, if this worker has that partition, and
    /// this one knows it.
    pub(crate) fn of_this_worker(&self, id: BlobId) -> Option<&Store> {
        match self.number_of(id) {
            own if own == self.partition => Some(self),
            other => self.others.get()?.get(other as usize - 1),
        }
    }

    /// The number of the partition that has a blob, or would have it.
    #[inline]
    pub fn number_of(&self, id: BlobId) -> u32 {
        self.owner(slot_place(id.slot).0)
    }

    /// How many transactions the operations of a partition's own worker have applied: to compare
    /// how busy workers are. Not counted where there is one partition.
    pub fn applied_by(&self, partition: u32) -> u64 {
        self.whole.applied.by(partition)
    }

    /// Pages that were freed and may not be used yet, in all partitions.
    pub(crate) fn pending_pages(&self) -> u64 {
        match self.is_divided() {
            false => self.changes.frees.pages(),
            true => self.whole.pending.load(Ordering::Acquire),
        }
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
}
