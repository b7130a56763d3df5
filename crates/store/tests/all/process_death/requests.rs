//! Deaths before each request to the device: of a workload, of a takeover, and of a takeover that
//! follows one that died. Also hard takeovers: a full ring, a full volume, a failing device.

use super::moment::{
    Gate, Mappings, Moment, RING_PAGES, VOLUME_BYTES, Witness, formatted, formatted_with, leavings,
    open_alone, open_with, options, superblock, unprotected,
};
use super::world::{Op, World, content};
use crate::rig::{PAGE, assert_clean, close, create, create_in, drop_dead, pattern};
use adit_base::Errno;
use adit_base::random::Prng;
use adit_block::{FaultDevice, FaultEffect, FaultOn, FaultRule};
use adit_reactor::Engine;
use adit_store::format::SUPERBLOCK_MAGIC;
use adit_store::{Store, StoreOptions, SyncKind, XattrMode};
use std::sync::Arc;

/// Works on a volume until request number `at`; returns the state left, the expected content, and
/// the operation in flight.
fn die_at(device: &Arc<FaultDevice>, seed: u64, at: u64) -> (Moment, World, Op) {
    let mut random = Prng::new(seed);
    let mut world = World::default();
    let witness = Witness::new(device, at);
    let engine = open_alone(witness.clone(), &options()).unwrap();
    loop {
        let op = world.op(&mut random);
        let created = engine.run(|store| world.perform(store, op));
        if let Some(moment) = witness.moment() {
            drop_dead(engine);
            return (moment, world, op);
        }
        world.acknowledged(op, created.unwrap());
    }
}

/// Takes over the state, and compares everything.
fn judge(
    device: &Arc<FaultDevice>,
    mappings: &Mappings,
    world: &World,
    op: Option<Op>,
    case: &str,
) {
    let engine =
        open_with(device.clone(), &options()).unwrap_or_else(|error| panic!("{case}: {error}"));
    if let Err(what) = world.clone().judge(&engine, op) {
        panic!("{case}: {what}");
    }
    assert_clean(&engine);
    close(engine);
    assert!(mappings.paths().is_empty(), "{case}");
}

#[test]
fn what_was_acknowledged_survives_a_death_before_any_request() {
    let mut random = Prng::new(1);
    for seed in 0..4 {
        let empty = formatted_with(VOLUME_BYTES, seed % 2 == 1);
        let mappings = Mappings::of(&empty);
        for _ in 0..20 {
            let most = *random.pick(&[60, 300, 1200]);
            let at = 12 + random.below(most);
            let device = empty.reopen(empty.image());
            let (left, world, op) = die_at(&device, seed, at);
            let device = left.restore(&device, &mappings);
            judge(
                &device,
                &mappings,
                &world,
                Some(op),
                &format!("seed {seed}, request {at}"),
            );
        }
    }
}

#[test]
fn a_death_before_any_request_of_a_takeover_loses_nothing() {
    for data_checksums in [false, true] {
        let device = formatted_with(VOLUME_BYTES, data_checksums);
        let mappings = Mappings::of(&device);
        let (left, world) = leavings(&device, &mappings);
        let judge = |device: &_, at| {
            judge(device, &mappings, &world, None, &format!("request {at}"));
        };
        let deaths = takeovers_die(&device, &mappings, &left, &|_| options(), &judge);
        assert!(deaths > 40, "the takeover had something to do");
    }
}

/// Takeovers of a state die before each of their requests in turn, some again and again, and with
/// the options for a random number; `judge` hears the state that each death left, and of which
/// request it was. Returns the number of requests.
fn takeovers_die(
    device: &Arc<FaultDevice>,
    mappings: &Mappings,
    left: &Moment,
    options: &dyn Fn(u64) -> StoreOptions,
    judge: &dyn Fn(&Arc<FaultDevice>, u64),
) -> u64 {
    let mut random = Prng::new(2);
    for at in 0.. {
        let mut now = left.clone();
        for death in 0..1 + random.below(3) {
            let device = now.restore(device, mappings);
            let witness = Witness::new(&device, if death == 0 { at } else { random.below(100) });
            if let Ok(engine) = open_alone(witness.clone(), &options(random.next_u64())) {
                drop_dead(engine);
            }
            match witness.moment() {
                Some(moment) => now = moment,
                None if death == 0 => return at,
                None => break,
            }
        }
        judge(&now.restore(device, mappings), at);
    }
    unreachable!("a takeover ends")
}

