//! The map of a blob: which pages of the device hold which of its pages.
//!
//! Up to [`SLOT_EXTENTS`] extents lie in the slot. More of them are a tree of [`ExtentLeaf`] pages
//! under inner nodes (`node.rs`), whose root the slot holds; it returns into the slot when few are
//! left.
//!
//! Invariants:
//! 1. Extents are in ascending order and don't overlap; a hole is a range without extent.
//! 2. An extent lies within the bounds of its leaf. So only the leaf of a page can have its extent,
//!    and an inserted extent is split at the bounds of leaves.
//! 3. A leaf is empty only inside a transaction.
//! 4. `allocated_pages` of the slot counts the pages of extents and of the tree.
//!
//! Everything changes through `pages` and `&mut Slot` only: after a [`Stop`] the caller drops both
//! and perhaps runs again. Not here: allocating and freeing the data's pages, and the check that an
//! extent lies in pages for data ([`crate::format::geometry::SpaceGeometry::contains`]).

use crate::format::{
    EXTENT_PAGES_MAX, ExtentLeaf, MAP_EXTENT_TREE, MAP_EXTENTS, NODE_ENTRIES, Page, PageKind,
    RawExtent, SLOT_EXTENTS, Slot,
};
use crate::metadata::node::{Path, Tree};
use crate::metadata::page_view::{corrupt, view, view_mut};
use crate::metadata::pages::{Pages, PagesRead, Stop};
use crate::metadata::slot_page::slot_place;
use crate::metadata::space::Run;
use adit_base::Errno;
use adit_base::breakdown::{self, Layer};
use smallvec::SmallVec;
use std::mem::offset_of;
use std::ops::{ControlFlow, Range};
use zerocopy::{FromBytes, IntoBytes};

mod check;
mod extent;
#[cfg(test)]
mod tests;

pub(crate) use check::check_leaf;
pub use check::{Found, check};
pub(crate) use extent::verified_extents;
pub use extent::{Extent, MapEntry};

/// A blob's pages are numbered from 0 to below this.
pub const LOGICAL_END: u64 = u32::MAX as u64;
/// Extents of a leaf at which it is split. Few in this crate's own tests, so that small maps are
/// deep.
const LEAF_MAX: usize = if cfg!(test) { 24 } else { NODE_ENTRIES };
/// Most leaves that one call of [`remove`] changes.
const LEAVES_PER_REMOVE: u32 = 16;
/// Extents that return into the slot; fewer than fit there, so that a map doesn't go back and
/// forth.
const INLINE_AGAIN: usize = SLOT_EXTENTS / 2;

/// The map's entry at page `logical` of the blob.
pub fn lookup(
    pages: &impl PagesRead,
    slot: &Slot,
    slot_address: u64,
    logical: u32,
) -> Result<MapEntry, Stop> {
    let _in = breakdown::enter(Layer::Map);
    let from = u64::from(logical);
    Ok(match first_from(pages, slot, slot_address, from)? {
        Some((_, _, extent)) if extent.logical <= logical => {
            MapEntry::Extent(extent.cut(from..LOGICAL_END))
        }
        Some((_, _, extent)) => MapEntry::Hole {
            pages: extent.logical - logical,
        },
        None => MapEntry::Hole {
            pages: (LOGICAL_END - from) as u32,
        },
    })
}

/// Calls `f` with all extents that end behind page `from`, in order, until it breaks. EUCLEAN where
/// they aren't in order.
pub fn for_each(
    pages: &impl PagesRead,
    slot: &Slot,
    slot_address: u64,
    from: u64,
    mut f: impl FnMut(Extent) -> ControlFlow<()>,
) -> Result<(), Stop> {
    let (mut next, mut seen) = (Some(from), None);
    while let Some(from) = next {
        let place = locate(pages, slot, slot_address, from)?;
        let extents = read(pages, slot, slot_address, &place)?;
        for raw in &extents[first_index(extents, from)..] {
            let extent = raw.verify(place.page)?;
            if seen.is_some_and(|end| u64::from(extent.logical) < end) {
                let what = format_args!("{extent:?} begins before the end of the one before it");
                return Err(corrupt(place.page, what));
            }
            seen = Some(extent.end());
            if f(extent).is_break() {
                return Ok(());
            }
        }
        next = place.upper();
    }
    Ok(())
}

