//! Repair of a volume: of the store, and then of the names on it.
//!
//! Reads every entry of every directory, decides which of them are valid, and corrects entries,
//! kinds, parents, link counts, the root and the orphan directory. An inode that has links and no
//! name goes to `/lost+found`, as `#SLOT-GENERATION`. Every change is a transaction that leaves a
//! sound store, so power may fail between any two.
//!
//! It holds all entries in memory. The rules are in `docs/decisions/0012-check-and-repair.md`.

mod lost;
mod roots;

use crate::inode::symlink;
use crate::names::{self, Name, Target};
use crate::types::{FileKind, PATH_BYTES_MAX};
use crate::volume::Fs;
use adit_base::hash::HashKey;
use adit_base::{Errno, Result};
use adit_reactor::Reactor;
use adit_store::format::Slot;
use adit_store::pages::Stop;
use adit_store::{
    BlobId, Finding, FindingKind, Findings, RepairOptions, Store, StoreOptions, Transaction,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::rc::Rc;

/// The findings and counts of a repair.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RepairReport {
    /// The problems, as found before the repair.
    pub findings: Findings,
    /// Directories, the root included.
    pub directories: u64,
    /// Other inodes with names.
    pub files: u64,
    /// Unlinked inodes that the next opening deletes.
    pub orphans: u64,
    /// Blobs without names.
    pub blobs: u64,
}

impl RepairReport {
    /// True if there was no problem.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Repairs the volume on a reactor's device, and opens it. On a sound volume it changes no more
/// than any opening. It calls `progress` with the steps done and about how many there are;
/// `keep_abandoned` as in [`RepairOptions`].
pub async fn repair(
    reactor: Rc<Reactor>,
    options: &StoreOptions,
    progress: &mut dyn FnMut(u64, u64),
    keep_abandoned: bool,
) -> Result<(Fs, RepairReport)> {
    let below = RepairOptions {
        names: &names::salvage::Leaves,
        progress,
        keep_abandoned,
    };
    let (store, findings) = Store::repair(reactor, options, below).await?;
    let mut repair = Repair {
        hash_key: store.hash_key(),
        store,
        report: RepairReport {
            findings,
            ..RepairReport::default()
        },
        inodes: HashMap::new(),
        root: NOWHERE,
        orphans: NOWHERE,
        entries: Vec::new(),
        parents: HashMap::new(),
        listed: Vec::new(),
    };
    repair.run().await?;
    let (store, report) = (repair.store, repair.report);
    store.sync_all().await?;
    let fs = Fs::open_volume(store).await?;
    Ok((fs, report))
}

const NOWHERE: BlobId = BlobId {
    slot: 0,
    generation: 0,
};

/// An inode, and the entries that name it, counted.
#[derive(Clone, Copy, Debug)]
struct Inode {
    generation: u32,
    kind: u8,
    links: u32,
    parent: u64,
    names: u32,
    subdirectories: u32,
}

/// An entry of a directory that has one.
#[derive(Clone, Debug)]
struct Entry {
    directory: u64,
    name: Vec<u8>,
    target: Target,
}

struct Repair {
    store: Store,
    hash_key: HashKey,
    report: RepairReport,
    inodes: HashMap<u64, Inode>,
    root: BlobId,
    orphans: BlobId,
    entries: Vec<Entry>,
    /// Of each directory that has a name, the valid entry.
    parents: HashMap<u64, usize>,
    /// The entries of the orphan directory.
    listed: Vec<Entry>,
}

fn is_directory(inode: &Inode) -> bool {
    inode.kind == FileKind::Directory as u8
}

impl Repair {
    fn found(&mut self, finding: Finding) {
        self.report.findings.add(finding);
    }

    fn id(&self, slot: u64) -> BlobId {
        let generation = self.inodes.get(&slot).map_or(0, |inode| inode.generation);
        BlobId { slot, generation }
    }

