//! Checksums of data, on volumes that were made with them.
//!
//! Each group has its data's checksums behind its map, four bytes a page of the device. A checksum
//! is the CRC32C of the page *at home*, or 0: unknown, because newer bytes of the page are in the
//! journal, or were when the process died.
//!
//! ```text
//!   written home ──▶ fresh pages ──▶ the transaction that maps them has their checksums
//!   through the journal ──▶ the transaction makes the checksum 0 ──▶ checkpoint writes home, moves the tail
//!                                   ──▶ a later transaction has the checksum of what went home ("settling")
//! ```
//!
//! Invariants:
//! 1. A page with a checksum matches it. So it is never overwritten in place: data that goes home
//!    goes to fresh pages, or to places that nothing reads now or after a crash (unwritten, or
//!    beyond the valid size).
//! 2. A checksum becomes known again only when no redo record can change the page any more: the
//!    flushed tail has passed them. The checksum is that of the written bytes, even if the frame
//!    held more than was journaled.
//! 3. A transaction's checksums become visible before the rest of it (`Transaction::apply`): a
//!    process that dies in between leaves pages without a checksum, never with a wrong one.
//! 4. An operation that journals or frees a settling page removes it from the list.
//! 5. A superblock that moves the tail past the records of a page names the place of its checksum
//!    (`Superblock::unsettled`) until that is durable: after a crash in between, the data is read
//!    once more and gets its checksum then.
//!
//! Of several partitions, each settles the data of its own blobs, in whichever group that is. Data
//! that a crash left without a checksum is settled before a volume is divided.
//!
//! Why it is so, and what it costs: `docs/decisions/0013-data-checksums.md`.

use crate::commit::Transaction;
use crate::format::{CHECKSUMS_PER_PAGE, ChecksumPage, GROUP_PAGES, Page, PageKind};
use crate::metadata::page_view::is_metadata;
use crate::metadata::page_view::{corrupt, view as view_of, view_mut};
use crate::metadata::pages::{Pages, PagesRead, Stop};
use crate::metadata::space::{PageState, SpaceGeometry};
use crate::state::{Checksums, READING, is_place};
use crate::state::{ColdFuture, Store, Work};
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_block::Operation;
use smallvec::SmallVec;

/// The checksums of consecutive pages; none on a volume without them.
#[derive(Default, Debug)]
pub(crate) struct Sums(SmallVec<[u32; 8]>);

impl Sums {
    pub(crate) fn as_slice(&self) -> &[u32] {
        &self.0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn push(&mut self, sum: u32) {
        self.0.push(sum);
    }
}

/// The page of checksums at `place`, which was verified when it was loaded.
fn checked(place: u64, page: &ChecksumPage, geometry: &SpaceGeometry) -> Result<(), Stop> {
    let owner = page.header.owner;
    if is_place(geometry, place) && owner == (place - geometry.first_group) / GROUP_PAGES {
        Ok(())
    } else {
        Err(corrupt(
            place,
            format_args!("says that it has checksums of group {owner}"),
        ))
    }
}

/// Checks that the page at `place`, which can be loaded, is the page of checksums that belongs
/// there.
pub(crate) fn check(
    pages: &impl PagesRead,
    geometry: &SpaceGeometry,
    place: u64,
) -> Result<(), Stop> {
    let page = view_of::<ChecksumPage>(pages.page(place, PageKind::Checksums)?);
    checked(place, page, geometry)
}

/// Calls `f` with the places of the checksums of `pages` pages of data from `first` on: page, first
/// index, count.
fn places(
    geometry: &SpaceGeometry,
    first: u64,
    pages: usize,
    mut f: impl FnMut(u64, usize, usize) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let mut done = 0;
    while done < pages {
        let Some((place, index)) = geometry.checksum_place(first + done as u64) else {
            let what = "has no checksum: no data can be there";
            return Err(corrupt(first + done as u64, what));
        };
        let count = (CHECKSUMS_PER_PAGE - index).min(pages - done);
        f(place, index, count)?;
        done += count;
    }
    Ok(())
}

impl Transaction<'_> {
    /// The checksum of a page of data as this transaction sees it; 0: not known.
    fn checksum(&self, page: u64) -> Result<u32, Stop> {
        let geometry = self.geometry();
        let Some((place, index)) = geometry.checksum_place(page) else {
            return Ok(0);
        };
        let content = view_of::<ChecksumPage>(self.page(place, PageKind::Checksums)?);
        checked(place, content, &geometry)?;
        Ok(content.sums[index])
    }

