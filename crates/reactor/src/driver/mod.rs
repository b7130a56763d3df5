//! Who drives the worker: taking the lock, what a driver does with it, and what it leaves behind.
//!
//! ```text
//! run ─ lock free ─► first poll ─ done, quiet ─► release                       (the fast path: no wake-up, no system call, no queue)
//!   │                    └─ else ─► drive ─┬─ Done ────► release, wake who is owed it
//!   │                       ▲  ▲           ├─ Execute ─► release, Device::execute, deliver, come back
//!   └─ lock held ─► inbox   │  │           ├─ Collect ─► release, Doorbell::wait, come back
//!        └─► wait ── DRIVE ─┘  └───────────┴─ Wait ────► release, spin ≤ 20 µs, sleep
//! ```
//! Invariants: no system call, no device, no foreign code under the lock (`After` and `Left` carry it out), and no foreign waker while a
//! request, a wait for the device or the duty to drive is this thread's (it pauses by `Breathe` for them). A driver whose operation is done
//! polls at most `FOREIGN_MAX` others before it goes. Whoever releases the lock with work left names a successor first (`lock.rs` has the
//! argument). After a panic nothing more is submitted and no operation is polled; when no request is under way any more (their memory may
//! be a caller's), everybody gets EIO.
//!
//! | module | what |
//! |---|---|
//! | here | the worker's core, and whether it may be used |
//! | `purpose` | who drives, what for, and why it stops |
//! | `caller` | how a thread's or a handle's operation comes in, and its thread drives or waits |
//! | `waiting` | waiting without the lock, and getting it |
//! | `drive` | driving, with the lock; leaving it |
//! | `end` | the worker's end |
//! | `inside` | what a thread is marked with while it is in here |

mod caller;
mod drive;
mod end;
mod inside;
mod purpose;
mod waiting;

use std::rc::Rc;
use std::sync::Arc;

use adit_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use adit_base::sync::{Mutex, RaceCheck};
use adit_base::{Errno, Error, Result, fork};
use adit_block::{Completion, Device};

use crate::keeper::Keeper;
use crate::lock::{DriverLock, Inbox};
use crate::owned::CellPool;
use crate::reactor::Reactor;

pub(crate) use inside::Inside;
pub(crate) use purpose::{Left, Need, Purpose};

/// Waiting for the device is interrupted this often, in case somebody else finished what it is waited for.
const COLLECT_NS: u64 = 1_000_000;
/// So often where only the device can finish it. A timer that ends before the system's own tick (1 to 10 ms) would cost some µs a wait.
const COLLECT_OWN_NS: u64 = 10_000_000;

/// What a thread that executed a request without the lock hands in.
enum Arrival {
    Completion(Completion),
    /// The device panicked; the request is lost.
    Panicked(Box<dyn std::any::Any + Send>),
}

/// A worker: everything but its state, whose type it doesn't know.
pub(crate) struct Core {
    lock: DriverLock,
    inbox: Inbox,
    arrived: Mutex<Vec<Arrival>>,
    /// Under the lock.
    reactor: Rc<Reactor>,
    reactor_accesses: RaceCheck,
    pub(crate) pool: Arc<CellPool>,
    /// What messages call the volume.
    pub(crate) name: Arc<str>,
    poisoned: AtomicBool,
    poison: Mutex<String>,
    /// No new operations.
    pub(crate) closing: AtomicBool,
    /// A caller, or the keeper, waits for the device.
    caller_collects: AtomicBool,
    pub(crate) keeper_collects: AtomicBool,
    spinners: AtomicU32,
    cores: u32,
    fork_generation: u32,
    pub(crate) keeper: Keeper,
}

// SAFETY: `reactor` and what it leads to are touched under the lock only; see `reactor()`.
unsafe impl Send for Core {}
// SAFETY: as above; everything else is atomics and mutexes.
unsafe impl Sync for Core {}

impl Core {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        options: &crate::EngineOptions,
    ) -> Result<Arc<Core>> {
        fork::install();
        let queue = device.open_queue(options.queue_depth)?;
        let pool = Arc::new(CellPool::new());
        let name: Arc<str> = options.name.as_str().into();
        let reactor = Rc::new(Reactor::new(name.clone(), device, queue, pool.clone()));
        let core = Arc::new(Core {
            lock: DriverLock::new(),
            inbox: Inbox::new(),
            arrived: Mutex::default(),
            reactor,
            reactor_accesses: RaceCheck::new(),
            pool,
            name,
            poisoned: AtomicBool::new(false),
            poison: Mutex::default(),
            closing: AtomicBool::new(false),
            caller_collects: AtomicBool::new(false),
            keeper_collects: AtomicBool::new(false),
            spinners: AtomicU32::new(0),
            cores: cores(),
            fork_generation: fork::generation(),
            keeper: Keeper::new(options.keeper),
        });
        core.keeper.start(&core)?;
        Ok(core)
    }

    /// The reactor.
    ///
    /// # Safety
    /// The caller holds the lock, and lets go of the reference before it releases it.
    #[inline]
    pub(crate) unsafe fn reactor(&self) -> &Rc<Reactor> {
        self.reactor_accesses.write();
        &self.reactor
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Relaxed)
    }

    fn poison_error(&self) -> Error {
        let what = self.poison.lock().unwrap_or_else(|held| held.into_inner());
        Error::with(
            Errno::IO,
            format!("use a volume poisoned by a panic: {}", *what),
        )
    }

    pub(super) fn set_poisoned(&self, what: String) {
        if !self.poisoned.swap(true, Ordering::Relaxed) {
            let mut poison = self.poison.lock().unwrap_or_else(|held| held.into_inner());
            poison.clone_from(&what);
            drop(poison);
            tracing::error!(volume = %self.name, error = %what, "poisoned by a panic inside Adit; nothing more is written");
        }
    }

    /// The error of an operation that can't be begun any more.
    pub(super) fn ended_error(&self) -> Error {
        if self.is_poisoned() {
            self.poison_error()
        } else {
            Error::new(Errno::SHUTDOWN)
        }
    }

    /// Whether this process is the one that made the worker.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.fork_generation != fork::generation()
    }

    /// Why no operation may begin, if so. Always right about a fork; a racing panic or shutdown is noticed under the lock.
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

/// A model has one: its waiters don't spin.
fn cores() -> u32 {
    if cfg!(loom) {
        return 1;
    }
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32)
}

/// What a forked child gets for its parent's volume; says so once where a person may see it.
#[cold]
pub(crate) fn forked() -> Error {
    static SAID: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        eprintln!(
            "adit: a forked process can't use its parent's volume (EBADF); open it again, or exec"
        );
    }
    Error::with(Errno::BADF, "use a volume in a forked process")
}
