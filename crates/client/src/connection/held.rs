//! What a session has in its server, so that it can have the same in the next one: open files,
//! locks, claims.

use adit_fs::{BlobId, Credentials, FlockOperation, LockMode, LockOwner, OpenFlags, RangeLock};
use adit_wire::calls::*;
use adit_wire::value::Value;
use std::collections::BTreeMap;

/// The last byte that a file can have, as `fcntl` counts.
const LAST_BYTE: u64 = i64::MAX as u64;

/// An open file.
#[derive(Clone, Debug)]
pub(super) struct HeldFile {
    pub(super) opened: Opened,
    /// The user for whom it was opened, if another one than the session's.
    pub(super) who: Option<Credentials>,
    pub(super) flock: Option<LockMode>,
    /// It may be mapped for writing.
    pub(super) is_claimed: bool,
}

/// A locked range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct HeldRange {
    id: BlobId,
    /// The descriptor that has it; None: a POSIX owner.
    file: Option<u64>,
    owner: LockOwner,
    mode: LockMode,
    first: u64,
    last: u64,
}

/// All of it.
#[derive(Default, Debug)]
pub(super) struct Held {
    files: BTreeMap<u64, HeldFile>,
    ranges: Vec<HeldRange>,
}

impl Held {
    pub(super) fn open(&mut self, opened: Opened, who: Option<Credentials>) {
        let file = HeldFile {
            opened,
            who,
            flock: None,
            is_claimed: false,
        };
        self.files.insert(opened.file, file);
    }

    /// A file is closed, and what it had locked is free.
    pub(super) fn close(&mut self, number: u64) {
        let Some(closed) = self.files.remove(&number) else {
            return;
        };
        if self.ranges.is_empty() {
            return;
        }
        let id = closed.opened.id;
        // Of an inode that nobody has open all locks go.
        let is_open = self.files.values().any(|file| file.opened.id == id);
        self.ranges
            .retain(|range| range.file != Some(number) && (range.id != id || is_open));
    }

    pub(super) fn files(&self) -> impl Iterator<Item = &HeldFile> {
        self.files.values()
    }

    /// Does a call of this number change what a session has?
    pub(super) fn changes_by(number: u16) -> bool {
        let calls = [
            Flock::NUMBER,
            LockRange::NUMBER,
            UnlockRange::NUMBER,
            ReleaseLocks::NUMBER,
            ClaimMapping::NUMBER,
        ];
        calls.contains(&number)
    }

    /// A call about an open file was done.
    pub(super) fn note(&mut self, number: u16, file: u64, call: &[u8]) {
        let Some(held) = self.files.get_mut(&file) else {
            return;
        };
        let id = held.opened.id;
        match number {
            Flock::NUMBER => {
                held.flock = match Flock::decode(call).map(|call| call.operation) {
                    Some(FlockOperation::Shared { .. }) => Some(LockMode::Shared),
                    Some(FlockOperation::Exclusive { .. }) => Some(LockMode::Exclusive),
                    _ => None,
                };
            }
            ClaimMapping::NUMBER => held.is_claimed = true,
            LockRange::NUMBER => {
                if let Some(LockRange { lock, .. }) = LockRange::decode(call) {
                    let range = self.free(id, file, lock.owner, lock.offset, lock.len_bytes);
                    self.ranges.push(HeldRange {
                        mode: lock.mode,
                        ..range
                    });
                }
            }
            UnlockRange::NUMBER => {
                if let Some(call) = UnlockRange::decode(call) {
                    self.free(id, file, call.owner, call.offset, call.len_bytes);
                }
            }
            ReleaseLocks::NUMBER => {
                if let Some(ReleaseLocks { owner_id }) = ReleaseLocks::decode(call) {
                    let is_of =
                        |owner| matches!(owner, LockOwner::Posix { id, .. } if id == owner_id);
                    self.ranges
                        .retain(|range| range.id != id || !is_of(range.owner));
                }
            }
            _ => {}
        }
    }

    /// Takes a range from what an owner has; answers it.
    fn free(
        &mut self,
        id: BlobId,
        file: u64,
        owner: LockOwner,
        offset: u64,
        len: u64,
    ) -> HeldRange {
        let last = match len {
            0 => LAST_BYTE,
            len => offset.saturating_add(len - 1).min(LAST_BYTE),
        };
        let free = HeldRange {
            id,
            file: (owner == LockOwner::Descriptor).then_some(file),
            owner,
            mode: LockMode::Shared,
            first: offset,
            last,
        };
        let mut left = Vec::with_capacity(self.ranges.len() + 1);
        for range in self.ranges.drain(..) {
            let same = range.id == id && range.file == free.file && is_same(range.owner, owner);
            if !same || range.last < free.first || free.last < range.first {
                left.push(range);
                continue;
            }
            if range.first < free.first {
                let last = free.first - 1;
                left.push(HeldRange { last, ..range });
            }
            if range.last > free.last {
                let first = free.last + 1;
                left.push(HeldRange { first, ..range });
            }
        }
        self.ranges = left;
        free
    }

    /// The locked ranges, each with a descriptor through which it can be locked.
    pub(super) fn locks(&self) -> Vec<(u64, RangeLock)> {
        let through = |range: &HeldRange| {
            let serves = |file: &&HeldFile| match range.mode {
                _ if file.opened.id != range.id || file.opened.flags.contains(OpenFlags::PATH) => {
                    false
                }
                LockMode::Shared => file.opened.flags.readable(),
                _ => file.opened.flags.writable(),
            };
            let any = || {
                self.files
                    .values()
                    .find(serves)
                    .map(|file| file.opened.file)
            };
            range.file.or_else(any)
        };
        let lock = |range: &HeldRange| {
            let len_bytes = match range.last {
                LAST_BYTE => 0,
                last => last - range.first + 1,
            };
            let lock = RangeLock::new(range.owner, range.mode, range.first, len_bytes);
            Some((through(range)?, lock))
        };
        self.ranges.iter().filter_map(lock).collect()
    }
}

fn is_same(one: LockOwner, other: LockOwner) -> bool {
    match (one, other) {
        (LockOwner::Posix { id, .. }, LockOwner::Posix { id: other, .. }) => id == other,
        (LockOwner::Descriptor, LockOwner::Descriptor) => true,
        _ => false,
    }
}
