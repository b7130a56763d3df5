//! Processes whose threads overwrite cached pages, past the worker where they may, are killed: the
//! next opening has all that was acknowledged.

use adit::{MkfsOptions, OpenOptions, Volume, VolumeOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Set in the process to be killed: its seed and the directory.
const VARIABLE: &str = "ADIT_OVERWRITER";
const PAGE: usize = 4096;
/// Each has pages of its own in both files.
const THREADS: u64 = 3;
const PAGES: u64 = 24;
const FILES: [&str; 2] = ["/a", "/b"];

fn open(directory: &Path) -> Volume {
    let image = directory.join("v.adit");
    let image = image.to_str().expect("text");
    Volume::open_with(image, VolumeOptions::new().cache_bytes(16 << 20)).expect("opened")
}

fn file(volume: &Volume, path: &str) -> adit::File {
    volume
        .open_file(path, OpenOptions::new().read(true).write(true).create(true))
        .expect("opened")
}

/// Where the log says how often a page was written: acknowledged, in the kernel's hands.
fn log_offset(file: usize, page: u64) -> u64 {
    (file as u64 * PAGES + page) * 8
}

/// The process to be killed. Returns at once where it isn't one.
#[test]
#[ignore = "a part of the other test"]
fn the_other_process() {
    let Ok(order) = std::env::var(VARIABLE) else {
        return;
    };
    let (seed, directory) = order.split_once(' ').expect("two words");
    let seed: u64 = seed.parse().expect("a number");
    let volume = open(Path::new(directory));
    let log = std::fs::File::options()
        .read(true)
        .write(true)
        .open(Path::new(directory).join("log"))
        .expect("opened");
    let files = FILES.map(|path| file(&volume, path));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (log, files, volume) = (&log, &files, &volume);
            scope.spawn(move || {
                let mut random = adit_base::random::Prng::new(seed * THREADS + thread);
                loop {
                    let page = random.below(PAGES / THREADS) * THREADS + thread;
                    let which = random.below(2) as usize;
                    let mut word = [0; 8];
                    let at = log_offset(which, page);
                    log.read_exact_at(&mut word, at).expect("read");
                    let number = u64::from_le_bytes(word) + 1;
                    let content = number.to_le_bytes().repeat(PAGE / 8);
                    let offset = page * PAGE as u64;
                    files[which].write_at(&content, offset).expect("written");
                    log.write_all_at(&number.to_le_bytes(), at).expect("noted");
                    match random.below(3000) {
                        0 => files[which].sync_data().expect("synced"),
                        1 => volume.sync().expect("synced"),
                        _ => {}
                    }
                }
            });
        }
    });
}

/// Killed when it goes.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(directory: &Path, seed: u64) -> Other {
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "the_other_process", "--ignored", "--nocapture"])
        .env(VARIABLE, format!("{seed} {}", directory.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("started");
    Other(child)
}

fn log_of(directory: &Path) -> Vec<u64> {
    let bytes = std::fs::read(directory.join("log")).expect("read");
    let words = bytes.chunks_exact(8);
    let number = |word: &[u8]| u64::from_le_bytes(word.try_into().expect("8 bytes"));
    words.map(number).collect()
}

/// `ADIT_KILLS=200 cargo test -p adit --test kills` kills more often.
#[test]
fn what_threads_overwrote_survives_a_kill_at_any_instant() {
    let kills: u64 =
        std::env::var("ADIT_KILLS").map_or(12, |kills| kills.parse().expect("a number"));
    let directory = tempfile::Builder::new()
        .prefix("kills-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a temporary directory");
    let directory = directory.path();
    let image = directory.join("v.adit");
    Volume::mkfs(
        image.to_str().expect("text"),
        MkfsOptions::new().size_bytes(96 << 20),
    )
    .expect("formatted");
    let words = FILES.len() as u64 * PAGES;
    std::fs::write(directory.join("log"), vec![0; words as usize * 8]).expect("written");
    let volume = open(directory);
    for path in FILES {
        let file = file(&volume, path);
        file.write_at(&vec![0; PAGES as usize * PAGE], 0)
            .expect("written");
    }
    volume.close().expect("closed");
    for kill in 0..kills {
        let before: u64 = log_of(directory).iter().sum();
        let mut other = start(directory, kill);
        let began = Instant::now();
        // At a different moment each time; long enough for grants.
        while log_of(directory).iter().sum::<u64>() < before + 300 + kill * 997 % 4000 {
            let ended = other.0.try_wait().expect("asked");
            assert!(ended.is_none(), "the other process ended: {ended:?}");
            assert!(began.elapsed() < Duration::from_secs(240), "it hangs");
            std::thread::sleep(Duration::from_micros(200));
        }
        drop(other);
        let noted = log_of(directory);
        let volume = open(directory);
        for (which, path) in FILES.iter().enumerate() {
            let file = file(&volume, path);
            let mut page_bytes = vec![0; PAGE];
            for page in 0..PAGES {
                let acknowledged = noted[(log_offset(which, page) / 8) as usize];
                (file.read_exact_at(&mut page_bytes, page * PAGE as u64)).expect("read");
                for word in page_bytes.chunks_exact(8) {
                    let found = u64::from_le_bytes(word.try_into().expect("8 bytes"));
                    // Or of the write that was under way.
                    assert!(
                        found == acknowledged || found == acknowledged + 1,
                        "kill {kill}: page {page} of {path} has {found}, not {acknowledged}"
                    );
                }
                // A part of it may be there. Whole again.
                let whole = acknowledged.to_le_bytes().repeat(PAGE / 8);
                file.write_at(&whole, page * PAGE as u64).expect("written");
            }
        }
        let report = volume.check().expect("checked");
        assert_eq!(report.problems, Vec::<String>::new());
        volume.close().expect("closed");
    }
}
