//! A blobstore through its public interface, on devices in memory.

use crate::rig::{close, create, drop_dead, format_as, open, pattern};
use adit_base::Errno;
use adit_block::{MemoryConfig, MemoryDevice};
use adit_reactor::Engine;
use adit_reactor::sync::join_all;
use adit_store::{AllocateMode, BlobId, MkfsOptions, Receipt, SharedMetadata, Store, SyncKind};
use std::sync::{Arc, Mutex};

/// A formatted device that threads may read and write without the worker.
fn formatted(size_bytes: u64) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(MemoryConfig {
        size_bytes,
        volatile_cache: true,
        ..MemoryConfig::default()
    })
    .unwrap();
    format_as(&device, MkfsOptions::default());
    device
}

#[test]
fn what_was_synced_is_there_after_a_crash() {
    let device = formatted(64 << 20);
    let engine = open(&device);
    let data = pattern(1_000_000, 1);
    let id = engine
        .run(|store| async {
            let id = create(store).await?;
            let blob = store.blob(id).await?;
            store.write(&blob, 0, &data).await?;
            store.sync(&blob, SyncKind::All).await?;
            Ok(id)
        })
        .unwrap();
    drop_dead(engine);
    let engine = open(&device);
    engine
        .run(|store| async {
            let blob = store.blob(id).await?;
            assert_eq!(blob.size(), data.len() as u64);
            let mut back = vec![0; data.len() + 10];
            assert_eq!(store.read(&blob, 0, &mut back).await?, data.len());
            assert!(back[..data.len()] == data[..]);
            Ok(())
        })
        .unwrap();
    close(engine);
}

#[test]
fn small_appends_with_a_sync_each_survive_and_cost_one_write() {
    let device = formatted(64 << 20);
    let engine = open(&device);
    let data = pattern(100 * 400, 2); // fewer than make a checkpoint begin
    let id = engine.run(|store| async { create(store).await }).unwrap();
    engine.run(|store| async { store.commit().await }).unwrap();
    for (index, piece) in data.chunks(100).enumerate() {
        device.reset_counts();
        engine
            .run(|store| async {
                let blob = store.blob(id).await?;
                store.append(&blob, piece).await?;
                store.sync(&blob, SyncKind::Data).await
            })
            .unwrap();
        let counts = device.counts();
        assert!(
            counts.writes == 1 && counts.flushes + counts.fua_writes == 1,
            "append {index}: {counts:?}"
        );
    }
    drop_dead(engine);
    let engine = open(&device);
    engine
        .run(|store| async {
            let blob = store.blob(id).await?;
            let mut back = vec![0; data.len()];
            assert_eq!(store.read(&blob, 0, &mut back).await?, data.len());
            assert!(back == data);
            Ok(())
        })
        .unwrap();
    close(engine);
}

#[test]
fn the_ring_wraps_many_times_under_small_appends() {
    let device = formatted(64 << 20);
    let engine = open(&device);
    let id = engine.run(|store| async { create(store).await }).unwrap();
    let mut expected = Vec::new();
    for round in 0..5000u64 {
        let piece = pattern(50 + (round % 300) as usize, round);
        engine
            .run(|store| async {
                let blob = store.blob(id).await?;
                store.append(&blob, &piece).await?;
                store.sync(&blob, SyncKind::Data).await
            })
            .unwrap();
        expected.extend_from_slice(&piece);
    }
    drop_dead(engine);
    let engine = open(&device);
    engine
        .run(|store| async {
            let blob = store.blob(id).await?;
            let mut back = vec![0; expected.len()];
            assert_eq!(store.read(&blob, 0, &mut back).await?, expected.len());
            assert!(back == expected);
            Ok(())
        })
        .unwrap();
    close(engine);
}

