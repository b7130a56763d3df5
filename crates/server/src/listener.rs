//! The thread that accepts connections: handshakes, and sessions for the pollers.
//!
//! Invariants: it waits for no peer: what can't be sent at once ends the connection, and of those
//! that have not asked yet the oldest makes room. It sleeps without a deadline while nobody comes.

use crate::poller::Poller;
use crate::session::Session;
use crate::volume::{ServedVolume, find};
use adit_base::{Errno, Error, Result, from_rustix};
use adit_wire::handshake::{Answer, BYTES_MAX, Begun, Greeting, Hello, Request, VERSION};
use adit_wire::memory::SessionMemory;
use adit_wire::socket::{Peer, receive_message, send_message, send_message_with, unconnected};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, chmod};
use rustix::net::{
    Shutdown, SocketAddrUnix, SocketFlags, accept_with, bind, connect, listen, shutdown,
};
use std::fs::Metadata;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// Connections that have not asked for a session yet.
const GREETED_MAX: usize = 64;
/// Until the next attempt when no descriptor or memory is left.
const SHORTAGE_NS: i64 = 100_000_000;

/// The server's socket in the file system.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    made: (u64, u64),
}

/// What new sessions need.
#[derive(Debug)]
pub(crate) struct Hall {
    pub(crate) listener: Listener,
    pub(crate) volumes: Vec<Arc<ServedVolume>>,
    pub(crate) pollers: Mutex<Vec<Poller>>,
    pub(crate) sessions_max: usize,
}

impl Listener {
    /// Binds the socket at `path`, for those whom `mode` lets connect. `EADDRINUSE` if a server
    /// answers there, `EEXIST` if it is no socket; a socket that nobody answers is replaced.
    pub(crate) fn bind(path: &Path, mode: u32) -> Result<Listener> {
        let bound = Listener::bind_unnamed(path, mode);
        bound.map_err(|error| error.context(format_args!("listen at {}", path.display())))
    }

    fn bind_unnamed(path: &Path, mode: u32) -> Result<Listener> {
        let address = SocketAddrUnix::new(path).map_err(from_rustix)?;
        let fd = unconnected(SocketFlags::NONBLOCK).map_err(from_rustix)?;
        match bind(&fd, &address) {
            Err(rustix::io::Errno::ADDRINUSE) => {
                remove_dead(path, &address)?;
                bind(&fd, &address).map_err(from_rustix)?;
            }
            bound => bound.map_err(from_rustix)?,
        }
        // Nobody can connect before `listen`.
        chmod(path, Mode::from_raw_mode(mode)).map_err(from_rustix)?;
        let made = identity(&std::fs::symlink_metadata(path)?);
        listen(&fd, BACKLOG).map_err(from_rustix)?;
        Ok(Listener {
            fd,
            path: path.to_owned(),
            made,
        })
    }

