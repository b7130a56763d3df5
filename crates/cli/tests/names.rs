//! What the commands do with names, and how they show them.

mod support;

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use support::Place;

fn lines(text: &str) -> Vec<&str> {
    text.lines().collect()
}

#[test]
fn directories_are_made_listed_and_removed() {
    let place = Place::with_volume();
    place.ok(&["mkdir", "v.adit", "/b", "a"]);
    place.ok(&["mkdir", "-p", "v.adit", "/a/x/y", "/a/x"]);
    assert_eq!(lines(&place.ok(&["ls", "v.adit"])), ["a/", "b/"]);
    assert_eq!(lines(&place.ok(&["ls", "v.adit", "/a"])), ["x/"]);
    assert!(
        place
            .fails(1, &["mkdir", "v.adit", "/a"])
            .contains("EEXIST")
    );
    assert!(
        place
            .fails(1, &["mkdir", "v.adit", "/no/where"])
            .contains("ENOENT")
    );
    assert!(
        place
            .fails(1, &["rmdir", "v.adit", "/a"])
            .contains("ENOTEMPTY")
    );
    place.ok(&["rmdir", "v.adit", "/a/x/y", "/b"]);
    assert!(place.fails(1, &["rm", "v.adit", "/a"]).contains("EISDIR"));
    place.ok(&["rm", "-r", "v.adit", "/a"]);
    assert_eq!(place.ok(&["ls", "v.adit"]), "");
}

/// `rm`, `mkdir` and `rmdir` left out all paths behind the first one that failed.
#[test]
fn a_path_that_fails_stops_no_other() {
    let place = Place::with_volume();
    let errors = place.fails(1, &["mkdir", "v.adit", "/no/where", "/a", "/b", "/a", "/c"]);
    assert_eq!(errors.lines().count(), 2, "{errors}");
    assert_eq!(lines(&place.ok(&["ls", "v.adit"])), ["a/", "b/", "c/"]);
    let errors = place.fails(1, &["rmdir", "v.adit", "/missing", "/a"]);
    assert!(errors.contains("/missing"), "{errors}");
    place.fails(1, &["rm", "-r", "v.adit", "/missing", "/b"]);
    assert_eq!(lines(&place.ok(&["ls", "v.adit"])), ["c/"]);
    place.ok(&["rm", "-rf", "v.adit", "/missing", "/c"]);
    assert_eq!(place.ok(&["ls", "v.adit"]), "");
}

#[test]
fn files_are_moved_linked_and_removed() {
    let place = Place::with_volume();
    place.write("f", "content");
    place.ok(&["put", "v.adit", "f", "/f"]);
    place.ok(&["mkdir", "v.adit", "/d"]);
    place.ok(&["mv", "v.adit", "/f", "/d"]);
    place.ok(&["ln", "v.adit", "/d/f", "/g"]);
    assert_eq!(place.ok(&["cat", "v.adit", "/d/f", "/g"]), "contentcontent");
    let stat: serde_json::Value =
        serde_json::from_str(&place.ok(&["stat", "--json", "v.adit", "/g"])).expect("JSON");
    assert_eq!(
        (&stat[0]["links"], &stat[0]["size_bytes"]),
        (&2.into(), &7.into())
    );
    assert!(
        place
            .fails(1, &["mv", "-n", "v.adit", "/g", "/d/f"])
            .contains("EEXIST")
    );
    place.ok(&["mv", "v.adit", "--exchange", "/g", "/d"]);
    assert_eq!(place.ok(&["cat", "v.adit", "/d", "/g/f"]), "contentcontent");
    place.ok(&["rm", "v.adit", "/d"]);
    assert!(
        place
            .fails(1, &["cat", "v.adit", "/d"])
            .contains("open /d: No such file or directory (ENOENT)")
    );
    place.ok(&["rm", "-f", "v.adit", "/d"]);
    place.ok(&["check", "v.adit"]);
}

#[test]
fn ls_and_stat_show_what_stat_knows() {
    let place = Place::with_volume();
    place.write("f", "content");
    place.ok(&["put", "v.adit", "f", "/f"]);
    let long = place.ok(&["ls", "-l", "v.adit"]);
    assert!(long.starts_with("-rw-"), "{long}");
    assert!(long.ends_with(" f\n"), "{long}");
    let list: serde_json::Value =
        serde_json::from_str(&place.ok(&["ls", "--json", "v.adit"])).expect("JSON");
    assert_eq!(list[0]["name"], "f");
    assert_eq!(list[0]["kind"], "file");
    assert!(place.ok(&["stat", "v.adit", "/f"]).contains("(7 bytes)"));
    assert_eq!(lines(&place.ok(&["ls", "v.adit", "/f"])), ["/f"]);
}

