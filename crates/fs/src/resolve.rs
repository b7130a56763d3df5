//! From a path to an inode: synchronous and restartable, so one closure resolves a whole path against
//! one state of the namespace.
//!
//! Rules are those of path_resolution(7), without permissions and without following symbolic links:
//! one in the middle of a path is ELOOP; at the end it is the link itself. What the last component is
//! ([`Last`]) is left to the operation, since each has its own errno for `.`, `..` and a trailing slash.

use crate::names::{self, Name, Target};
use crate::{FileKind, NAME_BYTES_MAX, PATH_BYTES_MAX};
use adit_base::hash::HashKey;
use adit_base::{Errno, Error};
use adit_store::format::Slot;
use adit_store::pages::{PagesRead, Stop};
use adit_store::{BlobId, Transaction, View};

/// Pages and slots, as both views and transactions give them.
pub(crate) trait Slots: PagesRead {
    /// The slot of an inode; ESTALE when it is gone.
    fn slot_of(&self, id: BlobId) -> Result<&Slot, Stop>;
    /// The inode at a slot address.
    fn inode_at(&self, address: u64) -> Result<(BlobId, Slot), Stop>;
}

impl Slots for View<'_> {
    fn slot_of(&self, id: BlobId) -> Result<&Slot, Stop> {
        self.slot_ref(id)
    }
    fn inode_at(&self, address: u64) -> Result<(BlobId, Slot), Stop> {
        self.slot_at(address)
    }
}

impl Slots for Transaction<'_> {
    fn slot_of(&self, id: BlobId) -> Result<&Slot, Stop> {
        self.slot_ref(id)
    }
    fn inode_at(&self, address: u64) -> Result<(BlobId, Slot), Stop> {
        self.slot_at(address)
    }
}

/// The last component of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Last<'p> {
    /// A name, to be looked up in the parent.
    Name(Name<'p>),
    /// Nothing but slashes: the root.
    Root,
    /// `.`
    Dot,
    /// `..`
    DotDot,
}

/// Where a path leads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'p> {
    /// The directory that holds the last component; for `Root` and `Dot` the directory itself.
    pub(crate) parent: BlobId,
    /// Last component.
    pub(crate) last: Last<'p>,
    /// The path ends with a slash.
    pub(crate) slash: bool,
}

/// Where paths begin and how names are hashed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Base {
    pub(crate) root: BlobId,
    pub(crate) hash_key: HashKey,
}

/// The inode that a directory entry names.
pub(crate) fn id_of(target: Target) -> BlobId {
    BlobId {
        slot: target.slot,
        generation: target.generation,
    }
}

/// The kind in a slot; EUCLEAN for a number that is none.
pub(crate) fn kind_of(slot: &Slot) -> Result<FileKind, Error> {
    FileKind::from_u8(slot.kind)
        .ok_or_else(|| Error::with(Errno::UCLEAN, "read a slot: unknown kind"))
}

/// Refuses an inode that is not what the directory entry that led to it says.
pub(crate) fn expect_kind(slot: &Slot, kind: FileKind) -> Result<(), Error> {
    let found = kind_of(slot)?;
    if found != kind {
        let what = format!("follow a directory entry: it says {kind:?} of a {found:?}");
        return Err(Error::with(Errno::UCLEAN, what));
    }
    Ok(())
}

/// The slot of a directory that is to be searched; ENOTDIR when it is something else.
pub(crate) fn directory(pages: &impl Slots, id: BlobId) -> Result<&Slot, Stop> {
    let slot = pages.slot_of(id)?;
    match kind_of(slot)? {
        FileKind::Directory if slot.map_kind == adit_store::format::MAP_NAME_TREE => Ok(slot),
        FileKind::Directory => {
            Err(Error::with(Errno::UCLEAN, "read a directory: it holds no names").into())
        }
        FileKind::Symlink => Err(Errno::LOOP.into()),
        _ => Err(Errno::NOTDIR.into()),
    }
}

/// Walks to the last component of `path`; whether its parent is a directory, [`find`] says. An unknown inode in a directory is EUCLEAN.
pub(crate) fn resolve<'p>(
    pages: &impl Slots,
    base: &Base,
    path: &'p [u8],
) -> Result<Place<'p>, Stop> {
    if path.is_empty() {
        return Err(Errno::NOENT.into());
    }
    if path.len() > PATH_BYTES_MAX {
        return Err(Errno::NAMETOOLONG.into());
    }
    let slash = path.last() == Some(&b'/');
    let mut components = path
        .split(|byte| *byte == b'/')
        .filter(|component| !component.is_empty())
        .peekable();
    let mut parent = base.root;
    while let Some(component) = components.next() {
        let last = match component {
            b"." => Last::Dot,
            b".." => Last::DotDot,
            name if name.len() > NAME_BYTES_MAX => return Err(Errno::NAMETOOLONG.into()),
            name if name.contains(&0) => return Err(Errno::INVAL.into()),
            name => Last::Name(Name::new(&base.hash_key, name)),
        };
        let place = Place {
            parent,
            last,
            slash,
        };
        if components.peek().is_none() {
            return Ok(place);
        }
        (parent, _) = find(pages, &place)?.ok_or(Stop::from(Errno::NOENT))?;
    }
    Ok(Place {
        parent,
        last: Last::Root,
        slash,
    })
}

/// The inode at a place and its kind; None when the name does not exist.
pub(crate) fn find(
    pages: &impl Slots,
    place: &Place<'_>,
) -> Result<Option<(BlobId, FileKind)>, Stop> {
    let slot = directory(pages, place.parent)?;
    match &place.last {
        Last::Root | Last::Dot => Ok(Some((place.parent, FileKind::Directory))),
        Last::DotDot if slot.parent == place.parent.slot => {
            Ok(Some((place.parent, FileKind::Directory)))
        }
        Last::DotDot => {
            let (id, _) = pages.inode_at(slot.parent)?;
            Ok(Some((id, FileKind::Directory)))
        }
        Last::Name(name) => {
            let Some(target) = names::lookup(pages, slot, place.parent.slot, name)? else {
                return Ok(None);
            };
            let kind = FileKind::from_u8(target.kind)
                .ok_or_else(|| Error::with(Errno::UCLEAN, "read a directory: unknown kind"))?;
            Ok(Some((id_of(target), kind)))
        }
    }
}

/// Resolves a path to an existing inode.
pub(crate) fn existing(
    pages: &impl Slots,
    base: &Base,
    path: &[u8],
) -> Result<(BlobId, FileKind), Stop> {
    let place = resolve(pages, base, path)?;
    let (id, kind) = find(pages, &place)?.ok_or(Stop::from(Errno::NOENT))?;
    if place.slash && kind != FileKind::Directory {
        let errno = if kind == FileKind::Symlink {
            Errno::LOOP
        } else {
            Errno::NOTDIR
        };
        return Err(errno.into());
    }
    Ok((id, kind))
}
