//! Numbers of Adit's own descriptors, in a process whose program relies on low ones, and forks.
//!
//! The kernel gives a new descriptor the lowest free number. A shell relies on no other thread
//! taking one: it closes number 1, then puts a file there (`dup2`). A thread of Adit that made a
//! descriptor between the two would get that number, and while the kernel makes it, `dup2` fails
//! with `EBUSY` (dup2(2)). So such a thread makes each descriptor [alone], while the program is in
//! no call that gives or takes away a low number, and moves it to a high one.
//!
//! The library of `adit run` sees the program's calls, and announces each ([`ProgramCall`]). In
//! other processes no calls are announced.
//!
//! A fork is announced in every process. The kernel copies the table of descriptors first, and the
//! memory later. A descriptor that was made, or closed, between the two would be open in the child
//! without being registered there (see [`fork`]), and nothing would ever close it. So a thread
//! makes and registers a descriptor [alone], and closes and unregisters it [between
//! forks](between_forks). A fork waits meanwhile.
//!
//! Invariant: a thread of Adit waits for a call, or for a fork, at most [`PATIENCE`]: a program may
//! be in `open` of a FIFO for hours, or leave a call by `longjmp`. Meanwhile the program's other
//! calls go on. A call or a fork waits for threads of Adit at most twice [`MAKER_MAX`]: a file on a
//! network that is down may be opened or closed for ever. A thread that has waited so long goes on.

use crate::Errno;
use crate::fork::{self, Registered};
use rustix::io::fcntl_dupfd_cloexec;
use std::cell::Cell;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Numbers from this one on are high: programs have plans for lower ones.
pub const FIRST_HIGH: RawFd = 256;
/// The numbers below are those of the standard streams.
pub const FIRST_FREE: RawFd = 3;

/// The longest wait of a thread of Adit for a call, or for a fork. Beside busy processes the
/// program's thread may lose its core in the middle of one.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest wait of a call or a fork for a thread of Adit, and of such a thread for another one:
/// it has a low number until it is moved, which a call that went on could replace. An allocator
/// that opens a file under its lock keeps such a thread from ending.
const MAKER_MAX: Duration = Duration::from_secs(5);
/// While a thread of Adit waits for a call or a fork, it lets others begin this often.
const HOLD: Duration = Duration::from_millis(2);

/// The program's calls that are under way.
static CALLS: UnderWay = UnderWay::none();
/// The forks that are under way.
static FORKS: UnderWay = UnderWay::none();
/// The turn of the thread that makes or closes descriptors, or [`NOBODY`].
static MAKER: AtomicU32 = AtomicU32::new(NOBODY);
const NOBODY: u32 = 0;
/// Numbers of turns.
static TURNS: AtomicU32 = AtomicU32::new(NOBODY);

thread_local! {
    /// This thread makes or closes descriptors.
    static IS_MAKER: Cell<bool> = const { Cell::new(false) };
    /// This thread's own forks that are under way: functions that the program has registered with
    /// `pthread_atfork` may close a volume.
    static OWN_FORKS: Cell<u32> = const { Cell::new(0) };
    /// This thread's `vfork` is announced.
    static IS_IN_VFORK: Cell<bool> = const { Cell::new(false) };
}

/// Calls or forks that a thread of Adit lets end before it makes or closes a descriptor.
struct UnderWay {
    count: AtomicU32,
    /// Calls that took longer than [`PATIENCE`]: threads of Adit no longer wait for them.
    long: AtomicU32,
}

impl UnderWay {
    const fn none() -> UnderWay {
        UnderWay {
            count: AtomicU32::new(0),
            long: AtomicU32::new(0),
        }
    }

