//! Programs that are executed: `exec…` and `posix_spawn`.
//!
//! A program of the volume is executed as what [`program`] makes of it. Any other is the kernel's to
//! find. Either has the files that are left to it (`left`).
//! Invariant: a search of `PATH` looks where the C library looks, in its order, with its errno.

use super::actions::{program_path, spawned};
use crate::files::path::{self, Location};
use crate::files::{descriptors, sharing};
use crate::program::left::{Start, environ, staying, with_left};
use crate::program::words::entries;
use crate::program::{self, Found, ProgramArguments, Words};
use crate::runtime::answer::failed;
use crate::runtime::kernel;
use crate::runtime::real::{real, text};
use crate::volume::settings;
use adit::Errno;
use adit_fs::Follow;
use adit_interposed::interposed;
use libc::{c_char, c_int, c_long, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use std::ffi::{CStr, CString};

/// Where programs are looked for without a `PATH`.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";
const SHELL: &CStr = c"/bin/sh";

/// The errno of what failed; 0: it didn't.
type Failed = c_int;

/// Has the kernel execute a program in the place of this one, with the files that are left to it.
fn become_program(
    arguments: Words,
    environment: Words,
    execute: impl FnOnce(ProgramArguments) -> Failed,
) -> c_int {
    let execute = |environment| execute(ProgramArguments::new(arguments, environment));
    let errno = with_left(staying, environment, Start::Directly, execute);
    failed(Errno::from_raw(errno))
}

/// The kernel's `execve`, which returns only if it fails.
fn by_kernel(path: *const c_char, arguments: Words, environment: Words) -> Failed {
    sharing::before_exec();
    real!(execve(path => *const c_char, arguments => Words, environment => Words) -> c_int);
    Errno::last().raw()
}

/// Has `execute` start what is at a path. It gets a path for the kernel, and the arguments.
///
/// # Safety
/// `path` is NULL or a C string; what is given is as for `execve`.
unsafe fn at_path(
    path: *const c_char,
    given: ProgramArguments,
    execute: &dyn Fn(*const c_char, Words) -> Failed,
) -> Failed {
    // SAFETY: promised by the caller.
    let host = match unsafe { program::find(libc::AT_FDCWD, path, Follow::Yes, given) } {
        Ok(Found::Volume(program)) => return program.begin(execute),
        Ok(Found::Host(host)) => host,
        Err(errno) => return errno.raw(),
    };
    let path = host.pointer(path);
    let failed = execute(path, given.arguments);
    if failed != libc::ENOENT || settings().is_none() {
        return failed;
    }
    // SAFETY: promised by the caller.
    match unsafe { program::find_behind_host(path, given) } {
        Ok(program) => program.begin(execute),
        Err(errno) => errno.raw(),
    }
}

/// Has `execute` start what a search of `PATH` finds.
///
/// # Safety
/// `file` is NULL or a C string.
unsafe fn in_path(file: *const c_char, execute: &dyn Fn(&CStr) -> Failed) -> Failed {
    // SAFETY: promised by the caller.
    let name = unsafe { text(file) };
    if name.is_empty() {
        return libc::ENOENT;
    }
    if name.contains(&b'/') {
        // SAFETY: as above; it isn't NULL.
        return execute(unsafe { CStr::from_ptr(file) });
    }
    if name.len() > libc::FILENAME_MAX as usize {
        return libc::ENAMETOOLONG;
    }
    let (mut failed, mut is_denied) = (libc::ENOENT, false);
    for candidate in candidates(name) {
        failed = execute(&candidate);
        match failed {
            libc::EACCES => is_denied = true,
            libc::ENOENT | libc::ESTALE | libc::ENOTDIR | libc::ENODEV | libc::ETIMEDOUT => {}
            // A volume that this process can't have is passed over, as one that isn't there.
            libc::EBUSY | libc::EBADF => failed = libc::ENOENT,
            _ => return failed,
        }
    }
    if is_denied { libc::EACCES } else { failed }
}

/// The paths at which a program of this name may be.
fn candidates(name: &[u8]) -> Vec<CString> {
    // SAFETY: a C string; the program changes its environment in no other thread meanwhile.
    let path = unsafe { libc::getenv(c"PATH".as_ptr()) };
    let path = if path.is_null() {
        DEFAULT_PATH
    } else {
        // SAFETY: as above.
        unsafe { text(path) }
    };
    let directories = path.split(|byte| *byte == b':');
    let short = directories.filter(|directory| directory.len() < libc::PATH_MAX as usize);
    let candidate = |directory: &[u8]| {
        if directory.is_empty() {
            CString::new(name).ok()
        } else {
            CString::new([directory, b"/", name].concat()).ok()
        }
    };
    short.filter_map(candidate).collect()
}

/// `execvp` hands a file of no known format to the shell.
///
/// # Safety
/// As for `execve`.
fn at_path_or_by_shell(path: &CStr, given: ProgramArguments) -> Failed {
    let execute = |path, arguments| by_kernel(path, arguments, given.environment);
    // SAFETY: promised by the caller.
    let failed = unsafe { at_path(path.as_ptr(), given, &execute) };
    if failed != libc::ENOEXEC {
        return failed;
    }
    let mut arguments = vec![SHELL.as_ptr(), path.as_ptr()];
    // SAFETY: promised by the caller.
    arguments.extend(unsafe { entries(given.arguments) }.skip(1));
    arguments.push(std::ptr::null());
    by_kernel(SHELL.as_ptr(), arguments.as_ptr(), given.environment)
}

#[interposed]
unsafe extern "C" fn execve(path: *const c_char, arguments: Words, environment: Words) -> c_int {
    become_program(arguments, environment, |given| {
        let execute = |path, arguments| by_kernel(path, arguments, given.environment);
        // SAFETY: the program vouches for its arguments, as to the C library.
        unsafe { at_path(path, given, &execute) }
    })
}

#[interposed]
unsafe extern "C" fn execv(path: *const c_char, arguments: Words) -> c_int {
    // SAFETY: as for this function; the C library's variable.
    unsafe { execve(path, arguments, environ) }
}

#[interposed]
unsafe extern "C" fn execvpe(file: *const c_char, arguments: Words, environment: Words) -> c_int {
    become_program(arguments, environment, |given| {
        // SAFETY: the program vouches for its arguments, as to the C library.
        unsafe { in_path(file, &|path| at_path_or_by_shell(path, given)) }
    })
}

#[interposed]
unsafe extern "C" fn execvp(file: *const c_char, arguments: Words) -> c_int {
    // SAFETY: as for this function; the C library's variable.
    unsafe { execvpe(file, arguments, environ) }
}

#[interposed]
unsafe extern "C" fn fexecve(fd: c_int, arguments: Words, environment: Words) -> c_int {
    let (itself, flags) = (c"".as_ptr(), libc::AT_EMPTY_PATH);
    // SAFETY: as for this function.
    unsafe { execveat(fd, itself, arguments, environment, flags) }
}

/// The C library has it since 2.34.
#[interposed]
pub(crate) unsafe extern "C" fn execveat(
    directory: c_int,
    path: *const c_char,
    arguments: Words,
    environment: Words,
    flags: c_int,
) -> c_int {
    become_program(arguments, environment, |given| {
        // SAFETY: the program vouches for its arguments, as to the C library.
        unsafe { at_place(directory, path, flags, given) }
    })
}

/// # Safety
/// As for `execveat`.
unsafe fn at_place(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    given: ProgramArguments,
) -> Failed {
    let execute = |path, arguments| by_kernel(path, arguments, given.environment);
    let known = libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: promised by the caller.
    let is_number = unsafe { text(path) }.is_empty() && flags & libc::AT_EMPTY_PATH != 0;
    if flags & !known == 0 && is_number {
        // The file is let go before the program begins, which forgets what a child of vfork holds.
        let found = descriptors::get(directory)
            // SAFETY: promised by the caller.
            .map(|open| unsafe { program::find_open(directory, &open, given) });
        match found {
            Some(Ok(program)) => return program.begin(execute),
            Some(Err(errno)) => return errno.raw(),
            None => {}
        }
    } else if flags & !known == 0 {
        let follow = match flags & libc::AT_SYMLINK_NOFOLLOW {
            0 => Follow::Yes,
            _ => Follow::No,
        };
        // SAFETY: promised by the caller.
        match unsafe { program::find(directory, path, follow, given) } {
            Ok(Found::Volume(program)) => return program.begin(execute),
            Ok(Found::Host(path::HostPath::Absolute(path))) => {
                return execute(path.as_ptr(), given.arguments);
            }
            Ok(Found::Host(path::HostPath::Given)) => {}
            Err(errno) => return errno.raw(),
        }
    }
    let arguments = [
        directory as usize,
        path as usize,
        given.arguments as usize,
        given.environment as usize,
        flags as usize,
    ];
    // SAFETY: promised by the caller.
    let failed = unsafe { kernel::call(libc::SYS_execveat as c_long, arguments) };
    -failed as Failed
}

/// The functions with the arguments one after the other: puts those of registers in front of those
/// on the stack, so that they are an array, and calls the function with that.
macro_rules! listed {
    ($($name:ident: $with_array:ident;)*) => {$(
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, first: *const c_char) -> c_int {
            std::arch::naked_asm!(
                "pop r11", // where to return to
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push r11",
                "call {with_array}",
                "pop r11",
                "add rsp, 40",
                "push r11",
                "ret",
                with_array = sym $with_array,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, first: *const c_char) -> c_int {
            std::arch::naked_asm!(
                "sub sp, sp, 80",
                "stp x29, x30, [sp]",
                "stp x1, x2, [sp, 24]",
                "stp x3, x4, [sp, 40]",
                "stp x5, x6, [sp, 56]",
                "str x7, [sp, 72]",
                "add x1, sp, 24",
                "bl {with_array}",
                "ldp x29, x30, [sp]",
                "add sp, sp, 80",
                "ret",
                with_array = sym $with_array,
            )
        }
    )*};
}
listed!(execl: execv; execlp: execvp; execle: with_environment_behind;);

/// `execle`: the environment is the argument behind the NULL.
unsafe extern "C" fn with_environment_behind(path: *const c_char, arguments: Words) -> c_int {
    let mut end = arguments;
    // SAFETY: as for this function: there is a NULL, and an argument behind it.
    unsafe {
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, arguments, *end.add(1).cast())
    }
}

