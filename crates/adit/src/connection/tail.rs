//! Appends without a message: to the tail of a file that this session alone has open
//! (`adit_store`'s `cache/tail`).
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

use super::{Connection, RemoteFile};
use adit_base::Result;
use adit_base::clock::monotonic_ns;
use adit_base::hash::BuildNumberHasher;
use adit_base::simulation::{self, Bug, planted};
use adit_fs::OpenFlags;
use adit_store::{Appended, TailWriter, locked};
use adit_wire::calls::BeginTail;
use adit_wire::memory::DATA_BYTES_MAX;
use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Longer appends go in messages.
const APPEND_BYTES_MAX: usize = 32 << 10;
const _: () = assert!(APPEND_BYTES_MAX <= DATA_BYTES_MAX);
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
    fn tail(
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
    fn begun(&self, file: u64, tail: Option<Arc<TailWriter>>) {
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
            of_file.synced = match of_file.unsynced <= FEW {
                true => of_file.synced.saturating_add(1),
                false => 0,
            };
            of_file.unsynced = 0;
        }
    }

    fn end(&self, file: u64, tail: &Arc<TailWriter>) {
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

impl Connection {
    /// Appends to the file's tail, if it has one or gets one: the offset. None: a message has to do
    /// it. `counts`: it is an append as a tail is good for.
    pub(super) fn append_in_memory(
        &self,
        file: &RemoteFile,
        data: &[IoSlice<'_>],
        len: usize,
        counts: bool,
    ) -> Option<Result<u64>> {
        let unfit = OpenFlags::DIRECT | OpenFlags::SYNC | OpenFlags::DSYNC;
        if len == 0 || len > APPEND_BYTES_MAX || file.flags.intersects(unfit) || !self.is_own() {
            return None;
        }
        let is_crowded = || self.link().is_crowded(monotonic_ns());
        let (tail, is_due) = self.tails.tail(file.number, counts, is_crowded);
        let tail = match is_due {
            true => self.begin_tail(file)?,
            false => tail?,
        };
        // After that nobody takes over what a server has not absorbed.
        if self.end.get().is_some() {
            return None;
        }
        let mut was_full = false;
        loop {
            match tail.append(data) {
                Ok(Appended::At(offset)) => return Some(Ok(offset)),
                Ok(Appended::Full) if !was_full => {
                    was_full = true;
                    if let Err(error) = self.size_there(file) {
                        return Some(Err(error));
                    }
                }
                Ok(Appended::Ending(append)) => {
                    // Its reply comes behind the end of the tail.
                    let asked = self.size_there(file);
                    self.tails.end(file.number, &tail);
                    return match tail.outcome(append) {
                        _ if planted(Bug::BelievedAppend) => Some(Ok(append.offset())),
                        Ok(Some(offset)) => Some(Ok(offset)),
                        Ok(None) => None,
                        Err(unknown) => Some(Err(asked.err().unwrap_or(unknown))),
                    };
                }
                Ok(Appended::Busy) => return None,
                Ok(Appended::Full | Appended::Ended) | Err(_) => {
                    self.tails.end(file.number, &tail);
                    return None;
                }
            }
        }
    }

    #[cold]
    fn begin_tail(&self, file: &RemoteFile) -> Option<Arc<TailWriter>> {
        let begin = || {
            self.file_call(file.number, &BeginTail {})?;
            let memory = self.asked_memory(self.link(), file.number)?;
            TailWriter::map(&memory)
        };
        // Refused: mostly others have the file open.
        let begun = begin().inspect_err(|error| {
            tracing::debug!(volume = %self.address, %error, "appends go in messages");
        });
        let tail = begun.ok().map(Arc::new);
        self.tails.begun(file.number, tail.clone());
        tail
    }
}
