//! Sessions that say they go on with one of the last server.

use crate::inheriting::leave;
use crate::rig::{LIMIT, Peer, Rig, until};
use adit_base::Errno;
use adit_block::{DeviceOptions, open_device};
use adit_fs::{At, BlobId, Credentials, FlockOperation, Follow, Fs, OpenFlags, Workers};
use adit_reactor::{Engine, EngineOptions};
use adit_server::{ServeOptions, Server};
use adit_store::{Store, StoreOptions, Survive};
use adit_wire::calls::*;
use adit_wire::handshake::{Aim, Begun, Claim, Key, Opening};
use adit_wire::message::{Message, WriteFlags};
use adit_wire::slot::SLOTS;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn claim(begun: &Begun) -> Claim {
    Claim {
        opening: begun.opening,
        key: begun.key,
    }
}

/// There is no session to go on with.
pub(crate) fn without_a_last_server(rig: &Rig) {
    let (mut peer, begun) = Peer::resume(&rig.socket(), None).expect("a session");
    assert_eq!(begun.resumed, None);
    let other = Opening {
        epoch: begun.opening.epoch + 7,
        ..begun.opening
    };
    for (opening, errno) in [(begun.opening, Errno::PIPE), (other, Errno::STALE)] {
        let claim = Claim {
            opening,
            ..claim(&begun)
        };
        let refused = Peer::resume(&rig.socket(), Some(claim));
        assert_eq!(refused.map(drop).expect_err("refused").errno(), errno);
    }
    let file = peer.create("/resuming");
    let (id, flags, kind) = (
        BlobId {
            slot: 1,
            generation: 1,
        },
        OpenFlags::READ_WRITE,
        adit_fs::FileKind::File,
    );
    for token in [0, 1, u64::MAX] {
        let reopen = Reopen {
            file: file + 1,
            id,
            flags,
            kind,
            token,
        };
        assert_eq!(peer.volume_call(0, reopen), Err(libc::EPERM));
    }
    assert_eq!(peer.volume_call(0, EndResuming {}), Err(libc::EPERM));
    let settle = SettleAppend {
        offset: 0,
        len_bytes: 1,
    };
    assert_eq!(peer.call(0, file, settle), Err(libc::EPERM));
}

fn start(image: &Path, fresh: bool) -> Arc<Engine<Fs>> {
    let device = open_device(image.to_str().expect("text"), &DeviceOptions::default());
    let options = EngineOptions {
        queue_depth: 64,
        keeper: true,
        name: "resumed".into(),
    };
    let store = StoreOptions {
        cache_bytes: 16 << 20,
        survive: Survive::Off,
        ..StoreOptions::default()
    };
    let started = Engine::start(device.expect("opened"), options, |reactor| async move {
        if fresh {
            adit_store::mkfs(&reactor, &adit_store::MkfsOptions::default()).await?;
            return Fs::format(Store::open(reactor, &store).await?).await;
        }
        Fs::open_with_orphans(Store::open(reactor, &store).await?).await
    });
    started.expect("it starts")
}

fn serve(engine: &Arc<Engine<Fs>>, socket: &Path) -> Server {
    let workers = Workers::alone(engine.clone()).expect("its names");
    let volumes = vec![("v".to_owned(), workers)];
    let mut options = ServeOptions::default();
    // A busy machine may hold up this thread for long; one test waits for the end of the grace.
    options.grace = Duration::from_secs(30);
    Server::start(volumes, socket, &options).expect("served")
}

