//! Descriptors as numbers: close, dup, fcntl, ioctl.
//!
//! A child of vfork shares this memory, but not the descriptors: there the kernel alone acts.

use crate::answer::{Answer, ToC, errno, set_errno};
use crate::calls::of_program;
use crate::descriptors::{self, Open};
use crate::message::say_once;
use crate::real::real;
use crate::{inside, own, volume};
use adit::{Errno, FileKind};
use adit_base::fork;
use adit_base::numbers::ProgramCall;
use adit_interposed::interposed;
use libc::{c_int, c_long, c_uint, c_ulong};

/// Is it the process that the table belongs to? Not after vfork, in the child.
pub(crate) fn is_ours() -> bool {
    !fork::is_in_vfork()
}

/// Does the open volume itself need this number? A forked child has a copy of its parent's only. One
/// of vfork needs its copies to leave files to a program.
fn is_the_volumes(fd: c_int) -> bool {
    let is_own = own::is_own(fd) || fork::is_kept(fd);
    let is_open = || volume::opened().is_some_and(|volume| !volume.is_inherited());
    is_own || fork::is_registered(fd) && is_open()
}

#[interposed]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    let is_of_volume = descriptors::get(fd).is_some();
    if is_of_volume {
        if is_ours() {
            let closed = inside::call(|| {
                drop(descriptors::take(fd));
                Ok(())
            });
            if closed.is_err() {
                return closed.to_c() as c_int;
            }
        } else {
            descriptors::put_in_vfork(fd, None);
        }
    }
    let _call = ProgramCall::begin();
    if !is_of_volume && is_the_volumes(fd) {
        // The volume's own: a program that closes all numbers closes what it knows.
        set_errno(Errno::BADF);
        return -1;
    }
    real!(close(fd => c_int) -> c_int)
}

fn close_numbers(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOSE_RANGE_CLOEXEC: c_int = 4;
    let close = |first: c_uint, last: c_uint| real!(close_range(first => c_uint, last => c_uint, flags => c_int) -> c_int);
    if flags & CLOSE_RANGE_CLOEXEC != 0 || first > last {
        return close(first, last);
    }
    let bound = |number: c_uint| c_int::try_from(number).unwrap_or(c_int::MAX);
    let (from, to) = (bound(first), bound(last));
    let closed = inside::call(|| {
        match is_ours() {
            true => descriptors::in_range(from, to)
                .into_iter()
                .for_each(|fd| drop(descriptors::take(fd))),
            false => {
                let mut seen = descriptors::seen();
                seen.retain(|(fd, _)| (from..=to).contains(fd));
                seen.iter()
                    .for_each(|(fd, _)| descriptors::put_in_vfork(*fd, None));
            }
        }
        Ok(())
    });
    if closed.is_err() {
        return closed.to_c() as c_int;
    }
    let _call = ProgramCall::begin();
    let mut from = first;
    let mut kept = fork::registered();
    kept.extend(own::all());
    kept.extend(fork::kept());
    kept.retain(|fd| is_the_volumes(*fd));
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
    if !is_ours() {
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
        return Answer::<c_int>::Err(error).to_c() as c_int;
    }
    new
}

#[interposed]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    duplicated(fd, || real!(dup(fd => c_int) -> c_int))
}

/// The new number changes at one moment, as the kernel's does: a write of another thread (to a log
/// that is replaced) goes to the old file or to the new one.
fn replaced(old: c_int, new: c_int, duplicate: impl FnOnce() -> c_int) -> c_int {
    if old == new {
        return of_program!(duplicate());
    }
    // A thread of Adit may have got this number since. It makes no descriptor during the call.
    let duplicate = || match is_the_volumes(new) {
        true => {
            set_errno(Errno::BUSY);
            -1
        }
        false => duplicate(),
    };
    if is_the_volumes(new) {
        say_once!("the program needs descriptor {new}, which the volume has: EBUSY");
        set_errno(Errno::BUSY);
        return -1;
    }
    // SAFETY: no preconditions.
    let is_open = unsafe { libc::fcntl(old, libc::F_GETFD) } >= 0;
    if is_open && is_ours() && descriptors::get(old).is_some() {
        super::streams::redirect_standard(new);
    }
    let before = descriptors::get(new).map(|open| open.clone());
    let Some(before) = before.filter(|_| is_ours()) else {
        return duplicated(old, duplicate);
    };
    let replaced = inside::call(move || {
        let after = descriptors::get(old).map(|open| open.clone());
        if let Some(after) = &after {
            descriptors::put(new, after.clone())?;
        }
        let done = of_program!(duplicate());
        let done = if done < 0 {
            Err(Errno::last())
        } else {
            Ok(done)
        };
        match after {
            // The number keeps what it had.
            Some(_) if done.is_err() => descriptors::put(new, before)?,
            None if done.is_ok() => descriptors::take_this(new, &before),
            _ => {}
        }
        done
    });
    replaced.to_c() as c_int
}

