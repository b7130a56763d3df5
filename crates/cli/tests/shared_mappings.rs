//! Processes that map files of a server's volume, and SQLite's write-ahead log in several of them.
//!
//! `ADIT_DEATHS` is the number of processes that are killed, `ADIT_SEED` changes their moments.

#[macro_use]
mod support;

use adit_skip::skip;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use support::servers::{
    FOR_ALL, LIMIT, Served, Watchdog, deaths, go_before_others, moment, stop, until,
};
use support::{Place, SmallMemory};

/// A program of Python's with the served volume at `/adit`; killed when the test fails.
struct Program {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Program {
    fn start(place: &Place, script: &str, arguments: &[&str]) -> Program {
        Program::start_with(place, &["unix:s"], script, arguments)
    }

    /// `volume`: the volume, and how `adit run` has it.
    fn start_with(place: &Place, volume: &[&str], script: &str, arguments: &[&str]) -> Program {
        let python = ["--reconnect", "60", "--", "python3", "-c", script];
        let mut child = place
            .command(&[&["run"], volume, &python, arguments].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let lines = output.lines().map_while(Result::ok);
            lines.for_each(|line| drop(sender.send(line)));
        });
        let input = child.stdin.take().expect("piped");
        Program {
            child,
            input,
            lines,
        }
    }

    /// The next line that it prints.
    fn line(&mut self) -> String {
        let line = self.lines.recv_timeout(LIMIT);
        line.expect("it prints something")
    }

    /// Tells it something; its answer.
    fn ask(&mut self, question: &str) -> String {
        writeln!(self.input, "{question}").expect("told");
        self.line()
    }

    /// Kills the process; returns the output that nobody has read.
    fn kill(mut self) -> Vec<String> {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
        self.lines.iter().collect()
    }

    /// Waits until the process ends; returns its output.
    fn end(mut self) -> Vec<String> {
        drop(self.input);
        let printed = self.lines.iter().collect();
        assert!(self.child.wait().expect("ended").success(), "{printed:?}");
        printed
    }
}

fn end(place: &Place, served: Served) {
    served.signal(rustix::process::Signal::TERM);
    let (status, errors) = served.end();
    assert!(status.success(), "{errors}");
    assert!(!errors.contains("ERROR"), "{errors}");
    place.ok(&["check", "v.adit"]);
    assert_eq!(left(place), Vec::<PathBuf>::new(), "no memory is left");
}

/// The memory of mappings that lies there for the volume.
fn left(place: &Place) -> Vec<PathBuf> {
    let info = place.ok(&["info", "v.adit", "--json"]);
    let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
    let id = info["id"].as_str().expect("an id");
    let id = u128::from_str_radix(id, 16).expect("a number");
    // A server's files have its bytes in the opposite order.
    let id = format!("{:032x}", id.swap_bytes());
    let entries = std::fs::read_dir("/dev/shm").expect("there");
    let paths = entries.map(|entry| entry.expect("read").path());
    let of_volume = |path: &PathBuf| {
        let name = path.file_name().expect("named").to_string_lossy();
        name.starts_with("adit.mapped-") && name.contains(&id)
    };
    paths.filter(of_volume).collect()
}

/// Maps `/adit/file` and does what it is told.
const MAPPER: &str = "
import mmap, os, sys
fd = os.open('/adit/file', os.O_RDWR | os.O_CREAT)
if os.fstat(fd).st_size == 0: os.ftruncate(fd, 65536)
m = mmap.mmap(fd, 65536)
print('mapped', flush=True)
for line in sys.stdin:
    what, at, *rest = line.split()
    at = int(at)
    if what == 'store': m[at:at + len(rest[0])] = rest[0].encode()
    if what == 'load': print(bytes(m[at:at + int(rest[0])]).decode(), flush=True); continue
    if what == 'read': print(os.pread(fd, int(rest[0]), at).decode(), flush=True); continue
    if what == 'write': os.pwrite(fd, rest[0].encode(), at)
    if what == 'sync': m.flush()
    if what == 'unmap': m.close()
    print('done', flush=True)
