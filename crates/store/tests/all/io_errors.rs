//! Devices that fail, fill up or lie: reported errors, operations that still work, and no panics.

use crate::rig::{
    Bytes, PAGE, assert_clean, close, create, cut, drop_dead, errno, formatted, formatted_with,
    new_blob, open, pattern, slot_of, try_open,
};
use adit_base::random::Prng;
use adit_base::{Errno, PAGE_BYTES};
use adit_block::{FaultDevice, FaultEffect, FaultOn, FaultRule};
use adit_reactor::Engine;
use adit_store::format::Slot;
use adit_store::{AllocateMode, BlobId, Store, SyncKind};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

const VOLUME_BYTES: u64 = 32 << 20;
/// The smallest ring, which mkfs chooses for such a volume.
const RING: Range<u64> = 2 * PAGE..(2 + 1024) * PAGE;
/// Allocation groups.
const DATA: Range<u64> = (2 + 1024 + 1) * PAGE..VOLUME_BYTES;

fn io_error(on: FaultOn) -> FaultRule {
    FaultRule::new(on, FaultEffect::Error(Errno::IO))
}

fn write(
    engine: &Arc<Engine<Store>>,
    id: BlobId,
    offset: u64,
    data: &[u8],
) -> adit_base::Result<()> {
    engine.run(|store| async {
        let blob = store.blob(id).await?;
        store.write(&blob, offset, data).await
    })
}

fn sync(engine: &Arc<Engine<Store>>, id: BlobId) -> adit_base::Result<()> {
    engine.run(|store| async {
        let blob = store.blob(id).await?;
        store.sync(&blob, SyncKind::Data).await
    })
}

fn read(engine: &Arc<Engine<Store>>, id: BlobId) -> adit_base::Result<Vec<u8>> {
    engine.run(|store| async {
        let blob = store.blob(id).await?;
        let mut back = vec![0; 4 << 20];
        let count = store.read(&blob, 0, &mut back).await?;
        back.truncate(count);
        Ok(back)
    })
}

#[test]
fn a_failed_data_write_is_reported_once_to_each_descriptor_and_lost_to_none() {
    for data_checksums in [false, true] {
        let device = formatted_with(VOLUME_BYTES, data_checksums);
        let engine = open(&device);
        let (bad, good) = (new_blob(&engine, 65536, 1), new_blob(&engine, 65536, 2));
        engine
            .run(|store| async { store.checkpoint().await })
            .unwrap();
        let shared = engine
            .run(|store| async { Ok(store.blob(bad).await?.shared.clone()) })
            .unwrap();
        let descriptors = [
            AtomicU64::new(shared.error_sequence()),
            AtomicU64::new(shared.error_sequence()),
        ];
        write(&engine, bad, 0, &pattern(65536, 3)).unwrap();
        write(&engine, good, 0, &pattern(65536, 4)).unwrap();
        device.inject(io_error(FaultOn::Write).within(DATA).times(1));
        assert_eq!(errno(sync(&engine, bad)), Errno::IO);
        for seen in &descriptors {
            assert_eq!(errno(shared.check_error(seen)), Errno::IO);
            shared.check_error(seen).unwrap();
        }
        let opened_later = AtomicU64::new(shared.error_sequence());
        shared.check_error(&opened_later).unwrap();
        // The neighbour is not affected, and readers see the written bytes.
        sync(&engine, good).unwrap();
        assert!(read(&engine, bad).unwrap() == pattern(65536, 3));
        // A sync succeeds only if the data is really there.
        sync(&engine, bad).unwrap();
        let device = cut(&device, engine);
        let engine = open(&device);
        assert!(read(&engine, bad).unwrap() == pattern(65536, 3));
        assert!(read(&engine, good).unwrap() == pattern(65536, 4));
        assert_clean(&engine);
        close(engine);
    }
}

