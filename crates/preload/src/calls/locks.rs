//! Advisory locks: flock, fcntl, lockf. One process has the volume, so they exclude its own
//! descriptors and threads, and nobody else.

use crate::answer::{Answer, errno};
use crate::descriptors::Open;
use adit::{Errno, FlockOperation, LockMode, LockOwner, RangeLock};
use libc::{c_int, c_short, flock as FlockC, off_t};
use std::sync::atomic::Ordering;

use super::of_descriptor;

of_descriptor! {
    flock: (operation: c_int) -> c_int = lock_file;
    lockf | lockf64: (command: c_int, len: off_t) -> c_int = lock_section;
}

unsafe fn lock_file(open: &Open, operation: c_int) -> Answer<()> {
    let wait = operation & libc::LOCK_NB == 0;
    let operation = match operation & !libc::LOCK_NB {
        libc::LOCK_SH => FlockOperation::Shared { wait },
        libc::LOCK_EX => FlockOperation::Exclusive { wait },
        libc::LOCK_UN => FlockOperation::Unlock,
        _ => return Err(Errno::INVAL),
    };
    open.file.flock(operation).map_err(errno)
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
    open.file.lock_range(&lock, wait).map(|()| 0).map_err(errno)
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
            let wait = command == libc::F_LOCK;
            open.file.lock_range(&wanted, wait).map_err(errno)
        }
        libc::F_TEST => match open.file.test_lock(&wanted).map_err(errno)? {
            None => Ok(()),
            Some(_) => Err(Errno::ACCESS),
        },
        _ => Err(Errno::INVAL),
    }
}
