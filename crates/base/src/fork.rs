//! Fork detection: a forked child must not use, or keep alive, its parent's files.
//!
//! A handler that runs in every forked child raises a generation number and closes the parent's
//! descriptors. Handles remember the generation of their creation and return EBADF when it differs.
//! Descriptors registered by [`close_in_child`] are replaced in the child by an `O_PATH`
//! descriptor, which refuses reads, writes and locks with EBADF: the child neither holds the
//! parent's lock nor does its IO, and a stale handle that is dropped there closes a number that is
//! still its own.
//!
//! A descriptor is made and registered, or closed and unregistered, while no thread forks
//! ([`numbers`]): each registered descriptor that the child has is registered in its memory, too.
//! Descriptors that children keep are registered apart ([`Registered::kept`]): a program under
//! `adit run` leaves both kinds alone.
//!
//! The handlers use only async-signal-safe calls and atomics. They do not see `vfork`,
//! `posix_spawn` or a raw `clone`; `exec` follows those, where O_CLOEXEC does the same.

use crate::{Errno, Error, numbers};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::DupFlags;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

/// Numbers below this one are registered: the kernel's usual limit. A descriptor beyond isn't taken
/// from a child; its use of the volume is still refused by the generation.
const NUMBERS_MAX: usize = 1 << 20;

static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Descriptors that children lose.
static CLOSED: Numbers = Numbers::none();
/// Descriptors that children keep.
static KEPT: Numbers = Numbers::none();
static WATCH: Once = Once::new();

/// The process whose memory this is.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// True in a child of `vfork`, which has its parent's memory and its own descriptors. Known after
/// [`install`].
pub fn is_in_vfork() -> bool {
    let process = PROCESS.load(Ordering::Relaxed);
    // SAFETY: no preconditions.
    process != 0 && process != unsafe { libc::getpid() }
}

/// How many forks lie between the process that installed the hook and this one.
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Makes [`generation`] and [`close_in_child`] work; call it before the first handle is made. Cheap
/// when repeated.
pub fn install() {
    watch();
    if PROCESS.load(Ordering::Relaxed) == 0 {
        // SAFETY: no preconditions.
        PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    }
}

/// Watches forks from now on, as [`install`] does, too. A library whose own functions close volumes
/// before a fork calls this before it registers them: then the fork begins after those functions.
pub fn watch() {
    WATCH.call_once(|| {
        // SAFETY: plain functions that only use atomics and async-signal-safe system calls.
        let failed = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) };
        assert_eq!(failed, 0, "no memory to register a fork handler");
    });
}

/// The message of [`refused`] for a program that links Adit.
const TO_DEVELOPERS: &str =
    "a forked process can't use its parent's volume (EBADF); open it again, or exec";
static WORDS: OnceLock<&str> = OnceLock::new();

/// [`refused`] says this from now on: the program that forks may know nothing of volumes.
pub fn refuse_with(words: &'static str) {
    let _ = WORDS.set(words);
}

/// The error of a call in a forked child; the first one also says so on stderr.
#[cold]
pub fn refused() -> Error {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        eprintln!("adit: {}", WORDS.get().unwrap_or(&TO_DEVELOPERS));
    }
    Error::with(Errno::BADF, "use a volume in a forked process")
}

/// Takes a descriptor away from children forked while the returned guard lives. Called where the
/// descriptor is made, in [`numbers::alone`]; [`ChildGuard::close`] ends both.
pub fn close_in_child(fd: BorrowedFd<'_>) -> ChildGuard {
    install();
    CLOSED.register(fd.as_raw_fd())
}

/// A descriptor that is registered until it is closed. A program under `adit run` that closes all
/// numbers leaves it alone.
#[derive(Debug)]
pub struct Registered<T: AsFd + Into<OwnedFd>> {
    fd: ManuallyDrop<T>,
    guard: ManuallyDrop<ChildGuard>,
}

impl<T: AsFd + Into<OwnedFd>> Registered<T> {
    /// Takes it away from children. [`numbers::registered`] makes it, too, with no fork in between.
    pub fn new(fd: T) -> Registered<T> {
        Registered {
            guard: ManuallyDrop::new(close_in_child(fd.as_fd())),
            fd: ManuallyDrop::new(fd),
        }
    }

    /// Registers one that children keep.
    pub fn kept(fd: T) -> Registered<T> {
        Registered {
            guard: ManuallyDrop::new(KEPT.register(fd.as_fd().as_raw_fd())),
            fd: ManuallyDrop::new(fd),
        }
    }

    /// Unregisters it.
    pub fn into_inner(self) -> T {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: each is taken once, since nothing drops `this`.
        unsafe {
            ManuallyDrop::drop(&mut this.guard);
            ManuallyDrop::take(&mut this.fd)
        }
    }
}

