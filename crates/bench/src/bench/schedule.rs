//! Interleaved rounds: each job on A, B, raw, then the next job; then everything again.
//!
//! Other load on the machine meets all systems alike, and the spread between rounds shows it. The
//! order of the systems rotates, so that none is always the first after a pause.

use std::io;
use std::time::{Duration, Instant};

use super::report::Block;
use crate::jobs::stage::{Measured, Shape};
use crate::jobs::{self, Job};
use crate::measurement::calm::Look;
use crate::measurement::errors::while_doing;
use crate::measurement::medians::{ADIT, RAW, Rows};
use crate::measurement::row::Measurement;
use crate::target::Target;

/// A system under test, of any type.
pub(crate) trait Contender {
    fn label(&self) -> &str;
    fn measure(&self, job: Job, shape: &Shape, round: u32) -> io::Result<Vec<Measured>>;
}

impl<T: Target> Contender for &T {
    fn label(&self) -> &str {
        Target::label(*self)
    }

    fn measure(&self, job: Job, shape: &Shape, round: u32) -> io::Result<Vec<Measured>> {
        jobs::run(*self, job, shape, round, Look::Latencies, None)
    }
}

/// The jobs to measure, and the time limit.
pub(crate) struct Plan<'a> {
    pub(crate) title: String,
    pub(crate) jobs: &'a [Job],
    pub(crate) shape: &'a Shape,
    pub(crate) rounds: u32,
    /// No further round begins when it would end later than this.
    pub(crate) time_max: Duration,
}

/// Runs the plan on all systems. `progress` gets each step as it begins, and the part that is done.
pub(crate) fn run(
    plan: &Plan<'_>,
    systems: &[Box<dyn Contender + '_>],
    progress: &mut dyn FnMut(&str, f64),
) -> io::Result<Block> {
    let labels = systems.iter().map(|system| system.label().to_owned());
    let mut rows = Rows::new(labels);
    let mut omitted: Vec<String> = Vec::new();
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
                    Ok(measured) => rows.add(index, in_company(measured)),
                    // A job that Adit cannot do is a failure; one that another system cannot do is
                    // left out.
                    Err(error)
                        if error.kind() == io::ErrorKind::Unsupported && system.label() != ADIT =>
                    {
                        // The floor has gaps by design: they are no news.
                        let error = error.to_string();
                        if system.label() != RAW && !omitted.contains(&error) {
                            omitted.push(error);
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
                    Err(error) => return Err(while_doing(format!("measure {what}"), error)),
                }
            }
        }
    }
    Ok(Block {
        title: plan.title.clone(),
        rounds: rows.rounds(),
        rows: rows.finish(),
        omitted,
    })
}

/// The process's memory is that of all systems in it: no row gets it.
fn in_company(measured: Vec<Measured>) -> Vec<Measurement> {
    let alone = measured.iter().map(|(key, sample)| sample.measurement(key));
    let in_company = alone.map(|measurement| Measurement {
        memory_bytes: None,
        ..measurement
    });
    in_company.collect()
}

#[cfg(test)]
mod tests {
    use super::{Contender, Plan, run};
    use crate::jobs::Job;
    use crate::jobs::stage::{Measured, Shape};
    use crate::measurement::row::RowKey;
    use crate::measurement::sample::{Limit, Timing, measure};
    use std::io;
    use std::time::Duration;

    /// Does every job but those that read directly.
    struct WithoutDirectIo(&'static str);

    impl Contender for WithoutDirectIo {
        fn label(&self) -> &str {
            self.0
        }

        fn measure(&self, job: Job, _shape: &Shape, _round: u32) -> io::Result<Vec<Measured>> {
            if matches!(job, Job::DirectRead { .. }) {
                let what = format!("{} has no direct IO here", self.0);
                return Err(io::Error::new(io::ErrorKind::Unsupported, what));
            }
            let key = RowKey::new("names", "names", 0);
            let sample = measure(Limit::operations(1), Timing::Each, |_| Ok(()))?;
            Ok(vec![(key, sample)])
        }
    }

    fn measured(systems: &[&'static str]) -> io::Result<crate::bench::report::Block> {
        let shape = Shape {
            slice: Duration::ZERO,
            names: 1,
            direct_bytes: 0,
            scan_bytes: 0,
            cache_bytes: 0,
        };
        let plan = Plan {
            title: "test".to_owned(),
            jobs: &[Job::DirectRead { threads: 1 }, Job::Names],
            shape: &shape,
            rounds: 2,
            time_max: Duration::MAX,
        };
        let systems: Vec<Box<dyn Contender>> = systems
            .iter()
            .map(|&label| Box::new(WithoutDirectIo(label)) as Box<dyn Contender>)
            .collect();
        run(&plan, &systems, &mut |_, _| ())
    }

    /// tmpfs has no O_DIRECT before Linux 6.6, and its EINVAL ended the whole benchmark.
    #[test]
    fn what_another_system_cannot_do_is_left_out_and_said_once() {
        let block = measured(&["tmpfs"]).unwrap();
        assert_eq!(block.rows.len(), 1);
        assert_eq!(block.omitted, ["tmpfs has no direct IO here"]);
        let text = block.to_string();
        assert!(text.contains("Left out: tmpfs has no direct IO"), "{text}");
        assert!(measured(&["raw"]).unwrap().omitted.is_empty());
    }

    #[test]
    fn what_adit_cannot_do_is_an_error() {
        let error = measured(&["adit"]).unwrap_err();
        assert!(error.to_string().contains("DirectRead"), "{error}");
    }
}
