//! Timers of a worker, by deadline, and the future that sleeps.
//!
//! The keeper fires them, and drivers that have nothing else to do. A future that is dropped under
//! the lock takes its timer along; one that is forgotten after a panic leaves it, which wakes no
//! task.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use adit_base::clock::monotonic_ns;

use crate::reactor::Reactor;

/// All timers of a worker.
#[derive(Default)]
pub(crate) struct Timers {
    /// By deadline; timers with equal deadlines in the order in which they were added.
    by_deadline: BTreeMap<(u64, u64), Waker>,
    next_number: u64,
}

impl Timers {
    /// Adds a timer; returns its number.
    fn add(&mut self, deadline_ns: u64, waker: Waker) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.by_deadline.insert((deadline_ns, number), waker);
        number
    }

    /// The earliest deadline; `u64::MAX` without timers.
    pub(crate) fn next_ns(&self) -> u64 {
        let first = self.by_deadline.first_key_value();
        first.map_or(u64::MAX, |((deadline_ns, _), _)| *deadline_ns)
    }

    /// Removes the timers that are due; true if there were any.
    pub(crate) fn take_due(&mut self, now_ns: u64, mut fire: impl FnMut(Waker)) -> bool {
        let mut any = false;
        while let Some(first) = self.by_deadline.first_entry()
            && first.key().0 <= now_ns
        {
            fire(first.remove());
            any = true;
        }
        any
    }
}

/// Sleeps until a deadline; see [`Reactor::sleep`].
#[must_use = "it sleeps only when awaited"]
pub struct Sleep<'a> {
    pub(crate) reactor: &'a Reactor,
    pub(crate) deadline_ns: u64,
    /// The number of its timer.
    pub(crate) timer: Option<u64>,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if monotonic_ns() >= self.deadline_ns {
            return Poll::Ready(());
        }
        if self.timer.is_none() {
            let mut timers = self.reactor.timers.borrow_mut();
            let timer = timers.add(self.deadline_ns, context.waker().clone());
            drop(timers);
            self.timer = Some(timer);
        }
        Poll::Pending
    }
}

impl Drop for Sleep<'_> {
    /// Waits with a long timeout that end soon would fill the memory with their timers.
    fn drop(&mut self) {
        if let Some(number) = self.timer {
            let mut timers = self.reactor.timers.borrow_mut();
            timers.by_deadline.remove(&(self.deadline_ns, number));
        }
    }
}
