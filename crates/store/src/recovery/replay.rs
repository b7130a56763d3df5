//! Recovery: from the two superblocks and the ring back to the last durable transaction.
//!
//! ```text
//!   superblock -> scan from the tail -> redo, in order -> flush -> superblock with new tail and new epoch
//! ```
//!
//! Two drivers act on the verdicts (on the ring: `scan.rs`; on a dead process's journal:
//! [`Replay::lack`]). [`recover`] refuses a contradiction to the superblock. [`recover_leniently`],
//! for a repair, reports it and replays as far as possible.
//!
//! The new tail and the new epoch are written in one superblock, so pages beyond an old hole never
//! join on.

use super::finding::Findings;
use super::raw_io::RawIo;
use super::redo::Redo;
use super::scan::{Scan, Step, header_at, runs};
use super::tail::{find_tail, healed_finding, journal_finding};
use crate::cache::ledger::{Ledger, unfolded};
use crate::cache::{Abandoned, FrameId, FrameKey, META_SPACE};
use crate::format::memo::Memo;
use crate::format::record;
use crate::format::superblock::{Layout, geometry};
use crate::format::{JOURNAL_FIRST_PAGE, JournalHeader, STATE_CLEAN, Superblock, VolumeId};
use crate::format::{Page, PageKind, StatePage};
use crate::journal::encode_page;
use crate::recovery::older;
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use std::collections::BTreeMap;
use zerocopy::FromBytes;

/// The result of a recovery.
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

/// The new epoch's fields of the superblock.
pub(crate) struct Next {
    pub(crate) state: u32,
    pub(crate) opening: u64,
    pub(crate) memo: Option<Memo>,
}

/// Replays the journal of `superblock` and begins a new epoch, which `superblock` then has. `dead`
/// is the memory of a process of this boot that had the volume open in the superblock's epoch:
/// recovery first finishes its journal writes, so that the rest is as after a crash.
pub(crate) async fn recover(
    io: &RawIo,
    superblock: &mut Superblock,
    dead: Option<&Abandoned>,
    next: Next,
) -> Result<Recovered> {
    superblock_is_newest(io, superblock).await?;
    let mut replay = Replay::of(io, superblock);
    if replay.superblock.state & STATE_CLEAN == 0 {
        replay.replay_ring().await?;
        if let Some((_, refusal)) = replay.lack(dead).await {
            return Err(refusal);
        }
        replay.finish(dead).await?;
    }
    replay.begin_epoch(next).await
}

/// Recovers for a repair: problems that an opening would refuse go to `findings`.
pub(crate) async fn recover_leniently(
    io: &RawIo,
    superblock: &mut Superblock,
    dead: Option<&Abandoned>,
    next: Next,
    findings: &mut Findings,
) -> Result<Recovered> {
    find_tail(io, superblock, findings).await?;
    let mut replay = Replay::of(io, superblock);
    if replay.superblock.state & STATE_CLEAN == 0 {
        replay.replay_ring_leniently(findings).await?;
        match replay.lack(dead).await {
            Some((lsn, refusal)) if refusal.errno() == Errno::UCLEAN => {
                findings.add(journal_finding(lsn, KNOWN_DURABLE));
            }
            Some((_, refusal)) => return Err(refusal),
            None => {}
        }
        replay.finish(dead).await?;
    }
    replay.begin_epoch(next).await
}

const KNOWN_DURABLE: &str =
    "it is damaged, and the process that was killed knew that it was durable";

struct Replay<'a> {
    io: &'a RawIo,
    superblock: &'a mut Superblock,
    redo: Redo<'a>,
}

