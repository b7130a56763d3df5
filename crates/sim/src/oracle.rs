//! The judge: checks that the durability contract allows the state after a crash.
//!
//! | after | may be found |
//! |---|---|
//! | the death of the process | every acknowledged operation; of the one under way all, nothing, or (of a write) a part |
//! | a power cut | the namespace after some prefix of the operations, not before what was made durable; of each file any mixture, byte by byte, of its content since its last sync (what was cut off in that time may also be zeroes); of an atomic write all or nothing |
//! | closing | exactly what was there |
//!
//! The volume has grown if that was acknowledged, and may have if it was begun.
//!
//! With several tasks, each has a prefix of its own, and together they are a prefix: if an
//! operation is there, so are all that ended before it began.

use crate::model::{Answer, File, Id, Kind, Model, Namespace};
use crate::observe::{Observed, Seen};
use crate::op::{Numbered, Op, owner};
use std::collections::BTreeMap;

/// How a life ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// The machine lost its power.
    PowerCut,
    /// The process died.
    ProcessDeath,
    /// The volume was closed.
    Closed,
}

/// An operation that was begun.
#[derive(Clone, Debug)]
pub struct Record {
    /// The operation.
    pub op: Numbered,
    /// When it began.
    pub invoked: u64,
    /// When it ended, and its result.
    pub returned: Option<(u64, Answer)>,
}

/// One task's initial state and operations in a life.
#[derive(Clone, Debug, Default)]
pub struct Task {
    /// The names that it found.
    pub namespace: Namespace,
    /// Bytes of the volume that it found.
    pub volume_bytes: u64,
    /// The content of files that it found.
    pub contents: BTreeMap<Id, Vec<u8>>,
    /// Its operations, in order.
    pub records: Vec<Record>,
}

/// A task as the oracle sees it at a moment.
struct View<'t> {
    model: Model,
    records: &'t [Record],
    /// Operations that had ended.
    acknowledged: usize,
    /// Content edits by file before the operation under way.
    settled: BTreeMap<Id, usize>,
}

impl Task {
    /// The task `number` as it was at `tick`. `synced`: beginnings of syncs of everything that had
    /// ended by then.
    fn at(&self, number: usize, tick: u64, synced: &[u64]) -> View<'_> {
        let mut model = Model::new(number, self.namespace.clone(), self.contents.clone());
        let begun = self.records.partition_point(|record| record.invoked < tick);
        let records = &self.records[..begun];
        let mut acknowledged = 0;
        let mut settled = BTreeMap::new();
        for record in records {
            match record
                .returned
                .as_ref()
                .filter(|(returned, _)| *returned < tick)
            {
                Some((returned, answer)) => {
                    model.apply(&record.op, Some(answer));
                    acknowledged += 1;
                    if synced.iter().any(|begun| returned < begun) {
                        model.everything_is_durable();
                    }
                }
                None => {
                    settled = model
                        .files
                        .iter()
                        .map(|(id, file)| (*id, file.edits.len()))
                        .collect();
                    model.apply(&record.op, None);
                }
            }
        }
        if acknowledged == records.len() {
            settled = model
                .files
                .iter()
                .map(|(id, file)| (*id, file.edits.len()))
                .collect();
        }
        View {
            model,
            records,
            acknowledged,
            settled,
        }
    }
}

/// Checks that `observed` is allowed after a crash at `tick`; the error names the contradiction.
pub fn judge(tasks: &[Task], tick: u64, crash: Crash, observed: &Observed) -> Result<(), String> {
    let synced: Vec<u64> = tasks
        .iter()
        .flat_map(|task| &task.records)
        .filter(|record| record.op.op == Op::SyncAll)
        .filter(|record| matches!(&record.returned, Some((at, Answer::Done)) if *at < tick))
        .map(|record| record.invoked)
        .collect();
    for path in observed.names.keys() {
        let known = matches!(path.as_str(), "/s" | "/fill")
            || owner(path).is_some_and(|task| task < tasks.len())
            || (path.starts_with("/t") && path.len() == 3);
        if !known {
            return Err(format!("{path} is there, and nobody made it"));
        }
    }
    has_grown(tasks, tick, observed.volume_bytes)?;
    let views: Vec<View<'_>> = tasks
        .iter()
        .enumerate()
        .map(|(number, task)| task.at(number, tick, &synced))
        .collect();
    let mut possible = Vec::new();
    for (number, view) in views.iter().enumerate() {
        possible.push(versions(number, view, crash, observed)?);
    }
    let is_ordered = crash == Crash::PowerCut && tasks.len() > 1;
    if is_ordered && !together(&views, &possible, &mut Vec::new()) {
        return Err(format!(
            "each task's names are those after a prefix of its operations (versions {possible:?}), but together \
             these are no prefix: an operation is there, and one that ended before it began is not"
        ));
    }
    Ok(())
}

