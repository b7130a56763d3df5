//! Every writer finds its commits, and reports states that no power cut may leave.

use crate::database::Mode;
use crate::place::{File, Open, Place};
use crate::writer::Opened;
use crate::{atomic, database, log, names, pages};

type Opens = fn(&Place) -> Opened<'_>;

const BOTH: [Opens; 5] = [
    log::open,
    pages::open,
    names::open,
    |place| database::open(place, Mode::Wal),
    |place| database::open(place, Mode::Delete),
];
const OF_VOLUMES: [Opens; 2] = [atomic::open, |place| database::open(place, Mode::Batch)];

/// A folder in memory: these tests are about content, and a disk's syncs take their time.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a folder")
}

/// A directory and a volume.
fn places(test: impl Fn(&Place)) {
    let folder = folder();
    let path = folder.path().to_str().expect("a plain name");
    test(&Place::open("directory", path).expect("a directory"));
    volume(test);
}

fn volume(test: impl Fn(&Place)) {
    // SQLite knows one volume by the name that all tests use.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let place = Place::open("volume", "mem:64M").expect("memory");
    test(&place);
    place.close().expect("memory doesn't fail");
}

fn commit(place: &Place, open: Opens, commits: u64) {
    let (mut writer, found) = open(place).expect("it can be verified");
    for number in found + 1..=found + commits {
        writer.commit(number).expect("it can commit");
    }
}

fn found(place: &Place, open: Opens) -> Result<u64, String> {
    open(place).map(|(_, found)| found)
}

/// Overwrites a part of a file.
fn damage(place: &Place, name: &str, offset: u64, bytes: &[u8]) {
    let file = place.file(name, Open::Existing).expect("it is there");
    file.write_at(bytes, offset).expect("it can be written");
}

fn cut_off(place: &Place, name: &str, bytes: usize) {
    let len = place.read(name).expect("it is there").len() - bytes;
    let file: File = place.file(name, Open::Existing).expect("it is there");
    file.set_len(len as u64).expect("it can be cut");
}

#[test]
fn what_was_committed_is_found_after_each_opening() {
    let writes_on = |place: &Place, open: Opens| {
        assert_eq!(found(place, open), Ok(0));
        // More than a segment of the log, and than SQLite keeps.
        for (commits, sum) in [(1, 1), (6, 7), (400, 407)] {
            commit(place, open, commits);
            assert_eq!(found(place, open), Ok(sum));
        }
    };
    places(|place| BOTH.into_iter().for_each(|open| writes_on(place, open)));
    volume(|place| {
        OF_VOLUMES
            .into_iter()
            .for_each(|open| writes_on(place, open))
    });
}

#[test]
fn a_log_that_lost_its_end_is_shorter_and_one_with_a_hole_is_none() {
    places(|place| {
        commit(place, log::open, 450);
        cut_off(place, "log.2", 1);
        assert_eq!(found(place, log::open), Ok(449));
        damage(place, "log.1", 5000, b"what nobody wrote");
        assert!(found(place, log::open).is_err());
    });
    places(|place| {
        commit(place, log::open, 450);
        place.ensure("log.0", b"").expect("it can be made");
        assert!(found(place, log::open).is_err(), "segment 0 is not whole");
        place.remove("log.1").expect("it can be removed");
        assert!(found(place, log::open).is_err(), "segment 1 is not there");
        place.remove("log.0").expect("it can be removed");
        assert_eq!(found(place, log::open), Ok(450));
    });
}

#[test]
fn bytes_behind_the_last_record_are_a_part_of_the_next_one() {
    places(|place| {
        commit(place, log::open, 5);
        let len = place.read("log.0").expect("it is there").len() as u64;
        damage(place, "log.0", len, &[0; 100]);
        match place.is_strict() {
            true => assert!(found(place, log::open).is_err()),
            // ext4 may have a size of an append whose bytes it hasn't.
            false => assert_eq!(found(place, log::open), Ok(5)),
        }
    });
}

