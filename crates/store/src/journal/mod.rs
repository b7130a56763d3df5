//! The journal: one ring, one order. This is its state; `commit` moves it on.
//!
//! Applied transactions collect in the *open* one. A commit seals it (encodes the granules,
//! reserves LSNs), writes it and makes it durable. Up to `COMMITS_MAX` sealed commits are in
//! flight; callers that arrive meanwhile share the next one (decision 0016).
//!
//! | module | what |
//! |---|---|
//! | here | the state of the partition that commits |
//! | `ring` | LSNs: live, in flight, free |
//! | `commits` | numbers of commits, and places in their order |
//! | `seal` | from the open transaction to journal pages |
//! | `changes` | the state of a partition: open and live frames, frees, images |
//! | `open` | the open transaction |
//! | `progress` | the state that all partitions read |
//! | `waiters` | operations of any partition that wait for the end of a commit |
//! | `frees` | freed runs that may not be used yet |
//! | `images` | pages as they were at a checkpoint's commit |
//! | `followers` | how long a leader waits for followers |
//!
//! Invariants:
//! 1. LSN = absolute number of a journal page. Pages below the horizon are durable (`ring`).
//! 2. Before a journal write is submitted, all data that its records describe is durable
//!    (`commit/group.rs`).
//! 3. The last eighth of the ring is kept for the commit that begins a checkpoint, so a checkpoint
//!    never waits for ring space.
//! 4. A frame with pending or live bytes is JOURNALED: it isn't evicted, and goes home only by
//!    `commit/checkpoint.rs`.
//!
//! 5. The horizon passes commits in the order of their LSNs, whichever was written first. So no
//!    journal page says that a commit is durable while its predecessor is not.
//!
//! A failed journal write or flush makes the volume read-only: no later commit may be acknowledged,
//! and the horizon never passes the failed one.

mod changes;
mod commits;
mod followers;
mod frees;
mod images;
#[cfg(all(test, loom))]
mod models;
mod open;
mod progress;
mod ring;
mod seal;
mod waiters;

use crate::cache::{FrameId, FrameKey, OwnedCache};
use crate::format::VolumeId;
use adit_base::simulation::{Bug, planted};
use adit_reactor::sync::Event;
use std::cell::{Cell, RefCell};

pub(crate) use changes::{Changes, DataSums};
use commits::Commits;
pub use commits::Point;
pub(crate) use followers::Followers;
use open::{OpenRoom, OpenTransaction};
pub(crate) use progress::Progress;
use ring::Ring;
use seal::Sealer;
pub(crate) use seal::{Sealed, encode_page};

/// Commits that may be in flight at most.
pub const COMMITS_MAX: u32 = 4;

/// Below, threads that sleep and wake cost what the overlap gains (0016).
pub(crate) const OVERLAP_MIN_US: u64 = 250;

/// The journal of an open volume.
pub(crate) struct Journal {
    sealer: Sealer,
    pub(crate) followers: Followers,
    /// How many commits may be in flight, and whether the latency decides.
    commits_max: Cell<u32>,
    by_latency: bool,
    /// Those of them that are durable, but have a predecessor that is not.
    early: RefCell<Vec<Sealed>>,
    pub(crate) checkpointing: Cell<bool>,
    /// A checkpoint waits for a seal from which on it gets images.
    wants_images: Cell<bool>,
    /// LSN as of which it has them, and the last commit before.
    images_as_of: Cell<Option<(u64, u64)>>,
    /// A commit ended, a checkpoint ended, or the volume failed.
    pub(crate) committed: Event,
}

impl Journal {
    /// That of an opening, without a commit yet.
    pub(crate) fn new(epoch: u64, commits_max: Option<u32>) -> Journal {
        Journal {
            sealer: Sealer::new(epoch),
            followers: Followers::default(),
            commits_max: Cell::new(commits_max.map_or(1, |max| max.clamp(1, COMMITS_MAX))),
            by_latency: commits_max.is_none(),
            early: RefCell::default(),
            checkpointing: Cell::new(false),
            wants_images: Cell::new(false),
            images_as_of: Cell::new(None),
            committed: Event::new(),
        }
    }

    /// True if commits may overlap.
    pub(crate) fn overlaps(&self) -> bool {
        self.commits_max.get() > 1
    }

    /// Commits of a device with this latency overlap if that gains.
    pub(crate) fn note_latency(&self, latency_us: u64) {
        if self.by_latency {
            let gains = latency_us >= OVERLAP_MIN_US;
            self.commits_max.set(if gains { COMMITS_MAX } else { 1 });
        }
    }

