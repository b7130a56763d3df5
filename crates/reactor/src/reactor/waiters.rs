//! The callers that wait, and their duties: the next driver, and the next timer's watcher.

use std::ptr;
use std::task::Waker;

use adit_base::clock::monotonic_ns;
use adit_base::sync::atomic::{AtomicU32, Ordering};

use super::Reactor;
use crate::reactor::DeferredWakeups;
use crate::reactor::node::{APPOINTED, BUSY, DONE, NOT_LISTED, Node, SLEEPING};

impl Reactor {
    /// Adds an operation to the list of those whose threads wait, or will.
    pub(crate) fn add_waiter(&self, node: &Node) {
        self.debug_assert_driven();
        let mut waiters = self.waiters.borrow_mut();
        node.waiter_index.set(waiters.len() as u32);
        waiters.push(node);
    }

    /// The operation's result is in place: its thread may return. The node isn't touched
    /// afterwards.
    #[inline]
    pub(crate) fn complete_node(&self, node: &Node) {
        self.debug_assert_driven();
        if node.waiter_index.get() == NOT_LISTED {
            // The operation never left its own thread, which is this one.
            node.state.store(DONE, Ordering::Release);
            return;
        }
        self.remove_waiter(node);
        let state: *const AtomicU32 = &node.state;
        if node.state.swap(DONE, Ordering::AcqRel) == SLEEPING {
            self.deferred.borrow_mut().sleepers.push(state);
        }
    }

    fn remove_waiter(&self, node: &Node) {
        let mut waiters = self.waiters.borrow_mut();
        let at = node.waiter_index.get() as usize;
        assert!(ptr::eq(waiters[at], node));
        waiters.swap_remove(at);
        if let Some(moved) = waiters.get(at) {
            // SAFETY: a listed node is valid until it is done, which removes it from the list.
            unsafe { &**moved }.waiter_index.set(at as u32);
        }
        self.clear_duties(node);
    }

    fn debug_assert_listed(&self, node: &Node) {
        let at = node.waiter_index.get() as usize;
        debug_assert!(ptr::eq(self.waiters.borrow()[at], node), "it waits");
    }

    /// The node's thread drives, or its operation is done: it is neither successor nor watcher.
    pub(crate) fn clear_duties(&self, node: &Node) {
        if ptr::eq(self.successor.get(), node) {
            self.successor.set(ptr::null());
        }
        if ptr::eq(self.timer_watcher.get(), node) {
            self.clear_timer_watcher();
        }
    }

    fn clear_timer_watcher(&self) {
        self.timer_watcher.set(ptr::null());
        self.watched_until_ns.set(u64::MAX);
    }

    /// Appoints a waiting caller as the next driver, preferably one that is awake. False when no
    /// caller waits.
    pub(crate) fn appoint_successor(&self) -> bool {
        self.debug_assert_driven();
        let successor = self.successor.get();
        // SAFETY: a successor is listed, hence valid.
        if let Some(successor) = unsafe { successor.as_ref() }
            && self.appoint(successor)
        {
            return true;
        }
        let waiters = self.waiters.borrow();
        let mut sleeping = None;
        for node in waiters.iter().take(64) {
            // SAFETY: a listed node is valid until it is done, which removes it from the list.
            let node = unsafe { &**node };
            match node.state.load(Ordering::Acquire) {
                BUSY => {}
                SLEEPING => sleeping = sleeping.or(Some(node)),
                _ => return self.appoint(node),
            }
        }
        sleeping.is_some_and(|node| self.appoint(node))
    }

    fn appoint(&self, node: &Node) -> bool {
        self.debug_assert_listed(node);
        let state = node.state.load(Ordering::Acquire);
        if state == BUSY {
            return false;
        }
        if state != APPOINTED && node.state.swap(APPOINTED, Ordering::AcqRel) == SLEEPING {
            self.deferred.borrow_mut().sleepers.push(&node.state);
        }
        self.successor.set(node);
        true
    }

