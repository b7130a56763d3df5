//! A session with a server on a fresh volume, that does what the bytes say. Afterwards another one
//! is served, nothing is open, and the volume is sound.
//!
//! A step is a byte that says what it is, then its numbers: see [`Hostile::step`].

use crate::image;
use crate::input::Input;
use crate::volume::{self, at};
use adit_base::Result;
use adit_fs::{Fs, OpenFlags, Workers};
use adit_reactor::{Engine, EngineOptions};
use adit_server::{ServeOptions, Server, perform};
use adit_store::Store;
use adit_wire::calls::{FileCall, Flock, LockRange, Open, Opened, VolumeCall};
use adit_wire::handshake::{Aim, Answer, BYTES_MAX, Greeting, Hello, Request};
use adit_wire::memory::{AREA_BYTES, SessionMemory};
use adit_wire::message::{Message, WriteFlags};
use adit_wire::slot::{Reply, SLOTS};
use adit_wire::socket::{receive_message, receive_message_with, send_message, unconnected};
use adit_wire::value::Value;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, Shutdown, SocketAddrUnix, SocketFlags, connect, send, shutdown};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// No reply takes so long.
const LIMIT: Duration = Duration::from_secs(240);
/// Steps of an input at most: each costs some microseconds, a sync some more.
const STEPS_MAX: usize = 200;

pub(crate) fn target(data: &[u8]) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("adit-fuzz-{}-{number}", std::process::id());
    let socket = std::env::temp_dir().join(name);
    let engine = fresh_volume().expect("a volume in memory");
    let workers = Workers::alone(engine.clone()).expect("its names");
    let volumes = vec![("v".to_owned(), workers)];
    let mut server = Server::start(volumes, &socket, &ServeOptions::default()).expect("served");
    attack(&socket, &mut Input::new(data));
    let mut other = Session::begin(&socket);
    let file = other.open("/other").expect("another session is served");
    let write = Message::Write {
        file,
        len: 5,
        offset: 0,
        flags: WriteFlags::SYNC_DATA,
    };
    assert!(other.ask(write).is_some_and(|reply| reply.errno == 0));
    drop(other);
    let begin = Instant::now();
    while !server.state().sessions.is_empty() {
        assert!(begin.elapsed() < LIMIT, "a session doesn't end");
        std::thread::yield_now();
    }
    server.stop();
    let open = engine.run(|fs| async { Ok(fs.open_descriptors(0, 1).await) });
    assert!(open.expect("listed").is_empty(), "a file is still open");
    let report = engine.run(|fs| async { perform::check(fs, &mut |_, _| {}).await });
    let problems = report.expect("it can be checked").problems;
    assert!(problems.is_empty(), "{problems:?}");
    engine.shutdown(|fs| fs.close_volume()).expect("closed");
}

/// A small one, with a keeper: the server's threads sleep.
pub(crate) fn fresh_volume() -> Result<Arc<Engine<Fs>>> {
    let device = volume::device(image::VOLUME_BYTES);
    image::fresh(&device, 1, false)?;
    let options = EngineOptions {
        queue_depth: 32,
        keeper: true,
        name: "fuzz".into(),
    };
    let engine = Engine::start(device, options, |reactor| async move {
        Fs::format(Store::open(reactor, &volume::options(false)).await?).await
    })?;
    engine.run(|fs| async {
        fs.mkdir(at(b"/d"), 0o755).await?;
        fs.symlink(b"/d/../f", at(b"/d/l")).await.map(drop)
    })?;
    Ok(engine)
}

/// One session after the other does what the input says.
fn attack(socket: &Path, input: &mut Input<'_>) {
    let mut hostile = Hostile::begin(socket);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            return;
        }
        hostile.step(input);
    }
}

/// A session, as its process has it.
struct Session {
    socket: OwnedFd,
    memory: SessionMemory,
}

impl Session {
    fn begin(path: &Path) -> Session {
        let socket = unconnected(SocketFlags::empty()).expect("a socket");
        let address = SocketAddrUnix::new(path).expect("short");
        connect(&socket, &address).expect("connected");
        let mut buffer = [0; BYTES_MAX];
        match receive_message(&socket, &mut buffer).expect("greeted") {
            Greeting::Hello(_) => {}
            Greeting::Refused(error) => panic!("{error}"),
        }
        let request = Request {
            comes_back: false,
            aim: Aim::Begin,
            hello: Hello::ours(),
            volume: String::new(),
            read_only: false,
        };
        send_message(&socket, &request).expect("asked");
        let (answer, memory) = receive_message_with(&socket, &mut buffer).expect("answered");
        assert!(matches!(answer, Answer::Begun(_)), "{answer:?}");
        let memory = memory.first().expect("it comes with its memory");
        Session {
            memory: SessionMemory::map(memory.as_fd()).expect("mapped"),
            socket,
        }
    }

    fn ring(&self, slot: usize) {
        if self.memory.doorbell().ring(slot) {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = send(&self.socket, &[0], flags);
        }
    }

    /// The reply; None: the session has ended.
    fn wait(&self, slot: usize) -> Option<Reply> {
        let begin = Instant::now();
        loop {
            if let Some(reply) = self.memory.slot(slot).reply() {
                return Some(reply);
            }
            let mut socket = [PollFd::new(&self.socket, PollFlags::IN)];
            let now = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            if poll(&mut socket, Some(&now)).is_ok_and(|ready| ready > 0) {
                return self.memory.slot(slot).reply();
            }
            assert!(begin.elapsed() < LIMIT, "slot {slot} gets no reply");
            std::thread::yield_now();
        }
    }

