//! POSIX on blobs: inodes, directories, locks.
//!
//! Start at `volume.rs` (what a mounted file system is and how it comes and goes), then `open.rs`
//! (descriptors and inodes in memory), `resolve.rs` (paths), `permission.rs` (who may do what), `namespace.rs` and
//! `rename.rs` (operations on names), `data.rs` (operations on content), `locks.rs` (advisory locks), `attributes.rs`,
//! `xattrs.rs` and `names.rs` (how a directory lies on the device).

mod attributes;
mod check;
mod copy;
mod data;
mod directory;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod inode;
mod inspect;
mod locks;
mod names;
mod namespace;
mod open;
mod orphans;
mod permission;
mod rename;
mod repair;
mod resolve;
mod scrub;
mod symlink;
mod types;
mod volume;
mod xattrs;

pub use adit_store::{BlobId, Finding, FindingKind, Findings, Store, XattrMode};
pub use check::CheckReport;
pub use inspect::{ListedEntry, OpenDescriptor};
pub use locks::LOCKS_MAX;
pub use open::OpenFile;
pub use repair::{RepairReport, repair};
pub use types::*;
pub use volume::Fs;
