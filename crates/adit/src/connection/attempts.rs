//! Attempts to reach a server, or the next one: their pauses, the trusted users, a server begun
//! here.

use adit_base::simulation;
use adit_base::{Errno, Error, Result};
use adit_wire::socket::Peer;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(5);
pub(super) const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Attempts to reach a server, with pauses between them.
pub(super) struct Attempts {
    until: Instant,
    pause: Duration,
}

impl Attempts {
    pub(super) fn for_a_server(limit: Duration) -> Attempts {
        Attempts {
            until: Instant::now() + limit,
            pause: PAUSE,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Waits for the next attempt; false: it is over.
    pub(super) fn goes_on(&mut self) -> bool {
        let goes_on = !self.is_over();
        if goes_on && !simulation::pause() {
            std::thread::sleep(self.pause);
            self.pause = (2 * self.pause).min(PAUSE_MAX);
        }
        goes_on
    }
}

/// Begins the next server, in a process that can: a session whose server has ended calls it before
/// each attempt to connect, on any thread.
pub(super) static SUCCESSOR: OnceLock<fn()> = OnceLock::new();

/// Sets how this process begins the next server for its sessions, once. From then on it trusts
/// servers of this user and of root alone (`PERM`).
#[cfg(feature = "internal")]
pub fn set_successor(begin: fn()) {
    let _ = SUCCESSOR.set(begin);
}

/// May the process at the other end have the volume, for this one?
pub(super) fn check_server(socket: &OwnedFd) -> Result<()> {
    if SUCCESSOR.get().is_none() {
        return Ok(());
    }
    let uid = Peer::of(socket.as_fd())?.uid;
    let users = [
        0,
        rustix::process::getuid().as_raw(),
        rustix::process::geteuid().as_raw(),
    ];
    if users.contains(&uid) {
        Ok(())
    } else {
        let what = format!("trust user {uid}, who serves the volume to processes of others");
        Err(Error::with(Errno::PERM, what))
    }
}

/// May it be another answer in a moment?
pub(super) fn may_pass(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT
            | Errno::CONNREFUSED
            | Errno::AGAIN
            // Between the making of a socket and the setting of its mode.
            | Errno::ACCESS
            | Errno::PIPE
            | Errno::CONNRESET
            | Errno::TIMEDOUT
            | Errno::MFILE
            | Errno::NFILE
            | Errno::NOMEM
            | Errno::INTR
    )
}
