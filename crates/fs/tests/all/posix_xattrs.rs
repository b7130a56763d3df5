//! Extended attributes: namespaces, permissions, flags, and bounds.

use crate::common::linux::same_as_linux;
use crate::common::*;
use adit_base::Errno;
use adit_fs::*;
use adit_operations::Call as Op;

fn root() -> Credentials {
    Credentials::user(0, 0, &[])
}

const ANY: XattrMode = XattrMode::Any;

#[test]
fn namespaces_are_read_and_written_by_whom_linux_lets() {
    let names = [
        "user.x",
        "user.",
        "user",
        "trusted.x",
        "trusted.",
        "security.x",
        "security.",
        "system.x",
        "system.posix_acl_access",
        "system.posix_acl_default",
        "btrfs.x",
        "nothing",
        ".",
        "",
    ];
    let long = format!("user.{}", "n".repeat(250));
    let longer = format!("user.{}", "n".repeat(251));
    let people = [
        root(),
        Credentials::user(10, 20, &[]),
        Credentials::user(11, 20, &[]),
        Credentials::user(13, 23, &[]),
    ];
    same_as_linux(|pair| {
        pair.ask(&root(), Op::Mkdir("/d", 0o755));
        pair.ask(&root(), Op::Mkdir("/sticky", 0o755));
        pair.ask(&root(), Op::OpenClose("/f", CREATE, 0o644));
        pair.ask(&root(), Op::Symlink("f", "/l"));
        pair.ask(&root(), Op::Mknod("/p", FileKind::Fifo, 0o644, 0));
        pair.ask(
            &root(),
            Op::Mknod("/c", FileKind::CharDevice, 0o644, 0x0102),
        );
        for path in ["/f", "/d", "/sticky", "/l", "/p", "/c", "/missing"] {
            for mode in [0o755, 0o770, 0o777, 0o077, 0o222, 0o444] {
                let sticky = if path == "/sticky" { 0o1000 } else { 0 };
                pair.ask(&root(), Op::Chmod(path, Follow::No, mode | sticky));
                pair.ask(&root(), Op::Chown(path, Follow::No, Some(10), Some(20)));
                for who in &people {
                    for name in names.into_iter().chain([&*long, &*longer]) {
                        // Those of access control lists are not looked into here: see
                        // docs/reference/posix.md.
                        let is_list = name.starts_with("system.posix_acl");
                        pair.ask(who, Op::Getxattr(path, Follow::No, name));
                        pair.ask(who, Op::Removexattr(path, Follow::No, name));
                        if !is_list {
                            pair.ask(
                                who,
                                Op::Setxattr(path, Follow::No, name, b"1", XattrMode::Replace),
                            );
                            pair.ask(who, Op::Setxattr(path, Follow::No, name, b"2", ANY));
                            pair.ask(
                                who,
                                Op::Setxattr(path, Follow::No, name, b"3", XattrMode::Create),
                            );
                            pair.ask(
                                who,
                                Op::Setxattr(path, Follow::No, name, b"4", XattrMode::Replace),
                            );
                        }
                        for reader in &people {
                            pair.ask(reader, Op::Getxattr(path, Follow::No, name));
                            pair.ask(reader, Op::Listxattr(path, Follow::No));
                        }
                        pair.ask(&root(), Op::Removexattr(path, Follow::No, name));
                    }
                }
            }
        }
    });
}

#[test]
fn files_that_are_open_obey_whoever_opened_them_and_paths_have_none() {
    same_as_linux(|pair| {
        let user = Credentials::user(10, 20, &[]);
        pair.ask(&root(), Op::OpenClose("/f", CREATE, 0));
        pair.ask(&root(), Op::Chown("/f", Follow::No, Some(10), None));
        pair.ask(&root(), Op::Chmod("/f", Follow::No, 0o600));
        pair.ask(&user, Op::Open(1, "/f", RO, 0o644));
        pair.ask(&user, Op::Open(2, "/f", OpenFlags::PATH, 0o644));
        for number in [1, 2] {
            pair.ask(&user, Op::Fsetxattr(number, "user.x", b"1"));
            pair.ask(&user, Op::Fsetxattr(number, "trusted.x", b"1"));
            pair.ask(&user, Op::Fgetxattr(number, "user.x"));
            pair.ask(&user, Op::Fchmod(number, 0o640));
            pair.ask(&user, Op::Fchown(number, None, Some(20)));
            pair.ask(&user, Op::Futimens(number, SetTime::Now, SetTime::Now));
            pair.ask(&user, Op::Ftruncate(number, 3));
            pair.ask(&user, Op::Fallocate(number, AllocateFlags::empty(), 0, 3));
            pair.ask(&user, Op::Fallocate(number, AllocateFlags::empty(), 0, 0));
            pair.ask(
                &user,
                Op::Fallocate(number, AllocateFlags::from_bits_retain(0x1000), 0, 1),
            );
            pair.ask(&user, Op::Write(number, 0, b"x"));
            pair.ask(&user, Op::Read(number, 0, 1));
            pair.ask(&user, Op::Readdir(number));
            pair.ask(&user, Op::Flock(number));
            pair.ask(&user, Op::Fsync(number));
            pair.ask(&user, Op::Fstat(number));
            pair.ask(&user, Op::Close(number));
        }
        pair.look();
    });
}

