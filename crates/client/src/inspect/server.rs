//! The owner's side: a thread that answers onlookers.
//!
//! Invariants: it sleeps without a deadline while nobody asks, does one operation at a time, and
//! waits for no client: what can't be sent at once ends the session. It holds the engine, not the
//! volume, so it keeps nothing open.

use super::answer::answer;
use super::message::{Answer, Greeting, Hello, REQUEST_BYTES_MAX, Request, VERSION};
use super::socket::Identity;
use adit_base::fork::{self, ChildGuard};
use adit_base::thread::spawn_without_signals;
use adit_base::{Errno, Error, Result, from_rustix};
use adit_fs::Fs;
use adit_reactor::Engine;
use adit_wire::socket::{Peer, own_uid, receive_message, send_message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Sessions at once.
const SESSIONS_MAX: usize = 16;
/// What a refusal costs whoever provokes it: at most a thousand a second.
const REFUSAL_NS: i64 = 1_000_000;
/// Until the next attempt when no descriptor or memory is left for a session.
const SHORTAGE_NS: i64 = 100_000_000;

/// The thread, as the volume holds it.
pub(crate) struct Server {
    listener: Arc<Socket>,
    thread: JoinHandle<()>,
}

/// A descriptor that forked children don't keep.
struct Socket {
    /// Before the descriptor: unregistered before it is closed.
    _guard: ChildGuard,
    fd: OwnedFd,
}

impl Socket {
    fn new(fd: OwnedFd) -> Socket {
        Socket {
            _guard: fork::close_in_child(fd.as_fd()),
            fd,
        }
    }
}

impl Server {
    /// Starts to listen for a volume that was just opened.
    pub(crate) fn start(address: &str, engine: Arc<Engine<Fs>>) -> Result<Server> {
        let listener = Arc::new(Socket::new(
            Identity::of(address)?.listen().map_err(from_rustix)?,
        ));
        let shared = listener.clone();
        let volume = address.to_owned();
        let serve = move || serve(&shared.fd, &engine, &volume);
        let thread = spawn_without_signals("adit-inspect", serve)?;
        Ok(Server { listener, thread })
    }

    /// Tells the thread to end after what it is doing; nobody finds the socket any more.
    pub(crate) fn stop(&self) {
        let _ = shutdown(&self.listener.fd, Shutdown::Both);
    }

    /// Waits for its end. Not inside an operation, and after [`stop`](Self::stop).
    pub(crate) fn join(self) {
        // The thread may drop the last handle itself, as whoever drives may.
        if self.thread.thread().id() != std::thread::current().id() {
            let _ = self.thread.join();
        }
    }
}

/// A client.
struct Session {
    socket: Socket,
    greeted: bool,
}

fn serve(listener: &OwnedFd, engine: &Engine<Fs>, volume: &str) {
    // The one that was silent longest comes first.
    let mut sessions: Vec<Session> = Vec::new();
    let mut buffer = [0; REQUEST_BYTES_MAX];
    loop {
        let mut waiting = vec![PollFd::new(listener, PollFlags::IN)];
        let sockets = sessions.iter().map(|session| &session.socket.fd);
        waiting.extend(sockets.map(|fd| PollFd::new(fd, PollFlags::IN)));
        match poll(&mut waiting, None).map_err(from_rustix) {
            Err(Errno::INTR) => continue,
            Err(Errno::NOMEM) if !pause(listener, SHORTAGE_NS) => continue,
            Err(Errno::NOMEM) => return,
            Err(error) => {
                tracing::warn!(%volume, %error, "nobody can look at the open volume any more");
                return;
            }
            Ok(_) => (),
        }
        let (new, ready) = waiting.split_first().expect("the listener is there");
        if is_shut(new) {
            return;
        }
        let connecting = !new.revents().is_empty();
        let ready: Vec<bool> = ready.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut silent = Vec::with_capacity(sessions.len());
        let mut spoke = Vec::new();
        for (mut session, ready) in sessions.into_iter().zip(ready) {
            if !ready {
                silent.push(session);
                continue;
            }
            match session.serve(engine, &mut buffer) {
                Ok(()) => spoke.push(session),
                Err(error) if error.errno() == Errno::PROTO && pause(listener, REFUSAL_NS) => {
                    return;
                }
                Err(_) => (),
            }
        }
        silent.append(&mut spoke);
        sessions = silent;
        if !connecting {
            continue;
        }
        let pause_ns = match accept(listener) {
            Ok(Some(session)) => {
                if sessions.len() == SESSIONS_MAX {
                    sessions.remove(0);
                }
                sessions.push(session);
                continue;
            }
            Ok(None) => REFUSAL_NS,
            // It went away before we came.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => continue,
            Err(_) => SHORTAGE_NS,
        };
        if pause(listener, pause_ns) {
            return;
        }
    }
}

/// Was the listener shut down?
fn is_shut(listener: &PollFd<'_>) -> bool {
    let ended = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    listener.revents().intersects(ended)
}

/// Waits, but not beyond the end; says whether that has come.
fn pause(listener: &OwnedFd, ns: i64) -> bool {
    let mut waiting = [PollFd::new(listener, PollFlags::empty())];
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: ns,
    };
    let _ = poll(&mut waiting, Some(&timeout));
    is_shut(&waiting[0])
}

/// Takes a connection; None: its user may not ask.
fn accept(listener: &OwnedFd) -> std::result::Result<Option<Session>, Errno> {
    let fd =
        accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map_err(from_rustix)?;
    let allowed = Peer::of(fd.as_fd()).is_ok_and(|peer| [0, own_uid()].contains(&peer.uid));
    if !allowed {
        let _ = send_message(&fd, &Greeting::Refused(Errno::ACCESS.into()));
        return Ok(None);
    }
    let socket = Socket::new(fd);
    let greeted = false;
    // A new connection has room for this.
    let _ = send_message(&socket.fd, &Greeting::Hello(Hello::ours()));
    Ok(Some(Session { socket, greeted }))
}

impl Session {
    /// Answers a message. After an error the session is over.
    fn serve(&mut self, engine: &Engine<Fs>, buffer: &mut [u8]) -> Result<()> {
        let fd = &self.socket.fd;
        if !self.greeted {
            let hello: Hello = receive_message(fd, buffer)?;
            self.greeted = hello.is_adit() && hello.version == VERSION;
            return match self.greeted {
                true => Ok(()),
                false => Err(Error::new(Errno::PROTO)),
            };
        }
        let request: Request = receive_message(fd, buffer)?;
        let answer = answer(engine, &request).unwrap_or_else(Answer::Failed);
        send_message(fd, &answer)
    }
}
