//! What `adit bench` found out, and where.

use std::io;

use serde::Serialize;

use crate::rows::Row;

/// Everything that a run found out. `Display` makes the table.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where it ran.
    pub environment: Environment,
    /// One for each place: the directory's device, memory.
    pub blocks: Vec<Block>,
    /// What a reader should know before drawing conclusions.
    pub notes: Vec<String>,
}

/// The machine and the place.
#[derive(Clone, Debug, Serialize)]
pub struct Environment {
    /// Version of Adit.
    pub adit: String,
    /// Kernel release.
    pub kernel: String,
    /// What the processor calls itself.
    pub processor: String,
    /// Processors that may be used.
    pub cores: usize,
    /// Where the images and files were.
    pub place: String,
}

/// A table: the same jobs on several systems at one place.
#[derive(Clone, Debug, Serialize)]
pub struct Block {
    /// What it is about.
    pub title: String,
    /// Rounds that were measured.
    pub rounds: usize,
    /// The rows, in the order of the jobs.
    pub rows: Vec<Row>,
    /// What rows or cells are missing for: what a system can't do here.
    pub omitted: Vec<String>,
}

impl Environment {
    pub(crate) fn here(place: String) -> Environment {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = cpu
            .lines()
            .find_map(|line| line.strip_prefix("model name"))
            .and_then(|rest| rest.split_once(": "))
            .map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned());
        let uname = rustix::system::uname();
        Environment {
            adit: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: uname.release().to_string_lossy().into_owned(),
            processor,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            place,
        }
    }
}

impl Report {
    /// The report for programs.
    pub fn to_json(&self) -> io::Result<String> {
        serde_json::to_string_pretty(self).map_err(io::Error::other)
    }
}
