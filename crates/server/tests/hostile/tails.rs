//! Sessions that write nonsense to the memory to which they append.

use crate::mapped::{ask, begin, refused, write};
use crate::rig::{Rig, until};
use adit_base::Errno;
use adit_fs::OpenFlags;
use adit_wire::calls::*;
use adit_wire::message::Message;
use rustix::fs::ftruncate;
use rustix::io::{pread, pwrite};
use std::os::fd::OwnedFd;

const MAGIC: u64 = u64::from_le_bytes(*b"adittail");
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

fn set(tail: &OwnedFd, word: u64, value: u64) {
    pwrite(tail, &value.to_le_bytes(), word).expect("written");
}

/// Counts as the protocol says.
fn set_count(tail: &OwnedFd, word: u64, count: u64) {
    set(tail, word + 8, (count ^ MAGIC).wrapping_mul(FACTOR));
    set(tail, word, count);
}

/// A file of 7 bytes with a tail, to which 100 bytes were appended.
type Attack = fn(&OwnedFd);

/// Each spoils one: the file has what it had, perhaps with more behind it, and all goes on.
pub(crate) fn words(rig: &Rig) {
    let attacks: [Attack; 14] = [
        |tail| set_count(tail, 128, u64::MAX),
        |tail| set_count(tail, 128, 1 << 20),
        |tail| set_count(tail, 128, 0),
        |tail| set(tail, 128, 5),
        |tail| set(tail, 136, 5),
        |tail| set_count(tail, 40, 1 << 40),
        |tail| {
            set(tail, 24, 2);
            set(tail, 32, u64::MAX);
        },
        |tail| set(tail, 24, 77),
        |tail| set(tail, 8, u64::MAX - 5),
        |tail| set(tail, 16, 0),
        |tail| set(tail, 0, 1),
        |tail| ftruncate(tail, 0).expect("shortened"),
        |tail| ftruncate(tail, 4096 + 50).expect("shortened"),
        |tail| ftruncate(tail, 64 << 20).expect("made longer"),
    ];
    for (number, attack) in attacks.into_iter().enumerate() {
        for way in 0..4 {
            let (mut peer, begun) = begin(rig);
            let path = format!("/tail{number}-{way}");
            let file = peer.create(&path);
            write(&mut peer, file, 0, b"content");
            match peer.call(0, file, BeginTail {}) {
                Ok(_) => {}
                // Memory that no other process would find.
                Err(libc::EOPNOTSUPP) => {
                    assert_eq!(refused(ask(rig, begun.key, file)), Errno::INVAL);
                    return;
                }
                Err(other) => panic!("errno {other}"),
            }
            let tail = ask(rig, begun.key, file).expect("the tail");
            let mut base = [0; 8];
            pread(&tail, &mut base, 8).expect("read");
            assert_eq!(u64::from_le_bytes(base), 7);
            pwrite(&tail, &[b'x'; 100], 4096).expect("written");
            set_count(&tail, 128, 100);
            attack(&tail);
            let (mut other, _) = begin(rig);
            match way {
                // Asked about, twice; closed; and the session ends.
                0 => {
                    for _ in 0..2 {
                        let reply = peer.ask(0, Message::Size { file }).expect("it goes on");
                        assert_eq!(reply.errno, 0, "attack {number}");
                    }
                }
                1 => peer.call(0, file, Close {}).expect("closed"),
                2 => drop(peer),
                // Another session opens it.
                _ => {}
            }
            let theirs = other.open(&path, OpenFlags::READ_WRITE).expect("opened");
            let read = Message::Read {
                file: theirs,
                len: 4096,
                offset: 0,
                hint: false,
            };
            let reply = other.ask(0, read).expect("it goes on");
            assert_eq!(reply.errno, 0, "attack {number}, way {way}");
            let content = other.area(0, reply.value as usize);
            assert!(
                content.starts_with(b"content"),
                "attack {number}, way {way}"
            );
            assert!(content.len() <= 107, "attack {number}, way {way}");
            write(&mut other, theirs, 0, b"another");
        }
    }
}

/// Tails without number, of files that others use, or that are not for that.
pub(crate) fn many(rig: &Rig) {
    let ((mut peer, begun), (mut other, _)) = (begin(rig), begin(rig));
    let first = peer.create("/many0");
    match peer.call(0, first, BeginTail {}) {
        Ok(_) => {}
        Err(errno) => return assert_eq!(errno, libc::EOPNOTSUPP),
    }
    assert_eq!(peer.call(0, first, BeginTail {}), Err(libc::EBUSY));
    let theirs = other.open("/many0", OpenFlags::READ_WRITE).expect("opened");
    for (peer, file) in [(&mut peer, first), (&mut other, theirs)] {
        assert_eq!(peer.call(0, file, BeginTail {}), Err(libc::EBUSY));
    }
    assert_eq!(
        refused(ask(rig, begun.key, first)),
        Errno::INVAL,
        "it has ended"
    );
    other.call(0, theirs, Close {}).expect("closed");
    let directory = peer.open("/", OpenFlags::empty()).expect("opened");
    let reader = peer.open("/many0", OpenFlags::empty()).expect("opened");
    for file in [directory, reader] {
        let refused = peer
            .call(0, file, BeginTail {})
            .expect_err("not for appends");
        assert!(
            [libc::EBADF, libc::EOPNOTSUPP].contains(&refused),
            "{refused}"
        );
    }
    peer.call(0, reader, Close {}).expect("closed");
    let mut begun = 0;
    for number in 0..100 {
        let file = peer.create(&format!("/more{number}"));
        match peer.call(0, file, BeginTail {}) {
            Ok(_) => begun += 1,
            Err(errno) => assert!([libc::EMFILE, libc::ENOSPC, libc::ENOMEM].contains(&errno)),
        }
    }
    assert!((1..=64).contains(&begun), "{begun} tails");
    drop(peer);
    // They end with their session.
    until("another one has the file alone", || {
        let file = other.open("/more0", OpenFlags::READ_WRITE).expect("opened");
        let begun = other.call(0, file, BeginTail {}).is_ok();
        other.call(0, file, Close {}).expect("closed");
        begun
    });
}
