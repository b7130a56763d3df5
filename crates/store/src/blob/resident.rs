//! Blobs in memory: their state beyond the slot, and the part that other threads read.
//!
//! Two sizes exist. A crash keeps the slot's `size`: it changes only by transactions, when the data
//! that it covers is durable with it. [`BlobShared::size`] is the size that readers see; a cached
//! write moves it at once. The same holds for the modification time.
//!
//! Locks, in the order in which they are taken: `map_lock` (write-back, truncation, allocation:
//! operations that change the map or rely on it across IO), then `lock` (shared: reads; exclusive:
//! writes). Exclusively only by `Store::lock_map` and `Store::lock`, which recall grants first
//! (`blob/write_grant`): forgetting to recall deadlocks.

use super::{BlobShared, DirectIo, GRANT_FRAMES_AFTER, MappedPages, Streams, WriteGrant};
use crate::cache::{FrameKey, Frames};
use crate::format::{BlobId, Slot};
use crate::journal::Point;
use crate::metadata::extents::{Extent, MapEntry};
use adit_base::PAGE_BYTES;
use adit_base::clock::Timestamp;
use adit_block::Device;
use adit_reactor::sync::RwLock;
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// A blob that its worker has in memory.
pub struct Blob {
    /// Its name.
    pub id: BlobId,
    /// The part that other threads read.
    pub shared: Arc<BlobShared>,
    /// The slot as last applied.
    pub(crate) slot: RefCell<Slot>,
    /// Shared: reads and overwrites in place. Exclusive: writes that may grow it, truncation.
    pub(crate) lock: RwLock,
    /// Taken exclusively to change the map or rely on it across IO.
    pub(crate) map_lock: RwLock,
    /// Pages that became dirty; entries may be stale or doubled, the frames' flags decide.
    pub(crate) dirty: RefCell<Vec<u32>>,
    /// Access time newer than the slot's.
    pub(crate) atime: Cell<Option<Timestamp>>,
    /// Modification time newer than the slot's.
    pub(crate) mtime: Cell<Option<Timestamp>>,
    pub(crate) in_dirty_list: Cell<bool>,
    /// The program that wrote it last, by the number that the store's user gives it; 0: not said.
    pub(crate) writer: Cell<u64>,
    /// Among the blobs that may be ahead of their slots
    /// ([`AheadCounts`](crate::cache::AheadCounts)).
    pub(crate) is_counted_ahead: Cell<bool>,
    /// Among those whose size isn't their slot's, for readers in other processes.
    size_is_counted: Cell<bool>,
    /// Number of the last data write home.
    pub(crate) home_sequence: Cell<u64>,
    /// The last entry that a lookup in the map found, and its first page.
    pub(crate) map_hint: Cell<Option<(u32, MapEntry)>>,
    /// Device page behind the last pages that were taken for it; 0: unknown.
    pub(crate) allocation_hint: Cell<u64>,
    /// Its sequential readers.
    pub(crate) streams: Cell<Streams>,
    /// While a truncation is half way, or when it failed there: where it had begun. Frames may lie
    /// up to here.
    pub(crate) truncating_from: Cell<u64>,
    /// The blob was deleted: write-back skips it.
    pub(crate) deleted: Cell<bool>,
    /// Place in the order of transactions of its last change.
    pub(crate) point: Cell<Point>,
    /// Place in the order of transactions behind the last that took content out of sight where it
    /// is: zeroed it, or cut it off in more than one step. Before that is durable, a crash brings
    /// it back.
    pub(crate) erased_at: Cell<Point>,
    /// Direct reads until the worker publishes extents again.
    pub(crate) publish_after: Cell<u32>,
    /// A write grant is out: it holds both locks shared.
    pub(crate) granted: Cell<bool>,
    /// Among them pages on the device.
    pub(crate) extents_granted: Cell<bool>,
    /// Writes through the worker until it grants again.
    pub(crate) grant_after: Cell<u32>,
    /// Direct writes to wait in addition, since the last grant came back unused.
    pub(crate) grant_pause: Cell<u32>,
    /// For direct reads and writes of other threads, once there were any.
    device: OnceCell<Arc<Arc<dyn Device>>>,
    /// Tasks that wait for the recall without a place in a lock's queue.
    pub(crate) recalling: Cell<u32>,
    /// Memory of programs' mappings. Changed with `lock` held exclusively.
    pub(crate) mapped: RefCell<Option<Rc<MappedPages>>>,
}

