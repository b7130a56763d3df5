//! A session with one server, from its begin to the server's end.
//!
//! Invariants: a slot belongs to one thread, or to one asynchronous operation, from
//! [`Link::try_take_slot`] until its reply is there, or until the next server has said what became
//! of its message. If neither comes, it stays taken: the server may still write into its area. A
//! link is never used again once it is lost.

use super::arena::Arena;
use super::mapped::Mapped;
use adit_base::clock::monotonic_ns;
use adit_base::fork::Registered;
use adit_base::patience::Patience;
use adit_base::simulation::{self, Bug, planted};
use adit_base::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use adit_base::{Errno, Error, Result};
use adit_block::Buffer;
use adit_wire::calls::{Close, FileCall, VolumeCall};
use adit_wire::handshake::{Begun, Key, Opening, Resumed};
use adit_wire::memory::{AREA_BYTES, SessionMemory};
use adit_wire::message::Message;
use adit_wire::slot::{Notes, Reply, SLOTS};
use adit_wire::value::{OwnedValue, Value};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// A thread that waits spins for so long: as long as an answer from memory takes.
const SPIN_NS: u64 = 20_000;
/// But only so long while the server has not taken the message: it may be waiting for this core.
const UNTAKEN_SPIN_NS: u64 = 1_000;
/// Then it lets other threads have its core between two looks, until it has waited for so long.
const YIELD_NS: u64 = 60_000;
/// Where sessions of this server wait for its core, it spins for so long before it yields.
const CROWDED_SPIN_NS: u64 = 2_000;
/// Where other programs compute on its core, it spins for so long and does not yield.
const SHORT_SPIN_NS: u64 = 3_000;
/// A sleeping thread looks so often whether the server is still there.
const WATCH: Duration = Duration::from_millis(50);

/// Asynchronous operations leave so many slots to threads that wait for replies.
const SPARED: u32 = 8;

/// A session with a server.
pub(super) struct Link {
    /// Tells links apart; a later one of a connection has a higher one.
    pub(super) number: u64,
    pub(super) memory: Arc<SessionMemory>,
    /// Its memory for buffers, once one was asked for.
    arena: OnceLock<Arc<Arena>>,
    /// The server's cache, if the session may read it itself.
    pub(super) cache: Option<Mapped>,
    /// The session may act for any user.
    pub(super) privileged: bool,
    /// None: the server has gone, and the session goes on with another one.
    socket: Mutex<Option<Arc<Socket>>>,
    /// A bit for each slot that no thread has.
    free: AtomicU64,
    /// The server has ended.
    is_lost: AtomicBool,
    /// The server's opening of the volume.
    pub(super) opening: Opening,
    /// With it, another connection may speak for the session.
    pub(super) key: Key,
    /// How the last server ended, if the session goes on with one of it.
    pub(super) resumed: Option<Resumed>,
    /// How this one ended, as the next server says.
    pub(super) ended: OnceLock<Resumed>,
    /// The session's own words about each slot.
    own: Box<[Own]>,
    /// Of the threads that wait for replies.
    patience: Patience,
}

/// The connection to a server.
pub(super) struct Socket {
    pub(super) fd: Registered<OwnedFd>,
}

/// The session's own words about a slot, in a cache line of the thread that has the slot.
#[derive(Default)]
#[repr(align(64))]
struct Own {
    /// How many messages it has had.
    messages: AtomicU64,
    /// The bytes of an append under way; 0: there is none.
    append_bytes: AtomicU64,
    /// 2: the append was done; 1: it was not; 0: that is not known.
    settled: AtomicU8,
}

/// The fate of a message that this server did not reply to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fate {
    /// Was its first transaction applied? None: that can't be known.
    pub(super) is_applied: Option<bool>,
    /// The offset of its append, and whether it was done. None: it did not begin.
    pub(super) append: Option<(u64, Option<bool>)>,
    /// All of a write was done, but perhaps its sync.
    pub(super) is_written: bool,
}

/// Why a message has no reply.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server says so, or there is no server any more.
    Error(Error),
    /// It is another server's now.
    Lost(Fate),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Error(error)
    }
}

/// A slot that a thread, or an asynchronous operation, has for itself.
pub(super) struct Taken<'c> {
    pub(super) link: &'c Link,
    slot: usize,
    /// The server slept when it was called.
    woke: bool,
    /// A message has begun, and neither its reply is taken nor its fate known.
    is_under_way: bool,
}

