//! One measurement of one row: measuring programs print it as JSON, and comparisons consist of it.

use serde::{Deserialize, Serialize};

use super::layers::BreakdownRow;

/// Which row of the table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowKey {
    /// A short stable name, for programs.
    pub id: String,
    /// Its name in the table.
    pub title: String,
    /// Threads that did it at the same time.
    pub threads: u32,
    /// Where on its curve, see [`Measurement::at`](crate::Measurement::at).
    pub at: Option<u64>,
    /// Bytes that each operation moves on behalf of the caller (0 where that means nothing).
    pub operation_bytes: u64,
}

impl RowKey {
    /// A row of one thread that is no point of a curve.
    pub fn new(id: impl Into<String>, title: impl Into<String>, operation_bytes: u64) -> RowKey {
        RowKey {
            id: id.into(),
            title: title.into(),
            threads: 1,
            at: None,
            operation_bytes,
        }
    }

    pub(crate) fn at(mut self, at: u64) -> RowKey {
        self.at = Some(at);
        self
    }

    pub(crate) fn with_threads(mut self, threads: u32) -> RowKey {
        self.threads = threads;
        self.title.push_str(&threads_in_title(threads));
        self
    }
}

/// The end of a title, for several threads.
pub(crate) fn threads_in_title(threads: u32) -> String {
    match threads {
        1 => String::new(),
        threads => format!(", {threads} threads"),
    }
}

/// One row, measured once on one system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// A short stable name of the kind of operation, for programs. Rows with the same name and
    /// different `at` are a curve.
    pub id: String,
    /// Its name in a table.
    pub title: String,
    /// Threads that did it at the same time.
    pub threads: u32,
    /// Where on its curve: bytes an operation, files, depth of the queue… (in the title in words).
    pub at: Option<u64>,
    /// Bytes that each operation moves on behalf of the caller (0 where that means nothing).
    pub operation_bytes: u64,
    /// How many operations were done.
    pub operations: u64,
    /// In what time, all threads together.
    pub seconds: f64,
    /// Processor time meanwhile, in seconds, of the whole machine with the kernel's threads.
    pub cpu_seconds: Option<f64>,
    /// Half of the operations took at most this long, in µs; likewise 99 and 99.9 of 100. `None`
    /// when too few were timed.
    pub p50_us: Option<f64>,
    /// See `p50_us`.
    pub p99_us: Option<f64>,
    /// See `p50_us`.
    pub p999_us: Option<f64>,
    /// Bytes that were read from devices, where that was counted.
    pub device_read_bytes: Option<u64>,
    /// Memory in use afterwards: the process's, and the page cache that it filled.
    pub memory_bytes: Option<u64>,
    /// The share of the time in which the lock of Adit's worker was held, where that was measured.
    #[serde(default)]
    pub lock_share: Option<f64>,
    /// Of several clients, the share of the one that did least, of what each of them did on
    /// average.
    #[serde(default)]
    pub least_share: Option<f64>,
}

impl Measurement {
    /// Operations per second.
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds.max(1e-9)
    }
}

/// The output of a measuring program: `{"rows": [...]}`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MeasuredRows {
    /// In the order of the table.
    pub rows: Vec<Measurement>,
    /// The time of operations by layers, if requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<BreakdownRow>,
}
