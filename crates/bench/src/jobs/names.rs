//! Names: a folder of many empty files, changed and looked at in blocks.
//!
//! Each block ends in a syncfs, which belongs to its time: no system leaves work to a later row,
//! and a log longer than the block does not hide the cost of its checkpoint.

use std::ffi::CString;
use std::io;

use super::stage::{Measured, Stage};
use crate::measurement::row::RowKey;
use crate::measurement::sample::{Limit, Sample, Timing};
use crate::target::{Access, Name, Target};

/// Of so many operations one is timed.
const STRETCH: u64 = 8;

/// Create, stat, open and close, list, rename, unlink.
pub(super) fn run<T: Target>(stage: &Stage<'_, T>) -> io::Result<Vec<Measured>> {
    let target = stage.target;
    let folder = stage.folder("names");
    let names = |kind: char| -> Vec<Name> {
        (0..stage.shape.names)
            .map(|i| stage.inside("names", format_args!("{kind}{i:07}")))
            .collect()
    };
    let (first, second) = (names('f'), names('g'));
    // Not in the order of creation, the same in each system.
    let order: Vec<usize> = scattered(first.len());
    target.create_folder(&folder)?;
    target.sync_everything()?;

    let mut rows = Vec::new();
    let mut block = |id, title: &str, each: &dyn Fn(usize) -> io::Result<()>| -> io::Result<()> {
        name_thread(id);
        let limit = Limit::operations(stage.shape.names);
        let sample = stage.observe_to(
            limit,
            Timing::OneIn(STRETCH),
            |turn| each(turn as usize),
            || target.sync_everything(),
        )?;
        rows.push((RowKey::new(id, title, 0), sample));
        Ok(())
    };
    block("create", "create + close", &|i| {
        target.create(&first[i], Access::Cached).map(drop)
    })?;
    block("stat", "stat", &|i| match target.stat(&first[order[i]])? {
        0 => Ok(()),
        _ => Err(io::Error::other("an empty file has a size")),
    })?;
    block("stat-one", "stat of one file", &|_| {
        target.stat(&first[0]).map(drop)
    })?;
    block("open", "open + close", &|i| {
        target.open(&first[order[i]], Access::Cached).map(drop)
    })?;
    let listed = list(stage, &folder)?;
    block("rename", "rename", &|i| {
        target.rename(&first[i], &second[i])
    })?;
    block("unlink", "unlink", &|i| target.unlink(&second[order[i]]))?;
    name_thread("adit");
    rows.push((RowKey::new("list", "list a directory, a name", 0), listed));
    target.remove_folder(&folder)?;
    target.sync_everything()?;
    Ok(rows)
}

/// Lets a profiler tell the rows apart.
fn name_thread(name: &str) {
    if let Ok(name) = CString::new(name) {
        let _ = rustix::thread::set_name(&name);
    }
}

/// Reads all names of the folder; an operation is a name.
fn list<T: Target>(stage: &Stage<'_, T>, folder: &Name) -> io::Result<Sample> {
    let mut sample = stage.observe(Limit::operations(1), Timing::Each, |_| {
        match stage.target.list(folder)? {
            names if names == stage.shape.names => Ok(()),
            names => Err(io::Error::other(format!(
                "{names} names were listed of {}",
                stage.shape.names
            ))),
        }
    })?;
    sample.operations = stage.shape.names;
    Ok(sample)
}

/// All indexes below `count`, each once, in a scattered order: steps of a prime.
fn scattered(count: usize) -> Vec<usize> {
    const STEP: usize = 7919;
    if count.is_multiple_of(STEP) {
        return (0..count).collect();
    }
    (0..count).map(|i| i.wrapping_mul(STEP) % count).collect()
}

#[cfg(test)]
mod tests {
    use super::scattered;

    #[test]
    fn a_scattered_order_has_each_index_once() {
        for count in [1, 2, 1000, 7919, 20_000] {
            let mut order = scattered(count);
            order.sort_unstable();
            assert_eq!(order, (0..count).collect::<Vec<_>>());
        }
    }
}
