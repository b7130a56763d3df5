//! Making, checking and growing volumes, and what is said about things that are none.

mod support;

use std::io::{Read, Seek, SeekFrom, Write};
use std::process::{Command, Stdio};
use support::{LIMIT, Place, noise};

#[test]
fn mkfs_makes_a_volume_that_is_clean_and_empty() {
    let place = Place::new();
    place.ok(&[
        "mkfs",
        "v.adit",
        "--size",
        "1G",
        "--label",
        "my volume",
        "--journal-size",
        "16M",
    ]);
    place.ok(&["check", "v.adit"]);
    assert_eq!(place.ok(&["ls", "v.adit"]), "");
    let info: serde_json::Value =
        serde_json::from_str(&place.ok(&["info", "--json", "v.adit"])).expect("JSON");
    assert_eq!(info["label"], "my volume");
    assert_eq!(info["volume_bytes"], 1 << 30);
    assert_eq!(info["journal_bytes"], 16 << 20);
    assert!(place.ok(&["info", "v.adit"]).contains("1 GiB"));
}

/// `--size 100000000` was an "Invalid argument", of which nothing said that it is no multiple of
/// 4096.
#[test]
fn mkfs_takes_the_whole_pages_of_any_size() {
    let place = Place::new();
    place.ok(&["mkfs", "v.adit", "--size", "100000000"]);
    let info: serde_json::Value =
        serde_json::from_str(&place.ok(&["info", "--json", "v.adit"])).expect("JSON");
    assert_eq!(info["volume_bytes"], 100_000_000 / 4096 * 4096);
    place.write("larger", "");
    place.ok(&["mkfs", "larger", "--size", "100000001"]);
    let errors = place.fails(1, &["mkfs", "other", "--size", "1"]);
    assert!(errors.contains("too small"), "{errors}");
    assert!(!place.path("other").exists());
}

#[test]
fn a_mount_of_a_server_is_the_servers() {
    let errors = Place::new().fails(1, &["mount", "unix:/nowhere", "m"]);
    assert!(errors.contains("mount unix:/nowhere "), "{errors}");
    assert!(errors.contains("adit serve --mount"), "{errors}");
}

#[test]
fn mkfs_does_not_overwrite_what_is_there_unless_forced() {
    let place = Place::with_volume();
    place.write("f", "content");
    place.ok(&["put", "v.adit", "f", "/"]);
    let errors = place.fails(1, &["mkfs", "v.adit"]);
    assert!(errors.contains("--force"), "{errors}");
    assert_eq!(place.ok(&["cat", "v.adit", "/f"]), "content");
    place.ok(&["mkfs", "v.adit", "--force"]);
    assert_eq!(place.ok(&["ls", "v.adit"]), "");

    place.write("letter", noise(1, 10 << 20));
    assert!(place.fails(1, &["mkfs", "letter"]).contains("--force"));
    assert!(std::fs::read(place.path("letter")).expect("there") == noise(1, 10 << 20));
}

#[test]
fn mkfs_without_a_file_or_a_size_says_what_is_missing() {
    let place = Place::new();
    let errors = place.fails(1, &["mkfs", "v.adit"]);
    assert!(
        errors.contains("v.adit (--size creates it)") && errors.contains("ENOENT"),
        "{errors}"
    );
    assert!(!place.path("v.adit").exists());
    place.fails(2, &["mkfs", "v.adit", "--size", "many"]);
    place.fails(1, &["mkfs", "v.adit", "--size", "64K"]);
    assert!(
        !place.path("v.adit").exists(),
        "a failed mkfs leaves nothing behind"
    );
}

#[test]
fn a_foreign_file_system_is_named() {
    if let Some(missing) = support::not_installed(&["mkfs.ext4"]) {
        return adit_skip::skip(missing);
    }
    let place = Place::new();
    std::fs::File::create(place.path("ext4.img"))
        .expect("made")
        .set_len(16 << 20)
        .expect("set");
    // Not in the `PATH` of each user.
    let made = Command::new("sh")
        .args(["-c", "PATH=$PATH:/usr/sbin mkfs.ext4 -q \"$0\""])
        .arg(place.path("ext4.img"))
        .status();
    assert!(made.expect("a shell").success());
    for command in [&["ls", "ext4.img"][..], &["mkfs", "ext4.img"]] {
        let errors = place.fails(1, command);
        assert!(errors.contains("ext2/3/4"), "{errors}");
    }
}

