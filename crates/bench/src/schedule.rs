//! Interleaved rounds: each job on A, B, raw, then the next job; then everything again.
//!
//! Whatever else the machine does meets all systems alike, and the spread between rounds shows it.
//! The order of the systems rotates, so that none is always the first after a pause.

use std::io;
use std::time::{Duration, Instant};

use crate::jobs::{self, Job, Measured, Shape};
use crate::report::{ADIT, Block, Collector, RAW};
use crate::target::{Target, while_doing};

/// A system under test, whatever its type.
pub(crate) trait System {
    fn label(&self) -> &str;
    fn measure(&self, job: Job, shape: &Shape, round: u32) -> io::Result<Vec<Measured>>;
}

impl<T: Target> System for &T {
    fn label(&self) -> &str {
        Target::label(*self)
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
    /// Nothing else is measured in this process: its memory is that of the one system.
    pub(crate) alone: bool,
    /// No further round begins when it would end later than this.
    pub(crate) time_max: Duration,
}

/// Runs the plan on all systems. `progress` is told what begins, and which part is done.
pub(crate) fn run(
    plan: &Plan<'_>,
    systems: &[Box<dyn System + '_>],
    progress: &mut dyn FnMut(&str, f64),
) -> io::Result<Block> {
    let labels = systems.iter().map(|system| system.label().to_owned());
    let mut collector = Collector::new(labels, plan.alone);
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
                    // What Adit can't do is a failure, what others can't do is left out.
                    Err(error)
                        if error.kind() == io::ErrorKind::Unsupported && system.label() != ADIT =>
                    {
                        // The floor has gaps by design: they are no news.
                        if system.label() != RAW {
                            collector.omit(error.to_string());
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
                    Err(error) => return Err(while_doing(format!("measure {what}"), error)),
                }
            }
        }
    }
    Ok(collector.into_block(plan.title.clone()))
}

#[cfg(test)]
mod tests {
    use super::{Plan, System, run};
    use crate::jobs::{Job, Measured, RowKey, Shape};
    use crate::sample::{Limit, Timing, measure};
    use std::io;
    use std::time::Duration;

    /// Does every job but those that read directly.
    struct WithoutDirectIo(&'static str);

    impl System for WithoutDirectIo {
        fn label(&self) -> &str {
            self.0
        }

        fn measure(&self, job: Job, _shape: &Shape, _round: u32) -> io::Result<Vec<Measured>> {
            if matches!(job, Job::DirectRead { .. }) {
                let what = format!("{} has no direct IO here", self.0);
                return Err(io::Error::new(io::ErrorKind::Unsupported, what));
            }
            let key = RowKey {
                id: "names",
                title: "names".to_owned(),
                threads: 1,
                operation_bytes: 0,
            };
            let sample = measure(Limit::operations(1), Timing::Each, |_| Ok(()))?;
            Ok(vec![(key, sample)])
        }
    }

    fn measured(systems: &[&'static str], alone: bool) -> io::Result<crate::report::Block> {
        let shape = Shape {
            slice: Duration::ZERO,
            names: 1,
            direct_bytes: 0,
            scan_bytes: 0,
        };
        let plan = Plan {
            title: "test".to_owned(),
            jobs: &[Job::DirectRead { threads: 1 }, Job::Names],
            shape: &shape,
            rounds: 2,
            alone,
            time_max: Duration::MAX,
        };
        let systems: Vec<Box<dyn System>> = systems
            .iter()
            .map(|&label| Box::new(WithoutDirectIo(label)) as Box<dyn System>)
            .collect();
        run(&plan, &systems, &mut |_, _| ())
    }

    /// tmpfs has no O_DIRECT before Linux 6.6, and its EINVAL ended the whole benchmark.
    #[test]
    fn what_another_system_cannot_do_is_left_out_and_said_once() {
        let block = measured(&["tmpfs"], false).unwrap();
        assert_eq!(block.rows.len(), 1);
        assert_eq!(block.omitted, ["tmpfs has no direct IO here"]);
        let text = block.to_string();
        assert!(text.contains("Left out: tmpfs has no direct IO"), "{text}");
        assert!(measured(&["raw"], false).unwrap().omitted.is_empty());
    }

    #[test]
    fn what_adit_cannot_do_is_an_error() {
        let error = measured(&["adit"], false).unwrap_err();
        assert!(error.to_string().contains("DirectRead"), "{error}");
    }

    /// Each system's cell showed the memory of the process, in which all of them had been measured.
    #[test]
    fn memory_is_only_told_of_a_system_that_has_the_process_to_itself() {
        let resident = |block: crate::report::Block| block.rows[0].cells[0].resident_bytes;
        assert!(resident(measured(&["ext4"], true).unwrap()).is_some());
        assert!(resident(measured(&["ext4", "raw"], false).unwrap()).is_none());
    }
}
