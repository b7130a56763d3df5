//! Looks at every slot, walks every map, and notes contradictions. Changes nothing.
//!
//! A page counts as used by a blob when the reference was verified: a node only with the right
//! kind, level and owner in its header. So no page of metadata has two owners. Data pages don't
//! name their owner; one that was marked before is *contested*. [`Survey::patients`] are the blobs
//! whose maps or fields have to change.
//!
//! Memory: 2 KiB a group in use, some 5 bytes a blob, some 30 a page of slots, 24 a name that leads
//! to slots that come later, and the problems.

use super::medium::{Expected, Medium, RUN_PAGES};
use super::trees::{claim, walk};
use super::{NameLeaves, NameTarget};
use crate::data::xattr;
use crate::format::BlobId;
use crate::format::{
    BlobKind, MAP_EXTENT_TREE, MAP_EXTENTS, MAP_INLINE, MAP_NAME_TREE, Page, PageKind,
    SLOT_EXTENTS, SLOTS_PER_PAGE, Slot, VolumeId,
};
use crate::health::SlotTable;
use crate::health::iterate::{SlotContent, slots_of};
use crate::metadata::extents::Extent;
use crate::metadata::node::DEPTH_MAX;
use crate::metadata::slot_page::{absurdities, slot_place};
use crate::metadata::space::{Run, SpaceGeometry};
use crate::metadata::space_check::UsedPages;
use crate::recovery::{Finding, FindingKind, Findings};
use adit_base::{PAGE_BYTES, Result, SECTOR_BYTES};
use adit_reactor::sync::join_all;
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::FromBytes;

/// A leaf of a tree, or the extents in a slot.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    /// Where it lies; `None`: in the slot, or not written yet.
    pub(super) page: Option<u64>,
    pub(super) content: LeafContent,
}

/// The content of a leaf.
#[derive(Clone, Debug)]
pub(super) enum LeafContent {
    Extents(Vec<Extent>),
    /// Names with keys from the first number to the second, if the leaf is sound.
    Names(Option<(u64, u64)>),
}

/// A blob that is not as it should be.
#[derive(Clone, Debug)]
pub(super) struct Patient {
    pub(super) id: BlobId,
    /// Its slot, with fields that can't be already put right.
    pub(super) slot: Slot,
    pub(super) leaves: Vec<Leaf>,
    /// Pages of its tree and of its attributes.
    pub(super) nodes: Vec<u64>,
    /// The map has to be built anew from the leaves.
    pub(super) rebuild: bool,
    /// A node above the leaves is lost: leaves of it may be found.
    pub(super) leaves_lost: bool,
    /// Pages of the blob that a leaf of it described that is lost.
    pub(super) lost: Vec<(u64, Option<u64>)>,
}

impl Patient {
    pub(super) fn new(address: u64, slot: Slot) -> Patient {
        Patient {
            id: BlobId {
                slot: address,
                generation: slot.generation,
            },
            slot,
            leaves: Vec::new(),
            nodes: Vec::new(),
            rebuild: false,
            leaves_lost: false,
            lost: Vec::new(),
        }
    }

    /// The extents of its leaves.
    pub(super) fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.leaves.iter().flat_map(|leaf| match &leaf.content {
            LeafContent::Extents(extents) => extents.as_slice(),
            LeafContent::Names(_) => &[],
        })
    }
}

/// The defect of a slot sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SlotFault {
    /// Does not verify.
    Damaged,
    /// Free, but not zeroes.
    NotZeroed,
}

/// The findings of a survey.
pub(super) struct Survey {
    pub(super) used: UsedPages,
    /// Slot pages, and the blobs in them.
    pub(super) slot_pages: BTreeMap<u64, u8>,
    /// Of the slot pages, those in which no slot verifies.
    pub(super) unproven: BTreeSet<u64>,
    /// Generations of the blobs.
    pub(super) live: SlotTable<u32>,
    pub(super) generation_max: u32,
    /// Pages of data that more than one extent refers to.
    pub(super) contested: BTreeSet<u64>,
    pub(super) patients: BTreeMap<u64, Patient>,
    pub(super) slot_faults: BTreeMap<u64, SlotFault>,
    /// Generation and kind that names expect of slots without such a blob.
    pub(super) dangling: BTreeMap<u64, (u32, u8)>,
    pub(super) findings: Findings,
    /// Blobs: done, and about how many there are.
    pub(super) blobs: u64,
}

