//! Permissions: bits on the way and at the end, sticky directories, set-ID bits.

use crate::common::linux::{Pair, same_as_linux};
use crate::common::*;
use adit_fs::*;
use adit_operations::Call as Op;

const NONE: RenameFlags = RenameFlags::empty();
const CUT: OpenFlags = OpenFlags::TRUNCATE;
const WRITE: OpenFlags = OpenFlags::WRITE_ONLY;

fn root() -> Credentials {
    Credentials::user(0, 0, &[])
}

/// Root, the owner, a member of the group, a user with it as supplementary group, and a stranger.
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
    pair.ask(&root(), Op::Chown(path, Follow::No, Some(10), Some(20)));
    pair.ask(&root(), Op::Chmod(path, Follow::Yes, mode));
}

const MODES: [u32; 14] = [
    0o000, 0o100, 0o200, 0o300, 0o400, 0o500, 0o700, 0o070, 0o030, 0o007, 0o003, 0o001, 0o077,
    0o755,
];

/// Everything that can be done to `/d/e/f` and `/d/e/new`.
fn all_operations<'a>() -> Vec<Op<'a>> {
    let (f, new) = ("/d/e/f", "/d/e/new");
    let any = XattrMode::Any;
    vec![
        Op::Stat(f, Follow::Yes),
        Op::Stat(new, Follow::Yes),
        Op::Stat("/d/e", Follow::Yes),
        Op::Stat("/d/e/.", Follow::Yes),
        Op::Stat("/d/e/..", Follow::Yes),
        Op::OpenClose(f, RO, 0),
        Op::OpenClose(f, RW, 0),
        Op::OpenClose(f, WRITE, 0),
        Op::OpenClose(f, CUT, 0),
        Op::OpenClose(f, OpenFlags::NOATIME, 0),
        Op::OpenClose(f, OpenFlags::PATH, 0),
        Op::OpenClose(f, OpenFlags::from_bits_retain(3), 0),
        Op::OpenClose(f, CREATE, 0o600),
        Op::OpenClose(f, CREATE | OpenFlags::EXCLUSIVE, 0o600),
        Op::OpenClose("/d/e", RO, 0),
        Op::OpenClose("/d/e", RW, 0),
        Op::OpenClose("/d/e", CUT, 0),
        Op::OpenClose("/d/e", OpenFlags::NOATIME, 0),
        Op::OpenClose(new, RO, 0),
        Op::OpenClose(new, CREATE, 0o000),
        Op::Unlink(new),
        Op::OpenClose(new, CREATE | OpenFlags::NOATIME, 0o4777),
        Op::Unlink(new),
        Op::Mkdir(new, 0o7777),
        Op::Mkdir(f, 0o777),
        Op::Rmdir(new),
        Op::Rmdir(f),
        Op::Unlink("/d/e"),
        Op::Rmdir("/d/e"),
        Op::Unlink("/d/e/sub"),
        Op::Symlink("t", new),
        Op::Symlink("t", f),
        Op::Readlink(new),
        Op::Readlink(f),
        Op::Unlink(new),
        Op::Mknod(new, FileKind::Fifo, 0o666, 0),
        Op::OpenClose(new, OpenFlags::PATH, 0),
        Op::Unlink(new),
        Op::Mknod(new, FileKind::Socket, 0o666, 0),
        Op::OpenClose(new, WRITE, 0),
        Op::Unlink(new),
        Op::Mknod(new, FileKind::File, 0o6666, 0),
        Op::Unlink(new),
        Op::Mknod(new, FileKind::BlockDevice, 0o666, 0x102),
        Op::Unlink(new),
        Op::Mknod(new, FileKind::CharDevice, 0o666, 0),
        Op::Unlink(new),
        Op::Mknod(f, FileKind::CharDevice, 0o666, 0x103),
        Op::Mknod(new, FileKind::Directory, 0o666, 0),
        Op::Mknod("/nowhere/x", FileKind::Directory, 0o666, 0),
        Op::Mknod("/nowhere/x", FileKind::Symlink, 0o666, 0),
        Op::Link("/own", Follow::No, new),
        Op::Link("/own", Follow::No, f),
        Op::Link("/d/e/sub", Follow::No, new),
        Op::Link("/d/e/sub", Follow::No, f),
        Op::Unlink(new),
        Op::Rename(f, new, NONE),
        Op::Rename(new, f, NONE),
        Op::Rename(f, "/free/f", NONE),
        Op::Rename("/free/f", f, NONE),
        Op::Rename(f, f, NONE),
        Op::Rename(f, "/d/e/sub", NONE),
        Op::Rename("/d/e/sub", f, NONE),
        Op::Rename("/d/e/sub", "/free/sub", NONE),
        Op::Rename("/free/sub", "/d/e/sub", NONE),
        Op::Rename("/free/dir", f, NONE),
        Op::Rename("/free/dir", "/d/e/sub", NONE),
        Op::Mkdir("/free/dir", 0o700),
        Op::Rename(f, "/free/dir", NONE),
        Op::Rename(f, "/free/g", RenameFlags::EXCHANGE),
        Op::Rename(f, "/free/g", RenameFlags::EXCHANGE),
        Op::Rename("/d/e/sub", "/free/g", RenameFlags::EXCHANGE),
        Op::Rename("/d/e/sub", "/free/g", RenameFlags::EXCHANGE),
        Op::Rename(f, "/free/g", RenameFlags::NO_REPLACE),
        Op::Rename("/d/e", "/d/e/sub/x", NONE),
        Op::Rename("/d/e/sub", "/d", NONE),
        Op::Truncate(f, 5),
        Op::Truncate("/d/e", 5),
        Op::Chmod(f, Follow::Yes, 0o6755),
        Op::Chmod(f, Follow::Yes, 0o2644),
        Op::Chmod("/d/e/sub", Follow::Yes, 0o3777),
        Op::Chown(f, Follow::Yes, None, None),
        Op::Chown(f, Follow::Yes, Some(10), None),
        Op::Chown(f, Follow::Yes, Some(11), None),
        Op::Chown(f, Follow::Yes, None, Some(20)),
        Op::Chown(f, Follow::Yes, None, Some(30)),
        Op::Chown(f, Follow::Yes, None, Some(99)),
        Op::Chown("/d/e/sub", Follow::Yes, Some(10), Some(20)),
        Op::Chown(f, Follow::Yes, Some(10), Some(20)),
        Op::Utimens(f, Follow::Yes, SetTime::Now, SetTime::Now),
        Op::Utimens(f, Follow::Yes, SetTime::Now, SetTime::Omit),
        Op::Utimens(f, Follow::Yes, SetTime::Omit, SetTime::Omit),
        Op::Utimens("/d/e", Follow::Yes, SetTime::Now, SetTime::Now),
        Op::Access(f, Follow::Yes, Access::empty()),
        Op::Access(f, Follow::Yes, Access::READ),
        Op::Access(f, Follow::Yes, Access::WRITE),
        Op::Access(f, Follow::Yes, Access::EXECUTE),
        Op::Access(f, Follow::Yes, Access::all()),
        Op::Access("/d/e", Follow::Yes, Access::READ),
        Op::Access("/d/e", Follow::Yes, Access::WRITE | Access::EXECUTE),
        Op::Getxattr(f, Follow::Yes, "user.x"),
        Op::Setxattr(f, Follow::Yes, "user.x", b"1", any),
        Op::Getxattr(f, Follow::Yes, "user.x"),
        Op::Listxattr(f, Follow::Yes),
        Op::Removexattr(f, Follow::Yes, "user.x"),
        Op::Removexattr(f, Follow::Yes, "user.x"),
    ]
}

