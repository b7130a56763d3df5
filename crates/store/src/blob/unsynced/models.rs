//! Models of threads that overwrite a page and sync it without the worker (`cargo xtask models`).
//!
//! The page's home is two numbers, one a thread. The steps of a write are those of
//! `BlobShared::try_write`, those of a sync of `DirectIo::sync`; both are inside one grant.

use super::*;
use crate::cache::{Cache, CacheOptions, FrameFlags, FrameKey, Frames};
use adit_base::sync::atomic::AtomicU64;
use adit_base::sync::model::Wrong::Skipped;
use adit_base::sync::model::{Bug, check, spawn};
use std::sync::Arc;

const PAGE: FrameKey = FrameKey { space: 3, page: 1 };

struct World {
    frames: Arc<Frames>,
    unsynced: Unsynced,
    home: [AtomicU64; 2],
}

impl World {
    fn write(&self, thread: usize, version: u8) -> bool {
        let list = || self.unsynced.note(PAGE.page as u32);
        self.frames.overwrite(PAGE, thread, &[version], list)
    }

    /// True: all that was written before is at home.
    fn sync(&self) -> bool {
        let Some(pages) = self.unsynced.take() else {
            return false;
        };
        let mut all_home = true;
        for _ in pages {
            match self.frames.pin_dirty(PAGE) {
                Some(frame) if frame.has_dirty_granules() => {
                    // SAFETY: dropped before the frame is.
                    let bytes = unsafe { frame.borrowed() };
                    for (home, byte) in self.home.iter().zip(bytes.as_slice()) {
                        home.store(u64::from(*byte), Ordering::Relaxed);
                    }
                    drop(bytes);
                    frame.note_home();
                }
                Some(_) => {}
                None => all_home = false,
            }
        }
        self.unsynced.give_back(all_home);
        all_home
    }

    /// After a sync the thread's bytes are at home.
    fn write_and_sync(&self, thread: usize, version: u8) {
        if self.write(thread, version) && self.sync() {
            let home = self.home[thread].load(Ordering::Relaxed);
            assert_eq!(
                home,
                version.into(),
                "a sync returned before its write was home"
            );
        }
    }
}

#[test]
fn a_sync_returns_when_what_its_thread_wrote_is_home() {
    check(3, || {
        let mut cache = Cache::new(&CacheOptions::new(4)).expect("a cache");
        let frame = cache.allocate().expect("a fresh cache has frames");
        cache.raw_mut(frame)[..2].fill(1);
        cache.insert(frame, PAGE, FrameFlags::VALID | FrameFlags::DIRTY);
        cache.set_end(frame, 2);
        let world = Arc::new(World {
            frames: cache.frames().clone(),
            unsynced: Unsynced::default(),
            home: [1, 1].map(AtomicU64::new),
        });
        world.unsynced.settle();
        let other = world.clone();
        let other = spawn(move || other.write_and_sync(1, 9));
        world.write_and_sync(0, 2);
        world.write_and_sync(0, 3);
        other.join().expect("a thread");
    });
}

#[test]
fn pages_for_which_there_is_no_room_are_owed() {
    check(2, || {
        let unsynced = Arc::new(Unsynced::default());
        unsynced.settle();
        let other = unsynced.clone();
        let other = spawn(move || (0..PAGES_MAX as u32).for_each(|page| other.note(page)));
        unsynced.note(PAGES_MAX as u32);
        other.join().expect("a thread");
        assert!(
            unsynced.take().is_none(),
            "a page is neither listed nor owed"
        );
    });
}

const NO_ROOM: &str = "blob::unsynced::models::pages_for_which_there_is_no_room_are_owed";
const HOME: &str = "blob::unsynced::models::a_sync_returns_when_what_its_thread_wrote_is_home";
const UNSYNCED: &str = "store/src/blob/unsynced/mod.rs";

#[test]
fn planted_a_page_that_has_no_room_and_is_not_owed_is_found() {
    Bug::planted(Skipped, UNSYNCED, "fn owe", "owed.store").found_by(NO_ROOM);
}

#[test]
fn planted_a_page_at_home_that_keeps_dirty_granules_is_found() {
    let file = "store/src/cache/frames.rs";
    Bug::planted(Skipped, file, "fn note_home", "store").found_by(HOME);
}
