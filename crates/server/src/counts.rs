//! Counts of sessions and pollers during a window of the policy that places sessions.

use adit_load::{PollerLoad, SessionId, SessionLoad};
use std::sync::atomic::{AtomicU64, Ordering};

/// What a session cost during a window.
#[derive(Debug, Default)]
pub(crate) struct SessionCounts {
    messages: AtomicU64,
    busy_ns: AtomicU64,
    waiting_ns: AtomicU64,
    owner_ns: AtomicU64,
    /// A bit for each slot that had a message.
    slots: AtomicU64,
}

/// What a poller did during a window.
#[derive(Debug, Default)]
pub(crate) struct PollerCounts {
    busy_ns: AtomicU64,
    idle_ns: AtomicU64,
}

impl SessionCounts {
    /// A turn: the slots whose messages were found, how many of them it began and how long that
    /// took, and how long the round before it was.
    pub(crate) fn note_turn(&self, slots: u64, messages: u32, busy_ns: u64, round_ns: u64) {
        let found = u64::from(slots.count_ones());
        self.slots.fetch_or(slots, Ordering::Relaxed);
        self.messages.fetch_add(messages.into(), Ordering::Relaxed);
        self.busy_ns.fetch_add(busy_ns, Ordering::Relaxed);
        let waiting_ns = found.saturating_mul(round_ns);
        self.waiting_ns.fetch_add(waiting_ns, Ordering::Relaxed);
    }

    /// The volume's worker took so long for its operations.
    pub(crate) fn note_owner(&self, ns: u64) {
        self.owner_ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn take(&self, session: SessionId, poller: u32) -> SessionLoad {
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        let mut load = SessionLoad::idle(session, Some(poller));
        load.messages = take(&self.messages);
        load.busy_ns = take(&self.busy_ns);
        load.waiting_ns = take(&self.waiting_ns);
        load.owner_ns = take(&self.owner_ns);
        load.slots = take(&self.slots).count_ones();
        load
    }
}

impl PollerCounts {
    pub(crate) fn note(&self, is_busy: bool, ns: u64) {
        let counter = if is_busy {
            &self.busy_ns
        } else {
            &self.idle_ns
        };
        counter.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn take(&self) -> PollerLoad {
        PollerLoad {
            busy_ns: self.busy_ns.swap(0, Ordering::Relaxed),
            idle_ns: self.idle_ns.swap(0, Ordering::Relaxed),
        }
    }
}
