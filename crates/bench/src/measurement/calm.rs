//! Measurements without disturbance by other programs, and their time by layers.

use std::io;
use std::time::{Duration, Instant};

use adit_base::breakdown;

use super::interrupt;
use super::sample::{Calm, Limit, Sample};

/// The data that is collected while operations run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// How long each takes.
    Latencies,
    /// How long they take undisturbed.
    Calm,
    /// That, and what the time is spent on.
    Layers,
    /// As `Latencies`, and for how much of the time the owner's lock is held.
    Lock,
}

/// A stretch of time that counts as a whole or not at all: far below the turn that a scheduler
/// gives a thread.
const WINDOW: Duration = Duration::from_millis(1);

/// Whole windows of time, without latencies.
pub(crate) fn measure_calm(
    limit: Limit,
    layers: bool,
    mut operation: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<Sample> {
    // Operations between two readings of the clock, so that the clock does not show in the
    // measurement.
    const STRETCH: u64 = 8;
    let (mut all, mut calm) = (Calm::default(), Calm::default());
    let started = Instant::now();
    let mut turn = 0;
    // The clock is read behind operations only: a thread that waited for its processor has some,
    // too.
    while turn < limit.operations {
        interrupt::check()?;
        let (first, disturbed) = (turn, times_disturbed());
        let measurement = layers.then(breakdown::start);
        let began = Instant::now();
        while turn < limit.operations {
            let end = (turn + STRETCH).min(limit.operations);
            while turn < end {
                operation(turn)?;
                turn += 1;
            }
            if began.elapsed() >= WINDOW {
                break;
            }
        }
        let window = Calm {
            operations: turn - first,
            elapsed: began.elapsed(),
            layers: measurement.map(breakdown::Measurement::take),
        };
        all.add(&window);
        if times_disturbed() == disturbed {
            calm.add(&window);
        }
        if started.elapsed() >= limit.time {
            break;
        }
    }
    Ok(Sample {
        calm: Some(if calm.operations > 0 { calm } else { all }),
        ..Sample::untimed(turn, started.elapsed())
    })
}

/// How often the scheduler gave this thread's processor to another one.
fn times_disturbed() -> i64 {
    // SAFETY: an all-zero rusage is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live value, which the call fills.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_nivcsw
}
