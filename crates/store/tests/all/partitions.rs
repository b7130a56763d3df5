//! A volume that is divided among partitions: its refusals, and that it is full for all of them or
//! for none. Power cuts are in `power_cut.rs`.

use crate::rig::{
    PAGE, assert_clean, create_in, device, engine_options, format_as, formatted, formatted_with,
};
use adit_base::{Errno, Result};
use adit_block::{Device, FaultDevice};
use adit_reactor::Engine;
use adit_store::{MkfsOptions, PARTITIONS_MAX, Store, StoreOptions, Survive, SyncKind};
use std::sync::Arc;

/// Five groups.
const VOLUME_BYTES: u64 = 300 << 20;

fn open(
    device: &Arc<FaultDevice>,
    partitions: u32,
    change: impl FnOnce(&mut StoreOptions),
) -> Result<Arc<Engine<Store>>> {
    let mut options = StoreOptions {
        cache_bytes: 8 << 20,
        survive: Survive::Off,
        partitions,
        ..StoreOptions::default()
    };
    change(&mut options);
    let device: Arc<dyn Device> = device.clone();
    Engine::start(device, engine_options(), |reactor| async move {
        Store::open(reactor, &options).await
    })
}

#[test]
fn what_does_not_go_with_several_partitions_is_refused() {
    let plain = formatted(VOLUME_BYTES);
    let refused = |device: &_, partitions, change: &dyn Fn(&mut StoreOptions)| {
        let error = open(device, partitions, change).err();
        assert_eq!(error.map(|error| error.errno()), Some(Errno::INVAL));
    };
    refused(&plain, 0, &|_| ());
    refused(&plain, PARTITIONS_MAX + 1, &|_| ());
    refused(&formatted_with(VOLUME_BYTES, true), 2, &|_| ());
    let engine = open(&plain, 2, |_| ()).unwrap();
    let errors = engine.run(|store| async move {
        let grown = store.grow(VOLUME_BYTES).await.err();
        Ok(grown.map(|error| error.errno()))
    });
    assert_eq!(errors.unwrap(), Some(Errno::OPNOTSUPP));
    assert_clean(&engine);
    engine
        .shutdown(|store| async { store.close().await })
        .unwrap();
}

#[test]
fn more_partitions_than_groups_share_what_there_is() {
    let device = device(20 << 20);
    format_as(&device, MkfsOptions::default());
    let engine = open(&device, 5, |_| ()).unwrap();
    let made = engine.run(|store| async move {
        for partition in 0..5 {
            let id = create_in(store, partition).await?;
            assert_eq!(store.of(id).partition(), 0, "there is one group");
            let blob = store.of(id).blob(id).await?;
            store.of(id).write(&blob, 0, &[7; 5000]).await?;
            store.of(id).sync(&blob, SyncKind::All).await?;
        }
        store.state().await
    });
    assert_eq!(made.unwrap().blobs, 5);
    engine
        .shutdown(|store| async { store.close().await })
        .unwrap();
}

/// Each partition fills the volume in turn, until none finds a page. Then all of it can be freed.
#[test]
fn a_volume_is_full_for_all_partitions_or_for_none() {
    const STEP: u64 = 3 << 20;
    let device = formatted(VOLUME_BYTES);
    let engine = open(&device, 4, |_| ()).unwrap();
    let outcome = engine.run(|store| async move {
        let free_pages = store.state().await?.free_pages;
        let mut blobs = Vec::new();
        for partition in 0..4 {
            let id = create_in(store, partition).await?;
            assert_eq!(store.of(id).partition(), partition);
            blobs.push((id, store.of(id).blob(id).await?, 0));
        }
        let data = vec![3; STEP as usize];
        // The first one takes most of it, far more than its groups have.
        let mut step = STEP;
        let mut turns = (0..80).map(|_| 0).chain((0..).map(|turn| turn % 4));
        let mut refused = [false; 4];
        while step >= PAGE {
            let turn = turns.next().expect("endless");
            let (id, blob, end) = &mut blobs[turn];
            let piece = &data[..step as usize];
            match store.of(*id).write(blob, *end, piece).await {
                Ok(()) => {
                    *end += step;
                    refused = [false; 4];
                }
                Err(error) if error.errno() == Errno::NOSPC => {
                    refused[turn] = true;
                    if refused == [true; 4] {
                        (step, refused) = (step / 2 / PAGE * PAGE, [false; 4]);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        store.sync_all().await?;
        let ends: Vec<u64> = blobs.iter().map(|(.., end)| *end).collect();
        let left = store.state().await?.free_pages;
        for (id, blob, _) in blobs {
            drop(blob);
            store.of(id).delete(id).await?;
        }
        store.checkpoint().await?;
        store.checkpoint().await?;
        Ok((free_pages, left, ends, store.state().await?.free_pages))
    });
    let (before, left, ends, after) = outcome.unwrap();
    // The reserve for deleting, and nodes that were promised and not needed.
    assert!((48..200).contains(&left), "{left} pages are left, {ends:?}");
    assert!(
        ends[0] > 200 << 20,
        "one partition took what others have: {ends:?}"
    );
    // Pages of slots stay.
    assert!(
        before - after <= 4 * 8,
        "{before} pages were free, {after} are"
    );
    engine
        .shutdown(|store| async { store.close().await })
        .unwrap();
    let engine = open(&device, 1, |_| ()).unwrap();
    let report = engine.run(|store| async move { store.check(&mut |_, _| ()).await });
    let report = report.unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
}

/// Pages that a partition stages in another one count against the open transaction's room, too.
#[test]
fn one_partition_fills_another_one_without_a_sync() {
    let device = formatted(VOLUME_BYTES);
    let engine = open(&device, 3, |_| ()).unwrap();
    let made = engine.run(|store| async move {
        for _ in 0..10_000 {
            create_in(store, 1).await?;
        }
        store.state().await
    });
    assert_eq!(made.unwrap().blobs, 10_000);
    engine
        .shutdown(|store| async { store.close().await })
        .unwrap();
}
