//! The functions of libaio 0.3.113. They need no libaio: they are system calls. As libaio's they
//! return negative error numbers.

use super::abi::{self, Event, Iocb, SignalMask};
use super::context;
use crate::runtime::inside;
use adit_interposed::interposed;
use libc::{c_int, c_long, timespec};

#[interposed]
unsafe extern "C" fn io_setup(events: c_int, context: *mut usize) -> c_int {
    // SAFETY: the program vouches for its arguments.
    unsafe { context::setup(events, context) as c_int }
}

#[interposed]
unsafe extern "C" fn io_destroy(context: usize) -> c_int {
    inside::uncancelled(|| context::destroy(context) as c_int)
}

#[interposed]
pub(crate) unsafe extern "C" fn io_submit(
    context: usize,
    count: c_long,
    list: *mut *mut Iocb,
) -> c_int {
    // SAFETY: the program vouches for its arguments.
    inside::uncancelled(|| unsafe {
        match context::find(context) {
            Some(context) => super::submission::submit(&context, count, list) as c_int,
            None => abi::submit(context, count, list) as c_int,
        }
    })
}

/// As for any file on Linux: what was submitted can't be cancelled (EINVAL).
#[interposed]
unsafe extern "C" fn io_cancel(context: usize, iocb: *mut Iocb, event: *mut Event) -> c_int {
    // SAFETY: the program vouches for its arguments.
    unsafe { abi::cancel(context, iocb, event) as c_int }
}

#[interposed]
unsafe extern "C" fn io_getevents(
    context: usize,
    min: c_long,
    max: c_long,
    events: *mut Event,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the program vouches for its arguments.
    unsafe { get_events(context, min, max, events, timeout, std::ptr::null()) as c_int }
}

pub(crate) unsafe fn get_events(
    context: usize,
    min: c_long,
    max: c_long,
    events: *mut Event,
    timeout: *const timespec,
    mask: *const SignalMask,
) -> c_long {
    // SAFETY: the program vouches for its arguments.
    inside::uncancelled(|| unsafe {
        match context::find(context) {
            Some(context) => context.events(min, max, events, timeout, mask),
            None => abi::events(context, min, max, events, timeout, mask),
        }
    })
}

#[interposed]
unsafe extern "C" fn io_pgetevents(
    context: usize,
    min: c_long,
    max: c_long,
    events: *mut Event,
    timeout: *mut timespec,
    mask: *mut libc::sigset_t,
) -> c_int {
    /// Bytes of a mask in the kernel.
    const MASK_BYTES: usize = 8;
    let signals = SignalMask {
        mask,
        bytes: MASK_BYTES,
    };
    let signals = if mask.is_null() {
        std::ptr::null()
    } else {
        &raw const signals
    };
    // SAFETY: the program vouches for its arguments.
    unsafe { get_events(context, min, max, events, timeout, signals) as c_int }
}

#[interposed]
unsafe extern "C" fn io_queue_init(events: c_int, context: *mut usize) -> c_int {
    if events <= 0 {
        return -libc::EINVAL;
    }
    // SAFETY: the program vouches for its arguments.
    unsafe {
        *context = 0;
        io_setup(events, context)
    }
}

#[interposed]
unsafe extern "C" fn io_queue_release(context: usize) -> c_int {
    inside::uncancelled(|| context::destroy(context) as c_int)
}

/// Calls the function that is in each request's data.
#[interposed]
unsafe extern "C" fn io_queue_run(context: usize) -> c_int {
    type Callback = unsafe extern "C" fn(usize, *mut Iocb, c_long, c_long);
    let now = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    loop {
        let mut event = Event::default();
        // SAFETY: room for one event.
        let count = unsafe { get_events(context, 0, 1, &mut event, &now, std::ptr::null()) };
        if count != 1 {
            return count as c_int;
        }
        // SAFETY: the program put a function there (`io_set_callback`).
        unsafe {
            let callback: Callback = std::mem::transmute(event.data as usize);
            callback(
                context,
                event.iocb as *mut Iocb,
                event.result,
                event.result2,
            );
        }
    }
}

#[interposed]
unsafe extern "C" fn io_queue_wait(context: usize, timeout: *mut timespec) -> c_int {
    // SAFETY: no room for events, and none is taken.
    let events = std::ptr::null_mut();
    // SAFETY: as above.
    unsafe { get_events(context, 0, 0, events, timeout, std::ptr::null()) as c_int }
}