/// Puts an extent into a hole. Joins it with adjacent extents; splits it at the largest length of
/// an extent. EUCLEAN when an extent is there already; EFBIG beyond [`LOGICAL_END`].
pub fn insert(
    pages: &mut impl Pages,
    slot: &mut Slot,
    slot_address: u64,
    extent: Extent,
) -> Result<(), Stop> {
    let _in = breakdown::enter(Layer::Map);
    if extent.end() > LOGICAL_END {
        return Err(Errno::FBIG.into());
    }
    assert!(
        extent.pages > 0 && extent.physical < 1 << 48,
        "{extent:?} can't be stored"
    );
    let mut from = u64::from(extent.logical);
    while from < extent.end() {
        let place = locate(pages, slot, slot_address, from)?;
        let to = (from + u64::from(EXTENT_PAGES_MAX)).min(place.upper().unwrap_or(u64::MAX));
        let piece = extent.cut(from..to);
        insert_piece(pages, slot, slot_address, place, piece)?;
        from = piece.end();
    }
    slot.count_pages(slot_address, extent.pages.into());
    Ok(())
}

fn insert_piece(
    pages: &mut impl Pages,
    slot: &mut Slot,
    address: u64,
    place: LeafOrSlot,
    piece: Extent,
) -> Result<(), Stop> {
    let extents = read(pages, slot, address, &place)?;
    let index = first_index(extents, piece.logical.into());
    let (before, after) = around(extents, index, index, place.page)?;
    if let Some(after) = after
        && u64::from(after.logical) < piece.end()
    {
        return Err(corrupt(
            place.page,
            format_args!("maps {piece:?} already: {after:?}"),
        ));
    }
    let (joined, replaced) = join(before, piece, after, index..index);
    if !replaced.is_empty() {
        return splice(pages, slot, address, &place, replaced, &[joined]);
    }
    let place = reserve(pages, slot, address, piece.logical.into(), 1)?;
    let index = first_index(read(pages, slot, address, &place)?, piece.logical.into());
    splice(pages, slot, address, &place, index..index, &[piece])
}

/// Removes the extents in `range` and appends the freed device runs to `runs` (the closure must
/// empty it first, because it may run again).
///
/// Bounded: ends after about `max_extents` extents or a few leaves, and then returns the page where
/// the next call, in another transaction, continues. A hole in the middle of an extent may need a
/// page for the tree (ENOSPC); removal to the end of the blob never does.
pub fn remove(
    pages: &mut impl Pages,
    slot: &mut Slot,
    slot_address: u64,
    range: Range<u64>,
    max_extents: usize,
    runs: &mut Vec<Run>,
) -> Result<Option<u32>, Stop> {
    let _in = breakdown::enter(Layer::Map);
    let (mut from, end) = (range.start, range.end.min(LOGICAL_END));
    let (mut budget, mut leaves) = (max_extents.max(1), LEAVES_PER_REMOVE);
    while from < end {
        let Some((place, index, first)) = first_from(pages, slot, slot_address, from)? else {
            break;
        };
        let start = u64::from(first.logical);
        from = from.max(start);
        if from >= end {
            break;
        }
        if budget == 0 || leaves == 0 {
            return Ok(Some(from as u32));
        }
        leaves -= 1;
        if start < from {
            // Only the first extent can begin before the range.
            let (head, gone) = (first.cut(start..from), first.cut(from..end));
            if first.end() <= end {
                splice(pages, slot, slot_address, &place, index..index + 1, &[head])?;
            } else {
                let place = reserve(pages, slot, slot_address, start, 1)?;
                let index = index_of(pages, slot, slot_address, &place, first)?;
                let tail = first.cut(end..LOGICAL_END);
                splice(
                    pages,
                    slot,
                    slot_address,
                    &place,
                    index..index + 1,
                    &[head, tail],
                )?;
            }
            unused(runs, gone);
            slot.count_pages(slot_address, -i64::from(gone.pages));
            budget -= 1;
            from = gone.end();
            continue;
        }
        let (mut until, mut tail, mut freed) = (index, None, 0);
        for raw in &read(pages, slot, slot_address, &place)?[index..] {
            let extent = raw.verify(place.page)?;
            if u64::from(extent.logical) >= end || budget == 0 {
                break;
            }
            let gone = extent.cut(0..end);
            unused(runs, gone);
            freed += i64::from(gone.pages);
            budget -= 1;
            until += 1;
            from = gone.end();
            if extent.end() > end {
                tail = Some(extent.cut(end..LOGICAL_END));
                break;
            }
        }
        splice(
            pages,
            slot,
            slot_address,
            &place,
            index..until,
            tail.as_slice(),
        )?;
        slot.count_pages(slot_address, -freed);
        shrink(pages, slot, slot_address, &place)?;
    }
    Ok(None)
}

