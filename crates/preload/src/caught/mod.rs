//! System calls that the program makes without the C library (`adit run --catch-system-calls`).
//!
//! Syscall User Dispatch: the kernel does no system call of the program's own code. It sends the
//! thread SIGSYS, and the handler does the call, as `syscall` does one by number.
//!
//! ```text
//! 0 ─ the program's code and data ─┬─ heap, libraries, this one, the C library, the stack ─ end
//!       each call is a SIGSYS      └─ allowed: costs nothing more
//! ```
//! Invariants:
//! 1. The C library, the loader and this library lie behind the program: their calls are the kernel's,
//!    the handler's too. A program that lies elsewhere has nothing caught, and is told so.
//! 2. No thread blocks SIGSYS while it runs the program's code, and its handler stays ours: the kernel
//!    kills a thread that it can't send the signal to. So functions and calls that block signals leave
//!    it out, and the program's own action is kept here, for a SIGSYS that is none of ours.
//! 3. What the kernel restores when the handler returns (mask, alternate stack) is changed in the
//!    handler's context, not in the thread.
//! 4. `errno` stays: a system call has none.
//!
//! Dispatch is the thread's. Each begins its own: the first one, those of `pthread_create` and
//! `thrd_create`, and that of a forked child. After `exec` the program's first thread does.

mod action;
mod program;

use crate::runtime::kernel;
use crate::runtime::message::{say, say_once};
use crate::runtime::real::real;
use libc::{c_int, c_ulong};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) use action::{MASK_BYTES, Mask, SIGSYS_BIT, mask, set_mask, swap_action, unblocked};

const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;
const PR_SYS_DISPATCH_ON: c_ulong = 1;

/// Behind it no call is caught; 0: none is, anywhere.
static PROGRAM_END: AtomicUsize = AtomicUsize::new(0);

/// Are calls of the program caught?
#[inline]
pub(crate) fn is_on() -> bool {
    PROGRAM_END.load(Ordering::Relaxed) != 0
}

/// Begins in the first thread, once the library knows its volume. None: this kind of machine has no
/// handler.
pub(crate) fn at_start(handler: Option<usize>) {
    let program::Program { end, is_go } = program::Program::of_this_process();
    if is_go {
        say(format_args!(
            "a program of Go: its system calls aren't caught, since its stacks have no room for that"
        ));
        return;
    }
    if let Some(below) = needed().into_iter().find(|address| *address < end) {
        say(format_args!(
            "this program's system calls can't be caught: it ends at {end:#x}, behind a library \
             at {below:#x}"
        ));
        return;
    }
    let Some(handler) = handler else {
        say(format_args!(
            "system calls can't be caught on this architecture"
        ));
        return;
    };
    // SAFETY: all zeroes are a value.
    let (mut ours, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = handler;
    // The program's calls may wait; what interrupts them may call, too.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
    let (new, old) = (&raw const ours, &raw mut before);
    real!(sigaction(
        libc::SIGSYS => c_int, new => *const libc::sigaction, old => *mut libc::sigaction
    ) -> c_int);
    swap_action(Some(&before));
    PROGRAM_END.store(end, Ordering::Release);
    if !begin() {
        PROGRAM_END.store(0, Ordering::Release);
        say(format_args!(
            "this kernel has no Syscall User Dispatch: system calls aren't caught"
        ));
    }
}

/// Begins in another thread, or in the only one of a forked child.
pub(crate) fn in_thread() {
    if is_on() && !begin() {
        say_once!(
            "a thread's system calls aren't caught: {}",
            io::Error::last_os_error()
        );
    }
}

fn begin() -> bool {
    unblock();
    let end = PROGRAM_END.load(Ordering::Acquire);
    debug_assert!(
        needed().iter().all(|address| *address >= end),
        "allowed: the handler's calls"
    );
    // SAFETY: the handler is there; the allowed range has all that it calls.
    let failed = unsafe {
        libc::prctl(
            PR_SET_SYSCALL_USER_DISPATCH,
            PR_SYS_DISPATCH_ON,
            end,
            usize::MAX - end,
            0usize,
        )
    };
    failed == 0
}

/// A program before this one may have blocked the signal, and so may attributes of a thread.
fn unblock() {
    let how = libc::SIG_UNBLOCK as usize;
    let set = action::SIGSYS_BIT;
    // SAFETY: a mask of this frame.
    unsafe {
        let set = &raw const set as usize;
        kernel::call(libc::SYS_rt_sigprocmask, [how, set, 0, action::MASK_BYTES]);
    }
}

/// Addresses in all that must be allowed.
fn needed() -> [usize; 3] {
    // SAFETY: no preconditions.
    let loader = unsafe { libc::getauxval(libc::AT_BASE) } as usize;
    let c_library = libc::__errno_location as *const () as usize;
    [loader, c_library, at_start as *const () as usize]
}
