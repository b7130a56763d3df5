//! Times, owners and modes: the changes of each operation, in the inode and its parents.

use crate::common::linux::{Pair, same_as_linux};
use crate::common::*;
use adit_base::clock::Timestamp;
use adit_fs::*;
use adit_operations::Call as Op;

const NONE: RenameFlags = RenameFlags::empty();
const EXCHANGE: RenameFlags = RenameFlags::EXCHANGE;

fn root() -> Credentials {
    Credentials::user(0, 0, &[])
}

fn time(seconds: i64, nanoseconds: u32) -> SetTime {
    SetTime::To(Timestamp {
        seconds,
        nanoseconds,
    })
}

/// Gives all nodes times of access that are not due, so that only visited ones change.
fn freshen(pair: &mut Pair, paths: &[&str]) {
    for path in paths {
        let omit = SetTime::Omit;
        pair.step(&root(), Op::Utimens(path, Follow::No, SetTime::Now, omit));
    }
}

#[test]
fn operations_on_names_change_the_times_that_they_change_on_linux() {
    same_as_linux(|pair| {
        let root = root();
        pair.step(&root, Op::Mkdir("/a", 0o755));
        pair.step(&root, Op::Mkdir("/b", 0o755));
        pair.step(&root, Op::Mkdir("/a/sub", 0o755));
        pair.step(&root, Op::Mkdir("/a/sub", 0o755));
        pair.step(&root, Op::OpenClose("/a/f", CREATE, 0o644));
        pair.step(&root, Op::OpenClose("/a/f", CREATE, 0o644));
        pair.step(&root, Op::OpenClose("/a/f", RO, 0));
        pair.step(
            &root,
            Op::OpenClose("/a/f", CREATE | OpenFlags::TRUNCATE, 0o644),
        );
        pair.step(&root, Op::Mknod("/a/p", FileKind::Fifo, 0o644, 0));
        pair.step(&root, Op::Symlink("t", "/a/l"));
        pair.step(&root, Op::Link("/a/f", Follow::No, "/b/g"));
        pair.step(&root, Op::Link("/a/f", Follow::No, "/b/g"));
        pair.step(&root, Op::Rename("/b/g", "/b/h", NONE));
        pair.step(&root, Op::Rename("/b/h", "/a/f", NONE));
        pair.step(&root, Op::Rename("/b/h", "/a/i", NONE));
        pair.step(&root, Op::Rename("/a/sub", "/b/sub", NONE));
        pair.step(&root, Op::Mkdir("/a/empty", 0o700));
        pair.step(&root, Op::Rename("/b/sub", "/a/empty", NONE));
        pair.step(&root, Op::Rename("/a/empty", "/a/f", NONE));
        pair.step(&root, Op::Rename("/a/empty", "/a/f", EXCHANGE));
        pair.step(&root, Op::Mkdir("/b/other", 0o700));
        pair.step(&root, Op::Rename("/a/f", "/b/other", EXCHANGE));
        pair.step(&root, Op::Rename("/a/l", "/b/other", EXCHANGE));
        pair.step(&root, Op::OpenClose("/b/victim", CREATE, 0o644));
        pair.step(&root, Op::Link("/b/victim", Follow::No, "/a/survivor"));
        pair.step(&root, Op::Open(1, "/b/victim", RO, 0o644));
        pair.step(&root, Op::Rename("/a/p", "/b/victim", NONE));
        pair.step(&root, Op::Unlink("/a/survivor"));
        pair.step(&root, Op::Fstat(1));
        pair.step(&root, Op::Fchmod(1, 0o600));
        pair.step(&root, Op::Close(1));
        pair.step(&root, Op::Unlink("/b/nothing"));
        pair.step(&root, Op::Rmdir("/b"));
        pair.step(&root, Op::Mkdir("/c", 0o755));
        pair.step(&root, Op::Open(2, "/c", RO, 0o644));
        pair.step(&root, Op::Rmdir("/c"));
        pair.step(&root, Op::Fstat(2));
        pair.step(&root, Op::Close(2));
    });
}

