//! Blobs and transactions: everything that is on the device. Knows no names.
//!
//! The rooms, lower ones first; a room uses only those above it in this table, which a test checks
//! (`crates/xtask/src/rooms.rs`).
//!
//! | room | what |
//! |---|---|
//! | [`mod@format`] | the bytes on the device: pages, superblock, records, where the groups lie |
//! | [`cache`] | frames of pages, and the shared mapping that survives the process |
//! | [`metadata`] | pages read and changed by any means: trees, extents, slots, free space |
//! | `journal` | the ring, the open transaction, pending frees, images for a checkpoint |
//! | `recovery` | replay of the journal; judgement of a killed process's memory |
//! | `blob` | blobs in memory, and what other threads may do with them |
//! | `state` | the worker-owned state of an open volume, [`Store`] |
//! | `commit` | transactions, group commit, barriers, checkpoints |
//! | `data` | reads, writes, write-back, direct IO, checksums of data |
//! | `health` | check, repair, scrub |
//! | `volume` | mkfs, open, close, grow |

mod blob;
pub mod cache;
mod commit;
mod data;
pub mod format;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod health;
mod journal;
pub mod metadata;
mod recovery;
mod state;
#[doc(hidden)]
pub mod testing;
mod volume;

pub use blob::{Blob, BlobShared, GrantedSync, GrantedWrite, MappedMemory, Synced};
pub use cache::lent::memories_lent;
pub use cache::tail::{Appended, TAIL_BYTES, TailMemory, TailWriter, locked};
pub use cache::{AppliedUpTo, Mapping, Survive, Unsaved, Versions, mappings, remove_mapping};
pub use commit::{SharedMetadata, SharedView, Transaction, View};
pub use data::{AllocateMode, AtomicRange, AtomicWrite, Sought, SyncKind};
pub use data::{XATTR_BYTES_MAX, XATTR_NAME_BYTES_MAX, XattrMode, xattr_names, xattr_value};
pub use format::{BLOB_BYTES_MAX, BlobId, foreign_signature};
pub use health::{CheckReport, Damage, NameEntry, NameLeaves, NameTarget, Problem};
pub use health::{RepairOptions, ScrubPlace, ScrubReport, SlotTable};
pub use journal::{COMMITS_MAX, Point};
pub use metadata::{Need, extents, node, page_view, pages, slot_page, space};
pub use recovery::{Finding, FindingKind, Findings, Predecessor, Takeover};
pub use state::{Beside, introduce};
pub use state::{CACHE_BYTES_MIN, HasStore, PARTITIONS_MAX, Receipt, Store, StoreOptions};
pub use volume::Seat;
pub use volume::{MkfsOptions, VolumeInfo, mkfs};