    async fn run(&mut self) -> Result<()> {
        self.inodes().await?;
        self.roots().await?;
        self.read_entries().await?;
        let dropped = self.judge();
        let looped = self.break_loops();
        self.list_orphans();
        let broken = self.symlinks().await?;
        for index in dropped.into_iter().chain(looped) {
            self.remove(index).await?;
        }
        self.say_links();
        self.drop_symlinks(&broken).await?;
        let lost = self.nameless(&broken).await?;
        self.adopt(lost).await?;
        // All that needs correction was found before.
        if !self.report.is_clean() {
            self.set_links().await?;
        }
        self.count();
        self.add_paths();
        Ok(())
    }

    async fn inodes(&mut self) -> Result<()> {
        let inodes = &mut self.inodes;
        let mut blobs = 0;
        self.store
            .for_each_blob(&mut |id, slot| {
                blobs += u64::from(slot.kind == FileKind::Blob as u8);
                let inode = Inode {
                    generation: id.generation,
                    kind: slot.kind,
                    links: slot.links,
                    parent: slot.parent,
                    names: 0,
                    subdirectories: 0,
                };
                inodes.insert(id.slot, inode);
                Ok(())
            })
            .await?;
        self.report.blobs = blobs;
        Ok(())
    }

    fn is_live_directory(&self, id: BlobId) -> bool {
        self.inodes
            .get(&id.slot)
            .is_some_and(|inode| is_directory(inode) && inode.generation == id.generation)
    }

