//! The trees of maps and names, as far as they can be read.

use super::medium::{Expected, Medium};
use super::survey::*;
use super::{NameLeaves, NameTarget};
use crate::format::{
    InnerEntry, MAP_EXTENT_TREE, MAP_EXTENTS, MAP_NAME_TREE, NODE_ENTRIES, PAGE_HEADER_BYTES, Page,
    PageKind, RawExtent, SLOT_EXTENTS,
};
use crate::health::iterate::{Unvisited, children};
use crate::metadata::extents::verified_extents;
use crate::metadata::page_view::header;
use crate::metadata::space::Run;
use crate::metadata::space_check::Marked;
use crate::recovery::{Finding, FindingKind};
use adit_base::{PAGE_BYTES, Result};
use adit_reactor::sync::join_all;
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::FromBytes;

/// A page of metadata that was verified is this blob's. If it was marked before, then as data of
/// another one.
pub(super) fn claim(survey: &mut Survey, page: u64) {
    if survey.used.mark(Run { page, pages: 1 }) == Marked::Shared {
        survey.contested.insert(page);
    }
}

/// The extents of the slot or of the leaves of a tree, or the leaves of names. Answers the pages in
/// use.
pub(super) async fn walk(
    medium: &mut Medium<'_>,
    names: &dyn NameLeaves,
    survey: &mut Survey,
    patient: &mut Patient,
    named: &mut Vec<NameTarget>,
) -> Result<u64> {
    let slot = patient.slot;
    let (root, _) = u64::read_from_prefix(&slot.payload).unwrap_or((0, &[]));
    let mut end = 0;
    let leaf_kind = match slot.map_kind {
        MAP_EXTENTS => {
            let count = usize::from(slot.map_count).min(SLOT_EXTENTS);
            let raw =
                <[RawExtent]>::ref_from_bytes(&slot.payload[..count * size_of::<RawExtent>()]);
            let raw = raw.unwrap_or(&[]).to_vec();
            return Ok(extents(survey, patient, None, &raw, (0, None), &mut end));
        }
        MAP_NAME_TREE if root == 0 => return Ok(0),
        MAP_NAME_TREE => PageKind::NameLeaf,
        MAP_EXTENT_TREE => PageKind::ExtentLeaf,
        _ => return Ok(0),
    };
    let owner = patient.id.slot;
    let mut visited = BTreeSet::new();
    // The leaves below the last node, which are read at the same time.
    let mut leaves = BTreeMap::new();
    let mut pages = 0;
    let mut stack = vec![Unvisited {
        page: root,
        level: slot.map_depth,
        lower: 0,
        upper: None,
    }];
    while let Some(pending) = stack.pop() {
        let (page, level) = (pending.page, pending.level);
        let kind = match level {
            0 => leaf_kind,
            _ => PageKind::Inner,
        };
        let expected = Expected { kind, level, owner };
        let content = match medium.geometry.position(page) {
            Some(_) if visited.contains(&page) => Err("it is in the tree already".into()),
            Some(_) => match leaves.remove(&page) {
                Some(content) => medium.judge(page, content, expected).await,
                None => medium.metadata(page, expected).await,
            },
            None => Err("no page can be there".into()),
        };
        let content = match content {
            Ok(content) => content,
            Err(what) => {
                lost_node(survey, patient, &pending, leaf_kind, &what);
                continue;
            }
        };
        visited.insert(page);
        patient.nodes.push(page);
        claim(survey, page);
        pages += 1;
        match kind {
            PageKind::Inner => {
                let (children, problem) = children_of(&content, &pending);
                if let Some(what) = problem {
                    lost_node(survey, patient, &pending, leaf_kind, what);
                }
                if level == 1 {
                    let pages = children.iter().map(|child| child.page);
                    let pages = pages.filter(|page| medium.geometry.position(*page).is_some());
                    let reads = pages.map(async |page| (page, medium.io.page(page).await));
                    leaves = join_all(reads).await.into_iter().collect();
                }
                stack.extend(children.into_iter().rev());
            }
            PageKind::NameLeaf => {
                let range = names.range(&medium.hash_key, &content, page, owner);
                let range = range.filter(|(first, last)| {
                    *first >= pending.lower && pending.upper.is_none_or(|upper| *last < upper)
                });
                if range.is_none() {
                    patient.rebuild = true;
                    let finding = Finding::new(
                        FindingKind::Directory,
                        "a page of names contradicts itself",
                        "names in it can't be found",
                        "the directory is built anew from all names that can be read",
                    );
                    survey.findings.add(finding.of_slot(owner).at_page(page));
                }
                names.each(&content, &mut |_, target| named.push(target));
                patient.leaves.push(Leaf {
                    page: Some(page),
                    content: LeafContent::Names(range),
                });
            }
            _ => {
                let count = usize::from(header(&content).count);
                let raw = &content.0[PAGE_HEADER_BYTES..];
                let raw = <[RawExtent]>::ref_from_bytes(raw).unwrap_or(&[]);
                if count == 0 || count > NODE_ENTRIES {
                    let what = format!("it says that it has {count} entries");
                    lost_node(survey, patient, &pending, leaf_kind, &what);
                    continue;
                }
                let raw = raw[..count].to_vec();
                let bounds = (pending.lower, pending.upper);
                pages += extents(survey, patient, Some(page), &raw, bounds, &mut end);
            }
        }
    }
    Ok(pages)
}

