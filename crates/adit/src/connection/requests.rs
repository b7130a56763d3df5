//! Asynchronous operations of a session: one thread has several messages under way.
//!
//! An engine of the reactor runs them as it runs those of an embedded volume, so handles, queues of
//! completions and the keeper are the same. Each operation is a task; the engine's device is the
//! server, and a request to it is "the reply in that slot":
//! ```text
//! task:    takes a slot, fills its area, rings, submits the slot's place ──► awaits, copies, returns
//! driver:  Replies::poll finds replies ◄── ServerDoorbell::wait sleeps until the server counts one
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

use super::held::Held;
use super::link::{Failure, Link, Taken};
use super::opening::OpenRequest;
use super::remote::RemoteFile;
use super::session::{Sender, Session};
use super::state::Connection;
use crate::work::{Durable, Work};
use adit_base::simulation;
use adit_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use adit_base::{Errno, Error, Result};
use adit_block::{
    Capabilities, Completion, Device, Doorbell, Geometry, Queue, Request, Submission,
};
use adit_fs::{BlobId, Credentials};
use adit_reactor::sync::{Event, RwLock};
use adit_reactor::{Engine, EngineOptions, Reactor};
use adit_wire::calls::{Class, SyncAll, VolumeCall};
use adit_wire::message::Message;
use adit_wire::slot::{Reply, SLOTS};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, MutexGuard, TryLockError, Weak};
use std::time::Duration;

/// Between two looks whether other threads have given back a slot.
const SLOT_PAUSE: Duration = Duration::from_micros(50);
/// Between two looks whether there is a next server.
const SERVER_PAUSE: Duration = Duration::from_millis(1);

/// The state of the engine.
pub(crate) struct Requests {
    reactor: Rc<Reactor>,
    server: Arc<ServerDoorbell>,
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
        let removed = self.requests.changes.borrow_mut().remove(&self.number);
        assert!(removed.is_some(), "a change ends once");
        self.requests.changed.notify_all();
    }
}

/// A slot of an operation.
pub(super) struct OwnSlot<'r, 'c> {
    requests: &'r Requests,
    taken: Taken<'c>,
}

impl<'c> AsMut<Taken<'c>> for OwnSlot<'_, 'c> {
    fn as_mut(&mut self) -> &mut Taken<'c> {
        &mut self.taken
    }
}

impl Drop for OwnSlot<'_, '_> {
    fn drop(&mut self) {
        let slots = self.requests.slots.get();
        assert!(slots > 0, "it was counted");
        self.requests.slots.set(slots - 1);
        self.requests.freed.notify_all();
    }
}

/// Starts the engine of a connection.
pub(crate) fn start(connection: &Arc<Connection>) -> Result<Arc<Engine<Requests>>> {
    let server = Arc::new(ServerDoorbell {
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

    /// The session of a connection, for operations of this engine.
    pub(super) fn session<'r, 'c>(
        &'r self,
        connection: &'c Connection,
    ) -> Session<'c, &'r Requests> {
        Session {
            connection,
            sender: self,
        }
    }

    /// Does work with an open file, in its turn.
    pub(crate) async fn perform(
        &self,
        connection: &Connection,
        file: &RemoteFile,
        work: &Work,
    ) -> Result<u64> {
        let (_begun, number) = if work.changes() {
            let begun = self.begin_change(Some(file.id));
            let number = begun.number;
            (Some(begun), number)
        } else {
            (None, self.next_change.get())
        };
        if let Work::Sync(_) | Work::Write(_, _, Durable::Data | Durable::All) = work {
            self.changes_before_number(number, Some(file.id)).await;
        }
        self.session(connection).perform(file, work).await
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

    /// Does a call about the volume, in its turn.
    pub(crate) async fn call<'a, C>(
        &self,
        connection: &Connection,
        who: &Credentials,
        call: &C,
    ) -> Result<C::Reply>
    where
        C: VolumeCall<'a>,
    {
        let _begun = match C::NUMBER {
            SyncAll::NUMBER => {
                self.changes_before(None).await;
                None
            }
            _ => (C::CLASS != Class::Looks).then(|| self.begin_change(None)),
        };
        self.session(connection).volume_call(who, call).await
    }

    /// Opens what a path names.
    pub(crate) async fn open(
        &self,
        connection: &Connection,
        who: &Credentials,
        opening: OpenRequest<'_>,
    ) -> Result<RemoteFile> {
        let _begun = self.begin_change(None);
        self.session(connection).open(who, opening).await
    }
}

impl<'r> Sender for &'r Requests {
    type Slot<'c> = OwnSlot<'r, 'c>;

    async fn take_slot(self, connection: &Connection) -> Result<OwnSlot<'r, '_>> {
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
            let taken = if has_none {
                link.try_take_slot()
            } else {
                link.try_take_spare_slot()
            };
            if let Some(taken) = taken {
                self.slots.set(self.slots.get() + 1);
                return Ok(OwnSlot {
                    requests: self,
                    taken,
                });
            }
            if has_none {
                self.reactor.sleep(SLOT_PAUSE).await
            } else {
                self.freed.wait().await
            }
        }
    }

    async fn send(
        self,
        connection: &Connection,
        taken: &mut Taken<'_>,
        message: Message,
    ) -> Result<Reply, Failure> {
        if taken.begin_reported(message) {
            self.server.must_wake.store(true, Ordering::Relaxed);
        }
        let mut request = Request::flush(0);
        request.offset_bytes = taken.place();
        let replied = self.reactor.submit(request).await;
        replied.result.map_err(Error::from)?;
        // The reply is there, or the session has gone on, or ended.
        match (taken.reply(), connection.error_of_end(taken.link)) {
            (Some(reply), _) => Ok(reply?),
            (None, None) => Err(Failure::Lost(taken.fate())),
            // The slot stays taken: nobody knows what was done of its message.
            (None, Some(error)) => Err(error.into()),
        }
    }

    async fn held(self, connection: &Connection) -> MutexGuard<'_, Held> {
        loop {
            match connection.held.try_lock() {
                Ok(held) => return held,
                Err(TryLockError::Poisoned(held)) => return held.into_inner(),
                Err(TryLockError::WouldBlock) => self.reactor.sleep(SERVER_PAUSE).await,
            }
        }
    }

    async fn sleep(self, pause: Duration) {
        self.reactor.sleep(pause).await;
    }
}

impl Connection {
    /// An asynchronous operation that changes something is about to be started.
    pub(crate) fn begin_change(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// It is done. If it can't be any more, since the engine has failed, syncs ask that in vain.
    pub(crate) fn end_change(&self) {
        let before = self.changes.fetch_sub(1, Ordering::Release);
        assert!(before > 0, "it was begun");
    }

    /// Is such an operation under way?
    pub(crate) fn has_changes(&self) -> bool {
        self.changes.load(Ordering::Acquire) > 0
    }

    /// A link is lost: looks for the next server, unless a thread of the connection does.
    fn go_on_unless_watched(&self, link: &Link) {
        if !self.is_watched.load(Ordering::Acquire) {
            // An error is what all operations find.
            let _ = self.resume(link);
        }
    }
}

/// The server as a device: its requests are the replies in slots.
struct Server(Arc<ServerDoorbell>);

/// Waits for replies.
struct ServerDoorbell {
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
    server: Arc<ServerDoorbell>,
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

impl Doorbell for ServerDoorbell {
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
