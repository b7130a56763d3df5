//! The checker: silent about sound volumes after any operations, and right about damaged ones.

use crate::rig;
use crate::rig::{
    Bytes, PAGE, assert_clean, check, close, create, drop_dead, formatted, open, pattern,
};
use adit_base::random::Prng;
use adit_base::{Errno, Result};
use adit_block::{Buffer, Device, Operation, Request};
use adit_reactor::Engine;
use adit_reactor::sync::join_all;
use adit_store::format::{
    BlobKind, EXTENT_UNWRITTEN, GroupMap, MAP_EXTENT_TREE, MAP_NAME_TREE, PageKind, RawExtent,
    Slot, StatePage,
};
use adit_store::node::Tree;
use adit_store::{AllocateMode, BlobId, CheckReport, Problem, Store, SyncKind, XattrMode};
use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// One blob of every sort, and the remains of a few.
struct Zoo {
    small: BlobId,
    /// Three leaves of extents.
    scattered: BlobId,
    attributes: BlobId,
    directory: BlobId,
}

fn populate(engine: &Arc<Engine<Store>>) -> Zoo {
    engine
        .run(|store| async {
            let small = create(store).await?;
            let blob = store.blob(small).await?;
            store.write(&blob, 0, &pattern(20_000, 1)).await?;

            let scattered = create(store).await?;
            let blob = store.blob(scattered).await?;
            for index in 0..600 {
                store.write(&blob, index * 2 * PAGE, b"x").await?;
            }
            store.sync(&blob, SyncKind::All).await?;

            let attributes = create(store).await?;
            store
                .xattr_set(attributes, b"user.a", b"value", XattrMode::Any)
                .await?;
            let blob = store.blob(attributes).await?;
            let range = 0..1 << 20;
            store.allocate(&blob, range, AllocateMode::KeepSize).await?;
            store.write(&blob, 300_000, &pattern(100_000, 2)).await?;
            store.punch(&blob, 310_000..350_000).await?;
            store.resize(&blob, 390_000).await?;

            let directory = store
                .transact(|txn| {
                    let mut slot = Slot::new_zeroed();
                    slot.kind = BlobKind::Directory as u8;
                    slot.map_kind = MAP_NAME_TREE;
                    let id = txn.create(slot)?;
                    let mut tree = Tree::create(txn, id.slot, PageKind::NameLeaf, 0)?;
                    let path = tree.descend(txn, 0)?;
                    tree.add_leaf(txn, &path, 1 << 40)?;
                    tree.save(&mut slot);
                    txn.put(id, slot)?;
                    Ok(id)
                })
                .await?;

            for seed in 0..30 {
                let id = create(store).await?;
                let blob = store.blob(id).await?;
                store.write(&blob, 0, &pattern(50_000, seed)).await?;
                if seed % 2 == 0 {
                    store.sync(&blob, SyncKind::Data).await?;
                }
                drop(blob);
                store.delete(id).await?;
            }
            Ok(Zoo {
                small,
                scattered,
                attributes,
                directory,
            })
        })
        .unwrap()
}

/// A closed volume with one blob of every sort.
fn zoo() -> (Bytes, Zoo, Slots) {
    let device = formatted(64 << 20);
    let engine = open(&device);
    let zoo = populate(&engine);
    engine
        .run(|store| async { store.sync_all().await })
        .unwrap();
    let slots = Slots {
        small: rig::slot_of(&engine, zoo.small),
        scattered: rig::slot_of(&engine, zoo.scattered),
        attributes: rig::slot_of(&engine, zoo.attributes),
    };
    close(engine);
    (Bytes::of(&device), zoo, slots)
}

struct Slots {
    small: Slot,
    scattered: Slot,
    attributes: Slot,
}

/// Checks a damaged volume that can be opened.
fn found(bytes: Bytes) -> CheckReport {
    let engine = open(&bytes.device());
    let report = check(&engine);
    drop_dead(engine);
    report
}

