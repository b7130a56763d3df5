//! Direct reads and writes past the worker: they see acknowledged writes, and no other file's
//! bytes; they write to no other file's pages.

use crate::common::*;
use adit_base::clock::Timestamp;
use adit_base::random::Prng;
use adit_block::{
    Capabilities, Completion, Device, Geometry, Identity, MemoryDevice, Operation, Queue, Request,
};
use adit_fs::*;
use adit_reactor::sync::join_all;
use std::io::IoSliceMut;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
/// Of the device.
const BLOCK: usize = 512;
const PAGES: usize = 48;
/// How long readers may take to have read often enough.
const LIMIT: Duration = Duration::from_secs(240);
const DIRECT: OpenFlags = RW.union(OpenFlags::DIRECT);

/// A place and a length within the first pages: whole pages, or blocks of the device.
fn some_blocks(random: &mut Prng) -> (usize, usize) {
    let unit = match random.below(2) {
        0 => PAGE,
        _ => BLOCK,
    };
    let len = (1 + random.below(4 * PAGE as u64 / unit as u64)) as usize * unit;
    let units = (PAGES * PAGE - len) / unit;
    (random.below(units as u64) as usize * unit, len)
}

/// Reads a range directly, past the worker if possible; true if it was.
fn read_directly(volume: &Volume, file: &OpenFile, offset: u64, buffer: &mut [u8]) -> bool {
    let past = file.try_read(offset, buffer);
    let got = past.unwrap_or_else(|| volume.read(file, offset, buffer).expect("read"));
    assert_eq!(got, buffer.len());
    past.is_some()
}

/// Writes content so that all of it is on the device and nothing of it in the cache: direct writes
/// leave nothing there where pages have a place already, and no live bytes.
fn write_home(volume: &Volume, direct: &OpenFile, offset: u64, content: &[u8]) {
    volume.write(direct, offset, content).unwrap();
    volume
        .run(|fs| async { fs.store().checkpoint().await })
        .unwrap();
    volume.write(direct, offset, content).unwrap();
}

#[test]
fn a_direct_read_past_the_worker_sees_whatever_was_done_before_it() {
    let volume = Volume::format(memory(64 << 20), 4 << 20);
    let cached = volume.open("/f", CREATE).unwrap();
    let direct = volume.open("/f", DIRECT).unwrap();
    let mut random = Prng::new(11);
    let mut expected = stamped(0, 0, PAGES * PAGE);
    volume.write(&cached, 0, &expected).unwrap();
    let mut past = 0;
    for round in 1..3000u32 {
        let page = random.below(PAGES as u64 - 4) as usize;
        let (from, len) = (page * PAGE, (1 + random.below(4) as usize) * PAGE);
        let fresh = stamped(round, from as u64, len);
        let offset = from as u64;
        match random.below(16) {
            0 => {
                // Not whole pages.
                volume.write(&cached, offset + 100, &fresh[100..]).unwrap();
                expected[from + 100..from + len].copy_from_slice(&fresh[100..]);
            }
            1 => {
                let (from, len) = some_blocks(&mut random);
                let fresh = stamped(round, from as u64, len);
                volume.write(&direct, from as u64, &fresh).unwrap();
                expected[from..from + len].copy_from_slice(&fresh);
            }
            2 => {
                let ranges = [(offset, &fresh[..])];
                volume
                    .run(|fs| fs.write_atomic(&cached, &ranges, round % 2 == 0))
                    .unwrap();
                expected[from..from + len].copy_from_slice(&fresh);
            }
            3 => {
                volume.run(|fs| fs.ftruncate(&cached, offset)).unwrap();
                expected[from..].fill(0);
                let end = (PAGES * PAGE) as u64;
                volume.run(|fs| fs.ftruncate(&cached, end)).unwrap();
            }
            4 | 5 => {
                let how = match random.below(2) {
                    0 => AllocateFlags::PUNCH_HOLE | AllocateFlags::KEEP_SIZE,
                    _ => AllocateFlags::ZERO_RANGE,
                };
                volume
                    .run(|fs| fs.allocate(&cached, how, offset, len as u64))
                    .unwrap();
                expected[from..from + len].fill(0);
            }
            // Takes the freed pages.
            6 => volume.put("/other", &fresh).unwrap(),
            7 => drop(volume.unlink("/other")),
            8 => volume.fdatasync(&cached).unwrap(),
            9 => volume.sync().unwrap(),
            10 => volume
                .run(|fs| async { fs.store().checkpoint().await })
                .unwrap(),
            11 | 12 => write_home(&volume, &direct, 0, &expected),
            _ => {}
        }
        for _ in 0..random.below(30) {
            let (at, len) = some_blocks(&mut random);
            let mut back = vec![0; len];
            past += u64::from(read_directly(&volume, &direct, at as u64, &mut back));
            assert!(back == expected[at..at + len], "round {round}, at {at}");
        }
    }
    assert!(past > 1000, "{past} reads went past the worker");
    volume.close_volume();
}