/// A server ends in order, and its sessions lie to the next one.
pub(crate) fn with_a_last_server() {
    let directory = tempfile::tempdir().expect("a directory");
    let (image, socket) = (directory.path().join("v"), directory.path().join("s"));
    let file = std::fs::File::create(&image).expect("made");
    file.set_len(64 << 20).expect("sized");
    let engine = start(&image, true);
    let mut server = serve(&engine, &socket);
    let (mut peer, begun) = Peer::resume(&socket, None).expect("a session");
    let place = Place::root(b"/f");
    let open = |flags| Open {
        place,
        flags,
        mode: 0o600,
    };
    let created = OpenFlags::CREATE | OpenFlags::READ_WRITE;
    let written = peer.volume_call(0, open(created)).expect("made");
    let read = peer
        .volume_call(0, open(OpenFlags::empty()))
        .expect("opened");
    let pieces = [b"0123456789", b"abcdefghij"];
    for piece in pieces {
        peer.fill(1, piece);
        let append = Message::Write {
            file: written.file,
            len: 10,
            offset: 0,
            flags: WriteFlags::APPEND,
        };
        assert_eq!(peer.ask(1, append).expect("a reply").errno, 0);
    }
    server.hand_over();
    drop(server);
    engine.shutdown(|fs| fs.close_volume()).expect("closed");
    drop(engine);
    assert!(peer.has_ended());
    assert_eq!(peer.memory.ending(), adit_wire::memory::Ending::HandedOver);

    let engine = start(&image, false);
    let server = serve(&engine, &socket);
    // Who leaves files doesn't know yet that its server has ended: it waits for nobody, since it
    // comes back only behind the answer.
    let left = leave(&socket, begun.key).expect_err("a session of the last server");
    assert_eq!(left.errno(), Errno::STALE);
    // Others wait, though not for ever.
    let begin = Instant::now();
    let impatient = std::thread::spawn({
        let socket = socket.clone();
        move || Peer::resume(&socket, None).map(|(_, begun)| begun)
    });
    let (mut next, second) = Peer::resume(&socket, Some(claim(&begun))).expect("it goes on");
    let resumed = second.resumed.expect("it goes on");
    assert!(resumed.in_grace && resumed.applied == adit_store::AppliedUpTo::ALL);
    let again = |opened: &Opened| Reopen {
        file: opened.file,
        id: opened.id,
        flags: opened.flags,
        kind: opened.kind,
        token: opened.token,
    };
    // What it did not have, or not so.
    for (name, wrong) in [
        (
            "token",
            Reopen {
                token: written.token ^ 1,
                ..again(&written)
            },
        ),
        (
            "flags",
            Reopen {
                flags: written.flags,
                ..again(&read)
            },
        ),
        (
            "kind",
            Reopen {
                kind: adit_fs::FileKind::Directory,
                ..again(&written)
            },
        ),
        (
            "inode",
            Reopen {
                id: BlobId {
                    slot: 2,
                    ..written.id
                },
                ..again(&written)
            },
        ),
    ] {
        assert_eq!(next.volume_call(0, wrong), Err(libc::EACCES), "{name}");
    }
    let far = Reopen {
        file: 1 << 40 | 4096,
        ..again(&written)
    };
    assert_eq!(next.volume_call(0, far), Err(libc::EMFILE));
    assert_eq!(next.volume_call(0, again(&written)), Ok(()));
    assert_eq!(next.volume_call(0, again(&written)), Err(libc::EMFILE));
    assert_eq!(next.volume_call(0, again(&read)), Ok(()));
    // A lock that waits, for one of its own: the grace would not end.
    let flock = |operation| Flock { operation };
    let at_once = FlockOperation::Exclusive { wait: false };
    assert_eq!(next.call(0, written.file, flock(at_once)), Ok(()));
    let wait = FlockOperation::Exclusive { wait: true };
    assert_eq!(next.call(0, read.file, flock(wait)), Err(libc::EPERM));
    // An append of which all, a part, and nothing is there.
    let settle = |offset, len_bytes| SettleAppend { offset, len_bytes };
    assert_eq!(next.call(0, written.file, settle(10, 10)), Ok(true));
    assert_eq!(next.call(0, written.file, settle(10, u64::MAX)), Ok(false));
    assert_eq!(next.call(0, written.file, settle(10, 10)), Ok(false));
    assert_eq!(
        next.call(0, read.file, settle(0, 1 << 20)),
        Err(libc::EINVAL)
    );
    // Nothing else, before all have come back: that ends the session.
    let size = Message::Size { file: written.file };
    if let Some(reply) = next.ask(2, size) {
        assert_eq!(reply.errno, libc::EPROTO as u32);
    }
    until("it is ended", || next.has_ended());
    let late = impatient.join().expect("no panic").expect("a session");
    assert!(late.resumed.is_none() && begin.elapsed() < LIMIT);
    // Beyond the grace it may come back; its appends can't be settled.
    let (mut next, third) = Peer::resume(&socket, Some(claim(&begun))).expect("it goes on");
    assert!(!third.resumed.expect("it goes on").in_grace);
    assert_eq!(next.volume_call(0, again(&written)), Ok(()));
    assert_eq!(next.call(0, written.file, settle(0, 10)), Err(libc::EPERM));
    assert_eq!(next.volume_call(0, EndResuming {}), Ok(()));
    assert_eq!(next.volume_call(0, EndResuming {}), Err(libc::EPERM));
    assert_eq!(next.ask(2, size).expect("a reply").value, 10);
    drop((next, server));
    engine.shutdown(|fs| fs.close_volume()).expect("closed");
}

