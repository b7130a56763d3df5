//! Reading metadata on any thread, without the worker (decision 0024).
//!
//! Algorithms over a [`View`](super::View) also run over a [`SharedView`], which holds the pages
//! that they read. Afterwards the thread checks whether a transaction became visible meanwhile. If
//! not, it saw the metadata of one moment. If so, or if a page is missing, the worker repeats the
//! operation.

use super::view::{id_of, place};
use crate::cache::{AheadCounts, AheadOf, FrameKey, Frames, HeldPage, HeldPages, Hint};
use crate::format::{BlobId, Page, PageKind, SLOTS_PER_PAGE, Slot};
use crate::metadata::pages::{PagesRead, Stop};
use crate::state::Store;
use adit_base::{Errno, Result, SECTOR_BYTES};
use std::ops::Range;
use std::sync::Arc;
use zerocopy::FromBytes;

/// A thread's access to the metadata of an open volume.
#[derive(Clone)]
pub struct SharedMetadata {
    frames: Arc<Frames>,
}

impl std::fmt::Debug for SharedMetadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedMetadata").finish_non_exhaustive()
    }
}

impl SharedMetadata {
    /// Runs a closure against the metadata as it is at one moment during the call. None: ask the
    /// worker, which also judges everything that looks damaged. The closure has no effect but its
    /// answer, which may be thrown away.
    #[inline]
    pub fn look<T>(
        &self,
        closure: impl FnOnce(&SharedView<'_>) -> Result<T, Stop>,
    ) -> Option<Result<T>> {
        let view = SharedView {
            pages: self.frames.hold_pages()?,
            ahead: self.frames.ahead(AheadOf::Attributes),
        };
        let answer = match closure(&view) {
            Ok(answer) => Ok(answer),
            Err(Stop::Fail(error)) if is_plain(error.errno()) => Err(error),
            Err(_) => return None,
        };
        view.pages.are_of_one_moment().then_some(answer)
    }

    /// Where a blob's slot is, for readers in other processes; None: not in the cache, or not for
    /// them.
    pub fn slot_hint(&self, id: BlobId) -> Option<Hint> {
        let (page, _) = place(id.slot);
        self.frames.slot_hint(page, id.slot % SLOTS_PER_PAGE)
    }
}

/// True if this errno is an answer, and not damage or a lack of resources.
fn is_plain(errno: Errno) -> bool {
    !matches!(
        errno,
        Errno::UCLEAN | Errno::STALE | Errno::IO | Errno::NOMEM
    )
}

impl Store {
    /// For other threads.
    pub fn shared_metadata(&self) -> SharedMetadata {
        SharedMetadata {
            frames: self.frames.clone(),
        }
    }
}

/// Metadata as any thread reads it; see the head of the file. A page outside the cache, and a slot
/// that the worker has not verified yet, is [`Stop::Miss`].
pub struct SharedView<'f> {
    pages: HeldPages<'f>,
    ahead: AheadCounts<'f>,
}

impl std::fmt::Debug for SharedView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedView").finish_non_exhaustive()
    }
}

impl SharedView<'_> {
    fn held(&self, page: u64, kind: PageKind, fetch: usize) -> Result<HeldPage<'_>, Stop> {
        self.pages
            .page(FrameKey::meta(page), fetch)
            .filter(|held| held.kind == kind as u8)
            .ok_or(Stop::Miss(page, kind))
    }

    /// The slot of a blob, in place; ESTALE when it is gone.
    pub fn slot_ref(&self, id: BlobId) -> Result<&Slot, Stop> {
        let slot = self.slot_in_place(id.slot)?;
        if slot.generation == id.generation {
            Ok(slot)
        } else {
            Err(Errno::STALE.into())
        }
    }

    /// The blob whose slot is at this address, and the slot.
    pub fn slot_at(&self, address: u64) -> Result<(BlobId, Slot), Stop> {
        let slot = self.slot_in_place(address)?;
        Ok((id_of(address, slot), *slot))
    }

    fn slot_in_place(&self, address: u64) -> Result<&Slot, Stop> {
        let (page, offset) = place(address);
        let held = self.held(page, PageKind::Slots, offset)?;
        if held.verified_slots & 1 << (address % SLOTS_PER_PAGE) == 0 {
            return Err(Stop::Miss(page, PageKind::Slots));
        }
        let bytes = &held.bytes[offset..offset + SECTOR_BYTES];
        let slot = Slot::ref_from_bytes(bytes).map_err(|_| Errno::UCLEAN)?;
        match slot.kind {
            0 => Err(Errno::STALE.into()),
            _ => Ok(slot),
        }
    }

    /// The slot, if it has the blob's size and times as cached reads and writes left them, else
    /// [`Stop::Miss`].
    pub fn current_slot(&self, id: BlobId) -> Result<&Slot, Stop> {
        let slot = self.slot_ref(id)?;
        if self.ahead.may_contain(id.slot) {
            Err(Stop::Miss(place(id.slot).0, PageKind::Slots))
        } else {
            Ok(slot)
        }
    }
}

impl PagesRead for SharedView<'_> {
    fn page(&self, page: u64, kind: PageKind) -> Result<&Page, Stop> {
        Page::ref_from_bytes(self.held(page, kind, 0)?.bytes).map_err(|_| Errno::UCLEAN.into())
    }

    fn bytes(&self, page: u64, kind: PageKind, bytes: Range<usize>) -> Result<&[u8], Stop> {
        Ok(&self.held(page, kind, bytes.start)?.bytes[bytes])
    }
}
