//! From a descriptor to its open inode; keeping an inode in memory, and giving it back.

use super::{Fs, LocalBoxFuture};
use crate::inode::slot::expect_kind;
use crate::open::file::OpenFile;
use crate::open::inode::{Inode, InodeTable};
use crate::types::*;
use adit_base::{Errno, Error, Result};
use adit_store::format::Slot;
use adit_store::{Blob, BlobId};
use std::rc::Rc;
use std::sync::Arc;

impl Fs {
    /// The inode of a descriptor; EBADF when it was closed.
    pub(crate) fn inode(&self, file: &OpenFile) -> Result<Rc<Inode>> {
        let descriptors = self.tables.descriptors.borrow();
        descriptors.get(file).cloned().ok_or(Errno::BADF.into())
    }

    /// The inode of a descriptor; EBADF if it was closed or opened with PATH.
    pub(crate) fn usable(&self, file: &OpenFile) -> Result<Rc<Inode>> {
        if file.flags().contains(OpenFlags::PATH) {
            Err(Errno::BADF.into())
        } else {
            self.inode(file)
        }
    }

    /// An inode, if a descriptor has it open.
    pub(crate) fn open_inode(&self, id: BlobId) -> Option<Rc<Inode>> {
        let inodes = self.tables.inodes.borrow();
        inodes.get(&id.slot).filter(|inode| inode.id == id).cloned()
    }

    /// The content of a descriptor that was opened for reading.
    pub(crate) fn readable(&self, file: &OpenFile) -> Result<Rc<Blob>> {
        if !file.flags().readable() {
            return Err(Errno::BADF.into());
        }
        let descriptors = self.tables.descriptors.borrow();
        let inode = descriptors.get(file).ok_or(Error::new(Errno::BADF))?;
        inode.content().cloned()
    }

    /// The inode of a descriptor that was opened for writing.
    pub(crate) fn writable(&self, file: &OpenFile) -> Result<Rc<Inode>> {
        if !file.flags().writable() {
            return Err(Errno::BADF.into());
        }
        self.inode(file)
    }

    /// Keeps an inode in memory until [`Fs::release`]. The caller has just seen its slot in a
    /// closure, without an await in between, so the inode still exists.
    pub(crate) fn acquire(&self, id: BlobId, kind: FileKind, slot: &Slot) -> Result<Rc<Inode>> {
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

    /// Acquires an inode like [`Fs::acquire`]; it may be an orphan of an earlier opening.
    pub(crate) fn acquire_again(
        &self,
        id: BlobId,
        kind: FileKind,
        slot: &Slot,
    ) -> Result<Rc<Inode>> {
        expect_kind(slot, kind)?;
        if slot.links != 0 || kind == FileKind::Blob || self.open_inode(id).is_some() {
            return self.acquire(id, kind, slot);
        }
        if !self.keeps_orphans.get() {
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
            FileKind::File | FileKind::Blob => Some(self.store.of(id).blob_from_slot(id, slot)),
            _ => None,
        };
        let inode = Rc::new(Inode::new(id, kind, blob));
        inode.opens.set(1);
        inodes.insert(id.slot, inode.clone());
        inode
    }

    /// Undoes one [`Fs::acquire`]; the last release deletes an unlinked inode. An orphan of an earlier
    /// opening stays as long as another process may come for it.
    pub(crate) async fn release(&self, inode: Rc<Inode>) {
        let stays = inode.is_left.get() && self.keeps_orphans.get();
        if self.release_inode(&inode) && inode.unlinked.get() && !stays {
            let (id, kind) = (inode.id, inode.kind);
            drop(inode);
            let orphans = self.orphans();
            let reclaim: LocalBoxFuture<'_, _> = Box::pin(orphans.reclaim(id, kind));
            reclaim.await;
        }
    }

    /// Undoes one [`Fs::acquire`]; true: it was the last.
    pub(crate) fn release_inode(&self, inode: &Inode) -> bool {
        assert!(inode.opens.get() > 0, "released more often than acquired");
        let opens = inode.opens.get() - 1;
        inode.opens.set(opens);
        if opens == 0 {
            self.forget_inode(inode.id);
        }
        opens == 0
    }

    /// An inode leaves the table. On a damaged volume another one may have its slot by now.
    pub(crate) fn forget_inode(&self, id: BlobId) {
        let mut inodes = self.tables.inodes.borrow_mut();
        if inodes.get(&id.slot).is_some_and(|inode| inode.id == id) {
            inodes.remove(&id.slot);
        }
    }

    /// Makes a descriptor of an acquired inode.
    pub(crate) fn descriptor(
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
        Arc::new(OpenFile::new(place, flags, &inode, caller))
    }
}
