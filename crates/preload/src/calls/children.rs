//! Before another process begins: the volume is given back, if nothing of it is open.
//!
//! One process at a time has an embedded volume. A shell that has only looked at it (`test -d
//! /adit/data`) doesn't need it any more when it starts a program that does: it is closed before
//! `fork`, `vfork`, `posix_spawn`, `system` and `popen`, and opened again by the next call. While a
//! file, a mapping or the working directory is the volume's, it stays, and the child gets EBUSY.
//! A volume in a server stays open, and a child of `fork` has what its parent has open.

use super::left::with_left_in_environment;
use crate::answer::keeping_errno;
use crate::real::{self, real};
use crate::{caught, inside, volume};
use adit_interposed::interposed;
use libc::{FILE, c_char, c_int, c_void, pid_t};
use std::sync::atomic::AtomicPtr;

extern "C" fn before_fork() {
    keeping_errno(volume::before_fork);
}

extern "C" fn after_fork() {
    keeping_errno(volume::after_fork);
}

extern "C" fn in_child() {
    keeping_errno(|| {
        caught::in_thread();
        volume::in_child();
    });
}

extern "C" fn at_start() {
    let (before, after, child) = (before_fork, after_fork, in_child);
    // An allocator that watches fork, too, does so when it is first used. Before us: then it stops
    // after us, and goes on before us.
    drop(std::hint::black_box(Box::new(0u64)));
    // Before us, too: threads of Adit may wait for a fork that has begun, and `before` for them.
    adit_base::fork::watch();
    // SAFETY: functions that are there as long as the process, since the library is.
    let failed = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(child)) };
    if failed != 0 {
        crate::message::say(format_args!("no memory to watch fork"));
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

/// Gives the volume back, and answers the C library's `vfork`.
extern "C" fn before_vfork() -> *mut c_void {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    keeping_errno(|| {
        volume::give_back();
        if !inside::is_inside() {
            let _ = inside::call(|| {
                volume::share_files();
                volume::prepare_positions();
                Ok(())
            });
        }
        let address = real::find(&FOUND, c"vfork");
        if address.is_null() {
            real::missing(c"vfork");
        }
        address
    })
}

// The real one returns twice, so it must find the caller's own stack: it is jumped to, not called.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn vfork() -> pid_t {
    std::arch::naked_asm!(
        "sub rsp, 8", // a call wants 16-byte alignment
        "call {before}",
        "add rsp, 8",
        "jmp rax",
        before = sym before_vfork,
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn vfork() -> pid_t {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, -16]!",
        "bl {before}",
        "ldp x29, x30, [sp], 16",
        "mov x16, x0",
        "br x16",
        before = sym before_vfork,
    )
}

#[interposed]
unsafe extern "C" fn system(command: *const c_char) -> c_int {
    volume::give_back();
    with_left_in_environment(|| real!(system(command => *const c_char) -> c_int))
}

#[interposed]
unsafe extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut FILE {
    volume::give_back();
    with_left_in_environment(
        || real!(popen(command => *const c_char, kind => *const c_char) -> *mut FILE),
    )
}
