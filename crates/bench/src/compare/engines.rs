//! Programs of database engines, and ours over their libraries: RocksDB's `db_bench`, `adit-ycsb`,
//! `adit-leveldb-bench`, `adit-sqlite-bench`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::suites::Work;
use super::systems::{System, find_program};
use crate::measurement::errors::while_doing;
use crate::measurement::row::{MeasuredRows, Measurement};

/// The paths of the programs; the comparison leaves out a missing one, with a note.
pub(crate) struct Engines {
    db_bench: Option<PathBuf>,
    ycsb: Option<PathBuf>,
    sqlite: Option<PathBuf>,
    leveldb: Option<PathBuf>,
    /// Lets RocksDB find a volume.
    plugin: Option<PathBuf>,
    /// This program, with the library that `adit run` needs beside it.
    runner: Option<PathBuf>,
}

/// One run of one program.
pub(crate) struct EngineCommand {
    program: PathBuf,
    arguments: Vec<String>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    DbBench,
    Ycsb,
    Sqlite,
    LevelDb,
}

/// Bounds the cache of the plugin's volume.
const CACHE_VARIABLE: &str = "ADIT_CACHE";

impl Engines {
    /// Ours lie beside the running program, or in the path; db_bench comes with Debian's
    /// rocksdb-tools.
    pub(crate) fn find() -> Engines {
        let own = std::env::current_exe().ok();
        let beside = |name: &str| {
            let path = own.as_ref()?.parent()?.join(name);
            path.is_file().then_some(path)
        };
        Engines {
            db_bench: find_program("db_bench"),
            ycsb: beside("adit-ycsb").or_else(|| find_program("adit-ycsb")),
            sqlite: beside("adit-sqlite-bench").or_else(|| find_program("adit-sqlite-bench")),
            leveldb: beside("adit-leveldb-bench").or_else(|| find_program("adit-leveldb-bench")),
            plugin: beside("libadit_rocksdb.so"),
            runner: beside("libadit_preload.so").and(own.clone()),
        }
    }

    /// The runs, or which program is missing.
    pub(crate) fn commands(&self, work: &Work) -> Result<Vec<EngineCommand>, &'static str> {
        let no_plugin = "there is no libadit_rocksdb.so beside this program (`cargo xtask plugin --release` builds it)";
        let plugin = || self.plugin.as_ref().ok_or(no_plugin);
        let command = |program: &PathBuf, arguments: &[String], kind| EngineCommand {
            program: program.clone(),
            arguments: arguments.to_vec(),
            kind,
        };
        match work {
            Work::Jobs(..) | Work::Apart(..) | Work::Layers(..) | Work::Clients(..) => {
                Ok(Vec::new())
            }
            Work::DbBench(runs) => {
                let program = self
                    .db_bench
                    .as_ref()
                    .ok_or("db_bench is not installed (Debian: rocksdb-tools)")?;
                plugin()?;
                Ok(runs
                    .iter()
                    .map(|arguments| command(program, arguments, Kind::DbBench))
                    .collect())
            }
            Work::Ycsb(arguments) => {
                let missing = "there is no adit-ycsb beside this program (`cargo xtask plugin --release` builds it)";
                let program = self.ycsb.as_ref().ok_or(missing)?;
                plugin()?;
                Ok(vec![command(program, arguments, Kind::Ycsb)])
            }
            Work::LevelDb(arguments) | Work::LevelDbClients(arguments) => {
                let missing = "there is no adit-leveldb-bench beside this program (`cargo xtask plugin --release` builds it)";
                let program = self.leveldb.as_ref().ok_or(missing)?;
                let missing = "there is no libadit_preload.so beside this program (`cargo build --release -p adit-preload` builds it)";
                self.runner.as_ref().ok_or(missing)?;
                Ok(vec![command(program, arguments, Kind::LevelDb)])
            }
            Work::Sqlite(arguments) => {
                let missing = "there is no adit-sqlite-bench beside this program (`cargo build --release -p adit-sqlite-bench` builds it)";
                let program = self.sqlite.as_ref().ok_or(missing)?;
                Ok(vec![command(program, arguments, Kind::Sqlite)])
            }
        }
    }

    /// Its process on that system: `place` is the device with a volume on it, or the directory
    /// where it is mounted.
    pub(crate) fn process(
        &self,
        command: &EngineCommand,
        system: &System,
        place: &str,
        cache_bytes: u64,
        folder: &Path,
    ) -> Command {
        let mut process = Command::new(&command.program);
        if let (System::AditRun, Some(runner)) = (system, &self.runner) {
            process = Command::new(runner);
            let cache = format!("--cache-size={cache_bytes}");
            process
                .args(["run", place, &cache, "--"])
                .arg(&command.program);
        }
        process.current_dir(folder);
        let on_adit = matches!(system, System::Adit | System::Served);
        let cache_mib = cache_bytes >> 20;
        match (command.kind, on_adit) {
            (Kind::Sqlite, true) => {
                process.arg(format!("adit:{place}"));
                process
                    .args(&command.arguments)
                    .arg(format!("cache-mib={cache_mib}"));
                return process;
            }
            (Kind::LevelDb, true) => {
                if *system == System::Adit {
                    process.env(CACHE_VARIABLE, format!("{cache_mib}M"));
                }
                process.arg(format!("adit:{place}"));
            }
            (Kind::LevelDb, false) if *system == System::AditRun => {
                process.arg("/adit");
            }
            (Kind::Sqlite | Kind::LevelDb, false) => {
                process.arg(place);
            }
            (_, true) => {
                if let Some(plugin) = &self.plugin {
                    process.env("LD_PRELOAD", plugin);
                }
                process.env(CACHE_VARIABLE, format!("{cache_mib}M"));
                process.args([&format!("--fs_uri=adit://{place}"), "--db=/db"]);
            }
            (_, false) => {
                process.arg(format!("--db={place}/db"));
            }
        }
        process.args(&command.arguments);
        process
    }
}

