//! A futex for models: the kernel's queue of sleepers is a list under a mutex, as the kernel's is.
//!
//! In a model no sleep has a deadline (there are no timers), and none ends without a reason.

use adit_base::sync::atomic::{AtomicU32, Ordering};
use adit_base::sync::model::is_skipped;
use adit_base::sync::{Condvar, Mutex, lazy_static};

lazy_static! {
    static ref SLEEPERS: Sleepers = Sleepers {
        addresses: Mutex::new((Vec::new(), 0)),
        woken: Condvar::new(),
    };
}

struct Sleepers {
    /// The words at which threads sleep, with a number for each thread; the next number.
    addresses: Mutex<(Vec<(usize, u64)>, u64)>,
    woken: Condvar,
}

/// The model of the function in `futex.rs`.
pub(crate) fn wait(word: &AtomicU32, expected: u32, deadline_ns: Option<u64>) {
    assert!(deadline_ns.is_none(), "time isn't modelled");
    let held = "no model panics here";
    let mut addresses = SLEEPERS.addresses.lock().expect(held);
    if word.load(Ordering::SeqCst) != expected {
        return;
    }
    let me = (std::ptr::from_ref(word).addr(), addresses.1);
    addresses.1 += 1;
    addresses.0.push(me);
    while addresses.0.contains(&me) {
        addresses = SLEEPERS.woken.wait(addresses).expect(held);
    }
}

/// The model of the function in `futex.rs`.
#[track_caller]
pub(crate) fn wake(word: *const AtomicU32) {
    if is_skipped() {
        return;
    }
    let mut addresses = SLEEPERS.addresses.lock().expect("no model panics here");
    let sleeper = addresses
        .0
        .iter()
        .position(|(address, _)| *address == word.addr());
    if let Some(sleeper) = sleeper {
        addresses.0.remove(sleeper);
        SLEEPERS.woken.notify_all();
    }
}