#[test]
fn content_and_attributes_change_the_times_that_they_change_on_linux() {
    same_as_linux(|pair| {
        let root = root();
        pair.step(&root, Op::OpenClose("/f", CREATE, 0o644));
        pair.step(&root, Op::Open(1, "/f", RW, 0o644));
        pair.step(&root, Op::Write(1, 0, b"some content"));
        pair.step(&root, Op::Write(1, 0, b""));
        pair.step(&root, Op::Fsync(1));
        pair.step(&root, Op::Ftruncate(1, 100));
        pair.step(&root, Op::Ftruncate(1, 5000));
        pair.step(&root, Op::Truncate("/f", 9000));
        pair.step(&root, Op::Truncate("/f", 10));
        pair.step(&root, Op::Truncate("/f", 10));
        pair.step(&root, Op::Ftruncate(1, 10));
        let (keep, punch) = (AllocateFlags::KEEP_SIZE, AllocateFlags::PUNCH_HOLE);
        pair.step(&root, Op::Fallocate(1, AllocateFlags::empty(), 0, 20_000));
        pair.step(&root, Op::Fallocate(1, keep, 0, 40_000));
        pair.step(&root, Op::Fallocate(1, keep | punch, 0, 8192));
        pair.step(&root, Op::Fallocate(1, AllocateFlags::ZERO_RANGE, 0, 8192));
        pair.step(
            &root,
            Op::Fallocate(1, AllocateFlags::ZERO_RANGE, 0, 30_000),
        );
        pair.step(&root, Op::Fallocate(1, punch, 0, 8192));
        pair.step(&root, Op::Fallocate(1, keep, 0, 0));
        pair.step(&root, Op::Chmod("/f", Follow::Yes, 0o600));
        pair.step(&root, Op::Chmod("/f", Follow::Yes, 0o600));
        pair.step(&root, Op::Chown("/f", Follow::Yes, Some(5), None));
        pair.step(&root, Op::Chown("/f", Follow::Yes, None, None));
        pair.step(
            &root,
            Op::Setxattr("/f", Follow::Yes, "user.a", b"1", XattrMode::Any),
        );
        pair.step(
            &root,
            Op::Setxattr("/f", Follow::Yes, "user.a", b"2", XattrMode::Create),
        );
        pair.step(
            &root,
            Op::Setxattr("/f", Follow::Yes, "user.b", b"2", XattrMode::Replace),
        );
        pair.step(
            &root,
            Op::Setxattr("/f", Follow::Yes, "user.a", b"3", XattrMode::Replace),
        );
        pair.step(&root, Op::Getxattr("/f", Follow::Yes, "user.a"));
        pair.step(&root, Op::Listxattr("/f", Follow::Yes));
        pair.step(&root, Op::Removexattr("/f", Follow::Yes, "user.a"));
        pair.step(&root, Op::Removexattr("/f", Follow::Yes, "user.a"));
        pair.step(&root, Op::Fsetxattr(1, "user.a", b"4"));
        pair.step(&root, Op::Fgetxattr(1, "user.a"));
        pair.step(&root, Op::Fchmod(1, 0o640));
        pair.step(&root, Op::Fchown(1, Some(0), Some(0)));
        pair.step(&root, Op::Futimens(1, SetTime::Now, time(3, 4)));
        pair.step(&root, Op::Close(1));
    });
}

#[test]
fn reading_changes_times_of_access_by_the_rule_of_relatime() {
    same_as_linux(|pair| {
        let root = root();
        pair.step(&root, Op::Mkdir("/d", 0o755));
        pair.step(&root, Op::OpenClose("/d/f", CREATE, 0o644));
        pair.step(&root, Op::Symlink("f", "/d/l"));
        pair.step(&root, Op::Open(1, "/d/f", RW, 0o644));
        pair.step(&root, Op::Open(2, "/d", RO, 0o644));
        pair.step(&root, Op::Open(3, "/d/f", OpenFlags::NOATIME, 0o644));
        pair.step(&root, Op::Open(4, "/d", OpenFlags::NOATIME, 0o644));
        pair.step(&root, Op::Write(1, 0, b"some content"));
        // Not by looking, nor with O_NOATIME, nor by reading nothing.
        pair.step(&root, Op::Read(3, 0, 10));
        pair.step(&root, Op::Readdir(4));
        pair.step(&root, Op::Read(1, 0, 0));
        pair.step(&root, Op::Stat("/d/f", Follow::Yes));
        // The first time, and not the second.
        for _ in 0..2 {
            pair.step(&root, Op::Read(1, 0, 10));
            pair.step(&root, Op::Readdir(2));
            pair.step(&root, Op::Readlink("/d/l"));
        }
        // After a change again, at the end of the file too.
        pair.step(&root, Op::Write(1, 0, b"x"));
        pair.step(&root, Op::Read(1, 1000, 10));
        pair.step(&root, Op::Read(1, 0, 10));
        pair.step(&root, Op::Chmod("/d/f", Follow::Yes, 0o600));
        pair.step(&root, Op::Read(1, 0, 10));
        // So do changes of other attributes and names.
        for change in [
            Op::Setxattr("/d/f", Follow::Yes, "user.a", b"1", XattrMode::Any),
            Op::Removexattr("/d/f", Follow::Yes, "user.a"),
            Op::Link("/d/f", Follow::No, "/d/second"),
            Op::Unlink("/d/second"),
            Op::Rename("/d/f", "/d/second", NONE),
            Op::Rename("/d/second", "/d/f", NONE),
            Op::Rename("/d/l", "/d/f", EXCHANGE),
            Op::Rename("/d/l", "/d/f", EXCHANGE),
            Op::Truncate("/d/f", 8),
        ] {
            pair.step(&root, change);
            pair.step(&root, Op::Read(1, 0, 10));
            pair.step(&root, Op::Read(1, 0, 10));
        }
        pair.step(&root, Op::OpenClose("/d/g", CREATE, 0o600));
        for _ in 0..2 {
            pair.step(&root, Op::Readdir(2));
        }
        // When it is old.
        freshen(pair, &["/d", "/d/f", "/d/g", "/d/l"]);
        for _ in 0..2 {
            pair.step(
                &root,
                Op::Utimens("/d/f", Follow::Yes, time(1000, 1), time(900, 1)),
            );
            pair.step(&root, Op::Read(3, 0, 10));
            pair.step(&root, Op::Read(1, 0, 10));
        }
        for number in 1..=4 {
            pair.step(&root, Op::Close(number));
        }
    });
}

