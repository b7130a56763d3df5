//! A worker's executor: its tasks, requests and timers, and the list of callers that wait.
//!
//! Everything here is touched by the driver only, under the worker's lock, through `&self`: cells,
//! no atomics. No cell is borrowed while code of an operation runs. The device's queue, which knows
//! nothing of us, is called with its own cell borrowed; its panics are caught (in a `submit` by an
//! operation, together with the operation's). No system call is made here: it is noted in
//! [`DeferredWakeups`] and made after the release.
//!
//! | module | content |
//! |---|---|
//! | here | the tasks; panics |
//! | `requests` | requests and completions |
//! | `waiters` | callers that wait, successor, timers |
//! | `task` | tasks by number; `pooled`, `node`: operations of handles and of callers |
//! | `io`, `timer` | slots of requests; sleeping tasks |
//! | `completions` | queues to which operations report |
//! | `deferred` | wake-ups that wait for the release |
//! | `workers` | the workers of this process by number |
//!
//! These files use each other: the reactor has the tasks, and a task is polled with the reactor.

pub(crate) mod completions;
mod deferred;
pub(crate) mod io;
pub(crate) mod node;
pub(crate) mod pooled;
mod requests;
pub(crate) mod task;
pub(crate) mod timer;
mod waiters;
pub(crate) mod workers;

pub(crate) use deferred::DeferredWakeups;

use std::any::Any;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use adit_base::Error;
use adit_base::breakdown::{self, Layer};
use adit_base::clock::monotonic_ns;
use adit_base::simulation;
use adit_base::steps;
use adit_base::sync::{spin_loop, tries};
use adit_block::{Completion, Device, Doorbell, Queue, Request};

use crate::lock::DriverLock;
use completions::QueueShared;
use io::SlotTable;
use node::Node;
use pooled::OperationPool;
use task::{Driving, Polled, Task, TaskId, TaskKind, TaskTable};
use timer::{Sleep, Timers};

/// A worker's executor; operations do IO, sleep and start tasks with it.
pub struct Reactor {
    name: Arc<str>,
    worker: u32,
    device: UnsafeCell<Option<Arc<dyn Device>>>,
    /// The device has a queue, and any thread may execute a request as well.
    inline_or_queued: bool,
    queue: RefCell<Option<Box<dyn Queue>>>,
    doorbell: RefCell<Option<Arc<dyn Doorbell>>>,
    pub(crate) pool: Arc<OperationPool>,
    lock: Arc<DriverLock>,
    /// The driver's own operation is done; it polls others.
    pub(crate) is_driver_done: Cell<bool>,

    tasks: RefCell<TaskTable>,
    ready: RefCell<VecDeque<TaskId>>,
    /// Tasks that let all ready tasks run first.
    yielded: RefCell<VecDeque<TaskId>>,
    /// The task being polled.
    current: Cell<TaskId>,

    pub(crate) slots: RefCell<SlotTable>,
    /// Requests that wait for a thread to execute them, each with the task that submitted it.
    inline_requests: RefCell<VecDeque<(TaskId, Request)>>,
    /// Requests that found the queue full.
    overflow: RefCell<VecDeque<Request>>,
    completions: RefCell<Vec<Completion>>,
    /// Requests that the queue accepted and that were not reaped.
    pub(crate) in_flight: Cell<usize>,
    /// Requests that some thread executes: the token, and the task that submitted it.
    executing: RefCell<Vec<(u64, TaskId)>>,
    /// The queue has submissions that the device was not told of.
    doorbell_pending: Cell<bool>,

    pub(crate) timers: RefCell<Timers>,
    /// A waiting caller that sleeps until `watched_until_ns` at most, for the timers' sake.
    timer_watcher: Cell<*const Node>,
    watched_until_ns: Cell<u64>,

    /// Operations whose threads wait, or will.
    waiters: RefCell<Vec<*const Node>>,
    /// The waiting caller that is appointed as the next driver.
    successor: Cell<*const Node>,
    deferred: RefCell<DeferredWakeups>,
    /// An operation that waits until all others are done.
    drain_waiter: Cell<Option<Waker>>,
    panic: RefCell<Option<String>>,
    /// A panic was noted that the core doesn't know of yet.
    panicked: Cell<bool>,
    /// Functions to be called after a panic.
    when_poisoned: RefCell<Vec<Box<dyn FnOnce()>>>,
    unusable: Cell<bool>,
    /// An operation wants the lock to be free for a moment, or while it waits for this.
    steps_aside: Cell<bool>,
    aside_until: RefCell<Option<Spin>>,
}

