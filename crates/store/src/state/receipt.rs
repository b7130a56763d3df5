//! Tells an operation the number of its transaction, and the next opening the progress of this one.
//!
//! Each partition counts its transactions from the opening on, and has its own number in the highest
//! bits: a number of an epoch says nothing in another one. [`Store::predecessor`] of the next
//! opening tells whether a dead process had applied number `n` of its epoch.
//!
//! While an operation is polled, its receipt lies in the store; between two polls it
//! is back with the operation, so no other task's transaction finds it.

use crate::recovery::Predecessor;
use crate::state::Store;
use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Takes the number of an operation's transaction.
pub trait Receipt {
    /// The transaction counts with the next store, if the process lives until then
    /// ([`AppliedUpTo::has`](crate::AppliedUpTo::has)). Called in the middle of an apply: it may
    /// not use the store, wait or panic.
    fn decided(&self, apply: u64);

    /// The operation appends to a file, not changed yet, from this offset on. It may not use the
    /// store, wait or panic.
    fn appends(&self, offset: u64) {
        let _ = offset;
    }
}

type Shared = Arc<dyn Receipt + Send + Sync>;

/// A receipt in the place where a transaction finds it, for one poll.
struct Lent<'a> {
    place: &'a Cell<Option<Shared>>,
    owner: &'a mut Option<Shared>,
}

impl<'a> Lent<'a> {
    fn new(place: &'a Cell<Option<Shared>>, owner: &'a mut Option<Shared>) -> Lent<'a> {
        let before = place.replace(owner.take());
        debug_assert!(before.is_none(), "an operation has two receipts");
        Lent { place, owner }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        *self.owner = self.place.take();
    }
}

/// See [`Store::with_receipt`]. As small as the operation can be: it is moved before it runs.
#[must_use = "it runs when it is awaited"]
pub struct WithReceipt<'a, F> {
    place: &'a Cell<Option<Shared>>,
    receipt: Option<Shared>,
    operation: F,
}

impl<F: Future> Future for WithReceipt<'_, F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: `operation` is not moved out of it; nothing pins the other fields.
        let this = unsafe { self.get_unchecked_mut() };
        let _lent = Lent::new(this.place, &mut this.receipt);
        // SAFETY: pinned with `self`.
        unsafe { Pin::new_unchecked(&mut this.operation) }.poll(context)
    }
}

impl<F> std::fmt::Debug for WithReceipt<'_, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WithReceipt")
    }
}

impl Store {
    /// Runs an operation. The first transaction that it applies tells `receipt` its number. Not
    /// those of other tasks, nor write-back that the operation happens to do: one that makes no
    /// other transaction, as a cached write does, tells none. Not to be nested.
    #[inline]
    pub fn with_receipt<F: Future>(
        &self,
        receipt: Arc<dyn Receipt + Send + Sync>,
        operation: F,
    ) -> WithReceipt<'_, F> {
        WithReceipt {
            place: &self.receipt,
            receipt: Some(receipt),
            operation,
        }
    }

    /// Runs work of an operation for other operations: its transactions leave the receipt alone.
    pub async fn without_receipt<F: Future>(&self, others: F) -> F::Output {
        let mut others = std::pin::pin!(others);
        std::future::poll_fn(|context| {
            let own = self.receipt.take();
            let polled = others.as_mut().poll(context);
            self.receipt.set(own);
            polled
        })
        .await
    }

    /// The epoch of this opening, which its mapping has, too; of a look without recovery, that of
    /// the last opening.
    pub fn epoch(&self) -> u64 {
        self.whole.epoch
    }

    /// An operation begins to append.
    pub(crate) fn note_append(&self, offset: u64) {
        if let Some(receipt) = self.receipt.take() {
            receipt.appends(offset);
            self.receipt.set(Some(receipt));
        }
    }

    /// The opening before this one and its progress, if all of its transactions are here.
    pub fn predecessor(&self) -> Option<Predecessor> {
        self.lead.as_ref()?.predecessor.get()
    }
}
