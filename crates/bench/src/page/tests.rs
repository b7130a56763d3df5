//! The report, from made-up rows.

use super::{html, save};
use crate::compare::comparison::{Comparison, GroupResult, SystemInfo};
use crate::compare::place::Place;
use crate::compare::suites::{Group, Suite, Work};
use crate::compare::systems::System;
use crate::jobs::stage::Shape;
use crate::measurement::environment::Environment;
use crate::measurement::layers::{BreakdownRow, LayerShare};
use crate::measurement::medians::Rows;
use crate::measurement::row::RowKey;
use crate::measurement::sample::Sample;
use crate::pictures;
use crate::report::markdown;
use crate::target::ssd::Ssd;
use std::path::Path;
use std::time::Duration;

fn shape() -> Shape {
    Shape {
        slice: Duration::from_millis(1),
        names: 1,
        direct_bytes: 1,
        scan_bytes: 1,
        cache_bytes: 1,
    }
}

/// Two rows and a curve; Adit loses the second row.
fn comparison() -> Comparison {
    let systems = [
        System::Adit,
        System::Kernel("ext4".to_owned()),
        System::Kernel("xfs".to_owned()),
        System::Raw,
    ];
    let mut rows = Rows::new(systems.iter().map(|system| system.name().to_owned()));
    for (index, rate) in [1000, 100, 200, 3000].into_iter().enumerate() {
        let measured = |id, title: &str, at, rate| {
            let mut key = RowKey::new(id, title, 4096);
            key.at = at;
            Sample::untimed(rate, Duration::from_secs(1)).measurement(&key)
        };
        let mut all = vec![
            measured("won", "a row < that is won", None, rate),
            measured("lost", "a row that is lost", None, 4000 - rate),
        ];
        for at in [4096, 16384, 65536] {
            let title = format!("a row of {at}");
            for id in ["size-write-sync", "size-read-sync"] {
                all.push(measured(id, &title, Some(at), rate * 4096 / at));
            }
        }
        rows.add(index, all);
    }
    let group = Group {
        id: "test",
        title: "A test",
        terms: "Nothing is synced.",
        cache_bytes: 256 << 20,
        place: Place::Device,
        work: Work::Sqlite(Vec::new()),
    };
    let device = Path::new("/dev/test");
    Comparison {
        environment: Environment::here("a test".to_owned()),
        suite: Suite::Quick,
        repetitions: 1,
        seconds: 60.0,
        systems: systems
            .iter()
            .map(|system| SystemInfo::new(system, device))
            .collect(),
        groups: vec![GroupResult::new(&group, rows, Vec::new())],
        notes: vec!["Something was left out.".to_owned()],
    }
}

#[test]
fn a_report_has_its_tables_pictures_losses_and_commands_in_one_page() {
    let comparison = comparison();
    let folder = tempfile::tempdir().unwrap();
    let files = save(&comparison, &folder.path().join("new/folder")).unwrap();
    let names: Vec<_> = files
        .iter()
        .filter_map(|file| file.file_name()?.to_str())
        .collect();
    for name in [
        "report.json",
        "report.md",
        "report.html",
        "test-ratios.svg",
        "test-size-write-sync-rate.svg",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    let page = std::fs::read_to_string(
        files
            .iter()
            .find(|file| file.ends_with("report.html"))
            .unwrap(),
    )
    .unwrap();
    assert_eq!(page.matches("<svg").count(), names.len() - 3);
    for part in [
        "a row &lt; that is won",
        "Something was left out.",
        "mkfs.ext4",
        "Nothing is synced.",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // Nothing is loaded from elsewhere.
    assert!(!page.contains("src=") && !page.contains("<link"), "{page}");
    let lost = comparison.lost();
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0].1.id, "lost");
    // Points of a curve belong together, also with other rows in between.
    let exponents: Vec<f64> = comparison.groups[0]
        .curves
        .iter()
        .filter_map(|curve| curve.exponent)
        .collect();
    assert_eq!(exponents.len(), 2 * 4);
    assert!(
        exponents
            .iter()
            .all(|exponent| (exponent - 1.0).abs() < 0.1),
        "{exponents:?}"
    );
}

