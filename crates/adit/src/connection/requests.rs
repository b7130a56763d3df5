//! Asynchronous operations of a session: one thread has several messages under way.
//!
//! An engine of the reactor runs them as it runs those of an embedded volume, so handles, queues of
//! completions and the keeper are the same. Each operation is a task; the engine's device is the
//! server, and a request to it is "the reply in that slot":
//! ```text
//! task:    takes a slot, fills its area, rings, submits the slot's place ──► awaits, copies, returns
//! driver:  Replies::poll finds replies ◄── Waiting::wait sleeps until the server counts one
//! ```
//! Invariants:
//! 1. The server writes into the area of a slot, between which and the caller's memory the task
//!    copies, or into a buffer of the arena, which the task keeps until the reply. A task that is
//!    dropped leaves its slot taken, and nothing else.
//! 2. Operations take slots in the order in which they were started. One that needs a slot holds
//!    none, so more operations than slots wait, and don't block each other. Some slots are left to
//!    threads that wait for a reply: one of them may bring what another thread waits for.
//! 3. A sync, and a write with its sync, waits for the writes of its file that were started before
//!    it, so that it covers them; that of the volume for all changes. The server may begin messages in
//!    another order than that in which they were sent.
//! 4. Nothing waits under the worker's lock. Between two servers operations wait for the thread that
//!    watches the connection. Where there is none, no next server is waited for; or it could not be
//!    started: then an operation looks for the next server itself, and all others wait for it.

use super::file::{Unknown, append_too_large, fate_of_write};
use super::link::{Failure, Fate, Taken};
use super::{Answered, Connection, Opening, RemoteFile};
use adit_base::simulation;
use adit_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use adit_base::{Errno, Error, Result};
use adit_block::{
    Capabilities, Completion, Device, Doorbell, Geometry, Queue, Request, Submission,
};
use adit_fs::{BlobId, Credentials, OpenFlags};
use adit_reactor::sync::{Event, RwLock};
use adit_reactor::{Engine, EngineOptions, Reactor};
use adit_wire::calls::VolumeCall;
use adit_wire::memory::{COLLECTED_BYTES_MAX, DATA_BYTES_MAX};
use adit_wire::message::{Message, WriteFlags};
use adit_wire::slot::{Reply, SLOTS};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Between two looks whether other threads have given back a slot.
const SLOT_PAUSE: Duration = Duration::from_micros(50);
/// Between two looks whether there is a next server.
const SERVER_PAUSE: Duration = Duration::from_millis(1);

/// An operation on an open file.
pub(crate) enum Work {
    /// Read; the result is the number of bytes.
    Read {
        /// Where to.
        memory: Pieces,
        /// Position in the file.
        offset: u64,
    },
    /// Write; the result is the offset of an append.
    Write {
        /// Where from.
        memory: Pieces,
        /// Position in the file.
        offset: u64,
        /// How.
        flags: WriteFlags,
    },
    /// As fdatasync, or as fsync.
    Sync {
        /// As fsync?
        all: bool,
    },
}

/// Pieces of a caller's memory, one behind the other: start and length in bytes.
pub(crate) struct Pieces(Vec<(*mut u8, usize)>);

// SAFETY: `Pieces::new` requires that the memory is valid, and used for nothing else, until the work
// is done.
unsafe impl Send for Pieces {}

impl Pieces {
    /// # Safety
    /// The pieces are valid, and used for nothing else, as long as there is this. They are only read
    /// by [`Work::Write`].
    pub(crate) unsafe fn new(pieces: impl IntoIterator<Item = (*mut u8, usize)>) -> Pieces {
        Pieces(pieces.into_iter().filter(|(_, len)| *len > 0).collect())
    }

    fn len(&self) -> usize {
        self.0.iter().map(|(_, len)| len).sum()
    }

    /// The piece, if there is one.
    fn one(&self) -> Option<(*const u8, usize)> {
        match self.0[..] {
            [(start, len)] => Some((start.cast_const(), len)),
            _ => None,
        }
    }

