//! Mutations of a volume: 8 bytes each, so that inserting, removing and swapping them keeps their
//! neighbours' meaning.

use super::base::{Base, Content, RING_PAGES, VOLUME_BYTES};
use super::checksum::{self, Kind};
use crate::input::Input;
use crate::volume::PAGE;
use adit_base::{PAGE_BYTES, SECTOR_BYTES};
use adit_store::format::{
    ALGORITHM_CRC32C, JOURNAL_FIRST_PAGE, JOURNAL_MAGIC, JournalHeader, PAGE_HEADER_BYTES,
    PageHeader, RECORD_BYTES, RECORD_ZERO, RecordHeader, STATE_CLEAN, Slot, StatePage, Superblock,
};
use std::collections::BTreeSet;
use std::mem::offset_of;
use zerocopy::{FromBytes, IntoBytes};

/// More are too slow, and no better.
const MUTATIONS_MAX: usize = 48;

/// Offset and bytes of the fields of a kind of page.
fn fields(kind: Kind) -> &'static [(usize, usize)] {
    macro_rules! fields {
        ($of:ident: $($field:ident $bytes:literal),* $(,)?) => {
            &[$((offset_of!($of, $field), $bytes)),*]
        };
    }
    match kind {
        Kind::Superblock => fields!(Superblock:
            magic 8, algorithm 4, version 4, page_shift 4, volume_id 8, sequence 8, epoch 8, tail 8, volume_pages 8,
            journal_pages 8, cluster_pages 4, state 4, features_incompatible 8, features_read_only 8,
            features_compatible 8, created_seconds 8, label 8, opening 8),
        Kind::Journal => fields!(JournalHeader:
            magic 4, epoch 8, lsn 8, horizon 8, transaction_lsn 8, transaction_pages 4, payload_bytes 2, algorithm 1),
        Kind::Slots => fields!(Slot:
            algorithm 1, kind 1, map_kind 1, map_depth 1, generation 4, links 4, size 8, valid_size 8, mode 4, uid 4,
            gid 4, flags 4, rdev 8, allocated_pages 8, atime 8, mtime 8, ctime 8, btime 8, atime_ns 4, mtime_ns 4,
            parent 8, xattr_page 8, map_count 2, payload 8),
        Kind::Headed => &[
            (offset_of!(PageHeader, algorithm), 1),
            (offset_of!(PageHeader, kind), 1),
            (offset_of!(PageHeader, level), 1),
            (offset_of!(PageHeader, flags), 1),
            (offset_of!(PageHeader, owner), 8),
            (offset_of!(PageHeader, count), 2),
            (offset_of!(PageHeader, used_bytes), 2),
            (offset_of!(StatePage, free_pages), 8),
            (offset_of!(StatePage, blobs), 8),
            (offset_of!(StatePage, groups_initialized), 4),
            (offset_of!(StatePage, next_generation), 4),
            (offset_of!(StatePage, groups), 8),
            (offset_of!(StatePage, root), 8),
            (offset_of!(StatePage, root_generation), 4),
            (offset_of!(StatePage, orphans_generation), 4),
            (offset_of!(StatePage, orphans), 8),
            (offset_of!(StatePage, slot_cursor), 8),
            (offset_of!(StatePage, data_cursor), 8),
            (offset_of!(StatePage, volume_pages), 8),
        ],
        Kind::Data => &[(0, 8)],
    }
}

/// Numbers that mean something somewhere. `number` chooses.
fn telling(base: &Base, number: usize) -> u64 {
    const PLAIN: &[u64] = &[
        0,
        1,
        2,
        0x7f,
        0xff,
        0x7fff,
        0xffff,
        0x7fff_ffff,
        0xffff_ffff,
        1 << 32,
        (1 << 44) - 1,
        1 << 47,
        (1 << 48) - 1,
        1 << 48,
        i64::MAX as u64,
        1 << 63,
        u64::MAX - 1,
        u64::MAX,
        VOLUME_BYTES / PAGE - 1,
        VOLUME_BYTES / PAGE,
        RING_PAGES,
    ];
    match number.checked_sub(PLAIN.len()) {
        None => PLAIN[number],
        // A page; a slot in it; an extent of one page there.
        Some(rest) => {
            let page = base.metadata[rest / 10 % base.metadata.len()];
            match rest % 10 {
                0 => page,
                9 => page << 16 | 1,
                sector => page * 8 + sector as u64 - 1,
            }
        }
    }
}

