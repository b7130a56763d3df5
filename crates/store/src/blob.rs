//! Blobs in memory: what is known of them beyond their slot, and the part that other threads read.
//!
//! Two sizes exist. The slot's `size` is what a crash would keep: it changes only by transactions, when the
//! data that it covers is durable with it. [`BlobShared::size`] is what readers see; a cached write moves it
//! at once. The same holds for the modification time.
//!
//! Locks, in the order in which they are taken: `map_lock` (write-back, truncation, allocation: whoever changes
//! the map or relies on it across IO), then `lock` (shared: reads; exclusive: writes). Exclusively only by `Inner::lock_map` and
//! `Inner::lock`, which ask for lent pages first (`lease.rs`): otherwise it is waited for ever.

#[cfg(all(test, loom))]
mod models;

use crate::cache::{FrameFlags, FrameKey, Frames};
use crate::direct::{DIRECT_BYTES_MAX, direct_read_unit, direct_write_unit};
use crate::extents::{Extent, Mapping};
use crate::format::{BlobKind, Slot};
use crate::lease::Lease;
use crate::places::{Places, Ticket};
use crate::read::Streams;
use crate::volume::{Inner, Store};
use adit_base::breakdown::{self, Layer};
use adit_base::clock::Timestamp;
use adit_base::hash::BuildNumberHasher;
use adit_base::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use adit_base::{Errno, Error, PAGE_BYTES, Result, SECTOR_BYTES};
use adit_block::{Buffer, Device, Operation, Request};
use adit_reactor::sync::RwLock;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, OnceLock, Weak};

/// Names a blob for ever: no other blob of the volume ever has the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct BlobId {
    /// Slot address: device page × 8 + sector. Serves as inode number.
    pub slot: u64,
    /// Tells successive blobs in one slot apart.
    pub generation: u32,
}

/// Largest size of a blob: 2^32 pages less one, 16 TiB.
pub const BLOB_BYTES_MAX: u64 = (u32::MAX as u64) * PAGE_BYTES as u64;

/// What any thread may know of a blob.
#[derive(Debug)]
pub struct BlobShared {
    id: BlobId,
    size: AtomicU64,
    frames: FramesHandle,
    /// The next read is one that changes the time of access; for the layer above, which asks and sets.
    access_due: AtomicBool,
    /// Counts write-back errors, so that each descriptor reports each once.
    errors: AtomicU64,
    last_errno: AtomicI32,
    /// From the first direct read or write on, where the device may be read and written without the worker.
    direct: OnceLock<Box<DirectIo>>,
}

/// What direct reads and writes without the worker need.
#[derive(Debug)]
pub(crate) struct DirectIo {
    places: Places,
    pub(crate) lease: Lease,
    /// What is read is a multiple of this.
    read_unit: u64,
    /// What is written is.
    write_unit: u64,
    device: DeviceHandle,
}

/// How a direct write without the worker went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DirectWrite {
    /// It is done; otherwise the worker has to do it.
    pub written: bool,
    /// The worker waits for the end of such writes and must be told ([`Store::end_direct_writes`]), first.
    pub recalled: bool,
}

/// Ends with the volume.
struct DeviceHandle(Weak<dyn Device>);

impl std::fmt::Debug for DeviceHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Device")
    }
}

struct FramesHandle(Arc<Frames>);

impl std::fmt::Debug for FramesHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Frames")
    }
}

impl BlobShared {
    /// The blob.
    pub fn id(&self) -> BlobId {
        self.id
    }

    /// Size in bytes, as `write` left it.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Reads from the cache without the worker; `None`: not all of it is there, ask the worker.
    #[inline]
    pub fn try_read(&self, offset: u64, buffer: &mut [u8]) -> Option<usize> {
        let size = self.size();
        if offset >= size {
            return Some(0);
        }
        let len = buffer
            .len()
            .min(usize::try_from(size - offset).unwrap_or(usize::MAX));
        let key = FrameKey {
            space: self.id.slot,
            page: offset / PAGE_BYTES as u64,
        };
        let within = (offset % PAGE_BYTES as u64) as usize;
        let found = self.frames.0.read(key, within, &mut buffer[..len]);
        found.then_some(len)
    }

