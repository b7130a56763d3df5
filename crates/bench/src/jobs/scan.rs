//! A large file from front to back, 1 MiB at a time: an operation is a MiB, so operations per
//! second are MiB per second.

use std::io;

use super::stage::{Measured, Stage, readable_bytes};
use crate::measurement::data::AlignedBuffer;
use crate::measurement::row::RowKey;
use crate::measurement::sample::{Limit, Sample, Timing};
use crate::target::{Access, Target, TargetFile};

const CHUNK_BYTES: u64 = 1 << 20;

/// Write a new file (with the final sync), overwrite it again and again (each time with a sync),
/// read it through the cache, and one past it.
pub(super) fn run<T: Target>(stage: &Stage<'_, T>) -> io::Result<Vec<Measured>> {
    let target = stage.target;
    let name = stage.name("scan", 0);
    let chunks = stage.shape.scan_bytes / CHUNK_BYTES;

    let file = target.create(&name, Access::Durable)?;
    let written = stage.observe_to(
        Limit::operations(chunks),
        Timing::Each,
        |turn| {
            let chunk = stage.noise.at(turn, CHUNK_BYTES as usize);
            file.write_at(chunk, turn * CHUNK_BYTES)
        },
        || file.sync_data(),
    )?;
    let overwritten = stage.observe(Limit::time(stage.shape.slice), Timing::Each, |turn| {
        let at = turn % chunks;
        file.write_at(stage.noise.at(turn, CHUNK_BYTES as usize), at * CHUNK_BYTES)?;
        match at + 1 == chunks {
            true => file.sync_data(),
            false => Ok(()),
        }
    })?;
    drop(file);
    target.sync_everything()?;

    // The first reading warms the cache for the measured ones.
    let file = target.open(&name, Access::Cached)?;
    read(stage, &file, chunks, Limit::operations(chunks))?;
    let cached = read(stage, &file, chunks, Limit::time(stage.shape.slice))?;
    drop(file);
    // Past the cache, in a file that was written past it: nothing of it is cached.
    let direct_chunks = stage.shape.direct_bytes / CHUNK_BYTES;
    let direct = match stage.written_file("direct", stage.shape.direct_bytes, Access::Direct) {
        Ok(file) => {
            let limit = Limit::time(stage.shape.slice);
            Some(read(stage, &file, direct_chunks, limit)?)
        }
        // The other rows stand without it.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => None,
        Err(error) => return Err(error),
    };
    target.unlink(&name)?;
    target.sync_everything()?;
    let key = |id, title: &str, chunks: u64| {
        let size = readable_bytes(chunks * CHUNK_BYTES);
        RowKey::new(id, format!("{title}, per MiB ({size})"), 0)
    };
    let mut rows = vec![
        (
            key("scan-write", "sequential write + fdatasync", chunks),
            written,
        ),
        (
            key("scan-overwrite", "the same, overwriting", chunks),
            overwritten,
        ),
        (key("scan-cached", "sequential cached read", chunks), cached),
    ];
    if let Some(direct) = direct {
        let key = key("scan-direct", "sequential direct read", direct_chunks);
        rows.push((key, direct));
    }
    Ok(rows)
}

fn read<T: Target>(
    stage: &Stage<'_, T>,
    file: &T::File,
    chunks: u64,
    limit: Limit,
) -> io::Result<Sample> {
    let mut buffer = AlignedBuffer::new(CHUNK_BYTES as usize);
    stage.observe(limit, Timing::Each, |turn| {
        file.read_at(&mut buffer, turn % chunks * CHUNK_BYTES)
    })
}
