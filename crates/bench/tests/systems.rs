//! Every job on every system, tiny: that they run, measure and clean up; not how fast.

use std::path::Path;
use std::time::Duration;

use adit_bench::{Job, Measure, Report, Shape, SystemAt, measure_one};

const JOBS: [Job; 10] = [
    Job::AppendSync { threads: 1 },
    Job::AppendSync { threads: 2 },
    Job::NewFileSync,
    Job::OverwriteSync,
    Job::DirectRead { threads: 2 },
    Job::DirectWrite,
    Job::CachedRead {
        len_bytes: 1 << 20,
        threads: 1,
    },
    Job::CachedWrite { len_bytes: 1 << 20 },
    Job::Names,
    Job::Scan,
];

fn tiny() -> Measure {
    Measure {
        jobs: JOBS.to_vec(),
        shape: Shape {
            slice: Duration::from_millis(2),
            names: 20,
            direct_bytes: 2 << 20,
            scan_bytes: 2 << 20,
        },
        rounds: 2,
    }
}

/// A folder on the file system of the sources: /tmp may be a tmpfs.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn run(system: SystemAt) -> Report {
    measure_one(&system, &tiny(), &mut |_, _| ()).unwrap()
}

fn assert_sane(report: &Report, rows: usize) {
    let block = &report.blocks[0];
    let titles: Vec<&str> = block.rows.iter().map(|row| row.title.as_str()).collect();
    assert_eq!(block.rows.len(), rows, "{titles:?}");
    for row in &block.rows {
        let cell = &row.cells[0];
        assert_eq!(cell.rounds.len(), 2, "{}", row.title);
        assert!(cell.operations_per_second > 0.0, "{}", row.title);
        assert!(cell.resident_bytes.is_some(), "{}", row.title);
        assert!(cell.p50_us <= cell.p99_us && cell.p99_us <= cell.p999_us);
    }
    assert!(report.to_string().contains("append 100 B + fdatasync"));
    assert!(report.to_json().unwrap().contains("append-sync"));
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn every_job_runs_on_the_kernels_file_system_and_leaves_only_its_data_files() {
    let folder = folder();
    let report = run(SystemAt::Kernel(folder.path().to_path_buf()));
    assert_sane(&report, 16);
    let left = names_in(folder.path());
    assert_eq!(
        left,
        ["cached-1048576", "direct-2097152", "overwritten-2097152"]
    );
}

#[test]
fn the_floor_measures_everything_but_names_and_cached_writes() {
    let folder = folder();
    let report = run(SystemAt::Raw(folder.path().join("floor")));
    assert_sane(&report, 10);
}

#[test]
fn every_job_runs_on_a_volume_in_memory() {
    let report = run(SystemAt::Adit {
        address: "mem:256M".to_owned(),
        cache_bytes: 64 << 20,
    });
    // One more than the kernel: borrowed reads.
    assert_sane(&report, 17);
}

#[test]
fn an_error_says_what_was_measured() {
    let nowhere = SystemAt::Kernel("/nonexistent/folder".into());
    let error = measure_one(&nowhere, &tiny(), &mut |_, _| ()).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/folder"), "{error}");
}
