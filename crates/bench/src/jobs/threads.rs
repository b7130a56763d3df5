//! The same operation by several threads at once: each on its own file (or in its own directory),
//! or all on one.
//!
//! The threads start together and each runs for the same time. All files that are read or
//! overwritten have the same size together, however many threads there are. Creating, renaming and
//! unlinking end in a syncfs that belongs to their time. The rows are curves over the threads.
//!
//! A look at the lock measures each row again, for a shorter time: the share of the time in which
//! the owner's lock is held.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::stage::{Measured, Stage, in_threads, places, to_the_end, warm};
use super::synced;
use crate::measurement::data::{AlignedBuffer, PAGE_BYTES};
use crate::measurement::row::RowKey;
use crate::measurement::sample::{Limit, Sample, Timing};
use crate::target::{Access, Name, Target, TargetFile};
use adit_base::random::Prng;

/// One point of the curves of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Threads {
    /// The operation.
    pub of: ThreadOperation,
    /// All on one file or in one directory, not each on its own.
    pub shared: bool,
    /// How many.
    pub threads: u32,
}

/// An operation that all threads repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ThreadOperation {
    /// Append 100 B, fdatasync.
    AppendSync,
    /// Overwrite a random page, fdatasync.
    OverwriteSync,
    /// Create a file, write 4 KiB, fsync, close.
    NewFileSync,
    /// Overwrite a random page in the cache.
    CachedWrite,
    /// Read a random page in the cache.
    CachedRead,
    /// Create a file and close it.
    Create,
    /// Create, stat, rename, unlink: a row each.
    Names,
}

impl ThreadOperation {
    /// All but [`ThreadOperation::Create`], which [`ThreadOperation::Names`] includes.
    pub const ALL: [ThreadOperation; 6] = [
        ThreadOperation::AppendSync,
        ThreadOperation::OverwriteSync,
        ThreadOperation::NewFileSync,
        ThreadOperation::CachedWrite,
        ThreadOperation::CachedRead,
        ThreadOperation::Names,
    ];
}

/// The files that are read or overwritten, all together.
pub(super) const FILES_BYTES: u64 = 16 << 20;
/// With more, a thread would have no page of these files.
pub(super) const THREADS_MAX: u32 = 1024;
/// Names that are made at most, all threads together.
const NAMES_MAX: u64 = 128 << 10;
/// Cheap operations are timed one in so many.
const STRETCH: u64 = 8;

