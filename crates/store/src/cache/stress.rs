//! Readers against a writing owner, and owners that are killed at any instant.

use super::header::NOTHING_APPLIED;
use super::*;
use adit_base::random::Prng;
use adit_base::{GRANULE_BYTES, PAGE_BYTES};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Every granule says whose it is and of which version.
fn stamp(page: &mut PageBytes, key: FrameKey, version: u64) {
    for granule in page.chunks_exact_mut(GRANULE_BYTES) {
        for (at, word) in granule.chunks_exact_mut(8).enumerate() {
            let value = [key.space, key.page, version][at % 3];
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// The version of a page that must be whole and of this key.
fn version_of(page: &PageBytes, key: FrameKey) -> u64 {
    let word = |at: usize| {
        let bytes = page[at * 8..].first_chunk().expect("inside the page");
        u64::from_le_bytes(*bytes)
    };
    let version = word(2);
    for at in 0..PAGE_BYTES / 8 {
        let expected = [key.space, key.page, version][at % 8 % 3];
        assert_eq!(word(at), expected, "word {at} of {key:?}");
    }
    version
}

const KEYS: u64 = 160;

fn some_key(random: &mut Prng) -> FrameKey {
    // Some pages are much more wanted than others, so that writers meet pins.
    let page = if random.chance(1, 2) {
        random.below(4)
    } else {
        random.below(KEYS)
    };
    FrameKey {
        space: 3 + page % 2,
        page,
    }
}

fn read_for_ever(frames: &Arc<Frames>, seed: u64, stop: &AtomicBool, hits: &AtomicU64) {
    let mut random = Prng::new(seed);
    let mut newest: HashMap<u64, u64> = HashMap::new();
    let mut held = Vec::new();
    let mut copy = [0; PAGE_BYTES];
    while !stop.load(Ordering::Relaxed) {
        let key = some_key(&mut random);
        let version = match random.below(8) {
            0 => frames.pin(key).map(|pin| {
                let version = version_of(pin.bytes(), key);
                held.push((pin.into_buffer(), key, version));
                version
            }),
            1 => frames.pin(key).map(|pin| version_of(pin.bytes(), key)),
            _ => frames
                .read(key, 0, &mut copy)
                .then(|| version_of(&copy, key)),
        };
        if let Some(version) = version {
            hits.fetch_add(1, Ordering::Relaxed);
            let newest = newest.entry(key.page).or_default();
            assert!(version >= *newest, "a page went back in time");
            *newest = version;
        }
        if held.len() > 3 {
            let (buffer, key, version) = held.swap_remove(random.index(held.len()));
            let page = buffer.as_slice().try_into().expect("a page");
            assert_eq!(version_of(page, key), version, "a pinned page changed");
        }
    }
}

struct Owner {
    cache: Cache,
    random: Prng,
    version: u64,
    replaced: u64,
    swapped: u64,
}

impl Owner {
    fn step(&mut self) {
        let key = some_key(&mut self.random);
        self.version += 1;
        let version = self.version;
        let Some(id) = self.cache.find(key) else {
            return self.bring_in(key);
        };
        match self.random.below(8) {
            0 => self.cache.remove(id),
            1..=3 => {
                let _ = self.cache.write(id, |page| stamp(page, key, version));
            }
            4..=5 => {
                let new = self
                    .cache
                    .write_or_replace(id, |page| stamp(page, key, version));
                self.replaced += u64::from(new.is_some_and(|new| new != id));
            }
            _ => {
                let Some(shadow) = self.cache.shadow(id) else {
                    return;
                };
                self.cache.fill_shadow(shadow, u64::MAX);
                stamp(self.cache.raw_mut(shadow), key, version);
                let mut applied = None;
                self.cache
                    .apply(&[(id, shadow)], |_| (), |one| applied = Some(one));
                let now = applied.expect("reported").frame;
                self.swapped += u64::from(now != id);
                self.cache.set_pending(now, 0);
                self.cache.clear_flags(now, FrameFlags::JOURNALED);
            }
        }
    }

    fn bring_in(&mut self, key: FrameKey) {
        let Some(id) = self.cache.allocate() else {
            return;
        };
        if self.random.chance(1, 2) {
            stamp(self.cache.raw_mut(id), key, self.version);
            self.cache.insert(id, key, FrameFlags::VALID);
        } else {
            self.cache.insert(id, key, FrameFlags::LOADING);
            let mut buffer = self.cache.load_buffer(id);
            let bytes = buffer.try_mut().expect("readers don't count");
            stamp(bytes.try_into().expect("a page"), key, self.version);
            drop(buffer);
            self.cache.loaded(id);
        }
    }
}

/// Ends the readers, also when the owner fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn readers_see_whole_pages_of_their_key_and_never_older_ones() {
    let cache = Cache::new(&CacheOptions::new(64)).expect("a cache");
    let frames = cache.frames().clone();
    let mut owner = Owner {
        cache,
        random: Prng::new(1),
        version: 0,
        replaced: 0,
        swapped: 0,
    };
    let (stop, hits) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (frames, stop, hits) = (&frames, &stop, &hits);
        let readers: Vec<_> = (10..13)
            .map(|seed| scope.spawn(move || read_for_ever(frames, seed, stop, hits)))
            .collect();
        let stopping = StopAtEnd(stop);
        let begin = Instant::now();
        // Beside busy processes the readers may seldom have a core.
        let is_enough = |owner: &Owner| {
            let all = [hits.load(Ordering::Relaxed), owner.replaced, owner.swapped];
            let max = if all.contains(&0) {
                Duration::from_secs(240)
            } else {
                Duration::from_millis(1500)
            };
            begin.elapsed() > max
        };
        while !is_enough(&owner) && readers.iter().all(|reader| !reader.is_finished()) {
            for _ in 0..100 {
                owner.step();
            }
            // Lets readers hold pins over several steps also on few cores.
            std::thread::yield_now();
        }
        drop(stopping);
        for reader in readers {
            reader.join().expect("a reader found nothing wrong");
        }
    });
    let hits = hits.into_inner();
    assert!(hits > 0 && owner.replaced > 0 && owner.swapped > 0);
    for page in 0..KEYS {
        let space = 3 + page % 2;
        if let Some(id) = owner.cache.find(FrameKey { space, page }) {
            owner.cache.remove(id);
        }
    }
    owner.cache.drain_returned();
    let counts = owner.cache.counts();
    assert_eq!((counts.used, counts.retired), (0, 0), "no frame got lost");
    assert_eq!(counts.clean, 0);
}

