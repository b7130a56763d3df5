//! Transactions: metadata changes that become visible together and durable together.
//!
//! A closure gets a [`Transaction`] and stages its changes in *shadows*, private copies of the
//! pages it changes: of whole pages, or of the 64-byte granules that it asks for. When it returns
//! `Ok`, [`Transaction::apply`] copies the granules that differ into the frames, marks them pending
//! and puts their pages on the open list; the journal later encodes exactly the pending granules
//! (`journal/`). When it stops, the shadows are thrown away.
//!
//! The first transaction of an operation with a receipt ([`Store::with_receipt`]) takes the
//! receipt, and notes in it the number of the decisive apply: the one after the checksums'.
//!
//! Invariants: a closure never awaits, so no other task sees or changes a page between its first
//! read and `apply`; `apply` can't fail; [`Transaction::abort`] rolls back the closure's
//! allocations; a transaction stages no more than it asked for.

use super::view::{Staged, id_of, loaded, place, resident, slot_at, slot_of, state};
use crate::blob::Blob;
use crate::cache::{
    Applied, AppliedUpTo, Edits, FrameFlags, FrameId, FrameKey, META_SPACE, OwnedCache,
};
use crate::format::BlobId;
use crate::format::{ALGORITHM_CRC32C, Page, PageKind, Slot, StatePage};
use crate::metadata::Need;
use crate::metadata::page_view::corrupt;
use crate::metadata::pages::{Pages, PagesRead, Stop};
use crate::metadata::space::{Mark, PageState, Run, Space, SpaceGeometry};
use crate::state::{Owners, RESERVE_PAGES, Receipt, Store};
use adit_base::simulation::{Bug, planted};
use adit_base::sync::atomic::Ordering;
use adit_base::{Errno, Error, SECTOR_BYTES, granules};
use smallvec::SmallVec;
use std::ops::Range;
use std::rc::Rc;
use zerocopy::{FromBytes, IntoBytes};

/// Staged changes; see the head of the file.
pub struct Transaction<'s> {
    store: &'s Store,
    owners: Owners<'s>,
    /// The partition whose copy of the state page is meant.
    ledger: u32,
    /// In the space of other partitions.
    marks: SmallVec<[(u32, Mark); 1]>,
    intent: Intent,
    freeing: bool,
    /// There was room for this need, or it waits for it.
    pub(super) admitted: Need,
    /// The need that it may use until it asks again.
    asked: Need,
    used: Need,
    /// It asks for another step whenever it has used up the last one. Otherwise its operations ask
    /// for all their needs.
    steps: bool,
    /// Changed pages: target frame and its shadow.
    shadows: SmallVec<[Shadow; 12]>,
    /// Blobs whose slots were changed.
    slots: SmallVec<[BlobId; 4]>,
    destroyed: SmallVec<[BlobId; 1]>,
    frees: SmallVec<[(Run, bool); 4]>,
    journaled: SmallVec<[(FrameId, u64, u64); 4]>,
    /// Changed pages of checksums.
    checksums: SmallVec<[u64; 4]>,
    /// Pages that it has claimed, where there are several partitions.
    claimed: u64,
    /// Pages that it takes which were promised.
    promised: u64,
    /// It folds ledgers: no page is taken or freed.
    folds: bool,
}

/// The purpose of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    Change,
    /// It frees space, or takes reserved space: it may use the pages kept back for that.
    Free,
    /// Write-back or the preparation of an atomic write, though it may run in a caller's task. It
    /// may use the pages kept back, and leaves the receipt of the caller's operation alone.
    Upkeep,
}

struct Shadow {
    key: FrameKey,
    target: FrameId,
    shadow: FrameId,
    /// The partition that has the page.
    partition: u32,
    /// The target was made for this transaction.
    new: bool,
}

impl Shadow {
    fn frames(&self) -> (FrameId, FrameId) {
        (self.target, self.shadow)
    }

    /// A metadata page of which nothing at home counts.
    fn is_fresh(&self) -> bool {
        self.new && self.key.space == META_SPACE
    }
}

/// An edit has become visible in a partition.
fn note_applied(store: &Store, shadow: &Shadow, applied: &Applied) {
    let open = &store.changes.open;
    open.count(applied.changed & !applied.was_pending);
    let listed = applied.was_pending != 0 || store.cache.has(applied.frame, FrameFlags::FRESH);
    if applied.changed != 0 && !listed {
        open.join(shadow.key, false);
    }
}

