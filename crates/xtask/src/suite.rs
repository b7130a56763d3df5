//! `cargo xtask test`: everything that CI runs, in one order, to a summary.
//!
//! A failed step does not stop the others, except that nothing is tested that was not built. Each
//! step counts its checks; the last line is the sum. All in the development profile, so that lints,
//! unit tests, the plugin and the end-to-end tests share what was compiled.

use std::time::{Duration, Instant};

use crate::counts::Counts;
use crate::process::{self, Outcome};
use crate::{end_to_end, plugin, setup};

/// A step: its name for `--only`, and what it does.
struct Step {
    name: &'static str,
    run: fn() -> Outcome<Counts>,
}

const STEPS: &[Step] = &[
    Step {
        name: "setup",
        run: || one(setup::run(setup::FOR_TESTS)),
    },
    Step {
        name: "format",
        run: || {
            one(process::run(
                process::cargo().args(["fmt", "--all", "--check"]),
            ))
        },
    },
    Step {
        name: "lints",
        run: lints,
    },
    Step {
        name: "build",
        run: || {
            one(process::run(
                process::cargo().args(["build", "--workspace"]),
            ))
        },
    },
    Step {
        name: "plugin",
        run: || one(plugin::build(plugin::Profile::Debug).map(drop)),
    },
    Step {
        name: "unit",
        run: unit_tests,
    },
    Step {
        name: "end-to-end",
        run: end_to_end::run,
    },
];

/// A step that is a single check.
fn one(outcome: Outcome) -> Outcome<Counts> {
    outcome.map(|()| Counts::one(true))
}

fn lints() -> Outcome<Counts> {
    one(process::run(process::cargo().args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "--deny",
        "warnings",
    ])))
}

/// Unit, conformance, C header and ABI tests: all are tests of some crate.
fn unit_tests() -> Outcome<Counts> {
    let mut counts = Counts::default();
    let mut command = process::cargo();
    command.args(["test", "--workspace", "--no-fail-fast"]);
    let succeeded = process::run_watching(&mut command, |line| counts += Counts::in_line(line))?;
    if !succeeded && counts.failed == 0 {
        // It did not compile, or a test program died before it could say so.
        counts.failed = 1;
    }
    Ok(counts)
}

struct Finished {
    name: &'static str,
    counts: Counts,
    took: Duration,
    complaint: Option<String>,
}

/// Runs all steps, or the one that is named.
pub(crate) fn run(only: Option<&str>) -> Outcome {
    let chosen: Vec<&Step> = STEPS
        .iter()
        .filter(|step| only.is_none_or(|name| name == step.name))
        .collect();
    if chosen.is_empty() {
        let names: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
        return Err(format!("no such step; there are: {}", names.join(", ")));
    }
    let mut finished = Vec::new();
    for step in chosen {
        println!("\n=== {} ===", step.name);
        let started = Instant::now();
        let (counts, complaint) = match (step.run)() {
            Ok(counts) => (counts, None),
            Err(complaint) => {
                eprintln!("{complaint}");
                (Counts::one(false), Some(complaint))
            }
        };
        finished.push(Finished {
            name: step.name,
            counts,
            took: started.elapsed(),
            complaint,
        });
    }
    summarize(&finished)
}

fn summarize(finished: &[Finished]) -> Outcome {
    println!("\n=== summary ===");
    let mut sum = Counts::default();
    for step in finished {
        sum += step.counts;
        println!(
            "{:<12} {:>7.1} s  {:>5} passed, {} failed",
            step.name,
            step.took.as_secs_f64(),
            step.counts.passed,
            step.counts.failed
        );
        if let Some(first_line) = step.complaint.as_deref().and_then(|c| c.lines().next()) {
            println!("{:<12} {first_line}", "");
        }
    }
    println!("{} passed, {} failed", sum.passed, sum.failed);
    if sum.failed == 0 {
        Ok(())
    } else {
        // The count above stays the last line of standard output.
        Err("some checks failed".to_owned())
    }
}
