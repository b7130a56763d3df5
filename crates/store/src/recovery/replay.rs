//! Recovery: from the two superblocks and the ring back to the last durable transaction.
//!
//! ```text
//!   superblock -> scan from the tail -> redo, in order -> flush -> superblock with new tail and new epoch
//! ```
//!
//! What a scan finds at each place of the ring, and what it does ([`judge`] is the table, a test
//! proves that exactly one row fits each case):
//!
//! | page | expected place | then |
//! |---|---|---|
//! | this epoch, expected LSN, continues its transaction | | take it |
//! | anything else at the expected place | | a hole: the journal ends before this transaction |
//! | this epoch, higher LSN, horizon not beyond the hole | after the hole | a write that was never acknowledged: ignore |
//! | this epoch, higher LSN, horizon beyond the hole | after the hole | acknowledged data is lost: refuse |
//! | a later epoch | anywhere | the superblock that began it is damaged, this one is not the newest: refuse |
//!
//! Redo is physical: every record is bytes of a device page, applied in LSN order to what is at
//! home, so it is idempotent and may be interrupted anywhere. The new tail and the new epoch are
//! written in one superblock, so pages beyond an old hole never join on.

use super::finding::{Finding, FindingKind, Findings};
use super::raw_io::{RawIo, SCAN_PAGES};
use super::tail::{find_tail, journal_finding, read_ring};
use crate::cache::{Abandoned, META_SPACE};
use crate::format::geometry::SpaceGeometry;
use crate::format::heal::heal;
use crate::format::memo::Memo;
use crate::format::record::{self, Change};
use crate::format::superblock as checksums;
use crate::format::superblock::Layout;
use crate::format::superblock::geometry;
use crate::format::{JOURNAL_FIRST_PAGE, JournalHeader, Page, STATE_CLEAN, Superblock, VolumeId};
use crate::journal::encode_page;
use crate::metadata::page_view::is_metadata;
use crate::recovery::older;
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use std::collections::BTreeMap;

/// Pages held in memory while redoing; more are written home in between.
const REDO_PAGES_MAX: usize = 8192;

/// What a page found while scanning means.
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
    fn fits(&self, header: &JournalHeader) -> bool {
        header.lsn == self.lsn
            && header.transaction_lsn == self.transaction_lsn
            && self
                .transaction_pages
                .is_none_or(|pages| pages == header.transaction_pages)
    }
}

/// Pages being redone.
struct Redo<'a> {
    io: &'a RawIo,
    pages: BTreeMap<u64, Box<Page>>,
    volume_pages: u64,
    redone_pages: u64,
    /// The data that was redone, and its checksums; on a volume whose data has some.
    data: BTreeMap<u64, u32>,
    volume: VolumeId,
    geometry: SpaceGeometry,
}

