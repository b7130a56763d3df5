//! Decoders of the device's structures, for `crates/fuzz` and `crates/sim`; and a change of a
//! superblock's memo.

use crate::data::xattr;
use crate::format::memo::Memory;
use crate::format::record::{self, Change};
use crate::format::superblock;
use crate::format::{JournalHeader, Page, Slot, Superblock, VolumeId};
use crate::metadata::pages::Stop;
use crate::metadata::slot_page;
use adit_base::{PAGE_BYTES, Result};
use std::path::Path;

/// The superblock in the first two pages of a device of this size.
pub fn superblocks(pages: [&[u8]; 2], device_bytes: u64) -> Result<Box<Superblock>> {
    let chosen = superblock::choose(pages, device_bytes)?;
    let _ = superblock::check(pages, &chosen);
    Ok(chosen)
}

/// Makes the first two pages of a device say that the memory of the last opening lies in this
/// directory. False: the newer one knows of none, and nothing is changed.
pub fn move_memory(
    pages: [&mut [u8; PAGE_BYTES]; 2],
    device_bytes: u64,
    directory: &Path,
) -> Result<bool> {
    let [a, b] = &pages;
    let chosen = superblock::choose([&a[..], &b[..]], device_bytes)?;
    let lies_in_memory = |superblock: &Superblock| {
        let memo = superblock.memo();
        memo.filter(|memo| matches!(memo.memory, Memory::In(_)))
    };
    if lies_in_memory(&chosen).is_none() {
        return Ok(false);
    }
    for (at, page) in pages.into_iter().enumerate() {
        let zeroes = [0; PAGE_BYTES];
        let mut alone = [&zeroes[..]; 2];
        alone[at] = &page[..];
        // One that a crash tore stays as it is.
        if let Ok(mut superblock) = superblock::choose(alone, device_bytes)
            && let Some(mut memo) = lies_in_memory(&superblock)
        {
            memo.memory = Memory::In(vec![directory.into()]);
            superblock.set_memo(&memo);
            *page = superblock::encode(&mut superblock).0;
        }
    }
    Ok(true)
}

/// The header and the records of a page of the journal.
pub fn journal_page<'a>(
    volume: &VolumeId,
    journal_pages: u64,
    index: u64,
    bytes: &'a [u8],
) -> Option<(JournalHeader, &'a [u8])> {
    let header = record::verify_page(volume, journal_pages, index, bytes)?;
    Some((header, record::payload(&header, bytes)))
}

/// A redo record.
#[derive(Debug)]
pub struct Record<'a> {
    /// Device page.
    pub page: u64,
    /// Offset in the page.
    pub offset: usize,
    /// Bytes that change.
    pub len_bytes: usize,
    /// Their new bytes; none: zeroes.
    pub bytes: Option<&'a [u8]>,
}

/// Calls `f` with each record of a transaction's payload.
pub fn records(payload: &[u8], volume_pages: u64, f: &mut dyn FnMut(Record<'_>)) -> Result<()> {
    record::decode(payload, volume_pages, &mut |record| {
        let (len_bytes, bytes) = match record.change {
            Change::Bytes(bytes) => (bytes.len(), Some(bytes)),
            Change::Zero(len_bytes) => (len_bytes, None),
        };
        f(Record {
            page: record.page,
            offset: record.offset,
            len_bytes,
            bytes,
        });
        Ok(())
    })
}

/// The impossible fields of a slot.
pub fn absurdities(slot: &Slot) -> Vec<String> {
    slot_page::absurdities(slot)
}

/// Checks a page of extended attributes.
pub fn check_xattrs(page: u64, content: &Page, owner: u64) -> Result<(), Stop> {
    xattr::check(page, content, owner)
}
