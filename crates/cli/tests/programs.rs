//! `adit run`: stock programs that engineers try first, beside those of `run.rs`.
//!
//! What needs packages beyond those of `cargo xtask setup` is a test of `cargo xtask programs`.

#[macro_use]
mod support;

use adit_skip::skip;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::{Place, assert_clean, kill, noise, run};

/// Some numbers, one a line, in no order.
fn numbers(count: u64) -> String {
    (0..count)
        .map(|at| format!("{}\n", at * 7919 % count))
        .collect()
}

/// `sort -o` and bash's `echo > file` put a file on number 1 and write by the C library's `stdout`,
/// whose writes don't pass through the library: they failed with EBADF.
#[test]
fn a_standard_stream_that_is_redirected_in_the_process_writes_the_file() {
    need!("sort" "bash");
    let place = Place::with_volume();
    place.write("numbers", numbers(30_000));
    run(&place, &["sort", "-n", "numbers", "-o", "/adit/sorted"]);
    // Through temporary files of the volume.
    let merged = ["sort", "-n", "-S", "100K", "-T", "/adit", "numbers"];
    run(&place, &[&merged[..], &["-o", "/adit/merged"]].concat());
    run(&place, &["cmp", "/adit/sorted", "/adit/merged"]);
    run(&place, &["sort", "-n", "-c", "/adit/sorted"]);
    let script = "echo before; echo one > /adit/text; printf '%s\\n' two three >> /adit/text
        echo between; read first < /adit/text; mapfile -t all < /adit/text
        echo $first ${#all[@]}; echo lost >&2 2> /adit/errors; ls /adit/none 2> /dev/null; echo end";
    let told = run(&place, &["bash", "-c", script]);
    assert_eq!(told, "before\nbetween\none 3\nend\n");
    assert_eq!(place.ok(&["cat", "v.adit", "/text"]), "one\ntwo\nthree\n");
    assert_eq!(
        place.ok(&["cat", "v.adit", "/merged"]).lines().count(),
        30_000
    );
    assert_clean(&place);
}

/// `cp -a` sets the mode by an access control list; the volume stored it, and kept mode 0700.
#[test]
fn copies_and_edits_keep_modes_and_content() {
    need!("cp" "sed" "ls" "gzip" "split" "install");
    let place = Place::with_volume();
    place.write("tree/a", "one\ntwo\n");
    place.write("tree/deep/er/b", noise(2, 300_000));
    for (name, mode) in [("tree/a", 0o640), ("tree/deep", 0o750), ("tree", 0o755)] {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(place.path(name), mode).expect("set");
    }
    run(&place, &["cp", "-a", "tree", "/adit/copied"]);
    run(&place, &["cp", "-a", "/adit/copied", "/adit/again"]);
    let plain = ["cp", "--reflink=never", "tree/deep/er/b", "/adit/plain"];
    run(&place, &plain);
    run(&place, &["cmp", "tree/deep/er/b", "/adit/plain"]);
    run(&place, &["diff", "-r", "tree", "/adit/again"]);
    run(&place, &["sed", "-i", "s/two/three/", "/adit/again/a"]);
    assert_eq!(run(&place, &["cat", "/adit/again/a"]), "one\nthree\n");
    let modes = run(
        &place,
        &[
            "stat",
            "-c",
            "%a %A %n",
            "/adit/again",
            "/adit/again/a",
            "/adit/again/deep",
        ],
    );
    let expected = "755 drwxr-xr-x /adit/again\n640 -rw-r----- /adit/again/a\n750 drwxr-x--- /adit/again/deep\n";
    assert_eq!(modes, expected);
    let listed = run(&place, &["ls", "-lR", "--time-style=+", "/adit/copied"]);
    let on_host = Command::new("ls")
        .args(["-lR", "--time-style=+", "tree"])
        .env("LC_ALL", "C")
        .current_dir(place.path(""))
        .output()
        .expect("ls");
    let names = |text: &str| -> Vec<String> {
        let columns = text.lines().map(|line| line.split_whitespace());
        let short = columns.map(|mut columns| (columns.next(), columns.last()));
        short
            .filter(|(first, _)| *first != Some("total"))
            .map(|both| format!("{both:?}").replace("/adit/copied", "tree"))
            .collect()
    };
    assert_eq!(
        names(&listed),
        names(&String::from_utf8_lossy(&on_host.stdout))
    );
    run(&place, &["gzip", "-k", "/adit/plain"]);
    run(&place, &["gzip", "-t", "/adit/plain.gz"]);
    run(
        &place,
        &["split", "-b", "100000", "/adit/plain", "/adit/part."],
    );
    run(
        &place,
        &["install", "-m", "711", "tree/a", "/adit/installed"],
    );
    assert_eq!(
        run(&place, &["stat", "-c", "%a", "/adit/installed"]),
        "711\n"
    );
    run(
        &place,
        &["cmp", "-n", "100000", "/adit/part.aa", "/adit/plain"],
    );
    assert_clean(&place);
}

#[test]
fn python_keeps_a_database_and_an_archive() {
    need!("python3");
    let place = Place::with_volume();
    let script = "
import os, pathlib, shutil, sqlite3, tempfile, zipfile
for mode in 'wal', 'delete':
    base = sqlite3.connect(f'/adit/{mode}.db')
    assert base.execute(f'pragma journal_mode={mode}').fetchone() == (mode,)
    base.execute('create table t(a integer primary key, b)')
    with base:
        base.executemany('insert into t values(?, ?)', ((i, 'x' * 50) for i in range(5000)))
    base.execute('delete from t where a % 2 = 0'); base.commit()
    base.execute('vacuum')
    assert base.execute('select count(*) from t').fetchone() == (2500,)
    assert base.execute('pragma integrity_check').fetchone() == ('ok',)
    base.close()
tree = pathlib.Path('/adit/tree'); tree.mkdir(); (tree / 'a').write_text('text')
shutil.copytree(tree, '/adit/copy'); shutil.rmtree(tree)
with zipfile.ZipFile('/adit/a.zip', 'w') as archive: archive.write('/adit/copy/a')
assert zipfile.ZipFile('/adit/a.zip').testzip() is None
with tempfile.TemporaryDirectory(dir='/adit') as folder: pathlib.Path(folder, 'f').write_text('x')
# As rsync names what is in a directory that it has open.
fd = os.open('/adit/copy', os.O_RDONLY | os.O_DIRECTORY)
assert os.listdir(f'/proc/self/fd/{fd}') == ['a'] == os.listdir(f'/dev/fd/{fd}/.')
with open(f'/proc/self/fd/{fd}/a') as file:
    assert open(f'/proc/self/fd/{file.fileno()}').read() == file.read() == 'text'
os.chdir(f'/proc/self/fd/{fd}/.')
assert os.getcwd() == '/adit/copy'
os.close(fd)
print(sorted(path.name for path in pathlib.Path('/adit').iterdir()))
";
    let told = run(&place, &["python3", "-c", script]);
    assert_eq!(told, "['a.zip', 'copy', 'delete.db', 'wal.db']\n");
    assert_clean(&place);
}

#[test]
#[ignore = "long: cargo xtask programs"]
fn editors_and_compressors_work() {
    need!("vim" "ed" "zstd" "xz" "bzip2");
    let place = Place::with_volume();
    place.write("numbers", numbers(30_000));
    run(&place, &["cp", "numbers", "/adit/numbers"]);
    let edit = [
        "vim",
        "-es",
        "-u",
        "NONE",
        "-c",
        "normal ihello",
        "-c",
        "wq",
        "/adit/vim",
    ];
    run(&place, &edit);
    assert_eq!(run(&place, &["cat", "/adit/vim"]), "hello\n");
    let script = "printf '%s\\n' a text . 'w /adit/ed' q | ed -s; sleep 0; cat /adit/ed";
    assert_eq!(run(&place, &["sh", "-c", script]), "text\n");
    for program in ["zstd", "xz", "bzip2"] {
        run(&place, &[program, "-q", "-k", "/adit/numbers"]);
    }
    for (program, end) in [("zstd", "zst"), ("xz", "xz"), ("bzip2", "bz2")] {
        run(
            &place,
            &[program, "-t", "-q", &format!("/adit/numbers.{end}")],
        );
    }
    assert_clean(&place);
}

/// Commands for which git starts no helper that needs the repository. (It starts helpers while its
/// own files are open.)
#[test]
#[ignore = "long: cargo xtask programs"]
fn git_works_as_far_as_one_process_does() {
    need!("git");
    let place = Place::with_volume();
    for at in 0..300 {
        place.write(&format!("tree/{}/{at}", at % 7), noise(at, 2000));
    }
    let git = |words: &[&str]| {
        let settings = [
            "core.commitGraph=false",
            "core.multiPackIndex=false",
            "maintenance.auto=false",
            "user.name=a",
            "user.email=a@b",
        ];
        let settings = settings.iter().flat_map(|setting| ["-c", setting]);
        let start = ["git", "-C", "/adit/repository"];
        let all: Vec<&str> = start
            .into_iter()
            .chain(settings)
            .chain(words.iter().copied())
            .collect();
        run(&place, &all)
    };
    run(
        &place,
        &["git", "init", "-q", "-b", "main", "/adit/repository"],
    );
    run(&place, &["cp", "-r", "tree", "/adit/repository"]);
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "one"]);
    git(&["checkout", "-q", "-b", "other"]);
    run(&place, &["rm", "-r", "/adit/repository/tree/3"]);
    git(&["commit", "-q", "-a", "-m", "two"]);
    git(&["checkout", "-q", "main"]);
    run(&place, &["ls", "/adit/repository/tree/3"]);
    git(&["merge", "-q", "other"]);
    git(&["tag", "done"]);
    assert_eq!(git(&["log", "--format=%s"]), "two\none\n");
    assert_eq!(git(&["status", "--short"]), "");
    assert_eq!(
        git(&["diff", "HEAD~1", "--shortstat"])
            .trim()
            .split(',')
            .next(),
        Some("43 files changed")
    );
    git(&["fsck", "--full"]);
    assert_clean(&place);
    // The host's git agrees.
    place.ok(&["get", "v.adit", "/repository", "out"]);
    let checked = Command::new("git")
        .args(["fsck", "--full"])
        .current_dir(place.path("out"))
        .output();
    assert!(checked.expect("git").status.success());
}

