//! Removing names; an inode that lost its last one becomes an orphan or is destroyed.

use super::edit::{check_remove, edit_directory};
use crate::inode::resolve::{self, Intent, Last, name_or};
use crate::inode::slot::{expect_kind, remove_subdirectory};
use crate::names;
use crate::types::*;
use crate::volume::Fs;
use adit_base::clock::Timestamp;
use adit_base::{Errno, Result};
use adit_store::pages::Stop;
use adit_store::{BlobId, Transaction};
use bumpalo::Bump;

/// The fate of an inode that lost a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Dropped {
    /// It has other names.
    Kept(BlobId),
    /// It is gone.
    Destroyed(BlobId, FileKind),
    /// It is in the orphan directory.
    Orphaned(BlobId, FileKind),
}

impl Fs {
    /// Takes a name from an inode; with its last one it becomes an orphan or is destroyed.
    pub(crate) fn drop_name(
        &self,
        transaction: &mut Transaction<'_>,
        id: BlobId,
        kind: FileKind,
        now: Timestamp,
    ) -> Result<Dropped, Stop> {
        let mut slot = transaction.slot(id)?;
        expect_kind(&slot, kind)?;
        slot.touch_changed(now);
        if kind != FileKind::Directory && slot.links > 1 {
            slot.links -= 1;
            transaction.put(id, slot)?;
            return Ok(Dropped::Kept(id));
        }
        let open = self.inodes.borrow().contains_key(&id.slot);
        let resident = self.store.blob_resident(id);
        let has_content = matches!(kind, FileKind::File | FileKind::Blob) && slot.size != 0;
        let empty = slot.allocated_pages == 0
            && slot.xattr_page == 0
            && !has_content
            && resident.is_none_or(|blob| blob.size() == 0 && !blob.is_dirty() && blob.is_idle());
        if empty && !open {
            transaction.destroy(id)?;
            return Ok(Dropped::Destroyed(id, kind));
        }
        slot.links = 0;
        transaction.put(id, slot)?;
        self.orphans().add(transaction, id, kind)?;
        Ok(Dropped::Orphaned(id, kind))
    }

    /// The work after the transaction of [`Fs::drop_name`] was applied.
    pub(crate) async fn after_drop(&self, dropped: Dropped) {
        let (id, kind) = match dropped {
            Dropped::Destroyed(id, kind) => return self.end_node(id, kind),
            Dropped::Kept(id) => return self.note_changed(id),
            Dropped::Orphaned(id, kind) => (id, kind),
        };
        self.end_node(id, kind);
        if let Some(inode) = self.inodes.borrow().get(&id.slot) {
            inode.unlinked.set(true);
            return;
        }
        self.orphans().reclaim(id, kind).await;
    }

    /// A pipe or socket has no name any more: nobody comes to what it stands for.
    fn end_node(&self, id: BlobId, kind: FileKind) {
        if let FileKind::Fifo | FileKind::Socket = kind
            && let Some(ended) = &*self.node_ended.borrow()
        {
            ended(id);
        }
    }

    /// Removes a name of something that is not a directory.
    pub async fn unlink(&self, at: At<'_>) -> Result<()> {
        let now = Timestamp::now();
        let dropped = self
            .store
            .transact_freeing(|transaction| {
                let texts = Bump::new();
                let place = resolve::resolve(transaction, &self.base, &texts, at, Intent::Entry)?;
                let name = name_or(&place, Errno::ISDIR)?;
                let (id, kind) = place.found.ok_or(Errno::NOENT)?;
                if place.slash {
                    return Err(match kind {
                        FileKind::Directory => Errno::ISDIR.into(),
                        _ => Errno::NOTDIR.into(),
                    });
                }
                check_remove(transaction, &place, id)?;
                if kind == FileKind::Directory {
                    return Err(Errno::ISDIR.into());
                }
                edit_directory(transaction, place.parent, now, |transaction, directory| {
                    names::remove(transaction, directory, place.parent.slot, &name)
                })?;
                self.drop_name(transaction, id, kind, now)
            })
            .await?;
        self.after_drop(dropped).await;
        Ok(())
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, at: At<'_>) -> Result<()> {
        let now = Timestamp::now();
        let dropped = self
            .store
            .transact_freeing(|transaction| {
                let texts = Bump::new();
                let place = resolve::resolve(transaction, &self.base, &texts, at, Intent::Entry)?;
                let name = match place.last {
                    Last::Name(name) => name,
                    Last::Root => return Err(Errno::BUSY.into()),
                    Last::Dot => return Err(Errno::INVAL.into()),
                    Last::DotDot => return Err(Errno::NOTEMPTY.into()),
                };
                let (id, kind) = place.found.ok_or(Errno::NOENT)?;
                check_remove(transaction, &place, id)?;
                if kind != FileKind::Directory {
                    return Err(Errno::NOTDIR.into());
                }
                let slot = resolve::directory(transaction, id)?;
                if !names::is_empty(transaction, slot, id.slot)? {
                    return Err(Errno::NOTEMPTY.into());
                }
                edit_directory(transaction, place.parent, now, |transaction, directory| {
                    remove_subdirectory(directory)?;
                    names::remove(transaction, directory, place.parent.slot, &name)
                })?;
                self.drop_name(transaction, id, kind, now)
            })
            .await?;
        self.after_drop(dropped).await;
        Ok(())
    }
}
