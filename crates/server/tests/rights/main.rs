//! What real processes of other users can do in a server that all users may connect to. The server
//! is a process of a user of its own; needs root.

#[path = "../hostile/rig.rs"]
mod rig;

use adit_fs::{
    Access, AllocateFlags, BlobId, Credentials, FileKind, Follow, LockMode, LockOwner, OpenFlags,
    RangeLock, RenameFlags, SetTime, XattrMode,
};
use adit_wire::calls::*;
use adit_wire::message::{Message, WriteFlags};
use adit_wire::slot::SLOTS;
use rig::{Peer, Rig, alone};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The server's.
const SERVER: u32 = 4700;
/// Somebody, in the group [`GROUP`].
const USER: u32 = 4711;
const GROUP: u32 = 5555;
/// Somebody else.
const OTHER: u32 = 4800;

/// The calls that change or show the volume as a whole, for nobody but root and the server's user.
const EACCES: i32 = libc::EACCES;
const EPERM: i32 = libc::EPERM;

#[test]
#[ignore = "is the process that tests start"]
fn the_server_process() {
    rig::server_process();
}

/// The process of a user that tests start: it does what it is told, and panics if it can do too
/// much or too little.
#[test]
#[ignore = "is the process that tests start"]
fn the_user_process() {
    let _alone = alone();
    let given = |name| std::env::var(name).expect("given");
    let socket = PathBuf::from(given("ADIT_TEST_SOCKET"));
    let id = BlobId {
        slot: given("ADIT_TEST_SLOT").parse().expect("a number"),
        generation: given("ADIT_TEST_GENERATION").parse().expect("a number"),
    };
    if given("ADIT_TEST_ROLE") == "refused" {
        let address = rustix::net::SocketAddrUnix::new(&socket).expect("short");
        let flags = rustix::net::SocketFlags::empty();
        let unconnected = adit_wire::socket::unconnected(flags).expect("a socket");
        let connected = rustix::net::connect(&unconnected, &address);
        assert_eq!(connected, Err(rustix::io::Errno::ACCESS));
    } else {
        let mut peer = Peer::begin(&socket);
        match given("ADIT_TEST_ROLE").as_str() {
            "stranger" => stranger(&mut peer, id),
            "owner" => all_is_allowed(&mut peer, id),
            "member" => member(&mut peer),
            "no member" => no_member(&mut peer),
            role => panic!("{role}"),
        }
    }
    println!("=done");
}

/// Runs the process of a user.
fn user(rig: &Rig, role: &str, uid: u32, groups: &[u32], id: BlobId) {
    let mut command = Command::new(std::env::current_exe().expect("known"));
    command
        .args(["--exact", "the_user_process", "--ignored", "--nocapture"])
        .env("ADIT_TEST_SOCKET", rig.socket())
        .env("ADIT_TEST_ROLE", role)
        .env("ADIT_TEST_SLOT", id.slot.to_string())
        .env("ADIT_TEST_GENERATION", id.generation.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let groups = groups.to_vec();
    let become_user = move || {
        // SAFETY: plain system calls; the list lives here.
        let failed = unsafe {
            libc::setgroups(groups.len(), groups.as_ptr()) != 0
                || libc::setgid(uid) != 0
                || libc::setuid(uid) != 0
        };
        match failed {
            true => Err(std::io::Error::last_os_error()),
            false => Ok(()),
        }
    };
    // SAFETY: it only makes system calls, and allocates nothing.
    unsafe { command.pre_exec(become_user) };
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("=done"),
        "{role} {uid}: {said}{errors}"
    );
}

fn place(path: &str) -> Place<'_> {
    Place::root(path.as_bytes())
}

