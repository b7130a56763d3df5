//! Messages and calls that are wrong.

use crate::rig::{Peer, Rig, minutes, seed, until};
use adit_base::random::Prng;
use adit_fs::{
    Access, AllocateFlags, BlobId, Credentials, FileKind, FlockOperation, Follow, LockMode,
    LockOwner, OpenFlags, RangeLock, RenameFlags, SetTime, XattrMode,
};
use adit_wire::calls::*;
use adit_wire::memory::{AREA_BYTES, DATA_BYTES_MAX};
use adit_wire::message::{Message, WriteFlags};
use adit_wire::slot::SLOTS;
use adit_wire::value::Value;
use rustix::net::{Shutdown, shutdown};
use std::time::Instant;

/// Garbage in every slot.
pub(crate) fn words(rig: &Rig) {
    let mut random = Prng::new(seed());
    for round in 0..20 {
        let peer = Peer::begin(&rig.socket());
        for slot in 0..SLOTS {
            let words = std::array::from_fn(|at| match (round % 4, at) {
                (0, _) => random.next_u64(),
                (1, 0) => random.below(9),
                (1, _) => 0,
                // One wrong bit or number in a message that is right.
                (2, 0) => 1 | random.next_u64() << 8,
                (2, _) => 0,
                (_, 0) => (1 + random.below(7)) | (random.below(1 << 24) << 32),
                (_, at) if at < 3 => random.next_u64() >> random.below(64),
                _ => 0,
            });
            peer.memory.slot(slot).submit_words(words);
            peer.ring(slot);
        }
        for slot in 0..SLOTS {
            if peer.wait(slot).is_none() {
                break;
            }
        }
    }
    // One that is surely none is answered or not, but ends the session.
    let peer = Peer::begin(&rig.socket());
    peer.memory.slot(5).submit_words([u64::MAX; 8]);
    peer.ring(5);
    until("the session ends", || peer.has_ended());
}

/// More than an area has.
pub(crate) fn lengths(rig: &Rig) {
    let mut peer = Peer::begin(&rig.socket());
    let file = peer.create("/lengths");
    for len in [DATA_BYTES_MAX as u32 + 1, AREA_BYTES as u32, u32::MAX] {
        let offset = 0;
        let reply = peer.ask(
            1,
            Message::Read {
                file,
                len,
                offset,
                hint: false,
            },
        );
        assert_eq!(reply.expect("it goes on").errno, libc::EINVAL as u32);
        let flags = WriteFlags::SYNC_ALL;
        let write = Message::Write {
            file,
            len,
            offset,
            flags,
        };
        let reply = peer.ask(2, write).expect("it goes on");
        assert_eq!(reply.errno, libc::EINVAL as u32);
    }
    // Offsets at the ends of what there is.
    for offset in [u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, 1 << 44] {
        for len in [0, 1, 4096, DATA_BYTES_MAX as u32] {
            let read = peer.ask(
                1,
                Message::Read {
                    file,
                    len,
                    offset,
                    hint: false,
                },
            );
            let read = read.expect("it goes on");
            assert!(read.errno != 0 || read.value == 0);
            let flags = WriteFlags::empty();
            let write = Message::Write {
                file,
                len,
                offset,
                flags,
            };
            let reply = peer.ask(1, write).expect("it goes on");
            assert!(reply.errno != 0 || len == 0, "{offset} {len}");
        }
    }
    for message in [
        Message::VolumeCall {
            number: Info::NUMBER,
            len: AREA_BYTES as u32 + 1,
        },
        Message::FileCall {
            number: FileStat::NUMBER,
            file,
            len: u32::MAX,
        },
    ] {
        let peer = Peer::begin(&rig.socket());
        peer.submit(3, message);
        until("the session ends", || peer.has_ended());
    }
}