fn unused(runs: &mut Vec<Run>, extent: Extent) {
    match runs.last_mut() {
        // Not beyond the longest extent: a longer run could only come from a damaged map.
        Some(last)
            if last.end() == extent.physical && last.pages + extent.pages <= EXTENT_PAGES_MAX =>
        {
            last.pages += extent.pages;
        }
        _ => runs.push(extent.run()),
    }
}

/// Makes unwritten pages of `range` written. Holes and written extents stay as they are.
pub fn mark_written(
    pages: &mut impl Pages,
    slot: &mut Slot,
    slot_address: u64,
    range: Range<u64>,
) -> Result<(), Stop> {
    let _in = breakdown::enter(Layer::Map);
    let (mut from, end) = (range.start, range.end.min(LOGICAL_END));
    while from < end {
        let Some((place, index, extent)) = first_from(pages, slot, slot_address, from)? else {
            break;
        };
        if u64::from(extent.logical) >= end {
            break;
        }
        if !extent.unwritten {
            from = extent.end();
            continue;
        }
        let written = Extent {
            unwritten: false,
            ..extent.cut(from..end)
        };
        let head = (u64::from(extent.logical) < from).then(|| extent.cut(0..from));
        let tail = (extent.end() > end).then(|| extent.cut(end..LOGICAL_END));
        let extents = read(pages, slot, slot_address, &place)?;
        let (before, after) = around(extents, index, index + 1, place.page)?;
        let before = before.filter(|_| head.is_none());
        let after = after.filter(|_| tail.is_none());
        let (joined, mut replaced) = join(before, written, after, index..index + 1);
        let parts = [head, Some(joined), tail];
        let parts: SmallVec<[Extent; 3]> = parts.into_iter().flatten().collect();
        let mut place = place;
        if parts.len() > replaced.len() {
            // Then nothing was joined, so only the extent itself is replaced, at its present place.
            place = reserve(
                pages,
                slot,
                slot_address,
                extent.logical.into(),
                parts.len() - replaced.len(),
            )?;
            let index = index_of(pages, slot, slot_address, &place, extent)?;
            replaced = index..index + 1;
        }
        splice(pages, slot, slot_address, &place, replaced, &parts)?;
        from = written.end();
    }
    Ok(())
}

/// Where extents are: a leaf of the tree, or the slot.
struct LeafOrSlot {
    /// The leaf, or the page of the slot.
    page: u64,
    path: Option<Path>,
}

impl LeafOrSlot {
    fn inline(slot_address: u64) -> LeafOrSlot {
        LeafOrSlot {
            page: slot_place(slot_address).0,
            path: None,
        }
    }

    fn upper(&self) -> Option<u64> {
        self.path.as_ref()?.upper
    }
}

/// The tree that the slot holds the root of; `None` when it holds the extents themselves.
fn tree(slot: &Slot, slot_address: u64) -> Result<Option<Tree>, Stop> {
    match slot.map_kind {
        MAP_EXTENTS => Ok(None),
        MAP_EXTENT_TREE => Ok(Some(Tree::of_slot(
            slot,
            slot_address,
            PageKind::ExtentLeaf,
        ))),
        other => {
            let what = format_args!(
                "the blob at slot {slot_address} has a map of kind {other}, not extents"
            );
            Err(corrupt(slot_place(slot_address).0, what))
        }
    }
}

/// Where the extents around page `logical` are.
fn locate(
    pages: &impl PagesRead,
    slot: &Slot,
    slot_address: u64,
    logical: u64,
) -> Result<LeafOrSlot, Stop> {
    let Some(tree) = tree(slot, slot_address)? else {
        return Ok(LeafOrSlot::inline(slot_address));
    };
    let path = tree.descend(pages, logical)?;
    Ok(LeafOrSlot {
        page: path.leaf,
        path: Some(path),
    })
}

fn read<'a>(
    pages: &'a impl PagesRead,
    slot: &'a Slot,
    slot_address: u64,
    place: &LeafOrSlot,
) -> Result<&'a [RawExtent], Stop> {
    let (extents, count) = match &place.path {
        None => {
            let extents = <[RawExtent]>::ref_from_bytes(&slot.payload)
                .expect("aligned, and a multiple of 16 bytes");
            (extents, slot.map_count)
        }
        Some(path) => {
            let tree = Tree::of_slot(slot, slot_address, PageKind::ExtentLeaf);
            let leaf = view::<ExtentLeaf>(tree.leaf(pages, path.leaf)?);
            (&leaf.extents[..], leaf.header.count)
        }
    };
    match extents.get(..usize::from(count)) {
        Some(extents) => Ok(extents),
        None => Err(corrupt(
            place.page,
            format_args!("{count} extents where {} fit", extents.len()),
        )),
    }
}

