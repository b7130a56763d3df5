//! The keeper: one thread that drives the worker when nobody else does.
//!
//! It is started with the worker, so that a worker that can't have one fails to start rather than leave work lying one day, and sleeps
//! without a deadline unless timers are pending. Its word is IDLE (awake, or about to look), ARMED (told to look) or SLEEPING. Arming is one
//! exchange; only the one that finds SLEEPING owes a system call, so an already armed keeper costs nothing. It is armed under the worker's
//! lock and woken after the release.

use std::sync::Arc;

use adit_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use adit_base::sync::thread::{self, JoinHandle, ThreadId};
use adit_base::sync::{Mutex, tries};
use adit_base::thread::spawn_without_signals;
use adit_base::{Error, Result};

use crate::driver::{Core, Inside, Left, Purpose};
use crate::futex;

const IDLE: u32 = 0;
const ARMED: u32 = 1;
const SLEEPING: u32 = 2;

/// Tries to get the lock before it leaves the work to the holder.
const TRIES_MAX: u32 = tries(500);

/// What others know of the keeper.
pub(crate) struct Keeper {
    enabled: bool,
    word: AtomicU32,
    /// Until when it sleeps at most. Written under the lock.
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

    /// Starts the thread, unless there is to be none.
    pub(crate) fn start(&self, core: &Arc<Core>) -> Result<()> {
        if self.enabled {
            let core = core.clone();
            let started = spawn_without_signals("adit-keeper", move || keep(&core));
            let started =
                started.map_err(|error| Error::from(error).context("start the keeper"))?;
            *self.thread.lock().unwrap_or_else(|held| held.into_inner()) = Some(started);
        }
        Ok(())
    }

    /// Whether there is one.
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Tells it to look; true if the caller has to `wake` it after the release. Under the lock.
    pub(crate) fn arm(&self) -> bool {
        self.enabled && self.word.swap(ARMED, Ordering::AcqRel) == SLEEPING
    }

    /// Wakes it.
    pub(crate) fn wake(&self) {
        futex::wake(&self.word);
    }

    /// Until when it sleeps at most; `u64::MAX` is for ever (or it is awake).
    #[inline]
    pub(crate) fn wakes_at_ns(&self) -> u64 {
        self.wakes_at_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn set_wakes_at_ns(&self, deadline_ns: u64) {
        self.wakes_at_ns.store(deadline_ns, Ordering::Relaxed);
    }

    /// Whether it is to end: it then leaves everything where it is.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) fn wakeups(&self) -> u64 {
        self.wakeups.load(Ordering::Relaxed)
    }

    /// Ends the thread and waits for it. Without the lock.
    pub(crate) fn stop(&self) {
        let thread = {
            let mut thread = self.thread.lock().unwrap_or_else(|held| held.into_inner());
            self.stopping.store(true, Ordering::Release);
            thread.take()
        };
        self.word.swap(ARMED, Ordering::AcqRel);
        futex::wake(&self.word);
        if let Some(thread) = thread
            && !is_current(thread.thread().id())
        {
            // Its panics are aborts.
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
        // From here on another arming says "look again"; what was armed before is looked at now.
        self.word.swap(IDLE, Ordering::AcqRel);
        self.set_wakes_at_ns(u64::MAX);
    }
}

/// Whether a thread is the calling one: the last handle may be dropped by a waker that the keeper calls.
fn is_current(id: ThreadId) -> bool {
    thread::current().id() == id
}

fn keep(core: &Core) {
    let keeper = &core.keeper;
    // Whatever runs here is inside the worker; a foreign waker is not (`drive` sees to that).
    let _inside = Inside::enter();
    let mut deadline_ns = None;
    loop {
        keeper.sleep(deadline_ns);
        if keeper.is_stopping() {
            return;
        }
        deadline_ns = None;
        let mut holding = core.compete(TRIES_MAX);
        while holding {
            match core.drive(&Purpose::Keeper) {
                Left::Wait(deadline) => {
                    deadline_ns = deadline;
                    break;
                }
                Left::Done => unreachable!("the keeper is never done"),
                left => holding = core.away(left, None),
            }
        }
    }
}
