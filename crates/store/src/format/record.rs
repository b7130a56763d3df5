//! Redo records: encoding them into journal pages and reading them back.
//!
//! A transaction is a list of records, each "these bytes at this offset of this device page"
//! ([`RECORD_BYTES`]) or "zeroes there" ([`RECORD_ZERO`]). Records follow one another without
//! alignment through the payloads of the transaction's pages.
//!
//! Invariants: an encoder never splits the meaning of a record (a decoder that has all pages has
//! all of it); a decoder checks every length before it uses it, since a page with a valid checksum
//! may still have been written by a damaged program.
//!
//! Not here: the place and durability of pages (`journal/`), and the use of records
//! (`recovery/replay.rs`).

use crate::format::{
    ALGORITHM_CRC32C, JOURNAL_MAGIC, JOURNAL_PAYLOAD_BYTES, JournalHeader, Page, RECORD_BYTES,
    RECORD_ZERO, RecordHeader, VolumeId,
};
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, GRANULE_BYTES, PAGE_BYTES, Result};
use smallvec::SmallVec;
use zerocopy::{FromBytes, IntoBytes};

const JOURNAL_HEADER_BYTES: usize = size_of::<JournalHeader>();
const RECORD_HEADER_BYTES: usize = size_of::<RecordHeader>();

/// Fills journal pages with records; `P` is the memory of a page.
pub(crate) struct Encoder<'a> {
    next_page: &'a mut dyn FnMut() -> Option<*mut Page>,
    pages: SmallVec<[*mut Page; 8]>,
    used: usize,
}

impl<'a> Encoder<'a> {
    /// An encoder that asks `next_page` for exclusive page memory as it needs it. The memory must
    /// stay valid until the encoder is gone.
    pub(crate) fn new(next_page: &'a mut dyn FnMut() -> Option<*mut Page>) -> Encoder<'a> {
        Encoder {
            next_page,
            pages: SmallVec::new(),
            used: JOURNAL_PAYLOAD_BYTES,
        }
    }

    fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.used == JOURNAL_PAYLOAD_BYTES {
                let page = (self.next_page)().ok_or(Error::new(Errno::NOMEM))?;
                self.pages.push(page);
                self.used = 0;
            }
            let count = bytes.len().min(JOURNAL_PAYLOAD_BYTES - self.used);
            let page = *self.pages.last().expect("a page was just pushed");
            // SAFETY: `next_page` gave exclusive memory of a whole page, valid while self lives;
            // header + used + count <= PAGE_BYTES by the line above.
            unsafe {
                let to = page.cast::<u8>().add(JOURNAL_HEADER_BYTES + self.used);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, count);
            }
            self.used += count;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Adds "`data` at `offset` of device page `page`".
    pub(crate) fn bytes(&mut self, page: u64, offset: usize, data: &[u8]) -> Result<()> {
        self.header(RECORD_BYTES, page, offset, data.len())?;
        self.put(data)
    }

    /// Adds "`len` zeroes at `offset` of device page `page`".
    pub(crate) fn zero(&mut self, page: u64, offset: usize, len: usize) -> Result<()> {
        self.header(RECORD_ZERO, page, offset, len)
    }

    fn header(&mut self, kind: u8, page: u64, offset: usize, len: usize) -> Result<()> {
        assert!(offset + len <= PAGE_BYTES && page < 1 << 48);
        let header = RecordHeader {
            page_and_kind: page | u64::from(kind) << 48,
            offset: offset as u16,
            len_bytes: len as u16,
            reserved: 0,
        };
        self.put(header.as_bytes())
    }

    /// Adds the 64-byte granules of `content` whose bits are set in `mask`, as few records as
    /// possible.
    pub(crate) fn granules(&mut self, page: u64, mut mask: u64, content: &Page) -> Result<()> {
        while mask != 0 {
            let first = mask.trailing_zeros() as usize;
            let run = (!(mask >> first)).trailing_zeros() as usize;
            let (from, to) = (first * GRANULE_BYTES, (first + run) * GRANULE_BYTES);
            self.bytes(page, from, &content.0[from..to])?;
            mask = if first + run >= 64 {
                0
            } else {
                mask & (u64::MAX << (first + run))
            };
        }
        Ok(())
    }

