//! Every job in a directory and in an image, tiny: that they run, measure the same rows and clean
//! up; not how fast.

use std::path::Path;
use std::process::{Command, Output};

use adit_bench::Measurement;

fn program(place: &str, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_adit-sqlite-bench"))
        .arg(place)
        .args(words)
        .output()
        .expect("cargo built it")
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo made this folder")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the target folder has a plain name")
}

const ALL: &[&str] = &[
    "wal",
    "delete",
    "batch",
    "read",
    "mix",
    "slice-ms=20",
    "read-mib=4",
    "mix-rows=1000",
    "cache-mib=32",
];

/// The rows of all jobs, and what the queries of the mix answered.
fn measured(place: &str) -> (Vec<Measurement>, String) {
    let output = program(place, ALL);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{place}: {errors}");
    let mut document: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("it prints JSON");
    let rows = serde_json::from_value(document["rows"].take()).expect("it has rows");
    let answers = errors.lines().find(|line| line.contains("answers"));
    (rows, answers.expect("the mix tells them").to_owned())
}

fn assert_sane(rows: &[Measurement]) {
    for row in rows {
        assert!(row.operations > 0 && row.seconds > 0.0, "{row:?}");
        assert!(row.p50_us <= row.p99_us || row.p99_us.is_none(), "{row:?}");
        assert!(row.cpu_seconds.is_some(), "{row:?}");
        assert!(row.memory_bytes.is_some_and(|bytes| bytes > 0), "{row:?}");
    }
    let of = |id: &str| {
        let row = rows.iter().find(|row| row.id == id);
        row.unwrap_or_else(|| panic!("no row {id}"))
    };
    let parts = rows.iter().filter(|row| row.id.starts_with("sqlite-mix-"));
    let operations: u64 = parts.map(|part| part.operations).sum();
    assert_eq!(of("sqlite-mix").operations, operations);
    assert_eq!(of("sqlite-mix-insert").operations, 1000);
    for (id, how) in [
        ("sqlite-wal", "WAL, FULL"),
        ("sqlite-delete", "DELETE, FULL"),
        ("sqlite-batch", "batch atomic"),
    ] {
        assert!(of(id).title.contains(how));
    }
    assert_eq!(of("sqlite-read").operation_bytes, 100);
}

#[test]
fn a_directory_and_a_volume_have_the_same_rows_and_answers_and_nothing_is_left() {
    let folder = scratch();
    let (kernel, kernel_answers) = measured(text(folder.path()));
    assert_sane(&kernel);
    let left = std::fs::read_dir(folder.path()).expect("it is ours");
    assert_eq!(left.count(), 0);

    let image = folder.path().join("v.adit");
    adit::Volume::mkfs(text(&image), adit::MkfsOptions::new().size_bytes(512 << 20))
        .expect("a fresh image can be formatted");
    let (adit, adit_answers) = measured(&format!("adit:{}", image.display()));
    assert_sane(&adit);
    assert_eq!(kernel_answers, adit_answers);
    let names = |rows: &[Measurement]| -> Vec<(String, String)> {
        let names = rows.iter().map(|row| (row.id.clone(), row.title.clone()));
        names.collect()
    };
    assert_eq!(names(&kernel), names(&adit));

    let volume = adit::Volume::open(text(&image)).expect("it was closed");
    assert_eq!(volume.read_dir("/").expect("the root").count(), 0);
    let report = volume.check().expect("a volume can be checked");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    volume.close().expect("nothing is open");
}

#[test]
fn the_memory_of_a_control_group_is_that_of_the_rows() {
    let folder = scratch();
    let file = folder.path().join("memory.current");
    std::fs::write(&file, "12345678\n").expect("written");
    let output = Command::new(env!("CARGO_BIN_EXE_adit-sqlite-bench"))
        .arg(folder.path())
        .args(["wal", "slice-ms=5"])
        .env("ADIT_BENCH_MEMORY", &file)
        .output()
        .expect("cargo built it");
    let document: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("it prints JSON");
    assert_eq!(document["rows"][0]["memory_bytes"], 12_345_678);
}

#[test]
fn what_cannot_be_done_is_said() {
    let refused = |place: &str, words: &[&str], status: i32, said: &str| {
        let output = program(place, words);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{errors}");
        assert!(output.stdout.is_empty());
        assert!(
            errors.contains(said) && !errors.contains("panicked"),
            "{errors}"
        );
    };
    refused("/nonexistent/folder", &["wal"], 1, "/nonexistent/folder");
    refused("adit:/nonexistent/v", &["wal"], 1, "/nonexistent/v");
    for words in [
        &["walk"][..],
        &["wal", "slice-ms=x"],
        &["mix", "mix-rows=10"],
        &[],
    ] {
        refused("/tmp", words, 2, "Usage");
    }
}