    async fn entries_of(&mut self, id: BlobId) -> Result<Vec<Entry>> {
        let mut all = Vec::new();
        let mut from = 0;
        loop {
            let mut entries = Vec::new();
            let listed = self
                .store
                .view(|view| {
                    entries.clear();
                    let slot = view.slot_ref(id)?;
                    names::read_leaf(view, slot, id.slot, from, |_, name, target| {
                        entries.push(Entry {
                            directory: id.slot,
                            name: name.to_vec(),
                            target,
                        });
                        true
                    })
                })
                .await;
            all.append(&mut entries);
            match listed {
                Ok(Some(next)) => from = next,
                Ok(None) => return Ok(all),
                Err(error) if matches!(error.errno(), Errno::UCLEAN | Errno::IO) => {
                    let finding = Finding::new(
                        FindingKind::Directory,
                        error.to_string(),
                        "names in it can't be read",
                        "",
                    );
                    self.found(finding.of_slot(id.slot).beyond_repair());
                    return Ok(all);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The entries of all directories.
    async fn read_entries(&mut self) -> Result<()> {
        let mut directories: Vec<u64> = self
            .inodes
            .iter()
            .filter(|(_, inode)| is_directory(inode))
            .map(|(slot, _)| *slot)
            .collect();
        directories.sort_unstable();
        for slot in directories {
            let entries = self.entries_of(self.id(slot)).await?;
            if slot == self.orphans.slot {
                self.listed = entries
            } else {
                self.entries.extend(entries)
            }
        }
        Ok(())
    }

    /// Judges every entry, and counts the valid ones. Returns the others.
    fn judge(&mut self) -> Vec<usize> {
        let mut dropped = Vec::new();
        let mut several: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        let entries = std::mem::take(&mut self.entries);
        for (index, entry) in entries.iter().enumerate() {
            let slot = entry.target.slot;
            let (root, orphans) = (self.root.slot, self.orphans.slot);
            let what = match self.inodes.get_mut(&slot) {
                Some(inode) if inode.generation == entry.target.generation => {
                    if inode.kind == FileKind::Blob as u8 {
                        Some("leads to a blob, which has no names")
                    } else if slot == root || slot == orphans {
                        Some("leads to the root or to the directory of orphans")
                    } else if is_directory(inode) {
                        several.entry(slot).or_default().push(index);
                        None
                    } else {
                        inode.names += 1;
                        None
                    }
                }
                _ => Some("leads to an inode that is gone"),
            };
            if let Some(what) = what {
                dropped.push(index);
                let finding = Finding::new(
                    FindingKind::Entry,
                    format!("the name {:?} {what}", String::from_utf8_lossy(&entry.name)),
                    "it can't be opened",
                    "the name is removed",
                );
                self.found(finding.of_slot(entry.directory));
            }
        }
        for (slot, indices) in several {
            let parent = self.inodes.get(&slot).map_or(0, |inode| inode.parent);
            let right = indices
                .iter()
                .find(|index| entries[**index].directory == parent);
            let keep = right.copied().unwrap_or(indices[0]);
            self.parents.insert(slot, keep);
            for index in indices.into_iter().filter(|index| *index != keep) {
                dropped.push(index);
                let entry = &entries[index];
                let finding = Finding::new(
                    FindingKind::Entry,
                    format!(
                        "the name {:?} leads to the directory {slot}, which has another one",
                        String::from_utf8_lossy(&entry.name)
                    ),
                    "a directory would be in two places",
                    "the name is removed",
                );
                self.found(finding.of_slot(entry.directory));
            }
        }
        self.entries = entries;
        dropped
    }

    /// Breaks loops of directories, and counts subdirectories. Returns the entries that close a
    /// loop.
    fn break_loops(&mut self) -> Vec<usize> {
        let mut looped = Vec::new();
        let mut reached: HashSet<u64> = HashSet::from([self.root.slot]);
        let mut directories: Vec<u64> = self.parents.keys().copied().collect();
        directories.sort_unstable();
        for start in directories {
            let (mut way, mut at) = (Vec::new(), start);
            while reached.insert(at) {
                way.push(at);
                match self.parents.get(&at) {
                    Some(index) => at = self.entries[*index].directory,
                    None => break,
                }
            }
            if way.contains(&at)
                && let Some(index) = self.parents.remove(&at)
            {
                looped.push(index);
                let finding = Finding::new(
                    FindingKind::Directory,
                    "the directory is inside of itself",
                    "no path leads to it",
                    "it goes to /lost+found",
                );
                self.found(finding.of_slot(at));
            }
        }
        for (slot, index) in &self.parents {
            let above = self.entries[*index].directory;
            if let Some(inode) = self.inodes.get_mut(&above) {
                inode.subdirectories += 1;
            }
            if let Some(inode) = self.inodes.get_mut(slot) {
                inode.names = 1;
            }
        }
        looped
    }

    /// The entries of the orphan directory that may be deleted.
    fn list_orphans(&mut self) {
        let listed = std::mem::take(&mut self.listed);
        let with_entries: HashSet<u64> = self.entries.iter().map(|entry| entry.directory).collect();
        for entry in listed {
            let Some(inode) = self.inodes.get(&entry.target.slot).copied() else {
                continue; // left behind, see `orphans.rs`
            };
            if inode.generation != entry.target.generation {
                continue;
            }
            // Only an empty directory is removed.
            let empty = !with_entries.contains(&entry.target.slot);
            if inode.names == 0 && inode.links == 0 && inode.kind == entry.target.kind && empty {
                self.report.orphans += 1;
                self.listed.push(entry);
                continue;
            }
            let finding = Finding::new(
                FindingKind::Orphan,
                "the directory of orphans lists it, but it isn't one",
                "it could be deleted",
                "it is taken off the list",
            );
            self.found(finding.of_slot(entry.target.slot));
            let directory = entry.directory;
            self.entries.push(Entry { directory, ..entry });
        }
    }

    /// Symbolic links that can't be read.
    async fn symlinks(&mut self) -> Result<HashSet<u64>> {
        let mut links: Vec<u64> = Vec::new();
        for (slot, inode) in &self.inodes {
            if inode.kind == FileKind::Symlink as u8 {
                links.push(*slot);
            }
        }
        links.sort_unstable();
        let mut broken = HashSet::new();
        for slot in links {
            let id = self.id(slot);
            let read = self.store.view(|view| symlink::target(view, id)).await;
            match read {
                Ok(_) => {}
                Err(error) if matches!(error.errno(), Errno::UCLEAN | Errno::IO) => {
                    broken.insert(slot);
                    let finding = Finding::new(
                        FindingKind::Symlink,
                        "the target of the symbolic link is lost",
                        "it can't be followed",
                        "it is deleted",
                    );
                    self.found(finding.of_slot(slot));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(broken)
    }

    /// Removes an invalid entry.
    async fn remove(&mut self, index: usize) -> Result<()> {
        let entry = self.entries[index].clone();
        let id = self.id(entry.directory);
        self.change_directory(id, |repair, transaction, slot| {
            let name = Name::new(&repair, &entry.name);
            match names::remove(transaction, slot, id.slot, &name) {
                Err(Stop::Fail(error)) if error.errno() == Errno::NOENT => Ok(()),
                removed => removed.map(drop),
            }
        })
        .await
    }

    async fn change_directory(
        &self,
        id: BlobId,
        mut f: impl FnMut(HashKey, &mut Transaction<'_>, &mut Slot) -> Result<(), Stop>,
    ) -> Result<()> {
        let key = self.hash_key;
        self.store
            .transact_freeing(|transaction| {
                let mut slot = transaction.slot(id)?;
                f(key, transaction, &mut slot)?;
                transaction.put(id, slot)
            })
            .await
    }

    /// Removes the names of symbolic links that lost their targets.
    async fn drop_symlinks(&mut self, broken: &HashSet<u64>) -> Result<()> {
        for index in 0..self.entries.len() {
            if !broken.contains(&self.entries[index].target.slot) {
                continue;
            }
            self.remove(index).await?;
            let slot = self.entries[index].target.slot;
            if let Some(inode) = self.inodes.get_mut(&slot) {
                inode.names = 0;
            }
        }
        Ok(())
    }

    /// The links that an inode has to have.
    fn links(&self, slot: u64, inode: &Inode) -> u32 {
        if inode.names == 0 && slot != self.root.slot && slot != self.orphans.slot {
            0
        } else if is_directory(inode) {
            2 + inode.subdirectories
        } else {
            inode.names
        }
    }

    fn parent(&self, slot: u64) -> u64 {
        match self.parents.get(&slot) {
            Some(index) => self.entries[*index].directory,
            None => slot,
        }
    }

    /// Reports wrong link counts, parents, and kinds in entries, of inodes with names.
    fn say_links(&mut self) {
        let mut slots: Vec<u64> = self.inodes.keys().copied().collect();
        slots.sort_unstable();
        let nameless = [self.root.slot, self.orphans.slot];
        let mut found = Vec::new();
        for slot in slots {
            let Some(inode) = self.inodes.get(&slot) else {
                continue;
            };
            if inode.kind == FileKind::Blob as u8 || inode.names == 0 && !nameless.contains(&slot) {
                continue;
            }
            let links = self.links(slot, inode);
            if inode.links != links {
                found.push(
                    Finding::new(
                        FindingKind::Links,
                        format!("it counts {} links, but has {links}", inode.links),
                        if inode.links < links {
                            "its content would be deleted with one of its names"
                        } else {
                            "its space would never be freed"
                        },
                        "the count is corrected",
                    )
                    .of_slot(slot),
                );
            }
            if is_directory(inode) && inode.parent != self.parent(slot) {
                let (says, is) = (inode.parent, self.parent(slot));
                found.push(
                    Finding::new(
                        FindingKind::Links,
                        format!("it says that its parent is inode {says}, but it is in {is}"),
                        "`..` leads astray",
                        "the parent is corrected",
                    )
                    .of_slot(slot),
                );
            }
        }
        for entry in &self.entries {
            let Some(inode) = self.inodes.get(&entry.target.slot) else {
                continue;
            };
            if inode.generation == entry.target.generation
                && inode.kind != entry.target.kind
                && entry.directory != self.orphans.slot
                && inode.kind != FileKind::Blob as u8
            {
                found.push(
                    Finding::new(
                        FindingKind::Entry,
                        format!(
                            "the name {:?} says that it is of kind {}, but it is of kind {}",
                            String::from_utf8_lossy(&entry.name),
                            entry.target.kind,
                            inode.kind
                        ),
                        "it can't be opened",
                        "the name is corrected",
                    )
                    .of_slot(entry.directory),
                );
            }
        }
        for finding in found {
            self.found(finding);
        }
    }

    /// Corrects link counts, parents, and kinds in entries.
    async fn set_links(&mut self) -> Result<()> {
        let mut slots: Vec<u64> = self.inodes.keys().copied().collect();
        slots.sort_unstable();
        let listed: HashSet<u64> = self.listed.iter().map(|entry| entry.target.slot).collect();
        for slot in slots {
            let Some(inode) = self.inodes.get(&slot).copied() else {
                continue;
            };
            if inode.kind == FileKind::Blob as u8 || listed.contains(&slot) {
                continue;
            }
            let (id, links) = (self.id(slot), self.links(slot, &inode));
            let parent = if is_directory(&inode) {
                self.parent(slot)
            } else {
                inode.parent
            };
            if self
                .store
                .view(|view| view.slot(id))
                .await
                .is_ok_and(|slot| slot.links == links && slot.parent == parent)
            {
                continue;
            }
            self.change_directory(id, |_, _, slot| {
                (slot.links, slot.parent) = (links, parent);
                Ok(())
            })
            .await?;
        }
        for index in 0..self.entries.len() {
            let entry = self.entries[index].clone();
            let Some(inode) = self.inodes.get(&entry.target.slot).copied() else {
                continue;
            };
            if inode.generation != entry.target.generation
                || inode.kind == entry.target.kind
                || entry.directory == self.orphans.slot
                || inode.kind == FileKind::Blob as u8
            {
                continue;
            }
            let target = Target {
                kind: inode.kind,
                ..entry.target
            };
            let id = self.id(entry.directory);
            self.change_directory(id, |key, transaction, slot| {
                let name = Name::new(&key, &entry.name);
                match names::replace(transaction, slot, id.slot, &name, target) {
                    Err(Stop::Fail(error)) if error.errno() == Errno::NOENT => Ok(()),
                    replaced => replaced.map(drop),
                }
            })
            .await?;
        }
        Ok(())
    }

    fn count(&mut self) {
        self.report.directories = 1 + self.parents.len() as u64;
        let files = self
            .inodes
            .values()
            .filter(|inode| !is_directory(inode) && inode.names > 0);
        self.report.files = files.count() as u64;
    }

    /// Adds paths to findings about inodes.
    fn add_paths(&mut self) {
        let wanted: HashSet<u64> = self
            .report
            .findings
            .list
            .iter()
            .filter_map(|finding| finding.slot)
            .collect();
        if wanted.is_empty() {
            return;
        }
        let mut named: HashMap<u64, usize> = HashMap::new();
        for (index, entry) in self.entries.iter().enumerate() {
            let live = self.id(entry.target.slot) == entry.target.id();
            if live && wanted.contains(&entry.target.slot) && entry.directory != self.orphans.slot {
                named.entry(entry.target.slot).or_insert(index);
            }
        }
        let mut paths: HashMap<u64, PathBuf> = HashMap::new();
        for slot in wanted {
            let mut path = Vec::new();
            let mut at = slot;
            let mut next = self.parents.get(&slot).or_else(|| named.get(&slot));
            while let Some(index) = next
                && path.len() < PATH_BYTES_MAX
            {
                let entry = &self.entries[*index];
                path = [b"/", &entry.name[..], &path].concat();
                at = entry.directory;
                next = self.parents.get(&at);
            }
            if at == self.root.slot {
                let path = if path.is_empty() { b"/".into() } else { path };
                paths.insert(slot, OsString::from_vec(path).into());
            }
        }
        for finding in &mut self.report.findings.list {
            if finding.path.is_none()
                && let Some(path) = finding.slot.and_then(|slot| paths.get(&slot))
            {
                finding.path = Some(path.clone());
            }
        }
    }
}
