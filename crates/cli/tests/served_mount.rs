//! `adit serve --mount`: programs on the mount beside sessions. Takes root and FUSE; without them
//! the tests are skipped.

mod support;

use adit::{FlockOperation, LockMode, LockOwner, OpenOptions, RangeLock, Volume};
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;
use support::servers::{Served, Watchdog, connect_for, until};
use support::{Place, is_root};

/// Skips a test where nothing can be mounted.
macro_rules! take_a_mount {
    () => {
        if !(is_root() && Path::new("/dev/fuse").exists()) {
            return adit_skip::skip(adit_skip::VOLUME_MOUNT);
        }
        let _watchdog = Watchdog::new();
    };
}

/// A volume, and a server that has it mounted on `m`.
struct Mounted {
    // First: it ends first.
    server: Option<Served>,
    place: Place,
}

/// Sessions come back, however late the machine lets them.
const MOUNTING: &[&str] = &["--mount", "m", "--grace", "60"];

impl Mounted {
    fn new() -> Mounted {
        Mounted::with(MOUNTING)
    }

    fn with(options: &[&str]) -> Mounted {
        let place = Place::with_volume();
        fs::create_dir(place.path("m")).expect("made");
        let server = Some(Served::start(&place, options));
        Mounted { server, place }
    }

    fn root(&self) -> PathBuf {
        self.place.path("m")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    fn session(&self) -> Volume {
        connect_for(&self.place, Duration::from_secs(60))
    }

    fn server(&self) -> &Served {
        self.server.as_ref().expect("it runs")
    }

    fn is_mounted(&self) -> bool {
        is_mounted(&self.root())
    }

    /// Tells the server to end, which it does well; its messages.
    fn end(&mut self) -> String {
        self.server().signal(Signal::TERM);
        let (status, errors) = self.server.take().expect("it runs").end();
        assert!(status.success(), "{status:?} {errors}");
        assert!(!self.is_mounted());
        errors
    }

    fn kill(&mut self) {
        self.server().signal(Signal::KILL);
        self.server.take().expect("it runs").end();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.server.take());
        if self.is_mounted() {
            let _ = Command::new("umount").arg("-l").arg(self.root()).status();
        }
    }
}

fn is_mounted(directory: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/thread-self/mounts").expect("read");
    let directory = directory.to_str().expect("text");
    mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(directory))
}

/// A program of Python, which says a line and ends with its input.
struct Program(
    Child,
    Option<ChildStdin>,
    BufReader<std::process::ChildStdout>,
);

impl Program {
    fn start(mut command: Command, program: &str) -> Program {
        let mut child = command
            .args(["-c", program])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("piped"));
        Program(child, input, BufReader::new(output))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.2.read_line(&mut line).expect("read");
        line.trim().to_owned()
    }

    fn end(mut self) {
        drop(self.1.take());
        assert!(self.0.wait().expect("ended").success());
    }
}

/// A program that waits for a lock.
const WAITS: &str = "
import fcntl, signal, sys
f = open(sys.argv[1], 'r+')
lock = fcntl.flock if sys.argv[2] == 'flock' else fcntl.lockf
def interrupted(*_): raise InterruptedError
signal.signal(signal.SIGUSR1, interrupted)
try:
    print('waits', flush=True)
    lock(f, fcntl.LOCK_EX)
    print('has it', flush=True)
except InterruptedError:
    print('interrupted', flush=True)
except OSError as error:
    print('errno', error.errno, flush=True)
sys.stdin.read()
";

/// Starts it, and returns when it waits in the kernel.
fn waiting_for_lock(path: &Path, how: &str) -> Program {
    // Arguments of a program behind `-c`.
    let script = r#"exec python3 "$1" "$2" "$ADIT_FILE" "$ADIT_HOW""#;
    let mut python = Command::new("sh");
    python.args(["-c", script, "sh"]);
    python.env("ADIT_FILE", path).env("ADIT_HOW", how);
    let mut program = Program::start(python, WAITS);
    assert_eq!(program.line(), "waits");
    let number = match how {
        "flock" => libc::SYS_flock,
        _ => libc::SYS_fcntl,
    };
    let pid = program.0.id();
    until("it waits in the kernel", || {
        let at = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
        at.starts_with(&format!("{number} "))
    });
    program
}

