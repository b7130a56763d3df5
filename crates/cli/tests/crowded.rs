//! A killed process has left its memory in a tmpfs that has no room for another cache: the next
//! opening needs none before it has taken that over.
//!
//! It was refused (ENOSPC), or had the smallest cache for as long as it lived.

mod support;

use adit::{Volume, VolumeOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use support::servers::{Served, Watchdog, appending, connect_for};
use support::{LIMIT, Place, SmallMemory, json, kill, noise, owner_command, start};

/// The killed process has written these bytes and not synced them.
const FILES: u64 = 10;
const FILE_BYTES: usize = 2 << 20;
const NO_TMPFS: &str = adit_skip::MOUNT;

/// The process that tests kill. It fills its cache, says that it is ready, and waits.
#[test]
#[ignore = "is the process that tests start and kill"]
fn the_owner_process() {
    let mut options = VolumeOptions::new();
    options.writeback_interval(Duration::from_secs(3600));
    options.survive_in(std::env::var_os("ADIT_TEST_SURVIVE_IN").expect("given"));
    let address = std::env::var("ADIT_TEST_VOLUME").expect("given");
    let volume = Volume::open_with(&address, &options).expect("opened");
    for number in 0..FILES {
        let name = format!("/{number}");
        volume
            .write(name, noise(number, FILE_BYTES))
            .expect("written");
    }
    writeln!(std::io::stdout(), "\nready").expect("told");
    loop {
        std::thread::park();
    }
}

/// A volume whose process was killed, and the tmpfs in which it has left its memory.
fn killed() -> Option<(Place, SmallMemory)> {
    let place = Place::with_volume();
    let memory = SmallMemory::new(&place, "64m")?;
    let mut command = owner_command(&place.path("v.adit"));
    command.env("ADIT_TEST_SURVIVE_IN", &memory.0);
    kill(start(command));
    Some((place, memory))
}

/// Fills a tmpfs but for so many bytes.
fn fill(memory: &SmallMemory, left_bytes: u64) {
    let filler = std::fs::File::create(memory.0.join("filler")).expect("made");
    while (&filler).write_all(&[7; 4096]).is_ok() {}
    let len = filler.metadata().expect("known").len();
    filler.set_len(len.saturating_sub(left_bytes)).expect("cut");
}

/// The files in a tmpfs that are Adit's.
fn left(memory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(memory).expect("listed");
    let paths = entries.map(|entry| entry.expect("read").path());
    paths.filter(|path| !path.ends_with("filler")).collect()
}

fn all_is_there(place: &Place) {
    let volume = place.open();
    for number in 0..FILES {
        let content = volume.read(format!("/{number}")).expect("read");
        assert!(content == noise(number, FILE_BYTES), "file {number}");
    }
    volume.close().expect("closed");
    place.ok(&["check", "v.adit"]);
}

#[test]
fn memory_is_taken_over_where_a_tmpfs_has_no_room_beside_it() {
    let Some((place, memory)) = killed() else {
        return adit_skip::skip(NO_TMPFS);
    };
    fill(&memory, 256 << 10);
    place.ok(&["mkdir", "v.adit", "/d", "--survive-in", memory.text()]);
    assert_eq!(left(&memory.0), Vec::<PathBuf>::new());
    all_is_there(&place);
}

#[test]
fn the_cache_after_a_takeover_is_as_large_as_without_one() {
    let Some((place, memory)) = killed() else {
        return adit_skip::skip(NO_TMPFS);
    };
    let cache = |of: &Place| {
        let mut options = VolumeOptions::new();
        options.survive_in(&memory.0);
        let image = of.path("v.adit");
        let volume = Volume::open_with(image.to_str().expect("text"), &options).expect("opened");
        let info = volume.info().expect("known");
        assert!(info.survives);
        volume.close().expect("closed");
        info.cache_bytes
    };
    let after = cache(&place);
    assert_eq!(after, cache(&place));
    assert!(after > 32 << 20, "{after}");
    all_is_there(&place);
}

/// The opening after the takeover is the second one since the server was killed.
#[test]
fn sessions_go_on_with_a_server_that_had_no_room_beside_the_last_ones_memory() {
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let Some(memory) = SmallMemory::new(&place, "64m") else {
        return adit_skip::skip(NO_TMPFS);
    };
    let survive_in = ["--survive-in", memory.text()];
    let served = Served::start(&place, &survive_in);
    let volume = connect_for(&place, LIMIT);
    let file = volume.open_file("/f", &appending()).expect("made");
    file.append(&noise(1, FILE_BYTES)).expect("written");
    served.signal(rustix::process::Signal::KILL);
    served.end();
    fill(&memory, 256 << 10);
    let served = Served::start(
        &place,
        &[&survive_in[..], &["--survive", "prefer"]].concat(),
    );
    file.append(&noise(2, FILE_BYTES)).expect("it goes on");
    let expected = [noise(1, FILE_BYTES), noise(2, FILE_BYTES)].concat();
    assert!(volume.read("/f").expect("read") == expected);
    drop(file);
    volume.close().expect("closed");
    served.signal(rustix::process::Signal::TERM);
    assert!(served.end().0.success());
    place.ok(&["check", "v.adit"]);
}

#[test]
fn memory_is_discarded_where_a_tmpfs_has_no_room_beside_it() {
    let Some((place, memory)) = killed() else {
        return adit_skip::skip(NO_TMPFS);
    };
    fill(&memory, 256 << 10);
    let discard = ["--takeover", "discard", "--survive-in", memory.text()];
    place.ok(&[&["mkdir", "v.adit", "/d"][..], &discard].concat());
    assert_eq!(left(&memory.0), Vec::<PathBuf>::new());
    place.ok(&["check", "v.adit"]);
}

/// Killed at more and more points of it, until one comes to its end.
#[test]
fn a_takeover_that_is_killed_loses_nothing_and_leaves_no_copy() {
    const STEP: Duration = Duration::from_millis(3);
    let Some((place, memory)) = killed() else {
        return adit_skip::skip(NO_TMPFS);
    };
    fill(&memory, 256 << 10);
    let before = left(&memory.0);
    let mut kills = 0;
    loop {
        let mut command = place.command(&["mkdir", "v.adit", "/d", "--survive-in", memory.text()]);
        command.stderr(Stdio::null());
        let mut child = command.spawn().expect("started");
        std::thread::sleep(STEP * kills);
        let ended = child.try_wait().expect("our child").is_some();
        kill(child);
        if ended {
            break;
        }
        kills += 1;
        // Claims of killed openings are a page each.
        let large = |path: &PathBuf| path.metadata().is_ok_and(|it| it.len() > 4096);
        let mappings: Vec<PathBuf> = left(&memory.0).into_iter().filter(large).collect();
        let of_dead = mappings.iter().filter(|path| before.contains(path)).count();
        // All of the dead process's, or, after that, only the next one's own.
        assert!(of_dead == 0 || of_dead == mappings.len(), "{mappings:?}");
    }
    assert!(kills > 0, "none was killed");
    let looked = place.run(&["info", "--json", "v.adit", "--survive-in", memory.text()]);
    assert!(json(&looked)["unsaved"].is_null(), "{looked:?}");
    all_is_there(&place);
}
