//! The allocator against a plain model of page states.

use super::*;
use crate::format::{SLOTS_PER_PAGE, Slot};
use crate::metadata::slot_page::slot_place;
use crate::metadata::space_check::{Marked, SpaceProblem, UsedPages};
use crate::testing::MemoryPages;
use adit_base::random::Prng;
use std::collections::BTreeMap;
use std::mem::offset_of;

/// Three groups, the last one short.
fn geometry() -> SpaceGeometry {
    SpaceGeometry {
        state_page: 9,
        first_group: 10,
        volume_pages: 10 + 2 * GROUP_PAGES + 700,
        cluster_pages: 16,
        checksums: false,
    }
}

fn tiny() -> SpaceGeometry {
    SpaceGeometry {
        volume_pages: 10 + 101,
        cluster_pages: 4,
        checksums: false,
        ..geometry()
    }
}

/// The state page of a new volume: everything free, no group initialized.
fn format_state(pages: &mut impl Pages, geometry: &SpaceGeometry) -> Result<(), Stop> {
    let page = pages.fresh_page(geometry.state_page, PageKind::State)?;
    begin(page, PageKind::State, 0, 0);
    let state = view_mut::<StatePage>(page);
    state.free_pages = geometry.capacity_pages();
    state.groups = u64::from(geometry.groups());
    state.volume_pages = geometry.volume_pages;
    state.next_generation = 1;
    Ok(())
}

struct Volume {
    pages: MemoryPages,
    space: Space,
}

impl Volume {
    fn new(geometry: SpaceGeometry) -> Volume {
        let mut pages = MemoryPages::new(0, 0);
        pages
            .transact(|pages| format_state(pages, &geometry))
            .unwrap();
        Volume {
            pages,
            space: Space::new(geometry),
        }
    }

    fn transact<R>(
        &mut self,
        mut f: impl FnMut(&mut Space, &mut MemoryPages) -> Result<R, Stop>,
    ) -> Result<R, Error> {
        let space = std::cell::RefCell::new((&mut self.space, None));
        let value = self.pages.transact_or(
            |pages| {
                let (space, mark) = &mut *space.borrow_mut();
                *mark = Some(space.mark());
                f(space, pages)
            },
            |_| {
                let (space, mark) = &mut *space.borrow_mut();
                space.rollback(mark.take().unwrap());
            },
        )?;
        let (space, mark) = space.into_inner();
        space.keep(mark.unwrap());
        Ok(value)
    }

    fn take(&mut self, near: u64, want: u32) -> Result<Run, Error> {
        self.transact(|space, pages| space.take(pages, near, want))
    }

    fn allocate(&mut self, near: u64, want: u32) -> Result<Run, Error> {
        self.transact(|space, pages| {
            let run = space.take(pages, near, want)?;
            space.commit(pages, run, PageState::Used)?;
            Ok(run)
        })
    }

    fn free(&mut self, run: Run) -> Result<(), Error> {
        self.transact(|space, pages| space.free(pages, run))
    }

    fn slot(&mut self) -> Result<u64, Error> {
        self.transact(|space, pages| {
            let address = space.take_slot(pages)?;
            let (page, offset) = slot_place(address);
            let kind =
                &mut pages.page_mut(page, PageKind::Slots)?.0[offset + offset_of!(Slot, kind)];
            assert_eq!(*kind, 0, "slot {address} is in use");
            *kind = 1;
            Ok(address)
        })
    }

    fn available(&self) -> u64 {
        self.space.state(&self.pages).unwrap().free_pages - (self.space.taken + self.space.pending)
    }

    fn problems(&mut self, used: &UsedPages) -> Vec<SpaceProblem> {
        let mut problems = Vec::new();
        let mut free = 0;
        for group in 0..self.space.geometry.groups() {
            free += self
                .transact(|space, pages| {
                    let mut found = Vec::new();
                    let free = space
                        .check_group(pages, group, used, &mut |problem| found.push(problem))?;
                    problems.append(&mut found);
                    Ok(free)
                })
                .unwrap();
        }
        assert_eq!(
            free,
            self.transact(|space, pages| Ok(space.state(pages)?.free_pages))
                .unwrap()
        );
        problems
    }
}