fn has_python() -> bool {
    let asked = Command::new("python3").arg("--version").output();
    asked.is_ok()
}

#[test]
fn each_side_sees_at_once_what_the_other_changes() {
    take_a_mount!();
    let mut mounted = Mounted::new();
    let session = mounted.session();
    let path = mounted.path("f");
    let read = |name: &str| fs::read(mounted.path(name)).expect("read");
    let mut seen = File::options();
    let seen = seen.read(true).write(true);
    for round in 0..20u64 {
        // The session changes, the mount looks: at the name, and at a descriptor that it keeps.
        let content = format!("{round} ").repeat(1 + round as usize * 700);
        session.write("/f", &content).expect("written");
        assert_eq!(read("f"), content.as_bytes());
        assert_eq!(
            fs::metadata(&path).expect("there").len(),
            content.len() as u64
        );
        let kept = seen.open(&path).expect("opened");
        let file = session.open_file("/f", OpenOptions::new().read(true).write(true));
        let file = file.expect("opened");
        file.write_at(b"OVER", 0).expect("written");
        let mut four = [0; 4];
        kept.read_exact_at(&mut four, 0).expect("read");
        assert_eq!(&four, b"OVER");
        file.set_len(2).expect("cut");
        assert_eq!(kept.metadata().expect("there").len(), 2);
        assert_eq!(kept.read_at(&mut four, 0).expect("read"), 2);
        file.write_at(b"behind", 100).expect("written");
        assert_eq!(kept.read_at(&mut four, 102).expect("read"), 4);
        assert_eq!(&four, b"hind");
        // The mount changes, the session looks.
        kept.write_all_at(b"mount", 5000).expect("written");
        assert_eq!(file.metadata().expect("there").len(), 5005);
        let mut five = [0; 5];
        file.read_at(&mut five, 5000).expect("read");
        assert_eq!(&five, b"mount");
        kept.set_len(3).expect("cut");
        assert_eq!(file.metadata().expect("there").len(), 3);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("set");
        let mode = session.metadata("/f").expect("there").mode();
        assert_eq!(mode & 0o777, 0o640);
        // Names: there, elsewhere, and nowhere, which was looked up before.
        let name = format!("n{round}");
        assert!(!mounted.path(&name).exists());
        session.rename("/f", format!("/{name}")).expect("renamed");
        assert!(mounted.path(&name).exists() && !path.exists());
        fs::rename(mounted.path(&name), &path).expect("renamed");
        assert!(session.metadata("/f").is_ok() && session.metadata(format!("/{name}")).is_err());
        session.create_dir(format!("/d{round}")).expect("made");
        let listed = fs::read_dir(mounted.root()).expect("listed");
        assert_eq!(listed.count() as u64, 2);
        session.remove_dir(format!("/d{round}")).expect("removed");
        assert!(!mounted.path(&format!("d{round}")).exists());
        // A file that loses its last name lives while the other side has it open.
        session.remove_file("/f").expect("removed");
        assert!(!path.exists());
        assert_eq!(kept.metadata().expect("there").nlink(), 0);
        kept.write_all_at(b"lives", 0).expect("written");
        file.read_at(&mut five, 0).expect("read");
        assert_eq!(&five, b"lives");
    }
    drop(session);
    let errors = mounted.end();
    assert_eq!(errors, "");
    assert!(mounted.place.ok(&["check", "v.adit"]).contains("clean"));
}

