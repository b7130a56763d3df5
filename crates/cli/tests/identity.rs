//! Programs that become other users, under `adit run`: what they may do, and whose is what they
//! make, is as on Linux. One that has given up root has nothing of root's left.

#[macro_use]
mod support;

use rustix::process::Signal;
use std::process::Command;
use support::servers::{Served, Watchdog};
use support::{Place, assert_clean, is_root};

const SECRET: &str = "THE SECRET THAT ONLY ROOT HAS READ";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What the program prints, on its two outputs.
fn run(place: &Place, volume: &str, program: &[&str]) -> (String, String) {
    let output = place.end(place.command(&[&["run", volume, "--"], program].concat()));
    let said = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said:?}");
    said
}

fn end(place: &Place, served: Served) {
    served.signal(Signal::TERM);
    let (status, errors) = served.end();
    assert!(status.success(), "{errors}");
    assert_clean(place);
}

fn on_host(place: &Place, program: &str) -> String {
    let top = place.path("host");
    std::fs::create_dir(&top).expect("made");
    let done = Command::new(program).arg("all").arg(&top).output();
    text(&done.expect("it runs").stdout)
}

/// A directory that all users may enter, with a volume that root serves.
macro_rules! place_of_root {
    () => {{
        if !is_root() {
            return adit_skip::skip(adit_skip::OTHER_USER);
        }
        need!("cc");
        let place = Place::with_volume();
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(place.path(""), everybody).expect("changed");
        place
    }};
}

/// A forked child that did setuid got EPERM for every path; after seteuid new files belonged to the
/// old user, and root's files could still be opened.
#[test]
fn a_program_of_a_served_volume_has_the_rights_of_the_users_that_it_becomes() {
    let place = place_of_root!();
    let _watchdog = Watchdog::new();
    let program = place.compiled("users");
    let host = on_host(&place, &program);
    assert!(host.contains("the range is locked\n"), "{host}");
    let served = Served::start(&place, &["--mode", "0666"]);
    let (said, errors) = run(&place, "unix:s", &[&program, "all", "/adit"]);
    for (here, there) in said.lines().zip(host.lines()) {
        assert_eq!(here, there, "in the volume, on the host; all:\n{said}");
    }
    assert_eq!(said, host);
    assert_eq!(errors, "");
    end(&place, served);
}

/// A daemon that gave up root had root's session, with all of the server's cache, mapped.
#[test]
fn a_process_that_gave_up_root_has_no_memory_of_what_root_reads() {
    let place = place_of_root!();
    let _watchdog = Watchdog::new();
    let program = place.compiled("users");
    let served = Served::start(&place, &["--mode", "0666"]);
    place.write("secret", SECRET.repeat(100));
    place.ok(&["put", "unix:s", "secret", "/secret"]);
    place.ok(&["chmod", "unix:s", "0600", "/secret"]);
    place.ok(&["mkdir", "unix:s", "/open"]);
    place.ok(&["cat", "unix:s", "/secret"]);
    let (said, errors) = run(&place, "unix:s", &[&program, "drop", "/adit"]);
    assert_eq!(
        said,
        "before: in memory\n\
         setgid: ok\n\
         setuid: ok\n\
         the thread failed: no\n\
         after: nowhere\n\
         opens the secret: Permission denied\n\
         its own file: 4 bytes, mine\n\
         writes to it: ok\n"
    );
    assert_eq!(errors, "");
    assert_eq!(place.ok(&["cat", "unix:s", "/own"]), "more");
    end(&place, served);
}

/// A thread that was about to begin the child's session began it as root, after the child had found
/// that it has none to give up: most of such children kept root's session for good.
#[test]
fn no_thread_begins_a_session_of_roots_while_its_process_gives_up_root() {
    let place = place_of_root!();
    let _watchdog = Watchdog::new();
    let program = place.compiled("users");
    let served = Served::start(&place, &["--mode", "0666"]);
    place.write("secret", SECRET);
    place.ok(&["put", "unix:s", "secret", "/secret"]);
    place.ok(&["chmod", "unix:s", "0600", "/secret"]);
    let (said, errors) = run(&place, "unix:s", &[&program, "race", "/adit"]);
    assert_eq!(said, "0 opened the secret, 0 failed\n", "{errors}");
    end(&place, served);
}

/// The new user may not connect: the process must not go on with root's session.
#[test]
fn root_is_not_given_up_if_the_new_user_has_no_session() {
    let place = place_of_root!();
    let _watchdog = Watchdog::new();
    let program = place.compiled("users");
    let served = Served::start(&place, &[]);
    let (said, errors) = run(&place, "unix:s", &[&program, "refused", "/adit"]);
    assert_eq!(
        said,
        "opens: ok\n\
         setuid: -1, Resource temporarily unavailable; user 0\n\
         writes: ok\n\
         opens once more: ok\n\
         for a while: ok\n\
         opens root's: Permission denied\n\
         root again: ok\n\
         opens root's: ok\n"
    );
    assert!(errors.contains("can't become user 1000"), "{errors}");
    end(&place, served);
}

