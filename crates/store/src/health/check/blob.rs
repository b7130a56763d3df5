//! The part of the check that looks at slots, maps and attributes. See `check.rs`.
//!
//! A tree is walked node by node, each in a `view` of its own: a large tree is neither walked again
//! for every page that isn't resident, nor held in memory. The walk doesn't descend into pages that
//! are marked already, so that even on a damaged volume it visits each page once.

use super::{Checker, damage};
use crate::commit::View;
use crate::data::xattr;
use crate::format::BlobId;
use crate::format::{MAP_EXTENT_TREE, MAP_EXTENTS, MAP_NAME_TREE, PageKind, SLOTS_PER_PAGE, Slot};
use crate::health::iterate::{SlotContent, Unvisited, children, slots_of};
use crate::metadata::extents::{self, Found};
use crate::metadata::node::{DEPTH_MAX, Tree};
use crate::metadata::pages::{PagesRead, Stop};
use crate::metadata::slot_page::absurdities;
use crate::metadata::space::{PageState, Run};
use adit_base::{Error, Result};
use zerocopy::IntoBytes;

/// The checked content of a node.
enum Node {
    Inner(Vec<Unvisited>, Option<String>),
    Extents(u64, Vec<Found>),
    Names(Vec<String>),
}

/// A blob whose map is being checked.
struct Subject<'a> {
    id: BlobId,
    slot: &'a Slot,
    place: String,
    /// Pages found so far.
    pages: u64,
    /// Part of its map could not be read, so `pages` means nothing.
    incomplete: bool,
}

