//! A volume that is divided among partitions: its refusals, that it is full for all of them or for
//! none, and that it grows. Power cuts are in `power_cut.rs`.

use crate::rig::{
    PAGE, assert_clean, close, create_in, device, drop_dead, engine_options, format_as, formatted,
    pattern,
};
use adit_base::random::Prng;
use adit_base::{Errno, Error, Result};
use adit_block::{Device, FaultDevice, FaultEffect, FaultOn, FaultRule};
use adit_reactor::Engine;
use adit_store::{
    AllocateMode, BlobId, MkfsOptions, PARTITIONS_MAX, Store, StoreOptions, Survive, SyncKind,
};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

const GROUP_BYTES: u64 = 64 << 20;

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
    let engine = open(&plain, 2, |_| ()).unwrap();
    assert_clean(&engine);
    close(engine);
}

/// A blob of a partition with so many MiB.
async fn fill(store: &Store, partition: u32, mib: u64) -> Result<BlobId> {
    let id = create_in(store, partition).await?;
    let store = store.of(id);
    let blob = store.blob(id).await?;
    for at in 0..mib {
        (store.write(&blob, at << 20, &pattern(1 << 20, at))).await?;
    }
    store.sync(&blob, SyncKind::All).await?;
    Ok(id)
}

#[test]
fn a_volume_grows_for_all_partitions() {
    const PARTITIONS: u32 = 3;
    let device = formatted(80 << 20);
    let engine = open(&device, PARTITIONS, |_| ()).unwrap();
    let old = engine.run(|store| fill(store, 1, 40)).unwrap();
    let too_much = engine.run(|store| fill(store, 2, 40)).err();
    assert_eq!(too_much.map(|error| error.errno()), Some(Errno::NOSPC));
    // Within the last group, then by several.
    let mut blobs = vec![(old, 40)];
    for (mib, more) in [(100, 20), (110, 8), (400, 60)] {
        let grown = engine.run(|store| async move {
            let free = store.state().await?.free_pages;
            store.grow(mib << 20).await?;
            assert_eq!(store.info().await?.volume_bytes, mib << 20);
            Ok(store.state().await?.free_pages - free)
        });
        assert!(grown.unwrap() > 0);
        assert_clean(&engine);
        for partition in 0..if mib == 400 { PARTITIONS } else { 1 } {
            let id = engine.run(move |store| fill(store, partition, more));
            blobs.push((id.unwrap(), more));
        }
        let report = assert_clean(&engine);
        assert_eq!(u64::from(report.groups), (mib << 20).div_ceil(GROUP_BYTES));
    }
    close(engine);
    for partitions in [1, 2, 5] {
        let engine = open(&device, partitions, |_| ()).unwrap();
        assert_clean(&engine);
        for (id, mib) in blobs.clone() {
            let read = engine.run(|store| async move {
                let store = store.of(id);
                let blob = store.blob(id).await?;
                let mut back = vec![0; 1 << 20];
                for at in 0..mib {
                    store.read(&blob, at << 20, &mut back).await?;
                    assert!(back == pattern(1 << 20, at), "{mib}: {at}");
                }
                Ok(())
            });
            read.unwrap();
        }
        close(engine);
    }
}

/// A full volume grows, and another partition takes what was gained as soon as it may. Until a
/// commit, its own count of free pages doesn't have that: it said that the volume was damaged.
#[test]
fn what_a_volume_gains_can_be_taken_once_all_partitions_count_it() {
    const PIECE: u64 = 4 << 20;
    let device = formatted(80 << 20);
    let engine = open(&device, 2, |_| ()).unwrap();
    device.inject(FaultRule::new(
        FaultOn::Write,
        FaultEffect::Delay { polls: 20 },
    ));
    let outcome = engine.run(|store| async move {
        let (first, id) = (create_in(store, 0).await?, create_in(store, 1).await?);
        let other = store.of(id);
        let blob = other.blob(id).await?;
        let (mut end, mut piece) = (0, PIECE);
        let mode = AllocateMode::Extend;
        while piece >= PAGE {
            match other.allocate(&blob, end..end + piece, mode).await {
                Ok(()) => end += piece,
                Err(error) if error.errno() == Errno::NOSPC => piece /= 2,
                Err(error) => return Err(error),
            }
        }
        let refused = Cell::new(0);
        let take = async {
            loop {
                match other.allocate(&blob, end..end + PIECE, mode).await {
                    Err(error) if error.errno() == Errno::NOSPC => {
                        refused.set(refused.get() + 1);
                    }
                    taken => return taken,
                }
                store.reactor().yield_now().await;
            }
        };
        // A commit is on its way when the volume has grown.
        let is_over = Cell::new(false);
        let commit = async {
            let blob = store.blob(first).await?;
            for size in 1.. {
                if is_over.get() {
                    break;
                }
                store.resize(&blob, size % 100).await?;
                store.commit().await?;
            }
            Ok::<_, Error>(())
        };
        let (mut grow, mut take) = (pin!(store.grow(200 << 20)), pin!(take));
        let mut commit = pin!(commit);
        let (mut grown, mut taken, mut committed) = (None, None, None);
        poll_fn(|context| {
            if grown.is_none()
                && let Poll::Ready(done) = grow.as_mut().poll(context)
            {
                grown = Some(done);
            }
            if taken.is_none()
                && let Poll::Ready(done) = take.as_mut().poll(context)
            {
                taken = Some(done);
            }
            is_over.set(grown.is_some() && taken.is_some());
            if committed.is_none()
                && let Poll::Ready(done) = commit.as_mut().poll(context)
            {
                committed = Some(done);
            }
            match (&grown, &taken, &committed) {
                (Some(_), Some(_), Some(_)) => Poll::Ready(()),
                _ => Poll::Pending,
            }
        })
        .await;
        committed.expect("done")?;
        grown.expect("done")?;
        taken.expect("done")?;
        Ok(refused.get())
    });
    assert!(outcome.unwrap() > 0);
    assert_clean(&engine);
    close(engine);
}

#[test]
fn a_power_cut_while_partitions_grow_leaves_the_old_size_or_the_new_one() {
    let (old, new) = (80 << 20, 300 << 20);
    let mut sizes = BTreeSet::new();
    for seed in 0..32 {
        let partitions = 2 + seed as u32 % 4;
        let device = formatted(old);
        let engine = open(&device, partitions, |_| ()).unwrap();
        let id = engine.run(|store| fill(store, 1, 2)).unwrap();
        device.cut_after(seed / 2);
        let grown = engine.run(|store| store.grow(new));
        let image = device.power_cut(&mut Prng::new(seed));
        drop_dead(engine);
        let device = device.reopen(image);
        let engine = open(&device, 1 + seed as u32 % 3, |_| ()).unwrap();
        assert_clean(&engine);
        let size = engine.run(|store| async { Ok(store.info().await?.volume_bytes) });
        let size = size.unwrap();
        assert!(size == new || (size == old && grown.is_err()), "{seed}");
        sizes.insert(size);
        let gone_on = engine.run(|store| async move {
            assert_eq!(store.of(id).blob(id).await?.size(), 2 << 20);
            store.grow(new).await?;
            fill(store, 0, 20).await
        });
        gone_on.unwrap();
        assert_clean(&engine);
        close(engine);
    }
    assert_eq!(sizes.len(), 2);
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
