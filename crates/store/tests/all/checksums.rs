//! Volumes with data checksums: only the device's own changes are errors, and overwritten content
//! stays until a commit. The simulator tests power cuts and rot.

use crate::rig;
use crate::rig::{
    Bytes, PAGE, assert_clean, check, close, create, cut, drop_dead, engine_options, format_as,
    formatted_with, new_blob, open, pattern, slot_of,
};
use adit_base::hash::HashKey;
use adit_base::random::Prng;
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_block::{Device, FaultConfig, FaultDevice, FaultEffect, FaultOn, FaultRule};
use adit_reactor::Engine;
use adit_reactor::sync::join_all;
use adit_store::format::{
    CHECKSUM_PAGES, CHECKSUMS_PER_PAGE, ChecksumPage, EXTENT_UNWRITTEN, GROUP_PAGES, MAP_EXTENTS,
    Page, PageKind, RawExtent, Slot,
};
use adit_store::{
    AllocateMode, BlobId, FindingKind, Findings, MkfsOptions, NameEntry, NameLeaves, NameTarget,
    RepairOptions, Store, StoreOptions, Survive, SyncKind,
};
use std::pin::Pin;
use std::sync::Arc;
use zerocopy::FromBytes;

const MIB: u64 = 1 << 20;
const VOLUME_BYTES: u64 = 32 * MIB;
/// Map page of the first group, behind the smallest ring, which mkfs chooses for such volumes.
const FIRST_GROUP: u64 = 2 + 1024 + 1;

/// A volume whose data has checksums.
fn summed(size_bytes: u64) -> Arc<FaultDevice> {
    formatted_with(size_bytes, true)
}

fn overwrite(engine: &Arc<Engine<Store>>, id: BlobId, offset: u64, data: &[u8]) {
    let written = engine.run(|store| async {
        let blob = store.blob(id).await?;
        store.write(&blob, offset, data).await?;
        store.sync(&blob, SyncKind::Data).await
    });
    written.unwrap();
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Cached,
    Direct,
}

fn read(
    engine: &Arc<Engine<Store>>,
    id: BlobId,
    how: How,
    offset: u64,
    len: usize,
) -> Result<Vec<u8>> {
    engine.run(|store| async {
        let blob = store.blob(id).await?;
        let mut back = vec![0; len];
        let count = match how {
            How::Cached => store.read(&blob, offset, &mut back).await?,
            How::Direct => store.read_direct(&blob, offset, &mut back).await?,
        };
        back.truncate(count);
        Ok(back)
    })
}

/// All of a blob, a page at a time, without unreadable pages.
fn read_pages(engine: &Arc<Engine<Store>>, id: BlobId, pages: u64) -> Vec<Result<Vec<u8>>> {
    (0..pages)
        .map(|page| read(engine, id, How::Cached, page * PAGE, PAGE_BYTES))
        .collect()
}

/// Where the written pages of a blob are, whose map is in its slot.
fn homes(slot: &Slot) -> Vec<(u64, u64)> {
    assert_eq!(slot.map_kind, MAP_EXTENTS);
    let extents = slot
        .payload
        .chunks_exact(16)
        .take(slot.map_count.into())
        .map(|bytes| RawExtent::read_from_bytes(bytes).unwrap())
        .filter(|extent| extent.flags & EXTENT_UNWRITTEN == 0);
    extents
        .flat_map(|extent| {
            let home = extent.pages_and_physical >> 16;
            let pages = extent.pages_and_physical & 0xffff;
            (0..pages).map(move |page| (u64::from(extent.logical) + page, home + page))
        })
        .collect()
}

fn home(engine: &Arc<Engine<Store>>, id: BlobId, page: u64) -> u64 {
    let homes = homes(&slot_of(engine, id));
    homes.iter().find(|known| known.0 == page).unwrap().1
}