    /// The parts of `len` bytes from `from` on, each with its place among these.
    fn parts(&self, from: usize, len: usize) -> impl Iterator<Item = (*mut u8, usize, usize)> {
        let mut begin = 0;
        self.0.iter().filter_map(move |(start, piece)| {
            let (first, end) = (begin.max(from), (begin + piece).min(from + len));
            // SAFETY: used below only where `first` lies in the piece.
            let part = (first < end).then(|| unsafe { start.add(first - begin) });
            begin += piece;
            part.map(|part| (part, first - from, end - first))
        })
    }

    /// Puts bytes there, from `at` on.
    fn put(&self, at: usize, bytes: &[u8]) {
        for (start, from, len) in self.parts(at, bytes.len()) {
            // SAFETY: the part is valid and unused by others, as `new` requires.
            unsafe { std::ptr::copy_nonoverlapping(bytes[from..].as_ptr(), start, len) };
        }
    }

    /// Puts `len` bytes from `at` on into a slot's area.
    fn fill(&self, taken: &mut Taken<'_>, at: usize, len: usize) {
        for (start, from, len) in self.parts(at, len) {
            // SAFETY: valid, and changed by nobody, as `new` requires.
            taken.put(from, unsafe { std::slice::from_raw_parts(start, len) });
        }
    }

    /// As slices of bytes, to read them.
    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let pieces = self.0.iter();
        // SAFETY: as in `fill`.
        pieces.map(|(start, len)| unsafe { std::slice::from_raw_parts(*start, *len) })
    }

    /// As slices of bytes, to change them.
    fn slices_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let pieces = self.0.iter();
        // SAFETY: valid and unused by others, as `new` requires.
        pieces.map(|(start, len)| unsafe { std::slice::from_raw_parts_mut(*start, *len) })
    }
}

/// The state of the engine.
pub(crate) struct Requests {
    reactor: Rc<Reactor>,
    server: Arc<Waiting>,
    /// Held by the operation that takes the next slot.
    line: RwLock,
    /// An operation has given back its slot.
    freed: Event,
    /// Slots that operations have.
    slots: Cell<usize>,
    /// The changes under way, in the order in which they were started: the file of a write; None: a
    /// change of names.
    changes: RefCell<BTreeMap<u64, Option<BlobId>>>,
    next_change: Cell<u64>,
    /// A change is done.
    changed: Event,
}

/// A change under way.
struct BegunChange<'r> {
    requests: &'r Requests,
    number: u64,
}

impl Drop for BegunChange<'_> {
    fn drop(&mut self) {
        self.requests.changes.borrow_mut().remove(&self.number);
        self.requests.changed.notify_all();
    }
}

/// A slot of an operation.
struct Held<'r, 'c> {
    requests: &'r Requests,
    taken: Taken<'c>,
}

impl Drop for Held<'_, '_> {
    fn drop(&mut self) {
        self.requests.slots.set(self.requests.slots.get() - 1);
        self.requests.freed.notify_all();
    }
}

/// Starts the engine of a connection.
pub(crate) fn start(connection: &Arc<Connection>) -> Result<Arc<Engine<Requests>>> {
    let server = Arc::new(Waiting {
        connection: Arc::downgrade(connection),
        link: AtomicU64::new(0),
        count: AtomicU32::new(0),
        must_wake: AtomicBool::new(false),
    });
    let options = EngineOptions {
        queue_depth: SLOTS as u32,
        // In a simulated world there are no threads.
        keeper: !simulation::pause(),
        name: connection.address.clone(),
    };
    let device = Arc::new(Server(server.clone()));
    Engine::start(device, options, |reactor| async {
        Ok(Requests {
            reactor,
            server,
            line: RwLock::new(),
            freed: Event::new(),
            slots: Cell::new(0),
            changes: RefCell::default(),
            next_change: Cell::new(0),
            changed: Event::new(),
        })
    })
}

impl Requests {
    /// The reactor of the operations.
    pub(crate) fn reactor(&self) -> &Rc<Reactor> {
        &self.reactor
    }

