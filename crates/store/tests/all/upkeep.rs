//! Extended attributes, visiting all blobs, growing a volume, and closing one that is busy.

use crate::rig;
use crate::rig::{
    assert_clean, close, create, cut, drop_dead, errno, format_as, formatted, formatted_with, open,
    pattern,
};
use adit_base::Errno;
use adit_base::random::Prng;
use adit_block::{Device, FaultConfig, FaultDevice};
use adit_reactor::Engine;
use adit_store::{
    AllocateMode, BlobId, MkfsOptions, Store, SyncKind, XATTR_BYTES_MAX, XATTR_NAME_BYTES_MAX,
    XattrMode,
};
use std::future::{Future, poll_fn};
use std::io::IoSlice;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

fn free_pages(engine: &Arc<Engine<Store>>) -> u64 {
    engine
        .run(|store| async { Ok(store.state().await?.free_pages) })
        .unwrap()
}

#[test]
fn attributes_are_set_replaced_listed_and_removed() {
    let device = formatted(64 << 20);
    let engine = open(&device);
    let id = engine
        .run(|store| async {
            let id = create(store).await?;
            let any = XattrMode::Any;
            assert_eq!(errno(store.xattr_get(id, b"user.a").await), Errno::NODATA);
            assert_eq!(
                errno(store.xattr_remove(id, b"user.a").await),
                Errno::NODATA
            );
            let replace = XattrMode::Replace;
            let set = store.xattr_set(id, b"user.a", b"1", replace).await;
            assert_eq!(errno(set), Errno::NODATA);
            assert!(store.xattr_list(id).await?.is_empty());
            assert_eq!(store.view(|view| view.slot(id)).await?.allocated_pages, 0);

            store.xattr_set(id, b"user.a", b"one", any).await?;
            store.xattr_set(id, b"user.b", b"", any).await?;
            store.xattr_set(id, b"user.c", &[7; 1000], any).await?;
            let create_it = XattrMode::Create;
            let set = store.xattr_set(id, b"user.b", b"2", create_it).await;
            assert_eq!(errno(set), Errno::EXIST);
            store
                .xattr_set(id, b"user.a", b"longer than one", replace)
                .await?;
            store.xattr_remove(id, b"user.b").await?;
            assert_eq!(store.xattr_get(id, b"user.a").await?, b"longer than one");
            assert_eq!(store.xattr_get(id, b"user.c").await?, [7; 1000]);
            let mut names = store.xattr_list(id).await?;
            names.sort();
            assert_eq!(names, [b"user.a", b"user.c"]);
            let slot = store.view(|view| view.slot(id)).await?;
            assert_eq!(slot.allocated_pages, 1);
            assert!(slot.ctime > 0);
            Ok(id)
        })
        .unwrap();
    assert_clean(&engine);
    close(engine);
    let engine = open(&device);
    engine
        .run(|store| async {
            assert_eq!(store.xattr_get(id, b"user.a").await?, b"longer than one");
            store.xattr_remove(id, b"user.a").await?;
            store.xattr_remove(id, b"user.c").await?;
            let slot = store.view(|view| view.slot(id)).await?;
            assert_eq!((slot.xattr_page, slot.allocated_pages), (0, 0));
            assert!(store.xattr_list(id).await?.is_empty());
            Ok(())
        })
        .unwrap();
    assert_clean(&engine);
    close(engine);
}

