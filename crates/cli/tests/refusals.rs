//! What is refused, by words that name the way out; and the way, followed.

#[macro_use]
mod support;

use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use support::servers::Served;
use support::{Place, USER, is_root};

fn ended(served: Served) -> String {
    served.signal(Signal::TERM);
    let (status, messages) = served.end();
    assert!(status.success(), "{messages}");
    messages
}

/// The refusal named the process, and neither that it is a server nor where its socket is.
#[test]
fn a_volume_in_use_is_refused_with_the_socket_of_its_server() {
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    let address = format!("unix:{}", place.path("s").display());
    let open = format!("it serves the volume: open {address}:");
    for command in [&["mkdir", "v.adit", "/d"][..], &["check", "v.adit"]] {
        let errors = place.fails(1, command);
        assert!(errors.contains(&open), "{command:?}: {errors}");
        place.ok(&[command[0], &address]
            .iter()
            .chain(&command[2..])
            .copied()
            .collect::<Vec<_>>());
    }
    ended(served);
}

#[test]
fn a_volume_in_use_that_nobody_serves_is_refused_with_how_to_share_it() {
    let place = Place::with_volume();
    let volume = place.open();
    let errors = place.fails(1, &["mkdir", "v.adit", "/d"]);
    let own = format!("(pid {})", std::process::id());
    let share = "`adit serve v.adit --socket SOCKET` shares a volume, as unix:SOCKET";
    assert!(errors.contains(&own) && errors.contains(share), "{errors}");
    volume.close().expect("closed");
}

#[test]
fn the_path_of_a_socket_is_refused_with_its_address() {
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    for command in [
        &["ls", "s"][..],
        &["mkdir", "s", "/d"],
        &["mkfs", "s"],
        &["check", "s"],
    ] {
        let errors = place.fails(1, command);
        let words = "open s: it is a socket; a server's volume is unix:s";
        assert!(errors.contains(words), "{command:?}: {errors}");
    }
    place.ok(&["ls", "unix:s"]);
    ended(served);
}

/// The refusal listed names without saying where a name belongs. The log had `pid=Some(13704)`.
#[test]
fn of_several_volumes_one_has_to_be_named_except_by_ctl() {
    let place = Place::with_volume();
    place.ok(&["mkfs", "w.adit", "--size", "64M"]);
    let served = Served::start_command(place.command(&[
        "serve",
        "orders=v.adit",
        "logs=w.adit",
        "--socket",
        "s",
    ]));
    let all = "unix:SOCKET,orders, unix:SOCKET,logs";
    let errors = place.fails(1, &["ls", "unix:s"]);
    assert!(
        errors.contains("the server has several") && errors.contains(all),
        "{errors}"
    );
    let errors = place.fails(1, &["ls", "unix:s,other"]);
    assert!(
        errors.contains("find the volume other") && errors.contains(all),
        "{errors}"
    );
    place.ok(&["ls", "unix:s,logs"]);
    // Sessions are the server's, whichever volume they have.
    let session = format!("unix:{},logs", place.path("s").display());
    let session = adit::Volume::open(&session).expect("connected");
    for address in ["unix:s", "unix:s,orders"] {
        let sessions = place.ok(&["ctl", address]);
        assert!(sessions.contains(" logs\n"), "{address}: {sessions}");
    }
    place.fails(1, &["ctl", "unix:s,other"]);
    drop(session);
    let messages = ended(served);
    let refused = messages
        .lines()
        .find(|line| line.contains("a connection is refused"));
    let refused = refused.expect("it is told");
    let pid = refused.split_once("pid=").map(|(_, pid)| pid);
    assert!(
        pid.is_some_and(|pid| pid.starts_with(|of: char| of.is_ascii_digit())),
        "{refused}"
    );
}

/// A command as another user.
fn as_user(place: &Place, arguments: &[&str]) -> Command {
    let mut command = place.command(arguments);
    command.uid(USER).gid(USER);
    command
}

