//! A volume whose partitions have a worker each: threads work in all of them, and the power goes.

use crate::rig::{self, PAGE, engine_options, formatted, pattern};
use adit_base::random::Prng;
use adit_base::{Errno, Result};
use adit_block::{Device, FaultDevice, MemoryConfig, MemoryDevice};
use adit_reactor::Engine;
use adit_store::format::{BlobKind, Slot};
use adit_store::{BlobId, MkfsOptions, Store, StoreOptions, Survive, SyncKind, introduce, mkfs};
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
            apart: true,
            ..StoreOptions::default()
        };
        let lead = Engine::start(device.clone(), engine_options(), |reactor| async move {
            Store::open(reactor, &options).await
        });
        let lead = lead.unwrap();
        let seats = lead.run(|store| async { Ok(store.seats()) }).unwrap();
        let others = seats.into_iter().map(|seat| {
            let other = Engine::start(device.clone(), engine_options(), |reactor| async move {
                seat.take(reactor)
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
