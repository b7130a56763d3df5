//! Errors, checksums, hashing, pools of numbers and time: what every other layer needs and no layer owns.

pub mod checksum;

pub use rustix::io::Errno;
/// Placeholder, replaced by the error type of this layer.
pub type Error = Errno;
/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of a sector, the only unit that does not tear.
pub const SECTOR_BYTES: usize = 512;
