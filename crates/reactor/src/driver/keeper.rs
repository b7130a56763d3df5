//! The keeper: one thread that drives the worker when no caller does.
//!
//! It is started with the worker: a worker that can't have its keeper fails to start, rather than
//! leave work undone one day. It sleeps without a deadline unless timers are pending.
//!
//! Its word is IDLE (awake, or about to take the lock), ARMED (appointed as the driver) or
//! SLEEPING. Arming is one exchange, under the worker's lock. Only the exchange that finds SLEEPING
//! owes a system call, after the release; arming a keeper that is awake or armed costs none.

use std::sync::Arc;

use adit_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use adit_base::sync::thread::{self, JoinHandle};
use adit_base::sync::{Mutex, tries};
use adit_base::thread::spawn_without_signals;
use adit_base::{Error, Result};

use super::{Core, DriverRole, NextStep, ReentryGuard};
use crate::futex;
use crate::lock::lock;

const IDLE: u32 = 0;
const ARMED: u32 = 1;
const SLEEPING: u32 = 2;

/// Tries to take the lock before the keeper notifies the driver instead.
const TRIES_MAX: u32 = tries(500);

/// The keeper as other threads see it.
pub(crate) struct Keeper {
    enabled: bool,
    word: AtomicU32,
    /// The end of its sleep at the latest; `u64::MAX` while it has no deadline, or is awake.
    wakes_at_ns: AtomicU64,
    stopping: AtomicBool,
    wakeups: AtomicU64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Keeper {
    pub(crate) fn new(enabled: bool) -> Self {
        Keeper {
            enabled,
            word: AtomicU32::new(IDLE),
            wakes_at_ns: AtomicU64::new(u64::MAX),
            stopping: AtomicBool::new(false),
            wakeups: AtomicU64::new(0),
            thread: Mutex::new(None),
        }
    }

    /// Starts the thread, if enabled.
    pub(crate) fn start(&self, core: &Arc<Core>) -> Result<()> {
        if self.enabled {
            let core = core.clone();
            let started = spawn_without_signals("adit-keeper", move || run(&core));
            let started =
                started.map_err(|error| Error::from(error).context("start the keeper"))?;
            *lock(&self.thread) = Some(started);
        }
        Ok(())
    }

    /// Whether this worker has a keeper.
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Appoints the keeper as a driver; true if the thread has to `wake` it after the release.
    /// Under the lock.
    pub(crate) fn arm(&self) -> bool {
        self.enabled && self.word.swap(ARMED, Ordering::AcqRel) == SLEEPING
    }

    /// Its word, at which it sleeps.
    pub(crate) fn word(&self) -> *const AtomicU32 {
        &self.word
    }

    /// Wakes the armed keeper. Without the lock.
    pub(crate) fn wake(&self) {
        futex::wake(&self.word);
    }

    /// The deadline of its sleep; `u64::MAX` while it has none, or is awake.
    #[inline]
    pub(crate) fn wakes_at_ns(&self) -> u64 {
        self.wakes_at_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn set_wakes_at_ns(&self, deadline_ns: u64) {
        self.wakes_at_ns.store(deadline_ns, Ordering::Relaxed);
    }

    /// Whether it is ending: it then leaves all work undone.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) fn wakeups(&self) -> u64 {
        self.wakeups.load(Ordering::Relaxed)
    }

    /// Ends the thread and waits for its end. Without the lock.
    pub(crate) fn stop(&self) {
        let thread = {
            let mut thread = lock(&self.thread);
            self.stopping.store(true, Ordering::Release);
            thread.take()
        };
        self.word.swap(ARMED, Ordering::AcqRel);
        futex::wake(&self.word);
        if let Some(thread) = thread
            // A waker that the keeper calls may drop the last handle.
            && thread.thread().id() != thread::current().id()
        {
            // It never panics: `drive` aborts.
            let _ = thread.join();
        }
    }

    fn sleep(&self, deadline_ns: Option<u64>) {
        if self
            .word
            .compare_exchange(IDLE, SLEEPING, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            loop {
                futex::wait(&self.word, SLEEPING, deadline_ns);
                self.wakeups.fetch_add(1, Ordering::Relaxed);
                if self.word.load(Ordering::Acquire) != SLEEPING
                    || deadline_ns.is_some_and(|at| adit_base::clock::monotonic_ns() >= at)
                {
                    break;
                }
            }
        }
        // The keeper now takes the lock for all armings so far; a later one makes it come again.
        self.word.swap(IDLE, Ordering::AcqRel);
        self.set_wakes_at_ns(u64::MAX);
    }
}

fn run(core: &Core) {
    let keeper = &core.keeper;
    // Operations that run here are inside a call; wakers of other executors are not
    // (`deliver_wakeups`).
    let _inside = ReentryGuard::enter();
    let mut deadline_ns = None;
    loop {
        keeper.sleep(deadline_ns);
        if keeper.is_stopping() {
            return;
        }
        deadline_ns = None;
        let mut holding = core.spin_to_acquire(TRIES_MAX);
        while holding {
            match core.drive(&DriverRole::Keeper) {
                NextStep::Park(deadline) => {
                    deadline_ns = deadline;
                    break;
                }
                NextStep::Return => unreachable!("the keeper is never done"),
                step => holding = core.perform_unlocked(step, None),
            }
        }
    }
}
