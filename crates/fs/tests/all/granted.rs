//! Cached overwrites past the worker: of dirty pages only, visible to all later reads, durable by
//! the next sync.

use crate::common::*;
use adit_base::clock::Timestamp;
use adit_base::random::Prng;
use adit_fs::*;
use adit_store::MkfsOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// For events that other load may delay.
const LIMIT: Duration = Duration::from_secs(240);

const PAGE: usize = 4096;
const PAGES: usize = 32;

/// A file of dirty pages, of which cached overwrites go past the worker from now on.
fn granted(volume: &Volume, path: &str) -> Arc<OpenFile> {
    let file = volume.open(path, CREATE).unwrap();
    make_dirty(volume, &file);
    file
}

/// Writes all pages through the worker, and the first one until that goes past it.
fn make_dirty(volume: &Volume, file: &OpenFile) {
    let content = stamped(1, 0, PAGES * PAGE);
    volume.run(|fs| fs.write(file, 0, &content)).unwrap();
    let mut tries = 0;
    while !volume.write_past_worker(file, 0, &content[..PAGE]).unwrap() {
        (volume.run(|fs| fs.write(file, 0, &content[..PAGE]))).unwrap();
        tries += 1;
        assert!(tries < 1000, "nothing is granted");
    }
}

#[test]
fn an_overwrite_past_the_worker_is_seen_by_all_who_look_later() {
    for data_checksums in [false, true] {
        let device = memory(64 << 20);
        let mkfs = MkfsOptions {
            data_checksums,
            ..MkfsOptions::default()
        };
        let volume = Volume::try_format_as(device.clone(), 4 << 20, true, &mkfs).unwrap();
        let file = granted(&volume, "/f");
        let direct = volume.open("/f", RW | OpenFlags::DIRECT).unwrap();
        let mut expected = stamped(1, 0, PAGES * PAGE);
        let mut random = Prng::new(7);
        let mut past = 0;
        for round in 2..6000u32 {
            let page = random.below(PAGES as u64) as usize;
            let within = random.below(PAGE as u64) as usize;
            let len = 1 + random.below((PAGE - within) as u64) as usize;
            let from = page * PAGE + within;
            let fresh = stamped(round, from as u64, len);
            if volume
                .write_past_worker(&file, from as u64, &fresh)
                .unwrap()
            {
                past += 1;
            } else {
                (volume.run(|fs| fs.write(&file, from as u64, &fresh))).unwrap();
            }
            expected[from..from + len].copy_from_slice(&fresh);
            let mut back = vec![0; 2 * PAGE];
            let at = random.below((PAGES - 1) as u64) as usize * PAGE;
            // Most reads take no page back.
            let reader = if round % 50 == 0 { &direct } else { &file };
            let cached = reader.try_read(at as u64, &mut back);
            if cached.is_none() || round % 30 == 0 {
                volume.read(reader, at as u64, &mut back).unwrap();
            }
            assert!(back == expected[at..at + 2 * PAGE], "round {round}");
            match random.below(200) {
                0 => volume.fdatasync(&file).unwrap(),
                1 => volume.sync().unwrap(),
                2 => volume
                    .run(|fs| async { fs.store().checkpoint().await })
                    .unwrap(),
                3 => {
                    let ranges: [(u64, &[u8]); 1] = [(5, b"atomic")];
                    (volume.run(|fs| fs.write_atomic(&file, &ranges, false))).unwrap();
                    expected[5..11].copy_from_slice(b"atomic");
                }
                _ => {}
            }
        }
        assert!(past > 500, "{past} writes went past the worker");
        volume.close(&direct).unwrap();
        volume.close(&file).unwrap();
        volume.close_volume();
        let volume = Volume::open_on(device, 4 << 20);
        assert!(volume.get("/f").unwrap() == expected, "after reopening");
        assert_eq!(volume.check(), Vec::<String>::new());
        volume.close_volume();
    }
}

