//! From a descriptor to its open inode; keeping an inode in memory, and giving it back.

use super::{Fs, LocalBoxFuture};
use crate::open::file::OpenFile;
use crate::open::inode::Inode;
use crate::types::*;
use adit_base::{Errno, Error, Result};
use adit_store::{Blob, BlobId};
use std::rc::Rc;

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
        self.tables.open_inode(id)
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

    /// Undoes one [`Part::acquire`](super::Part); the last release deletes an unlinked inode. An
    /// orphan of an earlier opening stays as long as another process may come for it.
    pub(crate) async fn release(&self, inode: Rc<Inode>) {
        let stays = inode.is_left.get() && self.whole.keeps_orphans();
        if self.release_inode(&inode) && inode.unlinked.get() && !stays {
            let (id, kind) = (inode.id, inode.kind);
            drop(inode);
            let reclaim: LocalBoxFuture<'_, _> = Box::pin(self.reclaim(id, kind));
            reclaim.await;
        }
    }

    /// Undoes one [`Part::acquire`](super::Part); true: it was the last.
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
}