const META_PAGES: u64 = 24;
const DATA_PAGES: u64 = 20;
const BLOB: u64 = 99;

/// Memory that the killed child shares with its parent: its device, and the acknowledged changes.
struct Witness {
    transactions_begun: AtomicU64,
    transactions_done: AtomicU64,
    writes_begun: AtomicU64,
    writes_done: AtomicU64,
    home: [AtomicU64; DATA_PAGES as usize],
}

fn witness() -> &'static Witness {
    // SAFETY: a fresh mapping of zeroes that stays for the rest of the test process; all fields are
    // atomics.
    unsafe {
        let memory = rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            4096,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::SHARED,
        );
        &*memory.expect("memory").cast::<Witness>()
    }
}

/// Transaction `number` writes its number into these (page, granule), and into granule 0 of page 0.
fn granules_of(number: u64) -> impl Iterator<Item = (u64, usize)> {
    let mut random = Prng::new(number);
    let count = random.below(30);
    let others = (0..count).map(move |_| (random.below(META_PAGES), 1 + random.index(63)));
    std::iter::once((0, 0)).chain(others)
}

fn granule_of(number: u64) -> [u8; GRANULE_BYTES] {
    let mut granule = [0; GRANULE_BYTES];
    for word in granule.chunks_exact_mut(8) {
        word.copy_from_slice(&number.to_le_bytes());
    }
    granule
}

