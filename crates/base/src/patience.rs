//! Decides whether a waiting thread yields its core before it sleeps: not if other programs
//! compute.
//!
//! ```text
//! long ── a yield took LONG_NS or more ──► short, for some times as long
//!   ▲                                        │
//!   └────────── that time is over ───────────┘
//! ```
//! A thread that yields gives away what is left of its time slice. If the core's next thread waits,
//! too, or is the one that is waited for, that takes microseconds. If it computes, it has the core
//! for its whole slice, which is milliseconds, and the thread that has yielded has a debt. A thread
//! that sleeps has none, and runs again as soon as it is woken; but each sleep costs some
//! microseconds.
//!
//! Invariant: a try that lasts no longer than the loss at its end doubles the time until the next
//! one, up to [`TIMES_MAX`] times the loss or [`SHORT_NS_MAX`]; one that lasts begins anew with
//! [`TIMES_MIN`] times.

use crate::clock::monotonic_ns;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A yield that takes longer has given the core to a thread that computes.
const LONG_NS: u64 = 200_000;
/// After a long yield no thread yields for this many times its length, at first.
const TIMES_MIN: u64 = 8;
/// The largest factor, after repeated long yields.
const TIMES_MAX: u64 = 64;
/// Upper bound of that time: the process may have been stopped during the yield.
const SHORT_NS_MAX: u64 = 1_000_000_000;

/// Decides for the threads that wait for one thing. Races only make it learn later.
#[derive(Debug, Default)]
pub struct Patience {
    short_until_ns: AtomicU64,
    /// How many times as long as the last long yield.
    times: AtomicU64,
}

impl Patience {
    /// True if a waiting thread sleeps soon, without a yield.
    #[inline]
    pub fn is_short(&self, now_ns: u64) -> bool {
        now_ns < self.short_until_ns.load(Relaxed)
    }

    /// Lets other threads have the core of this one.
    pub fn yield_now(&self) {
        let began_ns = monotonic_ns();
        std::thread::yield_now();
        self.note_yield(began_ns, monotonic_ns());
    }

    fn note_yield(&self, began_ns: u64, ended_ns: u64) {
        let took_ns = ended_ns.saturating_sub(began_ns);
        if took_ns < LONG_NS {
            return;
        }
        let lasted_ns = began_ns.saturating_sub(self.short_until_ns.load(Relaxed));
        let times = if lasted_ns <= took_ns {
            (2 * self.times.load(Relaxed)).clamp(TIMES_MIN, TIMES_MAX)
        } else {
            TIMES_MIN
        };
        self.times.store(times, Relaxed);
        let short_ns = took_ns.saturating_mul(times).min(SHORT_NS_MAX);
        let until_ns = ended_ns.saturating_add(short_ns);
        self.short_until_ns.fetch_max(until_ns, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{LONG_NS, Patience, SHORT_NS_MAX, TIMES_MAX, TIMES_MIN};

    const SLICE_NS: u64 = 4_000_000;

    /// Simulates a yield that loses the core for a slice; returns the number of slices until the
    /// next yield.
    fn pause(patience: &Patience, now_ns: &mut u64) -> u64 {
        patience.note_yield(*now_ns, *now_ns + SLICE_NS);
        *now_ns += SLICE_NS;
        let mut slices = 0;
        while patience.is_short(*now_ns) {
            *now_ns += SLICE_NS;
            slices += 1;
        }
        slices
    }

    #[test]
    fn tries_in_vain_become_rare_and_one_that_lasts_begins_anew() {
        let patience = Patience::default();
        let mut now_ns = 1_000_000_000;
        for _ in 0..100 {
            patience.note_yield(now_ns, now_ns + LONG_NS - 1);
            now_ns += LONG_NS - 1;
            assert!(!patience.is_short(now_ns));
        }
        for expected in [TIMES_MIN, 16, 32, TIMES_MAX, TIMES_MAX] {
            assert_eq!(pause(&patience, &mut now_ns), expected);
        }
        now_ns += SLICE_NS + 1;
        assert_eq!(pause(&patience, &mut now_ns), TIMES_MIN);
        // A try that lasts exactly as long as the loss at its end.
        now_ns += SLICE_NS;
        assert_eq!(pause(&patience, &mut now_ns), 16);
    }

    #[test]
    fn yields_of_several_threads_do_not_shorten_the_pause() {
        let patience = Patience::default();
        patience.note_yield(0, SLICE_NS);
        let until_ns = SLICE_NS + TIMES_MIN * SLICE_NS;
        patience.note_yield(SLICE_NS, SLICE_NS + 1);
        patience.note_yield(SLICE_NS - LONG_NS, SLICE_NS);
        assert!(patience.is_short(until_ns - 1) && !patience.is_short(until_ns));
    }

    #[test]
    fn a_process_that_was_stopped_for_an_hour_yields_again_after_a_second() {
        let patience = Patience::default();
        let stopped_ns = 3_600_000_000_000;
        patience.note_yield(0, stopped_ns);
        assert!(patience.is_short(stopped_ns + SHORT_NS_MAX - 1));
        assert!(!patience.is_short(stopped_ns + SHORT_NS_MAX));
        // A clock that goes back, or ends.
        patience.note_yield(u64::MAX, 0);
        patience.note_yield(0, u64::MAX);
    }
}
