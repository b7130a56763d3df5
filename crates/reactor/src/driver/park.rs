//! Waiting without the lock: a caller spins or yields for a while, then sleeps, until it is appointed
//! as the driver or its operation is done.

use adit_base::breakdown::{self, Layer};
use adit_base::clock::monotonic_ns;
use adit_base::simulation;
use adit_base::sync::atomic::AtomicU32;
use adit_base::sync::atomic::Ordering::{Acquire, Relaxed};
use adit_base::sync::{spin_loop, tries};

use super::{Core, ReentryGuard};
use crate::futex;
use crate::reactor::node::{APPOINTED, DONE, Node, SLEEPING, WAITING};

/// A caller spins this long before it sleeps: so long it takes to fall asleep and to be woken.
const SPIN_NS: u64 = 50_000;
/// Where callers outnumber processors, one yields its processor so often before it sleeps. With
/// nothing else to run that takes 4 µs; otherwise each is a switch to another thread, which is
/// cheaper than a sleep and a wake-up.
const YIELDS: u32 = if cfg!(loom) { 0 } else { 8 };
/// A yield that took longer gave the processor to a thread that computes: for milliseconds, while
/// one that sleeps runs again soon after it is woken.
const YIELD_NS_MAX: u64 = 500_000;
/// Most callers in a row that neither spin nor yield.
const PAUSE_MAX: u32 = 255;

impl Core {
    /// Waits until appointed as the driver, or until the deadline (true: with the lock), or until
    /// the operation is done (false: without it).
    pub(super) fn park(&self, node: &Node, mut deadline_ns: Option<u64>) -> bool {
        debug_assert!(!self.is_driven_here(), "parked without the lock");
        let _in = breakdown::enter(Layer::Wait);
        let mut parked = Parked::begin(self);
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
            if parked.stays_awake() {
                continue;
            }
            if state == WAITING && !node.change_state(WAITING, SLEEPING) {
                continue;
            }
            {
                // There, this thread calls other workers in place of the sleep.
                let _outside = simulation::is_simulated().then(ReentryGuard::suspend);
                futex::wait(&node.state, SLEEPING, deadline_ns);
            }
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

    /// Tries to take the lock for a while, then notifies its holder. True if it took the lock.
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

/// A caller that waits. While there is a processor for each caller that waits and for the driver,
/// it spins at first; otherwise it lets other threads run: one of them may be the driver.
struct Parked<'c> {
    core: &'c Core,
    /// 0 if it doesn't spin.
    spins_until_ns: u64,
    turns: u32,
    yields_left: u32,
}

impl<'c> Parked<'c> {
    fn begin(core: &'c Core) -> Self {
        let others = core.parked.fetch_add(1, Relaxed);
        let crowded = others + 1 >= core.processors;
        let spins = !crowded && core.spins.is_worth_it();
        let yields = crowded && YIELDS > 0 && core.yields.is_worth_it();
        Parked {
            core,
            spins_until_ns: if spins { monotonic_ns() + SPIN_NS } else { 0 },
            turns: 0,
            yields_left: if yields { YIELDS } else { 0 },
        }
    }

    /// Takes a turn awake, or says that it is time to sleep.
    fn stays_awake(&mut self) -> bool {
        if self.yields_left > 0 {
            self.yield_now();
            return true;
        }
        if self.spins_until_ns == 0 {
            return false;
        }
        self.turns += 1;
        // The clock takes longer than a turn.
        if self.turns.is_multiple_of(32) && monotonic_ns() >= self.spins_until_ns {
            self.spins_until_ns = 0;
            self.core.spins.note(false);
            return false;
        }
        spin_loop();
        true
    }

    fn yield_now(&mut self) {
        let begun_ns = monotonic_ns();
        std::thread::yield_now();
        let was_short = monotonic_ns() - begun_ns < YIELD_NS_MAX;
        self.yields_left = if was_short { self.yields_left - 1 } else { 0 };
        if self.yields_left == 0 {
            self.core.yields.note(was_short);
        }
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.core.parked.fetch_sub(1, Relaxed);
        if self.spins_until_ns > 0 {
            self.core.spins.note(true);
        }
    }
}

/// Whether something has been worth its time lately. Races only make it learn later.
#[derive(Default)]
pub(super) struct Worth {
    /// Callers still to come that do without, and how many it will be the next time.
    pause: AtomicU32,
    pause_next: AtomicU32,
}

impl Worth {
    fn is_worth_it(&self) -> bool {
        match self.pause.load(Relaxed) {
            0 => true,
            pause => {
                self.pause.store(pause - 1, Relaxed);
                false
            }
        }
    }

    fn note(&self, was_worth_it: bool) {
        let next = self.pause_next.load(Relaxed);
        let next = match (was_worth_it, next) {
            (true, 0) => return,
            (true, _) => next - 1,
            (false, _) => {
                self.pause.store(next, Relaxed);
                (2 * next + 1).min(PAUSE_MAX)
            }
        };
        self.pause_next.store(next, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{PAUSE_MAX, Worth};

    /// Callers until the next one that tries.
    fn without(worth: &Worth) -> u32 {
        (0..).find(|_| worth.is_worth_it()).unwrap_or(0)
    }

    #[test]
    fn what_is_in_vain_again_and_again_is_tried_less_and_less_and_what_is_not_always() {
        let worth = Worth::default();
        let mut pauses = Vec::new();
        for _ in 0..10 {
            worth.note(false);
            pauses.push(without(&worth));
        }
        assert_eq!(pauses[..4], [0, 1, 3, 7]);
        assert_eq!(pauses[9], PAUSE_MAX);
        for _ in 0..PAUSE_MAX {
            assert_eq!(without(&worth), 0);
            worth.note(true);
        }
        worth.note(false);
        assert_eq!(without(&worth), 0);
    }
}