/// Applies the mutations of `input`, then makes all checksums fit.
pub(crate) fn mutate(base: &mut Base, device_bytes: &mut u64, input: &mut Input<'_>) {
    let mut touched = BTreeSet::new();
    for _ in 0..MUTATIONS_MAX {
        if input.is_empty() {
            break;
        }
        one(base, device_bytes, input, &mut touched);
    }
    let volume_id = match base.pages.get(&0) {
        Some(content) => content.bytes[offset_of!(Superblock, volume_id)..][..16].to_vec(),
        None => vec![0; 16],
    };
    let volume_id: [u8; 16] = volume_id.try_into().expect("16 bytes");
    for page in touched {
        if let Some(content) = base.pages.get_mut(&page) {
            checksum::renew(&volume_id, page, content.kind, &mut content.bytes);
        }
    }
}

fn one(
    base: &mut Base,
    device_bytes: &mut u64,
    input: &mut Input<'_>,
    touched: &mut BTreeSet<u64>,
) {
    let operation = input.byte();
    let page = base.metadata[usize::from(input.byte()) % base.metadata.len()];
    let (a, b) = (input.byte(), input.byte());
    let place = usize::from(u16::from_le_bytes([a, b]));
    let other = base.metadata[usize::from(a) % base.metadata.len()];
    let value = input.word();
    let Some(content) = base.pages.get(&page) else {
        return;
    };
    let kind = content.kind;
    // A field of the page, or of one of its slots.
    let (offset, bytes) = fields(kind)[usize::from(a) % fields(kind).len()];
    let offset = match kind {
        Kind::Slots => offset + usize::from(b % 8) * SECTOR_BYTES,
        _ => offset,
    };
    touched.insert(page);
    match operation % 12 {
        0 => put(base, page, offset, bytes, u64::from(value)),
        1 => put(base, page, offset, bytes, telling(base, value as usize)),
        2 => {
            let old = get(base, page, offset, bytes);
            let new = old.wrapping_add_signed(i64::from(value as i32));
            put(base, page, offset, bytes, new);
        }
        3 => {
            let at = place % PAGE_BYTES;
            let old = get(base, page, at, 1);
            put(base, page, at, 1, old ^ 1 << (value % 8));
        }
        4 => put(base, page, place % (PAGE_BYTES - 4), 4, u64::from(value)),
        // Words behind the header: entries, extents, bits.
        5 => {
            let at = PAGE_HEADER_BYTES + place % 508 * 8;
            put(base, page, at, 8, telling(base, value as usize));
        }
        6 => {
            let mut copy = content.clone();
            let there = base.pages.get(&other).map(|content| &content.bytes);
            if let Some(there) = there.filter(|_| copy.kind == Kind::Headed) {
                // What says to whom it belongs, and where in the tree it is.
                if b & 1 != 0 {
                    copy.bytes[8..16].copy_from_slice(&there[8..16]);
                }
                if b & 2 != 0 {
                    copy.bytes[5..7].copy_from_slice(&there[5..7]);
                }
            }
            touched.insert(other);
            base.pages.insert(other, copy);
        }
        7 => {
            let there = base.pages.get(&other).cloned();
            let here = base.pages.insert(other, content.clone());
            if let (Some(there), Some(_)) = (there, here) {
                base.pages.insert(page, there);
            }
            touched.insert(other);
        }
        8 => match value % 4 {
            0 => *device_bytes = (u64::from(value >> 2) % (VOLUME_BYTES * 2 / 512)).max(1) * 512,
            1 => drop(base.pages.remove(&page)),
            2 => {
                let kinds = [Kind::Headed, Kind::Slots, Kind::Journal, Kind::Data];
                let kind = kinds[usize::from(a) % kinds.len()];
                if let Some(content) = base.pages.get_mut(&page) {
                    content.kind = kind;
                }
            }
            // A bit of the map of the first group: about some page.
            _ => {
                let at = PAGE_HEADER_BYTES + usize::from(b & 1) * 2032;
                let bit = usize::from(a) + (value as usize >> 2) % 1024;
                let map = super::base::STATE_PAGE + 1;
                touched.insert(map);
                let old = get(base, map, at + bit / 8, 1);
                put(base, map, at + bit / 8, 1, old ^ 1 << (bit % 8));
            }
        },
        // A slot, or entries of a node, once more in another place.
        9 => {
            let (from, to) = (
                value as usize % 8 * SECTOR_BYTES,
                usize::from(b % 8) * SECTOR_BYTES,
            );
            let sector = content.bytes[from..from + SECTOR_BYTES].to_vec();
            touched.insert(other);
            if let Some(content) = base.pages.get_mut(&other) {
                content.bytes[to..to + SECTOR_BYTES].copy_from_slice(&sector);
            }
        }
        10 => {
            let entry = |number: u8| PAGE_HEADER_BYTES + usize::from(number % 253) * 16;
            let len = (value as usize % 64 + 1) * 16;
            let (from, to) = (entry(a), entry(b));
            let len = len.min(PAGE_BYTES - from.max(to));
            if let Some(content) = base.pages.get_mut(&page) {
                content.bytes.copy_within(from..from + len, to);
            }
        }
        _ => append(base, page, place % PAGE_BYTES, value, touched),
    }
}