#[test]
fn attributes_that_do_not_fit_are_refused_and_leave_the_others_alone() {
    let volume = Volume::fresh();
    let set = |path: &'static str, name: &'static str, value: &[u8]| {
        volume.run(|fs| fs.xattr_set(at(path), Follow::Yes, name.as_bytes(), value, ANY))
    };
    let get = |path: &'static str, name: &'static str| {
        volume.run(|fs| fs.xattr_get(at(path), Follow::Yes, name.as_bytes()))
    };
    volume.touch("/f").unwrap();
    volume.mkdir("/d").unwrap();
    for path in ["/f", "/d"] {
        set(path, "user.small", b"here").unwrap();
        set(path, "user.large", &[7; 3500]).unwrap();
        assert_eq!(set(path, "user.more", &[8; 1000]), Err(Errno::NOSPC));
        assert_eq!(set(path, "user.small", &[8; 1000]), Err(Errno::NOSPC));
        assert_eq!(set(path, "user.huge", &vec![8; 65_536]), Err(Errno::NOSPC));
        assert_eq!(set(path, "user.huge", &vec![8; 65_537]), Err(Errno::TOOBIG));
        assert_eq!(get(path, "user.small").unwrap(), b"here");
        assert_eq!(get(path, "user.large").unwrap(), [7; 3500]);
        assert_eq!(get(path, "user.more"), Err(Errno::NODATA));
        set(path, "user.large", b"").unwrap();
        set(path, "user.more", &[8; 3000]).unwrap();
        assert_eq!(get(path, "user.large").unwrap(), b"");
    }
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn the_rest_of_a_long_symbolic_link_is_no_attribute_that_anybody_sees() {
    let volume = Volume::fresh();
    let target = [b'x'; 4000];
    volume.run(|fs| fs.symlink(&target, at("/l"))).unwrap();
    let names = || {
        volume
            .run(|fs| fs.xattr_list(at("/l"), Follow::No))
            .unwrap()
    };
    assert_eq!(names(), Vec::<Vec<u8>>::new());
    let name = b"symlink";
    let follow = Follow::No;
    assert_eq!(
        volume.run(|fs| fs.xattr_get(at("/l"), follow, name)),
        Err(Errno::OPNOTSUPP)
    );
    assert_eq!(
        volume.run(|fs| fs.xattr_set(at("/l"), follow, name, b"y", ANY)),
        Err(Errno::OPNOTSUPP)
    );
    assert_eq!(
        volume.run(|fs| fs.xattr_remove(at("/l"), follow, name)),
        Err(Errno::OPNOTSUPP)
    );
    // The rest of the page is for the file's own attributes.
    volume
        .run(|fs| fs.xattr_set(at("/l"), follow, b"trusted.a", b"1", ANY))
        .unwrap();
    assert_eq!(names(), [b"trusted.a".to_vec()]);
    assert_eq!(volume.run(|fs| fs.read_link(at("/l"))).unwrap(), target);
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn access_control_lists_are_kept_and_returned_and_decide_nothing() {
    let volume = Volume::fresh();
    let owner = Credentials::user(10, 10, &[]);
    let stranger = Credentials::user(11, 11, &[]);
    volume.touch("/f").unwrap();
    volume.mkdir("/d").unwrap();
    for path in ["/f", "/d"] {
        volume
            .run(|fs| fs.change(at(path), Follow::Yes, Change::Owner(Some(10), None)))
            .unwrap();
    }
    let set = |who: &Credentials, path: &str, name: &str| {
        let at = At::root(who, path.as_bytes());
        volume.run(|fs| fs.xattr_set(at, Follow::Yes, name.as_bytes(), b"list", ANY))
    };
    let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
    assert_eq!(set(&owner, "/f", access), Ok(()));
    assert_eq!(set(&owner, "/d", default), Ok(()));
    assert_eq!(set(&owner, "/f", default), Err(Errno::ACCESS));
    assert_eq!(set(&stranger, "/f", access), Err(Errno::PERM));
    let get = At::root(&stranger, b"/f");
    let value = volume.run(|fs| fs.xattr_get(get, Follow::Yes, access.as_bytes()));
    assert_eq!(value.unwrap(), b"list");
    assert_eq!(volume.stat("/f").unwrap().mode, 0o100_644);
    // Removing a missing list succeeds, as on Linux.
    for _ in 0..2 {
        volume
            .run(|fs| fs.xattr_remove(at("/f"), Follow::Yes, access.as_bytes()))
            .unwrap();
    }
}
