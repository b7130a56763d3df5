//! Chooses the engine for a device by a few reads at open. It writes nothing and takes some two
//! milliseconds, or three reads of a high-latency device.
//!
//! The rule: io_uring where several reads at once through a ring take much less time than the same
//! reads by system calls in turn. A device that completes in the caller (RAM-backed disks, a hot
//! image on a RAM disk) has no latency to overlap, and a ring adds a detour through another thread;
//! measured on zram, 2 µs became 35 µs. The probe compares the fastest of a few rounds of each: at
//! open, other work of the process often disturbs a round.

use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_base::PAGE_BYTES;
use rustix::fs::SeekFrom;

use super::uring::UringQueue;
use super::{FileEngine, Opened};
use crate::{Buffer, Queue, Request, Submission};

/// Reads of a round.
const READS: u64 = 8;
/// Rounds of each engine.
const ROUNDS: usize = 4;
/// No other round is begun after this time.
const MEASURE_MAX: Duration = Duration::from_millis(2);
/// A read that is faster than this has no latency worth overlapping, even if several system calls
/// cost more than one.
const OVERLAP_MIN: Duration = Duration::from_micros(4);
/// Where each read takes longer than this, there is latency without measuring more.
const SLOW: Duration = Duration::from_millis(1);

/// The engine for a device.
pub(super) fn choose(opened: &Arc<Opened>) -> FileEngine {
    match overlaps(opened) {
        Some(true) => FileEngine::IoUring,
        _ => FileEngine::Sync,
    }
}

/// Whether a ring gains by having reads in flight together; nothing when there is nothing to read,
/// or no ring to read with.
fn overlaps(opened: &Arc<Opened>) -> Option<bool> {
    let places = places(opened)?;
    let buffer = Buffer::zeroed(PAGE_BYTES);
    let reads = || {
        places
            .iter()
            .map(|&at| Request::read(at, buffer.clone(), 0))
    };
    let mut fastest = Duration::MAX;
    for (turn, read) in reads().enumerate() {
        fastest = fastest.min(timed(|| opened.run(&read).is_ok())?);
        if turn >= 2 && fastest > SLOW {
            return UringQueue::open(opened.clone(), 1).ok().map(|_| true);
        }
    }
    if fastest < OVERLAP_MIN {
        return Some(false);
    }
    let mut queue = UringQueue::open(opened.clone(), READS as u32).ok()?;
    let (mut in_turn, mut at_once) = (Duration::MAX, Duration::MAX);
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        in_turn = in_turn.min(timed(|| reads().all(|read| opened.run(&read).is_ok()))?);
        at_once = at_once.min(timed(|| together(&mut queue, reads()))?);
        if begin.elapsed() > MEASURE_MAX {
            break;
        }
    }
    Some(at_once < in_turn / 4 * 3)
}

/// Offsets of written pages, in bytes; none when nothing is written.
fn places(opened: &Opened) -> Option<Vec<u64>> {
    let page_bytes = PAGE_BYTES as u64;
    let first_bytes = if opened.facts.block_device {
        // It has no holes, and lseek cannot find data on it (EINVAL).
        0
    } else {
        rustix::fs::seek(&opened.file, SeekFrom::Data(0)).ok()?
    };
    let first_page = first_bytes / page_bytes;
    let pages = (opened.facts.size_bytes / page_bytes).saturating_sub(first_page);
    // The first pages are where a volume has its journal: certainly written.
    let place = |step: u64| (first_page + step * 7 % pages) * page_bytes;
    (pages > 0).then(|| (0..READS).map(place).collect())
}

/// How long it takes; nothing when it fails.
fn timed(work: impl FnOnce() -> bool) -> Option<Duration> {
    let begin = Instant::now();
    work().then(|| begin.elapsed())
}

/// Whether all of them succeed, in flight together.
fn together(queue: &mut UringQueue, mut reads: impl Iterator<Item = Request>) -> bool {
    let all = reads.all(|read| matches!(queue.submit(read), Submission::Accepted));
    let doorbell = queue.doorbell();
    if doorbell.ring().is_err() {
        return false;
    }
    let mut done = Vec::with_capacity(READS as usize);
    while queue.in_flight() > 0 {
        doorbell.wait(None);
        queue.poll(&mut done);
    }
    all && done.iter().all(|completion| completion.result.is_ok())
}
