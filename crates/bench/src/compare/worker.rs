//! One system at one place, measured by a process that does nothing else, so that memory and work
//! are its own.
//!
//! The process that compares starts it, as `adit measure`, with an [`Assignment`] in JSON on stdin,
//! and reads [`MeasuredRows`] from its stdout.

use std::io::{self, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::{Deserialize, Serialize};

use super::systems::System;
use crate::jobs::stage::{Measured, Shape};
use crate::jobs::{self, Job, Threads, breakdown};
use crate::measurement::calm::Look;
use crate::measurement::errors::while_doing;
use crate::measurement::gate::{self, Gate};
use crate::measurement::interrupt;
use crate::measurement::row::{MeasuredRows, Measurement, threads_in_title};
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
    /// Whose the threads of a job are.
    #[serde(default)]
    pub role: Role,
}

/// Whose the threads of a job are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// This process's.
    #[default]
    Alone,
    /// Each a process's, which this one starts. Of [`Job::Threads`] only.
    Clients,
    /// This process is one of them.
    Client {
        /// Which one.
        number: u32,
        /// Of how many.
        of: u32,
    },
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
    let gate = match assignment.role {
        Role::Alone => None,
        Role::Clients => return measure_by_clients(assignment),
        Role::Client { of, .. } => Some(Gate { clients: of }),
    };
    let gate = gate.as_ref();
    let own = match assignment.role {
        Role::Client { number, .. } => format!("client{number}"),
        Role::Alone | Role::Clients => String::new(),
    };
    match assignment.system {
        System::AditRun | System::Served | System::Kernel(_) | System::Host | System::Raw
            if assignment.layers =>
        {
            let what = "only of Adit is it known in which layer its time goes";
            Err(io::Error::new(io::ErrorKind::InvalidInput, what))
        }
        System::Adit | System::Workers | System::Served => {
            let folder = if own.is_empty() {
                own
            } else {
                format!("/{own}")
            };
            let workers = assignment.system.workers();
            let adit = match ssd::device_at(&assignment.place)? {
                Some(device) => AditTarget::on_device(device, shape.cache_bytes, workers)?,
                None => AditTarget::open(&assignment.place, shape.cache_bytes, workers, &folder)?,
            };
            let outcome = match assignment.layers {
                true => layers(&adit, assignment),
                false => run_all(&adit, assignment, gate),
            };
            let closed = adit.close();
            let rows = outcome?;
            closed?;
            Ok(rows)
        }
        System::AditRun => Err(io::Error::other("`adit run` measures programs only")),
        System::Kernel(_) | System::Host => {
            let folder = Path::new(&assignment.place).join(&own);
            if !own.is_empty() {
                std::fs::create_dir(&folder)?;
            }
            let rows = run_all(&KernelTarget::new(&folder)?, assignment, gate)?;
            if !own.is_empty() {
                std::fs::remove_dir_all(&folder)?;
            }
            Ok(rows)
        }
        System::Raw => {
            let files = assignment.jobs.iter().map(|job| job.file_bytes(shape));
            let len_bytes = files.max().unwrap_or(0);
            match ssd::device_at(&assignment.place)? {
                Some(device) => {
                    let floor = FloorTarget::written(BareDevice::new(device), len_bytes)?;
                    run_all(&floor, assignment, gate)
                }
                None => {
                    let floor = FloorTarget::new(assignment.place.as_ref(), len_bytes)?;
                    run_all(&floor, assignment, gate)
                }
            }
        }
    }
}

