//! Making, opening and closing a volume.
//!
//! ```text
//!  open: superblock -> recovery (journal, then what a dead process left) -> cache -> Store -> dead process's data
//!  close: sync everything -> checkpoint -> superblock "clean" -> the shared mapping goes away
//! ```

use crate::barriers::Barriers;
use crate::blob::{BlobId, BlobTable, DirtyBlobs};
use crate::cache::{Abandoned, Cache, CacheOptions, CachePlacement, SharedName};
use crate::checksums::Checksums;
use crate::format::{
    ALGORITHM_CRC32C, FEATURE_DATA_CHECKSUMS, FORMAT_VERSION, JOURNAL_FIRST_PAGE, Page, PageKind,
    STATE_CLEAN, STATE_TAKING_OVER, SUPERBLOCK_MAGIC, SUPERBLOCK_PAGES, StatePage, Superblock,
    VolumeId,
};
use crate::journal::Journal;
use crate::owned_cache::OwnedCache;
use crate::recovery::{RawIo, Recovered, recover};
use crate::repair::{Findings, NameLeaves};
use crate::space::{Space, SpaceGeometry};
use crate::superblock::{
    JOURNAL_PAGES_MAX, JOURNAL_PAGES_MIN, Layout, foreign_signature, verify_writable,
};
use crate::sync::SyncKind;
use crate::volume::{FRAMES_PER_TRANSACTION, Inner, Store, StoreOptions};
use adit_base::hash::HashKey;
use adit_base::{Errno, Error, PAGE_BYTES, Result, clock::Timestamp};
use adit_block::{BufferPool, PoolConfig};
use adit_reactor::Reactor;
use adit_reactor::sync::Event;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
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
    /// Give every page of data a checksum, which every read from the device is held against: what a device changes silently
    /// becomes EIO. Data that is overwritten goes to fresh pages then, or through the journal.
    pub data_checksums: bool,
    /// Label, at most 64 bytes.
    pub label: String,
    /// Overwrite a volume or whatever else is recognized on the device.
    pub force: bool,
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
        }
    }
}

const PAGE: u64 = PAGE_BYTES as u64;
/// How often closing takes everything home before it gives up on who goes on writing.
const CLOSE_ATTEMPTS_MAX: u32 = 16;
/// Smallest cache: below, a transaction and the journal's own memory would fill it.
const CACHE_FRAMES_MIN: u64 = 2048;

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

