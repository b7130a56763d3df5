//! Reading metadata: pages and slots as they were applied, and as a transaction sees them.
//!
//! A page is verified when it is loaded (`commit/load.rs`), a slot when it is read for the first
//! time since its page came into the cache. A page that isn't there stops the closure
//! (`metadata/pages.rs`).

use crate::cache::{FrameId, FrameKey};
use crate::format::{ALGORITHM_CRC32C, BlobId, Page, PageKind, SLOTS_PER_PAGE, Slot, StatePage};
use crate::metadata::pages::{PagesRead, Stop};
use crate::metadata::slot_page::absurdities;
use crate::metadata::space::PageState;
use crate::state::{Owners, PARTITIONS_MAX, Store};
use adit_base::{Errno, Error, SECTOR_BYTES, steps};
use std::ops::Range;
use zerocopy::FromBytes;

/// Reads metadata of a store; see [`crate::Store::view`].
pub struct View<'s> {
    store: &'s Store,
    owners: Owners<'s>,
}

impl<'s> View<'s> {
    /// Of a partition and those beside it.
    #[inline]
    pub(crate) fn new(store: &'s Store, owners: Owners<'s>) -> View<'s> {
        View { store, owners }
    }

    /// Of this partition's own pages.
    #[inline]
    pub(crate) fn of_own(store: &'s Store) -> View<'s> {
        let none = &[None; PARTITIONS_MAX as usize];
        View::new(store, Owners::within(store, none))
    }

    /// The slot of a blob as applied; ESTALE when it is gone.
    pub fn slot(&self, id: BlobId) -> Result<Slot, Stop> {
        self.slot_ref(id).copied()
    }

    /// The slot of a blob as applied, in place; ESTALE when it is gone.
    pub fn slot_ref(&self, id: BlobId) -> Result<&Slot, Stop> {
        slot_of(&self.owners, self, id)
    }

    /// Begins to fetch a blob's slot into this processor's cache.
    pub fn prefetch(&self, id: BlobId) {
        let (page, offset) = place(id.slot);
        if let Ok(store) = self.owners.of_page(page) {
            store.cache.prefetch(FrameKey::meta(page), offset);
        }
    }

    /// The blob whose slot is at this address, and the slot.
    pub fn slot_at(&self, address: u64) -> Result<(BlobId, Slot), Stop> {
        let slot = slot_at(&self.owners, self, address)?;
        Ok((id_of(address, slot), *slot))
    }

    /// The partition that has a blob, or would have it. The closure keeps no clone of it, nor of
    /// anything that it has: another worker's lock guards their counts.
    #[inline]
    pub fn partition_of(&self, id: BlobId) -> Result<&'s Store, Stop> {
        self.owners.of_page(place(id.slot).0)
    }

    /// The volume-state page.
    pub fn state(&self) -> Result<StatePage, Stop> {
        state(self.store, self)
    }
}

impl PagesRead for View<'_> {
    fn page(&self, page: u64, kind: PageKind) -> Result<&Page, Stop> {
        resident(self.owners.of_page(page)?, page, kind)
    }
}

impl Staged for View<'_> {
    fn staged(&self, _page: u64, _bytes: &Range<usize>) -> Option<&[u8]> {
        None
    }
}

/// The staged pages, which differ from the cache.
pub(super) trait Staged: PagesRead {
    /// Some bytes of a page that the transaction changes.
    fn staged(&self, page: u64, bytes: &Range<usize>) -> Option<&[u8]>;
}

pub(super) fn resident(store: &Store, page: u64, kind: PageKind) -> Result<&Page, Stop> {
    steps::note(1);
    let frame = store.cache.find_fetching(FrameKey::meta(page), 0);
    let frame = loaded(store, page, kind, frame)?;
    Ok(store.cache.page(frame))
}

