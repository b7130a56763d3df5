//! A queue of completions: a thread waits for any of many operations.
//!
//! An operation that reports to a queue (`Handle::report_to`) puts its key there when it is done;
//! [`CompletionQueue::wait`] takes keys out in that order. The queue belongs to one worker, its
//! *home*, which a waiting thread drives as a blocking call does. So a thread that waits completes
//! its operations itself, and no other thread is woken for it. Operations of other workers are
//! driven by their own keepers.
//!
//! ```text
//!  driver of home: push_as_driver ──┐           ┌── poll of the wait's operation, by the driver
//!                                   ├──► done ──┤
//!  any other thread: post ──────────┘           └── take_ready, without the worker
//! ```
//! Invariants:
//! 1. A key is in `done` from its push to its take, and is taken once. Everything is under `state`,
//!    a mutex that no thread holds across a system call or another lock.
//! 2. If `done` has as many keys as some waiter wants, a waiter is woken, or about to be: by the
//!    driver that pushed, by the operation that `post` submits to the home worker, or by the waiter
//!    that took and left some.
//! 3. The event is readable while `done` has keys that no waiter is about to take, apart from the
//!    moment until the thread that changed this has called `sync_event`. Only one thread at a time
//!    writes and reads it. That thread looks again before it stops, so no change is lost.
//! 4. When `done` was empty, the push signals the event even if it is still readable: a program that
//!    waits edge-triggered and takes all keys misses none.

use std::future::Future;
use std::os::fd::RawFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use adit_base::Result;

use crate::driver::{DriverRole, Notify, ReentryGuard, forked};
use crate::event::EventFd;
use crate::handle::{Handle, Host};
use crate::lock::lock;
use crate::reactor::completions::{Keys, QueueShared};

/// A queue of completions, with a worker as its home.
pub struct CompletionQueue {
    host: Arc<dyn Host>,
    shared: Arc<QueueShared>,
}

