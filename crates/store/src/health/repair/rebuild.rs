//! Repairs blobs: builds maps anew from their leaves, restores blobs without a slot, settles the
//! owners of contested pages.
//!
//! Everything new goes to pages that nothing refers to; a blob switches over to it with its slot,
//! in one sector. Leaves that are sound stay where they are. See
//! `docs/decisions/0012-check-and-repair.md` for the rules.

use super::medium::{Changes, Expected, Medium, no_space};
use super::strays::Strays;
use super::survey::{Leaf, LeafContent, Patient, SlotFault, Survey, examine};
use super::{NameEntry, NameLeaves};
use crate::format::{
    ALGORITHM_CRC32C, BlobKind, EXTENT_PAGES_MAX, GroupMap, InnerEntry, MAP_EXTENT_TREE,
    MAP_EXTENTS, MAP_NAME_TREE, NODE_ENTRIES, PAGE_HEADER_BYTES, Page, PageKind, SLOT_EXTENTS,
    SLOTS_PER_PAGE, Slot,
};
use crate::metadata::extents::Extent;
use crate::metadata::page_view::{begin, header_mut, view};
use crate::metadata::slot_page::slot_place;
use crate::metadata::space::Run;
use crate::recovery::{Finding, FindingKind, Findings};
use adit_base::clock::Timestamp;
use adit_base::{Errno, PAGE_BYTES, Result, SECTOR_BYTES};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use zerocopy::{FromZeros, IntoBytes};

/// A round of repair: from the findings of a survey to the writes.
pub(super) struct Round<'a, 'm> {
    pub(super) medium: &'a mut Medium<'m>,
    pub(super) names: &'a dyn NameLeaves,
    pub(super) maps: &'a [Option<Box<Page>>],
    pub(super) survey: &'a mut Survey,
    pub(super) strays: &'a mut Strays,
    /// Blobs that could not be put right; they are left as they are.
    pub(super) given_up: &'a mut BTreeSet<u64>,
    pub(super) findings: Findings,
    pub(super) changes: Changes,
    /// Where the search for fresh pages stopped: whether by the maps, group, offset.
    pub(super) cursor: (bool, usize, usize),
}

/// An extent's claim on a page.
#[derive(Clone, Copy, Debug)]
struct Claim {
    slot: u64,
    logical: u64,
    unwritten: bool,
    changed: (i64, u32),
}

/// The fate of a page of a blob.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Edit {
    Hole,
    Copy(u64),
}

impl Round<'_, '_> {
    /// Repairs the problems of the survey. True if there were any.
    pub(super) async fn run(&mut self) -> Result<bool> {
        self.slots().await?;
        let mut patients = std::mem::take(&mut self.survey.patients);
        for patient in patients.values_mut() {
            if patient.leaves_lost {
                self.attach(patient)?;
            }
        }
        let edits = self.settle().await?;
        for slot in edits.keys() {
            if !patients.contains_key(slot)
                && let Some(patient) = examine(self.medium, self.names, *slot).await?
            {
                patients.insert(*slot, patient);
            }
        }
        let mut changed = !self.changes.slots.is_empty();
        for (address, mut patient) in patients {
            if self.given_up.contains(&address) {
                continue;
            }
            if let Some(edits) = edits.get(&address) {
                patient.rebuild = true;
                edit(&mut patient, edits);
            }
            let built = if patient.rebuild {
                self.rebuild(&mut patient).await
            } else {
                Ok(())
            };
            match built {
                Ok(()) => self.put(address, Some(&patient.slot)).await?,
                Err(error) if error.errno() == Errno::NOSPC => {
                    self.given_up.insert(address);
                    let finding = Finding::new(
                        FindingKind::Map,
                        "there is no free page to build its map anew",
                        "it stays damaged",
                        "",
                    );
                    self.findings.add(finding.of_slot(address).beyond_repair());
                    continue;
                }
                Err(error) => return Err(error),
            }
            changed = true;
        }
        self.medium.apply(std::mem::take(&mut self.changes)).await?;
        Ok(changed)
    }