/// Content for a file that may have some already, and more content than a message may have: errnos,
/// and the session goes on.
pub(crate) fn contents(rig: &Rig) {
    let mut peer = Peer::begin(&rig.socket());
    let exclusive = OpenFlags::CREATE | OpenFlags::EXCLUSIVE;
    let place = Place::root(b"/contents");
    let mut create = |flags, content: &[u8]| {
        let mode = 0o600;
        let call = CreateAndSync {
            place,
            flags,
            mode,
            content,
        };
        peer.volume_call(0, call)
    };
    for flags in [
        OpenFlags::empty(),
        exclusive,
        OpenFlags::WRITE_ONLY,
        OpenFlags::READ_WRITE | OpenFlags::CREATE,
        OpenFlags::WRITE_ONLY | OpenFlags::READ_WRITE | exclusive,
        OpenFlags::READ_WRITE | OpenFlags::PATH | exclusive,
        OpenFlags::TRUNCATE | OpenFlags::CREATE,
    ] {
        assert_eq!(create(flags, b"x").err(), Some(libc::EINVAL), "{flags:?}");
    }
    let flags = OpenFlags::WRITE_ONLY | exclusive;
    let too_much = vec![0; DATA_BYTES_MAX + 1];
    assert_eq!(create(flags, &too_much).err(), Some(libc::EINVAL));
    create(flags, &too_much[1..]).expect("there was none");
    assert_eq!(create(flags, b"x").err(), Some(libc::EEXIST));
    peer.volume_call(0, Unlink { place }).expect("removed");
}

/// Numbers of calls that nobody knows: an errno, and the session goes on.
pub(crate) fn calls_that_there_are_not(rig: &Rig) {
    let mut peer = Peer::begin(&rig.socket());
    let file = peer.create("/calls");
    for number in [0, 60, 99, 100, 160, 1000, u16::MAX] {
        let reply = peer.ask(0, Message::VolumeCall { number, len: 1 });
        let reply = reply.expect("it goes on").errno;
        assert_eq!(reply, libc::EOPNOTSUPP as u32, "volume {number}");
        let reply = peer.ask(
            0,
            Message::FileCall {
                number,
                file,
                len: 1,
            },
        );
        let reply = reply.expect("it goes on").errno;
        assert_eq!(reply, libc::EOPNOTSUPP as u32, "file {number}");
    }
}

/// Every message about a file, with numbers of none.
fn is_no_file(peer: &mut Peer, number: u64) {
    let (len, offset, flags) = (10, 0, WriteFlags::APPEND);
    for message in [
        Message::Read {
            file: number,
            len,
            offset,
            hint: false,
        },
        Message::Write {
            file: number,
            len,
            offset,
            flags,
        },
        Message::Sync {
            file: number,
            all: true,
        },
        Message::Size { file: number },
    ] {
        let reply = peer.ask(7, message).expect("it goes on");
        assert_eq!(reply.errno, libc::EBADF as u32, "{message:?}");
    }
    assert_eq!(peer.call(7, number, FileStat {}), Err(libc::EBADF));
    assert_eq!(peer.call(7, number, Close {}), Err(libc::EBADF));
    let lock = RangeLock::new(
        LockOwner::Posix { id: 1, pid: 1 },
        LockMode::Exclusive,
        0,
        0,
    );
    let wait = true;
    let locked = peer.call(7, number, LockRange { lock, wait });
    assert_eq!(locked, Err(libc::EBADF));
}

/// Of files that were closed, or never opened.
pub(crate) fn numbers_of_files(rig: &Rig) {
    let mut peer = Peer::begin(&rig.socket());
    let closed = peer.create("/numbers");
    peer.call(0, closed, Close {}).expect("closed");
    let open = peer.create("/numbers");
    assert_ne!(open, closed, "a number is used once");
    let mut random = Prng::new(seed());
    let random: Vec<u64> = (0..20).map(|_| random.next_u64()).collect();
    for number in [
        closed,
        0,
        1,
        u64::MAX,
        open + 1,
        open ^ 1 << 32,
        open ^ 1 << 63,
    ] {
        is_no_file(&mut peer, number);
    }
    for number in random {
        is_no_file(&mut peer, number);
    }
    // As the target of a copy.
    let (offset, to_offset, len_bytes) = (0, 0, 1);
    let to = closed;
    let copy = CopyRange {
        offset,
        to,
        to_offset,
        len_bytes,
    };
    assert_eq!(peer.call(0, open, copy), Err(libc::EBADF));
    peer.call(0, open, FileStat {}).expect("it is open");
}

