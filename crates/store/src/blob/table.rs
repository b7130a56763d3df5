//! The blobs in memory, and those of them that are ahead of their slots.

use super::Blob;
use crate::cache::{AheadCounts, AheadOf, Frames};
use crate::format::BlobId;
use adit_base::hash::BuildNumberHasher;
use adit_base::simulation::{Bug, planted};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

/// Blobs in memory, by slot address.
#[derive(Default)]
pub(crate) struct BlobTable {
    blobs: RefCell<HashMap<u64, Rc<Blob>, BuildNumberHasher>>,
    /// Those and some that have gone, in the order in which they are looked at.
    queue: RefCell<VecDeque<BlobId>>,
}

/// With this many blobs in memory, each new one looks for unused ones.
const BLOBS_KEPT: usize = 1 << 10;

/// Blobs that each new one looks at. One round takes half as many arrivals as there are blobs, so
/// unused blobs never outnumber the others.
const LOOKS: usize = 2;

impl BlobTable {
    /// The blob at a slot address, if it is in memory.
    pub(crate) fn resident(&self, slot: u64) -> Option<Rc<Blob>> {
        self.blobs.borrow().get(&slot).cloned()
    }

    /// True if none is in memory.
    pub(crate) fn is_empty(&self) -> bool {
        self.blobs.borrow().is_empty()
    }

    /// Lets look at each of them.
    pub(crate) fn each(&self, look: impl Fn(&Blob)) {
        self.blobs.borrow().values().for_each(|blob| look(blob));
    }

    /// Its slot was freed, and may get another blob: operations that still have this one must not
    /// write.
    pub(crate) fn destroyed(&self, id: BlobId) {
        if let Some(blob) = self.resident(id.slot)
            && blob.id == id
        {
            blob.deleted.set(true);
            self.blobs.borrow_mut().remove(&id.slot);
        }
    }

    /// Adds a blob. Drops unused ones that are not `needed`.
    pub(crate) fn insert(&self, blob: Rc<Blob>, needed: impl Fn(&Blob) -> bool) {
        let mut blobs = self.blobs.borrow_mut();
        let mut queue = self.queue.borrow_mut();
        let looks = if queue.len() < BLOBS_KEPT { 0 } else { LOOKS };
        for _ in 0..looks {
            let Some(id) = queue.pop_front() else { break };
            match blobs.get(&id.slot) {
                Some(blob) if blob.id != id => {}
                Some(blob) if blob.is_used() || needed(blob) => queue.push_back(id),
                _ => drop(blobs.remove(&id.slot)),
            }
        }
        queue.push_back(blob.id);
        blobs.insert(blob.id.slot, blob);
    }
}

/// Blobs that cached reads and writes may have left ahead of their slots, in the order in which
/// they were.
pub(crate) struct DirtyBlobs {
    blobs: RefCell<Vec<Rc<Blob>>>,
    /// Their slot addresses. Mostly few, so that asking for one that isn't among them waits for no
    /// memory.
    slots: RefCell<HashSet<u64, BuildNumberHasher>>,
    /// Other threads see the counts of these.
    frames: Arc<Frames>,
}

impl DirtyBlobs {
    pub(crate) fn new(frames: Arc<Frames>) -> DirtyBlobs {
        DirtyBlobs {
            blobs: RefCell::default(),
            slots: RefCell::default(),
            frames,
        }
    }

    pub(crate) fn add(&self, blob: &Rc<Blob>) {
        if !blob.in_dirty_list.replace(true) {
            self.blobs.borrow_mut().push(blob.clone());
            self.slots.borrow_mut().insert(blob.id.slot);
        }
        if !blob.is_counted_ahead.replace(true) && !planted(Bug::UncountedAhead) {
            self.ahead().add(blob.id.slot);
        }
    }

    /// Uncounts a blob whose slot has everything, at once and not only with the next sweep: readers
    /// of slots without the worker depend on the counts.
    pub(crate) fn settle(&self, blob: &Blob) {
        if !blob.is_dirty() && !blob.map_lock.is_locked() {
            self.uncount(blob);
        }
    }

    fn uncount(&self, blob: &Blob) {
        if blob.is_counted_ahead.replace(false) && !planted(Bug::UncountedAhead) {
            self.ahead().remove(blob.id.slot);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blobs.borrow().is_empty()
    }

    /// True if one of them has this slot address.
    pub(crate) fn contains(&self, slot: u64) -> bool {
        self.slots.borrow().contains(&slot)
    }

    /// The counts that other threads may read.
    pub(crate) fn ahead(&self) -> AheadCounts<'_> {
        self.frames.ahead(AheadOf::Attributes)
    }

    pub(crate) fn all(&self) -> Vec<Rc<Blob>> {
        self.blobs.borrow().clone()
    }

    /// Dirty pages, by the [writer](Blob::set_writer) that last wrote their blobs.
    pub(crate) fn pages_by_writer(&self) -> HashMap<u64, usize> {
        let mut pages = HashMap::new();
        for blob in self.blobs.borrow().iter() {
            *pages.entry(blob.writer.get()).or_default() += blob.dirty.borrow().len();
        }
        pages
    }

    /// Removes blobs that need no write-back.
    pub(crate) fn forget_clean(&self) {
        let (mut blobs, mut slots) = (self.blobs.borrow_mut(), self.slots.borrow_mut());
        slots.clear();
        blobs.retain(|blob| {
            let keep = !blob.deleted.get() && (blob.is_dirty() || blob.map_lock.is_locked());
            blob.in_dirty_list.set(keep);
            if keep {
                slots.insert(blob.id.slot);
            } else {
                self.uncount(blob);
            }
            keep
        });
    }
}
