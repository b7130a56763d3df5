//! Derives the group maps and the state page from the slots and maps of blobs.

use super::medium::{Expected, Medium};
use super::survey::Survey;
use crate::format::{
    GROUP_MAP_WORDS, GROUP_PAGES, GroupMap, Page, PageKind, SLOTS_PER_PAGE, StatePage,
};
use crate::metadata::page_view::{begin, view, view_mut};
use crate::metadata::space::{Bitmap, set};
use crate::recovery::{Finding, FindingKind};
use adit_base::{PAGE_BYTES, Result};

/// Makes the group maps agree with the survey. Returns the free pages of the groups that have a
/// map.
pub(super) async fn maps(
    medium: &mut Medium<'_>,
    survey: &Survey,
    maps: &[Option<Box<Page>>],
) -> Result<u64> {
    let mut free = 0;
    for (group, found) in maps.iter().enumerate() {
        let group = group as u32;
        let (page, limit) = (
            medium.geometry.map_page(group),
            medium.geometry.group_pages(group),
        );
        let mut fresh = Box::new(Page::zeroed());
        begin(&mut fresh, PageKind::GroupMap, 0, u64::from(group));
        let map = view_mut::<GroupMap>(&mut fresh);
        if let Some(used) = survey.used.words(group) {
            map.a = *used;
        }
        set(&mut map.a, 0, medium.geometry.head_pages() as u32, true);
        set(&mut map.a, limit, GROUP_PAGES as u32 - limit as u32, true);
        for (slots, live) in survey.slot_pages.range(page..page + limit as u64) {
            let offset = (slots - page) as usize;
            set(&mut map.a, offset, 1, u64::from(*live) == SLOTS_PER_PAGE);
            set(&mut map.b, offset, 1, true);
        }
        let pages = map
            .a
            .iter()
            .zip(&map.b)
            .map(|(a, b)| u64::from((!(a | b)).count_ones()));
        free += pages.sum::<u64>();
        medium.seal(page, &mut fresh);
        let fresh_map = view::<GroupMap>(&fresh);
        if let Some(found) = found {
            let map = view::<GroupMap>(found);
            if map.a == fresh_map.a && map.b == fresh_map.b {
                continue;
            }
            differences(medium, group, map, fresh_map);
        }
        medium.write(page, &fresh).await?;
    }
    medium.io.flush().await?;
    Ok(free)
}

/// Makes damaged pages of checksums anew: the checksums of their data are then unknown.
pub(super) async fn checksums(medium: &mut Medium<'_>, groups: u32) -> Result<()> {
    for group in 0..groups {
        for index in 1..medium.geometry.head_pages() as u64 {
            let page = medium.geometry.map_page(group) + index;
            let expected = Expected {
                kind: PageKind::Checksums,
                level: 0,
                owner: u64::from(group),
            };
            let Err(what) = medium.metadata(page, expected).await else {
                continue;
            };
            let finding = Finding::new(
                FindingKind::Checksums,
                format!("checksums of data in group {group}: {what}"),
                "their data can't be read",
                "the data is taken as it is; `adit scrub` gives it checksums again",
            );
            medium.findings.add(finding.at_page(page));
            let mut fresh = Box::new(Page::zeroed());
            begin(&mut fresh, PageKind::Checksums, 0, u64::from(group));
            medium.seal(page, &mut fresh);
            medium.write(page, &fresh).await?;
        }
    }
    medium.io.flush().await
}