impl Drop for Blob {
    /// Threads that still have the shared part must ask the worker, which refuses.
    fn drop(&mut self) {
        self.count_size(false);
        self.shared.withdraw_extents();
        if let Some(grant) = self.shared.write_grant() {
            grant.close();
        }
    }
}

impl std::fmt::Debug for Blob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blob")
            .field("id", &self.id)
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

impl Blob {
    /// A blob with this slot. `point` covers the slot's last change, `home_sequence` the data
    /// written home so far.
    pub(crate) fn new(
        id: BlobId,
        slot: Slot,
        frames: &Arc<Frames>,
        point: Point,
        home_sequence: u64,
    ) -> Blob {
        Blob {
            id,
            shared: Arc::new(BlobShared::new(id, slot.size, frames.clone())),
            slot: RefCell::new(slot),
            lock: RwLock::new(),
            map_lock: RwLock::new(),
            dirty: RefCell::default(),
            atime: Cell::new(None),
            mtime: Cell::new(None),
            in_dirty_list: Cell::new(false),
            writer: Cell::new(0),
            is_counted_ahead: Cell::new(false),
            size_is_counted: Cell::new(false),
            home_sequence: Cell::new(home_sequence),
            map_hint: Cell::new(None),
            allocation_hint: Cell::new(0),
            streams: Cell::default(),
            truncating_from: Cell::new(0),
            deleted: Cell::new(false),
            point: Cell::new(point),
            erased_at: Cell::new(point),
            publish_after: Cell::new(0),
            granted: Cell::new(false),
            extents_granted: Cell::new(false),
            grant_after: Cell::new(GRANT_FRAMES_AFTER),
            grant_pause: Cell::new(0),
            device: OnceCell::new(),
            recalling: Cell::new(0),
            mapped: RefCell::default(),
        }
    }

    /// The memory of programs' mappings, if there are any.
    #[inline]
    pub(crate) fn mapped(&self) -> Option<Rc<MappedPages>> {
        if self.shared.is_mapped() {
            self.mapped.borrow().clone()
        } else {
            None
        }
    }

    /// State of direct reads and writes without the worker.
    pub(crate) fn direct(&self, device: &Arc<dyn Device>) -> &DirectIo {
        let device = self.device.get_or_init(|| Arc::new(device.clone()));
        self.shared.direct(device)
    }

    /// From now on, and until [`BlobShared::withdraw_extents`], direct reads of this extent need no
    /// worker.
    pub(crate) fn publish_extent(&self, extent: Extent, device: &Arc<dyn Device>) {
        self.direct(device).extents.publish(extent);
    }

    /// Size in bytes, as `write` left it.
    pub fn size(&self) -> u64 {
        self.shared.size()
    }

    /// The slot with size, times and pages as reads and writes left them; the pages are an estimate
    /// while data waits to be written home.
    pub fn attributes(&self) -> Slot {
        let mut slot = *self.slot.borrow();
        slot.size = self.size();
        let outside = self.shared.write_grant().and_then(WriteGrant::written_at);
        if let Some(time) = self.mtime.get().max(outside) {
            (slot.mtime, slot.mtime_ns) = (time.seconds, time.nanoseconds);
            (slot.ctime, slot.ctime_ns) =
                (slot.ctime, slot.ctime_ns).max((time.seconds, time.nanoseconds));
        }
        if let Some(time) = self.atime.get() {
            (slot.atime, slot.atime_ns) = (time.seconds, time.nanoseconds);
        }
        // A copy would take content without allocated pages for a hole.
        let waiting = self.dirty.borrow().len() as u64;
        let pages = slot.size.div_ceil(PAGE_BYTES as u64);
        slot.allocated_pages = slot.allocated_pages.max(waiting.min(pages));
        slot
    }

    /// The slot as last applied: without the size and times that cached reads and writes have
    /// changed.
    pub fn with_slot<T>(&self, look: impl FnOnce(&Slot) -> T) -> T {
        look(&self.slot.borrow())
    }

    /// Forgets the access time of cached reads: an explicit one, applied by a transaction, wins.
    pub fn forget_accessed(&self) {
        self.atime.set(None);
    }

    /// Forgets the modification time of cached writes: an explicit one, applied by a transaction,
    /// wins.
    pub fn forget_modified(&self) {
        if let Some(grant) = self.shared.write_grant() {
            grant.forget_time();
        }
        self.mtime.set(None);
    }

