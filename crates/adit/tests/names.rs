//! Threads that look at names and attributes while others change them.

#[path = "support/served.rs"]
mod served;

use adit::{Credentials, Errno, File, OpenOptions, RenameFlags, Volume};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const ROUNDS: u64 = 2_000;

/// Runs `change` so many times beside two threads that `look`.
fn beside(change: impl Fn(u64) + Sync, look: impl Fn() + Sync) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    look();
                }
            });
        }
        /// Ends the others, also when the change panics.
        struct Done<'a>(&'a AtomicBool);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _done = Done(&done);
        (0..ROUNDS).for_each(&change);
    });
}

#[test]
fn a_stat_sees_each_acknowledged_append_sync_and_truncation() {
    let volume = served::open("mem:64M").expect("a volume");
    let options = OpenOptions::new().append(true).create(true).clone();
    let file = volume.open_file("/log", &options).expect("a file");
    // The size is a multiple of 10 from its round on: 10, 20, … of the round's number.
    let acknowledged = AtomicU64::new(0);
    beside(
        |round| {
            file.append(&[0; 10]).expect("room");
            acknowledged.store((round + 1) * 10, Ordering::Release);
            match round % 64 {
                // The size goes into the slot, and the file is ahead of it no more.
                0 => file.sync_all().expect("a sync"),
                32 => volume.sync().expect("a sync"),
                _ => {}
            }
        },
        || {
            let before = acknowledged.load(Ordering::Acquire);
            let size = volume.metadata("/log").expect("a stat").len();
            assert!(
                size >= before,
                "{size} bytes, but {before} were acknowledged"
            );
            assert!(size.is_multiple_of(10), "half an append");
        },
    );
    file.set_len(3).expect("a truncation");
    assert_eq!(volume.metadata("/log").expect("a stat").len(), 3);
}

#[test]
fn a_name_that_is_exchanged_or_moved_is_never_missing_and_never_half_new() {
    let volume = served::open("mem:64M").expect("a volume");
    for directory in ["/a", "/b"] {
        volume.create_dir(directory).expect("a directory");
        for other in 0..500 {
            let path = format!("{directory}/other{other}");
            volume.write(path, b"").expect("a file");
        }
    }
    volume.write("/a/one", [0; 1]).expect("a file");
    volume.write("/b/two", [0; 2]).expect("a file");
    volume.symlink("/a/one", "/link").expect("a link");
    volume.sync().expect("a sync");
    let swapped = RenameFlags::EXCHANGE;
    beside(
        |round| match round % 3 {
            0 => (volume.rename_with("/a/one", "/b/two", swapped)).expect("an exchange"),
            1 => (volume.rename_with("/a", "/b", swapped))
                .and_then(|()| volume.rename_with("/a", "/b", swapped))
                .expect("two exchanges"),
            _ => {
                let path = format!("/a/new{round}");
                volume.write(&path, b"").expect("a file");
                volume.remove_file(&path).expect("it is there");
                let gone = volume.metadata(&path).expect_err("it is gone");
                assert_eq!(gone.errno(), Errno::NOENT);
            }
        },
        || {
            for path in ["/a/other7", "/b/other499"] {
                assert_eq!(volume.metadata(path).expect("it is there").len(), 0);
            }
            match volume.metadata("/link") {
                Ok(found) => assert!(found.len() == 1 || found.len() == 2),
                // Between the two exchanges of the directories.
                Err(error) => assert_eq!(error.errno(), Errno::NOENT),
            }
        },
    );
}

