//! Commands with the names of Unix commands: they behave as those do.

mod support;

use std::io::Read;
use std::process::Command;
use support::servers::Served;
use support::{Place, noise};

fn stat(place: &Place, path: &str) -> serde_json::Value {
    let printed = place.ok(&["stat", "--json", "v.adit", path]);
    let mut lines: Vec<serde_json::Value> = serde_json::from_str(&printed).expect("JSON");
    lines.remove(0)
}

fn with_tree() -> Place {
    let place = Place::with_volume();
    place.write("tree/a", noise(1, 1500));
    place.write("tree/.hidden", "");
    place.write("tree/d/b", "text");
    place.write("tree/d/e/c", "");
    place.write("tree/z/y", "");
    std::os::unix::fs::symlink("a", place.path("tree/link")).expect("made");
    place.ok(&["put", "v.adit", "tree", "/"]);
    place
}

/// Of the kernel's file system, as the Unix command prints it.
fn unix(place: &Place, command: &[&str]) -> String {
    unix_in(place, "UTC", command)
}

/// With this time zone.
fn unix_in(place: &Place, zone: &str, command: &[&str]) -> String {
    let output = Command::new(command[0])
        .args(&command[1..])
        .env("LC_ALL", "C")
        .env("TZ", zone)
        .current_dir(place.path("."))
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{command:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn ls_lists_trees_hidden_names_and_sizes_as_ls_does() {
    let place = with_tree();
    // Except that names with a dot are always there, and directories end with a slash.
    let ours = place.ok(&["ls", "-R", "v.adit", "tree"]);
    assert_eq!(ours, unix(&place, &["ls", "-1ARp", "tree"]));
    let ours = place.ok(&["ls", "-Ra", "v.adit", "tree"]);
    assert_eq!(ours, unix(&place, &["ls", "-1aRp", "tree"]));
    let sizes = |listed: &str| -> Vec<String> {
        let words = listed.lines().map(|line| line.split_whitespace().nth(4));
        words.flatten().map(str::to_owned).collect()
    };
    place.ok(&["truncate", "-s", "23000000", "v.adit", "/tree/large"]);
    let ours = place.ok(&["ls", "-lh", "v.adit", "/tree"]);
    assert!(sizes(&ours).contains(&"1.5K".to_owned()), "{ours}");
    assert!(sizes(&ours).contains(&"22M".to_owned()), "{ours}");
    let ours = place.ok(&["ls", "-l", "v.adit", "/tree"]);
    assert!(sizes(&ours).contains(&"23000000".to_owned()), "{ours}");
    assert!(place.ok(&["ls", "--help"]).contains("--recursive"));
    place.fails(2, &["ls", "-R", "--json", "v.adit"]);
}

#[test]
fn chmod_changes_files_and_trees() {
    let place = with_tree();
    let mode = |path: &str| stat(&place, path)["mode"].as_u64().expect("a number");
    place.ok(&["chmod", "v.adit", "640", "/tree/a", "/tree/d/b"]);
    assert_eq!((mode("/tree/a"), mode("/tree/d/b")), (0o640, 0o640));
    place.ok(&["chmod", "v.adit", "u+x,o=r", "/tree/link"]);
    assert_eq!(mode("/tree/a"), 0o744, "the link was followed");
    place.ok(&["chmod", "-R", "v.adit", "go-rwx", "/tree/d"]);
    assert_eq!((mode("/tree/d"), mode("/tree/d/e/c") & 0o77), (0o700, 0));
    place.ok(&["chmod", "-R", "v.adit", "a+X", "/tree/d"]);
    assert_eq!((mode("/tree/d/e"), mode("/tree/d/b")), (0o711, 0o600));
    place.ok(&["chmod", "v.adit", "-x", "/tree/a"]);
    assert_eq!(mode("/tree/a"), 0o644);
    let errors = place.fails(1, &["chmod", "v.adit", "u+q", "/tree/a"]);
    assert!(errors.contains("u+q"), "{errors}");
    let errors = place.fails(1, &["chmod", "v.adit", "600", "/none", "/tree/a"]);
    assert!(errors.contains("/none"), "{errors}");
    assert_eq!(mode("/tree/a"), 0o600, "one that fails stops no other");
    place.ok(&["check", "v.adit"]);
}

#[test]
fn chown_changes_owners_by_name_and_number() {
    let place = with_tree();
    let owner = |path: &str| {
        let stat = stat(&place, path);
        (
            stat["uid"].as_u64().expect("one"),
            stat["gid"].as_u64().expect("one"),
        )
    };
    place.ok(&["chown", "v.adit", "7:8", "/tree/link"]);
    assert_eq!(owner("/tree/a"), (7, 8), "the link was followed");
    place.ok(&["chown", "-h", "v.adit", "9", "/tree/link"]);
    assert_eq!((owner("/tree/link").0, owner("/tree/a")), (9, (7, 8)));
    place.ok(&["chown", "v.adit", ":5", "/tree/a"]);
    assert_eq!(owner("/tree/a"), (7, 5));
    place.ok(&["chown", "-R", "v.adit", "root:", "/tree"]);
    for path in ["/tree", "/tree/a", "/tree/link", "/tree/d/e/c"] {
        assert_eq!(owner(path), (0, 0), "{path}");
    }
    let errors = place.fails(1, &["chown", "v.adit", "nobody-here", "/tree/a"]);
    assert!(errors.contains("no user nobody-here"), "{errors}");
    assert!(place.ok(&["chown", "--help"]).contains("-h"));
}

#[test]
fn touch_makes_files_and_sets_their_times() {
    let place = with_tree();
    let times = |path: &str| {
        let stat = stat(&place, path);
        (stat["accessed"].to_string(), stat["modified"].to_string())
    };
    place.ok(&["touch", "v.adit", "/new", "/tree/a"]);
    assert_eq!(stat(&place, "/new")["size_bytes"], 0);
    assert_eq!(stat(&place, "/new")["mode"], 0o644);
    place.ok(&["touch", "-c", "v.adit", "/none"]);
    place.fails(1, &["stat", "v.adit", "/none"]);
    // Old times come from a file of the host.
    place.write("old", "");
    unix(&place, &["touch", "-d", "2001-02-03 04:05:06Z", "old"]);
    place.ok(&["put", "v.adit", "old", "/"]);
    let (new, old) = (times("/new"), times("/old"));
    assert!(old.1.contains("2001-02-03T04:05:06Z"), "{old:?}");
    place.ok(&["touch", "-m", "-r", "/old", "v.adit", "/new"]);
    assert_eq!(times("/new"), (new.0, old.1.clone()));
    place.ok(&["touch", "-r", "/old", "v.adit", "/new"]);
    assert_eq!(times("/new"), old);
    place.ok(&["touch", "v.adit", "/tree/d"]);
}

#[test]
fn truncate_makes_files_so_long() {
    let place = with_tree();
    let size = |path: &str| stat(&place, path)["size_bytes"].as_u64().expect("a number");
    for (given, expected) in [
        ("10", 10),
        ("+1K", 1034),
        ("-34", 1000),
        ("%512", 1024),
        ("<100", 100),
        (">4K", 4096),
        ("/3000", 3000),
    ] {
        place.ok(&["truncate", "-s", given, "v.adit", "/f"]);
        assert_eq!(size("/f"), expected, "{given}");
    }
    place.ok(&["truncate", "-r", "/tree/a", "v.adit", "/f"]);
    assert_eq!(size("/f"), 1500);
    place.ok(&["truncate", "-c", "-s", "1", "v.adit", "/none"]);
    place.fails(1, &["stat", "v.adit", "/none"]);
    place.fails(1, &["truncate", "-s", "many", "v.adit", "/f"]);
    place.fails(2, &["truncate", "v.adit", "/f"]);
    place.ok(&["check", "v.adit"]);
}

#[test]
fn mkfs_says_in_one_line_what_it_has_made() {
    let place = Place::new();
    let made = place.ok(&["mkfs", "v.adit", "--size", "64M", "--preallocate"]);
    assert!(
        made.starts_with("v.adit: a volume of 64 MiB, with a journal of "),
        "{made}"
    );
    assert_eq!(made.lines().count(), 1, "{made}");
    let info = place.ok(&["info", "--json", "v.adit"]);
    let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
    assert!(
        made.ends_with(&format!("id {}\n", info["id"].as_str().expect("text"))),
        "{made}"
    );
    assert!(place.ok(&["check", "v.adit"]).contains("clean"));
}

#[test]
fn umount_ends_a_mount_and_nothing_else() {
    let place = with_tree();
    std::fs::create_dir(place.path("m")).expect("made");
    let errors = place.fails(1, &["umount", "m"]);
    assert!(errors.contains("no volume is mounted there"), "{errors}");
    let mounted = place.run(&["mount", "v.adit", "m"]);
    if !mounted.status.success() {
        return adit_skip::skip(adit_skip::VOLUME_MOUNT);
    }
    let open = std::fs::File::open(place.path("m/tree/a")).expect("there");
    let errors = place.fails(1, &["umount", "m"]);
    assert!(errors.contains("EBUSY"), "{errors}");
    let errors = place.fails(1, &["umount", "m/tree"]);
    assert!(errors.contains("no volume is mounted there"), "{errors}");
    place.ok(&["umount", "--lazy", "m"]);
    assert!(!place.path("m/tree").exists());
    drop(open);
    place.ok(&["mount", "v.adit", "m"]);
    place.ok(&["umount", "m"]);
    place.ok(&["check", "v.adit"]);
    // A container that began meanwhile has a copy of the mount: nobody waits for it.
    place.ok(&["mount", "v.adit", "m"]);
    let mut other = Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            "echo ready; cat",
        ])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut ready = [0; 6];
    let began = other.stdout.as_mut().expect("piped").read_exact(&mut ready);
    place.ok(&["umount", "m"]);
    assert!(!place.path("m/tree").exists());
    if began.is_ok() {
        let errors = place.fails(1, &["mkdir", "v.adit", "/d"]);
        assert!(errors.contains("EBUSY"), "the other one keeps it: {errors}");
    }
    drop(other.stdin.take());
    other.wait().expect("ended");
    let opens = || place.run(&["check", "v.adit"]).status.success();
    support::servers::until("the copy has ended", opens);
}

