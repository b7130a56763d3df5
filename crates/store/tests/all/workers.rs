//! A volume whose partitions have a worker each: threads work in all of them, and the power goes,
//! or the process is killed.

use crate::process_death::file_options;
use crate::rig::{self, PAGE, engine_options, formatted, pattern};
use adit_base::random::Prng;
use adit_base::{Errno, Result};
use adit_block::{Device, FaultDevice, FileDevice, MemoryConfig, MemoryDevice};
use adit_reactor::Engine;
use adit_store::format::{BlobKind, Slot};
use adit_store::{BlobId, MkfsOptions, Store, StoreOptions, Survive, SyncKind, introduce, mkfs};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use zerocopy::FromZeros;

/// Five groups.
const VOLUME_BYTES: u64 = 300 << 20;

/// The workers of an open volume, in the order of their partitions.
#[derive(Clone)]
struct Volume(Vec<Arc<Engine<Store>>>);

impl Volume {
    fn open(device: &Arc<FaultDevice>, partitions: u32) -> Volume {
        let device: Arc<dyn Device> = device.clone();
        Volume::open_device(&device, partitions, 8 << 20)
    }

    fn open_device(device: &Arc<dyn Device>, partitions: u32, cache_bytes: u64) -> Volume {
        let options = StoreOptions {
            cache_bytes,
            survive: Survive::Off,
            partitions,
            ..StoreOptions::default()
        };
        Volume::open_with(device, options)
    }

    fn open_with(device: &Arc<dyn Device>, options: StoreOptions) -> Volume {
        let options = StoreOptions {
            apart: true,
            ..options
        };
        let lead = Engine::start(device.clone(), engine_options(), |reactor| async move {
            Store::open(reactor, &options).await
        });
        let lead = lead.unwrap();
        let seats = lead.run(|store| async { Ok(store.seats()) }).unwrap();
        let others = seats.into_iter().map(|seat| {
            let other = Engine::start(device.clone(), engine_options(), |reactor| async move {
                Ok(seat.take(reactor))
            });
            other.unwrap()
        });
        let engines: Vec<_> = [lead].into_iter().chain(others).collect();
        introduce(&engines).unwrap();
        Volume(engines)
    }

    fn close(self) {
        self.0[0].run(|store| store.close()).unwrap();
        self.end();
    }

    fn end(self) {
        for engine in self.0 {
            engine.shutdown(|_| async { Ok(()) }).unwrap();
        }
    }

    /// Makes blobs in these partitions, in one transaction.
    fn create<const N: usize>(&self, by: usize, partitions: [u32; N]) -> Result<[BlobId; N]> {
        self.0[by].run(|store| async move {
            let created = store.transact(|transaction| {
                let mut ids = [BlobId::default(); N];
                for (id, partition) in ids.iter_mut().zip(partitions) {
                    let mut slot = Slot::new_zeroed();
                    slot.kind = BlobKind::Blob as u8;
                    *id = transaction.create_in(partition, slot)?;
                }
                Ok(ids)
            });
            created.await
        })
    }

    fn write(&self, by: u32, id: BlobId, len: usize, seed: u64) -> Result<()> {
        let bytes = pattern(len, seed);
        self.0[by as usize].run(|store| async move {
            let blob = store.blob(id).await?;
            store.write(&blob, 0, &bytes).await?;
            store.sync(&blob, SyncKind::All).await
        })
    }

    fn delete(&self, by: u32, id: BlobId) -> Result<()> {
        self.0[by as usize].run(|store| async move {
            store.delete(id).await?;
            store.commit().await
        })
    }
}

/// The operations of the threads: done, and begun.
#[derive(Default, Clone)]
struct Log {
    /// Synced: blob, length, seed.
    synced: Vec<(BlobId, usize, u64)>,
    deleting: Vec<BlobId>,
    /// Made in one transaction.
    pairs: Vec<[BlobId; 2]>,
    /// The first was made before the second.
    orders: Vec<[BlobId; 2]>,
}

