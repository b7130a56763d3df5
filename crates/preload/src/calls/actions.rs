//! Lists of what `posix_spawn` does in a child before the program begins.
//!
//! The C library does it past us, so it is noted here: which of the volume's numbers the program has,
//! and from where it is looked for. A working directory in the volume is a removed one of the host
//! ([`nowhere`]), which is made when the action is added.
//! Limit: files of the volume that the C library is to open are the host's.

use crate::files::canonical::without_ups;
use crate::files::path::{self, Location};
use crate::files::{descriptors, nowhere};
use crate::program::left::{Numbers, going_on};
use crate::runtime::answer::{Answer, errno};
use crate::runtime::inside;
use crate::runtime::real::{self, real, text};
use crate::runtime::renewed::{InChild, Renewed};
use crate::volume::volume;
use adit::{Errno, FileKind};
use adit_base::fork::Registered;
use adit_base::numbers;
use adit_fs::Follow;
use adit_interposed::interposed;
use libc::{c_char, c_int, c_void, posix_spawn_file_actions_t};
use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;

/// What is noted of a list.
#[derive(Clone, Default)]
struct Actions {
    /// (old, new) for a duplicate, (old, -1) for a number that is closed.
    numbers: Vec<(c_int, c_int)>,
    /// The last working directory, as far as it is known by its path.
    directory: Option<Vec<u8>>,
    /// Removed directories, to which the child goes.
    held: Vec<Arc<Registered<OwnedFd>>>,
}

/// By the address of the program's own list.
static ACTIONS: Renewed<Option<HashMap<usize, Actions>>> = Renewed::new(None);

/// In a thread that forks.
pub(crate) fn at_fork() -> InChild {
    ACTIONS.at_fork()
}

fn note(actions: *const posix_spawn_file_actions_t, change: impl FnOnce(&mut Actions)) {
    let mut noted = ACTIONS.lock();
    let noted = noted.get_or_insert_default();
    change(noted.entry(actions as usize).or_default());
}

fn note_action(actions: *const posix_spawn_file_actions_t, old: c_int, new: c_int) {
    note(actions, |of| of.numbers.push((old, new)));
}

fn forget_actions(actions: *const posix_spawn_file_actions_t) {
    let mut noted = ACTIONS.lock();
    let forgotten = noted.as_mut().and_then(|of| of.remove(&(actions as usize)));
    drop(noted);
    drop(forgotten);
}

#[interposed]
unsafe extern "C" fn posix_spawn_file_actions_adddup2(
    actions: *mut posix_spawn_file_actions_t,
    old: c_int,
    new: c_int,
) -> c_int {
    note_action(actions, old, new);
    real(actions, old, new)
}

#[interposed]
unsafe extern "C" fn posix_spawn_file_actions_addclose(
    actions: *mut posix_spawn_file_actions_t,
    fd: c_int,
) -> c_int {
    note_action(actions, fd, -1);
    real(actions, fd)
}

#[interposed]
unsafe extern "C" fn posix_spawn_file_actions_init(
    actions: *mut posix_spawn_file_actions_t,
) -> c_int {
    forget_actions(actions);
    real(actions)
}

#[interposed]
unsafe extern "C" fn posix_spawn_file_actions_destroy(
    actions: *mut posix_spawn_file_actions_t,
) -> c_int {
    forget_actions(actions);
    real(actions)
}

/// The numbers of a child that `posix_spawn` makes.
pub(super) fn spawned(actions: *const posix_spawn_file_actions_t) -> Numbers {
    let noted = ACTIONS.read();
    let noted = noted.as_ref().and_then(|of| of.get(&(actions as usize)));
    let mut numbers = going_on();
    for (old, new) in noted.iter().flat_map(|of| &of.numbers) {
        let before = numbers.iter().find(|(fd, _)| fd == old);
        // A duplicate stays, also of a number that doesn't.
        let before = before.map(|(_, open)| open.clone());
        let open = before.or_else(|| descriptors::get(*old).map(|open| open.clone()));
        numbers.retain(|(fd, _)| fd != if *new < 0 { old } else { new });
        if let (Some(open), 0..) = (open, *new) {
            numbers.push((*new, open));
        }
    }
    numbers
}

// ------------------------------------------------------------------------ the working directory

