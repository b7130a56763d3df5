//! Commands and programs that have the volume in their own process: what isn't so for sessions of a
//! server, which the other files of these tests also run with (`served.rs`).

#[macro_use]
mod support;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use support::{LIMIT, Place, assert_clean, json, kill, noise, owner_command, run, start};

const PAGE: usize = 4096;

/// `get` opened its target with O_TRUNC before it looked what that is: `adit get v.adit /f v.adit`,
/// or `adit get v.adit / .` with a file of the image's name in the volume, emptied the image it
/// read from.
#[test]
fn get_refuses_to_overwrite_the_image_it_reads_from() {
    let place = Place::with_volume();
    place.write("tree/v.adit", "of the image's name");
    place.write("tree/z", "goes on");
    place.ok(&["put", "v.adit", "tree/v.adit", "tree/z", "/"]);

    std::os::unix::fs::symlink("v.adit", place.path("link")).expect("made");
    std::fs::hard_link(place.path("v.adit"), place.path("other name")).expect("made");
    for name in ["v.adit", "./link", "other name"] {
        let errors = place.fails(1, &["get", "v.adit", "/z", name]);
        assert!(
            errors.contains("it is the image of this volume"),
            "{errors}"
        );
    }
    let errors = place.fails(1, &["get", "v.adit", "/", "."]);
    assert!(errors.contains("v.adit: it is the image"), "{errors}");
    assert_eq!(std::fs::read(place.path("z")).expect("read"), b"goes on");

    place.ok(&["check", "v.adit"]);
    assert_eq!(place.ok(&["cat", "v.adit", "/z"]), "goes on");
}

/// `put` of the directory in which the image lies read the image while it wrote to it.
#[test]
fn put_leaves_out_the_image_it_writes_to() {
    let place = Place::with_volume();
    place.write("a", "1");
    place.write("z", "2");
    let errors = place.fails(1, &["put", "v.adit", ".", "/"]);
    assert!(errors.contains("v.adit: it is the image"), "{errors}");
    assert_eq!(place.ok(&["ls", "v.adit", "/"]), "a\nz\n");
    assert_eq!(place.ok(&["cat", "v.adit", "/a", "/z"]), "12");
    place.fails(1, &["put", "v.adit", "v.adit", "/copy"]);
    assert_eq!(place.ok(&["ls", "v.adit", "/"]), "a\nz\n");
}

/// Changes the first page of the volume that `is_it` chooses.
fn rot(place: &Place, is_it: impl Fn(&[u8]) -> bool) {
    let image = std::fs::read(place.path("v.adit")).expect("read");
    let page = image.chunks(PAGE).skip(1026).position(is_it);
    let page = 1026 + page.expect("such a page is on the device");
    let image = std::fs::File::options()
        .write(true)
        .open(place.path("v.adit"))
        .expect("opened");
    let written = image.write_all_at(b"rot", (page * PAGE + 1000) as u64);
    written.expect("written");
}

#[test]
fn json_of_scrub_and_check_has_all_bytes_of_paths_that_are_not_utf_8() {
    let place = Place::new();
    place.ok(&["mkfs", "v.adit", "--size", "64M", "--data-checksums"]);
    let odd = PathBuf::from(OsStr::from_bytes(b"/\xffodd"));
    let (file, content) = (odd.join("f"), noise(1, PAGE));
    let volume = place.open();
    volume.create_dir(&odd).expect("made");
    volume.write(&file, &content).expect("written");
    for number in 0..200 {
        let path = odd.join(format!("{number}{}", "n".repeat(200)));
        volume.write(path, "").expect("made");
    }
    volume.close().expect("closed");

    rot(&place, |page| page == content);
    let output = place.run(&["scrub", "--json", "--read-only", "v.adit"]);
    assert_eq!(output.status.code(), Some(3));
    let damage = &json(&output)["damages"][0];
    assert_eq!(damage["path"], "/\u{fffd}odd/f");
    assert_eq!(damage["path_bytes"], "2fff6f64642f66");

    // A leaf of the directory: checksum algorithm, kind, level, flags.
    rot(&place, |page| {
        let is_full = page.windows(200).any(|bytes| bytes == [b'n'; 200]);
        page[4..8] == [1, 5, 0, 0] && is_full
    });
    let output = place.run(&["check", "--json", "v.adit"]);
    assert_eq!(output.status.code(), Some(3));
    let found = json(&output);
    let mut problems = found["problems"].as_array().expect("a list").iter();
    let problem = problems.find(|problem| problem["path"] == "/\u{fffd}odd");
    let problem = problem.unwrap_or_else(|| panic!("{found}"));
    assert_eq!(problem["path_bytes"], "2fff6f6464");
}