/// The page of checksums that a page of data has its own in, and which of them it is.
fn place_of(page: u64) -> (u64, usize) {
    let group = (page - FIRST_GROUP) / GROUP_PAGES;
    let offset = ((page - FIRST_GROUP) % GROUP_PAGES) as usize;
    let place = FIRST_GROUP + group * GROUP_PAGES + 1 + (offset / CHECKSUMS_PER_PAGE) as u64;
    (place, offset % CHECKSUMS_PER_PAGE)
}

fn stored_sum(bytes: &Bytes, page: u64) -> u32 {
    let (place, index) = place_of(page);
    let content = bytes.page(place);
    assert_eq!(content[5], PageKind::Checksums as u8, "page {place}");
    ChecksumPage::read_from_bytes(&content).unwrap().sums[index]
}

/// Closes the volume; after that all data of these blobs has its checksum.
fn close_and_verify(
    device: &Arc<FaultDevice>,
    engine: Arc<Engine<Store>>,
    blobs: &[BlobId],
) -> Bytes {
    let slots: Vec<Slot> = blobs.iter().map(|id| slot_of(&engine, *id)).collect();
    close(engine);
    let bytes = Bytes::of(device);
    for (id, slot) in blobs.iter().zip(&slots) {
        let valid_pages = slot.valid_size.div_ceil(PAGE);
        for (page, home) in homes(slot) {
            if page < valid_pages {
                let right = bytes.volume.data_checksum(home, &bytes.page(home));
                let what = format!("page {page} of blob {}, at {home}", id.slot);
                assert_eq!(stored_sum(&bytes, home), right, "{what}");
            }
        }
    }
    bytes
}

/// It is EIO, and says where.
fn assert_mismatch(error: &Error, id: BlobId, page: u64, what: &str) {
    let text = error.to_string();
    assert_eq!(error.errno(), Errno::IO, "{what}: {text}");
    let place = format!("blob {} at offset {} (", id.slot, page * PAGE);
    assert!(text.contains(&place), "{what}: {text}");
}

/// Blobs without names.
struct Nameless;

impl NameLeaves for Nameless {
    fn range(&self, _: &HashKey, _: &Page, _: u64, _: u64) -> Option<(u64, u64)> {
        None
    }

    fn each(&self, _: &Page, _: &mut dyn FnMut(&[u8], NameTarget)) {}

    fn pack(&self, _: &HashKey, _: Vec<NameEntry>, _: u64) -> Vec<(u64, Box<Page>)> {
        Vec::new()
    }
}

pub(crate) fn repair(device: &Arc<FaultDevice>) -> (Arc<Engine<Store>>, Findings) {
    let device: Arc<dyn Device> = device.clone();
    let mut findings = Findings::default();
    let told = &mut findings;
    let engine = Engine::start(device, engine_options(), |reactor| async move {
        let options = StoreOptions {
            survive: Survive::Off,
            ..StoreOptions::default()
        };
        let how = RepairOptions {
            names: &Nameless,
            progress: &mut |_, _| (),
            keep_abandoned: false,
        };
        let (store, found) = Store::repair(reactor, &options, how).await?;
        *told = found;
        Ok(store)
    });
    (engine.unwrap(), findings)
}