/// A file of that owner, group and mode, with some bytes.
fn make(root: &mut Peer, path: &str, uid: u32, gid: u32, mode: u32) -> BlobId {
    let file = root.create(path);
    root.fill(0, b"secret");
    let (len, offset, flags) = (6, 0, WriteFlags::empty());
    let write = Message::Write {
        file,
        len,
        offset,
        flags,
    };
    assert_eq!(root.ask(0, write).expect("written").errno, 0);
    let (uid, gid) = (Some(uid), Some(gid));
    root.call(0, file, SetFileOwner { uid, gid }).expect("set");
    root.call(0, file, SetFileMode { mode }).expect("set");
    let stat = root.call(0, file, FileStat {}).expect("known");
    root.call(0, file, Close {}).expect("closed");
    BlobId {
        slot: stat.inode,
        generation: stat.generation,
    }
}

fn mode(peer: &mut Peer, path: &str) -> u32 {
    let (place, follow) = (place(path), Follow::No);
    let stat = peer.volume_call(0, Stat { place, follow }).expect("known");
    stat.mode & 0o7777
}

/// Does each call about a place, which must fail with this errno. Those of directories take a name
/// below the place, or `path`.
fn each_call_fails(peer: &mut Peer, what: Place<'_>, errnos: &[i32]) {
    let (place, follow, mode) = (what, Follow::Yes, 0o777);
    macro_rules! fails {
        ($($call:expr),* $(,)?) => { $(
            let call = $call;
            let said = format!("{call:?}");
            let failed = peer.volume_call(0, call).err();
            assert!(failed.is_some_and(|errno| errnos.contains(&errno)), "{failed:?}: {said}");
        )* };
    }
    fails!(
        CheckAccess {
            place,
            follow,
            wanted: Access::READ | Access::WRITE
        },
        Truncate {
            place,
            size_bytes: 1
        },
        SetMode {
            place,
            follow,
            mode
        },
        SetOwner {
            place,
            follow,
            uid: Some(USER),
            gid: None
        },
        SetOwner {
            place,
            follow,
            uid: None,
            gid: Some(USER)
        },
        SetTimes {
            place,
            follow,
            accessed: SetTime::Now,
            modified: SetTime::Now
        },
        GetXattr {
            place,
            follow,
            name: b"user.a"
        },
        SetXattr {
            place,
            follow,
            name: b"user.a",
            value: b"x",
            mode: XattrMode::Any
        },
        SetXattr {
            place,
            follow,
            name: b"security.a",
            value: b"x",
            mode: XattrMode::Any
        },
        SetXattr {
            place,
            follow,
            name: b"trusted.a",
            value: b"x",
            mode: XattrMode::Any
        },
        SetXattr {
            place,
            follow,
            name: b"system.posix_acl_access",
            value: b"x",
            mode: XattrMode::Any
        },
        RemoveXattr {
            place,
            follow,
            name: b"user.a"
        },
    );
    for flags in [
        OpenFlags::empty(),
        OpenFlags::WRITE_ONLY,
        OpenFlags::READ_WRITE,
        OpenFlags::TRUNCATE,
        OpenFlags::WRITE_ONLY | OpenFlags::READ_WRITE,
        OpenFlags::NOATIME,
        OpenFlags::CREATE,
        OpenFlags::from_bits_retain(!((libc::O_PATH | libc::O_DIRECTORY | libc::O_EXCL) as u32)),
    ] {
        fails!(Open { place, flags, mode });
    }
    for flags in [
        OpenFlags::READ_WRITE | OpenFlags::TRUNCATE,
        OpenFlags::WRITE_ONLY | OpenFlags::TRUNCATE | OpenFlags::CREATE,
    ] {
        fails!(CreateAndSync {
            place,
            flags,
            mode,
            content: b"mine",
        });
    }
}

