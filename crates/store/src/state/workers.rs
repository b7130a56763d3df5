//! The workers of a volume's partitions: how a partition reaches another one
//! ([0041](../../../../docs/decisions/0041-partitions.md)).
//!
//! A closure that needs a page of another partition stops ([`Stop::Partition`]), and runs again
//! with that one's worker, too. Work that may wait, a partition asks of another one's worker.

use super::{ColdFuture, Store, StoreState};
use crate::cache::Frames;
use crate::format::{BlobId, PageKind};
use crate::journal::Point;
use crate::metadata::pages::Stop;
use crate::metadata::slot_page::slot_place;
use crate::metadata::space::Run;
use crate::state::PARTITIONS_MAX;
use adit_base::{Errno, Error, Result};
use adit_reactor::Engine;
use std::any::Any;
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// Work of one partition that another one asks for. It may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Of the first partition: makes what was applied before this durable. With followers, if it
    /// may be shared.
    Commit(Point, bool),
    /// Of the first partition: makes so many writes home durable.
    Flush(u64),
    /// Of the first partition: takes home what is applied now.
    Checkpoint,
    /// Of the first partition: makes room in the open transaction.
    MakeOpenRoom,
    /// Of the first partition: looks whether another opening has written the superblock.
    LookForOthers,
    /// Brings a page into the cache, or waits for it.
    Load(u64, PageKind),
    /// Waits while a page is loaded.
    LoadEnded(u64),
    /// Makes pending frees usable that may be used.
    ReleaseFrees,
    /// Makes the maps of groups until the partition has one more.
    MakeGroups,
    /// Makes so many frames evictable.
    MakeRoom(usize),
    /// A run was taken, and no transaction recorded it.
    GiveBack(Run),
    /// Records the checksums that are settling.
    Settle,
    /// Writes dirty data back.
    WriteBack,
    /// Part of a checkpoint: writes home what is live before this LSN.
    TakeHome(u64),
    /// Part of a checkpoint: the tail has passed this LSN, or (None) it failed.
    EndHome(Option<u64>),
    /// The volume has failed.
    Failed,
}

/// The workers of a volume's partitions, as one of the partitions reaches them.
pub(crate) trait Workers {
    /// Calls the closure with another partition, which nobody else has meanwhile. False: its worker
    /// is busy; the operation steps aside, and tries again.
    fn beside(&self, own: &Store, partition: u32, closure: &mut dyn FnMut(&Store)) -> Result<bool>;

    /// Calls the closure with all partitions, which nobody else has meanwhile. False: as above. For
    /// one caller at a time.
    fn beside_all(&self, own: &Store, closure: &mut dyn FnMut(&[&Store])) -> Result<bool>;

    /// Does work in another partition.
    fn ask<'s>(&'s self, own: &'s Store, partition: u32, work: Work) -> ColdFuture<'s, Result<()>>;

    /// Begins work in another partition.
    fn begin(&self, own: &Store, partition: u32, work: Work);
}

/// One worker has all partitions.
#[derive(Default)]
pub(crate) struct Together(RefCell<Vec<Weak<StoreState>>>);

impl Together {
    /// One more partition, the next one.
    pub(crate) fn add(&self, store: &Store) {
        self.0.borrow_mut().push(Rc::downgrade(&store.0));
    }

    fn store(&self, partition: u32) -> Store {
        let store = self.0.borrow()[partition as usize].upgrade();
        Store(store.expect("the first partition has the others"))
    }
}

impl Workers for Together {
    fn beside(&self, _: &Store, partition: u32, closure: &mut dyn FnMut(&Store)) -> Result<bool> {
        closure(&self.store(partition));
        Ok(true)
    }

    fn beside_all(&self, _: &Store, closure: &mut dyn FnMut(&[&Store])) -> Result<bool> {
        let count = self.0.borrow().len() as u32;
        let stores: Vec<Store> = (0..count).map(|number| self.store(number)).collect();
        closure(&stores.iter().collect::<Vec<_>>());
        Ok(true)
    }

