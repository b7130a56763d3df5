//! Redo: bytes of records become pages at home.
//!
//! Redo is physical: every record is bytes of a device page, applied in LSN order to the page at
//! home, so it is idempotent and may be interrupted anywhere.

use super::raw_io::{RawIo, SCAN_PAGES};
use super::replay::Recovered;
use super::scan::Step;
use crate::format::geometry::SpaceGeometry;
use crate::format::record::{self, Change};
use crate::format::superblock::{self, Layout, geometry};
use crate::format::{Page, Superblock, VolumeId};
use crate::metadata::page_view::is_metadata;
use adit_base::{Errno, PAGE_BYTES, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Pages held in memory while redoing; more are written home in between.
const REDO_PAGES_MAX: usize = 8192;

/// Pages being redone.
pub(super) struct Redo<'a> {
    io: &'a RawIo,
    volume: VolumeId,
    geometry: SpaceGeometry,
    pages: BTreeMap<u64, Box<Page>>,
    /// LSN behind the last transaction that was redone.
    pub(super) end: u64,
    pub(super) recovered: Recovered,
}

impl<'a> Redo<'a> {
    pub(super) fn of(io: &'a RawIo, superblock: &Superblock) -> Redo<'a> {
        Redo {
            io,
            volume: VolumeId(superblock.volume_id),
            geometry: geometry(&Layout::of(superblock), superblock.cluster_pages),
            pages: BTreeMap::new(),
            end: superblock.tail,
            recovered: Recovered::default(),
        }
    }

    /// Redoes the transaction of `journal_pages` pages that begins at `end`. EUCLEAN if it can't be
    /// decoded: then `end` stays.
    pub(super) async fn apply(&mut self, payload: &[u8], journal_pages: u64) -> Result<()> {
        self.fetch(payload).await?;
        record::decode(payload, self.geometry.volume_pages, &mut |record| {
            let page = self.pages.get_mut(&record.page).expect("fetched above");
            match record.change {
                Change::Bytes(bytes) => {
                    page.0[record.offset..record.offset + bytes.len()].copy_from_slice(bytes)
                }
                Change::Zero(len) => page.0[record.offset..record.offset + len].fill(0),
            }
            Ok(())
        })?;
        self.end += journal_pages;
        self.recovered.transactions += 1;
        self.recovered.journal_pages += journal_pages;
        if self.pages.len() > REDO_PAGES_MAX {
            self.write_home().await
        } else {
            Ok(())
        }
    }

    /// Acts on a step of a scan as far as possible. Returns the LSN and the error of a transaction
    /// that an opening would refuse.
    pub(super) async fn try_step(&mut self, step: Step) -> Result<Option<(u64, String)>> {
        match step {
            Step::GoOn => Ok(None),
            Step::Redo { payload, pages } => match self.apply(&payload, pages).await {
                Err(error) if error.errno() == Errno::UCLEAN => {
                    Ok(Some((self.end, error.what().to_owned())))
                }
                redone => redone.map(|()| None),
            },
            Step::Lost { lsn, .. } => {
                let what = "it is missing or damaged, and later pages prove that it was there";
                Ok(Some((lsn, what.to_owned())))
            }
        }
    }

    /// Reads the pages that the payload changes: reading needs awaits, and decoding takes a
    /// closure. A page that the payload zeroes first isn't read.
    async fn fetch(&mut self, payload: &[u8]) -> Result<()> {
        let mut missing = BTreeMap::new();
        record::decode(payload, self.geometry.volume_pages, &mut |record| {
            if !self.pages.contains_key(&record.page) {
                let is_zeroed = record.change == Change::Zero(PAGE_BYTES);
                missing.entry(record.page).or_insert(is_zeroed);
            }
            Ok(())
        })?;
        for (page, is_zeroed) in missing {
            let mut copy = Box::new(Page::zeroed());
            if !is_zeroed {
                let content = self.io.read(page, 1).await?;
                copy.0.copy_from_slice(&content.as_slice()[..PAGE_BYTES]);
            }
            self.pages.insert(page, copy);
        }
        Ok(())
    }

    pub(super) async fn write_home(&mut self) -> Result<()> {
        let pages = std::mem::take(&mut self.pages);
        if pages.is_empty() {
            return Ok(());
        }
        // The ring's content must become durable: a dead process's last write may be in the
        // device's cache only.
        self.io.flush().await?;
        self.recovered.home_pages += pages.len() as u64;
        let mut run: Vec<u8> = Vec::new();
        let mut first = 0;
        for (page, content) in pages {
            self.note_data(page, &content);
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
        self.io.write(first, &run, false).await
    }

    fn note_data(&mut self, page: u64, content: &Page) {
        if self.geometry.checksum_place(page).is_none() {
            return;
        }
        let data = &mut self.recovered.data;
        if is_metadata(&self.volume, page, content) {
            data.remove(&page)
        } else {
            let sum = self.volume.data_checksum(page, &content.0);
            data.insert(page, sum)
        };
    }

    /// Names in a superblock that moves the tail where the data that was taken home has its
    /// checksums.
    pub(super) fn list_unsettled(&self, superblock: &mut Superblock) {
        if self.recovered.data.is_empty() {
            return;
        }
        let (places, more) = superblock::places_of(&superblock.unsettled);
        let redone = self.recovered.data.keys();
        let redone = redone.filter_map(|page| Some(self.geometry.checksum_place(*page)?.0));
        let places: BTreeSet<u64> = places.into_iter().chain(redone).collect();
        superblock.unsettled = superblock::list_of(places.into_iter(), more);
    }
}