/// A volume in which links lead to `/d` with its file `f`, to nothing, and to themselves.
fn with_links() -> Place {
    let place = Place::with_volume();
    place.write("f", vec![7; 1 << 20]);
    place.ok(&["mkdir", "v.adit", "/d"]);
    place.ok(&["put", "v.adit", "f", "/d/f"]);
    place.ok(&["ln", "-s", "v.adit", "d", "/to d"]);
    place.ok(&["ln", "-s", "v.adit", "/d/f", "/to f"]);
    place.ok(&["ln", "-s", "v.adit", "no/where", "/dangling"]);
    place.ok(&["ln", "-s", "v.adit", "loop", "/loop"]);
    place
}

#[test]
fn links_are_shown_with_their_targets_and_followed_where_ls_and_cat_do() {
    let place = with_links();
    let listed = place.ok(&["ls", "v.adit"]);
    assert_eq!(lines(&listed), ["d/", "dangling", "loop", "to d", "to f"]);
    let long = place.ok(&["ls", "-l", "v.adit"]);
    assert!(lines(&long)[1].starts_with("lrwxrwxrwx"), "{long}");
    for shown in [
        " dangling -> no/where",
        " loop -> loop",
        " to d -> d",
        " to f -> /d/f",
    ] {
        assert!(
            lines(&long).iter().any(|line| line.ends_with(shown)),
            "{long}"
        );
    }
    assert!(
        place
            .ok(&["stat", "v.adit", "/to d"])
            .contains("target     d\n")
    );
    let json: serde_json::Value =
        serde_json::from_str(&place.ok(&["ls", "--json", "v.adit", "/to f"])).expect("JSON");
    assert_eq!(json[0]["target"], "/d/f");

    assert_eq!(lines(&place.ok(&["ls", "v.adit", "/to d"])), ["f"]);
    assert!(
        place
            .ok(&["ls", "-l", "v.adit", "/to d"])
            .ends_with("/to d -> d\n")
    );
    assert!(
        place
            .ok(&["ls", "-l", "v.adit", "/to d/"])
            .ends_with(" f\n")
    );
    assert_eq!(
        lines(&place.ok(&["ls", "v.adit", "/dangling"])),
        ["/dangling"]
    );
    assert_eq!(place.ok(&["cat", "v.adit", "/to f"]).len(), 1 << 20);
    assert!(
        place
            .fails(1, &["cat", "v.adit", "/dangling"])
            .contains("ENOENT")
    );
    assert!(
        place
            .fails(1, &["cat", "v.adit", "/loop"])
            .contains("ELOOP")
    );
}

/// `rm -r` of a link to a directory removed what was in that directory.
#[test]
fn links_themselves_are_removed_moved_linked_and_counted() {
    let place = with_links();
    let usage: serde_json::Value =
        serde_json::from_str(&place.ok(&["du", "--json", "v.adit"])).expect("JSON");
    let bytes = usage[1]["allocated_bytes"].as_u64().expect("the root");
    assert!((1 << 20..3 << 19).contains(&bytes), "{bytes}");
    let usage: serde_json::Value =
        serde_json::from_str(&place.ok(&["du", "--json", "v.adit", "/to d"])).expect("JSON");
    assert!(usage[0]["allocated_bytes"].as_u64() < Some(4096), "{usage}");

    place.ok(&["mv", "v.adit", "/dangling", "/to d"]); // into the directory
    place.ok(&["mv", "v.adit", "/to f", "/loop"]); // over the link
    place.ok(&["ln", "v.adit", "/loop", "/d/too"]);
    let long = place.ok(&["ls", "-l", "v.adit", "/d"]);
    assert!(lines(&long)[0].ends_with(" dangling -> no/where"), "{long}");
    assert!(lines(&long)[2].ends_with(" too -> /d/f"), "{long}");
    assert_eq!(lines(&place.ok(&["ls", "v.adit"])), ["d/", "loop", "to d"]);
    place.ok(&["rm", "-r", "v.adit", "/to d/", "/loop"]);
    assert_eq!(lines(&place.ok(&["ls", "v.adit"])), ["d/"]);
    assert_eq!(
        lines(&place.ok(&["ls", "v.adit", "/d"])),
        ["dangling", "f", "too"]
    );
    place.ok(&["ln", "-s", "v.adit", "/", "/d/up"]);
    place.ok(&["rm", "-r", "v.adit", "/d"]);
    assert_eq!(place.ok(&["ls", "v.adit"]), "");
    place.ok(&["check", "v.adit"]);
}

