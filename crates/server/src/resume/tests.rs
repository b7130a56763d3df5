//! What the next server knows, and for how long.

use super::record::{open_own, read, with_suffix};
use super::*;
use adit_base::thread::with_umask;
use adit_store::AppliedUpTo;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The record was overwritten in place: a kill in between left neither the old one nor the new
/// one.
#[test]
fn a_record_is_replaced_as_a_whole() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("s");
    let (file, _) = SessionsFile::take(&socket);
    file.write(&file.lock());
    let old = open_own(&with_suffix(&socket, ".sessions")).expect("opened");
    let of = |epoch| VolumeRecord {
        opening: Opening {
            volume_id: (1, 2),
            epoch,
        },
        sessions: Vec::new(),
        absent: Vec::new(),
        earlier: Vec::new(),
    };
    file.lock().record.volumes.push(of(3));
    file.write(&file.lock());
    let kept = read(&old).expect("read").expect("it is whole");
    assert!(kept.volumes.is_empty(), "nobody writes to the old one");
    assert_eq!(SessionsFile::take(&socket).1[0].opening.epoch, 3);
    // There is no room for a new one.
    std::fs::create_dir(with_suffix(&socket, ".sessions.new")).expect("made");
    file.lock().record.volumes.push(of(4));
    file.write(&file.lock());
    assert_eq!(SessionsFile::take(&socket).1.len(), 1);
}

/// The next server, of a user who isn't root, could not read what this one had left where the
/// process's mask takes this user's own rights.
#[test]
fn the_next_server_may_read_the_record_whatever_this_one_masks() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("s");
    let path = with_suffix(&socket, ".sessions");
    let mode = || {
        std::fs::metadata(&path)
            .expect("there")
            .permissions()
            .mode()
            & 0o777
    };
    let file = with_umask(0o777, &|| SessionsFile::take(&socket).0);
    assert_eq!(mode(), 0o600);
    // A killed server left it.
    std::fs::write(with_suffix(&path, ".new"), b"half a record").expect("written");
    with_umask(0o777, &|| {
        file.add(opening(1), &Resumption::new((1, 2), None, &[], true))
    });
    assert_eq!(mode(), 0o600);
    assert_eq!(SessionsFile::take(&socket).1[0].opening, opening(1));
}

/// From some thousands of sessions on, the next server took the file for a damaged one, and
/// ended all of them.
#[test]
fn the_next_server_knows_any_number_of_sessions() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("s");
    let (file, before) = SessionsFile::take(&socket);
    assert!(before.is_empty());
    let session = |process: u32| SessionRecord {
        secret: (1, process.into()),
        family: 2,
        process,
        epoch: 3,
        has_left: false,
        is_awaited: true,
    };
    let sessions: Vec<SessionRecord> = (0..100_000).map(session).collect();
    file.lock().record.volumes.push(VolumeRecord {
        opening: Opening {
            volume_id: (1, 2),
            epoch: 3,
        },
        sessions: sessions.clone(),
        absent: Vec::new(),
        earlier: Vec::new(),
    });
    file.write(&file.lock());
    let (_, left) = SessionsFile::take(&socket);
    assert!(left[0].sessions == sessions);
}

/// A record of 29 November 2026. A change of it needs another version: then a server of another
/// release says that it can't read it.
#[test]
fn a_server_reads_the_record_of_another_release() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("s");
    let path = with_suffix(&socket, ".sessions");
    let digits = RECORD.as_bytes().chunks(2);
    let byte = |digits: &[u8]| {
        let digits = std::str::from_utf8(digits).expect("ASCII");
        u8::from_str_radix(digits, 16).expect("a byte")
    };
    let bytes: Vec<u8> = digits.map(byte).collect();
    with_umask(0o077, &|| std::fs::write(&path, &bytes)).expect("written");
    let (file, last) = SessionsFile::take(&socket);
    let session = SessionRecord {
        secret: (1, 2),
        family: 3,
        process: 4,
        epoch: 5,
        has_left: true,
        is_awaited: false,
    };
    let earlier = super::record::Earlier {
        opening: opening(6),
        applied: AppliedUpTo(std::array::from_fn(|partition| 7 + partition as u64)),
        is_past: true,
    };
    let volume = VolumeRecord {
        opening: opening(10),
        sessions: vec![session],
        absent: vec![session],
        earlier: vec![earlier],
    };
    assert_eq!(format!("{last:?}"), format!("{:?}", [volume]));
    assert_eq!(file.lock().record.key, (8, 9));
    file.write(&file.lock());
    assert_eq!(std::fs::read(&path).expect("read"), bytes);
}

/// Checksum, length, and the record.
const RECORD: &str = concat!(
    "ccdbc2d08eef042a2901000000000000616469746e6578740300000008000000000000000900000000000000",
    "01000000010000000000000002000000000000000a0000000000000001000000010000000000000002000000",
    "0000000003000000000000000400000005000000000000000100010000000100000000000000020000000000",
    "0000030000000000000004000000050000000000000001000100000001000000000000000200000000000000",
    "06000000000000000700000000000000080000000000000009000000000000000a000000000000000b000000",
    "000000000c000000000000000d000000000000000e000000000000000f000000000000001000000000000000",
    "1100000000000000120000000000000013000000000000001400000000000000150000000000000016000000",
    "0000000001",
);

fn opening(epoch: u64) -> Opening {
    Opening {
        volume_id: (1, 2),
        epoch,
    }
}

fn key(number: u64) -> Key {
    Key {
        number,
        secret: (number, number),
        family: number,
    }
}

