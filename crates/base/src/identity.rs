//! The effective user and group of a thread.
//!
//! The kernel has them for each thread; the C library changes them for all threads of a process.
//! Here one thread acts as another user for a moment, by the kernel's own calls.

use crate::thread::without_signals;
use crate::{Result, from_rustix};
use rustix::process::{Gid, Uid, getegid, geteuid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

/// Runs `work` as this effective user and group, in this thread alone. EPERM if the thread may not
/// change to them. No signal handler of the thread runs meanwhile.
pub fn acting_as<T>(uid: u32, gid: u32, work: impl FnOnce() -> T) -> Result<T> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let is_it = geteuid() == uid && getegid() == gid;
    if is_it {
        return Ok(work());
    }
    without_signals(|| {
        let users = Users::now();
        let groups = Groups::now();
        // Only root may take any group.
        let entered = if uid.is_root() {
            users.enter(uid).and_then(|()| groups.enter(gid))
        } else {
            groups.enter(gid).and_then(|()| users.enter(uid))
        };
        let done = entered.map(|()| work());
        let left = if uid.is_root() {
            groups.leave().and_then(|()| users.leave())
        } else {
            users.leave().and_then(|()| groups.leave())
        };
        if left.is_err() {
            // It would go on with rights that it must not have.
            std::process::abort();
        }
        done.map_err(|errno| from_rustix(errno).into())
    })
}

/// True in a process of root that acts as another user for a while.
pub fn is_root_below() -> bool {
    let Three([real, effective, saved]) = Users::now();
    !effective.is_root() && (real.is_root() || saved.is_root())
}

/// Ids of a thread: real, effective, saved.
struct Three<T>([T; 3]);
type Users = Three<Uid>;
type Groups = Three<Gid>;

impl<T: Copy + PartialEq> Three<T> {
    /// The ids with this effective one. All three are still there, if it is one of them: the thread
    /// may have them again. Only root may take another one, and may have any again.
    fn with(&self, id: T) -> [T; 3] {
        let [real, effective, saved] = self.0;
        match id {
            _ if id == real => [effective, real, saved],
            _ if id == saved => [real, saved, effective],
            _ => [real, id, effective],
        }
    }

    fn back(&self, set: fn([T; 3]) -> rustix::io::Result<()>) -> rustix::io::Result<()> {
        let [real, effective, _] = self.0;
        // At first without the rights to take the saved one.
        set(self.0).or_else(|_| set([real, effective, effective]).and_then(|()| set(self.0)))
    }
}

fn set_users([real, effective, saved]: [Uid; 3]) -> rustix::io::Result<()> {
    set_thread_res_uid(real, effective, saved)
}

fn set_groups([real, effective, saved]: [Gid; 3]) -> rustix::io::Result<()> {
    set_thread_res_gid(real, effective, saved)
}

impl Users {
    fn now() -> Users {
        let mut ids = [0; 3];
        let [real, effective, saved] = &mut ids;
        // SAFETY: variables of this frame, which the call fills.
        unsafe { libc::getresuid(real, effective, saved) };
        Three(ids.map(Uid::from_raw))
    }

    fn enter(&self, uid: Uid) -> rustix::io::Result<()> {
        set_users(self.with(uid))
    }

    fn leave(&self) -> rustix::io::Result<()> {
        self.back(set_users)
    }
}

impl Groups {
    fn now() -> Groups {
        let mut ids = [0; 3];
        let [real, effective, saved] = &mut ids;
        // SAFETY: getresgid writes three numbers, to memory of our own.
        unsafe { libc::getresgid(real, effective, saved) };
        Three(ids.map(Gid::from_raw))
    }

    fn enter(&self, gid: Gid) -> rustix::io::Result<()> {
        set_groups(self.with(gid))
    }

    fn leave(&self) -> rustix::io::Result<()> {
        self.back(set_groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_acts_as_another_user_for_a_moment_and_no_other_thread_does() {
        let now = || (geteuid().as_raw(), getegid().as_raw());
        let before = now();
        if before.0 != 0 {
            assert!(acting_as(before.0 + 1, before.1, || ()).is_err());
            assert_eq!(now(), before);
            return;
        }
        let inside = acting_as(1234, 4321, || {
            let other = std::thread::spawn(now);
            // A thread that acts as another user made it.
            (now(), other.join().expect("no panic"))
        });
        assert_eq!(inside.expect("root may"), ((1234, 4321), (1234, 4321)));
        assert_eq!(now(), before);
        let nested = acting_as(1234, 4321, || acting_as(before.0, before.1, now));
        assert_eq!(nested.expect("root may").expect("it is saved"), before);
        assert_eq!(now(), before);
    }

    /// A thread with three different ids lost the saved one, so it could not be itself again, and the
    /// process was aborted.
    #[test]
    fn a_thread_with_three_different_ids_has_them_all_afterwards() {
        if !geteuid().is_root() {
            return;
        }
        // Capabilities belong to a thread, like the user that it acts as.
        let thread = std::thread::spawn(|| {
            for ids in [
                [1000, 0, 1001],
                [0, 1000, 1001],
                [1000, 1001, 1002],
                [1000, 1001, 0],
            ] {
                let three = Three(ids.map(Uid::from_raw));
                let before = Users::now();
                set_users([Uid::ROOT; 3]).expect("root still");
                set_users(three.0).expect("root may");
                let gid = getegid().as_raw();
                for uid in ids.into_iter().chain([4000]) {
                    let inside = acting_as(uid, gid, || geteuid().as_raw());
                    let may = ids.contains(&uid) || ids[1] == 0;
                    assert_eq!(inside.ok(), may.then_some(uid), "{ids:?} as {uid}");
                    assert_eq!(Users::now().0, three.0, "{ids:?} after {uid}");
                }
                if !ids.contains(&0) {
                    return;
                }
                let root = three.with(Uid::ROOT);
                set_users(root).expect("it was one of them");
                set_users(before.0).expect("root may");
            }
        });
        thread.join().expect("no panic");
    }
}