/// The row of the headline had no bar, since few of its operations were done in a quick run.
#[test]
fn a_row_of_few_operations_has_a_bar_as_far_as_its_percentiles_are_known() {
    let mut comparison = comparison();
    let bars = |comparison: &Comparison| {
        let pictures = pictures::all(comparison).unwrap();
        let latencies = pictures.iter().find(|one| one.name == "test-latencies");
        latencies.map_or(0, |picture| picture.svg.matches("opacity=\"0.45\"").count())
    };
    assert_eq!(bars(&comparison), 0, "nothing was timed");
    let cells = &mut comparison.groups[0].rows[0].cells;
    cells[0].p50_us = Some(7.0);
    cells[1].p50_us = Some(7.0);
    cells[1].p99_us = Some(9.0);
    cells[2].p50_us = Some(7.0);
    cells[2].p99_us = Some(9.0);
    cells[2].p999_us = Some(90.0);
    assert_eq!(bars(&comparison), 3);
}

/// One repetition has no range, and is no median.
#[test]
fn a_report_claims_no_range_of_one_repetition() {
    let mut comparison = comparison();
    let once = markdown::markdown(&comparison);
    assert!(
        once.contains("Suite quick, measured once, 1 minute.\n"),
        "{once}"
    );
    assert!(!once.contains('±') && !once.contains("medians"), "{once}");
    let shown = comparison.to_string();
    assert!(
        !shown.contains("medians") && !shown.contains("0%"),
        "{shown}"
    );
    (comparison.repetitions, comparison.seconds) = (3, 180.0);
    for row in &mut comparison.groups[0].rows {
        row.cells
            .iter_mut()
            .for_each(|cell| cell.rounds = vec![1.0; 3]);
    }
    let thrice = markdown::markdown(&comparison);
    assert!(
        thrice.contains("medians of 3 repetitions, systems in turn, 3 minutes.\n"),
        "{thrice}"
    );
    assert!(thrice.contains("±0 %"), "{thrice}");
}

#[test]
fn a_page_says_when_where_and_by_what_it_was_made_and_suits_phones_and_dark_rooms() {
    let mut comparison = comparison();
    comparison.environment.host = "test-host".to_owned();
    comparison.environment.date = "2026-11-28T03:48Z".to_owned();
    comparison.environment.command = "adit compare --out 'a b' /dev/x".to_owned();
    comparison.environment.revision = Some("2aab8f54".to_owned());
    let page = html::html(&comparison, &[]);
    for part in [
        "On test-host, 2026-11-28T03:48Z, by <code>adit compare --out 'a b' /dev/x</code>.",
        "(2aab8f54)",
        "name=\"viewport\"",
        "prefers-color-scheme: dark",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains('`'), "{page}");
}

/// A group with only Adit has no columns of other systems, and no pictures of them.
#[test]
fn a_group_about_layers_has_a_table_a_picture_and_no_empty_columns() {
    let mut comparison = comparison();
    let share = |layer: &str, share: f64| LayerShare {
        layer: layer.to_owned(),
        us: share * 8.0,
        share,
        entries: 1.0,
    };
    let layers = vec![BreakdownRow {
        id: "append-sync".to_owned(),
        title: "append + fdatasync".to_owned(),
        threads: 1,
        operations: 100,
        untimed_us: 7.0,
        timed_us: 8.0,
        layers: vec![share("call", 0.25), share("device", 0.75)],
    }];
    let rows = Rows::new(["adit"].map(str::to_owned));
    let group = Group {
        id: "where",
        title: "Where the time goes",
        terms: "Measured once.",
        cache_bytes: 256 << 20,
        place: Place::Device,
        work: Work::Layers(Vec::new(), shape()),
    };
    comparison
        .groups
        .push(GroupResult::new(&group, rows, layers));

    let markdown = markdown::markdown(&comparison);
    let (_, section) = markdown.split_once("## Where the time goes\n").unwrap();
    let (section, _) = section.split_once("## ").unwrap();
    assert!(section.contains("| append + fdatasync | 7.00 | 8.00 | 25 | 75 |"));
    assert!(section.contains("Measured once. Adit's cache: 256 MiB.\n"));
    assert!(!section.contains("ext4"), "{section}");

    let pictures = pictures::all(&comparison).unwrap();
    let names = pictures.iter().filter(|picture| picture.group == "where");
    let names: Vec<&str> = names.map(|picture| picture.name.as_str()).collect();
    assert_eq!(names, ["where-bars"]);
    let page = html::html(&comparison, &pictures);
    assert!(page.contains("<h2 id=\"where\">Where the time goes</h2>\n<figure"));
    assert!(page.contains("<li>device: "), "{page}");

    let shown = comparison.to_string();
    assert!(shown.contains("off 7.00: +14 %"), "{shown}");
    let json: serde_json::Value = serde_json::from_str(&comparison.to_json().unwrap()).unwrap();
    let row = &json["groups"][1]["layers"][0];
    assert_eq!(row["layers"][1]["layer"], "device");
    assert_eq!(row["untimed_us"], 7.0);
}

