//! Inner nodes, shared by the trees of extents and the trees of names.
//!
//! A [`Tree`] maps ranges of 64-bit keys to leaf pages. The tree's user defines the content of
//! leaves; this file finds the leaf of a key, and maintains the inner nodes when a leaf is split or
//! emptied.
//!
//! ```text
//!   level 2            [ -∞ | 500 ]            an entry (key, child): child holds keys from `key` up to
//!   level 1      [ -∞ | 120 ]   [ -∞ | 800 ]   the next entry's key; the first key counts as -∞
//!   level 0       leaf  leaf     leaf  leaf
//! ```
//!
//! Invariants, checked at every visit: the kind, the owner and the level of a node are those
//! expected, so a descent is at most [`DEPTH_MAX`] steps and can't loop; a node is never empty; the
//! bounds of a child lie within those of its parent, so iterating from leaf to leaf by
//! [`Path::upper`] always ends. Keys of a node ascend strictly: one key never continues in a second
//! leaf.
//!
//! Nodes are not balanced when entries go: an empty leaf is removed, with the nodes that this
//! empties, and a root with a single child gives way to it. Every change touches O(depth) pages.
//! Bytes behind the last entry of a node stay as they are: clearing them would only lengthen the
//! journal's records.

use crate::format::{
    InnerEntry, NODE_ENTRIES, PAGE_HEADER_BYTES, Page, PageHeader, PageKind, Slot,
};
use crate::metadata::page_view::{begin, corrupt, header, header_mut};
use crate::metadata::pages::{Pages, PagesRead, Stop};
use std::collections::HashSet;
use zerocopy::FromBytes;

#[cfg(test)]
mod tests;

/// Most levels of inner nodes.
pub const DEPTH_MAX: usize = 8;

/// Entries at which a node is split. Few of them in this crate's own tests, so that small trees are
/// deep.
const ENTRIES_MAX: usize = if cfg!(test) { 6 } else { NODE_ENTRIES };

/// The root, depth and leaf kind of a tree. Copied out of a slot, changed, and written back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tree {
    /// Slot address of the blob that every node belongs to.
    pub owner: u64,
    /// Page of the root; a leaf when `depth` is 0.
    pub root: u64,
    /// Levels of inner nodes above the leaves.
    pub depth: u8,
    /// Kind of the leaves.
    pub leaf_kind: PageKind,
    /// Inner nodes and leaves that operations on this value added, less those that they removed.
    pub pages_added: i64,
}

/// One inner node on the way to a leaf, and the entry that was followed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Step {
    /// Page of the inner node.
    pub page: u64,
    /// Entry that leads on.
    pub index: u16,
    /// Entries of the node.
    pub count: u16,
}

/// A leaf and its range of keys. Valid until the tree changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafSpan {
    /// Page of the leaf.
    pub leaf: u64,
    /// The leaf holds keys from here on.
    pub lower: u64,
    /// The leaf holds keys below this; `None`: there is no leaf behind it.
    pub upper: Option<u64>,
}

/// The way from the root to a leaf. Valid until the tree changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    steps: [Step; DEPTH_MAX],
    depth: u8,
    /// Page of the leaf.
    pub leaf: u64,
    /// The leaf holds keys from here on.
    pub lower: u64,
    /// The leaf holds keys below this; `None`: there is no leaf behind it.
    pub upper: Option<u64>,
}

impl Path {
    /// A leaf found by walking over the tree. It doesn't know the way, so the tree can't be changed
    /// by it.
    pub(crate) fn to_leaf(leaf: u64, lower: u64, upper: Option<u64>) -> Path {
        Path {
            steps: [Step::default(); DEPTH_MAX],
            depth: 0,
            leaf,
            lower,
            upper,
        }
    }

    /// The inner nodes, root first.
    pub fn steps(&self) -> &[Step] {
        &self.steps[..usize::from(self.depth)]
    }
}

/// The entries of an inner node that was verified.
fn entries(page: &Page) -> &[InnerEntry] {
    let count = usize::from(header(page).count).min(NODE_ENTRIES);
    <[InnerEntry]>::ref_from_bytes(&page.0[PAGE_HEADER_BYTES..][..count * size_of::<InnerEntry>()])
        .expect("a page is aligned and long enough")
}

