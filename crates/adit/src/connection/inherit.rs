//! Forked processes, and programs that are executed: they have the files that were open before.
//!
//! ```text
//! parent: Fork::begin ── Leave ──► the server keeps the files, with a connection of both processes
//!         fork
//! parent: drops the Fork, and with it its copy of the connection
//! child:  in_child: nothing but a note    first use ── Inherit ──► a link with the files
//!                                         exec, exit: the connection ends, and what was kept
//! ```
//! Invariants: between [`Fork::begin`] and the end of it this thread has the connection's locks, so
//! the child finds them free, and what they protect whole. The child touches nothing of its
//! parent's link: that memory is not there.

use super::attempts::{Attempts, may_pass};
use super::connect::{connect_link, leave};
use super::held::Held;
use super::left::{Inherited, Leaving};
use super::link::{Link, foreign};
use super::remote::RemoteFile;
use super::resume::renewed;
use super::state::Connection;
use super::tail::Files;
use adit_base::fork::{self, Registered};
use adit_base::random::os_random_u64;
use adit_base::sync::atomic::Ordering;
use adit_base::{Errno, Error, Result, identity};
use adit_fs::Credentials;
use adit_server::Offer;
use adit_wire::calls::Opened;
use adit_wire::handshake::{Aim, Claim, Key, Opening};
use adit_wire::value::Value;
use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

/// What a process says to the program that takes its place.
struct Words {
    key: Key,
    opening: Opening,
    /// The user whose tokens the files have.
    uid: u32,
    /// What the program has open.
    files: Vec<Opened>,
    /// What else is kept, which it closes.
    others: Vec<u64>,
}
adit_wire::value::structs!(Words {
    key,
    opening,
    uid,
    files,
    others
});

/// A process that is about to fork, until it has.
pub(crate) struct Fork {
    _links: MutexGuard<'static, Vec<Arc<Link>>>,
    held: MutexGuard<'static, Held>,
    closed: MutexGuard<'static, Vec<u64>>,
    inherited: MutexGuard<'static, Option<Inherited>>,
    tails: MutexGuard<'static, Files>,
    left: Result<Inherited>,
    /// After the locks, which are its own.
    connection: Arc<Connection>,
}

impl Fork {
    /// Leaves what the session has open to the child. An error is the child's, too.
    pub(crate) fn begin(connection: &Arc<Connection>) -> Fork {
        let mut wait = Attempts::for_a_server(connection.reconnect);
        loop {
            let has_server = connection.have_a_server();
            // SAFETY: the reference is used for locks only, which go before `connection`.
            let of: &'static Connection = unsafe { &*Arc::as_ptr(connection) };
            // In the order in which others take them.
            let mut fork = Fork {
                _links: of.links.lock().unwrap_or_else(PoisonError::into_inner),
                held: of.held(),
                closed: of.closed_meanwhile(),
                inherited: of.inherited.lock().unwrap_or_else(PoisonError::into_inner),
                tails: of.tails.files(),
                left: Err(Errno::STALE.into()),
                connection: connection.clone(),
            };
            // Behind the locks: of what other threads open meanwhile the child has nothing.
            let has_one = has_server.is_ok();
            let leaving = has_server.and_then(|()| connection.leave_now());
            fork.left = leaving.map(Leaving::into_child);
            let is_gone = has_one && fork.left.as_ref().is_err_and(is_gone);
            if !is_gone || wait.is_over() {
                return fork;
            }
            drop(fork);
            wait.goes_on();
        }
    }

    /// Called in the child, which asks for its files when it needs one. False: none were left.
    pub(crate) fn in_child(mut self) -> bool {
        self.held.keep_only_files();
        // Another thread of the parent may have been about to close them: they are open here.
        self.closed.clear();
        // They end when two processes have the files.
        self.tails.clear();
        match self.left {
            Ok(left) => {
                // Closing waits until then.
                self.connection.is_resuming.store(true, Ordering::SeqCst);
                *self.inherited = Some(left);
                true
            }
            Err(error) => {
                *self.inherited = None;
                let volume = &self.connection.address;
                tracing::error!(%volume, %error, "a forked process has none of its parent's files");
                false
            }
        }
    }
}

