//! Waiting of a worker's operations for each other: a read/write lock and an event. No atomics:
//! they belong to the worker.
//!
//! Invariants: first come, first served, strictly: an operation that can't be served at once
//! queues, and no operation overtakes the queue, not even by `try_`. The operation that gives units
//! back grants them: they are accounted for before the waiter runs, so none can be taken in
//! between. A waiter is known by its ticket; tickets are granted in ascending order, so "granted"
//! is a comparison. A future dropped while it waits leaves the queue; one dropped after the grant
//! gives its units back. The primitives protect no data and know no owner: an operation that locks
//! twice waits for itself.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// The units of a read/write lock: a reader takes 1, a writer all.
const EXCLUSIVE: u32 = u32::MAX;

struct Waiter {
    ticket: u64,
    units: u32,
    waker: Waker,
}

/// A fair read/write lock of a worker's operations: shared or exclusive, in the order of arrival.
pub struct RwLock {
    free: Cell<u32>,
    next_ticket: Cell<u64>,
    /// All tickets below are granted (or their waiters gone).
    granted_below: Cell<u64>,
    waiting: RefCell<VecDeque<Waiter>>,
}

/// Holds a [`RwLock`] shared until dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct ReadGuard<'a>(&'a RwLock);

/// Holds a [`RwLock`] exclusively until dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct WriteGuard<'a>(&'a RwLock);

impl RwLock {
    /// A lock that is free.
    pub const fn new() -> Self {
        RwLock {
            free: Cell::new(EXCLUSIVE),
            next_ticket: Cell::new(0),
            granted_below: Cell::new(0),
            waiting: RefCell::new(VecDeque::new()),
        }
    }

    /// Waits until it holds the lock shared.
    pub async fn read(&self) -> ReadGuard<'_> {
        if !self.try_take(1) {
            self.wait_for(1).await;
        }
        ReadGuard(self)
    }

    /// Waits until it holds the lock exclusively.
    pub async fn write(&self) -> WriteGuard<'_> {
        if !self.try_take(EXCLUSIVE) {
            self.wait_for(EXCLUSIVE).await;
        }
        WriteGuard(self)
    }

    /// Holds the lock shared if that needs no waiting and overtakes no waiter.
    pub fn try_read(&self) -> Option<ReadGuard<'_>> {
        self.try_take(1).then(|| ReadGuard(self))
    }

    /// Holds the lock exclusively if that needs no waiting and overtakes no waiter.
    pub fn try_write(&self) -> Option<WriteGuard<'_>> {
        self.try_take(EXCLUSIVE).then(|| WriteGuard(self))
    }

    /// Gives back a shared hold whose guard was forgotten.
    pub fn return_read(&self) {
        self.give_back(1);
    }

    /// Whether an operation holds it, shared or exclusively.
    pub fn is_locked(&self) -> bool {
        self.free.get() != EXCLUSIVE
    }

    /// Whether an operation holds it exclusively.
    pub fn is_locked_exclusively(&self) -> bool {
        self.free.get() == 0
    }

    #[inline]
    fn try_take(&self, units: u32) -> bool {
        if self.free.get() >= units && self.waiting.borrow().is_empty() {
            self.free.set(self.free.get() - units);
            return true;
        }
        false
    }

    fn wait_for(&self, units: u32) -> Acquire<'_> {
        Acquire {
            lock: self,
            units,
            ticket: None,
        }
    }

    fn give_back(&self, units: u32) {
        debug_assert!(
            units <= EXCLUSIVE - self.free.get(),
            "units that were taken"
        );
        self.free.set(self.free.get() + units);
        self.grant();
    }

    /// Serves the head of the queue as far as the free units go.
    fn grant(&self) {
        let mut waiting = self.waiting.borrow_mut();
        while let Some(first) = waiting.front() {
            if first.units > self.free.get() {
                break;
            }
            debug_assert!(
                self.granted_below.get() <= first.ticket,
                "in ascending order"
            );
            self.free.set(self.free.get() - first.units);
            self.granted_below.set(first.ticket + 1);
            let first = waiting.pop_front().expect("looked at above");
            first.waker.wake();
        }
    }
}

impl Default for RwLock {
    fn default() -> Self {
        Self::new()
    }
}