#[test]
fn holes_tails_and_truncation_read_as_zeroes() {
    let device = formatted(64 << 20);
    let engine = open(&device);
    let id = engine
        .run(|store| async {
            let id = create(store).await?;
            let blob = store.blob(id).await?;
            store
                .allocate(&blob, 0..1 << 20, AllocateMode::KeepSize)
                .await?;
            store.write(&blob, 100, b"abc").await?;
            store.sync(&blob, SyncKind::All).await?;
            store.write(&blob, 50_000, b"xyz").await?;
            store.sync(&blob, SyncKind::All).await?;
            store.resize(&blob, 50_001).await?;
            store.resize(&blob, 100_000).await?;
            store.sync(&blob, SyncKind::All).await?;
            Ok(id)
        })
        .unwrap();
    let mut expected = vec![0; 100_000];
    expected[100..103].copy_from_slice(b"abc");
    expected[50_000] = b'x';
    let check = |engine: &Arc<Engine<Store>>| {
        engine
            .run(|store| async {
                let blob = store.blob(id).await?;
                let mut back = vec![1; 200_000];
                assert_eq!(store.read(&blob, 0, &mut back).await?, 100_000);
                assert!(back[..100_000] == expected[..]);
                Ok(())
            })
            .unwrap();
    };
    check(&engine);
    drop_dead(engine);
    let engine = open(&device);
    check(&engine);
    close(engine);
    let engine = open(&device);
    check(&engine);
    close(engine);
}

#[test]
fn a_deleted_blob_gives_its_space_back() {
    let device = formatted(64 << 20);
    let engine = open(&device);
    let free = |engine: &Arc<Engine<Store>>| {
        engine
            .run(|store| async { Ok(store.state().await?.free_pages) })
            .unwrap()
    };
    let warm = engine.run(|store| async { create(store).await }).unwrap();
    let before = free(&engine);
    for round in 0..20 {
        engine
            .run(|store| async {
                let id = create(store).await?;
                let blob = store.blob(id).await?;
                store.write(&blob, 0, &pattern(20 << 20, round)).await?;
                store.sync(&blob, SyncKind::All).await?;
                drop(blob);
                store.delete(id).await?;
                assert_eq!(store.blob(id).await.unwrap_err().errno(), Errno::STALE);
                Ok(())
            })
            .unwrap();
        assert_eq!(free(&engine), before, "round {round}");
    }
    engine
        .run(|store| async { store.delete(warm).await })
        .unwrap();
    close(engine);
}

#[test]
fn a_full_volume_says_so_and_recovers_after_a_delete() {
    let device = formatted(16 << 20);
    let engine = open(&device);
    let fill = |store: Store| async move {
        let id = create(&store).await?;
        let blob = store.blob(id).await?;
        let piece = pattern(64 << 10, 3);
        let mut written = 0;
        let error = loop {
            match store.write(&blob, written, &piece).await {
                Ok(()) => written += piece.len() as u64,
                Err(error) => break error,
            }
        };
        assert_eq!(error.errno(), Errno::NOSPC);
        store.sync(&blob, SyncKind::All).await?;
        Ok((id, written))
    };
    let (id, first) = engine.run(|store| fill(store.clone())).unwrap();
    assert!(first > 8 << 20, "{first}");
    engine
        .run(|store| async { store.delete(id).await })
        .unwrap();
    let (id, second) = engine.run(|store| fill(store.clone())).unwrap();
    assert!(second + 65536 >= first, "{first} then {second}");
    engine
        .run(|store| async { store.delete(id).await })
        .unwrap();
    close(engine);
}

