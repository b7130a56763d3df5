//! The groups of curves over threads: the same operations by more and more threads, at several
//! places.

use std::time::Duration;

use super::place::Place;
use super::suites::{Group, Work};
use crate::jobs::stage::Shape;
use crate::jobs::{Job, ThreadOperation, Threads};
use crate::target::ssd::Ssd;

const CACHE_BYTES: u64 = 512 << 20;

/// The curves of a suite.
pub(super) struct Curves {
    slice: Duration,
    pub(super) threads: &'static [u32],
    of: &'static [ThreadOperation],
    places: &'static [Place],
}

impl Curves {
    /// Below two minutes on two cores.
    pub(super) fn quick() -> Curves {
        Curves {
            slice: Duration::from_millis(150),
            threads: &[1, 2, 4, 16],
            of: &[
                ThreadOperation::AppendSync,
                ThreadOperation::CachedWrite,
                ThreadOperation::CachedRead,
                ThreadOperation::Create,
            ],
            places: &[Place::Device, Place::Ssd(Ssd::Us80)],
        }
    }

    /// Below 25 minutes on two cores.
    pub(super) fn full() -> Curves {
        Curves {
            slice: Duration::from_millis(250),
            threads: &[1, 2, 4, 8, 16],
            of: &ThreadOperation::ALL,
            places: &[
                Place::Device,
                Place::Ssd(Ssd::Us10),
                Place::Ssd(Ssd::Us80),
                Place::Loop,
                Place::Image,
            ],
        }
    }

    /// A group for each place; other sizes as in `shape`.
    pub(super) fn groups(&self, shape: &Shape) -> Vec<Group> {
        let shape = Shape {
            slice: self.slice,
            cache_bytes: CACHE_BYTES,
            ..shape.clone()
        };
        let group = |&place: &Place| {
            let (id, title, terms) = words(place);
            Group {
                id,
                title,
                terms,
                cache_bytes: CACHE_BYTES,
                place,
                work: Work::Jobs(self.jobs(), shape.clone()),
            }
        };
        self.places.iter().map(group).collect()
    }

    fn jobs(&self) -> Vec<Job> {
        let mut jobs = Vec::new();
        for &of in self.of {
            for shared in [false, true] {
                // A single thread shares nothing.
                let counts = self.threads.iter().filter(|&&count| count > 1 || !shared);
                jobs.extend(counts.map(|&threads| {
                    Job::Threads(Threads {
                        of,
                        shared,
                        threads,
                    })
                }));
            }
        }
        jobs
    }
}

/// Curves over clients: a process each.
pub(super) fn clients(shape: &Shape) -> Group {
    let mut jobs = Vec::new();
    for of in ThreadOperation::ALL {
        for threads in [1, 2, 4, 8, 16] {
            let shared = false;
            jobs.push(Job::Threads(Threads {
                of,
                shared,
                threads,
            }));
        }
    }
    let shape = Shape {
        slice: Duration::from_secs(1),
        cache_bytes: CACHE_BYTES,
        ..shape.clone()
    };
    Group {
        id: "clients",
        title: "By clients",
        terms: "Each client is a process of one thread, with files and directories of its own; they begin together and run for the same \
                time. served: clients of one server, whose poller needs a core, too. adit: the threads of one process that has the volume \
                embedded. A time is the elapsed one divided by the operations of all clients. Files that are read or overwritten: 16 MiB \
                together, read before.",
        cache_bytes: CACHE_BYTES,
        place: Place::Device,
        work: Work::Clients(jobs, shape),
    }
}

/// Id, title and terms.
fn words(place: Place) -> (&'static str, &'static str, &'static str) {
    match place {
        Place::Device => (
            "threads",
            "By threads",
            "The threads start together and run for the same time, on files or directories of their own, or all on one. A time is the \
             elapsed one divided by the operations of all threads. Files that are read or overwritten: 16 MiB together, read before. \
             Creating, renaming and unlinking end in a syncfs that belongs to their time.",
        ),
        Place::Ssd(Ssd::Us10) => (
            "threads-ssd10",
            "By threads, with the latency of a fast SSD",
            "As `threads`, on memory that makes one wait: a read takes 10 µs, a write 10 µs, a flush 2 µs. A thread that waits polls the \
             clock, which is processor time, and yields its core.",
        ),
        Place::Ssd(Ssd::Us80) => (
            "threads-ssd80",
            "By threads, with an SSD's latency",
            "As `threads`, on memory that makes one wait: a read takes 80 µs, a write 15 µs, a flush 5 µs. A thread that waits polls the \
             clock, which is processor time, and yields its core.",
        ),
        Place::Loop => (
            "threads-loop",
            "By threads, on a loop device",
            "As `threads`, on a loop device over a file in memory (tmpfs), whose own threads need the cores, too.",
        ),
        Place::Image => (
            "threads-image",
            "By threads, on an image file of the local disk",
            "As `threads`, on an image that was written from end to end. Adit opens it; the kernel's file systems are on a loop device over \
             it, with direct IO; host: files beside it, without an image; raw: a written file beside it.",
        ),
    }
}
