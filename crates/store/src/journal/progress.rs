//! How far the journal is, for all partitions to read.

use super::{Commits, OpenRoom, Point, Ring};
use crate::cache::OwnedCache;

/// The commits, the ring, and the open transaction of a volume. The first partition moves them on;
/// each partition adds to the open transaction.
pub(crate) struct Progress {
    pub(crate) commits: Commits,
    pub(crate) ring: Ring,
    pub(crate) room: OpenRoom,
}

impl Progress {
    /// Of an opening: a ring of `pages` that is empty from `lsn` on.
    pub(crate) fn new(pages: u64, lsn: u64, partitions: u32) -> Progress {
        Progress {
            commits: Commits::default(),
            ring: Ring::new(pages, lsn),
            room: OpenRoom::new(pages, partitions),
        }
    }

    /// The place in the order that covers everything applied so far.
    pub(crate) fn point(&self) -> Point {
        Point(self.commits.sealed() + u64::from(!self.room.is_empty()))
    }

    /// True if all transactions applied before `point` was taken are sealed.
    pub(crate) fn is_sealed(&self, point: Point) -> bool {
        self.commits.sealed() >= point.0
    }

    /// True if all transactions applied before `point` was taken are durable.
    pub(crate) fn is_durable(&self, point: Point) -> bool {
        self.commits.durable() >= point.0
    }

    /// True if the ring has room for a commit that isn't a checkpoint's.
    pub(crate) fn has_ordinary_room(&self) -> bool {
        self.ring.has_ordinary_room(self.room.pages())
    }

    /// True if the live bytes make a checkpoint due.
    pub(crate) fn wants_checkpoint(&self, cache: &OwnedCache) -> bool {
        let counts = cache.counts();
        self.ring.live_pages() > self.ring.pages() / 2 || counts.journaled > counts.total / 4
    }

    /// True if the next checkpoint is far, and will be short.
    pub(crate) fn is_calm(&self, cache: &OwnedCache) -> bool {
        let counts = cache.counts();
        self.ring.live_pages() < self.ring.pages() / 8 && counts.journaled < counts.total / 16
    }
}