    /// Writes a slot into its page, or zeroes it.
    async fn put(&mut self, address: u64, slot: Option<&Slot>) -> Result<()> {
        let (page, offset) = slot_place(address);
        if !self.changes.slots.contains_key(&page) {
            let content = self.medium.io.page(page).await;
            let content = content.unwrap_or_else(|| Box::new(Page::zeroed()));
            self.changes.slots.insert(page, content);
        }
        let Some(content) = self.changes.slots.get_mut(&page) else {
            return Ok(());
        };
        let sector = &mut content.0[offset..offset + SECTOR_BYTES];
        let Some(slot) = slot else {
            sector.fill(0);
            return Ok(());
        };
        sector.copy_from_slice(slot.as_bytes());
        sector[4] = ALGORITHM_CRC32C;
        let crc = self.medium.volume.checksum(address, sector, 0);
        sector[..4].copy_from_slice(&crc.to_le_bytes());
        Ok(())
    }

    /// Slots that don't verify, and those that are gone although their leaves are there.
    async fn slots(&mut self) -> Result<()> {
        let mut addresses: BTreeSet<u64> = self.survey.slot_faults.keys().copied().collect();
        addresses.extend(self.survey.dangling.keys());
        addresses.extend(self.strays.owners());
        for address in addresses {
            let page = address / SLOTS_PER_PAGE;
            let known = self.survey.slot_pages.contains_key(&page);
            let fault = self.survey.slot_faults.get(&address).copied();
            let occupied = self.survey.live.contains(address);
            if !known || occupied && fault.is_none() {
                continue;
            }
            let dangling = self.survey.dangling.get(&address).copied();
            if let Some(patient) = self.resurrect(address, dangling)? {
                self.survey.live.insert(address, patient.id.generation);
                self.survey.patients.insert(address, patient);
                continue;
            }
            let Some(fault) = fault else {
                continue;
            };
            let finding = match fault {
                SlotFault::Damaged => Finding::new(
                    FindingKind::Slot,
                    "its slot does not verify",
                    "the inode in it is lost",
                    "the slot is freed; names that lead to it are removed, its space is freed",
                ),
                SlotFault::NotZeroed => Finding::new(
                    FindingKind::Slot,
                    "a free slot that isn't zeroes",
                    "an inode may have been there",
                    "it is zeroed",
                ),
            };
            self.findings.add(finding.of_slot(address).at_page(page));
            self.put(address, None).await?;
        }
        Ok(())
    }

    /// A blob whose slot is lost, from the leaves of its map.
    fn resurrect(&mut self, address: u64, named: Option<(u32, u8)>) -> Result<Option<Patient>> {
        let names = self
            .strays
            .leaves(address, PageKind::NameLeaf, named.is_some());
        let extents = self
            .strays
            .leaves(address, PageKind::ExtentLeaf, named.is_some());
        let directory = match named.and_then(|(_, kind)| BlobKind::from_u8(kind)) {
            Some(BlobKind::Directory) => true,
            Some(BlobKind::File) => false,
            Some(_) => return Ok(None),
            None => !names.is_empty(),
        };
        if directory && names.is_empty() || !directory && extents.is_empty() {
            return Ok(None);
        }
        let now = Timestamp::now();
        let mut slot = Slot::new_zeroed();
        let kind = if directory {
            BlobKind::Directory
        } else {
            BlobKind::File
        };
        slot.kind = kind as u8;
        let fresh = self.survey.generation_max + 1;
        slot.generation = named.map_or(fresh, |(generation, _)| generation).max(1);
        self.survey.generation_max = self.survey.generation_max.max(slot.generation);
        slot.links = if directory { 2 } else { 1 };
        slot.mode = kind.mode_bits() | if directory { 0o700 } else { 0o600 };
        for (seconds, nanoseconds) in [
            (&mut slot.atime, &mut slot.atime_ns),
            (&mut slot.mtime, &mut slot.mtime_ns),
            (&mut slot.ctime, &mut slot.ctime_ns),
            (&mut slot.btime, &mut slot.btime_ns),
        ] {
            (*seconds, *nanoseconds) = (now.seconds, now.nanoseconds);
        }
        slot.map_kind = if directory {
            MAP_NAME_TREE
        } else {
            MAP_EXTENTS
        };
        let mut patient = Patient::new(address, slot);
        (patient.rebuild, patient.leaves_lost) = (true, true);
        self.attach(&mut patient)?;
        patient.leaves_lost = false;
        let end = patient
            .extents()
            .filter(|extent| !extent.unwritten)
            .map(Extent::end)
            .max();
        if !directory {
            if end.is_none() {
                return Ok(None);
            }
            patient.slot.size = end.unwrap_or(0) * PAGE_BYTES as u64;
            patient.slot.valid_size = patient.slot.size;
        }
        let finding = Finding::new(
            FindingKind::Slot,
            "its slot is lost, but not the leaves of its map",
            "the inode can't be used",
            if directory {
                "the directory comes back with its names, without its permissions and attributes"
            } else {
                "the file comes back with its content in whole pages, without its permissions and attributes"
            },
        );
        self.findings
            .add(finding.of_slot(address).at_page(address / SLOTS_PER_PAGE));
        Ok(Some(patient))
    }