    /// Writes the headers, checksums included, for a transaction that begins at `lsn`, and returns
    /// the number of pages.
    pub(crate) fn finish(self, volume: &VolumeId, epoch: u64, lsn: u64, horizon: u64) -> u64 {
        let count = self.pages.len();
        for (index, page) in self.pages.iter().enumerate() {
            let last = index + 1 == count;
            let used = if last {
                self.used
            } else {
                JOURNAL_PAYLOAD_BYTES
            };
            let mut header = JournalHeader {
                magic: JOURNAL_MAGIC,
                crc: 0,
                volume_id: volume.0,
                epoch,
                lsn: lsn + index as u64,
                horizon,
                transaction_lsn: lsn,
                transaction_pages: count as u32,
                payload_bytes: used as u16,
                algorithm: ALGORITHM_CRC32C,
                reserved: 0,
            };
            // SAFETY: exclusive page memory (see `put`).
            let bytes = unsafe { &mut (**page).0 };
            bytes[JOURNAL_HEADER_BYTES + used..].fill(0);
            bytes[..JOURNAL_HEADER_BYTES].copy_from_slice(header.as_bytes());
            header.crc = volume.checksum(lsn + index as u64, bytes, 4);
            bytes[4..8].copy_from_slice(&header.crc.to_le_bytes());
        }
        count as u64
    }
}

/// The header of the journal page in `bytes` if it is a valid page of this volume that belongs at
/// `lsn % journal_pages`; the caller judges epoch and LSN.
pub(crate) fn verify_page(
    volume: &VolumeId,
    journal_pages: u64,
    ring_index: u64,
    bytes: &[u8],
) -> Option<JournalHeader> {
    let (header, _) = JournalHeader::read_from_prefix(bytes).ok()?;
    let sane = header.magic == JOURNAL_MAGIC
        && header.volume_id == volume.0
        && header.algorithm == ALGORITHM_CRC32C
        && header.lsn % journal_pages == ring_index
        && usize::from(header.payload_bytes) <= JOURNAL_PAYLOAD_BYTES
        && header.transaction_pages >= 1
        && header.lsn >= header.transaction_lsn
        && header.lsn - header.transaction_lsn < u64::from(header.transaction_pages);
    let whole =
        || volume.checksum(header.lsn, bytes, 4) == header.crc || planted(Bug::UncheckedTornPage);
    (sane && whole()).then_some(header)
}

/// One decoded record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    /// Device page.
    pub(crate) page: u64,
    /// Offset in the page.
    pub(crate) offset: usize,
    /// The new content of the range.
    pub(crate) change: Change<'a>,
}

/// The effect of a record on its range.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// This many zeroes.
    Zero(usize),
}

/// Calls `f` for each record of a transaction's joined payload.
pub(crate) fn decode(
    payload: &[u8],
    volume_pages: u64,
    f: &mut dyn FnMut(Record<'_>) -> Result<()>,
) -> Result<()> {
    let mut rest = payload;
    while !rest.is_empty() {
        let bad = |what: &str| Error::with(Errno::UCLEAN, format!("journal record: {what}"));
        let (header, tail) = RecordHeader::read_from_prefix(rest).map_err(|_| bad("cut short"))?;
        let page = header.page_and_kind & ((1 << 48) - 1);
        let kind = (header.page_and_kind >> 48) as u8;
        let (offset, len) = (usize::from(header.offset), usize::from(header.len_bytes));
        if offset + len > PAGE_BYTES || page >= volume_pages {
            return Err(bad("names a place outside of the volume"));
        }
        let change = match kind {
            RECORD_BYTES if tail.len() >= len => {
                rest = &tail[len..];
                Change::Bytes(&tail[..len])
            }
            RECORD_ZERO => {
                rest = tail;
                Change::Zero(len)
            }
            _ => return Err(bad("unknown kind or cut short")),
        };
        f(Record {
            page,
            offset,
            change,
        })?;
    }
    Ok(())
}

/// The payload of a verified journal page.
pub(crate) fn payload<'a>(header: &JournalHeader, bytes: &'a [u8]) -> &'a [u8] {
    &bytes[JOURNAL_HEADER_BYTES..JOURNAL_HEADER_BYTES + usize::from(header.payload_bytes)]
}

