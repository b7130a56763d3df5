//! A sequence count, for memory that one writer at a time changes. Readers write nothing: they read
//! the count before and after, and believe the bytes if it is unchanged.
//!
//! ```text
//! writer:  begin (odd) ─ change ─ end           or  step: what was there doesn't count any more
//! reader:  read: even? ─ read ─ is_still?           else: ask somebody who knows
//! ```
//! The memory's own accesses may be Relaxed, or a copy that another process believes only then.

use super::atomic::{AtomicU64, Ordering, fence};

/// How often something changed, twice; odd while it changes. The layout is that of the number:
/// processes share it.
#[repr(transparent)]
#[derive(Default, Debug)]
pub struct SeqCount(AtomicU64);

impl SeqCount {
    /// A change begins. One writer at a time.
    #[inline]
    pub fn begin(&self) {
        let count = self.0.load(Ordering::Relaxed);
        assert!(count.is_multiple_of(2), "a change within another");
        self.0.store(count.wrapping_add(1), Ordering::Relaxed);
        // Nothing changes before a reader can see that.
        fence(Ordering::Release);
    }

    /// It has ended.
    #[inline]
    pub fn end(&self) {
        let count = self.0.load(Ordering::Relaxed);
        assert!(!count.is_multiple_of(2), "no change has begun");
        self.0.store(count.wrapping_add(1), Ordering::Release);
    }

    /// Invalidates the reads of all readers, who then see the writer's earlier stores.
    #[inline]
    pub fn step(&self) {
        let count = self.0.load(Ordering::Relaxed);
        self.0.store(count.wrapping_add(2), Ordering::Release);
        // Nothing changes before a reader can see that.
        fence(Ordering::Release);
    }

    /// Before reading; none while it changes.
    #[inline]
    pub fn read(&self) -> Option<u64> {
        let count = self.0.load(Ordering::Acquire);
        count.is_multiple_of(2).then_some(count)
    }

    /// True if the bytes read since [`SeqCount::read`] count.
    #[inline]
    pub fn is_still(&self, count: u64) -> bool {
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == count
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::model::Wrong::{Answers, Relaxed, Skipped};
    use crate::sync::model::{Bug, check, spawn};
    use std::sync::Arc;

    /// Two words, which change together.
    #[derive(Default)]
    struct Pair {
        count: SeqCount,
        words: [AtomicU64; 2],
    }

    impl Pair {
        fn set(&self, value: u64) {
            for word in &self.words {
                word.store(value, Ordering::Relaxed);
            }
        }

        /// The values, and their count.
        fn read(&self) -> Option<(u64, [u64; 2])> {
            let count = self.count.read()?;
            let words = [0, 1].map(|at| self.words[at].load(Ordering::Relaxed));
            self.count.is_still(count).then_some((count, words))
        }
    }

    const FILE: &str = "base/src/sync/seq_count.rs";
    const CHANGED: &str =
        "sync::seq_count::models::what_is_believed_is_that_of_the_count_that_was_read";
    const MOVED: &str =
        "sync::seq_count::models::what_comes_behind_a_step_is_not_believed_to_be_before_it";

    #[test]
    fn what_is_believed_is_that_of_the_count_that_was_read() {
        check(3, || {
            let pair = Arc::new(Pair::default());
            let reader = pair.clone();
            let thread = spawn(move || {
                if let Some((count, words)) = reader.read() {
                    assert_eq!(words, [count / 2; 2], "at {count}");
                }
            });
            for value in 1..3 {
                pair.count.begin();
                pair.set(value);
                pair.count.end();
            }
            thread.join().expect("the reader");
        });
    }

    #[test]
    fn what_comes_behind_a_step_is_not_believed_to_be_before_it() {
        check(3, || {
            let pair = Arc::new(Pair::default());
            let reader = pair.clone();
            let thread = spawn(move || {
                if let Some((0, words)) = reader.read() {
                    assert_eq!(words, [0; 2]);
                }
            });
            pair.count.step();
            pair.set(9);
            thread.join().expect("the reader");
        });
    }

    #[test]
    fn planted_a_change_that_begins_unseen_is_found() {
        Bug::planted(Skipped, FILE, "pub fn begin", "self.0.store").found_by(CHANGED);
    }

    #[test]
    fn planted_a_change_that_ends_without_order_is_found() {
        Bug::planted(Relaxed, FILE, "pub fn end", "self.0.store").found_by(CHANGED);
    }

    #[test]
    fn planted_a_step_that_is_not_taken_is_found() {
        Bug::planted(Skipped, FILE, "pub fn step", "self.0.store").found_by(MOVED);
    }

    #[test]
    fn planted_a_count_that_is_read_without_order_is_found() {
        Bug::planted(Relaxed, FILE, "pub fn read", "self.0.load").found_by(CHANGED);
    }

    #[test]
    fn planted_a_count_that_is_not_looked_at_again_is_found() {
        Bug::planted(Answers(0), FILE, "pub fn is_still", "self.0.load").found_by(CHANGED);
    }
}
