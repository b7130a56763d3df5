//! Models of a slot that is read without the worker while cached writes are ahead of it (`cargo
//! xtask models`).

use super::*;
use crate::cache::{Cache, CacheOptions, FrameFlags, FrameKey, HeldPages};
use adit_base::sync::model::Wrong::{Relaxed, Skipped};
use adit_base::sync::model::{Bug, check, spawn};
use std::sync::Arc;

const SLOT: u64 = 3;

#[test]
fn a_slot_that_is_read_without_the_worker_has_what_was_acknowledged_before() {
    check(3, || {
        let key = FrameKey::meta(1);
        let mut cache = Cache::new(&CacheOptions::new(4)).expect("a cache");
        let frame = cache.allocate().expect("a frame");
        cache.raw_mut(frame)[0] = 1;
        cache.insert(frame, key, FrameFlags::VALID);
        let (ahead, acknowledged) = (Arc::new(Ahead::default()), Arc::new(AtomicU32::new(1)));
        let reader = {
            let (ahead, acknowledged) = (ahead.clone(), acknowledged.clone());
            let frames = cache.frames().clone();
            spawn(move || {
                let newest = acknowledged.load(Ordering::Acquire);
                let Some(version) = frames.version() else {
                    return;
                };
                let pages = HeldPages::new(&frames);
                let Some(size) = pages.page(key, 0).map(|held| held.bytes[0]) else {
                    return;
                };
                if !ahead.may_contain(SLOT) && frames.is_at(version) {
                    assert!(
                        u32::from(size) >= newest,
                        "older than what was acknowledged"
                    );
                }
            })
        };
        // A cached write; later its size goes into the slot.
        ahead.add(SLOT);
        acknowledged.store(2, Ordering::Release);
        let shadow = cache.shadow(frame).expect("a frame");
        cache.fill_shadow(shadow, 1);
        cache.raw_mut(shadow)[0] = 2;
        cache.apply(&[(frame, shadow)], |_| (), |_| {});
        ahead.remove(SLOT);
        reader.join().expect("a thread");
    });
}

const MODEL: &str =
    "blob::ahead::models::a_slot_that_is_read_without_the_worker_has_what_was_acknowledged_before";
const FILE: &str = "store/src/blob/ahead/mod.rs";

#[test]
fn planted_a_blob_that_is_not_counted_is_found() {
    Bug::planted(Skipped, FILE, "pub(crate) fn add", "fetch_add").found_by(MODEL);
}

#[test]
fn planted_a_blob_that_is_uncounted_without_order_is_found() {
    Bug::planted(Relaxed, FILE, "pub(crate) fn remove", "fetch_sub").found_by(MODEL);
}

#[test]
fn planted_a_count_that_is_read_without_order_is_found() {
    Bug::planted(Relaxed, FILE, "pub(crate) fn may_contain", "load").found_by(MODEL);
}