/// Upper bound of the payload bytes that `granules` takes for a mask, for admission.
pub(crate) fn encoded_bytes_max(mask: u64) -> usize {
    let runs = (mask & !(mask << 1)).count_ones() as usize;
    mask.count_ones() as usize * GRANULE_BYTES + runs * RECORD_HEADER_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(edits: &[(u64, u64)], seed: u8) {
        let volume = VolumeId([7; 16]);
        let mut memory: Vec<Box<Page>> = Vec::new();
        let mut next = || {
            memory.push(Box::new(Page::zeroed()));
            memory.last_mut().map(|page| &mut **page as *mut Page)
        };
        let mut content = Page::zeroed();
        for (index, byte) in content.0.iter_mut().enumerate() {
            *byte = (index as u8).wrapping_mul(31).wrapping_add(seed);
        }
        let mut encoder = Encoder::new(&mut next);
        for (page, mask) in edits {
            encoder.zero(*page, 0, PAGE_BYTES).unwrap();
            encoder.granules(*page, *mask, &content).unwrap();
        }
        let count = encoder.finish(&volume, 3, 100, 90);
        assert_eq!(count as usize, memory.len());
        let mut joined = Vec::new();
        for (index, page) in memory.iter().enumerate() {
            let header = verify_page(&volume, 16, (100 + index as u64) % 16, &page.0).unwrap();
            assert_eq!((header.epoch, header.transaction_lsn), (3, 100));
            joined.extend_from_slice(payload(&header, &page.0));
        }
        let mut masks = std::collections::HashMap::<u64, u64>::new();
        decode(&joined, 1 << 40, &mut |record| {
            if let Change::Bytes(bytes) = record.change {
                assert_eq!(
                    bytes,
                    &content.0[record.offset..record.offset + bytes.len()]
                );
                for granule in record.offset / 64..(record.offset + bytes.len()) / 64 {
                    *masks.entry(record.page).or_default() |= 1 << granule;
                }
            }
            Ok(())
        })
        .unwrap();
        for (page, mask) in edits {
            assert_eq!(masks.get(page).copied().unwrap_or(0), *mask);
        }
    }

    proptest! {
        #[test]
        fn records_come_back_as_they_were_encoded(masks in proptest::collection::vec(any::<u64>(), 1..20), seed in any::<u8>()) {
            let edits: Vec<(u64, u64)> = masks.iter().enumerate().map(|(i, m)| (i as u64 + 50, *m)).collect();
            round_trip(&edits, seed);
        }

        #[test]
        fn decoding_garbage_fails_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes, 1000, &mut |_| Ok(()));
        }
    }

    #[test]
    fn a_whole_page_is_one_record() {
        round_trip(&[(5, u64::MAX)], 1);
        assert_eq!(encoded_bytes_max(u64::MAX), PAGE_BYTES + 16);
        assert_eq!(encoded_bytes_max(0b1011), 3 * 64 + 2 * 16);
    }

    #[test]
    fn a_flipped_bit_a_foreign_volume_or_a_wrong_place_never_verifies() {
        let volume = VolumeId([1; 16]);
        let mut page = Box::new(Page::zeroed());
        let pointer: *mut Page = &mut *page;
        let mut once = Some(pointer);
        let mut next = || once.take();
        let mut encoder = Encoder::new(&mut next);
        encoder.bytes(9, 0, b"hello").unwrap();
        encoder.finish(&volume, 1, 33, 33);
        assert!(verify_page(&volume, 16, 1, &page.0).is_some());
        assert!(verify_page(&volume, 16, 2, &page.0).is_none());
        assert!(verify_page(&VolumeId([2; 16]), 16, 1, &page.0).is_none());
        page.0[2000] ^= 4;
        assert!(verify_page(&volume, 16, 1, &page.0).is_none());
    }
}
