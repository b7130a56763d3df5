//! Makes, opens and closes volumes.
//!
//! ```text
//!  open: superblock -> claim, mappings (takeover.rs) -> recovery (journal, then what a dead process left)
//!        -> cache -> Store -> dead process's data
//!        The first cache is in private memory, and the volume has one partition, where a cache that
//!        survives has no room beside a dead process's memory, or where the volume is to have several
//!        partitions; the volume is closed when all is taken over, and opened again.
//!  close: sync everything -> checkpoint -> superblock "clean" -> the shared mapping goes away
//! ```

use super::begin::{OpeningName, begin};
use super::grow::VOLUME_PAGES_MAX;
use super::info::not_the_first;
use super::partitions::Seat;
use crate::blob::BlobTable;
use crate::cache::{Cache, CacheOptions, CachePlacement, Purpose};
use crate::cache::{FRAMES_LEFT_BY_DATA, OwnedCache};
use crate::format::superblock::geometry;
use crate::format::superblock::{
    self, JOURNAL_PAGES_MAX, JOURNAL_PAGES_MIN, Layout, foreign_signature,
};
use crate::format::{
    ALGORITHM_CRC32C, FEATURE_DATA_CHECKSUMS, FORMAT_VERSION, JOURNAL_FIRST_PAGE, Page, PageKind,
    STATE_CLEAN, SUPERBLOCK_MAGIC, SUPERBLOCK_PAGES, StatePage, Superblock, VolumeId,
};
use crate::health::{self, RepairOptions};
use crate::journal::{Changes, Journal, Progress};
use crate::metadata::Need;
use crate::metadata::space::{Division, Space, SpaceGeometry};
use crate::recovery::{Findings, RawIo, Recovered, Resolution, Search, Takeover};
use crate::recovery::{recover, recover_leniently, resolve, superblock_is_newest};
use crate::state::{
    Applied, Barriers, HomeWrites, Latency, Lead, Reservations, SlotMisses, Unsettled,
};
use crate::state::{CACHE_BYTES_MIN, Checksums, Flag, PARTITIONS_MAX, Upcalls, WriteBack};
use crate::state::{Store, StoreOptions, StoreState, Whole};
use adit_base::hash::HashKey;
use adit_base::size::format_size;
use adit_base::sync::atomic::AtomicU64;
use adit_base::{Errno, Error, PAGE_BYTES, Result, clock::Timestamp};
use adit_block::{BufferPool, Device, PoolConfig};
use adit_reactor::Reactor;
use adit_reactor::sync::Event;
use std::cell::{Cell, OnceCell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use zerocopy::{FromZeros, IntoBytes};

/// Parameters of a new volume.
#[derive(Clone, Debug)]
pub struct MkfsOptions {
    /// Bytes of the volume; all of the device if not given.
    pub volume_bytes: Option<u64>,
    /// Bytes of the journal ring; 1/32 of the volume, from 4 to 64 MiB, if not given.
    pub journal_bytes: Option<u64>,
    /// Preferred allocation unit in bytes, a multiple of 4096.
    pub cluster_bytes: u32,
    /// Give every page of data a checksum, which every read from the device verifies: silent
    /// changes by the device become EIO. Overwrites then go to fresh pages, or through the journal.
    pub data_checksums: bool,
    /// Label, at most 64 bytes.
    pub label: String,
    /// Overwrite a volume, or other recognized content of the device.
    pub force: bool,
    /// Where the mappings of a volume that is overwritten are.
    pub shared_directory: PathBuf,
}

impl Default for MkfsOptions {
    fn default() -> MkfsOptions {
        MkfsOptions {
            volume_bytes: None,
            journal_bytes: None,
            cluster_bytes: 64 << 10,
            data_checksums: false,
            label: String::new(),
            force: false,
            shared_directory: PathBuf::from("/dev/shm"),
        }
    }
}

const PAGE: u64 = PAGE_BYTES as u64;
/// Rounds of write-back at a close before it fails because of operations that still write.
const CLOSE_ATTEMPTS_MAX: u32 = 16;
pub(super) const CACHE_FRAMES_MIN: u64 = CACHE_BYTES_MIN / PAGE;
/// Pages that a volume has beside its journal at least: superblocks, state, maps, the reserve for
/// deleting, first files.
const ROOM_PAGES_MIN: u64 = 128;

fn raw_io(reactor: &Rc<Reactor>) -> Result<RawIo> {
    let pool = BufferPool::new(PoolConfig {
        limit_bytes: 64 << 20,
        preallocate: Vec::new(),
    })?;
    Ok(RawIo {
        reactor: reactor.clone(),
        pool,
    })
}

/// Writes a fresh volume: superblocks, a really written journal ring, the state page. Groups come
/// to be as they are used.
pub async fn mkfs(reactor: &Rc<Reactor>, options: &MkfsOptions) -> Result<()> {
    let io = raw_io(reactor)?;
    let device = reactor.device().geometry();
    let bad = |what: String| Err(Error::with(Errno::INVAL, format!("mkfs: {what}")));
    let volume_pages = options
        .volume_bytes
        .unwrap_or(device.size_bytes)
        .min(device.size_bytes)
        / PAGE;
    if options
        .volume_bytes
        .is_some_and(|bytes| bytes > device.size_bytes)
    {
        return bad(format!(
            "the device has only {}",
            format_size(device.size_bytes)
        ));
    }
    if volume_pages > VOLUME_PAGES_MAX {
        let what = "mkfs: a volume has at most 128 PiB";
        return Err(Error::with(Errno::FBIG, what));
    }
    let journal_pages = match options.journal_bytes {
        Some(bytes) => bytes / PAGE,
        None => (volume_pages / 32).clamp(JOURNAL_PAGES_MIN, (64 << 20) / PAGE),
    };
    if !(JOURNAL_PAGES_MIN..=JOURNAL_PAGES_MAX).contains(&journal_pages) {
        return bad(format!(
            "a journal of {} (it has {} to {})",
            format_size(journal_pages * PAGE),
            format_size(JOURNAL_PAGES_MIN * PAGE),
            format_size(JOURNAL_PAGES_MAX * PAGE)
        ));
    }
    let cluster_pages = u64::from(options.cluster_bytes) / PAGE;
    if cluster_pages == 0 || u64::from(options.cluster_bytes) % PAGE != 0 || cluster_pages > 8192 {
        return bad(format!(
            "a cluster of {} bytes (a multiple of 4096, at most 32 MiB)",
            options.cluster_bytes
        ));
    }
    if options.label.len() > 64 {
        return bad("the label is longer than 64 bytes".into());
    }
    let smallest_pages = journal_pages + ROOM_PAGES_MIN;
    if volume_pages < smallest_pages {
        return bad(format!(
            "a volume of {} is too small: with a journal of {} the smallest has {} bytes",
            format_size(volume_pages * PAGE),
            format_size(journal_pages * PAGE),
            smallest_pages * PAGE
        ));
    }
    let layout = Layout::new(volume_pages, journal_pages, options.data_checksums);
    let head = io.read(SUPERBLOCK_PAGES[0], 2).await?;
    let mut replaced = replaced(head.as_slice(), &**reactor.device(), options)?;
    if !options.force {
        let head = head.as_slice();
        if head[..8] == SUPERBLOCK_MAGIC || head[PAGE_BYTES..PAGE_BYTES + 8] == SUPERBLOCK_MAGIC {
            return Err(Error::with(
                Errno::EXIST,
                "mkfs: the device already holds an Adit volume (force to overwrite it)",
            ));
        }
        if let Some(what) = foreign_signature(head) {
            return Err(Error::with(
                Errno::EXIST,
                format!("mkfs: the device holds {what} (force to overwrite it)"),
            ));
        }
    }
    // The superblock last, after all that it points to: a half-made volume is none.
    let zero = Page::zeroed();
    io.write(SUPERBLOCK_PAGES[0], &zero.0, false).await?;
    io.write(SUPERBLOCK_PAGES[1], &zero.0, false).await?;
    io.flush().await?;
    let zeroes = vec![0; 1 << 20];
    let mut page = 0;
    while page < journal_pages {
        let count = (journal_pages - page).min(zeroes.len() as u64 / PAGE);
        io.write(
            JOURNAL_FIRST_PAGE + page,
            &zeroes[..(count * PAGE) as usize],
            false,
        )
        .await?;
        page += count;
    }
    let volume_id = VolumeId(adit_base::random::os_random_u128().to_le_bytes());
    let state = state_page(&volume_id, &layout, cluster_pages as u32);
    io.write(layout.state_page, &state.0, false).await?;
    io.flush().await?;
    let key = adit_base::random::os_random_u128();
    let mut superblock = Superblock::new_zeroed();
    superblock.magic = SUPERBLOCK_MAGIC;
    superblock.algorithm = u32::from(ALGORITHM_CRC32C);
    superblock.version = FORMAT_VERSION;
    superblock.page_shift = PAGE.trailing_zeros();
    superblock.volume_id = volume_id.0;
    superblock.epoch = 1;
    superblock.tail = 1;
    superblock.state = STATE_CLEAN;
    superblock.volume_pages = volume_pages;
    superblock.journal_pages = journal_pages;
    superblock.cluster_pages = cluster_pages as u32;
    superblock.features_read_only = if options.data_checksums {
        FEATURE_DATA_CHECKSUMS
    } else {
        0
    };
    superblock.created_seconds = Timestamp::now().seconds;
    superblock.hash_key = [key as u64, (key >> 64) as u64];
    superblock.label[..options.label.len()].copy_from_slice(options.label.as_bytes());
    io.write_superblocks(&mut superblock).await?;
    io.flush().await?;
    replaced.delete_obsolete()?;
    replaced.delete_discarded()?;
    Ok(())
}

/// Finds the mappings of a volume that mkfs overwrites: those of dead processes go with it. EBUSY
/// while a process has it open, even through another device.
fn replaced(head: &[u8], device: &dyn Device, options: &MkfsOptions) -> Result<Resolution> {
    let pages = [&head[..PAGE_BYTES], &head[PAGE_BYTES..2 * PAGE_BYTES]];
    let Ok(superblock) = superblock::choose(pages, device.geometry().size_bytes) else {
        return Ok(Resolution::default());
    };
    let search = Search {
        own: &options.shared_directory,
        takeover: Takeover::Discard,
        purpose: Purpose::TakeOver,
        claim: None,
    };
    let (found, _) = search.list(&superblock)?;
    resolve(found, &superblock, device, search.takeover, search.purpose)
}

fn state_page(volume: &VolumeId, layout: &Layout, cluster_pages: u32) -> Box<Page> {
    let geometry = geometry(layout, cluster_pages);
    let mut state = StatePage::new_zeroed();
    state.header.algorithm = ALGORITHM_CRC32C;
    state.header.kind = PageKind::State as u8;
    state.free_pages = geometry.capacity_pages();
    state.groups = u64::from(geometry.groups());
    state.volume_pages = geometry.volume_pages;
    state.next_generation = 1;
    let mut page = Box::new(Page::zeroed());
    page.0[..size_of::<StatePage>()].copy_from_slice(state.as_bytes());
    let crc = volume.checksum(layout.state_page, &page.0, 0);
    page.0[..4].copy_from_slice(&crc.to_le_bytes());
    page
}

impl Store {
    /// Opens the volume on the reactor's device; recovery is part of it.
    pub async fn open(reactor: Rc<Reactor>, options: &StoreOptions) -> Result<Store> {
        let io = raw_io(&reactor)?;
        let (mut opening, _) = begin(&io, options, options.read_only, false).await?;
        opening.decide_about_room();
        if options.read_only && opening.needs_no_recovery() {
            superblock_is_newest(&io, &opening.superblock).await?;
            return opening.start(None).await;
        }
        if options.read_only && !options.in_memory {
            return Err(Error::with(
                Errno::ROFS,
                "the volume was not closed and needs recovery: open it for writing once",
            ));
        }
        let next = opening.claim_next()?;
        let dead = opening.resolution.of_epoch(opening.superblock.epoch);
        let recovered = recover(&io, &mut opening.superblock, dead, next).await?;
        opening.tell(&recovered);
        let (predecessor, opens_again) = (opening.predecessor(), opening.opens_again);
        let store = opening.start(Some(recovered)).await?;
        store.leading().predecessor.set(predecessor);
        if opens_again {
            store.open_again(options).await
        } else {
            Ok(store)
        }
    }

    /// Repairs a volume (see `repair/mod.rs`), all but its names, and opens it for writing. Returns
    /// the findings, too.
    pub async fn repair(
        reactor: Rc<Reactor>,
        options: &StoreOptions,
        repair: RepairOptions<'_>,
    ) -> Result<(Store, Findings)> {
        assert!(!options.read_only, "a repair writes");
        let io = raw_io(&reactor)?;
        let (mut opening, mut findings) = begin(&io, options, repair.keep_abandoned, true).await?;
        let next = opening.claim_next()?;
        let dead = opening.resolution.of_epoch(opening.superblock.epoch);
        let mut recovered =
            recover_leniently(&io, &mut opening.superblock, dead, next, &mut findings).await?;
        opening.tell(&recovered);
        let redone: Vec<u64> = std::mem::take(&mut recovered.data).into_keys().collect();
        let superblock = &opening.superblock;
        health::repair::repair(&io, superblock, &redone, repair, &mut findings).await?;
        Ok((opening.start(Some(recovered)).await?, findings))
    }

    /// Closes the volume after a complete takeover, and opens it with its own mapping. Nothing is
    /// acknowledged in between: a kill before the end of the takeover leaves it to the next
    /// opening, a later one leaves a closed volume.
    async fn open_again(self, options: &StoreOptions) -> Result<Store> {
        let predecessor = self.leading().predecessor.get();
        self.close().await?;
        let (reactor, epoch) = (self.reactor.clone(), self.epoch());
        drop(self);
        let again = Box::pin(Store::open(reactor, options)).await?;
        // Unless another process had the volume in between, through another device.
        if again.epoch() == epoch + 1 {
            again.leading().predecessor.set(predecessor);
        }
        Ok(again)
    }

    /// Queues pages that recovery wrote home, to get checksums again.
    pub(crate) fn settle_recovered(&self, recovered: Recovered) {
        if let Some(checksums) = &self.checksums {
            for (page, sum) in recovered.data {
                checksums.settle(page, sum);
            }
        }
        self.spawn_settle();
    }

    /// The state page has to agree with the superblock before anything relies on it. It says how
    /// large the volume is, and the superblock only how large at most (`grow.rs`).
    pub(super) async fn check_state(&self) -> Result<()> {
        let state = self.state().await?;
        let bound = self.layout.get();
        let layout = bound.with_pages(state.volume_pages.min(bound.volume_pages));
        let geometry = geometry(&layout, self.leading().superblock.borrow().cluster_pages);
        if state.volume_pages > bound.volume_pages
            || layout.groups == 0
            || state.groups != layout.groups
            || state.free_pages > geometry.capacity_pages()
            || u64::from(state.groups_initialized) > state.groups
        {
            return Err(Error::with(
                Errno::UCLEAN,
                format!(
                    "state page {}: its counters don't fit the volume",
                    geometry.state_page
                ),
            ));
        }
        self.layout.set(layout);
        *self.space.borrow_mut() = Space::new(geometry);
        Ok(())
    }

    /// Takes everything home and marks the volume clean. The store is not to be used afterwards.
    pub async fn close(&self) -> Result<()> {
        self.lead.as_ref().ok_or_else(not_the_first)?;
        self.whole.closing.set();
        if self.whole.read_only.is_set() {
            return Ok(());
        }
        // Background work in flight may still add to the journal: a clean volume has an empty one.
        let mut attempts = 0;
        loop {
            self.sync_all().await?;
            self.checkpoint_all().await?;
            self.settle_all().await?;
            self.hold_superblock().await?;
            if self.whole.progress.ring.live_pages() == 0 && self.whole.progress.room.is_empty() {
                break;
            }
            self.release_superblock();
            attempts += 1;
            if attempts == CLOSE_ATTEMPTS_MAX {
                return Err(Error::with(
                    Errno::BUSY,
                    "close a volume that is being changed",
                ));
            }
        }
        let tail = self.whole.progress.ring.next();
        let written = match self.look_for_others().await {
            Ok(()) => {
                self.leading().superblock.borrow_mut().forget_memo();
                self.write_superblocks(tail, STATE_CLEAN).await
            }
            others => others,
        };
        self.release_superblock();
        written?;
        self.leading().claim.borrow_mut().take();
        self.frames.delete_shared()
    }
}

/// Of all partitions together.
pub(super) fn frames_max(options: &StoreOptions) -> u32 {
    let frames = (options.cache_bytes / PAGE).min(1 << 30) as u32;
    frames.max(frames_min(options))
}

/// Each partition needs as many as the only one of a volume.
pub(super) fn frames_min(options: &StoreOptions) -> u32 {
    CACHE_FRAMES_MIN as u32 * options.partitions.clamp(1, PARTITIONS_MAX)
}

pub(super) fn build(
    reactor: Rc<Reactor>,
    options: &StoreOptions,
    plain: bool,
    superblock: Superblock,
    pool: Arc<BufferPool>,
) -> Result<Store> {
    let layout = Layout::of(&superblock);
    let shared = (!options.read_only)
        .then(|| OpeningName::of(&superblock).name(&**reactor.device(), options));
    let cache = Cache::new(&CacheOptions {
        frames_max: frames_max(options),
        parts: options.partitions,
        shared,
        survive: options.survive,
        published: options.published,
        frames_min: frames_min(options),
    })?;
    let mapping = match cache.placement() {
        CachePlacement::Shared(path) => {
            let path = path.clone();
            tracing::info!(
                volume = %reactor.name(),
                path = %path.display(),
                "writes survive the death of this process"
            );
            Some(path)
        }
        CachePlacement::Anonymous { fallback, .. } => {
            if let Some(error) = fallback {
                tracing::warn!(
                    volume = %reactor.name(),
                    %error,
                    "writes won't survive the death of this process before they are synced"
                );
            }
            None
        }
    };
    cache.frames().header().set_sequence(superblock.sequence);
    cache.frames().header().set_horizon(superblock.tail);
    let (pages, epoch) = (superblock.journal_pages, superblock.epoch);
    let geometry = geometry(&layout, superblock.cluster_pages);
    let unsettled = Unsettled::default();
    let checksums =
        (layout.checksums).then(|| Checksums::new(&superblock.unsettled, &geometry, &unsettled));
    let whole = Whole {
        volume: VolumeId(superblock.volume_id),
        hash_key: HashKey(superblock.hash_key),
        epoch,
        progress: Arc::new(Progress::new(pages, superblock.tail, options.partitions)),
        home_writes: HomeWrites::default(),
        latency: Latency::default(),
        applied: Applied::default(),
        reservations: Reservations::default(),
        pending: AtomicU64::new(0),
        gained: AtomicU64::new(0),
        read_only: Flag::new(plain),
        closing: Flag::default(),
        failure: OnceLock::new(),
        unsettled,
        frames: OnceLock::new(),
    };
    let lead = Lead {
        superblock: RefCell::new(superblock),
        journal: Journal::new(epoch, options.commits_in_flight),
        barriers: Barriers::default(),
        unsaved: RefCell::new(None),
        predecessor: Cell::new(None),
        claim: RefCell::new(None),
        others_want_checkpoint: Cell::new(false),
    };
    let store = partition(Parts {
        reactor,
        options,
        whole: Arc::new(whole),
        number: 0,
        lead: Some(lead),
        layout,
        geometry,
        checksums,
        cache,
        mapping,
        pool,
    });
    if !plain {
        for _ in 0..store.whole.progress.room.pages_max() {
            let frame = (store.cache.allocate_raw())
                .ok_or_else(|| Error::with(Errno::NOMEM, "the page cache is too small"))?;
            store.leading().journal.add_buffers([frame]);
        }
    }
    Ok(store)
}

impl Seat {
    /// The partition, which has nothing of the volume yet.
    pub(super) fn build(self, reactor: Rc<Reactor>) -> Store {
        partition(Parts {
            reactor,
            options: &self.options,
            whole: self.whole,
            number: self.number,
            lead: None,
            layout: self.layout,
            geometry: self.geometry,
            checksums: (self.layout.checksums).then(Checksums::default),
            cache: self.frames.other_part(self.number),
            mapping: self.mapping,
            pool: self.pool,
        })
    }
}

/// The parts of a partition that is to be made.
struct Parts<'o> {
    reactor: Rc<Reactor>,
    options: &'o StoreOptions,
    whole: Arc<Whole>,
    number: u32,
    lead: Option<Lead>,
    layout: Layout,
    geometry: SpaceGeometry,
    checksums: Option<Checksums>,
    cache: Cache,
    mapping: Option<PathBuf>,
    pool: Arc<BufferPool>,
}

