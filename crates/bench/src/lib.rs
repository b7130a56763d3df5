//! Benchmarks of Adit against the kernel's file system and the raw floor: `adit bench`.
//!
//! Three systems get the same jobs, interleaved: Adit (an embedded volume), the kernel's file
//! system in a directory, and the floor (the IO that a job can't do without, as bare calls on a
//! written file). [`run`] is the whole benchmark. [`compare()`] gives each system a device to itself, in processes of
//! their own ([`measure_alone`]): `adit compare`.
//!
//! Programs that measure something else in the same way take their parts from here: [`measure`] under [`observed`], to a
//! [`Measurement`] by [`Sample::measurement`].
//!
//! - `target`: what every system can do; `kernel`, `floor`, `embedded`: the systems; `ssd`: a device with latency for two of them;
//! - `jobs`: what is asked of them; `sample`: measuring it; `schedule`: in what order;
//! - `measurement`: what a program prints of it for another one;
//! - `report`, `table`: what is told about it;
//! - `breakdown`, `breakdown_table`: what the time of Adit's operations is spent on ([`run_breakdown`]);
//! - `data`, `place`, `resources`, `interrupt`: bytes, folders, memory, Ctrl-C.
//!
//! It is not a tuning tool: no job depends on the system that it runs on.

mod breakdown;
mod breakdown_table;
mod calm;
mod compare;
mod data;
mod embedded;
mod floor;
mod flow;
mod interrupt;
mod jobs;
mod kernel;
mod measurement;
mod place;
mod report;
mod resources;
mod rows;
mod sample;
mod schedule;
mod ssd;
mod suite;
mod table;
mod target;

pub use breakdown::{
    Breakdown, BreakdownBlock, BreakdownRow, LayerShare, breakdown_of, run_breakdown,
};
pub use compare::{
    Assignment, Comparison, Curve, GroupResult, Options as CompareOptions, Progress, Suite, System,
    SystemInfo, compare, measure_alone, save,
};
pub use data::Prng;
pub use interrupt::Guard as InterruptGuard;
pub use jobs::{Action, Axis, Growth, Job, RowKey, Shape, Stream, Variation};
pub use measurement::{MeasuredRows, Measurement};
pub use report::{Block, Environment, Report};
pub use resources::observed;
pub use rows::{Cell, Row};
pub use sample::{Limit, Sample, Timing, measure};
pub use suite::{Options, run};