fn errno<T: std::fmt::Debug>(result: Result<T, Error>) -> Errno {
    result.unwrap_err().errno()
}

#[test]
fn every_page_can_be_allocated_and_no_other_page_is() {
    for geometry in [geometry(), tiny()] {
        let mut volume = Volume::new(geometry);
        let mut used = UsedPages::new(geometry);
        let mut total = 0;
        while let Ok(run) = volume.allocate(0, 1000) {
            assert_eq!(used.mark(run), Marked::Fresh, "{run:?}");
            total += u64::from(run.pages);
        }
        assert_eq!(total, geometry.capacity_pages());
        assert_eq!(errno(volume.allocate(0, 1)), Errno::NOSPC);
        assert_eq!(volume.problems(&used), []);
    }
}

#[test]
fn a_remainder_of_one_page_is_not_a_group() {
    let geometry = SpaceGeometry {
        volume_pages: 10 + GROUP_PAGES + 1,
        ..geometry()
    };
    assert_eq!(
        (geometry.groups(), geometry.capacity_pages()),
        (1, GROUP_PAGES - 1)
    );
    let empty = SpaceGeometry {
        volume_pages: 10,
        ..geometry
    };
    assert_eq!((empty.groups(), empty.capacity_pages()), (0, 0));
    assert_eq!(errno(Volume::new(empty).take(0, 1)), Errno::NOSPC);
}

#[test]
fn a_full_volume_reuses_freed_pages_only_after_their_release() {
    let mut volume = Volume::new(tiny());
    let mut runs = Vec::new();
    while let Ok(run) = volume.allocate(0, 10) {
        runs.push(run);
    }
    let run = runs[3];
    volume.free(run).unwrap();
    assert_eq!(
        (volume.space.pending, volume.available()),
        (u64::from(run.pages), 0)
    );
    assert_eq!(errno(volume.take(run.page, 1)), Errno::NOSPC);
    volume.space.release(run);
    assert_eq!(volume.take(0, 10).unwrap(), run);
    assert_eq!(errno(volume.take(0, 1)), Errno::NOSPC);
    volume.space.give_back(run);
    assert_eq!(volume.allocate(0, 10).unwrap(), run);
}

#[test]
fn a_goal_is_met_exactly_and_cut_where_the_free_run_ends() {
    let mut volume = Volume::new(geometry());
    let first = volume.allocate(0, 100).unwrap();
    assert_eq!(
        volume.allocate(first.end(), 50).unwrap(),
        Run {
            page: first.end(),
            pages: 50
        }
    );
    volume
        .free(Run {
            page: first.page + 10,
            pages: 70,
        })
        .unwrap();
    volume.space.release(Run {
        page: first.page + 10,
        pages: 70,
    });
    let run = volume.allocate(first.page + 75, 100).unwrap();
    assert_eq!(
        run,
        Run {
            page: first.page + 75,
            pages: 5
        }
    );
    // A near that isn't free: the first run of a cluster behind it.
    assert_eq!(
        volume.allocate(first.page, 20).unwrap(),
        Run {
            page: first.page + 10,
            pages: 20
        }
    );
}

#[test]
fn a_fragmented_volume_gives_its_longest_run_and_then_single_pages() {
    let geometry = SpaceGeometry {
        cluster_pages: 64,
        checksums: false,
        ..tiny()
    };
    let mut volume = Volume::new(geometry);
    let first = volume.allocate(0, 100).unwrap();
    assert_eq!(first.pages, 100);
    for page in (0..100).step_by(2).chain([41, 43]) {
        let run = Run {
            page: first.page + page,
            pages: 1,
        };
        volume.free(run).unwrap();
        volume.space.release(run);
    }
    assert_eq!(
        volume.allocate(0, 64).unwrap(),
        Run {
            page: first.page + 40,
            pages: 5
        }
    );
    for _ in 0..47 {
        assert_eq!(volume.allocate(0, 64).unwrap().pages, 1);
    }
    assert_eq!(errno(volume.allocate(0, 64)), Errno::NOSPC);
}

