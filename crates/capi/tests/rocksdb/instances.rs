//! One database in several processes: RocksDB's secondary and read-only instances, over a socket.

use crate::support::*;
use crate::{built, fails_with_words, with_plugin};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// A process, and the lines that it says.
pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    fn start(command: &mut Command) -> Process {
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.expect("the program was built");
        let output = child.stdout.take().expect("it is piped");
        let (send, lines) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines();
            lines
                .map_while(Result::ok)
                .try_for_each(|line| send.send(line))
        });
        Process { child, lines }
    }

    fn line(&self, when: &str) -> String {
        let line = self.lines.recv_timeout(HANGS_AFTER);
        line.unwrap_or_else(|error| panic!("{when}: {error}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `adit serve`. Dropped, it is killed.
pub(crate) fn serve(image: &Path, socket: &Path) -> Process {
    let adit = library("libadit.a").with_file_name("adit");
    let mut command = Command::new(adit);
    command.arg("serve").arg(image).arg("--socket").arg(socket);
    // Sessions come back from the last server, however late the machine lets them.
    let process = Process::start(command.args(["--grace", "60"]));
    assert!(process.line("a server starts").starts_with("serving "));
    process
}

/// An instance of the database, in a process of its own.
struct Instance {
    kind: &'static str,
    process: Process,
}

impl Instance {
    fn command(kind: &str, address: &str, direct: bool) -> Command {
        let mut command = with_plugin(built().join("instances_test"));
        command.args([kind, address]);
        command.args(direct.then_some("direct"));
        command
    }

    fn open(kind: &'static str, address: &str, direct: bool) -> Instance {
        let process = Process::start(&mut Instance::command(kind, address, direct));
        let instance = Instance { kind, process };
        instance.is_done("open");
        instance
    }

    fn begin(&mut self, command: &str) {
        let input = self.process.child.stdin.as_mut().expect("it is piped");
        writeln!(input, "{command}").expect("it reads");
    }

    fn is_done(&self, command: &str) {
        let when = format!("{}: {command}", self.kind);
        assert_eq!(self.process.line(&when), "done", "{when}");
    }

    fn does(&mut self, commands: &[&str]) {
        for command in commands {
            self.begin(command);
            self.is_done(command);
        }
    }

    fn ends(mut self) {
        drop(self.process.child.stdin.take());
        let status = self.process.child.wait().expect("it is our child");
        assert!(status.success(), "{}: {status}", self.kind);
    }
}

/// A volume for a server, and the path of its socket, which has at most 107 bytes.
pub(crate) fn place() -> (tempfile::TempDir, PathBuf, tempfile::TempDir, PathBuf) {
    let (folder, sockets) = (scratch(), tempfile::tempdir().expect("a directory"));
    let (image, socket) = (folder.path().join("r.adit"), sockets.path().join("s"));
    mkfs(&image, 1 << 30);
    (folder, image, sockets, socket)
}

/// No test had several processes on one database: readers keep the tables that the writer deletes,
/// and see what it has written since.
fn instances_of_one_database(direct: bool) {
    let (_folder, image, _sockets, socket) = place();
    let server = serve(&image, &socket);
    let address = format!("unix:{}", socket.display());
    let open = |kind| Instance::open(kind, &address, direct);

    let mut primary = open("primary");
    primary.does(&["put 0 3000 1", "verify 0 3000 1"]);
    let (_, words) = fails_with_words(&mut Instance::command("primary", &address, direct));
    assert!(words.contains("already open"), "{words}");

    // A part of the keys is in tables, the others are in the log alone.
    let (mut secondary, mut reader) = (open("secondary"), open("read-only"));
    for instance in [&mut secondary, &mut reader] {
        instance.does(&[
            "verify 0 3000 1",
            "count 3000",
            "checksums",
            "refused",
            "hold",
        ]);
    }

    primary.does(&["put 0 3000 2", "put 3000 4000 2", "delete 0 100"]);
    secondary.does(&["verify 0 3000 1", "catch-up", "verify 100 4000 2"]);
    secondary.does(&["absent 0 100", "count 3900"]);
    reader.does(&["verify 0 3000 1", "absent 3000 4000"]);

    // Afterwards none of the tables is there any more that the others had opened.
    primary.does(&["flush", "compact", "count 3900"]);
    for instance in [&mut secondary, &mut reader] {
        instance.does(&["held 0 3000 1"]);
    }
    secondary.does(&["verify 100 4000 2", "count 3900"]);
    secondary.does(&[
        "catch-up",
        "absent 0 100",
        "verify 100 4000 2",
        "count 3900",
    ]);
    reader.does(&["verify 0 3000 1", "count 3000"]);

    // While the primary writes, flushes and compacts.
    primary.begin("put 0 20000 3");
    for _ in 0..10 {
        secondary.does(&["catch-up"]);
    }
    primary.is_done("put 0 20000 3");
    // The secondary may have caught up ten times before the first of these writes. Then its memtable
    // still has keys as deleted, and hides their values in tables. RocksDB 7.8 replaces the memtable
    // only when a log has something new, on any file system.
    primary.does(&["compact", "put 0 1 3"]);
    secondary.does(&["catch-up", "verify 0 20000 3", "count 20000", "checksums"]);

    // All of them go on with the next server.
    drop(server);
    let server = serve(&image, &socket);
    primary.does(&["put 0 1000 4", "flush", "put 1000 2000 4"]);
    secondary.does(&["catch-up", "verify 0 2000 4", "verify 2000 20000 3"]);
    reader.does(&["verify 0 3000 1", "count 3000"]);
    reader.ends();
    let mut reader = open("read-only");
    reader.does(&[
        "verify 0 2000 4",
        "verify 2000 20000 3",
        "count 20000",
        "checksums",
    ]);

    // The primary's place is free again once it has gone.
    drop(primary);
    let mut primary = open("primary");
    primary.does(&[
        "verify 0 2000 4",
        "verify 2000 20000 3",
        "delete 2000 20000",
    ]);
    primary.does(&["compact", "put 2000 2001 5"]);
    secondary.does(&[
        "catch-up",
        "verify 0 2000 4",
        "verify 2000 2001 5",
        "count 2001",
    ]);
    for instance in [primary, secondary, reader] {
        instance.ends();
    }
    check(Path::new(&address), "while it is served");
    drop(server);

    let mut alone = Instance::open("read-only", text(&image), direct);
    alone.does(&[
        "verify 0 2000 4",
        "verify 2000 2001 5",
        "count 2001",
        "checksums",
    ]);
    alone.ends();
    check(&image, "at the end");
}

#[test]
fn secondary_and_read_only_instances_follow_a_primary_in_another_process() {
    need!();
    instances_of_one_database(false);
}

#[test]
fn so_do_instances_with_direct_io() {
    need!();
    instances_of_one_database(true);
}

/// The process of the primary has the volume itself, and shares it.
#[test]
fn instances_follow_a_primary_that_shares_its_volume() {
    need!();
    let (_folder, image, _sockets, socket) = place();
    let mut command = Instance::command("primary", text(&image), false);
    let process = Process::start(command.env("ADIT_SHARE", &socket));
    let kind = "primary that shares";
    let mut primary = Instance { kind, process };
    primary.is_done("open");
    primary.does(&["put 0 3000 1"]);
    let address = format!("unix:{}", socket.display());
    let open = |kind| Instance::open(kind, &address, false);
    let (mut secondary, mut reader) = (open("secondary"), open("read-only"));
    for instance in [&mut secondary, &mut reader] {
        instance.does(&["verify 0 3000 1", "count 3000", "hold"]);
    }
    primary.does(&["put 0 3000 2", "compact", "put 3000 4000 2"]);
    for instance in [&mut secondary, &mut reader] {
        instance.does(&["held 0 3000 1"]);
    }
    secondary.does(&["catch-up", "verify 0 4000 2", "count 4000"]);
    reader.ends();
    secondary.ends();
    primary.ends();
    run(with_plugin("ldb").args([
        &format!("--fs_uri=adit://{}", image.display()),
        "--db=/db",
        "checkconsistency",
    ]));
    check(&image, "at the end");
}
