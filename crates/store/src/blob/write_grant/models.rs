//! Models of writers under a grant against the worker, which recalls it (`cargo xtask models`).
//!
//! The device is two pages, of one number each; its queue orders its accesses between the caller's
//! earlier and later ones.

use super::*;
use crate::metadata::extents::Extent;
use adit_base::sync::model::Wrong::{Relaxed, Skipped};
use adit_base::sync::model::{Bug, check, spawn};
use adit_base::sync::{Condvar, Mutex};
use std::sync::Arc;

const OLD: u64 = 1;
const NEWER: u64 = 2;
const FOREIGN: u64 = 9;

struct World {
    grant: WriteGrant,
    device: [AtomicU64; 2],
    told: (Mutex<bool>, Condvar),
}

fn lent() -> Arc<World> {
    let world = Arc::new(World {
        grant: WriteGrant::default(),
        device: [OLD, OLD].map(AtomicU64::new),
        told: (Mutex::new(false), Condvar::new()),
    });
    world.grant_writes(0);
    world
}

impl World {
    /// The steps of `BlobShared::try_write_direct` and of its caller, who tells the worker.
    fn write(&self) -> bool {
        let (written, recalled) = match self.grant.enter() {
            Err(recalled) => (false, recalled),
            Ok(()) => {
                let ticket = self.grant.extents.find(0, 1);
                if let Some(ticket) = ticket {
                    self.device[ticket.home as usize].store(NEWER, Ordering::Relaxed);
                    self.grant.note_written(
                        Timestamp {
                            seconds: 1,
                            nanoseconds: 0,
                        },
                        true,
                    );
                }
                (ticket.is_some(), self.grant.leave())
            }
        };
        if recalled {
            *self.told.0.lock().expect("held") = true;
            self.told.1.notify_one();
        }
        written
    }

    /// The steps of `Store::grant_writes`.
    fn grant_writes(&self, physical: u64) {
        self.grant.extents.publish(Extent {
            logical: 0,
            pages: 1,
            physical,
            unwritten: false,
        });
        self.grant.open();
    }

    /// The steps of `Store::wait_for_recall`: waits to be told.
    fn take_back(&self) {
        while !self.grant.recall() {
            let mut told = self.told.0.lock().expect("held");
            while !*told {
                told = self.told.1.wait(told).expect("held");
            }
            *told = false;
        }
        self.grant.extents.forget();
    }
}

#[test]
fn pages_that_came_back_are_written_by_nobody() {
    check(3, || {
        let world = lent();
        let writers = [0, 1].map(|_| {
            let world = world.clone();
            spawn(move || world.write())
        });
        world.take_back();
        let noted = world.grant.written_home.load(Ordering::Relaxed);
        let found = world.device[0].load(Ordering::Relaxed);
        assert_eq!(
            noted,
            found == NEWER,
            "a write that the worker doesn't hear of"
        );
        // The page goes to another blob, and the blob gets another page.
        world.device[0].store(FOREIGN, Ordering::Relaxed);
        world.grant_writes(1);
        let written = writers.map(|writer| writer.join().expect("a thread"));
        assert_eq!(world.device[0].load(Ordering::Relaxed), FOREIGN);
        world.take_back();
        let noted = world.grant.written_home.load(Ordering::Relaxed);
        assert_eq!(noted, written.contains(&true));
    });
}

const COME_BACK: &str = "blob::write_grant::models::pages_that_came_back_are_written_by_nobody";

#[test]
fn planted_leaving_before_the_write_is_there_is_found() {
    Bug::planted(
        Relaxed,
        "store/src/blob/write_grant/mod.rs",
        "pub(crate) fn leave",
        "word.fetch_sub(1",
    )
    .found_by(COME_BACK);
}

#[test]
fn planted_taking_back_without_looking_behind_who_left_is_found() {
    Bug::planted(
        Relaxed,
        "store/src/blob/write_grant/mod.rs",
        "fn end(",
        "compare_exchange(RECALLED",
    )
    .found_by(COME_BACK);
}

#[test]
fn planted_entering_uncounted_is_found() {
    Bug::planted(
        Skipped,
        "store/src/blob/write_grant/mod.rs",
        "pub(crate) fn enter",
        "word.fetch_add(1",
    )
    .found_by(COME_BACK);
}
