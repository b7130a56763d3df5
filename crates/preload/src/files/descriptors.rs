//! Descriptors of the volume's files: real ones of the kernel, and what stands behind each.
//!
//! The kernel's side is an `O_PATH` descriptor of a symbolic link. So numbers, limits, dup,
//! close-on-exec and passing work as ever, and a system call that goes past us reads and writes
//! nothing: EBADF. Whoever opens it again by its name in /proc gets ELOOP. (With `/dev/null` behind
//! the number, bytes would vanish there.)
//! Our side is a table from number to open file.
//!
//! Invariants: an entry is made after its number and goes before it, so no number that the kernel
//! may give away again has one. Numbers made by dup share one [`Open`], its position and flags.
//! Looking one up takes no lock.

use crate::files::position::{self, Locked, Position};
use crate::runtime::answer::{Answer, checked, errno};
use crate::runtime::inside;
use crate::runtime::real::of_program;
use crate::runtime::real::real;
use crate::runtime::renewed::Renewed;
use crate::volume::identity::credentials;
use adit::{Errno, File, FileKind};
use adit_base::fork::{self, Registered};
use adit_base::numbers;
use adit_fs::{At, BlobId, DirEntry};
use arc_swap::{ArcSwapOption, Guard};
use libc::c_int;
use rustix::time::Timespec;
use std::cell::{RefCell, UnsafeCell};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, RwLockWriteGuard, Weak};

/// What `open` made, and all its duplicates share.
pub(crate) struct Open {
    pub(crate) file: Handle,
    pub(crate) kind: FileKind,
    /// The flags that `F_GETFL` tells: the access mode and those that stay.
    flags: AtomicI32,
    pub(crate) position: Position,
    /// Of a directory.
    listing: Renewed<Listing>,
    /// The path by which it was opened, as the program sees it.
    pub(crate) shown: Vec<u8>,
    /// May it hold locks of the process?
    pub(crate) is_locked: AtomicBool,
}

/// The file of an [`Open`]. A child of a process that has the volume itself has another one.
pub(crate) struct Handle(UnsafeCell<File>);

// SAFETY: it is changed by `replace` alone, while there is one thread.
unsafe impl Sync for Handle {}

impl Handle {
    /// Puts the child's own handle in the place of its parent's.
    ///
    /// # Safety
    /// In a child of fork, before it has a second thread, and in no call on the file.
    pub(crate) unsafe fn replace(&self, file: File) {
        // SAFETY: promised by the caller. The parent's is not this process's to close.
        std::mem::forget(unsafe { std::mem::replace(&mut *self.0.get(), file) });
    }
}

impl Deref for Handle {
    type Target = File;

    #[inline]
    fn deref(&self) -> &File {
        // SAFETY: see `replace`.
        unsafe { &*self.0.get() }
    }
}

/// How far a directory was read.
#[derive(Default, Clone)]
pub(crate) struct Listing {
    /// Entries that were fetched but not given away.
    pub(crate) batch: std::collections::VecDeque<DirEntry>,
    /// Of the last entry that was given away; 0: none yet.
    pub(crate) cookie: u64,
}

/// Flags of `open` that `F_GETFL` tells.
const STATUS_FLAGS: c_int = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_DIRECT
    | libc::O_DSYNC
    | libc::O_SYNC
    | libc::O_NOATIME
    | libc::O_PATH
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW
    | libc::O_ASYNC;
/// The kernel sets it for programs of 64 bits.
const LARGE_FILE: c_int = if cfg!(target_arch = "aarch64") {
    0o400_000
} else {
    0o100_000
};
/// Those that `F_SETFL` changes.
const CHANGEABLE: c_int = libc::O_APPEND | libc::O_NONBLOCK | libc::O_NOATIME | libc::O_ASYNC;

