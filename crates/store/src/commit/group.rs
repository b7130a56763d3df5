//! Group commit: from an applied transaction to a durable one.

use crate::journal::{Point, Sealed, WAIT_TURNS};
use crate::state::Store;
use adit_base::Result;
use adit_base::breakdown::{self, Layer};
use adit_base::simulation::{Bug, planted};
use adit_block::Buffer;
use smallvec::SmallVec;

impl Store {
    /// Makes everything applied so far durable.
    pub(crate) async fn commit_all(&self) -> Result<()> {
        self.commit_through(self.journal.point()).await
    }

    /// Makes everything applied before `point` was taken durable.
    pub(crate) async fn commit_through(&self, point: Point) -> Result<()> {
        self.commit_until(point, false).await
    }

    /// Likewise, for a caller who waits for just that, and may soon be back: others like it may
    /// join.
    pub(crate) async fn commit_shared(&self, point: Point) -> Result<()> {
        self.commit_until(point, true).await
    }

    async fn commit_until(&self, point: Point, shared: bool) -> Result<()> {
        // A failed volume acknowledges nothing any more, not even what had become durable before.
        self.writable()?;
        let journal = &self.journal;
        let (mut followed, mut waited) = (false, !shared);
        while journal.ring.horizon() < point.0 {
            self.writable()?;
            if journal.is_committing() {
                followed = true;
                journal.committed.wait().await;
            } else if shared && journal.followers.waited_for.get() {
                journal.followers.join();
                journal.committed.wait().await;
            } else if !journal.has_ordinary_room() {
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

    /// The leader of the commit up to `point` waits briefly for followers.
    async fn wait_for_followers(&self, point: Point, followed: bool) {
        let (journal, followers) = (&self.journal, &self.journal.followers);
        followers.join();
        let expected = followers.expected(followed);
        // Other work would come first, so waiting would take longer than it gains.
        let in_vain = || {
            journal.checkpointing.get()
                || journal.is_committing()
                || journal.ring.horizon() >= point.0
                || self.reactor.has_inline_requests()
        };
        if expected == 1 || in_vain() {
            return;
        }
        followers.waited_for.set(true);
        for _ in 0..WAIT_TURNS {
            if followers.joined.get() >= expected || in_vain() {
                break;
            }
            self.reactor.yield_now().await;
        }
        followers.waited_for.set(false);
        if journal.ring.horizon() >= point.0 {
            // Another commit was faster; callers that joined this one since have nothing to wait
            // for.
            journal.committed.notify_all();
        } else if !journal.is_committing() {
            followers.note(followers.joined.get() >= expected);
        }
    }

    /// Seals, writes and makes durable the open transaction, as the only committer.
    pub(crate) async fn commit_open(&self) -> Result<()> {
        let journal = &self.journal;
        journal.begin_commit();
        let joined = journal.followers.joined.take();
        let result = self.commit_sealed().await;
        journal.end_commit();
        if joined > 0 {
            journal.followers.joined_last.set(joined);
        }
        journal.committed.notify_all();
        if let Err(error) = &result {
            self.fail(error.clone());
        }
        result
    }

    async fn commit_sealed(&self) -> Result<()> {
        assert!(self.journal.is_committing(), "only the leader seals");
        let journal = &self.journal;
        let state_page = self.layout.get().state_page;
        let Some(sealed) = journal.seal(&self.cache, &self.volume, state_page) else {
            return Ok(());
        };
        // Records were only added after their data's writes completed, so flushing here is enough.
        if !planted(Bug::CommitBeforeData) {
            self.flush_home(self.barriers.written()).await?;
        }
        let result = self.write_sealed(&sealed).await;
        // After a failure they stay published: the next process on this boot can still write them.
        result?;
        journal.pass_horizon(&self.cache, sealed);
        self.frames.header().set_horizon(journal.ring.horizon());
        self.release_frees();
        if journal.wants_checkpoint(&self.cache) && !journal.checkpointing.get() {
            self.spawn_checkpoint();
        }
        Ok(())
    }

    /// Hands the freed runs back to the allocator that may be used again.
    pub(crate) fn release_frees(&self) {
        let _in = breakdown::enter(Layer::Journal);
        let journal = &self.journal;
        if journal.frees.count() == 0 {
            return;
        }
        let mut space = self.space.borrow_mut();
        let (horizon, tail) = (journal.ring.horizon(), journal.ring.flushed_tail());
        journal
            .frees
            .release(horizon, tail, |run| space.release(run));
    }

    async fn write_sealed(&self, sealed: &Sealed) -> Result<()> {
        assert!(self.journal.is_committing(), "only the leader writes");
        let layout = self.layout.get();
        let pages = self.journal.ring.pages();
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
