//! The judge of the ring: the meaning of each page for the journal, page by page from the tail.
//!
//! The pages that a scan finds, and its actions ([`judge`] is the table, a test proves that exactly
//! one row fits each case):
//!
//! | page | expected place | then |
//! |---|---|---|
//! | this epoch, expected LSN, continues its transaction | | take it |
//! | anything else at the expected place | | a hole: the journal ends before this transaction |
//! | this epoch, higher LSN, horizon not beyond the hole | after the hole | a write that was never acknowledged: ignore |
//! | this epoch, higher LSN, horizon beyond the hole | after the hole | acknowledged data is lost |
//! | a later epoch | anywhere | the superblock that began it is damaged, this one is not the newest |
//!
//! The judge reads no device and refuses nothing: it answers with a [`Step`], and its drivers
//! (`replay.rs`) refuse a loss, or report it and go on.

use crate::format::heal::heal;
use crate::format::record;
use crate::format::{JournalHeader, Superblock, VolumeId};
use crate::recovery::SCAN_PAGES;
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error};

/// Where the checksum of a journal page is.
const CRC_OFFSET: usize = std::mem::offset_of!(JournalHeader, crc);

/// The meaning of a page in a scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// The next page of the journal.
    Next,
    /// The journal ends here.
    Hole,
    /// Beyond the hole: never acknowledged.
    Ignored,
    /// Beyond the hole, and acknowledged: data was lost.
    Lost,
}

/// The decision table of the file's head. `hole` is the LSN of the transaction that is missing or
/// torn, once one was found.
fn judge(
    header: Option<&JournalHeader>,
    epoch: u64,
    expected: Expected,
    hole: Option<u64>,
) -> Verdict {
    let current = header.filter(|header| header.epoch == epoch);
    match (hole, current) {
        _ if header.is_some_and(|header| header.epoch > epoch) => Verdict::Lost,
        (None, Some(header)) if expected.fits(header) => Verdict::Next,
        (None, _) => Verdict::Hole,
        (Some(hole), Some(header)) if header.lsn > hole && header.horizon > hole => Verdict::Lost,
        (Some(_), _) => Verdict::Ignored,
    }
}

/// The page that continues the journal.
#[derive(Clone, Copy, Debug)]
struct Expected {
    lsn: u64,
    transaction_lsn: u64,
    /// Pages of the transaction, once its first page is known.
    transaction_pages: Option<u32>,
}

impl Expected {
    /// The first page of a transaction.
    fn first(lsn: u64) -> Expected {
        Expected {
            lsn,
            transaction_lsn: lsn,
            transaction_pages: None,
        }
    }

    fn fits(&self, header: &JournalHeader) -> bool {
        header.lsn == self.lsn
            && header.transaction_lsn == self.transaction_lsn
            && self
                .transaction_pages
                .is_none_or(|pages| pages == header.transaction_pages)
    }
}

/// A result of a scan that its driver has to act on.
pub(super) enum Step {
    /// Nothing.
    GoOn,
    /// The page ends a transaction of `pages` pages, to be redone.
    Redo { payload: Vec<u8>, pages: u64 },
    /// The page is the first to prove that the transaction with this LSN is lost, or a newer
    /// superblock.
    Lost { lsn: u64, refusal: Error },
}

/// A scan of the ring.
pub(super) struct Scan<'s> {
    superblock: &'s Superblock,
    expected: Expected,
    /// LSN of the transaction that is missing or torn.
    hole: Option<u64>,
    loss_is_told: bool,
    payload: Vec<u8>,
    /// Of the transaction before, for a planted bug.
    held_back: Vec<u8>,
}