/// Each call that makes, removes or moves names at a place.
fn each_name_fails(peer: &mut Peer, what: Place<'_>, errnos: &[i32]) {
    let (place, mode) = (what, 0o777);
    let mine = self::place("/mine/file");
    macro_rules! fails {
        ($($call:expr),* $(,)?) => { $(
            let call = $call;
            let said = format!("{call:?}");
            let failed = peer.volume_call(0, call).err();
            assert!(failed.is_some_and(|errno| errnos.contains(&errno)), "{failed:?}: {said}");
        )* };
    }
    fails!(
        Unlink { place },
        RemoveDirectory { place },
        Rename {
            from: place,
            to: mine,
            flags: RenameFlags::empty()
        },
        Rename {
            from: mine,
            to: place,
            flags: RenameFlags::empty()
        },
        Rename {
            from: mine,
            to: place,
            flags: RenameFlags::EXCHANGE
        },
        MakeDirectory { place, mode },
        MakeNode {
            place,
            kind: FileKind::File,
            mode,
            device: 0
        },
        MakeSymlink {
            target: b"x",
            place
        },
        Link {
            existing: mine,
            follow: Follow::No,
            place
        },
    );
}

/// Somebody without any right.
fn stranger(peer: &mut Peer, id: BlobId) {
    // Nothing of what others had in their memory.
    for slot in 0..SLOTS {
        let area = peer.area(slot, adit_wire::memory::AREA_BYTES);
        assert!(area.iter().all(|byte| *byte == 0));
    }
    assert!(peer.cache.is_empty(), "it can't read the cache");
    let file = peer
        .open("/readable", OpenFlags::empty())
        .expect("readable");
    let read = Message::Read {
        file,
        len: 6,
        offset: 0,
        hint: true,
    };
    assert_eq!(peer.ask(0, read).expect("read").hint, 0);
    let refused = [EACCES, EPERM, libc::ENODATA];
    each_call_fails(peer, place("/secret"), &refused);
    each_call_fails(peer, place("/closed/file"), &refused);
    each_name_fails(peer, place("/closed/file"), &refused);
    each_name_fails(peer, place("/closed/new"), &refused);
    each_name_fails(peer, place("/new"), &[EACCES, EPERM, libc::ENOENT]);
    each_name_fails(
        peer,
        place("/secret"),
        &[EACCES, EPERM, libc::ENOTDIR, libc::EEXIST],
    );
    let list = |path, attributes| List {
        place: place(path),
        cookie: 0,
        entries_max: 9,
        attributes,
    };
    for attributes in [false, true] {
        let closed = peer.volume_call(0, list("/closed", attributes));
        assert_eq!(closed, Err(EACCES));
        let searchable = peer.volume_call(0, list("/searchable", attributes));
        assert_eq!(searchable, Err(EACCES));
    }
    let names = peer.volume_call(0, list("/listable", false));
    assert_eq!(names.expect("names").len(), 1);
    assert_eq!(peer.volume_call(0, list("/listable", true)), Err(EACCES));
    let stat = |place| Stat {
        place,
        follow: Follow::Yes,
    };
    assert_eq!(
        peer.volume_call(0, stat(place("/closed/file"))),
        Err(EACCES)
    );
    let read_link = ReadLink {
        place: place("/closed/link"),
    };
    assert_eq!(peer.volume_call(0, read_link), Err(EACCES));
    // In a sticky directory names of others stay.
    let sticky = place("/sticky/theirs");
    assert_eq!(peer.volume_call(0, Unlink { place: sticky }), Err(EPERM));
    let (from, to) = (place("/mine/file"), sticky);
    let flags = RenameFlags::empty();
    let renamed = peer.volume_call(0, Rename { from, to, flags });
    assert_eq!(renamed, Err(EPERM));
    administration(peer, id);
    numbers_of_inodes(peer, id);
    other_users(peer);
    ways_of_opening(peer);
    set_ids(peer);
    nodes_and_owners(peer);
}

