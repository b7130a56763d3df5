//! An open volume.
//!
//! [`Fs`] is the worker state of `Engine<Fs>`: single-owner, so its tables are in cells; no borrow
//! is held across an await. It keeps only open files in memory.
//!
//! `start`: format and open; `open_inodes`: from a descriptor to its inode; `stage`: the two halves
//! of operations.

mod open_inodes;
mod stage;
mod start;

pub use stage::Stage;
pub(crate) use stage::{Before, Effect};

use crate::inode::orphans::Orphans;
use crate::inode::resolve::Base;
use crate::open::descriptors::Descriptors;
use crate::open::inode::InodeTable;
use crate::open::tail::Tails;
use crate::open::waits::Waits;
use crate::types::*;
use adit_base::{PAGE_BYTES, Result};
use adit_store::{BlobId, MappedMemory, Store};
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;

/// A rare or slow step, boxed: the futures of hot paths are moved before they run, and stay small
/// without it.
pub(crate) type LocalBoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Makes the memory of a file's shared mappings.
type NodeEnded = Box<dyn Fn(BlobId) + Send>;
type MakeMemory = Box<dyn Fn(BlobId) -> Result<MappedMemory> + Send>;

/// An open volume: the worker state of `Engine<Fs>`. Every operation takes effect completely or not
/// at all, unless it says otherwise, and obeys the permissions of its caller ([`At`],
/// [`OpenFile::credentials`](crate::open::file::OpenFile::credentials)).
pub struct Fs {
    pub(crate) store: Store,
    pub(crate) base: Base,
    orphans: BlobId,
    pub(crate) tables: Rc<Tables>,
    /// The owners that wait for locks of byte ranges.
    pub(crate) waits: Waits,
    pub(crate) access_times: Rc<Cell<AccessTimes>>,
    /// Orphans of earlier openings are kept, and can be reopened.
    pub(crate) keeps_orphans: Cell<bool>,
    /// Makes the memory of shared mappings; None: without a name.
    pub(crate) mapped_memory: RefCell<Option<MakeMemory>>,
    /// Told of pipes and sockets that lose their last name.
    pub(crate) node_ended: RefCell<Option<NodeEnded>>,
    /// Counts new inodes, which are given to partitions in turn.
    pub(crate) turn: Cell<u32>,
}

/// The memory of a partition's inodes. An operation of another partition finds it beside the
/// partition's blobs ([`Part`]).
pub(crate) struct Tables {
    pub(crate) inodes: RefCell<InodeTable>,
    pub(crate) descriptors: RefCell<Descriptors>,
    /// Of the files to which a program appends in memory.
    pub(crate) tails: Rc<Tails>,
}

/// A partition, for an operation that may run in another one.
pub(crate) struct Part<'s> {
    pub(crate) store: &'s Store,
    pub(crate) tables: Rc<Tables>,
}

impl<'s> Part<'s> {
    #[inline]
    pub(crate) fn new(store: &'s Store) -> Part<'s> {
        let tables = store.upper();
        Part { store, tables }
    }
}

impl std::fmt::Debug for Fs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fs({:?})", self.store)
    }
}

impl Drop for Fs {
    fn drop(&mut self) {
        self.store.abandon();
    }
}

impl Fs {
    /// The orphan directory.
    pub(crate) fn orphans(&self) -> Orphans {
        Orphans {
            store: self.store.clone(),
            directory: self.orphans,
            hash_key: self.base.hash_key,
        }
    }

    /// The blobs under the file system.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The root directory.
    pub fn root(&self) -> BlobId {
        self.base.root
    }

    /// True while orphans of earlier openings are kept ([`Fs::open_with_orphans`]). Then no program
    /// has used the volume yet.
    pub fn keeps_orphans(&self) -> bool {
        self.keeps_orphans.get()
    }

    /// From here on the memory of shared mappings is made so, for a server.
    pub fn make_mapped_memory_with(
        &self,
        make: impl Fn(BlobId) -> Result<MappedMemory> + Send + 'static,
    ) {
        *self.mapped_memory.borrow_mut() = Some(Box::new(make));
    }

    /// From here on `ended` is called for each pipe and socket that loses its last name, in an
    /// operation: it must neither wait nor use the volume.
    pub fn tell_ended_nodes(&self, ended: impl Fn(BlobId) + Send + 'static) {
        *self.node_ended.borrow_mut() = Some(Box::new(ended));
    }

    /// True if a server has the volume, or had it in this opening.
    pub fn is_served(&self) -> bool {
        self.mapped_memory.borrow().is_some()
    }

    /// Sets when reads change times of access; the default is never. It holds for files that are
    /// opened later.
    pub fn set_access_times(&self, policy: AccessTimes) {
        self.access_times.set(policy);
        if policy != AccessTimes::Never {
            // Each write then makes the next read change the time of access.
            for store in self.store.partitions() {
                store.grant_no_writes();
            }
        }
    }

    /// Makes everything durable and marks the volume clean. Open files become unusable.
    pub async fn close_volume(&self) -> Result<()> {
        // A tail that can't be written stays for the next opening, and the volume stays unclean.
        let ended = self.tables.tails.end_all().await;
        let flushed = self.flush_all_mapped().await;
        if ended.is_err() {
            self.store.sync_all().await?;
            return ended;
        }
        self.store.close().await?;
        flushed
    }

    /// Makes everything durable.
    pub async fn syncfs(&self) -> Result<()> {
        let absorbed = self.tables.tails.absorb_all().await;
        let flushed = absorbed.and(self.flush_all_mapped().await);
        self.store.sync_all().await?;
        flushed
    }

    /// Space and identity.
    pub async fn statfs(&self) -> Result<StatFs> {
        let info = self.store.info().await?;
        debug_assert!(info.usable_bytes <= info.free_bytes);
        let available_bytes = match info.failure {
            Some(_) => 0,
            None => info.usable_bytes,
        };
        Ok(StatFs {
            block_bytes: PAGE_BYTES as u32,
            total_bytes: info.volume_bytes - info.journal_bytes,
            free_bytes: info.free_bytes,
            available_bytes,
            inodes: info.blobs,
            // Each needs a slot of 512 bytes and nothing else.
            free_inodes: available_bytes / 512,
            name_bytes_max: NAME_BYTES_MAX as u32,
            volume_id: info.volume_id,
            read_only: self.store.is_read_only() || info.failure.is_some(),
        })
    }
}
