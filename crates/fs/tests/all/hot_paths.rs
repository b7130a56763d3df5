//! Times of the operations: `cargo test --release -p adit-fs hot_paths -- --ignored --nocapture`.

use crate::common::*;
use std::hint::black_box;

const COUNT: u32 = 20_000;

/// Processor time of this thread: on a busy machine it says more than the clock.
fn thread_ns() -> f64 {
    let now = rustix_time();
    now.0 as f64 * 1e9 + now.1 as f64
}

fn rustix_time() -> (i64, i64) {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    (now.tv_sec, now.tv_nsec)
}

fn time(what: &str, mut operation: impl FnMut(u32)) {
    let start = thread_ns();
    for number in 0..COUNT {
        operation(number);
    }
    println!(
        "{what:24} {:7.0} ns",
        (thread_ns() - start) / f64::from(COUNT)
    );
}

#[test]
#[ignore = "prints times, asserts nothing"]
fn hot_paths() {
    let volume = Volume::format(memory(1 << 30), 256 << 20);
    volume.mkdir("/db").unwrap();
    let names: Vec<String> = (0..COUNT)
        .map(|number| format!("/db/{number:06}.sst"))
        .collect();
    let others: Vec<String> = (0..COUNT)
        .map(|number| format!("/db/{number:06}.log"))
        .collect();
    let name = |number: u32| &names[number as usize];
    for round in 0..2 {
        println!("round {round}");
        time("create + close", |number| {
            volume.touch(name(number)).unwrap()
        });
        time("syncfs / count", |number| {
            if number == 0 {
                volume.sync().unwrap()
            }
        });
        time("stat", |number| {
            _ = black_box(volume.stat(name(number)).unwrap())
        });
        time("stat, missing", |number| {
            _ = black_box(volume.stat(&others[number as usize]).unwrap_err())
        });
        time("open + close", |number| {
            let file = volume.open(name(number), RO).unwrap();
            volume.close(&file).unwrap();
        });
        let file = volume.open(name(7), RW).unwrap();
        time("append 100 B", |_| {
            _ = black_box(volume.append(&file, &[7; 100]).unwrap())
        });
        time("append + fdatasync", |_| {
            volume.append(&file, &[7; 100]).unwrap();
            volume.fdatasync(&file).unwrap();
        });
        time("fstat", |_| {
            _ = black_box(volume.run(|fs| fs.fstat(&file)).unwrap())
        });
        let mut page = [0; 4096];
        time("read 4 KiB", |number| {
            _ = black_box(
                volume
                    .read(&file, u64::from(number % 100) * 4096, &mut page)
                    .unwrap(),
            )
        });
        time("try_read 4 KiB", |number| {
            _ = black_box(
                file.try_read(u64::from(number % 100) * 4096, &mut page)
                    .unwrap(),
            )
        });
        volume.close(&file).unwrap();
        time("rename", |number| {
            volume
                .rename(name(number), &others[number as usize])
                .unwrap()
        });
        time("syncfs / count", |number| {
            if number == 0 {
                volume.sync().unwrap()
            }
        });
        time("rename back", |number| {
            volume
                .rename(&others[number as usize], name(number))
                .unwrap()
        });
        time("put 4 KiB", |number| {
            if number % 4 == 0 {
                volume.put(name(number), &[1; 4096]).unwrap();
            }
        });
        time("syncfs / count", |number| {
            if number == 0 {
                volume.sync().unwrap()
            }
        });
        time("unlink (1/4 with data)", |number| {
            volume.unlink(name(number)).unwrap()
        });
        time("syncfs / count", |number| {
            if number == 0 {
                volume.sync().unwrap()
            }
        });
    }
    assert_eq!(volume.check(), [""; 0]);
}
