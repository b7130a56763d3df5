//! Descriptors as numbers: close, dup, fcntl, ioctl.
//!
//! A child of vfork shares this memory, but not the descriptors: there the kernel alone acts.

use crate::files::descriptors::{self, Open};
use crate::runtime::answer::{Answer, ToC, Truth, checked, errno, failed, pointer, set_errno};
use crate::runtime::inside;
use crate::runtime::message::say_once;
use crate::runtime::real::of_program;
use crate::runtime::real::real;
use crate::volume;
use adit::{Errno, FileKind};
use adit_base::fork;
use adit_base::numbers::ProgramCall;
use adit_interposed::interposed;
use libc::{c_char, c_int, c_long, c_uint, c_ulong, size_t};

/// Does the open volume itself need this number? A forked child has a copy of its parent's only. One
/// of vfork needs its copies to leave files to a program.
fn is_the_volumes(fd: c_int) -> bool {
    let is_open = || volume::opened().is_some_and(|volume| !volume.is_inherited());
    fork::is_kept(fd) || fork::is_registered(fd) && is_open()
}

#[interposed]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    let is_of_volume = descriptors::get(fd).is_some();
    if is_of_volume {
        if fork::is_in_vfork() {
            descriptors::put_in_vfork(fd, None);
        } else {
            let closed = inside::run(|| drop(descriptors::take(fd)));
            if closed.is_err() {
                return closed.to_c();
            }
        }
    }
    let _call = ProgramCall::begin();
    if !is_of_volume && is_the_volumes(fd) {
        // The volume's own: a program that closes all numbers closes what it knows.
        return failed(Errno::BADF);
    }
    real(fd)
}

fn close_numbers(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOSE_RANGE_CLOEXEC: c_int = 4;
    let close = |first: c_uint, last: c_uint| real!(close_range(first => c_uint, last => c_uint, flags => c_int) -> c_int);
    if flags & CLOSE_RANGE_CLOEXEC != 0 || first > last {
        return close(first, last);
    }
    let bound = |number: c_uint| c_int::try_from(number).unwrap_or(c_int::MAX);
    let (from, to) = (bound(first), bound(last));
    let closed = inside::run(|| {
        if fork::is_in_vfork() {
            let seen = descriptors::seen().into_iter();
            seen.filter(|(fd, _)| (from..=to).contains(fd))
                .for_each(|(fd, _)| descriptors::put_in_vfork(fd, None));
        } else {
            let taken = descriptors::in_range(from, to).into_iter();
            taken.for_each(|fd| drop(descriptors::take(fd)));
        }
    });
    if closed.is_err() {
        return closed.to_c();
    }
    let _call = ProgramCall::begin();
    let mut from = first;
    let own = fork::registered().chain(fork::kept());
    let mut kept: Vec<c_int> = own.filter(|fd| is_the_volumes(*fd)).collect();
    kept.sort_unstable();
    kept.dedup();
    for fd in kept.into_iter().filter_map(|fd| c_uint::try_from(fd).ok()) {
        if (from..=last).contains(&fd) {
            if fd > from && close(from, fd - 1) != 0 {
                return -1;
            }
            from = fd + 1;
        }
    }
    if from > last { 0 } else { close(from, last) }
}

#[interposed]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    close_numbers(first, last, flags)
}

#[interposed]
unsafe extern "C" fn closefrom(first: c_int) {
    close_numbers(first.max(0) as c_uint, c_uint::MAX, 0);
}

/// Lets the kernel duplicate a number; puts the same file behind the new one.
fn duplicated(old: c_int, duplicate: impl FnOnce() -> c_int) -> c_int {
    if fork::is_in_vfork() {
        let new = of_program!(duplicate());
        if new >= 0 {
            descriptors::put_in_vfork(new, descriptors::get(old).as_deref());
        }
        return new;
    }
    let open = descriptors::get(old).map(|open| open.clone());
    let new = of_program!(duplicate());
    let Some(open) = open else {
        return descriptors::is_of_host(new);
    };
    if new >= 0
        && let Err(error) = descriptors::put(new, open)
    {
        of_program!(real!(close(new => c_int) -> c_int));
        return failed(error);
    }
    new
}

#[interposed]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    duplicated(fd, || real(fd))
}