#[test]
fn times_are_set_by_whom_linux_lets() {
    same_as_linux(|pair| {
        let owner = Credentials::user(10, 20, &[]);
        let writer = Credentials::user(11, 20, &[]);
        let stranger = Credentials::user(12, 22, &[]);
        pair.step(&root(), Op::Mkdir("/d", 0o755));
        pair.step(&root(), Op::OpenClose("/f", CREATE, 0));
        pair.step(&root(), Op::Mknod("/p", FileKind::Fifo, 0, 0));
        let (now, omit) = (SetTime::Now, SetTime::Omit);
        let given = [
            now,
            omit,
            time(1, 2),
            time(0, 999_999_999),
            time(1_400_000_000, 3),
            time(-5, 7),
            time(1, 1_000_000_000),
        ];
        for path in ["/f", "/d", "/p", "/missing"] {
            for mode in [0o664, 0o444, 0o666] {
                pair.step(&root(), Op::Chmod(path, Follow::Yes, mode));
                pair.step(&root(), Op::Chown(path, Follow::Yes, Some(10), Some(20)));
                for who in [&root(), &owner, &writer, &stranger] {
                    for accessed in given {
                        for modified in given {
                            pair.ask(who, Op::Utimens(path, Follow::Yes, accessed, modified));
                        }
                        pair.look();
                        pair.step(who, Op::Utimens(path, Follow::No, accessed, time(77, 78)));
                    }
                }
            }
        }
    });
}

#[test]
fn modes_and_owners_are_changed_by_whom_linux_lets() {
    same_as_linux(|pair| {
        let people = [
            root(),
            Credentials::user(10, 20, &[30]),
            Credentials::user(10, 22, &[]),
            Credentials::user(11, 20, &[]),
        ];
        pair.step(&root(), Op::Mkdir("/d", 0o755));
        pair.step(&root(), Op::OpenClose("/f", CREATE, 0));
        pair.step(&root(), Op::Symlink("f", "/l"));
        pair.step(&root(), Op::Mknod("/p", FileKind::Socket, 0, 0));
        pair.step(&root(), Op::Mknod("/c", FileKind::CharDevice, 0, 0x0102));
        for path in ["/f", "/d", "/l", "/p", "/c"] {
            for who in &people {
                for mode in [0o7777, 0o2755, 0o2745, 0o4711, 0o1644, 0o170_644] {
                    for follow in [Follow::Yes, Follow::No] {
                        let anew = |pair: &mut Pair| {
                            for path in [path, "/f"] {
                                pair.ask(&root(), Op::Chown(path, Follow::No, Some(10), Some(20)));
                                pair.ask(&root(), Op::Chmod(path, Follow::No, 0o6755));
                            }
                        };
                        anew(pair);
                        pair.ask(who, Op::Chmod(path, follow, mode));
                        pair.look();
                        for uid in [None, Some(10), Some(11), Some(0)] {
                            for gid in [None, Some(20), Some(22), Some(30), Some(40)] {
                                anew(pair);
                                pair.ask(&root(), Op::Chmod(path, follow, mode));
                                pair.ask(who, Op::Chown(path, follow, uid, gid));
                                pair.look();
                            }
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn access_answers_as_on_linux() {
    same_as_linux(|pair| {
        let people = [
            root(),
            Credentials::user(10, 20, &[30]),
            Credentials::user(11, 20, &[]),
            Credentials::user(12, 21, &[5, 20]),
            Credentials::user(13, 23, &[]),
        ];
        pair.step(&root(), Op::Mkdir("/d", 0o755));
        pair.step(&root(), Op::OpenClose("/d/f", CREATE, 0));
        pair.step(&root(), Op::Symlink("f", "/d/l"));
        pair.step(&root(), Op::Symlink("missing", "/d/dangling"));
        pair.step(&root(), Op::Mknod("/d/p", FileKind::Socket, 0, 0));
        let paths = [
            "/",
            "/d",
            "/d/f",
            "/d/l",
            "/d/dangling",
            "/d/p",
            "/d/f/x",
            "/d/no",
        ];
        for mode in [
            0, 0o111, 0o444, 0o222, 0o640, 0o750, 0o704, 0o070, 0o007, 0o100,
        ] {
            for path in ["/d", "/d/f", "/d/p"] {
                pair.ask(&root(), Op::Chown(path, Follow::No, Some(10), Some(20)));
                pair.ask(&root(), Op::Chmod(path, Follow::No, mode));
            }
            for who in &people {
                for path in paths {
                    for bits in 0..8 {
                        let wanted = Access::from_bits_retain(bits);
                        pair.ask(who, Op::Access(path, Follow::Yes, wanted));
                        pair.ask(who, Op::Access(path, Follow::No, wanted));
                    }
                }
            }
        }
    });
}
