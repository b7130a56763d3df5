//! Looks at a volume that this process has open: sessions without memory, of root's processes and
//! of those of the process's own user.
//!
//! Invariants: the thread sleeps without a deadline while nobody asks, does one call at a time, and
//! waits for no peer: what can't be sent at once ends the look. It holds the engine, not the volume,
//! so it keeps nothing open. No call changes anything.

use crate::door::{Door, Greeted, Policy, Spare};
use crate::perform::PerformVolume;
use crate::rights::Decoded;
use crate::serve::garbled;
use crate::session::{credentials, is_privileged};
use adit_base::fork::Registered;
use adit_base::thread::spawn_without_signals;
use adit_base::{Errno, Error, Result};
use adit_fs::{Credentials, Fs};
use adit_reactor::Engine;
use adit_wire::calls::{Class, Info, List, OpenDescriptors, ReadLink, Space, Stat, VolumeCall};
use adit_wire::handshake::{Aim, Answer, Request};
use adit_wire::look::{QUESTION_BYTES_MAX, Question, REPLY_BYTES_MAX, Reply};
use adit_wire::socket::{Peer, own_uid, receive_message, send_message};
use adit_wire::value::Value;
use rustix::net::{Shutdown, shutdown};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Looks at once.
const LOOKS_MAX: usize = 16;

/// Anybody can find the socket: nobody is to fill the log of a program.
static POLICY: Policy = Policy {
    greeted_max: LOOKS_MAX,
    admits: |peer: &Peer| {
        if is_privileged(peer) {
            Ok(())
        } else {
            let own = own_uid();
            let what = format!("look at a volume of another user: only root and user {own} may");
            Err(Error::with(Errno::ACCESS, what))
        }
    },
    notes_refusal: |peer, error| {
        let (pid, uid) = (peer.pid, peer.uid);
        tracing::debug!(pid, uid, %error, "a look is refused");
    },
};

/// Answers looks at a volume, from [`start`](Self::start) to [`stop`](Self::stop).
#[derive(Debug)]
pub struct Looks {
    listener: Arc<Listener>,
    thread: JoinHandle<()>,
}

#[derive(Debug)]
struct Listener {
    fd: Registered<OwnedFd>,
}

impl Looks {
    /// Begins to answer at a socket that listens, of type `SOCK_SEQPACKET` and without waiting.
    pub fn start(socket: Registered<OwnedFd>, engine: Arc<Engine<Fs>>) -> Result<Looks> {
        let listener = Arc::new(Listener { fd: socket });
        let (shared, spare) = (listener.clone(), Spare::new()?);
        let serve = move || serve(&shared.fd, spare, &engine);
        let thread = spawn_without_signals("adit-looks", serve)?;
        Ok(Looks { listener, thread })
    }

    /// Tells the thread to end after what it is doing; nobody finds the socket any more.
    pub fn stop(&self) {
        let _ = shutdown(&self.listener.fd, Shutdown::Both);
    }

    /// Waits for its end. Not inside an operation, and after [`stop`](Self::stop).
    pub fn join(self) {
        // The thread may drop the last handle itself, as whoever drives may.
        if self.thread.thread().id() != std::thread::current().id() {
            let _ = self.thread.join();
        }
    }
}

fn serve(listener: &OwnedFd, spare: Spare, engine: &Engine<Fs>) {
    let mut door = Door::new(listener, &POLICY, spare);
    // The one that was silent longest comes first.
    let mut looks: Vec<Look> = Vec::new();
    while let Some(arrivals) = door.wait(looks.iter().map(|look| &*look.of.socket), None) {
        let mut spoke = Vec::new();
        let mut silent = Vec::with_capacity(looks.len());
        for (look, ready) in looks.into_iter().zip(arrivals.ready) {
            if !ready {
                silent.push(look);
            } else if look.answer(engine).is_ok() {
                spoke.push(look);
            }
        }
        looks = silent;
        looks.append(&mut spoke);
        for (of, request) in arrivals.asked {
            match Look::begin(&of, &request) {
                Ok(who) => {
                    if looks.len() == LOOKS_MAX {
                        looks.remove(0);
                    }
                    // If it went away, its connection says so.
                    let _ = send_message(&of.socket, &Answer::Looking);
                    looks.push(Look { of, who });
                    assert!(looks.len() <= LOOKS_MAX, "a bounded number");
                }
                Err(error) => door.refuse(&of, error),
            }
        }
    }
}

/// A process that looks.
struct Look {
    of: Greeted,
    who: Credentials,
}

impl Look {
    /// The user that a look acts for.
    fn begin(of: &Greeted, request: &Request) -> Result<Credentials> {
        match request.aim {
            Aim::Look => credentials(of.socket.as_fd(), &of.peer),
            _ => {
                let what = "begin a session with a process that only lets others look at its \
                            volume: `adit serve` and a shared volume have a socket for that";
                Err(Error::with(Errno::OPNOTSUPP, what))
            }
        }
    }

    /// Answers a question. After an error the look is over.
    fn answer(&self, engine: &Engine<Fs>) -> Result<()> {
        let mut buffer = [0; QUESTION_BYTES_MAX];
        let question = receive_message(&self.of.socket, &mut buffer)?;
        send_message(&self.of.socket, &reply(engine, &self.who, &question)?)
    }
}

/// An error: the arguments are none of the call.
pub(crate) fn reply(engine: &Engine<Fs>, own: &Credentials, question: &Question) -> Result<Reply> {
    let number = question.number;
    macro_rules! dispatch {
        ($($call:ident)*) => {
            match number {
                $(<$call as VolumeCall>::NUMBER => {
                    const { assert!(matches!(<$call as VolumeCall>::CLASS, Class::Looks)) };
                    let decoded = Decoded::<$call>::decode(&question.call);
                    let (who, call) = decoded.ok_or_else(|| garbled(number))?;
                    let who = who.as_ref().unwrap_or(own);
                    let result = engine.run(|fs| call.perform(fs, who));
                    result.map(|result| result.encode())
                })*
                _ => {
                    let what = format!("do call {number} for an onlooker: it may only look");
                    Err(Error::with(Errno::OPNOTSUPP, what))
                }
            }
        };
    }
    let reply = match dispatch!(Stat ReadLink List Info Space OpenDescriptors) {
        Ok(result) => Reply::Done(result.into()),
        Err(error) => Reply::Failed(error),
    };
    Ok(if reply.encode().len() <= REPLY_BYTES_MAX {
        reply
    } else {
        let what = "send a reply that is too large for a look: ask for fewer at a time";
        Reply::Failed(Error::with(Errno::MSGSIZE, what))
    })
}
