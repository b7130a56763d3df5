//! Operations on names. Each is one transaction: a closure resolves the paths, checks everything and
//! stages all changes against one state of the namespace, so no lock spans them and a crash leaves all of an
//! operation or nothing.
//!
//! Permissions are checked in the same closures, in Linux's order, so that each case has Linux's errno.
//! Work that needs several transactions comes after: deleting the data of what lost its last name, see `orphans.rs`.

use crate::attributes::stat_of;
use crate::names::{self, Name, Target};
use crate::permission::{SET_GID, SET_UID};
use crate::resolve::{self, Goal, Last, Place};
use crate::symlink;
use crate::types::*;
use crate::volume::{Fs, fresh_slot};
use adit_base::clock::Timestamp;
use adit_base::{Errno, Error, Result};
use adit_store::format::Slot;
use adit_store::pages::Stop;
use adit_store::{BlobId, Transaction};
use bumpalo::Bump;

/// Counts the `..` of one more directory. EMLINK where the number has no room for it, as only a damaged
/// volume's has none.
pub(crate) fn add_subdirectory(slot: &mut Slot) -> Result<(), Stop> {
    slot.links = slot.links.checked_add(1).ok_or(Errno::MLINK)?;
    Ok(())
}

/// What became of an inode that lost a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Dropped {
    /// It has other names.
    Kept(BlobId),
    /// It is gone.
    Destroyed,
    /// It is in the orphan directory.
    Orphaned(BlobId, FileKind),
}

/// Sets the time of a change of attributes: to a later one than before, even within a tick of the clock, so that each
/// change of an inode's names changes its slot (an fsync goes by when that was).
pub(crate) fn touch_changed(slot: &mut Slot, now: Timestamp) {
    let before = (slot.ctime, slot.ctime_ns);
    (slot.ctime, slot.ctime_ns) = (now.seconds, now.nanoseconds);
    if slot.ctime == before.0 && slot.ctime_ns <= before.1 {
        slot.ctime_ns = before.1 + 1;
        if slot.ctime_ns == 1_000_000_000 {
            (slot.ctime, slot.ctime_ns) = (slot.ctime + 1, 0);
        }
    }
}

/// Sets the times of a change of content: one time for both.
pub(crate) fn touch_modified(slot: &mut Slot, now: Timestamp) {
    touch_changed(slot, now);
    (slot.mtime, slot.mtime_ns) = (slot.ctime, slot.ctime_ns);
}

/// Changes a slot as the transaction sees it.
pub(crate) fn edit<T>(
    transaction: &mut Transaction<'_>,
    id: BlobId,
    f: impl FnOnce(&mut Transaction<'_>, &mut Slot) -> Result<T, Stop>,
) -> Result<T, Stop> {
    let mut slot = transaction.slot(id)?;
    let result = f(transaction, &mut slot)?;
    transaction.put(id, slot)?;
    Ok(result)
}

/// Changes the names in a directory that still has a name itself.
pub(crate) fn edit_directory<T>(
    transaction: &mut Transaction<'_>,
    id: BlobId,
    now: Timestamp,
    f: impl FnOnce(&mut Transaction<'_>, &mut Slot) -> Result<T, Stop>,
) -> Result<T, Stop> {
    let mut slot = *resolve::directory(transaction, id)?;
    if slot.links == 0 {
        return Err(Errno::NOENT.into());
    }
    let result = f(transaction, &mut slot)?;
    touch_modified(&mut slot, now);
    transaction.put(id, slot)?;
    Ok(result)
}

pub(crate) fn target(id: BlobId, kind: FileKind) -> Target {
    Target {
        slot: id.slot,
        generation: id.generation,
        kind: kind as u8,
    }
}

/// The name at a place whose last component must be one, else `errno`.
pub(crate) fn name_or<'p>(place: &Place<'p>, errno: Errno) -> Result<Name<'p>, Stop> {
    match place.last {
        Last::Name(name) => Ok(name),
        _ => Err(errno.into()),
    }
}

/// What an inode is made as.
#[derive(Clone, Copy, Debug)]
pub(crate) enum New<'a> {
    File,
    Directory,
    /// A symbolic link to this.
    Symlink(&'a [u8]),
    /// A pipe, socket or device, with its number.
    Node(FileKind, u64),
}

