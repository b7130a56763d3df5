//! The root and the directory of orphans, when the state page doesn't name them.

use super::entries::{self, Entry};
use super::{Directory, Inode, NOWHERE, Repair};
use crate::inode::slot::fresh_slot;
use crate::names;
use crate::types::FileKind;
use adit_base::Result;
use adit_store::{BlobId, Finding, FindingKind};
use std::collections::BTreeSet;

impl Repair {
    /// Finds the root and the orphan directory: those of the state page, else directories that look
    /// like them, else new ones.
    pub(super) async fn roots(&mut self) -> Result<()> {
        let state = self.store.state().await?;
        let id = |slot, generation| BlobId { slot, generation };
        let root = id(state.root, state.root_generation);
        let orphans = id(state.orphans, state.orphans_generation);
        let root = Some(root).filter(|id| self.is_live_directory(*id));
        let own_parent = |repair: &Repair, id: BlobId| {
            (repair.directory(id.slot)).is_some_and(|directory| directory.parent == id.slot)
        };
        let orphans = Some(orphans)
            .filter(|id| self.is_live_directory(*id) && Some(*id) != root && own_parent(self, *id));
        let (mut root, mut orphans) = (root, orphans);
        if root.is_some() && orphans.is_some() {
            self.root = root.unwrap_or(NOWHERE);
            self.orphans = orphans.unwrap_or(NOWHERE);
            return Ok(());
        }
        // Both were made first, and only they are their own parents.
        let mut candidates: Vec<BlobId> = Vec::new();
        for directory in &self.directories {
            let id = self.id(directory.slot);
            if directory.parent == id.slot && Some(id) != root && Some(id) != orphans {
                candidates.push(id);
            }
        }
        candidates.sort_by_key(|id| (id.generation, id.slot));
        let mut listing = BTreeSet::new();
        for id in &candidates {
            let (mut any, mut all_orphans) = (false, true);
            let each = &mut |entry: Entry, name: &[u8]| {
                any = true;
                all_orphans &= name.len() == 16
                    && std::str::from_utf8(name)
                        .is_ok_and(|name| u64::from_str_radix(name, 16) == Ok(entry.target.slot));
            };
            entries::of_directory(&self.store, id.slot, each).await?;
            if any && all_orphans {
                listing.insert(*id);
            } else if any {
                root.get_or_insert(*id);
            }
        }
        candidates.retain(|id| Some(*id) != root);
        if orphans.is_none() && !listing.is_empty() {
            orphans = candidates.iter().copied().find(|id| listing.contains(id));
            candidates.retain(|id| Some(*id) != orphans);
        }
        candidates.retain(|id| !listing.contains(id));
        let mut empty = candidates.into_iter();
        let root_found = root.or_else(|| empty.next());
        let orphans_found = orphans.or_else(|| empty.next());
        let finding = |what: &str, found: Option<BlobId>| {
            Finding::new(
                FindingKind::State,
                format!("the state page names no {what}"),
                "the volume can't be opened",
                match found {
                    Some(id) => format!("it is inode {}", id.slot),
                    None => "a new one is made".into(),
                },
            )
        };
        if root.is_none_or(|id| {
            id != BlobId {
                slot: state.root,
                generation: state.root_generation,
            }
        }) {
            self.found(finding("root directory", root_found));
        }
        if orphans.is_none_or(|id| {
            id != BlobId {
                slot: state.orphans,
                generation: state.orphans_generation,
            }
        }) {
            self.found(finding("directory of orphans", orphans_found));
        }
        self.root = self.directory_or_new(root_found).await?;
        self.orphans = self.directory_or_new(orphans_found).await?;
        let (root, orphans) = (self.root, self.orphans);
        self.store
            .transact_freeing(|transaction| {
                transaction.set_root(root)?;
                transaction.set_orphans(orphans)
            })
            .await
    }

    /// A directory that is its own parent, made if missing.
    async fn directory_or_new(&mut self, found: Option<BlobId>) -> Result<BlobId> {
        if let Some(id) = found {
            return Ok(id);
        }
        let mut slot = fresh_slot(FileKind::Directory, 0o755);
        slot.links = 2;
        names::initialize(&mut slot);
        let id = self
            .store
            .transact_freeing(|transaction| {
                let id = transaction.create(slot)?;
                let mut slot = transaction.slot(id)?;
                slot.parent = id.slot;
                transaction.put(id, slot)?;
                Ok(id)
            })
            .await?;
        self.know(id, id.slot);
        Ok(id)
    }

    /// Takes a directory that was just made into the table.
    pub(super) fn know(&mut self, id: BlobId, parent: u64) {
        let inode = Inode {
            generation: id.generation,
            links: 2,
            names: 0,
            kind: FileKind::Directory as u8,
        };
        self.inodes.insert(id.slot, inode);
        let place = self.directories.partition_point(|of| of.slot < id.slot);
        let directory = Directory::new(id.slot, parent);
        self.directories.insert(place, directory);
    }
}
