//! Going on with the next server when one has ended.
//!
//! ```text
//! lost ─► connect, again and again ─► open files ─► locks ─► appends under way ─► EndResuming ─►
//! current └─ reconnect is over, or the server refuses ─► the end: EPIPE
//! ```
//! One thread does it, whichever notices first; a thread of the connection's own watches, so that
//! an idle process comes back in time, too. Others wait.
//!
//! Invariants: a link becomes the current one only when the server has everything again, under the
//! lock of what is held. What is once known of the last server's messages stays as it is, also if
//! the next server ends before the session has gone on.

use super::attempts::{Attempts, PAUSE_MAX, SUCCESSOR, may_pass};
use super::connect::connect_link;
use super::held::{Held, HeldFile};
use super::link::{Failure, Link, Socket, foreign};
use super::state::{Connection, lock};
use adit_base::simulation::{self, Bug, planted};
use adit_base::thread::spawn_without_signals;
use adit_base::{Errno, Error, Result, fork};
use adit_fs::{FileKind, FlockOperation, LockMode};
use adit_wire::calls::*;
use adit_wire::handshake::{Aim, Claim, Opening, Resumed};
use adit_wire::memory::Ending;
use rustix::event::{PollFd, PollFlags, poll};
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

impl Connection {
    /// Waits for the next server after this one. `EPIPE` if there is none.
    #[cold]
    pub(super) fn resume(&self, lost: &Link) -> Result<()> {
        if !self.is_own() {
            return Err(fork::refused());
        }
        lost.note_lost();
        let mut links = lock(&self.links);
        if !self.is_current(lost) {
            return Ok(());
        }
        if let Some(why) = self.end.get() {
            return Err(self.ended(why));
        }
        // Until the next link is the current one: a thread that opened or locked a file meanwhile
        // finds then that it must do so again.
        self.is_resuming.store(true, Ordering::SeqCst);
        let mut held = self.held();
        let next = match lost.memory.ending() {
            Ending::ForGood => Err(Error::with(Errno::PIPE, "no other server goes on")),
            _ => {
                let claim = Claim {
                    opening: lost.opening,
                    key: lost.key,
                };
                self.next_link(claim, Some(lost), &mut held)
            }
        };
        let resumed = match next {
            Ok(link) => {
                let link = Arc::new(link);
                let current = Arc::as_ptr(&link).cast_mut();
                self.current.store(current, Ordering::Release);
                drop(held);
                lost.give_up();
                let is_later = links.last().is_none_or(|of| of.number < link.number);
                assert!(is_later, "operations tell links apart by their numbers");
                links.push(link);
                let (_, before) = links.split_last().expect("there is one");
                let unused = before.iter().filter(|link| link.is_unused());
                unused.for_each(|link| link.discard());
                tracing::info!(volume = %self.address, "the session goes on with the next server");
                Ok(())
            }
            Err(why) => {
                let why = why.to_string();
                tracing::error!(volume = %self.address, %why, "the server has ended, and the session with it");
                drop(held);
                // Nothing is read in the cache of its server any more.
                lost.give_up();
                Err(self.ended(self.end.get_or_init(|| why)))
            }
        };
        let closed = self.end_resuming();
        drop(links);
        for file in closed {
            self.forget(&mut self.held(), file);
            self.close_there(file);
        }
        resumed
    }

    /// A session of the next server, which has all that the claimed one had. `lost`: its link;
    /// None: that was another process's.
    pub(super) fn next_link(
        &self,
        mut claim: Claim,
        lost: Option<&Link>,
        held: &mut Held,
    ) -> Result<Link> {
        if self.reconnect.is_zero() {
            return Err(Error::with(Errno::PIPE, "no other server is waited for"));
        }
        let mut wait = Attempts::for_a_server(self.reconnect);
        loop {
            let aim = Aim::Resume(claim);
            let connect = || connect_link(&self.address, self.read_only, true, aim);
            let error = match self.acting_as_own(connect) {
                Ok(link) => match self.have_again(&link, lost, held, &mut claim.opening) {
                    Ok(()) => return Ok(link),
                    // It has ended as well.
                    Err(Failure::Lost(_)) => Error::with(Errno::PIPE, "the next server has ended"),
                    Err(Failure::Error(error)) => return Err(error),
                },
                Err(error) if !may_pass(error.errno()) => return Err(error),
                Err(error) => error,
            };
            if let Some(begin) = SUCCESSOR.get() {
                begin();
            }
            if !wait.goes_on() {
                return Err(error);
            }
        }
    }

