//! Processes are killed whose threads overwrite cached pages, past the worker where they may, or
//! change names with several workers: the next opening has all that was acknowledged.

use adit::{MkfsOptions, OpenOptions, Volume, VolumeOptions};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Set in the process to be killed: "pages" or "names", its seed and the directory.
const VARIABLE: &str = "ADIT_OVERWRITER";
const PAGE: usize = 4096;
/// Each has pages of its own in both files.
const THREADS: u64 = 3;
const PAGES: u64 = 24;
const FILES: [&str; 2] = ["/a", "/b"];

fn open(directory: &Path) -> Volume {
    open_with(directory, 1)
}

fn open_with(directory: &Path, workers: u32) -> Volume {
    let image = directory.join("v.adit");
    let image = image.to_str().expect("text");
    let mut options = VolumeOptions::new();
    options.cache_bytes(16 << 20).workers(workers);
    Volume::open_with(image, &options).expect("opened")
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
    let (work, order) = order.split_once(' ').expect("three words");
    let (seed, directory) = order.split_once(' ').expect("three words");
    let seed: u64 = seed.parse().expect("a number");
    if work == "names" {
        return change_names(seed, Path::new(directory));
    }
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

fn start(directory: &Path, work: &str, seed: u64) -> Other {
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "the_other_process", "--ignored", "--nocapture"])
        .env(VARIABLE, format!("{work} {seed} {}", directory.display()))
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

fn kills(few: u64) -> u64 {
    std::env::var("ADIT_KILLS").map_or(few, |kills| kills.parse().expect("a number"))
}

/// A directory with a volume.
fn formatted(size_bytes: u64) -> tempfile::TempDir {
    let directory = tempfile::Builder::new()
        .prefix("kills-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a temporary directory");
    let image = directory.path().join("v.adit");
    let image = image.to_str().expect("text");
    Volume::mkfs(image, MkfsOptions::new().size_bytes(size_bytes)).expect("formatted");
    directory
}

/// `ADIT_KILLS=200 cargo test -p adit --test kills` kills more often.
#[test]
fn what_threads_overwrote_survives_a_kill_at_any_instant() {
    let kills = kills(12);
    let directory = formatted(96 << 20);
    let directory = directory.path();
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
        let mut other = start(directory, "pages", kill);
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

/// The names of a thread, with the content of each.
type Names = BTreeMap<String, Vec<u8>>;

/// A change of names: a line of the log before (`?`) and after (`!`) it.
#[derive(Clone, Copy, Debug)]
struct Change<'a> {
    what: &'a str,
    from: &'a str,
    to: &'a str,
}

impl<'a> Change<'a> {
    fn of_line(line: &'a str) -> Change<'a> {
        let mut words = line.split(' ');
        let mut word = || words.next().expect("three words");
        Change {
            what: word(),
            from: word(),
            to: word(),
        }
    }

    /// Each is one transaction, but for `write`, whose file may be there without its content.
    fn make(self, volume: &Volume) {
        let Change { what, from, to } = self;
        let done = match what {
            "write" => volume.write(to, from),
            "rename" => volume.rename(from, to),
            "link" => volume.hard_link(from, to),
            _ => volume.remove_file(to),
        };
        done.unwrap_or_else(|error| panic!("{self:?}: {error}"));
    }

    fn apply(self, names: &mut Names) {
        let content = match self.what {
            "write" => Some(self.from.as_bytes().to_vec()),
            "rename" => names.remove(self.from),
            "link" => names.get(self.from).cloned(),
            _ => None,
        };
        match content {
            Some(content) => names.insert(self.to.to_owned(), content),
            None => names.remove(self.to),
        };
    }
}

fn own(thread: u64) -> String {
    format!("/{thread}")
}

/// The part of the process to be killed whose threads change names, in directories of their own and
/// in one for all.
fn change_names(seed: u64, directory: &Path) {
    let volume = open_with(directory, 2 + (seed % 3) as u32);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let volume = &volume;
            scope.spawn(move || {
                let path = directory.join(format!("log{thread}"));
                let log = std::fs::File::options().append(true).open(path);
                let mut log = log.expect("opened");
                let mut random = adit_base::random::Prng::new(seed * THREADS + thread);
                let mut names: Vec<String> = names_of(volume, thread).into_keys().collect();
                for number in 0.. {
                    let some = random.index(names.len().max(1));
                    let new = match random.below(2) {
                        0 => format!("{}/{seed}-{number}", own(thread)),
                        _ => format!("/all/{thread}-{seed}-{number}"),
                    };
                    let known = names.get(some).cloned();
                    let (what, from, to) = match (random.below(6), known) {
                        (0, Some(known)) if names.len() > 30 => ("unlink", "-".to_owned(), known),
                        (1, Some(known)) => ("link", known, new),
                        (2, Some(known)) => ("rename", known, new),
                        (3, Some(known)) => {
                            // Over another name, or itself.
                            let other = names[random.index(names.len())].clone();
                            ("rename", known, other)
                        }
                        _ => ("write", format!("{seed}-{number}"), new),
                    };
                    let change = Change {
                        what,
                        from: &from,
                        to: &to,
                    };
                    // Two names of one file, or the same one: a rename does nothing then.
                    let same = |name: &str| volume.metadata(name).expect("there").inode();
                    if what == "rename" && names.contains(&to) && same(&from) == same(&to) {
                        continue;
                    }
                    let line = format!("{what} {from} {to}\n");
                    log.write_all(format!("? {line}").as_bytes())
                        .expect("noted");
                    change.make(volume);
                    log.write_all(format!("! {line}").as_bytes())
                        .expect("noted");
                    if what == "rename" || what == "unlink" {
                        names.retain(|name| *name != from && *name != to);
                    }
                    if what != "unlink" {
                        names.push(to.clone());
                    }
                    if random.below(500) == 0 {
                        volume.sync().expect("synced");
                    }
                }
            });
        }
    });
}