#[test]
fn a_file_whose_writes_fail_stays_out_of_its_neighbours_transaction() {
    for data_checksums in [false, true] {
        let device = formatted_with(VOLUME_BYTES, data_checksums);
        let engine = open(&device);
        let bad = new_blob(&engine, 0, 1);
        let good = new_blob(&engine, 10, 2);
        // Large: its data has to go home before the map may name it.
        write(&engine, bad, 0, &pattern(100_000, 3)).unwrap();
        device.inject(io_error(FaultOn::Write).within(DATA));
        assert_eq!(errno(sync(&engine, bad)), Errno::IO);
        assert_eq!(errno(sync(&engine, bad)), Errno::IO);
        assert_eq!(
            errno(engine.run(|store| async { store.sync_all().await })),
            Errno::IO
        );
        write(&engine, good, 10, &pattern(50, 4)).unwrap();
        sync(&engine, good).unwrap();
        device.clear_faults();
        let device = cut(&device, engine);
        let engine = open(&device);
        assert!(read(&engine, bad).unwrap().is_empty());
        assert_eq!(read(&engine, good).unwrap().len(), 60);
        assert_clean(&engine);
        close(engine);
    }
}

#[test]
fn a_torn_and_failed_write_is_written_again_as_a_whole() {
    for data_checksums in [false, true] {
        let device = formatted_with(VOLUME_BYTES, data_checksums);
        let engine = open(&device);
        let id = new_blob(&engine, 1 << 20, 1);
        engine
            .run(|store| async { store.checkpoint().await })
            .unwrap();
        let mut expected = pattern(1 << 20, 1);
        for round in 0..20u64 {
            let at = (round * 53_001 % 900_000) as usize;
            let piece = pattern(20_000, 10 + round);
            expected[at..at + piece.len()].copy_from_slice(&piece);
            write(&engine, id, at as u64, &piece).unwrap();
            device.inject(
                FaultRule::new(FaultOn::Write, FaultEffect::TearAndFail(Errno::IO))
                    .within(DATA)
                    .times(1),
            );
            let _ = sync(&engine, id);
            device.clear_faults();
            sync(&engine, id).unwrap();
        }
        let device = cut(&device, engine);
        let engine = open(&device);
        assert!(read(&engine, id).unwrap() == expected);
        close(engine);
    }
}

#[test]
fn a_read_error_is_an_errno_and_the_rest_goes_on() {
    for data_checksums in [false, true] {
        let device = formatted_with(VOLUME_BYTES, data_checksums);
        let engine = open(&device);
        let (one, two) = (new_blob(&engine, 300_000, 1), new_blob(&engine, 300_000, 2));
        close(engine);
        let device = device.reopen(device.image());
        let engine = open(&device);
        // First the slot page can't be read, then the data.
        device.inject(io_error(FaultOn::Read).within(DATA));
        assert_eq!(errno(read(&engine, one)), Errno::IO);
        device.clear_faults();
        let mut back = [0; 10];
        let begin = engine.run(|store| async {
            let blob = store.blob(two).await?;
            store.read(&blob, 0, &mut back).await
        });
        assert_eq!(begin.unwrap(), 10);
        device.inject(io_error(FaultOn::Read).within(DATA));
        assert_eq!(errno(read(&engine, two)), Errno::IO);
        let direct = engine.run(|store| async {
            let blob = store.blob(two).await?;
            let mut back = vec![0; 300_000];
            store.read_direct(&blob, 0, &mut back).await
        });
        assert_eq!(errno(direct), Errno::IO);
        // Part of a page has to be read before it is written; a whole one not.
        assert_eq!(errno(write(&engine, two, 100_001, b"abc")), Errno::IO);
        write(&engine, two, 40_960, &pattern(4096, 5)).unwrap();
        device.clear_faults();
        assert!(read(&engine, one).unwrap() == pattern(300_000, 1));
        let mut expected = pattern(300_000, 2);
        expected[40_960..45_056].copy_from_slice(&pattern(4096, 5));
        assert!(read(&engine, two).unwrap() == expected);
        sync(&engine, two).unwrap();
        assert_clean(&engine);
        close(engine);
    }
}

