//! The page cache: frames of memory that the owner writes and any thread reads.
//!
//! `mapping.rs` is the memory (`memory_limit.rs`: limits of control groups), `header.rs` its first
//! page, `frames.rs` operations of any thread, `held.rs` several pages of one moment (`hazards.rs`:
//! how they are kept as they are), `index.rs` the search for a page, `owner.rs` operations of the
//! owner (`supply.rs`: the supply of frames, `free.rs`: free ones, `writing.rs`: changes of pages),
//! `apply.rs` how a transaction becomes visible, `ahead_counts` blobs ahead of their slots,
//! `published.rs` frames that other processes read, `ledger.rs` the
//! copies of the state page that partitions have, `salvage.rs` the cache of a dead process,
//! `leftover.rs` the search for it, `name.rs` its name, `claim.rs` protection from openers that
//! reach the volume in another way, `tail` memory beside the mapping to which programs in other
//! processes append.
//!
//! Invariants:
//! 1. Only the owner changes keys, flags and chains, and content, except that other threads
//!    overwrite dirty pages under a write grant (`blob/write_grant`). Other threads change pin
//!    counts, `referenced`, and push frames that they unpinned last onto the return stack.
//! 2. The content of a frame with VALID changes only while its state is WRITING. The owner reaches
//!    that from "no pins", another thread from its own pin, the only one; the owner replaces a
//!    pinned frame by another one instead. So it does with a frame of metadata (META) that a thread
//!    has listed (`hazards.rs`); only [`Cache::apply`] changes such frames.
//! 3. VALID is cleared before a frame is RETIRED, and a frame is reused only after its last pin is
//!    gone. The owner pins a frame that leaves the index while it is listed.
//! 4. A reader trusts a frame only after it pinned or listed it and then saw VALID and its own key
//!    there.
//! 5. In a shared mapping the memory is at each instant a state that `salvage.rs` understands:
//!    flags are stored after what they speak for, `pending` is raised before the bytes change.
//!
//! It does no IO and knows no names, files or records; when it is full of dirty frames it says so
//! and the caller writes back.

mod ahead;
mod ahead_counts;
mod apply;
mod claim;
mod frames;
mod free;
mod hazards;
mod header;
mod held;
mod huge_pages;
mod index;
pub(crate) mod ledger;
mod leftover;
pub(crate) mod lent;
mod mapping;
mod mappings;
#[cfg(test)]
mod measure;
mod memory_limit;
#[cfg(all(test, loom))]
mod models;
mod name;
mod owned;
mod owner;
mod published;
mod salvage;
#[cfg(test)]
mod stress;
mod supply;
pub(crate) mod tail;
#[cfg(test)]
mod tests;
mod writing;

pub(crate) use ahead_counts::{AheadCounts, AheadOf, HeldAhead};
pub use apply::{Applied, AppliedUpTo};
pub use claim::Claim;
pub(crate) use frames::DirtyFrame;
pub use frames::{Frames, PinnedFrame};
pub use header::CacheHeader;
pub(crate) use header::{ADDRESS_BYTES_MAX, boot_id};
pub use held::Versions;
pub(crate) use held::{HeldPage, HeldPages};
pub use leftover::{Content, Dead, Denied, Leftover, Purpose};
pub use mapping::{CacheOptions, CachePlacement, Survive};
pub(crate) use mapping::{delete_file, has_room_for, impossible};
pub use mappings::{Mapping, mappings, remove_mapping};
pub(crate) use name::image_tag;
pub use name::{ParsedName, SharedName, volume_of};
pub(crate) use owned::{Edits, OwnedCache};
pub use owner::{Cache, Counts, Pinned};
pub use published::{Hint, PublishedFrames, RemoteFrames, slot_page};
pub use salvage::{
    Abandoned, Fold, Header, SalvagedData, SalvagedJournal, SalvagedPending, Unsaved,
};
pub use supply::FRAMES_LEFT_BY_DATA;

/// The bytes of a frame.
pub type PageBytes = [u8; adit_base::PAGE_BYTES];

/// The space of metadata pages, which are keyed by their device page.
pub const META_SPACE: u64 = u64::MAX;

/// A frame by its number in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FrameId(pub u32);

/// The page that a frame holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameKey {
    /// Slot address of a blob, or [`META_SPACE`].
    pub space: u64,
    /// Page within the blob, or device page.
    pub page: u64,
}

impl FrameKey {
    /// The key of a metadata page.
    pub const fn meta(device_page: u64) -> FrameKey {
        FrameKey {
            space: META_SPACE,
            page: device_page,
        }
    }
}

bitflags::bitflags! {
    /// The owner's flags of a frame. The bits above 15 of the stored word are the page's kind.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct FrameFlags: u32 {
        /// The content is the page's.
        const VALID = 1;
        /// Data newer than at home, put there by `write`.
        const DIRTY = 1 << 1;
        /// Has live bytes: its home changes only through the journal and the checkpoint.
        const JOURNALED = 1 << 2;
        /// A device read fills it; no other thread may read it.
        const LOADING = 1 << 3;
        /// A metadata page.
        const META = 1 << 4;
        /// A transaction's private copy of another frame.
        const SHADOW = 1 << 5;
        /// Holds a sealed journal page that may not be on the device yet.
        const JOURNAL_BUFFER = 1 << 6;
        /// Its write-back is in flight.
        const WRITEBACK = 1 << 7;
        /// Free for the caller's own use; keeps the frame from being evicted.
        const HELD = 1 << 8;
        /// A shadow of it exists.
        const SHADOWED = 1 << 13;
        /// A journaled page that is zeroes except for its records; the bytes at home are void.
        const FRESH = 1 << 9;
        /// Outside the index: shadows, journal buffers and frames about to become one.
        const RAW = 1 << 14;
        /// In the index.
        const INDEXED = 1 << 15;
    }
}

impl FrameFlags {
    /// A frame with any of these is not evicted.
    pub const BUSY: FrameFlags = FrameFlags::DIRTY
        .union(FrameFlags::JOURNALED)
        .union(FrameFlags::LOADING)
        .union(FrameFlags::SHADOW)
        .union(FrameFlags::JOURNAL_BUFFER)
        .union(FrameFlags::WRITEBACK)
        .union(FrameFlags::HELD)
        .union(FrameFlags::SHADOWED)
        .union(FrameFlags::RAW);

    /// The newest content of a page in the index, with no live bytes and no write-back in flight.
    const fn is_only_dirty(self) -> bool {
        let only = FrameFlags::VALID.bits() | FrameFlags::DIRTY.bits() | FrameFlags::INDEXED.bits();
        self.bits() & owner::FLAGS_MASK == only
    }

    /// True if the frame may be evicted once it is unpinned.
    pub const fn is_clean(self) -> bool {
        self.contains(FrameFlags::VALID) && !self.intersects(FrameFlags::BUSY)
    }
}
