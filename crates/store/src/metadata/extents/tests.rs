//! Maps against a table with one row a page.

use super::*;
use crate::testing::MemoryPages;
use adit_base::Error;
use adit_base::random::Prng;
use proptest::prelude::*;
use std::collections::BTreeMap;
use zerocopy::FromZeros;

const ADDRESS: u64 = 8 * 50 + 3;

/// The map of a page of the blob: device page, and whether it is unwritten.
type Row = (u64, bool);

struct Blob {
    pages: MemoryPages,
    slot: Slot,
    model: BTreeMap<u64, Row>,
}

impl Blob {
    fn new() -> Blob {
        let slot = Slot::new_zeroed();
        Blob {
            pages: MemoryPages::new(1_000_000, 100_000),
            slot,
            model: BTreeMap::new(),
        }
    }

    fn transact<R>(
        &mut self,
        mut f: impl FnMut(&mut MemoryPages, &mut Slot) -> Result<R, Stop>,
    ) -> Result<R, Error> {
        let before = self.slot;
        let (slot, value) = self.pages.transact(|pages| {
            let mut slot = before;
            let value = f(pages, &mut slot)?;
            Ok((slot, value))
        })?;
        self.slot = slot;
        Ok(value)
    }

    fn insert(
        &mut self,
        logical: u32,
        pages: u32,
        physical: u64,
        unwritten: bool,
    ) -> Result<(), Error> {
        let extent = Extent {
            logical,
            pages,
            physical,
            unwritten,
        };
        self.transact(|pages, slot| insert(pages, slot, ADDRESS, extent))?;
        for page in 0..u64::from(pages) {
            let old = self
                .model
                .insert(u64::from(logical) + page, (physical + page, unwritten));
            assert_eq!(old, None, "{extent:?} was inserted over something");
        }
        Ok(())
    }

    /// Removes in as many transactions as it takes; returns their number.
    fn remove(&mut self, range: Range<u64>, max_extents: usize) -> u32 {
        let mut freed = Vec::new();
        let mut rest = range.clone();
        let mut transactions = 0;
        loop {
            transactions += 1;
            let (next, mut runs) = self
                .transact(|pages, slot| {
                    let mut runs = Vec::new();
                    let next = remove(pages, slot, ADDRESS, rest.clone(), max_extents, &mut runs)?;
                    Ok((next, runs))
                })
                .unwrap();
            assert!(
                self.pages.touched() <= 16 * 4,
                "{} pages changed at once",
                self.pages.touched()
            );
            freed.append(&mut runs);
            let Some(next) = next else { break };
            assert!(
                u64::from(next) > rest.start || transactions == 1,
                "it makes progress"
            );
            rest.start = next.into();
        }
        let mut freed: Vec<u64> = freed.iter().flat_map(|run| run.page..run.end()).collect();
        let mut expected: Vec<u64> = self
            .model
            .range(range.clone())
            .map(|(_, row)| row.0)
            .collect();
        freed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(freed, expected);
        self.model.retain(|page, _| !range.contains(page));
        transactions
    }

    fn mark_written(&mut self, range: Range<u64>) {
        self.transact(|pages, slot| mark_written(pages, slot, ADDRESS, range.clone()))
            .unwrap();
        self.model
            .range_mut(range)
            .for_each(|(_, row)| row.1 = false);
    }

    fn check(&mut self) -> (Vec<Found>, Vec<Extent>) {
        let (used, found) = self
            .transact(|pages, slot| {
                let mut found = Vec::new();
                let used = check(pages, slot, ADDRESS, &mut |item| found.push(item))?;
                Ok((used, found))
            })
            .unwrap();
        let extents = found.iter().filter_map(|item| match item {
            Found::Extent(extent) => Some(*extent),
            _ => None,
        });
        let extents: Vec<Extent> = extents.collect();
        let problems: Vec<Found> = found
            .iter()
            .filter(|item| matches!(item, Found::Problem { .. }))
            .cloned()
            .collect();
        if problems.is_empty() {
            assert_eq!(used, self.slot.allocated_pages);
            assert_eq!(
                found.len() - extents.len(),
                self.pages.len(),
                "pages of the tree"
            );
        }
        (problems, extents)
    }

