//! Operations in two halves, so that several can be one transaction.
//!
//! ```text
//!   begin the write ──► admit ──► stage, stage … ──► apply ──► finish
//!      ▲                  ▲            │
//!      │                  └── abort ◄──┤ for a page, for room
//!      └── prepare ◄─────── abort ◄────┘ for what has to be done before
//! ```
//!
//! The first half of an operation is a method of [`Stage`]. It checks the operation against the
//! changes staged before, asks for the pages that it may stage, stages its changes, and notes its
//! effects. It may run again from the start, so it has no other effect. An error aborts the
//! transaction with all that was staged. The second half, finish, is [`Fs::finish_now`], and
//! [`Fs::finish_later`] for what waits.
//!
//! Invariants:
//! 1. Nothing is awaited between the first stage and the end of `finish_now`: the next operation
//!    finds memory and volume in agreement.
//! 2. Finish loses nothing if it fails, or if the process dies before it: inodes to delete are
//!    among the orphans.
//! 3. No task waits for a blob's lock while it holds another's: a write releases its blob before
//!    `prepare`, and before `finish_later` deletes anything.

use super::{Fs, LocalBoxFuture, OwnTurns, Part, lock};
use crate::types::*;
use adit_base::clock::Timestamp;
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Result};
use adit_store::pages::Stop;
use adit_store::{AtomicRange, AtomicWrite, Beside, Blob, BlobId, SyncKind, Transaction};
use smallvec::SmallVec;
use std::cell::Cell;
use std::rc::Rc;

/// The transaction of one or several operations, and its effects.
pub struct Stage<'a, 's> {
    pub(crate) fs: &'a Fs,
    pub(crate) transaction: &'a mut Transaction<'s>,
    /// One time for all that changes.
    pub(crate) now: Timestamp,
    /// The file that is written, too, and locked.
    written: Option<BlobId>,
    /// Done before this transaction.
    done: &'a [Before],
    /// To do before the next attempt.
    missing: &'a Cell<Option<Before>>,
    effects: Effects,
    turns: &'a OwnTurns,
    /// Inodes that it has made.
    made: u32,
}

/// Work in other transactions before that of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Before {
    /// Bytes that were appended in memory are in the file.
    Absorbed(BlobId),
    /// The data of a file is home.
    Home(BlobId),
}

type Effects = SmallVec<[Effect; 3]>;

/// Work that is left once a transaction is applied.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    /// The inode has a new time of change.
    Changed(BlobId),
    /// Its time of access was set: drop that of earlier cached reads.
    AccessedSet(BlobId),
    /// Its time of modification was set: drop that of earlier cached writes.
    ModifiedSet(BlobId),
    /// The paths below a directory are others.
    DirectoryMoved,
    /// It lost its last name, and is gone.
    Destroyed(BlobId, FileKind),
    /// It lost its last name, and is among the orphans.
    Orphaned(BlobId, FileKind),
}

impl<'s> Stage<'_, 's> {
    /// The partition that has an inode.
    #[inline]
    pub(crate) fn part(&self, id: BlobId) -> Result<Part<'s>, Stop> {
        Ok(self.fs.part_of(self.transaction.partition_of(id)?))
    }

    /// The partition for an inode that is to be made.
    pub(crate) fn place_for(&mut self, kind: FileKind, parent: BlobId) -> u32 {
        if self.fs.store.partitions_count() == 1 {
            return 0;
        }
        let nth = self.made;
        self.made += 1;
        (self.fs).partition_for(kind, parent, self.turns, nth)
    }

    /// Notes an effect.
    pub(crate) fn then(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Stops the first time, to do `before`. A file that is written in the same transaction is
    /// locked, and has neither a tail nor dirty data.
    pub(crate) fn after(&self, before: Before) -> Result<(), Stop> {
        let (Before::Absorbed(id) | Before::Home(id)) = before;
        if self.written == Some(id) || self.done.contains(&before) {
            return Ok(());
        }
        self.missing.set(Some(before));
        Err(Errno::AGAIN.into())
    }
}

impl Fs {
    /// Runs operations as one transaction: others see all of them or none, and so it is after a
    /// crash. They are durable with the next commit.
    pub fn transact<T>(
        &self,
        operations: impl FnMut(&mut Stage<'_, '_>) -> Result<T, Stop>,
    ) -> impl Future<Output = Result<T>> {
        self.transact_writing(None, operations)
    }

