//! A directory on the device: a B+tree of names, ordered by a keyed hash.
//!
//! Synchronous, restartable code over [`Pages`] (see there): it changes only pages and the slot
//! that it was given, and every change touches O(depth) pages.
//!
//! - A name's key is its 63-bit hash with the low [`RANK_BITS`](name::RANK_BITS) bits replaced by
//!   the lowest number that no other name of the same hash has, so keys are unique and stable. A
//!   key is also the readdir cookie behind its entry: splitting and deleting never move an entry to
//!   another cookie.
//! - Names of equal hash are in one leaf, so that finding a name reads one path.
//! - The root is in the slot's payload (`map_kind` is `MAP_NAME_TREE`); an empty directory has no
//!   page. An emptied leaf leaves the tree at once; half-empty ones are not merged.
//! - The slot's `size` is the bytes of all pages, `allocated_pages` their number.
//!
//! `.` and `..` are not stored.

mod ahead;
mod leaf;
mod name;
pub(crate) mod salvage;
#[cfg(test)]
mod tests;

use adit_base::breakdown::{self, Layer};
use adit_base::{Errno, PAGE_BYTES};
use adit_store::Need;
use adit_store::format::{MAP_NAME_TREE, PageKind, SLOTS_PER_PAGE, Slot};
use adit_store::node::{LeafSpan, Path, Tree};
use adit_store::pages::{Pages, PagesRead, Stop};
pub(crate) use ahead::read_ahead;
use leaf::{Fit, Found, Leaf};
use name::{KEY_MAX, RANK_MASK};
pub(crate) use name::{KEY_MIN, Name, Target};
use std::ops::Range;

/// Prepares the slot of a new, empty directory.
pub(crate) fn initialize(slot: &mut Slot) {
    slot.map_kind = MAP_NAME_TREE;
    slot.map_depth = 0;
    slot.map_count = 0;
    slot.payload[..8].fill(0);
}

/// The tree that a slot describes; None when the directory is empty.
fn tree_of(slot: &Slot, owner: u64) -> Option<Tree> {
    let mut root = [0; 8];
    root.copy_from_slice(&slot.payload[..8]);
    let root = u64::from_le_bytes(root);
    (root != 0).then(|| Tree::new(owner, root, slot.map_depth, PageKind::NameLeaf))
}

/// Puts a changed tree, or none, back into its slot.
fn set_tree(slot: &mut Slot, tree: &Tree, exists: bool) {
    let (root, depth) = if exists {
        (tree.root, tree.depth)
    } else {
        (0, 0)
    };
    slot.payload[..8].copy_from_slice(&root.to_le_bytes());
    slot.map_depth = depth;
    slot.allocated_pages = slot.allocated_pages.saturating_add_signed(tree.pages_added);
    slot.size = slot.allocated_pages.saturating_mul(PAGE_BYTES as u64);
    slot.valid_size = slot.size;
}

fn leaf_at(pages: &impl PagesRead, number: u64, owner: u64) -> Result<Leaf<'_>, Stop> {
    Ok(Leaf::new(
        pages.page(number, PageKind::NameLeaf)?,
        number,
        owner,
    )?)
}

/// Keys that a leaf may have.
fn keys(lower: u64, upper: Option<u64>) -> Range<u64> {
    lower..upper.unwrap_or(KEY_MAX.max(lower))
}

/// The need of a change of one name: a directory's tree, and its slot.
pub(crate) fn need(slot: &Slot) -> Need {
    Need::SLOT + Need::tree(slot.map_depth)
}

/// Finds a name.
pub(crate) fn lookup(
    pages: &impl PagesRead,
    slot: &Slot,
    owner: u64,
    name: &Name<'_>,
) -> Result<Option<Target>, Stop> {
    let Some(tree) = tree_of(slot, owner) else {
        return Ok(None);
    };
    let LeafSpan { leaf, lower, upper } = tree.find_leaf(pages, name.hash)?;
    Ok(
        match leaf_at(pages, leaf, owner)?.find(name, &keys(lower, upper))? {
            Found::Entry(_, entry) => Some(entry.target),
            Found::Resolved(..) => None,
        },
    )
}

/// True if the directory has no name.
pub(crate) fn is_empty(pages: &impl PagesRead, slot: &Slot, owner: u64) -> Result<bool, Stop> {
    let mut from = 0;
    loop {
        let mut empty = true;
        let next = read_leaf(pages, slot, owner, from, |_, _, _| {
            empty = false;
            false
        })?;
        match next {
            _ if !empty => return Ok(false),
            Some(next) => from = next,
            None => return Ok(true),
        }
    }
}

