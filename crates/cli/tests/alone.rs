//! Programs of several processes by `adit run IMAGE` alone: the first one that uses the volume has
//! it, the others are its sessions, and a server goes on when it ends.

#[macro_use]
mod support;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use support::servers::{Watchdog, until};
use support::{Place, is_root};

fn run(place: &Place, program: &[&str]) -> String {
    place.ok(&[&["run", "v.adit", "--"], program].concat())
}

/// `adit run` with a directory of its own for the meeting place.
fn run_in(place: &Place, memory: &Path, program: &[&str]) -> Command {
    let memory = memory.to_str().expect("text");
    place.command(&[&["run", "v.adit", "--survive-in", memory, "--"], program].concat())
}

fn start(mut command: Command) -> Child {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().expect("it runs")
}

fn tell(child: &mut Child, words: &str) {
    let input = child.stdin.as_mut().expect("piped");
    input.write_all(words.as_bytes()).expect("told");
}

/// A directory on a tmpfs.
fn memory() -> tempfile::TempDir {
    let made = tempfile::Builder::new()
        .prefix("adit-test-")
        .tempdir_in("/dev/shm");
    made.expect("a directory")
}

fn meeting_places(memory: &tempfile::TempDir) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(memory.path()).expect("read").flatten();
    let paths = entries.map(|entry| entry.path());
    let is_one = |path: &PathBuf| path.to_string_lossy().contains("/adit-run-");
    paths.filter(is_one).collect()
}

/// A daemon's first process has the volume, opens the files, and is gone before the last one does
/// anything. Another child has used what has no name, and is gone as well.
#[test]
fn the_volume_outlives_the_first_process_of_a_daemon() {
    need!("python3");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    for end in ["sys.exit(0)", "os._exit(0)", "os.kill(os.getpid(), 9)"] {
        let script = format!(
            "import os, sys, time\n\
             fd = os.open('/adit/file', os.O_RDWR | os.O_CREAT | os.O_TRUNC)\n\
             other = os.open('/adit/gone', os.O_RDWR | os.O_CREAT)\n\
             os.unlink('/adit/gone')\n\
             os.write(fd, b'parent\\n')\n\
             if os.fork() == 0:\n\
             \x20   os.pread(other, 1, 0)\n\
             \x20   time.sleep(0.6)\n\
             \x20   os._exit(0)\n\
             time.sleep(0.2)\n\
             if os.fork(): {end}\n\
             os.setsid()\n\
             time.sleep(1)\n\
             sys.stdin.readline()\n\
             os.write(fd, b'child\\n')\n\
             os.fsync(fd)\n\
             assert os.write(other, b'nameless') == 8 and os.pread(other, 9, 0) == b'nameless'\n\
             sys.stdin.readline()\n\
             os.write(fd, b'end\\n')\n\
             print('done', flush=True)\n"
        );
        let words = ["run", "v.adit", "--", "python3", "-c", &script];
        let mut program = start(place.command(&words));
        // Without `wait`, which would close its input.
        until("the first process has ended", || {
            program.try_wait().expect("a child").is_some()
        });
        tell(&mut program, "\n\n");
        let mut said = String::new();
        let output = program.stdout.as_mut().expect("piped");
        output.read_to_string(&mut said).expect("read");
        assert_eq!(said, "done\n", "{end}");
        let content = place.ok(&["cat", "v.adit", "/file"]);
        assert_eq!(content, "parent\nchild\nend\n", "{end}");
        // The next opening to write deletes files without names that nobody has come for.
        run(&place, &["touch", "/adit/next"]);
        let checked = place.ok(&["check", "v.adit"]);
        let is_good = checked.contains("clean") && checked.contains(" 0 orphans");
        assert!(is_good, "{end}: {checked}");
    }
}

/// It was listed as memory of a volume that can't be read.
#[test]
fn a_meeting_place_is_no_memory_of_a_volume() {
    need!("sh");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let memory = memory();
    let (adit, in_memory) = (env!("CARGO_BIN_EXE_adit"), memory.path().display());
    let script =
        format!("echo a > /adit/a; exec 3> /adit/b; '{adit}' mappings --survive-in '{in_memory}'");
    let output = run_in(&place, memory.path(), &["sh", "-c", &script]).output();
    let output = output.expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    // The program's own memory is there, and nothing else.
    assert!(
        said.contains("adit-") && !said.contains("can't be read"),
        "{said}"
    );
}

/// Is there a process that may know any meeting place, since it has written over its environment?
fn others_may_know() -> bool {
    let processes = std::fs::read_dir("/proc").expect("read").flatten();
    let read = |path: PathBuf| std::fs::read(path).unwrap_or_default();
    let has = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|at| at == text.as_bytes());
    processes.map(|entry| entry.path()).any(|process| {
        !has(&read(process.join("environ")), "ADIT_RUN_")
            && has(&read(process.join("maps")), "/libadit_preload.so")
    })
}