#[test]
fn a_page_may_be_torn_if_its_commit_was_the_last_one() {
    places(|place| {
        commit(place, pages::open, 299);
        let before = place.read("pages").expect("it is there");
        commit(place, pages::open, 1);
        let after = place.read("pages").expect("it is there");
        let sectors = before.chunks(512).zip(after.chunks(512));
        let changed: Vec<usize> = (0..)
            .zip(sectors)
            .filter(|(_, (before, after))| before != after)
            .map(|(sector, _)| sector * 512)
            .collect();
        assert_eq!(changed.len(), 8);
        let (first, other) = (changed[0], (changed[0] + 4096) % before.len());
        damage(place, "pages", first as u64, &before[first..first + 512]);
        assert_eq!(found(place, pages::open), Ok(299));
        // Two sectors of another page, the wrong way round.
        let turned = [
            &after[other + 512..other + 1024],
            &after[other..other + 512],
        ]
        .concat();
        damage(place, "pages", other as u64, &turned);
        assert!(found(place, pages::open).is_err());
    });
}

#[test]
fn a_page_of_the_past_is_none() {
    places(|place| {
        commit(place, pages::open, 100);
        let past = place.read("pages").expect("it is there");
        commit(place, pages::open, 100);
        let now = place.read("pages").expect("it is there");
        // Not the newest commit's page, which may be any of both.
        let changed = (0..now.len()).step_by(4096);
        let changed = changed.filter(|&at| now[at..at + 4096] != past[at..at + 4096]);
        let stale: Vec<usize> = changed.take(2).collect();
        for at in stale {
            damage(place, "pages", at as u64, &past[at..at + 4096]);
        }
        assert!(found(place, pages::open).is_err());
    });
}

#[test]
fn files_are_of_the_commits_that_made_them() {
    places(|place| {
        commit(place, names::open, 23);
        cut_off(place, "recent.7", 1);
        assert!(found(place, names::open).is_err(), "of commit 23");
        place.remove("recent.7").expect("it can be removed");
        assert!(found(place, names::open).is_err());
    });
    places(|place| {
        commit(place, names::open, 20);
        let current = place.read("current").expect("it is there");
        commit(place, names::open, 3);
        place.remove("current").expect("it can be removed");
        place.ensure("current", &current).expect("it can be made");
        assert!(
            found(place, names::open).is_err(),
            "the others are newer by three"
        );
    });
}

#[test]
fn an_atomic_write_of_which_a_range_is_missing_is_found() {
    volume(|place| {
        commit(place, atomic::open, 50);
        let before = place.read("atomic").expect("it is there");
        // Until one writes several ranges, of which the first goes back.
        let mut ranges = 0;
        while ranges < 2 {
            commit(place, atomic::open, 1);
            let after = place.read("atomic").expect("it is there");
            let slots = (0..after.len()).step_by(3000);
            let changed = slots.filter(|&at| before[at..at + 1000] != after[at..at + 1000]);
            let changed: Vec<usize> = changed.collect();
            ranges = changed.len();
            if ranges >= 2 {
                let at = changed[0];
                damage(place, "atomic", at as u64, &before[at..at + 1000]);
            }
        }
        assert!(found(place, atomic::open).is_err());
    });
}

#[test]
fn a_row_that_is_missing_is_found() {
    let folder = folder();
    let path = folder.path().to_str().expect("a plain name");
    let place = Place::open("directory", path).expect("a directory");
    let open: Opens = |place| database::open(place, Mode::Wal);
    commit(&place, open, 10);
    let connection = rusqlite::Connection::open(place.path("Wal.db")).expect("a database");
    for damage in [
        "UPDATE rows SET data = x'00' WHERE number = 10 AND row = 1",
        "DELETE FROM rows WHERE number = 10 AND row = 2",
        "DELETE FROM rows WHERE number = 5",
    ] {
        let damaged = connection.execute_batch(&format!("SAVEPOINT s; {damage}; RELEASE s"));
        damaged.expect("a statement");
        assert!(found(&place, open).is_err(), "{damage}");
    }
}
