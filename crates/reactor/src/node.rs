//! A blocking call's operation, on the stack of the thread that waits for it.
//!
//! State of a node, and who changes it:
//! ```text
//!          owner, leaving the lock to wait          owner, before it sleeps
//!   BUSY ────────────────────────────────► WAITING ────────────────────────► SLEEPING
//!    ▲ ▲                                     │ ▲                                │
//!    │ └──── owner, with the lock ───────────┘ └── owner, before it knocks ─────┤ (timeout)
//!    │                                       │                                  │
//!    └──── owner, with the lock ─── DRIVE ◄──┴───── holder: "you drive" ────────┘
//!   any ── holder, result delivered ──► DONE
//! ```
//! BUSY: the owner holds the lock, or executes a request, or waits for the device; it comes back by itself.
//!
//! Invariants: only the holder of the worker's lock touches anything but the state; after it stored DONE it touches nothing (the frame may be
//! gone), but may wake the state's address. A future whose worker was poisoned is forgotten, not dropped: no more code of operations runs.

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
use crate::task::{Polled, Task, TaskKind, TaskVtable};

pub(crate) const BUSY: u32 = 0;
pub(crate) const WAITING: u32 = 1;
pub(crate) const SLEEPING: u32 = 2;
pub(crate) const DRIVE: u32 = 3;
pub(crate) const DONE: u32 = 4;

/// Not in the list of waiters.
pub(crate) const UNLISTED: u32 = u32::MAX;

/// The part of an operation that the worker knows.
#[repr(C)]
pub(crate) struct Node {
    pub(crate) message: Message,
    pub(crate) state: AtomicU32,
    /// Where it is in the reactor's list of waiters.
    pub(crate) listed_at: Cell<u32>,
    pub(crate) vtable: &'static TaskVtable,
    /// Of everything but the state.
    pub(crate) accesses: RaceCheck,
}

impl Node {
    /// Whether the result is there; the caller may then use it.
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

    /// The owner is back from executing or from waiting for the device, and about to knock.
    pub(crate) fn come_back(&self) {
        let _ = self
            .state
            .compare_exchange(BUSY, WAITING, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// How far an operation is. It doesn't move once it runs.
pub(crate) enum Stage<F, Fut, T> {
    Start(F),
    Running(Fut),
    Done(Result<T>),
    /// Its result was taken, or a poll is under way (or panicked).
    Empty,
}

impl<T, F: FnOnce() -> Fut, Fut: Future<Output = Result<T>>> Stage<F, Fut, T> {
    /// Polls once; starts it if it hasn't. The result stays in the stage.
    ///
    /// # Safety
    /// The caller hands out the only reference, and the stage doesn't move from the first poll to its end.
    #[inline]
    pub(crate) unsafe fn poll(
        this: *mut Self,
        reactor: &Reactor,
        context: &mut Context<'_>,
    ) -> Polled {
        // SAFETY: the caller hands out the only reference.
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
            // SAFETY: it stays where it is until it is dropped by the assignment below.
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

    /// Ends it with an error; a running future is forgotten.
    ///
    /// # Safety
    /// The caller hands out the only reference, and nobody polls it again.
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
                listed_at: Cell::new(UNLISTED),
                vtable: Self::VTABLE,
                accesses: RaceCheck::new(),
            },
            stage: UnsafeCell::new(Stage::Start(start)),
        }
    }

    unsafe fn poll(data: *const (), reactor: &Reactor, context: &mut Context<'_>) -> Polled {
        // SAFETY: the table holds this type's vtable only with this type's data, which lives until it is done.
        let this = unsafe { &*data.cast::<Self>() };
        this.node.accesses.write();
        // SAFETY: under the lock, so the only reference; pinned on its owner's stack, which leaves only when it is done.
        let polled = unsafe { Stage::poll(this.stage.get(), reactor, context) };
        if polled == Polled::Done {
            reactor.finish_node(&this.node);
        }
        polled
    }

    unsafe fn fail(data: *const (), reactor: &Reactor, error: &dyn Fn() -> Error) {
        // SAFETY: as in `poll`.
        let this = unsafe { &*data.cast::<Self>() };
        this.node.accesses.write();
        // SAFETY: under the lock; the task is removed from the table.
        unsafe { Stage::fail(this.stage.get(), error()) };
        reactor.finish_node(&this.node);
    }
}
