//! The worker's lock and its inbox, and why no work is forgotten.
//!
//! The lock is one word: FREE, HELD, or HELD with NOTIFIED. No thread blocks on it:
//! `acquire_or_notify` either takes it or sets NOTIFIED, and its holder, the *driver*, can't miss
//! that, since `try_release` succeeds only without NOTIFIED. All transitions are on this one word,
//! hence totally ordered.
//!
//! No lost wake-up. *Work* is a message in the inbox, an arrival (an executed request, a wake-up),
//! a ready task, an inline request, a completion to reap, a timer. Claim: when the lock is free and
//! there is work, some thread that is awake (or being woken) will call `acquire_or_notify`. By
//! cases:
//! 1. Work of other threads (a message, an arrival) is published *before* they notify. If that took
//!    the lock, the notifier does the work. If not, NOTIFIED is set while the lock is held, so this
//!    driver's release fails and it does the work (`take_notification` acquires).
//! 2. A driver that leaves work appoints a successor before it releases: a waiting caller (its
//!    state becomes APPOINTED) or the keeper (its word becomes ARMED). An appointed caller sets its
//!    state back to WAITING and *then* notifies: either it gets the lock, or the present driver
//!    looks again, finds it WAITING, and appoints again. The keeper does the same with its word.
//! 3. If another driver finishes an appointed caller's operation, that driver revokes the
//!    appointment, and leaves by rule 2.
//! 4. A thread that left to execute a request or to wait for the device notifies when it returns.
//!    Meanwhile its state, BUSY, keeps it from being appointed. Before it leaves to execute while
//!    the queue has requests and no thread waits for the device, it appoints by rule 2.
//! 5. The next timer has a *watcher*: a waiting caller or the keeper, which sleeps until then at
//!    most, and notifies when it wakes. When the watcher takes the lock, or its operation is done,
//!    the driver clears the duty, and finds a new watcher when it leaves.
//! 6. A thread that polls a handle in a loop comes back until the operation is done, so it leaves
//!    work without arming the keeper, but only work that no other thread relies on. All others
//!    appoint when they leave, or notify when they find the lock held. So if a poller was notified,
//!    its operation is done, or it leaves a timer, rules 2 and 5 hold for it as for any other.
//! 7. While another thread executes a caller's request, the caller leaves the inline requests of
//!    the worker's own tasks (`Reactor::take_inline_request`) to the keeper, not to a waiting
//!    caller. If there is no keeper, that other thread does them when it comes back by rule 4.
//! 8. A wake-up by a thread that doesn't drive, and an operation of another worker's, are work of
//!    other threads by rule 1. If the thread drives another worker, it notifies after that one's
//!    release: the deferred wake-ups of a driver are delivered whatever step it takes, and only
//!    with `Return`, `Yield` or `StepAside` are there any of these. Until then the thread is the
//!    one that is awake.
//! 9. A thread that visits a worker (`driver/visit.rs`) holds its lock as a driver that polls
//!    nothing. It takes messages in, and leaves by rules 2 and 5, but where rule 2 has the keeper
//!    it notifies itself, as in rule 8. The wake-ups that it owes for its appointments wait for the
//!    release of the worker from which it came; until then it is awake.
//! 10. A thread that steps aside, and has no wake-ups to deliver, is counted until it comes back,
//!     within some µs. A driver that leaves work to it calls it, so that it comes back at once.
//!     The thread uncounts itself before it notifies: a driver that has seen it counted either releases
//!     the lock before that, or is notified, and finds another successor.
//!
//! A caller goes to sleep by a compare-and-swap from WAITING to SLEEPING. Every change to APPOINTED
//! or DONE is a swap that returns SLEEPING to exactly one driver, which then owes the futex wake
//! and makes it after its release. States: `node.rs`.

use std::ptr;
use std::sync::PoisonError;

use adit_base::held::HoldClock;
use adit_base::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use adit_base::sync::{Mutex, MutexGuard};

const FREE: u32 = 0;
const HELD: u32 = 1;
const NOTIFIED: u32 = 2;

/// The lock word, a benchmark's clock of its holder, and two hints: whether the leader of a commit
/// waits, and whether the holder only visits.
#[repr(align(64))]
pub(crate) struct DriverLock(AtomicU32, HoldClock, AtomicBool, AtomicBool);

impl DriverLock {
    pub(crate) fn new() -> Self {
        DriverLock(
            AtomicU32::new(FREE),
            HoldClock::default(),
            AtomicBool::new(false),
            AtomicBool::new(false),
        )
    }

