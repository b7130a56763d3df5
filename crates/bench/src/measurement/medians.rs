//! From measurements to rows: medians over the rounds, their spread, ratios.
//!
//! A rate, a percentile, a cost is the median of the rounds'. A ratio is of rates: above 1 means
//! more operations per second than the other system.

use std::collections::BTreeMap;

use serde::Serialize;

use super::row::{Measurement, threads_in_title};

/// The labels of the floor, of Adit, of Adit with several workers, of programs under `adit run`,
/// and of clients of a server; every other label is a kernel's file system.
pub(crate) const RAW: &str = "raw";
pub(crate) const ADIT: &str = "adit";
pub(crate) const WORKERS: &str = "workers";
pub(crate) const ADIT_RUN: &str = "adit run";
pub(crate) const SERVED: &str = "served";

/// One kind of operation.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// A short stable name, for programs.
    pub id: String,
    /// Its name in the table.
    pub title: String,
    /// Threads that did it at the same time.
    pub threads: u32,
    /// Where on its curve, see [`Measurement::at`].
    pub at: Option<u64>,
    /// Bytes that each operation moves on behalf of the caller (0 where that means nothing).
    pub operation_bytes: u64,
    /// One for each system that can do it.
    pub cells: Vec<Cell>,
    /// Adit's rate by that of each other system; that of a server's clients, where no volume was
    /// embedded.
    pub adit_to: BTreeMap<String, f64>,
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
    /// Half of the operations took at most this long; `None` when too few were timed.
    pub p50_us: Option<f64>,
    /// 99 of 100.
    pub p99_us: Option<f64>,
    /// 999 of 1000.
    pub p999_us: Option<f64>,
    /// Time of the machine's processors for each operation, the kernel's threads included, µs.
    pub cpu_us: Option<f64>,
    /// Bytes read from devices for each byte that was asked for (only where an operation moves
    /// bytes).
    pub device_bytes_per_byte: Option<f64>,
    /// Memory in use after the row, see [`Measurement::memory_bytes`].
    pub memory_bytes: Option<u64>,
    /// See [`Measurement::lock_share`].
    pub lock_share: Option<f64>,
    /// See [`Measurement::least_share`].
    pub least_share: Option<f64>,
}

impl Row {
    /// The cell of that system.
    pub fn cell(&self, system: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.system == system)
    }

    /// Its name in the table, without the count of threads.
    pub(crate) fn title_of_one_thread(&self) -> &str {
        let threads = threads_in_title(self.threads);
        self.title.strip_suffix(&threads).unwrap_or(&self.title)
    }

    /// Adit's rate by that of the fastest of the kernel's file systems.
    pub fn to_kernel(&self) -> Option<f64> {
        let kernels = self.adit_to.iter();
        let kernels = kernels
            .filter(|(system, _)| ![RAW, WORKERS, ADIT_RUN, SERVED].contains(&system.as_str()));
        kernels.map(|(_, &ratio)| ratio).min_by(f64::total_cmp)
    }

    /// Adit's rate by that of the bare device.
    pub fn to_raw(&self) -> Option<f64> {
        self.adit_to.get(RAW).copied()
    }
}

impl Cell {
    /// µs that an operation took, all threads together: with two threads half of what each of them
    /// sees.
    pub fn us(&self) -> f64 {
        1e6 / self.operations_per_second.max(1e-9)
    }
}

/// Gathers measurements while the rounds go.
pub(crate) struct Rows {
    systems: Vec<String>,
    rows: Vec<Gathered>,
    /// Where the next new row belongs: behind the one that was filled last.
    next: usize,
}

struct Gathered {
    /// The part that all its measurements have in common.
    like: Measurement,
    /// By system.
    measured: Vec<Vec<Measurement>>,
}

impl Rows {
    pub(crate) fn new(systems: impl IntoIterator<Item = String>) -> Rows {
        Rows {
            systems: systems.into_iter().collect(),
            rows: Vec::new(),
            next: 0,
        }
    }

    /// Adds what a round measured on that system, in the order of the table.
    pub(crate) fn add(&mut self, system: usize, measured: Vec<Measurement>) {
        let count = self.systems.len();
        self.next = 0;
        for measurement in measured {
            let same = |row: &Gathered| {
                let (a, b) = (&row.like, &measurement);
                (&a.id, &a.title, a.threads, a.at) == (&b.id, &b.title, b.threads, b.at)
            };
            let index = self.rows.iter().position(same).unwrap_or_else(|| {
                let row = Gathered {
                    like: measurement.clone(),
                    measured: vec![Vec::new(); count],
                };
                self.rows.insert(self.next, row);
                self.next
            });
            self.next = index + 1;
            self.rows[index].measured[system].push(measurement);
        }
    }

    /// The most rounds that any system did.
    pub(crate) fn rounds(&self) -> usize {
        let rounds = self
            .rows
            .iter()
            .flat_map(|row| row.measured.iter().map(Vec::len));
        rounds.max().unwrap_or(0)
    }