#[interposed]
unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    replaced(
        old,
        new,
        || real!(dup2(old => c_int, new => c_int) -> c_int),
    )
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
    let duplicate = || real!(dup3(old => c_int, new => c_int, flags => c_int) -> c_int);
    replaced(old, new, duplicate)
}

macro_rules! fcntl {
    ($($name:ident)*) => {$(
        #[interposed]
        unsafe extern "C" fn $name(fd: c_int, command: c_int, argument: c_long) -> c_int {
            let hand_on = || real!($name(fd => c_int, command => c_int, argument => c_long) -> c_int);
            match descriptors::get(fd) {
                // SAFETY: the program vouches for its arguments, as to the C library.
                Some(open) => unsafe { control(fd, &open, command, argument, hand_on) },
                None => {
                    match command {
                        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                            descriptors::is_of_host(of_program!(hand_on()))
                        }
                        _ => hand_on(),
                    }
                }
            }
        }
    )*};
}
fcntl!(fcntl fcntl64 __fcntl);

unsafe fn control(
    fd: c_int,
    open: &Open,
    command: c_int,
    argument: c_long,
    hand_on: impl FnOnce() -> c_int,
) -> c_int {
    const F_GET_RW_HINT: c_int = 1024 + 11;
    const F_SET_FILE_RW_HINT: c_int = 1024 + 14;
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, hand_on),
        libc::F_GETFD | libc::F_SETFD => hand_on(),
        libc::F_GETFL => open.flags(),
        libc::F_SETFL => open.set_flags(argument as c_int).to_c() as c_int,
        libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW
        | libc::F_OFD_GETLK => {
            // SAFETY: these commands have the address of a lock as their argument.
            let control =
                || unsafe { super::locks::control(open, command, argument as *mut libc::flock) };
            inside::call(control).to_c() as c_int
        }
        F_GET_RW_HINT..=F_SET_FILE_RW_HINT => 0,
        _ => Answer::<c_int>::Err(Errno::INVAL).to_c() as c_int,
    }
}

#[interposed]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: c_long) -> c_int {
    let Some(open) = descriptors::get(fd) else {
        return real!(ioctl(fd => c_int, request => c_ulong, argument => c_long) -> c_int);
    };
    let answer = match request {
        libc::FIOCLEX | libc::FIONCLEX => {
            return real!(ioctl(fd => c_int, request => c_ulong, argument => c_long) -> c_int);
        }
        libc::FIONREAD if open.kind == FileKind::File => {
            inside::call(|| unread(&open)).map(|count| {
                // SAFETY: the argument of this request is the address of an int.
                unsafe { *(argument as *mut c_int) = count };
            })
        }
        libc::FIONBIO => {
            // SAFETY: as above.
            let set = match unsafe { *(argument as *const c_int) } {
                0 => open.flags() & !libc::O_NONBLOCK,
                _ => open.flags() | libc::O_NONBLOCK,
            };
            open.set_flags(set)
        }
        _ if request as u32 == libc::FICLONE as u32 => Err(Errno::OPNOTSUPP),
        _ => Err(Errno::NOTTY),
    };
    answer.to_c() as c_int
}

fn unread(open: &Open) -> Answer<c_int> {
    let len = open.file.len().map_err(errno)?;
    let left = len.saturating_sub(*open.position());
    Ok(c_int::try_from(left).unwrap_or(c_int::MAX))
}
