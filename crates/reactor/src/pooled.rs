//! Operations that nobody's stack holds: recycled cells for spawned operations and for the worker's own tasks.
//!
//! A cell has room for the operation, its future and its result (one after the other, in place); only those larger than [`INLINE_BYTES`] go
//! to the heap. Cells come from a pool, so that spawning allocates nothing once there were enough of them.
//!
//! Invariants: the operation's side is touched under the worker's lock only; the result belongs to the handle once `state` is DONE. There is
//! one reference for the worker until the operation is done and one for the handle, if there is one; the last gives the cell back.

use std::alloc::{self, Layout};
use std::cell::{Cell, UnsafeCell};
use std::future::Future;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::task::{Context, Waker};

use adit_base::sync::atomic::{AtomicU32, Ordering};
use adit_base::sync::{Mutex, RaceCheck};
use adit_base::{Error, Result};

use crate::lock::{Message, MessageKind};
use crate::node::Stage;
use crate::reactor::Reactor;
use crate::task::{Polled, Task, TaskId, TaskKind, TaskVtable};

/// Operations up to this size need no allocation.
const INLINE_BYTES: usize = 2048;
/// Idle cells that are kept.
const POOLED_MAX: usize = 256;

const PENDING: u32 = 0;
const DONE: u32 = 1;

/// A recycled home of an operation.
#[repr(C, align(64))]
pub(crate) struct PooledOperation {
    pub(crate) message: Message,
    references: AtomicU32,
    state: AtomicU32,
    /// The executor's, of the task that polls the handle.
    waker: Mutex<Option<Waker>>,
    /// An operation of this worker that waits for this one. Under the lock.
    local_waiter: Cell<Option<Waker>>,
    vtable: Cell<&'static PooledVtable>,
    /// Itself, as it was allocated.
    home: Cell<NonNull<PooledOperation>>,
    /// The `Stage`: in `inline`, or on the heap.
    stage: Cell<*mut ()>,
    inline: UnsafeCell<[MaybeUninit<u8>; INLINE_BYTES]>,
    /// Of the stage.
    accesses: RaceCheck,
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

    unsafe fn poll(data: *const (), reactor: &Reactor, context: &mut Context<'_>) -> Polled {
        // SAFETY: a task's data is its cell, of which the worker holds a reference until it is done.
        let cell = unsafe { &*data.cast::<PooledOperation>() };
        let stage = cell.stage.get().cast::<Stage<F, Fut, T>>();
        cell.accesses.write();
        // SAFETY: under the lock and not done, so the only reference; the stage stays where it was put.
        let polled = unsafe { Stage::poll(stage, reactor, context) };
        if polled == Polled::Done {
            cell.complete(reactor);
        }
        polled
    }

    unsafe fn fail(data: *const (), reactor: &Reactor, error: &dyn Fn() -> Error) {
        // SAFETY: as in `poll`.
        let cell = unsafe { &*data.cast::<PooledOperation>() };
        let stage = cell.stage.get().cast::<Stage<F, Fut, T>>();
        cell.accesses.write();
        // SAFETY: as in `poll`; the task leaves the table.
        unsafe { Stage::fail(stage, error()) };
        cell.complete(reactor);
    }

    unsafe fn drop_future(data: *const (), reactor: &Reactor) {
        // SAFETY: as in `poll`.
        let cell = unsafe { &*data.cast::<PooledOperation>() };
        cell.accesses.write();
        // SAFETY: as in `poll`; assigning drops the future in place.
        unsafe { *cell.stage.get().cast::<Stage<F, Fut, T>>() = Stage::Empty };
        cell.complete(reactor);
    }

    unsafe fn drop_stage(stage: *mut (), on_heap: bool) {
        // SAFETY: initialised when the cell was filled, dropped once, with the cell's last reference.
        unsafe { ptr::drop_in_place(stage.cast::<Stage<F, Fut, T>>()) };
        if on_heap {
            // SAFETY: allocated with this layout.
            unsafe { alloc::dealloc(stage.cast(), Self::LAYOUT) };
        }
    }

    unsafe fn take(stage: *mut (), result: *mut ()) {
        // SAFETY: done, so the stage belongs to the handle; `result` is an Option<Result<T>> by the caller's word.
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

    /// Registers who is to be woken when it is done; looking at `is_done` *afterwards* misses nothing.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        let mut slot = self.waker.lock().unwrap_or_else(|held| held.into_inner());
        match &mut *slot {
            Some(present) => present.clone_from(waker),
            None => *slot = Some(waker.clone()),
        }
    }

    /// The same for an operation of this worker. Under the lock.
    pub(crate) fn set_local_waiter(&self, waker: &Waker) {
        self.local_waiter.set(Some(waker.clone()));
    }

    /// Which operation of this worker waits for this one. Under the lock.
    pub(crate) fn local_waiter(&self) -> Option<TaskId> {
        let waiter = self.local_waiter.take();
        let id = waiter.as_ref().map(TaskId::of);
        self.local_waiter.set(waiter);
        id
    }

