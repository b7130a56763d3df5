//! From samples to a report: medians over the rounds, their spread, ratios.
//!
//! Rates are medians of the rounds' rates; percentiles are those of all rounds together. A ratio is
//! of rates: above 1 means more operations per second than the other system.

use std::io;

use serde::Serialize;

use crate::jobs::{Measured, RowKey};
use crate::resources;
use crate::sample::Sample;

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

/// One kind of operation.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// A short stable name, for programs.
    pub id: &'static str,
    /// What the table calls it.
    pub title: String,
    /// Threads that did it at the same time.
    pub threads: u32,
    /// One for each system that can do it.
    pub cells: Vec<Cell>,
}

/// One kind of operation on one system.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The system: `adit`, the kernel's file system by its name, `raw`.
    pub system: String,
    /// Median over the rounds.
    pub operations_per_second: f64,
    /// (highest - lowest) / median of the rounds' rates.
    pub spread: f64,
    /// The rate of each round.
    pub rounds: Vec<f64>,
    /// Half of the operations took at most this long.
    pub p50_us: f64,
    /// 99 of 100.
    pub p99_us: f64,
    /// 999 of 1000.
    pub p999_us: f64,
    /// How many operations the percentiles rest on.
    pub timed: u64,
    /// Bytes read from devices for each byte that was asked for (read rows only).
    pub device_bytes_per_byte: Option<f64>,
    /// Memory of the process after the row, its cache included, the kernel's cache not. Only
    /// where one system has a process to itself: [`measure_one`](crate::measure_one).
    pub resident_bytes: Option<u64>,
    /// Rate by the kernel's rate.
    pub to_kernel: Option<f64>,
    /// Rate by the raw floor's rate.
    pub to_raw: Option<f64>,
}

/// The label of the floor and of Adit; every other label is a kernel's file system.
pub(crate) const RAW: &str = "raw";
pub(crate) const ADIT: &str = "adit";

/// Gathers samples while the rounds go.
pub(crate) struct Collector {
    systems: Vec<String>,
    rows: Vec<Gathered>,
    omitted: Vec<String>,
    /// The process's memory is that of its only system.
    alone: bool,
}

struct Gathered {
    key: RowKey,
    /// By system: the rounds' samples and the last resident size.
    samples: Vec<Vec<Sample>>,
    resident_bytes: Vec<Option<u64>>,
}

impl Collector {
    pub(crate) fn new(systems: impl Iterator<Item = String>, alone: bool) -> Collector {
        Collector {
            systems: systems.collect(),
            rows: Vec::new(),
            omitted: Vec::new(),
            alone,
        }
    }

    /// Notes what a system can't do; once is enough.
    pub(crate) fn omit(&mut self, what: String) {
        if !self.omitted.contains(&what) {
            self.omitted.push(what);
        }
    }

    pub(crate) fn add(&mut self, system: usize, measured: Vec<Measured>) {
        let count = self.systems.len();
        for (key, sample) in measured {
            let index = match self.rows.iter().position(|row| row.key == key) {
                Some(index) => index,
                None => {
                    self.rows.push(Gathered {
                        key,
                        samples: vec![Vec::new(); count],
                        resident_bytes: vec![None; count],
                    });
                    self.rows.len() - 1
                }
            };
            self.rows[index].samples[system].push(sample);
            if self.alone {
                self.rows[index].resident_bytes[system] = resources::resident_bytes();
            }
        }
    }

    pub(crate) fn into_block(self, title: String) -> Block {
        let rounds = self
            .rows
            .iter()
            .flat_map(|row| row.samples.iter().map(Vec::len))
            .max();
        let systems = self.systems;
        Block {
            title,
            rounds: rounds.unwrap_or(0),
            rows: self
                .rows
                .into_iter()
                .map(|row| row.finish(&systems))
                .collect(),
            omitted: self.omitted,
        }
    }
}

impl Gathered {
    fn finish(self, systems: &[String]) -> Row {
        let mut cells: Vec<Cell> = Vec::new();
        for (index, system) in systems.iter().enumerate() {
            let samples = &self.samples[index];
            if samples.is_empty() {
                continue;
            }
            let mut cell = summarize(system, samples, self.key.operation_bytes);
            cell.resident_bytes = self.resident_bytes[index];
            cells.push(cell);
        }
        add_ratios(&mut cells);
        Row {
            id: self.key.id,
            title: self.key.title,
            threads: self.key.threads,
            cells,
        }
    }
}

fn summarize(system: &str, samples: &[Sample], operation_bytes: u64) -> Cell {
    let rates: Vec<f64> = samples.iter().map(Sample::rate).collect();
    let (median, spread) = median_and_spread(&rates);
    let mut all = samples[0].clone();
    for sample in &samples[1..] {
        all.absorb(sample);
    }
    let asked: u64 = samples.iter().map(|s| s.operations * operation_bytes).sum();
    let read: Option<u64> = samples.iter().map(|s| s.device_read_bytes).sum();
    Cell {
        system: system.to_owned(),
        operations_per_second: median,
        spread,
        p50_us: all.latency_us(0.5),
        p99_us: all.latency_us(0.99),
        p999_us: all.latency_us(0.999),
        timed: all.latencies.len(),
        device_bytes_per_byte: read
            .filter(|_| asked > 0)
            .map(|read| read as f64 / asked as f64),
        resident_bytes: None,
        rounds: rates,
        to_kernel: None,
        to_raw: None,
    }
}

fn add_ratios(cells: &mut [Cell]) {
    let rate_of = |wanted: &dyn Fn(&str) -> bool| {
        let cell = cells.iter().find(|cell| wanted(&cell.system));
        cell.map(|cell| cell.operations_per_second)
    };
    let raw = rate_of(&|system| system == RAW);
    let kernel = rate_of(&|system| system != RAW && system != ADIT);
    for cell in cells {
        let to = |other: Option<f64>| other.map(|rate| cell.operations_per_second / rate);
        (cell.to_kernel, cell.to_raw) = match cell.system.as_str() {
            RAW => (None, None),
            ADIT => (to(kernel), to(raw)),
            _ => (None, to(raw)),
        };
    }
}

/// The median, and the distance of the extremes relative to it.
pub(crate) fn median_and_spread(values: &[f64]) -> (f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (Some(low), Some(high)) = (sorted.first(), sorted.last()) else {
        return (0.0, 0.0);
    };
    let middle = sorted.len() / 2;
    let median = match sorted.len() % 2 {
        1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    };
    (median, (high - low) / median.max(1e-9))
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

#[cfg(test)]
mod tests {
    use super::median_and_spread;

    #[test]
    fn the_median_is_in_the_middle_and_the_spread_covers_the_extremes() {
        assert_eq!(median_and_spread(&[30.0, 10.0, 20.0]), (20.0, 1.0));
        assert_eq!(median_and_spread(&[10.0, 30.0]).0, 20.0);
        assert_eq!(median_and_spread(&[]), (0.0, 0.0));
    }
}
