//! Repair of a volume: of the store, and then of the names on it.
//!
//! Reads every entry of every directory, decides which of them are valid, and corrects entries,
//! kinds, parents, link counts, the root and the orphan directory. An inode that has links and no
//! name goes to `/lost+found`, as `#SLOT-GENERATION`. Every change is a transaction that leaves a
//! sound store, so power may fail between any two.
//!
//! Entries are read one leaf after the other and judged at once. Memory: 16 bytes an inode, 48 more
//! a directory, 32 an entry that is invalid or an orphan, and the findings. The rules are in
//! `docs/decisions/0012-check-and-repair.md`.

mod entries;
mod lost;
mod paths;
mod roots;

use crate::inode::symlink;
use crate::names::{self, Name, Target};
use crate::types::FileKind;
use crate::volume::Fs;
use adit_base::hash::HashKey;
use adit_base::{Errno, Result};
use adit_reactor::Reactor;
use adit_store::format::Slot;
use adit_store::pages::Stop;
use adit_store::{
    BlobId, Finding, FindingKind, Findings, RepairOptions, SlotTable, Store, StoreOptions,
    Transaction,
};
use entries::Entry;
use paths::Named;
use std::collections::{BTreeMap, HashSet};
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
        inodes: SlotTable::default(),
        directories: Vec::new(),
        root: NOWHERE,
        orphans: NOWHERE,
        invalid: Vec::new(),
        doubles: Vec::new(),
        miscast: (Vec::new(), Findings::default()),
        listed: Vec::new(),
        unnamed_links: BTreeMap::new(),
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
    links: u32,
    names: u32,
    kind: u8,
}

/// The state of a directory, beside that of its inode.
#[derive(Clone, Copy, Debug)]
struct Directory {
    slot: u64,
    /// Its parent, as it says itself.
    parent: u64,
    /// The valid entry that names it: its directory and key.
    named_in: Option<u64>,
    key: u64,
    subdirectories: u32,
    has_entries: bool,
    /// Of the search for loops.
    reached: bool,
}

const _: () = assert!(size_of::<Inode>() == 16 && size_of::<Directory>() == 48);
const _: () = assert!(size_of::<Entry>() == 32);

struct Repair {
    store: Store,
    hash_key: HashKey,
    report: RepairReport,
    inodes: SlotTable<Inode>,
    /// By ascending slot.
    directories: Vec<Directory>,
    root: BlobId,
    orphans: BlobId,
    /// Entries that have to go.
    invalid: Vec<Entry>,
    /// Entries that name a directory which another one names.
    doubles: Vec<Entry>,
    /// Entries of the wrong kind, and their findings.
    miscast: (Vec<Entry>, Findings),
    /// The entries of the orphan directory.
    listed: Vec<Entry>,
    /// A name of each symbolic link that was removed.
    unnamed_links: BTreeMap<u64, Named>,
}

fn is_directory(inode: &Inode) -> bool {
    inode.kind == FileKind::Directory as u8
}

impl Repair {
    fn found(&mut self, finding: Finding) {
        self.report.findings.add(finding);
    }

    fn id(&self, slot: u64) -> BlobId {
        let generation = self.inodes.get(slot).map_or(0, |inode| inode.generation);
        BlobId { slot, generation }
    }

    fn directory(&self, slot: u64) -> Option<&Directory> {
        let index = self.directories.binary_search_by_key(&slot, |of| of.slot);
        self.directories.get(index.ok()?)
    }

    fn directory_mut(&mut self, slot: u64) -> Option<&mut Directory> {
        let index = self.directories.binary_search_by_key(&slot, |of| of.slot);
        self.directories.get_mut(index.ok()?)
    }

    async fn run(&mut self) -> Result<()> {
        self.inodes().await?;
        self.roots().await?;
        self.read_entries().await?;
        self.settle_doubles().await?;
        self.break_loops();
        let false_orphans = self.list_orphans();
        let broken = self.symlinks().await?;
        for entry in std::mem::take(&mut self.invalid) {
            self.remove(entry).await?;
        }
        self.say_links();
        self.drop_symlinks(&broken).await?;
        for entry in false_orphans {
            self.remove(entry).await?;
        }
        let lost = self.nameless(&broken).await?;
        self.adopt(lost).await?;
        // All that needs correction was found before.
        if !self.report.is_clean() {
            self.set_links().await?;
        }
        self.count();
        self.add_paths().await
    }

