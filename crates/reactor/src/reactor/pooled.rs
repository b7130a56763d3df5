//! Operations that lie on no thread's stack: those of handles, and the worker's own tasks.
//!
//! Each lies in a recycled object with room for the operation's closure, then its future, then its
//! result, in place; one larger than [`INLINE_BYTES`] goes to the heap. The objects come from a
//! pool, so that spawning allocates nothing once there were enough of them.
//!
//! Invariants: the stage is touched under the worker's lock only, until `state` is DONE; then the
//! result belongs to the handle. There is one reference for the worker until the operation is done,
//! and one for the handle, if there is one. The last one puts the object back into the pool.

use std::alloc::{self, Layout};
use std::cell::{Cell, UnsafeCell};
use std::future::Future;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::task::{Context, Waker};

use adit_base::sync::atomic::{AtomicU32, Ordering};
use adit_base::sync::{Mutex, RaceCheck};
use adit_base::{Error, Result};

use crate::lock::{Message, MessageKind, lock};
use crate::reactor::Reactor;
use crate::reactor::completions::QueueShared;
use crate::reactor::node::Stage;
use crate::reactor::task::{self, Polled, Task, TaskId, TaskKind, TaskVtable};

/// Operations up to this size need no allocation.
const INLINE_BYTES: usize = 2048;
/// Objects that the pool keeps at most.
const POOLED_MAX: usize = 256;

const PENDING: u32 = 0;
const DONE: u32 = 1;

/// An operation without its type, in a recycled object.
#[repr(C, align(64))]
pub(crate) struct PooledOperation {
    pub(crate) message: Message,
    references: AtomicU32,
    state: AtomicU32,
    /// Where its end is reported.
    listener: Mutex<Option<Listener>>,
    /// An operation of this worker that waits for this one. Under the lock.
    local_waiter: Cell<Option<Waker>>,
    vtable: Cell<&'static PooledVtable>,
    /// This object, as it was allocated.
    home: Cell<NonNull<PooledOperation>>,
    /// The `Stage`: in `inline`, or on the heap.
    stage: Cell<*mut ()>,
    inline: UnsafeCell<[MaybeUninit<u8>; INLINE_BYTES]>,
    /// Accesses to the stage.
    accesses: RaceCheck,
}

/// The listener for an operation's end; cleared by the report.
enum Listener {
    /// The executor's task that polls the handle.
    Task(Waker),
    /// A queue of this worker, which gets the key.
    Queue(Arc<QueueShared>, u64),
}

struct PooledVtable {
    task: TaskVtable,
    /// Drops the stage and frees it if it is on the heap.
    drop_stage: unsafe fn(*mut (), on_heap: bool),
    /// Moves the result into an `Option<Result<T>>`.
    take: unsafe fn(*mut (), *mut ()),
}

struct Typed<F, Fut, T>(F, Fut, T);

impl<T, F: FnOnce() -> Fut, Fut: Future<Output = Result<T>>> Typed<F, Fut, T> {
    const LAYOUT: Layout = Layout::new::<Stage<F, Fut, T>>();
    const FITS: bool = Self::LAYOUT.size() <= INLINE_BYTES && Self::LAYOUT.align() <= 64;
    const SPAWNED: &'static PooledVtable = &Self::vtable(TaskKind::Spawned);
    const LOCAL: &'static PooledVtable = &Self::vtable(TaskKind::Local);

    const fn vtable(kind: TaskKind) -> PooledVtable {
        PooledVtable {
            task: TaskVtable {
                kind,
                poll: Self::poll,
                fail: Self::fail,
                drop_future: Self::drop_future,
            },
            drop_stage: Self::drop_stage,
            take: Self::take,
        }
    }

