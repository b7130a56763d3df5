//! Where processes of one `adit run` meet: they alone know a directory with the socket of the one that
//! has the volume.
//!
//! ```text
//! /dev/shm/adit-run-RANDOM/RANDOM/s    modes 0711, 0711 and 0666
//! ```
//! The first process that needs the volume opens it, and shares it there. The others are its
//! sessions, with the rights of their users. Nobody can list the outer directory but its owner, so
//! the inner name is known to processes that have the environment, or the memory, of such a
//! process. When the process that has the volume ends, a server of its own takes its place, for as
//! long as there are sessions: [`begin_successor`].
//!
//! Invariant: no process waits for a server that it can begin itself.

use crate::runtime::kernel;
use crate::runtime::message::say_once;
use adit_base::{identity, numbers};
use libc::{c_char, c_long};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Others pass through, and don't list.
const DIRECTORY_MODE: u32 = 0o711;
/// A process that finds the socket may connect: the volume's permission bits bind it then.
pub(crate) const SOCKET_MODE: u32 = 0o666;

/// The meeting place of this process.
pub(crate) struct Meeting {
    directory: PathBuf,
    pub(crate) socket: PathBuf,
    /// Of a server that is begun: the command `adit` and its arguments, the environment.
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

impl Meeting {
    /// `options`: the server's, behind those that are here.
    pub(crate) fn new(directory: PathBuf, adit: &OsStr, options: &[&OsStr]) -> Option<Meeting> {
        let socket = directory.join("s");
        let mode = format!("{SOCKET_MODE:o}");
        let begin = ["serve", "--while-used", "--mode", &mode, "--socket"].map(OsStr::new);
        let words = [adit].into_iter().chain(begin).chain([socket.as_os_str()]);
        let words = words.chain(options.iter().copied());
        let string = |word: &OsStr| CString::new(word.as_bytes()).ok();
        let arguments = words.map(string).collect::<Option<Vec<_>>>()?;
        let log = std::env::var_os("RUST_LOG").map(|log| [b"RUST_LOG=", log.as_bytes()].concat());
        let environment = log.and_then(|log| CString::new(log).ok());
        Some(Meeting {
            directory,
            socket,
            arguments,
            environment: environment.into_iter().collect(),
        })
    }

    /// Makes the directories, for a process that is about to share the volume there.
    pub(crate) fn make(&self) -> io::Result<()> {
        let outer = self.directory.parent().unwrap_or(Path::new("/"));
        make_own(outer)?;
        make_own(&self.directory)
    }

    /// Has the process that had the volume left sessions to the next one?
    fn is_left(&self) -> bool {
        self.directory.join("s.sessions").exists()
    }

    /// Has one of our processes the volume, or is one about to?
    pub(crate) fn is_there(&self) -> bool {
        self.socket.exists() || self.is_left()
    }

    /// Removes the directories, if nothing is there any more.
    pub(crate) fn leave(&self) {
        if std::fs::remove_dir(&self.directory).is_ok()
            && let Some(outer) = self.directory.parent()
        {
            let _ = std::fs::remove_dir(outer);
        }
    }

    /// This process has had the volume, and ends: others go on with a server, which also clears away
    /// what they leave.
    pub(crate) fn end(&self) {
        if self.is_left() {
            self.begin_successor()
        } else {
            self.leave()
        }
    }

    /// Begins a server for the sessions of one that has ended, unless another process does.
    pub(crate) fn begin_successor(&self) {
        // The server has the lock, too, until it serves or ends.
        self.begin_unless_locked("s.next", &self.arguments);
    }

    /// Begins a process that waits until the one that has the volume has ended, and then is the
    /// server of its sessions, unless there is such a process: before this user can't begin one
    /// any more.
    pub(crate) fn begin_guard(&self) {
        let mut arguments = self.arguments.clone();
        arguments.push(c"--when-left".to_owned());
        self.begin_unless_locked("s.guard", &arguments);
    }

