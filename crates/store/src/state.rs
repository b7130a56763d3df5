//! A mounted store: the worker-owned state that everything else in this crate is a method of.
//!
//! [`Store`] is a cheap handle on [`Inner`]. It is single-owner: only the thread that drives the worker
//! touches it, so its state is in `Cell`s and `RefCell`s, and no borrow is held across an `await`. What other
//! threads may see (frames, sizes) is in [`crate::cache`] and [`crate::blob::BlobShared`].

use crate::blob::{BlobTable, DirtyBlobs};
use crate::cache::OwnedCache;
use crate::cache::{Claim, Survive};
use crate::cache::{FrameKey, Frames};
use crate::commit::Barriers;
use crate::commit::{Transaction, View};
use crate::data::checksums::Checksums;
use crate::format::superblock::Layout;
use crate::format::{PageKind, StatePage, Superblock, VolumeId};
use crate::journal::Journal;
use crate::metadata::pages::Stop;
use crate::metadata::space::Space;
use crate::recovery::Takeover;
use adit_base::breakdown::{self, Layer};
use adit_base::hash::HashKey;
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_block::{Buffer, BufferPool, Operation, Request};
use adit_reactor::sync::Event;
use adit_reactor::{Reactor, Submit};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Smallest page cache: below, a transaction and the journal's own memory would fill it.
pub const CACHE_BYTES_MIN: u64 = 8 << 20;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Bytes of page cache at most; [`CACHE_BYTES_MIN`] where it is less.
    pub cache_bytes: u64,
    /// Never change the volume; one with something to recover can only be opened `in_memory` so.
    pub read_only: bool,
    /// The device is a copy in memory, so a read-only opening may recover on it.
    pub in_memory: bool,
    /// Keep dirty frames in a shared mapping, so that what `write` acknowledged survives SIGKILL.
    pub survive: Survive,
    /// What to do about what a killed process left there.
    pub takeover: Takeover,
    /// Where that mapping lies: a tmpfs.
    pub shared_directory: PathBuf,
    /// Dirty data is written back after about this long.
    pub writeback_interval: Duration,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            cache_bytes: 256 << 20,
            read_only: false,
            in_memory: false,
            survive: Survive::Require,
            takeover: Takeover::Complete,
            shared_directory: PathBuf::from("/dev/shm"),
            writeback_interval: Duration::from_secs(5),
        }
    }
}

/// Figures of a mounted store.
#[derive(Clone, Debug)]
pub struct VolumeInfo {
    /// Random identity.
    pub volume_id: [u8; 16],
    /// Label given at mkfs.
    pub label: String,
    /// Bytes of the volume.
    pub volume_bytes: u64,
    /// Bytes free, after what is reserved for cached writes.
    pub free_bytes: u64,
    /// Bytes that a new file can take: those, less what its metadata needs.
    pub usable_bytes: u64,
    /// Bytes of the journal ring.
    pub journal_bytes: u64,
    /// Bytes of the ring that recovery would read.
    pub journal_live_bytes: u64,
    /// Preferred allocation unit, bytes.
    pub cluster_bytes: u64,
    /// Live blobs.
    pub blobs: u64,
    /// Epoch of this opening.
    pub epoch: u64,
    /// Creation, seconds since 1970.
    pub created_seconds: i64,
    /// Bytes the page cache may use.
    pub cache_bytes: u64,
    /// Dirty frames at the moment.
    pub dirty_bytes: u64,
    /// Has every page of data a checksum?
    pub data_checksums: bool,
    /// The file by which what `write` acknowledged survives the death of the process; None: it doesn't.
    pub mapping: Option<String>,
    /// For who only looks: how much of what is shown lies in the mapping of a killed process, and where.
    pub unsaved: Option<String>,
    /// Why the volume takes no more writes, if so.
    pub failure: Option<String>,
}

/// A handle on a mounted store.
#[derive(Clone)]
pub struct Store(pub(crate) Rc<StoreState>);

impl Deref for Store {
    type Target = StoreState;

    fn deref(&self) -> &StoreState {
        &self.0
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({:02x?})", self.volume.0)
    }
}