/// Whether the volume has the size that it had, or one that was asked for, and none below an
/// acknowledged one.
fn has_grown(tasks: &[Task], tick: u64, volume_bytes: u64) -> Result<(), String> {
    let found = tasks.first().map_or(volume_bytes, |task| task.volume_bytes);
    let (mut least, mut possible) = (found, vec![found]);
    for record in tasks.iter().flat_map(|task| &task.records) {
        let Op::Grow { bytes } = record.op.op else {
            continue;
        };
        if record.invoked < tick {
            possible.push(bytes);
        }
        if matches!(&record.returned, Some((at, Answer::Done)) if *at < tick) {
            least = least.max(bytes);
        }
    }
    possible.retain(|bytes| *bytes >= least);
    match possible.contains(&volume_bytes) {
        true => Ok(()),
        false => Err(format!(
            "the volume has {volume_bytes} bytes, not one of {possible:?}"
        )),
    }
}

/// The versions of a task's namespace that this may be.
fn versions(
    number: usize,
    view: &View<'_>,
    crash: Crash,
    observed: &Observed,
) -> Result<Vec<usize>, String> {
    let model = &view.model;
    let from = match crash {
        Crash::PowerCut => model.durable,
        _ => view.acknowledged,
    };
    let mine: BTreeMap<&String, &Seen> = observed
        .names
        .iter()
        .filter(|(path, _)| owner(path) == Some(number))
        .collect();
    let (mut found, mut complaint) = (Vec::new(), None);
    for (version, namespace) in model.versions.iter().enumerate().skip(from) {
        let Ok(inodes) = same_names(namespace, &mine) else {
            continue;
        };
        match contents(view, version, crash, &inodes, observed) {
            Ok(()) => found.push(version),
            Err(what) => complaint = Some(what),
        }
    }
    if !found.is_empty() {
        return Ok(found);
    }
    if let Some(what) = complaint {
        return Err(what);
    }
    let earlier = model.versions[..from]
        .iter()
        .rposition(|namespace| same_names(namespace, &mine).is_ok());
    let last = model.versions.last().expect("there is a first version");
    let why = same_names(last, &mine).err().unwrap_or_default();
    Err(format!(
        "the names of task {number} are those of no allowed version (from {from} of {}; earlier one: {earlier:?}); \
         the latest differs in this: {why}",
        model.versions.len() - 1
    ))
}

/// Compares names and attributes; returns the observed inode of each of the model's.
fn same_names(
    namespace: &Namespace,
    mine: &BTreeMap<&String, &Seen>,
) -> Result<BTreeMap<Id, u64>, String> {
    for path in mine.keys() {
        if !namespace.names.contains_key(*path) {
            return Err(format!("{path} is there"));
        }
    }
    let mut inodes = BTreeMap::new();
    for (path, id) in &namespace.names {
        let Some(seen) = mine.get(path) else {
            return Err(format!("{path} is missing"));
        };
        let inode = &namespace.inodes[id];
        if *inode != seen.what {
            return Err(format!("{path} is {:?}, not {inode:?}", seen.what));
        }
        let links = namespace
            .names
            .values()
            .filter(|other| *other == id)
            .count();
        if inode.kind != Kind::Directory && seen.links as usize != links {
            return Err(format!(
                "{path} says it has {} names, not {links}",
                seen.links
            ));
        }
        if *inodes.entry(*id).or_insert(seen.inode) != seen.inode {
            return Err(format!("{path} is another inode than its other names"));
        }
    }
    let mut numbers: Vec<u64> = inodes.values().copied().collect();
    numbers.sort_unstable();
    numbers.dedup();
    if numbers.len() == inodes.len() {
        Ok(inodes)
    } else {
        Err("two files have become one".to_owned())
    }
}

fn contents(
    view: &View<'_>,
    version: usize,
    crash: Crash,
    inodes: &BTreeMap<Id, u64>,
    observed: &Observed,
) -> Result<(), String> {
    for (id, inode) in inodes {
        let (Some(file), Some(content)) = (view.model.files.get(id), observed.contents.get(inode))
        else {
            continue; // no file
        };
        let from = match crash {
            Crash::PowerCut => {
                let replaced = file.replaced.iter().filter(|(at, _)| *at <= version);
                replaced
                    .map(|(_, edits)| *edits)
                    .fold(file.synced, usize::max)
            }
            _ => view.settled.get(id).copied().unwrap_or(0),
        };
        let from = file.uncertain.map_or(from, |uncertain| from.min(uncertain));
        same_content(file, from, content).map_err(|what| {
            let names = view.model.versions[version].names.iter();
            let path = names.filter(|(_, other)| *other == id).map(|(path, _)| path).next();
            format!(
                "{} (inode {inode}, {} edits, {from} of them must be there, version {version}): {what}",
                path.map_or("?", |path| path),
                file.edits.len(),
            )
        })?;
    }
    Ok(())
}