#[test]
fn attributes_have_limits_that_are_exact() {
    let device = formatted(64 << 20);
    let engine = open(&device);
    engine
        .run(|store| async {
            let id = create(store).await?;
            let any = XattrMode::Any;
            let name = [b'n'; XATTR_NAME_BYTES_MAX + 1];
            assert_eq!(
                errno(store.xattr_set(id, &name, b"", any).await),
                Errno::RANGE
            );
            assert_eq!(
                errno(store.xattr_set(id, b"", b"", any).await),
                Errno::RANGE
            );
            assert_eq!(errno(store.xattr_get(id, &name).await), Errno::RANGE);
            let name = &name[..XATTR_NAME_BYTES_MAX];
            let room = XATTR_BYTES_MAX - 4 - name.len();
            let set = store.xattr_set(id, name, &vec![1; room + 1], any).await;
            assert_eq!(errno(set), Errno::NOSPC);
            let set = store.xattr_set(id, name, &vec![1; 70_000], any).await;
            assert_eq!(errno(set), Errno::TOOBIG);
            store.xattr_set(id, name, &vec![1; room], any).await?;
            let set = store.xattr_set(id, b"x", b"", any).await;
            assert_eq!(errno(set), Errno::NOSPC);
            // A replaced value makes room for its successor.
            store.xattr_set(id, name, &vec![2; room], any).await?;
            store.xattr_set(id, name, &vec![3; room - 5], any).await?;
            store.xattr_set(id, b"x", b"", any).await?;
            assert_eq!(store.xattr_get(id, name).await?, vec![3; room - 5]);
            let gone = BlobId {
                generation: id.generation + 1,
                ..id
            };
            assert_eq!(
                errno(store.xattr_set(gone, b"x", b"", any).await),
                Errno::STALE
            );
            Ok(())
        })
        .unwrap();
    assert_clean(&engine);
    close(engine);
}

#[test]
fn attributes_behave_as_a_map_under_random_changes() {
    let device = formatted(64 << 20);
    let engine = open(&device);
    let mut random = Prng::new(11);
    let mut model = std::collections::BTreeMap::<Vec<u8>, Vec<u8>>::new();
    let id = engine.run(|store| async { create(store).await }).unwrap();
    for _ in 0..600 {
        let name = vec![b'a' + random.below(12) as u8; 1 + random.index(40)];
        let value = pattern(random.index(600), random.next_u64());
        let removes = random.chance(1, 3);
        let used: usize = model
            .iter()
            .map(|(name, value)| 4 + name.len() + value.len())
            .sum();
        let old = model
            .get(&name)
            .map_or(0, |value| 4 + name.len() + value.len());
        let fits = used - old + 4 + name.len() + value.len() <= XATTR_BYTES_MAX;
        let result = engine.run(|store| async {
            if removes {
                store.xattr_remove(id, &name).await
            } else {
                store.xattr_set(id, &name, &value, XattrMode::Any).await
            }
        });
        match result {
            Ok(()) if removes => assert!(model.remove(&name).is_some()),
            Ok(()) => {
                assert!(fits);
                model.insert(name, value);
            }
            Err(error) if removes => {
                assert!(error.errno() == Errno::NODATA && !model.contains_key(&name));
            }
            Err(error) => assert!(error.errno() == Errno::NOSPC && !fits),
        }
    }
    assert_clean(&engine);
    engine
        .run(|store| async {
            let mut names = store.xattr_list(id).await?;
            names.sort();
            assert!(names.iter().eq(model.keys()));
            for (name, value) in &model {
                assert_eq!(&store.xattr_get(id, name).await?, value);
            }
            Ok(())
        })
        .unwrap();
    close(engine);
}

#[test]
fn a_blob_with_attributes_gives_everything_back_when_deleted() {
    let device = formatted(64 << 20);
    let engine = open(&device);
    engine.run(|store| async { create(store).await }).unwrap();
    let before = free_pages(&engine);
    engine
        .run(|store| async {
            let id = create(store).await?;
            let blob = store.blob(id).await?;
            store.write(&blob, 0, &pattern(100_000, 1)).await?;
            store.xattr_set(id, b"user.a", b"1", XattrMode::Any).await?;
            drop(blob);
            store.delete(id).await
        })
        .unwrap();
    assert_eq!(free_pages(&engine), before);
    assert_clean(&engine);
    close(engine);
}

