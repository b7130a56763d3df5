//! A connection to a server that has the volume: the session's side of the protocol.
//!
//! ```text
//! Connection ─► Link to a server ── it ends ──► resume: Link to the next one, with the same files
//! ```
//! Invariants: each operation is done once, also if its server ends before it has replied: it is
//! repeated where that changes nothing, or where the next server says that it was not done
//! (`outcome.rs`). A forked child has no link: the memory is not there in it, and its copy of the
//! socket is closed. If its parent has left its files to it, it makes one of its own
//! (`inherit.rs`).

mod arena;
mod connect;
mod file;
mod held;
mod inherit;
mod link;
mod mapped;
mod moving;
mod opening;
mod outcome;
mod requests;
mod resume;
#[cfg(feature = "internal")]
pub mod simulated;
mod tail;
mod withdrawal;

pub(crate) use connect::{ANSWER_MAX, NO_GENERATION, connect, connected, handshake, unanswered};
pub(crate) use file::{RemoteFile, wait_for_lock};
pub(crate) use inherit::{Fork, leave_offered};
pub(crate) use moving::{Moving, Waits, interned};
pub(crate) use opening::Opening;
pub(crate) use requests::{Pieces, Requests, Work, start as start_requests};
#[cfg(feature = "internal")]
pub use resume::set_successor;
use tail::Tails;
pub use withdrawal::Withdrawal;

use held::{Held, HeldLock, Released};
use inherit::Inherited;
use link::{Failure, Fate, Link, Taken};
use mapped::Mapped;

use adit_base::clock::monotonic_ns;
use adit_base::simulation::{self, Bug, planted};
use adit_base::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use adit_base::{Errno, Error, Result};
use adit_block::Buffer;
use adit_fs::{BlobId, Credentials, OpenFlags};
use adit_store::cache::Hint;
use adit_wire::calls::{Close, FileCall, LockRange, OpenBlob, Opened, Place, VolumeCall};
use adit_wire::message::Message;
use adit_wire::value::{OwnedValue, Value};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

/// The file system follows no longer path.
const PATH_BYTES_MAX: usize = 4095;

/// A volume in a server, and in the next one if that ends.
pub(crate) struct Connection {
    address: String,
    read_only: bool,
    /// How long a next server is waited for.
    reconnect: Duration,
    /// The user that the server knows the session by: an interned value.
    own: AtomicPtr<Credentials>,
    /// The process has become another user, or is about to.
    is_moved: AtomicBool,
    /// The link of now: the last of `links`.
    current: AtomicPtr<Link>,
    /// Each lives as long as the connection, since threads may look at it. Locked while a next
    /// server is looked for.
    links: Mutex<Vec<Arc<Link>>>,
    /// There is no next server, and why.
    end: OnceLock<String>,
    /// What the session has. Locked after `links`, and as long as a next server is looked for.
    held: Mutex<Held>,
    /// The program has files open that the session has lost. Changed under the lock of `held`.
    has_lost: AtomicBool,
    /// A next server is looked for.
    is_resuming: AtomicBool,
    /// Files that are to be closed as soon as that has ended.
    closed_meanwhile: Mutex<Vec<u64>>,
    /// A thread goes on with the next server when this one has ended.
    is_watched: AtomicBool,
    /// What the parent of this process has left to it, until it is asked for.
    inherited: Mutex<Option<Inherited>>,
    /// Fork generation of the process whose link it is.
    generation: AtomicU32,
    /// Asynchronous operations that change something, started and not done: a sync waits for them.
    changes: AtomicU64,
    /// To which it appends without messages.
    tails: Tails,
}

/// A reply, where it says that something is in the server's cache, and the link whose server has
/// done the call.
struct Answered<'c, R> {
    reply: R,
    hint: u64,
    link: &'c Link,
}

/// The answer of [`Connection::keep`].
type Kept = Option<RemoteFile>;