    /// Gives a blob the leaves that were found without anything that leads to them.
    fn attach(&mut self, patient: &mut Patient) -> Result<()> {
        let address = patient.id.slot;
        let names = patient.slot.kind == BlobKind::Directory as u8;
        let kind = if names {
            PageKind::NameLeaf
        } else {
            PageKind::ExtentLeaf
        };
        let mut recovered = Vec::new();
        for (page, content) in self.strays.take(address, kind) {
            self.survey.used.mark(Run { page, pages: 1 });
            if names {
                let range = self
                    .names
                    .range(&self.medium.hash_key, &content, page, address);
                patient.leaves.push(Leaf {
                    page: Some(page),
                    content: LeafContent::Names(range),
                });
                continue;
            }
            let found = self.strays.extents(&content);
            let all = found.len();
            let mut kept = Vec::new();
            for extent in found {
                let start = u64::from(extent.logical);
                let overlaps = patient
                    .extents()
                    .chain(&kept)
                    .any(|other| u64::from(other.logical) < extent.end() && start < other.end());
                let geometry = *self.survey.used.geometry();
                if !overlaps
                    && geometry.contains(extent.run())
                    && self.survey.used.is_unused(extent.run())
                {
                    self.survey.used.mark(extent.run());
                    recovered.push((start, extent.end()));
                    kept.push(extent);
                }
            }
            patient.leaves.push(Leaf {
                page: (kept.len() == all).then_some(page),
                content: LeafContent::Extents(kept),
            });
        }
        if names {
            return Ok(());
        }
        for (lower, upper) in &patient.lost {
            let end = upper.unwrap_or(u64::MAX);
            let bytes = |page: u64| {
                page.saturating_mul(PAGE_BYTES as u64)
                    .min(patient.slot.size)
            };
            let inside = recovered
                .iter()
                .any(|(from, to)| *from < end && *to > *lower);
            if !inside && bytes(*lower) < bytes(end) {
                let range = format!("bytes {} to {}", bytes(*lower), bytes(end));
                let finding = Finding::new(
                    FindingKind::Map,
                    format!("no part of the map of {range} was found"),
                    "its content is lost",
                    format!("{range} become a hole, which reads as zeroes"),
                );
                self.findings.add(finding.of_slot(address));
            }
        }
        Ok(())
    }

