//! Sessions that take all that they can get.

use crate::rig::{Peer, Rig};
use adit_fs::Credentials;
use adit_wire::calls::*;
use adit_wire::message::{Message, WriteFlags};
use adit_wire::slot::SLOTS;
use adit_wire::value::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a session reads 4 KiB in that time.
fn rate(peer: &Peer, file: u64, time: Duration) -> u64 {
    let begin = Instant::now();
    let mut done = 0;
    while done == 0 || begin.elapsed() < time {
        let (len, offset) = (4096, done % 16 * 4096);
        let reply = peer.ask(
            0,
            Message::Read {
                file,
                len,
                offset,
                hint: false,
            },
        );
        assert_eq!(reply.expect("it goes on").value, 4096);
        done += 1;
    }
    done
}

/// What a modest session gets beside a greedy one, in thousandths of what it gets alone; and that
/// it gets something at all, which is all that a busy machine lets a test demand.
fn share(rig: &Rig, what: &str, least: u64, greedy: impl Fn(&mut Peer, u64, &AtomicBool) + Sync) {
    let time = match std::env::var_os("ADIT_ATTACK_SHARES") {
        Some(_) => Duration::from_secs(3),
        None => Duration::from_millis(300),
    };
    let mut modest = Peer::begin(&rig.socket());
    let file = modest.create("/modest");
    modest
        .call(
            0,
            file,
            SetSize {
                size_bytes: 1 << 20,
            },
        )
        .expect("ok");
    let fill = Message::Write {
        file,
        len: 1 << 20,
        offset: 0,
        flags: WriteFlags::empty(),
    };
    assert_eq!(modest.ask(0, fill).expect("written").errno, 0);
    let alone = rate(&modest, file, time);
    let stop = AtomicBool::new(false);
    let beside = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut peer = Peer::begin(&rig.socket());
            let file = peer.create("/greedy");
            greedy(&mut peer, file, &stop);
        });
        std::thread::sleep(time / 3);
        let beside = rate(&modest, file, time);
        stop.store(true, Ordering::Relaxed);
        beside
    });
    let thousandths = beside * 1000 / alone.max(1);
    println!("beside {what}: {beside} reads, alone {alone}: {thousandths} ‰");
    assert!(beside > 0, "{what} starves others");
    // With fewer cores than busy threads the kernel decides, too.
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    if std::env::var_os("ADIT_ATTACK_SHARES").is_some() && cores >= 4 {
        assert!(thousandths >= least, "beside {what}: {thousandths} ‰");
    }
}

/// Keeps all slots under way with one message.
fn keep_ringing(peer: &Peer, message: Message, stop: &AtomicBool) {
    (0..SLOTS).for_each(|slot| peer.submit(slot, message));
    while !stop.load(Ordering::Relaxed) {
        for slot in 0..SLOTS {
            if peer.memory.slot(slot).reply().is_some() {
                peer.submit(slot, message);
            }
        }
        std::thread::yield_now();
    }
    (0..SLOTS).for_each(|slot| assert!(peer.wait(slot).is_some()));
}

pub(crate) fn greedy_with_nothing(rig: &Rig) {
    share(rig, "empty messages", 333, |peer, _, stop| {
        keep_ringing(peer, Message::Nothing, stop);
    });
}

pub(crate) fn greedy_with_reads(rig: &Rig) {
    share(rig, "reads of 64 KiB", 100, |peer, file, stop| {
        peer.call(
            0,
            file,
            SetSize {
                size_bytes: 1 << 20,
            },
        )
        .expect("ok");
        let (len, offset) = (65536, 0);
        keep_ringing(
            peer,
            Message::Read {
                file,
                len,
                offset,
                hint: false,
            },
            stop,
        );
    });
}

pub(crate) fn greedy_with_writes(rig: &Rig) {
    share(rig, "synced appends of 1 MiB", 1, |peer, file, stop| {
        peer.fill(0, &[1; 1 << 20]);
        let flags = WriteFlags::SYNC_DATA;
        let (len, offset) = (1 << 20, 0);
        let write = Message::Write {
            file,
            len,
            offset,
            flags,
        };
        keep_ringing(peer, write, stop);
    });
}

/// A copy is one message, and may take seconds.
pub(crate) fn greedy_with_copies(rig: &Rig) {
    share(rig, "copies of 24 MiB", 1, |peer, file, stop| {
        for offset in 0..24 {
            peer.fill(0, &[1; 1 << 20]);
            let flags = WriteFlags::empty();
            let (len, offset) = (1 << 20, offset << 20);
            let write = Message::Write {
                file,
                len,
                offset,
                flags,
            };
            assert_eq!(peer.ask(0, write).expect("written").errno, 0);
        }
        let to = peer.create("/copy");
        let copy = CopyRange {
            offset: 0,
            to,
            to_offset: 0,
            len_bytes: 24 << 20,
        };
        let bytes = copy.encode();
        for slot in 0..SLOTS {
            peer.fill(slot, &bytes);
        }
        let (number, len) = (CopyRange::NUMBER, bytes.len() as u32);
        keep_ringing(peer, Message::FileCall { number, file, len }, stop);
        for path in [&b"/copy"[..], b"/greedy"] {
            let place = Place::root(path);
            let bytes = (None::<Credentials>, Unlink { place }).encode();
            peer.fill(0, &bytes);
            let (number, len) = (Unlink::NUMBER, bytes.len() as u32);
            let _ = peer.ask(0, Message::VolumeCall { number, len });
        }
    });
}
