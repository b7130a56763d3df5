//! The worker's local services: tasks, requests, timers, and the list of threads that wait.
//!
//! Everything here is touched under the worker's lock only, through `&self`: cells, no atomics. No borrow of a cell is held while code of an
//! operation runs; the device's queue, which knows nothing of us, is called with its own cell borrowed, and its panics are caught (those of
//! a `submit` by an operation with the operation's). No system call is made here: what needs one is noted in [`After`] and done after the
//! release.

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
use adit_base::sync::atomic::{AtomicU32, Ordering};
use adit_block::{Completion, Device, Doorbell, Queue, Request, Submission};
use smallvec::SmallVec;

use crate::io::{SlotTable, Submit};
use crate::node::{BUSY, DONE, DRIVE, Node, SLEEPING, UNLISTED};
use crate::owned::{CellPool, OwnedCell};
use crate::task::{self, Polled, Task, TaskId, TaskKind, TaskTable};
use crate::timer::{Sleep, Timers};

/// What a driver does after it released the lock, because it is a system call or somebody else's code.
#[derive(Default)]
pub(crate) struct After {
    /// States of sleeping threads to wake; the frames they were in may be gone (see `futex.rs`).
    pub(crate) sleepers: SmallVec<[*const AtomicU32; 8]>,
    /// Tasks of other executors.
    pub(crate) wakers: SmallVec<[Waker; 8]>,
    pub(crate) ring: Option<Arc<dyn Doorbell>>,
    /// The keeper's word says ARMED; it sleeps or doesn't exist yet.
    pub(crate) wake_keeper: bool,
}

impl After {
    pub(crate) fn is_empty(&self) -> bool {
        self.sleepers.is_empty()
            && self.wakers.is_empty()
            && self.ring.is_none()
            && !self.wake_keeper
    }
}

/// A worker's local services; what an operation does IO, sleeps and starts tasks with.
pub struct Reactor {
    name: Arc<str>,
    device: UnsafeCell<Option<Arc<dyn Device>>>,
    /// Any thread may execute what the device's queue would carry.
    either_way: bool,
    queue: RefCell<Option<Box<dyn Queue>>>,
    doorbell: RefCell<Option<Arc<dyn Doorbell>>>,
    pool: Arc<CellPool>,

    pub(crate) tasks: RefCell<TaskTable>,
    ready: RefCell<VecDeque<TaskId>>,
    /// Tasks that gave way to everything else.
    yielded: RefCell<VecDeque<TaskId>>,
    /// The task being polled.
    current: Cell<TaskId>,

    pub(crate) slots: RefCell<SlotTable>,
    /// Requests that the queue handed back or never saw, and the task that asked.
    to_execute: RefCell<VecDeque<(TaskId, Request)>>,
    /// Requests that found the queue full.
    overflow: RefCell<VecDeque<Request>>,
    completions: RefCell<Vec<Completion>>,
    /// Accepted by the queue and not collected.
    pub(crate) in_flight: Cell<usize>,
    /// Being executed by some thread: the request's token, and whose it is.
    pub(crate) executing: RefCell<Vec<(u64, TaskId)>>,
    unrung: Cell<bool>,

    pub(crate) timers: RefCell<Timers>,
    /// A waiting thread that sleeps only until `guard_ns`, for the timers' sake.
    guard: Cell<*const Node>,
    guard_ns: Cell<u64>,

    /// Operations of threads that wait or will.
    waiters: RefCell<Vec<*const Node>>,
    /// The waiter that was told to drive.
    named: Cell<*const Node>,
    pub(crate) after: RefCell<After>,
    /// Wants to know when all operations but its own are done.
    drain_waiter: Cell<Option<Waker>>,
    panic: RefCell<Option<String>>,
    /// A panic was noted that the core doesn't know of yet.
    broken: Cell<bool>,
    unusable: Cell<bool>,
}