/// Writes a fresh volume: superblocks, a really written journal ring, the state page. Groups come to be as
/// they are used.
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
        return bad(format!("the device has only {} bytes", device.size_bytes));
    }
    let journal_pages = match options.journal_bytes {
        Some(bytes) => bytes / PAGE,
        None => (volume_pages / 32).clamp(JOURNAL_PAGES_MIN, (64 << 20) / PAGE),
    };
    if !(JOURNAL_PAGES_MIN..=JOURNAL_PAGES_MAX).contains(&journal_pages) {
        return bad(format!(
            "a journal has {} to {} bytes",
            JOURNAL_PAGES_MIN * PAGE,
            JOURNAL_PAGES_MAX * PAGE
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
    let layout = Layout::new(volume_pages, journal_pages, options.data_checksums);
    if layout.groups == 0 {
        return bad(format!(
            "a volume of {} bytes has no room behind its journal of {} bytes",
            volume_pages * PAGE,
            journal_pages * PAGE
        ));
    }
    let head = io.read(SUPERBLOCK_PAGES[0], 2).await?;
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
    // First what the superblock points to, last the superblock: a half-made volume is none.
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
    superblock.features_read_only = match options.data_checksums {
        true => FEATURE_DATA_CHECKSUMS,
        false => 0,
    };
    superblock.created_seconds = Timestamp::now().seconds;
    superblock.hash_key = [key as u64, (key >> 64) as u64];
    superblock.label[..options.label.len()].copy_from_slice(options.label.as_bytes());
    io.write_superblocks(&mut superblock).await?;
    io.flush().await
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

pub(crate) fn geometry(layout: &Layout, cluster_pages: u32) -> SpaceGeometry {
    SpaceGeometry {
        state_page: layout.state_page,
        first_group: layout.first_group,
        volume_pages: layout.volume_pages,
        cluster_pages,
        checksums: layout.checksums,
    }
}

/// How [`Store::repair`] goes about it.
pub struct RepairOptions<'a> {
    /// How the leaves of directories are read.
    pub names: &'a dyn NameLeaves,
    /// Hears of blobs looked at, and about how many there are.
    pub progress: &'a mut dyn FnMut(u64, u64),
    /// Leave what a dead process left in memory where it is; it is taken over nevertheless. For a device that
    /// is a copy.
    pub keep_abandoned: bool,
}

impl Store {
    /// Opens the volume on the reactor's device; recovery is part of it.
    pub async fn open(reactor: Rc<Reactor>, options: &StoreOptions) -> Result<Store> {
        Store::open_or_repair(reactor, options, None).await
    }

    /// As [`Store::open`], but what is damaged is repaired first (see `repair/mod.rs`): all but what is in names. With
    /// what was found. The volume is opened for writing.
    pub async fn repair(
        reactor: Rc<Reactor>,
        options: &StoreOptions,
        repair: RepairOptions<'_>,
    ) -> Result<(Store, Findings)> {
        let mut findings = Findings::default();
        let store = Store::open_or_repair(reactor, options, Some((repair, &mut findings))).await?;
        Ok((store, findings))
    }

    async fn open_or_repair(
        reactor: Rc<Reactor>,
        options: &StoreOptions,
        mut repair: Option<(RepairOptions<'_>, &mut Findings)>,
    ) -> Result<Store> {
        let io = raw_io(&reactor)?;
        let mut superblock = match &mut repair {
            None => io.superblock().await?,
            Some((_, findings)) => io.superblock_leniently(findings).await?,
        };
        let keep = options.read_only
            || repair
                .as_ref()
                .is_some_and(|(repair, _)| repair.keep_abandoned);
        if !options.read_only {
            verify_writable(&superblock)?;
        }
        let volume = VolumeId(superblock.volume_id);
        let name = u128::from_le_bytes(volume.0);
        let abandoned = Abandoned::find(&options.shared_directory, name).unwrap_or_else(|error| {
            tracing::warn!(%error, "can't look for what a dead process left");
            Vec::new()
        });
        let mut abandoned = current(abandoned, &superblock, keep);
        let mut recovered = Recovered::default();
        if options.read_only {
            if superblock.state & STATE_CLEAN == 0 || !abandoned.is_empty() {
                return Err(Error::with(
                    Errno::ROFS,
                    "the volume was not closed and needs recovery: open it for writing once",
                ));
            }
        } else {
            let epoch = superblock.epoch;
            let mine = abandoned.iter_mut().find(|dead| dead.epoch() == epoch);
            let state = if mine.is_some() || superblock.state & STATE_TAKING_OVER != 0 {
                STATE_TAKING_OVER
            } else {
                0
            };
            let findings = repair.as_mut().map(|(_, findings)| &mut **findings);
            recovered = recover(&io, &mut superblock, mine, state, findings).await?;
            if recovered.transactions > 0 {
                tracing::info!(
                    transactions = recovered.transactions,
                    journal_pages = recovered.journal_pages,
                    home_pages = recovered.home_pages,
                    "recovered"
                );
            }
        }
        if let Some((repair, findings)) = &mut repair {
            let (names, progress) = (repair.names, &mut *repair.progress);
            let redone: Vec<u64> = std::mem::take(&mut recovered.data).into_keys().collect();
            crate::repair::repair(&io, &superblock, &redone, names, findings, progress).await?;
        }
        let store = build(reactor, options, *superblock, io.pool)?;
        store.check_state().await?;
        store.settle_recovered(recovered);
        match store.take_over(abandoned, keep).await {
            Ok(()) => Ok(store),
            // Not that the volume is read-only since, if settling in the background met it first.
            Err(error) => Err(store.0.failure.borrow().clone().unwrap_or(error)),
        }
    }

    /// The state page has to agree with the superblock before anything relies on it. It says how large the
    /// volume is, and the superblock only how large at most (`grow.rs`).
    async fn check_state(&self) -> Result<()> {
        let state = self.state().await?;
        let inner = &*self.0;
        let bound = inner.layout.get();
        let layout = bound.with_pages(state.volume_pages.min(bound.volume_pages));
        let geometry = geometry(&layout, inner.superblock.borrow().cluster_pages);
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
        inner.layout.set(layout);
        *inner.space.borrow_mut() = Space::new(geometry);
        Ok(())
    }

    /// Writes again what dead processes of this boot had accepted and not yet taken to the device.
    async fn take_over(&self, abandoned: Vec<Abandoned>, keep: bool) -> Result<()> {
        self.0.taking_over.set(!abandoned.is_empty());
        for mut dead in abandoned {
            let path = dead.path().display().to_string();
            let written = self.write_again(&mut dead).await;
            let pages = written.map_err(|error| {
                error.context(format_args!(
                    "write again what a dead process left in {path}"
                ))
            })?;
            self.sync_all().await?;
            if pages > 0 {
                tracing::info!(
                    pages,
                    epoch = dead.epoch(),
                    "took over what a dead process had written"
                );
            }
            if !keep {
                dead.delete()?;
            }
        }
        let inner = &self.0;
        inner.taking_over.set(false);
        if inner.superblock.borrow().state & STATE_TAKING_OVER != 0 && !inner.options.read_only {
            inner.hold_superblock().await?;
            inner.superblock.borrow_mut().state = 0;
            let written = inner.write_superblocks(inner.journal.flushed_tail(), 0);
            let written = written.await;
            inner.release_superblock();
            written?;
        }
        Ok(())
    }

    /// Writes a dead process's dirty pages into the cache; answers how many.
    async fn write_again(&self, dead: &mut Abandoned) -> Result<u64> {
        dead.finish_applying()?;
        let mut page = Box::new([0; PAGE_BYTES]);
        let mut pages = 0;
        for data in dead.dirty() {
            let id = BlobId {
                slot: data.slot_address,
                generation: data.generation,
            };
            let blob = match self.blob(id).await {
                Ok(blob) => blob,
                Err(error) if error.errno() == Errno::STALE => continue, // deleted since
                Err(error) => return Err(error),
            };
            dead.read(data.frame, &mut page)?;
            let end = (data.end_bytes as usize).min(PAGE_BYTES);
            self.write(&blob, data.page.saturating_mul(PAGE), &page[..end])
                .await?;
            pages += 1;
        }
        Ok(pages)
    }

    /// Takes everything home and marks the volume clean. The store is not to be used afterwards.
    pub async fn close(&self) -> Result<()> {
        let inner = &self.0;
        inner.closing.set(true);
        if inner.options.read_only {
            return Ok(());
        }
        // Background work that had begun may still add to the journal: clean is what has an empty one.
        let mut attempts = 0;
        loop {
            self.sync_all().await?;
            inner.checkpoint_all().await?;
            inner.settle().await?;
            inner.hold_superblock().await?;
            if inner.journal.live_pages() == 0 && inner.journal.open_is_empty() {
                break;
            }
            inner.release_superblock();
            attempts += 1;
            if attempts == CLOSE_ATTEMPTS_MAX {
                return Err(Error::with(
                    Errno::BUSY,
                    "close a volume that is being changed",
                ));
            }
        }
        let tail = inner.journal.next();
        let written = inner.write_superblocks(tail, STATE_CLEAN).await;
        inner.release_superblock();
        written?;
        inner.frames.delete_shared()
    }

    /// fsync of a blob, for callers that have its kind at hand.
    pub async fn sync_data(&self, blob: &Rc<crate::blob::Blob>) -> Result<()> {
        self.sync(blob, SyncKind::Data).await
    }
}

/// Which of the mappings count: that of the superblock's epoch, unless it was closed, and, while an earlier opening's
/// taking over was cut short, those before it. Any other of the same `opening` describes the volume as it was before: its
/// data is older than what is on the device, and it is deleted. One of another opening is not used either, but
/// left alone: it may be that of a copy of this volume.
fn current(abandoned: Vec<Abandoned>, superblock: &Superblock, keep: bool) -> Vec<Abandoned> {
    let taking_over = superblock.state & STATE_TAKING_OVER != 0;
    let closed = superblock.state & STATE_CLEAN != 0;
    let ours = |dead: &Abandoned| dead.opening() == superblock.opening;
    let counts = |dead: &Abandoned| {
        ours(dead)
            && (dead.epoch() == superblock.epoch && !closed
                || taking_over && dead.epoch() < superblock.epoch)
    };
    let (current, others): (Vec<_>, Vec<_>) = abandoned.into_iter().partition(counts);
    for other in others {
        let (path, epoch) = (other.path().display().to_string(), other.epoch());
        tracing::warn!(
            path,
            epoch,
            "not of the volume's last opening: it is not used"
        );
        // One of a later epoch belongs to a newer copy of this image.
        if ours(&other)
            && epoch <= superblock.epoch
            && !keep
            && let Err(error) = other.delete()
        {
            tracing::warn!(path, %error, "can't delete it");
        }
    }
    current
}

fn build(
    reactor: Rc<Reactor>,
    options: &StoreOptions,
    superblock: Superblock,
    pool: Arc<BufferPool>,
) -> Result<Store> {
    let volume = VolumeId(superblock.volume_id);
    let layout = Layout::of(&superblock);
    let frames_max = (options.cache_bytes / PAGE).clamp(CACHE_FRAMES_MIN, 1 << 30) as u32;
    let shared = (options.survive_process_death && !options.read_only).then(|| SharedName {
        opening: superblock.opening,
        directory: options.shared_directory.clone(),
        ..SharedName::new(u128::from_le_bytes(volume.0), superblock.epoch)
    });
    let cache = Cache::new(&CacheOptions { frames_max, shared })?;
    let survives_process_death = match cache.placement() {
        CachePlacement::Shared(_) => true,
        CachePlacement::Anonymous { fallback, .. } => {
            if let Some(error) = fallback {
                tracing::warn!(%error, "writes won't survive the death of this process before they are synced");
            }
            false
        }
    };
    let frames = cache.frames().clone();
    let cache = OwnedCache::new(cache);
    let journal = Journal::new(superblock.journal_pages, superblock.epoch, superblock.tail);
    if !options.read_only {
        for _ in 0..journal.transaction_pages_max() {
            let frame = cache
                .allocate_raw()
                .ok_or_else(|| Error::with(Errno::NOMEM, "the page cache is too small"))?;
            journal.add_buffer(frame);
        }
    }
    let checksums = layout.checksums.then(|| {
        let geometry = geometry(&layout, superblock.cluster_pages);
        Checksums::new(&superblock.unsettled, &geometry)
    });
    let volatile_cache = reactor.device().capabilities().volatile_cache;
    let inner = Inner {
        reactor,
        options: options.clone(),
        volume,
        hash_key: HashKey(superblock.hash_key),
        layout: Cell::new(layout),
        space: RefCell::new(Space::new(geometry(&layout, superblock.cluster_pages))),
        superblock: RefCell::new(superblock),
        volatile_cache,
        pool,
        cache,
        frames,
        survives_process_death,
        journal,
        barriers: Barriers::default(),
        checksums,
        blobs: BlobTable::default(),
        frame_settled: Event::new(),
        lends: Cell::new(true),
        writing_home: Cell::new(0),
        loading: Cell::new(0),
        reserved_pages: Cell::new(0),
        taking_over: Cell::new(false),
        dirty_blobs: DirtyBlobs::default(),
        writeback_running: Cell::new(false),
        flushing: Cell::new(false),
        closing: Cell::new(false),
        failure: RefCell::new(None),
    };
    Ok(Store(Rc::new(inner)))
}

const _: () = assert!(CACHE_FRAMES_MIN as usize > 8 * FRAMES_PER_TRANSACTION);
