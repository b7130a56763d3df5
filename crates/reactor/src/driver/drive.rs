//! Driving, with the lock: what is done in which order, when it ends, and what is owed after the release.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use adit_base::breakdown::{self, Layer};
use adit_base::sync::MutexGuard;
use adit_base::sync::atomic::Ordering;

use super::inside::AbortOnUnwind;
use super::{Arrival, Core, Inside, Left, Purpose};
use crate::futex;
use crate::lock::MessageKind;
use crate::node::{Node, WAITING};
use crate::owned::OwnedCell;
use crate::reactor::{After, Reactor};
use crate::task::Driving;

/// From so many requests on that wait for a thread, waking the keeper to execute some of them is worth it.
const HELP_FROM: usize = 32;
/// Other operations that a driver polls after its own is done.
const FOREIGN_MAX: u32 = 32;
/// Polls after which a task that gave way to everything else gets its turn, however much there is.
const YIELDED_WAIT: u32 = 128;

impl Core {
    /// Drives, with the lock; returns without it, after everything owed was paid. Foreign wakers were called only if the thread then had
    /// nothing in hand that others wait for, and wasn't one to be named as a driver: they may call us.
    pub(crate) fn drive(&self, purpose: &Purpose<'_>) -> Left {
        let abort = AbortOnUnwind;
        let mut after = After::default();
        let left = {
            // SAFETY: we hold the lock; `leave` releases it, after which the reactor isn't used.
            let reactor = unsafe { self.reactor() };
            let _driving = Driving::enter(reactor);
            self.drive_reactor(reactor, purpose, &mut after)
        };
        self.pay(after);
        mem::forget(abort);
        left
    }

    fn drive_reactor(&self, reactor: &Reactor, purpose: &Purpose<'_>, after: &mut After) -> Left {
        purpose.arrive(self, reactor);
        let mut polled = 0u32;
        loop {
            if self.lock.take_knock() {
                purpose.take_over();
                self.take_in(reactor);
            }
            if let Some(what) = reactor.take_broken() {
                self.set_poisoned(what);
                reactor.set_unusable();
            }
            let usable = reactor.is_usable();
            if !usable {
                self.fail_all(reactor);
            }
            let done = purpose.is_done();
            let eager = !done && purpose.is_eager(self);
            let mut left = None;
            if usable && (eager || polled < FOREIGN_MAX) {
                if eager && polled >= FOREIGN_MAX && reactor.owes_wakeups() {
                    left = Some(Left::Breathe);
                } else {
                    if eager && polled % YIELDED_WAIT == YIELDED_WAIT - 1 {
                        reactor.resume_yielded();
                    }
                    if reactor.poll_next() {
                        polled += 1;
                        continue;
                    }
                }
            }
            if eager && left.is_none() {
                let collecting = self.caller_collects.load(Ordering::Acquire);
                if reactor.in_flight.get() > 0 && !collecting && reactor.collect() {
                    continue;
                }
                let owes_wakers = !after.wakers.is_empty() || reactor.owes_wakers();
                if owes_wakers && (purpose.may_wait() || reactor.has_requests()) {
                    // A waker may call us, or take its time: others must not depend on this thread meanwhile.
                    left = Some(Left::Breathe);
                } else if usable {
                    left = self.next_step(reactor, purpose);
                    if left.is_none() && (reactor.resume_yielded() || reactor.fire_timers()) {
                        continue;
                    }
                }
                if left.is_none() && reactor.in_flight.get() > 0 && !collecting {
                    left = purpose.collect(self, reactor);
                }
            }
            let left = left.unwrap_or(if done { Left::Done } else { purpose.idle() });
            if let Some(left) = self.leave(reactor, purpose, left, after) {
                return left;
            }
        }
    }

    /// A request to execute, or a pause before a long row of background slices.
    fn next_step(&self, reactor: &Reactor, purpose: &Purpose<'_>) -> Option<Left> {
        let own = match purpose {
            Purpose::Caller(node) => Some(*node),
            _ => None,
        };
        if let Some(request) = reactor.take_request(own) {
            return Some(Left::Execute(reactor.device().clone(), request));
        }
        (reactor.has_work() && reactor.owes_wakeups()).then_some(Left::Breathe)
    }

