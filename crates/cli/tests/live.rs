//! Commands on a volume that a process has open: looking works, everything else is refused with
//! that process's name.

mod support;

use adit::{OpenOptions, Volume, VolumeOptions};
use std::os::unix::process::CommandExt;
use std::process::Command;
use support::{
    LoopDevice, Place, USER, free_descriptor, is_root, kill, limit_descriptors, noise,
    owner_command, start,
};

fn address(place: &Place) -> String {
    place.path("v.adit").to_str().expect("text").to_owned()
}

/// A few files, some of them not yet on the device.
fn fill(volume: &Volume) {
    volume.create_dir("/d").expect("made");
    volume.create_dir("/d/e").expect("made");
    volume.write("/d/f", noise(1, 100_000)).expect("written");
    volume.hard_link("/d/f", "/d/e/g").expect("linked");
    volume.write("/h", "content").expect("written");
    volume.symlink("../h", "/d/e/link").expect("made");
}

const LOOKS: &[&[&str]] = &[
    &["ls", "v.adit"],
    &["ls", "-l", "v.adit", "/d"],
    &["ls", "--json", "v.adit", "/d/e"],
    &["ls", "-l", "v.adit", "/h"],
    &["stat", "v.adit", "/d", "/h"],
    &["stat", "--json", "v.adit", "/d/f", "/d/e/link"],
    &["du", "v.adit"],
    &["du", "-s", "v.adit", "/d"],
];

#[test]
fn what_is_seen_through_the_owner_is_what_is_there() {
    let place = Place::with_volume();
    let volume = place.open();
    fill(&volume);
    volume.sync().expect("allocated");
    let live: Vec<String> = LOOKS.iter().map(|command| place.ok(command)).collect();
    assert_eq!(live[0], "d/\nh\n");
    assert!(live[5].contains("\"target\": "), "{}", live[5]);
    let (info, df) = (
        place.ok(&["info", "v.adit"]),
        place.ok(&["df", "--json", "v.adit"]),
    );
    let pid = std::process::id();
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).expect("Linux");
    let owner = format!("  open by   {pid} {name}");
    assert!(info.contains(&owner), "{info}");
    volume.close().expect("closed");
    for (command, live) in LOOKS.iter().zip(live) {
        assert_eq!(place.ok(command), live, "{command:?}");
    }
    assert_eq!(place.ok(&["df", "--json", "v.adit"]), df);
    assert!(!place.ok(&["info", "v.adit"]).contains("open by"));
    place.ok(&["check", "v.adit"]);
}

#[test]
fn a_directory_of_many_files_is_seen_whole_while_it_changes() {
    let place = Place::with_volume();
    let volume = place.open();
    volume.create_dir("/d").expect("made");
    for number in 0..3000 {
        volume
            .write(format!("/d/stays{number}"), "x")
            .expect("written");
    }
    std::thread::scope(|scope| {
        let (ended, end) = std::sync::mpsc::channel::<()>();
        let volume = &volume;
        scope.spawn(move || {
            while end.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                for number in 0..50 {
                    let directory = format!("/d/comes{number}");
                    volume.create_dir(&directory).expect("made");
                    volume
                        .write(format!("{directory}/f"), "x")
                        .expect("written");
                }
                for number in 0..50 {
                    volume
                        .remove_dir_all(format!("/d/comes{number}"))
                        .expect("removed");
                }
            }
        });
        for _ in 0..5 {
            let names = place.ok(&["ls", "v.adit", "/d"]);
            assert_eq!(names.matches("stays").count(), 3000);
            // Directories go while it looks into them: no error.
            assert!(place.ok(&["du", "v.adit", "/d"]).ends_with(" /d\n"));
        }
        drop(ended);
    });
    volume.close().expect("closed");
}