    /// Decides the fate of pages that more than one blob refers to.
    async fn settle(&mut self) -> Result<BTreeMap<u64, BTreeMap<u64, Edit>>> {
        let mut edits: BTreeMap<u64, BTreeMap<u64, Edit>> = BTreeMap::new();
        if self.survey.contested.is_empty() {
            return Ok(edits);
        }
        let contested = self.survey.contested.clone();
        let mut claims: BTreeMap<u64, Vec<Claim>> = BTreeMap::new();
        let mut metadata: BTreeMap<u64, u64> = BTreeMap::new();
        let slot_pages: Vec<u64> = self.survey.slot_pages.keys().copied().collect();
        for page in slot_pages {
            if contested.contains(&page) {
                metadata.insert(page, 0);
            }
            let first = page * SLOTS_PER_PAGE;
            for address in first..first + SLOTS_PER_PAGE {
                if !self.survey.live.contains(address) {
                    continue;
                }
                let Some(patient) = examine(self.medium, self.names, address).await? else {
                    continue;
                };
                for node in patient.nodes.iter().filter(|node| contested.contains(node)) {
                    metadata.insert(*node, address);
                }
                for leaf in &patient.leaves {
                    let LeafContent::Extents(extents) = &leaf.content else {
                        continue;
                    };
                    for extent in extents {
                        for page in contested.range(extent.physical..extent.run().end()) {
                            claims.entry(*page).or_default().push(Claim {
                                slot: address,
                                logical: u64::from(extent.logical) + (page - extent.physical),
                                unwritten: extent.unwritten,
                                changed: (patient.slot.ctime, patient.slot.ctime_ns),
                            });
                        }
                    }
                }
            }
        }
        for (page, mut owners) in claims {
            // The blob that changed last wins; a page that was never written has nothing to lose.
            owners.sort_by_key(|claim| {
                (
                    claim.unwritten,
                    std::cmp::Reverse(claim.changed),
                    claim.slot,
                )
            });
            let keeper = match metadata.get(&page) {
                Some(owner) => *owner,
                None => owners.remove(0).slot,
            };
            for claim in owners {
                let what = match (metadata.get(&page), keeper) {
                    (Some(_), 0) => "it also holds slots".to_string(),
                    (Some(_), owner) => format!("it is metadata of inode {owner}"),
                    (None, owner) => format!("it belongs to inode {owner} as well"),
                };
                let byte = claim.logical * PAGE_BYTES as u64;
                let copy = if metadata.contains_key(&page) || claim.unwritten {
                    None
                } else {
                    self.copy(page).await?
                };
                let (edit, consequence, repair) = match copy {
                    Some(copy) => (
                        Edit::Copy(copy),
                        "one of them shows the other's data",
                        format!(
                            "both keep it; inode {keeper} keeps the page, this one gets a copy"
                        ),
                    ),
                    None => (
                        Edit::Hole,
                        "this inode shows another one's data",
                        format!(
                            "inode {keeper} keeps the page; bytes {byte} to {} of this one become a hole",
                            byte + PAGE_BYTES as u64
                        ),
                    ),
                };
                let what = format!("the page at its byte {byte}: {what}");
                let finding = Finding::new(FindingKind::Shared, what, consequence, repair);
                self.findings.add(finding.of_slot(claim.slot).at_page(page));
                edits
                    .entry(claim.slot)
                    .or_default()
                    .insert(claim.logical, edit);
            }
        }
        Ok(edits)
    }

    /// A copy of a page of data; `None`: there is no room, or it can't be read.
    async fn copy(&mut self, page: u64) -> Result<Option<u64>> {
        let Some(content) = self.medium.io.page(page).await else {
            return Ok(None);
        };
        match self.fresh() {
            Ok(fresh) => {
                self.changes.fresh.insert(fresh, content);
                Ok(Some(fresh))
            }
            Err(_) => Ok(None),
        }
    }

    /// A page that nothing refers to: first those that are free by the maps, then those that
    /// nothing was found to use.
    fn fresh(&mut self) -> Result<u64> {
        let geometry = *self.survey.used.geometry();
        loop {
            let (by_map, group, offset) = self.cursor;
            if group >= self.maps.len() {
                if !by_map {
                    return Err(no_space());
                }
                self.cursor = (false, 0, 0);
                continue;
            }
            if offset >= geometry.group_pages(group as u32) {
                self.cursor = (by_map, group + 1, 0);
                continue;
            }
            self.cursor.2 += 1;
            let page = geometry.map_page(group as u32) + offset as u64;
            let run = Run { page, pages: 1 };
            if !geometry.contains(run) {
                continue;
            }
            let free = match (&self.maps[group], by_map) {
                (Some(map), true) => {
                    let map = view::<GroupMap>(map);
                    (map.a[offset / 64] | map.b[offset / 64]) >> (offset % 64) & 1 == 0
                }
                (None, true) => false,
                (_, false) => true,
            };
            if free && self.survey.used.is_unused(run) && !self.strays.holds(page) {
                self.survey.used.mark(run);
                return Ok(page);
            }
        }
    }

