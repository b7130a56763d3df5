//! Benchmarks of Adit against the kernel's file system and the raw floor: `adit bench`.
//!
//! Three systems get the same jobs in turn: Adit (an embedded volume), the kernel's file system in
//! a directory, and the floor (the IO that a job cannot do without, as bare calls on a written
//! file). [`run`] is the whole benchmark. [`compare()`] gives each system a device to itself, in
//! processes of their own ([`measure_alone`]): `adit compare`.
//!
//! Programs that measure something else in the same way take their parts from here: [`measure`]
//! under [`observed`], to a [`Measurement`] by [`Sample::measurement`].
//!
//! A room uses only rooms above it in this list; a test of `xtask` checks that:
//! - `measurement`: one measurement, rows of many, the machine;
//! - `target`: the systems: Adit, the kernel's, the floor, and a device with latency for two of
//!   them;
//! - `jobs`: the requests, written once for all systems;
//! - `bench`, `compare`: which jobs on which systems, in which order and processes;
//! - `report`: the results as text; `pictures`: as SVG; `page`: all of them as files.
//!
//! It is not a tuning tool: no job depends on the system that it runs on.

mod bench;
mod compare;
mod jobs;
mod measurement;
mod page;
mod pictures;
mod report;
mod target;

pub use adit_base::random::Prng;
pub use bench::breakdown::{Breakdown, BreakdownBlock, run_breakdown};
pub use bench::report::{Block, Report};
pub use bench::served::{ServedOptions, ServedReport, ServedRow, run_served};
pub use bench::suite::{Options, run};
pub use compare::comparison::{Comparison, GroupResult, SystemInfo};
pub use compare::growth::Curve;
pub use compare::suites::Suite;
pub use compare::systems::System;
pub use compare::worker::{Assignment, Role, measure_alone};
pub use compare::{Options as CompareOptions, Progress, compare};
pub use jobs::stage::Shape;
pub use jobs::{Action, Axis, Growth, Job, Stream, ThreadOperation, Threads, Variation};
pub use measurement::environment::Environment;
pub use measurement::interrupt::Guard as InterruptGuard;
pub use measurement::layers::{BreakdownRow, LayerShare};
pub use measurement::medians::{Cell, Row};
pub use measurement::resources::observed;
pub use measurement::row::{MeasuredRows, Measurement, RowKey};
pub use measurement::sample::{Limit, Sample, Timing, measure};
pub use page::save;
