//! Repair below the names: afterwards the store opens, and a check finds nothing.
//!
//! ```text
//!   superblock, journal (recovery/replay.rs, leniently) -> state page, group maps
//!     -> survey (every slot, every map) -> strays -> rebuild -> survey …      until nothing is found
//!     -> group maps and state page as they follow from the survey
//! ```
//!
//! | file | what |
//! |---|---|
//! | `finding.rs` | a reported problem |
//! | `medium.rs` | the raw device; the order of writing |
//! | `heal.rs` | a flipped bit |
//! | `recovery/tail.rs` | where a journal begins whose superblock is lost |
//! | `survey.rs` | the content of the volume, and its defects |
//! | `strays.rs` | pages that lost their parents |
//! | `rebuild.rs` | maps of blobs, slots, pages with two owners |
//! | `derive.rs` | group maps, state page |
//!
//! Invariants: repair never overwrites content that a sound structure depends on, so power may fail
//! at any moment; it writes nothing to a sound volume. Rules and cases:
//! `docs/decisions/0012-check-and-repair.md`. The layer above repairs the entries of directories,
//! and reads their leaves ([`NameLeaves`]).

mod derive;
mod medium;
mod rebuild;
mod strays;
mod survey;
mod trees;

use crate::format::superblock::Layout;
use crate::format::superblock::geometry;
use crate::format::{GroupMap, SLOTS_PER_PAGE};
use crate::format::{Page, PageKind, StatePage, Superblock, VolumeId};
use crate::metadata::page_view::view;
use crate::metadata::space::Run;
use crate::recovery::RawIo;
use crate::recovery::{Finding, FindingKind, Findings};
use adit_base::Result;
use adit_base::hash::HashKey;
use medium::{Changes, Expected, Medium};
use rebuild::Round;
use std::collections::BTreeSet;
use strays::{Strays, holds_slots};

/// Rounds after which a repair stops trying. Each one removes the problems that it finds, so a few
/// are enough.
const ROUNDS_MAX: u32 = 24;

/// The inode that an entry of a directory leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NameTarget {
    /// Slot address of the inode.
    pub slot: u64,
    /// Its generation.
    pub generation: u32,
    /// Its `BlobKind` number.
    pub kind: u8,
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameEntry {
    /// The name.
    pub name: Vec<u8>,
    /// Where it leads.
    pub target: NameTarget,
}

/// How leaves of directories are read and made.
pub trait NameLeaves {
    /// The range of keys of a leaf, widened downwards to a possible first key of a leaf; `None` if
    /// an entry is impossible.
    fn range(&self, key: &HashKey, leaf: &Page, page: u64, owner: u64) -> Option<(u64, u64)>;
    /// Calls `each` with the readable entries of a leaf, even if others are damaged.
    fn each(&self, leaf: &Page, each: &mut dyn FnMut(&[u8], NameTarget));
    /// Leaves (headers filled in, checksums not) with these names, and the lowest key of each, in
    /// ascending order.
    fn pack(&self, key: &HashKey, entries: Vec<NameEntry>, owner: u64) -> Vec<(u64, Box<Page>)>;
}

/// How [`Store::repair`](crate::Store::repair) goes about it.
pub struct RepairOptions<'a> {
    /// How the leaves of directories are read.
    pub names: &'a dyn NameLeaves,
    /// Called with the number of visited blobs, and about how many there are.
    pub progress: &'a mut dyn FnMut(u64, u64),
    /// The device is a copy in memory: the repair uses the mappings of dead processes, but leaves
    /// them as they are.
    pub keep_abandoned: bool,
}