#[test]
#[ignore = "long: cargo xtask programs"]
fn rsync_copies_out_of_a_volume() {
    need!("rsync");
    let place = Place::with_volume();
    for at in 0..200 {
        place.write(&format!("tree/{}/{at}", at % 7), noise(at, 3000));
    }
    run(&place, &["cp", "-r", "tree", "/adit/tree"]);
    run(&place, &["rsync", "-a", "/adit/tree/", "out/"]);
    let same = Command::new("diff")
        .args(["-r", "tree", "out"])
        .current_dir(place.path(""))
        .status();
    assert!(same.expect("diff").success());
}

/// LevelDB with its own Env: mapped tables, a log that is appended.
#[test]
#[ignore = "long: cargo xtask programs"]
fn leveldb_works_with_its_own_env() {
    need!("cp");
    let bench = Path::new(env!("CARGO_BIN_EXE_adit")).with_file_name("adit-leveldb-bench");
    if !bench.is_file() {
        return skip("adit-leveldb-bench is not built (cargo xtask plugin)");
    }
    let place = Place::new();
    place.ok(&["mkfs", "v.adit", "--size", "512M"]);
    let bench = bench.to_str().expect("text");
    let jobs = "--jobs=fillsync,fillrandom,overwrite,readrandom,readseq,readhot,fill100K,ycsb-load,ycsb-a,ycsb-d,ycsb-e,ycsb-f";
    let told = run(
        &place,
        &[bench, "/adit", jobs, "--keys=20000", "--instances=3"],
    );
    assert_eq!(told.lines().count(), 12, "{told}");
    assert_eq!(run(&place, &["ls", "/adit"]), "");
    assert_clean(&place);
}

