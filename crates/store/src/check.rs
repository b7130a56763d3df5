//! Checks a whole volume: superblocks, state page, group maps, slots, maps of blobs, attribute pages.
//!
//! Being built: for now it answers EOPNOTSUPP.

use crate::blob::BlobId;
use crate::format::Page;
use crate::volume::Store;
use adit_base::{Errno, Error, Result};

/// Something that is wrong with a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Where: "group 3's map (page 49795)".
    pub place: String,
    /// What is wrong there.
    pub what: String,
    /// What follows from it for whoever uses the volume.
    pub consequence: String,
}

/// What [`Store::check`] found.
#[derive(Clone, Default, Debug)]
pub struct CheckReport {
    /// What is wrong, in the order in which it was found.
    pub problems: Vec<Problem>,
    /// Problems beyond those listed, of which only the number is known.
    pub problems_omitted: u64,
    /// Blobs found.
    pub blobs: u64,
    /// Slots that don't verify; what blobs they held is unknown.
    pub slots_damaged: u64,
    /// Pages that something refers to, without map pages.
    pub pages_used: u64,
    /// Free pages by the maps.
    pub pages_free: u64,
    /// Pages of data among those used.
    pub data_pages: u64,
    /// Pages of slots, trees and attributes among those used.
    pub metadata_pages: u64,
    /// Allocation groups of the volume.
    pub groups: u32,
    /// Groups that were ever used.
    pub groups_initialized: u32,
}

impl CheckReport {
    /// Is nothing wrong?
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

impl Store {
    /// Checks the whole volume and repairs nothing. `progress` hears of steps done and their number.
    pub async fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport> {
        self.check_with(progress, &mut |_, _| Vec::new()).await
    }

    /// As [`Store::check`]; `leaf` is called with every leaf of a tree of names, in the order of its keys, and
    /// answers what is wrong with the names in it (the header was verified).
    pub async fn check_with(
        &self,
        _progress: &mut dyn FnMut(u64, u64),
        _leaf: &mut dyn FnMut(BlobId, &Page) -> Vec<String>,
    ) -> Result<CheckReport> {
        Err(Error::with(
            Errno::OPNOTSUPP,
            "checking a volume: not built yet",
        ))
    }
}
