//! The tests of commands once more, with the volume in a server.

#![allow(
    clippy::duplicate_mod,
    reason = "each file is a test program of its own, too"
)]

#[path = "copying.rs"]
mod copying;
#[path = "everything.rs"]
mod everything;
#[path = "names.rs"]
mod names;
#[path = "programs.rs"]
mod programs;
#[path = "programs_io.rs"]
mod programs_io;
#[path = "run.rs"]
mod run;
#[path = "scripts.rs"]
mod scripts;
#[path = "scrub.rs"]
mod scrub;
#[path = "transfer.rs"]
mod transfer;
#[path = "volumes.rs"]
mod volumes;
