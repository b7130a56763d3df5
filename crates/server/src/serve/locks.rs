//! Calls for locks, which may wait.

use super::resuming::not_now;
use super::{Begun, Ticket, garbled};
use adit_base::{Errno, Error, Result};
use adit_fs::{FlockOperation, Fs, LockOwner, OpenFile, RangeLock};
use adit_wire::calls::*;
use adit_wire::value::Value;
use std::sync::Arc;

/// A lock waits until its file is closed at the latest, by the session's end. Where too many wait
/// already it doesn't, and the session asks again. The owners of one session are none of another.
pub(super) fn lock_call(
    ticket: Ticket,
    number: u16,
    open: Arc<OpenFile>,
    bytes: Vec<u8>,
    begun: &mut Begun,
) -> Result<()> {
    enum Asked {
        Flock(FlockOperation),
        Lock(RangeLock, bool),
        Unlock(UnlockRange),
        Test(RangeLock),
        Release(u64),
    }
    let session = ticket.session.clone();
    // Otherwise another session may have had the lock meanwhile, and have changed what it protects.
    let reclaim = session.is_resuming().then(|| session.begin_reclaim());
    if let Some(None) = reclaim {
        ticket.finish_with(Err(not_now()));
        return Ok(());
    }
    let owner = |owner| match owner {
        LockOwner::Posix { id, pid } => LockOwner::Posix {
            id: session.lock_owner(id),
            pid,
        },
        other => other,
    };
    let garbled = || garbled(number);
    let asked = match number {
        Flock::NUMBER => Asked::Flock(Flock::decode(&bytes).ok_or_else(garbled)?.operation),
        LockRange::NUMBER => {
            let LockRange { mut lock, wait } = LockRange::decode(&bytes).ok_or_else(garbled)?;
            lock.owner = owner(lock.owner);
            if let LockOwner::Posix { id, .. } = lock.owner
                && !session.files().note_lock_owner(open.blob_id(), id)
            {
                let what = "lock ranges for more owners than a session can have";
                ticket.finish_with(Err(Error::with(Errno::NOLCK, what)));
                return Ok(());
            }
            Asked::Lock(lock, wait)
        }
        UnlockRange::NUMBER => {
            let mut call = UnlockRange::decode(&bytes).ok_or_else(garbled)?;
            call.owner = owner(call.owner);
            Asked::Unlock(call)
        }
        TestLock::NUMBER => {
            let mut lock = TestLock::decode(&bytes).ok_or_else(garbled)?.lock;
            lock.owner = owner(lock.owner);
            Asked::Test(lock)
        }
        _ => {
            let call = ReleaseLocks::decode(&bytes).ok_or_else(garbled)?;
            let id = session.lock_owner(call.owner_id);
            session.files().forget_lock_owner(open.blob_id(), id);
            Asked::Release(id)
        }
    };
    let waits = matches!(
        asked,
        Asked::Lock(_, true)
            | Asked::Flock(
                FlockOperation::Shared { wait: true } | FlockOperation::Exclusive { wait: true }
            )
    );
    if waits && reclaim.is_some() {
        // It would hold up all others.
        ticket.finish_with(Err(not_now()));
        return Ok(());
    }
    let waiting = waits.then(|| session.begin_lock_wait()).flatten();
    let engine = session.volume.engine.clone();
    begun.extend(engine.prepare(move |fs| async move {
        let _reclaim = reclaim;
        match asked {
            Asked::Flock(operation) => {
                let done = match waits && waiting.is_none() {
                    false => fs.flock(&open, operation).await,
                    true => flock_at_once(fs, &open, operation).await,
                };
                ticket.finish_with_value(done);
            }
            Asked::Lock(lock, _) => {
                let mut done = fs.lock_range(&open, &lock, waiting.is_some()).await;
                if let LockOwner::Posix { id, .. } = lock.owner
                    && done.is_ok()
                    // While it waited, the session may have released its owner, or ended.
                    && !session.files().note_lock_owner(open.blob_id(), id)
                {
                    fs.release_locks_of(open.blob_id(), id);
                    done = Err(Errno::NOLCK.into());
                }
                ticket.finish_with_value(done);
            }
            Asked::Unlock(call) => {
                let unlocked = fs.unlock_range(&open, call.owner, call.offset, call.len_bytes);
                let unlocked = unlocked.await;
                ticket.finish_with_value(unlocked);
            }
            Asked::Test(lock) => {
                let found = fs.test_lock(&open, &lock).await.map(|found| {
                    found.map(|mut found| {
                        // Whose it is says its process; the number is the session's secret.
                        if let LockOwner::Posix { id, pid } = found.owner {
                            let is_own = session.files().is_lock_owner(open.blob_id(), id);
                            let id = if is_own { session.lock_owner(id) } else { 0 };
                            found.owner = LockOwner::Posix { id, pid };
                        }
                        found
                    })
                });
                ticket.finish_with_value(found);
            }
            Asked::Release(id) => ticket.finish_with_value(fs.release_locks(&open, id).await),
        }
        Ok(())
    }));
    Ok(())
}

/// A lock that should wait and can't: as far as it comes without, like the begin of waiting.
async fn flock_at_once(fs: &Fs, open: &OpenFile, operation: FlockOperation) -> Result<()> {
    let at_once = match operation {
        FlockOperation::Shared { .. } => FlockOperation::Shared { wait: false },
        FlockOperation::Exclusive { .. } => FlockOperation::Exclusive { wait: false },
        other => other,
    };
    let done = fs.flock(open, at_once).await;
    if done
        .as_ref()
        .is_err_and(|error| error.errno() == Errno::AGAIN)
    {
        fs.flock(open, FlockOperation::Unlock).await?;
    }
    done
}
