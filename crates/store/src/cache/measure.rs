//! Measures the hot paths. Not run by default: `cargo test --release -p adit-store cache::measure
//! -- --ignored --nocapture`.

use super::*;
use adit_base::PAGE_BYTES;
use adit_base::random::Prng;
use std::hint::black_box;
use std::time::{Duration, Instant};

fn filled(frames: u32, shared: Option<SharedName>) -> Cache {
    let options = match shared {
        Some(name) => CacheOptions::shared(frames, name),
        None => CacheOptions::new(frames),
    };
    let mut cache = Cache::new(&options).expect("a cache");
    let mut slowest = Duration::ZERO;
    let begun = thread_ns();
    for page in 0..frames {
        let one = Instant::now();
        let id = cache.allocate().expect("a frame");
        slowest = slowest.max(one.elapsed());
        cache.raw_mut(id).fill(page as u8);
        let page = u64::from(page);
        cache.insert(id, FrameKey { space: 8, page }, FrameFlags::VALID);
    }
    let each = (thread_ns() - begun) / f64::from(frames);
    println!("  {:?}", cache.placement());
    println!("  filled: {each:.0} ns a page, slowest allocation {slowest:?}");
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").expect("smaps");
    for line in rollup
        .lines()
        .filter(|line| line.starts_with("AnonHugePages") || line.starts_with("ShmemPmdMapped"))
    {
        println!("  {line}");
    }
    cache
}

/// Processor time of this thread, which depends less on other load.
fn thread_ns() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// Nanoseconds of a thread for one `read` of a random page.
fn read_ns(cache: &Cache, threads: u64, len_bytes: usize, reads: u64) -> f64 {
    let pages = u64::from(cache.counts().used);
    let total: f64 = std::thread::scope(|scope| {
        let read = |seed: u64| {
            let frames = cache.frames();
            move || {
                let begun = thread_ns();
                let mut random = Prng::new(seed);
                let mut into = [0; PAGE_BYTES];
                for _ in 0..reads {
                    let page = random.next_u64() % pages;
                    let key = FrameKey { space: 8, page };
                    assert!(frames.read(key, 0, &mut into[..len_bytes]));
                    black_box(&mut into);
                }
                thread_ns() - begun
            }
        };
        let readers: Vec<_> = (0..threads).map(|seed| scope.spawn(read(seed))).collect();
        readers
            .into_iter()
            .map(|reader| reader.join().expect("a reader"))
            .sum()
    });
    total / (reads * threads) as f64
}

/// Time of one copy from the frames, without the protocol of the cache.
fn copy_ns(cache: &Cache, len_bytes: usize, reads: u64) -> f64 {
    let pages = u64::from(cache.counts().used);
    let (start, _) = cache.frames().memory();
    let mut random = Prng::new(1);
    let mut into = [0u8; PAGE_BYTES];
    let begun = thread_ns();
    for _ in 0..reads {
        let page = (random.next_u64() % pages) as usize;
        // SAFETY: inside the cache's memory, which no thread writes now.
        unsafe {
            std::ptr::copy_nonoverlapping(
                start.add(page * PAGE_BYTES),
                into.as_mut_ptr(),
                len_bytes,
            );
        }
        black_box(&mut into);
    }
    (thread_ns() - begun) / reads as f64
}

#[test]
#[ignore = "a measurement"]
fn reads() {
    for (frames, what) in [(64, "256 KiB"), (4096, "16 MiB"), (1 << 18, "1 GiB")] {
        for shared in [None, Some(SharedName::new("/dev/shm".as_ref(), 1, 1))] {
            println!("{what}:");
            let cache = filled(frames, shared);
            for _ in 0..2 {
                let reads = 1_000_000;
                for len_bytes in [PAGE_BYTES, 64] {
                    println!(
                        "  {len_bytes} B: copy alone {:.0} ns, 1 thread {:.0}, 2 threads {:.0}",
                        copy_ns(&cache, len_bytes, reads),
                        read_ns(&cache, 1, len_bytes, reads),
                        read_ns(&cache, 2, len_bytes, reads),
                    );
                }
            }
            cache.frames().delete_shared().expect("closed");
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn owner() {
    let mut cache = filled(4096, None);
    let rounds = 1_000_000u64;
    let time = |what: &str, cache: &mut Cache, step: &mut dyn FnMut(&mut Cache, u64)| {
        let begun = thread_ns();
        for round in 0..rounds {
            step(cache, round);
        }
        let each = (thread_ns() - begun) / rounds as f64;
        println!("  {what}: {each:.0} ns");
    };
    let key = |page: u64| FrameKey { space: 8, page };
    time("find", &mut cache, &mut |cache, round| {
        black_box(cache.find(key(round * 61 % 3000)));
    });
    time("write 100 bytes", &mut cache, &mut |cache, round| {
        let id = cache.find(key(round * 61 % 3000)).expect("cached");
        let done = cache.write(id, |page| page[200..300].fill(round as u8));
        assert!(done.is_ok());
    });
    time("replace a pinned page", &mut cache, &mut |cache, round| {
        let id = cache.find(key(round * 61 % 3000)).expect("cached");
        let pin = cache.buffer(id);
        let new = cache.write_or_replace(id, |page| page[200..300].fill(round as u8));
        black_box(new);
        drop(pin);
    });
    time("evict and insert", &mut cache, &mut |cache, round| {
        let id = cache.allocate().expect("clean frames");
        cache.insert(id, key(1_000_000 + round), FrameFlags::VALID);
    });
    let target = cache.find(key(1_999_999)).expect("the last one");
    time(
        "shadow, change 8 bytes, apply",
        &mut cache,
        &mut |cache, round| {
            let shadow = cache.shadow(target).expect("a frame");
            cache.fill_shadow(shadow, u64::MAX);
            let at = round as usize * 8 % 4096;
            cache.raw_mut(shadow)[at..at + 8].copy_from_slice(&round.to_le_bytes());
            cache.apply(
                &[(target, shadow)],
                |_| (),
                |one| {
                    black_box(one);
                },
            );
        },
    );
    let (old, new) = ([1; PAGE_BYTES], [1; PAGE_BYTES]);
    time("compare two equal pages", &mut cache, &mut |_, _| {
        black_box(apply::changed_granules(black_box(&old), black_box(&new)));
    });
}
