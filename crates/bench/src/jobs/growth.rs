//! The cost of an operation as something grows: files, the size of a file, its extents, the names
//! in a directory, open files, pages in the cache.
//!
//! A job climbs by factors of ten and measures at each step. A report fits exponents to the rows.

use std::io;

use serde::{Deserialize, Serialize};

use super::stage::{Measured, Stage, places, readable_bytes, warm};
use crate::measurement::data::{AlignedBuffer, PAGE_BYTES};
use crate::measurement::row::RowKey;
use crate::measurement::sample::{Limit, Sample, Timing};
use crate::target::{Access, Name, Target, TargetFile};
use adit_base::random::Prng;

/// The size that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Growth {
    /// Empty files, a thousand in a directory.
    Files {
        /// The last step.
        max: u64,
    },
    /// Names in one directory.
    Names {
        /// The last step.
        max: u64,
    },
    /// Size of a sparse file in bytes, by factors of 16 from 1 MiB on.
    Size {
        /// The last step.
        max: u64,
    },
    /// Extents of a file: each second page is there.
    Extents {
        /// The last step.
        max: u64,
    },
    /// Files that are open.
    Open {
        /// The last step.
        max: u64,
    },
    /// Bytes of a file that are in the cache, by factors of four from 16 MiB on.
    Cache {
        /// The last step.
        max: u64,
    },
}

/// Operations that are measured at a step, where time doesn't limit them.
const PROBES: u64 = 20_000;
const STRETCH: u64 = 8;
/// Names in each directory of `Growth::Files`.
const FOLDER_NAMES: u64 = 1000;

/// Climbs.
pub(super) fn run<T: Target>(stage: &Stage<'_, T>, growth: Growth) -> io::Result<Vec<Measured>> {
    match growth {
        Growth::Files { max } => files(stage, "files", max, FOLDER_NAMES),
        Growth::Names { max } => files(stage, "names", max, u64::MAX),
        Growth::Size { max } => size(stage, max),
        Growth::Extents { max } => extents(stage, max),
        Growth::Open { max } => open(stage, max),
        Growth::Cache { max } => cache(stage, max),
    }
}

fn steps(first: u64, factor: u64, max: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(first), move |step| Some(step * factor))
        .take_while(move |&step| step <= max)
}

/// A row at a step; its operations move so many bytes.
fn row(id: &str, title: String, bytes: usize, step: u64, sample: Sample) -> Measured {
    (RowKey::new(id, title, bytes as u64).at(step), sample)
}

/// Creating what is missing to the step (with the syncfs at its end), then looking up names at
/// random.
fn files<T: Target>(
    stage: &Stage<'_, T>,
    what: &'static str,
    max: u64,
    folder_names: u64,
) -> io::Result<Vec<Measured>> {
    let target = stage.target;
    let root = format!("grown-{what}-{}", stage.round);
    let folder = |index: u64| stage.path(&format!("{root}/{:04}", index / folder_names));
    let name = |index: u64| stage.path(&format!("{root}/{:04}/{index:07}", index / folder_names));
    target.create_folder(&stage.path(&root))?;
    let mut rows = Vec::new();
    let mut there = 0;
    for step in steps(100, 10, max) {
        let missing: Vec<Name> = (there..step).map(name).collect();
        for index in there..step {
            if index % folder_names == 0 {
                target.create_folder(&folder(index))?;
            }
        }
        let made = stage.observe_to(
            Limit::operations(step - there),
            Timing::OneIn(STRETCH),
            |turn| {
                target
                    .create(&missing[turn as usize], Access::Cached)
                    .map(drop)
            },
            || target.sync_everything(),
        )?;
        there = step;
        let mut prng = Prng::new(step);
        let probes: Vec<Name> = (0..PROBES.min(step * 10))
            .map(|_| name(prng.below(step)))
            .collect();
        let found = stage.observe(
            Limit::operations(probes.len() as u64),
            Timing::OneIn(STRETCH),
            |turn| target.stat(&probes[turn as usize]).map(drop),
        )?;
        let (create, stat, of) = match what {
            "files" => (
                "grow-files-create",
                "grow-files-stat",
                "files, a thousand a directory",
            ),
            _ => (
                "grow-names-create",
                "grow-names-stat",
                "names in a directory",
            ),
        };
        rows.push(row(create, format!("create to {step} {of}"), 0, step, made));
        rows.push(row(
            stat,
            format!("stat one of {step} {of}"),
            0,
            step,
            found,
        ));
    }
    for index in 0..there {
        target.unlink(&name(index))?;
    }
    for index in (0..there).step_by(folder_names.min(there.max(1)) as usize) {
        target.remove_folder(&folder(index))?;
    }
    target.remove_folder(&stage.path(&root))?;
    target.sync_everything()?;
    Ok(rows)
}

