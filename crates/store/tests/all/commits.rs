//! Commits overlap at the device, and count in the order in which they were sealed.

use crate::rig::{PAGE, assert_clean, create, drop_dead, engine_options, format_as, open, until};
use adit_base::{Errno, Result};
use adit_block::{FaultConfig, FaultDevice, FaultEffect, FaultOn, FaultRule};
use adit_reactor::Engine;
use adit_reactor::sync::join_all;
use adit_store::{BlobId, COMMITS_MAX, MkfsOptions, Store, StoreOptions, Survive, SyncKind};
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The smallest ring, which mkfs chooses for such a volume.
const RING: Range<u64> = 2 * PAGE..(2 + 1024) * PAGE;

type Work<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// A device with a queue, and empty files on it.
fn files(count: usize) -> (Arc<FaultDevice>, Arc<Engine<Store>>, Vec<BlobId>) {
    files_with(Some(COMMITS_MAX), count)
}

fn files_with(
    commits_in_flight: Option<u32>,
    count: usize,
) -> (Arc<FaultDevice>, Arc<Engine<Store>>, Vec<BlobId>) {
    let device = FaultDevice::new(FaultConfig {
        size_bytes: 32 << 20,
        queued: true,
        ..FaultConfig::default()
    });
    format_as(&device, MkfsOptions::default());
    let options = StoreOptions {
        commits_in_flight,
        survive: Survive::Off,
        ..StoreOptions::default()
    };
    let engine = Engine::start(device.clone(), engine_options(), |reactor| async move {
        Store::open(reactor, &options).await
    });
    let engine = engine.unwrap();
    let ids = engine.run(|store| async {
        let mut ids = Vec::new();
        for _ in 0..count {
            let id = create(store).await?;
            let blob = store.blob(id).await?;
            store.append(&blob, b"begun").await?;
            store.sync(&blob, SyncKind::All).await?;
            ids.push(id);
        }
        store.checkpoint().await?;
        Ok(ids)
    });
    let ids = ids.unwrap();
    (device, engine, ids)
}

fn on_journal(effect: FaultEffect) -> FaultRule {
    FaultRule::new(FaultOn::Write, effect).within(RING)
}

async fn append(store: &Store, id: BlobId) -> Result<()> {
    let blob = store.blob(id).await?;
    store.append(&blob, b", ended").await?;
    store.sync(&blob, SyncKind::Data).await
}

/// The content of each file if power failed now and the device kept all writes.
fn after_power_cut(device: &Arc<FaultDevice>, ids: &[BlobId]) -> Vec<Vec<u8>> {
    let image = device.power_cut_with(|_, _| true);
    let engine = open(&device.reopen(image));
    assert_clean(&engine);
    let contents = engine.run(|store| async {
        let mut contents = Vec::new();
        for id in ids {
            let blob = store.blob(*id).await?;
            let mut content = vec![0; 100];
            let len = store.read(&blob, 0, &mut content).await?;
            content.truncate(len);
            contents.push(content);
        }
        Ok(contents)
    });
    drop_dead(engine);
    contents.unwrap()
}

/// The second commit is durable long before the first one, and waits for it.
#[test]
fn a_commit_counts_after_the_one_before_it() {
    let (device, engine, ids) = files(2);
    device.inject(on_journal(FaultEffect::Delay { polls: 5000 }).times(1));
    let order = Mutex::new(Vec::new());
    let (device, ids, order) = (&device, &ids, &order);
    let done = engine.run(|store| async move {
        let writes = device.counts().writes;
        let sync = move |index: usize| async move {
            // The one before is at the device.
            until(store, || device.counts().writes == writes + index as u64).await;
            append(store, ids[index]).await?;
            order.lock().unwrap().push(index);
            Ok(())
        };
        let second_is_written = async move {
            until(store, || device.counts().writes == writes + 2).await;
            until(store, || device.at_risk() == (0, 1)).await;
            assert!(
                order.lock().unwrap().is_empty(),
                "acknowledged before the first"
            );
            Ok(())
        };
        let syncs: [Work<'_>; 3] = [
            Box::pin(sync(0)),
            Box::pin(sync(1)),
            Box::pin(second_is_written),
        ];
        join_all(syncs).await.into_iter().collect::<Result<()>>()
    });
    done.unwrap();
    assert_eq!(*order.lock().unwrap(), [0, 1]);
    assert_eq!(device.faults(), 1);
    drop_dead(engine);
    let ended = b"begun, ended".to_vec();
    assert_eq!(after_power_cut(device, ids), [ended.clone(), ended]);
}

