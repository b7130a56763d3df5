//! Models of readers against the owner: pins, replacement, reuse, loads, the return stack, the
//! index (`cargo xtask models`).
//!
//! `RaceCheck` finds reads of bytes that change, since a model's threads never copy at the same
//! time. The content shows wrong bytes: a page's first byte is its key's page number, the second
//! its version.

use super::*;
use adit_base::sync::atomic::Ordering;
use adit_base::sync::model::Wrong::{Answers, Relaxed, Skipped};
use adit_base::sync::model::{Bug, check, spawn};

const A: FrameKey = FrameKey { space: 3, page: 1 };
const B: FrameKey = FrameKey { space: 3, page: 2 };
const C: FrameKey = FrameKey { space: 3, page: 3 };
const D: FrameKey = FrameKey { space: 3, page: 4 };

fn stamp(page: &mut PageBytes, key: FrameKey, version: u8) {
    page[..2].copy_from_slice(&[key.page as u8, version]);
}

/// A cache of `frames_max` frames, with version 1 of page A in it.
fn cache(frames_max: u32) -> (Cache, FrameId) {
    let mut cache = Cache::new(&CacheOptions::new(frames_max)).expect("a cache");
    let frame = bring_in(&mut cache, A, 1).expect("a fresh cache has frames");
    (cache, frame)
}

fn bring_in(cache: &mut Cache, key: FrameKey, version: u8) -> Option<FrameId> {
    let frame = cache.allocate()?;
    stamp(cache.raw_mut(frame), key, version);
    cache.insert(frame, key, FrameFlags::VALID);
    Some(frame)
}

/// As a page of metadata.
fn bring_in_meta(cache: &mut Cache, key: FrameKey, version: u8) -> Option<FrameId> {
    let frame = bring_in(cache, key, version)?;
    cache.set_flags(frame, FrameFlags::META);
    Some(frame)
}

/// A cache of `frames_max` frames, with version 1 of page A, which is metadata.
fn cache_of_meta(frames_max: u32) -> (Cache, FrameId) {
    let (mut cache, frame) = cache(frames_max);
    cache.set_flags(frame, FrameFlags::META);
    (cache, frame)
}

/// A transaction that makes a page version 2. Returns its frame from then on.
fn change(cache: &mut Cache, frame: FrameId, key: FrameKey) -> FrameId {
    let shadow = cache.shadow(frame).expect("a frame");
    cache.fill_shadow(shadow, 1);
    stamp(cache.raw_mut(shadow), key, 2);
    let mut now = frame;
    cache.apply(&[(frame, shadow)], |_| (), |applied| now = applied.frame);
    cache.set_pending(now, 0);
    cache.clear_flags(now, FrameFlags::JOURNALED);
    now
}

/// Looks at metadata: the page's version, if it is there, read twice while it is held.
fn look(frames: &Frames, key: FrameKey) -> Option<u8> {
    let pages = frames.hold_pages()?;
    let held = pages.page(key, 0)?;
    assert_eq!(held.bytes[0], key.page as u8, "another page's bytes");
    let version = held.bytes[1];
    let counts = pages.are_of_one_moment();
    let first: *const PageBytes = frames.mapping().page(0);
    // SAFETY: both point into the frames.
    let frame = unsafe { std::ptr::from_ref(held.bytes).offset_from(first) };
    frames.mapping().accesses(frame as u32).read();
    assert_eq!(held.bytes[..2], [key.page as u8, version], "it has changed");
    counts.then_some(version)
}

/// Version of the page, if it is there.
fn read(frames: &Frames, key: FrameKey) -> Option<u8> {
    let mut copy = [0; 2];
    frames.read(key, 0, &mut copy).then(|| {
        assert_eq!(copy[0], key.page as u8, "another page's bytes");
        copy[1]
    })
}

fn version_of(pin: &PinnedFrame<'_>, key: FrameKey) -> u8 {
    assert_eq!(pin.bytes()[0], key.page as u8, "another page's bytes");
    pin.bytes()[1]
}

/// Without pins every frame can be freed: none is lost, and none appears twice.
fn assert_all_come_back(cache: &mut Cache) {
    for key in [A, B] {
        if let Some(frame) = cache.find(key) {
            cache.remove(frame);
        }
    }
    cache.drain_returned();
    let counts = cache.counts();
    assert_eq!((counts.used, counts.retired), (0, 0), "a frame got lost");
}