#[test]
fn nothing_is_left_in_memory_when_all_processes_have_ended() {
    need!("bash");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let memory = memory();
    for script in [
        "echo a > /adit/a",
        "cd /adit; seq 100 | sort -r | tee b | wc -l > c; cat b c | tail -1",
        "cd /adit; (sleep 0.2; echo late > late) & echo early > early",
        "cd /adit; exec 3> d; (read x; echo never) < <(sleep 0.3) & kill -9 $$",
    ] {
        let mut command = run_in(&place, memory.path(), &["bash", "-c", script]);
        let _ = command.stdout(Stdio::null()).status().expect("it runs");
        until("nobody has the volume", || {
            let memory_of = memory.path().to_str().expect("text");
            let checked = place.run(&["check", "v.adit", "--survive-in", memory_of]);
            checked.status.success()
        });
        until("its meeting place has gone", || {
            others_may_know() || meeting_places(&memory).is_empty()
        });
    }
    until("the last line of the background is there", || {
        place.run(&["cat", "v.adit", "/late"]).stdout == b"late\n"
    });
}

/// Sessions of a child that has given up root have its rights. A process that isn't of the program
/// finds no way in, not by the kernel's list of sockets either.
#[test]
fn other_users_have_their_own_rights_and_strangers_find_no_way_in() {
    need!("python3");
    if !is_root() {
        return adit_skip::skip(adit_skip::OTHER_USER);
    }
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let memory = memory();
    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(memory.path(), everybody).expect("set");
    let script = "
import os, sys
os.chmod('/adit', 0o777)
secret = os.open('/adit/secret', os.O_RDWR | os.O_CREAT, 0o600)
os.write(secret, b'secret')
child = os.fork()
if child == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    for attempt in (lambda: open('/adit/secret'), lambda: os.chmod('/adit/secret', 0o666)):
        try:
            attempt()
            os._exit(1)
        except PermissionError:
            pass
    own = os.open('/adit/own', os.O_RDWR | os.O_CREAT, 0o644)
    os._exit(0 if os.fstat(own).st_uid == 65534 and os.pread(secret, 6, 0) == b'secret' else 2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
sys.stdin.readline()
";
    let mut program = start(run_in(&place, memory.path(), &["python3", "-c", script]));
    let mut said = [0; 2];
    let output = program.stdout.as_mut().expect("piped");
    output.read_exact(&mut said).expect("read");
    assert_eq!(&said, b"0\n");
    let [outer] = &meeting_places(&memory)[..] else {
        panic!("one meeting place");
    };
    let inner = std::fs::read_dir(outer).expect("root may").next();
    let inner = inner.expect("one").expect("read").path();
    assert!(inner.join("s").exists());
    let sockets = std::fs::read_to_string("/proc/net/unix").expect("read");
    let name = inner.file_name().expect("a name").to_str().expect("text");
    assert!(
        !sockets.contains(name),
        "the kernel tells the path of the socket"
    );
    let mut list = Command::new("ls");
    let listed = list.arg(outer).uid(65534).gid(65534).output();
    let listed = listed.expect("it runs");
    assert!(!listed.status.success() && listed.stdout.is_empty());
    tell(&mut program, "\n");
    assert!(program.wait().expect("ended").success());
}

/// The others of its processes hear that they have nothing of it.
#[test]
fn without_a_place_to_meet_a_process_has_the_volume_for_itself() {
    need!("python3");
    let place = Place::with_volume();
    let script = "open('/adit/f', 'w').write('there')\n";
    let output = place.run(&[
        "run",
        "v.adit",
        "--survive",
        "off",
        "--survive-in",
        "/proc/nowhere",
        "--",
        "python3",
        "-c",
        script,
    ]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(
        errors.contains("processes that this one starts"),
        "{errors}"
    );
    assert_eq!(place.ok(&["cat", "v.adit", "/f"]), "there");
}

/// A process that is killed when the test ends, however it ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Redis saves in a child of `fork`, and takes writes meanwhile and afterwards.
#[test]
fn redis_saves_in_the_background() {
    need!("redis-server" "redis-cli");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let socket = place.path("redis");
    let socket = socket.to_str().expect("text");
    let start = || {
        let options = "--dir /adit --port 0 --appendonly yes --appendfsync always --save";
        let mut command = place.command(&["run", "v.adit", "--", "redis-server"]);
        command.args(options.split(' ')).arg("");
        command.args(["--unixsocket", socket]).stdout(Stdio::null());
        command.spawn().expect("it runs")
    };
    let ask = |words: &str| {
        let mut command = Command::new("redis-cli");
        command.args(["-s", socket]).args(words.split(' '));
        let done = command.output().expect("it runs");
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    let info = |field: &str| {
        let all = ask("info persistence");
        let mut lines = all.lines();
        let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.map(|value| value.trim().to_owned())
    };
    let is = |field: &str, value: &str| info(field).as_deref() == Some(value);
    let mut server = Killed(start());
    until("it answers", || ask("ping") == "PONG\n");
    for round in 0..3 {
        assert_eq!(ask(&format!("set before{round} 1")), "OK\n");
        assert!(ask("bgsave").contains("started"));
        assert_eq!(ask(&format!("set while{round} 1")), "OK\n");
        until("it has saved", || is("rdb_bgsave_in_progress", "0"));
        assert!(is("rdb_last_bgsave_status", "ok"));
        assert!(ask("bgrewriteaof").contains("started"));
        until("it has rewritten", || is("aof_rewrite_in_progress", "0"));
        assert!(is("aof_last_bgrewrite_status", "ok"));
        assert_eq!(ask(&format!("set after{round} 1")), "OK\n");
    }
    drop(server);
    let listed = place.ok(&["ls", "v.adit", "/"]);
    assert!(listed.contains("dump.rdb"), "{listed}");
    server = Killed(start());
    until("it answers", || ask("ping") == "PONG\n");
    assert_eq!(ask("dbsize"), "9\n");
    ask("shutdown");
    assert!(server.0.wait().expect("ended").success());
    place.ok(&["check", "v.adit"]);
}

#[test]
fn no_synced_line_is_lost_whoever_has_the_volume_and_is_killed() {
    need!("python3");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/owners.py");
    let top = place.path("");
    let top = top.to_str().expect("text");
    for seed in ["1", "2"] {
        run(&place, &["sh", "-c", "rm -f /adit/file*"]);
        let said = run(&place, &["python3", program, seed, top]);
        let workers: u32 = said.trim().parse().expect("a number");
        assert!(workers > 8, "{workers} have said something");
        until("nobody has the volume", || {
            place.run(&["check", "v.adit"]).status.success()
        });
    }
}

/// A child that has given up root, and may write the image, is the first to need the volume: it
/// could see all that root's processes say to it, if these became its sessions.
#[test]
fn roots_processes_are_no_sessions_of_another_users() {
    need!("python3");
    if !is_root() {
        return adit_skip::skip(adit_skip::OTHER_USER);
    }
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let shared = memory();
    let everybody = std::fs::Permissions::from_mode(0o1777);
    std::fs::set_permissions(shared.path(), everybody).expect("set");
    let image = shared.path().join("v.adit");
    std::fs::copy(place.path("v.adit"), &image).expect("copied");
    let writable = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(&image, writable).expect("set");
    let script = "
import errno, os
ours, theirs = os.pipe()
go, done = os.pipe()
if os.fork() == 0:
    os.close(done)
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    file = os.open('/adit/theirs', os.O_RDWR | os.O_CREAT)
    os.write(theirs, b'x')
    os.read(go, 1)
    os._exit(0)
os.close(theirs)
assert os.read(ours, 1) == b'x', 'it has the volume'
try:
    os.open('/adit/roots', os.O_RDWR | os.O_CREAT)
    print('a session')
except OSError as error:
    print(errno.errorcode[error.errno])
os.close(done)
os.wait()
";
    let (image, memory) = (image.to_str().expect("text"), shared.path());
    let memory = memory.to_str().expect("text");
    let words = [
        "run",
        image,
        "--survive-in",
        memory,
        "--reconnect",
        "1",
        "--",
    ];
    let said = place.ok(&[&words[..], &["python3", "-c", script]].concat());
    assert_eq!(said, "EBUSY\n");
}

/// The usual daemon: root opens its files, the first process ends, and another one gives up root.
#[test]
fn a_daemon_that_gives_up_root_has_its_files_after_the_first_process_has_ended() {
    if !is_root() {
        return adit_skip::skip(adit_skip::OTHER_USER);
    }
    need!("python3");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let for_good = "os.setgroups([]); os.setgid(1000); os.setuid(1000)";
    let for_a_while = "os.setegid(1000); os.seteuid(1000)";
    // Before the first process ends, long before, and after.
    for (before, after, becomes) in [
        ("0", "0.5", for_good),
        ("0", "2", for_good),
        ("0.5", "0", for_good),
        ("0", "0.5", for_a_while),
        ("0.5", "0", for_a_while),
    ] {
        let script = format!(
            "import os, sys, time\n\
             fd = os.open('/adit/file', os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)\n\
             gone = os.open('/adit/gone', os.O_RDWR | os.O_CREAT, 0o600)\n\
             os.unlink('/adit/gone')\n\
             os.write(fd, b'root ')\n\
             if os.fork():\n\
             \x20   time.sleep({after})\n\
             \x20   os._exit(0)\n\
             time.sleep({before})\n\
             {becomes}\n\
             sys.stdin.readline()\n\
             os.write(fd, b'daemon')\n\
             assert os.write(gone, b'nameless') == 8 and os.pread(gone, 9, 0) == b'nameless'\n\
             try: os.open('/adit/file', os.O_RDONLY)\n\
             except PermissionError: os.write(fd, b', refused')\n\
             os.fsync(fd)\n\
             print('done', flush=True)\n"
        );
        let words = ["run", "v.adit", "--", "python3", "-c", &script];
        let mut child = start(place.command(&words));
        // Without `wait`, which would close its input.
        until("the first process has ended", || {
            child.try_wait().expect("a child").is_some()
        });
        tell(&mut child, "\n");
        let mut said = String::new();
        let output = child.stdout.as_mut().expect("piped");
        output.read_to_string(&mut said).expect("text");
        assert_eq!(said, "done\n");
        assert_eq!(
            place.ok(&["cat", "v.adit", "/file"]),
            "root daemon, refused"
        );
    }
}
