//! Work whose size a session chooses. None of it may hold up others for longer than a bound: each
//! turn of the worker or a poller takes so many steps at most (`adit_base::steps`).
//! docs/operating/server.md has the bounds by kind.

use crate::rig::{Peer, Rig};
use adit_base::steps;
use adit_fs::{
    AllocateFlags, Follow, LockMode, LockOwner, OpenFlags, RangeLock, RenameFlags, XattrMode,
};
use adit_wire::calls::*;
use adit_wire::message::{Message, WriteFlags};
use adit_wire::value::Value;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Most steps of a turn.
const TURN_STEPS_MAX: usize = 10_000;

fn posix(id: u64) -> LockOwner {
    LockOwner::Posix { id, pid: 1 }
}

fn byte(id: u64, at: u64) -> RangeLock {
    RangeLock::new(posix(id), LockMode::Exclusive, at, 1)
}

fn lock(peer: &mut Peer, file: u64, lock: RangeLock) {
    let wait = false;
    let locked = peer.call(0, file, LockRange { lock, wait });
    locked.expect("it is free");
}

fn path(path: &[u8]) -> Place<'_> {
    Place::root(path)
}

/// The most steps of a turn since the last call. Another message comes after all that was to do.
fn most(peer: &mut Peer) -> usize {
    let place = path(b"/");
    let follow = Follow::Yes;
    peer.volume_call(0, Stat { place, follow }).expect("served");
    steps::take_most().unwrap_or(0)
}

/// A full table of locks, and waits in a chain of owners, each of which has a byte that the one
/// before it wants; then others' locks of one more byte.
pub(crate) fn locks(rig: &Rig) {
    let mut peer = Peer::begin(&rig.socket());
    let file = peer.create("/locks");
    let owners = adit_fs::LOCKS_MAX as u64 - 100;
    for id in 0..owners {
        lock(&mut peer, file, byte(id, 2 * id));
    }
    let chain = 31;
    for id in 0..chain {
        let lock = byte(id, 2 * id + 2);
        let bytes = LockRange { lock, wait: true }.encode();
        let slot = id as usize + 1;
        peer.fill(slot, &bytes);
        let (number, len) = (LockRange::NUMBER, bytes.len() as u32);
        peer.submit(slot, Message::FileCall { number, file, len });
    }
    for round in 0..50 {
        lock(&mut peer, file, byte(owners, 1_000_000));
        let released = match round % 2 {
            0 => peer.call(0, file, ReleaseLocks { owner_id: owners }),
            _ => {
                let (owner, offset, len_bytes) = (posix(owners), 0, 0);
                peer.call(
                    0,
                    file,
                    UnlockRange {
                        owner,
                        offset,
                        len_bytes,
                    },
                )
            }
        };
        released.expect("released");
    }
    // The last one of the chain gets what it waits for, and then the one before it.
    peer.call(0, file, ReleaseLocks { owner_id: chain })
        .expect("released");
    for slot in (1..=chain as usize).rev() {
        let reply = peer.wait(slot).expect("it goes on");
        assert_eq!(reply.errno, 0, "slot {slot} has its lock");
        let owner_id = slot as u64 - 1;
        peer.call(0, file, ReleaseLocks { owner_id })
            .expect("released");
    }
    report(&mut peer, "locks");
}

/// Thousands of waiters for one lock, each with its own bytes, of several sessions: one release
/// concerns all of them.
pub(crate) fn waiters(rig: &Rig) {
    let mut holder = Peer::begin(&rig.socket());
    let file = holder.create("/waiters");
    let whole = RangeLock::new(posix(1), LockMode::Exclusive, 0, 0);
    lock(&mut holder, file, whole);
    let sessions: Vec<Peer> = (0..12).map(|_| Peer::begin(&rig.socket())).collect();
    let mut waiting = Vec::new();
    for (number, mut peer) in sessions.into_iter().enumerate() {
        let file = peer.create("/waiters");
        for slot in 1..32 {
            // Half of them get it together, half one after the other.
            let at = (number * 32 + slot) as u64 * u64::from(slot % 2 == 0);
            let lock = byte(slot as u64, at);
            let bytes = LockRange { lock, wait: true }.encode();
            peer.fill(slot, &bytes);
            let (number, len) = (LockRange::NUMBER, bytes.len() as u32);
            peer.submit(slot, Message::FileCall { number, file, len });
        }
        assert!(peer.ask(0, Message::Nothing).is_some());
        waiting.push((peer, file));
    }
    let owner_id = 1;
    holder
        .call(0, file, ReleaseLocks { owner_id })
        .expect("released");
    let mut left: Vec<(usize, usize)> = Vec::new();
    for at in 0..waiting.len() {
        left.extend((1..32).map(|slot| (at, slot)));
    }
    while !left.is_empty() {
        left.retain(|(at, slot)| {
            let (peer, file) = &mut waiting[*at];
            let Some(reply) = peer.memory.slot(*slot).reply() else {
                return true;
            };
            assert_eq!(reply.errno, 0, "it has its lock");
            let owner_id = *slot as u64;
            peer.call(0, *file, ReleaseLocks { owner_id })
                .expect("released");
            false
        });
    }
    report(&mut holder, "waiters");
}

