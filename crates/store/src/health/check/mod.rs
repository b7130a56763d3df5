//! Checks a whole volume: superblocks, state page, group maps, slots, the maps of all blobs,
//! attribute pages.
//!
//! ```text
//!   superblocks -> slot pages (by the group maps) -> every blob's map, marked in UsedPages
//!               -> group maps against UsedPages -> counters of the state page
//! ```
//!
//! Everything is committed first, then read through the page cache, so this checks the volume as it
//! is used: a page that is in the cache isn't read again. To check the device's content, open it
//! and check before anything else. Memory is 2 KiB a group in use, the way down one tree, and a
//! bounded list of problems.
//!
//! A page that can't be read or doesn't verify is one problem; the pages below it are unknown then,
//! and pages that seem to leak because of it are reported with that remark. Nothing here repairs.
//! The layer above checks the names of directories: [`Store::check_with`] shows it every leaf.
//!
//! Pages that a running store has freed and not released yet are free in the maps and referred to
//! by nothing, so they are no leaks; pages taken for data in flight are neither. Transactions that
//! run meanwhile would look like damage: if something changed, the check starts again, a few times.

use crate::format::BlobId;
use crate::format::superblock;
use crate::format::{Page, StatePage};
use crate::metadata::space::Run;
use crate::metadata::space_check::{Marked, SpaceProblem, UsedPages};
use crate::state::Store;
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_block::Operation;
use std::collections::BTreeSet;

mod blob;

/// Problems that are listed; of the others only the number is told.
const PROBLEMS_MAX: usize = 1000;
/// How often a check begins again because something changed meanwhile.
const ATTEMPTS: usize = 3;
/// Steps after which others get the worker.
const STEPS_PER_TURN: u64 = 32;

/// Something that is wrong with a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Where: "the map of group 3 (page 49795)".
    pub place: String,
    /// The problem.
    pub what: String,
    /// The consequence for users of the volume.
    pub consequence: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} ({})", self.place, self.what, self.consequence)
    }
}

/// The result of [`Store::check`].
#[derive(Clone, Default, Debug)]
pub struct CheckReport {
    /// The problems, in the order in which they were found.
    pub problems: Vec<Problem>,
    /// Problems beyond those listed, of which only the number is known.
    pub problems_omitted: u64,
    /// Blobs found.
    pub blobs: u64,
    /// Slots that don't verify; their blobs are unknown.
    pub slots_damaged: u64,
    /// Pages that something refers to, without the groups' map pages.
    pub pages_used: u64,
    /// Free pages by the maps.
    pub pages_free: u64,
    /// Pages of data among those used.
    pub data_pages: u64,
    /// Pages of slots, trees and attributes among those used.
    pub metadata_pages: u64,
    /// Allocation groups of the volume.
    pub groups: u32,
    /// Groups that were ever used.
    pub groups_initialized: u32,
}

impl CheckReport {
    /// True if there is no problem.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Called with the leaves of trees of names; returns the problems of the names.
type LeafHook<'a> = dyn FnMut(BlobId, &Page) -> Vec<String> + 'a;
/// Hears of steps done and their number.
type Progress<'a> = dyn FnMut(u64, u64) + 'a;

impl Store {
    /// Checks the whole volume and repairs nothing. `progress` hears of steps done and their
    /// number. EBUSY when the volume is changed all the while.
    pub async fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport> {
        self.check_with(progress, &mut |_, _| Vec::new()).await
    }

    /// Checks like [`Store::check`], and calls `leaf` with every leaf of a tree of names, in key
    /// order of each tree. `leaf` returns the problems of its names; checksum and header are
    /// verified before. If the check starts again (see the head of the file), the calls do, too.
    pub async fn check_with(
        &self,
        progress: &mut dyn FnMut(u64, u64),
        leaf: &mut dyn FnMut(BlobId, &Page) -> Vec<String>,
    ) -> Result<CheckReport> {
        for _ in 0..ATTEMPTS {
            if self.writable().is_ok() {
                self.sync_all().await?;
            }
            let before = self.version();
            let state = self.state().await?;
            let checker = Checker {
                store: self,
                used: UsedPages::new(*self.space.borrow().geometry()),
                report: CheckReport::default(),
                maps_unknown: BTreeSet::new(),
                incomplete: false,
                steps: (
                    0,
                    (state.blobs).saturating_add(state.groups_initialized.into()),
                ),
                progress: &mut *progress,
                leaf: &mut *leaf,
            };
            let report = checker.run(&state).await?;
            if report.is_clean() || before.is_some_and(|versions| self.is_at(&versions)) {
                return Ok(report);
            }
        }
        Err(Error::with(
            Errno::BUSY,
            "check the volume: it is being changed meanwhile",
        ))
    }
}

/// A check that runs.
struct Checker<'a> {
    store: &'a Store,
    used: UsedPages,
    report: CheckReport,
    /// Groups whose map can't be read.
    maps_unknown: BTreeSet<u32>,
    /// Something that refers to pages could not be read.
    incomplete: bool,
    /// Done, and in total.
    steps: (u64, u64),
    progress: &'a mut Progress<'a>,
    leaf: &'a mut LeafHook<'a>,
}

