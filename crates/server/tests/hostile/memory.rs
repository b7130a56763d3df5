//! A session that changes its memory while the server works with it.

use crate::rig::{LIMIT, Peer, Rig, SESSIONS_MAX, minutes, seed, until};
use adit_base::Errno;
use adit_base::random::Prng;
use adit_fs::{LockMode, LockOwner, OpenFlags, RangeLock};
use adit_wire::calls::*;
use adit_wire::memory::{AREA_BYTES, ARENA_BYTES, MEMORY_BYTES};
use adit_wire::message::{Message, WriteFlags};
use adit_wire::slot::SLOTS;
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A slot whose message is under way: the session ends.
pub(crate) fn rung_again(rig: &Rig) {
    for round in 0..10 {
        let mut peer = Peer::begin(&rig.socket());
        let file = peer.create("/rung");
        peer.fill(0, &[7; 4096]);
        let begin = Instant::now();
        while !peer.has_ended() && begin.elapsed() < Duration::from_millis(300) {
            for slot in 0..1 + round {
                let flags = WriteFlags::SYNC_ALL | WriteFlags::APPEND;
                let (len, offset) = (4096, 0);
                let write = Message::Write {
                    file,
                    len,
                    offset,
                    flags,
                };
                peer.submit(slot, write);
                peer.ring(slot);
            }
            for _ in 0..10 {
                (0..SLOTS).for_each(|slot| peer.ring(slot));
            }
        }
    }
}

/// Writes garbage into the session's memory until told to stop: into areas, words, states, the
/// doorbell, and what is between.
fn scribble(peer: &Peer, from: usize, stop: &AtomicBool, seed: u64) {
    let mut random = Prng::new(seed);
    let first = peer.memory.area(0).as_ptr();
    // SAFETY: areas begin at 65536 of the mapping.
    let start = unsafe { first.sub(65536) };
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..100 {
            let at = match random.below(3) {
                // Where arguments and data begin.
                0 => 65536 + random.below(4) as usize * AREA_BYTES + random.below(128) as usize,
                1 if from < 65536 => from + random.below(65536 - from as u64) as usize,
                _ => 65536 + random.below((MEMORY_BYTES - 65536) as u64 / 8) as usize,
            };
            // SAFETY: within the mapping.
            let byte = unsafe { &*start.add(at).cast::<AtomicU8>() };
            byte.store(random.next_u64() as u8, Ordering::Relaxed);
        }
    }
}

pub(crate) fn scribbled(rig: &Rig) {
    let mut random = Prng::new(seed());
    let (begun, limit) = (Instant::now(), minutes());
    let mut round = 0;
    while round < 8 || begun.elapsed() < limit {
        round += 1;
        let mut peer = Peer::begin(&rig.socket());
        let flags = OpenFlags::READ_WRITE | OpenFlags::CREATE;
        let direct = [OpenFlags::empty(), OpenFlags::DIRECT][round % 2];
        let file = peer.open("/scribbled", flags | direct).expect("opened");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Only areas, with messages that are right: it goes on for long. Or everything.
            let only_areas = round / 2 % 2 == 0;
            let from = if only_areas { 65_536 } else { 0 };
            let seed = random.next_u64();
            let (peer, stop) = (&peer, &stop);
            scope.spawn(move || scribble(peer, from, stop, seed));
            let begin = Instant::now();
            let mut rounds = 0;
            while begin.elapsed() < Duration::from_millis(100) && !peer.has_ended() {
                for slot in 0..4 {
                    let is_free = peer.memory.slot(slot).reply().is_some();
                    if only_areas && rounds > 0 && !is_free {
                        continue;
                    }
                    let len = [4096, 100, 1 << 20, 65536][random.below(4) as usize];
                    let offset = random.below(8) * 4096;
                    let message = match random.below(if only_areas { 2 } else { 4 }) {
                        0 => Message::Write {
                            file,
                            len,
                            offset,
                            flags: WriteFlags::SYNC_DATA,
                        },
                        1 => Message::Read {
                            file,
                            len,
                            offset,
                            hint: false,
                        },
                        2 => Message::VolumeCall {
                            number: 1 + random.below(20) as u16,
                            len: random.below(100) as u32,
                        },
                        _ => Message::FileCall {
                            number: 101 + random.below(21) as u16,
                            file,
                            len: random.below(60) as u32,
                        },
                    };
                    peer.submit(slot, message);
                }
                rounds += 1;
                std::thread::sleep(Duration::from_micros(random.below(300)));
            }
            assert!(!only_areas || !peer.has_ended(), "its messages were right");
            stop.store(true, Ordering::Relaxed);
        });
    }
}

