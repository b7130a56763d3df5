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
use adit_base::{Errno, Result, steps};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
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
    descriptor: u64,
    wanted: Lock,
    blocker: Cell<Holder>,
    state: Cell<State>,
    /// It has to call its `stop`.
    is_asked: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Waiter {
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
                waiter.state.set(State::Concerned);
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
                next.state.set(State::Looks);
                self.any_looks.set(true);
                return next.wake();
            }
        }
    }
}

/// The POSIX owners that wait, of all inodes.
#[derive(Default)]
pub(crate) struct Waits {
    by_owner: RefCell<HashMap<u64, Vec<Rc<Waiter>>, BuildNumberHasher>>,
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
    /// Begins to wait for a lock that `blocker` excludes. EDEADLK if the holder of that waits,
    /// directly or through others, for the holder of `wanted`.
    pub(crate) fn begin<'a>(
        &'a self,
        table: &'a Table,
        descriptor: u64,
        wanted: Lock,
        blocker: &Lock,
    ) -> Result<WaitGuard<'a>> {
        self.search(&wanted, blocker)?;
        let waiter = Rc::new(Waiter {
            descriptor,
            wanted,
            blocker: Cell::new(blocker.holder),
            state: Cell::new(State::Waits),
            is_asked: Cell::new(false),
            waker: RefCell::default(),
        });
        if let Holder::Posix { id, .. } = wanted.holder {
            let mut by_owner = self.by_owner.borrow_mut();
            by_owner.entry(id).or_default().push(waiter.clone());
        }
        table.queue.waiters.borrow_mut().push(waiter.clone());
        Ok(WaitGuard {
            waits: self,
            queue: &table.queue,
            waiter,
        })
    }

    fn search(&self, wanted: &Lock, blocker: &Lock) -> Result<()> {
        assert!(blocker.excludes(wanted), "a lock that is in the way");
        match wanted.holder {
            Holder::Posix { id, .. } if self.reached(blocker.holder).contains(&id) => {
                Err(Errno::DEADLK.into())
            }
            _ => Ok(()),
        }
    }

    /// The POSIX owners for which this holder waits, with itself.
    fn reached(&self, holder: Holder) -> Vec<u64> {
        let Holder::Posix { id, .. } = holder else {
            return Vec::new();
        };
        let by_owner = self.by_owner.borrow();
        let mut reached = vec![id];
        let mut edges = 0;
        let mut next = 0;
        while let Some(owner) = reached.get(next) {
            next += 1;
            // A waiter that is concerned, or looks, searches when it waits again.
            let waits = by_owner.get(owner).into_iter().flatten();
            for waiter in waits.take(EDGES_MAX - edges) {
                edges += 1;
                if let Holder::Posix { id, .. } = waiter.blocker.get()
                    && waiter.state.get() == State::Waits
                    && !reached.contains(&id)
                {
                    reached.push(id);
                }
            }
        }
        steps::note(edges);
        reached
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
        self.waits.search(&self.waiter.wanted, blocker)?;
        self.waiter.blocker.set(blocker.holder);
        self.waiter.state.set(State::Waits);
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
                let circle = circle.get_or_insert_with(|| self.waits.reached(found.holder));
                if matches!(next.wanted.holder, Holder::Posix { id, .. } if circle.contains(&id)) {
                    return; // it looks, and finds the circle
                }
                next.blocker.set(found.holder);
                next.state.set(State::Waits);
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
        if let Holder::Posix { id, .. } = waiter.wanted.holder {
            let mut by_owner = self.waits.by_owner.borrow_mut();
            let own = by_owner.get_mut(&id).expect("it waits");
            own.retain(is_other);
            if own.is_empty() {
                by_owner.remove(&id);
            }
        }
        if waiter.state.replace(State::Waits) == State::Looks {
            self.hand_on(None);
        }
    }
}
