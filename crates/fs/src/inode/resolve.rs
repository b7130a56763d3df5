//! From a path to an inode: synchronous and restartable, so one closure resolves a whole path
//! against one state of the namespace.
//!
//! Rules are those of path_resolution(7): each directory on the way must be searchable by the
//! caller, and at most [`LINKS_FOLLOWED_MAX`] symbolic links are followed, with targets of at most
//! [`FOLLOWED_BYTES_MAX`]. The operation judges the last component ([`Last`]), since each has its
//! own errno for `.`, `..` and a trailing slash.

use super::slot::{Slots, kind_of};
use super::symlink;
use crate::names::{self, Name};
use crate::types::{
    At, Credentials, FOLLOWED_BYTES_MAX, FileKind, Follow, LINKS_FOLLOWED_MAX, NAME_BYTES_MAX,
    PATH_BYTES_MAX,
};
use adit_base::breakdown::{self, Layer};
use adit_base::hash::HashKey;
use adit_base::{Errno, Error};
use adit_store::BlobId;
use adit_store::format::Slot;
use adit_store::pages::Stop;
use bumpalo::Bump;

/// The last component of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Last<'p> {
    /// A name.
    Name(Name<'p>),
    /// Nothing but slashes: the root.
    Root,
    /// `.`, or no path at all.
    Dot,
    /// `..`
    DotDot,
}

/// Where a path leads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resolved<'p> {
    pub(crate) caller: &'p Credentials,
    /// The directory of the last component; for `Root` and `Dot` the inode itself.
    pub(crate) parent: BlobId,
    /// Last component.
    pub(crate) last: Last<'p>,
    /// The path ends with a slash.
    pub(crate) slash: bool,
    /// The inode there; None: there is no such name.
    pub(crate) found: Option<(BlobId, FileKind)>,
}

impl Resolved<'_> {
    /// The inode there, which must be a directory if the path ends with a slash.
    pub(crate) fn existing(&self) -> Result<(BlobId, FileKind), Errno> {
        match self.found {
            None => Err(Errno::NOENT),
            Some((_, kind)) if self.slash && kind != FileKind::Directory => Err(Errno::NOTDIR),
            Some(found) => Ok(found),
        }
    }
}

/// The name at a place; `errno` if the last component is none.
pub(crate) fn name_or<'p>(place: &Resolved<'p>, errno: Errno) -> Result<Name<'p>, Stop> {
    match place.last {
        Last::Name(name) => Ok(name),
        _ => Err(errno.into()),
    }
}

/// The intent of a lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Intent {
    /// The inode; with a trailing slash, a symbolic link is always followed.
    Inode(Follow),
    /// The inode, or the place for a new file: a trailing slash is EISDIR.
    File(Follow),
    /// The name itself; a symbolic link is not followed.
    Entry,
}

/// The root of paths and the key of hashes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Base {
    pub(crate) root: BlobId,
    pub(crate) hash_key: HashKey,
}

/// The slot of a directory that is to be searched; ENOTDIR when it is something else.
pub(crate) fn directory(pages: &impl Slots, id: BlobId) -> Result<&Slot, Stop> {
    let slot = pages.slot_of(id)?;
    match kind_of(slot)? {
        FileKind::Directory if slot.map_kind == adit_store::format::MAP_NAME_TREE => Ok(slot),
        FileKind::Directory => {
            Err(Error::with(Errno::UCLEAN, "read a directory: it holds no names").into())
        }
        _ => Err(Errno::NOTDIR.into()),
    }
}

/// The first component of a path that doesn't begin with a slash, and the rest.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().position(|byte| *byte == b'/');
    path.split_at(end.unwrap_or(path.len()))
}

fn without_slashes(path: &[u8]) -> &[u8] {
    let start = path.iter().position(|byte| *byte != b'/');
    &path[start.unwrap_or(path.len())..]
}

/// The target of a symbolic link, seen from the root: without the place where the caller sees it.
fn below<'t>(target: &'t [u8], seen_at: &[u8]) -> Result<&'t [u8], Errno> {
    if seen_at.is_empty() || !target.starts_with(b"/") {
        return Ok(target);
    }
    match target.strip_prefix(seen_at) {
        Some(b"") => Ok(b"/"),
        Some(rest) if rest.starts_with(b"/") => Ok(rest),
        _ => Err(Errno::XDEV),
    }
}

