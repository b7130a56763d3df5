//! Who drives, what for, and why it stops.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use adit_base::clock::monotonic_ns;
use adit_base::sync::atomic::{AtomicBool, Ordering};
use adit_block::{Device, Doorbell, Request};

use super::{COLLECT_NS, COLLECT_OWN_NS, Core};
use crate::node::{BUSY, Node};
use crate::owned::OwnedCell;
use crate::reactor::Reactor;

/// What a driver is after.
pub(crate) enum Purpose<'n> {
    /// A blocking call's operation.
    Caller(&'n Node),
    /// A handle's operation, polled by an executor or by hand.
    Handle {
        cell: &'n OwnedCell,
        /// Whether its owner comes again for what is left, so that the keeper needn't know. Void once somebody else relied on this driver.
        returns: Cell<bool>,
    },
    /// Just what is ready.
    Glance,
    /// Everything there is.
    Keeper,
}

/// What somebody who looks in needs of a holder that is in the way.
pub(crate) enum Need {
    /// Nothing: it comes again.
    None,
    /// That it names a driver for what it leaves, even if it polls by hand.
    Driver,
    /// That, or if there is no holder, a look into the inbox.
    Look,
}

/// Why a driver released the lock, and what it does now.
pub(crate) enum Left {
    Done,
    Execute(Arc<dyn Device>, Request),
    Collect(Arc<dyn Doorbell>, Duration),
    /// Sleep, until this deadline if there is one.
    Wait(Option<u64>),
    /// Released only to let others be woken.
    Breathe,
}

impl Purpose<'_> {
    /// With the lock (again): what this thread was told before is void.
    pub(super) fn arrive(&self, core: &Core, reactor: &Reactor) {
        match self {
            Purpose::Caller(node) if !node.is_done() => {
                node.state.store(BUSY, Ordering::Relaxed);
                reactor.forget_duties(node);
            }
            Purpose::Keeper => core.keeper.set_wakes_at_ns(u64::MAX),
            _ => {}
        }
    }

    pub(super) fn is_done(&self) -> bool {
        match self {
            Purpose::Caller(node) => node.is_done(),
            Purpose::Handle { cell, .. } => cell.is_done(),
            Purpose::Glance | Purpose::Keeper => false,
        }
    }

    /// Whether it goes on as long as there is anything to do.
    pub(super) fn is_eager(&self, core: &Core) -> bool {
        match self {
            Purpose::Caller(_) | Purpose::Handle { .. } => true,
            Purpose::Glance => false,
            Purpose::Keeper => !core.keeper.is_stopping(),
        }
    }

    /// Somebody knocked: what that was about is this driver's now, and not for its owner to come back to at leisure.
    pub(super) fn take_over(&self) {
        if let Purpose::Handle { returns, .. } = self {
            returns.set(false);
        }
    }

    /// Whether the keeper gets the work that this driver leaves. Not if that is only what an owner who polls by hand will come back for;
    /// once its operation is done, it won't.
    pub(super) fn may_arm(&self) -> bool {
        !matches!(self, Purpose::Handle { cell, returns } if returns.get() && !cell.is_done())
    }

    /// Whoever may block for the device says so.
    pub(super) fn collects<'c>(&self, core: &'c Core) -> &'c AtomicBool {
        match self {
            Purpose::Keeper => &core.keeper_collects,
            _ => &core.caller_collects,
        }
    }

    /// Whether it waits when there is nothing else to do.
    pub(super) fn may_wait(&self) -> bool {
        matches!(self, Purpose::Caller(_) | Purpose::Keeper)
    }

    /// Waiting for the device, if that is this driver's to do.
    pub(super) fn collect(&self, core: &Core, reactor: &Reactor) -> Option<Left> {
        if !self.may_wait() {
            return None;
        }
        let own = matches!(self, Purpose::Caller(node) if reactor.waits_for_device(node));
        if !own
            && matches!(self, Purpose::Caller(_))
            && core.keeper_collects.load(Ordering::Acquire)
        {
            // What it waits for is another thread's to do, which couldn't wake it from there. The keeper sees to the device.
            return None;
        }
        let doorbell = reactor.doorbell()?;
        self.collects(core).store(true, Ordering::Relaxed);
        let max_ns = if own { COLLECT_OWN_NS } else { COLLECT_NS };
        let next_ns = reactor.timers.borrow().next_ns();
        let timeout_ns = match next_ns {
            u64::MAX => max_ns,
            next_ns => next_ns.saturating_sub(monotonic_ns()).min(max_ns),
        };
        Some(Left::Collect(doorbell, Duration::from_nanos(timeout_ns)))
    }

    /// What a driver does that has nothing to do and isn't done.
    pub(super) fn idle(&self) -> Left {
        match self {
            Purpose::Caller(_) | Purpose::Keeper => Left::Wait(None),
            Purpose::Handle { .. } | Purpose::Glance => Left::Done,
        }
    }
}
