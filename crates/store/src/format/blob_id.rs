//! The name of a blob, and its largest size.

use adit_base::PAGE_BYTES;

/// Names a blob for ever: no other blob of the volume ever has the same id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct BlobId {
    /// Slot address: device page × 8 + sector. Serves as inode number.
    pub slot: u64,
    /// Tells successive blobs in one slot apart.
    pub generation: u32,
}

/// Largest size of a blob: 2^32 pages less one, 16 TiB.
pub const BLOB_BYTES_MAX: u64 = (u32::MAX as u64) * PAGE_BYTES as u64;
