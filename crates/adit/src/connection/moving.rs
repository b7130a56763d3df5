//! A process that becomes another user gets a session of that user, with its files and locks.
//!
//! ```text
//! Moving::begin ─► Leave, Move as that user, Renew: the link of another session is the current one
//!                  └─ messages of other threads that are under way end
//! the process is that user ─► finish: nothing is left of the old session, nor of the server's cache
//! it is not ─► dropped: all is as before
//! ```
//! Invariant: after `finish` this process has no memory in which anything of another user's files
//! is, or will be, but for what it has read itself.

use super::attempts::Attempts;
use super::connect::connect_link;
use super::left::Leaving;
use super::link::Link;
use super::resume::renewed;
use super::state::{Connection, lock};
use adit_base::identity;
use adit_base::sync::atomic::Ordering;
use adit_base::{Errno, Error, Result};
use adit_fs::Credentials;
use adit_wire::handshake::Aim;
use rustix::net::{Shutdown, shutdown};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// How long messages of other threads are waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// A process without a session of its own, which begins none while this lives.
pub(crate) struct Waits {
    _links: MutexGuard<'static, Vec<Arc<Link>>>,
    /// After the lock, which is its own.
    _connection: Arc<Connection>,
}

impl Waits {
    /// None: it has a session.
    pub(crate) fn begin(connection: &Arc<Connection>) -> Option<Waits> {
        if connection.is_own() {
            return None;
        }
        // SAFETY: the reference is used for a lock only, which goes before `connection`.
        let of: &'static Connection = unsafe { &*Arc::as_ptr(connection) };
        // Another thread that begins one ends that first.
        let links = lock(&of.links);
        (!connection.is_own()).then(|| Waits {
            _links: links,
            _connection: connection.clone(),
        })
    }
}

/// A process that is about to become another user, until it is.
pub(crate) struct Moving {
    links: MutexGuard<'static, Vec<Arc<Link>>>,
    from: Arc<Link>,
    /// With which the new session opens the files again, by their numbers.
    tokens: Vec<(u64, u64)>,
    is_done: bool,
    /// After the lock, which is its own.
    connection: Arc<Connection>,
}

impl Moving {
    /// Begins a session of this user, with all that this one has. `EBUSY`: a message of another
    /// thread doesn't end.
    pub(crate) fn begin(connection: &Arc<Connection>, uid: u32, gid: u32) -> Result<Moving> {
        let mut wait = Attempts::for_a_server(connection.reconnect);
        loop {
            match Moving::try_begin(connection, uid, gid) {
                // Its server has ended meanwhile.
                Err(error) if is_gone(&error) && wait.goes_on() => {}
                begun => return begun,
            }
        }
    }

    fn try_begin(connection: &Arc<Connection>, uid: u32, gid: u32) -> Result<Moving> {
        connection.have_a_server()?;
        // SAFETY: the reference is used for a lock only, which goes before `connection`.
        let of: &'static Connection = unsafe { &*Arc::as_ptr(connection) };
        let links = lock(&of.links);
        let from = links.last().ok_or(Errno::BADF)?.clone();
        let mut moving = Moving {
            links,
            from,
            tokens: Vec::new(),
            is_done: true,
            connection: connection.clone(),
        };
        {
            // Behind the lock: of what other threads open meanwhile the new session has nothing.
            let held = connection.held();
            let left: Leaving = connection.leave_now()?;
            let aim = Aim::Move(left.key);
            let (address, comes_back) = (&connection.address, connection.comes_back());
            let connect = || connect_link(address, connection.read_only, comes_back, aim);
            let to = Arc::new(identity::acting_as(uid, gid, connect)??);
            moving.tokens = renewed(&to, &held)?;
            let current = Arc::as_ptr(&to).cast_mut();
            connection.is_moved.store(true, Ordering::Release);
            connection.current.store(current, Ordering::Release);
            moving.links.push(to);
            moving.is_done = false;
        }
        moving.wait_for_others()?;
        Ok(moving)
    }

    /// New messages are the new session's. Those of the old one end.
    fn wait_for_others(&self) -> Result<()> {
        let begin = Instant::now();
        while !self.from.is_unused() {
            if begin.elapsed() > PATIENCE {
                let what = "become another user while another thread waits for the server";
                return Err(Error::with(Errno::BUSY, what));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    /// The process is that user now.
    pub(crate) fn finish(mut self) {
        self.is_done = true;
        self.connection.set_own(Credentials::process());
        {
            let mut held = self.connection.held();
            for (file, token) in self.tokens.drain(..) {
                held.renew(file, token);
            }
        }
        end(&self.from);
        self.from.discard();
        // They have ended with the old session's right to append alone.
        self.connection.tails.files().clear();
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let from = Arc::as_ptr(&self.from).cast_mut();
        self.connection.current.store(from, Ordering::Release);
        // Threads may look at it, so it stays, below the current one.
        let at = self.links.len() - 1;
        self.links.swap(at - 1, at);
        end(&self.links[at - 1]);
    }
}

/// Is a server about to end, or to begin?
fn is_gone(error: &Error) -> bool {
    matches!(
        error.errno(),
        Errno::NOENT | Errno::CONNREFUSED | Errno::CONNRESET | Errno::PIPE | Errno::STALE
    )
}

/// Ends a session. The thread that watches its socket looks for the current one.
fn end(link: &Link) {
    link.note_lost();
    if let Some(socket) = link.socket() {
        let _ = shutdown(&socket.fd, Shutdown::Both);
    }
    link.give_up();
}
