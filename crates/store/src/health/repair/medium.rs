//! The device as a repair sees it: pages that are read one by one and believed only when they
//! verify.
//!
//! A page with one flipped bit is corrected on the way ([`heal`]): it is written back in place,
//! which changes one sector. All other writing is collected in [`Changes`], whose order makes a
//! repair restartable.

use crate::format::geometry::SpaceGeometry;
use crate::format::heal::heal;
use crate::format::{ChecksumPage, Page, PageKind, VolumeId};
use crate::metadata::page_view::{header, view_mut};
use crate::recovery::RawIo;
use crate::recovery::{Finding, FindingKind, Findings};
use adit_base::hash::HashKey;
use adit_base::{Errno, Error, Result};
use std::collections::BTreeMap;
use std::ops::Range;

/// Pages that one request reads where many are read in a row.
pub(super) const RUN_PAGES: u64 = 64;

/// The kind, owner and level that a page must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Expected {
    pub(super) kind: PageKind,
    pub(super) level: u8,
    pub(super) owner: u64,
}

/// A raw volume.
pub(super) struct Medium<'a> {
    pub(super) io: &'a RawIo,
    pub(super) volume: VolumeId,
    pub(super) hash_key: HashKey,
    pub(super) geometry: SpaceGeometry,
    pub(super) findings: Findings,
}

impl Medium<'_> {
    /// Calls `f` with all pages of a range that can be read.
    pub(super) async fn each(&self, pages: Range<u64>, f: &mut dyn FnMut(u64, &Page)) {
        for first in pages.clone().step_by(RUN_PAGES as usize) {
            let count = RUN_PAGES.min(pages.end - first);
            for (page, content) in (first..).zip(self.io.pages(first, count).await) {
                if let Some(content) = content {
                    f(page, &content);
                }
            }
        }
    }

    /// True if the page has its checksum.
    pub(super) fn verifies(&self, page: u64, content: &Page) -> bool {
        header(content).crc == self.volume.checksum(page, &content.0, 0)
    }

    /// A metadata page that is as expected, or its defect.
    pub(super) async fn metadata(
        &mut self,
        page: u64,
        expected: Expected,
    ) -> Result<Box<Page>, String> {
        let content = self.io.page(page).await;
        self.judge(page, content, expected).await
    }

    /// A metadata page that was read, as [`Medium::metadata`].
    pub(super) async fn judge(
        &mut self,
        page: u64,
        content: Option<Box<Page>>,
        expected: Expected,
    ) -> Result<Box<Page>, String> {
        let Some(mut content) = content else {
            return Err("it can't be read".into());
        };
        let healed = !self.verifies(page, &content) && heal(&self.volume, page, &mut content.0, 0);
        if !self.verifies(page, &content) {
            return Err(if content.0.iter().all(|byte| *byte == 0) {
                "it is all zeroes".into()
            } else {
                "its checksum does not match".into()
            });
        }
        let found = header(&content);
        let (kind, level, owner) = (found.kind, found.level, found.owner);
        if kind != expected.kind as u8 || level != expected.level || owner != expected.owner {
            return Err(format!(
                "it is a page of kind {kind} and level {level} that belongs to {owner}, not of kind {} and level {} of {}",
                expected.kind as u8, expected.level, expected.owner
            ));
        }
        if healed {
            let finding = Finding::new(
                FindingKind::of_page(expected.kind),
                "one flipped bit",
                "the page could not be used",
                "the bit is corrected",
            );
            let owner = (expected.owner != 0 && expected.kind != PageKind::GroupMap)
                .then_some(expected.owner);
            let finding = match owner {
                Some(owner) => finding.of_slot(owner),
                None => finding,
            };
            self.findings.add(finding.at_page(page));
            self.write(page, &content)
                .await
                .map_err(|error| error.to_string())?;
        }
        Ok(content)
    }

    /// Writes a page in place, now.
    pub(super) async fn write(&self, page: u64, content: &Page) -> Result<()> {
        self.io
            .write(page, &content.0, false)
            .await
            .map_err(|error| error.context("repair"))
    }

    /// Gives a page with a header its checksum.
    pub(super) fn seal(&self, page: u64, content: &mut Page) {
        let crc = self.volume.checksum(page, &content.0, 0);
        content.0[..4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Accepts the data in these pages: it has no checksum from now on.
    pub(super) async fn forget_checksums(&self, pages: impl Iterator<Item = u64>) -> Result<()> {
        let mut open: Option<(u64, Box<Page>)> = None;
        for page in pages {
            let Some((place, index)) = self.geometry.checksum_place(page) else {
                continue;
            };
            if open.as_ref().is_none_or(|(known, _)| *known != place) {
                if let Some((place, content)) = open.take() {
                    self.write(place, &content).await?;
                }
                // One that can't be believed is made anew in the end, without any.
                let found = self.io.page(place).await;
                open = found
                    .filter(|content| self.verifies(place, content))
                    .map(|content| (place, content));
            }
            if let Some((place, content)) = &mut open {
                view_mut::<ChecksumPage>(content).sums[index] = 0;
                self.seal(*place, content);
            }
        }
        if let Some((place, content)) = open {
            self.write(place, &content).await?;
        }
        self.io.flush().await
    }

    /// Writes changes: first pages that nothing refers to yet, then the slots that switch over.
    pub(super) async fn apply(&self, changes: Changes) -> Result<()> {
        // The checksums at the copies of data are those of the old content.
        self.forget_checksums(changes.fresh.keys().copied()).await?;
        for (page, content) in &changes.fresh {
            self.write(*page, content).await?;
        }
        self.io.flush().await?;
        for (page, content) in &changes.slots {
            self.write(*page, content).await?;
        }
        self.io.flush().await
    }
}

impl FindingKind {
    fn of_page(kind: PageKind) -> FindingKind {
        match kind {
            PageKind::State => FindingKind::State,
            PageKind::GroupMap => FindingKind::GroupMap,
            PageKind::NameLeaf => FindingKind::Directory,
            PageKind::Xattrs => FindingKind::Attributes,
            PageKind::Slots => FindingKind::Slot,
            PageKind::Inner | PageKind::ExtentLeaf | PageKind::Data => FindingKind::Map,
            PageKind::Checksums => FindingKind::Checksums,
        }
    }
}

/// The pages and slots that a round of repair writes.
#[derive(Default)]
pub(super) struct Changes {
    /// Pages that nothing refers to.
    pub(super) fresh: BTreeMap<u64, Box<Page>>,
    /// Slot pages; each changed slot is a sector and can't tear.
    pub(super) slots: BTreeMap<u64, Box<Page>>,
}

/// No page is left for the repair.
pub(super) fn no_space() -> Error {
    Error::with(Errno::NOSPC, "repair: there is no free page")
}
