//! Before another process begins: the volume is given back, if nothing of it is open.
//!
//! One process at a time has an embedded volume. A shell that has only looked at it (`test -d
//! /adit/data`) doesn't need it any more when it starts a program that does: it is closed before
//! `fork`, `vfork`, `posix_spawn`, `system` and `popen`, and opened again by the next call. While a
//! file, a mapping or the working directory is the volume's, it stays, and the child gets EBUSY.
//! A volume in a server stays open, and a child of `fork` has what its parent has open.

use crate::files::sharing;
use crate::program::left::with_left_in_environment;
use crate::runtime::answer::{keeping_errno, set_errno};
use crate::runtime::inside;
use adit::Errno;
use adit_base::numbers;
use adit_interposed::interposed;
use libc::{FILE, c_char, c_int, c_long, pid_t};

/// Gives the volume back; from then on no thread of Adit has a low number that the child would find
/// taken.
extern "C" fn before_vfork() {
    keeping_errno(|| {
        sharing::give_back();
        if !inside::is_inside() {
            let _ = inside::run(|| {
                sharing::share_files();
                sharing::prepare_positions();
            });
        }
        numbers::begin_vfork();
    });
}

/// In the child, then in the parent: the answer of the kernel as that of the C library.
extern "C" fn after_vfork(answer: c_long) -> pid_t {
    numbers::end_vfork();
    match answer {
        ..0 => {
            set_errno(Errno::from_raw(-answer as c_int));
            -1
        }
        process => process as pid_t,
    }
}

// It returns twice on one stack, where the child overwrites what lies below its caller's frame. So
// the address of the caller is in a register meanwhile, as in the C library's own.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn vfork() -> pid_t {
    std::arch::naked_asm!(
        "sub rsp, 8", // a call wants 16-byte alignment
        "call {before}",
        "add rsp, 8",
        "pop rdx",
        "mov eax, {number}",
        "syscall",
        "push rdx",
        "mov rdi, rax",
        "jmp {after}",
        before = sym before_vfork,
        number = const libc::SYS_vfork,
        after = sym after_vfork,
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
        "mov x0, {flags}",
        "mov x1, xzr",
        "mov x8, {number}",
        "svc 0",
        "b {after}",
        before = sym before_vfork,
        flags = const libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
        number = const libc::SYS_clone,
        after = sym after_vfork,
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
