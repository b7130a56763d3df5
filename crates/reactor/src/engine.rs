//! The engine: a worker's state, and the calls that run operations on it.
//!
//! Only operations reach the state. The driver runs them, under the worker's lock, one at a time
//! between their awaits. Invariants: the state is dropped once, after the last operation, under the
//! lock; a reference to it never leaves an operation.
//!
//! An operation's future needn't be `Send` although several threads may poll it one after the
//! other: everything in it belongs to the worker, and the lock orders its polls. A value of a
//! *thread* must not live across an await (a `std` mutex guard, a thread-local's reference).

use std::cell::UnsafeCell;
use std::future::Future;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use adit_base::sync::atomic::{AtomicBool, Ordering};
use adit_base::{Errno, Error, Result};
use adit_block::Device;
use smallvec::SmallVec;

use crate::driver::{Core, DriverRole, EngineOptions, Notify, Patience, ReentryGuard, forked};
use crate::handle::{Handle, Host};
use crate::queue::CompletionQueue;
use crate::reactor::Reactor;
use crate::reactor::pooled::PooledOperation;
use crate::reactor::task::TaskKind;

/// A worker's state `S`, driven by the threads that call it.
pub struct Engine<S> {
    core: Arc<Core>,
    /// Initialised from the end of `start` until `live` is cleared. Under the worker's lock.
    state: UnsafeCell<MaybeUninit<S>>,
    live: AtomicBool,
}

// SAFETY: the state is touched under the worker's lock only, so by one thread at a time; see the
// header for futures.
unsafe impl<S> Send for Engine<S> {}
// SAFETY: the state is touched under the worker's lock only.
unsafe impl<S> Sync for Engine<S> {}

/// An operation of [`Engine::prepare`], to be begun by [`Engine::poll`] of the same engine.
/// Dropping it drops the operation's values.
#[must_use = "it is begun by `Engine::poll`"]
#[derive(Debug)]
pub struct Prepared {
    operation: NonNull<PooledOperation>,
}

// SAFETY: the closure in it is `Send`, and nothing has begun it.
unsafe impl Send for Prepared {}

impl Prepared {
    fn into_operation(self) -> NonNull<PooledOperation> {
        let operation = self.operation;
        std::mem::forget(self);
        operation
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // SAFETY: the worker's reference, the only one: no worker has seen the operation.
        unsafe { PooledOperation::discard(self.operation) };
    }
}

/// A raw pointer to the state that may move to the thread that drives.
struct StatePointer<S>(*const S);

// SAFETY: dereferenced under the worker's lock only.
unsafe impl<S> Send for StatePointer<S> {}

impl<S> StatePointer<S> {
    /// # Safety
    /// Under the worker's lock, and the state outlives `'a`.
    unsafe fn get<'a>(self) -> &'a S {
        // SAFETY: by the caller's word.
        unsafe { &*self.0 }
    }
}

