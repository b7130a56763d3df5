//! The task table: the tasks that can be polled, by ids with generations; and wakers that are ids.
//!
//! A waker's data is the id itself: no reference counts, no allocation; a stale waker is recognised
//! by its generation. Waking appends the id to the ready queue of the worker that *this thread*
//! drives. A wake on any other thread is a bug (only the worker's own futures may keep a waker). It
//! is logged and ignored, since no worker is known that it could be given to.

use std::cell::Cell;
use std::mem::{self, ManuallyDrop};
use std::ptr;
use std::task::{Context, RawWaker, RawWakerVTable, Waker};

use adit_base::Error;

use crate::reactor::Reactor;

/// Index in the low half, generation in the high half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskId(usize);

const _: () = assert!(usize::BITS == 64, "a task id needs 64 bits");

impl TaskId {
    /// No task: generations start at 1.
    pub(crate) const NONE: TaskId = TaskId(0);

    /// The task of a waker of ours.
    pub(crate) fn of(waker: &Waker) -> TaskId {
        TaskId(waker.data().addr())
    }

    const fn new(index: u32, generation: u32) -> Self {
        TaskId(index as usize | (generation as usize) << 32)
    }
    const fn index(self) -> usize {
        self.0 & u32::MAX as usize
    }
    const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
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
    generation: u32,
    queued: bool,
    task: Option<Task>,
}

/// All tasks of a worker. Entries are recycled.
#[derive(Default)]
pub(crate) struct TaskTable {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl TaskTable {
    /// Adds a task; with `queued` the caller puts it into the ready queue.
    #[inline]
    pub(crate) fn insert(&mut self, task: Task, queued: bool) -> TaskId {
        let Some(index) = self.free.pop() else {
            return self.grow(task, queued);
        };
        let entry = &mut self.entries[index as usize];
        entry.queued = queued;
        entry.task = Some(task);
        TaskId::new(index, entry.generation)
    }

    #[cold]
    fn grow(&mut self, task: Task, queued: bool) -> TaskId {
        let index = u32::try_from(self.entries.len()).expect("fewer than 2^32 tasks");
        self.entries.push(Entry {
            generation: 1,
            queued,
            task: Some(task),
        });
        // So that no later removal allocates.
        self.free.reserve(self.entries.len());
        TaskId::new(index, 1)
    }

    fn entry(&mut self, id: TaskId) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(id.index())?;
        (entry.generation == id.generation() && entry.task.is_some()).then_some(entry)
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
        assert!(entry.generation == id.generation() && entry.task.is_some());
        entry.task = None;
        entry.generation = entry.generation.checked_add(1).unwrap_or(1);
        self.free.push(id.index() as u32);
    }

    /// Any task for which `pick` is true.
    pub(crate) fn find(&self, pick: impl Fn(&Task) -> bool) -> Option<(TaskId, Task)> {
        self.entries.iter().enumerate().find_map(|(index, entry)| {
            let task = entry.task.filter(|task| pick(task))?;
            Some((TaskId::new(index as u32, entry.generation), task))
        })
    }
}

adit_base::sync::local! {
    /// The worker that this thread drives: it holds that worker's lock.
    static DRIVING: Cell<*const Reactor> = const { Cell::new(ptr::null()) };
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
        ptr::eq(DRIVING.with(Cell::get), reactor)
    }
}

impl Drop for Driving {
    #[inline]
    fn drop(&mut self) {
        DRIVING.with(|driving| driving.set(self.0));
    }
}

const WAKER: RawWakerVTable =
    RawWakerVTable::new(|data| RawWaker::new(data, &WAKER), wake, wake, |_| {});

/// A waker of this task; it needs no drop.
#[inline]
pub(crate) fn waker(id: TaskId) -> ManuallyDrop<Waker> {
    let data = ptr::without_provenance::<()>(id.0);
    // SAFETY: every function of the vtable takes the data as a number; `wake` acts only on the
    // worker that the thread drives.
    ManuallyDrop::new(unsafe { Waker::from_raw(RawWaker::new(data, &WAKER)) })
}

fn wake(data: *const ()) {
    let reactor = DRIVING.with(Cell::get);
    if reactor.is_null() {
        debug_assert!(
            false,
            "an operation was woken by a thread that doesn't drive its worker"
        );
        tracing::error!(
            "an operation was woken by a thread that doesn't drive its worker; ignored"
        );
        return;
    }
    // SAFETY: set only while this thread holds the worker's lock, so the reactor exists.
    unsafe { &*reactor }.wake(TaskId(data.addr()));
}
