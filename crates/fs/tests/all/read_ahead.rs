//! A walk through a tree that isn't in the cache waits for the device a few times, not once a page.

use crate::common::*;
use adit_base::{Errno, Result};
use adit_block::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A device that knows how many requests its queue had at the same time.
struct Watched {
    below: Arc<MemoryDevice>,
    most: Arc<AtomicUsize>,
}

struct WatchedQueue {
    below: Box<dyn Queue>,
    most: Arc<AtomicUsize>,
}

impl Device for Watched {
    fn name(&self) -> String {
        self.below.name()
    }

    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.below.capabilities()
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn Queue>> {
        Ok(Box::new(WatchedQueue {
            below: self.below.open_queue(depth)?,
            most: self.most.clone(),
        }))
    }

    fn execute(&self, request: Request) -> Completion {
        self.below.execute(request)
    }
}

impl Queue for WatchedQueue {
    fn submit(&mut self, request: Request) -> Submission {
        let submitted = self.below.submit(request);
        let under_way = self.below.in_flight();
        self.most.fetch_max(under_way, Ordering::Relaxed);
        submitted
    }

    fn poll(&mut self, done: &mut Vec<Completion>) -> usize {
        self.below.poll(done)
    }

    fn in_flight(&self) -> usize {
        self.below.in_flight()
    }

    fn doorbell(&self) -> Arc<dyn Doorbell> {
        self.below.doorbell()
    }
}

/// A device with a directory of files that no cache has.
fn directory_of(files: usize) -> Arc<Watched> {
    let latency = Latency {
        read_us: 20,
        write_us: 0,
        flush_us: 0,
        bytes_per_us: 0,
    };
    let below = MemoryDevice::new(MemoryConfig {
        size_bytes: 128 << 20,
        latency: Some(latency),
        ..MemoryConfig::default()
    });
    let device = Arc::new(Watched {
        below: below.expect("memory"),
        most: Arc::default(),
    });
    let volume = Volume::format(device.clone(), 32 << 20);
    volume.mkdir("/d").expect("mkdir");
    for file in 0..files {
        volume.touch(&name(file)).expect("touch");
    }
    volume.close_volume();
    device
}

fn name(file: usize) -> String {
    format!("/d/a-file-of-many-in-a-directory-{file}")
}

#[test]
fn the_leaves_of_a_directory_are_read_together() {
    let device = directory_of(3000);
    let volume = Volume::open_on(device.clone(), 32 << 20);
    device.most.store(0, Ordering::Relaxed);
    assert_eq!(volume.count("/d", 32 << 10), Ok(3000 + 2));
    let most = device.most.load(Ordering::Relaxed);
    assert!(most >= 16, "at most {most} requests at the same time");
    volume.close_volume();
}

#[test]
fn the_slots_of_a_tree_are_read_in_few_requests_in_whatever_order() {
    let device = directory_of(4000);
    let volume = Volume::open_on(device.clone(), 32 << 20);
    volume.list("/d");
    device.below.reset_counts();
    for turn in 0..4000 {
        volume.stat(&name(turn * 1001 % 4000)).expect("stat");
    }
    // Slot pages lie in chunks of 8.
    let reads = device.below.counts().reads;
    assert!(
        reads <= 4000 / 8 / 4,
        "{reads} reads for 500 pages of slots"
    );
    volume.close_volume();
}

#[test]
fn a_page_of_slots_that_cannot_be_read_fails_nobody_else() {
    let faulty = FaultDevice::new(FaultConfig {
        size_bytes: 128 << 20,
        ..FaultConfig::default()
    });
    let volume = Volume::format(faulty.clone(), 32 << 20);
    volume.mkdir("/d").expect("mkdir");
    for file in 0..400 {
        volume.touch(&name(file)).expect("touch");
    }
    let lost = volume.stat(&name(200)).expect("stat").inode / 8;
    volume.close_volume();
    let broken = FaultRule::new(FaultOn::Read, FaultEffect::Error(Errno::IO));
    faulty.inject(broken.within(lost * 4096..(lost + 1) * 4096));
    let volume = Volume::open_on(faulty, 32 << 20);
    for file in 0..400 {
        match volume.stat(&name(file)) {
            Ok(stat) => assert_ne!(stat.inode / 8, lost, "{file}"),
            Err(errno) => assert_eq!(errno, Errno::IO, "{file}"),
        }
    }
    let failed = (0..400)
        .filter(|file| volume.stat(&name(*file)).is_err())
        .count();
    assert!((1..=8).contains(&failed), "{failed} files can't be read");
    volume.close_volume();
}
