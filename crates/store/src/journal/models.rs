//! Models of workers that join one open transaction, of the leader that seals it, and of threads
//! that wait for the end of a commit (`cargo xtask models`).
//!
//! A worker's lock is a mutex around its part of the open transaction. The leader has all of them,
//! as in [`crate::Store::commit_from_here`].

use super::*;
use crate::metadata::Need;
use adit_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use adit_base::sync::model::Wrong::{Answers, Relaxed, Skipped};
use adit_base::sync::model::{Bug, check, spawn};
use adit_base::sync::{Mutex, RaceCheck};
use adit_reactor::Awaited;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

const PARTITIONS: usize = 2;

struct World {
    progress: Arc<Progress>,
    workers: [Mutex<OpenTransaction>; PARTITIONS],
    /// The commit in which the last transaction is that was applied.
    applied: AtomicU64,
}

impl World {
    fn new() -> Arc<World> {
        let progress = Arc::new(Progress::new(64, 1, PARTITIONS as u32));
        let part = |number| Mutex::new(OpenTransaction::new(progress.clone(), number));
        Arc::new(World {
            workers: [part(0), part(1)],
            progress,
            applied: AtomicU64::new(0),
        })
    }

    /// A transaction of a partition, as `Store::transact` applies it. False: it was put off.
    fn apply(&self, partition: usize, need: &Need) -> bool {
        let open = self.workers[partition].lock().expect("held");
        if !open.has_room(need) {
            return false;
        }
        open.add(need.journal_bytes);
        let room = &self.progress.room;
        let used: usize = (0..PARTITIONS).map(|other| room.bytes(other)).sum();
        assert!(
            used as u64 <= room.credit(),
            "the page memory would overflow"
        );
        // The next seal has it.
        let number = self.progress.commits.open();
        self.applied.store(number, Ordering::Release);
        true
    }

    /// Seals what was applied, with all partitions. False: another worker leads.
    fn seal(&self) -> bool {
        let sealed = self.progress.lead(|| {
            let parts = self.workers.each_ref();
            let parts = parts.map(|part| part.lock().expect("held"));
            self.progress.commits.seal();
            self.progress.room.clear();
            parts.iter().for_each(|part| part.clear(|_| ()));
        });
        sealed.is_some()
    }
}

/// A part of all credit, in tenths.
fn tenths(world: &World, tenths: usize) -> Need {
    Need {
        journal_bytes: world.progress.room.credit() as usize * tenths / 10,
        ..Need::NONE
    }
}

#[test]
fn workers_are_admitted_as_far_as_the_page_memory_goes() {
    check(3, || {
        let world = World::new();
        let joins = |world: &World, partition| world.apply(partition, &tenths(world, 6));
        let other = world.clone();
        let other = spawn(move || joins(&other, 1));
        let joined = joins(&world, 0);
        assert!(joined != other.join().expect("a thread"), "one has room");
    });
}

#[test]
fn credit_that_a_worker_does_not_need_comes_back() {
    check(3, || {
        let world = World::new();
        // Each takes more credit than that, and keeps what it has used.
        let joins = |world: &World, partition: usize| {
            assert!(world.apply(partition, &tenths(world, 1)));
            let open = world.workers[partition].lock().expect("held");
            open.release_credit();
        };
        let other = world.clone();
        let other = spawn(move || joins(&other, 1));
        joins(&world, 0);
        other.join().expect("a thread");
        assert!(world.apply(0, &tenths(&world, 8)), "credit is lost");
    });
}

#[test]
fn a_point_covers_what_was_applied_before_whichever_worker_did() {
    check(3, || {
        let world = World::new();
        let applies = world.clone();
        let applies = spawn(move || assert!(applies.apply(0, &Need::STEP)));
        let seals = world.clone();
        let seals = spawn(move || assert!(seals.seal()));
        let newest = world.applied.load(Ordering::Acquire);
        let held = world.workers[1].lock().expect("held");
        assert!(
            world.progress.point().0 >= newest,
            "a sync would leave out what was applied before it"
        );
        drop(held);
        applies.join().expect("a thread");
        seals.join().expect("a thread");
    });
}

