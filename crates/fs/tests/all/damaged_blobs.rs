//! Damage is an error only for operations that need the damaged page: nothing has to be repaired
//! first.

use crate::common::*;
use adit_base::{Errno, PAGE_BYTES};
use adit_block::{FaultConfig, FaultDevice, Image};
use adit_store::format::{PageKind, VolumeId};
use std::sync::Arc;

const CACHE_BYTES: u64 = 16 << 20;
/// Two groups.
const VOLUME_BYTES: u64 = 96 << 20;
const PAGE: u64 = PAGE_BYTES as u64;

struct Sample {
    image: Image,
    victim: u64,
    directory: u64,
}

/// `/d/victim` with a tree of extents, `/d/0` to `/d/9`, `/e/0` to `/e/9`; in the second group if
/// `far`.
fn sample() -> Sample {
    let device = FaultDevice::new(FaultConfig {
        size_bytes: VOLUME_BYTES,
        ..FaultConfig::default()
    });
    let volume = Volume::format(device.clone(), CACHE_BYTES);
    for directory in ["/d", "/e"] {
        volume.mkdir(directory).unwrap();
        for number in 0..10 {
            volume
                .put(&format!("{directory}/{number}"), b"content")
                .unwrap();
        }
    }
    // Two pages of slots on.
    for number in 0..16 {
        volume.touch(&format!("/e/between {number}")).unwrap();
    }
    let victim = volume.open("/d/victim", CREATE).unwrap();
    for page in 0..40 {
        volume.write(&victim, page * 2 * PAGE, b"piece").unwrap();
    }
    volume.fsync(&victim).unwrap();
    volume.close(&victim).unwrap();
    let (victim, directory) = (
        volume.stat("/d/victim").unwrap().inode,
        volume.stat("/d").unwrap().inode,
    );
    volume.close_volume();
    Sample {
        image: device.image(),
        victim,
        directory,
    }
}

impl Sample {
    fn page(&self, page: u64) -> Vec<u8> {
        let mut bytes = vec![0; PAGE_BYTES];
        self.image.read(page * PAGE, &mut bytes);
        bytes
    }

    /// The page of that kind that belongs to the inode.
    fn find(&self, kind: PageKind, owner: u64) -> u64 {
        let id = self.page(0)[24..40].try_into().unwrap();
        let volume = VolumeId(id);
        let found = self.image.pages().find(|(page, bytes)| {
            let crc = u32::from_le_bytes(bytes[..4].try_into().unwrap());
            let of = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
            bytes[5] == kind as u8 && of == owner && volume.checksum(*page, &bytes[..], 0) == crc
        });
        found.expect("there is such a page").0
    }

    /// Mounts it with noise over a part of a page.
    fn open(&self, page: u64, from: usize) -> Volume {
        let mut image = self.image.clone();
        image.write(page * PAGE + from as u64, &[0xa5; 100]);
        let device: Arc<FaultDevice> = FaultDevice::with_image(FaultConfig::default(), image);
        Volume::open_on(device, CACHE_BYTES)
    }
}

/// Everything outside of `/d`.
fn the_rest_works(volume: &Volume) {
    for number in 0..10 {
        let path = format!("/e/{number}");
        assert_eq!(volume.get(&path).unwrap(), b"content");
        volume.put(&path, b"changed").unwrap();
        volume
            .rename(&path, &format!("/e/renamed {number}"))
            .unwrap();
    }
    volume.mkdir("/new").unwrap();
    volume.put("/new/file", &stamped(1, 0, 100_000)).unwrap();
    volume.sync().unwrap();
    assert_eq!(volume.get("/new/file").unwrap(), stamped(1, 0, 100_000));
}

#[test]
fn a_damaged_slot_costs_its_inode_only() {
    let sample = sample();
    let slot = sample.victim;
    let volume = sample.open(slot / 8, (slot % 8) as usize * 512 + 100);
    assert_eq!(volume.open("/d/victim", RO).map(drop), Err(Errno::UCLEAN));
    assert_eq!(volume.stat("/d/victim").map(drop), Err(Errno::UCLEAN));
    for number in 0..10 {
        assert_eq!(volume.get(&format!("/d/{number}")).unwrap(), b"content");
    }
    volume.unlink("/d/0").unwrap();
    the_rest_works(&volume);
}

#[test]
fn a_damaged_node_of_a_map_costs_what_is_under_it_only() {
    let sample = sample();
    let volume = sample.open(sample.find(PageKind::ExtentLeaf, sample.victim), 200);
    assert_eq!(volume.get("/d/victim").map(drop), Err(Errno::UCLEAN));
    volume.rename("/d/victim", "/d/damaged").unwrap();
    for number in 0..10 {
        assert_eq!(volume.get(&format!("/d/{number}")).unwrap(), b"content");
    }
    the_rest_works(&volume);
}

#[test]
fn a_damaged_page_of_a_directory_costs_its_names_only() {
    let sample = sample();
    let volume = sample.open(sample.find(PageKind::NameLeaf, sample.directory), 200);
    assert_eq!(volume.get("/d/0").map(drop), Err(Errno::UCLEAN));
    assert_eq!(volume.touch("/d/new"), Err(Errno::UCLEAN));
    assert_eq!(volume.entries("/d", 4096).map(drop), Err(Errno::UCLEAN));
    volume.rename("/d", "/damaged").unwrap();
    the_rest_works(&volume);
}

/// Only the deletion of orphans needs the orphan directory, an opening does not: a damaged page of
/// it used to refuse the whole volume.
#[test]
fn a_damaged_page_of_the_orphan_directory_costs_no_opening() {
    let device = FaultDevice::new(FaultConfig {
        size_bytes: VOLUME_BYTES,
        ..FaultConfig::default()
    });
    let volume = Volume::format(device.clone(), CACHE_BYTES);
    for directory in ["/d", "/e"] {
        volume.mkdir(directory).unwrap();
        for number in 0..10 {
            let path = format!("{directory}/{number}");
            volume.put(&path, b"content").unwrap();
        }
    }
    let orphan = volume.open("/d/0", RO).unwrap();
    volume.unlink("/d/0").unwrap();
    volume.sync().unwrap();
    volume.run(|fs| fs.store().checkpoint()).unwrap();
    let state = volume.run(|fs| fs.store().state()).unwrap();
    let sample = Sample {
        image: device.image(),
        victim: orphan.blob_id().slot,
        directory: state.orphans,
    };
    let volume = sample.open(sample.find(PageKind::NameLeaf, sample.directory), 200);
    the_rest_works(&volume);
    assert_eq!(volume.get("/d/1").unwrap(), b"content");
    assert_ne!(volume.check(), [""; 0]);
    volume.close_volume();
}

/// The first allocation looked at the damaged map, and every one failed, although other groups had
/// room.
#[test]
fn a_damaged_map_of_a_group_costs_the_space_of_that_group_only() {
    let sample = sample();
    let volume = sample.open(sample.find(PageKind::GroupMap, 0), 200);
    // The check says so, and goes on.
    assert_ne!(volume.check(), [""; 0]);
    assert_eq!(volume.get("/d/victim").unwrap().len(), 78 * PAGE_BYTES + 5);
    the_rest_works(&volume);
    for number in 0..10 {
        assert_eq!(volume.get(&format!("/d/{number}")).unwrap(), b"content");
        volume.unlink(&format!("/d/{number}")).unwrap();
    }
    volume.unlink("/d/victim").unwrap();
    volume.rmdir("/d").unwrap();
    assert_eq!(volume.list("/"), ["e", "new"]);
    volume.close_volume();
}