#[test]
fn no_page_is_copied_while_the_owner_changes_it_and_none_goes_back_in_time() {
    check(3, || {
        let (mut cache, frame) = cache(4);
        let frames = cache.frames().clone();
        let reader = spawn(move || {
            let first = read(&frames, A);
            let second = read(&frames, A);
            assert!(first.is_none() || second.is_none() || first <= second);
        });
        let frame = cache.write_or_replace(frame, |page| stamp(page, A, 2));
        let _ = cache.write_or_replace(frame.expect("a frame"), |page| stamp(page, A, 3));
        reader.join().expect("a thread");
        assert_eq!(read(cache.frames(), A), Some(3));
        assert_all_come_back(&mut cache);
    });
}

#[test]
fn a_pinned_page_stays_as_it_is_while_it_is_replaced_and_removed() {
    check(3, || {
        let (mut cache, frame) = cache(4);
        let frames = cache.frames().clone();
        let reader = spawn(move || {
            if let Some(pin) = frames.pin(A) {
                let version = version_of(&pin, A);
                let buffer = pin.into_buffer();
                assert_eq!(buffer.as_slice()[1], version);
            }
        });
        let frame = cache.write_or_replace(frame, |page| stamp(page, A, 2));
        cache.remove(frame.expect("a frame"));
        let _ = bring_in(&mut cache, A, 3);
        reader.join().expect("a thread");
        assert_all_come_back(&mut cache);
    });
}

#[test]
fn a_frame_is_reused_only_after_its_last_pin_and_no_reader_takes_it_for_its_old_page() {
    check(3, || {
        let (mut cache, frame) = cache(1);
        let frames = cache.frames().clone();
        let reader = spawn(move || read(&frames, A));
        cache.remove(frame);
        // With one frame, this is that frame or none.
        let _ = bring_in(&mut cache, B, 2);
        reader.join().expect("a thread");
        assert_all_come_back(&mut cache);
    });
}

#[test]
fn a_frame_that_gets_its_old_page_again_shows_its_new_content() {
    check(3, || {
        let (mut cache, frame) = cache(1);
        let frames = cache.frames().clone();
        let reader = spawn(move || read(&frames, A));
        cache.remove(frame);
        let _ = bring_in(&mut cache, A, 2);
        let seen = reader.join().expect("a thread");
        assert!(matches!(seen, None | Some(1 | 2)));
        assert_all_come_back(&mut cache);
    });
}

#[test]
fn an_evicted_frame_is_no_longer_read() {
    check(3, || {
        let (mut cache, _) = cache(1);
        let frames = cache.frames().clone();
        let reader = spawn(move || read(&frames, A));
        let _ = bring_in(&mut cache, B, 2);
        reader.join().expect("a thread");
        assert_all_come_back(&mut cache);
    });
}

#[test]
fn a_removed_frame_is_reused_after_all_that_its_two_holders_did() {
    check(20, || {
        let (mut cache, frame) = cache(1);
        let holders = [0, 1].map(|_| {
            let frames = cache.frames().clone();
            let pin = frames.pin(A).expect("it is there");
            let buffer = pin.into_buffer();
            spawn(move || {
                frames.mapping().accesses(frame.0).read();
                drop(buffer);
            })
        });
        cache.remove(frame);
        let _ = bring_in(&mut cache, B, 2);
        for holder in holders {
            holder.join().expect("a thread");
        }
        assert_all_come_back(&mut cache);
    });
}

#[test]
fn of_two_readers_of_a_removed_frame_exactly_one_gives_it_back() {
    check(2, || {
        let (mut cache, frame) = cache(1);
        let readers = [0, 1].map(|_| {
            let frames = cache.frames().clone();
            spawn(move || read(&frames, A))
        });
        cache.remove(frame);
        let _ = bring_in(&mut cache, B, 2);
        for reader in readers {
            reader.join().expect("a thread");
        }
        assert_all_come_back(&mut cache);
    });
}

#[test]
fn a_transaction_shows_its_page_as_it_was_or_as_it_is() {
    check(3, || {
        let (mut cache, frame) = cache(4);
        let frames = cache.frames().clone();
        let reader = spawn(move || {
            let pin = frames.pin(A);
            pin.map(|pin| (version_of(&pin, A), version_of(&pin, A)))
        });
        let shadow = cache.shadow(frame).expect("a frame");
        cache.fill_shadow(shadow, 1);
        stamp(cache.raw_mut(shadow), A, 2);
        let mut now = frame;
        cache.apply(&[(frame, shadow)], |_| (), |applied| now = applied.frame);
        let seen = reader.join().expect("a thread");
        assert!(matches!(seen, None | Some((1, 1) | (2, 2))));
        cache.set_pending(now, 0);
        cache.clear_flags(now, FrameFlags::JOURNALED);
        assert_all_come_back(&mut cache);
    });
}