/// A session of root's goes on with the next server as root's, whatever user the process is then.
#[test]
fn a_process_that_is_another_user_for_a_while_goes_on_with_the_next_server() {
    let place = place_of_root!();
    need!("python3");
    let _watchdog = Watchdog::new();
    for signal in [Signal::KILL, Signal::TERM] {
        let served = Served::start(&place, &[]);
        let script = "import os, sys\n\
             fd = os.open('/adit/file', os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)\n\
             os.write(fd, b'before ')\n\
             os.seteuid(1000)\n\
             print('=', flush=True)\n\
             sys.stdin.readline()\n\
             os.write(fd, b'after ')\n\
             try: os.open('/adit/file', os.O_RDONLY)\n\
             except PermissionError: os.write(fd, b'refused ')\n\
             os.seteuid(0)\n\
             os.close(os.open('/adit/file', os.O_RDONLY))\n\
             os.write(fd, b'root')\n";
        let words = ["run", "unix:s", "--reconnect", "60", "--", "python3", "-c"];
        let mut command = place.command(&[&words[..], &[script]].concat());
        let piped = std::process::Stdio::piped;
        let mut program = (command.stdin(piped()).stdout(piped()).spawn()).expect("it runs");
        let mut line = [0; 2];
        let output = program.stdout.as_mut().expect("piped");
        std::io::Read::read_exact(output, &mut line).expect("it is another user");
        served.signal(signal);
        served.end();
        let served = Served::start(&place, &[]);
        let input = program.stdin.as_mut().expect("piped");
        std::io::Write::write_all(input, b"\n").expect("told");
        assert!(program.wait().expect("ended").success());
        let content = place.ok(&["cat", "unix:s", "/file"]);
        assert_eq!(content, "before after refused root");
        end(&place, served);
    }
}

/// Permission bits bind nobody who has the device, but new files are the user's. A daemon that gave
/// up root ended with an error, since it may not delete root's memory.
#[test]
fn a_program_with_an_embedded_volume_makes_files_as_the_user_that_it_is() {
    let place = place_of_root!();
    need!("python3");
    let script = "import os\n\
         owner = lambda path: print(os.stat(path).st_uid, os.stat(path).st_gid)\n\
         def make(path):\n\
         \x20   open(path, 'w').close()\n\
         \x20   owner(path)\n\
         make('/adit/root')\n\
         os.setegid(1001); os.seteuid(1000); make('/adit/effective')\n\
         os.seteuid(0); os.setegid(0); make('/adit/again')\n\
         os.setgid(1003); os.setuid(1002); make('/adit/for-good')\n\
         os.mkdir('/adit/directory'); owner('/adit/directory')\n\
         print(open('/adit/root', 'w').write('permission bits bind nobody'))\n";
    let (said, errors) = run(&place, "v.adit", &["python3", "-c", script]);
    assert_eq!(said, "0 0\n1000 1001\n0 0\n1002 1003\n1002 1003\n27\n");
    assert_eq!(errors, "");
    // What is left of root's memory is in nobody's way.
    assert_eq!(
        place.ok(&["cat", "v.adit", "/root"]),
        "permission bits bind nobody"
    );
    place.write("text", "text");
    place.ok(&["put", "v.adit", "text", "/"]);
    assert_clean(&place);
}

/// The next server opens a file again for the user of its token alone, and that was root's: a daemon
/// that gave up root lost its log and its database when its server was replaced.
#[test]
fn what_root_opened_stays_open_after_root_is_given_up_and_the_server_replaced() {
    let place = place_of_root!();
    need!("python3");
    let _watchdog = Watchdog::new();
    let itself = "os.setgid(1000); os.setuid(1000)";
    // It has not asked for what its parent left.
    let child = "if os.fork(): os._exit(os.wait()[1] != 0)\n\
                 os.setgid(1000); os.setuid(1000)";
    // Its parent has become another user before.
    let grandchild = "os.setegid(1000); os.seteuid(1000); os.seteuid(0)\n\
                      if os.fork(): os._exit(os.wait()[1] != 0)\n\
                      os.setresuid(1000, 1000, 1000)\n\
                      if os.fork(): os._exit(os.wait()[1] != 0)";
    for becomes in [itself, child, grandchild] {
        for signal in [Signal::KILL, Signal::TERM] {
            let served = Served::start(&place, &["--mode", "0666"]);
            let script = format!(
                "import fcntl, os, sys\n\
                 fd = os.open('/adit/file', os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)\n\
                 log = os.open('/adit/log', os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)\n\
                 os.write(fd, b'before ')\n\
                 print('=', flush=True)\n\
                 sys.stdin.readline()\n\
                 {becomes}\n\
                 assert os.geteuid() == 1000\n\
                 fcntl.flock(log, fcntl.LOCK_EX)\n\
                 print('=', flush=True)\n\
                 sys.stdin.readline()\n\
                 os.write(fd, b'after')\n\
                 os.write(log, b'logged')\n\
                 try: os.open('/adit/file', os.O_RDONLY)\n\
                 except PermissionError: os.write(log, b', refused')\n"
            );
            let words = ["run", "unix:s", "--reconnect", "60", "--", "python3", "-c"];
            let mut command = place.command(&[&words[..], &[&script]].concat());
            let piped = std::process::Stdio::piped;
            let mut program = (command.stdin(piped()).stdout(piped()).spawn()).expect("it runs");
            let mut served = served;
            // Before it gives up root, and after.
            for _ in 0..2 {
                let mut line = [0; 2];
                let output = program.stdout.as_mut().expect("piped");
                std::io::Read::read_exact(output, &mut line).expect("a line");
                served.signal(signal);
                served.end();
                served = Served::start(&place, &["--mode", "0666"]);
                let input = program.stdin.as_mut().expect("piped");
                std::io::Write::write_all(input, b"\n").expect("told");
            }
            assert!(program.wait().expect("ended").success(), "{becomes}");
            let content = place.ok(&["cat", "unix:s", "/file"]);
            assert_eq!(content, "before after", "{becomes}");
            let content = place.ok(&["cat", "unix:s", "/log"]);
            assert_eq!(content, "logged, refused", "{becomes}");
            end(&place, served);
        }
    }
}