";

fn mapper(place: &Place) -> Program {
    let mut program = Program::start(place, MAPPER, &[]);
    assert_eq!(program.line(), "mapped");
    program
}

/// The bytes that another process reads.
fn read(place: &Place, at: usize, len: usize) -> String {
    place.ok(&["cat", "unix:s", "/file"])[at..at + len].to_owned()
}

#[test]
fn processes_see_each_others_stores_and_writes_at_once() {
    need!("python3");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &["--pollers", "2"]);
    let mut first = mapper(&place);
    assert_eq!(first.ask("write 5 first"), "done");
    first.end();
    // It knows from before where the page is in the server's cache.
    let script = "import os, sys\n\
         fd = os.open('/adit/file', os.O_RDONLY)\n\
         for line in sys.stdin: print(os.pread(fd, 5, 5), flush=True)\n";
    let mut reader = Program::start(&place, script, &[]);
    (0..9).for_each(|_| assert_eq!(reader.ask(""), "b'first'"));
    let (mut one, mut two) = (mapper(&place), mapper(&place));
    assert_eq!(one.ask("store 5 ahead"), "done");
    (0..9).for_each(|_| assert_eq!(reader.ask(""), "b'ahead'"));
    assert_eq!(one.ask("store 5 hello"), "done");
    assert_eq!(reader.ask(""), "b'hello'");
    assert_eq!(two.ask("load 5 5"), "hello");
    assert_eq!(two.ask("read 5 5"), "hello");
    assert_eq!(two.ask("store 4096 page"), "done");
    assert_eq!(one.ask("read 4096 4"), "page");
    assert_eq!(two.ask("write 5 HELLO"), "done");
    assert_eq!(one.ask("load 5 5"), "HELLO");
    assert_eq!(one.ask("store 7 xx"), "done");
    // A third one, which maps nothing.
    assert_eq!(read(&place, 5, 5), "HExxO");
    assert_eq!(one.ask("sync 0"), "done");
    assert_eq!(two.ask("store 9 !"), "done");
    assert_eq!(two.ask("unmap 0"), "done");
    assert_eq!(one.ask("load 5 5"), "HExx!");
    assert_eq!(two.ask("read 5 5"), "HExx!");
    for program in [one, two, reader] {
        program.end();
    }
    assert_eq!(read(&place, 5, 5), "HExx!");
    end(&place, served);
    assert_eq!(&place.ok(&["cat", "v.adit", "/file"])[5..10], "HExx!");
}

#[test]
fn what_a_killed_process_has_stored_is_in_the_file() {
    need!("python3");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    let (mut one, mut two) = (mapper(&place), mapper(&place));
    assert_eq!(one.ask("store 8000 one"), "done");
    one.kill();
    assert_eq!(two.ask("load 8000 3"), "one");
    assert_eq!(two.ask("store 8003 two"), "done");
    two.kill();
    assert_eq!(read(&place, 8000, 6), "onetwo");
    end(&place, served);
    assert_eq!(&place.ok(&["cat", "v.adit", "/file"])[8000..8006], "onetwo");
}

#[test]
fn a_mapping_that_may_not_be_written_is_of_the_same_bytes() {
    need!("python3");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    let mut one = mapper(&place);
    let script = "
import mmap, os, sys
fd = os.open('/adit/file', os.O_RDONLY)
try:
    mmap.mmap(fd, 4096)
    print('written')
except PermissionError:
    print('refused', flush=True)
m = mmap.mmap(fd, 4096, prot=mmap.PROT_READ)
for line in sys.stdin: print(bytes(m[0:3]).decode(), flush=True)
";
    let mut reader = Program::start(&place, script, &[]);
    assert_eq!(reader.line(), "refused");
    for text in ["abc", "def"] {
        assert_eq!(one.ask(&format!("store 0 {text}")), "done");
        assert_eq!(reader.ask(""), text);
    }
    reader.end();
    one.end();
    end(&place, served);
}

