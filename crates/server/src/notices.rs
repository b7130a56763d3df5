//! Messages for the log that a peer can provoke: a few at once, then one a second.
//!
//! Invariant: a message that is left out is counted in the next one.

use adit_base::clock::monotonic_ns;
use std::sync::{Mutex, PoisonError};

/// Messages at once.
const BURST: u64 = 20;
/// One more in so long.
const INTERVAL_NS: u64 = 1_000_000_000;

/// Messages of one kind.
#[derive(Debug)]
pub(crate) struct Notices(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Messages that may be said now.
    left: u64,
    /// When the last one was added to those.
    added_ns: u64,
    /// Messages that were not said since the last one.
    omitted: u64,
}

/// Connections and sessions that are refused.
pub(crate) static REFUSALS: Notices = Notices::new();
/// Sessions that are ended.
pub(crate) static ENDS: Notices = Notices::new();

impl Notices {
    const fn new() -> Notices {
        Notices(Mutex::new(State {
            left: BURST,
            added_ns: 0,
            omitted: 0,
        }))
    }

    /// May a message be said? Then how many were left out before it.
    pub(crate) fn next(&self) -> Option<u64> {
        self.at(monotonic_ns())
    }

    fn at(&self, now_ns: u64) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let added = now_ns.saturating_sub(state.added_ns) / INTERVAL_NS;
        if added > 0 {
            state.left = state.left.saturating_add(added).min(BURST);
            state.added_ns = now_ns;
        }
        if state.left == 0 {
            state.omitted += 1;
            return None;
        }
        assert!(state.left <= BURST, "no more at once");
        state.left -= 1;
        Some(std::mem::take(&mut state.omitted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_one_a_second_and_none_is_forgotten() {
        let notices = Notices::new();
        let second = |number: u64| 5 * INTERVAL_NS + number * INTERVAL_NS;
        let said = (0..1000).filter_map(|_| notices.at(second(0)));
        assert_eq!(said.collect::<Vec<_>>(), [0; BURST as usize]);
        let omitted = 1000 - BURST;
        assert_eq!(notices.at(second(1)), Some(omitted));
        assert_eq!(notices.at(second(1) + 1), None);
        assert_eq!(notices.at(second(2)), Some(1));
        let said = (0..1000).filter_map(|_| notices.at(second(500)));
        assert_eq!(said.count() as u64, BURST);
    }
}
