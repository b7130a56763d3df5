//! Sessions that map files without the right to, or in ways that our client never uses.

use crate::rig::{Peer, Rig, until};
use adit_base::{Errno, Result};
use adit_fs::OpenFlags;
use adit_wire::calls::*;
use adit_wire::handshake::{
    Aim, Answer, BYTES_MAX, Begun, Greeting, Hello, Key, MappedFile, Request,
};
use adit_wire::message::{Message, WriteFlags};
use adit_wire::socket::{receive_message, receive_message_with, send_message};
use adit_wire::value::Value;
use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate};
use rustix::io::{pread, pwrite};
use std::os::fd::OwnedFd;

const PAGE: u64 = 4096;

pub(crate) fn begin(rig: &Rig) -> (Peer, Begun) {
    Peer::resume(&rig.socket(), None).expect("a session")
}

/// Asks for the memory of a file, as a session's client does.
pub(crate) fn ask(rig: &Rig, key: Key, file: u64) -> Result<OwnedFd> {
    let socket = crate::rig::knock(&rig.socket());
    let mut buffer = [0; BYTES_MAX];
    let greeting: Greeting = receive_message(&socket, &mut buffer)?;
    assert!(matches!(greeting, Greeting::Hello(_)));
    let request = Request {
        hello: Hello::ours(),
        volume: String::new(),
        read_only: false,
        comes_back: false,
        aim: Aim::Mapped(MappedFile { key, file }),
    };
    send_message(&socket, &request)?;
    match receive_message_with(&socket, &mut buffer)? {
        (Answer::Refused(error), _) => Err(error),
        (Answer::Mapped, descriptors) => Ok(descriptors
            .into_iter()
            .next()
            .expect("it is there")
            .into_inner()),
        (answer, _) => panic!("{answer:?}"),
    }
}

pub(crate) fn refused(asked: Result<OwnedFd>) -> Errno {
    asked.expect_err("refused").errno()
}

pub(crate) fn write(peer: &mut Peer, file: u64, offset: u64, data: &[u8]) {
    peer.fill(0, data);
    let write = Message::Write {
        file,
        len: data.len() as u32,
        offset,
        flags: WriteFlags::empty(),
    };
    assert_eq!(peer.ask(0, write).expect("it goes on").errno, 0);
}

fn read(peer: &mut Peer, file: u64, offset: u64, len: u32) -> Vec<u8> {
    let hint = true;
    let read = Message::Read {
        file,
        len,
        offset,
        hint,
    };
    let reply = peer.ask(0, read).expect("it goes on");
    assert_eq!(
        (reply.errno, reply.hint),
        (0, 0),
        "of a mapped file there is no hint"
    );
    peer.area(0, reply.value as usize)
}

fn map(offset: u64, len_bytes: u64) -> Map {
    Map { offset, len_bytes }
}

/// Keys and numbers that are not the peer's; files that are none, or not for that.
pub(crate) fn others_and_none(rig: &Rig) {
    let ((mut peer, begun), (mut other, others)) = (begin(rig), begin(rig));
    let file = peer.create("/mapped");
    let key = begun.key;
    assert_eq!(refused(ask(rig, key, file)), Errno::INVAL, "not mapped yet");
    peer.call(0, file, map(0, 5)).expect("mapped");
    let wrong = [
        Key {
            number: key.number + 1_000,
            ..key
        },
        Key {
            secret: (key.secret.0 ^ 1, key.secret.1),
            ..key
        },
        Key {
            secret: (key.secret.0, key.secret.1 ^ 1),
            ..key
        },
        Key {
            secret: others.key.secret,
            ..key
        },
        Key {
            number: others.key.number,
            ..key
        },
    ];
    for key in wrong {
        assert_eq!(refused(ask(rig, key, file)), Errno::STALE);
    }
    for file in [0, file ^ 1, file ^ 1 << 32, u64::MAX] {
        assert_eq!(refused(ask(rig, key, file)), Errno::BADF);
        assert_eq!(peer.call(0, file, map(0, 5)), Err(libc::EBADF));
    }
    // Open there, mapped by another session.
    let theirs = other
        .open("/mapped", OpenFlags::READ_WRITE)
        .expect("opened");
    assert_eq!(refused(ask(rig, others.key, theirs)), Errno::INVAL);
    drop(ask(rig, key, file).expect("the peer's own"));

    let directory = peer.open("/", OpenFlags::empty()).expect("opened");
    assert_eq!(peer.call(0, directory, map(0, 5)), Err(libc::ENODEV));
    let writer = peer.open("/mapped", OpenFlags::WRITE_ONLY).expect("opened");
    assert_eq!(peer.call(0, writer, map(0, 5)), Err(libc::EACCES));
    let path = peer.open("/mapped", OpenFlags::PATH).expect("opened");
    assert_eq!(peer.call(0, path, map(0, 5)), Err(libc::EBADF));
    for file in [directory, writer, path] {
        assert_eq!(refused(ask(rig, key, file)), Errno::INVAL);
        assert_eq!(peer.call(0, file, FlushMapped {}).is_err(), file == path);
        assert_eq!(peer.call(0, file, Unmap {}).is_err(), file == path);
    }
    peer.call(0, file, Close {}).expect("closed");
    assert_eq!(refused(ask(rig, key, file)), Errno::BADF);
    drop(peer);
    until("the session ends", || {
        refused(ask(rig, key, file)) == Errno::STALE
    });
}