    /// # Safety
    /// The data of a task in the table, under the lock.
    unsafe fn access<'a>(data: *const ()) -> (&'a PooledOperation, *mut Stage<F, Fut, T>) {
        // SAFETY: a task's data is its operation, of which the worker holds a reference until it is
        // done.
        let operation = unsafe { &*data.cast::<PooledOperation>() };
        operation.accesses.write();
        (operation, operation.stage.get().cast())
    }

    unsafe fn poll(data: *const (), reactor: &Reactor, context: &mut Context<'_>) -> Polled {
        // SAFETY: under the lock and not done, so the only reference; the stage doesn't move.
        let (operation, polled) = unsafe {
            let (operation, stage) = Self::access(data);
            (operation, Stage::poll(stage, reactor, context))
        };
        if polled == Polled::Done {
            operation.complete(reactor);
        }
        polled
    }

    unsafe fn fail(data: *const (), reactor: &Reactor, error: &dyn Fn() -> Error) {
        // SAFETY: as in `poll`; the task leaves the table.
        unsafe {
            let (operation, stage) = Self::access(data);
            Stage::fail(stage, error());
            operation.complete(reactor);
        }
    }

    unsafe fn drop_future(data: *const (), reactor: &Reactor) {
        // SAFETY: as in `poll`; the assignment drops the future in place.
        unsafe {
            let (operation, stage) = Self::access(data);
            *stage = Stage::Empty;
            operation.complete(reactor);
        }
    }

    unsafe fn drop_stage(stage: *mut (), on_heap: bool) {
        // SAFETY: initialised by `fill`, dropped once, with the last reference.
        unsafe { ptr::drop_in_place(stage.cast::<Stage<F, Fut, T>>()) };
        if on_heap {
            // SAFETY: allocated with this layout.
            unsafe { alloc::dealloc(stage.cast(), Self::LAYOUT) };
        }
    }

    unsafe fn take(stage: *mut (), result: *mut ()) {
        // SAFETY: done, so the stage belongs to the handle; `result` is an Option<Result<T>> by the
        // caller's word.
        unsafe {
            let stage = &mut *stage.cast::<Stage<F, Fut, T>>();
            if let Stage::Done(value) = std::mem::replace(stage, Stage::Empty) {
                *result.cast::<Option<Result<T>>>() = Some(value);
            }
        }
    }
}

impl PooledOperation {
    /// The task that polls it.
    pub(crate) fn task(&self) -> Task {
        Task {
            vtable: &self.vtable.get().task,
            data: ptr::from_ref(self).cast(),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.state.load(Ordering::Acquire) == DONE
    }

    /// Registers the waker to call when it is done. Looking at `is_done` *afterwards* misses no
    /// end.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        let mut slot = lock(&self.listener);
        match &mut *slot {
            Some(Listener::Task(present)) => present.clone_from(waker),
            _ => *slot = Some(Listener::Task(waker.clone())),
        }
    }

    /// Makes the operation's end report to a queue of this worker.
    pub(crate) fn set_queue(&self, queue: &Arc<QueueShared>, key: u64) {
        *lock(&self.listener) = Some(Listener::Queue(queue.clone(), key));
    }

    /// Clears the listener. False if it was notified, or is being notified.
    pub(crate) fn clear_listener(&self) -> bool {
        lock(&self.listener).take().is_some()
    }

    /// Whether it reports to a queue at which that operation of this worker waits.
    pub(crate) fn reports_to_queue_of(&self, waiter: TaskId) -> bool {
        match &*lock(&self.listener) {
            Some(Listener::Queue(queue, _)) => queue.is_awaited_by(waiter),
            _ => false,
        }
    }

    /// Makes the operation's end wake a task of this worker. Under the lock.
    pub(crate) fn set_local_waiter(&self, waker: &Waker) {
        self.local_waiter.set(Some(waker.clone()));
    }

    /// The operation of this worker that waits for this one. Under the lock.
    pub(crate) fn local_waiter(&self) -> Option<TaskId> {
        let waiter = self.local_waiter.take();
        let id = waiter.as_ref().map(TaskId::of);
        self.local_waiter.set(waiter);
        id
    }

    /// The result, if the operation is done and the result was not taken. For the handle.
    ///
    /// # Safety
    /// `T` is the operation's type.
    pub(crate) unsafe fn take<T>(&self) -> Option<Result<T>> {
        let mut result: Option<Result<T>> = None;
        if self.is_done() {
            self.accesses.write();
            // SAFETY: done, and the type is right by the caller's word.
            unsafe {
                (self.vtable.get().take)(self.stage.get(), ptr::from_mut(&mut result).cast())
            };
        }
        result
    }

    /// The result is in place: wakes the waiters, and releases the worker's reference.
    fn complete(&self, reactor: &Reactor) {
        if let Some(waiter) = self.local_waiter.take() {
            waiter.wake();
        }
        self.state.store(DONE, Ordering::Release);
        let listener = lock(&self.listener).take();
        match listener {
            // A task of this worker, or of another one: then that is deferred, too.
            Some(Listener::Task(waker)) if task::is_of_a_worker(&waker) => waker.wake(),
            Some(Listener::Task(waker)) => reactor.wake_after_release(waker),
            Some(Listener::Queue(queue, key)) => {
                let syncs_event = queue.push_as_driver(key);
                if syncs_event {
                    reactor.sync_event_after_release(queue);
                }
            }
            None => {}
        }
        // SAFETY: the worker's reference, released once; the object isn't touched afterwards.
        unsafe { PooledOperation::release(self.home.get(), &reactor.pool) };
    }

    /// Releases a reference.
    ///
    /// # Safety
    /// The caller owned it, and doesn't touch the object afterwards.
    pub(crate) unsafe fn release(this: NonNull<PooledOperation>, pool: &OperationPool) {
        // SAFETY: valid while the reference is counted.
        let operation = unsafe { this.as_ref() };
        let references = operation.references.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(references > 0, "a reference is released once");
        if references == 1 {
            // SAFETY: the last reference.
            unsafe { operation.drop_stage() };
            pool.put(this);
        }
    }

