//! The door of a listening socket: connections that have not asked for anything yet.
//!
//! ```text
//! connection ─► accepted, admitted ─► greeted ── its request ──► the caller, who answers it
//! ```
//! Invariants: it waits for no peer: what can't be sent at once ends the connection, and of those
//! that have not asked yet the oldest of the user with the most makes room. It sleeps without a
//! deadline while nobody comes, unless the caller has one. A peer that is refused hears why, also
//! when no descriptor is left.

use adit_base::fork::Registered;
use adit_base::{Errno, Error, Result, from_rustix, numbers};
use adit_wire::handshake::{Answer, BYTES_MAX, Greeting, Hello, Request, VERSION};
use adit_wire::socket::{Peer, receive_message, send_message};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{SocketFlags, accept_with};
use std::os::fd::{AsFd, OwnedFd};

/// Until the next attempt when no descriptor or memory is left.
const SHORTAGE_NS: i64 = 100_000_000;
/// What a peer that isn't admitted costs: at most a thousand a second.
const REFUSAL_NS: i64 = 1_000_000;

/// Who comes in, and who hears of those that don't.
pub(crate) struct Policy {
    /// Connections that have not asked yet, at most.
    pub(crate) greeted_max: usize,
    /// May this user ask at all?
    pub(crate) admits: fn(&Peer) -> Result<()>,
    /// A connection is refused.
    pub(crate) notes_refusal: fn(&Peer, &Error),
}

/// A connection whose peer was greeted.
pub(crate) struct Greeted {
    pub(crate) socket: Registered<OwnedFd>,
    pub(crate) peer: Peer,
}

/// What has happened.
pub(crate) struct Arrivals {
    /// Peers that ask for something, in our version.
    pub(crate) asked: Vec<(Greeted, Request)>,
    /// For each of the caller's sockets: is there something to read, or its end?
    pub(crate) ready: Vec<bool>,
}

/// See the module.
pub(crate) struct Door<'a> {
    listener: &'a OwnedFd,
    policy: &'static Policy,
    greeted: Vec<Greeted>,
    spare: Option<Spare>,
}

/// A descriptor that is given up when there are no others, to tell a peer so.
pub(crate) struct Spare {
    _fd: Registered<OwnedFd>,
}

impl Spare {
    pub(crate) fn new() -> Result<Spare> {
        // Its number isn't raised: under a limit that was lowered a high one would be of no use.
        let made = numbers::registered(|| eventfd(0, EventfdFlags::CLOEXEC));
        let fd = made
            .map_err(|errno| Error::new(from_rustix(errno)).context("keep a spare descriptor"))?;
        Ok(Spare { _fd: fd })
    }
}