#[test]
fn commands_and_shells_use_the_same_files() {
    take_a_mount!();
    let mut mounted = Mounted::new();
    let place = &mounted.place;
    place.write("host", "by put");
    place.ok(&["put", "unix:s", "host", "/f"]);
    let shell = |script: &str| {
        let output = Command::new("sh")
            .args(["-ec", script])
            .current_dir(mounted.root())
            .output();
        let output = output.expect("runs");
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    assert_eq!(shell("cat f"), "by put");
    shell("mkdir d; echo by shell > d/g; mv f d");
    assert_eq!(place.ok(&["cat", "unix:s", "/d/g"]), "by shell\n");
    assert_eq!(place.ok(&["ls", "unix:s", "/d"]), "f\ng\n");
    place.ok(&["rm", "unix:s", "/d/g"]);
    assert_eq!(shell("ls d; test ! -e d/g"), "f\n");
    // While a shell has it open, the server lists it.
    let open = File::open(mounted.path("d/f")).expect("opened");
    assert!(place.ok(&["lsof", "--paths", "unix:s"]).contains("/d/f"));
    drop(open);
    mounted.end();
}

/// The kernel computes where an append goes from the size that it knows. A session that had
/// appended in between would be overwritten.
#[test]
fn appends_of_both_sides_lose_nothing() {
    take_a_mount!();
    const LINES: usize = 500;
    let mut mounted = Mounted::new();
    let (path, session) = (mounted.path("log"), mounted.session());
    session.write("/log", b"").expect("made");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut file = File::options().append(true).open(&path).expect("opened");
            for line in 0..LINES {
                // At once: `writeln!` writes piece by piece.
                let line = format!("mount {line}\n");
                file.write_all(line.as_bytes()).expect("appended");
            }
        });
        let log = session.open_file("/log", OpenOptions::new().append(true));
        let log = log.expect("opened");
        for line in 0..LINES {
            let line = format!("session {line}\n");
            log.append(line.as_bytes()).expect("appended");
        }
    });
    let content = fs::read_to_string(&path).expect("read");
    for who in ["mount", "session"] {
        let prefix = format!("{who} ");
        let lines = content
            .lines()
            .filter_map(|line| line.strip_prefix(&prefix));
        let numbers: Vec<usize> = lines.map(|line| line.parse().expect("whole")).collect();
        assert_eq!(numbers, (0..LINES).collect::<Vec<_>>(), "{who}");
    }
    assert_eq!(content.lines().count(), 2 * LINES);
    drop(session);
    mounted.end();
}

fn fcntl(
    file: &File,
    command: i32,
    kind: i32,
    start: i64,
    len: i64,
) -> std::io::Result<libc::flock> {
    use std::os::fd::AsRawFd;
    // SAFETY: plain numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_start, lock.l_len) = (kind as i16, start, len);
    // SAFETY: the lock lives here.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(lock),
    }
}

#[test]
fn locks_of_both_kinds_hold_between_the_mount_and_sessions() {
    take_a_mount!();
    let mut mounted = Mounted::new();
    let session = mounted.session();
    session.write("/f", b"content").expect("written");
    let theirs = session.open_file("/f", OpenOptions::new().read(true).write(true));
    let theirs = theirs.expect("opened");
    let open = || {
        let mut options = File::options();
        let options = options.read(true).write(true);
        options.open(mounted.path("f")).expect("opened")
    };
    let ours = open();
    let flock = |file: &File, operation| {
        use std::os::fd::AsRawFd;
        // SAFETY: plain system call.
        unsafe { libc::flock(file.as_raw_fd(), operation | libc::LOCK_NB) == 0 }
    };
    let their_flock = || theirs.flock(FlockOperation::Exclusive { wait: false });
    let range = |offset, len| {
        let owner = LockOwner::Posix { id: 1, pid: 4711 };
        RangeLock::new(owner, LockMode::Exclusive, offset, len)
    };
    let their_range = |offset, len| theirs.lock_range(&range(offset, len), false);
    // flock: of the mount, then of the session. It is no lock of fcntl.
    assert!(flock(&ours, libc::LOCK_EX));
    assert!(their_flock().is_err() && their_range(0, 0).is_ok());
    let owner = LockOwner::Posix { id: 1, pid: 4711 };
    theirs.unlock_range(owner, 0, 0).expect("released");
    assert!(flock(&ours, libc::LOCK_UN) && their_flock().is_ok());
    assert!(!flock(&ours, libc::LOCK_SH));
    assert!(fcntl(&ours, libc::F_SETLK, libc::F_WRLCK, 0, 0).is_ok());
    theirs.flock(FlockOperation::Unlock).expect("released");
    // fcntl: the whole file, which excludes no flock, then parts of it.
    assert!(their_flock().is_ok() && their_range(3, 1).is_err());
    theirs.flock(FlockOperation::Unlock).expect("released");
    assert!(fcntl(&ours, libc::F_SETLK, libc::F_UNLCK, 10, 10).is_ok());
    assert!(their_range(10, 10).is_ok() && their_range(20, 1).is_err());
    let found = fcntl(&ours, libc::F_GETLK, libc::F_WRLCK, 0, 100).expect("tested");
    assert_eq!(
        (found.l_type, found.l_start, found.l_len),
        (libc::F_WRLCK as i16, 10, 10)
    );
    assert!(fcntl(&ours, libc::F_SETLK, libc::F_WRLCK, 15, 1).is_err());
    // Closing any descriptor of the file releases the process's locks of fcntl, not those of an
    // open file.
    let by_file = open();
    assert!(fcntl(&by_file, libc::F_OFD_SETLK, libc::F_WRLCK, 200, 1).is_err());
    assert!(fcntl(&ours, libc::F_SETLK, libc::F_UNLCK, 200, 1).is_ok());
    assert!(fcntl(&by_file, libc::F_OFD_SETLK, libc::F_WRLCK, 200, 1).is_ok());
    drop(open());
    assert!(their_range(30, 1).is_ok() && their_range(200, 1).is_err());
    drop(by_file);
    // The kernel tells of a closed file a moment later.
    until("an open file's locks are gone", || {
        their_range(200, 1).is_ok()
    });
    assert!(flock(&ours, libc::LOCK_EX));
    drop(ours);
    until("a closed file's flock is gone", || their_flock().is_ok());
    drop((theirs, session));
    mounted.end();
}

