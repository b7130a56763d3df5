//! Tests of a cache by one thread at a time; `stress.rs` has the rest.

use super::mapping::{frames_within, mapping_bytes};
use super::*;
use adit_base::PAGE_BYTES;
use std::path::Path;
use std::sync::atomic::Ordering;

fn cache(frames: u32) -> Cache {
    Cache::new(&CacheOptions::new(frames)).expect("a cache")
}

fn key(page: u64) -> FrameKey {
    FrameKey { space: 77, page }
}

fn add(cache: &mut Cache, page: u64, fill: u8) -> FrameId {
    let id = cache.allocate().expect("a frame");
    cache.raw_mut(id).fill(fill);
    cache.insert(id, key(page), FrameFlags::VALID);
    id
}

fn first_byte(cache: &Cache, page: u64) -> Option<u8> {
    let mut byte = [0];
    cache
        .frames()
        .read(key(page), 100, &mut byte)
        .then_some(byte[0])
}

#[test]
fn an_inserted_page_is_read_and_a_removed_one_is_not() {
    let mut cache = cache(64);
    let id = add(&mut cache, 5, 9);
    assert_eq!(cache.find(key(5)), Some(id));
    assert_eq!(first_byte(&cache, 5), Some(9));
    assert_eq!(first_byte(&cache, 6), None);
    cache.remove(id);
    assert_eq!(cache.find(key(5)), None);
    assert_eq!(first_byte(&cache, 5), None);
    assert_eq!(cache.counts().used, 0);
    assert_eq!(cache.counts().clean, 0);
}

#[test]
fn a_read_of_many_pages_has_all_of_them_or_says_no_and_leaves_no_pin() {
    let mut cache = cache(64);
    let ids: Vec<_> = (0..20)
        .map(|page| add(&mut cache, page, page as u8))
        .collect();
    for (offset, len) in [(0, 20 * PAGE_BYTES), (100, 8 * PAGE_BYTES), (4095, 2)] {
        let mut into = vec![0xff; len];
        assert!(cache.frames().read(key(0), offset, &mut into));
        let pages = (offset..offset + len).map(|at| (at / PAGE_BYTES) as u8);
        assert!(into.iter().copied().eq(pages));
    }
    // Not side by side: 5 and 13 change places.
    cache.remove(ids[5]);
    cache.remove(ids[13]);
    let ids: Vec<_> = (ids.iter().enumerate())
        .map(|(page, id)| match page {
            5 => add(&mut cache, 5, 5),
            13 => add(&mut cache, 13, 13),
            _ => *id,
        })
        .collect();
    for (offset, len) in [(0, 20 * PAGE_BYTES), (3 * PAGE_BYTES - 1, 9 * PAGE_BYTES)] {
        let mut into = vec![0xff; len];
        let first = (offset / PAGE_BYTES) as u64;
        let within = offset % PAGE_BYTES;
        assert!(cache.frames().read(key(first), within, &mut into));
        let pages = (offset..offset + len).map(|at| (at / PAGE_BYTES) as u8);
        assert!(into.iter().copied().eq(pages));
    }
    cache.remove(ids[13]);
    let mut into = vec![0; 20 * PAGE_BYTES];
    assert!(!cache.frames().read(key(0), 0, &mut into));
    for &id in ids.iter().filter(|&&id| id != ids[13]) {
        assert!(cache.write(id, |_| ()).is_ok(), "nobody pins it");
    }
}

#[test]
fn neighbours_and_strides_are_all_found() {
    for stride in [1, 16, 256, 1 << 20] {
        let mut cache = cache(3000);
        for at in 0..3000 {
            add(&mut cache, at * stride, at as u8);
        }
        for at in 0..3000 {
            assert_eq!(first_byte(&cache, at * stride), Some(at as u8));
        }
    }
}

#[test]
fn eviction_takes_clean_pages_that_nobody_looked_at() {
    let mut cache = cache(8);
    let ids: Vec<_> = (0..8).map(|page| add(&mut cache, page, 1)).collect();
    assert_eq!(first_byte(&cache, 0), Some(1));
    cache.set_flags(ids[1], FrameFlags::DIRTY);
    cache.set_flags(ids[2], FrameFlags::JOURNALED);
    cache.set_flags(ids[3], FrameFlags::WRITEBACK);
    let frames = cache.frames().clone();
    let pinned = frames.pin(key(4)).expect("cached");
    assert_eq!(cache.allocate(), Some(ids[5]));
    assert_eq!(cache.allocate(), Some(ids[6]));
    assert_eq!(cache.allocate(), Some(ids[7]));
    assert_eq!(cache.allocate(), Some(ids[0]), "it had its second chance");
    assert_eq!(cache.allocate(), None, "the rest is dirty, busy or pinned");
    drop(pinned);
    assert_eq!(cache.allocate(), Some(ids[4]));
    assert_eq!(cache.counts().clean, 0);
    assert_eq!(cache.counts().dirty, 1);
    assert_eq!(cache.counts().journaled, 1);
    cache.clear_flags(ids[1], FrameFlags::DIRTY);
    assert_eq!(cache.allocate(), Some(ids[1]));
}