/// The server ends under processes that go on storing, and others map the file in the next one.
#[test]
fn mappings_go_on_with_the_next_server_and_nothing_stored_is_lost() {
    need!("python3");
    let _watchdog = Watchdog::new();
    for way in [rustix::process::Signal::KILL, rustix::process::Signal::TERM] {
        let place = Place::with_volume();
        let served = Served::start(&place, &[]);
        let (mut one, mut two) = (mapper(&place), mapper(&place));
        assert_eq!(one.ask("store 100 before"), "done");
        served.signal(way);
        served.end();
        assert_eq!(one.ask("store 200 meanwhile"), "done");
        let served = Served::start(&place, &FOR_ALL);
        assert_eq!(two.ask("load 200 9"), "meanwhile");
        assert_eq!(two.ask("read 200 9"), "meanwhile");
        let mut three = mapper(&place);
        assert_eq!(three.ask("load 100 6"), "before");
        assert_eq!(three.ask("store 300 three"), "done");
        assert_eq!(one.ask("load 300 5"), "three");
        assert_eq!(one.ask("write 300 THREE"), "done");
        assert_eq!(three.ask("load 300 5"), "THREE");
        // All of them, and the server.
        assert_eq!(one.ask("store 400 last"), "done");
        served.signal(way);
        served.end();
        for program in [one, two, three] {
            program.kill();
        }
        assert_ne!(left(&place), Vec::<PathBuf>::new());
        let served = Served::start(&place, &[]);
        assert_eq!(read(&place, 400, 4), "last");
        end(&place, served);
        let content = place.ok(&["cat", "v.adit", "/file"]);
        assert_eq!(&content[200..209], "meanwhile");
        assert_eq!(&content[300..305], "THREE");
    }
}

/// A child of fork has its parent's mappings, also if one of the two unmaps them or ends.
#[test]
fn forked_processes_have_their_parents_mappings() {
    need!("python3");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    let script = "
import mmap, os, signal, sys
def mapped(name):
    fd = os.open('/adit/' + name, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 8192)
    m = mmap.mmap(fd, 8192)
    os.close(fd)
    return m
def fork(child):
    pid = os.fork()
    if pid == 0:
        child()
        os.kill(os.getpid(), signal.SIGKILL)
    return pid
def store(m, at, text): m[at:at + len(text)] = text
one = mapped('one')
os.waitpid(fork(lambda: store(one, 0, b'killed child')), 0)
assert one[0:12] == b'killed child'
two = mapped('two')
def unmaps():
    store(two, 0, b'child')
    two.close()
os.waitpid(fork(unmaps), 0)
store(two, 5, b' parent')
three = mapped('three')
r, w = os.pipe()
def outlives():
    os.read(r, 1)
    store(three, 7, b'orphan')
    os.write(1, b'stored\\n')
fork(outlives)
store(three, 0, b'parent ')
three.close()
print('ends', flush=True)
sys.stdin.readline()
os.write(w, b'x')
os._exit(0)
";
    let mut program = Program::start(&place, script, &[]);
    assert_eq!(program.line(), "ends");
    let read = |name: &str| place.ok(&["cat", "unix:s", name]);
    assert_eq!(&read("/one")[..12], "killed child");
    assert_eq!(&read("/two")[..12], "child parent");
    assert_eq!(program.ask(""), "stored");
    program.end();
    until("what the child has stored is there", || {
        &read("/three")[..13] == "parent orphan"
    });
    end(&place, served);
}

