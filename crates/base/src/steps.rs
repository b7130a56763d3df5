//! Counts the work of a turn, for tests.
//!
//! A session chooses the number of its locks, names and extents, so it could choose how long others
//! wait. Each loop over such things gives way or has a bound. A *step* is one round of such a loop,
//! one visited page of metadata, or one copied page of data; a *turn* is work without service to
//! others: one poll of a task, or one message that a poller begins. Only a build with debug
//! assertions counts.

#[cfg(debug_assertions)]
mod counting {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};

    thread_local! {
        static OF_TURN: Cell<usize> = const { Cell::new(0) };
    }

    static MOST: AtomicUsize = AtomicUsize::new(0);

    pub(super) fn note(steps: usize) {
        OF_TURN.set(OF_TURN.get() + steps);
    }

    pub(super) fn end_turn() {
        let steps = OF_TURN.take();
        if steps > MOST.load(Ordering::Relaxed) {
            MOST.fetch_max(steps, Ordering::Relaxed);
        }
    }

    pub(super) fn take_most() -> usize {
        MOST.swap(0, Ordering::Relaxed)
    }
}

/// Adds steps to the calling thread's turn.
#[inline]
pub fn note(steps: usize) {
    #[cfg(debug_assertions)]
    counting::note(steps);
    #[cfg(not(debug_assertions))]
    let _ = steps;
}

/// The calling thread's turn is over.
#[inline]
pub fn end_turn() {
    #[cfg(debug_assertions)]
    counting::end_turn();
}

/// The most steps of a turn, of any thread of this process since the last call. None: this build
/// doesn't count.
pub fn take_most() -> Option<usize> {
    #[cfg(debug_assertions)]
    return Some(counting::take_most());
    #[cfg(not(debug_assertions))]
    None
}

#[cfg(all(test, debug_assertions))]
mod tests {
    #[test]
    fn the_longest_turn_counts_and_steps_of_several_turns_do_not_add_up() {
        super::take_most();
        for steps in [3, 7, 2] {
            super::note(steps);
            super::note(1);
            super::end_turn();
        }
        super::end_turn();
        assert_eq!(super::take_most(), Some(8));
        assert_eq!(super::take_most(), Some(0));
    }
}
