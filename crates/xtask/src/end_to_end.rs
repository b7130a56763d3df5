//! The end-to-end tests: the `adit` command, stock RocksDB and LevelDB on one image, as a user
//! would.
//!
//! It runs the programs of `build` and `plugin`; a check whose database is not installed is
//! skipped. Each claim is one check. The first failure ends the run, because each check uses the
//! image as the one before left it.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::counts::{Counts, Tested};
use crate::plugin::Profile;
use crate::process::{self, Outcome, Scratch};

/// Keys that db_bench writes: enough for several memtable flushes and a compaction.
const KEYS: u64 = 50_000;

/// No program takes this long to begin, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(240);

struct Stage {
    adit: PathBuf,
    plugin: PathBuf,
    leveldb_bench: PathBuf,
    folder: PathBuf,
    image: PathBuf,
    /// The directory of RocksDB's database in the image. Nothing on the host has this name: a
    /// machine may have a `/db` of its own.
    database: String,
}

/// What a check needs, beside what cargo builds.
#[derive(Clone, Copy, Debug)]
enum Need {
    Nothing,
    RocksDb,
    LevelDb,
}

type Check = (&'static str, Need, fn(&Stage) -> Outcome);

const CHECKS: &[Check] = &[
    (
        "mkfs makes an image that check finds clean",
        Need::Nothing,
        mkfs,
    ),
    (
        "put and get return the same tree",
        Need::Nothing,
        put_and_get,
    ),
    ("names can be changed", Need::Nothing, change_names),
    (
        "db_bench runs on the image",
        Need::RocksDb,
        db_bench_fills_and_reads,
    ),
    (
        "the database lies inside the image",
        Need::RocksDb,
        database_is_inside,
    ),
    (
        "a volume in use can be seen, and changed by nobody else",
        Need::RocksDb,
        in_use,
    ),
    (
        "LevelDB runs beside RocksDB's database",
        Need::LevelDb,
        leveldb_fills_and_reads,
    ),
    (
        "processes with LevelDB are clients of one server",
        Need::LevelDb,
        leveldb_clients_fill_and_read,
    ),
    ("nothing leaks to the host", Need::Nothing, nothing_leaks),
    ("check is clean at the end", Need::Nothing, check),
];

/// All checks, in order.
pub(crate) fn run() -> Outcome<Tested> {
    let scratch = Scratch::new("end-to-end")?;
    let stage = Stage {
        adit: Profile::Debug.program("adit"),
        plugin: Profile::Debug.program("libadit_rocksdb.so"),
        leveldb_bench: Profile::Debug.program("adit-leveldb-bench"),
        folder: scratch.path().to_path_buf(),
        image: scratch.path().join("r.adit"),
        database: format!("/adit-end-to-end-{}", std::process::id()),
    };
    let mut tested = Tested::default();
    for (claim, need, check) in CHECKS {
        if let Some(reason) = stage.missing(*need) {
            println!("skipped: {claim}: {reason}");
            tested += Tested::skipped(&format!("end-to-end \"{claim}\""), reason);
            continue;
        }
        let outcome = check(&stage);
        tested += Counts::one(outcome.is_ok()).into();
        match outcome {
            Ok(()) => println!("ok: {claim}"),
            Err(complaint) => {
                eprintln!("FAILED: {claim}\n{complaint}");
                break;
            }
        }
    }
    Ok(tested)
}

impl Stage {
    /// What a check would miss here.
    fn missing(&self, need: Need) -> Option<String> {
        let not_built = |of: &Path, package: &str| {
            let name = of.file_name().unwrap_or_default().to_string_lossy();
            (!of.exists()).then(|| format!("{name} is not built (apt install {package})"))
        };
        match need {
            Need::Nothing => None,
            Need::RocksDb if !process::is_installed("db_bench") => {
                Some("db_bench is not installed (apt install rocksdb-tools)".to_owned())
            }
            Need::RocksDb => not_built(&self.plugin, "librocksdb-dev"),
            Need::LevelDb => not_built(&self.leveldb_bench, "libleveldb-dev"),
        }
    }

    fn adit(&self, arguments: &[&str]) -> Outcome<String> {
        process::read(Command::new(&self.adit).args(arguments))
    }

    fn image(&self) -> &str {
        self.image.to_str().unwrap_or("r.adit")
    }

    fn host_path(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }

    fn db_bench(&self, benchmarks: &str, keys: u64) -> Command {
        let mut command = Command::new("db_bench");
        command
            .current_dir(&self.folder)
            .env("LD_PRELOAD", &self.plugin)
            .arg(format!("--fs_uri=adit://{}", self.image()))
            .arg(format!("--db={}", self.database))
            .arg(format!("--benchmarks={benchmarks}"))
            .arg(format!("--num={keys}"));
        command
    }
}

fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(otherwise()) }
}

