//! Opening, closing, sharing and losing volumes, on image files.

#[path = "support/served.rs"]
mod served;

use adit::{Errno, Inspector, MkfsOptions, OpenOptions, ScrubOptions, Volume, VolumeOptions};
use served::{SERVED, Served};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

struct Image {
    _served: Option<Served>,
    _directory: tempfile::TempDir,
    address: String,
}

fn image() -> Image {
    // Beside the build, not in /tmp: that may be a tmpfs, which knows no O_DIRECT.
    let directory = tempfile::Builder::new()
        .prefix("client-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a temporary directory");
    let address = directory
        .path()
        .join("v.adit")
        .to_str()
        .expect("text")
        .to_owned();
    Volume::mkfs(&address, MkfsOptions::new().size_bytes(96 << 20)).expect("formatted");
    let served = SERVED.then(|| Served::new(Volume::open(&address).expect("opened")));
    Image {
        address: served.as_ref().map_or(address, Served::address),
        _served: served,
        _directory: directory,
    }
}

#[test]
fn what_was_written_is_there_after_closing_and_opening() {
    let image = image();
    let volume = Volume::open(&image.address).expect("opened");
    volume.create_dir("/d").expect("made");
    volume.write("/d/f", "content").expect("written");
    volume.close().expect("closed");
    let volume = Volume::open(&image.address).expect("opened");
    assert_eq!(volume.read("/d/f").expect("read"), b"content");
    drop(volume); // as good as close, if nobody asks how it went
    let volume =
        Volume::open_with(&image.address, VolumeOptions::new().read_only(true)).expect("opened");
    assert_eq!(volume.read("/d/f").expect("read"), b"content");
    assert_eq!(
        volume
            .write("/d/f", "other")
            .expect_err("read-only")
            .errno(),
        Errno::ROFS
    );
    let writing = volume.open_file("/d/f", OpenOptions::new().read(true).write(true));
    assert_eq!(writing.expect_err("read-only").errno(), Errno::ROFS);
    volume.close().expect("closed");
}

/// "close a volume that is still in use": which one, and by how many handles, was for the program's
/// author to find out.
#[test]
fn closing_says_how_many_handles_are_open() {
    let image = image();
    let volume = Volume::open(&image.address).expect("opened");
    let mut options = OpenOptions::new();
    options.write(true).create(true);
    let files = ["/f", "/g"].map(|path| volume.open_file(path, &options).expect("opened"));
    let said = |volume: &Volume| volume.still_open().to_string();
    let words = |count: &str| {
        let address = &image.address;
        format!("close {address}: {count} still open: Device or resource busy (EBUSY)")
    };
    assert_eq!(said(&volume), words("2 handles are"));
    let refused = volume.clone().close().expect_err("in use");
    assert_eq!(refused.to_string(), words("3 handles are"));
    let [one, other] = files;
    drop(one);
    assert_eq!(said(&volume), words("1 handle is"));
    drop(other);
    volume.close().expect("closed");
}

/// A page cache of 0 bytes was 8 MiB in silence, and one of 2^64 bytes 4 TiB.
#[test]
fn an_absurd_page_cache_is_refused_with_what_is_allowed() {
    let image = image();
    let with = |cache_bytes| VolumeOptions::new().cache_bytes(cache_bytes).clone();
    for absurd in [0, 1, (8 << 20) - 1, 1 << 50, u64::MAX] {
        let opened = Volume::open_with(&image.address, &with(absurd)).map(drop);
        let examined = Volume::examine(&image.address, &with(absurd), |_, _| ()).map(drop);
        let inspected = Inspector::open(&image.address, &with(absurd)).map(drop);
        for outcome in [opened, examined, inspected] {
            let error = outcome.expect_err("refused");
            let (given, words) = (adit::format_size(absurd), error.to_string());
            let begin = format!("open {}: use a page cache of {given}:", image.address);
            assert!(words.starts_with(&begin), "{words}");
            assert!(words.contains("it has 8 MiB to "), "{words}");
            assert_eq!(error.errno(), Errno::INVAL);
        }
    }
    let volume = Volume::open_with(&image.address, &with(8 << 20)).expect("the smallest");
    volume.close().expect("closed");
}

