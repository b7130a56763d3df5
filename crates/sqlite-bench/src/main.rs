//! `adit-sqlite-bench`: SQLite on a directory of the kernel's file system or in a volume, measured.
//!
//! The same SQLite library in both cases, with the same settings and the same statements; only the
//! VFS is another one. Each job has a database of its own, which is removed afterwards. It prints
//! `{"rows":[...]}`, each row a [`Measurement`].

mod jobs;
mod mix;
mod place;

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use adit_bench::{InterruptGuard, Measurement};
use place::{Mode, Place};

const HELP: &str = "\
Usage: adit-sqlite-bench DIRECTORY|adit:VOLUME JOB... [KEY=NUMBER]...

Jobs: wal     insert a row, commit: WAL, synchronous=FULL
      delete  update a random row of 10 000, commit: journal_mode=DELETE, synchronous=FULL
      batch   the same; on Adit with batch atomic writes instead of the journal
      read    look up random rows of a table larger than SQLite's cache
      mix     bulk changes, queries and upkeep as in speedtest1: WAL, synchronous=NORMAL
Keys: slice-ms=1000    how long each of the first four runs
      read-mib=64      the table of `read` (4 or more)
      mix-rows=50000   the tables of `mix` (1000 or more)
      cache-mib=256    bound of the volume's cache

All with page_size=4096, cache_size=-2048 (2 MiB), mmap_size=0, temp_store=FILE on the measured file system.
";

#[derive(Clone, Copy)]
enum Job {
    Wal,
    Delete,
    Batch,
    Read,
    Mix,
}

struct Amounts {
    slice: Duration,
    table_bytes: u64,
    mix_rows: u64,
    cache_bytes: u64,
}

struct Request<'a> {
    place: &'a str,
    jobs: Vec<(&'a str, Job)>,
    amounts: Amounts,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(request) = parse(&arguments) else {
        eprint!("{HELP}");
        return ExitCode::from(2);
    };
    match run(&request) {
        Ok(rows) => {
            println!("{}", serde_json::json!({ "rows": rows }));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("adit-sqlite-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: &[String]) -> Option<Request<'_>> {
    let (place, words) = arguments.split_first()?;
    let mut request = Request {
        place,
        jobs: Vec::new(),
        amounts: Amounts {
            slice: Duration::from_secs(1),
            table_bytes: 64 << 20,
            mix_rows: 50_000,
            cache_bytes: 256 << 20,
        },
    };
    let amounts = &mut request.amounts;
    for word in words {
        let Some((key, number)) = word.split_once('=') else {
            request.jobs.push((word, job(word)?));
            continue;
        };
        let number: u64 = number.parse().ok()?;
        let mebibytes = number.checked_mul(1 << 20);
        match key {
            "slice-ms" => amounts.slice = Duration::from_millis(number),
            "read-mib" if number >= 4 => amounts.table_bytes = mebibytes?,
            "mix-rows" if number >= 1000 => amounts.mix_rows = number,
            "cache-mib" => amounts.cache_bytes = mebibytes?,
            _ => return None,
        }
    }
    (!request.jobs.is_empty()).then_some(request)
}

fn job(word: &str) -> Option<Job> {
    Some(match word {
        "wal" => Job::Wal,
        "delete" => Job::Delete,
        "batch" => Job::Batch,
        "read" => Job::Read,
        "mix" => Job::Mix,
        _ => return None,
    })
}

fn run(request: &Request<'_>) -> io::Result<Vec<Measurement>> {
    let _guard = InterruptGuard::new();
    let amounts = &request.amounts;
    let place = match request.place.strip_prefix("adit:") {
        Some(address) => Place::volume(address, amounts.cache_bytes)?,
        None => Place::directory(request.place)?,
    };
    let measured = request.jobs.iter().map(|&(name, job)| {
        eprintln!("{name} on {}", request.place);
        place
            .in_folder(|| run_job(&place, job, amounts))
            .map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))
    });
    let measured: io::Result<Vec<_>> = measured.collect();
    let closed = place.close();
    let measured = measured?;
    closed?;
    Ok(measured.concat())
}

fn run_job(place: &Place, job: Job, amounts: &Amounts) -> io::Result<Vec<Measurement>> {
    match job {
        Job::Wal => jobs::wal(place, amounts.slice),
        Job::Delete => jobs::update(place, Mode::Delete, amounts.slice),
        Job::Batch => jobs::update(place, Mode::Batch, amounts.slice),
        Job::Read => jobs::read(place, amounts.table_bytes, amounts.slice),
        Job::Mix => mix::mix(place, amounts.mix_rows),
    }
}
