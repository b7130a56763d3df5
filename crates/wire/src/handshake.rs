//! The messages that begin a session, over the server's socket.
//!
//! ```text
//! server  ── Greeting: its version, or why not ──►  session
//!         ◄── Request: our version, which volume, what for ──
//!         ── Answer: the session and its memory, or why not ──►
//! ```
//! The server speaks first, so that a refusal is heard. After that nothing but single bytes goes
//! over the socket, each to wake the server; its end is the end of the session. Only a session that
//! looks has no memory: its calls go over the socket ([`look`](crate::look)).
//!
//! A process that forks leaves its open files to the child over a connection of its own, which the
//! child keeps until it has begun a session with them.

use crate::value::{structs, variants};
use adit_base::Error;
use adit_fs::BlobId;
use adit_store::AppliedUpTo;

/// Changes with every change of messages, calls or memory.
pub const VERSION: u32 = 17;
/// As a volume's name: whichever. A session that is about the server needs no certain one.
pub const ANY_VOLUME: &str = "/";
/// Bound of a message of the handshake.
pub const BYTES_MAX: usize = 4096;
pub(crate) const MAGIC: [u8; 8] = *b"aditwire";

/// The server's first message.
#[derive(Debug)]
pub enum Greeting {
    /// There is no session.
    Refused(Error),
    /// What it is.
    Hello(Hello),
}

/// What speaks, and in which version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    magic: [u8; 8],
    /// Of the protocol.
    pub version: u32,
}

/// The session's only message.
#[derive(PartialEq, Eq, Debug)]
pub struct Request {
    /// What speaks.
    pub hello: Hello,
    /// Name of the volume; empty: the only one.
    pub volume: String,
    /// The session will change nothing.
    pub read_only: bool,
    /// If the server ends, it will go on with the next one, which waits for it.
    pub comes_back: bool,
    /// What it asks for.
    pub aim: Aim,
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aim {
    /// A session.
    Begin,
    /// One that goes on with a session of a server that has ended.
    Resume(Claim),
    /// To keep what a session has open for a process that its own one starts, as long as the
    /// connection lives.
    Leave(Key),
    /// A session that begins with what was kept under this key.
    Inherit(Key),
    /// The memory of a file's shared mappings, which the session holds, or of its tail.
    Mapped(MappedFile),
    /// A session without memory, which only looks.
    Look,
    /// As `Inherit`, for the process that has left them itself, because it becomes another user: when
    /// the session that left them ends, this one has its locks, too.
    Move(Key),
    /// The host's pipe or socket of a node that the session has open for its rights.
    Node(Node),
}

/// Proves that a process may speak for a session, or have what was kept for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// Of the session, in this server.
    pub number: u64,
    /// Random. A session that goes on keeps it in the next server.
    pub secret: (u64, u64),
    /// Random. Sessions have it in common that began with what another one of them had left.
    pub family: u64,
}

/// The session with which another one goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// That of its server.
    pub opening: Opening,
    /// Its own. A process to which a session had left files, and that had no session yet, has the
    /// family of that one, and a secret that it makes itself.
    pub key: Key,
}

/// An open file of a session, for a connection that speaks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappedFile {
    /// Of the session.
    pub key: Key,
    /// Its number there.
    pub file: u64,
}

/// A pipe or a socket of the volume, for a connection that speaks for a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node {
    /// As the session has it open; its number is 0 with `BoundAs`.
    pub of: MappedFile,
    /// Its use.
    pub want: NodeUse,
}

/// The use that a session has for a pipe or a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeUse {
    /// To open the pipe, or to connect to the socket.
    Open,
    /// A socket of this type that is bound to the node, which the session's user owns. The path is
    /// what the socket says that it is bound to.
    Bind {
        /// The kernel's number of it.
        kind: u32,
        /// As long as `path_len` says.
        path: [u8; PATH_MAX],
        /// Bytes of the path.
        path_len: u8,
    },
    /// The path to which the socket of this inode was bound.
    BoundAs(BlobId),
}

/// Bytes of the path in the address of a socket.
pub const PATH_MAX: usize = 108;

/// An opening of a volume: what a server did with it between two closings or deaths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opening {
    /// The volume, its upper and its lower 64 bits.
    pub volume_id: (u64, u64),
    /// Counts its openings.
    pub epoch: u64,
}

/// What a session that goes on has to know of the end of its last server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resumed {
    /// The transactions that were applied ([`Slot`](crate::slot::Slot)'s receipts).
    pub applied: AppliedUpTo,
    /// Nobody has changed anything since: appends without a reply can be looked at, locks are free.
    pub in_grace: bool,
}

/// The server's second message.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one for each session")]
pub enum Answer {
    /// There is no session.
    Refused(Error),
    /// The session; its memory comes with the message.
    Begun(Begun),
    /// What the session has open is kept, under this key.
    Left(Key),
    /// The memory comes with the message.
    Mapped,
    /// A descriptor of the host's pipe or socket, for its path alone, or the socket that was bound
    /// comes with the message.
    Node,
    /// The path to which a socket was bound.
    BoundAs(Box<[u8]>),
    /// The session that only looks.
    Looking,
}

/// What a session knows of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Begun {
    /// Permission bits don't bind it, and it may act for other users: it is root's, or the server's
    /// own user's.
    pub privileged: bool,
    /// Name of the volume.
    pub volume: String,
    /// The server's cache, which the session may read itself: its number of frames, and where they
    /// begin. Two descriptors come behind that of the session's memory then: the cache's mapping
    /// and its version words.
    pub cache: Option<(u32, u64)>,
    /// The server's opening of the volume.
    pub opening: Opening,
    /// The session goes on with the one that it asked for.
    pub resumed: Option<Resumed>,
    /// Its own.
    pub key: Key,
}

impl Request {
    /// The session with which it goes on.
    pub fn resumes(&self) -> Option<Claim> {
        match self.aim {
            Aim::Resume(claim) => Some(claim),
            _ => None,
        }
    }
}

impl Hello {
    /// Of this version.
    pub fn ours() -> Hello {
        Hello {
            magic: MAGIC,
            version: VERSION,
        }
    }

    /// Is it one at all, of whatever version?
    pub fn is_adit(&self) -> bool {
        self.magic == MAGIC
    }
}

structs! {
    Hello { magic, version }
    Request { hello, volume, read_only, comes_back, aim }
    Key { number, secret, family }
    Claim { opening, key }
    MappedFile { key, file }
    Node { of, want }
    Opening { volume_id, epoch }
    Resumed { applied, in_grace }
    Begun { privileged, volume, cache, opening, resumed, key }
}
variants!(Greeting { 0 = Refused(error), 1 = Hello(hello) });
variants!(Answer { 0 = Refused(error), 1 = Begun(begun), 2 = Left(key), 3 = Mapped, 4 = Looking, 5 = Node, 6 = BoundAs(name) });
variants!(Aim { 0 = Begin, 1 = Resume(claim), 2 = Leave(key), 3 = Inherit(key), 4 = Mapped(of), 5 = Look, 6 = Move(key), 7 = Node(node) });
variants!(NodeUse { 0 = Open, 1 = Bind { kind, path, path_len }, 2 = BoundAs(inode) });