/// Adds a name; EEXIST when it is there.
pub(crate) fn insert(
    pages: &mut impl Pages,
    slot: &mut Slot,
    owner: u64,
    name: &Name<'_>,
    target: Target,
) -> Result<(), Stop> {
    let _in = breakdown::enter(Layer::Names);
    let mut tree = match tree_of(slot, owner) {
        Some(tree) => tree,
        None => Tree::create(pages, owner, PageKind::NameLeaf, owner / SLOTS_PER_PAGE)?,
    };
    // Each round but the last splits a leaf, at most two of them.
    loop {
        let path = tree.descend(pages, name.hash)?;
        let leaf = leaf_at(pages, path.leaf, owner)?;
        let (index, key) = match leaf.find(name, &keys(path.lower, path.upper))? {
            Found::Entry(..) => return Err(Errno::EXIST.into()),
            Found::Resolved(index, Some(key)) => (index, key),
            Found::Resolved(_, None) => return Err(Errno::NOSPC.into()),
        };
        let fit = leaf.fit(name.bytes.len())?;
        if fit == Fit::No {
            split(pages, &mut tree, &path)?;
            continue;
        }
        let changed = match fit {
            Fit::Now => leaf.granules_of_insertion(name.bytes.len()),
            _ => u64::MAX,
        };
        let page = pages.granules_mut(path.leaf, PageKind::NameLeaf, changed)?;
        if fit == Fit::Compacted {
            leaf::compact(page, path.leaf, owner)?;
        }
        leaf::insert(page, index, key, target, name.bytes);
        break;
    }
    set_tree(slot, &tree, true);
    Ok(())
}

/// Cuts a full leaf in two, between different hashes.
fn split(pages: &mut impl Pages, tree: &mut Tree, path: &Path) -> Result<(), Stop> {
    let old = pages.page(path.leaf, PageKind::NameLeaf)?.clone();
    let source = Leaf::new(&old, path.leaf, tree.owner)?;
    let Some(middle) = source.middle()? else {
        // Only names chosen with knowledge of the volume's key get here.
        return Err(Errno::NOSPC.into());
    };
    let separator = source.key(middle)? & !RANK_MASK;
    if separator <= path.lower || path.upper.is_some_and(|upper| separator >= upper) {
        return Err(leaf::corrupt(path.leaf, "its names belong elsewhere").into());
    }
    let right = tree.add_leaf(pages, path, separator)?;
    let page = pages.page_mut(right, PageKind::NameLeaf)?;
    leaf::copy(page, &source, middle..source.count())?;
    let page = pages.page_mut(path.leaf, PageKind::NameLeaf)?;
    leaf::remove_from(page, 0);
    leaf::copy(page, &source, 0..middle)?;
    Ok(())
}

/// Removes a name and returns its target; ENOENT when it isn't there.
pub(crate) fn remove(
    pages: &mut impl Pages,
    slot: &mut Slot,
    owner: u64,
    name: &Name<'_>,
) -> Result<Target, Stop> {
    let _in = breakdown::enter(Layer::Names);
    let mut tree = tree_of(slot, owner).ok_or(Stop::from(Errno::NOENT))?;
    let path = tree.descend(pages, name.hash)?;
    let leaf = leaf_at(pages, path.leaf, owner)?;
    let Found::Entry(index, entry) = leaf.find(name, &keys(path.lower, path.upper))? else {
        return Err(Errno::NOENT.into());
    };
    let target = entry.target;
    let mut exists = true;
    if leaf.count() > 1 {
        let changed = leaf.granules_of_offsets();
        let page = pages.granules_mut(path.leaf, PageKind::NameLeaf, changed)?;
        leaf::remove(page, index, name.bytes.len());
    } else if tree.depth > 0 {
        tree.remove_leaf(pages, &path)?;
    } else {
        tree.destroy(pages)?;
        exists = false;
    }
    set_tree(slot, &tree, exists);
    Ok(target)
}

/// Gives an existing name another target; returns the old one.
pub(crate) fn replace(
    pages: &mut impl Pages,
    slot: &Slot,
    owner: u64,
    name: &Name<'_>,
    target: Target,
) -> Result<Target, Stop> {
    let _in = breakdown::enter(Layer::Names);
    let tree = tree_of(slot, owner).ok_or(Stop::from(Errno::NOENT))?;
    let path = tree.descend(pages, name.hash)?;
    let leaf = leaf_at(pages, path.leaf, owner)?;
    let Found::Entry(index, entry) = leaf.find(name, &keys(path.lower, path.upper))? else {
        return Err(Errno::NOENT.into());
    };
    let old = entry.target;
    let changed = leaf.granules_of_offsets() | leaf.granules_of(index)?;
    let page = pages.granules_mut(path.leaf, PageKind::NameLeaf, changed)?;
    leaf::replace(page, index, target);
    Ok(old)
}

/// Calls `each` with the key, name and target of the entries of one leaf from key `from` on, until
/// it returns false. Returns the key to go on from; None at the end of the directory, which `each`
/// did not stop.
pub(crate) fn read_leaf(
    pages: &impl PagesRead,
    slot: &Slot,
    owner: u64,
    from: u64,
    mut each: impl FnMut(u64, &[u8], Target) -> bool,
) -> Result<Option<u64>, Stop> {
    let Some(tree) = tree_of(slot, owner) else {
        return Ok(None);
    };
    let path = tree.find_leaf(pages, from)?;
    let leaf = leaf_at(pages, path.leaf, owner)?;
    leaf.prefetch();
    let mut least = from;
    for index in leaf.lower_bound(from, &keys(path.lower, path.upper))?..leaf.count() {
        let entry = leaf.entry(index)?;
        // A reader continues behind the last key: one out of order would lead back, or too far.
        let beyond = path.upper.is_some_and(|upper| entry.key >= upper);
        if entry.key < least || beyond || entry.key > KEY_MAX {
            return Err(leaf::corrupt(path.leaf, "its keys are out of order").into());
        }
        least = entry.key + 1;
        if !each(entry.key, entry.name, entry.target) {
            return Ok(Some(entry.key));
        }
    }
    // The descent made sure that this is above `from`.
    Ok(path.upper)
}
