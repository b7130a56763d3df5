//! What scripts rely on: exit codes, names in JSON, words that say what failed, and that a command
//! which fails changes nothing.

mod support;

use adit::OpenOptions;
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use support::{Place, json, noise};

/// `adit rm -r v.adit /` removed everything below the root, and then complained that a root can't
/// be removed.
#[test]
fn rm_refuses_the_root_before_it_removes_anything() {
    let place = Place::with_volume();
    place.write("f", "content");
    place.ok(&["mkdir", "v.adit", "/d"]);
    place.ok(&["put", "v.adit", "f", "/d"]);
    for root in ["/", "//", ".", "/d/.."] {
        let errors = place.fails(1, &["rm", "-r", "v.adit", root]);
        assert!(errors.contains("the root of the volume"), "{errors}");
        place.fails(1, &["rm", "-rf", "v.adit", root]);
    }
    assert_eq!(place.ok(&["cat", "v.adit", "/d/f"]), "content");
}

/// `stat` and `cat` ended at the first path that was missing: of what a script asked for after it
/// nothing was said.
#[test]
fn stat_and_cat_go_on_after_a_path_that_is_missing() {
    let place = Place::with_volume();
    place.write("a", "1");
    place.write("b", "2");
    place.ok(&["mkdir", "v.adit", "/d"]);
    place.ok(&["put", "v.adit", "a", "b", "/"]);
    let paths = ["/a", "/none", "/d", "/b"];
    let run = |words: &[&str]| {
        let output = place.run(&[words, &paths].concat());
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.contains("/none: No such file"), "{errors}");
        (output, errors)
    };
    let (output, errors) = run(&["cat", "v.adit"]);
    assert_eq!(output.stdout, b"12");
    assert!(errors.contains("read /d: Is a directory"), "{errors}");
    let (output, _) = run(&["stat", "v.adit"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text.matches("  kind       ").count(), 3, "{text}");
    let (output, _) = run(&["stat", "--json", "v.adit"]);
    let names: Vec<Value> = json(&output).as_array().expect("a list").to_vec();
    let names: Vec<&Value> = names.iter().map(|line| &line["name"]).collect();
    assert_eq!(names, ["/a", "/d", "/b"]);
    place.ok(&["stat", "v.adit", "/a", "/b"]);
}

/// "No space left on device" of a command that writes nothing to the volume: it was the disk of the
/// script's own log.
#[test]
fn a_full_standard_output_is_named() {
    let place = Place::with_volume();
    place.write("f", noise(1, 100_000));
    place.ok(&["put", "v.adit", "f", "/"]);
    for words in [
        &["cat", "v.adit", "/f"][..],
        &["stat", "v.adit", "/f"],
        &["ls", "-l", "v.adit"],
        &["ls", "--json", "v.adit"],
        &["du", "v.adit"],
        &["df", "v.adit"],
        &["info", "--json", "v.adit"],
        &["lsof", "v.adit"],
        &["check", "v.adit"],
        &["scrub", "v.adit"],
        &["completions", "bash"],
    ] {
        let full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .expect("Linux has one");
        let mut child = place.command(words);
        let child = child.stdout(full).stderr(std::process::Stdio::piped());
        let output = child.spawn().and_then(|child| child.wait_with_output());
        let output = output.expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {errors}");
        let expected = "adit: write standard output: No space left on device (ENOSPC)\n";
        assert_eq!(errors, expected, "{words:?}");
    }
}

