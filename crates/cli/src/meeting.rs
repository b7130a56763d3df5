//! The end of a meeting place of `adit run`: of the directory in which the processes of a program
//! find the one that has the volume (docs/decisions/0031).

use adit::{Errno, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::retry_on_intr;
use rustix::process::{PidfdFlags, pidfd_open};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// How sure it is that a process knows a place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Known {
    No,
    /// It has the library, and has written over its environment (PostgreSQL does).
    Perhaps,
    Yes,
}

/// Is there a process that knows the place at least so surely? Processes of other PID namespaces are
/// not seen.
pub(crate) fn is_known(place: &Path, at_least: Known) -> bool {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return true;
    };
    let processes = entries.flatten().map(|entry| entry.path());
    let is_process = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap_or(OsStr::new(""));
        name.as_bytes().iter().all(u8::is_ascii_digit)
    };
    let own = std::process::id().to_string();
    let mut others = processes.filter(|path| is_process(path) && !path.ends_with(&own));
    others.any(|process| knows(&process, place) >= at_least)
}

fn knows(process: &Path, place: &Path) -> Known {
    const NAME: &[u8] = b"ADIT_RUN_MEET=";
    // That of another user's process can't be read: this user's processes have no such children.
    let Ok(environment) = std::fs::read(process.join("environ")) else {
        return Known::No;
    };
    let mut variables = environment.split(|byte| *byte == 0);
    match variables.find_map(|variable| variable.strip_prefix(NAME)) {
        Some(known) if known == place.as_os_str().as_bytes() => Known::Yes,
        Some(_) => Known::No,
        None => {
            let mapped = std::fs::read_to_string(process.join("maps"));
            match mapped.is_ok_and(|mapped| mapped.contains("/libadit_preload.so")) {
                true => Known::Perhaps,
                false => Known::No,
            }
        }
    }
}

/// Waits until the process that has the volume has ended. False: there is nothing to go on with, or
/// another process does. True: nobody else may, for as long as this process lives.
pub(crate) fn is_left_by_another(socket: &Path) -> Result<bool> {
    let peer = |stream| Ok(rustix::net::sockopt::socket_peercred(&stream)?.pid);
    let owner = UnixStream::connect(socket).and_then(peer);
    // If none answers, it has ended.
    if let Ok(owner) = owner
        && let Ok(process) = pidfd_open(owner, PidfdFlags::empty())
    {
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        retry_on_intr(|| poll(&mut ended, None))
            .map_err(|error| Errno::from_raw(error.raw_os_error()))?;
    }
    let place = socket.parent().unwrap_or(Path::new("/"));
    if !place.join("s.sessions").exists() {
        leave(place);
        return Ok(false);
    }
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let next = rustix::fs::open(place.join("s.next"), flags, Mode::from_raw_mode(0o600));
    let is_first = next.is_ok_and(|next: OwnedFd| {
        let locked = flock(&next, FlockOperation::NonBlockingLockExclusive).is_ok();
        std::mem::forget(next);
        locked
    });
    Ok(is_first)
}

/// Removes what is there, unless somebody can still come.
pub(crate) fn leave(place: &Path) {
    if is_known(place, Known::Perhaps) {
        return;
    }
    for name in ["s.next", "s.guard", "s.sessions", "s.sessions.new"] {
        let _ = std::fs::remove_file(place.join(name));
    }
    let _ = std::fs::remove_dir_all(place.join("s.nodes"));
    let _ = std::fs::remove_dir(place);
    if let Some(above) = place.parent() {
        let _ = std::fs::remove_dir(above);
    }
}