/// The first extent that ends behind `logical`.
fn first_index(extents: &[RawExtent], logical: u64) -> usize {
    extents.partition_point(|extent| extent.end() <= logical)
}

/// Where an extent that was found before is now. A leaf out of order may have it nowhere.
fn index_of(
    pages: &impl PagesRead,
    slot: &Slot,
    slot_address: u64,
    place: &LeafOrSlot,
    extent: Extent,
) -> Result<usize, Stop> {
    let extents = read(pages, slot, slot_address, place)?;
    let index = first_index(extents, extent.logical.into());
    match extents.get(index) {
        Some(found) if *found == extent.raw() => Ok(index),
        _ => Err(corrupt(place.page, format_args!("lost {extent:?}"))),
    }
}

/// The first extent that ends behind `from`, in whichever leaf it is.
fn first_from(
    pages: &impl PagesRead,
    slot: &Slot,
    slot_address: u64,
    from: u64,
) -> Result<Option<(LeafOrSlot, usize, Extent)>, Stop> {
    let mut at = from;
    loop {
        let place = locate(pages, slot, slot_address, at)?;
        let extents = read(pages, slot, slot_address, &place)?;
        let index = first_index(extents, from);
        if let Some(raw) = extents.get(index) {
            let extent = raw.verify(place.page)?;
            return Ok(Some((place, index, extent)));
        }
        match place.upper() {
            Some(upper) => at = upper,
            None => return Ok(None),
        }
    }
}

/// The extent before `start` and the one at `end`, in the same leaf.
fn around(
    extents: &[RawExtent],
    start: usize,
    end: usize,
    page: u64,
) -> Result<(Option<Extent>, Option<Extent>), Stop> {
    let verify = |raw: Option<&RawExtent>| raw.map(|raw| raw.verify(page)).transpose();
    Ok((verify(extents[..start].last())?, verify(extents.get(end))?))
}

/// `extent`, which replaces the extents `replaced`, joined with its neighbours where that is
/// possible.
fn join(
    before: Option<Extent>,
    extent: Extent,
    after: Option<Extent>,
    mut replaced: Range<usize>,
) -> (Extent, Range<usize>) {
    let mut joined = extent;
    if let Some(before) = before.filter(|before| before.joins(&extent)) {
        joined = Extent {
            pages: before.pages + extent.pages,
            ..before
        };
        replaced.start -= 1;
    }
    if let Some(after) = after.filter(|after| joined.joins(after)) {
        joined.pages += after.pages;
        replaced.end += 1;
    }
    (joined, replaced)
}

/// Replaces some extents of one place. There must be room: see [`reserve`].
fn splice(
    pages: &mut impl Pages,
    slot: &mut Slot,
    slot_address: u64,
    place: &LeafOrSlot,
    range: Range<usize>,
    new: &[Extent],
) -> Result<(), Stop> {
    match &place.path {
        None => {
            let extents = <[RawExtent]>::mut_from_bytes(&mut slot.payload).expect("as in read");
            splice_in(extents, &mut slot.map_count, range, new);
        }
        Some(path) => {
            let tree = Tree::of_slot(slot, slot_address, PageKind::ExtentLeaf);
            let leaf = view_mut::<ExtentLeaf>(tree.leaf_mut(pages, path.leaf)?);
            splice_in(&mut leaf.extents, &mut leaf.header.count, range, new);
        }
    }
    Ok(())
}

fn splice_in(extents: &mut [RawExtent], count: &mut u16, range: Range<usize>, new: &[Extent]) {
    let old = usize::from(*count);
    let behind = range.start + new.len();
    assert!(range.end <= old && old - range.len() + new.len() <= extents.len());
    if behind != range.end {
        extents.copy_within(range.end..old, behind);
    }
    for (place, extent) in extents[range.start..].iter_mut().zip(new) {
        *place = extent.raw();
    }
    *count = (old - range.len() + new.len()) as u16;
}