/// The end of a session that has as many files and owners of locks as it can have.
pub(crate) fn ends(rig: &Rig) {
    let mut other = Peer::begin(&rig.socket());
    let theirs = other.create("/ends0");
    let mut peer = Peer::begin(&rig.socket());
    for number in 0..4 {
        let file = peer.create(&format!("/ends{number}"));
        for id in 0..adit_fs::LOCKS_MAX as u64 {
            lock(&mut peer, file, byte(id, 2 * id));
        }
    }
    for _ in 4..4096 {
        peer.create("/ends");
    }
    drop(peer);
    crate::rig::until("its locks are gone", || {
        let lock = RangeLock::new(LockOwner::Descriptor, LockMode::Exclusive, 0, 0);
        let found = other.call(0, theirs, TestLock { lock });
        found.expect("tested").is_none()
    });
    report(&mut other, "the end of a session");
}

/// A directory of many names, read in pieces as large as can be.
pub(crate) fn names(rig: &Rig) {
    let mut peer = Peer::begin(&rig.socket());
    let place = path(b"/names");
    peer.volume_call(0, MakeDirectory { place, mode: 0o755 })
        .expect("made");
    for number in 0..3000 {
        let name = format!("/names/{number}");
        let (place, flags, mode) = (path(name.as_bytes()), OpenFlags::CREATE, 0o644);
        let opened = peer
            .volume_call(0, Open { place, flags, mode })
            .expect("made");
        peer.call(0, opened.file, Close {}).expect("closed");
    }
    for attributes in [false, true] {
        let (cookie, entries_max) = (0, u32::MAX);
        let list = List {
            place,
            cookie,
            entries_max,
            attributes,
        };
        let listed = peer.volume_call(0, list).expect("listed");
        assert_eq!(listed.len(), 1024);
    }
    let directory = peer.open("/names", OpenFlags::empty()).expect("opened");
    let (cookie, names_bytes) = (0, u32::MAX);
    let read = peer.call(
        0,
        directory,
        ReadDirectory {
            cookie,
            names_bytes,
        },
    );
    assert!(read.expect("read").len() > 500);
    report(&mut peer, "names");
}

/// Directories as deep as a path can be, symbolic links to them, and renames there.
pub(crate) fn depth(rig: &Rig) {
    let mut peer = Peer::begin(&rig.socket());
    let mut deep = Vec::new();
    for _ in 0..2000 {
        deep.extend_from_slice(b"/d");
        let (place, mode) = (path(&deep), 0o755);
        peer.volume_call(0, MakeDirectory { place, mode })
            .expect("made");
    }
    for (name, target) in [
        (&b"/one"[..], deep.clone()),
        (b"/two", [b"/one/..", &deep[..]].concat()),
    ] {
        let (target, place) = (&target[..], path(name));
        let made = peer.volume_call(0, MakeSymlink { target, place });
        if let Err(errno) = made {
            assert_eq!(errno, libc::ENAMETOOLONG);
        }
    }
    let place = path(b"/two");
    let _ = peer.volume_call(
        0,
        Stat {
            place,
            follow: Follow::Yes,
        },
    );
    for (place, mode) in [(path(b"/from"), 0o755), (path(b"/from/sub"), 0o755)] {
        peer.volume_call(0, MakeDirectory { place, mode })
            .expect("made");
    }
    let to = [&deep[..], b"/x"].concat();
    let (from, to, flags) = (path(b"/from"), path(&to), RenameFlags::empty());
    peer.volume_call(0, Rename { from, to, flags })
        .expect("renamed");
    report(&mut peer, "depth");
}

