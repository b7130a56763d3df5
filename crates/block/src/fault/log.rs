//! The volatile cache of the fault device: all writes, the durable ones, and the possible outcomes
//! of a power cut.
//!
//! State of a write: submitted → completed → durable. A flush makes durable the writes that had
//! completed before it was *submitted*; a FUA write is durable when it completes; without a
//! volatile cache every write is. A flush or FUA write that fails may have lost writes that were in
//! the cache meanwhile, and its error is the only report: no later flush makes such a write
//! durable.
//!
//! Invariants: `durable` holds exactly what must survive; `cached` holds, in order of completion,
//! what may survive; `in_flight` what may survive without a completion. After a cut, every sector
//! of every write that may survive does so independently: lost, kept and torn writes are all legal
//! outcomes, and of two writes to one sector the later wins if both are kept (or the earlier stays,
//! if the later is lost). A torn write may damage the rest of its physical blocks.

use std::collections::BTreeMap;
use std::sync::Arc;

use adit_base::SECTOR_BYTES;
use adit_base::random::Prng;

use super::Image;

const SECTOR: u64 = SECTOR_BYTES as u64;

/// One write as it reached the device.
#[derive(Clone)]
pub(super) struct CachedWrite {
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u64,
    /// None: zeroes.
    pub(super) bytes: Option<Arc<[u8]>>,
    /// Sectors that a later durable write replaced: they can't come back.
    superseded: Vec<u64>,
    completed_at: u64,
    /// A flush or FUA write that failed was under way when it completed, or began afterwards.
    forsaken: bool,
    /// A sector of a torn write: the sectors beside it belong to that write.
    torn: bool,
}

/// Durable content, and writes that aren't durable yet.
#[derive(Clone)]
pub(super) struct WriteLog {
    volatile_cache: bool,
    physical_block_bytes: u32,
    durable: Image,
    cached: Vec<CachedWrite>,
    in_flight: BTreeMap<u64, CachedWrite>,
    /// Counts completions: a flush covers the writes that completed before its submission.
    clock: u64,
    /// Flushes and FUA writes under way that will fail.
    failing: u32,
}

impl CachedWrite {
    pub(super) fn new(offset_bytes: u64, len_bytes: u64, bytes: Option<Arc<[u8]>>) -> CachedWrite {
        CachedWrite {
            offset_bytes,
            len_bytes,
            bytes,
            superseded: Vec::new(),
            completed_at: 0,
            forsaken: false,
            torn: false,
        }
    }

    /// The remains of a torn write.
    pub(super) fn sector_of_torn(offset_bytes: u64, bytes: &[u8]) -> CachedWrite {
        CachedWrite {
            torn: true,
            ..CachedWrite::new(offset_bytes, bytes.len() as u64, Some(bytes.into()))
        }
    }

    /// Applies the sectors that `keep` chooses.
    pub(super) fn apply(&self, image: &mut Image, mut keep: impl FnMut(u64) -> bool) {
        let end_bytes = (self.offset_bytes + self.len_bytes).min(image.size_bytes());
        for start in (self.offset_bytes..end_bytes).step_by(SECTOR_BYTES) {
            let sector = start / SECTOR;
            if self.superseded.contains(&sector) || !keep(sector) {
                continue;
            }
            let within = (start - self.offset_bytes) as usize;
            let len = SECTOR.min(end_bytes - start) as usize;
            match &self.bytes {
                Some(bytes) => image.write(start, &bytes[within..within + len]),
                None => image.zero(start, len as u64),
            }
        }
    }

    /// The rest of its physical blocks may hold anything.
    fn damage_beside(&self, image: &mut Image, physical_block_bytes: u32, random: &mut Prng) {
        let block = u64::from(physical_block_bytes);
        let (start, end) = (self.offset_bytes, self.offset_bytes + self.len_bytes);
        let first = start - start % block;
        let last = end.next_multiple_of(block).min(image.size_bytes());
        for beside in [first..start, end..last] {
            for sector in beside.step_by(SECTOR_BYTES) {
                if !self.torn && random.chance(1, 2) {
                    image.write(sector, &[0xdb; SECTOR_BYTES]);
                }
            }
        }
    }

    fn apply_all(&self, image: &mut Image) {
        match &self.bytes {
            _ if !self.superseded.is_empty() => self.apply(image, |_| true),
            Some(bytes) => image.write(self.offset_bytes, bytes),
            None => image.zero(self.offset_bytes, self.len_bytes),
        }
    }

    fn sectors(&self) -> std::ops::Range<u64> {
        self.offset_bytes / SECTOR..(self.offset_bytes + self.len_bytes).div_ceil(SECTOR)
    }
}

