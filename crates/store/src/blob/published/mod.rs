//! Where whole pages of a blob are on the device: for direct reads that need no worker. (A write
//! grant also publishes places, for direct writes: see `blob/write_grant`.)
//!
//! The worker publishes extents whose newest content is on the device. Any thread may then read the
//! device there by itself. Afterwards it checks that the extent is still published; if not, the
//! worker reads again.
//!
//! Invariants:
//! 1. Under the worker's lock: [`PublishedExtents::publish`] while nothing of the blob is dirty, in
//!    write-back or journaled; [`PublishedExtents::forget`] before a write to the cache is
//!    acknowledged, and when a transaction that changes the blob is applied.
//! 2. So bytes read under a ticket that is still current are this blob's bytes at some time during
//!    the read: freed pages go to another blob only after that.

#[cfg(all(test, loom))]
mod models;

use crate::metadata::extents::Extent;
use adit_base::sync::SeqCount;
use adit_base::sync::atomic::{AtomicU64, Ordering};

/// Extents that are remembered; a read elsewhere goes through the worker, which publishes that
/// extent in place of another.
const EXTENTS: usize = if cfg!(loom) { 1 } else { 16 };

#[derive(Debug, Default)]
struct PublishedExtent {
    /// First page of the blob, shifted by 32, and number of pages; 0: none.
    pages: AtomicU64,
    /// Device page of the first.
    home: AtomicU64,
}

impl PublishedExtent {
    /// If that extent and this one are one piece, or have pages in common, makes it all of it. The
    /// worker only.
    fn join(&self, extent: &mut Extent) -> bool {
        let pages = self.pages.load(Ordering::Relaxed);
        let home = self.home.load(Ordering::Relaxed);
        let (first, len) = (pages >> 32, pages & u64::from(u32::MAX));
        let (logical, end) = (u64::from(extent.logical), extent.end());
        let (from, to) = (first.min(logical), (first + len).max(end));
        let one = len != 0
            && first <= end
            && logical <= first + len
            && home + logical == extent.physical + first
            && to - from <= u64::from(u32::MAX);
        if one {
            extent.physical = home.min(extent.physical);
            (extent.logical, extent.pages) = (from as u32, (to - from) as u32);
        }
        one
    }
}

/// Some of a blob's extents.
#[derive(Debug, Default)]
pub(crate) struct PublishedExtents {
    sequence: SeqCount,
    places: [PublishedExtent; EXTENTS],
}

/// Where to read, and the version that must still be current afterwards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) home: u64,
    sequence: u64,
}

impl PublishedExtents {
    /// Where pages `[page, page + count)` begin on the device, if they are known to lie there in
    /// one piece.
    pub(crate) fn find(&self, page: u64, count: u64) -> Option<Ticket> {
        let sequence = self.sequence.read()?;
        let home = self.places.iter().find_map(|place| {
            let pages = place.pages.load(Ordering::Relaxed);
            let home = place.home.load(Ordering::Relaxed);
            let (first, len) = (pages >> 32, pages & u64::from(u32::MAX));
            (first <= page && page + count <= first + len).then(|| home + (page - first))
        })?;
        let ticket = Ticket { home, sequence };
        self.is_current(ticket).then_some(ticket)
    }

    /// True if the extents of the ticket are still published.
    pub(crate) fn is_current(&self, ticket: Ticket) -> bool {
        self.sequence.is_still(ticket.sequence)
    }

    /// Tells of an extent, in place of one that it continues or covers, or else of the smallest.
    /// The worker only.
    pub(crate) fn publish(&self, mut extent: Extent) {
        let changes = self.sequence.read().map_or(0, |sequence| sequence / 2);
        let joined = self.places.iter().find(|place| place.join(&mut extent));
        let next = changes as usize % EXTENTS;
        let in_turn = || self.places[next..].iter().chain(&self.places[..next]);
        let len =
            |place: &&PublishedExtent| place.pages.load(Ordering::Relaxed) & u64::from(u32::MAX);
        let Some(place) = joined.or_else(|| in_turn().min_by_key(len)) else {
            return;
        };
        self.sequence.begin();
        let pages = u64::from(extent.logical) << 32 | u64::from(extent.pages);
        place.pages.store(pages, Ordering::Relaxed);
        place.home.store(extent.physical, Ordering::Relaxed);
        self.sequence.end();
    }

    /// Withdraws all extents. The worker only.
    pub(crate) fn forget(&self) {
        let known = |place: &PublishedExtent| place.pages.load(Ordering::Relaxed) != 0;
        if !self.places.iter().any(known) {
            return;
        }
        for place in &self.places {
            place.pages.store(0, Ordering::Relaxed);
        }
        self.sequence.step();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{EXTENTS, PublishedExtents};
    use crate::metadata::extents::Extent;

    fn extent(logical: u32, pages: u32, physical: u64) -> Extent {
        Extent {
            logical,
            pages,
            physical,
            unwritten: false,
        }
    }

    #[test]
    fn what_lies_in_one_extent_is_found_until_it_is_forgotten() {
        let places = PublishedExtents::default();
        assert!(places.find(0, 1).is_none());
        places.publish(extent(10, 5, 1000));
        places.publish(extent(100, 1, 7));
        assert_eq!(places.find(12, 3).unwrap().home, 1002);
        assert_eq!(places.find(100, 1).unwrap().home, 7);
        assert!(places.find(9, 2).is_none());
        assert!(places.find(12, 4).is_none());
        let ticket = places.find(10, 5).unwrap();
        assert!(places.is_current(ticket));
        places.forget();
        assert!(!places.is_current(ticket));
        assert!(places.find(10, 1).is_none());
    }

    #[test]
    fn extents_that_continue_each_other_are_one() {
        let places = PublishedExtents::default();
        places.publish(extent(10, 5, 1000));
        places.publish(extent(15, 5, 1005));
        places.publish(extent(5, 5, 995));
        places.publish(extent(8, 4, 998));
        assert_eq!(places.find(5, 15).unwrap().home, 995);
        places.publish(extent(20, 5, 2000));
        assert!(places.find(19, 2).is_none());
        assert_eq!(places.find(20, 5).unwrap().home, 2000);
        assert!(places.find(4, 1).is_none());
        assert!(places.find(25, 1).is_none());
    }

    #[test]
    fn the_last_extents_are_remembered() {
        let places = PublishedExtents::default();
        for index in 0..2 * EXTENTS as u32 {
            places.publish(extent(index * 10, 10, u64::from(index)));
        }
        let known = |index: usize| places.find(index as u64 * 10, 1).is_some();
        assert!((0..EXTENTS).all(|index| !known(index)));
        assert!((EXTENTS..2 * EXTENTS).all(known));
    }
}
