//! A session with a server, and with the next one if that ends: its state, and how threads come to
//! slots and to the server's cache.

use super::held::Held;
use super::left::Inherited;
use super::link::{Link, Taken};
use super::mapped::Mapped;
use super::tail::Tails;
use adit_base::clock::monotonic_ns;
use adit_base::simulation::{self, Bug, planted};
use adit_base::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use adit_base::{Errno, Error, Result, fork, identity};
use adit_block::Buffer;
use adit_fs::Credentials;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

/// A volume in a server, and in the next one if that ends.
pub(crate) struct Connection {
    pub(super) address: String,
    pub(super) read_only: bool,
    /// How long a next server is waited for.
    pub(super) reconnect: Duration,
    /// The user that the server knows the session by: an interned value.
    pub(super) own: AtomicPtr<Credentials>,
    /// The process has become another user, or is about to.
    pub(super) is_moved: AtomicBool,
    /// The link of now: the last of `links`.
    pub(super) current: AtomicPtr<Link>,
    /// Each lives as long as the connection, since threads may look at it. Locked while a next
    /// server is looked for.
    pub(super) links: Mutex<Vec<Arc<Link>>>,
    /// There is no next server, and why.
    pub(super) end: OnceLock<String>,
    /// What the session has. Locked after `links`, and as long as a next server is looked for.
    pub(super) held: Mutex<Held>,
    /// The program has files open that the session has lost. Changed under the lock of `held`.
    pub(super) has_lost: AtomicBool,
    /// A next server is looked for.
    pub(super) is_resuming: AtomicBool,
    /// Files that are to be closed as soon as that has ended.
    pub(super) closed_meanwhile: Mutex<Vec<u64>>,
    /// A thread goes on with the next server when this one has ended.
    pub(super) is_watched: AtomicBool,
    /// What the parent of this process has left to it, until it is asked for.
    pub(super) inherited: Mutex<Option<Inherited>>,
    /// Fork generation of the process whose link it is.
    pub(super) generation: AtomicU32,
    /// Asynchronous operations that change something, started and not done: a sync waits for them.
    pub(super) changes: AtomicU64,
    /// To which it appends without messages.
    pub(super) tails: Tails,
}

impl Connection {
    #[inline]
    pub(super) fn link(&self) -> &Link {
        // SAFETY: one of `links`, none of which goes before the connection.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    pub(super) fn is_current(&self, link: &Link) -> bool {
        std::ptr::eq(self.link(), link)
    }

    pub(super) fn held(&self) -> MutexGuard<'_, Held> {
        lock(&self.held)
    }

    /// A slot that no thread has, of a server that is there.
    #[inline]
    pub(super) fn take_slot(&self) -> Result<Taken<'_>> {
        let mut rounds = 0u32;
        loop {
            let link = self.link();
            if link.is_known_lost() {
                self.resume(link)?;
                continue;
            }
            if let Some(taken) = link.try_take_slot() {
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

    /// A slot that no thread has, if there is one now. A thread that has one waits for no other.
    pub(super) fn try_take_slot(&self) -> Option<Taken<'_>> {
        let link = self.link();
        (!link.is_known_lost()).then(|| link.try_take_slot())?
    }

    /// A buffer in the session's memory, which messages name where it lies; None: there is no room.
    pub(crate) fn buffer(&self, len_bytes: usize) -> Option<Buffer> {
        self.link().buffer(len_bytes)
    }

    /// Is the link this process's?
    pub(crate) fn is_own(&self) -> bool {
        self.generation.load(Ordering::Acquire) == fork::generation()
    }

    /// The user that the server knows the session by.
    pub(crate) fn own(&self) -> &'static Credentials {
        // SAFETY: interned.
        unsafe { &*self.own.load(Ordering::Acquire) }
    }

    pub(super) fn set_own(&self, who: Credentials) {
        let own = std::ptr::from_ref(interned(who)).cast_mut();
        self.own.store(own, Ordering::Release);
    }

    pub(super) fn is_moved(&self) -> bool {
        self.is_moved.load(Ordering::Acquire)
    }

    /// May the session act for any user?
    pub(crate) fn is_privileged(&self) -> bool {
        self.link().privileged
    }

    /// Connects as the session's user, whatever user this thread acts as for the moment.
    pub(super) fn acting_as_own<T>(&self, connect: impl FnOnce() -> Result<T>) -> Result<T> {
        let own = self.own();
        identity::acting_as(own.uid, own.gid, connect)?
    }

    #[cold]
    pub(super) fn ended(&self, why: &str) -> Error {
        let what = format!(
            "ask the server at {}: it has ended, or ended the session ({why}); open the volume again",
            self.address
        );
        Error::with(Errno::PIPE, what)
    }

    /// Why this link has no successor, if it is the last one and none is looked for.
    pub(super) fn error_of_end(&self, link: &Link) -> Option<Error> {
        let why = self.end.get().filter(|_| self.is_current(link))?;
        Some(self.ended(why))
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
    pub(super) fn forget(&self, held: &mut Held, file: u64) {
        held.close(file);
        // Readers look at it all the time, and hardly ever anything is lost.
        if self.has_lost.load(Ordering::Relaxed) {
            self.has_lost.store(held.has_lost(), Ordering::Release);
        }
    }

    /// The session has a file no more. Called before the server closes it: then its inode may
    /// become another file's.
    pub(super) fn lose(&self, held: &mut Held, file: u64) {
        held.lose(file);
        self.has_lost.store(held.has_lost(), Ordering::Release);
    }

    /// Looks at a file in the server's cache. None: the session has to send a message.
    #[inline]
    pub(super) fn cached<T>(&self, look: impl FnOnce(&Mapped) -> Option<T>) -> Option<T> {
        let has_lost = || self.has_lost.load(Ordering::Acquire) && !planted(Bug::ReadLost);
        if has_lost() {
            return None;
        }
        let found = look(self.link().cache.as_ref()?)?;
        // The cache knows inodes, not descriptors. If the session lost this file meanwhile, the
        // inode may be another file's by now; and if it isn't, the file is closed all the same.
        (!has_lost()).then_some(found)
    }

    pub(super) fn closed_meanwhile(&self) -> MutexGuard<'_, Vec<u64>> {
        let closed = self.closed_meanwhile.lock();
        closed.unwrap_or_else(PoisonError::into_inner)
    }

    /// No next server is looked for any more. Answers the files that were closed meanwhile.
    pub(super) fn end_resuming(&self) -> Vec<u64> {
        let mut meanwhile = self.closed_meanwhile();
        self.is_resuming.store(false, Ordering::SeqCst);
        std::mem::take(&mut *meanwhile)
    }

    /// Closes a file in the server. One that has gone has closed it.
    pub(super) fn close_there(&self, file: u64) {
        self.tails.close(file);
        let link = self.link();
        while !link.is_known_lost() {
            // Waits for no next server.
            if link.try_close(file) {
                return;
            }
            link.has_ended();
            std::thread::yield_now();
        }
    }
}

/// Locks what a thread keeps locked while it looks for the next server.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        match mutex.try_lock() {
            Ok(locked) => return locked,
            Err(TryLockError::WouldBlock) if simulation::pause() => {}
            Err(_) => return mutex.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// A user that stays: there are few different ones in a process.
pub(crate) fn interned(who: Credentials) -> &'static Credentials {
    static KNOWN: Mutex<Vec<&'static Credentials>> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = known.iter().find(|of| ***of == who) {
        return found;
    }
    let new = &*Box::leak(Box::new(who));
    known.push(new);
    new
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({})", self.address)
    }
}