/// Follows a path. `texts` owns the targets of symbolic links.
pub(crate) fn resolve<'p>(
    pages: &impl Slots,
    base: &Base,
    texts: &'p Bump,
    at: At<'p>,
    intent: Intent,
) -> Result<Resolved<'p>, Stop> {
    let _in = breakdown::enter(Layer::Names);
    let mut directory = at.start.unwrap_or(base.root);
    let place = |parent, last, slash, found| Resolved {
        caller: at.caller,
        parent,
        last,
        slash,
        found,
    };
    let Some(mut path) = at.path else {
        let kind = kind_of(pages.slot_of(directory)?)?;
        return Ok(place(directory, Last::Dot, false, Some((directory, kind))));
    };
    if path.is_empty() {
        return Err(Errno::NOENT.into());
    }
    if path.len() > PATH_BYTES_MAX {
        return Err(Errno::NAMETOOLONG.into());
    }
    if path.contains(&0) {
        return Err(Errno::INVAL.into());
    }
    let (mut followed, mut followed_bytes) = (0, 0);
    loop {
        if path.starts_with(b"/") {
            directory = base.root;
            path = without_slashes(path);
            if path.is_empty() {
                let found = Some((directory, FileKind::Directory));
                return Ok(place(directory, Last::Root, true, found));
            }
        }
        // The components up to the last one, or to a symbolic link.
        loop {
            let (component, behind) = split(path);
            let rest = without_slashes(behind);
            let (is_last, slash) = (rest.is_empty(), !behind.is_empty());
            let slot = self::directory(pages, directory)?;
            at.caller.check_search(slot)?;
            let last = match component {
                b"." => Last::Dot,
                // Out of the place where the caller sees the root.
                b".." if directory == base.root && !at.links_below.is_empty() => {
                    return Err(Errno::XDEV.into());
                }
                b".." => Last::DotDot,
                _ if is_last && slash && matches!(intent, Intent::File(_)) => {
                    return Err(Errno::ISDIR.into());
                }
                name if name.len() > NAME_BYTES_MAX => return Err(Errno::NAMETOOLONG.into()),
                name => Last::Name(Name::new(&base.hash_key, name)),
            };
            let found = find(pages, directory, slot, &last)?;
            let follow = match intent {
                _ if !is_last => true,
                Intent::Entry => false,
                Intent::Inode(follow) | Intent::File(follow) => slash || follow == Follow::Yes,
            };
            match found {
                Some((id, FileKind::Symlink)) if follow => {
                    followed += 1;
                    if followed > LINKS_FOLLOWED_MAX {
                        return Err(Errno::LOOP.into());
                    }
                    let mut text = symlink::target(pages, id)?;
                    followed_bytes += text.len();
                    if followed_bytes > FOLLOWED_BYTES_MAX {
                        return Err(Errno::NAMETOOLONG.into());
                    }
                    text.extend_from_slice(behind);
                    path = below(texts.alloc_slice_copy(&text), at.links_below)?;
                    break;
                }
                found if is_last => return Ok(place(directory, last, slash, found)),
                Some((id, _)) => (directory, path) = (id, rest),
                None => return Err(Errno::NOENT.into()),
            }
        }
    }
}

/// The same place, as it is seen from the directory of its last component. None: there are symbolic
/// links on the way, or the way ends before. Errors of the path as a whole are left to [`resolve`].
pub(crate) fn near<'p>(
    pages: &impl Slots,
    base: &Base,
    at: At<'p>,
) -> Result<Option<At<'p>>, Stop> {
    let Some(mut path) = at.path else {
        return Ok(Some(at));
    };
    if path.is_empty() || path.len() > PATH_BYTES_MAX || path.contains(&0) {
        return Ok(None);
    }
    let mut directory = at.start.unwrap_or(base.root);
    if path.starts_with(b"/") {
        directory = base.root;
        path = without_slashes(path);
        if path.is_empty() {
            return Ok(Some(
                At::inside(at.caller, directory, b"/").links_below(at.links_below),
            ));
        }
    }
    loop {
        let (component, behind) = split(path);
        let rest = without_slashes(behind);
        if rest.is_empty() {
            let near = At::inside(at.caller, directory, path);
            return Ok(Some(near.links_below(at.links_below)));
        }
        let slot = self::directory(pages, directory)?;
        at.caller.check_search(slot)?;
        let step = match component {
            b"." => Last::Dot,
            b".." if directory == base.root && !at.links_below.is_empty() => return Ok(None),
            b".." => Last::DotDot,
            name if name.len() > NAME_BYTES_MAX => return Ok(None),
            name => Last::Name(Name::new(&base.hash_key, name)),
        };
        match find(pages, directory, slot, &step)? {
            None | Some((_, FileKind::Symlink)) => return Ok(None),
            Some((id, _)) => (directory, path) = (id, rest),
        }
    }
}

/// The inode of a name in a directory, and its kind; None when there is none.
fn find(
    pages: &impl Slots,
    directory: BlobId,
    slot: &Slot,
    last: &Last<'_>,
) -> Result<Option<(BlobId, FileKind)>, Stop> {
    let itself = Some((directory, FileKind::Directory));
    match last {
        Last::Root | Last::Dot => Ok(itself),
        Last::DotDot if slot.parent == directory.slot => Ok(itself),
        // A removed directory has no parent.
        Last::DotDot if slot.links == 0 => Ok(None),
        Last::DotDot => Ok(Some((pages.inode_at(slot.parent)?.0, FileKind::Directory))),
        Last::Name(name) => {
            let Some(target) = names::lookup(pages, slot, directory.slot, name)? else {
                return Ok(None);
            };
            let kind = FileKind::from_u8(target.kind)
                .ok_or_else(|| Error::with(Errno::UCLEAN, "read a directory: unknown kind"))?;
            Ok(Some((target.id(), kind)))
        }
    }
}

/// The inode that a path leads to.
pub(crate) fn existing(
    pages: &impl Slots,
    base: &Base,
    at: At<'_>,
    follow: Follow,
) -> Result<(BlobId, FileKind), Stop> {
    let texts = Bump::new();
    Ok(resolve(pages, base, &texts, at, Intent::Inode(follow))?.existing()?)
}
