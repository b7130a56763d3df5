//! The context of every job: the system, the sizes, the round, and written files.

use std::io;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use adit_base::held;
use serde::{Deserialize, Serialize};

use crate::measurement::calm::{Look, measure_calm};
use crate::measurement::data::{AlignedBuffer, Noise, PAGE_BYTES};
use crate::measurement::gate::Gate;
use crate::measurement::interrupt;
use crate::measurement::resources::observed;
use crate::measurement::row::RowKey;
use crate::measurement::sample::{Limit, Sample, Timing, measure};
use crate::target::{Access, Name, Target, TargetFile};
use adit_base::random::Prng;

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
    /// The memory for the system's cache; the jobs of the grid work on a quarter of it, and on four
    /// times as much.
    pub cache_bytes: u64,
}

/// A row's measurement: the row's key, and what was measured.
pub(crate) type Measured = (RowKey, Sample);

/// The context of a job.
pub(super) struct Stage<'a, T: Target> {
    pub(super) target: &'a T,
    pub(super) shape: &'a Shape,
    pub(super) round: u32,
    pub(super) look: Look,
    pub(super) noise: Noise,
    /// Where it waits for the others, if it is one of several clients.
    pub(super) gate: Option<&'a Gate>,
}

impl<T: Target> Stage<'_, T> {
    /// Measures an operation until the limit.
    pub(super) fn measure(
        &self,
        limit: Limit,
        timing: Timing,
        operation: impl FnMut(u64) -> io::Result<()>,
    ) -> io::Result<Sample> {
        match self.look {
            Look::Latencies | Look::Lock => measure(limit, timing, operation),
            Look::Calm => measure_calm(limit, false, operation),
            Look::Layers => measure_calm(limit, true, operation),
        }
    }

    /// Measures an operation until the limit, and the resources that it takes.
    pub(super) fn observe(
        &self,
        limit: Limit,
        timing: Timing,
        operation: impl FnMut(u64) -> io::Result<()>,
    ) -> io::Result<Sample> {
        observed(|| self.measure(limit, timing, operation))
    }

    /// Likewise, with an end (a sync) that belongs to the time of the operations.
    pub(super) fn observe_to(
        &self,
        limit: Limit,
        timing: Timing,
        operation: impl FnMut(u64) -> io::Result<()>,
        end: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<Sample> {
        to_the_end(|| self.measure(limit, timing, operation), end)
    }

    /// Processes that do the same at the same time, each on files of its own.
    pub(super) fn clients(&self) -> u32 {
        self.gate.map_or(1, |gate| gate.clients)
    }

    /// Measures, all clients at the same time; with a look at the lock, the share of the time in
    /// which it is held, too.
    pub(super) fn together(
        &self,
        measure: impl FnOnce() -> io::Result<Sample>,
    ) -> io::Result<Sample> {
        self.gate.map_or(Ok(()), Gate::pass)?;
        if self.look != Look::Lock {
            return measure();
        }
        let held = held::start();
        let mut sample = measure()?;
        sample.lock_share = Some(held.take());
        Ok(sample)
    }

    /// Opens the written file of that size, making it at the first use. It stays for later rounds.
    pub(super) fn written_file(
        &self,
        what: &str,
        len_bytes: u64,
        access: Access,
    ) -> io::Result<T::File> {
        let name = self.path(&format!("{what}-{len_bytes}"));
        if self.target.is_file_system() && self.target.stat(&name).ok() != Some(len_bytes) {
            let file = self.target.create(&name, access)?;
            self.write_all(&file, len_bytes)?;
            file.sync_all()?;
            if access == Access::Direct {
                // A system may take the first writes, which allocate, through its cache. Once all
                // of it is allocated, a direct write leaves nothing in the cache that would spare a
                // read.
                self.write_all(&file, len_bytes)?;
            }
            // Writes that the system still owes the device are not part of the measurement.
            self.target.sync_everything()?;
        }
        self.target.open(&name, access)
    }

    pub(super) fn write_all(&self, file: &T::File, len_bytes: u64) -> io::Result<()> {
        const CHUNK_BYTES: u64 = 1 << 20;
        let mut offset_bytes = 0;
        while offset_bytes < len_bytes {
            interrupt::check()?;
            let chunk_bytes = (len_bytes - offset_bytes).min(CHUNK_BYTES);
            let chunk = self.noise.at(offset_bytes >> 12, chunk_bytes as usize);
            file.write_at(chunk, offset_bytes)?;
            offset_bytes += chunk_bytes;
        }
        Ok(())
    }

    /// A folder with so many files of this size; the folder, and they.
    pub(super) fn small_files(
        &self,
        what: &str,
        count: u64,
        len_bytes: usize,
    ) -> io::Result<(Name, Vec<Name>)> {
        let folder = self.folder(what);
        self.target.create_folder(&folder)?;
        let name = |file| self.inside(what, format_args!("{file:06}"));
        let names: Vec<Name> = (0..count).map(name).collect();
        for (turn, name) in names.iter().enumerate() {
            let file = self.target.create(name, Access::Cached)?;
            file.write_at(self.noise.at(turn as u64, len_bytes), 0)?;
        }
        self.target.sync_everything()?;
        Ok((folder, names))
    }

    pub(super) fn path(&self, path: &str) -> Name {
        Name::new(self.target.folder(), path)
    }

    /// A file of this round.
    pub(super) fn name(&self, what: &str, index: u64) -> Name {
        self.path(&format!("{what}-{}-{index}", self.round))
    }

    /// A folder of this round.
    pub(super) fn folder(&self, what: &str) -> Name {
        self.path(&format!("{what}-{}", self.round))
    }

    /// A file in that folder.
    pub(super) fn inside(&self, what: &str, file: std::fmt::Arguments<'_>) -> Name {
        self.path(&format!("{what}-{}/{file}", self.round))
    }
}