#[test]
fn rights_that_were_taken_away_are_gone_at_once() {
    let volume = served::open("mem:64M").expect("a volume");
    volume.create_dir("/closed").expect("a directory");
    volume.write("/closed/file", b"x").expect("a file");
    volume.set_mode("/closed/file", 0o644).expect("a mode");
    let other = volume.on_behalf_of(Credentials::user(1000, 1000, &[]));
    for _ in 0..3 {
        volume.set_mode("/closed", 0o755).expect("a mode");
        for _ in 0..2 {
            assert_eq!(other.metadata("/closed/file").expect("a stat").len(), 1);
        }
        volume.set_mode("/closed", 0o700).expect("a mode");
        for _ in 0..2 {
            let refused = other.metadata("/closed/file").expect_err("no right");
            assert_eq!(refused.errno(), Errno::ACCESS);
        }
    }
}

fn new_file(volume: &Volume) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    volume.open_file("/f", &options).expect("a file")
}

/// A look at a file's name and a look at the open file show the same size: a thread that saw the file
/// become longer, or shorter, by the one sees that by the other.
#[test]
fn sizes_by_name_and_of_the_open_file_follow_each_other() {
    let volume = served::open("mem:64M").expect("a volume");
    let file = new_file(&volume);
    // Sizes only grow in even rounds, and only fall in odd ones.
    let phase = AtomicU64::new(0);
    let torn = [(); 4].map(|()| AtomicU64::new(0));
    beside(
        |round| {
            let steps = 1..=50u64;
            match round % 2 {
                0 => steps.for_each(|step| file.set_len(4096 * step).expect("grown")),
                _ => (steps.rev()).for_each(|step| file.set_len(4096 * step).expect("cut")),
            }
            phase.fetch_add(1, Ordering::SeqCst);
        },
        || {
            let before = phase.load(Ordering::SeqCst);
            let by_name = || volume.metadata("/f").expect("a stat").len();
            let open = || file.len().expect("a size");
            let (first, second, third) = (by_name(), open(), by_name());
            if phase.load(Ordering::SeqCst) != before {
                return;
            }
            let kinds = match before % 2 {
                0 => [second < first, third < second],
                _ => [second > first, third > second],
            };
            for (index, kind) in kinds.into_iter().enumerate() {
                torn[2 * (before % 2) as usize + index].fetch_add(kind.into(), Ordering::Relaxed);
            }
        },
    );
    let torn = torn.map(|count| count.into_inner());
    assert_eq!(
        torn, [0; 4],
        "by name then open, open then by name; growing, falling"
    );
}

/// A read that meets a truncation has what the file held before, or what it holds afterwards.
#[test]
fn a_read_beside_a_truncation_sees_no_zeroes() {
    let volume = served::open("mem:64M").expect("a volume");
    let file = new_file(&volume);
    file.write_at(&[7; 4096], 0).expect("written");
    let torn = AtomicU64::new(0);
    beside(
        |_| {
            for _ in 0..50 {
                file.set_len(100).expect("cut");
                file.write_at(&[7; 4096], 0).expect("written");
            }
        },
        || {
            let mut buffer = [1; 4096];
            let got = file.read_at(&mut buffer, 0).expect("read");
            let zeroes = buffer[..got].iter().any(|byte| *byte != 7);
            torn.fetch_add(zeroes.into(), Ordering::Relaxed);
        },
    );
    assert_eq!(
        torn.into_inner(),
        0,
        "reads with bytes that the file never had"
    );
}

/// A thread that saw a file become longer by an append sees that by its name.
#[test]
fn sizes_by_name_follow_appends_that_were_seen() {
    let volume = served::open("mem:64M").expect("a volume");
    let file = new_file(&volume);
    let torn = AtomicU64::new(0);
    beside(
        |round| {
            file.write_at(&[7; 10], round * 10).expect("written");
            // The size goes into the slot, and the file is ahead of it no more.
            file.sync_all().expect("synced");
        },
        || {
            let open = file.len().expect("a size");
            let by_name = volume.metadata("/f").expect("a stat").len();
            torn.fetch_add(u64::from(by_name < open), Ordering::Relaxed);
        },
    );
    assert_eq!(torn.into_inner(), 0, "looks that saw the file shrink");
}