    /// Has everything again that the session had. `from`: the opening of the server that it comes
    /// from, which is the link's as soon as it has everything there. So if that server ends, too,
    /// before it has said that others go on, the session is in time for the next one.
    fn have_again(
        &self,
        link: &Link,
        lost: Option<&Link>,
        held: &mut Held,
        from: &mut Opening,
    ) -> Result<(), Failure> {
        let resumed = link.resumed.ok_or_else(foreign)?;
        let broken = have_files_again(link, held, resumed.in_grace)?;
        // Of a server before that, the last one has settled what could be settled.
        if let Some(lost) = lost.filter(|lost| lost.opening == *from) {
            lost.ended.get_or_init(|| resumed);
            self.settle_appends(link, lost, resumed)?;
        }
        // A file that is broken is still in the list, with locks that it must not have again.
        if broken.is_empty() && !planted(Bug::ForgottenReturn) {
            *from = link.opening;
        }
        link.volume_call(&EndResuming {})?;
        // Another session may have the locks of these files. From here on their descriptors are
        // invalid, also if this server ends before it has closed them.
        for &file in &broken {
            self.lose(held, file);
            self.tails.close(file);
        }
        for file in broken {
            if let Err(Failure::Lost(lost)) = link.file_call(file, &Close {}) {
                return Err(Failure::Lost(lost));
            }
        }
        Ok(())
    }

    /// Learns of the appends that the last server has not replied to whether they were done.
    fn settle_appends(&self, link: &Link, lost: &Link, resumed: Resumed) -> Result<(), Failure> {
        if resumed.in_grace {
            for (slot, file, offset, len_bytes) in lost.unsettled_appends() {
                let settled = link.file_call(file, &SettleAppend { offset, len_bytes });
                match settled {
                    Ok(is_done) => lost.settle(slot, is_done),
                    Err(Failure::Error(error)) => {
                        tracing::warn!(volume = %self.address, %error, "whether an append was done is not known");
                    }
                    Err(lost) => return Err(lost),
                }
            }
        }
        Ok(())
    }

    /// Watches the server, so that a process that does nothing goes on in time, too.
    pub(super) fn watch(self: &Arc<Self>) {
        // In a simulated world, that looks after the session.
        if self.reconnect.is_zero() || simulation::pause() {
            return;
        }
        let (connection, socket) = (Arc::downgrade(self), self.link().socket());
        let spawned = spawn_without_signals("adit-session", move || watch(&connection, socket));
        self.is_watched.store(spawned.is_ok(), Ordering::Release);
        if let Err(error) = spawned {
            tracing::warn!(volume = %self.address, %error, "no thread watches the server: what this process has locked is free if it does nothing while the next server begins");
        }
    }
}