#[test]
fn one_worker_at_a_time_takes_all_partitions() {
    check(5, || {
        let progress = Arc::new(Progress::new(64, 1, PARTITIONS as u32));
        // All that the leader changes.
        let all = Arc::new(RaceCheck::new());
        let lead = |progress: &Progress, all: &RaceCheck| {
            progress.lead(|| all.write());
        };
        let other = (progress.clone(), all.clone());
        let other = spawn(move || lead(&other.0, &other.1));
        lead(&progress, &all);
        other.join().expect("a thread");
    });
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Woken>) {
        self.0.store(true, Ordering::Release);
    }
}

/// A thread waits for what another one does to the commit that is in flight, or about to be.
fn waits(begins: impl Fn(&Progress), ends: impl Fn(&Progress) + Send + 'static) {
    let progress = Arc::new(Progress::new(64, 1, PARTITIONS as u32));
    begins(&progress);
    let leader = progress.clone();
    let leader = spawn(move || {
        ends(&leader);
        leader.waiters.wake();
    });
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let before = progress.commits.durable();
    let look = || {
        let context = Context::from_waker(&waker);
        progress.waiters.poll(&context, || progress.is_over(before))
    };
    let saw = look();
    leader.join().expect("a thread");
    let is_woken = woken.0.load(Ordering::Acquire);
    assert!(saw == Poll::Ready(()) || is_woken, "it sleeps for ever");
    if saw == Poll::Pending {
        assert_eq!(look(), Poll::Ready(()), "it waits for what has ended");
    }
}

#[test]
fn an_operation_that_waits_for_a_commit_hears_of_its_end() {
    let begins = |progress: &Progress| {
        progress.begin_commit();
        progress.commits.seal();
    };
    let passes = |progress: &Progress| {
        progress.commits.pass(1);
        progress.end_commit();
    };
    check(20, move || waits(begins, passes));
}

#[test]
fn an_operation_that_waits_for_a_leader_hears_that_it_gives_up() {
    let gathers = |progress: &Progress| assert!(progress.followers.wait_for());
    let gives_up = |progress: &Progress| progress.followers.end_wait();
    check(20, move || waits(gathers, gives_up));
}

const OPEN: &str = "store/src/journal/open.rs";
const PROGRESS: &str = "store/src/journal/progress.rs";
const ADMITTED: &str = "journal::models::workers_are_admitted_as_far_as_the_page_memory_goes";
const COMES_BACK: &str = "journal::models::credit_that_a_worker_does_not_need_comes_back";
const COVERS: &str = "journal::models::a_point_covers_what_was_applied_before_whichever_worker_did";

#[test]
fn planted_credit_that_two_workers_take_is_found() {
    Bug::planted(Skipped, OPEN, "fn take", "compare_exchange_weak").found_by(ADMITTED);
}

#[test]
fn planted_credit_that_is_not_given_back_is_found() {
    Bug::planted(Skipped, OPEN, "fn give_back", "fetch_add").found_by(COMES_BACK);
}

#[test]
fn planted_bytes_of_another_partition_that_are_not_looked_at_are_found() {
    Bug::planted(Answers(0), OPEN, "fn bytes(&self, partition", "load").found_by(COVERS);
}

#[test]
fn planted_a_second_leader_is_found() {
    let model = "journal::models::one_worker_at_a_time_takes_all_partitions";
    Bug::planted(Skipped, PROGRESS, "fn lead<", "swap").found_by(model);
}

#[test]
fn planted_a_leader_that_begins_before_the_last_one_has_ended_is_found() {
    let model = "journal::models::one_worker_at_a_time_takes_all_partitions";
    Bug::planted(Relaxed, PROGRESS, "fn drop", "store").found_by(model);
}

#[test]
fn planted_a_leader_that_gives_up_and_is_waited_for_is_found() {
    let model = "journal::models::an_operation_that_waits_for_a_leader_hears_that_it_gives_up";
    let file = "store/src/journal/followers.rs";
    Bug::planted(Skipped, file, "fn end_wait", "store").found_by(model);
}
