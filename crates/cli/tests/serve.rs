//! `adit serve`, and every command on a volume in it. (`served` runs their own tests so.)

mod support;

use rustix::process::Signal;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use support::servers::{Served, until};
use support::{Place, noise};

/// A server of `v.adit` at the socket `s`; told to end, it must do so well.
struct Serving(Option<Child>);

impl Serving {
    fn start(place: &Place) -> Serving {
        let mut child = place
            .command(&["serve", "v.adit", "--socket", "s"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut line = String::new();
        let read = BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line);
        assert!(read.is_ok());
        assert_eq!(line, "serving v.adit at s\n");
        Serving(Some(child))
    }

    fn end(mut self) {
        let mut child = self.0.take().expect("once");
        // SAFETY: plain system call on a child of ours that nobody has waited for.
        unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
        assert!(child.wait().expect("ended").success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// As `adit compare` has it measured: by processes that begin together, on files of their own.
#[test]
fn clients_measure_together() {
    let place = Place::with_volume();
    let serving = Serving::start(&place);
    let host = place.path("host");
    std::fs::create_dir(&host).expect("made");
    for (system, at) in [("\"served\"", "unix:s"), ("{\"kernel\":\"tmp\"}", "host")] {
        let operations = ["AppendSync", "CachedRead", "Names"];
        let jobs = operations.map(|of| {
            format!("{{\"Threads\":{{\"of\":\"{of}\",\"shared\":false,\"threads\":3}}}}")
        });
        let assignment = format!(
            "{{\"system\":{system},\"place\":\"{at}\",\"jobs\":[{}],\"round\":0,\"role\":\"Clients\",\
             \"shape\":{{\"slice\":{{\"secs\":0,\"nanos\":3000000}},\"names\":1000,\"direct_bytes\":1048576,\
             \"scan_bytes\":1048576,\"cache_bytes\":16777216}}}}\n",
            jobs.join(",")
        );
        place.write("assignment", assignment);
        let input = std::fs::File::open(place.path("assignment")).expect("there");
        let output = place.command(&["measure"]).stdin(input).output();
        let output = output.expect("it runs");
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words}");
        let measured: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let rows = measured["rows"].as_array().expect("rows");
        let ids: Vec<&str> = rows.iter().filter_map(|row| row["id"].as_str()).collect();
        let threads = [
            "append-sync",
            "cached-read",
            "create",
            "stat",
            "rename",
            "unlink",
        ];
        assert_eq!(ids, threads.map(|id| format!("threads-{id}")));
        for row in rows {
            assert!(row["operations"].as_u64() > Some(0), "{row}");
            assert_eq!(
                (&row["threads"], &row["at"]),
                (&3.into(), &3.into()),
                "{row}"
            );
            let share = row["least_share"].as_f64().expect("a share");
            assert!((0.0..=1.0).contains(&share), "{row}");
        }
    }
    assert_eq!(std::fs::read_dir(&host).expect("there").count(), 0);
    assert_eq!(place.ok(&["ls", "unix:s"]), "");
    serving.end();
}

#[test]
fn commands_change_and_look_at_a_volume_in_a_server() {
    let place = Place::with_volume();
    let serving = Serving::start(&place);
    place.write("large", noise(1, 5 << 20));
    place.ok(&["mkdir", "unix:s", "/d"]);
    place.ok(&["put", "unix:s", "large", "/d"]);
    place.ok(&["ln", "unix:s", "/d/large", "/other"]);
    place.ok(&["mv", "unix:s", "/other", "/d/moved"]);
    assert_eq!(place.ok(&["ls", "unix:s,v.adit", "/d"]), "large\nmoved\n");
    place.ok(&["rm", "unix:s", "/d/moved"]);
    place.ok(&["get", "unix:s", "/d/large", "back"]);
    let read = |name| std::fs::read(place.path(name)).expect("read");
    assert!(read("back") == read("large"));
    assert!(place.ok(&["du", "unix:s", "/"]).contains("5 MiB"));
    assert!(place.ok(&["df", "unix:s"]).contains("unix:s"));
    assert!(place.ok(&["info", "unix:s"]).contains("128 MiB"));
    place.ok(&["grow", "unix:s", "256M"]);
    assert!(place.ok(&["info", "unix:s"]).contains("256 MiB"));
    assert!(place.ok(&["check", "unix:s"]).contains("clean"));
    assert!(place.ok(&["scrub", "unix:s"]).contains("clean"));
    assert!(place.ok(&["stat", "unix:s", "/d/large"]).contains("5 MiB"));

    // The open files of all sessions.
    let session = adit::Volume::open(&format!("unix:{}", place.path("s").display()));
    let session = session.expect("connected");
    let file = session.open_file("/d/large", adit::OpenOptions::new().read(true));
    let open = place.ok(&["lsof", "--paths", "unix:s"]);
    assert!(open.contains("/d/large"), "{open}");
    drop(file);
    drop(session);

    // Only the process that has the volume itself can do these.
    for refused in [
        &["check", "--repair", "--yes", "unix:s"][..],
        &["mkfs", "unix:s", "--size", "64M"],
        &["serve", "unix:s", "--socket", "t"],
        &["mount", "unix:s", "d"],
    ] {
        std::fs::create_dir_all(place.path("d")).expect("made");
        let errors = place.fails(1, refused);
        assert!(errors.contains("through a server"), "{refused:?}: {errors}");
    }
    let errors = place.fails(1, &["serve", "v.adit", "--socket", "t"]);
    assert!(errors.contains("EBUSY"), "{errors}");
    serving.end();
    let errors = place.fails(1, &["ls", "unix:s"]);
    assert!(
        errors.contains("open unix:s: there is no socket"),
        "{errors}"
    );
    assert_eq!(place.ok(&["ls", "v.adit", "/d"]), "large\n");
    assert!(place.ok(&["check", "v.adit"]).contains("clean"));
}

/// Two programs lost each other's commits silently: the index of a write-ahead log was memory of
/// each process. Now one process at a time has it; with a rollback journal there is no such limit.
#[test]
fn an_operator_sees_sessions_and_moves_them() {
    let place = Place::with_volume();
    let mut child = place
        .command(&["serve", "v.adit", "--socket", "s", "--pollers", "2"])
        .env("RUST_LOG", "adit_server=debug")
        .stdout(Stdio::piped())
        .stderr(File::create(place.path("log")).expect("created"))
        .spawn()
        .expect("it runs");
    let mut line = String::new();
    let read = BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line);
    assert!(read.is_ok());
    let pid = child.id();
    let serving = Serving(Some(child));
    let address = format!("unix:{}", place.path("s").display());
    let volume = adit::Volume::open(&address).expect("connected");
    volume.write("/f", "x").expect("written");
    let open = volume.open_file("/f", adit::OpenOptions::new().read(true));
    let shown = |arguments: &[&str]| -> serde_json::Value {
        let all = [&["ctl", "unix:s", "--json"], arguments].concat();
        serde_json::from_str(&place.ok(&all)).expect("JSON")
    };
    let state = shown(&[]);
    assert_eq!(state["pid"], pid);
    assert_eq!(state["pollers"], 2);
    let [session] = &state["sessions"].as_array().expect("a list")[..] else {
        panic!("one session, and not the command's: {state}");
    };
    assert_eq!(session["pid"], std::process::id());
    assert_eq!(session["volume"], "v.adit");
    assert_eq!(session["files"], 1);
    assert!(session["messages"].as_u64().expect("a number") >= 3);
    let number = session["session"].to_string();
    // The policy may move an idle session back at once, so where it is tells nothing.
    let told = format!("moved (session={number}, poller=1)");
    until("the session is at the other poller", || {
        place.ok(&["ctl", "unix:s", "--move", &number, "1"]);
        let log = std::fs::read_to_string(place.path("log")).expect("read");
        log.contains(&told)
    });
    let text = place.ok(&["ctl", "unix:s"]);
    assert!(text.contains(" of 2 pollers work\n") && text.contains("MESSAGES VOLUME\n"));
    let refused = |arguments: &[&str], words: &str| {
        let output = place.run(&[&["ctl"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(words), "{said}");
    };
    refused(&["unix:s", "--move", &number, "2"], "poller 2 of 2");
    refused(
        &["unix:s", "--move", "99999", "0"],
        "session 99999: there is no such session",
    );
    drop((open, volume));
    serving.end();
    refused(&["v.adit"], "the volume is in this process");
}

#[test]
fn two_programs_never_lose_commits_of_one_database() {
    const PROGRAM: &str = "
import sqlite3, sys
mode, me, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
base = sqlite3.connect('/adit/' + mode + '.db', timeout=60, isolation_level=None)
base.execute('pragma journal_mode=' + mode)
base.execute('create table if not exists t(a)')
done = 0
try:
    for row in range(rows):
        base.execute('insert into t values(?)', (me,))
        done += 1
finally:
    print(done, flush=True)
    sys.stdin.read()  # keeps the database open
";
    if std::process::Command::new("python3")
        .arg("--version")
        .output()
        .is_err()
    {
        return adit_skip::skip("python3 is not installed (apt install python3)");
    }
    let place = Place::with_volume();
    let serving = Serving::start(&place);
    let start = |mode: &str, me: &str| {
        let arguments = [
            "run", "unix:s", "--", "python3", "-c", PROGRAM, mode, me, "100",
        ];
        let mut child = place
            .command(&arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        (child, out)
    };
    let committed = |out: &mut dyn BufRead| -> u64 {
        let mut line = String::new();
        out.read_line(&mut line).expect("read");
        line.trim().parse().unwrap_or(0)
    };
    for mode in ["wal", "delete"] {
        let (first, mut first_out) = start(mode, "1");
        // It has the database open until its input ends.
        let by_first = committed(&mut first_out);
        let (second, mut second_out) = start(mode, "2");
        let by_second = committed(&mut second_out);
        let first = first.wait_with_output().expect("ended");
        let second = second.wait_with_output().expect("ended");
        assert!(first.status.success(), "{first:?}");
        assert!(second.status.success(), "{second:?}");
        assert_eq!((by_first, by_second), (100, 100), "{mode}");
        let count = format!(
            "import sqlite3; b = sqlite3.connect('/adit/{mode}.db'); \
             print(b.execute('select count(*) from t').fetchone()[0], \
             b.execute('pragma integrity_check').fetchone()[0])"
        );
        let there = place.ok(&["run", "unix:s", "--", "python3", "-c", &count]);
        assert_eq!(there, format!("{} ok\n", by_first + by_second), "{mode}");
    }
    serving.end();
}

/// Processor time of a process, in nanoseconds; with that of threads that have ended.
fn processor_time(pid: u32) -> u64 {
    let (mut clock, mut time) = (
        0,
        libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        },
    );
    // SAFETY: both write to places of ours.
    let failed = unsafe {
        libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) != 0
            || libc::clock_gettime(clock, &mut time) != 0
    };
    assert!(!failed, "it lives");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A server whose sessions do nothing sleeps: in a second it takes less than a hundredth of a core.
#[test]
fn a_server_whose_sessions_do_nothing_takes_no_processor() {
    let place = Place::with_volume();
    let serving = Serving::start(&place);
    let pid = serving.0.as_ref().expect("it serves").id();
    let session = adit::Volume::open(&format!("unix:{}", place.path("s").display()));
    let session = session.expect("opened");
    session.write("/a", b"content").expect("written");
    session.sync().expect("synced");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(240);
    // The server first finishes the write, which takes longer on a busy machine.
    loop {
        let before = processor_time(pid);
        std::thread::sleep(std::time::Duration::from_secs(1));
        let taken = processor_time(pid) - before;
        if taken < 10_000_000 {
            break;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "{taken} ns in a second"
        );
    }
    assert_eq!(session.read("/a").expect("read"), b"content");
    session.close().expect("closed");
    serving.end();
}

/// It failed at its end with what it had not been able to say at its begin.
#[test]
fn a_server_that_cannot_say_that_it_serves_ends_well() {
    let place = Place::with_volume();
    let full = std::fs::File::options().write(true).open("/dev/full");
    let mut command = place.command(&["serve", "v.adit", "--socket", "s"]);
    command.stdout(full.expect("opened")).stderr(Stdio::piped());
    let child = command.spawn().expect("it runs");
    let server = Served { child };
    let address = format!("unix:{}", place.path("s").display());
    until("a session begins", || adit::Volume::open(&address).is_ok());
    server.signal(Signal::TERM);
    let (status, errors) = server.end();
    assert!(status.success(), "{errors}");
    assert!(errors.contains("standard output can't be told"), "{errors}");
}

#[test]
fn options_with_which_nobody_could_be_served_are_refused() {
    let place = Place::with_volume();
    let serve = ["serve", "v.adit", "--socket", "s"];
    for (more, wanted) in [
        (["--sessions-max", "0"], "at least one"),
        (["a,b=w.adit", "-v"], "after a comma"),
        (["=w.adit", "-v"], "after a comma"),
    ] {
        let errors = place.fails(1, &[&serve[..], &more].concat());
        assert!(errors.contains(wanted), "{errors}");
    }
}

/// The nice values of a process's threads.
fn priorities(pid: u32) -> Vec<i32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
    let priority = |thread: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(thread.ok()?.path().join("stat")).ok()?;
        // After the name, which ends with the last parenthesis, the 17th.
        let (_, fields) = stat.rsplit_once(')')?;
        fields.split_whitespace().nth(16)?.parse().ok()
    };
    threads.filter_map(priority).collect()
}

/// Clients that outnumber cores would delay it else. Of all threads: the pollers wait for the
/// others.
#[test]
fn a_server_has_the_highest_priority_that_it_may_have() {
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        return adit_skip::skip("raising a priority takes root");
    }
    let place = Place::with_volume();
    let serve = ["serve", "v.adit", "--socket", "s", "--nice=7"];
    for (arguments, expected) in [(&serve[..4], -20), (&serve[..], 7)] {
        let served = Served::start_command(place.command(arguments));
        let session = adit::Volume::open(&format!("unix:{}", place.path("s").display()));
        session
            .expect("opened")
            .write("/a", b"content")
            .expect("written");
        let found = priorities(served.child.id());
        assert!(
            found.len() > 2 && found.iter().all(|nice| *nice == expected),
            "{found:?}"
        );
        served.signal(rustix::process::Signal::TERM);
        assert!(served.end().0.success());
    }
    // With a session of its own, that of its group, where the kernel has groups.
    let mut own = place.command(&serve[..4]);
    // SAFETY: one system call between fork and exec.
    unsafe { own.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
    let served = Served::start_command(own);
    let group = format!("/proc/{}/autogroup", served.child.id());
    if let Ok(group) = std::fs::read_to_string(group) {
        assert!(group.ends_with("nice -20\n"), "{group}");
    }
    served.signal(rustix::process::Signal::TERM);
    assert!(served.end().0.success());
    for path in [place.path("."), place.path("v.adit")] {
        std::os::unix::fs::chown(path, Some(NOBODY), None).expect("given away");
    }
    let as_nobody = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        command.uid(NOBODY);
        command
    };
    let served = Served::start_command(as_nobody(&[&serve[..4], &["-v"]].concat()));
    let found = priorities(served.child.id());
    served.signal(rustix::process::Signal::TERM);
    let (status, told) = served.end();
    assert!(
        status.success() && found.iter().all(|nice| *nice >= 0),
        "{found:?}"
    );
    assert!(told.contains("priority stays"), "{told}");
    let refused = place.end(as_nobody(&[&serve[..4], &["--nice=-3"]].concat()));
    let told = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{told}");
    assert!(
        told.contains("CAP_SYS_NICE") && told.contains("-3"),
        "{told}"
    );
}