#[test]
fn pages_that_are_held_while_the_version_stands_are_of_one_moment() {
    check(3, || {
        let (mut cache, first) = cache_of_meta(5);
        let second = bring_in_meta(&mut cache, B, 1).expect("a frame");
        let frames = cache.frames().clone();
        let reader = spawn(move || {
            let pages = frames.hold_pages()?;
            let seen = [A, B].map(|key| pages.page(key, 0).map(|held| held.bytes[1]));
            pages.are_of_one_moment().then_some(seen)
        });
        let edits = [(first, A), (second, B)].map(|(frame, key)| {
            let shadow = cache.shadow(frame).expect("a frame");
            cache.fill_shadow(shadow, 1);
            stamp(cache.raw_mut(shadow), key, 2);
            (frame, shadow)
        });
        let mut now = Vec::new();
        cache.apply(&edits, |_| (), |applied| now.push(applied.frame));
        if let Some([Some(first), Some(second)]) = reader.join().expect("a thread") {
            assert_eq!(first, second, "pages of two moments");
        }
        for frame in now {
            cache.set_pending(frame, 0);
            cache.clear_flags(frame, FrameFlags::JOURNALED);
        }
        assert_all_come_back(&mut cache);
    });
}

#[test]
fn a_held_page_stays_as_it_is_while_a_transaction_changes_it() {
    check(3, || {
        let (mut cache, frame) = cache_of_meta(4);
        let frames = cache.frames().clone();
        let reader = spawn(move || {
            let first = look(&frames, A);
            // It is on the list from the beginning.
            let second = look(&frames, A);
            assert!(first.is_none() || second.is_none() || first <= second);
        });
        let now = change(&mut cache, frame, A);
        reader.join().expect("a thread");
        assert_eq!(look(cache.frames(), A), Some(2));
        cache.remove(now);
        assert_all_come_back(&mut cache);
    });
}

#[test]
fn a_held_page_stays_as_it_is_while_its_frame_is_removed_or_evicted() {
    for is_removed in [true, false] {
        check(3, move || {
            let (mut cache, frame) = cache_of_meta(1);
            let frames = cache.frames().clone();
            let reader = spawn(move || look(&frames, A));
            if is_removed {
                cache.remove(frame);
            }
            // With one frame, this is that frame or none.
            let _ = bring_in_meta(&mut cache, B, 2);
            reader.join().expect("a thread");
            assert_all_come_back(&mut cache);
        });
    }
}

#[test]
fn a_frame_that_is_no_longer_on_the_list_is_reused_after_all_that_was_read_of_it() {
    check(3, || {
        let (mut cache, frame) = cache_of_meta(3);
        let _ = bring_in(&mut cache, C, 1).expect("a frame");
        let other = bring_in_meta(&mut cache, B, 1).expect("a frame");
        assert!(
            (other.0 - frame.0).is_multiple_of(2),
            "they have one place in the list"
        );
        let frames = cache.frames().clone();
        let owner = spawn(move || {
            cache.remove(frame);
            let _ = bring_in_meta(&mut cache, D, 2);
        });
        let _ = look(&frames, A);
        let _ = look(&frames, B);
        owner.join().expect("a thread");
    });
}

#[test]
fn of_two_threads_each_has_a_list_of_its_own() {
    check(2, || {
        let (mut cache, frame) = cache_of_meta(6);
        let _ = bring_in(&mut cache, C, 1).expect("a frame");
        let other = bring_in_meta(&mut cache, B, 1).expect("a frame");
        let readers = [A, B].map(|key| {
            let frames = cache.frames().clone();
            spawn(move || look(&frames, key))
        });
        let now = change(&mut cache, frame, A);
        for reader in readers {
            reader.join().expect("a thread");
        }
        for frame in [now, other] {
            cache.remove(frame);
        }
    });
}

#[test]
fn nobody_reads_a_page_before_its_load_is_over_and_the_owner_sees_what_was_loaded() {
    check(3, || {
        let (mut cache, _) = cache(2);
        let frame = cache.allocate().expect("a second frame");
        cache.insert(frame, B, FrameFlags::LOADING);
        let mut buffer = cache.load_buffer(frame);
        let frames = cache.frames().clone();
        let reader = spawn(move || assert!(matches!(read(&frames, B), None | Some(7))));
        let frames = cache.frames().clone();
        let device = spawn(move || {
            frames.mapping().accesses(frame.0).write();
            let page = buffer.try_mut().expect("readers don't count");
            page[..2].copy_from_slice(&[B.page as u8, 7]);
        });
        // Orders nothing: the assertions of `loading_mut` and `loaded` do.
        let meta = cache.frames().meta(frame.0);
        while meta.loads.load(Ordering::Relaxed) != 0 {
            adit_base::sync::spin_loop();
        }
        assert_eq!(cache.loading_mut(frame)[1], 7);
        cache.loaded(frame);
        device.join().expect("a thread");
        reader.join().expect("a thread");
        assert_eq!(read(cache.frames(), B), Some(7));
        assert_all_come_back(&mut cache);
    });
}

