//! The effective user and group of a thread.
//!
//! The kernel has them for each thread; the C library changes them for all threads of a process.
//! Here one thread acts as another user for a moment, by the kernel's own calls.

use crate::thread::without_signals;
use crate::{Result, from_rustix};
use rustix::process::{Gid, Uid, getegid, geteuid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

/// Does `work` as this effective user and group, in this thread alone. EPERM if it may not be
/// them. No signal handler of the thread runs meanwhile.
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
        let entered = match uid.is_root() {
            true => users.enter(uid).and_then(|()| groups.enter(gid)),
            false => groups.enter(gid).and_then(|()| users.enter(uid)),
        };
        let done = entered.map(|()| work());
        let left = match uid.is_root() {
            true => groups.leave().and_then(|()| users.leave()),
            false => users.leave().and_then(|()| groups.leave()),
        };
        if left.is_err() {
            // It would go on with rights that it must not have.
            std::process::abort();
        }
        done.map_err(|errno| from_rustix(errno).into())
    })
}

/// A number of a user or group: real, effective, saved.
struct Three<T>([T; 3]);
type Users = Three<Uid>;
type Groups = Three<Gid>;

impl Users {
    fn now() -> Users {
        let mut ids = [0; 3];
        let [real, effective, saved] = &mut ids;
        // SAFETY: variables of this frame, which the call fills.
        unsafe { libc::getresuid(real, effective, saved) };
        Three(ids.map(Uid::from_raw))
    }

    /// The effective one is saved, so that the thread can have it again.
    fn enter(&self, uid: Uid) -> rustix::io::Result<()> {
        let [real, effective, _] = self.0;
        set_thread_res_uid(real, uid, effective)
    }

    fn leave(&self) -> rustix::io::Result<()> {
        let [real, effective, saved] = self.0;
        set_thread_res_uid(real, effective, saved)
    }
}

impl Groups {
    fn now() -> Groups {
        let mut ids = [0; 3];
        let [real, effective, saved] = &mut ids;
        // SAFETY: as above.
        unsafe { libc::getresgid(real, effective, saved) };
        Three(ids.map(Gid::from_raw))
    }

    fn enter(&self, gid: Gid) -> rustix::io::Result<()> {
        let [real, effective, _] = self.0;
        set_thread_res_gid(real, gid, effective)
    }

    fn leave(&self) -> rustix::io::Result<()> {
        let [real, effective, saved] = self.0;
        set_thread_res_gid(real, effective, saved)
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
            // It was made by a thread that acts as somebody else.
            (now(), other.join().expect("no panic"))
        });
        assert_eq!(inside.expect("root may"), ((1234, 4321), (1234, 4321)));
        assert_eq!(now(), before);
        let nested = acting_as(1234, 4321, || acting_as(before.0, before.1, now));
        assert_eq!(nested.expect("root may").expect("it is saved"), before);
        assert_eq!(now(), before);
    }
}