impl Survey {
    fn new(geometry: SpaceGeometry) -> Survey {
        Survey {
            used: UsedPages::new(geometry),
            slot_pages: BTreeMap::new(),
            unproven: BTreeSet::new(),
            live: SlotTable::default(),
            generation_max: 0,
            contested: BTreeSet::new(),
            patients: BTreeMap::new(),
            slot_faults: BTreeMap::new(),
            dangling: BTreeMap::new(),
            findings: Findings::default(),
            blobs: 0,
        }
    }

    /// True if slots and maps need no repair.
    pub(super) fn is_sound(&self) -> bool {
        self.patients.is_empty() && self.slot_faults.is_empty() && self.contested.is_empty()
    }
}

/// Slot pages that are read at the same time.
const PAGES_AT_ONCE: usize = 512;

/// Looks at the volume; `slot_pages` are the pages known to hold slots.
pub(super) async fn survey(
    medium: &mut Medium<'_>,
    names: &dyn NameLeaves,
    slot_pages: &BTreeSet<u64>,
    progress: &mut dyn FnMut(u64),
) -> Result<Survey> {
    let mut survey = Survey::new(medium.geometry);
    // First of all, so that no extent is believed that reaches into them.
    for page in slot_pages {
        survey.used.mark(Run {
            page: *page,
            pages: 1,
        });
    }
    let mut names = Names {
        leaves: names,
        dangling: Vec::new(),
        bound: NAMES_MIN,
    };
    let pages: Vec<u64> = slot_pages.iter().copied().collect();
    for batch in pages.chunks(PAGES_AT_ONCE) {
        let adjacent = batch.chunk_by(|page, next| page + 1 == *next);
        let runs = adjacent.flat_map(|run| run.chunks(RUN_PAGES as usize));
        let reads = runs.map(|run| medium.io.pages(run[0], run.len() as u64));
        let contents = join_all(reads).await;
        for (page, content) in batch.iter().zip(contents.into_iter().flatten()) {
            slot_page(medium, &mut names, &mut survey, *page, content, progress).await?;
        }
    }
    names.keep_dangling(&survey.live);
    for entry in names.dangling {
        survey
            .dangling
            .insert(entry.slot, (entry.generation, entry.kind));
    }
    Ok(survey)
}

/// Looks at the inodes in a page of slots.
async fn slot_page(
    medium: &mut Medium<'_>,
    names: &mut Names<'_>,
    survey: &mut Survey,
    page: u64,
    content: Option<Box<Page>>,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    // Written as a page without slots, it can be read again, or the device refuses.
    let mut content = content.unwrap_or_else(|| {
        let finding = Finding::new(
            FindingKind::Slot,
            "a page of slots can't be read",
            "the 8 inodes in it are lost",
            "it becomes a page of free slots",
        );
        survey.findings.add(finding.at_page(page));
        survey
            .slot_faults
            .insert(page * SLOTS_PER_PAGE, SlotFault::Damaged);
        Box::new(Page::zeroed())
    });
    let volume = medium.volume;
    if sectors(volume, page, &content).any(|(_, sector)| matches!(sector, Sector::Fault(_))) {
        heal_slots(medium, page, &mut content).await?;
    }
    let mut live = 0;
    for (address, sector) in sectors(volume, page, &content) {
        match sector {
            Sector::Free => {}
            Sector::Fault(fault) => {
                survey.slot_faults.insert(address, fault);
            }
            Sector::Slot(slot) => {
                live += 1;
                survey.blobs += 1;
                survey.live.insert(address, slot.generation);
                survey.generation_max = survey.generation_max.max(slot.generation);
                blob(
                    medium,
                    names.leaves,
                    survey,
                    address,
                    slot,
                    &mut names.dangling,
                )
                .await?;
                progress(survey.blobs);
            }
        }
    }
    survey.slot_pages.insert(page, live);
    if live == 0 {
        survey.unproven.insert(page);
    }
    names.bound_dangling(&survey.live);
    Ok(())
}

/// With this many names, the survey compares them with their slots.
const NAMES_MIN: usize = 1 << 20;