#[test]
fn writing_a_pinned_page_replaces_it_and_the_pin_keeps_the_old_one() {
    let mut cache = cache(64);
    add(&mut cache, 1, 1);
    let old = add(&mut cache, 2, 2);
    add(&mut cache, 3, 3);
    cache.set_flags(old, FrameFlags::DIRTY);
    cache.set_kind(old, 7);
    cache.set_home(old, 1234);
    cache.set_generation(old, 4);
    cache.set_end(old, 100);
    cache.set_pending(old, 1 << 63);
    cache.set_lsns(old, 10, 11);
    let frames = cache.frames().clone();
    let buffer = frames.pin(key(2)).expect("cached").into_buffer();
    assert_eq!(cache.write(old, |_| ()), Err(Pinned));

    let new = cache
        .write_or_replace(old, |page| page[0] = 200)
        .expect("a frame");
    assert_ne!(new, old);
    assert_eq!(buffer.as_slice(), [2; PAGE_BYTES]);
    assert_eq!((cache.bytes(new)[0], cache.bytes(new)[1]), (200, 2));
    assert_eq!(cache.find(key(2)), Some(new));
    assert!(cache.flags(new).contains(FrameFlags::DIRTY));
    assert_eq!((cache.kind(new), cache.home(new)), (7, 1234));
    assert_eq!((cache.generation(new), cache.end(new)), (4, 100));
    assert_eq!(cache.pending(new), 1 << 63);
    assert_eq!((cache.first_lsn(new), cache.last_lsn(new)), (10, 11));
    assert_eq!(cache.counts().dirty, 1);
    assert_eq!((cache.counts().used, cache.counts().retired), (4, 1));

    drop(buffer);
    assert_eq!(cache.allocate(), Some(old), "the last pin gave it back");
    assert_eq!(cache.counts().retired, 0);
    assert_eq!(cache.write_or_replace(new, |page| page[0] = 3), Some(new));
}

#[test]
fn metadata_that_a_thread_holds_is_replaced_and_comes_back_when_the_thread_has_left() {
    let mut cache = cache(64);
    let frames = cache.frames().clone();
    let ids = [1, 2, 3].map(|page| {
        let id = add(&mut cache, page, page as u8);
        cache.set_flags(id, FrameFlags::META);
        id
    });
    let [changed, removed, _] = ids;
    let pages = frames.hold_pages().expect("no other thread reads");
    let held = [1, 2].map(|page| pages.page(key(page), 0).expect("cached"));

    let shadow = cache.shadow(changed).expect("a frame");
    cache.fill_shadow(shadow, 1);
    cache.raw_mut(shadow)[0] = 9;
    let mut now = changed;
    cache.apply(&[(changed, shadow)], |_| (), |applied| now = applied.frame);
    assert_ne!(now, changed, "a held page isn't changed in place");
    cache.remove(removed);
    assert_eq!(held.each_ref().map(|held| held.bytes[0]), [1, 2]);
    assert!(!pages.are_of_one_moment());
    assert_eq!(cache.counts().retired, 2);
    let taken = cache.allocate().expect("a frame");
    assert!(![changed, removed].contains(&taken));
    assert_eq!(cache.counts().retired, 2);

    drop(pages);
    let next = cache.allocate().expect("a frame");
    assert!([changed, removed].contains(&next), "its reader has left");
    assert_eq!(cache.counts().retired, 0);
    let pages = frames.hold_pages().expect("no other thread reads");
    let bytes = pages
        .page(key(1), 0)
        .map(|held| [held.bytes[0], held.bytes[64]]);
    assert_eq!(bytes, Some([9, 1]));
    assert!(pages.are_of_one_moment());
}