impl CompletionQueue {
    pub(crate) fn new(host: Arc<dyn Host>) -> CompletionQueue {
        CompletionQueue {
            host,
            shared: Arc::default(),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<QueueShared> {
        &self.shared
    }

    pub(crate) fn host(&self) -> &Arc<dyn Host> {
        &self.host
    }

    /// True in a forked child.
    pub fn is_forked(&self) -> bool {
        self.host.core().is_forked()
    }

    /// Puts a key into the queue, as an operation that ends does.
    ///
    /// EBADF in a forked child, EDEADLK from a signal handler that interrupted a call.
    pub fn post(&self, key: u64) -> Result<()> {
        if self.is_forked() {
            return Err(forked());
        }
        self.post_inside(key, Some(ReentryGuard::enter()?));
        Ok(())
    }

    /// With `inside`, a signal handler that posts meanwhile is refused: the mutex may be held here.
    fn post_inside(&self, key: u64, inside: Option<ReentryGuard>) {
        let (wakes, syncs) = {
            let mut state = lock(&self.shared.state);
            state.push(key);
            (state.satisfied().is_some(), state.needs_sync())
        };
        // After a panic or the end all waits fail, and look at the queue again.
        if wakes && inside.is_some() && self.host.core().check().is_ok() {
            let shared = self.shared.clone();
            let wake = || async move {
                shared.wake_waiter();
                Ok(())
            };
            drop(Handle::<()>::begin(self.host.clone(), wake));
        }
        if syncs {
            self.shared.sync_event();
        }
    }

    /// A descriptor that is readable while the queue has keys, for `poll` and `epoll`. The queue
    /// reads and writes it, and closes it at its end.
    ///
    /// EBADF in a forked child, EDEADLK from a signal handler that interrupted a call.
    pub fn event(&self) -> Result<RawFd> {
        if self.is_forked() {
            return Err(forked());
        }
        let _inside = ReentryGuard::enter()?;
        if self.shared.event.get().is_none() {
            // Of two threads that come here at once, one drops its own.
            let _ = self.shared.event.set(EventFd::new()?);
        }
        lock(&self.shared.state).has_event = true;
        self.shared.sync_event();
        Ok(self.shared.event.get().map_or(-1, EventFd::descriptor))
    }

    /// Takes `min` to `max` keys, in the order in which the operations ended; fewer after the
    /// timeout (`None`: never). Several threads may wait at once: the first of those for which there
    /// are enough keys gets them. With a timeout of zero it takes the keys that are there; if they
    /// are too few, after all progress that is possible without waiting.
    ///
    /// EIO after a panic if there are no keys, EBADF in a forked child, EDEADLK from a signal
    /// handler that interrupted a call.
    pub fn wait(
        &self,
        min: usize,
        max: usize,
        timeout: Option<Duration>,
        keys: &mut Keys,
    ) -> Result<()> {
        if self.is_forked() {
            return Err(forked());
        }
        let _inside = ReentryGuard::enter()?;
        let min = min.min(max);
        let result = if self.take_ready(min.max(1), max, keys) {
            Ok(())
        } else if min == 0 || timeout == Some(Duration::ZERO) {
            let is_done = || self.has_ready(min.max(1));
            let role = DriverRole::poller(&is_done, false);
            self.host.core().try_drive(&role, Notify::IfHeld);
            lock(&self.shared.state).take(max, keys);
            Ok(())
        } else {
            self.wait_as_caller(min, max, timeout, keys)
        };
        self.shared.sync_event_if_needed();
        match result {
            // Remains of failed operations.
            Err(error) => {
                lock(&self.shared.state).take(max, keys);
                if keys.is_empty() { Err(error) } else { Ok(()) }
            }
            done => done,
        }
    }

    #[cfg(all(test, loom))]
    pub(crate) fn event_is_readable(&self) -> bool {
        self.shared.event.get().is_some_and(EventFd::is_readable)
    }

    fn has_ready(&self, count: usize) -> bool {
        lock(&self.shared.state).done.len() >= count
    }

    /// Takes keys if there are enough, and no thread waits that came before.
    fn take_ready(&self, min: usize, max: usize, keys: &mut Keys) -> bool {
        let mut state = lock(&self.shared.state);
        let takes = state.done.len() >= min && state.satisfied().is_none();
        if takes {
            state.take(max, keys);
        }
        takes
    }

    /// Waits as a blocking call does: this thread drives the home worker, or waits for its driver.
    fn wait_as_caller(
        &self,
        min: usize,
        max: usize,
        timeout: Option<Duration>,
        keys: &mut Keys,
    ) -> Result<()> {
        let core = self.host.core();
        let mut number = None;
        let waiting = &mut number;
        let waited = core.run(move || async move {
            // SAFETY: under the lock, as everything in this future.
            let reactor = unsafe { core.reactor() }.clone();
            let mut deadline = pin!(timeout.map(|timeout| reactor.sleep(timeout)));
            std::future::poll_fn(|context| {
                let sleep = deadline.as_mut().as_pin_mut();
                let is_over = sleep.is_some_and(|sleep| sleep.poll(context).is_ready());
                let mut state = lock(&self.shared.state);
                let number =
                    *waiting.get_or_insert_with(|| state.add_waiter(min, context.waker().clone()));
                let first = state.satisfied().map(|waiter| waiter.number);
                if first != Some(number) && !is_over {
                    return Poll::Pending;
                }
                state.take(max, keys);
                state.remove_waiter(number);
                if let Some(next) = state.satisfied() {
                    next.waker.wake_by_ref();
                }
                Poll::Ready(Ok(()))
            })
            .await
        });
        // A wait that failed is still in the list.
        if let (Err(_), Some(number)) = (&waited, number) {
            lock(&self.shared.state).remove_waiter(number);
        }
        waited
    }
}

/// An operation of the home worker that waits for any key, and takes none.
pub(crate) struct Watch<'q> {
    queue: &'q CompletionQueue,
    number: Option<u64>,
}

impl CompletionQueue {
    pub(crate) fn watch(&self) -> Watch<'_> {
        Watch {
            queue: self,
            number: None,
        }
    }
}

impl Watch<'_> {
    /// Whether there is a key; if not, the task is woken for the first one. For the home worker's
    /// driver.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> bool {
        let mut state = lock(&self.queue.shared.state);
        if self.number.is_none() {
            let number = state.add_waiter(1, context.waker().clone());
            self.number = Some(number);
        }
        !state.done.is_empty()
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            lock(&self.queue.shared.state).remove_waiter(number);
        }
    }
}

impl std::fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompletionQueue").finish_non_exhaustive()
    }
}

