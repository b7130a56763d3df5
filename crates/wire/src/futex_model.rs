//! A futex for models: the kernel's queue of sleepers is a list under a mutex, as the kernel's is.
//!
//! In a model no sleep ends by its timeout, and none without a reason.

use adit_base::sync::atomic::{AtomicU32, Ordering};
use adit_base::sync::model::is_skipped;
use adit_base::sync::{Condvar, Mutex, lazy_static};
use std::time::Duration;

lazy_static! {
    static ref SLEEPERS: Sleepers = Sleepers {
        addresses: Mutex::new(Vec::new()),
        woken: Condvar::new(),
    };
}

struct Sleepers {
    /// The words at which threads sleep: one thread each.
    addresses: Mutex<Vec<usize>>,
    woken: Condvar,
}

/// As in `futex.rs`.
pub(crate) fn wait(word: &AtomicU32, expected: u32, _: Duration) {
    let held = "no model panics here";
    let mut addresses = SLEEPERS.addresses.lock().expect(held);
    if word.load(Ordering::SeqCst) != expected {
        return;
    }
    let me = std::ptr::from_ref(word).addr();
    addresses.push(me);
    while addresses.contains(&me) {
        addresses = SLEEPERS.woken.wait(addresses).expect(held);
    }
}

/// As in `futex.rs`.
#[track_caller]
pub(crate) fn wake(word: &AtomicU32) {
    if is_skipped() {
        return;
    }
    let me = std::ptr::from_ref(word).addr();
    let mut addresses = SLEEPERS.addresses.lock().expect("no model panics here");
    if addresses.contains(&me) {
        addresses.retain(|address| *address != me);
        SLEEPERS.woken.notify_all();
    }
}