/// A file of as many extents as there is room for, in each call about them.
pub(crate) fn extents(rig: &Rig) {
    let mut peer = Peer::begin(&rig.socket());
    let file = peer.create("/extents");
    let flags = AllocateFlags::empty();
    for number in 0..6000 {
        let (offset, len_bytes) = (number * 8192, 4096);
        peer.call(
            0,
            file,
            Allocate {
                flags,
                offset,
                len_bytes,
            },
        )
        .expect("allocated");
    }
    assert_eq!(peer.call(0, file, NextData { offset: 0 }), Err(libc::ENXIO));
    assert_eq!(peer.call(0, file, NextHole { offset: 0 }), Ok(0));
    peer.call(0, file, FileStat {}).expect("looked");
    let to = peer.create("/extents-copy");
    let (offset, to_offset, len_bytes) = (0, 0, 6000 * 8192);
    let copy = CopyRange {
        offset,
        to,
        to_offset,
        len_bytes,
    };
    peer.call(0, file, copy).expect("copied");
    let flags = AllocateFlags::PUNCH_HOLE | AllocateFlags::KEEP_SIZE;
    let (offset, len_bytes) = (0, 3000 * 8192);
    peer.call(
        0,
        file,
        Allocate {
            flags,
            offset,
            len_bytes,
        },
    )
    .expect("punched");
    peer.call(
        0,
        file,
        SetSize {
            size_bytes: 4096 * 8192,
        },
    )
    .expect("cut");
    let place = path(b"/extents");
    peer.volume_call(0, Unlink { place }).expect("removed");
    peer.call(0, file, Close {}).expect("closed");
    report(&mut peer, "extents");
}

/// Dirty pages of a file that is asked again and again for its holes; and long writes and reads.
pub(crate) fn content(rig: &Rig) {
    let mut peer = Peer::begin(&rig.socket());
    let file = peer.create("/content");
    for page in 0..1500_u64 {
        peer.fill(0, b"x");
        let (len, offset, flags) = (1, page * 8192, WriteFlags::empty());
        let write = Message::Write {
            file,
            len,
            offset,
            flags,
        };
        assert_eq!(peer.ask(0, write).expect("written").errno, 0);
    }
    for offset in [0, 4096, 8192] {
        peer.call(0, file, NextHole { offset }).expect("there are");
    }
    peer.fill(0, &[7; 1 << 20]);
    for flags in [WriteFlags::empty(), WriteFlags::SYNC_DATA] {
        let (len, offset) = (1 << 20, 0);
        let write = Message::Write {
            file,
            len,
            offset,
            flags,
        };
        assert_eq!(peer.ask(0, write).expect("written").errno, 0);
    }
    let (len, offset, hint) = (1 << 20, 0, false);
    let read = Message::Read {
        file,
        len,
        offset,
        hint,
    };
    assert_eq!(peer.ask(0, read).expect("read").value, 1 << 20);
    let pieces: Vec<(u64, &[u8])> = (0..4000).map(|at| (at * 40, &b"y"[..])).collect();
    let _ = peer.call(
        0,
        file,
        WriteAtomic {
            ranges: pieces,
            sync: true,
        },
    );
    report(&mut peer, "content");
}

/// As many extended attributes as there is room for.
pub(crate) fn attributes(rig: &Rig) {
    let mut peer = Peer::begin(&rig.socket());
    let file = peer.create("/attributes");
    for number in 0..1000 {
        let name = format!("user.{number}");
        let (name, value, mode) = (name.as_bytes(), &b""[..], XattrMode::Any);
        if peer
            .call(0, file, SetFileXattr { name, value, mode })
            .is_err()
        {
            break;
        }
    }
    let listed = peer.call(0, file, ListFileXattrs {}).expect("listed");
    assert!(listed.len() > 200);
    report(&mut peer, "attributes");
}

/// Mapped files, and a large mapping that is full of holes.
pub(crate) fn mapped(rig: &Rig) {
    let mut peer = Peer::begin(&rig.socket());
    let file = peer.create("/mapped");
    peer.call(
        0,
        file,
        SetSize {
            size_bytes: 1 << 30,
        },
    )
    .expect("sized");
    let (offset, len_bytes) = (0, 64 << 20);
    peer.call(0, file, Map { offset, len_bytes })
        .expect("mapped");
    peer.call(0, file, FlushMapped {}).expect("flushed");
    peer.call(0, file, Unmap {}).expect("unmapped");
    report(&mut peer, "mapped");
}

fn report(peer: &mut Peer, what: &str) {
    let most = most(peer);
    println!("{what}: {most} steps in a turn");
    assert!(most <= TURN_STEPS_MAX, "{what}: {most} steps in a turn");
}