    /// Borrows cached bytes without a copy: at most to the end of their page. `None`: ask the worker.
    pub fn try_borrow(&self, offset: u64, len: usize) -> Option<Buffer> {
        let size = self.size();
        if offset >= size || len == 0 {
            return Some(Buffer::zeroed(0));
        }
        let within = (offset % PAGE_BYTES as u64) as usize;
        let len = len
            .min(PAGE_BYTES - within)
            .min(usize::try_from(size - offset).unwrap_or(usize::MAX));
        let key = FrameKey {
            space: self.id.slot,
            page: offset / PAGE_BYTES as u64,
        };
        let buffer = self.frames.0.pin(key)?.into_buffer();
        Some(buffer.slice(within..within + len))
    }

    /// Reads whole logical blocks of the device without the worker, where nothing newer is in the cache; `None`: ask the worker.
    pub fn try_read_direct(&self, offset: u64, buffer: &mut [u8]) -> Option<usize> {
        let direct = self.direct.get()?;
        let len = buffer.len();
        if offset.checked_add(len as u64)? > self.size() {
            return None;
        }
        let (ticket, place) = find(&direct.places, direct.read_unit, offset, len)?;
        let device = direct.device.0.upgrade()?;
        // SAFETY: the buffer is ours until `execute` returns, which gives the request back.
        let memory = unsafe { Buffer::borrowed(buffer.as_mut_ptr(), len) };
        let request = Request::read(place, memory, 0);
        let reading = breakdown::enter(Layer::Device);
        let completion = device.execute(request);
        drop(reading);
        // What failed is read again by the worker, which says what and where.
        let sound = completion.result.is_ok() && direct.places.is_current(ticket);
        sound.then_some(len)
    }

    /// Overwrites whole physical blocks of the device without the worker, where their pages are lent (`lease.rs`).
    pub fn try_write_direct(&self, offset: u64, data: &[u8]) -> DirectWrite {
        let no = DirectWrite::default();
        let Some(direct) = self.direct.get() else {
            return no;
        };
        if !is_request(direct.write_unit, offset, data.len()) {
            return no;
        }
        if let Err(recalled) = direct.lease.enter() {
            return DirectWrite { recalled, ..no };
        }
        let written = direct.write(offset, data);
        if written {
            direct.lease.note_written(Timestamp::now());
        }
        DirectWrite {
            written,
            recalled: direct.lease.leave(),
        }
    }

    /// What direct reads and writes need.
    pub(crate) fn direct(&self, device: &Arc<dyn Device>) -> &DirectIo {
        self.direct.get_or_init(|| {
            Box::new(DirectIo {
                places: Places::default(),
                lease: Lease::default(),
                read_unit: direct_read_unit(device),
                write_unit: direct_write_unit(device),
                device: DeviceHandle(Arc::downgrade(device)),
            })
        })
    }

    /// What is lent, if anything ever was.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.direct.get().map(|direct| &direct.lease)
    }

    /// From now on, and until [`BlobShared::forget_places`], direct reads of this extent need no worker. The worker only.
    pub(crate) fn publish_place(&self, extent: Extent, device: &Arc<dyn Device>) {
        self.direct(device).places.publish(extent);
    }

    /// Something is newer than what is on the device, or about to be elsewhere. The worker only.
    #[inline]
    pub(crate) fn forget_places(&self) {
        if let Some(direct) = self.direct.get() {
            direct.places.forget();
        }
    }

    /// Is the next read one that changes the time of access?
    #[inline]
    pub fn access_due(&self) -> bool {
        self.access_due.load(Ordering::Relaxed)
    }

    /// Says so.
    pub fn set_access_due(&self, due: bool) {
        self.access_due.store(due, Ordering::Relaxed);
    }

    /// Write-back errors so far.
    pub fn error_sequence(&self) -> u64 {
        self.errors.load(Ordering::Acquire)
    }

    /// Reports a write-back error that happened since `seen`, once.
    pub fn check_error(&self, seen: &AtomicU64) -> Result<()> {
        let now = self.error_sequence();
        if seen.fetch_max(now, Ordering::AcqRel) >= now {
            return Ok(());
        }
        let errno = Errno::from_raw_os_error(self.last_errno.load(Ordering::Acquire));
        Err(Error::with(
            errno,
            "an earlier write of this file's data failed",
        ))
    }

    pub(crate) fn note_error(&self, errno: Errno) {
        self.last_errno
            .store(errno.raw_os_error(), Ordering::Release);
        self.errors.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }
}

