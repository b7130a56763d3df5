//! What the time of each operation is spent on: `adit bench --breakdown`.
//!
//! The same jobs as in the benchmark, on Adit only. Each is measured twice in each round: with the layers looked at, and without, since
//! looking takes time too. Stretches of time in which somebody else got the processor don't count. What a job leaves to the end (the syncfs of the operations on names) is in neither.

use std::io;
use std::path::Path;
use std::time::Duration;

use adit_base::breakdown::Layer;
use serde::{Deserialize, Serialize};

use crate::calm::{Calm, Look};
use crate::embedded::AditTarget;
use crate::interrupt;
use crate::jobs::{Job, Shape};
use crate::place::Place;
use crate::report::Environment;
use crate::suite::{Options, folder_in_volume, temporary_image};

/// What each operation spends its time on. `Display` makes tables and bars.
#[derive(Clone, Debug, Serialize)]
pub struct Breakdown {
    /// Where it was measured.
    pub environment: Environment,
    /// One for each place: the directory's device, memory.
    pub blocks: Vec<BreakdownBlock>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// All operations at one place.
#[derive(Clone, Debug, Serialize)]
pub struct BreakdownBlock {
    /// What it is about.
    pub title: String,
    /// The operations.
    pub rows: Vec<BreakdownRow>,
}

/// One kind of operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BreakdownRow {
    /// A short stable name, for programs; that of the benchmark's row.
    pub id: String,
    /// What the table calls it.
    pub title: String,
    /// Threads that did it at the same time.
    pub threads: u32,
    /// Operations that the layers are of.
    pub operations: u64,
    /// Microseconds of a thread for one operation, without a look at the layers.
    pub untimed_us: f64,
    /// The same with the look; the sum of the layers.
    pub timed_us: f64,
    /// All layers, those that took no time too.
    pub layers: Vec<LayerShare>,
}

/// What one layer has of an operation's time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerShare {
    /// A short stable name, for programs.
    pub layer: String,
    /// Microseconds of one operation, without the layers inside of it.
    pub us: f64,
    /// Part of the sum, 0 to 1.
    pub share: f64,
    /// How often an operation enters it.
    pub entries: f64,
}

/// The rows: what the jobs call them, and what the table does.
const ROWS: [(&str, &str); 11] = [
    ("cached-read", "cached read 4 KiB"),
    ("cached-write", "cached write 4 KiB"),
    ("direct-read", "direct read 4 KiB"),
    ("append-sync", "append + fdatasync"),
    ("overwrite-sync", "overwrite + fdatasync"),
    ("new-file-sync", "new file + fsync"),
    ("create", "create + close"),
    ("stat", "stat"),
    ("open", "open + close"),
    ("rename", "rename"),
    ("unlink", "unlink"),
];

/// How large and how long.
struct Sizes {
    shape: Shape,
    jobs: Vec<Job>,
    rounds: u32,
    image_bytes: u64,
}

impl Sizes {
    fn new(quick: bool, threads: u32) -> Sizes {
        const MIB: u64 = 1 << 20;
        let (slice_ms, names, file_bytes, rounds) = match quick {
            true => (30, 1_000, 16 * MIB, 2),
            false => (500, 20_000, 64 * MIB, 3),
        };
        Sizes {
            shape: Shape {
                slice: Duration::from_millis(slice_ms),
                names,
                direct_bytes: file_bytes,
                scan_bytes: 0,
                cache_bytes: file_bytes * 8,
            },
            jobs: jobs(file_bytes, threads),
            rounds,
            image_bytes: file_bytes * 16,
        }
    }
}

/// What is broken down; cached rows on a file of `len_bytes`.
pub(crate) fn jobs(len_bytes: u64, threads: u32) -> Vec<Job> {
    let mut jobs = vec![Job::AppendSync { threads: 1 }];
    if threads > 1 {
        jobs.push(Job::AppendSync { threads });
    }
    jobs.extend([
        Job::NewFileSync,
        Job::OverwriteSync,
        Job::DirectRead { threads: 1 },
        Job::CachedRead {
            len_bytes,
            threads: 1,
        },
        Job::CachedWrite { len_bytes },
        Job::Names,
    ]);
    jobs
}

/// Measures what each operation spends its time on, on a volume in an image (or an existing one) and on one in memory. `progress` is told
/// what is being measured, and which part (0 to 1) is done.
///
/// Ctrl-C ends it with an error of kind `Interrupted`; the temporary files are gone then too.
pub fn run_breakdown(
    options: &Options,
    progress: &mut dyn FnMut(&str, f64),
) -> io::Result<Breakdown> {
    let _guard = interrupt::Guard::new();
    let directory = options.directory()?;
    let sizes = Sizes::new(options.quick, options.threads());
    let mut disk_progress = |what: &str, done: f64| progress(what, done / 2.0);
    let (disk, place) = match &options.volume {
        Some(volume) => {
            let folder = folder_in_volume();
            let disk = measure(
                volume,
                &folder,
                &options.title(),
                &sizes,
                &mut disk_progress,
            );
            (disk?, format!("on {volume}"))
        }
        None => {
            let disk = in_image(&directory, &options.title(), &sizes, &mut disk_progress);
            (disk?, format!("in {}", directory.display()))
        }
    };
    let address = format!("mem:{}M", sizes.image_bytes >> 20);
    let memory = measure(
        &address,
        "",
        "In memory (mem:)",
        &sizes,
        &mut |what, done| {
            progress(what, 0.5 + done / 2.0);
        },
    );
    let mut notes = vec![
        "How to read it: each moment of the calling thread belongs to one layer, the innermost; so they add up to the whole. Looking \
         costs some 35 ns for each layer that is entered, which is in the sum; `off` is the time without. Milliseconds in which somebody \
         else was given the processor don't count. × 2 is the time of one of two threads."
            .to_owned(),
    ];
    let mut blocks = vec![disk];
    match memory {
        Ok(memory) => blocks.push(memory),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
        Err(error) => notes.push(format!("There is no block about memory: {error}.")),
    }
    Ok(Breakdown {
        environment: Environment::here(place),
        blocks,
        notes,
    })
}