#[test]
fn damage_is_found_by_check_or_refused_never_followed() {
    let place = Place::with_volume();
    for i in 0..50 {
        place.write(&format!("tree/d{}/f{i}", i % 7), noise(i, 9000));
    }
    place.ok(&["put", "v.adit", "tree", "/"]);
    let whole = std::fs::read(place.path("v.adit")).expect("read");
    let used: Vec<usize> = (0..whole.len() / 4096)
        .filter(|page| whole[page * 4096..][..4096].iter().any(|&byte| byte != 0))
        .collect();
    let mut found = 0;
    for (round, &page) in used.iter().enumerate().step_by(used.len() / 40 + 1) {
        let mut image = std::fs::File::options()
            .read(true)
            .write(true)
            .open(place.path("v.adit"))
            .expect("open");
        let at = (page * 4096 + 32 + round * 97 % 400) as u64;
        let mut byte = [0];
        image.seek(SeekFrom::Start(at)).expect("seek");
        image.read_exact(&mut byte).expect("read");
        image.seek(SeekFrom::Start(at)).expect("seek");
        image.write_all(&[byte[0] ^ 0x40]).expect("written");
        drop(image);
        let output = place.run(&["check", "v.adit"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!errors.contains("panicked"), "page {page}: {errors}");
        assert!(
            matches!(output.status.code(), Some(0 | 1 | 3)),
            "page {page}: {:?} {errors}",
            output.status
        );
        found += usize::from(output.status.code() != Some(0));
        std::fs::write(place.path("v.adit"), &whole).expect("restored");
    }
    assert!(
        found > 0,
        "of {} damaged pages none was noticed",
        used.len()
    );
    place.ok(&["check", "v.adit"]);
}

#[test]
fn a_volume_in_use_is_refused_by_the_name_of_the_process() {
    let place = Place::with_volume();
    // It holds the volume open while its output isn't taken.
    place.write("large", noise(5, 8 << 20));
    place.ok(&["put", "v.adit", "large", "/"]);
    let mut holder = place
        .command(&["cat", "v.adit", "/large"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut first = [0; 1];
    holder
        .stdout
        .as_mut()
        .expect("piped")
        .read_exact(&mut first)
        .expect("it has begun");
    let errors = place.fails(1, &["mkdir", "v.adit", "/d"]);
    assert!(
        errors.contains("EBUSY") && errors.contains(&format!("adit (pid {})", holder.id())),
        "{errors}"
    );
    assert!(
        place
            .fails(1, &["mkfs", "--force", "v.adit"])
            .contains("EBUSY")
    );
    drop(holder.stdout.take());
    assert!(
        holder.wait().expect("it ends").success(),
        "a reader that goes away is no error"
    );
    place.ok(&["mkdir", "v.adit", "/d"]);
    place.ok(&["check", "v.adit"]);
}

#[test]
fn a_killed_put_leaves_a_volume_that_the_next_command_recovers() {
    let place = Place::with_volume();
    for i in 0..800 {
        place.write(&format!("tree/f{i}"), noise(i, 15_000));
    }
    for delay_ms in [0, 15, 25, 40, 60] {
        let mut put = place
            .command(&["put", "v.adit", "tree", "/"])
            .spawn()
            .expect("it runs");
        std::thread::sleep(std::time::Duration::from_millis(delay_ms));
        put.kill().expect("killed");
        put.wait().expect("ended");
        // Looking needs no more than that: it recovers first.
        let there = place.ok(&["ls", "v.adit"]);
        assert!(there.is_empty() || there == "tree/\n", "{there}");
        place.ok(&["check", "v.adit"]);
    }
    place.ok(&["put", "v.adit", "tree", "/"]);
    place.ok(&["get", "v.adit", "/tree", "copy"]);
    assert_eq!(
        support::tree(&place.path("tree")),
        support::tree(&place.path("copy"))
    );
}

#[test]
fn grow_makes_room_and_shrinking_is_refused() {
    let place = Place::with_volume();
    place.write("large", noise(6, 150 << 20));
    place.fails(1, &["put", "v.adit", "large", "/"]);
    place.ok(&["rm", "-f", "v.adit", "/large"]);
    place.ok(&["grow", "v.adit", "300M"]);
    place.ok(&["put", "v.adit", "large", "/"]);
    place.ok(&["check", "v.adit"]);
    place.fails(1, &["grow", "v.adit", "100M"]);
    // As mkfs is told it.
    place.ok(&["grow", "v.adit", "--size", "400M"]);
    assert!(place.ok(&["info", "v.adit"]).contains("size      400 MiB"));
    place.fails(2, &["grow", "v.adit"]);
    place.fails(2, &["grow", "v.adit", "500M", "--size", "500M"]);
}

/// A block device whose content is a file's, where one can be made (as root).
struct Loop(String);

impl Loop {
    fn over(file: &std::path::Path) -> Option<Loop> {
        let output = std::process::Command::new("losetup")
            .args(["--find", "--show"])
            .arg(file)
            .output()
            .ok()?;
        let device = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        output.status.success().then_some(Loop(device))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup")
            .args(["--detach", &self.0])
            .status();
    }
}

/// `adit compare` refuses a device, with words.
fn comparison_refused(place: &Place, device: &str, more: &[&str]) -> String {
    let arguments = [&["compare", "--device", device, "--with", "ext4"], more].concat();
    place.fails(1, &arguments)
}

#[test]
fn a_comparison_takes_block_devices_only() {
    if let Some(missing) = support::not_installed(&["mkfs.ext4"]) {
        return adit_skip::skip(missing);
    }
    let place = Place::new();
    place.write("data", noise(7, 16 << 20));
    let before = std::fs::read(place.path("data")).unwrap();
    let refusal = |more: &[&str]| comparison_refused(&place, "data", more);
    let refused = refusal(&["--yes"]);
    assert!(refused.contains("data is not a block device"), "{refused}");
    assert!(refusal(&[]).contains("--yes"));
    assert!(refusal(&["--yes", "--with", "ntfs"]).contains("ntfs"));
    assert!(std::fs::read(place.path("data")).unwrap() == before);
}

#[test]
fn a_comparison_destroys_nothing_that_it_was_not_told_to() {
    let place = Place::new();
    place.write("data", noise(7, 16 << 20));
    let file = place.path("data");
    let before = std::fs::read(&file).unwrap();
    let Some(device) = Loop::over(&file) else {
        return adit_skip::skip(adit_skip::LOOP_DEVICES);
    };
    let refusal = |more: &[&str]| comparison_refused(&place, &device.0, more);
    let refused = refusal(&["--yes"]);
    assert!(refused.contains("holds data"), "{refused}");
    // The kernel's way to say that it is somebody's.
    let held = std::os::unix::fs::OpenOptionsExt::custom_flags(
        std::fs::OpenOptions::new().read(true),
        libc::O_EXCL,
    )
    .open(&device.0)
    .unwrap();
    let refused = refusal(&["--yes", "--force"]);
    assert!(refused.contains("in use"), "{refused}");
    drop(held);
    // A child of another test may have it a little longer.
    let begin = std::time::Instant::now();
    let refused = loop {
        let refused = refusal(&["--yes", "--force", "--only", "nothing"]);
        if !refused.contains("in use") || begin.elapsed() >= LIMIT {
            break refused;
        }
    };
    assert!(refused.contains("no group `nothing`"), "{refused}");
    assert!(std::fs::read(&file).unwrap() == before);
}

#[test]
fn usage_errors_exit_with_2_and_help_with_0() {
    let place = Place::new();
    place.fails(2, &["ls"]);
    place.fails(2, &["frobnicate"]);
    assert!(place.ok(&["--help"]).contains("Examples:"));
    assert!(place.ok(&["completions", "bash"]).contains("adit"));
    place.ok(&["completions", "zsh"]);
    place.ok(&["completions", "fish"]);
}

#[test]
fn bench_says_what_operations_spend_their_time_on() {
    let place = Place::new();
    let arguments = ["bench", "--breakdown", "--quick", "--volume", "mem:256M"];
    let json = place.ok(&[&arguments[..], &["--threads", "1", "--json"]].concat());
    let breakdown: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let rows = breakdown["blocks"][0]["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 11);
    for row in rows {
        let layers = row["layers"].as_array().expect("layers");
        let shares = layers.iter().filter_map(|layer| layer["share"].as_f64());
        assert!((shares.sum::<f64>() - 1.0).abs() < 1e-6, "{row}");
    }
}
