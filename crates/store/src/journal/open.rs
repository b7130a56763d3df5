//! The open transaction: all changes that were applied since the last seal.

use super::{FrameKey, Point, Progress};
use crate::format::JOURNAL_PAYLOAD_BYTES;
use crate::format::record::encoded_bytes_max;
use crate::metadata::Need;
use adit_base::PAGE_BYTES;
use adit_base::sync::atomic::{AtomicU64, Ordering};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Payload bytes of a page of data that is journaled whole: itself and its record's header.
const DATA_PAGE_BYTES: usize = PAGE_BYTES + 16;
/// Payload bytes of the checksum in a page's header, with its record's header.
const CHECKSUM_RECORD_BYTES: usize = 80;
/// Payload bytes of the record that zeroes a fresh page.
const ZERO_RECORD_BYTES: usize = 16;

/// Payload bytes of a step's metadata.
const STEP_BYTES: usize = Need::STEP.journal_bytes;

fn bytes_beyond_step(need: &Need) -> usize {
    need.data_pages * DATA_PAGE_BYTES + need.journal_bytes.saturating_sub(STEP_BYTES)
}

/// Payload bytes of a need, all of it.
fn bytes_of(need: &Need) -> usize {
    need.data_pages * DATA_PAGE_BYTES + need.journal_bytes
}

/// How large the volume's open transaction is, and may become.
///
/// Where there are several partitions, each takes *credit* from a pool, in pieces, and admits
/// transactions as far as its credit goes. All credit comes back with a seal.
pub(crate) struct OpenRoom {
    bytes_max: usize,
    /// Credit that nobody has.
    pool: AtomicU64,
    /// The bytes of each partition.
    used: Box<[UsedBytes]>,
}

/// Payload bytes that sealing would take for a partition, at most. 0: nothing was applied there
/// since the last seal. A thread that has that partition's lock changes it.
#[derive(Default)]
#[repr(align(64))]
struct UsedBytes(AtomicU64);

impl OpenRoom {
    /// That of an empty one, in a ring of `ring_pages`.
    pub(crate) fn new(ring_pages: u64, partitions: u32) -> OpenRoom {
        let pages_max = (ring_pages / 16).clamp(8, 256) as usize;
        let bytes_max = pages_max * JOURNAL_PAYLOAD_BYTES;
        OpenRoom {
            bytes_max,
            pool: AtomicU64::new(credit(bytes_max)),
            used: (0..partitions).map(|_| UsedBytes::default()).collect(),
        }
    }

    /// All credit.
    pub(super) fn credit(&self) -> u64 {
        credit(self.bytes_max)
    }

    /// Journal pages at most.
    pub(crate) fn pages_max(&self) -> usize {
        (self.bytes_max + STEP_BYTES).div_ceil(JOURNAL_PAYLOAD_BYTES) + 1
    }

    /// Pages of data, each journaled whole, that one transaction may carry beside its metadata.
    pub(crate) fn data_pages_max(&self) -> usize {
        match self.used.len() {
            1 => self.bytes_max / DATA_PAGE_BYTES,
            _ => (self.bytes_max - 2 * PAGE_BYTES) / DATA_PAGE_BYTES,
        }
    }

    /// True if it may join an empty open transaction.
    pub(crate) fn fits(&self, need: &Need) -> bool {
        match self.used.len() {
            1 => bytes_beyond_step(need) <= self.bytes_max,
            _ => bytes_of(need) as u64 <= self.credit(),
        }
    }

    /// True if no transaction was applied since the last seal.
    pub(crate) fn is_empty(&self) -> bool {
        (0..self.used.len()).all(|partition| self.bytes(partition) == 0)
    }

    /// Journal pages that sealing would take, at most.
    pub(crate) fn pages(&self) -> u64 {
        let bytes: usize = (0..self.used.len()).map(|number| self.bytes(number)).sum();
        bytes.div_ceil(JOURNAL_PAYLOAD_BYTES) as u64 + 1
    }

    pub(super) fn bytes(&self, partition: usize) -> usize {
        self.used[partition].0.load(Ordering::Acquire) as usize
    }

    /// Everything was sealed, and no partition has credit any more.
    pub(super) fn clear(&self) {
        for used in &self.used {
            used.0.store(0, Ordering::Release);
        }
        self.pool.store(self.credit(), Ordering::Relaxed);
    }

    /// Takes this much credit, or more of it: a piece that others can spare. 0: it isn't there.
    fn take(&self, bytes: usize) -> usize {
        let piece = self.credit() / (4 * self.used.len() as u64);
        let mut left = self.pool.load(Ordering::Relaxed);
        loop {
            let taken = left.min(piece.max(bytes as u64));
            if taken < bytes as u64 {
                return 0;
            }
            let (then, order) = (left - taken, Ordering::Relaxed);
            match self.pool.compare_exchange_weak(left, then, order, order) {
                Ok(_) => return taken as usize,
                Err(now) => left = now,
            }
        }
    }

