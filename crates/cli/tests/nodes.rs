//! Pipes and sockets with names in a volume, under `adit run`: what programs see of them is what the
//! host's file system shows, and nobody gets at another one's.

#[macro_use]
mod support;

use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use support::servers::{Served, Watchdog};
use support::{Place, USER, assert_clean, copy_program, is_root};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn lines_equal(said: &str, host: &str, what: &str) {
    for (here, there) in said.lines().zip(host.lines()) {
        assert_eq!(
            here, there,
            "{what}: in the volume, on the host; all:\n{said}"
        );
    }
    assert_eq!(said, host, "{what}");
}

/// The output of a program, which must succeed without a complaint.
fn said(place: &Place, command: Command) -> String {
    let output = place.end(command);
    assert_eq!(text(&output.stderr), "", "{}", text(&output.stdout));
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

fn run(place: &Place, volume: &str, program: &[&str]) -> String {
    said(
        place,
        place.command(&[&["run", volume, "--"], program].concat()),
    )
}

fn end(place: &Place, served: Served) {
    served.signal(Signal::TERM);
    let (status, errors) = served.end();
    assert!(status.success(), "{errors}");
    assert_clean(place);
}

/// A program that goes on; killed at the end of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program that has said that it listens.
fn start(mut command: Command) -> Running {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
    let mut line = String::new();
    let output = child.stdout.as_mut().expect("piped");
    BufReader::new(output).read_line(&mut line).expect("read");
    let running = Running(child);
    assert_eq!(line, "listens\n");
    running
}

/// The names in the server's directory.
fn host_names(place: &Place) -> Vec<String> {
    let listed = std::fs::read_dir(place.path("s.nodes"));
    let names = listed
        .into_iter()
        .flatten()
        .map(|entry| entry.expect("read").file_name());
    let mut names: Vec<_> = names
        .map(|name| name.into_string().expect("text"))
        .collect();
    names.retain(|name| !name.ends_with(".as"));
    names
}

/// `bind` was ENOENT, or in the host's directory of that name; `open` of a pipe was ENXIO.
#[test]
fn pipes_and_sockets_are_as_on_the_host() {
    need!("cc");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let program = place.compiled("nodes");
    for what in ["sockets", "datagrams", "pipes"] {
        let there = |alone: &[&str]| {
            let top = place.path(&format!("{what}{}", alone.len()));
            std::fs::create_dir(&top).expect("made");
            let mut command = Command::new(&program);
            command.arg(what).arg(&top).args(alone);
            said(&place, command)
        };
        let (host, alone) = (there(&[]), there(&["alone"]));
        let top = format!("/adit/{what}");
        run(&place, "v.adit", &["mkdir", &top]);
        let here = run(&place, "v.adit", &[&program, what, &top, "alone"]);
        lines_equal(&here, &alone, "embedded");
        let served = Served::start(&place, &[]);
        let top = format!("{top} in a server");
        run(&place, "unix:s", &["mkdir", &top]);
        lines_equal(
            &run(&place, "unix:s", &[&program, what, &top]),
            &host,
            "served",
        );
        end(&place, served);
        let top = format!("/adit/{what} shared");
        run(&place, "v.adit", &["mkdir", &top]);
        let words = [
            "run", "--share", "s", "v.adit", "--", &program, what, &top, "alone",
        ];
        lines_equal(&said(&place, place.command(&words)), &alone, "shared");
    }
    assert_clean(&place);
}

#[test]
fn programs_of_shells_meet_at_a_pipe() {
    need!("bash" "mkfifo" "cat" "dd");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    for shell in ["sh", "bash"] {
        let script = "set -e; cd /adit; rm -f p; mkfifo p; cat p & echo through > p; wait
            (cat < p; echo twice > p) & echo back > p; cat p; wait
            test -p p; stat -c '%F %a' p; dd if=/dev/zero bs=64K count=32 of=p status=none & wc -c < p
            wait; rm p; ls";
        let script = script.replace('\n', "; ").replace("& ;", "&");
        let printed = run(&place, "unix:s", &[shell, "-c", &script]);
        let expected = "through\nback\ntwice\nfifo 644\n2097152\n";
        assert_eq!(printed, expected, "{shell}");
        assert_eq!(host_names(&place), Vec::<String>::new());
    }
    end(&place, served);
    // The shell has the volume; the others come to it.
    let script = ": > /adit/first; mkfifo /adit/p; cat /adit/p & echo through > /adit/p; wait";
    let words = ["run", "--share", "s", "v.adit", "--", "bash", "-c", script];
    assert_eq!(said(&place, place.command(&words)), "through\n");
}

#[test]
fn python_s_managers_and_fork_servers_have_their_sockets_in_the_volume() {
    need!("python3");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    place.write(
        "t.py",
        "import multiprocessing as m, multiprocessing.managers as n, os, sys
def square(x): return x * x, os.getpid()
if __name__ == '__main__':
    assert __import__('tempfile').gettempdir() == '/adit/tmp'
    with m.Manager() as manager:
        print(manager.address.startswith('/adit/tmp/'), manager.list([1, 2]))
        names = manager.dict()
        child = m.Process(target=names.update, args=({'child': 1},))
        child.start(); child.join()
        print(names)
    server = n.BaseManager(address='/adit/manager', authkey=b'key')
    server.start(); other = n.BaseManager(address='/adit/manager', authkey=b'key')
    other.connect(); print('connected'); server.shutdown()
    m.set_start_method('forkserver', force=True)
    with m.Pool(2) as pool:
        print([square for square, _ in pool.map(square, range(5))])
    from multiprocessing.connection import Listener, Client
    listener = Listener('/adit/l'); client = Client('/adit/l'); peer = listener.accept()
    client.send('text'); print(peer.recv(), listener.address, listener.last_accepted)
    import asyncio
    async def talk():
        async def answer(reader, writer):
            writer.write(await reader.readline()); writer.close()
        server = await asyncio.start_unix_server(answer, '/adit/asyncio')
        print(server.sockets[0].getsockname())
        reader, writer = await asyncio.open_unix_connection('/adit/asyncio')
        writer.write(b'line\\n'); print(await reader.read(), writer.get_extra_info('peername'))
    asyncio.run(talk())
",
    );
    let served = Served::start(&place, &[]);
    place.ok(&["mkdir", "unix:s", "/tmp"]);
    let mut command = place.command(&["run", "unix:s", "--", "python3", "t.py"]);
    command.env("TMPDIR", "/adit/tmp");
    assert_eq!(
        said(&place, command),
        "True [1, 2]\n{'child': 1}\nconnected\n[0, 1, 4, 9, 16]\ntext /adit/l \n\
         /adit/asyncio\nb'line\\n' /adit/asyncio\n"
    );
    end(&place, served);
}

#[test]
fn an_agent_of_ssh_answers_at_a_socket_in_the_volume() {
    need!("ssh-agent" "ssh-add" "ssh-keygen" "sh");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    // As it is installed it has a group's rights, and the loader ignores LD_PRELOAD.
    let agent = place.path("agent");
    copy_program(Path::new("/usr/bin/ssh-agent"), &agent);
    let script = "set -e; eval $($0 -a /adit/agent) > /dev/null; stat -c '%F %a' /adit/agent
        ssh-keygen -q -t ed25519 -N '' -f /adit/key; ssh-add -q /adit/key; ssh-add -l | cut -c1-3
        $0 -k > /dev/null; while test -e /adit/agent; do sleep 0.01; done";
    let script = script.replace('\n', "; ");
    let words = ["sh", "-c", &script, agent.to_str().expect("text")];
    assert_eq!(run(&place, "unix:s", &words), "socket 600\n256\n");
    end(&place, served);
}

/// A directory that all users may enter, with a volume; its programs may be of any user.
macro_rules! place_of_root {
    () => {{
        if !is_root() {
            return adit_skip::skip(adit_skip::OTHER_USER);
        }
        need!("cc");
        let place = Place::with_volume();
        let everybody = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(place.path(""), everybody).expect("changed");
        place
    }};
}

/// A command of this user, whose home is nobody's.
fn of_user(mut command: Command, uid: u32) -> Command {
    command.uid(uid).gid(uid).env_remove("HOME");
    command
}

/// A user who may only read a pipe must not get at writing by the host's descriptor of it.
#[test]
fn another_user_has_the_rights_of_the_node_and_no_more() {
    let place = place_of_root!();
    let _watchdog = Watchdog::new();
    let program = place.compiled("nodes");
    std::os::unix::fs::chown(place.path("v.adit"), Some(USER), Some(USER)).expect("given");
    // A server of root's, and one that may give files to nobody.
    for uid in [0, USER] {
        let serve = ["serve", "v.adit", "--socket", "s", "--mode", "0666"];
        let served = Served::start_command(of_user(place.command(&serve), uid));
        place.ok(&["chmod", "unix:s", "0777", "/"]);
        let all = |program: &[&str]| run(&place, "unix:s", program);
        let server = start(place.command(&["run", "unix:s", "--", &program, "serve", "/adit"]));
        all(&["mkfifo", "/adit/p"]);
        // Somebody has it open on both sides.
        let mut holder = place.command(&["run", "unix:s", "--", "sh", "-c"]);
        holder.arg("exec 3<> /adit/p; echo listens; exec sleep 1000");
        let holder = start(holder);
        let asks = |owner: u32, mode: &str, uid: u32| {
            place.ok(&["chown", "unix:s", &format!("{owner}:{owner}"), "/p", "/s"]);
            place.ok(&["chmod", "unix:s", mode, "/p", "/s"]);
            let words = ["run", "unix:s", "--", &program, "other", "/adit"];
            let heard = said(&place, of_user(place.command(&words), uid));
            place.ok(&["rm", "unix:s", "/t"]);
            let kept = heard
                .lines()
                .map(|line| line.rsplit(": ").next().unwrap_or(line));
            kept.collect::<Vec<_>>().join(" ")
        };
        let (owner, other) = (USER + 1, USER + 2);
        assert_eq!(asks(owner, "0600", other), "EACCES EACCES EACCES ok");
        assert_eq!(asks(owner, "0604", other), "ok EACCES EACCES EACCES ok");
        assert_eq!(asks(owner, "0602", other), "EACCES ok ok ok");
        assert_eq!(asks(owner, "0666", other), "ok ok ok ok ok");
        assert_eq!(asks(owner, "0600", owner), "ok ok ok ok ok");
        assert_eq!(asks(owner, "0400", owner), "ok EACCES EACCES EACCES ok");
        assert_eq!(asks(other, "0066", other), "EACCES EACCES EACCES ok");
        drop(holder);
        drop(server);
        // Nobody but the server's user sees what the host has.
        let directory = std::fs::metadata(place.path("s.nodes")).expect("there");
        assert_eq!((directory.uid(), directory.mode() & 0o777), (uid, 0o700));
        place.ok(&["rm", "unix:s", "/p", "/s"]);
        end(&place, served);
    }
}

/// The host's names are in the server's directory, so the next server finds them.
#[test]
fn a_socket_outlives_its_server_and_no_name_its_node() {
    need!("cc");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let program = place.compiled("nodes");
    let ask = || run(&place, "unix:s", &[&program, "ask", "/adit"]);
    let mut served = Served::start(&place, &[]);
    let listen = [
        "run",
        "unix:s",
        "--reconnect",
        "60",
        "--",
        &program,
        "serve",
        "/adit",
    ];
    let server = start(place.command(&listen));
    assert_eq!(ask(), "answer\n");
    for signal in [Signal::KILL, Signal::TERM] {
        served.signal(signal);
        served.end();
        served = Served::start(&place, &[]);
        assert_eq!(ask(), "answer\n", "after {signal:?}");
        assert_eq!(host_names(&place).len(), 1);
    }
    // Nobody listens any more.
    drop(server);
    assert_eq!(ask(), "connect: ECONNREFUSED\n");
    let again = place.end(place.command(&listen));
    assert!(
        text(&again.stdout).contains("Address already in use"),
        "{again:?}"
    );
    place.ok(&["rm", "unix:s", "/s"]);
    assert_eq!(host_names(&place), Vec::<String>::new());
    // A name that the server didn't live to remove goes with the next one.
    let server = start(place.command(&listen));
    let name = host_names(&place).remove(0);
    place.ok(&["mv", "unix:s", "/s", "/moved"]);
    place.ok(&["rm", "unix:s", "/moved"]);
    served.signal(Signal::KILL);
    served.end();
    place.write(&format!("s.nodes/{name}"), "");
    let served = Served::start(&place, &[]);
    assert_eq!(host_names(&place), Vec::<String>::new());
    drop(server);
    end(&place, served);
}

/// A copy of the image has the same id, inodes and generations.
#[test]
fn a_copy_of_the_image_leads_to_no_socket_of_the_original() {
    need!("cc");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let program = place.compiled("nodes");
    let served = Served::start(&place, &[]);
    let listen = ["run", "unix:s", "--", &program, "serve", "/adit"];
    let server = start(place.command(&listen));
    run(&place, "unix:s", &["sync", "-f", "/adit"]);
    std::fs::copy(place.path("v.adit"), place.path("copy.adit")).expect("copied");
    let ask = |address: &str| run(&place, address, &[&program, "ask", "/adit"]);
    let beside = [
        "serve",
        "copy.adit",
        "--socket",
        "beside",
        "--takeover",
        "leave",
    ];
    let beside = Served::start_command(place.command(&beside));
    assert_eq!(ask("unix:beside"), "connect: ECONNREFUSED\n");
    assert_eq!(ask("unix:s"), "answer\n");
    drop(beside);
    end(&place, served);
    let instead = ["serve", "copy.adit", "--socket", "s"];
    let instead = Served::start_command(place.command(&instead));
    assert_eq!(ask("unix:s"), "connect: ECONNREFUSED\n");
    assert_eq!(host_names(&place), Vec::<String>::new());
    drop(instead);
    drop(server);
}

/// A user who may write where the server's socket is could make the directory there first.
#[test]
fn a_directory_that_others_can_get_at_is_not_used() {
    need!("cc" "mkfifo");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let program = place.compiled("nodes");
    let elsewhere = place.path("elsewhere");
    std::fs::create_dir(&elsewhere).expect("made");
    let own = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(&elsewhere, own).expect("changed");
    let directory = place.path("s.nodes");
    for planted in ["open", "link"] {
        match planted {
            "open" => {
                std::fs::create_dir(&directory).expect("made");
                let all = std::fs::Permissions::from_mode(0o777);
                std::fs::set_permissions(&directory, all).expect("changed");
            }
            _ => symlink(&elsewhere, &directory).expect("made"),
        }
        let served = Served::start(&place, &[]);
        let refused = |script: &str| {
            let words = ["run", "unix:s", "--", "sh", "-c", script];
            let output = place.end(place.command(&words));
            assert!(!output.status.success(), "{planted}: {script}: {output:?}");
        };
        refused(&format!("{program} serve /adit"));
        refused("mkfifo /adit/p; : <> /adit/p");
        place.ok(&["rm", "unix:s", "/p"]);
        // The node that could not be bound is gone.
        assert_eq!(place.ok(&["ls", "unix:s", "/"]), "");
        served.signal(Signal::TERM);
        let (_, errors) = served.end();
        assert!(errors.contains("s.nodes"), "{errors}");
        match planted {
            "open" => std::fs::remove_dir(&directory).expect("it is empty"),
            _ => std::fs::remove_file(&directory).expect("removed"),
        }
    }
    assert_eq!(elsewhere.read_dir().expect("listed").count(), 0);
    assert_clean(&place);
}
