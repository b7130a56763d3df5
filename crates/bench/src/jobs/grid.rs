//! One kind of operation at a time, in all its variations, as the evaluation of uFS has them (Liu
//! et al., SOSP 2021, §4.1): reading, overwriting and appending, in order or at random, what is in
//! memory or what isn't, each thread its own file or all the same.
//!
//! What is "on disk" is a file of four times the cache: nearly every page has to come from the
//! device, and go to it. Nothing is dropped by force, and no system is told to go past its cache.
//! Writes to disk end in a sync, which belongs to their time.

use std::io;

use serde::{Deserialize, Serialize};

use super::stage::{Measured, Stage, in_threads, places, to_the_end, warm};
use crate::measurement::data::{AlignedBuffer, PAGE_BYTES};
use crate::measurement::row::RowKey;
use crate::measurement::sample::{Limit, Sample, Timing};
use crate::target::{Access, Target, TargetFile};

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Read a page.
    Read,
    /// Overwrite a page.
    Write,
    /// Append a page.
    Append,
}

/// One variation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variation {
    /// What is done.
    pub action: Action,
    /// At random places, not one page after the other (appends have no choice).
    pub random: bool,
    /// Four times the cache, not a part of it.
    pub on_disk: bool,
    /// All threads use one file.
    pub shared: bool,
    /// Threads that do it at the same time.
    pub threads: u32,
}

/// Cheap operations are timed one in so many.
const STRETCH: u64 = 16;

impl Variation {
    fn files(self) -> u32 {
        if self.shared { 1 } else { self.threads }
    }

    fn title(self) -> String {
        let action = match self.action {
            Action::Read => "read",
            Action::Write => "overwrite",
            Action::Append => "append",
        };
        let order = match (self.action, self.random) {
            (Action::Append, _) => "",
            (_, true) => "random ",
            (_, false) => "sequential ",
        };
        let medium = if self.on_disk { "disk" } else { "memory" };
        let files = match (self.threads, self.shared) {
            (1, _) => "",
            (_, true) => ", one file",
            (_, false) => ", a file each",
        };
        format!("{order}{action} 4 KiB, {medium}{files}")
    }

    fn id(self) -> String {
        let action = match self.action {
            Action::Read => "read",
            Action::Write => "write",
            Action::Append => "append",
        };
        let order = match (self.action, self.random) {
            (Action::Append, _) => "",
            (_, true) => "-random",
            (_, false) => "-seq",
        };
        let medium = if self.on_disk { "disk" } else { "mem" };
        let shared = if self.shared && self.threads > 1 {
            "-shared"
        } else {
            ""
        };
        format!("grid-{action}{order}-{medium}{shared}")
    }
}

/// Measures one variation.
pub(super) fn run<T: Target>(
    stage: &Stage<'_, T>,
    variation: Variation,
) -> io::Result<Vec<Measured>> {
    let sample = match variation.action {
        Action::Append => append(stage, variation)?,
        Action::Read | Action::Write => pages(stage, variation)?,
    };
    let key = RowKey::new(variation.id(), variation.title(), PAGE_BYTES as u64);
    Ok(vec![(key.with_threads(variation.threads), sample)])
}

/// How much data all threads together work on.
fn total_bytes<T: Target>(stage: &Stage<'_, T>, on_disk: bool) -> u64 {
    match on_disk {
        true => stage.shape.cache_bytes * 4,
        false => stage.shape.cache_bytes / 4,
    }
}

fn pages<T: Target>(stage: &Stage<'_, T>, variation: Variation) -> io::Result<Sample> {
    let files = variation.files();
    let len_bytes = total_bytes(stage, variation.on_disk) / u64::from(files) / PAGE_BYTES as u64
        * PAGE_BYTES as u64;
    let medium = if variation.on_disk { "disk" } else { "mem" };
    let opened: io::Result<Vec<T::File>> = (0..files)
        .map(|file| stage.written_file(&format!("grid-{medium}-{file}"), len_bytes, Access::Cached))
        .collect();
    let opened = opened?;
    if !variation.on_disk {
        for file in &opened {
            warm(file, len_bytes)?;
        }
    }
    let pages = len_bytes / PAGE_BYTES as u64;
    let work = || {
        in_threads(variation.threads, |thread| {
            let file = &opened[thread as usize % opened.len()];
            let mut buffer = AlignedBuffer::new(PAGE_BYTES);
            let mut random = places(stage.round, thread, len_bytes);
            // Threads that share a file begin in different parts of it.
            let first = pages * u64::from(thread) / u64::from(variation.threads);
            let limit = Limit::time(stage.shape.slice);
            stage.measure(limit, Timing::OneIn(STRETCH), |turn| {
                let place = match variation.random {
                    true => random(),
                    false => (first + turn) % pages * PAGE_BYTES as u64,
                };
                match variation.action {
                    Action::Read => file.read_at(&mut buffer, place),
                    _ => file.write_at(stage.noise.at(turn, PAGE_BYTES), place),
                }
            })
        })
    };
    match variation.action == Action::Write && variation.on_disk {
        true => to_the_end(work, || opened.iter().try_for_each(TargetFile::sync_data)),
        false => work(),
    }
}

fn append<T: Target>(stage: &Stage<'_, T>, variation: Variation) -> io::Result<Sample> {
    let files = variation.files();
    let each = total_bytes(stage, variation.on_disk) / u64::from(variation.threads);
    let names: Vec<_> = (0..files)
        .map(|file| stage.name("grid-append", u64::from(file)))
        .collect();
    let created: io::Result<Vec<T::File>> = names
        .iter()
        .map(|name| stage.target.create(name, Access::Cached))
        .collect();
    let created = created?;
    let limit = Limit {
        time: match variation.on_disk {
            true => stage.shape.slice * 2,
            false => stage.shape.slice,
        },
        operations: each / PAGE_BYTES as u64,
    };
    let work = || {
        in_threads(variation.threads, |thread| {
            let file = &created[thread as usize % created.len()];
            stage.measure(limit, Timing::OneIn(STRETCH), |turn| {
                file.append(stage.noise.at(turn, PAGE_BYTES))
            })
        })
    };
    let sample = match variation.on_disk {
        true => to_the_end(work, || created.iter().try_for_each(TargetFile::sync_data)),
        false => work(),
    }?;
    drop(created);
    for name in &names {
        stage.target.unlink(name)?;
    }
    // What the removal leaves to be done is no other row's time.
    stage.target.sync_everything()?;
    Ok(sample)
}
