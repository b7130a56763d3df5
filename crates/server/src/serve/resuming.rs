//! Calls of a session that goes on with one of the last server: open again, lock, settle appends.

use super::{Begun, Ticket, close_each, garbled};
use crate::resume::Known;
use crate::rights::{self, Decoded};
use crate::session::Session;
use adit_base::{Errno, Error, Result};
use adit_fs::{BlobId, FileKind, OpenFile, OpenFlags};
use adit_wire::calls::*;
use adit_wire::message::Message;
use adit_wire::value::Value;
use std::sync::Arc;

/// May a session that has not everything again send it?
pub(super) fn may_be(message: &Message) -> bool {
    match message {
        Message::Nothing => true,
        Message::VolumeCall { number, .. } => {
            [Reopen::NUMBER, EndResuming::NUMBER].contains(number)
        }
        Message::FileCall { number, .. } => {
            let calls = [
                Flock::NUMBER,
                LockRange::NUMBER,
                Map::NUMBER,
                SettleAppend::NUMBER,
            ];
            calls.contains(number)
        }
        _ => false,
    }
}

/// With what the session opens a file again in the next server.
pub(super) fn token(session: &Session, id: BlobId, flags: OpenFlags, kind: FileKind) -> u64 {
    let known = Known {
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
    Renew::decode(bytes).ok_or_else(|| garbled(Renew::NUMBER))?;
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
    let number = Reopen::NUMBER;
    let (who, call) = Decoded::<Reopen>::decode(bytes).ok_or_else(|| garbled(number))?;
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
    let engine = session.volume.engine.clone();
    begun.extend(engine.prepare(move |fs| async move {
        let session = &ticket.session;
        let who = who.as_ref().unwrap_or(&session.who);
        let result = match fs.reopen(id, kind, flags, who).await {
            Ok(open) => {
                let put = session.files().put(file, open.clone().into());
                match put {
                    Ok(()) => Ok(()),
                    Err(_) => {
                        // Its session may have been handed over meanwhile.
                        close_each(fs, &[open], session.is_handed_over()).await;
                        Err(Error::with(
                            Errno::MFILE,
                            "open a file under a number that is taken",
                        ))
                    }
                }
            }
            Err(error) => Err(error),
        };
        ticket.finish_with_value(result);
        Ok(())
    }));
    Ok(())
}

/// The session has everything again. It goes on when all have.
pub(super) fn end(mut ticket: Ticket, bytes: &[u8]) -> Result<()> {
    let number = EndResuming::NUMBER;
    Decoded::<EndResuming>::decode(bytes).ok_or_else(|| garbled(number))?;
    let session = ticket.session.clone();
    if !session.returns() {
        ticket.finish_with(Err(not_now()));
        return Ok(());
    }
    ticket.set_aside();
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
    let number = SettleAppend::NUMBER;
    let SettleAppend { offset, len_bytes } =
        SettleAppend::decode(bytes).ok_or_else(|| garbled(number))?;
    // Others may have appended behind it otherwise.
    let Some(reclaim) = ticket.session.begin_reclaim() else {
        ticket.finish_with(Err(not_now()));
        return Ok(());
    };
    let engine = ticket.session.volume.engine.clone();
    begun.extend(engine.prepare(move |fs| async move {
        let _reclaim = reclaim;
        let size = open.size_bytes();
        let is_done = size >= offset.saturating_add(len_bytes);
        let result = match size > offset && !is_done {
            true => fs.ftruncate(&open, offset).await.map(|()| false),
            false => Ok(is_done),
        };
        ticket.finish_with_value(result);
        Ok(())
    }));
    Ok(())
}
