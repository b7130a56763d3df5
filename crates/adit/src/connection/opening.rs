//! Opening a file, or making it with its content, when the server ends meanwhile: the next
//! message to send.
//!
//! ```text
//! All ── reply, the server is there ─────────────► the file
//!  ├──── reply, the server has ended since ──────► Open   (All, for an opening that truncates)
//!  ├──── no reply, all was written ──────────────► Sync ── the file is open ── sync ──► the file
//!  ├──── no reply, it was created exclusively ───► All, but without creating it
//!  └──── no reply, otherwise ────────────────────► All
//! ```
//! Invariant: a file is created exclusively once. A session that goes on opens the file that it has
//! created; it would find it in its way otherwise.

use super::file::Unknown;
use super::link::{Failure, Fate, Taken};
use super::remote::RemoteFile;
use super::session::{Answered, Sender, Session, done};
use super::state::Connection;
use crate::work::Durable;
use adit_base::{Errno, Error, Result};
use adit_fs::{BlobId, Credentials, OpenFlags};
use adit_store::cache::Hint;
use adit_wire::calls::{CreateAndSync, Open, OpenBlob, Opened, Place};
use adit_wire::memory::DATA_BYTES_MAX;
use adit_wire::message::Message;
use std::io::IoSlice;

/// An opening, and how much of it is left to do.
pub(crate) struct OpenRequest<'a> {
    place: Place<'a>,
    flags: OpenFlags,
    mode: u32,
    /// The content that the file, new or truncated, gets durably.
    content: Option<&'a [u8]>,
    left: Left,
    /// The file is there, by this opening.
    is_made: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Left {
    All,
    /// The content is written.
    Sync,
    /// The content is durable.
    Open,
}

const EXCLUSIVE: OpenFlags = OpenFlags::CREATE.union(OpenFlags::EXCLUSIVE);

