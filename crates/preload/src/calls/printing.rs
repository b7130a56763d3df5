//! dprintf and its relatives: the C library's own write past this library.
//!
//! The text is made in memory, by the C library, and written as a whole.

use crate::files::descriptors;
use crate::runtime::inside;
use adit_interposed::interposed;
use libc::{c_char, c_int, c_void};

/// C's `va_list`, as it is passed: the address of a structure on both architectures.
type Arguments = *mut c_void;

unsafe extern "C" {
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: Arguments) -> c_int;
    fn __vasprintf_chk(
        text: *mut *mut c_char,
        flag: c_int,
        format: *const c_char,
        arguments: Arguments,
    ) -> c_int;
}

/// Writes the text that `make` makes; its length, or -1 with errno.
fn print(fd: c_int, make: impl FnOnce(&mut *mut c_char) -> c_int) -> c_int {
    let mut text = std::ptr::null_mut();
    let len = make(&mut text);
    let Ok(count) = usize::try_from(len) else {
        return -1;
    };
    let mut written = 0;
    let mut answer = len;
    while written < count {
        // SAFETY: the text has that length. This is this library's function.
        let now = inside::uncancelled(|| unsafe {
            libc::write(fd, text.add(written).cast::<c_void>(), count - written)
        });
        match usize::try_from(now) {
            Ok(more) => written += more,
            Err(_) => {
                answer = -1;
                break;
            }
        }
    }
    // SAFETY: made by the C library for its caller; `free` leaves errno alone.
    unsafe { libc::free(text.cast()) };
    answer
}

#[interposed]
unsafe extern "C" fn vdprintf(fd: c_int, format: *const c_char, arguments: Arguments) -> c_int {
    if descriptors::get(fd).is_none() {
        return real(fd, format, arguments);
    }
    // SAFETY: the program vouches for its arguments, as to the C library.
    print(fd, |text| unsafe { vasprintf(text, format, arguments) })
}

#[interposed]
unsafe extern "C" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    arguments: Arguments,
) -> c_int {
    if descriptors::get(fd).is_none() {
        return real(fd, flag, format, arguments);
    }
    // SAFETY: the program vouches for its arguments, as to the C library.
    print(fd, |text| unsafe {
        __vasprintf_chk(text, flag, format, arguments)
    })
}

/// The functions with the arguments one after the other: make a `va_list` of those behind the first
/// ones, of which there are `$named`, and call the function that takes one.
macro_rules! listed {
    ($($name:ident($($argument:ident: $type:ty),*): $with_list:ident, $named:literal, $list:literal;)*) => {$(
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            std::arch::naked_asm!(
                // The list lies at rsp, the registers behind it at rsp + 32.
                "sub rsp, 216",
                "mov [rsp + 48], rdx",
                "mov [rsp + 56], rcx",
                "mov [rsp + 64], r8",
                "mov [rsp + 72], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 80], xmm0",
                "movaps [rsp + 96], xmm1",
                "movaps [rsp + 112], xmm2",
                "movaps [rsp + 128], xmm3",
                "movaps [rsp + 144], xmm4",
                "movaps [rsp + 160], xmm5",
                "movaps [rsp + 176], xmm6",
                "movaps [rsp + 192], xmm7",
                "2: mov dword ptr [rsp], 8 * {named}",
                "mov dword ptr [rsp + 4], 48",
                "lea rax, [rsp + 224]", // arguments on the stack
                "mov [rsp + 8], rax",
                "lea rax, [rsp + 32]",
                "mov [rsp + 16], rax",
                concat!("mov ", $list, ", rsp"),
                "call {with_list}",
                "add rsp, 216",
                "ret",
                named = const $named,
                with_list = sym $with_list,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            std::arch::naked_asm!(
                // The list lies at sp + 16, general registers at 48, those of numbers at 112.
                "sub sp, sp, 240",
                "stp x29, x30, [sp]",
                "stp x0, x1, [sp, 48]",
                "stp x2, x3, [sp, 64]",
                "stp x4, x5, [sp, 80]",
                "stp x6, x7, [sp, 96]",
                "stp q0, q1, [sp, 112]",
                "stp q2, q3, [sp, 144]",
                "stp q4, q5, [sp, 176]",
                "stp q6, q7, [sp, 208]",
                "add x9, sp, 240", // arguments on the stack
                "add x10, sp, 112",
                "stp x9, x10, [sp, 16]",
                "str x9, [sp, 32]",
                "mov w9, 8 * {named} - 64",
                "mov w10, -128",
                "stp w9, w10, [sp, 40]",
                concat!("add ", $list, ", sp, 16"),
                "bl {with_list}",
                "ldp x29, x30, [sp]",
                "add sp, sp, 240",
                "ret",
                named = const $named,
                with_list = sym $with_list,
            )
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
listed! {
    dprintf(_fd: c_int, _format: *const c_char): vdprintf, 2, "rdx";
    __dprintf_chk(_fd: c_int, _flag: c_int, _format: *const c_char): __vdprintf_chk, 3, "rcx";
}
#[cfg(target_arch = "aarch64")]
listed! {
    dprintf(_fd: c_int, _format: *const c_char): vdprintf, 2, "x2";
    __dprintf_chk(_fd: c_int, _flag: c_int, _format: *const c_char): __vdprintf_chk, 3, "x3";
}