impl Redo<'_> {
    async fn apply(&mut self, payload: &[u8]) -> Result<()> {
        // Reading needs awaits and decoding takes a closure: first find the pages, then apply.
        let mut missing = Vec::new();
        let mut zeroed = std::collections::HashSet::new();
        record::decode(payload, self.volume_pages, &mut |record| {
            let known = self.pages.contains_key(&record.page) || zeroed.contains(&record.page);
            if !known {
                if record.change == Change::Zero(PAGE_BYTES) {
                    zeroed.insert(record.page);
                } else {
                    missing.push(record.page);
                }
            }
            Ok(())
        })?;
        missing.sort_unstable();
        missing.dedup();
        for page in missing {
            let content = self.io.read(page, 1).await?;
            let mut copy = Box::new(Page::zeroed());
            copy.0.copy_from_slice(&content.as_slice()[..PAGE_BYTES]);
            self.pages.insert(page, copy);
        }
        for page in zeroed {
            self.pages
                .entry(page)
                .or_insert_with(|| Box::new(Page::zeroed()));
        }
        record::decode(payload, self.volume_pages, &mut |record| {
            let page = self.pages.get_mut(&record.page).expect("read above");
            match record.change {
                Change::Bytes(bytes) => {
                    page.0[record.offset..record.offset + bytes.len()].copy_from_slice(bytes)
                }
                Change::Zero(len) => page.0[record.offset..record.offset + len].fill(0),
            }
            Ok(())
        })?;
        if self.pages.len() > REDO_PAGES_MAX {
            self.write_home().await?;
        }
        Ok(())
    }

    async fn write_home(&mut self) -> Result<()> {
        let pages = std::mem::take(&mut self.pages);
        if pages.is_empty() {
            return Ok(());
        }
        // What the ring was read as has to stay so: a dead process's last write may be in the
        // device's cache only.
        self.io.flush().await?;
        self.redone_pages += pages.len() as u64;
        let mut run: Vec<u8> = Vec::new();
        let mut first = 0;
        for (page, content) in pages {
            if self.geometry.checksum_place(page).is_some() {
                match is_metadata(&self.volume, page, &content) {
                    true => self.data.remove(&page),
                    false => {
                        let sum = self.volume.data_checksum(page, &content.0);
                        self.data.insert(page, sum)
                    }
                };
            }
            let full = run.len() == SCAN_PAGES as usize * PAGE_BYTES;
            if !run.is_empty() && (full || page != first + (run.len() / PAGE_BYTES) as u64) {
                self.io.write(first, &run, false).await?;
                run.clear();
            }
            if run.is_empty() {
                first = page;
            }
            run.extend_from_slice(&content.0);
        }
        if !run.is_empty() {
            self.io.write(first, &run, false).await?;
        }
        Ok(())
    }

    /// Names in a superblock that moves the tail where the data that was taken home has its
    /// checksums.
    fn list_unsettled(&self, superblock: &mut Superblock) {
        if self.data.is_empty() {
            return;
        }
        let (mut places, more) = checksums::places_of(&superblock.unsettled);
        let redone = self.data.keys();
        places.extend(redone.filter_map(|page| Some(self.geometry.checksum_place(*page)?.0)));
        places.sort_unstable();
        places.dedup();
        superblock.unsettled = checksums::list_of(places.into_iter(), more);
    }
}

/// What recovery did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// Transactions replayed.
    pub(crate) transactions: u64,
    /// Journal pages that they took.
    pub(crate) journal_pages: u64,
    /// Home pages written.
    pub(crate) home_pages: u64,
    /// The data among them, with its checksums, on a volume whose data has some.
    pub(crate) data: BTreeMap<u64, u32>,
}

/// What the superblock of the new epoch gets.
pub(crate) struct Next<'a> {
    pub(crate) state: u32,
    pub(crate) opening: u64,
    pub(crate) memo: Option<&'a Memo>,
}

