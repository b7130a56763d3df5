//! The latency of the device: the time of a small durable write, as commits and superblocks show
//! it.

use adit_base::clock::monotonic_ns;
use adit_base::sync::atomic::{AtomicU64, Ordering};

/// A larger write shows the bandwidth, too.
const TIMED_PAGES_MAX: usize = 2;
/// The latest times, of which the shortest counts: the others waited for the processor, or for
/// other requests.
const TIMES: usize = 4;
/// Once all times are known, one write in this many is timed: the clock costs 50 ns.
const TIMED_ONE_IN: u64 = 16;

/// The latency of a device, as the first partition measures it; 0 until [`TIMES`] writes have shown
/// it.
#[derive(Default)]
pub(crate) struct Latency {
    times_us: [AtomicU64; TIMES],
    /// Writes that could be timed.
    writes: AtomicU64,
    timed: AtomicU64,
    least_us: AtomicU64,
}

impl Latency {
    /// A durable write of `pages` pages begins. The result is for [`Latency::end`].
    pub(crate) fn begin(&self, pages: usize) -> Option<u64> {
        if pages > TIMED_PAGES_MAX {
            return None;
        }
        let write = self.writes.load(Ordering::Relaxed);
        self.writes.store(write + 1, Ordering::Relaxed);
        let timed =
            self.timed.load(Ordering::Relaxed) < TIMES as u64 || write.is_multiple_of(TIMED_ONE_IN);
        timed.then(monotonic_ns)
    }

    /// It has ended, well or not.
    pub(crate) fn end(&self, begun_ns: Option<u64>) {
        if let Some(begun_ns) = begun_ns {
            self.note((monotonic_ns() - begun_ns) / 1000);
        }
    }

    fn note(&self, time_us: u64) {
        self.times_us[(self.timed.load(Ordering::Relaxed) % TIMES as u64) as usize]
            .store(time_us, Ordering::Relaxed);
        self.timed
            .store(self.timed.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let least = self
            .times_us
            .iter()
            .map(|time| time.load(Ordering::Relaxed))
            .min();
        self.least_us.store(least.unwrap_or(0), Ordering::Relaxed);
    }

    /// The latency, in µs.
    pub(crate) fn us(&self) -> u64 {
        self.least_us.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_of_the_latest_times_counts() {
        let latency = Latency::default();
        for time_us in [100, 200, 100] {
            latency.note(time_us);
            assert_eq!(latency.us(), 0);
        }
        latency.note(50);
        assert_eq!(latency.us(), 50);
        for _ in 0..TIMES {
            latency.note(100);
        }
        assert_eq!(latency.us(), 100);
    }

    #[test]
    fn few_writes_are_timed_once_the_latency_is_known() {
        let latency = Latency::default();
        assert_eq!(latency.begin(TIMED_PAGES_MAX + 1), None);
        let timed = (0..4 + 160).filter(|_| {
            let begun = latency.begin(1);
            latency.end(begun);
            begun.is_some()
        });
        assert_eq!(timed.count(), 4 + 10);
    }
}