fn work(volume: &Volume, thread: u64, log: &Mutex<Log>, ends: &AtomicBool, done: &AtomicU64) {
    let count = volume.0.len() as u32;
    let mut random = Prng::new(thread);
    let mut own: Vec<(u32, BlobId)> = Vec::new();
    while !ends.load(Ordering::Relaxed) {
        let [one, two] = [(); 2].map(|()| random.below(u64::from(count)) as u32);
        match random.below(8) {
            0 => {
                let pair = volume.create(one as usize, [one, two]).unwrap();
                log.lock().unwrap().pairs.push(pair);
            }
            1 => {
                let [first] = volume.create(one as usize, [one]).unwrap();
                let [second] = volume.create(two as usize, [two]).unwrap();
                log.lock().unwrap().orders.push([first, second]);
            }
            2 if own.len() > 20 => {
                let (partition, id) = own.swap_remove(random.below(own.len() as u64) as usize);
                log.lock().unwrap().deleting.push(id);
                volume.delete(partition, id).unwrap();
            }
            3 if random.below(20) == 0 => {
                volume.0[one as usize]
                    .run(|store| store.checkpoint())
                    .unwrap();
            }
            _ => {
                // Its name would be elsewhere: made by one partition for another one.
                let [id] = volume.create(two as usize, [one]).unwrap();
                let (len, seed) = (random.below(3 * PAGE) as usize, random.next_u64());
                volume.write(one, id, len, seed).unwrap();
                log.lock().unwrap().synced.push((id, len, seed));
                own.push((one, id));
            }
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Opens what a power cut left, and compares it. `before` was logged before the cut, `after` then.
fn judge(device: &Arc<FaultDevice>, before: &Log, after: &Log) {
    let engine = rig::open(device);
    rig::assert_clean(&engine);
    let exists = |id: BlobId| {
        let slot = engine.run(|store| async move { store.view(|view| view.slot(id)).await });
        match slot {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.errno(), Errno::STALE, "{error}");
                false
            }
        }
    };
    for (id, len, seed) in &before.synced {
        if after.deleting.contains(id) {
            continue;
        }
        let bytes = engine.run(|store| async move {
            let blob = store.blob(*id).await?;
            let mut bytes = vec![0; *len + 1];
            let got = store.read(&blob, 0, &mut bytes).await?;
            bytes.truncate(got);
            Ok(bytes)
        });
        assert!(bytes.unwrap() == pattern(*len, *seed), "{id:?} was synced");
    }
    for [one, two] in &after.pairs {
        assert_eq!(exists(*one), exists(*two), "of one transaction");
    }
    for [first, second] in &after.orders {
        assert!(
            exists(*first) || !exists(*second),
            "the second has a place before the first"
        );
    }
    rig::close(engine);
}

#[test]
fn one_partition_fills_others_without_a_sync() {
    let device = formatted(VOLUME_BYTES);
    let volume = Volume::open(&device, 3);
    for number in 0..5_000 {
        volume.create(number % 2, [1, 2]).unwrap();
    }
    volume.close();
    let engine = rig::open(&device);
    rig::assert_clean(&engine);
    rig::close(engine);
}

#[test]
fn threads_in_all_partitions_lose_nothing_to_power_cuts() {
    let mut random = Prng::new(7);
    for (partitions, threads) in [(2, 2), (3, 4), (5, 3)] {
        let device = formatted(VOLUME_BYTES);
        let volume = Volume::open(&device, partitions);
        let (log, ends, done) = (Mutex::default(), AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let work = |thread| {
                let (volume, log, ends, done) = (&volume, &log, &ends, &done);
                scope.spawn(move || work(volume, thread, log, ends, done))
            };
            let workers: Vec<_> = (0..threads).map(work).collect();
            for cut in 1..=8 {
                while done.load(Ordering::Relaxed) < cut * 60 {
                    let works = workers.iter().all(|worker| !worker.is_finished());
                    assert!(works, "an operation failed");
                    thread::yield_now();
                }
                let before = log.lock().unwrap().clone();
                let image = device.moment().power_cut(&mut random);
                let after = log.lock().unwrap().clone();
                judge(&device.copy(image, cut), &before, &after);
            }
            ends.store(true, Ordering::Relaxed);
        });
        volume.close();
        assert_eq!(
            Arc::strong_count(&device),
            1,
            "nothing is left of the volume"
        );
        let log = log.into_inner().unwrap();
        judge(&device, &log, &log);
    }
}

