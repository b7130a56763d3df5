//! Prints the times of a store's operations on a memory device; ignored, for humans: `cargo test
//! --release -p adit-store --test all speed -- --ignored --nocapture`

use adit_block::{Device, DeviceOptions, MemoryConfig, MemoryDevice, open_device};
use adit_reactor::{Engine, EngineOptions};
use adit_store::format::{BlobKind, Slot};
use adit_store::{MkfsOptions, Store, StoreOptions, Survive, SyncKind, mkfs};
use std::sync::Arc;
use std::time::Instant;
use zerocopy::FromZeros;

fn engine_options() -> EngineOptions {
    EngineOptions {
        queue_depth: 64,
        keeper: true,
        name: "speed".into(),
    }
}

#[test]
#[ignore = "a measurement; the device is ADIT_SPEED_DEVICE, which it overwrites, or memory"]
fn speed() {
    let device: Arc<dyn Device> = match std::env::var("ADIT_SPEED_DEVICE") {
        Ok(address) => open_device(&address, &DeviceOptions::default()).unwrap(),
        Err(_) => MemoryDevice::new(MemoryConfig {
            size_bytes: 1 << 30,
            volatile_cache: false,
            ..Default::default()
        })
        .unwrap(),
    };
    let engine = Engine::<()>::start(device.clone(), engine_options(), |reactor| async move {
        mkfs(
            &reactor,
            &MkfsOptions {
                force: true,
                ..Default::default()
            },
        )
        .await
    })
    .unwrap();
    engine.shutdown(|()| async { Ok(()) }).unwrap();
    let survive = std::env::var("ADIT_SURVIVE").is_ok();
    let options = StoreOptions {
        survive: if survive {
            Survive::Require
        } else {
            Survive::Off
        },
        ..StoreOptions::default()
    };
    let engine: Arc<Engine<Store>> =
        Engine::start(device, engine_options(), |reactor| async move {
            Store::open(reactor, &options).await
        })
        .unwrap();
    let blob = engine
        .run(|store| async {
            let id = store
                .transact(|txn| {
                    let mut slot = Slot::new_zeroed();
                    slot.kind = BlobKind::Blob as u8;
                    txn.create(slot)
                })
                .await?;
            Ok(id)
        })
        .unwrap();
    let data = [7u8; 100];
    for round in 0..4 {
        let count = 100_000u32;
        let start = Instant::now();
        for _ in 0..count {
            engine
                .run(|store| async {
                    let blob = store.blob(blob).await?;
                    store.append(&blob, &data).await?;
                    store.sync(&blob, SyncKind::Data).await
                })
                .unwrap();
        }
        println!(
            "round {round}: append 100 B + fdatasync {} ns",
            start.elapsed().as_nanos() / u128::from(count)
        );
        if std::env::var("ADIT_SPEED_ONLY").is_ok_and(|only| only == "append") {
            continue;
        }
        let start = Instant::now();
        for _ in 0..count {
            engine
                .run(|store| async {
                    let blob = store.blob(blob).await?;
                    store.append(&blob, &data).await.map(drop)
                })
                .unwrap();
        }
        println!(
            "round {round}: append 100 B {} ns",
            start.elapsed().as_nanos() / u128::from(count)
        );
        let start = Instant::now();
        for _ in 0..count {
            engine
                .run(|store| async {
                    store
                        .transact(|txn| {
                            let mut slot = Slot::new_zeroed();
                            slot.kind = BlobKind::Blob as u8;
                            txn.create(slot)
                        })
                        .await
                        .map(drop)
                })
                .unwrap();
        }
        println!(
            "round {round}: create a blob {} ns",
            start.elapsed().as_nanos() / u128::from(count)
        );
        let start = Instant::now();
        engine
            .run(|store| async { store.sync_all().await })
            .unwrap();
        println!("round {round}: syncfs {} us", start.elapsed().as_micros());
        let shared = engine
            .run(|store| async { Ok(store.blob(blob).await?.shared.clone()) })
            .unwrap();
        let mut page = [0u8; 4096];
        let pages = shared.size() / 4096;
        let mut random = adit_base::random::Prng::new(round);
        let start = Instant::now();
        let mut missed = 0;
        for _ in 0..count {
            missed += u32::from(
                shared
                    .try_read(random.below(pages) * 4096, &mut page)
                    .is_none(),
            );
        }
        println!(
            "round {round}: cached read 4 KiB {} ns ({missed} missed)",
            start.elapsed().as_nanos() / u128::from(count)
        );
    }
    engine
        .shutdown(|store| async { store.close().await })
        .unwrap();
}
