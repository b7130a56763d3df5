//! Real threads on the same files (`mod.rs`) for as long as somebody wants (`cargo xtask threads`),
//! and the judge itself, on a device that lies.

mod names;
#[path = "mod.rs"]
mod shapes;

use adit::IoEngine;
use shapes::ledger::Wrong;
use shapes::lying::{Lie, Lying};
use shapes::stamp::Stamps;
use shapes::work::{Ground, Kind, Shape, Tally};
use shapes::{MIB, SHAPES, directories, shape};
use std::time::{Duration, Instant};

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}: `{value}` is no number")),
    )
}

#[test]
#[ignore = "for as long as ADIT_THREADS_SECONDS says: `cargo xtask threads`"]
fn longer() {
    let seconds = number("ADIT_THREADS_SECONDS").unwrap_or(60);
    let threads = number("ADIT_THREADS");
    let only = number("ADIT_THREADS_SHAPE");
    let workers = number("ADIT_THREADS_WORKERS").map_or(1, |workers| workers as u32);
    let seed = number("ADIT_THREADS_SEED").unwrap_or_else(|| std::process::id().into());
    let (shm, disk) = directories();
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut all = Tally::default();
    for turn in 0.. {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let seed = seed.wrapping_add(turn);
        let turn = turn as usize;
        let number = only.map_or(turn, |only| only as usize) % (SHAPES + 1);
        let threads = threads.map_or([2, 4, 16][(turn + turn / SHAPES) % 3], |all| all as usize);
        if number == SHAPES {
            let time = left.min(Duration::from_secs(5));
            let tally = names::run(seed, threads, workers, time);
            println!("seed {seed}, shape {SHAPES}, names and syncs, {threads} threads: {tally}");
            all += tally;
            continue;
        }
        let shape = shape(number, seed, threads, 64, shm.path(), disk.path());
        let shape = Shape { workers, ..shape };
        if let Ground::Image(path) = &shape.ground {
            // Of the turn before.
            let _ = std::fs::remove_file(path);
        }
        let tally = shape.run(seed, left.min(Duration::from_secs(15)));
        match tally {
            Ok(tally) => {
                println!("seed {seed}, {}: {tally}", shape.name);
                all += tally;
            }
            Err(violation) => panic!("{}", violation.text),
        }
    }
    println!("all: {all}");
}

#[test]
fn threads_that_share_a_volume_of_three_workers_find_what_they_wrote() {
    let (shm, disk) = directories();
    for number in [1, 2, 7] {
        let seed = 40 + number as u64;
        let shape = shape(number, seed, 4, 16, shm.path(), disk.path());
        let shape = Shape {
            workers: 3,
            ..shape
        };
        let tally = shape.run(seed, Duration::from_millis(1500));
        let tally = tally.unwrap_or_else(|violation| panic!("{}", violation.text));
        println!("{}: {tally}", shape.name);
        assert!(tally.judged > 0);
    }
}

/// What is found on a device that lies, within some time.
fn found(lie: Lie) -> Option<Wrong> {
    let seed = 4;
    let stamps = Stamps {
        seed,
        cell_bytes: 512,
    };
    let shape = Shape {
        name: format!("a device that lies: {lie:?}"),
        ground: Ground::Device(Lying::new(stamps, lie, 64)),
        engine: IoEngine::Sync,
        data_checksums: false,
        cache_bytes: 8 << 20,
        threads: 3,
        workers: 1,
        files: vec![(Kind::Mixed, 8 * MIB), (Kind::Direct, 8 * MIB)],
        cell_bytes: 512,
        write_unit: 512,
        near: 10,
        round: Duration::from_millis(500),
    };
    // It ends with what it finds, mostly long before.
    let time = match lie {
        Lie::Honest => Duration::from_secs(1),
        _ => Duration::from_secs(240),
    };
    let violation = shape.run(seed, time).err()?;
    println!("{}", violation.text);
    Some(violation.wrong)
}

#[test]
#[cfg_attr(
    sanitizer,
    ignore = "requests that meet at a device in memory are a race, which it may mix"
)]
fn a_device_that_lies_is_found_out() {
    assert_eq!(found(Lie::Honest), None);
    let lost = found(Lie::Lose);
    assert!(
        matches!(lost, Some(Wrong::Stale | Wrong::Zeroes)),
        "{lost:?}"
    );
    assert_eq!(found(Lie::Outdate), Some(Wrong::Stale));
    let misdirected = found(Lie::Misdirect);
    assert!(
        matches!(
            misdirected,
            Some(Wrong::Misplaced | Wrong::Stale | Wrong::Zeroes)
        ),
        "{misdirected:?}"
    );
    let torn = found(Lie::Tear);
    assert!(
        matches!(torn, Some(Wrong::Torn | Wrong::Stale | Wrong::Zeroes)),
        "{torn:?}"
    );
}
