//! Advisory locks: `flock` on whole files, `fcntl` on ranges of bytes.
//!
//! Invariants of a [`Table`]: one owner's locks are disjoint, and merged where they touch and are of one mode; of two
//! owners' locks that overlap none is exclusive. The two kinds of locks know nothing of each other, as on Linux: an
//! inode has a table of each. Who waits looks again whenever something was given back, or a descriptor closed.

use crate::inode::Inode;
use crate::open::OpenFile;
use crate::types::*;
use crate::volume::Fs;
use adit_base::{Errno, Error, Result};
use adit_reactor::sync::Event;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Most locks of one inode and kind; ENOLCK beyond.
pub const LOCKS_MAX: usize = 4096;

/// The last byte that a lock can cover: "to the end of the file".
const LAST_BYTE: u64 = i64::MAX as u64;

/// Who holds a lock.
#[derive(Clone, Copy, Debug)]
enum Holder {
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
struct Lock {
    holder: Holder,
    mode: LockMode,
    first: u64,
    /// Inclusive.
    last: u64,
}

impl Lock {
    fn overlaps(&self, first: u64, last: u64) -> bool {
        self.first <= last && first <= self.last
    }

    fn excludes(&self, other: &Lock) -> bool {
        let exclusive = self.mode == LockMode::Exclusive || other.mode == LockMode::Exclusive;
        exclusive && self.holder != other.holder && self.overlaps(other.first, other.last)
    }
}

/// The locks of one kind on an inode, in no order.
#[derive(Default)]
struct Table(RefCell<Vec<Lock>>);

impl Table {
    /// What keeps `wanted` from being granted: of several locks the one that begins first.
    fn blocker(&self, wanted: &Lock) -> Option<Lock> {
        let held = self.0.borrow();
        let blockers = held.iter().filter(|held| held.excludes(wanted));
        blockers.min_by_key(|held| held.first).copied()
    }

    /// Makes a range be locked by its holder in this mode, or not at all (None). Nobody else's lock is
    /// looked at. Returns whether locks were given back, or may have been; ENOLCK when there would be too many.
    fn replace(
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
        held.extend(rest);
        Ok(removed > 0)
    }
}

/// The locks of an inode.
#[derive(Default)]
pub(crate) struct Locks {
    /// Of `flock`; each covers everything.
    whole: Table,
    ranges: Table,
    released: Event,
}

impl Locks {
    /// Takes a lock unless another one excludes it.
    fn take(&self, table: &Table, wanted: &Lock) -> Result<bool> {
        if table.blocker(wanted).is_some() {
            return Ok(false);
        }
        let Lock { holder, mode, .. } = *wanted;
        self.replace(table, holder, Some(mode), wanted.first, wanted.last)?;
        Ok(true)
    }

    fn replace(
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

    /// Gives back all that a holder has. (Nothing is split, so nothing can fail.)
    fn release(&self, table: &Table, holder: Holder) {
        let _ = self.replace(table, holder, None, 0, LAST_BYTE);
    }

    /// A descriptor is closed: its locks go, and who waits with it looks again whether it is still open.
    pub(crate) fn close(&self, descriptor: u64) {
        self.release(&self.whole, Holder::Descriptor(descriptor));
        self.release(&self.ranges, Holder::Descriptor(descriptor));
        self.released.notify_all();
    }
}

/// What POSIX owners wait for, of all inodes: a cycle among them would never end. Locks of descriptors aren't
/// followed, as on Linux: they belong to nobody who could be said to wait.
#[derive(Default)]
pub(crate) struct Waits {
    waiting: RefCell<Vec<(u64, Rc<Inode>, Lock)>>,
    next_ticket: Cell<u64>,
}

/// Somebody waits until this is dropped.
struct Waiting<'a>(&'a Waits, u64);

impl Waits {
    /// EDEADLK when somebody whom `wanted` would wait for waits, over whatever detours, for its holder.
    fn begin(&self, inode: &Rc<Inode>, wanted: Lock) -> Result<Waiting<'_>> {
        let mut waiting = self.waiting.borrow_mut();
        if let Holder::Posix { id, .. } = wanted.holder {
            let mut reached = Vec::new();
            reach(&mut reached, inode, &wanted);
            let mut next = 0;
            while let Some(owner) = reached.get(next).copied() {
                if owner == id {
                    return Err(Errno::DEADLK.into());
                }
                for (_, inode, wanted) in waiting.iter() {
                    if matches!(wanted.holder, Holder::Posix { id, .. } if id == owner) {
                        reach(&mut reached, inode, wanted);
                    }
                }
                next += 1;
            }
        }
        let ticket = self.next_ticket.replace(self.next_ticket.get() + 1);
        waiting.push((ticket, inode.clone(), wanted));
        Ok(Waiting(self, ticket))
    }
}

