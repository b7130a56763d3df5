//! Tests of the store, a file a subject. One program: each more would compile the store again,
//! because the code of an async function is generated where it is awaited.
//!
//! `cargo test -p adit-store power_cut` runs one subject.

mod atomic;
mod barriers;
mod blobs;
mod budgets;
mod check;
mod checksums;
mod commits;
mod crash;
mod format_doc;
mod io_errors;
mod others;
mod partitions;
mod power_cut;
mod pressure;
mod process_death;
mod rig;
mod speed;
mod upkeep;
mod workers;
