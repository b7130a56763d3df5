//! How a driver leaves: it hands over the work that is left and the next timer, then releases the
//! lock, or drives on if another thread notified it meanwhile. Wake-ups are deferred until after
//! the release: each is a system call, or code of another executor.

use adit_base::breakdown::{self, Layer};
use adit_base::sync::atomic::Ordering;

use super::drive::Turn;
use super::{Core, DriverRole, NextStep, deliver};
use crate::futex;
use crate::reactor::DeferredWakeups;
use crate::reactor::node::WAITING;

/// With this many inline requests it pays to wake the keeper to execute some of them.
const BACKLOG_MIN: usize = 32;

/// The successor for the work that a driver leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LeftTo {
    /// A caller that was appointed, or this thread, or there is none.
    Others,
    Keeper,
    /// One that has stepped aside.
    ThreadAside,
}

impl Turn<'_> {
    /// Leaves for `step`; returns it without the lock, or None if there is more to drive.
    pub(super) fn leave(&mut self, mut step: NextStep) -> Option<NextStep> {
        let left_to = self.appoint_for(&step);
        let arms_keeper = left_to == LeftTo::Keeper;
        if arms_keeper && matches!(self.role, DriverRole::Visitor) {
            self.deferred.wakers.push(self.core.notifier());
        } else {
            self.deferred.wake_keeper |= arms_keeper && self.core.keeper.arm();
        }
        if step.is_final() {
            debug_assert!(
                arms_keeper
                    || left_to == LeftTo::ThreadAside
                    || self.reactor.has_successor()
                    || !(self.reactor.has_work() && self.role.leaves_work_to_keeper(self.reactor)),
                "work that is left has a successor"
            );
            self.hand_over_timers(&mut step);
        }
        self.reactor.take_deferred(self.deferred);
        self.deferred.has_own_work = step.comes_back_at_once() && self.reactor.has_work();
        if let (NextStep::Park(_), DriverRole::Caller(node)) = (&step, self.role) {
            node.state.store(WAITING, Ordering::Release);
        }
        self.reactor.is_driver_done.set(false);
        if let NextStep::StepAside(aside) = &mut step
            && self.deferred.wakers.is_empty()
        {
            // (Wakers take their time.)
            aside.is_counted = true;
            self.core.aside.fetch_add(1, Ordering::AcqRel);
        }
        if self.core.lock.try_release() {
            return Some(step);
        }
        self.take_back(step);
        None
    }

    /// Appoints a waiting caller as the successor for the work that is left, or finds another one.
    fn appoint_for(&self, step: &NextStep) -> LeftTo {
        let (core, reactor, role) = (self.core, self.reactor, self.role);
        let awaited = core.caller_awaits_device.load(Ordering::Acquire)
            || core.keeper_awaits_device.load(Ordering::Acquire);
        let unawaited = reactor.in_flight.get() > 0 && !awaited;
        // A driver that yields comes back and does the work itself.
        if step.comes_back_at_once() || !(reactor.has_work() || unawaited) {
            return LeftTo::Others;
        }
        // A caller that has nothing else to do leaves requests that are not for callers
        // (`Reactor::take_inline_request`).
        let for_keeper = matches!(role, DriverRole::Caller(_))
            && matches!(step, NextStep::Park(_) | NextStep::AwaitDevice(..))
            && reactor.has_inline_requests();
        if for_keeper {
            return LeftTo::Keeper;
        }
        if reactor.appoint_successor() {
            return LeftTo::Others;
        }
        if core.aside.load(Ordering::Acquire) > 0 {
            core.called_back.store(true, Ordering::Release);
            return LeftTo::ThreadAside;
        }
        let is_backlogged =
            reactor.inline_request_count() >= BACKLOG_MIN && !matches!(role, DriverRole::Keeper);
        // While this thread executes, other operations may wait for completions of the device.
        let unattended = step.is_final() || unawaited && matches!(step, NextStep::Execute(..));
        match is_backlogged || unattended && role.leaves_work_to_keeper(reactor) {
            true => LeftTo::Keeper,
            false => LeftTo::Others,
        }
    }

    /// Finds a watcher for the next timer: this thread, the keeper, or another caller.
    fn hand_over_timers(&mut self, step: &mut NextStep) {
        let next_ns = self.reactor.unwatched_deadline_ns();
        let keeper = &self.core.keeper;
        let unwatched = next_ns < keeper.wakes_at_ns();
        match (step, self.role) {
            (NextStep::Park(deadline_ns), DriverRole::Keeper) => {
                keeper.set_wakes_at_ns(next_ns);
                *deadline_ns = (next_ns != u64::MAX).then_some(next_ns);
            }
            (NextStep::Park(deadline_ns), DriverRole::Caller(node)) if unwatched => {
                self.reactor.set_timer_watcher(node, next_ns);
                *deadline_ns = Some(next_ns);
            }
            _ if unwatched && keeper.is_enabled() => self.deferred.wake_keeper |= keeper.arm(),
            _ if unwatched => {
                // A waiting caller, if there is one, drives and comes to the case above.
                self.reactor.appoint_successor();
            }
            _ => {}
        }
    }

    /// The lock was not released: the step is not taken.
    fn take_back(&self, step: NextStep) {
        let (core, reactor, role) = (self.core, self.reactor, self.role);
        role.begin(core, reactor);
        match step {
            NextStep::Execute(_, request) => reactor.put_back_request(request),
            NextStep::AwaitDevice(..) => role.awaits_device(core).store(false, Ordering::Relaxed),
            NextStep::StepAside(aside) if aside.is_counted => core.end_aside(),
            _ => {}
        }
    }
}

impl Core {
    /// A thread that stepped aside is about to take the lock, or to notify its holder; that one
    /// then finds another successor for what it leaves.
    pub(super) fn end_aside(&self) {
        let before = self.aside.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "it has stepped aside");
        self.called_back.store(false, Ordering::Relaxed);
    }

    /// Delivers wake-ups that were deferred, without the lock. `step` is the thread's next one.
    pub(super) fn deliver_wakeups(
        &self,
        deferred: DeferredWakeups,
        step: &NextStep,
        role: &DriverRole<'_>,
    ) {
        debug_assert!(!self.is_driven_here(), "deferred until after the release");
        for doorbell in &deferred.doorbells {
            let _in = breakdown::enter(Layer::Device);
            if let Err(error) = doorbell.ring() {
                // A thread that waits for the device rings again.
                tracing::warn!(volume = %self.name, %error, "the device can't be told of requests; the next caller tries again");
            }
        }
        let waking = breakdown::enter(Layer::Wait);
        for state in &deferred.sleepers {
            futex::wake(*state);
        }
        if deferred.wake_keeper {
            self.keeper.wake();
        }
        for queue in &deferred.events {
            queue.sync_event();
        }
        drop(waking);
        if !deferred.wakers.is_empty() {
            debug_assert!(
                matches!(step, NextStep::Return)
                    || step.comes_back_at_once()
                    || self.keeper.is_stopping(),
                "other threads depend on a thread that calls wakers"
            );
            deliver::call_wakers(deferred.wakers, role, deferred.has_own_work);
        }
    }
}
