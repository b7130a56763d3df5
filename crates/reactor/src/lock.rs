//! The worker's lock and its inbox, and why no work is ever left lying.
//!
//! The lock is one word: free, held, held with a knock. Nobody blocks on it: `knock` either takes it or leaves a mark that the holder can't
//! miss, since `try_release` succeeds only while there is no mark. All transitions are on this one word, hence totally ordered.
//!
//! No lost wake-up. *Work* is a message in the inbox, an arrived completion, a ready task, an inline request, a completion to collect, a
//! timer. Claim: when the lock is free and there is work, some thread that is awake (or being woken) will knock. By cases:
//! 1. Work from outside (a message, a completion) is published *before* a knock. If the knock took the lock, the knocker does the work. If
//!    not, the mark is set while the lock is held, so this holder's release fails and it takes the work in (`take_knock` acquires).
//! 2. Work found by a holder that leaves: before the release it names a successor: a waiting thread (its state becomes DRIVE) or the keeper
//!    (its word becomes ARMED). A named waiter sets its state back to WAITING and *then* knocks: either it gets the lock, or the present
//!    holder must look again, sees it WAITING, and names a successor again. The keeper does the same with its word.
//! 3. A named waiter whose operation is finished by somebody else is unnamed by that holder, which then leaves by rule 2.
//! 4. A thread that left to execute a request, or to wait for the device, knocks when it returns, and its state tells holders that it is no
//!    candidate for rule 2 meanwhile. Before it leaves to execute while the device has requests that nobody waits for, it names by rule 2.
//! 5. The next timer has a *guard*: a waiting thread or the keeper that sleeps until then at most. A guard that wakes knocks; one that takes
//!    the lock, or whose operation is done, is forgotten by that holder, who then leaves by finding a new one.
//! 6. Who polls a handle by hand is a driver that comes back until the operation is done, so rule 2's keeper is spared; but only for what
//!    nobody else relies on. Everybody else names a driver when they leave, or knock when they find the lock held; so a holder who polls
//!    by hand and was knocked at, or whose operation is done, or who leaves a timer, goes by rules 2 and 5 like any other.
//! 7. A caller whose request another thread executes leaves those of the worker's own tasks (`Reactor::take_request`) to the keeper, not to
//!    a waiter. If there is none, to that thread, which comes back by rule 4.
//!
//! A waiter that goes to sleep does so by a compare-and-swap from WAITING to SLEEPING; every change to DRIVE or DONE is a swap that returns
//! SLEEPING to exactly one holder, who then owes the futex wake and pays it after its release. States: `node.rs`.

use std::ptr;

use adit_base::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
const KNOCK: u32 = 2;

/// The lock word.
#[repr(align(64))]
pub(crate) struct DriverLock(AtomicU32);

impl DriverLock {
    pub(crate) fn new() -> Self {
        DriverLock(AtomicU32::new(FREE))
    }

    /// Takes the lock if it is free; leaves no mark otherwise.
    #[inline]
    pub(crate) fn try_acquire(&self) -> bool {
        self.0
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes the lock (with a mark, so that the taker looks around), or marks it for its holder.
    pub(crate) fn knock(&self) -> bool {
        self.0.fetch_or(HELD | KNOCK, Ordering::AcqRel) & HELD == 0
    }

    /// For the holder: whether somebody knocked since the last call.
    #[inline]
    pub(crate) fn take_knock(&self) -> bool {
        self.0.load(Ordering::Relaxed) & KNOCK != 0 && {
            self.0.fetch_and(!KNOCK, Ordering::Acquire);
            true
        }
    }

    /// For the holder: gives the lock back unless somebody knocked.
    #[inline]
    pub(crate) fn try_release(&self) -> bool {
        self.0
            .compare_exchange(HELD, FREE, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    }

    /// Whether it was free a moment ago.
    pub(crate) fn looks_free(&self) -> bool {
        self.0.load(Ordering::Relaxed) & HELD == 0
    }
}

/// A message's link; the first field of everything that goes through the inbox.
#[repr(C)]
pub(crate) struct Message {
    next: AtomicPtr<Message>,
    /// What the link is embedded in.
    pub(crate) kind: MessageKind,
}

/// What a message is embedded in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// A `Node` on a waiting thread's stack.
    Node,
    /// A `Cell` that a handle shares.
    Cell,
}

impl Message {
    pub(crate) fn new(kind: MessageKind) -> Self {
        Message {
            next: AtomicPtr::new(ptr::null_mut()),
            kind,
        }
    }
}

/// A lock-free stack that is only ever emptied whole, so it knows no ABA problem; emptied in the order of arrival.
pub(crate) struct Inbox(AtomicPtr<Message>);

impl Inbox {
    pub(crate) fn new() -> Self {
        Inbox(AtomicPtr::new(ptr::null_mut()))
    }

    /// Adds a message.
    ///
    /// # Safety
    /// The message is in no inbox, and stays valid until the lock's holder has taken it out and is through with it.
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

    /// Takes all messages out and calls `each` with them, oldest first. For the lock's holder.
    pub(crate) fn drain(&self, mut each: impl FnMut(*mut Message)) {
        let mut newest = self.0.swap(ptr::null_mut(), Ordering::Acquire);
        let mut oldest: *mut Message = ptr::null_mut();
        while !newest.is_null() {
            // SAFETY: messages stay valid until the holder, which we are, is through with them.
            let older = unsafe { (*newest).next.swap(oldest, Ordering::Relaxed) };
            oldest = newest;
            newest = older;
        }
        while !oldest.is_null() {
            let message = oldest;
            // SAFETY: as above; read before `each`, after which the message may be gone.
            oldest = unsafe { (*message).next.load(Ordering::Relaxed) };
            each(message);
        }
    }
}