impl Registered<OwnedFd> {
    /// Turns the descriptor into a file; it stays registered.
    pub fn into_file(self) -> Registered<File> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: each is taken once, since nothing drops `this`.
        let (fd, guard) = unsafe {
            let fd = ManuallyDrop::take(&mut this.fd);
            (fd, ManuallyDrop::take(&mut this.guard))
        };
        Registered {
            fd: ManuallyDrop::new(File::from(fd)),
            guard: ManuallyDrop::new(guard),
        }
    }
}

impl<T: AsFd + Into<OwnedFd>> Drop for Registered<T> {
    fn drop(&mut self) {
        let number = self.fd.as_fd().as_raw_fd();
        // SAFETY: taken once.
        let guard = unsafe { ManuallyDrop::take(&mut self.guard) };
        // By the kernel: a function of `adit run` would leave it alone.
        // SAFETY: the owner of the descriptor is never used again, and not dropped.
        guard.close(|| unsafe { rustix::io::close(number) });
    }
}

impl<T: AsFd + Into<OwnedFd>> AsFd for Registered<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<T: AsFd + Into<OwnedFd>> std::ops::Deref for Registered<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.fd
    }
}

/// A set of numbers, each as often as it is registered: a number that was closed may be registered
/// anew before it is unregistered.
struct Numbers {
    counts: [AtomicU8; NUMBERS_MAX],
    /// No higher number was ever registered.
    end: AtomicUsize,
}

impl Numbers {
    const fn none() -> Numbers {
        Numbers {
            counts: [const { AtomicU8::new(0) }; NUMBERS_MAX],
            end: AtomicUsize::new(0),
        }
    }

    fn register(&'static self, fd: RawFd) -> ChildGuard {
        let number = usize::try_from(fd).unwrap_or(usize::MAX);
        // A number of a child of `vfork` is its own; the set is its parent's, too.
        let count = self.counts.get(number).filter(|_| !is_in_vfork());
        if let Some(count) = count {
            count.fetch_add(1, Ordering::AcqRel);
            self.end.fetch_max(number + 1, Ordering::AcqRel);
        }
        ChildGuard { count }
    }

    fn has(&self, fd: RawFd) -> bool {
        let count = usize::try_from(fd).ok().and_then(|at| self.counts.get(at));
        count.is_some_and(|count| count.load(Ordering::Acquire) > 0)
    }

    /// All of them. Async-signal-safe.
    fn all(&self) -> impl Iterator<Item = RawFd> {
        let end = self.end.load(Ordering::Acquire);
        (0..end as RawFd).filter(|fd| self.has(*fd))
    }
}

/// True if a descriptor of this number can be registered.
pub(crate) fn may_register(fd: RawFd) -> bool {
    usize::try_from(fd).is_ok_and(|number| number < NUMBERS_MAX)
}

/// All descriptors that children keep.
pub fn kept() -> impl Iterator<Item = RawFd> {
    KEPT.all()
}

/// True if children keep the descriptor.
#[inline]
pub fn is_kept(fd: RawFd) -> bool {
    KEPT.has(fd)
}

/// True if [`close_in_child`] registered the descriptor.
#[inline]
pub fn is_registered(fd: RawFd) -> bool {
    CLOSED.has(fd)
}

/// All descriptors that [`close_in_child`] registered.
pub fn registered() -> impl Iterator<Item = RawFd> {
    CLOSED.all()
}

/// Keeps a descriptor registered; see [`close_in_child`] and [`Registered::kept`].
#[derive(Debug)]
pub struct ChildGuard {
    count: Option<&'static AtomicU8>,
}

impl ChildGuard {
    /// Closes the descriptor by `close`, while no thread forks, and ends the registration. In that
    /// order: a program that closes all numbers does not close it in between.
    pub fn close(self, close: impl FnOnce()) {
        numbers::between_forks(|| {
            close();
            drop(self);
        });
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        if let Some(count) = self.count {
            // Not below zero: a raw `clone` may have copied the count before it was raised.
            let less = |count: u8| count.checked_sub(1);
            let _ = count.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        }
    }
}

extern "C" fn before() {
    if !is_in_vfork() {
        numbers::before_fork();
    }
}