/// What a list of actions, and attributes, say of a child.
#[derive(Clone, Copy)]
struct Child {
    number: *mut pid_t,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
}

impl Child {
    /// Has `execute` start it, with the files that are left to it.
    fn begin(
        self,
        arguments: Words,
        environment: Words,
        execute: impl FnOnce(ProgramArguments) -> Failed,
    ) -> Failed {
        sharing::give_back();
        let numbers = || spawned(self.actions);
        let execute = |environment| execute(ProgramArguments::new(arguments, environment));
        with_left(numbers, environment, Start::Directly, execute)
    }

    /// # Safety
    /// `path` is a C string; what is given is as for `posix_spawn`.
    unsafe fn at_path(self, path: *const c_char, given: ProgramArguments) -> Failed {
        let execute = |path, arguments| {
            real!(posix_spawn(
                self.number => *mut pid_t, path => *const c_char,
                self.actions => *const posix_spawn_file_actions_t,
                self.attributes => *const posix_spawnattr_t,
                arguments => Words, given.environment => Words,
            ) -> c_int)
        };
        // SAFETY: promised by the caller.
        unsafe {
            let from = program_path(self.actions, path);
            at_path(from.pointer(), given.called(path), &execute)
        }
    }
}

#[interposed]
unsafe extern "C" fn posix_spawn(
    number: *mut pid_t,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: Words,
    environment: Words,
) -> c_int {
    let child = Child {
        number,
        actions,
        attributes,
    };
    child.begin(arguments, environment, |given| {
        // SAFETY: the program vouches for its arguments, as to the C library.
        unsafe { child.at_path(path, given) }
    })
}

/// Does a search for a program come through the volume?
fn may_be_in_volume(file: *const c_char) -> bool {
    // SAFETY: NULL or a C string, says the program.
    let name = unsafe { text(file) };
    let is_ours = |path: &CString| {
        // SAFETY: a C string.
        let place = unsafe { path::find(libc::AT_FDCWD, path.as_ptr()) };
        matches!(place, Location::Volume(_))
    };
    settings().is_some() && (name.contains(&b'/') || candidates(name).iter().any(is_ours))
}

#[interposed]
unsafe extern "C" fn posix_spawnp(
    number: *mut pid_t,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: Words,
    environment: Words,
) -> c_int {
    let child = Child {
        number,
        actions,
        attributes,
    };
    child.begin(arguments, environment, |given| {
        if !may_be_in_volume(file) {
            return real(
                number,
                file,
                actions,
                attributes,
                arguments,
                given.environment,
            );
        }
        // SAFETY: the program vouches for its arguments, as to the C library.
        unsafe { in_path(file, &|path| child.at_path(path.as_ptr(), given)) }
    })
}
