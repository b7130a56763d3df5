//! Onlookers that behave and others. What a socket can be made to do needs its name, so these are
//! inside.

use super::*;
use crate::connection::{connected, handshake};
use crate::identity::*;
use crate::{MkfsOptions, OpenOptions};
use adit_base::fork::Registered;
use adit_base::random::Prng;
use adit_wire::calls::{Blobs, Check, DeleteBlob, SyncAll, Unlink, VolumeCall};
use adit_wire::handshake::{Aim, Answer, Claim, Greeting, Hello, Key, Opening, Request, VERSION};
use adit_wire::look::{QUESTION_BYTES_MAX, Question, REPLY_BYTES_MAX, Reply};
use adit_wire::socket::*;
use adit_wire::value::Value;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SocketAddrUnix, SocketFlags, accept_with};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const SOON: Duration = Duration::from_secs(240);

/// Until a forked child first runs, which may be late on a busy machine, it has the sockets of all
/// tests: of another one nothing would be gone at once.
static FORKS: RwLock<()> = RwLock::new(());

enum Beside {
    NoFork {
        _guard: RwLockReadGuard<'static, ()>,
    },
    Nobody {
        _guard: RwLockWriteGuard<'static, ()>,
    },
}

struct Image {
    _directory: tempfile::TempDir,
    address: String,
    _beside: Beside,
}

impl Image {
    fn new() -> Image {
        let guard = FORKS.read().unwrap_or_else(PoisonError::into_inner);
        Image::beside(Beside::NoFork { _guard: guard })
    }

    /// For a test that forks.
    fn alone() -> Image {
        let guard = FORKS.write().unwrap_or_else(PoisonError::into_inner);
        Image::beside(Beside::Nobody { _guard: guard })
    }

    fn beside(beside: Beside) -> Image {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("v.adit");
        let address = path.to_str().expect("text").to_owned();
        Volume::mkfs(&address, MkfsOptions::new().size_bytes(64 << 20)).expect("formatted");
        Image {
            _directory: directory,
            address,
            _beside: beside,
        }
    }

    fn open(&self) -> Volume {
        Volume::open(&self.address).expect("opened")
    }

    fn look(&self) -> Inspector {
        Inspector::open(&self.address, &VolumeOptions::default()).expect("looked at")
    }

    fn socket_names(&self) -> Vec<String> {
        Identity::of(&self.address).expect("it is there").names()
    }

    fn connect(&self) -> Registered<OwnedFd> {
        connect_to(&self.socket_names()[0], SOON).expect("connected")
    }
}

/// Receives the owner's greeting.
fn greeting(socket: &OwnedFd) -> Greeting {
    receive_message(socket, &mut [0; 4096]).expect("a greeting")
}

fn is_greeted(socket: &OwnedFd) -> bool {
    matches!(greeting(socket), Greeting::Hello(hello) if hello == Hello::ours())
}

fn ask_for(aim: Aim) -> Request {
    Request {
        hello: Hello::ours(),
        volume: String::new(),
        read_only: true,
        comes_back: false,
        aim,
    }
}

/// A look in which the next message is a question.
fn look_at(image: &Image) -> Registered<OwnedFd> {
    let socket = image.connect();
    let (answer, descriptors) = handshake(&socket, "", true, false, Aim::Look).expect("answered");
    assert!(matches!(answer, Answer::Looking), "{answer:?}");
    assert!(descriptors.is_empty());
    socket
}

fn reply(socket: &OwnedFd) -> Reply {
    receive_message(socket, &mut vec![0; REPLY_BYTES_MAX]).expect("a reply")
}

/// Asks; the error that is the answer, if one is.
fn ask<'a, C: VolumeCall<'a>>(socket: &OwnedFd, call: &C) -> Result<C::Reply> {
    send_message(socket, &Question::new(call)).expect("sent");
    match reply(socket) {
        Reply::Failed(error) => Err(error),
        Reply::Done(result) => Ok(C::Reply::decode(&result).expect("its result")),
    }
}

fn send_bytes(socket: &OwnedFd, bytes: &[u8]) {
    rustix::net::send(socket, bytes, rustix::net::SendFlags::NOSIGNAL).expect("sent");
}

