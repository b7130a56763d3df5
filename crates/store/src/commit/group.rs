//! Group commit: from an applied transaction to a durable one.

use crate::journal::{Followers, Point, Sealed};
use crate::metadata::pages::Stop;
use crate::state::{Lead, Store, Work};
use adit_base::Result;
use adit_base::breakdown::{self, Layer};
use adit_base::clock::monotonic_ns;
use adit_base::simulation::{Bug, planted};
use adit_base::sync::atomic::Ordering;
use adit_block::Buffer;
use smallvec::SmallVec;
use std::cell::Cell;

impl Store {
    /// Makes everything applied so far durable.
    pub(crate) async fn commit_all(&self) -> Result<()> {
        self.commit_through(self.whole.progress.point()).await
    }

    /// Makes everything applied before `point` was taken durable.
    pub(crate) async fn commit_through(&self, point: Point) -> Result<()> {
        self.commit_until(point, false).await
    }

    /// Makes everything applied before `point` was taken durable. The leader waits briefly for
    /// followers, because the caller may soon commit again.
    pub(crate) async fn commit_shared(&self, point: Point) -> Result<()> {
        self.commit_until(point, true).await
    }

    /// Makes room in the open transaction: commits it. If it is empty, idle partitions have the
    /// credit: takes it back.
    pub(crate) async fn make_open_room(&self) -> Result<()> {
        let Some(lead) = &self.lead else {
            return self.ask(0, Work::MakeOpenRoom).await;
        };
        self.commit_all().await?;
        while self.is_divided() {
            let all = self.workers().beside_all(self, &mut |stores| {
                let changes = stores.iter().map(|store| &store.changes);
                lead.journal.take_back_credit(&self.whole.progress, changes);
            });
            if all? {
                break;
            }
            self.step_aside().await;
        }
        Ok(())
    }

    async fn commit_until(&self, point: Point, shared: bool) -> Result<()> {
        // A failed volume acknowledges nothing, not even transactions that were durable before.
        self.writable()?;
        let whole = &self.whole;
        if whole.progress.is_durable(point) {
            return Ok(());
        }
        let Some(Lead { journal, .. }) = &self.lead else {
            return self.ask(0, Work::Commit(point, shared)).await;
        };
        let (mut joined, mut followed, mut waited) = (!shared, false, !shared);
        while !whole.progress.is_durable(point) {
            self.writable()?;
            if !joined && !whole.progress.is_sealed(point) {
                joined = true;
                journal.followers.join();
            }
            if whole.progress.is_sealed(point) || !journal.may_commit(&whole.progress.room) {
                followed = true;
                journal.committed.wait().await;
            } else if shared && journal.followers.waited_for.get() {
                journal.committed.wait().await;
            } else if !whole.progress.has_ordinary_room() {
                if journal.checkpointing.get() {
                    journal.committed.wait().await; // any one makes room, another may not be needed
                } else {
                    self.run_checkpoint().await?;
                }
            } else if !waited {
                waited = true;
                self.wait_for_followers(point, followed).await;
            } else {
                self.commit_open().await?;
            }
        }
        Ok(())
    }

    /// The leader of the commit up to `point` waits briefly for followers: where commits overlap
    /// only for those that are ready now, since others may begin a commit of their own.
    async fn wait_for_followers(&self, point: Point, followed: bool) {
        let (journal, followers) = (&self.leading().journal, &self.leading().journal.followers);
        if journal.overlaps() {
            if journal.is_committing() {
                self.reactor.yield_now().await;
            }
            return;
        }
        let expected = followers.expected(followed);
        // Other work would come first, so waiting would take longer than it gains.
        let in_vain = || {
            journal.checkpointing.get()
                || journal.is_committing()
                || self.whole.progress.is_durable(point)
                || self.reactor.has_inline_requests()
        };
        if followers.joined.get() >= expected || in_vain() {
            return;
        }
        followers.waited_for.set(true);
        let until_ns = monotonic_ns() + Followers::patience_ns(self.whole.latency.us());
        while followers.joined.get() < expected && !in_vain() && monotonic_ns() < until_ns {
            self.reactor.yield_now().await;
        }
        followers.waited_for.set(false);
        if self.whole.progress.is_durable(point) {
            // Another commit was faster; callers that joined this one since have nothing to wait
            // for.
            journal.committed.notify_all();
        } else if !journal.is_committing() {
            followers.note(followers.joined.get() >= expected);
        }
    }

    /// Seals the open transaction and makes it durable, as its leader. It counts as soon as all
    /// commits before it are durable: the horizon says so.
    pub(crate) async fn commit_open(&self) -> Result<()> {
        let journal = &self.leading().journal;
        let joined = Cell::new(0);
        let sealed = loop {
            if !journal.may_commit(&self.whole.progress.room) {
                return Ok(()); // another one began meanwhile
            }
            match self.seal(&joined)? {
                Some(Ok(sealed)) => break sealed,
                Some(Err(stop)) => self.unstop(stop).await?,
                None => self.step_aside().await,
            }
        };
        let Some(sealed) = sealed else {
            return Ok(());
        };
        if joined.get() > 0 {
            journal.followers.joined_last.set(joined.get());
        }
        if let Err(error) = self.commit_sealed(&sealed).await {
            // Its pages stay published: the next process on this boot can still write them.
            self.fail(error.clone());
            return Err(error);
        }
        self.end_commit(sealed);
        Ok(())
    }

