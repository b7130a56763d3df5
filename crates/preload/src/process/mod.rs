//! The beginning and the end of the program, and its forks.
//!
//! - `fork`: what a child has of its parent

mod fork;

use crate::files::{descriptors, path};
use crate::runtime::answer::keeping_errno;
use crate::runtime::inside;
use crate::runtime::message::{self, say};
use crate::volume::{self, Settings, VolumeRef, opened, settings};
use crate::{aio, calls, caught, program, syscalls};
use adit::{Errno, Survive};
use libc::{c_int, c_void};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the end of the process waits for calls that other threads are in.
const PATIENCE_AT_EXIT: Duration = Duration::from_millis(200);
/// How long it waits where unsynced writes may not survive the process: beside busy processes a
/// thread may be without a core for a while.
const PATIENCE_OF_THE_UNSAFE: Duration = Duration::from_secs(5);

unsafe extern "C" {
    fn __cxa_atexit(
        function: extern "C" fn(*mut c_void),
        argument: *mut c_void,
        library: *mut c_void,
    ) -> c_int;
}

/// What a child hears that uses an open file of its parent's, if the volume is inside that.
const TO_CHILDREN: &str = "a child process can't use the files that its parent has open in the \
     volume, which is inside the parent alone (EBADF): start the program without --embedded, with \
     `adit run --share SOCKET`, or with `adit run unix:SOCKET` and a server, `adit serve VOLUME \
     --socket SOCKET`";

extern "C" fn at_start() {
    fork::watch();
    keeping_errno(start);
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

fn start() {
    adit_base::fork::install();
    adit_base::fork::refuse_with(TO_CHILDREN);
    message::ask(|| descriptors::get(2).is_some());
    let Some(settings) = volume::at_start() else {
        return;
    };
    path::inherit();
    program::copy::at_start();
    inherit(settings);
    if settings.catches {
        caught::at_start(syscalls::handler());
    }
    // What the loader registers later runs earlier: the destructors of all libraries, which may
    // write to the volume.
    // SAFETY: a function of this library, which stays; it takes no argument.
    let failed = unsafe { __cxa_atexit(at_exit, std::ptr::null_mut(), std::ptr::null_mut()) };
    if failed != 0 {
        say(format_args!(
            "can't register an exit handler: the volume is not closed at the end"
        ));
    }
}

/// Takes what the program before this one has left to it.
fn inherit(settings: &Settings) {
    let begin = |socket: OwnedFd, words: &[u8]| {
        volume::say_messages();
        settings.of_program((socket, words))
    };
    if let Some(volume) = program::left::inherit(begin) {
        volume::set(volume);
        for fd in descriptors::in_range(0, 2) {
            calls::redirect_standard(fd);
        }
    }
}

/// Runs after the program's own `atexit` functions and the libraries' destructors: writes what C's
/// streams hold, closes all files and the volume. If a thread is in the middle of a call, the
/// volume stays as after a kill, which loses nothing that survives one: the next open recovers it.
/// So it does if this thread is, because a signal handler ends the process.
extern "C" fn at_exit(_: *mut c_void) {
    let is_another_ones = |volume: VolumeRef| volume.is_inherited() && !volume.has_inherited();
    if inside::is_inside() || opened().is_none_or(is_another_ones) {
        return;
    }
    calls::flush_streams();
    message::say_deferred();
    let closed = inside::run(|| {
        aio::finish();
        calls::flush_mappings();
        descriptors::close_all();
        path::leave();
    });
    debug_assert!(closed.is_ok(), "this thread was in no call");
    let Some(mut volume) = volume::swap(None) else {
        return;
    };
    if volume.is_inherited() {
        // A child that has asked for nothing: what was left to it goes with it.
        std::mem::forget(volume);
        return;
    }
    let patience = match settings().map(|settings| settings.survive) {
        Some(Survive::Prefer | Survive::Off) if !volume.is_connected() => PATIENCE_OF_THE_UNSAFE,
        _ => PATIENCE_AT_EXIT,
    };
    let begin = Instant::now();
    loop {
        volume = match Arc::try_unwrap(volume) {
            Ok(volume) => {
                let was_had = !volume.is_connected();
                match volume.close() {
                    Err(error) if error.errno() != Errno::BUSY => say(format_args!("{error}")),
                    _ if was_had => crate::volume::leave_meeting(true),
                    _ => {}
                }
                return;
            }
            Err(shared) if begin.elapsed() < patience => shared,
            Err(shared) => {
                std::mem::forget(shared);
                return;
            }
        };
        std::thread::sleep(Duration::from_micros(200));
    }
}