extern "C" fn after() {
    if !is_in_vfork() {
        numbers::after_fork();
    }
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    if PROCESS.load(Ordering::Relaxed) != 0 {
        // SAFETY: async-signal-safe, without preconditions.
        PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    }
    numbers::in_child();
    // By the kernel: the functions of `adit run` may wait for a lock that this thread holds.
    let mut dead = None;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    for fd in CLOSED.all() {
        // It stays registered: its guard lives on in the child's copy of the handle.
        // SAFETY: `fd` is registered, so no other code owns it; this owner isn't dropped.
        let mut replaced = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
        let dead = dead.get_or_insert_with(|| open(c"/", flags, Mode::empty()));
        let done = dead
            .as_ref()
            .is_ok_and(|dead| rustix::io::dup3(dead, &mut replaced, DupFlags::CLOEXEC).is_ok());
        if !done {
            // SAFETY: `fd` is registered, so no other code owns it, and nothing closed it above.
            unsafe { rustix::io::close(fd) };
        }
    }
    if let Some(Ok(dead)) = dead {
        // SAFETY: opened above, and used only here.
        unsafe { rustix::io::close(dead.into_raw_fd()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::tests::ONE;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::sync::PoisonError;
    use std::time::{Duration, Instant};

    #[test]
    fn a_child_sees_another_generation_and_loses_registered_descriptors() {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        install();
        let registered = Registered::new(File::open("/proc/self/stat").expect("open"));
        let other = File::open("/proc/self/stat").expect("open");
        let kept = numbers::kept(File::open("/proc/self/stat").expect("open")).expect("kept");
        let before = generation();
        // SAFETY: the child only uses system calls and atomics, then leaves by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut byte = 0u8;
            // SAFETY: reads at most one byte into `byte`.
            let read = |fd: RawFd| unsafe { libc::read(fd, (&raw mut byte).cast(), 1) };
            let mut read = read;
            let good = generation() == before + 1
                && read(registered.as_raw_fd()) == -1
                && read(other.as_raw_fd()) == 1
                && read(kept.as_raw_fd()) == 1;
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(generation(), before);
        let number = registered.as_raw_fd();
        assert!(is_registered(number));
        drop(registered);
        assert!(!is_registered(number));
        let number = kept.as_raw_fd();
        assert!(is_kept(number) && self::kept().any(|fd| fd == number));
        drop(kept);
        assert!(!is_kept(number));
    }

    /// How many of this process's descriptors are memory that can be sealed, which only one test
    /// makes.
    fn memories() -> usize {
        // SAFETY: looks at a number.
        let seals = |fd: &RawFd| unsafe { libc::fcntl(*fd, libc::F_GET_SEALS) };
        (0..1024).filter(|fd| seals(fd) == 0).count()
    }

    /// Forks once; does the child have such memory?
    fn child_keeps_memory() -> bool {
        // SAFETY: the child only uses system calls, then leaves by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let found = memories();
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(i32::from(found > 0)) };
        }
        assert!(child > 0, "forked: {}", std::io::Error::last_os_error());
        let mut status = -1;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "ended by itself: {status}");
        libc::WEXITSTATUS(status) != 0
    }

    /// Becomes true when this goes, by a panic, too.
    struct Ends<'a>(&'a AtomicBool);

    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Other threads make and close them all the time.
    #[test]
    fn a_child_keeps_no_descriptor_that_is_made_or_closed_meanwhile() {
        const FORKS: u32 = 30;
        const BATCHES: u32 = 10;
        /// A thread that has waited twice as long goes on: a batch with a step that takes this long
        /// isn't judged.
        const LATE: Duration = Duration::from_secs(1);
        const LIMIT: Duration = Duration::from_secs(240);
        /// About as long as a fork.
        const PAUSE: Duration = Duration::from_micros(300);
        let pause = |max: Duration| {
            let begin = Instant::now();
            while begin.elapsed() < max {
                std::hint::spin_loop();
            }
        };
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let make = || memfd_create("adit-test", flags);
        let make_slowly = || make().inspect(|_| pause(PAUSE));
        let (ends, is_late) = (AtomicBool::new(false), AtomicBool::new(false));
        let goes_on = || !ends.load(Ordering::Relaxed);
        let timed = |work: &dyn Fn() -> bool| {
            let begin = Instant::now();
            let done = work();
            is_late.fetch_or(begin.elapsed() >= LATE, Ordering::Relaxed);
            done
        };
        let make_one = || {
            drop(numbers::registered(make_slowly).expect("made"));
            pause(PAUSE);
            true
        };
        let make_many = || {
            let made: Vec<_> = (0..32).map(|_| numbers::high(make)).collect();
            for made in made {
                drop(made.expect("made"));
                pause(PAUSE / 32);
            }
            true
        };
        let (mut judged, begin) = (0, Instant::now());
        while judged < BATCHES && begin.elapsed() < LIMIT {
            is_late.store(false, Ordering::Relaxed);
            ends.store(false, Ordering::Relaxed);
            let kept = std::thread::scope(|scope| {
                scope.spawn(|| while goes_on() && timed(&make_one) {});
                scope.spawn(|| while goes_on() && timed(&make_many) {});
                let _ends = Ends(&ends);
                (0..FORKS).filter(|_| timed(&child_keeps_memory)).count()
            });
            if !is_late.load(Ordering::Relaxed) {
                assert_eq!(kept, 0, "children that have one");
                judged += 1;
            }
        }
        assert!(judged > 0, "something took {LATE:?} in each batch");
    }
}