#[test]
fn a_page_that_is_not_what_was_written_is_an_error_and_its_neighbours_are_readable() {
    const PAGES: u64 = 40;
    const BAD: u64 = 20;
    let len = (PAGES * PAGE) as usize;
    let device = summed(VOLUME_BYTES);
    let engine = open(&device);
    let id = new_blob(&engine, len, 1);
    let place = home(&engine, id, BAD);
    close(engine);
    let older = Bytes::of(&device).page(place);
    // Little enough to go through the journal, so the page stays where it is.
    let engine = open(&device);
    let mut right = pattern(len, 1);
    let change = pattern(PAGE_BYTES, 2);
    right[(BAD * PAGE) as usize..][..PAGE_BYTES].copy_from_slice(&change);
    overwrite(&engine, id, BAD * PAGE, &change);
    assert_eq!(home(&engine, id, BAD), place);
    let sound = close_and_verify(&device, engine, &[id]);
    let neighbour = sound.page(place + 1);
    type Damage = Box<dyn Fn(&mut [u8])>;
    let damages: [(&str, Damage); 4] = [
        ("a flipped bit", Box::new(|bytes| bytes[1000] ^= 8)),
        (
            "another page",
            Box::new(move |bytes| bytes.copy_from_slice(&neighbour)),
        ),
        (
            "older content",
            Box::new(move |bytes| bytes.copy_from_slice(&older)),
        ),
        ("zeroes", Box::new(|bytes| bytes.fill(0))),
    ];
    let part = |from: u64, len: u64| &right[from as usize..(from + len) as usize];
    for (what, damage) in damages {
        let damaged = Bytes::of(&device).flip(place, damage).device();
        // With one request, from neighbour to neighbour, and from within a page.
        for how in [How::Cached, How::Direct] {
            let what = format!("{what}, {how:?}");
            let engine = open(&damaged);
            for offset in [0, (BAD - 2) * PAGE, (BAD - 2) * PAGE + 7, BAD * PAGE + 512] {
                let all = read(&engine, id, how, offset, 10 * PAGE_BYTES + 100);
                match offset {
                    0 => assert!(all.unwrap() == part(0, 10 * PAGE + 100), "{what}"),
                    _ => assert_mismatch(&all.unwrap_err(), id, BAD, &what),
                }
            }
            for (from, to) in [(0, BAD * PAGE), ((BAD + 1) * PAGE, PAGES * PAGE)] {
                let len = to - from;
                let back = read(&engine, id, how, from, len as usize).unwrap();
                assert!(back == part(from, len), "{what}");
                let back = read(&engine, id, how, from + 9, len as usize - 20).unwrap();
                assert!(back == part(from + 9, len - 20), "{what}");
            }
            drop_dead(engine);
        }
        // Read ahead, together with pages that are asked for.
        let engine = open(&damaged);
        for (page, back) in (0..).zip(read_pages(&engine, id, PAGES)) {
            match back {
                Ok(back) => assert!(back == part(page * PAGE, PAGE) && page != BAD, "{what}"),
                Err(error) => {
                    assert_mismatch(&error, id, BAD, what);
                    assert_eq!(page, BAD);
                }
            }
        }
        let written = engine.run(|store| async {
            let blob = store.blob(id).await?;
            store.write(&blob, BAD * PAGE + 5, b"a part of it").await
        });
        assert_mismatch(&written.unwrap_err(), id, BAD, what);
        // Whole pages need nothing of it.
        overwrite(&engine, id, BAD * PAGE, part(BAD * PAGE, PAGE));
        assert!(read(&engine, id, How::Cached, 0, len).unwrap() == right);
        assert_clean(&engine);
        let bytes = close_and_verify(&damaged, engine, &[id]);
        let engine = open(&bytes.device());
        assert!(read(&engine, id, How::Direct, 0, len).unwrap() == right);
        close(engine);
    }
}

#[test]
fn after_a_close_all_data_has_its_checksum_however_it_was_written() {
    let device = summed(VOLUME_BYTES);
    let engine = open(&device);
    let blobs: Vec<BlobId> = [0, 100, 5000, 300_000]
        .iter()
        .map(|len| new_blob(&engine, *len, 3))
        .collect();
    for (round, id) in (0..).zip(&blobs) {
        let written = engine.run(|store| async {
            let blob = store.blob(*id).await?;
            store.append(&blob, &pattern(100, round)).await?;
            store.sync(&blob, SyncKind::Data).await?;
            store
                .allocate(&blob, 400_000..420_000, AllocateMode::KeepSize)
                .await?;
            store.write(&blob, 410_000, &pattern(300, round)).await?;
            store.sync(&blob, SyncKind::Data).await?;
            let far = pattern(70_000, round);
            store.write(&blob, 500_000, &far).await?;
            store.sync(&blob, SyncKind::Data).await?;
            (store.write_atomic(&blob, &[(503_000, &far[..9000])])).await?;
            store.resize(&blob, 560_001).await?;
            store.checkpoint().await?;
            store.append(&blob, &pattern(50, round)).await?;
            store.sync(&blob, SyncKind::Data).await
        });
        written.unwrap();
    }
    assert_clean(&engine);
    let bytes = close_and_verify(&device, engine, &blobs);
    // And after a crash, as soon as it is closed again.
    let device = bytes.device();
    let engine = open(&device);
    for (round, id) in (0..).zip(&blobs) {
        overwrite(&engine, *id, 0, &pattern(150, round + 9));
        overwrite(&engine, *id, 510_000, &pattern(30_000, round + 9));
    }
    let device = cut(&device, engine);
    let engine = open(&device);
    for (round, id) in (0..).zip(&blobs) {
        let back = read(&engine, *id, How::Direct, 510_000, 30_000).unwrap();
        assert!(back == pattern(30_000, round + 9));
    }
    close_and_verify(&device, engine, &blobs);
}