impl Open {
    pub(crate) fn new(file: File, kind: FileKind, flags: c_int, shown: Vec<u8>) -> Open {
        Open {
            file: Handle(UnsafeCell::new(file)),
            kind,
            flags: AtomicI32::new(
                flags & STATUS_FLAGS
                    | if flags & libc::O_PATH == 0 {
                        LARGE_FILE
                    } else {
                        0
                    },
            ),
            position: Position::default(),
            listing: Renewed::default(),
            shown,
            is_locked: AtomicBool::new(false),
        }
    }

    /// The open file that the program before this one had.
    pub(crate) fn inherited(
        file: File,
        kind: FileKind,
        flags: c_int,
        shown: Vec<u8>,
        position: Position,
    ) -> Open {
        Open {
            position,
            ..Open::new(file, kind, flags, shown)
        }
    }

    pub(crate) fn id(&self) -> BlobId {
        self.file.id()
    }

    #[inline]
    pub(crate) fn flags(&self) -> c_int {
        self.flags.load(Ordering::Relaxed)
    }

    pub(crate) fn set_flags(&self, flags: c_int) -> Answer<()> {
        let changed = (self.flags() ^ flags) & libc::O_DIRECT;
        if changed != 0 {
            // The file system decides it when the file is opened.
            return Err(Errno::INVAL);
        }
        let kept = self.flags() & !CHANGEABLE;
        (self.flags).store(kept | (flags & CHANGEABLE), Ordering::Relaxed);
        Ok(())
    }

    /// Do writes go to the end of the file?
    #[inline]
    pub(crate) fn appends(&self) -> bool {
        self.flags() & libc::O_APPEND != 0
    }

    /// The inode, to be changed by this thread's user, which may not be the one that has opened it.
    pub(crate) fn to_change(&self) -> Answer<At<'static>> {
        self.check()?;
        Ok(At::inode(credentials(), self.id()))
    }

    /// A descriptor of `O_PATH` is none for most calls.
    pub(crate) fn check(&self) -> Answer<()> {
        self.has(self.flags() & libc::O_PATH == 0)
    }

    pub(crate) fn check_readable(&self) -> Answer<()> {
        self.has(self.is_readable())
    }

    pub(crate) fn check_writable(&self) -> Answer<()> {
        self.has(self.is_writable())
    }

    fn has(&self, right: bool) -> Answer<()> {
        if right { Ok(()) } else { Err(Errno::BADF) }
    }

    #[inline]
    pub(crate) fn is_readable(&self) -> bool {
        let flags = self.flags();
        flags & libc::O_PATH == 0 && flags & libc::O_ACCMODE != libc::O_WRONLY
    }

    #[inline]
    pub(crate) fn is_writable(&self) -> bool {
        let flags = self.flags();
        flags & libc::O_PATH == 0 && flags & libc::O_ACCMODE != libc::O_RDONLY
    }

    #[inline]
    pub(crate) fn position(&self) -> Locked<'_> {
        self.position.lock()
    }

    pub(crate) fn listing(&self) -> RwLockWriteGuard<'_, Listing> {
        self.listing.lock()
    }
}

const CHUNK: usize = 1024;
const CHUNKS: usize = 1024;

type Entry = ArcSwapOption<Open>;
static TABLE: [OnceLock<Box<[Entry]>>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];
/// Entries that are taken. While there are none, no number is looked up.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

fn entry(fd: c_int) -> Option<&'static Entry> {
    let number = usize::try_from(fd).ok()?;
    let chunk = TABLE.get(number / CHUNK)?.get()?;
    Some(&chunk[number % CHUNK])
}

/// The open file behind a number, for the time of a call.
pub(crate) struct OpenRef(Guard<Option<Arc<Open>>>);

impl Deref for OpenRef {
    type Target = Arc<Open>;

    #[inline]
    fn deref(&self) -> &Arc<Open> {
        self.0.as_ref().expect("made of a taken entry only")
    }
}

/// What stands behind a descriptor; None: it is not the volume's.
#[inline]
pub(crate) fn get(fd: c_int) -> Option<OpenRef> {
    if HAS_VFORKED.load(Ordering::Relaxed)
        && let Some(changed) = changed_in_vfork(fd)
    {
        return changed.map(|open| OpenRef(Guard::from_inner(Some(open))));
    }
    if TAKEN.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let held = entry(fd)?.load();
    held.is_some().then_some(OpenRef(held))
}

