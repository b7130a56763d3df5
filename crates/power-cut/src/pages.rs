//! A buffer pool's file: a commit overwrites one page, through the cache or directly, and calls
//! `fdatasync`.
//!
//! Each sector names the commit that wrote it. Verification: the file equals the result of commits
//! 1 to N, for some N, except that any sectors of commit N+1 may be there.

use crate::content::{mixed, stamp_of, stamped};
use crate::place::{File, Open, Place};
use crate::writer::{Opened, Outcome, Writer, last_of};

const PAGES: u64 = 64;
const PAGE_BYTES: usize = 4096;
const SECTOR_BYTES: usize = 512;
const NAME: &str = "pages";

/// The page that a commit overwrites.
fn page_of(number: u64) -> u64 {
    mixed(number) % PAGES
}

fn page(page: u64, number: u64) -> Vec<u8> {
    let sectors = (0..(PAGE_BYTES / SECTOR_BYTES) as u64)
        .map(|sector| stamped(tag(page, sector), number, SECTOR_BYTES));
    sectors.flatten().collect()
}

/// Tells a misplaced sector from an old one.
fn tag(page: u64, sector: u64) -> u64 {
    2 + (page << 32 | sector << 8)
}

struct Pages {
    cached: File,
    direct: File,
}

fn found(content: &[u8]) -> Outcome<u64> {
    if content.len() != PAGES as usize * PAGE_BYTES {
        return Err(format!("{NAME} has {} bytes", content.len()));
    }
    let mut stamps = Vec::new();
    for (page, bytes) in (0..).zip(content.chunks(PAGE_BYTES)) {
        let mut sectors = Vec::new();
        for (sector, bytes) in (0..).zip(bytes.chunks(SECTOR_BYTES)) {
            let stamp = stamp_of(tag(page, sector), bytes);
            sectors
                .push(stamp.ok_or(format!("page {page}: sector {sector} was never written so"))?);
        }
        stamps.push(sectors);
    }
    let newest = stamps.iter().flatten().copied().max().unwrap_or(0);
    let chooses = |number, page| page_of(number) == page;
    let mut is_whole = true;
    for (page, sectors) in (0..).zip(&stamps) {
        let before = last_of(page, newest.saturating_sub(1), chooses);
        for (sector, &stamp) in sectors.iter().enumerate() {
            if page == page_of(newest) && newest > 0 {
                is_whole &= stamp == newest;
                if stamp == newest {
                    continue;
                }
            }
            if stamp != before {
                return Err(format!(
                    "page {page}: sector {sector} is of commit {stamp} instead of {before}; the newest is {newest}"
                ));
            }
        }
    }
    Ok(if is_whole { newest } else { newest - 1 })
}

/// Verifies all pages.
pub(crate) fn open(place: &Place) -> Opened<'_> {
    let fresh: Vec<u8> = (0..PAGES).flat_map(|number| page(number, 0)).collect();
    place.ensure(NAME, &fresh)?;
    let found = found(&place.read(NAME)?)?;
    let writer = Pages {
        cached: place.file(NAME, Open::Existing)?,
        direct: place.file(NAME, Open::Direct)?,
    };
    Ok((Box::new(writer), found))
}

impl Writer for Pages {
    fn commit(&mut self, number: u64) -> Outcome {
        let target = page_of(number);
        let file = match mixed(number) >> 32 & 1 {
            0 => &self.cached,
            _ => &self.direct,
        };
        file.write_at(&page(target, number), target * PAGE_BYTES as u64)?;
        file.sync_data()
    }
}
