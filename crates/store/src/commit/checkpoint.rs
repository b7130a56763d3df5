//! Checkpoints: write journaled pages home, then move the tail.
//!
//! ```text
//!  commit (LSN X, images from here on) -> write home in slices -> flush -> superblocks with tail X, durable
//!                                                                             -> frames clean, frees usable
//! ```
//!
//! Invariants:
//! 1. A metadata page goes home as its image at X: the frame itself while it is unchanged since,
//!    the image that `Images::save` kept otherwise. So nothing goes home before its record
//!    is durable.
//! 2. The tail moves only after a flush that covers every home write, and counts only when both
//!    superblocks are durable (`flushed_tail`).
//! 3. A page that is freed meanwhile still goes home, with its old content
//!    (`Images::remove_freed`): the transaction that frees it comes after X and may be lost.
//! 4. A data page with live bytes goes home as it is while no transaction after X changed it, else
//!    as its image when the first one did: unsynced bytes in it are data, which may reach the
//!    device at any time, but those of a transaction may be part of an atomic write. It stays live
//!    until the tail has moved.

use crate::cache::{FrameFlags, FrameKey};
use crate::format::superblock;
use crate::format::{ALGORITHM_CRC32C, Page, PageKind, STATE_TAKING_OVER, SUPERBLOCK_PAGES};
use crate::journal::DataSums;
use crate::state::{ColdFuture, Store, Work};
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_block::{Buffer, Operation};
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Homes of pages and which pages they are, least first. Sorting them would take half a millisecond
/// at once for ten thousand.
type Homes = BinaryHeap<Reverse<(u64, FrameKey)>>;

/// Pages written home by one request at most.
const RUN_PAGES_MAX: usize = 64;
/// Pages that are copied before other tasks get their turn: a caller that arrives meanwhile waits.
const SLICE_PAGES: usize = 16;
const SLICE_COPIES: usize = 4;

impl Store {
    /// Starts a checkpoint in the background.
    pub(crate) fn spawn_checkpoint(&self) {
        let store = self.clone();
        self.reactor.spawn_local(async move {
            if store.whole.closing.is_set() {
                return; // makes the last one itself
            }
            // A failure has already made the volume read-only.
            let _ = store.run_checkpoint().await;
        });
    }

    /// Runs checkpoints until everything applied when this was called is home and the tail has
    /// passed it.
    pub(crate) async fn checkpoint_all(&self) -> Result<()> {
        if self.lead.is_none() {
            return self.ask(0, Work::Checkpoint).await;
        }
        let target = self.whole.progress.point();
        loop {
            self.run_checkpoint().await?;
            // The checkpoint that it waited for may have begun long before.
            if self.whole.progress.commits.home() >= target.0 {
                return Ok(());
            }
        }
    }

