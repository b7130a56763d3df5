//! `cargo xtask workloads`: real programs on a mount (`scripts/workloads.sh`).

use crate::process::{self, Outcome};
use crate::setup;
use std::process::Command;

/// The help text.
pub(crate) const HELP: &str = "  workloads [NAME]...   Real programs on a mount, as root: git, tree, fio, stress, mariadb, kill, cut (all of them)
";

const PACKAGES: &[&str] = &[
    "git",
    "rsync",
    "fio",
    "stress-ng",
    "mariadb-server",
    "sysbench",
    "python3",
];

/// Runs those that are named, or all.
pub(crate) fn run(names: &[&str]) -> Outcome {
    setup::run(PACKAGES)?;
    process::build_release(&["adit-cli"])?;
    let root = process::workspace_root();
    let target = process::target_directory();
    let mut script = Command::new("bash");
    script.arg(root.join("crates/xtask/scripts/workloads.sh"));
    script
        .arg(target.join("release/adit"))
        .arg(target.join("workloads"))
        .arg(&root);
    process::run(script.args(names))
}