    /// Nobody finds it any more, and the thread that serves it ends.
    pub(crate) fn stop(&self) {
        let _ = shutdown(&self.fd, Shutdown::Both);
        let now = std::fs::symlink_metadata(&self.path);
        // Another server's, if that has replaced it.
        if now.is_ok_and(|now| identity(&now) == self.made) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Removes a socket that nobody answers.
fn remove_dead(path: &Path, address: &SocketAddrUnix) -> Result<()> {
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(Error::with(Errno::EXIST, "it is no socket"));
    }
    let probe = unconnected(SocketFlags::NONBLOCK).map_err(from_rustix)?;
    match connect(&probe, address) {
        Err(rustix::io::Errno::CONNREFUSED) => Ok(std::fs::remove_file(path)?),
        Err(rustix::io::Errno::NOENT) => Ok(()),
        _ => Err(Error::with(Errno::ADDRINUSE, "a server answers there")),
    }
}

/// A connection whose peer has not asked for a session yet.
struct Greeted {
    socket: OwnedFd,
    peer: Peer,
}

impl Hall {
    /// Serves the socket until it is shut down.
    pub(crate) fn serve(&self) {
        let listener = &self.listener.fd;
        let mut greeted: Vec<Greeted> = Vec::new();
        loop {
            let mut waiting = vec![PollFd::new(listener, PollFlags::IN)];
            waiting.extend(
                greeted
                    .iter()
                    .map(|of| PollFd::new(&of.socket, PollFlags::IN)),
            );
            match poll(&mut waiting, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) if pause(listener) => return,
                Err(_) => continue,
            }
            let (new, ready) = waiting.split_first().expect("the listener is there");
            if is_shut(new) {
                return;
            }
            let connecting = !new.revents().is_empty();
            let ready: Vec<bool> = ready.iter().map(|fd| !fd.revents().is_empty()).collect();
            let mut silent = Vec::with_capacity(greeted.len());
            for (of, ready) in greeted.into_iter().zip(ready) {
                match ready {
                    true => self.answer(of),
                    false => silent.push(of),
                }
            }
            greeted = silent;
            if connecting {
                match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                    Ok(socket) => {
                        if greeted.len() == GREETED_MAX {
                            greeted.remove(0);
                        }
                        greeted.extend(greet(socket));
                    }
                    // It went away before we came.
                    Err(
                        rustix::io::Errno::AGAIN
                        | rustix::io::Errno::INTR
                        | rustix::io::Errno::CONNABORTED,
                    ) => {}
                    Err(_) if pause(listener) => return,
                    Err(_) => {}
                }
            }
        }
    }

    /// Begins the session that a peer asks for, or says why not.
    fn answer(&self, greeted: Greeted) {
        let mut buffer = [0; BYTES_MAX];
        let request: Request = match receive_message(&greeted.socket, &mut buffer) {
            Ok(request) => request,
            Err(_) => return, // it went away, or speaks otherwise
        };
        let hello = request.hello;
        if !hello.is_adit() || hello.version != VERSION {
            let what = format!(
                "begin a session in version {}: the server speaks {VERSION}",
                hello.version
            );
            let refused = Answer::Refused(Error::with(Errno::PROTO, what));
            let _ = send_message(&greeted.socket, &refused);
            return;
        }
        let begun = find(&self.volumes, &request.volume)
            .and_then(|volume| self.begin(&greeted, volume, request.read_only));
        let (session, memory) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                let _ = send_message(&greeted.socket, &Answer::Refused(error));
                return;
            }
        };
        let answer = Answer::Begun(Begun {
            privileged: session.privileged,
            volume: session.volume.name.clone(),
        });
        if send_message_with(&session.socket, &answer, memory.as_fd()).is_err() {
            return; // it went away
        }
        tracing::debug!(pid = ?session.peer.pid, uid = session.peer.uid, volume = %session.volume.name, "a session begins");
        let pollers = self.pollers.lock().expect("no panic while it is held");
        let emptiest = pollers.iter().min_by_key(|poller| poller.sessions().len());
        if let Some(poller) = emptiest {
            poller.add(session);
        }
    }

    fn begin(
        &self,
        greeted: &Greeted,
        volume: Arc<ServedVolume>,
        read_only: bool,
    ) -> Result<(Arc<Session>, OwnedFd)> {
        let pollers = self.pollers.lock().expect("no panic while it is held");
        let sessions: usize = pollers.iter().map(|poller| poller.sessions().len()).sum();
        drop(pollers);
        if sessions >= self.sessions_max {
            let what = format!("begin another session: the server has {sessions}");
            return Err(Error::with(Errno::AGAIN, what));
        }
        let (memory, descriptor) = SessionMemory::create()
            .map_err(|error| error.context("make the memory of a session"))?;
        let socket = greeted.socket.try_clone()?;
        let session = Session::new(socket, greeted.peer.clone(), memory, volume, read_only)?;
        Ok((Arc::new(session), descriptor))
    }
}

/// Speaks first. None: the peer went away, or the kernel doesn't say who it is.
fn greet(socket: OwnedFd) -> Option<Greeted> {
    let peer = Peer::of(socket.as_fd()).ok()?;
    send_message(&socket, &Greeting::Hello(Hello::ours())).ok()?;
    Some(Greeted { socket, peer })
}

/// Was the listener shut down?
fn is_shut(listener: &PollFd<'_>) -> bool {
    let ended = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    listener.revents().intersects(ended)
}

/// Waits for memory or descriptors, but not beyond the end; says whether that has come.
fn pause(listener: &OwnedFd) -> bool {
    let mut waiting = [PollFd::new(listener, PollFlags::empty())];
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: SHORTAGE_NS,
    };
    let _ = poll(&mut waiting, Some(&timeout));
    is_shut(&waiting[0])
}