    fn ask(&self, message: Message) -> Option<Reply> {
        self.memory.slot(0).submit(message);
        self.ring(0);
        self.wait(0)
    }

    fn open(&mut self, path: &str) -> Option<u64> {
        let open = Open {
            place: at(path.as_bytes()).into(),
            flags: OpenFlags::READ_WRITE | OpenFlags::CREATE,
            mode: 0o644,
        };
        let bytes = (None::<adit_fs::Credentials>, open).encode();
        self.memory.fill_area(0, &bytes);
        let reply = self.ask(Message::VolumeCall {
            number: Open::NUMBER,
            len: bytes.len() as u32,
        })?;
        self.opened(0, reply)
    }

    /// The number of the file that was opened, if that was the message.
    fn opened(&self, slot: usize, reply: Reply) -> Option<u64> {
        let bytes = self.memory.copy_of_area(slot, reply.len as usize)?;
        let opened = Opened::decode(&bytes).filter(|_| reply.errno == 0)?;
        Some(opened.file)
    }
}

/// A session that the input uses.
struct Hostile {
    path: PathBuf,
    session: Session,
    /// Files that it opened.
    files: Vec<u64>,
    /// Slots that were rung, and not waited for.
    rung: u64,
    /// Slots whose message may wait for a lock.
    locking: u64,
}

impl Hostile {
    fn begin(path: &Path) -> Hostile {
        let mut session = Session::begin(path);
        let file = session.open("/f").expect("opened");
        Hostile {
            path: path.to_owned(),
            session,
            files: vec![file],
            rung: 0,
            locking: 0,
        }
    }

    fn slot(&self, input: &mut Input<'_>) -> usize {
        usize::from(input.byte()) % SLOTS
    }

    /// One of the open files, or any number.
    fn file(&self, input: &mut Input<'_>) -> u64 {
        match input.byte() {
            255 => input.wide(),
            choice => self.files[usize::from(choice) % self.files.len()],
        }
    }

    /// Puts bytes into an area; how many a message says that there are.
    fn fill(&self, slot: usize, prefix: &[u8], input: &mut Input<'_>) -> u32 {
        let len = usize::from(input.byte());
        let bytes = [prefix, input.take(len)].concat();
        self.session.memory.fill_area(slot, &bytes);
        match len {
            // As much as there is, or more.
            255 => input.word(),
            _ => bytes.len() as u32,
        }
    }

    fn submit(&mut self, slot: usize, words: [u64; 8]) {
        self.session.memory.slot(slot).submit_words(words);
        self.session.ring(slot);
        self.rung |= 1 << slot;
        if let Some(Message::FileCall { number, .. }) = Message::from_words(words)
            && [Flock::NUMBER, LockRange::NUMBER].contains(&number)
        {
            self.locking |= 1 << slot;
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let kind = input.byte();
        match kind % 9 {
            0 => {
                let slot = self.slot(input);
                let words = [input.wide(), input.wide(), input.wide(), 0, 0, 0, 0, 0];
                self.submit(slot, words);
            }
            1 | 2 => {
                let slot = self.slot(input);
                let number = u16::from(input.byte());
                // Mostly on behalf of itself.
                let prefix: &[u8] = if kind < 128 { &[0] } else { &[] };
                let len = self.fill(slot, prefix, input);
                self.submit(slot, Message::VolumeCall { number, len }.to_words());
            }
            3 => {
                let slot = self.slot(input);
                let number = 101 + u16::from(input.byte());
                let file = self.file(input);
                let len = self.fill(slot, &[], input);
                self.submit(slot, Message::FileCall { number, file, len }.to_words());
            }
            4 => {
                let slot = self.slot(input);
                let file = self.file(input);
                let (len, offset) = (input.word(), input.wide());
                self.submit(
                    slot,
                    Message::Read {
                        file,
                        len,
                        offset,
                        hint: false,
                    }
                    .to_words(),
                );
            }
            5 => {
                let slot = self.slot(input);
                let file = self.file(input);
                let flags = WriteFlags::from_bits_retain(input.byte());
                let (len, offset) = (input.word(), input.wide());
                let write = Message::Write {
                    file,
                    len,
                    offset,
                    flags,
                };
                self.submit(slot, write.to_words());
            }
            6 => {
                let slot = self.slot(input);
                self.wait(slot);
            }
            7 => {
                // Again, or without words.
                let bits = input.wide();
                (0..SLOTS)
                    .filter(|slot| bits & 1 << slot != 0)
                    .for_each(|slot| self.session.ring(slot));
                // Areas that change meanwhile.
                let garbage = input.take(64);
                self.session
                    .memory
                    .fill_area(bits as usize % SLOTS, garbage);
            }
            _ => {
                let how = input.byte();
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                match how % 4 {
                    0 => drop(send(&self.session.socket, &[how; 33], flags)),
                    1 => drop(shutdown(&self.session.socket, Shutdown::Write)),
                    _ => {}
                }
                *self = Hostile::begin(&self.path.clone());
            }
        }
    }

    /// Waits for what was rung; another session takes the place of one that has ended.
    fn wait(&mut self, slot: usize) {
        if self.rung & 1 << slot == 0 {
            return;
        }
        if self.locking & 1 << slot != 0 {
            // It may wait as long as the session lives.
            return;
        }
        self.rung &= !(1 << slot);
        match self.session.wait(slot) {
            None => *self = Hostile::begin(&self.path.clone()),
            Some(reply) => {
                assert!(reply.len as usize <= AREA_BYTES, "more than an area has");
                self.files.extend(self.session.opened(slot, reply));
            }
        }
    }
}

/// Numbers of calls of files begin there.
const _: () = assert!(<adit_wire::calls::FileStat as FileCall>::NUMBER == 101);