/// The problems at a place that begins with `place`.
fn at<'r>(report: &'r CheckReport, place: &str) -> &'r Problem {
    report
        .problems
        .iter()
        .find(|problem| problem.place.starts_with(place))
        .unwrap_or_else(|| panic!("nothing at {place}: {report:#?}"))
}

fn root(slot: &Slot) -> u64 {
    u64::from_le_bytes(slot.payload[..8].try_into().unwrap())
}

fn first_extent(slot: &Slot) -> RawExtent {
    RawExtent::read_from_bytes(&slot.payload[..16]).unwrap()
}

fn physical(extent: RawExtent) -> u64 {
    extent.pages_and_physical >> 16
}

#[test]
fn a_sound_volume_is_clean_while_mounted_after_a_crash_and_after_a_close() {
    let device = formatted(64 << 20);
    let engine = open(&device);
    assert_eq!(assert_clean(&engine).blobs, 0);
    populate(&engine);
    // With frees pending, and cached data that has no place yet.
    let report = assert_clean(&engine);
    assert_eq!(report.blobs, 4);
    assert!(
        report.data_pages > 600 && report.metadata_pages >= 9,
        "{report:?}"
    );
    assert_eq!(report.pages_used, report.data_pages + report.metadata_pages);
    assert_eq!(report.slots_damaged, 0);
    drop_dead(engine);
    let engine = open(&device);
    assert_eq!(assert_clean(&engine).pages_used, report.pages_used);
    close(engine);
    let engine = open(&device);
    let again = assert_clean(&engine);
    assert_eq!(again.pages_used, report.pages_used);
    let free = engine
        .run(|store| async { Ok(store.state().await?.free_pages) })
        .unwrap();
    assert_eq!(again.pages_free, free);
    close(engine);
}

#[test]
fn progress_never_goes_back_and_ends_at_its_total() {
    let (bytes, _, _) = zoo();
    let engine = open(&bytes.device());
    let mut steps = Vec::new();
    engine
        .run(|store| async {
            store
                .check(&mut |done, total| steps.push((done, total)))
                .await
        })
        .unwrap();
    assert!(steps.is_sorted() && steps.len() > 4, "{steps:?}");
    let (done, total) = *steps.last().unwrap();
    assert_eq!(done, total);
    close(engine);
}

#[test]
fn the_layer_above_sees_every_leaf_of_names_in_order_and_its_findings_are_reported() {
    let (bytes, zoo, _) = zoo();
    let engine = open(&bytes.device());
    let mut leaves = Vec::new();
    let report = engine
        .run(|store| async {
            store
                .check_with(&mut |_, _| {}, &mut |id, page| {
                    assert_eq!(page.0[5], PageKind::NameLeaf as u8);
                    leaves.push(id);
                    match leaves.len() {
                        2 => vec!["a name is misspelt".into()],
                        _ => Vec::new(),
                    }
                })
                .await
        })
        .unwrap();
    assert_eq!(leaves, [zoo.directory; 2]);
    assert_eq!(report.problems.len(), 1);
    assert_eq!(report.problems[0].what, "a name is misspelt");
    assert!(
        report.problems[0]
            .place
            .contains(&format!("blob {}.", zoo.directory.slot))
    );
    close(engine);
}

#[test]
fn a_flipped_byte_in_a_group_map_is_found_there() {
    let (bytes, _, _) = zoo();
    let map = bytes.state_page + 1;
    let report = found(bytes.flip(map, |bytes| bytes[2000] ^= 4));
    let problem = at(&report, &format!("the map of group 0 (page {map})"));
    assert!(problem.what.contains("checksum"), "{problem}");
}

#[test]
fn a_flipped_byte_in_a_slot_is_found_there_and_other_blobs_are_not_blamed() {
    let (bytes, zoo, _) = zoo();
    let address = zoo.scattered.slot;
    let offset = (address % 8) as usize * 512 + 200;
    let report = found(bytes.flip(address / 8, |bytes| bytes[offset] ^= 1));
    let problem = at(&report, &format!("slot {address} (page {})", address / 8));
    assert!(problem.what.contains("checksum"), "{problem}");
    assert_eq!((report.blobs, report.slots_damaged), (3, 1));
    for problem in &report.problems[1..] {
        assert!(problem.what.contains("nothing refers to them"), "{problem}");
        assert!(problem.consequence.contains("unreadable"), "{problem}");
    }
}