/// A thread that waits for a lock would be missing for other requests, and a process that waits
/// could not be killed before it has the lock.
#[test]
fn a_wait_for_a_lock_ends_with_the_lock_or_a_signal_and_holds_up_nobody() {
    take_a_mount!();
    if !has_python() {
        return adit_skip::skip("python3 is not installed (apt install python3)");
    }
    let mut mounted = Mounted::new();
    let session = mounted.session();
    session.write("/f", b"content").expect("written");
    let theirs = session.open_file("/f", OpenOptions::new().read(true).write(true));
    let theirs = theirs.expect("opened");
    let path = mounted.path("f");
    let all = {
        let owner = LockOwner::Posix { id: 1, pid: 4711 };
        RangeLock::new(owner, LockMode::Exclusive, 0, 0)
    };
    for how in ["flock", "fcntl"] {
        match how {
            "flock" => theirs.flock(FlockOperation::Exclusive { wait: false }),
            _ => theirs.lock_range(&all, false),
        }
        .expect("taken");
        // More than there are threads that serve the mount.
        let mut waiting: Vec<Program> = (0..12).map(|_| waiting_for_lock(&path, how)).collect();
        assert_eq!(fs::read(&path).expect("others go on"), b"content");
        let signal = |program: &Program, signal| {
            let pid = rustix::process::Pid::from_child(&program.0);
            rustix::process::kill_process(pid, signal).expect("signalled");
        };
        let mut interrupted = waiting.pop().expect("there");
        signal(&interrupted, Signal::USR1);
        assert_eq!(interrupted.line(), "interrupted");
        interrupted.end();
        for mut killed in waiting.drain(1..) {
            signal(&killed, Signal::KILL);
            killed.0.wait().expect("ended");
        }
        match how {
            "flock" => theirs.flock(FlockOperation::Unlock),
            _ => theirs.unlock_range(LockOwner::Posix { id: 1, pid: 4711 }, 0, 0),
        }
        .expect("released");
        let mut last = waiting.pop().expect("there");
        assert_eq!(last.line(), "has it");
        let again = match how {
            "flock" => theirs.flock(FlockOperation::Exclusive { wait: false }),
            _ => theirs.lock_range(&all, false),
        };
        assert!(again.is_err(), "{how}: nobody has it");
        last.end();
    }
    drop((theirs, session));
    mounted.end();
}

