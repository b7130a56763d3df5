//! Walks a blob's map for `adit check` and tests. Reports everything instead of stopping; repairs
//! nothing.

use super::{Extent, LeafOrSlot, read, tree};
use crate::format::Slot;
use crate::metadata::node::{Path, Visit};
use crate::metadata::pages::{PagesRead, Stop};
use crate::metadata::slot_page::slot_place;

/// Something that [`check`] came across.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// Something that can't be.
    Problem {
        /// The page where it was found.
        page: u64,
        /// The problem.
        what: String,
    },
    /// A page of the tree.
    Node(u64),
    /// An extent, whose pages are used.
    Extent(Extent),
}

/// Walks the whole map: reports every problem, every page of the tree and every extent, and returns
/// the number of their pages (which `allocated_pages` of the slot should equal). After a miss the
/// caller drops the reports and runs it again.
pub fn check(
    pages: &impl PagesRead,
    slot: &Slot,
    slot_address: u64,
    report: &mut dyn FnMut(Found),
) -> Result<u64, Stop> {
    let mut checker = Checker {
        pages,
        slot,
        slot_address,
        end: 0,
        used: 0,
        report,
    };
    match tree(slot, slot_address) {
        Ok(Some(tree)) => tree.check(pages, &mut checker)?,
        Ok(None) => checker.extents(&LeafOrSlot::inline(slot_address), (0, None))?,
        Err(stop) => checker.stopped(slot_place(slot_address).0, stop)?,
    }
    Ok(checker.used)
}

/// Checks one leaf of a blob's tree, for a caller that walks the tree itself: `bounds` are the
/// leaf's keys, `end` is the end of the extent before it (updated). After a miss nothing was
/// reported.
pub(crate) fn check_leaf(
    pages: &impl PagesRead,
    slot: &Slot,
    slot_address: u64,
    (page, lower, upper): (u64, u64, Option<u64>),
    end: &mut u64,
    report: &mut dyn FnMut(Found),
) -> Result<(), Stop> {
    let mut checker = Checker {
        pages,
        slot,
        slot_address,
        end: *end,
        used: 0,
        report,
    };
    checker.leaf(page, lower, upper)?;
    *end = checker.end;
    Ok(())
}

struct Checker<'a, P> {
    pages: &'a P,
    slot: &'a Slot,
    slot_address: u64,
    end: u64,
    used: u64,
    report: &'a mut dyn FnMut(Found),
}

impl<P: PagesRead> Checker<'_, P> {
    fn stopped(&mut self, page: u64, stop: Stop) -> Result<(), Stop> {
        match stop {
            Stop::Fail(error) => (self.report)(Found::Problem {
                page,
                what: error.what().to_string(),
            }),
            miss => return Err(miss),
        }
        Ok(())
    }

    fn extents(
        &mut self,
        place: &LeafOrSlot,
        (lower, upper): (u64, Option<u64>),
    ) -> Result<(), Stop> {
        let extents = match read(self.pages, self.slot, self.slot_address, place) {
            Ok(extents) => extents,
            Err(stop) => return self.stopped(place.page, stop),
        };
        if extents.is_empty() && (lower, upper) != (0, None) {
            self.problem(place.page, "an empty leaf that isn't the only one".into());
        }
        for raw in extents {
            let extent = match raw.verify(place.page) {
                Ok(extent) => extent,
                Err(stop) => {
                    self.stopped(place.page, stop)?;
                    continue;
                }
            };
            let start = u64::from(extent.logical);
            if start < self.end {
                self.problem(
                    place.page,
                    format!("{extent:?} begins before the end of the one before it"),
                );
            }
            if start < lower || upper.is_some_and(|upper| extent.end() > upper) {
                self.problem(
                    place.page,
                    format!("{extent:?} is outside of its leaf's range"),
                );
            }
            self.end = self.end.max(extent.end());
            self.used += u64::from(extent.pages);
            (self.report)(Found::Extent(extent));
        }
        Ok(())
    }
}

impl<P: PagesRead> Visit for Checker<'_, P> {
    fn node(&mut self, page: u64) {
        self.used += 1;
        (self.report)(Found::Node(page));
    }

    fn leaf(&mut self, page: u64, lower: u64, upper: Option<u64>) -> Result<(), Stop> {
        let path = Path::to_leaf(page, lower, upper);
        self.extents(
            &LeafOrSlot {
                page,
                path: Some(path),
            },
            (lower, upper),
        )
    }

    fn problem(&mut self, page: u64, what: String) {
        (self.report)(Found::Problem { page, what });
    }
}
