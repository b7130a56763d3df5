//! `cargo xtask sim`: the simulator (`crates/sim`), built for speed.

use crate::process::{self, Outcome};
use std::process::Command;

/// The help text.
pub(crate) const HELP: &str = "  sim [--seeds N] [--minutes M] [--from SEED] | --small LENGTH | --seed S [--only OPERATIONS] [--dense]
                        Crash a simulated machine in a thousand ways and judge what is left; more: --help
";

/// Builds it and hands it the words.
pub(crate) fn run(words: &[&str]) -> Outcome {
    process::build_release(&["adit-sim"])?;
    let program = process::target_directory().join("release/adit-sim");
    process::run(Command::new(program).args(words))
}