    /// Releases the last reference of an operation that was never begun, without its pool.
    ///
    /// # Safety
    /// The caller owned it, and doesn't touch the object afterwards.
    pub(crate) unsafe fn discard(this: NonNull<PooledOperation>) {
        // SAFETY: by the caller's word; leaked from a box in `take`.
        unsafe {
            this.as_ref().drop_stage();
            drop(Box::from_raw(this.as_ptr()));
        }
    }

    /// # Safety
    /// Once, with the last reference.
    unsafe fn drop_stage(&self) {
        let stage = self.stage.get();
        let on_heap = stage != self.inline.get().cast();
        self.accesses.write();
        // SAFETY: initialised by `fill`, and dropped once, by the caller's word.
        unsafe { (self.vtable.get().drop_stage)(stage, on_heap) };
    }
}

/// Idle objects.
pub(crate) struct OperationPool {
    idle: Mutex<Vec<NonNull<PooledOperation>>>,
}

// SAFETY: idle objects belong to the pool alone.
unsafe impl Send for OperationPool {}
// SAFETY: a mutex guards the idle objects.
unsafe impl Sync for OperationPool {}

impl OperationPool {
    pub(crate) fn new() -> Self {
        OperationPool {
            idle: Mutex::new(Vec::with_capacity(POOLED_MAX)),
        }
    }

    /// An object with this operation in it, and a reference for the worker. An operation that is
    /// not the worker's own has another one for its handle.
    pub(crate) fn fill<T, F, Fut>(&self, kind: TaskKind, start: F) -> NonNull<PooledOperation>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        let (vtable, references) = match kind {
            TaskKind::Local => (Typed::<F, Fut, T>::LOCAL, 1),
            _ => (Typed::<F, Fut, T>::SPAWNED, 2),
        };
        let this = self.take(vtable);
        // SAFETY: fresh from the pool, so ours alone.
        let operation = unsafe { this.as_ref() };
        let stage: *mut Stage<F, Fut, T> = if Typed::<F, Fut, T>::FITS {
            operation.inline.get().cast()
        } else {
            // SAFETY: the layout isn't empty: it is larger than INLINE_BYTES, or its alignment, and
            // hence its size, is above 64.
            let stage = unsafe { alloc::alloc(Typed::<F, Fut, T>::LAYOUT) };
            if stage.is_null() {
                alloc::handle_alloc_error(Typed::<F, Fut, T>::LAYOUT);
            }
            stage.cast()
        };
        operation.accesses.write();
        // SAFETY: room of the right size and alignment, see FITS; nothing to drop there.
        unsafe { stage.write(Stage::Start(start)) };
        operation.stage.set(stage.cast());
        operation.vtable.set(vtable);
        operation.references.store(references, Ordering::Relaxed);
        operation.state.store(PENDING, Ordering::Relaxed);
        this
    }

    fn take(&self, vtable: &'static PooledVtable) -> NonNull<PooledOperation> {
        let idle = lock(&self.idle).pop();
        idle.unwrap_or_else(|| {
            let operation = Box::new(PooledOperation {
                message: Message::new(MessageKind::Pooled),
                references: AtomicU32::new(0),
                state: AtomicU32::new(PENDING),
                listener: Mutex::new(None),
                local_waiter: Cell::new(None),
                vtable: Cell::new(vtable),
                home: Cell::new(NonNull::dangling()),
                stage: Cell::new(ptr::null_mut()),
                inline: UnsafeCell::new([MaybeUninit::uninit(); INLINE_BYTES]),
                accesses: RaceCheck::new(),
            });
            let operation = NonNull::from(Box::leak(operation));
            // SAFETY: just made.
            unsafe { operation.as_ref() }.home.set(operation);
            operation
        })
    }

    /// Takes back an object whose stage was dropped.
    fn put(&self, operation: NonNull<PooledOperation>) {
        // SAFETY: the last reference is gone, so it is ours alone.
        let listener = lock(&unsafe { operation.as_ref() }.listener).take();
        drop(listener);
        let mut idle = lock(&self.idle);
        if idle.len() < POOLED_MAX {
            idle.push(operation);
        } else {
            drop(idle);
            // SAFETY: leaked from a box in `take`, and ours alone.
            drop(unsafe { Box::from_raw(operation.as_ptr()) });
        }
    }
}

impl Drop for OperationPool {
    fn drop(&mut self) {
        for operation in lock(&self.idle).drain(..) {
            // SAFETY: leaked from a box in `take`; idle objects are the pool's alone.
            drop(unsafe { Box::from_raw(operation.as_ptr()) });
        }
    }
}