#[test]
fn freeing_twice_or_freeing_what_is_no_data_is_refused() {
    let mut volume = Volume::new(geometry());
    let run = volume.allocate(0, 10).unwrap();
    volume
        .free(Run {
            page: run.page + 3,
            pages: 1,
        })
        .unwrap();
    assert_eq!(errno(volume.free(run)), Errno::UCLEAN);
    assert_eq!(
        volume.space.pending, 1,
        "a failed free leaves nothing behind"
    );
    let (slots, _) = slot_place(volume.slot().unwrap());
    for page in [
        0,
        9,
        10,
        slots,
        10 + GROUP_PAGES,
        10 + GROUP_PAGES + 5,
        geometry().volume_pages,
        u64::MAX,
    ] {
        assert_eq!(
            errno(volume.free(Run { page, pages: 1 })),
            Errno::UCLEAN,
            "page {page}"
        );
    }
    assert_eq!(
        errno(volume.free(Run {
            page: run.page + 8,
            pages: u32::MAX
        })),
        Errno::UCLEAN
    );
}

#[test]
fn a_damaged_map_or_state_is_an_error_that_names_the_page() {
    let mut volume = Volume::new(geometry());
    volume.allocate(0, 1).unwrap();
    crate::metadata::page_view::header_mut(volume.pages.corrupt_page(10)).owner = 7;
    let error = volume.allocate(0, 1).unwrap_err();
    assert_eq!(
        (error.errno(), error.what().contains("page 10")),
        (Errno::UCLEAN, true)
    );
    view_mut::<StatePage>(volume.pages.corrupt_page(9)).groups_initialized = 4;
    assert_eq!(errno(volume.allocate(0, 1)), Errno::UCLEAN);
    assert_eq!(errno(volume.slot()), Errno::UCLEAN);
}

#[test]
fn pages_beyond_a_short_last_group_are_not_free_whatever_its_map_says() {
    let mut volume = Volume::new(tiny());
    volume.allocate(0, 1).unwrap();
    view_mut::<GroupMap>(volume.pages.corrupt_page(10)).a = [0; GROUP_MAP_WORDS];
    view_mut::<StatePage>(volume.pages.corrupt_page(9)).free_pages = 100;
    volume.space = Space::new(tiny());
    let used = UsedPages::new(tiny());
    assert_eq!(
        volume.problems(&used),
        [SpaceProblem::Unprotected { group: 0 }]
    );
    while let Ok(run) = volume.allocate(0, 1000) {
        assert!(run.page > 10 && run.end() <= tiny().volume_pages, "{run:?}");
    }
}

#[test]
fn a_map_that_differs_from_what_is_used_is_reported_run_by_run() {
    let mut volume = Volume::new(geometry());
    let run = volume.allocate(0, 130).unwrap();
    let mut used = UsedPages::new(geometry());
    assert_eq!(
        used.mark(Run {
            page: run.page + 100,
            pages: 100
        }),
        Marked::Fresh
    );
    assert_eq!(
        used.mark(Run {
            page: run.page + 150,
            pages: 1
        }),
        Marked::Shared
    );
    assert_eq!(used.mark(Run { page: 10, pages: 1 }), Marked::Outside);
    assert!(
        used.contains(Run {
            page: run.page + 199,
            pages: 1
        }) && !used.contains(Run {
            page: run.page + 200,
            pages: 1
        })
    );
    let leaked = SpaceProblem::Leaked(Run {
        page: run.page,
        pages: 100,
    });
    let missing = SpaceProblem::NotAllocated(Run {
        page: run.page + 130,
        pages: 70,
    });
    assert_eq!(volume.problems(&used), [leaked, missing]);
}