#[test]
fn overwriting_changes_no_page_that_is_mapped_before_its_commit() {
    const LEN: usize = 200_000;
    let mut random = Prng::new(4);
    let device = summed(VOLUME_BYTES);
    let engine = open(&device);
    let id = new_blob(&engine, LEN, 1);
    let mut right = pattern(LEN, 1);
    for round in 0..60u64 {
        engine
            .run(|store| async { store.checkpoint().await })
            .unwrap();
        let mapped = homes(&slot_of(&engine, id));
        let before = Bytes::of(&device);
        let old = right.clone();
        let kind = random.below(4);
        for piece in 0..1 + random.below(3) {
            let len = *random.pick(&[1, 300, 4096, 9000, 40_960]);
            let mut offset = random.index(LEN - len);
            if kind == 3 {
                offset = offset / PAGE_BYTES * PAGE_BYTES;
            }
            let data = pattern(len, round * 10 + piece);
            right[offset..offset + len].copy_from_slice(&data);
            let offset = offset as u64;
            let written = engine.run(|store| async {
                let blob = store.blob(id).await?;
                if kind < 2 {
                    store.write(&blob, offset, &data).await?;
                    store.write_back(&blob).await
                } else {
                    store.write_direct(&blob, offset, &data).await
                }
            });
            written.unwrap();
        }
        let after = Bytes::of(&device);
        for (page, home) in mapped {
            let same = before.page(home) == after.page(home);
            assert!(same, "round {round}: page {page}, at {home}");
        }
        if round % 10 == 9 {
            // So that not even a power cut that keeps all that was written changes it.
            let copy = after.device();
            let engine = open(&copy);
            assert!(read(&engine, id, How::Cached, 0, LEN).unwrap() == old);
            drop_dead(engine);
        }
    }
    let synced = engine.run(|store| async {
        let blob = store.blob(id).await?;
        store.sync(&blob, SyncKind::Data).await
    });
    synced.unwrap();
    let device = cut(&device, engine);
    let engine = open(&device);
    assert!(read(&engine, id, How::Cached, 0, LEN).unwrap() == right);
    assert_clean(&engine);
    close_and_verify(&device, engine, &[id]);
}

#[test]
fn a_direct_write_that_is_not_aligned_is_readable_at_once_and_after_a_crash() {
    let device = summed(VOLUME_BYTES);
    let engine = open(&device);
    let id = new_blob(&engine, 100_000, 1);
    let mut right = pattern(100_000, 1);
    for (offset, len) in [(1, 1), (4000, 200), (8193, 40_000), (90_001, 30_000)] {
        let data = pattern(len, offset as u64);
        right.resize(right.len().max(offset + len), 0);
        right[offset..offset + len].copy_from_slice(&data);
        let written = engine.run(|store| async {
            let blob = store.blob(id).await?;
            store.write_direct(&blob, offset as u64, &data).await
        });
        written.unwrap();
        for how in [How::Cached, How::Direct] {
            assert!(read(&engine, id, how, 0, 1 << 20).unwrap() == right);
        }
    }
    let synced = engine.run(|store| async {
        let blob = store.blob(id).await?;
        store.sync(&blob, SyncKind::Data).await
    });
    synced.unwrap();
    let device = cut(&device, engine);
    let engine = open(&device);
    assert!(read(&engine, id, How::Direct, 0, 1 << 20).unwrap() == right);
    let bytes = close_and_verify(&device, engine, &[id]);
    let engine = open(&bytes.device());
    assert!(read(&engine, id, How::Direct, 0, 1 << 20).unwrap() == right);
    close(engine);
}

