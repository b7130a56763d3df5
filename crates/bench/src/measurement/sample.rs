//! Measuring one job on one system: how many operations in what time, and how long each took.
//!
//! Cheap operations are not timed one by one, because reading the clock costs as much as they do:
//! of each stretch only the last is. The clock's own cost is subtracted.

use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use adit_base::breakdown::Breakdown;
use hdrhistogram::Histogram;

use super::interrupt;
use super::row::{Measurement, RowKey};

/// Latencies in nanoseconds.
pub(crate) type Latencies = Histogram<u64>;

/// One measurement. [`observed`](crate::observed) fills in what it cost besides time.
#[derive(Clone, Debug)]
pub struct Sample {
    /// How many operations were done.
    pub operations: u64,
    /// In what time.
    pub elapsed: Duration,
    pub(crate) latencies: Latencies,
    /// Its undisturbed part, if requested.
    pub(crate) calm: Option<Calm>,
    /// Bytes that this process read from devices meanwhile, where that was counted.
    pub device_read_bytes: Option<u64>,
    /// How long the machine's processors were busy meanwhile, in seconds.
    pub cpu_seconds: Option<f64>,
    /// Memory in use afterwards.
    pub memory_bytes: Option<u64>,
    /// The share of the time in which the owner's lock was held, where that was measured.
    pub lock_share: Option<f64>,
}

/// The part of a measurement in which the thread kept its processor (all of it, if it never did).
/// Work after the operations that counts as theirs is not in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calm {
    pub(crate) operations: u64,
    pub(crate) elapsed: Duration,
    /// That time by layers, if requested.
    pub(crate) layers: Option<Breakdown>,
}

impl Calm {
    pub(crate) fn add(&mut self, other: &Calm) {
        self.operations += other.operations;
        self.elapsed += other.elapsed;
        if let Some(layers) = &other.layers {
            self.layers.get_or_insert_default().add(layers);
        }
    }
}

/// When a measurement ends: whichever comes first.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// After the operation, or the stretch of them, in which this time has passed.
    pub time: Duration,
    /// After so many operations.
    pub operations: u64,
}

impl Limit {
    /// As many operations as that time allows.
    pub fn time(time: Duration) -> Limit {
        Limit {
            time,
            operations: u64::MAX,
        }
    }

    /// A fixed number of operations, without a time limit.
    pub fn operations(operations: u64) -> Limit {
        Limit {
            time: Duration::MAX,
            operations,
        }
    }
}

/// Each how many operations one is timed by itself.
#[derive(Clone, Copy, Debug)]
pub enum Timing {
    /// Every one.
    Each,
    /// The last of each stretch of so many.
    OneIn(u64),
}

fn empty_latencies() -> Latencies {
    Histogram::new(3).expect("three digits are a precision that the histogram offers")
}

/// The least cost of two readings of the clock.
fn clock_cost() -> Duration {
    static COST: OnceLock<Duration> = OnceLock::new();
    *COST.get_or_init(|| {
        (0..1000)
            .map(|_| Instant::now().elapsed())
            .min()
            .unwrap_or_default()
    })
}

