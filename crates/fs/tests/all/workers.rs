//! Several workers in a volume: threads use files and names of all partitions, and the power goes.

use crate::common::several::{Several, VOLUME_BYTES};
use crate::common::*;
use adit_base::Errno;
use adit_base::random::Prng;
use adit_block::{Device, FaultConfig, FaultDevice};
use adit_fs::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// The operations of a thread. Each path is one file for ever.
#[derive(Default, Clone)]
struct Log {
    /// Synced: length and stamp.
    synced: BTreeMap<String, (usize, u32)>,
    /// From here on its name may be there or not.
    touched: BTreeSet<String>,
    /// Removed, and that is synced.
    gone: Vec<String>,
    /// The first was made before the second; neither is touched but by `touched`.
    orders: Vec<[String; 2]>,
    /// Renamed from the first to the second: never both, never neither.
    renamed: Vec<[String; 2]>,
}

struct Worker<'a> {
    volume: &'a Several,
    log: &'a Mutex<Log>,
    random: Prng,
    thread: u64,
    next: u64,
    own: Vec<String>,
}

impl Worker<'_> {
    fn log(&self, note: impl FnOnce(&mut Log)) {
        note(&mut self.log.lock().unwrap());
    }

    /// A fresh path in this thread's directory, or in the one that all use.
    fn path(&mut self) -> String {
        self.next += 1;
        let (thread, next) = (self.thread, self.next);
        match self.random.below(3) {
            0 => format!("/shared/{thread}-{next}"),
            _ => format!("/own{thread}/{next}"),
        }
    }

    fn make(&self, path: &str) -> Arc<OpenFile> {
        self.volume.open_file(path, CREATE | OpenFlags::EXCLUSIVE)
    }

    fn touch(&self, path: &str) {
        self.volume.close_file(&self.make(path));
    }

    fn sync_directory_of(&self, path: &str) {
        let (directory, _) = path.rsplit_once('/').unwrap();
        let directory = self.volume.open_file(directory, OpenFlags::DIRECTORY);
        self.volume
            .on(&directory, |fs, file| fs.fsync(file))
            .unwrap();
        self.volume.close_file(&directory);
    }

    fn write(&mut self) {
        let path = self.path();
        let file = self.make(&path);
        let (len, stamp) = (
            self.random.below(20_000) as usize,
            self.random.next_u64() as u32,
        );
        let bytes = stamped(stamp, 0, len);
        let write = |from: usize, to: usize| {
            let piece = &bytes[from..to];
            (self.volume.on(&file, |fs, file| fs.append(file, piece))).unwrap();
        };
        write(0, len / 2);
        write(len / 2, len);
        let sync = self.volume.on(&file, |fs, file| fs.fsync(file));
        sync.unwrap();
        self.log(|log| {
            log.synced.insert(path.clone(), (len, stamp));
        });
        self.volume.close_file(&file);
        self.own.push(path);
    }

    fn unlink(&mut self) {
        let path = self
            .own
            .swap_remove(self.random.below(self.own.len() as u64) as usize);
        self.log(|log| {
            log.touched.insert(path.clone());
        });
        // Open meanwhile, now and then: then it is an orphan first.
        let open = (self.random.below(3) == 0).then(|| self.volume.open_file(&path, RO));
        self.volume.at(&path, |fs, at| fs.unlink(at)).unwrap();
        open.iter().for_each(|file| self.volume.close_file(file));
        if self.random.below(2) == 0 {
            self.sync_directory_of(&path);
            self.log(|log| log.gone.push(path));
        }
    }

    fn rename(&mut self) {
        let from = self
            .own
            .swap_remove(self.random.below(self.own.len() as u64) as usize);
        let to = self.path();
        self.log(|log| {
            log.touched.insert(from.clone());
            log.renamed.push([from.clone(), to.clone()]);
        });
        let renamed = self
            .volume
            .at(&to, |fs, to| fs.rename(at(&from), to, RenameFlags::empty()));
        renamed.unwrap();
        let file = self.volume.open_file(&to, RO);
        (self.volume.on(&file, |fs, file| fs.fsync(file))).unwrap();
        self.volume.close_file(&file);
        self.log(|log| {
            let content = log.synced[&from];
            log.synced.insert(to.clone(), content);
        });
        self.own.push(to);
    }

    fn work(&mut self) {
        match self.random.below(10) {
            0 | 1 if self.own.len() > 10 => self.unlink(),
            2 | 3 if self.own.len() > 10 => self.rename(),
            4 | 5 => {
                let pair = [(); 2].map(|()| self.path());
                pair.iter().for_each(|path| self.touch(path));
                self.log(|log| log.orders.push(pair));
            }
            6 => {
                let path = self.path();
                (self.volume.at(&path, |fs, at| fs.mkdir(at, 0o755))).unwrap();
                (self.volume.at(&path, |fs, at| fs.rmdir(at))).unwrap();
            }
            7 if !self.own.is_empty() => {
                // Over an existing file.
                let (path, other) = (self.path(), self.path());
                self.touch(&path);
                self.touch(&other);
                let renamed = self.volume.at(&other, |fs, to| {
                    fs.rename(at(&path), to, RenameFlags::empty())
                });
                renamed.unwrap();
                (self.volume.at(&other, |fs, at| fs.unlink(at))).unwrap();
            }
            _ => self.write(),
        }
    }
}