/// As [`run_breakdown`], on one volume that has been formatted and has nothing at these names: some files stay in it.
pub fn breakdown_of(
    address: &str,
    title: &str,
    quick: bool,
    progress: &mut dyn FnMut(&str, f64),
) -> io::Result<BreakdownBlock> {
    let _guard = interrupt::Guard::new();
    let threads = Options::default().threads();
    measure(address, "", title, &Sizes::new(quick, threads), progress)
}

fn in_image(
    directory: &Path,
    title: &str,
    sizes: &Sizes,
    progress: &mut dyn FnMut(&str, f64),
) -> io::Result<BreakdownBlock> {
    progress("writing the image to measure on", 0.0);
    let place = Place::inside(directory)?;
    place.need(sizes.image_bytes)?;
    let address = temporary_image(&place, sizes.image_bytes)?;
    measure(&address, "", title, sizes, progress)
}

/// Measures on one volume, in a folder of it (empty: in its root).
fn measure(
    address: &str,
    folder: &str,
    title: &str,
    sizes: &Sizes,
    progress: &mut dyn FnMut(&str, f64),
) -> io::Result<BreakdownBlock> {
    let adit = AditTarget::open(address, sizes.shape.cache_bytes, folder)?;
    let rows = measure_rows(
        &adit,
        &sizes.jobs,
        &sizes.shape,
        sizes.rounds,
        &mut |what, done| progress(&format!("{title}: {what}"), done),
    );
    let closed = adit.close();
    let rows = rows?;
    closed?;
    Ok(BreakdownBlock {
        title: title.to_owned(),
        rows,
    })
}

/// One row for each kind of operation in the jobs.
pub(crate) fn measure_rows(
    adit: &AditTarget,
    jobs: &[Job],
    shape: &Shape,
    rounds: u32,
    progress: &mut dyn FnMut(&str, f64),
) -> io::Result<Vec<BreakdownRow>> {
    let mut rows: Vec<Gathered> = Vec::new();
    let steps = rounds as usize * jobs.len();
    for step in 0..steps {
        let (round, job) = (step / jobs.len(), jobs[step % jobs.len()]);
        progress(&format!("{job:?}"), step as f64 / steps as f64);
        // Not always the same first: the second finds things warmer.
        let looks = match round.is_multiple_of(2) {
            true => [Look::Calm, Look::Layers],
            false => [Look::Layers, Look::Calm],
        };
        for look in looks {
            let turn = 2 * round as u32 + u32::from(look == Look::Layers);
            for (key, sample) in crate::jobs::run(adit, job, shape, turn, look)? {
                let known = |row: &Gathered| (row.id, row.threads) == (key.id, key.threads);
                let index = rows.iter().position(known).unwrap_or_else(|| {
                    rows.push(Gathered::new(key.id, key.threads));
                    rows.len() - 1
                });
                rows[index].add(&sample.calm.unwrap_or_default());
            }
        }
    }
    let in_order = ROWS.iter().flat_map(|(id, title)| {
        let of_id = rows.iter().filter(move |row| row.id == *id);
        of_id.map(move |row| row.finish(title))
    });
    Ok(in_order.collect())
}

/// A row while the rounds go.
struct Gathered {
    id: &'static str,
    threads: u32,
    untimed: Calm,
    timed: Calm,
}

impl Gathered {
    fn new(id: &'static str, threads: u32) -> Gathered {
        Gathered {
            id,
            threads,
            untimed: Calm::default(),
            timed: Calm::default(),
        }
    }

    fn add(&mut self, calm: &Calm) {
        match calm.layers {
            Some(_) => self.timed.add(calm),
            None => self.untimed.add(calm),
        }
    }

    fn finish(&self, title: &str) -> BreakdownRow {
        let layers = self.timed.layers.unwrap_or_default();
        let operations = self.timed.operations.max(1) as f64;
        let untimed_operations = self.untimed.operations.max(1) as f64;
        let total_ns = layers.total_ns().max(1) as f64;
        let share = |layer: Layer| {
            let spent = layers.of(layer);
            LayerShare {
                layer: layer.name().to_owned(),
                us: spent.ns as f64 / operations / 1000.0,
                share: spent.ns as f64 / total_ns,
                entries: spent.entries as f64 / operations,
            }
        };
        BreakdownRow {
            id: self.id.to_owned(),
            title: match self.threads {
                1 => title.to_owned(),
                threads => format!("{title} × {threads}"),
            },
            threads: self.threads,
            operations: self.timed.operations,
            untimed_us: self.untimed.elapsed.as_secs_f64() * 1e6 / untimed_operations,
            timed_us: total_ns / operations / 1000.0,
            layers: Layer::ALL.map(share).to_vec(),
        }
    }
}

impl Breakdown {
    /// The breakdown for programs.
    pub fn to_json(&self) -> io::Result<String> {
        serde_json::to_string_pretty(self).map_err(io::Error::other)
    }
}
