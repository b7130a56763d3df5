//! Directories and state that Adit never wrote: each is an error for the operation that meets it,
//! and nothing is deleted, lost or read for ever because of it.

use crate::common;
use crate::common::*;
use adit_base::Errno;
use adit_fs::*;
use adit_store::Transaction;
use adit_store::format::PageKind;
use adit_store::pages::{Pages, Stop};

const LEAF_HEADER_BYTES: usize = 32;
/// Places in an entry.
const SLOT: usize = 8;
const GENERATION: usize = 16;
const KIND: usize = 20;
const NAME_LEN: usize = 21;
const NAME: usize = 22;

fn id_of(volume: &Volume, path: &str) -> BlobId {
    let stat = volume.stat(path).unwrap();
    BlobId {
        slot: stat.inode,
        generation: stat.generation,
    }
}

fn orphans(volume: &Volume) -> BlobId {
    let state = volume.run(|fs| fs.store().state()).unwrap();
    BlobId {
        slot: state.orphans,
        generation: state.orphans_generation,
    }
}

fn transact(volume: &Volume, change: impl FnMut(&mut Transaction<'_>) -> Result<(), Stop> + Send) {
    volume.run(|fs| fs.store().transact(change)).unwrap();
}

/// Where the entries of a leaf lie, in its order.
fn places(leaf: &[u8; 4096]) -> Vec<usize> {
    let count = usize::from(u16::from_le_bytes([leaf[16], leaf[17]]));
    let place = |index| LEAF_HEADER_BYTES + 2 * index;
    let offset = |at: usize| usize::from(u16::from_le_bytes([leaf[at], leaf[at + 1]]));
    (0..count).map(|index| offset(place(index))).collect()
}

/// Changes the only leaf of a directory behind the file system's back. `change` also gets where the
/// entries lie.
fn damage(volume: &Volume, directory: BlobId, change: impl Fn(&mut [u8; 4096], &[usize]) + Sync) {
    transact(volume, |transaction| {
        let slot = transaction.slot(directory)?;
        assert_eq!(slot.map_depth, 0, "a directory of one leaf");
        let mut root = [0; 8];
        root.copy_from_slice(&slot.payload[..8]);
        let page = transaction.page_mut(u64::from_le_bytes(root), PageKind::NameLeaf)?;
        let places = places(&page.0);
        change(&mut page.0, &places);
        Ok(())
    });
}

fn place_of(leaf: &[u8; 4096], places: &[usize], name: &[u8]) -> usize {
    let named = |at: &&usize| leaf[**at + NAME..].starts_with(name);
    *places.iter().find(named).expect("there is such an entry")
}

fn point_at(leaf: &mut [u8; 4096], at: usize, id: BlobId, kind: FileKind) {
    leaf[at + SLOT..at + SLOT + 8].copy_from_slice(&id.slot.to_le_bytes());
    leaf[at + GENERATION..at + GENERATION + 4].copy_from_slice(&id.generation.to_le_bytes());
    leaf[at + KIND] = kind as u8;
}

/// An entry of length 0 passed for one, and `adit check`, which hashes each name, fell over it.
#[test]
fn an_entry_without_a_name_is_reported() {
    let volume = Volume::fresh();
    volume.mkdir("/d").unwrap();
    volume.touch("/d/file").unwrap();
    damage(&volume, id_of(&volume, "/d"), |leaf, places| {
        leaf[places[0] + NAME_LEN] = 0;
    });
    let report = volume.run(|fs| fs.check_names()).unwrap();
    assert!(
        report.problems.iter().any(|what| what.starts_with("/d/")),
        "{:?}",
        report.problems
    );
    assert_eq!(volume.entries("/d", 4096), Err(Errno::UCLEAN));
}

/// The table of inodes has memory for slots of the volume only. A name beyond it was an inode that
/// the check looked for.
#[test]
fn names_of_slots_beyond_the_volume_are_reported_and_not_looked_for() {
    let volume = Volume::fresh();
    volume.mkdir("/d").unwrap();
    for name in ["last", "next", "most"] {
        volume.touch(&format!("/d/{name}")).unwrap();
    }
    let end = volume
        .run(|fs| async { Ok(fs.store().slots_end()) })
        .unwrap();
    let forged = [("last", end - 1), ("next", end), ("most", u64::MAX)];
    for kind in [FileKind::File, FileKind::Directory] {
        damage(&volume, id_of(&volume, "/d"), |leaf, places| {
            for (name, slot) in forged {
                let at = place_of(leaf, places, name.as_bytes());
                let id = BlobId {
                    slot,
                    generation: 1,
                };
                point_at(leaf, at, id, kind);
            }
        });
        let report = volume.run(|fs| fs.check_names()).unwrap();
        let told = |words: &str| {
            let problems = report.problems.iter();
            problems.filter(|what| what.contains(words)).count()
        };
        for (name, slot) in forged {
            let beyond = format!("/d/{name}: names inode {slot}, beyond the volume");
            assert_eq!(told(&beyond), usize::from(slot >= end), "{report:?}");
            // Nothing else is told of one that is beyond: the check has not looked for it.
            if slot >= end {
                assert_eq!(told(&slot.to_string()), 1, "{report:?}");
                assert_eq!(told(&format!("/d/{name}")), 1, "{report:?}");
            }
        }
        let last = format!("inode {}", end - 1);
        assert!(told(&last) + told("/d/last/") > 0, "{report:?}");
    }
}

/// A path has no end where directories lie in each other, and each entry's was kept in memory: a
/// user's directories could exhaust it.
#[test]
fn a_problem_is_told_with_the_end_of_a_path_that_is_longer_than_paths_are() {
    let volume = Volume::fresh();
    let name = "d".repeat(255);
    let mut above = id_of(&volume, "/");
    for _ in 0..40 {
        let made = volume.run(|fs| fs.mkdir(At::inside(&SELF, above, name.as_bytes()), 0o755));
        let stat = made.unwrap();
        above = BlobId {
            slot: stat.inode,
            generation: stat.generation,
        };
    }
    let last = At::inside(&SELF, above, b"file");
    volume
        .run(|fs| fs.mknod(last, FileKind::File, 0o644, 0))
        .unwrap();
    assert_eq!(volume.check(), [""; 0]);
    damage(&volume, above, |leaf, places| leaf[places[0] + KIND] = 100);
    let problems = volume.run(|fs| fs.check_names()).unwrap().problems;
    let told = problems
        .iter()
        .find(|what| what.contains("of unknown kind"));
    let told = told.expect("the entry is a problem");
    assert!(told.contains("d/file: "), "{told}");
    assert!(told.len() < 5000, "{} bytes", told.len());
}

/// The cookie of the last entry is where the next call goes on. One that was lower than those
/// before it sent the reader back, for ever.
#[test]
fn reading_a_directory_with_keys_out_of_order_ends() {
    let volume = Volume::fresh();
    volume.mkdir("/d").unwrap();
    for name in ["/d/a", "/d/b", "/d/c"] {
        volume.touch(name).unwrap();
    }
    damage(&volume, id_of(&volume, "/d"), |leaf, places| {
        leaf[places[2]..places[2] + 8].copy_from_slice(&16u64.to_le_bytes());
    });
    let directory = volume.open("/d", RO).unwrap();
    let (mut cookie, mut rounds) = (0, 0);
    let end = loop {
        let mut entries = Vec::new();
        let read = volume.run(|fs| fs.read_directory(&directory, cookie, 4096, &mut entries));
        match (read, entries.last()) {
            (Err(errno), _) => break Some(errno),
            (Ok(()), None) => break None,
            (Ok(()), Some(last)) => cookie = last.cookie,
        }
        rounds += 1;
        assert!(rounds < 100, "it goes on and on");
    };
    assert_eq!(end, Some(Errno::UCLEAN));
    assert_ne!(volume.run(|fs| fs.check_names()).unwrap().problems, [""; 0]);
}

/// Operations trusted an entry's kind. So the name of a directory, marked as a file's, opened the
/// directory as a file, to be overwritten; and removing a name that led to a blob deleted the blob.
#[test]
fn an_entry_of_another_kind_than_its_inode_opens_and_deletes_nothing() {
    let volume = Volume::fresh();
    volume.mkdir("/d").unwrap();
    volume.mkdir("/d/directory").unwrap();
    volume.mkdir("/d/empty").unwrap();
    volume.touch("/d/directory/inside").unwrap();
    volume.put("/d/file", b"content").unwrap();
    volume.link("/d/file", "/second").unwrap();
    volume.link("/d/file", "/third").unwrap();
    volume.put("/d/blob", b"a name for a blob").unwrap();
    volume.put("/d/other", b"other").unwrap();
    let blob = volume.run(|fs| fs.create_blob()).unwrap();
    let handle = volume.run(|fs| fs.open_blob(blob, RW)).unwrap();
    volume.write(&handle, 0, b"nameless").unwrap();
    volume.fsync(&handle).unwrap();
    volume.close(&handle).unwrap();
    damage(&volume, id_of(&volume, "/d"), |leaf, places| {
        let directory = place_of(leaf, places, b"directory");
        leaf[directory + KIND] = FileKind::File as u8;
        let file = place_of(leaf, places, b"file");
        leaf[file + KIND] = FileKind::Directory as u8;
        let at = place_of(leaf, places, b"blob");
        point_at(leaf, at, blob, FileKind::File);
    });
    for path in ["/d/directory", "/d/blob"] {
        assert_eq!(volume.open(path, RW).map(drop), Err(Errno::UCLEAN));
        assert_eq!(volume.open(path, RO).map(drop), Err(Errno::UCLEAN));
        assert_eq!(volume.unlink(path), Err(Errno::UCLEAN), "{path}");
        assert_eq!(volume.rename("/d/other", path), Err(Errno::UCLEAN));
        assert_eq!(volume.rename(path, "/moved"), Err(Errno::UCLEAN));
        assert_eq!(volume.link(path, "/linked"), Err(Errno::UCLEAN));
    }
    assert_eq!(volume.open("/d/file", RO).map(drop), Err(Errno::UCLEAN));
    // Refused by its real kind.
    assert_eq!(volume.rename("/d/empty", "/d/file"), Err(Errno::NOTDIR));
    assert_eq!(volume.rmdir("/d/file"), Err(Errno::NOTDIR));
    assert_eq!(volume.stat("/third").unwrap().links, 3);
    assert_eq!(volume.get("/second").unwrap(), b"content");
    let handle = volume.run(|fs| fs.open_blob(blob, RO)).unwrap();
    assert_eq!(handle.size_bytes(), 8);
    volume.close(&handle).unwrap();
    assert_eq!(volume.list("/d").len(), 5);
}

/// Mounting deletes what the orphan directory names, and the state page says which one that is. If
/// it named the root, or another directory, a mount deleted its content.
#[test]
fn a_mount_with_another_directory_for_its_orphans_is_refused_and_deletes_nothing() {
    for path in ["/", "/d"] {
        let device = memory(64 << 20);
        let volume = Volume::format(device.clone(), 16 << 20);
        let hidden = orphans(&volume);
        volume.mkdir("/d").unwrap();
        volume.put("/d/f", b"content").unwrap();
        volume.put("/f", b"content").unwrap();
        let taken = id_of(&volume, path);
        transact(&volume, |transaction| transaction.set_orphans(taken));
        volume.close_volume();
        let refused = Volume::try_open_on(device.clone(), 16 << 20, true).map(drop);
        assert_eq!(refused.unwrap_err().errno(), Errno::UCLEAN, "{path}");
        repair(device.clone(), hidden);
        let volume = Volume::open_on(device, 16 << 20);
        assert_eq!(volume.get("/d/f").unwrap(), b"content");
        assert_eq!(volume.get("/f").unwrap(), b"content");
        assert_eq!(volume.check(), [""; 0]);
    }
}

fn repair(device: std::sync::Arc<dyn adit_block::Device>, orphans: BlobId) {
    let options = adit_reactor::EngineOptions {
        queue_depth: 64,
        keeper: true,
        name: "test".into(),
    };
    let engine = adit_reactor::Engine::start(device, options, |reactor| async move {
        adit_store::Store::open(reactor, &common::options(16 << 20)).await
    })
    .unwrap();
    let set =
        engine.run(|store| store.transact(move |transaction| transaction.set_orphans(orphans)));
    set.unwrap();
    engine.shutdown(|store| store.close()).unwrap();
}

/// One stray entry in the orphan directory, and mounting deleted a file that had a name.
#[test]
fn a_file_with_a_name_is_not_deleted_because_the_orphan_directory_lists_it() {
    let device = memory(64 << 20);
    let volume = Volume::format(device.clone(), 16 << 20);
    volume.mkdir("/d").unwrap();
    volume.put("/live", b"content").unwrap();
    for (victim, kind) in [
        ("/live", FileKind::File),
        ("/live", FileKind::Directory),
        ("/d", FileKind::Directory),
        ("/d", FileKind::File),
    ] {
        volume.put("/orphan", b"content").unwrap();
        let orphan = volume.open("/orphan", RO).unwrap().blob_id();
        volume.unlink("/orphan").unwrap();
        let victim = id_of(&volume, victim);
        damage(&volume, orphans(&volume), |leaf, places| {
            let name = format!("{:016x}", orphan.slot);
            let at = place_of(leaf, places, name.as_bytes());
            point_at(leaf, at, victim, kind);
        });
    }
    volume.close_volume();
    let volume = Volume::open_on(device, 16 << 20);
    assert_eq!(volume.get("/live").unwrap(), b"content");
    assert_eq!(volume.list("/"), ["d", "live"]);
    assert_eq!(volume.stat("/d").unwrap().links, 2);
    volume.touch("/d/f").unwrap();
    assert_ne!(volume.run(|fs| fs.check_names()).unwrap().problems, [""; 0]);
}

/// Deleting an orphan takes two transactions, its slot and then its entry. If the second one
/// failed, the entry stayed and named a slot that a new file got; when that file became an orphan,
/// too, its unlink was EEXIST.
#[test]
fn an_entry_that_outlived_its_orphan_is_in_nobodys_way() {
    let volume = Volume::fresh();
    volume.put("/f", b"first").unwrap();
    let first = volume.open("/f", RW).unwrap();
    volume.unlink("/f").unwrap();
    // The first transaction; the second never comes.
    volume.run(|fs| fs.store().delete(first.blob_id())).unwrap();
    volume.put("/f", b"second").unwrap();
    let second = volume.open("/f", RW).unwrap();
    assert_eq!(second.blob_id().slot, first.blob_id().slot);
    assert_eq!(volume.check(), [""; 0]);
    volume.unlink("/f").unwrap();
    // A late deletion of the first leaves the entry of the second.
    volume.close(&first).unwrap();
    assert_eq!(volume.run(|fs| fs.check_names()).unwrap().orphans, 1);
    assert_eq!(volume.check(), [""; 0]);
    let mut content = [0; 6];
    volume.read(&second, 0, &mut content).unwrap();
    assert_eq!(&content, b"second");
    volume.close(&second).unwrap();
    assert_eq!(volume.run(|fs| fs.check_names()).unwrap().orphans, 0);
    assert_eq!(volume.check(), [""; 0]);
}

/// Found by fuzzing: the count of a directory's links overflowed with one more subdirectory: a
/// panic, or 0, by which it passed for removed.
#[test]
fn a_directory_that_counts_all_links_there_can_be_takes_no_more_subdirectories() {
    let volume = Volume::fresh();
    for path in ["/full", "/full/inside", "/other"] {
        volume.mkdir(path).unwrap();
    }
    let id = id_of(&volume, "/full");
    transact(&volume, |transaction| {
        let mut slot = transaction.slot(id)?;
        slot.links = u32::MAX;
        transaction.put(id, slot)
    });
    assert_eq!(volume.mkdir("/full/new"), Err(Errno::MLINK));
    assert_eq!(volume.rename("/other", "/full/other"), Err(Errno::MLINK));
    volume.touch("/full/file").unwrap();
    volume.rename("/full/inside", "/inside").unwrap();
    volume.mkdir("/full/new").unwrap();
}

/// Found by fuzzing: a map that calls a page of a directory free gave it out to the transaction
/// that was changing the directory, which was taken for a bug of ours: a panic, and the volume was
/// unusable until it was opened again.
#[test]
fn a_page_that_a_transaction_changes_is_not_given_out_to_it_as_a_free_one() {
    let volume = Volume::fresh();
    volume.mkdir("/d").unwrap();
    volume.touch("/d/file").unwrap();
    let id = id_of(&volume, "/d");
    let given_out = volume.run(|fs| {
        fs.store().transact(move |transaction| {
            let mut root = [0; 8];
            root.copy_from_slice(&transaction.slot(id)?.payload[..8]);
            let leaf = u64::from_le_bytes(root);
            transaction.page_mut(leaf, PageKind::NameLeaf)?;
            transaction.fresh_page(leaf, PageKind::NameLeaf).map(drop)
        })
    });
    assert_eq!(given_out, Err(Errno::UCLEAN));
    volume.touch("/d/other").unwrap();
    assert_eq!(volume.list("/d"), ["file", "other"]);
}

/// A directory that was too deep for a rename passed for one in a loop, which is damage.
#[test]
fn a_rename_tells_a_deep_directory_from_a_loop() {
    const LEVELS: usize = 2048;
    let volume = Volume::fresh();
    let mut levels = Vec::new();
    for number in 0..LEVELS {
        volume.mkdir(&format!("/{number}")).unwrap();
        levels.push(id_of(&volume, &format!("/{number}")));
    }
    // Each in the one before, without the names that this needs.
    let put_into = |below: &[BlobId], above: &[BlobId]| {
        transact(&volume, |transaction| {
            for (&below, above) in below.iter().zip(above) {
                let mut slot = transaction.slot(below)?;
                slot.parent = above.slot;
                transaction.put(below, slot)?;
            }
            Ok(())
        });
    };
    for first in (1..LEVELS).step_by(50) {
        let end = (first + 50).min(LEVELS);
        put_into(&levels[first..end], &levels[first - 1..end - 1]);
    }
    volume.mkdir("/x").unwrap();
    let (last, before) = (LEVELS - 1, LEVELS - 2);
    let moved = volume.rename("/x", &format!("/{last}/x"));
    assert_eq!(moved, Err(Errno::NAMETOOLONG));
    volume.rename("/x", &format!("/{before}/x")).unwrap();
    volume.rename(&format!("/{before}/x"), "/x").unwrap();
    for length in [1, 2, 10, 1000] {
        put_into(&levels[..1], &levels[length - 1..length]);
        for at in [0, 20, 1_500] {
            assert_eq!(volume.rename("/x", &format!("/{at}/x")), Err(Errno::UCLEAN));
        }
    }
}
