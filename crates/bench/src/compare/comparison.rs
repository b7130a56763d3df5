//! The result of a comparison.

use std::io;
use std::path::Path;

use serde::Serialize;

use super::growth::{self, Curve};
use super::suites::{Group, Suite};
use super::systems::System;
use crate::measurement::environment::Environment;
use crate::measurement::layers::BreakdownRow;
use crate::measurement::medians::{Row, Rows};

/// Everything that was measured, and how.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Where.
    pub environment: Environment,
    /// How thorough.
    pub suite: Suite,
    /// How often everything was measured.
    pub repetitions: u32,
    /// How long all of it took.
    pub seconds: f64,
    /// Who.
    pub systems: Vec<SystemInfo>,
    /// What, a table each.
    pub groups: Vec<GroupResult>,
    /// The parts that were left out, with reasons.
    pub notes: Vec<String>,
}

/// A system, and how to make the same one.
#[derive(Clone, Debug, Serialize)]
pub struct SystemInfo {
    /// Its name in tables.
    pub name: String,
    /// In its own words.
    pub version: String,
    /// As a shell would do it, on an empty device.
    pub commands: Vec<String>,
}

impl SystemInfo {
    pub(crate) fn new(system: &System, device: &Path) -> SystemInfo {
        SystemInfo {
            name: system.name().to_owned(),
            version: system.version(),
            commands: system.commands(device),
        }
    }
}

/// Rows that were measured together.
#[derive(Clone, Debug, Serialize)]
pub struct GroupResult {
    /// A short stable name, for programs.
    pub id: String,
    /// The title of the table.
    pub title: String,
    /// The terms: synced, warm, preallocated.
    pub terms: String,
    /// The memory for each system's cache, the page cache or Adit's.
    pub cache_bytes: u64,
    /// The bound on what a process on a file system of the kernel had in memory, its page cache
    /// included; `None` where none was measured.
    pub kernel_memory_bytes: Option<u64>,
    /// In the order in which they were measured.
    pub rows: Vec<Row>,
    /// Those that are points of curves, once more as curves.
    pub curves: Vec<Curve>,
    /// Where the time of Adit's operations goes, in the group that is about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<BreakdownRow>,
}

impl GroupResult {
    pub(crate) fn new(group: &Group, rows: Rows, layers: Vec<BreakdownRow>) -> GroupResult {
        let rows = rows.finish();
        let kernel = System::Kernel(String::new());
        GroupResult {
            id: group.id.to_owned(),
            title: group.title.to_owned(),
            terms: group.terms.to_owned(),
            cache_bytes: group.cache_bytes,
            kernel_memory_bytes: group
                .concerns(&kernel, 0)
                .then(|| group.memory_bytes(&kernel)),
            curves: growth::curves(&rows),
            rows,
            layers,
        }
    }
}

impl GroupResult {
    /// Whether all rows are points of curves over threads.
    pub(crate) fn is_by_threads(&self) -> bool {
        let is_point = |row: &Row| row.at == Some(row.threads.into());
        !self.rows.is_empty() && self.rows.iter().all(is_point)
    }
}

impl Comparison {
    /// For programs.
    pub fn to_json(&self) -> io::Result<String> {
        serde_json::to_string_pretty(self).map_err(io::Error::other)
    }

    /// The systems that a group measured something on.
    pub(crate) fn systems_in(&self, group: &GroupResult) -> Vec<&str> {
        let names = self.systems.iter().map(|system| system.name.as_str());
        let measured = |name: &str| group.rows.iter().any(|row| row.cell(name).is_some());
        names.filter(|name| measured(name)).collect()
    }

    /// All rows in which Adit has less than 0.95 of the fastest kernel file system's rate, the
    /// worst first.
    pub(crate) fn lost(&self) -> Vec<(&GroupResult, &Row, f64)> {
        let rows = self
            .groups
            .iter()
            .flat_map(|group| group.rows.iter().map(move |row| (group, row)));
        let mut lost: Vec<_> = rows
            .filter_map(|(group, row)| Some((group, row, row.to_kernel()?)))
            .filter(|&(_, _, ratio)| ratio < 0.95)
            .collect();
        lost.sort_by(|a, b| a.2.total_cmp(&b.2));
        lost
    }
}
