//! An opening up to its store: the superblock, the claim, and the mappings of earlier openings.
//!
//! ```text
//!  begin -> (claim_next -> recovery) -> start
//! ```
//!
//! `Store::open` and `Store::repair` (`open.rs`) decide about the steps in between.

use super::open::{build, frames_max, frames_min};
use super::partitions::check_options;
use crate::cache::{Claim, Purpose, SharedName, Survive, has_room_for, impossible};
use crate::format::memo::{Memo, Memory};
use crate::format::superblock::verify_writable;
use crate::format::{STATE_CLEAN, STATE_TAKING_OVER, Superblock};
use crate::recovery::{Findings, Last, Next, Predecessor, RawIo, Recovered, Resolution, Search};
use crate::recovery::{memo_of, resolve};
use crate::state::{CACHE_BYTES_MIN, Store, StoreOptions};
use adit_base::random::os_random_u64;
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, Result};
use adit_block::{Device, IdentityKind};

/// How often an opening begins again because the superblock changed meanwhile.
const BEGINNINGS_MAX: u32 = 10;

/// An opening that has begun.
pub(super) struct Begun<'a> {
    io: &'a RawIo,
    options: &'a StoreOptions,
    /// It takes nothing away: neither from the image nor from a mapping.
    looks: bool,
    pub(super) superblock: Box<Superblock>,
    /// True if the last opening closed the volume.
    was_closed: bool,
    /// Keeps others away until there is a mapping.
    claim: Option<Claim>,
    /// Of the epoch that this opening begins.
    next_claim: Option<Claim>,
    /// Where the data of that epoch survives.
    memo: Option<Memo>,
    pub(super) resolution: Resolution,
    last: Last,
    /// The volume is closed when all is taken over, and opened again: the mapping of this opening
    /// has no room beside those that it takes over, or it has several partitions, of which one
    /// alone takes over.
    pub(super) opens_again: bool,
}

/// Reads the superblock, claims the volume, decides about the mappings found, and checks that no
/// other process opened or closed the volume in another way meanwhile. `leniently`: returns the
/// problems of the superblocks.
pub(super) async fn begin<'a>(
    io: &'a RawIo,
    options: &'a StoreOptions,
    looks: bool,
    leniently: bool,
) -> Result<(Begun<'a>, Findings)> {
    for _ in 0..BEGINNINGS_MAX {
        let (superblock, findings) = io.superblock(leniently).await?;
        let begun = Begun::of(io, options, looks, superblock)?;
        let (again, _) = io.superblock(leniently).await?;
        let of = |superblock: &Superblock| (superblock.sequence, superblock.opening);
        if looks || of(&again) == of(&begun.superblock) {
            return Ok((begun, findings));
        }
    }
    let what = "another process keeps opening and closing the volume";
    Err(Error::with(Errno::BUSY, what))
}