#[test]
fn a_flipped_byte_in_a_leaf_of_extents_is_found_there() {
    let (bytes, _, slots) = zoo();
    assert_eq!(
        (slots.scattered.map_kind, slots.scattered.map_depth),
        (MAP_EXTENT_TREE, 1)
    );
    // The root's second entry: key and child.
    let mut page = [0; 4096];
    let device = bytes.device();
    device
        .image()
        .read(root(&slots.scattered) * PAGE, &mut page);
    let leaf = u64::from_le_bytes(page[32 + 24..][..8].try_into().unwrap());
    let damaged = Bytes::of(&device).flip(leaf, |bytes| bytes[100] ^= 0x10);
    let report = found(damaged);
    let problem = at(&report, &format!("page {leaf} (map of blob"));
    assert!(problem.what.contains("checksum"), "{problem}");

    let foreign = Bytes::of(&device).forge(leaf, |bytes| bytes[8] ^= 1);
    let problem = at(&found(foreign), &format!("page {leaf} (map of blob")).clone();
    assert!(problem.what.contains("of the blob at slot"), "{problem}");

    let disordered = Bytes::of(&device).forge(leaf, |bytes| bytes.copy_within(64..80, 32));
    let problem = at(&found(disordered), &format!("page {leaf} (map of blob")).clone();
    assert!(problem.what.contains("begins before the end"), "{problem}");

    // The first leaf twice, the second never.
    let twice = Bytes::of(&device).forge(root(&slots.scattered), |bytes| {
        bytes.copy_within(40..48, 56);
    });
    let report = found(twice);
    assert!(
        report
            .problems
            .iter()
            .any(|problem| problem.what.contains("something else refers to")),
        "{report:#?}"
    );
}

/// The word and bit of a page in its group's map, the first group.
fn bit(bytes: &Bytes, page: u64) -> (usize, u64) {
    let offset = page - (bytes.state_page + 1);
    ((offset / 64) as usize, 1 << (offset % 64))
}

#[test]
fn a_used_page_marked_free_is_found_with_its_number() {
    let (bytes, _, slots) = zoo();
    let page = physical(first_extent(&slots.small));
    let (word, mask) = bit(&bytes, page);
    let map = bytes.state_page + 1;
    let report = found(bytes.forge(map, |bytes| {
        GroupMap::mut_from_bytes(bytes).unwrap().a[word] &= !mask;
    }));
    let problem = at(
        &report,
        &format!("pages {page} to {page} in the map of group 0"),
    );
    assert!(problem.what.contains("marked as free"), "{problem}");
    let problem = at(&report, "the state page");
    assert!(problem.what.contains("free pages"), "{problem}");
    assert_eq!(report.problems.len(), 2);
}

#[test]
fn a_free_page_marked_used_is_found_with_its_number() {
    let (bytes, _, _) = zoo();
    let page = bytes.state_page + 1 + 5000;
    let (word, mask) = bit(&bytes, page);
    let map = bytes.state_page + 1;
    let report = found(bytes.forge(map, |bytes| {
        let map = GroupMap::mut_from_bytes(bytes).unwrap();
        assert_eq!(map.a[word] & mask, 0);
        map.a[word] |= mask;
    }));
    let problem = at(
        &report,
        &format!("pages {page} to {page} in the map of group 0"),
    );
    assert!(problem.what.contains("nothing refers to them"), "{problem}");
    assert!(problem.consequence.contains("4096 bytes"), "{problem}");
    assert_eq!(report.problems.len(), 2); // and the count
}

