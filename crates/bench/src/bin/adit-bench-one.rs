//! Measures one system at one place and prints the report as JSON: a building block for
//! `cargo xtask bench-zram`, which gives each system the device in turn. People want `adit bench`.

use std::process::ExitCode;
use std::time::Duration;

use adit_bench::{Job, Measure, Shape, SystemAt, measure_one};

const HELP: &str = "\
Usage: adit-bench-one SYSTEM PLACE JOB... [KEY=NUMBER]...

Systems: adit VOLUME, kernel DIRECTORY, raw FILE (destroyed)
Jobs:    append[:THREADS] new-file overwrite direct-read[:THREADS] direct-write
         cached-read:MIB[:THREADS] cached-write:MIB names scan
Keys:    rounds slice-ms names direct-mib scan-mib cache-mib
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match parse(&arguments) {
        Some((system, measure)) => measure_one(&system, &measure, &mut |what, _| {
            eprintln!("{what}");
        })
        .and_then(|report| report.to_json()),
        None => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(json) => {
            println!("{json}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("adit-bench-one: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: &[String]) -> Option<(SystemAt, Measure)> {
    let (system, place, rest) = match arguments {
        [system, place, rest @ ..] => (system.as_str(), place, rest),
        _ => return None,
    };
    let mut cache_bytes = 256 << 20;
    let mut measure = Measure {
        jobs: Vec::new(),
        shape: Shape {
            slice: Duration::from_secs(1),
            names: 20_000,
            direct_bytes: 256 << 20,
            scan_bytes: 256 << 20,
        },
        rounds: 1,
    };
    for word in rest {
        let Some((key, number)) = word.split_once('=') else {
            measure.jobs.push(job(word)?);
            continue;
        };
        let number: u64 = number.parse().ok()?;
        match key {
            "rounds" => measure.rounds = number as u32,
            "slice-ms" => measure.shape.slice = Duration::from_millis(number),
            "names" => measure.shape.names = number,
            "direct-mib" => measure.shape.direct_bytes = number << 20,
            "scan-mib" => measure.shape.scan_bytes = number << 20,
            "cache-mib" => cache_bytes = number << 20,
            _ => return None,
        }
    }
    let system = match system {
        "adit" => SystemAt::Adit {
            address: place.clone(),
            cache_bytes,
        },
        "kernel" => SystemAt::Kernel(place.into()),
        "raw" => SystemAt::Raw(place.into()),
        _ => return None,
    };
    Some((system, measure))
}

fn job(word: &str) -> Option<Job> {
    let mut parts = word.split(':');
    let name = parts.next()?;
    let numbers: Vec<u64> = parts.map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let threads = |index: usize| numbers.get(index).map_or(1, |&threads| threads as u32);
    Some(match (name, numbers.len()) {
        ("append", 0 | 1) => Job::AppendSync {
            threads: threads(0),
        },
        ("new-file", 0) => Job::NewFileSync,
        ("overwrite", 0) => Job::OverwriteSync,
        ("direct-read", 0 | 1) => Job::DirectRead {
            threads: threads(0),
        },
        ("direct-write", 0) => Job::DirectWrite,
        ("cached-read", 1 | 2) => Job::CachedRead {
            len_bytes: numbers[0] << 20,
            threads: threads(1),
        },
        ("cached-write", 1) => Job::CachedWrite {
            len_bytes: numbers[0] << 20,
        },
        ("names", 0) => Job::Names,
        ("scan", 0) => Job::Scan,
        _ => return None,
    })
}