    /// True if a commit may begin, beside those in flight. It needs page memory for its journal
    /// pages; a commit alone has enough for any admitted transaction.
    pub(crate) fn may_commit(&self, progress: &Progress) -> bool {
        match progress.in_flight() {
            0 => true,
            others => {
                others < self.commits_max.get() && self.sealer.has_buffers(progress.room.pages())
            }
        }
    }

    /// A checkpoint begins: the next seal begins saving images.
    pub(crate) fn want_images(&self) {
        self.images_as_of.set(None);
        self.wants_images.set(true);
    }

    /// True if a checkpoint waits for the next seal, for which the end of the ring is kept.
    pub(crate) fn is_for_checkpoint(&self) -> bool {
        self.wants_images.get()
    }

    /// If the open transaction is empty, no partition has credit any more. The caller has all of
    /// them to itself.
    pub(crate) fn take_back_credit<'c>(
        &self,
        progress: &Progress,
        partitions: impl Iterator<Item = &'c Changes>,
    ) {
        if progress.room.is_empty() {
            partitions.for_each(|changes| changes.open.clear(|_| ()));
            progress.room.clear();
        }
    }

    /// LSN as of which images are saved, and the last commit before it.
    pub(crate) fn images_as_of(&self) -> Option<(u64, u64)> {
        self.images_as_of.get()
    }

    /// The checkpoint has ended.
    pub(crate) fn end_images(&self) {
        self.wants_images.set(false);
        self.images_as_of.set(None);
    }

    /// Gives it page memory for journal writes.
    pub(crate) fn add_buffers(&self, frames: impl IntoIterator<Item = FrameId>) {
        self.sealer.add_buffers(frames);
    }

    /// Seals the open transaction: everything in it has the LSNs from `Sealed::lsn` on, and its
    /// frames are live. None: it is empty. In the same step, a checkpoint that waits gets its
    /// images. `partitions` are all there are, and the first one's cache has the page memory.
    pub(crate) fn seal(
        &self,
        progress: &Progress,
        partitions: &[(&OwnedCache, &Changes)],
        volume: &VolumeId,
        state_page: u64,
    ) -> Option<Sealed> {
        assert!(self.may_commit(progress), "no more commits than allowed");
        let sealed = (!progress.room.is_empty()).then(|| {
            let own = partitions[0].0;
            let lists = partitions.iter().map(|part| (part.0, &part.1.open));
            let (ring, commits) = (&progress.ring, &progress.commits);
            let sealed = (self.sealer).seal(own, lists, volume, state_page, ring, commits);
            // For a process that dies here: first the sealed pages count, then the frames' granules
            // don't.
            for (index, frame) in sealed.frames.iter().enumerate() {
                own.publish_journal_buffer(*frame, sealed.lsn + index as u64);
            }
            for (cache, changes) in partitions {
                changes.note_sealed(cache, sealed.lsn);
            }
            progress.begin_commit();
            sealed
        });
        for (_, changes) in partitions {
            changes.open.clear(|_| ());
        }
        progress.room.clear();
        if self.wants_images.take() {
            let (lsn, commit) = (progress.ring.next(), progress.commits.sealed());
            (partitions.iter()).for_each(|(_, changes)| changes.images.start(lsn));
            self.images_as_of.set(Some((lsn, commit)));
        }
        sealed
    }

    /// A sealed transaction is durable. The horizon passes it, and durable ones after it, unless an
    /// earlier one is not durable; their page memory is free again. True if the horizon moved.
    pub(crate) fn pass_horizon(
        &self,
        progress: &Progress,
        cache: &OwnedCache,
        sealed: Sealed,
    ) -> bool {
        let (ring, commits) = (&progress.ring, &progress.commits);
        let before = ring.horizon();
        let mut early = self.early.borrow_mut();
        early.push(sealed);
        while let Some(index) = early
            .iter()
            .position(|sealed| sealed.lsn == ring.horizon() || planted(Bug::HorizonPassesHole))
        {
            let sealed = early.swap_remove(index);
            for frame in &sealed.frames {
                cache.unpublish_journal_buffer(*frame);
            }
            let end = sealed.lsn + sealed.frames.len() as u64;
            ring.advance_horizon(end.max(ring.horizon()));
            commits.pass(sealed.number);
            self.sealer.add_buffers(sealed.frames);
            progress.end_commit();
        }
        assert!(
            early.len() < progress.in_flight().max(1) as usize,
            "a commit is early because another is in flight"
        );
        ring.horizon() > before
    }
}