/// Puts it behind a number that the caller got from the kernel.
pub(crate) fn put(fd: c_int, open: Arc<Open>) -> Answer<()> {
    replace(fd, open).map(drop)
}

/// A lock. While a thread that forks holds it, no other thread puts a file behind a number: the child
/// would have the number alone. The value names the holder (0: none), which doesn't wait for itself: a
/// signal handler may interrupt `dup2`, and open files or fork.
static PUTTING: AtomicUsize = AtomicUsize::new(0);

/// Holds [`PUTTING`]. False: an earlier one of this thread frees it.
pub(crate) struct PuttingLock(bool);

/// Takes [`PUTTING`].
pub(crate) fn lock_putting() -> PuttingLock {
    const PAUSE: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 50_000,
    };
    thread_local!(static SELF: u8 = const { 0 });
    let this = SELF.with(|of| std::ptr::from_ref(of).addr());
    loop {
        match PUTTING.compare_exchange_weak(0, this, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return PuttingLock(true),
            Err(holder) if holder == this => return PuttingLock(false),
            Err(0) => (),
            // As long as another thread's fork takes. The C library's function would end a thread
            // that is cancelled.
            Err(_) => _ = rustix::thread::nanosleep(&PAUSE),
        }
    }
}

impl Drop for PuttingLock {
    fn drop(&mut self) {
        if self.0 {
            PUTTING.store(0, Ordering::Release);
        }
    }
}

/// Puts an open file behind a number that the caller got from the kernel. Returns what stood there
/// before.
pub(crate) fn replace(fd: c_int, open: Arc<Open>) -> Answer<Option<Arc<Open>>> {
    let chunk = usize::try_from(fd)
        .ok()
        .and_then(|fd| TABLE.get(fd / CHUNK));
    let chunk = chunk.ok_or(Errno::MFILE)?;
    let empty = || (0..CHUNK).map(|_| Entry::empty()).collect();
    let entry = &chunk.get_or_init(empty)[fd as usize % CHUNK];
    debug_assert!(!fork::is_in_vfork(), "the table is the parent's");
    let held = lock_putting();
    TAKEN.fetch_add(1, Ordering::Relaxed);
    let before = entry.swap(Some(open));
    drop(held);
    if let Some(before) = &before {
        TAKEN.fetch_sub(1, Ordering::Relaxed);
        release_locks(before);
    }
    Ok(before)
}

/// Does any number have something behind it?
#[inline]
pub(crate) fn are_there_any() -> bool {
    let is_in_vforked = || VFORKED.with(|of| !of.borrow().opened.is_empty());
    TAKEN.load(Ordering::Relaxed) > 0 || HAS_VFORKED.load(Ordering::Relaxed) && is_in_vforked()
}

/// Takes away what stands behind a number. The caller closes the number afterwards.
pub(crate) fn take(fd: c_int) -> Option<Arc<Open>> {
    get(fd)?;
    let open = entry(fd)?.swap(None)?;
    let taken = TAKEN.fetch_sub(1, Ordering::Relaxed);
    debug_assert!(taken > 0, "an entry is counted before it is made");
    release_locks(&open);
    Some(open)
}

/// The C library has made this number for a file of the host (-1: for none). If it was one of the
/// volume, a system call that went past us has closed it.
#[inline]
pub(crate) fn is_of_host(fd: c_int) -> c_int {
    if get(fd).is_some() {
        forget(fd);
    }
    fd
}

#[cold]
fn forget(fd: c_int) {
    if fork::is_in_vfork() {
        return put_in_vfork(fd, None);
    }
    // In the middle of a call, which opens files of the host, too, this thread may have locks that
    // closing needs.
    if inside::is_inside() {
        if let Some(open) = entry(fd).and_then(|entry| entry.swap(None)) {
            TAKEN.fetch_sub(1, Ordering::Relaxed);
            std::mem::forget(open);
        }
        return;
    }
    let _ = inside::run(|| drop(take(fd)));
}

