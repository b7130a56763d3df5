//! Names, their keys, and the inode that an entry names.

use crate::types::{FileKind, NAME_BYTES_MAX};
use adit_base::hash::{HashKey, name_hash};
use adit_store::BlobId;

/// Low bits of a key that tell names of equal hash apart.
pub(super) const RANK_BITS: u32 = 4;
pub(super) const RANK_MASK: u64 = (1 << RANK_BITS) - 1;
/// Lower keys are never used by names: they are the cookies of `.` and `..`.
pub(crate) const KEY_MIN: u64 = 1 << RANK_BITS;

/// Cookies are an `off_t`.
pub(super) const KEY_MAX: u64 = i64::MAX as u64;

/// A name and its hash, computed once per operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name<'a> {
    pub(super) hash: u64,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Name<'a> {
    /// A name of 1 to 255 bytes.
    pub(crate) fn new(key: &HashKey, bytes: &'a [u8]) -> Name<'a> {
        Name::with_hash(name_hash(key, bytes), bytes)
    }

    /// True if this name may have the key.
    pub(crate) fn owns(&self, key: u64) -> bool {
        key & !RANK_MASK == self.hash
    }

    pub(super) fn with_hash(hash: u64, bytes: &'a [u8]) -> Name<'a> {
        assert!(
            (1..=NAME_BYTES_MAX).contains(&bytes.len()),
            "callers check the length"
        );
        Name {
            hash: (hash & !RANK_MASK & KEY_MAX).max(KEY_MIN),
            bytes,
        }
    }
}

/// The inode of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Target {
    /// Slot address of the inode.
    pub(crate) slot: u64,
    /// Its generation.
    pub(crate) generation: u32,
    /// Its `BlobKind` number.
    pub(crate) kind: u8,
}

impl Target {
    /// The target of an entry for this inode.
    pub(crate) fn new(id: BlobId, kind: FileKind) -> Target {
        Target {
            slot: id.slot,
            generation: id.generation,
            kind: kind as u8,
        }
    }

    /// The inode.
    pub(crate) fn id(&self) -> BlobId {
        BlobId {
            slot: self.slot,
            generation: self.generation,
        }
    }
}