#[test]
fn direct_and_cached_access_agree() {
    let device = formatted(64 << 20);
    let engine = open(&device);
    engine
        .run(|store| async {
            let id = create(store).await?;
            let blob = store.blob(id).await?;
            let mut expected = pattern(1 << 20, 4);
            store.write_direct(&blob, 0, &expected).await?;
            for round in 0..200u64 {
                let page = (round * 37 % 256) as usize * 4096;
                let piece = pattern(8192.min(expected.len() - page), round);
                if round % 3 == 0 {
                    store.write(&blob, page as u64 + 10, &piece[..100]).await?;
                    expected[page + 10..page + 110].copy_from_slice(&piece[..100]);
                } else {
                    // Whole pages, or some blocks of the device.
                    let (skip, len) = match round % 3 {
                        1 => (0, piece.len()),
                        _ => (round as usize % 8 * 512, (1 + round as usize % 4) * 512),
                    };
                    let at = page + skip;
                    store.write_direct(&blob, at as u64, &piece[..len]).await?;
                    expected[at..at + len].copy_from_slice(&piece[..len]);
                    let mut back = vec![0; len];
                    store.read_direct(&blob, at as u64, &mut back).await?;
                    assert!(back == piece[..len], "round {round}");
                }
                if round % 7 == 0 {
                    store.sync(&blob, SyncKind::Data).await?;
                }
                let mut back = vec![0; expected.len()];
                if round % 2 == 0 {
                    store.read_direct(&blob, 0, &mut back).await?;
                } else {
                    store.read(&blob, 0, &mut back).await?;
                }
                assert!(back == expected, "round {round}");
            }
            Ok(())
        })
        .unwrap();
    close(engine);
}

/// While one reader waited for a node of the extent tree, another could load the page that both
/// wanted: it then was in the cache twice, and a write changed one of the two.
#[test]
fn readers_that_miss_together_load_a_page_once() {
    let device = formatted(64 << 20);
    let engine = open(&device);
    let pages = 200;
    let id = engine
        .run(|store| async {
            let id = create(store).await?;
            let blob = store.blob(id).await?;
            for page in 0..pages {
                store
                    .write(&blob, page * 8192, &pattern(4096, page))
                    .await?;
            }
            store.sync(&blob, SyncKind::All).await?;
            Ok(id)
        })
        .unwrap();
    close(engine);
    let engine = open(&device);
    engine
        .run(|store| async {
            let blob = store.blob(id).await?;
            let read = async |page: u64| {
                let mut back = vec![0; 4096];
                store
                    .read(&blob, page * 8192, &mut back)
                    .await
                    .map(|_| back)
            };
            for page in (0..pages).step_by(50) {
                for back in join_all((0..4).map(|_| read(page))).await {
                    assert!(back? == pattern(4096, page));
                }
                store.write(&blob, page * 8192, &[7; 100]).await?;
                assert_eq!(read(page).await?[..100], [7; 100]);
            }
            Ok(())
        })
        .unwrap();
    close(engine);
}

#[test]
fn a_write_without_space_changes_nothing() {
    let device = formatted(16 << 20);
    let engine = open(&device);
    engine
        .run(|store| async {
            let id = create(store).await?;
            let blob = store.blob(id).await?;
            let old = pattern(100_000, 1);
            store.write(&blob, 0, &old).await?;
            let free = store.info().await?.free_bytes;
            let too_much = vec![9; 20 << 20];
            let error = store.write(&blob, 50_000, &too_much).await.unwrap_err();
            assert_eq!(error.errno(), Errno::NOSPC);
            let error = store.append(&blob, &too_much).await.unwrap_err();
            assert_eq!(error.errno(), Errno::NOSPC);
            assert_eq!(store.info().await?.free_bytes, free);
            let mut back = vec![0; 200_000];
            assert_eq!(store.read(&blob, 0, &mut back).await?, old.len());
            assert!(back[..old.len()] == old);
            Ok(())
        })
        .unwrap();
    close(engine);
}

/// The sum of offset and length wrapped around: the write said that it had succeeded, and had done
/// nothing.
#[test]
fn a_write_beyond_the_largest_size_is_efbig() {
    let device = formatted(16 << 20);
    let engine = open(&device);
    engine
        .run(|store| async {
            let id = create(store).await?;
            let blob = store.blob(id).await?;
            store.write(&blob, 0, &pattern(8192, 1)).await?;
            store.sync(&blob, SyncKind::All).await?;
            for offset in [u64::MAX - 4095, 16 << 40, !4095] {
                let data = [1; 4096];
                let direct = store.write_direct(&blob, offset, &data).await;
                let cached = store.write(&blob, offset, &data).await;
                assert_eq!(direct.unwrap_err().errno(), Errno::FBIG);
                assert_eq!(cached.unwrap_err().errno(), Errno::FBIG);
            }
            Ok(())
        })
        .unwrap();
    close(engine);
}

