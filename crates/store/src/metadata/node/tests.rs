//! Trees against a sorted map from lower bounds to leaves.

use super::*;
use crate::metadata::Need;
use crate::metadata::page_view::view_mut;
use crate::testing::MemoryPages;
use adit_base::random::Prng;
use adit_base::{Errno, Error};
use std::collections::BTreeMap;

const OWNER: u64 = 4711;

#[derive(Default)]
struct Found {
    nodes: Vec<u64>,
    leaves: Vec<(u64, u64, Option<u64>)>,
    problems: Vec<(u64, String)>,
}

impl Visit for Found {
    fn node(&mut self, page: u64) {
        self.nodes.push(page);
    }
    fn leaf(&mut self, page: u64, lower: u64, upper: Option<u64>) -> Result<(), Stop> {
        self.leaves.push((page, lower, upper));
        Ok(())
    }
    fn problem(&mut self, page: u64, what: String) {
        self.problems.push((page, what));
    }
}

fn check(pages: &mut MemoryPages, tree: &Tree) -> Found {
    pages
        .transact(|pages| {
            let mut found = Found::default();
            tree.check(pages, &mut found)?;
            Ok(found)
        })
        .unwrap()
}

fn create(pages: &mut MemoryPages) -> Tree {
    pages
        .transact(|pages| Tree::create(pages, OWNER, PageKind::NameLeaf, 0))
        .unwrap()
}

fn add(pages: &mut MemoryPages, tree: &mut Tree, key: u64) -> u64 {
    let (changed, leaf) = pages
        .transact(|pages| {
            let mut tree = *tree;
            let path = tree.descend(pages, key)?;
            let leaf = tree.add_leaf(pages, &path, key)?;
            Ok((tree, leaf))
        })
        .unwrap();
    *tree = changed;
    leaf
}

#[test]
fn random_splits_and_removals_agree_with_a_sorted_map_through_misses() {
    for seed in 0..4 {
        let mut random = Prng::new(seed);
        let mut pages = MemoryPages::new(100, 10_000);
        let mut tree = create(&mut pages);
        pages.miss_one_in(100, seed);
        let mut model = BTreeMap::from([(0, tree.root)]);
        let mut deepest = 0;
        for step in 0..1200 {
            let growing = step / 400 % 2 == 0;
            let key = random.range(1..100_000);
            if random.chance(if growing { 3 } else { 1 }, 4) {
                let new = model.entry(key);
                new.or_insert_with(|| add(&mut pages, &mut tree, key));
            } else if model.len() > 1 {
                let (changed, path) = pages
                    .transact(|pages| {
                        let mut tree = tree;
                        let path = tree.descend(pages, key)?;
                        tree.remove_leaf(pages, &path)?;
                        Ok((tree, path))
                    })
                    .unwrap();
                tree = changed;
                let (&lower, &leaf) = model.range(..=key).next_back().unwrap();
                assert_eq!((path.lower, path.leaf), (lower, leaf));
                model.remove(&lower);
            }
            // Which neighbour inherits a removed leaf's range is the tree's choice: take its bounds
            // over.
            let found = check(&mut pages, &tree);
            assert_eq!(found.problems, []);
            assert_eq!(found.nodes.len(), pages.len());
            assert_eq!(tree.pages_added, pages.len() as i64);
            let order: Vec<u64> = found.leaves.iter().map(|leaf| leaf.0).collect();
            assert_eq!(
                order,
                model.values().copied().collect::<Vec<_>>(),
                "seed {seed} step {step}"
            );
            assert!(
                found
                    .leaves
                    .windows(2)
                    .all(|pair| pair[0].2 == Some(pair[1].1))
            );
            model = found
                .leaves
                .iter()
                .map(|&(page, lower, _)| (lower, page))
                .collect();
            let key = random.range(0..101_000);
            let path = pages.transact(|pages| tree.descend(pages, key)).unwrap();
            let (&lower, &leaf) = model.range(..=key).next_back().unwrap();
            assert_eq!(
                (path.leaf, path.lower),
                (leaf, lower),
                "seed {seed} step {step}"
            );
            assert_eq!(
                path.upper,
                model.range(key + 1..).next().map(|(&upper, _)| upper)
            );
            deepest = deepest.max(tree.depth);
        }
        assert!(
            deepest >= 4 && pages.restarts() > 50,
            "depth {deepest}, {} restarts",
            pages.restarts()
        );
    }
}

#[test]
fn appended_leaves_leave_full_nodes_behind() {
    let mut pages = MemoryPages::new(100, 10_000);
    let mut tree = create(&mut pages);
    let leaves = 6 * 6 * 6;
    for key in 1..leaves {
        add(&mut pages, &mut tree, key);
        assert!(pages.touched() <= 3 * usize::from(tree.depth) + 2);
    }
    assert_eq!(tree.depth, 3);
    assert_eq!(pages.len() as u64, leaves + 36 + 6 + 1);
}

#[test]
fn a_tree_shrinks_to_one_leaf_and_then_to_nothing() {
    let mut pages = MemoryPages::new(100, 10_000);
    let mut tree = create(&mut pages);
    for key in 1..300 {
        add(&mut pages, &mut tree, key * 10);
    }
    let mut random = Prng::new(1);
    while tree.depth > 0 {
        tree = pages
            .transact(|pages| {
                let mut tree = tree;
                let path = tree.descend(pages, random.range(0..3000))?;
                tree.remove_leaf(pages, &path)?;
                Ok(tree)
            })
            .unwrap();
    }
    assert_eq!((pages.len(), tree.pages_added), (1, 1));
    pages.transact(|pages| tree.clone().destroy(pages)).unwrap();
    assert!(pages.is_empty());
}