#[test]
fn a_group_without_the_kernels_file_systems_is_compared_with_the_bare_device() {
    let mut comparison = comparison();
    let mut rows = Rows::new(comparison.systems.iter().map(|system| system.name.clone()));
    for (index, rate) in [(0, 500), (3, 1000)] {
        let key = RowKey::new("append-sync", "append", 0);
        let sample = Sample::untimed(rate, Duration::from_secs(1));
        rows.add(index, vec![sample.measurement(&key)]);
    }
    let group = Group {
        id: "slow",
        title: "Slow",
        terms: "On an SSD.",
        cache_bytes: 64 << 20,
        place: Place::Ssd(Ssd::Us80),
        work: Work::Jobs(Vec::new(), shape()),
    };
    comparison
        .groups
        .push(GroupResult::new(&group, rows, Vec::new()));
    let markdown = markdown::markdown(&comparison);
    let (_, section) = markdown.split_once("## Slow\n").unwrap();
    for part in [
        "On an SSD. Adit's cache: 64 MiB.\n",
        "| | adit | raw | × raw |\n|---|---|---|---|\n| append | 2000 | 1000 | 0.500 |\n",
    ] {
        assert!(section.contains(part), "{part}: {section}");
    }
    let pictures = pictures::all(&comparison).unwrap();
    let picture = pictures.iter().find(|picture| picture.group == "slow");
    let title = &picture.unwrap().title;
    assert!(title.ends_with("as the bare device"), "{title}");
    // It is no file system's loss.
    assert_eq!(comparison.lost().len(), 1);
}

/// Curves over threads have a column for each count, and a picture for each operation.
#[test]
fn a_group_by_threads_has_a_table_a_number_and_a_picture_an_operation() {
    let mut comparison = comparison();
    let mut rows = Rows::new(comparison.systems.iter().map(|system| system.name.clone()));
    for (index, rate) in [(0, 500_000), (1, 100_000)] {
        let mut all = Vec::new();
        for (id, title, counts) in [
            ("threads-stat", "stat, a directory each", &[1, 4][..]),
            ("threads-stat-shared", "stat, one directory", &[2, 4]),
        ] {
            for &threads in counts {
                let key = RowKey::new(id, title, 0).with_threads(threads);
                let mut sample = Sample::untimed(rate, Duration::from_secs(1));
                sample.cpu_seconds = Some(1.5);
                sample.lock_share = (index == 0).then_some(0.25 * f64::from(threads));
                all.push(sample.measurement(&key.at(threads.into())));
            }
        }
        rows.add(index, all);
    }
    let group = Group {
        id: "threads-test",
        title: "By threads",
        terms: "All together.",
        cache_bytes: 64 << 20,
        place: Place::Loop,
        work: Work::Jobs(Vec::new(), shape()),
    };
    comparison
        .groups
        .push(GroupResult::new(&group, rows, Vec::new()));
    let markdown = markdown::markdown(&comparison);
    let (_, section) = markdown.split_once("## By threads\n").unwrap();
    for part in [
        "| threads | | 1 | 2 | 4 |\n|---|---|---|---|---|\n| stat, a directory each | adit | 2.00 |  | 2.00 |\n|  | ext4 | 10.0 |  | 10.0 |\n",
        "| stat, one directory | adit |  | 3.00 | 3.00 |\n",
        "held, %:\n\n| threads | | 1 | 2 | 4 |\n|---|---|---|---|---|\n| stat, a directory each | adit | 25 |  | 100 |\n| stat, one directory | adit |  | 50 | 100 |\n\n",
    ] {
        assert!(section.contains(part), "{part}: {section}");
    }
    let pictures = pictures::all(&comparison).unwrap();
    let of_group = pictures
        .iter()
        .filter(|picture| picture.group == "threads-test");
    let names: Vec<(&str, &str)> = of_group
        .map(|picture| (picture.name.as_str(), picture.title.as_str()))
        .collect();
    assert_eq!(
        names,
        [
            ("threads-test-stat", "stat, a directory each"),
            ("threads-test-stat-shared", "stat, one directory")
        ]
    );
}