impl Reactor {
    pub(crate) fn new(
        name: Arc<str>,
        device: Arc<dyn Device>,
        queue: Box<dyn Queue>,
        pool: Arc<CellPool>,
    ) -> Self {
        Reactor {
            name,
            either_way: device.capabilities().inline && device.capabilities().queued,
            device: UnsafeCell::new(Some(device)),
            doorbell: RefCell::new(Some(queue.doorbell())),
            queue: RefCell::new(Some(queue)),
            pool,
            tasks: RefCell::default(),
            ready: RefCell::new(VecDeque::with_capacity(64)),
            yielded: RefCell::default(),
            current: Cell::new(TaskId::NONE),
            slots: RefCell::default(),
            to_execute: RefCell::new(VecDeque::with_capacity(64)),
            overflow: RefCell::default(),
            completions: RefCell::new(Vec::with_capacity(64)),
            in_flight: Cell::new(0),
            executing: RefCell::default(),
            unrung: Cell::new(false),
            timers: RefCell::default(),
            guard: Cell::new(ptr::null()),
            guard_ns: Cell::new(u64::MAX),
            waiters: RefCell::default(),
            named: Cell::new(ptr::null()),
            after: RefCell::default(),
            drain_waiter: Cell::new(None),
            panic: RefCell::new(None),
            broken: Cell::new(false),
            unusable: Cell::new(false),
        }
    }

    // ---- what operations use ----