/// What is for root and the server's user.
fn administration(peer: &mut Peer, id: BlobId) {
    let flags = OpenFlags::READ_WRITE;
    let open = OpenBlob { id, flags };
    assert_eq!(peer.volume_call(0, open), Err(EACCES));
    assert_eq!(peer.volume_call(0, CreateBlob {}), Err(EACCES));
    assert_eq!(peer.volume_call(0, DeleteBlob { id }), Err(EACCES));
    let (from_slot, max) = (0, 9);
    let blobs = Blobs { from_slot, max };
    assert_eq!(peer.volume_call(0, blobs), Err(EACCES));
    let (cookie, max) = (0, 9);
    let opened = OpenDescriptors { cookie, max };
    assert_eq!(peer.volume_call(0, opened), Err(EACCES));
    let size_bytes = 1 << 40;
    assert_eq!(peer.volume_call(0, Grow { size_bytes }), Err(EACCES));
    let label = SetLabel { label: b"mine" };
    assert_eq!(peer.volume_call(0, label), Err(EACCES));
    assert_eq!(peer.volume_call(0, Check {}).err(), Some(EACCES));
    assert_eq!(peer.volume_call(0, Sessions {}).err(), Some(EACCES));
    let (number, poller) = (1, 0);
    let moved = MoveSession { number, poller };
    assert_eq!(peer.volume_call(0, moved), Err(EACCES));
    let info = peer.volume_call(0, Info {}).expect("some of it");
    assert!(info.mapping.is_none() && info.unsaved.is_none() && info.lost_path.is_none());
    peer.volume_call(0, Space {}).expect("known");
    peer.volume_call(0, SyncAll {}).expect("as syncfs(2)");
    peer.volume_call(0, AtomicBytesMax {}).expect("known");
}

/// Beginning at an inode by its number.
fn numbers_of_inodes(peer: &mut Peer, id: BlobId) {
    let inside = |id, path| Place {
        start: Some(id),
        path,
        links_below: b"",
    };
    for generation in [id.generation, 0, id.generation + 1] {
        let id = BlobId { generation, ..id };
        each_call_fails(peer, inside(id, None), &[EACCES]);
        each_name_fails(peer, inside(id, Some(b"x")), &[EACCES]);
    }
    let root = peer.volume_call(
        0,
        Stat {
            place: place("/"),
            follow: Follow::Yes,
        },
    );
    let root = root.expect("known");
    let root = BlobId {
        slot: root.inode,
        generation: root.generation,
    };
    each_call_fails(peer, inside(root, Some(b"mine/file")), &[EACCES]);
    // Having it open as a place only gives no more rights than its path.
    let secret = peer.open("/secret", OpenFlags::PATH).expect("as open(2)");
    let stat = peer.call(0, secret, FileStat {}).expect("known");
    let secret_id = BlobId {
        slot: stat.inode,
        generation: stat.generation,
    };
    each_call_fails(
        peer,
        inside(secret_id, None),
        &[EACCES, EPERM, libc::ENODATA],
    );
    let badly = |peer: &mut Peer, message| {
        let reply = peer.ask(0, message).expect("it goes on");
        assert_eq!(reply.errno, libc::EBADF as u32, "{message:?}");
    };
    let (file, len, offset) = (secret, 6, 0);
    let flags = WriteFlags::APPEND;
    badly(
        peer,
        Message::Read {
            file,
            len,
            offset,
            hint: false,
        },
    );
    badly(
        peer,
        Message::Write {
            file,
            len,
            offset,
            flags,
        },
    );
    badly(peer, Message::Sync { file, all: true });
    let mode = 0o777;
    let failed = peer.call(0, secret, SetFileMode { mode });
    assert_eq!(failed, Err(libc::EBADF));
    peer.call(0, secret, Close {}).expect("closed");
    each_call_fails(peer, inside(secret_id, None), &[EACCES]);
    let closed = peer.open("/closed", OpenFlags::PATH).expect("as open(2)");
    let stat = peer.call(0, closed, FileStat {}).expect("known");
    let closed_id = BlobId {
        slot: stat.inode,
        generation: stat.generation,
    };
    each_call_fails(peer, inside(closed_id, Some(b"file")), &[EACCES, EPERM]);
    each_call_fails(peer, inside(closed_id, Some(b"../closed/file")), &[EACCES]);
    let cookie = 0;
    let names_bytes = 999;
    let listed = peer.call(
        0,
        closed,
        ReadDirectory {
            cookie,
            names_bytes,
        },
    );
    assert_eq!(listed, Err(libc::EBADF));
    // Its own.
    let mine = peer.open("/mine", OpenFlags::empty()).expect("opened");
    let stat = peer.call(0, mine, FileStat {}).expect("known");
    let mine_id = BlobId {
        slot: stat.inode,
        generation: stat.generation,
    };
    let (place, follow) = (inside(mine_id, Some(b"file")), Follow::Yes);
    peer.volume_call(0, Stat { place, follow })
        .expect("its own");
}