impl New<'_> {
    fn kind(self) -> FileKind {
        match self {
            New::File => FileKind::File,
            New::Directory => FileKind::Directory,
            New::Symlink(_) => FileKind::Symlink,
            New::Node(kind, _) => kind,
        }
    }

    /// A device is, except the whiteout of an overlay: character device 0.
    fn is_for_the_privileged(self) -> bool {
        match self {
            New::Node(FileKind::CharDevice, device) => device != 0,
            New::Node(kind, _) => kind == FileKind::BlockDevice,
            _ => false,
        }
    }

    /// The slot of such an inode in `parent`, as far as the directory's own slot has no say.
    fn slot(self, parent: BlobId, mode: u32) -> Slot {
        let mut slot = fresh_slot(self.kind(), mode);
        match self {
            New::File => (),
            New::Directory => {
                slot.parent = parent.slot;
                slot.links = 2;
                names::initialize(&mut slot);
            }
            New::Symlink(target) => symlink::initialize(&mut slot, target),
            New::Node(_, device) => slot.rdev = device,
        }
        slot
    }
}

impl Fs {
    /// Makes an inode with a name in `parent`.
    pub(crate) async fn create(
        &self,
        who: &Credentials,
        parent: BlobId,
        name: &Name<'_>,
        new: New<'_>,
        mode: u32,
    ) -> Result<(BlobId, Slot)> {
        let kind = new.kind();
        let fresh = new.slot(parent, mode);
        let now = Timestamp::now();
        let created = self
            .store
            .transact(|transaction| {
                edit_directory(transaction, parent, now, |transaction, directory| {
                    who.check_add(directory)?;
                    if new.is_for_the_privileged() && !who.privileged {
                        return Err(Errno::PERM.into());
                    }
                    let mut slot = fresh;
                    who.own(&mut slot, directory);
                    // The slot is taken first: whatever fails here, nothing stays.
                    let id = transaction.create(slot)?;
                    if let New::Symlink(target) = new {
                        symlink::store_rest(transaction, id, target)?;
                    }
                    let entry = target(id, kind);
                    names::insert(transaction, directory, parent.slot, name, entry)?;
                    if kind == FileKind::Directory {
                        add_subdirectory(directory)?;
                    }
                    Ok((id, transaction.slot(id)?))
                })
            })
            .await;
        // The parent was removed since it was resolved.
        created.map_err(|error| match error.errno() {
            Errno::STALE => Error::new(Errno::NOENT),
            _ => error,
        })
    }

    /// Makes something where there is nothing.
    pub(crate) async fn make(&self, at: At<'_>, new: New<'_>, mode: u32) -> Result<Stat> {
        let texts = Bump::new();
        let (parent, name) = self
            .store
            .view(|view| {
                let place = resolve::resolve(view, &self.base, &texts, at, Goal::Entry)?;
                if place.found.is_some() {
                    return Err(Errno::EXIST.into());
                }
                if place.slash && !matches!(new, New::Directory) {
                    return Err(Errno::NOENT.into());
                }
                Ok((place.parent, name_or(&place, Errno::EXIST)?))
            })
            .await?;
        let (id, slot) = self.create(at.who, parent, &name, new, mode).await?;
        stat_of(id, &slot)
    }

    /// Makes a directory with these permission bits; set-ID bits it gets from its parent only.
    pub async fn mkdir(&self, at: At<'_>, mode: u32) -> Result<Stat> {
        let mode = mode & !(SET_UID | SET_GID);
        self.make(at, New::Directory, mode).await
    }

    /// Makes an empty file, or a pipe, socket or device node (`device` is its number as in `st_rdev`): the nodes are
    /// kept for those who ask for them, and do nothing here. EPERM for a directory and, unless privileged, for devices.
    pub async fn mknod(&self, at: At<'_>, kind: FileKind, mode: u32, device: u64) -> Result<Stat> {
        let new = match kind {
            FileKind::File => New::File,
            FileKind::Fifo | FileKind::Socket => New::Node(kind, 0),
            FileKind::CharDevice | FileKind::BlockDevice => New::Node(kind, device),
            FileKind::Directory => return Err(Errno::PERM.into()),
            FileKind::Symlink | FileKind::Blob => return Err(Errno::INVAL.into()),
        };
        self.make(at, new, mode).await
    }

