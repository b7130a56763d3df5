//! fsync, fdatasync and syncfs.
//!
//! ```text
//!   Store::sync ─► write_back_to_sync (write_back.rs)  dirty data home, or into the transaction
//!               ─► commit_shared     (commit/group.rs) seal ─► flush home writes ─► write the journal
//!               ─► flush_home        (state/barriers.rs) what was written home and needs no commit
//! ```

use crate::blob::Blob;
use crate::cache::Versions;
use crate::journal::Point;
use crate::metadata::extents::MapEntry;
use crate::state::{Store, Work};
use adit_base::simulation::{Bug, planted};
use adit_base::{PAGE_BYTES, Result};
use std::rc::Rc;

/// The state that a sync makes durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncKind {
    /// `fdatasync`: data, and the metadata to read it.
    Data,
    /// `fsync`: the times too.
    All,
}

impl Store {
    /// Makes a blob's data, size and map durable (not the names that lead to it).
    pub async fn sync(&self, blob: &Rc<Blob>, kind: SyncKind) -> Result<()> {
        if self.whole.read_only.is_set() {
            return Ok(());
        }
        if self.owes_write_back(blob, kind) {
            let _map = self.lock_map(blob).await;
            self.write_back_to_sync(blob, kind == SyncKind::All).await?;
        } else {
            self.note_granted_writes(blob);
        }
        let written = blob.home_sequence.get();
        self.write_back.dirty.settle(blob);
        self.commit_shared(blob.point.get()).await?;
        if planted(Bug::SkippedFlush) {
            return Ok(());
        }
        self.flush_home(written).await
    }

    /// Whether a sync has to write something back. (To flush direct writes under a write grant, or
    /// nothing, it recalls no grant.)
    fn owes_write_back(&self, blob: &Blob, kind: SyncKind) -> bool {
        // Locked: a write-back is in flight, which an fsync may not overtake.
        let locked = blob.map_lock.is_locked_exclusively();
        let times = kind == SyncKind::All && (blob.has_new_times() || blob.granted.get());
        let behind = blob.size() != blob.slot.borrow().size;
        locked || times || behind || !blob.dirty.borrow().is_empty()
    }

    /// If nothing of the blob is left to sync, the next sync is a thread's. The caller has synced it
    /// and has reported all errors of the file.
    pub fn settle_unsynced(&self, blob: &Blob) {
        let Some(unsynced) = blob.shared.unsynced() else {
            return;
        };
        let capabilities = self.reactor.device().capabilities();
        if !self.overwrites_in_place()
            || !capabilities.inline
            || !self.whole.progress.is_durable(blob.point.get())
            || self.owes_write_back(blob, SyncKind::Data)
        {
            return;
        }
        if let Some((_, MapEntry::Extent(mut extent))) = blob.map_hint.get()
            && !extent.unwritten
        {
            let valid_pages = blob.slot.borrow().valid_size / PAGE_BYTES as u64;
            let end = valid_pages.min(extent.end());
            extent.pages = end.saturating_sub(extent.logical.into()) as u32;
            if extent.pages > 0 {
                unsynced.written.publish(extent);
            }
        }
        unsynced.settle();
    }

    /// Ends a sync of which a thread has taken the pages home under a write grant
    /// ([`BlobShared::try_sync`](crate::BlobShared::try_sync)).
    pub async fn flush_granted(&self, blob: &Rc<Blob>) -> Result<()> {
        self.note_granted_writes(blob);
        self.flush_home(blob.home_sequence.get()).await?;
        self.writable()
    }

    /// Takes a blob's dirty data to the device. Only a sync makes it durable.
    pub async fn write_back(&self, blob: &Rc<Blob>) -> Result<()> {
        let _map = self.lock_map(blob).await;
        self.write_back_locked(blob, false).await
    }

    /// Starts taking a blob's dirty data to the device, in the background.
    pub fn start_write_back(&self, blob: &Rc<Blob>) {
        if self.whole.read_only.is_set() || !blob.is_dirty() {
            return;
        }
        let (store, blob) = (self.clone(), blob.clone());
        self.reactor.spawn_local(async move {
            if let Some(_map) = store.try_lock_map(&blob).await {
                let _ = store.write_back_locked(&blob, false).await; // fsync reports the error
            }
        });
    }

    /// Makes everything durable: all data, all metadata.
    pub async fn sync_all(&self) -> Result<()> {
        if self.whole.read_only.is_set() {
            return Ok(());
        }
        let mut written = Ok(());
        for partition in self.numbers() {
            written = written.and(self.ask(partition, Work::WriteBack).await);
        }
        self.commit_all().await?;
        self.flush_home(self.whole.home_writes.written()).await?;
        written
    }

    /// Takes home everything that was applied so far and empties the journal of it, as happens by
    /// itself when the ring fills up: recovery then has little to do.
    pub async fn checkpoint(&self) -> Result<()> {
        self.writable()?;
        self.commit_all().await?;
        self.checkpoint_all().await
    }

    /// The place in the order of transactions after everything applied so far.
    pub fn commit_point(&self) -> Point {
        self.whole.progress.point()
    }

    /// The present state of the metadata in all partitions. None: it is being changed by another
    /// thread.
    pub fn version(&self) -> Option<Versions> {
        let mut versions = Versions::default();
        let mut is_still = true;
        self.for_all_frames(|frames| match frames.version() {
            Some(version) => versions.0.push(version),
            None => is_still = false,
        });
        is_still.then_some(versions)
    }

    /// True if this is still the state. The journal's point would not tell: transactions that share
    /// a commit have the same.
    pub fn is_at(&self, versions: &Versions) -> bool {
        let mut then = versions.0.iter();
        let mut is_still = true;
        self.for_all_frames(|frames| {
            is_still &= then.next().is_some_and(|version| frames.is_at(*version));
        });
        is_still
    }

    /// Makes everything applied before `point` durable; free if it is already.
    pub async fn commit_to(&self, point: Point) -> Result<()> {
        if self.whole.read_only.is_set() {
            return Ok(());
        }
        self.commit_shared(point).await
    }

    /// Before any sync returns, in any partition, everything applied before `point` is durable.
    pub fn bind_syncs(&self, point: Point) {
        self.for_all_frames(|frames| frames.bind_syncs(point.0));
    }

    /// Makes durable what every sync needs.
    pub async fn commit_for_syncs(&self) -> Result<()> {
        self.commit_to(Point(self.frames.syncs_need())).await
    }

    /// Makes everything applied so far durable.
    pub async fn commit(&self) -> Result<()> {
        self.commit_to(self.commit_point()).await
    }
}