    /// Stages the checksums of consecutive pages of data.
    pub(crate) fn set_checksums(&mut self, first: u64, sums: &[u32]) -> Result<(), Stop> {
        if planted(Bug::StaleChecksum) {
            return Ok(());
        }
        let geometry = self.geometry();
        let mut left = sums;
        places(&geometry, first, sums.len(), |place, index, count| {
            let page = view_mut::<ChecksumPage>(self.page_mut(place, PageKind::Checksums)?);
            checked(place, page, &geometry)?;
            let (now, later) = left.split_at(count);
            page.sums[index..index + count].copy_from_slice(now);
            left = later;
            self.note_checksums(place);
            Ok(())
        })
    }

    /// The page's newest bytes go through the journal: its checksum is not known.
    pub(crate) fn forget_checksum(&mut self, page: u64) -> Result<(), Stop> {
        if self.has_checksums() && self.checksum(page)? != 0 {
            self.set_checksums(page, &[0])
        } else {
            Ok(())
        }
    }
}

impl Store {
    /// The checksums of pages of data. None: it took time, in which the data may have moved; the
    /// caller looks at the map again.
    pub(crate) async fn sums(&self, first: u64, pages: u32) -> Result<Option<Sums>> {
        if self.checksums.is_none() || planted(Bug::UnverifiedRead) {
            return Ok(Some(Sums::default()));
        }
        let geometry = *self.space.borrow().geometry();
        self.view_at_once(|view| {
            let mut sums = Sums::default();
            places(&geometry, first, pages as usize, |place, index, count| {
                let page = view_of::<ChecksumPage>(view.page(place, PageKind::Checksums)?);
                checked(place, page, &geometry)?;
                sums.0.extend_from_slice(&page.sums[index..index + count]);
                Ok(())
            })?;
            Ok(sums)
        })
        .await
    }

    /// True if these bytes match the checksum of page `first + index`, or if it is unknown.
    pub(crate) fn matches(&self, first: u64, index: usize, sums: &Sums, bytes: &[u8]) -> bool {
        match sums.0.get(index) {
            None | Some(0) => true,
            Some(sum) => *sum == self.whole.volume.data_checksum(first + index as u64, bytes),
        }
    }

    /// The error for data that doesn't match its checksum.
    pub(crate) fn mismatch(&self, slot: u64, page: u32, home: u64) -> Error {
        let offset = u64::from(page) * PAGE_BYTES as u64;
        let error = Error::with(
            Errno::IO,
            format!(
                "read blob {slot} at offset {offset} (device page {home}): the device returned other bytes than were written, their checksum does not match"
            ),
        );
        tracing::error!(volume = %self.reactor.name(), %error);
        error
    }

    fn stay_without(&self, error: &Error) {
        let volume = self.reactor.name();
        tracing::warn!(%volume, %error, "pages of data stay without a checksum");
    }

    /// Begins to settle in the background, if there is anything to do.
    pub(crate) fn spawn_settle(&self) {
        let Some(checksums) = &self.checksums else {
            return;
        };
        let has_open = || self.whole.unsettled.has_open(self.partition);
        if self.whole.closing.is_set() || (checksums.is_settled() && !has_open()) {
            return;
        }
        let store = self.clone();
        self.reactor.spawn_local(async move {
            // The failure that made the volume read-only was reported before.
            if let Err(error) = store.settle().await
                && store.writable().is_ok()
            {
                store.stay_without(&error);
            }
        });
    }

    /// True if no checksum of this partition's data is to become known.
    pub(crate) fn is_settled(&self) -> bool {
        (self.checksums.as_ref()).is_none_or(Checksums::is_settled)
    }

    /// Records the checksums that are settling, of all partitions.
    pub(crate) async fn settle_all(&self) -> Result<()> {
        if self.checksums.is_some() {
            for partition in self.numbers() {
                self.ask(partition, Work::Settle).await?;
            }
        }
        Ok(())
    }

