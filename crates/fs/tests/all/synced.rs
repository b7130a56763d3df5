//! Syncs past the worker: of pages that were overwritten past it, and of nothing else.

use crate::common::*;
use adit_base::Errno;
use adit_base::random::Prng;
use adit_block::{FaultConfig, FaultDevice, FaultEffect, FaultOn, FaultRule};
use adit_fs::*;
use adit_store::MkfsOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: usize = 4096;
const PAGES: usize = 8;

/// A file whose overwrites and syncs go past the worker from now on.
fn granted(volume: &Volume, path: &str, flags: OpenFlags) -> Arc<OpenFile> {
    let file = volume.open(path, CREATE).unwrap();
    volume
        .write(&file, 0, &stamped(1, 0, PAGES * PAGE))
        .unwrap();
    volume.fsync(&file).unwrap();
    volume.close(&file).unwrap();
    let file = volume.open(path, RW | flags).unwrap();
    settle(volume, &file);
    file
}

/// Overwrites the first page and syncs until both go past the worker. (First the journal's bytes
/// of the file go home.)
fn settle(volume: &Volume, file: &OpenFile) {
    volume
        .run(|fs| async { fs.store().checkpoint().await })
        .unwrap();
    let page = stamped(1, 0, PAGE);
    for _ in 0..1000 {
        let past = volume.write_past_worker(file, 0, &page).unwrap();
        if !past {
            volume.run(|fs| fs.write(file, 0, &page)).unwrap();
        }
        let synced = volume.sync_past_worker(file).unwrap();
        if past && synced != Synced::No {
            return;
        }
        if synced == Synced::No {
            volume.run(|fs| fs.fdatasync(file)).unwrap();
        }
    }
    panic!("nothing is granted");
}

fn device(volatile_cache: bool) -> Arc<FaultDevice> {
    FaultDevice::new(FaultConfig {
        inline: true,
        volatile_cache,
        ..FaultConfig::default()
    })
}

#[test]
fn what_a_thread_synced_is_there_after_a_power_cut() {
    for volatile_cache in [false, true] {
        for flags in [OpenFlags::empty(), OpenFlags::DIRECT] {
            let device = device(volatile_cache);
            let volume = Volume::format(device.clone(), 16 << 20);
            let file = granted(&volume, "/f", flags);
            let mut random = Prng::new(3);
            let mut expected = stamped(1, 0, PAGES * PAGE);
            let mut past = 0;
            for round in 2..300 {
                let at = random.below(PAGES as u64) as usize * PAGE;
                let fresh = stamped(round, at as u64, PAGE);
                volume.write(&file, at as u64, &fresh).unwrap();
                expected[at..at + PAGE].copy_from_slice(&fresh);
                match volume.sync_past_worker(&file).unwrap() {
                    Synced::No => volume.run(|fs| fs.fdatasync(&file)).unwrap(),
                    synced => {
                        past += 1;
                        assert_eq!(synced == Synced::Home, volatile_cache);
                        if volatile_cache {
                            volume.run(|fs| fs.flush_granted(&file)).unwrap();
                        }
                    }
                }
            }
            assert!(past > 200, "{past} syncs went past the worker");
            let image = device.power_cut_with(|_, _| false);
            drop(volume);
            let volume = Volume::open_on(device.reopen(image), 16 << 20);
            assert!(volume.get("/f").unwrap() == expected);
            assert_eq!(volume.check(), [""; 0]);
        }
    }
}