/// A takeover adds the ledgers of other partitions to the state page once, though the first
/// partition has read more than its cache holds, and takeovers die before they are complete.
#[test]
fn a_death_before_any_request_of_a_takeover_of_several_partitions_loses_nothing() {
    let divided = |partitions| StoreOptions {
        partitions,
        ..options()
    };
    let device = formatted(300 << 20);
    let mappings = Mappings::of(&device);
    let engine = open_alone(device.clone(), &divided(3)).unwrap();
    let made = engine.run(|store| async move {
        let large = create_in(store, 0).await?;
        let blob = store.blob(large).await?;
        let bytes = pattern(12 << 20, 1);
        for (piece, at) in bytes.chunks(1 << 20).zip((0..).step_by(1 << 20)) {
            store.write(&blob, at, piece).await?;
            store.sync(&blob, SyncKind::All).await?;
        }
        let mut made = vec![large];
        for _ in 0..6 {
            made.push(create_in(store, 1).await?);
        }
        store.checkpoint().await?;
        let mut read = vec![0; bytes.len()];
        store.read(&blob, 0, &mut read).await?;
        assert!(read == bytes);
        // Decided and counted by the others.
        let by = store.of(made[1]);
        for _ in 0..7 {
            made.push(create_in(by, 1).await?);
            made.push(create_in(by, 2).await?);
        }
        Ok(made)
    });
    let made = made.unwrap();
    let left = Moment::of(&device, &mappings);
    drop_dead(engine);
    let judge = |device: &Arc<FaultDevice>, _| {
        let engine = open_with(device.clone(), &options()).unwrap();
        assert_clean(&engine);
        for id in &made {
            let slot = engine.run(|store| async move { store.view(|view| view.slot(*id)).await });
            slot.unwrap();
        }
        close(engine);
    };
    let any = |random| divided(1 + random as u32 % 3);
    let deaths = takeovers_die(&device, &mappings, &left, &any, &judge);
    assert!(deaths > 10, "the takeover had something to do");
}

#[test]
fn a_takeover_that_a_failing_device_stops_is_made_by_the_next_opening() {
    // Without its own mapping, a failing opening leaves only the mapping that it found.
    for (effect, options, data_checksums) in [
        (FaultEffect::Error(Errno::IO), unprotected(), false),
        (FaultEffect::TearAndFail(Errno::IO), options(), true),
    ] {
        let device = formatted_with(VOLUME_BYTES, data_checksums);
        let mappings = Mappings::of(&device);
        let (left, world) = leavings(&device, &mappings);
        for at in 0.. {
            let device = left.restore(&device, &mappings);
            device.inject(FaultRule::new(FaultOn::Any, effect).after(at).times(1));
            let opened = open_with(device.clone(), &options);
            let struck = device.faults() > 0;
            device.clear_faults();
            match opened {
                Ok(engine) => drop_dead(engine),
                Err(error) => assert!(struck && error.errno() == Errno::IO, "{error}"),
            }
            judge(
                &device,
                &mappings,
                &world,
                None,
                &format!("{effect:?} at request {at}"),
            );
            if !struck {
                assert!(at > 40);
                break;
            }
        }
    }
}

/// The image lies in a full file system, and a service starts again and again. (Each start left a
/// copy of the unwritten data in shared memory, until that was full, too: then no opening succeeded
/// even with room for the image.)
#[test]
fn a_takeover_that_fails_again_and_again_leaves_what_it_found_and_no_copies() {
    for data_checksums in [false, true] {
        let device = formatted_with(VOLUME_BYTES, data_checksums);
        let mappings = Mappings::of(&device);
        let engine = open_alone(device.clone(), &options()).unwrap();
        // More than a third of the cache, beyond which writers wait for write-back.
        let len = 5 << 20;
        let written = engine.run(|store| async {
            let id = create(store).await?;
            let blob = store.blob(id).await?;
            store.sync(&blob, SyncKind::All).await?;
            store.checkpoint().await?;
            Ok(id)
        });
        let id = written.unwrap();
        let full = FaultRule::new(FaultOn::Write, FaultEffect::Error(Errno::NOSPC))
            .within((2 + RING_PAGES + 1) * PAGE..VOLUME_BYTES);
        device.inject(full.clone());
        let written = engine.run(|store| async move {
            let blob = store.blob(id).await?;
            store.write(&blob, 0, &pattern(len, 1)).await
        });
        written.unwrap();
        let left = Moment::of(&device, &mappings);
        drop_dead(engine);
        device.clear_faults();
        let device = left.restore(&device, &mappings);
        device.inject(full);
        let found = mappings.only();
        for opening in 1..4 {
            let before = device.faults();
            let error = open_with(device.clone(), &options()).map(drop).unwrap_err();
            assert_eq!(error.errno(), Errno::NOSPC, "{error}");
            assert_eq!(mappings.only(), found, "opening {opening}");
            // Not for each page once more.
            let failed = device.faults() - before;
            assert!(failed < 200, "{failed} writes failed");
        }
        device.clear_faults();
        let engine = open_with(device, &options()).unwrap();
        assert!(content(&engine, id).unwrap() == pattern(len, 1));
        assert_clean(&engine);
        close(engine);
        assert!(mappings.paths().is_empty());
    }
}

