//! The C library's own functions: what the program would have called without us.
//!
//! Each is looked up behind us in the order of libraries, once.

use libc::{c_char, c_void};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The address of a function behind us; NULL if no library has it.
pub(crate) fn find(found: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = found.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a C string.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    found.store(address, Ordering::Relaxed);
    address
}

/// Ends the program: it calls a function that no library of it has.
#[cold]
pub(crate) fn missing(name: &CStr) -> ! {
    super::message::say(format_args!(
        "no loaded library provides the function {}",
        name.to_string_lossy()
    ));
    std::process::abort()
}

/// Calls the C library's function of this name. Its types are those of the call.
macro_rules! real {
    ($name:ident($($argument:expr => $type:ty),* $(,)?) -> $result:ty) => {{
        static FOUND: std::sync::atomic::AtomicPtr<libc::c_void> =
            std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
        const NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(
            concat!(stringify!($name), "\0").as_bytes(),
        ) {
            Ok(name) => name,
            Err(_) => panic!("a name has no zeroes"),
        };
        let address = $crate::runtime::real::find(&FOUND, NAME);
        if address.is_null() {
            $crate::runtime::real::missing(NAME);
        }
        // SAFETY: the function of this name has this type; the caller passes what it was given.
        unsafe {
            let function: unsafe extern "C" fn($($type),*) -> $result =
                std::mem::transmute(address);
            function($($argument),*)
        }
    }};
}
pub(crate) use real;

/// Does a call of the C library that gives or takes away a number, and returns its result. The
/// threads of Adit in this process make no descriptor during the call. It is a macro because a
/// cancelled thread is unwound: the C library must find the call in the frame of the C function.
macro_rules! of_program {
    ($result:expr) => {{
        let call = adit_base::numbers::ProgramCall::begin();
        let result = $result;
        drop(call);
        result
    }};
}
pub(crate) use of_program;

/// To where a symbolic link of the host leads.
pub(crate) fn link_target(link: &CStr) -> Option<Vec<u8>> {
    let mut text = vec![0u8; libc::PATH_MAX as usize];
    let (link, room) = (link.as_ptr(), text.len());
    let count = real!(readlink(
        link => *const c_char, text.as_mut_ptr().cast() => *mut c_char, room => usize
    ) -> isize);
    text.truncate(usize::try_from(count).ok()?);
    Some(text)
}

/// The text of a C string; empty for NULL.
///
/// # Safety
/// NULL, or a C string that outlives the result.
pub(crate) unsafe fn text<'a>(string: *const c_char) -> &'a [u8] {
    if string.is_null() {
        return &[];
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(string) }.to_bytes()
}

/// Ends a program that is about to write behind its buffer, as the C library does.
pub(crate) fn check_room(len: usize, room: usize) {
    if len > room {
        super::message::say(format_args!(
            "buffer overflow detected: {len} bytes into {room}"
        ));
        std::process::abort();
    }
}