#[test]
fn another_user_hears_who_may_look_after_a_server_and_that_writes_survive_it() {
    let place = Place::with_volume();
    let image = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(place.path("v.adit"), image).expect("set");
    std::fs::set_permissions(place.path("."), std::fs::Permissions::from_mode(0o755)).expect("set");
    let mut reaches = as_user(&place, &["--version"]);
    if !is_root() || !reaches.output().is_ok_and(|output| output.status.success()) {
        return adit_skip::skip(adit_skip::REACHABLE);
    }
    let served = Served::start(&place, &["--mode", "0666"]);
    let refused = |arguments: &[&str], words: &[&str]| {
        let output = place.end(as_user(&place, arguments));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {errors}");
        let all = words.iter().all(|words| errors.contains(words));
        assert!(all, "{arguments:?}: {errors}");
    };
    let whose = "only root and the server's user 0 may";
    refused(&["lsof", "unix:s"], &[whose]);
    refused(&["ctl", "unix:s"], &[whose]);
    // Its process is the server, which this user may not look into.
    let server = "if that is a server, open unix:SOCKET of it";
    refused(&["lsof", "v.adit"], &[server, "only root and user 0 may"]);
    // `survives NOT` was said of every server of another user.
    let output = place.end(as_user(&place, &["info", "unix:s"]));
    let info = String::from_utf8_lossy(&output.stdout);
    assert!(info.contains("survives  its process\n"), "{info}");
    ended(served);
}

/// The kernel drops descriptors for which the receiver has no number, so a client with few of them
/// heard of a breach of the protocol: "the server sends no memory", EPROTO.
#[test]
fn a_client_without_descriptors_hears_of_that() {
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    let mut without_memory = 0;
    for limit in 4.. {
        let mut command = place.command(&["ls", "unix:s"]);
        let few = rustix::process::Rlimit {
            current: Some(limit),
            maximum: Some(limit),
        };
        let set = move || {
            Ok(rustix::process::setrlimit(
                rustix::process::Resource::Nofile,
                few,
            )?)
        };
        // SAFETY: one system call between fork and exec.
        unsafe { command.pre_exec(set) };
        let output = place.end(command);
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            break;
        }
        assert!(errors.contains("EMFILE"), "{limit}: {errors}");
        without_memory += u32::from(errors.contains("receive descriptors"));
    }
    assert!(without_memory > 0, "the socket alone was received");
    ended(served);
}

/// A program that knows nothing of volumes was told to "open it again, or exec".
#[test]
fn a_child_of_a_program_hears_how_its_program_is_started() {
    need!("python3");
    let place = Place::with_volume();
    let script = "import os\nfile=os.open('/adit/f',os.O_CREAT|os.O_RDWR)\nif os.fork()==0:\n \
                  try: os.write(file,b'x')\n except OSError as error: os._exit(error.errno)\n\
                  print(os.waitstatus_to_exitcode(os.wait()[1]))\n";
    let output = place.run(&["run", "--embedded", "v.adit", "--", "python3", "-c", script]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.stdout, b"9\n", "EBADF: {errors}");
    for way in [
        "adit run --share SOCKET",
        "adit run unix:SOCKET",
        "adit serve VOLUME",
    ] {
        assert!(errors.contains(way), "{way}: {errors}");
    }
    assert!(!errors.contains("exec"), "{errors}");
}

/// `adit` copied alone said that there is no library beside it, and not where else it had looked.
#[test]
fn a_command_that_was_copied_alone_says_where_the_library_would_be_found() {
    let place = Place::with_volume();
    let alone = place.path("bin/adit");
    std::fs::create_dir(place.path("bin")).expect("made");
    support::copy_program(env!("CARGO_BIN_EXE_adit").as_ref(), &alone);
    let mut command = Command::new(&alone);
    command
        .args(["run", "--cover", "v.adit", "--", "ls", "/adit"])
        .current_dir(place.path("."));
    let output = place.end(command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    for place in [
        "bin/libadit_preload.so",
        "lib/adit/libadit_preload.so",
        "lib/libadit_preload.so",
    ] {
        assert!(errors.contains(place), "{place}: {errors}");
    }
    assert!(errors.contains("--library FILE"), "{errors}");
}

/// A program that looked whether a server is there waited for it for 10 s.
#[test]
fn a_command_that_is_to_wait_for_no_server_fails_at_once() {
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    let address = format!("unix:{}", place.path("s").display());
    let session = adit::Volume::open(&address).expect("connected");
    // One that is killed leaves its sessions to the next one.
    served.signal(Signal::KILL);
    drop(served);
    assert!(place.path("s.sessions").exists());
    let errors = place.fails(1, &["ls", "--reconnect", "0", "unix:s"]);
    assert!(errors.contains("no server answers there"), "{errors}");
    drop(session);
}

#[test]
fn a_server_outlives_the_signals_of_users() {
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    served.signal(Signal::USR1);
    served.signal(Signal::USR2);
    place.ok(&["ls", "unix:s"]);
    ended(served);
}