/// All places for entries of an inner node.
fn places(page: &mut Page) -> &mut [InnerEntry; NODE_ENTRIES] {
    <[InnerEntry; NODE_ENTRIES]>::mut_from_bytes(&mut page.0[PAGE_HEADER_BYTES..])
        .expect("a page is aligned and as long as that")
}

/// The last entry whose key is not above `key`; the first key counts as −∞.
fn find_child(entries: &[InnerEntry], key: u64) -> usize {
    entries[1..].partition_point(|entry| entry.key <= key)
}

/// Checks a tree node's header against its parent's expectations. For leaves of any tree.
pub fn check_header(
    page: u64,
    header: &PageHeader,
    kind: PageKind,
    level: u8,
    owner: u64,
) -> Result<(), Stop> {
    if header.owner != owner {
        let found = header.owner;
        return Err(corrupt(
            page,
            format_args!("a tree node of the blob at slot {found}, not {owner}"),
        ));
    }
    if header.kind != kind as u8 || header.level != level {
        let (found_kind, found_level) = (header.kind, header.level);
        return Err(corrupt(
            page,
            format_args!(
                "a tree node of kind {found_kind} and level {found_level}, not {kind:?} and {level}"
            ),
        ));
    }
    Ok(())
}

impl Tree {
    /// A tree as a slot describes it.
    pub fn new(owner: u64, root: u64, depth: u8, leaf_kind: PageKind) -> Tree {
        Tree {
            owner,
            root,
            depth,
            leaf_kind,
            pages_added: 0,
        }
    }

    /// The tree with its root in this slot; the caller knows that the slot has one.
    pub fn of_slot(slot: &Slot, owner: u64, leaf_kind: PageKind) -> Tree {
        let (root, _) =
            u64::read_from_prefix(&slot.payload).expect("a payload of more than 8 bytes");
        Tree::new(owner, root, slot.map_depth, leaf_kind)
    }

    /// Writes the root into the slot and counts the pages added or removed since the last time.
    pub fn save(&mut self, slot: &mut Slot) {
        slot.payload[..8].copy_from_slice(&self.root.to_le_bytes());
        slot.map_depth = self.depth;
        slot.count_pages(self.owner, self.pages_added);
        self.pages_added = 0;
    }

    /// A new tree of one empty leaf (its header is filled in), near `near`.
    pub fn create(
        pages: &mut impl Pages,
        owner: u64,
        leaf_kind: PageKind,
        near: u64,
    ) -> Result<Tree, Stop> {
        let root = pages.allocate_page(near)?;
        begin(pages.fresh_page(root, leaf_kind)?, leaf_kind, 0, owner);
        Ok(Tree {
            pages_added: 1,
            ..Tree::new(owner, root, 0, leaf_kind)
        })
    }

    /// The leaf that `key` belongs to, and the way to it.
    pub fn descend(&self, pages: &impl PagesRead, key: u64) -> Result<Path, Stop> {
        let mut steps = [Step::default(); DEPTH_MAX];
        let span = self.walk(pages, key, |depth, step| steps[depth] = step)?;
        Ok(Path {
            steps,
            depth: self.depth,
            leaf: span.leaf,
            lower: span.lower,
            upper: span.upper,
        })
    }

    /// The leaf of `key`, for reading.
    pub fn find_leaf(&self, pages: &impl PagesRead, key: u64) -> Result<LeafSpan, Stop> {
        self.walk(pages, key, |_, _| ())
    }

    /// The leaf of a key, and those behind it below the same node: `max` pages at most.
    pub fn leaves_from(
        &self,
        pages: &impl PagesRead,
        key: u64,
        max: usize,
    ) -> Result<Vec<u64>, Stop> {
        let mut above = None;
        let span = self.walk(pages, key, |_, step| above = Some(step))?;
        let Some(Step { page, index, .. }) = above else {
            return Ok(vec![span.leaf]);
        };
        let behind = self.inner(pages, page, 1)?.iter().skip(usize::from(index));
        Ok(behind.take(max).map(|entry| entry.child).collect())
    }