impl<'a> Replay<'a> {
    fn of(io: &'a RawIo, superblock: &'a mut Superblock) -> Replay<'a> {
        Replay {
            io,
            redo: Redo::of(io, superblock),
            superblock,
        }
    }

    async fn replay_ring(&mut self) -> Result<()> {
        let mut scan = Scan::of(self.superblock);
        for (first, count) in runs(self.superblock.journal_pages, self.superblock.tail) {
            let pages = self.io.read(JOURNAL_FIRST_PAGE + first, count).await?;
            for (place, page) in (first..).zip(pages.as_slice().chunks_exact(PAGE_BYTES)) {
                match scan.judge(place, page) {
                    Step::GoOn => {}
                    Step::Redo { payload, pages } => self.redo.apply(&payload, pages).await?,
                    Step::Lost { refusal, .. } => return Err(refusal),
                }
            }
        }
        Ok(())
    }

    async fn replay_ring_leniently(&mut self, findings: &mut Findings) -> Result<()> {
        let mut scan = Scan::of(self.superblock);
        for (first, count) in runs(self.superblock.journal_pages, self.superblock.tail) {
            let pages = self.io.pages(JOURNAL_FIRST_PAGE + first, count).await;
            for (place, page) in (first..).zip(pages) {
                let mut page = page.unwrap_or_else(|| Box::new(Page::zeroed()));
                if scan.heal(place, &mut page.0) {
                    findings.add(healed_finding(place));
                }
                let step = scan.judge(place, &page.0);
                if let Some((lsn, what)) = self.redo.try_step(step).await? {
                    findings.add(journal_finding(lsn, &what));
                    scan.end_at(lsn);
                }
            }
        }
        Ok(())
    }

    /// The first page missing in the ring that a dead process knew to be durable: its LSN, and the
    /// error for an opening. UCLEAN: the device damaged it. OWNERDEAD: the image is older than the
    /// process.
    async fn lack(&self, dead: Option<&Abandoned>) -> Option<(u64, Error)> {
        let end = self.redo.end;
        let dead = dead.filter(|dead| end < dead.horizon() && !planted(Bug::OlderImage))?;
        let (path, horizon) = (dead.path().display(), dead.horizon());
        for lsn in end..horizon {
            let page = self.io.read(self.place(lsn), 1).await.ok();
            let page = page.as_ref().map(|page| page.as_slice());
            let header = page.and_then(|page| header_at(self.superblock, lsn, page));
            if header.is_some_and(|header| self.is_current(&header, lsn)) {
                continue;
            }
            let never_written = page.is_some_and(|page| page.iter().all(|byte| *byte == 0));
            if header.is_some() || never_written {
                break;
            }
            let what = format!(
                "the journal can't be replayed from LSN {lsn} on: {KNOWN_DURABLE} (adit check --repair; unsaved data is in {path})"
            );
            return Some((lsn, Error::with(Errno::UCLEAN, what)));
        }
        let described = format!(
            "{}, in {path}; its journal was durable up to LSN {horizon}, the image's ends at {end}",
            dead.unsaved()
        );
        Some((end, Error::with(Errno::OWNERDEAD, older(&described))))
    }

    /// Continues the journal with a dead process's pages, and writes home all redone pages.
    async fn finish(&mut self, dead: Option<&Abandoned>) -> Result<()> {
        if let Some(dead) = dead {
            self.continue_with_sealed(dead).await?;
            self.continue_with_pending(dead).await?;
        }
        self.take_home().await
    }

    async fn take_home(&mut self) -> Result<()> {
        self.redo.write_home().await?;
        self.redo.list_unsettled(self.superblock);
        self.io.flush().await
    }

    async fn begin_epoch(self, next: Next) -> Result<Recovered> {
        let superblock = self.superblock;
        superblock.epoch = superblock.epoch.saturating_add(1);
        superblock.tail = self.redo.end;
        superblock.state = next.state;
        superblock.opening = next.opening;
        match &next.memo {
            Some(memo) => superblock.set_memo(memo),
            None => superblock.forget_memo(),
        }
        self.io.write_superblocks(superblock).await?;
        Ok(self.redo.recovered)
    }

    /// Writes the journal pages that a dead process had sealed but not written, as it would have
    /// done, and redoes them.
    async fn continue_with_sealed(&mut self, dead: &Abandoned) -> Result<()> {
        let ring_end = self.superblock.tail + self.superblock.journal_pages;
        let mut transaction: Vec<Box<Page>> = Vec::new();
        for sealed in dead.journal_buffers() {
            let page = read_left(dead, sealed.frame)?;
            let header = header_at(self.superblock, sealed.lsn, &page.0);
            let end = self.redo.end;
            let Some(header) = header.filter(|header| self.is_current(header, sealed.lsn)) else {
                if sealed.lsn < end {
                    continue; // on the device already
                }
                let what = format!("the sealed journal page with LSN {} is damaged", sealed.lsn);
                return Err(unusable(dead, Error::with(Errno::UCLEAN, what)));
            };
            let lsn = end + transaction.len() as u64;
            if header.lsn != lsn || header.transaction_lsn != end || lsn >= ring_end {
                continue; // on the device already, or incomplete
            }
            transaction.push(page);
            if transaction.len() == header.transaction_pages as usize {
                self.write_and_redo(&transaction).await?;
                transaction.clear();
            }
        }
        Ok(())
    }

    /// Seals the changes in a dead process's frames beyond its journal pages, and redoes them.
    async fn continue_with_pending(&mut self, dead: &Abandoned) -> Result<()> {
        let state_page = Layout::of(self.superblock).state_page;
        let state = self.unfolded_state(dead, state_page)?;
        let mut pending = dead.pending();
        // That of other partitions is folded.
        pending.retain(|frame| {
            let is_state = frame.key == FrameKey::meta(state_page);
            !is_state || frame.part == 0 && state.is_none()
        });
        if pending.is_empty() && state.is_none() || planted(Bug::ForgottenPending) {
            return Ok(());
        }
        let volume = VolumeId(self.superblock.volume_id);
        let (end, ring_pages) = (self.redo.end, self.superblock.journal_pages);
        // Superblocks and ring are never in frames, and a metadata page lies at the address of its
        // key.
        let places = JOURNAL_FIRST_PAGE + ring_pages..self.superblock.volume_pages;
        let mut transaction: Vec<Box<Page>> = Vec::new();
        let mut next_page = || {
            transaction.push(Box::new(Page::zeroed()));
            transaction.last_mut().map(|page| &mut **page as *mut Page)
        };
        let mut encoder = record::Encoder::new(&mut next_page);
        if let Some(state) = &state {
            let kind = PageKind::State as u8;
            encode_page(
                &mut encoder,
                &volume,
                state_page,
                kind,
                false,
                u64::MAX,
                state,
            )?;
        }
        for frame in &pending {
            let (home, key, kind) = (frame.home, frame.key, frame.kind);
            if !places.contains(&home) || key.space == META_SPACE && key.page != home {
                let what = format!("a frame names page {home}");
                return Err(unusable(dead, Error::with(Errno::UCLEAN, what)));
            }
            let content = read_left(dead, frame.frame)?;
            let (fresh, granules) = (frame.fresh, frame.granules);
            encode_page(&mut encoder, &volume, home, kind, fresh, granules, &content)?;
        }
        let pages = encoder.finish(&volume, self.superblock.epoch, end, end);
        // It may have died while a checkpoint was about to make room.
        if end + pages > self.superblock.tail + ring_pages {
            self.take_home().await?;
            self.superblock.tail = end;
            self.io.write_superblocks(self.superblock).await?;
        }
        self.write_and_redo(&transaction).await
    }

    /// The state page of a dead process that had several partitions, with the changes that only
    /// their ledgers have; None: there are no ledgers.
    fn unfolded_state(&self, dead: &Abandoned, place: u64) -> Result<Option<Box<Page>>> {
        let mut ledgers = Vec::new();
        for frame in dead.of_other_parts(place) {
            let page = read_left(dead, frame)?;
            let ledger = Ledger::read_from_bytes(&page.0).map_err(|_| Error::new(Errno::UCLEAN));
            ledgers.push(Box::new(ledger?));
        }
        if ledgers.is_empty() {
            return Ok(None);
        }
        // Of the device's page it isn't known whether a takeover that was killed has added them.
        let (frame, fold) = match (dead.of_first_part(place), dead.fold()) {
            (Some(frame), Some(fold)) => (frame, fold),
            _ => {
                let what = "it has ledgers, and not what they go with";
                return Err(unusable(dead, Error::with(Errno::UCLEAN, what)));
            }
        };
        let mut page = read_left(dead, frame)?;
        let state = StatePage::mut_from_prefix(&mut page.0);
        let (state, _) = state.map_err(|_| Error::new(Errno::UCLEAN))?;
        *state = unfolded(*state, &ledgers, fold);
        let bound = Layout::of(self.superblock);
        let layout = bound.with_pages(state.volume_pages.min(bound.volume_pages));
        let capacity = geometry(&layout, self.superblock.cluster_pages).capacity_pages();
        if state.free_pages > capacity {
            let what = "its ledgers count more free pages than the volume has";
            return Err(unusable(dead, Error::with(Errno::UCLEAN, what)));
        }
        Ok(Some(page))
    }

    /// Writes the pages of the next transaction to the ring, and redoes it.
    async fn write_and_redo(&mut self, transaction: &[Box<Page>]) -> Result<()> {
        let mut payload = Vec::new();
        // Data of the transaction was written before it was sealed, perhaps not flushed.
        self.io.flush().await?;
        for (lsn, page) in (self.redo.end..).zip(transaction) {
            if let Some(header) = header_at(self.superblock, lsn, &page.0) {
                payload.extend_from_slice(record::payload(&header, &page.0));
            }
            self.io.write(self.place(lsn), &page.0, false).await?;
        }
        self.io.flush().await?;
        self.redo.apply(&payload, transaction.len() as u64).await
    }

    fn place(&self, lsn: u64) -> u64 {
        JOURNAL_FIRST_PAGE + lsn % self.superblock.journal_pages
    }

    fn is_current(&self, header: &JournalHeader, lsn: u64) -> bool {
        header.epoch == self.superblock.epoch && header.lsn == lsn
    }
}

fn read_left(dead: &Abandoned, frame: FrameId) -> Result<Box<Page>> {
    let mut page = Box::new(Page::zeroed());
    let read = dead.read(frame, &mut page.0);
    read.map_err(|error| unusable(dead, error))?;
    Ok(page)
}

fn unusable(dead: &Abandoned, error: Error) -> Error {
    let path = dead.path().display();
    error.context(format_args!("use a dead process's data in {path}"))
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
    let index = superblock.tail % superblock.journal_pages;
    let count = FIRST_PAGES.min(superblock.journal_pages - index);
    let pages = io.read(JOURNAL_FIRST_PAGE + index, count).await?;
    for (place, page) in (index..).zip(pages.as_slice().chunks_exact(PAGE_BYTES)) {
        let header = header_at(superblock, place, page);
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