/// Closing any descriptor of a file releases the process's locks on it, says POSIX.
fn release_locks(open: &Open) {
    if open.is_locked.load(Ordering::Relaxed) {
        let _ = open.file.release_locks(u64::from(std::process::id()));
    }
}

/// What all numbers are duplicates of.
fn pattern() -> Option<&'static Registered<std::fs::File>> {
    static PATTERN: OnceLock<Option<Registered<std::fs::File>>> = OnceLock::new();
    let make = || {
        let (name, flags) = (
            c"/proc/self/exe".as_ptr(),
            libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC,
        );
        let fd =
            real!(open(name => *const libc::c_char, flags => c_int, 0 => libc::mode_t) -> c_int);
        // SAFETY: just opened, and nobody else has it.
        (fd >= 0).then(|| unsafe { std::fs::File::from_raw_fd(fd) })
    };
    if fork::is_in_vfork() {
        // The parent of a child of vfork doesn't have the child's descriptors.
        PATTERN.get()?.as_ref()
    } else {
        PATTERN.get_or_init(|| numbers::kept(make()?).ok()).as_ref()
    }
}

/// A free number from the kernel.
fn number(close_on_exec: bool) -> Answer<c_int> {
    let fd = match pattern() {
        Some(pattern) => {
            let command = if close_on_exec {
                libc::F_DUPFD_CLOEXEC
            } else {
                libc::F_DUPFD
            };
            let pattern = pattern.as_raw_fd();
            of_program!(
                real!(fcntl(pattern => c_int, command => c_int, 0 => libc::c_long) -> c_int)
            )
        }
        // No /proc, or no number left for the pattern; or a child of vfork opens the first file.
        None => {
            let flags = libc::O_PATH | if close_on_exec { libc::O_CLOEXEC } else { 0 };
            let name = c"/dev/null".as_ptr();
            of_program!(
                real!(open(name => *const libc::c_char, flags => c_int, 0 => libc::mode_t) -> c_int)
            )
        }
    };
    checked(fd)
}

/// Gets a number from the kernel, opens the file and puts it behind the number. In this order: if
/// there is no number left, nothing is made, and nothing truncated.
pub(crate) fn install(
    close_on_exec: bool,
    open: impl FnOnce() -> Answer<Arc<Open>>,
) -> Answer<c_int> {
    let fd = number(close_on_exec)?;
    let installed = match usize::try_from(fd) {
        Ok(number) if number < CHUNK * CHUNKS => open().and_then(|open| {
            if fork::is_in_vfork() {
                open_in_vfork(fd, open);
                return Ok(());
            }
            put(fd, open)
        }),
        _ => Err(Errno::MFILE),
    };
    if let Err(error) = installed {
        of_program!(real!(close(fd => c_int) -> c_int));
        return Err(error);
    }
    Ok(fd)
}

/// Takes away what stands behind a number, if it is this.
pub(crate) fn take_this(fd: c_int, this: &Arc<Open>) {
    let Some(entry) = entry(fd) else { return };
    let before = entry.compare_and_swap(this, None);
    if before
        .as_ref()
        .is_some_and(|before| Arc::ptr_eq(before, this))
    {
        TAKEN.fetch_sub(1, Ordering::Relaxed);
        release_locks(this);
    }
}

/// Numbers of the volume's files in a range.
pub(crate) fn in_range(first: c_int, last: c_int) -> Vec<c_int> {
    let chunks = TABLE.iter().enumerate();
    let taken = chunks.filter_map(|(at, chunk)| Some((at, chunk.get()?)));
    let numbers = taken.flat_map(|(at, chunk)| {
        let entries = chunk.iter().enumerate();
        entries
            .filter(|(_, entry)| entry.load().is_some())
            .map(move |(within, _)| (at * CHUNK + within) as c_int)
    });
    numbers.filter(|fd| (first..=last).contains(fd)).collect()
}

