//! Who may do what: permission bits on the way and at the end, sticky directories, set-ID bits.

use crate::common::linux::{Pair, same_as_linux};
use crate::common::steps::Do;
use crate::common::*;
use adit_fs::*;

const NONE: RenameFlags = RenameFlags::empty();
const CUT: OpenFlags = OpenFlags::TRUNCATE;
const WRITE: OpenFlags = OpenFlags::WRITE_ONLY;

fn root() -> Credentials {
    Credentials::user(0, 0, &[])
}

/// Root, the owner, somebody of the group, somebody with it as supplementary group, and a stranger.
fn people() -> [Credentials; 5] {
    [
        root(),
        Credentials::user(10, 20, &[]),
        Credentials::user(11, 20, &[]),
        Credentials::user(12, 22, &[30, 20]),
        Credentials::user(13, 23, &[31]),
    ]
}

/// Makes something that belongs to user 10 and group 20.
fn give(pair: &mut Pair, path: &str, mode: u32) {
    pair.ask(&root(), Do::Owner(path, Follow::No, Some(10), Some(20)));
    pair.ask(&root(), Do::Mode(path, Follow::Yes, mode));
}

const MODES: [u32; 14] = [
    0o000, 0o100, 0o200, 0o300, 0o400, 0o500, 0o700, 0o070, 0o030, 0o007, 0o003, 0o001, 0o077,
    0o755,
];

