//! Timers of a worker: a heap by deadline, and the future that sleeps.
//!
//! The keeper fires them, and drivers that have nothing else to do. A timer whose future is gone
//! still fires, and wakes no task.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use adit_base::clock::monotonic_ns;

use crate::reactor::Reactor;

struct Timer {
    deadline_ns: u64,
    /// Keeps timers of the same deadline in the order in which they were added.
    number: u64,
    waker: Waker,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        (self.deadline_ns, self.number) == (other.deadline_ns, other.number)
    }
}
impl Eq for Timer {}
impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.deadline_ns, self.number).cmp(&(other.deadline_ns, other.number))
    }
}

/// All timers of a worker.
#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<Timer>>,
    next_number: u64,
}

impl Timers {
    pub(crate) fn add(&mut self, deadline_ns: u64, waker: Waker) {
        let number = self.next_number;
        self.next_number += 1;
        self.heap.push(Reverse(Timer {
            deadline_ns,
            number,
            waker,
        }));
    }

    /// The earliest deadline; `u64::MAX` without timers.
    pub(crate) fn next_ns(&self) -> u64 {
        self.heap
            .peek()
            .map_or(u64::MAX, |Reverse(first)| first.deadline_ns)
    }

    /// Removes the timers that are due; says whether there were any.
    pub(crate) fn take_due(&mut self, now_ns: u64, mut fire: impl FnMut(Waker)) -> bool {
        let mut any = false;
        while self.next_ns() <= now_ns {
            let Reverse(timer) = self.heap.pop().expect("one is due");
            fire(timer.waker);
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
    pub(crate) armed: bool,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if monotonic_ns() >= self.deadline_ns {
            return Poll::Ready(());
        }
        if !self.armed {
            let mut timers = self.reactor.timers.borrow_mut();
            timers.add(self.deadline_ns, context.waker().clone());
            drop(timers);
            self.armed = true;
        }
        Poll::Pending
    }
}
