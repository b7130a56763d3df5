//! Where names, paths, links and files end.

use crate::common::linux::same_as_linux;
use crate::common::*;
use adit_base::Errno;
use adit_fs::*;
use adit_operations::Call as Op;

/// Forty links, each of which goes down and up again a thousand times: the walk took 10 ms, and a
/// session that repeated it held up all others.
#[test]
fn links_together_lead_along_no_more_than_two_of_the_longest_targets() {
    let volume = Volume::fresh();
    volume.mkdir("/d").unwrap();
    volume.put("/f", b"end").unwrap();
    let link = |name: &str, target: String| {
        let path = at(name);
        volume
            .run(|fs| fs.symlink(target.as_bytes(), path))
            .map(drop)
    };
    // Of 2,000 bytes each, but for the first one.
    link("/0", "f".to_owned()).unwrap();
    for number in 1..=5 {
        let target = format!("{}{}", "d/../".repeat(400), number - 1);
        link(&format!("/{number}"), target).unwrap();
    }
    assert_eq!(volume.get("/4").unwrap(), b"end");
    assert_eq!(volume.get("/5"), Err(Errno::NAMETOOLONG));
}

#[test]
fn names_and_paths_at_their_limits_are_as_on_linux() {
    let longest = "n".repeat(255);
    let longer = "n".repeat(256);
    let dots = |bytes: usize| {
        let path = format!("/{}f", "./".repeat((bytes - 2) / 2));
        format!("{}{path}", "/".repeat(bytes - path.len()))
    };
    let paths = [
        format!("/{longest}"),
        format!("/{longest}/"),
        format!("/{longer}"),
        format!("/{longer}/"),
        format!("/{longer}/x"),
        format!("/f/{longer}"),
        format!("/missing/{longer}"),
        format!("/d/{longer}/.."),
        dots(4094),
        dots(4095),
        dots(4096),
        "/d/".repeat(1400),
        "d".repeat(4095),
        "d".repeat(4096),
    ];
    same_as_linux(|pair| {
        let root = Credentials::user(0, 0, &[]);
        pair.ask(&root, Op::Mkdir("/d", 0o755));
        pair.ask(&root, Op::OpenClose("/f", CREATE, 0o644));
        for path in &paths {
            for step in [
                Op::OpenClose(path, CREATE, 0o644),
                Op::Stat(path, Follow::Yes),
                Op::OpenClose(path, OpenFlags::PATH, 0),
                Op::Link("/f", Follow::No, path),
                Op::Link(path, Follow::No, "/new"),
                Op::Rename(path, "/moved", RenameFlags::empty()),
                Op::Rename("/moved", path, RenameFlags::empty()),
                Op::Truncate(path, 1),
                Op::Unlink(path),
                Op::Mkdir(path, 0o755),
                Op::Rmdir(path),
                Op::Symlink(path, "/link"),
                Op::Stat("/link", Follow::Yes),
                Op::Readlink("/link"),
                Op::Unlink("/link"),
                Op::Symlink("f", path),
                Op::Mknod(path, FileKind::Fifo, 0o644, 0),
                Op::Unlink(path),
                Op::OpenClose("/f", CREATE, 0o644),
            ] {
                // Which of two bad paths is complained about is not compared.
                if matches!(step, Op::Rename("/moved", ..)) && !pair.exists("/moved") {
                    continue;
                }
                pair.ask(&root, step);
            }
            pair.look();
            pair.ask(&root, Op::Unlink("/new"));
        }
    });
}

#[test]
fn an_inode_has_65000_names_and_no_more() {
    let volume = Volume::fresh();
    volume.touch("/f").unwrap();
    volume.mkdir("/d").unwrap();
    // All in one go: the worker is asked once.
    let last = volume.run(|fs| async move {
        for number in 1..LINKS_MAX {
            let name = format!("/d/{number}");
            fs.link(at("/f"), Follow::No, At::root(&SELF, name.as_bytes()))
                .await?;
        }
        fs.link(at("/f"), Follow::No, at("/d/last")).await.map(drop)
    });
    assert_eq!(last, Err(Errno::MLINK));
    assert_eq!(volume.stat("/f").unwrap().links, LINKS_MAX);
    assert_eq!(volume.link("/f", "/d/1"), Err(Errno::EXIST));
    volume.unlink("/d/1").unwrap();
    volume.link("/f", "/d/last").unwrap();
    // Renaming takes no name.
    volume.rename("/d/2", "/g").unwrap();
    assert_eq!(volume.stat("/g").unwrap().links, LINKS_MAX);
}