impl Link {
    pub(super) fn new(
        memory: SessionMemory,
        cache: Option<Mapped>,
        socket: Registered<OwnedFd>,
        begun: &Begun,
    ) -> Link {
        /// The next link's number.
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Link {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            memory: Arc::new(memory),
            arena: OnceLock::new(),
            cache,
            privileged: begun.privileged,
            socket: Mutex::new(Some(Arc::new(Socket { fd: socket }))),
            free: AtomicU64::new((1 << SLOTS) - 1),
            is_lost: AtomicBool::new(false),
            opening: begun.opening,
            key: begun.key,
            resumed: begun.resumed,
            ended: OnceLock::new(),
            own: (0..SLOTS).map(|_| Own::default()).collect(),
            patience: Patience::default(),
        }
    }

    /// A slot that no thread has; None: each has one.
    #[inline]
    pub(super) fn try_take_slot(&self) -> Option<Taken<'_>> {
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
                return Some(Taken {
                    link: self,
                    slot: free.trailing_zeros() as usize,
                    woke: false,
                    is_under_way: false,
                });
            }
        }
    }

    /// A slot that no thread has; None: hardly any is left to threads that wait for replies.
    pub(super) fn try_take_spare_slot(&self) -> Option<Taken<'_>> {
        let free = self.free.load(Ordering::Relaxed).count_ones();
        (free > SPARED).then(|| self.try_take_slot())?
    }

    /// Is a thread to sleep soon, and not to yield before?
    pub(super) fn is_short(&self, now_ns: u64) -> bool {
        self.patience.is_short(now_ns) && !self.memory.crowd_is_ours()
    }

    /// Does a message wait for a core?
    pub(super) fn is_crowded(&self, now_ns: u64) -> bool {
        self.patience.is_short(now_ns) || self.memory.crowd_is_ours()
    }

    /// Lets other threads have the core of this one. It doesn't matter how long threads of the same
    /// server's sessions have it.
    pub(super) fn yield_now(&self) {
        if self.memory.crowd_is_ours() {
            std::thread::yield_now()
        } else {
            self.patience.yield_now()
        }
    }

    /// How long a thread spins for a reply to what the server has taken.
    fn spin_ns(&self) -> u64 {
        if self.memory.crowd_is_ours() {
            CROWDED_SPIN_NS
        } else {
            SPIN_NS
        }
    }

    /// Sends the byte that wakes the server.
    pub(super) fn wake_server(&self) {
        // If it can't be sent, bytes lie there already, or nobody reads them any more.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if let Some(socket) = self.socket() {
            let _ = send(&socket.fd, &[0], flags);
        }
    }

    /// Waits until another reply than those of `count` is there to a message that was begun by
    /// [`Taken::begin_reported`], or until the timeout, or for no reason.
    pub(super) fn wait_for_reply(&self, count: u32, timeout: Duration) {
        let replies = self.memory.replies();
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let mut began_ns = 0;
        loop {
            for _ in 0..64 {
                if replies.count() != count {
                    return;
                }
                std::hint::spin_loop();
            }
            let now_ns = monotonic_ns();
            if began_ns == 0 {
                began_ns = now_ns;
            }
            let (spin_ns, yield_ns) = if self.is_short(now_ns) {
                (SHORT_SPIN_NS, SHORT_SPIN_NS)
            } else {
                (self.spin_ns(), YIELD_NS)
            };
            let waited_ns = now_ns.saturating_sub(began_ns);
            if waited_ns >= timeout_ns {
                return;
            } else if waited_ns < spin_ns {
            } else if waited_ns < yield_ns {
                self.yield_now();
            } else {
                return replies.sleep(count, Duration::from_nanos(timeout_ns - waited_ns));
            }
        }
    }

    /// A buffer in the session's memory; None: the server has gone, or there is no room.
    pub(super) fn buffer(&self, len_bytes: usize) -> Option<Buffer> {
        if self.is_known_lost() {
            return None;
        }
        let arena = || Arc::new(Arena::new(self.memory.clone()));
        self.arena.get_or_init(arena).buffer(len_bytes)
    }

    /// Where the bytes lie in the arena of this session, if one message moves them; None:
    /// elsewhere.
    #[inline]
    pub(super) fn place_in_arena(&self, start: *const u8, len: usize) -> Option<u64> {
        self.arena.get()?.offset_of(start, len)
    }

    /// The session goes on with another server, and no thread waits for this one: gives back
    /// memory.
    pub(super) fn discard(&self) {
        // In a forked child the arena's lock may be held for ever.
        if !self.memory.is_ours() {
            return;
        }
        let has_buffers = self.arena.get().is_some_and(|arena| !arena.is_unused());
        self.memory.discard(!has_buffers);
    }

    /// Is the server to be told of another user than the session's? Threads of a process that moves
    /// to another user's session call for the user that they were: that session acts for its own.
    pub(super) fn may_act_for(&self, is_moved: bool) -> bool {
        self.privileged || !is_moved
    }

    /// Does no thread wait for the server?
    pub(super) fn is_unused(&self) -> bool {
        self.free.load(Ordering::Acquire) == (1 << SLOTS) - 1
    }

    #[inline]
    pub(super) fn is_known_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    pub(super) fn note_lost(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    /// The connection, unless the session goes on with another one.
    pub(super) fn socket(&self) -> Option<Arc<Socket>> {
        self.socket
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The session goes on with another server: gives back what is not needed any more.
    pub(super) fn give_up(&self) {
        drop(
            self.socket
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        if let Some(cache) = &self.cache {
            cache.release();
        }
    }

    /// Has the server gone? Asks the kernel.
    pub(super) fn has_ended(&self) -> bool {
        if self.is_known_lost() {
            return true;
        }
        let Some(socket) = self.socket() else {
            return true;
        };
        let mut socket = [PollFd::new(&socket.fd, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let ready = poll(&mut socket, Some(&now)).unwrap_or(0);
        let ended = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        // A server says nothing after the handshake, so a message is the end as well.
        let lost = ready > 0 && socket[0].revents().intersects(ended | PollFlags::IN);
        if lost {
            self.note_lost();
        }
        lost
    }

    /// The appends under way that this server has begun and not replied to, and are not settled:
    /// slot, number of the file, offset, bytes.
    pub(super) fn unsettled_appends(&self) -> Vec<(usize, u64, u64, u64)> {
        let free = self.free.load(Ordering::Acquire);
        let under_way = (0..SLOTS).filter(|slot| free >> slot & 1 == 0);
        let unsettled = under_way.filter_map(|number| {
            let slot = self.memory.slot(number);
            let notes = self.notes(number)?;
            if slot.reply().is_some()
                || notes.is_written()
                || self.own[number].settled.load(Ordering::Relaxed) != 0
            {
                return None;
            }
            let offset = notes.appends()?;
            let len_bytes = self.own[number].append_bytes.load(Ordering::Relaxed);
            match Message::from_words(slot.words())? {
                Message::Write { file, .. } | Message::WriteArena { file, .. } => {
                    Some((number, file, offset, len_bytes))
                }
                _ => None,
            }
        });
        unsettled.collect()
    }

    /// An append was done, or nothing is left of it.
    pub(super) fn settle(&self, slot: usize, is_done: bool) {
        self.own[slot]
            .settled
            .store(1 + u8::from(is_done), Ordering::Release);
    }

    /// The server's notes of a slot's message; None: it has not begun.
    fn notes(&self, slot: usize) -> Option<&Notes> {
        let notes = self.memory.notes(slot);
        let message = self.own[slot].messages.load(Ordering::Acquire);
        notes.are_of(message).then_some(notes)
    }

    fn fate(&self, number: usize) -> Fate {
        let notes = self.notes(number);
        let applies = notes.and_then(Notes::applies);
        let is_applied = match (applies, self.ended.get()) {
            (None, _) => Some(false),
            (Some(_), Some(_)) if planted(Bug::RepeatedMessage) => Some(false),
            (Some(number), Some(ended)) => Some(ended.applied.has(number)),
            (Some(_), None) => None,
        };
        let append = notes.and_then(Notes::appends).map(|offset| {
            let is_done = match self.own[number].settled.load(Ordering::Acquire) {
                0 => None,
                settled => Some(settled == 2 && !planted(Bug::RepeatedAppend)),
            };
            (offset, is_done)
        });
        Fate {
            is_applied,
            append,
            is_written: notes.is_some_and(Notes::is_written),
        }
    }

    /// Does a call on behalf of the session's own user; waits for no other server.
    pub(super) fn volume_call<'a, C>(&self, call: &C) -> Result<C::Reply, Failure>
    where
        C: VolumeCall<'a>,
        C::Reply: OwnedValue,
    {
        let mut bytes = Vec::new();
        None::<adit_fs::Credentials>.put(&mut bytes);
        call.put(&mut bytes);
        let (number, len) = (C::NUMBER, bytes.len() as u32);
        self.call(&bytes, Message::VolumeCall { number, len })
    }

    /// Does a call about an open file; waits for no other server.
    pub(super) fn file_call<'a, C>(&self, file: u64, call: &C) -> Result<C::Reply, Failure>
    where
        C: FileCall<'a>,
        C::Reply: OwnedValue,
    {
        let bytes = call.encode();
        let (number, len) = (C::NUMBER, bytes.len() as u32);
        self.call(&bytes, Message::FileCall { number, file, len })
    }

    /// Opens again what was open, on behalf of a user.
    pub(super) fn reopen(
        &self,
        who: Option<adit_fs::Credentials>,
        call: &adit_wire::calls::Reopen,
    ) -> Result<(), Failure> {
        let mut bytes = Vec::new();
        who.put(&mut bytes);
        call.put(&mut bytes);
        let (number, len) = (adit_wire::calls::Reopen::NUMBER, bytes.len() as u32);
        self.call(&bytes, Message::VolumeCall { number, len })
    }

    fn call<T: OwnedValue>(&self, bytes: &[u8], message: Message) -> Result<T, Failure> {
        let taken = self.try_take_slot();
        let taken = taken.ok_or_else(|| Error::new(Errno::AGAIN))?;
        Link::call_by(taken, bytes, message)
    }

    /// Closes a file; waits for no other server. False: each slot is taken.
    pub(super) fn try_close(&self, file: u64) -> bool {
        let Some(taken) = self.try_take_slot() else {
            return false;
        };
        let bytes = Close {}.encode();
        let (number, len) = (Close::NUMBER, bytes.len() as u32);
        // Whatever the server says: the session has the file no more.
        let _ = Link::call_by::<()>(taken, &bytes, Message::FileCall { number, file, len });
        true
    }

    fn call_by<T: OwnedValue>(
        mut taken: Taken<'_>,
        bytes: &[u8],
        message: Message,
    ) -> Result<T, Failure> {
        taken.fill(bytes)?;
        taken.begin(message);
        match taken.wait() {
            Some(reply) => Ok(taken.decoded(reply?)?.0),
            None => Err(Failure::Lost(taken.fate())),
        }
    }
}

impl Taken<'_> {
    /// Puts bytes into the area. `E2BIG` for more than it has, which is more than any operation
    /// takes.
    pub(super) fn fill(&self, bytes: &[u8]) -> Result<()> {
        if self.link.memory.fill_area(self.slot, bytes) {
            Ok(())
        } else {
            Err(Errno::TOOBIG.into())
        }
    }

    /// Puts data into the area, at an offset.
    pub(super) fn put(&mut self, at: usize, data: &[u8]) {
        assert!(at + data.len() <= AREA_BYTES, "data fits into the area");
        let start = self.link.memory.area(self.slot);
        // SAFETY: within the area, which belongs to this thread between two messages.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), start.as_ptr().add(at), data.len()) };
    }

    /// Where the server's reply says that a further page of a read is.
    pub(super) fn further_hint(&self, index: usize) -> u64 {
        let place = self.link.memory.further_hint(self.slot, index);
        place.load(Ordering::Relaxed)
    }

    /// The first bytes of the area.
    pub(super) fn area(&self, len: usize) -> &[u8] {
        assert!(len <= AREA_BYTES, "{len} bytes lie in the area");
        let start = self.link.memory.area(self.slot);
        // SAFETY: mapped as long as the connection. The server changes it only while a message of
        // this slot is under way, and no reference lives then: `send` takes `&mut self`.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// The next message appends so many bytes; 0: none.
    pub(super) fn note_append(&self, bytes: u64) {
        self.link.own[self.slot]
            .append_bytes
            .store(bytes, Ordering::Relaxed);
    }

    /// Sends a message.
    #[inline]
    pub(super) fn begin(&mut self, message: Message) {
        self.note_message();
        let memory = &self.link.memory;
        memory.slot(self.slot).submit(message);
        self.woke = memory.doorbell().ring(self.slot);
        if self.woke {
            self.link.wake_server();
        }
    }

    /// Sends a message of which the reply is counted. True: the server has to be woken
    /// ([`Link::wake_server`]).
    pub(super) fn begin_reported(&mut self, message: Message) -> bool {
        self.note_message();
        let memory = &self.link.memory;
        memory.slot(self.slot).submit_reported(message);
        memory.doorbell().ring(self.slot)
    }

    /// The number of its slot, and of the next message there, counted from 1 on.
    pub(super) fn next_message(&self) -> (usize, u64) {
        let sent = self.link.own[self.slot].messages.load(Ordering::Relaxed);
        (self.slot, sent + 1)
    }

    /// The number of the slot, among those of all links.
    pub(super) fn place(&self) -> u64 {
        self.link.number * SLOTS as u64 + self.slot as u64
    }

    /// The reply to the message, if it is there.
    #[inline]
    pub(super) fn reply(&mut self) -> Option<Result<Reply>> {
        let reply = self.link.memory.slot(self.slot).reply()?;
        self.is_under_way = false;
        Some(self.checked(reply))
    }

    /// The fate of a message without a reply, once the next server has said how this one ended.
    /// Nobody writes into the slot's area any more.
    pub(super) fn fate(&mut self) -> Fate {
        self.is_under_way = false;
        self.link.fate(self.slot)
    }

    /// Another message of the slot begins.
    #[inline]
    fn note_message(&mut self) {
        assert!(!self.is_under_way, "a slot has one message at a time");
        self.is_under_way = true;
        let link = self.link;
        // Before the message: whoever finds no reply finds nothing of the append before it.
        let own = &link.own[self.slot];
        own.settled.store(0, Ordering::Relaxed);
        // One thread has the slot.
        let before = own.messages.load(Ordering::Relaxed);
        own.messages.store(before + 1, Ordering::Relaxed);
    }

    /// Waits for the reply; None: the server has ended, and perhaps not replied.
    #[inline]
    pub(super) fn wait(&mut self) -> Option<Result<Reply>> {
        let slot = self.link.memory.slot(self.slot);
        let link = self.link;
        let doorbell = self.link.memory.doorbell();
        let mut began_ns = 0;
        loop {
            if simulation::pause() {
                match self.reply() {
                    None if link.has_ended() => return self.reply(),
                    None => continue,
                    reply => return reply,
                }
            }
            for _ in 0..64 {
                if let Some(reply) = self.reply() {
                    return Some(reply);
                }
                std::hint::spin_loop();
            }
            let now_ns = monotonic_ns();
            if began_ns == 0 {
                began_ns = now_ns;
            }
            let (spin_ns, yield_ns) = match link.is_short(now_ns) {
                // The server may need this core.
                true if self.woke => (0, 0),
                true => (SHORT_SPIN_NS, SHORT_SPIN_NS),
                // The server may need this core.
                false if self.woke => (0, YIELD_NS),
                false if doorbell.is_rung(self.slot) => (UNTAKEN_SPIN_NS, YIELD_NS),
                false => (link.spin_ns(), YIELD_NS),
            };
            match now_ns.saturating_sub(began_ns) {
                waited_ns if waited_ns < spin_ns => {}
                waited_ns if waited_ns < yield_ns => link.yield_now(),
                _ => {
                    slot.sleep(WATCH);
                    if slot.reply().is_none() && link.has_ended() {
                        return self.reply();
                    }
                }
            }
        }
    }

    /// The reply, or its error.
    fn checked(&self, reply: Reply) -> Result<Reply> {
        if reply.errno == 0 {
            return if reply.len as usize <= AREA_BYTES {
                Ok(reply)
            } else {
                Err(foreign())
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

    /// The result of a call, which is in the area, and the hint.
    pub(super) fn decoded<T: OwnedValue>(&self, reply: Reply) -> Result<(T, u64)> {
        let value = T::decode(self.area(reply.len as usize)).ok_or_else(foreign)?;
        Ok((value, reply.hint))
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // The server may still write into the area of a message that is under way.
        if !self.is_under_way {
            let bit = 1 << self.slot;
            let before = self.link.free.fetch_or(bit, Ordering::Release);
            assert!(before & bit == 0, "one thread had the slot");
        }
    }
}

/// The server's reply can't be one.
#[cold]
pub(super) fn foreign() -> Error {
    Error::with(Errno::PROTO, "understand the reply of a server")
}
