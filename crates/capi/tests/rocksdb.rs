//! RocksDB on Adit: the plugin's own test, stock `db_bench`, our benchmark, a database in several
//! processes, and a RocksDB that is killed again and again.
//!
//! They need g++ and Debian's librocksdb-dev and rocksdb-tools, as `cargo xtask setup` installs
//! them. The plugin is built here from the same sources and with the same flags as by `cargo xtask
//! plugin`, over the libadit.a that cargo built with this test.

#[macro_use]
mod support;

#[path = "../../adit/tests/support/failing.rs"]
mod failing;
#[path = "rocksdb/instances.rs"]
mod instances;
#[path = "rocksdb/kills.rs"]
mod kills;

use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use support::*;

/// What is not installed here of what each test needs.
fn missing() -> Option<&'static str> {
    static MISSING: OnceLock<Option<String>> = OnceLock::new();
    let missing = MISSING.get_or_init(|| {
        let mut compiler = Command::new("g++");
        compiler.args(of_another_rocksdb());
        let programs = [("g++", "g++"), ("db_bench", "rocksdb-tools")];
        let header = ("rocksdb/version.h", "librocksdb-dev");
        find_missing(&programs, Some(header), &mut compiler)
    });
    missing.as_deref()
}

/// The plugin and its test programs, built once for all tests here.
fn built() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = scratch();
        let gxx = || {
            let mut command = Command::new("g++");
            command.args([
                "-std=c++20",
                "-O2",
                "-Wall",
                "-Wextra",
                "-Wno-unused-parameter",
            ]);
            command.args(of_another_rocksdb());
            command
        };
        let plugin = folder.path().join("libadit_rocksdb.so");
        run(gxx()
            .args(["-fPIC", "-shared", "-I"])
            .arg(include())
            .args(sources("plugins/rocksdb", "cc"))
            .arg(library("libadit.a"))
            .args(exports("plugins/rocksdb"))
            .args(["-lrocksdb", "-lpthread", "-ldl", "-lm", "-o"])
            .arg(&plugin));
        for source in sources("plugins/rocksdb/tests", "cc") {
            let program = folder
                .path()
                .join(source.file_stem().expect("a file has a name"));
            run(gxx().arg(source).args(["-lrocksdb", "-o"]).arg(program));
        }
        run(gxx()
            .args(sources("plugins/rocksdb/bench", "cc"))
            .args(["-lrocksdb", "-lpthread", "-o"])
            .arg(folder.path().join("adit-ycsb")));
        folder
    });
    folder.path()
}

/// Where RocksDB is, if it is not the system's: built in the folder that `ROCKSDB_ROOT` names. Its
/// programs must be found in the path.
fn of_another_rocksdb() -> Vec<String> {
    let root = std::env::var("ROCKSDB_ROOT").ok();
    let arguments = |root: &str| {
        [
            format!("-I{root}/include"),
            format!("-L{root}"),
            format!("-Wl,--disable-new-dtags,-rpath,{root}"),
        ]
    };
    root.into_iter().flat_map(|root| arguments(&root)).collect()
}

/// A program that finds the plugin as stock programs do, and waits for the next server if one ends,
/// however late the machine lets that begin.
fn with_plugin(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", built().join("libadit_rocksdb.so"))
        .env("ADIT_RECONNECT", HANGS_AFTER.as_secs().to_string());
    command
}

#[test]
fn the_plugin_does_what_rocksdb_expects() {
    need!();
    let folder = scratch();
    let image = folder.path().join("r.adit");
    mkfs(&image, 1 << 30);
    let served = serve("1G");
    for address in [image, served.address().into()] {
        let output = run(with_plugin(built().join("plugin_test")).arg(address));
        assert!(output.contains("claims hold"), "{output}");
    }
}