#[test]
fn a_failed_journal_write_or_flush_makes_the_volume_read_only_and_readable() {
    let rules = [
        io_error(FaultOn::Write).within(RING).times(1),
        io_error(FaultOn::Flush).times(1),
        io_error(FaultOn::Write).within(0..2 * PAGE).times(1),
    ];
    let cases = rules
        .iter()
        .flat_map(|rule| [(rule.clone(), false), (rule.clone(), true)]);
    for (rule, data_checksums) in cases {
        let device = formatted_with(VOLUME_BYTES, data_checksums);
        let engine = open(&device);
        let id = new_blob(&engine, 100_000, 1);
        write(&engine, id, 0, &pattern(70_000, 2)).unwrap();
        write(&engine, id, 100_000, &pattern(70_000, 2)).unwrap();
        let what = format!("{rule:?}");
        device.inject(rule);
        let outcome = engine.run(|store| async {
            let blob = store.blob(id).await?;
            store.sync(&blob, SyncKind::All).await?;
            store.checkpoint().await
        });
        assert!(outcome.is_err(), "{what}");
        // The fault was transient, but writes acknowledged before it may be lost.
        assert_eq!(errno(write(&engine, id, 0, b"x")), Errno::ROFS, "{what}");
        assert_eq!(
            errno(engine.run(|store| async { store.commit().await })),
            Errno::ROFS
        );
        assert!(sync(&engine, id).is_err(), "{what}");
        assert_eq!(
            errno(engine.run(|store| async { create(store).await })),
            Errno::ROFS
        );
        assert_eq!(
            errno(engine.run(|store| async { store.delete(id).await })),
            Errno::ROFS
        );
        let back = read(&engine, id).unwrap();
        assert!(back[..70_000] == pattern(70_000, 2)[..], "{what}");
        assert!(
            engine
                .run(|store| async { Ok(store.info().await?.failure) })
                .unwrap()
                .is_some()
        );
        let device = cut(&device, engine);
        let engine = open(&device);
        assert!(read(&engine, id).unwrap().len() >= 100_000, "{what}");
        assert_clean(&engine);
        close(engine);
    }
}

#[test]
fn a_full_volume_answers_enospc_everywhere_and_deleting_always_works() {
    for data_checksums in [false, true] {
        let device = formatted_with(12 << 20, data_checksums);
        let engine = open(&device);
        let mut random = Prng::new(5);
        let mut blobs: Vec<BlobId> = Vec::new();
        let mut refusals = 0;
        for round in 0..1500u64 {
            let choice = random.below(10);
            let any = (!blobs.is_empty()).then(|| blobs[random.index(blobs.len())]);
            let (offset, len) = (random.below(3 << 20), 1 + random.below(300_000));
            let result = engine.run(|store| async {
                let Some(id) = any.filter(|_| choice > 1) else {
                    return create(store).await.map(Some);
                };
                let blob = store.blob(id).await?;
                match choice {
                    2..=4 => store
                        .write(&blob, offset, &pattern(len as usize, round))
                        .await
                        .map(drop)?,
                    5 => store.append(&blob, &pattern(200, round)).await.map(drop)?,
                    6 => {
                        store
                            .allocate(&blob, offset..offset + len, AllocateMode::KeepSize)
                            .await?
                    }
                    7 => store.punch(&blob, offset..offset + len).await?,
                    8 => store.resize(&blob, offset).await?,
                    _ => store.sync(&blob, SyncKind::All).await?,
                }
                Ok(None)
            });
            match result {
                Ok(Some(id)) => blobs.push(id),
                Ok(None) => {}
                Err(error) => {
                    assert_eq!(error.errno(), Errno::NOSPC, "round {round}: {error}");
                    refusals += 1;
                }
            }
            // Accepted writes have reserved places.
            if round % 100 == 99 {
                engine
                    .run(|store| async { store.sync_all().await })
                    .unwrap();
                assert_clean(&engine);
            }
            if round % 400 == 399 {
                for id in blobs.drain(..) {
                    engine
                        .run(|store| async { store.delete(id).await })
                        .unwrap();
                }
            }
        }
        assert!(refusals > 50, "the volume was never full: {refusals}");
        for id in blobs.drain(..) {
            engine
                .run(|store| async { store.delete(id).await })
                .unwrap();
        }
        engine
            .run(|store| async { store.sync_all().await })
            .unwrap();
        let report = assert_clean(&engine);
        assert_eq!((report.blobs, report.data_pages), (0, 0));
        let (info, state) = engine
            .run(|store| async { Ok((store.info().await?, store.state().await?)) })
            .unwrap();
        assert_eq!(
            info.free_bytes / PAGE,
            state.free_pages - 48,
            "promised to nobody"
        );
        close(engine);
    }
}