    /// Builds a blob's map from its leaves and puts it into the slot.
    async fn rebuild(&mut self, patient: &mut Patient) -> Result<()> {
        let owner = patient.id.slot;
        let attributes = u64::from(patient.slot.xattr_page != 0);
        let slot = &mut patient.slot;
        if slot.kind == BlobKind::Directory as u8 {
            let leaves = self.name_leaves(owner, &patient.leaves).await?;
            let (root, depth, pages) = self.tree(owner, leaves)?;
            slot.payload.fill(0);
            slot.payload[..8].copy_from_slice(&root.to_le_bytes());
            (slot.map_kind, slot.map_depth, slot.map_count) = (MAP_NAME_TREE, depth, 0);
            slot.allocated_pages = pages + attributes;
            slot.size = slot.allocated_pages * PAGE_BYTES as u64;
            slot.valid_size = slot.size;
            return Ok(());
        }
        if !matches!(slot.map_kind, MAP_EXTENTS | MAP_EXTENT_TREE) {
            return Ok(());
        }
        let mut leaves: Vec<(Option<u64>, Vec<Extent>)> = Vec::new();
        for leaf in &patient.leaves {
            if let LeafContent::Extents(extents) = &leaf.content
                && !extents.is_empty()
            {
                leaves.push((leaf.page, extents.clone()));
            }
        }
        leaves.sort_by_key(|(_, extents)| extents[0].logical);
        // Leaves that lie in one another can't both stay as they are.
        if leaves.windows(2).any(|pair| {
            let end = pair[0].1.iter().map(Extent::end).max().unwrap_or(0);
            end > u64::from(pair[1].1[0].logical)
        }) {
            let mut all: Vec<Extent> = leaves
                .into_iter()
                .flat_map(|(_, extents)| extents)
                .collect();
            all.sort_by_key(|extent| extent.logical);
            leaves = vec![(None, all)];
        }
        let all = || leaves.iter().flat_map(|(_, extents)| extents);
        let data: u64 = all().map(|extent| u64::from(extent.pages)).sum();
        let count = all().count();
        slot.allocated_pages = data + attributes;
        if count <= SLOT_EXTENTS {
            slot.payload.fill(0);
            for (place, extent) in slot.payload.chunks_exact_mut(16).zip(all()) {
                place.copy_from_slice(extent.raw().as_bytes());
            }
            (slot.map_kind, slot.map_depth, slot.map_count) = (MAP_EXTENTS, 0, count as u16);
            return Ok(());
        }
        let mut placed = Vec::new();
        for (page, extents) in &leaves {
            if let Some(page) = page {
                placed.push((u64::from(extents[0].logical), *page));
                continue;
            }
            for part in extents.chunks(NODE_ENTRIES) {
                let bytes: Vec<u8> = part
                    .iter()
                    .flat_map(|extent| extent.raw().as_bytes().to_vec())
                    .collect();
                let page = self.node(owner, PageKind::ExtentLeaf, 0, part.len(), &bytes)?;
                placed.push((u64::from(part[0].logical), page));
            }
        }
        let (root, depth, pages) = self.tree(owner, placed)?;
        slot.payload.fill(0);
        slot.payload[..8].copy_from_slice(&root.to_le_bytes());
        (slot.map_kind, slot.map_depth, slot.map_count) = (MAP_EXTENT_TREE, depth, 0);
        slot.allocated_pages += pages;
        Ok(())
    }

