//! Models of a slot that is read without the worker while cached writes are ahead of it (`cargo
//! xtask models`).

use super::*;
use crate::cache::{Cache, CacheOptions, FrameFlags, FrameKey};
use adit_base::sync::SeqCount;
use adit_base::sync::atomic::AtomicU64;
use adit_base::sync::model::Wrong::{Answers, Relaxed, Skipped};
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
        cache.insert(frame, key, FrameFlags::VALID | FrameFlags::META);
        let frames = cache.frames().clone();
        let ahead = frames.ahead(AheadOf::Attributes);
        let acknowledged = Arc::new(AtomicU32::new(1));
        // The size that `BlobShared` holds.
        let shared_size = Arc::new(AtomicU32::new(1));
        let reader = {
            let (acknowledged, shared_size) = (acknowledged.clone(), shared_size.clone());
            let frames = cache.frames().clone();
            spawn(move || {
                let newest = acknowledged.load(Ordering::Acquire);
                let Some(pages) = frames.hold_pages() else {
                    return;
                };
                let Some(size) = pages.page(key, 0).map(|held| held.bytes[0]) else {
                    return;
                };
                let ahead = frames.ahead(AheadOf::Attributes);
                if !ahead.may_contain(SLOT) && pages.are_of_one_moment() {
                    assert!(
                        u32::from(size) >= newest,
                        "older than what was acknowledged"
                    );
                    assert!(
                        shared_size.load(Ordering::Relaxed) >= u32::from(size),
                        "the blob has not the size of its slot"
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
        shared_size.store(2, Ordering::Relaxed);
        ahead.remove(SLOT);
        reader.join().expect("a thread");
    });
}

#[test]
fn a_slot_that_another_process_reads_has_what_was_acknowledged_before() {
    #[derive(Default)]
    struct Shared {
        version: SeqCount,
        size: AtomicU64,
        counts: [AtomicU32; AHEAD_COUNTS],
        acknowledged: AtomicU64,
    }
    check(3, || {
        let shared = Arc::new(Shared::default());
        let reader = shared.clone();
        let thread = spawn(move || {
            let newest = reader.acknowledged.load(Ordering::Acquire);
            let Some(version) = reader.version.read() else {
                return;
            };
            let size = reader.size.load(Ordering::Relaxed);
            let ahead = AheadCounts::among(&reader.counts, AheadOf::Size);
            if !ahead.may_contain(SLOT) && reader.version.is_still(version) {
                assert!(size >= newest, "older than what was acknowledged");
            }
        });
        // A cached write; later its size goes into the slot.
        let ahead = AheadCounts::among(&shared.counts, AheadOf::Size);
        ahead.add(SLOT);
        shared.acknowledged.store(1, Ordering::Release);
        shared.version.begin();
        shared.size.store(1, Ordering::Relaxed);
        shared.version.end();
        ahead.remove(SLOT);
        thread.join().expect("the reader");
    });
}

const MODEL: &str = "cache::ahead_counts::models::a_slot_that_is_read_without_the_worker_has_what_was_acknowledged_before";
const FILE: &str = "store/src/cache/ahead_counts/mod.rs";

#[test]
fn planted_a_blob_that_is_not_counted_is_found() {
    Bug::planted(Skipped, FILE, "pub(crate) fn add", "fetch_add").found_by(MODEL);
}

#[test]
fn planted_a_blob_that_is_uncounted_without_order_is_found() {
    Bug::planted(Relaxed, FILE, "pub(crate) fn remove", "fetch_sub").found_by(MODEL);
}

#[test]
fn planted_a_count_that_is_not_looked_at_is_found() {
    let model = "cache::ahead_counts::models::a_slot_that_another_process_reads_has_what_was_acknowledged_before";
    Bug::planted(Answers(0), FILE, "pub(crate) fn may_contain", "load").found_by(model);
}