/// Adds the POSIX owners that `wanted` waits for.
fn reach(reached: &mut Vec<u64>, inode: &Inode, wanted: &Lock) {
    let held = inode.locks.ranges.0.borrow();
    for blocker in held.iter().filter(|held| held.excludes(wanted)) {
        if let Holder::Posix { id, .. } = blocker.holder
            && !reached.contains(&id)
        {
            reached.push(id);
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Waiting(waits, ticket) = self;
        let mut waiting = waits.waiting.borrow_mut();
        waiting.retain(|(of, ..)| of != ticket);
    }
}

/// First and last byte of a range as `fcntl` takes it: a length of 0 means to the end.
fn span(offset: u64, len_bytes: u64) -> Result<(u64, u64)> {
    if offset > LAST_BYTE || len_bytes > LAST_BYTE {
        return Err(Errno::INVAL.into());
    }
    match len_bytes {
        0 => Ok((offset, LAST_BYTE)),
        _ if len_bytes - 1 > LAST_BYTE - offset => Err(Errno::OVERFLOW.into()),
        _ => Ok((offset, offset + (len_bytes - 1))),
    }
}

fn holder(file: &OpenFile, owner: LockOwner) -> Holder {
    match owner {
        LockOwner::Descriptor => Holder::Descriptor(file.id()),
        LockOwner::Posix { id, pid } => Holder::Posix { id, pid },
    }
}

fn wanted(file: &OpenFile, lock: &RangeLock) -> Result<Lock> {
    let (first, last) = span(lock.offset, lock.len_bytes)?;
    Ok(Lock {
        holder: holder(file, lock.owner),
        mode: lock.mode,
        first,
        last,
    })
}

/// Advisory locks: they keep nobody from reading or writing.
impl Fs {
    /// Takes or gives back the lock of the whole file; owned by the descriptor. Waiting to convert a
    /// lock gives up the one that is held, as flock(2) says; failing to convert without waiting keeps it.
    pub async fn flock(&self, file: &OpenFile, operation: FlockOperation) -> Result<()> {
        let inode = self.usable(file)?;
        let locks = &inode.locks;
        let holder = holder(file, LockOwner::Descriptor);
        let (mode, wait) = match operation {
            FlockOperation::Shared { wait } => (LockMode::Shared, wait),
            FlockOperation::Exclusive { wait } => (LockMode::Exclusive, wait),
            FlockOperation::Unlock => {
                locks.release(&locks.whole, holder);
                return Ok(());
            }
        };
        let wanted = Lock {
            holder,
            mode,
            first: 0,
            last: LAST_BYTE,
        };
        while !locks.take(&locks.whole, &wanted)? {
            if !wait {
                return Err(Errno::AGAIN.into());
            }
            locks.release(&locks.whole, holder);
            locks.released.wait().await;
            self.inode(file)?;
        }
        Ok(())
    }

    /// Locks a range of bytes as fcntl(2) does, in place of what the owner has locked there. When another owner's lock
    /// excludes it: EAGAIN, or waiting, which EDEADLK refuses if POSIX owners would wait for each other, and closing the
    /// descriptor ends with EBADF. EBADF also if the descriptor can't read (Shared) or write (Exclusive);
    /// EINVAL or EOVERFLOW for a range that no file has; ENOLCK beyond [`LOCKS_MAX`].
    pub async fn lock_range(&self, file: &OpenFile, lock: &RangeLock, wait: bool) -> Result<()> {
        let inode = self.usable(file)?;
        let allowed = match lock.mode {
            LockMode::Shared => file.flags().readable(),
            LockMode::Exclusive => file.flags().writable(),
        };
        let wanted = wanted(file, lock)?;
        if !allowed {
            return Err(Error::with(
                Errno::BADF,
                "lock a file in a mode that it wasn't opened for",
            ));
        }
        let locks = &inode.locks;
        while !locks.take(&locks.ranges, &wanted)? {
            if !wait {
                return Err(Errno::AGAIN.into());
            }
            let waiting = self.waits.begin(&inode, wanted)?;
            locks.released.wait().await;
            drop(waiting);
            self.inode(file)?;
        }
        Ok(())
    }

    /// Gives back what the owner has locked in a range. ENOLCK if that would split a lock into one too many.
    pub async fn unlock_range(
        &self,
        file: &OpenFile,
        owner: LockOwner,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        let inode = self.usable(file)?;
        let (first, last) = span(offset, len_bytes)?;
        let locks = &inode.locks;
        locks.replace(&locks.ranges, holder(file, owner), None, first, last)
    }

    /// A lock that keeps this one from being granted, the one that begins first; None if it would be.
    pub async fn test_lock(&self, file: &OpenFile, lock: &RangeLock) -> Result<Option<RangeLock>> {
        let inode = self.usable(file)?;
        let blocker = inode.locks.ranges.blocker(&wanted(file, lock)?);
        Ok(blocker.map(|blocker| RangeLock {
            owner: match blocker.holder {
                Holder::Descriptor(_) => LockOwner::Descriptor,
                Holder::Posix { id, pid } => LockOwner::Posix { id, pid },
            },
            mode: blocker.mode,
            offset: blocker.first,
            len_bytes: match blocker.last {
                LAST_BYTE => 0,
                last => last - blocker.first + 1,
            },
        }))
    }

    /// Gives back all range locks of a POSIX owner on the inode: what POSIX wants when a process closes any
    /// of its descriptors of a file. Those who know the owner call it before [`Fs::close`].
    pub async fn release_locks(&self, file: &OpenFile, owner: u64) -> Result<()> {
        let inode = self.inode(file)?;
        let locks = &inode.locks;
        locks.release(&locks.ranges, Holder::Posix { id: owner, pid: 0 });
        Ok(())
    }
}
