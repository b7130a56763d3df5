//! Beginning a session: the address, the connection, the handshake.

use super::attempts::{Attempts, check_server};
use super::link::{Link, foreign};
use super::mapped::Mapped;
use super::state::{Connection, interned};
use super::tail::Tails;
use adit_base::fork::{self, Registered};
use adit_base::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};
use adit_base::{Address, Errno, Error, Result, from_rustix, numbers};
use adit_fs::{BlobId, Credentials};
use adit_store::cache::RemoteFrames;
use adit_wire::handshake::{
    Aim, Answer, BYTES_MAX, Greeting, Hello, Key, MappedFile, Node, NodeUse, Request, VERSION,
};
use adit_wire::memory::SessionMemory;
use adit_wire::socket::{Peer, receive_message, receive_message_with, send_message, unconnected};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SocketAddrUnix, SocketFlags, connect as connect_socket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// A process that doesn't answer for so long won't.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(10);

/// No process has this fork generation.
pub(crate) const NO_GENERATION: u32 = u32::MAX;

/// Connects to the server at `unix:SOCKET`, for its only volume, or at `unix:SOCKET,VOLUME`.
/// If the server ends, the next one is waited for as long as `reconnect` says.
pub(crate) fn connect(
    address: &str,
    read_only: bool,
    reconnect: Duration,
) -> Result<Arc<Connection>> {
    fork::install();
    let mut connection = Connection::without_link(address, read_only, reconnect);
    let mut wait = Attempts::for_a_server(reconnect);
    let link = loop {
        match connect_link(address, read_only, connection.comes_back(), Aim::Begin) {
            // The sessions of a server that was killed wait for the next one, too.
            Err(error) if has_ended(&error) && has_last_sessions(address) && wait.goes_on() => {}
            link => break link?,
        }
    };
    connection.begin(Arc::new(link));
    let connection = Arc::new(connection);
    connection.watch();
    Ok(connection)
}

impl Connection {
    /// Without a link, it can only inherit one.
    pub(super) fn without_link(address: &str, read_only: bool, reconnect: Duration) -> Connection {
        Connection {
            address: address.to_owned(),
            read_only,
            reconnect,
            own: AtomicPtr::new(interned(Credentials::process()) as *const _ as *mut _),
            is_moved: AtomicBool::new(false),
            current: AtomicPtr::default(),
            links: Mutex::default(),
            end: OnceLock::new(),
            held: Mutex::default(),
            has_lost: AtomicBool::new(false),
            is_resuming: AtomicBool::new(false),
            closed_meanwhile: Mutex::default(),
            is_watched: AtomicBool::new(false),
            inherited: Mutex::default(),
            generation: AtomicU32::new(NO_GENERATION),
            changes: AtomicU64::new(0),
            tails: Tails::default(),
        }
    }

    fn begin(&mut self, link: Arc<Link>) {
        *self.current.get_mut() = Arc::as_ptr(&link).cast_mut();
        self.links.get_mut().expect("new").push(link);
        *self.generation.get_mut() = fork::generation();
    }

    /// Does its session go on with the next server?
    pub(super) fn comes_back(&self) -> bool {
        !self.reconnect.is_zero()
    }
}

/// The socket's path, and the name of a volume.
fn parts(address: &str) -> (&str, &str) {
    let place = match Address::parse(address) {
        Address::Served(place) => place,
        _ => address,
    };
    match place.rsplit_once(',') {
        Some((path, volume)) if !Path::new(place).exists() => (path, volume),
        _ => (place, ""),
    }
}

/// Is there no server?
fn has_ended(error: &Error) -> bool {
    let errnos = [
        Errno::NOENT,
        Errno::CONNREFUSED,
        Errno::CONNRESET,
        Errno::PIPE,
    ];
    errnos.contains(&error.errno())
}

/// Has a server left its sessions to the next one?
fn has_last_sessions(address: &str) -> bool {
    let (path, _) = parts(address);
    Path::new(&format!("{path}.sessions")).exists()
}

