//! Which files of a session have tails, to which it appends without a message (`adit_store`'s
//! `cache/tail`), and which are to get one.
//!
//! ```text
//! many appends by message ─► BeginTail ─► append, append, … ─► full: Size, and on
//!          ▲                                      └─► ended by the server ─┐
//!          └────────────────────────── message ◄──────────────────────────┘
//! ```
//! A tail costs as much as some tens of messages to make. So a file gets one after some appends in
//! messages: after twice as many each time that a tail was of little use, after few in a session
//! whose last tail was of use. A file whose appends are each synced gets one only where processors
//! are short: there a message costs switches between threads; elsewhere it is quicker than the
//! absorption of one append.

use adit_base::hash::BuildNumberHasher;
use adit_base::simulation;
use adit_store::{TailWriter, locked};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Appends in messages before a file gets a tail: first, at most, and after a tail that was of use.
const MESSAGES_FIRST: u32 = 32;
const MESSAGES_MAX: u32 = 1 << 16;
const MESSAGES_FEW: u32 = 4;
/// Appends between two syncs, and syncs in a row that came after so few, of a file of which each append
/// is synced.
const FEW: u32 = 2;
const SYNCS: u32 = 16;
/// A tail that held fewer bytes was of little use.
const USEFUL_BYTES: u64 = 64 << 10;

/// The files of a session that are appended to.
#[derive(Default, Debug)]
pub(super) struct Tails(Mutex<Files>);

#[derive(Default, Debug)]
pub(super) struct Files {
    /// By their numbers.
    all: HashMap<u64, FileAppends, BuildNumberHasher>,
    /// Was the last tail of use? A database's next log is as long as the last one.
    was_of_use: bool,
}

impl Files {
    /// In a forked child: it has none.
    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    fn note_end(&mut self, tail: &TailWriter) {
        self.was_of_use = tail.published() >= USEFUL_BYTES;
    }
}

#[derive(Debug)]
pub(super) struct FileAppends {
    /// Messages to come before the file gets a tail.
    left: u32,
    /// As many the next time.
    next: u32,
    tail: Option<Arc<TailWriter>>,
    /// A thread gets it one.
    begins: bool,
    /// Appends since the last sync.
    unsynced: u32,
    /// Syncs in a row that came after few appends.
    synced: u32,
}

impl Tails {
    /// All of them. A process that is about to fork holds this: its child finds it free.
    pub(super) fn files(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file is closed.
    pub(super) fn close(&self, file: u64) {
        // A signal's handler may leave it to the end of the connection.
        let closed = locked(&self.0).and_then(|mut files| {
            let closed = files.all.remove(&file)?;
            if let Some(tail) = &closed.tail {
                files.note_end(tail);
            }
            Some(closed)
        });
        drop(closed);
    }

    /// The tail of a file. None, and true: this append was the last one before it gets one.
    pub(super) fn tail(
        &self,
        file: u64,
        counts: bool,
        is_crowded: impl Fn() -> bool,
    ) -> (Option<Arc<TailWriter>>, bool) {
        let Some(mut files) = locked(&self.0) else {
            return (None, false);
        };
        let was_of_use = files.was_of_use;
        let of_file = match (files.all.get_mut(&file), counts) {
            (Some(found), _) => found,
            (None, false) => return (None, false),
            (None, true) => {
                let first = match was_of_use {
                    _ if simulation::is_simulated() => 2,
                    true => MESSAGES_FEW,
                    false => MESSAGES_FIRST,
                };
                let new = FileAppends {
                    left: first,
                    next: first,
                    tail: None,
                    begins: false,
                    unsynced: 0,
                    synced: 0,
                };
                files.all.entry(file).or_insert(new)
            }
        };
        of_file.unsynced = of_file.unsynced.saturating_add(1);
        if of_file.synced >= SYNCS && of_file.unsynced <= FEW && !is_crowded() {
            // The server ends it with the message that comes now.
            of_file.tail = None;
            return (None, false);
        }
        if of_file.tail.is_some() || of_file.begins || !counts {
            return (of_file.tail.clone(), false);
        }
        of_file.left = of_file.left.saturating_sub(1);
        let is_due = of_file.left == 0;
        if is_due {
            // Unless it gets one, as many again.
            of_file.next = of_file.next.saturating_mul(2).min(MESSAGES_MAX);
            of_file.left = of_file.next;
            of_file.begins = true;
        }
        (None, is_due)
    }

    /// The thread that `tail` has told so has got it one, or not.
    pub(super) fn begun(&self, file: u64, tail: Option<Arc<TailWriter>>) {
        if let Some(mut files) = locked(&self.0)
            && let Some(of_file) = files.all.get_mut(&file)
        {
            of_file.tail = tail;
            of_file.begins = false;
        }
    }

    /// The file is synced.
    pub(super) fn note_sync(&self, file: u64) {
        if let Some(mut files) = locked(&self.0)
            && let Some(of_file) = files.all.get_mut(&file)
        {
            of_file.synced = if of_file.unsynced <= FEW {
                of_file.synced.saturating_add(1)
            } else {
                0
            };
            of_file.unsynced = 0;
        }
    }

    pub(super) fn end(&self, file: u64, tail: &Arc<TailWriter>) {
        let Some(mut files) = locked(&self.0) else {
            return;
        };
        let Some(of_file) = files.all.get_mut(&file) else {
            return;
        };
        let is_same = |of: &Arc<TailWriter>| Arc::ptr_eq(of, tail);
        if of_file.tail.as_ref().is_some_and(is_same) {
            of_file.tail = None;
            if tail.published() >= USEFUL_BYTES {
                of_file.next = MESSAGES_FIRST;
            }
            of_file.left = of_file.next;
            files.note_end(tail);
        }
    }
}
