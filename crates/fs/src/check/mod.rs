//! Checks the namespace: walks all directories and compares their entries with the inodes.
//!
//! It finds entries of missing inodes or of inodes of another kind, directories with several names
//! or a wrong parent, wrong link counts, and inodes that have no name and are no orphans. It
//! changes nothing and continues after a finding. It needs 16 bytes of memory an inode, and the
//! paths of the directories still to be visited, and lets other operations run meanwhile.
//! `Store::check` checks pages and maps.

mod scrub;

use crate::inode::resolve;
use crate::inode::slot::kind_of;
use crate::inode::symlink;
use crate::names;
use crate::types::{FileKind, PATH_BYTES_MAX};
use crate::volume::Fs;
use adit_base::{Errno, Error, Result};
use adit_store::{BlobId, SlotTable};

/// The result of a check.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// Directories that can be reached, the root included.
    pub directories: u64,
    /// Other inodes that can be reached.
    pub files: u64,
    /// Unlinked inodes that are open, or that the next opening deletes.
    pub orphans: u64,
    /// Blobs without names.
    pub blobs: u64,
    /// The problems, a sentence each. Empty: none.
    pub problems: Vec<String>,
}

/// Attempts of a check beside other operations, then attempts that exclude them. Even then others
/// may change the volume while it waits for the device.
const ATTEMPTS: usize = 2;
const ATTEMPTS_ALONE: usize = 4;
/// Names and inodes after which others get the worker.
const STEPS_PER_TURN: usize = 256;
/// Problems listed at most; a volume that is damaged all over has as many as entries.
const PROBLEMS_MAX: usize = 1000;

#[derive(Clone, Copy, Debug)]
struct Seen {
    generation: u32,
    names: u32,
    subdirectories: u32,
    kind: FileKind,
    orphan: bool,
}

const _: () = assert!(size_of::<Seen>() == 16);

impl Seen {
    fn id(&self, slot: u64) -> BlobId {
        let generation = self.generation;
        BlobId { slot, generation }
    }
}

#[derive(Default)]
struct Walk {
    inodes: SlotTable<Seen>,
    /// No slot of the volume has this address, or a higher one.
    slots_end: u64,
    report: CheckReport,
    gives_way: bool,
    /// Since others had the worker.
    steps: usize,
}

impl Walk {
    fn problem(&mut self, what: String) {
        if self.report.problems.len() < PROBLEMS_MAX {
            self.report.problems.push(what);
        }
    }

    /// Counts a name; true when it is the first of this inode.
    fn name(&mut self, id: BlobId, kind: FileKind, orphan: bool, path: &str) -> bool {
        if id.slot >= self.slots_end {
            // The table has memory for slots of the volume only.
            self.problem(format!(
                "{path}: names inode {}, beyond the volume",
                id.slot
            ));
            return false;
        }
        match self.inodes.get_mut(id.slot) {
            None => {
                let seen = Seen {
                    generation: id.generation,
                    names: 1,
                    subdirectories: 0,
                    kind,
                    orphan,
                };
                self.inodes.insert(id.slot, seen);
                true
            }
            Some(seen) => {
                seen.names += 1;
                let twice = kind == FileKind::Directory || seen.orphan || orphan;
                if seen.generation != id.generation || seen.kind != kind || twice {
                    self.problem(format!(
                        "{path}: inode {} has another name that excludes this one",
                        id.slot
                    ));
                }
                false
            }
        }
    }
}

/// A path, or a mark in the place of one that is longer than callers' are: directories may lie in
/// each other without end, and each that is still to be visited has its path in memory.
fn shown(path: &str) -> &str {
    if path.len() > PATH_BYTES_MAX {
        "…/"
    } else {
        path
    }
}

impl Fs {
    /// Checks the names of a volume. Other operations run meanwhile; if their changes may look like
    /// damage, the check starts again, and at last those of this worker wait. EBUSY: the volume
    /// changes all the time.
    pub async fn check_names(&self) -> Result<CheckReport> {
        for attempt in 0..ATTEMPTS + ATTEMPTS_ALONE {
            let before = self.store.version();
            let report = self.walk_names(attempt < ATTEMPTS).await?;
            let is_same = before.is_some_and(|versions| self.store.is_at(&versions));
            if report.problems.is_empty() || is_same {
                return Ok(report);
            }
        }
        let what = "check the names: they are being changed meanwhile";
        Err(Error::with(Errno::BUSY, what))
    }

    /// Lets others have the worker, if it is time.
    async fn step(&self, walk: &mut Walk, steps: usize) {
        walk.steps += steps;
        if walk.gives_way && walk.steps >= STEPS_PER_TURN {
            walk.steps = 0;
            self.store.reactor().yield_now().await;
        }
    }

    async fn walk_names(&self, gives_way: bool) -> Result<CheckReport> {
        let mut walk = Walk {
            gives_way,
            ..Walk::default()
        };
        if self.store.partitions_count() > 1 {
            // A commit gives all partitions the largest one. If it fails, nobody makes blobs any
            // more.
            let _ = self.store.commit().await;
        }
        let next_generation = self.store.state().await?.next_generation;
        walk.slots_end = self.store.slots_end();
        walk.name(self.base.root, FileKind::Directory, false, "/");
        let mut directories = vec![(self.base.root, self.base.root, String::from("/"))];
        while let Some((id, parent, path)) = directories.pop() {
            self.check_directory(id, parent, &path, &mut walk, &mut directories)
                .await?;
        }
        self.check_orphans(&mut walk).await?;
        self.check_inodes(&mut walk, next_generation).await?;
        Ok(walk.report)
    }