    async fn inodes(&mut self) -> Result<()> {
        let (inodes, directories) = (&mut self.inodes, &mut self.directories);
        let mut blobs = 0;
        self.store
            .for_each_blob(&mut |id, slot| {
                blobs += u64::from(slot.kind == FileKind::Blob as u8);
                let inode = Inode {
                    generation: id.generation,
                    links: slot.links,
                    names: 0,
                    kind: slot.kind,
                };
                inodes.insert(id.slot, inode);
                if is_directory(&inode) {
                    directories.push(Directory::new(id.slot, slot.parent));
                }
                Ok(())
            })
            .await?;
        self.report.blobs = blobs;
        Ok(())
    }

    fn is_live_directory(&self, id: BlobId) -> bool {
        self.inodes
            .get(id.slot)
            .is_some_and(|inode| is_directory(inode) && inode.generation == id.generation)
    }

    /// Breaks loops of directories, and counts subdirectories. The entries that close a loop are
    /// invalid.
    fn break_loops(&mut self) {
        if let Some(root) = self.directory_mut(self.root.slot) {
            root.reached = true;
        }
        for index in 0..self.directories.len() {
            let Directory { slot, named_in, .. } = self.directories[index];
            if named_in.is_none() {
                continue;
            }
            let (mut way, mut at) = (Vec::new(), slot);
            while let Some(directory) = self.directory_mut(at)
                && !directory.reached
            {
                directory.reached = true;
                way.push(at);
                match directory.named_in {
                    Some(above) => at = above,
                    None => break,
                }
            }
            if way.contains(&at)
                && let Some(directory) = self.directory_mut(at)
                && let Some(above) = directory.named_in.take()
            {
                let key = directory.key;
                let target = Target::new(self.id(at), FileKind::Directory);
                self.invalid.push(Entry {
                    directory: above,
                    key,
                    target,
                });
                let finding = Finding::new(
                    FindingKind::Directory,
                    "the directory is inside of itself",
                    "no path leads to it",
                    "it goes to /lost+found",
                );
                self.found(finding.of_slot(at));
            }
        }
        for index in 0..self.directories.len() {
            let Directory { slot, named_in, .. } = self.directories[index];
            let Some(above) = named_in else {
                continue;
            };
            if let Some(above) = self.directory_mut(above) {
                above.subdirectories += 1;
            }
            if let Some(inode) = self.inodes.get_mut(slot) {
                inode.names = 1;
            }
        }
    }

    /// Keeps the entries of the orphan directory that may be deleted; returns the others.
    fn list_orphans(&mut self) -> Vec<Entry> {
        let mut others = Vec::new();
        for entry in std::mem::take(&mut self.listed) {
            let slot = entry.target.slot;
            let Some(inode) = self.inodes.get(slot).copied() else {
                continue; // left behind, see `orphans.rs`
            };
            if inode.generation != entry.target.generation {
                continue;
            }
            // Only an empty directory is removed.
            let empty = !(self.directory(slot)).is_some_and(|directory| directory.has_entries);
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
            self.found(finding.of_slot(slot));
            others.push(entry);
        }
        others
    }