    pub(crate) fn finish(self) -> Vec<Row> {
        let systems = &self.systems;
        self.rows
            .into_iter()
            .map(|row| row.finish(systems))
            .collect()
    }
}

impl Gathered {
    fn finish(self, systems: &[String]) -> Row {
        let measured = systems
            .iter()
            .zip(&self.measured)
            .filter(|(_, measured)| !measured.is_empty());
        let cells: Vec<Cell> = measured
            .map(|(system, measured)| summarize(system, measured))
            .collect();
        let rate_of = |cell: &Cell| cell.operations_per_second;
        let cell = |system: &str| cells.iter().find(|cell| cell.system == system);
        let adit_to = match cell(ADIT).or_else(|| cell(SERVED)) {
            Some(own) => {
                let others = cells.iter().filter(|cell| cell.system != own.system);
                others
                    .map(|cell| (cell.system.clone(), rate_of(own) / rate_of(cell).max(1e-9)))
                    .collect()
            }
            None => BTreeMap::new(),
        };
        Row {
            id: self.like.id,
            title: self.like.title,
            threads: self.like.threads,
            at: self.like.at,
            operation_bytes: self.like.operation_bytes,
            cells,
            adit_to,
        }
    }
}

fn summarize(system: &str, measured: &[Measurement]) -> Cell {
    let rates: Vec<f64> = measured.iter().map(Measurement::rate).collect();
    let (median, spread) = median_and_spread(&rates);
    // Where a round lacks the number, the others have it.
    let median_of = |of: &dyn Fn(&Measurement) -> Option<f64>| {
        let values: Vec<f64> = measured.iter().filter_map(of).collect();
        (!values.is_empty()).then(|| median_and_spread(&values).0)
    };
    Cell {
        system: system.to_owned(),
        operations_per_second: median,
        spread,
        p50_us: median_of(&|one| one.p50_us),
        p99_us: median_of(&|one| one.p99_us),
        p999_us: median_of(&|one| one.p999_us),
        cpu_us: median_of(&|one| Some(one.cpu_seconds? * 1e6 / one.operations.max(1) as f64)),
        device_bytes_per_byte: median_of(&|one| {
            let asked = one.operations * one.operation_bytes;
            (asked > 0).then_some(one.device_read_bytes? as f64 / asked as f64)
        }),
        lock_share: median_of(&|one| one.lock_share),
        least_share: median_of(&|one| one.least_share),
        memory_bytes: median_of(&|one| Some(one.memory_bytes? as f64)).map(|bytes| bytes as u64),
        rounds: rates,
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
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    };
    (median, (high - low) / median.max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::{Rows, median_and_spread};
    use crate::measurement::row::{Measurement, RowKey};
    use crate::measurement::sample::Sample;
    use std::time::Duration;

    fn measured(title: &str, operations: u64) -> Measurement {
        let sample = Sample::untimed(operations, Duration::from_secs(1));
        sample.measurement(&RowKey::new("id", title, 0))
    }

    #[test]
    fn the_median_is_in_the_middle_and_the_spread_covers_the_extremes() {
        assert_eq!(median_and_spread(&[30.0, 10.0, 20.0]), (20.0, 1.0));
        assert_eq!(median_and_spread(&[10.0, 30.0]).0, 20.0);
        assert_eq!(median_and_spread(&[]), (0.0, 0.0));
    }

    #[test]
    fn ratios_are_of_rates_and_the_better_kernel_counts() {
        let systems = ["ext4", "xfs", "adit", "raw", "adit run"];
        let mut rows = Rows::new(systems.map(str::to_owned));
        for (system, rates) in [
            [100, 300, 200],
            [50, 50, 50],
            [1000, 1200, 1000],
            [2000, 2000, 2000],
            [900, 900, 900],
        ]
        .iter()
        .enumerate()
        {
            for &rate in rates {
                rows.add(system, vec![measured("append", rate)]);
            }
        }
        assert_eq!(rows.rounds(), 3);
        let row = &rows.finish()[0];
        assert_eq!((row.to_kernel(), row.to_raw()), (Some(5.0), Some(0.5)));
        assert_eq!(row.cell("adit").unwrap().operations_per_second, 1000.0);
    }

    /// A row of only one system keeps its place among that system's rows.
    #[test]
    fn rows_keep_the_order_of_whoever_measured_them() {
        let mut rows = Rows::new(["a", "b"].map(str::to_owned));
        rows.add(0, vec![measured("first", 1), measured("third", 1)]);
        rows.add(
            1,
            vec![
                measured("first", 1),
                measured("second", 1),
                measured("third", 1),
            ],
        );
        let titles: Vec<String> = rows.finish().into_iter().map(|row| row.title).collect();
        assert_eq!(titles, ["first", "second", "third"]);
    }
}