/// A database with a rollback journal: a program on the mount and one under `adit run`, in turn and
/// at once.
#[test]
fn one_sqlite_database_on_the_mount_and_in_a_session() {
    take_a_mount!();
    if !has_python() {
        return adit_skip::skip("python3 is not installed (apt install python3)");
    }
    let program = |path: &Path| {
        format!(
            "
import sqlite3, sys
base = sqlite3.connect('{}', timeout=120, isolation_level=None)
base.execute('pragma journal_mode=delete')
base.execute('create table if not exists t(a)')
print('ready', flush=True)
sys.stdin.readline()
for row in range(60):
    base.execute('insert into t values(?)', (row,))
print(base.execute('pragma integrity_check').fetchone()[0], flush=True)
sys.stdin.read()
",
            path.display()
        )
    };
    let mut mounted = Mounted::new();
    let on_mount = mounted.path("base");
    let stock = Command::new("python3");
    let session = mounted.place.command(&["run", "unix:s", "--", "python3"]);
    let mut programs = [
        Program::start(stock, &program(&on_mount)),
        Program::start(session, &program(Path::new("/adit/base"))),
    ];
    for program in &mut programs {
        assert_eq!(program.line(), "ready");
    }
    for program in &mut programs {
        let input = program.1.as_mut().expect("piped");
        input.write_all(b"\n").expect("written");
    }
    for program in &mut programs {
        assert_eq!(program.line(), "ok");
    }
    programs.into_iter().for_each(Program::end);
    let count = "import sqlite3, sys; \
                 print(sqlite3.connect(sys.argv[1]).execute('select count(*) from t').fetchone()[0])";
    let counted = Command::new("python3")
        .args(["-c", count])
        .arg(&on_mount)
        .output();
    assert_eq!(counted.expect("runs").stdout, b"120\n");
    mounted.end();
}

/// The memory that a session has mapped shared is one with the file that the mount reads and
/// writes. The mount itself refuses such mappings: the kernel's pages would be another memory.
#[test]
fn shared_mappings_of_sessions_stay_right_and_the_mount_has_none() {
    take_a_mount!();
    if !has_python() {
        return adit_skip::skip("python3 is not installed (apt install python3)");
    }
    const MAPS: &str = "
import mmap, os, sys
f = os.open('/adit/f', os.O_RDWR)
m = mmap.mmap(f, 4096)
print('mapped', flush=True)
sys.stdin.readline()
print(m[10:15].decode(), flush=True)
m[20:25] = b'store'
print('stored', flush=True)
sys.stdin.read()
";
    let mut mounted = Mounted::new();
    let path = mounted.path("f");
    fs::write(&path, vec![b'.'; 4096]).expect("written");
    let run = mounted.place.command(&["run", "unix:s", "--", "python3"]);
    let mut program = Program::start(run, MAPS);
    assert_eq!(program.line(), "mapped");
    let file = File::options().read(true).write(true).open(&path);
    let file = file.expect("opened");
    file.write_all_at(b"mount", 10).expect("written");
    let input = program.1.as_mut().expect("piped");
    input.write_all(b"\n").expect("written");
    assert_eq!(program.line(), "mount");
    assert_eq!(program.line(), "stored");
    let mut five = [0; 5];
    file.read_exact_at(&mut five, 20).expect("read");
    assert_eq!(&five, b"store");
    program.end();
    let map = |flags| {
        use rustix::mm::{MapFlags, ProtFlags};
        let flags = match flags {
            libc::MAP_SHARED => MapFlags::SHARED,
            _ => MapFlags::PRIVATE,
        };
        // SAFETY: a new mapping, where the kernel wants it.
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, flags, &file, 0) }
    };
    assert_eq!(map(libc::MAP_SHARED), Err(rustix::io::Errno::NODEV));
    let private = map(libc::MAP_PRIVATE).expect("mapped");
    // SAFETY: it is 4096 bytes long, and stays.
    let seen = unsafe { std::slice::from_raw_parts(private.cast::<u8>().cast_const(), 4096) };
    assert_eq!(&seen[20..25], b"store");
    drop(file);
    mounted.end();
}

