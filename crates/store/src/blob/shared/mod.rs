//! The part of a blob that any thread reads: its size, its cached pages, its write-back errors, and
//! the state of direct IO without the worker.

#[cfg(all(test, loom))]
mod models;

use super::{MappedMemory, Overwritten, PublishedExtents, Ticket, Unsynced, WriteGrant};
use crate::cache::{AheadOf, DirtyFrame, FrameKey, Frames, Hint};
use crate::format::BlobId;
use adit_base::breakdown::{self, Layer};
use adit_base::clock::Timestamp;
use adit_base::simulation::{Bug, planted};
use adit_base::sync::SeqCount;
use adit_base::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering, fence};
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_block::{Buffer, Device, Operation, Request};
use smallvec::SmallVec;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

const PAGE: u64 = PAGE_BYTES as u64;

/// Bytes of one direct request.
pub(crate) const DIRECT_BYTES_MAX: usize = 1 << 20;

/// Direct reads to the caller's memory are aligned to this, in offset and length.
pub(crate) fn direct_read_unit(device: &Arc<dyn Device>) -> u64 {
    device.geometry().logical_block_bytes.into()
}

/// Direct writes are aligned to this, in offset and length: a torn block could cost synced bytes
/// beside a smaller write. (If blocks are larger than pages, a write risks other pages anyway.)
pub(crate) fn direct_write_unit(device: &Arc<dyn Device>) -> u64 {
    u64::from(device.geometry().physical_block_bytes).min(PAGE)
}

/// The part of a blob that any thread may read.
#[derive(Debug)]
pub struct BlobShared {
    id: BlobId,
    size: AtomicU64,
    /// It became shorter; odd while readers in other processes get no hints, as it becomes so.
    cuts: SeqCount,
    frames: FramesHandle,
    /// The next read is one that changes the time of access; for the layer above, which asks and
    /// sets.
    access_due: AtomicBool,
    /// Programs have mapped some of it, or append to its tail: its newest bytes may be in their
    /// memory.
    is_mapped: AtomicBool,
    memory: Mutex<Option<Arc<MappedMemory>>>,
    /// Counts write-back errors, so that each descriptor reports each once.
    errors: AtomicU64,
    last_errno: AtomicI32,
    /// From the first direct read or write on, where the device may be read and written without the
    /// worker.
    direct: OnceLock<Box<DirectIo>>,
}

/// State of direct reads and writes without the worker.
#[derive(Debug)]
pub(crate) struct DirectIo {
    pub(super) extents: PublishedExtents,
    pub(crate) grant: WriteGrant,
    pub(crate) unsynced: Unsynced,
    /// The device has no volatile cache, so written data is durable.
    write_is_durable: bool,
    /// Reads are multiples of this.
    read_unit: u64,
    /// Writes are multiples of this.
    write_unit: u64,
    device: DeviceHandle,
}

/// How a write without the worker went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct GrantedWrite {
    /// It is done; otherwise the worker has to do it.
    pub written: bool,
    /// The worker waits for the end of such writes and must be told
    /// ([`Store::end_granted_writes`](crate::Store::end_granted_writes)), first.
    pub recalled: bool,
}

/// How a sync without the worker went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct GrantedSync {
    /// The part of the sync that is done.
    pub synced: Synced,
    /// As in [`GrantedWrite`].
    pub recalled: bool,
}

/// The part of a sync that a thread has done without the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Synced {
    /// Nothing that counts: the worker syncs.
    #[default]
    No,
    /// All is on the device, which has to flush it
    /// ([`Store::flush_granted`](crate::Store::flush_granted)).
    Home,
    /// All is durable.
    Durable,
}

