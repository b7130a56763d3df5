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
//! polls at most [`FOREIGN_MAX`] others before it goes. Whoever releases the lock with work left names a successor first (`lock.rs` has the
//! argument). After a panic nothing more is submitted and no operation is polled; when no request is under way any more (their memory may
//! be a caller's), everybody gets EIO.

use std::cell::Cell;
use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, compiler_fence};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use adit_base::clock::monotonic_ns;
use adit_base::{Errno, Error, Result, fork};
use adit_block::{Completion, Device, Doorbell, Request};

use crate::futex;
use crate::keeper::Keeper;
use crate::lock::{DriverLock, Inbox, Message, MessageKind};
use crate::node::{BUSY, DONE, DRIVE, Node, SLEEPING, StackOperation, Stage, WAITING};
use crate::owned::{CellPool, OwnedCell};
use crate::reactor::{After, Reactor};
use crate::task::Driving;

/// Other operations that a driver polls after its own is done.
const FOREIGN_MAX: u32 = 32;
/// Waiters spin this long before they sleep.
const SPIN_NS: u64 = 20_000;
/// Waiting for the device is interrupted this often, in case somebody else finished what it is waited for.
const COLLECT_NS: u64 = 1_000_000;

/// What a driver is after.
pub(crate) enum Purpose<'n> {
    /// A blocking call's operation.
    Caller(&'n Node),
    /// A handle's operation, polled by an executor or by hand.
    Handle {
        cell: &'n OwnedCell,
        /// Whether its owner comes again for what is left, so that the keeper needn't know. Void once somebody else relied on this driver.
        returns: Cell<bool>,
    },
    /// Just what is ready.
    Glance,
    /// Everything there is.
    Keeper,
}

/// What somebody who looks in needs of a holder that is in the way.
pub(crate) enum Need {
    /// Nothing: it comes again.
    None,
    /// That it names a driver for what it leaves, even if it polls by hand.
    Driver,
    /// That, or if there is no holder, a look into the inbox.
    Look,
}

/// Why a driver released the lock, and what it does now.
pub(crate) enum Left {
    Done,
    Execute(Arc<dyn Device>, Request),
    Collect(Arc<dyn Doorbell>, Duration),
    /// Sleep, until this deadline if there is one.
    Wait(Option<u64>),
    /// Released only to let others be woken.
    Breathe,
}

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
    pub(crate) pool: Arc<CellPool>,
    pub(crate) name: String,
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

thread_local! {
    /// This thread is inside a call of some worker.
    static INSIDE: AtomicBool = const { AtomicBool::new(false) };
}

/// Marks this thread as inside a call, so that a signal handler that calls again gets EDEADLK instead of waiting for itself.
pub(crate) struct Inside(bool);

impl Inside {
    #[inline]
    pub(crate) fn enter() -> Result<Inside> {
        INSIDE.with(|inside| {
            if inside.load(Ordering::Relaxed) {
                return Err(Error::new(Errno::DEADLK));
            }
            inside.store(true, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            Ok(Inside(false))
        })
    }

    /// Takes the mark off for as long as foreign code runs, which holds nothing of ours.
    fn suspend() -> Inside {
        Inside(INSIDE.with(|inside| {
            let was = inside.load(Ordering::Relaxed);
            inside.store(false, Ordering::Relaxed);
            was
        }))
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        INSIDE.with(|inside| inside.store(self.0, Ordering::Relaxed));
    }
}

/// Our own bug while others point into this thread's stack: unwinding would leave them with a dead frame.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        // Forgotten on the way out, so this is an unwinding.
        std::process::abort();
    }
}

