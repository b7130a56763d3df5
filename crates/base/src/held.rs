//! The share of time in which a lock is held, counted only while a benchmark measures it.
//!
//! ```text
//!   acquired ────────► before_release ──► before_release ──►
//!            counted                  counted
//!                      (a release that fails: the lock stays held)
//! ```
//!
//! While nothing is measured, acquiring and releasing cost a load and a branch that is not taken.
//! All locks with a [`HoldClock`] are counted together: a benchmark has one volume open.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::breakdown::ticks;

/// When the measurement began, in ticks; 0 if nothing is measured. No decision depends on it, and
/// no model turns it on: an ordinary atomic.
static MEASURED_SINCE: AtomicU64 = AtomicU64::new(0);
/// Ticks in which a lock was held since then.
static HELD: AtomicU64 = AtomicU64::new(0);

/// When the present hold of a lock began. Only the holder writes it.
#[derive(Debug, Default)]
pub struct HoldClock(AtomicU64);

impl HoldClock {
    /// For the new holder.
    #[inline(always)]
    pub fn acquired(&self) {
        if MEASURED_SINCE.load(Ordering::Relaxed) != 0 {
            self.begin(ticks());
        }
    }

    /// For the holder, right before it tries to release: counts the hold up to now.
    #[inline(always)]
    pub fn before_release(&self) {
        let measured_since = MEASURED_SINCE.load(Ordering::Relaxed);
        if measured_since != 0 {
            self.count(measured_since, ticks());
        }
    }

    #[cold]
    #[inline(never)]
    fn begin(&self, now: u64) {
        self.0.store(now, Ordering::Relaxed);
    }

    #[cold]
    #[inline(never)]
    fn count(&self, measured_since: u64, now: u64) {
        // The hold may have begun before the measurement.
        let began = self.0.load(Ordering::Relaxed).max(measured_since);
        // Another processor's counter may be a little behind.
        HELD.fetch_add(now.saturating_sub(began), Ordering::Relaxed);
        self.0.store(now, Ordering::Relaxed);
    }
}

/// A measurement, from [`start`] on.
#[derive(Debug)]
#[must_use = "it ends when this is dropped"]
pub struct Measurement {
    began: u64,
}

/// Begins to measure. Panics if a measurement runs already.
pub fn start() -> Measurement {
    HELD.store(0, Ordering::Relaxed);
    let began = ticks().max(1);
    let before = MEASURED_SINCE.swap(began, Ordering::Relaxed);
    assert_eq!(before, 0, "one measurement at a time");
    Measurement { began }
}

impl Measurement {
    /// Ends it; says which share of its time the locks were held, without holds that go on.
    pub fn take(self) -> f64 {
        let elapsed = ticks().saturating_sub(self.began).max(1);
        HELD.load(Ordering::Relaxed) as f64 / elapsed as f64
    }
}

impl Drop for Measurement {
    fn drop(&mut self) {
        MEASURED_SINCE.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{HELD, HoldClock, start};
    use std::sync::Mutex;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    /// One measurement a process at a time.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn a_hold_counts_from_the_later_of_its_begin_and_the_measurements() {
        let _alone = ALONE.lock().unwrap();
        let measurement = start();
        let clock = HoldClock::default();
        clock.begin(100);
        clock.count(40, 130);
        // The release failed: the hold goes on.
        clock.count(40, 150);
        assert_eq!(HELD.load(Ordering::Relaxed), 50);
        // It began before the measurement did.
        clock.begin(200);
        clock.count(230, 240);
        // Another processor's counter.
        clock.count(230, 235);
        assert_eq!(HELD.load(Ordering::Relaxed), 60);
        drop(measurement);
    }

    #[test]
    fn the_share_is_of_the_time_that_passed() {
        let _alone = ALONE.lock().unwrap();
        let clock = HoldClock::default();
        clock.acquired();
        clock.before_release();
        assert_eq!(start().take(), 0.0);
        // The pauses become longer until the processor's other work doesn't count beside them.
        let one_of_ten = |attempt: &dyn Fn(Duration) -> bool| {
            (0..10).any(|exponent| attempt(Duration::from_millis(5 << exponent)))
        };
        assert!(one_of_ten(&|pause| {
            let measurement = start();
            clock.acquired();
            std::thread::sleep(pause);
            clock.before_release();
            let all = measurement.take();
            assert!(all <= 1.0, "{all}");
            all > 0.5
        }));
        assert!(one_of_ten(&|pause| {
            let measurement = start();
            std::thread::sleep(pause);
            clock.acquired();
            clock.before_release();
            measurement.take() < 0.5
        }));
    }
}
