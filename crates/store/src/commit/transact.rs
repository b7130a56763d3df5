//! Running a closure against metadata: for a look, or to change it.

use crate::cache::FRAMES_LEFT_BY_DATA;
use crate::commit::{Intent, Transaction, View};
use crate::format::{PageKind, StatePage};
use crate::metadata::Need;
use crate::metadata::pages::Stop;
use adit_base::breakdown::{self, Layer};
use adit_base::{Errno, Error, Result};

use crate::state::{Beside, ColdFuture, Owners, Partitions, Store, Work};

/// The end of an attempt to run a transaction that was not applied.
enum Attempt {
    Stopped(Stop),
    /// This other partition's cache has too few frames.
    NoFrames(u32),
}

impl Store {
    /// Reads metadata: the closure runs against resident pages and runs again when one had to be
    /// loaded.
    pub async fn view<T>(&self, mut f: impl FnMut(&View<'_>) -> Result<T, Stop>) -> Result<T> {
        let mut others = Partitions::default();
        loop {
            match self.try_view(&mut others, &mut f)? {
                Ok(value) => return Ok(value),
                Err(Some(stop)) => self.unstop(stop).await?,
                Err(None) => self.step_aside().await,
            }
        }
    }

    /// Reads metadata as [`Store::view`] does, in one step with what the caller did before. None:
    /// that took time, in which things may have changed; the caller looks again.
    pub(crate) async fn view_at_once<T>(
        &self,
        mut f: impl FnMut(&View<'_>) -> Result<T, Stop>,
    ) -> Result<Option<T>> {
        match self.try_view(&mut Partitions::default(), &mut f)? {
            Ok(value) => return Ok(Some(value)),
            Err(Some(stop)) => self.unstop(stop).await?,
            Err(None) => self.step_aside().await,
        }
        Ok(None)
    }

    /// Runs a closure against resident pages, beside the partitions that it turns out to need. Else
    /// the reason for it to wait; None: another worker is busy.
    #[inline]
    fn try_view<T>(
        &self,
        others: &mut Partitions,
        f: &mut impl FnMut(&View<'_>) -> Result<T, Stop>,
    ) -> Result<Result<T, Option<Stop>>> {
        loop {
            let seen = if self.is_alone() {
                Some(f(&View::new(self, Owners::alone(self))))
            } else {
                self.beside(*others, |owners| f(&View::new(self, owners)))?
            };
            return Ok(match seen {
                Some(Ok(value)) => Ok(value),
                Some(Err(Stop::Partition(other))) => {
                    others.add(other);
                    continue;
                }
                Some(Err(stop)) => Err(Some(stop)),
                None => Err(None),
            });
        }
    }

    /// Changes metadata. The closure stages its changes in a [`Transaction`]; it runs again from
    /// the start when a page had to be loaded; when it returns `Ok`, all it staged is applied at
    /// once and joins the open transaction, which [`Store::commit`] makes durable.
    pub async fn transact<T>(
        &self,
        f: impl FnMut(&mut Transaction<'_>) -> Result<T, Stop>,
    ) -> Result<T> {
        self.run_transaction(Intent::Change, Need::STEP, f).await
    }

    /// Runs a transaction that frees space: it may use the pages kept back for that.
    pub async fn transact_freeing<T>(
        &self,
        f: impl FnMut(&mut Transaction<'_>) -> Result<T, Stop>,
    ) -> Result<T> {
        self.run_transaction(Intent::Free, Need::STEP, f).await
    }

    /// Runs a transaction of the store itself ([`Intent::Upkeep`]).
    pub(crate) async fn transact_upkeep<T>(
        &self,
        f: impl FnMut(&mut Transaction<'_>) -> Result<T, Stop>,
    ) -> Result<T> {
        self.run_transaction(Intent::Upkeep, Need::STEP, f).await
    }

    /// The volume-state page.
    pub async fn state(&self) -> Result<StatePage> {
        if !self.is_divided() {
            self.own_state().await
        } else {
            self.summed_state().await
        }
    }

    /// The state page as this partition has it.
    pub(crate) async fn own_state(&self) -> Result<StatePage> {
        self.view(|view| view.state()).await
    }

    /// Runs a transaction. `need` is the need of its step; none if its operations ask for
    /// themselves.
    pub(crate) async fn run_transaction<T>(
        &self,
        intent: Intent,
        need: Need,
        f: impl FnMut(&mut Transaction<'_>) -> Result<T, Stop>,
    ) -> Result<T> {
        (self.run_transaction_then(intent, need, f, |value, _| value)).await
    }

    /// Runs a transaction. Once it is applied, and before any partition that it has changed does
    /// anything else, `applied` makes the result of the closure's.
    pub(crate) async fn run_transaction_then<T, U>(
        &self,
        intent: Intent,
        need: Need,
        mut f: impl FnMut(&mut Transaction<'_>) -> Result<T, Stop>,
        mut applied: impl FnMut(T, Beside<'_>) -> U,
    ) -> Result<U> {
        let (mut admitted, mut reclaimed) = (need, false);
        let mut others = Partitions::default();
        loop {
            self.admit(intent, &admitted).await?;
            // Each attempt ends before anything is awaited.
            let mut attempt = |owners: Owners<'_>| {
                if let Some(full) = owners.others().find(|other| other.lacks(&admitted)) {
                    return Err(Attempt::NoFrames(full.partition));
                }
                let _in = breakdown::enter(Layer::Transaction);
                let mut transaction = Transaction::new(self, owners, intent, need, admitted);
                let taken = self.space.borrow_mut().mark();
                match f(&mut transaction) {
                    Ok(value) => {
                        transaction.apply(taken);
                        Ok(applied(value, Beside(owners)))
                    }
                    Err(stop) => {
                        transaction.abort(taken);
                        admitted = transaction.admitted;
                        Err(Attempt::Stopped(stop))
                    }
                }
            };
            let attempted = if self.is_alone() {
                Some(attempt(Owners::alone(self)))
            } else {
                self.release_frees();
                self.beside(others, attempt)?
            };
            let stop = match attempted {
                Some(Ok(value)) => {
                    if !self.is_alone() {
                        self.whole.applied.note(self.partition);
                    }
                    return Ok(value);
                }
                Some(Err(Attempt::Stopped(stop))) => stop,
                Some(Err(Attempt::NoFrames(other))) => {
                    self.changes.open.release_credit();
                    self.ask(other, Work::MakeRoom(admitted.frames)).await?;
                    continue;
                }
                None => {
                    self.changes.open.release_credit();
                    self.step_aside().await;
                    continue;
                }
            };
            if !self.is_alone() {
                self.changes.open.release_credit();
            }
            match stop {
                Stop::Partition(other) => others.add(other),
                Stop::Miss(page, kind) => {
                    self.load_or_avoid(page, kind).await?;
                    if kind == PageKind::State {
                        // Another partition's copy may be the one that is missing.
                        for other in others.numbers() {
                            self.ask(other, Work::Load(page, kind)).await?;
                        }
                    }
                }
                Stop::Busy(page) => self.load_ended(page).await?,
                Stop::Room => {}
                Stop::Group(partition) => self.ask(partition, Work::MakeGroups).await?,
                Stop::Fail(error) if error.errno() == Errno::NOSPC && !reclaimed => {
                    reclaimed = true;
                    if !self.reclaim_pending().await? {
                        return Err(error);
                    }
                }
                Stop::Fail(error) => return Err(error),
            }
        }
    }

    /// True if the cache hasn't the frames that a transaction may need.
    fn lacks(&self, need: &Need) -> bool {
        self.cache.available() < need.frames
    }

    /// Waits until the open transaction and the cache have room for a transaction. One that needs
    /// more than data leaves may wait for write-back; write-back's own transactions may not.
    async fn admit(&self, intent: Intent, need: &Need) -> Result<()> {
        let frames = need.frames;
        let may_wait = need.data_pages > 0
            || (intent != Intent::Upkeep && frames > FRAMES_LEFT_BY_DATA as usize);
        loop {
            self.writable()?;
            if !self.changes.open.has_room(need) {
                if !self.whole.progress.room.fits(need) {
                    let what = "the operations are too many for one transaction";
                    return Err(Error::with(Errno::TOOBIG, what));
                }
                let room: ColdFuture<'_, _> = Box::pin(self.make_open_room());
                room.await?;
                if !self.is_alone() {
                    // Others may have taken it again.
                    self.reactor.give_way().await;
                }
            } else if self.cache.available() >= frames {
                return Ok(());
            } else if may_wait {
                (self.upcalls.reclaim_frames)(self, frames).await?;
            } else {
                self.make_room(frames).await?;
            }
        }
    }

    /// Makes pending frees usable before ENOSPC. True if that may have freed space: that of several
    /// partitions may have become usable just now.
    pub(crate) fn reclaim_pending(&self) -> ColdFuture<'_, Result<bool>> {
        Box::pin(async {
            if self.pending_pages() == 0 {
                return Ok(self.is_divided());
            }
            self.commit_all().await?;
            self.release_all_frees().await?;
            if self.pending_pages() != 0 {
                self.checkpoint_all().await?;
                self.release_all_frees().await?;
            }
            Ok(true)
        })
    }
}
