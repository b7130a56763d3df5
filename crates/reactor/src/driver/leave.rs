//! How a driver leaves: it hands over the work that is left and the next timer, then releases the
//! lock, or drives on if another thread notified it meanwhile.

use adit_base::sync::atomic::Ordering;

use super::{Core, DeferredWakeups, DriverRole, NextStep};
use crate::node::WAITING;
use crate::reactor::Reactor;

/// Inline requests from which on it pays to wake the keeper to execute some of them.
const BACKLOG_MIN: usize = 32;

impl Core {
    /// Leaves for `step`; returns it without the lock, or None if there is more to drive.
    pub(super) fn leave(
        &self,
        reactor: &Reactor,
        role: &DriverRole<'_>,
        mut step: NextStep,
        deferred: &mut DeferredWakeups,
    ) -> Option<NextStep> {
        let arms = self.needs_keeper(reactor, role, &step);
        if arms {
            deferred.wake_keeper |= self.keeper.arm();
        }
        debug_assert!(
            !(step.is_final() && reactor.has_work() && role.leaves_work_to_keeper())
                || arms
                || reactor.has_successor(),
            "work is left with a successor"
        );
        if step.is_final() {
            self.hand_over_timers(reactor, role, &mut step, deferred);
        }
        reactor.take_deferred(deferred);
        if let (NextStep::Park(_), DriverRole::Caller(node)) = (&step, role) {
            node.state.store(WAITING, Ordering::Release);
        }
        if self.lock.try_release() {
            return Some(step);
        }
        self.take_back(reactor, role, step);
        None
    }

    /// Appoints a waiting caller as the successor for the work that is left. True if there is none,
    /// or the work is not for callers, and the keeper has to do it.
    fn needs_keeper(&self, reactor: &Reactor, role: &DriverRole<'_>, step: &NextStep) -> bool {
        let awaited = self.caller_awaits_device.load(Ordering::Acquire)
            || self.keeper_awaits_device.load(Ordering::Acquire);
        let unawaited = reactor.in_flight.get() > 0 && !awaited;
        // A driver that yields comes back and does the work itself.
        if matches!(step, NextStep::Yield) || !(reactor.has_work() || unawaited) {
            return false;
        }
        // A caller that has nothing else to do leaves requests that are not for callers
        // (`Reactor::take_inline_request`).
        let only_keepers = matches!(role, DriverRole::Caller(_))
            && matches!(step, NextStep::Park(_) | NextStep::AwaitDevice(..))
            && reactor.has_inline_requests();
        if only_keepers {
            return true;
        }
        if reactor.appoint_successor() {
            return false;
        }
        let is_backlogged =
            reactor.inline_request_count() >= BACKLOG_MIN && !matches!(role, DriverRole::Keeper);
        // While this thread executes, other operations may wait for completions of the device.
        let unattended = step.is_final() || unawaited && matches!(step, NextStep::Execute(..));
        is_backlogged || unattended && role.leaves_work_to_keeper()
    }

    /// Has a thread sleep until the next timer at most: this one, the keeper, or another caller.
    fn hand_over_timers(
        &self,
        reactor: &Reactor,
        role: &DriverRole<'_>,
        step: &mut NextStep,
        deferred: &mut DeferredWakeups,
    ) {
        let next_ns = reactor.unwatched_deadline_ns();
        let unwatched = next_ns < self.keeper.wakes_at_ns();
        match (step, role) {
            (NextStep::Park(deadline_ns), DriverRole::Keeper) => {
                self.keeper.set_wakes_at_ns(next_ns);
                *deadline_ns = (next_ns != u64::MAX).then_some(next_ns);
            }
            (NextStep::Park(deadline_ns), DriverRole::Caller(node)) if unwatched => {
                reactor.set_timer_watcher(node, next_ns);
                *deadline_ns = Some(next_ns);
            }
            _ if unwatched && self.keeper.is_enabled() => {
                deferred.wake_keeper |= self.keeper.arm();
            }
            _ if unwatched => {
                // A waiting caller, if there is one, drives and comes to the case above.
                reactor.appoint_successor();
            }
            _ => {}
        }
    }

    /// The lock was not released: the step is not taken.
    fn take_back(&self, reactor: &Reactor, role: &DriverRole<'_>, step: NextStep) {
        role.begin(self, reactor);
        match step {
            NextStep::Execute(_, request) => reactor.put_back_request(request),
            NextStep::AwaitDevice(..) => {
                role.awaits_device(self).store(false, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}
