//! The kinds of a volume's pages, by the content of the device.

use adit_base::PAGE_BYTES;
use adit_block::Image;
use adit_store::format::{
    CHECKSUMS_PER_PAGE, GROUP_PAGES, JOURNAL_FIRST_PAGE, PAGE_HEADER_BYTES, PageKind, Superblock,
    VolumeId,
};
use std::collections::BTreeSet;

const SECTOR: usize = 512;

/// The kind of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Superblock,
    Journal,
    State,
    Map,
    Slots,
    /// A node or the attributes of the blob in this slot.
    Owned(u64),
    Checksums,
    /// With a checksum, and nothing in the journal.
    Data,
}

pub fn page_of(image: &Image, page: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE_BYTES];
    image.read(page * PAGE_BYTES as u64, &mut bytes);
    bytes
}

fn crc_of(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The pages of metadata of an image that verify.
pub fn roles(image: &Image) -> Vec<(u64, Role)> {
    let first = page_of(image, 0);
    let at =
        |offset: usize| u64::from_le_bytes(first[offset..offset + 8].try_into().expect("8 bytes"));
    let id = first[24..40].try_into().expect("16 bytes");
    let volume = VolumeId(id);
    let ring = at(std::mem::offset_of!(Superblock, journal_pages));
    let mut found = vec![(0, Role::Superblock), (1, Role::Superblock)];
    for (page, bytes) in image
        .pages()
        .filter(|(page, _)| *page >= JOURNAL_FIRST_PAGE)
    {
        if page < JOURNAL_FIRST_PAGE + ring {
            if bytes.iter().any(|byte| *byte != 0) {
                found.push((page, Role::Journal));
            }
            continue;
        }
        let owner = u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes"));
        if volume.checksum(page, bytes, 0) == crc_of(bytes) {
            found.push((
                page,
                match bytes[5] {
                    kind if kind == PageKind::State as u8 => Role::State,
                    kind if kind == PageKind::GroupMap as u8 => Role::Map,
                    kind if kind == PageKind::Checksums as u8 => Role::Checksums,
                    _ => Role::Owned(owner),
                },
            ));
            continue;
        }
        let slots = bytes
            .chunks_exact(SECTOR)
            .enumerate()
            .any(|(sector, slot)| {
                let address = page * 8 + sector as u64;
                slot[5] != 0 && volume.checksum(address, slot, 0) == crc_of(slot)
            });
        if slots {
            found.push((page, Role::Slots));
        }
    }
    found
}

/// The pages of data that have a checksum, which recovery leaves alone.
pub fn data(image: &Image, recovered: &Image, roles: &[(u64, Role)]) -> Vec<(u64, Role)> {
    let metadata: BTreeSet<u64> = roles.iter().map(|(page, _)| *page).collect();
    let first_group = roles.iter().find(|(_, role)| *role == Role::Map);
    let first_group = first_group.expect("a group").0;
    let mut found = Vec::new();
    for (place, _) in (roles.iter()).filter(|(_, role)| *role == Role::Checksums) {
        let (before, bytes) = (page_of(image, *place), page_of(recovered, *place));
        let offset = (place - first_group) % GROUP_PAGES;
        let first = place - offset + (offset - 1) * CHECKSUMS_PER_PAGE as u64;
        for (index, page) in (first..image.size_bytes() / PAGE_BYTES as u64)
            .enumerate()
            .take(CHECKSUMS_PER_PAGE)
        {
            let at = PAGE_HEADER_BYTES + index * 4;
            let known = bytes[at..at + 4] != [0; 4];
            let same = before[at..at + 4] == bytes[at..at + 4]
                && page_of(image, page) == page_of(recovered, page);
            if known && same && !metadata.contains(&page) {
                found.push((page, Role::Data));
            }
        }
    }
    found
}