    /// Takes a name away from an inode; with its last one it becomes an orphan or is gone.
    pub(crate) fn drop_name(
        &self,
        transaction: &mut Transaction<'_>,
        id: BlobId,
        kind: FileKind,
        now: Timestamp,
    ) -> Result<Dropped, Stop> {
        let mut slot = transaction.slot(id)?;
        resolve::expect_kind(&slot, kind)?;
        touch_changed(&mut slot, now);
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
            return Ok(Dropped::Destroyed);
        }
        slot.links = 0;
        transaction.put(id, slot)?;
        self.orphans().add(transaction, id, kind)?;
        Ok(Dropped::Orphaned(id, kind))
    }

    /// What follows [`Fs::drop_name`] when its transaction was applied.
    pub(crate) async fn after_drop(&self, dropped: Dropped) {
        let (id, kind) = match dropped {
            Dropped::Destroyed => return,
            Dropped::Kept(id) => return self.note_changed(id),
            Dropped::Orphaned(id, kind) => (id, kind),
        };
        if let Some(inode) = self.inodes.borrow().get(&id.slot) {
            inode.unlinked.set(true);
            return;
        }
        self.orphans().reclaim(id, kind).await;
    }

    /// Removes a name of something that is not a directory.
    pub async fn unlink(&self, at: At<'_>) -> Result<()> {
        let now = Timestamp::now();
        let dropped = self
            .store
            .transact_freeing(|transaction| {
                let texts = Bump::new();
                let place = resolve::resolve(transaction, &self.base, &texts, at, Goal::Entry)?;
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
                let place = resolve::resolve(transaction, &self.base, &texts, at, Goal::Entry)?;
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
                    directory.links = directory.links.saturating_sub(1);
                    names::remove(transaction, directory, place.parent.slot, &name)
                })?;
                self.drop_name(transaction, id, kind, now)
            })
            .await?;
        self.after_drop(dropped).await;
        Ok(())
    }

    /// Gives an inode another name.
    pub async fn link(&self, existing: At<'_>, follow: Follow, at: At<'_>) -> Result<Stat> {
        let now = Timestamp::now();
        let (id, slot) = self
            .store
            .transact(|transaction| {
                let texts = Bump::new();
                let (id, kind) = resolve::existing(transaction, &self.base, existing, follow)?;
                let place = resolve::resolve(transaction, &self.base, &texts, at, Goal::Entry)?;
                if place.found.is_some() {
                    return Err(Errno::EXIST.into());
                }
                let name = name_or(&place, Errno::EXIST)?;
                if place.slash {
                    return Err(Errno::NOENT.into());
                }
                let directory = resolve::directory(transaction, place.parent)?;
                if directory.links == 0 {
                    return Err(Errno::NOENT.into());
                }
                at.who.check_add(directory)?;
                if kind == FileKind::Directory {
                    return Err(Errno::PERM.into());
                }
                edit(transaction, id, |_, slot| {
                    resolve::expect_kind(slot, kind)?;
                    match slot.links {
                        // Its last name is gone, and it with whoever has it open.
                        0 => return Err(Errno::NOENT.into()),
                        LINKS_MAX.. => return Err(Errno::MLINK.into()),
                        _ => slot.links += 1,
                    }
                    touch_changed(slot, now);
                    Ok(())
                })?;
                edit_directory(transaction, place.parent, now, |transaction, directory| {
                    let entry = target(id, kind);
                    names::insert(transaction, directory, place.parent.slot, &name, entry)
                })?;
                Ok((id, transaction.slot(id)?))
            })
            .await?;
        self.note_changed(id);
        self.stat_now(id, &slot)
    }
}

/// May whoever follows the path take the name of `victim` away?
pub(crate) fn check_remove(
    transaction: &Transaction<'_>,
    place: &Place<'_>,
    victim: BlobId,
) -> Result<(), Stop> {
    let directory = resolve::directory(transaction, place.parent)?;
    Ok(place
        .who
        .check_remove(directory, transaction.slot_ref(victim)?)?)
}
