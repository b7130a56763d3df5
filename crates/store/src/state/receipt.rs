//! An operation learns the number of its transaction, and the next opening how far this one came.
//!
//! Numbers count from the opening on: that of an epoch says nothing in another one. Whether a
//! process that has gone had applied number `n` of its epoch is told by [`Store::predecessor`] of
//! the opening after it.
//!
//! While an operation is polled, its receipt lies in the store; between two polls it
//! is back with the operation, so no other task's transaction finds it.

use crate::recovery::Predecessor;
use crate::state::Store;
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

/// Hears which number an operation's transaction has.
pub trait Receipt {
    /// The transaction counts with the next store, if the process lives until then. Called in the
    /// middle of an apply: it may not use the store, wait or panic.
    fn decided(&self, apply: u64);

    /// The operation appends to a file, which has not changed yet, from this offset on. The same
    /// holds for it.
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

impl Store {
    /// Runs an operation. The first transaction that it applies tells `receipt` its number. Not
    /// those of other tasks, nor write-back that the operation happens to do: one that makes no
    /// other transaction, as a cached write does, tells none. Not to be nested.
    pub async fn with_receipt<F: Future>(
        &self,
        receipt: Arc<dyn Receipt + Send + Sync>,
        operation: F,
    ) -> F::Output {
        let mut operation = pin!(operation);
        let mut receipt = Some(receipt);
        poll_fn(|context| {
            let _lent = Lent::new(&self.receipt, &mut receipt);
            operation.as_mut().poll(context)
        })
        .await
    }

    /// The epoch of this opening, which its mapping has, too; of a look without recovery, that of
    /// the last opening.
    pub fn epoch(&self) -> u64 {
        self.superblock.borrow().epoch
    }

    /// An operation begins to append.
    pub(crate) fn note_append(&self, offset: u64) {
        if let Some(receipt) = self.receipt.take() {
            receipt.appends(offset);
            self.receipt.set(Some(receipt));
        }
    }

    /// The opening before this one, if all that it had applied is here: how far it came.
    pub fn predecessor(&self) -> Option<Predecessor> {
        self.predecessor.get()
    }
}
