//! The process that serves its own volume: it leaves what it has open to processes that it starts,
//! as a session does.
//!
//! It has no session. It offers files under a key, and asks at its own socket that they are kept
//! ([`Aim::Leave`](adit_wire::handshake::Aim::Leave)). Invariant: in the record of sessions it is
//! one from its first offer on, so that the next server knows the family of its heirs.

use crate::files::Tabled;
use crate::resume::TokenOf;
use crate::volume::ServedVolume;
use adit_base::random::os_random_u64;
use adit_wire::calls::Opened;
use adit_wire::handshake::{Key, Opening};
use adit_wire::socket::own_uid;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Files that the process offers, until they are asked for.
#[derive(Debug)]
pub(crate) struct Owner {
    family: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// In the record of sessions.
    recorded: Option<Key>,
    offered: Vec<(Key, Vec<(u64, Tabled)>)>,
}

/// Files that wait to be [left](adit_wire::handshake::Aim::Leave).
#[derive(Debug)]
pub struct Offer {
    /// Its holder may ask for them, once.
    pub key: Key,
    /// Names the server.
    pub opening: Opening,
    /// The user for whom the files may be opened again.
    pub uid: u32,
    /// In the order in which they were offered.
    pub files: Vec<Opened>,
}

fn new_key(family: u64) -> Key {
    Key {
        number: 0, // no session's
        secret: (os_random_u64(), os_random_u64()),
        family,
    }
}

impl Owner {
    pub(crate) fn new() -> Owner {
        Owner {
            family: os_random_u64(),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn offer(&self, volume: &ServedVolume, files: &[&Tabled]) -> Offer {
        let mut state = self.lock();
        state.recorded.get_or_insert_with(|| {
            let key = new_key(self.family);
            let process = Some(std::process::id());
            volume.sessions_file.begin(volume.opening, key, process);
            key
        });
        let (key, uid) = (new_key(self.family), own_uid());
        // A number from the start on, so that none is that of another session's closed file.
        let first = os_random_u64() << 32;
        let numbered: Vec<_> = (first..).zip(files.iter().map(|of| of.share())).collect();
        let opened = numbered.iter().map(|(number, file)| {
            let (id, flags, kind) = (
                file.open().blob_id(),
                file.open().flags(),
                file.open().kind(),
            );
            let known = TokenOf {
                id,
                flags,
                kind,
                uid,
                family: self.family,
            };
            Opened {
                file: *number,
                id,
                flags,
                kind,
                token: volume.sessions_file.token(volume.opening, &known),
            }
        });
        let files = opened.collect();
        state.offered.push((key, numbered));
        Offer {
            key,
            opening: volume.opening,
            uid,
            files,
        }
    }

    /// The files that were offered under this key.
    pub(crate) fn take(&self, key: Key) -> Option<Vec<(u64, Tabled)>> {
        let mut state = self.lock();
        let at = state.offered.iter().position(|(of, _)| *of == key)?;
        Some(state.offered.swap_remove(at).1)
    }

    /// The key under which the next server knows the family.
    pub(crate) fn recorded(&self) -> Option<Key> {
        self.lock().recorded
    }

    /// The process closes its volume in order: the next server doesn't wait for it.
    pub(crate) fn end(&self, volume: &ServedVolume) {
        if let Some(key) = self.lock().recorded.take() {
            volume.sessions_file.end(volume.opening, key);
        }
    }
}