/// The names of a thread that are there.
fn names_of(volume: &Volume, thread: u64) -> Names {
    let mut found = Names::new();
    let prefix = format!("{thread}-");
    for directory in [own(thread), "/all".to_owned()] {
        for entry in volume.read_dir(&directory).expect("listed") {
            let name = String::from_utf8(entry.expect("read").name.into()).expect("text");
            if directory != "/all" || name.starts_with(&prefix) {
                let path = format!("{directory}/{name}");
                let content = volume.read(&path).expect("read");
                found.insert(path, content);
            }
        }
    }
    found
}

#[test]
fn names_that_threads_changed_with_several_workers_survive_a_kill_at_any_instant() {
    let directory = formatted(300 << 20);
    let directory = directory.path();
    let volume = open(directory);
    let mut known: Vec<Names> = Vec::new();
    volume.create_dir("/all").expect("made");
    for thread in 0..THREADS {
        volume.create_dir(own(thread)).expect("made");
        known.push(Names::new());
    }
    volume.close().expect("closed");
    for kill in 0..kills(12) {
        let logs = |thread: u64| directory.join(format!("log{thread}"));
        for thread in 0..THREADS {
            std::fs::write(logs(thread), "").expect("emptied");
        }
        let mut other = start(directory, "names", kill + 1);
        let began = Instant::now();
        let lines = |thread| {
            let text = std::fs::read_to_string(logs(thread)).expect("read");
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            whole.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        while lines(kill % THREADS).len() < 40 + (kill as usize * 997) % 2000 {
            let ended = other.0.try_wait().expect("asked");
            assert!(ended.is_none(), "the other process ended: {ended:?}");
            assert!(began.elapsed() < Duration::from_secs(240), "it hangs");
            std::thread::sleep(Duration::from_micros(200));
        }
        drop(other);
        let volume = open_with(directory, 1 + (kill % 3) as u32);
        for thread in 0..THREADS {
            let names = &mut known[thread as usize];
            let log = lines(thread);
            let mut in_flight = None;
            for line in &log {
                let change = Change::of_line(&line[2..]);
                in_flight = line.starts_with('?').then_some(change);
                if in_flight.is_none() {
                    change.apply(names);
                }
            }
            let mut found = names_of(&volume, thread);
            if let Some(change) = in_flight {
                let mut after = names.clone();
                change.apply(&mut after);
                if change.what == "write" && found.contains_key(change.to) {
                    // Its content may be missing, or be a part. Whole again.
                    let content = after[change.to].clone();
                    volume.write(change.to, &content).expect("written");
                    let part = found.insert(change.to.to_owned(), content.clone());
                    assert!(content.starts_with(&part.expect("it was there")));
                }
                if found == after {
                    *names = after;
                }
            }
            let differs = |name: &&String| found.get(*name) != names.get(*name);
            let all = found.keys().chain(names.keys());
            let both = |name: &String| (name.clone(), found.get(name), names.get(name));
            let differing: Vec<_> = all.filter(differs).map(both).collect();
            assert!(
                differing.is_empty(),
                "kill {kill}, thread {thread}: {differing:?}, in flight {in_flight:?}"
            );
        }
        let report = volume.check().expect("checked");
        assert_eq!(report.problems, Vec::<String>::new());
        volume.close().expect("closed");
    }
}