    /// Records the checksums that are settling, of this partition.
    pub(crate) fn settle(&self) -> ColdFuture<'_, Result<()>> {
        Box::pin(async {
            let Some(checksums) = &self.checksums else {
                return Ok(());
            };
            while checksums.running.get() {
                checksums.ended.wait().await;
            }
            checksums.running.set(true);
            let result = self.settle_own(checksums).await;
            checksums.running.set(false);
            checksums.ended.notify_all();
            result
        })
    }

    /// Reads the data that has no checksum in a page of them, after a crash.
    async fn find_missing(&self, checksums: &Checksums, place: u64) -> Result<()> {
        let geometry = *self.space.borrow().geometry();
        let group = ((place - geometry.first_group) / GROUP_PAGES) as u32;
        let part = place - geometry.map_page(group) - 1;
        let first = geometry.map_page(group) + part * CHECKSUMS_PER_PAGE as u64;
        let store = self;
        let mut missing = store
            .view(|view| {
                let space = self.space.borrow();
                let page = view_of::<ChecksumPage>(view.page(place, PageKind::Checksums)?);
                checked(place, page, &geometry)?;
                let mut missing = Vec::new();
                for (page, sum) in (first..).zip(&page.sums) {
                    if *sum == 0
                        && geometry.position(page).is_some()
                        && space.page_state(view, page)? == PageState::Used
                    {
                        missing.push(page);
                    }
                }
                Ok(missing)
            })
            .await?;
        // A running checkpoint alone knows the live pages.
        while self.leading().journal.checkpointing.get() {
            self.writable()?;
            self.wait_until_committed().await?;
        }
        // In one step with the look at live pages: an operation that journals one of them later
        // removes it.
        let live = self.changes.live_homes(&self.cache);
        {
            let mut settling = checksums.settling.borrow_mut();
            missing.retain(|page| !live.contains(page) && !settling.contains_key(page));
            settling.extend(missing.iter().map(|page| (*page, READING)));
        }
        let mut content = Box::new(Page::zeroed());
        for page in missing {
            let mut request = self.request(Operation::Read, page);
            request.buffers.push(self.pool.get(PAGE_BYTES)?);
            let completion = self.reactor.submit(request).await;
            let mut settling = checksums.settling.borrow_mut();
            if settling.get(&page) != Some(&READING) {
                continue; // it was changed meanwhile
            }
            settling.remove(&page);
            if completion.result.is_ok() {
                (content.0).copy_from_slice(completion.request.buffers[0].as_slice());
                if !is_metadata(&self.whole.volume, page, &content) {
                    let sum = self.whole.volume.data_checksum(page, &content.0);
                    settling.insert(page, sum);
                }
            }
        }
        Ok(())
    }

    async fn settle_own(&self, checksums: &Checksums) -> Result<()> {
        loop {
            self.writable()?;
            let unknown = checksums.unknown.borrow_mut().pop();
            if let Some(place) = unknown
                && let Err(error) = self.find_missing(checksums, place).await
            {
                self.stay_without(&error);
                checksums.forget_reading();
            }
            let batch = checksums.some();
            if batch.is_empty() && checksums.unknown.borrow().is_empty() {
                // Durable at once: until then a crash means reading the settled pages once more.
                let point = self.whole.progress.point();
                if !checksums.taking_home.get() {
                    self.whole.unsettled.settled(self.partition, point);
                }
                return self.commit_through(point).await;
            }
            match self.settle_batch(checksums, &batch).await {
                Err(error) if is_damage(&error) => {
                    self.stay_without(&error);
                    self.settle_each(checksums, &batch).await?;
                }
                settled => settled?,
            }
        }
    }

    /// Settles pages of which some have unreadable metadata: where checksums can't be read, none
    /// can be set.
    async fn settle_each(&self, checksums: &Checksums, batch: &[(u64, u32)]) -> Result<()> {
        for one in batch.chunks(1) {
            match self.settle_batch(checksums, one).await {
                Err(error) if is_damage(&error) => checksums.forget(one),
                settled => settled?,
            }
        }
        Ok(())
    }

    async fn settle_batch(&self, checksums: &Checksums, batch: &[(u64, u32)]) -> Result<()> {
        self.transact_upkeep(|txn| {
            let space = self.space.borrow();
            for (page, sum) in batch {
                // Recovery doesn't know the kinds of pages.
                if space.avoids(*page) || space.page_state(txn, *page)? != PageState::Used {
                    continue;
                }
                let current = checksums.settling.borrow().get(page) == Some(sum);
                if current && txn.checksum(*page)? == 0 {
                    txn.set_checksums(*page, &[*sum])?;
                }
            }
            Ok(())
        })
        .await?;
        // In one step with the application.
        checksums.forget(batch);
        Ok(())
    }

    /// Settles what a crash left, before the volume is divided: later, each partition knows only
    /// its own blobs. What can't be settled stays without a checksum.
    pub(crate) async fn settle_before_division(&self) -> Result<()> {
        let (Err(error), Some(checksums)) = (self.settle().await, &self.checksums) else {
            return Ok(());
        };
        self.writable()?;
        self.stay_without(&error);
        checksums.forget_all();
        Ok(())
    }
}

/// Metadata on the device is lost, which costs the data that it is about.
fn is_damage(error: &Error) -> bool {
    matches!(error.errno(), Errno::UCLEAN | Errno::IO)
}
