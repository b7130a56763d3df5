//! An open volume that nobody uses costs nothing.

use adit::{MkfsOptions, Volume, VolumeOptions};
use std::time::Duration;

/// How often Adit's threads in this process have gone to sleep, and how many clock ticks all its threads have run.
fn activity() -> (u64, u64) {
    let (mut sleeps, mut ticks) = (0, 0);
    for task in std::fs::read_dir("/proc/self/task").expect("Linux") {
        let task = task.expect("a thread").path();
        let read = |file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
        if read("comm").starts_with("adit-") {
            let status = read("status");
            let line = |line: &&str| line.starts_with("voluntary_ctxt_switches");
            let count = status.lines().find(line).expect("a count");
            sleeps += count
                .split_whitespace()
                .nth(1)
                .map_or(0, |n| n.parse().expect("a number"));
        }
        let stat = read("stat");
        let fields = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace();
        let times = fields.skip(11).take(2); // utime, stime
        ticks += times
            .map(|time| time.parse::<u64>().expect("ticks"))
            .sum::<u64>();
    }
    (sleeps, ticks)
}

#[test]
fn an_idle_volume_wakes_nobody_once_it_is_clean() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = directory.path().join("v.adit");
    let address = path.to_str().expect("text");
    let options = MkfsOptions {
        size_bytes: Some(96 << 20),
        ..MkfsOptions::default()
    };
    Volume::mkfs(address, &options).expect("formatted");
    let options = VolumeOptions {
        writeback_interval: Duration::from_millis(50),
        ..VolumeOptions::default()
    };
    let volume = Volume::open_with(address, &options).expect("opened");
    for number in 0..100 {
        volume
            .write(format!("/{number}"), vec![7; 10_000])
            .expect("written");
    }
    // Nobody syncs: the keeper makes it clean.
    let mut sleeps = activity().0;
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(200));
        let now = activity().0;
        if now == sleeps && now > 0 {
            break;
        }
        sleeps = now;
    }
    let (sleeps, ticks) = activity();
    assert!(sleeps > 0, "the keeper has worked");
    std::thread::sleep(Duration::from_secs(2));
    let (sleeps_later, ticks_later) = activity();
    assert_eq!(
        sleeps_later, sleeps,
        "the keeper or the thread for onlookers woke up"
    );
    assert!(
        ticks_later - ticks <= 2,
        "{} ticks in two seconds",
        ticks_later - ticks
    );
    volume.close().expect("closed");
}
