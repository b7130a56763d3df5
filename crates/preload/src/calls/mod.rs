//! The functions that programs call, by subject. Each asks whether its descriptor or path is the
//! volume's, and if not, hands on to the C library's function of the same name.
//!
//! Names of one line in the tables are one function under several names: `…64` (the same on
//! machines of 64 bits), `__…_chk` (with a check that the compiler asks for), `__xstat` and the like
//! (of old programs).

mod actions;
mod attributes;
mod children;
mod copies;
pub(crate) mod data;
mod directories;
mod exec;
mod libraries;
mod locks;
mod maps;
mod names;
mod numbers;
mod open;
mod pipes;
mod printing;
mod ready;
mod signals;
mod sockets;
mod space;
mod streams;
mod trees;
mod users;
mod working;
mod xattrs;

use crate::runtime::renewed::InChild;

pub(crate) use directories::getdents64;
pub(crate) use exec::execveat;
pub(crate) use maps::{MapsLock, flush_all as flush_mappings, lock_maps};
pub(crate) use streams::{flush_all as flush_streams, redirect_standard};

/// In a thread that forks: the tables of these functions.
pub(crate) fn at_fork() -> [InChild; 6] {
    [
        streams::at_fork(),
        directories::at_fork(),
        actions::at_fork(),
        libraries::at_fork(),
        pipes::at_fork(),
        sockets::at_fork(),
    ]
}

/// Functions whose first argument is a descriptor: `ours` gets the open file instead.
macro_rules! of_descriptor {
    ($($($name:ident)|+: $arguments:tt -> $result:ty = $ours:path;)*) => {
        $($($crate::calls::of_descriptor!(@ $name $arguments $result, $ours);)+)*
    };
    (@ $name:ident ($($argument:ident: $type:ty),*) $result:ty, $ours:path) => {
        #[adit_interposed::interposed]
        pub(crate) unsafe extern "C-unwind" fn $name(fd: libc::c_int $(, $argument: $type)*) -> $result {
            match $crate::files::descriptors::get(fd) {
                Some(open) => {
                    // SAFETY: the program vouches for its arguments, as to the C library.
                    let answer = $crate::runtime::inside::interposed(|| unsafe { $ours(&open $(, $argument)*) });
                    drop(open);
                    $crate::runtime::inside::cancel_if_asked();
                    $crate::runtime::answer::ToC::to_c(answer) as $result
                }
                None => real(fd$(, $argument)*),
            }
        }
    };
}
use of_descriptor;

/// What the C library answered. The functions of a table that begins with `made` make numbers, of
/// which that function is told.
macro_rules! of_host {
    ([], $result:expr) => {
        $result
    };
    ([$made:path], $result:expr) => {
        $made($crate::runtime::real::of_program!($result))
    };
}
use of_host;

/// Functions whose first argument is a path: `ours` gets the place in the volume instead.
macro_rules! of_path {
    (made $made:path; $($($name:ident)|+: $arguments:tt -> $result:ty = $ours:path;)*) => {
        $($($crate::calls::of_path!(@ $name $arguments $result, $ours, [$made]);)+)*
    };
    ($($($name:ident)|+: $arguments:tt -> $result:ty = $ours:path;)*) => {
        $($($crate::calls::of_path!(@ $name $arguments $result, $ours, []);)+)*
    };
    (@ $name:ident ($($argument:ident: $type:ty),*) $result:ty, $ours:path, $made:tt) => {
        #[adit_interposed::interposed]
        pub(crate) unsafe extern "C" fn $name(path: *const libc::c_char $(, $argument: $type)*) -> $result {
            // SAFETY: the program vouches for its arguments, as to the C library.
            match unsafe { $crate::files::path::find(libc::AT_FDCWD, path) } {
                $crate::files::path::Place::Volume(spot) => {
                    // SAFETY: as above.
                    let answer = $crate::runtime::inside::interposed(|| unsafe { $ours(&spot $(, $argument)*) });
                    $crate::runtime::answer::ToC::to_c(answer) as $result
                }
                $crate::files::path::Place::Host(host) => {
                    let path = host.pointer(path);
                    $crate::calls::of_host!($made, real(path$(, $argument)*))
                }
            }
        }
    };
}
use of_path;

/// Functions whose first arguments are the descriptor of a directory and a path.
macro_rules! of_path_at {
    (made $made:path; $($($name:ident)|+: $arguments:tt -> $result:ty = $ours:path;)*) => {
        $($($crate::calls::of_path_at!(@ $name $arguments $result, $ours, [$made]);)+)*
    };
    ($($($name:ident)|+: $arguments:tt -> $result:ty = $ours:path;)*) => {
        $($($crate::calls::of_path_at!(@ $name $arguments $result, $ours, []);)+)*
    };
    (@ $name:ident ($($argument:ident: $type:ty),*) $result:ty, $ours:path, $made:tt) => {
        #[adit_interposed::interposed]
        pub(crate) unsafe extern "C" fn $name(
            directory: libc::c_int, path: *const libc::c_char $(, $argument: $type)*
        ) -> $result {
            // SAFETY: the program vouches for its arguments, as to the C library.
            match unsafe { $crate::files::path::find(directory, path) } {
                $crate::files::path::Place::Volume(spot) => {
                    // SAFETY: as above.
                    let answer = $crate::runtime::inside::interposed(|| unsafe { $ours(&spot $(, $argument)*) });
                    $crate::runtime::answer::ToC::to_c(answer) as $result
                }
                $crate::files::path::Place::Host(host) => {
                    let path = host.pointer(path);
                    $crate::calls::of_host!($made, real(directory, path$(, $argument)*))
                }
            }
        }
    };
}
use of_path_at;
