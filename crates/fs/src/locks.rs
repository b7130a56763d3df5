//! Operations on advisory locks: `flock` and `fcntl`.

use crate::open::file::OpenFile;
use crate::open::locks::{Holder, LAST_BYTE, Lock, Table};
use crate::open::waits::Woken;
use crate::types::*;
use crate::volume::Fs;
use adit_base::{Errno, Error, Result};
use adit_store::BlobId;
use std::collections::HashSet;

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

/// Advisory locks: they do not stop reads or writes.
impl Fs {
    /// Takes or releases the lock of the whole file, which the descriptor owns. A conversion first
    /// releases the lock that the descriptor has, as on Linux: if another one excludes the new
    /// lock, the descriptor has none while it waits, nor after EAGAIN.
    pub async fn flock(&self, file: &OpenFile, operation: FlockOperation) -> Result<()> {
        self.flock_until(file, operation, || None).await
    }

    /// Locks like [`Fs::flock`], and ends a wait with the error that `stop` returns. `stop` is
    /// called before each wait and by [`Fs::ask_lock_waiters`].
    pub async fn flock_until(
        &self,
        file: &OpenFile,
        operation: FlockOperation,
        stop: impl Fn() -> Option<Errno>,
    ) -> Result<()> {
        let inode = self.usable(file)?;
        let table = &inode.locks.whole;
        let holder = holder(file, LockOwner::Descriptor);
        let (mode, wait) = match operation {
            FlockOperation::Shared { wait } => (LockMode::Shared, wait),
            FlockOperation::Exclusive { wait } => (LockMode::Exclusive, wait),
            FlockOperation::Unlock => {
                table.release(holder);
                return Ok(());
            }
        };
        if table.mode(holder) == Some(mode) {
            return Ok(());
        }
        table.release(holder);
        let wanted = Lock {
            holder,
            mode,
            first: 0,
            last: LAST_BYTE,
        };
        let stop = || if wait { stop() } else { Some(Errno::AGAIN) };
        self.take_lock(file, table, &wanted, stop).await
    }

    /// Locks a range of bytes as fcntl(2) does, in place of the owner's locks there. If another
    /// owner's lock excludes it: EAGAIN, or with `wait` the call waits. EDEADLK if POSIX owners
    /// would wait for each other; EBADF if the descriptor is closed meanwhile, and if it cannot
    /// read (Shared) or write (Exclusive); EINVAL or EOVERFLOW for a range that no file has; ENOLCK
    /// beyond `LOCKS_MAX`.
    pub async fn lock_range(&self, file: &OpenFile, lock: &RangeLock, wait: bool) -> Result<()> {
        let stop = || (!wait).then_some(Errno::AGAIN);
        self.lock_range_until(file, lock, stop).await
    }

    /// Waits for a range like [`Fs::lock_range`], and ends the wait with the error that `stop`
    /// returns. `stop` is called before each wait and by [`Fs::ask_lock_waiters`].
    pub async fn lock_range_until(
        &self,
        file: &OpenFile,
        lock: &RangeLock,
        stop: impl Fn() -> Option<Errno>,
    ) -> Result<()> {
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
        let table = &inode.locks.ranges;
        self.take_lock(file, table, &wanted, stop).await
    }

    /// Takes a lock, or waits for it until `stop` has an error, or the descriptor is closed.
    async fn take_lock(
        &self,
        file: &OpenFile,
        table: &Table,
        wanted: &Lock,
        stop: impl Fn() -> Option<Errno>,
    ) -> Result<()> {
        let Some(blocker) = table.take(wanted)? else {
            return Ok(());
        };
        stop().map_or(Ok(()), Err)?;
        let waiting = (self.whole.waits).begin(table, file.id(), *wanted, &blocker)?;
        loop {
            let woken = waiting.woken().await;
            self.inode(file)?;
            if woken == Woken::Asked {
                stop().map_or(Ok(()), Err)?;
                continue;
            }
            let Some(blocker) = table.take(wanted)? else {
                waiting.granted();
                return Ok(());
            };
            stop().map_or(Ok(()), Err)?;
            waiting.look_failed(&blocker)?;
        }
    }

    /// Releases the owner's locks in a range. ENOLCK if a split would make too many locks.
    pub async fn unlock_range(
        &self,
        file: &OpenFile,
        owner: LockOwner,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        let inode = self.usable(file)?;
        let (first, last) = span(offset, len_bytes)?;
        let table = &inode.locks.ranges;
        table.replace(holder(file, owner), None, first, last)
    }

    /// The first lock that excludes this one; None if this one would be granted.
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

    /// Makes the waits for locks through this descriptor call their `stop`.
    pub fn ask_lock_waiters(&self, file: &OpenFile) {
        if let Ok(inode) = self.inode(file) {
            inode.locks.ask(file.id());
        }
    }

    /// Releases all range locks of several POSIX owners on an inode, which the caller may not have
    /// open.
    pub fn release_locks_of(&self, id: BlobId, owners: &HashSet<u64>) {
        if let Some(inode) = self.open_inode(id) {
            inode.locks.ranges.release_owners(owners);
        }
    }

    /// True if a descriptor has the inode open.
    pub fn is_open(&self, id: BlobId) -> bool {
        self.open_inode(id).is_some()
    }

    /// Releases all range locks of a POSIX owner on the inode, as POSIX requires when a process
    /// closes any of its descriptors of a file. A caller that knows the owner calls it before
    /// [`Fs::close`].
    pub async fn release_locks(&self, file: &OpenFile, owner: u64) -> Result<()> {
        let inode = self.inode(file)?;
        let owner = Holder::Posix { id: owner, pid: 0 };
        inode.locks.ranges.release(owner);
        Ok(())
    }
}