    /// Seals what all partitions have in the open transaction, with all of them at hand. None: one
    /// of them is busy.
    fn seal(&self, joined: &Cell<u32>) -> Result<Option<Result<Option<Sealed>, Stop>>> {
        let lead = self.leading();
        let seal = |stores: &[&Store]| {
            let stores = match stores.len() {
                count if planted(Bug::PartialCut) => &stores[..count.div_ceil(2)],
                _ => stores,
            };
            joined.set(lead.journal.followers.joined.take());
            let partitions = stores.iter().map(|store| (&store.cache, &store.changes));
            let partitions: SmallVec<[_; 1]> = partitions.collect();
            let state_page = self.layout.get().state_page;
            (lead.journal).seal(
                &self.whole.progress,
                &partitions,
                &self.whole.volume,
                state_page,
            )
        };
        if !self.is_divided() {
            return Ok(Some(Ok(seal(&[self]))));
        }
        let mut outcome = None;
        self.workers().beside_all(self, &mut |stores| {
            outcome = Some(self.fold_ledgers(stores).map(|()| {
                let wants = |store: &&Store| self.whole.progress.wants_checkpoint(&store.cache);
                lead.others_want_checkpoint
                    .set(stores[1..].iter().any(wants));
                stores[1..].iter().for_each(|store| store.release_frees());
                // All of them may have applied more since the last look.
                let progress = &self.whole.progress;
                let fits = progress.has_ordinary_room() || lead.journal.is_for_checkpoint();
                let may_seal = fits && lead.journal.may_commit(&progress.room);
                may_seal.then(|| seal(stores)).flatten()
            }));
        })?;
        Ok(outcome)
    }

    /// Makes a sealed transaction durable, without regard to those before it.
    async fn commit_sealed(&self, sealed: &Sealed) -> Result<()> {
        // Records were only added after their data's writes completed, so flushing here is enough.
        if !planted(Bug::CommitBeforeData) {
            self.flush_home(self.whole.home_writes.written()).await?;
        }
        self.write_sealed(sealed).await
    }

    /// A sealed transaction is durable: moves the horizon, as far as that goes.
    fn end_commit(&self, sealed: Sealed) {
        let journal = &self.leading().journal;
        journal.note_latency(self.whole.latency.us());
        if !journal.pass_horizon(&self.whole.progress, &self.cache, sealed) {
            return;
        }
        let (ring, commits) = (&self.whole.progress.ring, &self.whole.progress.commits);
        self.for_all_frames(|frames| {
            frames.header().set_horizon(ring.horizon());
            frames.note_durable(commits.durable());
        });
        // The others do that with the next seal, or when they need space.
        self.release_frees();
        journal.committed.notify_all();
        let wants = self.whole.progress.wants_checkpoint(&self.cache)
            || self.leading().others_want_checkpoint.get();
        if !journal.checkpointing.get() && wants {
            self.spawn_checkpoint();
        }
    }

    /// Hands the freed runs back to the allocator that may be used again.
    pub(crate) fn release_frees(&self) {
        let _in = breakdown::enter(Layer::Journal);
        let frees = &self.changes.frees;
        if frees.count() == 0 {
            return;
        }
        let mut space = self.space.borrow_mut();
        let before = frees.pages();
        frees.release(&self.whole.progress.commits, |run| space.release(run));
        let released = before - frees.pages();
        if released > 0 && self.is_divided() {
            self.whole.pending.fetch_sub(released, Ordering::AcqRel);
            self.whole.reservations.note(released as i64);
        }
    }

    /// The same, in all partitions.
    pub(crate) async fn release_all_frees(&self) -> Result<()> {
        for partition in self.numbers() {
            self.ask(partition, Work::ReleaseFrees).await?;
        }
        Ok(())
    }

    async fn write_sealed(&self, sealed: &Sealed) -> Result<()> {
        assert!(
            sealed.lsn >= self.whole.progress.ring.horizon(),
            "what the horizon has passed is durable"
        );
        let layout = self.layout.get();
        let pages = self.whole.progress.ring.pages();
        // At most two pieces: the ring's end divides them.
        let until_end = (pages - sealed.lsn % pages).min(sealed.frames.len() as u64) as usize;
        let mut lsn = sealed.lsn;
        for piece in [&sealed.frames[..until_end], &sealed.frames[until_end..]] {
            if piece.is_empty() {
                continue;
            }
            let buffers: SmallVec<[Buffer; 4]> = piece
                .iter()
                .map(|frame| self.cache.buffer(*frame))
                .collect();
            let what = || format!("write the journal at LSN {lsn}");
            self.write_durably(layout.journal_page(lsn), buffers, what)
                .await?;
            lsn += piece.len() as u64;
        }
        Ok(())
    }
}
