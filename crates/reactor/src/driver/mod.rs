//! How threads drive the worker in turn: taking the lock, driving, leaving work to the next driver.
//!
//! The lock is a combining lock: at any time one thread is the *driver*. It holds the lock, polls
//! all tasks, submits requests to the device and reaps their completions. The other threads put
//! their operations into the inbox, notify the driver and wait: spinning at first, then asleep. A
//! driver that leaves work behind appoints a successor: a waiting caller, or the keeper's thread.
//!
//! The states of a thread in a blocking call, and the functions that lead from one to the next:
//! ```text
//!           run_uncontended: done at the first poll
//!  run ───────────────────────────────────────────────────────────────────► returned
//!   │ │                                                                       ▲   ▲
//!   │ │ run_uncontended: there is more to do            leave: Return         │   │
//!   │ └──────────────────────────────────► DRIVING ───────────────────────────┘   │
//!   │                                      │  │  ▲  ▲                             │
//!   │         leave: Execute, AwaitDevice, │  │  │  │ perform_unlocked:           │
//!   │                                Yield ▼  │  │  │ the lock was free           │
//!   │                              UNLOCKED ──│──│──┘                             │
//!   │                                      │  │  │                                │
//!   │                    perform_unlocked: │  │  │ park: take_over, or a deadline │
//!   │     another driver has been notified ▼  ▼  │                                │
//!   └─────────────────────────────────────► PARKED ───────────────────────────────┘
//!           submit_through_inbox              ▲            park: DONE
//!                                             leave: Park
//! ```
//! A handle's poll (`try_drive`) is DRIVING or UNLOCKED until it returns, and never parks. The
//! keeper sleeps in `Keeper::sleep` instead.
//!
//! Invariants:
//! 1. The driver makes no system call under the lock, calls no `Device::execute` and no code of
//!    other executors: [`NextStep`] and [`DeferredWakeups`] carry these past the release.
//! 2. A thread calls wakers of other executors only while no other thread depends on it: it has no
//!    request to execute, does not wait for the device, and can't be appointed as the next driver.
//!    It takes the step `Yield` to deliver them.
//! 3. A driver whose own operation is done polls at most `BATCH_POLLS_MAX` others before it leaves.
//! 4. A driver that leaves work behind appoints a successor before it releases the lock (`lock.rs`
//!    proves that no work is forgotten).
//! 5. After a panic nothing is submitted and no operation is polled. Once no request is under way
//!    (its memory may be a caller's), every operation fails with EIO.
//! 6. A thread that has a worker's lock only tries to take another one's, for a bounded time
//!    (`visit` has the reasoning, and the one exception).
//!
//! | module | content |
//! |---|---|
//! | here | the worker's core, and whether it accepts operations |
//! | `role` | the roles of a driver, and its next step after the release |
//! | `caller` | an operation's way in; the steps without the lock |
//! | `park` | waiting without the lock, and taking it over |
//! | `drive` | the loop under the lock |
//! | `leave` | successor, timers, release, deferred wake-ups |
//! | `deliver` | calling wakers after the release; wake-ups from other workers |
//! | `visit` | a closure under a second worker's lock |
//! | `end` | the worker's end |
//! | `reentry` | refuses a call from inside a call |

mod caller;
mod deliver;
mod drive;
mod end;
mod keeper;
mod leave;
mod options;
mod park;
mod reentry;
mod role;
mod visit;

use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::task::Waker;

use adit_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use adit_base::sync::{Mutex, RaceCheck};
use adit_base::{Errno, Error, Result, fork};
use adit_block::{Completion, Device};

use crate::lock::{DriverLock, Inbox, lock};
use crate::reactor::Reactor;
use crate::reactor::pooled::OperationPool;
use crate::reactor::task::{self, Driving, TaskId};
use crate::reactor::workers::WorkerNumber;
use keeper::Keeper;

pub use options::EngineOptions;
pub use reentry::{ReentryGuard, is_inside_call};
pub(crate) use role::{DriverRole, NextStep, Notify};
pub(crate) use visit::Patience;

/// A wait for the device ends after this long, in case another thread finishes the awaited request.
const IO_WAIT_NS: u64 = 1_000_000;
/// A wait that only the device can finish ends after this long. A wait with a timeout below the
/// system's tick (1 to 10 ms) would cost some µs more.
const OWN_IO_WAIT_NS: u64 = 10_000_000;

/// News from other threads for a worker, beside operations.
enum Arrival {
    /// A request that a thread executed without the lock.
    Completed(Completion),
    /// The device panicked in such a thread; the request is lost.
    Panicked(Box<dyn std::any::Any + Send>),
    /// A thread that doesn't drive the worker wakes this task.
    Woken(TaskId),
}

