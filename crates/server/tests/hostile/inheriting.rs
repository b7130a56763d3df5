//! What is left to forked processes, and who else would like to have it.

use crate::rig::{Peer, Rig, knock, until};
use adit_base::Errno;
use adit_wire::calls::*;
use adit_wire::handshake::{Aim, Answer, BYTES_MAX, Greeting, Hello, Key, Request};
use adit_wire::message::Message;
use adit_wire::socket::{receive_message, send_message};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Asks that the files of a session are kept.
pub(crate) fn leave(socket: &Path, key: Key) -> adit_base::Result<(OwnedFd, Key)> {
    let socket = knock(socket);
    let mut buffer = [0; BYTES_MAX];
    match receive_message(&socket, &mut buffer)? {
        Greeting::Refused(error) => return Err(error),
        Greeting::Hello(_) => {}
    }
    let request = Request {
        hello: Hello::ours(),
        volume: String::new(),
        read_only: false,
        comes_back: false,
        aim: Aim::Leave(key),
    };
    send_message(&socket, &request)?;
    match receive_message(&socket, &mut buffer)? {
        Answer::Refused(error) => Err(error),
        Answer::Left(key) => Ok((socket, key)),
        _ => panic!("no session was asked for"),
    }
}

/// Keys that are none, or used already, or another one's.
pub(crate) fn keys(rig: &Rig) {
    let (mut parent, begun) = Peer::ask_with(&rig.socket(), Aim::Begin).expect("a session");
    let file = parent.create("/inherited");
    let key = begun.key;
    let wrong = [
        Key {
            secret: (key.secret.0, key.secret.1 ^ 1),
            ..key
        },
        Key {
            number: key.number + 1,
            ..key
        },
        Key {
            number: 0,
            secret: (0, 0),
            ..key
        },
        Key {
            family: key.family ^ 1,
            ..key
        },
    ];
    let stale = |aim| {
        let refused = Peer::ask_with(&rig.socket(), aim).map(drop);
        assert_eq!(refused.expect_err("refused").errno(), Errno::STALE);
    };
    for wrong in wrong {
        assert_eq!(
            leave(&rig.socket(), wrong).expect_err("refused").errno(),
            Errno::STALE
        );
        stale(Aim::Inherit(wrong));
    }
    // The key of a session is none of files that are kept, and that of such files no session's.
    stale(Aim::Inherit(key));
    let (kept, left) = leave(&rig.socket(), key).expect("kept");
    assert_eq!(
        leave(&rig.socket(), left).expect_err("refused").errno(),
        Errno::STALE
    );
    let (mut child, _) = Peer::ask_with(&rig.socket(), Aim::Inherit(left)).expect("inherited");
    assert_eq!(
        child.ask(0, Message::Size { file }).expect("alive").errno,
        0
    );
    // Once.
    stale(Aim::Inherit(left));
    // What its heir has is not the connection's any more.
    drop(kept);
    // The child closes it for itself.
    assert_eq!(child.call(0, file, Close {}), Ok(()));
    assert_eq!(child.call(0, file, Close {}), Err(libc::EBADF));
    assert_eq!(
        parent.ask(0, Message::Size { file }).expect("alive").errno,
        0
    );
    // A connection that has gone keeps nothing.
    let (kept, left) = leave(&rig.socket(), key).expect("kept");
    drop(kept);
    until("it is gone", || {
        Peer::ask_with(&rig.socket(), Aim::Inherit(left)).is_err()
    });
    drop(parent);
    until("the session is gone", || leave(&rig.socket(), key).is_err());
}

/// More than the server keeps; all of it goes with the connections.
pub(crate) fn many(rig: &Rig) {
    let (mut parent, begun) = Peer::ask_with(&rig.socket(), Aim::Begin).expect("a session");
    for number in 0..50 {
        parent.create(&format!("/many-{number}"));
    }
    let mut kept = Vec::new();
    let refused = loop {
        match leave(&rig.socket(), begun.key) {
            Ok(left) => kept.push(left),
            Err(error) => break error,
        }
        assert!(kept.len() < 100_000, "there is a bound");
    };
    assert_eq!(refused.errno(), Errno::AGAIN);
    // A file without a name lives as long as one of them.
    assert_eq!(
        parent.volume_call(
            0,
            Unlink {
                place: Place::root(b"/many-0")
            }
        ),
        Ok(())
    );
    drop(parent);
    let (_, last) = kept.pop().expect("many");
    drop(kept);
    until("there is room", || {
        Peer::ask_with(&rig.socket(), Aim::Begin).is_ok()
    });
    let gone = Peer::ask_with(&rig.socket(), Aim::Inherit(last));
    assert!(gone.is_err(), "its connection was dropped");
}