fn journal_live_pages(engine: &Arc<Engine<Store>>) -> u64 {
    let info = engine.run(|store| async { store.info().await }).unwrap();
    info.journal_live_bytes / PAGE
}

#[test]
fn a_ring_that_is_full_at_death_gets_room_for_what_the_dead_process_had_not_written() {
    for data_checksums in [false, true] {
        let device = formatted_with(VOLUME_BYTES, data_checksums);
        let mappings = Mappings::of(&device);
        let gate = Gate::new(&device);
        let engine = open_with(gate.clone(), &options()).unwrap();
        let mut world = World::default();
        world.run(&engine, Op::Create);
        gate.shut();
        let checkpoint = {
            let engine = engine.clone();
            std::thread::spawn(move || engine.run(|store| async { store.checkpoint().await }))
        };
        gate.wait();
        // Ordinary commits may fill seven eighths of the ring.
        let mut live_pages = 0;
        while live_pages + 4 < RING_PAGES / 8 * 7 {
            world.next_version += 1;
            let (blob, version) = (0, world.next_version);
            world.run(
                &engine,
                Op::Write {
                    blob,
                    version,
                    range: (0, 8000),
                },
            );
            world.run(&engine, Op::Sync { blob });
            let before = live_pages;
            live_pages = journal_live_pages(&engine);
            assert!(live_pages > before);
        }
        // Fills the open transaction; more would have to commit, and wait.
        for seed in 0..70 {
            world.run(&engine, Op::Create);
            let id = world.blobs.last().unwrap().id;
            let set = engine.run(|store| async move {
                let value = pattern(3000, seed);
                store
                    .xattr_set(id, b"user.a", &value, XattrMode::Create)
                    .await
            });
            set.unwrap();
        }
        let mut left = Moment::of(&device, &mappings);
        gate.open();
        checkpoint.join().unwrap().unwrap();
        drop_dead(engine);
        // Each opening that dies has written all of it to the ring once more.
        let (mut random, mut moved) = (Prng::new(3), 0);
        for _ in 0..24 {
            let before = superblock(&left.image);
            let device = left.restore(&device, &mappings);
            let witness = Witness::new(&device, 10 + random.below(90));
            if let Ok(engine) = open_alone(witness.clone(), &options()) {
                drop_dead(engine);
            }
            let Some(moment) = witness.moment() else {
                continue; // it lived
            };
            left = moment;
            let after = superblock(&left.image);
            moved += u64::from(after.epoch == before.epoch && after.tail > before.tail);
            let device = left.restore(&device, &mappings);
            if random.chance(1, 3) {
                judge(&device, &mappings, &world, None, "a full ring");
            }
        }
        assert!(moved > 0, "the ring was full");
        let device = left.restore(&device, &mappings);
        judge(&device, &mappings, &world, None, "a full ring");
        let engine = open_with(device, &unprotected()).unwrap();
        for (seed, blob) in (0..).zip(&world.blobs[1..]) {
            let value = engine
                .run(|store| store.xattr_get(blob.id, b"user.a"))
                .unwrap();
            assert!(value == pattern(3000, seed));
        }
        drop_dead(engine);
    }
}