    /// Waits while a thread of Adit makes or closes descriptors.
    #[inline]
    fn begin(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if MAKER.load(Ordering::SeqCst) != NOBODY {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        // A child of `vfork` has numbers of its own.
        if IS_MAKER.get() || fork::is_in_vfork() {
            return;
        }
        let begin = Instant::now();
        while MAKER.load(Ordering::SeqCst) != NOBODY && begin.elapsed() < MAKER_MAX {
            self.end();
            wait_until(MAKER_MAX, || MAKER.load(Ordering::SeqCst) == NOBODY);
            self.count.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn end(&self) {
        // Not below zero: the call of a thread that forked is none of the child's.
        let less = |count: u32| count.checked_sub(1);
        let before = self
            .count
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        let left = before.map_or(0, |before| before - 1);
        // It may have been a long one.
        if self.long.load(Ordering::SeqCst) > left {
            self.long.fetch_min(left, Ordering::SeqCst);
        }
    }

    /// True if only long ones and `own` are under way.
    fn are_over(&self, own: u32) -> bool {
        self.count.load(Ordering::SeqCst) <= self.long.load(Ordering::SeqCst) + own
    }

    /// Those that are under way take long.
    fn give_up(&self) {
        self.long
            .store(self.count.load(Ordering::SeqCst), Ordering::SeqCst);
        self.long
            .fetch_min(self.count.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// In a forked child: all of them are its parent's.
    fn forget(&self) {
        self.count.store(0, Ordering::Relaxed);
        self.long.store(0, Ordering::Relaxed);
    }
}

/// The program is in a call that gives or takes away a number, as long as this lives.
#[derive(Debug)]
pub struct ProgramCall(());

impl ProgramCall {
    /// Waits while a thread of Adit makes or closes descriptors.
    #[inline]
    pub fn begin() -> ProgramCall {
        CALLS.begin();
        ProgramCall(())
    }
}

impl Drop for ProgramCall {
    #[inline]
    fn drop(&mut self) {
        CALLS.end();
    }
}

/// Waits until it is so; false: the time was over first.
fn wait_until(max: Duration, is_so: impl Fn() -> bool) -> bool {
    let begin = Instant::now();
    let mut yields = 64;
    loop {
        if is_so() {
            return true;
        }
        if begin.elapsed() >= max {
            return false;
        }
        if yields > 0 {
            yields -= 1;
            rustix::thread::sched_yield();
            continue;
        }
        // The other thread may have a lower priority. The C library's `nanosleep` is a cancellation
        // point, so the pause is a system call.
        let pause = rustix::thread::Timespec {
            tv_sec: 0,
            tv_nsec: 100_000,
        };
        let _ = rustix::thread::nanosleep(&pause);
    }
}

/// This thread makes or closes descriptors until the value is dropped, by a panic, too. With its
/// number.
struct Turn(u32);

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = MAKER.compare_exchange(self.0, NOBODY, Ordering::SeqCst, Ordering::SeqCst);
        IS_MAKER.set(false);
    }
}

/// Waits until no other thread makes or closes descriptors, and none of these calls is under way
/// except long ones and this thread's own forks. None: this thread has a turn, or is in a child of
/// `vfork`, which has its own numbers and may be killed at any time.
fn take_turn(what: &[&UnderWay]) -> Option<Turn> {
    if IS_MAKER.get() || fork::is_in_vfork() {
        return None;
    }
    fork::install();
    let own = |of: &UnderWay| {
        if std::ptr::eq(of, &FORKS) {
            OWN_FORKS.get()
        } else {
            0
        }
    };
    let are_over = || what.iter().all(|of| of.are_over(own(of)));
    let mut begin = None;
    loop {
        // First: a signal handler may close a descriptor.
        IS_MAKER.set(true);
        let turn = take_turn_of_makers();
        if wait_until(HOLD, are_over) {
            return Some(turn);
        }
        if begin.get_or_insert_with(Instant::now).elapsed() >= PATIENCE {
            let long = what.iter().filter(|of| !of.are_over(own(of)));
            long.for_each(|of| of.give_up());
            return Some(turn);
        }
        drop(turn);
        wait_until(HOLD, are_over);
    }
}

/// Waits until no other thread makes or closes descriptors, or one does for too long.
fn take_turn_of_makers() -> Turn {
    let mut own = NOBODY;
    while own == NOBODY {
        own = TURNS.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
    }
    let take = |from| {
        let taken = MAKER.compare_exchange(from, own, Ordering::SeqCst, Ordering::SeqCst);
        taken.is_ok()
    };
    loop {
        let other = MAKER.load(Ordering::SeqCst);
        if wait_until(MAKER_MAX, || take(NOBODY)) || other != NOBODY && take(other) {
            return Turn(own);
        }
    }
}

/// Makes descriptors while the program is in no call that gives or takes away a low number, and
/// doesn't fork. `make` also registers those that are to be closed in children.
pub fn alone<T>(make: impl FnOnce() -> T) -> T {
    let _turn = take_turn(&[&CALLS, &FORKS]);
    make()
}

/// Makes a descriptor [alone], and registers it: no forked child keeps it.
pub fn registered<T, E>(make: impl FnOnce() -> Result<T, E>) -> Result<Registered<T>, E>
where
    T: AsFd + Into<OwnedFd>,
{
    alone(|| make().map(Registered::new))
}

/// Makes a registered descriptor with a high number, if the limit of the process allows one. A
/// program that closes all numbers leaves it alone.
pub fn high<E>(make: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Registered<OwnedFd>, E> {
    registered(|| make().map(raised))
}

/// Registers a file that children keep, and gives it a high number, if the process may have one.
/// EMFILE if its number is too high to be registered: a program that closes all numbers would close
/// it, and the next file of the program would get its number.
pub fn kept(fd: impl Into<OwnedFd>) -> Result<Registered<File>, Errno> {
    let kept = raised(fd.into());
    if !fork::may_register(kept.as_raw_fd()) {
        return Err(Errno::MFILE);
    }
    Ok(Registered::kept(File::from(kept)))
}

/// Closes and unregisters descriptors while no thread forks.
pub(crate) fn between_forks<T>(close: impl FnOnce() -> T) -> T {
    let _turn = take_turn(&[&FORKS]);
    close()
}

/// Gives a descriptor a high number, or at least none of the standard streams', if the process may
/// have one.
pub fn raised(fd: OwnedFd) -> OwnedFd {
    let least = |least| fcntl_dupfd_cloexec(&fd, least);
    let copy = match fd.as_raw_fd() {
        FIRST_HIGH.. => None,
        ..FIRST_FREE => least(FIRST_HIGH).or_else(|_| least(FIRST_FREE)).ok(),
        _ => least(FIRST_HIGH).ok(),
    };
    copy.unwrap_or(fd)
}

/// Duplicates a descriptor, to a high number like [`high`].
pub fn duplicate(fd: impl AsFd) -> rustix::io::Result<Registered<OwnedFd>> {
    let least = |least| fcntl_dupfd_cloexec(&fd, least);
    high(|| least(FIRST_HIGH).or_else(|_| least(FIRST_FREE)))
}

/// Before a fork, in the thread that forks.
pub(crate) fn before_fork() {
    // First: a signal handler may close a descriptor.
    OWN_FORKS.set(OWN_FORKS.get() + 1);
    FORKS.begin();
}

/// After a fork, in the parent, also if there is no child.
pub(crate) fn after_fork() {
    FORKS.end();
    OWN_FORKS.set(OWN_FORKS.get().saturating_sub(1));
}

/// Announces a `vfork` of this thread, which no handler sees: its child finds the low numbers that
/// its parent has.
pub fn begin_vfork() {
    before_fork();
    // In a signal handler of a thread that has announced one, or after one that it left by a jump.
    if IS_IN_VFORK.replace(true) {
        after_fork();
    }
}

/// After `vfork` has returned, in the child and in the parent, which have this thread's memory in
/// common. The first of them ends the announcement: the parent, if its child was killed.
pub fn end_vfork() {
    if IS_IN_VFORK.replace(false) {
        after_fork();
    }
}

/// In a forked child: the threads that make descriptors, and all calls, are its parent's.
pub(crate) fn in_child() {
    CALLS.forget();
    FORKS.forget();
    MAKER.store(NOBODY, Ordering::Relaxed);
    IS_MAKER.set(false);
    OWN_FORKS.set(0);
    IS_IN_VFORK.set(false);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs::File;
    use std::sync::{Mutex, PoisonError};

    /// The tests of one process have the numbers, the calls and the forks in common.
    pub(crate) static ONE: Mutex<()> = Mutex::new(());

    #[test]
    fn nobody_makes_a_descriptor_while_the_program_is_in_a_call() {
        const ROUNDS: u32 = 50;
        // A round that takes long is no proof, since neither side waits for ever: its batch isn't
        // judged.
        const BATCHES: u32 = 300;
        const LIMIT: Duration = Duration::from_secs(240);
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (makers, met, late) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        let meet = || met.fetch_add(makers.load(Ordering::SeqCst), Ordering::SeqCst);
        let rounds = |work: &dyn Fn()| {
            for _ in 0..ROUNDS {
                let begin = Instant::now();
                work();
                let is_late = begin.elapsed() >= PATIENCE / 2;
                late.fetch_add(u32::from(is_late), Ordering::SeqCst);
            }
        };
        let call = || {
            let _call = ProgramCall::begin();
            meet();
            std::hint::spin_loop();
            meet();
        };
        let make = || {
            alone(|| {
                makers.fetch_add(1, Ordering::SeqCst);
                drop(ProgramCall::begin()); // it closes a descriptor
                makers.fetch_sub(1, Ordering::SeqCst);
            });
        };
        let (mut judged, begin) = (0, Instant::now());
        while judged < BATCHES && begin.elapsed() < LIMIT {
            std::thread::scope(|scope| {
                scope.spawn(|| rounds(&call));
                scope.spawn(|| rounds(&make));
                scope.spawn(|| rounds(&make));
            });
            let met = met.swap(0, Ordering::SeqCst);
            if late.swap(0, Ordering::SeqCst) == 0 {
                assert_eq!(met, 0);
                judged += 1;
            }
        }
        assert!(judged > 0, "each batch had a round of {:?}", PATIENCE / 2);
        assert_eq!(CALLS.count.load(Ordering::SeqCst), 0);
        assert_eq!(MAKER.load(Ordering::SeqCst), NOBODY);
    }

    /// Repeats `round` until one lasts no longer than `max`, since neither side waits for ever;
    /// returns the result of that one.
    fn is_right_within(max: Duration, round: impl Fn() -> bool) -> bool {
        const LIMIT: Duration = Duration::from_secs(240);
        let begin = Instant::now();
        loop {
            let begin_of_round = Instant::now();
            let is_right = round();
            if begin_of_round.elapsed() <= max {
                return is_right;
            }
            assert!(begin.elapsed() < LIMIT, "each round took more than {max:?}");
        }
    }

    /// It never ends its turn. Of those that wait for it, one at a time goes on.
    #[test]
    fn a_maker_that_stays_is_waited_for_once() {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let makers = AtomicU32::new(0);
        let make = || {
            alone(|| {
                let others = makers.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(20));
                makers.fetch_sub(1, Ordering::SeqCst);
                others == 0
            })
        };
        assert!(is_right_within(MAKER_MAX * 3 / 2, || {
            std::mem::forget(take_turn_of_makers());
            std::thread::scope(|scope| {
                let makers = [(); 3].map(|()| scope.spawn(make));
                makers.map(|of| of.join().expect("no panic")) == [true; 3]
            })
        }));
        assert_eq!(MAKER.load(Ordering::SeqCst), NOBODY);
    }

    /// It lost its core for half a second, with a low number.
    #[test]
    fn a_call_waits_for_a_maker_that_takes_long() {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let is_made = AtomicU32::new(0);
        let make = || {
            alone(|| {
                is_made.store(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(500));
                is_made.store(2, Ordering::SeqCst);
            });
        };
        assert!(is_right_within(MAKER_MAX / 2, || {
            is_made.store(0, Ordering::SeqCst);
            std::thread::scope(|scope| {
                scope.spawn(make);
                while is_made.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                let _call = ProgramCall::begin();
                is_made.load(Ordering::SeqCst) == 2
            })
        }));
    }

    /// A program in `open` of a FIFO: the first descriptor waits for it a little, the next ones
    /// don't.
    #[test]
    fn a_long_call_is_waited_for_once() {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let long = ProgramCall::begin();
        alone(|| ());
        assert_eq!(CALLS.long.load(Ordering::SeqCst), 1);
        // Another call goes on meanwhile, and is waited for.
        drop(ProgramCall::begin());
        assert_eq!(CALLS.long.load(Ordering::SeqCst), 1);
        drop(long);
        assert_eq!(CALLS.long.load(Ordering::SeqCst), 0);
        CALLS.end(); // one too many
        assert_eq!(CALLS.count.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn descriptors_get_high_numbers() {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let open = || File::open("/dev/null").map(OwnedFd::from);
        let made = high(open).expect("opened");
        assert!(made.as_raw_fd() >= FIRST_HIGH);
        let other = duplicate(&made).expect("duplicated");
        assert!(other.as_raw_fd() > made.as_raw_fd());
        let number = made.as_raw_fd();
        assert_eq!(raised(made.into_inner()).as_raw_fd(), number);
        let failed = high(|| Err::<OwnedFd, _>("no"));
        assert_eq!(failed.err(), Some("no"));
    }
}