/// An operation of a thread of a process that is to be killed: a line of the log before (`?`) and
/// after (`!`) it, with the number of the thread.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    /// Blobs of one transaction. They have its number as their group. Before it is done only how
    /// many is known.
    Create(u32, Vec<BlobId>),
    /// Bytes of [`pattern`] with this seed.
    Append(BlobId, usize, u64),
    Delete(BlobId),
}

impl Told {
    fn line(&self) -> String {
        let of = |id: &BlobId| format!(" {} {}", id.slot, id.generation);
        match self {
            Told::Create(number, ids) => {
                let ids: String = ids.iter().map(of).collect();
                format!("create {number}{ids}")
            }
            Told::Append(id, len, seed) => format!("append {len} {seed}{}", of(id)),
            Told::Delete(id) => format!("delete{}", of(id)),
        }
    }

    fn of_line(line: &str) -> Told {
        let mut words = line.split(' ');
        let what = words.next().unwrap();
        let numbers: Vec<u64> = words.map(|word| word.parse().unwrap()).collect();
        let id = |at: usize| BlobId {
            slot: numbers[at],
            generation: numbers[at + 1] as u32,
        };
        match what {
            "create" => {
                let ids = (1..numbers.len()).step_by(2).map(id);
                Told::Create(numbers[0] as u32, ids.collect())
            }
            "append" => Told::Append(id(2), numbers[0] as usize, numbers[1]),
            _ => Told::Delete(id(0)),
        }
    }
}

/// The part of a process that is to be killed: threads work in all partitions, and sync seldom.
pub(crate) fn work_until_killed(place: &Path, options: &StoreOptions, seed: u64) {
    let device = FileDevice::open(place.join("image"), &file_options()).unwrap();
    let device: Arc<dyn Device> = device;
    let mut log = File::options()
        .append(true)
        .open(place.join("log"))
        .unwrap();
    log.write_all(b"opening\n").unwrap();
    let volume = Volume::open_with(&device, options.clone());
    log.write_all(b"opened\n").unwrap();
    thread::scope(|scope| {
        for thread in 0..3 {
            let (volume, log) = (&volume, log.try_clone().unwrap());
            scope.spawn(move || work_and_tell(volume, thread, seed, log));
        }
    });
}