impl<'s> Transaction<'s> {
    /// One that begins with a step's need, or with none: then its operations ask.
    pub(super) fn new(
        store: &'s Store,
        owners: Owners<'s>,
        intent: Intent,
        need: Need,
        admitted: Need,
    ) -> Transaction<'s> {
        Transaction {
            store,
            owners,
            ledger: store.partition,
            marks: SmallVec::new(),
            intent,
            freeing: intent != Intent::Change,
            admitted,
            asked: need,
            used: Need::NONE,
            steps: need != Need::NONE,
            shadows: SmallVec::new(),
            slots: SmallVec::new(),
            destroyed: SmallVec::new(),
            frees: SmallVec::new(),
            journaled: SmallVec::new(),
            checksums: SmallVec::new(),
            claimed: 0,
            promised: 0,
            folds: false,
        }
    }

    /// One that only writes the sum of the ledgers.
    pub(super) fn to_fold(store: &'s Store, owners: Owners<'s>) -> Transaction<'s> {
        Transaction {
            folds: true,
            ..Transaction::new(store, owners, Intent::Upkeep, Need::STEP, Need::STEP)
        }
    }

    pub(crate) fn has_checksums(&self) -> bool {
        self.store.checksums.is_some()
    }

    pub(crate) fn geometry(&self) -> SpaceGeometry {
        *self.store.space.borrow().geometry()
    }

    /// The checksums in a page were changed.
    pub(crate) fn note_checksums(&mut self, page: u64) {
        if !self.checksums.contains(&page) {
            self.checksums.push(page);
        }
    }

    /// Sets whether the next changes may take the pages kept back for freeing space
    /// ([`crate::Store::transact_freeing`]). Returns the old setting.
    pub fn use_reserve(&mut self, freeing: bool) -> bool {
        std::mem::replace(&mut self.freeing, freeing)
    }

    /// Asks for the most that an operation stages until the next one asks. E2BIG: too much for any
    /// transaction.
    pub fn ask(&mut self, need: Need) -> Result<(), Stop> {
        let store = self.store;
        let group = if need.allocates {
            Need::pages(0, self.geometry().head_pages())
        } else {
            Need::NONE
        };
        // The copies of the state page that other partitions have.
        let ledgers = match self.owners.count() {
            1 => Need::NONE,
            count => Need::pages(count as usize - 1, 0),
        };
        self.asked = self.used + need + group + ledgers;
        if self.admitted.covers(&self.asked) {
            return Ok(());
        }
        self.admitted = self.asked;
        if !store.whole.progress.room.fits(&self.asked) {
            let what = "the operations are too many for one transaction";
            return Err(Error::with(Errno::TOOBIG, what).into());
        }
        let has_frames =
            |store: &Store| store.cache.available() + self.used.frames >= self.asked.frames;
        if has_frames(store)
            && self.owners.others().all(has_frames)
            && store.changes.open.has_room(&self.asked)
        {
            Ok(())
        } else {
            Err(Stop::Room)
        }
    }

    /// It is about to stage a page.
    fn use_room(&mut self, page: Need) -> Result<(), Stop> {
        self.used = self.used + page;
        if !self.asked.covers(&self.used) {
            assert!(self.steps, "operations ask for all that they stage");
            self.ask(Need::STEP)?;
        }
        Ok(())
    }

    /// The slot of a blob as this transaction sees it; ESTALE when it is gone.
    pub fn slot(&self, id: BlobId) -> Result<Slot, Stop> {
        self.slot_ref(id).copied()
    }

    /// The slot of a blob as staged, in place.
    pub fn slot_ref(&self, id: BlobId) -> Result<&Slot, Stop> {
        slot_of(&self.owners, self, id)
    }

    /// The blob whose slot is at this address, and the slot.
    pub fn slot_at(&self, address: u64) -> Result<(BlobId, Slot), Stop> {
        let slot = slot_at(&self.owners, self, address)?;
        Ok((id_of(address, slot), *slot))
    }

    /// The partition that has a blob, or would have it. The closure keeps no clone of it, nor of
    /// anything that it has: another worker's lock guards their counts.
    #[inline]
    pub fn partition_of(&self, id: BlobId) -> Result<&'s Store, Stop> {
        self.owners.of_page(place(id.slot).0)
    }

    /// The volume-state page.
    pub fn state(&self) -> Result<StatePage, Stop> {
        state(self.store, self)
    }

    /// Stages a blob's slot. The checksum is computed here.
    pub fn put(&mut self, id: BlobId, slot: Slot) -> Result<(), Stop> {
        let current = self.slot_ref(id)?;
        assert_eq!(current.kind, slot.kind, "a blob keeps its kind");
        self.write_slot(id, slot)
    }

    fn write_slot(&mut self, id: BlobId, mut slot: Slot) -> Result<(), Stop> {
        let (page, offset) = place(id.slot);
        slot.generation = id.generation;
        slot.algorithm = ALGORITHM_CRC32C;
        slot.crc = self
            .store
            .whole
            .volume
            .checksum(id.slot, slot.as_bytes(), 0);
        let sector = offset..offset + SECTOR_BYTES;
        let page = self.granules_mut(page, PageKind::Slots, granules(sector.clone()))?;
        page.0[sector].copy_from_slice(slot.as_bytes());
        if !self.slots.contains(&id) {
            self.slots.push(id);
        }
        Ok(())
    }

    /// Makes a blob: takes a slot and a generation for it.
    pub fn create(&mut self, slot: Slot) -> Result<BlobId, Stop> {
        self.create_in(self.store.partition, slot)
    }

    /// Makes a blob in a partition, or in another one if that has no room.
    pub fn create_in(&mut self, partition: u32, slot: Slot) -> Result<BlobId, Stop> {
        self.check_room(1)?;
        let (address, generation) = self.in_any(partition, Self::take_slot)?;
        let id = BlobId {
            slot: address,
            generation,
        };
        self.write_slot(id, slot)?;
        Ok(id)
    }

    /// A free slot of a partition, and the generation that its blob gets.
    fn take_slot(&mut self, partition: u32) -> Result<(u64, u32), Stop> {
        self.with_space(partition, |space, pages| {
            let address = space.take_slot(pages)?;
            let state = pages.state_mut()?;
            let generation = state.next_generation;
            state.next_generation = generation.wrapping_add(1).max(1);
            state.blobs = state.blobs.saturating_add(1);
            Ok((address, generation))
        })
    }

    /// Frees the slot of a blob. Its map must be empty.
    pub fn destroy(&mut self, id: BlobId) -> Result<(), Stop> {
        assert!(
            self.slot_ref(id)?.allocated_pages == 0,
            "a blob with pages is deleted by Store::delete"
        );
        let owner = self.owners.number(place(id.slot).0);
        let freed = self.with_space(owner, |space, pages| {
            let freed = space.free_slot(pages, id.slot)?;
            let state = pages.state_mut()?;
            state.blobs = state.blobs.checked_sub(1).unwrap_or_else(|| {
                tracing::error!("a blob was deleted where none was counted: run `adit check`");
                0
            });
            Ok(freed)
        })?;
        self.frees.extend(freed.map(|run| (run, true)));
        if !self.slots.contains(&id) {
            self.slots.push(id);
        }
        self.destroyed.push(id);
        Ok(())
    }

    /// Changes the volume-state page.
    pub fn update_state(&mut self, f: impl FnOnce(&mut StatePage)) -> Result<(), Stop> {
        f(self.state_mut()?);
        Ok(())
    }

    fn state_mut(&mut self) -> Result<&mut StatePage, Stop> {
        let place = self.store.layout.get().state_page;
        let page = self.granules_mut(place, PageKind::State, STATE_GRANULES)?;
        let (state, _) =
            StatePage::mut_from_prefix(&mut page.0).map_err(|_| Error::new(Errno::UCLEAN))?;
        Ok(state)
    }

    /// Records the blob that the layer above starts from.
    pub fn set_root(&mut self, id: BlobId) -> Result<(), Stop> {
        self.update_state(|state| (state.root, state.root_generation) = (id.slot, id.generation))
    }

    /// Records the hidden directory of unlinked inodes.
    pub fn set_orphans(&mut self, id: BlobId) -> Result<(), Stop> {
        self.update_state(|state| {
            (state.orphans, state.orphans_generation) = (id.slot, id.generation)
        })
    }

    /// ENOSPC unless `pages` more pages may be taken: those promised to cached writes and the
    /// reserve for deleting stay.
    pub(crate) fn check_room(&mut self, pages: u64) -> Result<(), Stop> {
        let reservations = &self.store.whole.reservations;
        let has_room = if self.owners.count() == 1 {
            let (free, pending) = (self.state()?.free_pages, self.store.changes.frees.pages());
            let room = if self.freeing {
                free.saturating_sub(pending)
            } else {
                reservations.available(free, pending)
            };
            room >= pages
        } else {
            let taken = -self.change_of_free() - self.promised as i64;
            let more = taken.max(0) as u64 + pages;
            let more = more.saturating_sub(self.claimed);
            let is_there = more == 0 || reservations.claim(more, self.freeing);
            self.claimed += if is_there { more } else { 0 };
            is_there
        };
        if has_room {
            Ok(())
        } else {
            Err(Error::with(Errno::NOSPC, "the volume is full").into())
        }
    }

    /// How many pages more are free as staged, in all partitions, where there are several.
    fn change_of_free(&self) -> i64 {
        let key = FrameKey::meta(self.store.layout.get().state_page);
        let ledgers = self.shadows.iter().filter(|shadow| shadow.key == key);
        let changes = ledgers.map(|shadow| {
            let cache = &self.owners.staged(shadow.partition).cache;
            cache.fill_shadow(shadow.shadow, STATE_GRANULES);
            let free = |frame| {
                let bytes = cache.bytes(frame, 0..size_of::<StatePage>());
                StatePage::ref_from_bytes(bytes).map_or(0, |state| state.free_pages)
            };
            free(shadow.shadow).wrapping_sub(free(shadow.target)) as i64
        });
        changes.sum()
    }

    /// So many of the pages that it takes were promised: that promise ends when it is applied.
    pub(crate) fn use_promise(&mut self, pages: u64) {
        self.promised += pages;
    }

    /// The claims of this transaction end, when it is applied with this change of the pages that
    /// are free and don't wait for a commit, or aborted.
    fn end_claims(&mut self, change: i64) {
        let change = change + std::mem::take(&mut self.claimed) as i64;
        if change != 0 {
            self.store.whole.reservations.note(change);
        }
    }

    /// Takes up to `want` pages for data near `near`, marked in the map at once.
    pub(crate) fn take_data(&mut self, near: u64, want: u32) -> Result<Run, Stop> {
        let run = self.take_uncommitted(near, want)?;
        self.commit_run(run)?;
        Ok(run)
    }

    /// Takes up to `want` pages near `near` in memory only; [`Transaction::commit_run`] records it.
    pub(crate) fn take_uncommitted(&mut self, near: u64, want: u32) -> Result<Run, Stop> {
        self.take_near(self.store.partition, near, want)
    }

    /// Takes pages in a partition, or in another one if that has no room.
    fn take_near(&mut self, partition: u32, near: u64, want: u32) -> Result<Run, Stop> {
        self.in_any(partition, |this, other| {
            let near = if other == partition { near } else { 0 };
            this.with_space(other, |space, pages| space.take(pages, near, want))
        })
    }

    /// Takes something in a partition, or in the next one that has room.
    fn in_any<T>(
        &mut self,
        partition: u32,
        take: impl Fn(&mut Self, u32) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        let mut taken = take(self, partition);
        for other in 0..self.owners.count() {
            match &taken {
                Err(Stop::Fail(error)) if error.errno() == Errno::NOSPC => {}
                _ => break,
            }
            if other != partition {
                taken = take(self, other);
            }
        }
        taken
    }

    /// Makes the map of the next group, in the partition that has it.
    pub(super) fn make_group(&mut self, group: u32) -> Result<(), Stop> {
        if self.state()?.groups_initialized > group {
            return Ok(()); // another task has
        }
        self.with_group(group, |space, pages| space.initialize_group(pages, group))?;
        self.update_each_state(|state| state.groups_initialized = group + 1)
    }

    /// Changes a group's space, in the partition that has it.
    pub(crate) fn with_group<T>(
        &mut self,
        group: u32,
        f: impl FnOnce(&mut Space, &mut Self) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        let owner = self.store.division.get().owner(group);
        self.with_space(owner, f)
    }

    /// Changes each partition's copy of the state page.
    pub(crate) fn update_each_state(&mut self, f: impl Fn(&mut StatePage)) -> Result<(), Stop> {
        for partition in 0..self.owners.count() {
            self.ledger = partition;
            let updated = self.update_state(&f);
            self.ledger = self.store.partition;
            updated?;
        }
        Ok(())
    }

    /// Changes the space of a partition, and with it that partition's copy of the state page.
    #[inline]
    fn with_space<T>(
        &mut self,
        partition: u32,
        f: impl FnOnce(&mut Space, &mut Self) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        let home = self.store;
        if partition == home.partition {
            return f(&mut home.space.borrow_mut(), self);
        }
        let other = self.owners.of(partition)?;
        let mut space = other.space.borrow_mut();
        if self.marks.iter().all(|(marked, _)| *marked != partition) {
            self.marks.push((partition, space.mark()));
        }
        self.ledger = partition;
        let result = f(&mut space, self);
        self.ledger = home.partition;
        result
    }

    /// Marks a run that was taken earlier (outside of any transaction) as used.
    pub(crate) fn commit_run(&mut self, run: Run) -> Result<(), Stop> {
        let owner = self.owners.number(run.page);
        self.with_space(owner, |space, pages| {
            space.commit(pages, run, PageState::Used)
        })
    }

    /// Frees a run. `journaled`: redo records may still name its pages, so that it can be used
    /// again only when the flushed tail has passed them.
    pub(crate) fn free_run(&mut self, run: Run, journaled: bool) -> Result<(), Stop> {
        let owner = self.owners.number(run.page);
        self.with_space(owner, |space, pages| space.free(pages, run))?;
        self.frees.push((run, journaled));
        Ok(())
    }

    /// When applied, the granules `mask` of data frame `frame` go through the journal to device
    /// page `home`.
    pub(crate) fn journal_data(&mut self, frame: FrameId, home: u64, mask: u64) {
        self.journaled.push((frame, home, mask));
    }

    /// Stages a page of data, zeroes if none is cached. Returns its index for
    /// [`Transaction::data_mut`]. Changes go through the journal to the frame's home.
    pub(crate) fn stage_data(&mut self, key: FrameKey) -> Result<usize, Stop> {
        let cache = &self.store.cache;
        let found = cache.find(key);
        let target = match found {
            Some(frame) => frame,
            None => {
                let frame = cache.allocate().ok_or_else(no_frames)?;
                cache.insert_zeroed(frame, key, PageKind::Data as u8);
                frame
            }
        };
        let home = self.store.partition;
        self.push_shadow(home, key, target, found.is_none(), u64::MAX)
    }

    /// A staged page of data.
    pub(crate) fn data_mut(&mut self, index: usize) -> &mut Page {
        // SAFETY: as in `page_mut`.
        unsafe { &mut *self.store.cache.page_ptr(self.shadows[index].shadow) }
    }

    fn push_shadow(
        &mut self,
        partition: u32,
        key: FrameKey,
        target: FrameId,
        new: bool,
        granules: u64,
    ) -> Result<usize, Stop> {
        let room = self.use_room(match (key.space, new) {
            (META_SPACE, true) => Need::pages(0, 1),
            (META_SPACE, false) => Need::pages(1, 0),
            _ => Need {
                frames: 1 + usize::from(new),
                ..Need::data(1)
            },
        });
        let cache = &self.owners.staged(partition).cache;
        let shadow = || cache.shadow_for(target, self.store.partition);
        let shadow = match room.and_then(|()| shadow().ok_or_else(no_frames)) {
            Ok(shadow) => shadow,
            Err(stop) => {
                if new {
                    cache.remove(target);
                }
                return Err(stop);
            }
        };
        cache.fill_shadow(shadow, granules);
        self.shadows.push(Shadow {
            key,
            target,
            shadow,
            partition,
            new,
        });
        Ok(self.shadows.len() - 1)
    }

    /// The cache of the partition that has a page.
    #[inline]
    fn cache_of(&self, page: u64) -> Result<&'s OwnedCache, Stop> {
        Ok(&self.owners.of(self.number(page))?.cache)
    }

    /// The same, of a page that is staged.
    #[inline]
    fn staged_cache(&self, page: u64) -> &'s OwnedCache {
        &self.owners.staged(self.number(page)).cache
    }

    /// The number of the partition that has a page.
    #[inline]
    fn number(&self, page: u64) -> u32 {
        if self.owners.count() == 1 {
            self.store.partition
        } else if page < self.store.layout.get().first_group {
            self.ledger
        } else {
            self.owners.number(page)
        }
    }

    #[inline]
    fn position(&self, page: u64) -> Option<usize> {
        let key = FrameKey::meta(page);
        let partition = self.number(page);
        let is_it = |shadow: &Shadow| shadow.key == key && shadow.partition == partition;
        self.shadows.iter().position(is_it)
    }

    /// Makes all staged changes visible. Nothing here can fail or wait.
    pub(crate) fn apply(&mut self, taken: Mark) {
        let store = self.store;
        let promised = store.whole.reservations.fulfil(self.promised);
        if self.owners.count() > 1 && !self.folds {
            let freed: u64 = self.frees.iter().map(|(run, _)| u64::from(run.pages)).sum();
            let change = self.change_of_free() + promised as i64;
            // First: a partition that is refused a page must see that some wait for a commit.
            store.whole.pending.fetch_add(freed, Ordering::AcqRel);
            self.end_claims(change - freed as i64);
            let key = FrameKey::meta(store.layout.get().state_page);
            for ledger in self.shadows.iter().filter(|shadow| shadow.key == key) {
                self.owners.staged(ledger.partition).has_to_fold.set(true);
            }
        }
        let (cache, changes) = (&store.cache, &store.changes);
        let mut changed: SmallVec<[Rc<Blob>; 4]> = SmallVec::new();
        for id in &self.slots {
            let (page, offset) = place(id.slot);
            let owner = self.owners.staged(self.owners.number(page));
            if let Some(blob) = owner.blobs.resident(id.slot)
                && blob.id == *id
                && let Some(index) = self.position(page)
                && let sector = (offset..offset + SECTOR_BYTES)
                && let bytes = owner.cache.bytes(self.shadows[index].shadow, sector)
                && let Ok(slot) = Slot::ref_from_bytes(bytes)
            {
                blob.applied(slot);
                changed.push(blob);
            }
        }
        for id in &self.destroyed {
            let owner = self.owners.staged(self.owners.number(place(id.slot).0));
            owner.blobs.destroyed(*id);
        }
        store.space.borrow_mut().keep(taken);
        for (partition, taken) in std::mem::take(&mut self.marks) {
            self.owners.staged(partition).space.borrow_mut().keep(taken);
        }
        // Before all else: should the process die in between, pages are without a checksum, not
        // with a wrong one.
        if !self.checksums.is_empty() {
            self.apply_shadows(|shadow| self.is_checksums(&shadow.key), None);
        }
        // Before the map that makes them readable: if the process dies in between, they are
        // applied, but nothing refers to them.
        for (frame, home, mask) in &self.journaled {
            changes.images.save(&store.cache, *frame, *home);
            let before = cache.pending(*frame);
            cache.set_home(*frame, *home);
            cache.set_kind(*frame, PageKind::Data as u8);
            cache.set_pending(*frame, before | *mask);
            cache.set(*frame, FrameFlags::JOURNALED);
            changes.open.count(*mask & !before);
            if before == 0 {
                changes.open.join(cache.key(*frame), false);
            }
            if let Some(checksums) = &store.checksums {
                checksums.unsettle(Run {
                    page: *home,
                    pages: 1,
                });
            }
        }
        let receipt = match self.intent {
            Intent::Upkeep => None,
            // It only looked: the transaction that changes something follows.
            _ if self.shadows.is_empty() && !planted(Bug::LookTakesNumber) => None,
            Intent::Change | Intent::Free => store.receipt.take(),
        };
        // Readers in other processes look at one slot at a time, and the pages with slots change
        // one after the other: a reader that sees one of them must find no other as it was.
        let ahead = store.write_back.dirty.ahead();
        let together = self.slots.len() > 1 && store.frames.is_published();
        let slots = if together { &self.slots[..] } else { &[] };
        let held: SmallVec<[_; 4]> = slots.iter().map(|id| ahead.hold(id.slot)).collect();
        // The state pages, which a fold changes, are read under the workers' locks only.
        let changed_together: SmallVec<[&Store; 2]> = match self.folds {
            true => SmallVec::new(),
            false => self.owners.others().collect(),
        };
        let is_seen_together = !changed_together.is_empty();
        if is_seen_together {
            let all = changed_together.iter().copied().chain([store]);
            all.for_each(|one| one.cache.begin_change());
        }
        self.apply_shadows(|shadow| !self.is_checksums(&shadow.key), receipt.as_deref());
        drop(held);
        if is_seen_together {
            let all = changed_together.iter().copied().chain([store]);
            all.for_each(|one| one.cache.end_change());
        }
        for blob in changed {
            blob.became_visible(changes.open.point());
        }
        for (run, journaled) in &self.frees {
            let owner = self.owners.staged(self.owners.number(run.page));
            let (cache, changes) = (&owner.cache, &owner.changes);
            if *journaled
                && run.pages == 1
                && let Some(frame) = cache.find(FrameKey::meta(run.page))
                && !cache.is_loading(frame)
            {
                changes.images.remove_freed(cache, frame);
            }
            // That of the blob is among them.
            for partition in self.owners.others().chain([store]) {
                if let Some(checksums) = &partition.checksums {
                    checksums.unsettle(*run);
                }
            }
            (changes.frees).add(*run, store.whole.progress.commits.open(), *journaled);
        }
        if store.is_alone() && !changes.open.is_empty() {
            (store.upcalls.start_write_back)(store);
        } else if !store.is_alone() {
            changes.open.settle();
            for partition in self.owners.others().chain([store]) {
                if !partition.changes.open.is_empty() {
                    (partition.upcalls.start_write_back)(partition);
                }
            }
        }
    }

    fn is_checksums(&self, key: &FrameKey) -> bool {
        key.space == META_SPACE && self.checksums.contains(&key.page)
    }

    /// Makes some of the staged pages visible, in one step.
    fn apply_shadows(
        &self,
        which: impl Fn(&Shadow) -> bool,
        receipt: Option<&(dyn Receipt + Send + Sync)>,
    ) {
        let store = self.store;
        let decided = |apply| {
            if let Some(receipt) = receipt {
                receipt.decided(AppliedUpTo::receipt(store.partition, apply));
            }
            if self.folds {
                store.frames.header().set_fold(apply);
            }
        };
        let own = self.edits(store, &which);
        let mut reported = own.iter();
        let mut next = || *reported.next().expect("a report for each edit");
        if self.owners.others().next().is_none() {
            let edits: Edits = own.iter().map(|edit| edit.frames()).collect();
            let report = |applied| note_applied(store, next(), &applied);
            return store.cache.apply(&edits, decided, report);
        }
        let others: SmallVec<[&Store; 2]> = self.owners.others().collect();
        let of_others: SmallVec<[SmallVec<[&Shadow; 12]>; 2]> = others
            .iter()
            .map(|other| self.edits(other, &which))
            .collect();
        let frames = |shadows: &[&Shadow]| shadows.iter().map(|shadow| shadow.frames()).collect();
        let with = others.iter().zip(&of_others);
        let with: SmallVec<[(&OwnedCache, Edits); 2]> = with
            .map(|(other, shadows)| (&other.cache, frames(shadows)))
            .collect();
        let bytes = |other: &&Store| other.changes.open.bytes();
        let before: SmallVec<[_; 2]> = others.iter().map(bytes).collect();
        let mut reported: SmallVec<[_; 2]> = of_others.iter().map(|of| of.iter()).collect();
        let report = |at, applied| match at {
            0 => note_applied(store, next(), &applied),
            _ => {
                let shadow = reported[at - 1].next().expect("a report for each edit");
                note_applied(others[at - 1], shadow, &applied);
            }
        };
        (store.cache).apply_with(frames(&own), &with, decided, report);
        for (other, before) in others.iter().zip(before) {
            // This partition's credit was for these bytes, too.
            let grown = other.changes.open.bytes() - before;
            store.changes.open.give_credit(&other.changes.open, grown);
        }
    }

    /// Those of the staged pages that a partition has, ready to be applied.
    fn edits(&self, store: &Store, which: &impl Fn(&Shadow) -> bool) -> SmallVec<[&Shadow; 12]> {
        let (cache, changes) = (&store.cache, &store.changes);
        let of_it = |shadow: &&Shadow| shadow.partition == store.partition && which(shadow);
        let shadows: SmallVec<[&Shadow; 12]> = self.shadows.iter().filter(of_it).collect();
        for shadow in &shadows {
            (changes.images).save(cache, shadow.target, cache.home(shadow.target));
            if shadow.is_fresh() {
                // Before anything refers to it: its salvage alone is harmless.
                cache.set(shadow.target, FrameFlags::FRESH | FrameFlags::JOURNALED);
                changes.open.join(shadow.key, true);
            }
        }
        shadows
    }

    /// Throws away all staged changes.
    pub(crate) fn abort(&mut self, taken: Mark) {
        let store = self.store;
        self.end_claims(0);
        store.space.borrow_mut().rollback(taken);
        for (partition, taken) in std::mem::take(&mut self.marks) {
            self.owners
                .staged(partition)
                .space
                .borrow_mut()
                .rollback(taken);
        }
        for shadow in &self.shadows {
            let cache = &self.owners.staged(shadow.partition).cache;
            cache.free_raw(shadow.shadow);
            if shadow.new {
                cache.remove(shadow.target);
            }
        }
    }
}