impl Connection {
    /// In a forked child: is there something that its parent has left?
    pub(crate) fn has_inherited(&self) -> bool {
        let inherited = self.inherited.lock();
        inherited.unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// In a process that isn't the heir: gives up what was left.
    pub(crate) fn renounce(&self) {
        let inherited = self.inherited.lock();
        *inherited.unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Leaves what the session has open to a process that this one starts.
    fn leave(&self) -> Result<Leaving> {
        let mut wait = Attempts::for_a_server(self.reconnect);
        loop {
            self.have_a_server()?;
            match self.leave_now() {
                // Its server has ended meanwhile.
                Err(error) if is_gone(&error) && wait.goes_on() => {}
                left => return left,
            }
        }
    }

    /// Goes on with the next server if the last one has ended. A child of vfork has no descriptor
    /// of a link that its parent has got meanwhile, and must make none.
    pub(super) fn have_a_server(&self) -> Result<()> {
        let link = self.link();
        if !fork::is_in_vfork() && link.has_ended() {
            self.resume(link).map(drop)
        } else {
            Ok(())
        }
    }

    pub(super) fn leave_now(&self) -> Result<Leaving> {
        let link = self.link();
        let left = self.acting_as_own(|| leave(&self.address, link.key));
        let (socket, key) =
            left.map_err(|error| error.context("leave open files to another process"))?;
        Ok(Leaving {
            socket,
            key,
            opening: link.opening,
            uid: self.own().uid,
        })
    }

    /// In a forked child: begins a session of its own, with the files that its parent had. `EBADF`:
    /// there is nothing to inherit.
    #[cold]
    pub(crate) fn inherit(self: &Arc<Self>) -> Result<()> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_own() {
            return Ok(()); // by another thread
        }
        let inherited = self.inherited.lock();
        let mut inherited = inherited.unwrap_or_else(PoisonError::into_inner);
        let Some(left) = &*inherited else {
            return Err(fork::refused());
        };
        let comes_back = self.comes_back();
        let mut held = self.held();
        let aim = Aim::Inherit(left.key);
        // A process of root's that is another user for a while has a session of root's.
        let own = match left.uid {
            0 if identity::is_root_below() => {
                identity::acting_as(0, rustix::process::getegid().as_raw(), Credentials::process)?
            }
            _ => Credentials::process(),
        };
        let uid = own.uid;
        self.set_own(own);
        let connect = || connect_link(&self.address, self.read_only, comes_back, aim);
        let link = match self.acting_as_own(connect) {
            Ok(link) if uid != left.uid => renewed(&link, &held).map(|tokens| {
                let renew = |(file, token)| held.renew(file, token);
                tokens.into_iter().for_each(renew);
                link
            }),
            Err(error) if is_gone(&error) && comes_back => {
                let claim = Claim {
                    opening: left.opening,
                    key: Key {
                        secret: (os_random_u64(), os_random_u64()),
                        ..left.key
                    },
                };
                self.next_link(claim, None, &mut held)
            }
            link => link,
        };
        let link = link.inspect_err(
            |error| tracing::error!(volume = %self.address, %error, "open files can't be inherited"),
        );
        let link = Arc::new(link.map_err(|error| error.context("inherit open files"))?);
        self.current
            .store(Arc::as_ptr(&link).cast_mut(), Ordering::Release);
        links.push(link);
        *inherited = None;
        self.generation.store(fork::generation(), Ordering::Release);
        drop((held, links, inherited));
        for file in self.end_resuming() {
            self.close(file);
        }
        self.watch();
        Ok(())
    }
}

/// Executing another program.
impl Connection {
    /// Leaves these files to a program that this process executes: the connection that it must keep
    /// open, and what to tell it.
    pub(crate) fn leave_to_program(
        &self,
        files: &[RemoteFile],
    ) -> Result<(Registered<OwnedFd>, Vec<u8>)> {
        let left = if self.is_own() {
            self.leave()?
        } else {
            // A forked child that has asked for nothing hands on what its parent has left.
            let inherited = self.inherited.lock();
            let inherited = inherited.unwrap_or_else(PoisonError::into_inner);
            let left = inherited.as_ref().ok_or_else(fork::refused)?;
            left.again()?
        };
        let (mut words, held) = (
            Words {
                key: left.key,
                opening: left.opening,
                uid: left.uid,
                files: Vec::new(),
                others: Vec::new(),
            },
            self.held(),
        );
        for file in files {
            let held = held.files().find(|held| held.opened.file == file.number);
            words.files.push(held.ok_or(Errno::BADF)?.opened);
        }
        let others = held.files().map(|held| held.opened.file);
        let is_left = |number: &u64| files.iter().any(|file| file.number == *number);
        words
            .others
            .extend(others.filter(|number| !is_left(number)));
        Ok((left.socket, words.encode()))
    }

    /// In the program: a connection with what was left to it, and the files in the order in which
    /// they were named. `EPROTO`: these are no such words.
    pub(crate) fn of_program(
        address: &str,
        read_only: bool,
        reconnect: Duration,
        (socket, words): (OwnedFd, &[u8]),
    ) -> Result<(Arc<Connection>, Vec<RemoteFile>)> {
        fork::install();
        let words = Words::decode(words).ok_or_else(foreign)?;
        let connection = Connection::without_link(address, read_only, reconnect);
        let inherited = Inherited {
            socket: Registered::kept(socket),
            key: words.key,
            opening: words.opening,
            uid: words.uid,
        };
        connection.is_resuming.store(true, Ordering::SeqCst);
        *connection.closed_meanwhile() = words.others;
        *connection.inherited.lock().expect("new") = Some(inherited);
        for opened in &words.files {
            connection.held().open(*opened, None);
        }
        let files = words.files.into_iter().map(RemoteFile::from);
        Ok((Arc::new(connection), files.collect()))
    }
}

/// Leaves what the process that serves its own volume offers at this address: as
/// [`Connection::leave_to_program`].
pub(crate) fn leave_offered(
    address: &str,
    offer: &Offer,
) -> Result<(Registered<OwnedFd>, Vec<u8>)> {
    let left = leave(address, offer.key);
    let (socket, key) =
        left.map_err(|error| error.context("leave open files to another process"))?;
    let words = Words {
        key,
        opening: offer.opening,
        // The owner's.
        uid: offer.uid,
        files: offer.files.clone(),
        others: Vec::new(),
    };
    Ok((socket, words.encode()))
}

/// Has the server that kept them ended?
fn is_gone(error: &Error) -> bool {
    error.errno() == Errno::STALE || may_pass(error.errno())
}