#[test]
fn a_slot_page_with_the_wrong_mark_and_a_slot_that_is_half_free_are_found() {
    let (bytes, zoo, _) = zoo();
    let page = zoo.small.slot / 8;
    let (word, mask) = bit(&bytes, page);
    let map = bytes.state_page + 1;
    let device = bytes.device();
    let report = found(Bytes::of(&device).forge(map, |bytes| {
        GroupMap::mut_from_bytes(bytes).unwrap().a[word] ^= mask;
    }));
    assert_eq!(report.problems.len(), 1, "{report:#?}");
    at(&report, &format!("slot page {page}"));

    let free = zoo.small.slot | 7;
    let report = found(Bytes::of(&device).flip(page, |bytes| bytes[7 * 512 + 90] = 1));
    let problem = at(&report, &format!("slot {free} (page {page})"));
    assert!(problem.what.contains("not zeroed"), "{problem}");
}

#[test]
fn pages_with_two_owners_or_outside_of_the_volume_are_found_at_the_blob() {
    let (bytes, zoo, slots) = zoo();
    let device = bytes.device();
    let taken = first_extent(&slots.small);
    for physical in [physical(taken), 1 << 30, 5] {
        let report = found(Bytes::of(&device).forge_slot(zoo.attributes.slot, |slot| {
            let mut extent = first_extent(slot);
            extent.pages_and_physical = extent.pages_and_physical & 0xffff | physical << 16;
            slot.payload[..16].copy_from_slice(extent.as_bytes());
        }));
        let blob = format!("blob {}.", zoo.attributes.slot);
        let blamed = report.problems.iter().any(|problem| {
            problem.place.contains(&blob) && problem.what.contains("refers to page")
        });
        assert!(blamed, "{physical}: {report:#?}");
    }
}

#[test]
fn slots_with_fields_that_can_not_be_are_found() {
    let (bytes, zoo, _) = zoo();
    let device = bytes.device();
    type Edit = fn(&mut Slot);
    let edits: [(&str, Edit); 8] = [
        ("unknown kind", |slot| slot.kind = 77),
        ("nanoseconds", |slot| slot.mtime_ns = 1_000_000_000),
        ("a size of", |slot| slot.size = 1 << 60),
        ("are valid", |slot| slot.valid_size = slot.size + 1),
        ("unknown kind of map", |slot| slot.map_kind = 9),
        ("a map of depth", |slot| slot.map_depth = 3),
        ("it is not a directory", |slot| {
            slot.map_kind = MAP_NAME_TREE
        }),
        ("pages, but has", |slot| slot.allocated_pages += 1),
    ];
    for (what, edit) in edits {
        let report = found(Bytes::of(&device).forge_slot(zoo.small.slot, edit));
        let place = format!("blob {}.{} ", zoo.small.slot, zoo.small.generation);
        assert!(
            report
                .problems
                .iter()
                .any(|problem| problem.place.starts_with(&place) && problem.what.contains(what)),
            "{what}: {report:#?}"
        );
    }
    let report = found(Bytes::of(&device).forge_slot(zoo.small.slot, |slot| {
        let mut extent = first_extent(slot);
        extent.flags = EXTENT_UNWRITTEN | 0x80;
        slot.payload[..16].copy_from_slice(extent.as_bytes());
    }));
    assert!(!report.is_clean());
}

#[test]
fn a_damaged_attribute_page_is_found_there() {
    let (bytes, _, slots) = zoo();
    let page = slots.attributes.xattr_page;
    let device = bytes.device();
    let edits: [fn(&mut [u8]); 4] = [
        |bytes| bytes[32] += 1,
        |bytes| bytes[34] = 0,
        |bytes| bytes[16] = 2,
        |bytes| bytes[18..20].fill(0xff),
    ];
    for edit in edits {
        let report = found(Bytes::of(&device).forge(page, edit));
        at(
            &report,
            &format!("page {page} (extended attributes of blob"),
        );
        assert_eq!(report.problems.len(), 1, "{report:#?}");
    }
}