impl EngineCommand {
    /// Its output, as measurements.
    pub(crate) fn rows(&self, output: &[u8]) -> io::Result<Vec<Measurement>> {
        let text = String::from_utf8_lossy(output);
        if self.kind != Kind::DbBench {
            let measured: MeasuredRows = serde_json::from_str(&text).map_err(|error| {
                while_doing(
                    format!("understand {}", self.program.display()),
                    io::Error::other(error),
                )
            })?;
            return Ok(measured.rows);
        }
        let threads = self
            .arguments
            .iter()
            .find_map(|argument| argument.strip_prefix("--threads=")?.parse().ok());
        let rows: Vec<Measurement> = text
            .lines()
            .filter_map(|line| db_bench_line(line, threads.unwrap_or(1)))
            .collect();
        match rows.is_empty() {
            true => Err(io::Error::other(format!(
                "db_bench reported nothing:\n{text}"
            ))),
            false => Ok(rows),
        }
    }
}

/// `fillsync : 80.125 micros/op 12480 ops/sec 8.013 seconds 100000 operations; 1.4 MB/s (100 ops)`:
/// the parentheses hold the range of its keys, or the number of keys found.
fn db_bench_line(line: &str, threads: u32) -> Option<Measurement> {
    let (name, rest) = line.split_once(':')?;
    let number_before = |unit: &str| {
        let (before, _) = rest.split_once(unit)?;
        before.split_whitespace().next_back()?.parse::<f64>().ok()
    };
    number_before(" micros/op")?;
    let rate = number_before(" ops/sec")?;
    let seconds = number_before(" seconds")?;
    let operations = number_before(" operations")?;
    let name = name.trim();
    let of_threads = match threads {
        1 => String::new(),
        threads => format!(", {threads} threads"),
    };
    Some(Measurement {
        id: format!("rocksdb-{name}"),
        title: format!("RocksDB {name}{of_threads}"),
        threads,
        at: None,
        operation_bytes: 0,
        operations: operations as u64,
        // Its rate has more digits than its time.
        seconds: if rate > 0.0 {
            operations / rate
        } else {
            seconds
        },
        cpu_seconds: None,
        p50_us: None,
        p99_us: None,
        p999_us: None,
        device_read_bytes: None,
        memory_bytes: None,
        lock_share: None,
        least_share: None,
    })
}

#[cfg(test)]
mod tests {
    use super::{Engines, db_bench_line};
    use crate::compare::suites::{Suite, Work};

    #[test]
    fn db_bench_lines_are_read_and_others_are_not() {
        let line = "fillsync     :      80.125 micros/op 12480 ops/sec 8.013 seconds 100000 operations;    1.4 MB/s (100 ops)";
        let read = db_bench_line(line, 4).unwrap();
        assert_eq!(
            (read.id.as_str(), read.operations, read.rate().round()),
            ("rocksdb-fillsync", 100_000, 12480.0)
        );
        assert_eq!(read.title, "RocksDB fillsync, 4 threads");
        assert_eq!(db_bench_line("RocksDB:    version 7.8.3", 1), None);
        assert_eq!(db_bench_line("Initializing RocksDB Options", 1), None);
    }

    #[test]
    fn a_missing_program_is_named_with_where_it_comes_from() {
        let none = Engines {
            db_bench: None,
            ycsb: None,
            sqlite: None,
            leveldb: None,
            plugin: None,
            runner: None,
        };
        for group in Suite::Quick.groups(4096) {
            match (&group.work, none.commands(&group.work)) {
                (
                    Work::Jobs(..) | Work::Apart(..) | Work::Layers(..) | Work::Clients(..),
                    outcome,
                ) => {
                    assert!(outcome.is_ok())
                }
                (_, outcome) => {
                    let missing = outcome.err().unwrap();
                    assert!(
                        missing.contains("rocksdb-tools") || missing.contains("cargo"),
                        "{missing}"
                    );
                }
            }
        }
    }
}
