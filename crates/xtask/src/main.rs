//! Development tasks: `cargo xtask setup | test | plugin | models | sanitize | posix | workloads |
//! programs | sim | threads | power-cut | fuzz | compare | mariadb | flames`.
//!
//! Each task is one module. A task prints what it runs, reads no standard input, and fails with a
//! sentence that says what to do. This crate depends on no layer of Adit: it starts their tests and
//! programs as a developer would.

mod compare;
mod counts;
#[cfg(test)]
mod dependencies;
#[cfg(test)]
mod documents;
mod end_to_end;
mod flames;
mod fuzz;
mod hanging;
#[cfg(test)]
mod layers;
mod mariadb;
mod models;
mod plugin;
mod posix;
mod power_cut;
mod process;
mod programs;
#[cfg(test)]
mod rooms;
mod sanitize;
mod setup;
mod sim;
mod suite;
mod threads;
mod unit;
mod watching;
mod workloads;
mod zram;

use std::process::ExitCode;

const HELP: &str = "\
Development tasks of Adit.

Usage: cargo xtask TASK

Tasks:
  setup                 Install the Debian packages that are missing (as root; otherwise name them)
  test [--only STEP]    All of CI: setup, formatting, lints, build, plugin, unit tests, models, end to end
  plugin [--debug] [rocksdb] [leveldb] [sqlite]
                        Build target/release/libadit_rocksdb.so, libadit_leveldb.so and libadit_sqlite.so
                        (or target/debug/...), and benchmarks: adit-ycsb of RocksDB, adit-leveldb-bench: those named, or all whose
                        database has its headers here. ROCKSDB_ROOT=DIR: for the RocksDB built in DIR
  plugin --headers DIR  Only compile what is over RocksDB, with the headers DIR/rocksdb/*.h of any release
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        [] | ["help" | "--help" | "-h"] => {
            print!(
                "{HELP}{}{}{}{}{}{}{}{}{}{}{}{}",
                models::HELP,
                sanitize::HELP,
                posix::HELP,
                workloads::HELP,
                programs::HELP,
                sim::HELP,
                threads::HELP,
                power_cut::HELP,
                fuzz::HELP,
                compare::HELP,
                mariadb::HELP,
                flames::HELP
            );
            Ok(())
        }
        ["setup"] => setup::run_without_services(setup::FOR_TESTS),
        ["test"] => suite::run(None),
        ["test", "--only", step] => suite::run(Some(step)),
        ["plugin", "--headers", folder] => plugin::check_headers(folder.as_ref()),
        ["plugin", words @ ..] => plugin::run(words),
        ["posix", options @ ..] => {
            posix::Options::parse(options).and_then(|options| posix::run(&options))
        }
        ["models", names @ ..] => models::run(names),
        ["sanitize", words @ ..] => sanitize::run(words),
        ["workloads", names @ ..] => workloads::run(names),
        ["programs", words @ ..] => programs::run(words),
        ["sim", words @ ..] => sim::run(words),
        ["threads", options @ ..] => {
            threads::Options::parse(options).and_then(|options| threads::run(&options))
        }
        ["power-cut", options @ ..] => {
            power_cut::Options::parse(options).and_then(|options| power_cut::run(&options))
        }
        ["fuzz", options @ ..] => {
            fuzz::Options::parse(options).and_then(|options| fuzz::run(&options))
        }
        ["compare", words @ ..] => compare::run(words),
        ["mariadb", options @ ..] => {
            mariadb::Options::parse(options).and_then(|options| mariadb::run(&options))
        }
        ["flames", names @ ..] => flames::run(names),
        _ => Err(format!("do not understand `{}`\n\n{HELP}", words.join(" "))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
