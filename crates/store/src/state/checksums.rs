//! The store's state of data checksums beside the device (`data/checksums.rs`).

use crate::format::geometry::SpaceGeometry;
use crate::format::superblock::{list_of, places_of};
use crate::format::{CHECKSUMS_PER_PAGE, GROUP_PAGES, UNSETTLED_MAX};
use crate::journal::Point;
use crate::metadata::space::Run;
use adit_base::simulation::{Bug, planted};
use adit_reactor::sync::Event;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Most pages of checksums that one transaction of settling changes.
const SETTLED_PLACES_MAX: usize = 16;

/// Most pages of data that one transaction settles.
const SETTLED_MAX: usize = 1024;

/// The store's state of data checksums beside the device.
#[derive(Default)]
pub(crate) struct Checksums {
    /// Pages whose checksum is to become known, and it, or [`READING`].
    pub(crate) settling: RefCell<BTreeMap<u64, u32>>,
    /// Pages of checksums some of which may be missing on the device, and when they will be there;
    /// [`OPEN`]: not yet known.
    pub(crate) unsettled: RefCell<BTreeMap<u64, Point>>,
    /// Those with missing checksums that a crash left unknown.
    pub(crate) unknown: RefCell<Vec<u64>>,
    pub(crate) running: Cell<bool>,
    pub(crate) ended: Event,
}

/// In place of a checksum that is to become known: the page is being read.
pub(crate) const READING: u32 = 0;

/// When a place will be settled: not known.
const OPEN: Point = Point(u64::MAX);

impl Checksums {
    /// Starts with the missing checksums that a superblock lists.
    pub(crate) fn new(listed: &[u64; UNSETTLED_MAX], geometry: &SpaceGeometry) -> Checksums {
        let (mut places, more) = places_of(listed);
        if more {
            tracing::warn!("after the crash some data has no checksum until `adit scrub`");
        }
        places.retain(|place| is_place(geometry, *place));
        Checksums {
            unsettled: RefCell::new(places.iter().map(|place| (*place, OPEN)).collect()),
            unknown: RefCell::new(places),
            ..Checksums::default()
        }
    }

    /// The tail is about to pass the records of a page.
    pub(crate) fn unsettle_place(&self, geometry: &SpaceGeometry, page: u64) {
        if let Some((place, _)) = geometry.checksum_place(page) {
            self.unsettled.borrow_mut().insert(place, OPEN);
        }
    }

    /// The list for a superblock: the places with checksums missing on the device. `durable`: the
    /// last commit that is.
    pub(crate) fn listed(&self, durable: u64) -> [u64; UNSETTLED_MAX] {
        if planted(Bug::ForgottenUnsettled) {
            return [0; UNSETTLED_MAX];
        }
        let mut unsettled = self.unsettled.borrow_mut();
        unsettled.retain(|_, settled| settled.0 > durable);
        list_of(unsettled.keys().copied(), false)
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.settling.borrow().is_empty() && self.unknown.borrow().is_empty()
    }

    /// These bytes of the page were written home, and its records are behind the tail.
    pub(crate) fn settle(&self, page: u64, sum: u32) {
        self.settling.borrow_mut().insert(page, sum);
    }

    /// The page has no checksum on the device, and its bytes are these.
    pub(crate) fn settle_unless_known(&self, page: u64, sum: u32) {
        self.settling.borrow_mut().entry(page).or_insert(sum);
    }

    /// Drops the known checksums of pages that change.
    pub(crate) fn unsettle(&self, run: Run) {
        let mut settling = self.settling.borrow_mut();
        if settling.is_empty() {
            return;
        }
        let gone: SmallVec<[u64; 8]> = (settling.range(run.page..run.end()))
            .map(|(page, _)| *page)
            .collect();
        for page in gone {
            settling.remove(&page);
        }
    }

    pub(crate) fn some(&self) -> Vec<(u64, u32)> {
        let mut found = Vec::new();
        let (mut places, mut last) = (0, None);
        let settling = self.settling.borrow();
        for (page, sum) in settling
            .iter()
            .filter(|(_, sum)| **sum != READING)
            .take(SETTLED_MAX)
        {
            // Near enough: where the pages of checksums begin and end doesn't matter.
            let place = page / CHECKSUMS_PER_PAGE as u64;
            places += usize::from(last.replace(place) != Some(place));
            if places > SETTLED_PLACES_MAX / 2 {
                break;
            }
            found.push((*page, *sum));
        }
        found
    }
}

/// True if this is a page of checksums.
pub(crate) fn is_place(geometry: &SpaceGeometry, place: u64) -> bool {
    let Some(offset) = place.checked_sub(geometry.first_group) else {
        return false;
    };
    offset / GROUP_PAGES < u64::from(geometry.groups())
        && (1..geometry.head_pages() as u64).contains(&(offset % GROUP_PAGES))
}
