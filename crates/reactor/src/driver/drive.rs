//! The loop of the driver, under the lock.

use std::mem;
use std::ops::ControlFlow::{self, Break, Continue};

use adit_base::sync::atomic::Ordering;

use super::reentry::AbortOnUnwind;
use super::role::Aside;
use super::{Arrival, Core, DriverRole, NextStep};
use crate::lock::{MessageKind, lock};
use crate::reactor::DeferredWakeups;
use crate::reactor::Reactor;
use crate::reactor::node::Node;
use crate::reactor::pooled::PooledOperation;
use crate::reactor::task::Driving;

/// Polls in a batch, after which a driver leaves if its own operation is done, and delivers
/// deferred wake-ups if it is not.
pub(super) const BATCH_POLLS_MAX: u32 = 32;
/// Polls after which yielded tasks run again, even if other tasks are still ready.
const YIELDED_TURN_POLLS: u32 = 128;

/// The time of a thread as the driver, from taking the lock to its release.
pub(super) struct Turn<'t> {
    pub(super) core: &'t Core,
    pub(super) reactor: &'t Reactor,
    pub(super) role: &'t DriverRole<'t>,
    pub(super) deferred: &'t mut DeferredWakeups,
}

impl Core {
    /// Drives, with the lock. Returns without the lock, after the deferred wake-ups were delivered.
    pub(crate) fn drive(&self, role: &DriverRole<'_>) -> NextStep {
        let abort = AbortOnUnwind;
        let mut deferred = DeferredWakeups::default();
        let step = {
            // SAFETY: we hold the lock; `leave` releases it, after which the reactor isn't used.
            let reactor = unsafe { self.reactor() };
            let _driving = Driving::enter(reactor);
            let mut turn = Turn {
                core: self,
                reactor,
                role,
                deferred: &mut deferred,
            };
            turn.run()
        };
        if !deferred.is_empty() {
            self.deliver_wakeups(deferred, &step, role);
        }
        mem::forget(abort);
        step
    }

    /// Handles a notification: takes messages out of the inbox, delivers executed requests and
    /// wake-ups, fires timers.
    pub(super) fn process_notification(&self, reactor: &Reactor) {
        self.inbox.drain(|message| {
            // SAFETY: a pushed message is valid until the driver is through with it; it is the
            // first field of the type that its kind says.
            unsafe {
                match (*message).kind {
                    MessageKind::Node => {
                        let node = &*message.cast::<Node>();
                        reactor.add_waiter(node);
                        reactor.add_ready(node.task());
                    }
                    MessageKind::Pooled => {
                        reactor.add_ready((*message.cast::<PooledOperation>()).task());
                    }
                }
            }
        });
        for arrival in lock(&self.arrivals).drain(..) {
            take_arrival(reactor, arrival);
        }
        // A keeper that woke up for a timer, and did not get the lock, has notified us.
        reactor.fire_timers();
    }

    /// After a panic or the last operation: once no request is under way, all operations fail.
    fn fail_all(&self, reactor: &Reactor) {
        reactor.discard_pending();
        if reactor.in_flight.get() > 0 {
            reactor.reap_completions();
        }
        if !reactor.has_requests_under_way() {
            let error = || self.ended_error();
            if self.is_poisoned() {
                reactor.fail_tasks(&error);
                self.all_failed.store(true, Ordering::Release);
            } else {
                // `end` drops the worker's own tasks in order.
                reactor.fail_operations(&error);
            }
        }
    }
}

impl Turn<'_> {
    pub(super) fn run(&mut self) -> NextStep {
        let (core, reactor, role) = (self.core, self.reactor, self.role);
        role.begin(core, reactor);
        let mut polls = 0u32;
        loop {
            if core.lock.take_notification() {
                role.on_notified();
                core.process_notification(reactor);
            }
            if let Some(panic) = reactor.take_panic() {
                core.set_poisoned(panic);
                reactor.set_unusable();
                reactor.tell_poisoned();
            }
            let usable = reactor.is_usable();
            if !usable {
                core.fail_all(reactor);
            }
            let done = role.is_done();
            reactor.is_driver_done.set(done);
            let eager = !done && role.drives_until_idle(core);
            let batch_is_full = polls >= role.batch_polls_max();
            let step = if usable && eager && batch_is_full && self.has_deferred_wakeups() {
                Some(NextStep::Yield)
            } else if let Some(aside) = eager.then(|| reactor.take_aside()).flatten() {
                Some(NextStep::StepAside(Aside::until(aside)))
            } else if eager && polls > 0 && core.lock.is_wanted() {
                Some(NextStep::StepAside(Aside::default()))
            } else {
                if usable && (eager || !batch_is_full) {
                    if eager && polls % YIELDED_TURN_POLLS == YIELDED_TURN_POLLS - 1 {
                        reactor.resume_yielded();
                    }
                    if reactor.poll_next() {
                        polls += 1;
                        continue;
                    }
                }
                match eager.then(|| self.choose_step()) {
                    Some(Continue(())) => continue,
                    Some(Break(step)) => step,
                    None => None,
                }
            };
            let step = match step {
                Some(step) => step,
                None if done => NextStep::Return,
                None => role.step_when_idle(),
            };
            if let Some(step) = self.leave(step) {
                return step;
            }
        }
    }

    /// Whether callers or other executors' tasks are to be woken after the release: since the last
    /// attempt to release, or before it.
    fn has_deferred_wakeups(&self) -> bool {
        self.deferred.wakes_threads() || self.reactor.has_deferred_wakeups()
    }

    /// No task is ready: reaps completions, resumes yielded tasks, fires timers (`Continue`: tasks
    /// may be ready now), or returns the work to do without the lock.
    fn choose_step(&self) -> ControlFlow<Option<NextStep>> {
        let (core, reactor, role) = (self.core, self.reactor, self.role);
        let caller_awaits_device = core.caller_awaits_device.load(Ordering::Acquire);
        let may_reap = || reactor.in_flight.get() > 0 && !caller_awaits_device;
        if may_reap() && reactor.reap_completions() {
            return Continue(());
        }
        let has_wakers = !self.deferred.wakers.is_empty() || reactor.has_deferred_wakers();
        if has_wakers && (role.may_block() || reactor.has_inline_requests()) {
            // A waker may call us or take its time: no other thread may depend on this one then.
            return Break(Some(NextStep::Yield));
        }
        if reactor.is_usable() {
            let own = match role {
                DriverRole::Caller(node) => Some(*node),
                _ => None,
            };
            if let Some(request) = reactor.take_inline_request(own) {
                let device = reactor.device().clone();
                return Break(Some(NextStep::Execute(device, request)));
            }
            if reactor.has_work() && self.has_deferred_wakeups() {
                // A long row of background slices may follow.
                return Break(Some(NextStep::Yield));
            }
            if reactor.resume_yielded() || reactor.fire_timers() {
                return Continue(());
            }
        }
        Break(
            may_reap()
                .then(|| role.await_device(core, reactor))
                .flatten(),
        )
    }
}

/// A request that a thread executed without the lock, or a wake-up by a thread that didn't have it.
pub(super) fn take_arrival(reactor: &Reactor, arrival: Arrival) {
    match arrival {
        Arrival::Completed(completion) => {
            reactor.end_execution(Some(completion.request.token));
            reactor.deliver(completion);
        }
        Arrival::Panicked(panic) => {
            reactor.end_execution(None);
            reactor.note_panic_of_no_task(&*panic);
        }
        Arrival::Woken(id) => reactor.wake(id),
    }
}