#[test]
fn a_sync_makes_attributes_durable_even_of_a_blob_without_dirty_data() {
    let device = formatted(64 << 20);
    let engine = open(&device);
    let id = engine.run(|store| async { create(store).await }).unwrap();
    engine
        .run(|store| async {
            store
                .xattr_set(id, b"user.a", b"kept", XattrMode::Any)
                .await?;
            let blob = store.blob(id).await?;
            store.sync(&blob, SyncKind::All).await
        })
        .unwrap();
    let device = cut(&device, engine);
    let engine = open(&device);
    let value = engine.run(|store| async { store.xattr_get(id, b"user.a").await });
    assert_eq!(value.unwrap(), b"kept");
    assert_clean(&engine);
    close(engine);
}

#[test]
fn a_visit_meets_every_blob_once_in_the_order_of_slots() {
    let device = formatted(64 << 20);
    let engine = open(&device);
    let (ids, met) = engine
        .run(|store| async {
            let mut ids = Vec::new();
            for index in 0..300 {
                let id = create(store).await?;
                if index % 3 == 0 {
                    store.delete(id).await?;
                } else {
                    ids.push(id);
                }
            }
            let mut met = Vec::new();
            let mut visit = |id: BlobId, slot: &adit_store::format::Slot| {
                assert_eq!(slot.generation, id.generation);
                met.push(id);
                Ok(())
            };
            store.for_each_blob(&mut visit).await?;
            let mut calls = 0;
            let mut fail = |_: BlobId, _: &adit_store::format::Slot| {
                calls += 1;
                Err(Errno::INTR.into())
            };
            assert_eq!(errno(store.for_each_blob(&mut fail).await), Errno::INTR);
            assert_eq!(calls, 1);
            Ok((ids, met))
        })
        .unwrap();
    assert!(met.is_sorted_by(|a, b| a.slot < b.slot));
    let mut ids = ids;
    ids.sort();
    assert_eq!(met, ids);
    close(engine);
}

#[test]
fn a_damaged_slot_is_skipped_by_a_visit() {
    let device = formatted(64 << 20);
    let engine = open(&device);
    let (first, second) = engine
        .run(|store| async { Ok((create(store).await?, create(store).await?)) })
        .unwrap();
    close(engine);
    let offset = (first.slot % 8) as usize * 512 + 30;
    let bytes = rig::Bytes::of(&device).flip(first.slot / 8, |bytes| bytes[offset] ^= 1);
    let engine = open(&bytes.device());
    engine
        .run(|store| async {
            let mut met = Vec::new();
            let mut visit = |id: BlobId, _: &adit_store::format::Slot| {
                met.push(id);
                Ok(())
            };
            store.for_each_blob(&mut visit).await?;
            assert_eq!(met, [second]);
            Ok(())
        })
        .unwrap();
    drop_dead(engine);
}

const MIB: u64 = 1 << 20;

/// Writes a blob of `mib` MiB and syncs it.
async fn fill(store: &Store, mib: u64) -> adit_base::Result<BlobId> {
    let id = create(store).await?;
    let blob = store.blob(id).await?;
    for at in 0..mib {
        store
            .write(&blob, at * MIB, &pattern(MIB as usize, at))
            .await?;
    }
    store.sync(&blob, SyncKind::All).await?;
    Ok(id)
}

