//! A device reports a loss once, to any flush or durable write in flight: no other one may count
//! then.

use crate::rig::{PAGE, create, drop_dead, errno, format_as, formatted, open, pattern, until};
use adit_base::{Errno, Result, SECTOR_BYTES};
use adit_block::{FaultConfig, FaultDevice, FaultEffect, FaultOn, FaultRule};
use adit_reactor::Engine;
use adit_reactor::sync::join_all;
use adit_store::{BlobId, MkfsOptions, Store, SyncKind};
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

const VOLUME_BYTES: u64 = 32 << 20;
/// The smallest ring, which mkfs chooses for such a volume.
const RING: Range<u64> = 2 * PAGE..(2 + 1024) * PAGE;
const LEN: usize = 2 << 20;

/// A device with a queue, and two files on it, one of them of `LEN` bytes.
fn two_files() -> (Arc<FaultDevice>, Arc<Engine<Store>>, BlobId, BlobId) {
    let device = FaultDevice::new(FaultConfig {
        size_bytes: VOLUME_BYTES,
        queued: true,
        ..FaultConfig::default()
    });
    format_as(&device, MkfsOptions::default());
    let engine = open(&device);
    let ids = engine.run(|store| async {
        let (large, small) = (create(store).await?, create(store).await?);
        let blob = store.blob(large).await?;
        store.write(&blob, 0, &pattern(LEN, 1)).await?;
        store.sync(&blob, SyncKind::All).await?;
        store.checkpoint().await?;
        Ok((large, small))
    });
    let (large, small) = ids.unwrap();
    (device, engine, large, small)
}

fn delayed(on: FaultOn, polls: u32) -> FaultRule {
    FaultRule::new(on, FaultEffect::Delay { polls }).times(1)
}

fn failing(on: FaultOn) -> FaultRule {
    FaultRule::new(on, FaultEffect::Error(Errno::IO)).times(1)
}

type Work<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// Runs both at the same time; returns their results.
async fn both(first: Work<'_>, second: Work<'_>) -> [Option<Errno>; 2] {
    let results = join_all([first, second]).await;
    let mut errors = (results.into_iter()).map(|result| result.err().map(|error| error.errno()));
    [errors.next().unwrap(), errors.next().unwrap()]
}

/// How a commit of the small file ends, and a sync of new data of the large one that begins while
/// the commit's write is on its way.
fn commit_and_sync(
    device: &FaultDevice,
    engine: &Engine<Store>,
    (large, small): (BlobId, BlobId),
    rules: Vec<FaultRule>,
) -> [Option<Errno>; 2] {
    let errors = engine.run(|store| async {
        let (large, small) = (store.blob(large).await?, store.blob(small).await?);
        rules.into_iter().for_each(|rule| device.inject(rule));
        let commit = async {
            store.write(&small, 0, b"small").await?;
            store.sync(&small, SyncKind::Data).await
        };
        let sync = async {
            until(store, || device.faults() > 0).await;
            store.write(&large, 0, &pattern(LEN, 2)).await?;
            store.sync(&large, SyncKind::Data).await
        };
        Ok(both(Box::pin(commit), Box::pin(sync)).await)
    });
    errors.unwrap()
}

/// Data of a file comes to the device while a commit's write is on its way, and the file's flush
/// succeeds; then the write fails, and may be all that ever told of the data.
#[test]
fn a_sync_does_not_believe_its_flush_beside_a_commit_that_fails() {
    let (device, engine, large, small) = two_files();
    device.reset_counts();
    let rules = [
        delayed(FaultOn::Write, 10_000).within(RING),
        failing(FaultOn::Write).within(RING),
    ];
    let errors = commit_and_sync(&device, &engine, (large, small), rules.to_vec());
    assert_eq!(errors, [Some(Errno::IO), Some(Errno::ROFS)]);
    // Delayed, and failed.
    assert_eq!((device.faults(), device.counts().flushes), (2, 1));
    drop_dead(engine);
}

