//! Large directories; `cargo test --release -p adit-fs --test million -- --ignored --nocapture` prints times.

mod common;

use common::*;
use std::time::Instant;

/// Creates, finds and lists `count` files; returns ns for each of these per operation.
fn measure(volume: &Volume, directory: &str, count: u32) -> [f64; 3] {
    let per = |start: Instant, count: u32| start.elapsed().as_nanos() as f64 / f64::from(count);
    volume.mkdir(directory).unwrap();
    let name = |number: u32| format!("{directory}/{number:09}.sst");
    let start = Instant::now();
    for number in 0..count {
        volume.touch(&name(number)).unwrap();
    }
    volume.sync().unwrap();
    let created = per(start, count);
    let start = Instant::now();
    for number in 0..count {
        // Spread over the directory.
        volume
            .stat(&name((number as u64 * 7_919 % u64::from(count)) as u32))
            .unwrap();
    }
    let found = per(start, count);
    let start = Instant::now();
    assert_eq!(
        volume.entries(directory, 64 << 10).unwrap().len(),
        count as usize + 2
    );
    [created, found, per(start, count)]
}

fn compare(small: u32, large: u32, device_bytes: u64, cache_bytes: u64) -> [[f64; 3]; 2] {
    let device = memory(device_bytes);
    let volume = Volume::format(device.clone(), cache_bytes);
    let few = measure(&volume, "/small", small);
    let many = measure(&volume, "/large", large);
    for (what, at) in ["create", "lookup", "readdir"].iter().zip(0..) {
        println!(
            "{what}: {:.0} ns at {small}, {:.0} ns at {large}",
            few[at], many[at]
        );
    }
    drop(volume);
    let start = Instant::now();
    let volume = Volume::mount(device, cache_bytes);
    println!("mounted in {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
    assert_eq!(volume.list("/large").len(), large as usize);
    [few, many]
}

#[test]
fn a_directory_of_fifty_thousand_names_is_sound() {
    compare(1000, 50_000, 512 << 20, 128 << 20);
}

#[test]
#[ignore = "takes a minute and a gigabyte"]
fn a_million_names_cost_what_ten_thousand_cost() {
    // In the best of three runs: what else the machine does comes on top, and not evenly.
    let within = (0..3).any(|_| {
        let [few, many] = compare(10_000, 1_000_000, 4 << 30, 1 << 30);
        few.iter().zip(many).all(|(few, many)| many <= 2.0 * few)
    });
    assert!(within, "more than twice");
}