/// Ranges that the arena has not, and those that are named by several messages at a time.
pub(crate) fn arena_ranges(rig: &Rig) {
    let mut peer = Peer::begin(&rig.socket());
    let flags = OpenFlags::READ_WRITE | OpenFlags::CREATE;
    let file = peer
        .open("/arena", flags | OpenFlags::DIRECT)
        .expect("opened");
    let write = |len, at| Message::WriteArena {
        file,
        len,
        offset: 0,
        flags: WriteFlags::SYNC_DATA,
        at,
    };
    let read = |len, at| Message::ReadArena {
        file,
        len,
        offset: 0,
        at,
    };
    let end = ARENA_BYTES as u64;
    let outside = [
        (1, end),
        (4096, end - 4095),
        (1 << 20, end - 4096),
        (0, end + 1),
        (4096, u64::MAX),
        (4096, u64::MAX - 4095),
        (1 << 20, 1 << 63),
        ((1 << 20) + 1, 0),
        (u32::MAX, 0),
    ];
    for (len, at) in outside {
        for message in [read(len, at), write(len, at)] {
            let reply = peer.ask(1, message).expect("it goes on");
            assert_eq!(reply.errno, libc::EINVAL as u32, "{message:?}");
        }
    }
    let reply = peer.ask(1, write(1 << 20, end - (1 << 20)));
    assert_eq!(reply.expect("it goes on").errno, 0, "the last MiB");
    for round in 0..50 {
        for slot in 0..SLOTS {
            let at = (slot as u64 % 3) * 512;
            let message = match (slot + round) % 4 {
                0 => write(8192, at),
                _ => read(65_536, at),
            };
            peer.submit(slot, message);
        }
        for slot in 0..SLOTS {
            let reply = peer.wait(slot).expect("its messages are right");
            assert_eq!(reply.errno, 0);
        }
    }
    // Its memory goes after the last of them.
    for slot in 0..SLOTS {
        peer.submit(slot, read(1 << 20, slot as u64 * 4096));
    }
}