fn mkfs(stage: &Stage) -> Outcome {
    stage.adit(&["mkfs", stage.image(), "--size", "1G"])?;
    check(stage)
}

fn check(stage: &Stage) -> Outcome {
    stage.adit(&["check", stage.image()]).map(drop)
}

fn put_and_get(stage: &Stage) -> Outcome {
    let source = stage.folder.join("tree");
    write_tree(&source)?;
    let (from, back) = (stage.host_path("tree"), stage.host_path("back"));
    stage.adit(&["put", stage.image(), &from, "/tree"])?;
    stage.adit(&["get", stage.image(), "/tree", &back])?;
    process::run(Command::new("diff").args(["-r", &from, &back]))
}

/// Empty, tiny, unaligned and large files, a nested folder.
fn write_tree(root: &Path) -> Outcome {
    let nested = root.join("a/b");
    let large: Vec<u8> = (0..3_000_001_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let write = |path: PathBuf, bytes: &[u8]| {
        std::fs::write(&path, bytes)
            .map_err(|error| format!("could not write {}: {error}", path.display()))
    };
    std::fs::create_dir_all(&nested).map_err(|error| format!("could not make a tree: {error}"))?;
    write(root.join("empty"), &[])?;
    write(root.join("tiny"), b"x")?;
    write(nested.join("unaligned"), &large[..5001])?;
    write(nested.join("large"), &large)
}

fn change_names(stage: &Stage) -> Outcome {
    let image = stage.image();
    stage.adit(&["mkdir", image, "/names"])?;
    stage.adit(&["mv", image, "/tree/tiny", "/names/moved"])?;
    stage.adit(&["ln", image, "/names/moved", "/names/linked"])?;
    stage.adit(&["rm", image, "/names/moved"])?;
    let content = stage.adit(&["cat", image, "/names/linked"])?;
    expect(content == "x", || format!("cat printed {content:?}"))?;
    let listing = stage.adit(&["ls", image, "/names"])?;
    expect(
        listing.contains("linked") && !listing.contains("moved"),
        || format!("ls printed:\n{listing}"),
    )
}

fn db_bench_fills_and_reads(stage: &Stage) -> Outcome {
    let benchmarks = "fillrandom,overwrite,readrandom,compact,readseq";
    let output = process::read(&mut stage.db_bench(benchmarks, KEYS))?;
    for name in ["fillrandom", "overwrite", "readrandom", "readseq"] {
        expect(output.lines().any(|line| line.starts_with(name)), || {
            format!("db_bench did not report {name}:\n{output}")
        })?;
    }
    Ok(())
}

fn database_is_inside(stage: &Stage) -> Outcome {
    let listing = stage.adit(&["ls", stage.image(), &stage.database])?;
    for name in ["CURRENT", "MANIFEST", "LOG", ".sst"] {
        expect(listing.contains(name), || {
            format!("no {name} in {}:\n{listing}", stage.database)
        })?;
    }
    Ok(())
}

/// While db_bench has it, and not any more when db_bench was killed.
fn in_use(stage: &Stage) -> Outcome {
    let mut holder = stage
        .db_bench("fillsync", u64::from(u32::MAX))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("could not run db_bench: {error}"))?;
    let begin = Instant::now();
    while !is_locked(&stage.image) && begin.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(20));
    }
    let refused = stage.adit(&["mkdir", stage.image(), "/refused"]);
    // Between its lock and its answers it recovers and opens.
    let mut inspected = stage.adit(&["ls", stage.image()]);
    while inspected.is_err() && begin.elapsed() < PATIENCE {
        inspected = stage.adit(&["ls", stage.image()]);
    }
    let killed = holder.kill().and_then(|()| holder.wait());
    killed.map_err(|error| format!("could not kill db_bench: {error}"))?;
    let words = format!("in use by db_bench (pid {})", holder.id());
    match refused {
        Ok(_) => return Err("a second process could change the volume".to_owned()),
        Err(complaint) => expect(complaint.contains(&words), || complaint)?,
    }
    let listing = inspected?;
    expect(
        listing.contains("tree/") && !listing.contains("refused"),
        || format!("ls printed:\n{listing}"),
    )?;
    stage.adit(&["ls", stage.image()])?;
    check(stage)
}

