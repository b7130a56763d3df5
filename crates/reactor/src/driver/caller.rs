//! How an operation comes in, and what its thread does until it is done: drives, carries out what a driver left for, waits.

use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use adit_base::Result;
use adit_base::breakdown::{self, Layer};
use adit_base::sync::atomic::Ordering;

use super::inside::AbortOnUnwind;
use super::{Arrival, Core, Left, Need, Purpose, drive};
use crate::lock::Message;
use crate::node::{Node, StackOperation, Stage, WAITING};
use crate::owned::OwnedCell;
use crate::task::Driving;

impl Core {
    /// Runs an operation to its end, driving the worker or waiting for who does.
    #[inline]
    pub(crate) fn run<T, F, Fut>(&self, start: F) -> Result<T>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        let _in = breakdown::enter(Layer::Worker);
        let operation = StackOperation::new(start);
        let abort = AbortOnUnwind;
        if !self.run_at_once(&operation.node) {
            self.attend(&operation.node);
        }
        mem::forget(abort);
        operation.node.accesses.write();
        match operation.stage.into_inner() {
            Stage::Done(result) => result,
            _ => unreachable!("a finished operation has a result"),
        }
    }

    /// The fast path; true when the operation is done and the lock released.
    #[inline]
    fn run_at_once(&self, node: &Node) -> bool {
        if !self.lock.try_acquire() {
            return false;
        }
        // SAFETY: we hold the lock, and release it after the reference's last use.
        let reactor = unsafe { self.reactor() };
        let quiet = if reactor.is_usable() {
            let _driving = Driving::enter(reactor);
            reactor.poll_first(node)
                && reactor.is_quiet(
                    self.keeper_collects.load(Ordering::Relaxed),
                    self.keeper.wakes_at_ns(),
                )
        } else {
            reactor.list(node);
            reactor.add_ready(node.task());
            false
        };
        if !(quiet && self.lock.try_release()) {
            self.go_on(node, true);
        }
        true
    }

    /// Hands an operation in through the inbox, and sees it through.
    #[cold]
    fn attend(&self, node: &Node) {
        node.state.store(WAITING, Ordering::Relaxed);
        // SAFETY: the node stays until it is done, which `go_on` waits for.
        unsafe { self.inbox.push(ptr::from_ref(&node.message).cast_mut()) };
        let holding = self.lock.knock();
        self.go_on(node, holding);
    }

    /// Drives and waits until the operation is done; returns without the lock.
    #[cold]
    fn go_on(&self, node: &Node, mut holding: bool) {
        let purpose = Purpose::Caller(node);
        let mut deadline_ns = None;
        loop {
            if !holding && !self.wait(node, deadline_ns) {
                return;
            }
            match self.drive(&purpose) {
                Left::Done => return,
                Left::Wait(deadline) => {
                    deadline_ns = deadline;
                    holding = false;
                }
                left => {
                    deadline_ns = None;
                    holding = self.away(left, Some(node));
                }
            }
        }
    }

    /// Drives without waiting for the device's completions, if the worker is free. If not, the holder is told to look around where that is
    /// needed.
    pub(crate) fn help(&self, purpose: &Purpose<'_>, need: Need) {
        let _in = breakdown::enter(Layer::Worker);
        let mut holding = match need {
            Need::None => self.lock.try_acquire(),
            Need::Driver => self.lock.try_acquire() || self.lock.knock(),
            Need::Look => self.lock.knock(),
        };
        while holding {
            match self.drive(purpose) {
                Left::Done | Left::Wait(_) => return,
                left => holding = self.away(left, None),
            }
        }
    }

    /// Hands in an operation that a handle shares, and runs what is ready if the worker is free.
    ///
    /// # Safety
    /// The cell was just filled and carries the worker's reference.
    pub(crate) unsafe fn hand_in(&self, cell: ptr::NonNull<OwnedCell>) {
        // SAFETY: valid until the worker gave up its reference, by the caller's word.
        unsafe { self.inbox.push(cell.as_ptr().cast::<Message>()) };
        self.help(&Purpose::Glance, Need::Look);
    }

    /// Does what a driver left for; says whether it has the lock again. If not, the holder knows of everything.
    pub(crate) fn away(&self, left: Left, node: Option<&Node>) -> bool {
        match left {
            Left::Execute(device, request) => {
                let arrival = {
                    let _in = breakdown::enter(Layer::Device);
                    catch_unwind(AssertUnwindSafe(|| device.execute(request)))
                        .map_or_else(Arrival::Panicked, Arrival::Completion)
                };
                drop(device);
                if let Some(node) = node {
                    node.come_back();
                }
                if self.lock.try_acquire() {
                    // SAFETY: we hold the lock.
                    let reactor = unsafe { self.reactor() };
                    let _driving = Driving::enter(reactor);
                    drive::arrive(reactor, arrival);
                    return true;
                }
                self.lock_arrived().push(arrival);
            }
            Left::Collect(doorbell, timeout) => {
                let waiting = breakdown::enter(Layer::Device);
                doorbell.wait(Some(timeout));
                drop(waiting);
                drop(doorbell);
                let collects = if node.is_some() {
                    &self.caller_collects
                } else {
                    &self.keeper_collects
                };
                if let Some(node) = node {
                    node.come_back();
                }
                collects.store(false, Ordering::Release);
            }
            Left::Breathe => {
                if let Some(node) = node {
                    node.come_back();
                }
            }
            Left::Done | Left::Wait(_) => unreachable!("not away"),
        }
        self.lock.knock()
    }
}