#[test]
fn neighbours_are_leaves_of_the_same_inner_node() {
    let mut pages = MemoryPages::new(100, 10_000);
    let mut tree = create(&mut pages);
    for key in 1..12 {
        add(&mut pages, &mut tree, key);
    }
    for key in 0..12 {
        let path = tree.descend(&pages, key).unwrap();
        let before = tree.leaf_before(&pages, &path).unwrap();
        assert_eq!(
            before.map(|path| path.lower),
            (key % 6 != 0).then(|| key - 1)
        );
        let behind = tree.leaf_behind(&pages, &path).unwrap();
        assert_eq!(
            behind.map(|path| path.lower),
            (key % 6 != 5).then_some(key + 1)
        );
    }
}

#[test]
fn a_damaged_node_is_an_error_that_names_the_page() {
    type Damage = fn(&mut Page);
    let damages: [(&str, Damage); 6] = [
        ("owner", |page| header_mut(page).owner = 9),
        ("level", |page| header_mut(page).level = 2),
        ("empty", |page| header_mut(page).count = 0),
        ("too many entries", |page| header_mut(page).count = 255),
        ("unordered keys", |page| places(page)[2].key = 1),
        ("a loop", |page| {
            places(page)[0].child = places(page)[1].child
        }),
    ];
    for (name, damage) in damages {
        let mut pages = MemoryPages::new(100, 10_000);
        let mut tree = create(&mut pages);
        for key in 1..5 {
            add(&mut pages, &mut tree, key * 10);
        }
        let root = tree.root;
        damage(pages.corrupt_page(root));
        let found = check(&mut pages, &tree);
        assert_eq!(found.problems.len(), 1, "{name}: {:?}", found.problems);
        if ["a loop", "unordered keys"].contains(&name) {
            continue; // a descent doesn't see these, which is safe: they lead to leaves of this tree
        }
        let outcome: Result<(), Error> = pages
            .transact(|pages| (0..50).try_for_each(|key| tree.descend(pages, key).map(|_| ())));
        let error = outcome.unwrap_err();
        assert_eq!(error.errno(), Errno::UCLEAN, "{name}");
        assert!(
            error.what().contains(&format!("page {root}:")),
            "{name}: {error}"
        );
    }
    // A child that points upwards can't loop, because its level doesn't fit.
    let mut pages = MemoryPages::new(100, 10_000);
    let mut tree = create(&mut pages);
    for key in 1..20 {
        add(&mut pages, &mut tree, key);
    }
    let root = tree.root;
    places(pages.corrupt_page(root))[0].child = root;
    assert!(
        matches!(tree.descend(&pages, 0), Err(Stop::Fail(error)) if error.errno() == Errno::UCLEAN)
    );
    assert_eq!(check(&mut pages, &tree).problems.len(), 1);
    assert!(
        Tree::new(OWNER, root, 9, PageKind::NameLeaf)
            .descend(&pages, 0)
            .is_err()
    );
    view_mut::<PageHeader>(pages.corrupt_page(tree.descend(&pages, 15).unwrap().leaf)).owner = 1;
    assert!(
        tree.leaf(&pages, tree.descend(&pages, 15).unwrap().leaf)
            .is_err()
    );
}

/// `pages` lacks the allocator's staged pages: a map for each page that comes or goes, and the
/// state page.
#[test]
fn a_leaf_that_is_split_twice_or_goes_stages_no_more_than_its_need() {
    let mut random = Prng::new(1);
    let mut pages = MemoryPages::new(100, 20_000);
    let mut tree = create(&mut pages);
    let (mut deepest, mut tightest) = (0, 0.0_f64);
    for step in 0..6000 {
        let (need, before) = (Need::tree(tree.depth), pages.len());
        let key = 4 * random.range(1..1_000_000);
        let changed = if random.chance(if step < 4000 { 4 } else { 1 }, 5) {
            pages.transact(|pages| {
                let mut tree = tree;
                for key in [key, key + 1] {
                    let path = tree.descend(pages, key)?;
                    tree.add_leaf(pages, &path, key)?;
                }
                Ok(tree)
            })
        } else if tree.depth > 0 {
            pages.transact(|pages| {
                let mut tree = tree;
                let path = tree.descend(pages, key)?;
                tree.remove_leaf(pages, &path)?;
                Ok(tree)
            })
        } else {
            continue;
        };
        // There may be such a leaf.
        let Ok(changed) = changed else { continue };
        tree = changed;
        let (leaf, state) = (1, 1);
        let made = pages.len().saturating_sub(before);
        let maps = pages.len().abs_diff(before);
        let frames = leaf + pages.touched() + made + maps + state;
        assert!(frames <= need.frames, "step {step}: {frames} of {need:?}");
        tightest = tightest.max(frames as f64 / need.frames as f64);
        deepest = deepest.max(tree.depth);
    }
    assert!(
        deepest >= 5 && tightest > 0.6,
        "depth {deepest}, {tightest} of what was asked for"
    );
}