fn exists(volume: &Volume, path: &str) -> bool {
    match volume.stat(path) {
        Ok(_) => true,
        Err(Errno::NOENT) => false,
        Err(errno) => panic!("{path}: {errno}"),
    }
}

/// Opens what a power cut left, with one worker, and compares it with the logs of all threads,
/// before the cut and after it.
fn judge(device: Arc<dyn Device>, logs: &[(Log, Log)]) {
    let volume = Volume::open_on(device, 8 << 20);
    for (before, after) in logs {
        for (path, (len, stamp)) in &before.synced {
            if !after.touched.contains(path) {
                let found = volume.get(path);
                let found = found.unwrap_or_else(|errno| panic!("{path} was synced: {errno}"));
                assert!(found == stamped(*stamp, 0, *len), "{path} was synced");
            }
        }
        for path in &before.gone {
            assert!(!exists(&volume, path), "{path} was removed");
        }
        for [first, second] in &after.orders {
            assert!(
                exists(&volume, first) || !exists(&volume, second),
                "{second} is there without {first}"
            );
        }
        for [from, to] in &after.renamed {
            let there = exists(&volume, from) || exists(&volume, to);
            let was_synced = before.synced.contains_key(from);
            assert!(
                there || !was_synced || after.touched.contains(to),
                "{from} is lost"
            );
            assert!(!exists(&volume, from) || !exists(&volume, to), "both");
        }
    }
    assert_eq!(volume.check(), [""; 0]);
    volume.close_volume();
}

