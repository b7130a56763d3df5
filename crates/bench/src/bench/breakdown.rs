//! The time of each operation by layers: `adit bench --breakdown`.
//!
//! The same jobs as in the benchmark, on Adit only; `jobs/breakdown.rs` measures them.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::place::Place;
use super::suite::{Options, folder_in_volume, temporary_image};
use crate::jobs::Job;
use crate::jobs::breakdown::{jobs, measure_rows};
use crate::jobs::stage::Shape;
use crate::measurement::environment::Environment;
use crate::measurement::interrupt;
use crate::measurement::layers::BreakdownRow;
use crate::target::adit::AditTarget;

/// The time of each operation by layers. `Display` makes tables and bars.
#[derive(Clone, Debug, Serialize)]
pub struct Breakdown {
    /// Where it was measured.
    pub environment: Environment,
    /// One for each place: the directory's device, memory.
    pub blocks: Vec<BreakdownBlock>,
    /// Remarks for the reader.
    pub notes: Vec<String>,
}

/// All operations at one place.
#[derive(Clone, Debug, Serialize)]
pub struct BreakdownBlock {
    /// Its title.
    pub title: String,
    /// The operations.
    pub rows: Vec<BreakdownRow>,
}

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

/// Measures the time of each operation by layers, on a volume in an image (or an existing one) and
/// on one in memory. `progress` gets the current measurement and the part (0 to 1) that is done.
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
    let adit = AditTarget::open(address, sizes.shape.cache_bytes, 1, folder)?;
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

impl Breakdown {
    /// The breakdown for programs.
    pub fn to_json(&self) -> io::Result<String> {
        serde_json::to_string_pretty(self).map_err(io::Error::other)
    }
}
