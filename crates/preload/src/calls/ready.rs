//! Waiting for descriptors: poll, select, epoll.
//!
//! A file is always ready to be read and written. So a call that asks for one of the volume doesn't
//! wait, and the C library is asked for the other descriptors only.

use crate::files::descriptors::{self, Open};
use crate::runtime::answer::failed;
use crate::runtime::inside;
use crate::runtime::real::check_room;
use adit::Errno;
use adit_interposed::interposed;
use libc::{c_int, c_short, c_ulong, c_void, pollfd, sigset_t, size_t, timespec, timeval};

/// The events that the kernel reports of a regular file.
const READY: c_short = libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM;

/// Is it a file of the volume that can be read or written?
fn is_file(fd: c_int) -> bool {
    let is_usable = |open: &Open| open.flags() & libc::O_PATH == 0;
    descriptors::get(fd).is_some_and(|open| is_usable(&open))
}

/// `ask` gets what the C library is asked for, and whether it may wait. None: no file of the volume
/// is among them.
unsafe fn poll_with(
    fds: *mut pollfd,
    count: c_ulong,
    ask: impl FnOnce(&mut [pollfd], bool) -> c_int,
) -> Option<c_int> {
    if fds.is_null() || !descriptors::are_there_any() {
        return None;
    }
    // SAFETY: so many, says the program.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, usize::try_from(count).ok()?) };
    if !fds.iter().any(|polled| is_file(polled.fd)) {
        return None;
    }
    let mut others = fds.to_vec();
    let mut ready = 0;
    for (polled, other) in fds.iter_mut().zip(&mut others) {
        if is_file(polled.fd) {
            polled.revents = polled.events & READY;
            ready += c_int::from(polled.revents != 0);
            // The C library passes it over.
            other.fd = -1;
        }
    }
    let answer = ask(&mut others, ready == 0);
    if answer < 0 {
        return Some(answer);
    }
    for (polled, other) in fds.iter_mut().zip(&others) {
        if polled.fd == other.fd {
            polled.revents = other.revents;
        }
    }
    Some(answer + ready)
}

#[interposed(__poll)]
unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: c_ulong, timeout: c_int) -> c_int {
    let ask = |others: &mut [pollfd], may_wait: bool| {
        let timeout = if may_wait { timeout } else { 0 };
        inside::uncancelled(|| real(others.as_mut_ptr(), count, timeout))
    };
    // SAFETY: the program vouches for its arguments, as to the C library.
    unsafe { poll_with(fds, count, ask) }.unwrap_or_else(|| real(fds, count, timeout))
}

#[interposed]
unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: c_ulong,
    timeout: c_int,
    room: size_t,
) -> c_int {
    check_room(count as usize, room / size_of::<pollfd>());
    // SAFETY: as for this function.
    unsafe { poll(fds, count, timeout) }
}

#[interposed]
unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: c_ulong,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let ask = |others: &mut [pollfd], may_wait: bool| {
        let timeout = if may_wait { timeout } else { &raw const NOW };
        inside::uncancelled(|| real(others.as_mut_ptr(), count, timeout, mask))
    };
    // SAFETY: the program vouches for its arguments, as to the C library.
    unsafe { poll_with(fds, count, ask) }.unwrap_or_else(|| real(fds, count, timeout, mask))
}

#[interposed]
unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: c_ulong,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    check_room(count as usize, room / size_of::<pollfd>());
    // SAFETY: as for this function.
    unsafe { ppoll(fds, count, timeout, mask) }
}

static NOW: timespec = timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// A set of numbers of `select`: as many words as the highest number needs.
type Set = *mut c_ulong;
const WORD_BITS: usize = c_ulong::BITS as usize;

fn bit(fd: c_int) -> (usize, c_ulong) {
    (fd as usize / WORD_BITS, 1 << (fd as usize % WORD_BITS))
}

/// Selects from the sets for reading, for writing and for exceptions. `ask` gets the sets that the
/// C library is asked for, and whether it may wait. None: no file of the volume is among them.
unsafe fn select_with(
    end: c_int,
    sets: [Set; 3],
    ask: impl FnOnce([Set; 3], bool) -> c_int,
) -> Option<c_int> {
    if end <= 0 || !descriptors::are_there_any() {
        return None;
    }
    let has = |set: Set, fd: c_int| {
        let (word, bit) = bit(fd);
        // SAFETY: below the end that the program gave.
        !set.is_null() && unsafe { *set.add(word) } & bit != 0
    };
    let files = descriptors::in_range(0, end - 1).into_iter();
    let files: Vec<c_int> = files
        .filter(|fd| is_file(*fd) && sets.iter().any(|set| has(*set, *fd)))
        .collect();
    if files.is_empty() {
        return None;
    }
    let words = (end as usize).div_ceil(WORD_BITS);
    let mut others = sets.map(|set| {
        if set.is_null() {
            None
        } else {
            // SAFETY: as above.
            Some(unsafe { std::slice::from_raw_parts(set, words) }.to_vec())
        }
    });
    let mut ready = 0;
    for fd in &files {
        let (word, bit) = bit(*fd);
        for (kind, other) in others.iter_mut().enumerate() {
            // Nothing about a file is exceptional.
            ready += c_int::from(kind < 2 && has(sets[kind], *fd));
            if let Some(other) = other {
                other[word] &= !bit;
            }
        }
    }
    let asked = others.each_mut().map(|other| {
        let words = other.as_mut().map(|words| words.as_mut_ptr());
        words.unwrap_or(std::ptr::null_mut())
    });
    let answer = ask(asked, ready == 0);
    if answer < 0 {
        return Some(answer);
    }
    for (kind, (set, other)) in sets.into_iter().zip(&mut others).enumerate() {
        let Some(other) = other else { continue };
        for fd in files.iter().filter(|fd| kind < 2 && has(set, **fd)) {
            let (word, bit) = bit(*fd);
            other[word] |= bit;
        }
        // SAFETY: as above.
        unsafe { set.copy_from_nonoverlapping(other.as_ptr(), words) };
    }
    Some(answer + ready)
}

#[interposed(__select)]
unsafe extern "C-unwind" fn select(
    end: c_int,
    read: Set,
    write: Set,
    except: Set,
    timeout: *mut timeval,
) -> c_int {
    let mut now = timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let ask = |[read, write, except]: [Set; 3], may_wait: bool| {
        let timeout = if may_wait { timeout } else { &raw mut now };
        inside::uncancelled(|| real(end, read, write, except, timeout))
    };
    // SAFETY: the program vouches for its arguments, as to the C library.
    unsafe { select_with(end, [read, write, except], ask) }
        .unwrap_or_else(|| real(end, read, write, except, timeout))
}

#[interposed]
unsafe extern "C-unwind" fn pselect(
    end: c_int,
    read: Set,
    write: Set,
    except: Set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let ask = |[read, write, except]: [Set; 3], may_wait: bool| {
        let timeout = if may_wait { timeout } else { &raw const NOW };
        inside::uncancelled(|| real(end, read, write, except, timeout, mask))
    };
    // SAFETY: the program vouches for its arguments, as to the C library.
    unsafe { select_with(end, [read, write, except], ask) }
        .unwrap_or_else(|| real(end, read, write, except, timeout, mask))
}

/// Refuses files of the volume (EPERM), as the kernel refuses regular files, which it can't watch.
#[interposed]
unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut c_void,
) -> c_int {
    if is_file(fd) {
        return failed(Errno::PERM);
    }
    real(epoll, operation, fd, event)
}
