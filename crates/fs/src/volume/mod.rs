//! An open volume.
//!
//! [`Fs`] is the worker state of `Engine<Fs>`: single-owner, so its tables are in cells; no borrow
//! is held across an await. It keeps only open files in memory.
//!
//! `start`: format and open; `workers`: several workers in a volume; `whole`: the state that all of
//! them read; `part`: the memory of a partition's inodes; `placement`: the partition of a new one;
//! `open_inodes`: from a descriptor to its inode; `stage`: the two halves of operations.

mod open_inodes;
mod part;
mod placement;
mod stage;
mod start;
mod whole;
mod workers;

pub(crate) use part::{Part, Tables};
use placement::{Loads, OwnTurns};
pub use stage::Stage;
pub(crate) use stage::{Before, Effect};

pub(crate) use whole::{Whole, lock};
pub(crate) use workers::{Engines, know_each_other};

use crate::inode::orphans::Orphans;
use crate::inode::resolve::Base;
use crate::types::*;
use adit_base::{PAGE_BYTES, Result};
use adit_store::{BlobId, MappedMemory, Store};
use std::cell::OnceCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

/// A rare or slow step, boxed: the futures of hot paths are moved before they run, and stay small
/// without it.
pub type LocalBoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// An open volume, or a partition of one: the worker state of `Engine<Fs>`. Every operation takes
/// effect completely or not at all, unless it says otherwise, and obeys the permissions of its
/// caller ([`At`], [`OpenFile::credentials`](crate::open::file::OpenFile::credentials)).
///
/// Where partitions have a worker each ([`Workers`]), an operation on an open file is one of the
/// partition that has the file; any worker does any other operation.
pub struct Fs {
    pub(crate) store: Store,
    pub(crate) base: Base,
    orphans: BlobId,
    pub(crate) whole: Arc<Whole>,
    pub(crate) tables: Rc<Tables>,
    /// The engines of all partitions, if each has one.
    engines: OnceCell<Engines>,
    loads: Loads,
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
        self.whole.keeps_orphans()
    }

    /// From here on the memory of shared mappings is made so, for a server.
    pub fn make_mapped_memory_with(
        &self,
        make: impl Fn(BlobId) -> Result<MappedMemory> + Send + 'static,
    ) {
        *lock(&self.whole.mapped_memory) = Some(Box::new(make));
    }

    /// From here on `ended` is called for each pipe and socket that loses its last name, in an
    /// operation: it must neither wait nor use the volume.
    pub fn tell_ended_nodes(&self, ended: impl Fn(BlobId) + Send + 'static) {
        *lock(&self.whole.node_ended) = Some(Box::new(ended));
    }

    /// True if a server has the volume, or had it in this opening.
    pub fn is_served(&self) -> bool {
        lock(&self.whole.mapped_memory).is_some()
    }

    /// Sets when reads change times of access; the default is never. It holds for files that are
    /// opened later.
    pub async fn set_access_times(&self, policy: AccessTimes) -> Result<()> {
        self.whole.access_times.set(policy);
        if policy == AccessTimes::Never {
            return Ok(());
        }
        // Each write then makes the next read change the time of access.
        self.within_each(|fs| {
            Box::pin(async move {
                for store in fs.store.partitions() {
                    store.grant_no_writes();
                }
                Ok(())
            })
        })
        .await
    }

    /// Makes everything durable and marks the volume clean. Open files become unusable. Of several
    /// workers, the first one is to be called.
    pub async fn close_volume(&self) -> Result<()> {
        // A tail that can't be written stays for the next opening, and the volume stays unclean.
        let ended = self.within_each(|fs| Box::pin(fs.tables.tails.end_all()));
        let ended = ended.await;
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
        let absorbed = self.absorb_all().await;
        let flushed = absorbed.and(self.flush_all_mapped().await);
        self.store.sync_all().await?;
        flushed
    }

    /// All files have the bytes that were appended to their tails before this call; the first
    /// error.
    pub(crate) async fn absorb_all(&self) -> Result<()> {
        self.within_each(|fs| Box::pin(fs.tables.tails.absorb_all()))
            .await
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