/// The frame of a page, if it is there with this kind.
pub(super) fn loaded(
    store: &Store,
    page: u64,
    kind: PageKind,
    frame: Option<FrameId>,
) -> Result<FrameId, Stop> {
    match frame {
        Some(frame) if !store.cache.is_loading(frame) => {
            if store.cache.kind(frame) != kind as u8 {
                return Err(Stop::Fail(Error::with(
                    Errno::UCLEAN,
                    format!(
                        "metadata page {page} is used as {kind:?} but holds kind {}",
                        store.cache.kind(frame)
                    ),
                )));
            }
            Ok(frame)
        }
        _ => Err(Stop::Miss(page, kind)),
    }
}

pub(super) fn state(store: &Store, pages: &impl PagesRead) -> Result<StatePage, Stop> {
    let place = store.layout.get().state_page;
    let bytes = pages.bytes(place, PageKind::State, 0..size_of::<StatePage>())?;
    StatePage::read_from_bytes(bytes).map_err(|_| Error::new(Errno::UCLEAN).into())
}

/// The place of a slot address: device page and byte offset in it.
pub(super) fn place(address: u64) -> (u64, usize) {
    (
        address / SLOTS_PER_PAGE,
        (address % SLOTS_PER_PAGE) as usize * SECTOR_BYTES,
    )
}

/// The slot at an address, verified when it is read for the first time since its page came into the
/// cache.
pub(super) fn slot_at<'p>(
    owners: &'p Owners<'_>,
    pages: &'p impl Staged,
    address: u64,
) -> Result<&'p Slot, Stop> {
    let (page, offset) = place(address);
    let store = owners.of_page(page)?;
    let layout = store.layout.get();
    if page < layout.first_group || page >= layout.volume_pages {
        return Err(Error::with(Errno::STALE, format!("there is no slot {address}")).into());
    }
    steps::note(1);
    let frame = store.cache.find_fetching(FrameKey::meta(page), offset);
    let index = address % SLOTS_PER_PAGE;
    // The frame goes when the page is freed.
    let verified = frame.is_some_and(|frame| store.cache.verified_slots(frame) & 1 << index != 0);
    // The content of a former slot page is void: it may be that from before its slots were freed.
    // If the map can't be read, the slot's checksum and the wanted generation must suffice.
    let known = !verified && !store.space.borrow().avoids(page);
    if known
        && !matches!(
            store.space.borrow().page_state(pages, page)?,
            PageState::SlotsWithRoom | PageState::SlotsFull
        )
    {
        return Err(Error::with(Errno::STALE, format!("use slot {address}: there is none")).into());
    }
    let sector = offset..offset + SECTOR_BYTES;
    let bytes = match pages.staged(page, &sector) {
        Some(bytes) => bytes,
        None => (store.cache).bytes(loaded(store, page, PageKind::Slots, frame)?, sector),
    };
    let slot = Slot::ref_from_bytes(bytes).map_err(|_| Error::new(Errno::UCLEAN))?;
    if slot.kind == 0 {
        return Err(Error::with(Errno::STALE, format!("slot {address} is free")).into());
    }
    if verified {
        return Ok(slot);
    }
    if slot.algorithm != ALGORITHM_CRC32C
        || store.whole.volume.checksum(address, bytes, 0) != slot.crc
    {
        return Err(Error::with(
            Errno::UCLEAN,
            format!("slot {address} (page {page}) is damaged: run `adit check`"),
        )
        .into());
    }
    if let Some(what) = absurdities(slot).first() {
        let what = format!("use slot {address} (page {page}) with {what}: run `adit check`");
        return Err(Error::with(Errno::UCLEAN, what).into());
    }
    if let Some(frame) = frame {
        store.cache.set_verified_slot(frame, index);
    }
    Ok(slot)
}

pub(super) fn id_of(address: u64, slot: &Slot) -> BlobId {
    BlobId {
        slot: address,
        generation: slot.generation,
    }
}

pub(super) fn slot_of<'p>(
    owners: &'p Owners<'_>,
    pages: &'p impl Staged,
    id: BlobId,
) -> Result<&'p Slot, Stop> {
    let slot = slot_at(owners, pages, id.slot)?;
    if slot.generation != id.generation {
        return Err(Error::with(
            Errno::STALE,
            format!("blob {}.{} is gone", id.slot, id.generation),
        )
        .into());
    }
    Ok(slot)
}
