//! LevelDB on Adit: the plugin's own test, our benchmark, and a LevelDB that is killed again and
//! again.
//!
//! They need g++ and Debian's libleveldb-dev, as `cargo xtask setup` installs them. The plugin is
//! built here from the same sources and with the same flags as by `cargo xtask plugin`, over the
//! libadit.a that cargo built with this test.

#[macro_use]
mod support;

#[path = "../../adit/tests/support/failing.rs"]
mod failing;

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc;
use support::*;

/// What is not installed here of what each test needs.
fn missing() -> Option<&'static str> {
    static MISSING: OnceLock<Option<String>> = OnceLock::new();
    let missing = MISSING.get_or_init(|| {
        let header = ("leveldb/db.h", "libleveldb-dev");
        find_missing(&[("g++", "g++")], Some(header), &mut Command::new("g++"))
    });
    missing.as_deref()
}

/// The plugin, its test programs and its benchmark, built once for all tests here.
fn built() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = scratch();
        let gxx = || {
            let mut command = Command::new("g++");
            command.args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror"]);
            command
        };
        run(gxx()
            .args(["-fPIC", "-fno-rtti", "-shared", "-I"])
            .arg(include())
            .args(sources("plugins/leveldb", "cc"))
            .arg(library("libadit.a"))
            .args(exports("plugins/leveldb"))
            .args(["-lleveldb", "-lpthread", "-ldl", "-lm", "-o"])
            .arg(folder.path().join("libadit_leveldb.so")));
        let program = |sources: &[PathBuf], name: &str| {
            run(gxx()
                .args(sources)
                .arg("-L")
                .arg(folder.path())
                .args(["-ladit_leveldb", "-lleveldb", "-lpthread"])
                .args(["-Wl,--disable-new-dtags,-rpath,$ORIGIN", "-o"])
                .arg(folder.path().join(name)))
        };
        for source in sources("plugins/leveldb/tests", "cc") {
            let name = source.file_stem().expect("a file has a name").to_owned();
            program(&[source], name.to_str().expect("a plain name"));
        }
        program(
            &sources("plugins/leveldb/bench", "cc"),
            "adit-leveldb-bench",
        );
        folder
    });
    folder.path()
}

fn program(name: &str) -> Command {
    Command::new(built().join(name))
}

fn succeeds(command: &mut Command) -> String {
    let (code, printed, words) = ends(command);
    assert_eq!(code, Some(0), "{command:?}: {words}");
    String::from_utf8_lossy(&printed).into_owned()
}

fn verify(image: &Path, count: u64) {
    succeeds(program("kill_test").args(["verify", text(image), &count.to_string()]));
}

#[test]
fn the_plugin_does_what_leveldb_expects_and_leaves_nothing_outside() {
    need!();
    let folder = scratch();
    let image = folder.path().join("v.adit");
    mkfs(&image, 256 << 20);
    let output = succeeds(
        program("plugin_test")
            .current_dir(folder.path())
            .arg(&image),
    );
    assert!(output.contains("claims hold"), "{output}");
    check(&image, "after the plugin's test");
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .expect("it is ours")
        .collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let served = serve("256M");
    let mut in_server = program("plugin_test");
    in_server.current_dir(folder.path()).arg(served.address());
    let output = succeeds(&mut in_server);
    assert!(output.contains("claims hold"), "{output}");
    check(Path::new(&served.address()), "after the plugin's test");
}

#[test]
fn the_plugin_shows_its_entry_point_and_nothing_else() {
    need!();
    let shown = shown_by(&built().join("libadit_leveldb.so"));
    let [entry] = &shown[..] else {
        panic!("{shown:?}");
    };
    assert!(entry.starts_with("adit::NewLevelDbEnv("), "{entry}");
}

