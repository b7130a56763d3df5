//! The worker-owned state of an open volume.
//!
//! [`Store`] is a cheap handle on [`StoreState`], the state of a partition. Only the thread that
//! has its worker's lock touches it, so it is in `Cell`s and `RefCell`s, and no borrow is held
//! across an `await`. A volume has one [`Whole`], which all of its partitions read, and one
//! [`Lead`], which the first partition has. The state that other threads may see (frames, sizes) is
//! in [`crate::cache`] and [`crate::blob::BlobShared`].

mod applied;
mod barriers;
mod checksums;
mod device;
mod flag;
mod latency;
#[cfg(all(test, loom))]
mod models;
mod partitions;
mod receipt;
mod reservations;
mod slot_misses;
mod whole;
mod workers;
mod write_back;

use crate::blob::BlobTable;
use crate::cache::{Claim, Frames, OwnedCache, Survive};
use crate::format::superblock::Layout;
use crate::format::{StatePage, Superblock, VolumeId};
use crate::journal::{Changes, Journal, Progress};
use crate::metadata::space::{Division, Space};
use crate::recovery::{Predecessor, Takeover};
use adit_base::hash::HashKey;
use adit_base::sync::atomic::AtomicU64;
use adit_base::{Error, Result};
use adit_block::BufferPool;
use adit_reactor::Reactor;
use adit_reactor::sync::Event;
use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::ops::Deref;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub(crate) use applied::Applied;
pub(crate) use barriers::{Barriers, HomeWrites};
pub(crate) use checksums::{Checksums, READING, Unsettled, is_place};
pub(crate) use flag::Flag;
pub(crate) use latency::Latency;
pub use receipt::Receipt;
pub(crate) use reservations::{RESERVE_PAGES, Reservations};
pub(crate) use slot_misses::SlotMisses;
pub use workers::{Beside, HasStore, introduce};
pub(crate) use workers::{Owners, Partitions, Together, Work, Workers};
pub(crate) use write_back::{InFlight, WriteBack};

/// Smallest page cache: below, a transaction and the journal's own memory would fill it.
pub const CACHE_BYTES_MIN: u64 = 8 << 20;

/// Partitions that a volume may have.
pub const PARTITIONS_MAX: u32 = 16;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Bytes of page cache at most; [`CACHE_BYTES_MIN`] where it is less.
    pub cache_bytes: u64,
    /// Never change the volume; one with something to recover can only be opened `in_memory` so.
    pub read_only: bool,
    /// The device is a copy in memory, so a read-only opening may recover on it.
    pub in_memory: bool,
    /// Keep dirty frames in a shared mapping, so that acknowledged writes survive SIGKILL.
    pub survive: Survive,
    /// The policy for data that a killed process left there.
    pub takeover: Takeover,
    /// Where that mapping lies: a tmpfs.
    pub shared_directory: PathBuf,
    /// Other processes may read the cache's frames, where it is in shared memory.
    pub published: bool,
    /// Commits that may be in flight, [`COMMITS_MAX`](crate::COMMITS_MAX) at most. None: one, or
    /// that many where the device takes long (decision 0016).
    pub commits_in_flight: Option<u32>,
    /// Dirty data is written back after about this long.
    pub writeback_interval: Duration,
    /// Partitions of the volume, 1 to [`PARTITIONS_MAX`] (decision 0041). More than one are still
    /// an experiment.
    pub partitions: u32,
    /// Each partition gets a worker of its own ([`introduce`]).
    pub apart: bool,
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
            published: false,
            commits_in_flight: None,
            writeback_interval: Duration::from_secs(5),
            partitions: 1,
            apart: false,
        }
    }
}

/// A handle on an open store.
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
        write!(f, "Store({:02x?})", self.whole.volume.0)
    }
}

/// The state of an open volume that all partitions read, each in its own time. Only the first
/// partition changes it, unless a field says otherwise.
pub(crate) struct Whole {
    pub(crate) volume: VolumeId,
    pub(crate) hash_key: HashKey,
    /// See [`Store::epoch`].
    pub(crate) epoch: u64,
    pub(crate) progress: Arc<Progress>,
    /// Each partition changes them.
    pub(crate) home_writes: HomeWrites,
    pub(crate) latency: Latency,
    /// Each partition changes them.
    pub(crate) reservations: Reservations,
    /// Pages that were freed and may not be used yet, of several partitions. Each changes them.
    pub(crate) pending: AtomicU64,
    /// Pages that a larger volume has gained and only the first partition's state page has.
    pub(crate) gained: AtomicU64,
    /// From the end of a read-only opening on.
    pub(crate) read_only: Flag,
    /// Set by close: background tasks end.
    pub(crate) closing: Flag,
    /// The error that made the volume read-only; any partition may meet it.
    pub(crate) failure: OnceLock<Error>,
    /// Each partition changes its own.
    pub(crate) applied: Applied,
    /// Each partition changes its own; the first one reads all.
    pub(crate) unsettled: Unsettled,
    /// The shared parts of all partitions' caches, once the volume is divided.
    pub(crate) frames: OnceLock<Vec<Arc<Frames>>>,
}