#[test]
fn a_sigterm_unmounts_a_busy_mount_and_sessions_go_on_with_the_next_server() {
    take_a_mount!();
    let mut mounted = Mounted::new();
    let session = mounted.session();
    session.write("/f", b"content").expect("written");
    let theirs = session.open_file("/f", OpenOptions::new().read(true).write(true));
    let theirs = theirs.expect("opened");
    // Somebody works in it, has a file open, and a lock.
    let mut shell = Command::new("cat")
        .current_dir(mounted.root())
        .stdin(Stdio::piped())
        .spawn()
        .expect("runs");
    let ours = File::options()
        .read(true)
        .write(true)
        .open(mounted.path("f"));
    let ours = ours.expect("opened");
    assert!(fcntl(&ours, libc::F_SETLK, libc::F_WRLCK, 0, 0).is_ok());
    let waiting = has_python().then(|| waiting_for_lock(&mounted.path("f"), "fcntl"));
    let errors = mounted.end();
    assert_eq!(errors, "");
    if let Some(mut waiting) = waiting {
        assert_eq!(waiting.line(), format!("errno {}", libc::ENOTCONN));
        waiting.end();
    }
    assert_eq!(
        fs::read_dir(mounted.root())
            .expect("the directory below")
            .count(),
        0
    );
    let mut byte = [0];
    let gone = ours
        .read_at(&mut byte, 0)
        .expect_err("it ended with its server");
    assert_eq!(gone.raw_os_error(), Some(libc::ENOTCONN));
    mounted.server = Some(Served::start(&mounted.place, MOUNTING));
    let owner = LockOwner::Posix { id: 1, pid: 1 };
    let all = RangeLock::new(owner, LockMode::Exclusive, 0, 0);
    theirs
        .lock_range(&all, false)
        .expect("the mount's lock is gone");
    assert_eq!(fs::read(mounted.path("f")).expect("read"), b"content");
    theirs.write_at(b"C", 0).expect("written");
    assert_eq!(fs::read(mounted.path("f")).expect("read"), b"Content");
    drop(shell.stdin.take());
    shell.wait().expect("ended");
    drop((ours, theirs, session));
    mounted.end();
}

#[test]
fn after_a_kill_the_next_server_mounts_at_once_and_has_what_was_written() {
    take_a_mount!();
    let mut mounted = Mounted::new();
    let session = mounted.session();
    for round in 0..5 {
        let name = format!("f{round}");
        fs::write(mounted.path(&name), format!("{round}").repeat(5000)).expect("written");
        let log = session.open_file("/log", OpenOptions::new().append(true).create(true));
        let log = log.expect("opened");
        // Half of the time somebody is still there.
        let open = (round % 2 == 0).then(|| File::open(mounted.path(&name)).expect("opened"));
        mounted.kill();
        assert!(mounted.is_mounted(), "what is left of it");
        mounted.server = Some(Served::start(&mounted.place, MOUNTING));
        for before in 0..=round {
            let content = fs::read_to_string(mounted.path(&format!("f{before}")));
            assert_eq!(content.expect("read"), format!("{before}").repeat(5000));
        }
        log.append(b"line\n").expect("the session goes on");
        let content = fs::read_to_string(mounted.path("log")).expect("read");
        assert_eq!(content, "line\n".repeat(round + 1));
        if let Some(open) = open {
            let mut byte = [0];
            let gone = open
                .read_at(&mut byte, 0)
                .expect_err("it ended with its server");
            assert_eq!(gone.raw_os_error(), Some(libc::ENOTCONN));
        }
    }
    drop(session);
    mounted.end();
    assert!(mounted.place.ok(&["check", "v.adit"]).contains("clean"));
}

#[test]
fn who_unmounts_it_ends_the_mount_and_not_the_server() {
    take_a_mount!();
    let mut mounted = Mounted::new();
    let session = mounted.session();
    fs::write(mounted.path("f"), b"content").expect("written");
    let errors = mounted
        .server
        .as_mut()
        .and_then(|server| server.child.stderr.take());
    let mut errors = BufReader::new(errors.expect("piped"));
    // A program that looks at all mounts of the machine keeps one busy for a moment.
    until("it is unmounted", || {
        let unmounted = Command::new("umount").arg(mounted.root()).output();
        unmounted.expect("runs").status.success()
    });
    let mut warning = String::new();
    errors.read_line(&mut warning).expect("read");
    let wanted = "adit: warning: v.adit: unmounted: sessions go on (place=";
    assert!(warning.starts_with(wanted), "{warning}");
    assert_eq!(session.read("/f").expect("read"), b"content");
    session.write("/g", b"more").expect("written");
    drop(session);
    mounted.server().signal(Signal::TERM);
    let mut server = mounted.server.take().expect("it runs");
    assert!(server.child.wait().expect("ended").success());
    let mut rest = String::new();
    errors.read_to_string(&mut rest).expect("read");
    assert_eq!(rest, "");
    assert!(mounted.place.ok(&["check", "v.adit"]).contains("clean"));
}