    /// Does work with an open file.
    pub(crate) async fn perform(
        &self,
        connection: &Connection,
        file: &RemoteFile,
        work: &Work,
    ) -> Result<u64> {
        match work {
            Work::Read { memory, offset } => {
                let read = async |taken: &mut Taken<'_>| {
                    self.read_pieces(taken, file, *offset, memory).await
                };
                self.with_slot(connection, read, async |_| None).await
            }
            Work::Write {
                memory,
                offset,
                flags,
            } => {
                let begun = self.begin_change(Some(file.id));
                if flags.intersects(WriteFlags::SYNC_ALL | WriteFlags::SYNC_DATA) {
                    self.changes_before_number(begun.number, Some(file.id))
                        .await;
                }
                self.write(connection, file, *offset, memory, *flags).await
            }
            Work::Sync { all } => {
                self.changes_before(Some(file.id)).await;
                self.sync(connection, file, *all).await.map(|()| 0)
            }
        }
    }

    fn begin_change(&self, file: Option<BlobId>) -> BegunChange<'_> {
        let number = self.next_change.get();
        self.next_change.set(number + 1);
        self.changes.borrow_mut().insert(number, file);
        BegunChange {
            requests: self,
            number,
        }
    }

    /// Waits for what was started before: the writes of a file, or all changes.
    pub(crate) async fn changes_before(&self, file: Option<BlobId>) {
        self.changes_before_number(self.next_change.get(), file)
            .await;
    }

    async fn changes_before_number(&self, number: u64, file: Option<BlobId>) {
        let is_awaited = |of: &Option<BlobId>| file.is_none() || *of == file;
        while self
            .changes
            .borrow()
            .range(..number)
            .any(|(_, of)| is_awaited(of))
        {
            self.changed.wait().await;
        }
    }

    /// Does a call about the volume that looks, or answers nothing.
    pub(crate) async fn volume_call<'a, C>(
        &self,
        connection: &Connection,
        who: &Credentials,
        call: &C,
    ) -> Result<C::Reply>
    where
        C: VolumeCall<'a>,
    {
        let ask = async |taken: &mut Taken<'_>| {
            let message = connection.fill_call(taken, who, call)?;
            let reply = self.send(taken, message).await?;
            Ok(taken.decoded(reply)?.0)
        };
        // Of such a call it sends no message of its own, which this thread would wait for.
        let settle = async |fate: &Fate| connection.outcome(who, call, fate);
        self.with_slot(connection, ask, settle).await
    }

    /// Does a call that changes names and answers nothing.
    pub(crate) async fn change<'a, C>(
        &self,
        connection: &Connection,
        who: &Credentials,
        call: &C,
    ) -> Result<()>
    where
        C: VolumeCall<'a, Reply = ()>,
    {
        let _begun = self.begin_change(None);
        self.volume_call(connection, who, call).await
    }

    /// Opens what a path names, as [`Connection::open`].
    pub(crate) async fn open(
        &self,
        connection: &Connection,
        who: &Credentials,
        mut opening: Opening<'_>,
    ) -> Result<RemoteFile> {
        let _begun = self.begin_change(None);
        loop {
            let mut held = self.take_slot(connection).await?;
            let link = held.taken.link;
            let message = opening.fill(&held.taken, who, connection)?;
            let replied = self.send(&mut held.taken, message).await;
            let replied = replied.and_then(|reply| Ok(held.taken.decoded(reply)?));
            drop(held);
            match replied {
                Ok((reply, hint)) => {
                    let answer = Answered { reply, hint, link };
                    let kept = loop {
                        match connection.try_keep(&answer, who) {
                            Some(kept) => break kept,
                            None => self.reactor.sleep(SERVER_PAUSE).await,
                        }
                    };
                    match kept {
                        Some(file) => return Ok(file),
                        None => opening.forget(),
                    }
                }
                Err(failure) => connection.after(&mut opening, failure)?,
            }
        }
    }

    /// A slot, of a server that is there.
    async fn take_slot<'c>(&self, connection: &'c Connection) -> Result<Held<'_, 'c>> {
        let _line = self.line.write().await;
        loop {
            let link = connection.link();
            if let Some(error) = connection.error_of_end(link) {
                return Err(error);
            }
            if link.is_known_lost() {
                self.reactor.sleep(SERVER_PAUSE).await;
                connection.go_on_unless_watched(link);
                continue;
            }
            let has_none = self.slots.get() == 0;
            let taken = match has_none {
                true => link.try_take_slot(Some(connection)),
                false => link.try_take_spare_slot(connection),
            };
            if let Some(taken) = taken {
                self.slots.set(self.slots.get() + 1);
                return Ok(Held {
                    requests: self,
                    taken,
                });
            }
            match has_none {
                true => self.reactor.sleep(SLOT_PAUSE).await,
                false => self.freed.wait().await,
            }
        }
    }

    /// As [`Connection::with_slot`].
    async fn with_slot<'c, T>(
        &self,
        connection: &'c Connection,
        mut operation: impl AsyncFnMut(&mut Taken<'c>) -> Result<T, Failure>,
        mut settle: impl AsyncFnMut(&Fate) -> Option<Result<T>>,
    ) -> Result<T> {
        loop {
            let mut held = self.take_slot(connection).await?;
            match operation(&mut held.taken).await {
                Ok(done) => return Ok(done),
                Err(Failure::Error(error)) => return Err(error),
                Err(Failure::Lost(fate)) => {
                    drop(held);
                    if let Some(settled) = settle(&fate).await {
                        return settled;
                    }
                }
            }
        }
    }

    /// Sends a message and waits for its reply.
    async fn send(&self, taken: &mut Taken<'_>, message: Message) -> Result<Reply, Failure> {
        if taken.begin_reported(message) {
            self.server.must_wake.store(true, Ordering::Relaxed);
        }
        let mut request = Request::flush(0);
        request.offset_bytes = taken.place();
        let replied = self.reactor.submit(request).await;
        replied.result.map_err(Error::from)?;
        taken.end_reported()
    }

    async fn read_pieces(
        &self,
        taken: &mut Taken<'_>,
        file: &RemoteFile,
        offset: u64,
        memory: &Pieces,
    ) -> Result<u64, Failure> {
        let wanted = memory.len();
        if let Some(one) = memory.one()
            && let Some(message) = taken.read_in_place(file, offset, one)
        {
            let got = self.send(taken, message).await?.value;
            return match got <= wanted as u64 {
                true => Ok(got),
                false => Err(super::foreign().into()),
            };
        }
        let mut done = 0;
        loop {
            let len = (wanted - done).min(DATA_BYTES_MAX);
            let message = Message::Read {
                file: file.number,
                len: len as u32,
                offset: offset.saturating_add(done as u64),
                hint: taken.link.cache.is_some() && done == 0,
            };
            let reply = self.send(taken, message).await?;
            let got = reply.value as usize;
            if got > len {
                return Err(super::foreign().into());
            }
            if done == 0 {
                taken.note_hints(file, offset, got, reply.hint);
            }
            memory.put(done, taken.area(got));
            done += got;
            if got < len || done == wanted {
                return Ok(done as u64);
            }
        }
    }

    async fn write(
        &self,
        connection: &Connection,
        file: &RemoteFile,
        offset: u64,
        memory: &Pieces,
        flags: WriteFlags,
    ) -> Result<u64> {
        let len = memory.len();
        let appends = flags.contains(WriteFlags::APPEND) || file.flags.contains(OpenFlags::APPEND);
        if appends && len > COLLECTED_BYTES_MAX {
            return Err(append_too_large(len));
        }
        let mut done = 0;
        loop {
            let offset = offset.saturating_add(done as u64);
            let whole = (len - done).min(COLLECTED_BYTES_MAX);
            // The sync comes behind all of it.
            let flags = match done + whole == len {
                true => flags,
                false => WriteFlags::empty(),
            };
            let write = async |taken: &mut Taken<'_>| {
                taken.note_append(if appends { len as u64 } else { 0 });
                self.write_whole(taken, file, offset, (memory, done, whole), flags)
                    .await
            };
            let settle = async |fate: &Fate| match fate_of_write(fate)? {
                Ok(at) => Some(
                    self.sync_written(connection, file, flags)
                        .await
                        .map(|()| at),
                ),
                Err(Unknown) => Some(Err(connection.unknown())),
            };
            let value = self.with_slot(connection, write, settle).await?;
            done += whole;
            if done == len {
                return Ok(value);
            }
        }
    }

    /// Writes `len` bytes of `memory` from `from` on in one operation of the server's; the offset of
    /// an append.
    async fn write_whole(
        &self,
        taken: &mut Taken<'_>,
        file: &RemoteFile,
        offset: u64,
        (memory, from, len): (&Pieces, usize, usize),
        flags: WriteFlags,
    ) -> Result<u64, Failure> {
        if let Some(one) = memory.one().filter(|(_, all)| *all == len)
            && let Some(message) = taken.write_in_place(file, offset, one, flags)
        {
            return Ok(self.send(taken, message).await?.value);
        }
        let mut sent = 0;
        loop {
            let piece = (len - sent).min(DATA_BYTES_MAX);
            let is_first = sent == 0;
            memory.fill(taken, from + sent, piece);
            sent += piece;
            let is_last = sent == len;
            let message = Message::Write {
                file: file.number,
                len: piece as u32,
                offset: if is_last { offset } else { len as u64 },
                flags: if is_last { flags } else { WriteFlags::MORE },
            };
            let reply = loop {
                match self.send(taken, message).await {
                    // Other large writes come first.
                    Err(Failure::Error(error))
                        if is_first && !is_last && error.errno() == Errno::AGAIN =>
                    {
                        self.reactor.sleep(SERVER_PAUSE).await;
                    }
                    reply => break reply?,
                }
            };
            if is_last {
                return Ok(reply.value);
            }
        }
    }

    async fn sync(&self, connection: &Connection, file: &RemoteFile, all: bool) -> Result<()> {
        let file = file.number;
        let sync = async |taken: &mut Taken<'_>| {
            let replied = self.send(taken, Message::Sync { file, all }).await;
            replied.map(drop)
        };
        self.with_slot(connection, sync, async |_| None).await
    }

    /// The sync of a write that was done before its server ended.
    async fn sync_written(
        &self,
        connection: &Connection,
        file: &RemoteFile,
        flags: WriteFlags,
    ) -> Result<()> {
        match flags.intersects(WriteFlags::SYNC_ALL | WriteFlags::SYNC_DATA) {
            true => {
                self.sync(connection, file, flags.contains(WriteFlags::SYNC_ALL))
                    .await
            }
            false => Ok(()),
        }
    }
}