/// Measures work and an end that belongs to its time.
pub(super) fn to_the_end(
    work: impl FnOnce() -> io::Result<Sample>,
    end: impl FnOnce() -> io::Result<()>,
) -> io::Result<Sample> {
    observed(|| {
        let started = Instant::now();
        let mut sample = work()?;
        end()?;
        sample.elapsed = started.elapsed();
        Ok(sample)
    })
}

/// The same work in several threads that start together; `work(thread)`. Measures what all of it
/// takes.
pub(super) fn in_threads(
    threads: u32,
    work: impl Fn(u32) -> io::Result<Sample> + Sync,
) -> io::Result<Sample> {
    observed(|| side_by_side(threads, work))
}

fn side_by_side(
    threads: u32,
    work: impl Fn(u32) -> io::Result<Sample> + Sync,
) -> io::Result<Sample> {
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
pub(super) fn warm(file: &impl TargetFile, len_bytes: u64) -> io::Result<()> {
    const CHUNK_BYTES: u64 = 64 << 10;
    let mut buffer = AlignedBuffer::new(CHUNK_BYTES as usize);
    let mut offset_bytes = 0;
    while offset_bytes < len_bytes {
        interrupt::check()?;
        let chunk_bytes = CHUNK_BYTES.min(len_bytes - offset_bytes);
        file.read_at(&mut buffer[..chunk_bytes as usize], offset_bytes)?;
        offset_bytes += chunk_bytes;
    }
    Ok(())
}

/// Offsets of random pages, different in each round and thread.
pub(super) fn places(round: u32, thread: u32, len_bytes: u64) -> impl FnMut() -> u64 {
    let pages = len_bytes / PAGE_BYTES as u64;
    let mut prng = Prng::new(u64::from(round) << 32 | u64::from(thread));
    move || prng.below(pages) * PAGE_BYTES as u64
}

/// A size as people write it.
pub(super) fn readable_bytes(len_bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    for (shift, unit) in UNITS {
        if len_bytes >= 1 << shift && len_bytes.is_multiple_of(1 << shift) {
            return format!("{} {unit}", len_bytes >> shift);
        }
    }
    format!("{len_bytes} B")
}