fn work_and_tell(volume: &Volume, thread: u64, seed: u64, mut log: File) {
    let count = volume.0.len() as u64;
    let mut random = Prng::new(seed ^ thread);
    // With the partition of each.
    let mut own: Vec<(u32, BlobId)> = Vec::new();
    // One write each, so that a line is there or not.
    let mut say = |mark: &str, told: &Told| {
        let line = format!("{thread} {mark} {}\n", told.line());
        log.write_all(line.as_bytes()).unwrap();
    };
    for number in (thread as u32 + 1..).step_by(3) {
        let by = random.below(count) as usize;
        let chosen = (!own.is_empty()).then(|| random.index(own.len()));
        match (random.below(16), chosen) {
            (0..=4, _) | (_, None) => {
                let blobs = 1 + random.index(3);
                let partitions: Vec<u32> = (0..blobs).map(|_| random.below(count) as u32).collect();
                say("?", &Told::Create(number, vec![BlobId::default(); blobs]));
                let ids = volume.0[by].run(|store| async {
                    let created = store.transact(|transaction| {
                        let create = |partition: &u32| {
                            let mut slot = Slot::new_zeroed();
                            (slot.kind, slot.gid) = (BlobKind::Blob as u8, number);
                            transaction.create_in(*partition, slot)
                        };
                        partitions.iter().map(create).collect::<Result<Vec<_>, _>>()
                    });
                    created.await
                });
                let ids = ids.unwrap();
                own.extend(partitions.into_iter().zip(ids.iter().copied()));
                say("!", &Told::Create(number, ids));
            }
            (5, Some(at)) if own.len() > 40 => {
                let (partition, id) = own.swap_remove(at);
                let told = Told::Delete(id);
                say("?", &told);
                let deleted = volume.0[partition as usize].run(|store| store.delete(id));
                deleted.unwrap();
                say("!", &told);
            }
            (6, Some(_)) if random.below(8) == 0 => {
                let synced = match random.below(2) {
                    0 => volume.0[by].run(|store| store.commit()),
                    _ => volume.0[by].run(|store| store.checkpoint()),
                };
                synced.unwrap();
            }
            (_, Some(at)) => {
                let (partition, id) = own[at];
                let (len, seed) = (1 + random.index(6000), random.next_u64());
                let told = Told::Append(id, len, seed);
                say("?", &told);
                let appended = volume.0[partition as usize].run(|store| async move {
                    let blob = store.blob(id).await?;
                    store.append(&blob, &pattern(len, seed)).await
                });
                appended.unwrap();
                say("!", &told);
            }
        }
    }
}

/// Compares a volume with the log of a process that was killed, and empties it. Before, one with so
/// many partitions takes it over, and is killed, too.
pub(crate) fn judge_killed(image: &Path, log: &[String], partitions: u32) {
    let mut contents: HashMap<BlobId, Vec<u8>> = HashMap::new();
    let (mut deleted, mut begun) = (HashSet::new(), HashMap::new());
    let mut made: HashMap<u32, usize> = HashMap::new();
    for line in log.iter().skip(2) {
        let (thread, line) = line.split_once(' ').unwrap();
        let (mark, line) = line.split_once(' ').unwrap();
        let told = Told::of_line(line);
        if mark == "?" {
            begun.insert(thread, told);
            continue;
        }
        begun.remove(thread);
        match told {
            Told::Create(number, ids) => {
                made.insert(number, ids.len());
                contents.extend(ids.into_iter().map(|id| (id, Vec::new())));
            }
            Told::Append(id, len, seed) => {
                contents.get_mut(&id).unwrap().extend(pattern(len, seed));
            }
            Told::Delete(id) => {
                contents.remove(&id);
                deleted.insert(id);
            }
        }
    }
    let device: Arc<dyn Device> = FileDevice::open(image, &file_options()).unwrap();
    if partitions > 1 {
        let options = StoreOptions {
            cache_bytes: 8 << 20,
            partitions,
            ..StoreOptions::default()
        };
        let volume = Volume::open_with(&device, options);
        volume.0.into_iter().for_each(rig::drop_dead);
    }
    let engine = Engine::start(device, engine_options(), |reactor| async move {
        Store::open(reactor, &StoreOptions::default()).await
    });
    let engine = engine.unwrap();
    rig::assert_clean(&engine);
    let mut there: HashMap<BlobId, u32> = HashMap::new();
    let listed = engine.run(|store| async {
        let visit = &mut |id, slot: &Slot| {
            there.insert(id, slot.gid);
            Ok(())
        };
        store.for_each_blob(visit).await
    });
    listed.unwrap();
    for (id, content) in &contents {
        if begun.values().any(|told| *told == Told::Delete(*id)) {
            continue;
        }
        assert!(there.contains_key(id), "{id:?} was acknowledged");
        let found = engine.run(|store| async move {
            let blob = store.blob(*id).await?;
            let mut bytes = vec![0; content.len()];
            let got = store.read(&blob, 0, &mut bytes).await?;
            bytes.truncate(got);
            Ok(bytes)
        });
        let found = found.unwrap();
        let same = found
            .iter()
            .zip(content)
            .take_while(|(a, b)| a == b)
            .count();
        assert!(
            found == *content,
            "{id:?}: {} bytes were acknowledged, {} are there, {same} of them right",
            content.len(),
            found.len()
        );
    }
    for id in deleted {
        assert!(!there.contains_key(&id), "{id:?} was deleted");
    }
    // Of transactions in flight: all blobs or none. Their number is not in the log.
    let mut unknown: HashMap<u32, usize> = HashMap::new();
    for (id, number) in &there {
        if !contents.contains_key(id) {
            *unknown.entry(*number).or_default() += 1;
        }
    }
    for (number, count) in unknown {
        assert!(!made.contains_key(&number), "all of it was acknowledged");
        let is_whole = |told: &Told| match told {
            Told::Create(of, ids) => *of == number && ids.len() == count,
            _ => false,
        };
        let what = "is not a transaction in flight, as a whole";
        assert!(begun.values().any(is_whole), "{count} of {number} {what}");
    }
    for id in there.into_keys() {
        engine.run(|store| store.delete(id)).unwrap();
    }
    rig::close(engine);
}