/// What an open volume consists of; only this crate sees inside.
pub struct StoreState {
    pub(crate) reactor: Rc<Reactor>,
    pub(crate) options: StoreOptions,
    pub(crate) volume: VolumeId,
    pub(crate) hash_key: HashKey,
    pub(crate) layout: Cell<Layout>,
    pub(crate) superblock: RefCell<Superblock>,
    pub(crate) volatile_cache: bool,
    /// DMA-able memory for what isn't in a frame.
    pub(crate) pool: Arc<BufferPool>,
    pub(crate) cache: OwnedCache,
    pub(crate) frames: Arc<Frames>,
    /// The shared memory that survives the process.
    pub(crate) mapping: Option<PathBuf>,
    pub(crate) space: RefCell<Space>,
    pub(crate) journal: Journal,
    pub(crate) barriers: Barriers,
    /// On a volume whose data has checksums.
    pub(crate) checksums: Option<Checksums>,
    pub(crate) blobs: BlobTable,
    /// A frame finished loading, or left write-back, or lent pages came back.
    pub(crate) frame_settled: Event,
    /// Pages may be lent to who writes without the worker.
    pub(crate) grants_writes: Cell<bool>,
    /// Write-backs whose data is on its way home.
    pub(crate) writing_home: Cell<u32>,
    /// Loads of data under way, whose frames nobody else can have.
    pub(crate) loading: Cell<u32>,
    /// Pages promised to dirty frames that have no place on the device yet.
    pub(crate) reserved_pages: Cell<u64>,
    /// What a dead process had accepted is being written again.
    pub(crate) taking_over: Cell<bool>,
    /// See [`VolumeInfo::unsaved`].
    pub(crate) unsaved: RefCell<Option<String>>,
    /// From the end of a read-only opening on.
    pub(crate) read_only: Cell<bool>,
    /// Guards the volume where no mapping does.
    pub(crate) claim: RefCell<Option<Claim>>,
    /// Blobs with dirty data or attributes.
    pub(crate) dirty_blobs: DirtyBlobs,
    /// Is the write-back task running?
    pub(crate) writeback_running: Cell<bool>,
    /// The task that makes room for writers is at work.
    pub(crate) flushing: Cell<bool>,
    /// Set by close: background tasks end.
    pub(crate) closing: Cell<bool>,
    /// Why nothing is written any more.
    pub(crate) failure: RefCell<Option<Error>>,
}

/// What happens seldom or waits for a device anyway: boxed, so that the futures of hot paths, which are moved before
/// they run, stay small.
pub(crate) type Rare<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Pages that data may not take, so that deleting always finds room for its own metadata.
pub(crate) const RESERVE_PAGES: u64 = 48;
/// A page is kept for so many that are promised: every 200 data pages may need a node of an extent tree.
const PAGES_PER_NODE: u64 = 128;
/// Most pages that a new blob takes before it has data: a chunk of slots, the leaves and the node of a directory that splits.
const CREATION_PAGES: u64 = 16;

impl Store {
    /// The reactor of the worker that owns the store.
    pub fn reactor(&self) -> &Rc<Reactor> {
        &self.reactor
    }

    /// Key of the directories' name hash.
    pub fn hash_key(&self) -> HashKey {
        self.hash_key
    }

    /// The shared part of the page cache.
    pub fn frames(&self) -> &Arc<Frames> {
        &self.frames
    }

    /// Was the volume opened without the right to write?
    pub fn is_read_only(&self) -> bool {
        self.read_only.get()
    }

    /// Leaves the volume to its next opening. For who drops it: after a panic, the operations that were under way
    /// keep it from being freed.
    pub fn abandon(&self) {
        self.frames.abandon();
        self.claim.borrow_mut().take();
    }

    /// Is the volume being closed? Background work of the layer above ends then.
    pub fn is_closing(&self) -> bool {
        self.closing.get()
    }