impl<'a> Door<'a> {
    pub(crate) fn new(listener: &'a OwnedFd, policy: &'static Policy, spare: Spare) -> Door<'a> {
        Door {
            listener,
            policy,
            greeted: Vec::new(),
            spare: Some(spare),
        }
    }

    /// Waits until peers ask, something comes on the caller's sockets, or the time is over. None:
    /// the listener was shut down.
    pub(crate) fn wait<'s>(
        &mut self,
        sockets: impl Iterator<Item = &'s OwnedFd>,
        timeout: Option<&Timespec>,
    ) -> Option<Arrivals> {
        let mut waiting = vec![PollFd::new(self.listener, PollFlags::IN)];
        let greeted = self.greeted.iter();
        waiting.extend(greeted.map(|of| PollFd::new(&of.socket, PollFlags::IN)));
        waiting.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::IN)));
        let polled = poll(&mut waiting, timeout);
        let (new, others) = waiting.split_first().expect("the listener is there");
        let (is_over, is_connecting) = (is_shut(new), !new.revents().is_empty());
        let ready = others.iter().map(|fd| !fd.revents().is_empty());
        let mut greeted: Vec<bool> = ready.collect();
        let mut ready = greeted.split_off(self.greeted.len());
        match polled {
            Ok(_) if is_over => return None,
            Ok(_) => {}
            Err(error) => {
                if error != rustix::io::Errno::INTR && self.pause(SHORTAGE_NS) {
                    return None;
                }
                // The kernel has said nothing.
                ready.fill(false);
                let asked = Vec::new();
                return Some(Arrivals { asked, ready });
            }
        }
        let asked = self.take_requests(&greeted);
        if is_connecting && self.take_connection() {
            return None;
        }
        Some(Arrivals { asked, ready })
    }

    /// What those ask that are ready.
    fn take_requests(&mut self, ready: &[bool]) -> Vec<(Greeted, Request)> {
        let mut asked = Vec::new();
        let greeted = std::mem::take(&mut self.greeted);
        for (of, ready) in greeted.into_iter().zip(ready) {
            if *ready {
                if let Some(request) = self.ask(&of) {
                    asked.push((of, request));
                }
            } else {
                self.greeted.push(of)
            }
        }
        asked
    }

    /// What a peer asks for. None: it went away, speaks another version, or asks for nothing that
    /// can be understood.
    fn ask(&self, of: &Greeted) -> Option<Request> {
        let mut buffer = [0; BYTES_MAX];
        let request = match receive_message::<Request>(&of.socket, &mut buffer) {
            Ok(request) => request,
            Err(error) => {
                // Not if it just went away.
                if error.errno() == Errno::PROTO {
                    let error = error.context("understand its request");
                    (self.policy.notes_refusal)(&of.peer, &error);
                }
                return None;
            }
        };
        let hello = request.hello;
        if hello.is_adit() && hello.version == VERSION {
            return Some(request);
        }
        let what = format!(
            "begin a session in version {}: the server speaks {VERSION}",
            hello.version
        );
        self.refuse(of, Error::with(Errno::PROTO, what));
        None
    }

    /// Takes a connection; true: the listener was shut down meanwhile.
    fn take_connection(&mut self) -> bool {
        let is_over = match accept(self.listener) {
            Ok(socket) => self.greet(socket),
            // It went away before we came.
            Err(
                rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED,
            ) => false,
            Err(error) => {
                let had_one = self.spare.take().is_some();
                if had_one && let Ok(socket) = accept(self.listener) {
                    self.refuse_for_shortage(socket, error);
                    false
                } else {
                    self.pause(SHORTAGE_NS)
                }
            }
        };
        if self.spare.is_none() {
            self.spare = Spare::new().ok();
        }
        is_over
    }

    /// Speaks first; true: the listener was shut down meanwhile.
    fn greet(&mut self, socket: Registered<OwnedFd>) -> bool {
        let Ok(peer) = Peer::of(socket.as_fd()) else {
            return false; // the kernel doesn't say who it is
        };
        if let Err(error) = (self.policy.admits)(&peer) {
            (self.policy.notes_refusal)(&peer, &error);
            let _ = send_message(&socket, &Greeting::Refused(error));
            return self.pause(REFUSAL_NS);
        }
        if self.greeted.len() == self.policy.greeted_max {
            self.make_room();
        }
        // Otherwise it went away.
        if send_message(&socket, &Greeting::Hello(Hello::ours())).is_ok() {
            self.greeted.push(Greeted { socket, peer });
            assert!(
                self.greeted.len() <= self.policy.greeted_max,
                "a bounded number"
            );
        }
        false
    }

    /// Makes room for another connection: of the user with the most that have not asked yet, the
    /// oldest goes. So nobody can push out those of others.
    fn make_room(&mut self) {
        let greeted = &mut self.greeted;
        let number_of = |uid| greeted.iter().filter(|of| of.peer.uid == uid).count();
        let busiest = greeted
            .iter()
            .map(|of| of.peer.uid)
            .max_by_key(|uid| number_of(*uid));
        let oldest = greeted.iter().position(|of| Some(of.peer.uid) == busiest);
        if let Some(oldest) = oldest {
            let gone = greeted.remove(oldest);
            let what = "keep a connection that asks for nothing: its user has many of them";
            (self.policy.notes_refusal)(&gone.peer, &Error::with(Errno::AGAIN, what));
        }
    }

    /// Says why a peer doesn't get what it asked for.
    pub(crate) fn refuse(&self, greeted: &Greeted, error: Error) {
        (self.policy.notes_refusal)(&greeted.peer, &error);
        let _ = send_message(&greeted.socket, &Answer::Refused(error));
    }

    /// Says so to a peer for which nothing but the last descriptor is left.
    fn refuse_for_shortage(&self, socket: Registered<OwnedFd>, errno: rustix::io::Errno) {
        let error = Error::new(from_rustix(errno))
            .context("take a connection: the process has too many open");
        if let Ok(peer) = Peer::of(socket.as_fd()) {
            (self.policy.notes_refusal)(&peer, &error);
        }
        let _ = send_message(&socket, &Greeting::Refused(error));
    }

    /// Waits, but not beyond the end; says whether that has come.
    fn pause(&self, ns: i64) -> bool {
        let mut waiting = [PollFd::new(self.listener, PollFlags::empty())];
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: ns,
        };
        let _ = poll(&mut waiting, Some(&timeout));
        is_shut(&waiting[0])
    }
}

/// A forked child doesn't keep it: it would hide its end from the peer.
fn accept(listener: &OwnedFd) -> rustix::io::Result<Registered<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    numbers::high(|| accept_with(listener, flags))
}

/// Was the listener shut down?
fn is_shut(listener: &PollFd<'_>) -> bool {
    let ended = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    listener.revents().intersects(ended)
}