impl PagesRead for Transaction<'_> {
    fn page(&self, page: u64, kind: PageKind) -> Result<&Page, Stop> {
        match self.position(page) {
            Some(index) => {
                let shadow = self.shadows[index].shadow;
                let cache = self.staged_cache(page);
                cache.fill_shadow(shadow, u64::MAX);
                Ok(cache.page(shadow))
            }
            None => resident(self.owners.of(self.number(page))?, page, kind),
        }
    }

    fn bytes(&self, page: u64, kind: PageKind, bytes: Range<usize>) -> Result<&[u8], Stop> {
        match self.staged(page, &bytes) {
            Some(bytes) => Ok(bytes),
            None => {
                let owner = self.owners.of(self.number(page))?;
                Ok(&resident(owner, page, kind)?.0[bytes])
            }
        }
    }
}

impl Staged for Transaction<'_> {
    fn staged(&self, page: u64, bytes: &Range<usize>) -> Option<&[u8]> {
        let shadow = self.shadows[self.position(page)?].shadow;
        let cache = self.staged_cache(page);
        cache.fill_shadow(shadow, granules(bytes.clone()));
        Some(cache.bytes(shadow, bytes.clone()))
    }
}

impl Pages for Transaction<'_> {
    fn page_mut(&mut self, page: u64, kind: PageKind) -> Result<&mut Page, Stop> {
        self.granules_mut(page, kind, u64::MAX)
    }

    fn granules_mut(
        &mut self,
        page: u64,
        kind: PageKind,
        granules: u64,
    ) -> Result<&mut Page, Stop> {
        debug_assert!(granules != 0, "the caller changes something");
        let granules = if planted(Bug::UnaskedGranule) {
            granules & (u64::MAX >> granules.leading_zeros() >> 1)
        } else {
            granules
        };
        let index = match self.position(page) {
            Some(index) => {
                let shadow = self.shadows[index].shadow;
                self.staged_cache(page).fill_shadow(shadow, granules);
                index
            }
            None => {
                let key = FrameKey::meta(page);
                let partition = self.number(page);
                let owner = self.owners.of(partition)?;
                let target = loaded(owner, page, kind, owner.cache.find(key))?;
                self.push_shadow(partition, key, target, false, granules)?
            }
        };
        // SAFETY: the shadow belongs to this transaction alone, and `&mut self` is held for as long
        // as the reference lives.
        Ok(unsafe { &mut *self.staged_cache(page).page_ptr(self.shadows[index].shadow) })
    }

    fn fresh_page(&mut self, page: u64, kind: PageKind) -> Result<&mut Page, Stop> {
        let partition = self.number(page);
        let store = self.owners.of(partition)?;
        if self.position(page).is_some() {
            // A damaged map: it gave out as free a page that this transaction changes.
            return Err(corrupt(
                page,
                "its group's map calls it free, but it is in use",
            ));
        }
        if let Some(old) = store.cache.find(FrameKey::meta(page)) {
            if store.cache.is_loading(old) {
                return Err(Stop::Busy(page));
            }
            // Left from an earlier life of the page, freed and durable since.
            store.cache.remove(old);
        }
        let target = store.cache.allocate().ok_or_else(no_frames)?;
        store
            .cache
            .insert_zeroed(target, FrameKey::meta(page), kind as u8);
        store.cache.set_home(target, page);
        let index = self.push_shadow(partition, FrameKey::meta(page), target, true, u64::MAX)?;
        // SAFETY: as in `page_mut`.
        let content = unsafe { &mut *self.staged_cache(page).page_ptr(self.shadows[index].shadow) };
        if kind.has_header() {
            content.0[4] = ALGORITHM_CRC32C;
            content.0[5] = kind as u8;
        }
        Ok(content)
    }

    fn allocate_page(&mut self, near: u64) -> Result<u64, Stop> {
        self.check_room(1)?;
        let run = self.take_near(self.owners.number(near), near, 1)?;
        self.commit_run(run)?;
        Ok(run.page)
    }

    fn free_page(&mut self, page: u64) -> Result<(), Stop> {
        let cache = self.cache_of(page)?;
        let frame = cache.find(FrameKey::meta(page));
        if frame.is_some_and(|frame| cache.is_loading(frame)) {
            return Err(Stop::Busy(page));
        }
        // Its records name it until the tail has passed them.
        self.free_run(Run { page, pages: 1 }, true)
    }
}

/// The granules of the state page that hold something.
const STATE_GRANULES: u64 = granules(0..size_of::<StatePage>());

fn no_frames() -> Stop {
    Stop::Fail(Error::with(
        Errno::NOMEM,
        "the page cache is too small for this operation",
    ))
}

/// `check_room` relies on `RESERVE_PAGES`.
const _: () = assert!(RESERVE_PAGES >= 16);