#[test]
fn a_direct_read_gets_no_other_files_bytes_while_pages_change_hands() {
    let volume = Volume::format(memory(32 << 20), 4 << 20);
    let keep = volume.open("/keep", CREATE).unwrap();
    let own = stamped(1, 0, PAGES * PAGE);
    volume.write(&keep, 0, &own).unwrap();
    let direct = volume.open("/keep", DIRECT).unwrap();
    let (done, past) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (volume, own, done, past) = (&volume, &own, &done, &past);
            scope.spawn(move || {
                let file = volume
                    .open("/keep", RO | OpenFlags::DIRECT)
                    .expect("opened");
                let mut random = Prng::new(seed);
                let mut back = vec![0; PAGE];
                while !done.load(Ordering::Relaxed) {
                    let at = random.below(PAGES as u64) as usize * PAGE;
                    let got = file.try_read(at as u64, &mut back);
                    past.fetch_add(u64::from(got.is_some()), Ordering::Relaxed);
                    let got = got
                        .unwrap_or_else(|| volume.read(&file, at as u64, &mut back).expect("read"));
                    let right = |(byte, own): (&u8, &u8)| byte == own || *byte == 0;
                    assert!(
                        back[..got].iter().zip(&own[at..]).all(right),
                        "another file's bytes"
                    );
                }
                volume.close(&file).expect("closed");
            });
        }
        let _done = SetAtEnd(&done);
        let mut random = Prng::new(99);
        let begin = Instant::now();
        for round in 0u32.. {
            // Beside busy processes the readers may seldom have a core.
            let has_enough = past.load(Ordering::Relaxed) > 1000 || begin.elapsed() > LIMIT;
            if round >= 400 && has_enough {
                break;
            }
            // Half of its pages go to another file, and come back.
            let kept = random.below(PAGES as u64 / 2) * PAGE as u64;
            volume.run(|fs| fs.ftruncate(&keep, kept)).unwrap();
            volume.sync().unwrap();
            let name = format!("/other{}", round % 3);
            volume
                .put(&name, &stamped(2 + round, 0, PAGES * PAGE))
                .unwrap();
            volume.sync().unwrap();
            volume.unlink(&name).unwrap();
            volume.sync().unwrap();
            write_home(&volume, &direct, kept, &own[kept as usize..]);
            // Readers get to know where it is now.
            std::thread::sleep(std::time::Duration::from_micros(random.below(2000)));
        }
    });
    let past = past.load(Ordering::Relaxed);
    assert!(past > 1000, "{past} reads went past the worker");
    volume.close_volume();
}

/// A device on which a request can be held up.
struct Holding {
    below: Arc<MemoryDevice>,
    holds: Operation,
    stage: Mutex<Stage>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Free,
    HoldsNext,
    Holds,
}