/// Reports the differences between a map and the survey.
fn differences(medium: &mut Medium<'_>, group: u32, found: &GroupMap, right: &GroupMap) {
    let any = |map: &GroupMap| -> Bitmap { std::array::from_fn(|word| map.a[word] | map.b[word]) };
    let (was, is) = (any(found), any(right));
    let first = medium.geometry.map_page(group);
    let mut say = |run: (usize, usize), leaked: bool| {
        let (from, to) = (first + run.0 as u64, first + run.1 as u64 - 1);
        let pages = if from == to {
            format!("page {from} is")
        } else {
            format!("pages {from} to {to} are")
        };
        let bytes = (run.1 - run.0) * PAGE_BYTES;
        let finding = if leaked {
            Finding::new(
                FindingKind::Space,
                format!("{pages} marked as used, and nothing refers to them"),
                format!("{bytes} bytes of space are lost"),
                "they are freed",
            )
        } else {
            Finding::new(
                FindingKind::Space,
                format!("{pages} in use, but marked as free"),
                "new data would overwrite existing data",
                "they are marked as used",
            )
        };
        medium.findings.add(finding.at_page(first));
    };
    let mut run: Option<(usize, usize, bool)> = None;
    for offset in 0..=GROUP_MAP_WORDS * 64 {
        let bit = |words: &Bitmap| {
            words
                .get(offset / 64)
                .is_some_and(|word| word >> (offset % 64) & 1 == 1)
        };
        let (was, is) = (bit(&was), bit(&is));
        match &mut run {
            Some((_, end, leaked)) if was != is && *leaked == was => *end = offset + 1,
            run => {
                if let Some((start, end, leaked)) = run.take() {
                    say((start, end), leaked);
                }
                if was != is {
                    *run = Some((offset, offset + 1, was));
                }
            }
        }
    }
    if was == is {
        let finding = Finding::new(
            FindingKind::Space,
            "it is wrong about which pages hold slots, or have free ones",
            "inodes can't be found, or new files are refused",
            "it is corrected",
        );
        medium.findings.add(finding.at_page(first));
    }
}

/// Makes the state page agree with the survey. `found`: its present content, if it verifies.
pub(super) async fn state(
    medium: &mut Medium<'_>,
    survey: &Survey,
    found: Option<&Page>,
    groups_initialized: u32,
    free_in_groups: u64,
) -> Result<()> {
    let geometry = medium.geometry;
    let mut page = Box::new(Page::zeroed());
    if let Some(found) = found {
        *page = found.clone();
    }
    begin(&mut page, PageKind::State, 0, 0);
    let untouched = (groups_initialized..geometry.groups())
        .map(|group| (geometry.group_pages(group) - geometry.head_pages()) as u64)
        .sum::<u64>();
    let state = view_mut::<StatePage>(&mut page);
    let before = *state;
    state.free_pages = free_in_groups + untouched;
    state.blobs = survey.live.len();
    state.groups_initialized = groups_initialized;
    state.groups = u64::from(geometry.groups());
    state.volume_pages = geometry.volume_pages;
    state.next_generation = state
        .next_generation
        .max(survey.generation_max.saturating_add(1));
    let after = *state;
    medium.seal(geometry.state_page, &mut page);
    if found.is_some_and(|found| found.0 == page.0) {
        return Ok(());
    }
    if found.is_some() {
        let mut say = |what: &str, was: u64, is: u64, consequence: &str| {
            if was != is {
                let what = format!("it counts {was} {what}, but there are {is}");
                let finding = Finding::new(
                    FindingKind::State,
                    what,
                    consequence,
                    "the count is corrected",
                );
                medium.findings.add(finding.at_page(geometry.state_page));
            }
        };
        let space = "free space is reported wrong; a write may fail too early, or midway";
        say("free pages", before.free_pages, after.free_pages, space);
        say(
            "blobs",
            before.blobs,
            after.blobs,
            "the number of files is wrong",
        );
        say(
            "pages",
            before.volume_pages,
            after.volume_pages,
            "files in the others can't be read",
        );
        let (was, is) = (before.groups_initialized, after.groups_initialized);
        say(
            "groups in use",
            was.into(),
            is.into(),
            "files in other groups would be overwritten",
        );
        if before.next_generation != after.next_generation {
            let finding = Finding::new(
                FindingKind::State,
                format!(
                    "the next generation is {}, which is in use",
                    before.next_generation
                ),
                "a new file could be taken for a deleted one",
                "it is set behind all that are in use",
            );
            medium.findings.add(finding.at_page(geometry.state_page));
        }
    }
    medium.write(geometry.state_page, &page).await?;
    medium.io.flush().await
}