/// A command that could not say what failed panicked (exit code 101), and `put` and `get` aborted
/// in the middle of the copy.
#[test]
fn a_full_standard_error_stops_nothing() {
    let place = Place::with_volume();
    place.write("f", "1");
    for words in [
        &["put", "v.adit", "missing", "f", "missing", "/"][..],
        &["cat", "v.adit", "/missing", "/f"],
        &["ls", "v.adit", "/missing"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let mut command = place.command(words);
        command.stderr(full.expect("Linux has one"));
        let output = command.output().expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{words:?}");
    }
    assert_eq!(place.ok(&["cat", "v.adit", "/f"]), "1");
}

/// In JSON all that `ls` and the others knew of such names was U+FFFD: two files were one, and
/// neither could be used.
#[test]
fn json_has_all_bytes_of_names_that_are_not_utf_8() {
    let place = Place::with_volume();
    let odd = Path::new(OsStr::from_bytes(b"/\xffodd"));
    let file = odd.join(OsStr::from_bytes(b"\xfe"));
    let volume = place.open();
    volume.create_dir(odd).expect("made");
    volume.write(&file, "content").expect("written");
    volume.symlink(&file, "/link").expect("made");
    let held = volume
        .open_file(&file, OpenOptions::new().read(true))
        .expect("opened");
    let lsof = json(&place.run(&["lsof", "--json", "--paths", "v.adit"]));
    let shown = &lsof["files"][0];
    assert_eq!(shown["path"], "/\u{fffd}odd/\u{fffd}");
    assert_eq!(shown["path_bytes"], "2fff6f64642ffe");
    drop(held);
    volume.close().expect("closed");

    let ls = json(&place.run(&["ls", "--json", "v.adit"]));
    let (link, directory) = (&ls[0], &ls[1]);
    assert_eq!(directory["name"], "\u{fffd}odd");
    assert_eq!(directory["name_bytes"], "ff6f6464");
    assert_eq!(link["name"], "link");
    assert!(link.get("name_bytes").is_none(), "{link}");
    assert_eq!(link["target_bytes"], "2fff6f64642ffe");

    let mut stat = place.command(&["stat", "--json", "v.adit"]);
    stat.arg(&file).arg("/link");
    let stat = json(&place.end(stat));
    assert_eq!(stat[0]["name_bytes"], "2fff6f64642ffe");
    assert!(stat[1].get("name_bytes").is_none());

    let du = json(&place.run(&["du", "--json", "v.adit"]));
    assert_eq!(du[0]["path_bytes"], "2fff6f6464");
    assert_eq!(du[1]["path"], "/");
    assert!(du[1].get("path_bytes").is_none());
}

/// `--cache-size 0` and `--cache-size 15E` were taken, and were 8 MiB and 4 TiB in silence.
#[test]
fn an_absurd_cache_size_is_refused_with_what_is_allowed() {
    let place = Place::with_volume();
    for absurd in ["0", "4096", "7.9M", "1P", "15E"] {
        for command in [
            &["ls", "v.adit"][..],
            &["check", "v.adit"],
            &["mkdir", "v.adit", "/d"],
        ] {
            let errors = place.fails(1, &[command, &["--cache-size", absurd]].concat());
            assert!(
                errors.contains("open v.adit: use a page cache of"),
                "{errors}"
            );
            assert!(errors.contains("it has 8 MiB to "), "{errors}");
        }
    }
    place.ok(&["ls", "v.adit", "--cache-size", "8M"]);
}

/// Numbers of seven digits, no file, or nothing that would work instead.
#[test]
fn mkfs_and_grow_say_which_file_and_what_would_work() {
    let place = Place::new();
    let refused = |words: &[&str]| place.fails(1, &[&["mkfs", "v.adit"], words].concat());
    let errors = refused(&["--size", "64K"]);
    let expected = "format v.adit: mkfs: a volume of 64 KiB is too small: with a journal of 4 MiB the smallest has 4718592 bytes";
    assert!(errors.contains(expected), "{errors}");
    let errors = refused(&["--size", "64M", "--journal-size", "4K"]);
    assert!(
        errors.contains("a journal of 4 KiB (it has 4 MiB to 4 GiB)"),
        "{errors}"
    );
    for cluster in ["5K", "64M", "8G"] {
        let errors = refused(&["--size", "64M", "--cluster-size", cluster]);
        assert!(errors.contains("format v.adit: "), "{errors}");
        assert!(
            errors.contains("(a multiple of 4096, at most 32 MiB)"),
            "{errors}"
        );
    }
    place.ok(&["mkfs", "v.adit", "--size", "4718592"]);
    let errors = place.fails(1, &["grow", "v.adit", "1M"]);
    let expected = "grow v.adit: the volume has 4718592 bytes and can't shrink";
    assert!(errors.contains(expected), "{errors}");
}