/// The owner of a volume that it shares has the same memory, and so has the next owner.
#[test]
fn the_owner_of_a_shared_volume_maps_what_the_others_do() {
    need!("python3");
    let _watchdog = Watchdog::new();
    go_before_others();
    let place = Place::with_volume();
    let owner = ["v.adit", "--share", "s"];
    let start = |volume: &[&str]| {
        let mut program = Program::start_with(&place, volume, MAPPER, &[]);
        assert_eq!(program.line(), "mapped");
        program
    };
    let mut one = start(&owner);
    let mut two = start(&["unix:s"]);
    assert_eq!(one.ask("store 5 one"), "done");
    assert_eq!(two.ask("load 5 3"), "one");
    assert_eq!(two.ask("store 9 two"), "done");
    assert_eq!(one.ask("read 5 7"), "one\0two");
    one.kill();
    assert_eq!(two.ask("store 14 three"), "done");
    let mut three = start(&owner);
    assert_eq!(three.ask("load 5 14"), "one\0two\0\0three");
    assert_eq!(two.ask("read 5 14"), "one\0two\0\0three");
    two.end();
    three.end();
    assert_eq!(
        &place.ok(&["cat", "v.adit", "/file"])[5..19],
        "one\0two\0\0three"
    );
    place.ok(&["check", "v.adit"]);
    assert_eq!(left(&place), Vec::<PathBuf>::new(), "no memory is left");
}

/// As LevelDB does with its tables.
#[test]
fn a_thousand_files_can_be_mapped() {
    need!("python3");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    let script = "
import mmap, os, resource
maps = []
for n in range(1000):
    fd = os.open(f'/adit/{n}', os.O_RDWR | os.O_CREAT)
    os.write(fd, str(n).encode() * 100)
    os.close(fd)
    fd = os.open(f'/adit/{n}', os.O_RDONLY)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    maps.append(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
    os.close(fd)
for n, m in enumerate(maps): assert m[:] == str(n).encode() * 100
print('all')
";
    assert_eq!(Program::start(&place, script, &[]).end(), ["all"]);
    end(&place, served);
}

/// Adds rows to a database, and prints the number of each that is committed.
const WRITER: &str = "
import sqlite3, sys, time
who, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
db = sqlite3.connect('/adit/app.db', timeout=60, isolation_level=None)
db.execute('pragma synchronous = normal')
db.execute('pragma wal_autocheckpoint = 50')
for n in range(first, last):
    db.execute('begin immediate')
    db.execute('insert into t values (?, ?, ?)', (who, n, who * 700))
    db.execute('commit')
    print(n, flush=True)
    time.sleep(0.001)
    if n % 40 == 0: db.execute('pragma wal_checkpoint(passive)').fetchall()
";

fn sql(place: &Place, statement: &str) -> String {
    let script = "import sqlite3, sys\n\
         db = sqlite3.connect('/adit/app.db', timeout=60, isolation_level=None)\n\
         print(db.execute(sys.argv[1]).fetchall())\n";
    place.ok(&["run", "unix:s", "--", "python3", "-c", script, statement])
}

fn make_database(place: &Place) {
    assert_eq!(sql(place, "pragma journal_mode = wal"), "[('wal',)]\n");
    sql(place, "create table t (who, n, filler)");
}

/// Each row of a writer up to a number is there once.
fn check_rows(place: &Place, who: &str, acknowledged: u64) -> u64 {
    let counts = format!("select count(*), count(distinct n), max(n) from t where who = '{who}'");
    let counts = sql(place, &counts);
    let numbers = counts.split(|letter: char| !letter.is_ascii_digit());
    let numbers: Vec<u64> = numbers.filter_map(|number| number.parse().ok()).collect();
    let [count, distinct, max] = numbers[..] else {
        panic!("{counts}");
    };
    assert_eq!((count, distinct), (max + 1, max + 1), "{who}: {counts}");
    // The one that was under way may be there.
    assert!(
        (acknowledged..=acknowledged + 1).contains(&count),
        "{who}: {counts}, {acknowledged}"
    );
    count
}

fn check_database(place: &Place) {
    assert_eq!(sql(place, "pragma integrity_check"), "[('ok',)]\n");
}

#[test]
fn a_database_with_a_write_ahead_log_is_written_by_processes_at_once() {
    need!("python3");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &["--pollers", "2"]);
    make_database(&place);
    // Open all the time, with a snapshot while others write and checkpoint.
    let reader = "
import sqlite3, sys
db = sqlite3.connect('/adit/app.db', timeout=60, isolation_level=None)
for line in sys.stdin:
    db.execute('begin')
    first = db.execute('select count(*) from t').fetchall()
    for _ in range(50): assert db.execute('select count(*) from t').fetchall() == first
    db.execute('commit')
    print(first[0][0], flush=True)
";
    let mut reader = Program::start(&place, reader, &[]);
    let mut writers: Vec<Program> = ["a", "b"]
        .map(|who| Program::start(&place, WRITER, &[who, "0", "250"]))
        .into();
    let mut seen = 0;
    for _ in 0..20 {
        let now: u64 = reader.ask("").parse().expect("a number");
        assert!(now >= seen, "{now} after {seen}");
        seen = now;
    }
    // In turns, too.
    assert!(writers.iter_mut().all(|writer| writer.line() == "0"));
    for writer in writers {
        assert_eq!(writer.end().len(), 249);
    }
    for who in ["a", "b"] {
        assert_eq!(check_rows(&place, who, 250), 250);
    }
    assert_eq!(
        reader.ask(""),
        "500",
        "a process that was there before sees all"
    );
    let checkpoint = sql(&place, "pragma wal_checkpoint(truncate)");
    assert_eq!(checkpoint, "[(0, 0, 0)]\n");
    assert_eq!(reader.ask(""), "500");
    reader.end();
    check_database(&place);
    end(&place, served);
}