/// A volume with everything on it: maps in slots and in trees, holes, unwritten extents, something
/// to recover.
fn rich_volume(data_checksums: bool) -> (Arc<FaultDevice>, Vec<BlobId>) {
    let device = formatted_with(VOLUME_BYTES, data_checksums);
    let engine = open(&device);
    let mut blobs = Vec::new();
    for index in 0..12u64 {
        let id = new_blob(&engine, 200_000, index);
        engine
            .run(|store| async {
                let blob = store.blob(id).await?;
                if index % 3 == 0 {
                    // Every other page goes: more extents than a slot holds.
                    for page in 0..24 {
                        let at = page * 8192;
                        store.punch(&blob, at..at + 4096).await?;
                    }
                }
                store
                    .allocate(&blob, 300_000..400_000, AllocateMode::KeepSize)
                    .await?;
                store.sync(&blob, SyncKind::All).await
            })
            .unwrap();
        blobs.push(id);
    }
    engine
        .run(|store| async { store.checkpoint().await })
        .unwrap();
    for id in &blobs[..4] {
        write(&engine, *id, 500, &pattern(300, 9)).unwrap();
        write(&engine, *id, 200_000, &pattern(300, 9)).unwrap();
        sync(&engine, *id).unwrap();
    }
    drop_dead(engine);
    (device, blobs)
}

/// Runs all operations; with any result, nothing may panic, hang or write where no data belongs.
fn use_everything(device: &Arc<FaultDevice>, blobs: &[BlobId], what: &str) -> bool {
    let Ok(engine) = try_open(device) else {
        return false;
    };
    let mut flawless = true;
    let mut attempt = |result: adit_base::Result<()>| flawless &= result.is_ok();
    for id in blobs {
        attempt(read(&engine, *id).map(drop));
        attempt(engine.run(|store| async {
            let blob = store.blob(*id).await?;
            store.write(&blob, 190_000, &pattern(20_000, 3)).await?;
            store.write(&blob, 333_333, &pattern(10, 3)).await?;
            store.sync(&blob, SyncKind::All).await?;
            store.punch(&blob, 50_000..60_000).await?;
            store.resize(&blob, 100_000).await
        }));
    }
    attempt(engine.run(|store| async { create(store).await.map(drop) }));
    attempt(engine.run(|store| async {
        let report = store.check(&mut |_, _| ()).await?;
        let clean = report.is_clean();
        if clean {
            Ok(())
        } else {
            Err(Errno::UCLEAN.into())
        }
    }));
    for id in blobs {
        attempt(engine.run(|store| async { store.delete(*id).await }));
    }
    attempt(engine.run(|store| async { store.sync_all().await }));
    assert!(!engine.poisoned(), "a panic with {what}");
    let _ = engine.shutdown(|store| async { store.close().await });
    flawless
}

#[test]
fn flipped_bits_are_errors_and_nothing_worse() {
    for data_checksums in [false, true] {
        let (device, blobs) = rich_volume(data_checksums);
        let image = device.image();
        let metadata: Vec<u64> = (image.pages())
            .map(|(page, _)| page)
            .filter(|page| *page < 1300)
            .collect();
        assert!(use_everything(
            &device.reopen(image.clone()),
            &blobs,
            "no damage"
        ));
        let heads = if data_checksums { 28 } else { 12 };
        let mut random = Prng::new(11);
        let mut found = 0;
        for round in 0..150 {
            let mut damaged = image.clone();
            let mut pages = Vec::new();
            for _ in 0..1 + random.below(3) {
                let page = match random.below(4) {
                    0 => random.below(2),
                    1 => 1026 + random.below(heads),
                    _ => *random.pick(&metadata),
                };
                let mut bytes = [0; PAGE_BYTES];
                damaged.read(page * PAGE, &mut bytes);
                bytes[random.index(PAGE_BYTES)] ^= 1 << random.below(8);
                damaged.write(page * PAGE, &bytes);
                pages.push(page);
            }
            let what = format!("round {round}: a bit flipped in each of the pages {pages:?}");
            found += u32::from(!use_everything(&device.reopen(damaged), &blobs, &what));
        }
        assert!(found > 20, "{found}");
    }
}