const FRAMES: &str = "store/src/cache/frames.rs";
#[test]
fn a_page_is_overwritten_by_one_thread_at_a_time_and_by_none_that_reads_it() {
    check(3, || {
        let (mut cache, frame) = cache(4);
        cache.set_flags(frame, FrameFlags::DIRTY);
        cache.set_end(frame, 2);
        let writers = [2, 3].map(|version| {
            let frames = cache.frames().clone();
            spawn(move || frames.overwrite(A, 0, &[A.page as u8, version], || {}))
        });
        let seen = read(cache.frames(), A);
        let [two, three] = writers.map(|writer| writer.join().expect("a thread"));
        assert!(seen != Some(2) || two);
        assert!(seen != Some(3) || three);
        // The join ends the grant.
        let last = read(cache.frames(), A).expect("nobody writes");
        assert!(last == 2 && two || last == 3 && three || last == 1 && !two && !three);
        assert_eq!(cache.dirty_granules(frame), u64::from(two || three));
        cache.clear_flags(frame, FrameFlags::DIRTY);
        assert_all_come_back(&mut cache);
    });
}

const OVERWRITTEN: &str =
    "cache::models::a_page_is_overwritten_by_one_thread_at_a_time_and_by_none_that_reads_it";
const WRITTEN: &str =
    "cache::models::no_page_is_copied_while_the_owner_changes_it_and_none_goes_back_in_time";
const REUSED: &str = "cache::models::a_frame_is_reused_only_after_its_last_pin_and_no_reader_takes_it_for_its_old_page";
const AGAIN: &str = "cache::models::a_frame_that_gets_its_old_page_again_shows_its_new_content";
const TWO: &str = "cache::models::of_two_readers_of_a_removed_frame_exactly_one_gives_it_back";
const HELD: &str = "cache::models::a_removed_frame_is_reused_after_all_that_its_two_holders_did";
const MOMENT: &str =
    "cache::models::pages_that_are_held_while_the_version_stands_are_of_one_moment";
const SEQ_COUNT: &str = "base/src/sync/seq_count.rs";
const LOADED: &str =
    "cache::models::nobody_reads_a_page_before_its_load_is_over_and_the_owner_sees_what_was_loaded";

const HAZARDS: &str = "store/src/cache/hazards.rs";
const CHANGED: &str = "cache::models::a_held_page_stays_as_it_is_while_a_transaction_changes_it";
const GONE: &str =
    "cache::models::a_held_page_stays_as_it_is_while_its_frame_is_removed_or_evicted";
const UNLISTED: &str =
    "cache::models::a_frame_that_is_no_longer_on_the_list_is_reused_after_all_that_was_read_of_it";
const OWN: &str = "cache::models::of_two_threads_each_has_a_list_of_its_own";

#[test]
fn planted_a_frame_that_is_not_listed_is_found() {
    Bug::planted(Skipped, HAZARDS, "fn list_at", "swap").found_by(CHANGED);
}

#[test]
fn planted_a_frame_that_is_listed_without_a_fence_is_found() {
    Bug::planted(Skipped, HAZARDS, "fn list_at", "fence_behind_change").found_by(GONE);
}

#[test]
fn planted_a_list_that_is_taken_without_a_fence_is_found() {
    Bug::planted(Skipped, HAZARDS, "fn take_one", "fence_behind_change").found_by(CHANGED);
}

#[test]
fn planted_a_list_that_two_threads_take_is_found() {
    Bug::planted(Skipped, HAZARDS, "fn take_one", "compare_exchange").found_by(OWN);
}

#[test]
fn planted_a_list_that_is_left_without_order_is_found() {
    Bug::planted(Relaxed, HAZARDS, "fn drop(&mut self)", "state.store").found_by(CHANGED);
}

#[test]
fn planted_a_slot_that_the_owner_does_not_see_is_found() {
    Bug::planted(Answers(0), HAZARDS, "fn each", "used.load").found_by(CHANGED);
}

#[test]
fn planted_an_owner_that_does_not_look_at_lists_is_found() {
    Bug::planted(Answers(0), HAZARDS, "fn each", "state.load").found_by(GONE);
}