#[test]
fn a_database_with_a_write_ahead_log_survives_kills_of_its_processes() {
    need!("python3");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    make_database(&place);
    let mut survivor = Program::start(&place, WRITER, &["a", "0", "100000"]);
    let mut next = 0;
    for round in 0..deaths(6) {
        let mut victim = Program::start(&place, WRITER, &["b", &next.to_string(), "100000"]);
        assert_eq!(victim.line(), next.to_string());
        std::thread::sleep(moment(round, 60_000));
        let acknowledged = next + 1 + victim.kill().len() as u64;
        next = check_rows(&place, "b", acknowledged);
        // The other one goes on: it commits once more, after all that it has told.
        let _ = survivor.lines.try_iter().count();
        survivor.line();
    }
    survivor.child.kill().expect("killed");
    survivor.child.wait().expect("ended");
    check_rows_of_killed(&place);
    check_database(&place);
    end(&place, served);
}

/// Whose acknowledgements were heard in part.
fn check_rows_of_killed(place: &Place) {
    let counts =
        "select count(*) = count(distinct n) and count(*) = max(n) + 1 from t group by who";
    assert_eq!(sql(place, counts), "[(1,), (1,)]\n");
}

#[test]
fn a_database_with_a_write_ahead_log_survives_kills_of_its_server() {
    need!("python3");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let mut served = Served::start(&place, &[]);
    make_database(&place);
    let mut writers: Vec<Program> = ["a", "b"]
        .map(|who| Program::start(&place, WRITER, &[who, "0", "100000"]))
        .into();
    for round in 0..deaths(5) {
        for writer in &mut writers {
            writer.line();
        }
        std::thread::sleep(moment(round, 100_000));
        let way = match round % 3 {
            2 => rustix::process::Signal::TERM,
            _ => rustix::process::Signal::KILL,
        };
        served.signal(way);
        served.end();
        served = Served::start(&place, &FOR_ALL);
        for writer in &mut writers {
            let _ = writer.lines.try_iter().count();
            writer.line();
        }
        // Another process joins them.
        check_rows_of_killed(&place);
    }
    // All at once.
    drop(served);
    writers.into_iter().for_each(|writer| drop(writer.kill()));
    let served = Served::start(&place, &[]);
    check_rows_of_killed(&place);
    check_database(&place);
    end(&place, served);
}

