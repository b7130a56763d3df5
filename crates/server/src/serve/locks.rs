//! Calls for locks, which may wait.

use super::resuming::not_now;
use super::{Ticket, answer, arguments, file_arguments};
use crate::begun::Begun;
use crate::rights;
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, Result};
use adit_fs::{FlockOperation, LockOwner, OpenFile, RangeLock};
use adit_wire::calls::*;
use std::collections::HashSet;
use std::sync::Arc;

/// A lock waits until it is withdrawn, and until its file is closed at the latest, by the session's
/// end. Where too many wait already it doesn't, and the session asks again. The owners of one
/// session are none of another.
pub(super) fn lock_call(
    mut ticket: Ticket,
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
    let asked = match number {
        Flock::NUMBER => Asked::Flock(file_arguments::<Flock>(&bytes)?.operation),
        LockRange::NUMBER => {
            let LockRange { mut lock, wait } = file_arguments(&bytes)?;
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
            let mut call: UnlockRange = file_arguments(&bytes)?;
            call.owner = owner(call.owner);
            Asked::Unlock(call)
        }
        TestLock::NUMBER => {
            let mut lock = file_arguments::<TestLock>(&bytes)?.lock;
            lock.owner = owner(lock.owner);
            Asked::Test(lock)
        }
        _ => {
            let call: ReleaseLocks = file_arguments(&bytes)?;
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
    let (slot, message) = (ticket.slot, ticket.message);
    let begin_wait = || session.begin_lock_wait(slot, message, &open);
    let waiting = waits.then(begin_wait).flatten();
    let (volume, worker) = (session.volume.clone(), ticket.worker_of(&open));
    ticket.leave_to(worker);
    let prepared = volume.workers.engine(worker).prepare(move |fs| async move {
        let _reclaim = reclaim;
        let stop = || match waiting {
            Some(_) => session.is_withdrawn(slot, message).then_some(Errno::INTR),
            None => Some(Errno::AGAIN),
        };
        match asked {
            Asked::Flock(operation) => {
                let done = fs.flock_until(&open, operation, stop).await;
                ticket.finish_with_value(done);
            }
            Asked::Lock(lock, _) => {
                let mut done = fs.lock_range_until(&open, &lock, stop).await;
                if let LockOwner::Posix { id, .. } = lock.owner
                    && done.is_ok()
                    // While it waited, the session may have released its owner, or ended.
                    && !session.files().note_lock_owner(open.blob_id(), id)
                {
                    fs.release_locks_of(open.blob_id(), &HashSet::from([id]));
                    done = Err(Errno::NOLCK.into());
                }
                if planted(Bug::GrantedWithdrawn) && session.is_withdrawn(slot, message) {
                    done = Err(Errno::INTR.into());
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
    });
    // Refused: the ticket has said so.
    if let Ok(prepared) = prepared {
        begun.add(worker, prepared);
    }
    Ok(())
}

/// Ends a wait for a lock. What became of it says its own reply.
pub(super) fn withdraw(ticket: Ticket, bytes: &[u8], begun: &mut Begun) -> Result<()> {
    let decoded = arguments::<Withdraw>(bytes)?;
    let Withdraw { slot, message } = decoded.1;
    let session = ticket.session.clone();
    let allowed = rights::check(&session, &decoded);
    let open = match allowed.and_then(|()| session.withdraw(slot, message)) {
        Ok(Some(open)) => open,
        Ok(None) => {
            ticket.finish_with_value(Ok(()));
            return Ok(());
        }
        Err(error) => {
            ticket.finish_with(Err(error));
            return Ok(());
        }
    };
    // The wait asks then, and finds that it was withdrawn: both are operations of one worker.
    let worker = ticket.worker_of(&open);
    answer(ticket, worker, begun, async move |fs, _| {
        fs.ask_lock_waiters(&open);
        Ok(())
    });
    Ok(())
}