#[test]
fn a_grown_volume_has_room_for_more_and_keeps_what_it_had() {
    let device = formatted(16 * MIB);
    let engine = open(&device);
    let old = engine.run(|store| async { fill(store, 8).await }).unwrap();
    let too_much = engine.run(|store| async { fill(store, 8).await });
    assert_eq!(errno(too_much), Errno::NOSPC);
    // First within the only group, then by several; once with a remainder that is no group.
    let first_group = 16 * MIB - (16 * MIB / 4096 - 1024 - 3) * 4096;
    let edge = first_group + 16_256 * 4096 + 4096;
    for size in [20 * MIB + 100, edge, 200 * MIB] {
        let free = free_pages(&engine);
        engine
            .run(|store| async {
                store.grow(size).await?;
                assert_eq!(store.info().await?.volume_bytes, size / 4096 * 4096);
                Ok(())
            })
            .unwrap();
        assert!(free_pages(&engine) > free);
        assert_clean(&engine);
    }
    assert_eq!(device.geometry().size_bytes, 200 * MIB);
    let new = engine
        .run(|store| async { fill(store, 150).await })
        .unwrap();
    let report = assert_clean(&engine);
    assert!(
        report.groups == 4 && report.groups_initialized == 3,
        "{report:?}"
    );
    close(engine);
    let engine = open(&device);
    assert_clean(&engine);
    engine
        .run(|store| async {
            for (id, mib) in [(old, 8), (new, 150)] {
                let blob = store.blob(id).await?;
                let mut back = vec![0; MIB as usize];
                for at in 0..mib {
                    store.read(&blob, at * MIB, &mut back).await?;
                    assert!(back == pattern(MIB as usize, at), "{mib}: {at}");
                }
            }
            assert_eq!(errno(store.grow(100 * MIB).await), Errno::INVAL);
            assert_eq!(errno(store.grow(u64::MAX).await), Errno::FBIG);
            store.grow(200 * MIB).await
        })
        .unwrap();
    close(engine);
}

#[test]
fn a_volume_smaller_than_its_device_grows_without_the_device() {
    let device = rig::device(64 * MIB);
    let volume_bytes = Some(16 * MIB);
    format_as(
        &device,
        MkfsOptions {
            volume_bytes,
            ..MkfsOptions::default()
        },
    );
    let engine = open(&device);
    engine
        .run(|store| async { store.grow(64 * MIB).await })
        .unwrap();
    assert_eq!(device.geometry().size_bytes, 64 * MIB);
    engine.run(|store| async { fill(store, 40).await }).unwrap();
    assert_clean(&engine);
    let device = cut(&device, engine);
    let engine = open(&device);
    assert_clean(&engine);
    close(engine);
}

#[test]
fn a_power_cut_while_growing_leaves_the_old_size_or_the_new_one() {
    let mut sizes = std::collections::BTreeSet::new();
    for seed in 0..32 {
        let device = formatted_with(16 * MIB, seed % 2 == 1);
        let engine = open(&device);
        let id = engine.run(|store| async { fill(store, 2).await }).unwrap();
        device.cut_after(seed / 2);
        let grown = engine.run(|store| async { store.grow(80 * MIB).await });
        let image = device.power_cut(&mut Prng::new(seed));
        drop_dead(engine);
        let device = device.reopen(image);
        let engine = open(&device);
        assert_clean(&engine);
        let size = engine
            .run(|store| async { Ok(store.info().await?.volume_bytes) })
            .unwrap();
        assert!(
            size == 80 * MIB || (size == 16 * MIB && grown.is_err()),
            "{seed}"
        );
        sizes.insert(size);
        engine
            .run(|store| async {
                let blob = store.blob(id).await?;
                assert_eq!(blob.size(), 2 * MIB);
                store.grow(80 * MIB).await?;
                fill(store, 20).await
            })
            .unwrap();
        assert_clean(&engine);
        close(engine);
        let engine = open(&device);
        assert_clean(&engine);
        close(engine);
    }
    assert_eq!(sizes.len(), 2);
}