fn plant(pair: &mut Pair) {
    for path in ["/d", "/d/e", "/d/e/sub", "/free", "/free/dir"] {
        pair.ask(&root(), Op::Mkdir(path, 0o755));
    }
    for path in ["/d/e/f", "/own", "/free/g"] {
        pair.ask(&root(), Op::OpenClose(path, CREATE, 0o644));
    }
    // The kernel's settings decide about hard links to other users' files (fs.protected_hardlinks).
    pair.ask(&root(), Op::Chmod("/own", Follow::Yes, 0o666));
    pair.ask(&root(), Op::Chmod("/free", Follow::Yes, 0o777));
    for path in ["/d", "/d/e", "/d/e/sub", "/d/e/f"] {
        pair.ask(&root(), Op::Chown(path, Follow::No, Some(10), Some(20)));
    }
}

/// Every operation with every mode on `victim`, by everybody.
fn everybody_tries(victim: &str, modes: &[u32], usual: u32) {
    same_as_linux(|pair| {
        plant(pair);
        for mode in modes {
            for who in people() {
                // Modes are given anew before each operation, since the owner may have changed
                // them.
                for step in all_operations() {
                    // By others: see `plant`.
                    let of_a_directory = matches!(step, Op::Link("/d/e/sub", ..));
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
                pair.ask(&root, Op::Mkdir("/s", 0));
                pair.ask(&root, Op::Mkdir("/free", 0));
                pair.ask(&root, Op::Mkdir("/s/sub", 0));
                pair.ask(&root, Op::Chmod("/s", Follow::Yes, 0o1777));
                pair.ask(&root, Op::Chmod("/free", Follow::Yes, 0o777));
                pair.ask(&root, Op::Chmod("/s/sub", Follow::Yes, 0o777));
                pair.ask(&root, Op::OpenClose("/s/f", CREATE, 0o666));
                pair.ask(&root, Op::Symlink("f", "/s/l"));
                for path in ["/s/f", "/s/l", "/s/sub"] {
                    pair.ask(&root, Op::Chown(path, Follow::No, Some(victim_owner), None));
                }
                pair.ask(
                    &root,
                    Op::Chown("/s", Follow::No, Some(directory_owner), None),
                );
                pair.ask(&who, Op::OpenClose("/free/g", CREATE, 0o666));
                pair.ask(&who, Op::Rename("/free/g", "/s/f", NONE));
                pair.ask(&who, Op::OpenClose("/free/g", CREATE, 0o666));
                pair.ask(&who, Op::Rename("/s/f", "/free/g", RenameFlags::EXCHANGE));
                pair.ask(&who, Op::Rename("/s/f", "/s/other", NONE));
                pair.ask(&who, Op::Rename("/s/sub", "/free/sub", NONE));
                pair.ask(&who, Op::Unlink("/s/sub"));
                pair.ask(&who, Op::Rmdir("/s/f"));
                pair.ask(&who, Op::Rmdir("/s/sub"));
                pair.ask(&who, Op::Unlink("/s/f"));
                pair.ask(&who, Op::Unlink("/s/l"));
                pair.look();
                for path in ["/s/f", "/s/l", "/s/other", "/s/g", "/free/g", "/free/f"] {
                    pair.ask(&root, Op::Unlink(path));
                }
                for path in ["/s/sub", "/free/sub", "/s", "/free"] {
                    pair.ask(&root, Op::Rmdir(path));
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
                pair.ask(&root(), Op::Mkdir("/d", 0));
                give(pair, "/d", mode);
                for bits in [0o644, 0o755, 0o2755, 0o2745, 0o6777, 0o7777, 0o000] {
                    pair.ask(&who, Op::OpenClose("/d/f", CREATE, bits));
                    pair.ask(&who, Op::Mkdir("/d/d", bits));
                    pair.ask(&who, Op::Symlink("t", "/d/l"));
                    pair.ask(&who, Op::Mknod("/d/p", FileKind::Fifo, bits, 7));
                    pair.ask(&who, Op::Mknod("/d/n", FileKind::File, bits, 7));
                    pair.ask(&who, Op::Mknod("/d/c", FileKind::CharDevice, bits, 0x0507));
                    pair.look();
                    for path in ["/d/f", "/d/l", "/d/p", "/d/n", "/d/c"] {
                        pair.ask(&root(), Op::Unlink(path));
                    }
                    pair.ask(&root(), Op::Rmdir("/d/d"));
                }
                pair.ask(&root(), Op::Rmdir("/d"));
            }
        }
    });
}

#[test]
fn set_id_bits_come_and_go_as_on_linux() {
    same_as_linux(|pair| {
        pair.ask(&root(), Op::OpenClose("/f", CREATE, 0));
        for mode in [0o4777, 0o2777, 0o6777, 0o2767, 0o6767, 0o7777, 0o777] {
            for who in people() {
                let changes: [&dyn Fn(&mut Pair); 12] = [
                    &|pair| pair.step(&who, Op::Write(1, 0, b"x")),
                    &|pair| pair.step(&who, Op::Write(1, 0, b"")),
                    &|pair| pair.step(&who, Op::Truncate("/f", 10)),
                    &|pair| pair.step(&who, Op::Ftruncate(1, 20)),
                    &|pair| pair.step(&who, Op::OpenClose("/f", WRITE | CUT, 0)),
                    &|pair| pair.step(&who, Op::Fallocate(1, AllocateFlags::empty(), 0, 9000)),
                    &|pair| pair.step(&who, Op::Chown("/f", Follow::Yes, None, None)),
                    &|pair| pair.step(&who, Op::Chown("/f", Follow::Yes, Some(10), None)),
                    &|pair| pair.step(&who, Op::Chown("/f", Follow::Yes, None, Some(20))),
                    &|pair| pair.step(&who, Op::Chmod("/f", Follow::Yes, mode)),
                    &|pair| {
                        pair.step(
                            &who,
                            Op::Utimens("/f", Follow::Yes, SetTime::Now, SetTime::Now),
                        )
                    },
                    &|pair| {
                        pair.step(
                            &who,
                            Op::Setxattr("/f", Follow::Yes, "user.a", b"1", XattrMode::Any),
                        )
                    },
                ];
                for change in changes {
                    give(pair, "/f", mode);
                    pair.ask(&root(), Op::Removexattr("/f", Follow::Yes, "user.a"));
                    pair.ask(&who, Op::Open(1, "/f", RW, 0o644));
                    pair.look();
                    change(pair);
                    pair.ask(&root(), Op::Close(1));
                }
            }
        }
    });
}
