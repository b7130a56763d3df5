//! Random pages of a written file: past the cache, one at a time, and through it.

use std::io;

use super::stage::{Measured, Stage, in_threads, places, readable_bytes, warm};
use crate::measurement::data::{AlignedBuffer, PAGE_BYTES};
use crate::measurement::row::RowKey;
use crate::measurement::sample::{Limit, Timing};
use crate::target::{Access, Target, TargetFile};

/// Cheap operations are timed one in so many.
const STRETCH: u64 = 32;

/// Read random pages past the cache.
pub(super) fn direct_read<T: Target>(stage: &Stage<'_, T>, threads: u32) -> io::Result<Measured> {
    let len_bytes = stage.shape.direct_bytes;
    let file = stage.written_file("direct", len_bytes, Access::Direct)?;
    let sample = in_threads(threads, |thread| {
        let mut buffer = AlignedBuffer::new(PAGE_BYTES);
        let mut place = places(stage.round, thread, len_bytes);
        stage.measure(Limit::time(stage.shape.slice), Timing::OneIn(4), |_| {
            file.read_at(&mut buffer, place())
        })
    })?;
    let key = RowKey::new("direct-read", "direct random read 4 KiB", PAGE_BYTES as u64);
    Ok((key.with_threads(threads), sample))
}

/// Overwrite random pages past the cache.
pub(super) fn direct_write<T: Target>(stage: &Stage<'_, T>) -> io::Result<Measured> {
    let len_bytes = stage.shape.direct_bytes;
    let file = stage.written_file("direct", len_bytes, Access::Direct)?;
    let mut place = places(stage.round, 0, len_bytes);
    let limit = Limit::time(stage.shape.slice);
    let sample = stage.observe(limit, Timing::OneIn(4), |turn| {
        file.write_at(stage.noise.at(turn, PAGE_BYTES), place())
    })?;
    file.sync_data()?;
    let key = RowKey::new("direct-write", "direct random write 4 KiB", 0);
    Ok((key, sample))
}

/// Read random pages that are all in the cache: copied and, where a system can, borrowed.
pub(super) fn cached_read<T: Target>(
    stage: &Stage<'_, T>,
    len_bytes: u64,
    threads: u32,
) -> io::Result<Vec<Measured>> {
    let file = stage.written_file("cached", len_bytes, Access::Cached)?;
    warm(&file, len_bytes)?;
    let limit = Limit::time(stage.shape.slice);
    let size = readable_bytes(len_bytes);
    let copied = in_threads(threads, |thread| {
        let mut buffer = AlignedBuffer::new(PAGE_BYTES);
        let mut place = places(stage.round, thread, len_bytes);
        stage.measure(limit, Timing::OneIn(STRETCH), |_| {
            file.read_at(&mut buffer, place())
        })
    })?;
    let title = format!("cached random read 4 KiB ({size})");
    let key = RowKey::new("cached-read", title, PAGE_BYTES as u64).with_threads(threads);
    let mut rows = vec![(key, copied)];
    if file.borrow_at(PAGE_BYTES, 0)? {
        let borrowed = in_threads(threads, |thread| {
            let mut place = places(stage.round, thread, len_bytes);
            stage.measure(limit, Timing::OneIn(STRETCH), |_| {
                file.borrow_at(PAGE_BYTES, place()).map(drop)
            })
        })?;
        let title = format!("  borrowed, not copied ({size})");
        let key = RowKey::new("borrowed-read", title, PAGE_BYTES as u64).with_threads(threads);
        rows.push((key, borrowed));
    }
    Ok(rows)
}

/// Overwrite random pages in the cache. Write-back is not waited for.
pub(super) fn cached_write<T: Target>(
    stage: &Stage<'_, T>,
    len_bytes: u64,
) -> io::Result<Measured> {
    let file = stage.written_file("cached", len_bytes, Access::Cached)?;
    let mut place = places(stage.round, 0, len_bytes);
    let limit = Limit::time(stage.shape.slice);
    let sample = stage.observe(limit, Timing::OneIn(STRETCH), |turn| {
        file.write_at(stage.noise.at(turn, PAGE_BYTES), place())
    })?;
    file.sync_all()?;
    let title = format!("cached random write 4 KiB ({})", readable_bytes(len_bytes));
    Ok((RowKey::new("cached-write", title, 0), sample))
}
