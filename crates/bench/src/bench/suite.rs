//! The benchmark that `adit bench` runs: its places, sizes, systems and notes.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::place::Place;
use super::report::{Block, Report};
use super::schedule::{self, Contender, Plan};
use crate::jobs::Job;
use crate::jobs::stage::Shape;
use crate::measurement::environment::Environment;
use crate::measurement::errors::while_doing;
use crate::measurement::interrupt;
use crate::measurement::medians::RAW;
use crate::target::adit::{AditTarget, io_error};
use crate::target::floor::{self, FloorTarget};
use crate::target::kernel::KernelTarget;

const MIB: u64 = 1 << 20;

/// Options of `adit bench`. The default: everything, in and beside the current directory.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// An existing volume to use, instead of a temporary image. A folder is made in it and removed.
    pub volume: Option<String>,
    /// The directory whose file system is the competitor, instead of the current one. The
    /// temporary image and the floor's file lie there too.
    pub against: Option<PathBuf>,
    /// Threads of the rows that have several; 0 means two, or one on a single core.
    pub threads: u32,
    /// Smaller and shorter: under a minute.
    pub quick: bool,
}

impl Options {
    /// The title of the block about the device.
    pub(crate) fn title(&self) -> String {
        match &self.volume {
            Some(volume) => format!("Volume {volume}"),
            None => "An image file in this directory".to_owned(),
        }
    }

    /// Where the temporary image goes.
    pub(crate) fn directory(&self) -> io::Result<PathBuf> {
        match &self.against {
            Some(directory) => Ok(directory.clone()),
            None => std::env::current_dir(),
        }
    }

    /// Threads of the rows that have several.
    pub(crate) fn threads(&self) -> u32 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        match self.threads {
            0 => cores.min(2) as u32,
            threads => threads,
        }
    }
}

/// The folder that the benchmark makes, and removes, in an existing volume.
pub(crate) fn folder_in_volume() -> String {
    format!("/adit-bench-{}", std::process::id())
}

/// Runs the benchmark. `progress` gets the current measurement and the part (0 to 1) that is done.
///
/// Ctrl-C ends it with an error of kind `Interrupted`; the temporary files are gone then too.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str, f64)) -> io::Result<Report> {
    let _guard = interrupt::Guard::new();
    let against = options.directory()?;
    let sizes = Sizes::new(options);
    let place = Place::inside(&against)?;
    place.need(sizes.disk_bytes(options.volume.is_none()))?;
    let disk = on_disk(options, &sizes, &place, &mut |what, done| {
        progress(what, done * 0.65);
    })?;
    let memory = in_memory(&sizes, &mut |what, done| {
        progress(what, 0.65 + done * 0.35);
    });
    let environment = Environment::here(format!("in {}", against.display()));
    finish(options, environment, disk, memory)
}

