//! A session: a connected process, as the server knows it.
//!
//! ```text
//! begun ── messages ──► ended (its connection is gone, it broke the protocol, or the server stops)
//!                         └─ its last operation is done ──► its files are closed, its memory goes
//! ```
//! Invariants: each message that was taken gets exactly one reply
//! ([`Slot`](adit_wire::slot::Slot)), also if its operation fails with the worker. After the end no
//! message is taken and no file opened. A session never waits for another one's memory, and shares
//! none with it.

use crate::collected::Collected;
use crate::counts::SessionCounts;
use crate::files::{Files, Left};
use crate::volume::ServedVolume;
use adit_base::fork::Registered;
use adit_base::random::os_random_u64;
use adit_base::simulation::{self, Bug, planted};
use adit_base::{Errno, Error, Result};
use adit_fs::{Credentials, OpenFile};
use adit_store::Receipt;
use adit_store::cache::PublishedFrames;
use adit_wire::calls::SessionState;
use adit_wire::handshake::{Aim, Key, MappedFile, Request, Resumed};
use adit_wire::memory::{ARENA_BYTES, DATA_BYTES_MAX, Ending, SessionMemory};
use adit_wire::slot::{Reply, SLOTS};
use adit_wire::socket::{Peer, own_uid};
use adit_wire::value::Value;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Most locks of a session that wait at a time.
const LOCK_WAITS_MAX: usize = SLOTS / 2;

/// The next session's number.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// A connected process.
pub(crate) struct Session {
    pub(crate) memory: Arc<SessionMemory>,
    /// Of each slot, where its transactions and appends are noted.
    receipts: Box<[Arc<SlotReceipt>]>,
    pub(crate) socket: Registered<OwnedFd>,
    pub(crate) volume: Arc<ServedVolume>,
    pub(crate) peer: Peer,
    /// The user that it acts for, unless a privileged one says another.
    pub(crate) who: Arc<Credentials>,
    /// It is root's, or the server's own user's.
    pub(crate) privileged: bool,
    /// It changes nothing.
    pub(crate) read_only: bool,
    /// The next server waits for it.
    comes_back: bool,
    /// An earlier server had it.
    is_known: bool,
    files: Mutex<Files>,
    /// The slots whose messages are under way.
    busy: AtomicU64,
    /// Of each slot, the worker that has its latest message.
    workers: Box<[AtomicU8]>,
    /// Writes of which pieces are to come.
    collected: Collected,
    /// Locks that wait.
    lock_waits: Mutex<Vec<LockWaiter>>,
    /// Of each slot, the latest of its messages that were withdrawn. A withdrawal may begin before
    /// the message that it names.
    withdrawn: Box<[AtomicU64]>,
    /// Tells sessions of this process apart.
    pub(crate) number: u64,
    secret: (u64, u64),
    /// See [`Key::family`].
    pub(crate) family: u64,
    /// For the policy that places it.
    pub(crate) counts: SessionCounts,
    /// Messages that it had done.
    pub(crate) served: AtomicU64,
    ended: AtomicBool,
    /// It goes on with a session of the last server, and has not everything again.
    resuming: AtomicBool,
    /// Nobody has changed anything since its last server ended, as long as the grace is open.
    may_reclaim: bool,
    /// It came too late for something that it had locked or mapped.
    is_late: AtomicBool,
    /// It has said that it has everything again.
    has_returned: AtomicBool,
    /// The next server replies to what has no reply.
    handed_over: AtomicBool,
    /// Makes its POSIX owners of locks other ones than those of other sessions.
    lock_key: AtomicU64,
    /// The session of the same process that takes its place, and with it its locks.
    heir: Mutex<Weak<Session>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({:?} on {})", self.peer, self.volume.name)
    }
}

impl Session {
    /// The cache that it may read: who gets it could open the image as well.
    pub(crate) fn published(&self) -> Option<&PublishedFrames> {
        (self.volume.published.as_ref()).filter(|_| self.privileged)
    }