/// The first of two commits fails while the second is durable: both fail, and recovery ends before
/// the first.
#[test]
fn a_commit_that_fails_fails_those_after_it() {
    let (device, engine, ids) = files(2);
    device.inject(on_journal(FaultEffect::Delay { polls: 5000 }).times(1));
    device.inject(on_journal(FaultEffect::Error(Errno::IO)).times(1));
    let (device, ids) = (&device, &ids);
    let errors = engine.run(|store| async move {
        let writes = device.counts().writes;
        let sync = move |index: usize| async move {
            until(store, || device.counts().writes == writes + index as u64).await;
            let result = append(store, ids[index]).await;
            Ok(result.err().map(|error| error.errno()))
        };
        let syncs = [0, 1].map(sync);
        join_all(syncs)
            .await
            .into_iter()
            .collect::<Result<Vec<_>>>()
    });
    assert_eq!(errors.unwrap(), [Some(Errno::IO), Some(Errno::ROFS)]);
    // Delayed, and failed.
    assert_eq!(device.faults(), 2);
    drop_dead(engine);
    let begun = b"begun".to_vec();
    assert_eq!(after_power_cut(device, ids), [begun.clone(), begun]);
}

/// Nobody said how many may be in flight: the device shows that it takes long.
#[test]
fn commits_overlap_where_the_device_takes_long() {
    let (device, engine, ids) = files_with(None, 2);
    let (device, ids) = (&device, &ids);
    let done = engine.run(|store| async move {
        // One write in sixteen is timed, and the shortest of four times counts.
        for _ in 0..5 * 16 {
            let writes = device.counts().writes;
            device.inject(on_journal(FaultEffect::Delay { polls: 5 }).times(1));
            let slowly = async {
                until(store, || device.counts().writes > writes).await;
                std::thread::sleep(Duration::from_millis(2));
                Ok(())
            };
            let work: [Work<'_>; 2] = [Box::pin(append(store, ids[0])), Box::pin(slowly)];
            join_all(work).await.into_iter().collect::<Result<()>>()?;
        }
        let writes = device.counts().writes;
        device.inject(on_journal(FaultEffect::Delay { polls: 5000 }).times(2));
        let first = append(store, ids[0]);
        let second = async {
            until(store, || device.counts().writes > writes).await;
            append(store, ids[1]).await
        };
        let both_are_there = async {
            until(store, || device.at_risk() == (0, 2)).await;
            Ok(())
        };
        let work: [Work<'_>; 3] = [Box::pin(first), Box::pin(second), Box::pin(both_are_there)];
        join_all(work).await.into_iter().collect::<Result<()>>()
    });
    done.unwrap();
    drop_dead(engine);
}

#[test]
fn four_commits_are_in_flight_at_most() {
    let (device, engine, ids) = files(8);
    device.inject(on_journal(FaultEffect::Delay { polls: 2000 }));
    let (most, left) = (&AtomicUsize::new(0), &AtomicUsize::new(ids.len()));
    let (device, ids) = (&device, &ids);
    let done = engine.run(|store| async move {
        let writes = device.counts().writes;
        let sync = move |index: usize| async move {
            let before = index.min(4) as u64;
            until(store, || device.counts().writes >= writes + before).await;
            append(store, ids[index]).await?;
            left.fetch_sub(1, Relaxed);
            Ok(())
        };
        let watch = async move {
            while left.load(Relaxed) > 0 {
                most.fetch_max(device.at_risk().1, Relaxed);
                store.reactor().yield_now().await;
            }
            Ok(())
        };
        let mut all: Vec<Work<'_>> = vec![Box::pin(watch)];
        for index in 0..ids.len() {
            all.push(Box::pin(sync(index)));
        }
        join_all(all).await.into_iter().collect::<Result<()>>()?;
        Ok(device.counts().writes - writes)
    });
    // The last four share one.
    assert_eq!((done.unwrap(), most.load(Relaxed)), (5, 4));
    drop_dead(engine);
}