/// Acting for another user, whoever that is, in any call.
fn other_users(peer: &mut Peer) {
    use adit_wire::value::Value;
    let mut root = Credentials::user(USER, USER, &[GROUP]);
    root.privileged = true;
    for who in [
        Credentials::user(0, 0, &[]),
        Credentials::user(OTHER, OTHER, &[]),
        // Itself, with more than it has.
        Credentials::user(USER, USER, &[GROUP]),
        root,
    ] {
        let (place, follow) = (place("/secret"), Follow::Yes);
        let stat = peer.call_for(Some(who.clone()), 0, Stat { place, follow });
        assert_eq!(stat, Err(EPERM));
        let opened = peer.call_for(
            Some(who.clone()),
            0,
            Open {
                place,
                flags: OpenFlags::empty(),
                mode: 0,
            },
        );
        assert_eq!(opened, Err(EPERM));
        let unlinked = peer.call_for(Some(who.clone()), 0, Unlink { place });
        assert_eq!(unlinked, Err(EPERM));
        // Whatever the arguments are: the right comes first, or they are none.
        for number in 1..=37u16 {
            let bytes = Some(who.clone()).encode();
            peer.fill(0, &bytes);
            let len = bytes.len() as u32;
            peer.submit(0, Message::VolumeCall { number, len });
            match peer.wait(0) {
                Some(reply) => assert_ne!(reply.errno, 0, "call {number}"),
                None => {
                    let socket = std::env::var_os("ADIT_TEST_SOCKET").expect("given");
                    *peer = Peer::begin(&PathBuf::from(socket));
                }
            }
        }
    }
}

/// What a descriptor was not opened for.
fn ways_of_opening(peer: &mut Peer) {
    let ask = |peer: &mut Peer, message| peer.ask(0, message).expect("it goes on").errno as i32;
    let read_only = peer
        .open("/readable", OpenFlags::empty())
        .expect("readable");
    let (len, offset) = (6, 0);
    for flags in [
        WriteFlags::empty(),
        WriteFlags::APPEND,
        WriteFlags::SYNC_ALL,
    ] {
        let file = read_only;
        let write = Message::Write {
            file,
            len,
            offset,
            flags,
        };
        assert_eq!(ask(peer, write), libc::EBADF);
    }
    let ranges = vec![(0, &b"x"[..])];
    let atomic = WriteAtomic {
        ranges,
        sync: false,
    };
    assert_eq!(peer.call(0, read_only, atomic), Err(libc::EBADF));
    let size_bytes = 0;
    let cut = peer.call(0, read_only, SetSize { size_bytes });
    assert_eq!(cut, Err(libc::EINVAL));
    let (flags, offset, len_bytes) = (AllocateFlags::empty(), 0, 9);
    let allocated = peer.call(
        0,
        read_only,
        Allocate {
            flags,
            offset,
            len_bytes,
        },
    );
    assert_eq!(allocated, Err(libc::EBADF));
    let lock = RangeLock::new(LockOwner::Descriptor, LockMode::Exclusive, 0, 0);
    let locked = peer.call(0, read_only, LockRange { lock, wait: false });
    assert_eq!(locked, Err(libc::EBADF));
    let mode = 0o777;
    assert_eq!(peer.call(0, read_only, SetFileMode { mode }), Err(EPERM));
    let (uid, gid) = (Some(USER), None);
    let owned = peer.call(0, read_only, SetFileOwner { uid, gid });
    assert_eq!(owned, Err(EPERM));
    let value = b"x";
    let set = SetFileXattr {
        name: b"user.a",
        value,
        mode: XattrMode::Any,
    };
    assert_eq!(peer.call(0, read_only, set), Err(EACCES));
    let mine = peer.open("/mine/file", OpenFlags::READ_WRITE);
    let mine = mine.expect("its own");
    let copy = CopyRange {
        offset: 0,
        to: read_only,
        to_offset: 0,
        len_bytes: 6,
    };
    assert_eq!(peer.call(0, mine, copy), Err(libc::EBADF));
    // For writing only.
    let write_only = peer
        .open("/droppable", OpenFlags::WRITE_ONLY)
        .expect("opened");
    let read = Message::Read {
        file: write_only,
        len,
        offset: 0,
        hint: false,
    };
    assert_eq!(ask(peer, read), libc::EBADF);
    let copy = CopyRange {
        offset: 0,
        to: mine,
        to_offset: 0,
        len_bytes: 6,
    };
    assert_eq!(peer.call(0, write_only, copy), Err(libc::EBADF));
}