#[test]
fn slots_fill_their_pages_and_empty_pages_are_freed() {
    let mut volume = Volume::new(tiny());
    volume.pages.miss_one_in(20, 3);
    let addresses: Vec<u64> = (0..100).map(|_| volume.slot().unwrap()).collect();
    assert_eq!(volume.available(), 100 - 16, "two chunks of eight pages");
    let distinct: BTreeSet<u64> = addresses.iter().copied().collect();
    assert_eq!(distinct.len(), 100);
    let mut freed = 0;
    for &address in &addresses {
        let run = volume
            .transact(|space, pages| space.free_slot(pages, address))
            .unwrap();
        if let Some(run) = run {
            assert_eq!(run.page, address / SLOTS_PER_PAGE);
            volume.pages.drop_page(run.page);
            volume.space.release(run);
            freed += 1;
        }
        let again = volume.transact(|space, pages| space.free_slot(pages, address));
        assert_eq!(errno(again), Errno::UCLEAN);
    }
    assert_eq!(
        freed, 12,
        "the page at the cursor stays, and three were never used"
    );
    let address = volume.slot().unwrap();
    assert_eq!(address / SLOTS_PER_PAGE, addresses[99] / SLOTS_PER_PAGE);
}

#[test]
fn a_full_volume_still_finds_the_free_slots_of_all_groups() {
    let mut volume = Volume::new(geometry());
    let mut addresses = Vec::new();
    while volume.available() > 0 {
        addresses.extend((0..3).filter_map(|_| volume.slot().ok()));
        let _ = volume.allocate(0, 5000);
    }
    while let Ok(address) = volume.slot() {
        addresses.push(address);
    }
    let freed: BTreeSet<u64> = addresses.iter().step_by(9).copied().collect();
    for &address in &freed {
        let page = volume
            .transact(|space, pages| space.free_slot(pages, address))
            .unwrap();
        assert_eq!(page, None);
    }
    volume.space = Space::new(geometry()); // no hints
    let again: BTreeSet<u64> = (0..freed.len()).map(|_| volume.slot().unwrap()).collect();
    assert_eq!(freed, again);
    assert_eq!(errno(volume.slot()), Errno::NOSPC);
    let mut listed = 0;
    for group in 0..3 {
        volume
            .transact(|space, pages| {
                space.for_each_slot_page(pages, group, |_, state| {
                    assert_eq!(state, PageState::SlotsFull);
                    listed += 1;
                    Ok(())
                })
            })
            .unwrap();
    }
    assert_eq!(listed * 8, addresses.len());
}

/// The model's state of a page that isn't free.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Model {
    Taken,
    Used,
    Pending,
}

