//! A volume's state of data checksums beside the device (`data/checksums.rs`).

use crate::format::geometry::SpaceGeometry;
use crate::format::superblock::{list_of, places_of};
use crate::format::{CHECKSUMS_PER_PAGE, GROUP_PAGES, UNSETTLED_MAX};
use crate::journal::Point;
use crate::metadata::space::Run;
use crate::state::PARTITIONS_MAX;
use adit_base::simulation::{Bug, planted};
use adit_base::sync::{Mutex, MutexGuard};
use adit_reactor::sync::Event;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

/// Most pages of checksums that one transaction of settling changes.
const SETTLED_PLACES_MAX: usize = 16;

/// Most pages of data that one transaction settles.
const SETTLED_MAX: usize = 1024;

/// A partition's state of data checksums beside the device.
#[derive(Default)]
pub(crate) struct Checksums {
    /// Pages of its blobs whose checksum is to become known, and it, or [`READING`].
    pub(crate) settling: RefCell<BTreeMap<u64, u32>>,
    /// Pages of checksums with missing ones that a crash left unknown.
    pub(crate) unknown: RefCell<Vec<u64>>,
    /// A checkpoint takes pages home, and is about to bring their checksums.
    pub(crate) taking_home: Cell<bool>,
    pub(crate) running: Cell<bool>,
    pub(crate) ended: Event,
}

/// In place of a checksum that is to become known: the page is being read.
pub(crate) const READING: u32 = 0;

/// When a place will be settled: not known.
const OPEN: Point = Point(u64::MAX);

/// By partition, pages of checksums some of which may be missing on the device, and when they will
/// be there; [`OPEN`]: not yet known. Of all partitions: the first one's superblock lists them.
#[derive(Default)]
pub(crate) struct Unsettled([Mutex<BTreeMap<u64, Point>>; PARTITIONS_MAX as usize]);

impl Unsettled {
    fn of(&self, partition: u32) -> MutexGuard<'_, BTreeMap<u64, Point>> {
        let places = self.0[partition as usize].lock();
        places.unwrap_or_else(PoisonError::into_inner)
    }

    /// The tail is about to pass the records of a page, which a partition has taken home.
    pub(crate) fn note(&self, partition: u32, geometry: &SpaceGeometry, page: u64) {
        if let Some((place, _)) = geometry.checksum_place(page) {
            self.of(partition).insert(place, OPEN);
        }
    }

    /// All that a partition has noted is in the commits up to a point.
    pub(crate) fn settled(&self, partition: u32, point: Point) {
        for settled in self.of(partition).values_mut() {
            *settled = (*settled).min(point);
        }
    }

    /// Whether it isn't known of a place of a partition when it will be settled.
    pub(crate) fn has_open(&self, partition: u32) -> bool {
        self.of(partition).values().any(|settled| *settled == OPEN)
    }

    /// The list for a superblock: the places with checksums missing on the device. `durable`: the
    /// last commit that is.
    pub(crate) fn listed(&self, durable: u64) -> [u64; UNSETTLED_MAX] {
        if planted(Bug::ForgottenUnsettled) {
            return [0; UNSETTLED_MAX];
        }
        let mut listed = BTreeSet::new();
        for partition in 0..PARTITIONS_MAX {
            let mut places = self.of(partition);
            places.retain(|_, settled| settled.0 > durable);
            listed.extend(places.keys());
        }
        list_of(listed.into_iter(), false)
    }
}

impl Checksums {
    /// Starts with the missing checksums that a superblock lists.
    pub(crate) fn new(
        listed: &[u64; UNSETTLED_MAX],
        geometry: &SpaceGeometry,
        unsettled: &Unsettled,
    ) -> Checksums {
        let (mut places, more) = places_of(listed);
        if more {
            tracing::warn!("after the crash some data has no checksum until `adit scrub`");
        }
        places.retain(|place| is_place(geometry, *place));
        (unsettled.of(0)).extend(places.iter().map(|place| (*place, OPEN)));
        Checksums {
            unknown: RefCell::new(places),
            ..Checksums::default()
        }
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

    /// These are settled, unless another checksum is to become known meanwhile.
    pub(crate) fn forget(&self, batch: &[(u64, u32)]) {
        let mut settling = self.settling.borrow_mut();
        for (page, done) in batch {
            if settling.get(page) == Some(done) {
                settling.remove(page);
            }
        }
    }

    /// Pages that were to be read stay without a checksum.
    pub(crate) fn forget_reading(&self) {
        (self.settling.borrow_mut()).retain(|_, sum| *sum != READING);
    }

    /// All data that has no checksum stays without.
    pub(crate) fn forget_all(&self) {
        self.settling.borrow_mut().clear();
        self.unknown.borrow_mut().clear();
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
