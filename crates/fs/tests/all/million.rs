//! Large directories; `cargo test --release -p adit-fs million -- --ignored --nocapture` prints
//! times.

use crate::common::*;
use std::time::Instant;

/// ns an operation took to create, find and list a file among `directories` directories of `names`
/// names each; the last number is for finding only those of one directory again and again.
fn measure(volume: &Volume, directories: u32, names: u32) -> [f64; 4] {
    let files = u64::from(directories) * u64::from(names);
    let per = |start: Instant| start.elapsed().as_nanos() as f64 / files as f64;
    let name = |directory: u64, number: u64| format!("/{directory}/{number:09}.sst");
    // A number of names that is no multiple of this prime is walked through in an order spread over
    // all of them.
    let spread = |count: u64| (0..count).map(move |number| number * 7_919 % count);
    let (directories, names) = (u64::from(directories), u64::from(names));
    let start = Instant::now();
    for directory in 0..directories {
        volume.mkdir(&format!("/{directory}")).unwrap();
        for number in 0..names {
            volume.touch(&name(directory, number)).unwrap();
        }
    }
    volume.sync().unwrap();
    let created = per(start);
    let start = Instant::now();
    for file in spread(files) {
        volume.stat(&name(file / names, file % names)).unwrap();
    }
    let found = per(start);
    let start = Instant::now();
    for number in (0..directories).flat_map(|_| spread(names)) {
        volume.stat(&name(0, number)).unwrap();
    }
    let found_in_one = per(start);
    let start = Instant::now();
    for directory in 0..directories {
        let entries = volume.count(&format!("/{directory}"), 64 << 10).unwrap();
        assert_eq!(entries as u64, names + 2);
    }
    [created, found, per(start), found_in_one]
}

const OPERATIONS: [&str; 4] = [
    "create",
    "lookup",
    "readdir",
    "lookup, processor caches warm",
];

/// The time of each operation with all files in one directory of `large` names, relative to its
/// time with as many files in directories of `small` names.
fn compare(small: u32, large: u32, device_bytes: u64, cache_bytes: u64) -> [f64; 4] {
    let few = {
        let volume = Volume::format(memory(device_bytes), cache_bytes);
        measure(&volume, large / small, small)
    };
    let device = memory(device_bytes);
    let volume = Volume::format(device.clone(), cache_bytes);
    let many = measure(&volume, 1, large);
    drop(volume);
    let start = Instant::now();
    let volume = Volume::open_on(device, cache_bytes);
    println!("opened in {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
    assert_eq!(volume.list("/0").len(), large as usize);
    let ratios = std::array::from_fn(|at| many[at] / few[at]);
    for at in 0..OPERATIONS.len() {
        println!(
            "{}: {:.0} ns at {small}, {:.0} ns at {large}: {:.2} x",
            OPERATIONS[at], few[at], many[at], ratios[at]
        );
    }
    ratios
}

#[test]
fn a_directory_of_fifty_thousand_names_is_sound() {
    compare(1000, 50_000, 512 << 20, 128 << 20);
}

#[test]
#[ignore = "takes a minute and two gigabytes"]
fn a_million_names_cost_what_ten_thousand_cost() {
    let rounds: [[f64; 4]; 5] =
        std::array::from_fn(|_| compare(10_000, 1_000_000, 4 << 30, 1 << 30));
    for (at, operation) in OPERATIONS.iter().enumerate() {
        let mut ratios = rounds.map(|ratios| ratios[at]);
        ratios.sort_by(f64::total_cmp);
        println!(
            "{operation}: {:.2} x ({:.2} to {:.2})",
            ratios[2], ratios[0], ratios[4]
        );
        // The last one shows the processor's caches, not the cost of a large directory.
        if at < 3 {
            assert!(ratios[2] <= 2.0, "{operation} takes {:.2} x", ratios[2]);
        }
    }
}