/// The server of this opening, which comes after that of the opening before.
fn next(socket: &Path, epoch: u64) -> (SessionsFile, Resumption) {
    let (file, last) = SessionsFile::take(socket);
    let before = Predecessor {
        epoch: epoch - 1,
        applied: AppliedUpTo::ALL,
    };
    let resumption = Resumption::new((1, 2), Some(before), &last, true);
    file.add(opening(epoch), &resumption);
    resumption.begin(Duration::MAX);
    (file, resumption)
}

/// Processes of other pid namespaces have no number here. One that came back twice ended the
/// wait for another one.
#[test]
fn the_grace_waits_for_sessions_not_for_numbers() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("s");
    let (file, _) = next(&socket, 1);
    for number in [1, 2] {
        file.begin(opening(1), key(number), None);
    }
    let (file, resumption) = next(&socket, 2);
    let come_back = |number| {
        file.go_on(opening(2), key(number), None)
            .expect("it goes on");
        resumption.has_come_back(key(number), None);
        file.put_back(opening(2), key(number), true);
    };
    let is_over = || resumption.end_if_over(opening(2), &file, |_| true, || {});
    come_back(1);
    come_back(1);
    assert!(!is_over(), "the other one is missing");
    come_back(2);
    assert!(is_over());
}

/// The next servers know what may still come, and forget what can't.
#[test]
fn sessions_are_known_until_their_processes_have_ended() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("s");
    let (file, _) = next(&socket, 1);
    for number in 1..=5 {
        file.begin(opening(1), key(number), Some(number as u32));
    }
    let refused = |file: &SessionsFile, epoch, number| {
        let gone_on = file.go_on(opening(epoch), key(number), None);
        gone_on.expect_err("refused").errno()
    };
    // The third and the fourth leave files; nobody comes for those of the fourth.
    file.leave(opening(1), key(3));
    file.leave(opening(1), key(4));
    file.end_leaving(opening(1), key(4).family);
    file.end(opening(1), key(5));
    let (file, resumption) = next(&socket, 2);
    assert_eq!(refused(&file, 2, 5), Errno::STALE, "it has ended");
    file.go_on(opening(2), key(1), Some(1)).expect("it goes on");
    assert_eq!(refused(&file, 2, 1), Errno::AGAIN, "it is there");
    resumption.has_come_back(key(1), Some(1));
    // Of the others, the processes 3 and 4 have ended.
    resumption.lock().until_ns = Some(0);
    let lives = |process| process < 3;
    assert!(resumption.end_if_over(opening(2), &file, lives, || {}));
    // The next server waits for the first one only; the second one may come.
    let (file, resumption) = next(&socket, 3);
    assert_eq!(resumption.expected(), [1]);
    let heir = |number| Key {
        secret: (9, 9),
        ..key(number)
    };
    file.go_on(opening(3), key(2), Some(2)).expect("late");
    file.go_on(opening(3), heir(3), Some(7)).expect("an heir");
    file.end(opening(3), heir(3));
    assert_eq!(refused(&file, 3, 4), Errno::STALE, "nobody is left of it");
    // A session that nobody has seen for as many openings as sessions come back from.
    for epoch in 4..4 + EARLIER_MAX as u64 {
        drop(next(&socket, epoch));
    }
    let (file, _) = next(&socket, 4 + EARLIER_MAX as u64);
    assert!(file.lock().record.volumes[0].absent.is_empty());
}

/// A parent goes on with the next server, and ends there before its child, which was forked under
/// the last one, has asked for anything.
#[test]
fn a_child_goes_on_though_its_parent_has_ended_under_the_next_server() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("s");
    let heir = |number| Key {
        secret: (9, number),
        ..key(1)
    };
    let (file, _) = next(&socket, 1);
    file.begin(opening(1), key(1), Some(1));
    file.leave(opening(1), key(1));
    let (file, _) = next(&socket, 2);
    assert_eq!(file.go_on(opening(2), key(1), Some(1)), Ok(true));
    // It has another child, which comes, and one that goes on with nothing.
    file.leave(opening(2), key(1));
    file.begin(opening(2), heir(1), Some(2));
    file.end_leaving(opening(2), key(1).family);
    file.end(opening(2), key(1));
    file.end(opening(2), heir(1));
    assert_eq!(file.go_on(opening(2), heir(2), Some(3)), Ok(false));
    file.end(opening(2), heir(2));
    let (file, resumption) = next(&socket, 3);
    assert!(resumption.expected().is_empty());
    assert_eq!(file.go_on(opening(3), heir(3), Some(4)), Ok(false));
    // That server is killed before it has answered: the child comes with another secret.
    let (file, resumption) = next(&socket, 4);
    assert_eq!(resumption.expected(), [4]);
    assert_eq!(file.go_on(opening(4), heir(4), Some(4)), Ok(false));
    resumption.has_come_back(heir(4), Some(4));
    assert!(resumption.expected().is_empty());
}

/// Each session that ended while its family had a child left a line in the record.
#[test]
fn the_record_grows_by_one_for_a_family() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("s");
    let (file, _) = next(&socket, 1);
    file.begin(opening(1), key(1), Some(1));
    file.leave(opening(1), key(1));
    for number in 0..100 {
        let worker = Key {
            secret: (9, number),
            ..key(1)
        };
        file.begin(opening(1), worker, Some(2));
        file.end(opening(1), worker);
    }
    assert_eq!(file.lock().record.volumes[0].absent.len(), 1);
    file.end_leaving(opening(1), key(1).family);
    assert!(file.lock().record.volumes[0].absent.is_empty());
}

/// A server that had ended for good left the record behind as soon as its sessions had ended.
#[test]
fn nothing_is_left_by_a_server_that_has_ended_for_good() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("s");
    let (file, _) = next(&socket, 1);
    file.begin(opening(1), key(1), None);
    file.remove();
    file.end(opening(1), key(1));
    assert!(!SessionsFile::is_there(&socket));
}
