//! SIGSYS: a system call of the program's own code, done in a signal handler of its thread.

use super::by_number::perform;
use crate::caught::{MASK_BYTES, Mask, SIGSYS_BIT, mask, set_mask, swap_action};
use crate::runtime::answer::{before, now};
use crate::runtime::kernel;
use crate::runtime::message::say_once;
use crate::runtime::real::real;
use libc::{c_int, c_long, c_ulong, c_void, siginfo_t, ucontext_t};

/// Why a SIGSYS was sent.
const SYS_USER_DISPATCH: c_int = 2;

pub(super) unsafe extern "C" fn caught(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's, for the time of this call.
    let (why, state) = unsafe { ((*info).si_code, &mut *context.cast::<ucontext_t>()) };
    if why != SYS_USER_DISPATCH {
        return theirs(signal, info, context);
    }
    let errno = before();
    let registers = &state.uc_mcontext.gregs;
    let register = |of: c_int| registers[of as usize] as usize;
    let number = register(libc::REG_RAX) as c_long;
    let arguments = [
        register(libc::REG_RDI),
        register(libc::REG_RSI),
        register(libc::REG_RDX),
        register(libc::REG_R10),
        register(libc::REG_R8),
        register(libc::REG_R9),
    ];
    // SAFETY: the program vouches for its arguments, as to the kernel.
    let result = unsafe { done(number, arguments, state) };
    state.uc_mcontext.gregs[libc::REG_RAX as usize] = result;
    errno.restore(&());
}

/// Does a call in the handler of its thread.
///
/// # Safety
/// As for the system call.
unsafe fn done(number: c_long, arguments: [usize; 6], state: &mut ucontext_t) -> c_long {
    // SAFETY: promised by the caller.
    unsafe {
        match number {
            libc::SYS_rt_sigreturn => resume(state.uc_mcontext.gregs[libc::REG_RSP as usize]),
            libc::SYS_rt_sigaction => set_action(arguments),
            libc::SYS_rt_sigprocmask => change_mask(arguments, state),
            libc::SYS_sigaltstack => set_stack(arguments, state),
            libc::SYS_fork | libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3 => {
                begin_process(number, arguments)
            }
            _ => perform(number, arguments),
        }
    }
}

/// The end of a signal handler of the program's, by its own code: goes on where that interrupted.
///
/// # Safety
/// What the kernel put on the stack for that handler is there.
#[unsafe(naked)]
unsafe extern "C" fn resume(_stack: i64) -> ! {
    std::arch::naked_asm!(
        "mov rsp, rdi",
        "mov eax, {number}",
        "syscall",
        "ud2",
        number = const libc::SYS_rt_sigreturn,
    )
}

/// `struct sigaction` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelAction {
    handler: usize,
    flags: c_ulong,
    restorer: usize,
    mask: Mask,
}

unsafe fn set_action([signal, new, old, bytes, ..]: [usize; 6]) -> c_long {
    let (new, old) = (new as *const KernelAction, old as *mut KernelAction);
    if bytes != MASK_BYTES {
        return -c_long::from(libc::EINVAL);
    }
    // SAFETY: NULL, or the program's structures.
    let mut given = unsafe { new.as_ref() }.copied();
    if signal as c_int != libc::SIGSYS {
        if let Some(given) = &mut given {
            given.mask &= !SIGSYS_BIT;
        }
        let new = given.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let arguments = [signal, new as usize, old as usize, bytes];
        // SAFETY: as for this function.
        return unsafe { kernel::call(libc::SYS_rt_sigaction, arguments) };
    }
    let given = given.map(|given| {
        // SAFETY: all zeroes are a value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = given.handler;
        action.sa_flags = given.flags as c_int;
        set_mask(&mut action.sa_mask, given.mask);
        action
    });
    let was = swap_action(given.as_ref());
    // SAFETY: as above.
    if let Some(old) = unsafe { old.as_mut() } {
        *old = KernelAction {
            handler: was.sa_sigaction,
            flags: was.sa_flags as c_ulong,
            restorer: 0,
            mask: mask(&was.sa_mask),
        };
    }
    0
}

unsafe fn change_mask([how, set, old, bytes, ..]: [usize; 6], state: &mut ucontext_t) -> c_long {
    if bytes != MASK_BYTES {
        return -c_long::from(libc::EINVAL);
    }
    let before = mask(&state.uc_sigmask);
    // SAFETY: NULL, or the program's mask.
    if let Some(set) = unsafe { (set as *const Mask).as_ref() } {
        let after = match how as c_int {
            libc::SIG_BLOCK => before | set,
            libc::SIG_UNBLOCK => before & !set,
            libc::SIG_SETMASK => *set,
            _ => return -c_long::from(libc::EINVAL),
        };
        set_mask(&mut state.uc_sigmask, after & !SIGSYS_BIT);
    }
    // SAFETY: as above.
    if let Some(old) = unsafe { (old as *mut Mask).as_mut() } {
        *old = before;
    }
    0
}

unsafe fn set_stack(arguments: [usize; 6], state: &mut ucontext_t) -> c_long {
    // SAFETY: NULL, or the program's structure. Read before the call, which may write there.
    let new = unsafe { (arguments[0] as *const libc::stack_t).as_ref() }.copied();
    // SAFETY: as for this function.
    let result = unsafe { kernel::call(libc::SYS_sigaltstack, arguments) };
    if let (0, Some(new)) = (result, new) {
        state.uc_stack = new;
    }
    result
}

/// A process is begun by the C library, whose functions the child goes on with. One that shares
/// memory would return from this handler on a stack that isn't the handler's.
unsafe fn begin_process(number: c_long, arguments: [usize; 6]) -> c_long {
    let [flags, stack, ..] = arguments;
    let is_plain = match number {
        libc::SYS_fork | libc::SYS_vfork => true,
        libc::SYS_clone => flags == libc::SIGCHLD as usize && stack == 0,
        _ => false,
    };
    if !is_plain {
        say_once!("clone of a thread is not supported where system calls are caught: ENOSYS");
        return -c_long::from(libc::ENOSYS);
    }
    // SAFETY: the thread is in code of the program, not in the C library.
    match unsafe { libc::fork() } {
        -1 => -c_long::from(now()),
        child => child.into(),
    }
}

/// A SIGSYS of another's: of a filter (seccomp), or sent.
fn theirs(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let action = swap_action(None);
    match action.sa_sigaction {
        libc::SIG_IGN => {}
        libc::SIG_DFL => {
            real!(signal(signal => c_int, libc::SIG_DFL => usize) -> usize);
            // SAFETY: ends the process.
            unsafe { libc::raise(signal) };
        }
        handler if action.sa_flags & libc::SA_SIGINFO != 0 => {
            type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
            // SAFETY: the program's handler, with what the kernel gave.
            unsafe { std::mem::transmute::<usize, Handler>(handler)(signal, info, context) };
        }
        handler => {
            // SAFETY: as above.
            unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler)(signal) };
        }
    }
}
