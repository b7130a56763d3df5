//! The seed of what a test leaves to chance: the tests of several crates include this file.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

/// `ADIT_SEED`, or another number each time. Where a failure names it, that replays the choices.
pub fn seed() -> u64 {
    if let Ok(given) = std::env::var("ADIT_SEED") {
        return given.parse().expect("ADIT_SEED: a number");
    }
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
    now.expect("after 1970").as_nanos() as u64
}