fn partition(parts: Parts<'_>) -> Store {
    let frames = parts.cache.frames().clone();
    let store = Rc::new(StoreState {
        volatile_cache: parts.reactor.device().capabilities().volatile_cache,
        reactor: parts.reactor,
        options: parts.options.clone(),
        changes: Changes::new(parts.whole.progress.clone(), parts.number),
        whole: parts.whole,
        partition: parts.number,
        lead: parts.lead,
        workers: OnceCell::new(),
        upper: OnceCell::new(),
        layout: Cell::new(parts.layout),
        checksums: parts.checksums,
        folded: Cell::new(None),
        has_to_fold: Cell::new(false),
        division: Cell::new(Division::NONE),
        others: OnceCell::new(),
        space: RefCell::new(Space::new(parts.geometry)),
        pool: parts.pool,
        cache: OwnedCache::new(parts.cache),
        mapping: parts.mapping,
        upcalls: Upcalls {
            reclaim_frames: Store::reclaim_frames,
            start_write_back: Store::spawn_writeback,
            start_settling: Store::spawn_settle,
            perform: Store::perform_asked,
            recall_grants: Store::recall_all,
        },
        write_back: WriteBack::new(frames.clone()),
        slot_misses: SlotMisses::new(frames.bound_bytes()),
        frames,
        blobs: BlobTable::default(),
        frame_idle: Event::new(),
        grants_writes: Cell::new(true),
        loading: Cell::new(0),
        receipt: Cell::new(None),
    });
    let state = Rc::downgrade(&store);
    store.reactor.when_poisoned(move || {
        if let Some(state) = state.upgrade() {
            Store(state).end_what_others_use();
        }
    });
    Store(store)
}

const _: () = assert!(FRAMES_LEFT_BY_DATA as usize >= 3 * Need::STEP.frames);
const _: () = assert!(CACHE_FRAMES_MIN > 8 * FRAMES_LEFT_BY_DATA as u64);
