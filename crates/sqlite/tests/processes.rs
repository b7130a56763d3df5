//! Several processes have one database in WAL mode, in a volume of a server: they commit, check
//! point, read and are killed, and so is the server.
//!
//! The processes are this test program itself, started again to run one of the ignored tests: it
//! does what it is told on its standard input, and answers on its standard error, in lines that
//! begin with `> `. `ADIT_KILLS` is the number of kills, of each kind.

#[path = "../../adit/tests/support/served.rs"]
mod served;
mod support;

use adit::{Credentials, ServeOptions, Server, Volume, VolumeOptions};
use adit_base::random::Prng;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use served::Served;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use support::seed::seed;
use support::{Mode, connect, register, uri, variable};

/// Nothing takes so long, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(240);

// ------------------------------------------------------------------------ the processes

fn answer(answer: impl std::fmt::Display) {
    let line = format!("> {answer}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The values of all rows, or the error's number.
fn query(connection: &Connection, statement: &str) -> String {
    let rows = || -> rusqlite::Result<String> {
        let mut statement = connection.prepare(statement)?;
        let columns = statement.column_count();
        let mut rows = statement.query([])?;
        let mut values = Vec::new();
        while let Some(row) = rows.next()? {
            for column in 0..columns {
                values.push(match row.get_ref(column)? {
                    ValueRef::Integer(number) => number.to_string(),
                    ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
                    other => format!("{other:?}"),
                });
            }
        }
        Ok(values.join(" "))
    };
    match rows() {
        Ok(values) => values,
        Err(error) => number(&error),
    }
}

fn number(error: &rusqlite::Error) -> String {
    let error = error.sqlite_error().expect("SQLite's");
    format!("error {}", error.extended_code)
}

/// Adds a row, and commits it.
fn insert(connection: &Connection, who: &str, number: u64) -> rusqlite::Result<()> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let filler = who.repeat(700);
    connection.execute(
        "INSERT INTO t VALUES (?, ?, ?)",
        (who, number as i64, filler),
    )?;
    connection.execute_batch("COMMIT")
}

/// `VFS address`: the plugin's, in a volume at that address, or `unix` with the path of the
/// database.
fn open(place: &str) -> rusqlite::Result<Connection> {
    let (vfs, address) = place.split_once(' ').expect("VFS and address");
    let connection = match vfs {
        "adit" => connect(address, "/app.db", Mode::Wal),
        _ => Connection::open(address),
    }?;
    connection.busy_timeout(LIMIT)?;
    let settings = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;
        PRAGMA wal_autocheckpoint=50; PRAGMA cache_size=10; PRAGMA temp_store=MEMORY";
    connection.execute_batch(settings)?;
    Ok(connection)
}

#[test]
#[ignore = "is the process that tests start and kill"]
fn works() {
    let Ok(place) = std::env::var("ADIT_WORK_ON") else {
        return;
    };
    let mut connection = match open(&place) {
        Ok(connection) => connection,
        Err(error) => return answer(number(&error)),
    };
    answer("open");
    for line in std::io::stdin().lines() {
        let line = line.expect("read");
        match *line.split(' ').collect::<Vec<_>>() {
            // insert WHO FIRST END: each number that is committed, and "end".
            ["insert", who, first, end] => {
                let parsed = |text: &str| text.parse::<u64>().expect("a number");
                for number in parsed(first)..parsed(end) {
                    if let Err(error) = insert(&connection, who, number) {
                        return answer(error);
                    }
                    answer(number);
                }
                answer("end");
            }
            ["reopen"] => {
                drop(connection);
                connection = open(&place).expect("it opens");
                answer("open");
            }
            _ => answer(query(&connection, &line)),
        }
    }
}

#[test]
#[ignore = "is the server that tests start and kill"]
fn serves() {
    let Ok(task) = std::env::var("ADIT_SERVE") else {
        return;
    };
    let [image, socket, grace_ms] = *task.split(' ').collect::<Vec<_>>() else {
        panic!("{task}");
    };
    let mut options = VolumeOptions::new();
    options.published(true).resumable(true);
    let volume = Volume::open_with(image, &options).expect("opened");
    let mut serve = ServeOptions::new();
    serve.grace(Duration::from_millis(grace_ms.parse().expect("a number")));
    let _server = Server::start(&[("v", &volume)], socket, &serve).expect("served");
    answer("serving");
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// A process that was started; killed at the end.
struct Process {
    child: Child,
    /// Until its end.
    input: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Process {
    /// Starts a command that runs one of the tests above, of the same program.
    fn start(mut command: Command, test: &str, variable: &str, value: &str) -> Process {
        let mut child = command
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env(variable, value)
            .env("ADIT_RECONNECT", LIMIT.as_secs().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let errors = BufReader::new(child.stderr.take().expect("piped"));
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                match line.split_once("> ") {
                    Some(("", answer)) => drop(sender.send(answer.to_owned())),
                    // For those who look at a test that has failed.
                    _ => println!("{line}"),
                }
            }
        });
        let input = child.stdin.take();
        Process {
            child,
            input,
            answers,
        }
    }

    /// With the plugin, on a server's volume.
    fn at(address: &str) -> Process {
        let command = Command::new(std::env::current_exe().expect("we run"));
        let place = format!("adit {address}");
        let mut process = Process::start(command, "works", "ADIT_WORK_ON", &place);
        assert_eq!(process.answer(), "open");
        process
    }

    fn answer(&mut self) -> String {
        self.answers.recv_timeout(LIMIT).expect("it answers")
    }

    fn tell(&mut self, what: &str) {
        let input = self.input.as_mut().expect("it hasn't ended");
        writeln!(input, "{what}").expect("told");
    }

    fn ask(&mut self, question: &str) -> String {
        self.tell(question);
        self.answer()
    }

    /// Stops it, and waits until each of its threads stands still.
    fn stop(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).expect("signalled");
        let stopped = waitpid(Some(pid), WaitOptions::UNTRACED).expect("known");
        assert!(stopped.is_some_and(|(_, status)| status.stopped()));
    }

    fn go_on(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).expect("signalled");
    }

    /// Kills it; its answers that nobody has heard.
    fn kill(&mut self) -> Vec<String> {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
        self.answers.iter().collect()
    }

    /// Waits until it has closed the database and ended.
    fn end(mut self) {
        self.input = None;
        assert_eq!(self.answers.recv_timeout(LIMIT).ok(), None);
        assert!(self.child.wait().expect("ended").success());
    }

    /// Commits once more, after all that it has told.
    fn goes_on(&mut self) {
        let mut told: Vec<String> = self.answers.try_iter().collect();
        told.extend(self.answers.recv_timeout(LIMIT));
        let last = told.last().expect("it answers");
        assert!(last.parse::<u64>().is_ok(), "{last}");
    }

    /// Hears answers up to "end"; how many.
    fn count_to_end(&mut self) -> usize {
        let mut count = 0;
        while self.answer() != "end" {
            count += 1;
        }
        count
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Random moments, for kills. A failure prints their seed.
struct Moments(Prng);

impl Moments {
    fn new() -> Moments {
        let seed = seed();
        println!("seed {seed}");
        Moments(Prng::new(seed))
    }

    fn wait(&mut self, most_ms: u64) {
        std::thread::sleep(Duration::from_micros(self.0.below(most_ms * 1000)));
    }
}

fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !happened() {
        assert!(begin.elapsed() < LIMIT, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Each row of a writer, up to some number, is there once; the one after the last acknowledged may
/// be. Answers how many there are.
fn check_rows(process: &mut Process, who: &str, acknowledged: u64) -> u64 {
    let counts = format!(
        "SELECT count(*), count(DISTINCT n), ifnull(max(n), -1) + 1 FROM t WHERE who = '{who}'"
    );
    let counts = process.ask(&counts);
    let [count, distinct, next] = *counts.split(' ').collect::<Vec<_>>() else {
        panic!("{who}: {counts}");
    };
    assert_eq!((count, distinct), (next, next), "{who}");
    let count = count.parse().expect("a number");
    assert!(
        (acknowledged..=acknowledged + 1).contains(&count),
        "{who}: {count} of {acknowledged} acknowledged"
    );
    count
}

fn check_database(process: &mut Process) {
    assert_eq!(process.ask("PRAGMA integrity_check"), "ok");
}

const TABLE: &str = "CREATE TABLE t (who, n, filler)";

// ------------------------------------------------------------------------ at once

#[test]
fn processes_commit_read_and_checkpoint_at_once() {
    let served = Served::new(Volume::open("mem:128M").expect("memory"));
    commit_read_and_checkpoint(|_| Process::at(&served.address()));
    let names = served.volume().read_dir("/").expect("the root");
    let names: Vec<_> = names
        .map(|entry| entry.expect("read").name.to_vec())
        .collect();
    assert_eq!(names, [b"app.db"], "the last one deletes log and index");
}

/// `start` starts process by number.
fn commit_read_and_checkpoint(start: impl Fn(usize) -> Process) {
    const ROWS: u64 = 120;
    let mut reader = start(0);
    assert_eq!(reader.ask(TABLE), "");
    let mut writers: Vec<_> = (1..4).map(&start).collect();
    let mut checkpointer = start(4);
    for (writer, who) in writers.iter_mut().zip(["a", "b", "c"]) {
        writer.tell(&format!("insert {who} 0 {ROWS}"));
    }
    let mut seen = 0;
    while seen < 3 * ROWS {
        assert_eq!(reader.ask("BEGIN"), "");
        let snapshot = "SELECT count(*), sum(length(filler)) FROM t";
        let first = reader.ask(snapshot);
        // Backs up what is not needed by the reader; it may be told that another one does.
        checkpointer.ask("PRAGMA wal_checkpoint(PASSIVE)");
        for _ in 0..10 {
            assert_eq!(reader.ask(snapshot), first, "a snapshot stays");
        }
        assert_eq!(reader.ask("COMMIT"), "");
        let (count, bytes) = first.split_once(' ').expect("two");
        let count: u64 = count.parse().expect("a number");
        assert!(count >= seen, "{count} after {seen}");
        assert!(count == 0 || bytes == (700 * count).to_string(), "{first}");
        seen = count;
    }
    for writer in &mut writers {
        assert_eq!(writer.count_to_end(), ROWS as usize);
    }
    for who in ["a", "b", "c"] {
        assert_eq!(check_rows(&mut checkpointer, who, ROWS), ROWS);
    }
    assert_eq!(reader.ask("PRAGMA wal_checkpoint(TRUNCATE)"), "0 0 0");
    for process in writers.iter_mut().chain([&mut reader, &mut checkpointer]) {
        check_database(process);
    }
    for process in writers.into_iter().chain([reader, checkpointer]) {
        process.end();
    }
}

#[test]
fn threads_of_several_processes_work_at_once() {
    let served = Served::new(Volume::open("mem:128M").expect("memory"));
    let mut other = Process::at(&served.address());
    assert_eq!(other.ask(TABLE), "");
    other.tell("insert other 0 60");
    std::thread::scope(|scope| {
        for who in ["a", "b", "c"] {
            let address = served.address();
            scope.spawn(move || {
                let connection = connect(&address, "/app.db", Mode::Wal).expect("it opens");
                (0..60).for_each(|n| insert(&connection, who, n).expect("committed"));
            });
        }
    });
    other.count_to_end();
    for who in ["a", "b", "c", "other"] {
        assert_eq!(check_rows(&mut other, who, 60), 60);
    }
    check_database(&mut other);
}

// ------------------------------------------------------------------------ kills

#[test]
fn killed_processes_lose_no_commit_and_others_go_on() {
    let served = Served::new(Volume::open("mem:256M").expect("memory"));
    kill_processes(|_| Process::at(&served.address()));
}

fn kill_processes(start: impl Fn(usize) -> Process) {
    let mut survivor = start(0);
    assert_eq!(survivor.ask(TABLE), "");
    let mut checker = start(1);
    survivor.tell("insert a 0 1000000");
    let mut next = 0;
    let mut moments = Moments::new();
    for kill in 0..variable("ADIT_KILLS", 8) {
        let mut victim = start(kill as usize);
        victim.tell(&format!("insert b {next} 1000000"));
        assert_eq!(victim.answer(), next.to_string());
        moments.wait(40);
        let acknowledged = next + 1 + victim.kill().len() as u64;
        next = check_rows(&mut checker, "b", acknowledged);
        survivor.goes_on();
    }
    // All of them: the next one makes the index anew.
    survivor.kill();
    checker.kill();
    let mut checker = start(0);
    check_rows(&mut checker, "b", next);
    assert_eq!(
        checker.ask(
            "SELECT count(*) = count(DISTINCT n) AND count(*) = max(n) + 1 FROM t WHERE who = 'a'"
        ),
        "1"
    );
    check_database(&mut checker);
}

/// The first process empties the file, whatever is in there: here what another one left before the
/// last commits, which is an index that looks right.
#[test]
fn an_index_that_dead_processes_left_is_not_believed() {
    let served = Served::new(Volume::open("mem:64M").expect("memory"));
    let mut process = Process::at(&served.address());
    assert_eq!(process.ask(TABLE), "");
    assert_eq!(process.ask("insert a 0 1"), "0");
    assert_eq!(process.answer(), "end");
    let volume = served.volume();
    let old = volume.read("/app.db-shm").expect("the index");
    process.ask("insert a 1 2");
    process.kill();
    let log = volume.metadata("/app.db-wal").expect("the log").len();
    assert!(log > 0, "it isn't in the database yet");
    let mut options = adit::OpenOptions::new();
    let index = volume.open_file("/app.db-shm", options.read(true).write(true));
    let index = index.expect("the index");
    let all = adit::RangeLock::new(adit::LockOwner::Descriptor, adit::LockMode::Exclusive, 0, 0);
    until("the server has noticed the end", || {
        index.test_lock(&all).expect("known").is_none()
    });
    index.write_at(&old, 0).expect("written");
    let mut process = Process::at(&served.address());
    assert_eq!(process.ask("SELECT count(*) FROM t"), "2");
    check_database(&mut process);
}

// ------------------------------------------------------------------------ the server ends

/// An image, and a server of it that can be killed.
struct Stage {
    directory: tempfile::TempDir,
    server: Option<Process>,
}

impl Stage {
    fn new() -> Stage {
        // Not beside the build: the name of a socket has 107 bytes.
        let directory = tempfile::tempdir().expect("a directory");
        let stage = Stage {
            directory,
            server: None,
        };
        let mut options = adit::MkfsOptions::new();
        Volume::mkfs(&stage.path("v.adit"), options.size_bytes(4 << 30)).expect("formatted");
        stage
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn address(&self) -> String {
        format!("unix:{}", self.path("s"))
    }

    /// Kills the server if there is one, and starts the next.
    fn serve(&mut self, grace: Duration) {
        drop(self.server.take());
        let (image, socket) = (self.path("v.adit"), self.path("s"));
        let task = format!("{image} {socket} {}", grace.as_millis());
        let command = Command::new(std::env::current_exe().expect("we run"));
        let mut server = Process::start(command, "serves", "ADIT_SERVE", &task);
        assert_eq!(server.answer(), "serving");
        self.server = Some(server);
    }
}

/// The last server closes the volume, so that no memory stays in `/dev/shm`.
impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.input = None;
            let _ = server.answers.recv_timeout(LIMIT);
        }
    }
}

#[test]
fn processes_go_on_with_the_next_server() {
    let mut stage = Stage::new();
    stage.serve(LIMIT);
    let [mut reader, mut a, mut b] = [(); 3].map(|()| Process::at(&stage.address()));
    assert_eq!(reader.ask(TABLE), "");
    a.tell("insert a 0 1000000");
    b.tell("insert b 0 1000000");
    let mut moments = Moments::new();
    for _ in 0..variable("ADIT_KILLS", 5) {
        a.answer();
        b.answer();
        assert_eq!(reader.ask("BEGIN"), "");
        let snapshot = "SELECT count(*), count(DISTINCT who || n), sum(length(filler)) FROM t";
        let first = reader.ask(snapshot);
        moments.wait(60);
        stage.serve(LIMIT);
        assert_eq!(reader.ask(snapshot), first, "a snapshot stays");
        assert_eq!(reader.ask("COMMIT"), "");
        for writer in [&mut a, &mut b] {
            writer.goes_on();
        }
        let mut another = Process::at(&stage.address());
        let whole =
            "SELECT count(*) = count(DISTINCT n) AND count(*) = max(n) + 1 FROM t GROUP BY who";
        assert_eq!(another.ask(whole), "1 1");
        check_database(&mut another);
    }
    // All together.
    drop(stage.server.take());
    let [next_a, next_b] = [&mut a, &mut b].map(|writer| {
        let last = writer.kill().pop();
        last.map_or(0, |last| last.parse::<u64>().expect("a number") + 1)
    });
    reader.kill();
    stage.serve(Duration::ZERO);
    let mut checker = Process::at(&stage.address());
    for (who, acknowledged) in [("a", next_a), ("b", next_b)] {
        if acknowledged > 0 {
            check_rows(&mut checker, who, acknowledged);
        }
    }
    check_database(&mut checker);
}

/// A process that is stopped while the server is replaced has no lock any more when it goes on, and
/// memory that nobody else has: it is told, and reads nothing of what others have written since
/// over the log that it was reading.
#[test]
fn a_process_that_comes_back_too_late_gets_an_error_and_no_wrong_rows() {
    come_back_too_late(Process::at);
}

/// `start` starts the late process at an address.
fn come_back_too_late(start: impl Fn(&str) -> Process) {
    let mut stage = Stage::new();
    stage.serve(LIMIT);
    let mut late = start(&stage.address());
    assert_eq!(late.ask(TABLE), "");
    assert_eq!(late.ask("PRAGMA wal_autocheckpoint=0"), "0");
    // SQLite's own VFS takes each error of a lock for one that another process has.
    assert_eq!(late.ask("PRAGMA busy_timeout=50"), "50");
    late.tell("insert old 0 40");
    late.count_to_end();
    // A snapshot that lies in the log, and little of it in the process's cache.
    assert_eq!(late.ask("BEGIN"), "");
    assert_eq!(late.ask("SELECT count(*) FROM t"), "40");
    late.stop();
    stage.serve(Duration::ZERO);
    // Reuses the log: nobody reads it as far as it knows.
    let mut other = Process::at(&stage.address());
    assert_eq!(
        other
            .ask("PRAGMA wal_checkpoint(RESTART)")
            .split(' ')
            .next(),
        Some("0")
    );
    assert_eq!(
        other.ask("UPDATE t SET who = 'new', filler = who || filler"),
        ""
    );
    late.go_on();
    let rows = "SELECT count(*), sum(who = 'old'), sum(length(filler)) FROM t";
    let read = late.ask(rows);
    assert!(read.starts_with("error "), "{read}");
    late.ask("ROLLBACK");
    let read = late.ask(rows);
    assert!(read.starts_with("error "), "{read}");
    let written = late.ask("INSERT INTO t VALUES ('late', 0, '')");
    assert!(written.starts_with("error "), "{written}");
    assert_eq!(
        other.ask("SELECT count(*), sum(who = 'new') FROM t"),
        "40 40"
    );
    check_database(&mut other);
    // It opens the database again, as the message says.
    assert_eq!(late.ask("reopen"), "open");
    assert_eq!(
        late.ask("SELECT count(*), sum(who = 'new') FROM t"),
        "40 40"
    );
    assert_eq!(late.ask("INSERT INTO t VALUES ('late', 0, '')"), "");
    assert_eq!(other.ask("SELECT count(*) FROM t"), "41");
}

// ------------------------------------------------------------------------ beside SQLite's own VFS

/// The `adit` command and the library of `adit run`, if they are built.
fn adit() -> Option<PathBuf> {
    let program = std::env::current_exe().expect("we run");
    let folder = program.parent().and_then(Path::parent)?;
    let command = folder.join("adit");
    let library = folder.join("libadit_preload.so");
    (command.is_file() && library.is_file()).then_some(command)
}

/// With SQLite's own VFS; it has not answered yet.
fn under_adit_run(adit: &Path, address: &str) -> Process {
    let mut command = Command::new(adit);
    let program = std::env::current_exe().expect("we run");
    command.args(["run", address, "--"]).arg(program);
    Process::start(command, "works", "ADIT_WORK_ON", "unix /adit/app.db")
}

/// Processes with an odd number have SQLite's own VFS.
fn of_both_kinds(adit: &Path, address: &str, number: usize) -> Process {
    if number.is_multiple_of(2) {
        return Process::at(address);
    }
    let mut process = under_adit_run(adit, address);
    assert_eq!(process.answer(), "open");
    process
}

const NOT_BUILT: &str =
    "adit and libadit_preload.so are not built (cargo build -p adit-cli -p adit-preload)";

#[test]
fn processes_with_the_plugin_and_under_adit_run_share_a_database() {
    let Some(adit) = adit() else {
        return adit_skip::skip(NOT_BUILT);
    };
    let served = Served::new(Volume::open("mem:128M").expect("memory"));
    commit_read_and_checkpoint(|number| of_both_kinds(&adit, &served.address(), number));
}

#[test]
fn killed_processes_with_the_plugin_and_under_adit_run_lose_no_commit() {
    let Some(adit) = adit() else {
        return adit_skip::skip(NOT_BUILT);
    };
    let served = Served::new(Volume::open("mem:256M").expect("memory"));
    kill_processes(|number| of_both_kinds(&adit, &served.address(), number));
}

/// SQLite locks database and index, and not the log, which is closed all the same.
#[test]
fn a_process_under_adit_run_that_comes_back_too_late_gets_an_error_and_no_wrong_rows() {
    let Some(adit) = adit() else {
        return adit_skip::skip(NOT_BUILT);
    };
    come_back_too_late(|address| {
        let mut process = under_adit_run(&adit, address);
        assert_eq!(process.answer(), "open");
        process
    });
}

/// A program has a database open, with an index of its own, and serves the volume only then.
#[test]
fn a_process_under_adit_run_is_kept_out_of_an_index_in_memory() {
    let Some(adit) = adit() else {
        return adit_skip::skip(NOT_BUILT);
    };
    let volume = Volume::open("mem:64M").expect("memory");
    let lent = adit_sqlite::lend("early", &volume).expect("a name of its own");
    let owner = connect("early", "/app.db", Mode::Wal).expect("it opens");
    owner.execute_batch(TABLE).expect("a table");
    let served = Served::new(volume);
    let mut refused = under_adit_run(&adit, &served.address());
    let protocol = format!("error {}", libsqlite3_sys::SQLITE_PROTOCOL);
    assert_eq!(refused.answer(), protocol);
    insert(&owner, "owner", 0).expect("it goes on");
    drop(owner);
    let mut process = under_adit_run(&adit, &served.address());
    assert_eq!(process.answer(), "open");
    assert_eq!(process.ask("SELECT count(*) FROM t"), "1");
    drop(process);
    lent.take_back().expect("nothing is open");
}

// ------------------------------------------------------------------------ rights

/// The served volume on behalf of a user whom its files don't belong to.
#[test]
fn a_user_reads_what_permission_bits_allow_and_no_more() {
    register();
    let served = Served::new(Volume::open("mem:64M").expect("memory"));
    let session = Volume::open(&served.address()).expect("connected");
    let user = session.on_behalf_of(Credentials::user(65_534, 65_534, &[]));
    let lent = adit_sqlite::lend("nobody", &user).expect("a name of its own");
    let as_user = || {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_URI;
        Connection::open_with_flags(uri("nobody", "/app.db", Mode::Wal), flags)
    };
    let mut process = Process::at(&served.address());
    assert_eq!(process.ask(TABLE), "");
    assert_eq!(process.ask("insert a 0 1"), "0");
    assert_eq!(process.answer(), "end");
    let set_mode = |mode| {
        let names = ["/app.db", "/app.db-wal", "/app.db-shm"].into_iter();
        let there = names.filter(|name| served.volume().exists(name).expect("known"));
        there.for_each(|name| served.volume().set_mode(name, mode).expect("set"));
    };
    set_mode(0o600);
    let refused = as_user().expect_err("it isn't the user's");
    let code = refused.sqlite_error_code();
    assert_eq!(code, Some(rusqlite::ErrorCode::CannotOpen));
    set_mode(0o644);
    let reader = as_user().expect("it opens");
    let count = "SELECT count(*) FROM t";
    assert_eq!(query(&reader, count), "1");
    for next in 1..20 {
        process.ask(&format!("insert a {next} {}", next + 1));
        assert_eq!(process.answer(), "end");
        assert_eq!(query(&reader, count), (next + 1).to_string());
    }
    assert_eq!(
        query(&reader, "INSERT INTO t VALUES (1, 2, 3)"),
        format!("error {}", libsqlite3_sys::SQLITE_READONLY)
    );
    // Nobody who can write is there: it reads the log with an index of its own.
    process.kill();
    assert_eq!(query(&reader, count), "20");
    drop(reader);
    let reader = as_user().expect("it opens");
    assert_eq!(query(&reader, count), "20");
    // And then there is somebody again.
    let mut process = Process::at(&served.address());
    process.ask("insert a 20 21");
    assert_eq!(process.answer(), "end");
    assert_eq!(query(&reader, count), "21");
    drop(reader);
    lent.take_back().expect("nothing is open");
}

/// What only its owner reads stays so, in its journal and log, too; and root, who uses a database
/// of somebody else, leaves its files to him.
#[test]
fn a_journal_and_a_log_have_the_permissions_and_the_owner_of_their_database() {
    register();
    let volume = Volume::open("mem:64M").expect("memory");
    let lent = adit_sqlite::lend("owner", &volume).expect("a name of its own");
    for (mode, suffix) in [(Mode::Wal, "-wal"), (Mode::Delete, "-journal")] {
        let path = format!("/of{suffix}.db");
        volume.write(&path, b"").expect("made");
        volume.set_mode(&path, 0o640).expect("set");
        volume
            .set_owner(&path, Some(1000), Some(1001))
            .expect("set");
        let database = connect("owner", &path, mode).expect("it opens");
        let begun = "PRAGMA locking_mode=EXCLUSIVE; CREATE TABLE t (a);
            BEGIN IMMEDIATE; INSERT INTO t VALUES (1)";
        database.execute_batch(begun).expect("written");
        let found = volume
            .metadata(format!("{path}{suffix}"))
            .expect("it is there");
        assert_eq!(found.mode() & 0o777, 0o640, "{suffix}");
        assert_eq!((found.uid(), found.gid()), (1000, 1001), "{suffix}");
        drop(database);
    }
    lent.take_back().expect("nothing is open");
    volume.close().expect("nothing is open");
}
