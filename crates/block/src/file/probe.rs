//! Which engine suits a device, found out by a few reads at open. Writes nothing and takes two milliseconds at most, plus one read.
//!
//! The rule: a device that completes in the caller (RAM-backed disks, a hot image on a RAM disk) has no latency to overlap, and a ring
//! costs it a detour through another thread; measured on zram, 2 µs became 35 µs. So io_uring is chosen only if a plain read takes long
//! enough to do something else meanwhile, and a read through the ring isn't slower.

use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_base::PAGE_BYTES;
use rustix::fs::SeekFrom;

use super::uring::UringQueue;
use super::{FileEngine, Opened};
use crate::{Buffer, Queue, Request, Submission};

/// Reads an engine is measured by.
const READS: usize = 8;
/// An engine isn't measured for longer.
const MEASURE_MAX: Duration = Duration::from_micros(900);
/// A read that is faster than this has no latency worth overlapping.
const OVERLAP_MIN: Duration = Duration::from_micros(20);

/// The engine for a device.
pub(super) fn choose(opened: &Arc<Opened>) -> FileEngine {
    let Some(sync) = median(opened, |request| opened.run(&request).is_ok()) else {
        return FileEngine::Sync;
    };
    if sync < OVERLAP_MIN {
        return FileEngine::Sync;
    }
    let Ok(mut queue) = UringQueue::open(opened.clone(), 1) else {
        return FileEngine::Sync;
    };
    match median(opened, |request| through(&mut queue, request)) {
        Some(ring) if ring <= sync + sync / 8 => FileEngine::IoUring,
        _ => FileEngine::Sync,
    }
}

/// The median time of a few reads of written places; none when there is nothing to read.
fn median(opened: &Opened, mut read: impl FnMut(Request) -> bool) -> Option<Duration> {
    let page_bytes = PAGE_BYTES as u64;
    let first_bytes = rustix::fs::seek(&opened.file, SeekFrom::Data(0)).ok()?;
    let pages = opened.facts.size_bytes / page_bytes;
    let first_page = first_bytes / page_bytes;
    if first_page >= pages {
        return None;
    }
    let buffer = Buffer::zeroed(PAGE_BYTES);
    let mut times = Vec::with_capacity(READS);
    let start = Instant::now();
    for step in 0..READS as u64 {
        // The first pages are where a volume has its journal: certainly written.
        let page = first_page + step * 7 % (pages - first_page);
        let before = Instant::now();
        if !read(Request::read(page * page_bytes, buffer.clone(), 0)) {
            return None;
        }
        // The first read warms up descriptors and memory.
        if step > 0 || start.elapsed() > MEASURE_MAX {
            times.push(before.elapsed());
        }
        if start.elapsed() > MEASURE_MAX {
            break;
        }
    }
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

fn through(queue: &mut UringQueue, request: Request) -> bool {
    let Submission::Accepted = queue.submit(request) else {
        return false;
    };
    let mut done = Vec::with_capacity(1);
    let doorbell = queue.doorbell();
    while queue.poll(&mut done) == 0 {
        doorbell.wait(None);
    }
    done.iter().all(|completion| completion.result.is_ok())
}