#[test]
fn metadata_that_a_thread_holds_is_evicted_after_other_pages() {
    let mut cache = cache(2);
    let frames = cache.frames().clone();
    let first = add(&mut cache, 1, 1);
    cache.set_flags(first, FrameFlags::META);
    let pages = frames.hold_pages().expect("no other thread reads");
    let held = pages.page(key(1), 0).expect("cached");
    let second = add(&mut cache, 2, 2);
    assert_eq!(cache.allocate(), Some(second));
    assert_eq!(cache.allocate(), None, "the other frame is read");
    assert_eq!(held.bytes[0], 1);
    drop(pages);
    assert_eq!(cache.allocate(), Some(first));
}

#[test]
fn a_removed_page_lives_as_long_as_its_last_buffer() {
    let mut cache = cache(2);
    let id = add(&mut cache, 1, 1);
    let buffer = cache.buffer(id);
    let clone = buffer.clone();
    cache.remove(id);
    drop(buffer);
    assert_eq!(cache.counts().retired, 1);
    let other = cache.allocate().expect("the other frame");
    assert_ne!(other, id);
    assert_eq!(cache.allocate(), None);
    assert_eq!(clone.as_slice()[7], 1);
    drop(clone);
    assert_eq!(cache.allocate(), Some(id));
}

#[test]
fn a_loading_page_is_exclusive_and_then_there() {
    let mut cache = cache(4);
    let id = cache.allocate().expect("a frame");
    cache.insert(id, key(3), FrameFlags::LOADING);
    assert_eq!(cache.find(key(3)), Some(id));
    assert_eq!(first_byte(&cache, 3), None);
    let mut buffer = cache.load_buffer(id);
    buffer.try_mut().expect("the only one").fill(8);
    let clone = buffer.clone();
    assert!(buffer.try_mut().is_none());
    drop(clone);
    drop(buffer);
    assert_eq!(cache.loading_mut(id)[0], 8);
    cache.loaded(id);
    assert_eq!(first_byte(&cache, 3), Some(8));
    assert_eq!(cache.counts().clean, 1);
}

#[test]
fn applying_changes_granules_in_place_or_swaps_frames_when_pinned() {
    let mut cache = cache(16);
    let free = add(&mut cache, 1, 1);
    let pinned = add(&mut cache, 2, 2);
    let same = add(&mut cache, 3, 3);
    cache.set_pending(pinned, 1 << 10);
    let frames = cache.frames().clone();
    let reader = frames.pin(key(2)).expect("cached");
    let mut edits = Vec::new();
    for target in [free, pinned, same] {
        edits.push((target, cache.shadow(target).expect("a frame")));
    }
    cache.fill_shadow(edits[0].1, 0b11);
    cache.fill_shadow(edits[1].1, 1 << 63);
    cache.fill_shadow(edits[2].1, u64::MAX);
    cache.raw_mut(edits[0].1)[63] = 100;
    cache.raw_mut(edits[0].1)[64] = 100;
    cache.raw_mut(edits[1].1)[4095] = 100;
    assert_eq!(first_byte(&cache, 1), Some(1), "nothing is visible yet");
    let mut applied = Vec::new();
    cache.apply(&edits, |_| (), |one| applied.push(one));

    assert_eq!((applied[0].frame, applied[0].changed), (free, 0b11));
    assert_eq!(
        (applied[1].frame, applied[1].changed),
        (edits[1].1, 1 << 63)
    );
    assert_eq!(applied[1].was_pending, 1 << 10);
    assert_eq!((applied[2].frame, applied[2].changed), (same, 0));
    let swapped = edits[1].1;
    assert_eq!(cache.pending(swapped), 1 << 63 | 1 << 10);
    assert_eq!(cache.pending(free), 0b11);
    assert_eq!(cache.bytes(free)[63..66], [100, 100, 1]);
    assert_eq!(cache.bytes(swapped)[4094..], [2, 100]);
    assert_eq!(reader.bytes()[4094..], [2, 2]);
    assert_eq!(cache.find(key(2)), Some(swapped));
    let shown = cache.flags(swapped);
    assert_eq!(
        shown,
        FrameFlags::VALID | FrameFlags::JOURNALED | FrameFlags::INDEXED
    );
    assert_eq!(cache.counts().journaled, 2);
    assert_eq!(cache.counts().used, 4);
    drop(reader);
    cache.allocate().expect("a frame");
    assert_eq!(cache.counts().used, 4, "the replaced frame came back first");
}

