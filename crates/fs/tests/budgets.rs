//! What operations cost at the device, counted on a device with a volatile cache.

mod common;

use adit_block::{IoCounts, MemoryDevice};
use common::*;
use std::sync::Arc;

fn volume() -> (Arc<MemoryDevice>, Volume) {
    let device = memory(128 << 20);
    let volume = Volume::format(device.clone(), 32 << 20);
    volume.sync().unwrap();
    (device, volume)
}

/// What `operation` asks of the device.
fn cost(device: &MemoryDevice, operation: impl FnOnce()) -> IoCounts {
    device.reset_counts();
    operation();
    device.counts()
}

/// Asserts writes (with or without FUA) and flushes at most; FUA counts as a flush.
fn at_most(counts: IoCounts, writes: u64, flushes: u64, what: &str) {
    let flushed = counts.flushes + counts.fua_writes;
    assert!(
        counts.writes <= writes && flushed <= flushes,
        "{what}: {counts:?}"
    );
}

#[test]
fn a_small_append_and_fdatasync_is_one_write_and_one_flush() {
    let (device, volume) = volume();
    let file = volume.open("/log", CREATE).unwrap();
    volume.append(&file, &[1; 100]).unwrap();
    volume.fsync(&file).unwrap();
    for round in 0..300 {
        let counts = cost(&device, || {
            volume.append(&file, &[round as u8; 100]).unwrap();
            volume.fdatasync(&file).unwrap();
        });
        at_most(counts, 1, 1, &format!("append {round}"));
    }
    volume.close(&file).unwrap();
}

#[test]
fn a_new_file_of_a_page_and_fsync_is_two_writes_and_two_flushes() {
    let (device, volume) = volume();
    for round in 0..50 {
        let counts = cost(&device, || {
            let file = volume.open(&format!("/f{round}"), CREATE).unwrap();
            volume.write(&file, 0, &stamped(round, 0, 4096)).unwrap();
            volume.fsync(&file).unwrap();
            volume.close(&file).unwrap();
        });
        at_most(counts, 2, 2, &format!("file {round}"));
    }
}

#[test]
fn an_overwrite_and_fdatasync_is_one_write_and_one_flush() {
    let (device, volume) = volume();
    let file = volume.open("/f", CREATE).unwrap();
    volume.write(&file, 0, &stamped(1, 0, 1 << 20)).unwrap();
    volume.fsync(&file).unwrap();
    volume.sync().unwrap();
    for round in 0..50 {
        let counts = cost(&device, || {
            volume
                .write(&file, round * 8192, &stamped(2, 0, 4096))
                .unwrap();
            volume.fdatasync(&file).unwrap();
        });
        at_most(counts, 1, 1, &format!("overwrite {round}"));
    }
    volume.close(&file).unwrap();
}

#[test]
fn what_is_cached_costs_nothing() {
    let (device, volume) = volume();
    volume.mkdir("/d").unwrap();
    volume.put("/d/f", &stamped(1, 0, 1 << 20)).unwrap();
    volume.sync().unwrap();
    volume.get("/d/f").unwrap();
    let counts = cost(&device, || {
        for _ in 0..100 {
            let file = volume.open("/d/f", RO).unwrap();
            let mut page = [0; 4096];
            volume.read(&file, 40_960, &mut page).unwrap();
            assert_eq!(file.try_read(8192, &mut page), Some(4096));
            volume.stat("/d/f").unwrap();
            volume.close(&file).unwrap();
        }
        volume.list("/d");
    });
    assert_eq!(counts, IoCounts::default());
}

#[test]
fn names_are_made_without_io_until_somebody_syncs() {
    let (device, volume) = volume();
    let counts = cost(&device, || {
        for number in 0..1000 {
            volume.touch(&format!("/{number}")).unwrap();
        }
        for number in 0..500 {
            volume
                .rename(&format!("/{number}"), &format!("/r{number}"))
                .unwrap();
        }
    });
    assert_eq!((counts.reads, counts.flushes), (0, 0));
    let counts = cost(&device, || volume.sync().unwrap());
    assert!(counts.flushes + counts.fua_writes <= 2, "{counts:?}");
}

#[test]
fn fsyncs_that_arrive_together_share_their_flushes() {
    let device = MemoryDevice::new(adit_block::MemoryConfig {
        size_bytes: 64 << 20,
        volatile_cache: true,
        latency: Some(adit_block::Latency {
            read_us: 20,
            write_us: 2000,
            flush_us: 20_000,
            bytes_per_us: 1000,
        }),
        ..Default::default()
    })
    .unwrap();
    let volume = Volume::format(device.clone(), 16 << 20);
    let files: Vec<_> = (0..8)
        .map(|number| volume.open(&format!("/{number}"), CREATE).unwrap())
        .collect();
    volume.sync().unwrap();
    for file in &files {
        volume.append(file, &[1; 100]).unwrap();
    }
    let barrier = std::sync::Barrier::new(8);
    let counts = cost(&device, || {
        std::thread::scope(|scope| {
            for file in &files {
                scope.spawn(|| {
                    barrier.wait();
                    volume.fdatasync(file).unwrap();
                });
            }
        });
    });
    assert!(counts.flushes + counts.fua_writes <= 4, "{counts:?}");
}