#[test]
fn other_writes_than_overwrites_of_dirty_bytes_are_the_workers() {
    let volume = Volume::format(memory(64 << 20), 4 << 20);
    let file = granted(&volume, "/f");
    let end = (PAGES * PAGE) as u64;
    let past = |offset: u64, len: usize| {
        make_dirty(&volume, &file);
        volume
            .write_past_worker(&file, offset, &vec![7; len])
            .unwrap()
    };
    assert!(past(0, PAGE), "a page");
    assert!(past(end - 1, 1), "the last byte");
    assert!(!past(end - 1, 2), "beyond the end");
    assert!(!past(end, 1), "behind the end");
    assert!(!past(u64::MAX, 1), "beyond everything");
    assert!(!past(0, 0), "nothing");
    assert!(!past(1, PAGE), "of two pages");
    assert!(!past(0, 2 * PAGE), "two pages");
    for flags in [OpenFlags::APPEND, OpenFlags::SYNC, OpenFlags::DSYNC] {
        make_dirty(&volume, &file);
        let other = volume.open("/f", RW | flags).unwrap();
        assert!(!volume.write_past_worker(&other, 0, b"x").unwrap());
        volume.close(&other).unwrap();
    }
    make_dirty(&volume, &file);
    let reader = volume.open("/f", RO).unwrap();
    assert!(!volume.write_past_worker(&reader, 0, b"x").unwrap());
    // Clean pages, a hole.
    for make_other in [
        (|volume: &Volume, file: &OpenFile| volume.fsync(file).unwrap()) as fn(&Volume, &OpenFile),
        |volume, file| {
            let how = AllocateFlags::PUNCH_HOLE | AllocateFlags::KEEP_SIZE;
            (volume.run(|fs| fs.allocate(file, how, PAGE as u64, PAGE as u64))).unwrap();
        },
        |volume, file| volume.run(|fs| fs.ftruncate(file, PAGE as u64)).unwrap(),
    ] {
        make_dirty(&volume, &file);
        make_other(&volume, &file);
        assert!(!volume.write_past_worker(&file, PAGE as u64, b"x").unwrap());
    }
    make_dirty(&volume, &file);
    volume
        .run(|fs| fs.set_access_times(AccessTimes::Relative))
        .unwrap();
    volume.fsync(&file).unwrap();
    for _ in 0..100 {
        volume.run(|fs| fs.write(&file, 0, b"x")).unwrap();
        assert!(!volume.write_past_worker(&file, 0, b"x").unwrap());
    }
    let closed = volume.open("/f", RW).unwrap();
    volume.close(&closed).unwrap();
    assert!(!volume.write_past_worker(&closed, 0, b"x").unwrap());
}

#[test]
fn an_overwrite_past_the_worker_sets_the_time_of_the_file() {
    let device = memory(16 << 20);
    let volume = Volume::try_format(device.clone(), 4 << 20, false).unwrap();
    let file = granted(&volume, "/f");
    let long_ago = SetTime::To(Timestamp {
        seconds: 1,
        nanoseconds: 0,
    });
    (volume.run(|fs| fs.change_file(&file, Change::Times(SetTime::Omit, long_ago)))).unwrap();
    let seconds = |volume: &Volume| volume.stat("/f").unwrap().modified.seconds;
    assert_eq!(seconds(&volume), 1);
    assert!(volume.write_past_worker(&file, 9, b"x").unwrap());
    assert!(seconds(&volume) > 1);
    volume.fsync(&file).unwrap();
    volume.close(&file).unwrap();
    volume.close_volume();
    let volume = Volume::open_on(device, 4 << 20);
    assert!(seconds(&volume) > 1, "on the device");
    assert_eq!(volume.get("/f").unwrap()[9], b'x');
}