    /// Symbolic links that can't be read.
    async fn symlinks(&mut self) -> Result<HashSet<u64>> {
        let mut broken = HashSet::new();
        let mut from = 0;
        loop {
            let is_symlink = |of: &(u64, &Inode)| of.1.kind == FileKind::Symlink as u8;
            let Some((slot, _)) = self.inodes.range(from).find(is_symlink) else {
                return Ok(broken);
            };
            from = slot + 1;
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
    }

    /// Removes an entry.
    async fn remove(&mut self, entry: Entry) -> Result<()> {
        let Some(name) = self.name_of(entry).await? else {
            return Ok(());
        };
        let id = self.id(entry.directory);
        self.change_directory(id, |key, transaction, slot| {
            let name = Name::new(&key, &name);
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
        if broken.is_empty() {
            return Ok(());
        }
        let mut names = Vec::new();
        let unnamed = &mut self.unnamed_links;
        let each = &mut |entry: Entry, name: &[u8]| {
            if broken.contains(&entry.target.slot) {
                names.push(entry);
                unnamed.entry(entry.target.slot).or_insert_with(|| Named {
                    directory: entry.directory,
                    name: name.to_vec(),
                });
            }
        };
        entries::all(&self.store, &self.directories, self.orphans, each).await?;
        for entry in names {
            self.remove(entry).await?;
            if let Some(inode) = self.inodes.get_mut(entry.target.slot) {
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
            2 + (self.directory(slot)).map_or(0, |directory| directory.subdirectories)
        } else {
            inode.names
        }
    }

    fn parent(&self, slot: u64) -> u64 {
        let named_in = (self.directory(slot)).and_then(|directory| directory.named_in);
        named_in.unwrap_or(slot)
    }

    /// Reports wrong link counts, parents, and kinds in entries, of inodes with names.
    fn say_links(&mut self) {
        let nameless = [self.root.slot, self.orphans.slot];
        let mut found = Findings::default();
        for (slot, inode) in self.inodes.iter() {
            if inode.kind == FileKind::Blob as u8 || inode.names == 0 && !nameless.contains(&slot) {
                continue;
            }
            let links = self.links(slot, inode);
            if inode.links != links {
                found.add(
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
            let Some(says) = self.says_parent(slot, inode) else {
                continue;
            };
            let is = self.parent(slot);
            if says != is {
                found.add(
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
        self.report.findings.append(found);
        let miscast = std::mem::take(&mut self.miscast.1);
        self.report.findings.append(miscast);
    }

    /// Of a directory, the parent that it names itself.
    fn says_parent(&self, slot: u64, inode: &Inode) -> Option<u64> {
        let directory = is_directory(inode).then(|| self.directory(slot));
        directory.flatten().map(|directory| directory.parent)
    }

    /// Corrects link counts, parents, and kinds in entries.
    async fn set_links(&mut self) -> Result<()> {
        let listed: HashSet<u64> = self.listed.iter().map(|entry| entry.target.slot).collect();
        let mut from = 0;
        while let Some((slot, inode)) = self.inodes.first_from(from) {
            from = slot + 1;
            if inode.kind == FileKind::Blob as u8 || listed.contains(&slot) {
                continue;
            }
            let (id, links) = (self.id(slot), self.links(slot, &inode));
            let parent = is_directory(&inode).then(|| self.parent(slot));
            let is_right = |slot: &Slot| {
                slot.links == links && parent.is_none_or(|parent| slot.parent == parent)
            };
            if (self.store.view(|view| view.slot(id)).await).is_ok_and(|slot| is_right(&slot)) {
                continue;
            }
            self.change_directory(id, |_, _, slot| {
                slot.links = links;
                slot.parent = parent.unwrap_or(slot.parent);
                Ok(())
            })
            .await?;
        }
        for entry in std::mem::take(&mut self.miscast.0) {
            let Some(inode) = self.inodes.get(entry.target.slot).copied() else {
                continue;
            };
            let Some(name) = self.name_of(entry).await? else {
                continue;
            };
            let target = Target {
                kind: inode.kind,
                ..entry.target
            };
            let id = self.id(entry.directory);
            self.change_directory(id, |key, transaction, slot| {
                let name = Name::new(&key, &name);
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
        let named = (self.directories.iter()).filter(|directory| directory.named_in.is_some());
        self.report.directories = 1 + named.count() as u64;
        let files = self
            .inodes
            .iter()
            .filter(|(_, inode)| !is_directory(inode) && inode.names > 0);
        self.report.files = files.count() as u64;
    }
}

impl Directory {
    fn new(slot: u64, parent: u64) -> Directory {
        Directory {
            slot,
            parent,
            named_in: None,
            key: 0,
            subdirectories: 0,
            has_entries: false,
            reached: false,
        }
    }
}