fn child(directory: &Path, epoch: u64, seed: u64, witness: &Witness) -> ! {
    // Enough at any time: metadata pages with image and shadow each, data pages with frames in
    // write-back, and pinned frames.
    let frames_max = (3 * META_PAGES + 2 * DATA_PAGES) as u32 + 8;
    let options = CacheOptions::shared(frames_max, SharedName::new(directory, 42, epoch));
    let mut cache = Cache::new(&options).expect("a cache");
    let mut random = Prng::new(seed);
    for page in 0..META_PAGES {
        let id = cache.allocate().expect("a frame");
        cache.raw_mut(id).fill(0);
        cache.set_home(id, 1000 + page);
        cache.insert(
            id,
            FrameKey::meta(1000 + page),
            FrameFlags::VALID | FrameFlags::HELD,
        );
    }
    let mut pins = Vec::new();
    let mut sealed: HashMap<u64, FrameId> = HashMap::new();
    let mut lsn = 0;
    let mut write_backs = Vec::new();
    loop {
        if pins.len() > 5 {
            pins.swap_remove(random.index(pins.len()));
        }
        match random.below(10) {
            0 => {
                let page = random.below(META_PAGES);
                let id = cache.find(FrameKey::meta(1000 + page)).expect("held");
                pins.push(cache.buffer(id));
            }
            1 => {
                // Seal one page: an image that holds all its pending granules.
                let page = random.below(META_PAGES);
                let id = cache.find(FrameKey::meta(1000 + page)).expect("held");
                let image = cache.allocate_raw().expect("a frame");
                let bytes = *cache.bytes(id);
                *cache.raw_mut(image) = bytes;
                lsn += 1;
                cache.publish_journal_buffer(image, lsn << 8 | page);
                cache.set_pending(id, 0);
                if let Some(before) = sealed.insert(page, image) {
                    cache.free_raw(before);
                }
            }
            2..=5 => transact(&mut cache, witness),
            6 => {
                let page = random.below(DATA_PAGES);
                let key = FrameKey { space: BLOB, page };
                if let Some(id) = cache.find(key)
                    && cache.flags(id).contains(FrameFlags::DIRTY)
                    && !cache.flags(id).contains(FrameFlags::WRITEBACK)
                {
                    cache.change_flags(id, FrameFlags::DIRTY, FrameFlags::WRITEBACK);
                    write_backs.push((key, cache.buffer(id)));
                }
            }
            7 if !write_backs.is_empty() => {
                let (key, buffer) = write_backs.swap_remove(random.index(write_backs.len()));
                let word = buffer.as_slice().first_chunk().expect("a page");
                let home = &witness.home[key.page as usize];
                home.store(u64::from_le_bytes(*word), Ordering::Release);
                let id = cache.find(key).expect("not evicted under write-back");
                cache.clear_flags(id, FrameFlags::WRITEBACK);
            }
            _ => write_data(&mut cache, witness),
        }
    }
}

fn transact(cache: &mut Cache, witness: &Witness) {
    let number = witness.transactions_done.load(Ordering::Relaxed) + 1;
    witness.transactions_begun.store(number, Ordering::Release);
    let mut edits: Vec<(FrameId, FrameId)> = Vec::new();
    for (page, granule) in granules_of(number) {
        let target = cache.find(FrameKey::meta(1000 + page)).expect("held");
        let staged = edits.iter().find(|edit| edit.0 == target);
        let shadow = match staged {
            Some(edit) => edit.1,
            None => {
                let shadow = cache.shadow(target).expect("a frame");
                edits.push((target, shadow));
                shadow
            }
        };
        cache.fill_shadow(shadow, 1 << granule);
        let start = granule * GRANULE_BYTES;
        cache.raw_mut(shadow)[start..start + GRANULE_BYTES].copy_from_slice(&granule_of(number));
    }
    cache.apply(&edits, |_| (), |_| ());
    witness.transactions_done.store(number, Ordering::Release);
}

fn write_data(cache: &mut Cache, witness: &Witness) {
    let number = witness.writes_done.load(Ordering::Relaxed) + 1;
    witness.writes_begun.store(number, Ordering::Release);
    let page = number % DATA_PAGES;
    let key = FrameKey { space: BLOB, page };
    let fill = |bytes: &mut PageBytes| {
        for granule in bytes.chunks_exact_mut(GRANULE_BYTES) {
            granule.copy_from_slice(&granule_of(number));
        }
    };
    match cache.find(key) {
        Some(id) => {
            let id = cache.write_or_replace(id, fill).expect("a frame");
            cache.set_flags(id, FrameFlags::DIRTY);
        }
        None => {
            let id = cache.allocate().expect("a frame");
            fill(cache.raw_mut(id));
            cache.set_generation(id, 5);
            cache.set_end(id, 4096);
            cache.insert(id, key, FrameFlags::VALID | FrameFlags::DIRTY);
        }
    }
    witness.writes_done.store(number, Ordering::Release);
}

