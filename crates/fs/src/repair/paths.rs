//! Paths of the inodes that findings are about.

use super::{Repair, entries, is_directory};
use crate::types::PATH_BYTES_MAX;
use adit_base::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A name of an inode.
pub(super) struct Named {
    pub(super) directory: u64,
    pub(super) name: Vec<u8>,
}

impl Repair {
    /// Adds paths to findings about inodes. It reads the directories again: memory for the names of
    /// all inodes is needed by no volume that is sound.
    pub(super) async fn add_paths(&mut self) -> Result<()> {
        let wanted: BTreeSet<u64> = self
            .report
            .findings
            .list
            .iter()
            .filter(|finding| finding.path.is_none())
            .filter_map(|finding| finding.slot)
            .collect();
        let mut named = std::mem::take(&mut self.unnamed_links);
        self.name_files(&wanted, &mut named).await?;
        self.name_directories(&wanted, &mut named).await?;
        let mut paths: BTreeMap<u64, PathBuf> = BTreeMap::new();
        for slot in wanted {
            let (mut path, mut at) = (Vec::new(), slot);
            while at != self.root.slot
                && path.len() < PATH_BYTES_MAX
                && let Some(Named { directory, name }) = named.get(&at)
            {
                path = [b"/", &name[..], &path].concat();
                at = *directory;
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
        Ok(())
    }

    /// Finds the first name of each of these inodes that is no directory.
    async fn name_files(
        &self,
        wanted: &BTreeSet<u64>,
        named: &mut BTreeMap<u64, Named>,
    ) -> Result<()> {
        let is_file = |slot: &u64| self.inodes.get(*slot).is_some_and(|of| !is_directory(of));
        if !wanted.iter().any(is_file) {
            return Ok(());
        }
        let each = &mut |entry: entries::Entry, name: &[u8]| {
            let slot = entry.target.slot;
            if wanted.contains(&slot) && is_file(&slot) && self.id(slot) == entry.target.id() {
                named.entry(slot).or_insert_with(|| Named {
                    directory: entry.directory,
                    name: name.to_vec(),
                });
            }
        };
        entries::all(&self.store, &self.directories, self.orphans, each).await
    }

    /// Finds the names of all directories on the ways to these inodes.
    async fn name_directories(
        &self,
        wanted: &BTreeSet<u64>,
        named: &mut BTreeMap<u64, Named>,
    ) -> Result<()> {
        let mut below: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        let files = named.values().map(|named| named.directory);
        for slot in wanted.iter().copied().chain(files) {
            let mut at = slot;
            while let Some(above) = self.directory(at).and_then(|directory| directory.named_in)
                && below.entry(above).or_default().insert(at)
            {
                at = above;
            }
        }
        for (directory, below) in below {
            let each = &mut |entry: entries::Entry, name: &[u8]| {
                let slot = entry.target.slot;
                if below.contains(&slot) && self.id(slot) == entry.target.id() {
                    named.entry(slot).or_insert_with(|| Named {
                        directory,
                        name: name.to_vec(),
                    });
                }
            };
            entries::of_directory(&self.store, directory, each).await?;
        }
        Ok(())
    }
}
