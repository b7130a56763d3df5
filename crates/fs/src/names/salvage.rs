//! Leaves as a repair reads and makes them: each sound entry is kept.

use super::leaf::{self, Leaf};
use super::name::{KEY_MAX, KEY_MIN, Name, RANK_MASK, Target};
use adit_base::PAGE_BYTES;
use adit_base::hash::HashKey;
use adit_store::format::{PAGE_HEADER_BYTES, Page, PageKind};
use adit_store::page_view::{begin, header};
use adit_store::{NameEntry, NameLeaves, NameTarget};

/// The leaves of this file system's directories.
pub(crate) struct Leaves;

/// True if this can be the name of an entry.
fn is_name(bytes: &[u8]) -> bool {
    !bytes.is_empty()
        && bytes != b"."
        && bytes != b".."
        && !bytes.iter().any(|byte| matches!(byte, 0 | b'/'))
}

impl NameLeaves for Leaves {
    fn range(&self, key: &HashKey, leaf: &Page, page: u64, owner: u64) -> Option<(u64, u64)> {
        let leaf = Leaf::new(leaf, page, owner).ok()?;
        let (mut first, mut last) = (None, None);
        let mut bytes = PAGE_HEADER_BYTES;
        // Names of the same hash.
        let mut equal: Vec<&[u8]> = Vec::new();
        for index in 0..leaf.count() {
            let entry = leaf.entry(index).ok()?;
            bytes += leaf::room_bytes(entry.name.len());
            let ordered = last.is_none_or(|last| entry.key > last);
            let named = is_name(entry.name) && Name::new(key, entry.name).owns(entry.key);
            if !ordered || !named || !(KEY_MIN..=KEY_MAX).contains(&entry.key) {
                return None;
            }
            if last.is_some_and(|last| (last ^ entry.key) & !RANK_MASK != 0) {
                equal.clear();
            }
            if equal.contains(&entry.name) {
                return None;
            }
            equal.push(entry.name);
            first.get_or_insert(entry.key & !RANK_MASK);
            last = Some(entry.key);
        }
        (bytes <= PAGE_BYTES).then_some((first?, last?))
    }

    fn each(&self, leaf: &Page, each: &mut dyn FnMut(&[u8], NameTarget)) {
        let owner = header(leaf).owner;
        let Ok(leaf) = Leaf::new(leaf, 0, owner) else {
            return;
        };
        let entries = (0..leaf.count()).filter_map(|index| leaf.entry(index).ok());
        for entry in entries.filter(|entry| is_name(entry.name)) {
            let target = NameTarget {
                slot: entry.target.slot,
                generation: entry.target.generation,
                kind: entry.target.kind,
            };
            each(entry.name, target);
        }
    }

    fn pack(&self, key: &HashKey, entries: Vec<NameEntry>, owner: u64) -> Vec<(u64, Box<Page>)> {
        let mut keyed: Vec<(u64, &NameEntry)> = Vec::with_capacity(entries.len());
        keyed.extend(
            entries
                .iter()
                .map(|entry| (Name::new(key, &entry.name).hash, entry)),
        );
        keyed.sort_by(|a, b| (a.0, &a.1.name).cmp(&(b.0, &b.1.name)));
        let mut leaves: Vec<(u64, Box<Page>)> = Vec::new();
        // Names of one hash stay together.
        for equal in keyed.chunk_by(|a, b| a.0 == b.0) {
            let room: usize = equal
                .iter()
                .map(|(_, entry)| leaf::room_bytes(entry.name.len()))
                .sum();
            let fits = leaves.last().is_some_and(|(_, page)| {
                let header = header(page);
                let used = usize::from(header.count) * 2 + usize::from(header.used_bytes);
                PAGE_HEADER_BYTES + used + room <= PAGE_BYTES
            });
            if !fits {
                let mut page = Box::new(Page::zeroed());
                begin(&mut page, PageKind::NameLeaf, 0, owner);
                leaves.push((equal[0].0, page));
            }
            let Some((_, page)) = leaves.last_mut() else {
                continue;
            };
            // More of one hash than ranks, or than fit a page, can't have been.
            for (rank, (hash, entry)) in (0..=RANK_MASK).zip(equal) {
                let held = header(page);
                let (count, used) = (usize::from(held.count), usize::from(held.used_bytes));
                let room = leaf::room_bytes(entry.name.len());
                if PAGE_HEADER_BYTES + count * 2 + used + room > PAGE_BYTES {
                    break;
                }
                let target = Target {
                    slot: entry.target.slot,
                    generation: entry.target.generation,
                    kind: entry.target.kind,
                };
                leaf::insert(page, count, hash | rank, target, &entry.name);
            }
        }
        leaves
    }
}