/// A worker without its state, whose type only `Engine` knows.
pub(crate) struct Core {
    number: WorkerNumber,
    lock: Arc<DriverLock>,
    inbox: Inbox,
    arrivals: Mutex<Vec<Arrival>>,
    /// Under the lock.
    reactor: Rc<Reactor>,
    reactor_accesses: RaceCheck,
    pub(crate) pool: Arc<OperationPool>,
    /// The volume's name in messages.
    pub(crate) name: Arc<str>,
    poisoned: AtomicBool,
    poison: Mutex<String>,
    /// Poisoned, and no operation or request is under way.
    all_failed: AtomicBool,
    /// New operations are refused.
    pub(crate) closing: AtomicBool,
    /// The same for those of other workers' operations, which may be part of the last one.
    pub(crate) ended: AtomicBool,
    /// A caller, or the keeper, waits for the device and reaps completions afterwards.
    caller_awaits_device: AtomicBool,
    pub(crate) keeper_awaits_device: AtomicBool,
    /// Callers in `park`.
    parked: AtomicU32,
    /// Threads that have stepped aside, and deliver no wake-ups meanwhile: they come back within
    /// some µs, and do the work that is left.
    aside: AtomicU32,
    /// There is work that they don't know of.
    called_back: AtomicBool,
    spins: park::Worth,
    yields: park::Worth,
    processors: u32,
    fork_generation: u32,
    pub(crate) keeper: Keeper,
}

// SAFETY: `reactor` and everything it leads to is touched under the lock only; see `reactor()`.
unsafe impl Send for Core {}
// SAFETY: `reactor` is touched under the lock only; everything else is atomics and mutexes.
unsafe impl Sync for Core {}

impl Core {
    pub(crate) fn new(device: Arc<dyn Device>, options: &EngineOptions) -> Result<Arc<Core>> {
        fork::install();
        let queue = device.open_queue(options.queue_depth)?;
        let pool = Arc::new(OperationPool::new());
        let name: Arc<str> = options.name.as_str().into();
        let lock = Arc::new(DriverLock::new());
        let number = WorkerNumber::reserve()?;
        let reactor = Reactor::new(
            name.clone(),
            number.get(),
            device,
            queue,
            pool.clone(),
            lock.clone(),
        );
        let core = Arc::new(Core {
            number,
            lock,
            inbox: Inbox::new(),
            arrivals: Mutex::default(),
            reactor: Rc::new(reactor),
            reactor_accesses: RaceCheck::new(),
            pool,
            name,
            poisoned: AtomicBool::new(false),
            poison: Mutex::default(),
            all_failed: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            caller_awaits_device: AtomicBool::new(false),
            keeper_awaits_device: AtomicBool::new(false),
            parked: AtomicU32::new(0),
            aside: AtomicU32::new(0),
            called_back: AtomicBool::new(false),
            spins: park::Worth::default(),
            yields: park::Worth::default(),
            processors: processors(),
            fork_generation: fork::generation(),
            keeper: Keeper::new(options.keeper),
        });
        let worker: Weak<Core> = Arc::downgrade(&core);
        core.number.publish(worker);
        core.keeper.start(&core)?;
        Ok(core)
    }

    /// The reactor.
    ///
    /// # Safety
    /// The caller holds the lock, and drops the reference before it releases the lock.
    #[inline]
    pub(crate) unsafe fn reactor(&self) -> &Rc<Reactor> {
        self.lock.debug_assert_held();
        self.reactor_accesses.write();
        &self.reactor
    }

    /// The number that wakers of its tasks name.
    pub(crate) fn number(&self) -> u32 {
        self.number.get()
    }

    /// A waker that has a thread look at this worker.
    fn notifier(&self) -> Waker {
        task::owned_waker(TaskId::none_of(self.number()))
    }

    /// Whether this thread is the driver. Doesn't touch the reactor.
    fn is_driven_here(&self) -> bool {
        Driving::is_of(&self.reactor)
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Relaxed)
    }

    pub(crate) fn have_all_failed(&self) -> bool {
        self.all_failed.load(Ordering::Acquire)
    }

    pub(super) fn set_poisoned(&self, panic: String) {
        if !self.poisoned.swap(true, Ordering::Relaxed) {
            lock(&self.poison).clone_from(&panic);
            tracing::error!(volume = %self.name, error = %panic, "poisoned by a panic inside Adit; nothing more is written");
        }
    }

    /// The error of operations after a panic or the end.
    pub(super) fn ended_error(&self) -> Error {
        if !self.is_poisoned() {
            return Error::new(Errno::SHUTDOWN);
        }
        let panic = lock(&self.poison);
        let text = format!("use a volume poisoned by a panic: {}", *panic);
        Error::with(Errno::IO, text)
    }

    /// Whether this process is a forked child of the one that made the worker.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.fork_generation != fork::generation()
    }

    /// Refuses operations and visits of other workers, as [`check`](Self::check) does those of
    /// callers, until the very end.
    pub(crate) fn check_from_worker(&self) -> Result<()> {
        if self.is_forked() {
            return Err(forked());
        }
        if self.is_poisoned() || self.ended.load(Ordering::Acquire) {
            return Err(self.ended_error());
        }
        Ok(())
    }

    /// Refuses operations of a forked child, and after a panic or the end. A panic or shutdown that
    /// happens at the same time is noticed under the lock.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_forked() {
            return Err(forked());
        }
        if self.is_poisoned() || self.closing.load(Ordering::Relaxed) {
            return Err(self.ended_error());
        }
        Ok(())
    }
}

/// Processors of this process. In a model one, so that no caller spins.
fn processors() -> u32 {
    if cfg!(loom) {
        return 1;
    }
    std::thread::available_parallelism().map_or(1, |count| count.get() as u32)
}

pub(crate) use adit_base::fork::refused as forked;
