//! Commits as numbers, from 1 on, in the order in which they are sealed.

use adit_base::simulation::{Bug, planted};
use adit_base::sync::atomic::{AtomicU64, Ordering};

/// A place in the order of transactions, as the number of a commit: what was applied before it was
/// taken is durable once that commit is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Point(pub(crate) u64);

/// How far they are.
#[derive(Default)]
pub(crate) struct Commits {
    /// The last that was sealed.
    sealed: AtomicU64,
    /// The last that the horizon has passed, with all before it.
    durable: AtomicU64,
    /// The last whose pages are home, behind the flushed tail.
    home: AtomicU64,
}

impl Commits {
    /// Of what is applied now.
    pub(crate) fn open(&self) -> u64 {
        self.sealed.load(Ordering::Acquire) + 1
    }

    /// The last that was sealed.
    pub(crate) fn sealed(&self) -> u64 {
        self.sealed.load(Ordering::Acquire)
    }

    /// The last that is durable, as all before it are.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// The last whose pages are home.
    pub(crate) fn home(&self) -> u64 {
        self.home.load(Ordering::Acquire)
    }

    /// The open one was sealed; returns its number.
    pub(super) fn seal(&self) -> u64 {
        self.sealed.store(self.open(), Ordering::Release);
        self.sealed()
    }

    /// The horizon has passed this one.
    pub(super) fn pass(&self, number: u64) {
        assert!(
            number <= self.sealed(),
            "a commit is sealed before it is durable"
        );
        let next = number == self.durable() + 1 || planted(Bug::HorizonPassesHole);
        assert!(next, "commits become durable in their order");
        self.durable
            .store(number.max(self.durable()), Ordering::Release);
    }

    /// The flushed tail has passed this one.
    pub(crate) fn pass_home(&self, number: u64) {
        let in_order = self.home() <= number && number <= self.durable();
        assert!(in_order, "a commit is durable before its pages are home");
        self.home.store(number, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::Commits;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn commits_become_durable_and_home_in_their_order() {
        let commits = Commits::default();
        assert_eq!(
            (commits.open(), commits.durable(), commits.home()),
            (1, 0, 0)
        );
        assert_eq!((commits.seal(), commits.seal(), commits.open()), (1, 2, 3));
        let refused = |step: &dyn Fn()| catch_unwind(AssertUnwindSafe(step)).is_err();
        assert!(refused(&|| commits.pass(2)), "1 isn't durable");
        assert!(refused(&|| commits.pass_home(1)), "1 isn't durable");
        commits.pass(1);
        commits.pass_home(1);
        commits.pass(2);
        assert!(refused(&|| commits.pass(3)), "3 isn't sealed");
        assert!(refused(&|| commits.pass_home(0)), "1 is home");
        assert_eq!(
            (commits.sealed(), commits.durable(), commits.home()),
            (2, 2, 1)
        );
    }
}
