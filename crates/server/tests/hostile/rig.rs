//! A server to attack, in this process or in one of its own, and the peer that attacks it.

#![allow(dead_code)] // each test program uses its part

use adit_base::fork::Registered;
use adit_block::{Device, DeviceOptions, MemoryConfig, MemoryDevice, open_device};
use adit_fs::{Follow, Fs, Workers};
use adit_reactor::{Engine, EngineOptions};
use adit_server::{ServeOptions, Server, perform};
use adit_store::{Store, StoreOptions, Survive};
use adit_wire::calls::*;
use adit_wire::handshake::{Aim, Answer, BYTES_MAX, Begun, Claim, Greeting, Hello, Request};
use adit_wire::memory::{AREA_BYTES, SessionMemory};
use adit_wire::message::Message;
use adit_wire::slot::Reply;
use adit_wire::socket::{receive_message, receive_message_with, send_message, unconnected};
use adit_wire::value::{OwnedValue, Value};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SendFlags, SocketAddrUnix, SocketFlags, connect, send};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

/// Nothing here takes so long, however busy the machine is: it hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(240);
/// More sessions than one user may have.
pub(crate) const SESSIONS_MAX: usize = 40;

/// Descriptors and panics are counted for the whole process: one attack at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            before(panic);
            let thread = std::thread::current();
            if thread.name().is_some_and(|name| name.starts_with("adit-")) {
                // A thread of the server's: others would wait for it for ever.
                std::process::abort();
            }
        }));
    });
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Aborts the process if it lives for longer than a test may.
pub(crate) struct Watchdog(std::sync::mpsc::Sender<()>);

