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

/// What a row of the tables below has a call done by: `ours`, or `{ours(value)}`, which gets the
/// value before the arguments.
macro_rules! ours {
    ({$ours:ident($($value:expr),*)}, $of:expr $(, $argument:expr)*) => {
        $ours($of $(, $value)* $(, $argument)*)
    };
    ($ours:ident, $of:expr $(, $argument:expr)*) => {
        $ours($of $(, $argument)*)
    };
}
use ours;

/// Functions whose first argument is a descriptor: `ours` gets the open file instead.
macro_rules! of_descriptor {
    ($($($name:ident)|+: $arguments:tt -> $result:ty = $ours:tt;)*) => {
        $($($crate::calls::of_descriptor!(@ $name $arguments $result, $ours);)+)*
    };
    (@ $name:ident ($($argument:ident: $type:ty),*) $result:ty, $ours:tt) => {
        #[adit_interposed::interposed]
        pub(crate) unsafe extern "C-unwind" fn $name(fd: libc::c_int $(, $argument: $type)*) -> $result {
            match $crate::files::descriptors::get(fd) {
                Some(open) => {
                    // SAFETY: the program vouches for its arguments, as to the C library.
                    #[allow(unused_unsafe)]
                    let ours = || unsafe { $crate::calls::ours!($ours, &open $(, $argument)*) };
                    let answer = $crate::runtime::inside::interposed(ours);
                    drop(open);
                    $crate::runtime::inside::cancel_if_asked();
                    $crate::runtime::answer::ToC::to_c(answer)
                }
                None => real(fd $(, $argument)*),
            }
        }
    };
}
use of_descriptor;

/// Functions whose first argument is a path: `ours` gets the place in the volume instead. The
/// functions of a table that begins with `made` make numbers; that function is told of the host's.
macro_rules! of_path {
    (made $made:path; $($rows:tt)*) => {
        $crate::calls::of_path!(@ [$made] $($rows)*);
    };
    (@ $made:tt $($($name:ident)|+: $arguments:tt -> $result:ty = $ours:tt;)*) => {
        $($($crate::calls::of_place!(
            $name (path: *const libc::c_char) $arguments () $result, $ours,
            path in $crate::files::path::find(libc::AT_FDCWD, path), $made
        );)+)*
    };
    ($($rows:tt)*) => {
        $crate::calls::of_path!(@ [] $($rows)*);
    };
}
use of_path;

/// Functions whose first arguments are the descriptor of a directory and a path.
macro_rules! of_path_at {
    (made $made:path; $($rows:tt)*) => {
        $crate::calls::of_path_at!(@ [$made] $($rows)*);
    };
    (@ $made:tt $($($name:ident)|+: $arguments:tt -> $result:ty = $ours:tt;)*) => {
        $($($crate::calls::of_place!(
            $name (directory: libc::c_int, path: *const libc::c_char) $arguments () $result,
            $ours, path in $crate::files::path::find(directory, path), $made
        );)+)*
    };
    ($($rows:tt)*) => {
        $crate::calls::of_path_at!(@ [] $($rows)*);
    };
}
use of_path_at;

/// Functions that also have flags, `AT_EMPTY_PATH` among them, behind the arguments that are named.
macro_rules! of_path_flagged {
    ($($name:ident: $arguments:tt -> $result:ty = $ours:tt;)*) => {
        $($crate::calls::of_place!(
            $name (directory: libc::c_int, path: *const libc::c_char) $arguments
            (flags: libc::c_int) $result, $ours,
            path in $crate::files::path::find_named(directory, path, flags).location(), []
        );)*
    };
}
use of_path_flagged;

/// One function of the tables above.
macro_rules! of_place {
    (
        $name:ident ($($first:ident: $first_type:ty),*) ($($argument:ident: $type:ty),*)
        ($($last:ident: $last_type:ty)?) $result:ty, $ours:tt,
        $path:ident in $find:expr, $made:tt
    ) => {
        #[adit_interposed::interposed]
        pub(crate) unsafe extern "C" fn $name(
            $($first: $first_type,)* $($argument: $type,)* $($last: $last_type)?
        ) -> $result {
            // SAFETY: the program vouches for its arguments, as to the C library.
            match unsafe { $find } {
                $crate::files::path::Location::Volume(spot) => {
                    // SAFETY: as above.
                    #[allow(unused_unsafe)]
                    let ours = || unsafe {
                        $crate::calls::ours!($ours, &spot $(, $argument)* $(, $last)?)
                    };
                    let answer = $crate::runtime::inside::interposed(ours);
                    $crate::runtime::answer::ToC::to_c(answer)
                }
                $crate::files::path::Location::Host(host) => {
                    let $path = host.pointer($path);
                    let real = || real($($first,)* $($argument,)* $($last)?);
                    $crate::calls::of_place!(@ real, $made)
                }
            }
        }
    };
    (@ $real:ident, []) => { $real() };
    (@ $real:ident, [$made:path]) => { $made($crate::runtime::real::of_program!($real())) };
}
use of_place;
