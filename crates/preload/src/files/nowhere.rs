//! Where the kernel thinks that the process is, while its working directory is in the volume: in a
//! directory that was removed.
//!
//! A program that is started from there (`system("rm *")`, `make`) is in that directory, too. Were it
//! any other one, what the program does would happen to files of the host. In a removed directory
//! there are no files, and none can be made: ENOENT. Its name was the path in the volume, so a
//! program that this library is in goes on there.
//!
//! ```text
//! chdir("/adit/data")  ─►  mkdir /dev/shm/adit-cwd-Xk3f9a/adit/data, chdir, rmdir
//! next program         ◄─  /proc/self/cwd -> /dev/shm/adit-cwd-Xk3f9a/adit/data (deleted)
//! ```

use crate::runtime::real::{link_target, real};
use libc::{c_char, c_int, mode_t};
use std::ffi::CString;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// In memory first: a file system with a journal may wait for its disk to remove a directory.
const PLACES: [&str; 3] = ["/dev/shm", "/tmp", "/var/tmp"];
const NAME: &str = "/adit-cwd-";
/// Behind the name.
const RANDOM: &str = "XXXXXX";
const REMOVED: &[u8] = b" (deleted)";

/// Goes to a removed directory that had this path. Should there be no place for it, to one where
/// nothing can be made, which the next program doesn't recognize.
pub(crate) fn go(shown: &[u8]) {
    if let Some(directory) = removed(shown) {
        let directory = directory.as_raw_fd();
        if real!(fchdir(directory => c_int) -> c_int) == 0 {
            return;
        }
    }
    let directory = c"/proc/self/fdinfo".as_ptr();
    if real!(chdir(directory => *const c_char) -> c_int) != 0 {
        crate::runtime::message::say(format_args!(
            "programs started from {} will be in the host's working directory",
            String::from_utf8_lossy(shown)
        ));
    }
}

/// A removed directory that had this path.
pub(crate) fn removed(shown: &[u8]) -> Option<Directory> {
    PLACES.iter().find_map(|place| removed_from(place, shown))
}

/// A directory of the host, closed past us: a child of vfork has numbers of its own.
pub(crate) struct Directory(c_int);

impl Directory {
    pub(crate) fn into_fd(self) -> OwnedFd {
        let fd = ManuallyDrop::new(self).0;
        // SAFETY: made by `open`, and nobody else has it.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }
}

impl AsRawFd for Directory {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let fd = self.0;
        real!(close(fd => c_int) -> c_int);
    }
}

fn open(directory: c_int, name: *const c_char) -> Option<Directory> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let fd = real!(openat(
        directory => c_int, name => *const c_char, flags => c_int, 0 => mode_t
    ) -> c_int);
    (fd >= 0).then_some(Directory(fd))
}

fn removed_from(place: &str, shown: &[u8]) -> Option<Directory> {
    let template = CString::new([place, NAME, RANDOM].concat()).expect("no zeroes");
    let template = template.into_raw();
    let made = real!(mkdtemp(template => *mut c_char) -> *mut c_char);
    // SAFETY: from `into_raw`, and as long as before.
    let top = unsafe { CString::from_raw(template) };
    if made.is_null() {
        return None;
    }
    // What was made, each with its directory.
    let mut directories = vec![open(libc::AT_FDCWD, top.as_ptr())];
    let mut names = Vec::new();
    let components = shown.split(|byte| *byte == b'/');
    for name in components.filter(|name| !name.is_empty()) {
        let (Some(Some(directory)), Ok(name)) = (directories.last(), CString::new(name)) else {
            break;
        };
        let (directory, text) = (directory.as_raw_fd(), name.as_ptr());
        let mode: mode_t = 0o700;
        real!(mkdirat(directory => c_int, text => *const c_char, mode => mode_t) -> c_int);
        directories.push(open(directory, text));
        names.push(name);
    }
    for (name, directory) in names.iter().zip(&directories).rev() {
        let Some(directory) = directory.as_ref().map(AsRawFd::as_raw_fd) else {
            continue;
        };
        let (name, remove) = (name.as_ptr(), libc::AT_REMOVEDIR);
        real!(unlinkat(directory => c_int, name => *const c_char, remove => c_int) -> c_int);
    }
    real!(rmdir(top.as_ptr() => *const c_char) -> c_int);
    directories.pop().flatten()
}

/// The path of the working directory in the volume, if this program was started in one.
pub(crate) fn inherited() -> Option<Vec<u8>> {
    let text = link_target(c"/proc/self/cwd")?;
    let text = text.strip_suffix(REMOVED)?;
    let shown = PLACES.iter().find_map(|place| {
        let name = text.strip_prefix(place.as_bytes())?;
        name.strip_prefix(NAME.as_bytes())
    })?;
    shown.get(RANDOM.len()..).map(<[u8]>::to_vec)
}
