//! Errors, checksums, hashing, random numbers, time and where it goes, sizes, fork detection, and
//! programs as the loader reads them: the needs of every other layer.
//!
//! Invariants: nothing here knows about devices or volumes; nothing here panics on outside input.

mod address;
pub mod breakdown;
pub mod checksum;
pub mod clock;
mod errno;
mod error;
pub mod executable;
pub mod fork;
pub mod hash;
pub mod held;
pub mod identity;
mod labels;
pub mod limits;
pub mod memory;
pub mod numbers;
pub mod patience;
pub mod random;
pub mod simulation;
pub mod size;
pub mod steps;
pub mod sync;
pub mod thread;

pub use address::Address;
pub use errno::{Errno, from_rustix};
pub use error::{Error, Result};
use std::ops::Range;

/// Bytes of a page: the unit of mapping, of the cache and of the journal.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of a sector, the only unit that does not tear.
pub const SECTOR_BYTES: usize = 512;
/// Bytes of a granule, the unit in which changes of a journaled page are tracked.
pub const GRANULE_BYTES: usize = 64;

/// The granules of a page that these bytes touch, a bit each.
pub const fn granules(bytes: Range<usize>) -> u64 {
    if bytes.start >= bytes.end {
        return 0;
    }
    let (first, last) = (bytes.start / GRANULE_BYTES, (bytes.end - 1) / GRANULE_BYTES);
    (u64::MAX >> (63 - (last - first))) << first
}