/// Everything that can be done to `/d/e/f` and `/d/e/new`.
fn all_operations<'a>() -> Vec<Do<'a>> {
    let (f, new) = ("/d/e/f", "/d/e/new");
    let any = XattrMode::Any;
    vec![
        Do::Stat(f, Follow::Yes),
        Do::Stat(new, Follow::Yes),
        Do::Stat("/d/e", Follow::Yes),
        Do::Stat("/d/e/.", Follow::Yes),
        Do::Stat("/d/e/..", Follow::Yes),
        Do::Open(f, RO, 0),
        Do::Open(f, RW, 0),
        Do::Open(f, WRITE, 0),
        Do::Open(f, CUT, 0),
        Do::Open(f, OpenFlags::NOATIME, 0),
        Do::Open(f, OpenFlags::PATH, 0),
        Do::Open(f, OpenFlags::from_bits_retain(3), 0),
        Do::Open(f, CREATE, 0o600),
        Do::Open(f, CREATE | OpenFlags::EXCLUSIVE, 0o600),
        Do::Open("/d/e", RO, 0),
        Do::Open("/d/e", RW, 0),
        Do::Open("/d/e", CUT, 0),
        Do::Open("/d/e", OpenFlags::NOATIME, 0),
        Do::Open(new, RO, 0),
        Do::Open(new, CREATE, 0o000),
        Do::Unlink(new),
        Do::Open(new, CREATE | OpenFlags::NOATIME, 0o4777),
        Do::Unlink(new),
        Do::Mkdir(new, 0o7777),
        Do::Mkdir(f, 0o777),
        Do::Rmdir(new),
        Do::Rmdir(f),
        Do::Unlink("/d/e"),
        Do::Rmdir("/d/e"),
        Do::Unlink("/d/e/sub"),
        Do::Symlink("t", new),
        Do::Symlink("t", f),
        Do::ReadLink(new),
        Do::ReadLink(f),
        Do::Unlink(new),
        Do::Node(new, FileKind::Fifo, 0o666, 0),
        Do::Open(new, OpenFlags::PATH, 0),
        Do::Unlink(new),
        Do::Node(new, FileKind::Socket, 0o666, 0),
        Do::Open(new, WRITE, 0),
        Do::Unlink(new),
        Do::Node(new, FileKind::File, 0o6666, 0),
        Do::Unlink(new),
        Do::Node(new, FileKind::BlockDevice, 0o666, 0x102),
        Do::Unlink(new),
        Do::Node(new, FileKind::CharDevice, 0o666, 0),
        Do::Unlink(new),
        Do::Node(f, FileKind::CharDevice, 0o666, 0x103),
        Do::Node(new, FileKind::Directory, 0o666, 0),
        Do::Node("/nowhere/x", FileKind::Directory, 0o666, 0),
        Do::Node("/nowhere/x", FileKind::Symlink, 0o666, 0),
        Do::Link("/own", Follow::No, new),
        Do::Link("/own", Follow::No, f),
        Do::Link("/d/e/sub", Follow::No, new),
        Do::Link("/d/e/sub", Follow::No, f),
        Do::Unlink(new),
        Do::Rename(f, new, NONE),
        Do::Rename(new, f, NONE),
        Do::Rename(f, "/free/f", NONE),
        Do::Rename("/free/f", f, NONE),
        Do::Rename(f, f, NONE),
        Do::Rename(f, "/d/e/sub", NONE),
        Do::Rename("/d/e/sub", f, NONE),
        Do::Rename("/d/e/sub", "/free/sub", NONE),
        Do::Rename("/free/sub", "/d/e/sub", NONE),
        Do::Rename("/free/dir", f, NONE),
        Do::Rename("/free/dir", "/d/e/sub", NONE),
        Do::Mkdir("/free/dir", 0o700),
        Do::Rename(f, "/free/dir", NONE),
        Do::Rename(f, "/free/g", RenameFlags::EXCHANGE),
        Do::Rename(f, "/free/g", RenameFlags::EXCHANGE),
        Do::Rename("/d/e/sub", "/free/g", RenameFlags::EXCHANGE),
        Do::Rename("/d/e/sub", "/free/g", RenameFlags::EXCHANGE),
        Do::Rename(f, "/free/g", RenameFlags::NO_REPLACE),
        Do::Rename("/d/e", "/d/e/sub/x", NONE),
        Do::Rename("/d/e/sub", "/d", NONE),
        Do::Size(f, 5),
        Do::Size("/d/e", 5),
        Do::Mode(f, Follow::Yes, 0o6755),
        Do::Mode(f, Follow::Yes, 0o2644),
        Do::Mode("/d/e/sub", Follow::Yes, 0o3777),
        Do::Owner(f, Follow::Yes, None, None),
        Do::Owner(f, Follow::Yes, Some(10), None),
        Do::Owner(f, Follow::Yes, Some(11), None),
        Do::Owner(f, Follow::Yes, None, Some(20)),
        Do::Owner(f, Follow::Yes, None, Some(30)),
        Do::Owner(f, Follow::Yes, None, Some(99)),
        Do::Owner("/d/e/sub", Follow::Yes, Some(10), Some(20)),
        Do::Owner(f, Follow::Yes, Some(10), Some(20)),
        Do::Times(f, Follow::Yes, SetTime::Now, SetTime::Now),
        Do::Times(f, Follow::Yes, SetTime::Now, SetTime::Omit),
        Do::Times(f, Follow::Yes, SetTime::Omit, SetTime::Omit),
        Do::Times("/d/e", Follow::Yes, SetTime::Now, SetTime::Now),
        Do::Access(f, Follow::Yes, Access::empty()),
        Do::Access(f, Follow::Yes, Access::READ),
        Do::Access(f, Follow::Yes, Access::WRITE),
        Do::Access(f, Follow::Yes, Access::EXECUTE),
        Do::Access(f, Follow::Yes, Access::all()),
        Do::Access("/d/e", Follow::Yes, Access::READ),
        Do::Access("/d/e", Follow::Yes, Access::WRITE | Access::EXECUTE),
        Do::Get(f, Follow::Yes, "user.x"),
        Do::Set(f, Follow::Yes, "user.x", b"1", any),
        Do::Get(f, Follow::Yes, "user.x"),
        Do::Names(f, Follow::Yes),
        Do::Remove(f, Follow::Yes, "user.x"),
        Do::Remove(f, Follow::Yes, "user.x"),
    ]
}

