//! Locks that the mount's processes share with sessions.
//!
//! flock(2) locks by open file, which is a descriptor of the file system. fcntl(2) locks by owner:
//! a process, or with `F_OFD_SETLK` an open file; the kernel doesn't tell which. It says when a
//! process closes a descriptor, and when an open file is gone: then all owners that have locked
//! through it are.
//!
//! A lock that is waited for takes no thread: the operation that gets it replies. The kernel
//! interrupts it when a signal arrives, possibly before the thread that has the request waits.

use crate::kernel::{Body, Connection, LockRequest};
use crate::mounted::Mounted;
use adit::{Errno, Result};
use adit_fs::{FlockOperation, LockMode, LockOwner, OpenFile, RangeLock};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most interruptions that are remembered of requests that don't wait for a lock, or don't yet.
const EARLY_MAX: usize = 64;
/// The last byte that a lock can cover.
const LAST_BYTE: u64 = i64::MAX as u64;

/// How asking for a lock ended.
pub(crate) enum Locked {
    Done,
    /// The reply comes later.
    Waits,
}

/// Requests that wait for locks.
#[derive(Default)]
pub(crate) struct LockWaits {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// By the request's number: the file, and whether the wait is interrupted.
    waiting: HashMap<u64, (Arc<OpenFile>, Arc<AtomicBool>)>,
    early: VecDeque<u64>,
}

/// A lock as the file system takes it.
#[derive(Clone, Copy)]
enum Wanted {
    Whole(FlockOperation),
    Range(RangeLock),
}

impl LockWaits {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes or releases a lock. If it waits, `connection` gets the reply to the request `unique`.
    pub(crate) fn lock(
        self: &Arc<Self>,
        mounted: &Mounted,
        connection: &Arc<Connection>,
        unique: u64,
        lock: &LockRequest,
        wait: bool,
    ) -> Result<Locked> {
        let file = mounted.file(lock.handle)?;
        let Some(mode) = mode(lock.kind)? else {
            let owner = posix(lock);
            let (offset, len) = (lock.first, len_bytes(lock));
            if lock.is_flock {
                mounted.on(&file, |fs| fs.flock(&file, FlockOperation::Unlock))?
            } else {
                mounted.on(&file, |fs| fs.unlock_range(&file, owner, offset, len))?
            }
            return Ok(Locked::Done);
        };
        let wanted = if lock.is_flock {
            Wanted::Whole(whole(mode, true))
        } else {
            mounted.handles.note_owner(lock.handle, lock.owner);
            Wanted::Range(RangeLock::new(
                posix(lock),
                mode,
                lock.first,
                len_bytes(lock),
            ))
        };
        let at_once = match wanted {
            Wanted::Whole(_) => mounted.on(&file, |fs| fs.flock(&file, whole(mode, false))),
            Wanted::Range(range) => mounted.on(&file, |fs| fs.lock_range(&file, &range, false)),
        };
        match at_once {
            Err(error) if wait && error.errno() == Errno::AGAIN => {}
            done => return done.map(|()| Locked::Done),
        }
        let stopped = self.begin(unique, &file);
        let started = mounted.spawn_on(&file.clone(), move |fs| async move {
            let stop = || stopped.load(Ordering::Relaxed).then_some(Errno::INTR);
            match wanted {
                Wanted::Whole(operation) => fs.flock_until(&file, operation, stop).await,
                Wanted::Range(range) => fs.lock_range_until(&file, &range, stop).await,
            }
        });
        let (waits, connection) = (self.clone(), connection.clone());
        let ending = mounted.ending.clone();
        started.on_complete(move |done| {
            waits.table().waiting.remove(&unique);
            let done = if ending.load(Ordering::Acquire) {
                // What held it was closed with the mount, and so is the file that waited.
                Err(Errno::NOTCONN)
            } else {
                done.map_err(|error| error.errno())
            };
            connection.reply(unique, done.map(|()| &[][..]));
        });
        Ok(Locked::Waits)
    }

    /// A request is about to wait for a lock.
    fn begin(&self, unique: u64, file: &Arc<OpenFile>) -> Arc<AtomicBool> {
        let mut table = self.table();
        let stopped = Arc::new(AtomicBool::new(table.early.contains(&unique)));
        table
            .waiting
            .insert(unique, (file.clone(), stopped.clone()));
        stopped
    }

    /// A signal is pending for the caller of a request.
    pub(crate) fn interrupt(&self, mounted: &Mounted, unique: u64) -> Result<()> {
        let file = {
            let mut table = self.table();
            let Some((file, stopped)) = table.waiting.get(&unique) else {
                // It may be another operation, or about to wait.
                table.early.push_back(unique);
                if table.early.len() > EARLY_MAX {
                    table.early.pop_front();
                }
                return Ok(());
            };
            stopped.store(true, Ordering::Relaxed);
            file.clone()
        };
        // The wait asks then, after this store: both are operations of one worker.
        mounted.on(&file, |fs| {
            fs.ask_lock_waiters(&file);
            async { Ok(()) }
        })
    }
}

impl Mounted {
    /// Puts the first lock that excludes this one, or an unlocked range.
    pub(crate) fn test_lock(&self, lock: &LockRequest, body: &mut Body) -> Result<()> {
        let file = self.file(lock.handle)?;
        let mode = mode(lock.kind)?.ok_or(Errno::INVAL)?;
        let wanted = RangeLock::new(posix(lock), mode, lock.first, len_bytes(lock));
        let Some(found) = self.on(&file, |fs| fs.test_lock(&file, &wanted))? else {
            body.u64s(&[lock.first, lock.last]);
            body.u32s(&[libc::F_UNLCK as u32, 0]);
            return Ok(());
        };
        let last = match found.len_bytes {
            0 => LAST_BYTE,
            len => found.offset + (len - 1),
        };
        let kind = match found.mode {
            LockMode::Shared => libc::F_RDLCK,
            LockMode::Exclusive => libc::F_WRLCK,
        };
        let pid = match found.owner {
            LockOwner::Posix { pid, .. } => pid,
            // An open file has no process.
            _ => -1,
        };
        body.u64s(&[found.offset, last]);
        body.u32s(&[kind as u32, pid as u32]);
        Ok(())
    }

    /// Releases the locks of an owner that closes a descriptor.
    pub(crate) fn release_locks(&self, handle: u64, owner: u64) -> Result<()> {
        let file = self.file(handle)?;
        self.handles.forget_owner(handle, owner);
        self.on(&file, |fs| fs.release_locks(&file, owner))
    }
}

fn posix(lock: &LockRequest) -> LockOwner {
    LockOwner::Posix {
        id: lock.owner,
        pid: lock.pid as i32,
    }
}

/// 0: to the end of the file.
fn len_bytes(lock: &LockRequest) -> u64 {
    match lock.last {
        LAST_BYTE.. => 0,
        last => (last + 1).saturating_sub(lock.first).max(1),
    }
}

/// None: it is to be released.
fn mode(kind: i32) -> Result<Option<LockMode>> {
    match kind {
        libc::F_RDLCK => Ok(Some(LockMode::Shared)),
        libc::F_WRLCK => Ok(Some(LockMode::Exclusive)),
        libc::F_UNLCK => Ok(None),
        _ => Err(Errno::INVAL.into()),
    }
}

fn whole(mode: LockMode, wait: bool) -> FlockOperation {
    match mode {
        LockMode::Shared => FlockOperation::Shared { wait },
        LockMode::Exclusive => FlockOperation::Exclusive { wait },
    }
}