/// A number means nothing in another session.
pub(crate) fn numbers_of_other_sessions(rig: &Rig) {
    let mut one = Peer::begin(&rig.socket());
    let mut other = Peer::begin(&rig.socket());
    let files: Vec<u64> = (0..9)
        .map(|number| one.create(&format!("/n{number}")))
        .collect();
    for file in &files {
        is_no_file(&mut other, *file);
    }
    let theirs = other.create("/other");
    other.fill(0, b"theirs");
    let flags = WriteFlags::empty();
    let write = Message::Write {
        file: theirs,
        len: 6,
        offset: 0,
        flags,
    };
    assert_eq!(other.ask(0, write).expect("it goes on").errno, 0);
    // The same number is a file of its own here.
    if files.contains(&theirs) {
        let read = Message::Read {
            file: theirs,
            len: 6,
            offset: 0,
            hint: false,
        };
        assert_eq!(one.ask(0, read).expect("it goes on").value, 0);
    }
}

/// A valid call: is it about a file, its number, its bytes.
type Valid = (bool, u16, Vec<u8>);

/// One of each call, mostly one that works.
fn valid(other: u64) -> Vec<Valid> {
    fn volume<'a, C: VolumeCall<'a>>(call: C) -> Valid {
        let nobody = None::<Credentials>;
        (false, C::NUMBER, (nobody, call).encode())
    }
    fn of_file<'a, C: FileCall<'a>>(call: C) -> Valid {
        (true, C::NUMBER, call.encode())
    }
    let place = Place::root(b"/dir/a");
    let other_place = Place::root(b"/dir/b");
    let (follow, mode) = (Follow::Yes, 0o644);
    let inside = Place {
        start: Some(BlobId {
            slot: 1,
            generation: 1,
        }),
        path: Some(b"dir"),
        links_below: b"/mnt",
    };
    let lock = RangeLock::new(
        LockOwner::Posix { id: 1, pid: 2 },
        LockMode::Exclusive,
        10,
        20,
    );
    let whose = LockRange {
        lock: RangeLock::new(LockOwner::Descriptor, LockMode::Shared, 0, 0),
        wait: true,
    };
    let id = BlobId {
        slot: 9,
        generation: 1,
    };
    let times = SetTime::To(adit_base::clock::Timestamp {
        seconds: 1,
        nanoseconds: 2,
    });
    vec![
        volume(Stat { place, follow }),
        volume(Stat {
            place: inside,
            follow,
        }),
        volume(CheckAccess {
            place,
            follow,
            wanted: Access::READ,
        }),
        volume(Truncate {
            place,
            size_bytes: 100_000,
        }),
        volume(Unlink { place }),
        volume(MakeDirectory {
            place: Place::root(b"/dir"),
            mode: 0o755,
        }),
        volume(RemoveDirectory {
            place: Place::root(b"/dir/c"),
        }),
        volume(Rename {
            from: place,
            to: other_place,
            flags: RenameFlags::empty(),
        }),
        volume(Rename {
            from: place,
            to: other_place,
            flags: RenameFlags::EXCHANGE,
        }),
        volume(Link {
            existing: place,
            follow,
            place: other_place,
        }),
        volume(MakeDirectory {
            place: Place::root(b"/dir/c"),
            mode: 0o700,
        }),
        volume(MakeNode {
            place: other_place,
            kind: FileKind::File,
            mode,
            device: 7,
        }),
        volume(MakeSymlink {
            target: b"a/../../dir",
            place: other_place,
        }),
        volume(ReadLink { place: other_place }),
        volume(SetMode {
            place,
            follow,
            mode: 0o4755,
        }),
        volume(SetOwner {
            place,
            follow,
            uid: Some(1),
            gid: None,
        }),
        volume(SetTimes {
            place,
            follow,
            accessed: times,
            modified: SetTime::Now,
        }),
        volume(GetXattr {
            place,
            follow,
            name: b"user.a",
        }),
        volume(SetXattr {
            place,
            follow,
            name: b"user.a",
            value: b"value",
            mode: XattrMode::Any,
        }),
        volume(RemoveXattr {
            place,
            follow,
            name: b"user.a",
        }),
        volume(ListXattrs { place, follow }),
        volume(List {
            place: Place::root(b"/"),
            cookie: 0,
            entries_max: 100,
            attributes: true,
        }),
        volume(Info {}),
        volume(Space {}),
        volume(SyncAll {}),
        volume(OpenDescriptors { cookie: 0, max: 10 }),
        volume(CreateBlob {}),
        volume(DeleteBlob { id }),
        volume(Blobs {
            from_slot: 0,
            max: 10,
        }),
        volume(AtomicBytesMax {}),
        volume(Open {
            place,
            flags: OpenFlags::READ_WRITE | OpenFlags::CREATE,
            mode,
        }),
        volume(CreateAndSync {
            place,
            flags: OpenFlags::READ_WRITE | OpenFlags::CREATE | OpenFlags::TRUNCATE,
            mode,
            content: b"content",
        }),
        volume(OpenBlob {
            id,
            flags: OpenFlags::READ_WRITE,
        }),
        volume(Reopen {
            file: 1,
            id,
            flags: OpenFlags::READ_WRITE,
            kind: FileKind::File,
            token: 2,
        }),
        volume(EndResuming {}),
        volume(Sessions {}),
        volume(MoveSession {
            number: 1,
            poller: 0,
        }),
        volume(Withdraw {
            slot: 3,
            message: 2,
        }),
        volume(SetLabel {
            label: b"no UTF-8: \xff",
        }),
        of_file(SettleAppend {
            offset: 0,
            len_bytes: 1,
        }),
        of_file(Map {
            offset: 4096,
            len_bytes: 9000,
        }),
        of_file(FlushMapped {}),
        of_file(Unmap {}),
        of_file(BeginTail {}),
        of_file(Renew {}),
        of_file(FileStat {}),
        of_file(SetSize { size_bytes: 70_000 }),
        of_file(Allocate {
            flags: AllocateFlags::KEEP_SIZE,
            offset: 5000,
            len_bytes: 9000,
        }),
        of_file(Flock {
            operation: FlockOperation::Exclusive { wait: true },
        }),
        of_file(LockRange { lock, wait: true }),
        of_file(whose),
        of_file(UnlockRange {
            owner: lock.owner,
            offset: 11,
            len_bytes: 2,
        }),
        of_file(TestLock { lock }),
        of_file(ReleaseLocks { owner_id: 1 }),
        of_file(SetFileMode { mode: 0o600 }),
        of_file(SetFileOwner {
            uid: None,
            gid: Some(3),
        }),
        of_file(SetFileTimes {
            accessed: SetTime::Omit,
            modified: times,
        }),
        of_file(GetFileXattr { name: b"user.b" }),
        of_file(SetFileXattr {
            name: b"user.b",
            value: b"v",
            mode: XattrMode::Create,
        }),
        of_file(RemoveFileXattr { name: b"user.b" }),
        of_file(ListFileXattrs {}),
        of_file(NextData { offset: 1 }),
        of_file(NextHole { offset: 1 }),
        of_file(StartWriteBack {}),
        of_file(ReadDirectory {
            cookie: 0,
            names_bytes: 1000,
        }),
        of_file(WriteAtomic {
            ranges: vec![(3, &b"atomic"[..]), (9000, b"too")],
            sync: false,
        }),
        of_file(CopyRange {
            offset: 0,
            to: other,
            to_offset: 100,
            len_bytes: 10_000,
        }),
    ]
    .into_iter()
    .chain([of_file(Close {})])
    .collect()
}

