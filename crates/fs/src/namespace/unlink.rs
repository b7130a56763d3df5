//! Removing names; an inode that lost its last one becomes an orphan or is destroyed.

use super::edit::check_remove;
use crate::inode::resolve::{self, Intent, Last, name_or};
use crate::inode::slot::{expect_kind, remove_subdirectory};
use crate::names;
use crate::types::*;
use crate::volume::{Effect, Fs, Stage};
use adit_base::{Errno, Result};
use adit_store::pages::Stop;
use adit_store::{BlobId, Need};
use bumpalo::Bump;

impl Stage<'_, '_> {
    /// Takes a name from an inode; with its last one it becomes an orphan or is destroyed.
    pub(super) fn drop_name(&mut self, id: BlobId, kind: FileKind) -> Result<(), Stop> {
        self.transaction.ask(Need::DESTROY)?;
        let fs = self.fs;
        let mut slot = self.transaction.slot(id)?;
        expect_kind(&slot, kind)?;
        slot.touch_changed(self.now);
        if kind != FileKind::Directory && slot.links > 1 {
            slot.links -= 1;
            self.transaction.put(id, slot)?;
            self.then(Effect::Changed(id));
            return Ok(());
        }
        let part = self.part(id)?;
        let open = part.tables.inodes.borrow().contains_key(&id.slot);
        let resident = part.store.blob_resident(id);
        let has_content = matches!(kind, FileKind::File | FileKind::Blob) && slot.size != 0;
        let empty = slot.allocated_pages == 0
            && slot.xattr_page == 0
            && !has_content
            && resident.is_none_or(|blob| blob.size() == 0 && !blob.is_dirty() && blob.is_idle());
        if empty && !open {
            self.transaction.destroy(id)?;
            self.then(Effect::Destroyed(id, kind));
            return Ok(());
        }
        slot.links = 0;
        self.transaction.put(id, slot)?;
        // Even a full volume must be able to free space.
        let before = self.transaction.use_reserve(true);
        fs.orphans().add(self.transaction, id, kind)?;
        self.transaction.use_reserve(before);
        self.then(Effect::Orphaned(id, kind));
        Ok(())
    }

    /// Stages the removal that [`Fs::unlink`] makes.
    pub fn unlink(&mut self, at: At<'_>) -> Result<(), Stop> {
        let (texts, base) = (Bump::new(), &self.fs.base);
        let place = resolve::resolve(self.transaction, base, &texts, at, Intent::Entry)?;
        let name = name_or(&place, Errno::ISDIR)?;
        let (id, kind) = place.found.ok_or(Errno::NOENT)?;
        if place.slash {
            return Err(match kind {
                FileKind::Directory => Errno::ISDIR.into(),
                _ => Errno::NOTDIR.into(),
            });
        }
        check_remove(self.transaction, &place, id)?;
        if kind == FileKind::Directory {
            return Err(Errno::ISDIR.into());
        }
        self.edit_directory(place.parent, Need::NONE, |transaction, directory| {
            names::remove(transaction, directory, place.parent.slot, &name)
        })?;
        self.drop_name(id, kind)
    }

    /// Stages the removal that [`Fs::rmdir`] makes.
    pub fn rmdir(&mut self, at: At<'_>) -> Result<(), Stop> {
        let (texts, base) = (Bump::new(), &self.fs.base);
        let place = resolve::resolve(self.transaction, base, &texts, at, Intent::Entry)?;
        let name = match place.last {
            Last::Name(name) => name,
            Last::Root => return Err(Errno::BUSY.into()),
            Last::Dot => return Err(Errno::INVAL.into()),
            Last::DotDot => return Err(Errno::NOTEMPTY.into()),
        };
        let (id, kind) = place.found.ok_or(Errno::NOENT)?;
        check_remove(self.transaction, &place, id)?;
        if kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        let slot = resolve::directory(self.transaction, id)?;
        if !names::is_empty(self.transaction, slot, id.slot)? {
            return Err(Errno::NOTEMPTY.into());
        }
        self.edit_directory(place.parent, Need::NONE, |transaction, directory| {
            remove_subdirectory(directory)?;
            names::remove(transaction, directory, place.parent.slot, &name)
        })?;
        self.drop_name(id, kind)
    }
}

impl Fs {
    /// Removes a name of something that is not a directory.
    pub async fn unlink(&self, at: At<'_>) -> Result<()> {
        self.transact(|stage| stage.unlink(at)).await
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, at: At<'_>) -> Result<()> {
        self.transact(|stage| stage.rmdir(at)).await
    }
}