/// The state of the partition that commits, makes checkpoints and writes superblocks for all: the
/// first one.
pub(crate) struct Lead {
    pub(crate) superblock: RefCell<Superblock>,
    pub(crate) journal: Journal,
    pub(crate) barriers: Barriers,
    /// See [`crate::VolumeInfo::unsaved`].
    pub(crate) unsaved: RefCell<Option<String>>,
    /// See [`Store::predecessor`].
    pub(crate) predecessor: Cell<Option<Predecessor>>,
    /// Guards the volume where no mapping does.
    pub(crate) claim: RefCell<Option<Claim>>,
    /// At the last seal, another partition's cache made a checkpoint due.
    pub(crate) others_want_checkpoint: Cell<bool>,
}

/// The state of a partition of an open volume; only this crate sees inside.
pub struct StoreState {
    pub(crate) reactor: Rc<Reactor>,
    pub(crate) options: StoreOptions,
    pub(crate) whole: Arc<Whole>,
    /// The partition's number, from 0 on.
    pub(crate) partition: u32,
    /// Of the first partition.
    pub(crate) lead: Option<Lead>,
    /// Those of the other partitions, once the volume is divided.
    pub(crate) workers: OnceCell<Rc<dyn Workers>>,
    /// The state of the layer above: [`Store::upper`].
    pub(crate) upper: OnceCell<Weak<dyn Any>>,
    pub(crate) layout: Cell<Layout>,
    /// On a volume whose data has checksums.
    pub(crate) checksums: Option<Checksums>,
    /// The state page as of the last fold (`commit/ledgers.rs`); None with one partition.
    pub(crate) folded: Cell<Option<StatePage>>,
    /// This partition's ledger has changed since.
    pub(crate) has_to_fold: Cell<bool>,
    /// How the groups are divided.
    pub(crate) division: Cell<Division>,
    /// Of the first partition, if one worker has all: the others, which live as long.
    pub(crate) others: OnceCell<Vec<Store>>,
    pub(crate) volatile_cache: bool,
    /// DMA-able memory outside of frames.
    pub(crate) pool: Arc<BufferPool>,
    pub(crate) upcalls: Upcalls,
    pub(crate) cache: OwnedCache,
    pub(crate) frames: Arc<Frames>,
    /// The shared memory that survives the process.
    pub(crate) mapping: Option<PathBuf>,
    pub(crate) space: RefCell<Space>,
    pub(crate) changes: Changes,
    pub(crate) blobs: BlobTable,
    /// A frame finished loading, or left write-back, or a write grant came back.
    pub(crate) frame_idle: Event,
    /// Write grants may be given.
    pub(crate) grants_writes: Cell<bool>,
    pub(crate) slot_misses: SlotMisses,
    /// Loads of data under way; their frames are unavailable.
    pub(crate) loading: Cell<u32>,
    /// Of the operation that is being polled, until a transaction of it takes it.
    pub(crate) receipt: Cell<Option<Arc<dyn Receipt + Send + Sync>>>,
    pub(crate) write_back: WriteBack,
}

/// Functions of upper rooms that lower ones call.
pub(crate) struct Upcalls {
    /// Makes a number of frames evictable for a transaction, by write-back of dirty data if need
    /// be.
    pub(crate) reclaim_frames: fn(&Store, usize) -> ColdFuture<'_, Result<()>>,
    /// A transaction was applied that no caller may ever commit: starts the task that commits it
    /// later.
    pub(crate) start_write_back: fn(&Store),
    /// A checkpoint ended: starts making the checksums known of the data that it took home.
    pub(crate) start_settling: fn(&Store),
    /// Does work that another partition has asked for.
    pub(crate) perform: fn(&Store, Work) -> ColdFuture<'_, Result<()>>,
    /// The volume failed: recalls all write grants, and ends all tails.
    pub(crate) recall_grants: fn(&Store),
}

/// A future off the hot paths: boxed, so that the futures of hot paths, which are moved before they
/// run, stay small.
pub(crate) type ColdFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

impl Store {
    /// The reactor of the worker that owns the store.
    pub fn reactor(&self) -> &Rc<Reactor> {
        &self.reactor
    }

    /// The volume's id.
    pub fn volume_id(&self) -> [u8; 16] {
        self.whole.volume.0
    }

    /// Key of the directories' name hash.
    pub fn hash_key(&self) -> HashKey {
        self.whole.hash_key
    }

    /// The shared part of the page cache.
    pub fn frames(&self) -> &Arc<Frames> {
        &self.frames
    }

    /// True if the volume was opened read-only.
    pub fn is_read_only(&self) -> bool {
        self.whole.read_only.is_set()
    }

    /// Leaves the volume to its next opening, after a panic: interrupted operations keep the store
    /// from being freed.
    pub fn abandon(&self) {
        for partition in self.partitions() {
            partition.frames.abandon();
        }
        if let Some(lead) = &self.lead {
            lead.claim.borrow_mut().take();
        }
    }

    /// True while the volume is being closed. Background work of the layer above ends then.
    pub fn is_closing(&self) -> bool {
        self.whole.closing.is_set()
    }
}
