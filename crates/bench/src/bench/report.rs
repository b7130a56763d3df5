//! The result of `adit bench`.

use std::io;

use serde::Serialize;

use crate::measurement::environment::Environment;
use crate::measurement::medians::Row;

/// The result of a run. `Display` makes the table.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where it ran.
    pub environment: Environment,
    /// One for each place: the directory's device, memory.
    pub blocks: Vec<Block>,
    /// Remarks that a reader needs before drawing conclusions.
    pub notes: Vec<String>,
}

/// A table: the same jobs on several systems at one place.
#[derive(Clone, Debug, Serialize)]
pub struct Block {
    /// Its title.
    pub title: String,
    /// Rounds that were measured.
    pub rounds: usize,
    /// The rows, in the order of the jobs.
    pub rows: Vec<Row>,
    /// The reasons for missing rows or cells: jobs that a system cannot do here.
    pub omitted: Vec<String>,
}

impl Report {
    /// The report for programs.
    pub fn to_json(&self) -> io::Result<String> {
        serde_json::to_string_pretty(self).map_err(io::Error::other)
    }
}