#[test]
fn wrong_counters_and_roots_in_the_state_page_are_found() {
    let (bytes, _, _) = zoo();
    let page = bytes.state_page;
    let device = bytes.device();
    type Edit = fn(&mut StatePage);
    let edits: [(&str, Edit); 3] = [
        ("free pages", |state| state.free_pages -= 1),
        ("blobs", |state| state.blobs += 1),
        ("its root is", |state| {
            (state.root, state.root_generation) = (9, 9)
        }),
    ];
    for (what, edit) in edits {
        let report = found(Bytes::of(&device).forge(page, |bytes| {
            edit(StatePage::mut_from_prefix(bytes).unwrap().0);
        }));
        assert_eq!(report.problems.len(), 1, "{report:#?}");
        let problem = at(&report, &format!("the state page (page {page})"));
        assert!(problem.what.contains(what), "{problem}");
    }
}

#[test]
fn a_superblock_that_went_bad_under_a_mounted_volume_is_found() {
    let (bytes, _, _) = zoo();
    let device = bytes.device();
    let engine = open(&device);
    assert_clean(&engine);
    for page in 0..2 {
        let request = Request {
            operation: Operation::Write { fua: true },
            offset_bytes: page * PAGE,
            buffers: [Buffer::zeroed(4096)].into_iter().collect(),
            token: 0,
        };
        assert_eq!(device.execute(request).result, Ok(()));
        let report = check(&engine);
        assert_eq!(report.problems.len(), page as usize + 1, "{report:#?}");
        at(
            &report,
            &format!("superblock {} (page {page})", ["A", "B"][page as usize]),
        );
    }
    close(engine);
}

#[test]
fn whatever_metadata_says_a_check_ends_without_a_panic() {
    let (bytes, zoo, slots) = zoo();
    let device = bytes.device();
    let state_page = bytes_state_page(&device);
    let trees = [
        root(&slots.scattered),
        slots.attributes.xattr_page,
        state_page + 1,
        state_page,
    ];
    let mut random = Prng::new(7);
    let mut opened = 0;
    for round in 0..150 {
        let mut bytes = Bytes::of(&device);
        for _ in 0..1 + round % 4 {
            let at = random.index(4096 - 4) + 4;
            let value = random.next_u64() as u8;
            bytes = if random.chance(1, 3) {
                let ids = [zoo.small, zoo.scattered, zoo.attributes, zoo.directory];
                let slot = random.pick(&ids).slot;
                bytes.forge_slot(slot, |slot| slot.as_mut_bytes()[4 + at % 508] = value)
            } else {
                bytes.forge(*random.pick(&trees), |bytes| bytes[at % 300 + 4] = value)
            };
        }
        if let Ok(engine) = rig::try_open(&bytes.device()) {
            opened += 1;
            let _ = engine.run(|store| async { store.check(&mut |_, _| {}).await });
            assert!(!engine.poisoned(), "round {round}: it panicked");
            drop_dead(engine);
        }
    }
    assert!(opened > 50, "{opened}");
}

fn bytes_state_page(device: &Arc<adit_block::FaultDevice>) -> u64 {
    Bytes::of(device).state_page
}

/// A check looks whether anything has changed meanwhile. It ignored transactions that joined a
/// commit begun before the check: it reported lost space, and used pages marked as free.
#[test]
fn changes_while_a_check_runs_are_no_damage() {
    let device = formatted(64 << 20);
    let engine = open(&device);
    populate(&engine);
    engine
        .run(|store| async {
            let is_done = Cell::new(false);
            let change = async {
                while !is_done.get() {
                    create(store).await?;
                    store.reactor().yield_now().await;
                }
                Ok(())
            };
            let check = async {
                for _ in 0..20 {
                    match store.check(&mut |_, _| {}).await {
                        Ok(report) => assert!(report.is_clean(), "{report:#?}"),
                        Err(error) => assert_eq!(error.errno(), Errno::BUSY),
                    }
                }
                is_done.set(true);
                Ok(())
            };
            let both: [Pin<Box<dyn Future<Output = Result<()>>>>; 2] =
                [Box::pin(change), Box::pin(check)];
            join_all(both).await.into_iter().collect::<Result<()>>()
        })
        .unwrap();
    assert_clean(&engine);
    close(engine);
}
