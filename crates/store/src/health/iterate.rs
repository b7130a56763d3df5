//! Visits every blob of a volume, in the order of their slots.
//!
//! Memory is bounded by the slot pages of one allocation group. Nothing is locked between two
//! pages: a blob that is made or deleted meanwhile may be missed, all others are visited exactly
//! once.

use crate::format::BlobId;
use crate::format::{ALGORITHM_CRC32C, InnerEntry, Page, PageKind, SLOTS_PER_PAGE, Slot, VolumeId};
use crate::metadata::pages::PagesRead;
use crate::metadata::space::PageState;
use crate::state::Store;
use adit_base::{Result, SECTOR_BYTES};
use zerocopy::FromBytes;

/// Pages of slots after which others get the worker.
const PAGES_PER_TURN: usize = 32;

/// The content of a slot's sector.
pub(crate) enum SlotContent<'p> {
    /// No blob.
    Free,
    /// A blob.
    Blob(&'p Slot),
    /// Its checksum does not match.
    Damaged,
}

/// Reads the slots of a slot page, with their addresses.
pub(crate) fn slots_of(
    volume: VolumeId,
    page: u64,
    content: &Page,
) -> impl Iterator<Item = (u64, SlotContent<'_>)> {
    let sectors = content.0.chunks_exact(SECTOR_BYTES).enumerate();
    sectors.map(move |(sector, bytes)| {
        let address = page * SLOTS_PER_PAGE + sector as u64;
        let content = match Slot::ref_from_bytes(bytes) {
            Ok(slot) if slot.kind == 0 => SlotContent::Free,
            Ok(slot)
                if slot.algorithm == ALGORITHM_CRC32C
                    && volume.checksum(address, bytes, 0) == slot.crc =>
            {
                SlotContent::Blob(slot)
            }
            _ => SlotContent::Damaged,
        };
        (address, content)
    })
}

impl Store {
    /// Calls `f` with every blob and its slot as applied (cached writes may be ahead of it), by
    /// ascending slot address; an error of `f` ends it. Damaged slots are skipped with a warning:
    /// see [`Store::check`].
    pub async fn for_each_blob(
        &self,
        f: &mut dyn FnMut(BlobId, &Slot) -> Result<()>,
    ) -> Result<()> {
        self.for_each_blob_from(0, f).await
    }

    /// Calls `each` like [`Store::for_each_blob`], for slots from this address on.
    pub async fn for_each_blob_from(
        &self,
        from: u64,
        f: &mut dyn FnMut(BlobId, &Slot) -> Result<()>,
    ) -> Result<()> {
        let first_page = from / SLOTS_PER_PAGE;
        let position = self.space.borrow().geometry().position(first_page);
        let mut group = position.map_or(0, |(group, _)| group);
        while group < self.own_state().await?.groups_initialized {
            for (number, (page, _)) in self.slot_pages(group).await?.into_iter().enumerate() {
                if page < first_page {
                    continue;
                }
                if number % PAGES_PER_TURN == PAGES_PER_TURN - 1 {
                    self.reactor.yield_now().await;
                }
                let Some(content) = self.slot_page(page).await? else {
                    continue;
                };
                for (address, content) in slots_of(self.whole.volume, page, &content) {
                    match content {
                        SlotContent::Free => {}
                        _ if address < from => {}
                        SlotContent::Blob(slot) => {
                            let id = BlobId {
                                slot: address,
                                generation: slot.generation,
                            };
                            f(id, slot)?;
                        }
                        SlotContent::Damaged => {
                            let volume = self.reactor.name();
                            tracing::warn!(%volume, slot = address, "a damaged slot is left out: run `adit check`");
                        }
                    }
                }
            }
            group += 1;
        }
        Ok(())
    }

    /// The slot pages of a group.
    pub(crate) async fn slot_pages(&self, group: u32) -> Result<Vec<(u64, PageState)>> {
        self.view(|view| {
            let mut found = Vec::new();
            let space = self.space.borrow();
            space.for_each_slot_page(view, group, |page, state| {
                found.push((page, state));
                Ok(())
            })?;
            Ok(found)
        })
        .await
    }

    /// A copy of a slot page; `None`: it no longer is one.
    pub(crate) async fn slot_page(&self, page: u64) -> Result<Option<Box<Page>>> {
        self.view(|view| match self.space.borrow().page_state(view, page)? {
            PageState::SlotsWithRoom | PageState::SlotsFull => {
                Ok(Some(Box::new(view.page(page, PageKind::Slots)?.clone())))
            }
            PageState::Free | PageState::Used => Ok(None),
        })
        .await
    }
}

/// A node of a tree that is still to be looked at.
#[derive(Clone, Copy)]
pub(super) struct Unvisited {
    pub(super) page: u64,
    pub(super) level: u8,
    pub(super) lower: u64,
    pub(super) upper: Option<u64>,
}

/// The children of an inner node with their bounds, up to the first whose key can't be: its index.
pub(super) fn children(
    entries: &[InnerEntry],
    parent: &Unvisited,
) -> (Vec<Unvisited>, Option<usize>) {
    let mut found = Vec::with_capacity(entries.len());
    let mut lower = parent.lower;
    for (index, entry) in entries.iter().enumerate() {
        let upper = entries.get(index + 1).map(|next| next.key).or(parent.upper);
        let beyond = |upper: u64| parent.upper.is_some_and(|limit| upper > limit);
        if upper.is_some_and(|upper| upper <= lower || beyond(upper)) {
            return (found, Some(index + 1));
        }
        found.push(Unvisited {
            page: entry.child,
            level: parent.level - 1,
            lower,
            upper,
        });
        lower = upper.unwrap_or(lower);
    }
    (found, None)
}
