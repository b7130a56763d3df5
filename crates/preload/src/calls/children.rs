//! Before another process begins: the volume is given back, if nothing of it is open.
//!
//! One process at a time has an embedded volume. A shell that has only looked at it (`test -d
//! /adit/data`) doesn't need it any more when it starts a program that does: it is closed before
//! `fork`, `vfork`, `posix_spawn`, `system` and `popen`, and opened again by the next call. While a
//! file, a mapping or the working directory is the volume's, it stays, and the child gets EBUSY.
//! A volume in a server stays open, and a child of `fork` has what its parent has open.

use crate::files::sharing;
use crate::program::left::with_left_in_environment;
use crate::runtime::answer::keeping_errno;
use crate::runtime::{inside, real};
use adit_interposed::interposed;
use libc::{FILE, c_char, c_int, c_void, pid_t};
use std::sync::atomic::AtomicPtr;

/// Gives the volume back, and answers the C library's `vfork`.
extern "C" fn before_vfork() -> *mut c_void {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    keeping_errno(|| {
        sharing::give_back();
        if !inside::is_inside() {
            let _ = inside::run(|| {
                sharing::share_files();
                sharing::prepare_positions();
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
    sharing::give_back();
    with_left_in_environment(|| real(command))
}

#[interposed]
unsafe extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut FILE {
    sharing::give_back();
    with_left_in_environment(|| real(command, kind))
}