    /// Whether a caller is appointed as the next driver.
    pub(crate) fn has_successor(&self) -> bool {
        !self.successor.get().is_null()
    }

    /// Whether there is something to do right now, other than waiting for the device.
    pub(crate) fn has_work(&self) -> bool {
        !self.ready.borrow().is_empty()
            || !self.inline_requests.borrow().is_empty()
            || !self.yielded.borrow().is_empty()
    }

    /// Whether the driver may just release the lock: no wake-up is deferred, and the keeper does
    /// all that is left (it waits for the device, or wakes at this time).
    #[inline]
    pub(crate) fn can_release_at_once(&self, keeper_awaits: bool, keeper_wakes_ns: u64) -> bool {
        !self.has_work()
            && (self.in_flight.get() == 0 || keeper_awaits)
            && !self.doorbell_pending.get()
            && !self.panicked.get()
            && self.unwatched_deadline_ns() >= keeper_wakes_ns
            && self.deferred.borrow().is_empty()
    }

    /// Whether callers or other executors' tasks are to be woken after the release.
    pub(crate) fn has_deferred_wakeups(&self) -> bool {
        self.deferred.borrow().wakes_threads()
    }

    /// Whether other executors' tasks are to be woken after the release.
    pub(crate) fn has_deferred_wakers(&self) -> bool {
        !self.deferred.borrow().wakers.is_empty()
    }

    /// Moves the deferred wake-ups out, the doorbell for new submissions among them.
    pub(crate) fn take_deferred(&self, into: &mut DeferredWakeups) {
        let mut deferred = self.deferred.borrow_mut();
        if !deferred.is_empty() {
            into.sleepers.append(&mut deferred.sleepers);
            into.wakers.append(&mut deferred.wakers);
            into.events.append(&mut deferred.events);
            into.doorbells.append(&mut deferred.doorbells);
        }
        if self.doorbell_pending.replace(false) {
            into.doorbells.extend(self.doorbell());
        }
    }

    /// Takes over the wake-ups of a worker that one of this worker's operations has visited: they
    /// are made after this worker's release. `keeper` is the word of that worker's keeper.
    pub(crate) fn carry(&self, mut visited: DeferredWakeups, keeper: *const AtomicU32) {
        self.debug_assert_driven();
        let mut deferred = self.deferred.borrow_mut();
        deferred.sleepers.append(&mut visited.sleepers);
        if visited.wake_keeper {
            deferred.sleepers.push(keeper);
        }
        deferred.wakers.append(&mut visited.wakers);
        deferred.events.append(&mut visited.events);
        deferred.doorbells.append(&mut visited.doorbells);
    }

    /// Fires the timers that are due; true if there were any.
    pub(crate) fn fire_timers(&self) -> bool {
        if self.next_deadline_ns() == u64::MAX && self.timer_watcher.get().is_null() {
            return false;
        }
        let now_ns = monotonic_ns();
        if self.watched_until_ns.get() <= now_ns {
            // The watcher is awake, or its deadline is waking it: it watches no later timer.
            self.clear_timer_watcher();
        }
        self.timers.borrow_mut().take_due(now_ns, Waker::wake)
    }

    /// The next timer's deadline; `u64::MAX` if there is none.
    pub(crate) fn next_deadline_ns(&self) -> u64 {
        self.timers.borrow().next_ns()
    }

    /// The next timer's deadline, if no caller watches that timer; else `u64::MAX`.
    pub(crate) fn unwatched_deadline_ns(&self) -> u64 {
        let next_ns = self.next_deadline_ns();
        if self.watched_until_ns.get() <= next_ns {
            u64::MAX
        } else {
            next_ns
        }
    }

    /// This node's thread sleeps until the deadline at most, for the timer's sake.
    pub(crate) fn set_timer_watcher(&self, node: &Node, deadline_ns: u64) {
        self.debug_assert_listed(node);
        debug_assert_eq!(deadline_ns, self.next_deadline_ns());
        self.timer_watcher.set(node);
        self.watched_until_ns.set(deadline_ns);
    }
}
