//! Waits for locks.
//!
//! A waiter knows one lock that excludes its own: its *blocker*. It looks at the table again when
//! the blocker's holder has released bytes that the waiter wants. Another holder's release can't
//! help it. Of the waiters that a release concerns, one looks at a time, in the order of arrival.
//! The lock that it finds, its own new one or its next blocker, mostly excludes the waiters behind
//! it: each of them takes it for its blocker without a look of its own. So a release costs a
//! comparison for each waiter of the table, and then one look at the table a turn of the worker.
//!
//! ```text
//!   ┌──► waits ── release ──► concerned ── `Queue::next` ──► looks ──► granted
//!   │      ▲                      │                            │
//!   │      └───── `hand_on` ──────┘                            │
//!   └───────────────────────── `look_failed` ──────────────────┘
//! ```
//! Deadlocks: an edge leads from a POSIX owner that waits to its blocker's holder. An edge is made
//! in `begin`, `look_failed` and `hand_on`; each of them searches, so the last edge of a circle
//! finds it. As on Linux, a waiter has one edge, locks of descriptors have none (a descriptor has
//! no single process that waits), and a search ends after a number of steps.
//!
//! Invariant: of a table's waiters at most one looks, and while any is concerned, one does.

use super::locks::{Holder, Lock, Table};
use adit_base::hash::BuildNumberHasher;
use adit_base::sync::atomic::{AtomicBool, Ordering};
use adit_base::{Errno, Result, steps};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Waits that a search for a circle follows at most (Linux: 10). A longer circle isn't found.
const EDGES_MAX: usize = 64;
/// Most concerned waiters that one look settles; then the next one looks for itself.
const HANDED_ON_MAX: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Waits,
    Concerned,
    Looks,
}

struct Waiter {
    /// Tells the waiters of an owner apart.
    number: u64,
    descriptor: u64,
    wanted: Lock,
    blocker: Cell<Holder>,
    state: Cell<State>,
    /// Its state is `Waits`: for its edge, which other workers read.
    waits: Arc<AtomicBool>,
    /// It has to call its `stop`.
    is_asked: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Waiter {
    fn set(&self, state: State) {
        self.state.set(state);
        self.waits.store(state == State::Waits, Ordering::Relaxed);
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }
}

/// The waiters of a table.
#[derive(Default)]
pub(super) struct Queue {
    /// In the order of arrival.
    waiters: RefCell<Vec<Rc<Waiter>>>,
    /// In the order in which they look. Those in another state have gone.
    concerned: RefCell<VecDeque<Rc<Waiter>>>,
    any_looks: Cell<bool>,
}

impl Queue {
    /// Holders have released or weakened locks in a range.
    pub(super) fn release(&self, is_of: impl Fn(&Holder) -> bool, first: u64, last: u64) {
        let waiters = self.waiters.borrow();
        steps::note(waiters.len());
        for waiter in waiters.iter() {
            let waits = waiter.state.get() == State::Waits;
            if waits && is_of(&waiter.blocker.get()) && waiter.wanted.overlaps(first, last) {
                waiter.set(State::Concerned);
                self.concerned.borrow_mut().push_back(waiter.clone());
            }
        }
        self.next();
    }

    /// The waits through a descriptor may be over.
    pub(super) fn ask(&self, descriptor: u64) {
        let waiters = self.waiters.borrow();
        steps::note(waiters.len());
        for waiter in waiters.iter().filter(|of| of.descriptor == descriptor) {
            waiter.is_asked.set(true);
            waiter.wake();
        }
    }

    /// Lets the next concerned waiter look, unless another one does.
    fn next(&self) {
        if self.any_looks.get() {
            return;
        }
        while let Some(next) = self.concerned.borrow_mut().pop_front() {
            if next.state.get() == State::Concerned {
                next.set(State::Looks);
                self.any_looks.set(true);
                return next.wake();
            }
        }
    }
}

/// The POSIX owners that wait, of all inodes, whichever worker has them.
#[derive(Default)]
pub(crate) struct Waits(Mutex<Edges>);

/// The waits, as edges from owner to owner.
#[derive(Default)]
struct Edges {
    /// The waiters of an owner.
    by_owner: HashMap<u64, Vec<Edge>, BuildNumberHasher>,
    /// The number of the next waiter.
    next: u64,
}

/// A waiter, and its blocker's holder; None: that is no POSIX owner.
struct Edge {
    waiter: u64,
    blocker: Option<u64>,
    /// A waiter that is concerned, or looks, has no blocker, and searches when it waits again.
    waits: Arc<AtomicBool>,
}

fn posix_owner(holder: Holder) -> Option<u64> {
    match holder {
        Holder::Posix { id, .. } => Some(id),
        Holder::Descriptor(_) => None,
    }
}

impl Edges {
    /// The POSIX owners for which this holder waits, with itself.
    fn reached(&self, holder: Holder) -> Vec<u64> {
        let mut reached: Vec<u64> = posix_owner(holder).into_iter().collect();
        let mut edges = 0;
        let mut next = 0;
        while let Some(owner) = reached.get(next) {
            next += 1;
            let waits = self.by_owner.get(owner).into_iter().flatten();
            for wait in waits.take(EDGES_MAX - edges) {
                edges += 1;
                if let Some(id) = wait.blocker
                    && wait.waits.load(Ordering::Relaxed)
                    && !reached.contains(&id)
                {
                    reached.push(id);
                }
            }
        }
        steps::note(edges);
        reached
    }

    fn search(&self, wanted: &Lock, blocker: &Lock) -> Result<()> {
        assert!(blocker.excludes(wanted), "a lock that is in the way");
        match posix_owner(wanted.holder) {
            Some(id) if self.reached(blocker.holder).contains(&id) => Err(Errno::DEADLK.into()),
            _ => Ok(()),
        }
    }

