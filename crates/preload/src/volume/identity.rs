//! The user on whose behalf a thread calls: its file-system ids, as the kernel takes them.
//!
//! A program changes them by functions of the C library, which are ours, too (`calls::users`). Each
//! change begins an *epoch*; a thread reads its ids at its first call of an epoch. In an embedded
//! volume all users have all rights, since the process can open the device. A session of root's
//! acts for the thread's user. Any other session has the rights of its own user alone.

use super::opened::{EPOCH, VolumeRef, opened};
use crate::runtime::answer::{Answer, errno};
use crate::runtime::real::real;
use adit::{Credentials, Volume, interned};
use libc::{c_int, gid_t, uid_t};
use std::cell::Cell;
use std::sync::atomic::Ordering;

#[derive(Clone, Copy)]
struct ThreadUser {
    /// In which the thread read its ids.
    epoch: u64,
    effective: &'static Credentials,
    real: &'static Credentials,
}

thread_local! {
    static KNOWN: Cell<Option<ThreadUser>> = const { Cell::new(None) };
}

/// Threads may have other ids from here on, or the process another session.
pub(crate) fn changed() {
    EPOCH.fetch_add(1, Ordering::Release);
}

/// On whose behalf this thread makes, opens and changes files.
#[inline]
pub(crate) fn credentials() -> &'static Credentials {
    known().effective
}

/// On whose behalf `access` asks: the real user.
pub(crate) fn real_credentials() -> &'static Credentials {
    known().real
}

#[inline]
fn known() -> ThreadUser {
    let epoch = EPOCH.load(Ordering::Acquire);
    match KNOWN.get() {
        Some(known) if known.epoch == epoch => known,
        _ => read(epoch),
    }
}

#[cold]
fn read(epoch: u64) -> ThreadUser {
    let as_this = |who| ThreadUser {
        epoch,
        effective: who,
        real: who,
    };
    let Some(volume) = opened() else {
        // It is about to be opened, by the user of now.
        return as_this(interned(Credentials::process()));
    };
    // SAFETY: neither call has preconditions.
    let real = unsafe { (libc::getuid(), libc::getgid()) };
    let known = if volume.is_connected() {
        // A forked child's session is that of the user that it is now.
        let _ = volume.inherit();
        // If there is none, the call will say why.
        let Some((own, privileged)) = volume.session_user() else {
            return as_this(interned(Credentials::process()));
        };
        let user = |(uid, gid)| {
            if privileged && !own.is(uid, gid) {
                interned(named(uid, gid))
            } else {
                own
            }
        };
        ThreadUser {
            epoch,
            effective: user(ids()),
            real: user(real),
        }
    } else {
        let (uid, gid) = ids();
        let mut who = named(uid, gid);
        who.privileged = true;
        as_this(interned(who))
    };
    KNOWN.set(Some(known));
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
    let groups = rustix::process::getgroups().unwrap_or_default();
    let groups: Vec<gid_t> = groups.iter().map(|group| group.as_raw()).collect();
    Credentials::user(uid, gid, &groups)
}

impl VolumeRef {
    /// Does a call for the user of this thread.
    pub(crate) fn call<'a, C>(&'a self, call: C) -> Answer<C::Reply>
    where
        C: adit::PerformVolume<'a> + Send,
    {
        Volume::call(self, credentials(), call).map_err(errno)
    }
}
