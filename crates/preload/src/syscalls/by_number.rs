//! `syscall`, a way past the C library's functions: MariaDB waits so for its events of libaio,
//! libuv closes so. Calls of the kernel's asynchronous IO are done here, those that name
//! descriptors or paths in [`numbered`].

use super::numbered;
use crate::aio::abi::{self, Event, Iocb, SignalMask};
use crate::aio::context;
use crate::aio::libaio::{get_events, io_submit};
use crate::runtime::{answer, kernel};
use crate::volume::settings;
use libc::{c_int, c_long, timespec};

/// Numbers of the kernel's asynchronous IO.
const AIO: &[c_long] = &[
    libc::SYS_io_setup,
    libc::SYS_io_destroy,
    libc::SYS_io_submit,
    libc::SYS_io_cancel,
    libc::SYS_io_getevents,
    abi::SYS_IO_PGETEVENTS,
];

/// All of them are smaller.
const NUMBERS_END: usize = 512;

/// Which numbers are ours.
static IS_OURS: [bool; NUMBERS_END] = {
    let mut ours = [false; NUMBERS_END];
    let lists = [AIO, numbered::NUMBERS];
    let mut list = 0;
    while list < lists.len() {
        let mut at = 0;
        while at < lists[list].len() {
            ours[lists[list][at] as usize] = true;
            at += 1;
        }
        list += 1;
    }
    ours
};

/// A system call of a number that is ours.
unsafe extern "C" fn by_number(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let errno = answer::before();
    // SAFETY: the program vouches for its arguments.
    let result = unsafe {
        match number {
            libc::SYS_io_setup => context::setup(a as c_int, b as *mut usize),
            libc::SYS_io_destroy => context::destroy(a),
            libc::SYS_io_submit => io_submit(a, b as c_long, c as *mut *mut Iocb).into(),
            libc::SYS_io_cancel => abi::cancel(a, b as *mut Iocb, c as *mut Event),
            libc::SYS_io_getevents | abi::SYS_IO_PGETEVENTS => {
                let mask = match number {
                    abi::SYS_IO_PGETEVENTS => f,
                    _ => 0,
                };
                let (min, max) = (b as c_long, c as c_long);
                get_events(
                    a,
                    min,
                    max,
                    d as *mut Event,
                    e as *const timespec,
                    mask as *const SignalMask,
                )
            }
            // An allocator may make system calls before this library has started.
            _ if settings().is_some() => match numbered::perform(number, [a, b, c, d, e, f]) {
                Some(result) => return result,
                None => kernel::call(number, [a, b, c, d, e, f]),
            },
            _ => kernel::call(number, [a, b, c, d, e, f]),
        }
    };
    if (-4095..0).contains(&result) {
        return answer::failed(adit::Errno::from_raw(-result as i32));
    }
    errno.restore(&result);
    result
}

/// Does any system call, and answers as the kernel does: a failure is a negative error number.
///
/// # Safety
/// As for the system call.
pub(crate) unsafe fn perform(number: c_long, arguments: [usize; 6]) -> c_long {
    let is_ours = usize::try_from(number).is_ok_and(|number| IS_OURS.get(number) == Some(&true));
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: promised by the caller.
    unsafe {
        if !is_ours {
            return kernel::call(number, arguments);
        }
        match by_number(number, a, b, c, d, e, f) {
            -1 => -c_long::from(answer::now()),
            result => result,
        }
    }
}

/// All other numbers go to the kernel as the C library hands them over: without a frame, which a
/// call that returns twice, or on another stack, would find changed.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn syscall(_number: c_long) -> c_long {
    std::arch::naked_asm!(
        "cmp rdi, {end}",
        "jae 1f",
        "lea rax, [rip + {ours}]",
        "cmp byte ptr [rax + rdi], 0",
        "jne 2f",
        "1: mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 3f",
        "ret",
        "2: jmp {by_number}",
        "3: neg eax",
        "push rax",
        "call {errno}@PLT",
        "pop rcx",
        "mov [rax], ecx",
        "mov rax, -1",
        "ret",
        end = const NUMBERS_END,
        ours = sym IS_OURS,
        by_number = sym by_number,
        errno = sym libc::__errno_location,
    )
}

/// As above.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn syscall(_number: c_long) -> c_long {
    std::arch::naked_asm!(
        "cmp x0, {end}",
        "b.hs 1f",
        "adrp x9, {ours}",
        "add x9, x9, :lo12:{ours}",
        "ldrb w9, [x9, x0]",
        "cbnz w9, 2f",
        "1: mov x8, x0",
        "mov x0, x1",
        "mov x1, x2",
        "mov x2, x3",
        "mov x3, x4",
        "mov x4, x5",
        "mov x5, x6",
        "svc 0",
        "cmn x0, 4095",
        "b.cs 3f",
        "ret",
        "2: b {by_number}",
        "3: stp x29, x30, [sp, -32]!",
        "neg x0, x0",
        "str x0, [sp, 16]",
        "bl {errno}",
        "ldr x1, [sp, 16]",
        "str w1, [x0]",
        "mov x0, -1",
        "ldp x29, x30, [sp], 32",
        "ret",
        end = const NUMBERS_END,
        ours = sym IS_OURS,
        by_number = sym by_number,
        errno = sym libc::__errno_location,
    )
}