/// Is the session over?
fn is_ended(socket: &OwnedFd) -> bool {
    let received = receive_message::<Reply>(socket, &mut vec![0; REPLY_BYTES_MAX]);
    matches!(
        received.map_err(|error| error.errno()),
        Err(Errno::PIPE | Errno::CONNRESET)
    )
}

#[test]
fn a_volume_has_one_socket_while_it_is_open_for_writing() {
    let image = Image::new();
    assert!(image.socket_names().is_empty());
    let volume = image.open();
    assert_eq!(image.socket_names().len(), 1);
    volume.close().expect("closed");
    assert!(image.socket_names().is_empty());
    for (read_only, inspectable) in [(true, true), (false, false)] {
        let volume = Volume::open_with(
            &image.address,
            VolumeOptions::new()
                .read_only(read_only)
                .inspectable(inspectable),
        )
        .expect("opened");
        assert!(image.socket_names().is_empty());
        volume.close().expect("closed");
    }
}

#[test]
fn garbage_ends_the_look_that_it_comes_from_and_nothing_else() {
    let image = Image::new();
    let volume = image.open();
    let quiet = look_at(&image);
    let mut random = Prng::new(7);
    for round in 0..60 {
        let mut bytes = vec![0; 1 + random.index(2 * QUESTION_BYTES_MAX)];
        random.fill(&mut bytes);
        if round % 3 == 1 {
            // A call that there is, with anything in it.
            let question = Question {
                number: [Stat::NUMBER, List::NUMBER][random.index(2)],
                call: bytes.into(),
            };
            bytes = question.encode();
        }
        let socket = match round % 2 {
            0 => image.connect(),
            _ => look_at(&image),
        };
        if round % 2 == 0 {
            greeting(&socket);
        }
        send_bytes(&socket, &bytes);
        assert!(is_ended(&socket), "round {round}");
    }
    ask(&quiet, &Space {}).expect("answered");
    volume.write("/f", "content").expect("written");
    volume.close().expect("closed");
}

#[test]
fn a_wrong_version_is_told_ours() {
    let image = Image::new();
    let volume = image.open();
    for other in [VERSION - 1, VERSION + 1] {
        let socket = image.connect();
        assert!(is_greeted(&socket));
        let mut request = ask_for(Aim::Look);
        request.hello.version = other;
        send_message(&socket, &request).expect("sent");
        let answer = receive_message(&socket, &mut [0; 4096]).expect("an answer");
        let Answer::Refused(error) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(error.errno(), Errno::PROTO);
        for version in [other, VERSION] {
            let version = version.to_string();
            assert!(error.what().contains(&version), "{error}");
        }
        assert!(is_ended(&socket));
    }
    volume.close().expect("closed");
}

/// Versions 1 to 4 of looks had a protocol of their own: "adit" and a number, from either side.
fn old_hello() -> Vec<u8> {
    [&b"adit"[..], &4u32.to_le_bytes()].concat()
}

#[test]
fn an_onlooker_of_the_old_protocol_is_sent_away() {
    let image = Image::new();
    let volume = image.open();
    let socket = image.connect();
    let mut buffer = [0; 4096];
    // A completion of this thread's ring interrupts a call that has a timeout.
    let flags = rustix::net::RecvFlags::empty();
    let received = rustix::io::retry_on_intr(|| rustix::net::recv(&socket, &mut buffer, flags));
    let (_, len) = received.expect("a greeting");
    // It decodes none of another length, and says that both need the same version.
    assert_ne!(len, 1 + old_hello().len());
    send_bytes(&socket, &old_hello());
    assert!(is_ended(&socket));
    volume.close().expect("closed");
}

/// An onlooker, and its connection, which is accepted here. This process has the image's lock, so
/// it is believed.
fn with_a_visitor(image: &Image, visited: impl FnOnce(OwnedFd)) -> Result<Inspector> {
    let listener = Identity::of(&image.address).expect("there").listen();
    let listener = listener.expect("listens");
    std::thread::scope(|scope| {
        let look = scope.spawn(|| Inspector::open(&image.address, &VolumeOptions::default()));
        let mut waiting = [PollFd::new(&listener, PollFlags::IN)];
        poll(&mut waiting, None).expect("somebody comes");
        visited(accept_with(&listener, SocketFlags::CLOEXEC).expect("accepted"));
        look.join().expect("no panic")
    })
}