#[test]
fn an_inode_without_a_name_gets_none_again() {
    let volume = Volume::fresh();
    volume.put("/f", b"x").unwrap();
    let file = volume.open("/f", RW).unwrap();
    volume.unlink("/f").unwrap();
    let orphan = At::inode(&SELF, file.blob_id());
    let link = volume.run(|fs| fs.link(orphan, Follow::No, at("/g")));
    assert_eq!(link.map(drop), Err(Errno::NOENT));
    assert_eq!(volume.run(|fs| fs.fstat(&file)).unwrap().links, 0);
    assert_eq!(volume.list("/"), [""; 0]);
    // While it is open its id works, and afterwards not.
    volume
        .run(|fs| fs.change(orphan, Follow::No, Change::Mode(0o600)))
        .unwrap();
    volume.close(&file).unwrap();
    let gone = volume.run(|fs| fs.stat(orphan, Follow::No));
    assert_eq!(gone.map(drop), Err(Errno::STALE));
}

#[test]
fn a_removed_directory_has_no_names_and_takes_none() {
    let volume = Volume::fresh();
    volume.mkdir("/d").unwrap();
    volume.touch("/f").unwrap();
    let directory = volume.open("/d", OpenFlags::DIRECTORY).unwrap();
    let id = directory.blob_id();
    volume.rmdir("/d").unwrap();
    let stranger = Credentials::user(10, 10, &[]);
    for who in [&*SELF, &stranger] {
        let inside = |path: &'static str| At::inside(who, id, path.as_bytes());
        let none = Err(Errno::NOENT);
        let run = |answer: Answer<Stat>| answer.map(drop);
        assert_eq!(run(volume.run(|fs| fs.mkdir(inside("x"), 0o755))), none);
        assert_eq!(run(volume.run(|fs| fs.symlink(b"t", inside("x")))), none);
        let link = volume.run(|fs| fs.link(at("/f"), Follow::No, inside("x")));
        assert_eq!(run(link), none);
        assert_eq!(
            run(volume.run(|fs| fs.stat(inside(".."), Follow::No))),
            none
        );
        assert_eq!(
            run(volume.run(|fs| fs.stat(inside("../f"), Follow::No))),
            none
        );
        let open = volume.run(|fs| fs.open(inside("x"), CREATE, 0o644));
        assert_eq!(open.map(drop), none);
        let none_renamed = RenameFlags::empty();
        let rename = volume.run(|fs| fs.rename(at("/f"), inside("x"), none_renamed));
        assert_eq!(
            rename,
            if who.privileged {
                none
            } else {
                Err(Errno::ACCESS)
            }
        );
        let itself = volume.run(|fs| fs.stat(inside("."), Follow::No)).unwrap();
        assert_eq!((itself.links, itself.kind), (0, FileKind::Directory));
    }
    volume.close(&directory).unwrap();
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn a_file_ends_at_16_tib() {
    let volume = Volume::fresh();
    volume.touch("/f").unwrap();
    let file = volume.open("/f", RW).unwrap();
    let last = FILE_BYTES_MAX - 1;
    assert_eq!(FILE_BYTES_MAX, (16 << 40) - 4096);
    volume.write(&file, last, b"z").unwrap();
    assert_eq!(volume.stat("/f").unwrap().size_bytes, FILE_BYTES_MAX);
    assert!(volume.stat("/f").unwrap().allocated_bytes <= 8 << 12);
    let mut bytes = [1; 3];
    assert_eq!(volume.read(&file, last - 1, &mut bytes), Ok(2));
    assert_eq!(bytes, [0, b'z', 1]);
    assert_eq!(volume.read(&file, FILE_BYTES_MAX, &mut bytes), Ok(0));
    assert_eq!(volume.read(&file, u64::MAX, &mut bytes), Ok(0));
    for offset in [FILE_BYTES_MAX, last, 1 << 60, u64::MAX] {
        assert_eq!(volume.write(&file, offset, b"ab"), Err(Errno::FBIG));
    }
    assert_eq!(volume.append(&file, b"a"), Err(Errno::FBIG));
    let too_long = FILE_BYTES_MAX + 1;
    assert_eq!(
        volume.run(|fs| fs.ftruncate(&file, too_long)),
        Err(Errno::FBIG)
    );
    assert_eq!(
        volume.run(|fs| fs.truncate(at("/f"), u64::MAX)),
        Err(Errno::FBIG)
    );
    for flags in [AllocateFlags::empty(), AllocateFlags::KEEP_SIZE] {
        for (offset, len) in [(last, 2), (u64::MAX, 1), (1, u64::MAX)] {
            let allocated = volume.run(|fs| fs.allocate(&file, flags, offset, len));
            assert_eq!(allocated, Err(Errno::FBIG));
        }
    }
    assert_eq!(volume.stat("/f").unwrap().size_bytes, FILE_BYTES_MAX);
    volume.run(|fs| fs.ftruncate(&file, 1 << 40)).unwrap();
    volume
        .run(|fs| fs.ftruncate(&file, FILE_BYTES_MAX))
        .unwrap();
    assert_eq!(volume.read(&file, last, &mut bytes), Ok(1));
    assert_eq!(bytes[0], 0);
    volume.close(&file).unwrap();
    assert_eq!(volume.check(), [""; 0]);
}