/// Replays the journal of `superblock` and begins a new epoch, which `superblock` then has. `dead`
/// is what a process of this boot left that had the volume open in the superblock's epoch: the end
/// of its journal writing is done for it first, so that all that follows is as after a crash.
/// With `findings`, for a repair: what an opening refuses is told there, and replayed as far as
/// possible.
pub(crate) async fn recover(
    io: &RawIo,
    superblock: &mut Superblock,
    dead: Option<&mut Abandoned>,
    next: Next<'_>,
    mut findings: Option<&mut Findings>,
) -> Result<Recovered> {
    let volume = VolumeId(superblock.volume_id);
    if let Some(findings) = findings.as_deref_mut() {
        find_tail(io, superblock, findings).await?;
    }
    let layout = Layout::of(superblock);
    let mut redo = Redo {
        io,
        pages: BTreeMap::new(),
        volume_pages: superblock.volume_pages,
        redone_pages: 0,
        data: BTreeMap::new(),
        volume,
        geometry: geometry(&layout, superblock.cluster_pages),
    };
    let mut recovered = Recovered::default();
    let (tail, ring_pages) = (superblock.tail, superblock.journal_pages);
    let mut end = tail;
    if findings.is_none() {
        superblock_is_newest(io, superblock).await?;
    }
    if superblock.state & STATE_CLEAN == 0 {
        let mut expected = Expected {
            lsn: tail,
            transaction_lsn: tail,
            transaction_pages: None,
        };
        let (mut hole, mut told) = (None, false);
        let mut payload = Vec::new();
        let mut held_back = Vec::new();
        let mut offset = 0;
        while offset < ring_pages {
            let index = (tail + offset) % ring_pages;
            let count = SCAN_PAGES.min(ring_pages - index).min(ring_pages - offset);
            let (strictly, leniently);
            let pages = match findings {
                None => {
                    strictly = io.read(JOURNAL_FIRST_PAGE + index, count).await?;
                    strictly.as_slice()
                }
                Some(_) => {
                    leniently = read_ring(io, index, count).await;
                    leniently.as_slice()
                }
            };
            for (at, bytes) in pages.chunks_exact(PAGE_BYTES).enumerate() {
                let place = index + at as u64;
                let mut header = record::verify_page(&volume, ring_pages, place, bytes);
                let mut healed = [0; PAGE_BYTES];
                let mut bytes = bytes;
                if let Some(findings) = findings.as_deref_mut()
                    && header.is_none()
                    && hole.is_none()
                {
                    healed.copy_from_slice(bytes);
                    if heal(&volume, expected.lsn, &mut healed, 4) {
                        header = record::verify_page(&volume, ring_pages, place, &healed);
                        header = header.filter(|header| {
                            header.epoch == superblock.epoch && expected.fits(header)
                        });
                    }
                    if header.is_some() {
                        bytes = &healed;
                        findings.add(
                            Finding::new(
                                FindingKind::Journal,
                                "one flipped bit in a page of the journal",
                                "the volume could not be opened, or what was acknowledged was lost",
                                "the bit is put right",
                            )
                            .at_page(JOURNAL_FIRST_PAGE + place),
                        );
                    }
                }
                match judge(header.as_ref(), superblock.epoch, expected, hole) {
                    Verdict::Next => {
                        let header = header.expect("only a valid page is next");
                        payload.extend_from_slice(record::payload(&header, bytes));
                        expected.lsn += 1;
                        expected.transaction_pages = Some(header.transaction_pages);
                        if expected.lsn - expected.transaction_lsn
                            == u64::from(header.transaction_pages)
                        {
                            if planted(Bug::RecoveryStopsEarly) {
                                std::mem::swap(&mut held_back, &mut payload);
                            }
                            match (redo.apply(&payload).await, findings.as_deref_mut()) {
                                (Ok(()), _) => {}
                                (Err(error), Some(findings)) if error.errno() == Errno::UCLEAN => {
                                    findings.add(journal_finding(
                                        expected.transaction_lsn,
                                        error.what(),
                                    ));
                                    hole = Some(expected.transaction_lsn);
                                    continue;
                                }
                                (Err(error), _) => return Err(error),
                            }
                            payload.clear();
                            recovered.transactions += 1;
                            end = expected.lsn;
                            expected = Expected {
                                lsn: end,
                                transaction_lsn: end,
                                transaction_pages: None,
                            };
                        }
                    }
                    Verdict::Hole => {
                        if planted(Bug::RecoveryReadsTooFar) {
                            redo.apply(&payload).await?;
                        }
                        hole = Some(expected.transaction_lsn);
                    }
                    Verdict::Ignored => {}
                    Verdict::Lost => {
                        let error = lost(superblock.epoch, hole, header);
                        let Some(findings) = findings.as_deref_mut() else {
                            return Err(error);
                        };
                        let lsn = hole.unwrap_or(expected.transaction_lsn);
                        if !told {
                            let what =
                                "it is missing or damaged, and later pages prove that it was there";
                            findings.add(journal_finding(lsn, what));
                        }
                        (told, hole) = (true, Some(lsn));
                    }
                }
            }
            offset += count;
        }
        if let Some(dead) = &dead
            && end < dead.horizon()
            && !planted(Bug::OlderImage)
        {
            lacks_durable(io, superblock, dead, end, findings).await?;
        }
        if let Some(dead) = dead {
            end = salvage(io, superblock, dead, end, &mut redo, &mut recovered).await?;
        }
        redo.write_home().await?;
        redo.list_unsettled(superblock);
        recovered.journal_pages = end - tail;
        recovered.home_pages = redo.redone_pages;
        recovered.data = std::mem::take(&mut redo.data);
        io.flush().await?;
    }
    superblock.epoch = superblock.epoch.saturating_add(1);
    superblock.tail = end;
    superblock.state = next.state;
    superblock.opening = next.opening;
    match next.memo {
        Some(memo) => superblock.set_memo(memo),
        None => superblock.forget_memo(),
    }
    io.write_superblocks(superblock).await?;
    Ok(recovered)
}

