//! The jobs: what is asked of every system, once each, in the same words.
//!
//! A job measures one row of the table, or several that share their preparation. Preparation
//! (writing the file to read, warming the cache) and cleaning up are outside the measured time.
//! - `synced`: small durable changes;
//! - `pages`: random pages, past the cache and through it;
//! - `names`: create, stat, list, open, rename, unlink;
//! - `scan`: a large file from front to back;
//! - `grid`: one kind of operation in all its variations; `stream`: many requests in flight, sizes, files;
//! - `mixes`: as servers do it; `growth`: as something grows; `aging`: a volume with a past.

mod aging;
mod grid;
mod growth;
mod mixes;
mod names;
mod pages;
mod scan;
mod stream;
mod synced;

use std::io;
use std::sync::Barrier;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::calm::{Look, measure_calm};
use crate::data::{AlignedBuffer, Noise, PAGE_BYTES, Prng};
use crate::sample::{Limit, Sample, Timing, measure};
use crate::target::{Access, Name, Target, TargetFile};

pub use grid::{Action, Variation};
pub use growth::Growth;
pub use stream::{Axis, Stream};

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
    /// What operations cost as something grows.
    Grow(Growth),
    /// Fills most of the volume with files and removes them, several times: it measures nothing, but what comes
    /// after it meets a volume with a past.
    Age {
        /// How often.
        times: u32,
        /// How much of the volume is filled.
        percent: u32,
    },
}

impl Job {
    /// Numbers with which it can be measured; what is wrong otherwise.
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
            Job::Stream(stream) => {
                let sizes = 1..=REQUEST_BYTES_MAX;
                sizes.contains(&stream.request_bytes) && stream.depth > 0 && stream.files > 0
            }
            Job::Age { percent, .. } => percent <= 100,
            Job::NewFileSync
            | Job::OverwriteSync
            | Job::DirectWrite
            | Job::Names
            | Job::Scan
            | Job::Grow(_) => true,
        };
        match sound {
            true => Ok(()),
            false => Err(
                "threads, files, depths and sizes are above 0, requests at most 1 MiB, percentages at most 100",
            ),
        }
    }

    /// What the floor's file must cover for it.
    pub(crate) fn file_bytes(&self, shape: &Shape) -> u64 {
        match *self {
            Job::CachedRead { len_bytes, .. } | Job::CachedWrite { len_bytes } => len_bytes,
            Job::Scan => shape.scan_bytes,
            _ => shape.direct_bytes,
        }
    }
}

/// How much of everything; the same for all systems.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shape {
    /// How long one measurement of a time-limited job runs.
    pub slice: Duration,
    /// How many files the job about names makes.
    pub names: u64,
    /// The file of the direct jobs and of the overwrites.
    pub direct_bytes: u64,
    /// The file of the scan.
    pub scan_bytes: u64,
    /// What the system may keep in memory; the jobs of the grid work on a quarter of it, and on four times as much.
    pub cache_bytes: u64,
}

/// A row's measurement: the row's key, and what was measured.
pub(crate) type Measured = (RowKey, Sample);

/// Which row of the table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowKey {
    /// A short stable name, for programs.
    pub id: &'static str,
    /// What the table calls it.
    pub title: String,
    /// Threads that did it at the same time.
    pub threads: u32,
    /// Where on its curve, see [`Measurement::at`](crate::Measurement::at).
    pub at: Option<u64>,
    /// Bytes that each operation moves on behalf of the caller (0 where that means nothing).
    pub operation_bytes: u64,
}

impl RowKey {
    /// A row of one thread that is no point of a curve.
    pub fn new(id: &'static str, title: impl Into<String>, operation_bytes: u64) -> RowKey {
        RowKey {
            id,
            title: title.into(),
            threads: 1,
            at: None,
            operation_bytes,
        }
    }

    fn at(mut self, at: u64) -> RowKey {
        self.at = Some(at);
        self
    }

    fn with_threads(mut self, threads: u32) -> RowKey {
        self.threads = threads;
        if threads > 1 {
            self.title = format!("{}, {threads} threads", self.title);
        }
        self
    }
}

/// Runs one job once.
pub(crate) fn run<T: Target>(
    target: &T,
    job: Job,
    shape: &Shape,
    round: u32,
    look: Look,
) -> io::Result<Vec<Measured>> {
    let stage = Stage {
        target,
        shape,
        round,
        look,
        noise: Noise::new(u64::from(round) + 1),
    };
    match job {
        Job::AppendSync { threads } => synced::append(&stage, threads).map(one),
        Job::NewFileSync => synced::new_file(&stage).map(one),
        Job::OverwriteSync => synced::overwrite(&stage).map(one),
        Job::DirectRead { threads } => pages::direct_read(&stage, threads).map(one),
        Job::DirectWrite => pages::direct_write(&stage).map(one),
        Job::CachedRead { len_bytes, threads } => pages::cached_read(&stage, len_bytes, threads),
        Job::CachedWrite { len_bytes } => pages::cached_write(&stage, len_bytes).map(one),
        Job::Names => names::run(&stage),
        Job::Scan => scan::run(&stage),
        Job::Grid(variation) => grid::run(&stage, variation),
        Job::Stream(stream) => stream::run(&stage, stream),
        Job::Mail { threads } => mixes::mail(&stage, threads),
        Job::Web { threads } => mixes::web(&stage, threads),
        Job::Grow(growth) => growth::run(&stage, growth),
        Job::Age { times, percent } => aging::run(&stage, times, percent),
    }
}