/// The end of an operation of another worker, on its way to the queue.
pub(crate) struct Report {
    queue: CompletionQueue,
    key: u64,
}

impl Report {
    pub(crate) fn waker(queue: &CompletionQueue, key: u64) -> Waker {
        let queue = CompletionQueue {
            host: queue.host.clone(),
            shared: queue.shared.clone(),
        };
        Waker::from(Arc::new(Report { queue, key }))
    }
}

impl Wake for Report {
    fn wake(self: Arc<Self>) {
        self.queue.post_inside(self.key, ReentryGuard::enter().ok());
    }
}

impl<T: Send + 'static> Handle<T> {
    /// Makes the operation's end report to a queue as `key`, once, in the place of a waker. True:
    /// it is done already, or can't be in this process, and is not reported.
    pub fn report_to(&self, queue: &CompletionQueue, key: u64) -> bool {
        let Some((host, operation)) = self.running() else {
            return true;
        };
        if host.core().is_forked() {
            return true;
        }
        if std::ptr::eq(host.core(), queue.host().core()) {
            operation.set_queue(queue.shared(), key);
        } else {
            operation.set_waker(&Report::waker(queue, key));
        }
        operation.is_done() && operation.clear_listener()
    }
}

/// Waits until at least one of the operations is done, or until the timeout (`None`: never); true
/// if one is. `handle` gives the first `count` operations by number; None is passed over. The
/// thread drives the worker of the first of them; others are driven by their keepers. With a
/// timeout of zero it makes all progress that is possible without waiting.
///
/// The handles belong to this thread meanwhile. False at once without any operation. EBADF in a
/// forked child, EDEADLK from a signal handler that interrupted a call.
pub fn wait_any<'a, T: Send + 'static>(
    count: usize,
    handle: impl Fn(usize) -> Option<&'a Handle<T>>,
    timeout: Option<Duration>,
) -> Result<bool> {
    let running = |at| handle(at).and_then(Handle::running);
    let Some((home, _)) = (0..count).find_map(running) else {
        return Ok((0..count).any(|at| handle(at).is_some()));
    };
    if home.core().is_forked() {
        return Err(forked());
    }
    let is_done_at =
        |at| handle(at).is_some() && running(at).is_none_or(|(_, operation)| operation.is_done());
    let is_done = || (0..count).any(is_done_at);
    if is_done() {
        return Ok(true);
    }
    let is_home = |host: &Arc<dyn Host>| std::ptr::eq(host.core(), home.core());
    let foreign = |at: &usize| running(*at).is_some_and(|(host, _)| !is_home(host));
    let queue = (0..count)
        .any(|at| foreign(&at))
        .then(|| CompletionQueue::new(home.clone()));
    for at in (0..count).filter(foreign) {
        if let (Some(handle), Some(queue)) = (handle(at), &queue) {
            if handle.report_to(queue, 0) {
                return Ok(true);
            }
            handle.drive(false);
        }
    }
    let inside = ReentryGuard::enter()?;
    if timeout == Some(Duration::ZERO) {
        let role = DriverRole::poller(&is_done, queue.is_none());
        let notify = if queue.is_none() {
            Notify::Never
        } else {
            Notify::IfHeld
        };
        home.core().try_drive(&role, notify);
        return Ok(is_done());
    }
    let own = (0..count)
        .filter_map(running)
        .filter(|(host, _)| is_home(host));
    let is_done = &is_done;
    let waited = home.core().run(move || async move {
        // SAFETY: under the lock, as everything in this future.
        let reactor = unsafe { home.core().reactor() }.clone();
        let mut deadline = pin!(timeout.map(|timeout| reactor.sleep(timeout)));
        let mut own = Some(own);
        let mut watch = queue.as_ref().map(CompletionQueue::watch);
        std::future::poll_fn(|context| {
            for (_, operation) in own.take().into_iter().flatten() {
                operation.set_local_waiter(context.waker());
            }
            let sleep = deadline.as_mut().as_pin_mut();
            let is_over = sleep.is_some_and(|sleep| sleep.poll(context).is_ready());
            let is_reported = watch.as_mut().is_some_and(|watch| watch.poll(context));
            if is_done() || is_reported || is_over {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            }
        })
        .await
    });
    drop(inside);
    match waited {
        Err(error) if !is_done() => Err(error),
        _ => Ok(is_done()),
    }
}
