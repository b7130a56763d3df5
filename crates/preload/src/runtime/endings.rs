//! Destructors of the library's thread-local values, without the program's `malloc`.
//!
//! Rust registers such a destructor when a thread first uses the value, by the C library's function
//! that C++ has for it. That one takes memory of `malloc`, in which the thread may be: its first
//! call on the volume may come from a signal handler. So the library has the function itself, hidden
//! from all others. A key of the C library, made at the start, says that a thread ends; the first
//! 32 keys need no memory.
//!
//! The destructors of the thread that ends the process aren't called.

use crate::runtime::real::real;
use libc::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

type Destructor = unsafe extern "C" fn(*mut c_void);

struct Registered {
    destructor: Destructor,
    value: *mut c_void,
    next: *mut Registered,
}

thread_local! {
    /// The last one of this thread. Atomic for signal handlers, not for other threads.
    static LAST: AtomicPtr<Registered> = const { AtomicPtr::new(std::ptr::null_mut()) };
}

/// The key of the C library; the top value: there is none.
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {}"
    };
}
std::arch::global_asm!(
    ".globl __cxa_thread_atexit_impl",
    ".hidden __cxa_thread_atexit_impl",
    ".type __cxa_thread_atexit_impl, @function",
    "__cxa_thread_atexit_impl:",
    jump!(),
    sym register,
);

unsafe extern "C" fn register(
    destructor: Destructor,
    value: *mut c_void,
    library: *mut c_void,
) -> c_int {
    let key = KEY.load(Ordering::Acquire);
    // SAFETY: a key of ours; it keeps the number.
    if key == u32::MAX || unsafe { libc::pthread_setspecific(key, (&raw const KEY).cast()) } != 0 {
        return real!(__cxa_thread_atexit_impl(
            destructor => Destructor, value => *mut c_void, library => *mut c_void
        ) -> c_int);
    }
    let registered = Box::into_raw(Box::new(Registered {
        destructor,
        value,
        next: std::ptr::null_mut(),
    }));
    LAST.with(|last| {
        let mut next = last.load(Ordering::Relaxed);
        loop {
            // SAFETY: made above.
            unsafe { (*registered).next = next };
            match last.compare_exchange(next, registered, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return 0,
                Err(now) => next = now,
            }
        }
    })
}

/// Called by the C library in a thread that ends. A destructor may register others.
unsafe extern "C" fn at_end(_: *mut c_void) {
    loop {
        let registered = LAST.with(|last| last.load(Ordering::Relaxed));
        if registered.is_null() {
            return;
        }
        // SAFETY: from `register`, and off the list before it is called.
        unsafe {
            let registered = Box::from_raw(registered);
            LAST.with(|last| last.store(registered.next, Ordering::Relaxed));
            (registered.destructor)(registered.value);
        }
    }
}

extern "C" fn at_start() {
    let mut key = 0;
    // SAFETY: a variable, and a function of this library, which stays.
    if unsafe { libc::pthread_key_create(&mut key, Some(at_end)) } == 0 {
        KEY.store(key, Ordering::Release);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;
