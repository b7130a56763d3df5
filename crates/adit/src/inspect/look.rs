//! The onlooker's side: finding the process that has a volume open, and asking it.

use crate::connection::{ANSWER_MAX, handshake, unanswered};
use crate::identity::{Identity, connect_to};
use adit_base::fork::Registered;
use adit_base::{Errno, Error, Result};
use adit_block::lock_holder;
use adit_wire::calls::VolumeCall;
use adit_wire::handshake::{Aim, Answer};
use adit_wire::look::{QUESTION_BYTES_MAX, Question, REPLY_BYTES_MAX, Reply};
use adit_wire::socket::{Peer, own_uid, receive_message, send_message};
use adit_wire::value::Value;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

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
#[derive(Debug)]
pub(super) enum Lost {
    /// The owner has closed the volume, or ended, or has not answered the question before.
    Ended,
    Failed(Error),
}

/// A session with the owner that only looks.
pub(super) struct Look {
    socket: Registered<OwnedFd>,
    owner: Owner,
    buffer: Vec<u8>,
    /// A question has no answer yet: the next message would not be that of the next question.
    is_unanswered: bool,
}

impl Look {
    /// Connects to the process that has the volume open for writing; None when it doesn't listen.
    pub(super) fn begin(address: &str) -> std::result::Result<Option<Look>, Lost> {
        let identity = Identity::of(address).map_err(Lost::Failed)?;
        for name in identity.names() {
            // What can't be connected to isn't there any more, or nobody's.
            let Ok(socket) = connect_to(&name, ANSWER_MAX) else {
                continue;
            };
            let peer = Peer::of(socket.as_fd()).map_err(Lost::Failed)?;
            if is_owner(&peer, address, &identity) {
                return Look::greet(socket, peer).map(Some).map_err(lost);
            }
        }
        Ok(None)
    }

    fn greet(socket: Registered<OwnedFd>, peer: Peer) -> Result<Look> {
        let (answer, _) = handshake(&socket, "", true, false, Aim::Look)?;
        match answer {
            Answer::Looking => Ok(Look::new(socket, peer)),
            Answer::Refused(error) => Err(error),
            _ => Err(super::unexpected()),
        }
    }

    pub(super) fn new(socket: Registered<OwnedFd>, owner: Peer) -> Look {
        Look {
            socket,
            owner: owner.into(),
            buffer: vec![0; REPLY_BYTES_MAX],
            is_unanswered: false,
        }
    }

    pub(super) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Does a call about the volume. It is over after a question that was not answered.
    pub(super) fn ask<'a, C>(&mut self, call: &C) -> std::result::Result<C::Reply, Lost>
    where
        C: VolumeCall<'a>,
    {
        let question = Question::new(call);
        if question.encode().len() > QUESTION_BYTES_MAX {
            return Err(Lost::Failed(Errno::NAMETOOLONG.into()));
        }
        if self.is_unanswered {
            return Err(Lost::Ended);
        }
        self.is_unanswered = true;
        send_message(&self.socket, &question).map_err(lost)?;
        let reply = receive_message(&self.socket, &mut self.buffer).map_err(lost)?;
        self.is_unanswered = false;
        match reply {
            // It is about to close the volume.
            Reply::Failed(error) if error.errno() == Errno::SHUTDOWN => Err(Lost::Ended),
            Reply::Failed(error) => Err(Lost::Failed(error)),
            Reply::Done(result) => {
                let result = C::Reply::decode(&result);
                result.ok_or_else(|| Lost::Failed(super::unexpected()))
            }
        }
    }
}

fn lost(error: Error) -> Lost {
    match error.errno() {
        Errno::PIPE | Errno::CONNRESET => Lost::Ended,
        _ => Lost::Failed(unanswered(error)),
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