impl DirectIo {
    /// Writes whole physical blocks for who is inside the lease; false: their pages are not all lent, or it failed, and the worker says how.
    fn write(&self, offset: u64, data: &[u8]) -> bool {
        let found = find(&self.lease.places, self.write_unit, offset, data.len());
        let (Some((_, place)), Some(device)) = (found, self.device.0.upgrade()) else {
            return false;
        };
        // SAFETY: the memory is valid until `execute` returns, which gives the request back; a write only reads it.
        let memory = unsafe { Buffer::borrowed(data.as_ptr().cast_mut(), data.len()) };
        let mut request = Request::read(place, memory, 0);
        request.operation = Operation::Write { fua: false };
        let _in = breakdown::enter(Layer::Device);
        // A device that panics does so again for the worker, which poisons the volume. Nobody must be left inside.
        catch_unwind(AssertUnwindSafe(|| device.execute(request)))
            .is_ok_and(|completion| completion.result.is_ok())
    }
}

/// Whether one request to the device can be of this.
fn is_request(unit: u64, offset: u64, len: usize) -> bool {
    let whole = (offset | len as u64).is_multiple_of(unit);
    whole && len != 0 && len <= DIRECT_BYTES_MAX
}

/// Where bytes `[offset, offset + len)` begin on the device, if one request can be of them and these places know all of their pages.
fn find(places: &Places, unit: u64, offset: u64, len: usize) -> Option<(Ticket, u64)> {
    if !is_request(unit, offset, len) {
        return None;
    }
    let (page, within) = (offset / PAGE_BYTES as u64, offset % PAGE_BYTES as u64);
    let pages = (within + len as u64).div_ceil(PAGE_BYTES as u64);
    let ticket = places.find(page, pages)?;
    Some((ticket, ticket.home * PAGE_BYTES as u64 + within))
}

/// A blob that its worker has in memory.
pub struct Blob {
    /// Its name.
    pub id: BlobId,
    /// What other threads read.
    pub shared: Arc<BlobShared>,
    /// The slot as last applied.
    pub(crate) slot: RefCell<Slot>,
    /// Shared: reads and overwrites in place. Exclusive: writes that may grow it, truncation.
    pub(crate) lock: RwLock,
    /// Exclusive: whoever changes the map or relies on it across IO.
    pub(crate) map_lock: RwLock,
    /// Pages that became dirty; entries may be stale or doubled, the frames' flags decide.
    pub(crate) dirty: RefCell<Vec<u32>>,
    /// Access time newer than the slot's.
    pub(crate) atime: Cell<Option<Timestamp>>,
    /// Modification time newer than the slot's.
    pub(crate) mtime: Cell<Option<Timestamp>>,
    pub(crate) in_dirty_list: Cell<bool>,
    /// Number of the last data write home.
    pub(crate) home_sequence: Cell<u64>,
    /// The last answer of a map lookup: first page, pages, mapping.
    pub(crate) map_hint: Cell<Option<(u32, Mapping)>>,
    /// Device page behind the last pages that were taken for it; 0: unknown.
    pub(crate) goal: Cell<u64>,
    /// Its sequential readers.
    pub(crate) streams: Cell<Streams>,
    /// While a truncation is half way, or when it failed there: where it had begun. Frames may lie up to here.
    pub(crate) cut_from: Cell<u64>,
    /// The blob was deleted: nothing is written back any more.
    pub(crate) deleted: Cell<bool>,
    /// Place in the order of transactions of its last change.
    pub(crate) point: Cell<crate::journal::Point>,
    /// Place in the order of transactions behind the last that took content out of sight where it is: zeroed it, or cut it off in more
    /// than one step. Before that is durable, a crash brings it back.
    pub(crate) hidden: Cell<crate::journal::Point>,
    /// Direct reads until the worker tells again where they need it no more.
    pub(crate) publish_after: Cell<u32>,
    /// Pages are lent: both locks are held shared for those who write without the worker.
    pub(crate) lent: Cell<bool>,
    /// Direct writes until the worker lends again.
    pub(crate) lend_after: Cell<u32>,
    /// How many more, since what was lent came back unused.
    pub(crate) lend_pause: Cell<u32>,
    /// Who waits for the pages without a place in a lock's queue.
    pub(crate) recalling: Cell<u32>,
}

