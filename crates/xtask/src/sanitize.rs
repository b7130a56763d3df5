//! `cargo xtask sanitize`: the tests under ThreadSanitizer or AddressSanitizer, where a nightly
//! toolchain is installed.
//!
//! ThreadSanitizer needs a standard library that is instrumented as well, or it reports races where
//! that library synchronizes; so it builds one, from the component `rust-src`. What it reports is a
//! bug; AddressSanitizer's look for leaks at the end has exceptions, in `lsan.supp`. Doc tests,
//! benchmarks and programs of other languages don't run.

use std::path::Path;
use std::process::Command;

use crate::counts::run_tests;
use crate::process::{self, Outcome};

/// The help text.
pub(crate) const HELP: &str = "  sanitize [thread|address] [PACKAGE]...
                        The tests under ThreadSanitizer (the default) or AddressSanitizer, with a nightly toolchain
";

const PACKAGES: &[&str] = &[
    "adit-base",
    "adit-block",
    "adit-reactor",
    "adit-store",
    "adit-fs",
    "adit",
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sanitizer {
    Thread,
    Address,
}

/// A test that can't run under a sanitizer, and why.
struct Left {
    name: &'static str,
    under: Sanitizer,
    why: &'static str,
}

const LEFT_OUT: &[Left] = &[
    Left {
        name: "successors::the_last_poll_of_a_loop_leaves_other_threads_work_to_the_keeper",
        under: Sanitizer::Thread,
        why: "wants one of many rounds to meet an instant, which it doesn't when all is slower",
    },
    Left {
        name: "successors::work_that_another_thread_awaits_does_not_wait_for_the_next_poll_of_a_loop",
        under: Sanitizer::Thread,
        why: "as the test before",
    },
    Left {
        name: "direct::a_direct_read_gets_no_other_files_bytes_while_pages_change_hands",
        under: Sanitizer::Thread,
        why: "its device is memory, and it wants reads to meet writes of the same page there",
    },
    Left {
        name: "a_panic_while_driving_is_eio_for_everybody_and_the_next_opening_finds_everything",
        under: Sanitizer::Address,
        why: "a worker that is poisoned by a panic forgets its futures, by decision: they are leaks",
    },
];

/// Runs the tests of these packages, or of all that have to do with threads or raw memory.
pub(crate) fn run(words: &[&str]) -> Outcome {
    let (sanitizer, packages) = match words {
        ["thread", packages @ ..] => (Sanitizer::Thread, packages),
        ["address", packages @ ..] => (Sanitizer::Address, packages),
        packages => (Sanitizer::Thread, packages),
    };
    let Some(host) = nightly_host() else {
        return Err("no nightly toolchain (`rustup toolchain install nightly`)".into());
    };
    if sanitizer == Sanitizer::Thread && !has_sources() {
        return Err(
            "no sources of std (`rustup component add rust-src --toolchain nightly`)".into(),
        );
    }
    let mut command = nightly("cargo");
    let (flag, folder) = match sanitizer {
        // It must see how memory is mapped and unmapped, and sees only calls of libc: or else a
        // cache that comes to lie where another one lay would be the same memory.
        Sanitizer::Thread => (
            "-Zsanitizer=thread --cfg=rustix_use_libc --cfg=sanitizer",
            "sanitize-thread",
        ),
        Sanitizer::Address => ("-Zsanitizer=address --cfg=sanitizer", "sanitize-address"),
    };
    let target = process::target_directory().join(folder);
    command
        .env("RUSTFLAGS", flag)
        .env("CARGO_TARGET_DIR", target)
        .args([
            "test",
            "--lib",
            "--tests",
            "--no-fail-fast",
            "--target",
            &host,
        ]);
    match sanitizer {
        Sanitizer::Thread => command.arg("-Zbuild-std"),
        Sanitizer::Address => {
            let exceptions = process::workspace_root().join("crates/xtask/lsan.supp");
            let options = format!("suppressions={}", exceptions.display());
            command.env("LSAN_OPTIONS", options)
        }
    };
    for package in if packages.is_empty() {
        PACKAGES
    } else {
        packages
    } {
        command.args(["--package", package]);
    }
    command.arg("--");
    for left in LEFT_OUT.iter().filter(|left| left.under == sanitizer) {
        println!("left out: {} ({})", left.name, left.why);
        command.args(["--skip", left.name]);
    }
    let tested = run_tests(&mut command, |_| ())?;
    println!();
    tested.conclude().map_err(|complaint| {
        format!("{complaint}; a sanitizer reports a `WARNING` or an `ERROR` above")
    })
}

/// A program of the nightly toolchain, without the environment of the one that runs this.
fn nightly(program: &str) -> Command {
    let mut command = Command::new("rustup");
    command
        .args(["run", "nightly", program])
        .current_dir(process::workspace_root());
    for variable in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(variable);
    }
    command
}

fn nightly_host() -> Option<String> {
    let about = process::read(nightly("rustc").arg("-vV")).ok()?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: "))?;
    Some(host.to_owned())
}

fn has_sources() -> bool {
    process::read(nightly("rustc").args(["--print", "sysroot"])).is_ok_and(|root| {
        Path::new(root.trim())
            .join("lib/rustlib/src/rust/library")
            .is_dir()
    })
}