/// Overwrites pages, syncs and dies. Argument: open flags, the size of a write.
const OVERWRITE: &str = r#"
import mmap, os, signal, sys
fd = os.open("/adit/pages", os.O_RDWR | int(sys.argv[1]))
new = open("new", "rb").read()
size = int(sys.argv[2])
buffer = mmap.mmap(-1, size)
for at in range(0, len(new), size):
    buffer[:] = new[at:at + size]
    assert os.pwrite(fd, buffer, at) == size
os.fsync(fd)
os.kill(os.getpid(), signal.SIGKILL)
"#;

/// Pages of a file are at home with their old content until the transactions are that the journal
/// has: so no cut tears them (adit-fs has these cuts, in `pages`). Plain writes go home at once.
#[test]
fn aligned_writes_of_pages_become_transactions() {
    need!("python3");
    let page_bytes = 4096;
    let (old, new) = (noise(1, 64 * page_bytes), noise(2, 64 * page_bytes));
    let direct = libc::O_DIRECT.to_string();
    // The cache writes pages home after five seconds.
    const SOON: Duration = Duration::from_secs(4);
    for (flags, write_bytes, limit, is_atomic) in [
        (&direct[..], 16 << 10, Some("16K"), true),
        ("0", 16 << 10, Some("16K"), true),
        (&direct, 4 << 10, Some("16K"), true),
        ("0", 64 << 10, Some("64K"), true),
        (&direct, 64 << 10, Some("64K"), true),
        (&direct, 16 << 10, None, false),
        (&direct, 32 << 10, Some("16K"), false),
    ] {
        let size = write_bytes.to_string();
        let program = ["python3", "-c", OVERWRITE, flags, &size];
        let limit = limit.map_or(vec![], |limit| vec!["--atomic-writes", limit]);
        let run = [&["run", "v.adit"], &limit[..], &["--"], &program].concat();
        let begin = Instant::now();
        let place = loop {
            let place = Place::with_volume();
            place.write("pages", &old);
            place.write("new", &new);
            place.ok(&["put", "v.adit", "pages", "/pages"]);
            let begin_of_run = Instant::now();
            assert_eq!(place.run(&run).status.code(), None, "killed");
            if begin_of_run.elapsed() < SOON {
                break place;
            }
            assert!(begin.elapsed() < LIMIT, "each run took {SOON:?}");
        };
        let image = std::fs::read(place.path("v.adit")).expect("read");
        let count = |content: &[u8]| {
            let pages: std::collections::HashSet<&[u8]> = content.chunks(page_bytes).collect();
            let found = image.chunks(page_bytes).filter(|page| pages.contains(page));
            found.count()
        };
        let expected = if is_atomic { (64, 0) } else { (0, 64) };
        assert_eq!((count(&old), count(&new)), expected, "{run:?}");
        // The journal has them.
        place.ok(&["get", "v.adit", "/pages", "got"]);
        assert!(std::fs::read(place.path("got")).expect("copied") == new);
        assert_clean(&place);
    }
}

#[test]
fn one_process_at_a_time_has_the_volume() {
    need!();
    let place = Place::with_volume();
    let owner = start(owner_command(&place.path("v.adit")));
    let refused = place.fails(1, &["run", "v.adit", "--", "cat", "/adit/a"]);
    assert!(
        refused.contains("in use") || refused.contains("EBUSY"),
        "{refused}"
    );
    kill(owner);
    run(&place, &["ls", "/adit"]);
    // A child of a program that has it is another process.
    let alone = |script: &str| {
        let words = ["run", "--embedded", "v.adit", "--", "sh", "-c", script];
        place.fails(1, &words)
    };
    let refused = alone("cd /adit && cat /adit/nothing");
    assert!(
        refused.contains("EBUSY") || refused.contains("usy"),
        "{refused}"
    );
    // One after the other is no problem.
    run(
        &place,
        &[
            "sh",
            "-c",
            "cp v.adit/../calls.none /adit/x 2>/dev/null; echo a | tee /adit/a; cat /adit/a",
        ],
    );
    assert_eq!(place.ok(&["cat", "v.adit", "/a"]), "a\n");
}

#[test]
#[ignore = "a process of other tests"]
fn the_owner_process() {
    let volume = std::env::var("ADIT_TEST_VOLUME").expect("set");
    let volume = adit::Volume::open(&volume).expect("opened");
    println!("ready");
    std::thread::sleep(std::time::Duration::from_secs(600));
    drop(volume);
}

/// To execute another program ends the volume as a kill does, and here a kill loses unsynced writes.
#[test]
fn a_program_that_executes_another_one_loses_no_writes_that_survive_no_kill() {
    need!("bash");
    let place = Place::with_volume();
    for volume in [&["--embedded", "v.adit"][..], &["v.adit"]] {
        let script = "cd /adit; echo written > file; exec true";
        let words = [
            &["run", "--survive", "off"],
            volume,
            &["--", "bash", "-c", script],
        ];
        place.ok(&words.concat());
        assert_eq!(place.ok(&["cat", "v.adit", "/file"]), "written\n");
        run(&place, &["rm", "/adit/file"]);
    }
}