impl Holding {
    fn set(&self, stage: Stage) {
        *self.stage.lock().unwrap() = stage;
        self.changed.notify_all();
    }

    fn wait_for(&self, stage: Stage) {
        let now = self.stage.lock().unwrap();
        drop(self.changed.wait_while(now, |now| *now != stage).unwrap());
    }
}

impl Device for Holding {
    fn name(&self) -> String {
        self.below.name()
    }

    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.below.capabilities()
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn open_queue(&self, depth: u32) -> adit_base::Result<Box<dyn Queue>> {
        self.below.open_queue(depth)
    }

    fn execute(&self, request: Request) -> Completion {
        let held =
            request.operation == self.holds && *self.stage.lock().unwrap() == Stage::HoldsNext;
        if held {
            self.set(Stage::Holds);
            self.wait_for(Stage::Free);
        }
        self.below.execute(request)
    }
}

#[test]
fn a_direct_read_that_takes_long_is_repeated_when_its_pages_have_changed_hands() {
    let device = Arc::new(Holding {
        below: memory(16 << 20),
        holds: Operation::Read,
        stage: Mutex::new(Stage::Free),
        changed: Condvar::new(),
    });
    let volume = Volume::format(device.clone(), 4 << 20);
    let file = volume.open("/f", CREATE | OpenFlags::DIRECT).unwrap();
    // Half of the volume, so that a file that fills it gets these pages.
    let all = stamped(1, 0, 8 << 20);
    write_home(&volume, &file, 0, &all);
    let own = &all[..PAGES * PAGE];
    let fill = |name: &str| {
        let put = |index| volume.put(&format!("{name}{index}"), &stamped(2, 0, 8 * PAGE));
        assert!((0..).take_while(|index| put(*index).is_ok()).count() > 0);
        volume.sync().unwrap();
    };
    fill("/other");
    let mut back = vec![0; PAGES * PAGE];
    while !read_directly(&volume, &file, 0, &mut back) {}
    device.set(Stage::HoldsNext);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut back = vec![0; PAGES * PAGE];
            let got = file.try_read(0, &mut back);
            got.is_none() || back == own
        });
        device.wait_for(Stage::Holds);
        volume.run(|fs| fs.ftruncate(&file, 0)).unwrap();
        volume.sync().unwrap();
        fill("/more");
        device.set(Stage::Free);
        assert!(reading.join().unwrap(), "another file's bytes");
    });
    volume.close_volume();
}

/// A file of whole pages on the device, of which direct writes go past the worker from now on.
fn lent(volume: &Volume, path: &str, pages: usize) -> Arc<OpenFile> {
    let file = volume.open(path, CREATE | OpenFlags::DIRECT).unwrap();
    let content = stamped(1, 0, pages * PAGE);
    write_home(volume, &file, 0, &content);
    lend_again(volume, &file, &content[..PAGE]);
    file
}

/// Writes the first page until that goes past the worker.
fn lend_again(volume: &Volume, file: &OpenFile, page: &[u8]) {
    let mut tries = 0;
    while !volume.write_past_worker(file, 0, page).unwrap() {
        volume.run(|fs| fs.write(file, 0, page)).unwrap();
        tries += 1;
        assert!(tries < 100, "nothing is lent");
    }
}

fn page_at(volume: &Volume, path: &str, page: usize) -> Vec<u8> {
    let mut back = vec![0; PAGE];
    let file = volume.open(path, RO).unwrap();
    let got = volume.read(&file, (page * PAGE) as u64, &mut back).unwrap();
    volume.close(&file).unwrap();
    back.truncate(got);
    back
}