fn one(measured: Measured) -> Vec<Measured> {
    vec![measured]
}

/// What a job needs at hand.
struct Stage<'a, T: Target> {
    target: &'a T,
    shape: &'a Shape,
    round: u32,
    look: Look,
    noise: Noise,
}

impl<T: Target> Stage<'_, T> {
    /// Measures an operation until the limit.
    fn measure(
        &self,
        limit: Limit,
        timing: Timing,
        operation: impl FnMut(u64) -> io::Result<()>,
    ) -> io::Result<Sample> {
        match self.look {
            Look::Latencies => measure(limit, timing, operation),
            Look::Calm => measure_calm(limit, false, operation),
            Look::Layers => measure_calm(limit, true, operation),
        }
    }

    /// Opens the written file of that size, making it at the first use. It stays for later rounds.
    fn written_file(&self, what: &str, len_bytes: u64, access: Access) -> io::Result<T::File> {
        let name = self.path(&format!("{what}-{len_bytes}"));
        if self.target.is_file_system() && self.target.stat(&name).ok() != Some(len_bytes) {
            let file = self.target.create(&name, access)?;
            self.write_all(&file, len_bytes)?;
            file.sync_all()?;
            if access == Access::Direct {
                // A system may take the first writes, which allocate, through its cache. Once it
                // is all there, a direct write leaves nothing cached that a read could be spared by.
                self.write_all(&file, len_bytes)?;
            }
            // Whatever the system still owes the device isn't part of the measurement.
            self.target.sync_everything()?;
        }
        self.target.open(&name, access)
    }

    fn write_all(&self, file: &T::File, len_bytes: u64) -> io::Result<()> {
        const CHUNK_BYTES: u64 = 1 << 20;
        let mut offset_bytes = 0;
        while offset_bytes < len_bytes {
            crate::interrupt::check()?;
            let chunk_bytes = (len_bytes - offset_bytes).min(CHUNK_BYTES);
            let chunk = self.noise.at(offset_bytes >> 12, chunk_bytes as usize);
            file.write_at(chunk, offset_bytes)?;
            offset_bytes += chunk_bytes;
        }
        Ok(())
    }

    fn path(&self, path: &str) -> Name {
        Name::new(self.target.folder(), path)
    }

    /// A file of this round.
    fn name(&self, what: &str, index: u64) -> Name {
        self.path(&format!("{what}-{}-{index}", self.round))
    }

    /// A folder of this round.
    fn folder(&self, what: &str) -> Name {
        self.path(&format!("{what}-{}", self.round))
    }

    /// A file in that folder.
    fn inside(&self, what: &str, file: std::fmt::Arguments<'_>) -> Name {
        self.path(&format!("{what}-{}/{file}", self.round))
    }
}

/// The same work in several threads that start together; `work(thread)`.
fn in_threads(threads: u32, work: impl Fn(u32) -> io::Result<Sample> + Sync) -> io::Result<Sample> {
    if threads <= 1 {
        return work(0);
    }
    let (work, barrier) = (&work, &Barrier::new(threads as usize));
    let samples: io::Result<Vec<Sample>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    barrier.wait();
                    work(thread)
                })
            })
            .collect();
        running
            .into_iter()
            .map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
            .collect()
    });
    Ok(Sample::side_by_side(samples?))
}

/// Reads the whole file once.
fn warm(file: &impl TargetFile, len_bytes: u64) -> io::Result<()> {
    const CHUNK_BYTES: u64 = 64 << 10;
    let mut buffer = AlignedBuffer::new(CHUNK_BYTES as usize);
    let mut offset_bytes = 0;
    while offset_bytes < len_bytes {
        crate::interrupt::check()?;
        let chunk_bytes = CHUNK_BYTES.min(len_bytes - offset_bytes);
        file.read_at(&mut buffer[..chunk_bytes as usize], offset_bytes)?;
        offset_bytes += chunk_bytes;
    }
    Ok(())
}

/// Offsets of random pages, different in each round and thread.
fn places(round: u32, thread: u32, len_bytes: u64) -> impl FnMut() -> u64 {
    let pages = len_bytes / PAGE_BYTES as u64;
    let mut prng = Prng::new(u64::from(round) << 32 | u64::from(thread));
    move || prng.below(pages) * PAGE_BYTES as u64
}

/// A size as people write it.
pub(crate) fn readable_bytes(len_bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    for (shift, unit) in UNITS {
        if len_bytes >= 1 << shift && len_bytes.is_multiple_of(1 << shift) {
            return format!("{} {unit}", len_bytes >> shift);
        }
    }
    format!("{len_bytes} B")
}