/// Set-user-ID bits go with each kind of write.
fn set_ids(peer: &mut Peer) {
    type Change = fn(&mut Peer, u64);
    fn write(peer: &mut Peer, file: u64, flags: WriteFlags) {
        peer.fill(0, b"changed");
        let (len, offset) = (7, 0);
        let write = Message::Write {
            file,
            len,
            offset,
            flags,
        };
        assert_eq!(peer.ask(0, write).expect("it goes on").errno, 0);
    }
    let changes: [(&str, Change); 6] = [
        ("/suid0", |peer, file| {
            write(peer, file, WriteFlags::empty());
        }),
        ("/suid1", |peer, file| {
            write(peer, file, WriteFlags::APPEND);
        }),
        ("/suid2", |peer, file| {
            let ranges = vec![(0, &b"x"[..])];
            let sync = true;
            peer.call(0, file, WriteAtomic { ranges, sync })
                .expect("written");
        }),
        ("/suid3", |peer, file| {
            let size_bytes = 1;
            peer.call(0, file, SetSize { size_bytes }).expect("cut");
        }),
        ("/suid4", |peer, file| {
            let flags = AllocateFlags::ZERO_RANGE;
            let (offset, len_bytes) = (0, 9);
            let allocate = Allocate {
                flags,
                offset,
                len_bytes,
            };
            peer.call(0, file, allocate).expect("zeroed");
        }),
        ("/suid5", |peer, to| {
            let mine = peer.open("/mine/file", OpenFlags::empty()).expect("opened");
            let (offset, to_offset, len_bytes) = (0, 0, 6);
            let copy = CopyRange {
                offset,
                to,
                to_offset,
                len_bytes,
            };
            assert_eq!(peer.call(0, mine, copy), Ok(6));
        }),
    ];
    for (path, change) in changes {
        assert_eq!(mode(peer, path), 0o6777, "{path}");
        let file = peer.open(path, OpenFlags::READ_WRITE).expect("writable");
        change(peer, file);
        assert_eq!(mode(peer, path), 0o777, "{path}");
        // And again on pages that are dirty by now, which need no worker to be overwritten.
        change(peer, file);
    }
}

/// Device nodes, and giving files away.
fn nodes_and_owners(peer: &mut Peer) {
    for kind in [FileKind::BlockDevice, FileKind::CharDevice, FileKind::Blob] {
        let node = MakeNode {
            place: place("/mine/node"),
            kind,
            mode: 0o666,
            device: 1,
        };
        let made = peer.volume_call(0, node);
        assert!(matches!(made, Err(libc::EPERM | libc::EINVAL)), "{made:?}");
    }
    let own = |uid, gid| SetOwner {
        place: place("/mine/file"),
        follow: Follow::Yes,
        uid,
        gid,
    };
    assert_eq!(peer.volume_call(0, own(Some(0), None)), Err(EPERM));
    assert_eq!(peer.volume_call(0, own(None, Some(0))), Err(EPERM));
    let set_mode = SetMode {
        place: place("/mine/file"),
        follow: Follow::Yes,
        mode: 0o6755,
    };
    peer.volume_call(0, set_mode).expect("its own");
}