#[test]
fn a_direct_write_past_the_worker_is_seen_by_all_who_look_later() {
    let volume = Volume::format(memory(64 << 20), 4 << 20);
    let direct = lent(&volume, "/f", PAGES);
    let cached = volume.open("/f", RW).unwrap();
    let mut expected = stamped(1, 0, PAGES * PAGE);
    let mut random = Prng::new(5);
    let mut past = 0;
    for round in 2..4000u32 {
        let (from, len) = some_blocks(&mut random);
        let fresh = stamped(round, from as u64, len);
        if random.below(30) == 0 {
            volume.write(&cached, from as u64, &fresh).unwrap();
        } else if volume
            .write_past_worker(&direct, from as u64, &fresh)
            .unwrap()
        {
            past += 1;
        } else {
            volume
                .run(|fs| fs.write(&direct, from as u64, &fresh))
                .unwrap();
        }
        expected[from..from + len].copy_from_slice(&fresh);
        let at = match random.below(2) {
            0 => from - from % PAGE,
            _ => random.below(PAGES as u64) as usize * PAGE,
        };
        if random.below(12) == 0 {
            // Which brings it into the cache.
            let back = page_at(&volume, "/f", at / PAGE);
            assert!(back == expected[at..at + PAGE], "round {round}");
        }
        let mut back = vec![0; PAGE];
        read_directly(&volume, &direct, at as u64, &mut back);
        assert!(back == expected[at..at + PAGE], "round {round}, directly");
        match random.below(40) {
            0 => volume.fdatasync(&direct).unwrap(),
            1 => volume.sync().unwrap(),
            2 => volume
                .run(|fs| async { fs.store().checkpoint().await })
                .unwrap(),
            _ => {}
        }
    }
    assert!(past > 500, "{past} writes went past the worker");
    volume.close_volume();
}

#[test]
fn who_takes_pages_away_waits_for_who_writes_to_them_past_the_worker() {
    type Take = fn(&Volume, &OpenFile);
    let takes: [(&str, Take); 5] = [
        ("truncation", |volume, file| {
            volume.run(|fs| fs.ftruncate(file, 0)).unwrap();
        }),
        ("an atomic write", |volume, file| {
            let ranges: [(u64, &[u8]); 1] = [(5, b"x")];
            volume
                .run(|fs| fs.write_atomic(file, &ranges, false))
                .unwrap();
        }),
        ("a hole", |volume, file| {
            let how = AllocateFlags::PUNCH_HOLE | AllocateFlags::KEEP_SIZE;
            let len = (PAGES * PAGE) as u64;
            volume.run(|fs| fs.allocate(file, how, 0, len)).unwrap();
        }),
        ("a write to the cache", |volume, file| {
            volume.run(|fs| fs.write(file, 1, b"x")).unwrap();
        }),
        ("a read to the cache", |volume, _| {
            page_at(volume, "/f", 0);
        }),
    ];
    for (what, take) in takes {
        let device = Arc::new(Holding {
            below: memory(16 << 20),
            holds: Operation::Write { fua: false },
            stage: Mutex::new(Stage::Free),
            changed: Condvar::new(),
        });
        // Nothing else writes meanwhile.
        let volume = Volume::try_format(device.clone(), 4 << 20, false).unwrap();
        let file = lent(&volume, "/f", PAGES);
        let other = volume.open("/f", DIRECT).unwrap();
        device.set(Stage::HoldsNext);
        let taken = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let fresh = stamped(7, 0, PAGE);
            let writing = scope.spawn({
                let (volume, other) = (&volume, &other);
                move || volume.write_past_worker(other, 0, &fresh)
            });
            device.wait_for(Stage::Holds);
            let taking = scope.spawn(|| {
                take(&volume, &file);
                taken.store(true, Ordering::Relaxed);
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            let early = taken.load(Ordering::Relaxed);
            device.set(Stage::Free);
            assert!(writing.join().unwrap().unwrap());
            taking.join().unwrap();
            assert!(!early, "{what} didn't wait");
        });
        volume.close(&other).unwrap();
        if what == "a read to the cache" {
            let back = page_at(&volume, "/f", 0);
            assert!(
                back == stamped(7, 0, PAGE),
                "older than what was acknowledged"
            );
        }
        volume.close_volume();
    }
}

