//! Copies and other long commands that a signal ends: what they say, what they leave, and how the
//! same command goes on.

mod support;

use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Stdio};
use std::time::Duration;
use support::servers::until;
use support::{Place, json, noise, tree};

const FILES: u64 = 3000;

fn with_tree(place: &Place) {
    for i in 0..FILES {
        place.write(&format!("tree/d{}/f{i}", i % 7), noise(i, 5000));
    }
    std::fs::hard_link(place.path("tree/d0/f0"), place.path("tree/d6/link")).expect("made");
}

fn begin(place: &Place, arguments: &[&str]) -> Child {
    let mut command = place.command(arguments);
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    // A shell's background processes ignore some, and so would the command.
    let heed = || {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
            // SAFETY: a plain call.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: it calls nothing that isn't allowed between fork and exec.
    unsafe { command.pre_exec(heed) };
    command.spawn().expect("it runs")
}

/// Ends a command by a signal; what it said, and whether the signal ended it (or it was done).
fn end(mut child: Child, signal: Signal) -> (String, bool) {
    // It may be done, and not yet waited for.
    let _ = kill_process(Pid::from_child(&child), signal);
    let mut said = String::new();
    let mut errors = child.stderr.take().expect("piped");
    errors.read_to_string(&mut said).expect("read");
    let status = child.wait().expect("ended");
    assert!(!said.contains("panicked"), "{said}");
    assert!(
        status.success() || status.signal().is_some(),
        "{status}: {said}"
    );
    (said, status.signal() == Some(signal.as_raw()))
}

/// Begins a copy until a signal comes before its end; the name of its target.
fn cut_short(
    signal: Signal,
    begin: impl Fn(&str) -> Child,
    has_begun: impl Fn(&str) -> bool,
) -> (String, String) {
    for attempt in 0..50 {
        let name = format!("copy{attempt}");
        let child = begin(&name);
        until("it has begun", || has_begun(&name));
        if let (said, true) = end(child, signal) {
            return (said, name);
        }
    }
    panic!("each copy was done before the signal came");
}

/// Again, the copy lay in the first one, as `/copy/tree`, and Ctrl-C said nothing.
#[test]
fn a_put_that_was_interrupted_is_gone_on_with_by_the_same_command() {
    let place = Place::new();
    place.ok(&["mkfs", "v.adit", "--size", "1G"]);
    with_tree(&place);
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let (said, name) = cut_short(
            signal,
            |name| begin(&place, &["put", "v.adit", "tree", &format!("/{name}")]),
            |name| {
                place
                    .run(&["ls", "v.adit", &format!("/{name}/d0")])
                    .status
                    .success()
            },
        );
        if signal != Signal::KILL {
            assert!(said.contains("files are there, whole"), "{said}");
            assert!(said.contains("the same command goes on"), "{said}");
            let open = place.run(&["info", "v.adit", "--json"]);
            assert_eq!(
                json(&open)["unsaved"],
                serde_json::Value::Null,
                "it was closed"
            );
        }
        let path = format!("/{name}");
        let first = inodes(&place, &path);
        place.ok(&["put", "v.adit", "tree", &path]);
        // What was whole stays: a file that is copied again is another one.
        let second = inodes(&place, &path);
        let kept = first.iter().filter(|inode| second.contains(inode)).count();
        assert!(kept + 2 >= first.len(), "{kept} of {}", first.len());
        place.ok(&["get", "v.adit", &path, &name]);
        assert!(tree(&place.path("tree")) == tree(&place.path(&name)));
        let link = place.ok(&["stat", "v.adit", "--json", &format!("{path}/d6/link")]);
        let link: serde_json::Value = serde_json::from_str(&link).expect("JSON");
        assert_eq!(link[0]["links"], 2, "{link}");
        std::fs::remove_dir_all(place.path(&name)).expect("removed");
        // The next one is another copy, as ever.
        place.ok(&["put", "v.adit", "tree/d1", &path]);
        place.ok(&["ls", "v.adit", &format!("{path}/d1/f1")]);
        place.ok(&["put", "v.adit", "tree", &path]);
        place.ok(&["ls", "v.adit", &format!("{path}/tree/d0")]);
        place.ok(&["rm", "-r", "v.adit", &path]);
    }
    place.ok(&["check", "v.adit"]);
}

