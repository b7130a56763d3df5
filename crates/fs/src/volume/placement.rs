//! Where new inodes go, in a volume with several partitions.
//!
//! One directory of files is to be spread: its first inodes go to partitions in turn, and so do
//! directories. Further ones of a large directory stay where their names are, so that one worker
//! makes them, and deletes them.

use super::Fs;
use crate::types::FileKind;
use adit_base::sync::atomic::{AtomicU32, Ordering};
use adit_store::BlobId;
use adit_store::format::Slot;
use std::cell::Cell;

/// The inodes of a directory are spread while its names have fewer pages: some 1000 names.
const SPREAD_PAGES: u64 = 16;

/// Count the inodes of a volume that are given to partitions in turn.
#[derive(Default)]
pub(crate) struct Turns {
    files: AtomicU32,
    directories: AtomicU32,
}

/// The turns of an operation, which are the same when it runs again.
#[derive(Default)]
pub(crate) struct OwnTurns {
    files: Cell<Option<u32>>,
    directories: Cell<Option<u32>>,
}

fn turn(own: &Cell<Option<u32>>, of_volume: &AtomicU32) -> u32 {
    own.get().unwrap_or_else(|| {
        let turn = of_volume.fetch_add(1, Ordering::Relaxed);
        own.set(Some(turn));
        turn
    })
}

impl Fs {
    /// The partition for a new inode; `nth` of its transaction.
    pub(crate) fn partition_for(
        &self,
        kind: FileKind,
        (parent, directory): (BlobId, &Slot),
        own: &OwnTurns,
        nth: u32,
    ) -> u32 {
        let (count, turns) = (self.store.partitions_count(), &self.whole.turns);
        let turn = match kind {
            FileKind::Directory => turn(&own.directories, &turns.directories),
            _ if directory.allocated_pages < SPREAD_PAGES => turn(&own.files, &turns.files),
            _ => return self.store.number_of(parent),
        };
        turn.wrapping_add(nth) % count
    }

    /// The partition for a new blob without a name.
    pub(crate) fn partition_for_blob(&self) -> u32 {
        let turn = self.whole.turns.files.fetch_add(1, Ordering::Relaxed);
        turn % self.store.partitions_count()
    }
}