    fn ask<'s>(&'s self, _: &'s Store, partition: u32, work: Work) -> ColdFuture<'s, Result<()>> {
        let store = self.store(partition);
        Box::pin(async move { store.perform(work).await })
    }

    fn begin(&self, own: &Store, partition: u32, work: Work) {
        let store = self.store(partition);
        own.reactor.spawn_local(async move {
            // The work tells its own error where it matters.
            let _ = store.perform(work).await;
        });
    }
}

/// A worker's state with a partition.
pub trait HasStore: 'static {
    /// The partition.
    fn partition_store(&self) -> &Store;
}

impl HasStore for Store {
    fn partition_store(&self) -> &Store {
        self
    }
}

/// Each partition has a worker of its own.
struct Apart<S>(Arc<[Arc<Engine<S>>]>);

impl<S: HasStore> Workers for Apart<S> {
    fn beside(&self, own: &Store, partition: u32, closure: &mut dyn FnMut(&Store)) -> Result<bool> {
        let engine = &self.0[partition as usize];
        let ran = engine.beside(&own.reactor, |state| closure(state.partition_store()))?;
        Ok(ran.is_some())
    }

    fn beside_all(&self, own: &Store, closure: &mut dyn FnMut(&[&Store])) -> Result<bool> {
        let ran = Engine::beside_all(&self.0, &own.reactor, |states| {
            let mut stores = [own; PARTITIONS_MAX as usize];
            for (store, state) in stores.iter_mut().zip(states) {
                *store = state.partition_store();
            }
            closure(&stores[..states.len()]);
        })?;
        Ok(ran.is_some())
    }

    fn ask<'s>(&'s self, own: &'s Store, partition: u32, work: Work) -> ColdFuture<'s, Result<()>> {
        let engine = &self.0[partition as usize];
        let asked = engine.spawn_from(&own.reactor, move |state: &'static S| {
            state.partition_store().perform(work)
        });
        Box::pin(asked)
    }

    fn begin(&self, own: &Store, partition: u32, work: Work) {
        let engine = &self.0[partition as usize];
        drop(engine.spawn_from(&own.reactor, move |state: &'static S| {
            state.partition_store().perform(work)
        }));
    }
}

/// Has each partition use the others' workers. The first engine has the first partition, and the
/// next ones those of its seats ([`Store::seats`]), in their order. Before that nothing may be done
/// with the partitions.
///
/// The engines know each other from here on: each one is to be ended by `Engine::shutdown`, after
/// [`Store::close`] was run on the first one.
pub fn introduce<S: HasStore>(engines: &[Arc<Engine<S>>]) -> Result<()> {
    let (lead, others) = engines.split_first().expect("the first partition's engine");
    if others.is_empty() {
        return Ok(());
    }
    let all: Arc<[Arc<Engine<S>>]> = engines.into();
    let frames: Result<Vec<_>> = (engines.iter())
        .map(|engine| engine.run(|state| async { Ok(state.partition_store().frames.clone()) }))
        .collect();
    let frames = frames?;
    lead.run(|state| async move {
        state.partition_store().set_all_frames(frames);
        Ok(())
    })?;
    for (number, engine) in engines.iter().enumerate() {
        let all = all.clone();
        engine.run(|state| async move {
            let store = state.partition_store();
            assert_eq!(store.partition, number as u32, "engines in their order");
            let set = store.workers.set(Rc::new(Apart(all)));
            assert!(set.is_ok(), "partitions are introduced once");
            Ok(())
        })?;
    }
    Ok(())
}

/// A set of partitions.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Partitions(u16);

impl Partitions {
    /// All of `count`.
    pub(crate) fn all(count: u32) -> Partitions {
        Partitions((u32::MAX >> (32 - count)) as u16)
    }

    pub(crate) fn add(&mut self, partition: u32) {
        self.0 |= 1 << partition;
    }