/// Places where no file is.
pub(crate) fn far_away(rig: &Rig) {
    let (mut peer, _) = begin(rig);
    let file = peer.create("/far");
    let (last, end) = (u64::MAX / PAGE * PAGE, adit_fs::FILE_BYTES_MAX);
    for (call, errno) in [
        (map(0, 0), libc::EINVAL),
        (map(7, 7), libc::EINVAL),
        (map(last, u64::MAX), libc::EOVERFLOW),
        (map(last, 1), libc::EOVERFLOW),
        (map(end.next_multiple_of(PAGE), 1), libc::EOVERFLOW),
        (map(0, u64::MAX), libc::EOVERFLOW),
    ] {
        assert_eq!(peer.call(0, file, call), Err(errno));
    }
    let before = rig.resident_kib();
    for offset in [0, PAGE, end / 2 / PAGE * PAGE] {
        peer.call(0, file, map(offset, end - offset))
            .expect("nothing is there");
    }
    write(&mut peer, file, end / PAGE * PAGE - PAGE, b"the last page");
    peer.call(0, file, FlushMapped {}).expect("flushed");
    peer.call(0, file, SetSize { size_bytes: 5 }).expect("cut");
    assert!(rig.resident_kib() < before + (64 << 10));
}

/// Attacks of a peer on the memory itself.
pub(crate) fn its_memory(rig: &Rig) {
    let ((mut peer, begun), (mut other, others)) = (begin(rig), begin(rig));
    let file = peer.create("/memory");
    write(&mut peer, file, 0, &[7; 3 * PAGE as usize]);
    peer.call(0, file, map(0, 3 * PAGE)).expect("mapped");
    let memory = ask(rig, begun.key, file).expect("its memory");
    let theirs = other.open("/memory", OpenFlags::empty()).expect("opened");
    other.call(0, theirs, map(0, 3 * PAGE)).expect("mapped");
    let reader = ask(rig, others.key, theirs).expect("its memory");
    // A reader changes nothing.
    assert_eq!(pwrite(&reader, b"no", 0), Err(rustix::io::Errno::BADF));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert!(fallocate(&reader, punch, 0, PAGE).is_err());
    assert!(ftruncate(&reader, 0).is_err());
    // A writer changes bytes; no length, and nothing for the server.
    rustix::fs::fcntl_setfl(&memory, rustix::fs::OFlags::APPEND).expect("set");
    for seals in [SealFlags::GROW, SealFlags::WRITE, SealFlags::FUTURE_WRITE] {
        assert!(fcntl_add_seals(&memory, seals).is_err());
    }
    let cut = ftruncate(&memory, 0);
    rustix::fs::fcntl_setfl(&memory, rustix::fs::OFlags::empty()).expect("set");
    pwrite(&memory, b"stored", PAGE).expect("stored");
    fallocate(&memory, punch, 2 * PAGE, PAGE).expect("punched");
    assert_eq!(read(&mut other, theirs, PAGE, 6), b"stored");
    write(&mut peer, file, PAGE, b"WRITTEN");
    let mut seen = [0; 7];
    assert_eq!(pread(&reader, &mut seen, PAGE), Ok(7));
    assert_eq!(&seen, b"WRITTEN");
    let _ = ftruncate(&memory, 1 << 40);
    peer.call(0, file, FlushMapped {}).expect("flushed");
    assert_eq!(read(&mut other, theirs, 2 * PAGE, 4), [0; 4]);
    assert_eq!(
        read(&mut other, theirs, 0, 4),
        [if cut.is_ok() { 0 } else { 7 }; 4]
    );
    // It stores after its hold has ended: that is nobody's.
    drop(peer);
    until("the session ends", || ask(rig, begun.key, file).is_err());
    assert_eq!(read(&mut other, theirs, PAGE, 7), b"WRITTEN");
    pwrite(&memory, b"late", 0).expect("stored");
}