#[test]
fn planted_an_owner_that_looks_at_lists_without_order_is_found() {
    Bug::planted(Relaxed, HAZARDS, "fn each", "state.load").found_by(CHANGED);
}

#[test]
fn planted_an_owner_that_looks_at_frames_without_order_is_found() {
    Bug::planted(Relaxed, HAZARDS, "fn each", "frame.load").found_by(UNLISTED);
}

#[test]
fn planted_an_owner_that_looks_at_lists_without_a_fence_is_found() {
    Bug::planted(Skipped, FRAMES, "fn read_now", "fence").found_by(GONE);
}

#[test]
fn planted_a_held_page_whose_flags_are_read_without_order_is_found() {
    Bug::planted(Relaxed, "store/src/cache/held.rs", "fn page", "flags.load").found_by(GONE);
}

#[test]
fn planted_a_held_page_that_is_not_asked_again_whose_it_is_is_found() {
    Bug::planted(
        Answers(A.page),
        "store/src/cache/held.rs",
        "fn page",
        "meta.page.load",
    )
    .found_by(GONE);
}

#[test]
fn planted_an_overwrite_that_does_not_look_for_other_pins_is_found() {
    Bug::planted(Skipped, FRAMES, "fn overwrite", "compare_exchange").found_by(OVERWRITTEN);
}

#[test]
fn planted_an_overwrite_that_is_not_ordered_after_reads_is_found() {
    Bug::planted(Relaxed, FRAMES, "fn overwrite", "compare_exchange").found_by(OVERWRITTEN);
}

#[test]
fn planted_an_overwrite_that_is_not_published_is_found() {
    Bug::planted(Relaxed, FRAMES, "fn overwrite", "fetch_and").found_by(OVERWRITTEN);
}

#[test]
fn planted_a_transaction_that_begins_unannounced_is_found() {
    Bug::planted(Skipped, SEQ_COUNT, "pub fn begin", "self.0.store").found_by(MOMENT);
}

#[test]
fn planted_a_pin_that_orders_nothing_is_found() {
    Bug::planted(Relaxed, FRAMES, "fn try_pin", "fetch_add").found_by(WRITTEN);
}

#[test]
fn planted_a_pin_that_is_not_counted_is_found() {
    Bug::planted(Skipped, FRAMES, "fn try_pin", "fetch_add").found_by(WRITTEN);
}

#[test]
fn planted_an_unpin_that_orders_nothing_is_found() {
    Bug::planted(Relaxed, FRAMES, "fn unpin_meta", "fetch_sub").found_by(WRITTEN);
}

#[test]
fn planted_an_owner_that_does_not_look_for_pins_is_found() {
    let file = "store/src/cache/writing.rs";
    Bug::planted(Skipped, file, "fn begin_writing", "compare_exchange").found_by(WRITTEN);
}

#[test]
fn planted_a_change_that_is_not_published_is_found() {
    let file = "store/src/cache/writing.rs";
    Bug::planted(Relaxed, file, "fn drop(&mut self)", "fetch_and").found_by(WRITTEN);
}

#[test]
fn planted_a_reader_that_does_not_check_again_whose_frame_it_is_is_found() {
    let load = "meta.page.load";
    Bug::planted(Answers(A.page), FRAMES, "fn try_pin", load).found_by(REUSED);
}

#[test]
fn planted_a_look_at_valid_without_order_is_found() {
    Bug::planted(Relaxed, FRAMES, "fn try_pin", "meta.flags.load").found_by(AGAIN);
}

#[test]
fn planted_flags_that_are_stored_without_order_are_found() {
    let file = "store/src/cache/owner.rs";
    Bug::planted(Relaxed, file, "fn set_flags_word", "meta.flags.store").found_by(AGAIN);
}

#[test]
fn planted_a_claim_that_orders_nothing_is_found() {
    Bug::planted(Relaxed, FRAMES, "fn claim_retired", "compare_exchange").found_by(HELD);
}

#[test]
fn planted_a_returned_frame_that_is_not_pushed_is_found() {
    Bug::planted(Skipped, FRAMES, "fn give_back", "compare_exchange_weak").found_by(TWO);
}

#[test]
fn planted_a_returned_frame_that_is_pushed_without_order_is_found() {
    Bug::planted(Relaxed, FRAMES, "fn give_back", "compare_exchange_weak").found_by(HELD);
}

#[test]
fn planted_a_load_that_ends_without_order_is_found() {
    Bug::planted(Relaxed, FRAMES, "for Loads", "fetch_sub").found_by(LOADED);
}