/// At 16,384 blobs all unused ones went at once: a create waited for milliseconds.
#[test]
fn blobs_that_nobody_uses_leave_memory_one_by_one() {
    const KEPT: usize = 1 << 10;
    let device = formatted(64 << 20);
    let engine = open(&device);
    engine
        .run(|store| async {
            let mut ids = Vec::new();
            let mut used = Vec::new();
            for turn in 0..KEPT + 3000 {
                let id = create(store).await?;
                let blob = store.blob(id).await?;
                if turn % 8 == 0 {
                    used.push(blob);
                }
                ids.push(id);
                if turn == KEPT || turn == KEPT + 100 {
                    let there = |id: &&BlobId| store.blob_resident(**id).is_some();
                    assert!(ids.iter().filter(there).count() > KEPT - 200);
                }
            }
            let there = |id: &&BlobId| store.blob_resident(**id).is_some();
            assert!(ids.iter().filter(there).count() <= KEPT + 1);
            for blob in &used {
                let resident = store.blob_resident(blob.id).unwrap();
                assert!(std::rc::Rc::ptr_eq(blob, &resident));
            }
            // Blobs loaded again are the same.
            for id in &ids[..100] {
                assert_eq!(store.blob(*id).await?.id, *id);
            }
            // Slots that get another blob again and again leave nothing behind.
            drop(used);
            for id in &ids[..KEPT / 2] {
                store.delete(*id).await?;
            }
            for _ in 0..KEPT {
                let id = create(store).await?;
                assert_eq!(store.blob(id).await?.size(), 0);
                store.delete(id).await?;
            }
            Ok(())
        })
        .unwrap();
    close(engine);
}

/// Another thread: it looks at a blob's slot right before a transaction counts.
struct Onlooker {
    metadata: SharedMetadata,
    id: BlobId,
    /// The pages of each look that was answered without the worker, or none.
    looks: Mutex<Vec<Option<u64>>>,
}

impl Onlooker {
    fn look(&self) -> Option<u64> {
        let look = |view: &adit_store::SharedView<'_>| {
            let slot = view.current_slot(self.id)?;
            Ok(slot.allocated_pages)
        };
        self.metadata.look(look).map(|pages| pages.unwrap())
    }
}

impl Receipt for Onlooker {
    fn decided(&self, _: u64) {
        self.looks.lock().unwrap().push(self.look());
    }
}

/// Else it could see fewer pages, and a later time, while the cache still has their old content:
/// the frames go after the transaction. This test can't see the other step: the blob stays counted
/// until the frames have gone, without an await in between.
#[test]
fn a_look_beside_a_punch_asks_the_worker() {
    let device = formatted(64 << 20);
    let engine = open(&device);
    let looks = engine.run(|store| async {
        let id = create(store).await?;
        let blob = store.blob(id).await?;
        store.write(&blob, 0, &pattern(40 << 12, 1)).await?;
        store.sync(&blob, SyncKind::All).await?;
        let onlooker = Arc::new(Onlooker {
            metadata: store.shared_metadata(),
            id,
            looks: Mutex::default(),
        });
        assert_eq!(onlooker.look(), Some(40), "nothing is ahead of the slot");
        let punch = store.punch(&blob, 4 << 12..20 << 12);
        store.with_receipt(onlooker.clone(), punch).await?;
        store.sync(&blob, SyncKind::All).await?;
        assert_eq!(onlooker.look(), Some(24), "nothing is, again");
        Ok(onlooker.looks.lock().unwrap().clone())
    });
    assert_eq!(looks.unwrap(), [None]);
    close(engine);
}