#[test]
fn commands_that_write_are_refused_with_the_owners_name() {
    let place = Place::with_volume();
    let volume = place.open();
    fill(&volume);
    place.write("local", "x");
    for command in [
        &["put", "v.adit", "local", "/"][..],
        &["rm", "v.adit", "/h"],
        &["mkdir", "v.adit", "/new"],
        &["rmdir", "v.adit", "/d/e"],
        &["mv", "v.adit", "/h", "/i"],
        &["ln", "v.adit", "/h", "/i"],
        &["grow", "v.adit", "1G"],
        &["mkfs", "--force", "v.adit"],
        &["check", "v.adit"],
        &["cat", "v.adit", "/h"],
        &["get", "v.adit", "/h", "copy"],
    ] {
        let errors = place.fails(1, command);
        let owner = format!("(pid {})", std::process::id());
        assert!(
            errors.contains("EBUSY") && errors.contains(&owner),
            "{command:?}: {errors}"
        );
    }
    assert_eq!(place.ok(&["ls", "v.adit"]), "d/\nh\n");
    volume.close().expect("closed");
}

#[test]
fn lsof_shows_what_is_open_how_and_under_which_name() {
    let place = Place::with_volume();
    assert_eq!(
        place.ok(&["lsof", "v.adit"]),
        "nobody has it open for writing\n"
    );
    let volume = place.open();
    fill(&volume);
    let log = volume
        .open_file("/d/e/g", OpenOptions::new().append(true))
        .expect("opened");
    let gone = volume
        .open_file(
            "/gone",
            OpenOptions::new().read(true).write(true).create(true),
        )
        .expect("opened");
    gone.write_at(b"12345", 0).expect("written");
    volume.remove_file("/gone").expect("removed");
    let shown: serde_json::Value =
        serde_json::from_str(&place.ok(&["lsof", "--json", "--paths", "v.adit"])).expect("JSON");
    assert_eq!(shown["open_by"]["pid"], std::process::id());
    let files = shown["files"].as_array().expect("a list");
    assert_eq!(files.len(), 2, "{shown}");
    let inode = volume.metadata("/d/f").expect("there").inode();
    let file = files
        .iter()
        .find(|file| file["inode"] == inode)
        .expect("listed");
    assert_eq!(
        (&file["flags"], &file["size_bytes"]),
        (&"w,append".into(), &100_000.into())
    );
    assert!(["/d/f", "/d/e/g"].contains(&file["path"].as_str().expect("a path")));
    let file = files
        .iter()
        .find(|file| file["inode"] != inode)
        .expect("listed");
    assert_eq!(
        (&file["flags"], &file["size_bytes"]),
        (&"rw".into(), &5.into())
    );
    assert_eq!(
        (&file["unlinked"], &file["path"]),
        (&true.into(), &serde_json::Value::Null)
    );
    let text = place.ok(&["lsof", "--paths", "v.adit"]);
    assert!(
        text.contains("w,append") && text.contains("(deleted)"),
        "{text}"
    );
    // More than one answer holds.
    let many: Vec<_> = (0..300)
        .map(|_| {
            volume
                .open_file("/h", OpenOptions::new().read(true))
                .expect("opened")
        })
        .collect();
    assert_eq!(place.ok(&["lsof", "v.adit"]).lines().count(), 2 + 302);
    drop((log, gone, many));
    assert_eq!(place.ok(&["lsof", "v.adit"]).lines().count(), 2);
    volume.close().expect("closed");
}

#[test]
fn an_owner_that_was_told_not_to_answer_is_named_at_least() {
    let place = Place::with_volume();
    let volume = Volume::open_with(&address(&place), VolumeOptions::new().inspectable(false))
        .expect("opened");
    let errors = place.fails(1, &["ls", "v.adit"]);
    assert!(
        errors.contains("EBUSY") && errors.contains("(pid "),
        "{errors}"
    );
    volume.close().expect("closed");
}

#[test]
#[ignore = "is the process that tests start and kill"]
fn the_owner_process() {
    let volume = Volume::open(&std::env::var("ADIT_TEST_VOLUME").expect("given")).expect("opened");
    volume.write("/from-owner", "content").expect("written");
    println!("\nready");
    loop {
        std::thread::park();
    }
}

