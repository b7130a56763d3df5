//! Connections that do anything but begin a session and use it.

use crate::rig::{LIMIT, OtherProcess, Peer, Rig, SESSIONS_MAX, knock, until};
use adit_base::Errno;
use adit_base::random::Prng;
use adit_wire::handshake::{Aim, Answer, BYTES_MAX, Greeting, Hello, Request, VERSION};
use adit_wire::message::Message;
use adit_wire::socket::{receive_message, receive_message_with, send_message, send_message_with};
use adit_wire::value::Value;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn request(version: u32) -> Vec<u8> {
    let mut hello = Hello::ours();
    hello.version = version;
    let request = Request {
        hello,
        volume: String::new(),
        read_only: false,
        comes_back: false,
        aim: Aim::Begin,
    };
    request.encode()
}

/// Thousands that never ask: others have their session at once, and keep it.
pub(crate) fn silent(rig: &Rig) {
    let mut kept = std::collections::VecDeque::new();
    let old = Peer::begin(&rig.socket());
    for number in 0..2000 {
        kept.push_back(knock(&rig.socket()));
        if kept.len() == 150 {
            kept.pop_front();
        }
        if number % 400 == 0 {
            rig.works();
        }
    }
    assert!(old.ask(0, Message::Nothing).is_some());
}

/// Those that go away at each step.
pub(crate) fn vanishing(rig: &Rig) {
    for round in 0..300 {
        let socket = knock(&rig.socket());
        if round % 5 == 0 {
            continue;
        }
        let mut buffer = [0; BYTES_MAX];
        if round % 5 != 1 {
            let _: Greeting = receive_message(&socket, &mut buffer).expect("greeted");
        }
        let sent = send(&socket, &request(VERSION), SendFlags::NOSIGNAL);
        assert!(sent.is_ok(), "asked");
        if round % 5 == 3 {
            let answer = receive_message_with::<Answer>(&socket, &mut buffer);
            let (answer, memory) = answer.expect("answered");
            // Or those before are still there.
            let is_begun = matches!(answer, Answer::Begun(_));
            assert_eq!(is_begun, !memory.is_empty(), "{answer:?}");
            drop(memory);
        }
        if round % 5 == 4 {
            // Its memory outlives the connection.
            let answer = receive_message_with::<Answer>(&socket, &mut buffer);
            let (_, memory) = answer.expect("answered");
            drop(socket);
            drop(memory);
        }
    }
}