impl<'s> Scan<'s> {
    pub(super) fn of(superblock: &'s Superblock) -> Scan<'s> {
        Scan {
            superblock,
            expected: Expected::first(superblock.tail),
            hole: None,
            loss_is_told: false,
            payload: Vec::new(),
            held_back: Vec::new(),
        }
    }

    /// Judges the page at a place of the ring.
    pub(super) fn judge(&mut self, place: u64, page: &[u8]) -> Step {
        let header = header_at(self.superblock, place, page);
        let lsn = self.hole.unwrap_or(self.expected.transaction_lsn);
        match judge(
            header.as_ref(),
            self.superblock.epoch,
            self.expected,
            self.hole,
        ) {
            Verdict::Next => self.take(&header.expect("only a valid page is next"), page),
            Verdict::Hole => {
                self.end_at(lsn);
                let payload = std::mem::take(&mut self.payload);
                if planted(Bug::RecoveryReadsTooFar) {
                    Step::Redo { payload, pages: 0 }
                } else {
                    Step::GoOn
                }
            }
            Verdict::Lost if !self.loss_is_told => {
                self.end_at(lsn);
                self.loss_is_told = true;
                let proof = header.expect("only a valid page proves a loss");
                let refusal = lost(self.superblock.epoch, lsn, &proof);
                Step::Lost { lsn, refusal }
            }
            Verdict::Ignored | Verdict::Lost => Step::GoOn,
        }
    }

    fn take(&mut self, header: &JournalHeader, page: &[u8]) -> Step {
        let mut payload = std::mem::take(&mut self.payload);
        payload.extend_from_slice(record::payload(header, page));
        let lsn = self.expected.lsn + 1;
        let pages = lsn - self.expected.transaction_lsn;
        if pages < u64::from(header.transaction_pages) {
            self.payload = payload;
            self.expected.lsn = lsn;
            self.expected.transaction_pages = Some(header.transaction_pages);
            return Step::GoOn;
        }
        self.expected = Expected::first(lsn);
        if planted(Bug::RecoveryStopsEarly) {
            std::mem::swap(&mut self.held_back, &mut payload);
        }
        Step::Redo { payload, pages }
    }

    /// The journal ends before the transaction with this LSN.
    pub(super) fn end_at(&mut self, lsn: u64) {
        self.hole = Some(lsn);
    }

    /// Repairs a flipped bit in the next expected page; true if it is that page.
    pub(super) fn heal(&self, place: u64, page: &mut [u8]) -> bool {
        if self.hole.is_some() || header_at(self.superblock, place, page).is_some() {
            return false;
        }
        let (volume, mut healed) = (VolumeId(self.superblock.volume_id), page.to_vec());
        let is_next = heal(&volume, self.expected.lsn, &mut healed, CRC_OFFSET)
            && header_at(self.superblock, place, &healed).is_some_and(|header| {
                header.epoch == self.superblock.epoch && self.expected.fits(&header)
            });
        if is_next {
            page.copy_from_slice(&healed);
        }
        is_next
    }
}

/// The error for a loss.
fn lost(epoch: u64, lsn: u64, proof: &JournalHeader) -> Error {
    let what = if proof.epoch > epoch {
        format!(
            "the journal holds epoch {}, but the superblock that is left is of epoch {epoch}: the newer one is \
             damaged; copy the device before any repair",
            proof.epoch
        )
    } else {
        format!(
            "the journal page with LSN {lsn} is missing although page {} proves that it was durable: \
             the device lost acknowledged writes; copy the device before any repair",
            proof.lsn
        )
    };
    Error::with(Errno::UCLEAN, what)
}

/// The header of a page at the place of the ring where that with this LSN lies, if it verifies.
pub(super) fn header_at(superblock: &Superblock, lsn: u64, page: &[u8]) -> Option<JournalHeader> {
    let (volume, ring_pages) = (VolumeId(superblock.volume_id), superblock.journal_pages);
    record::verify_page(&volume, ring_pages, lsn % ring_pages, page)
}

/// The ring in runs of places, as they are read: first place and count. From that of `lsn` on.
pub(super) fn runs(ring_pages: u64, lsn: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let place = (lsn + done) % ring_pages;
        let count = SCAN_PAGES.min(ring_pages - place).min(ring_pages - done);
        done += count;
        (count > 0).then_some((place, count))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn header(epoch: u64, lsn: u64, horizon: u64) -> JournalHeader {
        let mut header = JournalHeader::new_zeroed();
        (header.epoch, header.lsn, header.horizon) = (epoch, lsn, horizon);
        (header.transaction_lsn, header.transaction_pages) = (lsn, 1);
        header
    }

    #[test]
    fn exactly_one_row_of_the_table_fits_each_page() {
        let expected = Expected {
            lsn: 10,
            transaction_lsn: 10,
            transaction_pages: None,
        };
        for epoch in [4, 5, 6] {
            for lsn in 5..15 {
                for horizon in 5..=lsn {
                    for valid in [false, true] {
                        for hole in [None, Some(10)] {
                            let header = header(epoch, lsn, horizon);
                            let verdict = judge(valid.then_some(&header), 5, expected, hole);
                            let ours = valid && epoch == 5;
                            let newer = valid && epoch == 6;
                            let proof = ours && lsn > 10 && horizon > 10;
                            let rows = [
                                (Verdict::Next, hole.is_none() && ours && lsn == 10),
                                (
                                    Verdict::Hole,
                                    hole.is_none() && !newer && !(ours && lsn == 10),
                                ),
                                (Verdict::Lost, newer || hole.is_some() && proof),
                                (Verdict::Ignored, hole.is_some() && !newer && !proof),
                            ];
                            let fitting: Vec<_> = rows.iter().filter(|row| row.1).collect();
                            assert_eq!(fitting.len(), 1);
                            assert_eq!(fitting[0].0, verdict);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_page_of_another_transaction_never_continues_one() {
        let within = Expected {
            lsn: 11,
            transaction_lsn: 10,
            transaction_pages: Some(2),
        };
        assert_eq!(
            judge(Some(&header(5, 11, 9)), 5, within, None),
            Verdict::Hole
        );
        let mut second = header(5, 11, 9);
        (second.transaction_lsn, second.transaction_pages) = (10, 2);
        assert_eq!(judge(Some(&second), 5, within, None), Verdict::Next);
        second.transaction_pages = 3;
        assert_eq!(judge(Some(&second), 5, within, None), Verdict::Hole);
    }
}