    /// What messages call the volume.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        // SAFETY: changed only by `release_device`, when nobody is left to hold this reference.
        let device = unsafe { &*self.device.get() };
        device.as_ref().expect("a worker has its device to the end")
    }

    /// Hands a request to the device now, or has it executed by a thread soon; await the result for its completion. The request comes back in
    /// it, with its token.
    pub fn submit(&self, mut request: Request) -> Submit<'_> {
        let user_token = request.token;
        let token = self.slots.borrow_mut().insert();
        request.token = token;
        if self.is_callers_first() {
            self.to_execute
                .borrow_mut()
                .push_back((self.current.get(), request));
        } else if self.overflow.borrow().is_empty() {
            self.start(request);
        } else {
            self.overflow.borrow_mut().push_back(request);
        }
        Submit {
            reactor: self,
            token,
            user_token,
            taken: false,
        }
    }

    /// Runs a future as a task of the worker, beside all operations. Nobody waits for it; the worker's end drops it where it is.
    pub fn spawn_local(&self, future: impl Future<Output = ()> + 'static) {
        let start = move || async move {
            future.await;
            Ok(())
        };
        let cell = self.pool.fill(TaskKind::Local, start);
        // SAFETY: the worker's reference, which the task keeps until it is done.
        self.add_ready(unsafe { cell.as_ref() }.task());
    }

    /// Sleeps at least this long. Timers run when the keeper or an idle driver gets to them.
    pub fn sleep(&self, duration: Duration) -> Sleep<'_> {
        Sleep {
            reactor: self,
            deadline_ns: deadline_ns(duration),
            armed: false,
        }
    }

    /// Makes sure that the worker is driven after this time at the latest, so that tasks get on without any caller.
    pub fn arm_after(&self, duration: Duration) {
        self.timers.borrow_mut().add(deadline_ns(duration), None);
    }

    /// Lets everything else that is ready run first, but not for ever. What is left of a task that yields when a caller's operation is done is the keeper's.
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

    // ---- tasks ----

    pub(crate) fn pool(&self) -> &CellPool {
        &self.pool
    }

    pub(crate) fn add_ready(&self, task: Task) {
        let id = self.tasks.borrow_mut().insert(task, true);
        self.ready.borrow_mut().push_back(id);
    }

    pub(crate) fn wake(&self, id: TaskId) {
        if self.tasks.borrow_mut().mark_queued(id) {
            self.ready.borrow_mut().push_back(id);
        }
    }

    pub(crate) fn wake_after_release(&self, waker: Waker) {
        self.after.borrow_mut().wakers.push(waker);
    }

    /// Polls the next ready task; false when there is none.
    pub(crate) fn poll_next(&self) -> bool {
        let Some(id) = self.ready.borrow_mut().pop_front() else {
            return false;
        };
        let Some(task) = self.tasks.borrow_mut().begin_poll(id) else {
            return true;
        };
        self.poll_task(id, task);
        true
    }

    /// Polls a task; says whether it is done, and thus gone.
    #[inline]
    pub(crate) fn poll_task(&self, id: TaskId, task: Task) -> bool {
        self.current.set(id);
        let waker = task::waker(id);
        let mut context = Context::from_waker(&waker);
        let polled = {
            let _in = breakdown::enter(match task.vtable.kind {
                TaskKind::Local => Layer::Background,
                _ => Layer::Operation,
            });
            // SAFETY: under the lock; a task in the table is valid, and leaves the table when it is done.
            unsafe { (task.vtable.poll)(task.data, self, &mut context) }
        };
        self.current.set(TaskId::NONE);
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
                self.broken.set(true);
                false
            }
        }
    }

    /// Polls a caller's own operation for the first time, without a detour through the queue.
    #[inline]
    pub(crate) fn poll_first(&self, node: &Node) -> bool {
        let task = node.task();
        let id = self.tasks.borrow_mut().insert(task, false);
        self.poll_task(id, task) || {
            self.list(node);
            false
        }
    }

    /// Moves tasks that yielded into the ready queue; false when there are none.
    pub(crate) fn resume_yielded(&self) -> bool {
        let mut yielded = self.yielded.borrow_mut();
        self.ready.borrow_mut().extend(yielded.drain(..));
        !self.ready.borrow().is_empty()
    }

    /// Waits until no operation is left but the one that calls.
    pub(crate) async fn drained(&self) {
        std::future::poll_fn(|context| {
            let own = self
                .tasks
                .borrow_mut()
                .get(self.current.get())
                .map(|task| task.data);
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
        self.forget_ready();
    }

    /// Fails the operations, but not the worker's own tasks.
    pub(crate) fn fail_operations(&self, error: &dyn Fn() -> Error) {
        self.fail_where(|task| task.vtable.kind != TaskKind::Local, error);
    }

    fn fail_where(&self, which: impl Fn(&Task) -> bool, error: &dyn Fn() -> Error) {
        loop {
            let found = self.tasks.borrow().find(&which);
            let Some((id, task)) = found else { break };
            self.tasks.borrow_mut().remove(id);
            // SAFETY: under the lock; valid as it was in the table, and no longer there.
            unsafe { (task.vtable.fail)(task.data, self, error) };
        }
    }

    /// Nothing will be polled or submitted any more.
    pub(crate) fn forget_ready(&self) {
        self.ready.borrow_mut().clear();
        self.yielded.borrow_mut().clear();
        self.discard_requests();
        self.timers.replace(Timers::default());
        self.guard_ns.set(u64::MAX);
    }

    /// Whether operations may run: no panic, and not the end.
    #[inline]
    pub(crate) fn is_usable(&self) -> bool {
        !self.unusable.get()
    }

    pub(crate) fn set_unusable(&self) {
        self.unusable.set(true);
    }

    /// Drops what is left of the worker's own tasks at the worker's end.
    pub(crate) fn dismantle(&self) {
        loop {
            let found = self.tasks.borrow().find(|_| true);
            let Some((id, task)) = found else { break };
            self.tasks.borrow_mut().remove(id);
            assert!(
                task.vtable.kind == TaskKind::Local,
                "operations are done before the worker's end"
            );
            // SAFETY: under the lock; valid as it was in the table, and no longer there.
            let dropped = catch_unwind(AssertUnwindSafe(|| unsafe {
                (task.vtable.drop_future)(task.data, self)
            }));
            if let Err(panic) = dropped {
                self.note_panic(&*panic);
            }
        }
        self.forget_ready();
    }

    /// Closes the queue and lets go of the device: the worker's state and tasks are gone.
    pub(crate) fn release_device(&self) {
        drop(self.queue.borrow_mut().take());
        drop(self.doorbell.borrow_mut().take());
        // SAFETY: under the lock, and whoever could have called `device` is gone.
        drop(unsafe { (*self.device.get()).take() });
    }

    // ---- requests ----

    /// Whether a request is better executed by the thread whose operation asks for it: it would wait for the device in any case, and its own
    /// system call spares it a ring, and other threads its completion. What else the operation asks for is in flight meanwhile.
    fn is_callers_first(&self) -> bool {
        if !self.either_way || !self.is_usable() {
            return false;
        }
        let id = self.current.get();
        let task = self.tasks.borrow_mut().get(id);
        let (to_execute, executing) = (self.to_execute.borrow(), self.executing.borrow());
        task.is_some_and(|task| task.vtable.kind == TaskKind::Stack)
            && !to_execute.iter().take(16).any(|(other, _)| *other == id)
            && !executing.iter().any(|(_, other)| *other == id)
    }

    /// Gives a request to the queue; false when it was full and the request waits again. After the end or a panic nothing is submitted.
    fn start(&self, request: Request) -> bool {
        if !self.is_usable() {
            return true;
        }
        let mut queue = self.queue.borrow_mut();
        let Some(queue) = queue.as_mut() else {
            return true;
        };
        let token = request.token;
        match queue.submit(request) {
            Submission::Accepted => {
                self.in_flight.set(self.in_flight.get() + 1);
                self.slots.borrow_mut().set_queued(token);
                self.unrung.set(true);
            }
            Submission::Inline(request) => {
                self.to_execute
                    .borrow_mut()
                    .push_back((self.current.get(), request));
            }
            Submission::Full(request) if self.in_flight.get() == 0 => {
                // Nothing will make room: do it in place rather than never.
                self.to_execute
                    .borrow_mut()
                    .push_back((self.current.get(), request));
            }
            Submission::Full(request) => {
                self.overflow.borrow_mut().push_front(request);
                return false;
            }
        }
        true
    }

    /// A request for the calling thread to execute; its own operation's first. While another thread executes that, only one of another
    /// operation, not of the worker's own tasks: who writes a checkpoint's pages is still busy with them long after its operation is done.
    pub(crate) fn take_request(&self, own: Option<&Node>) -> Option<Request> {
        let mut requests = self.to_execute.borrow_mut();
        let mut executing = self.executing.borrow_mut();
        let mut at = 0;
        if let Some(own) = own
            && !requests.is_empty()
        {
            let data = own.task().data;
            let mut tasks = self.tasks.borrow_mut();
            let mut mine = |id: TaskId| tasks.get(id).is_some_and(|task| task.data == data);
            if let Some(first) = requests.iter().take(16).position(|(id, _)| mine(*id)) {
                at = first;
            } else if executing.iter().any(|(_, id)| mine(*id)) {
                let mut operations = |id: TaskId| {
                    let task = tasks.get(id);
                    task.is_some_and(|task| task.vtable.kind != TaskKind::Local)
                };
                at = requests.iter().position(|(id, _)| operations(*id))?;
            }
        }
        let (id, request) = requests.remove(at)?;
        executing.push((request.token, id));
        Some(request)
    }

    /// A thread is back with a request that it took, or without it when the device panicked; whose it is.
    pub(crate) fn end_execution(&self, token: Option<u64>) -> TaskId {
        let mut executing = self.executing.borrow_mut();
        let at = executing
            .iter()
            .position(|(taken, _)| token == Some(*taken))
            .unwrap_or(0);
        executing.swap_remove(at).1
    }

    /// Whether requests wait for a thread to execute them.
    pub fn has_requests(&self) -> bool {
        self.requests() > 0
    }

    /// How many do.
    pub(crate) fn requests(&self) -> usize {
        self.to_execute.borrow().len()
    }

    /// The thread that took it is needed here first.
    pub(crate) fn put_back_request(&self, request: Request) {
        let id = self.end_execution(Some(request.token));
        self.to_execute.borrow_mut().push_front((id, request));
    }

    pub(crate) fn deliver(&self, completion: Completion) {
        let waker = self.slots.borrow_mut().deliver(completion);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Collects completions from the queue; says whether anything came of it, if only that the queue is broken.
    pub(crate) fn collect(&self) -> bool {
        let mut completions = self.completions.take();
        {
            let polled = {
                let mut queue = self.queue.borrow_mut();
                let Some(queue) = queue.as_mut() else {
                    return false;
                };
                catch_unwind(AssertUnwindSafe(|| queue.poll(&mut completions)))
            };
            if let Err(panic) = polled {
                self.break_down(&*panic);
                // Its requests never come back; their memory stays with it, for good.
                std::mem::forget(self.queue.borrow_mut().take());
                self.in_flight.set(0);
                return true;
            }
        }
        let any = !completions.is_empty();
        // A queue that panicked may have kept a request that wasn't counted.
        let left = self.in_flight.get().saturating_sub(completions.len());
        self.in_flight.set(left);
        for completion in completions.drain(..) {
            self.deliver(completion);
        }
        self.completions.replace(completions);
        if any {
            self.retry_overflow();
        }
        any
    }

    /// Whether the device's queue has a request that this thread's operation waits for, itself or (in `Handle::wait`) in another's place.
    pub(crate) fn waits_for_device(&self, own: &Node) -> bool {
        let data = own.task().data;
        let mut tasks = self.tasks.borrow_mut();
        let Some((own, _)) = tasks.find(|task| task.data == data) else {
            return false;
        };
        self.slots.borrow().any_queued(|id| {
            let spawned = |task: &Task| task.vtable.kind == TaskKind::Spawned;
            // SAFETY: a spawned task's data is its cell, valid while it is in the table.
            let cell = |task: Task| unsafe { &*task.data.cast::<OwnedCell>() };
            id == own
                || tasks
                    .get(id)
                    .filter(spawned)
                    .map(cell)
                    .and_then(OwnedCell::local_waiter)
                    == Some(own)
        })
    }

    /// There may be room in the queue again.
    fn retry_overflow(&self) {
        loop {
            let next = self.overflow.borrow_mut().pop_front();
            let Some(request) = next else { return };
            match catch_unwind(AssertUnwindSafe(|| self.start(request))) {
                Ok(true) => {}
                Ok(false) => return,
                // The request is lost. What is in flight may still be collected.
                Err(panic) => return self.break_down(&*panic),
            }
        }
    }

    /// Forgets requests that no device has seen.
    pub(crate) fn discard_requests(&self) {
        self.to_execute.borrow_mut().clear();
        self.overflow.borrow_mut().clear();
    }

    pub(crate) fn doorbell(&self) -> Option<Arc<dyn Doorbell>> {
        self.doorbell.borrow().clone()
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

    /// A panic of the device.
    pub(crate) fn break_down(&self, panic: &(dyn Any + Send)) {
        self.note_panic(panic);
        self.broken.set(true);
    }

    /// What broke the worker, once.
    pub(crate) fn take_broken(&self) -> Option<String> {
        self.broken
            .replace(false)
            .then(|| self.panic.borrow().clone().unwrap_or_default())
    }

    // ---- threads that wait ----

    /// Adds an operation to the list of those whose threads wait or will.
    pub(crate) fn list(&self, node: &Node) {
        let mut waiters = self.waiters.borrow_mut();
        node.listed_at.set(waiters.len() as u32);
        waiters.push(node);
    }

    /// The operation's result is in place: its thread may go. The node isn't touched afterwards.
    #[inline]
    pub(crate) fn finish_node(&self, node: &Node) {
        if node.listed_at.get() == UNLISTED {
            // Never left its own thread, which is this one.
            node.state.store(DONE, Ordering::Release);
            return;
        }
        self.unlist(node);
        let state: *const AtomicU32 = &node.state;
        if node.state.swap(DONE, Ordering::AcqRel) == SLEEPING {
            self.after.borrow_mut().sleepers.push(state);
        }
    }

    fn unlist(&self, node: &Node) {
        let mut waiters = self.waiters.borrow_mut();
        let at = node.listed_at.get() as usize;
        assert!(ptr::eq(waiters[at], node));
        waiters.swap_remove(at);
        if let Some(moved) = waiters.get(at) {
            // SAFETY: a listed node is valid until it is done, which unlists it.
            unsafe { &**moved }.listed_at.set(at as u32);
        }
        self.forget_duties(node);
    }

    /// The node's thread is here (or its operation done): what it was told before is void.
    pub(crate) fn forget_duties(&self, node: &Node) {
        if ptr::eq(self.named.get(), node) {
            self.named.set(ptr::null());
        }
        if ptr::eq(self.guard.get(), node) {
            self.guard.set(ptr::null());
            self.guard_ns.set(u64::MAX);
        }
    }

    /// Names a waiting thread as the next driver; false when none can be. One that is awake is preferred.
    pub(crate) fn name_successor(&self) -> bool {
        let named = self.named.get();
        // SAFETY: a named node is listed, hence valid.
        if let Some(named) = unsafe { named.as_ref() }
            && self.tell(named)
        {
            return true;
        }
        let waiters = self.waiters.borrow();
        let mut sleeping = None;
        for node in waiters.iter().take(64) {
            // SAFETY: a listed node is valid until it is done, which unlists it.
            let node = unsafe { &**node };
            match node.state.load(Ordering::Acquire) {
                BUSY => {}
                SLEEPING => sleeping = sleeping.or(Some(node)),
                _ => return self.tell(node),
            }
        }
        sleeping.is_some_and(|node| self.tell(node))
    }

    fn tell(&self, node: &Node) -> bool {
        let state = node.state.load(Ordering::Acquire);
        if state == BUSY {
            return false;
        }
        if state != DRIVE && node.state.swap(DRIVE, Ordering::AcqRel) == SLEEPING {
            self.after.borrow_mut().sleepers.push(&node.state);
        }
        self.named.set(node);
        true
    }

    /// Whether something is there to do right now, other than waiting for the device.
    pub(crate) fn has_work(&self) -> bool {
        !self.ready.borrow().is_empty()
            || !self.to_execute.borrow().is_empty()
            || !self.yielded.borrow().is_empty()
    }

    /// Whether nothing is owed and everything that is left is the keeper's already, so that the lock can just be released.
    #[inline]
    pub(crate) fn is_quiet(&self, keeper_collects: bool, keeper_wakes_ns: u64) -> bool {
        !self.has_work()
            && (self.in_flight.get() == 0 || keeper_collects)
            && !self.unrung.get()
            && !self.broken.get()
            && self.unguarded_deadline_ns() >= keeper_wakes_ns
            && self.after.borrow().is_empty()
    }

    /// Whether somebody is waiting for this driver to release the lock.
    pub(crate) fn owes_wakeups(&self) -> bool {
        let after = self.after.borrow();
        !after.sleepers.is_empty() || !after.wakers.is_empty()
    }

    /// Whether tasks of other executors are to be woken.
    pub(crate) fn owes_wakers(&self) -> bool {
        !self.after.borrow().wakers.is_empty()
    }

    /// Runs the timers that are due; says whether there were any.
    pub(crate) fn fire_timers(&self) -> bool {
        if self.timers.borrow().next_ns() == u64::MAX && self.guard.get().is_null() {
            return false;
        }
        let now_ns = monotonic_ns();
        if self.guard_ns.get() <= now_ns {
            // Its thread is awake or being woken by its deadline, and won't guard a later one.
            self.guard.set(ptr::null());
            self.guard_ns.set(u64::MAX);
        }
        self.timers.borrow_mut().take_due(now_ns, Waker::wake)
    }

    /// The next deadline, if no waiting thread sleeps towards it; `u64::MAX` if there is none.
    pub(crate) fn unguarded_deadline_ns(&self) -> u64 {
        let next_ns = self.timers.borrow().next_ns();
        if self.guard_ns.get() <= next_ns {
            u64::MAX
        } else {
            next_ns
        }
    }

    /// This node's thread will sleep until the deadline at most.
    pub(crate) fn set_guard(&self, node: &Node, deadline_ns: u64) {
        self.guard.set(node);
        self.guard_ns.set(deadline_ns);
    }

    /// What is owed after the release, including the ring for new submissions.
    pub(crate) fn take_after(&self, into: &mut After) {
        let mut after = self.after.borrow_mut();
        into.sleepers.append(&mut after.sleepers);
        into.wakers.append(&mut after.wakers);
        if self.unrung.replace(false) {
            into.ring = self.doorbell();
        }
    }
}

fn deadline_ns(duration: Duration) -> u64 {
    let duration_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    // One below the mark for "no deadline".
    monotonic_ns().saturating_add(duration_ns).min(u64::MAX - 1)
}