/// LevelDB's headers are C++11, and so is ours.
#[test]
fn the_header_is_cpp_11_by_itself() {
    need!();
    let folder = scratch();
    let source = folder.path().join("header.cc");
    std::fs::write(&source, "#include \"adit_leveldb.h\"\n").expect("written");
    run(Command::new("g++")
        .args(["-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic"])
        .args(["-fsyntax-only", "-I"])
        .arg(root().join("plugins/leveldb"))
        .arg(source));
}

/// The example that docs/using/leveldb.md says to follow to the letter.
#[test]
fn the_example_of_the_documentation_works() {
    need!();
    let page =
        std::fs::read_to_string(root().join("docs/using/leveldb.md")).expect("the page is there");
    let (_, rest) = page.split_once("```cpp\n").expect("it has an example");
    let (example, _) = rest.split_once("```").expect("the example has an end");
    let folder = scratch();
    let source = folder.path().join("example.cc");
    std::fs::write(&source, example).expect("written");
    run(Command::new("g++")
        .args(["-std=c++11", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(root().join("plugins/leveldb"))
        .arg(&source)
        .arg("-L")
        .arg(built())
        .args(["-ladit_leveldb", "-lleveldb", "-o"])
        .arg(folder.path().join("example"))
        .arg(format!(
            "-Wl,--disable-new-dtags,-rpath,{}",
            built().display()
        )));
    let mut example = Command::new("./example");
    example.current_dir(folder.path());
    let (code, _, words) = ends(&mut example);
    assert_eq!(code, Some(1));
    assert!(words.contains("adit mkfs v.adit"), "{words}");
    mkfs(&folder.path().join("v.adit"), 64 << 20);
    for _ in 0..2 {
        assert_eq!(succeeds(&mut example), "hello world\n");
    }
}

const JOBS: [&str; 7] = [
    "fillsync",
    "fillrandom",
    "overwrite",
    "readrandom",
    "readseq",
    "readhot",
    "fill100K",
];

#[test]
fn the_benchmark_runs_in_a_directory_and_in_a_volume_and_leaves_nothing() {
    need!();
    let folder = scratch();
    let image = folder.path().join("v.adit");
    mkfs(&image, 256 << 20);
    let directory = folder.path().join("directory");
    std::fs::create_dir(&directory).expect("made");
    let served = serve("256M");
    let places = [
        text(&directory).to_owned(),
        format!("adit:{}", image.display()),
        format!("adit:{}", served.address()),
    ];
    for place in &places {
        let output =
            succeeds(program("adit-leveldb-bench").args([place, "--keys=1000", "--instances=3"]));
        let rows: Vec<Vec<&str>> = output
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), JOBS);
        for row in &rows {
            let operations = match row[0] {
                "fillsync" | "fill100K" => "30",
                "readseq" => row[5], // as many as there are
                _ => "3000",
            };
            assert_eq!((row[5], row[6]), (operations, "ops"), "{row:?}");
            assert!(
                row[1].parse::<f64>().is_ok_and(|us| us > 0.0),
                "{place}: {row:?}"
            );
        }
    }
    check(&image, "after the benchmark");
    let volume = adit::Volume::open(text(&image)).expect("it was closed");
    assert_eq!(volume.read_dir("/").expect("the root").count(), 0);
    assert_eq!(directory.read_dir().expect("it is ours").count(), 0);
}

#[test]
fn the_benchmark_runs_ycsb_and_prints_rows_for_programs() {
    need!();
    let folder = scratch();
    let image = folder.path().join("v.adit");
    mkfs(&image, 256 << 20);
    let jobs = ["load", "a", "b", "c", "d", "e", "f"].map(|name| format!("ycsb-{name}"));
    let output = succeeds(program("adit-leveldb-bench").args([
        &format!("adit:{}", image.display()),
        &format!("--jobs={}", jobs.join(",")),
        "--keys=500",
        "--value_size=1000",
        "--instances=2",
        "--json=1",
    ]));
    assert!(output.starts_with("{\"rows\":[{"), "{output}");
    let rows: Vec<&str> = output.split("\"id\":\"leveldb-").skip(1).collect();
    assert_eq!(rows.len(), jobs.len(), "{output}");
    for (row, job) in rows.iter().zip(&jobs) {
        assert!(row.starts_with(&format!("{job}\"")), "{row}");
        assert!(row.contains("\"operations\":1000,"), "{row}");
    }
    check(&image, "after YCSB");
}