/// Prints the times of threads with a blob each; for humans.
#[test]
#[ignore = "a measurement"]
fn speed() {
    for threads in [1, 2] {
        for (partitions, volumes) in [(1, 1), (threads, 1), (1, threads)] {
            let devices: Vec<Arc<dyn Device>> = (0..volumes).map(|_| fast()).collect();
            let opened: Vec<Volume> = devices
                .iter()
                .map(|device| Volume::open_device(device, partitions as u32, 256 << 20))
                .collect();
            for what in ["create", "append", "append and sync", "overwrite"] {
                let began = std::time::Instant::now();
                const COUNT: usize = 100_000;
                thread::scope(|scope| {
                    for thread in 0..threads {
                        let volume = &opened[thread % volumes];
                        let by = thread % partitions;
                        scope.spawn(move || volume.repeat(by, what, COUNT));
                    }
                });
                let each = began.elapsed().as_nanos() / (COUNT * threads) as u128;
                println!("{threads} threads, {volumes} volumes of {partitions}: {what} {each} ns");
            }
            opened.into_iter().for_each(Volume::close);
        }
    }
}

fn fast() -> Arc<dyn Device> {
    let device: Arc<dyn Device> = MemoryDevice::new(MemoryConfig {
        size_bytes: 1 << 30,
        volatile_cache: false,
        ..MemoryConfig::default()
    })
    .unwrap();
    let engine = Engine::<()>::start(device.clone(), engine_options(), |reactor| async move {
        mkfs(&reactor, &MkfsOptions::default()).await
    });
    engine.unwrap().shutdown(|()| async { Ok(()) }).unwrap();
    device
}

impl Volume {
    fn repeat(&self, by: usize, what: &str, count: usize) {
        let [id] = self.create(by, [by as u32]).unwrap();
        let engine = &self.0[by];
        engine
            .run(|store| async move {
                let blob = store.blob(id).await?;
                store.write(&blob, 0, &[1; 4096]).await
            })
            .unwrap();
        for number in 0..count {
            let done = match what {
                "create" => self.create(by, [by as u32]).map(drop),
                "append" => engine.run(|store| async move {
                    let blob = store.blob(id).await?;
                    if number % 20_000 == 0 {
                        store.resize(&blob, 0).await?;
                    }
                    store.append(&blob, &[7; 100]).await.map(drop)
                }),
                "append and sync" => engine.run(|store| async move {
                    let blob = store.blob(id).await?;
                    if number % 20_000 == 0 {
                        store.resize(&blob, 0).await?;
                    }
                    store.append(&blob, &[7; 100]).await?;
                    store.sync(&blob, SyncKind::Data).await
                }),
                _ => engine.run(|store| async move {
                    let blob = store.blob(id).await?;
                    store.write(&blob, 0, &[number as u8; 4096]).await
                }),
            };
            if let Err(error) = done {
                let info = engine.run(|store| store.info());
                panic!("{what} {number}: {error} {info:?}");
            }
        }
    }
}
