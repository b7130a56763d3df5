//! The task table: the tasks that can be polled, by ids with generations; and wakers that are ids.
//!
//! A waker's data is the id itself: no reference counts, no allocation; a stale waker is recognised
//! by its generation. An id names its worker. So a wake-up goes
//! ```text
//!  to the ready queue      of a worker that this thread drives
//!  past the release        if this thread drives only other workers: with their deferred wake-ups
//!  to the worker's core    if this thread drives none (`workers.rs`)
//! ```
//! The first way has no atomic operation. The second makes no step outside the worker: another
//! worker's lock and memory are left alone under this one's lock.

use std::cell::Cell;
use std::mem::{self, ManuallyDrop};
use std::ptr;
use std::task::{Context, RawWaker, RawWakerVTable, Waker};

use adit_base::Error;

use super::workers::{self, Help};
use crate::reactor::Reactor;

/// A task's index in its table, in the low bits; its generation; its worker's number in the high
/// bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskId(usize);

const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 26;
const WORKER_BITS: u32 = 14;

const INDEX_MAX: usize = (1 << INDEX_BITS) - 1;
const GENERATION_MAX: u32 = (1 << GENERATION_BITS) - 1;
const GENERATION_ONE: usize = 1 << INDEX_BITS;
/// Workers of a process at a time.
pub(crate) const WORKERS_MAX: usize = 1 << WORKER_BITS;

const _: () = assert!(
    usize::BITS == INDEX_BITS + GENERATION_BITS + WORKER_BITS,
    "an id fills a waker's data"
);

impl TaskId {
    /// No task: generations start at 1.
    pub(crate) const NONE: TaskId = TaskId(0);

    /// No task of that worker.
    pub(crate) const fn none_of(worker: u32) -> TaskId {
        TaskId((worker as usize) << (INDEX_BITS + GENERATION_BITS))
    }

    /// The task of a waker of ours.
    pub(crate) fn of(waker: &Waker) -> TaskId {
        TaskId(waker.data().addr())
    }

    const fn index(self) -> usize {
        self.0 & INDEX_MAX
    }

    /// The id without its index: a worker and a generation.
    const fn stamp(self) -> usize {
        self.0 & !INDEX_MAX
    }

    const fn generation(self) -> u32 {
        (self.0 >> INDEX_BITS) as u32 & GENERATION_MAX
    }

    pub(crate) const fn worker(self) -> u32 {
        (self.0 >> (INDEX_BITS + GENERATION_BITS)) as u32
    }

    /// Whether it names a task, not only a worker.
    pub(crate) const fn has_task(self) -> bool {
        self.generation() != 0
    }
}

/// How a poll ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    /// The result is delivered; the task is gone and must not be touched.
    Done,
    Pending,
    /// It panicked: the worker will be poisoned, and the task fails with the others.
    Panicked,
}