#[test]
fn the_benchmark_says_what_it_cannot_do() {
    need!();
    let refused = |words: &[&str], status: i32, said: &str| {
        let output = outcome(program("adit-leveldb-bench").args(words));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {errors}");
        assert!(output.stdout.is_empty());
        assert!(errors.contains(said), "{words:?}: {errors}");
    };
    refused(&[], 2, "Usage");
    for wrong in [
        "--jobs=",
        "--jobs=fillsync,noise",
        "--keys=0",
        "--keys=1e6",
        "--instances=11",
        "--value_size=7",
        "--json=2",
        "--noise=1",
        "second",
    ] {
        refused(&["mem:64M", wrong], 2, "Usage");
    }
    refused(&["/no/such/folder"], 1, "/no/such/folder");
    refused(&["adit:/no/such/volume"], 1, "adit mkfs");
    refused(&["adit:mem:64M", "--jobs=readrandom"], 1, "found nothing");
    refused(&["adit:mem:64M", "--jobs=ycsb-a"], 1, "ycsb-load");

    // What is there already is neither used nor removed.
    let folder = scratch();
    let database = folder.path().join("adit-leveldb-bench-0");
    std::fs::create_dir(&database).expect("made");
    refused(&[text(folder.path())], 1, "exists");
    assert!(database.exists());
}

/// Fills a DB in one image, kills the program at random moments, and looks for every acknowledged
/// key.
fn killed_fills_keep_every_acknowledged_key(mode: &str, survive: &str) {
    let folder = scratch();
    let image = folder.path().join("v.adit");
    mkfs(&image, 1 << 30);
    killed_fills_keep_their_keys(mode, survive, &image);
}

fn killed_fills_keep_their_keys(mode: &str, survive: &str, image: &Path) {
    let seed = seed::seed();
    let mut acknowledged = 0_u64;
    for (kill, moment) in (0..kills()).zip(moments(seed)) {
        let when = format!("{mode}, survive {survive}, kill {kill}, seed {seed}");
        let mut writer = program("kill_test")
            .args(["write", text(image), mode, &acknowledged.to_string()])
            .env("ADIT_SURVIVE", survive)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program was built");
        let mut pipe = writer.stdout.take().expect("it is piped");
        let (begins, begun) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            let mut numbers = vec![0; 8];
            if pipe.read_exact(&mut numbers).is_err() {
                return Vec::new();
            }
            let _ = begins.send(());
            pipe.read_to_end(&mut numbers).expect("a pipe can be read");
            numbers
        });
        // Some are killed while they open the volume, which takes its time on a busy machine.
        let puts = kill % 3 == 2 || begun.recv_timeout(HANGS_AFTER).is_ok();
        std::thread::sleep(moment);
        writer.kill().expect("it is our child");
        let status = writer.wait().expect("it is our child");
        let numbers = reader.join().expect("the reader doesn't panic");
        assert!(puts, "{when}: it puts no key");
        assert_eq!(status.signal(), Some(9), "{when}: ended with {status}");
        if let Some(last) = numbers.chunks_exact(8).last() {
            acknowledged = u64::from_ne_bytes(last.try_into().expect("8 bytes")) + 1;
        }
        eprintln!("{when}, after {moment:?}: {acknowledged} keys acknowledged");
        check(image, &when);
        verify(image, acknowledged);
    }
    assert!(acknowledged > 0);
}

#[test]
fn a_killed_session_keeps_every_acknowledged_key() {
    need!();
    let served = serve("1G");
    killed_fills_keep_their_keys("nosync", "require", Path::new(&served.address()));
}

