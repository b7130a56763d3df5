//! Where new inodes go, in a volume with several partitions.
//!
//! One directory of files is to be spread, so that several workers serve them. But a file in
//! another partition than its name takes two workers' locks when it is made, and when it is
//! deleted; while the other worker is busy, that costs more than it gains. So inodes go to
//! partitions in turn, unless the worker whose turn it is has been busy lately, compared to that of
//! the directory: then they stay where their names are. Directories always go in turn.

use super::Fs;
use crate::types::FileKind;
use adit_base::sync::atomic::{AtomicU32, Ordering};
use adit_store::{BlobId, PARTITIONS_MAX, Store};
use std::cell::Cell;

/// Count the inodes of a volume that are given to partitions in turn.
#[derive(Default)]
pub(crate) struct Turns {
    files: AtomicU32,
    directories: AtomicU32,
}

/// The partition that an operation makes its inodes in, which is the same when it runs again.
#[derive(Default)]
pub(crate) struct OwnTurns {
    files: Cell<Option<u32>>,
    directories: Cell<Option<u32>>,
}

/// A worker looks again how busy another one is after so many of its own transactions.
const LOOKS_AFTER: u64 = 64;
/// Idle is one that has done less than this part of what the looking one has.
const IDLE_PART: u64 = 8;

/// The load of another worker, as this one has seen it.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// The transactions of both at the last look.
    own: u64,
    other: u64,
    is_busy: bool,
}

/// The loads of all other workers, as this one has seen them.
#[derive(Default)]
pub(crate) struct Loads([Cell<Seen>; PARTITIONS_MAX as usize]);

impl Loads {
    /// Is the other worker idle, compared to this one?
    fn is_idle(&self, store: &Store, other: u32) -> bool {
        let seen = self.0[other as usize].get();
        let own = store.applied_by(store.partition());
        let own_since = own.saturating_sub(seen.own);
        if own_since < LOOKS_AFTER {
            return !seen.is_busy;
        }
        let others = store.applied_by(other);
        let is_busy = IDLE_PART * others.saturating_sub(seen.other) > own_since;
        self.0[other as usize].set(Seen {
            own,
            other: others,
            is_busy,
        });
        !is_busy
    }
}

impl Fs {
    /// The partition for a new inode; `nth` of its transaction.
    pub(crate) fn partition_for(
        &self,
        kind: FileKind,
        parent: BlobId,
        own: &OwnTurns,
        nth: u32,
    ) -> u32 {
        let (count, turns) = (self.store.partitions_count(), &self.whole.turns);
        if kind == FileKind::Directory {
            let turn = own.directories.get().unwrap_or_else(|| {
                let turn = turns.directories.fetch_add(1, Ordering::Relaxed);
                own.directories.set(Some(turn));
                turn
            });
            return turn.wrapping_add(nth) % count;
        }
        own.files.get().unwrap_or_else(|| {
            let turn = turns.files.fetch_add(1, Ordering::Relaxed) % count;
            let here = self.store.number_of(parent);
            let is_here = turn == here || here != self.store.partition();
            let partition = match is_here || self.loads.is_idle(&self.store, turn) {
                true => turn,
                false => here,
            };
            own.files.set(Some(partition));
            partition
        })
    }

    /// The partition for a new blob without a name.
    pub(crate) fn partition_for_blob(&self) -> u32 {
        let turn = self.whole.turns.files.fetch_add(1, Ordering::Relaxed);
        turn % self.store.partitions_count()
    }
}