/// A token opened its file for each session of its user, as long as there was a server at the
/// socket: also when that user might not open it any more, and all processes that had had it open
/// had ended.
pub(crate) fn with_what_others_had() {
    let directory = tempfile::tempdir().expect("a directory");
    let (image, socket) = (directory.path().join("v"), directory.path().join("s"));
    let file = std::fs::File::create(&image).expect("made");
    file.set_len(64 << 20).expect("sized");
    let engine = start(&image, true);
    let mut server = serve(&engine, &socket);
    let open = |peer: &mut Peer| {
        let open = Open {
            place: Place::root(b"/f"),
            flags: OpenFlags::CREATE | OpenFlags::READ_WRITE,
            mode: 0o600,
        };
        peer.volume_call(0, open).expect("opened")
    };
    let mut peers: Vec<_> = (0..4)
        .map(|_| Peer::resume(&socket, None).expect("a session"))
        .collect();
    let opened: Vec<Opened> = peers.iter_mut().map(|(peer, _)| open(peer)).collect();
    let claims: Vec<Claim> = peers.iter().map(|(_, begun)| claim(begun)).collect();
    // The first one stays. The others end; the third and the fourth have left files to a process
    // that has not come for them, and the process of the fourth ends as well.
    let (kept, left) = leave(&socket, claims[2].key).expect("kept");
    let (dropped, left_by_last) = leave(&socket, claims[3].key).expect("kept");
    peers.truncate(1);
    for claim in &claims[1..] {
        until("the session has ended", || {
            leave(&socket, claim.key).is_err()
        });
    }
    drop(dropped);
    until("nothing is left of it", || {
        let heir = Peer::ask_with(&socket, Aim::Inherit(left_by_last));
        let heir = heir.map(|(_, begun)| begun.key);
        until("its heir has ended", || {
            (heir.as_ref()).map_or(true, |key| leave(&socket, *key).is_err())
        });
        heir.is_err()
    });
    server.hand_over();
    drop(server);
    engine.shutdown(|fs| fs.close_volume()).expect("closed");
    drop(engine);

    let engine = start(&image, false);
    let server = serve(&engine, &socket);
    let refused = |claim: Claim| {
        let refused = Peer::resume(&socket, Some(claim)).map(drop);
        refused.expect_err("refused").errno()
    };
    let heir_of = |claim: Claim, family| Claim {
        key: Key {
            secret: (7, 7),
            family,
            ..claim.key
        },
        ..claim
    };
    for gone in [claims[1], claims[3]] {
        assert_eq!(refused(gone), Errno::STALE);
    }
    assert_eq!(
        refused(heir_of(claims[1], claims[1].key.family)),
        Errno::STALE
    );
    assert_eq!(
        refused(heir_of(claims[3], left_by_last.family)),
        Errno::STALE
    );
    assert_eq!(refused(heir_of(claims[0], 1)), Errno::STALE);
    let reopen = |opened: &Opened| Reopen {
        file: opened.file,
        id: opened.id,
        flags: opened.flags,
        kind: opened.kind,
        token: opened.token,
    };
    let of_third = heir_of(claims[2], left.family);
    let (mut heir, begun) = Peer::resume(&socket, Some(of_third)).expect("it goes on");
    assert_eq!((begun.key.secret, begun.key.family), ((7, 7), left.family));
    assert_eq!(refused(of_third), Errno::AGAIN, "it goes on already");
    assert_eq!(heir.volume_call(0, reopen(&opened[0])), Err(libc::EACCES));
    assert_eq!(heir.volume_call(0, reopen(&opened[2])), Ok(()));
    let (mut first, _) = Peer::resume(&socket, Some(claims[0])).expect("it goes on");
    for (number, opened) in opened.iter().enumerate() {
        let expected = if number == 0 {
            Ok(())
        } else {
            Err(libc::EACCES)
        };
        assert_eq!(first.volume_call(0, reopen(opened)), expected);
    }
    // One that ends before it has everything again may try again.
    drop(first);
    let mut first = None;
    until("its connection has ended", || {
        first = Peer::resume(&socket, Some(claims[0])).ok();
        first.is_some()
    });
    let (mut first, _) = first.expect("it goes on");
    assert_eq!(first.volume_call(0, reopen(&opened[0])), Ok(()));
    assert_eq!(first.volume_call(0, EndResuming {}), Ok(()));
    drop((kept, server));
    engine.shutdown(|fs| fs.close_volume()).expect("closed");
}