/// An event that an operation awaits without the worker ([`Reactor::step_aside_until`]).
pub trait Awaited: Send + Sync {
    /// Has it happened since the state that this number stands for?
    fn is_over(&self, since: u64) -> bool;
}

/// A thread looks so long at most, and then yields its processor between its looks.
const SPIN_ASIDE_NS: u64 = 30_000;
/// Looks between two yields.
const LOOKS: u32 = tries(200);

/// A wait of a thread that has no worker's lock.
pub(crate) struct Spin {
    awaited: Arc<dyn Awaited>,
    since: u64,
    until_ns: u64,
}

impl Spin {
    /// Looks until it is over, or the time is, or `is_called` says so.
    pub(crate) fn spin(&self, is_called: impl Fn() -> bool) {
        loop {
            for _ in 0..LOOKS {
                if self.awaited.is_over(self.since) || is_called() {
                    return;
                }
                spin_loop();
            }
            if cfg!(loom) || simulation::is_simulated() || monotonic_ns() >= self.until_ns {
                return;
            }
            // The thread that ends it may have no processor.
            std::thread::yield_now();
        }
    }
}

impl Reactor {
    pub(crate) fn new(
        name: Arc<str>,
        worker: u32,
        device: Arc<dyn Device>,
        queue: Box<dyn Queue>,
        pool: Arc<OperationPool>,
        lock: Arc<DriverLock>,
    ) -> Self {
        Reactor {
            name,
            worker,
            inline_or_queued: device.capabilities().inline && device.capabilities().queued,
            device: UnsafeCell::new(Some(device)),
            doorbell: RefCell::new(Some(queue.doorbell())),
            queue: RefCell::new(Some(queue)),
            pool,
            lock,
            is_driver_done: Cell::new(false),
            tasks: RefCell::default(),
            ready: RefCell::new(VecDeque::with_capacity(64)),
            yielded: RefCell::default(),
            current: Cell::new(TaskId::NONE),
            slots: RefCell::default(),
            inline_requests: RefCell::new(VecDeque::with_capacity(64)),
            overflow: RefCell::default(),
            completions: RefCell::new(Vec::with_capacity(64)),
            in_flight: Cell::new(0),
            executing: RefCell::default(),
            doorbell_pending: Cell::new(false),
            timers: RefCell::default(),
            timer_watcher: Cell::new(ptr::null()),
            watched_until_ns: Cell::new(u64::MAX),
            waiters: RefCell::default(),
            successor: Cell::new(ptr::null()),
            deferred: RefCell::default(),
            drain_waiter: Cell::new(None),
            panic: RefCell::new(None),
            panicked: Cell::new(false),
            when_poisoned: RefCell::default(),
            unusable: Cell::new(false),
            steps_aside: Cell::new(false),
            aside_until: RefCell::default(),
        }
    }

    // ---- for operations ----