/// Repairs a volume whose journal was replayed, which changed the pages `redone` (ascending).
pub(crate) async fn repair(
    io: &RawIo,
    superblock: &Superblock,
    redone: &[u64],
    options: RepairOptions<'_>,
    findings: &mut Findings,
) -> Result<()> {
    let (names, progress) = (options.names, options.progress);
    let layout = Layout::of(superblock);
    let mut medium = Medium {
        io,
        volume: VolumeId(superblock.volume_id),
        hash_key: HashKey(superblock.hash_key),
        geometry: geometry(&layout, superblock.cluster_pages),
        findings: std::mem::take(findings),
    };
    medium.forget_checksums(redone.iter().copied()).await?;
    let state = state_page(&mut medium).await?;
    let (mut blobs, mut initialized, mut roots) = (0, 0, Vec::new());
    // The volume as the state page knows it: smaller than the superblock promises if a growth was
    // interrupted, or if this state page is older than the growth.
    let mut stated = None;
    if let Some(page) = &state {
        let state = view::<StatePage>(page);
        let layout = layout.with_pages(state.volume_pages);
        stated = Some(geometry(&layout, superblock.cluster_pages));
        (blobs, initialized) = (state.blobs, state.groups_initialized);
        roots = vec![
            (state.root, state.root_generation),
            (state.orphans, state.orphans_generation),
        ];
        roots.retain(|(slot, _)| *slot != 0);
    }
    let mut maps = group_maps(&mut medium, state.is_some().then_some(initialized)).await?;
    let mut slot_pages = BTreeSet::new();
    for (group, map) in maps.iter().enumerate() {
        let Some(map) = map.as_ref().map(|map| view::<GroupMap>(map)) else {
            continue;
        };
        for offset in medium.geometry.head_pages()..medium.geometry.group_pages(group as u32) {
            if map.b[offset / 64] >> (offset % 64) & 1 == 1 {
                slot_pages.insert(medium.geometry.map_page(group as u32) + offset as u64);
            }
        }
    }
    let mut given_up = BTreeSet::new();
    let (mut rounds, mut done) = (0, false);
    let survey = loop {
        let step = &mut |done| progress(done, blobs.max(done));
        let mut survey = survey::survey(&mut medium, names, &slot_pages, step).await?;
        for (slot, generation) in &roots {
            if survey.live.get(*slot) != Some(generation) {
                let directory = crate::format::BlobKind::Directory as u8;
                survey.dangling.insert(*slot, (*generation, directory));
            }
        }
        if found_slot_pages(&medium, &survey, &mut slot_pages).await? {
            continue;
        }
        // A map may be older than its group: its slot pages may belong to a blob by now.
        let mistaken: Vec<u64> = (survey.unproven)
            .intersection(&survey.contested)
            .copied()
            .collect();
        if !mistaken.is_empty() {
            slot_pages.retain(|page| !mistaken.contains(page));
            continue;
        }
        if let Some(smaller) = stated.take()
            && smaller.volume_pages < medium.geometry.volume_pages
            && survey.used.end() <= smaller.volume_pages
        {
            medium.geometry = smaller;
            maps.truncate(smaller.groups() as usize);
            continue;
        }
        while maps.len() < survey.used.groups_end() as usize {
            maps.push(None);
        }
        let lost = survey.patients.values().any(|patient| patient.leaves_lost)
            || !survey.slot_faults.is_empty()
            || !survey.dangling.is_empty();
        // (The first group of a volume that nothing was made in has no map.)
        let believed = (0..).zip(&maps).all(|(group, map)| {
            let map = map.as_ref().map(|map| view::<GroupMap>(map));
            map.is_some_and(|map| strays::agrees(map, group, &survey))
        });
        let mut strays = Strays::default();
        if lost || !believed {
            strays = Strays::search(&medium, &survey, &maps).await;
            let before = slot_pages.len();
            slot_pages.extend(&strays.slot_pages);
            if slot_pages.len() > before {
                continue;
            }
        }
        if done || survey.is_sound() && strays.owners().is_empty() {
            break survey;
        }
        rounds += 1;
        if rounds > ROUNDS_MAX {
            break survey;
        }
        let mut round = Round {
            medium: &mut medium,
            names,
            maps: &maps,
            survey: &mut survey,
            strays: &mut strays,
            given_up: &mut given_up,
            findings: Findings::default(),
            changes: Changes::default(),
            cursor: (true, 0, 0),
        };
        let changed = round.run().await?;
        let told = std::mem::take(&mut round.findings);
        medium.findings.append(std::mem::take(&mut survey.findings));
        medium.findings.append(told);
        // The rest is beyond repair; once more, since the round took pages for nothing.
        done = !changed;
    };
    // A volume that nothing was ever made in.
    if initialized == 0 && survey.live.is_empty() && survey.slot_pages.is_empty() {
        maps.clear();
    }
    let free = derive::maps(&mut medium, &survey, &maps).await?;
    let groups = maps.len() as u32;
    derive::checksums(&mut medium, groups).await?;
    derive::state(&mut medium, &survey, state.as_deref(), groups, free).await?;
    *findings = medium.findings;
    Ok(())
}

