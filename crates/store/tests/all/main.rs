//! What the store promises, a file a subject. One program: each one more would compile the store
//! again, for the code of an async function is made where it is awaited.
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
mod power_cut;
mod pressure;
mod process_death;
mod rig;
mod speed;
mod upkeep;
