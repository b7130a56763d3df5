//! Sessions that want pipes and sockets of the host's without the right to.

use crate::mapped::{begin, refused};
use crate::rig::{Peer, Rig};
use adit_base::{Errno, Result};
use adit_fs::{FileKind, OpenFlags};
use adit_wire::calls::{Close, MakeNode, Place, Unlink};
use adit_wire::handshake::{
    Aim, Answer, BYTES_MAX, Greeting, Hello, Key, MappedFile, Node, NodeUse, PATH_MAX, Request,
};
use adit_wire::socket::{receive_message, receive_message_with, send_message};
use rustix::fs::fstat;
use std::os::fd::OwnedFd;

fn ask(rig: &Rig, key: Key, file: u64, want: NodeUse) -> Result<Option<OwnedFd>> {
    let socket = crate::rig::knock(&rig.socket());
    let mut buffer = [0; BYTES_MAX];
    let greeting: Greeting = receive_message(&socket, &mut buffer)?;
    assert!(matches!(greeting, Greeting::Hello(_)));
    let of = MappedFile { key, file };
    let request = Request {
        hello: Hello::ours(),
        volume: String::new(),
        read_only: false,
        comes_back: false,
        aim: Aim::Node(Node { of, want }),
    };
    send_message(&socket, &request)?;
    match receive_message_with(&socket, &mut buffer)? {
        (Answer::Refused(error), _) => Err(error),
        (Answer::Node, with) => Ok(with.into_iter().next().map(|fd| fd.into_inner())),
        (Answer::BoundAs(_), _) => Ok(None),
        (answer, _) => panic!("{answer:?}"),
    }
}

fn failed(asked: Result<Option<OwnedFd>>) -> Errno {
    refused(asked.map(|fd| fd.expect("a descriptor")))
}

fn bind(kind: u32, path_len: u8) -> NodeUse {
    NodeUse::Bind {
        kind,
        path: [b'x'; PATH_MAX],
        path_len,
    }
}

fn make(peer: &mut Peer, path: &str, kind: FileKind) {
    let place = Place::root(path.as_bytes());
    let (mode, device) = (0o600, 0);
    let made = peer.volume_call(
        0,
        MakeNode {
            place,
            kind,
            mode,
            device,
        },
    );
    made.expect("made");
}

pub(crate) fn without_rights(rig: &Rig) {
    let ((mut peer, begun), (_other, others)) = (begin(rig), begin(rig));
    let key = begun.key;
    make(&mut peer, "/pipe", FileKind::Fifo);
    make(&mut peer, "/socket", FileKind::Socket);
    make(&mut peer, "/device", FileKind::CharDevice);
    let file = peer.create("/file");
    let node = OpenFlags::NODE;
    let mut open = |path, flags| peer.open(path, flags);
    let reading = open("/pipe", node).expect("opened");
    let path = open("/pipe", node | OpenFlags::PATH).expect("opened");
    let socket_path = open("/socket", OpenFlags::PATH).expect("opened");
    let socket_read = open("/socket", node).expect("opened");
    let socket = open("/socket", node | OpenFlags::WRITE_ONLY).expect("opened");
    assert_eq!(open("/pipe", OpenFlags::empty()), Err(libc::ENXIO));
    assert_eq!(open("/device", node), Err(libc::ENXIO));
    // What is open for its rights has no content.
    let read = adit_wire::message::Message::Read {
        file: reading,
        len: 1,
        offset: 0,
        hint: false,
    };
    assert_eq!(
        peer.ask(0, read).expect("it goes on").errno,
        libc::EBADF as u16 as _
    );

    let pipe = ask(rig, key, reading, NodeUse::Open).expect("the peer's own");
    let found = fstat(pipe.expect("a descriptor")).expect("open");
    assert_eq!((found.st_mode, found.st_nlink), (libc::S_IFIFO | 0o600, 1));
    let secret = (key.secret.0 ^ 1, key.secret.1);
    let wrong = [
        Key { secret, ..key },
        Key {
            number: others.key.number,
            ..key
        },
    ];
    for key in wrong {
        assert_eq!(failed(ask(rig, key, reading, NodeUse::Open)), Errno::STALE);
        assert_eq!(failed(ask(rig, key, socket, bind(1, 1))), Errno::STALE);
    }
    for of in [path, file, socket_path] {
        assert_eq!(failed(ask(rig, key, of, NodeUse::Open)), Errno::BADF);
    }
    for of in [0, reading ^ 1 << 32, u64::MAX] {
        assert_eq!(failed(ask(rig, key, of, NodeUse::Open)), Errno::BADF);
    }
    assert_eq!(
        failed(ask(rig, key, socket_read, NodeUse::Open)),
        Errno::ACCESS
    );
    assert_eq!(
        failed(ask(rig, key, socket, NodeUse::Open)),
        Errno::CONNREFUSED
    );
    for of in [reading, file] {
        assert_eq!(failed(ask(rig, key, of, bind(1, 1))), Errno::INVAL);
    }
    for (kind, len) in [
        (0, 1),
        (3, 1),
        (1 | 0o4000, 1),
        (u32::MAX, 1),
        (1, 109),
        (1, 255),
    ] {
        assert_eq!(failed(ask(rig, key, socket, bind(kind, len))), Errno::INVAL);
    }
    assert_eq!(
        failed(ask(rig, key, socket, NodeUse::Open)),
        Errno::CONNREFUSED
    );
    ask(rig, key, socket_path, bind(1, 108)).expect("bound");
    assert_eq!(failed(ask(rig, key, socket, bind(1, 1))), Errno::ADDRINUSE);
    ask(rig, key, socket, NodeUse::Open).expect("it is bound");
    // Its name goes, and nobody comes to it any more, whatever is still open.
    for name in ["/pipe", "/socket", "/device", "/file"] {
        let place = Place::root(name.as_bytes());
        peer.volume_call(0, Unlink { place }).expect("removed");
    }
    for of in [reading, socket] {
        assert_eq!(failed(ask(rig, key, of, NodeUse::Open)), Errno::NOENT);
    }
    assert_eq!(failed(ask(rig, key, socket, bind(1, 1))), Errno::NOENT);
    peer.call(0, reading, Close {}).expect("closed");
    assert_eq!(failed(ask(rig, key, reading, NodeUse::Open)), Errno::BADF);
}