#[test]
fn a_full_volume_can_be_overwritten_through_the_journal() {
    let device = summed(12 * MIB);
    let mut engine = open(&device);
    let id = engine.run(|store| async { create(store).await }).unwrap();
    let mut len = 0;
    // Pages reserved for the map are free again after a checkpoint.
    for chunk in [MIB as usize, 64 << 10, PAGE_BYTES, PAGE_BYTES, PAGE_BYTES] {
        let more = |at: usize| {
            engine.run(|store| async {
                let blob = store.blob(id).await?;
                store.write(&blob, at as u64, &pattern(chunk, 7)).await
            })
        };
        let full = loop {
            match more(len) {
                Ok(()) => len += chunk,
                Err(error) => break error.errno(),
            }
        };
        assert_eq!(full, Errno::NOSPC);
        let settled = engine.run(|store| async {
            store.sync_all().await?;
            store.checkpoint().await
        });
        settled.unwrap();
    }
    let mut right = read(&engine, id, How::Cached, 0, len).unwrap();
    assert!(right.len() == len && len > 6 << 20, "{len}");
    let mut device = device;
    for round in 0..3u64 {
        engine
            .run(|store| async { store.checkpoint().await })
            .unwrap();
        let mapped = homes(&slot_of(&engine, id));
        let before = Bytes::of(&device);
        let from = round as usize * 200_001;
        let data = pattern(400_000, round);
        right[from..from + data.len()].copy_from_slice(&data);
        overwrite(&engine, id, from as u64, &data);
        let after = Bytes::of(&device);
        assert_eq!(homes(&slot_of(&engine, id)), mapped);
        let unchanged = |(_, home): &&(u64, u64)| before.page(*home) == after.page(*home);
        assert_eq!(mapped.iter().filter(unchanged).count(), mapped.len());
        let refused = engine.run(|store| async {
            let blob = store.blob(id).await?;
            store.append(&blob, &[1; 2 * PAGE_BYTES]).await
        });
        assert_eq!(refused.unwrap_err().errno(), Errno::NOSPC);
        // By turns after a power cut and after a close.
        if round == 1 {
            device = close_and_verify(&device, engine, &[id]).device();
        } else {
            device = cut(&device, engine);
        }
        engine = open(&device);
        for how in [How::Direct, How::Cached] {
            assert!(read(&engine, id, how, 0, len).unwrap() == right, "{round}");
        }
        assert_clean(&engine);
    }
    close_and_verify(&device, engine, &[id]);
}

#[test]
fn a_volume_without_checksums_has_no_pages_of_them() {
    let mut capacity = Vec::new();
    for data_checksums in [false, true] {
        let device = formatted_with(VOLUME_BYTES, data_checksums);
        let engine = open(&device);
        let free = engine.run(|store| async { Ok(store.state().await?.free_pages) });
        let info = engine.run(|store| async { store.info().await }).unwrap();
        assert_eq!(info.data_checksums, data_checksums);
        capacity.push(free.unwrap());
        let id = new_blob(&engine, 300_000, 1);
        overwrite(&engine, id, 5000, &pattern(200_000, 2));
        let in_place = home(&engine, id, 10);
        overwrite(&engine, id, 0, &pattern(300_000, 3));
        assert_eq!(in_place == home(&engine, id, 10), !data_checksums);
        close(engine);
        let bytes = Bytes::of(&device);
        let of_checksums = (FIRST_GROUP..VOLUME_BYTES / PAGE).filter(|page| {
            let content = bytes.page(*page);
            let crc = u32::from_le_bytes([content[0], content[1], content[2], content[3]]);
            content[5] == PageKind::Checksums as u8
                && bytes.volume.checksum(*page, &content, 0) == crc
        });
        let expected = if data_checksums { CHECKSUM_PAGES } else { 0 };
        assert_eq!(of_checksums.count() as u64, expected);
    }
    // The capacity without checksums.
    assert_eq!(capacity[0], VOLUME_BYTES / PAGE - FIRST_GROUP - 1);
    assert_eq!(capacity[1], capacity[0] - CHECKSUM_PAGES);
}