/// The other way round: where a durable write is a write and a flush, the one that fails may be the
/// only one to tell of its page.
#[test]
fn a_commit_is_not_believed_beside_a_flush_that_fails() {
    let (device, engine, large, small) = two_files();
    let rules = [
        delayed(FaultOn::Write, 5000).within(RING),
        delayed(FaultOn::Flush, 20_000),
        failing(FaultOn::Flush),
    ];
    let errors = commit_and_sync(&device, &engine, (large, small), rules.to_vec());
    assert_eq!(errors, [Some(Errno::ROFS), Some(Errno::IO)]);
    assert_eq!(device.faults(), 3);
    drop_dead(engine);
}

/// Pages of the checkpoint are at the device when a commit's write begins, which fails after the
/// checkpoint's flush has succeeded. The journal must keep their content.
#[test]
fn a_checkpoint_does_not_believe_its_flush_beside_a_commit_that_fails() {
    let (device, engine, large, small) = two_files();
    // No two of them go home together.
    let places = || (0..400).step_by(2).map(|page| page * PAGE);
    let errors = engine.run(|store| async {
        let (large, small) = (store.blob(large).await?, store.blob(small).await?);
        for place in places() {
            store.write_atomic(&large, &[(place, b"small")]).await?;
        }
        store.commit().await?;
        let start = device.counts().writes;
        let commit = async {
            // Some of the checkpoint's pages are at home.
            until(store, || device.counts().writes > start + 20).await;
            device.inject(delayed(FaultOn::Write, 50_000).within(RING));
            device.inject(failing(FaultOn::Write).within(RING));
            store.write(&small, 0, b"small").await?;
            store.sync(&small, SyncKind::Data).await
        };
        Ok(both(Box::pin(store.checkpoint()), Box::pin(commit)).await)
    });
    // The cut loses all it can, except superblocks.
    let superblocks = 2 * PAGE / SECTOR_BYTES as u64;
    let image = device.power_cut_with(|_, sector| sector < superblocks);
    drop_dead(engine);
    let engine = open(&device.reopen(image));
    let read = engine.run(|store| async {
        let mut back = vec![0; LEN];
        store.read(&store.blob(large).await?, 0, &mut back).await?;
        Ok(back)
    });
    let mut expected = pattern(LEN, 1);
    for place in places() {
        expected[place as usize..][..5].copy_from_slice(b"small");
    }
    assert!(read.unwrap() == expected);
    assert_eq!(errors.unwrap(), [Some(Errno::ROFS), Some(Errno::IO)]);
    drop_dead(engine);
}

/// A device reports a failed flush only once, and it may have lost pages that a checkpoint wrote
/// home meanwhile.
#[test]
fn a_checkpoint_does_not_believe_a_flush_after_one_that_failed() {
    let device = formatted(VOLUME_BYTES);
    let engine = open(&device);
    let rule = failing(FaultOn::Flush);
    let failing = device.clone();
    engine
        .shutdown(|store| async move {
            let store = &store;
            let blob = store.blob(create(store).await?).await?;
            for page in 0..200 {
                store.write(&blob, page * PAGE, b"small").await?;
                store.sync(&blob, SyncKind::Data).await?;
            }
            let other = store.blob(create(store).await?).await?;
            let mut checkpoint = pin!(store.checkpoint());
            // Its commit is done, its pages are on their way.
            for _ in 0..40 {
                poll_fn(|context| {
                    assert!(checkpoint.as_mut().poll(context).is_pending());
                    Poll::Ready(())
                })
                .await;
                store.reactor().yield_now().await;
            }
            store.write(&other, 0, &pattern(1 << 20, 1)).await?;
            failing.inject(rule);
            assert_eq!(errno(store.sync(&other, SyncKind::Data).await), Errno::IO);
            assert_eq!(errno(checkpoint.await), Errno::ROFS);
            Ok(())
        })
        .unwrap();
}
