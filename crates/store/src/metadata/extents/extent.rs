//! An extent, and the entries of a map: extents and holes.

use super::LOGICAL_END;
use crate::format::{EXTENT_PAGES_MAX, EXTENT_UNWRITTEN, RawExtent};
use crate::metadata::page_view::corrupt;
use crate::metadata::pages::Stop;
use crate::metadata::space::Run;
use std::ops::Range;

/// A run of pages of a blob in a run of pages of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First page of the blob.
    pub logical: u32,
    /// Pages; not 0.
    pub pages: u32,
    /// First page of the device.
    pub physical: u64,
    /// Allocated, but never written: reads as zero.
    pub unwritten: bool,
}

impl Extent {
    /// The page of the blob behind the extent.
    pub fn end(&self) -> u64 {
        u64::from(self.logical) + u64::from(self.pages)
    }

    /// The pages of the device.
    pub fn run(&self) -> Run {
        Run {
            page: self.physical,
            pages: self.pages,
        }
    }

    /// The part of the extent within `range`, which must overlap it.
    pub fn cut(&self, range: Range<u64>) -> Extent {
        let (from, to) = (
            range.start.max(self.logical.into()),
            range.end.min(self.end()),
        );
        assert!(from < to, "{self:?} is cut to nothing by {range:?}");
        let skipped = from - u64::from(self.logical);
        Extent {
            logical: from as u32,
            pages: (to - from) as u32,
            physical: self.physical + skipped,
            ..*self
        }
    }

    /// True if the two can be one extent.
    pub(super) fn joins(&self, next: &Extent) -> bool {
        self.unwritten == next.unwritten
            && self.end() == u64::from(next.logical)
            && self.run().end() == next.physical
            && self.pages + next.pages <= EXTENT_PAGES_MAX
    }

    pub(crate) fn raw(&self) -> RawExtent {
        RawExtent {
            logical: self.logical,
            flags: if self.unwritten { EXTENT_UNWRITTEN } else { 0 },
            pages_and_physical: self.physical << 16 | u64::from(self.pages),
        }
    }
}

/// Each stored extent, with its verified form if it is valid.
pub(crate) fn verified_extents(
    raw: &[RawExtent],
) -> impl Iterator<Item = (Option<Extent>, &RawExtent)> {
    raw.iter().map(|raw| (raw.verify(0).ok(), raw))
}

impl RawExtent {
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.logical) + (self.pages_and_physical & 0xffff)
    }

    /// Verifies a stored extent. `page` is the page that has it.
    pub(super) fn verify(&self, page: u64) -> Result<Extent, Stop> {
        let pages = (self.pages_and_physical & 0xffff) as u32;
        if pages == 0 || self.end() > LOGICAL_END || self.flags & !EXTENT_UNWRITTEN != 0 {
            return Err(corrupt(page, format_args!("{self:?} is not an extent")));
        }
        Ok(Extent {
            logical: self.logical,
            pages,
            physical: self.pages_and_physical >> 16,
            unwritten: self.flags & EXTENT_UNWRITTEN != 0,
        })
    }
}

/// The entry of a blob's map at a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapEntry {
    /// The extent that covers the page, cut so that it begins there.
    Extent(Extent),
    /// No extent, up to the next one or [`LOGICAL_END`].
    Hole {
        /// Pages of the hole from the page on.
        pages: u32,
    },
}