/// Writing pages at random places of a sparse file, with a sync at the end, then reading them, from
/// the cache.
fn size<T: Target>(stage: &Stage<'_, T>, max: u64) -> io::Result<Vec<Measured>> {
    /// Pages that are written at each step: they have to fit into the cache.
    const WRITTEN: u64 = 2000;
    let mut rows = Vec::new();
    for step in steps(1 << 20, 16, max) {
        let name = stage.name("grown-size", step);
        let file = stage.target.create(&name, Access::Cached)?;
        file.set_len(step)?;
        let pages = step / PAGE_BYTES as u64;
        let mut prng = Prng::new(step);
        let offsets: Vec<u64> = (0..WRITTEN)
            .map(|_| prng.below(pages) * PAGE_BYTES as u64)
            .collect();
        let written = stage.observe_to(
            Limit::operations(WRITTEN),
            Timing::OneIn(STRETCH),
            |turn| file.write_at(stage.noise.at(turn, PAGE_BYTES), offsets[turn as usize]),
            || file.sync_data(),
        )?;
        let mut buffer = AlignedBuffer::new(PAGE_BYTES);
        let read = stage.observe(Limit::operations(PROBES), Timing::OneIn(STRETCH), |turn| {
            let place = offsets[(turn * 7919 % WRITTEN) as usize];
            file.read_at(&mut buffer, place)
        })?;
        drop(file);
        stage.target.unlink(&name)?;
        stage.target.sync_everything()?;
        let size = readable_bytes(step);
        let title = format!("write pages of a sparse file of {size}, sync");
        rows.push(row("grow-size-write", title, PAGE_BYTES, step, written));
        let title = format!("read written pages of a sparse file of {size}");
        rows.push(row("grow-size-read", title, PAGE_BYTES, step, read));
    }
    Ok(rows)
}

/// A file of so many extents: reading its pages past the cache, which has to find each in the map.
fn extents<T: Target>(stage: &Stage<'_, T>, max: u64) -> io::Result<Vec<Measured>> {
    let mut rows = Vec::new();
    for step in steps(100, 10, max) {
        let name = stage.name("grown-extents", step);
        let file = stage.target.create(&name, Access::Direct)?;
        let place = |extent: u64| extent * 2 * PAGE_BYTES as u64;
        let made = stage.observe_to(
            Limit::operations(step),
            Timing::OneIn(STRETCH),
            |turn| file.write_at(stage.noise.at(turn, PAGE_BYTES), place(turn)),
            || file.sync_data(),
        )?;
        let mut prng = Prng::new(step);
        let mut buffer = AlignedBuffer::new(PAGE_BYTES);
        let read = stage.observe(Limit::operations(PROBES), Timing::OneIn(STRETCH), |_| {
            file.read_at(&mut buffer, place(prng.below(step)))
        })?;
        drop(file);
        stage.target.unlink(&name)?;
        stage.target.sync_everything()?;
        let title = format!("direct write of {step} pages, each an extent");
        rows.push(row("grow-extents-write", title, PAGE_BYTES, step, made));
        let title = format!("direct read in a file of {step} extents");
        rows.push(row("grow-extents-read", title, PAGE_BYTES, step, read));
    }
    Ok(rows)
}

/// Opening files until so many are open, the memory that they take, and reading a page of any of
/// them.
fn open<T: Target>(stage: &Stage<'_, T>, max: u64) -> io::Result<Vec<Measured>> {
    let (folder, names) = stage.small_files("grown-open", max, PAGE_BYTES)?;
    let mut rows = Vec::new();
    let mut files = Vec::new();
    for step in steps(100, 10, max) {
        let there = files.len() as u64;
        let opened = stage.observe(
            Limit::operations(step - there),
            Timing::OneIn(STRETCH),
            |turn| {
                files.push(
                    stage
                        .target
                        .open(&names[(there + turn) as usize], Access::Cached)?,
                );
                Ok(())
            },
        );
        let opened = match opened {
            // The process may have no more of them.
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => break,
            opened => opened?,
        };
        let mut prng = Prng::new(step);
        let mut buffer = AlignedBuffer::new(PAGE_BYTES);
        let read = stage.observe(Limit::operations(PROBES), Timing::OneIn(STRETCH), |_| {
            files[prng.below(step) as usize].read_at(&mut buffer, 0)
        })?;
        rows.push(row(
            "grow-open-open",
            format!("open, {step} stay open"),
            0,
            step,
            opened,
        ));
        let title = format!("read a page of one of {step} open files");
        rows.push(row("grow-open-read", title, PAGE_BYTES, step, read));
    }
    drop(files);
    for name in &names {
        stage.target.unlink(name)?;
    }
    stage.target.remove_folder(&folder)?;
    stage.target.sync_everything()?;
    Ok(rows)
}

/// Reading pages at random places of a file that is in the cache, and the memory that they take
/// there.
fn cache<T: Target>(stage: &Stage<'_, T>, max: u64) -> io::Result<Vec<Measured>> {
    let mut rows = Vec::new();
    for step in steps(16 << 20, 4, max) {
        let name = stage.name("grown-cache", step);
        let file = stage.target.create(&name, Access::Cached)?;
        stage.write_all(&file, step)?;
        file.sync_all()?;
        warm(&file, step)?;
        let mut buffer = AlignedBuffer::new(PAGE_BYTES);
        let mut place = places(stage.round, 0, step);
        let read = stage.observe(Limit::operations(PROBES), Timing::OneIn(STRETCH), |_| {
            file.read_at(&mut buffer, place())
        })?;
        drop(file);
        stage.target.unlink(&name)?;
        stage.target.sync_everything()?;
        let title = format!("read a page of {} in the cache", readable_bytes(step));
        rows.push(row("grow-cache-read", title, PAGE_BYTES, step, read));
    }
    Ok(rows)
}