/// The time of the last change of `/f`.
fn seconds(volume: &Volume) -> i64 {
    volume.stat("/f").unwrap().modified.seconds
}

#[test]
fn what_was_written_past_the_worker_is_flushed_and_timed_by_a_sync() {
    let device = memory(16 << 20);
    let volume = Volume::try_format(device.clone(), 4 << 20, false).unwrap();
    let file = lent(&volume, "/f", PAGES);
    let other = lent(&volume, "/other", PAGES);
    let fresh = stamped(3, 0, PAGE);
    let sync: [fn(&Volume, &OpenFile); 3] = [
        |volume, file| volume.fdatasync(file).unwrap(),
        |volume, file| volume.fsync(file).unwrap(),
        |volume, _| volume.sync().unwrap(),
    ];
    for sync in sync {
        lend_again(&volume, &file, &fresh);
        volume.sync().unwrap();
        lend_again(&volume, &file, &fresh);
        // That one went past the worker, and so do later ones. Another file's sync flushes earlier
        // writes.
        (volume.run(|fs| fs.write(&other, 0, &fresh))).unwrap();
        volume.fdatasync(&other).unwrap();
        let long_ago = SetTime::To(Timestamp {
            seconds: 1,
            nanoseconds: 0,
        });
        volume
            .run(|fs| fs.change_file(&file, Change::Times(SetTime::Omit, long_ago)))
            .unwrap();
        assert_eq!(seconds(&volume), 1);
        assert!(
            volume
                .write_past_worker(&file, PAGE as u64, &fresh)
                .unwrap()
        );
        assert!(seconds(&volume) > 1, "its time");
        let before = device.counts().flushes;
        sync(&volume, &file);
        assert!(device.counts().flushes > before, "no flush");
        assert!(seconds(&volume) > 1, "its time, later");
    }
    volume.close_volume();
    let volume = Volume::open_on(device, 4 << 20);
    assert!(seconds(&volume) > 1, "its time, on the device");
    assert!(page_at(&volume, "/f", 1) == fresh);
    volume.close_volume();
}

/// A read into several pieces of memory took the file's lock anew for each of them, so an atomic
/// write could fall between two pieces of one page, and the page was neither as before it nor as
/// after it. (`cargo xtask threads` found it within minutes.)
#[test]
fn a_read_into_several_pieces_sees_an_atomic_write_as_a_whole() {
    let volume = Volume::format(memory(64 << 20), 4 << 20);
    let cached = volume.open("/f", CREATE).unwrap();
    let direct = volume.open("/f", DIRECT).unwrap();
    let (old, new) = ([1; PAGE], [2; PAGE]);
    volume.write(&cached, 0, &old).unwrap();
    for file in [&cached, &direct] {
        // The first piece waits for the device; the writer comes meanwhile.
        write_home(&volume, &direct, 0, &old);
        let mut page = [0; PAGE];
        let (first, second) = page.split_at_mut(1000);
        let mut pieces = [IoSliceMut::new(first), IoSliceMut::new(second)];
        let results = volume.run(|fs| async {
            let read = async {
                let got = fs.read_vectored(file, 0, &mut pieces).await?;
                assert_eq!(got, PAGE);
                Ok(())
            };
            let ranges = [(0, new.as_slice())];
            let write = fs.write_atomic(&cached, &ranges, false);
            let both: [Pin<Box<dyn Future<Output = adit_base::Result<()>>>>; 2] =
                [Box::pin(read), Box::pin(write)];
            join_all(both).await.into_iter().collect()
        });
        assert_eq!(results, Ok(()));
        assert!(
            page == old || page == new,
            "{} and {}",
            page[0],
            page[PAGE - 1]
        );
        assert_eq!(volume.get("/f").unwrap(), new);
    }
}