    /// Runs a transaction like [`Fs::transact`], staged after an atomic write.
    pub(crate) async fn transact_writing<T>(
        &self,
        write: Option<(&Rc<Blob>, &[AtomicRange<'_>])>,
        operations: impl FnMut(&mut Stage<'_, '_>) -> Result<T, Stop>,
    ) -> Result<T> {
        self.transact_then(write, operations, |answer, _| answer)
            .await
    }

    /// Runs a transaction like [`Fs::transact_writing`]. Once it is applied, and before anything
    /// else is done in the partitions that it has changed, `then` makes the result of the answer.
    pub(crate) async fn transact_then<T, U>(
        &self,
        write: Option<(&Rc<Blob>, &[AtomicRange<'_>])>,
        mut operations: impl FnMut(&mut Stage<'_, '_>) -> Result<T, Stop>,
        mut then: impl FnMut(T, Beside<'_>) -> U,
    ) -> Result<U> {
        let now = Timestamp::now();
        // The pages that are written have their frames there.
        let store = write.map_or(&self.store, |(blob, _)| self.store.of(blob.id));
        let mut done: SmallVec<[Before; 1]> = SmallVec::new();
        let turns = OwnTurns::default();
        loop {
            let missing = Cell::new(None);
            let write = match write {
                Some((blob, ranges)) => {
                    let begin = store.begin_atomic(blob, ranges);
                    let begin: LocalBoxFuture<'_, _> = Box::pin(begin);
                    begin.await?.map(Box::new)
                }
                None => None,
            };
            // In a block of its own: it must not live across what is awaited.
            let before = {
                let stage = |transaction: &mut Transaction<'_>| {
                    let mut stage = Stage {
                        fs: self,
                        transaction,
                        now,
                        written: write.as_deref().map(AtomicWrite::blob_id),
                        done: &done,
                        missing: &missing,
                        effects: Effects::new(),
                        turns: &turns,
                        made: 0,
                    };
                    let answer = operations(&mut stage)?;
                    Ok((answer, stage.effects))
                };
                let applied = |(answer, mut effects): (T, Effects), beside: Beside<'_>| {
                    let written = write.as_deref().map_or(Ok(()), AtomicWrite::finish);
                    effects.retain(|effect| self.finish_now(*effect, beside));
                    (then(answer, beside), written, effects)
                };
                let staged = store.transact_writing(write.as_deref(), stage, applied);
                let staged = staged.await;
                let Some(before) = missing.get() else {
                    let (answer, written, left) = staged?;
                    drop(write);
                    if left.is_empty() {
                        return written.map(|()| answer);
                    }
                    let (answer, last) = (Box::new(answer), self.finish_later(left));
                    last.await;
                    return written.map(|()| *answer);
                };
                before
            };
            assert!(!done.contains(&before), "it was done before");
            drop(write);
            let prepare: LocalBoxFuture<'_, _> = Box::pin(self.prepare(before));
            prepare.await?;
            done.push(before);
        }
    }

    async fn prepare(&self, before: Before) -> Result<()> {
        if planted(Bug::LookTakesNumber) {
            self.store.transact(|_| Ok(())).await?;
        }
        match before {
            Before::Absorbed(id) => self.absorb(id).await,
            Before::Home(id) => self.within(id, move |fs| Box::pin(fs.take_home(id))).await,
        }
    }

    /// The data of a file is home.
    async fn take_home(&self, id: BlobId) -> Result<()> {
        self.tables.tails.absorb_id(id).await?;
        let store = self.store.of(id);
        match store.blob_resident(id) {
            Some(blob) => store.sync(&blob, SyncKind::Data).await,
            None => Ok(()),
        }
    }

    /// Bytes that were appended to the inode's tail before this call are in the file.
    pub(crate) fn absorb(&self, id: BlobId) -> LocalBoxFuture<'_, Result<()>> {
        self.within(id, move |fs| Box::pin(fs.tables.tails.absorb_id(id)))
    }

    /// The rest of effects, which waits. The caller holds no blob locked.
    fn finish_later(&self, effects: Effects) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            for effect in effects {
                if let Effect::Orphaned(id, kind) = effect {
                    self.reclaim(id, kind).await;
                }
            }
        })
    }

    /// Does an effect of a transaction that was just applied, as far as it needs no other
    /// transaction; true if a part is left.
    fn finish_now(&self, effect: Effect, beside: Beside<'_>) -> bool {
        let part = |id| self.part_of(beside.of(id));
        let with_resident = |id, f: &dyn Fn(&Blob)| {
            if let Some(blob) = part(id).store.blob_resident(id) {
                f(&blob);
            }
        };
        match effect {
            Effect::Changed(id) => with_resident(id, &|blob| self.note_change(blob)),
            Effect::AccessedSet(id) => with_resident(id, &|blob| blob.forget_accessed()),
            Effect::ModifiedSet(id) => with_resident(id, &|blob| blob.forget_modified()),
            // It changed the paths of any number of inodes.
            Effect::DirectoryMoved => self.store.bind_syncs(self.store.commit_point()),
            Effect::Destroyed(id, kind) => {
                let is_open = part(id).tables.inodes.borrow().contains_key(&id.slot);
                assert!(!is_open, "nothing was awaited since it was found closed");
                self.end_node(id, kind);
            }
            Effect::Orphaned(id, kind) => {
                self.end_node(id, kind);
                let part = part(id);
                let inodes = part.tables.inodes.borrow();
                let Some(inode) = inodes.get(&id.slot).filter(|inode| inode.id == id) else {
                    return true;
                };
                inode.unlinked.set(true);
            }
        }
        false
    }

    /// A pipe or socket has lost its last name: releases its counterpart on the host.
    fn end_node(&self, id: BlobId, kind: FileKind) {
        if let FileKind::Fifo | FileKind::Socket = kind
            && let Some(ended) = &*lock(&self.whole.node_ended)
        {
            ended(id);
        }
    }

    /// Content or attributes have a new time: the next read changes the time of access again.
    pub(crate) fn note_change(&self, blob: &Blob) {
        self.whole.access_times.note_change(blob);
    }
}