    /// Frames lie below this many bytes.
    pub(crate) fn frames_end(&self) -> u64 {
        self.size()
            .max(self.slot.borrow().size)
            .max(self.truncating_from.get())
    }

    /// Notes the program that writes it from here on, by a number; 0: not said. The dirty pages of
    /// a program are counted together.
    pub fn set_writer(&self, writer: u64) {
        self.writer.set(writer);
    }

    /// True if a sync would have to write something.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.borrow().is_empty()
            || self.has_new_times()
            || self.granted.get()
            || self.size() != self.slot.borrow().size
    }

    /// True if cached reads or writes changed its times.
    pub(crate) fn has_new_times(&self) -> bool {
        self.mtime.get().is_some() || self.atime.get().is_some()
    }

    /// True while write-back, or a change of the map, runs. Then even clean pages may not be on the
    /// device.
    pub fn is_writing_back(&self) -> bool {
        self.map_lock.is_locked()
    }

    /// True if the caller holds the only reference, and no truncation is incomplete. Otherwise an
    /// operation in flight may still use this blob, though it has no names and descriptors, or
    /// frames may be left.
    pub fn is_idle(self: &Rc<Self>) -> bool {
        // One is the table's.
        let known = 2 + usize::from(self.in_dirty_list.get());
        Rc::strong_count(self) <= known
            && !self.lock.is_locked()
            && !self.map_lock.is_locked()
            && self.truncating_from.get() == 0
    }

    /// Both locks are held exclusively.
    #[track_caller]
    pub(crate) fn assert_exclusive(&self) {
        assert!(self.map_lock.is_locked_exclusively(), "map_lock is held");
        assert!(self.lock.is_locked_exclusively(), "lock is held");
    }

    /// Both locks are held.
    #[track_caller]
    pub(crate) fn assert_shared(&self) {
        assert!(self.map_lock.is_locked(), "map_lock is held");
        assert!(self.lock.is_locked(), "lock is held");
    }

    /// A lock is held that keeps the map as it is.
    #[track_caller]
    pub(crate) fn assert_map_stays(&self) {
        assert!(
            self.lock.is_locked() || self.map_lock.is_locked_exclusively(),
            "the map can't change"
        );
    }

    /// A transaction changed the slot. The current size is another one: a cached write may be
    /// ahead.
    pub(crate) fn applied(&self, slot: &Slot) {
        // A tree changes without its slot showing it.
        self.map_hint.set(None);
        self.shared.withdraw_extents();
        if let Some(unsynced) = self.shared.unsynced() {
            unsynced.written.forget();
        }
        *self.slot.borrow_mut() = *slot;
        if self.size() != slot.size {
            self.count_size(true);
        }
    }

    /// Notes that the transaction at `point` is visible.
    pub(crate) fn became_visible(&self, point: Point) {
        self.note_change(point);
        self.note_size();
    }

    /// Its last change is before this place in the order of transactions.
    pub(crate) fn note_change(&self, point: Point) {
        self.point.set(point);
        self.shared.owe_sync();
    }

    /// Its size from now on, before that is acknowledged. Counted first: other threads see it at
    /// once.
    pub(crate) fn set_size(&self, size: u64) {
        if size != self.slot.borrow().size {
            self.count_size(true);
            self.shared.owe_sync();
        }
        self.shared.set_size(size);
        self.note_size();
    }

    /// Invariant, under the worker's lock: while the size isn't that of the slot that others see,
    /// it is counted, from before that is acknowledged, as all attributes are
    /// ([`AheadOf`](crate::cache::AheadOf)).
    fn note_size(&self) {
        self.count_size(self.size() != self.slot.borrow().size);
    }

    fn count_size(&self, is_ahead: bool) {
        if self.size_is_counted.replace(is_ahead) != is_ahead {
            self.shared.count_size(is_ahead);
        }
    }

    /// Whether it has to stay in memory.
    pub(super) fn is_used(self: &Rc<Self>) -> bool {
        Rc::strong_count(self) > 1
            || Arc::strong_count(&self.shared) > 1
            || self.is_dirty()
            || self.truncating_from.get() != 0
    }

    pub(crate) fn key(&self, page: u32) -> FrameKey {
        FrameKey {
            space: self.id.slot,
            page: u64::from(page),
        }
    }
}
