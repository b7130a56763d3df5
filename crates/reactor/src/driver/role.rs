//! The roles of a driver, and its next step after it released the lock.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use adit_base::clock::monotonic_ns;
use adit_base::sync::atomic::{AtomicBool, Ordering};
use adit_block::{Device, Doorbell, Request};

use super::drive::BATCH_POLLS_MAX;
use super::{Core, IO_WAIT_NS, OWN_IO_WAIT_NS};
use crate::reactor::node::{BUSY, Node};
use crate::reactor::{Reactor, Spin};

/// Which thread drives, and for how long.
pub(crate) enum DriverRole<'n> {
    /// A blocking call: drives, executes and waits until its operation is done.
    Caller(&'n Node),
    /// A poll of a handle or of a queue, by an executor or in a loop of the application: drives
    /// while there is work, and never blocks.
    Poller {
        /// True once the awaited operations are done.
        is_done: &'n dyn Fn() -> bool,
        /// The application polls again until the operation is done, so work may be left to that
        /// poll, without the keeper. False from the first notification on: the notifier relies on
        /// this driver.
        polls_again: Cell<bool>,
    },
    /// Polls at most `BATCH_POLLS_MAX` ready tasks, then leaves.
    OneBatch,
    /// Polls one batch, after operations whose thread comes back to wait for them (a blocking
    /// call): the driver may leave requests in the device's queue to that call, without the keeper.
    Submitter {
        /// False from the first notification on, as for `Poller`.
        comes_back: Cell<bool>,
        /// Polls of its batch.
        polls_max: u32,
    },
    /// Polls nothing: leaves all work to a waiting caller, or to the keeper.
    Messenger,
    /// Has run a closure for another worker's operation. Polls nothing: leaves all work to a
    /// waiting caller, or comes back to it after the other worker's release.
    Visitor,
    /// The keeper: drives until no work is left.
    Keeper,
}

/// When `Core::try_drive` sets NOTIFIED in the lock word.
pub(crate) enum Notify {
    /// Never: the thread comes again.
    Never,
    /// If the lock is held: the holder then finds a driver for the work that it leaves.
    IfHeld,
    /// Always: the holder, or this thread if the lock was free, processes the inbox.
    Always,
}

/// The next step of a thread after it drove, without the lock.
pub(crate) enum NextStep {
    /// Return from the call.
    Return,
    /// Execute a request, then drive again.
    Execute(Arc<dyn Device>, Request),
    /// Wait for completions of the device's queue, then drive again.
    AwaitDevice(Arc<dyn Doorbell>, Duration),
    /// Wait to be appointed as the driver, until this deadline (on the monotonic clock) if any.
    Park(Option<u64>),
    /// Deliver the deferred wake-ups, then drive again.
    Yield,
    /// The same, after other threads had a chance to take the lock: a moment, or until something
    /// has happened.
    StepAside(Aside),
}

/// How a thread steps aside.
#[derive(Default)]
pub(crate) struct Aside {
    /// Until this is over; None: for a moment.
    pub(super) until: Option<Spin>,
    /// Others count on it to come back within some µs (`Core::aside`).
    pub(super) is_counted: bool,
}

impl Aside {
    pub(super) fn until(until: Option<Spin>) -> Aside {
        Aside {
            until,
            is_counted: false,
        }
    }
}

impl NextStep {
    /// Whether the thread stops driving: another one has to do the work that is left.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, NextStep::Return | NextStep::Park(_))
    }

    /// Whether the thread does nothing else before it drives again.
    pub(super) fn comes_back_at_once(&self) -> bool {
        matches!(self, NextStep::Yield | NextStep::StepAside(_))
    }
}