#[test]
fn threads_with_all_partitions_lose_nothing_to_power_cuts() {
    let mut random = Prng::new(11);
    for (workers, threads) in [(2, 2), (3, 4), (5, 3)] {
        let device = FaultDevice::new(FaultConfig {
            size_bytes: VOLUME_BYTES,
            ..FaultConfig::default()
        });
        Volume::format(device.clone(), 8 << 20).close_volume();
        let volume = Several::open(device.clone(), workers);
        let names = (0..threads).map(|thread| format!("/own{thread}"));
        for path in names.chain(["/shared".into()]) {
            volume.at(&path, |fs, at| fs.mkdir(at, 0o755)).unwrap();
        }
        (volume.workers.lead()).run(|fs| fs.syncfs()).unwrap();
        let logs: Vec<Mutex<Log>> = (0..threads).map(|_| Mutex::default()).collect();
        let copy = || -> Vec<Log> { logs.iter().map(|log| log.lock().unwrap().clone()).collect() };
        let (ends, done) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let _ends = SetAtEnd(&ends);
            let threads: Vec<_> = (logs.iter().zip(0..))
                .map(|(log, thread)| {
                    let (volume, ends, done) = (&volume, &ends, &done);
                    scope.spawn(move || {
                        let mut worker = Worker {
                            volume,
                            log,
                            random: Prng::new(thread),
                            thread,
                            next: 0,
                            own: Vec::new(),
                        };
                        while !ends.load(Ordering::Relaxed) {
                            worker.work();
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            for cut in 1..=6 {
                while done.load(Ordering::Relaxed) < cut * 300 {
                    let works = threads.iter().all(|thread| !thread.is_finished());
                    assert!(works, "an operation failed");
                    thread::yield_now();
                }
                let before = copy();
                let image = device.moment().power_cut(&mut random);
                let logs: Vec<_> = before.into_iter().zip(copy()).collect();
                judge(device.copy(image, cut), &logs);
            }
        });
        assert_eq!(volume.close(), [""; 0]);
        let logs: Vec<_> = copy().into_iter().zip(copy()).collect();
        judge(device.clone(), &logs);
        assert_eq!(Arc::strong_count(&device), 1, "nothing is left of it");
    }
}

/// Two files, or directories, in different partitions.
fn in_two_partitions(volume: &Several, make: impl Fn(&str)) -> [String; 2] {
    let partition = |path: &str| {
        let file = volume.open_file(path, RO);
        volume.close_file(&file);
        file.partition()
    };
    let paths: Vec<String> = (0..volume.workers.count() + 1)
        .map(|number| format!("/{number}"))
        .collect();
    paths.iter().for_each(|path| make(path));
    let other = paths
        .iter()
        .find(|other| partition(other) != partition(&paths[0]));
    [
        paths[0].clone(),
        other.expect("they are given in turn").clone(),
    ]
}

#[test]
fn a_thread_that_looks_sees_all_of_a_move_between_partitions_or_nothing() {
    let volume = Several::fresh(3);
    let directories = in_two_partitions(&volume, |path| {
        volume.at(path, |fs, at| fs.mkdir(at, 0o755)).unwrap();
    });
    let [one, two] = &directories;
    let moved = [one, two].map(|path| format!("{path}/moved"));
    (volume.at(&moved[0], |fs, at| fs.mkdir(at, 0o755))).unwrap();
    let inode = |path: &String| {
        let stat = volume.at(path, |fs, at| fs.stat(at, Follow::No));
        stat.unwrap().inode
    };
    let inodes = [one, two].map(inode);
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = SetAtEnd(&ends);
        let looks = scope.spawn(|| {
            let (mut seen, mut path) = ([0; 2], 0);
            while !ends.load(Ordering::Relaxed) {
                path = 1 - path;
                let above = format!("{}/..", moved[path]);
                let names = volume.workers.names();
                match names.stat(at(&above), Follow::No) {
                    None => {}
                    Some(Ok(stat)) => {
                        assert_eq!(stat.inode, inodes[path], "the directory that it is in");
                        seen[path] += 1;
                    }
                    Some(Err(error)) => assert_eq!(error.errno(), Errno::NOENT),
                }
            }
            seen
        });
        for number in 0..20_000 {
            let (from, to) = (&moved[number % 2], &moved[1 - number % 2]);
            let renamed = volume.at(to, |fs, to| fs.rename(at(from), to, RenameFlags::empty()));
            renamed.unwrap();
        }
        ends.store(true, Ordering::Relaxed);
        let seen = looks.join().unwrap();
        assert!(seen.iter().all(|seen| *seen > 0), "{seen:?}");
    });
    assert_eq!(volume.close(), [""; 0]);
}

#[test]
fn a_circle_of_waits_over_two_partitions_is_found() {
    let volume = Several::fresh(2);
    let paths = in_two_partitions(&volume, |path| {
        volume.close_file(&volume.open_file(path, CREATE));
    });
    let [one, two] = paths.each_ref().map(|path| volume.open_file(path, RW));
    let whole = |id| {
        let owner = LockOwner::Posix { id, pid: id as i32 };
        RangeLock::new(owner, LockMode::Exclusive, 0, 0)
    };
    let lock = |file: &OpenFile, id, wait| {
        let lock = whole(id);
        let taken = (volume.workers.of(file)).run(|fs| fs.lock_range(file, &lock, wait));
        taken.map_err(|error| error.errno())
    };
    lock(&one, 1, false).unwrap();
    lock(&two, 2, false).unwrap();
    let file = two.clone();
    let begun = Arc::new(AtomicBool::new(false));
    let begins = begun.clone();
    let mut waiter = volume.workers.of(&two).spawn(move |fs| async move {
        begins.store(true, Ordering::SeqCst);
        fs.lock_range(&file, &whole(1), true).await
    });
    while !begun.load(Ordering::SeqCst) {
        let _ = waiter.poll_once();
    }
    volume.on(&two, |fs, file| fs.fstat(file)).unwrap();
    assert!(waiter.poll_once().is_none(), "it waits");
    assert_eq!(lock(&one, 2, true), Err(Errno::DEADLK));
    volume
        .on(&two, |fs, file| fs.release_locks(file, 2))
        .unwrap();
    waiter.wait().unwrap();
    [one, two].iter().for_each(|file| volume.close_file(file));
    assert_eq!(volume.close(), [""; 0]);
}

#[test]
fn work_that_waits_is_done_by_the_worker_that_has_the_file() {
    let volume = Several::fresh(3);
    let paths = in_two_partitions(&volume, |path| {
        volume.close_file(&volume.open_file(path, CREATE));
    });
    let bytes = stamped(1, 0, 100_000);
    for path in &paths {
        let file = volume.open_file(path, RW);
        volume
            .on(&file, |fs, file| fs.write(file, 0, &bytes))
            .unwrap();
        volume.close_file(&file);
    }
    // Any worker may be asked.
    for engine in volume.workers.all() {
        for path in &paths {
            engine.run(|fs| fs.truncate(at(path), 50_000)).unwrap();
            let file = engine.run(|fs| fs.open(at(path), RW, 0)).unwrap();
            assert_eq!(file.size_bytes(), 50_000);
            let mut found = vec![0; 50_001];
            let got = volume.on(&file, |fs, file| fs.read(file, 0, &mut found));
            assert_eq!(got, Ok(50_000));
            assert!(found[..50_000] == bytes[..50_000]);
            volume
                .on(&file, |fs, file| fs.write(file, 50_000, &bytes[50_000..]))
                .unwrap();
            volume.close_file(&file);
            // Closed, and never another worker's.
            let flags = RW | OpenFlags::TRUNCATE;
            let file = engine.run(|fs| fs.open(at(path), flags, 0)).unwrap();
            assert_eq!(file.size_bytes(), 0);
            for other in volume.workers.all() {
                let is_its = Arc::ptr_eq(other, volume.workers.of(&file));
                assert_eq!(other.run(|fs| fs.size(&file)).is_ok(), is_its);
            }
            volume
                .on(&file, |fs, file| fs.write(file, 0, &bytes))
                .unwrap();
            volume.close_file(&file);
        }
    }
    // A copy from one partition to another, with a hole.
    let [from, to] = paths.each_ref().map(|path| volume.open_file(path, RW));
    volume
        .on(&from, |fs, file| fs.ftruncate(file, 300_000))
        .unwrap();
    volume.on(&to, |fs, file| fs.ftruncate(file, 0)).unwrap();
    let copied = (volume.workers.of(&to)).run(|fs| fs.copy_range(&from, 10, &to, 5, 1 << 20));
    assert_eq!(copied.unwrap(), 300_000 - 10);
    let mut found = vec![0; 300_000];
    let got = volume.on(&to, |fs, file| fs.read(file, 0, &mut found));
    assert_eq!(got, Ok(300_000 - 5));
    assert!(found[5..][..bytes.len() - 10] == bytes[10..]);
    assert!(found[5 + bytes.len() - 10..].iter().all(|byte| *byte == 0));
    // Descriptors of all workers are listed, in pieces.
    let lead = volume.workers.lead();
    let (mut listed, mut cookie) = (BTreeSet::new(), 0);
    loop {
        let piece = lead.run(|fs| async move { Ok(fs.open_descriptors(cookie, 1).await) });
        let Some(descriptor) = piece.unwrap().pop() else {
            break;
        };
        cookie = descriptor.cookie;
        listed.insert(descriptor.inode);
    }
    let inodes = [&from, &to].map(|file| file.blob_id().slot);
    assert_eq!(listed, BTreeSet::from(inodes));
    // An orphan of another partition loses its data with its last descriptor.
    let free = || lead.run(|fs| fs.statfs()).unwrap().free_bytes;
    lead.run(|fs| fs.syncfs()).unwrap();
    let before = free();
    for (path, file) in paths.iter().zip([from, to]) {
        for engine in volume.workers.all() {
            let gone = engine.run(|fs| fs.unlink(at(path)));
            assert!(gone.is_ok() || gone.unwrap_err().errno() == Errno::NOENT);
        }
        volume.close_file(&file);
    }
    lead.run(|fs| fs.syncfs()).unwrap();
    assert!(free() >= before + 4 * bytes.len() as u64 / 4096 * 4096 / 2);
    // Blobs without names go to partitions in turn.
    let blobs: Vec<BlobId> = (0..6)
        .map(|_| lead.run(|fs| fs.create_blob()).unwrap())
        .collect();
    for id in blobs {
        let opened = lead.run(|fs| fs.open_blob(id, RW)).unwrap();
        let busy = lead.run(|fs| fs.delete_blob(id));
        assert_eq!(busy.unwrap_err().errno(), Errno::BUSY);
        volume.close_file(&opened);
        lead.run(|fs| fs.delete_blob(id)).unwrap();
        let gone = lead.run(|fs| fs.open_blob(id, RW));
        assert_eq!(gone.unwrap_err().errno(), Errno::NOENT);
    }
    assert_eq!(volume.close(), [""; 0]);
}