fn plant(pair: &mut Pair) {
    for path in ["/d", "/d/e", "/d/e/sub", "/free", "/free/dir"] {
        pair.ask(&root(), Do::Mkdir(path, 0o755));
    }
    for path in ["/d/e/f", "/own", "/free/g"] {
        pair.ask(&root(), Do::Open(path, CREATE, 0o644));
    }
    // Hard links to what others own are the kernel's settings' business (fs.protected_hardlinks).
    pair.ask(&root(), Do::Mode("/own", Follow::Yes, 0o666));
    pair.ask(&root(), Do::Mode("/free", Follow::Yes, 0o777));
    for path in ["/d", "/d/e", "/d/e/sub", "/d/e/f"] {
        pair.ask(&root(), Do::Owner(path, Follow::No, Some(10), Some(20)));
    }
}

/// Every operation with every mode on `victim`, by everybody.
fn everybody_tries(victim: &str, modes: &[u32], usual: u32) {
    same_as_linux(|pair| {
        plant(pair);
        for mode in modes {
            for who in people() {
                // Modes are given anew before each operation, since the owner may have changed them.
                for step in all_operations() {
                    // By others: see `plant`.
                    let of_a_directory = matches!(step, Do::Link("/d/e/sub", ..));
                    if of_a_directory && ![0, 10].contains(&who.uid) {
                        continue;
                    }
                    give(pair, "/d/e/f", 0o644);
                    give(pair, "/d/e/sub", 0o755);
                    give(pair, victim, *mode);
                    pair.ask(&who, step);
                    give(pair, victim, usual);
                }
                pair.look();
            }
        }
    });
}

#[test]
fn permission_bits_of_a_directory_on_the_way_decide_as_on_linux() {
    everybody_tries("/d", &MODES, 0o755);
}

#[test]
fn permission_bits_of_the_parent_decide_as_on_linux() {
    everybody_tries("/d/e", &MODES, 0o755);
}

#[test]
fn permission_bits_of_a_file_decide_as_on_linux() {
    let mut modes = MODES.to_vec();
    modes.extend([0o4755, 0o2755, 0o2745, 0o6777, 0o1777, 0o6700]);
    everybody_tries("/d/e/f", &modes, 0o644);
}

#[test]
fn permission_bits_of_a_moved_directory_decide_as_on_linux() {
    everybody_tries("/d/e/sub", &MODES, 0o755);
}

#[test]
fn a_sticky_or_set_group_id_directory_decides_as_on_linux() {
    everybody_tries(
        "/d/e",
        &[0o1777, 0o1770, 0o1775, 0o2777, 0o2770, 0o3777, 0o7777],
        0o755,
    );
}

#[test]
fn in_a_sticky_directory_everybody_removes_what_is_theirs_as_on_linux() {
    same_as_linux(|pair| {
        let owners = [0, 10, 11, 13];
        for directory_owner in owners {
            for (victim_owner, who) in owners
                .into_iter()
                .flat_map(|owner| people().map(|who| (owner, who)))
            {
                let root = root();
                pair.ask(&root, Do::Mkdir("/s", 0));
                pair.ask(&root, Do::Mkdir("/free", 0));
                pair.ask(&root, Do::Mkdir("/s/sub", 0));
                pair.ask(&root, Do::Mode("/s", Follow::Yes, 0o1777));
                pair.ask(&root, Do::Mode("/free", Follow::Yes, 0o777));
                pair.ask(&root, Do::Mode("/s/sub", Follow::Yes, 0o777));
                pair.ask(&root, Do::Open("/s/f", CREATE, 0o666));
                pair.ask(&root, Do::Symlink("f", "/s/l"));
                for path in ["/s/f", "/s/l", "/s/sub"] {
                    pair.ask(&root, Do::Owner(path, Follow::No, Some(victim_owner), None));
                }
                pair.ask(
                    &root,
                    Do::Owner("/s", Follow::No, Some(directory_owner), None),
                );
                pair.ask(&who, Do::Open("/free/g", CREATE, 0o666));
                pair.ask(&who, Do::Rename("/free/g", "/s/f", NONE));
                pair.ask(&who, Do::Open("/free/g", CREATE, 0o666));
                pair.ask(&who, Do::Rename("/s/f", "/free/g", RenameFlags::EXCHANGE));
                pair.ask(&who, Do::Rename("/s/f", "/s/other", NONE));
                pair.ask(&who, Do::Rename("/s/sub", "/free/sub", NONE));
                pair.ask(&who, Do::Unlink("/s/sub"));
                pair.ask(&who, Do::Rmdir("/s/f"));
                pair.ask(&who, Do::Rmdir("/s/sub"));
                pair.ask(&who, Do::Unlink("/s/f"));
                pair.ask(&who, Do::Unlink("/s/l"));
                pair.look();
                for path in ["/s/f", "/s/l", "/s/other", "/s/g", "/free/g", "/free/f"] {
                    pair.ask(&root, Do::Unlink(path));
                }
                for path in ["/s/sub", "/free/sub", "/s", "/free"] {
                    pair.ask(&root, Do::Rmdir(path));
                }
            }
        }
    });
}