/// Compares the salvaged cache with the acknowledged changes; returns the number of transactions.
fn check(left: Abandoned, witness: &Witness) -> u64 {
    let mut pages = vec![[0u8; PAGE_BYTES]; META_PAGES as usize];
    let mut bytes = [0; PAGE_BYTES];
    for buffer in left.journal_buffers() {
        left.read(buffer.frame, &mut pages[(buffer.lsn & 0xff) as usize])
            .expect("read");
    }
    for pending in left.pending() {
        left.read(pending.frame, &mut bytes).expect("read");
        let page = &mut pages[(pending.home - 1000) as usize];
        apply::copy_granules(page, &bytes, pending.granules);
    }
    let word = |bytes: &[u8]| u64::from_le_bytes(*bytes.first_chunk().expect("a word"));
    let last = word(&pages[0]);
    let begun = witness.transactions_begun.load(Ordering::Acquire);
    let done = witness.transactions_done.load(Ordering::Acquire);
    assert!((done..=begun).contains(&last), "{done} ≤ {last} ≤ {begun}");
    let mut expected = vec![[0u8; PAGE_BYTES]; META_PAGES as usize];
    for number in 1..=last {
        for (page, granule) in granules_of(number) {
            let start = granule * GRANULE_BYTES;
            expected[page as usize][start..start + GRANULE_BYTES]
                .copy_from_slice(&granule_of(number));
        }
    }
    assert!(pages == expected, "not the state after a transaction");
    assert_eq!(left.applied(), Some(vec![NOTHING_APPLIED + last]));

    let (begun, done) = (
        witness.writes_begun.load(Ordering::Acquire),
        witness.writes_done.load(Ordering::Acquire),
    );
    let dirty: HashMap<u64, FrameId> = left
        .dirty()
        .into_iter()
        .map(|data| {
            assert_eq!(
                (data.slot_address, data.generation, data.end_bytes),
                (BLOB, 5, 4096)
            );
            (data.page, data.frame)
        })
        .collect();
    for page in 0..DATA_PAGES {
        // The last acknowledged write to the page.
        let newest = (0..DATA_PAGES)
            .filter_map(|back| done.checked_sub(back))
            .find(|number| *number > 0 && number % DATA_PAGES == page)
            .unwrap_or(0);
        let unfinished = (begun > done && begun % DATA_PAGES == page).then_some(begun);
        match dirty.get(&page) {
            Some(&frame) => {
                left.read(frame, &mut bytes).expect("read");
                for (at, bytes) in bytes.chunks_exact(8).enumerate() {
                    let found = word(bytes);
                    let good = found == newest || Some(found) == unfinished;
                    assert!(good, "data page {page} word {at}: {found}, not {newest}");
                }
            }
            None => {
                let home = witness.home[page as usize].load(Ordering::Acquire);
                assert_eq!(home, newest, "data page {page} was lost");
            }
        }
    }
    left.delete().expect("deleted");
    last
}

#[test]
fn a_killed_owner_leaves_whole_transactions_and_acknowledged_writes() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("/dev/shm is writable");
    let mut random = Prng::new(adit_base::clock::monotonic_ns());
    let mut transactions = 0;
    for epoch in 0..60 {
        let witness = witness();
        let seed = random.next_u64();
        // SAFETY: the child runs `child`, which never returns, and is killed.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let run = || child(directory.path(), epoch, seed, witness);
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(1) };
        }
        let begun = Instant::now();
        while witness.writes_begun.load(Ordering::Acquire) == 0
            && begun.elapsed() < Duration::from_secs(240)
        {
            std::thread::sleep(Duration::from_micros(100));
        }
        std::thread::sleep(Duration::from_micros(random.below(6000)));
        let mut status = 0;
        // SAFETY: kills and waits for the child made above.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        }
        assert!(libc::WIFSIGNALED(status), "the child failed: {status}");
        let mut left = Leftover::abandoned(directory.path(), 42).expect("listed");
        assert_eq!(left.len(), 1, "round {epoch}");
        transactions += check(left.remove(0), witness);
    }
    assert!(transactions > 0);
}
