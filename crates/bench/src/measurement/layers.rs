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

/// For tests of a table and of a picture.
#[cfg(test)]
pub(crate) mod samples {
    use super::{BreakdownRow, LayerShare};
    use adit_base::breakdown::Layer;

    /// All of its time in these layers.
    fn row(title: &str, shares: &[(Layer, f64)]) -> BreakdownRow {
        let share = |&(layer, share): &(Layer, f64)| LayerShare {
            layer: layer.name().to_owned(),
            us: share * 12.0,
            share,
            entries: 1.0,
        };
        BreakdownRow {
            id: "id".to_owned(),
            title: title.to_owned(),
            threads: 1,
            operations: 10,
            untimed_us: 10.0,
            timed_us: 12.0,
            layers: shares.iter().map(share).collect(),
        }
    }

    pub(crate) fn rows() -> Vec<BreakdownRow> {
        let device = [
            (Layer::Call, 0.2),
            (Layer::Map, 0.001),
            (Layer::Device, 0.799),
        ];
        vec![row("append", &device), row("stat", &[(Layer::Names, 1.0)])]
    }
}
