//! Calls of a session that goes on with one of the last server: open again, lock, settle appends.

use super::{Ticket, answer, arguments, close_each, file_arguments};
use crate::begun::Begun;
use crate::resume::TokenOf;
use crate::rights;
use crate::session::Session;
use adit_base::{Errno, Error, Result};
use adit_fs::{BlobId, FileKind, OpenFile, OpenFlags};
use adit_wire::calls::*;
use adit_wire::message::Message;
use std::sync::Arc;

/// May a session that has not everything again send it?
pub(super) fn may_be(message: &Message) -> bool {
    match message {
        Message::Nothing => true,
        Message::VolumeCall { number, .. } | Message::FileCall { number, .. } => {
            row(*number).is_some_and(|row| row.held.may_resume())
        }
        _ => false,
    }
}

/// With what the session opens a file again in the next server.
pub(super) fn token(session: &Session, id: BlobId, flags: OpenFlags, kind: FileKind) -> u64 {
    let known = TokenOf {
        id,
        flags,
        kind,
        uid: session.peer.uid,
        family: session.family,
    };
    let volume = &session.volume;
    volume.sessions_file.token(volume.opening, &known)
}

/// The token of a file that the session has, whoever opened it.
pub(super) fn renew(ticket: Ticket, open: &OpenFile, bytes: &[u8]) -> Result<()> {
    file_arguments::<Renew>(bytes)?;
    let (id, flags, kind) = (open.blob_id(), open.flags(), open.kind());
    let token = token(&ticket.session, id, flags, kind);
    ticket.finish_with_value(Ok(token));
    Ok(())
}

pub(super) fn not_now() -> Error {
    let what = "reopen files: only a session that goes on with one of the last server may";
    Error::with(Errno::PERM, what)
}

/// Opens what the session had open, under the number that it had.
pub(super) fn reopen(ticket: Ticket, bytes: &[u8], begun: &mut Begun) -> Result<()> {
    let (who, call) = arguments::<Reopen>(bytes)?;
    let session = &ticket.session;
    let Reopen {
        file,
        id,
        flags,
        kind,
        token: given,
    } = call;
    let refused = match () {
        () if !session.is_resuming() => Some(not_now()),
        () if token(session, id, flags, kind) != given || who.is_some() && !session.privileged => {
            let what = "open a file again: the session did not have it open in this way";
            Some(Error::with(Errno::ACCESS, what))
        }
        () if session.read_only && flags.writable() => Some(rights::read_only()),
        () => None,
    };
    if let Some(error) = refused {
        ticket.finish_with(Err(error));
        return Ok(());
    }
    let worker = session.volume.workers.partition_of(id);
    answer(ticket, worker, begun, async move |fs, asking| {
        let session = &asking.session;
        let who = who.as_ref().unwrap_or(&session.who);
        let open = fs.reopen(id, kind, flags, who).await?;
        let put = session.files().put(file, open.clone().into());
        if put.is_err() {
            // Its session may have been handed over meanwhile.
            close_each(fs, [open], session.is_handed_over()).await;
            let what = "open a file under a number that is taken";
            return Err(Error::with(Errno::MFILE, what));
        }
        Ok(())
    });
    Ok(())
}

/// The session has everything again. It goes on when all have.
pub(super) fn end(ticket: Ticket, bytes: &[u8]) -> Result<()> {
    arguments::<EndResuming>(bytes)?;
    let session = ticket.session.clone();
    if !session.returns() {
        ticket.finish_with(Err(not_now()));
        return Ok(());
    }
    let volume = session.volume.clone();
    // Otherwise it counts among those whose locks are free.
    if !session.is_late() {
        volume
            .resumption
            .has_come_back(session.key(), session.peer.pid);
    }
    let reply = move || {
        session.end_resuming();
        ticket.finish_with_value(Ok(()));
    };
    volume.resumption.wait_for_all(Box::new(reply));
    Ok(())
}

/// Was an append done that the last server has not replied to? All of it, or nothing is left of it.
pub(super) fn settle_append(
    ticket: Ticket,
    open: Arc<OpenFile>,
    bytes: &[u8],
    begun: &mut Begun,
) -> Result<()> {
    let SettleAppend { offset, len_bytes } = file_arguments(bytes)?;
    // Others may have appended behind it otherwise.
    let Some(reclaim) = ticket.session.begin_reclaim() else {
        ticket.finish_with(Err(not_now()));
        return Ok(());
    };
    let worker = ticket.worker_of(&open);
    answer(ticket, worker, begun, async move |fs, _| {
        let _reclaim = reclaim;
        let size = open.size_bytes();
        let is_done = size >= offset.saturating_add(len_bytes);
        if size > offset && !is_done {
            return fs.ftruncate(&open, offset).await.map(|()| false);
        }
        Ok(is_done)
    });
    Ok(())
}