/// The report. It has the block about the disk even if there was no memory for the other one.
fn finish(
    options: &Options,
    environment: Environment,
    disk: Block,
    memory: io::Result<Block>,
) -> io::Result<Report> {
    let mut notes = notes(options, &disk);
    let mut blocks = vec![disk];
    match memory {
        Ok(memory) => {
            notes.push(
                "In memory: tmpfs promises nothing (its fsync does nothing), Adit does the same work \
                 there as on a disk. The block shows what the software costs when the device is free."
                    .to_owned(),
            );
            blocks.push(memory);
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
        Err(error) => notes.push(format!("There is no block about memory: {error}.")),
    }
    Ok(Report {
        environment,
        blocks,
        notes,
    })
}

/// How large and how long, for quick and for thorough runs.
struct Sizes {
    shape: Shape,
    jobs: Vec<Job>,
    rounds: u32,
    image_bytes: u64,
    time_max: Duration,
}

impl Sizes {
    fn new(options: &Options) -> Sizes {
        let threads = options.threads();
        let cached_bytes = if options.quick { 32 * MIB } else { 128 * MIB };
        if options.quick {
            Sizes {
                shape: Shape {
                    slice: Duration::from_millis(100),
                    names: 2_000,
                    direct_bytes: 64 * MIB,
                    scan_bytes: 64 * MIB,
                    cache_bytes: 256 * MIB,
                },
                jobs: standard_jobs(cached_bytes, threads),
                rounds: 3,
                image_bytes: 512 * MIB,
                time_max: Duration::from_secs(25),
            }
        } else {
            Sizes {
                shape: Shape {
                    slice: Duration::from_secs(1),
                    names: 20_000,
                    direct_bytes: 256 * MIB,
                    scan_bytes: 256 * MIB,
                    cache_bytes: 1024 * MIB,
                },
                jobs: standard_jobs(cached_bytes, threads),
                rounds: 5,
                image_bytes: 2048 * MIB,
                time_max: Duration::from_secs(600),
            }
        }
    }

    fn floor_bytes(&self) -> u64 {
        self.shape.direct_bytes.max(self.shape.scan_bytes)
    }

    /// Room that the image, the kernel's files and the floor's file take.
    fn disk_bytes(&self, with_image: bool) -> u64 {
        let image_bytes = if with_image { self.image_bytes } else { 0 };
        image_bytes + self.floor_bytes() + self.image_bytes
    }
}

/// All jobs, each row with one thread and those that scale with several.
fn standard_jobs(cached_bytes: u64, threads: u32) -> Vec<Job> {
    let len_bytes = cached_bytes;
    let counts: &[u32] = if threads > 1 { &[1, threads] } else { &[1] };
    let mut jobs = Vec::new();
    jobs.extend(counts.iter().map(|&threads| Job::AppendSync { threads }));
    jobs.extend([Job::NewFileSync, Job::OverwriteSync]);
    jobs.extend(counts.iter().map(|&threads| Job::DirectRead { threads }));
    jobs.push(Job::DirectWrite);
    let cached = |&threads| Job::CachedRead { len_bytes, threads };
    jobs.extend(counts.iter().map(cached));
    jobs.extend([Job::CachedWrite { len_bytes }, Job::Names, Job::Scan]);
    jobs
}

/// The block about the directory's device.
fn on_disk(
    options: &Options,
    sizes: &Sizes,
    place: &Place,
    progress: &mut dyn FnMut(&str, f64),
) -> io::Result<Block> {
    progress("writing the files to measure on", 0.0);
    let files = place.file("files");
    std::fs::create_dir(&files).map_err(|error| while_doing("create a folder", error))?;
    let kernel = KernelTarget::new(&files)?;
    let raw = FloorTarget::new(&place.file("floor"), sizes.floor_bytes())?;
    let (address, folder) = match &options.volume {
        Some(volume) => (volume.clone(), folder_in_volume()),
        None => (temporary_image(place, sizes.image_bytes)?, String::new()),
    };
    let adit = AditTarget::open(&address, sizes.shape.cache_bytes, 1, &folder)?;
    let plan = sizes.plan(options.title());
    let systems: [Box<dyn Contender + '_>; 3] =
        [Box::new(&adit), Box::new(&kernel), Box::new(&raw)];
    let block = schedule::run(&plan, &systems, progress);
    drop(systems);
    let closed = adit.close();
    let block = block?;
    closed?;
    Ok(block)
}

/// The block without a device: the cost of the software itself.
fn in_memory(sizes: &Sizes, progress: &mut dyn FnMut(&str, f64)) -> io::Result<Block> {
    let address = format!("mem:{}M", sizes.image_bytes / MIB);
    let adit = AditTarget::open(&address, sizes.shape.cache_bytes, 1, "")?;
    // tmpfs is the kernel's counterpart, where there is one with room (a container's often has 64
    // MiB).
    let (tmpfs, omitted) = match memory_place(sizes.image_bytes) {
        Ok(place) => (Some(place), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let kernel = match &tmpfs {
        Some(place) => Some(KernelTarget::new(place.path())?),
        None => None,
    };
    let mut systems: Vec<Box<dyn Contender + '_>> = vec![Box::new(&adit)];
    if let Some(kernel) = &kernel {
        systems.push(Box::new(kernel));
    }
    let plan = sizes.plan("In memory (mem: and tmpfs)".to_owned());
    let block = schedule::run(&plan, &systems, progress);
    drop(systems);
    let closed = adit.close();
    let mut block = block?;
    closed?;
    block.omitted.extend(omitted);
    Ok(block)
}

/// A place on tmpfs with this much room.
fn memory_place(needed_bytes: u64) -> io::Result<Place> {
    let place = Place::inside(Path::new("/dev/shm"))?;
    place.need(needed_bytes)?;
    Ok(place)
}

impl Sizes {
    fn plan(&self, title: String) -> Plan<'_> {
        Plan {
            title,
            jobs: &self.jobs,
            shape: &self.shape,
            rounds: self.rounds,
            time_max: self.time_max,
        }
    }
}

/// A volume in an image that has been written from end to end: the file system below has nothing
/// left to allocate, as on the floor's file.
pub(crate) fn temporary_image(place: &Place, len_bytes: u64) -> io::Result<String> {
    let image = place.file("volume.adit");
    drop(floor::write_through(&image, len_bytes, None)?);
    let address = image
        .to_str()
        .ok_or_else(|| io::Error::other("the current directory's name is not UTF-8"))?
        .to_owned();
    adit::Volume::mkfs(&address, adit::MkfsOptions::new().force(true)).map_err(io_error)?;
    Ok(address)
}

fn notes(options: &Options, disk: &Block) -> Vec<String> {
    let mut notes = vec![
        "How to read it: `raw` is the least IO that the same promise needs, as bare calls on a \
         written file (for cached reads: a copy in memory). Ratios are of operations per second; \
         above 1 Adit does more. Percentiles are of single operations; in the rows about names \
         the rate includes a final syncfs, which the percentiles can't show; a percentile that too \
         few operations support is left out. In the sequential rows an operation is a MiB, so ops/s are \
         MiB/s. Data is incompressible."
            .to_owned(),
    ];
    let raw_us = disk
        .rows
        .iter()
        .find(|row| row.id == "append-sync")
        .and_then(|row| row.cells.iter().find(|cell| cell.system == RAW))
        .and_then(|cell| cell.p50_us);
    if let Some(raw_us) = raw_us.filter(|_| options.volume.is_none()) {
        notes.push(format!(
            "This disk needs {raw_us:.0} µs for one durable 4 KiB write, whoever asks. A file system \
             can only save its own time and the device writes beyond the first, so on a slow disk \
             ratios of durable operations stay small however little software is left; on a fast one \
             (NVMe, /dev/zram0) the same code shows larger ones. An image file also pays for the file \
             system it lies in: give Adit the block device itself to save that."
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::{Options, finish, memory_place};
    use crate::bench::report::Block;
    use crate::measurement::environment::Environment;
    use std::io;

    fn block(title: &str) -> Block {
        Block {
            title: title.to_owned(),
            rounds: 1,
            rows: Vec::new(),
            omitted: Vec::new(),
        }
    }

    /// After minutes on the disk, a full /dev/shm ended the benchmark without a word about them.
    #[test]
    fn a_failure_in_memory_leaves_the_report_about_the_disk() {
        let finish = |memory| {
            let here = Environment::here("here".to_owned());
            finish(&Options::default(), here, block("disk"), memory)
        };
        let report = finish(Err(io::ErrorKind::StorageFull.into())).unwrap();
        assert_eq!(report.blocks.len(), 1);
        let last = report.notes.last().unwrap();
        assert!(last.contains("no block about memory"), "{last}");

        let report = finish(Ok(block("memory"))).unwrap();
        assert_eq!(report.blocks.len(), 2);
        let interrupted = finish(Err(io::ErrorKind::Interrupted.into()));
        assert_eq!(interrupted.unwrap_err().kind(), io::ErrorKind::Interrupted);
    }

    #[test]
    fn a_place_in_memory_without_room_is_refused_with_both_numbers() {
        let Err(error) = memory_place(u64::MAX) else {
            panic!("no memory is that large");
        };
        // Or there is none at all.
        assert!(error.to_string().contains("/dev/shm"), "{error}");
    }
}