impl<'a> OpenRequest<'a> {
    pub(crate) fn new(place: Place<'a>, flags: OpenFlags, mode: u32) -> OpenRequest<'a> {
        OpenRequest {
            place,
            flags,
            mode,
            content: None,
            left: Left::All,
            is_made: false,
        }
    }

    /// Of a file that is new or truncated, with at most as much content as a message has.
    pub(crate) fn with_content(self, content: &'a [u8]) -> OpenRequest<'a> {
        OpenRequest {
            content: Some(content),
            ..self
        }
    }

    /// Puts the message's call into the area.
    pub(super) fn fill(
        &self,
        taken: &Taken<'_>,
        who: &Credentials,
        connection: &Connection,
    ) -> Result<Message> {
        let OpenRequest {
            place, flags, mode, ..
        } = *self;
        let is_again = self.is_made && flags.contains(OpenFlags::EXCLUSIVE);
        assert!(!is_again, "a file is created exclusively once");
        match self.content.filter(|_| self.left == Left::All) {
            Some(content) => {
                let call = CreateAndSync {
                    place,
                    flags,
                    mode,
                    content,
                };
                connection.fill_call(taken, who, &call)
            }
            None => connection.fill_call(taken, who, &Open { place, flags, mode }),
        }
    }

    /// The server has replied and ended, so the next one doesn't have the file open.
    pub(super) fn forget(&mut self) {
        match self.content {
            Some(_) if self.left == Left::All => {
                self.left = Left::Open;
                self.make(OpenFlags::CREATE | OpenFlags::EXCLUSIVE | OpenFlags::TRUNCATE);
            }
            Some(_) => {}
            None if self.flags.contains(EXCLUSIVE) => self.make(EXCLUSIVE),
            None => {}
        }
    }

    /// The server has ended without a reply.
    pub(super) fn lose(&mut self, fate: &Fate) -> Result<(), Unknown> {
        if self.content.is_some() && self.left == Left::All && fate.is_written {
            self.left = Left::Sync;
            self.make(OpenFlags::CREATE | OpenFlags::EXCLUSIVE | OpenFlags::TRUNCATE);
        } else if self.flags.contains(OpenFlags::EXCLUSIVE) {
            match fate.is_applied {
                Some(false) => {}
                Some(true) => {
                    self.make(EXCLUSIVE);
                    // Nothing of the content, or a part of it, is there.
                    let has_content = self.content.is_some();
                    self.flags.set(OpenFlags::TRUNCATE, has_content);
                }
                None => return Err(Unknown),
            }
        }
        Ok(())
    }

    /// This opening has made the file: opens it without these flags. A file that was created
    /// exclusively is no link, and nobody else's, since the name was free.
    fn make(&mut self, done: OpenFlags) {
        if self.flags.contains(OpenFlags::EXCLUSIVE) {
            self.flags.insert(OpenFlags::NOFOLLOW);
        }
        self.flags.remove(done);
        self.is_made = true;
    }

    /// Does an error of the server say that the file is there no more? Somebody has removed or
    /// replaced it, or its mode doesn't let its maker open it again.
    pub(super) fn is_gone(&self, error: &Error) -> bool {
        self.is_made && [Errno::ACCESS, Errno::NOENT, Errno::LOOP].contains(&error.errno())
    }
}

impl<'c, S: Sender> Session<'c, S> {
    /// Opens what a path names.
    pub(super) async fn open(
        self,
        who: &Credentials,
        mut opening: OpenRequest<'_>,
    ) -> Result<RemoteFile> {
        let file = loop {
            let fill = |taken: &Taken<'_>| opening.fill(taken, who, self.connection);
            match self.ask(fill).await {
                Ok(answer) => match self.keep(answer, who).await {
                    Some(file) => break file,
                    None => opening.forget(),
                },
                Err(Failure::Lost(fate)) => {
                    let lost = opening.lose(&fate);
                    lost.map_err(|Unknown| self.connection.unknown())?;
                }
                Err(Failure::Error(error)) if opening.is_gone(&error) => {
                    return Err(self.connection.unknown());
                }
                Err(Failure::Error(error)) => return Err(error),
            }
        };
        let synced = match opening.left {
            Left::Sync => self.sync(&file, true).await,
            Left::All | Left::Open => Ok(()),
        };
        synced
            .map(|()| file)
            .inspect_err(|_| self.connection.close(file.number))
    }

    /// Opens a blob.
    async fn open_blob(
        self,
        who: &Credentials,
        id: BlobId,
        flags: OpenFlags,
    ) -> Result<RemoteFile> {
        loop {
            let answer = self.repeat(who, &OpenBlob { id, flags }).await?;
            if let Some(file) = self.keep(answer, who).await {
                return Ok(file);
            }
        }
    }

    /// The session has opened a file. None: its server has ended since, and the next one doesn't
    /// know.
    async fn keep(self, answer: Answered<'c, Opened>, who: &Credentials) -> Option<RemoteFile> {
        let Answered { reply, hint, link } = answer;
        let mut held = self.sender.held(self.connection).await;
        self.connection.is_current(link).then(|| {
            let is_own = who == self.connection.own();
            held.open(reply, (!is_own).then(|| who.clone()));
            if let Some(cache) = &link.cache {
                cache.note_slot(reply.id, Hint(hint));
            }
            reply.into()
        })
    }
}

impl Connection {
    /// Opens what a path names.
    pub(crate) fn open(&self, who: &Credentials, opening: OpenRequest<'_>) -> Result<RemoteFile> {
        done(self.blocking().open(who, opening))
    }

    /// Opens a blob.
    pub(crate) fn open_blob(
        &self,
        who: &Credentials,
        id: BlobId,
        flags: OpenFlags,
    ) -> Result<RemoteFile> {
        done(self.blocking().open_blob(who, id, flags))
    }

    /// Opens a file that is new or truncated, writes its content, and syncs it: by one message, if
    /// that holds the content.
    pub(crate) fn create_and_sync(
        &self,
        who: &Credentials,
        place: Place<'_>,
        flags: OpenFlags,
        mode: u32,
        content: &[u8],
    ) -> Result<RemoteFile> {
        let opening = OpenRequest::new(place, flags, mode);
        if content.len() <= DATA_BYTES_MAX {
            return self.open(who, opening.with_content(content));
        }
        if !flags.makes_content() {
            return self.open(who, opening.with_content(&[])); // the server says why not
        }
        let file = self.open(who, opening)?;
        let written = self.write(&file, Some(0), &[IoSlice::new(content)], Durable::All);
        written
            .map(|_| file)
            .inspect_err(|_| self.close(file.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUNCATES: OpenFlags = OpenFlags::CREATE.union(OpenFlags::TRUNCATE);

    fn fate(is_applied: Option<bool>, is_written: bool) -> Fate {
        Fate {
            is_applied,
            append: None,
            is_written,
        }
    }

    /// How much is left of an opening, and its flags.
    fn left(
        flags: OpenFlags,
        content: Option<&[u8]>,
        lost: impl Fn(&mut OpenRequest<'_>) -> Result<(), Unknown>,
    ) -> Option<(Left, OpenFlags)> {
        let flags = OpenFlags::WRITE_ONLY | flags;
        let mut opening = OpenRequest::new(Place::root(b"/f"), flags, 0o600);
        opening.content = content;
        lost(&mut opening).ok()?;
        let is_made = opening.flags != flags;
        assert_eq!(opening.is_gone(&Errno::NOENT.into()), is_made);
        assert!(!opening.is_gone(&Errno::NOSPC.into()));
        Some((
            opening.left,
            opening.flags.difference(OpenFlags::WRITE_ONLY),
        ))
    }

    #[test]
    fn a_file_is_created_exclusively_once() {
        let nothing = OpenFlags::empty();
        let (link, cut) = (OpenFlags::NOFOLLOW, OpenFlags::TRUNCATE);
        let lost =
            |applied, written| move |of: &mut OpenRequest<'_>| of.lose(&fate(applied, written));
        for content in [None, Some(&b"content"[..])] {
            let again = if content.is_some() { link | cut } else { link };
            for (flags, applied, expected) in [
                (EXCLUSIVE, Some(false), Some(EXCLUSIVE)),
                (EXCLUSIVE, Some(true), Some(again)),
                (EXCLUSIVE, None, None),
                (TRUNCATES, Some(false), Some(TRUNCATES)),
                (TRUNCATES, Some(true), Some(TRUNCATES)),
                (TRUNCATES, None, Some(TRUNCATES)),
            ] {
                let found = left(flags, content, lost(applied, false));
                assert_eq!(found, expected.map(|flags| (Left::All, flags)));
            }
        }
        // All is written; all is durable.
        let content = Some(&b"content"[..]);
        for (flags, expected) in [(EXCLUSIVE, link), (TRUNCATES, nothing)] {
            let written = left(flags, content, lost(Some(true), true));
            assert_eq!(written, Some((Left::Sync, expected)));
            let replied = |of: &mut OpenRequest<'_>| {
                of.forget();
                Ok(())
            };
            assert_eq!(left(flags, content, replied), Some((Left::Open, expected)));
            let both = |of: &mut OpenRequest<'_>| {
                of.lose(&fate(Some(true), true))?;
                of.lose(&fate(Some(false), false))?;
                of.forget();
                Ok(())
            };
            assert_eq!(left(flags, content, both), Some((Left::Sync, expected)));
        }
    }
}