/// Runs `operation(turn)` until the limit. An error of the operation ends it, as does one of kind
/// `Interrupted` after a signal that an [`InterruptGuard`](crate::InterruptGuard) caught.
#[inline(never)] // `cargo xtask flames` draws what is called below it.
pub fn measure(
    limit: Limit,
    timing: Timing,
    mut operation: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<Sample> {
    let stretch = match timing {
        Timing::Each => 1,
        Timing::OneIn(operations) => operations.max(1),
    };
    let cost = clock_cost();
    let mut latencies = empty_latencies();
    let started = Instant::now();
    let mut turn = 0;
    while turn < limit.operations {
        interrupt::check()?;
        let last = (turn + stretch).min(limit.operations) - 1;
        while turn < last {
            operation(turn)?;
            turn += 1;
        }
        let before = Instant::now();
        operation(turn)?;
        turn += 1;
        let took = before.elapsed().saturating_sub(cost);
        // Cannot fail: the histogram resizes itself.
        let _ = latencies.record((took.as_nanos() as u64).max(1));
        if started.elapsed() >= limit.time {
            break;
        }
    }
    Ok(Sample {
        latencies,
        ..Sample::untimed(turn, started.elapsed())
    })
}

/// A measurement by hand, where operations overlap: each is recorded when it ends.
pub(crate) struct Stopwatch {
    started: Instant,
    latencies: Latencies,
    operations: u64,
}

impl Stopwatch {
    pub(crate) fn start() -> Stopwatch {
        Stopwatch {
            started: Instant::now(),
            latencies: empty_latencies(),
            operations: 0,
        }
    }

    /// An operation ended that took so long.
    #[inline]
    pub(crate) fn record(&mut self, took: Duration) {
        self.operations += 1;
        // Cannot fail: the histogram resizes itself.
        let _ = self.latencies.record((took.as_nanos() as u64).max(1));
    }

    /// After one operation at the earliest: on a busy machine a thread may wait for longer than all
    /// of the time.
    pub(crate) fn is_over(&self, limit: &Limit) -> bool {
        let is_late = || self.operations > 0 && self.started.elapsed() >= limit.time;
        self.operations >= limit.operations || is_late()
    }

    pub(crate) fn stop(self) -> Sample {
        Sample {
            latencies: self.latencies,
            ..Sample::untimed(self.operations, self.started.elapsed())
        }
    }
}

impl Sample {
    /// So many operations in that time, without anything about single ones.
    pub fn untimed(operations: u64, elapsed: Duration) -> Sample {
        Sample {
            operations,
            elapsed,
            latencies: empty_latencies(),
            calm: None,
            device_read_bytes: None,
            cpu_seconds: None,
            memory_bytes: None,
            lock_share: None,
        }
    }

    /// The measurement of a row.
    pub fn measurement(&self, key: &RowKey) -> Measurement {
        // Of each percentile at least one operation has to lie beyond it.
        let percentile = |fraction: f64, one_in: u64| {
            (self.latencies.len() >= one_in).then(|| self.latency_us(fraction))
        };
        Measurement {
            id: key.id.clone(),
            title: key.title.clone(),
            threads: key.threads,
            at: key.at,
            operation_bytes: key.operation_bytes,
            operations: self.operations,
            seconds: self.elapsed.as_secs_f64(),
            cpu_seconds: self.cpu_seconds,
            p50_us: percentile(0.5, 2),
            p99_us: percentile(0.99, 100),
            p999_us: percentile(0.999, 1000),
            device_read_bytes: self.device_read_bytes,
            memory_bytes: self.memory_bytes,
            lock_share: self.lock_share,
            least_share: None,
        }
    }

    /// Several threads that ran at the same time.
    pub(crate) fn side_by_side(samples: Vec<Sample>) -> Sample {
        let mut sum = Sample::untimed(0, Duration::ZERO);
        for sample in samples {
            sum.operations += sample.operations;
            sum.elapsed = sum.elapsed.max(sample.elapsed);
            if let Some(calm) = &sample.calm {
                sum.calm.get_or_insert_default().add(calm);
            }
            sum.absorb(&sample);
        }
        sum
    }

    /// Adds the latencies of another measurement of the same thing.
    pub(crate) fn absorb(&mut self, other: &Sample) {
        // Cannot fail: both histograms resize themselves.
        let _ = self.latencies.add(&other.latencies);
    }

    /// The latency that `fraction` of the operations did not exceed, in microseconds.
    pub(crate) fn latency_us(&self, fraction: f64) -> f64 {
        self.latencies.value_at_quantile(fraction) as f64 / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::{Limit, Sample, Timing, measure};
    use crate::measurement::row::RowKey;
    use std::time::Duration;

    #[test]
    fn every_operation_runs_once_and_the_limit_holds() {
        let mut turns = Vec::new();
        let sample = measure(Limit::operations(10), Timing::OneIn(4), |turn| {
            turns.push(turn);
            Ok(())
        })
        .unwrap();
        assert_eq!(turns, (0..10).collect::<Vec<_>>());
        assert_eq!((sample.operations, sample.latencies.len()), (10, 3));
    }

    #[test]
    fn a_time_limit_ends_the_measurement() {
        let limit = Limit::time(Duration::from_millis(5));
        let sample = measure(limit, Timing::OneIn(8), |_| Ok(())).unwrap();
        assert!(sample.operations > 0 && sample.elapsed >= Duration::from_millis(5));
    }

    #[test]
    fn latencies_are_those_of_the_operations() {
        let pause = Duration::from_millis(1);
        let sample = measure(Limit::operations(3), Timing::Each, |_| {
            std::thread::sleep(pause);
            Ok(())
        })
        .unwrap();
        let whole_us = sample.elapsed.as_secs_f64() * 1e6;
        // The histogram has three digits.
        let (middle, most) = (sample.latency_us(0.5), sample.latency_us(0.999));
        assert!(990.0 <= middle && middle <= most && most <= whole_us * 1.01);
    }

    #[test]
    fn threads_add_up_over_the_longest_time() {
        let one = |ms| Sample::untimed(10, Duration::from_millis(ms));
        let both = Sample::side_by_side(vec![one(5), one(10)]);
        assert_eq!((both.operations, both.elapsed.as_millis()), (20, 10));
    }

    #[test]
    fn a_measurement_has_the_percentiles_that_enough_operations_support() {
        let key = RowKey::new("nothing", "nothing at all", 7);
        let measured = |operations| {
            let sample = measure(Limit::operations(operations), Timing::Each, |_| Ok(()));
            sample.unwrap().measurement(&key)
        };
        let few = measured(99);
        assert_eq!((few.id.as_str(), few.operations), ("nothing", 99));
        assert_eq!((few.operation_bytes, few.threads), (7, 1));
        assert!(few.p50_us.is_some() && few.p99_us.is_none() && few.p999_us.is_none());
        let many = measured(1000);
        assert!(many.p50_us <= many.p99_us && many.p99_us <= many.p999_us);
        assert!(many.p999_us.is_some());
    }

    #[test]
    fn an_error_ends_the_measurement() {
        let limit = Limit::time(Duration::from_secs(60));
        let result = measure(limit, Timing::Each, |_| {
            Err(std::io::ErrorKind::StorageFull.into())
        });
        assert!(result.is_err());
    }
}