impl Threads {
    fn key(self, id: [&'static str; 2], title: &str, place: &str, bytes: usize) -> RowKey {
        let title = match self.shared {
            true => format!("{title}, one {place}"),
            false => format!("{title}, a {place} each"),
        };
        RowKey::new(id[usize::from(self.shared)], title, bytes as u64)
            .with_threads(self.threads)
            .at(u64::from(self.threads))
    }
}

/// Measures one point.
pub(super) fn run<T: Target>(stage: &Stage<'_, T>, point: Threads) -> io::Result<Vec<Measured>> {
    // The floor has one file and no names, so sharing is nothing new to it.
    if !stage.target.is_file_system() && point.shared {
        return Ok(Vec::new());
    }
    let Threads {
        of,
        shared,
        threads,
    } = point;
    let row = |id, title: &str, place: &str, bytes, sample| {
        Ok(vec![(point.key(id, title, place, bytes), sample)])
    };
    match of {
        ThreadOperation::AppendSync => {
            let id = ["threads-append-sync", "threads-append-sync-shared"];
            let (_, sample) = synced::append(stage, threads, shared)?;
            row(id, "append 100 B + fdatasync", "file", 0, sample)
        }
        ThreadOperation::NewFileSync => {
            let id = ["threads-new-file-sync", "threads-new-file-sync-shared"];
            let (_, sample) = synced::new_file(stage, threads, shared)?;
            row(id, "new 4 KiB file + fsync", "directory", 0, sample)
        }
        ThreadOperation::OverwriteSync => {
            let id = ["threads-overwrite-sync", "threads-overwrite-sync-shared"];
            let sample = pages(stage, point, Access::Durable, |file, turn, _, place| {
                file.write_at(stage.noise.at(turn, PAGE_BYTES), place)?;
                file.sync_data()
            })?;
            row(id, "overwrite 4 KiB + fdatasync", "file", 0, sample)
        }
        ThreadOperation::CachedWrite => {
            let id = ["threads-cached-write", "threads-cached-write-shared"];
            let sample = pages(stage, point, Access::Cached, |file, turn, _, place| {
                file.write_at(stage.noise.at(turn, PAGE_BYTES), place)
            })?;
            row(id, "cached overwrite 4 KiB", "file", 0, sample)
        }
        ThreadOperation::CachedRead => {
            let id = ["threads-cached-read", "threads-cached-read-shared"];
            let sample = pages(stage, point, Access::Cached, |file, _, buffer, place| {
                file.read_at(buffer, place)
            })?;
            row(id, "cached read 4 KiB", "file", PAGE_BYTES, sample)
        }
        ThreadOperation::Create | ThreadOperation::Names => names(stage, point),
    }
}

/// `operation(file, turn, buffer, place)` on random pages of written files that are in the cache.
fn pages<T: Target>(
    stage: &Stage<'_, T>,
    point: Threads,
    access: Access,
    operation: impl Fn(&T::File, u64, &mut [u8], u64) -> io::Result<()> + Sync,
) -> io::Result<Sample> {
    let count = if point.shared { 1 } else { point.threads };
    let all = u64::from(count * stage.clients());
    let len_bytes = FILES_BYTES / all / PAGE_BYTES as u64 * PAGE_BYTES as u64;
    let files: io::Result<Vec<T::File>> = (0..count)
        .map(|file| stage.written_file(&format!("threads-{file}"), len_bytes, access))
        .collect();
    let files = files?;
    if stage.target.is_file_system() {
        files.iter().try_for_each(|file| warm(file, len_bytes))?;
    }
    let limit = Limit::time(stage.shape.slice);
    let timing = match access {
        Access::Durable => Timing::Each,
        Access::Cached | Access::Direct => Timing::OneIn(STRETCH),
    };
    let sample = stage.together(|| {
        in_threads(point.threads, |thread| {
            let file = &files[thread as usize % files.len()];
            let mut buffer = AlignedBuffer::new(PAGE_BYTES);
            let mut place = places(stage.round, thread, len_bytes);
            stage.measure(limit, timing, |turn| {
                operation(file, turn, &mut buffer, place())
            })
        })
    })?;
    // What is left to be written is no other row's time.
    stage.target.sync_everything()?;
    Ok(sample)
}

/// Create, stat, rename, unlink, each for the same time; or only create.
fn names<T: Target>(stage: &Stage<'_, T>, point: Threads) -> io::Result<Vec<Measured>> {
    let target = stage.target;
    if !target.is_file_system() {
        return Ok(Vec::new());
    }
    let Threads {
        shared, threads, ..
    } = point;
    let folder_of = |thread: u32| format!("threads{}", if shared { 0 } else { thread });
    let folders: Vec<Name> = (0..if shared { 1 } else { threads })
        .map(|thread| stage.folder(&folder_of(thread)))
        .collect();
    folders
        .iter()
        .try_for_each(|folder| target.create_folder(folder))?;
    target.sync_everything()?;
    let each = NAMES_MAX / u64::from(threads * stage.clients());
    let names = |kind: char, thread: u32, count: u64| -> Vec<Name> {
        let name = |i| stage.inside(&folder_of(thread), format_args!("{kind}{thread}-{i}"));
        (0..count).map(name).collect()
    };
    let first: Vec<Vec<Name>> = (0..threads).map(|own| names('f', own, each)).collect();

    let mut rows = Vec::new();
    // Returns how many operations each thread did.
    let mut block =
        |id, title: &str, counts: &[u64], each: &(dyn Fn(u32, u64) -> io::Result<()> + Sync)| {
            let done: Vec<AtomicU64> = counts.iter().map(|_| AtomicU64::new(0)).collect();
            let work = || {
                in_threads(threads, |thread| {
                    let limit = Limit {
                        time: stage.shape.slice,
                        operations: counts[thread as usize],
                    };
                    let timing = Timing::OneIn(STRETCH);
                    let sample = stage.measure(limit, timing, |turn| each(thread, turn))?;
                    done[thread as usize].store(sample.operations, Ordering::Relaxed);
                    Ok(sample)
                })
            };
            let sample = stage.together(|| to_the_end(work, || target.sync_everything()))?;
            rows.push((point.key(id, title, "directory", 0), sample));
            let done = done.into_iter().map(AtomicU64::into_inner);
            io::Result::Ok(done.collect::<Vec<u64>>())
        };
    let id = ["threads-create", "threads-create-shared"];
    let made = block(
        id,
        "create + close",
        &vec![each; threads as usize],
        &|thread, i| {
            target
                .create(&first[thread as usize][i as usize], Access::Cached)
                .map(drop)
        },
    )?;
    let mut renamed = vec![0; threads as usize];
    let mut unlinked = vec![0; threads as usize];
    let second: Vec<Vec<Name>> = (0..threads)
        .zip(&made)
        .map(|(own, &made)| names('g', own, made))
        .collect();
    if point.of == ThreadOperation::Names {
        let id = ["threads-stat", "threads-stat-shared"];
        let unbounded = vec![u64::MAX; threads as usize];
        block(id, "stat", &unbounded, &|thread, turn| {
            // Not in the order of creation.
            let mut prng = Prng::new(u64::from(thread) << 32 | turn);
            let i = prng.below(made[thread as usize]);
            target.stat(&first[thread as usize][i as usize]).map(drop)
        })?;
        let id = ["threads-rename", "threads-rename-shared"];
        renamed = block(id, "rename", &made, &|thread, i| {
            let (thread, i) = (thread as usize, i as usize);
            target.rename(&first[thread][i], &second[thread][i])
        })?;
    }
    let now = |thread: u32, i: u64| match i < renamed[thread as usize] {
        true => &second[thread as usize][i as usize],
        false => &first[thread as usize][i as usize],
    };
    if point.of == ThreadOperation::Names {
        let id = ["threads-unlink", "threads-unlink-shared"];
        unlinked = block(id, "unlink", &made, &|thread, i| {
            target.unlink(now(thread, i))
        })?;
    }
    for thread in 0..threads {
        for i in unlinked[thread as usize]..made[thread as usize] {
            target.unlink(now(thread, i))?;
        }
    }
    folders
        .iter()
        .try_for_each(|folder| target.remove_folder(folder))?;
    target.sync_everything()?;
    Ok(rows)
}