/// All at once, again and again, without waiting for replies.
pub(crate) fn in_loops(rig: &Rig) {
    let (mut peer, begun) = begin(rig);
    for round in 0..300 {
        let file = peer.create("/loops");
        write(&mut peer, file, 0, &[round as u8; 2 * PAGE as usize]);
        for slot in 0..8 {
            let (number, bytes) = match (slot + round) % 4 {
                0 | 1 => (Map::NUMBER, map(0, PAGE * (1 + slot as u64)).encode()),
                2 => (Unmap::NUMBER, Unmap {}.encode()),
                _ => (FlushMapped::NUMBER, FlushMapped {}.encode()),
            };
            peer.fill(slot, &bytes);
            let len = bytes.len() as u32;
            peer.submit(slot, Message::FileCall { number, file, len });
        }
        if round % 7 == 0 {
            let asked = ask(rig, begun.key, file);
            assert!(asked.is_ok() || refused(asked) == Errno::INVAL);
        }
        let len = Close {}.encode().len() as u32;
        if round % 3 == 0 {
            let number = Close::NUMBER;
            peer.submit(8, Message::FileCall { number, file, len });
            peer.wait(8).expect("it goes on");
        }
        for slot in 0..8 {
            peer.wait(slot).expect("it goes on");
        }
        if round % 3 != 0 {
            let _ = peer.call(0, file, Close {});
        }
    }
}

/// A file of holes is as long as a file can be, and costs nothing.
pub(crate) fn holes(rig: &Rig) {
    let (mut peer, begun) = begin(rig);
    let file = peer.create("/holes");
    let size_bytes = adit_fs::FILE_BYTES_MAX - PAGE;
    peer.call(0, file, SetSize { size_bytes }).expect("grown");
    write(&mut peer, file, size_bytes - 4, b"end.");
    peer.call(0, file, map(0, size_bytes)).expect("mapped");
    let memory = ask(rig, begun.key, file).expect("its memory");
    let taken = rustix::fs::fstat(&memory).expect("there").st_blocks;
    assert!(taken * 512 <= PAGE as i64, "{taken} blocks");
    let mut bytes = [0; 4];
    assert_eq!(pread(&memory, &mut bytes, size_bytes - 4), Ok(4));
    assert_eq!(&bytes, b"end.");
}

/// More than a session may have, and no end of it.
pub(crate) fn without_end(rig: &Rig) {
    let (mut peer, begun) = begin(rig);
    let mut files = Vec::new();
    let refused = loop {
        let file = peer.create(&format!("/end{}", files.len() % 1_500));
        match peer.call(0, file, map(0, PAGE)) {
            Ok(()) => files.push(file),
            Err(errno) => break errno,
        }
        assert!(files.len() <= 1024, "without a limit");
    };
    assert!([libc::EMFILE, libc::ENFILE].contains(&refused), "{refused}");
    assert!(files.len() > 200);
    drop(ask(rig, begun.key, files[0]).expect("what it has it has"));
    // Others are served, and there is room again.
    rig.works();
    peer.call(0, files[3], Close {}).expect("closed");
    peer.call(0, files[4], Unmap {}).expect("unmapped");
    let file = peer.create("/again");
    peer.call(0, file, map(0, PAGE)).expect("room again");
}