impl<S: 'static> Engine<S> {
    /// Opens a queue on the device, starts the keeper (EAGAIN if there can be no more threads), and
    /// builds the worker's state by driving `make` to its end.
    pub fn start<F, Fut>(
        device: Arc<dyn Device>,
        options: EngineOptions,
        make: F,
    ) -> Result<Arc<Engine<S>>>
    where
        F: FnOnce(Rc<Reactor>) -> Fut,
        Fut: Future<Output = Result<S>>,
    {
        let inside = ReentryGuard::enter()?;
        let core = Core::new(device, &options)?;
        let made = core.run(|| {
            // SAFETY: runs under the lock; the clone stays with the worker.
            make(unsafe { core.reactor() }.clone())
        });
        match made {
            Ok(state) => Ok(Arc::new(Engine {
                core,
                state: UnsafeCell::new(MaybeUninit::new(state)),
                live: AtomicBool::new(true),
            })),
            Err(error) => {
                drop(inside);
                core.closing.store(true, Ordering::Relaxed);
                core.keeper.stop();
                core.end(|| {});
                Err(error)
            }
        }
    }

    /// Runs an operation to its end: a blocking call. Allocates nothing, and wakes no thread unless
    /// others use the worker at the same time.
    ///
    /// EIO after a panic, ESHUTDOWN after `shutdown`, EBADF in a forked child, EDEADLK from a
    /// signal handler that interrupted a call.
    #[inline]
    pub fn run<'a, T, F, Fut>(&'a self, operation: F) -> Result<T>
    where
        T: Send,
        F: FnOnce(&'a S) -> Fut + Send,
        Fut: Future<Output = Result<T>> + 'a,
    {
        let _inside = ReentryGuard::enter()?;
        self.core.check()?;
        let state = self.pointer();
        // SAFETY: called under the lock; after the state's end the worker refuses operations.
        self.core.run(move || operation(unsafe { state.get() }))
    }

    /// Runs a function on this thread without taking the worker, and after it, if it returns true,
    /// an operation with the worker. Both are one call: refused as [`Engine::run`] is, from a
    /// signal handler too.
    #[inline]
    pub fn run_without_owner<'a, T, F, Fut>(
        &'a self,
        call: impl FnOnce() -> (T, bool),
        then: F,
    ) -> Result<T>
    where
        F: FnOnce(&'a S) -> Fut + Send,
        Fut: Future<Output = Result<()>> + 'a,
    {
        let _inside = ReentryGuard::enter()?;
        self.core.check()?;
        let (result, runs_operation) = call();
        if runs_operation {
            let state = self.pointer();
            // SAFETY: as in `run`.
            self.core.run(move || then(unsafe { state.get() }))?;
        }
        Ok(result)
    }

    /// Begins an operation that runs to its end even if the handle is dropped.
    ///
    /// If the lock is free, it is polled now. When it waits, polls of the handle, other callers and
    /// the keeper advance it. The result must not keep the reference to the state.
    pub fn spawn<T, F, Fut>(self: &Arc<Self>, operation: F) -> Handle<T>
    where
        T: Send + 'static,
        F: FnOnce(&'static S) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        let _inside = match ReentryGuard::enter() {
            Ok(inside) => inside,
            Err(error) => return Handle::failed(error),
        };
        if let Err(error) = self.core.check() {
            return Handle::failed(error);
        }
        let state = self.pointer();
        // SAFETY: called under the lock; operations are done before the state is dropped.
        let start = move || operation(unsafe { state.get() });
        Handle::begin(self.clone(), start)
    }

    /// Begins an operation from inside one of another engine, or of this one: [`Engine::spawn`] for
    /// those. `reactor` is the calling operation's. The handle may be awaited there.
    ///
    /// The calling thread drives this engine after it has released the other one, unless another
    /// thread does. The reactor shows that an operation calls: a signal handler, which `spawn`
    /// refuses, has none.
    pub fn spawn_from<T, F, Fut>(self: &Arc<Self>, reactor: &Reactor, operation: F) -> Handle<T>
    where
        T: Send + 'static,
        F: FnOnce(&'static S) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        if let Err(error) = self.core.check_from_worker() {
            return Handle::failed(error);
        }
        let state = self.pointer();
        // SAFETY: called under the lock; operations are done before the state is dropped.
        let start = move || operation(unsafe { state.get() });
        Handle::begin_from(self.clone(), reactor, start)
    }

    /// Runs a closure with this engine's state, too, inside an operation of another engine whose
    /// reactor is given. The closure is called at once, under both workers' locks. None if this
    /// worker's lock is held for longer than some µs: then the operation calls
    /// [`Reactor::step_aside`], and tries again. In between, both states may change.
    ///
    /// *No deadlock:* a thread with a lock only tries to take another one. An operation that tries
    /// again without stepping aside breaks that: the holder may be trying to take its lock.
    ///
    /// The closure leaves nothing of one worker with the other one: both states may have counts of
    /// references that only their own lock guards.
    ///
    /// The closure may wake tasks of both workers, and begin operations. After a panic in it both
    /// workers are poisoned. EIO after a panic, ESHUTDOWN after the end.
    pub fn beside<T: Send>(
        &self,
        reactor: &Reactor,
        closure: impl FnOnce(&S) -> T,
    ) -> Result<Option<T>> {
        let state = self.pointer();
        // SAFETY: called under the lock, of a worker that has not ended.
        let closure = || closure(unsafe { state.get() });
        self.core.visit(reactor, Patience::Short, closure)
    }

    /// [`Engine::beside`] with the states of several engines, whose locks are taken in this order;
    /// the operation's own engine may be among them.
    ///
    /// For one thread at a time, the leader of a commit: while it has some of the locks it waits
    /// for the others, for 20 ms at most each; then None. Drivers step aside for it between two
    /// polls, so it waits for a poll of each worker.
    pub fn beside_all<T: Send>(
        engines: &[Arc<Engine<S>>],
        reactor: &Reactor,
        closure: impl FnOnce(&[&S]) -> T,
    ) -> Result<Option<T>> {
        let mut closure = Some(closure);
        let mut result = None;
        let mut states = SmallVec::new();
        let mut call = |states: &[&S]| result = closure.take().map(|closure| closure(states));
        Engine::visit_all(engines, reactor, &mut states, &mut call)?;
        Ok(result)
    }

    /// Visits the first engine, with its lock the next one, and so on, and calls `call` with all
    /// states.
    fn visit_all<'s>(
        engines: &'s [Arc<Engine<S>>],
        reactor: &Reactor,
        states: &mut SmallVec<[&'s S; 16]>,
        call: &mut dyn FnMut(&[&S]),
    ) -> Result<()> {
        let Some((engine, others)) = engines.split_first() else {
            call(states);
            return Ok(());
        };
        let state = engine.pointer();
        let visited = engine.core.visit(reactor, Patience::Leader, || {
            // SAFETY: under the lock, of a worker that has not ended; `call` is called below, and
            // nothing reads `states` after it.
            states.push(unsafe { state.get() });
            Engine::visit_all(others, reactor, states, call)
        });
        visited?.unwrap_or(Ok(()))
    }

    /// A queue of completions whose waiting threads drive this worker.
    pub fn completion_queue(self: &Arc<Self>) -> CompletionQueue {
        CompletionQueue::new(self.clone())
    }

    /// Begins operations without handles: they put their results where their callers find them. If
    /// an operation fails with the worker, its values are dropped, so the caller learns of that,
    /// too.
    ///
    /// If the lock is free, they are polled now, and handed to the device together. With
    /// `comes_back` a thread waits for all of them in a blocking call ([`Engine::run`]) before
    /// long: then the keeper isn't woken for requests in the device's queue.
    pub fn start_together<F, Fut>(
        self: &Arc<Self>,
        operations: impl IntoIterator<Item = F>,
        comes_back: bool,
    ) -> Result<()>
    where
        F: FnOnce(&'static S) -> Fut + Send + 'static,
        Fut: Future<Output = Result<()>> + 'static,
    {
        let _inside = ReentryGuard::enter()?;
        self.core.check()?;
        let mut filled: SmallVec<[NonNull<PooledOperation>; 16]> = SmallVec::new();
        for operation in operations {
            let state = self.pointer();
            // SAFETY: called under the lock; operations are done before the state is dropped.
            let start = move || operation(unsafe { state.get() });
            let operation = self.core.pool.fill(TaskKind::Spawned, start);
            // SAFETY: the reference of a handle that there is not.
            unsafe { PooledOperation::release(operation, &self.core.pool) };
            filled.push(operation);
        }
        // SAFETY: new, with the worker's reference each.
        unsafe { self.core.submit_together(&filled, comes_back) };
        Ok(())
    }

    /// Would an operation be refused? As [`Engine::run`] says: after a panic, after the end, in a
    /// forked child.
    pub fn check(&self) -> Result<()> {
        self.core.check()
    }

    /// An operation that [`Engine::poll`] begins. As with [`Engine::start_together`], it puts its
    /// result where its caller finds it, and is dropped if it is refused or fails with the worker.
    pub fn prepare<F, Fut>(self: &Arc<Self>, operation: F) -> Result<Prepared>
    where
        F: FnOnce(&'static S) -> Fut + Send + 'static,
        Fut: Future<Output = Result<()>> + 'static,
    {
        self.core.check()?;
        let state = self.pointer();
        // SAFETY: called under the lock; operations are done before the state is dropped.
        let start = move || operation(unsafe { state.get() });
        let operation = self.core.pool.fill(TaskKind::Spawned, start);
        // SAFETY: the reference of a handle that there is not.
        unsafe { PooledOperation::release(operation, &self.core.pool) };
        Ok(Prepared { operation })
    }

    /// Begins operations, and drives while there is work and `is_done` is false, without waiting
    /// for the device. For a thread that calls it in a loop: remaining work waits for its next
    /// call, and wakes no other thread.
    pub fn poll(
        &self,
        begun: impl IntoIterator<Item = Prepared>,
        is_done: &dyn Fn() -> bool,
    ) -> Result<()> {
        let _inside = ReentryGuard::enter()?;
        let begun: SmallVec<[_; 16]> = begun.into_iter().map(Prepared::into_operation).collect();
        // SAFETY: new, with the worker's reference each.
        unsafe { self.core.submit_and_poll(&begun, is_done) };
        Ok(())
    }

    /// The thread that polls stops for a while: the keeper takes the work that is left. Inside a
    /// call this does nothing.
    pub fn leave_to_keeper(&self) {
        // This thread polls operations: a call that one of them makes must not wait for it.
        let Ok(_inside) = ReentryGuard::enter() else {
            return;
        };
        self.core.try_drive(&DriverRole::OneBatch, Notify::Always);
    }

    /// Whether an operation panicked. All operations fail with EIO then, and nothing is written.
    pub fn poisoned(&self) -> bool {
        self.core.is_poisoned()
    }

    /// Whether it is poisoned, and all that was under way has ended: operations, whose futures are
    /// forgotten, and requests.
    pub fn have_all_failed(&self) -> bool {
        self.core.have_all_failed()
    }

    /// How often the keeper woke up. The keeper of an idle engine doesn't.
    pub fn keeper_wakeups(&self) -> u64 {
        self.core.keeper.wakeups()
    }

    /// Refuses new operations, waits for those under way, runs a last one, stops the keeper, drops
    /// the state and closes the queue.
    ///
    /// The state is dropped even if the last operation fails. ESHUTDOWN if it was shut down before.
    pub fn shutdown<'a, F, Fut>(&'a self, operation: F) -> Result<()>
    where
        F: FnOnce(&'a S) -> Fut + Send,
        Fut: Future<Output = Result<()>> + 'a,
    {
        self.drain()?;
        self.finish(operation)
    }

    /// The first half of [`Engine::shutdown`], for engines that know each other: refuses new
    /// operations of callers, and waits for those under way. Operations of other engines may begin
    /// more. [`Engine::finish`] must follow, once all of the engines are drained.
    pub fn drain(&self) -> Result<()> {
        let _inside = ReentryGuard::enter()?;
        if self.core.is_forked() {
            return Err(forked());
        }
        if self.core.closing.swap(true, Ordering::AcqRel) {
            return Err(Error::new(Errno::SHUTDOWN));
        }
        let core = &self.core;
        let drained = core.run(move || async move {
            // SAFETY: under the lock, as everything in this future.
            let reactor = unsafe { core.reactor() }.clone();
            reactor.drained().await;
            Ok(())
        });
        // After a panic all operations have failed.
        let _: Result<()> = drained;
        Ok(())
    }

    /// The second half of [`Engine::shutdown`], after [`Engine::drain`].
    pub fn finish<'a, F, Fut>(&'a self, operation: F) -> Result<()>
    where
        F: FnOnce(&'a S) -> Fut + Send,
        Fut: Future<Output = Result<()>> + 'a,
    {
        let inside = ReentryGuard::enter()?;
        let core = &self.core;
        let state = self.pointer();
        let result = core.run(move || async move {
            // SAFETY: under the lock, as everything in this future.
            let reactor = unsafe { core.reactor() }.clone();
            reactor.drained().await;
            // SAFETY: under the lock; the state is dropped by `end`, after this.
            let result = operation(unsafe { state.get() }).await;
            // Still under the lock: a thread that checked `closing` before it was set is refused
            // now.
            reactor.set_unusable();
            result
        });
        drop(inside);
        self.end();
        result
    }
}

impl<S> Engine<S> {
    fn pointer(&self) -> StatePointer<S> {
        StatePointer(self.state.get().cast::<S>().cast_const())
    }

    /// Stops the keeper and drops the state.
    fn end(&self) {
        if !self.live.swap(false, Ordering::AcqRel) {
            return;
        }
        self.core.ended.store(true, Ordering::Release);
        self.core.keeper.stop();
        self.core.end(|| {
            // SAFETY: under the lock, with all operations done; initialised until `live` was
            // cleared.
            unsafe { (*self.state.get()).assume_init_drop() };
        });
    }
}

impl<S> Host for Engine<S> {
    fn core(&self) -> &Core {
        &self.core
    }
}

impl<S> Drop for Engine<S> {
    /// Waits for operations whose handles were dropped, then ends the worker without a last
    /// operation.
    fn drop(&mut self) {
        if !self.live.load(Ordering::Relaxed) || self.core.is_forked() {
            return;
        }
        let Ok(inside) = ReentryGuard::enter() else {
            tracing::error!(volume = %self.core.name, "an engine dropped inside one of its calls is leaked");
            return;
        };
        self.core.closing.store(true, Ordering::Relaxed);
        let core = &self.core;
        // Operations of other engines may have put some into the inbox, and not notified yet.
        core.try_drive(&DriverRole::Messenger, Notify::Always);
        // SAFETY: the closure and its future run under the lock.
        let drained = core.run(move || async move {
            // SAFETY: under the lock.
            unsafe { core.reactor() }.clone().drained().await;
            Ok(())
        });
        if let Err(error) = drained {
            tracing::debug!(volume = %self.core.name, %error, "not all operations ended");
        }
        drop(inside);
        self.end();
    }
}