impl Work {
    fn changes(&self) -> bool {
        matches!(self, Work::Write { .. })
    }

    /// It is about to be started; [`end`](Self::end) must follow.
    pub(crate) fn begin(&self, connection: &Connection) {
        if self.changes() {
            connection.begin_change();
        }
    }

    /// It is done.
    pub(crate) fn end(&self, connection: &Connection) {
        if self.changes() {
            connection.end_change();
        }
    }
}

impl Connection {
    /// An asynchronous operation that changes something is about to be started.
    pub(crate) fn begin_change(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// It is done. If it can't be any more, since the engine has failed, syncs ask that in vain.
    pub(crate) fn end_change(&self) {
        self.changes.fetch_sub(1, Ordering::Release);
    }

    /// Is such an operation under way?
    pub(crate) fn has_changes(&self) -> bool {
        self.changes.load(Ordering::Acquire) > 0
    }

    /// Does work with an open file, and blocks: where no engine can do it, in a forked child of the
    /// process that has one.
    pub(crate) fn perform(&self, file: &RemoteFile, work: &mut Work) -> Result<u64> {
        match work {
            Work::Read { memory, offset } => {
                let mut slices: Vec<_> =
                    memory.slices_mut().map(std::io::IoSliceMut::new).collect();
                self.read(file, *offset, &mut slices).map(|got| got as u64)
            }
            Work::Write {
                memory,
                offset,
                flags,
            } => {
                let slices: Vec<_> = memory.slices().map(std::io::IoSlice::new).collect();
                self.write(file, *offset, &slices, *flags)
            }
            Work::Sync { all } => self.sync(file, *all).map(|()| 0),
        }
    }

    /// A read that needs no message; None: it does.
    pub(crate) fn read_mapped(&self, file: &RemoteFile, work: &mut Work) -> Option<u64> {
        let Work::Read { memory, offset } = work else {
            return None;
        };
        let mut slices = memory.slices_mut();
        let (Some(one), None) = (slices.next(), slices.next()) else {
            return None;
        };
        self.read_cached(file, *offset, one)
            .then_some(one.len() as u64)
    }

    /// Why this link has no successor, if it is the last one and none is looked for.
    pub(super) fn error_of_end(&self, link: &super::Link) -> Option<Error> {
        let why = self.end.get().filter(|_| self.is_current(link))?;
        Some(self.ended(why))
    }

    /// A link is lost: looks for the next server, unless a thread of the connection does.
    fn go_on_unless_watched(&self, link: &super::Link) {
        if !self.is_watched.load(Ordering::Acquire) {
            // An error is what all operations find.
            let _ = self.resume(link);
        }
    }
}

/// The server as a device: its requests are the replies in slots.
struct Server(Arc<Waiting>);

/// Waits for replies.
struct Waiting {
    connection: Weak<Connection>,
    /// The number of the link that `count` is of.
    link: AtomicU64,
    /// The replies that had been counted before the last look at the slots.
    count: AtomicU32,
    /// The server slept when a message was sent.
    must_wake: AtomicBool,
}

/// The replies that operations wait for.
struct Replies {
    server: Arc<Waiting>,
    awaited: Vec<Request>,
}

impl Device for Server {
    fn name(&self) -> String {
        "a server".into()
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: 0,
            logical_block_bytes: 512,
            physical_block_bytes: 512,
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            volatile_cache: false,
            fua: false,
            discard: false,
            write_zeroes: false,
            atomic_write_bytes: 512,
            inline: false,
            queued: true,
        }
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn Queue>> {
        Ok(Box::new(Replies {
            server: self.0.clone(),
            awaited: Vec::with_capacity(depth as usize),
        }))
    }

