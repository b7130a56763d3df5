//! The part of a queue of completions that operations under way refer to; its invariants are those
//! of [`CompletionQueue`](crate::CompletionQueue).

use super::task::TaskId;
use crate::event::EventFd;
use crate::lock::lock;
use adit_base::sync::Mutex;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::OnceLock;
use std::task::Waker;

/// Keys that a wait has taken.
pub type Keys = SmallVec<[u64; 32]>;

/// The part that operations under way refer to.
#[derive(Default)]
pub(crate) struct QueueShared {
    pub(crate) state: Mutex<QueueState>,
    pub(crate) event: OnceLock<EventFd>,
}

#[derive(Default)]
pub(crate) struct QueueState {
    /// Keys of operations that are done, in that order.
    pub(crate) done: VecDeque<u64>,
    /// Threads that wait, in the order in which they came.
    waiters: Vec<Waiter>,
    next_waiter: u64,
    /// There is an event.
    pub(crate) has_event: bool,
    /// `done` was empty before the last push; the event was not signalled for that yet.
    is_edge: bool,
    /// The event is readable, or the thread that syncs makes it so.
    is_readable: bool,
    /// A thread is in `sync_event`.
    is_syncing: bool,
}

pub(crate) struct Waiter {
    pub(crate) number: u64,
    keys_min: usize,
    /// A task of the home worker.
    pub(crate) waker: Waker,
}

/// The next thing to do with the event.
pub(crate) enum EventStep {
    Signal,
    Clear,
}

impl QueueState {
    pub(crate) fn push(&mut self, key: u64) {
        self.is_edge |= self.done.is_empty();
        self.done.push_back(key);
    }

    /// The first waiter for which there are enough keys.
    pub(crate) fn satisfied(&self) -> Option<&Waiter> {
        let count = self.done.len();
        let is_satisfied = |waiter: &&Waiter| waiter.keys_min <= count;
        self.waiters.iter().find(is_satisfied)
    }

    pub(crate) fn take(&mut self, max: usize, keys: &mut Keys) {
        let count = self.done.len().min(max);
        keys.extend(self.done.drain(..count));
    }

    pub(crate) fn add_waiter(&mut self, keys_min: usize, waker: Waker) -> u64 {
        let number = self.next_waiter;
        self.next_waiter += 1;
        self.waiters.push(Waiter {
            number,
            keys_min,
            waker,
        });
        number
    }

    pub(crate) fn remove_waiter(&mut self, number: u64) {
        self.waiters.retain(|waiter| waiter.number != number);
    }

    pub(crate) fn event_step(&self) -> Option<EventStep> {
        if self.done.is_empty() {
            self.is_readable.then_some(EventStep::Clear)
        } else {
            (self.is_edge || !self.is_readable).then_some(EventStep::Signal)
        }
    }

    /// Whether `sync_event` has something to do that no other thread is about to do.
    pub(crate) fn needs_sync(&self) -> bool {
        self.has_event
            && !self.is_syncing
            && self.satisfied().is_none()
            && self.event_step().is_some()
    }
}

impl QueueShared {
    /// An operation of the home worker is done. For that worker's driver. True: `sync_event` is to
    /// be called after the release.
    pub(crate) fn push_as_driver(&self, key: u64) -> bool {
        let mut state = lock(&self.state);
        state.push(key);
        if let Some(waiter) = state.satisfied() {
            waiter.waker.wake_by_ref();
        }
        state.needs_sync()
    }

    /// Wakes a waiter for which there are enough keys. For the home worker's driver.
    pub(crate) fn wake_waiter(&self) {
        if let Some(waiter) = lock(&self.state).satisfied() {
            waiter.waker.wake_by_ref();
        }
    }

    /// Whether that task of the home worker waits here.
    pub(crate) fn is_awaited_by(&self, task: TaskId) -> bool {
        let state = lock(&self.state);
        let is_it = |waiter: &Waiter| TaskId::of(&waiter.waker) == task;
        state.waiters.iter().any(is_it)
    }

    /// Makes the event readable or not, as the queue is now. Without any worker's lock.
    pub(crate) fn sync_event(&self) {
        let Some(event) = self.event.get() else {
            return;
        };
        let mut state = lock(&self.state);
        if state.is_syncing {
            return; // the other thread looks again
        }
        state.is_syncing = true;
        while let Some(step) = state.event_step() {
            state.is_edge = false;
            state.is_readable = matches!(step, EventStep::Signal);
            drop(state);
            match step {
                EventStep::Signal => event.signal(),
                EventStep::Clear => event.clear(),
            }
            state = lock(&self.state);
        }
        state.is_syncing = false;
    }

    pub(crate) fn sync_event_if_needed(&self) {
        if self.event.get().is_some() && lock(&self.state).needs_sync() {
            self.sync_event();
        }
    }
}
