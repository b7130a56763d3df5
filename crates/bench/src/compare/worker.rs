//! One system at one place, measured by a process that does nothing else, so that memory and work
//! are its own.
//!
//! The process that compares starts it, as `adit measure`, with an [`Assignment`] in JSON on stdin,
//! and reads [`MeasuredRows`] from its stdout.

use std::io;

use serde::{Deserialize, Serialize};

use super::systems::System;
use crate::jobs::stage::{Measured, Shape};
use crate::jobs::{self, Job, breakdown};
use crate::measurement::calm::Look;
use crate::measurement::errors::while_doing;
use crate::measurement::interrupt;
use crate::measurement::row::MeasuredRows;
use crate::target::Target;
use crate::target::adit::AditTarget;
use crate::target::floor::FloorTarget;
use crate::target::kernel::KernelTarget;
use crate::target::ssd::{self, BareDevice};

/// What to measure, and where.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Assignment {
    /// Which system.
    pub system: System,
    /// A volume's address (it has been made), a directory of the kernel's, or a file or device
    /// whose content is destroyed. `ssd80:SIZE` and `ssd10:SIZE` are memory with an SSD's latency,
    /// for Adit (which makes its volume there) and the bare device.
    pub place: String,
    /// The jobs, in order.
    pub jobs: Vec<Job>,
    /// Their sizes.
    pub shape: Shape,
    /// Different rounds use different names and places.
    pub round: u32,
    /// Say where the time of their operations goes, instead of how much it is; only Adit knows.
    #[serde(default)]
    pub layers: bool,
}

/// Carries it out.
pub fn measure_alone(assignment: &Assignment) -> io::Result<MeasuredRows> {
    let _guard = interrupt::Guard::new();
    allow_many_open_files();
    let shape = &assignment.shape;
    for job in &assignment.jobs {
        let wrong = |what| {
            let what = format!("can't measure {job:?}: {what}");
            io::Error::new(io::ErrorKind::InvalidInput, what)
        };
        job.check().map_err(wrong)?;
    }
    match assignment.system {
        System::AditRun | System::Kernel(_) | System::Host | System::Raw if assignment.layers => {
            let what = "only of Adit is it known in which layer its time goes";
            Err(io::Error::new(io::ErrorKind::InvalidInput, what))
        }
        System::Adit => {
            let adit = match ssd::device_at(&assignment.place)? {
                Some(device) => AditTarget::on_device(device, shape.cache_bytes)?,
                None => AditTarget::open(&assignment.place, shape.cache_bytes, "")?,
            };
            let outcome = match assignment.layers {
                true => layers(&adit, assignment),
                false => run_all(&adit, assignment),
            };
            let closed = adit.close();
            let rows = outcome?;
            closed?;
            Ok(rows)
        }
        System::AditRun => Err(io::Error::other("`adit run` measures programs only")),
        System::Kernel(_) | System::Host => {
            run_all(&KernelTarget::new(assignment.place.as_ref())?, assignment)
        }
        System::Raw => {
            let files = assignment.jobs.iter().map(|job| job.file_bytes(shape));
            let len_bytes = files.max().unwrap_or(0);
            match ssd::device_at(&assignment.place)? {
                Some(device) => {
                    let floor = FloorTarget::written(BareDevice::new(device), len_bytes)?;
                    run_all(&floor, assignment)
                }
                None => {
                    let floor = FloorTarget::new(assignment.place.as_ref(), len_bytes)?;
                    run_all(&floor, assignment)
                }
            }
        }
    }
}

fn run_all<T: Target>(target: &T, assignment: &Assignment) -> io::Result<MeasuredRows> {
    let mut rows = Vec::new();
    for &job in &assignment.jobs {
        match jobs::run(
            target,
            job,
            &assignment.shape,
            assignment.round,
            Look::Latencies,
        ) {
            Ok(mut measured) => {
                if matches!(job, Job::Threads(_)) && assignment.system == System::Adit {
                    add_lock_shares(target, job, assignment, &mut measured)?;
                }
                rows.extend(measured.iter().map(|(key, sample)| sample.measurement(key)));
            }
            // A job that Adit cannot do is a failure; one that another system cannot do is left
            // out.
            Err(error)
                if error.kind() == io::ErrorKind::Unsupported
                    && assignment.system != System::Adit => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                return Err(while_doing(
                    format!("measure {job:?} on {}", target.label()),
                    error,
                ));
            }
        }
    }
    Ok(MeasuredRows {
        rows,
        ..MeasuredRows::default()
    })
}

/// Measures the job again, for a shorter time: looking at the lock takes some time, too.
fn add_lock_shares<T: Target>(
    target: &T,
    job: Job,
    assignment: &Assignment,
    measured: &mut [Measured],
) -> io::Result<()> {
    let shape = Shape {
        slice: assignment.shape.slice / 4,
        ..assignment.shape.clone()
    };
    let again = jobs::run(target, job, &shape, assignment.round, Look::Lock)?;
    for ((key, sample), (same, looked_at)) in measured.iter_mut().zip(again) {
        assert_eq!(*key, same, "a job has the same rows each time");
        sample.lock_share = looked_at.lock_share;
    }
    Ok(())
}

fn layers(adit: &AditTarget, assignment: &Assignment) -> io::Result<MeasuredRows> {
    /// One in which the look at the layers comes first, one in which it comes second.
    const ROUNDS: u32 = 2;
    let Assignment { jobs, shape, .. } = assignment;
    Ok(MeasuredRows {
        rows: Vec::new(),
        layers: breakdown::measure_rows(adit, jobs, shape, ROUNDS, &mut |_, _| ())?,
    })
}

/// As many as we may: a job opens 100,000, each of which is a descriptor of a kernel's file system.
fn allow_many_open_files() {
    const WANTED: u64 = 150_000;
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls get a pointer to a live value.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 && limit.rlim_cur < WANTED {
            let raised = libc::rlimit {
                rlim_cur: WANTED,
                rlim_max: limit.rlim_max.max(WANTED),
            };
            // Only root may go beyond the hard limit, and not in every container.
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) != 0 {
                limit.rlim_cur = limit.rlim_max;
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
            }
        }
    }
}
