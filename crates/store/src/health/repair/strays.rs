//! Pages that are used by the maps of groups but unreferenced: a damaged node or slot led to them.
//!
//! Leaves of trees name the blob that they belong to in their headers, so they find back to it. If
//! a group's map is damaged, all of its unreferenced pages are candidates; they may hold content
//! deleted long ago, so it counts only if a name leads to it (`trusted`).

use super::medium::Medium;
use super::survey::Survey;
use crate::format::{
    BlobKind, GroupMap, NODE_ENTRIES, PAGE_HEADER_BYTES, Page, PageKind, RawExtent,
};
use crate::health::iterate::{SlotContent, slots_of};
use crate::metadata::extents::{Extent, verified_extents};
use crate::metadata::page_view::{header, view};
use crate::metadata::space::Run;
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::FromBytes;

struct Stray {
    page: u64,
    content: Box<Page>,
    trusted: bool,
}

/// The strays found.
#[derive(Default)]
pub(super) struct Strays {
    leaves: BTreeMap<(u64, u8), Vec<Stray>>,
    pages: BTreeSet<u64>,
    /// Pages with slots in them.
    pub(super) slot_pages: BTreeSet<u64>,
}

impl Strays {
    /// Looks for them.
    pub(super) async fn search(
        medium: &Medium<'_>,
        survey: &Survey,
        maps: &[Option<Box<Page>>],
    ) -> Strays {
        let mut strays = Strays::default();
        let geometry = medium.geometry;
        for (group, map) in maps.iter().enumerate() {
            let map = map.as_ref().map(|map| view::<GroupMap>(map));
            let trusted = map.is_some_and(|map| agrees(map, group as u32, survey));
            let mut run: Option<(u64, u64)> = None;
            for offset in geometry.head_pages()..=geometry.group_pages(group as u32) {
                let page = geometry.map_page(group as u32) + offset as u64;
                let inside = offset < geometry.group_pages(group as u32);
                let marked = map.is_none_or(|map| {
                    inside && (map.a[offset / 64] | map.b[offset / 64]) >> (offset % 64) & 1 == 1
                });
                let stray =
                    inside && (marked || !trusted) && survey.used.is_unused(Run { page, pages: 1 });
                match (&mut run, stray) {
                    (Some((_, end)), true) => *end = page + 1,
                    (None, true) => run = Some((page, page + 1)),
                    (None, false) => {}
                    (Some((start, end)), false) => {
                        let pages = *start..*end;
                        run = None;
                        medium
                            .each(pages, &mut |page, content| {
                                strays.take_in(medium, page, content, trusted);
                            })
                            .await;
                    }
                }
            }
        }
        strays
    }

    fn take_in(&mut self, medium: &Medium<'_>, page: u64, content: &Page, trusted: bool) {
        let found = header(content);
        let leaf = [PageKind::NameLeaf as u8, PageKind::ExtentLeaf as u8].contains(&found.kind);
        if leaf && found.level == 0 && medium.verifies(page, content) {
            let stray = Stray {
                page,
                content: Box::new(content.clone()),
                trusted,
            };
            self.pages.insert(page);
            let key = (found.owner, found.kind);
            self.leaves.entry(key).or_default().push(stray);
            return;
        }
        if holds_slots(medium, page, content, None) {
            self.slot_pages.insert(page);
        }
    }

    /// Slots whose leaves were found, where the map says that they are in use.
    pub(super) fn owners(&self) -> Vec<u64> {
        let trusted = self
            .leaves
            .iter()
            .filter(|(_, found)| found.iter().any(|leaf| leaf.trusted));
        trusted.map(|((owner, _), _)| *owner).collect()
    }

    /// Pages of the leaves that a blob has here; `all`: those that may be of a deleted one, too.
    pub(super) fn leaves(&self, owner: u64, kind: PageKind, all: bool) -> Vec<u64> {
        let found = self.leaves.get(&(owner, kind as u8));
        let found = found
            .into_iter()
            .flatten()
            .filter(|leaf| all || leaf.trusted);
        found.map(|leaf| leaf.page).collect()
    }

    /// Gives out the leaves of a blob.
    pub(super) fn take(&mut self, owner: u64, kind: PageKind) -> Vec<(u64, Box<Page>)> {
        let found = self.leaves.remove(&(owner, kind as u8)).unwrap_or_default();
        found
            .into_iter()
            .map(|leaf| (leaf.page, leaf.content))
            .collect()
    }

    /// The extents of a leaf that was found.
    pub(super) fn extents(&self, content: &Page) -> Vec<Extent> {
        let count = usize::from(header(content).count).min(NODE_ENTRIES);
        let raw = <[RawExtent]>::ref_from_bytes(&content.0[PAGE_HEADER_BYTES..]).unwrap_or(&[]);
        let raw = raw.get(..count).unwrap_or(&[]);
        verified_extents(raw)
            .filter_map(|(extent, _)| extent)
            .collect()
    }

    /// True if this page is one of them, which must not be overwritten.
    pub(super) fn holds(&self, page: u64) -> bool {
        self.pages.contains(&page) || self.slot_pages.contains(&page)
    }
}

/// True if a page holds the slot of a blob (of this one).
pub(super) fn holds_slots(
    medium: &Medium<'_>,
    page: u64,
    content: &Page,
    wanted: Option<(u64, u32)>,
) -> bool {
    slots_of(medium.volume, page, content).any(|(address, slot)| match slot {
        SlotContent::Blob(slot) => {
            BlobKind::from_u8(slot.kind).is_some()
                && wanted.is_none_or(|wanted| wanted == (address, slot.generation))
        }
        _ => false,
    })
}

/// True if the map has all used pages as used.
pub(super) fn agrees(map: &GroupMap, group: u32, survey: &Survey) -> bool {
    let Some(used) = survey.used.words(group) else {
        return true;
    };
    let pairs = used.iter().zip(map.a.iter().zip(&map.b));
    pairs.into_iter().all(|(used, (a, b))| used & !(a | b) == 0)
}
