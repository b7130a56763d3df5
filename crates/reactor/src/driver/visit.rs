//! A closure beside an operation: a thread that drives one worker runs it under the lock of another
//! worker, too.
//!
//! ```text
//!  operation of A ─► visit ─► B's lock ─► closure ─► leave_visit ─► operation of A ─► A's release
//!                      │ held                        B's release                     wake-ups of B
//!                      └► None: the operation steps aside (`Reactor::step_aside`), and tries again
//! ```
//! Invariants:
//! 1. *No deadlock.* A thread with a lock only tries to take another one, for a short time. If it
//!    fails, its operation releases its own lock before it tries again. Only one thread, the leader
//!    of a commit (`Engine::beside_all`), waits for locks while it has some, and it gives up after
//!    [`LEADER_WAITS_NS`]. So no thread waits for a lock whose holder waits for this thread.
//! 2. The closure doesn't await, and polls nothing.
//! 3. The visited worker is left as any driver leaves it (`lock.rs`): messages are taken in, work
//!    has a successor, the next timer a watcher. Where no caller waits, this thread is the
//!    successor: it drives after the release of the worker from which the visit began. Wake-ups of
//!    the visited worker, which are system calls, are carried past that release, too.
//! 4. A panic in the closure poisons both workers.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use adit_base::Result;
use adit_base::clock::monotonic_ns;
use adit_base::simulation;
use adit_base::sync::atomic::Ordering;
use adit_base::sync::{spin_loop, tries};

use super::drive::Turn;
use super::reentry::AbortOnUnwind;
use super::{Core, DriverRole};
use crate::reactor::task::Driving;
use crate::reactor::{DeferredWakeups, Reactor};

/// Tries to take a second lock: some µs.
const TRIES_MAX: u32 = tries(100);
/// A leader gives up after this long. Only a holder that has no processor makes it wait so long.
const LEADER_WAITS_NS: u64 = 20_000_000;
/// Tries of a leader between two of its yields, which are system calls under its locks.
const LEADER_TRIES: u32 = tries(200);

/// How long a thread with a lock tries to take another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    Short,
    /// For the leader of a commit.
    Leader,
}

impl Core {
    /// Runs the closure under this worker's lock, too, for an operation of `from`. None if the lock
    /// is held.
    ///
    /// EIO after a panic, ESHUTDOWN after the end.
    pub(crate) fn visit<T>(
        &self,
        from: &Reactor,
        patience: Patience,
        closure: impl FnOnce() -> T,
    ) -> Result<Option<T>> {
        debug_assert!(Driving::is_of(from), "from an operation");
        self.check_from_worker()?;
        if self.is_driven_here() {
            return Ok(Some(closure()));
        }
        // In a simulated world no other thread holds it.
        if simulation::one_in(8) || !self.acquire_beside(patience) {
            return Ok(None);
        }
        self.lock.set_visited(true);
        let mut deferred = DeferredWakeups::default();
        let result = {
            // SAFETY: we hold the lock; `leave_visit` releases it, after which the reactor isn't
            // used.
            let reactor = unsafe { self.reactor() };
            Driving::visit(reactor, || {
                let result = reactor.is_usable().then(|| {
                    let ran = catch_unwind(AssertUnwindSafe(closure));
                    ran.inspect_err(|panic| reactor.note_panic_of_no_task(&**panic))
                });
                self.leave_visit(reactor, &mut deferred);
                result
            })
        };
        if !deferred.is_empty() {
            from.carry(deferred, self.keeper.word());
        }
        match result {
            None => Err(self.ended_error()),
            Some(Ok(value)) => Ok(Some(value)),
            Some(Err(panic)) => resume_unwind(panic),
        }
    }

    /// Leaves the worker as its driver, with its lock; returns without the lock.
    fn leave_visit(&self, reactor: &Reactor, deferred: &mut DeferredWakeups) {
        self.lock.set_visited(false);
        let may_release = reactor.can_release_at_once(
            self.keeper_awaits_device.load(Ordering::Relaxed),
            self.keeper.wakes_at_ns(),
        );
        if may_release && self.lock.try_release() {
            return;
        }
        let abort = AbortOnUnwind;
        let mut turn = Turn {
            core: self,
            reactor,
            role: &DriverRole::Visitor,
            deferred,
        };
        turn.run();
        std::mem::forget(abort);
    }

    fn acquire_beside(&self, patience: Patience) -> bool {
        if self.try_for_a_while(TRIES_MAX) {
            return true;
        }
        if patience == Patience::Short {
            return false;
        }
        let until_ns = monotonic_ns() + LEADER_WAITS_NS;
        self.lock.set_wanted(true);
        let acquired = loop {
            if self.try_for_a_while(LEADER_TRIES) {
                break true;
            }
            if cfg!(loom) || monotonic_ns() >= until_ns {
                break false;
            }
            std::thread::yield_now();
        };
        self.lock.set_wanted(false);
        acquired
    }

    fn try_for_a_while(&self, tries_max: u32) -> bool {
        for _ in 0..tries_max {
            if self.lock.looks_free() && self.lock.try_acquire() {
                return true;
            }
            spin_loop();
        }
        false
    }
}