#[test]
fn a_sync_of_more_than_overwritten_pages_is_the_workers() {
    let volume = Volume::format(device(false), 16 << 20);
    volume.mkdir("/d").unwrap();
    volume.mkdir("/d/e").unwrap();
    let file = granted(&volume, "/d/e/f", OpenFlags::empty());
    let changes: [(&str, &dyn Fn()); 7] = [
        ("an append", &|| _ = volume.append(&file, b"x").unwrap()),
        ("a truncation", &|| {
            volume
                .run(|fs| fs.ftruncate(&file, (PAGES * PAGE) as u64))
                .unwrap()
        }),
        ("a mode", &|| {
            volume
                .run(|fs| fs.change(at("/d/e/f"), Follow::No, Change::Mode(0o600)))
                .unwrap()
        }),
        ("a name", &|| volume.rename("/d/e/f", "/d/e/g").unwrap()),
        ("a name of a directory above", &|| {
            volume.rename("/d/e", "/e").unwrap()
        }),
        ("an atomic write", &|| {
            let ranges: [(u64, &[u8]); 1] = [(5, b"atomic")];
            volume
                .run(|fs| fs.write_atomic(&file, &ranges, false))
                .unwrap()
        }),
        ("a write-back that commits the times", &|| {
            volume.write(&file, 0, &stamped(2, 0, PAGE)).unwrap();
            volume.run(|fs| fs.syncfs()).unwrap();
        }),
    ];
    for (what, change) in changes {
        settle(&volume, &file);
        change();
        let page = stamped(3, 0, PAGE);
        for _ in 0..10 {
            // So that a grant is out.
            volume.write(&file, 0, &page).unwrap();
        }
        assert_eq!(
            volume.sync_past_worker(&file).unwrap(),
            Synced::No,
            "{what}"
        );
        volume.run(|fs| fs.fdatasync(&file)).unwrap();
    }
    volume.close_volume();
}

#[test]
fn a_page_that_a_thread_could_not_write_is_written_by_the_worker() {
    let device = device(false);
    let volume = Volume::format(device.clone(), 16 << 20);
    let file = granted(&volume, "/f", OpenFlags::empty());
    let other = volume.open("/f", RO).unwrap();
    let fresh = stamped(2, 0, PAGE);
    assert!(volume.write_past_worker(&file, 0, &fresh).unwrap());
    let fails = FaultRule::new(FaultOn::Write, FaultEffect::Error(Errno::IO));
    device.inject(fails.clone().times(1));
    assert_eq!(
        volume.fdatasync(&file),
        Ok(()),
        "the worker's write succeeds"
    );
    settle(&volume, &file);
    assert!(volume.write_past_worker(&file, 0, &fresh).unwrap());
    device.inject(fails.times(2));
    assert_eq!(volume.fdatasync(&file), Err(Errno::IO));
    assert_eq!(volume.fdatasync(&other), Err(Errno::IO), "each descriptor");
    assert_eq!(volume.fdatasync(&file), Ok(()));
    let image = device.power_cut_with(|_, _| false);
    drop(volume);
    let volume = Volume::open_on(device.reopen(image), 16 << 20);
    assert!(volume.get("/f").unwrap()[..PAGE] == fresh);
}

#[test]
fn pages_that_a_thread_took_home_are_flushed_though_others_stayed_behind() {
    let device = device(true);
    let volume = Volume::format(device.clone(), 16 << 20);
    let file = granted(&volume, "/f", OpenFlags::empty());
    let hole = (PAGES + 2) * PAGE;
    volume
        .run(|fs| fs.ftruncate(&file, (hole + PAGE) as u64))
        .unwrap();
    settle(&volume, &file);
    volume.fdatasync(&file).unwrap(); // nothing else is to be flushed
    let fresh = stamped(2, 0, PAGE);
    // Two that don't lie side by side, and one without a place: a thread writes the first only.
    for at in [0, 2 * PAGE, hole] {
        volume.write(&file, at as u64, &fresh).unwrap();
    }
    for _ in 0..10 {
        volume.write(&file, 0, &fresh).unwrap();
    }
    assert_eq!(volume.sync_past_worker(&file).unwrap(), Synced::No);
    volume.run(|fs| fs.fdatasync(&file)).unwrap();
    let image = device.power_cut_with(|_, _| false);
    drop(volume);
    let volume = Volume::open_on(device.reopen(image), 16 << 20);
    let found = volume.get("/f").unwrap();
    for at in [0, 2 * PAGE, hole] {
        assert!(found[at..at + PAGE] == fresh, "the page at {at}");
    }
}