/// The last group may end anywhere, even in its own head, which is no group then.
#[test]
fn a_volume_whose_last_group_was_short_can_grow() {
    let group = FIRST_GROUP + GROUP_PAGES;
    let first = FIRST_GROUP + 5000;
    for pages in [
        first,
        group,
        group + 1,
        group + 10,
        group + 17,
        group + 18,
        group + 500,
    ] {
        let device = rig::device(pages * PAGE);
        let options = MkfsOptions {
            data_checksums: true,
            journal_bytes: Some(1024 * PAGE),
            ..MkfsOptions::default()
        };
        format_as(&device, options);
        let engine = open(&device);
        let allocated = engine.run(|store| async {
            // Takes most of the space, so that new data is at the end and behind it.
            let blob = store.blob(create(store).await?).await?;
            let free = store.state().await?.free_pages - 400;
            let range = 0..free * PAGE;
            store.allocate(&blob, range, AllocateMode::KeepSize).await
        });
        allocated.unwrap();
        let old = new_blob(&engine, 300_000, 1);
        for size in [pages + 20, pages + 900, pages + GROUP_PAGES] {
            let grown = engine.run(|store| async { store.grow(size * PAGE).await });
            grown.unwrap();
            assert_clean(&engine);
        }
        let new = new_blob(&engine, 8 << 20, 2);
        let last = homes(&slot_of(&engine, new)).last().unwrap().1;
        assert!(last >= pages, "{pages}: it ends at {last}");
        overwrite(&engine, old, 1000, &pattern(200_000, 3));
        let mut right = pattern(300_000, 1);
        right[1000..201_000].copy_from_slice(&pattern(200_000, 3));
        assert_clean(&engine);
        let device = cut(&device, engine);
        let engine = open(&device);
        assert_clean(&engine);
        close_and_verify(&device, engine, &[old, new]);
        // Also for pages behind the old end.
        let damaged = Bytes::of(&device)
            .flip(last, |bytes| bytes[9] ^= 1)
            .device();
        let engine = open(&damaged);
        assert!(read(&engine, old, How::Direct, 0, 300_000).unwrap() == right);
        let back = read(&engine, new, How::Direct, 0, 8 << 20);
        assert_mismatch(
            &back.unwrap_err(),
            new,
            (8 << 20) / PAGE - 1,
            "behind the end",
        );
        close(engine);
    }
}