/// Makes room for `need` more extents where those around page `logical` are, and says where that is
/// now.
fn reserve(
    pages: &mut impl Pages,
    slot: &mut Slot,
    slot_address: u64,
    logical: u64,
    need: usize,
) -> Result<LeafOrSlot, Stop> {
    loop {
        let place = locate(pages, slot, slot_address, logical)?;
        let extents = read(pages, slot, slot_address, &place)?;
        let Some(path) = &place.path else {
            if extents.len() + need <= SLOT_EXTENTS {
                return Ok(place);
            }
            grow_tree(pages, slot, slot_address)?;
            continue;
        };
        if extents.len() + need <= LEAF_MAX {
            return Ok(place);
        }
        // Appending leaves a full leaf behind; anything else halves it.
        let append = extents.last().is_some_and(|last| last.end() <= logical);
        let keep = if append {
            extents.len()
        } else {
            extents.len() / 2
        };
        let key = extents
            .get(keep)
            .map_or(logical, |first| first.logical.into());
        let moved: SmallVec<[RawExtent; NODE_ENTRIES]> = SmallVec::from_slice(&extents[keep..]);
        let mut tree = Tree::of_slot(slot, slot_address, PageKind::ExtentLeaf);
        let right = tree.add_leaf(pages, path, key)?;
        fill(tree.leaf_mut(pages, right)?, 0, &moved);
        if !append {
            view_mut::<ExtentLeaf>(tree.leaf_mut(pages, path.leaf)?)
                .header
                .count = keep as u16;
        }
        tree.save(slot);
        if append {
            let path = tree.descend(pages, logical)?;
            return Ok(LeafOrSlot {
                page: path.leaf,
                path: Some(path),
            });
        }
    }
}

/// Sets a leaf's extents from `index` on; they are its last ones.
fn fill(leaf: &mut Page, index: usize, extents: &[RawExtent]) {
    let leaf = view_mut::<ExtentLeaf>(leaf);
    leaf.extents[index..][..extents.len()].copy_from_slice(extents);
    leaf.header.count = (index + extents.len()) as u16;
}

/// Moves the extents of the slot into the first leaf of a tree.
fn grow_tree(pages: &mut impl Pages, slot: &mut Slot, slot_address: u64) -> Result<(), Stop> {
    let place = LeafOrSlot::inline(slot_address);
    let extents: SmallVec<[RawExtent; SLOT_EXTENTS]> =
        SmallVec::from_slice(read(pages, slot, slot_address, &place)?);
    let near = extents
        .last()
        .map_or(0, |last| last.pages_and_physical >> 16);
    let mut tree = Tree::create(pages, slot_address, PageKind::ExtentLeaf, near)?;
    fill(tree.leaf_mut(pages, tree.root)?, 0, &extents);
    slot.payload.fill(0);
    slot.map_kind = MAP_EXTENT_TREE;
    slot.map_count = 0;
    tree.save(slot);
    Ok(())
}

/// After extents went from `place`: removes the leaf if it is empty, merges it with a neighbour if
/// both have few, and returns the last few extents into the slot.
fn shrink(
    pages: &mut impl Pages,
    slot: &mut Slot,
    slot_address: u64,
    place: &LeafOrSlot,
) -> Result<(), Stop> {
    let Some(path) = &place.path else {
        return Ok(());
    };
    let count = read(pages, slot, slot_address, place)?.len();
    let mut tree = Tree::of_slot(slot, slot_address, PageKind::ExtentLeaf);
    if tree.depth > 0 && count == 0 {
        tree.remove_leaf(pages, path)?;
        tree.save(slot);
    } else if tree.depth > 0 && count < LEAF_MAX / 4 {
        let before = tree.leaf_before(pages, path)?.map(|before| (before, *path));
        let behind = tree.leaf_behind(pages, path)?.map(|behind| (*path, behind));
        for (left, right) in before.into_iter().chain(behind) {
            let at = |path: Path| LeafOrSlot {
                page: path.leaf,
                path: Some(path),
            };
            let count = read(pages, slot, slot_address, &at(left))?.len();
            let moved = read(pages, slot, slot_address, &at(right))?;
            if count + moved.len() <= LEAF_MAX / 2 {
                let moved: SmallVec<[RawExtent; NODE_ENTRIES]> = SmallVec::from_slice(moved);
                fill(tree.leaf_mut(pages, left.leaf)?, count, &moved);
                tree.remove_leaf(pages, &right)?;
                tree.save(slot);
                break;
            }
        }
    }
    if tree.depth == 0 {
        let root = LeafOrSlot {
            page: tree.root,
            path: Some(tree.descend(pages, 0)?),
        };
        let extents = read(pages, slot, slot_address, &root)?;
        if extents.len() <= INLINE_AGAIN {
            let extents: SmallVec<[RawExtent; INLINE_AGAIN]> = SmallVec::from_slice(extents);
            tree.destroy(pages)?;
            tree.save(slot);
            slot.map_kind = MAP_EXTENTS;
            slot.map_depth = 0;
            slot.map_count = extents.len() as u16;
            slot.payload.fill(0);
            slot.payload[..size_of_val(&extents[..])].copy_from_slice(extents.as_bytes());
        }
    }
    Ok(())
}

const _: () = assert!(offset_of!(Slot, payload) % align_of::<RawExtent>() == 0);
