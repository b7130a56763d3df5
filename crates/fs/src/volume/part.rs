//! A partition, for an operation that may be another one's: the memory of its inodes, found beside
//! its blobs.

use super::{Fs, Whole};
use crate::inode::slot::{expect_kind, is_access_due};
use crate::open::descriptors::Descriptors;
use crate::open::file::OpenFile;
use crate::open::inode::{Inode, InodeTable};
use crate::open::tail::Tails;
use crate::types::*;
use adit_base::clock::Timestamp;
use adit_base::{Errno, Result};
use adit_store::format::Slot;
use adit_store::{BlobId, Store};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// The memory of a partition's inodes, or of all, if one worker has them.
pub(crate) struct Tables {
    pub(crate) inodes: RefCell<InodeTable>,
    pub(crate) descriptors: RefCell<Descriptors>,
    /// Of the files to which a program appends in memory.
    pub(crate) tails: Rc<Tails>,
    pub(super) whole: Arc<Whole>,
}

impl Tables {
    /// Those of a partition, which finds them from here on.
    pub(super) fn new(store: &Store, whole: &Arc<Whole>) -> Rc<Tables> {
        let tables = Rc::new(Tables {
            inodes: RefCell::default(),
            descriptors: RefCell::new(Descriptors::new()),
            tails: Tails::new(store.clone(), whole.access_times.clone()),
            whole: whole.clone(),
        });
        for partition in store.partitions() {
            partition.set_upper(&tables);
        }
        tables
    }

    /// An inode, if a descriptor has it open.
    pub(crate) fn open_inode(&self, id: BlobId) -> Option<Rc<Inode>> {
        let inodes = self.inodes.borrow();
        inodes.get(&id.slot).filter(|inode| inode.id == id).cloned()
    }
}

/// A partition whose worker's lock the operation has.
pub(crate) struct Part<'s> {
    pub(crate) store: &'s Store,
    pub(crate) tables: Rc<Tables>,
}

impl Fs {
    /// The partition that this store is.
    #[inline]
    pub(crate) fn part_of<'s>(&self, store: &'s Store) -> Part<'s> {
        // The common case, for which nothing is looked up.
        match store.partition() == self.store.partition() {
            true => Part {
                store,
                tables: self.tables.clone(),
            },
            false => Part::new(store),
        }
    }
}

impl<'s> Part<'s> {
    /// One that needn't be this worker's.
    #[inline]
    pub(crate) fn new(store: &'s Store) -> Part<'s> {
        let tables = store.upper();
        Part { store, tables }
    }

    /// Opens an inode of the partition. The caller has just seen its slot in a closure, so it still
    /// exists. Its tail has not ended.
    pub(crate) fn open(
        &self,
        (id, kind): (BlobId, FileKind),
        slot: &Slot,
        flags: OpenFlags,
        caller: &Credentials,
    ) -> Result<Arc<OpenFile>> {
        let inode = self.acquire(id, kind, slot)?;
        Ok(self.descriptor(inode, flags, caller))
    }

    /// Opens an inode like [`Part::open`]; it may be an orphan of an earlier opening.
    pub(crate) fn open_again(
        &self,
        (id, kind): (BlobId, FileKind),
        slot: &Slot,
        flags: OpenFlags,
        caller: &Credentials,
    ) -> Result<Arc<OpenFile>> {
        let inode = self.acquire_again(id, kind, slot)?;
        Ok(self.descriptor(inode, flags, caller))
    }

    /// Keeps an inode in memory until [`Fs::release`](super::Fs::release).
    fn acquire(&self, id: BlobId, kind: FileKind, slot: &Slot) -> Result<Rc<Inode>> {
        expect_kind(slot, kind)?;
        let mut inodes = self.tables.inodes.borrow_mut();
        if let Some(inode) = inodes.get(&id.slot)
            && inode.id == id
        {
            // An orphan lives while it is open; a blob that lost its last name is being deleted.
            if inode.unlinked.get() && kind == FileKind::Blob {
                return Err(Errno::STALE.into());
            }
            assert!(inode.opens.get() > 0, "it would have left the table");
            inode.opens.set(inode.opens.get() + 1);
            return Ok(inode.clone());
        }
        if slot.links == 0 {
            return Err(Errno::STALE.into());
        }
        Ok(self.acquire_first(id, kind, slot, &mut inodes))
    }

    /// Acquires an inode like [`Part::acquire`]; it may be an orphan of an earlier opening.
    fn acquire_again(&self, id: BlobId, kind: FileKind, slot: &Slot) -> Result<Rc<Inode>> {
        expect_kind(slot, kind)?;
        if slot.links != 0 || kind == FileKind::Blob || self.tables.open_inode(id).is_some() {
            return self.acquire(id, kind, slot);
        }
        if !self.tables.whole.keeps_orphans() {
            return Err(Errno::STALE.into());
        }
        let inode = self.acquire_first(id, kind, slot, &mut self.tables.inodes.borrow_mut());
        inode.unlinked.set(true);
        inode.is_left.set(true);
        Ok(inode)
    }

    fn acquire_first(
        &self,
        id: BlobId,
        kind: FileKind,
        slot: &Slot,
        inodes: &mut InodeTable,
    ) -> Rc<Inode> {
        let blob = match kind {
            FileKind::File | FileKind::Blob => Some(self.store.blob_from_slot(id, slot)),
            _ => None,
        };
        let inode = Rc::new(Inode::new(id, kind, blob));
        inode.opens.set(1);
        inodes.insert(id.slot, inode.clone());
        inode
    }

    /// Makes a descriptor of an acquired inode.
    fn descriptor(
        &self,
        inode: Rc<Inode>,
        flags: OpenFlags,
        caller: &Credentials,
    ) -> Arc<OpenFile> {
        if let Some(blob) = &inode.blob
            && blob.with_slot(|slot| self.wants_access_time(slot))
        {
            blob.shared.set_access_due(true);
        }
        let place = self
            .tables
            .descriptors
            .borrow_mut()
            .add(inode.clone(), flags);
        let partition = self.store.partition();
        Arc::new(OpenFile::new(place, partition, flags, &inode, caller))
    }

    /// True if a read has the time of access to change.
    fn wants_access_time(&self, slot: &Slot) -> bool {
        self.tables.whole.access_times.get() == AccessTimes::Relative
            && !self.store.is_read_only()
            && is_access_due(slot, Timestamp::now())
    }
}
