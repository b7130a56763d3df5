//! Advisory locks: flock, fcntl, lockf. If this process alone has the volume, they exclude its own
//! descriptors and threads; in a server, other processes, too.

use crate::files::descriptors::Open;
use crate::runtime::answer::{Answer, errno};
use crate::runtime::kernel;
use adit::{Errno, FlockOperation, LockMode, LockOwner, RangeLock, Withdrawal};
use adit_base::fork::{self, Registered};
use adit_base::numbers;
use adit_base::thread::without_signals;
use libc::{c_int, c_short, flock as FlockC, off_t};
use rustix::event::{EventfdFlags, eventfd};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::thread::Builder;

use super::of_descriptor;

of_descriptor! {
    flock: (operation: c_int) -> c_int = lock_file;
    lockf | lockf64: (command: c_int, len: off_t) -> c_int = lock_section;
}

/// Of mandatory locks.
const LOCK_MAND: c_int = 32;

fn lock_file(open: &Open, operation: c_int) -> Answer<()> {
    if operation & LOCK_MAND != 0 {
        // Linux has ignored mandatory locks since 5.15.
        return Ok(());
    }
    let whole = |wait| match operation & !libc::LOCK_NB {
        libc::LOCK_SH => Ok(FlockOperation::Shared { wait }),
        libc::LOCK_EX => Ok(FlockOperation::Exclusive { wait }),
        libc::LOCK_UN => Ok(FlockOperation::Unlock),
        _ => Err(Errno::INVAL),
    };
    let (at_once, wanted) = (whole(false)?, whole(true)?);
    open.check()?;
    let take = || open.file.flock(at_once);
    match operation & (libc::LOCK_NB | libc::LOCK_UN) {
        0 => wait_for(open, take, |end| open.file.flock_until(wanted, end)),
        _ => take().map_err(errno),
    }
}

/// Takes a lock of a range, and waits for it.
fn lock_range(open: &Open, lock: &RangeLock) -> Answer<()> {
    let take = || open.file.lock_range(lock, false);
    wait_for(open, take, |end| open.file.lock_range_until(lock, end))
}

/// Takes a lock, or waits for it in a thread of its own. This thread sleeps in a call of the
/// kernel's that a signal handler ends, and withdraws then what waits (EINTR), as the kernel's wait
/// for a lock ends: so programs limit it (`alarm`). Of handlers that ask for a restart it is not
/// known which one ran: it goes on if all of them ask for one. Without a thread or a descriptor for
/// it no handler ends it.
fn wait_for(
    open: &Open,
    take: impl FnOnce() -> adit::Result<()>,
    wait: impl Fn(&Withdrawal) -> adit::Result<()> + Sync,
) -> Answer<()> {
    // First: a handler that ran meanwhile would be missed.
    let held = HeldSignals::for_a_moment();
    match take().map_err(errno) {
        Err(Errno::AGAIN) => {}
        done => return done,
    }
    held.hold_handlers();
    let withdrawal = Withdrawal::new();
    let wait_here = |held| {
        drop(held);
        wait(&Withdrawal::new()).map_err(errno)
    };
    // A thread of a child of vfork would be in its parent's memory.
    let bell = (!fork::is_in_vfork()).then(Bell::new).flatten();
    let Some(bell) = bell else {
        return wait_here(held);
    };
    let waiting = || {
        let done = wait(&withdrawal);
        bell.ring();
        done
    };
    let thread = Builder::new().name("adit-lock".into());
    let thread = thread.stack_size(STACK_BYTES);
    // SAFETY: what it borrows lives until it is joined. A forked child has no such thread.
    let spawned = without_signals(|| unsafe { thread.spawn_unchecked(waiting) });
    let Ok(thread) = spawned else {
        return wait_here(held);
    };
    let generation = fork::generation();
    let mut is_withdrawn = false;
    while held.sleep_until(&bell) == Err(Errno::INTR) {
        if fork::generation() != generation {
            // A handler has forked, and this is the child. The thread is its parent's.
            std::mem::forget(thread);
            return wait_here(held);
        }
        if !is_withdrawn && is_any_handler_final() {
            is_withdrawn = open.file.withdraw(&withdrawal).is_ok();
        }
    }
    drop(held);
    thread
        .join()
        .map_or(Err(Errno::IO), |done| done.map_err(errno))
}