    /// Everything that can be asked about the map agrees with the model.
    fn verify(&mut self, random: &mut Prng) {
        let (problems, extents) = self.check();
        assert_eq!(problems, []);
        let rows = |extents: &[Extent]| {
            let rows = extents.iter().flat_map(|extent| {
                (0..u64::from(extent.pages)).map(|page| {
                    (
                        u64::from(extent.logical) + page,
                        (extent.physical + page, extent.unwritten),
                    )
                })
            });
            rows.collect::<BTreeMap<u64, Row>>()
        };
        assert_eq!(rows(&extents), self.model);
        assert_eq!(
            self.slot.map_kind == MAP_EXTENTS && self.slot.map_count == 0,
            self.model.is_empty()
        );

        let top = self.model.keys().next_back().map_or(100, |top| top + 50);
        for _ in 0..3 {
            let logical = random.below(top);
            let entry = self
                .transact(|pages, slot| lookup(pages, slot, ADDRESS, logical as u32))
                .unwrap();
            match entry {
                MapEntry::Extent(extent) => {
                    assert_eq!(u64::from(extent.logical), logical);
                    for (page, row) in rows(&[extent]) {
                        assert_eq!(self.model[&page], row);
                    }
                }
                MapEntry::Hole { pages } => {
                    assert!(!self.model.contains_key(&logical));
                    let next = self
                        .model
                        .range(logical..)
                        .next()
                        .map_or(LOGICAL_END, |(&next, _)| next);
                    assert_eq!(logical + u64::from(pages), next);
                }
            }
            let listed = self
                .transact(|pages, slot| {
                    let mut listed = Vec::new();
                    for_each(pages, slot, ADDRESS, logical, |extent| {
                        listed.push(extent);
                        if listed.len() == 40 {
                            ControlFlow::Break(())
                        } else {
                            ControlFlow::Continue(())
                        }
                    })?;
                    Ok(listed)
                })
                .unwrap();
            let expected: Vec<Extent> = extents
                .iter()
                .filter(|extent| extent.end() > logical)
                .take(40)
                .copied()
                .collect();
            assert_eq!(listed, expected);
        }
    }
}

fn errno<T: std::fmt::Debug>(result: Result<T, Error>) -> Errno {
    result.unwrap_err().errno()
}

/// One random change. `next` is a device page behind which nothing is used.
fn change(blob: &mut Blob, random: &mut Prng, next: &mut u64, span: u64, growing: bool) {
    let logical = random.below(span);
    let longest = if random.chance(1, 10) { 60 } else { 6 };
    let len = 1 + random.below(longest);
    match random.below(if growing { 8 } else { 12 }) {
        0..=5 => {
            if blob.model.range(logical..logical + len).next().is_some() {
                return;
            }
            // Now and then the extent goes on where the one before it, or behind it, is on the
            // device.
            let unwritten = random.chance(1, 2);
            let before = logical
                .checked_sub(1)
                .and_then(|page| blob.model.get(&page))
                .copied();
            let behind = blob.model.get(&(logical + len)).copied();
            let (physical, unwritten) = match (before, behind) {
                (Some((page, unwritten)), _)
                    if random.chance(1, 2) && !taken(blob, page + 1..page + 1 + len) =>
                {
                    (page + 1, unwritten)
                }
                (_, Some((page, unwritten)))
                    if random.chance(1, 2) && !taken(blob, page - len..page) =>
                {
                    (page - len, unwritten)
                }
                _ => {
                    *next += 100 + len;
                    (*next - len, unwritten)
                }
            };
            blob.insert(logical as u32, len as u32, physical, unwritten)
                .unwrap();
        }
        6 => blob.mark_written(logical..logical + len * 4),
        7 => {
            blob.remove(logical..logical + 1 + random.below(3), 1);
        }
        8..=10 => {
            blob.remove(logical..logical + len * 3, 1 + random.index(4));
        }
        _ => {
            let to = if random.chance(1, 3) {
                u64::MAX
            } else {
                logical + span / 8
            };
            blob.remove(logical..to, 1 + random.index(50));
        }
    }
}