#[test]
fn a_shadow_has_what_was_asked_for_and_keeps_what_was_changed() {
    let mut cache = cache(4);
    let target = add(&mut cache, 1, 7);
    let shadow = cache.shadow(target).expect("a frame");
    cache.fill_shadow(shadow, 1 << 5);
    cache.raw_mut(shadow)[5 * 64] = 8;
    cache.fill_shadow(shadow, u64::MAX);
    let mut expected = [7; 4096];
    expected[5 * 64] = 8;
    assert_eq!(cache.raw_mut(shadow), &expected);
    let mut applied = None;
    cache.apply(&[(target, shadow)], |_| (), |one| applied = Some(one));
    assert_eq!(applied.expect("reported").changed, 1 << 5);
    assert_eq!(cache.bytes(target), &expected);
}

#[test]
fn salvage_repeats_an_apply_with_the_granules_that_a_shadow_has() {
    let directory = in_shared_memory();
    let mut cache = shared(directory.path(), 2000, 9);
    let target = add(&mut cache, 4, 4);
    cache.set_home(target, 4000);
    let shadow = cache.shadow(target).expect("a frame");
    cache.fill_shadow(shadow, 0b110);
    cache.raw_mut(shadow)[128] = 44;
    // Killed right after the apply began.
    let frames = cache.frames();
    frames.meta(shadow.0).loads.store(7, Ordering::Relaxed);
    frames.header().applying.store(7, Ordering::Relaxed);
    drop(cache);

    let left = found(directory.path()).remove(0);
    let pending = left.pending().remove(0);
    assert_eq!((pending.home, pending.granules), (4000, 1 << 2));
    let (mut bytes, mut expected) = ([0; 4096], [4; 4096]);
    expected[128] = 44;
    left.read(pending.frame, &mut bytes).expect("read");
    assert_eq!(bytes, expected);
}

/// A transaction over several caches is repeated in all of them, or in none: whatever the numbers
/// of their own applies are.
#[test]
fn salvage_repeats_an_apply_in_all_parts_about_which_one_decided() {
    for (decided, own_number_too) in [(false, false), (true, false), (true, true), (false, true)] {
        let directory = in_shared_memory();
        let mut options = CacheOptions::shared(3000, SharedName::new(directory.path(), 42, 9));
        options.parts = 3;
        let first = Cache::new(&options).expect("a cache");
        let mut parts = vec![first];
        parts.extend([1, 2].map(|part| parts[0].frames().other_part(part)));
        let number = parts[1].next_apply();
        for part in [0, 1, 2] {
            let cache = &mut parts[part];
            // An apply of its own before, whose shadow's frame is used again.
            let other = add(cache, 100 + part as u64, 1);
            let shadow = cache.shadow(other).expect("a frame");
            cache.apply(&[(other, shadow)], |_| (), |_| ());
            let target = add(cache, part as u64, 4);
            cache.set_home(target, 4000 + part as u64);
            let decides = if part == 0 && own_number_too { 0 } else { 1 };
            let shadow = cache.shadow_for(target, decides).expect("a frame");
            cache.fill_shadow(shadow, 0b110);
            cache.raw_mut(shadow)[128] = 44;
            cache.number_shadows(&[(target, shadow)], number + 1);
        }
        if decided {
            parts[1].decide(number + 1, |_| ());
        }
        drop(parts);
        let left = found(directory.path()).remove(0);
        assert_eq!(left.applied().expect("numbers").len(), 3);
        let pending = left.pending();
        let repeated: Vec<u32> = pending.iter().map(|of| of.part).collect();
        // Another part's number means nothing.
        let expected: &[u32] = match (decided, own_number_too) {
            (false, _) => &[],
            (true, false) => &[0, 1, 2],
            (true, true) => &[1, 2],
        };
        assert_eq!(repeated, expected);
        for page in pending {
            let (mut bytes, mut expected) = ([0; 4096], [4; 4096]);
            expected[128] = 44;
            left.read(page.frame, &mut bytes).expect("read");
            assert_eq!((bytes, page.home), (expected, 4000 + u64::from(page.part)));
        }
        left.delete().expect("deleted");
    }
}

/// The lock goes with the last part: until then somebody may change the memory.
#[test]
fn memory_is_given_up_with_its_last_part() {
    let directory = in_shared_memory();
    let mut options = CacheOptions::shared(2000, SharedName::new(directory.path(), 42, 9));
    options.parts = 2;
    let first = Cache::new(&options).expect("a cache");
    let other = first.frames().other_part(1);
    first.frames().abandon();
    drop(first);
    assert!(found(directory.path()).is_empty(), "the other part is used");
    drop(other);
    assert_eq!(found(directory.path()).len(), 1);
}

