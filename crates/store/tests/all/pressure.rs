//! More work than the device or the cache keeps up with: the callers that wait, and that every one
//! gets a turn.

use crate::rig::{
    PAGE, assert_clean, close, create, cut, drop_dead, engine_options, format_as, formatted, open,
    pattern,
};
use adit_base::{Errno, PAGE_BYTES, Result};
use adit_block::{Device, FaultConfig, FaultDevice, FaultEffect, FaultOn, FaultRule};
use adit_reactor::Engine;
use adit_reactor::sync::join_all;
use adit_store::{
    AllocateMode, Blob, CACHE_BYTES_MIN, MkfsOptions, Store, StoreOptions, Survive, SyncKind,
    XattrMode,
};
use std::cell::Cell;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

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

async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// A writer outran the write-back of its own file: that one was busy, so nothing made room, and
/// `write` answered ENOMEM.
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

/// Overwrites a few pages again and again until `done`; none of the writes waits.
async fn overwrite_without_waiting(
    store: &Store,
    blob: &Rc<Blob>,
    writer: u64,
    done: &Cell<bool>,
) -> Result<()> {
    let mut count = 0;
    while !done.get() {
        let data = [count as u8; 100];
        blob.set_writer(writer);
        let write = pin!(store.write(blob, count % 16 * PAGE, &data));
        assert_eq!(poll_once(write).await, Some(Ok(())), "write {count} waits");
        count += 1;
        store.reactor().yield_now().await;
    }
    Ok(())
}

/// Writers of a file wait once it has filled a third of the cache; those of another, which has few
/// dirty pages, don't wait for them.
#[test]
fn a_modest_writer_does_not_wait_for_a_greedy_one() {
    let device = slow(256 << 20, 200);
    let engine = open(&device);
    engine
        .run(|store| async {
            let (large, small) = (create(store).await?, create(store).await?);
            let (large, small) = (store.blob(large).await?, store.blob(small).await?);
            store.write(&small, 0, &pattern(16 * PAGE_BYTES, 1)).await?;
            let (done, waited) = (Cell::new(false), Cell::new(0));
            let greedy = async {
                let piece = vec![7; 1 << 20];
                for at in 0..200 {
                    let mut write = pin!(store.write(&large, at << 20, &piece));
                    if poll_once(write.as_mut()).await.is_none() {
                        waited.set(waited.get() + 1);
                        write.await?;
                    }
                }
                done.set(true);
                Ok(())
            };
            let modest = overwrite_without_waiting(store, &small, 0, &done);
            let both: [Pin<Box<dyn Future<Output = Result<()>>>>; 2] =
                [Box::pin(greedy), Box::pin(modest)];
            join_all(both).await.into_iter().collect::<Result<()>>()?;
            assert!(waited.get() > 0, "the cache was never crowded");
            Ok(())
        })
        .unwrap();
    close(engine);
}

/// A program that writes little to each of many files waits; another program doesn't wait for it.
#[test]
fn a_modest_program_does_not_wait_for_one_that_writes_many_files() {
    let device = slow(256 << 20, 200);
    let engine = open(&device);
    engine
        .run(|store| async {
            let small = create(store).await?;
            let small = store.blob(small).await?;
            let mut files = Vec::new();
            for _ in 0..100 {
                let file = create(store).await?;
                files.push(store.blob(file).await?);
            }
            let (done, waited) = (Cell::new(false), Cell::new(0));
            let greedy = async {
                let piece = vec![7; 1 << 16];
                for turn in 0..3200 {
                    let file = &files[turn % files.len()];
                    file.set_writer(1);
                    let mut write =
                        pin!(store.write(file, (turn / 100 * piece.len()) as u64, &piece));
                    if poll_once(write.as_mut()).await.is_none() {
                        waited.set(waited.get() + 1);
                        write.await?;
                    }
                }
                done.set(true);
                Ok(())
            };
            let modest = overwrite_without_waiting(store, &small, 2, &done);
            let both: [Pin<Box<dyn Future<Output = Result<()>>>>; 2] =
                [Box::pin(greedy), Box::pin(modest)];
            join_all(both).await.into_iter().collect::<Result<()>>()?;
            assert!(waited.get() > 0, "the cache was never crowded");
            Ok(())
        })
        .unwrap();
    close(engine);
}