/// Names that lead nowhere so far; most lead to slots that come later.
struct Names<'a> {
    leaves: &'a dyn NameLeaves,
    dangling: Vec<NameTarget>,
    /// From this number on, those are left out that lead somewhere by now.
    bound: usize,
}

impl Names<'_> {
    fn keep_dangling(&mut self, live: &SlotTable<u32>) {
        self.dangling
            .retain(|entry| live.get(entry.slot) != Some(&entry.generation));
    }

    /// The rest may double before the next comparison of all of it.
    fn bound_dangling(&mut self, live: &SlotTable<u32>) {
        if self.dangling.len() > self.bound {
            self.keep_dangling(live);
            self.bound = NAMES_MIN.max(2 * self.dangling.len());
        }
    }
}

enum Sector<'p> {
    Free,
    Fault(SlotFault),
    Slot(&'p Slot),
}

fn is_zeroed(content: &Page, address: u64) -> bool {
    let (_, offset) = slot_place(address);
    content.0[offset..offset + SECTOR_BYTES]
        .iter()
        .all(|byte| *byte == 0)
}

/// The slots of a page.
fn sectors(volume: VolumeId, page: u64, content: &Page) -> impl Iterator<Item = (u64, Sector<'_>)> {
    slots_of(volume, page, content).map(|(address, slot)| {
        let sector = match slot {
            SlotContent::Free if is_zeroed(content, address) => Sector::Free,
            SlotContent::Free => Sector::Fault(SlotFault::NotZeroed),
            SlotContent::Blob(slot) if BlobKind::from_u8(slot.kind).is_some() => Sector::Slot(slot),
            SlotContent::Blob(_) | SlotContent::Damaged => Sector::Fault(SlotFault::Damaged),
        };
        (address, sector)
    })
}

/// Corrects a flipped bit in a slot of a page.
async fn heal_slots(medium: &mut Medium<'_>, page: u64, content: &mut Page) -> Result<()> {
    let mut healed = false;
    for sector in 0..SLOTS_PER_PAGE as usize {
        let address = page * SLOTS_PER_PAGE + sector as u64;
        if is_zeroed(content, address) {
            continue;
        }
        let bytes = &mut content.0[sector * SECTOR_BYTES..][..SECTOR_BYTES];
        let sound = medium.volume.checksum(address, bytes, 0)
            == u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if !sound
            && crate::format::heal::heal(&medium.volume, address, bytes, 0)
            && Slot::ref_from_bytes(bytes).is_ok_and(|slot| BlobKind::from_u8(slot.kind).is_some())
        {
            healed = true;
            let finding = Finding::new(
                FindingKind::Slot,
                "one flipped bit in its slot",
                "it could not be opened",
                "the bit is corrected",
            );
            medium.findings.add(finding.of_slot(address).at_page(page));
        }
    }
    if healed {
        medium.write(page, content).await?;
    }
    Ok(())
}

/// The problems of a slot's impossible fields, and the corrected slot.
fn soundness(slot: &Slot) -> (Slot, Vec<String>) {
    let (mut sound, mut what) = (*slot, absurdities(slot));
    let directory = slot.kind == BlobKind::Directory as u8;
    let symlink = slot.kind == BlobKind::Symlink as u8;
    sound.size = slot.size.min(crate::format::BLOB_BYTES_MAX);
    sound.valid_size = slot.valid_size.min(sound.size);
    for nanoseconds in [
        &mut sound.atime_ns,
        &mut sound.mtime_ns,
        &mut sound.ctime_ns,
        &mut sound.btime_ns,
    ] {
        *nanoseconds = (*nanoseconds).min(999_999_999);
    }
    sound.generation = slot.generation.max(1);
    let fits = match slot.map_kind {
        MAP_NAME_TREE => directory,
        MAP_EXTENTS => !directory && usize::from(slot.map_count) <= SLOT_EXTENTS,
        MAP_EXTENT_TREE => !directory,
        MAP_INLINE => symlink && usize::from(slot.map_count) <= crate::format::SLOT_PAYLOAD_BYTES,
        _ => false,
    };
    let is_tree = matches!(slot.map_kind, MAP_EXTENT_TREE | MAP_NAME_TREE);
    let deep = usize::from(slot.map_depth) > DEPTH_MAX || !is_tree && slot.map_depth != 0;
    if !fits {
        what.push(format!("a map of kind {}", slot.map_kind));
    }
    if !fits || deep {
        sound.payload.fill(0);
        (sound.map_depth, sound.map_count) = (0, 0);
        sound.map_kind = if directory {
            MAP_NAME_TREE
        } else {
            MAP_EXTENTS
        };
    }
    (sound, what)
}