#[test]
fn salvage_says_which_apply_was_the_last_that_counts() {
    const WRAP: u64 = 1 << 32;
    let cases = [
        // An owner that did not count.
        ((0, 0), None),
        ((0, 1), None),
        ((0, 7), None),
        // It was killed between two.
        ((1, 0), Some(1)),
        ((WRAP - 1, 0), Some(WRAP - 1)),
        ((5 * WRAP + 3, 0), Some(5 * WRAP + 3)),
        // Before the last one was complete.
        ((1, 2), Some(2)),
        ((6, 7), Some(7)),
        ((5 * WRAP + 3, 4), Some(5 * WRAP + 4)),
        ((WRAP - 1, 1), Some(WRAP + 1)),
        // After that.
        ((7, 7), Some(7)),
        ((WRAP + 1, 1), Some(WRAP + 1)),
        // Damaged.
        ((7, 6), None),
        ((7, 9), None),
        ((WRAP - 1, 2), None),
        ((WRAP, 0), None),
        ((WRAP, 1), None),
        ((u64::MAX, 0), Some(u64::MAX)),
        ((u64::MAX, 2), None),
    ];
    let directory = in_shared_memory();
    for ((applied, applying), expected) in cases {
        let cache = shared(directory.path(), 1000, 1);
        let header = cache.frames().header();
        header.applied.store(applied, Ordering::Relaxed);
        header.applying.store(applying, Ordering::Relaxed);
        drop(cache);
        let left = found(directory.path()).remove(0);
        let expected = expected.map(|number| vec![number]);
        assert_eq!(left.applied(), expected, "{applied} {applying}");
        left.delete().expect("deleted");
    }
}

#[test]
fn an_apply_tells_its_number_before_it_counts() {
    let mut cache = cache(8);
    let target = add(&mut cache, 1, 7);
    let frames = cache.frames().clone();
    let header = || {
        let header = frames.header();
        (
            header.applied.load(Ordering::Relaxed),
            header.applying.load(Ordering::Relaxed),
        )
    };
    for (before, number) in [
        (1, 2),
        (u64::from(u32::MAX), (1 << 32) + 1),
        ((1 << 32) + 1, (1 << 32) + 2),
    ] {
        cache.applies = before;
        frames.header().applied.store(before, Ordering::Relaxed);
        let shadow = cache.shadow(target).expect("a frame");
        let (mut told, mut reports) = (None, 0);
        let decided = |apply| {
            told = Some(apply);
            assert_eq!(header(), (before, 0));
            let number = frames.meta(shadow.0).loads.load(Ordering::Relaxed);
            assert_eq!(number, apply as u32);
        };
        cache.apply(&[(target, shadow)], decided, |_| {
            assert_eq!(header(), (before, number as u32));
            reports += 1;
        });
        assert_eq!((told, reports), (Some(number), 1));
        assert_eq!(header(), (number, 0));
    }
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "changed granules that it had not asked for")]
fn changing_what_was_not_asked_for_is_noticed() {
    let mut cache = cache(4);
    let target = add(&mut cache, 1, 7);
    let shadow = cache.shadow(target).expect("a frame");
    cache.fill_shadow(shadow, 1 << 5);
    cache.raw_mut(shadow)[6 * 64] = 8;
    cache.apply(&[(target, shadow)], |_| (), |_| ());
}

#[test]
fn a_shadowed_page_is_not_evicted_and_an_abandoned_shadow_lets_go() {
    let mut cache = cache(2);
    let target = add(&mut cache, 1, 1);
    let shadow = cache.shadow(target).expect("a frame");
    assert_eq!(cache.allocate(), None);
    cache.free_raw(shadow);
    assert_eq!(cache.allocate(), Some(shadow));
    assert_eq!(cache.allocate(), Some(target));
}

#[test]
fn a_shadow_finds_room_by_evicting_others_never_its_target() {
    let mut cache = cache(2);
    let target = add(&mut cache, 1, 1);
    let other = add(&mut cache, 2, 2);
    assert_eq!(cache.shadow(target), Some(other));
}