fn message((is_of_file, number, bytes): &Valid, file: u64) -> Message {
    let (number, len) = (*number, bytes.len() as u32);
    match is_of_file {
        true => Message::FileCall { number, file, len },
        false => Message::VolumeCall { number, len },
    }
}

/// A session with two files and a directory.
fn begin(rig: &Rig) -> (Peer, [u64; 2]) {
    let mut peer = Peer::begin(&rig.socket());
    let place = Place::root(b"/dir");
    let made = peer.volume_call(0, MakeDirectory { place, mode: 0o777 });
    assert!(matches!(made, Ok(_) | Err(libc::EEXIST)), "{made:?}");
    let files = [peer.create("/one"), peer.create("/two")];
    (peer, files)
}

/// Each call, cut off everywhere, and with bytes behind it: none of them is one.
pub(crate) fn cut_off(rig: &Rig) {
    let mut random = Prng::new(seed());
    for whole in valid(1) {
        let len = whole.2.len();
        let some = [
            len + 1,
            0,
            len - len.min(1),
            random.below(len as u64 + 1) as usize,
        ];
        for len in some.into_iter().filter(|some| *some != len) {
            let (peer, [file, _]) = begin(rig);
            let mut bytes = whole.2.clone();
            bytes.resize(len, 0);
            // What lies behind the end in the area is no part of it.
            peer.fill(0, &whole.2);
            peer.fill(0, &bytes);
            peer.submit(0, message(&(whole.0, whole.1, bytes), file));
            if let Some(reply) = peer.wait(0) {
                assert_ne!(reply.errno, 0, "call {} in {len} bytes", whole.1);
            }
            until("a session that breaks the protocol ends", || {
                peer.has_ended()
            });
        }
    }
}