fn get(base: &Base, page: u64, offset: usize, bytes: usize) -> u64 {
    let mut number = [0; 8];
    if let Some(content) = base.pages.get(&page) {
        number[..bytes].copy_from_slice(&content.bytes[offset..offset + bytes]);
    }
    u64::from_le_bytes(number)
}

fn put(base: &mut Base, page: u64, offset: usize, bytes: usize, value: u64) {
    if let Some(content) = base.pages.get_mut(&page) {
        content.bytes[offset..offset + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
    }
}

/// One more transaction in the journal: it changes 8 bytes of `page`, or what `value` says.
fn append(base: &mut Base, page: u64, offset: usize, value: u32, touched: &mut BTreeSet<u64>) {
    let mut newest: Option<Superblock> = None;
    for number in [0, 1] {
        let Some(content) = base.pages.get_mut(&number) else {
            continue;
        };
        let (superblock, _) =
            Superblock::mut_from_prefix(&mut content.bytes[..]).expect("a page is long enough");
        superblock.state &= !STATE_CLEAN;
        touched.insert(number);
        if newest
            .as_ref()
            .is_none_or(|newest| newest.sequence < superblock.sequence)
        {
            newest = Some(superblock.clone());
        }
    }
    let Some(newest) = newest else { return };
    let lsn = base.journal_end;
    base.journal_end += 1;
    let data = telling(base, value as usize >> 8).to_le_bytes();
    let (kind, len) = match value % 4 {
        0 => (RECORD_ZERO, PAGE_BYTES - offset),
        1 => (RECORD_ZERO, value as usize >> 8 & 0xfff),
        _ => (
            RECORD_BYTES,
            if value & 4 == 0 {
                8
            } else {
                value as usize >> 8 & 0xf
            },
        ),
    };
    let record = RecordHeader {
        page_and_kind: page | u64::from(kind) << 48,
        offset: offset as u16,
        len_bytes: len as u16,
        reserved: 0,
    };
    let mut payload = record.as_bytes().to_vec();
    if kind == RECORD_BYTES {
        payload.extend(data.iter().cycle().take(len));
    }
    let header = JournalHeader {
        magic: JOURNAL_MAGIC,
        crc: 0,
        volume_id: newest.volume_id,
        epoch: newest.epoch,
        lsn,
        horizon: lsn,
        transaction_lsn: lsn,
        transaction_pages: 1,
        payload_bytes: payload.len() as u16,
        algorithm: ALGORITHM_CRC32C,
        reserved: 0,
    };
    let mut bytes = Box::new([0; PAGE_BYTES]);
    bytes[..size_of::<JournalHeader>()].copy_from_slice(header.as_bytes());
    bytes[size_of::<JournalHeader>()..][..payload.len()].copy_from_slice(&payload);
    let place = JOURNAL_FIRST_PAGE + lsn % RING_PAGES;
    touched.insert(place);
    let kind = Kind::Journal;
    base.pages.insert(place, Content { kind, bytes });
}