/// The state page, if it can be believed.
async fn state_page(medium: &mut Medium<'_>) -> Result<Option<Box<Page>>> {
    let expected = Expected {
        kind: PageKind::State,
        level: 0,
        owner: 0,
    };
    let (place, bound) = (medium.geometry.state_page, medium.geometry.volume_pages);
    let found = medium.metadata(place, expected).await.and_then(|page| {
        let state = view::<StatePage>(&page);
        let mut geometry = medium.geometry;
        geometry.volume_pages = state.volume_pages.min(bound);
        let fits = state.volume_pages <= bound
            && geometry.groups() > 0
            && state.groups == u64::from(geometry.groups())
            && u64::from(state.groups_initialized) <= state.groups;
        if fits {
            Ok(page)
        } else {
            Err("its counters don't fit the volume".into())
        }
    });
    match found {
        Ok(page) => Ok(Some(page)),
        Err(what) => {
            let finding = Finding::new(
                FindingKind::State,
                format!("the state page: {what}"),
                "the volume can't be opened",
                "it is made anew: with new counts, and a search for the root and orphan directories",
            );
            medium.findings.add(finding.at_page(place));
            Ok(None)
        }
    }
}

/// The maps of all groups in use; `None` for a damaged one. `initialized`: their number, if known.
async fn group_maps(
    medium: &mut Medium<'_>,
    initialized: Option<u32>,
) -> Result<Vec<Option<Box<Page>>>> {
    // All of them: a state page that is older than the volume knows of fewer. Only a group in use
    // has a map that verifies.
    let mut maps: Vec<Option<Box<Page>>> = Vec::new();
    let mut wrong = Vec::new();
    for group in 0..medium.geometry.groups() {
        let expected = Expected {
            kind: PageKind::GroupMap,
            level: 0,
            owner: u64::from(group),
        };
        let map = medium
            .metadata(medium.geometry.map_page(group), expected)
            .await;
        maps.push(match map {
            Ok(map) => Some(map),
            Err(what) => {
                wrong.push((group, what));
                None
            }
        });
    }
    // Groups come into use in order, the first one with the first allocation.
    let last = maps
        .iter()
        .rposition(Option::is_some)
        .map_or(1, |last| last + 1);
    maps.truncate(last.max(initialized.unwrap_or(0) as usize));
    for (group, what) in wrong {
        if (group as usize) < maps.len() && initialized.is_some_and(|count| group < count) {
            let finding = Finding::new(
                FindingKind::GroupMap,
                format!("the map of group {group}: {what}"),
                "its space can't be used, and the inodes in it can't be listed",
                "it is made anew from what is in use",
            );
            medium
                .findings
                .add(finding.at_page(medium.geometry.map_page(group)));
        }
    }
    Ok(maps)
}

/// Names may lead to slots in pages that no map calls slot pages. True if it found some.
async fn found_slot_pages(
    medium: &Medium<'_>,
    survey: &survey::Survey,
    slot_pages: &mut BTreeSet<u64>,
) -> Result<bool> {
    let before = slot_pages.len();
    for (slot, (generation, _)) in &survey.dangling {
        let page = slot / SLOTS_PER_PAGE;
        if slot_pages.contains(&page) || !medium.geometry.contains(Run { page, pages: 1 }) {
            continue;
        }
        if let Some(content) = medium.io.page(page).await
            && holds_slots(medium, page, &content, Some((*slot, *generation)))
        {
            slot_pages.insert(page);
        }
    }
    Ok(slot_pages.len() > before)
}