/// Changes of valid calls, several under way at a time.
pub(crate) fn mutated(rig: &Rig) {
    let mut random = Prng::new(seed());
    let (begun, limit) = (Instant::now(), minutes());
    let (mut sent, mut ended) = (0u64, 0u64);
    let before_kib = rig.resident_kib();
    while sent < 8000 || begun.elapsed() < limit {
        let (peer, [file, other]) = begin(rig);
        let mut calls = valid(other);
        calls.pop(); // closing is no fun
        'session: for _ in 0..20 {
            let slots = 1 + random.below(8) as usize;
            let mut locking = [false; 8];
            for (slot, locking) in locking.iter_mut().enumerate().take(slots) {
                let mut call = calls[random.below(calls.len() as u64) as usize].clone();
                match random.below(5) {
                    0 => {}
                    1 => mutate(&mut call.2, &mut random),
                    // Keeps its length, and often its sense.
                    2 | 3 => {
                        let at = random.below(call.2.len() as u64 + 1) as usize;
                        if let Some(byte) = call.2.get_mut(at) {
                            *byte = random.next_u64() as u8;
                        }
                    }
                    _ => extreme(&mut call.2, &mut random),
                }
                let file = [file, other][random.below(2) as usize];
                *locking = call.0 && [Flock::NUMBER, LockRange::NUMBER].contains(&call.1);
                peer.fill(slot, &call.2);
                peer.submit(slot, message(&call, file));
                sent += 1;
            }
            for (slot, locking) in locking.into_iter().enumerate().take(slots) {
                if locking && !peer.is_answered(slot) {
                    break 'session;
                }
                if peer.wait(slot).is_none() {
                    ended += 1;
                    break 'session;
                }
            }
        }
    }
    let kib = rig.resident_kib().saturating_sub(before_kib);
    println!("{sent} calls, {ended} sessions ended by them, {kib} KiB more");
    assert!(kib < 256 << 10, "{kib} KiB more after {sent} calls");
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Prng) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        match random.below(4) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => drop(bytes.drain(at..)),
            2 => bytes.insert(at, random.next_u64() as u8),
            _ => bytes.extend((0..random.below(9)).map(|_| random.next_u64() as u8)),
        }
    }
}

