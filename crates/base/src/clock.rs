//! Time: wall clock for attributes, monotonic for durations. Both are read without a system call.

use crate::simulation;
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A point in time as file attributes keep it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds within the second, below 10⁹.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// The time of day at the resolution of the kernel's tick, like a kernel file system's
    /// timestamps.
    pub fn now() -> Self {
        if let Some(now_ns) = simulation::now_ns() {
            return Timestamp {
                seconds: (now_ns / 1_000_000_000) as i64,
                nanoseconds: (now_ns % 1_000_000_000) as u32,
            };
        }
        let now = clock_gettime(ClockId::RealtimeCoarse);
        Timestamp {
            seconds: now.tv_sec,
            nanoseconds: now.tv_nsec as u32,
        }
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Timestamp {
                seconds: after.as_secs() as i64,
                nanoseconds: after.subsec_nanos(),
            },
            Err(error) => {
                let before = error.duration();
                let borrow = u32::from(before.subsec_nanos() > 0);
                Timestamp {
                    seconds: -(before.as_secs() as i64) - i64::from(borrow),
                    nanoseconds: borrow * 1_000_000_000 - before.subsec_nanos(),
                }
            }
        }
    }
}

impl From<Timestamp> for SystemTime {
    /// 1970 for a time that the host can't express: it comes from a damaged or foreign inode.
    fn from(time: Timestamp) -> Self {
        let seconds = Duration::from_secs(time.seconds.unsigned_abs());
        let whole = if time.seconds >= 0 {
            UNIX_EPOCH.checked_add(seconds)
        } else {
            UNIX_EPOCH.checked_sub(seconds)
        };
        whole
            .and_then(|whole| whole.checked_add(Duration::from_nanos(time.nanoseconds.into())))
            .unwrap_or(UNIX_EPOCH)
    }
}

/// Nanoseconds of a clock that never goes back; only differences mean something.
pub fn monotonic_ns() -> u64 {
    if let Some(now_ns) = simulation::now_ns() {
        return now_ns;
    }
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The processor time that a process has had, in nanoseconds (clock_getcpuclockid(3)). None: there
/// is no process of that number. The kernel counts the time of a running thread at its ticks.
pub fn processor_ns(process: u32) -> Option<u64> {
    let process = libc::pid_t::try_from(process).ok()?;
    let mut clock = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: plain calls, which write to these two.
    let failed = unsafe {
        libc::clock_getcpuclockid(process, &mut clock) != 0
            || libc::clock_gettime(clock, &mut time) != 0
    };
    if failed {
        None
    } else {
        Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_1970_survive_both_ways() {
        for (seconds, nanoseconds) in [(0, 0), (5, 7), (-1, 999_999_999), (-5, 0), (-5, 1)] {
            let time = Timestamp {
                seconds,
                nanoseconds,
            };
            assert_eq!(Timestamp::from(SystemTime::from(time)), time);
        }
    }

    #[test]
    fn the_timestamp_is_the_time_of_day() {
        // Its clock is the system's as of the last tick.
        let tick = Duration::from_secs(1);
        let before = SystemTime::now() - tick;
        let now = SystemTime::from(Timestamp::now());
        assert!(before <= now && now <= SystemTime::now());
    }

    #[test]
    fn the_monotonic_clock_advances() {
        let before = monotonic_ns();
        std::thread::sleep(Duration::from_millis(2));
        assert!(monotonic_ns() - before >= 2_000_000);
    }
}