    fn execute(&self, request: Request) -> Completion {
        // A reply can't be had by a call.
        request.complete(Err(Errno::OPNOTSUPP))
    }
}

impl Queue for Replies {
    fn submit(&mut self, request: Request) -> Submission {
        self.awaited.push(request);
        Submission::Accepted
    }

    fn poll(&mut self, done: &mut Vec<Completion>) -> usize {
        // Each operation keeps the connection.
        let Some(connection) = self.server.connection.upgrade() else {
            return 0;
        };
        let link = connection.link();
        let count = link.memory.replies().count();
        self.server.link.store(link.number, Ordering::Relaxed);
        self.server.count.store(count, Ordering::Relaxed);
        let has_ended = connection.end.get().is_some();
        let is_there = |request: &mut Request| {
            let (of, slot) = (
                request.offset_bytes / SLOTS as u64,
                request.offset_bytes % SLOTS as u64,
            );
            // The session has gone on from an earlier link, and knows what became of its messages.
            of != link.number || has_ended || link.memory.slot(slot as usize).reply().is_some()
        };
        let before = done.len();
        let there = self.awaited.extract_if(.., is_there);
        done.extend(there.map(|request| request.complete(Ok(()))));
        done.len() - before
    }

    fn in_flight(&self) -> usize {
        self.awaited.len()
    }