/// Whether every byte is one that the file had since edit `from`, and atomic edits are there as a
/// whole or not at all.
fn same_content(file: &File, from: usize, content: &[u8]) -> Result<(), String> {
    let mut now = file.base.clone();
    for edit in &file.edits[..from] {
        edit.apply(&mut now);
    }
    let (mut low, mut high) = (now.len(), now.len());
    let mut right: Vec<bool> = (0..content.len())
        .map(|at| now.get(at) == Some(&content[at]))
        .collect();
    for (index, edit) in file.edits.iter().enumerate().skip(from) {
        let cut = edit.size as usize..now.len();
        // A failed edit may be missing; a later one then finds zeroes beyond the end.
        let later = file.edits[index + 1..].iter().map(|later| later.size);
        let reach = if edit.failed {
            later.max().unwrap_or(0).min(edit.size) as usize
        } else {
            0
        };
        for at in now.len()..reach.min(content.len()) {
            right[at] |= content[at] == 0;
        }
        edit.apply(&mut now);
        low = low.min(now.len());
        high = high.max(now.len());
        // Bytes cut off may read as zeroes before the size is durable.
        for at in cut.start..cut.end.min(content.len()) {
            right[at] |= content[at] == 0;
        }
        if edit.atomic && !overwritten(&file.edits[index + 1..], edit) {
            all_or_nothing(edit, &now, content, &right)?;
        }
        for (offset, bytes) in &edit.ranges {
            for at in *offset as usize..(*offset as usize + bytes.len()).min(content.len()) {
                right[at] |= now.get(at) == Some(&content[at]);
            }
        }
    }
    if content.len() < low || content.len() > high {
        return Err(format!(
            "it has {} bytes, not {low} to {high}",
            content.len()
        ));
    }
    let Some(wrong) = right.iter().position(|right| !right) else {
        return Ok(());
    };
    let count = right.iter().filter(|right| !**right).count();
    let zeroes = content[wrong..]
        .iter()
        .take_while(|byte| **byte == 0)
        .count();
    Err(format!(
        "of {} bytes {count} are wrong, the first at {wrong} ({}); its latest content has {} bytes",
        content.len(),
        match zeroes {
            0 => format!("it is {:#04x}", content[wrong]),
            n => format!("{n} zeroes from there"),
        },
        now.len()
    ))
}

/// True if later edits change an atomic one's bytes; then it can't be recognized.
fn overwritten(later: &[crate::model::Edit], edit: &crate::model::Edit) -> bool {
    later.iter().any(|other| {
        edit.ranges.iter().any(|(offset, bytes)| {
            let end = offset + bytes.len() as u64;
            other.size < end
                || other
                    .ranges
                    .iter()
                    .any(|(start, bytes)| *start < end && *offset < start + bytes.len() as u64)
        })
    })
}

fn all_or_nothing(
    edit: &crate::model::Edit,
    now: &[u8],
    content: &[u8],
    before: &[bool],
) -> Result<(), String> {
    let (mut new, mut old) = (true, true);
    for (offset, bytes) in &edit.ranges {
        for at in *offset as usize..*offset as usize + bytes.len() {
            new &= content.get(at) == now.get(at);
            // Beyond the end: not there.
            old &= before.get(at).copied().unwrap_or(true);
        }
    }
    if new || old {
        Ok(())
    } else {
        Err(format!(
            "an atomic write of {:?} is there in part",
            edit.ranges
                .iter()
                .map(|(at, bytes)| (at, bytes.len()))
                .collect::<Vec<_>>()
        ))
    }
}

/// Whether one version of each task can be chosen so that they are a prefix together.
fn together(views: &[View<'_>], possible: &[Vec<usize>], chosen: &mut Vec<usize>) -> bool {
    let task = chosen.len();
    if task == views.len() {
        return true;
    }
    // The latest first: it is the likely one.
    for &version in possible[task].iter().rev() {
        let fits = (0..task).all(|other| {
            ordered(&views[task], version, &views[other], chosen[other])
                && ordered(&views[other], chosen[other], &views[task], version)
        });
        if fits {
            chosen.push(version);
            if together(views, possible, chosen) {
                return true;
            }
            chosen.pop();
        }
    }
    false
}

/// True if the operations found of `a` began before those missing of `b` had ended.
fn ordered(a: &View<'_>, at_a: usize, b: &View<'_>, at_b: usize) -> bool {
    let changed = |view: &View<'_>, index: usize| {
        !std::rc::Rc::ptr_eq(&view.model.versions[index], &view.model.versions[index + 1])
    };
    let last_there = (0..at_a).rev().find(|index| changed(a, *index));
    let first_missing = (at_b..b.records.len()).find(|index| changed(b, *index));
    let (Some(there), Some(missing)) = (last_there, first_missing) else {
        return true;
    };
    match &b.records[missing].returned {
        Some((returned, _)) => a.records[there].invoked < *returned,
        None => true,
    }
}
