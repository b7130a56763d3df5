//! The entries of directories: read leaf by leaf, and judged.

use super::{Directory, Repair, is_directory};
use crate::names::{self, Target};
use crate::types::FileKind;
use adit_base::{Errno, Error, Result};
use adit_store::{BlobId, Finding, FindingKind, Store};
use std::ops::Range;

/// An entry of a directory that has one. Its key leads to its name: keys never move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) directory: u64,
    pub(super) key: u64,
    pub(super) target: Target,
}

/// Copies of the entries of a leaf.
#[derive(Default)]
pub(super) struct Leaf {
    entries: Vec<(Entry, Range<usize>)>,
    names: Vec<u8>,
}

impl Leaf {
    /// Reads the entries of a leaf from a key on, as many as can be read. Returns the key to go on
    /// from, and the error of a leaf that is damaged.
    async fn read(
        &mut self,
        store: &Store,
        id: BlobId,
        from: u64,
    ) -> Result<(Option<u64>, Option<Error>)> {
        names::read_ahead(store, id, from).await;
        let read = store
            .view(|view| {
                self.entries.clear();
                self.names.clear();
                let slot = view.slot_ref(id)?;
                names::read_leaf(view, slot, id.slot, from, |key, name, target| {
                    let begin = self.names.len();
                    self.names.extend_from_slice(name);
                    let entry = Entry {
                        directory: id.slot,
                        key,
                        target,
                    };
                    self.entries.push((entry, begin..self.names.len()));
                    true
                })
            })
            .await;
        match read {
            Ok(next) => Ok((next, None)),
            Err(error) if matches!(error.errno(), Errno::UCLEAN | Errno::IO) => {
                Ok((None, Some(error)))
            }
            Err(error) => Err(error),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (Entry, &[u8])> {
        let entries = self.entries.iter();
        entries.map(|(entry, name)| (*entry, &self.names[name.clone()]))
    }
}

/// Calls `each` with the entries of all directories but one that can be read, and their names.
pub(super) async fn all(
    store: &Store,
    directories: &[Directory],
    but: BlobId,
    each: &mut dyn FnMut(Entry, &[u8]),
) -> Result<()> {
    for directory in directories.iter().filter(|of| of.slot != but.slot) {
        of_directory(store, directory.slot, each).await?;
    }
    Ok(())
}

/// Calls `each` with the entries of a directory that can be read, and their names.
pub(super) async fn of_directory(
    store: &Store,
    slot: u64,
    each: &mut dyn FnMut(Entry, &[u8]),
) -> Result<()> {
    let id = match store.view(|view| view.slot_at(slot)).await {
        Ok((id, _)) => id,
        // It was deleted by the repair, or has no entry that can be read.
        Err(error) if matches!(error.errno(), Errno::STALE | Errno::UCLEAN | Errno::IO) => {
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let (mut leaf, mut from) = (Leaf::default(), Some(0));
    while let Some(key) = from {
        from = leaf.read(store, id, key).await?.0;
        for (entry, name) in leaf.iter() {
            each(entry, name);
        }
    }
    Ok(())
}

impl Repair {
    /// Reads the entries of all directories, judges each, and counts the valid ones.
    pub(super) async fn read_entries(&mut self) -> Result<()> {
        let mut leaf = Leaf::default();
        for index in 0..self.directories.len() {
            let id = self.id(self.directories[index].slot);
            let mut from = Some(0);
            while let Some(key) = from {
                let (next, damage) = leaf.read(&self.store, id, key).await?;
                from = next;
                self.directories[index].has_entries |= !leaf.entries.is_empty();
                for (entry, name) in leaf.iter() {
                    if id == self.orphans {
                        self.listed.push(entry);
                    } else {
                        self.judge(entry, name);
                    }
                }
                if let Some(error) = damage {
                    self.unreadable(id, error);
                }
            }
        }
        Ok(())
    }

    /// True if a directory has no entry that can be read.
    pub(super) async fn is_empty(&mut self, id: BlobId) -> Result<bool> {
        let (mut leaf, mut from) = (Leaf::default(), Some(0));
        while let Some(key) = from {
            let (next, damage) = leaf.read(&self.store, id, key).await?;
            if let Some(error) = damage {
                self.unreadable(id, error);
            }
            if !leaf.entries.is_empty() {
                return Ok(false);
            }
            from = next;
        }
        Ok(true)
    }

    fn unreadable(&mut self, id: BlobId, error: Error) {
        let finding = Finding::new(
            FindingKind::Directory,
            error.to_string(),
            "names in it can't be read",
            "",
        );
        self.found(finding.of_slot(id.slot).beyond_repair());
    }

    /// Judges an entry, and counts it if it is valid.
    fn judge(&mut self, entry: Entry, name: &[u8]) {
        let slot = entry.target.slot;
        let is_base = slot == self.root.slot || slot == self.orphans.slot;
        let what = match self.inodes.get_mut(slot) {
            Some(inode) if inode.generation == entry.target.generation => {
                let kind = inode.kind;
                let is_directory = is_directory(inode);
                let is_blob = kind == FileKind::Blob as u8;
                if !is_blob && !is_base && !is_directory {
                    inode.names += 1;
                }
                if !is_blob && kind != entry.target.kind {
                    self.miscast(entry, name, kind);
                }
                if is_blob {
                    Some("leads to a blob, which has no names")
                } else if is_base {
                    Some("leads to the root or to the directory of orphans")
                } else {
                    if is_directory {
                        self.name_directory(entry);
                    }
                    None
                }
            }
            _ => Some("leads to an inode that is gone"),
        };
        if let Some(what) = what {
            self.invalid.push(entry);
            let finding = Finding::new(
                FindingKind::Entry,
                format!("the name {:?} {what}", String::from_utf8_lossy(name)),
                "it can't be opened",
                "the name is removed",
            );
            self.found(finding.of_slot(entry.directory));
        }
    }

    /// An entry that states another kind than its inode's. It is told after the links.
    fn miscast(&mut self, entry: Entry, name: &[u8], kind: u8) {
        self.miscast.0.push(entry);
        let finding = Finding::new(
            FindingKind::Entry,
            format!(
                "the name {:?} says that it is of kind {}, but it is of kind {kind}",
                String::from_utf8_lossy(name),
                entry.target.kind,
            ),
            "it can't be opened",
            "the name is corrected",
        );
        self.miscast.1.add(finding.of_slot(entry.directory));
    }

    /// An entry that names a directory. Of several the first one in the directory that it calls its
    /// parent is valid, or the first one of all.
    fn name_directory(&mut self, entry: Entry) {
        let Some(directory) = self.directory_mut(entry.target.slot) else {
            return;
        };
        let Some(named_in) = directory.named_in else {
            (directory.named_in, directory.key) = (Some(entry.directory), entry.key);
            return;
        };
        let parent = directory.parent;
        if named_in == parent || entry.directory != parent {
            self.doubles.push(entry);
            return;
        }
        let before = Entry {
            directory: named_in,
            key: directory.key,
            target: entry.target,
        };
        (directory.named_in, directory.key) = (Some(entry.directory), entry.key);
        self.doubles.push(before);
    }

    /// Further names of directories are invalid.
    pub(super) async fn settle_doubles(&mut self) -> Result<()> {
        let mut doubles = std::mem::take(&mut self.doubles);
        doubles.sort_unstable_by_key(|entry| (entry.target.slot, entry.directory, entry.key));
        for entry in doubles {
            let Some(name) = self.name_of(entry).await? else {
                continue;
            };
            self.invalid.push(entry);
            let finding = Finding::new(
                FindingKind::Entry,
                format!(
                    "the name {:?} leads to the directory {}, which has another one",
                    String::from_utf8_lossy(&name),
                    entry.target.slot
                ),
                "a directory would be in two places",
                "the name is removed",
            );
            self.found(finding.of_slot(entry.directory));
        }
        Ok(())
    }

    /// The name of an entry; `None`: it is gone.
    pub(super) async fn name_of(&self, entry: Entry) -> Result<Option<Vec<u8>>> {
        let id = self.id(entry.directory);
        self.store
            .view(|view| {
                let mut found = None;
                let slot = view.slot_ref(id)?;
                names::read_leaf(view, slot, id.slot, entry.key, |key, name, _| {
                    found = (key == entry.key).then(|| name.to_vec());
                    false
                })?;
                Ok(found)
            })
            .await
    }
}