/// A large mapping needs memory for its data, and leaves a quarter of it to others. A write to a
/// mapped file needs room in its memory; without, it fails and changes nothing.
#[test]
fn a_write_without_room_in_the_memory_changes_nothing() {
    need!("python3");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let Some(small) = SmallMemory::new(&place, "48m") else {
        return skip(adit_skip::MOUNT);
    };
    let options = ["--cache-size", "16M", "--survive-in", small.text()];
    let served = Served::start(&place, &options);
    let script = "
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
fd = os.open('/adit/file', os.O_RDWR | os.O_CREAT)
os.write(fd, b'a' * 8192)
far = libc.mmap(None, ctypes.c_size_t(64 << 20), 3, mmap.MAP_SHARED, fd, ctypes.c_long(0))
large = os.open('/adit/large', os.O_RDWR | os.O_CREAT)
os.ftruncate(large, 100 << 20)
holes = mmap.mmap(large, 100 << 20)
holes.close()
def fails(what, *arguments):
    try: what(*arguments)
    except OSError as error: print(error.strerror, end=', ')
for at in range(40): os.pwrite(large, b'd' * (1 << 20), at << 20)
space = os.statvfs(sys.argv[1])
total, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
# What would be left of all: an eighth, three eighths.
fails(mmap.mmap, large, free - total // 8)
less = mmap.mmap(large, free - total * 3 // 8)
assert less[-1] == ord('d')
less.close()
fill = sys.argv[1] + '/fill'
free = os.statvfs(sys.argv[1]).f_bavail * space.f_frsize
with open(fill, 'wb', 0) as file: file.write(bytes(free - total // 8))
# A small one may have some of the last quarter.
little = os.open('/adit/little', os.O_RDWR | os.O_CREAT)
os.write(little, b'l' * 8192)
assert mmap.mmap(little, 8192)[-1] == ord('l')
with open(fill, 'ab', 0) as file: fails(lambda: [file.write(bytes(65536)) for _ in range(2000)])
fails(os.pwrite, fd, b'b' * 65536, 8192)
print(os.fstat(fd).st_size)
os.unlink(fill)
os.pwrite(fd, b'c' * 65536, 8192)
assert os.pread(fd, 65536, 8192) == b'c' * 65536 == ctypes.string_at(far + 8192, 65536)
";
    let mut program = Program::start(&place, script, &[small.text()]);
    let expected = "Cannot allocate memory, No space left on device, Cannot allocate memory, 8192";
    assert_eq!(program.line(), expected);
    program.end();
    end(&place, served);
}

/// Pages can't be taken out of a mapping past the file, and the memory goes with the last part.
#[test]
fn a_mapping_that_is_unmapped_in_pieces_is_gone_with_the_last_and_none_is_removed_from_it() {
    need!("python3");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    let script = "
import ctypes, errno, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
fd = os.open('/adit/file', os.O_RDWR | os.O_CREAT)
os.write(fd, b'a' * 65536)
at = libc.mmap(None, ctypes.c_size_t(65536), 3, mmap.MAP_SHARED, fd, ctypes.c_long(0))
part = lambda begin, end: (ctypes.c_void_p(at + begin), ctypes.c_size_t(end - begin))
assert libc.madvise(*part(4096, 8192), 9) == -1 and ctypes.get_errno() == errno.EOPNOTSUPP
assert libc.madvise(*part(4096, 8192), mmap.MADV_WILLNEED) == 0
assert os.pread(fd, 4, 4096) == b'aaaa'
for begin, end in (16384, 32768), (0, 16384), (32768, 65536):
    assert libc.munmap(*part(begin, end)) == 0
    print('unmapped', flush=True)
    sys.stdin.readline()
";
    let mut program = Program::start(&place, script, &[]);
    for parts in (0..3).rev() {
        assert_eq!(program.line(), "unmapped");
        assert_eq!(!left(&place).is_empty(), parts > 0);
        writeln!(program.input).expect("told");
    }
    program.end();
    end(&place, served);
}

/// Touching a page makes it zeroes in the memory. The next server must not take these for stores.
#[test]
fn what_a_reader_touches_before_a_server_ends_is_nothing_in_the_next() {
    need!("python3");
    let _watchdog = Watchdog::new();
    for signal in [rustix::process::Signal::KILL, rustix::process::Signal::TERM] {
        let place = Place::with_volume();
        let served = Served::start(&place, &[]);
        let script = "
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.syscall.restype = ctypes.c_void_p
fd = os.open('/adit/file', os.O_RDWR | os.O_CREAT)
os.write(fd, b'a' * 65536)
at = libc.mmap(None, ctypes.c_size_t(4096), 3, mmap.MAP_SHARED, fd, ctypes.c_long(61440))
def is_memory(number):
    try: return 'adit.mapped-' in os.readlink('/proc/self/fd/%d' % number)
    except OSError: return False
own = [number for number in range(1024) if is_memory(number)]
# Past us, as a program that wants to do harm: all of the memory, for reading.
whole = libc.syscall(ctypes.c_long(9), None, ctypes.c_size_t(65536), ctypes.c_long(1),
    ctypes.c_long(mmap.MAP_SHARED), ctypes.c_long(own[0]), ctypes.c_long(0))
assert ctypes.string_at(whole, 4) == bytes(4)
print('touched', flush=True)
sys.stdin.readline()
assert os.pread(fd, 65536, 0) == b'a' * 65536
os.fsync(fd)
assert os.pread(fd, 65536, 0) == b'a' * 65536
";
        let mut program = Program::start(&place, script, &[]);
        assert_eq!(program.line(), "touched");
        served.signal(signal);
        served.end();
        let served = Served::start(&place, &FOR_ALL);
        writeln!(program.input).expect("told");
        program.end();
        assert_eq!(read(&place, 0, 65536), "a".repeat(65536));
        end(&place, served);
    }
}

/// A server on a copy of the volume leaves the memory of the one that lives alone.
#[test]
fn a_server_on_a_copy_keeps_its_hands_off_the_memory() {
    need!("python3");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let Some(small) = SmallMemory::new(&place, "96m") else {
        return skip(adit_skip::MOUNT);
    };
    let options = ["--cache-size", "16M", "--survive-in", small.text()];
    let served = Served::start(&place, &options);
    let script = "
import mmap, os
fd = os.open('/adit/file', os.O_RDWR | os.O_CREAT)
os.write(fd, bytes(4096)), os.fsync(fd)
memory = mmap.mmap(fd, 4096)
print('mapped', flush=True)
input()
memory[0:6] = b'stored'
os.kill(os.getpid(), 9)
";
    let mut program = Program::start(&place, script, &[]);
    assert_eq!(program.line(), "mapped");
    std::fs::copy(place.path("v.adit"), place.path("copy.adit")).expect("copied");
    let arguments = [
        "serve",
        "copy.adit",
        "--socket",
        "s2",
        "--takeover",
        "leave",
    ];
    let copy = place.command(&[&arguments[..], &options].concat());
    let copy = Served::start_command(copy);
    // The process and its server end together: the memory alone has the stores.
    stop(&served.child);
    writeln!(program.input).expect("told");
    program.child.wait().expect("killed");
    served.signal(rustix::process::Signal::KILL);
    served.end();
    copy.signal(rustix::process::Signal::TERM);
    assert!(copy.end().0.success());
    let served = Served::start(&place, &options);
    until("the grace is over", || {
        place.ok(&["cat", "unix:s", "/file"]).starts_with("stored")
    });
    end(&place, served);
}
