//! More work than the device or the cache keeps up with: who waits, and that everybody gets a turn.

mod rig;

use adit_base::Result;
use adit_block::{FaultConfig, FaultDevice, FaultEffect, FaultOn, FaultRule};
use adit_reactor::sync::join_all;
use adit_store::{MkfsOptions, SyncKind};
use rig::{close, create, format_as, open, pattern};
use std::pin::Pin;
use std::sync::Arc;

/// A formatted volume whose writes take their time.
fn slow(size_bytes: u64, polls: u32) -> Arc<FaultDevice> {
    let device = FaultDevice::new(FaultConfig {
        size_bytes,
        volatile_cache: true,
        queued: true,
        ..FaultConfig::default()
    });
    format_as(&device, MkfsOptions::default());
    device.inject(FaultRule::new(FaultOn::Write, FaultEffect::Delay { polls }));
    device
}

/// A writer outran the write-back of its own file: that one was busy, so nothing made room, and `write` answered
/// ENOMEM.
#[test]
fn a_writer_that_outruns_the_device_waits_for_it() {
    let device = slow(128 << 20, 50);
    let engine = open(&device);
    engine
        .run(|store| async {
            let id = create(store).await?;
            let blob = store.blob(id).await?;
            let writer = async {
                for piece in 0..64 {
                    store
                        .write(&blob, piece << 20, &pattern(1 << 20, piece))
                        .await?;
                }
                Ok(())
            };
            let syncer = async {
                for _ in 0..20 {
                    store.sync(&blob, SyncKind::Data).await?;
                }
                Ok(())
            };
            let both: [Pin<Box<dyn Future<Output = Result<()>>>>; 2] =
                [Box::pin(writer), Box::pin(syncer)];
            join_all(both).await.into_iter().collect::<Result<()>>()?;
            let mut back = vec![0; 1 << 20];
            for piece in 0..64 {
                store.read(&blob, piece << 20, &mut back).await?;
                assert!(back == pattern(1 << 20, piece));
            }
            Ok(())
        })
        .unwrap();
    close(engine);
}

/// Each commit found the next committer waiting before the checkpoint, which so got no turn until the ring was
/// full but for its last eighth, and everybody waited.
#[test]
fn commits_back_to_back_do_not_keep_a_checkpoint_waiting() {
    let device = slow(32 << 20, 2);
    let engine = open(&device);
    engine
        .run(|store| async {
            let ring = store.info().await?.journal_bytes;
            let appender = async || {
                let id = create(store).await?;
                let blob = store.blob(id).await?;
                for _ in 0..2000 {
                    store.append(&blob, &[1; 100]).await?;
                    store.sync(&blob, SyncKind::Data).await?;
                    let live = store.info().await?.journal_live_bytes;
                    assert!(live < ring / 8 * 6, "{live} of {ring} bytes are live");
                }
                Ok(())
            };
            let all = join_all((0..3).map(|_| appender())).await;
            all.into_iter().collect::<Result<()>>()
        })
        .unwrap();
    close(engine);
}