fn taken(blob: &Blob, range: Range<u64>) -> bool {
    blob.model.values().any(|row| range.contains(&row.0))
}

#[test]
fn random_changes_agree_with_a_table_of_pages_through_misses() {
    let mut deepest = 0;
    for seed in 0..6 {
        let mut random = Prng::new(seed);
        let mut blob = Blob::new();
        blob.pages.miss_one_in(100, seed);
        let (mut next, span) = (1000, if seed % 3 == 0 { 200 } else { 5000 });
        for step in 0..2500 {
            change(&mut blob, &mut random, &mut next, span, step / 900 % 2 == 0);
            deepest = deepest.max(blob.slot.map_depth);
            if step % 10 == 0 {
                blob.verify(&mut random);
            }
        }
        blob.verify(&mut random);
        blob.remove(0..u64::MAX, 7);
        blob.verify(&mut random);
        assert!(blob.pages.is_empty() && blob.slot.allocated_pages == 0);
        assert!(blob.pages.restarts() > 50);
    }
    assert!(deepest >= 3, "depth {deepest}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn any_short_history_agrees_with_a_table_of_pages(seed: u64, steps in 1..200u32, span in 10..600u64) {
        let mut random = Prng::new(seed);
        let mut blob = Blob::new();
        let mut next = 1000;
        for _ in 0..steps {
            change(&mut blob, &mut random, &mut next, span, true);
            blob.verify(&mut random);
        }
    }
}

#[test]
fn a_sequential_file_is_one_extent_up_to_what_one_can_hold() {
    let mut blob = Blob::new();
    for page in 0..100 {
        blob.insert(page * 10, 10, 5000 + u64::from(page) * 10, false)
            .unwrap();
    }
    assert_eq!(
        blob.check().1,
        [Extent {
            logical: 0,
            pages: 1000,
            physical: 5000,
            unwritten: false
        }]
    );
    blob.insert(1000, EXTENT_PAGES_MAX + 10, 6000, false)
        .unwrap();
    assert_eq!(blob.check().1.len(), 3);
    assert_eq!(
        blob.slot.allocated_pages,
        1010 + u64::from(EXTENT_PAGES_MAX)
    );
    assert_eq!(errno(blob.insert(u32::MAX - 1, 2, 9, false)), Errno::FBIG);
    blob.insert(u32::MAX - 1, 1, 9, false).unwrap();
    blob.verify(&mut Prng::new(0));
}

#[test]
fn appended_single_pages_fill_their_leaves() {
    let mut blob = Blob::new();
    for page in 0..480 {
        blob.insert(page, 1, 10_000 - u64::from(page) * 2, false)
            .unwrap();
        assert!(blob.pages.touched() <= 8);
    }
    assert_eq!(blob.slot.map_kind, MAP_EXTENT_TREE);
    assert_eq!(
        blob.pages.len(),
        480 / LEAF_MAX + 4 + 1,
        "full leaves, the nodes above them, the root"
    );
    blob.verify(&mut Prng::new(0));
}

#[test]
fn a_map_returns_into_the_slot_when_few_extents_are_left() {
    let mut blob = Blob::new();
    for page in 0..200 {
        blob.insert(page * 2, 1, 10_000 + u64::from(page) * 2, true)
            .unwrap();
    }
    assert!(blob.slot.map_depth > 0);
    let transactions = blob.remove(12..u64::MAX, 10);
    assert_eq!(transactions, 194_u32.div_ceil(10));
    assert_eq!(
        (blob.slot.map_kind, blob.slot.map_count, blob.pages.len()),
        (MAP_EXTENTS, 6, 0)
    );
    blob.verify(&mut Prng::new(0));
}

#[test]
fn a_hole_punched_everywhere_leaves_no_sparse_leaves() {
    let mut blob = Blob::new();
    for page in 0..400 {
        blob.insert(page * 2, 1, 10_000 + u64::from(page) * 2, false)
            .unwrap();
    }
    let before = blob.pages.len();
    for page in (0..800).filter(|page| page % 40 != 0) {
        blob.remove(page..page + 1, 1);
    }
    assert_eq!(blob.model.len(), 20);
    assert!(
        blob.pages.len() * 3 <= before,
        "{before} pages became {}",
        blob.pages.len()
    );
    blob.verify(&mut Prng::new(0));
}