#[test]
fn a_full_volume_is_taken_over() {
    for data_checksums in [false, true] {
        let device = formatted_with(24 << 20, data_checksums);
        let mappings = Mappings::of(&device);
        let engine = open_alone(device.clone(), &options()).unwrap();
        let mut sizes = Vec::new();
        // Files of holes, so that their maps are large.
        'full: for _ in 0..4 {
            let id = engine.run(|store| async { create(store).await }).unwrap();
            sizes.push((id, 0));
            for page in 0..2000 {
                let written = engine.run(|store| async {
                    let blob = store.blob(id).await?;
                    store
                        .write(&blob, page * 2 * PAGE, &pattern(4096, page))
                        .await
                });
                match written {
                    Ok(_) => sizes.last_mut().unwrap().1 = page + 1,
                    Err(error) => {
                        assert_eq!(error.errno(), Errno::NOSPC);
                        break 'full;
                    }
                }
            }
        }
        let left = Moment::of(&device, &mappings);
        drop_dead(engine);
        let device = left.restore(&device, &mappings);
        let engine = open_with(device, &options()).unwrap();
        for (id, pages) in sizes {
            let back = content(&engine, id).unwrap();
            assert_eq!(back.len() as u64, (pages * 2).saturating_sub(1) * PAGE);
            for page in 0..pages {
                let at = (page * 2 * PAGE) as usize;
                assert!(back[at..at + 4096] == pattern(4096, page), "page {page}");
            }
        }
        assert_clean(&engine);
        close(engine);
    }
}

/// A file had grown since its last write-back, and was truncated to more than it had then. Its new
/// size was only in memory, the pages that had shown how large it was were gone: after a kill it
/// was as large as its last dirty page.
#[test]
fn a_truncated_size_survives_and_half_a_truncation_leaves_no_smaller_one() {
    let empty = formatted(VOLUME_BYTES);
    let mappings = Mappings::of(&empty);
    for at in 0.. {
        let device = empty.reopen(empty.image());
        let engine = open_alone(device.clone(), &options()).unwrap();
        let id = engine.run(|store| async { create(store).await }).unwrap();
        let written = engine.run(|store| async {
            let blob = store.blob(id).await?;
            store.write(&blob, 0, &pattern(1000, 1)).await?;
            store.sync(&blob, SyncKind::All).await?;
            Ok(())
        });
        written.unwrap();
        drop_dead(engine);
        let witness = Witness::new(&device, u64::MAX);
        let engine = open_alone(witness.clone(), &options()).unwrap();
        let written = engine.run(|store| async {
            let blob = store.blob(id).await?;
            store.write(&blob, 0, &pattern(10_000, 4)).await?;
            store.write(&blob, 60_000, &pattern(100, 5)).await
        });
        written.unwrap();
        witness.strike_after(at);
        let resized = engine.run(|store| async {
            let blob = store.blob(id).await?;
            store.resize(&blob, 40_000).await
        });
        let cut_short = witness.moment();
        let sizes = if cut_short.is_some() {
            40_000..=60_100
        } else {
            resized.unwrap();
            40_000..=40_000
        };
        let left = cut_short
            .clone()
            .unwrap_or_else(|| Moment::of(&device, &mappings));
        drop_dead(engine);
        let device = left.restore(&device, &mappings);
        let engine = open_with(device, &options()).unwrap();
        let found = content(&engine, id).unwrap();
        assert!(found[..10_000] == pattern(10_000, 4));
        assert!(sizes.contains(&found.len()), "{} bytes", found.len());
        assert_clean(&engine);
        close(engine);
        if cut_short.is_none() {
            return;
        }
    }
}

/// A page with records that were not sealed yet was freed, and written again: the new frame, which
/// has no place on the device, passed for the old one. The next checkpoint wrote it home, to device
/// page 0, over a superblock.
#[test]
fn a_page_that_is_written_again_after_it_was_freed_with_unsealed_records_leaves_the_superblocks_alone()
 {
    let device = formatted(VOLUME_BYTES);
    let engine = open_alone(device.clone(), &unprotected()).unwrap();
    // The checkpoint's own superblock hides the damage every other time.
    for _ in 0..2 {
        let done = engine.run(|store| async {
            let blob = store.blob(create(store).await?).await?;
            store.write(&blob, 0, &pattern(100, 1)).await?;
            // These become records of a transaction that is never committed.
            store.punch(&blob, 0..50).await?;
            store.resize(&blob, 0).await?;
            store.write(&blob, 0, &pattern(100, 2)).await?;
            store.commit().await?;
            store.checkpoint().await
        });
        done.unwrap();
        for page in [0, 1] {
            let mut magic = [0; 8];
            device.image().read(page * PAGE, &mut magic);
            assert_eq!(magic, SUPERBLOCK_MAGIC, "page {page}");
        }
    }
    drop_dead(engine);
}
