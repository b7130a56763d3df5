//! What all partitions of a volume read ([`Whole`]), and what the first one has for all ([`Lead`]).

use super::{Lead, Store, Whole};
use crate::cache::OwnedCache;
use crate::journal::Point;

impl Whole {
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

impl Store {
    /// What the first partition has for all, which this one is.
    #[inline]
    pub(crate) fn leading(&self) -> &Lead {
        let lead = self.lead.as_ref();
        lead.expect("the first partition commits, and writes superblocks")
    }
}

/// Each partition may have a worker of its own.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Whole>();
};