/// Begins a session.
pub(super) fn connect_link(
    address: &str,
    read_only: bool,
    comes_back: bool,
    aim: Aim,
) -> Result<Link> {
    let (socket, answer, descriptors) = ask(address, read_only, comes_back, aim)?;
    let begun = match answer {
        Answer::Refused(error) => return Err(error),
        Answer::Begun(begun) => begun,
        _ => return Err(foreign()),
    };
    let mut descriptors = descriptors.into_iter();
    let memory = descriptors.next();
    let memory = memory.ok_or(Error::with(Errno::PROTO, "the server sends no memory"))?;
    let cache = match (begun.cache, descriptors.next(), descriptors.next()) {
        (Some((frames, offset)), Some(memory), Some(versions)) => Some(Mapped::new(
            RemoteFrames::map(memory.as_fd(), versions.as_fd(), frames, offset)?,
        )),
        _ => None,
    };
    let memory = SessionMemory::map(memory.as_fd())?;
    Ok(Link::new(memory, cache, socket, &begun))
}

/// Leaves what a session has open to a process that this one starts: the connection that keeps it,
/// and the key.
pub(super) fn leave(address: &str, key: Key) -> Result<(Registered<OwnedFd>, Key)> {
    match ask(address, false, false, Aim::Leave(key))? {
        (_, Answer::Refused(error), _) => Err(error),
        (socket, Answer::Left(key), _) => Ok((socket, key)),
        _ => Err(foreign()),
    }
}

/// The memory of a file's shared mappings, which the session holds.
fn ask_for_mapped(address: &str, of: MappedFile) -> Result<Registered<OwnedFd>> {
    match ask(address, false, false, Aim::Mapped(of))? {
        (_, Answer::Refused(error), _) => Err(error),
        (_, Answer::Mapped, descriptors) => {
            let memory = descriptors.into_iter().next();
            memory.ok_or_else(foreign)
        }
        _ => Err(foreign()),
    }
}

/// Connects to a server and asks it for something: the connection, the answer, and what came with it.
fn ask(
    address: &str,
    read_only: bool,
    comes_back: bool,
    aim: Aim,
) -> Result<(Registered<OwnedFd>, Answer, Vec<Registered<OwnedFd>>)> {
    let (path, volume) = parts(address);
    #[cfg(feature = "internal")]
    if let Some(server) = super::simulated::server() {
        let asked = server(Request {
            hello: Hello::ours(),
            volume: volume.to_owned(),
            read_only,
            comes_back,
            aim,
        });
        return asked.map(|(socket, answer, with)| {
            let with = with.into_iter().map(Registered::new);
            (Registered::new(socket), answer, with.collect())
        });
    }
    if path.is_empty() {
        let what = "connect to a server: the address is unix:SOCKET or unix:SOCKET,VOLUME";
        return Err(Error::with(Errno::INVAL, what));
    }
    let name = SocketAddrUnix::new(path).map_err(from_rustix)?;
    let socket = connected(&name, ANSWER_MAX).map_err(|error| {
        let what = match error {
            rustix::io::Errno::CONNREFUSED => "no server answers there",
            rustix::io::Errno::NOENT => "there is no socket",
            rustix::io::Errno::PROTOTYPE => "it isn't a socket of Adit",
            _ => "connect",
        };
        Error::with(from_rustix(error), what)
    })?;
    check_server(&socket)?;
    let (answer, descriptors) = handshake(&socket, volume, read_only, comes_back, aim)?;
    Ok((socket, answer, descriptors))
}

/// A connected socket, on which nothing takes longer than that.
pub(crate) fn connected(
    name: &SocketAddrUnix,
    answer_max: Duration,
) -> rustix::io::Result<Registered<OwnedFd>> {
    let socket = numbers::high(|| unconnected(SocketFlags::empty()))?;
    set_socket_timeout(&socket, Timeout::Send, Some(answer_max))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(answer_max))?;
    // With a timeout, a signal interrupts it even where handlers restart calls.
    rustix::io::retry_on_intr(|| connect_socket(&socket, name))?;
    Ok(socket)
}