/// Enough for a call on the volume.
const STACK_BYTES: usize = 256 << 10;

/// Ends the sleep of a thread, once.
struct Bell(Registered<File>);

impl Bell {
    /// None: there is no descriptor for it.
    fn new() -> Option<Bell> {
        let made = eventfd(0, EventfdFlags::CLOEXEC).ok()?;
        numbers::kept(made).ok().map(Bell)
    }

    fn ring(&self) {
        kernel::ring(&*self.0);
    }
}

/// Signals of a thread's own faults.
const FAULTS: [c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// Signals whose default action ends a program that its user wants to end.
const ENDS: [c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// Signals that have handlers come to this thread only while it sleeps.
struct HeldSignals {
    before: libc::sigset_t,
}

impl HeldSignals {
    /// Holds back signals without a look at each: that would take longer than most locks.
    fn for_a_moment() -> HeldSignals {
        // SAFETY: sets of signals of this frame, which the calls fill.
        unsafe {
            let mut held: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut held);
            let ends = ENDS.into_iter().filter(|of| handler(*of).is_none());
            for signal in ends.chain(FAULTS) {
                libc::sigdelset(&mut held, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &held, &mut before);
            HeldSignals { before }
        }
    }

    /// Holds back those that have handlers. Others end the process as ever.
    fn hold_handlers(&self) {
        let mut held = self.before;
        // SAFETY: a set of this frame.
        unsafe {
            for (signal, _) in handlers() {
                libc::sigaddset(&mut held, signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &held, std::ptr::null_mut());
        }
    }

    /// EINTR: a handler ran meanwhile.
    fn sleep_until(&self, bell: &Bell) -> Answer<()> {
        /// Bytes of a set in the kernel.
        const SET_BYTES: usize = 8;
        let mut rung = libc::pollfd {
            fd: bell.0.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let (rung, before) = (&raw mut rung as usize, &raw const self.before as usize);
        // SAFETY: variables that outlive the call.
        let result = unsafe { kernel::call(libc::SYS_ppoll, [rung, 1, 0, before, SET_BYTES]) };
        match result {
            0.. => Ok(()),
            errno => Err(Errno::from_raw(-errno as i32)),
        }
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // SAFETY: the set from before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

/// The signals for which the program has handlers, but for faults, and the handlers' flags.
fn handlers() -> impl Iterator<Item = (c_int, c_int)> {
    let signals = (1..=libc::SIGRTMAX()).filter(|signal| !FAULTS.contains(signal));
    signals.filter_map(|signal| Some((signal, handler(signal)?)))
}

/// The flags of a signal's handler; None: it has none.
fn handler(signal: c_int) -> Option<c_int> {
    // SAFETY: a variable of this frame, which the call fills.
    let action = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action);
        action
    };
    let has_handler = !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
    has_handler.then_some(action.sa_flags)
}

/// Has the program a handler that ends the kernel's waits?
fn is_any_handler_final() -> bool {
    handlers().any(|(_, flags)| flags & libc::SA_RESTART == 0)
}

fn process() -> LockOwner {
    let pid = std::process::id();
    LockOwner::Posix {
        id: u64::from(pid),
        pid: pid as i32,
    }
}

/// First byte and length (0: to the end) of a range that is told from somewhere.
fn range(open: &Open, whence: c_int, start: off_t, len: off_t) -> Answer<(u64, u64)> {
    let base = match whence {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => *open.position() as i64,
        libc::SEEK_END => open.file.len().map_err(errno)? as i64,
        _ => return Err(Errno::INVAL),
    };
    let start = base.checked_add(start).ok_or(Errno::OVERFLOW)?;
    let start = u64::try_from(start).map_err(|_| Errno::INVAL)?;
    match len {
        0 => Ok((start, 0)),
        1.. => match start.checked_add(len as u64 - 1) {
            Some(last) if i64::try_from(last).is_ok() => Ok((start, len as u64)),
            _ => Err(Errno::OVERFLOW),
        },
        before => {
            let len = before.unsigned_abs();
            let first = start.checked_sub(len).ok_or(Errno::INVAL)?;
            Ok((first, len))
        }
    }
}

/// fcntl's commands for locks.
pub(crate) unsafe fn control(open: &Open, command: c_int, lock: *mut FlockC) -> Answer<c_int> {
    // SAFETY: the argument of these commands, says the program.
    let lock = unsafe { lock.as_mut() }.ok_or(Errno::FAULT)?;
    let owner = match command {
        libc::F_OFD_SETLK | libc::F_OFD_SETLKW | libc::F_OFD_GETLK => LockOwner::Descriptor,
        _ => process(),
    };
    let (first, len) = range(open, c_int::from(lock.l_whence), lock.l_start, lock.l_len)?;
    let mode = match c_int::from(lock.l_type) {
        libc::F_RDLCK => Some(LockMode::Shared),
        libc::F_WRLCK => Some(LockMode::Exclusive),
        libc::F_UNLCK => None,
        _ => return Err(Errno::INVAL),
    };
    let of_process = owner == LockOwner::Descriptor && lock.l_pid != 0;
    if matches!(command, libc::F_GETLK | libc::F_OFD_GETLK) {
        if of_process {
            return Err(Errno::INVAL);
        }
        let wanted = RangeLock::new(owner, mode.ok_or(Errno::INVAL)?, first, len);
        match open.file.test_lock(&wanted).map_err(errno)? {
            None => lock.l_type = libc::F_UNLCK as c_short,
            Some(held) => {
                lock.l_type = match held.mode {
                    LockMode::Shared => libc::F_RDLCK as c_short,
                    LockMode::Exclusive => libc::F_WRLCK as c_short,
                };
                lock.l_whence = libc::SEEK_SET as c_short;
                lock.l_start = held.offset as off_t;
                lock.l_len = held.len_bytes as off_t;
                lock.l_pid = match held.owner {
                    LockOwner::Posix { pid, .. } => pid,
                    _ => -1,
                };
            }
        }
        return Ok(0);
    }
    let Some(mode) = mode else {
        if of_process {
            return Err(Errno::INVAL);
        }
        open.file.unlock_range(owner, first, len).map_err(errno)?;
        return Ok(0);
    };
    match mode {
        LockMode::Shared => open.check_readable()?,
        LockMode::Exclusive => open.check_writable()?,
    }
    if of_process {
        return Err(Errno::INVAL);
    }
    open.is_locked.store(true, Ordering::Relaxed);
    let wait = matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW);
    let lock = RangeLock::new(owner, mode, first, len);
    if wait {
        lock_range(open, &lock)?
    } else {
        open.file.lock_range(&lock, false).map_err(errno)?
    }
    Ok(0)
}

fn lock_section(open: &Open, command: c_int, len: off_t) -> Answer<()> {
    if !(libc::F_ULOCK..=libc::F_TEST).contains(&command) {
        return Err(Errno::INVAL);
    }
    open.check()?;
    let (first, len) = range(open, libc::SEEK_CUR, 0, len)?;
    let wanted = RangeLock::new(process(), LockMode::Exclusive, first, len);
    match command {
        libc::F_ULOCK => open.file.unlock_range(process(), first, len).map_err(errno),
        libc::F_LOCK | libc::F_TLOCK => {
            open.check_writable()?;
            open.is_locked.store(true, Ordering::Relaxed);
            if command == libc::F_LOCK {
                lock_range(open, &wanted)
            } else {
                open.file.lock_range(&wanted, false).map_err(errno)
            }
        }
        libc::F_TEST => match open.file.test_lock(&wanted).map_err(errno)? {
            None => Ok(()),
            Some(_) => Err(Errno::ACCESS),
        },
        _ => Err(Errno::INVAL),
    }
}