/// A server of Redis that keeps its file in the volume, and a socket outside.
struct Redis {
    server: Child,
    socket: std::path::PathBuf,
}

impl Redis {
    fn start(place: &Place, folder: &Path) -> Redis {
        let socket = folder.join("socket");
        let _ = std::fs::remove_file(&socket);
        let path = socket.to_str().expect("text");
        let server = place
            .command(&[
                "run",
                "v.adit",
                "--",
                "redis-server",
                "--port",
                "0",
                "--dir",
                "/adit",
            ])
            .args([
                "--unixsocket",
                path,
                "--appendonly",
                "yes",
                "--appendfsync",
                "always",
                "--save",
                "",
            ])
            // A rewrite is done by a child of fork, which has no volume.
            .args(["--auto-aof-rewrite-percentage", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let redis = Redis { server, socket };
        let begin = Instant::now();
        while redis
            .ask(&["PING\r\n".to_owned()])
            .is_none_or(|answers| answers != ["+PONG"])
        {
            assert!(
                begin.elapsed() < Duration::from_secs(240),
                "the server doesn't answer"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        redis
    }

    /// Sends commands, and reads a line of answer to each; None if the server goes.
    fn ask(&self, commands: &[String]) -> Option<Vec<String>> {
        let mut stream = UnixStream::connect(&self.socket).ok()?;
        stream
            .set_read_timeout(Some(Duration::from_secs(240)))
            .ok()?;
        let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
        let mut answers = Vec::new();
        for command in commands {
            stream.write_all(command.as_bytes()).ok()?;
            answers.push(lines.next()?.ok()?);
        }
        Some(answers)
    }
}

/// Every SET that Redis acknowledged is there after SIGKILL under load.
#[test]
#[ignore = "long: cargo xtask programs"]
fn redis_keeps_every_acknowledged_set_when_it_is_killed() {
    need!("redis-server");
    let place = Place::new();
    place.ok(&["mkfs", "v.adit", "--size", "256M"]);
    // Paths of sockets are short.
    let folder = tempfile::tempdir().expect("a folder");
    let next = AtomicU64::new(0);
    let acknowledged: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
    for round in 0..5u64 {
        let redis = Redis::start(&place, folder.path());
        let known = acknowledged.lock().expect("no panic").clone();
        for (key, value) in &known {
            let lines = redis.ask(&[format!("STRLEN key:{key}\r\n")]);
            assert_eq!(
                lines,
                Some(vec![format!(":{value}")]),
                "round {round}, key {key} of {}",
                known.len()
            );
        }
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        let numbers: Vec<u64> = (0..50)
                            .map(|_| next.fetch_add(1, Ordering::Relaxed))
                            .collect();
                        for key in numbers {
                            let len = 1 + key * 31 % 400;
                            let set = format!("SET key:{key} {}\r\n", "v".repeat(len as usize));
                            if redis.ask(&[set]) != Some(vec!["+OK".to_owned()]) {
                                return;
                            }
                            acknowledged.lock().expect("no panic").insert(key, len);
                        }
                    }
                });
            }
            let wanted = (round + 1) * 400;
            let begin = Instant::now();
            while next.load(Ordering::Relaxed) < wanted
                && begin.elapsed() < Duration::from_secs(240)
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            // SAFETY: a plain system call on a child that nobody has waited for.
            unsafe { libc::kill(redis.server.id() as libc::pid_t, libc::SIGKILL) };
            ended.store(true, Ordering::Relaxed);
        });
        kill(redis.server);
    }
    assert!(acknowledged.lock().expect("no panic").len() > 1000);
    assert_clean(&place);
}