/// The functions of a task's type. All under the worker's lock.
pub(crate) struct TaskVtable {
    pub(crate) kind: TaskKind,
    pub(crate) poll: unsafe fn(*const (), &Reactor, &mut Context<'_>) -> Polled,
    /// Delivers an error instead of a result. The future is *not* dropped: after a panic no code of
    /// operations runs.
    pub(crate) fail: unsafe fn(*const (), &Reactor, &dyn Fn() -> Error),
    /// Drops a local task's future, at the orderly end of a worker.
    pub(crate) drop_future: unsafe fn(*const (), &Reactor),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskKind {
    /// A blocking call; data is a `Node`.
    Stack,
    /// A handle's; data is a `PooledOperation`.
    Spawned,
    /// The worker's own; data is a `PooledOperation`.
    Local,
}

#[derive(Clone, Copy)]
pub(crate) struct Task {
    pub(crate) vtable: &'static TaskVtable,
    pub(crate) data: *const (),
}

struct Entry {
    /// The worker and the generation, as in the id.
    stamp: usize,
    queued: bool,
    task: Option<Task>,
}

/// The stamp of a worker's first generation.
#[cold]
fn first_stamp(worker: TaskId) -> usize {
    worker.0 + GENERATION_ONE
}

/// All tasks of a worker. Entries are recycled.
#[derive(Default)]
pub(crate) struct TaskTable {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl TaskTable {
    /// Adds a task of that worker; with `queued` the caller puts it into the ready queue.
    #[inline]
    pub(crate) fn insert(&mut self, worker: u32, task: Task, queued: bool) -> TaskId {
        let Some(index) = self.free.pop() else {
            return self.grow(worker, task, queued);
        };
        let entry = &mut self.entries[index as usize];
        entry.queued = queued;
        entry.task = Some(task);
        TaskId(entry.stamp | index as usize)
    }

    #[cold]
    fn grow(&mut self, worker: u32, task: Task, queued: bool) -> TaskId {
        assert!(self.entries.len() <= INDEX_MAX, "fewer than 2^24 tasks");
        let index = self.entries.len() as u32;
        let stamp = first_stamp(TaskId::none_of(worker));
        self.entries.push(Entry {
            stamp,
            queued,
            task: Some(task),
        });
        // So that no later removal allocates.
        self.free.reserve(self.entries.len());
        TaskId(stamp | index as usize)
    }

    fn entry(&mut self, id: TaskId) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(id.index())?;
        (entry.stamp == id.stamp() && entry.task.is_some()).then_some(entry)
    }

    /// The task, if it still exists; from now on it can be woken again.
    pub(crate) fn begin_poll(&mut self, id: TaskId) -> Option<Task> {
        let entry = self.entry(id)?;
        entry.queued = false;
        entry.task
    }

    /// The task, if it still exists.
    pub(crate) fn get(&mut self, id: TaskId) -> Option<Task> {
        self.entry(id)?.task
    }

    /// Whether the caller is to put it into the ready queue: it exists and isn't there yet.
    pub(crate) fn mark_queued(&mut self, id: TaskId) -> bool {
        self.entry(id)
            .is_some_and(|entry| !mem::replace(&mut entry.queued, true))
    }

    /// Removes a task.
    #[inline]
    pub(crate) fn remove(&mut self, id: TaskId) {
        let entry = &mut self.entries[id.index()];
        assert!(entry.stamp == id.stamp() && entry.task.is_some());
        entry.task = None;
        entry.stamp = match TaskId(id.stamp() + GENERATION_ONE) {
            next if next.has_task() => next.stamp(),
            // The generation has gone over into the worker's bits.
            _ => first_stamp(TaskId::none_of(id.worker())),
        };
        self.free.push(id.index() as u32);
    }

    /// Any task for which `pick` is true.
    pub(crate) fn find(&self, pick: impl Fn(&Task) -> bool) -> Option<(TaskId, Task)> {
        self.entries.iter().enumerate().find_map(|(index, entry)| {
            let task = entry.task.filter(|task| pick(task))?;
            Some((TaskId(entry.stamp | index), task))
        })
    }
}

adit_base::sync::local! {
    /// The worker that this thread drives: it holds that worker's lock. The innermost one, if it
    /// visits another worker.
    static DRIVING: Cell<*const Reactor> = const { Cell::new(ptr::null()) };
}

adit_base::sync::local! {
    /// The innermost visit of this thread.
    static VISIT: Cell<*const Visit> = const { Cell::new(ptr::null()) };
}

/// Marks this thread as the one that drives a worker.
pub(crate) struct Driving(*const Reactor);

impl Driving {
    #[inline]
    pub(crate) fn enter(reactor: &Reactor) -> Driving {
        Driving(DRIVING.with(|driving| driving.replace(reactor)))
    }

    /// Whether this thread drives that worker.
    pub(crate) fn is_of(reactor: &Reactor) -> bool {
        Driving::find(|driven| ptr::eq(driven, reactor)).is_some()
    }

    /// Runs the body as the driver of one more worker. The body releases that worker's lock as its
    /// last step.
    pub(crate) fn visit<T>(reactor: &Reactor, body: impl FnOnce() -> T) -> T {
        let visit = Visit {
            outer: DRIVING.with(|driving| driving.replace(reactor)),
            before: VISIT.with(Cell::get),
        };
        VISIT.with(|innermost| innermost.set(&visit));
        let _end = EndVisit(&visit);
        body()
    }

    /// Of the workers that this thread drives, the innermost one for which `pick` is true.
    fn find<'d>(pick: impl Fn(*const Reactor) -> bool) -> Option<&'d Reactor> {
        let mut driven = DRIVING.with(Cell::get);
        let mut visit = VISIT.with(Cell::get);
        loop {
            if !driven.is_null() && pick(driven) {
                // SAFETY: this thread holds that worker's lock, so the reactor exists.
                return unsafe { driven.as_ref() };
            }
            // SAFETY: in a frame of `visit` of this thread, which resets it before it ends.
            let next = unsafe { visit.as_ref() }?;
            (driven, visit) = (next.outer, next.before);
        }
    }
}

/// A worker's lock was taken beside another one's.
struct Visit {
    /// The worker that the thread drove before.
    outer: *const Reactor,
    before: *const Visit,
}

struct EndVisit<'v>(&'v Visit);

impl Drop for EndVisit<'_> {
    fn drop(&mut self) {
        DRIVING.with(|driving| driving.set(self.0.outer));
        VISIT.with(|innermost| innermost.set(self.0.before));
    }
}