/// Whether a process has the image open: it locks it then. (Looking with `adit` could come between
/// its opening and its locking.)
fn is_locked(image: &Path) -> bool {
    let inode = std::fs::metadata(image).map(|image| format!(":{} ", image.ino()));
    let locks = std::fs::read_to_string("/proc/locks");
    let (Ok(inode), Ok(locks)) = (inode, locks) else {
        return false;
    };
    let mut locks = locks.lines();
    locks.any(|lock| lock.contains(" FLOCK ") && lock.contains(&inode))
}

fn leveldb_fills_and_reads(stage: &Stage) -> Outcome {
    let mut command = Command::new(&stage.leveldb_bench);
    command
        .current_dir(&stage.folder)
        .arg(format!("adit:{}", stage.image()))
        .arg(format!("--keys={}", KEYS / 2))
        .arg("--instances=2");
    let output = process::read(&mut command)?;
    for name in ["fillsync", "fillrandom", "readrandom", "fill100K"] {
        expect(output.lines().any(|line| line.starts_with(name)), || {
            format!("adit-leveldb-bench did not report {name}:\n{output}")
        })?;
    }
    let listing = stage.adit(&["ls", stage.image()])?;
    let has_rocksdb = stage.missing(Need::RocksDb).is_none();
    expect(
        listing.contains(&stage.database[1..]) == has_rocksdb && !listing.contains("leveldb"),
        || format!("ls printed:\n{listing}"),
    )?;
    check(stage)
}

/// Two databases, each of a process of its own: clients of a server.
fn leveldb_clients_fill_and_read(stage: &Stage) -> Outcome {
    let served = Served::start(stage)?;
    let mut command = Command::new(&stage.leveldb_bench);
    command
        .current_dir(&stage.folder)
        .arg(format!("adit:unix:{}", served.socket.display()))
        .arg(format!("--keys={}", KEYS / 2))
        .args(["--jobs=fillsync,ycsb-load,ycsb-a"])
        .args(["--instances=2", "--processes=1"]);
    let output = process::read(&mut command)?;
    for (name, count) in [
        ("fillsync", KEYS / 100),
        ("ycsb-load", KEYS),
        ("ycsb-a", KEYS),
    ] {
        let line = output.lines().find(|line| line.starts_with(name));
        let words = line.unwrap_or_default().split_whitespace();
        let words: Vec<&str> = words.collect();
        let counted = words
            .windows(2)
            .any(|pair| pair == [&count.to_string(), "ops"]);
        expect(counted, || {
            format!("{name} is not {count} operations:\n{output}")
        })?;
    }
    drop(served);
    check(stage)
}

/// The image in a server, until it is dropped.
struct Served {
    process: Child,
    socket: PathBuf,
}

impl Served {
    fn start(stage: &Stage) -> Outcome<Served> {
        let socket = stage.folder.join("socket");
        let failed = |error| format!("could not serve {}: {error}", stage.image());
        let process = Command::new(&stage.adit)
            .args(["serve", stage.image(), "--socket"])
            .arg(&socket)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut served = Served { process, socket };
        // It says so when sessions can begin.
        let mut said = [0; 8];
        let out = served.process.stdout.as_mut().expect("piped");
        out.read_exact(&mut said).map_err(failed)?;
        Ok(served)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // SAFETY: plain system call on a child of ours that nobody has waited for.
        unsafe { libc::kill(self.process.id() as libc::pid_t, libc::SIGTERM) };
        let _ = self.process.wait();
        // It is for the next server.
        let _ = std::fs::remove_file(self.socket.with_extension("sessions"));
    }
}

fn nothing_leaks(stage: &Stage) -> Outcome {
    let expected = ["back", "r.adit", "tree"];
    let mut found = Vec::new();
    let entries = std::fs::read_dir(&stage.folder)
        .map_err(|error| format!("could not read {}: {error}", stage.folder.display()))?;
    for entry in entries.flatten() {
        found.push(entry.file_name().to_string_lossy().into_owned());
    }
    found.sort();
    expect(found == expected, || {
        format!("beside the image there are now {found:?}")
    })?;
    expect(!Path::new(&stage.database).exists(), || {
        format!("the host has a {} now", stage.database)
    })
}