/// A user who has the file by a supplementary group.
fn member(peer: &mut Peer) {
    let file = peer.open("/group", OpenFlags::empty()).expect("readable");
    let (len, offset) = (6, 0);
    let read = Message::Read {
        file,
        len,
        offset,
        hint: false,
    };
    assert_eq!(peer.ask(0, read).expect("read").value, 6);
    assert_eq!(peer.area(0, 6), b"secret");
    let refused = peer.open("/group", OpenFlags::READ_WRITE);
    assert_eq!(refused, Err(EACCES));
    let own = SetOwner {
        place: place("/mine/file"),
        follow: Follow::Yes,
        uid: None,
        gid: Some(GROUP),
    };
    peer.volume_call(0, own).expect("a group of its own");
}

fn no_member(peer: &mut Peer) {
    assert_eq!(peer.open("/group", OpenFlags::empty()), Err(EACCES));
}

/// Root, and the server's user.
fn all_is_allowed(peer: &mut Peer, id: BlobId) {
    for path in ["/secret", "/closed/file", "/group"] {
        let file = peer.open(path, OpenFlags::READ_WRITE).expect(path);
        let (len, offset) = (6, 0);
        let read = Message::Read {
            file,
            len,
            offset,
            hint: false,
        };
        assert_eq!(peer.ask(0, read).expect("read").value, 6);
        peer.call(0, file, Close {}).expect("closed");
    }
    let blob = peer.volume_call(0, CreateBlob {}).expect("made");
    let flags = OpenFlags::READ_WRITE;
    let opened = peer.volume_call(0, OpenBlob { id: blob, flags });
    let opened = opened.expect("opened");
    peer.call(0, opened.file, Close {}).expect("closed");
    peer.volume_call(0, DeleteBlob { id: blob })
        .expect("deleted");
    let start = Some(id);
    let place = Place {
        start,
        path: None,
        links_below: b"",
    };
    let follow = Follow::Yes;
    peer.volume_call(0, Stat { place, follow })
        .expect("by its number");
    let place = self::place("/secret");
    let who = Credentials::user(USER, USER, &[]);
    let open = Open {
        place,
        flags: OpenFlags::empty(),
        mode: 0,
    };
    let refused = peer.call_for(Some(who), 0, open);
    assert_eq!(refused, Err(EACCES), "for somebody who may not");
    let report = peer.volume_call(0, Check {}).expect("checked");
    assert_eq!(report.problems, [""; 0]);
}

