//! The onlooker's side: finding the process that has a volume open, and asking it.

use super::message::{
    ANSWER_BYTES_MAX, Answer, Greeting, Hello, REQUEST_BYTES_MAX, Request, VERSION,
};
use super::socket::{Identity, connect_to};
use adit_base::{Errno, Error, Result};
use adit_block::lock_holder;
use adit_wire::socket::{Peer, own_uid, receive_message, send_message};
use adit_wire::value::{OwnedValue, Value};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// An answer takes one operation of the owner; one that takes longer than this won't come.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A process that has a volume open.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Owner {
    /// Its process id; `None` if it is in another pid namespace.
    pub pid: Option<u32>,
    /// Name of its program, as `ps -o comm` shows it; empty if unknown.
    pub command: String,
}

impl From<Peer> for Owner {
    fn from(peer: Peer) -> Owner {
        Owner {
            pid: peer.pid,
            command: peer.pid.map(command).unwrap_or_default(),
        }
    }
}

/// Why there is no answer.
pub(super) enum Lost {
    /// The owner has closed the volume, or ended.
    Ended,
    Failed(Error),
}

/// A connection to the owner.
pub(super) struct Session {
    socket: OwnedFd,
    owner: Owner,
    buffer: Vec<u8>,
}

impl Session {
    /// Connects to the process that has the volume open for writing; None when it doesn't listen.
    pub(super) fn begin(address: &str) -> Result<Option<Session>> {
        let identity = Identity::of(address)?;
        for name in identity.names() {
            // What can't be connected to isn't there any more, or nobody's.
            let Ok(socket) = connect_to(&name, ANSWER_MAX) else {
                continue;
            };
            let peer = Peer::of(socket.as_fd())?;
            if is_owner(&peer, address, &identity) {
                return Session::greet(socket, peer).map(Some);
            }
        }
        Ok(None)
    }

    fn greet(socket: OwnedFd, peer: Peer) -> Result<Session> {
        let mut session = Session {
            socket,
            owner: peer.into(),
            buffer: vec![0; ANSWER_BYTES_MAX],
        };
        match session.receive::<Greeting>() {
            Ok(Greeting::Hello(hello)) if !hello.is_adit() => Err(Errno::PROTO.into()),
            Ok(Greeting::Hello(hello)) if hello.version != VERSION => {
                let what = format!("it speaks version {}, not {VERSION}", hello.version);
                Err(Error::with(Errno::PROTO, what))
            }
            Ok(Greeting::Hello(_)) => Ok(()),
            Ok(Greeting::Refused(error)) | Err(Lost::Failed(error)) => Err(error),
            Err(Lost::Ended) => Err(Errno::PIPE.into()),
        }?;
        send_message(&session.socket, &Hello::ours())?;
        Ok(session)
    }

    pub(super) fn owner(&self) -> &Owner {
        &self.owner
    }

    pub(super) fn ask(&mut self, request: &Request) -> std::result::Result<Answer, Lost> {
        if request.encode().len() > REQUEST_BYTES_MAX {
            return Err(Lost::Failed(Errno::NAMETOOLONG.into()));
        }
        send_message(&self.socket, request).map_err(lost)?;
        match self.receive()? {
            // It is about to close the volume.
            Answer::Failed(error) if error.errno() == Errno::SHUTDOWN => Err(Lost::Ended),
            answer => Ok(answer),
        }
    }

    fn receive<T: OwnedValue>(&mut self) -> std::result::Result<T, Lost> {
        receive_message(&self.socket, &mut self.buffer).map_err(lost)
    }
}

fn lost(error: Error) -> Lost {
    match error.errno() {
        Errno::PIPE | Errno::CONNRESET => Lost::Ended,
        Errno::AGAIN => {
            let what = format!("it doesn't answer for {} seconds", ANSWER_MAX.as_secs());
            Lost::Failed(Error::with(Errno::TIMEDOUT, what))
        }
        _ => Lost::Failed(error),
    }
}

/// Is the process at the other end the one that has the volume open? Anybody may have a socket of
/// that name.
fn is_owner(peer: &Peer, address: &str, identity: &Identity) -> bool {
    match lock_holder(Path::new(address)) {
        Some(holder) => peer.pid == Some(holder),
        // The host doesn't show it: then whoever may do with the image what they like.
        None => [0, own_uid(), identity.uid].contains(&peer.uid),
    }
}

fn command(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end_matches('\n').to_owned()
}