    fn without(self, partition: u32) -> Partitions {
        Partitions(self.0 & !(1 << partition))
    }

    /// Their numbers.
    pub(crate) fn numbers(self) -> impl Iterator<Item = u32> {
        (0..PARTITIONS_MAX).filter(move |number| self.0 & 1 << number != 0)
    }

    fn first(self) -> Option<u32> {
        (self.0 != 0).then(|| self.0.trailing_zeros())
    }
}

/// The partitions that a closure may use: its own, and those beside which it runs.
#[derive(Clone, Copy)]
pub(crate) struct Owners<'s> {
    own: &'s Store,
    /// By number, where there are several.
    all: &'s [Option<&'s Store>],
}

impl<'s> Owners<'s> {
    /// Those of a volume with one.
    #[inline]
    pub(crate) fn alone(own: &'s Store) -> Owners<'s> {
        debug_assert!(own.is_alone());
        Owners { own, all: &[] }
    }

    /// A partition alone, of a volume that may have several.
    #[inline]
    pub(crate) fn within(
        own: &'s Store,
        none: &'s [Option<&'s Store>; PARTITIONS_MAX as usize],
    ) -> Owners<'s> {
        let count = match own.is_divided() {
            true => own.partitions_count() as usize,
            false => 0,
        };
        Owners {
            own,
            all: &none[..count],
        }
    }

    /// The one with this number.
    #[inline]
    pub(crate) fn of(&self, partition: u32) -> Result<&'s Store, Stop> {
        if partition == self.own.partition {
            return Ok(self.own);
        }
        match self.all.get(partition as usize) {
            Some(other) => other.ok_or(Stop::Partition(partition)),
            None => Err(unknown_worker().into()),
        }
    }

    /// The one with this number, of which something is staged.
    #[inline]
    pub(crate) fn staged(&self, partition: u32) -> &'s Store {
        let staged = self.of(partition).ok();
        staged.expect("a transaction stages in partitions that it has")
    }

    /// How many the volume has.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.all.len().max(1) as u32
    }

    /// Those that it has, beside its own.
    pub(crate) fn others(&self) -> impl Iterator<Item = &'s Store> {
        let own = self.own.partition;
        let others = self.all.iter().flatten().copied();
        others.filter(move |other| other.partition != own)
    }

    /// The number of the one that has a page of a group.
    #[inline]
    pub(crate) fn number(&self, page: u64) -> u32 {
        self.own.owner(page)
    }

    /// The one that has a page of a group.
    #[inline]
    pub(crate) fn of_page(&self, page: u64) -> Result<&'s Store, Stop> {
        self.of(self.own.owner(page))
    }
}

/// A volume that is being opened needs a page of another partition than the first.
#[cold]
fn unknown_worker() -> Error {
    let what = "find where the volume begins in the first partition: open it with one worker";
    Error::with(Errno::OPNOTSUPP, what)
}

/// The partitions that a transaction has changed, which nobody else has yet.
#[derive(Clone, Copy)]
pub struct Beside<'s>(pub(crate) Owners<'s>);

impl<'s> Beside<'s> {
    /// The one that has a blob whose slot the transaction has staged.
    #[inline]
    pub fn of(&self, id: BlobId) -> &'s Store {
        self.0.staged(self.0.number(slot_place(id.slot).0))
    }

    /// All that it has.
    pub(crate) fn all(&self) -> impl Iterator<Item = &'s Store> {
        std::iter::once(self.0.own).chain(self.0.others())
    }
}

impl std::fmt::Debug for Beside<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Beside({})", self.0.count())
    }
}

