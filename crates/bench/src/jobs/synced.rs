//! Small durable changes: each operation ends in a sync.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::stage::{Measured, Stage, in_threads};
use crate::measurement::data::PAGE_BYTES;
use crate::measurement::row::RowKey;
use crate::measurement::sample::{Limit, Timing};
use crate::target::{Access, Name, Target, TargetFile};
use adit_base::random::Prng;

/// The size of a small transaction in a database's log.
const RECORD_BYTES: usize = 100;

/// A bound on the files that one measurement of `new_file` leaves to be removed.
const NEW_FILES_MAX: u64 = 100_000;

/// Append 100 bytes, fdatasync; each thread its own file, or all one.
pub(super) fn append<T: Target>(
    stage: &Stage<'_, T>,
    threads: u32,
    shared: bool,
) -> io::Result<Measured> {
    let mut logs = Vec::new();
    for file in 0..if shared { 1 } else { threads } {
        let name = stage.name("append", u64::from(file));
        let file = stage.target.create(&name, Access::Durable)?;
        // The name is durable before the clock starts, and the first allocation is done.
        file.append(stage.noise.at(0, RECORD_BYTES))?;
        file.sync_all()?;
        logs.push((name, file));
    }
    let limit = Limit::time(stage.shape.slice);
    let sample = stage.together(|| {
        in_threads(threads, |thread| {
            let (_, file) = &logs[thread as usize % logs.len()];
            stage.measure(limit, Timing::Each, |turn| {
                file.append(stage.noise.at(turn, RECORD_BYTES))?;
                file.sync_data()
            })
        })
    })?;
    for (name, file) in logs {
        drop(file);
        stage.target.unlink(&name)?;
    }
    let key = RowKey::new("append-sync", "append 100 B + fdatasync", 0);
    Ok((key.with_threads(threads), sample))
}

/// Create, write 4 KiB, fsync, close; each thread in its own directory, or all in one.
pub(super) fn new_file<T: Target>(
    stage: &Stage<'_, T>,
    threads: u32,
    shared: bool,
) -> io::Result<Measured> {
    let folder_of = |thread: u32| format!("new{}", if shared { 0 } else { thread });
    let folders: Vec<Name> = (0..if shared { 1 } else { threads })
        .map(|thread| stage.folder(&folder_of(thread)))
        .collect();
    for folder in &folders {
        stage.target.create_folder(folder)?;
    }
    stage.target.sync_everything()?;
    let name = |folder: &str, thread: u32, turn: u64| {
        stage.inside(folder, format_args!("{thread:02}-{turn:07}"))
    };
    let limit = Limit {
        time: stage.shape.slice,
        operations: NEW_FILES_MAX / u64::from(threads),
    };
    let made: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    let sample = stage.together(|| {
        in_threads(threads, |thread| {
            let folder = folder_of(thread);
            let sample = stage.measure(limit, Timing::Each, |turn| {
                let name = name(&folder, thread, turn);
                let file = stage.target.create(&name, Access::Durable)?;
                file.write_at(stage.noise.at(turn, PAGE_BYTES), 0)?;
                file.sync_all()
            })?;
            made[thread as usize].store(sample.operations, Ordering::Relaxed);
            Ok(sample)
        })
    })?;
    for (thread, made) in (0..threads).zip(made) {
        let folder = folder_of(thread);
        for turn in 0..made.into_inner() {
            stage.target.unlink(&name(&folder, thread, turn))?;
        }
    }
    for folder in &folders {
        stage.target.remove_folder(folder)?;
    }
    stage.target.sync_everything()?;
    let key = RowKey::new("new-file-sync", "new 4 KiB file + fsync", 0);
    Ok((key.with_threads(threads), sample))
}

/// Overwrite a random page of a written file, fdatasync.
pub(super) fn overwrite<T: Target>(stage: &Stage<'_, T>) -> io::Result<Measured> {
    let len_bytes = stage.shape.direct_bytes;
    let file = stage.written_file("overwritten", len_bytes, Access::Durable)?;
    let pages = len_bytes / PAGE_BYTES as u64;
    let mut places = Prng::new(u64::from(stage.round));
    let sample = stage.observe(Limit::time(stage.shape.slice), Timing::Each, |turn| {
        let offset_bytes = places.below(pages) * PAGE_BYTES as u64;
        file.write_at(stage.noise.at(turn, PAGE_BYTES), offset_bytes)?;
        file.sync_data()
    })?;
    let key = RowKey::new("overwrite-sync", "overwrite 4 KiB + fdatasync", 0);
    Ok((key, sample))
}