/// A number at the end of what numbers can be.
fn extreme(bytes: &mut [u8], random: &mut Prng) {
    let numbers = [
        0,
        1,
        u64::MAX,
        u64::MAX - 1,
        1 << 63,
        (1 << 63) - 1,
        1 << 44,
        0xffff_ffff,
        1 << 32,
        4096,
    ];
    let number = numbers[random.below(numbers.len() as u64) as usize].to_le_bytes();
    let len = [4, 8][random.below(2) as usize];
    let at = random.below(bytes.len() as u64 + 1) as usize;
    let end = bytes.len().min(at + len);
    bytes[at..end].copy_from_slice(&number[..end - at]);
}

/// 4,097 open files.
pub(crate) fn files(rig: &Rig) {
    let mut peer = Peer::begin(&rig.socket());
    let flags = OpenFlags::READ_WRITE | OpenFlags::CREATE;
    let files: Vec<u64> = (0..4096)
        .map(|_| peer.open("/files", flags).expect("opened"))
        .collect();
    for _ in 0..3 {
        assert_eq!(peer.open("/files", flags), Err(libc::EMFILE));
    }
    let mut other = Peer::begin(&rig.socket());
    other.open("/files", flags).expect("another session can");
    peer.call(0, files[77], Close {}).expect("closed");
    peer.open("/files", flags).expect("there is room again");
    assert_eq!(peer.open("/files", flags), Err(libc::EMFILE));
}

/// More locks than a file can have; and those of a session go with it.
pub(crate) fn owners(rig: &Rig) {
    let mut peer = Peer::begin(&rig.socket());
    let file = peer.create("/owners");
    let lock = |id| RangeLock::new(posix(id), LockMode::Exclusive, id, 1);
    let most = adit_fs::LOCKS_MAX as u64;
    for id in 0..most {
        let wait = false;
        let locked = peer.call(
            0,
            file,
            LockRange {
                lock: lock(id),
                wait,
            },
        );
        assert_eq!(locked, Ok(()));
    }
    let one_more = LockRange {
        lock: lock(most),
        wait: true,
    };
    assert_eq!(peer.call(0, file, one_more.clone()), Err(libc::ENOLCK));
    let owner_id = 3;
    peer.call(0, file, ReleaseLocks { owner_id })
        .expect("released");
    assert_eq!(peer.call(0, file, one_more), Ok(()));
    // Nobody else is the same owner, or learns who is.
    let mut other = Peer::begin(&rig.socket());
    let theirs = other.create("/owners");
    let owner_id = 5;
    other
        .call(0, theirs, ReleaseLocks { owner_id })
        .expect("of nobody");
    let found = other.call(0, theirs, TestLock { lock: lock(5) });
    let found = found.expect("tested").expect("it is locked");
    assert_eq!(found.owner, LockOwner::Posix { id: 0, pid: 1 });
    drop(peer);
    until("the locks of an ended session are gone", || {
        is_unlocked(&mut other, theirs)
    });
}

fn posix(id: u64) -> LockOwner {
    LockOwner::Posix { id, pid: 1 }
}

/// Nobody has a lock on it.
fn is_unlocked(peer: &mut Peer, file: u64) -> bool {
    let lock = RangeLock::new(LockOwner::Descriptor, LockMode::Exclusive, 0, 0);
    let found = peer.call(0, file, TestLock { lock });
    found.expect("tested").is_none()
}

