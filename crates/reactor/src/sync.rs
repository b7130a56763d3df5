//! Waiting for each other on one worker: a read/write lock, an event, a semaphore. No atomics: they belong to the worker.
//!
//! Invariants: strictly first come, first served: who can't be served at once queues, and nobody overtakes the queue, not even `try_`. What is
//! granted is accounted for by whoever grants it, before the waiter runs, so nothing slips in between. A waiter is known by its ticket;
//! tickets are granted in ascending order, so "granted" is a comparison. A future dropped while it waits leaves the queue; one dropped
//! after the grant gives it back. They protect no data and know no owner: relocking within one operation deadlocks that operation.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

struct Waiter {
    ticket: u64,
    /// Units wanted: of a read/write lock, 1 is shared and `u32::MAX` exclusive.
    units: u32,
    waker: Waker,
}

/// Free units and who waits for them; what all three primitives are made of.
struct Queue {
    free: Cell<u32>,
    next_ticket: Cell<u64>,
    /// Every ticket below was granted (or its waiter is gone).
    granted_below: Cell<u64>,
    waiting: RefCell<VecDeque<Waiter>>,
}

impl Queue {
    const fn new(free: u32) -> Self {
        Queue {
            free: Cell::new(free),
            next_ticket: Cell::new(0),
            granted_below: Cell::new(0),
            waiting: RefCell::new(VecDeque::new()),
        }
    }

    #[inline]
    fn try_take(&self, units: u32) -> bool {
        if self.free.get() >= units && self.waiting.borrow().is_empty() {
            self.free.set(self.free.get() - units);
            return true;
        }
        false
    }

    fn give_back(&self, units: u32) {
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
            self.free.set(self.free.get() - first.units);
            self.granted_below.set(first.ticket + 1);
            let first = waiting.pop_front().expect("looked at above");
            first.waker.wake();
        }
    }
}

/// Waits until its units were granted.
struct Take<'a> {
    queue: &'a Queue,
    units: u32,
    stage: TakeStage,
}

enum TakeStage {
    New,
    Waiting(u64),
    Done,
}

impl Future for Take<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.stage {
            TakeStage::New if self.queue.try_take(self.units) => {}
            TakeStage::New => {
                let ticket = self.queue.next_ticket.get();
                self.queue.next_ticket.set(ticket + 1);
                self.queue.waiting.borrow_mut().push_back(Waiter {
                    ticket,
                    units: self.units,
                    waker: context.waker().clone(),
                });
                self.stage = TakeStage::Waiting(ticket);
                return Poll::Pending;
            }
            TakeStage::Waiting(ticket) if ticket < self.queue.granted_below.get() => {}
            TakeStage::Waiting(ticket) => {
                let mut waiting = self.queue.waiting.borrow_mut();
                let waiter = waiting.iter_mut().find(|waiter| waiter.ticket == ticket);
                let waiter = waiter.expect("a ticket not granted is queued");
                waiter.waker.clone_from(context.waker());
                return Poll::Pending;
            }
            TakeStage::Done => {}
        }
        self.stage = TakeStage::Done;
        Poll::Ready(())
    }
}

impl Drop for Take<'_> {
    fn drop(&mut self) {
        let TakeStage::Waiting(ticket) = self.stage else {
            return;
        };
        if ticket < self.queue.granted_below.get() {
            self.queue.give_back(self.units);
        } else {
            let keep = |waiter: &Waiter| waiter.ticket != ticket;
            self.queue.waiting.borrow_mut().retain(keep);
            self.queue.grant();
        }
    }
}

/// All units of a read/write lock.
const EXCLUSIVE: u32 = u32::MAX;

/// A fair read/write lock of a worker's operations: shared or exclusive, in the order of arrival.
pub struct RwLock {
    queue: Queue,
}

/// Holds a [`RwLock`] shared until dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct ReadGuard<'a>(&'a RwLock);

/// Holds a [`RwLock`] exclusively until dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct WriteGuard<'a>(&'a RwLock);

impl RwLock {
    /// A lock that nobody holds.
    pub const fn new() -> Self {
        RwLock {
            queue: Queue::new(EXCLUSIVE),
        }
    }

