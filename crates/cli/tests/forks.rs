//! Processes that fork: the child has what its parent has open, in a server, or by `adit run IMAGE`
//! alone.

#[macro_use]
mod support;

use std::process::{Command, Stdio};
use support::Place;
use support::servers::{FOR_ALL, Served, Watchdog};

/// Runs a program with the served volume.
fn run(place: &Place, program: &[&str]) -> String {
    run_on(place, "unix:s", program)
}

fn run_on(place: &Place, volume: &str, program: &[&str]) -> String {
    place.ok(&[&["run", volume, "--"], program].concat())
}

fn end(place: &Place, served: Served) {
    served.signal(rustix::process::Signal::TERM);
    let (status, errors) = served.end();
    assert!(status.success(), "{errors}");
    place.ok(&["check", "v.adit"]);
}

#[test]
fn forked_processes_act_as_on_linux() {
    need!();
    let _watchdog = Watchdog::new();
    for pollers in ["1", "2"] {
        let place = Place::with_volume();
        let served = Served::start(&place, &["--pollers", pollers]);
        let program = place.compiled("forks");
        assert_eq!(run(&place, &[&program, "/adit"]), "as on Linux\n");
        end(&place, served);
    }
}

#[test]
fn forked_processes_of_a_program_that_has_the_volume_itself_act_as_on_linux() {
    need!();
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let program = place.compiled("forks");
    let said = run_on(&place, "v.adit", &[&program, "/adit"]);
    assert_eq!(said, "as on Linux\n");
    place.ok(&["check", "v.adit"]);
}

/// The program also runs on the host's own file system, so what it demands is what Linux does.
#[test]
fn the_program_that_forks_demands_what_linux_does() {
    let place = Place::new();
    let program = place.compiled("forks");
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
    need!("python3");
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
        let mut command = place.command(&[
            "run",
            "unix:s",
            "--reconnect",
            "60",
            "--",
            "python3",
            "-c",
            script,
        ]);
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
        let served = Served::start(&place, &FOR_ALL);
        let input = program.stdin.as_mut().expect("piped");
        std::io::Write::write_all(input, b"\n").expect("told");
        assert!(program.wait().expect("ended").success());
        let content = place.ok(&["cat", "unix:s", "/file"]);
        assert_eq!(content, "parent\nchild\nend\n");
        end(&place, served);
    }
}

#[test]
fn programs_that_start_others_work() {
    need!("rsync" "git" "make" "bash" "dash" "python3" "cc");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    start_others(&place, "unix:s");
    end(&place, served);
}

#[test]
fn programs_that_start_others_work_with_an_image_alone() {
    need!("rsync" "git" "make" "bash" "dash" "python3" "cc");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    start_others(&place, "v.adit");
    place.ok(&["check", "v.adit"]);
}

/// Programs of every day that start others, and hand descriptors to them.
fn start_others(place: &Place, volume: &str) {
    place.write("tree/a/b", support::noise(1, 300_000));
    place.write("tree/c", "text");
    let top = place.path("");
    let top = top.to_str().expect("text");
    let script = format!(
        r#"set -e
        cd /adit
        rsync -a {top}/tree/ copied/
        diff -r {top}/tree copied
        git init -q repository
        mkdir -p repository/.git/hooks
        printf '#!/bin/sh\ngit diff --cached --name-only | wc -l > hooked\n' > hook
        install -m 755 hook repository/.git/hooks/pre-commit
        cp -r copied repository/
        git -C repository add -A
        git -C repository -c user.name=a -c user.email=b commit -qm first
        [ $(cat repository/hooked) = 2 ]
        git clone -q repository clone
        diff -r copied clone/copied
        git -C clone gc -q
        git -C clone fsck
        mkdir made
        printf 'all: a b c d\na b c d:\n\techo $@ > $@; echo made $@\n' > made/Makefile
        make -s -C made -j4 > log
        [ "$(sort log | tr '\n' ' ')" = "made a made b made c made d " ]
        [ "$(cat made/a made/d | tr '\n' ' ')" = "a d " ]
        printf 'int puts(const char *);\nint main() {{ return puts("compiled") < 0; }}\n' > h.c
        cc -o h h.c
        cp h {top}/h
        {top}/h > said
        [ "$(cat < said)" = compiled ]
        for shell in bash dash; do
            $shell -c 'seq 5 > numbers; sort -r numbers | tee reversed | head -1 > first
                (echo sub; echo shell) > both; exec 3>> both; echo three >&3; ls both >&3; exec 3>&-
                while read line; do echo "[$line]"; done < both > bracketed'
            [ "$(cat first) $(cat bracketed | tr '\n' ' ')" = "5 [sub] [shell] [three] [both] " ]
        done
        "#
    );
    run_on(place, volume, &["bash", "-c", &script]);
    let script = r"
import multiprocessing, subprocess
with open('/adit/output', 'w') as file:
    subprocess.check_call(['sh', '-c', 'echo one; echo two >&2'], stdout=file, stderr=subprocess.STDOUT)
    subprocess.check_call(['ls', '/adit/output'], stdout=file, close_fds=False)
with open('/adit/output') as file:
    counted = subprocess.check_output(['wc', '-l'], stdin=file)
assert open('/adit/output').read().split() == ['one', 'two', '/adit/output']
assert counted.split() == [b'3'], counted
def work(number):
    with open('/adit/lines', 'a') as file:
        file.write('%d\n' % number)
    return number
with multiprocessing.Pool(4) as pool:
    assert sum(pool.map(work, range(100))) == 4950
assert len(open('/adit/lines').readlines()) == 100
";
    run_on(place, volume, &["python3", "-c", script]);
}

/// What a program is told lies at numbers that few processes may not have, and its number may be
/// something else's after a program that hands on the environment without this library.
#[test]
fn programs_have_files_with_few_numbers_and_take_nothing_that_was_not_left_to_them() {
    need!();
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    let script = "ulimit -n 64; /bin/echo few > /adit/few; read word < /adit/few; echo $word";
    assert_eq!(run(&place, &["bash", "-c", script]), "few\n");
    std::fs::write(place.path("input"), "input\n").expect("written");
    let mut command = place.command(&["run", "unix:s", "--", "sh", "-c", "read a; echo $a"]);
    let input = std::fs::File::open(place.path("input")).expect("opened");
    let done = command.env("ADIT_RUN_INHERIT", "0").stdin(input).output();
    let done = done.expect("it runs");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "input\n");
    end(&place, served);
}