/// A path for a program that is to be spawned.
pub(super) enum ProgramPath {
    Given(*const c_char),
    /// From the working directory that the child will have.
    Joined(CString),
}

impl ProgramPath {
    pub(super) fn pointer(&self) -> *const c_char {
        match self {
            ProgramPath::Given(path) => *path,
            ProgramPath::Joined(path) => path.as_ptr(),
        }
    }
}

/// Where the child looks for this path.
///
/// # Safety
/// `path` is NULL or a C string.
pub(super) unsafe fn program_path(
    actions: *const posix_spawn_file_actions_t,
    path: *const c_char,
) -> ProgramPath {
    // SAFETY: promised by the caller.
    let name = unsafe { text(path) };
    match directory_of(actions) {
        Some(directory) if !name.is_empty() && !name.starts_with(b"/") => {
            let joined = CString::new([&directory[..], b"/", name].concat());
            joined.map_or(ProgramPath::Given(path), ProgramPath::Joined)
        }
        _ => ProgramPath::Given(path),
    }
}

fn directory_of(actions: *const posix_spawn_file_actions_t) -> Option<Vec<u8>> {
    let noted = ACTIONS.read();
    noted.as_ref()?.get(&(actions as usize))?.directory.clone()
}

/// The C library has it since 2.29.
macro_rules! since_2_29 {
    ($name:ident($($argument:expr => $type:ty),*)) => {{
        static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
        const NAME: &std::ffi::CStr =
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name has no zeroes"),
            };
        if real::find(&FOUND, NAME).is_null() {
libc::ENOSYS
} else {
real!($name($($argument => $type),*) -> c_int)
}
    }};
}

/// Has the child go to a directory of the volume.
fn enter(actions: *mut posix_spawn_file_actions_t, shown: Vec<u8>) -> Answer<c_int> {
    let held = numbers::high(|| {
        let removed = nowhere::removed(&shown).ok_or(Errno::NOENT)?;
        Ok(removed.into_fd())
    })?;
    let fd = held.as_raw_fd();
    let failed = since_2_29!(posix_spawn_file_actions_addfchdir_np(
        actions => *mut posix_spawn_file_actions_t, fd => c_int
    ));
    if failed == 0 {
        note(actions, |of| {
            of.directory = Some(shown);
            of.held.push(Arc::new(held));
        });
    }
    Ok(failed)
}

#[interposed]
unsafe extern "C" fn posix_spawn_file_actions_addchdir_np(
    actions: *mut posix_spawn_file_actions_t,
    path: *const c_char,
) -> c_int {
    // SAFETY: the program vouches for its arguments, as to the C library.
    let from = unsafe { program_path(actions, path) };
    // SAFETY: as above.
    match unsafe { path::find(libc::AT_FDCWD, from.pointer()) } {
        Location::Volume(spot) => {
            let shown = inside::call(|| {
                let found = volume()?.stat_at(spot.at(), Follow::Yes).map_err(errno)?;
                match found.kind {
                    FileKind::Directory => Ok(without_ups(&spot.shown)),
                    _ => Err(Errno::NOTDIR),
                }
            });
            let entered = shown.and_then(|shown| enter(actions, shown));
            entered.unwrap_or_else(|errno| errno.raw())
        }
        Location::Host(host) => {
            let path = host.pointer(from.pointer());
            // SAFETY: as above.
            let shown = unsafe { text(path) };
            // A path from the working directory of this process is not looked up.
            let shown = shown.starts_with(b"/").then(|| shown.to_vec());
            note(actions, |of| of.directory = shown);
            since_2_29!(posix_spawn_file_actions_addchdir_np(
                actions => *mut posix_spawn_file_actions_t, path => *const c_char
            ))
        }
    }
}

#[interposed]
unsafe extern "C" fn posix_spawn_file_actions_addfchdir_np(
    actions: *mut posix_spawn_file_actions_t,
    fd: c_int,
) -> c_int {
    match descriptors::get(fd).map(|open| (open.kind, open.shown.clone())) {
        Some((FileKind::Directory, shown)) => {
            enter(actions, shown).unwrap_or_else(|errno| errno.raw())
        }
        // The child finds no directory.
        _ => {
            note(actions, |of| of.directory = None);
            since_2_29!(posix_spawn_file_actions_addfchdir_np(
                actions => *mut posix_spawn_file_actions_t, fd => c_int
            ))
        }
    }
}