/// Damage that checksums don't show, as a broken program or an attacker makes it.
#[test]
fn forged_metadata_is_refused_without_a_panic() {
    for data_checksums in [false, true] {
        let (device, blobs) = rich_volume(data_checksums);
        let engine = open(&device);
        close(engine); // all of it at home
        let mut random = Prng::new(12);
        let base = Bytes::of(&device);
        let image = device.image();
        let headers: Vec<u64> = (image.pages())
            .filter(|(page, bytes)| {
                let crc = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                *page > 1025 && base.volume.checksum(*page, &bytes[..], 0) == crc
            })
            .map(|(page, _)| page)
            .collect();
        assert!(headers.len() > 4, "{headers:?}");
        for round in 0..200 {
            let mut bytes = Bytes::of(&device);
            let mut what = format!("round {round}:");
            for _ in 0..1 + random.below(2) {
                let from = random.index(400);
                let (len, value) = (1 + random.index(9), random.next_u64());
                let scribble = |area: &mut [u8]| {
                    let from = from.min(area.len() - 16);
                    area[from..from + len]
                        .copy_from_slice(&[value.to_le_bytes(), [255; 8]].concat()[..len]);
                };
                if random.chance(1, 2) {
                    let id = *random.pick(&blobs);
                    what += &format!(" slot {} at {from} {len} {value:x}", id.slot);
                    bytes = bytes.forge_slot(id.slot, |slot| {
                        scribble(zerocopy::IntoBytes::as_mut_bytes(slot));
                    });
                } else {
                    let page = *random.pick(&headers);
                    what += &format!(" page {page} at {from} {len} {value:x}");
                    bytes = bytes.forge(page, scribble);
                }
            }
            use_everything(&bytes.device(), &blobs, &what);
        }
    }
}

#[test]
fn a_damaged_superblock_never_means_an_older_volume() {
    for data_checksums in [false, true] {
        let device = formatted_with(VOLUME_BYTES, data_checksums);
        let engine = open(&device);
        let id = new_blob(&engine, 5000, 1);
        close(engine);
        let device = device.reopen(device.image());
        let engine = open(&device);
        write(&engine, id, 5000, &pattern(5000, 2)).unwrap();
        sync(&engine, id).unwrap();
        drop_dead(engine);
        for page in [0, 1] {
            let damaged = Bytes::of(&device)
                .flip(page, |bytes| bytes[100] ^= 1)
                .device();
            let engine = open(&damaged);
            assert_eq!(read(&engine, id).unwrap().len(), 10_000, "page {page}");
            close(engine);
        }
    }
}

#[test]
fn a_writer_does_not_hear_of_another_files_failed_write_back() {
    for data_checksums in [false, true] {
        let device = formatted_with(VOLUME_BYTES, data_checksums);
        let engine = open(&device);
        let (bad, good) = (new_blob(&engine, 0, 1), new_blob(&engine, 0, 2));
        device.inject(io_error(FaultOn::Write).within(DATA));
        // More than the third of the cache from which on writers have to write back.
        for piece in 0..7 {
            write(&engine, bad, piece << 20, &pattern(1 << 20, 3)).unwrap();
        }
        write(&engine, good, 0, &pattern(5000, 4)).unwrap();
        assert_eq!(errno(sync(&engine, bad)), Errno::IO);
        device.clear_faults();
        sync(&engine, good).unwrap();
        sync(&engine, bad).unwrap();
        assert!(read(&engine, good).unwrap() == pattern(5000, 4));
        close(engine);
    }
}

/// Truncation dropped dirty pages and published the new size before the first step that can fail.
#[test]
fn a_truncation_or_deletion_that_fails_has_lost_nothing() {
    for data_checksums in [false, true] {
        let device = formatted_with(VOLUME_BYTES, data_checksums);
        let engine = open(&device);
        let id = new_blob(&engine, 10_000, 1);
        write(&engine, id, 10_000, &pattern(90_000, 2)).unwrap();
        let content = read(&engine, id).unwrap();
        device.inject(io_error(FaultOn::Write).within(RING).times(1));
        let other = engine.run(|store| async { create(store).await }).unwrap();
        assert_eq!(errno(sync(&engine, other)), Errno::IO);
        for size in [0, 5_000, 50_000, 200_000] {
            let result = engine.run(|store| async {
                let blob = store.blob(id).await?;
                store.resize(&blob, size).await
            });
            assert_eq!(errno(result), Errno::ROFS);
            assert!(read(&engine, id).unwrap() == content, "{size}");
        }
        let result = engine.run(|store| async { store.delete(id).await });
        assert_eq!(errno(result), Errno::ROFS);
        assert!(read(&engine, id).unwrap() == content);
        drop_dead(engine);
    }
}

/// A blob each second page of which is there, in several leaves of its map; the volume is closed.
fn scattered_blob(device: &Arc<FaultDevice>) -> BlobId {
    let engine = open(device);
    let made = engine.run(|store| async {
        let id = create(store).await?;
        let blob = store.blob(id).await?;
        for page in 0..1500 {
            (store.write(&blob, page * 2 * PAGE, &pattern(4096, page))).await?;
        }
        Ok(id)
    });
    close(engine);
    made.unwrap()
}

