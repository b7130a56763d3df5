//! Files that a process leaves to another one, and that a server keeps meanwhile.

use adit_base::fork::Registered;
use adit_base::{Result, from_rustix, numbers};
use adit_wire::handshake::{Key, Opening};
use std::os::fd::OwnedFd;

/// A session's files, kept by a server for this process.
pub(super) struct Inherited {
    /// The server keeps the files while this is open.
    pub(super) socket: Registered<OwnedFd>,
    pub(super) key: Key,
    /// Names the server to ask if that one has gone.
    pub(super) opening: Opening,
    /// The user whose tokens the files have.
    pub(super) uid: u32,
}

/// A session's files, kept by a server for a process that has not taken them yet.
pub(super) struct Leaving {
    /// The server keeps the files while this is open. A child forked by another thread closes it.
    pub(super) socket: Registered<OwnedFd>,
    pub(super) key: Key,
    pub(super) opening: Opening,
    /// The user whose tokens the files have.
    pub(super) uid: u32,
}

impl Leaving {
    /// The process that this thread forks has it.
    pub(super) fn into_child(self) -> Inherited {
        Inherited {
            socket: Registered::kept(self.socket.into_inner()),
            key: self.key,
            opening: self.opening,
            uid: self.uid,
        }
    }
}

impl Inherited {
    pub(super) fn again(&self) -> Result<Leaving> {
        Ok(Leaving {
            socket: numbers::duplicate(&self.socket).map_err(from_rustix)?,
            key: self.key,
            opening: self.opening,
            uid: self.uid,
        })
    }
}