#[test]
fn a_forked_child_gets_ebadf_and_leaves_the_volume_alone() {
    let image = image();
    let volume = Volume::open(&image.address).expect("opened");
    let file = volume
        .open_file("/f", OpenOptions::new().read(true).write(true).create(true))
        .expect("opened");
    file.write_at(b"parent", 0).expect("written");
    // SAFETY: the child only makes calls that are to fail, and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = |errno: Errno| errno == Errno::BADF;
        let right = file
            .read_at(&mut [0; 6], 0)
            .is_err_and(|error| refused(error.errno()))
            && file
                .write_at(b"child", 0)
                .is_err_and(|error| refused(error.errno()))
            && volume
                .metadata("/f")
                .is_err_and(|error| refused(error.errno()))
            && file
                .sync_data_async()
                .wait()
                .is_err_and(|error| refused(error.errno()));
        drop(file);
        drop(volume);
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(if right { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: plain system call on a child of ours.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child saw something else than EBADF");
    file.write_at(b"again ", 0).expect("the parent goes on");
    drop(file);
    volume.close().expect("closed");
    assert_eq!(
        Volume::open(&image.address)
            .expect("opened")
            .read("/f")
            .expect("read"),
        b"again "
    );
}

/// Not a test of its own: the process that `sigkill_loses_nothing…` kills.
#[test]
#[ignore = "run by another test"]
fn writes_until_it_is_killed() {
    let Ok(address) = std::env::var("ADIT_TEST_ADDRESS") else {
        return;
    };
    let volume = Volume::open(&address).expect("opened");
    let log = volume
        .open_file("/log", OpenOptions::new().append(true).create(true))
        .expect("opened");
    for round in log.len().expect("known") / 8.. {
        if round % 1000 == 0 {
            volume
                .write(format!("/file-{round}"), round.to_le_bytes())
                .expect("written");
        }
        log.append(&round.to_le_bytes()).expect("appended");
        // The line says: all of that was acknowledged.
        use std::io::Write;
        writeln!(std::io::stderr(), "{round}").expect("told");
    }
}

#[test]
fn sigkill_loses_nothing_that_was_acknowledged() {
    use std::io::{BufRead, BufReader};
    let image = image();
    let mut acknowledged = 0;
    for lines in [1, 300, 5000, 20_000] {
        let mut child = Command::new(std::env::current_exe().expect("known"))
            .args([
                "--exact",
                &served::test_name(module_path!(), "writes_until_it_is_killed"),
                "--ignored",
                "--nocapture",
            ])
            .env("ADIT_TEST_ADDRESS", &image.address)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut told = BufReader::new(child.stderr.take().expect("piped")).lines();
        for line in told.by_ref().take(lines) {
            acknowledged = line.expect("text").parse::<u64>().expect("a number");
        }
        child.kill().expect("killed");
        for line in told.map_while(Result::ok) {
            acknowledged = line.parse().unwrap_or(acknowledged);
        }
        child.wait().expect("ended");
        let volume = Volume::open(&image.address).expect("recovered");
        let log = volume.read("/log").expect("read");
        assert!(
            log.len() as u64 / 8 > acknowledged,
            "{} entries, {acknowledged} acknowledged",
            log.len() / 8
        );
        for (round, entry) in log.chunks_exact(8).enumerate() {
            assert_eq!(entry, (round as u64).to_le_bytes());
        }
        for round in (0..=acknowledged).step_by(1000) {
            assert_eq!(
                volume.read(format!("/file-{round}")).expect("there"),
                round.to_le_bytes()
            );
        }
        volume.close().expect("closed");
    }
}

#[test]
fn a_scrub_reads_all_data_of_a_volume_that_changes_all_the_while() {
    let image = image();
    let volume = Volume::open(&image.address).expect("opened");
    let data = vec![7; 8 << 20];
    volume.write("/data", &data).expect("written");
    for number in 0..2000 {
        let name = format!("/file {number}");
        volume.write(&name, b"some").expect("written");
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let name = format!("/new {}", number % 10);
                volume.write(&name, &data[..20_000]).expect("written");
                volume.remove_file(&name).expect("removed");
            }
        });
        let scrubs = (0..3).map(|_| volume.scrub_with(&ScrubOptions::new(), |_, _| {}));
        let scrubs: Vec<_> = scrubs.collect();
        is_over.store(true, Ordering::Relaxed);
        for found in scrubs {
            let found = found.expect("scrubbed");
            assert!(found.is_clean(), "{:?}", found.problems);
            assert!(found.bytes >= data.len() as u64, "{} bytes", found.bytes);
        }
    });
    volume.close().expect("closed");
}
