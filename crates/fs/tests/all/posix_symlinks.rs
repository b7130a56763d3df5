//! Symbolic links: operations that follow them, operations on them, and their targets.

use crate::common;
use crate::common::linux::same_as_linux;
use crate::common::*;
use adit_base::Errno;
use adit_block::{FaultConfig, FaultDevice};
use adit_fs::*;
use adit_operations::Call as Op;

const EXCL: OpenFlags = CREATE.union(OpenFlags::EXCLUSIVE);
const NOFOLLOW: OpenFlags = OpenFlags::NOFOLLOW;
const PATH: OpenFlags = OpenFlags::PATH;

/// A tree with links of every sort.
const LINKS: [(&str, &str); 19] = [
    ("f", "/to_file"),
    ("d", "/to_dir"),
    ("d/", "/to_dir_slash"),
    ("f/", "/to_file_slash"),
    ("nothing", "/dangling"),
    ("nothing/", "/dangling_slash"),
    ("nothing/below", "/dangling_deep"),
    ("/d/f", "/absolute"),
    ("../../../f", "/above_root"),
    ("..", "/d/up"),
    (".", "/d/here"),
    ("/", "/to_root"),
    ("loop_b", "/loop_a"),
    ("loop_a", "/loop_b"),
    ("self", "/self"),
    ("to_file", "/twice"),
    ("to_dir/sub/../f", "/winding"),
    ("f/below", "/through_file"),
    ("d/locked/f", "/into_locked"),
];

/// Paths that use them, at the end, in the middle, and with slashes behind.
fn paths() -> Vec<String> {
    let mut paths = vec![];
    for name in LINKS
        .map(|(_, name)| name)
        .into_iter()
        .chain(["/f", "/d", "/x"])
    {
        for behind in ["", "/", "//", "/.", "/..", "/f", "/x", "/sub/"] {
            paths.push(format!("{name}{behind}"));
        }
    }
    paths
}

fn plant(pair: &mut common::linux::Pair) {
    let root = Credentials::user(0, 0, &[]);
    pair.ask(&root, Op::Mkdir("/d", 0o755));
    pair.ask(&root, Op::Mkdir("/d/sub", 0o755));
    pair.ask(&root, Op::Mkdir("/d/locked", 0o700));
    for path in ["/f", "/d/f", "/d/locked/f"] {
        pair.ask(&root, Op::OpenClose(path, CREATE, 0o644));
    }
    for (target, path) in LINKS {
        pair.ask(&root, Op::Symlink(target, path));
    }
}

#[test]
fn looking_through_symbolic_links_is_as_on_linux() {
    same_as_linux(|pair| {
        plant(pair);
        for who in [Credentials::user(0, 0, &[]), Credentials::user(7, 7, &[])] {
            for path in paths() {
                for follow in [Follow::Yes, Follow::No] {
                    pair.ask(&who, Op::Stat(&path, follow));
                    pair.ask(&who, Op::Access(&path, follow, Access::READ));
                    pair.ask(&who, Op::Listxattr(&path, follow));
                }
                pair.ask(&who, Op::Readlink(&path));
                for flags in [
                    RO,
                    NOFOLLOW,
                    PATH,
                    PATH | NOFOLLOW,
                    PATH | NOFOLLOW | OpenFlags::DIRECTORY,
                    OpenFlags::DIRECTORY,
                    OpenFlags::DIRECTORY | NOFOLLOW,
                ] {
                    pair.ask(&who, Op::OpenClose(&path, flags, 0));
                }
            }
        }
        pair.look();
    });
}

/// Each of these changes something, so each gets a tree of its own.
#[test]
fn changing_things_through_symbolic_links_is_as_on_linux() {
    let mut all: Vec<String> = paths();
    all.retain(|path| !path.contains("//"));
    same_as_linux(|pair| {
        let root = Credentials::user(0, 0, &[]);
        plant(pair);
        for path in &all {
            // Removes the created files again, at any path.
            for flags in [CREATE, EXCL, CREATE | NOFOLLOW, EXCL | NOFOLLOW] {
                pair.ask(&root, Op::OpenClose(path, flags, 0o640));
                for made in ["/nothing", "/x", "/d/x", "/d/sub/x"] {
                    pair.ask(&root, Op::Unlink(made));
                }
            }
            for make in [
                Op::Mkdir(path, 0o750),
                Op::Mknod(path, FileKind::Fifo, 0o600, 0),
                Op::Symlink("t", path),
                Op::Link("/d/f", Follow::No, path),
                Op::Link(path, Follow::Yes, "/new"),
                Op::Link(path, Follow::No, "/new"),
                Op::Truncate(path, 3),
            ] {
                pair.ask(&root, make);
                for made in ["/nothing", "/x", "/d/x", "/d/sub/x", "/new"] {
                    pair.ask(&root, Op::Unlink(made));
                    pair.ask(&root, Op::Rmdir(made));
                }
            }
            for follow in [Follow::Yes, Follow::No] {
                pair.ask(&root, Op::Chmod(path, follow, 0o751));
                pair.ask(&root, Op::Chown(path, follow, Some(3), None));
                pair.ask(&root, Op::Chown(path, follow, Some(0), None));
                pair.ask(&root, Op::Utimens(path, follow, SetTime::Now, SetTime::Now));
                let any = XattrMode::Any;
                pair.ask(&root, Op::Setxattr(path, follow, "user.a", b"1", any));
                pair.ask(&root, Op::Setxattr(path, follow, "trusted.a", b"1", any));
                pair.ask(&root, Op::Getxattr(path, follow, "trusted.a"));
                pair.ask(&root, Op::Getxattr(path, follow, "user.a"));
                pair.ask(&root, Op::Removexattr(path, follow, "trusted.a"));
            }
        }
        pair.look();
    });
}

