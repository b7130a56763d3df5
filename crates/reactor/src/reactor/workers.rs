//! The workers of this process by number, so that a waker, which is a number, finds its worker on
//! any thread.
//!
//! A worker has its number from its start to the end of its core. Numbers are given out in turn: a
//! number returns after as many starts as there are numbers. A waker that outlives its worker finds
//! no worker, or much later another one. If a task there has the same index and generation, it is
//! polled once in vain, which every future allows.
//!
//! Invariants: no thread holds a slot's mutex across anything but a copy of the reference. A forked
//! child may find a slot that another thread held at the fork; that slot is not free to it, and it
//! has no waker of a worker there, since a child drives none of its parent's workers. The mutexes
//! are `std`'s in models, too: no step of a model is made with one held.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use adit_base::{Errno, Error, Result, fork};

use super::task::{TaskId, WORKERS_MAX};

/// A worker, as a waker sees it.
pub(crate) trait Worker: Send + Sync {
    /// Wakes a task from a thread that drives no worker; without a task in it, the id notifies the
    /// worker of messages in its inbox.
    fn receive(&self, id: TaskId, help: Help<'_>);
}

/// How far a thread that wakes a worker drives it, if the lock is free.
pub(crate) enum Help<'h> {
    /// While there is work, and this is false.
    Until(&'h dyn Fn() -> bool),
    /// One batch.
    Batch,
    /// One batch, if it is outside of any call.
    IfOutside,
    /// Not at all: another thread has to.
    None,
}

/// None: the number is free.
type Slot = Mutex<Option<Weak<dyn Worker>>>;

static SLOTS: [Slot; WORKERS_MAX] = [const { Mutex::new(None) }; WORKERS_MAX];
/// Where the search for a free number begins.
static NEXT: Mutex<usize> = Mutex::new(0);

/// The number of a worker, until this is dropped.
pub(crate) struct WorkerNumber {
    number: u32,
    fork_generation: u32,
}

/// The worker of a number that is reserved.
struct Nobody;

impl Worker for Nobody {
    fn receive(&self, _: TaskId, _: Help<'_>) {}
}

impl WorkerNumber {
    /// Takes a free number; EAGAIN if there is none.
    pub(crate) fn reserve() -> Result<WorkerNumber> {
        // A child that finds the hint held begins anywhere.
        let first = NEXT.try_lock().map_or(0, |next| *next);
        let numbers = (first..WORKERS_MAX).chain(0..first);
        for number in numbers {
            let Ok(mut slot) = SLOTS[number].try_lock() else {
                continue;
            };
            if slot.is_none() {
                let nobody: Weak<dyn Worker> = Weak::<Nobody>::new();
                *slot = Some(nobody);
                if let Ok(mut next) = NEXT.try_lock() {
                    *next = (number + 1) % WORKERS_MAX;
                }
                return Ok(WorkerNumber {
                    number: number as u32,
                    fork_generation: fork::generation(),
                });
            }
        }
        Err(Error::with(Errno::AGAIN, "number one more worker"))
    }

    /// From now on the worker is found.
    pub(crate) fn publish(&self, worker: Weak<dyn Worker>) {
        *lock(&SLOTS[self.number as usize]) = Some(worker);
    }

    pub(crate) fn get(&self) -> u32 {
        self.number
    }
}

impl Drop for WorkerNumber {
    fn drop(&mut self) {
        if self.fork_generation == fork::generation() {
            *lock(&SLOTS[self.number as usize]) = None;
        }
    }
}

/// The worker with this number, if it has not ended.
pub(crate) fn find(number: u32) -> Option<Arc<dyn Worker>> {
    lock(&SLOTS[number as usize])
        .as_ref()
        .and_then(Weak::upgrade)
}

fn lock(slot: &Slot) -> std::sync::MutexGuard<'_, Option<Weak<dyn Worker>>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}