    /// Waits until it holds the lock shared.
    pub async fn read(&self) -> ReadGuard<'_> {
        if !self.queue.try_take(1) {
            self.wait_for(1).await;
        }
        ReadGuard(self)
    }

    /// Waits until it holds the lock exclusively.
    pub async fn write(&self) -> WriteGuard<'_> {
        if !self.queue.try_take(EXCLUSIVE) {
            self.wait_for(EXCLUSIVE).await;
        }
        WriteGuard(self)
    }

    /// Holds the lock shared if that needs no waiting and overtakes nobody.
    pub fn try_read(&self) -> Option<ReadGuard<'_>> {
        self.queue.try_take(1).then(|| ReadGuard(self))
    }

    /// Holds the lock exclusively if that needs no waiting and overtakes nobody.
    pub fn try_write(&self) -> Option<WriteGuard<'_>> {
        self.queue.try_take(EXCLUSIVE).then(|| WriteGuard(self))
    }

    /// Gives back a shared hold whose guard was forgotten.
    pub fn return_read(&self) {
        self.queue.give_back(1);
    }

    /// Whether somebody holds it, shared or exclusively.
    pub fn is_locked(&self) -> bool {
        self.queue.free.get() != EXCLUSIVE
    }

    /// Whether somebody holds it exclusively.
    pub fn is_locked_exclusively(&self) -> bool {
        self.queue.free.get() == 0
    }

    fn wait_for(&self, units: u32) -> Take<'_> {
        Take {
            queue: &self.queue,
            units,
            stage: TakeStage::New,
        }
    }
}

impl Default for RwLock {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> WriteGuard<'a> {
    /// Turns an exclusive hold into a shared one; waiting readers at the head of the queue join.
    pub fn downgrade(self) -> ReadGuard<'a> {
        let lock = self.0;
        std::mem::forget(self);
        lock.queue.give_back(EXCLUSIVE - 1);
        ReadGuard(lock)
    }
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        self.0.queue.give_back(1);
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        self.0.queue.give_back(EXCLUSIVE);
    }
}

/// A counter of units that operations take and give back, first come, first served.
pub struct Semaphore {
    queue: Queue,
}

/// Units of a [`Semaphore`], given back when dropped.
#[must_use = "the units are given back when the permit is dropped"]
pub struct Permit<'a> {
    semaphore: &'a Semaphore,
    units: u32,
}

impl Semaphore {
    /// With this many units.
    pub const fn new(units: u32) -> Self {
        Semaphore {
            queue: Queue::new(units),
        }
    }

    /// Waits for `units`. More than there will ever be waits for ever.
    pub async fn acquire(&self, units: u32) -> Permit<'_> {
        if !self.queue.try_take(units) {
            let wait = Take {
                queue: &self.queue,
                units,
                stage: TakeStage::New,
            };
            wait.await;
        }
        Permit {
            semaphore: self,
            units,
        }
    }

    /// Takes `units` if that needs no waiting and overtakes nobody.
    pub fn try_acquire(&self, units: u32) -> Option<Permit<'_>> {
        self.queue.try_take(units).then_some(Permit {
            semaphore: self,
            units,
        })
    }

    /// Adds units for good, or gives back those of a forgotten permit.
    pub fn release(&self, units: u32) {
        self.queue.give_back(units);
    }

    /// Units that are free.
    pub fn available(&self) -> u32 {
        self.queue.free.get()
    }
}

impl Permit<'_> {
    /// Keeps the units; [`Semaphore::release`] gives them back.
    pub fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.semaphore.queue.give_back(self.units);
    }
}

/// Something that happens again and again, and that operations wait for the next time of.
pub struct Event {
    /// Counts the times; a waiter waits for a change.
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
    /// One that nobody waits for.
    pub const fn new() -> Self {
        Event {
            happened: Cell::new(0),
            next_ticket: Cell::new(0),
            waiting: RefCell::new(Vec::new()),
        }
    }

    /// Waits for the next notification after *this call* (not after the first poll), so "check, `wait()`, await" misses nothing.
    pub fn wait(&self) -> Wait<'_> {
        Wait {
            event: self,
            since: self.happened.get(),
            ticket: None,
        }
    }

    /// It happens: everybody who waits goes on.
    pub fn notify_all(&self) {
        self.happened.set(self.happened.get() + 1);
        for (_, waker) in self.waiting.borrow_mut().drain(..) {
            waker.wake();
        }
    }

    /// Whether anybody waits.
    pub fn has_waiters(&self) -> bool {
        !self.waiting.borrow().is_empty()
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

/// Runs futures side by side and collects their results in order. For a few: each wake-up polls all that aren't done.
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