    async fn check_directory(
        &self,
        id: BlobId,
        parent: BlobId,
        path: &str,
        walk: &mut Walk,
        directories: &mut Vec<(BlobId, BlobId, String)>,
    ) -> Result<()> {
        walk.report.directories += 1;
        let mut from = 0;
        loop {
            let mut entries = Vec::new();
            names::read_ahead(&self.store, id, from).await;
            let listed = self
                .store
                .view(|view| {
                    entries.clear();
                    let slot = resolve::directory(view, id)?;
                    let next = names::read_leaf(view, slot, id.slot, from, |key, name, target| {
                        entries.push((key, name.to_vec(), target));
                        true
                    })?;
                    Ok((slot.parent, next))
                })
                .await;
            walk.slots_end = self.store.slots_end(); // the volume may have grown
            let next = match listed {
                Ok((up, next)) => {
                    if from == 0 && up != parent.slot {
                        walk.problem(format!("{path}: its parent is {}, not {up}", parent.slot));
                    }
                    next
                }
                Err(error) => {
                    walk.problem(format!("{path}: {error}"));
                    return Ok(());
                }
            };
            for (key, name, target) in &entries {
                let child = format!("{}{}", shown(path), String::from_utf8_lossy(name));
                let name = names::Name::new(&self.base.hash_key, name);
                if !name.owns(*key) {
                    walk.problem(format!("{child}: is filed under a wrong hash"));
                }
                let Some(kind) = FileKind::from_u8(target.kind) else {
                    walk.problem(format!("{child}: of unknown kind {}", target.kind));
                    continue;
                };
                let child_id = target.id();
                if walk.name(child_id, kind, false, &child) && kind == FileKind::Directory {
                    directories.push((child_id, id, child + "/"));
                }
                if kind == FileKind::Directory
                    && let Some(seen) = walk.inodes.get_mut(id.slot)
                {
                    seen.subdirectories += 1;
                }
            }
            self.step(walk, 1 + entries.len()).await;
            match next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    async fn check_orphans(&self, walk: &mut Walk) -> Result<()> {
        let orphans = self.orphans();
        let mut from = 0;
        loop {
            let (found, next) = match orphans.list(from, usize::MAX).await {
                Ok(listed) => listed,
                Err(error) => {
                    walk.problem(format!("the orphan directory: {error}"));
                    return Ok(());
                }
            };
            walk.slots_end = self.store.slots_end();
            for (id, kind) in found {
                // Left behind by one that is gone: see `orphans.rs`.
                if let Ok(false) = orphans.exists(id, kind).await {
                    continue;
                }
                walk.report.orphans += 1;
                walk.name(id, kind, true, "an orphan");
                self.step(walk, 1).await;
            }
            match next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// Compares names with slots, both ways. `next_generation` is that of before the names were
    /// looked at.
    async fn check_inodes(&self, walk: &mut Walk, next_generation: u32) -> Result<()> {
        let mut next = 0;
        while let Some((at, seen)) = walk.inodes.first_from(next) {
            let id = seen.id(at);
            next = at + 1;
            self.step(walk, 1).await;
            let slot = match self.store.view(|view| view.slot(id)).await {
                Ok(slot) => slot,
                Err(error) => {
                    walk.problem(format!("inode {at} has a name: {error}"));
                    continue;
                }
            };
            if kind_of(&slot).ok() != Some(seen.kind) {
                walk.problem(format!("inode {at} is not what its name says"));
            } else if seen.kind == FileKind::Symlink
                && let Err(error) = self.store.view(|view| symlink::target(view, id)).await
            {
                walk.problem(error.to_string());
            }
            let links = match seen.kind {
                _ if seen.orphan => 0,
                FileKind::Directory => 2 + seen.subdirectories,
                _ => seen.names,
            };
            if slot.links != links {
                walk.problem(format!(
                    "inode {at} counts {} links, but has {links}",
                    slot.links
                ));
            }
            if seen.kind != FileKind::Directory && !seen.orphan {
                walk.report.files += 1;
            }
        }
        let mut unnamed = Vec::new();
        let orphan_directory = self.orphans().directory;
        let visited = (self.store)
            .for_each_blob(&mut |id, slot| {
                if slot.kind == FileKind::Blob as u8 {
                    walk.report.blobs += 1;
                } else if id != orphan_directory && !walk.inodes.contains(id.slot) {
                    unnamed.push(id);
                }
                Ok(())
            })
            .await;
        match visited {
            // Of a damaged map the store tells the place.
            Err(error) if matches!(error.errno(), Errno::UCLEAN | Errno::IO) => {
                walk.problem(format!("the inodes can't be listed: {error}"));
            }
            visited => visited?,
        }
        let made_meanwhile = next_generation..self.store.state().await?.next_generation;
        unnamed.retain(|id: &BlobId| !made_meanwhile.contains(&id.generation));
        for BlobId { slot, .. } in unnamed {
            walk.problem(format!("inode {slot} has no name and is no orphan"));
        }
        Ok(())
    }
}