#[test]
fn taking_names_away_through_symbolic_links_is_as_on_linux() {
    let all = paths();
    for ends in ["", "/", "/.", "/..", "/f", "/sub/"] {
        same_as_linux(|pair| {
            let root = Credentials::user(0, 0, &[]);
            plant(pair);
            for path in all.iter().filter(|path| path.ends_with(ends)) {
                pair.ask(
                    &root,
                    Op::Rename(path, "/d/sub/moved", RenameFlags::empty()),
                );
                pair.ask(
                    &root,
                    Op::Rename("/d/sub/moved", path, RenameFlags::empty()),
                );
                pair.ask(&root, Op::Rmdir(path));
                pair.ask(&root, Op::Unlink(path));
            }
            pair.look();
        });
    }
}

// Following a link leaves its time of access alone here, so nothing is followed whose time is due.
#[test]
fn links_and_their_times_change_as_on_linux() {
    same_as_linux(|pair| {
        let root = Credentials::user(0, 0, &[]);
        let user = Credentials::user(7, 8, &[]);
        plant(pair);
        pair.look();
        pair.step(&root, Op::Symlink("f", "/new"));
        pair.step(&root, Op::Readlink("/new"));
        pair.step(&root, Op::Readlink("/new"));
        pair.step(&root, Op::OpenClose("/new", RO, 0));
        pair.step(&root, Op::Stat("/new", Follow::No));
        pair.step(&root, Op::Chown("/new", Follow::No, Some(7), Some(8)));
        pair.step(&root, Op::Readlink("/new"));
        pair.step(&root, Op::Chown("/new", Follow::Yes, Some(7), Some(8)));
        pair.step(&user, Op::Chown("/new", Follow::No, None, Some(8)));
        pair.step(&user, Op::Chown("/new", Follow::No, None, Some(9)));
        let then = SetTime::To(adit_base::clock::Timestamp {
            seconds: 1000,
            nanoseconds: 5,
        });
        pair.step(&user, Op::Utimens("/new", Follow::No, then, SetTime::Omit));
        pair.step(&user, Op::Readlink("/new"));
        pair.step(&user, Op::Utimens("/self", Follow::No, then, SetTime::Omit));
        pair.step(
            &user,
            Op::Utimens("/self", Follow::No, SetTime::Now, SetTime::Now),
        );
        pair.step(&root, Op::Link("/new", Follow::No, "/other"));
        pair.step(&root, Op::Readlink("/new"));
        pair.step(&root, Op::Link("/new", Follow::Yes, "/another"));
        pair.step(
            &root,
            Op::Rename("/other", "/d/moved", RenameFlags::empty()),
        );
        pair.step(&root, Op::Rename("/d/moved", "/f", RenameFlags::empty()));
        pair.step(&root, Op::Unlink("/new"));
        pair.step(&root, Op::Open(1, "/self", PATH | NOFOLLOW, 0o644));
        pair.step(&root, Op::Fstat(1));
        pair.step(&root, Op::Fchmod(1, 0o600));
        pair.step(&root, Op::Fchown(1, Some(1), None));
        pair.step(&root, Op::Unlink("/self"));
        pair.step(&root, Op::Fstat(1));
        pair.step(&root, Op::Close(1));
    });
}

/// Short, just inline, just not, and as long as can be.
const LENGTHS: [usize; 8] = [1, 303, 304, 305, 1000, 4000, 4094, 4095];

fn long_target(len: usize) -> String {
    let mut target = "component/".repeat(len / 10 + 1);
    target.truncate(len);
    target
}

