//! Inodes without names: they are deleted, or get a name in `/lost+found`.

use super::{Repair, is_directory};
use crate::inode::orphans::Orphans;
use crate::inode::slot::fresh_slot;
use crate::names::{self, Name, Target};
use crate::types::FileKind;
use adit_base::{Errno, Result};
use adit_store::{BlobId, Finding, FindingKind};
use std::collections::HashSet;

const LOST_AND_FOUND: &str = "lost+found";

fn lost_name(id: BlobId) -> String {
    format!("#{}-{}", id.slot, id.generation)
}

impl Repair {
    /// Finds inodes without names. Those with a link count of 0, or that cannot be used, become
    /// orphans; returns the others.
    pub(super) async fn nameless(&mut self, broken: &HashSet<u64>) -> Result<Vec<u64>> {
        let listed: HashSet<u64> = self.listed.iter().map(|entry| entry.target.slot).collect();
        let mut slots: Vec<u64> = Vec::new();
        for (slot, inode) in self.inodes.iter() {
            let needs_no_name = [self.root.slot, self.orphans.slot].contains(&slot);
            let named = inode.names > 0 || inode.kind == FileKind::Blob as u8;
            if !named && !needs_no_name && !listed.contains(&slot) {
                slots.push(slot);
            }
        }
        let mut lost = Vec::new();
        for slot in slots {
            let Some(inode) = self.inodes.get(slot).copied() else {
                continue;
            };
            let id = self.id(slot);
            let empty = !is_directory(&inode) || self.is_empty(id).await?;
            if broken.contains(&slot) || inode.links == 0 && empty {
                if !broken.contains(&slot) {
                    let finding = Finding::new(
                        FindingKind::Orphan,
                        "it was deleted while it was open, and nothing lists it",
                        "its space would never be freed",
                        "it is deleted",
                    );
                    self.found(finding.of_slot(slot));
                }
                let Some(kind) = FileKind::from_u8(inode.kind) else {
                    continue;
                };
                let orphans = Orphans {
                    store: self.store.clone(),
                    directory: self.orphans,
                    hash_key: self.hash_key,
                };
                self.store
                    .transact_freeing(|transaction| {
                        let mut slot = transaction.slot(id)?;
                        slot.links = 0;
                        transaction.put(id, slot)?;
                        orphans.add(transaction, id, kind)
                    })
                    .await?;
                self.inodes.remove(slot);
                continue;
            }
            lost.push(slot);
        }
        if lost.is_empty() {
            return Ok(lost);
        }
        let (place, _) = self.place_of_lost().await?;
        for slot in &lost {
            let finding = Finding::new(
                FindingKind::Lost,
                "no name leads to it",
                "it can't be found, and its space would never be freed",
                format!("it becomes /{place}/{}", lost_name(self.id(*slot))),
            );
            self.found(finding.of_slot(*slot));
        }
        Ok(lost)
    }

    /// Gives lost inodes names in `/lost+found`.
    pub(super) async fn adopt(&mut self, lost: Vec<u64>) -> Result<()> {
        if lost.is_empty() {
            return Ok(());
        }
        let directory = self.lost_and_found().await?;
        for slot in lost {
            let (id, name) = (self.id(slot), lost_name(self.id(slot)));
            let Some(inode) = self.inodes.get(slot).copied() else {
                continue;
            };
            let target = Target {
                slot,
                generation: id.generation,
                kind: inode.kind,
            };
            let mut free = name.clone();
            for attempt in 1.. {
                let added = self
                    .change_directory(directory, |key, transaction, slot| {
                        let name = Name::new(&key, free.as_bytes());
                        names::insert(transaction, slot, directory.slot, &name, target)
                    })
                    .await;
                match added {
                    Err(error) if error.errno() == Errno::EXIST => {
                        free = format!("{name}-{attempt}");
                    }
                    added => {
                        added?;
                        break;
                    }
                }
            }
            self.name(directory.slot, target);
        }
        Ok(())
    }

    /// Takes a name that was just made into the tables.
    fn name(&mut self, directory: u64, target: Target) {
        let Some(inode) = self.inodes.get_mut(target.slot) else {
            return;
        };
        inode.names += 1;
        if is_directory(inode) {
            if let Some(named) = self.directory_mut(target.slot) {
                named.named_in = Some(directory);
            }
            if let Some(above) = self.directory_mut(directory) {
                above.subdirectories += 1;
            }
        }
    }

    /// The name of the directory for lost inodes, and the directory if it exists: `/lost+found`, or
    /// a similar name while something else has that one. A directory that users other than root may
    /// enter doesn't qualify: the old parent of a lost inode may have kept them out.
    async fn place_of_lost(&self) -> Result<(String, Option<BlobId>)> {
        let root = self.root;
        let mut name = LOST_AND_FOUND.to_string();
        for attempt in 1.. {
            let key = self.hash_key;
            let found = self
                .store
                .view(|view| {
                    let name = Name::new(&key, name.as_bytes());
                    names::lookup(view, view.slot_ref(root)?, root.slot, &name)
                })
                .await?;
            let Some(target) = found else {
                break;
            };
            if self.is_live_directory(target.id()) && self.is_roots_alone(target.id()).await? {
                return Ok((name, Some(target.id())));
            }
            name = format!("{LOST_AND_FOUND}-{attempt}");
        }
        Ok((name, None))
    }

    async fn is_roots_alone(&self, id: BlobId) -> Result<bool> {
        self.store
            .view(|view| {
                let slot = view.slot_ref(id)?;
                Ok(slot.uid == 0 && slot.mode & 0o077 == 0)
            })
            .await
    }

    /// The directory for lost inodes, which is made if it isn't there.
    async fn lost_and_found(&mut self) -> Result<BlobId> {
        let root = self.root;
        let (name, found) = self.place_of_lost().await?;
        if let Some(id) = found {
            return Ok(id);
        }
        let mut fresh = fresh_slot(FileKind::Directory, 0o700);
        fresh.links = 2;
        fresh.parent = root.slot;
        names::initialize(&mut fresh);
        let key = self.hash_key;
        let id = self
            .store
            .transact_freeing(|transaction| {
                let id = transaction.create(fresh)?;
                let mut slot = transaction.slot(root)?;
                let target = Target::new(id, FileKind::Directory);
                let name = Name::new(&key, name.as_bytes());
                names::insert(transaction, &mut slot, root.slot, &name, target)?;
                slot.links = slot.links.saturating_add(1);
                transaction.put(root, slot)?;
                Ok(id)
            })
            .await?;
        self.know(id, root.slot);
        let target = Target::new(id, FileKind::Directory);
        self.name(root.slot, target);
        Ok(id)
    }
}
