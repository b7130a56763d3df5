//! When the newest superblock is lost, the one before it names an older tail, and recovery replays more than it
//! would have.

use crate::common::*;
use adit_base::PAGE_BYTES;
use adit_block::{FaultConfig, FaultDevice};

const CACHE_BYTES: u64 = 16 << 20;

/// Pages of a directory were freed, the tail passed their records, and a file got the pages; its data went home
/// without a record. Then the superblock with that tail was damaged: from the one before it, recovery replayed
/// the directory over the file's data, and nobody noticed.
#[test]
fn recovery_from_an_older_superblock_does_not_write_over_pages_that_were_freed_since() {
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
    let mut image = device.power_cut_with(|_, _| false);
    drop(volume);
    let sequence = |page: u64| {
        let mut bytes = [0; 8];
        image.read(page * PAGE_BYTES as u64 + 40, &mut bytes);
        u64::from_le_bytes(bytes)
    };
    let newest = u64::from(sequence(1) > sequence(0));
    image.zero(newest * PAGE_BYTES as u64, PAGE_BYTES as u64);
    let device = FaultDevice::with_image(FaultConfig::default(), image);
    let volume = Volume::try_mount(device, CACHE_BYTES, false).unwrap();
    for (path, content) in files {
        assert!(volume.get(&path).unwrap() == content, "{path}");
    }
    assert_eq!(volume.check(), [""; 0]);
}