impl WriteLog {
    pub(super) fn new(durable: Image, volatile_cache: bool, physical_block_bytes: u32) -> WriteLog {
        WriteLog {
            volatile_cache,
            physical_block_bytes,
            durable,
            cached: Vec::new(),
            in_flight: BTreeMap::new(),
            clock: 0,
            failing: 0,
        }
    }

    /// Makes room for a larger device.
    pub(super) fn resize(&mut self, size_bytes: u64) {
        self.durable.resize(size_bytes);
    }

    /// The last completion that a flush covers if it is submitted now.
    pub(super) fn now(&self) -> u64 {
        self.clock
    }

    /// A write has been submitted under a number of its own.
    pub(super) fn submitted(&mut self, number: u64, write: CachedWrite) {
        self.in_flight.insert(number, write);
    }

    /// A submitted write never reached the device (an injected error or loss).
    pub(super) fn forget(&mut self, number: u64) {
        self.in_flight.remove(&number);
    }

    /// Whether a write is submitted under this number.
    pub(super) fn is_in_flight(&self, number: u64) -> bool {
        self.in_flight.contains_key(&number)
    }

    /// A submitted write completed.
    pub(super) fn completed(&mut self, number: u64, fua: bool) {
        let Some(mut write) = self.in_flight.remove(&number) else {
            return;
        };
        self.clock += 1;
        write.completed_at = self.clock;
        // A device without FUA makes a write and a flush of it.
        if self.volatile_cache && (!fua || self.failing > 0) {
            write.forsaken = self.failing > 0;
            return self.cached.push(write);
        }
        self.make_durable(write);
    }

    /// A write is durable, and all older ones that are not are in the list.
    fn make_durable(&mut self, write: CachedWrite) {
        // Older cached writes to these sectors must not come back over durable content.
        let ours = write.sectors();
        for older in &mut self.cached {
            if older.completed_at < write.completed_at {
                let theirs = older.sectors();
                let both = ours.start.max(theirs.start)..ours.end.min(theirs.end);
                older.superseded.extend(both);
            }
        }
        write.apply_all(&mut self.durable);
    }

    /// A flush that was submitted at `covers` completed.
    pub(super) fn flushed(&mut self, covers: u64) {
        let (durable, cached) = std::mem::take(&mut self.cached)
            .into_iter()
            .partition(|write| write.completed_at <= covers && !write.forsaken);
        self.cached = cached;
        for write in durable {
            self.make_durable(write);
        }
    }

    /// A flush or FUA write begins that will fail: writes in the cache, now or until its
    /// completion, may be lost.
    pub(super) fn barrier_fails(&mut self) {
        self.failing += 1;
        self.cached
            .iter_mut()
            .for_each(|write| write.forsaken = true);
    }

    /// It completes.
    pub(super) fn barrier_failed(&mut self) {
        self.failing -= 1;
    }

    /// Writes that a power cut may lose: (completed, in flight).
    pub(super) fn at_risk(&self) -> (usize, usize) {
        (self.cached.len(), self.in_flight.len())
    }

    /// The content after a power cut in which `keep(write, sector)` decides; writes are numbered in
    /// the order in which they apply.
    pub(super) fn cut_with(&self, mut keep: impl FnMut(usize, u64) -> bool) -> Image {
        let mut image = self.durable.clone();
        for (index, write) in self
            .cached
            .iter()
            .chain(self.in_flight.values())
            .enumerate()
        {
            write.apply(&mut image, |sector| keep(index, sector));
        }
        image
    }

    /// The content if some of the writes in flight had completed.
    pub(super) fn complete_some(&self, image: &mut Image, random: &mut Prng) {
        for write in self.in_flight.values() {
            match random.below(3) {
                0 => {}
                1 => write.apply(image, |_| true),
                _ => write.apply(image, |_| random.chance(1, 2)),
            }
        }
    }

    /// A random legal outcome of a power cut. Writes in flight may also apply in another order.
    pub(super) fn cut(&self, random: &mut Prng) -> Image {
        let mut image = self.durable.clone();
        let mut in_flight: Vec<_> = self.in_flight.values().collect();
        random.shuffle(&mut in_flight);
        for write in self.cached.iter().chain(in_flight) {
            match random.below(4) {
                0 => {}
                1 | 2 => write.apply(&mut image, |_| true),
                _ => {
                    write.apply(&mut image, |_| random.chance(1, 2));
                    write.damage_beside(&mut image, self.physical_block_bytes, random);
                }
            }
        }
        image
    }
}
