//! Whether a thread that waits yields its core before it sleeps: not where other programs compute.
//!
//! ```text
//! long ── a yield took LONG_NS or more ──► short, for SHORT_TIMES as long
//!   ▲                                        │
//!   └────────── that time is over ───────────┘
//! ```
//! A thread that yields gives away what is left of its time slice. If the core's next thread waits,
//! too, or is the one that is waited for, that takes microseconds. If it computes, it has the core
//! for its whole slice, which is milliseconds, and the thread that has yielded has a debt. A thread
//! that sleeps has none, and runs again as soon as it is woken.
//!
//! Invariant: between a long yield and the next yield lies [`SHORT_TIMES`] the time of the first, or
//! [`SHORT_NS_MAX`].

use crate::clock::monotonic_ns;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A yield that takes longer has given the core to a thread that computes.
const LONG_NS: u64 = 200_000;
/// So many times as long as that took, no thread yields.
const SHORT_TIMES: u64 = 64;
/// But no longer than that: the process may have been stopped.
const SHORT_NS_MAX: u64 = 1_000_000_000;

/// Whether to stay awake, for threads that wait for the same. Races only make it learn later.
#[derive(Debug, Default)]
pub struct Patience {
    short_until_ns: AtomicU64,
}

impl Patience {
    /// Is a thread to sleep soon, and not to yield before?
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
        if took_ns >= LONG_NS {
            let short_ns = took_ns.saturating_mul(SHORT_TIMES).min(SHORT_NS_MAX);
            let until_ns = ended_ns.saturating_add(short_ns);
            self.short_until_ns.fetch_max(until_ns, Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{LONG_NS, Patience, SHORT_NS_MAX, SHORT_TIMES};

    #[test]
    fn after_a_long_yield_there_is_none_for_many_times_as_long() {
        let patience = Patience::default();
        let mut now_ns = 1_000_000;
        for _ in 0..100 {
            patience.note_yield(now_ns, now_ns + LONG_NS - 1);
            now_ns += LONG_NS - 1;
            assert!(!patience.is_short(now_ns));
        }
        let took_ns = 4_000_000;
        patience.note_yield(now_ns, now_ns + took_ns);
        now_ns += took_ns;
        let end_ns = now_ns + SHORT_TIMES * took_ns;
        // Another thread's shorter ones, which began before, change nothing.
        patience.note_yield(now_ns, now_ns + 1);
        patience.note_yield(now_ns, now_ns + LONG_NS);
        assert!(patience.is_short(now_ns) && patience.is_short(end_ns - 1));
        assert!(!patience.is_short(end_ns));
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
