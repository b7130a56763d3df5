//! The core of every measurement: it knows neither systems nor jobs.
//!
//! - `sample`: one measurement, with latencies; `calm`: one without disturbances; `row`: its row;
//! - `medians`: rows of several rounds; `layers`: where the time of a row goes;
//! - `gate`: processes that measure at the same time;
//! - `resources`: what it cost besides time; `environment`: on which machine;
//! - `data`: random and incompressible bytes; `errors`, `interrupt`: failures and Ctrl-C.

pub(crate) mod calm;
pub(crate) mod data;
pub(crate) mod environment;
pub(crate) mod errors;
pub(crate) mod gate;
pub(crate) mod interrupt;
pub(crate) mod layers;
pub(crate) mod medians;
pub(crate) mod resources;
pub(crate) mod row;
pub(crate) mod sample;
