//! Blocks that are decoded by themselves: superblocks, pages of the journal, records, slots,
//! extended attributes.
//!
//! The first byte chooses; what follows is the beginning of the block, the rest of which is zeroes.
//! Where a checksum would be in the way it is made to fit, if the second byte is even.

use crate::image::{Kind, renew};
use crate::input::Input;
use adit_base::{Errno, PAGE_BYTES, SECTOR_BYTES};
use adit_store::format::{JOURNAL_PAYLOAD_BYTES, Page, RecordHeader, Slot, VolumeId};
use adit_store::fuzzing;
use adit_store::pages::Stop;
use zerocopy::FromBytes;

const VOLUME: [u8; 16] = *b"adit-fuzz-blocks";
const RING_PAGES: u64 = 1024;

pub(crate) fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let what = input.byte();
    let sound = input.byte().is_multiple_of(2);
    match what % 5 {
        0 => superblocks(&mut input, sound),
        1 => journal(&mut input, sound),
        2 => records(&mut input),
        3 => slot(&mut input),
        _ => attributes(&mut input),
    }
}

fn page(input: &mut Input<'_>) -> Box<[u8; PAGE_BYTES]> {
    let mut page = Box::new([0; PAGE_BYTES]);
    let front = input.take(PAGE_BYTES);
    page[..front.len()].copy_from_slice(front);
    page
}

fn superblocks(input: &mut Input<'_>, sound: bool) {
    let device_bytes = input.wide();
    let len = usize::from(input.half());
    let mut first = page(&mut Input::new(input.take(len)));
    let mut second = page(input);
    if sound {
        for (page, bytes) in [(0, &mut first), (1, &mut second)] {
            let volume_id = *bytes[24..].first_chunk().expect("inside a page");
            renew(&volume_id, page, Kind::Superblock, bytes);
        }
    }
    if let Ok(superblock) = fuzzing::superblocks([&first[..], &second[..]], device_bytes) {
        assert!(superblock.volume_pages <= device_bytes / PAGE_BYTES as u64);
        assert!(superblock.journal_pages < superblock.volume_pages);
    }
    let _ = adit_store::foreign_signature(&first[..]);
}

fn journal(input: &mut Input<'_>, sound: bool) {
    let mut bytes = page(input);
    if sound {
        bytes[8..24].copy_from_slice(&VOLUME);
        renew(&VOLUME, 0, Kind::Journal, &mut bytes);
    }
    let lsn = u64::from_le_bytes(*bytes[32..].first_chunk().expect("inside a page"));
    let read = fuzzing::journal_page(&VolumeId(VOLUME), RING_PAGES, lsn % RING_PAGES, &bytes[..]);
    if let Some((header, payload)) = read {
        assert!(payload.len() <= JOURNAL_PAYLOAD_BYTES && header.transaction_lsn <= header.lsn);
        let _ = fuzzing::records(payload, u64::MAX, &mut |_| ());
    }
}

fn records(input: &mut Input<'_>) {
    let volume_pages = input.wide();
    let payload = input.take(usize::MAX);
    let mut bytes_seen = 0;
    let read = fuzzing::records(payload, volume_pages, &mut |record| {
        assert!(record.page < volume_pages && record.offset + record.len_bytes <= PAGE_BYTES);
        bytes_seen += size_of::<RecordHeader>() + record.bytes.map_or(0, <[u8]>::len);
    });
    match read {
        Ok(()) => assert_eq!(bytes_seen, payload.len()),
        Err(error) => assert_eq!(error.errno(), Errno::UCLEAN),
    }
}

fn slot(input: &mut Input<'_>) {
    let mut bytes = [0; SECTOR_BYTES];
    let front = input.take(SECTOR_BYTES);
    bytes[..front.len()].copy_from_slice(front);
    let slot = Slot::read_from_bytes(&bytes).expect("as long as a slot");
    let _ = fuzzing::absurdities(&slot);
}

fn attributes(input: &mut Input<'_>) {
    let mut content = Page::zeroed();
    content.0 = *page(input);
    let owner = u64::from_le_bytes(*content.0[8..].first_chunk().expect("inside a page"));
    if let Err(stop) = fuzzing::check_xattrs(7, &content, owner) {
        let Stop::Fail(error) = stop else {
            panic!("{stop:?}");
        };
        assert_eq!(error.errno(), Errno::UCLEAN);
    }
}
