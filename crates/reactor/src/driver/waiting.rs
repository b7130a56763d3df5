//! Waiting without the lock: spinning for a while, then asleep; and getting the lock.

use adit_base::breakdown::{self, Layer};
use adit_base::clock::monotonic_ns;
use adit_base::sync::atomic::Ordering;
use adit_base::sync::{spin_loop, tries};

use super::Core;
use crate::futex;
use crate::node::{DONE, DRIVE, Node, SLEEPING, WAITING};

/// Waiters spin this long before they sleep.
const SPIN_NS: u64 = 20_000;

impl Core {
    /// Told to drive: takes the lock from the holder that named us. False: somebody else was faster.
    fn succeed(&self, node: &Node) -> bool {
        self.await_release();
        // Only then knock: a holder that we don't get past sees us waiting and names a successor anew. DONE stays.
        let back =
            (node.state).compare_exchange(DRIVE, WAITING, Ordering::AcqRel, Ordering::Acquire);
        back.is_ok() && self.lock.knock()
    }

    /// Waits, without the lock, until told to drive (true: with the lock) or done (false).
    pub(super) fn wait(&self, node: &Node, mut deadline_ns: Option<u64>) -> bool {
        let _in = breakdown::enter(Layer::Wait);
        let spinning = Spinning::enter(self);
        let spin_until_ns = if spinning.allowed {
            monotonic_ns() + SPIN_NS
        } else {
            0
        };
        let mut turns = 0u32;
        loop {
            match node.state.load(Ordering::Acquire) {
                DONE => return false,
                DRIVE => {
                    if self.succeed(node) {
                        return true;
                    }
                    continue;
                }
                _ => {}
            }
            turns += 1;
            if spinning.allowed && (!turns.is_multiple_of(32) || monotonic_ns() < spin_until_ns) {
                spin_loop();
                continue;
            }
            break;
        }
        drop(spinning);
        loop {
            match node.state.load(Ordering::Acquire) {
                DONE => return false,
                DRIVE => {
                    if self.succeed(node) {
                        return true;
                    }
                }
                state => {
                    if state == WAITING
                        && node
                            .state
                            .compare_exchange(
                                WAITING,
                                SLEEPING,
                                Ordering::AcqRel,
                                Ordering::Acquire,
                            )
                            .is_err()
                    {
                        continue;
                    }
                    futex::wait(&node.state, SLEEPING, deadline_ns);
                    if deadline_ns.is_some_and(|deadline_ns| monotonic_ns() >= deadline_ns) {
                        deadline_ns = None;
                        let awake = node.state.compare_exchange(
                            SLEEPING,
                            WAITING,
                            Ordering::AcqRel,
                            Ordering::Acquire,
                        );
                        // Not got: the holder was told to look around, and finds the timer due.
                        if awake.is_ok() && self.lock.knock() {
                            return true;
                        }
                    }
                }
            }
        }
    }

    /// Tries to take the lock for a while, then leaves a mark for the holder.
    pub(crate) fn compete(&self, tries_max: u32) -> bool {
        for _ in 0..tries_max {
            if self.lock.looks_free() && self.lock.try_acquire() {
                return true;
            }
            spin_loop();
        }
        self.lock.knock()
    }

    /// Gives the holder who named us a moment to release.
    pub(crate) fn await_release(&self) {
        for _ in 0..tries(200) {
            if self.lock.looks_free() {
                return;
            }
            spin_loop();
        }
    }
}

/// A waiter that may spin: as long as there are fewer of them than cores, one of which is the driver's.
struct Spinning<'c> {
    core: &'c Core,
    allowed: bool,
}

impl<'c> Spinning<'c> {
    fn enter(core: &'c Core) -> Self {
        let others = core.spinners.fetch_add(1, Ordering::Relaxed);
        Spinning {
            core,
            allowed: others + 1 < core.cores,
        }
    }
}

impl Drop for Spinning<'_> {
    fn drop(&mut self) {
        self.core.spinners.fetch_sub(1, Ordering::Relaxed);
    }
}
