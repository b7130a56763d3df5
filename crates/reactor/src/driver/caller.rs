//! An operation's way in: the fast path, the inbox, and the steps that its thread takes without the
//! lock until the operation is done.

use std::cell::Cell;
use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use adit_base::Result;
use adit_base::breakdown::{self, Layer};
use adit_base::sync::atomic::Ordering;
use adit_base::sync::{spin_loop, tries};

use super::drive::{BATCH_POLLS_MAX, take_arrival};
use super::reentry::AbortOnUnwind;
use super::{Arrival, Core, DriverRole, NextStep, Notify};
use crate::lock::{Message, lock};
use crate::reactor::Reactor;
use crate::reactor::node::{BUSY, Node, StackOperation, Stage, WAITING};
use crate::reactor::pooled::PooledOperation;
use crate::reactor::task::Driving;

impl Core {
    /// Runs an operation to its end, as the driver or waiting for the driver.
    #[inline]
    pub(crate) fn run<T, F, Fut>(&self, start: F) -> Result<T>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        let _in = breakdown::enter(Layer::Worker);
        let operation = StackOperation::new(start);
        let abort = AbortOnUnwind;
        if !self.run_uncontended(&operation.node) && !self.run_after_visit(&operation.node) {
            self.submit_through_inbox(&operation.node);
        }
        mem::forget(abort);
        operation.node.accesses.write();
        match operation.stage.into_inner() {
            Stage::Done(result) => result,
            _ => unreachable!("a finished operation has a result"),
        }
    }

    /// The fast path, if the lock is free: no wake-up, no system call, no queue. True when the
    /// operation is done, and the lock released.
    #[inline]
    fn run_uncontended(&self, node: &Node) -> bool {
        if !self.lock.try_acquire() {
            return false;
        }
        // SAFETY: we hold the lock, and release it after the reference's last use.
        let reactor = unsafe { self.reactor() };
        let may_release = {
            let _driving = Driving::enter(reactor);
            if reactor.is_usable() {
                reactor.poll_first(node)
                    && reactor.can_release_at_once(
                        self.keeper_awaits_device.load(Ordering::Relaxed),
                        self.keeper.wakes_at_ns(),
                    )
            } else {
                reactor.add_waiter(node);
                reactor.add_ready(node.task());
                false
            }
        };
        if !(may_release && self.lock.try_release()) {
            self.drive_until_done(node, true);
        }
        true
    }

    /// The fast path, once the holder of the lock, which only visits, has released it.
    #[cold]
    fn run_after_visit(&self, node: &Node) -> bool {
        self.spin_while_visited() && self.run_uncontended(node)
    }

    /// Gives a holder that only visits a moment to release the lock. False if it is held by another
    /// one, or for long.
    fn spin_while_visited(&self) -> bool {
        for _ in 0..tries(1000) {
            if self.lock.looks_free() {
                return true;
            }
            if !self.lock.is_visited() {
                return false;
            }
            spin_loop();
        }
        false
    }

    /// Submits an operation to the driver, and waits or drives until it is done.
    #[cold]
    fn submit_through_inbox(&self, node: &Node) {
        node.state.store(WAITING, Ordering::Relaxed);
        // SAFETY: the node stays until it is done, which `drive_until_done` waits for.
        unsafe { self.inbox.push(ptr::from_ref(&node.message).cast_mut()) };
        let holding = self.lock.acquire_or_notify();
        self.drive_until_done(node, holding);
    }

    /// Drives and waits until the operation is done; returns without the lock.
    #[cold]
    fn drive_until_done(&self, node: &Node, mut holding: bool) {
        let role = DriverRole::Caller(node);
        let mut deadline_ns = None;
        loop {
            if !holding && !self.park(node, deadline_ns) {
                return;
            }
            match self.drive(&role) {
                NextStep::Return => return,
                NextStep::Park(until_ns) => {
                    deadline_ns = until_ns;
                    holding = false;
                }
                step => {
                    deadline_ns = None;
                    holding = self.perform_unlocked(step, Some(node));
                }
            }
        }
    }

    /// Drives if the lock is free, without waiting for the device; otherwise notifies the holder as
    /// `notify` says.
    pub(crate) fn try_drive(&self, role: &DriverRole<'_>, notify: Notify) {
        let _in = breakdown::enter(Layer::Worker);
        let mut holding = match notify {
            Notify::Never => self.lock.try_acquire(),
            Notify::IfHeld => self.lock.try_acquire() || self.lock.acquire_or_notify(),
            Notify::Always => self.lock.acquire_or_notify(),
        };
        while holding {
            match self.drive(role) {
                NextStep::Return | NextStep::Park(_) => return,
                step => holding = self.perform_unlocked(step, None),
            }
        }
    }

    /// Submits a handle's operation, and polls ready tasks if the lock is free.
    ///
    /// # Safety
    /// The operation is new and carries the worker's reference.
    pub(crate) unsafe fn submit_spawned(&self, operation: NonNull<PooledOperation>) {
        // SAFETY: valid until the worker gives up its reference, by the caller's word.
        unsafe { self.inbox.push(operation.as_ptr().cast::<Message>()) };
        self.try_drive(&DriverRole::OneBatch, Notify::Always);
    }

    /// Submits a handle's operation from inside an operation of another worker, or of this one. If
    /// this thread doesn't drive this worker, the notification waits for the other one's release.
    ///
    /// # Safety
    /// The operation is new and carries the worker's reference.
    pub(crate) unsafe fn submit_from(&self, from: &Reactor, operation: NonNull<PooledOperation>) {
        if self.is_driven_here() {
            // SAFETY: this thread drives, so it holds the lock; the operation is valid until the
            // worker gives up its reference, by the caller's word.
            unsafe { self.reactor().add_ready(operation.as_ref().task()) };
            return;
        }
        // SAFETY: valid until the worker gives up its reference, by the caller's word.
        unsafe { self.inbox.push(operation.as_ptr().cast::<Message>()) };
        from.wake_after_release(self.notifier());
    }

    /// Submits operations without handles together, and polls them if the lock is free. `comes_back`:
    /// the thread, or another one, waits for all of them in a blocking call before long.
    ///
    /// # Safety
    /// The operations are new and carry the worker's reference.
    pub(crate) unsafe fn submit_together(
        &self,
        operations: &[NonNull<PooledOperation>],
        comes_back: bool,
    ) {
        let role = DriverRole::Submitter {
            comes_back: Cell::new(comes_back),
            polls_max: BATCH_POLLS_MAX.max(operations.len() as u32),
        };
        // SAFETY: by the caller's word.
        unsafe { self.submit_and_drive(operations, &role) };
    }

    /// Submits operations without handles, and drives as a thread that comes again until `is_done`.
    ///
    /// # Safety
    /// Those of `submit_together`.
    pub(crate) unsafe fn submit_and_poll(
        &self,
        operations: &[NonNull<PooledOperation>],
        is_done: &dyn Fn() -> bool,
    ) {
        // SAFETY: by the caller's word.
        unsafe { self.submit_and_drive(operations, &DriverRole::poller(is_done, true)) };
    }

    /// # Safety
    /// Those of `submit_together`.
    unsafe fn submit_and_drive(
        &self,
        operations: &[NonNull<PooledOperation>],
        role: &DriverRole<'_>,
    ) {
        let _in = breakdown::enter(Layer::Worker);
        let mut holding = self.lock.try_acquire();
        if holding {
            // SAFETY: we hold the lock.
            let reactor = unsafe { self.reactor() };
            let _driving = Driving::enter(reactor);
            for operation in operations {
                // SAFETY: valid until the worker gives up its reference, by the caller's word.
                reactor.add_ready(unsafe { operation.as_ref() }.task());
            }
        } else {
            for operation in operations {
                // SAFETY: the message stays valid until the worker gives up its reference.
                unsafe { self.inbox.push(operation.as_ptr().cast::<Message>()) };
            }
            // Without new operations the holder has nothing to be told.
            holding = !operations.is_empty() && self.lock.acquire_or_notify();
        }
        while holding {
            match self.drive(role) {
                NextStep::Return | NextStep::Park(_) => return,
                step => holding = self.perform_unlocked(step, None),
            }
        }
    }

    /// Takes a step that isn't final. True if the thread has the lock again; if not, the holder was
    /// notified.
    pub(crate) fn perform_unlocked(&self, step: NextStep, own: Option<&Node>) -> bool {
        debug_assert!(!self.is_driven_here(), "performed without the lock");
        let end_busy = || own.is_some_and(|node| node.change_state(BUSY, WAITING));
        match step {
            NextStep::Execute(device, request) => {
                let executed = {
                    let _in = breakdown::enter(Layer::Device);
                    catch_unwind(AssertUnwindSafe(|| device.execute(request)))
                        .map_or_else(Arrival::Panicked, Arrival::Completed)
                };
                drop(device);
                end_busy();
                if self.lock.try_acquire() || self.spin_while_visited() && self.lock.try_acquire() {
                    // SAFETY: we hold the lock.
                    let reactor = unsafe { self.reactor() };
                    let _driving = Driving::enter(reactor);
                    take_arrival(reactor, executed);
                    return true;
                }
                lock(&self.arrivals).push(executed);
            }
            NextStep::AwaitDevice(doorbell, timeout) => {
                let waiting = breakdown::enter(Layer::Device);
                doorbell.wait(Some(timeout));
                drop(waiting);
                drop(doorbell);
                end_busy();
                let awaits_device = match own {
                    Some(_) => &self.caller_awaits_device,
                    None => &self.keeper_awaits_device,
                };
                awaits_device.store(false, Ordering::Release);
            }
            NextStep::Yield => {
                end_busy();
            }
            NextStep::StepAside(aside) => {
                match aside.until {
                    None if cfg!(loom) => {}
                    None => std::thread::yield_now(),
                    Some(wait) => {
                        let _in = breakdown::enter(Layer::Wait);
                        wait.spin(|| self.called_back.load(Ordering::Acquire));
                    }
                }
                self.spin_while_visited();
                end_busy();
                if aside.is_counted {
                    self.end_aside();
                }
            }
            NextStep::Return | NextStep::Park(_) => unreachable!("a final step"),
        }
        self.lock.acquire_or_notify()
    }
}
