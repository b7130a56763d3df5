//! Memory of files that sessions have: of shared mappings, and tails.

use super::{Ticket, answer, file_arguments, resuming};
use crate::begun::Begun;
use crate::mappings::{MAPPED_MAX, check_room};
use adit_base::random::os_random_u64;
use adit_base::{Errno, Error, PAGE_BYTES, Result, simulation};
use adit_fs::OpenFile;
use adit_store::TAIL_BYTES;
use adit_wire::calls::*;
use std::sync::Arc;

/// Files with a tail in one session, at most.
const TAILS_MAX: usize = 64;

pub(super) fn map(
    ticket: Ticket,
    open: Arc<OpenFile>,
    bytes: &[u8],
    begun: &mut Begun,
) -> Result<()> {
    let Map { offset, len_bytes } = file_arguments(bytes)?;
    let session = &ticket.session;
    let is_resuming = session.is_resuming();
    let reclaim = is_resuming.then(|| session.begin_reclaim());
    let refused = match () {
        () if matches!(reclaim, Some(None)) => Some(resuming::not_now()),
        () if open.maps() || is_resuming => None,
        () if session.files().mapped() >= MAPPED_MAX => {
            let what = "map more than 1024 files in one session";
            Some(Error::with(Errno::MFILE, what))
        }
        () => check_room().err(),
    };
    if let Some(error) = refused {
        ticket.finish_with(Err(error));
        return Ok(());
    }
    let worker = ticket.worker_of(&open);
    answer(ticket, worker, begun, async move |fs, asking| {
        let _reclaim = reclaim;
        let mappings = &asking.session.volume.mappings;
        if !is_resuming {
            return fs.map(&open, offset, len_bytes).await;
        }
        // If it fails, the session's own attempt says why.
        let _ = mappings.keep(fs, &open).await;
        let take_over = || mappings.take_over(open.blob_id());
        fs.map_with(&open, offset, len_bytes, take_over).await
    });
    Ok(())
}

/// The descriptor holds the memory no more, unless another process has it, too.
pub(super) fn unmap(
    ticket: Ticket,
    file: u64,
    open: Arc<OpenFile>,
    bytes: &[u8],
    begun: &mut Begun,
) -> Result<()> {
    file_arguments::<Unmap>(bytes)?;
    let is_shared = ticket.session.files().is_shared(file);
    let worker = ticket.worker_of(&open);
    answer(ticket, worker, begun, async move |fs, _| {
        if is_shared {
            fs.flush_mapped(&open).await
        } else {
            fs.unmap(&open).await
        }
    });
    Ok(())
}

/// The file gets a tail, if this session alone has it.
pub(super) fn begin_tail(
    ticket: Ticket,
    file: u64,
    open: Arc<OpenFile>,
    bytes: &[u8],
    begun: &mut Begun,
) -> Result<()> {
    file_arguments::<BeginTail>(bytes)?;
    let refused = match ticket.session.files().tails() {
        TAILS_MAX.. => {
            let what = "append in memory to more than 64 files in one session";
            Some(Error::with(Errno::MFILE, what))
        }
        _ => check_room().err(),
    };
    if let Some(error) = refused {
        ticket.finish_with(Err(error));
        return Ok(());
    }
    let worker = ticket.worker_of(&open);
    answer(ticket, worker, begun, async move |fs, asking| {
        let session = &asking.session;
        let may = || {
            let mut files = session.files();
            // Others may have begun since it was asked for.
            !files.is_shared(file) && files.tails() < TAILS_MAX && check_room().is_ok()
        } && !session.has_ended();
        fs.begin_tail(&open, tail_bytes(), os_random_u64(), may)
            .await
    });
    Ok(())
}

/// Simulated ones are often full.
fn tail_bytes() -> u64 {
    if simulation::is_simulated() {
        4 * PAGE_BYTES as u64
    } else {
        TAIL_BYTES
    }
}