impl Drop for Blob {
    /// Whoever still has the shared part must ask, and be refused.
    fn drop(&mut self) {
        self.shared.forget_places();
        if let Some(lease) = self.shared.lease() {
            lease.close();
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
    /// What it is.
    pub fn kind(&self) -> BlobKind {
        BlobKind::from_u8(self.slot.borrow().kind).unwrap_or(BlobKind::Blob)
    }

    /// Size in bytes, as `write` left it.
    pub fn size(&self) -> u64 {
        self.shared.size()
    }

    /// The slot with size, times and pages as reads and writes left them; the pages are an estimate while data waits to be
    /// written home.
    pub fn attributes(&self) -> Slot {
        let mut slot = *self.slot.borrow();
        slot.size = self.size();
        let outside = self.shared.lease().and_then(Lease::written_at);
        if let Some(time) = self.mtime.get().max(outside) {
            (slot.mtime, slot.mtime_ns) = (time.seconds, time.nanoseconds);
            (slot.ctime, slot.ctime_ns) =
                (slot.ctime, slot.ctime_ns).max((time.seconds, time.nanoseconds));
        }
        if let Some(time) = self.atime.get() {
            (slot.atime, slot.atime_ns) = (time.seconds, time.nanoseconds);
        }
        // A file that has content without having its pages yet would look like a hole to who copies it.
        let waiting = self.dirty.borrow().len() as u64;
        let pages = slot.size.div_ceil(PAGE_BYTES as u64);
        slot.allocated_pages = slot.allocated_pages.max(waiting.min(pages));
        slot
    }

    /// The slot as last applied: without the size and times that cached reads and writes have changed.
    pub fn with_slot<T>(&self, look: impl FnOnce(&Slot) -> T) -> T {
        look(&self.slot.borrow())
    }

    /// Forgets the access time of cached reads: an explicit one, applied by a transaction, wins.
    pub fn forget_accessed(&self) {
        self.atime.set(None);
    }

    /// Forgets the modification time of cached writes: an explicit one, applied by a transaction, wins.
    pub fn forget_modified(&self) {
        if let Some(lease) = self.shared.lease() {
            lease.forget_time();
        }
        self.mtime.set(None);
    }

    /// Frames lie below this many bytes.
    pub(crate) fn frames_end(&self) -> u64 {
        self.size()
            .max(self.slot.borrow().size)
            .max(self.cut_from.get())
    }

    /// Is there something that a sync would have to write?
    pub fn is_dirty(&self) -> bool {
        !self.dirty.borrow().is_empty()
            || self.has_new_times()
            || self.lent.get()
            || self.size() != self.slot.borrow().size
    }

    /// Did cached reads and writes change its times?
    pub(crate) fn has_new_times(&self) -> bool {
        self.mtime.get().is_some() || self.atime.get().is_some()
    }

    /// Is somebody taking it to the device, or changing where it is? Then what is not dirty may still not be there.
    pub fn is_writing_back(&self) -> bool {
        self.map_lock.is_locked()
    }

    /// Has nobody but the caller, who has it once, a handle on it, and is no truncation half way? Otherwise an operation
    /// may be in flight that goes on with this blob, whatever became of its names and descriptors, or frames be left.
    pub fn is_idle(self: &Rc<Self>) -> bool {
        // One is the table's.
        let known = 2 + usize::from(self.in_dirty_list.get());
        Rc::strong_count(self) <= known
            && !self.lock.is_locked()
            && !self.map_lock.is_locked()
            && self.cut_from.get() == 0
    }

    /// A transaction changed the slot. The current size is another one: a cached write may be ahead.
    pub(crate) fn applied(&self, slot: &Slot) {
        // A tree changes without its slot showing it.
        self.map_hint.set(None);
        self.shared.forget_places();
        *self.slot.borrow_mut() = *slot;
    }

    /// Whether it has to stay in memory.
    fn is_used(self: &Rc<Self>) -> bool {
        Rc::strong_count(self) > 1
            || Arc::strong_count(&self.shared) > 1
            || self.is_dirty()
            || self.cut_from.get() != 0
    }

    pub(crate) fn key(&self, page: u32) -> FrameKey {
        FrameKey {
            space: self.id.slot,
            page: u64::from(page),
        }
    }
}

/// Blobs in memory, by slot address.
#[derive(Default)]
pub(crate) struct BlobTable {
    blobs: RefCell<HashMap<u64, Rc<Blob>, BuildNumberHasher>>,
    /// Those and some that have gone, in the order in which they are looked at.
    queue: RefCell<VecDeque<BlobId>>,
}

/// With so many in memory, each blob that comes looks for others that nobody uses.
const BLOBS_KEPT: usize = 16 << 10;
/// At how many. One round takes half as many arrivals as there are blobs, so those that nobody uses never become more than the others.
const LOOKS: usize = 2;

impl BlobTable {
    /// The blob at a slot address, if it is in memory.
    pub(crate) fn resident(&self, slot: u64) -> Option<Rc<Blob>> {
        self.blobs.borrow().get(&slot).cloned()
    }

    /// Its slot was freed, and may get another blob: who still has it must not write any more.
    pub(crate) fn destroyed(&self, id: BlobId) {
        if let Some(blob) = self.resident(id.slot)
            && blob.id == id
        {
            blob.deleted.set(true);
            self.blobs.borrow_mut().remove(&id.slot);
        }
    }

    fn insert(&self, blob: Rc<Blob>) {
        let mut blobs = self.blobs.borrow_mut();
        let mut queue = self.queue.borrow_mut();
        let looks = if queue.len() < BLOBS_KEPT { 0 } else { LOOKS };
        for _ in 0..looks {
            let Some(id) = queue.pop_front() else { break };
            match blobs.get(&id.slot) {
                Some(blob) if blob.id != id => {}
                Some(blob) if blob.is_used() => queue.push_back(id),
                _ => drop(blobs.remove(&id.slot)),
            }
        }
        queue.push_back(blob.id);
        blobs.insert(blob.id.slot, blob);
    }
}

/// Blobs that cached reads and writes may have left ahead of their slots, in the order in which they were.
#[derive(Default)]
pub(crate) struct DirtyBlobs {
    blobs: RefCell<Vec<Rc<Blob>>>,
    /// Their slot addresses. Mostly few, so that asking for one that isn't among them waits for no memory.
    slots: RefCell<HashSet<u64, BuildNumberHasher>>,
}

impl DirtyBlobs {
    pub(crate) fn add(&self, blob: &Rc<Blob>) {
        if !blob.in_dirty_list.replace(true) {
            self.blobs.borrow_mut().push(blob.clone());
            self.slots.borrow_mut().insert(blob.id.slot);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blobs.borrow().is_empty()
    }

    pub(crate) fn all(&self) -> Vec<Rc<Blob>> {
        self.blobs.borrow().clone()
    }

    /// Takes off what needs no write-back any more.
    pub(crate) fn forget_clean(&self) {
        let (mut blobs, mut slots) = (self.blobs.borrow_mut(), self.slots.borrow_mut());
        slots.clear();
        blobs.retain(|blob| {
            let keep = !blob.deleted.get() && (blob.is_dirty() || blob.map_lock.is_locked());
            blob.in_dirty_list.set(keep);
            if keep {
                slots.insert(blob.id.slot);
            }
            keep
        });
    }
}

impl Store {
    /// The blob, from memory or from its slot. ESTALE when it is gone.
    pub async fn blob(&self, id: BlobId) -> Result<Rc<Blob>> {
        if let Some(blob) = self.0.blobs.resident(id.slot)
            && blob.id == id
        {
            return Ok(blob);
        }
        let slot = self.view(|view| view.slot(id)).await?;
        // Loading may have taken a while: another task may have been faster.
        Ok(self
            .0
            .blobs
            .resident(id.slot)
            .filter(|blob| blob.id == id)
            .unwrap_or_else(|| self.0.adopt(id, slot)))
    }

    /// It was read at that time: the slot has it after the next write-back.
    pub fn note_accessed(&self, blob: &Rc<Blob>, time: Timestamp) {
        blob.atime.set(Some(time));
        self.0.note_dirty(blob);
    }

    /// The blob if it is in memory.
    pub fn blob_resident(&self, id: BlobId) -> Option<Rc<Blob>> {
        self.0.blobs.resident(id.slot).filter(|blob| blob.id == id)
    }

    /// The blob if cached reads and writes may have left its size and times ahead of its slot, which has them otherwise.
    pub fn blob_ahead(&self, id: BlobId) -> Option<Rc<Blob>> {
        let ahead = self.0.dirty_blobs.slots.borrow().contains(&id.slot);
        ahead.then(|| self.blob_resident(id)).flatten()
    }

    /// The blob without waiting, given what a `view` or `transact` closure just saw in its slot.
    pub fn blob_from_slot(&self, id: BlobId, slot: &Slot) -> Rc<Blob> {
        self.blob_resident(id)
            .unwrap_or_else(|| self.0.adopt(id, *slot))
    }
}

impl Inner {
    fn adopt(&self, id: BlobId, slot: Slot) -> Rc<Blob> {
        let point = self.slot_point(id.slot);
        let blob = Rc::new(Blob {
            id,
            shared: Arc::new(BlobShared {
                id,
                size: AtomicU64::new(slot.size),
                frames: FramesHandle(self.frames.clone()),
                access_due: AtomicBool::new(false),
                errors: AtomicU64::new(0),
                last_errno: AtomicI32::new(0),
                direct: OnceLock::new(),
            }),
            slot: RefCell::new(slot),
            lock: RwLock::new(),
            map_lock: RwLock::new(),
            dirty: RefCell::default(),
            atime: Cell::new(None),
            mtime: Cell::new(None),
            in_dirty_list: Cell::new(false),
            // It may have been in memory before: what was written then may not be flushed.
            home_sequence: Cell::new(self.barriers.written()),
            map_hint: Cell::new(None),
            goal: Cell::new(0),
            streams: Cell::default(),
            cut_from: Cell::new(0),
            deleted: Cell::new(false),
            point: Cell::new(point),
            hidden: Cell::new(point),
            publish_after: Cell::new(0),
            lent: Cell::new(false),
            lend_after: Cell::new(0),
            lend_pause: Cell::new(0),
            recalling: Cell::new(0),
        });
        self.blobs.insert(blob.clone());
        blob
    }

    /// The place in the order of transactions that covers the last change of a slot.
    fn slot_point(&self, slot: u64) -> crate::journal::Point {
        let (page, offset) = crate::slot_page::slot_place(slot);
        let frame = (self.cache.find(FrameKey::meta(page)))
            .filter(|frame| self.cache.has(*frame, FrameFlags::JOURNALED));
        let Some(frame) = frame else {
            return crate::journal::Point::default();
        };
        let mask = crate::write::granules(offset, offset + SECTOR_BYTES);
        if self.cache.pending(frame) & mask != 0 {
            self.journal.point()
        } else {
            crate::journal::Point(self.journal.next())
        }
    }

    /// Queues a blob for write-back, which runs after a while.
    pub(crate) fn note_dirty(self: &Rc<Self>, blob: &Rc<Blob>) {
        self.dirty_blobs.add(blob);
        if !self.writeback_running.get() {
            self.spawn_writeback();
        }
    }

    /// Refuses a mapping to where no data can be: it comes from a device, and pages are written there.
    pub(crate) fn within_volume(&self, mapping: Mapping) -> Result<Mapping, crate::pages::Stop> {
        if let Mapping::Extent(extent) = mapping
            && !self.space.borrow().geometry().contains(extent.run())
        {
            let what = format_args!("is no place for data, but a map names it: run `adit check`");
            return Err(crate::page_view::corrupt(extent.physical, what));
        }
        Ok(mapping)
    }

    /// Where page `page` of the blob lies.
    pub(crate) async fn map(self: &Rc<Self>, blob: &Blob, page: u32) -> Result<Mapping> {
        if let Some(mapping) = hinted(blob, page) {
            return Ok(mapping);
        }
        loop {
            let mapping = {
                let view = crate::transaction::View::new(self);
                crate::extents::lookup(&view, &blob.slot.borrow(), blob.id.slot, page)
                    .and_then(|mapping| self.within_volume(mapping))
            };
            match mapping {
                Ok(mapping) => {
                    let first = match mapping {
                        Mapping::Extent(extent) => extent.logical,
                        Mapping::Hole { .. } => page,
                    };
                    blob.map_hint.set(Some((first, mapping)));
                    return Ok(mapping);
                }
                Err(stop) => self.unstop(stop).await?,
            }
        }
    }
}

/// The mapping of `page` from the last lookup's answer; a hole is told from `page` on.
fn hinted(blob: &Blob, page: u32) -> Option<Mapping> {
    let (first, mapping) = blob.map_hint.get()?;
    match mapping {
        Mapping::Extent(extent) => {
            (page >= first && page - first < extent.pages).then_some(mapping)
        }
        Mapping::Hole { pages } => (page >= first && page - first < pages).then(|| Mapping::Hole {
            pages: pages - (page - first),
        }),
    }
}