/// Those of the files in `d0`, the first that is copied, without temporary ones.
fn inodes(place: &Place, path: &str) -> Vec<u64> {
    let listed = place.ok(&["ls", "v.adit", "--json", &format!("{path}/d0")]);
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    let lines = listed.as_array().expect("a list").iter();
    let named = lines.filter(|line| {
        line["name"]
            .as_str()
            .is_some_and(|name| name.starts_with('f'))
    });
    named
        .map(|line| line["inode"].as_u64().expect("a number"))
        .collect()
}

#[test]
fn a_get_that_was_interrupted_is_gone_on_with_by_the_same_command() {
    let place = Place::new();
    place.ok(&["mkfs", "v.adit", "--size", "256M"]);
    with_tree(&place);
    place.ok(&["put", "v.adit", "tree", "/"]);
    let (said, name) = cut_short(
        Signal::INT,
        |name| begin(&place, &["get", "v.adit", "/tree", name]),
        |name| place.path(name).join("d0/f0").exists(),
    );
    assert!(said.contains("the same command goes on"), "{said}");
    place.ok(&["get", "v.adit", "/tree", &name]);
    assert!(tree(&place.path("tree")) == tree(&place.path(&name)));
    place.ok(&["get", "v.adit", "/tree", &name]);
    assert!(place.path(&name).join("tree/d0").is_dir(), "another copy");
}

#[test]
fn an_interrupted_mkfs_says_that_there_is_no_volume() {
    let place = Place::new();
    let child = begin(&place, &["mkfs", "v.adit", "--size", "8G", "--preallocate"]);
    let has_begun = || std::fs::metadata(place.path("v.adit")).is_ok_and(|of| of.len() > 0);
    until("it has begun", has_begun);
    std::thread::sleep(Duration::from_millis(100));
    let (said, is_cut) = end(child, Signal::INT);
    assert!(
        is_cut && said.contains("v.adit holds no volume yet"),
        "{said}"
    );
    place.ok(&["mkfs", "v.adit", "--size", "64M", "--force"]);
    place.ok(&["check", "v.adit"]);
}

#[test]
fn standard_input_is_put_and_got_as_a_file() {
    let place = Place::with_volume();
    let content = noise(1, 3 << 20);
    let put = |path: &str, content: &[u8]| {
        let mut child = begin(&place, &["put", "v.adit", "-", path]);
        let mut input = child.stdin.take().expect("piped");
        // It is refused without being read.
        let _ = input.write_all(content);
        drop(input);
        let output = child.wait_with_output().expect("ended");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    assert_eq!(put("/f", &content), (Some(0), String::new()));
    let output = place.run(&["get", "v.adit", "/f", "-"]);
    assert!(output.stdout == content);
    assert_eq!(
        put("/f", b"shorter"),
        (Some(0), String::new()),
        "it is replaced"
    );
    assert_eq!(place.ok(&["cat", "v.adit", "/f"]), "shorter");
    assert_eq!(place.ok(&["ls", "v.adit", "/"]), "f\n");
    let (code, errors) = put("/", &content);
    assert!(
        code == Some(1) && errors.contains("name a file there"),
        "{errors}"
    );
    place.fails(1, &["get", "v.adit", "/", "-"]);
    place.write("g", "other");
    place.ok(&["mkdir", "v.adit", "/d"]);
    let errors = place.fails(1, &["put", "v.adit", "-", "g", "/d"]);
    assert!(errors.contains("beside other files"), "{errors}");
    // A file of that name.
    place.write("-", "dash");
    place.ok(&["put", "v.adit", "./-", "/dash"]);
    assert_eq!(place.ok(&["cat", "v.adit", "/dash"]), "dash");
}

#[test]
fn a_put_of_standard_input_that_is_interrupted_leaves_the_old_file() {
    let place = Place::with_volume();
    place.write("f", "old");
    place.ok(&["put", "v.adit", "f", "/"]);
    let mut child = begin(&place, &["put", "v.adit", "-", "/f"]);
    let input = child.stdin.as_mut().expect("piped");
    input.write_all(&noise(2, 1 << 20)).expect("written");
    let temporary = || place.ok(&["ls", "v.adit", "/"]).contains(".f.adit-put");
    until("it has begun", temporary);
    let (said, is_cut) = end(child, Signal::INT);
    assert!(is_cut && said.contains("/f is as it was"), "{said}");
    assert_eq!(place.ok(&["ls", "v.adit", "/"]), "f\n");
    assert_eq!(place.ok(&["cat", "v.adit", "/f"]), "old");
}