    fn of(&mut self, waiter: &Waiter) -> Option<&mut Edge> {
        let own = self.by_owner.get_mut(&posix_owner(waiter.wanted.holder)?)?;
        own.iter_mut().find(|edge| edge.waiter == waiter.number)
    }

    /// From here on the waiter waits for this holder.
    fn wait(&mut self, waiter: &Waiter, blocker: Holder) {
        if let Some(edge) = self.of(waiter) {
            edge.blocker = posix_owner(blocker);
        }
        waiter.blocker.set(blocker);
        waiter.set(State::Waits);
    }

    fn remove(&mut self, waiter: &Waiter) {
        let Some(id) = posix_owner(waiter.wanted.holder) else {
            return;
        };
        let own = self.by_owner.get_mut(&id).expect("it waits");
        own.retain(|edge| edge.waiter != waiter.number);
        if own.is_empty() {
            self.by_owner.remove(&id);
        }
    }
}

/// Why a wait was interrupted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Woken {
    /// It may get the lock.
    Look,
    /// It has to call its `stop`.
    Asked,
}

/// A lock is waited for until this is dropped.
pub(crate) struct WaitGuard<'a> {
    waits: &'a Waits,
    queue: &'a Queue,
    waiter: Rc<Waiter>,
}

impl Waits {
    fn edges(&self) -> MutexGuard<'_, Edges> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to wait for a lock that `blocker` excludes. EDEADLK if the holder of that waits,
    /// directly or through others, for the holder of `wanted`.
    pub(crate) fn begin<'a>(
        &'a self,
        table: &'a Table,
        descriptor: u64,
        wanted: Lock,
        blocker: &Lock,
    ) -> Result<WaitGuard<'a>> {
        let mut edges = self.edges();
        edges.search(&wanted, blocker)?;
        let waits = Arc::new(AtomicBool::new(true));
        let number = edges.next;
        edges.next = number.wrapping_add(1);
        if let Some(id) = posix_owner(wanted.holder) {
            let blocker = posix_owner(blocker.holder);
            let edge = Edge {
                waiter: number,
                blocker,
                waits: waits.clone(),
            };
            edges.by_owner.entry(id).or_default().push(edge);
        }
        drop(edges);
        let waiter = Rc::new(Waiter {
            number,
            descriptor,
            wanted,
            blocker: Cell::new(blocker.holder),
            state: Cell::new(State::Waits),
            waits,
            is_asked: Cell::new(false),
            waker: RefCell::default(),
        });
        table.queue.waiters.borrow_mut().push(waiter.clone());
        Ok(WaitGuard {
            waits: self,
            queue: &table.queue,
            waiter,
        })
    }
}

impl WaitGuard<'_> {
    /// Waits until there is a reason to look.
    pub(crate) async fn woken(&self) -> Woken {
        poll_fn(|context| {
            let waiter = &self.waiter;
            if waiter.is_asked.replace(false) {
                return Poll::Ready(Woken::Asked);
            }
            if waiter.state.get() == State::Looks {
                return Poll::Ready(Woken::Look);
            }
            let mut waker = waiter.waker.borrow_mut();
            if !(waker.as_ref()).is_some_and(|old| old.will_wake(context.waker())) {
                *waker = Some(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// It has looked, and waits for another lock. EDEADLK as in [`Waits::begin`].
    pub(crate) fn look_failed(&self, blocker: &Lock) -> Result<()> {
        assert_eq!(self.waiter.state.get(), State::Looks, "its turn to look");
        let mut edges = self.waits.edges();
        edges.search(&self.waiter.wanted, blocker)?;
        edges.wait(&self.waiter, blocker.holder);
        drop(edges);
        self.hand_on(Some(blocker));
        Ok(())
    }

    /// It has looked, and got its lock.
    pub(crate) fn granted(self) {
        assert_eq!(self.waiter.state.get(), State::Looks, "its turn to look");
        self.waiter.state.set(State::Waits);
        self.hand_on(Some(&self.waiter.wanted));
    }

    /// Its look is over: the next one's turn. Those that the lock which it found excludes need none.
    fn hand_on(&self, found: Option<&Lock>) {
        let looked = self.queue.any_looks.replace(false);
        assert!(looked, "one waiter looks");
        if let Some(found) = found {
            self.settle(found);
        }
        self.queue.next();
    }

    fn settle(&self, found: &Lock) {
        let mut edges = self.waits.edges();
        let mut concerned = self.queue.concerned.borrow_mut();
        let mut circle = None;
        for _ in 0..HANDED_ON_MAX {
            let Some(next) = concerned.front() else {
                return;
            };
            if next.state.get() == State::Concerned {
                if !found.excludes(&next.wanted) {
                    return;
                }
                let circle = circle.get_or_insert_with(|| edges.reached(found.holder));
                if matches!(next.wanted.holder, Holder::Posix { id, .. } if circle.contains(&id)) {
                    return; // it looks, and finds the circle
                }
                edges.wait(next, found.holder);
            }
            steps::note(1);
            concerned.pop_front();
        }
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        let waiter = &self.waiter;
        let is_other = |other: &Rc<Waiter>| !Rc::ptr_eq(other, waiter);
        let mut waiters = self.queue.waiters.borrow_mut();
        steps::note(waiters.len());
        waiters.retain(is_other);
        drop(waiters);
        self.waits.edges().remove(waiter);
        if waiter.state.replace(State::Waits) == State::Looks {
            self.hand_on(None);
        }
    }
}
