//! Wake-ups that the driver makes after it has released the lock.

use super::completions::QueueShared;
use adit_base::sync::atomic::AtomicU32;
use adit_block::Doorbell;
use smallvec::SmallVec;
use std::sync::Arc;
use std::task::Waker;

/// The wake-ups that the driver noted under the lock.
#[derive(Default)]
pub(crate) struct DeferredWakeups {
    /// The states of sleeping callers, and words of visited workers' keepers. The memory around
    /// them may be gone (see `futex.rs`).
    pub(crate) sleepers: SmallVec<[*const AtomicU32; 8]>,
    /// Tasks of other executors.
    pub(crate) wakers: SmallVec<[Waker; 8]>,
    /// Queues of completions whose events are to be synced.
    pub(crate) events: SmallVec<[Arc<QueueShared>; 4]>,
    /// Queues of devices that have new submissions.
    pub(crate) doorbells: SmallVec<[Arc<dyn Doorbell>; 2]>,
    /// The keeper was armed while it slept.
    pub(crate) wake_keeper: bool,
    /// Work was left to the thread itself, which makes these wake-ups first.
    pub(crate) has_own_work: bool,
}

impl DeferredWakeups {
    /// Whether callers or tasks are to be woken.
    pub(crate) fn wakes_threads(&self) -> bool {
        !(self.sleepers.is_empty() && self.wakers.is_empty() && self.events.is_empty())
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.sleepers.is_empty()
            && self.wakers.is_empty()
            && self.events.is_empty()
            && self.doorbells.is_empty()
            && !self.wake_keeper
    }
}