    fn walk(
        &self,
        pages: &impl PagesRead,
        key: u64,
        mut visit: impl FnMut(usize, Step),
    ) -> Result<LeafSpan, Stop> {
        let mut span = LeafSpan {
            leaf: self.root,
            lower: 0,
            upper: None,
        };
        if usize::from(self.depth) > DEPTH_MAX {
            return Err(corrupt(
                self.root,
                format_args!("the root of a tree of depth {}", self.depth),
            ));
        }
        for level in (1..=self.depth).rev() {
            let page = span.leaf;
            let entries = self.inner(pages, page, level)?;
            let index = find_child(entries, key);
            let entry = entries[index];
            if index > 0 {
                if entry.key <= span.lower || entry.key > key {
                    return Err(corrupt(
                        page,
                        format_args!("the key of entry {index} is out of order"),
                    ));
                }
                span.lower = entry.key;
            }
            if let Some(next) = entries.get(index + 1) {
                if next.key <= key || span.upper.is_some_and(|upper| next.key >= upper) {
                    return Err(corrupt(
                        page,
                        format_args!("the key of entry {} is out of order", index + 1),
                    ));
                }
                span.upper = Some(next.key);
            }
            let step = Step {
                page,
                index: index as u16,
                count: entries.len() as u16,
            };
            visit(usize::from(self.depth - level), step);
            span.leaf = entry.child;
        }
        Ok(span)
    }