/// Opens, locks and maps again all that the session had. Answers the files that can't be restored.
/// After the grace those are all files, if one of them has a lock or a mapping: another process may
/// have had the lock meanwhile, and the memory is written to the file. Only the program knows which
/// other files a lock protects: SQLite's lock of a database protects its log, too.
fn have_files_again(link: &Link, held: &Held, in_grace: bool) -> Result<Vec<u64>, Failure> {
    let mut broken = Vec::new();
    let claims_are_lost = Cell::new(false);
    let mut note = |files: &[u64], result: Result<(), Failure>| match result {
        Ok(()) => Ok(()),
        Err(Failure::Error(error)) => {
            tracing::error!(%error, ?files, "open files can't be had as they were: they are closed");
            broken.extend(files);
            Ok(())
        }
        Err(lost) => Err(lost),
    };
    let reclaim = |call: &dyn Fn() -> Result<(), Failure>| match in_grace {
        _ if planted(Bug::ForgottenLock) => Ok(()),
        true => call().inspect_err(|_| claims_are_lost.set(true)),
        false => {
            claims_are_lost.set(true);
            let what = "have a lock or a mapping again: others may have used the file meanwhile";
            Err(Error::with(Errno::NOLCK, what).into())
        }
    };
    for file in held.files() {
        let Opened {
            file: number,
            id,
            flags,
            kind,
            token,
        } = file.opened;
        let reopen = Reopen {
            file: number,
            id,
            flags,
            kind,
            token,
        };
        note(&[number], link.reopen(file.who.clone(), &reopen))?;
        if let Some(mode) = file.flock {
            let operation = match mode {
                LockMode::Shared => FlockOperation::Shared { wait: false },
                _ => FlockOperation::Exclusive { wait: false },
            };
            let flock = || link.file_call(number, &Flock { operation });
            note(&[number], reclaim(&flock))?;
        }
        for &(offset, end) in &file.mapped {
            let len_bytes = end - offset;
            let map = || link.file_call(number, &Map { offset, len_bytes });
            note(&[number], reclaim(&map))?;
        }
    }
    for held_lock in held.locks() {
        let call = LockRange {
            lock: held_lock.lock,
            wait: false,
        };
        let lock = || match held_lock.through {
            Some(number) => link.file_call(number, &call),
            None => Err(Error::from(Errno::BADF).into()),
        };
        note(&held_lock.files, reclaim(&lock))?;
    }
    if claims_are_lost.get() {
        tracing::error!("all files of the session are closed: they may rely on what it had locked");
        let may_rely =
            |file: &&HeldFile| matches!(file.opened.kind, FileKind::File | FileKind::Blob);
        broken.extend(held.files().filter(may_rely).map(|file| file.opened.file));
    }
    broken.sort_unstable();
    broken.dedup();
    Ok(broken)
}

/// The tokens of files that a session has from one of another user, by their numbers.
pub(super) fn renewed(link: &Link, held: &Held) -> Result<Vec<(u64, u64)>> {
    let numbers = held.files().map(|file| file.opened.file);
    let renew = |number| match link.file_call(number, &Renew {}) {
        Ok(token) => Some(Ok((number, token))),
        // Another thread is closing it.
        Err(Failure::Error(error)) if error.errno() == Errno::BADF => None,
        Err(Failure::Error(error)) => Some(Err(error)),
        Err(Failure::Lost(_)) => Some(Err(Error::with(Errno::PIPE, "the server has ended"))),
    };
    numbers.filter_map(renew).collect()
}

#[cfg(feature = "internal")]
impl Connection {
    /// Goes on with the next server if this one has ended, as the thread that watches it would.
    pub(crate) fn go_on(&self) -> Result<()> {
        let link = self.link();
        if link.has_ended() {
            self.resume(link)
        } else {
            Ok(())
        }
    }
}

fn watch(connection: &Weak<Connection>, mut socket: Option<Arc<Socket>>) {
    while let Some(watched) = socket.take() {
        // A server says nothing after the handshake, so a message is the end as well.
        let mut waiting = [PollFd::new(&watched.fd, PollFlags::IN)];
        if poll(&mut waiting, None).is_err() {
            std::thread::sleep(PAUSE_MAX);
            socket = Some(watched);
            continue;
        }
        // The process may have closed the volume.
        let Some(connection) = connection.upgrade() else {
            return;
        };
        let link = connection.link();
        let is_watched = link.socket().is_some_and(|of| Arc::ptr_eq(&of, &watched));
        if is_watched && connection.resume(link).is_err() {
            return;
        }
        socket = connection.link().socket();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.is_own() {
            // The session ends, and so does the thread that watches it.
            if let Some(socket) = self.link().socket() {
                let _ = rustix::net::shutdown(&socket.fd, rustix::net::Shutdown::Both);
            }
        }
    }
}