impl Checker<'_> {
    /// A slot page and the blobs in it.
    pub(super) async fn slot_page(&mut self, page: u64, state: PageState) -> Result<()> {
        let first = page * SLOTS_PER_PAGE;
        let place = format!(
            "slot page {page} (slots {first} to {})",
            first + SLOTS_PER_PAGE - 1
        );
        self.mark(Run { page, pages: 1 }, true, &place);
        let content = match self.store.slot_page(page).await {
            Ok(Some(content)) => content,
            Ok(None) => return Ok(()), // freed meanwhile
            Err(error) => {
                self.report.slots_damaged += SLOTS_PER_PAGE;
                return self.unreadable(place, error, "the blobs in it can't be opened");
            }
        };
        let volume = self.store.whole.volume;
        let mut has_room = false;
        for (address, slot) in slots_of(volume, page, &content) {
            let offset = (address - first) as usize * size_of::<Slot>();
            match slot {
                SlotContent::Free => {
                    has_room = true;
                    if content.0[offset..][..size_of::<Slot>()] != [0; size_of::<Slot>()] {
                        let place = format!("slot {address} (page {page})");
                        let what = "free, but not zeroed";
                        self.problem(place, what, "its blob is lost");
                    }
                }
                SlotContent::Damaged => {
                    self.report.slots_damaged += 1;
                    self.incomplete = true;
                    let place = format!("slot {address} (page {page})");
                    let what = "checksum does not match";
                    self.problem(place, what, "the blob in it can't be opened");
                }
                SlotContent::Blob(slot) => {
                    self.report.blobs += 1;
                    let id = BlobId {
                        slot: address,
                        generation: slot.generation,
                    };
                    self.blob(id, slot).await?;
                    self.step().await;
                }
            }
        }
        if has_room != (state == PageState::SlotsWithRoom) {
            let what = if has_room {
                "has free slots, but is marked as full"
            } else {
                "has no free slot, but is marked as having one"
            };
            self.problem(place, what, "new files may be refused");
        }
        Ok(())
    }

    async fn blob(&mut self, id: BlobId, slot: &Slot) -> Result<()> {
        let mut subject = Subject {
            id,
            slot,
            place: format!(
                "blob {}.{} (slot page {})",
                id.slot,
                id.generation,
                id.slot / SLOTS_PER_PAGE
            ),
            pages: 0,
            incomplete: false,
        };
        for what in absurdities(slot) {
            self.problem(&subject.place, what, "the blob can't be used safely");
        }
        let root = match slot.payload[..8].as_bytes().try_into() {
            Ok(bytes) => u64::from_le_bytes(bytes),
            Err(_) => 0,
        };
        match slot.map_kind {
            MAP_EXTENTS => {
                let mut found = Vec::new();
                let view = View::of_own(self.store);
                // Reads the slot only, so there is no miss.
                let _ = extents::check(&view, slot, id.slot, &mut |item| found.push(item));
                self.found(&mut subject, found);
            }
            MAP_NAME_TREE if root == 0 => {} // empty
            MAP_EXTENT_TREE => self.tree(&mut subject, PageKind::ExtentLeaf).await?,
            MAP_NAME_TREE => self.tree(&mut subject, PageKind::NameLeaf).await?,
            _ => {}
        }
        if slot.xattr_page != 0 {
            self.xattrs(&mut subject).await?;
        }
        if !subject.incomplete && subject.pages != slot.allocated_pages {
            let what = format!(
                "counts {} pages, but has {}",
                slot.allocated_pages, subject.pages
            );
            let consequence = "the space that it counts is wrong, and it can't be deleted";
            self.problem(subject.place, what, consequence);
        }
        Ok(())
    }

    async fn xattrs(&mut self, subject: &mut Subject<'_>) -> Result<()> {
        let (page, owner) = (subject.slot.xattr_page, subject.id.slot);
        subject.pages += 1;
        let place = format!("page {page} (extended attributes of {})", subject.place);
        if !self.mark(Run { page, pages: 1 }, true, &place) {
            return Ok(());
        }
        let store = self.store;
        let checked =
            store.view(|view| xattr::check(page, view.page(page, PageKind::Xattrs)?, owner));
        if let Err(error) = checked.await {
            let what = damage(&error).ok_or(error)?;
            self.problem(place, what, "its extended attributes can't be read");
        }
        Ok(())
    }

    /// Takes in the extents and problems of an extent map or of a leaf.
    fn found(&mut self, subject: &mut Subject<'_>, found: Vec<Found>) {
        for item in found {
            match item {
                Found::Problem { page, what } => {
                    subject.incomplete = true;
                    self.incomplete = true;
                    let place = format!("page {page} (map of {})", subject.place);
                    self.problem(place, what, "part of its content can't be read");
                }
                Found::Node(_) => {}
                Found::Extent(extent) => {
                    let run = Run {
                        page: extent.physical,
                        pages: extent.pages,
                    };
                    subject.pages += u64::from(extent.pages);
                    let place = format!("{}, its page {}", subject.place, extent.logical);
                    self.mark(run, false, &place);
                }
            }
        }
    }

    /// Walks a tree, leaves from left to right.
    async fn tree(&mut self, subject: &mut Subject<'_>, leaf_kind: PageKind) -> Result<()> {
        let tree = Tree::of_slot(subject.slot, subject.id.slot, leaf_kind);
        if usize::from(tree.depth) > DEPTH_MAX {
            subject.incomplete = true; // reported with the slot
            self.incomplete = true;
            return Ok(());
        }
        let mut stack = vec![Unvisited {
            page: tree.root,
            level: tree.depth,
            lower: 0,
            upper: None,
        }];
        let mut extents_end = 0;
        while let Some(pending) = stack.pop() {
            let page = pending.page;
            let place = format!("page {page} (map of {})", subject.place);
            subject.pages += 1;
            if !self.mark(Run { page, pages: 1 }, true, &place) {
                subject.incomplete = true;
                self.incomplete = true;
                continue;
            }
            match self.node(&tree, pending, subject, extents_end).await {
                Ok(Node::Inner(children, problem)) => {
                    if pending.level == 1 {
                        let leaves = children.iter().map(|leaf| leaf.page).collect();
                        self.store.load_ahead(leaves, leaf_kind).await;
                    }
                    stack.extend(children.into_iter().rev());
                    if let Some(what) = problem {
                        subject.incomplete = true;
                        self.incomplete = true;
                        self.problem(place, what, "part of the blob can't be found");
                    }
                }
                Ok(Node::Extents(end, found)) => {
                    extents_end = end;
                    self.found(subject, found);
                }
                Ok(Node::Names(problems)) => {
                    for what in problems {
                        self.problem(&place, what, "the names concerned can't be found");
                    }
                }
                Err(error) => {
                    subject.incomplete = true;
                    let consequence = match leaf_kind {
                        PageKind::NameLeaf => "the names in it can't be found",
                        _ => "part of the blob's content can't be read",
                    };
                    self.unreadable(place, error, consequence)?;
                }
            }
        }
        Ok(())
    }

    async fn node(
        &mut self,
        tree: &Tree,
        pending: Unvisited,
        subject: &Subject<'_>,
        extents_end: u64,
    ) -> Result<Node, Error> {
        let Unvisited {
            page,
            level,
            lower,
            upper,
        } = pending;
        let (id, slot) = (subject.id, subject.slot);
        let leaf = &mut self.leaf;
        self.store
            .view(|view| match (level, tree.leaf_kind) {
                (0, PageKind::NameLeaf) => Ok(Node::Names(leaf(id, tree.leaf(view, page)?))),
                (0, _) => {
                    let (mut end, mut found) = (extents_end, Vec::new());
                    let bounds = (page, lower, upper);
                    let report = &mut |item| found.push(item);
                    extents::check_leaf(view, slot, id.slot, bounds, &mut end, report)?;
                    Ok(Node::Extents(end, found))
                }
                _ => inner_node(view, tree, pending),
            })
            .await
    }
}

/// The children of an inner node with their bounds, up to the first whose key can't be.
fn inner_node(view: &View<'_>, tree: &Tree, parent: Unvisited) -> Result<Node, Stop> {
    let entries = tree.inner(view, parent.page, parent.level)?;
    let (children, unordered) = children(entries, &parent);
    let problem = unordered.map(|index| format!("the key of entry {index} is out of order"));
    Ok(Node::Inner(children, problem))
}