    /// The leaves of a directory with their lowest keys: as they are if they are all sound, packed
    /// anew if not.
    async fn name_leaves(&mut self, owner: u64, leaves: &[Leaf]) -> Result<Vec<(u64, u64)>> {
        let mut sound = Vec::new();
        for leaf in leaves {
            if let (Some(page), LeafContent::Names(Some((first, last)))) =
                (leaf.page, &leaf.content)
            {
                sound.push((*first, *last, page));
            }
        }
        sound.sort_unstable();
        if sound.len() == leaves.len() && sound.windows(2).all(|pair| pair[0].1 < pair[1].0) {
            return Ok(sound
                .iter()
                .map(|(first, _, page)| (*first, *page))
                .collect());
        }
        let mut entries: Vec<NameEntry> = Vec::new();
        let mut known = HashSet::new();
        let expected = Expected {
            kind: PageKind::NameLeaf,
            level: 0,
            owner,
        };
        for leaf in leaves {
            let Some(page) = leaf.page else {
                continue;
            };
            if let Ok(content) = self.medium.metadata(page, expected).await {
                self.names.each(&content, &mut |name, target| {
                    if known.insert(name.to_vec()) {
                        let name = name.to_vec();
                        entries.push(NameEntry { name, target });
                    }
                });
            }
        }
        let mut placed = Vec::new();
        for (lowest, mut content) in self.names.pack(&self.medium.hash_key, entries, owner) {
            let page = self.fresh()?;
            self.medium.seal(page, &mut content);
            self.changes.fresh.insert(page, content);
            placed.push((lowest, page));
        }
        Ok(placed)
    }

    /// Inner nodes over leaves, given with their lowest keys in ascending order: root, depth, and
    /// pages with the leaves.
    fn tree(&mut self, owner: u64, leaves: Vec<(u64, u64)>) -> Result<(u64, u8, u64)> {
        let mut pages = leaves.len() as u64;
        let (mut level, mut nodes) = (0, leaves);
        while nodes.len() > 1 {
            level += 1;
            let mut above = Vec::new();
            for part in nodes.chunks(NODE_ENTRIES) {
                let entry = |(key, child): &(u64, u64)| InnerEntry {
                    key: *key,
                    child: *child,
                };
                let bytes: Vec<u8> = part
                    .iter()
                    .flat_map(|node| entry(node).as_bytes().to_vec())
                    .collect();
                let page = self.node(owner, PageKind::Inner, level, part.len(), &bytes)?;
                above.push((part[0].0, page));
                pages += 1;
            }
            nodes = above;
        }
        let root = nodes.first().map_or(0, |(_, page)| *page);
        Ok((root, level, pages))
    }

    fn node(
        &mut self,
        owner: u64,
        kind: PageKind,
        level: u8,
        count: usize,
        bytes: &[u8],
    ) -> Result<u64> {
        let page = self.fresh()?;
        let mut content = Box::new(Page::zeroed());
        begin(&mut content, kind, level, owner);
        header_mut(&mut content).count = count as u16;
        content.0[PAGE_HEADER_BYTES..][..bytes.len()].copy_from_slice(bytes);
        self.medium.seal(page, &mut content);
        self.changes.fresh.insert(page, content);
        Ok(page)
    }
}

/// Replaces single pages of a blob.
fn edit(patient: &mut Patient, edits: &BTreeMap<u64, Edit>) {
    for leaf in &mut patient.leaves {
        let LeafContent::Extents(extents) = &mut leaf.content else {
            continue;
        };
        let mut edited = Vec::with_capacity(extents.len());
        for extent in extents.iter() {
            let mut from = u64::from(extent.logical);
            for (logical, edit) in edits.range(from..extent.end()) {
                if from < *logical {
                    edited.push(extent.cut(from..*logical));
                }
                if let Edit::Copy(physical) = edit {
                    let copy = extent.cut(*logical..*logical + 1);
                    let copy = Extent {
                        physical: *physical,
                        ..copy
                    };
                    match edited.last_mut() {
                        Some(last) if joins(last, &copy) => last.pages += 1,
                        _ => edited.push(copy),
                    }
                }
                from = logical + 1;
            }
            if from < extent.end() {
                edited.push(extent.cut(from..extent.end()));
            }
        }
        if edited != *extents {
            *extents = edited;
            leaf.page = None;
        }
    }
}

fn joins(one: &Extent, next: &Extent) -> bool {
    one.end() == u64::from(next.logical)
        && one.run().end() == next.physical
        && one.unwritten == next.unwritten
        && one.pages < EXTENT_PAGES_MAX
}