/// Locks that wait: in most slots, of sessions that end, of files that are closed, of owners that
/// were released meanwhile. None is left when its session has gone.
pub(crate) fn waiting_locks(rig: &Rig) {
    let whole = |id| RangeLock::new(posix(id), LockMode::Exclusive, 0, 0);
    let wait_in = |peer: &Peer, slot: usize, file, lock| {
        let bytes = LockRange { lock, wait: true }.encode();
        peer.fill(slot, &bytes);
        let (number, len) = (LockRange::NUMBER, bytes.len() as u32);
        peer.submit(slot, Message::FileCall { number, file, len });
    };
    for round in 0..12u64 {
        let mut holder = Peer::begin(&rig.socket());
        let held = holder.create("/waited-for");
        let lock = whole(1);
        holder
            .call(0, held, LockRange { lock, wait: true })
            .expect("locked");
        let mut peer = Peer::begin(&rig.socket());
        let file = peer.create("/waited-for");
        for slot in 1..SLOTS {
            wait_in(&peer, slot, file, whole(slot as u64));
        }
        // It goes on all the same, and so does everybody else.
        assert!(peer.ask(0, Message::Nothing).is_some());
        rig.works();
        match round % 6 {
            // A released owner whose lock is granted later.
            0 | 1 => {
                for owner_id in 1..SLOTS as u64 {
                    peer.call(0, file, ReleaseLocks { owner_id })
                        .expect("of nobody");
                }
            }
            2 => peer.call(0, file, Close {}).expect("closed"),
            3 => {
                let again = peer.create("/waited-for");
                peer.call(0, file, Close {}).expect("closed");
                peer.call(0, again, FileStat {}).expect("open");
            }
            _ => {}
        }
        if round % 2 == 0 {
            let owner_id = 1;
            holder
                .call(0, held, ReleaseLocks { owner_id })
                .expect("released");
            // Somebody got it, unless its file was closed.
            until("a lock is granted", || {
                let replies = (1..SLOTS).filter_map(|slot| peer.memory.slot(slot).reply());
                let mut errnos = replies.map(|reply| reply.errno);
                errnos.any(|errno| {
                    errno
                        == if round % 6 == 2 {
                            libc::EBADF as u32
                        } else {
                            0
                        }
                })
            });
        }
        if round % 4 == 3 {
            shutdown(&peer.socket, Shutdown::Both).expect("shut");
        }
        drop(peer);
        let owner_id = 1;
        holder
            .call(0, held, ReleaseLocks { owner_id })
            .expect("released");
        until("no lock of the ended session is left", || {
            is_unlocked(&mut holder, held)
        });
    }
}