#[test]
fn random_operations_agree_with_a_model_through_misses_rollbacks_and_reopenings() {
    for seed in 0..12 {
        let mut random = Prng::new(seed);
        let geometry = if seed % 2 == 0 { geometry() } else { tiny() };
        let mut volume = Volume::new(geometry);
        volume.pages.miss_one_in(12, seed);
        let mut model: BTreeMap<u64, Model> = BTreeMap::new();
        let mut runs: Vec<(Run, Model)> = Vec::new();
        let capacity = geometry.capacity_pages();
        for step in 0..1500 {
            let size = if random.chance(1, 5) {
                capacity / 8
            } else {
                20
            };
            let want = random.range(1..size.max(2)) as u32;
            let near = if random.chance(1, 2) {
                0
            } else {
                random.range(0..geometry.volume_pages + 100)
            };
            let index = random.index(runs.len().max(1));
            match (random.below(7), runs.get(index).copied()) {
                (0..=2, _) => match volume.take(near, want) {
                    Ok(run) => {
                        assert!(
                            run.pages > 0 && run.pages <= want && geometry.contains(run),
                            "seed {seed} step {step}: {run:?}"
                        );
                        for page in run.page..run.end() {
                            assert_eq!(
                                model.insert(page, Model::Taken),
                                None,
                                "seed {seed} step {step}: {run:?}"
                            );
                        }
                        if near != 0 && geometry.position(near).is_some() && run.page != near {
                            // An uninitialized group has no page that could be a near.
                            let initialized = volume
                                .transact(|space, pages| Ok(space.state(pages)?.groups_initialized))
                                .unwrap();
                            let reachable = geometry.position(near).unwrap().0 + 1 < initialized;
                            assert!(
                                !reachable || model.contains_key(&near),
                                "seed {seed} step {step}: near {near} was free"
                            );
                        }
                        runs.push((run, Model::Taken));
                    }
                    Err(error) => {
                        assert_eq!(error.errno(), Errno::NOSPC);
                        assert_eq!(
                            model.len() as u64,
                            capacity,
                            "seed {seed} step {step}: it isn't full"
                        );
                    }
                },
                (3, Some((run, Model::Taken))) if random.chance(1, 4) => {
                    volume.space.give_back(run);
                    model.retain(|page, _| !(run.page..run.end()).contains(page));
                    runs.swap_remove(index);
                }
                (3 | 4, Some((run, Model::Taken))) => {
                    volume
                        .transact(|space, pages| space.commit(pages, run, PageState::Used))
                        .unwrap();
                    model
                        .range_mut(run.page..run.end())
                        .for_each(|(_, state)| *state = Model::Used);
                    runs[index].1 = Model::Used;
                }
                (3..=5, Some((run, Model::Used))) => {
                    volume.free(run).unwrap();
                    model
                        .range_mut(run.page..run.end())
                        .for_each(|(_, state)| *state = Model::Pending);
                    runs[index].1 = Model::Pending;
                }
                (_, Some((run, Model::Pending))) => {
                    volume.space.release(run);
                    model.retain(|page, _| !(run.page..run.end()).contains(page));
                    runs.swap_remove(index);
                }
                (6, Some((run, state))) => {
                    // A transaction that does all kinds of things and then fails changes nothing.
                    let before = (volume.space.taken, volume.space.pending);
                    let failed = volume.transact(|space, pages| {
                        match state {
                            Model::Taken => space.commit(pages, run, PageState::Used)?,
                            _ => space.free(pages, run)?,
                        }
                        if let Ok(more) = space.take(pages, near, want) {
                            space.commit(pages, more, PageState::Used)?;
                        }
                        Err::<(), Stop>(Errno::CANCELED.into())
                    });
                    assert_eq!(errno(failed), Errno::CANCELED);
                    assert_eq!(before, (volume.space.taken, volume.space.pending));
                }
                _ => {}
            }
            let count = |wanted| model.values().filter(|&&state| state == wanted).count() as u64;
            if step % 64 == 0 {
                assert_eq!(volume.space.taken, count(Model::Taken));
                assert_eq!(volume.space.pending, count(Model::Pending));
                let mut used = UsedPages::new(geometry);
                for (&page, _) in model.iter().filter(|(_, state)| **state == Model::Used) {
                    used.mark(Run { page, pages: 1 });
                }
                assert_eq!(volume.problems(&used), [], "seed {seed} step {step}");
            }
            if step % 500 == 499 && count(Model::Taken) == 0 {
                volume.space = Space::new(geometry);
                volume.pages.forget();
                model.retain(|_, state| *state == Model::Used);
                runs.retain(|(_, state)| *state == Model::Used);
            }
        }
        assert!(volume.pages.restarts() > 50);
    }
}

/// Where no map could say that a page was freed already, by another file that claims it, its second
/// free was a panic.
#[test]
fn a_page_that_is_freed_twice_in_a_group_without_a_map_is_an_error() {
    let mut volume = Volume::new(geometry());
    let run = volume.allocate(0, 10).unwrap();
    assert!(volume.space.avoid(volume.space.geometry().map_page(0)));
    volume.free(run).unwrap();
    let part = Run {
        page: run.page + 9,
        pages: 1,
    };
    assert_eq!(volume.free(part).unwrap_err().errno(), Errno::UCLEAN);
    volume.space.release(run);
}

#[test]
#[ignore = "a measurement; run it with --release"]
fn take_and_commit_of_one_page_take_well_below_a_microsecond() {
    let mut volume = Volume::new(geometry());
    volume.allocate(0, 1).unwrap();
    let rounds: u32 = 100;
    let mut fastest = u128::MAX;
    volume
        .transact(|space, pages| {
            for _ in 0..120 {
                let start = std::time::Instant::now();
                for _ in 0..rounds {
                    let run = space.take(pages, 0, 1)?;
                    space.commit(pages, run, PageState::Used)?;
                }
                fastest = fastest.min(start.elapsed().as_nanos() / u128::from(rounds));
            }
            Ok(())
        })
        .unwrap();
    println!("{fastest} ns for take and commit, the lookups of the test's pages included");
}