/// Waits until its units are granted.
struct Acquire<'a> {
    lock: &'a RwLock,
    units: u32,
    /// While it waits.
    ticket: Option<u64>,
}

impl Future for Acquire<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.ticket {
            None if self.lock.try_take(self.units) => return Poll::Ready(()),
            None => {
                let ticket = self.lock.next_ticket.get();
                self.lock.next_ticket.set(ticket + 1);
                self.lock.waiting.borrow_mut().push_back(Waiter {
                    ticket,
                    units: self.units,
                    waker: context.waker().clone(),
                });
                self.ticket = Some(ticket);
            }
            Some(ticket) if ticket < self.lock.granted_below.get() => {
                self.ticket = None;
                return Poll::Ready(());
            }
            Some(ticket) => {
                let mut waiting = self.lock.waiting.borrow_mut();
                let waiter = waiting.iter_mut().find(|waiter| waiter.ticket == ticket);
                let waiter = waiter.expect("a ticket not granted is queued");
                waiter.waker.clone_from(context.waker());
            }
        }
        Poll::Pending
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else {
            return;
        };
        if ticket < self.lock.granted_below.get() {
            self.lock.give_back(self.units);
        } else {
            let keep = |waiter: &Waiter| waiter.ticket != ticket;
            self.lock.waiting.borrow_mut().retain(keep);
            self.lock.grant();
        }
    }
}

impl<'a> WriteGuard<'a> {
    /// Turns an exclusive hold into a shared one; waiting readers at the head of the queue join.
    pub fn downgrade(self) -> ReadGuard<'a> {
        let lock = self.0;
        std::mem::forget(self);
        lock.give_back(EXCLUSIVE - 1);
        ReadGuard(lock)
    }
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        self.0.give_back(1);
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        self.0.give_back(EXCLUSIVE);
    }
}

/// An event that happens again and again; operations wait for its next time.
pub struct Event {
    /// How often it happened; a waiter waits for a change.
    happened: Cell<u64>,
    next_ticket: Cell<u64>,
    waiting: RefCell<Vec<(u64, Waker)>>,
}

/// Waits for the next time an [`Event`] happens, counted from the call that made it.
pub struct Wait<'a> {
    event: &'a Event,
    since: u64,
    ticket: Option<u64>,
}

impl Event {
    /// An event without waiters.
    pub const fn new() -> Self {
        Event {
            happened: Cell::new(0),
            next_ticket: Cell::new(0),
            waiting: RefCell::new(Vec::new()),
        }
    }

    /// Waits for the next notification after *this call* (not after the first poll), so that
    /// "check, `wait()`, await" misses none.
    pub fn wait(&self) -> Wait<'_> {
        Wait {
            event: self,
            since: self.happened.get(),
            ticket: None,
        }
    }

    /// It happens: all waiters go on.
    pub fn notify_all(&self) {
        self.happened.set(self.happened.get() + 1);
        for (_, waker) in self.waiting.borrow_mut().drain(..) {
            waker.wake();
        }
    }
}

impl Default for Event {
    fn default() -> Self {
        Self::new()
    }
}

impl Future for Wait<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.event.happened.get() != self.since {
            self.ticket = None;
            return Poll::Ready(());
        }
        let mut waiting = self.event.waiting.borrow_mut();
        match self.ticket {
            Some(ticket) => {
                let waiter = waiting.iter_mut().find(|(of, _)| *of == ticket);
                let (_, waker) = waiter.expect("waits until it happens");
                waker.clone_from(context.waker());
            }
            None => {
                let ticket = self.event.next_ticket.get();
                self.event.next_ticket.set(ticket + 1);
                waiting.push((ticket, context.waker().clone()));
                drop(waiting);
                self.ticket = Some(ticket);
            }
        }
        Poll::Pending
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let keep = |(of, _): &(u64, Waker)| *of != ticket;
            self.event.waiting.borrow_mut().retain(keep);
        }
    }
}

/// Runs futures side by side and collects their results in order. For a few: each wake-up polls all
/// that aren't done.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut results: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        let mut all = true;
        for (future, result) in running.iter_mut().zip(&mut results) {
            if result.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(value) => *result = Some(value),
                    Poll::Pending => all = false,
                }
            }
        }
        if all { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results
        .into_iter()
        .map(|result| result.expect("all are done"))
        .collect()
}