#[test]
fn find_finds_what_find_finds() {
    let place = with_tree();
    std::fs::hard_link(place.path("tree/a"), place.path("tree/z/A.txt")).expect("made");
    place.ok(&["put", "v.adit", "tree/z", "/tree"]);
    for tests in [
        &[][..],
        &["-name", "*e*"],
        &["-iname", "a*"],
        &["-path", "tree/*/e"],
        &["-type", "d"],
        &["-type", "l"],
        &["-type", "f", "-size", "+2"],
        &["-type", "f", "-size", "-2k"],
        &["-size", "1500c"],
        &["-empty"],
        &["-mindepth", "1", "-maxdepth", "2", "-name", "[.bce]*"],
        &["-print0"],
    ] {
        let sorted = |text: String| {
            let end = if tests == ["-print0"] { '\0' } else { '\n' };
            let mut lines: Vec<String> = text.split(end).map(str::to_owned).collect();
            lines.sort();
            lines
        };
        // The size of a directory is each file system's own.
        let ours = sorted(place.ok(&[&["find", "v.adit", "tree"], tests].concat()));
        let theirs = sorted(unix(&place, &[&["find", "tree"], tests].concat()));
        assert_eq!(ours, theirs, "{tests:?}");
    }
    assert!(place.ok(&["find", "v.adit"]).starts_with("/\n"));
    let errors = place.fails(1, &["find", "v.adit", "/none", "/tree/a"]);
    assert!(errors.contains("/none"), "{errors}");
    let errors = place.fails(1, &["find", "v.adit", "/", "-newer", "x"]);
    assert!(errors.contains("find -newer"), "{errors}");
    assert!(place.ok(&["find", "--help"]).contains("-maxdepth"));
}