#[test]
fn a_power_cut_while_a_volume_is_labelled_leaves_the_old_label_or_the_new_one() {
    let mut labels = std::collections::BTreeSet::new();
    for seed in 0..32 {
        let device = formatted_with(16 * MIB, seed % 2 == 1);
        let engine = open(&device);
        let id = engine.run(|store| async { fill(store, 2).await }).unwrap();
        device.cut_after(seed / 4);
        let labelled = engine.run(|store| async { store.set_label("new").await });
        let image = device.power_cut(&mut Prng::new(seed));
        drop_dead(engine);
        let device = device.reopen(image);
        let engine = open(&device);
        assert_clean(&engine);
        let label = engine
            .run(|store| async {
                assert_eq!(store.blob(id).await?.size(), 2 * MIB);
                Ok(store.info().await?.label)
            })
            .unwrap();
        assert!(
            label == "new" || label.is_empty() && labelled.is_err(),
            "{seed}: {label}"
        );
        labels.insert(label);
        engine
            .run(|store| async {
                let longest = "x".repeat(64);
                store.set_label(&longest).await?;
                assert_eq!(errno(store.set_label(&"x".repeat(65)).await), Errno::INVAL);
                fill(store, 2).await
            })
            .unwrap();
        close(engine);
        let engine = open(&device);
        assert_clean(&engine);
        let label = engine.run(|store| async { Ok(store.info().await?.label) });
        assert_eq!(label.unwrap().len(), 64);
        close(engine);
    }
    assert_eq!(labels.len(), 2);
}

/// Closes at every commit around the one that begins a checkpoint in the background.
#[test]
fn a_close_when_a_checkpoint_is_due_loses_nothing() {
    for appends in 495..535u64 {
        // Requests that stay in flight for a while, so that commits run beside the checkpoint.
        let device = FaultDevice::new(FaultConfig {
            size_bytes: 32 * MIB,
            volatile_cache: true,
            queued: true,
            ..FaultConfig::default()
        });
        let options = MkfsOptions {
            data_checksums: appends % 2 == 1,
            ..MkfsOptions::default()
        };
        format_as(&device, options);
        let engine = open(&device);
        let id = engine.run(|store| async { create(store).await }).unwrap();
        engine
            .shutdown(move |store| async move {
                let blob = store.blob(id).await?;
                for index in 0..appends {
                    store.append(&blob, &index.to_le_bytes()).await?;
                    store.sync(&blob, SyncKind::Data).await?;
                    store.reactor().yield_now().await; // lets the checkpoint in
                }
                store.close().await
            })
            .unwrap();
        let engine = open(&device);
        engine
            .run(|store| async {
                let blob = store.blob(id).await?;
                assert_eq!(blob.size(), appends * 8, "{appends} appends");
                Ok(())
            })
            .unwrap();
        assert_clean(&engine);
        drop_dead(engine);
    }
}

/// A caller waits for a few pages of a running checkpoint at most, however many there are.
#[test]
fn a_checkpoint_of_many_pages_lets_others_in_again_and_again() {
    const PAGES: u64 = 200;
    let device = formatted(32 * MIB);
    let engine = open(&device);
    engine
        .shutdown(|store| async move {
            let id = create(store).await?;
            let blob = store.blob(id).await?;
            for page in 0..PAGES {
                // Small data that comes with a new size goes through the journal.
                store.write(&blob, page * rig::PAGE, b"small").await?;
                store.sync(&blob, SyncKind::Data).await?;
            }
            let mut turns = 0;
            let mut closing = pin!(store.close());
            poll_fn(|context| {
                turns += 1;
                closing.as_mut().poll(context)
            })
            .await?;
            assert!(turns > PAGES * 2 / 5, "{turns} turns in {PAGES} pages");
            Ok(())
        })
        .unwrap();
}