impl Drop for Driving {
    #[inline]
    fn drop(&mut self) {
        DRIVING.with(|driving| driving.set(self.0));
    }
}

static WAKER: RawWakerVTable =
    RawWakerVTable::new(|data| RawWaker::new(data, &WAKER), wake, wake, |_| {});

/// A waker of this task; it needs no drop.
#[inline]
pub(crate) fn waker(id: TaskId) -> ManuallyDrop<Waker> {
    ManuallyDrop::new(owned_waker(id))
}

/// A waker of this task. Without a task in the id, it notifies the worker.
#[inline]
pub(crate) fn owned_waker(id: TaskId) -> Waker {
    let data = ptr::without_provenance::<()>(id.0);
    // SAFETY: every function of the vtable takes the data as a number, which `wake` looks up.
    unsafe { Waker::from_raw(RawWaker::new(data, &WAKER)) }
}

/// Whether it wakes a task of some worker, and no other executor's.
pub(crate) fn is_of_a_worker(waker: &Waker) -> bool {
    ptr::eq(waker.vtable(), &WAKER)
}

fn wake(data: *const ()) {
    let id = TaskId(data.addr());
    // SAFETY: set only while this thread holds the worker's lock, so the reactor exists.
    let driven = unsafe { DRIVING.with(Cell::get).as_ref() };
    match driven {
        Some(reactor) if reactor.worker() == id.worker() => reactor.wake(id),
        _ => wake_elsewhere(id, driven),
    }
}

#[cold]
fn wake_elsewhere(id: TaskId, driven: Option<&Reactor>) {
    // SAFETY: `find` asks only for workers whose locks this thread holds.
    let is_its = |reactor: *const Reactor| unsafe { (*reactor).worker() } == id.worker();
    if let Some(visited_from) = Driving::find(is_its) {
        return visited_from.wake(id);
    }
    match driven {
        Some(reactor) => reactor.wake_after_release(owned_waker(id)),
        None => {
            if let Some(worker) = workers::find(id.worker()) {
                worker.receive(id, Help::IfOutside);
            }
        }
    }
}

/// Inside an operation: notifies that worker after the release of the one that this thread drives.
/// False if it drives none.
pub(crate) fn notify_after_release(worker: u32) -> bool {
    // SAFETY: as in `wake`.
    let driven = unsafe { DRIVING.with(Cell::get).as_ref() };
    driven.is_some_and(|reactor| {
        reactor.wake_after_release(owned_waker(TaskId::none_of(worker)));
        true
    })
}