#[test]
fn memory_is_made_ready_ahead_of_its_use_but_not_beyond_the_cache() {
    const CHUNK_BYTES: u64 = 512 * 4096;
    let directory = in_shared_memory();
    for (epoch, frames, chunks) in [(1, 2048, 2), (2, 512, 1)] {
        let mut cache = shared(directory.path(), frames, epoch);
        let CachePlacement::Shared(path) = cache.placement().clone() else {
            panic!("shared");
        };
        let used = || {
            let file = std::fs::metadata(&path).expect("a file");
            std::os::unix::fs::MetadataExt::blocks(&file) * 512 / CHUNK_BYTES
        };
        add(&mut cache, 0, 1);
        // A thread does it, which may wait for a core.
        for _ in 0..24_000 {
            if used() == chunks {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        for page in 1..300 {
            add(&mut cache, page, 1);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
        assert_eq!(used(), chunks);
        // Faster than it, slower than it, and the last of it.
        for page in 300..3000 {
            add(&mut cache, page, 1);
        }
        let all = u64::from(frames) * 4096;
        assert_eq!(used() * CHUNK_BYTES, all);
    }
}

/// A cache whose mapping outlives it, in a directory of its own.
fn shared(directory: &Path, frames: u32, epoch: u64) -> Cache {
    let name = SharedName::new(directory, 42, epoch);
    let cache = Cache::new(&CacheOptions::shared(frames, name)).expect("a cache");
    let placement = cache.placement();
    assert!(
        matches!(placement, CachePlacement::Shared(_)),
        "{placement:?}"
    );
    cache
}

fn found(directory: &Path) -> Vec<Abandoned> {
    Leftover::abandoned(directory, 42).expect("the directory is read")
}

fn in_shared_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("/dev/shm is writable")
}

#[test]
fn a_clean_close_leaves_nothing_behind() {
    let directory = in_shared_memory();
    let mut cache = shared(directory.path(), 1000, 1);
    add(&mut cache, 1, 1);
    assert!(found(directory.path()).is_empty(), "its owner lives");
    cache.frames().delete_shared().expect("deleted");
    let left = std::fs::read_dir(directory.path()).expect("listed").count();
    assert_eq!(left, 0);
}

#[test]
fn what_was_not_at_home_is_salvaged() {
    let directory = in_shared_memory();
    let mut cache = shared(directory.path(), 2000, 9);
    let clean = add(&mut cache, 1, 1);
    let dirty = add(&mut cache, 2, 2);
    let in_flight = add(&mut cache, 3, 3);
    let pending = add(&mut cache, 4, 4);
    let dropped = add(&mut cache, 5, 5);
    for id in [dirty, dropped] {
        cache.set_flags(id, FrameFlags::DIRTY);
    }
    cache.set_flags(in_flight, FrameFlags::WRITEBACK);
    cache.set_generation(dirty, 6);
    cache.set_end(dirty, 7);
    cache.set_home(pending, 4000);
    cache.set_kind(pending, 3);
    let shadow = cache.shadow(pending).expect("a frame");
    cache.fill_shadow(shadow, 1 << 2);
    cache.raw_mut(shadow)[128] = 44;
    cache.apply(&[(pending, shadow)], |_| (), |_| ());
    cache.remove(dropped);
    for lsn in [31, 30] {
        let id = cache.allocate_raw().expect("a frame");
        cache.raw_mut(id).fill(lsn as u8);
        cache.publish_journal_buffer(id, lsn);
    }
    let unpublished = cache.allocate_raw().expect("a frame");
    let pin = cache.buffer(dirty);
    let dirty = cache
        .write_or_replace(dirty, |page| page[0] = 22)
        .expect("a frame");
    cache.frames().header().set_horizon(31);
    drop(cache);

    let mut left = found(directory.path());
    assert_eq!(left.len(), 1, "though a pin keeps the mapping");
    drop(pin);
    let left = left.remove(0);
    assert_eq!((left.epoch(), left.horizon()), (9, 31));
    // Two pages of data; pending granules, and the sealed page beyond the horizon.
    let unsaved = Unsaved {
        data_pages: 2,
        metadata_pages: 2,
    };
    assert_eq!(left.unsaved(), unsaved);
    let mut page = [0; PAGE_BYTES];
    let data = left.dirty();
    assert_eq!(data.len(), 2);
    let expected = SalvagedData {
        slot_address: 77,
        generation: 6,
        page: 2,
        end_bytes: 7,
        frame: dirty,
    };
    assert_eq!(data[0], expected);
    left.read(data[0].frame, &mut page).expect("read");
    assert_eq!(page[..2], [22, 2]);
    assert_eq!((data[1].page, data[1].frame), (3, in_flight));
    let journal = left.journal_buffers();
    assert_eq!(journal.iter().map(|b| b.lsn).collect::<Vec<_>>(), [30, 31]);
    left.read(journal[1].frame, &mut page).expect("read");
    assert_eq!(page[9], 31);
    let journaled = left.pending();
    assert_eq!(journaled.len(), 1);
    assert_eq!((journaled[0].home, journaled[0].kind), (4000, 3));
    assert_eq!(
        (journaled[0].granules, journaled[0].frame),
        (0b100, pending)
    );
    assert!(left.read(FrameId(1999), &mut page).is_err());
    let _ = (clean, unpublished);
}

/// A search for mappings classifies each file, and changes none.
#[test]
fn a_leftover_is_live_dead_or_strange() {
    let directory = in_shared_memory();
    let list =
        || Leftover::list(directory.path(), (42, 0), Purpose::TakeOver, None).expect("listed");
    let cache = shared(directory.path(), 10, 1);
    let claim = Claim::make(&SharedName::new(directory.path(), 42, 2)).expect("claimed");
    let live: Vec<_> = list().into_iter().map(|found| found.content).collect();
    assert!(matches!(
        &live[..],
        [Content::Live(Some(_)), Content::Live(Some(_))]
    ));
    drop((cache, claim));
    let dead = list();
    assert!(
        matches!(&dead[..], [Leftover { content: Content::Dead(dead), .. }] if dead.header.frames == 10)
    );
    // It is locked now.
    assert!(matches!(
        &list()[..],
        [Leftover {
            content: Content::Live(_),
            ..
        }]
    ));
    drop(dead);
    let prefix = directory.path().join(format!("adit-{:032x}-", 42));
    let (noise, short) = (
        format!("{}ff", prefix.display()),
        format!("{}fe", prefix.display()),
    );
    std::fs::write(&noise, [7; 9000]).expect("written");
    std::fs::write(&short, [7; 90]).expect("written");
    std::os::unix::fs::symlink(&noise, format!("{}fd", prefix.display())).expect("linked");
    let strange = list().into_iter().skip(1);
    let mut count = 0;
    for found in strange {
        assert!(found.name.is_none());
        assert!(matches!(found.content, Content::Strange(_)), "{found:?}");
        count += 1;
    }
    assert_eq!(count, 3);
}

#[test]
fn damaged_mappings_are_errors_not_panics() {
    let directory = in_shared_memory();
    let mut cache = shared(directory.path(), 600, 1);
    let id = add(&mut cache, 1, 1);
    cache.set_flags(id, FrameFlags::DIRTY);
    let CachePlacement::Shared(path) = cache.placement().clone() else {
        panic!("shared");
    };
    drop(cache);
    let good = std::fs::read(&path).expect("read");
    let mut random = adit_base::random::Prng::new(5);
    for round in 0..300 {
        let mut bad = good.clone();
        for _ in 0..1 + round % 8 {
            let at = random.next_u64() as usize % (4096 + 128);
            bad[at] = random.next_u64() as u8;
        }
        if round % 10 == 0 {
            bad.truncate(random.next_u64() as usize % bad.len());
        }
        std::fs::write(&path, &bad).expect("written");
        for left in found(directory.path()) {
            let mut page = [0; PAGE_BYTES];
            for data in left.dirty() {
                assert!(data.end_bytes <= 4096);
                let _ = left.read(data.frame, &mut page);
            }
            let _ = (left.journal_buffers(), left.pending());
        }
        if !path.exists() {
            std::fs::write(&path, &good).expect("written");
        }
    }
}

#[test]
fn a_cache_that_cannot_be_shared_is_refused_or_says_why() {
    let name = SharedName::new("/nowhere".as_ref(), 42, 1);
    let mut options = CacheOptions::shared(10, name);
    let error = Cache::new(&options).map(drop).expect_err("required");
    assert_eq!(error.errno(), adit_base::Errno::NOENT);
    assert!(error.what().contains("/nowhere"), "{error}");
    options.survive = Survive::Prefer;
    let cache = Cache::new(&options).expect("a cache");
    let placement = cache.placement();
    let CachePlacement::Anonymous { fallback, .. } = placement else {
        panic!("{placement:?}");
    };
    assert_eq!(
        fallback.as_ref().map(|e| e.errno()),
        Some(adit_base::Errno::NOENT)
    );
    assert!(Cache::new(&CacheOptions::new(0)).is_err());
}

/// A profiler sends signals all the time, and a tmpfs of older kernels gives no memory to a call
/// that one interrupts. (Of the kernel that this was written on, only a signal that kills does.)
#[test]
fn a_process_that_gets_signals_all_the_time_gets_its_memory() {
    use std::sync::atomic::{AtomicBool, Ordering};
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: a handler that does nothing, for a signal without other users here.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        let set = libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut());
        assert_eq!(set, 0);
    }
    const CHUNKS: u32 = 16;
    let directory = in_shared_memory();
    let cache = shared(directory.path(), CHUNKS * mapping::CHUNK_FRAMES, 1);
    let over = AtomicBool::new(false);
    let backed = std::thread::scope(|scope| {
        // SAFETY: this thread lives longer than those of the scope.
        let me = unsafe { libc::pthread_self() };
        let over = &over;
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                // SAFETY: this thread lives longer than those of the scope.
                unsafe { libc::pthread_kill(me, libc::SIGURG) };
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
        });
        let mapping = cache.frames().mapping();
        let backed = (0..CHUNKS).all(|chunk| mapping.back_chunk(chunk));
        over.store(true, Ordering::Relaxed);
        backed
    });
    assert!(backed, "a signal took memory away");
}