#[test]
fn a_damaged_page_of_checksums_costs_its_data_until_a_repair_makes_it_anew() {
    const PAGES: u64 = 3000;
    let len = (PAGES * PAGE) as usize;
    let device = summed(VOLUME_BYTES);
    let engine = open(&device);
    let id = new_blob(&engine, len, 1);
    let right = pattern(len, 1);
    let all = homes(&slot_of(&engine, id));
    close(engine);
    let place = FIRST_GROUP + 2;
    let (bad, good): (Vec<_>, Vec<_>) = all.iter().partition(|known| place_of(known.1).0 == place);
    assert_eq!(bad.len(), CHECKSUMS_PER_PAGE);
    assert!(good.len() > 1000);
    type Damage = fn(&mut [u8]);
    let damages: [(&str, Damage); 3] = [
        ("noise", |bytes| Prng::new(1).fill(&mut bytes[100..3000])),
        ("zeroes", |bytes| bytes.fill(0)),
        ("a header", |bytes| bytes[..32].fill(7)),
    ];
    for (what, damage) in damages {
        let damaged = Bytes::of(&device).flip(place, damage).device();
        let engine = open(&damaged);
        for how in [How::Cached, How::Direct] {
            for (pages, damaged) in [(&bad, true), (&good, false)] {
                for (page, home) in pages.iter().step_by(97) {
                    let offset = page * PAGE;
                    match read(&engine, id, how, offset, PAGE_BYTES) {
                        Ok(back) => {
                            assert!(!damaged, "{what}: page {home} was read");
                            assert!(back == right[offset as usize..][..PAGE_BYTES]);
                        }
                        Err(error) => {
                            let text = error.to_string();
                            assert!(damaged, "{what}: page {home}: {text}");
                            assert_eq!(error.errno(), Errno::UCLEAN, "{what}: {text}");
                            assert!(text.contains(&format!("page {place} ")), "{what}: {text}");
                        }
                    }
                }
            }
        }
        let report = check(&engine);
        assert_eq!(report.problems.len(), 1, "{what}: {report:#?}");
        let name = format!("page {place} (checksums of data in group 0)");
        assert_eq!(report.problems[0].place, name, "{what}");
        // It can be closed, and other data be written.
        let other = good[500].0 * PAGE;
        overwrite(&engine, id, other, &right[other as usize..][..PAGE_BYTES]);
        close(engine);
        let (engine, findings) = repair(&damaged);
        assert_eq!(findings.list.len(), 1, "{what}: {:#?}", findings.list);
        assert_eq!(findings.list[0].kind, FindingKind::Checksums);
        assert_eq!(findings.list[0].page, Some(place));
        assert_clean(&engine);
        assert!(read(&engine, id, How::Direct, 0, len).unwrap() == right);
        close(engine);
        // Undamaged pages kept their checksums.
        let bytes = Bytes::of(&damaged);
        for (_, home) in &all {
            assert_eq!(stored_sum(&bytes, *home) == 0, place_of(*home).0 == place);
        }
        let (engine, findings) = repair(&damaged);
        assert!(findings.list.is_empty(), "{what}: {:#?}", findings.list);
        close(engine);
    }
    // Deleting needs none of them.
    let damaged = Bytes::of(&device).flip(place, |bytes| bytes.fill(0));
    let engine = open(&damaged.device());
    (engine.run(|store| async { store.delete(id).await })).unwrap();
    let report = check(&engine);
    assert_eq!((report.problems.len(), report.data_pages), (1, 0));
    close(engine);
    // One bit is corrected: then nothing is forgotten, and damaged data stays damaged.
    let damaged = Bytes::of(&device)
        .flip(place, |bytes| bytes[2000] ^= 4)
        .flip(bad[7].1, |bytes| bytes[0] ^= 1)
        .device();
    let (engine, findings) = repair(&damaged);
    assert_eq!(findings.list.len(), 1, "{:#?}", findings.list);
    assert_eq!(findings.list[0].kind, FindingKind::Checksums);
    assert_clean(&engine);
    for page in read_pages(&engine, id, PAGES).into_iter().zip(0..) {
        match page {
            (Ok(_), page) => assert!(page != bad[7].0),
            (Err(error), page) => assert_mismatch(&error, id, page, "healed"),
        }
    }
    close(engine);
}

#[test]
fn what_can_not_be_written_where_checksums_are_damaged_goes_elsewhere() {
    const LEN: usize = 100 * PAGE_BYTES;
    let device = summed(128 * MIB);
    let engine = open(&device);
    let id = new_blob(&engine, LEN, 1);
    let (place, _) = place_of(home(&engine, id, 99));
    close(engine);
    let damaged = Bytes::of(&device).flip(place, |bytes| bytes.fill(9));
    let engine = open(&damaged.device());
    let right = pattern(LEN, 2);
    let content = right.clone();
    let (first, second, new) = engine
        .run(move |store| async move {
            let new = create(store).await?;
            let blob = store.blob(new).await?;
            store.write(&blob, 0, &content).await?;
            let first = store.sync(&blob, SyncKind::Data).await;
            Ok((first, store.sync(&blob, SyncKind::Data).await, new))
        })
        .unwrap();
    assert_eq!(first.unwrap_err().errno(), Errno::UCLEAN);
    second.unwrap();
    assert!(home(&engine, new, 0) > FIRST_GROUP + GROUP_PAGES);
    assert!(read(&engine, new, How::Direct, 0, LEN).unwrap() == right);
    close(engine);
}

