//! A connection to a server that has the volume: the session's side of the protocol.
//!
//! Invariants: a slot belongs to one thread from [`Connection::take_slot`] until its reply is there.
//! If the server ends before, the slot is never used again. A forked child has no connection: the
//! memory is not there in it, and its copy of the socket is closed.

mod connect;
mod file;
mod mapped;

pub(crate) use connect::{ADDRESS_PREFIX, connect};
pub(crate) use file::{RemoteFile, wait_for_lock};

use mapped::Mapped;

use adit_base::clock::monotonic_ns;
use adit_base::fork::ChildGuard;
use adit_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use adit_base::{Errno, Error, Result};
use adit_fs::Credentials;
use adit_reactor::Engine;
use adit_wire::calls::{FileCall, Place, VolumeCall};
use adit_wire::memory::{AREA_BYTES, SessionMemory};
use adit_wire::message::Message;
use adit_wire::slot::Reply;
use adit_wire::value::{OwnedValue, Value};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A thread that waits spins for so long: as long as an answer from memory takes.
const SPIN_NS: u64 = 20_000;
/// Then it lets other threads have its core between two looks, until it has waited for so long.
const YIELD_NS: u64 = 60_000;
/// The file system follows no longer path.
const PATH_BYTES_MAX: usize = 4095;
/// A sleeping thread looks so often whether the server is still there.
const WATCH: Duration = Duration::from_millis(50);

/// A session with a server.
pub(crate) struct Connection {
    memory: SessionMemory,
    /// The server's cache, if the session may read it itself.
    cache: Option<Mapped>,
    /// Before the socket: unregistered before it is closed.
    _guard: ChildGuard,
    socket: OwnedFd,
    address: String,
    /// A bit for each slot that no thread has.
    free: AtomicU64,
    /// The server has ended.
    is_lost: AtomicBool,
    /// The user that the server knows the session by.
    own: Credentials,
    /// Holds queues of completions, and nothing else.
    queues: OnceLock<Arc<Engine<()>>>,
}

/// A slot that a thread has for itself.
pub(crate) struct Taken<'c> {
    connection: &'c Connection,
    slot: usize,
}

impl Connection {
    /// A slot that no thread has.
    fn take_slot(&self) -> Result<Taken<'_>> {
        if self.is_lost.load(Ordering::Relaxed) {
            return Err(self.lost());
        }
        let mut rounds = 0u32;
        loop {
            if let Some(taken) = self.try_take_slot() {
                return Ok(taken);
            }
            if self.has_ended() {
                return Err(self.lost());
            }
            // More threads than slots.
            match rounds {
                0..100 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
            rounds = rounds.saturating_add(1);
        }
    }

    /// The same, if there is one now. A thread that has one waits for no other.
    fn try_take_slot(&self) -> Option<Taken<'_>> {
        loop {
            let free = self.free.load(Ordering::Relaxed);
            if free == 0 {
                return None;
            }
            // The lowest one: its memory was touched before, and lies in the cache.
            let taken = self.free.compare_exchange_weak(
                free,
                free & (free - 1),
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            if taken.is_ok() {
                let slot = free.trailing_zeros() as usize;
                return Some(Taken {
                    connection: self,
                    slot,
                });
            }
        }
    }

