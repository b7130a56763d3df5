//! Group commit: from an applied transaction to a durable one.

use crate::journal::{Followers, OVERLAP_MIN_US, Point, Progress, Sealed};
use crate::metadata::pages::Stop;
use crate::state::{Store, Work};
use adit_base::Result;
use adit_base::breakdown::{self, Layer};
use adit_base::clock::monotonic_ns;
use adit_base::simulation::{Bug, planted};
use adit_base::sync::atomic::Ordering;
use adit_block::Buffer;
use adit_reactor::Awaited;
use smallvec::SmallVec;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// A leader that waits for followers, on any worker. They sleep until its commit has ended, or it
/// gives up.
struct LeaderWaits<'p>(&'p Progress);

impl LeaderWaits<'_> {
    /// Its commit is in flight.
    fn end(self) {
        self.0.followers.end_wait();
        std::mem::forget(self);
    }
}

impl Drop for LeaderWaits<'_> {
    fn drop(&mut self) {
        self.0.followers.end_wait();
        self.0.waiters.wake();
    }
}

/// An operation that waits for a commit looks now and then whether all workers live.
const LOOKS_FOR_WORKERS: Duration = Duration::from_millis(100);

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
            let all = self.beside_all(&mut |stores| {
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
        if self.whole.progress.is_durable(point) {
            return Ok(());
        }
        let from_here = self.is_divided() && self.leads_its_own_commits();
        if from_here && self.commit_from_here(point, shared).await? {
            return Ok(());
        }
        match self.lead {
            Some(_) => self.commit_as_lead(point, shared).await,
            None => self.ask(0, Work::Commit(point, shared)).await,
        }
    }

    /// Each worker leads commits of its own: the device has no volatile cache, whose flushes are
    /// the first partition's, and commits don't overlap.
    fn leads_its_own_commits(&self) -> bool {
        let one_in_flight = match self.options.commits_in_flight {
            Some(count) => count == 1,
            None => self.whole.latency.us() < OVERLAP_MIN_US,
        };
        !self.volatile_cache && one_in_flight
    }

    /// The first partition makes everything applied before `point` durable.
    pub(crate) async fn commit_as_lead(&self, point: Point, shared: bool) -> Result<()> {
        let whole = &self.whole;
        let journal = &self.leading().journal;
        let (mut joined, mut followed, mut waited) = (!shared, false, !shared);
        while !whole.progress.is_durable(point) {
            self.writable()?;
            if !joined && !whole.progress.is_sealed(point) {
                joined = true;
                journal.followers.join();
            }
            if whole.progress.is_sealed(point) || !journal.may_commit(&whole.progress) {
                followed = true;
                self.wait_until_committed().await?;
            } else if shared && journal.followers.are_waited_for() {
                self.wait_until_committed().await?;
            } else if !whole.progress.has_ordinary_room() {
                if journal.checkpointing.get() {
                    self.wait_until_committed().await?; // any one makes room, another may not be needed
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
            if self.whole.progress.in_flight() > 0 {
                self.reactor.yield_now().await;
            }
            return;
        }
        let expected = followers.expected(followed);
        // Other work would come first, so waiting would take longer than it gains.
        let in_vain = || {
            journal.checkpointing.get()
                || self.whole.progress.in_flight() > 0
                || self.whole.progress.is_durable(point)
                || self.reactor.has_inline_requests()
        };
        if followers.joined() >= expected || in_vain() {
            return;
        }
        followers.wait_for();
        self.yield_to_followers(followers, expected, in_vain).await;
        followers.end_wait();
        if self.whole.progress.is_durable(point) {
            // Another commit was faster; callers that joined this one since have nothing to wait
            // for.
            journal.committed.notify_all();
        } else if self.whole.progress.in_flight() == 0 {
            followers.note(followers.joined() >= expected);
        }
    }

    /// Lets other operations of this worker run until so many callers have joined; briefly, and not
    /// in vain.
    async fn yield_to_followers(
        &self,
        followers: &Followers,
        expected: u32,
        in_vain: impl Fn() -> bool,
    ) {
        let until_ns = monotonic_ns() + Followers::patience_ns(self.whole.latency.us());
        while followers.joined() < expected && !in_vain() && monotonic_ns() < until_ns {
            self.reactor.yield_now().await;
        }
    }

    /// Seals the open transaction and makes it durable, as its leader. It counts as soon as all
    /// commits before it are durable: the horizon says so.
    pub(crate) async fn commit_open(&self) -> Result<()> {
        let journal = &self.leading().journal;
        let sealed = loop {
            if !journal.may_commit(&self.whole.progress) {
                return Ok(()); // another one began meanwhile
            }
            match self.seal()? {
                Some(Ok(sealed)) => break sealed,
                Some(Err(stop)) => self.unstop(stop).await?,
                None => self.step_aside().await,
            }
        };
        let Some(mut sealed) = sealed else {
            return Ok(());
        };
        if let Err(error) = self.commit_sealed(&mut sealed).await {
            // Its pages stay published: the next process on this boot can still write them.
            self.fail(error.clone());
            return Err(error);
        }
        self.end_commit(sealed);
        Ok(())
    }

    /// Seals what all partitions have in the open transaction, with all of them at hand. None: one
    /// of them is busy.
    fn seal(&self) -> Result<Option<Result<Option<Sealed>, Stop>>> {
        let seal = |stores: &[&Store]| {
            let lead = stores[0].leading();
            let stores = match stores.len() {
                count if planted(Bug::PartialCut) => &stores[..count.div_ceil(2)],
                _ => stores,
            };
            lead.journal.followers.begin();
            self.whole.progress.followers.begin();
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
        self.beside_all(&mut |stores| {
            outcome = Some(stores[0].fold_ledgers(stores).map(|()| {
                let wants = |store: &&Store| self.whole.progress.wants_checkpoint(&store.cache);
                let lead = stores[0].leading();
                lead.others_want_checkpoint
                    .set(stores[1..].iter().any(wants));
                stores[1..].iter().for_each(|store| store.release_frees());
                // All of them may have applied more since the last look.
                let progress = &self.whole.progress;
                let fits = progress.has_ordinary_room() || lead.journal.is_for_checkpoint();
                let may_seal = fits && lead.journal.may_commit(progress);
                may_seal.then(|| seal(stores)).flatten()
            }));
        })?;
        Ok(outcome)
    }

    /// Calls the closure with all partitions. False: one of them is busy, or another worker does
    /// that; the operation steps aside, and tries again.
    fn beside_all(&self, closure: &mut dyn FnMut(&[&Store])) -> Result<bool> {
        let all = || self.workers().beside_all(self, closure);
        self.whole.progress.lead(all).unwrap_or(Ok(false))
    }

    /// Makes everything applied before `point` durable: this partition's worker leads the commit,
    /// or waits for the end of another one's. False: the first partition has to do it.
    async fn commit_from_here(&self, point: Point, shared: bool) -> Result<bool> {
        let progress = &self.whole.progress;
        let followers = &progress.followers;
        let (mut joined, mut followed, mut waited) = (!shared, false, !shared);
        let mut waiting = None;
        while !progress.is_durable(point) {
            self.writable()?;
            if !joined && !progress.is_sealed(point) {
                joined = true;
                followers.join();
            }
            let is_waited_for = shared && waiting.is_none() && followers.are_waited_for();
            if progress.is_sealed(point) || progress.in_flight() > 0 || is_waited_for {
                (followed, waiting) = (true, None);
                self.wait_for_commit().await?;
            } else if !progress.has_ordinary_room() {
                return Ok(false);
            } else if !waited {
                waited = true;
                waiting = self.gather_followers(point, followed).await;
            } else {
                match self.seal()? {
                    None => self.step_aside().await,
                    // Something of it isn't in the cache.
                    Some(Err(_)) => return Ok(false),
                    // Another one was faster.
                    Some(Ok(None)) => waiting = None,
                    Some(Ok(Some(sealed))) => {
                        waiting.take().into_iter().for_each(LeaderWaits::end);
                        self.commit_from_here_sealed(sealed).await?;
                    }
                }
            }
        }
        Ok(true)
    }

    /// The leader of the commit up to `point` waits briefly for followers, which wait for its
    /// commit as long as the answer lives. It keeps its worker: another thread that took the worker
    /// and ran this operation would have to wake this one.
    async fn gather_followers(&self, point: Point, followed: bool) -> Option<LeaderWaits<'_>> {
        let progress = &self.whole.progress;
        let followers = &progress.followers;
        let expected = followers.expected(followed);
        let in_vain = || {
            progress.in_flight() > 0
                || progress.is_durable(point)
                || self.reactor.has_inline_requests()
        };
        if followers.joined() >= expected || in_vain() || !followers.wait_for() {
            return None;
        }
        let waiting = LeaderWaits(progress);
        self.yield_to_followers(followers, expected, in_vain).await;
        if progress.in_flight() == 0 && !progress.is_durable(point) {
            followers.note(followers.joined() >= expected);
        }
        Some(waiting)
    }

    async fn commit_from_here_sealed(&self, mut sealed: Sealed) -> Result<()> {
        if let Err(error) = self.write_sealed(&mut sealed).await {
            self.fail(error.clone());
            return Err(error);
        }
        let mut sealed = Some(sealed);
        loop {
            let ended = self.workers().beside(self, 0, &mut |lead| {
                let sealed = sealed.take().expect("a commit ends once");
                lead.end_commit(sealed);
            });
            if ended? {
                return Ok(());
            }
            self.step_aside().await;
        }
    }

    /// Waits until a commit in flight has ended, whichever worker leads it.
    async fn wait_for_commit(&self) -> Result<()> {
        let progress = &self.whole.progress;
        let before = progress.commits.durable();
        let is_over = || progress.is_over(before) || self.whole.failure.get().is_some();
        if self.options.apart {
            // A short one of another worker ends before a thread would sleep.
            self.reactor
                .step_aside_until(progress.clone(), before)
                .await;
            if is_over() {
                return Ok(());
            }
        }
        loop {
            let mut timer = pin!(self.reactor.sleep(LOOKS_FOR_WORKERS));
            let over = poll_fn(|context| match progress.waiters.poll(context, is_over) {
                Poll::Ready(()) => Poll::Ready(true),
                Poll::Pending => timer.as_mut().poll(context).map(|()| false),
            });
            if over.await {
                return Ok(());
            }
            self.look_for_workers()?;
        }
    }

    /// The first partition waits until a commit or a checkpoint has ended.
    pub(crate) async fn wait_until_committed(&self) -> Result<()> {
        let journal = &self.leading().journal;
        let mut committed = pin!(journal.committed.wait());
        if !self.is_divided() {
            committed.await;
            return Ok(());
        }
        loop {
            let mut timer = pin!(self.reactor.sleep(LOOKS_FOR_WORKERS));
            let over = poll_fn(|context| match committed.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(true),
                Poll::Pending => timer.as_mut().poll(context).map(|()| false),
            });
            if over.await {
                return Ok(());
            }
            self.look_for_workers()?;
        }
    }

    /// A worker that a panic has ended ends no commit: the volume fails with it.
    fn look_for_workers(&self) -> Result<()> {
        for partition in self.numbers().filter(|other| *other != self.partition) {
            if let Err(error) = self.workers().beside(self, partition, &mut |_| ()) {
                self.fail(error.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    /// Makes a sealed transaction durable, without regard to those before it.
    async fn commit_sealed(&self, sealed: &mut Sealed) -> Result<()> {
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
        if self.is_divided() {
            self.whole.progress.waiters.wake();
        }
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
            // A partition that sees nothing pending finds them spare.
            self.whole.reservations.note(released as i64);
            self.whole.pending.fetch_sub(released, Ordering::AcqRel);
        }
    }

    /// The same, in all partitions.
    pub(crate) async fn release_all_frees(&self) -> Result<()> {
        for partition in self.numbers() {
            self.ask(partition, Work::ReleaseFrees).await?;
        }
        Ok(())
    }

    async fn write_sealed(&self, sealed: &mut Sealed) -> Result<()> {
        assert!(
            sealed.lsn >= self.whole.progress.ring.horizon(),
            "what the horizon has passed is durable"
        );
        let layout = self.layout.get();
        let pages = self.whole.progress.ring.pages();
        // At most two pieces: the ring's end divides them.
        let until_end = (pages - sealed.lsn % pages).min(sealed.frames.len() as u64) as usize;
        let mut lsn = sealed.lsn;
        let mut left = std::mem::take(&mut sealed.buffers).into_iter();
        for count in [until_end, sealed.frames.len() - until_end] {
            let piece: SmallVec<[Buffer; 4]> = left.by_ref().take(count).collect();
            if piece.is_empty() {
                continue;
            }
            let pages = piece.len() as u64;
            let what = || format!("write the journal at LSN {lsn}");
            self.write_durably(layout.journal_page(lsn), piece, what)
                .await?;
            lsn += pages;
        }
        Ok(())
    }
}