    fn give_back(&self, bytes: usize) {
        self.pool.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// All credit: the bytes that the page memory holds, but for the state page and the ends of pages.
fn credit(bytes_max: usize) -> u64 {
    (bytes_max + STEP_BYTES - 2 * PAGE_BYTES) as u64
}

/// A partition's part of the open transaction.
pub(crate) struct OpenTransaction {
    /// Keys of frames with pending granules; some twice, some gone.
    frames: RefCell<Vec<FrameKey>>,
    progress: Arc<Progress>,
    partition: usize,
    /// Bytes that it may have, where there are several partitions.
    credit: Cell<usize>,
}

impl OpenTransaction {
    pub(super) fn new(progress: Arc<Progress>, partition: u32) -> OpenTransaction {
        OpenTransaction {
            frames: RefCell::default(),
            progress,
            partition: partition as usize,
            credit: Cell::new(0),
        }
    }

    /// True if the partition has nothing in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.borrow().is_empty()
    }

    /// True if a transaction with this need may join. With one partition, a step of metadata may
    /// join until the bound is reached: the page memory holds one more than that.
    pub(crate) fn has_room(&self, need: &Need) -> bool {
        let (room, used) = (&self.progress.room, self.bytes());
        if room.used.len() == 1 {
            return used + bytes_beyond_step(need) <= room.bytes_max;
        }
        let wanted = used + bytes_of(need);
        if self.credit.get() < wanted {
            let taken = room.take(wanted - self.credit.get());
            self.credit.set(self.credit.get() + taken);
        }
        self.credit.get() >= wanted
    }

    /// A transaction has joined, or has not: credit for a large one goes back.
    pub(crate) fn settle(&self) {
        let room = &self.progress.room;
        let spare = self.credit.get().saturating_sub(self.bytes());
        let piece = room.credit() as usize / (4 * room.used.len());
        if spare > 2 * piece {
            self.credit.set(self.credit.get() - (spare - piece));
            room.give_back(spare - piece);
        }
    }

    /// The place in the order that covers what was applied here, and everything before it.
    pub(crate) fn point(&self) -> Point {
        match self.bytes() {
            0 => self.progress.point(),
            _ => Point(self.progress.commits.open()),
        }
    }

    /// Payload bytes that sealing would take for it, at most.
    pub(crate) fn bytes(&self) -> usize {
        self.progress.room.bytes(self.partition)
    }

    /// Another partition has this many bytes more, for which this one has the credit.
    pub(crate) fn give_credit(&self, other: &OpenTransaction, bytes: usize) {
        let credit = self.credit.get().checked_sub(bytes);
        self.credit
            .set(credit.expect("a transaction stages no more than it was admitted with"));
        other.credit.set(other.credit.get() + bytes);
    }

    /// An attempt to run a transaction was put off: nobody waits for its credit.
    pub(crate) fn release_credit(&self) {
        let spare = self.credit.get().saturating_sub(self.bytes());
        self.credit.set(self.credit.get() - spare);
        self.progress.room.give_back(spare);
    }

    /// A transaction has added so much, at most.
    pub(super) fn add(&self, bytes: usize) {
        let bytes = (self.bytes() + bytes) as u64;
        let used = &self.progress.room.used[self.partition].0;
        used.store(bytes, Ordering::Release);
    }

    /// Accounts newly pending granules.
    pub(crate) fn count(&self, granules: u64) {
        self.add(encoded_bytes_max(granules));
    }

    /// A frame has pending granules now.
    pub(crate) fn join(&self, key: FrameKey, fresh: bool) {
        self.frames.borrow_mut().push(key);
        let zero = if fresh { ZERO_RECORD_BYTES } else { 0 };
        self.add(CHECKSUM_RECORD_BYTES + zero);
    }

    /// A frame has no pending granules any more.
    pub(crate) fn forget(&self, key: FrameKey) {
        self.frames.borrow_mut().retain(|other| *other != key);
    }

    /// The keys of its frames, each once, in their order.
    pub(super) fn sorted(&self) -> std::cell::Ref<'_, Vec<FrameKey>> {
        // A page that was freed and taken again is listed twice; encoded twice it could overflow.
        let mut frames = self.frames.borrow_mut();
        frames.sort_unstable();
        frames.dedup();
        drop(frames);
        self.frames.borrow()
    }

    /// It was sealed, or all partitions give back their credit: it is empty, after `f` has had the
    /// keys of its frames.
    pub(super) fn clear(&self, f: impl FnMut(FrameKey)) {
        self.credit.set(0);
        self.frames.borrow_mut().drain(..).for_each(f);
    }

    /// Calls `f` with the keys of its frames.
    pub(super) fn for_each(&self, f: impl FnMut(&FrameKey)) {
        self.frames.borrow().iter().for_each(f);
    }
}
