//! The functions of libaio 0.3.113, and two ways past them: `syscall` with the numbers of these calls
//! (MariaDB waits for its events so), and the names of libaio for `dlopen`.
//!
//! They need no libaio: they are system calls. As libaio's they return negative error numbers.
//! `syscall` also has the calls that make and close descriptors: were the table of them not told of
//! a close (libuv closes so), the next file of that number would be the volume's. So are those that
//! execute programs.

use super::context;
use super::kernel::{self, Event, Iocb, SignalMask};
use crate::calls::{execveat, numbered};
use crate::program::Words;
use crate::volume::{self, settings};
use crate::{answer, descriptors, inside};
use adit_interposed::interposed;
use libc::{c_char, c_int, c_long, c_uint, c_void, mode_t, timespec};

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
unsafe extern "C" fn io_submit(context: usize, count: c_long, list: *mut *mut Iocb) -> c_int {
    // SAFETY: the program vouches for its arguments.
    inside::uncancelled(|| unsafe {
        match context::find(context) {
            Some(context) => super::submission::submit(&context, count, list) as c_int,
            None => kernel::submit(context, count, list) as c_int,
        }
    })
}

/// As for any file on Linux: what was submitted can't be cancelled (EINVAL).
#[interposed]
unsafe extern "C" fn io_cancel(context: usize, iocb: *mut Iocb, event: *mut Event) -> c_int {
    // SAFETY: the program vouches for its arguments.
    unsafe { kernel::cancel(context, iocb, event) as c_int }
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

unsafe fn get_events(
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
            None => kernel::events(context, min, max, events, timeout, mask),
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

// ------------------------------------------------------------------------ syscall

/// Numbers of system calls that are ours.
const OURS: &[c_long] = &[
    libc::SYS_io_setup,
    libc::SYS_io_destroy,
    libc::SYS_io_submit,
    libc::SYS_io_cancel,
    libc::SYS_io_getevents,
    kernel::SYS_IO_PGETEVENTS,
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
            libc::SYS_io_cancel => kernel::cancel(a, b as *mut Iocb, c as *mut Event),
            libc::SYS_io_getevents | kernel::SYS_IO_PGETEVENTS => {
                let mask = match number {
                    kernel::SYS_IO_PGETEVENTS => f,
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
        answer::set_errno(adit::Errno::from_raw(-result as i32));
        return -1;
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

// ------------------------------------------------------------------------ dlopen

/// Is it the name of libaio, for who opens a library by name?
pub(crate) fn is_libaio(name: &[u8]) -> bool {
    let file = name.rsplit(|byte| *byte == b'/').next();
    matches!(file, Some(b"libaio.so" | b"libaio.so.1"))
}

/// A handle of this library; NULL: none.
pub(crate) fn own_handle() -> *mut c_void {
    // SAFETY: all zeroes are a value; the call fills it for an address in this library.
    let own = unsafe {
        let mut own: libc::Dl_info = std::mem::zeroed();
        libc::dladdr(io_setup as *const c_void, &mut own);
        own.dli_fname
    };
    if own.is_null() {
        return std::ptr::null_mut();
    }
    let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD;
    crate::real::real!(dlopen(own => *const c_char, flags => c_int) -> *mut c_void)
}