/// Withdrawals of what waits, before it begins and twice; of what doesn't wait, of slots and
/// messages that there are not, of another session's, and without end.
pub(crate) fn withdrawals(rig: &Rig) {
    let whole = |id| RangeLock::new(posix(id), LockMode::Exclusive, 0, 0);
    let lock = LockRange {
        lock: whole(1),
        wait: true,
    };
    let submit = |peer: &Peer, slot, file, call: &LockRange| {
        let bytes = call.encode();
        peer.fill(slot, &bytes);
        let (number, len) = (LockRange::NUMBER, bytes.len() as u32);
        peer.submit(slot, Message::FileCall { number, file, len });
    };
    let withdraw = |peer: &mut Peer, slot, message| peer.volume_call(0, Withdraw { slot, message });
    let errno = |peer: &Peer, slot: usize| {
        until("a wait ends", || peer.is_answered(slot));
        peer.memory.slot(slot).reply().expect("a reply").errno as i32
    };
    let mut holder = Peer::begin(&rig.socket());
    let held = holder.create("/withdrawn");
    holder.call(0, held, lock.clone()).expect("it is free");
    let mut peer = Peer::begin(&rig.socket());
    let file = peer.create("/withdrawn");
    // Slots and messages that there are not; messages that don't wait. Nobody waits less for it.
    submit(&peer, 1, file, &lock);
    for slot in [SLOTS as u32, 64, u32::MAX] {
        assert_eq!(withdraw(&mut peer, slot, 1), Err(libc::EINVAL));
    }
    for slot in (2..SLOTS as u32).chain([0]) {
        for message in [0, 1] {
            withdraw(&mut peer, slot, message).expect("of nothing");
        }
    }
    withdraw(&mut peer, 1, 0).expect("of nothing");
    withdraw(&mut holder, 1, 1).expect("of the session's own slot");
    // As often as it likes: messages of 30 slots at once.
    let bytes = [
        vec![0],
        Withdraw {
            slot: 7,
            message: 3,
        }
        .encode(),
    ]
    .concat();
    for _ in 0..200 {
        for slot in 32..62 {
            peer.fill(slot, &bytes);
            let (number, len) = (Withdraw::NUMBER, bytes.len() as u32);
            peer.submit(slot, Message::VolumeCall { number, len });
        }
        (32..62).for_each(|slot| assert_eq!(errno(&peer, slot), 0));
    }
    assert!(!peer.is_answered(1), "it waits");
    // It is withdrawn, twice, and has one reply.
    withdraw(&mut peer, 1, 1).expect("it waits");
    assert_eq!(errno(&peer, 1), libc::EINTR);
    withdraw(&mut peer, 1, 1).expect("of nothing");
    assert_eq!(errno(&peer, 1), libc::EINTR);
    // The next message of the slot waits: it has another number. What was withdrawn before it
    // begins waits for nothing, also if an earlier one is withdrawn then.
    submit(&peer, 1, file, &lock);
    withdraw(&mut peer, 1, 1).expect("of nothing");
    rig.works();
    assert!(!peer.is_answered(1), "it waits");
    withdraw(&mut peer, 1, 3).expect("of what is to come");
    withdraw(&mut peer, 1, 2).expect("too late for that");
    assert!(!peer.is_answered(1), "only the later one is remembered");
    holder
        .call(0, held, ReleaseLocks { owner_id: 1 })
        .expect("released");
    assert_eq!(errno(&peer, 1), 0);
    // What it has is not taken from it.
    withdraw(&mut peer, 1, 2).expect("of nothing");
    let found = holder.call(0, held, TestLock { lock: whole(1) });
    assert!(found.expect("tested").is_some(), "it has the lock");
    let mut third = Peer::begin(&rig.socket());
    let theirs = third.create("/withdrawn");
    withdraw(&mut third, 2, 1).expect("of what is to come");
    submit(&third, 2, theirs, &lock);
    assert_eq!(errno(&third, 2), libc::EINTR);
    // Of a session that has ended nothing waits.
    submit(&third, 3, theirs, &lock);
    shutdown(&third.socket, Shutdown::Both).expect("shut");
    drop((third, peer));
    until("no lock of an ended session is left", || {
        is_unlocked(&mut holder, held)
    });
}

/// Writes in several messages: more than there was said, less, too much, for another file, without
/// an end, and messages of other kinds between.
pub(crate) fn pieces(rig: &Rig) {
    let mut random = Prng::new(seed());
    for _ in 0..15 {
        let mut peer = Peer::begin(&rig.socket());
        let files = [peer.create("/pieces0"), peer.create("/pieces1")];
        for _ in 0..40 {
            let slot = random.below(4) as usize;
            let file = match random.below(5) {
                0 => random.next_u64(),
                other => files[other as usize % 2],
            };
            let flags =
                WriteFlags::from_bits_retain([8, 8, 9, 0, 1, 2, 12][random.below(7) as usize]);
            let len = [0, 1, 5000, 1 << 20, (1 << 20) + 1][random.below(5) as usize];
            let totals = [0, 1, 5000, 1 << 21, 64 << 20, (64 << 20) + 1, u64::MAX];
            let offset = totals[random.below(7) as usize];
            let write = Message::Write {
                file,
                len,
                offset,
                flags,
            };
            assert!(peer.ask(slot, write).is_some(), "it is a message");
            if random.below(6) == 0 {
                assert!(peer.ask(slot, Message::Nothing).is_some());
            }
            if random.below(12) == 0 {
                let size_bytes = 0;
                for file in files {
                    peer.call(9, file, SetSize { size_bytes }).expect("cut");
                }
            }
        }
    }
}
