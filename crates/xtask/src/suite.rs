//! `cargo xtask test`: everything that CI runs, in one order, to a summary.
//!
//! A failed step does not stop the others, except that nothing is tested that was not built. Each
//! step counts its checks; the last line is the sum. As root a test that was skipped, because this
//! machine lacks something, fails the whole: all of them have to run. Another user can get neither
//! packages nor root's rights here: tests that need them are skipped, and listed by reason at the
//! end. All use the development profile, so that lints, unit tests, the plugin and the end-to-end
//! tests share compiled crates.

use std::ffi::{CStr, CString};
use std::time::{Duration, Instant};

use crate::counts::{Counts, Tested};
use crate::process::{self, Outcome};
use crate::{end_to_end, models, plugin, setup, unit};

/// A step: its name for `--only`, and what it does.
struct Step {
    name: &'static str,
    run: fn() -> Outcome<Tested>,
}

const STEPS: &[Step] = &[
    Step {
        name: "setup",
        run: packages,
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
        run: plugin::build_for_tests,
    },
    Step {
        name: "unit",
        run: unit::run,
    },
    Step {
        name: "models",
        run: || one(models::run(&[])),
    },
    Step {
        name: "end-to-end",
        run: end_to_end::run,
    },
];

/// A step that is a single check.
fn one(outcome: Outcome) -> Outcome<Tested> {
    outcome.map(|()| Counts::one(true).into())
}

/// The tests of a missing package are skipped, each with a reason of its own.
fn packages() -> Outcome<Tested> {
    match setup::run_without_services(setup::FOR_TESTS) {
        Err(missing) if !process::is_root() => Ok(Tested::skipped("setup", missing)),
        outcome => one(outcome),
    }
}

fn lints() -> Outcome<Tested> {
    let lint = |packages: &[&str]| {
        let (denied, mut cargo) = (["--", "--deny", "warnings"], process::cargo());
        process::run(cargo.arg("clippy").args(packages).args(denied))
    };
    // The second: with the features that users get.
    let all = lint(&["--workspace", "--all-targets"]);
    one(all.and_then(|()| lint(&["--package", "libadit", "--package", "adit-cli"])))
}

struct Finished {
    name: &'static str,
    tested: Tested,
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
    close_inherited_descriptors_on_exec()?;
    let is_root = process::is_root();
    if let Err(error) = take_own_shared_memory() {
        println!("what killed processes of tests leave stays in {SHARED_MEMORY}: {error}");
    }
    let mut finished = Vec::new();
    for step in chosen {
        println!("\n=== {} ===", step.name);
        let started = Instant::now();
        let (tested, complaint) = match (step.run)() {
            Ok(tested) => (tested, None),
            Err(complaint) => {
                eprintln!("{complaint}");
                (Counts::one(false).into(), Some(complaint))
            }
        };
        finished.push(Finished {
            name: step.name,
            tested,
            took: started.elapsed(),
            complaint,
        });
    }
    summarize(finished, is_root)
}

/// A terminal, an editor or a shell leaves descriptors open; a test of a program that runs out of
/// them would see another world than in CI.
fn close_inherited_descriptors_on_exec() -> Outcome {
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: no descriptor is closed; a program that is started later has none of these.
    let marked = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, flags) };
    if marked != 0 {
        let error = std::io::Error::last_os_error();
        return Err(format!("could not mark inherited descriptors: {error}"));
    }
    Ok(())
}

/// Where the memory lies that outlives a process.
const SHARED_MEMORY: &str = "/dev/shm";

/// Mounts an empty tmpfs there, that only this process and its children see: what killed processes
/// of tests leave is gone with the last of them, and another run beside this one sees none of it.
fn take_own_shared_memory() -> std::io::Result<()> {
    let checked = |done: libc::c_int| match done {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    let mount = |from: &CStr, to: &CStr, flags, options: &CStr| {
        let options = options.as_ptr().cast();
        // SAFETY: texts that end with a NUL; the kernel keeps none of them.
        checked(unsafe { libc::mount(from.as_ptr(), to.as_ptr(), from.as_ptr(), flags, options) })
    };
    // SAFETY: no memory is passed. Of the threads only this one starts programs.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE, c"")?;
    let place = CString::new(SHARED_MEMORY)?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    mount(c"tmpfs", &place, flags, c"mode=1777")
}

fn summarize(finished: Vec<Finished>, is_root: bool) -> Outcome {
    println!("\n=== summary ===");
    let mut sum = Tested::default();
    for step in finished {
        println!(
            "{:<12} {:>7.1} s  {}",
            step.name,
            step.took.as_secs_f64(),
            step.tested.counts
        );
        if let Some(first_line) = step.complaint.as_deref().and_then(|c| c.lines().next()) {
            println!("{:<12} {first_line}", "");
        }
        sum += step.tested;
    }
    if !is_root && sum.counts.skipped > 0 {
        println!("the user is not root: tests that cannot run are skipped, not failed");
    }
    // The sum stays the last line of standard output.
    sum.conclude_complete(is_root)
}