/// A process whose cache filled a container's `/dev/shm` was killed: there was no room for the
/// cache of the next opening, and so none.
#[test]
fn a_cache_leaves_room_for_the_one_that_takes_over_from_it() {
    let options = CacheOptions {
        frames_min: 2048,
        ..CacheOptions::new(65536)
    };
    let least = mapping_bytes(options.frames_min);
    for free_bytes in (0..400).map(|mib| mib << 20) {
        let Some(frames) = frames_within(free_bytes, &options) else {
            assert!(free_bytes < least);
            continue;
        };
        let left = free_bytes - mapping_bytes(frames);
        assert!(left >= least || frames == options.frames_min && free_bytes < 2 * least);
        assert_eq!(
            frames == options.frames_max,
            free_bytes >= mapping_bytes(options.frames_max) + least
        );
    }
}

/// Another tmpfs was mounted over the directory, or the file renamed: no message said that the next
/// opening finds nothing.
#[test]
fn a_mapping_knows_that_nobody_finds_it_under_its_name() {
    let directory = in_shared_memory();
    let cache = shared(directory.path(), 1000, 1);
    let CachePlacement::Shared(path) = cache.placement().clone() else {
        panic!("it is shared");
    };
    assert!(!cache.frames().is_nameless());
    let aside = directory.path().join("aside");
    std::fs::rename(&path, &aside).expect("renamed");
    assert!(cache.frames().is_nameless());
    std::fs::write(&path, "another").expect("written");
    assert!(cache.frames().is_nameless());
    std::fs::rename(&aside, &path).expect("renamed");
    assert!(!cache.frames().is_nameless());
    // The mounts of this thread end with it.
    let frames = cache.frames();
    let seen = std::thread::scope(|scope| {
        let hidden = || {
            let over = std::ffi::CString::new(directory.path().as_os_str().as_encoded_bytes());
            let over = over.expect("a path");
            let (none, tmpfs) = (std::ptr::null(), c"tmpfs".as_ptr());
            // SAFETY: plain calls with strings that live longer.
            let is_mounted = unsafe {
                let private = libc::MS_REC | libc::MS_PRIVATE;
                libc::unshare(libc::CLONE_NEWNS) == 0
                    && libc::mount(tmpfs, c"/".as_ptr(), tmpfs, private, none) == 0
                    && libc::mount(tmpfs, over.as_ptr(), tmpfs, 0, none.cast()) == 0
            };
            is_mounted.then(|| frames.is_nameless())
        };
        scope.spawn(hidden).join().expect("no panic")
    });
    match seen {
        None => adit_skip::skip(adit_skip::MOUNT),
        Some(is_nameless) => assert!(is_nameless),
    }
}

/// A process with a strict umask left a mapping, and files beside it, that the next opening by the
/// same user could not read.
#[test]
fn shared_memory_is_readable_for_its_user_whatever_the_process_masks() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let name = SharedName::new(directory.path(), 1, 2);
    let tail = tail::name(&name.path(), 1, 1, 1).expect("a name");
    let mapped = directory.path().join("mapped");
    let modes = adit_base::thread::with_umask(0o777, &|| {
        let _cache = Cache::new(&CacheOptions::shared(1024, name.clone())).expect("a cache");
        let _tail = tail::TailMemory::create(tail.clone(), 0, tail::TAIL_BYTES).expect("a tail");
        let _mapped = crate::MappedMemory::named(mapped.clone()).expect("memory");
        let files = std::fs::read_dir(directory.path()).expect("read");
        let mode = |file: std::io::Result<std::fs::DirEntry>| {
            let file = file.expect("an entry");
            (
                file.file_name(),
                file.metadata().expect("there").permissions().mode() & 0o777,
            )
        };
        files.map(mode).collect::<Vec<_>>()
    });
    assert_eq!(modes.len(), 4, "{modes:?}");
    assert!(modes.iter().all(|(_, mode)| *mode == 0o600), "{modes:?}");
}
