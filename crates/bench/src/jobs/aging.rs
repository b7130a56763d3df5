//! A volume with a past: filled with files of many sizes and emptied again, several times, so that
//! free space is not in one piece and nothing is where a fresh volume would have put it.

use std::io;

use super::stage::{Measured, Stage};
use crate::measurement::interrupt;
use crate::target::{Access, Name, Target, TargetFile};
use adit_base::random::Prng;

/// Sizes of the files: 4 KiB times a power of two below 2^SIZES, small ones more often.
const SIZES: u64 = 9;
/// Files that stay of each hundred: they keep the free space from becoming one piece again.
const STAY: u64 = 2;

/// Fills and empties.
pub(super) fn run<T: Target>(
    stage: &Stage<'_, T>,
    times: u32,
    percent: u32,
) -> io::Result<Vec<Measured>> {
    let mut prng = Prng::new(0xA6E);
    let fill_bytes = stage.target.available_bytes()? / 100 * u64::from(percent);
    for time in 0..times {
        let folder = stage.path(&format!("aged-{}-{time}", stage.round));
        stage.target.create_folder(&folder)?;
        let mut names: Vec<Name> = Vec::new();
        let mut filled_bytes = 0;
        let wanted_bytes = fill_bytes.min(stage.target.available_bytes()?);
        while filled_bytes < wanted_bytes {
            interrupt::check()?;
            let index = names.len() as u64;
            let name = stage.path(&format!("aged-{}-{time}/{index:06}", stage.round));
            let file = stage.target.create(&name, Access::Cached)?;
            let len_bytes = 4096u64 << prng.below(SIZES);
            let outcome = file.write_at(stage.noise.at(index, len_bytes as usize), 0);
            names.push(name);
            match outcome {
                Ok(()) => filled_bytes += len_bytes,
                Err(error) if error.kind() == io::ErrorKind::StorageFull => break,
                Err(error) => return Err(error),
            }
        }
        stage.target.sync_everything()?;
        // In another order than they came.
        while !names.is_empty() {
            let name = names.swap_remove(prng.below(names.len() as u64) as usize);
            if prng.below(100) >= STAY {
                stage.target.unlink(&name)?;
            }
        }
        stage.target.sync_everything()?;
    }
    Ok(Vec::new())
}
