//! Files that are replaced: a commit creates and syncs a file, then writes another one aside,
//! renames it over `current` and syncs the directory.
//!
//! `recent.0` to `recent.7` are created in turn without a sync of the directory: a synced file can
//! be reached by its name. Verification: `current` has all bytes of commit N, for some N, and the
//! recent files those of commits N-6 to N. The file of commit N+1 may be in any state.

use crate::content::{mixed, stamp_of, stamped};
use crate::place::{Open, Place};
use crate::writer::{Opened, Outcome, Writer, last_of};

const TAG: u64 = 3;
/// Files that are made anew in turn.
const RECENT: u64 = 8;
const CURRENT: &str = "current";
const ASIDE: &str = "current.aside";

fn content(number: u64) -> Vec<u8> {
    stamped(TAG, number, 8 + (mixed(number) % 12_000) as usize)
}

fn recent(number: u64) -> String {
    format!("recent.{}", number % RECENT)
}

struct Names<'a>(&'a Place);

/// The commit whose bytes a file has.
fn commit_of(place: &Place, name: &str) -> Outcome<u64> {
    let bytes = place.read(name)?;
    stamp_of(TAG, &bytes)
        .filter(|&number| bytes == content(number))
        .ok_or(format!(
            "{name} ({} bytes) is not what any commit wrote",
            bytes.len()
        ))
}

/// Verifies all files.
pub(crate) fn open(place: &Place) -> Opened<'_> {
    let found = match place.exists(CURRENT)? {
        true => commit_of(place, CURRENT)?,
        false => 0,
    };
    for turn in 0..RECENT {
        let expected = last_of(turn, found, |number, turn| number % RECENT == turn);
        if turn == (found + 1) % RECENT || expected == 0 {
            continue;
        }
        let there = commit_of(place, &recent(turn))?;
        if there != expected {
            return Err(format!(
                "{} is of commit {there} instead of {expected}; {CURRENT} of {found}",
                recent(turn)
            ));
        }
    }
    Ok((Box::new(Names(place)), found))
}

impl Writer for Names<'_> {
    fn commit(&mut self, number: u64) -> Outcome {
        let Names(place) = self;
        let bytes = content(number);
        place.remove(&recent(number))?;
        let file = place.file(&recent(number), Open::New)?;
        file.write_at(&bytes, 0)?;
        file.sync_all()?;
        place.remove(ASIDE)?;
        let file = place.file(ASIDE, Open::New)?;
        file.write_at(&bytes, 0)?;
        // On a volume, a rename over a file writes the source's data home first. The first one has
        // none to go over: seed 30 was cut behind it, and its empty file was taken for a violation.
        let replaces = place.exists(CURRENT)?;
        if number.is_multiple_of(2) || !replaces || !place.is_strict() {
            file.sync_all()?;
        }
        drop(file);
        place.rename(ASIDE, CURRENT)?;
        place.sync_names()
    }
}