    /// The result, if it is done and wasn't taken. For the handle.
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

    /// The result is in place: tells who waits, and gives up the worker's reference.
    fn complete(&self, reactor: &Reactor) {
        if let Some(waiter) = self.local_waiter.take() {
            waiter.wake();
        }
        self.state.store(DONE, Ordering::Release);
        let waker = self
            .waker
            .lock()
            .unwrap_or_else(|held| held.into_inner())
            .take();
        if let Some(waker) = waker {
            reactor.wake_after_release(waker);
        }
        // SAFETY: the worker's reference, given up once; the cell isn't touched afterwards.
        unsafe { PooledOperation::release(self.home.get(), reactor.pool()) };
    }

    /// Gives up a reference.
    ///
    /// # Safety
    /// The caller owned it, and doesn't touch the cell afterwards.
    pub(crate) unsafe fn release(this: NonNull<PooledOperation>, pool: &OperationPool) {
        // SAFETY: valid while the reference is counted.
        let cell = unsafe { this.as_ref() };
        if cell.references.fetch_sub(1, Ordering::AcqRel) == 1 {
            let stage = cell.stage.get();
            let on_heap = stage != cell.inline.get().cast();
            cell.accesses.write();
            // SAFETY: the last reference; the stage was initialised by `fill`.
            unsafe { (cell.vtable.get().drop_stage)(stage, on_heap) };
            pool.put(this);
        }
    }
}

/// Idle cells.
pub(crate) struct OperationPool {
    idle: Mutex<Vec<NonNull<PooledOperation>>>,
}

// SAFETY: idle cells belong to the pool alone.
unsafe impl Send for OperationPool {}
// SAFETY: as above, behind a mutex.
unsafe impl Sync for OperationPool {}

impl OperationPool {
    pub(crate) fn new() -> Self {
        OperationPool {
            idle: Mutex::new(Vec::with_capacity(POOLED_MAX)),
        }
    }

    /// A cell with an operation in it, with one reference for the worker and, when it was spawned by a handle's owner, one for the handle.
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
        let cell = unsafe { this.as_ref() };
        let stage: *mut Stage<F, Fut, T> = if Typed::<F, Fut, T>::FITS {
            cell.inline.get().cast()
        } else {
            // SAFETY: larger than INLINE_BYTES or more aligned, so at least not empty: an alignment above 64 implies a size above 64.
            let stage = unsafe { alloc::alloc(Typed::<F, Fut, T>::LAYOUT) };
            if stage.is_null() {
                alloc::handle_alloc_error(Typed::<F, Fut, T>::LAYOUT);
            }
            stage.cast()
        };
        cell.accesses.write();
        // SAFETY: room of the right size and alignment, see FITS; nothing to drop there.
        unsafe { stage.write(Stage::Start(start)) };
        cell.stage.set(stage.cast());
        cell.vtable.set(vtable);
        cell.references.store(references, Ordering::Relaxed);
        cell.state.store(PENDING, Ordering::Relaxed);
        this
    }

    fn take(&self, vtable: &'static PooledVtable) -> NonNull<PooledOperation> {
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(|held| held.into_inner())
            .pop();
        idle.unwrap_or_else(|| {
            let cell = Box::new(PooledOperation {
                message: Message::new(MessageKind::Pooled),
                references: AtomicU32::new(0),
                state: AtomicU32::new(PENDING),
                waker: Mutex::new(None),
                local_waiter: Cell::new(None),
                vtable: Cell::new(vtable),
                home: Cell::new(NonNull::dangling()),
                stage: Cell::new(ptr::null_mut()),
                inline: UnsafeCell::new([MaybeUninit::uninit(); INLINE_BYTES]),
                accesses: RaceCheck::new(),
            });
            let cell = NonNull::from(Box::leak(cell));
            // SAFETY: just made.
            unsafe { cell.as_ref() }.home.set(cell);
            cell
        })
    }

    /// Takes a cell back whose stage was dropped.
    fn put(&self, cell: NonNull<PooledOperation>) {
        // SAFETY: the last reference is gone, so it is ours alone.
        let waker = unsafe { cell.as_ref() }
            .waker
            .lock()
            .unwrap_or_else(|held| held.into_inner())
            .take();
        drop(waker);
        let mut idle = self.idle.lock().unwrap_or_else(|held| held.into_inner());
        if idle.len() < POOLED_MAX {
            idle.push(cell);
        } else {
            drop(idle);
            // SAFETY: leaked from a box in `take`, and ours alone.
            drop(unsafe { Box::from_raw(cell.as_ptr()) });
        }
    }
}

impl Drop for OperationPool {
    fn drop(&mut self) {
        let idle = self.idle.get_mut().unwrap_or_else(|held| held.into_inner());
        for cell in idle.drain(..) {
            // SAFETY: leaked from a box in `take`; idle cells are the pool's alone.
            drop(unsafe { Box::from_raw(cell.as_ptr()) });
        }
    }
}