/// The journal ends before the point up to which a dead process knew it to be durable: either the
/// image is older than the process, or the device damaged a page. Damage is a finding of a repair,
/// which goes on with what the process left; an older image is refused.
async fn lacks_durable(
    io: &RawIo,
    superblock: &Superblock,
    dead: &Abandoned,
    end: u64,
    findings: Option<&mut Findings>,
) -> Result<()> {
    let volume = VolumeId(superblock.volume_id);
    let ring_pages = superblock.journal_pages;
    let mut missing = None;
    for lsn in end..dead.horizon() {
        let place = lsn % ring_pages;
        let page = io.read(JOURNAL_FIRST_PAGE + place, 1).await.ok();
        let page = page.as_ref().map(|page| page.as_slice());
        let header = page.and_then(|page| record::verify_page(&volume, ring_pages, place, page));
        if header.is_some_and(|header| header.epoch == superblock.epoch && header.lsn == lsn) {
            continue;
        }
        let never_written = page.is_some_and(|page| page.iter().all(|byte| *byte == 0));
        missing = Some((lsn, header.is_some() || never_written));
        break;
    }
    let (path, horizon) = (dead.path().display(), dead.horizon());
    let (lsn, is_older) = missing.unwrap_or((end, true));
    if is_older {
        let described = format!(
            "{}, in {path}; its journal was durable up to LSN {horizon}, the image's ends at {end}",
            dead.unsaved()
        );
        return Err(Error::with(Errno::OWNERDEAD, older(&described)));
    }
    let what = "it is damaged, and the process that was killed knew that it was durable";
    match findings {
        Some(findings) => {
            findings.add(journal_finding(lsn, what));
            Ok(())
        }
        None => Err(Error::with(
            Errno::UCLEAN,
            format!(
                "the journal can't be replayed from LSN {lsn} on: {what} (adit check --repair; unsaved data is in {path})"
            ),
        )),
    }
}

/// Pages of the ring that a closed superblock is held against.
const FIRST_PAGES: u64 = 16;

/// EUCLEAN for a superblock that says *closed* although a later opening wrote to the journal: the
/// device lost both superblocks of that. Its first page is where the closed one's tail is. A
/// superblock that wasn't closed is compared with all of the ring while that is replayed.
pub(crate) async fn superblock_is_newest(io: &RawIo, superblock: &Superblock) -> Result<()> {
    if superblock.state & STATE_CLEAN == 0 || planted(Bug::ClosedBelieved) {
        return Ok(());
    }
    let volume = VolumeId(superblock.volume_id);
    let ring_pages = superblock.journal_pages;
    let index = superblock.tail % ring_pages;
    let count = FIRST_PAGES.min(ring_pages - index);
    let pages = io.read(JOURNAL_FIRST_PAGE + index, count).await?;
    for (at, page) in (0..).zip(pages.as_slice().chunks_exact(PAGE_BYTES)) {
        let header = record::verify_page(&volume, ring_pages, index + at, page);
        let closed = (superblock.epoch, superblock.tail);
        if let Some(header) = header.filter(|header| (header.epoch, header.lsn) >= closed) {
            let what = format!(
                "the newest superblock is lost: the one that is left says that the volume was closed in epoch {}, \
                 but the journal goes on behind it, in epoch {}; copy the device before any repair",
                superblock.epoch, header.epoch
            );
            return Err(Error::with(Errno::UCLEAN, what));
        }
    }
    Ok(())
}

/// Makes room in the ring for `pages` more: takes home what was redone and moves the tail, within
/// the epoch.
async fn make_room(
    io: &RawIo,
    superblock: &mut Superblock,
    end: u64,
    pages: u64,
    redo: &mut Redo<'_>,
) -> Result<()> {
    if end + pages <= superblock.tail + superblock.journal_pages {
        return Ok(());
    }
    redo.write_home().await?;
    redo.list_unsettled(superblock);
    io.flush().await?;
    superblock.tail = end;
    io.write_superblocks(superblock).await
}