impl Watchdog {
    pub(crate) fn new(limit: Duration) -> Watchdog {
        let (ended, watched) = std::sync::mpsc::channel();
        let test = std::thread::current().name().unwrap_or("?").to_owned();
        std::thread::spawn(move || {
            if watched.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                eprintln!("{test} hangs");
                std::process::abort();
            }
        });
        Watchdog(ended)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

pub(crate) fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !happened() {
        assert!(begin.elapsed() < LIMIT, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A volume in memory, or an image that is made, with so many workers.
pub(crate) fn volume(path: Option<&Path>, workers: u32) -> (Workers, Arc<dyn Device>) {
    let device: Arc<dyn Device> = match path {
        None => {
            let config = MemoryConfig {
                // A group each, at least.
                size_bytes: u64::from(workers) * (128 << 20),
                ..MemoryConfig::default()
            };
            MemoryDevice::new(config).expect("memory")
        }
        Some(path) => {
            let file = std::fs::File::create(path).expect("made");
            file.set_len(256 << 20).expect("sized");
            let path = path.to_str().expect("text");
            open_device(path, &DeviceOptions::default()).expect("opened")
        }
    };
    let store = StoreOptions {
        cache_bytes: 32 << 20,
        survive: match path {
            Some(_) => Survive::Require,
            None => Survive::Off,
        },
        partitions: workers,
        apart: true,
        ..StoreOptions::default()
    };
    let mkfs = adit_store::MkfsOptions {
        data_checksums: path.is_some(),
        ..adit_store::MkfsOptions::default()
    };
    let lead = Engine::start(device.clone(), engine_options(), |reactor| async move {
        adit_store::mkfs(&reactor, &mkfs).await?;
        Fs::format(Store::open(reactor, &store).await?).await
    });
    let workers = Workers::start(lead.expect("formatted"), &device, &engine_options());
    (workers.expect("started"), device)
}

fn engine_options() -> EngineOptions {
    EngineOptions {
        queue_depth: 64,
        keeper: true,
        name: "attacked".into(),
    }
}

fn serve(workers: &Workers, socket: &Path) -> Server {
    let mut options = ServeOptions::default();
    options.sessions_max = SESSIONS_MAX;
    if std::env::var_os("ADIT_TEST_FOR_ALL").is_some() {
        options.mode = 0o666;
    }
    if std::env::var_os("ADIT_TEST_DIRECTORY").is_some() || workers.count() > 1 {
        options.pollers = 2;
    }
    let volumes = vec![("v".to_owned(), workers.clone())];
    Server::start(volumes, socket, &options).expect("served")
}

/// Ends a volume; its problems.
fn end(workers: Workers, device: Arc<dyn Device>) -> Vec<String> {
    if workers.count() == 1 {
        let problems = problems(workers.lead());
        workers.shutdown().expect("closed");
        return problems;
    }
    // One worker checks it.
    workers.shutdown().expect("closed");
    let options = StoreOptions {
        survive: Survive::Off,
        ..StoreOptions::default()
    };
    let engine = Engine::start(device, engine_options(), |reactor| async move {
        Fs::open_volume(Store::open(reactor, &options).await?).await
    });
    let engine = engine.expect("opened");
    let problems = problems(&engine);
    engine.shutdown(|fs| fs.close_volume()).expect("closed");
    problems
}

fn problems(engine: &Arc<Engine<Fs>>) -> Vec<String> {
    let checked = engine.run(|fs| async { perform::check(fs, &mut |_, _| {}).await });
    checked.expect("it can be checked").problems
}

fn descriptors(pid: &str) -> usize {
    let listed = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("listed");
    listed.count()
}

/// Mappings of sessions' memory in a process.
fn memories(pid: &str) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("read");
    maps.lines()
        .filter(|line| line.contains("adit-session"))
        .count()
}

enum Place {
    Here((Workers, Arc<dyn Device>), Option<Server>),
    There(OtherProcess, ChildStdin, BufReader<ChildStdout>),
}

/// Killed when it goes, also when the test fails.
pub(crate) struct OtherProcess(pub(crate) Child);

/// A server that is attacked.
pub(crate) struct Rig {
    directory: tempfile::TempDir,
    place: Mutex<Place>,
    pid: String,
    descriptors: usize,
    _watchdog: Watchdog,
}

impl Rig {
    /// In this process, on a volume in memory.
    pub(crate) fn here() -> Rig {
        Rig::by_workers(1)
    }

    /// The same, with two pollers and several workers.
    pub(crate) fn by_several() -> Rig {
        Rig::by_workers(3)
    }

    fn by_workers(workers: u32) -> Rig {
        let directory = tempfile::tempdir().expect("a directory");
        let volume = volume(None, workers);
        let server = serve(&volume.0, &directory.path().join("s"));
        let place = Place::Here(volume, Some(server));
        Rig::begin(directory, place, "self".to_owned())
    }

    /// In a process of its own, on an image.
    pub(crate) fn there() -> Rig {
        Rig::start(None)
    }

    /// In a process of a user's, where all users may connect.
    pub(crate) fn for_all(uid: u32) -> Rig {
        Rig::start(Some(uid))
    }

    fn start(uid: Option<u32>) -> Rig {
        let directory = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(std::env::current_exe().expect("known"));
        command
            .args(["--exact", "the_server_process", "--ignored", "--nocapture"])
            .env("ADIT_TEST_DIRECTORY", directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(uid) = uid {
            let everybody = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(directory.path(), everybody).expect("changed");
            std::os::unix::fs::chown(directory.path(), Some(uid), Some(uid)).expect("given away");
            command.env("ADIT_TEST_FOR_ALL", "1").uid(uid).gid(uid);
        }
        let mut child = command.spawn().expect("it runs");
        let input = child.stdin.take().expect("piped");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        expect_line(&mut output, "=ready");
        let pid = child.id().to_string();
        let place = Place::There(OtherProcess(child), input, output);
        Rig::begin(directory, place, pid)
    }

    fn begin(directory: tempfile::TempDir, place: Place, pid: String) -> Rig {
        let mut rig = Rig {
            directory,
            place: Mutex::new(place),
            pid,
            descriptors: 0,
            _watchdog: Watchdog::new(2 * LIMIT + minutes() * 2),
        };
        // The first session of a process also opens what stays open.
        rig.works();
        until("the first session ends", || rig.sessions() == 0);
        rig.descriptors = descriptors(&rig.pid);
        rig
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    pub(crate) fn pid(&self) -> &str {
        &self.pid
    }

    pub(crate) fn sessions(&self) -> usize {
        match &mut *self.place.lock().expect("no panic") {
            Place::Here(_, server) => server.as_ref().expect("it runs").state().sessions.len(),
            Place::There(_, input, output) => {
                writeln!(input, "sessions").expect("asked");
                let said = expect_line(output, "=sessions ");
                said.parse().expect("a number")
            }
        }
    }

    /// Sessions' memories that are mapped in the server's process.
    pub(crate) fn memories(&self) -> usize {
        memories(&self.pid)
    }

    /// Resident memory of the server's process.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).expect("read");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let words = line.expect("it says so").split_whitespace().next();
        words.expect("a number").parse().expect("a number")
    }

    /// Another session is served.
    pub(crate) fn works(&self) {
        let mut peer = None;
        until("there is room for a session", || {
            peer = Peer::ask_for(&self.socket()).ok();
            peer.is_some()
        });
        let mut peer = peer.expect("begun");
        let file = peer.create("/works");
        peer.fill(0, b"it works");
        let write = Message::Write {
            file,
            len: 8,
            offset: 0,
            flags: adit_wire::message::WriteFlags::SYNC_DATA,
        };
        assert_eq!(peer.ask(0, write).expect("a reply").errno, 0);
        let read = Message::Read {
            file,
            len: 100,
            offset: 0,
            hint: false,
        };
        assert_eq!(peer.ask(0, read).expect("a reply").value, 8);
        assert_eq!(peer.area(0, 8), b"it works");
        peer.call(0, file, Close {}).expect("closed");
    }

    /// After an attack all is as before, but for what the volume holds.
    pub(crate) fn is_unharmed(&self) {
        self.works();
        until("all sessions end", || self.sessions() == 0);
        until("their memory goes", || memories(&self.pid) == 0);
        until("their descriptors are closed", || {
            descriptors(&self.pid) <= self.descriptors
        });
    }

    /// Ends it: nothing is open, the volume is sound.
    pub(crate) fn end(self) {
        self.is_unharmed();
        // A session's files are closed by an operation, which may end after the session.
        let mut peer = Peer::begin(&self.socket());
        until("all files are closed", || {
            let all = OpenDescriptors { cookie: 0, max: 9 };
            let open = peer.volume_call(0, all).expect("listed");
            open.is_empty()
        });
        drop(peer);
        match self.place.into_inner().expect("no panic") {
            Place::Here((workers, device), server) => {
                server.expect("it runs").stop();
                assert_eq!(end(workers, device), [""; 0]);
            }
            Place::There(mut child, mut input, mut output) => {
                writeln!(input, "end").expect("asked");
                assert_eq!(expect_line(&mut output, "=problems "), "[]");
                assert!(child.0.wait().expect("it ends").success());
            }
        }
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn expect_line(from: &mut impl BufRead, begin: &str) -> String {
    for line in from.lines() {
        let line = line.expect("read");
        // libtest may have begun the line.
        if let Some((_, rest)) = line.split_once(begin) {
            return rest.to_owned();
        }
    }
    panic!("the server has died");
}

/// What [`Rig::there`] runs.
pub(crate) fn server_process() {
    let _alone = alone();
    let directory = PathBuf::from(std::env::var_os("ADIT_TEST_DIRECTORY").expect("given"));
    let (workers, device) = volume(Some(&directory.join("v.adit")), 1);
    let mut server = serve(&workers, &directory.join("s"));
    println!("=ready");
    for line in std::io::stdin().lines() {
        match line.expect("read").as_str() {
            "sessions" => println!("=sessions {}", server.state().sessions.len()),
            _ => break,
        }
    }
    server.stop();
    println!("=problems {:?}", end(workers, device));
}

/// Minutes of a long run; none in CI.
pub(crate) fn minutes() -> Duration {
    let given = std::env::var("ADIT_ATTACK_MINUTES").ok();
    let minutes: f64 = given.map_or(0.0, |given| given.parse().expect("a number of minutes"));
    Duration::from_secs_f64(60.0 * minutes)
}

pub(crate) fn seed() -> u64 {
    let given = std::env::var("ADIT_SEED").ok();
    given.map_or(1, |given| given.parse().expect("a number"))
}

/// A connection without a session.
pub(crate) fn knock(path: &Path) -> OwnedFd {
    let socket = unconnected(SocketFlags::empty()).expect("a socket");
    set_socket_timeout(&socket, Timeout::Recv, Some(LIMIT)).expect("set");
    set_socket_timeout(&socket, Timeout::Send, Some(LIMIT)).expect("set");
    let address = SocketAddrUnix::new(path).expect("short");
    rustix::io::retry_on_intr(|| connect(&socket, &address)).expect("connected");
    socket
}

/// A session that does what it likes.
pub(crate) struct Peer {
    pub(crate) socket: OwnedFd,
    pub(crate) memory: SessionMemory,
    /// Its memory's descriptor.
    pub(crate) descriptor: OwnedFd,
    /// Descriptors of the server's cache, if it gets them.
    pub(crate) cache: Vec<OwnedFd>,
}

impl Peer {
    pub(crate) fn begin(path: &Path) -> Peer {
        Peer::ask_for(path).expect("a session")
    }

    pub(crate) fn ask_for(path: &Path) -> adit_base::Result<Peer> {
        Peer::resume(path, None).map(|(peer, _)| peer)
    }

    /// A session that goes on with that one, if it names one.
    pub(crate) fn resume(path: &Path, resumes: Option<Claim>) -> adit_base::Result<(Peer, Begun)> {
        Peer::ask_with(path, resumes.map_or(Aim::Begin, Aim::Resume))
    }

    /// A session with some aim.
    pub(crate) fn ask_with(path: &Path, aim: Aim) -> adit_base::Result<(Peer, Begun)> {
        let socket = knock(path);
        let mut buffer = [0; BYTES_MAX];
        match receive_message(&socket, &mut buffer)? {
            Greeting::Refused(error) => return Err(error),
            Greeting::Hello(hello) => assert!(hello.is_adit()),
        }
        send_message(
            &socket,
            &Request {
                hello: Hello::ours(),
                volume: String::new(),
                read_only: false,
                comes_back: true,
                aim,
            },
        )?;
        let (answer, descriptors) = receive_message_with(&socket, &mut buffer)?;
        let begun = match answer {
            Answer::Refused(error) => return Err(error),
            Answer::Begun(begun) => begun,
            _ => panic!("a session was asked for"),
        };
        let mut descriptors = descriptors.into_iter().map(Registered::into_inner);
        let descriptor = descriptors.next().expect("it comes with its memory");
        let peer = Peer {
            memory: SessionMemory::map(descriptor.as_fd())?,
            socket,
            descriptor,
            cache: descriptors.collect(),
        };
        Ok((peer, begun))
    }

    pub(crate) fn fill(&self, slot: usize, bytes: &[u8]) {
        assert!(self.memory.fill_area(slot, bytes));
    }

    pub(crate) fn area(&self, slot: usize, len: usize) -> Vec<u8> {
        self.memory.copy_of_area(slot, len).expect("it has so many")
    }

    /// Sends words, whatever they are.
    pub(crate) fn ring(&self, slot: usize) {
        if self.memory.doorbell().ring(slot) {
            let _ = send(
                &self.socket,
                &[0],
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            );
        }
    }

    pub(crate) fn submit(&self, slot: usize, message: Message) {
        self.memory.slot(slot).submit(message);
        self.ring(slot);
    }

    /// Asks for a copy from the beginning of a file to that of another one.
    pub(crate) fn submit_copy(&self, slot: usize, file: u64, to: u64, len_bytes: u64) {
        let copy = CopyRange {
            offset: 0,
            to,
            to_offset: 0,
            len_bytes,
        };
        let bytes = copy.encode();
        self.fill(slot, &bytes);
        let (number, len) = (CopyRange::NUMBER, bytes.len() as u32);
        self.submit(slot, Message::FileCall { number, file, len });
    }

    /// The server has ended the session.
    pub(crate) fn has_ended(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut waiting = [PollFd::new(&self.socket, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut waiting, Some(&now)).expect("polled") > 0
    }

    /// The reply; None: the session has ended.
    pub(crate) fn wait(&self, slot: usize) -> Option<Reply> {
        let begin = Instant::now();
        let mut rounds = 0;
        loop {
            if let Some(reply) = self.memory.slot(slot).reply() {
                return Some(reply);
            }
            rounds += 1;
            if rounds % 64 == 0 {
                if self.has_ended() {
                    return self.memory.slot(slot).reply();
                }
                assert!(begin.elapsed() < LIMIT, "slot {slot} gets no reply");
                match rounds < 20_000 {
                    true => std::thread::yield_now(),
                    false => std::thread::sleep(Duration::from_micros(100)),
                }
            }
        }
    }

    /// As [`wait`](Peer::wait), for a message that may wait for a lock: false, if it does.
    pub(crate) fn is_answered(&self, slot: usize) -> bool {
        let begin = Instant::now();
        while self.memory.slot(slot).reply().is_none() && !self.has_ended() {
            if begin.elapsed() > Duration::from_millis(20) {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    pub(crate) fn ask(&self, slot: usize, message: Message) -> Option<Reply> {
        self.submit(slot, message);
        self.wait(slot)
    }

    fn result<T: OwnedValue>(&self, slot: usize, reply: Option<Reply>) -> Result<T, i32> {
        let reply = reply.expect("the session goes on");
        let len = reply.len as usize;
        assert!(len <= AREA_BYTES);
        match reply.errno {
            0 => Ok(T::decode(&self.area(slot, len)).expect("a reply of this call")),
            errno => Err(errno as i32),
        }
    }

    pub(crate) fn call<'a, C: FileCall<'a>>(
        &mut self,
        slot: usize,
        file: u64,
        call: C,
    ) -> Result<C::Reply, i32> {
        let bytes = call.encode();
        self.fill(slot, &bytes);
        let message = Message::FileCall {
            number: C::NUMBER,
            file,
            len: bytes.len() as u32,
        };
        let reply = self.ask(slot, message);
        self.result(slot, reply)
    }

    pub(crate) fn volume_call<'a, C: VolumeCall<'a>>(
        &mut self,
        slot: usize,
        call: C,
    ) -> Result<C::Reply, i32> {
        self.call_for(None, slot, call)
    }

    /// A call on behalf of somebody.
    pub(crate) fn call_for<'a, C: VolumeCall<'a>>(
        &mut self,
        who: Option<adit_fs::Credentials>,
        slot: usize,
        call: C,
    ) -> Result<C::Reply, i32> {
        let bytes = (who, call).encode();
        self.fill(slot, &bytes);
        let message = Message::VolumeCall {
            number: C::NUMBER,
            len: bytes.len() as u32,
        };
        let reply = self.ask(slot, message);
        self.result(slot, reply)
    }

    pub(crate) fn open(&mut self, path: &str, flags: adit_fs::OpenFlags) -> Result<u64, i32> {
        let place = adit_wire::calls::Place::root(path.as_bytes());
        let mode = 0o644;
        let opened = self.volume_call(0, Open { place, flags, mode });
        opened.map(|opened| opened.file)
    }

    pub(crate) fn create(&mut self, path: &str) -> u64 {
        use adit_fs::OpenFlags;
        let flags = OpenFlags::READ_WRITE | OpenFlags::CREATE;
        self.open(path, flags).expect("opened")
    }

    pub(crate) fn exists(&mut self, path: &str) -> bool {
        let place = adit_wire::calls::Place::root(path.as_bytes());
        let follow = Follow::No;
        self.volume_call(0, Stat { place, follow }).is_ok()
    }
}