#[test]
fn an_owner_of_another_version_is_told_apart_and_not_waited_for() {
    let image = Image::new();
    let mut options = VolumeOptions::new();
    let volume = Volume::open_with(&image.address, options.inspectable(false)).expect("opened");
    let old = [&[1][..], &old_hello()].concat();
    let mut hello = Hello::ours();
    hello.version = VERSION + 1;
    let newer = Greeting::Hello(hello).encode();
    let numbers = [format!("version {}", VERSION + 1), VERSION.to_string()];
    let same = ["the same version of Adit".to_owned()];
    for (greeting, words) in [(&old, &same[..]), (&newer, &numbers[..])] {
        // It ends the connection itself: the socket stays open here.
        let mut stays = None;
        let look = with_a_visitor(&image, |socket| {
            send_bytes(&socket, greeting);
            stays = Some(socket);
        });
        let error = look.expect_err("another version");
        assert_eq!(error.errno(), Errno::BUSY, "{error}");
        for word in words {
            assert!(error.what().contains(word), "{error}");
        }
    }
    volume.close().expect("closed");
}

#[test]
fn an_owner_gives_nothing_but_looks_and_a_server_none() {
    let image = Image::new();
    let socket = Path::new(&image.address).with_file_name("socket");
    let mut options = VolumeOptions::new();
    let volume = Volume::open_with(&image.address, options.share(&socket)).expect("opened");
    let (number, secret) = (1, (2, 3));
    let opening = Opening {
        volume_id: (1, 2),
        epoch: 3,
    };
    let key = Key {
        number,
        secret,
        family: 1,
    };
    let aims = [
        Aim::Begin,
        Aim::Resume(Claim { opening, key }),
        Aim::Leave(key),
        Aim::Inherit(key),
    ];
    for aim in aims {
        let (answer, descriptors) =
            handshake(&image.connect(), "", true, false, aim).expect("answered");
        assert!(descriptors.is_empty());
        let Answer::Refused(error) = answer else {
            panic!("{aim:?}: {answer:?}");
        };
        assert_eq!(error.errno(), Errno::OPNOTSUPP, "{aim:?}: {error}");
        assert!(error.what().contains("adit serve"), "{error}");
    }
    let path = SocketAddrUnix::new(&socket).expect("short");
    let server = connected(&path, SOON).expect("connected");
    let (answer, _) = handshake(&server, "", true, false, Aim::Look).expect("answered");
    let Answer::Refused(error) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(error.errno(), Errno::OPNOTSUPP, "{error}");
    image.look().statfs().expect("looked at");
    volume.close().expect("closed");
}

#[test]
fn a_look_does_what_it_may_and_goes_on() {
    let image = Image::new();
    let volume = image.open();
    volume.write("/f", "content").expect("written");
    for number in 0..1000 {
        let name = format!("/{number:0200}");
        volume.write(name, "x").expect("written");
    }
    let socket = look_at(&image);
    let place = calls::Place::root(b"/f");
    let refused = [
        ask(&socket, &Unlink { place }).map(drop),
        ask(&socket, &SyncAll {}),
        ask(&socket, &Check {}).map(drop),
        ask(
            &socket,
            &DeleteBlob {
                id: adit_fs::BlobId {
                    slot: 1,
                    generation: 1,
                },
            },
        ),
        ask(
            &socket,
            &Blobs {
                from_slot: 0,
                max: 1,
            },
        )
        .map(drop),
    ];
    for refused in refused {
        assert_eq!(refused.expect_err("refused").errno(), Errno::OPNOTSUPP);
    }
    let list = |entries_max| List {
        place: calls::Place::root(b"/"),
        cookie: 0,
        entries_max,
        attributes: true,
    };
    let error = ask(&socket, &list(1000)).expect_err("too large");
    assert_eq!(error.errno(), Errno::MSGSIZE, "{error}");
    assert_eq!(ask(&socket, &list(LOOKED_MAX)).expect("listed").len(), 64);
    let follow = Follow::No;
    let stat = ask(&socket, &Stat { place, follow }).expect("looked at");
    assert_eq!(stat.size_bytes, 7);
    volume.close().expect("closed");
}