#[test]
fn an_append_into_preallocated_space_needs_no_further_extents() {
    let mut blob = Blob::new();
    blob.insert(0, 1000, 5000, true).unwrap();
    for page in 0..999 {
        blob.mark_written(page..page + 1);
        assert_eq!(blob.check().1.len(), 2);
    }
    blob.mark_written(999..5000);
    assert_eq!(
        blob.check().1,
        [Extent {
            logical: 0,
            pages: 1000,
            physical: 5000,
            unwritten: false
        }]
    );
}

#[test]
fn what_is_mapped_can_not_be_mapped_again_and_nothing_changes() {
    let mut blob = Blob::new();
    for page in 0..100 {
        blob.insert(page * 20, 10, 5000 + u64::from(page) * 20, false)
            .unwrap();
    }
    let before = blob.check().1;
    for (logical, pages) in [
        (0, 1),
        (5, 1),
        (9, 5),
        (10, 11),
        (15, 20),
        (1000, 1),
        (199, 2),
        (15, 100_000),
    ] {
        let extent = Extent {
            logical,
            pages,
            physical: 90_000,
            unwritten: false,
        };
        let outcome = blob.transact(|pages, slot| insert(pages, slot, ADDRESS, extent));
        assert_eq!(errno(outcome), Errno::UCLEAN, "{extent:?}");
    }
    assert_eq!(blob.check().1, before);
    // From one extent to the next, and behind the last one, there is room.
    blob.insert(1990, 100_000, 90_000, false).unwrap();
    blob.insert(10, 10, 80_000, false).unwrap();
    blob.verify(&mut Prng::new(0));
}

#[test]
fn an_extent_that_spans_leaves_is_cut_at_their_bounds() {
    let mut blob = Blob::new();
    for page in 0..200 {
        blob.insert(page * 2, 1, 10_000 + u64::from(page) * 2, false)
            .unwrap();
    }
    blob.remove(100..300, 1000);
    blob.insert(100, 200, 50_000, false).unwrap();
    blob.verify(&mut Prng::new(0));
    blob.remove(90..310, 1000);
    blob.verify(&mut Prng::new(0));
}

#[test]
fn every_damage_is_reported_and_stops_no_operation_with_a_panic() {
    type Damage = fn(&mut ExtentLeaf);
    let damages: [(&str, Damage); 9] = [
        ("owner", |leaf| leaf.header.owner += 8),
        ("level", |leaf| leaf.header.level = 1),
        ("too many", |leaf| leaf.header.count = 300),
        ("none", |leaf| leaf.header.count = 0),
        ("no pages", |leaf| {
            leaf.extents[1].pages_and_physical &= !0xffff
        }),
        ("too long", |leaf| {
            leaf.extents[1].pages_and_physical |= 0xffff
        }),
        ("unknown flag", |leaf| leaf.extents[1].flags = 128),
        ("order", |leaf| leaf.extents.swap(1, 2)),
        ("another leaf's range", |leaf| leaf.extents[0].logical = 0),
    ];
    for (name, damage) in damages {
        let mut blob = Blob::new();
        for page in 0..200 {
            blob.insert(page * 2, 1, 10_000 + u64::from(page) * 2, true)
                .unwrap();
        }
        let leaf = locate(&blob.pages, &blob.slot, ADDRESS, 100).unwrap().page;
        damage(view_mut(blob.pages.corrupt_page(leaf)));
        let (problems, _) = blob.check();
        let names =
            |problem: &Found| matches!(problem, Found::Problem { page, .. } if *page == leaf);
        assert!(problems.iter().any(names), "{name}: {problems:?}");
        for page in 0..420 {
            let range = page..page + 7;
            let saved = blob.slot;
            let extent = Extent {
                logical: page as u32,
                pages: 3,
                physical: 900_000,
                unwritten: false,
            };
            let _ = blob.transact(|pages, slot| lookup(pages, slot, ADDRESS, page as u32));
            // Nothing of these may stay, so that the damage does; they end with an error in any
            // case.
            let cancel =
                |outcome: Result<(), Stop>| outcome.and(Err::<(), Stop>(Errno::CANCELED.into()));
            let _ = blob.transact(|pages, slot| cancel(insert(pages, slot, ADDRESS, extent)));
            let _ = blob
                .transact(|pages, slot| cancel(mark_written(pages, slot, ADDRESS, range.clone())));
            let _ = blob.transact(|pages, slot| {
                cancel(remove(pages, slot, ADDRESS, range.clone(), 3, &mut Vec::new()).map(|_| ()))
            });
            assert_eq!(saved.as_bytes(), blob.slot.as_bytes());
        }
    }
    let mut blob = Blob::new();
    blob.insert(0, 1, 5, false).unwrap();
    blob.slot.map_count = 20;
    assert_eq!(blob.check().0.len(), 1);
    blob.slot.map_kind = 3;
    assert_eq!(blob.check().0.len(), 1);
    assert_eq!(
        errno(blob.transact(|pages, slot| lookup(pages, slot, ADDRESS, 0))),
        Errno::UCLEAN
    );
    blob.slot.map_kind = MAP_EXTENT_TREE;
    blob.slot.map_depth = 200;
    assert_eq!(blob.check().0.len(), 1);
    assert_eq!(
        errno(blob.transact(|pages, slot| lookup(pages, slot, ADDRESS, 0))),
        Errno::UCLEAN
    );
}