#[test]
fn other_users_can_do_what_modes_allow_and_no_more() {
    let _alone = alone();
    if !rustix::process::geteuid().is_root() {
        return adit_skip::skip(adit_skip::OTHER_USER);
    }
    let rig = Rig::for_all(SERVER);
    let mut root = Peer::begin(&rig.socket());
    let secret = make(&mut root, "/secret", 0, 0, 0o600);
    let directory = |root: &mut Peer, path: &str, uid, mode| {
        let place = place(path);
        root.volume_call(0, MakeDirectory { place, mode: 0o777 })
            .expect("made");
        let follow = Follow::Yes;
        let set = SetMode {
            place,
            follow,
            mode,
        };
        root.volume_call(0, set).expect("set");
        let (uid, gid) = (Some(uid), Some(uid));
        let own = SetOwner {
            place,
            follow,
            uid,
            gid,
        };
        root.volume_call(0, own).expect("set");
    };
    directory(&mut root, "/closed", 0, 0o700);
    directory(&mut root, "/searchable", 0, 0o711);
    directory(&mut root, "/listable", 0, 0o744);
    directory(&mut root, "/mine", USER, 0o700);
    directory(&mut root, "/sticky", 0, 0o1777);
    let link = MakeSymlink {
        target: b"/secret",
        place: place("/closed/link"),
    };
    root.volume_call(0, link).expect("made");
    for (path, uid, gid, mode) in [
        ("/closed/file", 0, 0, 0o666),
        ("/listable/file", 0, 0, 0o666),
        ("/mine/file", USER, USER, 0o600),
        ("/sticky/theirs", OTHER, OTHER, 0o666),
        ("/group", 0, GROUP, 0o640),
        ("/readable", 0, 0, 0o644),
        ("/droppable", 0, 0, 0o622),
    ] {
        make(&mut root, path, uid, gid, mode);
    }
    for number in 0..6 {
        make(&mut root, &format!("/suid{number}"), OTHER, OTHER, 0o6777);
    }
    user(&rig, "member", USER, &[7, GROUP], secret);
    user(&rig, "no member", USER, &[7], secret);
    user(&rig, "stranger", USER, &[GROUP], secret);
    // A group is no user.
    user(&rig, "no member", GROUP + 1, &[USER], secret);
    user(&rig, "owner", SERVER, &[], secret);
    user(&rig, "owner", 0, &[], secret);
    // What root's session had is unchanged.
    let file = root.open("/secret", OpenFlags::empty()).expect("opened");
    let (len, offset) = (9, 0);
    let read = Message::Read {
        file,
        len,
        offset,
        hint: false,
    };
    assert_eq!(root.ask(0, read).expect("read").value, 6);
    assert_eq!(root.area(0, 6), b"secret");
    drop(root);
    rig.end();
}

#[test]
fn the_mode_of_the_socket_says_who_may_connect() {
    let _alone = alone();
    if !rustix::process::geteuid().is_root() {
        return adit_skip::skip(adit_skip::OTHER_USER);
    }
    let rig = Rig::there();
    let nothing = BlobId {
        slot: 0,
        generation: 0,
    };
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    let directory = rig.socket();
    let directory = directory.parent().expect("below a directory");
    std::fs::set_permissions(directory, everybody).expect("changed");
    user(&rig, "refused", USER, &[], nothing);
    rig.end();
}

/// A user takes half of the sessions at most, all users leave some to root.
#[test]
fn users_leave_sessions_to_others_and_to_root() {
    let _alone = alone();
    if !rustix::process::geteuid().is_root() {
        return adit_skip::skip(adit_skip::OTHER_USER);
    }
    let rig = Rig::for_all(SERVER);
    let mut children = Vec::new();
    for (uid, expected) in [(USER, 20), (OTHER, 18), (OTHER + 1, 0)] {
        let mut command = Command::new(std::env::current_exe().expect("known"));
        command
            .args(["--exact", "the_greedy_process", "--ignored", "--nocapture"])
            .env("ADIT_TEST_SOCKET", rig.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .uid(uid)
            .gid(uid);
        let mut child = command.spawn().expect("it runs");
        let output = std::io::BufReader::new(child.stdout.as_mut().expect("piped"));
        let line = std::io::BufRead::lines(output)
            .map(|line| line.expect("read"))
            .find(|line| line.contains("=has "));
        let line = line.expect("it says so");
        let (_, has) = line.split_once("=has ").expect("found");
        assert_eq!(has, expected.to_string(), "user {uid}");
        children.push(child);
    }
    let root: Vec<Peer> = (0..2).map(|_| Peer::begin(&rig.socket())).collect();
    assert!(Peer::ask_for(&rig.socket()).is_err());
    drop(root);
    for mut child in children {
        drop(child.stdin.take());
        assert!(child.wait().expect("it ends").success());
    }
    rig.end();
}

#[test]
#[ignore = "is the process that a test starts"]
fn the_greedy_process() {
    let socket = PathBuf::from(std::env::var_os("ADIT_TEST_SOCKET").expect("given"));
    let mut peers = Vec::new();
    while let Ok(peer) = Peer::ask_for(&socket) {
        peers.push(peer);
    }
    println!("=has {}", peers.len());
    let _ = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
}
