//! Dividing an open volume into partitions ([0041](../../../../docs/decisions/0041-partitions.md)).

use crate::cache::{FrameFlags, FrameKey, Frames};
use crate::data::Busy;
use crate::format::StatePage;
use crate::format::superblock::Layout;
use crate::metadata::space::{Division, SpaceGeometry};
use crate::state::{ColdFuture, PARTITIONS_MAX, Store, StoreOptions, Together, Whole, Work};
use adit_base::sync::atomic::Ordering;
use adit_base::{Errno, Error, Result};
use adit_block::BufferPool;
use adit_reactor::Reactor;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// Refuses options that don't go with several partitions.
pub(super) fn check_options(options: &StoreOptions) -> Result<()> {
    let refused = match options.partitions {
        1 => return Ok(()),
        _ if options.read_only => "a volume that is read only has one worker",
        0 => "a volume has one worker at least",
        count if count > PARTITIONS_MAX => "a volume has at most 16 workers",
        _ => return Ok(()),
    };
    Err(Error::with(
        Errno::INVAL,
        format!("open the volume: {refused}"),
    ))
}

/// A place for a worker in a volume: one of its partitions.
pub struct Seat {
    pub(super) options: StoreOptions,
    pub(super) whole: Arc<Whole>,
    pub(super) number: u32,
    pub(super) layout: Layout,
    pub(super) geometry: SpaceGeometry,
    pub(super) folded: Option<StatePage>,
    /// Of the first partition: its memory has a part for each.
    pub(super) frames: Arc<Frames>,
    pub(super) mapping: Option<PathBuf>,
    pub(super) pool: Arc<BufferPool>,
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Seat({})", self.number)
    }
}

impl Seat {
    /// The partition, on a worker's reactor, whose device is the volume's.
    pub fn take(self, reactor: Rc<Reactor>) -> Store {
        let folded = self.folded;
        let store = self.build(reactor);
        store.take_part(folded);
        store
    }
}

impl Store {
    /// Divides the volume, which one partition has so far.
    pub(super) async fn divide(&self) -> Result<()> {
        if !self.blobs.is_empty() {
            let what = "divide a volume that a killed process has left";
            return Err(Error::with(Errno::BUSY, what));
        }
        let count = self.options.partitions;
        let groups = self.state().await?.groups;
        while u64::from(self.state().await?.groups_initialized) < groups.min(u64::from(count)) {
            self.make_group(self.state().await?.groups_initialized)
                .await?;
        }
        while {
            self.settle_before_division().await?;
            // Each partition reads its own pages from their homes.
            self.checkpoint_all().await?;
            !self.is_settled()
        } {}
        let folded = Some(self.state().await?);
        self.keep_state_page();
        self.take_part(folded);
        if !self.options.apart {
            let others: Vec<Store> = (1..count)
                .map(|number| self.seat(number).take(self.reactor.clone()))
                .collect();
            let together = Rc::new(Together::default());
            for store in [self].into_iter().chain(&others) {
                together.add(store);
                let set = store.workers.set(together.clone());
                assert!(set.is_ok(), "a volume is divided once");
            }
            let all = [self].into_iter().chain(&others);
            self.set_all_frames(all.map(|store| store.frames.clone()).collect());
            let set = self.others.set(others);
            assert!(set.is_ok(), "a volume is divided once");
        }
        self.share_space(folded);
        Ok(())
    }

    /// The state page stays in the first partition's cache: after a kill, a takeover adds the
    /// ledgers to this copy, however often it begins again. The device's may have them by then.
    fn keep_state_page(&self) {
        let key = FrameKey::meta(self.layout.get().state_page);
        let frame = self.cache.find(key).expect("it was just read");
        self.cache.set(frame, FrameFlags::HELD);
    }

    /// The seats of the other partitions, if each is to have a worker of its own
    /// ([`StoreOptions::apart`]).
    pub fn seats(&self) -> Vec<Seat> {
        assert!(self.options.apart, "one worker has all partitions");
        (1..self.options.partitions)
            .map(|number| self.seat(number))
            .collect()
    }

    fn seat(&self, number: u32) -> Seat {
        Seat {
            options: self.options.clone(),
            whole: self.whole.clone(),
            number,
            layout: self.layout.get(),
            geometry: *self.space.borrow().geometry(),
            folded: self.folded.get(),
            frames: self.frames.clone(),
            mapping: self.mapping.clone(),
            pool: self.pool.clone(),
        }
    }

    /// From here on it is one of several partitions.
    fn take_part(&self, folded: Option<StatePage>) {
        let division = Division {
            own: self.partition,
            partitions: self.options.partitions,
        };
        self.space.borrow_mut().divide(division);
        self.division.set(division);
        self.folded.set(folded);
    }

    /// From here on all partitions take from one sum of free pages.
    fn share_space(&self, folded: Option<StatePage>) {
        let (pending, whole) = (self.changes.frees.pages(), &self.whole);
        let free = folded.map_or(0, |state| state.free_pages);
        whole.pending.store(pending, Ordering::Release);
        whole.reservations.share(free - pending);
    }

    /// Does work that another partition has asked for.
    pub(crate) fn perform_asked(&self, work: Work) -> ColdFuture<'_, Result<()>> {
        Box::pin(async move {
            match work {
                Work::Commit(point, shared) => self.commit_as_lead(point, shared).await,
                Work::Flush(writes) => self.flush_home(writes).await,
                Work::Checkpoint => self.checkpoint_all().await,
                Work::MakeOpenRoom => self.make_open_room().await,
                Work::LookForOthers => self.look_for_others().await,
                Work::Load(page, kind) => self.load_or_avoid(page, kind).await,
                Work::LoadEnded(page) => {
                    self.own_load_ended(page).await;
                    Ok(())
                }
                Work::ReleaseFrees => {
                    self.release_frees();
                    Ok(())
                }
                Work::MakeGroups => self.make_groups().await,
                Work::MakeRoom(frames) => self.make_room(frames).await,
                Work::GiveBack(run) => {
                    self.space.borrow_mut().give_back(run);
                    Ok(())
                }
                Work::Settle => self.settle().await,
                Work::WriteBack => self.write_back_dirty(Busy::Wait).await,
                Work::TakeHome(tail) => self.take_home(tail).await,
                Work::EndHome(passed) => {
                    self.end_home(passed).await;
                    Ok(())
                }
                Work::Failed => {
                    self.end_after_failure();
                    Ok(())
                }
            }
        })
    }
}
