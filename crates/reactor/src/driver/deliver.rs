//! Calling wakers after the release, and a worker's side of a wake-up from elsewhere.
//!
//! A wake-up of another worker's task takes that worker's lock if it is free, and drives there. The
//! operations that end there may wake tasks of further workers, or of the first one. Invariants:
//! 1. One loop on a thread delivers all of them in turn, so drivers aren't nested.
//! 2. Wake-ups of workers come first. Each one is driven, or left to that worker's driver, a
//!    waiting caller or keeper, before the thread calls the first waker of another executor, which
//!    may block until the woken operations are done.
//! 3. A thread that waits for an operation of its own, and leaves no work on that one's worker,
//!    drives each woken worker while that has work, the operation isn't done, and no further
//!    wake-up is to be made: that one may be the operation's. Any other thread drives one batch
//!    each, `HELPED_MAX` times.
//! 4. The thread counts as inside a call, but for the wakers of other executors.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::task::Waker;

use smallvec::SmallVec;

use super::{Arrival, Core, DriverRole, Notify, ReentryGuard, is_inside_call};
use crate::lock::lock;
use crate::reactor::task::{self, TaskId};
use crate::reactor::workers::{self, Help, Worker};

/// Wake-ups after which a thread that waits for nothing leaves the work to other threads.
const HELPED_MAX: u32 = 32;

adit_base::sync::local! {
    /// The delivery that this thread makes.
    static DELIVERY: Cell<*const Delivery> = const { Cell::new(ptr::null()) };
}

/// Wake-ups that this thread is to make.
#[derive(Default)]
struct Delivery {
    workers: RefCell<SmallVec<[TaskId; 8]>>,
    others: RefCell<SmallVec<[Waker; 8]>>,
}

impl Delivery {
    fn add(&self, wakers: SmallVec<[Waker; 8]>) {
        for waker in wakers {
            if task::is_of_a_worker(&waker) {
                self.workers.borrow_mut().push(TaskId::of(&waker));
            } else {
                self.others.borrow_mut().push(waker);
            }
        }
    }

    fn wake_workers(&self, role: &DriverRole<'_>, has_own_work: bool) {
        debug_assert!(is_inside_call());
        let has_more = || !self.workers.borrow().is_empty();
        let is_done = || role.is_done() || has_more();
        let mut helped = 0;
        while has_more() {
            let id = self.workers.borrow_mut().remove(0);
            let help = match role {
                DriverRole::Caller(_) | DriverRole::Poller { .. }
                    if !has_own_work && !role.is_done() =>
                {
                    Help::Until(&is_done)
                }
                _ if helped < HELPED_MAX => Help::Batch,
                _ => Help::None,
            };
            helped += 1;
            if let Some(worker) = workers::find(id.worker()) {
                worker.receive(id, help);
            }
        }
    }
}

/// Restores the thread's delivery.
struct Entered(*const Delivery);

impl Entered {
    fn enter(delivery: *const Delivery) -> Entered {
        Entered(DELIVERY.with(|present| present.replace(delivery)))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        DELIVERY.with(|present| present.set(self.0));
    }
}

/// Calls wakers that the driver of this role has deferred, without any lock. `has_own_work`: work
/// waits for the driver to come back.
pub(super) fn call_wakers(wakers: SmallVec<[Waker; 8]>, role: &DriverRole<'_>, has_own_work: bool) {
    // SAFETY: set by an outer frame of this thread, which resets it before it returns.
    if let Some(delivery) = unsafe { DELIVERY.with(Cell::get).as_ref() } {
        return delivery.add(wakers);
    }
    let delivery = Delivery::default();
    delivery.add(wakers);
    if !delivery.workers.borrow().is_empty() {
        // The end of an engine is not.
        let _inside = ReentryGuard::enter().ok();
        let _entered = Entered::enter(&delivery);
        delivery.wake_workers(role, has_own_work);
    }
    let _suspended = ReentryGuard::suspend();
    for waker in delivery.others.into_inner() {
        // A waker that panics is a bug of its executor.
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}

impl Worker for Core {
    fn receive(&self, id: TaskId, help: Help<'_>) {
        if self.is_forked() {
            return;
        }
        if id.has_task() {
            lock(&self.arrivals).push(Arrival::Woken(id));
        }
        let mut inside = None;
        let role = match help {
            Help::Until(is_done) => DriverRole::poller(is_done, false),
            Help::Batch => DriverRole::OneBatch,
            Help::None => DriverRole::Messenger,
            Help::IfOutside => match ReentryGuard::enter() {
                Ok(guard) => {
                    inside = Some(guard);
                    DriverRole::OneBatch
                }
                // It drives nothing now, but has something else to do.
                Err(_) => DriverRole::Messenger,
            },
        };
        self.try_drive(&role, Notify::Always);
        drop(inside);
    }
}
