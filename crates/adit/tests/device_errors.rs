//! EIO from the device on read, write and flush, as a program meets it: an errno and words, no
//! hang, no panic; and after the program's end, on a device that works again, all that was accepted
//! is there.

#[path = "support/failing.rs"]
mod failing;

use adit::{Errno, File, IoEngine, MkfsOptions, OpenOptions, Volume, VolumeOptions};
use failing::{Failing, Filter, GROUPS, JOURNAL, NO_FILTERS};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(240);

fn open(address: &str) -> Volume {
    Volume::open_with(
        address,
        VolumeOptions::new()
            .engine(IoEngine::Sync)
            .cache_bytes(8 << 20),
    )
    .expect("opened")
}

fn create(volume: &Volume, path: &str) -> File {
    volume
        .open_file(path, OpenOptions::new().read(true).write(true).create(true))
        .expect("opened")
}

fn errno<T: std::fmt::Debug>(result: adit::Result<T>) -> Errno {
    result.expect_err("it fails").errno()
}

fn content(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8 ^ seed).collect()
}

/// Runs a test of this program, in a process of its own, on an image with `/old` (2 MiB) and
/// `/small`; then says what the image has, on a device that works.
#[track_caller]
fn in_a_process_of_its_own(name: &str) -> Option<Volume> {
    if !Filter::works() {
        adit_skip::skip(NO_FILTERS);
        return None;
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let address = directory.path().join("v.adit");
    let address = address.to_str().expect("text");
    Volume::mkfs(address, MkfsOptions::new().size_bytes(64 << 20)).expect("formatted");
    let volume = open(address);
    volume.write("/old", content(1, 2 << 20)).expect("written");
    volume.write("/small", content(2, 100)).expect("written");
    volume.close().expect("closed");
    let mut child = Command::new(std::env::current_exe().expect("known"))
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env("ADIT_TEST_ADDRESS", address)
        .stdout(Stdio::null())
        .spawn()
        .expect("it runs");
    let begin = Instant::now();
    let status = loop {
        match child.try_wait().expect("our child") {
            Some(status) => break status,
            None if begin.elapsed() > LIMIT => {
                child.kill().expect("our child");
                panic!("{name} hangs");
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    assert!(status.success(), "{name}: {status}");
    let volume = open(address);
    let problems = volume.check().expect("checked").problems;
    assert!(problems.is_empty(), "{problems:?}");
    assert!(
        volume
            .read("/old")
            .expect("read")
            .starts_with(&content(1, 4096))
    );
    Some(volume)
}

/// In the child: the volume, if this is the child.
fn volume() -> Option<Volume> {
    Some(open(&std::env::var("ADIT_TEST_ADDRESS").ok()?))
}

fn fail(failing: Failing) {
    let filter = Filter::new(failing, libc::EIO);
    filter.install().expect("it works");
}

#[test]
#[ignore = "run by another test"]
fn on_a_device_that_does_not_read() {
    let Some(volume) = volume() else { return };
    assert_eq!(volume.read("/small").expect("read"), content(2, 100));
    let old = create(&volume, "/old");
    fail(Failing::Reads(GROUPS.start, GROUPS.end));
    let error = old
        .read_at(&mut [0; 4096], 1 << 20)
        .expect_err("not cached");
    assert_eq!(error.errno(), Errno::IO);
    assert!(error.to_string().contains("page"), "{error}");
    // A part of a page needs the rest of it.
    assert_eq!(errno(old.write_at(b"x", 1 << 20)), Errno::IO);
    // Nothing else is the worse for it.
    assert_eq!(volume.read("/small").expect("cached"), content(2, 100));
    let file = create(&volume, "/new");
    file.write_at(&content(3, 100_000), 0).expect("accepted");
    file.sync_all().expect("synced");
    assert!(!volume.is_poisoned());
    drop((old, file));
    volume.close().expect("closed");
}

#[test]
fn a_read_error_is_eio_in_words_and_nothing_else_is_the_worse_for_it() {
    if let Some(volume) = in_a_process_of_its_own("on_a_device_that_does_not_read") {
        assert!(volume.read("/new").expect("there") == content(3, 100_000));
        assert!(volume.read("/old").expect("there") == content(1, 2 << 20));
    }
}

#[test]
#[ignore = "run by another test"]
fn on_a_device_that_does_not_write() {
    let Some(volume) = volume() else { return };
    let (file, other) = (create(&volume, "/new"), create(&volume, "/new"));
    let log = create(&volume, "/log");
    volume.sync().expect("synced");
    fail(Failing::Writes(GROUPS.start, GROUPS.end));
    file.write_at(&content(3, 1 << 20), 0).expect("accepted");
    // Who syncs hears of it, for as long as it lasts; who only had it open, too.
    assert_eq!(errno(file.sync_data()), Errno::IO);
    assert_eq!(errno(file.sync_all()), Errno::IO);
    assert_eq!(errno(other.sync_data()), Errno::IO);
    // A small append goes through the journal, which works.
    for i in 0..50 {
        log.append(&content(i, 100)).expect("accepted");
        log.sync_data().expect("durable");
    }
    assert!(volume.read("/new").expect("cached") == content(3, 1 << 20));
    assert!(!volume.is_poisoned());
    drop((file, other, log));
    volume
        .close()
        .expect_err("what was accepted is not on the device");
}

#[test]
fn what_a_device_did_not_write_is_told_by_every_sync_and_taken_over_by_the_next_process() {
    if let Some(volume) = in_a_process_of_its_own("on_a_device_that_does_not_write") {
        let log: Vec<u8> = (0..50).flat_map(|i| content(i, 100)).collect();
        assert!(volume.read("/log").expect("there") == log);
        assert!(volume.read("/new").expect("there") == content(3, 1 << 20));
    }
}

/// After a failure that nobody can make up for: no more changes, everything can be read.
fn is_read_only(volume: &Volume, log: &File) {
    let info = volume.info().expect("known");
    assert!(info.failure.is_some(), "info doesn't say so");
    let error = log.append(b"more").expect_err("read-only");
    assert_eq!(error.errno(), Errno::ROFS, "{error}");
    assert_eq!(errno(volume.create_dir("/d")), Errno::ROFS);
    assert_eq!(errno(volume.remove_file("/small")), Errno::ROFS);
    for _ in 0..3 {
        log.sync_data().expect_err("never acknowledged");
        volume.sync().expect_err("never acknowledged");
    }
    assert_eq!(volume.read("/small").expect("read"), content(2, 100));
    assert!(volume.read("/old").expect("read") == content(1, 2 << 20));
}

fn loses_its_journal(failing: Failing) {
    let Some(volume) = volume() else { return };
    let log = create(&volume, "/log");
    log.append(&content(3, 100)).expect("accepted");
    log.sync_data().expect("durable");
    fail(failing);
    log.append(&content(4, 100)).expect("accepted");
    // Several threads wait for the same commit.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let error = log.sync_data().expect_err("not durable");
                assert!(matches!(error.errno(), Errno::IO | Errno::ROFS), "{error}");
            });
        }
    });
    is_read_only(&volume, &log);
    drop(log);
    volume
        .close()
        .expect_err("what was accepted is not on the device");
}

#[test]
#[ignore = "run by another test"]
fn on_a_device_that_does_not_write_the_journal() {
    loses_its_journal(Failing::Writes(JOURNAL.start, JOURNAL.end));
}

#[test]
#[ignore = "run by another test"]
fn on_a_device_that_does_not_flush() {
    loses_its_journal(Failing::Flushes);
}

fn nothing_accepted_is_lost(name: &str) {
    if let Some(volume) = in_a_process_of_its_own(name) {
        let log = [content(3, 100), content(4, 100)].concat();
        assert!(volume.read("/log").expect("there") == log);
        assert_eq!(volume.read("/small").expect("there"), content(2, 100));
        assert!(!volume.exists("/d").expect("known"));
        volume
            .write("/after", b"x")
            .expect("it can be written again");
    }
}

#[test]
fn a_failed_journal_write_makes_the_volume_read_only_until_it_is_opened_again() {
    nothing_accepted_is_lost("on_a_device_that_does_not_write_the_journal");
}

#[test]
fn a_failed_flush_makes_the_volume_read_only_until_it_is_opened_again() {
    nothing_accepted_is_lost("on_a_device_that_does_not_flush");
}
