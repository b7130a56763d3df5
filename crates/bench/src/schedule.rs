//! Interleaved rounds: each job on A, B, raw, then the next job; then everything again.
//!
//! Whatever else the machine does meets all systems alike, and the spread between rounds shows it.
//! The order of the systems rotates, so that none is always the first after a pause.

use std::io;
use std::time::{Duration, Instant};

use crate::jobs::{self, Job, Measured, Shape};
use crate::report::{Block, Collector};
use crate::target::{Target, while_doing};

/// A system under test, whatever its type.
pub(crate) trait System {
    fn label(&self) -> &str;
    /// Whether it can do every job.
    fn is_complete(&self) -> bool;
    fn measure(&self, job: Job, shape: &Shape, round: u32) -> io::Result<Vec<Measured>>;
}

impl<T: Target> System for &T {
    fn label(&self) -> &str {
        Target::label(*self)
    }

    fn is_complete(&self) -> bool {
        self.is_file_system()
    }

    fn measure(&self, job: Job, shape: &Shape, round: u32) -> io::Result<Vec<Measured>> {
        jobs::run(*self, job, shape, round)
    }
}

/// What to measure, and for how long at most.
pub(crate) struct Plan<'a> {
    pub(crate) title: String,
    pub(crate) jobs: &'a [Job],
    pub(crate) shape: &'a Shape,
    pub(crate) rounds: u32,
    /// No further round begins when it would end later than this.
    pub(crate) time_max: Duration,
}

/// Runs the plan on all systems. `progress` is told what begins, and which part is done.
pub(crate) fn run(
    plan: &Plan<'_>,
    systems: &[Box<dyn System + '_>],
    progress: &mut dyn FnMut(&str, f64),
) -> io::Result<Block> {
    let mut collector = Collector::new(systems.iter().map(|system| system.label().to_owned()));
    let started = Instant::now();
    let steps = plan.rounds as usize * plan.jobs.len() * systems.len();
    let mut step = 0;
    for round in 0..plan.rounds {
        let (done, spent) = (f64::from(round), started.elapsed());
        if round > 0 && spent.mul_f64((done + 1.0) / done) > plan.time_max {
            break;
        }
        for &job in plan.jobs {
            for turn in 0..systems.len() {
                let index = (turn + round as usize) % systems.len();
                let system = &systems[index];
                let what = format!("{}: {job:?} on {}", plan.title, system.label());
                progress(&what, step as f64 / steps as f64);
                step += 1;
                match system.measure(job, plan.shape, round) {
                    Ok(measured) => collector.add(index, measured),
                    Err(error)
                        if error.kind() == io::ErrorKind::Unsupported && !system.is_complete() => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
                    Err(error) => return Err(while_doing(format!("measure {what}"), error)),
                }
            }
        }
    }
    Ok(collector.into_block(plan.title.clone()))
}