fn says(volume: &Volume, path: &str) -> String {
    let text = volume.run(|fs| fs.read_link(at(path))).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn a_target_of_any_length_is_returned_also_after_a_reopening_and_a_crash() {
    let device = FaultDevice::new(FaultConfig {
        size_bytes: 64 << 20,
        ..FaultConfig::default()
    });
    let volume = Volume::format(device.clone(), 16 << 20);
    let symlink = |volume: &Volume, len: usize| {
        let (target, path) = (long_target(len), format!("/{len}"));
        volume.run(|fs| fs.symlink(target.as_bytes(), at(&path)))
    };
    let all_there = |volume: &Volume| {
        for len in LENGTHS {
            let path = format!("/{len}");
            assert_eq!(says(volume, &path), long_target(len));
            assert_eq!(volume.stat(&path).unwrap().size_bytes, len as u64);
        }
        assert_eq!(volume.check(), [""; 0]);
    };
    for len in LENGTHS {
        let stat = symlink(&volume, len).unwrap();
        assert_eq!((stat.size_bytes, stat.mode), (len as u64, 0o120_777));
    }
    assert_eq!(symlink(&volume, 4096).map(drop), Err(Errno::NAMETOOLONG));
    assert_eq!(symlink(&volume, 0).map(drop), Err(Errno::NOENT));
    all_there(&volume);
    volume.sync().unwrap();
    let image = device.power_cut(&mut adit_base::random::Prng::new(1));
    drop(volume);
    let device = device.reopen(image);
    let volume = Volume::open_on(device.clone(), 16 << 20);
    all_there(&volume);
    volume.close_volume();
    let volume = Volume::open_on(device, 16 << 20);
    all_there(&volume);
    let free = volume.free_bytes();
    for len in LENGTHS {
        volume.unlink(&format!("/{len}")).unwrap();
    }
    volume.sync().unwrap();
    assert!(volume.free_bytes() > free, "long targets have a page");
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn forty_links_are_followed_and_not_forty_one() {
    let volume = Volume::fresh();
    volume.put("/0", b"end").unwrap();
    for number in 1..=41 {
        let target = format!("{}", number - 1);
        let path = format!("/{number}");
        volume
            .run(|fs| fs.symlink(target.as_bytes(), at(&path)))
            .unwrap();
    }
    assert_eq!(volume.get("/40").unwrap(), b"end");
    assert_eq!(volume.get("/41"), Err(Errno::LOOP));
    // All links on the way count, anywhere in the path.
    volume.run(|fs| fs.symlink(b".", at("/dot"))).unwrap();
    let dots = |number: usize| format!("/{}0", "dot/".repeat(number));
    assert_eq!(volume.get(&dots(40)).unwrap(), b"end");
    assert_eq!(volume.get(&dots(41)), Err(Errno::LOOP));
    assert!(volume.stat("/41").is_ok());
}

#[test]
fn a_target_of_4095_bytes_in_a_path_of_4095_bytes_is_followed() {
    let volume = Volume::fresh();
    volume.put("/f", b"end").unwrap();
    let target = format!("{}/", "./".repeat(2047));
    assert_eq!(target.len(), 4095);
    volume
        .run(|fs| fs.symlink(target.as_bytes(), at("/l")))
        .unwrap();
    let path = format!("/l/{}f", "./".repeat(2045));
    let path = format!("{}{path}", "/".repeat(4095 - path.len()));
    assert_eq!(volume.get(&path).unwrap(), b"end");
    assert_eq!(volume.get(&format!("/{path}")), Err(Errno::NAMETOOLONG));
}

#[test]
fn creating_through_a_dangling_link_makes_what_it_names() {
    let volume = Volume::fresh();
    volume.mkdir("/d").unwrap();
    volume.run(|fs| fs.symlink(b"d/new", at("/l"))).unwrap();
    assert_eq!(volume.open("/l", EXCL).map(drop), Err(Errno::EXIST));
    assert_eq!(
        volume.open("/l", CREATE | NOFOLLOW).map(drop),
        Err(Errno::LOOP)
    );
    assert_eq!(volume.list("/d"), [""; 0]);
    volume.put("/l", b"x").unwrap();
    assert_eq!(volume.get("/d/new").unwrap(), b"x");
    assert_eq!(says(&volume, "/l"), "d/new");
}

/// `/link -> ../f` opened `/f` of the volume, where the caller sees its root as `/adit`: there the
/// link means the `/f` above.
#[test]
fn a_link_does_not_lead_out_of_where_the_root_is_seen() {
    let volume = Volume::fresh();
    volume.mkdir("/d").unwrap();
    volume.put("/f", b"x").unwrap();
    for (target, name) in [("../f", "/up"), ("/f", "/absolute"), ("../../f", "/d/up")] {
        volume
            .run(|fs| fs.symlink(target.as_bytes(), at(name)))
            .unwrap();
        let seen = || at(name).links_below(b"/adit");
        let found = volume.run(|fs| fs.stat(seen(), Follow::Yes));
        assert_eq!(found.map(drop), Err(Errno::XDEV), "{name}");
        assert!(volume.run(|fs| fs.stat(at(name), Follow::Yes)).is_ok());
    }
    let below = at("/d/../f").links_below(b"/adit");
    assert!(volume.run(|fs| fs.stat(below, Follow::Yes)).is_ok());
}