/// Attributes of all that is below, without times and inodes.
fn listed(place: &Place, path: &str) -> Vec<String> {
    let listed = place.ok(&["ls", "-lR", "v.adit", path]);
    let lines = listed.lines().filter(|line| !line.ends_with(':'));
    let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let kept = words.map(|mut words| {
        // The time, and of a directory also the size.
        words.retain(|word| !word.contains("T") || !word.ends_with('Z'));
        words.join(" ")
    });
    kept.collect()
}

#[test]
fn cp_copies_files_and_trees_as_cp_does() {
    let place = with_tree();
    let cat = |path: &str| place.ok(&["cat", "v.adit", path]);
    place.ok(&["cp", "v.adit", "/tree/d/b", "/copy"]);
    assert_eq!(cat("/copy"), "text");
    place.ok(&["cp", "v.adit", "/tree/d/b", "/copy", "/tree/z"]);
    assert_eq!(
        (cat("/tree/z/b"), cat("/tree/z/copy")),
        ("text".into(), "text".into())
    );
    // A file that is there keeps its inode, and its other names.
    place.ok(&["ln", "v.adit", "/copy", "/other"]);
    let before = stat(&place, "/copy")["inode"].clone();
    place.ok(&["cp", "v.adit", "/tree/.hidden", "/copy"]);
    assert_eq!(
        (stat(&place, "/copy")["inode"].clone(), cat("/other")),
        (before, String::new())
    );
    place.ok(&["cp", "-n", "v.adit", "/tree/d/b", "/copy"]);
    assert_eq!(cat("/copy"), "");
    // A link is followed, except in a tree.
    place.ok(&["cp", "v.adit", "/tree/link", "/followed"]);
    assert_eq!(stat(&place, "/followed")["kind"], "file");

    let errors = place.fails(1, &["cp", "v.adit", "/tree", "/all"]);
    assert!(errors.contains("-r copies it"), "{errors}");
    place.ok(&["chmod", "v.adit", "751", "/tree/d"]);
    place.ok(&["chown", "v.adit", "7:8", "/tree/a"]);
    place.ok(&["ln", "v.adit", "/tree/a", "/tree/d/a"]);
    place.ok(&["touch", "-r", "/tree/z", "v.adit", "/tree/d"]);
    place.ok(&["cp", "-r", "v.adit", "/tree", "/plain"]);
    let user = rustix::process::geteuid().as_raw();
    assert_eq!(stat(&place, "/plain/a")["uid"], user, "the copy is mine");
    assert_eq!(stat(&place, "/plain/d")["mode"], 0o751);
    assert_eq!(stat(&place, "/plain/link")["kind"], "symlink");
    place.ok(&["cp", "-a", "v.adit", "/tree", "/archive"]);
    assert_eq!(listed(&place, "/archive"), listed(&place, "/tree"));
    let modified = |path: &str| stat(&place, path)["modified"].to_string();
    for path in ["", "/a", "/d", "/link", "/d/e"] {
        let (of, copy) = (format!("/tree{path}"), format!("/archive{path}"));
        assert_eq!(modified(&copy), modified(&of), "{path}");
    }
    assert_eq!(
        stat(&place, "/archive/a")["inode"],
        stat(&place, "/archive/d/a")["inode"]
    );
    // Again: into it.
    place.ok(&["cp", "-r", "v.adit", "/tree", "/archive"]);
    assert_eq!(cat("/archive/tree/d/b"), "text");

    let errors = place.fails(1, &["cp", "-r", "v.adit", "/tree", "/tree/d/inside"]);
    assert!(errors.contains("inside of it"), "{errors}");
    let errors = place.fails(1, &["cp", "v.adit", "/tree/a", "/tree/link"]);
    assert!(errors.contains("same file"), "{errors}");
    assert_eq!(stat(&place, "/tree/a")["size_bytes"], 1500);
    place.fails(1, &["cp", "v.adit", "/tree/a", "/tree/d/b", "/none"]);
    place.fails(1, &["cp", "v.adit", "/tree/d/b", "/none/"]);
    place.ok(&["check", "v.adit"]);
}

