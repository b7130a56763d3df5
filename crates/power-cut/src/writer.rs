//! A writer: verifies the state that a power cut left, and makes more commits.

use std::path::Path;
use std::thread;
use std::time::Duration;

/// The result of a step; the error is a sentence.
pub(crate) type Outcome<T = ()> = Result<T, String>;

/// A writer, and the number of the last commit that it found.
pub(crate) type Opened<'a> = Outcome<(Box<dyn Writer + 'a>, u64)>;

/// Commits, one after the other.
pub(crate) trait Writer {
    /// Makes commit `number` durable. All earlier ones are.
    fn commit(&mut self, number: u64) -> Outcome;
}

/// Opens, reports the last commit found, and commits for ever; returns after it reported a failure.
pub(crate) fn live<'a>(name: &str, open: impl FnOnce() -> Opened<'a>, say: impl Fn(&str)) {
    let outcome = open().and_then(|(mut writer, found)| {
        say(&format!("found {name} {found}"));
        wait_for_others();
        for number in found + 1.. {
            writer
                .commit(number)
                .map_err(|error| format!("commit {number} failed: {error}"))?;
            say(&format!("ack {name} {number}"));
        }
        Ok(())
    });
    if let Err(error) = outcome {
        say(&format!("bad {name} {}", error.replace('\n', " ")));
    }
}

/// The guest's init creates this file when every writer has verified its state.
const GO: &str = "/tmp/go";

/// Waits until every writer is ready: on a slow guest, commits would starve verification.
fn wait_for_others() {
    while !Path::new(GO).exists() {
        thread::sleep(Duration::from_millis(50));
    }
}

/// The number of the last commit up to `number` that chose `place` out of `places`.
pub(crate) fn last_of(place: u64, number: u64, chooses: impl Fn(u64, u64) -> bool) -> u64 {
    (1..=number)
        .rev()
        .find(|&number| chooses(number, place))
        .unwrap_or(0)
}
