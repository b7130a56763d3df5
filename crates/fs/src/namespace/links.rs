//! Hard and symbolic links.

use super::New;
use crate::inode::resolve::{self, Intent, existing, name_or};
use crate::inode::slot::expect_kind;
use crate::inode::symlink::target;
use crate::names::{self, Target};
use crate::types::*;
use crate::volume::{Effect, Fs, Part, Stage};
use adit_base::{Errno, Result};
use adit_store::format::Slot;
use adit_store::pages::Stop;
use adit_store::{Beside, BlobId, Need, View};
use bumpalo::Bump;

impl Stage<'_, '_> {
    /// Stages the link that [`Fs::link`] makes. Returns the inode and its slot.
    pub fn link(
        &mut self,
        existing: At<'_>,
        follow: Follow,
        at: At<'_>,
    ) -> Result<(BlobId, Slot), Stop> {
        let (texts, base) = (Bump::new(), &self.fs.base);
        let (id, kind) = resolve::existing(self.transaction, base, existing, follow)?;
        let place = resolve::resolve(self.transaction, base, &texts, at, Intent::Entry)?;
        if place.found.is_some() {
            return Err(Errno::EXIST.into());
        }
        let name = name_or(&place, Errno::EXIST)?;
        if place.slash {
            return Err(Errno::NOENT.into());
        }
        let directory = resolve::directory(self.transaction, place.parent)?;
        if directory.links == 0 {
            return Err(Errno::NOENT.into());
        }
        at.caller.check_add(directory)?;
        if kind == FileKind::Directory {
            return Err(Errno::PERM.into());
        }
        let now = self.now;
        self.edit(id, |slot| {
            expect_kind(slot, kind)?;
            match slot.links {
                // It lost its last name, and is deleted with its last descriptor.
                0 => return Err(Errno::NOENT.into()),
                LINKS_MAX.. => return Err(Errno::MLINK.into()),
                _ => slot.links += 1,
            }
            slot.touch_changed(now);
            Ok(())
        })?;
        self.edit_directory(place.parent, Need::NONE, |transaction, directory| {
            let entry = Target::new(id, kind);
            names::insert(transaction, directory, place.parent.slot, &name, entry)
        })?;
        self.then(Effect::Changed(id));
        Ok((id, self.transaction.slot(id)?))
    }
}

impl Fs {
    /// Gives an inode another name.
    pub async fn link(&self, existing: At<'_>, follow: Follow, at: At<'_>) -> Result<Stat> {
        let link = |stage: &mut Stage<'_, '_>| stage.link(existing, follow, at);
        let linked = |(id, slot): (BlobId, Slot), beside: Beside<'_>| {
            let part = Part::new(beside.of(id));
            (id, part.stat_now(id, &slot), part.tables.tails.has(id))
        };
        let (id, stat, has_tail) = self.transact_then(None, link, linked).await?;
        if !has_tail {
            return stat;
        }
        // The link is made. If the tail can't be absorbed now, the answer has the size before it.
        let _ = self.absorb(id).await;
        let now = |view: &View<'_>| {
            let part = Part::new(view.partition_of(id)?);
            Ok(part.stat_now(id, view.slot_ref(id)?)?)
        };
        self.store.view(now).await.or(stat)
    }

    /// Makes a symbolic link to `target`, 1 to [`TARGET_BYTES_MAX`] bytes without NUL, which need
    /// not exist.
    pub async fn symlink(&self, target: &[u8], at: At<'_>) -> Result<Stat> {
        match target.len() {
            0 => return Err(Errno::NOENT.into()),
            1..=TARGET_BYTES_MAX if target.contains(&0) => return Err(Errno::INVAL.into()),
            1..=TARGET_BYTES_MAX => (),
            _ => return Err(Errno::NAMETOOLONG.into()),
        }
        self.make(at, New::Symlink(target), 0o777).await
    }

    /// The target of a symbolic link; EINVAL for other inodes.
    pub async fn read_link(&self, at: At<'_>) -> Result<Vec<u8>> {
        let (id, text) = self
            .store
            .view(|view| {
                let (id, kind) = existing(view, &self.base, at, Follow::No)?;
                match kind {
                    FileKind::Symlink => Ok((id, target(view, id)?)),
                    _ => Err(Errno::INVAL.into()),
                }
            })
            .await?;
        self.note_access(id).await?;
        Ok(text)
    }
}
