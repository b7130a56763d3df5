//! The inodes that the kernel looked up and has not forgotten.
//!
//! The kernel knows an inode by its number alone, so the generation is kept here. It may use an
//! inode that lost its last name (a removed directory that is a working directory) until it forgets
//! it: a descriptor keeps such an inode.

use adit_fs::{BlobId, OpenFile};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

struct Node {
    generation: u32,
    /// Times it was looked up and not forgotten.
    lookups: u64,
    /// Keeps an inode that has no name any more.
    kept: Option<Arc<OpenFile>>,
}

/// Inodes by number.
#[derive(Default)]
pub(crate) struct Nodes {
    table: Mutex<HashMap<u64, Node>>,
}

impl Nodes {
    fn table(&self) -> MutexGuard<'_, HashMap<u64, Node>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a lookup that the kernel is about to get. Returns the descriptor of a deleted
    /// predecessor of the same number.
    #[must_use]
    pub(crate) fn remember(&self, id: BlobId) -> Option<Arc<OpenFile>> {
        match self.table().entry(id.slot) {
            Entry::Occupied(mut entry) if entry.get().generation == id.generation => {
                entry.get_mut().lookups += 1;
                None
            }
            Entry::Occupied(mut entry) => {
                let node = entry.get_mut();
                (node.generation, node.lookups) = (id.generation, node.lookups + 1);
                node.kept.take()
            }
            Entry::Vacant(entry) => {
                entry.insert(Node {
                    generation: id.generation,
                    lookups: 1,
                    kept: None,
                });
                None
            }
        }
    }

    /// The inode of that number.
    pub(crate) fn get(&self, number: u64) -> Option<BlobId> {
        self.table().get(&number).map(|node| BlobId {
            slot: number,
            generation: node.generation,
        })
    }

    /// Keeps an inode that lost its last name for the kernel. Returns the descriptor if the kernel
    /// does not know the inode, or one is kept.
    #[must_use]
    pub(crate) fn keep(&self, file: Arc<OpenFile>) -> Option<Arc<OpenFile>> {
        let id = file.blob_id();
        match self.table().get_mut(&id.slot) {
            Some(node) if node.generation == id.generation && node.kept.is_none() => {
                node.kept = Some(file);
                None
            }
            _ => Some(file),
        }
    }

    /// The kernel forgot `lookups` of its lookups. Returns a descriptor to be closed.
    #[must_use]
    pub(crate) fn forget(&self, number: u64, lookups: u64) -> Option<Arc<OpenFile>> {
        let mut table = self.table();
        let Entry::Occupied(mut entry) = table.entry(number) else {
            return None;
        };
        let node = entry.get_mut();
        debug_assert!(
            lookups <= node.lookups,
            "the kernel forgets its lookups once"
        );
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups > 0 {
            return None;
        }
        entry.remove().kept
    }

    /// Forgets everything; returns the descriptors to be closed.
    pub(crate) fn take_kept(&self) -> Vec<Arc<OpenFile>> {
        let nodes = std::mem::take(&mut *self.table());
        nodes.into_values().filter_map(|node| node.kept).collect()
    }
}
