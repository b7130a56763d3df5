//! What a killed process left in shared memory, and a world that changed since: copies, other
//! users, no descriptors, no room, other ways to the same bytes, other versions. All of it is there
//! afterwards, or the command is refused with words and all is there later.
//!
//! Each scene lost data, in silence, before `EOWNERDEAD` was there.

mod support;

use adit::{OpenOptions, Volume, VolumeOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use support::{LoopDevice, Place, SmallMemory, USER, is_root, kill, owner_command, start};

/// Files that the owner writes and doesn't sync.
const FILES: usize = 20;
/// Chooses the signal of a lease (fcntl(2)); missing in `libc`.
const F_SETSIG: libc::c_int = 10;
/// Where a mapping says up to where the journal is durable.
const HORIZON: u64 = 96;

/// The process that tests kill. It makes 20 files, says that it is ready, and waits; or goes on
/// making files.
#[test]
#[ignore = "is the process that tests start and kill"]
fn the_owner_process() {
    let given = |name: &str| std::env::var(name).ok();
    let mut options = VolumeOptions::new();
    options.writeback_interval(Duration::from_secs(3600));
    if given("ADIT_TEST_IN_PLACE").is_some() {
        options.writeback_interval(Duration::from_millis(50));
    }
    if let Some(directory) = given("ADIT_TEST_SURVIVE_IN") {
        options.survive_in(directory);
    }
    let address = given("ADIT_TEST_VOLUME").expect("given");
    let volume = loop {
        match Volume::open_with(&address, &options) {
            Ok(volume) => break volume,
            Err(error)
                if given("ADIT_TEST_STANDBY").is_some() && error.errno() == adit::Errno::BUSY => {}
            Err(error) => panic!("{error}"),
        }
    };
    let mut out = std::io::stdout();
    if given("ADIT_TEST_STANDBY").is_none() {
        for number in 0..FILES {
            let path = format!("/file{number:06}");
            volume.write(path, format!("{number}")).expect("written");
        }
        if given("ADIT_TEST_IN_PLACE").is_some() {
            in_place(&volume);
        }
        writeln!(out, "\nready").expect("told");
        loop {
            std::thread::park();
        }
    }
    // One number after the other, never synced.
    let log = volume
        .open_file(
            "/log",
            OpenOptions::new().append(true).read(true).create(true),
        )
        .expect("opened");
    let mut content = vec![0; log.metadata().expect("known").len() as usize];
    log.read_exact_at(&mut content, 0).expect("read");
    let numbers = content
        .chunks(8)
        .map(|number| u64::from_le_bytes(number.try_into().expect("whole")));
    assert!(
        numbers.eq(0..content.len() as u64 / 8),
        "each number is there once"
    );
    let first = content.len() as u64 / 8;
    writeln!(out, "\nfound {first}").expect("told");
    for number in first.. {
        log.append(&number.to_le_bytes()).expect("written");
        writeln!(out, "acknowledged {}", number + 1).expect("told");
    }
}

/// Overwrites a file in place, synced, so that the journal need not hear of it; then waits until
/// the times of the file are written back, too.
fn in_place(volume: &Volume) {
    let file = volume
        .open_file("/in-place", OpenOptions::new().write(true).create(true))
        .expect("opened");
    file.write_at(&[1; 65536], 0).expect("written");
    file.sync_all().expect("synced");
    let image = volume.address().to_owned();
    std::fs::copy(&image, format!("{image}.older")).expect("copied");
    let mapping = volume.info().expect("known").mapping.expect("it survives");
    let mapping = std::fs::File::open(mapping).expect("opened");
    let horizon = || {
        let mut number = [0; 8];
        mapping.read_exact_at(&mut number, HORIZON).expect("read");
        u64::from_ne_bytes(number)
    };
    let begin = Instant::now();
    let is_written_back = || {
        file.write_at(&[2; 65536], 0).expect("written");
        file.sync_data().expect("synced");
        let before = horizon();
        (0..400).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            horizon() != before
        })
    };
    // Again, if it came before this thread has looked.
    while !is_written_back() {
        assert!(
            begin.elapsed() < Duration::from_secs(240),
            "write-back comes"
        );
    }
    volume.write("/last", "not synced").expect("written");
}

/// A volume whose process was killed, with 20 acknowledged files.
fn killed() -> Place {
    let place = Place::with_volume();
    kill(start(owner_command(&place.path("v.adit"))));
    place
}