/// Looks at a blob: its fields, its map, its attributes.
async fn blob(
    medium: &mut Medium<'_>,
    names: &dyn NameLeaves,
    survey: &mut Survey,
    address: u64,
    found: &Slot,
    named: &mut Vec<NameTarget>,
) -> Result<()> {
    let (slot, absurd) = soundness(found);
    let mut patient = Patient::new(address, slot);
    let mut changed = false;
    for what in absurd {
        changed = true;
        let finding = Finding::new(
            FindingKind::Slot,
            format!("its slot says {what}"),
            "it can't be used safely",
            "the field is set to a possible value",
        );
        survey.findings.add(finding.of_slot(address));
    }
    if slot.map_kind != found.map_kind || slot.map_depth != found.map_depth {
        patient.leaves_lost = true;
        patient.rebuild = true;
        patient.lost.push((0, None));
    }
    let mut pages = walk(medium, names, survey, &mut patient, named).await?;
    if slot.xattr_page != 0 {
        let page = slot.xattr_page;
        let expected = Expected {
            kind: PageKind::Xattrs,
            level: 0,
            owner: address,
        };
        let content = match medium.geometry.position(page) {
            Some(_) => medium.metadata(page, expected).await,
            None => Err("no page can be there".into()),
        };
        let content = content.and_then(|content| match xattr::check(page, &content, address) {
            Ok(()) => Ok(()),
            Err(_) => Err("its attributes contradict one another".into()),
        });
        match content {
            Ok(()) => {
                claim(survey, page);
                pages += 1;
            }
            Err(what) => {
                changed = true;
                patient.slot.xattr_page = 0;
                let finding = Finding::new(
                    FindingKind::Attributes,
                    format!("the page of its extended attributes: {what}"),
                    "they can't be read",
                    "they are dropped",
                );
                survey.findings.add(finding.of_slot(address).at_page(page));
            }
        }
    }
    if !patient.rebuild && slot.allocated_pages != pages {
        // Attributes that were dropped are no news.
        if found.allocated_pages != pages + u64::from(found.xattr_page != patient.slot.xattr_page) {
            let finding = Finding::new(
                FindingKind::Map,
                format!(
                    "its slot counts {} pages, but it has {pages}",
                    slot.allocated_pages
                ),
                "the space that it counts is wrong, and it can't be deleted",
                "the count is corrected",
            );
            survey.findings.add(finding.of_slot(address));
        }
        changed = true;
        patient.slot.allocated_pages = pages;
        if slot.map_kind == MAP_NAME_TREE {
            patient.slot.size = pages * PAGE_BYTES as u64;
            patient.slot.valid_size = patient.slot.size;
        }
    }
    if changed || patient.rebuild {
        survey.patients.insert(address, patient);
    }
    Ok(())
}

/// Examines one blob again, as a patient, for its leaves. `None`: the blob is gone.
pub(super) async fn examine(
    medium: &mut Medium<'_>,
    names: &dyn NameLeaves,
    address: u64,
) -> Result<Option<Patient>> {
    let page = address / SLOTS_PER_PAGE;
    let Some(content) = medium.io.page(page).await else {
        return Ok(None);
    };
    let mut survey = Survey::new(medium.geometry);
    for (found, slot) in slots_of(medium.volume, page, &content) {
        let SlotContent::Blob(slot) = slot else {
            continue;
        };
        if found != address {
            continue;
        }
        let (sound, _) = soundness(slot);
        let mut patient = Patient::new(address, sound);
        patient
            .nodes
            .extend((sound.xattr_page != 0).then_some(sound.xattr_page));
        walk(medium, names, &mut survey, &mut patient, &mut Vec::new()).await?;
        return Ok(Some(patient));
    }
    Ok(None)
}