/// All others waited until an operation on many extents was done.
#[test]
fn an_operation_on_many_extents_lets_others_in_again_and_again() {
    const EXTENTS: u64 = 400;
    const END: u64 = 2 * EXTENTS * rig::PAGE;
    async fn turns_of(operation: impl Future<Output = adit_base::Result<()>>) -> u64 {
        let mut turns = 0;
        let mut operation = pin!(operation);
        let done = poll_fn(|context| {
            turns += 1;
            operation.as_mut().poll(context)
        });
        done.await.unwrap();
        turns
    }
    let engine = open(&formatted(64 * MIB));
    let turns = engine.run(|store| async move {
        let mut turns = Vec::new();
        for what in ["cut", "punched", "filled and zeroed", "deleted"] {
            let blob = store.blob(create(store).await?).await?;
            for page in (0..2 * EXTENTS).step_by(2) {
                store.write(&blob, page * rig::PAGE, &[1; 4096]).await?;
            }
            store.sync(&blob, SyncKind::Data).await?;
            let keep = AllocateMode::KeepSize;
            turns.push((
                what,
                match what {
                    "cut" => turns_of(store.resize(&blob, 0)).await,
                    "punched" => turns_of(store.punch(&blob, 0..END)).await,
                    "deleted" => turns_of(store.delete(blob.id)).await,
                    _ => {
                        turns_of(store.allocate(&blob, 0..END, keep)).await
                            + turns_of(store.zero_range(&blob, 0..END, keep)).await
                    }
                },
            ));
        }
        Ok(turns)
    });
    for (what, turns) in turns.unwrap() {
        assert!(turns > EXTENTS / 20, "{what} in {turns} turns");
    }
    assert_clean(&engine);
    drop_dead(engine);
}

/// The pages that it had taken counted twice meanwhile: as taken, and as promised to it.
#[test]
fn a_preallocation_leaves_others_the_space_that_it_does_not_need() {
    const HOLES: u64 = 400;
    const LEFT: u64 = 700;
    let engine = open(&formatted(64 * MIB));
    engine
        .run(|store| async move {
            let (holes, filler, other) = (
                store.blob(create(store).await?).await?,
                store.blob(create(store).await?).await?,
                store.blob(create(store).await?).await?,
            );
            for page in (0..2 * HOLES).step_by(2) {
                store.write(&holes, page * rig::PAGE, &[1; 4096]).await?;
            }
            store.sync_all().await?;
            let keep = AllocateMode::KeepSize;
            let free = store.state().await?.free_pages;
            let most = 0..(free - LEFT) * rig::PAGE;
            store.allocate(&filler, most, keep).await?;
            let whole = 0..2 * HOLES * rig::PAGE;
            let mut filling = pin!(store.allocate(&holes, whole, keep));
            let (mut turns, mut is_done) = (0, false);
            while !is_done {
                poll_fn(|context| {
                    is_done = filling
                        .as_mut()
                        .poll(context)
                        .map(Result::unwrap)
                        .is_ready();
                    Poll::Ready(())
                })
                .await;
                let at = turns * rig::PAGE;
                store.write(&other, at, &[2; 4096]).await?;
                turns += 1;
            }
            assert!(turns > HOLES / 20, "{turns} turns");
            store.sync_all().await
        })
        .unwrap();
    assert_clean(&engine);
    drop_dead(engine);
}

/// A closing that waited for it gave up, or had a journal that went on behind its end.
#[test]
fn a_deletion_in_the_background_ends_when_the_volume_is_closed() {
    const EXTENTS: u64 = 4000;
    let device = formatted(64 * MIB);
    let engine = open(&device);
    let id = engine
        .run(|store| async move {
            let id = create(store).await?;
            let blob = store.blob(id).await?;
            for page in (0..2 * EXTENTS).step_by(2) {
                store.write(&blob, page * rig::PAGE, &[1; 4096]).await?;
            }
            store.sync_all().await?;
            Ok(id)
        })
        .unwrap();
    engine
        .shutdown(move |store| async move {
            let deleting = store.clone();
            store.reactor().spawn_local(async move {
                let ended = deleting.delete(id).await;
                assert_eq!(errno(ended), Errno::CANCELED);
            });
            store.reactor().yield_now().await;
            store.close().await
        })
        .unwrap();
    let engine = open(&device);
    engine
        .run(|store| async move { store.delete(id).await })
        .unwrap();
    assert_clean(&engine);
    drop_dead(engine);
}