/// Asks the process at the other end for something: its answer, and what came with it.
pub(crate) fn handshake(
    socket: &OwnedFd,
    volume: &str,
    read_only: bool,
    comes_back: bool,
    aim: Aim,
) -> Result<(Answer, Vec<Registered<OwnedFd>>)> {
    let mut buffer = [0; BYTES_MAX];
    match receive_message(socket, &mut buffer).map_err(unanswered)? {
        Greeting::Refused(error) => return Err(error),
        Greeting::Hello(hello) if !hello.is_adit() => {
            return Err(Error::with(Errno::PROTO, "it isn't a process of Adit"));
        }
        Greeting::Hello(hello) if hello.version != VERSION => {
            let what = format!(
                "the process speaks version {}, this program {VERSION}",
                hello.version
            );
            return Err(Error::with(Errno::PROTO, what));
        }
        Greeting::Hello(_) => {}
    }
    let request = Request {
        hello: Hello::ours(),
        volume: volume.to_owned(),
        read_only,
        comes_back,
        aim,
    };
    send_message(socket, &request)?;
    receive_message_with(socket, &mut buffer).map_err(unanswered)
}

/// May a server that answered so at its socket be about to end?
fn has_no_server(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT | Errno::CONNREFUSED | Errno::CONNRESET | Errno::PIPE
    )
}

impl Connection {
    /// The memory of a file's tail, or of its shared mappings: asked for once.
    pub(super) fn asked_memory(&self, link: &Link, file: u64) -> Result<Registered<OwnedFd>> {
        let key = link.key;
        self.acting_as_own(|| ask_for_mapped(&self.address, MappedFile { key, file }))
    }

    /// The memory of a file's shared mappings, which the session holds. It waits for the next server.
    pub(crate) fn mapped_memory(&self, file: u64) -> Result<Registered<OwnedFd>> {
        self.asking(|link| self.asked_memory(link, file))
    }

    /// Asks the server for what the next one has, too.
    fn asking<T>(&self, ask: impl Fn(&Link) -> Result<T>) -> Result<T> {
        let mut wait = Attempts::for_a_server(self.reconnect);
        loop {
            let link = self.link();
            match ask(link) {
                Err(_) if link.has_ended() => self.resume(link)?,
                // A server that stops gives up its socket first, then its sessions.
                Err(error) if has_no_server(error.errno()) && wait.goes_on() => {}
                asked => return asked,
            }
        }
    }

    /// The host's pipe or socket of a node that the session has open.
    pub(crate) fn node(&self, file: u64, want: NodeUse) -> Result<Registered<OwnedFd>> {
        let asked = self.ask_for_node(file, want)?;
        asked.1.into_iter().next().ok_or_else(foreign)
    }

    /// The path to which a socket of the volume was bound.
    pub(crate) fn bound_as(&self, id: BlobId) -> Result<Vec<u8>> {
        match self.ask_for_node(0, NodeUse::BoundAs(id))?.0 {
            Answer::BoundAs(path) => Ok(path.into_vec()),
            _ => Err(foreign()),
        }
    }

    /// Waits for the next server.
    fn ask_for_node(&self, file: u64, want: NodeUse) -> Result<(Answer, Vec<Registered<OwnedFd>>)> {
        self.asking(|link| {
            let key = link.key;
            let of = MappedFile { key, file };
            let aim = Aim::Node(Node { of, want });
            match self.acting_as_own(|| ask(&self.address, false, false, aim))? {
                // What the next server would say, too, if it isn't about the session.
                (_, Answer::Refused(error), _) if error.errno() != Errno::STALE => Ok(Err(error)),
                (_, Answer::Refused(error), _) => Err(error),
                (_, answer @ (Answer::Node | Answer::BoundAs(_)), with) => Ok(Ok((answer, with))),
                _ => Err(foreign()),
            }
        })?
    }

    /// Of the volume.
    pub(crate) fn volume_id(&self) -> (u64, u64) {
        self.link().opening.volume_id
    }

    /// The server's process.
    pub(crate) fn server(&self) -> Result<Peer> {
        let gone = || Error::with(Errno::PIPE, "the server has ended");
        Peer::of(self.link().socket().ok_or_else(gone)?.fd.as_fd())
    }
}

/// Why there is no answer.
pub(crate) fn unanswered(error: Error) -> Error {
    match error.errno() {
        Errno::AGAIN => {
            let what = format!("it doesn't answer for {} seconds", ANSWER_MAX.as_secs());
            Error::with(Errno::TIMEDOUT, what)
        }
        Errno::PIPE => Error::with(Errno::PIPE, "it ended the connection"),
        _ => error,
    }
}