/// Syncs a blob that has `pages` dirty pages, while `write` writes to it again and again.
fn sync_beside_a_writer(
    pages: usize,
    turns_max: u64,
    write: impl AsyncFn(&Store, &Rc<Blob>, u64) -> Result<()> + Sync,
) {
    let device = slow(256 << 20, 20);
    let engine = open(&device);
    engine
        .run(|store| async {
            let synced = Cell::new(false);
            let blob = store.blob(create(store).await?).await?;
            let content = pattern(pages * PAGE_BYTES, 1);
            store.write(&blob, 0, &content).await?;
            let writer = async {
                let mut turns = 0;
                while !synced.get() {
                    assert!(turns < turns_max, "the sync doesn't end");
                    write(store, &blob, turns).await?;
                    turns += 1;
                    store.reactor().yield_now().await;
                }
                Ok(())
            };
            let syncer = async {
                store.sync(&blob, SyncKind::Data).await?;
                synced.set(true);
                Ok(())
            };
            let both: [Pin<Box<dyn Future<Output = Result<()>>>>; 2] =
                [Box::pin(writer), Box::pin(syncer)];
            join_all(both).await.into_iter().collect::<Result<()>>()
        })
        .unwrap();
    close(engine);
}

/// A sync went on as long as others wrote faster than it: each round found new pages.
#[test]
fn a_sync_ends_although_the_file_is_overwritten_all_the_time() {
    const PAGES: usize = 1000; // several rounds, and too few to be throttled
    let half = vec![7; PAGES / 2 * PAGE_BYTES];
    sync_beside_a_writer(PAGES, 1000, async |store, blob, turn| {
        let offset = turn % 2 * half.len() as u64;
        store.write(blob, offset, &half).await
    });
}

/// A sync of a growing file went on as long as others appended: each round found new pages at the
/// end. Meanwhile nothing wrote back other files either.
#[test]
fn a_sync_ends_although_the_file_is_appended_to_all_the_time() {
    const PAGES: usize = 500;
    let piece = vec![7; PAGES * PAGE_BYTES];
    sync_beside_a_writer(PAGES, 60, async |store, blob, _| {
        store.append(blob, &piece).await.map(drop)
    });
}

/// A request for all free pages except the reserve was granted, and its tree nodes then took the
/// reserve: it failed half way, and leaked pages.
#[test]
fn a_preallocation_without_room_for_its_nodes_takes_nothing() {
    const HOLES: u64 = 40_000;
    const RESERVE: u64 = 48;
    let device = formatted(512 << 20);
    let engine = open(&device);
    engine
        .run(|store| async {
            let sieve = store.blob(create(store).await?).await?;
            let rest = store.info().await?.free_bytes - (3 << 20);
            store
                .allocate(&sieve, 0..rest, AllocateMode::Extend)
                .await?;
            for hole in 0..HOLES {
                let start = hole * 2 * PAGE;
                store.punch(&sieve, start..start + PAGE).await?;
            }
            store.checkpoint().await?;
            let blob = store.blob(create(store).await?).await?;
            store.commit().await?;
            let free = store.info().await?.free_bytes / PAGE;
            let wanted = free - RESERVE;
            let refused = store
                .allocate(&blob, 0..wanted * PAGE, AllocateMode::Extend)
                .await;
            assert_eq!(refused.unwrap_err().errno(), Errno::NOSPC);
            store.commit().await?;
            assert_eq!(store.info().await?.free_bytes / PAGE, free);
            // With room for them it fits.
            let fits = (wanted - wanted / 128 - 8) * PAGE;
            store.allocate(&blob, 0..fits, AllocateMode::Extend).await
        })
        .unwrap();
    assert_clean(&engine);
    close(engine);
}

