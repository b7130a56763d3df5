//! Databases in volumes that SQLite's own process has: what a commit costs at the device, and for
//! how long a volume is open.

mod support;

use adit_block::{FaultConfig, FaultDevice};
use std::time::Duration;
use support::{Mode, connect};

/// Requests of a small commit: (writes, flushes).
fn cost(mode: Mode) -> Vec<(u64, u64)> {
    let device = FaultDevice::new(FaultConfig::default());
    let mut options = adit::VolumeOptions::new();
    options
        .survive(adit::Survive::Off)
        .inspectable(false)
        // Nothing but the commits writes.
        .writeback_interval(Duration::from_secs(1000));
    let name = format!("cost-{mode:?}");
    let volume = adit::Volume::on_device(device.clone(), &options, true).expect("a volume");
    let lent = adit_sqlite::lend(&name, &volume).expect("a name of its own");
    let connection = connect(&name, "/app.db", mode).expect("it opens");
    connection
        .execute_batch("CREATE TABLE t (a INTEGER PRIMARY KEY, b); INSERT INTO t VALUES (0, 'x')")
        .expect("a table");
    let costs = (0..20).map(|_| {
        let before = device.counts();
        connection
            .execute("INSERT INTO t (b) VALUES ('some words')", [])
            .expect("inserted");
        let after = device.counts();
        (after.writes - before.writes, after.flushes - before.flushes)
    });
    let costs = costs.collect();
    drop(connection);
    lent.take_back().expect("nothing is open");
    volume.close().expect("nothing is open");
    costs
}

#[test]
fn a_small_commit_is_one_device_write_in_wal_mode_and_as_a_batch() {
    for mode in [Mode::Wal, Mode::Batch] {
        assert_eq!(cost(mode), [(1, 0); 20], "{mode:?}");
    }
}

#[test]
fn connections_of_a_process_share_a_volume_that_is_open_as_long_as_they_are() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo made this folder");
    let image = folder.path().join("v.adit");
    let image = image.to_str().expect("a plain name");
    adit::Volume::mkfs(image, adit::MkfsOptions::new().size_bytes(64 << 20))
        .expect("a fresh image");
    let one = connect(image, "/one.db", Mode::Wal).expect("it opens");
    let two = connect(
        &format!("{}/./v.adit", folder.path().display()),
        "two.db",
        Mode::Wal,
    );
    let two = two.expect("it opens");
    one.execute_batch("CREATE TABLE t (a)").expect("a table");
    drop(one);
    two.execute_batch("CREATE TABLE t (a)").expect("a table");
    let busy = adit::Volume::open(image).expect_err("it is open");
    assert_eq!(busy.errno(), adit::Errno::BUSY);
    drop(two);
    let volume = adit::Volume::open(image).expect("it is closed");
    assert!(volume.metadata("/one.db").expect("there").len() > 0);
    assert!(volume.metadata("/two.db").expect("there").len() > 0);
}