/// The message of an error, without its errno. `None`: the check itself failed, not the volume.
fn damage(error: &Error) -> Option<String> {
    match error.errno() {
        Errno::UCLEAN => {
            let what = error.what();
            // The message of `corrupt` names the page, which the finding names anyway.
            let rest = what
                .strip_prefix("use page ")
                .and_then(|rest| rest.split_once(": "));
            Some(rest.map_or(what, |(_, what)| what).to_string())
        }
        Errno::IO => Some(error.to_string()),
        _ => None,
    }
}

impl Checker<'_> {
    async fn run(mut self, state: &StatePage) -> Result<CheckReport> {
        self.report.groups_initialized = state.groups_initialized;
        self.report.groups = self.store.space.borrow().geometry().groups();
        self.superblocks().await?;
        for group in 0..state.groups_initialized {
            self.slots(group).await?;
            self.step().await;
        }
        for group in 0..self.report.groups {
            self.space(group).await?;
            if group < state.groups_initialized {
                self.checksums(group).await?;
            }
            if u64::from(group) % STEPS_PER_TURN == 0 {
                self.store.reactor.yield_now().await;
            }
        }
        self.state(state).await?;
        let total = self.steps.1;
        (self.progress)(total, total);
        Ok(self.report)
    }

    fn problem(
        &mut self,
        place: impl Into<String>,
        what: impl Into<String>,
        consequence: impl Into<String>,
    ) {
        if self.report.problems.len() == PROBLEMS_MAX {
            self.report.problems_omitted += 1;
            return;
        }
        self.report.problems.push(Problem {
            place: place.into(),
            what: what.into(),
            consequence: consequence.into(),
        });
    }

    /// Reports an error as damage that hides a part of the volume; fails when it isn't about the
    /// volume.
    fn unreadable(&mut self, place: String, error: Error, consequence: &str) -> Result<()> {
        let Some(what) = damage(&error) else {
            return Err(error);
        };
        self.incomplete = true;
        self.problem(place, what, consequence);
        Ok(())
    }

    async fn step(&mut self) {
        let (done, total) = &mut self.steps;
        *done = (*done + 1).min(*total);
        (self.progress)(*done, *total);
        if *done % STEPS_PER_TURN == 0 {
            self.store.reactor.yield_now().await;
        }
    }

    /// Marks a run of pages to which `place` refers; false: the reference can't be right.
    fn mark(&mut self, run: Run, metadata: bool, place: &str) -> bool {
        let pages = match run.pages {
            1 => format!("page {}", run.page),
            _ => format!("pages {} to {}", run.page, run.end() - 1),
        };
        match self.used.mark(run) {
            Marked::Fresh => {
                let count = u64::from(run.pages);
                self.report.pages_used += count;
                *if metadata {
                    &mut self.report.metadata_pages
                } else {
                    &mut self.report.data_pages
                } += count;
                true
            }
            Marked::Shared => {
                let what = format!("refers to {pages}, which something else refers to as well");
                self.problem(place, what, "one of the two has the other's content");
                false
            }
            Marked::Outside => {
                let what = format!("refers to {pages}, which no allocation group has");
                self.problem(place, what, "its content can't be read");
                false
            }
        }
    }

    /// Both superblocks, as they are on the device.
    async fn superblocks(&mut self) -> Result<()> {
        let store = &self.store;
        let holds = store.writable().is_ok();
        if holds {
            store.hold_superblock().await?;
        }
        let request = store.pool.get(2 * PAGE_BYTES).map(|buffer| {
            let mut request = store.request(Operation::Read, 0);
            request.buffers.push(buffer);
            request
        });
        let completion = match request {
            Ok(request) => Ok(store.reactor.submit(request).await),
            Err(error) => Err(error),
        };
        if holds {
            store.release_superblock();
        }
        let completion = completion?;
        let found = match (completion.result, completion.request.buffers.first()) {
            (Ok(()), Some(buffer)) => {
                let (first, second) = buffer.as_slice().split_at(PAGE_BYTES);
                superblock::check([first, second], &store.leading().superblock.borrow())
            }
            (result, _) => {
                let errno = result.err().unwrap_or(Errno::IO);
                let what = format!("reading it failed: {}", Error::new(errno));
                [Some(what.clone()), Some(what)]
            }
        };
        for (page, what) in found.into_iter().enumerate() {
            if let Some(what) = what {
                self.problem(
                    format!("superblock {} (page {page})", ["A", "B"][page]),
                    what,
                    "the volume depends on the other one until this one is written again",
                );
            }
        }
        Ok(())
    }

    /// A group's slot pages, and the blobs in them.
    async fn slots(&mut self, group: u32) -> Result<()> {
        let store = self.store;
        let pages = match store.slot_pages(group).await {
            Ok(pages) => pages,
            Err(error) => {
                self.maps_unknown.insert(group);
                let place = self.map_place(group);
                let consequence =
                    "its free space can't be used, and the blobs in its slots can't be listed";
                return self.unreadable(place, error, consequence);
            }
        };
        for (page, state) in pages {
            self.slot_page(page, state).await?;
        }
        Ok(())
    }

    fn map_place(&self, group: u32) -> String {
        let page = self.store.space.borrow().geometry().map_page(group);
        format!("the map of group {group} (page {page})")
    }

    /// Compares a group's map with the references to its pages.
    async fn space(&mut self, group: u32) -> Result<()> {
        if self.maps_unknown.contains(&group) {
            return Ok(());
        }
        let store = self.store;
        let mut found = Vec::new();
        let used = &self.used;
        let free = store
            .view(|view| {
                let space = store.space.borrow();
                found.clear();
                space.check_group(view, group, used, &mut |problem| found.push(problem))
            })
            .await;
        match free {
            Ok(free) => self.report.pages_free += free,
            Err(error) => {
                self.maps_unknown.insert(group);
                let place = self.map_place(group);
                return self.unreadable(place, error, "its free space can't be used");
            }
        }
        let map = self.map_place(group);
        for problem in found {
            let pages = |run: Run| format!("pages {} to {} in {map}", run.page, run.end() - 1);
            match problem {
                SpaceProblem::Leaked(run) => {
                    let bytes = u64::from(run.pages) * PAGE_BYTES as u64;
                    let consequence = if self.incomplete {
                        "they may belong to something unreadable".into()
                    } else {
                        format!("{bytes} bytes of space are lost")
                    };
                    let what = "marked as used, but nothing refers to them";
                    self.problem(pages(run), what, consequence);
                }
                SpaceProblem::NotAllocated(run) => self.problem(
                    pages(run),
                    "in use, but marked as free",
                    "new data will overwrite existing data: copy it away before any write",
                ),
                SpaceProblem::Unprotected { .. } => self.problem(
                    map.clone(),
                    "doesn't mark itself, or pages behind the end of the volume, as used",
                    "none as long as nothing trusts those bits",
                ),
            }
        }
        Ok(())
    }

    /// The pages with the checksums of a group's data.
    async fn checksums(&mut self, group: u32) -> Result<()> {
        let store = self.store;
        let geometry = *store.space.borrow().geometry();
        for index in 1..geometry.head_pages() as u64 {
            let page = geometry.map_page(group) + index;
            let checked = store
                .view(|view| crate::data::checksums::check(view, &geometry, page))
                .await;
            if let Err(error) = checked {
                let what = damage(&error).ok_or(error)?;
                let place = format!("page {page} (checksums of data in group {group})");
                self.problem(place, what, "their data can't be read");
            }
        }
        Ok(())
    }

    /// The state page's counters and roots.
    async fn state(&mut self, state: &StatePage) -> Result<()> {
        let place = format!(
            "the state page (page {})",
            self.store.layout.get().state_page
        );
        if self.maps_unknown.is_empty() && state.free_pages != self.report.pages_free {
            let what = format!(
                "counts {} free pages, but the maps have {}",
                state.free_pages, self.report.pages_free
            );
            let consequence = "the volume counts its free space wrong: it is full too early, or claims space that it doesn't have";
            self.problem(&place, what, consequence);
        }
        if !self.incomplete && self.report.slots_damaged == 0 && state.blobs != self.report.blobs {
            let what = format!(
                "counts {} blobs, but there are {}",
                state.blobs, self.report.blobs
            );
            self.problem(&place, what, "the number of files is wrong");
        }
        if state.next_generation == 0 {
            let what = "the next blob would get generation 0";
            self.problem(
                &place,
                what,
                "handles of deleted files may reach other ones",
            );
        }
        let roots = [
            ("root", state.root, state.root_generation),
            ("orphan directory", state.orphans, state.orphans_generation),
        ];
        for (name, slot, generation) in roots {
            let id = BlobId { slot, generation };
            if slot == 0 {
                continue;
            }
            if let Err(error) = self.store.view(|view| view.slot(id)).await {
                if damage(&error).is_none() && error.errno() != Errno::STALE {
                    return Err(error);
                }
                let what = format!("its {name} is blob {slot}.{generation}: {}", error.what());
                let consequence = "the file system can't be opened";
                self.problem(&place, what, consequence);
            }
        }
        Ok(())
    }
}
