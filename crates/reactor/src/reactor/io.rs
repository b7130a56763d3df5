//! Requests under way: a slot for each, and the future that waits for it.
//!
//! A slot is known by index and generation, which travel as the request's token; the completion
//! carries the submitter's own token again. A request that the queue accepts is *in flight*. One
//! that it hands back as `Inline`, or that a caller is to execute itself, waits for a driver that
//! executes it without the lock. One that finds the queue `Full` waits in order for a completion to
//! make room (one entry for each waiting future, so there are as many as operations submit).

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use adit_block::Completion;

use crate::reactor::Reactor;
use crate::reactor::task::TaskId;

enum Slot {
    Free,
    /// Under way; the waker of the future, if it was polled already.
    Waiting(Option<Waker>),
    Arrived(Completion),
    /// The future was dropped; the completion will be dropped, too.
    Abandoned,
}

/// All slots; recycled, so that a request allocates nothing once there were enough of them.
#[derive(Default)]
pub(crate) struct SlotTable {
    slots: Vec<Entry>,
    free: Vec<u32>,
}

struct Entry {
    generation: u32,
    /// The device's queue accepted it.
    queued: bool,
    slot: Slot,
}

impl SlotTable {
    /// Takes a slot for a request; returns its token.
    pub(crate) fn insert(&mut self) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Entry {
                generation: 1,
                queued: false,
                slot: Slot::Free,
            });
            self.free.reserve(self.slots.len());
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 requests")
        });
        let entry = &mut self.slots[index as usize];
        entry.slot = Slot::Waiting(None);
        u64::from(index) | u64::from(entry.generation) << 32
    }

    /// The device's queue accepted this request.
    pub(crate) fn set_queued(&mut self, token: u64) {
        if let Some(entry) = self.entry(token) {
            entry.queued = true;
        }
    }

    /// Whether a task for which `pick` is true waits for a request in the device's queue.
    pub(crate) fn any_queued(&self, mut pick: impl FnMut(TaskId) -> bool) -> bool {
        self.slots.iter().any(|entry| match &entry.slot {
            Slot::Waiting(Some(waker)) if entry.queued => pick(TaskId::of(waker)),
            _ => false,
        })
    }

    fn entry(&mut self, token: u64) -> Option<&mut Entry> {
        let entry = self.slots.get_mut(token as u32 as usize)?;
        (entry.generation == (token >> 32) as u32).then_some(entry)
    }

    fn slot(&mut self, token: u64) -> Option<&mut Slot> {
        self.entry(token).map(|entry| &mut entry.slot)
    }

    fn remove(&mut self, token: u64) -> Slot {
        let entry = &mut self.slots[token as u32 as usize];
        entry.generation = entry.generation.checked_add(1).unwrap_or(1);
        entry.queued = false;
        self.free.push(token as u32);
        mem::replace(&mut entry.slot, Slot::Free)
    }

    /// Puts a completion into its slot; returns the waker of the future that waits for it.
    pub(crate) fn deliver(&mut self, completion: Completion) -> Option<Waker> {
        let token = completion.request.token;
        match self.slot(token) {
            Some(slot @ Slot::Waiting(_)) => match mem::replace(slot, Slot::Arrived(completion)) {
                Slot::Waiting(waker) => waker,
                _ => unreachable!(),
            },
            Some(Slot::Abandoned) => {
                self.remove(token);
                None
            }
            _ => {
                debug_assert!(false, "a completion for a request that isn't under way");
                tracing::error!(
                    token,
                    "a completion for a request that isn't under way; ignored"
                );
                None
            }
        }
    }
}

/// A request under way; a future of its [`Completion`].
///
/// The request was submitted, or listed for a thread to execute, when this was made, so several of
/// these run side by side. If this is dropped early, the request is still executed, and its
/// completion dropped.
#[must_use = "the request is executed anyway, but its result is lost"]
pub struct Submit<'a> {
    pub(crate) reactor: &'a Reactor,
    pub(crate) token: u64,
    pub(crate) user_token: u64,
    pub(crate) taken: bool,
}

impl Future for Submit<'_> {
    type Output = Completion;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Completion> {
        let mut slots = self.reactor.slots.borrow_mut();
        let slot = slots
            .slot(self.token)
            .expect("a slot stays until its completion is taken");
        match slot {
            Slot::Waiting(waker) => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            Slot::Arrived(_) => {
                let Slot::Arrived(mut completion) = slots.remove(self.token) else {
                    unreachable!()
                };
                drop(slots);
                completion.request.token = self.user_token;
                self.taken = true;
                Poll::Ready(completion)
            }
            Slot::Free | Slot::Abandoned => unreachable!("this future has the slot"),
        }
    }
}

impl Drop for Submit<'_> {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let mut slots = self.reactor.slots.borrow_mut();
        match slots.slot(self.token) {
            Some(slot @ Slot::Waiting(_)) => *slot = Slot::Abandoned,
            Some(Slot::Arrived(_)) => {
                let arrived = slots.remove(self.token);
                drop(slots);
                drop(arrived);
            }
            _ => {}
        }
    }
}