/// Steps of other attacks don't count.
pub(crate) fn begin(_: &Rig) {
    let _ = steps::take_most();
}

/// Median time of a synced write of an honest session, while `attack` goes on in another one.
fn synced_write_us(rig: &Rig, attack: impl FnMut(&mut Peer) + Send) -> f64 {
    let stop = AtomicBool::new(false);
    let mut honest = Peer::begin(&rig.socket());
    let file = honest.create("/honest");
    let mut attack = attack;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut peer = Peer::begin(&rig.socket());
            while !stop.load(Ordering::Relaxed) {
                attack(&mut peer);
            }
        });
        let mut times: Vec<Duration> = Vec::new();
        for _ in 0..2000 {
            let begin = Instant::now();
            honest.fill(0, b"honest");
            let (len, offset, flags) = (6, 0, WriteFlags::SYNC_DATA);
            let write = Message::Write {
                file,
                len,
                offset,
                flags,
            };
            assert_eq!(honest.ask(0, write).expect("written").errno, 0);
            times.push(begin.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
        times.sort();
        times[times.len() / 2].as_secs_f64() * 1e6
    })
}

/// An honest synced write beside a session that repeats what takes the longest turns.
pub(crate) fn times(rig: &Rig) {
    locks(rig);
    depth(rig);
    extents_that_stay(rig);
    let quiet = synced_write_us(rig, |_| std::thread::sleep(Duration::from_millis(1)));
    println!("alone: {quiet:.1} us");
    let beside = |what: &str, attack: &mut (dyn FnMut(&mut Peer) + Send)| {
        let beside = synced_write_us(rig, attack);
        println!(
            "beside {what}: {beside:.1} us, {:.1} times as long",
            beside / quiet
        );
        assert!(
            beside < 20.0 * quiet,
            "beside {what}: {beside} us, alone {quiet} us"
        );
    };
    let mut holder = Peer::begin(&rig.socket());
    let held = holder.create("/locks");
    for id in 0..adit_fs::LOCKS_MAX as u64 - 100 {
        lock(&mut holder, held, byte(id, 2 * id));
    }
    let mut files = HashMap::new();
    beside("locks", &mut |peer| {
        let file = *files
            .entry("locks")
            .or_insert_with(|| peer.create("/locks"));
        lock(peer, file, byte(9999, 1_000_000));
        let owner_id = 9999;
        peer.call(0, file, ReleaseLocks { owner_id })
            .expect("released");
    });
    // Two owners share what all others wait for, and release it in turn.
    let shared = |id| RangeLock::new(posix(id), LockMode::Shared, 0, 0);
    let mut sharer = Peer::begin(&rig.socket());
    let file = sharer.create("/shared");
    lock(&mut sharer, file, shared(1));
    lock(&mut sharer, file, shared(2));
    let waiting: Vec<Peer> = (0..16).map(|_| Peer::begin(&rig.socket())).collect();
    let waiting = waiting.into_iter().map(|mut peer| {
        let file = peer.create("/shared");
        for slot in 1..32 {
            let lock = byte(slot as u64, slot as u64);
            let bytes = LockRange { lock, wait: true }.encode();
            peer.fill(slot, &bytes);
            let (number, len) = (LockRange::NUMBER, bytes.len() as u32);
            peer.submit(slot, Message::FileCall { number, file, len });
        }
        peer
    });
    let waiting: Vec<Peer> = waiting.collect();
    let mut turn = 0;
    beside("496 waiters", &mut |_| {
        turn += 1;
        let owner_id = 1 + turn % 2;
        sharer
            .call(0, file, ReleaseLocks { owner_id })
            .expect("released");
        lock(&mut sharer, file, shared(owner_id));
    });
    drop(waiting);
    beside("paths", &mut |peer| {
        let (place, follow) = (path(b"/two"), Follow::Yes);
        let _ = peer.volume_call(0, Stat { place, follow });
    });
    beside("extents", &mut |peer| {
        let file = *files
            .entry("extents")
            .or_insert_with(|| peer.create("/stays"));
        assert_eq!(peer.call(0, file, NextData { offset: 0 }), Err(libc::ENXIO));
    });
}

fn extents_that_stay(rig: &Rig) {
    let mut peer = Peer::begin(&rig.socket());
    let file = peer.create("/stays");
    let flags = AllocateFlags::empty();
    for number in 0..4000 {
        let (offset, len_bytes) = (number * 8192, 4096);
        let allocate = Allocate {
            flags,
            offset,
            len_bytes,
        };
        peer.call(0, file, allocate).expect("allocated");
    }
}