/// The word that counts replies, and says that a thread sleeps there, has any value.
pub(crate) fn counted_replies(rig: &Rig) {
    const REPLIES_OFFSET: usize = 7168;
    let mut random = Prng::new(seed());
    let mut peer = Peer::begin(&rig.socket());
    let file = peer.create("/counted");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (memory, stop, seed) = (&peer.memory, &stop, random.next_u64());
        scope.spawn(move || {
            let mut random = Prng::new(seed);
            // SAFETY: areas begin at 65536 of the mapping; the word is aligned.
            let word = unsafe { memory.area(0).sub(65536 - REPLIES_OFFSET) };
            // SAFETY: as above.
            let word = unsafe { word.cast::<AtomicU32>().as_ref() };
            while !stop.load(Ordering::Relaxed) {
                word.store(random.next_u64() as u32, Ordering::Relaxed);
            }
        });
        for _ in 0..200 {
            for slot in 0..SLOTS {
                let message = match slot % 2 {
                    0 => Message::Size { file },
                    _ => Message::Sync { file, all: false },
                };
                peer.memory.slot(slot).submit_reported(message);
                peer.ring(slot);
            }
            for slot in 0..SLOTS {
                let reply = peer.wait(slot).expect("its messages are right");
                assert_eq!(reply.errno, 0);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Reads that nobody waits for, in all slots.
pub(crate) fn never_read(rig: &Rig) {
    let mut peer = Peer::begin(&rig.socket());
    let file = peer.create("/unread");
    peer.call(
        0,
        file,
        SetSize {
            size_bytes: 1 << 20,
        },
    )
    .expect("ok");
    for _ in 0..3 {
        for slot in 0..SLOTS {
            let (len, offset) = (1 << 16, 0);
            peer.submit(
                slot,
                Message::Read {
                    file,
                    len,
                    offset,
                    hint: false,
                },
            );
        }
        rig.works();
        until("all are answered", || {
            (0..SLOTS).all(|slot| peer.memory.slot(slot).reply().is_some())
        });
    }
}

/// The memory keeps its size whatever the session does with its descriptor; holes read as zeroes.
pub(crate) fn punched_and_cut(rig: &Rig) {
    let mut peer = Peer::begin(&rig.socket());
    let file = peer.create("/punched");
    assert!(ftruncate(&peer.descriptor, 0).is_err());
    assert!(ftruncate(&peer.descriptor, 1 << 40).is_err());
    for round in 0..20 {
        let flags = WriteFlags::empty();
        let (len, offset) = (1 << 20, 0);
        peer.submit(
            round,
            Message::Write {
                file,
                len,
                offset,
                flags,
            },
        );
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&peer.descriptor, hole, 65536, MEMORY_BYTES as u64 - 65536).expect("punched");
        assert!(peer.wait(round).is_some());
    }
    // Also what is in front of the areas: the words of messages, and the doorbell.
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&peer.descriptor, hole, 0, MEMORY_BYTES as u64).expect("punched");
    // The word that says whether the server sleeps is gone, too: nobody wakes it.
    peer.submit(1, Message::Nothing);
}

/// Files are closed, and the session ends, while their operations are under way.
pub(crate) fn closed_under_way(rig: &Rig) {
    let mut random = Prng::new(seed());
    for round in 0..40 {
        let mut peer = Peer::begin(&rig.socket());
        let path = format!("/under-way{}", round % 3);
        let file = peer.create(&path);
        let mut slot = 0;
        let owner = LockOwner::Posix { id: 7, pid: 7 };
        let mut file_call = |peer: &Peer, number: u16, bytes: Vec<u8>| {
            slot += 1;
            peer.fill(slot, &bytes);
            let len = bytes.len() as u32;
            peer.submit(slot, Message::FileCall { number, file, len });
        };
        use adit_wire::value::Value;
        for _ in 0..8 {
            file_call(&peer, LockRange::NUMBER, {
                let lock = RangeLock::new(owner, LockMode::Exclusive, random.below(100), 3);
                LockRange { lock, wait: true }.encode()
            });
            file_call(
                &peer,
                SetSize::NUMBER,
                SetSize {
                    size_bytes: random.below(1 << 22),
                }
                .encode(),
            );
        }
        for slot in 30..40 {
            let flags = WriteFlags::SYNC_DATA;
            let (len, offset) = (1 << 20, random.below(1 << 22));
            peer.submit(
                slot,
                Message::Write {
                    file,
                    len,
                    offset,
                    flags,
                },
            );
        }
        if round % 2 == 0 {
            let place = Place::root(path.as_bytes());
            let bytes = (None::<adit_fs::Credentials>, Unlink { place }).encode();
            peer.fill(50, &bytes);
            let (number, len) = (Unlink::NUMBER, bytes.len() as u32);
            peer.submit(50, Message::VolumeCall { number, len });
        }
        if round % 3 > 0 {
            file_call(&peer, Close::NUMBER, Vec::new());
            file_call(&peer, LockRange::NUMBER, {
                let lock = RangeLock::new(owner, LockMode::Exclusive, 0, 0);
                LockRange { lock, wait: true }.encode()
            });
        }
    }
    rig.is_unharmed();
    // None of the locks is left.
    let mut peer = Peer::begin(&rig.socket());
    for number in 0..3 {
        let file = peer.create(&format!("/under-way{number}"));
        let lock = RangeLock::new(LockOwner::Descriptor, LockMode::Exclusive, 0, 0);
        // An operation releases them, which may end after the session.
        until("its locks are gone", || {
            peer.call(0, file, TestLock { lock }) == Ok(None)
        });
    }
}

/// What one session had in its memory is in no other one's.
pub(crate) fn fresh(rig: &Rig) {
    let is_zero = |peer: &Peer| {
        (0..SLOTS).all(|slot| {
            let area = peer.area(slot, AREA_BYTES);
            area.iter().all(|byte| *byte == 0)
        })
    };
    let mut one = Peer::begin(&rig.socket());
    let file = one.create("/secret");
    for slot in 0..SLOTS {
        one.fill(slot, &[0x5a; AREA_BYTES]);
    }
    let write = Message::Write {
        file,
        len: 1 << 20,
        offset: 0,
        flags: WriteFlags::empty(),
    };
    assert_eq!(one.ask(0, write).expect("written").errno, 0);
    let other = Peer::begin(&rig.socket());
    assert!(is_zero(&other), "while the other one lives");
    drop(one);
    until("it has ended", || rig.sessions() == 1);
    let third = Peer::begin(&rig.socket());
    assert!(is_zero(&third), "after the other one");
    // A short read leaves what lies behind its bytes.
    let mut third = third;
    let file = third.open("/secret", OpenFlags::empty()).expect("opened");
    let read = Message::Read {
        file,
        len: 1 << 20,
        offset: (1 << 20) - 100,
        hint: false,
    };
    assert_eq!(third.ask(0, read).expect("read").value, 100);
    let area = third.area(0, AREA_BYTES);
    assert!(area[100..].iter().all(|byte| *byte == 0));
}

/// All messages of a session that goes away are done, before its files are closed.
pub(crate) fn submitted_and_gone(rig: &Rig) {
    for round in 0..2u32 {
        let path = format!("/gone{round}");
        let mut peer = Peer::begin(&rig.socket());
        let file = peer.create(&path);
        for slot in 0..SLOTS {
            peer.fill(slot, &[slot as u8; 1 << 20]);
        }
        for slot in 0..SLOTS {
            let flags = WriteFlags::APPEND | WriteFlags::SYNC_ALL;
            let (len, offset) = (1 << 20, 0);
            let append = Message::Write {
                file,
                len,
                offset,
                flags,
            };
            peer.memory.slot(slot).submit(append);
        }
        for slot in 0..SLOTS {
            peer.ring(slot);
        }
        drop(peer);
        until("it has ended", || rig.sessions() == 0);
        let mut other = Peer::begin(&rig.socket());
        let file = other.create(&path);
        until("all is there", || {
            let stat = other.call(0, file, FileStat {}).expect("known");
            stat.size_bytes == (SLOTS as u64) << 20
        });
        let size_bytes = 0;
        other.call(0, file, SetSize { size_bytes }).expect("cut");
    }
}

/// Begins copies under way, for a session that leaves at once. EAGAIN: there are too many sessions.
fn begin_copies(rig: &Rig) -> adit_base::Result<Peer> {
    const COPIES: usize = 16;
    let mut peer = Peer::ask_for(&rig.socket())?;
    let (file, to) = (peer.create("/copied"), peer.create("/copy"));
    for slot in 0..COPIES {
        peer.submit_copy(slot, file, to, 4 << 20);
    }
    Ok(peer)
}

/// Each session that had ended kept its memory until its operations were done, and counted no more:
/// a client that left at once and came again had any number of them.
pub(crate) fn left_in_a_loop(rig: &Rig) {
    let mut peer = Peer::begin(&rig.socket());
    let file = peer.create("/copied");
    peer.fill(0, &[1; 1 << 20]);
    for piece in 0..4 {
        let write = Message::Write {
            file,
            len: 1 << 20,
            offset: piece << 20,
            flags: WriteFlags::empty(),
        };
        assert_eq!(peer.ask(0, write).expect("written").errno, 0);
    }
    drop(peer);
    let begin = Instant::now();
    let (mut begun, mut most) = (0, 0);
    while begun < 3 * SESSIONS_MAX {
        assert!(begin.elapsed() < LIMIT, "only {begun} sessions could begin");
        match begin_copies(rig) {
            Ok(_) => begun += 1,
            Err(error) => {
                assert_eq!(error.errno(), Errno::AGAIN, "{error}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        most = most.max(rig.memories());
    }
    // One more: this side's, in the same process.
    assert!(most <= SESSIONS_MAX + 1, "{most} sessions had memory");
}

/// The server woke all threads that slept on the word of a slot, however many a session had there:
/// 128,000 of them stopped it for 28 ms.
pub(crate) fn many_sleepers(rig: &Rig) {
    // A busy machine may need longer than they sleep until all of them do.
    let woken = [5, 20, 80].into_iter().find_map(|seconds| {
        let slept = Duration::from_secs(seconds);
        woken_of_many(rig, slept)
    });
    let woken = woken.expect("all of them sleep in time");
    assert!((1..SLEEPERS / 4).contains(&woken), "{woken} were woken");
}

const SLEEPERS: u32 = 100;

/// How many of the threads that sleep for so long a reply wakes. None: it came too late to tell.
fn woken_of_many(rig: &Rig, slept: Duration) -> Option<u32> {
    let threads = Mutex::new(Vec::new());
    let peer = Peer::begin(&rig.socket());
    peer.memory.slot(0).submit(Message::Nothing);
    let woken = AtomicU32::new(0);
    let begin = Instant::now();
    // Those that are woken have the other half to come back early.
    let in_time = || begin.elapsed() < slept / 2;
    let is_told = std::thread::scope(|scope| {
        for _ in 0..SLEEPERS {
            scope.spawn(|| {
                let thread = rustix::thread::gettid().as_raw_nonzero();
                threads.lock().expect("no panic").push(thread);
                let begin = Instant::now();
                peer.memory.slot(0).sleep(slept);
                let is_early = begin.elapsed() < slept;
                woken.fetch_add(u32::from(is_early), Ordering::Relaxed);
            });
        }
        let all_sleep = || {
            let threads = threads.lock().expect("no panic");
            let sleeps = |thread| {
                // Gone, if it has slept enough.
                let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
                let stat = stat.unwrap_or_default();
                let behind_name = stat.rsplit_once(')');
                behind_name.is_some_and(|(_, state)| state.starts_with(" S"))
            };
            threads.len() == SLEEPERS as usize && threads.iter().all(sleeps)
        };
        while in_time() && !all_sleep() {
            std::thread::sleep(Duration::from_millis(2));
        }
        peer.ring(0);
        peer.wait(0).expect("a reply");
        in_time()
    });
    // The one that a reply wakes may be late, too.
    let woken = woken.into_inner();
    (is_told && woken > 0).then_some(woken)
}
