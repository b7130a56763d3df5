//! The keeper: one thread that drives the worker when nobody else does.
//!
//! It is started when it is first needed and sleeps without a deadline unless timers are pending. Its word is IDLE (awake, or about to look),
//! ARMED (told to look) or SLEEPING. Arming is one exchange; only the one that finds SLEEPING (or no thread yet) owes a system call, so an
//! already armed keeper costs nothing. It is armed under the worker's lock and woken after the release.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, ThreadId};

use crate::driver::{Core, Left, Purpose};
use crate::futex;

const IDLE: u32 = 0;
const ARMED: u32 = 1;
const SLEEPING: u32 = 2;

/// Tries to get the lock before it leaves the work to the holder.
const TRIES_MAX: u32 = 500;

/// What others know of the keeper.
pub(crate) struct Keeper {
    enabled: bool,
    word: AtomicU32,
    /// Until when it sleeps at most. Written under the lock.
    wakes_at_ns: AtomicU64,
    started: AtomicBool,
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
            started: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            wakeups: AtomicU64::new(0),
            thread: Mutex::new(None),
        }
    }

    /// Whether there is one, or will be when it is needed.
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Tells it to look; true if the caller has to `wake` it after the release. Under the lock.
    pub(crate) fn arm(&self) -> bool {
        if !self.enabled {
            return false;
        }
        let before = self.word.swap(ARMED, Ordering::AcqRel);
        before == SLEEPING || (before == IDLE && !self.started.load(Ordering::Acquire))
    }

    /// Wakes it, or starts it.
    pub(crate) fn wake(&self, core: &Core) {
        if self.started.load(Ordering::Acquire) {
            futex::wake(&self.word);
            return;
        }
        let mut thread = self.thread.lock().unwrap_or_else(|held| held.into_inner());
        if self.stopping.load(Ordering::Acquire) || self.started.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(core) = core.itself.upgrade() else {
            return;
        };
        match spawn_without_signals(core) {
            Ok(started) => *thread = Some(started),
            Err(error) => {
                // The next arming tries again; until then callers make progress only together with their own operations.
                tracing::warn!(%error, "could not start the keeper");
                self.word.store(IDLE, Ordering::Release);
                self.started.store(false, Ordering::Release);
            }
        }
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

/// The application's signal handlers are for its own threads.
fn spawn_without_signals(core: Arc<Core>) -> std::io::Result<JoinHandle<()>> {
    // SAFETY: plain calls on signal sets of our own; the mask is put back below.
    let before = unsafe {
        let mut all = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    };
    let spawned = thread::Builder::new()
        .name("adit-keeper".into())
        .spawn(move || keep(&core));
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    spawned
}

fn keep(core: &Core) {
    let keeper = &core.keeper;
    // What was armed is looked at now.
    keeper.word.swap(IDLE, Ordering::AcqRel);
    while !keeper.is_stopping() {
        let mut holding = core.compete(TRIES_MAX);
        let mut deadline_ns = None;
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
        keeper.sleep(deadline_ns);
    }
}
