//! Runs that were freed and may not be used yet.
//!
//! Invariant: a run is given out again when its free is durable and, if redo records may name its
//! pages, below the flushed tail.

use crate::journal::Commits;
use crate::metadata::space::Run;
use adit_base::simulation::{Bug, planted};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// A freed run that is not to be used yet.
struct PendingFree {
    run: Run,
    /// The commit that frees it.
    commit: u64,
    /// True if the flushed tail must pass it, and not only the horizon.
    journaled: bool,
}

/// All of them, in the order of their transactions.
#[derive(Default)]
pub(crate) struct PendingFrees {
    frees: RefCell<VecDeque<PendingFree>>,
    /// Pages of all of them.
    pages: Cell<u64>,
    /// The last durable commit, and the last one at home, as of the last look.
    looked_at: Cell<(u64, u64)>,
}

impl PendingFrees {
    /// The open transaction frees a run; it becomes this commit's.
    pub(crate) fn add(&self, run: Run, commit: u64, journaled: bool) {
        self.pages.set(self.pages.get() + u64::from(run.pages));
        self.frees.borrow_mut().push_back(PendingFree {
            run,
            commit,
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

    /// Hands those to `release` that may be used again.
    pub(crate) fn release(&self, commits: &Commits, mut release: impl FnMut(Run)) {
        let bounds = (commits.durable(), commits.home());
        if self.looked_at.replace(bounds) == bounds && !planted(Bug::EarlyReuse) {
            return;
        }
        self.frees.borrow_mut().retain(|free| {
            let bound = if free.journaled { bounds.1 } else { bounds.0 };
            let usable = free.commit <= bound || planted(Bug::EarlyReuse);
            if usable {
                release(free.run);
                self.pages.set(self.pages.get() - u64::from(free.run.pages));
            }
            !usable
        });
    }
}
