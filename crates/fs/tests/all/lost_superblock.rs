//! Either of the two superblocks suffices: recovery never begins at an older tail, where it would
//! replay records over newer content.

use crate::common::*;
use adit_base::{Errno, PAGE_BYTES};
use adit_block::{FaultConfig, FaultDevice, FaultEffect, FaultOn, FaultRule, Image};
use adit_fs::repair;
use adit_reactor::{Engine, EngineOptions};
use adit_store::{COMMITS_MAX, MkfsOptions, StoreOptions};

const CACHE_BYTES: u64 = 16 << 20;

/// Pages of a directory were freed, the tail passed their records, and a file got the pages; its
/// data went home without a record. Then the superblock with that tail was damaged: from the one
/// before it, recovery replayed the directory over the file's data, unnoticed.
#[test]
fn recovery_does_not_write_over_pages_that_were_freed_since() {
    let device = FaultDevice::new(FaultConfig {
        size_bytes: 16 << 20,
        ..FaultConfig::default()
    });
    let volume = Volume::try_format(device.clone(), CACHE_BYTES, false).unwrap();
    volume.mkdir("/d").unwrap();
    let name = |number: u32| format!("/d/a name that takes some room in its page {number}");
    for number in 0..400 {
        volume.touch(&name(number)).unwrap();
    }
    volume.sync().unwrap();
    for number in 0..400 {
        volume.unlink(&name(number)).unwrap();
    }
    volume.rmdir("/d").unwrap();
    volume.sync().unwrap();
    volume.run(|fs| fs.store().checkpoint()).unwrap();
    // All the space that there is.
    let mut files = Vec::new();
    for number in 0..60 {
        let path = format!("/{number}");
        let content = stamped(number, 0, 40 * PAGE_BYTES);
        if volume.put(&path, &content).is_err() || volume.sync().is_err() {
            break;
        }
        files.push((path, content));
    }
    assert!(files.len() > 30, "{} files", files.len());
    let image = device.power_cut_with(|_, _| false);
    drop(volume);
    for lost in [0, 1] {
        let volume = without_superblock(&image, lost);
        for (path, content) in &files {
            assert!(volume.get(path).unwrap() == *content, "{path}");
        }
        assert_eq!(volume.check(), [""; 0]);
    }
}

/// The end of a file went through the journal, then home; then it was overwritten where it is,
/// which needs no record.
#[test]
fn recovery_does_not_write_over_what_was_overwritten_in_place_since() {
    for data_checksums in [false, true] {
        let device = FaultDevice::new(FaultConfig {
            size_bytes: 16 << 20,
            ..FaultConfig::default()
        });
        let how = MkfsOptions {
            data_checksums,
            ..MkfsOptions::default()
        };
        let volume = Volume::try_format_as(device.clone(), CACHE_BYTES, false, &how).unwrap();
        volume.put("/f", &stamped(1, 0, PAGE_BYTES)).unwrap();
        volume.sync().unwrap();
        volume.run(|fs| fs.store().checkpoint()).unwrap();
        let content = stamped(2, 0, PAGE_BYTES);
        let file = volume.open("/f", RW).unwrap();
        volume.write(&file, 0, &content).unwrap();
        volume.sync().unwrap();
        let image = device.power_cut_with(|_, _| false);
        drop((file, volume));
        for lost in [0, 1] {
            let volume = without_superblock(&image, lost);
            assert!(volume.get("/f").unwrap() == content, "superblock {lost}");
            assert_eq!(volume.check(), [""; 0]);
        }
    }
}

/// Of two commits in flight, the device had the second one at the power cut and not the first. Then
/// both superblocks of that opening were lost. A repair began behind the hole, at the newest page,
/// and left out everything before it.
#[test]
fn a_repair_keeps_what_was_durable_before_a_missing_commit() {
    let device = FaultDevice::new(FaultConfig {
        size_bytes: 16 << 20,
        queued: true,
        ..FaultConfig::default()
    });
    let volume = Volume::try_format(device.clone(), CACHE_BYTES, false).unwrap();
    volume.close_volume();
    let closed = device.image();
    let overlapping = StoreOptions {
        commits_in_flight: Some(COMMITS_MAX),
        ..options(CACHE_BYTES)
    };
    let volume = Volume::try_open_as(device.clone(), &overlapping, false).unwrap();
    let content = stamped(1, 0, 1000);
    volume.put("/kept", &content).unwrap();
    let files = ["/first", "/second"].map(|path| {
        volume.touch(path).unwrap();
        volume.open(path, RW).unwrap()
    });
    volume.sync().unwrap();
    let late = FaultRule::new(FaultOn::Write, FaultEffect::Delay { polls: 2000 });
    device.inject(late.times(1));
    let before = device.counts().writes;
    let mut syncs = Vec::new();
    for (number, file) in (1..).zip(&files) {
        volume.append(file, &[1; 100]).unwrap();
        let file = file.clone();
        let sync = (volume.engine).spawn(move |fs| async move { fs.fdatasync(&file).await });
        syncs.push(sync);
        while device.counts().writes < before + number {
            assert!(syncs.iter_mut().all(|sync| sync.poll_once().is_none()));
        }
    }
    while device.at_risk() != (0, 1) {
        assert!(syncs.iter_mut().all(|sync| sync.poll_once().is_none()));
    }
    let mut image = device.power_cut_with(|_, _| false);
    drop((syncs, files, volume));
    let mut superblocks = [0; 2 * PAGE_BYTES];
    closed.read(0, &mut superblocks);
    image.write(0, &superblocks);
    let device = FaultDevice::with_image(FaultConfig::default(), image);
    let refused = Volume::try_open_on(device.clone(), CACHE_BYTES, false);
    assert_eq!(
        refused.err().map(|error| error.errno()),
        Some(Errno::UCLEAN)
    );
    let options = EngineOptions {
        queue_depth: 64,
        keeper: false,
        name: "repair".into(),
    };
    let engine = Engine::start(device, options, |reactor| async move {
        let how = crate::common::options(CACHE_BYTES);
        Ok(repair(reactor, &how, &mut |_, _| (), false).await?.0)
    });
    let volume = Volume {
        engine: engine.unwrap(),
    };
    assert!(volume.get("/kept").unwrap() == content);
    assert_eq!(volume.check(), [""; 0]);
}

fn without_superblock(image: &Image, lost: u64) -> Volume {
    let mut image = image.clone();
    image.zero(lost * PAGE_BYTES as u64, PAGE_BYTES as u64);
    let device = FaultDevice::with_image(FaultConfig::default(), image);
    Volume::try_open_on(device, CACHE_BYTES, false).unwrap()
}
