//! Operations on names. Each is staged in one transaction ([`Stage`]): it resolves the paths,
//! checks everything and stages all changes against one state of the namespace, so no lock spans
//! them, and a crash leaves all of an operation or nothing.
//!
//! Permissions are checked there, too, in Linux's order, so that each case has Linux's
//! errno. Work that needs several transactions follows: deleting the data of an inode that lost its
//! last name, see `inode/orphans.rs`.

mod edit;
mod links;
mod list;
mod rename;
mod unlink;

use crate::inode::permission::{SET_GID, SET_UID};
use crate::inode::resolve::{self, Base, Intent, name_or};
use crate::inode::slot::{Slots, add_subdirectory, fresh_slot, stat_of};
use crate::inode::symlink;
use crate::names::{self, Name, Target};
use crate::types::*;
use crate::volume::{Fs, Stage};
use adit_base::{Errno, Error, Result};
use adit_store::format::Slot;
use adit_store::pages::Stop;
use adit_store::{Beside, BlobId, Need};
use bumpalo::Bump;

/// The kind of a new inode, with its content.
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

    /// Its parent and name.
    fn place<'p>(
        self,
        pages: &impl Slots,
        base: &Base,
        texts: &'p Bump,
        at: At<'p>,
    ) -> Result<(BlobId, Name<'p>), Stop> {
        let place = resolve::resolve(pages, base, texts, at, Intent::Entry)?;
        if place.found.is_some() {
            return Err(Errno::EXIST.into());
        }
        if place.slash && !matches!(self, New::Directory) {
            return Err(Errno::NOENT.into());
        }
        Ok((place.parent, name_or(&place, Errno::EXIST)?))
    }

    /// Devices are, except character device 0, the whiteout of an overlay.
    fn is_for_the_privileged(self) -> bool {
        match self {
            New::Node(FileKind::CharDevice, device) => device != 0,
            New::Node(kind, _) => kind == FileKind::BlockDevice,
            _ => false,
        }
    }

    /// The slot of such an inode in `parent`, without the owner and mode bits that it gets from the
    /// directory.
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

impl Stage<'_, '_> {
    fn create(
        &mut self,
        caller: &Credentials,
        parent: BlobId,
        name: &Name<'_>,
        new: New<'_>,
        mode: u32,
    ) -> Result<(BlobId, Slot), Stop> {
        let kind = new.kind();
        let need = Need::CREATE + Need::XATTR;
        let partition = self.place_for(kind, parent);
        self.edit_directory(parent, need, |transaction, directory| {
            caller.check_add(directory)?;
            if new.is_for_the_privileged() && !caller.privileged {
                return Err(Errno::PERM.into());
            }
            let mut slot = new.slot(parent, mode);
            caller.own(&mut slot, directory);
            let id = transaction.create_in(partition, slot)?;
            if let New::Symlink(target) = new {
                symlink::store_rest(transaction, id, target)?;
            }
            let entry = Target::new(id, kind);
            names::insert(transaction, directory, parent.slot, name, entry)?;
            if kind == FileKind::Directory {
                add_subdirectory(directory)?;
            }
            Ok((id, transaction.slot(id)?))
        })
    }

    /// Makes an empty file where there is nothing.
    pub fn create_file(&mut self, at: At<'_>, mode: u32) -> Result<Stat, Stop> {
        let texts = Bump::new();
        let place = New::File.place(self.transaction, &self.fs.base, &texts, at);
        let (parent, name) = place?;
        let (id, slot) = self.create(at.caller, parent, &name, New::File, mode)?;
        Ok(stat_of(id, &slot)?)
    }
}

impl Fs {
    /// Makes an inode with a name in `parent`.
    pub(crate) async fn create(
        &self,
        caller: &Credentials,
        parent: BlobId,
        name: &Name<'_>,
        new: New<'_>,
        mode: u32,
    ) -> Result<(BlobId, Slot)> {
        let created = self.create_then(caller, parent, name, (new, mode), |created, _| created);
        created.await
    }

    /// Makes an inode as [`Fs::create`] does; `then` is called as by [`Fs::transact_then`].
    pub(crate) async fn create_then<T>(
        &self,
        caller: &Credentials,
        parent: BlobId,
        name: &Name<'_>,
        (new, mode): (New<'_>, u32),
        then: impl FnMut((BlobId, Slot), Beside<'_>) -> T,
    ) -> Result<T> {
        let create = |stage: &mut Stage<'_, '_>| stage.create(caller, parent, name, new, mode);
        let created = self.transact_then(None, create, then).await;
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
            .view(|view| new.place(view, &self.base, &texts, at))
            .await?;
        let (id, slot) = self.create(at.caller, parent, &name, new, mode).await?;
        stat_of(id, &slot)
    }

    /// Makes a directory with these permission bits; set-ID bits it gets from its parent only.
    pub async fn mkdir(&self, at: At<'_>, mode: u32) -> Result<Stat> {
        let mode = mode & !(SET_UID | SET_GID);
        self.make(at, New::Directory, mode).await
    }

    /// Makes an empty file, or a pipe, socket or device node (`device` is its number as in
    /// `st_rdev`): the nodes are stored and returned, and do nothing else. EPERM for a directory
    /// and, unless privileged, for devices.
    pub async fn mknod(&self, at: At<'_>, kind: FileKind, mode: u32, device: u64) -> Result<Stat> {
        let new = match kind {
            FileKind::File => New::File,
            FileKind::Fifo | FileKind::Socket => New::Node(kind, 0),
            FileKind::CharDevice | FileKind::BlockDevice => New::Node(kind, device),
            FileKind::Directory => return Err(Errno::PERM.into()),
            _ => return Err(Errno::INVAL.into()),
        };
        self.make(at, new, mode).await
    }
}