    fn begin_unless_locked(&self, lock: &str, arguments: &[CString]) {
        // The image, and the directory, are root's then.
        if identity::is_root_below() {
            let group = rustix::process::getegid().as_raw();
            let _ = identity::acting_as(0, group, || self.begin_as_now(lock, arguments));
        } else {
            self.begin_as_now(lock, arguments);
        }
    }

    fn begin_as_now(&self, lock: &str, arguments: &[CString]) {
        // Those who can't have this file couldn't open the image either.
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open =
            || rustix::fs::open(self.directory.join(lock), flags, Mode::from_raw_mode(0o600));
        let Ok(lock) = numbers::high(open) else {
            return;
        };
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let begun = self.begin(&lock, arguments);
            if let Err(error) = begun {
                say_once!(
                    "can't start a server for the other processes that use the volume: {error}"
                );
            }
        }
    }

    /// Makes a process that is no child of the program's: the program doesn't hear of its end.
    fn begin(&self, lock: &OwnedFd, arguments: &[CString]) -> io::Result<()> {
        let pointers = |strings: &[CString]| -> Vec<*const c_char> {
            let pointers = strings.iter().map(|string| string.as_ptr());
            pointers.chain([std::ptr::null()]).collect()
        };
        let (arguments, environment) = (pointers(arguments), pointers(&self.environment));
        let null = || rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let null = numbers::high(null)?;
        let user = rustix::process::geteuid().as_raw() as usize;
        let (nowhere, held) = (null.as_raw_fd() as usize, lock.as_raw_fd() as usize);
        // No handler of the program runs in the new process.
        let all = [!0u64];
        let mut before = [0u64];
        let mask = |set: &[u64; 1], before: *mut u64| {
            let set = set.as_ptr() as usize;
            call(
                libc::SYS_rt_sigprocmask,
                [libc::SIG_SETMASK as usize, set, before as usize, 8],
            )
        };
        mask(&all, before.as_mut_ptr());
        // A copy of this process, without a signal at its end, which no plain `wait` sees.
        let child = call(libc::SYS_clone, [0]);
        if child == 0 {
            call(libc::SYS_setsid, [0; 4]);
            // One user, where this process is several.
            call(libc::SYS_setresuid, [user, user, user]);
            if call(libc::SYS_clone, [libc::SIGCHLD as usize]) == 0 {
                // The standard streams, and the lock.
                let lock = 3;
                (0..lock).for_each(|fd| _ = call(libc::SYS_dup3, [nowhere, fd]));
                call(libc::SYS_dup3, [held, lock]);
                call(libc::SYS_fcntl, [lock, libc::F_SETFD as usize]);
                call(libc::SYS_close_range, [lock + 1, u32::MAX as usize]);
                call(libc::SYS_chdir, [c"/".as_ptr() as usize]);
                let none = [0u64];
                mask(&none, std::ptr::null_mut());
                let (path, words) = (arguments[0] as usize, arguments.as_ptr() as usize);
                call(
                    libc::SYS_execve,
                    [path, words, environment.as_ptr() as usize],
                );
            }
            call(libc::SYS_exit_group, [0; 4]);
        }
        let waited = match child {
            1.. => call(libc::SYS_wait4, [child as usize, 0, libc::__WALL as usize]),
            failed => failed,
        };
        mask(&before, std::ptr::null_mut());
        match waited {
            0.. => Ok(()),
            failed => Err(io::Error::from_raw_os_error(-failed as i32)),
        }
    }
}

/// A directory of this user's, in which others can't change anything.
fn make_own(path: &Path) -> io::Result<()> {
    let made = std::fs::DirBuilder::new().mode(DIRECTORY_MODE).create(path);
    let is_new = match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        made => {
            made?;
            // The process's mask may have taken bits.
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(DIRECTORY_MODE))?;
            true
        }
    };
    let found = std::fs::symlink_metadata(path)?;
    let is_own = found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0;
    (is_new || found.is_dir() && is_own)
        .then_some(())
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EACCES))
}

/// Without errno, and past `syscall`, which is one of our functions.
fn call<const N: usize>(number: c_long, arguments: [usize; N]) -> c_long {
    // SAFETY: as the caller of this private function has it: addresses of things that are there.
    unsafe { kernel::call(number, arguments) }
}
