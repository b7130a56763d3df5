//! `adit bench`: three systems in one process, job by job in turn; with `--breakdown`, where the
//! time of Adit's operations goes.
//!
//! - `suite`: sizes, systems, notes; `schedule`: rounds in turn; `report`: the result;
//! - `served`: the same operations embedded and in a server;
//! - `breakdown`: the same jobs by layers; `place`: temporary folders and images.

pub(crate) mod breakdown;
mod place;
pub(crate) mod report;
mod schedule;
pub(crate) mod served;
pub(crate) mod suite;