    fn doorbell(&self) -> Arc<dyn Doorbell> {
        self.server.clone()
    }
}

impl Doorbell for Waiting {
    fn ring(&self) -> Result<()> {
        if self.must_wake.load(Ordering::Relaxed)
            && self.must_wake.swap(false, Ordering::Relaxed)
            && let Some(connection) = self.connection.upgrade()
        {
            connection.link().wake_server();
        }
        Ok(())
    }

    fn wait(&self, timeout: Option<Duration>) {
        let _ = self.ring();
        let Some(connection) = self.connection.upgrade() else {
            return;
        };
        let link = connection.link();
        if link.number != self.link.load(Ordering::Relaxed) {
            return; // there is news in all slots
        }
        let count = self.count.load(Ordering::Relaxed);
        let timeout = timeout.unwrap_or(SERVER_PAUSE);
        if simulation::pause() {
            if link.has_ended() {
                connection.go_on_unless_watched(link);
            }
        } else if link.is_known_lost() {
            connection.go_on_unless_watched(link);
            std::thread::sleep(timeout.min(SERVER_PAUSE));
        } else {
            link.wait_for_reply(count, timeout);
            if link.memory.replies().count() == count && link.has_ended() {
                connection.go_on_unless_watched(link);
            }
        }
    }
}