/// It took the truncation for one that had failed.
#[test]
fn a_direct_write_waits_for_a_truncation_that_runs() {
    const EXTENTS: u64 = 100;
    let engine = open(&formatted(64 * MIB));
    engine
        .run(|store| async move {
            let blob = store.blob(create(store).await?).await?;
            for page in (0..2 * EXTENTS).step_by(2) {
                store.write(&blob, page * rig::PAGE, &[1; 4096]).await?;
            }
            store.sync(&blob, SyncKind::Data).await?;
            let mut cutting = pin!(store.resize(&blob, rig::PAGE));
            let mut writing = pin!(store.write_direct(&blob, 10 * rig::PAGE, &[2; 4096]));
            let mut cut = Poll::Pending;
            poll_fn(|context| {
                if blob.size() == rig::PAGE {
                    return Poll::Ready(());
                }
                cut = cutting.as_mut().poll(context);
                if blob.size() == rig::PAGE {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
            assert!(cut.is_pending(), "the first step");
            let mut written = None;
            poll_fn(|context| {
                if written.is_none()
                    && let Poll::Ready(done) = writing.as_mut().poll(context)
                {
                    written = Some(done);
                }
                if cut.is_pending() {
                    cut = cutting.as_mut().poll(context);
                }
                if cut.is_ready() && written.is_some() {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
            written.unwrap().unwrap();
            assert_eq!(blob.size(), 11 * rig::PAGE);
            Ok(())
        })
        .unwrap();
    assert_clean(&engine);
    drop_dead(engine);
}

/// A write of many small pieces is as long as one of few large ones: others have their turn in
/// both.
#[test]
fn a_write_of_many_pieces_gives_way_like_one_of_few() {
    const PAGES: usize = 200;
    let device = formatted(64 * MIB);
    let engine = open(&device);
    let id = engine.run(|store| async { create(store).await }).unwrap();
    let page = [1; 4096];
    let large = vec![1; PAGES * 4096];
    let meets = |pieces: &[IoSlice<'_>]| {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    engine.run(|_| async { Ok(()) }).unwrap();
                }
            });
            // Tries until the other thread waits in the middle of a write.
            let begin = Instant::now();
            let mut tries = (0..).take_while(|_| begin.elapsed() < Duration::from_secs(240));
            let met = tries.any(|_| {
                let turns = engine.run(|store| async move {
                    let blob = store.blob(id).await?;
                    store.write(&blob, 0, &[1; 4096]).await?;
                    let mut turns = 0;
                    let mut writing = pin!(store.write_vectored(&blob, 0, pieces));
                    poll_fn(|context| {
                        turns += 1;
                        writing.as_mut().poll(context)
                    })
                    .await?;
                    Ok(turns)
                });
                turns.unwrap() > 1
            });
            stop.store(true, Ordering::Relaxed);
            other.join().unwrap();
            met
        })
    };
    assert!(meets(&[IoSlice::new(&large)]), "a large piece");
    assert!(meets(&[IoSlice::new(&page); PAGES]), "small pieces");
    drop_dead(engine);
}

/// Larger ones were made, and then could not be opened, or had fewer pages than they said.
#[test]
fn a_volume_is_not_made_larger_than_it_can_be() {
    let make = |device: Arc<FaultDevice>, volume_bytes| {
        let options = MkfsOptions {
            volume_bytes,
            ..MkfsOptions::default()
        };
        let engine = Engine::<()>::start(device, rig::engine_options(), |reactor| async move {
            adit_store::mkfs(&reactor, &options).await
        });
        engine.map(|engine| engine.shutdown(|()| async { Ok(()) }).unwrap())
    };
    let device = rig::device(1 << 58);
    assert_eq!(make(device.clone(), None).unwrap_err().errno(), Errno::FBIG);
    assert_eq!(device.requests(), 0);
    make(device.clone(), Some(1 << 57)).unwrap();
    close(open(&device));
}
