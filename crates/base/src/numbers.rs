//! Numbers of Adit's own descriptors, in a process whose program has plans for low ones.
//!
//! The kernel gives a new descriptor the lowest free number. A shell relies on that nobody else
//! takes one: it closes number 1, then puts a file there (`dup2`). A thread of Adit's that made a
//! descriptor between the two would have that number, and while the kernel makes it, `dup2` answers
//! `EBUSY` (dup2(2)). So such a thread makes each descriptor [alone](alone), while the program is in
//! no call that gives or takes away a number, and moves it to a high number.
//!
//! Who knows the program's calls (`adit run`) says when it is in one; elsewhere nobody does, and
//! making a descriptor waits for nothing.
//!
//! Invariant: none of both waits longer than [`PATIENCE`]. A program may be in `open` of a FIFO for
//! hours, or leave a call by `longjmp`.

use rustix::io::fcntl_dupfd_cloexec;
use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Numbers from this one on are high: programs have plans for lower ones.
pub const FIRST_HIGH: RawFd = 256;

/// How long one waits for the other: beside busy processes a thread may lose its core in between.
const PATIENCE: Duration = Duration::from_millis(200);

/// Calls of the program that are under way.
static CALLS: AtomicU32 = AtomicU32::new(0);
/// Those that took longer than [`PATIENCE`]: they are not waited for again.
static LONG: AtomicU32 = AtomicU32::new(0);
/// A thread makes descriptors.
static MAKES: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// It is this thread, which may close a descriptor meanwhile.
    static IS_MAKER: Cell<bool> = const { Cell::new(false) };
}

/// The program is in a call that gives or takes away a number, as long as this lives.
#[derive(Debug)]
pub struct ProgramCall(());

impl ProgramCall {
    /// Waits while a thread of Adit makes descriptors.
    #[inline]
    pub fn begin() -> ProgramCall {
        CALLS.fetch_add(1, Ordering::SeqCst);
        if MAKES.load(Ordering::SeqCst) {
            ProgramCall::wait();
        }
        ProgramCall(())
    }

    #[cold]
    fn wait() {
        if IS_MAKER.get() {
            return;
        }
        end_call();
        wait_until(|| !MAKES.load(Ordering::SeqCst));
        CALLS.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for ProgramCall {
    #[inline]
    fn drop(&mut self) {
        end_call();
    }
}

/// Not below zero: the call of a thread that forked is not one of the child.
fn end_call() {
    let less = |calls: u32| calls.checked_sub(1);
    let _ = CALLS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
}

/// Waits; false: not longer.
fn wait_until(is_so: impl Fn() -> bool) -> bool {
    let begin = Instant::now();
    for round in 0u32.. {
        if is_so() {
            return true;
        }
        if begin.elapsed() >= PATIENCE {
            return false;
        }
        match round {
            0..64 => std::thread::yield_now(),
            // A thread of a lower priority may be what is waited for.
            _ => std::thread::sleep(Duration::from_micros(100)),
        }
    }
    unreachable!("rounds take time")
}

/// Makes descriptors while the program is in no call that gives or takes away a number.
pub fn alone<T>(make: impl FnOnce() -> T) -> T {
    /// Also after a panic.
    struct End(bool);
    impl Drop for End {
        fn drop(&mut self) {
            IS_MAKER.set(false);
            if self.0 {
                MAKES.store(false, Ordering::SeqCst);
            }
        }
    }
    if IS_MAKER.get() {
        return make();
    }
    let is_first = || !MAKES.swap(true, Ordering::SeqCst);
    let _end = End(wait_until(is_first));
    IS_MAKER.set(true);
    LONG.fetch_min(CALLS.load(Ordering::SeqCst), Ordering::SeqCst);
    let are_none = || CALLS.load(Ordering::SeqCst) <= LONG.load(Ordering::SeqCst);
    if !wait_until(are_none) {
        LONG.store(CALLS.load(Ordering::SeqCst), Ordering::SeqCst);
    }
    make()
}

/// Makes a descriptor [alone], and gives it a high number, if the process may have one.
pub fn high<E>(make: impl FnOnce() -> Result<OwnedFd, E>) -> Result<OwnedFd, E> {
    alone(|| make().map(raised))
}

/// Gives a descriptor a high number, if the process may have one.
pub fn raised(fd: OwnedFd) -> OwnedFd {
    match fd.as_raw_fd() {
        FIRST_HIGH.. => fd,
        _ => fcntl_dupfd_cloexec(&fd, FIRST_HIGH).unwrap_or(fd),
    }
}

/// Another descriptor of the same, with a high number, if the process may have one.
pub fn duplicate(fd: impl AsFd) -> rustix::io::Result<OwnedFd> {
    fcntl_dupfd_cloexec(&fd, FIRST_HIGH).or_else(|_| alone(|| fcntl_dupfd_cloexec(&fd, 0)))
}

/// In a forked child: the threads that make descriptors, and all calls, are its parent's.
pub(crate) fn in_child() {
    CALLS.store(0, Ordering::Relaxed);
    LONG.store(0, Ordering::Relaxed);
    MAKES.store(false, Ordering::Relaxed);
    IS_MAKER.set(false);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::sync::atomic::AtomicU32;
    use std::sync::{Mutex, PoisonError};

    /// The tests of one process have the numbers, and the calls, in common.
    static ONE: Mutex<()> = Mutex::new(());

    #[test]
    fn nobody_makes_a_descriptor_while_the_program_is_in_a_call() {
        const ROUNDS: u32 = 20_000;
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (makers, met, late) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        let meet = || met.fetch_add(makers.load(Ordering::SeqCst), Ordering::SeqCst);
        // A thread that lost its core for longer than the other waits is late, which is allowed.
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
        std::thread::scope(|scope| {
            scope.spawn(|| rounds(&call));
            scope.spawn(|| rounds(&make));
            scope.spawn(|| rounds(&make));
        });
        assert!(met.load(Ordering::SeqCst) == 0 || late.load(Ordering::SeqCst) > 0);
        assert_eq!(CALLS.load(Ordering::SeqCst), 0);
        assert!(!MAKES.load(Ordering::SeqCst));
    }

    /// A program in `open` of a FIFO: the first descriptor waits for it a little, the next ones
    /// don't.
    #[test]
    fn a_long_call_is_waited_for_once() {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let long = ProgramCall::begin();
        alone(|| ());
        assert_eq!(LONG.load(Ordering::SeqCst), 1);
        std::mem::forget(long);
        assert_eq!(alone(|| LONG.load(Ordering::SeqCst)), 1);
        end_call();
        assert_eq!(alone(|| LONG.load(Ordering::SeqCst)), 0);
        end_call(); // one too many
        assert_eq!(CALLS.load(Ordering::SeqCst), 0);
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
        assert_eq!(raised(made).as_raw_fd(), number);
        let failed = high(|| Err::<OwnedFd, _>("no"));
        assert_eq!(failed.err(), Some("no"));
    }
}