impl<'a> Begun<'a> {
    fn of(
        io: &'a RawIo,
        options: &'a StoreOptions,
        looks: bool,
        superblock: Box<Superblock>,
    ) -> Result<Begun<'a>> {
        check_options(options)?;
        let device = io.reactor.device();
        let (purpose, claim) = if looks {
            (Purpose::Look, None)
        } else {
            let claim = make_claim(&OpeningName::of(&superblock), &**device, options)?;
            (Purpose::TakeOver, claim)
        };
        let search = Search {
            own: &options.shared_directory,
            takeover: options.takeover,
            purpose,
            claim: claim.as_ref().map(Claim::path),
        };
        let (found, last) = search.list(&superblock)?;
        let resolution = resolve(found, &superblock, &**device, options.takeover, purpose)?;
        last.check_copies(&resolution, options.takeover)?;
        Ok(Begun {
            io,
            options,
            looks,
            was_closed: superblock.state & STATE_CLEAN != 0,
            superblock,
            claim,
            next_claim: None,
            memo: None,
            resolution,
            last,
            opens_again: false,
        })
    }

    /// Would the mapping of this opening be smaller, or not be there, for lack of room beside the
    /// memory that it takes over or discards? Then that goes first.
    pub(super) fn decide_about_room(&mut self) {
        let directory = &self.options.shared_directory;
        let (max, min) = (frames_max(self.options), frames_min(self.options));
        let lacks_room = self.options.survive != Survive::Off
            && self.resolution.lies_on_that_of(directory)
            && !has_room_for(directory, max, min);
        let divides_later = self.options.partitions > 1 && !self.resolution.take.is_empty();
        self.opens_again = !self.looks && (lacks_room || divides_later);
    }

    /// True if there is nothing to recover.
    pub(super) fn needs_no_recovery(&self) -> bool {
        self.was_closed && self.resolution.take.is_empty()
    }

    /// Claims the epoch that recovery begins, before its superblock is on the device: no process
    /// finds it there without an owner.
    pub(super) fn claim_next(&mut self) -> Result<Next> {
        verify_writable(&self.superblock)?;
        let (state, opening) = if self.resolution.take.is_empty() {
            (0, os_random_u64())
        } else {
            (STATE_TAKING_OVER, self.superblock.opening)
        };
        let device = self.io.reactor.device();
        if self.claim.is_some() {
            let last = OpeningName::of(&self.superblock);
            let next = OpeningName {
                epoch: last.epoch + 1,
                opening,
                ..last
            };
            self.next_claim = make_claim(&next, &**device, self.options)?;
        }
        if !self.looks {
            let volume = self.io.reactor.name();
            self.resolution.tell_of_other_boots(volume);
            self.resolution.delete_obsolete()?;
            let survives = self.options.survive != Survive::Off && !self.opens_again;
            self.memo = self.next_memo(survives);
        }
        Ok(Next {
            state,
            opening,
            memo: self.memo.clone(),
        })
    }

    /// The memo of this opening, with the directories that it takes over from; None: the device is
    /// in memory, and dies with the process.
    fn next_memo(&self, survives: bool) -> Option<Memo> {
        let image = self.io.reactor.device().identity();
        let (own, others) = (
            &self.options.shared_directory,
            self.resolution.directories(),
        );
        (image.kind != IdentityKind::Unknown).then(|| memo_of(&image, own, survives, &others))
    }

    /// Logs the recovered data and the losses.
    pub(super) fn tell(&self, recovered: &Recovered) {
        let reactor = &self.io.reactor;
        (self.last).tell(&self.resolution, &**reactor.device(), self.looks);
        if recovered.transactions > 0 {
            tracing::info!(
                volume = %reactor.name(),
                transactions = recovered.transactions,
                journal_pages = recovered.journal_pages,
                home_pages = recovered.home_pages,
                "recovered"
            );
        }
    }

    /// Whose place this opening takes, after recovery.
    pub(super) fn predecessor(&self) -> Option<Predecessor> {
        match () {
            () if self.looks => None,
            () if self.was_closed => Some(Predecessor::closed(self.superblock.epoch - 1)),
            () => self.resolution.predecessor(self.superblock.tail),
        }
    }

    /// The store, with the data of dead processes. `recovered`: the result of recovery, if there
    /// was one.
    pub(super) async fn start(mut self, recovered: Option<Recovered>) -> Result<Store> {
        let store = self.build(recovered.is_none()).await?;
        if self.memo.is_some() {
            // With the directories of the takeover: its files are deleted after the superblock that
            // declares them obsolete.
            self.memo = self.next_memo(store.mapping.is_some());
        }
        // If this opening fails or is killed, the next one needs the dead processes' mappings, and
        // not a copy of them. Each attempt would leave another copy.
        store.frames.header().set_copy_of(self.resolution.seals());
        // The mapping guards the volume from here on; where there is none, the claim of this
        // opening does.
        if store.mapping.is_none() && !planted(Bug::UnclaimedOpening) {
            *store.leading().claim.borrow_mut() = self.next_claim.take();
        }
        drop((self.claim.take(), self.next_claim.take()));
        store.check_state().await?;
        store.settle_recovered(recovered.unwrap_or_default());
        if self.looks {
            *store.leading().unsaved.borrow_mut() = self.resolution.described();
        }
        match store
            .take_over(self.resolution, self.memo, self.looks)
            .await
        {
            Ok(()) => {}
            // Not that the volume is read-only since, if settling in the background met it first.
            Err(error) => return Err(store.whole.failure.get().cloned().unwrap_or(error)),
        }
        store.whole.read_only.set_to(self.options.read_only);
        if store.options.partitions > 1 && !store.options.read_only {
            store.divide().await?;
        }
        Ok(store)
    }

    async fn build(&self, plain: bool) -> Result<Store> {
        let without = StoreOptions {
            survive: Survive::Off,
            cache_bytes: CACHE_BYTES_MIN,
            partitions: 1,
            apart: false,
            ..self.options.clone()
        };
        let options = if self.opens_again {
            &without
        } else {
            self.options
        };
        let superblock = (*self.superblock).clone();
        let built = build(
            self.io.reactor.clone(),
            options,
            plain,
            superblock,
            self.io.pool.clone(),
        );
        if built.is_err() && self.memo.is_some() && self.resolution.take.is_empty() {
            self.say_unused().await;
        }
        built
    }

    /// Records in the superblock that this opening accepted nothing, so that the next one reports
    /// no loss. If the write fails, it will report one.
    async fn say_unused(&self) {
        let mut superblock = self.superblock.clone();
        if let Some(mut memo) = superblock.memo() {
            memo.memory = Memory::Unused;
            superblock.set_memo(&memo);
            if let Err(error) = self.io.write_superblocks(&mut superblock).await {
                tracing::debug!(%error, "could not note that this opening failed");
            }
        }
    }
}

/// An opening of a volume, as in the names of its mapping and claims.
pub(super) struct OpeningName {
    volume_id: u128,
    epoch: u64,
    opening: u64,
}

impl OpeningName {
    pub(super) fn of(superblock: &Superblock) -> OpeningName {
        OpeningName {
            volume_id: u128::from_le_bytes(superblock.volume_id),
            epoch: superblock.epoch,
            opening: superblock.opening,
        }
    }

    pub(super) fn name(&self, device: &dyn Device, options: &StoreOptions) -> SharedName {
        let name = device.name();
        SharedName {
            opening: self.opening,
            image: device.identity(),
            address: match device.identity().kind {
                IdentityKind::File | IdentityKind::Block => absolute(name),
                _ => name,
            },
            ..SharedName::new(&options.shared_directory, self.volume_id, self.epoch)
        }
    }
}

fn absolute(path: String) -> String {
    match std::path::absolute(&path) {
        Ok(absolute) => absolute.display().to_string(),
        Err(_) => path,
    }
}

/// Claims an opening, if the device has an identity. No other process has a device in memory.
fn make_claim(
    next: &OpeningName,
    device: &dyn Device,
    options: &StoreOptions,
) -> Result<Option<Claim>> {
    if device.identity().kind == IdentityKind::Unknown {
        return Ok(None);
    }
    match Claim::make(&next.name(device, options)) {
        Ok(claim) => Ok(Some(claim)),
        Err(error) if options.survive == Survive::Require => {
            let error = error.context("claim the opening, with two files of 4 KiB");
            Err(impossible(error, &options.shared_directory))
        }
        Err(error) => {
            tracing::warn!(
                volume = device.name(),
                %error,
                "nothing guards the volume against a second opening through another device"
            );
            Ok(None)
        }
    }
}
