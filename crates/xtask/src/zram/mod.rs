//! `cargo xtask bench-zram`: Adit, ext4, XFS and bare calls on the same RAM-backed device.
//!
//! Each system gets `/dev/zram0` to itself, fresh, in turn; then all of them again, beginning with
//! the next one. The jobs are those of `adit bench`, measured by `adit-bench-one`; RocksDB's are
//! those of stock `db_bench`. It ends in a markdown file for docs/benchmarks.md, with the commands.

mod device;
mod results;
mod runs;

use std::path::PathBuf;

use crate::plugin::{self, Profile};
use crate::process::{self, Outcome};
use crate::setup;
use device::Zram;
use results::Results;
use runs::{Runs, System};

/// What is needed beside the packages of the tests.
const PACKAGES: &[&str] = &[
    "xfsprogs",
    "e2fsprogs",
    "rocksdb-tools",
    "librocksdb-dev",
    "g++",
];

/// What can be asked for.
#[derive(Debug)]
pub(crate) struct Options {
    repetitions: u32,
    quick: bool,
    db_bench: bool,
    only: Vec<System>,
    output: PathBuf,
}

/// The help's lines about it.
pub(crate) const HELP: &str = "\
  bench-zram            Compare on /dev/zram0 (root; refuses when it is in use); options:
                        --repetitions N (3), --quick, --no-db-bench, --only raw,ext4,xfs,adit,
                        --output FILE (target/bench-zram.md)
";

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Outcome<Options> {
        let mut options = Options {
            repetitions: 3,
            quick: false,
            db_bench: true,
            only: System::ALL.to_vec(),
            output: process::target_directory().join("bench-zram.md"),
        };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            let mut value = || {
                let next = words.next().copied();
                next.ok_or_else(|| format!("{word} needs a value"))
            };
            match word {
                "--repetitions" => {
                    options.repetitions = match value()?.parse() {
                        Ok(number) if number > 0 => number,
                        _ => return Err("--repetitions needs a number above 0".to_owned()),
                    }
                }
                "--quick" => options.quick = true,
                "--no-db-bench" => options.db_bench = false,
                "--only" => {
                    options.only = value()?
                        .split(',')
                        .map(|name| System::named(name).ok_or(format!("no system `{name}`")))
                        .collect::<Outcome<_>>()?;
                }
                "--output" => options.output = value()?.into(),
                _ => return Err(format!("bench-zram does not understand `{word}`\n\n{HELP}")),
            }
        }
        Ok(options)
    }
}

/// The whole comparison.
pub(crate) fn run(options: &Options) -> Outcome {
    let zram = Zram::claim()?;
    setup::run(PACKAGES)?;
    let with_plugin = options.db_bench && options.only.contains(&System::Adit);
    process::run(process::cargo().args([
        "build",
        "--release",
        "--package",
        "adit-cli",
        "--package",
        "adit-bench",
    ]))?;
    if with_plugin {
        plugin::build(Profile::Release)?;
    }
    let runs = Runs::new(zram, options.quick, options.db_bench)?;
    let mut results = Results::new(&options.only);
    for repetition in 0..options.repetitions as usize {
        for turn in 0..options.only.len() {
            let system = options.only[(turn + repetition) % options.only.len()];
            println!("\n=== repetition {}, {} ===", repetition + 1, system.name());
            runs.measure(system, &mut results)?;
        }
        // Something to read when a later repetition fails.
        save(options, &runs, &results)?;
    }
    println!("\n{}", results.tables());
    println!("written to {}", options.output.display());
    Ok(())
}

fn save(options: &Options, runs: &Runs, results: &Results) -> Outcome {
    let text = format!("{}\n{}", results.tables(), runs.commands(&options.only));
    std::fs::write(&options.output, text)
        .map_err(|error| format!("could not write {}: {error}", options.output.display()))
}