    /// Reads metadata: the closure runs against resident pages and runs again when one had to be loaded.
    pub async fn view<T>(&self, mut f: impl FnMut(&View<'_>) -> Result<T, Stop>) -> Result<T> {
        loop {
            match f(&View::new(self)) {
                Ok(value) => return Ok(value),
                Err(stop) => self.unstop(stop).await?,
            }
        }
    }

    /// Changes metadata. The closure stages its changes in a [`Transaction`]; it runs again from the
    /// start when a page had to be loaded; when it returns `Ok`, all it staged is applied at once and
    /// joins the open transaction, which [`Store::commit`] makes durable.
    pub async fn transact<T>(
        &self,
        f: impl FnMut(&mut Transaction<'_>) -> Result<T, Stop>,
    ) -> Result<T> {
        self.run_transaction(false, 0, f).await
    }

    /// As [`Store::transact`], for what frees space: may use the pages kept back for that.
    pub async fn transact_freeing<T>(
        &self,
        f: impl FnMut(&mut Transaction<'_>) -> Result<T, Stop>,
    ) -> Result<T> {
        self.run_transaction(true, 0, f).await
    }

    /// The volume-state page.
    pub async fn state(&self) -> Result<StatePage> {
        self.view(|view| view.state()).await
    }

    /// Figures of the volume.
    pub async fn info(&self) -> Result<VolumeInfo> {
        let state = self.state().await?;
        let superblock = self.superblock.borrow();
        let label = superblock
            .label
            .split(|byte| *byte == 0)
            .next()
            .unwrap_or(&[]);
        let page_bytes = PAGE_BYTES as u64;
        Ok(VolumeInfo {
            volume_id: superblock.volume_id,
            label: String::from_utf8_lossy(label).into_owned(),
            volume_bytes: self.layout.get().volume_pages * page_bytes,
            free_bytes: state
                .free_pages
                .saturating_sub(self.reserved_pages.get() + RESERVE_PAGES)
                * page_bytes,
            usable_bytes: self.pages_for_a_new_blob(state.free_pages) * page_bytes,
            journal_bytes: superblock.journal_pages * page_bytes,
            journal_live_bytes: self.journal.ring.live_pages() * page_bytes,
            cluster_bytes: u64::from(superblock.cluster_pages) * page_bytes,
            blobs: state.blobs,
            epoch: superblock.epoch,
            created_seconds: superblock.created_seconds,
            cache_bytes: self.options.cache_bytes,
            dirty_bytes: u64::from(self.cache.counts().dirty) * page_bytes,
            data_checksums: self.checksums.is_some(),
            mapping: (self.mapping.as_ref()).map(|path| path.display().to_string()),
            unsaved: self.unsaved.borrow().clone(),
            failure: self
                .failure
                .borrow()
                .as_ref()
                .map(|error| error.to_string()),
        })
    }
}

impl Store {
    /// Fails when the volume takes no more writes.
    pub(crate) fn writable(&self) -> Result<()> {
        if let Some(error) = &*self.failure.borrow() {
            return Err(Error::with(
                Errno::ROFS,
                format!("write to a volume that is read-only since: {error}"),
            ));
        }
        if self.read_only.get() {
            return Err(Error::with(
                Errno::ROFS,
                "write to a volume that was opened read-only",
            ));
        }
        Ok(())
    }

    /// Makes the volume read-only for good: a flush, journal or metadata write failed, so nothing that
    /// would follow it may be acknowledged.
    pub(crate) fn fail(&self, error: Error) {
        let first = self.failure.borrow().is_none();
        if first {
            *self.failure.borrow_mut() = Some(error.clone());
        }
        for blob in self.dirty_blobs.all() {
            self.recall(&blob);
        }
        self.journal.committed.notify_all();
        self.frame_settled.notify_all();
        if first {
            let volume = self.reactor.name();
            tracing::error!(%volume, %error, "the volume becomes read-only, until it is opened anew");
        }
    }

    /// As [`Store::transact`]; `data_pages`: pages of data that it stages.
    pub(crate) async fn run_transaction<T>(
        &self,
        freeing: bool,
        data_pages: usize,
        mut f: impl FnMut(&mut Transaction<'_>) -> Result<T, Stop>,
    ) -> Result<T> {
        let mut reclaimed = false;
        loop {
            self.admit(data_pages).await?;
            // In a block of its own: it must not live across what is awaited.
            let stop = {
                let _in = breakdown::enter(Layer::Transaction);
                let mut transaction = Transaction::new(self, freeing);
                let taken = self.space.borrow_mut().mark();
                match f(&mut transaction) {
                    Ok(value) => {
                        transaction.apply(taken);
                        return Ok(value);
                    }
                    Err(stop) => {
                        transaction.abort(taken);
                        stop
                    }
                }
            };
            match stop {
                Stop::Miss(page, kind) => self.load_or_avoid(page, kind).await?,
                Stop::Busy(page) => self.load_ended(page).await,
                Stop::Fail(error) if error.errno() == Errno::NOSPC && !reclaimed => {
                    reclaimed = true;
                    if !self.reclaim_pending().await? {
                        return Err(error);
                    }
                }
                Stop::Fail(error) => return Err(error),
            }
        }
    }

    /// Waits until the open transaction and the cache have room for one more operation, which journals `data_pages`
    /// pages of data.
    async fn admit(&self, data_pages: usize) -> Result<()> {
        // A page of data takes a shadow and a frame, which may be a clean one that its operation pins; its checksum, too.
        let frames = FRAMES_PER_TRANSACTION + 3 * data_pages;
        loop {
            self.writable()?;
            if !self.journal.open.has_room(data_pages) {
                let commit: Rare<'_, _> = Box::pin(self.commit_all());
                commit.await?;
            } else if self.cache.available() < frames {
                self.reclaim_frames(frames).await?;
            } else {
                return Ok(());
            }
        }
    }

    /// Makes pending frees usable: before ENOSPC. Says whether anything may have been gained.
    pub(crate) fn reclaim_pending(&self) -> Rare<'_, Result<bool>> {
        Box::pin(async {
            if self.journal.frees.count() == 0 {
                return Ok(false);
            }
            self.commit_all().await?;
            if self.journal.frees.count() != 0 {
                self.checkpoint_all().await?;
            }
            Ok(true)
        })
    }

    /// Pages that cached data may still claim.
    pub(crate) fn available_pages(&self, free_pages: u64) -> u64 {
        match self.taking_over.get() {
            // It was promised already, by who died; and deleting may have used some of the reserve since.
            true if !planted(Bug::ReserveAtTakeover) => self.unclaimed_pages(free_pages),
            _ => self.spare_pages(free_pages),
        }
    }

    /// Likewise, for data that can do without: the reserve stays.
    pub(crate) fn spare_pages(&self, free_pages: u64) -> u64 {
        self.unclaimed_pages(free_pages)
            .saturating_sub(self.kept_pages())
    }

    fn kept_pages(&self) -> u64 {
        self.reserved_pages.get() / PAGES_PER_NODE + RESERVE_PAGES
    }

    /// Data pages that a new blob can be given, beside what its slot, its name and its tree take. Pending frees count:
    /// they are made usable before ENOSPC.
    fn pages_for_a_new_blob(&self, free_pages: u64) -> u64 {
        let others = self.reserved_pages.get() + self.kept_pages() + CREATION_PAGES;
        free_pages.saturating_sub(others) * PAGES_PER_NODE / (PAGES_PER_NODE + 1)
    }

    fn unclaimed_pages(&self, free_pages: u64) -> u64 {
        let claimed = self.journal.frees.pages() + self.reserved_pages.get();
        free_pages.saturating_sub(claimed)
    }

    /// Brings a metadata page into the cache, verified.
    pub(crate) fn load(&self, page: u64, kind: PageKind) -> Rare<'_, Result<()>> {
        Box::pin(self.load_page(page, kind))
    }

    /// As [`Store::load`]; a group whose map is damaged is done without from then on, since that is no reason to
    /// refuse what needs it only to be sure, or fits into another group. (One that can't be read may be there the next time: that is an
    /// error like any other.) One whose checksums are damaged gets no more data.
    async fn load_or_avoid(&self, page: u64, kind: PageKind) -> Result<()> {
        match self.load(page, kind).await {
            Err(error)
                if kind == PageKind::GroupMap
                    && error.errno() == Errno::UCLEAN
                    && self.space.borrow_mut().avoid(page) =>
            {
                let volume = self.reactor.name();
                tracing::error!(%volume, %error, "nothing is allocated in this group: run `adit check`");
                Ok(())
            }
            Err(error) if kind == PageKind::Checksums && error.errno() == Errno::UCLEAN => {
                self.space.borrow_mut().avoid_data(page);
                Err(error)
            }
            loaded => loaded,
        }
    }

    /// Does what a closure that stopped needs to run again.
    pub(crate) async fn unstop(&self, stop: Stop) -> Result<()> {
        match stop {
            Stop::Fail(error) => Err(error),
            Stop::Miss(page, kind) => self.load_or_avoid(page, kind).await,
            Stop::Busy(page) => {
                self.load_ended(page).await;
                Ok(())
            }
        }
    }

    /// Waits while somebody loads a metadata page.
    async fn load_ended(&self, page: u64) {
        let key = FrameKey::meta(page);
        while (self.cache.find(key)).is_some_and(|frame| self.cache.is_loading(frame)) {
            self.frame_settled.wait().await;
        }
    }

    async fn load_page(&self, page: u64, kind: PageKind) -> Result<()> {
        if page >= self.layout.get().volume_pages || page < self.layout.get().state_page {
            return Err(Error::with(
                Errno::UCLEAN,
                format!("follow metadata to page {page}, which can't hold {kind:?}"),
            ));
        }
        self.load_ended(page).await;
        let key = FrameKey::meta(page);
        if self.cache.find(key).is_some() {
            return Ok(());
        }
        let frame = self.allocate_frame().await?;
        if self.cache.find(key).is_some() {
            self.cache.free_allocated(frame);
            return self.load(page, kind).await;
        }
        self.cache.insert_loading(frame, key, kind as u8);
        self.cache.set_home(frame, page);
        let mut request = self.request(Operation::Read, page);
        request.buffers.push(self.cache.load_buffer(frame));
        let completion = self.reactor.submit(request).await;
        let read = completion.result;
        drop(completion.request);
        let result = read
            .map_err(|errno| Error::with(errno, format!("read metadata page {page}")))
            .and_then(|()| {
                self.cache
                    .with_loading(frame, |bytes| self.verify_metadata(page, kind, bytes))
            });
        match &result {
            Ok(()) => self.cache.loaded(frame),
            Err(_) => self.cache.remove(frame),
        }
        self.frame_settled.notify_all();
        result
    }

    fn verify_metadata(&self, page: u64, kind: PageKind, bytes: &[u8]) -> Result<()> {
        if !kind.has_header() {
            return Ok(()); // slots verify one by one
        }
        let damaged = |what: &str| {
            Err(Error::with(
                Errno::UCLEAN,
                format!("use metadata page {page} ({kind:?}): {what}"),
            ))
        };
        let crc = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if self.volume.checksum(page, bytes, 0) != crc {
            return damaged("checksum does not match");
        }
        if bytes[5] != kind as u8 {
            return damaged("holds something else");
        }
        Ok(())
    }

    /// A request at a device page.
    pub(crate) fn request(&self, operation: Operation, page: u64) -> Request {
        Request {
            operation,
            offset_bytes: page * PAGE_BYTES as u64,
            buffers: SmallVec::new(),
            token: 0,
        }
    }

    /// Submits a write of whole pages and waits for it.
    pub(crate) async fn write_pages(
        &self,
        page: u64,
        buffers: SmallVec<[Buffer; 4]>,
    ) -> Result<(), Errno> {
        self.submit_write(page, buffers).await.result
    }

    /// As [`Store::write_pages`], to be waited for later: it is under way from now on.
    pub(crate) fn submit_write(&self, page: u64, buffers: SmallVec<[Buffer; 4]>) -> Submit<'_> {
        let mut request = self.request(Operation::Write { fua: false }, page);
        request.buffers = buffers;
        self.reactor.submit(request)
    }
}

/// Frames that one transaction may need: shadows and fresh pages.
pub(crate) const FRAMES_PER_TRANSACTION: usize = 64;
