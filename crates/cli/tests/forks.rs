//! Processes that fork, with a volume in a server: the child has what its parent has open.

mod support;

use adit_skip::skip;
use std::path::Path;
use std::process::{Command, Stdio};
use support::Place;
use support::servers::{Served, Watchdog};

macro_rules! need_library {
    () => {
        let command = Path::new(env!("CARGO_BIN_EXE_adit"));
        if !command.with_file_name("libadit_preload.so").is_file() {
            return skip("libadit_preload.so is not built (cargo build -p adit-preload)");
        }
    };
}

/// Compiles a C program of these tests.
fn compiled(place: &Place, name: &str) -> String {
    let source = format!("{}/tests/programs/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let program = place.path(name);
    let compiled = Command::new("cc")
        .args(["-O2", "-Wall", "-Werror", "-pthread", "-o"])
        .args([program.as_os_str(), source.as_ref()])
        .output()
        .expect("a C compiler");
    let errors = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{errors}");
    program.to_str().expect("text").to_owned()
}

/// Runs a program with the served volume.
fn run(place: &Place, program: &[&str]) -> String {
    place.ok(&[&["run", "unix:s", "--"], program].concat())
}

fn end(place: &Place, served: Served) {
    served.signal(rustix::process::Signal::TERM);
    let (status, errors) = served.end();
    assert!(status.success(), "{errors}");
    place.ok(&["check", "v.adit"]);
}

#[test]
fn forked_processes_act_as_on_linux() {
    need_library!();
    let _watchdog = Watchdog::new();
    for pollers in ["1", "2"] {
        let place = Place::with_volume();
        let served = Served::start(&place, &["--pollers", pollers]);
        let program = compiled(&place, "forks");
        assert_eq!(run(&place, &[&program, "/adit"]), "as on Linux\n");
        end(&place, served);
    }
}

/// The program also runs on the host's own file system, so what it demands is what Linux does.
#[test]
fn the_program_that_forks_demands_what_linux_does() {
    let place = Place::new();
    let program = compiled(&place, "forks");
    std::fs::create_dir(place.path("host")).expect("made");
    let done = Command::new(program)
        .arg(place.path("host"))
        .output()
        .expect("it runs");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "as on Linux\n");
}

/// A server ends between a fork and the child's first call: the next one gives the child its files.
#[test]
fn a_forked_process_goes_on_with_the_next_server() {
    need_library!();
    let _watchdog = Watchdog::new();
    for kill in [true, false] {
        let place = Place::with_volume();
        let served = Served::start(&place, &[]);
        let script = "import os, sys\n\
             fd = os.open('/adit/file', os.O_RDWR | os.O_CREAT | os.O_APPEND)\n\
             os.write(fd, b'parent\\n')\n\
             if os.fork() == 0:\n\
             \x20   sys.stdin.readline()\n\
             \x20   os.write(fd, b'child\\n')\n\
             \x20   os._exit(0)\n\
             print('forked', flush=True)\n\
             status = os.wait()[1]\n\
             os.write(fd, b'end\\n')\n\
             sys.exit(status)\n";
        let mut command = place.command(&["run", "unix:s", "--", "python3", "-c", script]);
        let mut program = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut line = [0; 7];
        let output = program.stdout.as_mut().expect("piped");
        std::io::Read::read_exact(output, &mut line).expect("it has forked");
        match kill {
            true => served.signal(rustix::process::Signal::KILL),
            false => served.signal(rustix::process::Signal::TERM),
        }
        served.end();
        let served = Served::start(&place, &[]);
        let input = program.stdin.as_mut().expect("piped");
        std::io::Write::write_all(input, b"\n").expect("told");
        assert!(program.wait().expect("ended").success());
        let content = place.ok(&["cat", "unix:s", "/file"]);
        assert_eq!(content, "parent\nchild\nend\n");
        end(&place, served);
    }
}
