//! A volume that another process has open: how to use it all the same.
//!
//! A server listens at a socket with a name in the file system. `/proc` shows which socket that is,
//! to root and to the server's user. It is only read: nobody is connected to.

use adit_base::{Errno, Error};
use adit_block::lock_holder;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Adds the way out to the error of an opening, if the image or device is in use.
pub(crate) fn with_way_out(error: Error, address: &str) -> Error {
    if error.errno() != Errno::BUSY {
        return error;
    }
    let own = std::process::id();
    let Some(holder) = lock_holder(Path::new(address)).filter(|holder| *holder != own) else {
        return error;
    };
    let way_out = match sockets(holder) {
        _ if is_while_used(holder) => {
            "processes that `adit run` has started still use it; it is free when the last one has ended"
                .to_owned()
        }
        Some(sockets) => match sockets.first() {
            Some(socket) => format!("it serves the volume: open unix:{}", socket.display()),
            None => {
                format!("`adit serve {address} --socket SOCKET` shares a volume, as unix:SOCKET")
            }
        },
        None => "if that is a server, open unix:SOCKET of it".to_owned(),
    };
    Error::with(Errno::BUSY, format!("{}; {way_out}", error.what()))
}

/// Has a server the image or device that ends by itself, since it is there for the processes of a
/// program (`adit serve --while-used`)?
#[doc(hidden)]
pub fn is_soon_free(address: &str) -> bool {
    lock_holder(Path::new(address)).is_some_and(is_while_used)
}

/// How long a command or program waits for a volume that a process before it is closing.
#[doc(hidden)]
pub const PATIENCE: Duration = Duration::from_millis(500);
/// How long it waits while processes of another `adit run` have the volume, or have just ended: a
/// server that is there for them may wait 10 s in vain, and then has to write what is left.
const PATIENCE_WITH_PROGRAMS: Duration = Duration::from_secs(20);

/// True if a volume that is in use is worth another attempt to open it, after this wait.
#[doc(hidden)]
pub fn is_worth_waiting(address: &str, waited: Duration) -> bool {
    waited < PATIENCE || waited < PATIENCE_WITH_PROGRAMS && is_soon_free(address)
}

fn is_while_used(pid: u32) -> bool {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = words.split(|byte| *byte == 0);
    words.any(|word| word == b"--while-used")
}

/// Names of the sockets at which a process listens for sessions. None: it is another user's, and
/// `/proc` doesn't tell.
fn sockets(pid: u32) -> Option<Vec<PathBuf>> {
    let own: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .ok()?
        .filter_map(|entry| {
            fs::read_link(entry.ok()?.path())
                .ok()?
                .into_os_string()
                .into_string()
                .ok()
        })
        .collect();
    let directory = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
    let table = fs::read(format!("/proc/{pid}/net/unix")).ok()?;
    let table = String::from_utf8_lossy(&table);
    let listening = table.lines().filter_map(listening);
    let of_process = listening.filter(|(inode, _)| own.contains(&format!("socket:[{inode}]")));
    let paths = of_process.map(|(_, path)| directory.join(path));
    // Its directories may be others than ours.
    let is_here = |path: &PathBuf| fs::metadata(path).is_ok_and(|of| of.file_type().is_socket());
    Some(paths.filter(is_here).collect())
}

/// Inode and path of a socket for whole messages that listens, from a line of `/proc/net/unix`:
/// "ffff8d0f0c2d6a80: 00000002 00000000 00010000 0005 01 12345 /run/adit.sock".
fn listening(line: &str) -> Option<(&str, &str)> {
    let mut rest = line;
    let mut word = || {
        let (word, behind) = rest.trim_start().split_once(' ')?;
        rest = behind;
        Some(word)
    };
    let (flags, kind) = {
        let (_address, _references, _protocol) = (word()?, word()?, word()?);
        (word()?, word()?)
    };
    let (_state, inode) = (word()?, word()?);
    let is_door = flags == "00010000" && kind == "0005" && !rest.starts_with('@');
    is_door.then_some((inode, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_for_sessions_listens_for_whole_messages_and_has_a_path() {
        let begin = "ffff8d0f0c2d6a80: 00000002 00000000";
        let line = |rest: &str| format!("{begin} {rest}");
        let door = line("00010000 0005 01 12345 /run/with a space.sock");
        assert_eq!(listening(&door), Some(("12345", "/run/with a space.sock")));
        let short = line("00010000 0005 01   345 s");
        assert_eq!(listening(&short), Some(("345", "s")));
        for other in [
            "00010000 0005 01 12345 @adit/image/8:1/2/3",
            "00010000 0001 01 12345 /run/a.stream",
            "00000000 0005 03 12345 /run/accepted",
            "00010000 0005 01 12345",
        ] {
            assert_eq!(listening(&line(other)), None, "{other}");
        }
        assert_eq!(
            listening("Num       RefCount Protocol Flags    Type St Inode Path"),
            None
        );
    }
}