    /// The volume's name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        // SAFETY: changed only by `release_device`, when no task is left to hold this reference.
        let device = unsafe { &*self.device.get() };
        device.as_ref().expect("a worker has its device to the end")
    }

    /// Runs a future as a task of the worker itself. No caller waits for it; the worker's end drops
    /// it at any await.
    pub fn spawn_local(&self, future: impl Future<Output = ()> + 'static) {
        let start = move || async move {
            future.await;
            Ok(())
        };
        let cell = self.pool.fill(TaskKind::Local, start);
        // SAFETY: the worker's reference, which the task keeps until it is done.
        self.add_ready(unsafe { cell.as_ref() }.task());
    }

    /// Sleeps at least this long. A timer fires when the keeper or an idle driver comes to it.
    pub fn sleep(&self, duration: Duration) -> Sleep<'_> {
        let duration_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Sleep {
            reactor: self,
            // One below the mark for "no deadline" at most.
            deadline_ns: monotonic_ns().saturating_add(duration_ns).min(u64::MAX - 1),
            timer: None,
        }
    }

    /// Lets all ready tasks run first, but not for ever. When a caller's operation is done, the
    /// keeper polls the tasks that have yielded.
    pub async fn yield_now(&self) {
        let mut yielded = false;
        std::future::poll_fn(|_| {
            if yielded {
                return Poll::Ready(());
            }
            yielded = true;
            let id = self.current.get();
            if self.tasks.borrow_mut().mark_queued(id) {
                self.yielded.borrow_mut().push_back(id);
            }
            Poll::Pending
        })
        .await;
    }

    /// For a long operation, between pieces that take 10 to 20 µs: lets other threads' operations
    /// run first, and a driver go whose own operation is done.
    pub async fn give_way(&self) {
        if self.is_driver_done.get() || self.lock.is_notified() {
            self.yield_now().await;
        }
    }

    /// Releases the worker for a moment, so that other threads can take its lock, and runs again
    /// after all ready tasks. For an operation that did not get another worker's lock beside its
    /// own ([`Engine::beside`](crate::Engine::beside)): the holder may be trying to take this one.
    pub async fn step_aside(&self) {
        self.steps_aside.set(true);
        self.yield_now().await;
    }

    /// Releases the worker until `awaited` is over, for some µs at most, and runs again after all
    /// ready tasks. Nobody wakes a thread for that: it looks. If another operation is ready, or has
    /// a request under way, it doesn't wait.
    pub async fn step_aside_until(&self, awaited: Arc<dyn Awaited>, since: u64) {
        let spin = Spin {
            awaited,
            since,
            until_ns: monotonic_ns() + SPIN_ASIDE_NS,
        };
        self.steps_aside.set(true);
        self.aside_until.replace(Some(spin));
        self.yield_now().await;
    }

    /// How an operation has asked to step aside, once.
    #[inline]
    pub(crate) fn take_aside(&self) -> Option<Option<Spin>> {
        self.steps_aside.take().then(|| {
            let spin = self.aside_until.take();
            // It has yielded, too.
            let has_other_work = !self.ready.borrow().is_empty()
                || self.yielded.borrow().len() > 1
                || !self.inline_requests.borrow().is_empty()
                || self.in_flight.get() > 0;
            spin.filter(|_| !has_other_work)
        })
    }

    // ---- tasks ----

    /// This thread is the driver.
    fn debug_assert_driven(&self) {
        debug_assert!(Driving::is_of(self), "under the worker's lock");
    }

    pub(crate) fn add_ready(&self, task: Task) {
        self.debug_assert_driven();
        let id = self.tasks.borrow_mut().insert(self.worker, task, true);
        self.ready.borrow_mut().push_back(id);
    }

    /// The number of its worker, which its tasks' wakers name.
    #[inline]
    pub(crate) fn worker(&self) -> u32 {
        self.worker
    }

    pub(crate) fn wake(&self, id: TaskId) {
        debug_assert_eq!(id.worker(), self.worker);
        if self.tasks.borrow_mut().mark_queued(id) {
            self.ready.borrow_mut().push_back(id);
        }
    }

    pub(crate) fn wake_after_release(&self, waker: Waker) {
        self.deferred.borrow_mut().wakers.push(waker);
    }

    /// Syncs the queue's event after the driver has released the lock.
    pub(crate) fn sync_event_after_release(&self, queue: Arc<QueueShared>) {
        self.deferred.borrow_mut().events.push(queue);
    }

    /// Polls the next ready task; false when there is none.
    pub(crate) fn poll_next(&self) -> bool {
        self.debug_assert_driven();
        let Some(id) = self.ready.borrow_mut().pop_front() else {
            return false;
        };
        let Some(task) = self.tasks.borrow_mut().begin_poll(id) else {
            return true;
        };
        self.poll_task(id, task);
        true
    }

    /// Polls a task; true if it is done, and thus removed.
    #[inline]
    fn poll_task(&self, id: TaskId, task: Task) -> bool {
        self.current.set(id);
        let waker = task::waker(id);
        let mut context = Context::from_waker(&waker);
        let polled = {
            let _in = breakdown::enter(match task.vtable.kind {
                TaskKind::Local => Layer::Background,
                _ => Layer::Operation,
            });
            // SAFETY: under the lock; a task in the table is valid, and leaves the table when it is
            // done.
            unsafe { (task.vtable.poll)(task.data, self, &mut context) }
        };
        self.current.set(TaskId::NONE);
        steps::end_turn();
        match polled {
            Polled::Done => {
                self.tasks.borrow_mut().remove(id);
                if task.vtable.kind != TaskKind::Local
                    && let Some(waiter) = self.drain_waiter.take()
                {
                    waiter.wake();
                }
                true
            }
            Polled::Pending => false,
            Polled::Panicked => {
                self.panicked.set(true);
                false
            }
        }
    }

    /// Polls a caller's own operation for the first time, not by way of the ready queue.
    #[inline]
    pub(crate) fn poll_first(&self, node: &Node) -> bool {
        let task = node.task();
        let id = self.tasks.borrow_mut().insert(self.worker, task, false);
        self.poll_task(id, task) || {
            self.add_waiter(node);
            false
        }
    }

    /// Moves tasks that yielded into the ready queue; false when there are none.
    pub(crate) fn resume_yielded(&self) -> bool {
        let mut yielded = self.yielded.borrow_mut();
        self.ready.borrow_mut().extend(yielded.drain(..));
        !self.ready.borrow().is_empty()
    }

    /// Waits until all operations but the calling one are done.
    pub(crate) async fn drained(&self) {
        std::future::poll_fn(|context| {
            let current = self.current.get();
            let own = self.tasks.borrow_mut().get(current).map(|task| task.data);
            let other = |task: &Task| task.vtable.kind != TaskKind::Local && Some(task.data) != own;
            if self.tasks.borrow().find(other).is_none() {
                return Poll::Ready(());
            }
            self.drain_waiter.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Fails every task. Their futures are forgotten.
    pub(crate) fn fail_tasks(&self, error: &dyn Fn() -> Error) {
        self.fail_where(|_| true, error);
        self.discard_pending();
    }

    /// Fails the operations, but not the worker's own tasks.
    pub(crate) fn fail_operations(&self, error: &dyn Fn() -> Error) {
        self.fail_where(|task| task.vtable.kind != TaskKind::Local, error);
    }

    fn fail_where(&self, which: impl Fn(&Task) -> bool, error: &dyn Fn() -> Error) {
        // SAFETY: under the lock; valid as it was in the table, and no longer there.
        self.remove_each(which, |task| unsafe {
            (task.vtable.fail)(task.data, self, error)
        });
    }

    fn remove_each(&self, which: impl Fn(&Task) -> bool, mut then: impl FnMut(Task)) {
        loop {
            let found = self.tasks.borrow().find(&which);
            let Some((id, task)) = found else { break };
            self.tasks.borrow_mut().remove(id);
            then(task);
        }
    }

    /// Drops all that would be polled or submitted.
    pub(crate) fn discard_pending(&self) {
        self.ready.borrow_mut().clear();
        self.yielded.borrow_mut().clear();
        self.discard_requests();
        self.timers.replace(Timers::default());
        self.watched_until_ns.set(u64::MAX);
    }

    /// Whether operations may run: no panic, and not the end.
    #[inline]
    pub(crate) fn is_usable(&self) -> bool {
        !self.unusable.get()
    }

    pub(crate) fn set_unusable(&self) {
        self.unusable.set(true);
    }

    /// Drops the worker's own tasks, at the worker's end: operations are done before.
    pub(crate) fn drop_local_tasks(&self) {
        self.remove_each(
            |_| true,
            |task| {
                assert!(
                    task.vtable.kind == TaskKind::Local,
                    "operations are done before"
                );
                // SAFETY: under the lock; valid as it was in the table, and no longer there.
                let drop_future = || unsafe { (task.vtable.drop_future)(task.data, self) };
                if let Err(panic) = catch_unwind(AssertUnwindSafe(drop_future)) {
                    self.note_panic(&*panic);
                }
            },
        );
        self.discard_pending();
    }

    /// Closes the queue and drops the device, after the worker's state and tasks.
    pub(crate) fn release_device(&self) {
        drop(self.queue.borrow_mut().take());
        drop(self.doorbell.borrow_mut().take());
        // SAFETY: under the lock; no task is left that could hold a reference from `device`.
        drop(unsafe { (*self.device.get()).take() });
    }

    // ---- panics ----

    pub(crate) fn note_panic(&self, panic: &(dyn Any + Send)) {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| text.to_string())
            .or_else(|| panic.downcast_ref::<String>().cloned());
        let text = text.unwrap_or_else(|| "of unknown kind".into());
        self.panic.borrow_mut().get_or_insert(text);
    }

    /// A panic of the device, or of a closure that another worker's operation ran here.
    pub(crate) fn note_panic_of_no_task(&self, panic: &(dyn Any + Send)) {
        self.note_panic(panic);
        self.panicked.set(true);
    }

    /// `tell` is called after the first panic of an operation or the device, by the driver, before
    /// any operation has failed. It may meet state that the panicking code left incomplete, so it
    /// does little; another panic ends it.
    pub fn when_poisoned(&self, tell: impl FnOnce() + 'static) {
        self.when_poisoned.borrow_mut().push(Box::new(tell));
    }

    pub(crate) fn tell_poisoned(&self) {
        for tell in self.when_poisoned.take() {
            // The panic that counts is known already.
            let _ = catch_unwind(AssertUnwindSafe(tell));
        }
    }

    /// The panic's message, once.
    pub(crate) fn take_panic(&self) -> Option<String> {
        self.panicked
            .replace(false)
            .then(|| self.panic.borrow().clone().unwrap_or_default())
    }
}
