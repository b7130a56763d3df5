//! The user on whose behalf a thread calls: its file-system ids, as the kernel takes them.
//!
//! A program changes them by functions of the C library, which are ours, too (`calls::users`). Each
//! change begins an *epoch*; a thread reads its ids at its first call of an epoch. In an embedded
//! volume all users have all rights, since the process can open the device. A session of root's
//! acts for the thread's user. Any other session has the rights of its own user alone.

use crate::real::real;
use crate::volume::opened;
use adit::{Credentials, interned};
use libc::{c_int, gid_t, uid_t};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

static EPOCH: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The epoch in which the thread read its ids, and the user that they were.
    static KNOWN: Cell<(u64, Option<&'static Credentials>)> = const { Cell::new((0, None)) };
}

/// Threads may have other ids from here on, or the process another session.
pub(crate) fn changed() {
    EPOCH.fetch_add(1, Ordering::Release);
}

/// On whose behalf this thread makes, opens and changes files.
#[inline]
pub(crate) fn credentials() -> &'static Credentials {
    let epoch = EPOCH.load(Ordering::Acquire);
    match KNOWN.get() {
        (of, Some(known)) if of == epoch => known,
        _ => read(epoch),
    }
}

#[cold]
fn read(epoch: u64) -> &'static Credentials {
    let Some(volume) = opened() else {
        // It is about to be opened, by the user of now.
        return interned(Credentials::process());
    };
    let (uid, gid) = ids();
    let known = match volume.is_connected() {
        true => {
            // A forked child's session is that of the user that it is now.
            let _ = volume.inherit();
            match volume.session_user() {
                Some((own, true)) if !own.is(uid, gid) => interned(named(uid, gid)),
                Some((own, _)) => own,
                // The call will say why there is none.
                None => return interned(Credentials::process()),
            }
        }
        false => {
            let mut who = named(uid, gid);
            who.privileged = true;
            interned(who)
        }
    };
    KNOWN.set((epoch, Some(known)));
    known
}

/// The file-system ids of this thread.
fn ids() -> (uid_t, gid_t) {
    // A number that is no user's changes nothing; the answer is the one of now.
    let uid = real!(setfsuid(uid_t::MAX => uid_t) -> c_int);
    let gid = real!(setfsgid(gid_t::MAX => gid_t) -> c_int);
    (uid as uid_t, gid as gid_t)
}

fn named(uid: uid_t, gid: gid_t) -> Credentials {
    let mut groups = vec![0; 64];
    loop {
        // SAFETY: room for so many.
        let count = unsafe { libc::getgroups(groups.len() as c_int, groups.as_mut_ptr()) };
        match usize::try_from(count) {
            Ok(count) => {
                groups.truncate(count);
                break;
            }
            // Too many for the room.
            Err(_) if groups.len() < 1 << 16 => groups.resize(1 << 16, 0),
            Err(_) => {
                groups.clear();
                break;
            }
        }
    }
    Credentials::user(uid, gid, &groups)
}