#[test]
fn a_volume_that_became_read_only_syncs_nothing_past_the_worker() {
    let device = device(true);
    let volume = Volume::format(device.clone(), 16 << 20);
    let file = granted(&volume, "/f", OpenFlags::empty());
    let other = volume.open("/other", CREATE).unwrap();
    assert!(
        volume
            .write_past_worker(&file, 0, &stamped(2, 0, PAGE))
            .unwrap()
    );
    device.inject(FaultRule::new(
        FaultOn::Flush,
        FaultEffect::Error(Errno::IO),
    ));
    assert_eq!(volume.fdatasync(&file), Err(Errno::IO));
    device.clear_faults();
    assert_eq!(volume.fdatasync(&file), Err(Errno::ROFS));
    assert_eq!(volume.fdatasync(&other), Err(Errno::ROFS));
}

#[test]
fn data_with_checksums_is_synced_by_the_worker() {
    let mkfs = MkfsOptions {
        data_checksums: true,
        ..MkfsOptions::default()
    };
    let volume = Volume::try_format_as(device(false), 16 << 20, true, &mkfs).unwrap();
    let file = volume.open("/f", CREATE).unwrap();
    volume
        .write(&file, 0, &stamped(1, 0, PAGES * PAGE))
        .unwrap();
    for round in 0..100 {
        volume.write(&file, 0, &stamped(round, 0, PAGE)).unwrap();
        assert_eq!(volume.sync_past_worker(&file).unwrap(), Synced::No);
        volume.run(|fs| fs.fdatasync(&file)).unwrap();
    }
    volume.close_volume();
}

/// Each byte of a page is of one write; a thread's own page has its last write at home when the
/// sync returns, whatever others do to the file.
#[test]
fn threads_sync_their_pages_of_one_file_while_others_change_it() {
    const THREADS: usize = 3;
    let device = device(false);
    let volume = Volume::format(device.clone(), 16 << 20);
    let file = granted(&volume, "/f", OpenFlags::empty());
    let ended = AtomicBool::new(false);
    let past: u32 = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (volume, file) = (&volume, &file);
                scope.spawn(move || {
                    let mut past = 0;
                    for round in 0..2000u32 {
                        let at = thread * PAGE + (round as usize % 4) * 1024;
                        let fresh = stamped(round, at as u64, 1024);
                        volume.write(file, at as u64, &fresh).unwrap();
                        match volume.sync_past_worker(file).unwrap() {
                            Synced::No => volume.run(|fs| fs.fdatasync(file)).unwrap(),
                            _ => past += 1,
                        }
                    }
                    past
                })
            })
            .collect();
        scope.spawn(|| {
            let mut round = 0;
            while !ended.load(Ordering::Relaxed) {
                round += 1;
                match round % 4 {
                    0 => _ = volume.append(&file, b"more").unwrap(),
                    1 => volume.fsync(&file).unwrap(),
                    2 => volume.run(|fs| fs.syncfs()).unwrap(),
                    _ => _ = volume.read(&file, 0, &mut [0; 100]).unwrap(),
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        let past = writers.into_iter().map(|writer| writer.join().unwrap());
        let past = past.sum();
        ended.store(true, Ordering::Relaxed);
        past
    });
    println!("{past} of {} syncs went past the worker", 2000 * THREADS);
    let image = device.power_cut_with(|_, _| false);
    drop(volume);
    let volume = Volume::open_on(device.reopen(image), 16 << 20);
    let found = volume.get("/f").unwrap();
    for thread in 0..THREADS {
        for round in 1996..2000u32 {
            let at = thread * PAGE + (round as usize % 4) * 1024;
            assert!(found[at..at + 1024] == stamped(round, at as u64, 1024));
        }
    }
}