    /// Has the server gone? Asks the kernel.
    fn has_ended(&self) -> bool {
        if self.is_lost.load(Ordering::Relaxed) {
            return true;
        }
        let mut socket = [PollFd::new(&self.socket, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let ready = poll(&mut socket, Some(&now)).unwrap_or(0);
        let ended = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        // A server says nothing after the handshake, so a message is the end as well.
        let lost = ready > 0 && socket[0].revents().intersects(ended | PollFlags::IN);
        if lost {
            self.is_lost.store(true, Ordering::Relaxed);
        }
        lost
    }

    #[cold]
    fn lost(&self) -> Error {
        let what = format!(
            "ask the server at {}: it has ended, or ended the session; open the volume again",
            self.address
        );
        Error::with(Errno::PIPE, what)
    }

    /// Does a call about the volume on behalf of a user.
    pub(crate) fn volume_call<'a, C>(&self, who: &Credentials, call: &C) -> Result<C::Reply>
    where
        C: VolumeCall<'a>,
        C::Reply: OwnedValue,
    {
        let mut bytes = Vec::with_capacity(256);
        (*who != self.own).then(|| who.clone()).put(&mut bytes);
        call.put(&mut bytes);
        let taken = self.take_slot()?;
        taken
            .fill(&bytes)
            .map_err(|error| too_long(&call.places(), error))?;
        let len = bytes.len() as u32;
        let number = C::NUMBER;
        taken.call(Message::VolumeCall { number, len })
    }

    /// Does a call about an open file.
    pub(crate) fn file_call<'a, C>(&self, file: u64, call: &C) -> Result<C::Reply>
    where
        C: FileCall<'a>,
        C::Reply: OwnedValue,
    {
        let bytes = call.encode();
        let taken = self.take_slot()?;
        taken.fill(&bytes)?;
        let len = bytes.len() as u32;
        let number = C::NUMBER;
        taken.call(Message::FileCall { number, file, len })
    }

    /// An engine that only holds queues of completions.
    pub(crate) fn queues(&self) -> Result<&Arc<Engine<()>>> {
        if let Some(engine) = self.queues.get() {
            return Ok(engine);
        }
        let device = adit_block::open_device("mem:1M", &adit_block::DeviceOptions::default())?;
        let options = adit_reactor::EngineOptions {
            queue_depth: 1,
            keeper: false,
            name: self.address.clone(),
        };
        let engine = Engine::start(device, options, |_| async { Ok(()) })?;
        Ok(self.queues.get_or_init(|| engine))
    }
}

impl Taken<'_> {
    /// Puts bytes into the area. `E2BIG` for more than it has, which is more than any operation
    /// takes.
    fn fill(&self, bytes: &[u8]) -> Result<()> {
        match self.connection.memory.fill_area(self.slot, bytes) {
            true => Ok(()),
            false => Err(Errno::TOOBIG.into()),
        }
    }

    /// The first bytes of the area.
    fn area(&self, len: usize) -> &[u8] {
        assert!(len <= AREA_BYTES, "{len} bytes lie in the area");
        let start = self.connection.memory.area(self.slot);
        // SAFETY: mapped as long as the connection. The server changes it only while a message of
        // this slot is under way, and no reference lives then: `send` takes `&mut self`.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// Sends a message and waits for its reply.
    fn send(&mut self, message: Message) -> Result<Reply> {
        self.begin(message);
        self.end()
    }

    /// Sends a message; [`end`](Self::end) must follow.
    fn begin(&mut self, message: Message) {
        let connection = self.connection;
        let slot = connection.memory.slot(self.slot);
        slot.submit(message);
        if connection.memory.doorbell().ring(self.slot) {
            // If it can't be sent, bytes lie there already, or nobody reads them any more.
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = send(&connection.socket, &[0], flags);
        }
    }

    /// Waits for the reply.
    fn end(&mut self) -> Result<Reply> {
        let connection = self.connection;
        let slot = connection.memory.slot(self.slot);
        let mut began_ns = 0;
        loop {
            for _ in 0..64 {
                if let Some(reply) = slot.reply() {
                    return self.checked(reply);
                }
                std::hint::spin_loop();
            }
            let now_ns = monotonic_ns();
            if began_ns == 0 {
                began_ns = now_ns;
            }
            match now_ns.saturating_sub(began_ns) {
                0..SPIN_NS => {}
                SPIN_NS..YIELD_NS => std::thread::yield_now(),
                _ => {
                    slot.sleep(WATCH);
                    if slot.reply().is_none() && connection.has_ended() && slot.reply().is_none() {
                        // The slot stays taken: nobody knows what was done of its message.
                        self.slot = usize::MAX;
                        return Err(connection.lost());
                    }
                }
            }
        }
    }

    /// The reply, or its error.
    fn checked(&self, reply: Reply) -> Result<Reply> {
        if reply.errno == 0 {
            return match reply.len as usize <= AREA_BYTES {
                true => Ok(reply),
                false => Err(foreign()),
            };
        }
        let words = (reply.len as usize <= AREA_BYTES).then(|| self.area(reply.len as usize));
        let error = words
            .filter(|words| !words.is_empty())
            .and_then(Error::decode);
        let errno = i32::try_from(reply.errno).ok();
        let errno = errno.filter(|raw| (1..4096).contains(raw));
        Err(error.unwrap_or_else(|| match errno {
            Some(errno) => Errno::from_raw(errno).into(),
            None => foreign(),
        }))
    }

    /// Sends a call; its reply is in the area.
    fn call<T: OwnedValue>(mut self, message: Message) -> Result<T> {
        let reply = self.send(message)?;
        T::decode(self.area(reply.len as usize)).ok_or_else(foreign)
    }
}

/// The error of a call that is too large: that of a path, as without a server, or another one.
#[cold]
fn too_long(places: &[Option<Place<'_>>; 2], error: Error) -> Error {
    let mut paths = places.iter().flatten().filter_map(|place| place.path);
    match paths.any(|path| path.len() > PATH_BYTES_MAX) {
        true => Errno::NAMETOOLONG.into(),
        false => error,
    }
}

/// The server's reply can't be one.
#[cold]
fn foreign() -> Error {
    Error::with(Errno::PROTO, "understand the reply of a server")
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.slot != usize::MAX {
            let bit = 1 << self.slot;
            let before = self.connection.free.fetch_or(bit, Ordering::Release);
            debug_assert!(before & bit == 0, "one thread had the slot");
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({})", self.address)
    }
}
