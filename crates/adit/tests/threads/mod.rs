//! Real threads do everything to the same files at the same time, and each sector that is read is
//! judged.
//!
//! | file | what |
//! |---|---|
//! | `stamp.rs` | the bytes that are written: each 16 say of which write they are |
//! | `ledger.rs` | what is known of each cell, and the judge of what a read found |
//! | `sizes.rs` | the judge of sizes |
//! | `work.rs` | what the threads do; rounds |
//! | `lying.rs` | a device that lies, or only dawdles |
//! | `names.rs` | names and syncs: looks at names that others change, power cuts (embedded alone) |
//! | `main.rs` | tests of embedded volumes alone: runs of any length, and lies that are found |
//!
//! The program `served` has this module, too, with its volumes in servers. What the threads do
//! follows from the seed, but not in which order.

#[cfg(test)]
mod judged;
pub(crate) mod ledger;
pub(crate) mod lying;
#[path = "../support/served.rs"]
mod served;
mod sizes;
pub(crate) mod stamp;
pub(crate) mod work;

use adit::IoEngine;
use adit_block::{Latency, MemoryConfig, MemoryDevice};
use lying::{Lie, Lying};
use stamp::Stamps;
use std::path::Path;
use std::time::Duration;
use work::{Ground, Kind, Shape, Tally};

pub(crate) const MIB: usize = 1 << 20;

/// Files that all threads share; the caches are smaller than these.
fn files(mib: usize) -> Vec<(Kind, usize)> {
    vec![
        (Kind::Direct, mib * MIB / 4),
        (Kind::Mixed, mib * MIB / 4),
        (Kind::Mixed, mib * MIB / 4),
        (Kind::Cached, mib * MIB / 4),
        (Kind::Direct, MIB),
        (Kind::Breathing, 2 * MIB),
        (Kind::Breathing, MIB),
    ]
}

fn in_memory(latency: Option<Latency>) -> Ground {
    let config = MemoryConfig {
        size_bytes: 256 << 20,
        latency,
        ..MemoryConfig::default()
    };
    Ground::Device(MemoryDevice::new(config).expect("memory"))
}

fn dawdling(seed: u64) -> Ground {
    let stamps = Stamps {
        seed,
        cell_bytes: 512,
    };
    Ground::Device(Lying::new(stamps, Lie::Dawdle, 16))
}

/// So many shapes there are.
pub(crate) const SHAPES: usize = 9;

/// One of them. `shm` and `disk` are directories; a seed has its stamps.
pub(crate) fn shape(
    number: usize,
    seed: u64,
    threads: usize,
    mib: usize,
    shm: &Path,
    disk: &Path,
) -> Shape {
    let image = |directory: &Path| Ground::Image(directory.join(format!("{number}.adit")));
    let usual = Shape {
        name: String::new(),
        ground: image(shm),
        engine: IoEngine::Sync,
        data_checksums: false,
        cache_bytes: 8 << 20,
        threads,
        workers: 1,
        files: files(mib),
        cell_bytes: 512,
        write_unit: 4096,
        near: 25,
        round: Duration::from_millis(50 * mib as u64),
    };
    let (what, shape) = match number {
        0 => ("an image in memory", usual),
        1 => (
            "an image, io_uring, checksums",
            Shape {
                ground: image(disk),
                engine: IoEngine::IoUring,
                data_checksums: true,
                ..usual
            },
        ),
        2 => (
            "few pages, a large cache",
            Shape {
                cache_bytes: 64 << 20,
                files: vec![
                    (Kind::Mixed, 256 << 10),
                    (Kind::Direct, 256 << 10),
                    (Kind::Breathing, MIB),
                ],
                near: 80,
                ..usual
            },
        ),
        3 => (
            "a device of 512-byte blocks",
            Shape {
                ground: in_memory(None),
                write_unit: 512,
                ..usual
            },
        ),
        4 => (
            "an image, io_uring",
            Shape {
                ground: image(disk),
                engine: IoEngine::IoUring,
                ..usual
            },
        ),
        5 => (
            "an image in memory, checksums, cells of 64 bytes",
            Shape {
                data_checksums: true,
                files: files(mib / 4),
                cell_bytes: 64,
                cache_bytes: 8 << 20,
                ..usual
            },
        ),
        6 => (
            "a device with latency",
            Shape {
                ground: in_memory(Some(Latency {
                    read_us: 60,
                    write_us: 20,
                    flush_us: 100,
                    bytes_per_us: 3000,
                })),
                write_unit: 512,
                ..usual
            },
        ),
        7 => (
            "a device that dawdles, few pages",
            Shape {
                ground: dawdling(seed),
                write_unit: 512,
                files: vec![
                    (Kind::Direct, 256 << 10),
                    (Kind::Mixed, 256 << 10),
                    (Kind::Direct, 4 * MIB),
                    (Kind::Breathing, MIB),
                ],
                cache_bytes: 8 << 20,
                near: 50,
                ..usual
            },
        ),
        _ => (
            "an image, cells of 64 bytes, few pages",
            Shape {
                ground: image(disk),
                cell_bytes: 64,
                files: files(mib / 4),
                cache_bytes: 8 << 20,
                near: 80,
                ..usual
            },
        ),
    };
    let name = format!("shape {number}, {what}, {threads} threads");
    Shape { name, ..shape }
}

/// Directories for images: in memory, where there is such, and on a disk.
pub(crate) fn directories() -> (tempfile::TempDir, tempfile::TempDir) {
    let disk = || tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let shm = tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| disk());
    (shm, disk())
}

/// ThreadSanitizer would see the requests that meet at such a device, which it may mix.
const SKIPPED: &[usize] = if cfg!(sanitizer) { &[3, 6, 7] } else { &[] };

#[test]
fn every_sector_that_threads_read_is_as_they_have_written_it() {
    let (shm, disk) = directories();
    let seed = 20;
    let mut all = Tally::default();
    for number in (0..SHAPES).filter(|number| !SKIPPED.contains(number)) {
        let threads = [2, 4, 16][number % 3];
        let seed = seed + number as u64;
        let shape = shape(number, seed, threads, 16, shm.path(), disk.path());
        let time_ms = if served::SERVED { 500 } else { 1500 };
        let tally = shape.run(seed, Duration::from_millis(time_ms));
        let tally = tally.unwrap_or_else(|violation| panic!("{}", violation.text));
        println!("{}: {tally}", shape.name);
        all += tally;
    }
    assert!(all.judged > 0 && all.rounds > 0, "{all}");
}
