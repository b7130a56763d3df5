//! POSIX on blobs: inodes, directories, locks.
//!
//! A room uses only rooms above it in this list; a test of `xtask` checks that:
//! - `types`: the arguments and results of operations; `names`: the entries of a directory on the
//!   device; `inode`: slots, permissions, paths, orphans;
//! - `open`: open files in memory; `volume`: [`Fs`], how it is made, opened and closed;
//! - `attributes`, `namespace`, `data`, `locks`: the operations;
//! - `workers`: the engines of a volume with several workers;
//! - `inspect`: a look at a volume in use; `check` and `repair` of the names.

mod attributes;
mod check;
mod data;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod inode;
mod inspect;
mod locks;
mod names;
mod namespace;
mod open;
mod repair;
mod types;
mod volume;
mod workers;

pub use adit_store::{
    BlobId, Finding, FindingKind, Findings, MappedMemory, Store, Synced, TailMemory, XattrMode,
    memories_lent,
};
pub use attributes::{Change, SharedNames};
pub use check::CheckReport;
pub use inode::slot::stat_of;
pub use inspect::{ListedEntry, OpenDescriptor};
pub use open::file::OpenFile;
pub use open::locks::LOCKS_MAX;
pub use repair::{RepairReport, repair};
pub use types::*;
pub use volume::{Fs, LocalBoxFuture, Stage};
pub use workers::Workers;