#[test]
fn a_label_is_shown_and_changed() {
    let place = Place::new();
    place.ok(&["mkfs", "v.adit", "--size", "64M", "--label", "first"]);
    assert_eq!(place.ok(&["label", "v.adit"]), "first\n");
    place.ok(&["label", "v.adit", "second one"]);
    place.ok(&["grow", "v.adit", "80M"]);
    assert_eq!(place.ok(&["label", "v.adit"]), "second one\n");
    assert!(place.ok(&["info", "v.adit"]).contains("second one"));
    place.ok(&["label", "v.adit", ""]);
    assert_eq!(place.ok(&["label", "v.adit"]), "\n");
    let errors = place.fails(1, &["label", "v.adit", &"x".repeat(65)]);
    assert!(errors.contains("64 bytes"), "{errors}");
    place.ok(&["check", "v.adit"]);
}

/// It was EOPNOTSUPP.
#[test]
fn a_label_of_a_served_volume_is_changed_by_its_server() {
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    let address = format!("unix:{}", place.path("s").display());
    place.ok(&["label", &address, "served"]);
    assert_eq!(place.ok(&["label", &address]), "served\n");
    let errors = place.fails(1, &["label", &address, &"x".repeat(65)]);
    assert!(errors.contains("64 bytes"), "{errors}");
    served.signal(rustix::process::Signal::TERM);
    assert!(served.end().0.success());
    assert_eq!(place.ok(&["label", "v.adit"]), "served\n");
}