#[test]
fn du_counts_an_inode_with_two_names_once() {
    let place = Place::with_volume();
    place.write("f", vec![7; 1 << 20]);
    place.ok(&["mkdir", "v.adit", "/d"]);
    place.ok(&["put", "v.adit", "f", "/d/f"]);
    place.ok(&["ln", "v.adit", "/d/f", "/d/g"]);
    let usage: serde_json::Value =
        serde_json::from_str(&place.ok(&["du", "--json", "v.adit"])).expect("JSON");
    let total = usage
        .as_array()
        .and_then(|all| all.last())
        .expect("the root");
    assert_eq!(total["path"], "/");
    let bytes = total["allocated_bytes"].as_u64().expect("a number");
    assert!((1 << 20..3 << 19).contains(&bytes), "{bytes}");
    assert_eq!(lines(&place.ok(&["du", "-s", "v.adit", "/d"])).len(), 1);
}

#[test]
fn names_of_255_bytes_work_and_longer_ones_say_so() {
    let place = Place::with_volume();
    let (longest, longer) = ("n".repeat(255), "n".repeat(256));
    place.ok(&["mkdir", "v.adit", &longest]);
    assert_eq!(lines(&place.ok(&["ls", "v.adit"])), [format!("{longest}/")]);
    assert!(
        place
            .fails(1, &["mkdir", "v.adit", &longer])
            .contains("ENAMETOOLONG")
    );
}

/// What a command prints on a terminal.
fn on_a_terminal(place: &Place, arguments: &[&str]) -> Vec<u8> {
    // No child of another test's thread inherits it (as from openpty): the end would wait for that.
    let ours = File::options().read(true).write(true).open("/dev/ptmx");
    let mut ours = ours.expect("a terminal");
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: system calls on a descriptor of ours; the second one makes a descriptor.
    let theirs = unsafe {
        assert_eq!(libc::unlockpt(ours.as_raw_fd()), 0);
        libc::ioctl(ours.as_raw_fd(), libc::TIOCGPTPEER, flags)
    };
    assert!(theirs >= 0, "its other side");
    // SAFETY: a fresh descriptor that nobody else has.
    let theirs = unsafe { OwnedFd::from_raw_fd(theirs) };
    let mut command = place.command(arguments);
    let mut child = command.stdout(theirs).spawn().expect("it runs");
    drop(command);
    assert!(child.wait().expect("it ends").success());
    let mut printed = Vec::new();
    // The end of a terminal is EIO.
    let _ = ours.read_to_end(&mut printed);
    printed
}

#[test]
fn names_of_any_bytes_are_listed_as_they_are_and_escaped_on_a_terminal() {
    let place = Place::with_volume();
    let odd: [&[u8]; 4] = [b"\x1b[2J", b"a\nb", b"\xff\xfe", b"plain"];
    let address = place.path("v.adit");
    let volume = adit::Volume::open(address.to_str().expect("text")).expect("opened");
    for name in odd {
        let path = Path::new("/").join(OsStr::from_bytes(name));
        volume.write(path, name).expect("written");
    }
    volume.close().expect("closed");
    let listed = place.run(&["ls", "v.adit"]).stdout;
    assert_eq!(listed, b"\x1b[2J\na\nb\nplain\n\xff\xfe\n");
    for arguments in [
        &["ls", "v.adit"][..],
        &["ls", "-l", "v.adit"],
        &["du", "v.adit"],
    ] {
        let shown = on_a_terminal(&place, arguments);
        assert!(!shown.contains(&0x1b), "{arguments:?}");
        let shown = String::from_utf8(shown).expect("a terminal gets text");
        if arguments[0] == "ls" {
            assert!(shown.contains("\\u{1b}[2J\r\n"), "{shown}");
            assert!(shown.contains("a\\nb\r\n"), "{shown}");
            assert!(shown.contains("\u{fffd}\u{fffd}\r\n"), "{shown}");
        }
    }
    let json: serde_json::Value =
        serde_json::from_str(&place.ok(&["ls", "--json", "v.adit"])).expect("JSON");
    assert_eq!(json.as_array().map(Vec::len), Some(odd.len()));
    // They can be used, and come out as they went in.
    let mut cat = place.command(&["cat", "v.adit"]);
    cat.arg(OsStr::from_bytes(odd[2]));
    assert_eq!(place.end(cat).stdout, odd[2]);
    place.ok(&["get", "v.adit", "/", "out"]);
    for name in odd {
        let path = place.path("out").join(OsStr::from_bytes(name));
        assert_eq!(std::fs::read(path).expect("there"), name);
    }
    let mut missing = place.command(&["cat", "v.adit"]);
    missing.arg(OsStr::from_bytes(b"none\x1b\xff"));
    let output = place.end(missing);
    assert_eq!(output.status.code(), Some(1));
    assert!(!output.stderr.contains(&0x1b));
}