/// The children of an inner node, and its problems.
fn children_of(content: &Page, parent: &Unvisited) -> (Vec<Unvisited>, Option<&'static str>) {
    let count = usize::from(header(content).count);
    if count == 0 || count > NODE_ENTRIES {
        return (Vec::new(), Some("its count of entries is impossible"));
    }
    let bytes = &content.0[PAGE_HEADER_BYTES..][..count * size_of::<InnerEntry>()];
    let entries = <[InnerEntry]>::ref_from_bytes(bytes).unwrap_or(&[]);
    let (found, unordered) = children(entries, parent);
    (found, unordered.map(|_| "its keys are out of order"))
}

pub(super) fn lost_node(
    survey: &mut Survey,
    patient: &mut Patient,
    pending: &Unvisited,
    leaf_kind: PageKind,
    what: &str,
) {
    patient.rebuild = true;
    patient.leaves_lost |= pending.level > 0;
    patient.lost.push((pending.lower, pending.upper));
    let finding = match leaf_kind {
        PageKind::NameLeaf => Finding::new(
            FindingKind::Directory,
            format!("a page of its names: {what}"),
            "the names in it can't be found",
            match pending.level {
                0 => "the page is dropped with its names; their inodes go to /lost+found",
                _ => "the directory is built anew from the pages of names that can be found",
            },
        ),
        _ => {
            let bytes = |page: u64| {
                page.saturating_mul(PAGE_BYTES as u64)
                    .min(patient.slot.size)
            };
            let range = match pending.upper {
                _ if pending.lower == 0 && pending.upper.is_none() => "all of it".to_string(),
                Some(upper) => format!("bytes {} to {}", bytes(pending.lower), bytes(upper)),
                None => format!("bytes {} to its end", bytes(pending.lower)),
            };
            Finding::new(
                FindingKind::Map,
                format!("a page of its map: {what}"),
                format!("{range} can't be read"),
                match pending.level {
                    0 => format!("{range}: becomes a hole, which reads as zeroes"),
                    _ => "the map is built anew from the parts that can be found".into(),
                },
            )
        }
    };
    survey
        .findings
        .add(finding.of_slot(patient.id.slot).at_page(pending.page));
}

/// Takes in the extents of a leaf, or of a slot; returns the number of their pages.
pub(super) fn extents(
    survey: &mut Survey,
    patient: &mut Patient,
    page: Option<u64>,
    raw: &[RawExtent],
    bounds: (u64, Option<u64>),
    end: &mut u64,
) -> u64 {
    let mut kept = Vec::with_capacity(raw.len());
    let mut pages = 0;
    let geometry = *survey.used.geometry();
    for (extent, raw) in verified_extents(raw) {
        let sound = extent.filter(|extent| {
            let start = u64::from(extent.logical);
            start >= (*end).max(bounds.0)
                && bounds.1.is_none_or(|upper| extent.end() <= upper)
                && geometry.contains(extent.run())
        });
        let Some(extent) = sound else {
            patient.rebuild = true;
            let from = u64::from(raw.logical);
            patient.lost.push((from, Some(raw.end())));
            let finding = Finding::new(
                FindingKind::Map,
                format!("its map has an impossible entry: {raw:?}"),
                format!(
                    "bytes {} to {} can't be read",
                    from * PAGE_BYTES as u64,
                    raw.end() * PAGE_BYTES as u64
                ),
                "the entry is dropped; a hole is there then, which reads as zeroes",
            );
            let finding = finding.of_slot(patient.id.slot);
            survey.findings.add(match page {
                Some(page) => finding.at_page(page),
                None => finding,
            });
            continue;
        };
        *end = extent.end();
        pages += u64::from(extent.pages);
        let contested = &mut survey.contested;
        survey.used.mark_each(extent.run(), &mut |page| {
            contested.insert(page);
        });
        kept.push(extent);
    }
    patient.leaves.push(Leaf {
        // A leaf with an entry that was dropped can't stay as it is.
        page: page.filter(|_| kept.len() == raw.len()),
        content: LeafContent::Extents(kept),
    });
    pages
}