/// The plugin could be reached from C++ only, and by preloading it: not by the bindings of other
/// languages.
#[test]
fn rocksdbs_c_interface_gets_an_env_on_a_volume() {
    need!();
    let folder = scratch();
    let image = folder.path().join("r.adit");
    mkfs(&image, 256 << 20);
    let program = folder.path().join("c_test");
    run(Command::new("gcc")
        .args(["-std=c11", "-Wall", "-Wextra", "-O1", "-g", "-I"])
        .arg(include())
        .arg("-I")
        .arg(root().join("plugins/rocksdb"))
        .arg(root().join("plugins/rocksdb/tests/c_test.c"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(built())
        .args(of_another_rocksdb())
        .args(["-ladit_rocksdb", "-lrocksdb"])
        .arg(format!(
            "-Wl,--disable-new-dtags,-rpath,{}",
            built().display()
        )));
    let served = serve("256M");
    for address in [image, served.address().into()] {
        let output = run(Command::new(&program).arg(&address));
        assert!(output.contains("claims hold"), "{output}");
        let volume = adit::Volume::open(text(&address)).expect("the last Env closed it");
        assert!(volume.read_dir("/db").expect("there").count() > 3);
    }
}

/// The plugin showed its classes, and copies of what the standard library and RocksDB have in their
/// headers, to every program that preloads it.
#[test]
fn the_plugin_shows_its_entry_points_and_nothing_else() {
    need!();
    let shown = shown_by(&built().join("libadit_rocksdb.so"));
    let [entry, c_entry] = &shown[..] else {
        panic!("{shown:?}");
    };
    assert_eq!(c_entry, "adit_rocksdb_create_env");
    assert!(
        entry.starts_with("adit_rocksdb::NewAditFileSystem"),
        "{entry}"
    );
}

#[test]
fn stock_db_bench_runs_every_benchmark_and_leaves_nothing_outside() {
    need!();
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

const YCSB: [&str; 4] = [
    "--workloads=ABCDEF",
    "--records=1000",
    "--operations=1001",
    "--threads=2",
];

/// Runs the benchmark, and tells its rows by name, with how many operations each has.
fn ycsb_rows(command: &mut Command) -> Vec<(String, u64)> {
    let output = run(command.args(YCSB));
    let document: serde_json::Value = serde_json::from_str(&output).expect("it prints JSON");
    let rows = document["rows"].as_array().expect("it has rows");
    for row in rows {
        let number = |key: &str| {
            row[key]
                .as_f64()
                .unwrap_or_else(|| panic!("no {key}: {row}"))
        };
        assert!(number("seconds") > 0.0 && number("cpu_seconds") >= 0.0);
        assert!(number("p50_us") > 0.0 && number("p50_us") <= number("p99_us"));
        assert!(number("p99_us") <= number("p999_us"));
        assert!(number("memory_bytes") > 0.0 && number("device_read_bytes") >= 0.0);
        assert_eq!(row["threads"], 2);
        let title = row["title"].as_str().expect("a title");
        assert!(title.starts_with("YCSB ") && title.ends_with(", 2 threads"));
    }
    let named = rows.iter().map(|row| {
        let operations = row["operations"].as_u64().expect("a number");
        (row["id"].as_str().expect("a name").to_owned(), operations)
    });
    named.collect()
}

#[test]
fn ycsb_runs_in_a_directory_and_in_a_volume_and_leaves_nothing() {
    need!();
    let folder = scratch();
    let database = folder.path().join("db");
    let mut on_kernel = Command::new(built().join("adit-ycsb"));
    on_kernel.arg(format!("--db={}", database.display()));
    let rows = ycsb_rows(&mut on_kernel);
    assert!(!database.exists());
    let expected = ["load", "a", "b", "c", "d", "e", "f"].map(|name| {
        let operations = if name == "load" { 1000 } else { 1001 };
        (format!("ycsb-{name}"), operations)
    });
    assert_eq!(rows, expected);

    let image = folder.path().join("r.adit");
    mkfs(&image, 1 << 30);
    let served = serve("1G");
    for address in [image, served.address().into()] {
        let mut on_adit = with_plugin(built().join("adit-ycsb"));
        on_adit
            .arg(format!("--fs_uri=adit://{}", address.display()))
            .args(["--db=/db", "--sync=1", "--cache_size=100000"]);
        // Synced, so that the WAL is written at each operation.
        let rows = ycsb_rows(&mut on_adit);
        assert_eq!(rows, expected);
        check(&address, "after YCSB");
        let volume = adit::Volume::open(text(&address)).expect("it was closed");
        assert_eq!(volume.read_dir("/").expect("the root").count(), 0);
    }
}

#[test]
fn ycsb_says_what_it_cannot_do() {
    need!();
    let folder = scratch();
    let refused = |words: &[&str], status: i32, said: &str| {
        let output = outcome(Command::new(built().join("adit-ycsb")).args(words));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {errors}");
        assert!(output.stdout.is_empty());
        assert!(errors.contains(said), "{words:?}: {errors}");
    };
    refused(&[], 2, "Usage");
    for wrong in [
        "--workloads=AG",
        "--threads=0",
        "--records=1e6",
        "--noise",
        "--value_size=7",
    ] {
        refused(&["--db=/nonexistent/db", wrong], 2, "Usage");
    }
    refused(&["--db=/nonexistent/folder/db"], 1, "/nonexistent/folder");
    // The plugin isn't loaded.
    refused(&["--fs_uri=adit:///v", "--db=/db"], 1, "adit:///v");

    // What is there already is neither used nor removed.
    let database = folder.path().join("db");
    std::fs::create_dir(&database).expect("made");
    std::fs::write(database.join("CURRENT"), "MANIFEST-000001\n").expect("written");
    refused(&[&format!("--db={}", database.display())], 1, "exists");
    assert!(database.join("CURRENT").exists());
}

/// Waits for a program that fails with exit code 1; its output, and what it said.
fn fails_with_words(command: &mut Command) -> (Vec<u8>, String) {
    let (code, printed, words) = ends(command);
    assert_eq!(code, Some(1), "{words}");
    (printed, words)
}

#[test]
fn rocksdb_and_another_process_refuse_each_other_by_name() {
    need!();
    let folder = scratch();
    let image = folder.path().join("r.adit");
    mkfs(&image, 1 << 30);
    let mut holder = with_plugin(built().join("kill_test"))
        .args(["write", text(&image), "sync", "0"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program was built");
    let mut number = [0; 8];
    let pipe = holder.stdout.as_mut().expect("it is piped");
    pipe.read_exact(&mut number).expect("it puts keys");
    let mut read_only = adit::VolumeOptions::new();
    read_only.read_only(true);
    for options in [adit::VolumeOptions::default(), read_only] {
        let error = adit::Volume::open_with(text(&image), &options).expect_err("in use");
        let words = format!(
            "{}: in use by kill_test (pid {})",
            text(&image),
            holder.id()
        );
        assert!(error.to_string().contains(&words), "{error}");
        assert_eq!(error.errno(), adit::Errno::BUSY);
    }
    holder.kill().expect("it is our child");
    holder.wait().expect("it is our child");

    let volume = adit::Volume::open(text(&image)).expect("its holder is dead");
    let (_, words) = fails_with_words(with_plugin(built().join("kill_test")).args([
        "write",
        text(&image),
        "sync",
        "0",
    ]));
    let own = format!("(pid {})", std::process::id());
    assert!(
        words.contains("in use by") && words.contains(&own) && words.contains("EBUSY"),
        "{words}"
    );
    volume.close().expect("closed");
    check(&image, "after both");
}

/// A volume that became read-only was an IO error of some call of RocksDB's, which LOG, a file of
/// that volume, can't hold.
#[test]
fn a_volume_that_becomes_read_only_is_told_on_standard_error() {
    need!();
    if !failing::Filter::works() {
        return adit_skip::skip(failing::NO_FILTERS);
    }
    let folder = scratch();
    let image = folder.path().join("r.adit");
    mkfs(&image, 64 << 20);
    let journal = failing::Failing::Writes(failing::JOURNAL.start, failing::JOURNAL.end);
    let filter = failing::Filter::new(journal, libc::EIO);
    let mut command = with_plugin(built().join("kill_test"));
    command.args(["write", text(&image), "sync", "0"]);
    // SAFETY: two system calls.
    unsafe { command.pre_exec(move || filter.install()) };
    // (Debian's RocksDB has assertions, one of which ends it when its LOG fails twice.)
    let (code, _, words) = ends(&mut command);
    assert!(code == Some(1) || words.contains("Assertion"), "{words}");
    let told = |line: &&str| {
        line.starts_with("adit: error: ")
            && line.contains("r.adit: the volume becomes read-only")
            && line.contains("EIO")
    };
    assert_eq!(words.lines().filter(told).count(), 1, "{words}");
}

const VALUE_BEGIN_BYTES: usize = 32;

/// The beginning of what `kill_test` puts under a number.
fn value(i: u64) -> [u8; VALUE_BEGIN_BYTES] {
    let mut state = i.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
    std::array::from_fn(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    })
}

/// Whoever runs RocksDB reads its LOG, in which nothing stood of what Adit had noticed.
#[test]
fn what_adit_notices_is_in_rocksdbs_log() {
    need!();
    let folder = scratch();
    let image = folder.path().join("r.adit");
    adit::Volume::mkfs(
        text(&image),
        adit::MkfsOptions::new()
            .size_bytes(64 << 20)
            .data_checksums(true),
    )
    .expect("formatted");
    let mut writer = with_plugin(built().join("kill_test"))
        .args(["write", text(&image), "sync", "0"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program was built");
    let mut numbers = [0; 8 * 50];
    let pipe = writer.stdout.as_mut().expect("it is piped");
    pipe.read_exact(&mut numbers).expect("it puts keys");
    writer.kill().expect("our child");
    writer.wait().expect("our child");
    let mut verify = with_plugin(built().join("kill_test"));
    verify.args(["verify", text(&image), "50"]);
    run(&mut verify);
    // The device changes a byte of each value, wherever it is (but where it lies in two pages).
    let values: BTreeSet<Vec<u8>> = (0..50).map(|i| value(i).to_vec()).collect();
    let mut bytes = std::fs::read(&image).expect("read");
    let mut changed = 0;
    for page in bytes.chunks_exact_mut(4096) {
        if *page == [0; 4096] {
            continue;
        }
        for at in 0..=page.len() - VALUE_BEGIN_BYTES {
            if values.contains(page[at..at + VALUE_BEGIN_BYTES].as_ref()) {
                page[at] ^= 1;
                changed += 1;
            }
        }
    }
    assert!(changed >= 40, "{changed}");
    std::fs::write(&image, bytes).expect("written");
    let (_, words) = fails_with_words(&mut verify);
    let noticed = "the device returned other bytes than were written";
    assert!(
        words
            .lines()
            .any(|line| line.starts_with("adit: error: ") && line.contains(noticed)),
        "{words}"
    );
    let volume = adit::Volume::open(text(&image)).expect("opened");
    let log = volume.read("/db/LOG").expect("read");
    let log = String::from_utf8_lossy(&log);
    assert!(
        log.lines()
            .any(|line| line.contains("Adit: ") && line.contains(noticed)),
        "{log}"
    );
}

#[test]
fn a_device_that_stops_writing_ends_rocksdb_with_words_and_loses_no_key() {
    need!();
    if !failing::Filter::works() {
        return adit_skip::skip(failing::NO_FILTERS);
    }
    let folder = scratch();
    let image = folder.path().join("r.adit");
    mkfs(&image, 64 << 20);
    // The beginning of the volume is good: it opens and works, until tables get behind that.
    let bad = failing::Failing::Writes(failing::GROUPS.start + (4 << 20), u32::MAX);
    let filter = failing::Filter::new(bad, libc::EIO);
    let mut command = with_plugin(built().join("kill_test"));
    command.args(["write", text(&image), "nosync", "0"]);
    // SAFETY: two system calls.
    unsafe { command.pre_exec(move || filter.install()) };
    let (numbers, words) = fails_with_words(&mut command);
    assert!(words.contains("put: IO error"), "{words}");
    check(&image, "after the device failed");
    let acknowledged = numbers.len() / 8;
    assert!(acknowledged > 0);
    run(with_plugin(built().join("kill_test")).args([
        "verify",
        text(&image),
        &acknowledged.to_string(),
    ]));
}