/// Ends with the worker's blob. Its count is the blob's own, so threads with other files leave it
/// alone.
struct DeviceHandle(Weak<Arc<dyn Device>>);

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
    /// The shared part of a blob of this size.
    pub(crate) fn new(id: BlobId, size_bytes: u64, frames: Arc<Frames>) -> BlobShared {
        BlobShared {
            id,
            size: AtomicU64::new(size_bytes),
            cuts: SeqCount::default(),
            frames: FramesHandle(frames),
            access_due: AtomicBool::new(false),
            is_mapped: AtomicBool::new(false),
            memory: Mutex::new(None),
            errors: AtomicU64::new(0),
            last_errno: AtomicI32::new(0),
            direct: OnceLock::new(),
        }
    }

    fn key(&self, page: u32) -> FrameKey {
        FrameKey {
            space: self.id.slot,
            page: page.into(),
        }
    }

    /// Size in bytes, as `write` left it.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// How many of `len` bytes from `offset` on lie before the end.
    #[inline]
    pub(crate) fn readable(&self, offset: u64, len: usize) -> usize {
        let left = self.size().saturating_sub(offset);
        len.min(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// Reads from the cache without the worker; `None`: not all of it is there, ask the worker.
    #[inline]
    pub fn try_read(&self, offset: u64, buffer: &mut [u8]) -> Option<usize> {
        let cuts = self.cuts.read()?;
        let len = self.readable(offset, buffer.len());
        if len == 0 {
            return Some(0);
        }
        let key = FrameKey {
            space: self.id.slot,
            page: offset / PAGE_BYTES as u64,
        };
        let within = (offset % PAGE_BYTES as u64) as usize;
        let found = self.frames.0.read(key, within, &mut buffer[..len]);
        // Behind the pins: if it became shorter, the bytes may be those of a shorter file, zeroes
        // where the size that was seen had content. A pin of a frame that changed behind the cut
        // sees it.
        (found && self.cuts.is_still(cuts)).then_some(len)
    }

    /// Where the page at `offset` is in the cache, for readers in other processes; `None`: it isn't
    /// there, or the cache isn't for them.
    pub fn hint(&self, offset: u64) -> Option<Hint> {
        let page = offset / PAGE;
        let key = FrameKey {
            space: self.id.slot,
            page,
        };
        let len = || {
            self.cuts.read()?;
            Some(self.readable(page * PAGE, PAGE_BYTES))
        };
        let hint = (self.frames.0).hint(key, len);
        // Behind the look at the version: if a thread fills the page now, the version is old, or
        // this look finds the file mapped.
        fence(Ordering::SeqCst);
        hint.filter(|_| !self.is_mapped())
    }

    /// It becomes shorter: the worker withdraws the hints that there are, then sets the size. No
    /// reader in another process gets one meanwhile.
    pub(crate) fn cut(&self, withdraw_and_set_size: impl FnOnce()) {
        self.cuts.begin();
        withdraw_and_set_size();
        self.cuts.end();
    }

    /// Borrows cached bytes without a copy: at most to the end of their page. `None`: ask the
    /// worker.
    pub fn try_borrow(&self, offset: u64, len: usize) -> Option<Buffer> {
        let within = (offset % PAGE_BYTES as u64) as usize;
        let cuts = self.cuts.read()?;
        let len = self.readable(offset, len.min(PAGE_BYTES - within));
        if len == 0 {
            return Some(Buffer::zeroed(0));
        }
        let key = FrameKey {
            space: self.id.slot,
            page: offset / PAGE_BYTES as u64,
        };
        let buffer = self.frames.0.pin(key)?.into_buffer();
        (self.cuts.is_still(cuts)).then(|| buffer.slice(within..within + len))
    }

    /// Reads whole logical blocks of the device without the worker, where nothing newer is in the
    /// cache; `None`: ask the worker.
    pub fn try_read_direct(&self, offset: u64, buffer: &mut [u8]) -> Option<usize> {
        let direct = self.direct.get()?;
        let len = buffer.len();
        if offset.checked_add(len as u64)? > self.size() {
            return None;
        }
        let (ticket, place) = find(&direct.extents, direct.read_unit, offset, len)?;
        let device = direct.device.0.upgrade()?;
        // SAFETY: the buffer is ours until `execute` returns, which gives the request back.
        let memory = unsafe { Buffer::borrowed(buffer.as_mut_ptr(), len) };
        let request = Request::read(place, memory, 0);
        let reading = breakdown::enter(Layer::Device);
        let completion = device.execute(request);
        drop(reading);
        // If a read fails, the worker repeats it and reports the error with its place.
        let sound = completion.result.is_ok() && direct.extents.is_current(ticket);
        sound.then_some(len)
    }

    /// Overwrites whole physical blocks of the device without the worker, where their pages are
    /// granted (`blob/write_grant`).
    pub fn try_write_direct(&self, offset: u64, data: &[u8]) -> GrantedWrite {
        self.within_grant(true, |direct| {
            is_request(direct.write_unit, offset, data.len()) && direct.write(offset, data)
        })
    }

    /// Overwrites bytes of a page that is dirty in the cache without the worker, where that is
    /// granted (`blob/write_grant`).
    pub fn try_write(&self, offset: u64, data: &[u8]) -> GrantedWrite {
        self.within_grant(false, |direct| {
            let (page, within) = (offset / PAGE, (offset % PAGE) as usize);
            let list = || {
                if !planted(Bug::UnlistedOverwrite) {
                    direct.unsynced.note(page as u32);
                }
            };
            !data.is_empty()
                && data.len() <= PAGE_BYTES - within
                && offset.saturating_add(data.len() as u64) <= self.size()
                && (self.frames.0).overwrite(self.key(page as u32), within, data, list)
        })
    }

    /// Makes durable what threads have overwritten under the write grant, and the metadata to read
    /// it, if nothing else is to be synced (`blob/unsynced`): as
    /// [`Store::sync`](crate::Store::sync) with [`SyncKind::Data`](crate::SyncKind::Data).
    pub fn try_sync(&self) -> GrantedSync {
        let Some(direct) = self.direct.get() else {
            return GrantedSync::default();
        };
        if let Err(recalled) = direct.grant.enter() {
            let synced = Synced::No;
            return GrantedSync { synced, recalled };
        }
        let synced = if self.is_mapped() {
            Synced::No
        } else {
            direct.sync(self)
        };
        GrantedSync {
            synced,
            recalled: direct.grant.leave(),
        }
    }

    /// Writes within the grant, if there is one; `home`: to the device. `write` returns whether it
    /// wrote.
    fn within_grant(&self, home: bool, write: impl FnOnce(&DirectIo) -> bool) -> GrantedWrite {
        let no = GrantedWrite::default();
        let Some(direct) = self.direct.get() else {
            return no;
        };
        if let Err(recalled) = direct.grant.enter() {
            return GrantedWrite { recalled, ..no };
        }
        let written = write(direct);
        if written {
            direct.grant.note_written(Timestamp::now(), home);
        }
        GrantedWrite {
            written,
            recalled: direct.grant.leave(),
        }
    }

    /// State of direct reads and writes.
    pub(super) fn direct(&self, device: &Arc<Arc<dyn Device>>) -> &DirectIo {
        self.direct.get_or_init(|| {
            Box::new(DirectIo {
                extents: PublishedExtents::default(),
                grant: WriteGrant::default(),
                unsynced: Unsynced::default(),
                write_is_durable: !device.capabilities().volatile_cache,
                read_unit: direct_read_unit(device),
                write_unit: direct_write_unit(device),
                device: DeviceHandle(Arc::downgrade(device)),
            })
        })
    }

    /// The write grant, if there ever was one.
    pub(crate) fn write_grant(&self) -> Option<&WriteGrant> {
        self.direct.get().map(|direct| &direct.grant)
    }

    /// The state of syncs without the worker, if there ever was a write grant.
    pub(crate) fn unsynced(&self) -> Option<&Unsynced> {
        self.direct.get().map(|direct| &direct.unsynced)
    }

    /// The next sync is the worker's: more changed than bytes of pages.
    pub fn owe_sync(&self) {
        if let Some(unsynced) = self.unsynced()
            && !planted(Bug::UnowedSync)
        {
            unsynced.owe();
        }
    }

    /// Withdraws the published extents: newer bytes exist, or the bytes are about to move. The
    /// worker only.
    #[inline]
    pub(crate) fn withdraw_extents(&self) {
        if let Some(direct) = self.direct.get() {
            direct.extents.forget();
        }
    }

    /// True if programs have mapped some of it, or one appends to its tail.
    #[inline]
    pub fn is_mapped(&self) -> bool {
        self.is_mapped.load(Ordering::Relaxed)
    }

    /// The memory that they have mapped.
    pub fn mapped_memory(&self) -> Option<Arc<MappedMemory>> {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.clone()
    }

    /// The worker only, with the blob's `lock` held exclusively.
    pub(crate) fn set_mapped(&self, memory: Option<Arc<MappedMemory>>) {
        self.owe_sync();
        self.is_mapped.store(memory.is_some(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = memory;
    }

    /// Notes whether a program in another process appends to its tail. The worker only; to begin,
    /// with the blob's `lock` held exclusively.
    pub(crate) fn set_tail(&self, has_tail: bool) {
        self.owe_sync();
        self.is_mapped.store(has_tail, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.count_size(has_tail);
    }

    /// True if the next read changes the time of access.
    #[inline]
    pub fn access_due(&self) -> bool {
        self.access_due.load(Ordering::Relaxed)
    }

    /// Sets whether the next read changes the time of access.
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
        let errno = Errno::from_raw(self.last_errno.load(Ordering::Acquire));
        Err(Error::with(
            errno,
            "an earlier write of this file's data failed",
        ))
    }

    pub(crate) fn note_error(&self, errno: Errno) {
        self.owe_sync();
        self.last_errno.store(errno.raw(), Ordering::Release);
        self.errors.fetch_add(1, Ordering::AcqRel);
    }

    /// Sets the size. The worker only; before it changes or removes bytes behind a smaller size.
    pub(super) fn set_size(&self, size: u64) {
        let is_cut = size < self.size.load(Ordering::Relaxed);
        self.size.store(size, Ordering::Release);
        if is_cut {
            self.cuts.step();
        }
    }

    /// Its size isn't that of its slot, or is again, for readers in other processes.
    pub(super) fn count_size(&self, is_ahead: bool) {
        let counts = self.frames.0.ahead(AheadOf::Size);
        if self.frames.0.is_published() {
            if is_ahead {
                counts.add(self.id.slot);
            } else {
                counts.remove(self.id.slot);
            }
        }
    }
}

impl DirectIo {
    /// Writes whole physical blocks; the caller is inside the grant. False: not all of their pages
    /// are granted, or the write failed; the worker repeats it and reports the error.
    fn write(&self, offset: u64, data: &[u8]) -> bool {
        let found = find(&self.grant.extents, self.write_unit, offset, data.len());
        let (Some((_, place)), Some(device)) = (found, self.device.0.upgrade()) else {
            return false;
        };
        // SAFETY: the memory is valid until `execute` returns, which gives the request back; a
        // write only reads it.
        let memory = unsafe { Buffer::borrowed(data.as_ptr().cast_mut(), data.len()) };
        let mut request = Request::read(place, memory, 0);
        request.operation = Operation::Write { fua: false };
        execute(&**device, request)
    }

    /// Syncs the blob; the caller is inside the grant.
    fn sync(&self, blob: &BlobShared) -> Synced {
        if !blob.frames.0.is_durable_for_syncs() {
            return Synced::No;
        }
        let Some(pages) = self.unsynced.take() else {
            return Synced::No;
        };
        let all_home = self.write_home(blob, pages);
        self.unsynced.give_back(all_home);
        if !all_home {
            return Synced::No;
        }
        self.grant.note_synced();
        if self.write_is_durable || planted(Bug::UnflushedSync) {
            Synced::Durable
        } else {
            self.grant.note_home();
            Synced::Home
        }
    }

    /// Takes pages home, as they are now. They stay dirty, without dirty granules. False: not all
    /// of them; the worker repeats what failed, and reports the error.
    fn write_home(&self, blob: &BlobShared, mut pages: Overwritten) -> bool {
        pages.sort_unstable();
        pages.dedup();
        let mut group = Group::default();
        for page in pages {
            let Some(frame) = blob.frames.0.pin_dirty(blob.key(page)) else {
                return false;
            };
            if !frame.has_dirty_granules() {
                continue; // an earlier sync took it home
            }
            let Some(place) = self.unsynced.written.find(page.into(), 1) else {
                return false;
            };
            if !group.continues(place.home) && !self.write_group(&mut group) {
                return false;
            }
            group.add(place.home, frame);
        }
        self.write_group(&mut group)
    }

    /// Writes the pages of the group; then it is empty.
    fn write_group(&self, group: &mut Group<'_>) -> bool {
        if group.frames.is_empty() {
            return true;
        }
        let Some(device) = self.device.0.upgrade() else {
            return false;
        };
        let mut request = Request::flush(0);
        request.operation = Operation::Write { fua: false };
        request.offset_bytes = group.home * PAGE;
        // SAFETY: the frames stay pinned until `execute` has returned.
        let memory = group.frames.iter().map(|frame| unsafe { frame.borrowed() });
        request.buffers = memory.collect();
        let written = execute(&**device, request);
        // At once, also if it failed half way: if another page stays behind, the worker takes these
        // for home, and has to flush them.
        if !planted(Bug::UnnotedHome) {
            self.grant.note_home();
        }
        for frame in group.frames.drain(..) {
            if written {
                frame.note_home();
            }
        }
        written
    }
}

/// Pages that lie side by side on the device, on their way there.
#[derive(Default)]
struct Group<'a> {
    home: u64,
    frames: SmallVec<[DirtyFrame<'a>; 4]>,
}

impl<'a> Group<'a> {
    fn continues(&self, home: u64) -> bool {
        self.frames.is_empty() || self.home + self.frames.len() as u64 == home
    }

    fn add(&mut self, home: u64, frame: DirtyFrame<'a>) {
        if self.frames.is_empty() {
            self.home = home;
        }
        self.frames.push(frame);
    }
}

/// Executes a write; true: it is done. If the device panics, it panics again for the worker, which
/// poisons the volume. The caller must leave the grant first.
fn execute(device: &dyn Device, request: Request) -> bool {
    let _in = breakdown::enter(Layer::Device);
    catch_unwind(AssertUnwindSafe(|| device.execute(request)))
        .is_ok_and(|completion| completion.result.is_ok())
}

/// Whether one request to the device can be of this.
fn is_request(unit: u64, offset: u64, len: usize) -> bool {
    let whole = (offset | len as u64).is_multiple_of(unit);
    whole && len != 0 && len <= DIRECT_BYTES_MAX
}

/// Where bytes `[offset, offset + len)` begin on the device, if one request can be of them and
/// these places know all of their pages.
fn find(places: &PublishedExtents, unit: u64, offset: u64, len: usize) -> Option<(Ticket, u64)> {
    if !is_request(unit, offset, len) {
        return None;
    }
    let (page, within) = (offset / PAGE_BYTES as u64, offset % PAGE_BYTES as u64);
    let pages = (within + len as u64).div_ceil(PAGE_BYTES as u64);
    let ticket = places.find(page, pages)?;
    Some((ticket, ticket.home * PAGE_BYTES as u64 + within))
}