#[test]
fn once_the_owner_is_killed_commands_work_directly() {
    let place = Place::with_volume();
    let child = start(owner_command(&place.path("v.adit")));
    assert_eq!(place.ok(&["ls", "v.adit"]), "from-owner\n");
    let info = place.ok(&["info", "v.adit"]);
    assert!(
        info.contains(&format!("open by   {} ", child.id())),
        "{info}"
    );
    kill(child);
    assert_eq!(place.ok(&["ls", "v.adit"]), "from-owner\n");
    assert!(!place.ok(&["info", "v.adit"]).contains("open by"));
    place.ok(&["mkdir", "v.adit", "/d"]);
    assert_eq!(place.ok(&["cat", "v.adit", "/from-owner"]), "content");
}

#[test]
fn an_owner_that_is_stopped_is_named_and_not_waited_for_long() {
    let place = Place::with_volume();
    let child = start(owner_command(&place.path("v.adit")));
    let (pid, mut status) = (child.id() as libc::pid_t, 0);
    // SAFETY: a child of ours. It is stopped only when the kernel says so.
    unsafe {
        libc::kill(pid, libc::SIGSTOP);
        assert_eq!(libc::waitpid(pid, &mut status, libc::WUNTRACED), pid);
    }
    assert!(libc::WIFSTOPPED(status));
    let errors = place.fails(1, &["ls", "v.adit"]);
    kill(child);
    assert!(
        errors.contains("EBUSY") && errors.contains("doesn't answer"),
        "{errors}"
    );
}

/// The onlooker waited for ten seconds, and was told that the owner doesn't answer.
#[test]
fn an_owner_without_descriptors_refuses_with_words_and_goes_on() {
    let place = Place::with_volume();
    let child = start(owner_command(&place.path("v.adit")));
    let mut free = free_descriptor(child.id());
    limit_descriptors(child.id(), free);
    let mut refused = 0;
    while refused < 3 {
        let looked = place.run(&["ls", "v.adit"]);
        if looked.status.success() {
            // The owner had a descriptor for a moment that it has no more.
            (free, refused) = (free - 1, 0);
            limit_descriptors(child.id(), free);
            continue;
        }
        let errors = String::from_utf8_lossy(&looked.stderr);
        assert_eq!(looked.status.code(), Some(1), "{errors}");
        assert!(
            errors.contains("EBUSY") && errors.contains("too many open"),
            "{errors}"
        );
        refused += 1;
    }
    limit_descriptors(child.id(), 256);
    assert_eq!(place.ok(&["ls", "v.adit"]), "from-owner\n");
    kill(child);
}

#[test]
fn root_sees_the_volume_of_another_user() {
    if !is_root() {
        return adit_skip::skip(adit_skip::OTHER_USER);
    }
    let place = Place::with_volume();
    for path in [place.path("."), place.path("v.adit")] {
        std::os::unix::fs::chown(path, Some(USER), None).expect("given away");
    }
    let program = std::env::current_exe().expect("known");
    let reachable = Command::new("setpriv")
        .args(["--reuid", "4711", "--clear-groups", "test", "-x"])
        .arg(&program)
        .status();
    if !reachable.is_ok_and(|status| status.success()) {
        return adit_skip::skip(adit_skip::REACHABLE);
    }
    let mut command = owner_command(&place.path("v.adit"));
    command.uid(USER);
    let child = start(command);
    assert_eq!(place.ok(&["ls", "v.adit"]), "from-owner\n");
    kill(child);
}

#[test]
fn a_block_device_is_found_by_every_name_that_it_has() {
    let place = Place::with_volume();
    let Some(device) = LoopDevice::new(&place.path("v.adit")) else {
        return adit_skip::skip(adit_skip::LOOP_DEVICES);
    };
    let volume = Volume::open(&device.0).expect("opened");
    volume.write("/f", "x").expect("written");
    std::os::unix::fs::symlink(&device.0, place.path("link")).expect("made");
    assert_eq!(place.ok(&["ls", &device.0]), "f\n");
    assert_eq!(place.ok(&["ls", "link"]), "f\n");
    let errors = place.fails(1, &["mkdir", "link", "/d"]);
    assert!(errors.contains("EBUSY"), "{errors}");
    volume.close().expect("closed");
    assert_eq!(place.ok(&["ls", "link"]), "f\n");
}
