//! Pipes, sockets and devices: the volume keeps their nodes, and doesn't open them.

use crate::common::linux::same_as_linux;
use crate::common::*;
use adit_base::Errno;
use adit_fs::*;
use adit_operations::Call as Op;

const KINDS: [FileKind; 4] = [
    FileKind::Fifo,
    FileKind::Socket,
    FileKind::CharDevice,
    FileKind::BlockDevice,
];

fn root() -> Credentials {
    Credentials::user(0, 0, &[])
}

#[test]
fn special_files_are_made_and_look_as_on_linux() {
    same_as_linux(|pair| {
        let user = Credentials::user(10, 20, &[]);
        pair.step(&root(), Op::Mkdir("/d", 0o777));
        pair.step(&root(), Op::Symlink("d/dangling", "/l"));
        for who in [&root(), &user] {
            for kind in
                KINDS
                    .into_iter()
                    .chain([FileKind::File, FileKind::Directory, FileKind::Symlink])
            {
                for (mode, device) in [(0o644, 0), (0o7777, 0x0102), (0o600, 0xfff1_2345)] {
                    for path in ["/d/x", "/d/x/", "/d/x/y", "/no/x", "/", "/d/.", "/l", ""] {
                        pair.ask(who, Op::Mknod(path, kind, mode, device));
                    }
                    pair.look();
                    pair.step(who, Op::Mknod("/d/y", kind, mode, device));
                    pair.step(&root(), Op::Unlink("/d/y"));
                    pair.step(&root(), Op::Unlink("/d/x"));
                }
            }
        }
    });
}

#[test]
fn everything_but_their_content_works_as_on_linux() {
    for kind in KINDS {
        same_as_linux(|pair| {
            let user = Credentials::user(10, 20, &[]);
            let path = OpenFlags::PATH;
            pair.step(&root(), Op::Mkdir("/d", 0o777));
            pair.step(&root(), Op::Mknod("/n", kind, 0o644, 0x0102));
            pair.step(&root(), Op::Chown("/n", Follow::Yes, Some(10), Some(20)));
            pair.step(&user, Op::Chmod("/n", Follow::Yes, 0o6755));
            pair.step(&user, Op::Chown("/n", Follow::Yes, None, Some(20)));
            pair.step(
                &user,
                Op::Utimens("/n", Follow::Yes, SetTime::Now, SetTime::Omit),
            );
            pair.step(&user, Op::Access("/n", Follow::Yes, Access::all()));
            pair.step(&user, Op::Truncate("/n", 5));
            pair.step(&user, Op::Readlink("/n"));
            pair.step(&user, Op::Stat("/n/", Follow::Yes));
            pair.step(&user, Op::Stat("/n/x", Follow::Yes));
            pair.step(&user, Op::OpenClose("/n", OpenFlags::DIRECTORY, 0));
            pair.step(&user, Op::OpenClose("/n", CREATE | OpenFlags::EXCLUSIVE, 0));
            pair.step(&user, Op::OpenClose("/n", path | OpenFlags::DIRECTORY, 0));
            pair.step(&root(), Op::Link("/n", Follow::No, "/d/second"));
            pair.step(&root(), Op::Rename("/n", "/d/moved", RenameFlags::empty()));
            pair.step(
                &root(),
                Op::Rename("/d/moved", "/d/second", RenameFlags::empty()),
            );
            pair.step(&root(), Op::Open(1, "/d/second", path, 0o644));
            pair.step(&root(), Op::Unlink("/d/second"));
            pair.step(&root(), Op::Unlink("/d/moved"));
            pair.step(&root(), Op::Fstat(1));
            pair.step(&root(), Op::Read(1, 0, 1));
            pair.step(&root(), Op::Write(1, 0, b"x"));
            pair.step(&root(), Op::Ftruncate(1, 0));
            pair.step(&root(), Op::Fsync(1));
            pair.step(&root(), Op::Flock(1));
            pair.step(&root(), Op::Futimens(1, SetTime::Now, SetTime::Now));
            pair.step(&root(), Op::Close(1));
        });
    }
}

#[test]
fn special_files_are_opened_as_paths_only() {
    let volume = Volume::fresh();
    let user = Credentials::user(10, 20, &[]);
    for (number, kind) in KINDS.into_iter().enumerate() {
        let name = format!("/{number}");
        volume
            .run(|fs| fs.mknod(at(&name), kind, 0o600, 0x0102))
            .unwrap();
        for flags in [RO, RW, OpenFlags::WRITE_ONLY, OpenFlags::TRUNCATE, CREATE] {
            assert_eq!(volume.open(&name, flags).map(drop), Err(Errno::NXIO));
            // A user without permission doesn't learn more.
            let theirs = At::root(&user, name.as_bytes());
            let opened = volume.run(|fs| fs.open(theirs, flags, 0));
            assert_eq!(opened.map(drop), Err(Errno::ACCESS));
        }
        let handle = volume.open(&name, OpenFlags::PATH).unwrap();
        assert_eq!(handle.kind(), kind);
        volume.close(&handle).unwrap();
    }
}

#[test]
fn special_files_and_links_outlive_a_reopening() {
    let device = memory(64 << 20);
    let volume = Volume::format(device.clone(), 16 << 20);
    for (number, kind) in KINDS.into_iter().enumerate() {
        let name = format!("/{number}");
        volume
            .run(|fs| fs.mknod(at(&name), kind, 0o4640, 0xf_fff1_2345))
            .unwrap();
    }
    volume.close_volume();
    let volume = Volume::open_on(device, 16 << 20);
    for (number, kind) in KINDS.into_iter().enumerate() {
        let stat = volume.stat(&format!("/{number}")).unwrap();
        assert_eq!(stat.kind, kind);
        assert_eq!(stat.mode, kind.mode_bits() | 0o4640);
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        assert_eq!(stat.rdev, if is_device { 0xf_fff1_2345 } else { 0 });
        let entries = volume.entries("/", 4096).unwrap();
        let name = format!("{number}");
        let entry = entries.iter().find(|entry| *entry.name == *name.as_bytes());
        assert_eq!(entry.unwrap().kind, kind);
    }
    assert_eq!(volume.check(), [""; 0]);
}
