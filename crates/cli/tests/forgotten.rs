//! The next opening doesn't look where the killed process kept its unsynced data, or nothing is
//! there any more: it finds it through the superblock, or says what is lost.
//!
//! It was opened as after a power cut, and nobody said a word.

mod support;

use adit::{Survive, Volume, VolumeOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;
use support::{LoopDevice, Place, SmallMemory, kill, owner_command, start};
use tempfile::TempDir;

/// Where the id of the boot is in a mapping.
const BOOT_ID: u64 = 32;

/// The process that tests kill. It writes a file, says that it is ready, and waits.
#[test]
#[ignore = "is the process that tests start and kill"]
fn the_owner_process() {
    let given = |name: &str| std::env::var(name).ok();
    let mut options = VolumeOptions::new();
    options.writeback_interval(Duration::from_secs(3600));
    if let Some(directory) = given("ADIT_TEST_SURVIVE_IN") {
        options.survive_in(directory);
    }
    if given("ADIT_TEST_SURVIVE").is_some() {
        options.survive(Survive::Off);
    }
    let address = given("ADIT_TEST_VOLUME").expect("given");
    let volume = Volume::open_with(&address, &options).expect("opened");
    volume.write("/f", "not synced").expect("written");
    writeln!(std::io::stdout(), "\nready").expect("told");
    loop {
        std::thread::park();
    }
}

/// A volume whose process was killed, which kept its memory there.
fn killed(memory: &Path) -> Place {
    let place = Place::with_volume();
    let mut command = owner_command(&place.path("v.adit"));
    command.env("ADIT_TEST_SURVIVE_IN", memory);
    kill(start(command));
    place
}

fn directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").expect("made")
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("listed");
    entries.map(|entry| entry.expect("read").path()).collect()
}

fn told(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

/// The messages of a command that changes the volume, and of one that looks.
fn change(place: &Place, more: &[&str]) -> String {
    let made = told(&place.run(&[&["mkdir", "v.adit", "/d"], more].concat()));
    let removed = told(&place.run(&["rmdir", "v.adit", "/d"]));
    assert_eq!(removed, "", "it was closed");
    made
}

fn look(place: &Place) -> String {
    told(&place.run(&["ls", "v.adit"]))
}

/// The type of the file system, as stat(1) names it.
fn file_system(directory: &Path) -> String {
    let mut stat = std::process::Command::new("stat");
    let kind = stat.args(["-f", "-c", "%T"]).arg(directory).output();
    let kind = kind.expect("it runs").stdout;
    String::from_utf8_lossy(&kind).trim().to_owned()
}

fn is_there(place: &Place) -> bool {
    place.run(&["cat", "v.adit", "/f"]).stdout == b"not synced"
}

#[test]
fn who_forgets_the_directory_has_everything() {
    let (one, other) = (directory(), directory());
    let text = other.path().to_str().expect("text");
    for more in [&[][..], &["--survive-in", text], &["--survive", "off"]] {
        let place = killed(one.path());
        assert_eq!(files(one.path()).len(), 1, "{more:?}");
        assert!(is_there(&place), "{more:?}: seen");
        assert_eq!(look(&place), "", "{more:?}");
        assert_eq!(change(&place, more), "", "{more:?}");
        assert!(is_there(&place), "{more:?}: taken over");
        assert!(files(one.path()).is_empty() && files(other.path()).is_empty());
        place.ok(&["check", "v.adit"]);
    }
    // The user says that it is of no use.
    let place = killed(one.path());
    let said = change(&place, &["--takeover", "discard"]);
    assert!(said.contains("unsaved data is discarded"), "{said}");
    assert!(!is_there(&place) && files(one.path()).is_empty());
    // And who makes the volume anew.
    let place = killed(one.path());
    place.ok(&["mkfs", "--force", "v.adit"]);
    assert!(files(one.path()).is_empty());
}

/// On a file system of a disk: the next opening didn't look there.
#[test]
fn who_forgets_a_directory_on_a_disk_has_everything() {
    let place = Place::new();
    let memory = place.path("memory");
    std::fs::create_dir(&memory).expect("made");
    let kind = file_system(&memory);
    if !["ext2/ext3", "xfs", "btrfs", "tmpfs", "overlayfs"].contains(&&*kind) {
        return adit_skip::skip(format!("the build lies on {kind}, which isn't searched"));
    }
    let place = killed(&memory);
    assert!(is_there(&place), "seen");
    assert_eq!(look(&place), "");
    assert_eq!(change(&place, &[]), "");
    assert!(is_there(&place), "taken over");
    assert!(files(&memory).is_empty());
}

#[test]
fn an_owner_with_another_directory_is_found_through_a_loop_device() {
    let place = Place::with_volume();
    let image = place.path("v.adit");
    let Some(device) = LoopDevice::new(&image) else {
        return adit_skip::skip(adit_skip::LOOP_DEVICES);
    };
    let memory = directory();
    for survive in [Survive::Require, Survive::Off] {
        let mut options = VolumeOptions::new();
        options.survive(survive).survive_in(memory.path());
        let open = Volume::open_with(image.to_str().expect("text"), &options).expect("opened");
        open.write("/f", "x").expect("written");
        for words in [
            &["mkdir", &device.0, "/d"][..],
            &["mkdir", &device.0, "/d", "--takeover", "discard"],
            &["mkfs", "--force", &device.0],
            &["ls", &device.0],
        ] {
            let errors = place.fails(1, words);
            assert!(errors.contains("EBUSY"), "{words:?}: {errors}");
        }
        open.close().expect("closed");
    }
    place.ok(&["check", "v.adit"]);
}

#[test]
fn memory_that_is_gone_is_told_as_an_error_and_the_volume_opens() {
    let memory = directory();
    let inside = memory.path().join("m");
    for gone in ["file", "directory"] {
        std::fs::create_dir_all(&inside).expect("made");
        let place = killed(&inside);
        match gone {
            "file" => std::fs::remove_file(&files(&inside)[0]).expect("removed"),
            _ => std::fs::remove_dir_all(&inside).expect("removed"),
        }
        let looked = look(&place);
        assert!(
            looked.starts_with("adit: warning: v.adit (in memory): "),
            "{looked}"
        );
        assert!(looked.contains("as after a power cut"), "{looked}");
        let said = change(&place, &[]);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.starts_with("adit: error: v.adit: "), "{said}");
        let named = inside.to_str().expect("text");
        for word in [named, "survived", "power cut", "unsynced writes are lost"] {
            assert!(said.contains(word), "{word}: {said}");
        }
        assert!(!is_there(&place));
        place.ok(&["check", "v.adit"]);
    }
}