/// The second attempt saw the new size and found nothing to cut off: frames of freed pages stayed,
/// and the pages were given out again while redo records still named them.
#[test]
fn a_truncation_that_failed_half_way_is_finished_by_the_next_one() {
    for data_checksums in [false, true] {
        let device = formatted_with(VOLUME_BYTES, data_checksums);
        let id = scattered_blob(&device);
        let engine = open(&device);
        let resize = |size| {
            engine.run(|store| async {
                let blob = store.blob(id).await?;
                store.resize(&blob, size).await
            })
        };
        // Only the first leaf of the map is in memory, and some data behind it.
        let mut back = [0; 4096];
        for page in [0, 2, 4, 200] {
            engine
                .run(|store| async {
                    let blob = store.blob(id).await?;
                    store.read(&blob, page * PAGE, &mut back).await
                })
                .unwrap();
        }
        write(&engine, id, 3 * PAGE, &pattern(100, 7)).unwrap();
        device.inject(io_error(FaultOn::Read).within(DATA));
        assert_eq!(errno(resize(PAGE)), Errno::IO);
        device.clear_faults();
        // The rest of it must not become visible.
        assert_eq!(errno(write(&engine, id, 300 * PAGE, b"x")), Errno::IO);
        assert_eq!(read(&engine, id).unwrap(), pattern(4096, 0));
        resize(PAGE).unwrap();
        resize(1000 * PAGE).unwrap();
        let back = read(&engine, id).unwrap();
        assert_eq!(back.len() as u64, 1000 * PAGE);
        assert!(back[..4096] == pattern(4096, 0));
        assert!(back[4096..].iter().all(|byte| *byte == 0));
        assert_eq!(slot_of(&engine, id).allocated_pages, 1);
        let device = cut(&device, engine);
        let engine = open(&device);
        assert_clean(&engine);
        close(engine);
    }
}

/// Dirty pages behind the place where the truncation had stopped were written over the old content,
/// before the truncation was durable: with data checksums, synced content was unreadable after a
/// power cut.
#[test]
fn a_truncation_or_deletion_that_failed_half_way_keeps_what_a_power_cut_may_bring_back() {
    for (data_checksums, delete) in [(false, false), (false, true), (true, false), (true, true)] {
        let device = formatted_with(VOLUME_BYTES, data_checksums);
        let id = scattered_blob(&device);
        let engine = open(&device);
        // The first and the last leaf of the map are in memory, those between aren't.
        let mut back = [0; 4096];
        engine
            .run(|store| async {
                let blob = store.blob(id).await?;
                store.read(&blob, 0, &mut back).await
            })
            .unwrap();
        const DIRTY: Range<u64> = 2900..2920;
        let dirty = vec![7; (DIRTY.end - DIRTY.start) as usize * 4096];
        write(&engine, id, DIRTY.start * PAGE, &dirty).unwrap();
        device.inject(io_error(FaultOn::Read).within(DATA));
        let cut = engine.run(|store| async {
            if delete {
                store.delete(id).await
            } else {
                store.resize(&store.blob(id).await?, PAGE).await
            }
        });
        assert_eq!(errno(cut), Errno::IO);
        device.clear_faults();
        let written = engine.run(|store| async {
            let blob = store.blob(id).await?;
            store.write_back(&blob).await
        });
        written.unwrap();
        // All that was written to the device got there.
        let image = device.power_cut_with(|_, _| true);
        drop_dead(engine);
        let engine = open(&device.reopen(image));
        let content = engine.run(|store| async {
            let blob = store.blob(id).await?;
            let mut content = vec![0; blob.size() as usize];
            store.read(&blob, 0, &mut content).await?;
            Ok(content)
        });
        let content = content.unwrap();
        for (page, content) in (0..).zip(content.chunks(4096)) {
            let old = match page % 2 {
                0 => pattern(4096, page / 2),
                _ => vec![0; 4096],
            };
            let is_dirty = DIRTY.contains(&page) && content.iter().all(|byte| *byte == 7);
            assert!(is_dirty || *content == old[..content.len()], "page {page}");
        }
        assert_clean(&engine);
        close(engine);
    }
}

