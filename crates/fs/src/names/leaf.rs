//! One page of a directory: entries ordered by key.
//!
//! ```text
//! | PageHeader 32 B | u16 offset of each entry, in key order | free | entries, in no order |
//! ```
//! An entry is key u64, slot u64, generation u32, kind u8, name length u8, name. `used_bytes` of
//! the header is the size of the entry area at the page's end, holes of removed entries included.
//! Inserting moves offsets (2 bytes an entry) and never other entries, so a new name changes few
//! granules and its journal record stays small. Holes are closed when their room is needed.
//!
//! Invariants: offsets lie in the entry area; keys are unique and ascending; the low
//! [`RANK_BITS`](super::name::RANK_BITS) bits of a key tell names of equal hash apart. Memory
//! safety does not depend on any of them: an offset outside the page is EUCLEAN. This file knows
//! neither trees nor other pages.

use super::name::{Name, RANK_MASK, Target};
use adit_base::memory::prefetch;
use adit_base::{Errno, Error, PAGE_BYTES, granules};
use adit_store::format::{PAGE_HEADER_BYTES, Page, PageKind};
use adit_store::page_view::{header, header_mut};
use std::ops::Range;

/// Bytes of an entry in front of its name.
const ENTRY_BYTES: usize = 22;
/// Entries on each side of the first guess among which the wanted one mostly is.
const NEAR: usize = 6;
/// Guesses by proportion before a search halves the rest.
const GUESSES_MAX: u32 = 5;
/// The unit of the processor's caches.
const CACHE_LINE_BYTES: usize = 64;
/// Bytes of an entry's offset.
const OFFSET_BYTES: usize = 2;

/// Bytes that a name takes in a leaf.
pub(super) const fn room_bytes(name_len: usize) -> usize {
    OFFSET_BYTES + ENTRY_BYTES + name_len
}

/// The error for a page with wrong content.
pub(super) fn corrupt(page: u64, what: &str) -> Error {
    Error::with(Errno::UCLEAN, format!("read directory page {page}: {what}"))
}

fn u16_at(bytes: &[u8; PAGE_BYTES], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn u64_at(bytes: &[u8; PAGE_BYTES], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

/// A verified header and the bytes behind it.
#[derive(Clone, Copy)]
pub(super) struct Leaf<'a> {
    bytes: &'a [u8; PAGE_BYTES],
    page: u64,
    count: usize,
    heap: usize,
}

/// An entry as it lies in the page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    pub(super) key: u64,
    pub(super) target: Target,
    pub(super) name: &'a [u8],
}

fn set_count(page: &mut Page, count: usize, used_bytes: usize) {
    let bytes = PAGE_HEADER_BYTES + count * OFFSET_BYTES + used_bytes;
    assert!(bytes <= PAGE_BYTES, "offsets and entries fit");
    let header = header_mut(page);
    header.count = count as u16;
    header.used_bytes = used_bytes as u16;
}

