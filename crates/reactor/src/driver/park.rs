//! Waiting without the lock: a caller spins for a while, then sleeps, until it is appointed as the
//! driver or its operation is done.

use adit_base::breakdown::{self, Layer};
use adit_base::clock::monotonic_ns;
use adit_base::sync::atomic::Ordering::{Acquire, Relaxed};
use adit_base::sync::{spin_loop, tries};

use super::Core;
use crate::futex;
use crate::node::{APPOINTED, DONE, Node, SLEEPING, WAITING};

/// A caller spins this long before it sleeps.
const SPIN_NS: u64 = 20_000;

impl Core {
    /// Waits until appointed as the driver, or until the deadline (true: with the lock), or until
    /// the operation is done (false: without it).
    pub(super) fn park(&self, node: &Node, mut deadline_ns: Option<u64>) -> bool {
        debug_assert!(!self.is_driven_here(), "parked without the lock");
        let _in = breakdown::enter(Layer::Wait);
        let mut spinning = Some(Spinning::begin(self));
        loop {
            let state = node.state.load(Acquire);
            match state {
                DONE => return false,
                APPOINTED => {
                    if self.take_over(node) {
                        return true;
                    }
                    continue;
                }
                _ => {}
            }
            if spinning.as_mut().is_some_and(Spinning::goes_on) {
                spin_loop();
                continue;
            }
            spinning = None;
            if state == WAITING && !node.change_state(WAITING, SLEEPING) {
                continue;
            }
            futex::wait(&node.state, SLEEPING, deadline_ns);
            if deadline_ns.is_some_and(|deadline_ns| monotonic_ns() >= deadline_ns) {
                deadline_ns = None;
                // If the lock is held, its holder is notified now and fires the timer.
                if node.change_state(SLEEPING, WAITING) && self.lock.acquire_or_notify() {
                    return true;
                }
            }
        }
    }

    /// Appointed: takes the lock over from the driver that leaves. False if another thread has the
    /// lock, which is then notified.
    fn take_over(&self, node: &Node) -> bool {
        self.spin_until_free();
        // WAITING comes before the notification, so that the holder, if it isn't the leaving
        // driver, finds a candidate and appoints a successor again. DONE stays.
        node.change_state(APPOINTED, WAITING) && self.lock.acquire_or_notify()
    }

    /// Tries to take the lock for a while, then notifies its holder. Says whether it was taken.
    pub(crate) fn spin_to_acquire(&self, tries_max: u32) -> bool {
        for _ in 0..tries_max {
            if self.lock.looks_free() && self.lock.try_acquire() {
                return true;
            }
            spin_loop();
        }
        self.lock.acquire_or_notify()
    }

    /// Gives a driver that leaves a moment to release the lock.
    fn spin_until_free(&self) {
        for _ in 0..tries(200) {
            if self.lock.looks_free() {
                return;
            }
            spin_loop();
        }
    }
}

/// A caller that spins. It may while spinning callers and the driver have a processor each.
struct Spinning<'c> {
    core: &'c Core,
    /// 0 if it may not spin.
    until_ns: u64,
    turns: u32,
}

impl<'c> Spinning<'c> {
    fn begin(core: &'c Core) -> Self {
        let others = core.spinners.fetch_add(1, Relaxed);
        let may_spin = others + 1 < core.processors;
        Spinning {
            core,
            until_ns: if may_spin {
                monotonic_ns() + SPIN_NS
            } else {
                0
            },
            turns: 0,
        }
    }

    /// Looks at the clock in each 32nd turn.
    fn goes_on(&mut self) -> bool {
        self.turns += 1;
        self.until_ns > 0 && (!self.turns.is_multiple_of(32) || monotonic_ns() < self.until_ns)
    }
}

impl Drop for Spinning<'_> {
    fn drop(&mut self) {
        self.core.spinners.fetch_sub(1, Relaxed);
    }
}