/// Writes the journal pages that a dead process had sealed but not written, then what its frames
/// hold beyond them, as it would have done; redoes both; answers the new end of the journal.
async fn salvage(
    io: &RawIo,
    superblock: &mut Superblock,
    dead: &mut Abandoned,
    mut end: u64,
    redo: &mut Redo<'_>,
    recovered: &mut Recovered,
) -> Result<u64> {
    let volume = VolumeId(superblock.volume_id);
    let ring_pages = superblock.journal_pages;
    let ring_end = superblock.tail + ring_pages;
    let path = dead.path().display().to_string();
    let say = |error: Error| error.context(format_args!("use what a dead process left in {path}"));
    let mut page = Box::new([0; PAGE_BYTES]);
    type NumberedPage = (u64, Box<[u8; PAGE_BYTES]>);
    let (mut transaction, mut payload): (Vec<NumberedPage>, Vec<u8>) = Default::default();
    for sealed in dead.journal_buffers() {
        dead.read(sealed.frame, &mut page).map_err(say)?;
        let header = record::verify_page(&volume, ring_pages, sealed.lsn % ring_pages, &page[..]);
        let Some(header) =
            header.filter(|header| header.epoch == superblock.epoch && header.lsn == sealed.lsn)
        else {
            if sealed.lsn < end {
                continue; // on the device already
            }
            let what = format!("the sealed journal page with LSN {} is damaged", sealed.lsn);
            return Err(say(Error::with(Errno::UCLEAN, what)));
        };
        let lsn = end + transaction.len() as u64;
        if header.lsn != lsn || header.transaction_lsn != end || lsn >= ring_end {
            continue; // on the device already, or incomplete
        }
        payload.extend_from_slice(record::payload(&header, &page[..]));
        transaction.push((lsn, page.clone()));
        if transaction.len() == header.transaction_pages as usize {
            write_journal(io, ring_pages, &transaction).await?;
            end += transaction.len() as u64;
            redo.apply(&payload).await?;
            recovered.transactions += 1;
            transaction.clear();
            payload.clear();
        }
    }
    let pending = dead.pending();
    if pending.is_empty() || planted(Bug::ForgottenPending) {
        return Ok(end);
    }
    let mut memory: Vec<Box<Page>> = Vec::new();
    let mut next_page = || {
        memory.push(Box::new(Page::zeroed()));
        memory.last_mut().map(|page| &mut **page as *mut Page)
    };
    let mut encoder = record::Encoder::new(&mut next_page);
    for frame in &pending {
        let mut content = Page::zeroed();
        dead.read(frame.frame, &mut content.0).map_err(say)?;
        // Superblocks and ring are nobody's frames, and a metadata page is where its key says.
        let state_page = JOURNAL_FIRST_PAGE + ring_pages;
        if !(state_page..superblock.volume_pages).contains(&frame.home)
            || frame.key.space == META_SPACE && frame.key.page != frame.home
        {
            let what = format!("a frame names page {}", frame.home);
            return Err(say(Error::with(Errno::UCLEAN, what)));
        }
        encode_page(
            &mut encoder,
            &volume,
            frame.home,
            frame.kind,
            frame.fresh,
            frame.granules,
            &content,
        )?;
    }
    let pages = encoder.finish(&volume, superblock.epoch, end, end);
    // It may have died while a checkpoint was about to make room.
    make_room(io, superblock, end, pages, redo).await?;
    let mut payload = Vec::new();
    let mut transaction = Vec::new();
    for (index, page) in memory.iter().enumerate() {
        let lsn = end + index as u64;
        if let Some(header) = record::verify_page(&volume, ring_pages, lsn % ring_pages, &page.0) {
            payload.extend_from_slice(record::payload(&header, &page.0));
        }
        transaction.push((lsn, Box::new(page.0)));
    }
    write_journal(io, ring_pages, &transaction).await?;
    redo.apply(&payload).await?;
    recovered.transactions += 1;
    Ok(end + pages)
}

async fn write_journal(
    io: &RawIo,
    ring_pages: u64,
    pages: &[(u64, Box<[u8; PAGE_BYTES]>)],
) -> Result<()> {
    // What the transaction refers to was written before it was sealed, perhaps not flushed.
    io.flush().await?;
    for (lsn, page) in pages {
        io.write(JOURNAL_FIRST_PAGE + lsn % ring_pages, &page[..], false)
            .await?;
    }
    io.flush().await
}

fn lost(epoch: u64, hole: Option<u64>, header: Option<JournalHeader>) -> Error {
    if let Some(header) = header.filter(|header| header.epoch > epoch) {
        return Error::with(
            Errno::UCLEAN,
            format!(
                "the journal holds epoch {}, but the superblock that is left is of epoch {epoch}: the newer one is \
                 damaged; copy the device before any repair",
                header.epoch
            ),
        );
    }
    let (hole, header) = (hole.unwrap_or(0), header.map_or(0, |header| header.lsn));
    Error::with(
        Errno::UCLEAN,
        format!(
            "the journal page with LSN {hole} is missing although page {header} proves that it was durable: \
             the device lost acknowledged writes; copy the device before any repair"
        ),
    )
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
