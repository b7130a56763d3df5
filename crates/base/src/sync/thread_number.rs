//! A small number for each thread, to spread threads over places of their own.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// 0: none yet.
    static NUMBER: Cell<u32> = const { Cell::new(0) };
}

/// The number of this thread: 0 for the first one that asks, and so on. In a model, 0.
#[inline]
pub fn thread_number() -> u32 {
    if cfg!(loom) {
        return 0;
    }
    match NUMBER.get().checked_sub(1) {
        Some(number) => number,
        None => first_time(),
    }
}

#[cold]
fn first_time() -> u32 {
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % (u32::MAX - 1);
    NUMBER.set(number + 1);
    number
}