impl<'a> Leaf<'a> {
    /// Verifies that `page`, the device page `number`, is a leaf of the directory `owner`.
    pub(super) fn new(page: &'a Page, number: u64, owner: u64) -> Result<Leaf<'a>, Error> {
        let header = header(page);
        let (count, used) = (usize::from(header.count), usize::from(header.used_bytes));
        // A page of the right kind may still hold something else after a stray write.
        if header.kind != PageKind::NameLeaf as u8 {
            return Err(corrupt(number, "it holds no names"));
        }
        if header.owner != owner {
            return Err(corrupt(number, "it belongs to another directory"));
        }
        if PAGE_HEADER_BYTES + count * OFFSET_BYTES + used > PAGE_BYTES {
            return Err(corrupt(number, "more entries than fit"));
        }
        Ok(Leaf {
            bytes: &page.0,
            page: number,
            count,
            heap: PAGE_BYTES - used,
        })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Where the entry lies; the whole entry is inside the page, and its name isn't empty.
    fn offset(&self, index: usize) -> Result<usize, Error> {
        let at = u16_at(self.bytes, PAGE_HEADER_BYTES + index * OFFSET_BYTES);
        if at < self.heap || at + ENTRY_BYTES > PAGE_BYTES {
            return Err(corrupt(self.page, "an entry lies outside of it"));
        }
        match usize::from(self.bytes[at + ENTRY_BYTES - 1]) {
            0 => Err(corrupt(self.page, "an entry has no name")),
            name_len if at + ENTRY_BYTES + name_len > PAGE_BYTES => {
                Err(corrupt(self.page, "a name ends outside of it"))
            }
            _ => Ok(at),
        }
    }

    pub(super) fn key(&self, index: usize) -> Result<u64, Error> {
        Ok(u64_at(self.bytes, self.offset(index)?))
    }

    pub(super) fn entry(&self, index: usize) -> Result<Entry<'a>, Error> {
        let at = self.offset(index)?;
        let name_len = usize::from(self.bytes[at + ENTRY_BYTES - 1]);
        let name = &self.bytes[at + ENTRY_BYTES..at + ENTRY_BYTES + name_len];
        let generation = [
            self.bytes[at + 16],
            self.bytes[at + 17],
            self.bytes[at + 18],
            self.bytes[at + 19],
        ];
        Ok(Entry {
            key: u64_at(self.bytes, at),
            target: Target {
                slot: u64_at(self.bytes, at + 8),
                generation: u32::from_le_bytes(generation),
                kind: self.bytes[at + 20],
            },
            name,
        })
    }

    /// The granules of the header and of the offsets: those that [`remove`] changes.
    pub(super) fn granules_of_offsets(&self) -> u64 {
        granules(0..PAGE_HEADER_BYTES + self.count * OFFSET_BYTES)
    }

    /// The granules of an entry in front of its name: those that [`replace`] changes.
    pub(super) fn granules_of(&self, index: usize) -> Result<u64, Error> {
        let at = self.offset(index)?;
        Ok(granules(at..at + ENTRY_BYTES))
    }

    /// The granules that [`insert`] changes for a name that fits now.
    pub(super) fn granules_of_insertion(&self, name_len: usize) -> u64 {
        let offsets = PAGE_HEADER_BYTES + (self.count + 1) * OFFSET_BYTES;
        granules(0..offsets) | granules(self.heap - ENTRY_BYTES - name_len..self.heap)
    }

    /// Begins to fetch all entries: they are read by key, and lie in no order.
    pub(super) fn prefetch(&self) {
        for line in self.bytes[self.heap..].chunks(CACHE_LINE_BYTES) {
            prefetch(line.as_ptr());
        }
    }

    /// Index of the first entry whose key is at least `key`, in a leaf that has keys of `range`.
    /// Hashes are uniform, so a guess by proportion is near. In a large directory each entry that
    /// is read costs a cache miss.
    pub(super) fn lower_bound(&self, key: u64, range: &Range<u64>) -> Result<usize, Error> {
        let (mut low, mut high) = (0, self.count);
        let Range { mut start, mut end } = *range;
        // Fetches all entries that the guesses will read, in parallel.
        let width = (end - start) >> 16;
        if self.count > 2 * NEAR && width > 0 {
            let above = (key.saturating_sub(start) >> 16).min(width - 1);
            let near = (above * self.count as u64 / width) as usize;
            let near = near.saturating_sub(NEAR)..(near + NEAR).min(self.count);
            for index in near {
                let at = u16_at(self.bytes, PAGE_HEADER_BYTES + index * OFFSET_BYTES);
                // The key, and the name's length with its first bytes, which may be in the next
                // line.
                for at in [at, at + ENTRY_BYTES - 1] {
                    prefetch(self.bytes.as_ptr().wrapping_add(at));
                }
            }
        }
        for guess in 0.. {
            if low >= high {
                break;
            }
            let (above, width) = (key.saturating_sub(start) >> 16, (end - start) >> 16);
            let middle = if guess < GUESSES_MAX && above < width {
                low + (above * (high - low) as u64 / width) as usize
            } else {
                (low + high) / 2
            };
            let found = self.key(middle)?;
            if found == key {
                return Ok(middle);
            }
            // A damaged leaf may have keys outside of the range.
            if found < key {
                (low, start) = (middle + 1, found.clamp(start, end));
            } else {
                (high, end) = (middle, found.clamp(start, end));
            }
        }
        Ok(low)
    }

    /// The entry of that name, or where it would go and with which key.
    pub(super) fn find(&self, name: &Name<'_>, range: &Range<u64>) -> Result<Found<'a>, Error> {
        let mut index = self.lower_bound(name.hash, range)?;
        // The lowest rank that no name of the same hash has.
        let (mut rank, mut place) = (0, index);
        while index < self.count {
            let entry = self.entry(index)?;
            if entry.key & !RANK_MASK != name.hash {
                break;
            }
            if entry.name == name.bytes {
                return Ok(Found::Entry(index, entry));
            }
            if entry.key & RANK_MASK == rank {
                rank += 1;
                place = index + 1;
            }
            index += 1;
        }
        Ok(Found::Resolved(
            place,
            (rank <= RANK_MASK).then_some(name.hash | rank),
        ))
    }

    /// Bytes of all entries and their offsets.
    fn live_bytes(&self) -> Result<usize, Error> {
        (0..self.count).try_fold(0, |sum, index| {
            Ok(sum + room_bytes(self.entry(index)?.name.len()))
        })
    }

    /// Whether a name of that length fits at once, after compaction, or not at all.
    pub(super) fn fit(&self, name_len: usize) -> Result<Fit, Error> {
        let free = self.heap - PAGE_HEADER_BYTES - self.count * OFFSET_BYTES;
        if room_bytes(name_len) <= free {
            return Ok(Fit::Now);
        }
        if PAGE_HEADER_BYTES + self.live_bytes()? + room_bytes(name_len) <= PAGE_BYTES {
            return Ok(Fit::Compacted);
        }
        Ok(Fit::No)
    }

    /// The index at which to split the leaf in two halves, between different hashes; None when all
    /// hashes are equal.
    pub(super) fn middle(&self) -> Result<Option<usize>, Error> {
        let half = self.live_bytes()? / 2;
        let (mut sum, mut best, mut best_distance) = (0usize, None, usize::MAX);
        let mut previous = None;
        for index in 0..self.count {
            let entry = self.entry(index)?;
            let hash = entry.key & !RANK_MASK;
            let distance = sum.abs_diff(half);
            if previous.is_some_and(|previous| previous != hash) && distance < best_distance {
                (best, best_distance) = (Some(index), distance);
            }
            previous = Some(hash);
            sum += room_bytes(entry.name.len());
        }
        Ok(best)
    }
}

/// The result of [`Leaf::find`].
pub(super) enum Found<'a> {
    /// The entry and its index.
    Entry(usize, Entry<'a>),
    /// The index for a new entry and its key; no key when there are too many names of equal hash.
    Resolved(usize, Option<u64>),
}

/// Room for a new entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fit {
    /// It fits.
    Now,
    /// It fits once holes are closed.
    Compacted,
    /// The leaf must be split.
    No,
}

/// Writes an entry into a verified leaf where it fits now.
pub(super) fn insert(page: &mut Page, index: usize, key: u64, target: Target, name: &[u8]) {
    let header = header(page);
    let (count, used) = (usize::from(header.count), usize::from(header.used_bytes));
    let size = ENTRY_BYTES + name.len();
    assert!(
        index <= count
            && PAGE_HEADER_BYTES + (count + 1) * OFFSET_BYTES + used + size <= PAGE_BYTES,
        "the entry must fit"
    );
    let at = PAGE_BYTES - used - size;
    let bytes = &mut page.0;
    bytes[at..at + 8].copy_from_slice(&key.to_le_bytes());
    bytes[at + 8..at + 16].copy_from_slice(&target.slot.to_le_bytes());
    bytes[at + 16..at + 20].copy_from_slice(&target.generation.to_le_bytes());
    bytes[at + 20] = target.kind;
    bytes[at + 21] = name.len() as u8;
    bytes[at + ENTRY_BYTES..at + size].copy_from_slice(name);
    let offset = PAGE_HEADER_BYTES + index * OFFSET_BYTES;
    let end = PAGE_HEADER_BYTES + count * OFFSET_BYTES;
    bytes.copy_within(offset..end, offset + OFFSET_BYTES);
    bytes[offset..offset + 2].copy_from_slice(&(at as u16).to_le_bytes());
    set_count(page, count + 1, used + size);
}

/// Removes an entry of a verified leaf.
pub(super) fn remove(page: &mut Page, index: usize, name_len: usize) {
    let header = header(page);
    let (count, mut used) = (usize::from(header.count), usize::from(header.used_bytes));
    assert!(index < count, "the entry must exist");
    let offset = PAGE_HEADER_BYTES + index * OFFSET_BYTES;
    let end = PAGE_HEADER_BYTES + count * OFFSET_BYTES;
    let at = u16_at(&page.0, offset);
    page.0.copy_within(offset + OFFSET_BYTES..end, offset);
    if at == PAGE_BYTES - used {
        used -= (ENTRY_BYTES + name_len).min(used);
    }
    set_count(page, count - 1, if count == 1 { 0 } else { used });
}

/// Lets an entry of a verified leaf name another inode.
pub(super) fn replace(page: &mut Page, index: usize, target: Target) {
    let at = u16_at(&page.0, PAGE_HEADER_BYTES + index * OFFSET_BYTES);
    let count = usize::from(header(page).count);
    assert!(
        index < count && at + ENTRY_BYTES <= PAGE_BYTES,
        "the entry was verified"
    );
    page.0[at + 8..at + 16].copy_from_slice(&target.slot.to_le_bytes());
    page.0[at + 16..at + 20].copy_from_slice(&target.generation.to_le_bytes());
    page.0[at + 20] = target.kind;
}

/// Removes the entries from `index` on. Their bytes become holes.
pub(super) fn remove_from(page: &mut Page, index: usize) {
    let held = header(page);
    let (count, used) = (usize::from(held.count), usize::from(held.used_bytes));
    assert!(index <= count, "no entry is made");
    set_count(page, index, if index == 0 { 0 } else { used });
}

/// Copies the entries `range` of `source` behind those of the leaf in `page`.
pub(super) fn copy(
    page: &mut Page,
    source: &Leaf<'_>,
    range: std::ops::Range<usize>,
) -> Result<(), Error> {
    for (place, index) in range.enumerate() {
        let entry = source.entry(index)?;
        let held = header(page);
        let end = PAGE_HEADER_BYTES
            + usize::from(held.count) * OFFSET_BYTES
            + usize::from(held.used_bytes);
        // Overlapping entries of a damaged page can add up to more than a page.
        if end + room_bytes(entry.name.len()) > PAGE_BYTES {
            return Err(corrupt(source.page, "its entries overlap"));
        }
        insert(page, place, entry.key, entry.target, entry.name);
    }
    Ok(())
}

/// Closes the holes of a leaf.
pub(super) fn compact(page: &mut Page, number: u64, owner: u64) -> Result<(), Error> {
    let old = page.clone();
    let source = Leaf::new(&old, number, owner)?;
    remove_from(page, 0);
    copy(page, &source, 0..source.count())
}