/// Not even the parts of pages at its edges, which are in the cache.
#[test]
fn zeroing_or_punching_a_range_that_fails_before_its_pages_changes_nothing() {
    for data_checksums in [false, true] {
        for punch in [false, true] {
            let device = formatted_with(VOLUME_BYTES, data_checksums);
            let engine = open(&device);
            // Its pages have live bytes: small data goes through the journal.
            let id = new_blob(&engine, 6000, 1);
            if punch {
                // This much goes home before anything is punched.
                write(&engine, id, 8192, &pattern(65_536, 2)).unwrap();
            }
            let before = read(&engine, id).unwrap();
            device.inject(io_error(FaultOn::Write));
            device.inject(io_error(FaultOn::Flush));
            let result = engine.run(|store| async {
                let blob = store.blob(id).await?;
                if punch {
                    store.punch(&blob, 0..5000).await
                } else {
                    (store.zero_range(&blob, 0..5000, AllocateMode::KeepSize)).await
                }
            });
            assert_eq!(errno(result), Errno::IO);
            assert!(read(&engine, id).unwrap() == before, "punch {punch}");
            drop_dead(engine);
        }
    }
}

#[test]
fn a_page_is_read_though_those_that_would_be_read_ahead_cannot_be() {
    let device = formatted(VOLUME_BYTES);
    let engine = open(&device);
    let id = new_blob(&engine, 1 << 20, 1);
    close(engine);
    let engine = open(&device);
    let read = |page: u64| {
        engine.run(|store| async move {
            let blob = store.blob(id).await?;
            store.read(&blob, page * PAGE, &mut [0; PAGE_BYTES]).await
        })
    };
    read(1).unwrap();
    let before = device.faults();
    device.inject(io_error(FaultOn::Read).within(DATA).times(1));
    read(2).unwrap(); // eight pages at first
    assert_eq!(device.faults(), before + 1);
    device.inject(io_error(FaultOn::Read).within(DATA));
    assert_eq!(errno(read(100)), Errno::IO);
    drop_dead(engine);
}

#[test]
fn zeroing_a_range_without_space_for_it_changes_nothing() {
    for data_checksums in [false, true] {
        let device = formatted_with(VOLUME_BYTES, data_checksums);
        let engine = open(&device);
        let id = new_blob(&engine, 100_000, 1);
        let result = engine.run(|store| async {
            let blob = store.blob(id).await?;
            (store.zero_range(&blob, 0..1 << 30, AllocateMode::Extend)).await
        });
        assert_eq!(errno(result), Errno::NOSPC);
        assert!(read(&engine, id).unwrap() == pattern(100_000, 1));
        let mut expected = pattern(100_000, 1);
        for (from, to) in [(10, 20), (5_000, 30_000), (8192, 12288), (99_000, 100_000)] {
            expected[from..to].fill(0);
            engine
                .run(|store| async {
                    let blob = store.blob(id).await?;
                    let range = from as u64..to as u64;
                    (store.zero_range(&blob, range, AllocateMode::KeepSize)).await?;
                    // Live bytes in its pages, for the next one.
                    store.write(&blob, 40_000, &[from as u8; 10]).await?;
                    store.append(&blob, b"x").await?;
                    store.sync(&blob, SyncKind::Data).await?;
                    store.resize(&blob, 100_000).await
                })
                .unwrap();
            expected[40_000..40_010].fill(from as u8);
            assert!(read(&engine, id).unwrap() == expected, "{from}..{to}");
        }
        let device = cut(&device, engine);
        let engine = open(&device);
        // The last truncation was not synced.
        assert!(read(&engine, id).unwrap()[..100_000] == expected);
        assert_clean(&engine);
        close(engine);
    }
}

#[test]
fn slots_with_fields_that_cannot_be_are_refused() {
    let device = formatted(VOLUME_BYTES);
    let engine = open(&device);
    let id = new_blob(&engine, 50_000, 1);
    close(engine);
    let damages: [fn(&mut Slot); 4] = [
        |slot| slot.size = u64::MAX / 2,
        |slot| slot.valid_size = slot.size + 1,
        |slot| slot.map_kind = 77,
        |slot| slot.map_depth = 200,
    ];
    for damage in damages {
        let device = Bytes::of(&device).forge_slot(id.slot, damage).device();
        let engine = open(&device);
        assert_eq!(errno(read(&engine, id)), Errno::UCLEAN);
        assert_eq!(errno(write(&engine, id, 0, b"x")), Errno::UCLEAN);
        drop_dead(engine);
    }
}
