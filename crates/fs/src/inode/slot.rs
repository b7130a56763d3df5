//! Kind, attributes and times of an inode, as its slot has them.

use crate::types::*;
use adit_base::clock::Timestamp;
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_store::format::Slot;
use adit_store::pages::{PagesRead, Stop};
use adit_store::{Blob, BlobId, SharedView, Store, Transaction, View};
use zerocopy::FromZeros;

/// Pages and slots, as views and transactions give them.
pub(crate) trait Slots: PagesRead {
    /// The slot of an inode; ESTALE when it is gone.
    fn slot_of(&self, id: BlobId) -> Result<&Slot, Stop>;
    /// The inode at a slot address.
    fn inode_at(&self, address: u64) -> Result<(BlobId, Slot), Stop>;
}

impl Slots for View<'_> {
    fn slot_of(&self, id: BlobId) -> Result<&Slot, Stop> {
        self.slot_ref(id)
    }
    fn inode_at(&self, address: u64) -> Result<(BlobId, Slot), Stop> {
        self.slot_at(address)
    }
}

impl Slots for SharedView<'_> {
    fn slot_of(&self, id: BlobId) -> Result<&Slot, Stop> {
        self.slot_ref(id)
    }
    fn inode_at(&self, address: u64) -> Result<(BlobId, Slot), Stop> {
        self.slot_at(address)
    }
}

impl Slots for Transaction<'_> {
    fn slot_of(&self, id: BlobId) -> Result<&Slot, Stop> {
        self.slot_ref(id)
    }
    fn inode_at(&self, address: u64) -> Result<(BlobId, Slot), Stop> {
        self.slot_at(address)
    }
}

/// Permission bits of a mode.
pub(crate) const PERMISSIONS: u32 = 0o7777;

/// The slot of a new inode that belongs to user and group 0.
pub(crate) fn fresh_slot(kind: FileKind, mode: u32) -> Slot {
    let now = Timestamp::now();
    let mut slot = Slot::new_zeroed();
    slot.kind = kind as u8;
    slot.links = 1;
    slot.mode = kind.mode_bits() | (mode & PERMISSIONS);
    (slot.atime, slot.atime_ns) = (now.seconds, now.nanoseconds);
    (slot.mtime, slot.mtime_ns) = (now.seconds, now.nanoseconds);
    (slot.ctime, slot.ctime_ns) = (now.seconds, now.nanoseconds);
    (slot.btime, slot.btime_ns) = (now.seconds, now.nanoseconds);
    slot
}

/// The kind in a slot; EUCLEAN for a number that is none.
pub(crate) fn kind_of(slot: &Slot) -> Result<FileKind, Error> {
    FileKind::from_u8(slot.kind)
        .ok_or_else(|| Error::with(Errno::UCLEAN, "read a slot: unknown kind"))
}

/// Refuses an inode of another kind than its directory entry says.
pub(crate) fn expect_kind(slot: &Slot, kind: FileKind) -> Result<(), Error> {
    let found = kind_of(slot)?;
    if found != kind {
        let what = format!("follow a directory entry: it says {kind:?} of a {found:?}");
        return Err(Error::with(Errno::UCLEAN, what));
    }
    Ok(())
}

/// The attributes in a slot. `EUCLEAN` for a kind that is none.
pub fn stat_of(id: BlobId, slot: &Slot) -> Result<Stat> {
    let kind = kind_of(slot)?;
    let time = |seconds, nanoseconds| Timestamp {
        seconds,
        nanoseconds,
    };
    Ok(Stat {
        inode: id.slot,
        generation: id.generation,
        kind,
        mode: kind.mode_bits() | (slot.mode & PERMISSIONS),
        links: slot.links,
        uid: slot.uid,
        gid: slot.gid,
        rdev: slot.rdev,
        size_bytes: slot.size,
        allocated_bytes: slot.allocated_pages.saturating_mul(PAGE_BYTES as u64),
        io_bytes: PAGE_BYTES as u32,
        accessed: time(slot.atime, slot.atime_ns),
        modified: time(slot.mtime, slot.mtime_ns),
        changed: time(slot.ctime, slot.ctime_ns),
        created: time(slot.btime, slot.btime_ns),
    })
}

/// True if a read changes the time of access, by Linux's rule for `relatime`.
pub(crate) fn is_access_due(slot: &Slot, now: Timestamp) -> bool {
    const DAY_SECONDS: i64 = 24 * 60 * 60;
    let accessed = (slot.atime, slot.atime_ns);
    accessed <= (slot.mtime, slot.mtime_ns)
        || accessed <= (slot.ctime, slot.ctime_ns)
        || now.seconds.saturating_sub(slot.atime) >= DAY_SECONDS
}

/// Sets the times of a change of content: one time for both.
pub(crate) fn touch_modified(slot: &mut Slot, now: Timestamp) {
    slot.touch_changed(now);
    (slot.mtime, slot.mtime_ns) = (slot.ctime, slot.ctime_ns);
}

/// Counts the `..` of one more directory. EMLINK if the count is at its maximum, which only a
/// damaged volume reaches.
pub(crate) fn add_subdirectory(slot: &mut Slot) -> Result<(), Stop> {
    slot.links = slot.links.checked_add(1).ok_or(Errno::MLINK)?;
    Ok(())
}

/// Uncounts the `..` of a directory that moved or was removed. EUCLEAN if the count is 0, which
/// only a damaged volume has.
pub(crate) fn remove_subdirectory(slot: &mut Slot) -> Result<(), Stop> {
    slot.links = (slot.links.checked_sub(1))
        .ok_or_else(|| Error::with(Errno::UCLEAN, "remove a directory: its parent has no links"))?;
    Ok(())
}

/// Clears the set-ID bits of a file before a write or truncate by a caller whose writes clear
/// them.
pub(crate) async fn drop_set_ids(store: &Store, caller: &Credentials, blob: &Blob) -> Result<()> {
    if caller.privileged || blob.with_slot(|slot| caller.dropped_by_write(slot)) == 0 {
        return Ok(());
    }
    let now = Timestamp::now();
    store
        .transact(|transaction| {
            let mut slot = transaction.slot(blob.id)?;
            slot.mode &= !caller.dropped_by_write(&slot);
            slot.touch_changed(now);
            transaction.put(blob.id, slot)
        })
        .await
}