/// An extent was found, its full leaf split for more room, and then it was in neither half: a
/// panic, reached with an image whose checksums are right.
#[test]
fn an_extent_that_a_split_loses_in_a_leaf_out_of_order_is_an_error() {
    let mut blob = Blob::new();
    for page in 0..LEAF_MAX as u32 {
        blob.insert(page * 10, 1, 10_000 + u64::from(page) * 20, true)
            .unwrap();
    }
    let leaf = locate(&blob.pages, &blob.slot, ADDRESS, 0).unwrap().page;
    let far = Extent {
        logical: 5000,
        pages: 9,
        physical: 800_000,
        unwritten: true,
    };
    let extents = &mut view_mut::<ExtentLeaf>(blob.pages.corrupt_page(leaf)).extents;
    extents[LEAF_MAX / 2] = far.raw();
    let marked = blob.transact(|pages, slot| mark_written(pages, slot, ADDRESS, 5003..5004));
    assert_eq!(errno(marked), Errno::UCLEAN);
    let removed = blob.transact(|pages, slot| {
        remove(pages, slot, ADDRESS, 5003..5004, 3, &mut Vec::new()).map(drop)
    });
    assert_eq!(errno(removed), Errno::UCLEAN);
}

/// Found by fuzzing: extents out of order, in a slot or a leaf, were handed on as they came, with a
/// promise that they are in order.
#[test]
fn extents_out_of_order_are_an_error_for_who_walks_over_them() {
    let mut blob = Blob::new();
    for (logical, physical) in [(10, 500), (20, 600), (30, 700)] {
        blob.insert(logical, 2, physical, false).unwrap();
    }
    let walk = |blob: &mut Blob| {
        let mut seen = Vec::new();
        let walked = blob.transact(|pages, slot| {
            seen.clear();
            for_each(pages, slot, ADDRESS, 0, |extent| {
                seen.push(extent.logical);
                ControlFlow::Continue(())
            })
        });
        (errno(walked), seen)
    };
    let first = Extent {
        logical: 10,
        pages: 2,
        physical: 500,
        unwritten: false,
    };
    blob.slot.payload[32..48].copy_from_slice(first.raw().as_bytes());
    assert_eq!(walk(&mut blob), (Errno::UCLEAN, vec![10, 20]));
    blob.slot.payload[..16].copy_from_slice(Extent { pages: 15, ..first }.raw().as_bytes());
    assert_eq!(walk(&mut blob), (Errno::UCLEAN, vec![10]));
}