    /// Begins a session for the process at the other end of a socket.
    pub(crate) fn new(
        socket: Registered<OwnedFd>,
        peer: Peer,
        memory: SessionMemory,
        volume: Arc<ServedVolume>,
        request: &Request,
        resumed: Option<Resumed>,
        inherits_read_only: bool,
    ) -> Result<Session> {
        let who = credentials(socket.as_fd(), &peer)?;
        let privileged = who.privileged;
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let random = || (os_random_u64(), os_random_u64());
        let (secret, family) = match request.aim {
            Aim::Resume(claim) => (claim.key.secret, claim.key.family),
            Aim::Inherit(key) | Aim::Move(key) => (random(), key.family),
            _ => (random(), os_random_u64()),
        };
        let key = Key {
            number,
            secret,
            family,
        };
        let resumes = request.resumes().is_some();
        let sessions_file = &volume.sessions_file;
        let mut is_known = false;
        if resumes {
            is_known = sessions_file.go_on(volume.opening, key, peer.pid)?;
        } else if request.comes_back {
            sessions_file.begin(volume.opening, key, peer.pid);
        }
        let memory = Arc::new(memory);
        let receipt = |slot| {
            let memory = memory.clone();
            Arc::new(SlotReceipt { memory, slot })
        };
        Ok(Session {
            receipts: (0..SLOTS).map(receipt).collect(),
            memory,
            socket,
            volume,
            peer,
            who: Arc::new(who),
            privileged,
            read_only: request.read_only || inherits_read_only,
            comes_back: request.comes_back || resumes,
            is_known,
            files: Mutex::new(Files::new(number, os_random_u64() as u32)),
            busy: AtomicU64::new(0),
            workers: (0..SLOTS).map(|_| AtomicU8::new(0)).collect(),
            collected: Collected::default(),
            lock_waits: Mutex::default(),
            withdrawn: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            number,
            secret,
            family,
            counts: SessionCounts::default(),
            served: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            resuming: AtomicBool::new(resumed.is_some()),
            may_reclaim: resumed.is_some_and(|resumed| resumed.in_grace),
            is_late: AtomicBool::new(false),
            has_returned: AtomicBool::new(false),
            handed_over: AtomicBool::new(false),
            lock_key: AtomicU64::new(os_random_u64()),
            heir: Mutex::default(),
        })
    }

    /// Who has it may speak for the session.
    pub(crate) fn key(&self) -> Key {
        Key {
            number: self.number,
            secret: self.secret,
            family: self.family,
        }
    }

    pub(crate) fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An open file by its number.
    pub(crate) fn file(&self, number: u64) -> Result<Arc<OpenFile>> {
        let open = self.files().get(number).cloned();
        open.ok_or_else(|| Errno::BADF.into())
    }

    /// Writes of which pieces are to come.
    pub(crate) fn collected(&self) -> &Collected {
        &self.collected
    }

    /// A slot's message begins to wait for a lock of this file, until the value is dropped. None:
    /// too many locks of this session wait, which could leave no slot for the message that releases
    /// one.
    pub(crate) fn begin_lock_wait(
        self: &Arc<Self>,
        slot: usize,
        message: u64,
        open: &Arc<OpenFile>,
    ) -> Option<LockWait> {
        let mut waits = self.lock_waits();
        (waits.len() < LOCK_WAITS_MAX).then(|| {
            waits.push(LockWaiter {
                slot,
                message,
                open: open.clone(),
            });
            LockWait {
                session: self.clone(),
                slot,
                message,
            }
        })
    }

    fn lock_waits(&self) -> MutexGuard<'_, Vec<LockWaiter>> {
        self.lock_waits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A message waits for no lock any more, whether it has begun or will. Answers the file for
    /// whose lock it waits now, if it does. `EINVAL`: there is no such slot.
    pub(crate) fn withdraw(&self, slot: u32, message: u64) -> Result<Option<Arc<OpenFile>>> {
        let withdrawn = self.withdrawn.get(slot as usize).ok_or(Errno::INVAL)?;
        // Not that of an earlier message, which comes late.
        withdrawn.fetch_max(message, Ordering::AcqRel);
        let waits = self.lock_waits();
        let is_it = |of: &&LockWaiter| of.slot == slot as usize && of.message == message;
        Ok(waits.iter().find(is_it).map(|of| of.open.clone()))
    }