#[test]
fn a_killed_fillsync_keeps_every_acknowledged_key() {
    need!();
    killed_fills_keep_every_acknowledged_key("sync", "require");
}

/// As after a power cut, all that was not synced is gone with the process.
#[test]
fn a_killed_fillsync_whose_memory_dies_with_it_keeps_every_acknowledged_key() {
    need!();
    killed_fills_keep_every_acknowledged_key("sync", "off");
}

#[test]
fn a_killed_fill_without_sync_keeps_every_acknowledged_key_on_the_same_boot() {
    need!();
    killed_fills_keep_every_acknowledged_key("nosync", "require");
}

#[test]
fn an_env_that_is_never_deleted_is_made_durable_at_exit() {
    need!();
    let folder = scratch();
    let image = folder.path().join("v.adit");
    mkfs(&image, 64 << 20);
    let mut leaving = program("kill_test");
    leaving
        .args(["leave", text(&image), "1000"])
        .env("ADIT_SURVIVE", "off");
    succeeds(&mut leaving);
    check(&image, "after the exit");
    verify(&image, 1000);
}

#[test]
fn leveldb_and_another_process_refuse_each_other_by_name() {
    need!();
    let folder = scratch();
    let image = folder.path().join("v.adit");
    mkfs(&image, 64 << 20);
    let volume = adit::Volume::open(text(&image)).expect("nobody has it");
    let (code, _, words) = ends(program("kill_test").args(["verify", text(&image), "0"]));
    assert_eq!(code, Some(1), "{words}");
    let own = format!("(pid {})", std::process::id());
    for expected in [
        "IO error: ",
        text(&image),
        "in use by",
        &own,
        "close it there",
    ] {
        assert!(words.contains(expected), "no {expected:?}: {words}");
    }
    volume.close().expect("closed");
}

#[test]
fn a_volume_that_becomes_read_only_is_told_once_and_ends_every_put() {
    need!();
    if !failing::Filter::works() {
        return adit_skip::skip(failing::NO_FILTERS);
    }
    let folder = scratch();
    let image = folder.path().join("v.adit");
    mkfs(&image, 64 << 20);
    let journal = failing::Failing::Writes(failing::JOURNAL.start, failing::JOURNAL.end);
    let filter = failing::Filter::new(journal, libc::EIO);
    let mut command = program("kill_test");
    command.args(["write", text(&image), "sync", "0"]);
    // SAFETY: two system calls.
    unsafe { command.pre_exec(move || filter.install()) };
    let (code, _, words) = ends(&mut command);
    assert_eq!(code, Some(1), "{words}");
    let told = |line: &&str| {
        line.starts_with("adit: error: ")
            && line.contains("v.adit: the volume becomes read-only")
            && line.contains("EIO")
    };
    assert_eq!(words.lines().filter(told).count(), 1, "{words}");
    assert!(words.contains("open: IO error: /db/"), "{words}");
}

#[test]
fn a_device_that_stops_writing_ends_leveldb_with_words_and_loses_no_key() {
    need!();
    if !failing::Filter::works() {
        return adit_skip::skip(failing::NO_FILTERS);
    }
    let folder = scratch();
    let image = folder.path().join("v.adit");
    mkfs(&image, 64 << 20);
    // The beginning of the volume is good: it opens and works, until tables get behind that.
    let bad = failing::Failing::Writes(failing::GROUPS.start + (4 << 20), u32::MAX);
    let filter = failing::Filter::new(bad, libc::EIO);
    let mut command = program("kill_test");
    command.args(["write", text(&image), "nosync", "0"]);
    // SAFETY: two system calls.
    unsafe { command.pre_exec(move || filter.install()) };
    let (code, numbers, words) = ends(&mut command);
    assert_eq!(code, Some(1), "{words}");
    assert!(words.contains("put: IO error"), "{words}");
    check(&image, "after the device failed");
    let acknowledged = numbers.len() / 8;
    assert!(acknowledged > 0);
    verify(&image, acknowledged as u64);
}
