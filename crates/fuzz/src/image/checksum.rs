//! Checksums of pages, made to fit whatever is in them.

use adit_base::{PAGE_BYTES, SECTOR_BYTES};
use adit_store::format::{JournalHeader, SLOTS_PER_PAGE, Slot, Superblock, VolumeId};
use std::mem::offset_of;

/// What a page is, as far as its checksum goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// One of the two.
    Superblock,
    /// A page of the journal.
    Journal,
    /// Any that begins with a `PageHeader`.
    Headed,
    /// Eight slots.
    Slots,
    /// Content, which has none.
    Data,
}

/// The number at `offset`.
pub(crate) fn field(bytes: &[u8], offset: usize) -> u32 {
    let (bytes, _) = bytes[offset..].split_first_chunk().expect("inside a page");
    u32::from_le_bytes(*bytes)
}

/// The checksum that a page with a header should have.
pub(crate) fn of_page(volume_id: &[u8; 16], page: u64, bytes: &[u8; PAGE_BYTES]) -> u32 {
    VolumeId(*volume_id).checksum(page, bytes, 0)
}

/// Puts the right checksum into a page, or into each of its slots that isn't free.
pub(crate) fn renew(volume_id: &[u8; 16], page: u64, kind: Kind, bytes: &mut [u8; PAGE_BYTES]) {
    let mut put = |address: u64, from: usize, len: usize, at: usize| {
        let block = &mut bytes[from..from + len];
        let crc = VolumeId(*volume_id).checksum(address, block, at);
        block[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    };
    match kind {
        Kind::Superblock => put(page, 0, PAGE_BYTES, offset_of!(Superblock, crc)),
        Kind::Journal => {
            let at = offset_of!(JournalHeader, lsn);
            let (lsn, _) = bytes[at..].split_first_chunk().expect("inside a page");
            let lsn = u64::from_le_bytes(*lsn);
            let at = offset_of!(JournalHeader, crc);
            let crc = VolumeId(*volume_id).checksum(lsn, &bytes[..], at);
            bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        }
        Kind::Headed => put(page, 0, PAGE_BYTES, 0),
        Kind::Slots => {
            for sector in 0..SLOTS_PER_PAGE {
                let from = sector as usize * SECTOR_BYTES;
                if bytes[from + offset_of!(Slot, kind)] != 0 {
                    let crc = VolumeId(*volume_id).checksum(
                        page * SLOTS_PER_PAGE + sector,
                        &bytes[from..from + SECTOR_BYTES],
                        offset_of!(Slot, crc),
                    );
                    let at = from + offset_of!(Slot, crc);
                    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
                }
            }
        }
        Kind::Data => {}
    }
}