/// A sync's sweep doesn't cover pages written again behind it, nor may it cover a size reached
/// there.
#[test]
fn a_size_is_not_durable_before_the_bytes_that_were_appended_behind_the_sweep() {
    const ROUND: u64 = 256; // a plan's pages with this cache
    let device = slow(64 << 20, 20);
    let engine = open(&device);
    let size = ROUND * PAGE - 1000;
    let id = engine
        .run(|store| async {
            let id = create(store).await?;
            let blob = store.blob(id).await?;
            let content = pattern((ROUND as usize + 44) * PAGE_BYTES, 1);
            store.write(&blob, 0, &content).await?;
            store.sync(&blob, SyncKind::Data).await?;
            store.write(&blob, 0, &content).await?;
            // Pages that are dirty no longer stay on the list of those to be looked at: the sweep
            // goes on behind the end.
            store.resize(&blob, size).await?;
            let before = device.counts().writes;
            let appender = async {
                while device.counts().writes == before {
                    store.reactor().yield_now().await;
                }
                store.append(&blob, &[7; 100]).await.map(drop)
            };
            let both: [Pin<Box<dyn Future<Output = Result<()>>>>; 2] = [
                Box::pin(store.sync(&blob, SyncKind::Data)),
                Box::pin(appender),
            ];
            join_all(both).await.into_iter().collect::<Result<()>>()?;
            Ok(id)
        })
        .unwrap();
    let device = cut(&device, engine);
    let engine = open(&device);
    engine
        .run(|store| async {
            let blob = store.blob(id).await?;
            assert!(blob.size() >= size);
            let mut tail = vec![0; (blob.size() - size) as usize];
            store.read(&blob, size, &mut tail).await?;
            assert!(tail.iter().all(|byte| *byte == 7), "{} zeroes", tail.len());
            Ok(())
        })
        .unwrap();
    close(engine);
}

/// Each commit found the next committer waiting before the checkpoint, which so got no turn until
/// the ring was full but for its last eighth, and everybody waited.
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

/// After a jump of the valid size all extents in between were made unwritten in one transaction,
/// however many: the journal's buffers overflowed, and that panicked.
#[test]
fn the_last_page_of_a_fragmented_preallocation_can_be_written_first() {
    const HOLES: u64 = 30_000;
    let device = formatted(512 << 20);
    let engine = open(&device);
    let id = engine
        .run(|store| async {
            let sieve = create(store).await?;
            let blob = store.blob(sieve).await?;
            let rest = store.info().await?.free_bytes - (3 << 20);
            store.allocate(&blob, 0..rest, AllocateMode::Extend).await?;
            for hole in 0..HOLES {
                let start = hole * 2 * PAGE;
                store.punch(&blob, start..start + PAGE).await?;
            }
            store.checkpoint().await?;
            let id = create(store).await?;
            let blob = store.blob(id).await?;
            let end = (HOLES - 500) * PAGE;
            store.allocate(&blob, 0..end, AllocateMode::Extend).await?;
            store.write(&blob, end - 10, b"the end...").await?;
            store.sync(&blob, SyncKind::Data).await?;
            Ok(id)
        })
        .unwrap();
    drop_dead(engine);
    let engine = open(&device);
    engine
        .run(|store| async {
            let blob = store.blob(id).await?;
            let mut back = vec![1; 1 << 20];
            assert_eq!(store.read(&blob, 0, &mut back).await?, back.len());
            assert!(back.iter().all(|byte| *byte == 0));
            let mut back = [0; 10];
            store.read(&blob, blob.size() - 10, &mut back).await?;
            assert_eq!(&back, b"the end...");
            Ok(())
        })
        .unwrap();
    assert_clean(&engine);
    close(engine);
}

/// The check had asked for the page of attributes of a blob that was deleted before the page came:
/// the page's frame was taken away under the load, which panicked.
#[test]
fn a_blob_can_be_deleted_while_the_check_looks_at_it() {
    let device = slow(64 << 20, 0);
    let engine = open(&device);
    let ids = engine
        .run(|store| async {
            let mut ids = Vec::new();
            for index in 0..40 {
                let id = create(store).await?;
                let value = vec![1; 500 + index];
                (store.xattr_set(id, b"user.large", &value, XattrMode::Any)).await?;
                ids.push(id);
            }
            Ok(ids)
        })
        .unwrap();
    close(engine);
    device.inject(FaultRule::new(
        FaultOn::Read,
        FaultEffect::Delay { polls: 3 },
    ));
    for id in ids {
        let engine = open(&device);
        engine
            .run(|store| async {
                let check = async { store.check(&mut |_, _| {}).await.map(drop) };
                let both: [Pin<Box<dyn Future<Output = Result<()>>>>; 2] =
                    [Box::pin(check), Box::pin(store.delete(id))];
                let mut results = join_all(both).await.into_iter().skip(1);
                results.next().unwrap()
            })
            .unwrap();
        close(engine);
    }
}