    /// Names a successor for what is left and releases the lock; None when somebody knocked, and there is more to do.
    fn leave(
        &self,
        reactor: &Reactor,
        purpose: &Purpose<'_>,
        mut left: Left,
        after: &mut After,
    ) -> Option<Left> {
        let leaves_for_good = matches!(left, Left::Done | Left::Wait(_));
        let may_arm = leaves_for_good && purpose.may_arm();
        let collected = self.caller_collects.load(Ordering::Acquire)
            || self.keeper_collects.load(Ordering::Acquire);
        let uncollected = reactor.in_flight.get() > 0 && !collected;
        let work = reactor.has_work() || uncollected;
        // What the device finishes meanwhile may be what others wait for, asleep or without a thread.
        let absent = uncollected && matches!(left, Left::Execute(..)) && purpose.may_arm();
        // Who pauses to let others be woken does the rest itself.
        let many = reactor.requests() >= HELP_FROM && !matches!(purpose, Purpose::Keeper);
        // What a caller leaves though it has nothing else to do is not for callers (`Reactor::take_request`).
        let declined = matches!(purpose, Purpose::Caller(_))
            && matches!(left, Left::Wait(_) | Left::Collect(..))
            && reactor.has_requests();
        if work
            && !matches!(left, Left::Breathe)
            && (declined || !reactor.name_successor())
            && (may_arm || many || declined || absent)
        {
            after.wake_keeper |= self.keeper.arm();
        }
        if leaves_for_good {
            let next_ns = reactor.unguarded_deadline_ns();
            let unguarded = next_ns < self.keeper.wakes_at_ns();
            match (&mut left, purpose) {
                (Left::Wait(deadline), Purpose::Keeper) => {
                    self.keeper.set_wakes_at_ns(next_ns);
                    *deadline = (next_ns != u64::MAX).then_some(next_ns);
                }
                (Left::Wait(deadline), Purpose::Caller(node)) if unguarded => {
                    reactor.set_guard(node, next_ns);
                    *deadline = Some(next_ns);
                }
                _ if unguarded && self.keeper.is_enabled() => {
                    after.wake_keeper |= self.keeper.arm();
                }
                _ if unguarded => {
                    // Whoever this is, if anybody waits at all, comes to the arm above.
                    reactor.name_successor();
                }
                _ => {}
            }
        }
        reactor.take_after(after);
        if let (Left::Wait(_), Purpose::Caller(node)) = (&left, purpose) {
            node.state.store(WAITING, Ordering::Release);
        }
        if self.lock.try_release() {
            return Some(left);
        }
        purpose.arrive(self, reactor);
        match left {
            Left::Execute(_, request) => reactor.put_back_request(request),
            Left::Collect(..) => purpose.collects(self).store(false, Ordering::Relaxed),
            _ => {}
        }
        None
    }

    /// Takes in what came from outside.
    pub(super) fn take_in(&self, reactor: &Reactor) {
        self.inbox.drain(|message| {
            // SAFETY: pushed messages are valid until we are through with them, and embedded in what their kind says, as its first field.
            unsafe {
                match (*message).kind {
                    MessageKind::Node => {
                        let node = &*message.cast::<Node>();
                        reactor.list(node);
                        reactor.add_ready(node.task());
                    }
                    MessageKind::Cell => reactor.add_ready((*message.cast::<OwnedCell>()).task()),
                }
            }
        });
        for arrival in self.lock_arrived().drain(..) {
            arrive(reactor, arrival);
        }
        // A keeper that woke for a timer and didn't get the lock knocked.
        reactor.fire_timers();
    }

    /// After a panic or the last operation, once no request is under way any more: everybody gets an error.
    fn fail_all(&self, reactor: &Reactor) {
        reactor.forget_ready();
        if reactor.in_flight.get() > 0 {
            reactor.collect();
        }
        if reactor.in_flight.get() == 0 && reactor.executing.borrow().is_empty() {
            let error = || self.ended_error();
            if self.is_poisoned() {
                reactor.fail_tasks(&error);
            } else {
                // At the worker's end its own tasks are not forgotten but dropped, by `end`.
                reactor.fail_operations(&error);
            }
        }
    }

    pub(super) fn lock_arrived(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.arrived.lock().unwrap_or_else(|held| held.into_inner())
    }

    /// Does what was noted under the lock and had to wait for its release.
    fn pay(&self, after: After) {
        if after.is_empty() {
            return;
        }
        if let Some(doorbell) = &after.ring {
            let _in = breakdown::enter(Layer::Device);
            if let Err(error) = doorbell.ring() {
                // Whoever waits for the device rings again.
                tracing::warn!(volume = %self.name, %error, "the device can't be told of requests; the next caller tries again");
            }
        }
        let waking = breakdown::enter(Layer::Wait);
        for state in &after.sleepers {
            futex::wake(*state);
        }
        if after.wake_keeper {
            self.keeper.wake();
        }
        drop(waking);
        if !after.wakers.is_empty() {
            let _suspended = Inside::suspend();
            for waker in after.wakers {
                // An executor's waker that panics is the executor's problem.
                let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
            }
        }
    }
}

pub(super) fn arrive(reactor: &Reactor, arrival: Arrival) {
    match arrival {
        Arrival::Completion(completion) => {
            reactor.end_execution(Some(completion.request.token));
            reactor.deliver(completion);
        }
        Arrival::Panicked(panic) => {
            reactor.end_execution(None);
            reactor.break_down(&*panic);
        }
    }
}
