//! liburing: refused. A ring hands requests to the kernel without a call of a library, and the kernel
//! knows nothing of the volume's files: each of them would get EBADF, and a program that asked for a
//! ring and got one doesn't expect that. Refused at its start, it takes another way.

use crate::runtime::message::say_once;
use crate::volume::settings;
use adit_interposed::interposed;
use libc::{c_int, c_uint, c_void, size_t};

macro_rules! refused {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[interposed]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            if settings().is_none() {
                return real($($argument), *);
            }
            say_once!(
                "io_uring goes past the volume, so this program gets none ({}: ENOSYS)",
                stringify!($name)
            );
            -libc::ENOSYS
        }
    )*};
}
refused! {
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint);
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void);
    io_uring_queue_init_mem(
        entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, bytes: size_t
    );
    io_uring_setup(entries: c_uint, parameters: *mut c_void);
}