/// It filled the cache with dirty pages until nothing was left to write them back with, and
/// answered ENOMEM.
#[test]
fn one_append_may_be_larger_than_the_cache() {
    let device = formatted(128 << 20);
    let engine = open(&device);
    engine
        .run(|store| async {
            let id = create(store).await?;
            let blob = store.blob(id).await?;
            let data = pattern(60 << 20, 1);
            assert_eq!(store.append(&blob, &data).await?, 0);
            store.sync(&blob, SyncKind::Data).await?;
            let mut back = vec![0; data.len()];
            store.read(&blob, 0, &mut back).await?;
            assert!(back == data);
            Ok(())
        })
        .unwrap();
    close(engine);
}

/// Each passed the bound on dirty data at once; then write-back found no frame for its own
/// transactions, and wrote back others' data first, which found none.
#[test]
fn many_long_writes_at_once_leave_room_to_write_them_back() {
    const WRITERS: u64 = 32;
    const BYTES: usize = 1 << 20; // together twice the cache
    let engine = open(&formatted(128 << 20));
    engine
        .run(|store| async {
            let writers = (0..WRITERS).map(async |number| {
                let blob = store.blob(create(store).await?).await?;
                store.write(&blob, 0, &pattern(BYTES, number)).await?;
                Ok(blob)
            });
            let blobs = join_all(writers).await;
            let blobs = blobs.into_iter().collect::<Result<Vec<_>>>()?;
            let mut back = vec![0; BYTES];
            for (blob, number) in blobs.iter().zip(0..) {
                store.read(blob, 0, &mut back).await?;
                assert!(back == pattern(BYTES, number));
            }
            Ok(())
        })
        .unwrap();
    assert_clean(&engine);
    close(engine);
}

/// Callers waited for the worker during all of a long write.
#[test]
fn others_get_their_turn_while_a_long_write_goes_on() {
    const BYTES: usize = 1 << 20;
    let engine = open(&formatted(64 << 20));
    let blob = engine.run(create).unwrap();
    let is_written = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let data = pattern(BYTES, 1);
            while !is_written.load(Ordering::Relaxed) {
                let write = engine.run(async |store| {
                    let blob = store.blob(blob).await?;
                    store.resize(&blob, 0).await?;
                    store.write(&blob, 0, &data).await
                });
                write.unwrap();
            }
        });
        let deadline = Instant::now() + Duration::from_secs(240);
        let mut seen = 0;
        while !(1..BYTES as u64).contains(&seen) && Instant::now() < deadline {
            let size = engine.run(async |store| Ok(store.blob(blob).await?.size()));
            seen = size.unwrap();
        }
        is_written.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        assert!((1..BYTES as u64).contains(&seen), "no turn within a write");
    });
    close(engine);
}

/// Where there was no room for a cache of the size that was asked for, that size was shown.
#[test]
fn the_size_of_the_cache_that_is_shown_is_the_one_it_has() {
    let device = formatted(32 << 20);
    for (asked_bytes, has_bytes) in [
        (1, CACHE_BYTES_MIN),
        (CACHE_BYTES_MIN + PAGE - 1, CACHE_BYTES_MIN),
        (2 * CACHE_BYTES_MIN, 2 * CACHE_BYTES_MIN),
    ] {
        let device: Arc<dyn Device> = device.clone();
        let engine = Engine::start(device, engine_options(), move |reactor| async move {
            let options = StoreOptions {
                cache_bytes: asked_bytes,
                survive: Survive::Off,
                ..StoreOptions::default()
            };
            Store::open(reactor, &options).await
        });
        let engine = engine.unwrap();
        let info = engine.run(|store| store.info()).unwrap();
        assert_eq!(info.cache_bytes, has_bytes, "{asked_bytes} bytes");
        close(engine);
    }
}
