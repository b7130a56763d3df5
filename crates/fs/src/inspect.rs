//! Inspection of a volume in use: directories with attributes, and open descriptors. It goes in
//! pieces, so that operations of the volume's users wait only briefly.

use crate::inode::resolve;
use crate::names;
use crate::types::*;
use crate::volume::{Fs, Part};
use adit_base::{Errno, Error, Result};
use adit_store::{BlobId, View};

/// A cookie of open descriptors: the number of the partition, and a place in its table.
const PARTITION_SHIFT: u32 = 48;
const PLACE_MASK: u64 = (1 << PARTITION_SHIFT) - 1;

/// An entry of a directory, with the attributes of its inode if they were asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedEntry {
    /// The entry.
    pub entry: DirEntry,
    /// The attributes, of the same moment.
    pub stat: Option<Stat>,
}

/// Entries of a leaf of a directory, their inodes, and where the next leaf begins.
struct ListedLeaf {
    entries: Vec<ListedEntry>,
    ids: Vec<BlobId>,
    next: Option<u64>,
}

/// A descriptor that is open.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct OpenDescriptor {
    /// Pass this to go on behind it.
    pub cookie: u64,
    /// Inode number.
    pub inode: u64,
    /// Distinguishes inodes that had the same number in succession.
    pub generation: u32,
    /// Its kind.
    pub kind: FileKind,
    /// How it was opened.
    pub flags: OpenFlags,
    /// Current size in bytes; 0 for a directory.
    pub size_bytes: u64,
    /// It has lost its last name.
    pub unlinked: bool,
}

impl Fs {
    /// At most `entries_max` entries of a directory behind `cookie` (0: from the start), without
    /// `.` and `..`. None: the end. An entry that exists during the whole iteration appears exactly
    /// once. An inode that can't be read has no attributes. EACCES unless the caller may read the
    /// directory and, for attributes, search it.
    pub async fn list(
        &self,
        at: At<'_>,
        cookie: u64,
        entries_max: usize,
        attributes: bool,
    ) -> Result<Vec<ListedEntry>> {
        if attributes {
            // An error is another operation's to tell.
            let _ = self.absorb_all().await;
        }
        let mut entries = Vec::new();
        let mut from = cookie.saturating_add(1).max(names::KEY_MIN);
        loop {
            let before = entries.len();
            let max = entries_max - before;
            let listed = match self
                .list_leaf(at, from, max, (attributes, attributes))
                .await
            {
                Err(error) if attributes && is_damage(&error) => {
                    self.list_each(at, from, max).await
                }
                listed => listed,
            };
            match listed {
                Ok(mut leaf) => {
                    entries.append(&mut leaf.entries);
                    match leaf.next {
                        Some(next) if entries.len() < entries_max => {
                            from = next;
                            self.store.reactor().yield_now().await;
                        }
                        _ => return Ok(entries),
                    }
                }
                // The next call says so.
                Err(_) if before > 0 => return Ok(entries),
                Err(error) => return Err(error),
            }
        }
    }

    /// Entries of one leaf. Attributes are those of the same moment; an inode that can't be read
    /// makes it fail.
    async fn list_leaf(
        &self,
        at: At<'_>,
        from: u64,
        max: usize,
        (searches, attributes): (bool, bool),
    ) -> Result<ListedLeaf> {
        let mut wanted = Access::READ;
        wanted.set(Access::EXECUTE, searches);
        let mut looks = 0;
        let (directory, leaf) = self
            .store
            .view(|view| {
                looks += 1;
                let (mut entries, mut ids) = (Vec::new(), Vec::new());
                let (id, _) = resolve::existing(view, &self.base, at, Follow::Yes)?;
                let slot = resolve::directory(view, id)?;
                at.caller.check_access(slot, wanted)?;
                let next = names::read_leaf(view, slot, id.slot, from, |key, name, target| {
                    if entries.len() == max {
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
                for (&id, listed) in ids.iter().zip(&mut entries) {
                    if attributes {
                        let part = Part::new(view.partition_of(id)?);
                        listed.stat = Some(part.stat_now(id, view.slot_ref(id)?)?);
                    }
                }
                Ok((id, ListedLeaf { entries, ids, next }))
            })
            .await?;
        // Something wasn't in the cache.
        if looks > 1
            && let Some(next) = leaf.next
        {
            names::read_ahead(&self.store, directory, next).await;
        }
        Ok(leaf)
    }

    /// Entries of one leaf, with the attributes of each inode that can be read.
    async fn list_each(&self, at: At<'_>, from: u64, max: usize) -> Result<ListedLeaf> {
        let mut leaf = self.list_leaf(at, from, max, (true, false)).await?;
        for (&id, listed) in leaf.ids.iter().zip(&mut leaf.entries) {
            let stat = |view: &View<'_>| {
                let part = Part::new(view.partition_of(id)?);
                Ok(part.stat_now(id, view.slot_ref(id)?)?)
            };
            listed.stat = match self.store.view(stat).await {
                Ok(stat) => Some(stat),
                Err(error) if is_damage(&error) => None,
                Err(error) => return Err(error),
            };
        }
        Ok(leaf)
    }

    /// At most `max` open descriptors behind `cookie` (0: from the start). None: the end.
    pub async fn open_descriptors(&self, cookie: u64, max: usize) -> Vec<OpenDescriptor> {
        // An error is another operation's to tell.
        let _ = self.absorb_all().await;
        let (mut partition, mut from) = (cookie >> PARTITION_SHIFT, cookie & PLACE_MASK);
        let mut found = Vec::new();
        while found.len() < max {
            let left = max - found.len();
            let list = move |fs: &Fs| fs.own_descriptors(from as usize, left);
            let listed = self.within_partition(partition as usize, move |fs| {
                let listed = list(fs);
                Box::pin(async { Ok(listed) })
            });
            // A worker that has failed has none.
            let Some(listed) = listed.await else { break };
            let listed = listed.unwrap_or_default().into_iter();
            found.extend(listed.map(|descriptor| OpenDescriptor {
                cookie: partition << PARTITION_SHIFT | descriptor.cookie,
                ..descriptor
            }));
            (partition, from) = (partition + 1, 0);
        }
        found
    }

    /// Those of this worker, from an index on; their cookies are the next indexes.
    fn own_descriptors(&self, from: usize, max: usize) -> Vec<OpenDescriptor> {
        let descriptors = self.tables.descriptors.borrow();
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

/// True if the error is about an inode that can't be read, or that is gone though it has a name.
fn is_damage(error: &Error) -> bool {
    matches!(error.errno(), Errno::UCLEAN | Errno::IO | Errno::STALE)
}