#[test]
fn a_server_that_cannot_mount_does_not_start_and_says_why() {
    take_a_mount!();
    let place = Place::with_volume();
    place.ok(&["mkfs", "w.adit", "--size", "64M"]);
    fs::create_dir(place.path("m")).expect("made");
    fs::create_dir(place.path("full")).expect("made");
    place.write("full/file", "content");
    let one = ["serve", "v.adit", "--socket", "s", "--mount"];
    let two = ["serve", "v.adit", "w.adit", "--socket", "s", "--mount"];
    let refused: &[(&[&str], &[&str], &str)] = &[
        (&one, &["missing"], "no such directory to mount on"),
        (&one, &["v.adit"], "this isn't one"),
        (
            &one,
            &["full"],
            "mount on full: the directory to mount on is not empty",
        ),
        (
            &one,
            &["w.adit=m"],
            "there is no volume w.adit, the server has v.adit",
        ),
        (
            &one,
            &["m", "--mount", "full"],
            "mount v.adit on two directories",
        ),
        (
            &two,
            &["m"],
            "the server has several volumes, so say which: NAME=m",
        ),
        (&two, &["v.adit=m", "--mount", "w.adit=full"], "not empty"),
        // The second one asked the first mount, which nobody served yet.
        (
            &two,
            &["v.adit=m", "--mount", "w.adit=full/../m/."],
            "another volume is to be mounted there",
        ),
        (
            &two,
            &["v.adit=m", "--mount", "w.adit=m/below"],
            "no such directory to mount on",
        ),
    ];
    for (words, more, wanted) in refused {
        let errors = place.fails(1, &[words, *more].concat());
        assert!(errors.contains(wanted), "{more:?}: {errors}");
        assert!(!is_mounted(&place.path("m")), "{more:?}");
        assert!(!place.path("s").exists(), "{more:?}");
        assert!(place.ok(&["check", "v.adit"]).contains("clean"));
    }
    place.fails(2, &["serve", "v.adit", "--socket", "s", "--allow-other"]);
    // In a namespace of its own, /dev has nothing but what the command needs.
    let script = "set -e; mkdir dev; mount -t tmpfs none dev; mkdir dev/shm; mknod dev/null c 1 3
        mount --bind /dev/shm dev/shm; mount --rbind dev /dev; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]);
    command.arg(env!("CARGO_BIN_EXE_adit")).args(one).arg("m");
    command.current_dir(place.path(""));
    let output = place.end(command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("there is no /dev/fuse"), "{errors}");
    assert!(place.ok(&["check", "v.adit"]).contains("clean"));
}

/// Sessions that the last server has left stay for the next one that can mount.
#[test]
fn a_server_that_cannot_mount_leaves_the_sessions_of_the_last_one_alone() {
    take_a_mount!();
    let mut mounted = Mounted::new();
    let session = mounted.session();
    let log = session.open_file("/log", OpenOptions::new().append(true).create(true));
    let log = log.expect("opened");
    mounted.end();
    mounted.place.write("m/file", "in the way");
    let errors = mounted
        .place
        .fails(1, &["serve", "v.adit", "--socket", "s", "--mount", "m"]);
    assert!(errors.contains("ENOTEMPTY"), "{errors}");
    fs::remove_file(mounted.path("file")).expect("removed");
    mounted.server = Some(Served::start(&mounted.place, MOUNTING));
    log.append(b"goes on").expect("appended");
    assert_eq!(fs::read(mounted.path("log")).expect("read"), b"goes on");
    drop((log, session));
    mounted.end();
}