impl Core {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        options: &crate::EngineOptions,
    ) -> Result<Arc<Core>> {
        fork::install();
        let queue = device.open_queue(options.queue_depth)?;
        let pool = Arc::new(CellPool::new());
        let reactor = Rc::new(Reactor::new(device, queue, pool.clone()));
        let core = Arc::new(Core {
            lock: DriverLock::new(),
            inbox: Inbox::new(),
            arrived: Mutex::default(),
            reactor,
            pool,
            name: options.name.clone(),
            poisoned: AtomicBool::new(false),
            poison: Mutex::default(),
            closing: AtomicBool::new(false),
            caller_collects: AtomicBool::new(false),
            keeper_collects: AtomicBool::new(false),
            spinners: AtomicU32::new(0),
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
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
        &self.reactor
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Relaxed)
    }

    fn poison_error(&self) -> Error {
        let what = self.poison.lock().unwrap_or_else(|held| held.into_inner());
        Error::with(
            Errno::IO,
            format!("use a volume poisoned by a panic: {what}"),
        )
    }

    fn set_poisoned(&self, what: String) {
        if !self.poisoned.swap(true, Ordering::Relaxed) {
            tracing::error!(worker = %self.name, what, "poisoned by a panic; nothing more is written");
            *self.poison.lock().unwrap_or_else(|held| held.into_inner()) = what;
        }
    }

    /// The error of an operation that can't be begun any more.
    fn ended_error(&self) -> Error {
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

    /// Runs an operation to its end, driving the worker or waiting for who does.
    #[inline]
    pub(crate) fn run<T, F, Fut>(&self, start: F) -> Result<T>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        let operation = StackOperation::new(start);
        let abort = AbortOnUnwind;
        if !self.run_at_once(&operation.node) {
            self.attend(&operation.node);
        }
        mem::forget(abort);
        match operation.stage.into_inner() {
            Stage::Done(result) => result,
            _ => unreachable!("a finished operation has a result"),
        }
    }

    /// The fast path; true when the operation is done and the lock released.
    #[inline]
    fn run_at_once(&self, node: &Node) -> bool {
        if !self.lock.try_acquire() {
            return false;
        }
        // SAFETY: we hold the lock, and release it after the reference's last use.
        let reactor = unsafe { self.reactor() };
        let quiet = if reactor.is_usable() {
            let _driving = Driving::enter(reactor);
            reactor.poll_first(node)
                && reactor.is_quiet(
                    self.keeper_collects.load(Ordering::Relaxed),
                    self.keeper.wakes_at_ns(),
                )
        } else {
            reactor.list(node);
            reactor.add_ready(node.task());
            false
        };
        if !(quiet && self.lock.try_release()) {
            self.go_on(node, true);
        }
        true
    }

    /// Hands an operation in through the inbox, and sees it through.
    #[cold]
    fn attend(&self, node: &Node) {
        node.state.store(WAITING, Ordering::Relaxed);
        // SAFETY: the node stays until it is done, which `go_on` waits for.
        unsafe { self.inbox.push(ptr::from_ref(&node.message).cast_mut()) };
        let holding = self.lock.knock();
        self.go_on(node, holding);
    }

    /// Drives and waits until the operation is done; returns without the lock.
    #[cold]
    fn go_on(&self, node: &Node, mut holding: bool) {
        let purpose = Purpose::Caller(node);
        let mut deadline_ns = None;
        loop {
            if !holding && !self.wait(node, deadline_ns) {
                return;
            }
            match self.drive(&purpose) {
                Left::Done => return,
                Left::Wait(deadline) => {
                    deadline_ns = deadline;
                    holding = false;
                }
                left => {
                    deadline_ns = None;
                    holding = self.away(left, Some(node));
                }
            }
        }
    }

    /// Does what a driver left for; says whether it has the lock again. If not, the holder knows of everything.
    pub(crate) fn away(&self, left: Left, node: Option<&Node>) -> bool {
        match left {
            Left::Execute(device, request) => {
                let arrival = catch_unwind(AssertUnwindSafe(|| device.execute(request)))
                    .map_or_else(Arrival::Panicked, Arrival::Completion);
                drop(device);
                if let Some(node) = node {
                    node.come_back();
                }
                if self.lock.try_acquire() {
                    // SAFETY: we hold the lock.
                    let reactor = unsafe { self.reactor() };
                    let _driving = Driving::enter(reactor);
                    arrive(reactor, arrival);
                    return true;
                }
                self.lock_arrived().push(arrival);
            }
            Left::Collect(doorbell, timeout) => {
                doorbell.wait(Some(timeout));
                drop(doorbell);
                let collects = if node.is_some() {
                    &self.caller_collects
                } else {
                    &self.keeper_collects
                };
                if let Some(node) = node {
                    node.come_back();
                }
                collects.store(false, Ordering::Release);
            }
            Left::Breathe => {
                if let Some(node) = node {
                    node.come_back();
                }
            }
            Left::Done | Left::Wait(_) => unreachable!("not away"),
        }
        self.lock.knock()
    }

    /// Waits, without the lock, until told to drive (true: with the lock) or done (false).
    fn wait(&self, node: &Node, mut deadline_ns: Option<u64>) -> bool {
        let spinning = Spinning::enter(self);
        let spin_until_ns = if spinning.allowed {
            monotonic_ns() + SPIN_NS
        } else {
            0
        };
        let mut turns = 0u32;
        loop {
            match node.state.load(Ordering::Acquire) {
                DONE => return false,
                DRIVE => {
                    self.await_release();
                    // Only then knock: a holder that we don't get past sees us waiting and names a successor anew. DONE stays.
                    let back = node.state.compare_exchange(
                        DRIVE,
                        WAITING,
                        Ordering::AcqRel,
                        Ordering::Acquire,
                    );
                    if back.is_ok() && self.lock.knock() {
                        return true;
                    }
                    continue;
                }
                _ => {}
            }
            turns += 1;
            if spinning.allowed && (!turns.is_multiple_of(32) || monotonic_ns() < spin_until_ns) {
                std::hint::spin_loop();
                continue;
            }
            break;
        }
        drop(spinning);
        loop {
            match node.state.load(Ordering::Acquire) {
                DONE => return false,
                DRIVE => {
                    self.await_release();
                    let back = node.state.compare_exchange(
                        DRIVE,
                        WAITING,
                        Ordering::AcqRel,
                        Ordering::Acquire,
                    );
                    if back.is_ok() && self.lock.knock() {
                        return true;
                    }
                }
                state => {
                    if state == WAITING
                        && node
                            .state
                            .compare_exchange(
                                WAITING,
                                SLEEPING,
                                Ordering::AcqRel,
                                Ordering::Acquire,
                            )
                            .is_err()
                    {
                        continue;
                    }
                    futex::wait(&node.state, SLEEPING, deadline_ns);
                    if deadline_ns.is_some_and(|deadline_ns| monotonic_ns() >= deadline_ns) {
                        deadline_ns = None;
                        let awake = node.state.compare_exchange(
                            SLEEPING,
                            WAITING,
                            Ordering::AcqRel,
                            Ordering::Acquire,
                        );
                        // Not got: the holder was told to look around, and finds the timer due.
                        if awake.is_ok() && self.lock.knock() {
                            return true;
                        }
                    }
                }
            }
        }
    }

    /// Tries to take the lock for a while, then leaves a mark for the holder.
    pub(crate) fn compete(&self, tries_max: u32) -> bool {
        for _ in 0..tries_max {
            if self.lock.looks_free() && self.lock.try_acquire() {
                return true;
            }
            std::hint::spin_loop();
        }
        self.lock.knock()
    }

    /// Gives the holder who named us a moment to release.
    pub(crate) fn await_release(&self) {
        for _ in 0..200 {
            if self.lock.looks_free() {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Drives, with the lock; returns without it, after everything owed was paid. Foreign wakers were called only if the thread then had
    /// nothing in hand that others wait for, and wasn't one to be named as a driver: they may call us.
    pub(crate) fn drive(&self, purpose: &Purpose<'_>) -> Left {
        let abort = AbortOnUnwind;
        let mut after = After::default();
        let left = {
            // SAFETY: we hold the lock; `leave` releases it, after which the reactor isn't used.
            let reactor = unsafe { self.reactor() };
            let _driving = Driving::enter(reactor);
            self.drive_reactor(reactor, purpose, &mut after)
        };
        self.pay(after);
        mem::forget(abort);
        left
    }

    fn drive_reactor(&self, reactor: &Reactor, purpose: &Purpose<'_>, after: &mut After) -> Left {
        purpose.arrive(self, reactor);
        let mut polled = 0u32;
        loop {
            if self.lock.take_knock() {
                purpose.take_over();
                self.take_in(reactor);
            }
            if let Some(what) = reactor.take_broken() {
                self.set_poisoned(what);
                reactor.set_unusable();
            }
            let usable = reactor.is_usable();
            if !usable {
                self.fail_all(reactor);
            }
            let done = purpose.is_done();
            let eager = !done && purpose.is_eager(self);
            let mut left = None;
            if usable && (eager || polled < FOREIGN_MAX) {
                if eager && polled >= FOREIGN_MAX && reactor.owes_wakeups() {
                    left = Some(Left::Breathe);
                } else if reactor.poll_next() {
                    polled += 1;
                    continue;
                }
            }
            if eager && left.is_none() {
                let collecting = self.caller_collects.load(Ordering::Acquire);
                if reactor.in_flight.get() > 0 && !collecting && reactor.collect() {
                    continue;
                }
                let owes_wakers = !after.wakers.is_empty() || reactor.owes_wakers();
                if owes_wakers && (purpose.may_wait() || reactor.has_requests()) {
                    // A waker may call us, or take its time: others must not depend on this thread meanwhile.
                    left = Some(Left::Breathe);
                } else if usable {
                    left = self.next_step(reactor, purpose);
                    if left.is_none() && (reactor.resume_yielded() || reactor.fire_timers()) {
                        continue;
                    }
                }
                if left.is_none() && reactor.in_flight.get() > 0 && !collecting {
                    left = purpose.collect(self, reactor);
                }
            }
            let left = left.unwrap_or(if done { Left::Done } else { purpose.idle() });
            if let Some(left) = self.leave(reactor, purpose, left, after) {
                return left;
            }
        }
    }

    /// A request to execute, or a pause before a long row of background slices.
    fn next_step(&self, reactor: &Reactor, purpose: &Purpose<'_>) -> Option<Left> {
        let own = match purpose {
            Purpose::Caller(node) => Some(*node),
            _ => None,
        };
        if let Some(request) = reactor.take_request(own) {
            return Some(Left::Execute(reactor.device().clone(), request));
        }
        (reactor.has_work() && reactor.owes_wakeups()).then_some(Left::Breathe)
    }

    /// Names a successor for what is left and releases the lock; None when somebody knocked, and there is more to do.
    fn leave(
        &self,
        reactor: &Reactor,
        purpose: &Purpose<'_>,
        mut left: Left,
        after: &mut After,
    ) -> Option<Left> {
        let leaves_for_good = matches!(left, Left::Done | Left::Wait(_));
        let may_arm = leaves_for_good && purpose.may_arm();
        let collected = self.caller_collects.load(Ordering::Acquire)
            || self.keeper_collects.load(Ordering::Acquire);
        let work = reactor.has_work() || (reactor.in_flight.get() > 0 && !collected);
        // Who pauses to let others be woken does the rest itself.
        if work && !matches!(left, Left::Breathe) && !reactor.name_successor() && may_arm {
            after.wake_keeper |= self.keeper.arm();
        }
        if leaves_for_good {
            let next_ns = reactor.unguarded_deadline_ns();
            let unguarded = next_ns < self.keeper.wakes_at_ns();
            match (&mut left, purpose) {
                (Left::Wait(deadline), Purpose::Keeper) => {
                    self.keeper.set_wakes_at_ns(next_ns);
                    *deadline = (next_ns != u64::MAX).then_some(next_ns);
                }
                (Left::Wait(deadline), Purpose::Caller(node)) if unguarded => {
                    reactor.set_guard(node, next_ns);
                    *deadline = Some(next_ns);
                }
                _ if unguarded && self.keeper.is_enabled() => {
                    after.wake_keeper |= self.keeper.arm();
                }
                _ if unguarded => {
                    // Whoever this is, if anybody waits at all, comes to the arm above.
                    reactor.name_successor();
                }
                _ => {}
            }
        }
        reactor.take_after(after);
        if let (Left::Wait(_), Purpose::Caller(node)) = (&left, purpose) {
            node.state.store(WAITING, Ordering::Release);
        }
        if self.lock.try_release() {
            return Some(left);
        }
        purpose.arrive(self, reactor);
        match left {
            Left::Execute(_, request) => reactor.put_back_request(request),
            Left::Collect(..) => purpose.collects(self).store(false, Ordering::Relaxed),
            _ => {}
        }
        None
    }

    /// Takes in what came from outside.
    fn take_in(&self, reactor: &Reactor) {
        self.inbox.drain(|message| {
            // SAFETY: pushed messages are valid until we are through with them, and embedded in what their kind says, as its first field.
            unsafe {
                match (*message).kind {
                    MessageKind::Node => {
                        let node = &*message.cast::<Node>();
                        reactor.list(node);
                        reactor.add_ready(node.task());
                    }
                    MessageKind::Cell => reactor.add_ready((*message.cast::<OwnedCell>()).task()),
                }
            }
        });
        for arrival in self.lock_arrived().drain(..) {
            arrive(reactor, arrival);
        }
        // A keeper that woke for a timer and didn't get the lock knocked.
        reactor.fire_timers();
    }

    /// After a panic, once no request is under way any more, or after the worker's end: everybody gets an error.
    fn fail_all(&self, reactor: &Reactor) {
        reactor.forget_ready();
        if reactor.in_flight.get() > 0 {
            reactor.collect();
        }
        if reactor.in_flight.get() == 0 && reactor.executing.get() == 0 {
            reactor.fail_tasks(&|| self.ended_error());
        }
    }

    fn lock_arrived(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.arrived.lock().unwrap_or_else(|held| held.into_inner())
    }

    /// Does what was noted under the lock and had to wait for its release.
    fn pay(&self, after: After) {
        if after.is_empty() {
            return;
        }
        if let Some(doorbell) = &after.ring
            && let Err(error) = doorbell.ring()
        {
            // Whoever waits for the device rings again.
            tracing::warn!(worker = %self.name, %error, "could not ring the device");
        }
        for state in &after.sleepers {
            futex::wake(*state);
        }
        if after.wake_keeper {
            self.keeper.wake();
        }
        if !after.wakers.is_empty() {
            let _suspended = Inside::suspend();
            for waker in after.wakers {
                // An executor's waker that panics is the executor's problem.
                let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
            }
        }
    }

    /// Drives without blocking for the device, if the worker is free. If not, the holder is told to look around where that is needed.
    pub(crate) fn help(&self, purpose: &Purpose<'_>, need: Need) {
        let mut holding = match need {
            Need::None => self.lock.try_acquire(),
            Need::Driver => self.lock.try_acquire() || self.lock.knock(),
            Need::Look => self.lock.knock(),
        };
        while holding {
            match self.drive(purpose) {
                Left::Done | Left::Wait(_) => return,
                left => holding = self.away(left, None),
            }
        }
    }

    /// Hands in an operation that a handle shares, and runs what is ready if the worker is free.
    ///
    /// # Safety
    /// The cell was just filled and carries the worker's reference.
    pub(crate) unsafe fn hand_in(&self, cell: ptr::NonNull<OwnedCell>) {
        // SAFETY: valid until the worker gave up its reference, by the caller's word.
        unsafe { self.inbox.push(cell.as_ptr().cast::<Message>()) };
        self.help(&Purpose::Glance, Need::Look);
    }

    /// Ends the worker: its own tasks, then what `drop_state` drops, then its queue and device. Nobody else may be driving for long.
    pub(crate) fn end(&self, drop_state: impl FnOnce()) {
        loop {
            if self.lock.knock() {
                self.lock.take_knock();
                // SAFETY: we hold the lock, and release it after the reference's last use.
                let reactor = unsafe { self.reactor() };
                let driving = Driving::enter(reactor);
                self.take_in(reactor);
                reactor.discard_requests();
                reactor.collect();
                if reactor.in_flight.get() == 0 && reactor.executing.get() == 0 {
                    reactor.set_unusable();
                    self.fail_operations(reactor);
                    reactor.dismantle();
                    if catch_unwind(AssertUnwindSafe(drop_state)).is_err() {
                        tracing::error!(worker = %self.name, "a panic while the worker's state was dropped");
                    }
                    reactor.release_device();
                    drop(driving);
                    // Whoever knocked meanwhile is turned away by `drive`.
                    self.drive(&Purpose::Glance);
                    return;
                }
                drop(driving);
                let waits = reactor.in_flight.get() > 0;
                let doorbell = reactor.doorbell();
                while !self.lock.try_release() {
                    self.lock.take_knock();
                    let _driving = Driving::enter(reactor);
                    self.take_in(reactor);
                }
                if waits && let Some(doorbell) = doorbell {
                    doorbell.wait(Some(Duration::from_nanos(COLLECT_NS)));
                    continue;
                }
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    /// Operations that slipped in behind the last one.
    fn fail_operations(&self, reactor: &Reactor) {
        reactor.fail_operations(&|| self.ended_error());
    }
}

fn arrive(reactor: &Reactor, arrival: Arrival) {
    reactor.executing.set(reactor.executing.get() - 1);
    match arrival {
        Arrival::Completion(completion) => reactor.deliver(completion),
        Arrival::Panicked(panic) => reactor.break_down(&*panic),
    }
}

impl Purpose<'_> {
    /// With the lock (again): what this thread was told before is void.
    fn arrive(&self, core: &Core, reactor: &Reactor) {
        match self {
            Purpose::Caller(node) if !node.is_done() => {
                node.state.store(BUSY, Ordering::Relaxed);
                reactor.forget_duties(node);
            }
            Purpose::Keeper => core.keeper.set_wakes_at_ns(u64::MAX),
            _ => {}
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Purpose::Caller(node) => node.is_done(),
            Purpose::Handle { cell, .. } => cell.is_done(),
            Purpose::Glance | Purpose::Keeper => false,
        }
    }

    /// Whether it goes on as long as there is anything to do.
    fn is_eager(&self, core: &Core) -> bool {
        match self {
            Purpose::Caller(_) | Purpose::Handle { .. } => true,
            Purpose::Glance => false,
            Purpose::Keeper => !core.keeper.is_stopping(),
        }
    }

    /// Somebody knocked: what that was about is this driver's now, and not for its owner to come back to at leisure.
    fn take_over(&self) {
        if let Purpose::Handle { returns, .. } = self {
            returns.set(false);
        }
    }

    /// Whether the keeper gets the work that this driver leaves. Not if that is only what an owner who polls by hand will come back for;
    /// once its operation is done, it won't.
    fn may_arm(&self) -> bool {
        !matches!(self, Purpose::Handle { cell, returns } if returns.get() && !cell.is_done())
    }

    /// Whoever may block for the device says so.
    fn collects<'c>(&self, core: &'c Core) -> &'c AtomicBool {
        match self {
            Purpose::Keeper => &core.keeper_collects,
            _ => &core.caller_collects,
        }
    }

    /// Whether it waits when there is nothing else to do.
    fn may_wait(&self) -> bool {
        matches!(self, Purpose::Caller(_) | Purpose::Keeper)
    }

    /// Waiting for the device, if that is this driver's to do.
    fn collect(&self, core: &Core, reactor: &Reactor) -> Option<Left> {
        if !self.may_wait() {
            return None;
        }
        if let Purpose::Caller(node) = self
            && core.keeper_collects.load(Ordering::Acquire)
            && !reactor.waits_for_device(node)
        {
            // What it waits for is another thread's to do, which couldn't wake it from there. The keeper sees to the device.
            return None;
        }
        let doorbell = reactor.doorbell()?;
        self.collects(core).store(true, Ordering::Relaxed);
        let next_ns = reactor.timers.borrow().next_ns();
        let timeout_ns = match next_ns {
            u64::MAX => COLLECT_NS,
            next_ns => next_ns.saturating_sub(monotonic_ns()).min(COLLECT_NS),
        };
        Some(Left::Collect(doorbell, Duration::from_nanos(timeout_ns)))
    }

    /// What a driver does that has nothing to do and isn't done.
    fn idle(&self) -> Left {
        match self {
            Purpose::Caller(_) | Purpose::Keeper => Left::Wait(None),
            Purpose::Handle { .. } | Purpose::Glance => Left::Done,
        }
    }
}

/// A waiter that may spin: as long as there are fewer of them than cores, one of which is the driver's.
struct Spinning<'c> {
    core: &'c Core,
    allowed: bool,
}

impl<'c> Spinning<'c> {
    fn enter(core: &'c Core) -> Self {
        let others = core.spinners.fetch_add(1, Ordering::Relaxed);
        Spinning {
            core,
            allowed: others + 1 < core.cores,
        }
    }
}

impl Drop for Spinning<'_> {
    fn drop(&mut self) {
        self.core.spinners.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a forked child gets for its parent's volume; says so once where a person may see it.
#[cold]
pub(crate) fn forked() -> Error {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        eprintln!(
            "adit: a forked process can't use its parent's volume (EBADF); open it again, or exec"
        );
    }
    Error::with(Errno::BADF, "use a volume in a forked process")
}
