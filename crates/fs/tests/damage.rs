//! Directories and state that no file system of ours wrote: each is an error for whoever meets it, and nothing is
//! deleted, lost or read for ever because of it.

mod common;

use adit_base::Errno;
use adit_fs::*;
use adit_store::Transaction;
use adit_store::format::PageKind;
use adit_store::pages::{Pages, Stop};
use common::*;

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

/// Changes the only leaf of a directory behind the file system's back. `change` also gets where the entries lie.
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

/// What an entry said about its inode was believed. So the name of a directory, marked as a file's, opened the
/// directory as a file, to be written over; and removing a name that led to a blob deleted the blob.
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
    // Refused as what it is.
    assert_eq!(volume.rename("/d/empty", "/d/file"), Err(Errno::NOTDIR));
    assert_eq!(volume.rmdir("/d/file"), Err(Errno::NOTDIR));
    assert_eq!(volume.stat("/third").unwrap().links, 3);
    assert_eq!(volume.get("/second").unwrap(), b"content");
    let handle = volume.run(|fs| fs.open_blob(blob, RO)).unwrap();
    assert_eq!(handle.size_bytes(), 8);
    volume.close(&handle).unwrap();
    assert_eq!(volume.list("/d").len(), 5);
}

