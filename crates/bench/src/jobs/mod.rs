//! The jobs: the requests to every system, each written once.
//!
//! A job measures one row of the table, or several that share their preparation. Preparation
//! (writing the file to read, warming the cache) and cleaning up are outside the measured time.
//! - `synced`: small durable changes;
//! - `pages`: random pages, past the cache and through it;
//! - `names`: create, stat, list, open, rename, unlink;
//! - `scan`: a large file from front to back;
//! - `grid`: one kind of operation in all its variations; `stream`: many requests in flight, sizes,
//!   files;
//! - `threads`: one operation by many threads; `mixes`: several operations at once, as in servers;
//!   `growth`: as something grows; `aging`: a volume with a past.

mod aging;
pub(crate) mod breakdown;
mod grid;
mod growth;
mod mixes;
mod names;
mod pages;
mod scan;
pub(crate) mod stage;
mod stream;
mod synced;
mod threads;

use std::io;

use serde::{Deserialize, Serialize};

use crate::measurement::calm::Look;
use crate::measurement::data::{Noise, PAGE_BYTES};
use crate::measurement::gate::Gate;
use crate::target::Target;
use stage::{Measured, Shape, Stage};

pub use grid::{Action, Variation};
pub use growth::Growth;
pub use stream::{Axis, Stream};
pub use threads::{ThreadOperation, Threads};

/// One job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Job {
    /// Append 100 bytes, fdatasync; each thread its own file.
    AppendSync {
        /// Threads that do it at the same time.
        threads: u32,
    },
    /// Create a file, write 4 KiB, fsync, close.
    NewFileSync,
    /// Overwrite a random page of a written file, fdatasync.
    OverwriteSync,
    /// Read random pages past the cache.
    DirectRead {
        /// Threads that do it at the same time.
        threads: u32,
    },
    /// Overwrite random pages past the cache.
    DirectWrite,
    /// Read random pages that are all in the cache.
    CachedRead {
        /// Size of the file.
        len_bytes: u64,
        /// Threads that do it at the same time.
        threads: u32,
    },
    /// Overwrite random pages in the cache, no sync.
    CachedWrite {
        /// Size of the file.
        len_bytes: u64,
    },
    /// Create, stat, list, open and close, rename, unlink; each block ends in a syncfs.
    Names,
    /// Write a large file, read it through the cache and past it.
    Scan,
    /// Reads, overwrites, appends: in order or at random, in memory or not, of one file or several.
    Grid(Variation),
    /// Requests past the cache, many in flight.
    Stream(Stream),
    /// One kind of operation by several threads, on one file or on one each.
    Threads(Threads),
    /// Append 100 bytes, no sync, while another thread overwrites a file in writes of 1 MiB.
    AppendBesideWrites,
    /// A mail server's mix.
    Mail {
        /// Threads that do it at the same time.
        threads: u32,
    },
    /// A web server's mix.
    Web {
        /// Threads that do it at the same time.
        threads: u32,
    },
    /// The cost of operations as something grows.
    Grow(Growth),
    /// Fills most of the volume with files and removes them, several times: it measures nothing,
    /// but what comes after it meets a volume with a past.
    Age {
        /// How often.
        times: u32,
        /// How much of the volume is filled.
        percent: u32,
    },
}

impl Job {
    /// Checks its numbers; says what is wrong with them.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        const REQUEST_BYTES_MAX: u32 = 1 << 20;
        let sound = match *self {
            Job::AppendSync { threads }
            | Job::DirectRead { threads }
            | Job::Mail { threads }
            | Job::Web { threads } => threads > 0,
            Job::CachedRead { len_bytes, threads } => threads > 0 && len_bytes >= PAGE_BYTES as u64,
            Job::CachedWrite { len_bytes } => len_bytes >= PAGE_BYTES as u64,
            Job::Grid(variation) => variation.threads > 0,
            Job::Threads(point) => (1..=threads::THREADS_MAX).contains(&point.threads),
            Job::Stream(stream) => {
                let sizes = 1..=REQUEST_BYTES_MAX;
                sizes.contains(&stream.request_bytes) && stream.depth > 0 && stream.files > 0
            }
            Job::Age { percent, .. } => percent <= 100,
            Job::NewFileSync
            | Job::OverwriteSync
            | Job::DirectWrite
            | Job::AppendBesideWrites
            | Job::Names
            | Job::Scan
            | Job::Grow(_) => true,
        };
        match sound {
            true => Ok(()),
            false => Err(
                "threads, files, depths and sizes are above 0, requests at most 1 MiB, threads of a curve at most 1024, percentages at most 100",
            ),
        }
    }

    /// Does it work on names, or on more than the floor's one file? Such a job is left out there.
    fn needs_a_file_system(&self) -> bool {
        use Job::*;
        matches!(
            self,
            AppendBesideWrites | Names | Grid(_) | Mail { .. } | Web { .. } | Grow(_) | Age { .. }
        )
    }

    /// The size of the floor's file for it.
    pub(crate) fn file_bytes(&self, shape: &Shape) -> u64 {
        match *self {
            Job::CachedRead { len_bytes, .. } | Job::CachedWrite { len_bytes } => len_bytes,
            Job::Scan => shape.scan_bytes,
            Job::Threads(_) => threads::FILES_BYTES,
            _ => shape.direct_bytes,
        }
    }
}

/// Runs one job once.
pub(crate) fn run<T: Target>(
    target: &T,
    job: Job,
    shape: &Shape,
    round: u32,
    look: Look,
    gate: Option<&Gate>,
) -> io::Result<Vec<Measured>> {
    let stage = Stage {
        target,
        shape,
        round,
        look,
        noise: Noise::new(u64::from(round) + 1),
        gate,
    };
    if !target.is_file_system() && job.needs_a_file_system() {
        return Ok(Vec::new());
    }
    match job {
        Job::AppendSync { threads } => synced::append(&stage, threads, false).map(one),
        Job::NewFileSync => synced::new_file(&stage, 1, false).map(one),
        Job::OverwriteSync => synced::overwrite(&stage).map(one),
        Job::DirectRead { threads } => pages::direct_read(&stage, threads).map(one),
        Job::DirectWrite => pages::direct_write(&stage).map(one),
        Job::CachedRead { len_bytes, threads } => pages::cached_read(&stage, len_bytes, threads),
        Job::CachedWrite { len_bytes } => pages::cached_write(&stage, len_bytes).map(one),
        Job::Names => names::run(&stage),
        Job::Scan => scan::run(&stage),
        Job::Grid(variation) => grid::run(&stage, variation),
        Job::Stream(stream) => stream::run(&stage, stream),
        Job::Threads(point) => threads::run(&stage, point),
        Job::AppendBesideWrites => mixes::append_beside_writes(&stage).map(one),
        Job::Mail { threads } => mixes::mail(&stage, threads),
        Job::Web { threads } => mixes::web(&stage, threads),
        Job::Grow(growth) => growth::run(&stage, growth),
        Job::Age { times, percent } => aging::run(&stage, times, percent),
    }
}

fn one(measured: Measured) -> Vec<Measured> {
    vec![measured]
}
