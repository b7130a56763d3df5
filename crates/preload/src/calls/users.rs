//! Becoming another user: setuid and its like.
//!
//! | the process's session | the change | |
//! |---|---|---|
//! | root's | for a while: root stays the real or the saved user | the session acts for the thread's user |
//! | root's | for good | before the function returns, the process has a session of the new user, with its files and locks, and nothing of root's |
//! | another user's | of the effective user or group | likewise |
//!
//! If that can't be, the function fails (EAGAIN), and the process is the user that it was.

use crate::runtime::answer::{Answer, failed, set_errno};
use crate::runtime::inside;
use crate::runtime::message::say;
use crate::volume::{self, identity};
use adit::{Errno, Moving};
use adit_base::fork;
use adit_interposed::interposed;
use libc::{c_char, c_int, gid_t, size_t, uid_t};

/// "As it is", of an id.
const SAME: u32 = u32::MAX;

/// Real, effective and saved ids.
type Three = [u32; 3];

fn users() -> Three {
    let mut ids = [0; 3];
    let [real, effective, saved] = &mut ids;
    // SAFETY: variables of this frame.
    unsafe { libc::getresuid(real, effective, saved) };
    ids
}

fn groups() -> Three {
    let mut ids = [0; 3];
    let [real, effective, saved] = &mut ids;
    // SAFETY: as above.
    unsafe { libc::getresgid(real, effective, saved) };
    ids
}

fn or(id: u32, now: u32) -> u32 {
    if id == SAME { now } else { id }
}

/// The ids after `setuid` or `setgid`.
fn set(id: u32, [real, _, saved]: Three, is_root: bool) -> Three {
    if is_root { [id; 3] } else { [real, id, saved] }
}

/// The ids after `setreuid` or `setregid`.
fn set_two([new_real, new_effective]: [u32; 2], [real, effective, saved]: Three) -> Three {
    let after = or(new_effective, effective);
    let saves = new_real != SAME || new_effective != SAME && new_effective != real;
    [or(new_real, real), after, if saves { after } else { saved }]
}

/// The ids after `setresuid` or `setresgid`.
fn set_three(new: Three, now: Three) -> Three {
    [or(new[0], now[0]), or(new[1], now[1]), or(new[2], now[2])]
}

/// The session that the process needs once it has these ids, if that is another one than it has.
fn begin_move(users: Three, groups: Three) -> Answer<Option<Moving>> {
    let Some(volume) = volume::opened() else {
        return Ok(None);
    };
    let Some((own, privileged)) = volume.session_user() else {
        return Ok(None);
    };
    let (uid, gid) = (users[1], groups[1]);
    let stays = if privileged && own.uid == 0 {
        users.contains(&0)
    } else {
        own.is(uid, gid)
    };
    if stays {
        return Ok(None);
    }
    volume
        .begin_move(uid, gid)
        .map_err(|error| match error.errno() {
            // It may not become that user: the kernel says so.
            Errno::PERM => Errno::PERM,
            _ => {
                say(format_args!(
                    "this process can't become user {uid}: {error}"
                ));
                Errno::AGAIN
            }
        })
}

/// Does what only this user can do, in a process that is about to give it up for good.
fn prepare(now: Three, after: Three) {
    let stays = if now.contains(&0) {
        after.contains(&0)
    } else {
        after[1] == now[1]
    };
    if stays {
        return;
    }
    let _ = inside::run(|| {
        let Some(volume) = volume::opened() else {
            return;
        };
        // A forked child that has asked for none of its parent's files can open them again only as
        // this user, if their server has ended. It goes on without them.
        if volume.has_inherited() {
            let _ = volume.inherit();
        }
        volume::begin_guard();
    });
}

/// Does a call that may change ids, to these at most.
fn change(users: Three, groups: Three, call: impl FnOnce() -> c_int) -> c_int {
    if volume::settings().is_none() || fork::is_in_vfork() {
        return call();
    }
    prepare(self::users(), users);
    // No other thread begins a session meanwhile, as the user of before.
    let (_opening, _waits) = volume::hold_session();
    let moving = match inside::call(|| begin_move(users, groups)) {
        Ok(moving) => moving,
        // The kernel refuses it, too.
        Err(Errno::PERM) => None,
        Err(errno) => {
            return failed(errno);
        }
    };
    let result = call();
    let after = Errno::last();
    if result == 0
        && let Some(moving) = moving
    {
        moving.finish();
    }
    identity::changed();
    set_errno(after);
    result
}

/// `name(arguments) = ids after it`: functions that change the users, or the groups.
macro_rules! setters {
    ($($kind:ident $name:ident($($argument:ident),*) |$now:ident, $is_root:ident| $after:expr;)*) => { $(
        #[interposed]
        unsafe extern "C" fn $name($($argument: uid_t),*) -> c_int {
            let (users, groups) = (users(), groups());
            let $is_root = users[1] == 0;
            let _ = $is_root;
            let (users, groups) = setters!(@ $kind users groups $now $after);
            change(users, groups, || real($($argument),*))
        }
    )* };
    (@ user $users:ident $groups:ident $now:ident $after:expr) => {{
        let $now = $users;
        ($after, $groups)
    }};
    (@ group $users:ident $groups:ident $now:ident $after:expr) => {{
        let $now = $groups;
        ($users, $after)
    }};
}

setters! {
    user setuid(uid) |now, is_root| set(uid, now, is_root);
    user seteuid(uid) |now, _is_root| set_three([SAME, uid, SAME], now);
    user setreuid(other, effective) |now, _is_root| set_two([other, effective], now);
    user setresuid(other, effective, saved) |now, _is_root| set_three([other, effective, saved], now);
    group setgid(gid) |now, is_root| set(gid, now, is_root);
    group setegid(gid) |now, _is_root| set_three([SAME, gid, SAME], now);
    group setregid(other, effective) |now, _is_root| set_two([other, effective], now);
    group setresgid(other, effective, saved) |now, _is_root| set_three([other, effective, saved], now);
}

/// Functions that change what no session depends on.
macro_rules! others {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => { $(
        #[interposed]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            let result = real($($argument), *);
            if !fork::is_in_vfork() {
                identity::changed();
            }
            result
        }
    )* };
}

others! {
    setfsuid(uid: uid_t);
    setfsgid(gid: gid_t);
    setgroups(count: size_t, groups: *const gid_t);
    initgroups(name: *const c_char, group: gid_t);
}