#[test]
fn new_inodes_belong_to_whom_linux_gives_them() {
    same_as_linux(|pair| {
        for mode in [0o777, 0o2777, 0o3777, 0o6777] {
            for who in people() {
                pair.ask(&root(), Do::Mkdir("/d", 0));
                give(pair, "/d", mode);
                for bits in [0o644, 0o755, 0o2755, 0o2745, 0o6777, 0o7777, 0o000] {
                    pair.ask(&who, Do::Open("/d/f", CREATE, bits));
                    pair.ask(&who, Do::Mkdir("/d/d", bits));
                    pair.ask(&who, Do::Symlink("t", "/d/l"));
                    pair.ask(&who, Do::Node("/d/p", FileKind::Fifo, bits, 7));
                    pair.ask(&who, Do::Node("/d/n", FileKind::File, bits, 7));
                    pair.ask(&who, Do::Node("/d/c", FileKind::CharDevice, bits, 0x0507));
                    pair.look();
                    for path in ["/d/f", "/d/l", "/d/p", "/d/n", "/d/c"] {
                        pair.ask(&root(), Do::Unlink(path));
                    }
                    pair.ask(&root(), Do::Rmdir("/d/d"));
                }
                pair.ask(&root(), Do::Rmdir("/d"));
            }
        }
    });
}

#[test]
fn set_id_bits_come_and_go_as_on_linux() {
    same_as_linux(|pair| {
        pair.ask(&root(), Do::Open("/f", CREATE, 0));
        for mode in [0o4777, 0o2777, 0o6777, 0o2767, 0o6767, 0o7777, 0o777] {
            for who in people() {
                let changes: [&dyn Fn(&mut Pair); 12] = [
                    &|pair| pair.step(&who, Do::Write(1, 0, b"x")),
                    &|pair| pair.step(&who, Do::Write(1, 0, b"")),
                    &|pair| pair.step(&who, Do::Size("/f", 10)),
                    &|pair| pair.step(&who, Do::FileSize(1, 20)),
                    &|pair| pair.step(&who, Do::Open("/f", WRITE | CUT, 0)),
                    &|pair| pair.step(&who, Do::Allocate(1, AllocateFlags::empty(), 0, 9000)),
                    &|pair| pair.step(&who, Do::Owner("/f", Follow::Yes, None, None)),
                    &|pair| pair.step(&who, Do::Owner("/f", Follow::Yes, Some(10), None)),
                    &|pair| pair.step(&who, Do::Owner("/f", Follow::Yes, None, Some(20))),
                    &|pair| pair.step(&who, Do::Mode("/f", Follow::Yes, mode)),
                    &|pair| {
                        pair.step(
                            &who,
                            Do::Times("/f", Follow::Yes, SetTime::Now, SetTime::Now),
                        )
                    },
                    &|pair| {
                        pair.step(
                            &who,
                            Do::Set("/f", Follow::Yes, "user.a", b"1", XattrMode::Any),
                        )
                    },
                ];
                for change in changes {
                    give(pair, "/f", mode);
                    pair.ask(&root(), Do::Remove("/f", Follow::Yes, "user.a"));
                    pair.ask(&who, Do::Keep(1, "/f", RW));
                    pair.look();
                    change(pair);
                    pair.ask(&root(), Do::Close(1));
                }
            }
        }
    });
}