    /// Was the message withdrawn?
    pub(crate) fn is_withdrawn(&self, slot: usize, message: u64) -> bool {
        self.withdrawn[slot].load(Ordering::Acquire) == message
    }

    /// For the operator; `own`: the number of the session that asks.
    pub(crate) fn state(&self, poller: u32, own: u64) -> SessionState {
        SessionState {
            number: self.number,
            pid: self.peer.pid,
            uid: self.peer.uid,
            volume: self.volume.name.clone(),
            files: self.files().len() as u32,
            poller,
            served: self.served.load(Ordering::Relaxed),
            is_own: self.number == own,
        }
    }

    /// Where transactions and appends of a slot's message are noted.
    pub(crate) fn receipt(&self, slot: usize) -> Arc<dyn Receipt + Send + Sync> {
        self.receipts[slot].clone()
    }

    /// Does it go on with a session of the last server, and has not everything again?
    pub(crate) fn is_resuming(&self) -> bool {
        self.resuming.load(Ordering::Relaxed)
    }

    /// Begins an operation on what its last server left: only while nobody has changed that. False:
    /// it is too late.
    pub(crate) fn begin_reclaim(self: &Arc<Self>) -> Option<Reclaim> {
        let may = self.is_resuming() && self.may_reclaim;
        let is_begun = may && self.volume.resumption.begin_operation();
        self.is_late.fetch_or(!is_begun, Ordering::Relaxed);
        is_begun.then(|| Reclaim(self.volume.clone()))
    }

    /// Was it too late for something that it had locked or mapped?
    pub(crate) fn is_late(&self) -> bool {
        self.is_late.load(Ordering::Relaxed)
    }

    /// It says that it has everything again: true, once.
    pub(crate) fn returns(&self) -> bool {
        self.is_resuming() && !self.has_returned.swap(true, Ordering::Relaxed)
    }

    /// It has everything again.
    pub(crate) fn end_resuming(&self) {
        self.resuming.store(false, Ordering::Relaxed);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// A slot's message is under way now. False: one is already.
    pub(crate) fn begin(&self, slot: usize) -> bool {
        assert!(slot < SLOTS, "a doorbell has no other bits");
        let bit = 1 << slot;
        // Acquire: a session that rings before its reply is there has its area used no more.
        self.busy.fetch_or(bit, Ordering::Acquire) & bit == 0
    }

    /// A worker has a slot's message.
    pub(crate) fn note_worker(&self, slot: usize, worker: u32) {
        let number = u8::try_from(worker).expect("a volume has a few workers");
        self.workers[slot].store(number, Ordering::Relaxed);
    }

    /// Has a panic ended all operations of the worker that has the slot's message?
    fn has_failed(&self, slot: usize) -> bool {
        let worker = self.workers[slot].load(Ordering::Relaxed);
        self.volume.workers.engine(worker.into()).have_all_failed()
    }

    /// Replies to a slot's message.
    pub(crate) fn finish(&self, slot: usize, reply: Reply) {
        self.served.fetch_add(1, Ordering::Relaxed);
        let bit = 1 << slot;
        if self.handed_over.load(Ordering::Acquire) {
            return; // it asks the next server, which knows what became of it
        }
        // Before the reply: the session may use the slot again at once.
        let before = self.busy.fetch_and(!bit, Ordering::Release);
        if before & bit == 0 {
            assert!(self.has_failed(slot), "a message has one reply");
            return;
        }
        simulation::pause();
        self.memory.slot(slot).finish(reply, self.memory.replies());
    }

    /// Replies with an error and its words.
    pub(crate) fn finish_with_error(&self, slot: usize, error: &Error) {
        let words = error.encode();
        let len = match error.what().is_empty() {
            false if self.memory.fill_area(slot, &words) => words.len() as u32,
            _ => 0,
        };
        let reply = Reply {
            errno: error.errno().raw().unsigned_abs(),
            len,
            ..Reply::default()
        };
        self.finish(slot, reply);
    }

    /// Replies to messages whose operations a panic has ended: their futures are forgotten, and the
    /// tickets with them. Only for the thread that begins this session's messages.
    pub(crate) fn fail_forgotten(&self) {
        let engines = self.volume.workers.all();
        if !engines.iter().any(|engine| engine.have_all_failed()) {
            return;
        }
        let what = "do an operation of a session: the volume is poisoned by a panic";
        let error = Error::with(Errno::IO, what);
        let busy = self.busy.load(Ordering::Acquire);
        for slot in (0..SLOTS).filter(|slot| busy & 1 << slot != 0 && self.has_failed(*slot)) {
            self.finish_with_error(slot, &error);
        }
    }

    /// Replies with a value in the area, and the hint.
    pub(crate) fn finish_with_value<'v>(&self, slot: usize, value: &impl Value<'v>, hint: u64) {
        let bytes = value.encode();
        if !self.memory.fill_area(slot, &bytes) {
            let what = "send a reply that is too large for a session";
            return self.finish_with_error(slot, &Error::with(Errno::MSGSIZE, what));
        }
        let reply = Reply {
            len: bytes.len() as u32,
            hint,
            ..Reply::default()
        };
        self.finish(slot, reply);
    }

