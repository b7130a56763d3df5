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
        tickets: AtomicU32::new(0),
        woken: Condvar::new(),
    };
}

struct Sleepers {
    /// The words at which threads sleep, each thread's with a number of its own.
    addresses: Mutex<Vec<(usize, u32)>>,
    tickets: AtomicU32,
    woken: Condvar,
}

/// As in `futex.rs`.
pub(crate) fn wait(word: &AtomicU32, expected: u32, _: Duration) {
    let held = "no model panics here";
    let mut addresses = SLEEPERS.addresses.lock().expect(held);
    if word.load(Ordering::SeqCst) != expected {
        return;
    }
    let ticket = SLEEPERS.tickets.fetch_add(1, Ordering::Relaxed);
    let me = (std::ptr::from_ref(word).addr(), ticket);
    addresses.push(me);
    while addresses.contains(&me) {
        addresses = SLEEPERS.woken.wait(addresses).expect(held);
    }
}

/// As in `futex.rs`.
#[track_caller]
pub(crate) fn wake(word: &AtomicU32, max: i32) {
    if is_skipped() {
        return;
    }
    let me = std::ptr::from_ref(word).addr();
    let mut addresses = SLEEPERS.addresses.lock().expect("no model panics here");
    let mut left = max;
    let before = addresses.len();
    addresses.retain(|(address, _)| {
        let wakes = *address == me && left > 0;
        left -= i32::from(wakes);
        !wakes
    });
    if addresses.len() != before {
        SLEEPERS.woken.notify_all();
    }
}
