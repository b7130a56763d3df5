//! Blobs and transactions: everything that is on the device. Knows no names.
//!
//! Start at `volume.rs` (what a mounted store is), then `transaction.rs` (how it changes),
//! `sync.rs` (how data gets home) and `recovery.rs` (how it comes back).

mod atomic;
mod barriers;
pub mod blob;
pub mod cache;
mod check;
mod checkpoint;
mod checksums;
mod direct;
pub mod extents;
pub mod format;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod grow;
mod home;
mod iterate;
mod journal;
mod lease;
mod mappings;
mod mount;
pub mod node;
mod owned_cache;
pub mod page_view;
pub mod pages;
mod places;
mod read;
mod record;
mod recovery;
mod repair;
mod resize;
mod scrub;
mod seek;
pub mod slot_page;
pub mod space;
pub mod space_check;
mod superblock;
mod sync;
mod takeover;
#[doc(hidden)]
pub mod testing;
mod transaction;
mod volume;
mod write;
mod xattr;

pub use atomic::AtomicRange;
pub use blob::{BLOB_BYTES_MAX, Blob, BlobId, BlobShared, DirectWrite};
pub use cache::Survive;
pub use cache::Unsaved;
pub use check::{CheckReport, Problem};
pub use journal::Point;
pub use mappings::{Mapping, mappings, remove_mapping};
pub use mount::{MkfsOptions, RepairOptions, mkfs};
pub use repair::{Finding, FindingKind, Findings, NameEntry, NameLeaves};
pub use resize::AllocateMode;
pub use scrub::{Damage, ScrubOptions, ScrubReport};
pub use seek::Sought;
pub use superblock::foreign_signature;
pub use sync::SyncKind;
pub use takeover::Takeover;
pub use transaction::{Transaction, View};
pub use volume::{CACHE_BYTES_MIN, Store, StoreOptions, VolumeInfo};
pub use xattr::{XATTR_BYTES_MAX, XATTR_NAME_BYTES_MAX, XattrMode, xattr_names, xattr_value};
