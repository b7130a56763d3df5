//! Benchmarks of Adit against the kernel's file system and the raw floor: `adit bench`.
//!
//! Three systems get the same jobs, interleaved: Adit (an embedded volume), the kernel's file
//! system in a directory, and the floor (the IO that a job can't do without, as bare calls on a
//! written file). [`run`] is the whole benchmark; [`measure_one`] measures one system at one place,
//! for comparisons that need the device to themselves.
//!
//! Programs that measure something else in the same way take their parts from here: [`measure`] under [`observed`], to a
//! [`Measurement`] by [`Sample::measurement`].
//!
//! - `target`: what every system can do; `kernel`, `floor`, `embedded`: the systems;
//! - `jobs`: what is asked of them; `sample`: measuring it; `schedule`: in what order;
//! - `measurement`: what a program prints of it for another one;
//! - `report`, `table`: what is told about it;
//! - `data`, `place`, `resources`, `interrupt`: bytes, folders, memory, Ctrl-C.
//!
//! It is not a tuning tool: no job depends on the system that it runs on.

mod data;
mod embedded;
mod floor;
mod interrupt;
mod jobs;
mod kernel;
mod measurement;
mod place;
mod report;
mod resources;
mod sample;
mod schedule;
mod suite;
mod table;
mod target;

pub use data::Prng;
pub use interrupt::Guard as InterruptGuard;
pub use jobs::{Job, RowKey, Shape};
pub use measurement::Measurement;
pub use report::{Block, Cell, Environment, Report, Row};
pub use resources::observed;
pub use sample::{Limit, Sample, Timing, measure};
pub use suite::{Measure, Options, SystemAt, measure_one, run};
