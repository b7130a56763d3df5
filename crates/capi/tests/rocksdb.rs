//! RocksDB on Adit: the plugin's own test, stock `db_bench`, and a RocksDB that is killed again and again.
//!
//! They need g++ and Debian's librocksdb-dev and rocksdb-tools, as `cargo xtask setup` installs them. The plugin
//! is built here from the same sources and with the same flags as by `cargo xtask plugin`, over the libadit.a
//! that cargo built with this test.

mod support;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};
use support::{include, library, root, run, scratch};

/// Kills of each kind. `ADIT_KILLS` makes it more.
const KILLS: u32 = 3;

fn sources(folder: &str) -> Vec<PathBuf> {
    let mut sources: Vec<_> = std::fs::read_dir(root().join(folder))
        .expect("the plugin is there")
        .map(|entry| entry.expect("a folder can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "cc"))
        .collect();
    sources.sort();
    sources
}

/// The plugin and its test programs, built once for all tests here.
fn built() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = scratch();
        let gxx = || {
            let mut command = Command::new("g++");
            command.args([
                "-std=c++17",
                "-O2",
                "-Wall",
                "-Wextra",
                "-Wno-unused-parameter",
            ]);
            command
        };
        let plugin = folder.path().join("libadit_rocksdb.so");
        run(gxx()
            .args(["-fPIC", "-shared", "-I"])
            .arg(include())
            .args(sources("plugins/rocksdb"))
            .arg(library("libadit.a"))
            .args(["-Wl,--exclude-libs,ALL", "-Wl,-z,defs"])
            .args(["-lrocksdb", "-lpthread", "-ldl", "-lm", "-o"])
            .arg(&plugin));
        for source in sources("plugins/rocksdb/tests") {
            let program = folder
                .path()
                .join(source.file_stem().expect("a file has a name"));
            run(gxx().arg(source).args(["-lrocksdb", "-o"]).arg(program));
        }
        folder
    });
    folder.path()
}

/// A program that finds the plugin as stock programs do.
fn with_plugin(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", built().join("libadit_rocksdb.so"));
    command
}

fn mkfs(image: &Path, size_bytes: u64) {
    let options = adit::MkfsOptions {
        size_bytes: Some(size_bytes),
        ..Default::default()
    };
    adit::Volume::mkfs(text(image), &options).expect("a fresh image can be formatted");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the target folder has a plain name")
}

#[test]
fn the_plugin_does_what_rocksdb_expects() {
    let folder = scratch();
    let image = folder.path().join("r.adit");
    mkfs(&image, 1 << 30);
    let output = run(with_plugin(built().join("plugin_test")).arg(&image));
    assert!(output.contains("claims hold"), "{output}");
}

#[test]
fn stock_db_bench_runs_every_benchmark_and_leaves_nothing_outside() {
    let folder = scratch();
    let image = folder.path().join("r.adit");
    mkfs(&image, 1 << 30);
    let benchmarks = "fillsync,fillseq,fillrandom,overwrite,readrandom,readseq,readwhilewriting,\
                      seekrandom,multireadrandom,compact,deleterandom";
    let output = run(with_plugin("db_bench")
        .current_dir(folder.path())
        .arg(format!("--fs_uri=adit://{}", image.display()))
        .args(["--db=/db", "--num=20000", "--write_buffer_size=1048576"])
        .arg(format!("--benchmarks={benchmarks}")));
    for name in benchmarks.split(',') {
        assert!(
            output
                .lines()
                .any(|line| line.starts_with(name) && line.contains("micros/op")),
            "no result of {name}:\n{output}"
        );
    }
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .expect("it is ours")
        .collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let volume = adit::Volume::open(text(&image)).expect("db_bench closed the volume");
    let names: Vec<String> = volume
        .read_dir("/db")
        .expect("the database is inside")
        .map(|entry| String::from_utf8_lossy(&entry.expect("readable").name).into_owned())
        .collect();
    for expected in ["CURRENT", "LOG", "LOCK", "IDENTITY"] {
        assert!(names.iter().any(|name| name == expected), "{names:?}");
    }
}

/// A few random milliseconds; the seed is in the message of a failure.
fn moments(seed: u64) -> impl Iterator<Item = Duration> {
    let mut state = seed | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        Duration::from_millis(20 + state % 700)
    })
}

/// What `adit check` does: opens, which recovers, and compares everything with everything.
fn check(image: &Path, when: &str) {
    let volume = adit::Volume::open(text(image)).expect("a killed volume can be opened");
    let report = volume.check().expect("a volume can be checked");
    assert!(report.problems.is_empty(), "{when}: {:?}", report.problems);
    volume.close().expect("it is in use by nobody else");
}

/// Fills a DB in one image, kills the program at random moments, and looks for every acknowledged key.
fn killed_fills_keep_every_acknowledged_key(mode: &str) {
    let folder = scratch();
    let image = folder.path().join("r.adit");
    mkfs(&image, 1 << 30);
    let kills = std::env::var("ADIT_KILLS").map_or(KILLS, |n| n.parse().expect("a number"));
    let seed = SystemTime::UNIX_EPOCH
        .elapsed()
        .map_or(1, |now| now.as_nanos() as u64);
    let mut acknowledged = 0_u64;
    for (kill, moment) in moments(seed).take(kills as usize).enumerate() {
        let mut writer = with_plugin(built().join("kill_test"))
            .args(["write", text(&image), mode, &acknowledged.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program was built");
        let mut pipe = writer.stdout.take().expect("it is piped");
        let reader = std::thread::spawn(move || {
            let mut numbers = Vec::new();
            pipe.read_to_end(&mut numbers).expect("a pipe can be read");
            numbers
        });
        std::thread::sleep(moment);
        writer.kill().expect("it is our child");
        let status = writer.wait().expect("it is our child");
        let numbers = reader.join().expect("the reader doesn't panic");
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(9),
            "{mode}, kill {kill}, seed {seed}: ended by itself with {status}"
        );
        if let Some(last) = numbers.chunks_exact(8).last() {
            acknowledged = u64::from_ne_bytes(last.try_into().expect("8 bytes")) + 1;
        }
        eprintln!("{mode}, kill {kill} after {moment:?}: {acknowledged} keys acknowledged");
        check(&image, &format!("{mode}, kill {kill}, seed {seed}"));
        run(with_plugin(built().join("kill_test"))
            .args(["verify", text(&image), &acknowledged.to_string()])
            .env("ADIT_KILL_SEED", seed.to_string()));
    }
    assert!(
        acknowledged > 0,
        "no program lived long enough to put a key"
    );
}

#[test]
fn a_killed_fillsync_keeps_every_acknowledged_key() {
    killed_fills_keep_every_acknowledged_key("sync");
}

#[test]
fn a_killed_fill_without_sync_keeps_every_acknowledged_key_on_the_same_boot() {
    killed_fills_keep_every_acknowledged_key("nosync");
}
