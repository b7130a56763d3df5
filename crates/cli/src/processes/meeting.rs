//! The end of a meeting place of `adit run`: of the directory in which the processes of a program
//! find the one that has the volume (docs/decisions/0031).

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How sure it is that a process knows a place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Certainty {
    No,
    /// It has the library, and has written over its environment (PostgreSQL does).
    Perhaps,
    Yes,
}

/// Is there a process that knows the place at least so surely? Processes of other PID namespaces
/// are not seen.
pub(crate) fn is_known(place: &Path, at_least: Certainty) -> bool {
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

fn knows(process: &Path, place: &Path) -> Certainty {
    const NAME: &[u8] = b"ADIT_RUN_MEET=";
    // That of another user's process can't be read: this user's processes have no such children.
    let Ok(environment) = std::fs::read(process.join("environ")) else {
        return Certainty::No;
    };
    let variables = || environment.split(|byte| *byte == 0);
    match variables().find_map(|variable| variable.strip_prefix(NAME)) {
        Some(known) if known == place.as_os_str().as_bytes() => Certainty::Yes,
        Some(_) => Certainty::No,
        // A program of a server's volume.
        None if variables().any(|variable| variable.starts_with(b"ADIT_RUN_VOLUME=")) => {
            Certainty::No
        }
        None => {
            let mapped = std::fs::read_to_string(process.join("maps"));
            if mapped.is_ok_and(|mapped| mapped.contains("/libadit_preload.so")) {
                Certainty::Perhaps
            } else {
                Certainty::No
            }
        }
    }
}

/// Between two attempts to reach the process that has the volume: twice as long each time.
const LOOK: Duration = Duration::from_millis(10);
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Waits until the process that has the volume has ended, whichever that is. True: it has left
/// sessions, and no other server may begin while this process lives. False: no process knows the
/// place any more.
pub(crate) fn is_left_by_another(socket: &Path) -> bool {
    let place = socket.parent().unwrap_or(Path::new("/"));
    let mut pause = LOOK;
    loop {
        match connect(place) {
            Ok(connection) => {
                let begin = Instant::now();
                // A server keeps a connection that asks for nothing while it lives and has room.
                let mut ended = [PollFd::new(&connection, PollFlags::IN)];
                let _ = retry_on_intr(|| poll(&mut ended, None));
                if begin.elapsed() > LOOK_MAX {
                    pause = LOOK;
                }
            }
            // Others are shortages of this process's own.
            Err(Errno::NOENT | Errno::CONNREFUSED)
                if place.join("s.sessions").exists() && is_first(place) =>
            {
                return true;
            }
            Err(_) if !is_known(place, Certainty::Yes) => {
                leave(place);
                return false;
            }
            Err(_) => {}
        }
        std::thread::sleep(pause);
        pause = LOOK_MAX.min(2 * pause);
    }
}

/// Connects to the socket in this directory, whose path may be too long for an address.
fn connect(place: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(place, flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}/s", directory.as_raw_fd());
    let kind = SocketType::SEQPACKET;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path.as_str())?)?;
    Ok(socket)
}

/// Does no other process begin a server there?
fn is_first(place: &Path) -> bool {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let next = rustix::fs::open(place.join("s.next"), flags, Mode::from_raw_mode(0o600));
    next.is_ok_and(|next| {
        let locked = flock(&next, FlockOperation::NonBlockingLockExclusive).is_ok();
        if locked {
            // Until this process ends.
            std::mem::forget(next);
        }
        locked
    })
}

/// Removes what is there, unless somebody can still come.
pub(crate) fn leave(place: &Path) {
    if is_known(place, Certainty::Perhaps) {
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
