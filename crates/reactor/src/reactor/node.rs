//! A blocking call's operation, on the stack of the thread that waits for it.
//!
//! The states of a node, and the functions that change them:
//! ```text
//!        leave (Park), perform_unlocked              park
//!   BUSY ──────────────────────────────► WAITING ─────────────► SLEEPING
//!    ▲  ▲                                 │ ▲ │ ▲                  │  │
//!    │  └──── DriverRole::begin ──────────┘ │ │ └─ park: deadline ─┘  │
//!    │                            take_over │ │ appoint               │
//!    │                                      │ ▼                       │
//!    └─────── DriverRole::begin ───────── APPOINTED ◄── appoint ──────┘
//!
//!   any ── complete_node ──► DONE
//! ```
//! The driver appoints and completes; the owner, the thread that made the call, does the rest.
//! BUSY: the owner is the driver, executes a request or waits for the device, and comes back by
//! itself. `submit_through_inbox` begins with WAITING.
//!
//! Invariants: only the driver touches anything but the state. After it stored DONE it touches
//! nothing of the node, whose frame may be gone, but it may wake the state's address. The future of
//! an operation on a poisoned worker is forgotten, not dropped: no code of operations runs any
//! more.

use std::cell::{Cell, UnsafeCell};
use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr;
use std::task::{Context, Poll};

use adit_base::sync::RaceCheck;
use adit_base::sync::atomic::{AtomicU32, Ordering};
use adit_base::{Error, Result};

use crate::lock::{Message, MessageKind};
use crate::reactor::Reactor;
use crate::reactor::task::{Polled, Task, TaskKind, TaskVtable};

pub(crate) const BUSY: u32 = 0;
pub(crate) const WAITING: u32 = 1;
pub(crate) const SLEEPING: u32 = 2;
pub(crate) const APPOINTED: u32 = 3;
pub(crate) const DONE: u32 = 4;

/// The index of a node that is not in the list of waiters.
pub(crate) const NOT_LISTED: u32 = u32::MAX;

/// The part of an operation that does not depend on its type.
#[repr(C)]
pub(crate) struct Node {
    pub(crate) message: Message,
    pub(crate) state: AtomicU32,
    /// Its index in the reactor's list of waiters.
    pub(crate) waiter_index: Cell<u32>,
    pub(crate) vtable: &'static TaskVtable,
    /// Accesses to everything but the state.
    pub(crate) accesses: RaceCheck,
}

impl Node {
    /// Whether the result is in place, for the owner to use.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.state.load(Ordering::Acquire) == DONE
    }

    pub(crate) fn task(&self) -> Task {
        Task {
            vtable: self.vtable,
            data: ptr::from_ref(self).cast(),
        }
    }

    /// Changes the state if it is `from`; true if it did.
    pub(crate) fn change_state(&self, from: u32, to: u32) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

/// The stage of an operation. It doesn't move once it runs.
pub(crate) enum Stage<F, Fut, T> {
    Start(F),
    Running(Fut),
    Done(Result<T>),
    /// The result was taken, or a poll is under way (or panicked).
    Empty,
}

impl<T, F: FnOnce() -> Fut, Fut: Future<Output = Result<T>>> Stage<F, Fut, T> {
    /// Polls the operation once, and starts it before if needed. The result stays in the stage.
    ///
    /// # Safety
    /// The caller has the only reference, and the stage doesn't move from the first poll to its
    /// end.
    #[inline]
    pub(crate) unsafe fn poll(
        this: *mut Self,
        reactor: &Reactor,
        context: &mut Context<'_>,
    ) -> Polled {
        // SAFETY: by the caller's word.
        let stage = unsafe { &mut *this };
        let polled = catch_unwind(AssertUnwindSafe(|| {
            if let Stage::Start(_) = stage {
                let Stage::Start(start) = mem::replace(stage, Stage::Empty) else {
                    unreachable!()
                };
                *stage = Stage::Running(start());
            }
            let Stage::Running(future) = stage else {
                unreachable!("polled after its end")
            };
            // SAFETY: the future stays here until the assignment below drops it.
            match unsafe { Pin::new_unchecked(future) }.poll(context) {
                Poll::Ready(result) => {
                    *stage = Stage::Done(result);
                    Polled::Done
                }
                Poll::Pending => Polled::Pending,
            }
        }));
        polled.unwrap_or_else(|panic| {
            reactor.note_panic(&*panic);
            Polled::Panicked
        })
    }

    /// Ends the operation with an error; a running future is forgotten.
    ///
    /// # Safety
    /// The caller has the only reference, and the stage is not polled again.
    pub(crate) unsafe fn fail(this: *mut Self, error: Error) {
        // SAFETY: valid; a running future is deliberately not dropped, see the header.
        unsafe {
            if let Stage::Start(_) = &*this {
                *this = Stage::Done(Err(error));
            } else {
                ptr::write(this, Stage::Done(Err(error)));
            }
        }
    }
}

/// A blocking call's operation.
#[repr(C)]
pub(crate) struct StackOperation<F, Fut, T> {
    pub(crate) node: Node,
    pub(crate) stage: UnsafeCell<Stage<F, Fut, T>>,
}

impl<T, F: FnOnce() -> Fut, Fut: Future<Output = Result<T>>> StackOperation<F, Fut, T> {
    const VTABLE: &'static TaskVtable = &TaskVtable {
        kind: TaskKind::Stack,
        poll: Self::poll,
        fail: Self::fail,
        drop_future: |_, _| unreachable!("a worker ends after its callers"),
    };

    pub(crate) fn new(start: F) -> Self {
        StackOperation {
            node: Node {
                message: Message::new(MessageKind::Node),
                state: AtomicU32::new(BUSY),
                waiter_index: Cell::new(NOT_LISTED),
                vtable: Self::VTABLE,
                accesses: RaceCheck::new(),
            },
            stage: UnsafeCell::new(Stage::Start(start)),
        }
    }

    unsafe fn poll(data: *const (), reactor: &Reactor, context: &mut Context<'_>) -> Polled {
        // SAFETY: the table has this vtable only with data of this type, which lives until it is
        // done.
        let this = unsafe { &*data.cast::<Self>() };
        this.node.accesses.write();
        // SAFETY: under the lock, so the only reference; pinned on its owner's stack, which stays
        // until it is done.
        let polled = unsafe { Stage::poll(this.stage.get(), reactor, context) };
        if polled == Polled::Done {
            reactor.complete_node(&this.node);
        }
        polled
    }

    unsafe fn fail(data: *const (), reactor: &Reactor, error: &dyn Fn() -> Error) {
        // SAFETY: as in `poll`.
        let this = unsafe { &*data.cast::<Self>() };
        this.node.accesses.write();
        // SAFETY: under the lock; the task is removed from the table.
        unsafe { Stage::fail(this.stage.get(), error()) };
        reactor.complete_node(&this.node);
    }
}