/// Other versions and protocols.
pub(crate) fn foreign(rig: &Rig) {
    let mut random = Prng::new(1);
    let mut asked = vec![
        Vec::from(*b"GET / HTTP/1.0\r\n\r\n"),
        vec![0; BYTES_MAX],
        vec![0; 4 * BYTES_MAX],
        vec![255; BYTES_MAX],
        request(VERSION)[1..].to_vec(),
        [request(VERSION), vec![0]].concat(),
    ];
    asked.extend((0..50).map(|_| {
        let mut bytes = request(VERSION);
        let at = random.below(bytes.len() as u64 - 1) as usize;
        bytes[at] ^= 1 << random.below(8);
        bytes
    }));
    for bytes in asked {
        let socket = knock(&rig.socket());
        let mut buffer = [0; BYTES_MAX];
        let _: Greeting = receive_message(&socket, &mut buffer).expect("greeted");
        send(&socket, &bytes, SendFlags::NOSIGNAL).expect("sent");
        match receive_message_with::<Answer>(&socket, &mut buffer) {
            Ok((Answer::Refused(error), descriptors)) if descriptors.is_empty() => {
                assert!(!error.what().is_empty())
            }
            Err(error) if error.errno() == Errno::PIPE => {}
            other => panic!("{other:?}"),
        }
    }
    for version in [0, VERSION + 1, u32::MAX] {
        let socket = knock(&rig.socket());
        let mut buffer = [0; BYTES_MAX];
        let _: Greeting = receive_message(&socket, &mut buffer).expect("greeted");
        send(&socket, &request(version), SendFlags::NOSIGNAL).expect("sent");
        match receive_message(&socket, &mut buffer).expect("answered") {
            Answer::Refused(error) => {
                assert_eq!(error.errno(), Errno::PROTO);
                assert!(error.what().contains(&version.to_string()), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    // A volume that there isn't, with a name of any length.
    let socket = knock(&rig.socket());
    let mut buffer = [0; BYTES_MAX];
    let _: Greeting = receive_message(&socket, &mut buffer).expect("greeted");
    let request = Request {
        hello: Hello::ours(),
        volume: "\n\u{1b}[2J".repeat(700),
        read_only: false,
        comes_back: false,
        aim: Aim::Begin,
    };
    send_message(&socket, &request).expect("sent");
    match receive_message(&socket, &mut buffer).expect("answered") {
        Answer::Refused(error) => assert_eq!(error.errno(), Errno::NODEV),
        other => panic!("{other:?}"),
    }
}

/// A session ends with its connection, in whichever direction it is shut.
pub(crate) fn shut_down(rig: &Rig) {
    for how in [Shutdown::Write, Shutdown::Both, Shutdown::Read] {
        let peer = Peer::begin(&rig.socket());
        (0..9).for_each(|slot| peer.submit(slot, Message::Nothing));
        shutdown(&peer.socket, how).expect("shut");
        if how != Shutdown::Read {
            until("the session ends", || rig.sessions() == 0);
        }
        let socket = knock(&rig.socket());
        shutdown(&socket, how).expect("shut");
        let _ = send(&socket, &request(VERSION), SendFlags::NOSIGNAL);
    }
    // An empty message looks like an end, and is one.
    let peer = Peer::begin(&rig.socket());
    send(&peer.socket, &[], SendFlags::NOSIGNAL).expect("sent");
    until("the session ends", || peer.has_ended());
}

/// Bytes that wake the server without a reason, and messages of other sizes.
pub(crate) fn flooding(rig: &Rig) {
    let peers: Vec<Peer> = (0..2).map(|_| Peer::begin(&rig.socket())).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (number, peer) in peers.iter().enumerate() {
            let stop = &stop;
            scope.spawn(move || {
                let bytes = vec![7; 1 + number * 60_000];
                while !stop.load(Ordering::Relaxed) {
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    if send(&peer.socket, &bytes, flags).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        for _ in 0..5 {
            rig.works();
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
    });
    for peer in &peers {
        assert!(peer.ask(0, Message::Nothing).is_some());
    }
}

/// A file that its sender has no other descriptor of.
fn a_file() -> OwnedFd {
    std::fs::File::open("/proc/self/status")
        .expect("opened")
        .into()
}

/// Descriptors in messages stay with their sender, or go.
pub(crate) fn descriptors(rig: &Rig) {
    let there = |pid: &str| {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("listed");
        fds.count()
    };
    for _ in 0..30 {
        let peer = Peer::begin(&rig.socket());
        let before = there(rig.pid());
        for _ in 0..10 {
            let sent = send_message_with(&peer.socket, &7u8, &[a_file().as_fd()]);
            // The server may refuse to be sent any.
            let refused =
                |error: &adit_base::Error| [Errno::PERM, Errno::PIPE].contains(&error.errno());
            assert!(
                sent.as_ref().is_ok() || sent.as_ref().is_err_and(refused),
                "{sent:?}"
            );
        }
        assert!(peer.ask(0, Message::Nothing).is_some() || peer.has_ended());
        // The server may still have those of the request below, of the round before.
        until("none of them stays", || there(rig.pid()) <= before + 1);
        // With the request.
        let socket = knock(&rig.socket());
        let mut buffer = [0; BYTES_MAX];
        let _: Greeting = receive_message(&socket, &mut buffer).expect("greeted");
        let request = Request {
            hello: Hello::ours(),
            volume: String::new(),
            read_only: false,
            comes_back: false,
            aim: Aim::Begin,
        };
        let _ = send_message_with(&socket, &request, &[a_file().as_fd()]);
    }
}

/// A socket whose last close waits for an hour, or until the other side is closed.
fn lingering_socket() -> (OwnedFd, (TcpListener, TcpStream)) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let mut stream = TcpStream::connect(listener.local_addr().expect("known")).expect("connected");
    let (accepted, _) = listener.accept().expect("accepted");
    stream.set_nonblocking(true).expect("set");
    while stream.write(&[0; 65536]).is_ok() {}
    stream.set_nonblocking(false).expect("set");
    set_socket_linger(&stream, Some(Duration::from_secs(3600))).expect("set");
    (stream.into(), (listener, accepted))
}

/// Whoever closes such a descriptor last waits: not the server.
pub(crate) fn lingering(rig: &Rig) {
    let begin = Instant::now();
    let mut others = Vec::new();
    for round in 0..3 {
        let (fd, other) = lingering_socket();
        others.push(other);
        // To a session that reads it, to one that doesn't, to the listener.
        let (socket, peer) = match round {
            0 | 1 => {
                let peer = Peer::begin(&rig.socket());
                (peer.socket.try_clone().expect("duplicated"), Some(peer))
            }
            _ => (knock(&rig.socket()), None),
        };
        for _ in 0..100 * (round % 2) {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = send(&socket, &[0], flags);
        }
        match send_message_with(&socket, &7u8, &[fd.as_fd()]) {
            // The server has it.
            Ok(()) => drop(fd),
            Err(_) => set_socket_linger(&fd, None).expect("set"),
        }
        drop((socket, peer));
        rig.works();
    }
    assert!(begin.elapsed() < LIMIT, "the server waited");
    drop(others);
}

/// The process that [`stopped`] stops: it asks for ever.
pub(crate) fn client_process() {
    let socket = PathBuf::from(std::env::var_os("ADIT_TEST_SOCKET").expect("given"));
    let mut peer = Peer::begin(&socket);
    let file = peer.create("/stopped");
    println!("=begun");
    loop {
        for slot in 0..9 {
            let (len, offset) = (4096, 0);
            let flags = adit_wire::message::WriteFlags::SYNC_DATA;
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
        for slot in 0..9 {
            if peer.wait(slot).is_none() {
                return;
            }
        }
    }
}

/// A client that doesn't go on costs nobody anything; killed, it is gone.
pub(crate) fn stopped(rig: &Rig) {
    for _ in 0..3 {
        let child = Command::new(std::env::current_exe().expect("known"))
            .args(["--exact", "the_client_process", "--ignored", "--nocapture"])
            .env("ADIT_TEST_SOCKET", rig.socket())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut child = OtherProcess(child);
        let output = BufReader::new(child.0.stdout.take().expect("piped"));
        let begun = output
            .lines()
            .any(|line| line.expect("read").contains("=begun"));
        assert!(begun);
        let pid = rustix::process::Pid::from_child(&child.0);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
        for _ in 0..5 {
            rig.works();
        }
    }
}

/// More than there are: refused with words, and one that ends makes room.
pub(crate) fn too_many(rig: &Rig) {
    until("all sessions end", || rig.sessions() == 0);
    let mut peers: Vec<Peer> = Vec::new();
    // One that has ended counts until all that it had is closed.
    until("there is room for all of them", || {
        match Peer::ask_for(&rig.socket()) {
            Ok(peer) => peers.push(peer),
            Err(refused) => assert_eq!(refused.errno(), Errno::AGAIN),
        }
        peers.len() == SESSIONS_MAX
    });
    for _ in 0..5 {
        let refused = Peer::ask_for(&rig.socket()).err().expect("too many");
        assert_eq!(refused.errno(), Errno::AGAIN);
        assert!(refused.what().contains("40"), "{refused}");
    }
    for peer in &peers {
        assert!(peer.ask(0, Message::Nothing).is_some());
    }
    peers.pop();
    until("there is room again", || {
        Peer::ask_for(&rig.socket()).is_ok()
    });
}
