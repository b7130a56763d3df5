//! The advisory locks of an inode: `flock` on whole files, `fcntl` on ranges of bytes.
//!
//! Invariants of a [`Table`]: one owner's locks are disjoint, and merged where they touch and have
//! one mode; of two overlapping locks of different owners none is exclusive. The two kinds of locks
//! are independent, as on Linux: an inode has a table of each. A waiter looks again whenever a lock
//! was given back or a descriptor closed.

use crate::types::LockMode;
use adit_base::{Errno, Result};
use adit_reactor::sync::Event;
use std::cell::RefCell;

/// Most locks of one inode and kind; ENOLCK beyond.
pub const LOCKS_MAX: usize = 4096;

/// The last byte that a lock can cover: "to the end of the file".
pub(crate) const LAST_BYTE: u64 = i64::MAX as u64;

/// The holder of a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Holder {
    Descriptor(u64),
    Posix { id: u64, pid: i32 },
}

impl PartialEq for Holder {
    fn eq(&self, other: &Holder) -> bool {
        match (self, other) {
            (Holder::Descriptor(one), Holder::Descriptor(other)) => one == other,
            (Holder::Posix { id: one, .. }, Holder::Posix { id: other, .. }) => one == other,
            _ => false,
        }
    }
}

/// A lock, held or wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lock {
    pub(crate) holder: Holder,
    pub(crate) mode: LockMode,
    pub(crate) first: u64,
    /// Inclusive.
    pub(crate) last: u64,
}

impl Lock {
    fn overlaps(&self, first: u64, last: u64) -> bool {
        self.first <= last && first <= self.last
    }

    pub(crate) fn excludes(&self, other: &Lock) -> bool {
        let exclusive = self.mode == LockMode::Exclusive || other.mode == LockMode::Exclusive;
        exclusive && self.holder != other.holder && self.overlaps(other.first, other.last)
    }
}

/// The locks of one kind on an inode, in no order.
#[derive(Default)]
pub(crate) struct Table(pub(super) RefCell<Vec<Lock>>);

impl Table {
    /// The first lock that excludes `wanted`.
    pub(crate) fn blocker(&self, wanted: &Lock) -> Option<Lock> {
        let held = self.0.borrow();
        let blockers = held.iter().filter(|held| held.excludes(wanted));
        blockers.min_by_key(|held| held.first).copied()
    }

    /// Locks a range for its holder in this mode, or releases it (None), without a look at other
    /// holders' locks. Returns whether locks were released, or may have been; ENOLCK if there would
    /// be too many.
    pub(crate) fn replace(
        &self,
        holder: Holder,
        mode: Option<LockMode>,
        first: u64,
        last: u64,
    ) -> Result<bool> {
        let mut held = self.0.borrow_mut();
        let joins = |lock: &Lock| {
            Some(lock.mode) == mode && lock.overlaps(first.saturating_sub(1), last + 1)
        };
        let affected =
            |lock: &Lock| lock.holder == holder && (lock.overlaps(first, last) || joins(lock));
        let (mut merged_first, mut merged_last) = (first, last);
        let mut rest = Vec::new();
        let mut removed = 0;
        for lock in held.iter().filter(|lock| affected(lock)) {
            removed += 1;
            if joins(lock) {
                merged_first = merged_first.min(lock.first);
                merged_last = merged_last.max(lock.last);
                continue;
            }
            if lock.first < first {
                let last = first - 1;
                rest.push(Lock { last, ..*lock });
            }
            if lock.last > last {
                let first = last + 1;
                rest.push(Lock { first, ..*lock });
            }
        }
        rest.extend(mode.map(|mode| Lock {
            holder,
            mode,
            first: merged_first,
            last: merged_last,
        }));
        if rest.len() > removed && held.len() - removed + rest.len() > LOCKS_MAX {
            return Err(Errno::NOLCK.into());
        }
        if removed > 0 {
            held.retain(|lock| !affected(lock));
        }
        let is_sound = |lock: &Lock| {
            let conflicts = |other: &Lock| {
                let same = lock.holder == other.holder;
                same && lock.overlaps(other.first, other.last) || lock.excludes(other)
            };
            lock.first <= lock.last && !held.iter().any(conflicts)
        };
        debug_assert!(rest.iter().all(is_sound), "one owner's locks are disjoint");
        held.extend(rest);
        Ok(removed > 0)
    }
}

/// The locks of an inode.
#[derive(Default)]
pub(crate) struct Locks {
    /// Of `flock`; each covers everything.
    pub(crate) whole: Table,
    pub(crate) ranges: Table,
    pub(crate) released: Event,
}

impl Locks {
    /// Takes a lock unless another one excludes it.
    pub(crate) fn take(&self, table: &Table, wanted: &Lock) -> Result<bool> {
        if table.blocker(wanted).is_some() {
            return Ok(false);
        }
        let Lock { holder, mode, .. } = *wanted;
        self.replace(table, holder, Some(mode), wanted.first, wanted.last)?;
        Ok(true)
    }

    pub(crate) fn replace(
        &self,
        table: &Table,
        holder: Holder,
        mode: Option<LockMode>,
        first: u64,
        last: u64,
    ) -> Result<()> {
        if table.replace(holder, mode, first, last)? {
            self.released.notify_all();
        }
        Ok(())
    }

    /// Releases all locks of a holder. (No lock is split, so it cannot fail.)
    pub(crate) fn release(&self, table: &Table, holder: Holder) {
        let _ = self.replace(table, holder, None, 0, LAST_BYTE);
    }

    /// A descriptor is closed: its locks are released, and its waiters check again whether it is
    /// open.
    pub(crate) fn close(&self, descriptor: u64) {
        self.release(&self.whole, Holder::Descriptor(descriptor));
        self.release(&self.ranges, Holder::Descriptor(descriptor));
        self.released.notify_all();
    }
}