impl Connection {
    #[inline]
    fn link(&self) -> &Link {
        // SAFETY: one of `links`, none of which goes before the connection.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    fn is_current(&self, link: &Link) -> bool {
        std::ptr::eq(self.link(), link)
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        lock(&self.held)
    }

    /// A slot that no thread has, of a server that is there.
    #[inline]
    fn take_slot(&self) -> Result<Taken<'_>> {
        let mut rounds = 0u32;
        loop {
            let link = self.link();
            if link.is_known_lost() {
                self.resume(link)?;
                continue;
            }
            if let Some(taken) = link.try_take_slot(Some(self)) {
                return Ok(taken);
            }
            if link.has_ended() {
                continue;
            }
            // More threads than slots.
            match rounds {
                0..100 if !link.is_short(monotonic_ns()) => link.yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
            rounds = rounds.saturating_add(1);
        }
    }

    /// The same, if there is one now. A thread that has one waits for no other.
    fn try_take_slot(&self) -> Option<Taken<'_>> {
        let link = self.link();
        match link.is_known_lost() {
            true => None,
            false => link.try_take_slot(Some(self)),
        }
    }

    /// A buffer in the session's memory, which messages name where it lies; None: there is no room.
    pub(crate) fn buffer(&self, len_bytes: usize) -> Option<Buffer> {
        self.link().buffer(len_bytes)
    }

    /// Does something with a slot, in the next server again if this one ends before it has replied.
    /// `settle` says what came of it then; None: nothing, or it may be repeated.
    fn with_slot<'c, T>(
        &'c self,
        mut operation: impl FnMut(&mut Taken<'c>) -> Result<T, Failure>,
        mut settle: impl FnMut(&Fate) -> Option<Result<T>>,
    ) -> Result<T> {
        loop {
            let mut taken = self.take_slot()?;
            match operation(&mut taken) {
                Ok(done) => return Ok(done),
                Err(Failure::Error(error)) => return Err(error),
                Err(Failure::Lost(fate)) => {
                    drop(taken);
                    if let Some(settled) = settle(&fate) {
                        return settled;
                    }
                }
            }
        }
    }

    /// Does a call about the volume on behalf of a user.
    pub(crate) fn volume_call<'a, C>(&self, who: &Credentials, call: &C) -> Result<C::Reply>
    where
        C: VolumeCall<'a>,
        C::Reply: OwnedValue,
    {
        let answer = self.volume_call_or(who, call, |fate| self.outcome(who, call, fate))?;
        Ok(answer.reply)
    }

    /// Puts a call about the volume into the area.
    fn fill_call<'a, C: VolumeCall<'a>>(
        &self,
        taken: &Taken<'_>,
        who: &Credentials,
        call: &C,
    ) -> Result<Message> {
        let mut bytes = Vec::with_capacity(256);
        let is_named = who != self.own() && taken.link.may_act_for(self.is_moved());
        is_named.then(|| who.clone()).put(&mut bytes);
        call.put(&mut bytes);
        let filled = taken.fill(&bytes);
        filled.map_err(|error| too_long(&call.places(), error))?;
        let (number, len) = (C::NUMBER, bytes.len() as u32);
        Ok(Message::VolumeCall { number, len })
    }

    /// As [`volume_call`](Self::volume_call), with all of the answer; `settle` as in
    /// [`with_slot`](Self::with_slot).
    fn volume_call_or<'a, 'c, C>(
        &'c self,
        who: &Credentials,
        call: &C,
        mut settle: impl FnMut(&Fate) -> Option<Result<C::Reply>>,
    ) -> Result<Answered<'c, C::Reply>>
    where
        C: VolumeCall<'a>,
        C::Reply: OwnedValue,
    {
        let ask = |taken: &mut Taken<'c>| {
            let message = self.fill_call(taken, who, call)?;
            let (reply, hint) = taken.call(message)?;
            let link = taken.link;
            Ok(Answered { reply, hint, link })
        };
        let settle = |fate: &Fate| {
            let (settled, link) = (settle(fate)?, self.link());
            Some(settled.map(|reply| Answered {
                reply,
                hint: 0,
                link,
            }))
        };
        self.with_slot(ask, settle)
    }

    /// Does a call about an open file.
    pub(crate) fn file_call<'a, C>(&self, file: u64, call: &C) -> Result<C::Reply>
    where
        C: FileCall<'a>,
        C::Reply: OwnedValue,
    {
        self.file_call_until(file, call, None)
    }

    /// As [`file_call`](Self::file_call), which may wait for a lock until that is withdrawn.
    pub(crate) fn file_call_until<'a, 'c, C>(
        &'c self,
        file: u64,
        call: &C,
        withdrawal: Option<&Withdrawal>,
    ) -> Result<C::Reply>
    where
        C: FileCall<'a>,
        C::Reply: OwnedValue,
    {
        let bytes = call.encode();
        let (number, len) = (C::NUMBER, bytes.len() as u32);
        let mut first = None;
        loop {
            let ask = |taken: &mut Taken<'c>| {
                taken.fill(&bytes)?;
                let _sent = withdrawal.map(|of| of.send(taken)).transpose()?;
                let (reply, _) = taken.call(Message::FileCall { number, file, len })?;
                Ok((reply, taken.link))
            };
            let settle = |fate: &Fate| {
                let settled = self.file_outcome::<C>(fate)?;
                Some(settled.map(|reply| (reply, self.link())))
            };
            if Held::changes_by(number) {
                let link = self.link();
                let released = match planted(Bug::RelockedRelease) {
                    true => Released::default(),
                    false => self.held().begin(number, file, &bytes),
                };
                // Of a repetition: only the first one knows what there was before.
                first.get_or_insert((link, released));
            }
            let (reply, link) = match (self.with_slot(ask, settle), first.take()) {
                (Ok((reply, _)), None) => return Ok(reply),
                (Err(error), None) => return Err(error),
                (Err(error), Some((link, released))) => {
                    self.take_back(link, file, released);
                    return Err(error);
                }
                (Ok(done), begun) => {
                    first = begun;
                    done
                }
            };
            // A withdrawal, or the end of the server, may come here.
            simulation::pause();
            let mut held = self.held();
            // Otherwise the next server has the locks of before; and none of these calls does more
            // when it is repeated. Where the server that has done it is there, nothing is repeated:
            // the repetition may be withdrawn, and what was granted would be nobody's.
            if self.is_current(link) {
                held.note(number, file, &bytes);
                return Ok(reply);
            }
        }
    }

    /// A call that began with this link has failed, so the session has what the call was to
    /// release.
    fn take_back(&self, link: &Link, file: u64, released: Released) {
        let mut held = self.held();
        if self.is_current(link) {
            return held.take_back(file, released);
        }
        // The next server was not asked for it.
        let locks = held.locks_of(&released);
        drop(held);
        for HeldLock {
            lock,
            through,
            files,
        } in locks
        {
            let call = LockRange { lock, wait: false };
            if let Err(error) = self.file_call(through.unwrap_or(file), &call) {
                tracing::error!(volume = %self.address, %error, ?lock, ?files, "a lock is lost, another process took it when the next server came: its files are closed");
                for file in files {
                    self.lose(&mut self.held(), file);
                    self.close_there(file);
                }
            }
        }
    }

    /// Opens a blob.
    pub(crate) fn open_blob(
        &self,
        who: &Credentials,
        id: BlobId,
        flags: OpenFlags,
    ) -> Result<RemoteFile> {
        loop {
            let opened = self.volume_call_or(who, &OpenBlob { id, flags }, |_| None)?;
            if let Some(file) = self.keep(opened, who) {
                return Ok(file);
            }
        }
    }

    /// The session has opened a file. None: its server has ended since, and the next one doesn't
    /// know.
    fn keep(&self, answer: Answered<'_, Opened>, who: &Credentials) -> Kept {
        self.keep_in(self.held(), &answer, who)
    }

    /// As [`keep`](Self::keep), without waiting. The outer None: another thread has locked the held
    /// files, perhaps until there is a next server.
    fn try_keep(&self, answer: &Answered<'_, Opened>, who: &Credentials) -> Option<Kept> {
        let held = match self.held.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(self.keep_in(held, answer, who))
    }

    fn keep_in(
        &self,
        mut held: MutexGuard<'_, Held>,
        answer: &Answered<'_, Opened>,
        who: &Credentials,
    ) -> Kept {
        let opened = answer.reply;
        self.is_current(answer.link).then(|| {
            held.open(opened, (who != self.own()).then(|| who.clone()));
            if let Some(cache) = &answer.link.cache {
                cache.note_slot(opened.id, Hint(answer.hint));
            }
            opened.into()
        })
    }

    /// Closes a file. It waits for no next server: whoever drops a file may have no time for that.
    pub(crate) fn close(&self, file: u64) {
        loop {
            if self.is_resuming.load(Ordering::SeqCst) {
                let mut meanwhile = self.closed_meanwhile();
                // Under the lock: `end_resuming` comes later, or was before.
                if self.is_resuming.load(Ordering::SeqCst) {
                    return meanwhile.push(file);
                }
            }
            // First: no next server opens it again.
            match self.held.try_lock() {
                Ok(mut held) => break self.forget(&mut held, file),
                Err(TryLockError::Poisoned(held)) => {
                    break self.forget(&mut held.into_inner(), file);
                }
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
        self.close_there(file);
    }

    /// The program has closed a file.
    fn forget(&self, held: &mut Held, file: u64) {
        held.close(file);
        // Readers look at it all the time, and hardly ever anything is lost.
        if self.has_lost.load(Ordering::Relaxed) {
            self.has_lost.store(held.has_lost(), Ordering::Release);
        }
    }

    /// The session has a file no more. Called before the server closes it: then its inode may become
    /// another file's.
    fn lose(&self, held: &mut Held, file: u64) {
        held.lose(file);
        self.has_lost.store(held.has_lost(), Ordering::Release);
    }

    /// Looks at a file in the server's cache. None: the session has to send a message.
    #[inline]
    fn cached<T>(&self, look: impl FnOnce(&Mapped) -> Option<T>) -> Option<T> {
        let has_lost = || self.has_lost.load(Ordering::Acquire) && !planted(Bug::ReadLost);
        if has_lost() {
            return None;
        }
        let found = look(self.link().cache.as_ref()?)?;
        // The cache knows inodes, not descriptors. If the session lost this file meanwhile, the inode
        // may be another file's by now; and if it isn't, the file is closed all the same.
        (!has_lost()).then_some(found)
    }

    fn closed_meanwhile(&self) -> MutexGuard<'_, Vec<u64>> {
        let closed = self.closed_meanwhile.lock();
        closed.unwrap_or_else(PoisonError::into_inner)
    }

    /// No next server is looked for any more. Answers the files that were closed meanwhile.
    fn end_resuming(&self) -> Vec<u64> {
        let mut meanwhile = self.closed_meanwhile();
        self.is_resuming.store(false, Ordering::SeqCst);
        std::mem::take(&mut *meanwhile)
    }

    /// Closes a file in the server. One that has gone has closed it.
    fn close_there(&self, file: u64) {
        self.tails.close(file);
        let link = self.link();
        let bytes = Close {}.encode();
        let (number, len) = (Close::NUMBER, bytes.len() as u32);
        while !link.is_known_lost() {
            // Waits for no next server.
            let Some(mut taken) = link.try_take_slot(None) else {
                link.has_ended();
                std::thread::yield_now();
                continue;
            };
            if taken.fill(&bytes).is_ok() {
                let _ = taken.call::<()>(Message::FileCall { number, file, len });
            }
            return;
        }
    }
}

/// Locks what a thread keeps locked while it looks for the next server.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        match mutex.try_lock() {
            Ok(locked) => return locked,
            Err(TryLockError::WouldBlock) if simulation::pause() => {}
            Err(_) => return mutex.lock().unwrap_or_else(PoisonError::into_inner),
        }
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

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({})", self.address)
    }
}