/// Each date and stamp is the same moment for touch(1), in a zone with summer time.
#[test]
fn touch_takes_the_dates_and_stamps_of_touch() {
    let place = Place::with_volume();
    place.write("host", "");
    for given in [
        ["-d", "2001-02-03 04:05:06Z"],
        ["-d", "2001-07-03"],
        ["-d", "2001-07-03 04:05"],
        ["-d", "2001-07-03T04:05:06.25"],
        ["-d", "2001-07-03 04:05:06 +0330"],
        ["-d", "2001-07-03 04:05:06.5-01:00"],
        ["-d", "2001-07-03 04:05 UTC"],
        ["-d", "@1000000000.5"],
        ["-d", "@-7"],
        ["-d", "2001-07-03 2 days ago"],
        ["-d", "2001-03-01 12:00 -1 day"],
        ["-d", "2001-12-31 12:00 +1 month"],
        ["-d", "2001-07-03 12:00 1 week ago 3 hours"],
        ["-d", "2001-03-25 12:00 1 day ago"],
        ["-t", "200107030405.06"],
        ["-t", "0107030405"],
        ["-t", "6907030405.59"],
    ] {
        let [option, text] = given;
        for zone in ["UTC", "EST5EDT,M3.2.0,M11.1.0"] {
            unix_in(&place, zone, &["touch", option, text, "host"]);
            let mut command = place.command(&["touch", option, text, "v.adit", "/new"]);
            command.env("TZ", zone);
            let output = place.end(command);
            assert!(output.status.success(), "{given:?}: {output:?}");
            let expected = std::fs::metadata(place.path("host")).expect("known");
            let volume = place.open();
            let found = volume.metadata("/new").expect("known");
            let expected = expected.modified().expect("known");
            assert_eq!(found.modified(), expected, "{given:?} in {zone}");
            volume.close().expect("closed");
        }
    }
    for wrong in [["-d", "soon"], ["-d", "2001-02-29"], ["-t", "1"]] {
        let errors = place.fails(1, &[&["touch"], &wrong[..], &["v.adit", "/new"]].concat());
        assert!(errors.contains("understand the time"), "{errors}");
    }
    let both = ["touch", "-d", "now", "-t", "01010000", "v.adit", "/new"];
    place.fails(2, &both);
}

/// As mount(8) calls it.
#[test]
fn a_line_of_fstab_mounts_a_volume() {
    let place = with_tree();
    std::fs::create_dir(place.path("m")).expect("made");
    let helper = place.path("mount.adit");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_adit"), &helper).expect("made");
    let mount = |options: &str| {
        let mut command = Command::new(&helper);
        command.args(["v.adit", "m", "-n", "-o", options]);
        place.end({
            command.current_dir(place.path("."));
            command
        })
    };
    let output = mount("ro,frobnicate");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && errors.contains("-o frobnicate"),
        "{errors}"
    );
    if !mount("ro,noatime,cache-size=16M,nofail,x-systemd.automount")
        .status
        .success()
    {
        return adit_skip::skip(adit_skip::VOLUME_MOUNT);
    }
    assert_eq!(
        std::fs::read(place.path("m/tree/d/b")).expect("read"),
        b"text"
    );
    let refused = std::fs::write(place.path("m/new"), "").expect_err("it is read-only");
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    place.ok(&["umount", "m"]);
}