    /// Runs a checkpoint, or waits for the one that runs, which may have begun before the latest
    /// transactions: see [`Store::checkpoint_all`].
    pub(crate) fn run_checkpoint(&self) -> ColdFuture<'_, Result<()>> {
        Box::pin(self.checkpoint_or_wait())
    }

    async fn checkpoint_or_wait(&self) -> Result<()> {
        let journal = &self.leading().journal;
        let durable = self.whole.progress.commits.durable();
        while journal.checkpointing.get() {
            self.writable()?;
            self.wait_until_committed().await?;
            // The checkpoint that ran may have begun long ago: commits since then are in the
            // journal only.
            if !journal.checkpointing.get() && self.whole.progress.commits.home() >= durable {
                return self.writable();
            }
        }
        journal.checkpointing.set(true);
        let result = self.checkpoint_once().await;
        journal.end_images();
        if result.is_err() {
            // The pages that it has taken home are as live as before.
            for partition in self.numbers() {
                self.ask(partition, Work::EndHome(None)).await.ok();
            }
        }
        journal.checkpointing.set(false);
        if let Err(error) = &result {
            self.fail(error.clone());
        }
        journal.committed.notify_all();
        (self.upcalls.start_settling)(self);
        result
    }

    async fn checkpoint_once(&self) -> Result<()> {
        assert!(
            self.leading().journal.checkpointing.get(),
            "one checkpoint at a time"
        );
        self.look_for_others().await?;
        let journal = &self.leading().journal;
        // The next commit begins the images: a checkpoint that waits for a turn might never get
        // one.
        journal.want_images();
        let (tail, commit) = loop {
            self.writable()?;
            match journal.images_as_of() {
                // Everything sealed before the images began is durable.
                Some((lsn, commit)) if self.whole.progress.commits.durable() >= commit => {
                    break (lsn, commit);
                }
                None if journal.may_commit(&self.whole.progress) => self.commit_open().await?,
                _ => self.wait_until_committed().await?,
            }
        };
        self.move_tail(tail, commit).await?;
        for partition in self.numbers() {
            self.ask(partition, Work::EndHome(Some(tail))).await?;
        }
        Ok(())
    }

    /// Takes home what is live before `tail`, which is then that of the superblocks.
    async fn move_tail(&self, tail: u64, commit: u64) -> Result<()> {
        for partition in self.numbers() {
            self.ask(partition, Work::TakeHome(tail)).await?;
        }
        if !planted(Bug::TailBeforeHome) {
            self.flush_home(self.whole.home_writes.note()).await?;
        }
        if planted(Bug::UnflushedTail) {
            self.whole.progress.ring.advance_flushed_tail(tail);
            self.whole.progress.commits.pass_home(commit);
            self.release_all_frees().await?;
        }
        self.write_superblocks(tail, 0).await?;
        self.whole.progress.ring.advance_flushed_tail(tail);
        self.whole.progress.commits.pass_home(commit);
        Ok(())
    }

    /// A checkpoint that has taken pages of this partition home has ended. `passed`: the LSN that
    /// the tail has passed; after a failure none.
    pub(crate) async fn end_home(&self, passed: Option<u64>) {
        let (keys, sums) = self.changes.at_home.take();
        match passed {
            None => self.changes.live.borrow_mut().extend(keys),
            Some(tail) => {
                for (index, key) in keys.into_iter().enumerate() {
                    self.end_live(key, tail, &sums);
                    self.end_slice(index + 1, SLICE_PAGES).await;
                }
                self.release_frees();
                self.frame_idle.notify_all();
            }
        }
        self.changes.images.stop();
        if let Some(checksums) = &self.checksums {
            checksums.taking_home.set(false);
            if self.partition != 0 && passed.is_some() {
                (self.upcalls.start_settling)(self);
            }
        }
    }

    /// Writes home the pages of this partition with live bytes before `tail`, and keeps their keys
    /// for [`Store::end_home`], with the checksums of the data among them.
    pub(crate) async fn take_home(&self, tail: u64) -> Result<()> {
        if let Some(checksums) = &self.checksums {
            checksums.taking_home.set(true);
        }
        let mut homes = self.take_live(tail).await;
        let mut keys = Vec::with_capacity(homes.len());
        match self.write_home(tail, &mut homes, &mut keys).await {
            Ok(sums) => {
                self.changes.at_home.replace((keys, sums));
                Ok(())
            }
            Err(error) => {
                let left = homes.into_iter().map(|Reverse((_, key))| key);
                let mut live = self.changes.live.borrow_mut();
                live.extend(keys.into_iter().chain(left));
                Err(error)
            }
        }
    }

    /// Takes the pages with live bytes before `tail` off the journal's list. While a checkpoint
    /// runs, it alone knows the live pages.
    async fn take_live(&self, tail: u64) -> Homes {
        let live = std::mem::take(&mut *self.changes.live.borrow_mut());
        let mut homes = Homes::with_capacity(live.len());
        for (index, key) in live.into_iter().enumerate() {
            if let Some(frame) = self.cache.find(key) {
                match self.cache.first_lsn(frame) {
                    0 => {}
                    first if first < tail => {
                        homes.push(Reverse((self.cache.home(frame), key)));
                    }
                    _ => self.changes.live.borrow_mut().push(key),
                }
            }
            self.end_slice(index + 1, SLICE_PAGES).await;
        }
        homes
    }

    /// Lets others have a turn after each `slice` of steps.
    async fn end_slice(&self, steps: usize, slice: usize) {
        if steps.is_multiple_of(slice) {
            self.reactor.yield_now().await;
        }
    }

    /// The tail has passed the page of `key`: it is no longer live, or live from the tail on if it
    /// changed since.
    fn end_live(&self, key: FrameKey, tail: u64, sums: &DataSums) {
        let Some(frame) = self.cache.find(key) else {
            return;
        };
        if self.cache.first_lsn(frame) == 0 {
            return;
        }
        if self.cache.pending(frame) == 0 && self.cache.last_lsn(frame) < tail {
            self.cache.clear(frame, FrameFlags::JOURNALED);
            self.cache.set_lsns(frame, 0, 0);
            if let Some((home, sum)) = sums.get(&key)
                && let Some(checksums) = &self.checksums
                && self.cache.home(frame) == *home
            {
                checksums.settle(*home, *sum);
            }
        } else {
            self.cache.set_lsns(frame, tail, self.cache.last_lsn(frame));
            self.changes.live.borrow_mut().push(key);
        }
    }

    /// Writes the pages of `homes` as they were at the checkpoint's commit, at `tail`; they are in
    /// `keys` afterwards. Answers the checksums of the data among them, and where it went.
    async fn write_home(
        &self,
        tail: u64,
        homes: &mut Homes,
        keys: &mut Vec<FrameKey>,
    ) -> Result<DataSums> {
        let mut sums = DataSums::new();
        let mut steps = 0;
        while !homes.is_empty() {
            let mut buffers: SmallVec<[Buffer; 4]> = SmallVec::new();
            let mut first = 0;
            while let Some(Reverse((_, key))) = homes.peek()
                && buffers.len() < RUN_PAGES_MAX
            {
                let key = *key;
                steps += 1;
                self.end_slice(steps, SLICE_COPIES).await;
                // Listed twice, or freed meanwhile, or freed and written again: it may not even
                // have a place, or one at home for bytes of a transaction that isn't durable yet.
                let frame = (self.cache.find(key)).filter(|frame| {
                    keys.last() != Some(&key)
                        && self.cache.has(*frame, FrameFlags::JOURNALED)
                        && (1..tail).contains(&self.cache.first_lsn(*frame))
                });
                let Some(frame) = frame else {
                    homes.pop();
                    continue;
                };
                let home = self.cache.home(frame);
                if buffers.is_empty() {
                    first = home;
                } else if home != first + buffers.len() as u64 {
                    break;
                }
                homes.pop();
                keys.push(key);
                let kind = self.cache.kind(frame);
                let image = self.changes.images.take(home);
                self.unsettle_place(home, kind);
                buffers.push(match image.filter(|_| !planted(Bug::MetadataHomeEarly)) {
                    Some(image) => self.home_buffer(home, image.kind, &image.page)?,
                    None if kind == PageKind::Data as u8 => {
                        let buffer = self.cache.buffer(frame);
                        let sum = self.sum_of(home, buffer.as_slice());
                        sums.extend(sum.map(|sum| (self.cache.key(frame), (home, sum))));
                        buffer
                    }
                    None => self.home_buffer(home, kind, self.cache.page(frame))?,
                });
            }
            if buffers.is_empty() {
                continue;
            }
            self.write_pages(first, buffers).await.map_err(|errno| {
                Error::with(errno, format!("write metadata home at page {first}"))
            })?;
        }
        // More may be freed while these are written.
        loop {
            let orphans = self.changes.images.take_orphans();
            if orphans.is_empty() {
                return Ok(sums);
            }
            for (home, image) in orphans {
                self.unsettle_place(home, image.kind);
                let mut buffers = SmallVec::new();
                buffers.push(self.home_buffer(home, image.kind, &image.page)?);
                self.write_pages(home, buffers).await.map_err(|errno| {
                    Error::with(errno, format!("write a freed page home at page {home}"))
                })?;
            }
        }
    }

    /// A page of this kind goes home, and the tail is about to pass its records.
    fn unsettle_place(&self, home: u64, kind: u8) {
        if self.checksums.is_some() && kind == PageKind::Data as u8 {
            let space = self.space.borrow();
            (self.whole.unsettled).note(self.partition, space.geometry(), home);
        }
    }

    /// Keeps checkpoints, and with them other writes of the superblock, away until
    /// [`Store::release_superblock`]: never are both superblocks being written at once.
    pub(crate) async fn hold_superblock(&self) -> Result<()> {
        while self.leading().journal.checkpointing.get() {
            self.writable()?;
            self.wait_until_committed().await?;
        }
        self.leading().journal.checkpointing.set(true);
        Ok(())
    }

    /// Ends the hold of [`Store::hold_superblock`].
    pub(crate) fn release_superblock(&self) {
        self.leading().journal.checkpointing.set(false);
        self.leading().journal.committed.notify_all();
    }

    /// Fails the volume if the superblocks on the device are not those of this opening, or if the
    /// image was truncated. Locks keep other processes of this machine away, but not another machine
    /// that shares the device or the file, nor a program that makes another file system there. A
    /// superblock that can't be read says nothing.
    pub(crate) async fn look_for_others(&self) -> Result<()> {
        self.look_at_size()?;
        let Some(lead) = &self.lead else {
            return self.ask(0, Work::LookForOthers).await;
        };
        let mut request = self.request(Operation::Read, SUPERBLOCK_PAGES[0]);
        let Ok(buffer) = self.pool.get(2 * PAGE_BYTES) else {
            return Ok(()); // at the next look
        };
        request.buffers.push(buffer);
        let completion = self.reactor.submit(request).await;
        let (Ok(()), Some(pages)) = (completion.result, completion.request.buffers.first()) else {
            return Ok(());
        };
        let (first, second) = pages.as_slice().split_at(PAGE_BYTES);
        if !superblock::is_of_others([first, second], &lead.superblock.borrow()) {
            return Ok(());
        }
        let what = "write to the volume: its superblock is not the one that this opening wrote. Another process or machine has opened or overwritten it, or the device lost a write";
        let error = Error::with(Errno::STALE, what);
        self.fail(error.clone());
        Err(error)
    }

    /// Writes the next superblock with this tail to both places, durably, one after the other. The
    /// caller holds the superblock, and relies on it only afterwards. Refused once anything has
    /// failed: another task's flush may have lost the caller's writes, and a device reports that
    /// only once.
    pub(crate) async fn write_superblocks(&self, tail: u64, state: u32) -> Result<()> {
        assert!(
            self.leading().journal.checkpointing.get(),
            "never are both superblocks being written at once"
        );
        {
            let mut superblock = self.leading().superblock.borrow_mut();
            superblock.tail = tail;
            if self.checksums.is_some() {
                let durable = self.whole.progress.commits.durable();
                superblock.unsettled = self.whole.unsettled.listed(durable);
            }
            // Until all data of dead processes is written, any superblock keeps that state.
            superblock.state = state | superblock.state & STATE_TAKING_OVER;
        }
        let times = if planted(Bug::OneSuperblock) {
            1
        } else {
            SUPERBLOCK_PAGES.len()
        };
        for _ in 0..times {
            self.writable()?;
            let (page, place) = {
                let mut superblock = self.leading().superblock.borrow_mut();
                superblock.sequence += 1;
                let place = SUPERBLOCK_PAGES[(superblock.sequence % 2) as usize];
                (superblock::encode(&mut superblock), place)
            };
            let mut buffers = SmallVec::new();
            buffers.push(self.image_buffer(&page)?);
            self.write_durably(place, buffers, || "write the superblock".into())
                .await?;
        }
        let sequence = self.leading().superblock.borrow().sequence;
        self.for_all_frames(|frames| frames.header().set_sequence(sequence));
        Ok(())
    }

    /// A copy of a page with its checksum, if it has one, brought up to date.
    fn home_buffer(&self, home: u64, kind: u8, page: &Page) -> Result<Buffer> {
        let mut buffer = self.image_buffer(page)?;
        if page.0[4] == ALGORITHM_CRC32C && PageKind::number_has_header(kind) {
            let bytes = buffer.try_mut().expect("a new buffer is unique");
            let crc = self.whole.volume.checksum(home, bytes, 0);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
        }
        Ok(buffer)
    }

    /// A DMA-able copy of a page.
    pub(crate) fn image_buffer(&self, page: &Page) -> Result<Buffer> {
        let mut buffer = self.pool.get(page.0.len())?;
        buffer
            .try_mut()
            .expect("a new buffer is unique")
            .copy_from_slice(&page.0);
        Ok(buffer)
    }
}
