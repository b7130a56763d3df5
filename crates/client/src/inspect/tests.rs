//! Onlookers that behave and others. What a socket can be made to do needs its name, so these are
//! inside.

use super::message::*;
use super::socket::*;
use super::*;
use crate::{MkfsOptions, OpenOptions};
use adit_base::clock::Timestamp;
use adit_base::random::Prng;
use adit_fs::{DirEntry, OpenFlags, Stat};
use adit_wire::socket::*;
use adit_wire::value::Value;
use std::os::fd::OwnedFd;

const SOON: Duration = Duration::from_secs(240);

struct Image {
    _directory: tempfile::TempDir,
    address: String,
}

impl Image {
    fn new() -> Image {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("v.adit");
        let address = path.to_str().expect("text").to_owned();
        Volume::mkfs(&address, MkfsOptions::new().size_bytes(64 << 20)).expect("formatted");
        Image {
            _directory: directory,
            address,
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

    fn connect(&self) -> OwnedFd {
        connect_to(&self.socket_names()[0], SOON).expect("connected")
    }
}

/// Receives the owner's greeting.
fn greeting(socket: &OwnedFd) -> Greeting {
    receive_message(socket, &mut [0; 4096]).expect("a greeting")
}

/// A session in which the next message is a request.
fn greeted(image: &Image) -> OwnedFd {
    let socket = image.connect();
    assert_eq!(greeting(&socket), Greeting::Hello(Hello::ours()));
    send_message(&socket, &Hello::ours()).expect("sent");
    socket
}

fn send_bytes(socket: &OwnedFd, bytes: &[u8]) {
    rustix::net::send(socket, bytes, rustix::net::SendFlags::NOSIGNAL).expect("sent");
}

/// Is the session over?
fn is_ended(socket: &OwnedFd) -> bool {
    let received = receive_message::<Answer>(socket, &mut vec![0; ANSWER_BYTES_MAX]);
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
fn garbage_ends_the_session_that_it_comes_from_and_nothing_else() {
    let image = Image::new();
    let volume = image.open();
    let quiet = greeted(&image);
    let mut random = Prng::new(7);
    for round in 0..60 {
        let mut bytes = vec![0; 1 + random.index(2 * REQUEST_BYTES_MAX)];
        random.fill(&mut bytes);
        if round % 3 == 1 {
            // A kind of request that there is, with anything in it.
            bytes[0] = 1 + random.below(2) as u8;
        }
        let socket = match round % 2 {
            0 => image.connect(),
            _ => greeted(&image),
        };
        if round % 2 == 0 {
            greeting(&socket);
        }
        send_bytes(&socket, &bytes);
        assert!(is_ended(&socket), "round {round}");
    }
    send_message(&quiet, &Request::StatFs).expect("sent");
    let answer: Answer = receive_message(&quiet, &mut vec![0; ANSWER_BYTES_MAX]).expect("answered");
    assert!(matches!(answer, Answer::StatFs(_)));
    volume.write("/f", "content").expect("written");
    volume.close().expect("closed");
}

#[test]
fn a_wrong_version_is_told_ours() {
    let image = Image::new();
    let volume = image.open();
    let socket = image.connect();
    assert_eq!(greeting(&socket), Greeting::Hello(Hello::ours()));
    let mut other = Hello::ours();
    other.version += 1;
    send_message(&socket, &other).expect("sent");
    assert!(is_ended(&socket));
    volume.close().expect("closed");
}

#[test]
fn clients_that_say_nothing_keep_nobody_waiting() {
    let image = Image::new();
    let volume = image.open();
    volume.write("/f", "content").expect("written");
    let mut idle: Vec<OwnedFd> = Vec::new();
    for round in 0..1000 {
        let socket = image.connect();
        if round % 8 == 0 {
            idle.push(socket);
        }
    }
    assert_eq!(image.look().metadata("/f").expect("looked at").len(), 7);
    // The others have made room for it.
    assert!(
        idle.iter()
            .all(|socket| matches!(greeting(socket), Greeting::Hello(_)))
    );
    assert!(is_ended(&idle[0]));
    volume.close().expect("closed");
    assert!(idle.iter().all(is_ended));
}

#[test]
fn a_client_that_fetches_no_answers_is_dropped() {
    let image = Image::new();
    let volume = image.open();
    let greedy = greeted(&image);
    let asked = (0..1_000_000).take_while(|_| send_message(&greedy, &Request::Info).is_ok());
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
        return adit_skip::skip("only root can be another user");
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
            let refused = Greeting::Refused(Errno::ACCESS.into());
            assert_eq!(greeting(&socket), refused);
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

#[test]
fn a_socket_that_only_has_the_right_name_is_not_believed() {
    let image = Image::new();
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
    for _ in 0..ENTRIES_MAX {
        entries.next().expect("more").expect("read");
    }
    assert!(look.owner().is_some());
    volume.close().expect("closed, whoever looks");
    let rest: Result<Vec<InspectedEntry>> = entries.collect();
    assert_eq!(rest.expect("read").len(), 200 - ENTRIES_MAX);
    assert_eq!(look.owner(), None);
    look.close().expect("closed");
}

#[test]
fn an_onlooker_that_has_asked_nothing_yet_does_not_delay_closing() {
    let image = Image::new();
    let volume = image.open();
    let _half = image.connect();
    let _whole = greeted(&image);
    let file = volume.open_file("/f", OpenOptions::new().write(true).create(true));
    drop(volume);
    // The last handle closes, with whatever is connected.
    drop(file.expect("opened"));
    assert!(image.socket_names().is_empty());
    image.open().close().expect("closed");
}

#[test]
fn a_forked_child_keeps_no_socket() {
    let image = Image::new();
    let volume = image.open();
    let session = greeted(&image);
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

fn everything() -> Vec<Vec<u8>> {
    let time = Timestamp {
        seconds: -5,
        nanoseconds: 999_999_999,
    };
    let mut stat = Stat::default();
    stat.inode = 1 << 60;
    stat.generation = 7;
    stat.mode = 0o100_644;
    stat.links = 2;
    stat.uid = 3;
    stat.gid = 4;
    stat.rdev = 5;
    stat.size_bytes = 6;
    stat.allocated_bytes = 4096;
    stat.io_bytes = 4096;
    stat.accessed = time;
    stat.modified = time;
    stat.changed = time;
    stat.created = time;
    let mut entry = DirEntry::default();
    entry.inode = 9;
    entry.kind = FileKind::Directory;
    entry.cookie = 77;
    entry.name = vec![0xff; 255].into();
    let listed = |stat| ListedEntry {
        entry: entry.clone(),
        stat,
    };
    let mut open = OpenDescriptor::default();
    open.cookie = 1;
    open.inode = 2;
    open.generation = 3;
    open.kind = FileKind::Blob;
    open.flags = OpenFlags::APPEND;
    open.size_bytes = 4;
    open.unlinked = true;
    let path = b"/a/b".to_vec();
    let requests = [
        Request::Stat {
            path: path.clone(),
            follow: true,
        },
        Request::List {
            path,
            cookie: 8,
            attributes: true,
        },
        Request::ReadLink {
            path: b"/a".to_vec(),
        },
        Request::Open { cookie: 9 },
    ];
    let answers = [
        Answer::Failed(Error::with(Errno::NOENT, "words")),
        Answer::Stat(stat),
        Answer::List(vec![listed(Some(stat)), listed(None)]),
        Answer::ReadLink(b"b".to_vec()),
        Answer::Open(vec![open.clone(), open]),
    ];
    let mut all: Vec<Vec<u8>> = requests.iter().map(Value::encode).collect();
    all.extend(answers.iter().map(Value::encode));
    all
}

/// As whichever it may be: its bytes again.
fn decoded(bytes: &[u8]) -> [Option<Vec<u8>>; 3] {
    [
        Request::decode(bytes).map(|message| message.encode()),
        Answer::decode(bytes).map(|message| message.encode()),
        Greeting::decode(bytes).map(|message| message.encode()),
    ]
}

#[test]
fn a_message_is_decoded_to_what_was_encoded_and_a_part_of_it_to_nothing() {
    for (number, bytes) in everything().iter().enumerate() {
        let kind = usize::from(number >= 4);
        assert_eq!(
            decoded(bytes)[kind].as_ref(),
            Some(bytes),
            "message {number}"
        );
        for end in 0..bytes.len() {
            assert_eq!(decoded(&bytes[..end])[kind], None, "{number}, {end} bytes");
        }
    }
}

#[test]
fn damaged_messages_are_refused_or_mean_what_they_say() {
    let mut random = Prng::new(3);
    let originals = everything();
    for _ in 0..50_000 {
        let mut bytes = originals[random.index(originals.len())].clone();
        let at = random.index(bytes.len());
        bytes[at] = random.next_u64() as u8;
        for same in decoded(&bytes).into_iter().flatten() {
            assert_eq!(same, bytes);
        }
    }
}

#[test]
fn the_largest_answers_and_requests_fit() {
    let listed = everything().remove(6);
    let entry = (listed.len() - 5) / 2;
    // Two entries: one with, one without attributes; both are shorter than twice the longer one.
    assert!(5 + ENTRIES_MAX * 2 * entry < ANSWER_BYTES_MAX);
    let request = Request::List {
        path: vec![b'a'; 4096],
        cookie: u64::MAX,
        attributes: true,
    };
    assert!(request.encode().len() <= REQUEST_BYTES_MAX);
    let words = Answer::Failed(Error::with(Errno::IO, "\u{e4}".repeat(100_000)));
    assert!(words.encode().len() < ANSWER_BYTES_MAX);
    assert!(Answer::decode(&words.encode()).is_some());
}