#[test]
fn clients_that_say_nothing_keep_nobody_waiting() {
    let image = Image::new();
    let volume = image.open();
    volume.write("/f", "content").expect("written");
    let mut idle = Vec::new();
    for round in 0..1000 {
        let socket = image.connect();
        if round % 8 == 0 {
            idle.push(socket);
        }
    }
    assert_eq!(image.look().metadata("/f").expect("looked at").len(), 7);
    // The others have made room for it.
    assert!(idle.iter().all(|socket| is_greeted(socket)));
    assert!(is_ended(&idle[0]));
    volume.close().expect("closed");
    assert!(idle.iter().all(|socket| is_ended(socket)));
}

#[test]
fn a_client_that_fetches_no_answers_is_dropped() {
    let image = Image::new();
    let volume = image.open();
    let greedy = look_at(&image);
    let question = Question::new(&Info {});
    let asked = (0..1_000_000).take_while(|_| send_message(&greedy, &question).is_ok());
    assert!(asked.count() < 1_000_000);
    assert_eq!(
        image.look().info().expect("answered").volume_bytes,
        64 << 20
    );
    volume.close().expect("closed");
}

#[test]
fn another_user_is_refused_and_root_is_not() {
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return adit_skip::skip(adit_skip::OTHER_USER);
    }
    let image = Image::new();
    let volume = image.open();
    let name = image.socket_names().remove(0);
    let refused = std::thread::spawn(move || {
        // By number: the C library's function would change all threads.
        // SAFETY: no memory is involved; it concerns this thread, which ends here.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, 4711, 4711, 4711) };
        assert_eq!(changed, 0);
        for _ in 0..50 {
            let socket = connect_to(&name, SOON).expect("connected");
            let greeting = greeting(&socket);
            let refused =
                matches!(&greeting, Greeting::Refused(error) if error.errno() == Errno::ACCESS);
            assert!(refused, "{greeting:?}");
            assert!(is_ended(&socket));
        }
    });
    refused.join().expect("refused each time");
    assert_eq!(
        image.look().owner().expect("open").pid,
        Some(std::process::id())
    );
    volume.close().expect("closed");
}

/// It answered the next question with the answer to the last one, of another file.
#[test]
fn an_answer_that_comes_late_is_none_to_the_next_question() {
    let kind = rustix::net::SocketType::SEQPACKET;
    let (ours, theirs) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        kind,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("sockets");
    let timeout = rustix::net::sockopt::Timeout::Recv;
    let soon = Some(Duration::from_millis(20));
    rustix::net::sockopt::set_socket_timeout(&ours, timeout, soon).expect("set");
    let owner = Peer::of(ours.as_fd()).expect("us");
    let mut look = Look::new(Registered::new(ours), owner);
    let link_of = |path| ReadLink {
        place: calls::Place::root(path),
    };
    let slow = look.ask(&link_of(b"/slow")).expect_err("no answer");
    assert!(
        matches!(&slow, Lost::Failed(error) if error.errno() == Errno::TIMEDOUT),
        "{slow:?}"
    );
    let mut target = Vec::new();
    b"of /slow".to_vec().put(&mut target);
    send_message(&theirs, &Reply::Done(target.into())).expect("sent");
    let next = look.ask(&link_of(b"/next"));
    assert!(matches!(&next, Err(Lost::Ended)), "{next:?}");
}