thread_local! {
    /// What a child of vfork changed, which has this thread's memory. This thread forgets it when
    /// it goes on. Without a destructor: a program may start others in its last functions.
    static VFORKED: ManuallyDrop<RefCell<Vforked>> =
        const { ManuallyDrop::new(RefCell::new(Vforked::NEW)) };
}
/// Has a child of vfork ever changed anything?
static HAS_VFORKED: AtomicBool = AtomicBool::new(false);

struct Vforked {
    /// Numbers, and the open files behind them; None: closed.
    changed: Vec<(c_int, Option<Weak<Open>>)>,
    /// Files that the child has opened itself.
    opened: Vec<Arc<Open>>,
}

impl Vforked {
    const NEW: Vforked = Vforked {
        changed: Vec::new(),
        opened: Vec::new(),
    };
}

/// In a child of vfork: what stands behind a number that it changed.
#[inline(never)]
fn changed_in_vfork(fd: c_int) -> Option<Option<Arc<Open>>> {
    if VFORKED.with(|of| of.borrow().changed.is_empty()) {
        return None;
    }
    if !fork::is_in_vfork() {
        forget_vfork();
        return None;
    }
    VFORKED.with(|of| {
        let of = of.borrow();
        let change = of.changed.iter().rev().find(|change| change.0 == fd)?;
        Some(change.1.as_ref().and_then(Weak::upgrade))
    })
}

/// This process, not a child of vfork, goes on: what the child of this thread opened is closed.
pub(crate) fn forget_vfork() {
    // In the middle of a call it is left to the next one.
    if inside::is_inside() {
        return;
    }
    let _ = inside::run(|| drop(VFORKED.with(|of| of.replace(Vforked::NEW))));
}

/// In a child of vfork: this stands behind a number of its own from now on.
pub(crate) fn put_in_vfork(fd: c_int, open: Option<&Arc<Open>>) {
    if open.is_some() || get(fd).is_some() {
        let change = (fd, open.map(Arc::downgrade));
        VFORKED.with(|of| of.borrow_mut().changed.push(change));
        HAS_VFORKED.store(true, Ordering::Relaxed);
    }
}

/// In a child of vfork: it has opened this file, of which its parent has no descriptor.
fn open_in_vfork(fd: c_int, open: Arc<Open>) {
    position::take_spare(&open.position);
    put_in_vfork(fd, Some(&open));
    VFORKED.with(|of| of.borrow_mut().opened.push(open));
}

/// The numbers of this process, or of a child of vfork, and what stands behind them.
pub(crate) fn seen() -> Vec<(c_int, Arc<Open>)> {
    let mut numbers = in_range(0, c_int::MAX);
    if fork::is_in_vfork() {
        VFORKED.with(|of| numbers.extend(of.borrow().changed.iter().map(|change| change.0)));
        numbers.sort_unstable();
        numbers.dedup();
    }
    let of = |fd: c_int| Some((fd, get(fd)?.clone()));
    numbers.into_iter().filter_map(of).collect()
}

/// Is it one of the numbers behind which the kernel has nothing?
pub(crate) fn is_placeholder(fd: c_int) -> bool {
    // SAFETY: no preconditions.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_PATH != 0
}

/// What stands behind any number.
pub(crate) fn all() -> Vec<Arc<Open>> {
    let numbers = in_range(0, c_int::MAX).into_iter();
    numbers.filter_map(|fd| Some(get(fd)?.clone())).collect()
}

/// In a forked child: no thread is in the middle of a call. A directory that another thread of the
/// parent was reading begins anew.
pub(crate) fn in_child() {
    for open in all() {
        open.listing.in_child(Listing::default());
        open.position.in_child();
    }
}

/// Takes away everything, at the end of the process.
pub(crate) fn close_all() {
    for fd in in_range(0, c_int::MAX) {
        drop(take(fd));
    }
}

/// Fetches entries of a directory, `.` and `..` among them, behind the last one given away.
pub(crate) fn fetch(open: &Open, listing: &mut Listing) -> Answer<()> {
    let entries = open.file.entries(listing.cookie).map_err(errno)?;
    listing.batch = entries.into();
    Ok(())
}
