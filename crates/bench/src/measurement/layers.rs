//! In which layer the time of an operation goes.

use serde::{Deserialize, Serialize};

/// One kind of operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BreakdownRow {
    /// A short stable name, for programs; that of the benchmark's row.
    pub id: String,
    /// Its name in the table.
    pub title: String,
    /// Threads that did it at the same time.
    pub threads: u32,
    /// Operations that the layers are of.
    pub operations: u64,
    /// Microseconds of a thread for one operation, without timing layers.
    pub untimed_us: f64,
    /// The same with the look; the sum of the layers.
    pub timed_us: f64,
    /// All layers, those that took no time too.
    pub layers: Vec<LayerShare>,
}

/// One layer's share of an operation's time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerShare {
    /// A short stable name, for programs.
    pub layer: String,
    /// Microseconds of one operation, without the layers inside of it.
    pub us: f64,
    /// Part of the sum, 0 to 1.
    pub share: f64,
    /// How often an operation enters it.
    pub entries: f64,
}
