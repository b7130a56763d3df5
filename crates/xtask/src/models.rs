//! `cargo xtask models`: lock-free code, run once for each order of its threads' steps
//! (`docs/inside/concurrency.md`).
//!
//! `--cfg loom` changes every crate, so these builds have a target directory of their own.

use std::time::Instant;

use crate::counts::run_tests;
use crate::process::{self, Outcome};

/// The help text.
pub(crate) const HELP: &str =
    "  models [NAME]...      Model checking of all lock-free code, or of what is called so (loom)
";

/// Where models are.
const PACKAGES: &[&str] = &[
    "adit-base",
    "adit-block",
    "adit-reactor",
    "adit-store",
    "adit-wire",
];

/// Runs what has one of these names below a module `models`, or all.
pub(crate) fn run(names: &[&str]) -> Outcome {
    let started = Instant::now();
    let mut flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    flags.push_str(" --cfg loom");
    let mut command = process::cargo();
    command
        .env("RUSTFLAGS", flags.trim_start())
        .env(
            "CARGO_TARGET_DIR",
            process::target_directory().join("models"),
        )
        .args(["test", "--lib", "--no-fail-fast"]);
    for package in PACKAGES {
        command.args(["--package", package]);
    }
    command.args(["--", "--nocapture"]);
    command.args(if names.is_empty() {
        &["models::"]
    } else {
        names
    });
    let (mut planted, mut orders) = (0u64, 0u64);
    let tested = run_tests(&mut command, |line| {
        planted += u64::from(line.contains("::planted_") && line.ends_with("... ok"));
        orders += orders_in(line).unwrap_or(0);
    })?;
    let counts = tested.counts;
    println!(
        "\n{} models and {planted} planted bugs found, {} failed; {orders} orders in {:.0} s",
        counts.passed.saturating_sub(planted),
        counts.failed,
        started.elapsed().as_secs_f64()
    );
    match (counts.failed, counts.passed) {
        (0, 0) => Err("no model has such a name".into()),
        (0, _) => Ok(()),
        _ => Err("a model failed, or didn't find the bug planted for it".into()),
    }
}

/// Reads `1234 orders of cache::models::…`, wherever in the line.
fn orders_in(line: &str) -> Option<u64> {
    let (before, _) = line.split_once(" orders of ")?;
    before.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::orders_in;
    use crate::process;

    /// Files below `crates/` that use `std`'s atomics, which no model sees.
    /// `docs/inside/concurrency.md` says why.
    const UNMODELLED: &[&str] = &[
        "base/src/breakdown.rs",
        "base/src/fork.rs",
        "base/src/held.rs",
        "base/src/numbers.rs",
        "base/src/steps.rs",
        "base/src/sync/model.rs",
        "base/src/sync/thread_number.rs",
        "block/src/file/lock.rs",
        "block/src/file/mod.rs",
        "block/src/file/uring.rs",
        "block/src/memory.rs",
        "reactor/src/driver/reentry.rs",
        "store/src/cache/header.rs",
        "store/src/cache/huge_pages.rs",
    ];

    #[test]
    fn lock_free_code_takes_its_atomics_from_where_models_see_them() {
        let crates = process::workspace_root().join("crates");
        let mut folders = ["base", "block", "reactor", "store", "fs", "wire", "adit"]
            .map(|name| crates.join(name).join("src"))
            .to_vec();
        let mut unmodelled = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("a folder of sources") {
                let path = entry.expect("an entry").path();
                let name = path.strip_prefix(&crates).expect("below it");
                let name = name.to_string_lossy().into_owned();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let is_test = name.ends_with("tests.rs") || name.ends_with("stress.rs");
                if !name.ends_with(".rs") || is_test {
                    continue;
                }
                let text = std::fs::read_to_string(&path).expect("a source");
                let uses =
                    |line: &str| line.contains("std::sync::atomic") && line.contains("Atomic");
                if text.lines().any(uses) {
                    unmodelled.push(name);
                }
            }
        }
        unmodelled.sort();
        assert_eq!(unmodelled, UNMODELLED);
    }

    #[test]
    fn the_number_of_orders_is_found_behind_what_else_is_in_the_line() {
        assert_eq!(orders_in("test a ... 12 orders of a"), Some(12));
        assert_eq!(orders_in("test a ... ok"), None);
    }
}
