//! Several workers in a volume: each has a partition of it
//! ([0041](../../../../docs/decisions/0041-partitions.md)).
//!
//! ```text
//!  a path ──► SharedNames::near ──► the worker of its directory ──┐ names, inodes: the partitions
//!  a file ──► OpenFile::partition ─► the worker that has the file ┘ of a transaction, for some µs
//! ```
//! Invariant: an inode in memory, its descriptors, locks and blob belong to one worker. An
//! operation that makes a descriptor does so beside that worker, and hands out an `Arc<OpenFile>`.
//! Work that waits, an operation asks of that worker ([`Fs::within`]).

use super::{Fs, Loads, LocalBoxFuture, Tables, Whole};
use crate::inode::orphans::Orphans;
use crate::inode::resolve::Base;
use crate::types::*;
use adit_base::{Error, Result};
use adit_reactor::{Engine, Reactor};
use adit_store::{BlobId, HasStore, Store, introduce};
use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

/// An engine for each partition, in their order.
pub(crate) type Engines = Arc<[Arc<Engine<Fs>>]>;

/// From here on each partition uses the others' workers.
pub(crate) fn know_each_other(engines: &[Arc<Engine<Fs>>]) -> Result<()> {
    introduce(engines)?;
    let all: Engines = engines.into();
    for engine in engines.iter().filter(|_| engines.len() > 1) {
        let all = all.clone();
        engine.run(|fs| async move {
            let set = fs.engines.set(all);
            assert!(set.is_ok(), "they know each other once");
            Ok(())
        })?;
    }
    Ok(())
}

impl HasStore for Fs {
    fn partition_store(&self) -> &Store {
        &self.store
    }
}

/// A place for a worker in a volume: one of its partitions.
pub(crate) struct Seat {
    store: adit_store::Seat,
    base: Base,
    orphans: BlobId,
    whole: Arc<Whole>,
}

impl Seat {
    /// The partition, on a worker's reactor, whose device is the volume's.
    pub(crate) fn take(self, reactor: Rc<Reactor>) -> Fs {
        let store = self.store.take(reactor);
        Fs::part(store, self.base, self.orphans, self.whole)
    }
}

impl Fs {
    /// A partition, or a volume that one worker has.
    pub(super) fn part(store: Store, base: Base, orphans: BlobId, whole: Arc<Whole>) -> Fs {
        Fs {
            tables: Tables::new(&store, &whole),
            base,
            orphans,
            whole,
            engines: OnceCell::new(),
            loads: Loads::default(),
            store,
        }
    }

    /// The seats of the other workers, if there are to be several.
    pub(crate) fn seats(&self) -> Vec<Seat> {
        let seats = self.store.seats().into_iter();
        seats
            .map(|store| Seat {
                store,
                base: self.base,
                orphans: self.orphans,
                whole: self.whole.clone(),
            })
            .collect()
    }

    /// Does work with the partition that has an inode, in its worker.
    #[inline]
    pub fn within<T: Send + 'static>(
        &self,
        id: BlobId,
        work: impl for<'f> FnOnce(&'f Fs) -> LocalBoxFuture<'f, Result<T>> + Send + 'static,
    ) -> LocalBoxFuture<'_, Result<T>> {
        match self.engine_of(id) {
            None => work(self),
            Some(engine) => Box::pin(engine.spawn_from(self.store.reactor(), work)),
        }
    }

    /// Does work in the worker that has a partition. None: there is no such partition.
    pub(crate) async fn within_partition<T: Send + 'static>(
        &self,
        partition: usize,
        work: impl for<'f> FnOnce(&'f Fs) -> LocalBoxFuture<'f, Result<T>> + Send + 'static,
    ) -> Option<Result<T>> {
        if partition == self.store.partition() as usize {
            return Some(work(self).await);
        }
        let engine = self.engines.get()?.get(partition)?;
        Some(engine.spawn_from(self.store.reactor(), work).await)
    }

    /// Does work in each worker, also after an error; returns the first one.
    pub(crate) async fn within_each(
        &self,
        work: impl for<'f> Fn(&'f Fs) -> LocalBoxFuture<'f, Result<()>> + Copy + Send + 'static,
    ) -> Result<()> {
        let mut done = work(self).await;
        for engine in self.other_engines() {
            let other = engine.spawn_from(self.store.reactor(), work);
            done = done.and(other.await);
        }
        done
    }

    /// The engines of other workers, in the order of their partitions.
    fn other_engines(&self) -> impl Iterator<Item = &Arc<Engine<Fs>>> {
        let own = self.store.partition() as usize;
        let all = self.engines.get().into_iter().flat_map(|all| all.iter());
        (all.enumerate()).filter_map(move |(number, engine)| (number != own).then_some(engine))
    }

    /// The engine that has an inode; None: this one.
    #[inline]
    fn engine_of(&self, id: BlobId) -> Option<&Arc<Engine<Fs>>> {
        let engines = self.engines.get()?;
        let number = self.store.number_of(id);
        (number != self.store.partition()).then(|| &engines[number as usize])
    }

    /// Deletes an orphan that nobody has open, as [`Orphans::reclaim`] does.
    pub(crate) async fn reclaim(&self, id: BlobId, kind: FileKind) {
        reclaim(&self.orphans(), self.engines.get(), (id, kind)).await;
    }

    /// The engines, for a task that outlives the operation.
    pub(super) fn engines(&self) -> Option<Engines> {
        self.engines.get().cloned()
    }
}

/// Deletes an orphan in the worker that has it.
pub(super) async fn reclaim(
    orphans: &Orphans,
    engines: Option<&Engines>,
    (id, kind): (BlobId, FileKind),
) {
    let number = orphans.store.number_of(id);
    match engines.filter(|_| number != orphans.store.partition()) {
        None => orphans.reclaim(id, kind).await,
        Some(engines) => {
            let engine = &engines[number as usize];
            let deleted = engine.spawn_from(orphans.store.reactor(), move |fs| async move {
                fs.orphans().reclaim(id, kind).await;
                Ok(())
            });
            // It tells its own errors; the worker has ended, or failed.
            let _: Result<(), Error> = deleted.await;
        }
    }
}
