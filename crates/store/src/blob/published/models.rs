//! Models of direct reads against the worker, which moves the blob's pages (`cargo xtask models`).
//!
//! The device is two pages, of one number each. A device's queue orders its accesses between the
//! caller's earlier and later ones; so do Acquire and Release here.

use super::*;
use adit_base::sync::model::Wrong::Skipped;
use adit_base::sync::model::{Bug, check, spawn};
use std::sync::Arc;

/// The content of the blob, and of another one.
const OWN: u64 = 1;
const NEWER: u64 = 2;
const FOREIGN: u64 = 9;

fn at(physical: u64) -> Extent {
    Extent {
        logical: 0,
        pages: 1,
        physical,
        unwritten: false,
    }
}

/// A direct read, as `BlobShared::try_read_direct` does it.
fn read(places: &PublishedExtents, device: &[AtomicU64; 2]) -> Option<u64> {
    let ticket = places.find(0, 1)?;
    let content = device[ticket.home as usize].load(Ordering::Acquire);
    places.is_current(ticket).then_some(content)
}

#[test]
fn a_read_gets_no_other_blobs_bytes() {
    check(3, || {
        let places = Arc::new(PublishedExtents::default());
        let device = Arc::new([AtomicU64::new(OWN), AtomicU64::new(FOREIGN)]);
        places.publish(at(0));
        let reader = {
            let (places, device) = (places.clone(), device.clone());
            spawn(move || {
                for _ in 0..2 {
                    let got = read(&places, &device);
                    assert!(!matches!(got, Some(FOREIGN)), "another blob's bytes");
                }
            })
        };
        // The page moves, and its old place is given away.
        places.forget();
        device[1].store(OWN, Ordering::Release);
        device[0].store(FOREIGN, Ordering::Release);
        places.publish(at(1));
        reader.join().expect("a thread");
        assert_eq!(read(&places, &device), Some(OWN));
    });
}

#[test]
fn what_was_acknowledged_before_a_read_is_seen_by_it() {
    check(3, || {
        let places = Arc::new(PublishedExtents::default());
        let device = Arc::new([AtomicU64::new(OWN), AtomicU64::new(OWN)]);
        let acknowledged = Arc::new(AtomicU64::new(0));
        places.publish(at(0));
        let reader = {
            let (places, device, acknowledged) =
                (places.clone(), device.clone(), acknowledged.clone());
            spawn(move || {
                let newest = acknowledged.load(Ordering::Acquire);
                if let Some(content) = read(&places, &device) {
                    assert!(content >= newest, "older than what was acknowledged");
                }
            })
        };
        // A write to the cache; later it is written home, and its place told again.
        places.forget();
        acknowledged.store(NEWER, Ordering::Release);
        device[0].store(NEWER, Ordering::Release);
        places.publish(at(0));
        reader.join().expect("a thread");
    });
}

const FOREIGN_BYTES: &str = "blob::published::models::a_read_gets_no_other_blobs_bytes";

#[test]
fn planted_places_that_are_forgotten_without_saying_so_are_found() {
    let file = "base/src/sync/seq_count.rs";
    Bug::planted(Skipped, file, "pub fn step", "self.0.store").found_by(FOREIGN_BYTES);
}
