//! Runs that were freed and may not be used yet.
//!
//! Invariant: a run is given out again when its free is below the horizon and, if redo records may
//! name its pages, below the flushed tail.

use crate::metadata::space::Run;
use adit_base::simulation::{Bug, planted};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// A freed run that is not to be used yet.
struct PendingFree {
    run: Run,
    /// End of the transaction that frees it; `u64::MAX` while that one is open.
    lsn: u64,
    /// True if the flushed tail must pass it, and not only the horizon.
    journaled: bool,
}

/// All of them, in the order of their transactions.
#[derive(Default)]
pub(crate) struct PendingFrees {
    frees: RefCell<VecDeque<PendingFree>>,
    /// Pages of all of them.
    pages: Cell<u64>,
}

impl PendingFrees {
    /// The open transaction frees a run.
    pub(crate) fn add(&self, run: Run, journaled: bool) {
        self.pages.set(self.pages.get() + u64::from(run.pages));
        self.frees.borrow_mut().push_back(PendingFree {
            run,
            lsn: u64::MAX,
            journaled,
        });
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.frees.borrow().len()
    }

    /// How many pages they have.
    pub(crate) fn pages(&self) -> u64 {
        self.pages.get()
    }

    /// The open transaction was sealed; it ends at `end`.
    pub(super) fn seal(&self, end: u64) {
        let mut frees = self.frees.borrow_mut();
        let open = frees.iter_mut().rev();
        for free in open.take_while(|free| free.lsn == u64::MAX) {
            free.lsn = end;
        }
    }

    /// Hands those to `release` that may be used again.
    pub(crate) fn release(&self, horizon: u64, tail: u64, mut release: impl FnMut(Run)) {
        self.frees.borrow_mut().retain(|free| {
            let bound = if free.journaled { tail } else { horizon };
            let usable = free.lsn <= bound || planted(Bug::EarlyReuse);
            if usable {
                release(free.run);
                self.pages.set(self.pages.get() - u64::from(free.run.pages));
            }
            !usable
        });
    }
}
