//! The kernel's asynchronous IO: its structures (linux/aio_abi.h) and system calls, as libaio makes
//! them: without `errno`, a failure is the negative error number.

use crate::runtime::kernel::call;
use libc::{c_int, c_long, timespec};
use std::sync::atomic::{AtomicU32, Ordering};

/// `struct iocb`
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Iocb {
    pub(crate) data: u64,
    #[cfg(target_endian = "little")]
    pub(crate) key: u32,
    pub(crate) rw_flags: c_int,
    #[cfg(target_endian = "big")]
    pub(crate) key: u32,
    pub(crate) opcode: u16,
    pub(crate) priority: i16,
    pub(crate) fd: c_int,
    pub(crate) buffer: u64,
    pub(crate) len: u64,
    pub(crate) offset: i64,
    pub(crate) reserved: u64,
    pub(crate) flags: u32,
    pub(crate) eventfd: c_int,
}

const _: () = assert!(size_of::<Iocb>() == 64);

/// `struct io_event`
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Event {
    pub(crate) data: u64,
    pub(crate) iocb: u64,
    pub(crate) result: i64,
    pub(crate) result2: i64,
}

/// The beginning of what a context points to: the kernel's ring of events.
#[repr(C)]
struct Ring {
    id: u32,
    /// Its length.
    events: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
}

const RING_MAGIC: u32 = 0xa10a_10a1;

pub(crate) mod opcode {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const SYNC: u16 = 2;
    pub(crate) const SYNC_DATA: u16 = 3;
    pub(crate) const POLL: u16 = 5;
    pub(crate) const READ_PIECES: u16 = 7;
    pub(crate) const WRITE_PIECES: u16 = 8;
}

/// The result is to be told to an eventfd.
pub(crate) const FLAG_EVENTFD: u32 = 1;

/// `struct __aio_sigset`
#[repr(C)]
pub(crate) struct SignalMask {
    pub(crate) mask: *const libc::sigset_t,
    pub(crate) bytes: usize,
}

/// Missing in the crate `libc`.
#[cfg(target_arch = "x86_64")]
pub(crate) const SYS_IO_PGETEVENTS: c_long = 333;
#[cfg(target_arch = "aarch64")]
pub(crate) const SYS_IO_PGETEVENTS: c_long = 292;

/// # Safety
/// As for the system call.
pub(crate) unsafe fn setup(events: c_int, context: *mut usize) -> c_long {
    // SAFETY: promised by the caller.
    unsafe { call(libc::SYS_io_setup, [events as usize, context as usize]) }
}

pub(crate) fn destroy(context: usize) -> c_long {
    // SAFETY: the kernel knows its contexts.
    unsafe { call(libc::SYS_io_destroy, [context]) }
}

/// # Safety
/// As for the system call.
pub(crate) unsafe fn submit(context: usize, count: c_long, list: *const *mut Iocb) -> c_long {
    // SAFETY: promised by the caller.
    unsafe {
        call(
            libc::SYS_io_submit,
            [context, count as usize, list as usize],
        )
    }
}

/// # Safety
/// As for the system call.
pub(crate) unsafe fn cancel(context: usize, iocb: *mut Iocb, event: *mut Event) -> c_long {
    // SAFETY: promised by the caller.
    unsafe {
        call(
            libc::SYS_io_cancel,
            [context, iocb as usize, event as usize],
        )
    }
}

/// Always `io_pgetevents`: the kernel goes on with that call if no handler ran. It ends
/// `io_getevents` with EINTR whenever it has completed a request of io_uring, which it does in the
/// thread that submitted it.
///
/// # Safety
/// As for the system call; the mask may be null.
pub(crate) unsafe fn events(
    context: usize,
    min: c_long,
    max: c_long,
    events: *mut Event,
    timeout: *const timespec,
    mask: *const SignalMask,
) -> c_long {
    let (events, timeout) = (events as usize, timeout as usize);
    let arguments = [
        context,
        min as usize,
        max as usize,
        events,
        timeout,
        mask as usize,
    ];
    // SAFETY: promised by the caller.
    unsafe { call(SYS_IO_PGETEVENTS, arguments) }
}

/// The kernel's ring behind a context.
///
/// # Safety
/// A context of the kernel that lives.
unsafe fn ring<'c>(context: usize) -> Option<&'c Ring> {
    // SAFETY: promised by the caller; the kernel maps its ring there.
    let ring = unsafe { &*(context as *const Ring) };
    (ring.magic == RING_MAGIC).then_some(ring)
}

/// Events that a context has room for.
///
/// # Safety
/// A context of the kernel that lives.
pub(crate) unsafe fn room(context: usize) -> usize {
    // SAFETY: promised by the caller.
    unsafe { ring(context) }.map_or(128, |ring| ring.events as usize)
}

/// Has the kernel no event for us? Looks without a system call.
///
/// # Safety
/// A context of the kernel that lives.
pub(crate) unsafe fn is_empty(context: usize) -> bool {
    // SAFETY: promised by the caller.
    unsafe { ring(context) }
        .is_some_and(|ring| ring.head.load(Ordering::Relaxed) == ring.tail.load(Ordering::Acquire))
}