#[test]
fn a_socket_that_only_has_the_right_name_is_not_believed() {
    let image = Image::alone();
    let volume = image.open();
    let identity = Identity::of(&image.address).expect("it is there");
    // SAFETY: the child uses system calls and the C library's memory, which fork leaves usable.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let _impostors: Vec<_> = (0..8).map(|_| identity.listen()).collect();
        // SAFETY: the child waits for its end.
        unsafe {
            libc::pause();
            libc::_exit(0);
        }
    }
    while image.socket_names().len() < 9 {
        std::thread::yield_now();
    }
    let look = Inspector::open(&image.address, &VolumeOptions::default());
    volume.close().expect("closed");
    let alone = Inspector::open(&image.address, &VolumeOptions::default());
    // SAFETY: a child of ours, which is then waited for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    let owner = look.expect("looked at").owner().expect("open");
    assert_eq!(owner.pid, Some(std::process::id()));
    assert_eq!(alone.expect("opened").owner(), None);
}

#[test]
fn an_onlooker_goes_on_by_itself_when_the_owner_closes() {
    let image = Image::new();
    let volume = image.open();
    for number in 0..200 {
        volume.write(format!("/{number}"), "x").expect("written");
    }
    let look = image.look();
    let mut entries = look.read_dir("/", true);
    for _ in 0..LOOKED_MAX {
        entries.next().expect("more").expect("read");
    }
    assert!(look.owner().is_some());
    volume.close().expect("closed, whoever looks");
    let rest: Result<Vec<InspectedEntry>> = entries.collect();
    assert_eq!(rest.expect("read").len(), 200 - LOOKED_MAX as usize);
    assert_eq!(look.owner(), None);
    look.close().expect("closed");
}

#[test]
fn an_onlooker_that_comes_while_the_owner_closes_opens_the_volume_itself() {
    let image = Image::new();
    let mut options = VolumeOptions::new();
    let volume = Volume::open_with(&image.address, options.inspectable(false)).expect("opened");
    let look = with_a_visitor(&image, |socket| {
        volume.close().expect("closed");
        drop(socket);
    });
    assert_eq!(look.expect("opened").owner(), None);
}

#[test]
fn an_onlooker_that_does_nothing_more_does_not_delay_closing() {
    let image = Image::new();
    let volume = image.open();
    let _half = image.connect();
    let _whole = look_at(&image);
    let stopped = look_at(&image);
    send_message(&stopped, &Question::new(&Info {})).expect("sent");
    let file = volume.open_file("/f", OpenOptions::new().write(true).create(true));
    drop(volume);
    // The last handle closes, with whatever is connected.
    drop(file.expect("opened"));
    assert!(image.socket_names().is_empty());
    image.open().close().expect("closed");
}

#[test]
fn a_forked_child_keeps_no_socket() {
    let image = Image::alone();
    let volume = image.open();
    let session = look_at(&image);
    // SAFETY: the child makes two system calls.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the child waits for its end.
        unsafe {
            libc::pause();
            libc::_exit(0);
        }
    }
    volume.close().expect("closed");
    // The child closes its copies when it first runs, which may be later than this.
    let begin = std::time::Instant::now();
    while !image.socket_names().is_empty() && begin.elapsed() < SOON {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (names, ended) = (image.socket_names(), is_ended(&session));
    let reopened = Volume::open(&image.address);
    // SAFETY: a child of ours, which is then waited for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    assert!(names.is_empty() && ended, "{names:?}");
    reopened.expect("opened").close().expect("closed");
}

#[test]
fn names_that_lead_to_one_image_lead_to_one_socket() {
    let image = Image::new();
    let volume = image.open();
    volume.write("/f", "x").expect("written");
    let beside = |name: &str| Path::new(&image.address).with_file_name(name);
    std::os::unix::fs::symlink(&image.address, beside("symbolic")).expect("made");
    std::fs::hard_link(&image.address, beside("hard")).expect("made");
    let mut deep = beside("deep");
    while deep.as_os_str().len() < 1000 {
        deep.push("a-name-of-some-length".repeat(5));
    }
    std::fs::create_dir_all(&deep).expect("made");
    deep.push("image");
    std::fs::hard_link(&image.address, &deep).expect("made");
    for path in [beside("symbolic"), beside("hard"), deep] {
        let address = path.to_str().expect("text");
        let look = Inspector::open(address, &VolumeOptions::default()).expect("looked at");
        assert!(look.owner().is_some());
        assert_eq!(look.metadata("/f").expect("there").len(), 1);
    }
    volume.close().expect("closed");
}
