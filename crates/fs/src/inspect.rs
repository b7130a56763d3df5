//! Inspection of a volume in use: directories with attributes, and open descriptors. It goes in
//! pieces, so that operations of the volume's users wait only briefly.

use crate::inode::resolve;
use crate::inode::slot::stat_of;
use crate::names;
use crate::types::*;
use crate::volume::Fs;
use adit_base::Result;
use adit_store::BlobId;

/// An entry of a directory, with the attributes of its inode if they were asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedEntry {
    /// The entry.
    pub entry: DirEntry,
    /// The attributes at the same moment.
    pub stat: Option<Stat>,
}

/// A descriptor that is open.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct OpenDescriptor {
    /// Pass this to go on behind it.
    pub cookie: u64,
    /// Inode number.
    pub inode: u64,
    /// Tells inodes apart that had the same number one after the other.
    pub generation: u32,
    /// Its kind.
    pub kind: FileKind,
    /// How it was opened.
    pub flags: OpenFlags,
    /// Current size in bytes; 0 for a directory.
    pub size_bytes: u64,
    /// It has no name any more.
    pub unlinked: bool,
}

impl Fs {
    /// At most `entries_max` entries of a directory behind `cookie` (0: from the start), without
    /// `.` and `..`. None: the end. An entry that exists during the whole iteration appears exactly
    /// once. EACCES unless the caller may read the directory and, for attributes, search it.
    pub async fn list(
        &self,
        at: At<'_>,
        cookie: u64,
        entries_max: usize,
        attributes: bool,
    ) -> Result<Vec<ListedEntry>> {
        if attributes {
            // An error is another operation's to tell.
            let _ = self.tails.absorb_all().await;
        }
        let mut wanted = Access::READ;
        wanted.set(Access::EXECUTE, attributes);
        let mut entries: Vec<ListedEntry> = Vec::new();
        let mut from = cookie.saturating_add(1).max(names::KEY_MIN);
        loop {
            let before = entries.len();
            let next = self
                .store
                .view(|view| {
                    entries.truncate(before);
                    let (id, _) = resolve::existing(view, &self.base, at, Follow::Yes)?;
                    let slot = resolve::directory(view, id)?;
                    at.caller.check_access(slot, wanted)?;
                    let mut ids = Vec::new();
                    let next = names::read_leaf(view, slot, id.slot, from, |key, name, target| {
                        if entries.len() == entries_max {
                            return false;
                        }
                        ids.push(target.id());
                        let entry = DirEntry {
                            inode: target.slot,
                            kind: FileKind::from_u8(target.kind).unwrap_or(FileKind::File),
                            cookie: key,
                            name: name.into(),
                        };
                        entries.push(ListedEntry { entry, stat: None });
                        true
                    })?;
                    for (&id, listed) in ids.iter().zip(&mut entries[before..]) {
                        if attributes {
                            listed.stat = Some(match self.store.blob_ahead(id) {
                                Some(blob) => stat_of(id, &blob.attributes())?,
                                None => stat_of(id, view.slot_ref(id)?)?,
                            });
                        }
                    }
                    Ok(next)
                })
                .await?;
            match next {
                Some(next) if entries.len() < entries_max => from = next,
                _ => return Ok(entries),
            }
        }
    }

    /// At most `max` open descriptors behind `cookie` (0: from the start). None: the end.
    pub async fn open_descriptors(&self, cookie: u64, max: usize) -> Vec<OpenDescriptor> {
        // An error is another operation's to tell.
        let _ = self.tails.absorb_all().await;
        let descriptors = self.descriptors.borrow();
        let from = usize::try_from(cookie).unwrap_or(usize::MAX);
        let found = descriptors.from(from).take(max);
        found
            .map(|(index, inode, flags)| {
                let BlobId { slot, generation } = inode.id;
                OpenDescriptor {
                    cookie: index as u64 + 1,
                    inode: slot,
                    generation,
                    kind: inode.kind,
                    flags,
                    size_bytes: inode.blob.as_ref().map_or(0, |blob| blob.shared.size()),
                    unlinked: inode.unlinked.get(),
                }
            })
            .collect()
    }
}