/// Threads overwrite their pages of one file, and look at all of them, while another syncs it. A
/// page is filled with one number; numbers only grow.
#[test]
fn threads_overwrite_and_read_pages_of_one_file_while_it_is_synced() {
    const WRITERS: usize = 3;
    let device = memory(64 << 20);
    let volume = Volume::format(device.clone(), 4 << 20);
    let file = granted(&volume, "/f");
    let zero = vec![0; PAGES * PAGE];
    (volume.run(|fs| fs.write(&file, 0, &zero))).unwrap();
    let written: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    let (past, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let begin = Instant::now();
    let page_of = |number: u64| number.to_le_bytes().repeat(PAGE / 8);
    std::thread::scope(|scope| {
        let (volume, file, written) = (&volume, &file, &written);
        let (past, over) = (&past, &over);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                scope.spawn(move || {
                    let mut random = Prng::new(writer as u64);
                    let mut back = vec![0; PAGE];
                    for number in 1u64.. {
                        // Beside busy processes the sync may have the file whenever a writer comes.
                        let is_met = past.load(Ordering::Relaxed) > 0 || begin.elapsed() > LIMIT;
                        if number >= 3000 && is_met {
                            break;
                        }
                        let own = random.below((PAGES / WRITERS) as u64) as usize;
                        let page = own * WRITERS + writer;
                        let offset = (page * PAGE) as u64;
                        let fresh = page_of(number);
                        if volume.write_past_worker(file, offset, &fresh).unwrap() {
                            past.fetch_add(1, Ordering::Relaxed);
                        } else {
                            volume.run(|fs| fs.write(file, offset, &fresh)).unwrap();
                        }
                        written[page].store(number, Ordering::Release);
                        let other = random.below(PAGES as u64) as usize;
                        let known = written[other].load(Ordering::Acquire);
                        let at = (other * PAGE) as u64;
                        if file.try_read(at, &mut back).is_none() {
                            volume.read(file, at, &mut back).unwrap();
                        }
                        let found = u64::from_le_bytes(back[..8].try_into().unwrap());
                        assert!(back == page_of(found), "page {other} is torn");
                        assert!(found >= known, "page {other} has {found}, not {known}");
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                volume.fdatasync(file).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(3));
            }
        });
        let _over = SetAtEnd(over);
        for writer in writers {
            writer.join().unwrap();
        }
    });
    assert!(past.into_inner() > 0, "none went past the worker");
    volume.close(&file).unwrap();
    volume.close_volume();
    let volume = Volume::open_on(device, 4 << 20);
    let content = volume.get("/f").unwrap();
    for (page, number) in written.iter().enumerate() {
        let number = number.load(Ordering::Relaxed);
        assert!(
            content[page * PAGE..][..PAGE] == page_of(number),
            "page {page}"
        );
    }
    volume.close_volume();
}

/// Write-back in the background doesn't wait for locks, and skipped a file that a thread was just
/// overwriting: for ever, if one always was.
#[test]
fn what_is_overwritten_all_the_time_is_written_back_all_the_same() {
    let device = memory(64 << 20);
    let volume = Volume::format(device.clone(), 4 << 20);
    let file = granted(&volume, "/f");
    let (over, home) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (volume, file, over) = (&volume, &file, &over);
            scope.spawn(move || {
                let data = vec![writer; PAGE];
                while !over.load(Ordering::Relaxed) {
                    let offset = (usize::from(writer) * PAGE) as u64;
                    volume.write(file, offset, &data).unwrap();
                }
            });
        }
        let _over = SetAtEnd(&over);
        // Write-back starts here, in place of the background task.
        let begin = Instant::now();
        while begin.elapsed() < LIMIT {
            let pages = volume
                .run(|fs| async {
                    let blob = fs.store().blob(file.blob_id()).await?;
                    fs.store().start_write_back(&blob);
                    Ok(blob.with_slot(|slot| slot.allocated_pages))
                })
                .unwrap();
            if pages >= PAGES as u64 {
                home.store(true, Ordering::Relaxed);
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    });
    assert!(home.into_inner(), "nothing was written back");
    volume.close(&file).unwrap();
    volume.close_volume();
}
