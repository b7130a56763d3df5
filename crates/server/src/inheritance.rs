//! What a session has left to a process that its own one starts: open files, until that process
//! begins a session with them.
//!
//! ```text
//! before fork:  parent ── Leave(key of its session) ──► files kept, with the connection
//! after it:     child ── Inherit(key of those) ──► a session with them, under the same numbers
//! ```
//! Invariants: the child has the files as they were when it was forked, also if its parent has
//! closed them since. They are closed when the connection ends of which both processes had a copy:
//! so when the child has executed another program, or ended.

use crate::files::Tabled;
use crate::serve;
use crate::session::Session;
use crate::volume::ServedVolume;
use adit_base::fork::Registered;
use adit_base::random::os_random_u64;
use adit_base::{Errno, Error, Result};
use adit_wire::handshake::Key;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// Files that wait for their heir.
pub(crate) struct Inheritance {
    pub(crate) socket: Registered<OwnedFd>,
    key: Key,
    /// Whose it counts as.
    pub(crate) uid: u32,
    pub(crate) volume: Arc<ServedVolume>,
    /// Of the session that left them.
    pub(crate) read_only: bool,
    files: Vec<(u64, Tabled)>,
    from: Weak<Session>,
    /// The next server is asked for them: what has no name stays.
    pub(crate) is_handed_over: bool,
}

impl Inheritance {
    /// Keeps what a session has open, as long as the connection lives. `EPIPE`: the session has
    /// ended.
    pub(crate) fn of(
        session: &Arc<Session>,
        socket: Registered<OwnedFd>,
        uid: u32,
    ) -> Result<Inheritance> {
        let mut inheritance = Inheritance::by(session.key(), &session.volume, socket, uid);
        inheritance.read_only = session.read_only;
        inheritance.from = Arc::downgrade(session);
        let ended = || Error::with(Errno::PIPE, "inherit from a session that has ended");
        inheritance.keep(|| session.files().share().ok_or_else(ended))
    }

    /// Keeps files of the process that serves its own volume, likewise.
    pub(crate) fn of_owner(
        owner: Key,
        volume: &Arc<ServedVolume>,
        files: Vec<(u64, Tabled)>,
        socket: Registered<OwnedFd>,
        uid: u32,
    ) -> Result<Inheritance> {
        Inheritance::by(owner, volume, socket, uid).keep(|| Ok(files))
    }

    /// Of nothing yet.
    fn by(
        leaver: Key,
        volume: &Arc<ServedVolume>,
        socket: Registered<OwnedFd>,
        uid: u32,
    ) -> Inheritance {
        // First: if the session ends now, the next server is to know what it has left.
        (volume.sessions_file).leave(volume.opening, leaver);
        Inheritance {
            socket,
            key: Key {
                secret: (os_random_u64(), os_random_u64()),
                ..leaver
            },
            uid,
            volume: volume.clone(),
            read_only: false,
            files: Vec::new(),
            from: Weak::new(),
            is_handed_over: false,
        }
    }

    fn keep(mut self, files: impl FnOnce() -> Result<Vec<(u64, Tabled)>>) -> Result<Inheritance> {
        // Before the tails end: from here on both may have the last one of a file to close.
        self.files = files()?;
        let files = self.files.iter();
        let open: Vec<_> = files.map(|(_, file)| file.open().clone()).collect();
        // Two processes append now. A tail that begins behind this finds that.
        let lead = self.volume.workers.lead();
        lead.run(|fs| async move { fs.end_tails_of(&open).await })?;
        Ok(self)
    }

    pub(crate) fn key(&self) -> Key {
        self.key
    }

    /// Puts the files into the table of a new session; `moves`: it takes the place of the one that
    /// left them.
    pub(crate) fn hand_to(&mut self, session: &Arc<Session>, moves: bool) {
        if moves && let Some(from) = self.from.upgrade() {
            session.take_place_of(&from);
        }
        for (number, file) in self.files.drain(..) {
            // A session that has ended meanwhile takes none: dropped here, they are closed.
            drop(session.files().put(number, file));
        }
    }
}

impl Drop for Inheritance {
    /// Nobody has come for them, or the server ends: the next one may be asked for them then.
    fn drop(&mut self) {
        if !self.is_handed_over {
            let volume = &self.volume;
            (volume.sessions_file).end_leaving(volume.opening, self.key.family);
        }
        let files = self.files.drain(..);
        let last = files.filter_map(|(_, file)| file.into_last()).collect();
        serve::close_files(&self.volume, last, self.is_handed_over);
    }
}