#[test]
fn a_volume_that_was_not_closed_and_kept_no_memory_is_told_as_a_warning() {
    let place = Place::with_volume();
    let mut command = owner_command(&place.path("v.adit"));
    command.env("ADIT_TEST_SURVIVE", "off");
    kill(start(command));
    assert_eq!(look(&place), "");
    let said = change(&place, &[]);
    assert_eq!(said.lines().count(), 1, "{said}");
    let told = "adit: warning: v.adit: was not closed: opened as after a power cut";
    assert!(said.starts_with(told), "{said}");
}

#[test]
fn a_copy_of_an_open_volume_is_no_loss() {
    let memory = directory();
    let place = Place::with_volume();
    let image = place.path("v.adit");
    let options = VolumeOptions::new().survive_in(memory.path()).clone();
    let open = Volume::open_with(image.to_str().expect("text"), &options).expect("opened");
    open.write("/f", "not synced").expect("written");
    std::fs::copy(&image, place.path("bak.adit")).expect("copied");
    let errors = place.fails(1, &["mkdir", "bak.adit", "/d"]);
    for word in ["EBUSY", "If this is a copy", "takeover = leave"] {
        assert!(errors.contains(word), "{word}: {errors}");
    }
    std::fs::copy(&image, place.path("other.adit")).expect("copied");
    place.ok(&["mkdir", "other.adit", "/d", "--takeover", "leave"]);
    open.close().expect("closed");
    assert_eq!(told(&place.run(&["ls", "bak.adit"])), "");
    let said = told(&place.run(&["mkdir", "bak.adit", "/d"]));
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.starts_with("adit: warning: bak.adit: it is a copy"),
        "{said}"
    );
}

#[test]
fn an_opening_without_room_loses_nothing_and_nothing_is_told_of_it() {
    let place = Place::with_volume();
    let Some(small) = SmallMemory::new(&place, "4m") else {
        return adit_skip::skip(adit_skip::MOUNT);
    };
    let errors = place.fails(1, &["mkdir", "v.adit", "/d", "--survive-in", small.text()]);
    assert!(errors.contains("ENOSPC"), "{errors}");
    assert_eq!(change(&place, &[]), "");
}

/// On a file system that outlives the boot.
#[test]
fn memory_of_another_boot_is_told_before_it_is_deleted() {
    let place = Place::with_volume();
    let memory = place.path("memory");
    std::fs::create_dir(&memory).expect("made");
    if file_system(&memory) == "tmpfs" {
        return adit_skip::skip("the build lies on a tmpfs");
    }
    let mut command = owner_command(&place.path("v.adit"));
    command.env("ADIT_TEST_SURVIVE_IN", &memory);
    kill(start(command));
    let mapping = files(&memory).pop().expect("left");
    let file = std::fs::File::options().write(true).open(&mapping);
    let file = file.expect("opened");
    file.write_all_at(&[7; 16], BOOT_ID).expect("written");
    let text = memory.to_str().expect("text");
    let said = change(&place, &["--survive-in", text]);
    let first = said.lines().next().expect("a line");
    assert!(first.starts_with("adit: warning: v.adit: "), "{said}");
    for word in ["another boot", "4 KiB", mapping.to_str().expect("text")] {
        assert!(first.contains(word), "{word}: {said}");
    }
    assert!(said.contains("lost"), "{said}");
    assert!(files(&memory).is_empty());
    assert!(!is_there(&place));
}