/// The new number changes at one moment, as the kernel's does: a write of another thread (to a log
/// that is replaced) goes to the old file or to the new one.
fn replaced(old: c_int, new: c_int, duplicate: impl FnOnce() -> c_int) -> c_int {
    if old == new {
        return of_program!(duplicate());
    }
    // A thread of Adit may have got this number since. It makes no descriptor during the call.
    let duplicate = || {
        if is_the_volumes(new) {
            failed(Errno::BUSY)
        } else {
            duplicate()
        }
    };
    if is_the_volumes(new) {
        say_once!("descriptor {new} is in use by the volume: EBUSY");
        return failed(Errno::BUSY);
    }
    // SAFETY: no preconditions.
    let is_open = unsafe { libc::fcntl(old, libc::F_GETFD) } >= 0;
    if is_open && !fork::is_in_vfork() && descriptors::get(old).is_some() {
        super::streams::redirect_standard(new);
    }
    let before = descriptors::get(new).map(|open| open.clone());
    let Some(before) = before.filter(|_| !fork::is_in_vfork()) else {
        return duplicated(old, duplicate);
    };
    let replaced = inside::call(move || {
        let after = descriptors::get(old).map(|open| open.clone());
        if let Some(after) = &after {
            descriptors::put(new, after.clone())?;
        }
        let done = checked(of_program!(duplicate()));
        match after {
            // The number keeps what it had.
            Some(_) if done.is_err() => descriptors::put(new, before)?,
            None if done.is_ok() => descriptors::take_this(new, &before),
            _ => {}
        }
        done
    });
    replaced.to_c()
}

#[interposed]
unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    replaced(old, new, || real(old, new))
}

#[interposed]
unsafe extern "C" fn __dup2(old: c_int, new: c_int) -> c_int {
    replaced(
        old,
        new,
        || real!(dup2(old => c_int, new => c_int) -> c_int),
    )
}

#[interposed]
unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    let duplicate = || real(old, new, flags);
    replaced(old, new, duplicate)
}

#[interposed(fcntl64, __fcntl)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    let hand_on = || real(fd, command, argument);
    match descriptors::get(fd) {
        // SAFETY: the program vouches for its arguments, as to the C library.
        Some(open) => unsafe { control(fd, &open, command, argument, hand_on) },
        None => match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                descriptors::is_of_host(of_program!(hand_on()))
            }
            _ => hand_on(),
        },
    }
}

const F_GET_RW_HINT: c_int = 1024 + 11;
const F_SET_RW_HINT: c_int = 1024 + 12;
const F_SETOWN_EX: c_int = 15;
const F_GETOWN_EX: c_int = 16;
const F_GETOWNER_UIDS: c_int = 17;
const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;

/// Commands that have an address as their argument.
fn at_address<T>(argument: c_long, of: impl FnOnce(&mut T)) -> c_int {
    // SAFETY: NULL or such an address, says the program.
    match unsafe { (argument as *mut T).as_mut() } {
        Some(value) => {
            of(value);
            0
        }
        None => failed(Errno::FAULT),
    }
}

unsafe fn control(
    fd: c_int,
    open: &Open,
    command: c_int,
    argument: c_long,
    hand_on: impl FnOnce() -> c_int,
) -> c_int {
    let of_path = matches!(
        command,
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC | libc::F_GETFD | libc::F_SETFD | libc::F_GETFL
    );
    if open.flags() & libc::O_PATH != 0 && !of_path {
        return failed(Errno::BADF);
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, hand_on),
        libc::F_GETFD | libc::F_SETFD => hand_on(),
        libc::F_GETFL => open.flags(),
        libc::F_SETFL => open.set_flags(argument as c_int).to_c(),
        libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW
        | libc::F_OFD_GETLK => {
            // SAFETY: these commands have the address of a lock as their argument.
            let control =
                || unsafe { super::locks::control(open, command, argument as *mut libc::flock) };
            inside::call(control).to_c()
        }
        F_GET_RW_HINT => at_address(argument, |hint: &mut u64| *hint = 0),
        // No write is sped up by it.
        F_SET_RW_HINT => at_address(argument, |_: &mut u64| ()),
        // Nothing happens to a file that a signal would tell, and nobody has a lease on one.
        libc::F_GETOWN | F_GETSIG | F_SETSIG | libc::F_SETOWN => 0,
        F_GETOWN_EX => at_address(argument, |owner: &mut [c_int; 2]| *owner = [0; 2]),
        F_GETOWNER_UIDS => at_address(argument, |users: &mut [u32; 2]| *users = [0; 2]),
        F_SETOWN_EX => at_address(argument, |_: &mut [c_int; 2]| ()),
        libc::F_GETLEASE => libc::F_UNLCK,
        libc::F_SETPIPE_SZ | libc::F_GETPIPE_SZ => failed(Errno::BADF),
        libc::F_ADD_SEALS if !open.is_writable() => failed(Errno::PERM),
        _ => failed(Errno::INVAL),
    }
}

