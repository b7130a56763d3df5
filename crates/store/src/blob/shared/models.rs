//! Models of a blob as other threads see it: its size, its bytes, its errors (`cargo xtask
//! models`).

use super::*;
use crate::cache::{Cache, CacheOptions, FrameFlags};
use adit_base::sync::model::Wrong::{Relaxed, Skipped};
use adit_base::sync::model::{Bug, check, spawn};

/// A blob of one byte, and its cache.
fn blob() -> (Cache, crate::cache::FrameId, Arc<BlobShared>) {
    let mut cache = Cache::new(&CacheOptions::new(4)).expect("a cache");
    let frame = cache.allocate().expect("a frame");
    cache.raw_mut(frame)[..2].copy_from_slice(&[1, 0]);
    let key = FrameKey { space: 3, page: 0 };
    cache.insert(frame, key, FrameFlags::VALID);
    let shared = BlobShared {
        id: BlobId {
            slot: 3,
            generation: 0,
        },
        size: AtomicU64::new(1),
        cuts: SeqCount::default(),
        frames: FramesHandle(cache.frames().clone()),
        access_due: AtomicBool::new(false),
        errors: AtomicU64::new(0),
        last_errno: AtomicI32::new(0),
        direct: OnceLock::new(),
        is_mapped: AtomicBool::new(false),
        memory: Mutex::new(None),
    };
    (cache, frame, Arc::new(shared))
}

#[test]
fn who_sees_the_size_sees_the_bytes_below_it() {
    check(3, || {
        let (mut cache, frame, blob) = blob();
        let readers = [0, 1].map(|_| {
            let blob = blob.clone();
            spawn(move || {
                let mut bytes = [9; 2];
                match blob.try_read(0, &mut bytes) {
                    None => {}
                    Some(1) => assert_eq!(bytes[0], 1),
                    Some(_) => assert_eq!(bytes, [1, 2]),
                }
            })
        });
        cache
            .write_or_replace(frame, |page| page[1] = 2)
            .expect("there are frames");
        blob.set_size(2);
        for reader in readers {
            reader.join().expect("a thread");
        }
    });
}

#[test]
fn a_read_beside_a_truncation_sees_the_file_before_or_after() {
    check(3, || {
        let (mut cache, frame, blob) = blob();
        let frame = cache.write_or_replace(frame, |page| page[1] = 2);
        let frame = frame.expect("there are frames");
        blob.set_size(2);
        let reader = {
            let blob = blob.clone();
            spawn(move || {
                let mut bytes = [9; 2];
                match blob.try_read(0, &mut bytes) {
                    None => {}
                    Some(1) => assert_eq!(bytes[0], 1),
                    Some(_) => assert_eq!(bytes, [1, 2]),
                }
            })
        };
        // The steps of `truncate_in_steps` and `zero_tail`.
        blob.set_size(1);
        let _ = cache.write_or_replace(frame, |page| page[1] = 0);
        reader.join().expect("a thread");
    });
}

const CUTS: &str = "blob::shared::models::a_read_beside_a_truncation_sees_the_file_before_or_after";

#[test]
fn planted_a_cut_that_is_not_counted_is_found() {
    let file = "base/src/sync/seq_count.rs";
    Bug::planted(Skipped, file, "pub fn step", "self.0.store").found_by(CUTS);
}

#[test]
fn a_descriptor_reports_each_error_once_and_by_its_name() {
    check(3, || {
        let (_cache, _, blob) = blob();
        let seen = Arc::new(AtomicU64::new(0));
        let askers = [0, 1].map(|_| {
            let (blob, seen) = (blob.clone(), seen.clone());
            spawn(move || match blob.check_error(&seen) {
                Ok(()) => 0,
                Err(error) => {
                    assert_eq!(error.errno(), Errno::NOSPC);
                    1
                }
            })
        });
        blob.note_error(Errno::NOSPC);
        blob.note_error(Errno::NOSPC);
        let reports: u32 = askers
            .map(|asker| asker.join().expect("a thread"))
            .iter()
            .sum();
        let last = u32::from(blob.check_error(&seen).is_err());
        assert!((1..=2).contains(&(reports + last)));
        assert!(blob.check_error(&seen).is_ok());
    });
}

const ERRORS: &str = "blob::shared::models::a_descriptor_reports_each_error_once_and_by_its_name";

#[test]
fn planted_an_error_that_is_counted_without_order_is_found() {
    Bug::planted(
        Relaxed,
        "store/src/blob/shared/mod.rs",
        "fn note_error",
        "errors.fetch_add",
    )
    .found_by(ERRORS);
}
