//! POSIX on blobs: inodes, directories, locks.
//!
//! Start at `volume.rs` (what a mounted file system is and how it comes and goes), then `open.rs`
//! (descriptors and inodes in memory), `resolve.rs` (paths), `namespace.rs` (operations on names),
//! `data.rs` (operations on content) and `names.rs` (how a directory lies on the device).
//! Permissions are not checked here: an embedded volume belongs to its process.

mod attributes;
mod check;
mod data;
mod inode;
mod names;
mod namespace;
mod open;
mod orphans;
mod resolve;
mod types;
mod volume;

pub use adit_store::{BlobId, Store, XattrMode};
pub use check::CheckReport;
pub use open::OpenFile;
pub use types::*;
pub use volume::Fs;
