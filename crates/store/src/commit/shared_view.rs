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
use crate::metadata::space::Division;
use crate::state::{PARTITIONS_MAX, Store};
use adit_base::{Errno, Result, SECTOR_BYTES};
use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;
use zerocopy::FromBytes;

/// A thread's access to the metadata of an open volume.
#[derive(Clone)]
pub struct SharedMetadata {
    /// Of the first partition.
    frames: Arc<Frames>,
    divided: Option<Divided>,
}

/// The partitions of a volume that has several.
#[derive(Clone)]
struct Divided {
    division: Division,
    first_group: u64,
    /// The shared parts of their caches.
    frames: Arc<[Arc<Frames>]>,
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
            others: self.divided.as_ref().map(Others::of),
        };
        let answer = match closure(&view) {
            Ok(answer) => Ok(answer),
            Err(Stop::Fail(error)) if is_plain(error.errno()) => Err(error),
            Err(_) => return None,
        };
        view.is_of_one_moment().then_some(answer)
    }

    /// The number of the partition that has a blob, or would have it.
    #[inline]
    pub fn partition_of(&self, id: BlobId) -> u32 {
        let of = |divided: &Divided| divided.partition(place(id.slot).0);
        self.divided.as_ref().map_or(0, of)
    }

    /// Where a blob's slot is, for readers in other processes; None: not in the cache, or not for
    /// them.
    pub fn slot_hint(&self, id: BlobId) -> Option<Hint> {
        let (page, _) = place(id.slot);
        let frames = match &self.divided {
            None => &self.frames,
            Some(divided) => &divided.frames[divided.partition(page) as usize],
        };
        frames.slot_hint(page, id.slot % SLOTS_PER_PAGE)
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
    /// For other threads. Only the first partition is asked, once the others are known.
    pub fn shared_metadata(&self) -> SharedMetadata {
        assert_eq!(self.partition, 0, "the first partition");
        let divided = self.whole.frames.get().map(|frames| Divided {
            division: self.division.get(),
            first_group: self.layout.get().first_group,
            frames: frames.as_slice().into(),
        });
        SharedMetadata {
            frames: self.frames.clone(),
            divided,
        }
    }
}

impl Divided {
    #[inline]
    fn partition(&self, page: u64) -> u32 {
        self.division.owner_of_page(page, self.first_group)
    }
}

/// The pages that a look holds in the caches of all partitions but the first. It begins to hold
/// some where it first looks. Each cache is as it was from there on, so they were of one moment
/// together: that in which the look began with the last one.
struct Others<'f> {
    divided: &'f Divided,
    pages: [OnceCell<HeldPages<'f>>; PARTITIONS_MAX as usize - 1],
}

impl<'f> Others<'f> {
    fn of(divided: &'f Divided) -> Others<'f> {
        Others {
            divided,
            pages: [const { OnceCell::new() }; PARTITIONS_MAX as usize - 1],
        }
    }

    /// Those of the partition that has a page; None: the first one. Err: too many threads read it,
    /// or it changes.
    fn of_page(&self, page: u64) -> Result<Option<&HeldPages<'f>>, ()> {
        let partition = self.divided.partition(page) as usize;
        let Some(place) = partition.checked_sub(1) else {
            return Ok(None);
        };
        let place = &self.pages[place];
        if let Some(held) = place.get() {
            return Ok(Some(held));
        }
        let held = self.divided.frames[partition].hold_pages().ok_or(())?;
        Ok(Some(place.get_or_init(|| held)))
    }
}

/// Metadata as any thread reads it; see the head of the file. A page outside the cache, and a slot
/// that the worker has not verified yet, is [`Stop::Miss`].
pub struct SharedView<'f> {
    /// Of the first partition.
    pages: HeldPages<'f>,
    ahead: AheadCounts<'f>,
    others: Option<Others<'f>>,
}

impl std::fmt::Debug for SharedView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedView").finish_non_exhaustive()
    }
}

impl SharedView<'_> {
    #[inline]
    fn is_of_one_moment(&self) -> bool {
        let others = self.others.iter().flat_map(|others| &others.pages);
        self.pages.are_of_one_moment()
            && (others.filter_map(|held| held.get())).all(|held| held.are_of_one_moment())
    }

    fn held(&self, page: u64, kind: PageKind, fetch: usize) -> Result<HeldPage<'_>, Stop> {
        let pages = match &self.others {
            None => &self.pages,
            Some(others) => match others.of_page(page) {
                Ok(None) => &self.pages,
                Ok(Some(pages)) => pages,
                Err(()) => return Err(Stop::Miss(page, kind)),
            },
        };
        pages
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
        let divided = self.others.as_ref().map(|others| others.divided);
        let is_ahead = match divided {
            None => self.ahead.may_contain(id.slot),
            Some(divided) => {
                let frames = &divided.frames[divided.partition(place(id.slot).0) as usize];
                frames.ahead(AheadOf::Attributes).may_contain(id.slot)
            }
        };
        if is_ahead {
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