/// The same, where volume and process are another user's.
fn killed_service() -> Place {
    let place = Place::with_volume();
    for path in [place.path("."), place.path("v.adit")] {
        std::os::unix::fs::chown(path, Some(USER), None).expect("given away");
    }
    let mut command = owner_command(&place.path("v.adit"));
    command.uid(USER);
    kill(start(command));
    place
}

fn files(text: &str) -> usize {
    text.lines()
        .filter(|line| line.contains("file0000"))
        .count()
}

/// All of it is there, and the next opening for writing makes it durable.
fn all_is_there(place: &Place) {
    assert_eq!(files(&place.ok(&["ls", "v.adit"])), FILES);
    place.ok(&["mkdir", "v.adit", "/taken-over"]);
    place.ok(&["rmdir", "v.adit", "/taken-over"]);
    assert_eq!(files(&place.ok(&["ls", "v.adit"])), FILES);
    assert_eq!(place.ok(&["cat", "v.adit", "/file000007"]), "7");
    place.ok(&["check", "v.adit"]);
    assert!(mappings(place, &place.path("v.adit")).is_empty());
}

/// The mappings of a volume, as `adit mappings` shows them.
fn mappings(place: &Place, volume: &Path) -> Vec<PathBuf> {
    let text = place.ok(&["mappings", "--json"]);
    let all: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let of_volume =
        |mapping: &&serde_json::Value| mapping["address"] == volume.to_str().expect("text");
    let all = all.as_array().expect("a list").iter().filter(of_volume);
    all.map(|mapping| mapping["path"].as_str().expect("a path").into())
        .collect()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const LOOKS: &[&[&str]] = &[
    &["ls", "-l"],
    &["stat"],
    &["du"],
    &["df"],
    &["info"],
    &["scrub", "--read-only"],
    &["check"],
];

fn look(place: &Place, words: &[&str], volume: &str) -> String {
    let mut words = words.to_vec();
    words.insert(1, volume);
    if words[0] == "stat" {
        words.push("/");
    }
    place.ok(&words)
}

/// `ls` after a kill recovered the image and took the mapping over; now each look leaves both as
/// they are.
#[test]
fn looking_writes_nothing() {
    let place = killed();
    let image = || std::fs::read(place.path("v.adit")).expect("read");
    let before = image();
    let left = mappings(&place, &place.path("v.adit"));
    assert_eq!(left.len(), 1);
    let memory = std::fs::read(&left[0]).expect("read");
    for words in LOOKS {
        look(&place, words, "v.adit");
    }
    assert_eq!(files(&place.ok(&["ls", "v.adit"])), FILES);
    let info = place.ok(&["info", "v.adit"]);
    assert!(
        info.contains("unsaved") && info.contains(left[0].to_str().expect("text")),
        "{info}"
    );
    assert_eq!(place.ok(&["cat", "v.adit", "/file000003"]), "3");
    place.ok(&["get", "v.adit", "/file000003", "copy"]);
    assert!(image() == before, "the image is as it was");
    assert!(
        std::fs::read(&left[0]).expect("read") == memory,
        "the mapping too"
    );
    all_is_there(&place);
}

#[test]
fn a_copy_made_after_the_kill_is_looked_at_and_the_original_loses_nothing() {
    let place = killed();
    std::fs::copy(place.path("v.adit"), place.path("bak.adit")).expect("copied");
    for words in LOOKS {
        look(&place, words, "bak.adit");
    }
    assert_eq!(files(&place.ok(&["ls", "bak.adit"])), 0);
    let said = told(&place.run(&["ls", "bak.adit"]));
    for word in ["adit: warning: ", "bak.adit: ", "not shown here", "/v.adit"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let errors = place.fails(1, &["mkdir", "bak.adit", "/d"]);
    for word in ["EOWNERDEAD", "v.adit", "leave", "adopt"] {
        assert!(errors.contains(word), "{word}: {errors}");
    }
    place.ok(&["mkdir", "bak.adit", "/d", "--takeover", "leave"]);
    assert_eq!(place.ok(&["ls", "bak.adit"]), "d/\n");
    all_is_there(&place);
}

#[test]
fn an_older_copy_that_is_put_back_is_refused_until_the_newer_image_is_there_again() {
    let place = Place::with_volume();
    let owner = start(owner_command(&place.path("v.adit")));
    std::fs::copy(place.path("v.adit"), place.path("older")).expect("copied");
    kill(owner);
    // The owner goes on in truth, and syncs; then it is killed.
    place.ok(&["mkdir", "v.adit", "/synced"]);
    kill(start(owner_command(&place.path("v.adit"))));
    std::fs::copy(place.path("v.adit"), place.path("newer")).expect("copied");
    std::fs::copy(place.path("older"), place.path("v.adit")).expect("put back");
    for words in [&["ls", "v.adit"][..], &["mkdir", "v.adit", "/d"]] {
        let errors = place.fails(1, words);
        assert!(
            errors.contains("EOWNERDEAD") && errors.contains("older"),
            "{errors}"
        );
    }
    std::fs::copy(place.path("newer"), place.path("v.adit")).expect("put back");
    assert!(place.ok(&["ls", "v.adit"]).contains("synced"));
    all_is_there(&place);
}

/// What was overwritten in place since the copy is in no journal; the time of that is, once
/// write-back has passed.
#[test]
fn an_older_copy_that_lacks_only_what_was_written_in_place_is_refused() {
    let place = Place::with_volume();
    let mut command = owner_command(&place.path("v.adit"));
    command.env("ADIT_TEST_IN_PLACE", "1");
    kill(start(command));
    std::fs::copy(place.path("v.adit"), place.path("newer")).expect("copied");
    std::fs::copy(place.path("v.adit.older"), place.path("v.adit")).expect("put back");
    let errors = place.fails(1, &["mkdir", "v.adit", "/d"]);
    assert!(
        errors.contains("EOWNERDEAD") && errors.contains("older"),
        "{errors}"
    );
    std::fs::copy(place.path("newer"), place.path("v.adit")).expect("put back");
    assert_eq!(place.ok(&["cat", "v.adit", "/last"]), "not synced");
    all_is_there(&place);
}

#[test]
fn a_volume_that_was_moved_is_adopted() {
    let place = killed();
    // Another inode, as on another file system.
    std::fs::copy(place.path("v.adit"), place.path("new.adit")).expect("copied");
    std::fs::remove_file(place.path("v.adit")).expect("moved");
    place.fails(1, &["mkdir", "new.adit", "/d"]);
    place.ok(&["mkdir", "new.adit", "/d", "--takeover", "adopt"]);
    assert_eq!(files(&place.ok(&["ls", "new.adit"])), FILES);
    // By rename it is the same file.
    let place = killed();
    std::fs::rename(place.path("v.adit"), place.path("w.adit")).expect("moved");
    place.ok(&["mkdir", "w.adit", "/d"]);
    assert_eq!(files(&place.ok(&["ls", "w.adit"])), FILES);
}

#[test]
fn discarding_is_asked_for_and_says_how_much() {
    let place = killed();
    let path = mappings(&place, &place.path("v.adit"))[0].clone();
    let text = place.ok(&["mappings"]);
    assert!(
        text.contains("unsaved") && text.contains(path.to_str().expect("text")),
        "{text}"
    );
    // Another version of Adit left it.
    let mut bytes = std::fs::read(&path).expect("read");
    bytes[8] ^= 0x80;
    std::fs::write(&path, &bytes).expect("written");
    for words in [&["ls", "v.adit"][..], &["mkdir", "v.adit", "/d"]] {
        let errors = place.fails(1, words);
        for word in ["EOWNERDEAD", "another version", "discard"] {
            assert!(errors.contains(word), "{word}: {errors}");
        }
    }
    bytes[8] ^= 0x80;
    std::fs::write(&path, &bytes).expect("written");
    assert_eq!(files(&place.ok(&["ls", "v.adit"])), FILES);
    let said = told(&place.run(&["mkdir", "v.adit", "/d", "--takeover", "discard"]));
    assert!(
        said.contains("unsaved data is discarded: 80 KiB of data"),
        "{said}"
    );
    assert_eq!(place.ok(&["ls", "v.adit"]), "d/\n");
    assert!(!path.exists());
}

#[test]
fn making_a_volume_anew_takes_what_was_left_of_the_old_one() {
    let place = killed();
    let left = mappings(&place, &place.path("v.adit"));
    place.fails(1, &["mkfs", "v.adit"]);
    assert!(left[0].exists());
    // A copy is made anew: what is the original's stays.
    std::fs::copy(place.path("v.adit"), place.path("bak.adit")).expect("copied");
    place.ok(&["mkfs", "--force", "bak.adit"]);
    std::fs::copy(place.path("v.adit"), place.path("bak.adit")).expect("copied");
    place.ok(&["mkdir", "bak.adit", "/d", "--takeover", "discard"]);
    assert!(left[0].exists());
    assert_eq!(files(&place.ok(&["ls", "v.adit"])), FILES);
    place.ok(&["mkfs", "--force", "v.adit"]);
    assert!(!left[0].exists());
    assert_eq!(place.ok(&["ls", "v.adit"]), "");
}

/// The names of the first versions had no seal.
#[test]
fn a_mapping_with_another_versions_name_refuses_the_opening_and_can_be_removed() {
    let place = killed();
    let path = mappings(&place, &place.path("v.adit"))[0].clone();
    let name = path.file_name().expect("a name").to_str().expect("text");
    let old = path.with_file_name(&name[..name.rfind('-').expect("parts")]);
    std::fs::rename(&path, &old).expect("renamed");
    let errors = place.fails(1, &["mkdir", "v.adit", "/d"]);
    let old = old.to_str().expect("text");
    assert!(
        errors.contains("EOWNERDEAD") && errors.contains(old),
        "{errors}"
    );
    let removed = place.ok(&["mappings", "--remove", old]);
    assert!(removed.contains("unsaved: 80 KiB"), "{removed}");
    place.ok(&["mkdir", "v.adit", "/d"]);
    assert_eq!(place.ok(&["ls", "v.adit"]), "d/\n");
    // Nothing else is removed.
    let other = place.path("adit-notes");
    std::fs::write(&other, "kept").expect("written");
    let other = other.to_str().expect("text");
    assert!(
        place
            .fails(1, &["mappings", "--remove", other])
            .contains("EINVAL")
    );
}

#[test]
fn mappings_are_listed_and_only_those_of_the_dead_removed() {
    let place = Place::with_volume();
    let owner = start(owner_command(&place.path("v.adit")));
    let path = mappings(&place, &place.path("v.adit"))[0].clone();
    let name = path.to_str().expect("text");
    let id = place.ok(&["info", "--json", "v.adit"]);
    let id: serde_json::Value = serde_json::from_str(&id).expect("JSON");
    assert!(name.contains("adit-"), "{name}");
    assert_eq!(id["survives_in"], name);
    // Which of it are huge pages is the kernel's decision.
    let bytes = |what: &str| id[what].as_u64().expect("a number");
    assert!(bytes("cache_huge_bytes") <= bytes("cache_bytes"), "{id}");
    assert!(bytes("cache_huge_bytes").is_multiple_of(2 << 20), "{id}");
    let errors = place.fails(1, &["mappings", "--remove", name]);
    assert!(
        errors.contains("EBUSY") && errors.contains("lives"),
        "{errors}"
    );
    kill(owner);
    let closed = place.ok(&["info", "--json", "v.adit"]);
    let closed: serde_json::Value = serde_json::from_str(&closed).expect("JSON");
    assert!(closed["cache_bytes"].is_null(), "{closed}");
    place.ok(&["mappings", "--remove-gone"]);
    assert!(path.exists(), "its volume is there");
    std::fs::remove_file(place.path("v.adit")).expect("deleted");
    let shown = place.ok(&["mappings"]);
    assert!(shown.contains("isn't there any more"), "{shown}");
    place.ok(&["mappings", "--remove-gone"]);
    assert!(path.exists(), "it holds what is nowhere else");
    let removed = place.ok(&["mappings", "--remove", name]);
    assert!(removed.contains("unsaved"), "{removed}");
    assert!(!path.exists());
}

#[test]
fn root_sees_what_another_user_left() {
    if !is_root() {
        return adit_skip::skip(adit_skip::OTHER_USER);
    }
    let place = killed_service();
    for words in LOOKS {
        look(&place, words, "v.adit");
    }
    // The service has everything, too.
    if !reaches(&place) {
        return adit_skip::skip(adit_skip::REACHABLE);
    }
    let as_service = |words: &[&str]| {
        let mut command = place.command(words);
        command.uid(USER);
        let output = place.end(command);
        assert!(output.status.success(), "{words:?}: {}", told(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    as_service(&["mkdir", "v.adit", "/d"]);
    as_service(&["rmdir", "v.adit", "/d"]);
    assert_eq!(files(&as_service(&["ls", "v.adit"])), FILES);
    all_is_there(&place);
}

/// The copy of a service's volume belonged to root, so what the service had left was "left by user
/// 1000, who is neither root, nor this user, nor the image's owner", and the copy wasn't shown.
#[test]
fn root_looks_at_its_copy_of_what_another_user_left() {
    if !is_root() {
        return adit_skip::skip(adit_skip::OTHER_USER);
    }
    let place = killed_service();
    let left = mappings(&place, &place.path("v.adit"))[0].clone();
    std::fs::copy(place.path("v.adit"), place.path("bak.adit")).expect("copied");
    let shows_the_copy = |case: &str| {
        for words in LOOKS {
            look(&place, words, "bak.adit");
        }
        let output = place.run(&["ls", "bak.adit"]);
        assert!(
            output.status.success() && output.stdout.is_empty(),
            "{case}"
        );
        let said = told(&output);
        for word in ["bak.adit: ", "not shown here", left.to_str().expect("text")] {
            assert!(said.contains(word), "{case}: {word}: {said}");
        }
        let errors = place.fails(1, &["mkdir", "bak.adit", "/d"]);
        for word in ["EOWNERDEAD", "another file", "takeover = leave"] {
            assert!(errors.contains(word), "{case}: {word}: {errors}");
        }
    };
    shows_the_copy("another user's");
    // Another version's.
    let mut bytes = std::fs::read(&left).expect("read");
    bytes[8] ^= 0x80;
    std::fs::write(&left, &bytes).expect("written");
    shows_the_copy("another version's");
    bytes[8] ^= 0x80;
    std::fs::write(&left, &bytes).expect("written");
    place.ok(&["mkdir", "bak.adit", "/d", "--takeover", "leave"]);
    all_is_there(&place);
}

/// The refusal named one mapping, advised to give up "that data", and `discard` deleted the good
/// one beside it, too.
#[test]
fn a_refusal_names_what_its_way_out_would_delete_too() {
    let place = killed();
    let good = mappings(&place, &place.path("v.adit"))[0].clone();
    // A careful operator saves the mapping first.
    let mut saved = good.clone().into_os_string();
    saved.push(".bak");
    let saved = PathBuf::from(saved);
    std::fs::copy(&good, &saved).expect("copied");
    let saved = saved.to_str().expect("text");
    for words in [&["ls", "v.adit"][..], &["mkdir", "v.adit", "/d"]] {
        let errors = place.fails(1, words);
        let good = format!("in {}, which could be taken over", good.display());
        let way = format!("adit mappings --remove {saved}");
        for word in ["EOWNERDEAD", "80 KiB of data", &good, &way] {
            assert!(errors.contains(word), "{word}: {errors}");
        }
    }
    // The refusal of a copy advises to remove nothing that the original needs.
    std::fs::copy(place.path("v.adit"), place.path("bak.adit")).expect("copied");
    let errors = place.fails(1, &["mkdir", "bak.adit", "/d"]);
    assert!(
        errors.contains("leave") && errors.contains(saved),
        "{errors}"
    );
    assert!(!errors.contains("--remove"), "{errors}");
    place.ok(&["mappings", "--remove", saved]);
    all_is_there(&place);
}

#[test]
fn who_looks_discards_nothing_and_says_so() {
    let place = killed();
    let output = place.run(&["ls", "v.adit", "--takeover", "discard"]);
    let said = told(&output);
    assert!(
        said.contains("left where it is, and not shown: 80 KiB"),
        "{said}"
    );
    assert_eq!(files(&String::from_utf8_lossy(&output.stdout)), 0);
    all_is_there(&place);
}

/// Root opened the older image without a word.
#[test]
fn an_older_image_beside_what_a_stranger_left_is_told() {
    if !is_root() {
        return adit_skip::skip(adit_skip::OTHER_USER);
    }
    let place = Place::with_volume();
    std::fs::copy(place.path("v.adit"), place.path("older")).expect("copied");
    let owner = start(owner_command(&place.path("v.adit")));
    let left = mappings(&place, &place.path("v.adit"))[0].clone();
    kill(owner);
    std::os::unix::fs::chown(&left, Some(USER), None).expect("given away");
    std::fs::copy(place.path("v.adit"), place.path("newer")).expect("copied");
    std::fs::copy(place.path("older"), place.path("v.adit")).expect("put back");
    let said = told(&place.run(&["ls", "v.adit"]));
    for word in [
        "isn't believed",
        "newer image",
        left.to_str().expect("text"),
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
    std::fs::copy(place.path("newer"), place.path("v.adit")).expect("put back");
    std::os::unix::fs::chown(&left, Some(0), None).expect("given back");
    all_is_there(&place);
}

/// Can another user run `adit` in that directory?
fn reaches(place: &Place) -> bool {
    let mut command = place.command(&["--version"]);
    command.uid(USER);
    command.output().is_ok_and(|output| output.status.success())
}

/// A user who may write the image, but not read what root's process left.
#[test]
fn who_may_not_read_what_was_left_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    if !is_root() {
        return adit_skip::skip(adit_skip::OTHER_USER);
    }
    let place = killed();
    let mode = |path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("changed");
    };
    mode(place.path("."), 0o777);
    mode(place.path("v.adit"), 0o666);
    if !reaches(&place) {
        return adit_skip::skip(adit_skip::REACHABLE);
    }
    for words in [&["ls", "v.adit"][..], &["mkdir", "v.adit", "/d"]] {
        let mut command = place.command(words);
        command.uid(USER);
        let output = place.end(command);
        let errors = told(&output);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        for word in ["EOWNERDEAD", "user 0", "discard"] {
            assert!(errors.contains(word), "{word}: {errors}");
        }
    }
    all_is_there(&place);
}

/// A forged mapping is no reason to lose anything, nor to be kept out.
#[test]
fn names_that_somebody_else_took_are_in_nobodys_way() {
    if !is_root() {
        return adit_skip::skip(adit_skip::OTHER_USER);
    }
    let place = killed();
    let path = mappings(&place, &place.path("v.adit"))[0].clone();
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .expect("text");
    let mut squatted = Vec::new();
    for epoch in 0..40 {
        // The next epochs, with all else as it is, and as the names were before.
        let parts: Vec<&str> = name.split('-').collect();
        let rest = parts[3..].join("-");
        for forged in [
            format!("adit-{}-{epoch:016x}-{rest}", parts[1]),
            format!("adit-{}-{epoch:016x}", parts[1]),
        ] {
            let forged = path.with_file_name(forged);
            if forged != path && std::fs::write(&forged, "squatted").is_ok() {
                std::os::unix::fs::chown(&forged, Some(USER), None).expect("given away");
                squatted.push(forged);
            }
        }
    }
    assert!(squatted.len() > 70);
    // As a living owner would have it.
    let locked: Vec<std::fs::File> = (squatted.iter())
        .map(|path| {
            let file = std::fs::File::open(path).expect("opened");
            let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
            rustix::fs::flock(&file, lock).expect("locked");
            file
        })
        .collect();
    // An open of a file with a lease waits 45 s, or is EAGAIN.
    let leased = path.with_file_name(format!("adit-{}-x", &name[5..37]));
    std::fs::write(&leased, "squatted").expect("written");
    std::os::unix::fs::chown(&leased, Some(USER), None).expect("given away");
    let lease = std::fs::OpenOptions::new()
        .write(true)
        .open(&leased)
        .expect("opened");
    // SAFETY: plain numbers; the descriptor is open. The signal that an open of the file sends
    // is ignored.
    let has_lease = unsafe {
        libc::fcntl(lease.as_raw_fd(), F_SETSIG, libc::SIGURG)
            | libc::fcntl(lease.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
    };
    assert_eq!(has_lease, 0, "{}", std::io::Error::last_os_error());
    squatted.push(leased);
    all_is_there(&place);
    kill(start(owner_command(&place.path("v.adit"))));
    assert_eq!(files(&place.ok(&["ls", "v.adit"])), FILES);
    drop((locked, lease));
    for path in squatted {
        assert!(path.exists(), "nobody's file is touched");
        std::fs::remove_file(path).expect("deleted");
    }
    all_is_there(&place);
}

#[test]
fn without_descriptors_the_opening_is_refused_and_nothing_is_lost() {
    without_descriptors(None);
}

/// The table of mounts couldn't be read, so the directory that the volume names wasn't looked at.
#[test]
fn without_descriptors_memory_in_another_directory_is_not_passed_by() {
    let memory = tempfile::tempdir_in("/dev/shm").expect("made");
    without_descriptors(Some(memory.path()));
}

fn without_descriptors(memory: Option<&Path>) {
    let place = Place::with_volume();
    let leave = || {
        let mut command = owner_command(&place.path("v.adit"));
        if let Some(memory) = memory {
            command.env("ADIT_TEST_SURVIVE_IN", memory);
        }
        kill(start(command));
    };
    leave();
    let mut refused = 0;
    for limit in 4..24 {
        for words in ["ls v.adit", "mkdir v.adit /d"] {
            let adit = env!("CARGO_BIN_EXE_adit");
            let mut command = Command::new("sh");
            command
                .args(["-c", &format!("ulimit -n {limit}; exec {adit} {words}")])
                .current_dir(place.path("."));
            let output = place.end(command);
            let shown = String::from_utf8_lossy(&output.stdout).into_owned();
            if output.status.success() {
                if words.starts_with("ls") {
                    assert_eq!(files(&shown), FILES, "limit {limit}: {}", told(&output));
                } else {
                    place.ok(&["rmdir", "v.adit", "/d"]);
                    leave();
                }
            } else {
                refused += 1;
                assert!(!told(&output).is_empty(), "limit {limit}");
            }
        }
        assert_eq!(files(&place.ok(&["ls", "v.adit"])), FILES, "limit {limit}");
    }
    assert!(refused > 5, "{refused} were refused");
    all_is_there(&place);
}

/// Docker's /dev/shm has 64 MiB, the default cache 256 MiB. ("Survives SIGKILL" was silently not
/// given.)
#[test]
fn with_little_shared_memory_the_cache_is_smaller_and_with_less_the_opening_is_refused() {
    let place = Place::with_volume();
    let Some(docker) = SmallMemory::new(&place, "64m") else {
        return adit_skip::skip(adit_skip::MOUNT);
    };
    let mut command = owner_command(&place.path("v.adit"));
    command.env("ADIT_TEST_SURVIVE_IN", &docker.0);
    let owner = start(command);
    let info = place.ok(&["info", "v.adit"]);
    assert!(info.contains(&format!("in {}", docker.text())), "{info}");
    kill(owner);
    let survive_in = ["--survive-in", docker.text()];
    let ls = [&["ls", "v.adit"][..], &survive_in].concat();
    assert_eq!(files(&place.ok(&ls)), FILES);
    // Taken over with as little room: the new cache lies beside the old one.
    place.ok(&[&["mkdir", "v.adit", "/d"][..], &survive_in].concat());
    assert_eq!(files(&place.ok(&["ls", "v.adit"])), FILES);

    let tiny = SmallMemory::new(&place, "4m").expect("as the first");
    let survive_in = ["--survive-in", tiny.text()];
    let mkdir = [&["mkdir", "v.adit", "/e"][..], &survive_in].concat();
    let errors = place.fails(1, &mkdir);
    for word in ["ENOSPC", tiny.text(), "prefer"] {
        assert!(errors.contains(word), "{word}: {errors}");
    }
    place.ok(&[&mkdir[..], &["--survive", "prefer"]].concat());
    place.ok(&[
        "mkdir",
        "v.adit",
        "/f",
        "--survive",
        "off",
        "--survive-in",
        "/nowhere",
    ]);
    let errors = place.fails(1, &["mkdir", "v.adit", "/g", "--survive-in", "/nowhere"]);
    assert!(errors.contains("/nowhere"), "{errors}");
    place.ok(&["check", "v.adit"]);
}

/// Others fill the shared memory while the volume is open: write-back has the frames that it needs.
#[test]
fn writers_go_on_when_shared_memory_runs_out() {
    const WRITERS: usize = 24;
    const BYTES: usize = 2 << 20;
    let place = Place::with_volume();
    let Some(memory) = SmallMemory::new(&place, "64m") else {
        return adit_skip::skip(adit_skip::MOUNT);
    };
    let mut options = VolumeOptions::new();
    options.survive_in(&memory.0);
    let image = place.path("v.adit");
    let volume = Volume::open_with(image.to_str().expect("text"), &options).expect("opened");
    let filler = std::fs::File::create(memory.0.join("filler")).expect("made");
    while (&filler).write_all(&[7; 64 << 10]).is_ok() {}
    std::thread::scope(|scope| {
        for number in 0..WRITERS {
            let volume = &volume;
            scope.spawn(move || {
                let name = format!("/w{number}");
                volume
                    .write(&name, vec![number as u8; BYTES])
                    .expect("written");
            });
        }
    });
    for number in 0..WRITERS {
        let content = volume.read(format!("/w{number}")).expect("read");
        assert!(content == vec![number as u8; BYTES], "writer {number}");
    }
    volume.close().expect("closed");
    place.ok(&["check", "v.adit"]);
}

#[test]
fn an_image_and_its_loop_device_have_one_owner() {
    let place = Place::with_volume();
    let image = place.path("v.adit");
    let Some(device) = LoopDevice::new(&image) else {
        return adit_skip::skip(adit_skip::LOOP_DEVICES);
    };
    for (owner, other) in [
        (image.as_path(), Path::new(&device.0)),
        (Path::new(&device.0), &image),
    ] {
        for survive in ["require", "off"] {
            let open = Volume::open_with(
                owner.to_str().expect("text"),
                VolumeOptions::new().survive(match survive {
                    "off" => adit::Survive::Off,
                    _ => adit::Survive::Require,
                }),
            );
            let open = open.expect("opened");
            open.write("/f", survive).expect("written");
            let other = other.to_str().expect("text");
            let errors = place.fails(1, &["mkdir", other, "/d"]);
            assert!(errors.contains("EBUSY"), "{errors}");
            let errors = place.fails(1, &["mkdir", other, "/d", "--takeover", "leave"]);
            assert!(errors.contains("EBUSY"), "{errors}");
            let errors = place.fails(1, &["mkfs", "--force", other]);
            assert!(errors.contains("EBUSY"), "{errors}");
            open.close().expect("closed");
        }
        // Killed on one way, taken over on the other: it is the same file.
        kill(start(owner_command(owner)));
        let other = other.to_str().expect("text");
        assert_eq!(files(&place.ok(&["ls", other])), FILES);
        place.ok(&["mkdir", other, "/d"]);
        assert_eq!(
            files(&place.ok(&["ls", owner.to_str().expect("text")])),
            FILES
        );
        place.ok(&["rmdir", other, "/d"]);
        place.ok(&["check", other]);
    }
}

/// A process in another pid namespace that shares /dev/shm opened an older copy, and unlinked the
/// living owner's mapping.
#[test]
fn another_pid_namespace_takes_no_living_owners_mapping() {
    let place = Place::with_volume();
    std::fs::copy(place.path("v.adit"), place.path("older")).expect("copied");
    let owner = start(owner_command(&place.path("v.adit")));
    std::fs::copy(place.path("v.adit"), place.path("same")).expect("copied");
    let left = mappings(&place, &place.path("v.adit"));
    assert_eq!(left.len(), 1);
    let elsewhere = |words: &[&str]| {
        let mut command = support::in_pid_namespace(&["--mount-proc"]);
        command.args(words).current_dir(place.path("."));
        place.end(command)
    };
    if !elsewhere(&["--version"]).status.success() {
        kill(owner);
        return adit_skip::skip(adit_skip::PID_NAMESPACES);
    }
    let made = elsewhere(&["mkdir", "older", "/d"]);
    assert!(made.status.success(), "{}", told(&made));
    let refused = elsewhere(&["mkdir", "same", "/d"]);
    assert!(told(&refused).contains("EBUSY"), "{}", told(&refused));
    let refused = elsewhere(&["mkdir", "v.adit", "/d"]);
    assert!(told(&refused).contains("EBUSY"), "{}", told(&refused));
    assert_eq!(mappings(&place, &place.path("v.adit")), left);
    kill(owner);
    let shown = elsewhere(&["ls", "v.adit"]);
    assert_eq!(files(&String::from_utf8_lossy(&shown.stdout)), FILES);
    all_is_there(&place);
}

/// A standby polls until it can open the volume, while the active process is killed. (In one to
/// three of 150 to 500 trials it had the lock before the dying process counted as dead, and went on
/// without what that had acknowledged.) `ADIT_HANDOVERS=1000` for more.
#[test]
fn a_standby_that_polls_takes_everything_over() {
    let trials: usize = match std::env::var("ADIT_HANDOVERS") {
        Ok(text) => text.parse().expect("a number"),
        Err(_) => 20,
    };
    let place = Place::with_volume();
    let standby = || {
        let mut command = owner_command(&place.path("v.adit"));
        command.env("ADIT_TEST_STANDBY", "1");
        let mut child = command.spawn().expect("it runs");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        (child, lines.map_while(Result::ok))
    };
    let number =
        |line: &str, word: &str| -> Option<usize> { line.strip_prefix(word)?.trim().parse().ok() };
    let (mut active, mut lines) = standby();
    lines
        .find(|line| line.starts_with("found "))
        .expect("opened");
    let begin = Instant::now();
    for trial in 0..trials {
        let (next, mut next_lines) = standby();
        let mut acknowledged = 0;
        for line in lines.by_ref().take(3 + trial % 5) {
            acknowledged = number(&line, "acknowledged").expect("an acknowledgement");
        }
        active.kill().expect("killed");
        // What it said before it died counts.
        for line in lines.by_ref() {
            acknowledged = number(&line, "acknowledged").unwrap_or(acknowledged);
        }
        let found = next_lines
            .find_map(|line| number(&line, "found"))
            .unwrap_or_else(|| panic!("trial {trial}: the standby didn't open the volume"));
        assert!(
            (acknowledged..=acknowledged + 1).contains(&found),
            "trial {trial}: {acknowledged} acknowledged, {found} found"
        );
        active.wait().expect("ended");
        (active, lines) = (next, next_lines);
    }
    println!("{trials} handovers in {:?}", begin.elapsed());
    active.kill().expect("killed");
    active.wait().expect("ended");
    place.ok(&["mkdir", "v.adit", "/end"]);
    place.ok(&["check", "v.adit"]);
}