/// Each job by processes that begin together.
fn measure_by_clients(assignment: &Assignment) -> io::Result<MeasuredRows> {
    let mut rows = Vec::new();
    for job in &assignment.jobs {
        let Job::Threads(point) = *job else {
            let what = format!("{job:?} can't be measured by several processes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        };
        let clients = (0..point.threads).map(|number| {
            let alone = Threads {
                threads: 1,
                ..point
            };
            Running::start(&Assignment {
                jobs: vec![Job::Threads(alone)],
                role: Role::Client {
                    number,
                    of: point.threads,
                },
                ..assignment.clone()
            })
        });
        let mut clients: Vec<Running> = clients.collect::<io::Result<_>>()?;
        let mut lines: Vec<_> = clients.iter_mut().map(Running::lines).collect();
        let measured = gate::lead(&mut lines)?;
        drop(lines);
        for client in &mut clients {
            if !client.0.wait()?.success() {
                return Err(io::Error::other("a client failed; its words are above"));
            }
        }
        let measured = measured.iter().map(|line| {
            let rows: MeasuredRows = serde_json::from_str(line).map_err(io::Error::other)?;
            Ok(rows.rows)
        });
        let measured: Vec<Vec<Measurement>> = measured.collect::<io::Result<_>>()?;
        rows.extend(all_together(&measured, point.threads)?);
    }
    Ok(MeasuredRows {
        rows,
        ..MeasuredRows::default()
    })
}

/// The rows of clients as those of all of them.
fn all_together(measured: &[Vec<Measurement>], clients: u32) -> io::Result<Vec<Measurement>> {
    let (first, others) = measured.split_first().expect("a job has a client");
    let row = |(index, first): (usize, &Measurement)| {
        let mut all = first.clone();
        let mut least = first.rate();
        let mut rates = least;
        for other in others {
            let other = other.get(index).filter(|other| other.id == first.id);
            let other = other.ok_or_else(|| io::Error::other("clients measured different rows"))?;
            all.operations += other.operations;
            all.seconds = all.seconds.max(other.seconds);
            all.cpu_seconds = all
                .cpu_seconds
                .zip(other.cpu_seconds)
                .map(|(a, b)| a.max(b));
            least = least.min(other.rate());
            rates += other.rate();
        }
        if clients > 1 {
            // Percentiles of each are not those of all.
            (all.p50_us, all.p99_us, all.p999_us) = (None, None, None);
            all.least_share = Some(least * f64::from(clients) / rates);
        }
        all.threads = clients;
        all.at = Some(clients.into());
        all.title.push_str(&threads_in_title(clients));
        Ok(all)
    };
    first.iter().enumerate().map(row).collect()
}

/// A client's process, which ends with this value.
struct Running(Child);

impl Running {
    fn start(assignment: &Assignment) -> io::Result<Running> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("measure")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = serde_json::to_vec(assignment).map_err(io::Error::other)?;
        line.push(b'\n');
        let sent = child.stdin.as_mut().expect("piped").write_all(&line);
        let running = Running(child);
        sent.map(|()| running)
    }

    fn lines(&mut self) -> gate::Client<BufReader<&mut ChildStdout>, &mut ChildStdin> {
        gate::Client {
            from: BufReader::new(self.0.stdout.as_mut().expect("piped")),
            to: self.0.stdin.as_mut().expect("piped"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended, unless something failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run_all<T: Target>(
    target: &T,
    assignment: &Assignment,
    gate: Option<&Gate>,
) -> io::Result<MeasuredRows> {
    let on_adit = matches!(
        assignment.system,
        System::Adit | System::Workers | System::Served
    );
    let mut rows = Vec::new();
    for &job in &assignment.jobs {
        match jobs::run(
            target,
            job,
            &assignment.shape,
            assignment.round,
            Look::Latencies,
            gate,
        ) {
            Ok(mut measured) => {
                if matches!(job, Job::Threads(_)) && assignment.system == System::Adit {
                    add_lock_shares(target, job, assignment, &mut measured)?;
                }
                rows.extend(measured.iter().map(|(key, sample)| sample.measurement(key)));
            }
            // A job that Adit cannot do is a failure; one that another system cannot do is left
            // out.
            Err(error) if error.kind() == io::ErrorKind::Unsupported && !on_adit => {}
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
    let again = jobs::run(target, job, &shape, assignment.round, Look::Lock, None)?;
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
