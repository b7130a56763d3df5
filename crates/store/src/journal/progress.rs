//! How far the journal is, for all partitions to read.

use super::waiters::Waiters;
use super::{Commits, Followers, OpenRoom, Point, Ring};
use crate::cache::OwnedCache;
use adit_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use adit_reactor::Awaited;

/// The commits, the ring, and the open transaction of a volume. The first partition's worker moves
/// them on, or one that has the first partition beside it; each partition adds to the open
/// transaction.
pub(crate) struct Progress {
    /// Sealed commits that the horizon has not passed.
    in_flight: AtomicU32,
    /// Some worker has all partitions, or is taking them.
    leads: AtomicBool,
    /// For the end of a commit.
    pub(crate) waiters: Waiters,
    /// Of commits that any worker leads.
    pub(crate) followers: Followers,
    pub(crate) commits: Commits,
    pub(crate) ring: Ring,
    pub(crate) room: OpenRoom,
}

/// The end of a commit in flight, or of the wait of its leader, since so many were durable.
impl Awaited for Progress {
    #[inline]
    fn is_over(&self, durable: u64) -> bool {
        self.commits.durable() != durable
            || (self.in_flight() == 0 && !self.followers.are_waited_for())
    }
}

impl Progress {
    /// Of an opening: a ring of `pages` that is empty from `lsn` on.
    pub(crate) fn new(pages: u64, lsn: u64, partitions: u32) -> Progress {
        Progress {
            in_flight: AtomicU32::new(0),
            leads: AtomicBool::new(false),
            waiters: Waiters::default(),
            followers: Followers::default(),
            commits: Commits::default(),
            ring: Ring::new(pages, lsn),
            room: OpenRoom::new(pages, partitions),
        }
    }

    /// How many sealed commits the horizon has not passed.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Acquire)
    }

    pub(super) fn begin_commit(&self) {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn end_commit(&self) {
        let before = self.in_flight.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a commit ends once");
    }

    /// Runs a function that takes all partitions, unless another worker does that.
    pub(crate) fn lead<T>(&self, function: impl FnOnce() -> T) -> Option<T> {
        /// Another one may lead, also after a panic.
        struct Led<'p>(&'p AtomicBool);

        impl Drop for Led<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Release);
            }
        }

        if self.leads.load(Ordering::Relaxed) || self.leads.swap(true, Ordering::Acquire) {
            return None;
        }
        let _led = Led(&self.leads);
        Some(function())
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
