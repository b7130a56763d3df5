//! An open volume that nobody uses costs nothing.

use adit::{MkfsOptions, Volume, VolumeOptions};
use std::time::Duration;

/// How often Adit's threads in this process have gone to sleep, and how many clock ticks all its
/// threads have run. Less than before, if a thread has ended.
fn activity() -> (i64, i64) {
    let (mut sleeps, mut ticks) = (0, 0);
    for task in std::fs::read_dir("/proc/self/task").expect("Linux") {
        let task = task.expect("a thread").path();
        let read = |file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
        if read("comm").starts_with("adit-") {
            // Nothing, if it has just ended.
            let status = read("status");
            let line = |line: &&str| line.starts_with("voluntary_ctxt_switches");
            let count = status.lines().find(line).unwrap_or_default();
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
            .map(|time| time.parse::<i64>().expect("ticks"))
            .sum::<i64>();
    }
    (sleeps, ticks)
}

#[test]
fn an_idle_volume_wakes_nobody_once_it_is_clean() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = directory.path().join("v.adit");
    let address = path.to_str().expect("text");
    let mut options = MkfsOptions::new();
    options.size_bytes(96 << 20);
    Volume::mkfs(address, &options).expect("formatted");
    let volume = Volume::open_with(
        address,
        VolumeOptions::new().writeback_interval(Duration::from_millis(50)),
    )
    .expect("opened");
    for number in 0..100 {
        volume
            .write(format!("/{number}"), vec![7; 10_000])
            .expect("written");
    }
    // Nobody syncs: the keeper makes it clean. On a busy machine that takes longer than two
    // seconds. A keeper, or a thread for onlookers, that wakes for nothing does so in all of them.
    let mut all = Vec::new();
    let idle = (0..30).any(|_| {
        let (sleeps, ticks) = activity();
        std::thread::sleep(Duration::from_secs(2));
        let (sleeps_later, ticks_later) = activity();
        all.push((sleeps_later - sleeps, ticks_later - ticks));
        sleeps > 0 && sleeps_later == sleeps && ticks_later - ticks <= 2
    });
    assert!(idle, "sleeps and ticks, each in two seconds: {all:?}");
    volume.close().expect("closed");
}