impl Store {
    /// Gives the partition its state of the layer above ([`Store::upper`]). The partition doesn't
    /// keep it alive: the layer above may have the partition.
    pub fn set_upper<T: 'static>(&self, upper: &Rc<T>) {
        let upper: Rc<dyn Any> = upper.clone();
        let set = self.upper.set(Rc::downgrade(&upper));
        assert!(set.is_ok(), "the layer above begins once");
    }

    /// The partition's state of the layer above.
    #[inline]
    pub fn upper<T: 'static>(&self) -> Rc<T> {
        let upper = self.upper.get().and_then(Weak::upgrade);
        let upper = upper.and_then(|upper| upper.downcast().ok());
        upper.expect("the layer above has begun")
    }

    /// Has the volume one partition?
    #[inline]
    pub(crate) fn is_alone(&self) -> bool {
        self.options.partitions == 1
    }

    /// The workers of the other partitions. There are several, and the volume is divided.
    pub(crate) fn workers(&self) -> &dyn Workers {
        let workers = self.workers.get();
        &**workers.expect("a divided volume has its partitions' workers")
    }

    /// The shared parts of all partitions' caches are known.
    pub(crate) fn set_all_frames(&self, frames: Vec<Arc<Frames>>) {
        let set = self.whole.frames.set(frames);
        assert!(set.is_ok(), "a volume is divided once");
    }

    /// The shared parts of all partitions' caches, to use one by one.
    #[inline]
    pub(crate) fn for_all_frames(&self, each: impl FnMut(&Arc<Frames>)) {
        match self.whole.frames.get() {
            None => [&self.frames].into_iter().for_each(each),
            Some(all) => all.iter().for_each(each),
        }
    }

    /// True once a volume that is to have several partitions has them.
    pub(crate) fn is_divided(&self) -> bool {
        self.workers.get().is_some()
    }

    /// Calls the closure with this partition and others. None: one of them is busy; the operation
    /// steps aside ([`Store::step_aside`]), and tries again.
    pub(crate) fn beside<T>(
        &self,
        others: Partitions,
        mut closure: impl FnMut(Owners<'_>) -> T,
    ) -> Result<Option<T>> {
        if !self.is_divided() {
            let none = [None; PARTITIONS_MAX as usize];
            return Ok(Some(closure(Owners::within(self, &none))));
        }
        let mut result = None;
        let stores = [None; PARTITIONS_MAX as usize];
        let mut call = |owners: Owners<'_>| result = Some(closure(owners));
        self.beside_next(others.without(self.partition), stores, &mut call)?;
        Ok(result)
    }

    fn beside_next<'a>(
        &'a self,
        others: Partitions,
        stores: [Option<&'a Store>; PARTITIONS_MAX as usize],
        call: &mut dyn FnMut(Owners<'_>),
    ) -> Result<()> {
        let Some(next) = others.first() else {
            call(Owners {
                own: self,
                all: &stores[..self.partitions_count() as usize],
            });
            return Ok(());
        };
        let mut inner = Ok(());
        self.workers().beside(self, next, &mut |other| {
            let mut more: [Option<&Store>; PARTITIONS_MAX as usize] = stores;
            more[next as usize] = Some(other);
            inner = self.beside_next(others.without(next), more, call);
        })?;
        inner
    }

    /// Another partition's worker is busy: lets others run for a moment.
    pub(crate) async fn step_aside(&self) {
        self.reactor.step_aside().await;
    }

    /// Does work in a partition, which may be this one.
    pub(crate) fn ask(&self, partition: u32, work: Work) -> ColdFuture<'_, Result<()>> {
        if partition == self.partition {
            (self.upcalls.perform)(self, work)
        } else {
            self.workers().ask(self, partition, work)
        }
    }

    /// The numbers of the partitions that there are by now.
    pub(crate) fn numbers(&self) -> std::ops::Range<u32> {
        match self.is_divided() {
            true => 0..self.partitions_count(),
            false => 0..1,
        }
    }

    /// Begins work in all other partitions.
    pub(crate) fn begin_in_others(&self, work: Work) {
        for partition in self.numbers().filter(|other| *other != self.partition) {
            self.workers().begin(self, partition, work);
        }
    }

    /// Does work in this partition that another one has asked for.
    async fn perform(&self, work: Work) -> Result<()> {
        (self.upcalls.perform)(self, work).await
    }
}