    /// Takes the lock if it is free; otherwise does nothing.
    #[inline]
    pub(crate) fn try_acquire(&self) -> bool {
        let acquired = self
            .0
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        if acquired {
            self.1.acquired();
        }
        acquired
    }

    /// Takes the lock if it is free; otherwise notifies its holder. In both cases NOTIFIED is set,
    /// so that the driver processes the inbox.
    pub(crate) fn acquire_or_notify(&self) -> bool {
        let acquired = self.0.fetch_or(HELD | NOTIFIED, Ordering::AcqRel) & HELD == 0;
        if acquired {
            self.1.acquired();
        }
        acquired
    }

    /// True if the holder was notified since the last call.
    #[inline]
    pub(crate) fn take_notification(&self) -> bool {
        self.debug_assert_held();
        self.is_notified() && {
            self.0.fetch_and(!NOTIFIED, Ordering::Acquire);
            true
        }
    }

    /// True if the holder was notified; a later call takes that.
    #[inline]
    pub(crate) fn is_notified(&self) -> bool {
        self.0.load(Ordering::Relaxed) & NOTIFIED != 0
    }

    /// For the holder: releases the lock unless it was notified.
    #[inline]
    pub(crate) fn try_release(&self) -> bool {
        self.debug_assert_held();
        self.1.before_release();
        self.0
            .compare_exchange(HELD, FREE, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    }

    /// Some thread holds the lock. (A model checks that by `RaceCheck`: a load here would hide
    /// orders of the steps that follow.)
    #[inline]
    pub(crate) fn debug_assert_held(&self) {
        debug_assert!(cfg!(loom) || !self.looks_free(), "the lock is held");
    }

    /// The leader of a commit waits for this lock, or does so no more.
    pub(crate) fn set_wanted(&self, wanted: bool) {
        self.2.store(wanted, Ordering::Relaxed);
    }

    /// Whether a leader waits: the driver steps aside between two polls.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.2.load(Ordering::Relaxed)
    }

    /// The holder visits: it has the lock for a few µs. Or it is about to release it.
    pub(crate) fn set_visited(&self, visited: bool) {
        self.3.store(visited, Ordering::Relaxed);
    }

    /// Whether the holder only visits: the lock is worth a few turns.
    pub(crate) fn is_visited(&self) -> bool {
        self.3.load(Ordering::Relaxed)
    }

    /// Whether the lock was free a moment ago.
    pub(crate) fn looks_free(&self) -> bool {
        self.0.load(Ordering::Relaxed) & HELD == 0
    }
}

/// The link of a message; the first field of every type that goes through the inbox.
#[repr(C)]
pub(crate) struct Message {
    next: AtomicPtr<Message>,
    /// The type that the link is embedded in.
    pub(crate) kind: MessageKind,
}

/// The types that messages are embedded in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// A `Node` on a waiting thread's stack.
    Node,
    /// A `PooledOperation` that a handle shares.
    Pooled,
}

impl Message {
    pub(crate) fn new(kind: MessageKind) -> Self {
        Message {
            next: AtomicPtr::new(ptr::null_mut()),
            kind,
        }
    }
}

/// A lock-free stack that is only ever emptied whole, so it has no ABA problem. Messages come out
/// in the order in which they were pushed.
pub(crate) struct Inbox(AtomicPtr<Message>);

impl Inbox {
    pub(crate) fn new() -> Self {
        Inbox(AtomicPtr::new(ptr::null_mut()))
    }

    /// Adds a message.
    ///
    /// # Safety
    /// The message is in no inbox, and stays valid until the driver has taken it out and is through
    /// with it.
    pub(crate) unsafe fn push(&self, message: *mut Message) {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            // SAFETY: valid and unshared until the exchange below succeeds.
            unsafe { (*message).next.store(head, Ordering::Relaxed) };
            match self
                .0
                .compare_exchange_weak(head, message, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes all messages out and calls `each` with them, oldest first. For the driver.
    pub(crate) fn drain(&self, mut each: impl FnMut(*mut Message)) {
        let mut newest = self.0.swap(ptr::null_mut(), Ordering::Acquire);
        let mut oldest: *mut Message = ptr::null_mut();
        while !newest.is_null() {
            // SAFETY: messages stay valid until the driver, which we are, is through with them.
            let older = unsafe { (*newest).next.swap(oldest, Ordering::Relaxed) };
            oldest = newest;
            newest = older;
        }
        while !oldest.is_null() {
            let message = oldest;
            // SAFETY: valid until the driver is through with it; read before `each`, after which the
            // message may be gone.
            oldest = unsafe { (*message).next.load(Ordering::Relaxed) };
            each(message);
        }
    }
}

/// Locks a mutex that protects single values only: they are whole even if a holder panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
