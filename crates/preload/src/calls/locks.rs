//! Advisory locks: flock, fcntl, lockf. One process has the volume, so they exclude its own
//! descriptors and threads, and nobody else.

use crate::aio::kernel;
use crate::answer::{Answer, errno};
use crate::descriptors::Open;
use crate::volume::{self, settings};
use adit::{Errno, FlockOperation, LockMode, LockOwner, RangeLock};
use libc::{c_int, c_long, c_short, flock as FlockC, off_t};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::of_descriptor;

of_descriptor! {
    flock: (operation: c_int) -> c_int = lock_file;
    lockf | lockf64: (command: c_int, len: off_t) -> c_int = lock_section;
}

unsafe fn lock_file(open: &Open, operation: c_int) -> Answer<()> {
    let wait = false;
    let wanted = match operation & !libc::LOCK_NB {
        libc::LOCK_SH => FlockOperation::Shared { wait },
        libc::LOCK_EX => FlockOperation::Exclusive { wait },
        libc::LOCK_UN => FlockOperation::Unlock,
        _ => return Err(Errno::INVAL),
    };
    let take = || open.file.flock(wanted).map_err(errno);
    match take() {
        Err(Errno::AGAIN) if operation & libc::LOCK_NB == 0 => {
            // As the kernel: it waits without the lock that it had.
            open.file.flock(FlockOperation::Unlock).map_err(errno)?;
            wait_for(take)
        }
        done => done,
    }
}

/// Repeats what can't be had now. A signal handler ends that (EINTR), as the kernel's wait for a
/// lock: so programs limit it (`alarm`). Of handlers that ask for a restart it is not known which one
/// ran: it goes on if all of them ask for one.
fn wait_for(mut take: impl FnMut() -> Answer<()>) -> Answer<()> {
    const PAUSE_MAX: Duration = Duration::from_millis(5);
    let mut pause = Duration::from_micros(20);
    let held = HeldSignals::new();
    loop {
        match take() {
            Err(Errno::AGAIN) => {}
            done => return done,
        }
        if held.sleep(pause) && is_any_handler_final() {
            return Err(Errno::INTR);
        }
        pause = (2 * pause).min(PAUSE_MAX);
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

/// Signals that have handlers come to this thread only while it sleeps: a handler that ran before
/// would be missed. Others end the process as ever.
struct HeldSignals {
    before: libc::sigset_t,
}

impl HeldSignals {
    fn new() -> HeldSignals {
        // SAFETY: sets of signals of this frame, which the calls fill.
        unsafe {
            let mut held: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut held);
            for (signal, _) in handlers() {
                libc::sigaddset(&mut held, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &held, &mut before);
            HeldSignals { before }
        }
    }

    /// True if a handler ran meanwhile.
    fn sleep(&self, pause: Duration) -> bool {
        /// Bytes of a set in the kernel.
        const SET_BYTES: usize = 8;
        let mut pause = kernel::as_timespec(pause);
        let (pause, before) = (&raw mut pause as usize, &raw const self.before as usize);
        // SAFETY: no descriptors, and variables that outlive the call.
        let result = unsafe { kernel::call(libc::SYS_ppoll, [0, 0, pause, before, SET_BYTES, 0]) };
        result == -c_long::from(libc::EINTR)
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
    signals.filter_map(|signal| {
        // SAFETY: a variable of this frame, which the call fills.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut action);
            action
        };
        let has_handler = !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        has_handler.then_some((signal, action.sa_flags))
    })
}

/// Has the program a handler that ends the kernel's waits?
fn is_any_handler_final() -> bool {
    handlers().any(|(_, flags)| flags & libc::SA_RESTART == 0)
}

/// Takes a lock of a range, and waits for it.
fn wait_for_range(open: &Open, lock: &RangeLock) -> Answer<()> {
    let is_shared = settings().is_some_and(|settings| settings.share.is_some());
    let has_others = is_shared || volume::opened().is_some_and(|volume| volume.is_connected());
    match lock.owner {
        // The file system finds processes that wait for each other in a circle, if they wait there.
        LockOwner::Posix { .. } if has_others => open.file.lock_range(lock, true).map_err(errno),
        _ => wait_for(|| open.file.lock_range(lock, false).map_err(errno)),
    }
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
    let (first, len) = match len {
        0.. => (start, len),
        before => (start.checked_add(before).ok_or(Errno::INVAL)?, -before),
    };
    let first = u64::try_from(first).map_err(|_| Errno::INVAL)?;
    Ok((first, len as u64))
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
    if matches!(command, libc::F_GETLK | libc::F_OFD_GETLK) {
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
        open.file.unlock_range(owner, first, len).map_err(errno)?;
        return Ok(0);
    };
    let allowed = match mode {
        LockMode::Shared => open.is_readable(),
        LockMode::Exclusive => open.is_writable(),
    };
    if !allowed {
        return Err(Errno::BADF);
    }
    open.is_locked.store(true, Ordering::Relaxed);
    let wait = matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW);
    let lock = RangeLock::new(owner, mode, first, len);
    match wait {
        true => wait_for_range(open, &lock)?,
        false => open.file.lock_range(&lock, false).map_err(errno)?,
    }
    Ok(0)
}

unsafe fn lock_section(open: &Open, command: c_int, len: off_t) -> Answer<()> {
    let (first, len) = range(open, libc::SEEK_CUR, 0, len)?;
    let wanted = RangeLock::new(process(), LockMode::Exclusive, first, len);
    match command {
        libc::F_ULOCK => open.file.unlock_range(process(), first, len).map_err(errno),
        libc::F_LOCK | libc::F_TLOCK => {
            if !open.is_writable() {
                return Err(Errno::BADF);
            }
            open.is_locked.store(true, Ordering::Relaxed);
            match command == libc::F_LOCK {
                true => wait_for_range(open, &wanted),
                false => open.file.lock_range(&wanted, false).map_err(errno),
            }
        }
        libc::F_TEST => match open.file.test_lock(&wanted).map_err(errno)? {
            None => Ok(()),
            Some(_) => Err(Errno::ACCESS),
        },
        _ => Err(Errno::INVAL),
    }
}