    /// The bytes of a write. EINVAL if a message may have fewer, or the arena has not so many
    /// there.
    ///
    /// # Safety
    /// Only to be copied from, as a whole: the session may change them at any time.
    pub(crate) unsafe fn data(&self, place: DataAt, len: u32) -> Result<&[u8]> {
        let start = self.start(place, len)?;
        // SAFETY: mapped as long as `self`, and so many bytes. That the other side changes them
        // while they are copied gives other bytes of its own file, by the caller's word.
        Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), len as usize) })
    }

    /// The same for a read.
    ///
    /// # Safety
    /// Only to be copied to. One at a time for a slot, which `begin` sees to; a session that names
    /// a range of the arena twice gets a mixture of what it has read.
    #[allow(clippy::mut_from_ref)] // the memory is no part of `self`
    pub(crate) unsafe fn data_mut(&self, place: DataAt, len: u32) -> Result<&mut [u8]> {
        let start = self.start(place, len)?;
        // SAFETY: as in `data`.
        Ok(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len as usize) })
    }

    /// Where so many bytes begin, all of which are the session's memory.
    fn start(&self, place: DataAt, len: u32) -> Result<NonNull<u8>> {
        let len = checked(len)?;
        match place {
            DataAt::Area(slot) => Ok(self.memory.area(slot)),
            DataAt::Arena(at) => self.memory.arena_range(at, len).ok_or_else(|| {
                let what = format!("move {len} bytes at {at} of an arena of {ARENA_BYTES}");
                Error::with(Errno::INVAL, what)
            }),
        }
    }

    /// An owner of locks, as the file system knows it: no session can name another one's.
    pub(crate) fn lock_owner(&self, id: u64) -> u64 {
        id ^ self.lock_key.load(Ordering::Relaxed)
    }

    /// It begins with what another session of its process has, whose locks it gets when that ends.
    pub(crate) fn take_place_of(self: &Arc<Self>, other: &Session) {
        let lock_key = other.lock_key.load(Ordering::Relaxed);
        self.lock_key.store(lock_key, Ordering::Relaxed);
        *other.heir.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(self);
    }

    /// What it leaves behind. Its heir has the locks.
    fn leave(&self) -> Left {
        let mut left = self.files().end();
        let heir = self.heir.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(heir) = heir.upgrade() {
            left.lock_owners = heir.files().adopt(left.lock_owners);
        }
        left
    }

    /// The session takes no more messages. Returns the files that are to be closed, once.
    pub(crate) fn end(&self) -> Option<Left> {
        self.end_as(Ending::ForGood)
    }

    /// It will go on with the next server: no reply comes any more from here on.
    pub(crate) fn silence(&self) {
        self.handed_over.store(true, Ordering::Release);
    }

    /// As [`end`](Self::end), after [`silence`](Self::silence).
    pub(crate) fn hand_over(&self) -> Option<Left> {
        assert!(self.is_handed_over(), "it was silenced");
        self.end_as(Ending::HandedOver)
    }

    /// Does the next server go on with it?
    pub(crate) fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Relaxed)
    }

    fn end_as(&self, ending: Ending) -> Option<Left> {
        if self.ended.swap(true, Ordering::Relaxed) {
            return None;
        }
        if ending == Ending::ForGood && self.comes_back {
            let volume = &self.volume;
            match self.is_resuming() {
                // Its process may try again. (An heir without a session before is known by its
                // family.)
                true if self.is_known => {
                    let in_grace = volume.resumption.in_grace();
                    let sessions_file = &volume.sessions_file;
                    sessions_file.put_back(volume.opening, self.key(), in_grace);
                }
                _ => volume.sessions_file.end(volume.opening, self.key()),
            }
        }
        self.memory.end(ending);
        // The other side learns of it, and so does `poll` of whoever watches this end.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        self.collected.clear();
        Some(self.leave())
    }
}

