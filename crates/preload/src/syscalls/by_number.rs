//! `syscall`, a way past the C library's functions: MariaDB waits so for its events of libaio, libuv
//! closes so. A call that concerns the volume is done as the function of its name, which is ours:
//! those of libaio, those that make and close descriptors (were the table of them not told of a
//! close, the next file of that number would be the volume's), those that execute programs, and those
//! of [`numbered`].

use super::numbered;
use crate::aio::abi::{self, Event, Iocb, SignalMask};
use crate::aio::context;
use crate::aio::libaio::{get_events, io_submit};
use crate::calls::execveat;
use crate::files::descriptors;
use crate::program::Words;
use crate::runtime::{answer, inside, kernel};
use crate::volume::{self, settings};
use libc::{c_char, c_int, c_long, c_uint, c_void, mode_t, timespec};

/// Numbers of system calls that are ours.
const OURS: &[c_long] = &[
    libc::SYS_io_setup,
    libc::SYS_io_destroy,
    libc::SYS_io_submit,
    libc::SYS_io_cancel,
    libc::SYS_io_getevents,
    abi::SYS_IO_PGETEVENTS,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_openat,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_statx,
    libc::SYS_copy_file_range,
    libc::SYS_execve,
    libc::SYS_execveat,
];

/// All of them are smaller.
const NUMBERS_END: usize = 512;

/// Who does a call.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Doer {
    Kernel = 0,
    /// [`by_number`]
    Here,
    /// [`numbered`]
    Numbered,
}

/// By number.
static DOERS: [Doer; NUMBERS_END] = {
    let mut doers = [Doer::Kernel; NUMBERS_END];
    let mut at = 0;
    while at < OURS.len() {
        doers[OURS[at] as usize] = Doer::Here;
        at += 1;
    }
    at = 0;
    while at < numbered::NUMBERS.len() {
        doers[numbered::NUMBERS[at] as usize] = Doer::Numbered;
        at += 1;
    }
    doers
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
            _ if settings().is_some() => match of_descriptors(number, [a, b, c, d, e, f]) {
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
    let doer = usize::try_from(number).map(|number| DOERS.get(number));
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: promised by the caller.
    unsafe {
        match doer {
            Ok(Some(Doer::Here | Doer::Numbered)) => match by_number(number, a, b, c, d, e, f) {
                -1 => -c_long::from(answer::now()),
                result => result,
            },
            _ => kernel::call(number, arguments),
        }
    }
}

/// Does a call that concerns descriptors or paths as the function of its name, with errno. None: it
/// is the kernel's. No thread is cancelled in a system call.
///
/// # Safety
/// As for the system call.
unsafe fn of_descriptors(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<c_long> {
    if DOERS[number as usize] == Doer::Numbered {
        if inside::is_inside() || volume::is_opening() {
            return None; // Adit's own
        }
        // SAFETY: promised by the caller.
        return inside::uncancelled(|| unsafe { numbered::perform(number, [a, b, c, d, e, f]) });
    }
    let fd = a as c_int;
    let moves_data = matches!(
        number,
        libc::SYS_read | libc::SYS_write | libc::SYS_pread64 | libc::SYS_pwrite64
    );
    let is_of_host = |fd: usize| descriptors::get(fd as c_int).is_none();
    let copies = number == libc::SYS_copy_file_range;
    if moves_data && is_of_host(a) || copies && is_of_host(a) && is_of_host(c) {
        return None;
    }
    // SAFETY: promised by the caller. These are this library's functions.
    let result = inside::uncancelled(|| unsafe {
        match number {
            libc::SYS_close => libc::close(fd).into(),
            libc::SYS_close_range => libc::close_range(a as c_uint, b as c_uint, c as c_int).into(),
            libc::SYS_dup => libc::dup(fd).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => libc::dup2(fd, b as c_int).into(),
            libc::SYS_dup3 => libc::dup3(fd, b as c_int, c as c_int).into(),
            libc::SYS_fcntl => libc::fcntl(fd, b as c_int, c).into(),
            libc::SYS_openat => {
                libc::openat(fd, b as *const c_char, c as c_int, d as mode_t).into()
            }
            libc::SYS_read => libc::read(fd, b as *mut c_void, c) as c_long,
            libc::SYS_write => libc::write(fd, b as *const c_void, c) as c_long,
            libc::SYS_pread64 => libc::pread(fd, b as *mut c_void, c, d as libc::off_t) as c_long,
            libc::SYS_pwrite64 => {
                libc::pwrite(fd, b as *const c_void, c, d as libc::off_t) as c_long
            }
            libc::SYS_copy_file_range => {
                let (from, to) = (b as *mut libc::off_t, d as *mut libc::off_t);
                libc::copy_file_range(fd, from, c as c_int, to, e, f as c_uint) as c_long
            }
            libc::SYS_execve => {
                let (arguments, environment) = (b as Words, c as Words);
                libc::execve(a as *const c_char, arguments, environment).into()
            }
            libc::SYS_execveat => {
                let (arguments, environment) = (c as Words, d as Words);
                execveat(fd, b as *const c_char, arguments, environment, e as c_int).into()
            }
            _ => {
                let (path, result) = (b as *const c_char, e as *mut libc::statx);
                libc::statx(fd, path, c as c_int, d as c_uint, result).into()
            }
        }
    });
    Some(result)
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
        "lea rax, [rip + {doers}]",
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
        doers = sym DOERS,
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
        "adrp x9, {doers}",
        "add x9, x9, :lo12:{doers}",
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
        doers = sym DOERS,
        by_number = sym by_number,
        errno = sym libc::__errno_location,
    )
}