impl<'n> DriverRole<'n> {
    /// A poll until `is_done`. `polls_again`: the thread polls in a loop until then.
    pub(crate) fn poller(is_done: &'n dyn Fn() -> bool, polls_again: bool) -> DriverRole<'n> {
        DriverRole::Poller {
            is_done,
            polls_again: Cell::new(polls_again),
        }
    }

    /// The thread has the lock (again): its earlier duties are void.
    pub(super) fn begin(&self, core: &Core, reactor: &Reactor) {
        match self {
            DriverRole::Caller(node) if !node.is_done() => {
                node.state.store(BUSY, Ordering::Relaxed);
                reactor.clear_duties(node);
            }
            DriverRole::Keeper => core.keeper.set_wakes_at_ns(u64::MAX),
            _ => {}
        }
    }

    pub(super) fn is_done(&self) -> bool {
        match self {
            DriverRole::Caller(node) => node.is_done(),
            DriverRole::Poller { is_done, .. } => is_done(),
            DriverRole::Messenger | DriverRole::Visitor => true,
            DriverRole::OneBatch | DriverRole::Submitter { .. } | DriverRole::Keeper => false,
        }
    }

    /// Ready tasks that it polls before it leaves.
    pub(super) fn batch_polls_max(&self) -> u32 {
        match self {
            DriverRole::Submitter { polls_max, .. } => *polls_max,
            DriverRole::Messenger | DriverRole::Visitor => 0,
            _ => BATCH_POLLS_MAX,
        }
    }

    /// Whether it drives as long as there is work; otherwise it polls one batch.
    pub(super) fn drives_until_idle(&self, core: &Core) -> bool {
        match self {
            DriverRole::Caller(_) | DriverRole::Poller { .. } => true,
            DriverRole::OneBatch
            | DriverRole::Submitter { .. }
            | DriverRole::Messenger
            | DriverRole::Visitor => false,
            DriverRole::Keeper => !core.keeper.is_stopping(),
        }
    }

    /// Another thread notified this driver and relies on it from now on.
    pub(super) fn on_notified(&self) {
        match self {
            DriverRole::Poller { polls_again, .. } => polls_again.set(false),
            DriverRole::Submitter { comes_back, .. } => comes_back.set(false),
            _ => {}
        }
    }

    /// Whether the keeper is to do the work that this driver leaves. Not if the driver's next poll
    /// will do it (after the operation is done there is no next poll), or the call that a submitter
    /// comes back with, as long as the device's queue does it.
    pub(super) fn leaves_work_to_keeper(&self, reactor: &Reactor) -> bool {
        match self {
            DriverRole::Poller {
                is_done,
                polls_again,
            } => !polls_again.get() || is_done(),
            DriverRole::Submitter { comes_back, .. } => {
                !comes_back.get() || reactor.has_inline_requests()
            }
            _ => true,
        }
    }

    /// Whether it may block, for the device or for other drivers.
    pub(super) fn may_block(&self) -> bool {
        matches!(self, DriverRole::Caller(_) | DriverRole::Keeper)
    }

    /// The flag that says that a thread of this role waits for the device.
    pub(super) fn awaits_device<'c>(&self, core: &'c Core) -> &'c AtomicBool {
        match self {
            DriverRole::Keeper => &core.keeper_awaits_device,
            _ => &core.caller_awaits_device,
        }
    }

    /// Waiting for the device, if this driver is the one to do it.
    pub(super) fn await_device(&self, core: &Core, reactor: &Reactor) -> Option<NextStep> {
        if !self.may_block() {
            return None;
        }
        let own = matches!(self, DriverRole::Caller(node) if reactor.awaits_own_request(node));
        if !own
            && matches!(self, DriverRole::Caller(_))
            && core.keeper_awaits_device.load(Ordering::Acquire)
        {
            // The caller's operation waits for another thread, which could not wake it from a wait
            // for the device. The keeper reaps the completions.
            return None;
        }
        let doorbell = reactor.doorbell()?;
        self.awaits_device(core).store(true, Ordering::Relaxed);
        let max_ns = if own { OWN_IO_WAIT_NS } else { IO_WAIT_NS };
        let timeout_ns = match reactor.next_deadline_ns() {
            u64::MAX => max_ns,
            next_ns => next_ns.saturating_sub(monotonic_ns()).min(max_ns),
        };
        let timeout = Duration::from_nanos(timeout_ns);
        Some(NextStep::AwaitDevice(doorbell, timeout))
    }

    /// The step of a driver that is not done and found nothing to do.
    pub(super) fn step_when_idle(&self) -> NextStep {
        match self {
            DriverRole::Caller(_) | DriverRole::Keeper => NextStep::Park(None),
            _ => NextStep::Return,
        }
    }
}