/// The page in which the valid size lies may go through the journal, and home, with data behind it,
/// although no program writes to it: a direct read in flight met the new bytes, and took them for
/// damage.
#[test]
fn a_direct_read_of_the_last_page_stands_a_sync_of_what_follows() {
    let device = FaultDevice::new(FaultConfig {
        size_bytes: VOLUME_BYTES,
        volatile_cache: true,
        queued: true,
        ..FaultConfig::default()
    });
    format_as(
        &device,
        MkfsOptions {
            data_checksums: true,
            ..MkfsOptions::default()
        },
    );
    // Too much for the journal: it is written home.
    const LEN: usize = 12 * PAGE_BYTES;
    const TAIL: u64 = 11 * PAGE;
    let engine = open(&device);
    let id = new_blob(&engine, LEN, 1);
    // On the device the rest of the page stays as it was.
    let cut = engine.run(|store| async {
        let blob = store.blob(id).await?;
        store.resize(&blob, TAIL + 1000).await?;
        store.sync(&blob, SyncKind::All).await
    });
    cut.unwrap();
    let tail = home(&engine, id, 11);
    close(engine);
    let engine = open(&device);
    let delay = FaultEffect::Delay { polls: 2000 };
    let tail_bytes = tail * PAGE..(tail + 1) * PAGE;
    device.inject(
        FaultRule::new(FaultOn::Read, delay)
            .within(tail_bytes)
            .times(1),
    );
    let read = engine.run(|store| async {
        let blob = store.blob(id).await?;
        store.write(&blob, 20 * PAGE, &pattern(100, 2)).await?;
        let mut back = vec![0; 1000];
        let read = async {
            let count = store.read_direct(&blob, TAIL, &mut back).await?;
            assert_eq!(count, 1000);
            Ok(())
        };
        let sync = async {
            store.sync(&blob, SyncKind::Data).await?;
            store.checkpoint().await
        };
        let both: [Pin<Box<dyn Future<Output = Result<()>>>>; 2] = [Box::pin(read), Box::pin(sync)];
        join_all(both).await.into_iter().collect::<Result<()>>()?;
        Ok(back)
    });
    assert!(read.unwrap() == pattern(LEN, 1)[TAIL as usize..][..1000]);
    close(engine);
}

/// Zeroed pages were overwritten in place before the zeroing was durable: after a power cut their
/// synced content was unreadable.
#[test]
fn zeroed_pages_are_not_written_over_before_it_is_durable_that_they_are() {
    const LEN: usize = 24 * PAGE_BYTES;
    let device = summed(VOLUME_BYTES);
    let engine = open(&device);
    let id = new_blob(&engine, LEN, 1);
    let written = engine.run(|store| async {
        let blob = store.blob(id).await?;
        store
            .zero_range(&blob, 0..LEN as u64, AllocateMode::KeepSize)
            .await?;
        store.write(&blob, 0, &pattern(LEN, 2)).await?;
        store.write_back(&blob).await
    });
    written.unwrap();
    // All that was written to the device got there.
    let image = device.power_cut_with(|_, _| true);
    drop_dead(engine);
    let engine = open(&device.reopen(image));
    let content = read(&engine, id, How::Direct, 0, LEN).unwrap();
    for (page, content) in content.chunks_exact(PAGE_BYTES).enumerate() {
        let at = page * PAGE_BYTES..(page + 1) * PAGE_BYTES;
        let legal = [pattern(LEN, 1), vec![0; LEN], pattern(LEN, 2)];
        assert!(
            legal.iter().any(|legal| legal[at.clone()] == *content),
            "page {page}"
        );
    }
    assert_clean(&engine);
    close(engine);
}
