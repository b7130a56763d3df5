//! The advisory locks of an inode: `flock` on whole files, `fcntl` on ranges of bytes.
//!
//! Invariants of a [`Table`]: one owner's locks are disjoint, and merged where they touch and have
//! one mode; of two overlapping locks of different owners none is exclusive. The two kinds of locks
//! are independent, as on Linux: an inode has a table of each. Each change that may let a waiter in
//! is told to the table's [`Queue`].

use super::waits::Queue;
use crate::types::LockMode;
use adit_base::{Errno, Result, steps};
use std::cell::RefCell;
use std::collections::HashSet;

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
    pub(super) fn overlaps(&self, first: u64, last: u64) -> bool {
        self.first <= last && first <= self.last
    }

    pub(crate) fn excludes(&self, other: &Lock) -> bool {
        let exclusive = self.mode == LockMode::Exclusive || other.mode == LockMode::Exclusive;
        exclusive && self.holder != other.holder && self.overlaps(other.first, other.last)
    }
}

/// The locks of one kind on an inode.
#[derive(Default)]
pub(crate) struct Table {
    /// In no order.
    held: RefCell<Vec<Lock>>,
    pub(super) queue: Queue,
}

impl Table {
    /// The first lock that excludes `wanted`.
    pub(crate) fn blocker(&self, wanted: &Lock) -> Option<Lock> {
        let held = self.held.borrow();
        steps::note(held.len());
        let blockers = held.iter().filter(|held| held.excludes(wanted));
        blockers.min_by_key(|held| held.first).copied()
    }

    /// Takes a lock, in place of its holder's locks there. Answers the lock that excludes it, if
    /// there is one; ENOLCK if there would be too many.
    pub(crate) fn take(&self, wanted: &Lock) -> Result<Option<Lock>> {
        let blocker = self.blocker(wanted);
        if blocker.is_none() {
            let Lock { holder, mode, .. } = *wanted;
            self.replace(holder, Some(mode), wanted.first, wanted.last)?;
        }
        Ok(blocker)
    }

    /// Locks a range for its holder in this mode, or releases it (None), without a look at other
    /// holders' locks. ENOLCK if there would be too many.
    pub(crate) fn replace(
        &self,
        holder: Holder,
        mode: Option<LockMode>,
        first: u64,
        last: u64,
    ) -> Result<()> {
        if self.put(holder, mode, first, last)? {
            self.queue.release(|of| *of == holder, first, last);
        }
        Ok(())
    }

    /// Releases all locks of a holder. (No lock is split, so it cannot fail.)
    pub(crate) fn release(&self, holder: Holder) {
        let _ = self.replace(holder, None, 0, LAST_BYTE);
    }

    /// Releases all locks of several POSIX owners.
    pub(crate) fn release_owners(&self, owners: &HashSet<u64>) {
        let is_of = |of: &Holder| matches!(of, Holder::Posix { id, .. } if owners.contains(id));
        let mut held = self.held.borrow_mut();
        let before = held.len();
        steps::note(before);
        held.retain(|lock| !is_of(&lock.holder));
        if held.len() < before {
            drop(held);
            self.queue.release(is_of, 0, LAST_BYTE);
        }
    }

    /// The mode in which a holder has the first byte.
    pub(crate) fn mode(&self, holder: Holder) -> Option<LockMode> {
        let held = self.held.borrow();
        steps::note(held.len());
        let mut own = held.iter().filter(|lock| lock.holder == holder);
        own.find(|lock| lock.first == 0).map(|lock| lock.mode)
    }

    /// Closes a descriptor: releases its locks, and makes waits through it check that it is open.
    pub(crate) fn close(&self, descriptor: u64) {
        self.release(Holder::Descriptor(descriptor));
        self.queue.ask(descriptor);
    }

    /// Changes the holder's locks. True: it has less of something than before.
    fn put(&self, holder: Holder, mode: Option<LockMode>, first: u64, last: u64) -> Result<bool> {
        assert!(
            first <= last && last <= LAST_BYTE,
            "a range that a file has"
        );
        let mut held = self.held.borrow_mut();
        steps::note(held.len());
        let joins = |lock: &Lock| {
            Some(lock.mode) == mode && lock.overlaps(first.saturating_sub(1), last + 1)
        };
        let affected =
            |lock: &Lock| lock.holder == holder && (lock.overlaps(first, last) || joins(lock));
        let (mut merged_first, mut merged_last) = (first, last);
        let mut rest = Vec::new();
        let mut removed = 0;
        let mut has_less = false;
        for lock in held.iter().filter(|lock| affected(lock)) {
            removed += 1;
            if joins(lock) {
                merged_first = merged_first.min(lock.first);
                merged_last = merged_last.max(lock.last);
                continue;
            }
            has_less |= mode != Some(LockMode::Exclusive);
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
        assert!(held.len() <= LOCKS_MAX, "a bounded table");
        Ok(has_less)
    }
}

/// The locks of an inode.
#[derive(Default)]
pub(crate) struct Locks {
    /// Of `flock`; each covers everything.
    pub(crate) whole: Table,
    pub(crate) ranges: Table,
}

impl Locks {
    /// A descriptor is closed.
    pub(crate) fn close(&self, descriptor: u64) {
        self.whole.close(descriptor);
        self.ranges.close(descriptor);
    }

    /// Makes waits through a descriptor call their `stop`.
    pub(crate) fn ask(&self, descriptor: u64) {
        self.whole.queue.ask(descriptor);
        self.ranges.queue.ask(descriptor);
    }
}