/// Of an int, at the end of the request's argument: the size of a block.
const FIGETBSZ: c_ulong = 2;
/// Of an off_t: the size of the file.
const FIOQSIZE: c_ulong = 0x5460;

#[interposed]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: c_long) -> c_int {
    let Some(open) = descriptors::get(fd) else {
        return real(fd, request, argument);
    };
    let close_on_exec = |flag: c_int| {
        let set = real!(fcntl(fd => c_int, libc::F_SETFD => c_int, flag => c_int) -> c_int);
        checked(set).map(drop)
    };
    let answer = open.check().and_then(|()| match request {
        libc::FIOCLEX => close_on_exec(libc::FD_CLOEXEC),
        libc::FIONCLEX => close_on_exec(0),
        _ if argument == 0 => match request {
            libc::FIONREAD | libc::FIONBIO | libc::FIOASYNC | FIGETBSZ | FIOQSIZE => {
                Err(Errno::FAULT)
            }
            _ => Err(Errno::NOTTY),
        },
        // SAFETY: the argument of these requests is an address that fits.
        _ => unsafe { by_address(&open, request, argument) },
    });
    answer.to_c()
}

/// Requests whose argument is an address.
unsafe fn by_address(open: &Open, request: c_ulong, argument: c_long) -> Answer<()> {
    let number = argument as *mut c_int;
    // SAFETY: of this request the address of an int, and of FIOQSIZE that of an off_t.
    unsafe {
        match request {
            libc::FIONREAD if open.kind == FileKind::File => {
                *number = inside::call(|| unread(open))?;
            }
            FIGETBSZ => *number = BLOCK_BYTES,
            FIOQSIZE => {
                let len = inside::call(|| open.file.len().map_err(errno))?;
                *(argument as *mut i64) = len as i64;
            }
            libc::FIONBIO => {
                let set = match *number {
                    0 => open.flags() & !libc::O_NONBLOCK,
                    _ => open.flags() | libc::O_NONBLOCK,
                };
                open.set_flags(set)?;
            }
            // No signal tells of a file.
            libc::FIOASYNC if (*number != 0) == (open.flags() & libc::O_ASYNC != 0) => {}
            _ if request as u32 == libc::FICLONE as u32 => return Err(Errno::OPNOTSUPP),
            _ => return Err(Errno::NOTTY),
        }
    }
    Ok(())
}

/// The `st_blksize` of small files.
const BLOCK_BYTES: c_int = 4096;

/// No file of the volume is a terminal.
fn no_terminal(fd: c_int) -> Option<Errno> {
    let open = descriptors::get(fd)?;
    Some(open.check().err().unwrap_or(Errno::NOTTY))
}

#[interposed]
unsafe extern "C" fn isatty(fd: c_int) -> Truth {
    match no_terminal(fd) {
        Some(errno) => {
            set_errno(errno);
            Truth(0)
        }
        None => real(fd),
    }
}

#[interposed]
unsafe extern "C" fn tcgetattr(fd: c_int, settings: *mut libc::termios) -> c_int {
    match no_terminal(fd) {
        Some(errno) => failed(errno),
        None => real(fd, settings),
    }
}

#[interposed]
unsafe extern "C" fn tcgetpgrp(fd: c_int) -> libc::pid_t {
    match no_terminal(fd) {
        Some(errno) => failed(errno),
        None => real(fd),
    }
}

#[interposed]
unsafe extern "C" fn ttyname(fd: c_int) -> *mut c_char {
    match no_terminal(fd) {
        Some(errno) => pointer(Err(errno)),
        None => real(fd),
    }
}

#[interposed]
unsafe extern "C" fn ttyname_r(fd: c_int, buffer: *mut c_char, room: size_t) -> c_int {
    match no_terminal(fd) {
        Some(errno) => errno.raw(),
        None => real(fd, buffer, room),
    }
}

fn unread(open: &Open) -> Answer<c_int> {
    let len = open.file.len().map_err(errno)?;
    let left = len.saturating_sub(*open.position());
    Ok(c_int::try_from(left).unwrap_or(c_int::MAX))
}
