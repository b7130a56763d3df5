//! A repair's treatment of a journal that an opening refuses. The replay itself is in
//! `recovery/replay.rs`.

use super::scan::{header_at, runs};
use super::{Finding, FindingKind, Findings};
use crate::format::{JOURNAL_FIRST_PAGE, STATE_CLEAN, Superblock};
use crate::recovery::RawIo;
use adit_base::Result;
use std::collections::BTreeMap;

pub(crate) fn journal_finding(lsn: u64, what: &str) -> Finding {
    Finding::new(
        FindingKind::Journal,
        format!("the journal can't be replayed from LSN {lsn} on: {what}"),
        "later acknowledged changes are lost",
        "the volume returns to its state before that, and contradictions are resolved",
    )
}

pub(crate) fn healed_finding(place: u64) -> Finding {
    Finding::new(
        FindingKind::Journal,
        "one flipped bit in a page of the journal",
        "the volume could not be opened, or acknowledged changes were lost",
        "the bit is corrected",
    )
    .at_page(JOURNAL_FIRST_PAGE + place)
}

/// Compares the ring with the superblock that is left. If a newer one is lost, the epoch and the
/// tail that it had, as far as the ring tells: the first page of its epoch, or of the unbroken run
/// of pages that ends at the highest horizon.
pub(crate) async fn find_tail(
    io: &RawIo,
    superblock: &mut Superblock,
    findings: &mut Findings,
) -> Result<()> {
    let mut epoch = superblock.epoch;
    let mut pages: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for (index, count) in runs(superblock.journal_pages, 0) {
        let read = io.pages(JOURNAL_FIRST_PAGE + index, count).await;
        for (place, page) in (index..).zip(read) {
            let header = page.and_then(|page| header_at(superblock, place, &page.0));
            let Some(header) = header.filter(|header| header.epoch >= epoch) else {
                continue;
            };
            if header.epoch > epoch {
                epoch = header.epoch;
                pages.clear();
            }
            pages.insert(header.lsn, (header.transaction_lsn, header.horizon));
        }
    }
    let newer = epoch > superblock.epoch;
    let unclean = superblock.state & STATE_CLEAN == 0;
    let after_clean = !unclean && pages.range(superblock.tail..).next().is_some();
    if !newer && !after_clean {
        return Ok(());
    }
    // The unbroken run that ends where the journal is known to be durable. Beyond, a commit may be
    // there without its predecessor.
    let horizons = pages.values().map(|(_, horizon)| *horizon);
    let mut start = horizons.max().unwrap_or(superblock.tail);
    while start > 0 && pages.contains_key(&(start - 1)) {
        start -= 1;
    }
    while pages.get(&start).is_some_and(|(first, _)| *first != start) {
        start += 1;
    }
    if newer {
        superblock.tail = start;
    }
    superblock.epoch = epoch;
    superblock.state &= !STATE_CLEAN;
    findings.add(Finding::new(
        FindingKind::Superblock,
        format!("the newest superblock is lost: the journal goes on behind the one that is left, in epoch {epoch}"),
        "the volume could not be opened",
        format!("the journal is replayed from LSN {} on", superblock.tail),
    ));
    Ok(())
}