#[test]
fn each_of_several_volumes_has_a_directory_of_its_own() {
    take_a_mount!();
    let place = Place::with_volume();
    place.ok(&["mkfs", "w.adit", "--size", "64M"]);
    for name in ["a", "b"] {
        fs::create_dir(place.path(name)).expect("made");
    }
    let words = ["serve", "v.adit", "two=w.adit", "--socket", "s"];
    let mounts = ["--mount", "two=b", "--mount", "v.adit=a", "--allow-other"];
    let server = Served::start_command(place.command(&[&words[..], &mounts].concat()));
    // The line above says that both are there.
    assert!(is_mounted(&place.path("a")) && is_mounted(&place.path("b")));
    fs::write(place.path("a/f"), b"one").expect("written");
    fs::write(place.path("b/f"), b"two").expect("written");
    assert_eq!(place.ok(&["cat", "unix:s,v.adit", "/f"]), "one");
    assert_eq!(place.ok(&["cat", "unix:s,two", "/f"]), "two");
    server.signal(Signal::TERM);
    let (status, errors) = server.end();
    assert!(status.success() && errors.is_empty(), "{errors}");
    assert!(!is_mounted(&place.path("a")) && !is_mounted(&place.path("b")));
}

/// Several workers have the volume: threads of programs on the mount and of a session, each with
/// its directory and with one that all share.
#[test]
fn programs_and_sessions_use_a_volume_of_several_workers() {
    const FILES: usize = 30;
    take_a_mount!();
    let several = ["--workers", "3", "--pollers", "2"];
    let mut mounted = Mounted::with(&[MOUNTING, &several].concat());
    fs::create_dir(mounted.path("all")).expect("made");
    let root = mounted.root();
    let content = |thread: usize, number: usize| format!("{thread} {number} ").repeat(2000);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (root, content) = (&root, &content);
            scope.spawn(move || {
                let own = root.join(thread.to_string());
                fs::create_dir(&own).expect("made");
                for number in 0..FILES {
                    let (new, all) = (own.join("new"), root.join("all"));
                    let mut file = File::create(&new).expect("made");
                    file.write_all(content(thread, number).as_bytes())
                        .expect("written");
                    file.sync_all().expect("synced");
                    let name = format!("{thread}-{number}");
                    fs::rename(&new, all.join(&name)).expect("renamed");
                    fs::hard_link(all.join(&name), own.join(&name)).expect("linked");
                    let mode = fs::Permissions::from_mode(0o640);
                    fs::set_permissions(own.join(&name), mode).expect("changed");
                    if number % 3 == 0 {
                        fs::remove_file(all.join(&name)).expect("removed");
                    }
                }
            });
        }
        let session = mounted.session();
        scope.spawn(move || {
            for number in 0..FILES {
                let path = format!("/all/s{number}");
                session
                    .write(&path, content(9, number).as_bytes())
                    .expect("written");
                let found = session.metadata(&path).expect("there").len();
                assert_eq!(found, content(9, number).len() as u64);
            }
        });
    });
    // A session's lock holds up a program's, in each worker.
    let session = mounted.session();
    for number in 1..4 {
        let path = format!("/all/s{number}");
        let file = session
            .open_file(&path, OpenOptions::new().read(true).write(true))
            .expect("opened");
        file.flock(FlockOperation::Exclusive { wait: false })
            .expect("locked");
        let other = File::open(mounted.path(&path[1..])).expect("opened");
        assert!(other.try_lock().is_err());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| other.lock());
            file.flock(FlockOperation::Unlock).expect("unlocked");
            waits.join().expect("it ends").expect("locked");
        });
    }
    let names = |directory: &str| {
        let listed = fs::read_dir(mounted.path(directory)).expect("listed");
        listed.count()
    };
    assert_eq!(names("all"), FILES * 2 + FILES);
    assert_eq!(names("1"), FILES);
    for thread in 0..3 {
        for number in 0..FILES {
            let found = session.read(format!("/{thread}/{thread}-{number}"));
            assert_eq!(found.expect("read"), content(thread, number).as_bytes());
        }
    }
    session.close().expect("closed");
    mounted.end();
    assert!(mounted.place.ok(&["check", "v.adit"]).contains("clean"));
}