    /// A leaf of this tree, with its header verified. The caller checks `count`.
    pub fn leaf<'p>(&self, pages: &'p impl PagesRead, page: u64) -> Result<&'p Page, Stop> {
        let leaf = pages.page(page, self.leaf_kind)?;
        check_header(page, header(leaf), self.leaf_kind, 0, self.owner)?;
        Ok(leaf)
    }

    /// A leaf of this tree to be changed, with its header verified.
    pub fn leaf_mut<'p>(&self, pages: &'p mut impl Pages, page: u64) -> Result<&'p mut Page, Stop> {
        let leaf = pages.page_mut(page, self.leaf_kind)?;
        check_header(page, header(leaf), self.leaf_kind, 0, self.owner)?;
        Ok(leaf)
    }

    /// Adds an empty leaf behind the leaf of `path`, for the keys from `key` on, and returns its
    /// page. The caller moves the entries; the path is no longer valid.
    pub fn add_leaf(&mut self, pages: &mut impl Pages, path: &Path, key: u64) -> Result<u64, Stop> {
        if key <= path.lower || path.upper.is_some_and(|upper| key >= upper) {
            return Err(corrupt(
                path.leaf,
                "its keys are outside of the bounds of this tree node",
            ));
        }
        let leaf = self.new_node(pages, path.leaf, self.leaf_kind, 0)?;
        self.insert(pages, path, InnerEntry { key, child: leaf })?;
        Ok(leaf)
    }

    /// Removes and frees the leaf of `path`, which the caller emptied, with the inner nodes that
    /// this empties. Its range goes to the leaf before it (or behind it, if it was its node's
    /// first). The only leaf of a tree can't be removed: see [`Tree::destroy`]. The path is no
    /// longer valid.
    pub fn remove_leaf(&mut self, pages: &mut impl Pages, path: &Path) -> Result<(), Stop> {
        assert!(self.depth > 0, "the only leaf of a tree is removed");
        let mut emptied = path.leaf;
        for (above, step) in path.steps().iter().enumerate().rev() {
            self.free_node(pages, emptied)?;
            emptied = step.page;
            if step.count > 1 {
                let node = self.inner_mut(pages, step.page, self.depth - above as u8)?;
                let (index, count) = (usize::from(step.index), usize::from(step.count));
                let places = places(node);
                places.copy_within(index + 1..count, index);
                header_mut(node).count = step.count - 1;
                return self.lower_root(pages);
            }
        }
        Err(corrupt(
            self.root,
            "all nodes on the way to a leaf have one entry, the root too",
        ))
    }

    /// Frees the last page of a tree without inner nodes.
    pub fn destroy(&mut self, pages: &mut impl Pages) -> Result<(), Stop> {
        assert!(
            self.depth == 0,
            "a tree with more than one leaf is destroyed"
        );
        self.free_node(pages, self.root)
    }

    /// The leaf before that of `path`, if both hang from the same inner node: a pair that may be
    /// merged (the later one is removed).
    pub fn leaf_before(&self, pages: &impl PagesRead, path: &Path) -> Result<Option<Path>, Stop> {
        match path.steps().last() {
            Some(step) if step.index > 0 => Ok(Some(self.descend(pages, path.lower - 1)?)),
            _ => Ok(None),
        }
    }

    /// The leaf behind that of `path`, if both hang from the same inner node.
    pub fn leaf_behind(&self, pages: &impl PagesRead, path: &Path) -> Result<Option<Path>, Stop> {
        match (path.steps().last(), path.upper) {
            (Some(step), Some(upper)) if step.index + 1 < step.count => {
                Ok(Some(self.descend(pages, upper)?))
            }
            _ => Ok(None),
        }
    }

    /// An inner node's entries, with its header verified; their order isn't.
    pub(crate) fn inner<'p>(
        &self,
        pages: &'p impl PagesRead,
        page: u64,
        level: u8,
    ) -> Result<&'p [InnerEntry], Stop> {
        let node = pages.page(page, PageKind::Inner)?;
        self.check_inner(page, node, level)?;
        Ok(entries(node))
    }

    fn inner_mut<'p>(
        &self,
        pages: &'p mut impl Pages,
        page: u64,
        level: u8,
    ) -> Result<&'p mut Page, Stop> {
        let node = pages.page_mut(page, PageKind::Inner)?;
        self.check_inner(page, node, level)?;
        Ok(node)
    }

    fn check_inner(&self, page: u64, node: &Page, level: u8) -> Result<(), Stop> {
        let header = header(node);
        check_header(page, header, PageKind::Inner, level, self.owner)?;
        if header.count == 0 || usize::from(header.count) > NODE_ENTRIES {
            return Err(corrupt(
                page,
                format_args!("an inner node of {} entries", header.count),
            ));
        }
        Ok(())
    }

    fn new_node(
        &mut self,
        pages: &mut impl Pages,
        near: u64,
        kind: PageKind,
        level: u8,
    ) -> Result<u64, Stop> {
        let page = pages.allocate_page(near)?;
        begin(pages.fresh_page(page, kind)?, kind, level, self.owner);
        self.pages_added += 1;
        Ok(page)
    }

    fn free_node(&mut self, pages: &mut impl Pages, page: u64) -> Result<(), Stop> {
        self.pages_added -= 1;
        pages.free_page(page)
    }

    /// Inserts `entry` behind the entries that `path` followed, splitting full nodes upwards.
    fn insert(
        &mut self,
        pages: &mut impl Pages,
        path: &Path,
        mut entry: InnerEntry,
    ) -> Result<(), Stop> {
        for (above, step) in path.steps().iter().enumerate().rev() {
            let level = self.depth - above as u8;
            let at = usize::from(step.index) + 1;
            let count = usize::from(step.count);
            if count < ENTRIES_MAX {
                insert_entry(self.inner_mut(pages, step.page, level)?, at, entry);
                return Ok(());
            }
            // Appending leaves a full node behind; anything else halves it.
            let keep = if at == count { count } else { count / 2 };
            let right = self.new_node(pages, step.page, PageKind::Inner, level)?;
            let left = self.inner_mut(pages, step.page, level)?;
            let moved: Vec<InnerEntry> = entries(left)[keep..].to_vec();
            header_mut(left).count = keep as u16;
            if at < keep {
                insert_entry(left, at, entry);
            }
            let node = self.inner_mut_fresh(pages, right)?;
            places(node)[..moved.len()].copy_from_slice(&moved);
            header_mut(node).count = moved.len() as u16;
            if at >= keep {
                insert_entry(node, at - keep, entry);
            }
            entry = InnerEntry {
                key: entries(node)[0].key,
                child: right,
            };
        }
        if usize::from(self.depth) == DEPTH_MAX {
            return Err(corrupt(self.root, "a tree can't become that deep"));
        }
        let root = self.new_node(pages, self.root, PageKind::Inner, self.depth + 1)?;
        let old = InnerEntry {
            key: 0,
            child: self.root,
        };
        let node = self.inner_mut_fresh(pages, root)?;
        places(node)[..2].copy_from_slice(&[old, entry]);
        header_mut(node).count = 2;
        self.root = root;
        self.depth += 1;
        Ok(())
    }

    /// A node that this transaction made; it has no entries yet, so its count isn't checked.
    fn inner_mut_fresh<'p>(
        &self,
        pages: &'p mut impl Pages,
        page: u64,
    ) -> Result<&'p mut Page, Stop> {
        pages.page_mut(page, PageKind::Inner)
    }

    /// While the root has a single child, the child becomes the root.
    fn lower_root(&mut self, pages: &mut impl Pages) -> Result<(), Stop> {
        while self.depth > 0 {
            let &[only] = self.inner(pages, self.root, self.depth)? else {
                break;
            };
            self.free_node(pages, self.root)?;
            self.root = only.child;
            self.depth -= 1;
        }
        Ok(())
    }

    /// Walks the whole tree for a checker: reports problems of inner nodes to `problem` and goes on
    /// with the rest, calls `leaf` with the page and the bounds of every leaf (its header isn't
    /// checked), and `node` with every page of the tree, each once. A miss ends the walk; run it
    /// again.
    pub fn check(&self, pages: &impl PagesRead, visit: &mut dyn Visit) -> Result<(), Stop> {
        if usize::from(self.depth) > DEPTH_MAX {
            visit.problem(
                self.root,
                format!("the root of a tree of depth {}", self.depth),
            );
            return Ok(());
        }
        self.check_node(
            pages,
            self.root,
            self.depth,
            (0, None),
            &mut HashSet::new(),
            visit,
        )
    }

    fn check_node(
        &self,
        pages: &impl PagesRead,
        page: u64,
        level: u8,
        (lower, upper): (u64, Option<u64>),
        seen: &mut HashSet<u64>,
        visit: &mut dyn Visit,
    ) -> Result<(), Stop> {
        if !seen.insert(page) {
            visit.problem(page, "the tree reaches this page twice".into());
            return Ok(());
        }
        visit.node(page);
        if level == 0 {
            return visit.leaf(page, lower, upper);
        }
        let entries = match self.inner(pages, page, level) {
            Ok(entries) => entries,
            Err(Stop::Fail(error)) => {
                visit.problem(page, error.to_string());
                return Ok(());
            }
            Err(miss) => return Err(miss),
        };
        let mut from = lower;
        for (index, entry) in entries.iter().enumerate() {
            let to = entries.get(index + 1).map(|next| next.key).or(upper);
            if to.is_some_and(|to| to <= from || upper.is_some_and(|upper| to > upper)) {
                visit.problem(
                    page,
                    format!("the key of entry {} is out of order", index + 1),
                );
                return Ok(());
            }
            self.check_node(pages, entry.child, level - 1, (from, to), seen, visit)?;
            from = to.unwrap_or(from);
        }
        Ok(())
    }
}

/// The reports of [`Tree::check`].
pub trait Visit {
    /// A page of the tree, inner node or leaf.
    fn node(&mut self, page: u64);
    /// A leaf, which holds keys from `lower` on and below `upper`.
    fn leaf(&mut self, page: u64, lower: u64, upper: Option<u64>) -> Result<(), Stop>;
    /// Something that can't be.
    fn problem(&mut self, page: u64, what: String);
}

/// Inserts into a node that has room.
fn insert_entry(node: &mut Page, at: usize, entry: InnerEntry) {
    let count = usize::from(header(node).count);
    assert!(at <= count && count < NODE_ENTRIES);
    let places = places(node);
    places.copy_within(at..count, at + 1);
    places[at] = entry;
    header_mut(node).count += 1;
}

const _: () =
    assert!(size_of::<InnerEntry>() * NODE_ENTRIES + PAGE_HEADER_BYTES == adit_base::PAGE_BYTES);
