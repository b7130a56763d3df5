//! Wake-ups that a driver defers until it has released the lock: each is a system call, or code of
//! another executor.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use adit_base::breakdown::{self, Layer};
use adit_base::sync::atomic::AtomicU32;
use adit_block::Doorbell;
use smallvec::SmallVec;

use super::{Core, NextStep, ReentryGuard};
use crate::futex;

/// The wake-ups that the driver noted under the lock.
#[derive(Default)]
pub(crate) struct DeferredWakeups {
    /// The states of sleeping callers. The stack frames around them may be gone (see `futex.rs`).
    pub(crate) sleepers: SmallVec<[*const AtomicU32; 8]>,
    /// Tasks of other executors.
    pub(crate) wakers: SmallVec<[Waker; 8]>,
    /// The device's queue has new submissions.
    pub(crate) doorbell: Option<Arc<dyn Doorbell>>,
    /// The keeper was armed while it slept.
    pub(crate) wake_keeper: bool,
}

impl DeferredWakeups {
    pub(crate) fn is_empty(&self) -> bool {
        self.sleepers.is_empty()
            && self.wakers.is_empty()
            && self.doorbell.is_none()
            && !self.wake_keeper
    }
}

impl Core {
    /// Delivers them, without the lock. `step` is the thread's next one.
    pub(super) fn deliver_wakeups(&self, deferred: DeferredWakeups, step: &NextStep) {
        debug_assert!(!self.is_driven_here(), "deferred until after the release");
        if deferred.is_empty() {
            return;
        }
        if let Some(doorbell) = &deferred.doorbell {
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
        drop(waking);
        if !deferred.wakers.is_empty() {
            debug_assert!(
                matches!(step, NextStep::Return | NextStep::Yield) || self.keeper.is_stopping(),
                "other threads depend on a thread that calls wakers"
            );
            let _suspended = ReentryGuard::suspend();
            for waker in deferred.wakers {
                // A waker that panics is a bug of its executor.
                let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
            }
        }
    }
}