/// Bytes of a copy.
const COPY_BYTES: u64 = 64 << 20;

/// A server that was to be replaced did all that was under way: dozens of copies of a gigabyte took
/// longer than sessions wait for the next server.
pub(crate) fn with_copies_under_way() {
    // Those that had begun were done to their end. One copy follows another: the server may end
    // just between two of them.
    let ends_half_way = || copies_when_a_server_ends().any(|size| (1..COPY_BYTES).contains(&size));
    assert!((0..8).any(|_| ends_half_way()));
}

fn copies_when_a_server_ends() -> impl Iterator<Item = u64> {
    const LEN: u64 = COPY_BYTES;
    let directory = tempfile::tempdir().expect("a directory");
    let (image, socket) = (directory.path().join("v"), directory.path().join("s"));
    let file = std::fs::File::create(&image).expect("made");
    file.set_len(SLOTS as u64 * LEN + (256 << 20))
        .expect("sized");
    let engine = start(&image, true);
    let mut server = serve(&engine, &socket);
    let mut peer = Peer::begin(&socket);
    let from = peer.create("/from");
    peer.fill(0, &[1; 1 << 20]);
    for piece in 0..LEN >> 20 {
        let write = Message::Write {
            file: from,
            len: 1 << 20,
            offset: piece << 20,
            flags: WriteFlags::empty(),
        };
        assert_eq!(peer.ask(0, write).expect("written").errno, 0);
    }
    let names: Vec<String> = (0..SLOTS).map(|slot| format!("/to{slot}")).collect();
    let to: Vec<u64> = names.iter().map(|name| peer.create(name)).collect();
    for (slot, to) in to.into_iter().enumerate() {
        peer.submit_copy(slot, from, to, LEN);
    }
    let size_of = |engine: &Arc<Engine<Fs>>, name: &String| {
        let who = Credentials::process();
        let stat = engine.run(|fs| fs.stat(At::root(&who, name.as_bytes()), Follow::No));
        stat.expect("it is there").size_bytes
    };
    until("they are under way", || size_of(&engine, &names[0]) > 0);
    server.hand_over();
    drop(server);
    engine.shutdown(|fs| fs.close_volume()).expect("closed");
    let engine = start(&image, false);
    let sizes: Vec<u64> = names.iter().map(|name| size_of(&engine, name)).collect();
    engine.shutdown(|fs| fs.close_volume()).expect("closed");
    sizes.into_iter()
}