/// Notes what becomes of a slot's message where its session finds it, should the server die.
struct SlotReceipt {
    memory: Arc<SessionMemory>,
    slot: usize,
}

impl Receipt for SlotReceipt {
    fn decided(&self, apply: u64) {
        simulation::pause();
        if !planted(Bug::UnnotedTransaction) {
            self.memory.notes(self.slot).note_applies(apply);
        }
        simulation::pause();
    }

    fn appends(&self, offset: u64) {
        simulation::pause();
        self.memory.notes(self.slot).note_appends(offset);
        simulation::pause();
    }
}

/// The user at the other end of a socket.
pub(crate) fn credentials(socket: BorrowedFd<'_>, peer: &Peer) -> Result<Credentials> {
    let groups = Peer::groups(socket)?;
    let mut who = Credentials::user(peer.uid, peer.gid, &groups);
    who.privileged = is_privileged(peer);
    Ok(who)
}

/// Where the data of a message lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DataAt {
    /// At the beginning of this slot's area.
    Area(usize),
    /// At this offset of the arena.
    Arena(u64),
}

/// Root's and the server's own user's sessions are bound by no permission bits.
pub(crate) fn is_privileged(peer: &Peer) -> bool {
    /// As which the kernel shows users of other user namespaces that have no number here.
    const OVERFLOW_UID: u32 = 65_534;
    peer.uid == 0 || peer.uid == own_uid() && peer.uid != OVERFLOW_UID
}

/// The grace stays open as long as it lives.
pub(crate) struct Reclaim(Arc<ServedVolume>);

impl Drop for Reclaim {
    fn drop(&mut self) {
        self.0.resumption.end_operation();
    }
}

/// A message that waits for a lock.
struct LockWaiter {
    slot: usize,
    message: u64,
    open: Arc<OpenFile>,
}

/// A slot's message waits for a lock, as long as it lives.
pub(crate) struct LockWait {
    session: Arc<Session>,
    slot: usize,
    message: u64,
}

impl Drop for LockWait {
    fn drop(&mut self) {
        // The slot may have its next message already.
        let is_it = |of: &LockWaiter| of.slot == self.slot && of.message == self.message;
        self.session.lock_waits().retain(|of| !is_it(of));
    }
}

fn checked(len: u32) -> Result<usize> {
    match len as usize {
        len if len <= DATA_BYTES_MAX => Ok(len),
        len => {
            let what = format!("move {len} bytes with one message, which has at most 1 MiB");
            Err(Error::with(Errno::INVAL, what))
        }
    }
}

/// The memory of a file's mappings, for the session that holds it; or of its tail.
pub(crate) fn memory_for<'s>(
    mut sessions: impl Iterator<Item = &'s Arc<Session>>,
    of: MappedFile,
) -> Result<Registered<OwnedFd>> {
    let session = sessions.find(|session| session.key() == of.key);
    let session = session.ok_or_else(|| {
        let what = "speak for a session that this server doesn't have";
        Error::with(Errno::STALE, what)
    })?;
    let open = session.file(of.file)?;
    if let Some(tail) = open.tail() {
        return tail.descriptor();
    }
    let none = || Error::with(Errno::INVAL, "map a file whose memory it doesn't hold");
    let memory = open.mapped_memory().ok_or_else(none)?;
    memory.descriptor(open.flags().writable())
}
