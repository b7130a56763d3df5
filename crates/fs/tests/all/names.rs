//! Operations on names follow POSIX and Linux, errno by errno.

use crate::common::*;
use adit_base::Errno;
use adit_base::clock::Timestamp;
use adit_fs::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn a_file_that_is_created_is_there() {
    let volume = Volume::fresh();
    volume.mkdir("/a").unwrap();
    volume.put("/a/f", b"hello").unwrap();
    assert_eq!(volume.get("/a/f").unwrap(), b"hello");
    assert_eq!(volume.get("a/f").unwrap(), b"hello");
    assert_eq!(volume.get("//a/./../a//f").unwrap(), b"hello");
    assert_eq!(volume.list("/"), ["a"]);
    assert_eq!(volume.list("/a"), ["f"]);
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn open_answers_as_linux_does() {
    let volume = Volume::fresh();
    volume.mkdir("/d").unwrap();
    volume.touch("/f").unwrap();
    let excl = CREATE | OpenFlags::EXCLUSIVE;
    let open = |path: &str, flags| volume.open(path, flags).map(drop).unwrap_err();
    assert_eq!(open("", RO), Errno::NOENT);
    assert_eq!(open("/x", RO), Errno::NOENT);
    assert_eq!(open("/x/y", RO), Errno::NOENT);
    assert_eq!(open("/x/y", CREATE), Errno::NOENT);
    assert_eq!(open("/f/y", RO), Errno::NOTDIR);
    assert_eq!(open("/f/.", RO), Errno::NOTDIR);
    assert_eq!(open("/f/..", RO), Errno::NOTDIR);
    assert_eq!(open("/f/", RO), Errno::NOTDIR);
    assert_eq!(open("/f", RO | OpenFlags::DIRECTORY), Errno::NOTDIR);
    assert_eq!(open("/f", excl), Errno::EXIST);
    assert_eq!(open("/d", excl), Errno::EXIST);
    assert_eq!(open("/d", RW), Errno::ISDIR);
    assert_eq!(open("/d", OpenFlags::CREATE), Errno::ISDIR);
    assert_eq!(open("/", CREATE), Errno::ISDIR);
    assert_eq!(open("/", excl), Errno::EXIST);
    // A trailing slash asks for a directory, which open never makes.
    for path in ["/new/", "/f/", "/d/"] {
        for flags in [CREATE, OpenFlags::CREATE, excl] {
            assert_eq!(open(path, flags), Errno::ISDIR, "{path}");
        }
    }
    assert_eq!(open("/x/y/", CREATE), Errno::NOENT);
    assert_eq!(open("/f/y/", CREATE), Errno::NOTDIR);
    assert_eq!(
        open("/d", OpenFlags::CREATE | OpenFlags::DIRECTORY),
        Errno::INVAL
    );
    assert_eq!(open(&"n".repeat(256), RO), Errno::NAMETOOLONG);
    assert_eq!(open(&"n/".repeat(2048), RO), Errno::NAMETOOLONG);
    assert_eq!(open("a\0b", CREATE), Errno::INVAL);
    let name = "n".repeat(255);
    volume.touch(&name).unwrap();
    assert_eq!(volume.stat(&name).unwrap().links, 1);
    for path in ["/", ".", "..", "/d/", "/d/..", "/d/../d/."] {
        let file = volume.open(path, RO).unwrap();
        assert_eq!(file.kind(), FileKind::Directory);
        volume.close(&file).unwrap();
    }
}

#[test]
fn descriptors_do_what_they_were_opened_for() {
    let volume = Volume::fresh();
    volume.put("/f", b"abc").unwrap();
    let reader = volume.open("/f", RO).unwrap();
    let writer = volume.open("/f", OpenFlags::WRITE_ONLY).unwrap();
    let directory = volume.open("/", RO).unwrap();
    let mut byte = [0];
    assert_eq!(volume.write(&reader, 0, b"x"), Err(Errno::BADF));
    assert_eq!(volume.run(|fs| fs.ftruncate(&reader, 0)), Err(Errno::INVAL));
    assert_eq!(volume.read(&writer, 0, &mut byte), Err(Errno::BADF));
    assert_eq!(writer.try_read(0, &mut byte), None);
    assert_eq!(volume.read(&directory, 0, &mut byte), Err(Errno::ISDIR));
    let mut entries = Vec::new();
    assert_eq!(
        volume.run(|fs| fs.read_directory(&reader, 0, 100, &mut entries)),
        Err(Errno::NOTDIR)
    );
    volume.close(&reader).unwrap();
    assert_eq!(volume.close(&reader), Err(Errno::BADF));
    assert_eq!(volume.read(&reader, 0, &mut byte), Err(Errno::BADF));
    assert_eq!(reader.try_read(0, &mut byte), None);
    // A descriptor of another volume is invalid here, even with the same index.
    let other = Volume::fresh();
    assert_eq!(other.close(&writer), Err(Errno::BADF));
    volume.write(&writer, 0, b"xyz").unwrap();
    assert_eq!(volume.get("/f").unwrap(), b"xyz");
}

#[test]
fn truncate_on_open_cuts_an_existing_file_only() {
    let volume = Volume::fresh();
    volume.put("/f", b"abc").unwrap();
    let file = volume.open("/f", RW | OpenFlags::TRUNCATE).unwrap();
    assert_eq!(file.size_bytes(), 0);
    volume.close(&file).unwrap();
    assert_eq!(volume.stat("/f").unwrap().size_bytes, 0);
}

#[test]
fn mkdir_and_rmdir_count_links_and_refuse_what_linux_refuses() {
    let volume = Volume::fresh();
    assert_eq!(volume.stat("/").unwrap().links, 2);
    volume.mkdir("/d").unwrap();
    volume.mkdir("/d/e/").unwrap();
    assert_eq!(volume.stat("/").unwrap().links, 3);
    assert_eq!(volume.stat("/d").unwrap().links, 3);
    assert_eq!(volume.mkdir("/d"), Err(Errno::EXIST));
    assert_eq!(volume.mkdir("/"), Err(Errno::EXIST));
    assert_eq!(volume.mkdir("/d/."), Err(Errno::EXIST));
    assert_eq!(volume.mkdir("/x/y"), Err(Errno::NOENT));
    volume.touch("/f").unwrap();
    assert_eq!(volume.mkdir("/f"), Err(Errno::EXIST));
    assert_eq!(volume.mkdir("/f/x"), Err(Errno::NOTDIR));
    assert_eq!(volume.rmdir("/f"), Err(Errno::NOTDIR));
    assert_eq!(volume.rmdir("/d"), Err(Errno::NOTEMPTY));
    assert_eq!(volume.rmdir("/"), Err(Errno::BUSY));
    assert_eq!(volume.rmdir("/d/."), Err(Errno::INVAL));
    assert_eq!(volume.rmdir("/d/e/.."), Err(Errno::NOTEMPTY));
    assert_eq!(volume.rmdir("/x"), Err(Errno::NOENT));
    volume.rmdir("/d/e/").unwrap();
    assert_eq!(volume.stat("/d").unwrap().links, 2);
    volume.rmdir("/d").unwrap();
    assert_eq!(volume.stat("/").unwrap().links, 2);
    assert_eq!(volume.stat("/d"), Err(Errno::NOENT));
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn a_removed_directory_that_is_open_is_empty_and_takes_no_names() {
    let volume = Volume::fresh();
    volume.mkdir("/d").unwrap();
    let directory = volume.open("/d", RO).unwrap();
    volume.rmdir("/d").unwrap();
    assert_eq!(volume.run(|fs| fs.fstat(&directory)).unwrap().links, 0);
    let mut entries = Vec::new();
    volume
        .run(|fs| fs.read_directory(&directory, 0, 4096, &mut entries))
        .unwrap();
    assert!(entries.is_empty());
    volume.mkdir("/d").unwrap();
    volume.touch("/d/f").unwrap();
    volume
        .run(|fs| fs.read_directory(&directory, 0, 4096, &mut entries))
        .unwrap();
    assert!(entries.is_empty());
    volume.close(&directory).unwrap();
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn links_are_names_of_one_inode() {
    let volume = Volume::fresh();
    volume.mkdir("/d").unwrap();
    volume.put("/f", b"one").unwrap();
    volume.link("/f", "/d/g").unwrap();
    assert_eq!(volume.stat("/f").unwrap().links, 2);
    assert_eq!(
        volume.stat("/f").unwrap().inode,
        volume.stat("/d/g").unwrap().inode
    );
    assert_eq!(volume.link("/f", "/d/g"), Err(Errno::EXIST));
    assert_eq!(volume.link("/x", "/y"), Err(Errno::NOENT));
    assert_eq!(volume.link("/d", "/y"), Err(Errno::PERM));
    assert_eq!(volume.link("/f", "/y/"), Err(Errno::NOENT));
    assert_eq!(volume.link("/f", "/"), Err(Errno::EXIST));
    assert_eq!(volume.link("/f/", "/y"), Err(Errno::NOTDIR));
    volume.unlink("/f").unwrap();
    assert_eq!(volume.stat("/d/g").unwrap().links, 1);
    assert_eq!(volume.get("/d/g").unwrap(), b"one");
    volume.unlink("/d/g").unwrap();
    assert_eq!(volume.unlink("/d/g"), Err(Errno::NOENT));
    assert_eq!(volume.unlink("/d"), Err(Errno::ISDIR));
    assert_eq!(volume.unlink("/"), Err(Errno::ISDIR));
    assert_eq!(volume.unlink("."), Err(Errno::ISDIR));
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn rename_moves_and_replaces() {
    let volume = Volume::fresh();
    volume.mkdir("/a").unwrap();
    volume.mkdir("/b").unwrap();
    volume.put("/a/f", b"f").unwrap();
    volume.rename("/a/f", "/b/g").unwrap();
    assert_eq!(volume.list("/a"), [""; 0]);
    assert_eq!(volume.get("/b/g").unwrap(), b"f");
    volume.put("/b/h", b"h").unwrap();
    volume.rename("/b/g", "/b/h").unwrap();
    assert_eq!(volume.list("/b"), ["h"]);
    assert_eq!(volume.get("/b/h").unwrap(), b"f");
    // Names of the same inode: nothing happens.
    volume.link("/b/h", "/b/i").unwrap();
    volume.rename("/b/h", "/b/i").unwrap();
    volume.rename("/b/h", "/b/h").unwrap();
    assert_eq!(volume.list("/b"), ["h", "i"]);
    // Directories.
    volume.mkdir("/a/s").unwrap();
    volume.touch("/a/s/x").unwrap();
    volume.mkdir("/b/t").unwrap();
    volume.rename("/a/s", "/b/t").unwrap();
    assert_eq!(volume.list("/b/t"), ["x"]);
    assert_eq!(volume.list("/b/t/../t/.."), ["h", "i", "t"]);
    assert_eq!(
        (
            volume.stat("/a").unwrap().links,
            volume.stat("/b").unwrap().links
        ),
        (2, 3)
    );
    volume.rename("/b/t/", "/a/u/").unwrap();
    assert_eq!(
        (
            volume.stat("/a").unwrap().links,
            volume.stat("/b").unwrap().links
        ),
        (3, 2)
    );
    assert_eq!(volume.list("/a/u/.."), ["u"]);
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn rename_refuses_what_linux_refuses() {
    let volume = Volume::fresh();
    volume.mkdir("/d").unwrap();
    volume.mkdir("/d/e").unwrap();
    volume.mkdir("/empty").unwrap();
    volume.touch("/f").unwrap();
    assert_eq!(volume.rename("/x", "/y"), Err(Errno::NOENT));
    assert_eq!(volume.rename("/f", "/x/y"), Err(Errno::NOENT));
    assert_eq!(volume.rename("/f", "/f/y"), Err(Errno::NOTDIR));
    assert_eq!(volume.rename("/f", "/y/"), Err(Errno::NOTDIR));
    assert_eq!(volume.rename("/f/", "/y"), Err(Errno::NOTDIR));
    assert_eq!(volume.rename("/f", "/empty"), Err(Errno::ISDIR));
    assert_eq!(volume.rename("/empty", "/f"), Err(Errno::NOTDIR));
    assert_eq!(volume.rename("/empty", "/d"), Err(Errno::NOTEMPTY));
    assert_eq!(volume.rename("/d", "/d/e/x"), Err(Errno::INVAL));
    assert_eq!(volume.rename("/d", "/d/x"), Err(Errno::INVAL));
    assert_eq!(volume.rename("/d/e", "/d"), Err(Errno::NOTEMPTY));
    // Onto a directory that it is in, directly or not.
    volume.touch("/d/e/g").unwrap();
    assert_eq!(volume.rename("/d/e/g", "/d/e"), Err(Errno::NOTEMPTY));
    assert_eq!(volume.rename("/d/e/g", "/d"), Err(Errno::NOTEMPTY));
    assert_eq!(volume.rename("/d/e/g", "/d/"), Err(Errno::NOTDIR));
    assert_eq!(volume.rename("/d/e/x", "/d"), Err(Errno::NOENT));
    volume.unlink("/d/e/g").unwrap();
    assert_eq!(volume.rename("/", "/y"), Err(Errno::BUSY));
    assert_eq!(volume.rename("/d/.", "/y"), Err(Errno::BUSY));
    assert_eq!(volume.rename("/d/..", "/y"), Err(Errno::BUSY));
    assert_eq!(volume.rename("/d", "/"), Err(Errno::BUSY));
    let (no_replace, exchange) = (RenameFlags::NO_REPLACE, RenameFlags::EXCHANGE);
    assert_eq!(
        volume.rename_with("/f", "/d", no_replace),
        Err(Errno::EXIST)
    );
    assert_eq!(
        volume.rename_with("/f", "/f", no_replace),
        Err(Errno::EXIST)
    );
    assert_eq!(volume.rename_with("/f", "/y", exchange), Err(Errno::NOENT));
    assert_eq!(
        volume.rename_with("/d", "/d/e", exchange),
        Err(Errno::INVAL)
    );
    assert_eq!(
        volume.rename_with("/d/e", "/d", exchange),
        Err(Errno::INVAL)
    );
    assert_eq!(
        volume.rename_with("/f", "/d", exchange | no_replace),
        Err(Errno::INVAL)
    );
    volume.rename_with("/f", "/y", no_replace).unwrap();
    assert_eq!(volume.list("/"), ["d", "empty", "y"]);
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn exchange_swaps_files_and_directories() {
    let volume = Volume::fresh();
    volume.mkdir("/a").unwrap();
    volume.mkdir("/b").unwrap();
    volume.mkdir("/a/d").unwrap();
    volume.put("/a/d/x", b"x").unwrap();
    volume.put("/b/f", b"f").unwrap();
    volume
        .rename_with("/a/d", "/b/f", RenameFlags::EXCHANGE)
        .unwrap();
    assert_eq!(volume.get("/a/d").unwrap(), b"f");
    assert_eq!(volume.list("/b/f"), ["x"]);
    assert_eq!(volume.list("/b/f/.."), ["f"]);
    assert_eq!(
        (
            volume.stat("/a").unwrap().links,
            volume.stat("/b").unwrap().links
        ),
        (2, 3)
    );
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn what_was_open_is_opened_again_also_without_a_name() {
    let device = memory(64 << 20);
    let volume = Volume::format(device.clone(), 16 << 20);
    volume.put("/named", b"named").unwrap();
    volume.put("/gone", &[7; 100_000]).unwrap();
    volume.put("/other", &[8; 100_000]).unwrap();
    volume.mkdir("/d").unwrap();
    let open = |path| volume.open(path, RW).unwrap();
    let files = [open("/named"), open("/gone"), open("/other")];
    let directory = volume.open("/d", RO).unwrap();
    let ids: Vec<BlobId> = files.iter().map(|file| file.blob_id()).collect();
    let directory_id = directory.blob_id();
    for path in ["/gone", "/other"] {
        volume.unlink(path).unwrap();
    }
    volume.rmdir("/d").unwrap();
    for file in files.iter().chain([&directory]) {
        volume.engine.run(|fs| fs.leave(file)).unwrap();
        assert_eq!(volume.close(file), Err(Errno::BADF), "it is left");
    }
    volume.close_volume();

    let volume = Volume::open_with_orphans(device, 16 << 20);
    let before = volume.free_bytes();
    let reopen = |id, kind, flags| volume.run(move |fs| fs.reopen(id, kind, flags, &SELF));
    let [named, gone, other] = ids[..] else {
        unreachable!()
    };
    let stale = BlobId {
        generation: gone.generation + 1,
        ..gone
    };
    assert_eq!(reopen(stale, FileKind::File, RW).err(), Some(Errno::STALE));
    assert_eq!(
        reopen(gone, FileKind::Directory, RO).err(),
        Some(Errno::STALE)
    );
    assert_eq!(
        reopen(BlobId { slot: 77, ..gone }, FileKind::File, RW).err(),
        Some(Errno::STALE)
    );
    let first = reopen(named, FileKind::File, RW).unwrap();
    volume.append(&first, b"!").unwrap();
    let one = reopen(gone, FileKind::File, RW).unwrap();
    let two = reopen(gone, FileKind::File, RO).unwrap();
    let directory = reopen(directory_id, FileKind::Directory, RO).unwrap();
    volume.write(&one, 0, b"again").unwrap();
    volume.engine.run(|fs| fs.delete_orphans()).unwrap();
    // From here on closed orphans are gone.
    assert_eq!(reopen(other, FileKind::File, RW).err(), Some(Errno::STALE));
    let mut found = [0; 6];
    assert_eq!(volume.read(&two, 0, &mut found), Ok(6));
    assert_eq!(&found, b"again\x07");
    volume.sync().unwrap();
    let between = volume.free_bytes();
    assert!(between > before, "the one that nobody opened is deleted");
    for file in [&one, &two, &directory, &first] {
        volume.close(file).unwrap();
    }
    volume.sync().unwrap();
    assert!(
        volume.free_bytes() > between,
        "with its last descriptor the other one is"
    );
    assert_eq!(volume.get("/named"), Ok(b"named!".to_vec()));
    assert_eq!(volume.entries("/", 4096).unwrap().len(), 3);
    let problems = volume.run(|fs| fs.check_names()).unwrap().problems;
    assert_eq!(problems, Vec::<String>::new());
    volume.close_volume();
}

#[test]
fn an_unlinked_open_file_lives_until_it_is_closed() {
    let volume = Volume::fresh();
    volume.put("/warm-up", &stamped(1, 0, 100_000)).unwrap();
    volume.unlink("/warm-up").unwrap();
    volume.sync().unwrap();
    let free = volume.free_bytes();
    let file = volume.open("/f", CREATE).unwrap();
    let content = stamped(2, 0, 1 << 20);
    volume.write(&file, 0, &content).unwrap();
    let again = volume.open("/f", RO).unwrap();
    volume.unlink("/f").unwrap();
    assert_eq!(volume.stat("/f"), Err(Errno::NOENT));
    volume.put("/f", b"another").unwrap();
    volume.fsync(&file).unwrap();
    volume.close(&file).unwrap();
    let mut read = vec![0; 1 << 20];
    assert_eq!(volume.read(&again, 0, &mut read), Ok(1 << 20));
    assert!(read == content);
    assert_eq!(volume.run(|fs| fs.fstat(&again)).unwrap().links, 0);
    volume.close(&again).unwrap();
    volume.unlink("/f").unwrap();
    volume.sync().unwrap();
    assert_eq!(volume.free_bytes(), free);
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn a_file_replaced_while_open_lives_until_it_is_closed() {
    let volume = Volume::fresh();
    volume.put("/old", b"old").unwrap();
    volume.put("/new", b"new").unwrap();
    let file = volume.open("/old", RO).unwrap();
    volume.rename("/new", "/old").unwrap();
    let mut read = [0; 3];
    volume.read(&file, 0, &mut read).unwrap();
    assert_eq!(&read, b"old");
    assert_eq!(volume.get("/old").unwrap(), b"new");
    volume.close(&file).unwrap();
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn orphans_are_deleted_at_the_next_opening() {
    let device = memory(64 << 20);
    let volume = Volume::format(device.clone(), 16 << 20);
    volume.mkdir("/d").unwrap();
    volume.sync().unwrap();
    let free = volume.free_bytes();
    let mut files = Vec::new();
    for number in 0..100 {
        let path = format!("/f{number}");
        let file = volume.open(&path, CREATE).unwrap();
        volume.write(&file, 0, &stamped(number, 0, 20_000)).unwrap();
        volume.fsync(&file).unwrap();
        volume.unlink(&path).unwrap();
        files.push(file);
    }
    files.push(volume.open("/d", RO).unwrap());
    volume.rmdir("/d").unwrap();
    assert!(volume.free_bytes() < free);
    // Never closed: as in a crash, but with everything durable.
    volume.close_volume();
    let volume = Volume::open_on(device, 16 << 20);
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(240);
    while volume.free_bytes() < free && std::time::Instant::now() < limit {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    volume.sync().unwrap();
    assert!(
        volume.free_bytes() >= free,
        "{} < {free}",
        volume.free_bytes()
    );
    assert_eq!(volume.list("/"), [""; 0]);
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn readdir_is_stable_while_names_come_and_go() {
    let volume = Volume::fresh();
    volume.mkdir("/d").unwrap();
    for number in 0..1000 {
        volume.touch(&format!("/d/stay{number}")).unwrap();
    }
    let entries = volume.entries("/d", 1).unwrap();
    assert_eq!(entries.len(), 1002);
    assert_eq!(
        (&*entries[0].name, &*entries[1].name),
        (&b"."[..], &b".."[..])
    );
    assert!(entries.is_sorted_by(|a, b| a.cookie < b.cookie));
    let directory = volume.open("/d", RO).unwrap();
    let (mut cookie, mut seen) = (0, Vec::new());
    for round in 0.. {
        let mut batch = Vec::new();
        volume
            .run(|fs| fs.read_directory(&directory, cookie, 2000, &mut batch))
            .unwrap();
        let Some(last) = batch.last() else { break };
        cookie = last.cookie;
        seen.extend(batch.into_iter().map(|entry| entry.name));
        for number in 0..20 {
            volume.touch(&format!("/d/come{round}-{number}")).unwrap();
            if round > 0 {
                volume
                    .unlink(&format!("/d/come{}-{number}", round - 1))
                    .unwrap();
            }
        }
    }
    let mut stayed: Vec<_> = seen
        .iter()
        .filter(|name| name.starts_with(b"stay"))
        .collect();
    assert_eq!(stayed.len(), 1000);
    stayed.sort_unstable();
    stayed.dedup();
    assert_eq!(stayed.len(), 1000);
    volume.close(&directory).unwrap();
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn a_directory_grows_and_shrinks_back_to_nothing() {
    let device = memory(64 << 20);
    let volume = Volume::format(device.clone(), 16 << 20);
    volume.mkdir("/d").unwrap();
    assert_eq!(volume.stat("/d").unwrap().size_bytes, 0);
    for number in 0..3000 {
        volume.touch(&format!("/d/{number}")).unwrap();
    }
    assert!(volume.stat("/d").unwrap().size_bytes > 20 * 4096);
    volume.close_volume();
    let volume = Volume::open_on(device, 16 << 20);
    assert_eq!(volume.list("/d").len(), 3000);
    assert_eq!(volume.check(), [""; 0]);
    for number in 0..3000 {
        volume.unlink(&format!("/d/{number}")).unwrap();
    }
    assert_eq!(volume.stat("/d").unwrap().size_bytes, 0);
    volume.rmdir("/d").unwrap();
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn times_change_as_posix_says() {
    let volume = Volume::fresh();
    volume.mkdir("/d").unwrap();
    volume.touch("/d/f").unwrap();
    // The kernel's clock of files may stand still for longer than its tick.
    let tick = || {
        let before = Timestamp::now();
        while Timestamp::now() <= before {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let (d, f) = (volume.stat("/d").unwrap(), volume.stat("/d/f").unwrap());
    tick();
    let file = volume.open("/d/f", RW).unwrap();
    volume.write(&file, 0, b"x").unwrap();
    let written = volume.stat("/d/f").unwrap();
    assert!(written.modified > f.modified && written.changed > f.changed);
    assert_eq!(volume.stat("/d").unwrap().modified, d.modified);
    tick();
    volume
        .run(|fs| fs.change_file(&file, Change::Mode(0o600)))
        .unwrap();
    let stat = volume.stat("/d/f").unwrap();
    assert_eq!(
        (stat.mode & 0o7777, stat.modified),
        (0o600, written.modified)
    );
    assert!(stat.changed > written.changed);
    tick();
    volume.rename("/d/f", "/d/g").unwrap();
    let (after, moved) = (volume.stat("/d").unwrap(), volume.stat("/d/g").unwrap());
    assert!(after.modified > d.modified && after.changed > d.changed);
    assert!(moved.changed > stat.changed && moved.modified == stat.modified);
    let time = Timestamp {
        seconds: -5,
        nanoseconds: 7,
    };
    volume.write(&file, 0, b"y").unwrap();
    volume
        .run(|fs| {
            fs.change(
                at("/d/g"),
                Follow::Yes,
                Change::Times(SetTime::To(time), SetTime::To(time)),
            )
        })
        .unwrap();
    let stat = volume.stat("/d/g").unwrap();
    assert_eq!((stat.accessed, stat.modified), (time, time));
    let bad = Timestamp {
        seconds: 0,
        nanoseconds: 1_000_000_000,
    };
    assert_eq!(
        volume.run(|fs| fs.change(
            at("/d/g"),
            Follow::Yes,
            Change::Times(SetTime::To(bad), SetTime::Omit)
        )),
        Err(Errno::INVAL)
    );
    volume
        .run(|fs| fs.change(at("/d/g"), Follow::Yes, Change::Owner(Some(7), None)))
        .unwrap();
    assert_eq!(volume.stat("/d/g").unwrap().uid, 7);
    volume.fsync(&file).unwrap();
    assert_eq!(volume.stat("/d/g").unwrap().modified, time);
    volume.close(&file).unwrap();
}

#[test]
fn flock_excludes_by_descriptor() {
    let volume = Volume::fresh();
    volume.touch("/f").unwrap();
    let files: Vec<_> = (0..3).map(|_| volume.open("/f", RO).unwrap()).collect();
    let lock = |file: usize, operation| volume.run(|fs| fs.flock(&files[file], operation));
    let (shared, exclusive) = (
        FlockOperation::Shared { wait: false },
        FlockOperation::Exclusive { wait: false },
    );
    lock(0, shared).unwrap();
    lock(1, shared).unwrap();
    assert_eq!(lock(2, exclusive), Err(Errno::AGAIN));
    assert_eq!(lock(0, exclusive), Err(Errno::AGAIN));
    lock(1, FlockOperation::Unlock).unwrap();
    lock(0, exclusive).unwrap();
    assert_eq!(lock(1, shared), Err(Errno::AGAIN));
    let file = files[1].clone();
    let waiter = volume.waiting(async move |fs| {
        fs.flock(&file, FlockOperation::Exclusive { wait: true })
            .await
    });
    volume.close(&files[0]).unwrap();
    waiter.wait().unwrap();
    assert_eq!(lock(2, shared), Err(Errno::AGAIN));
    lock(1, shared).unwrap();
    lock(2, shared).unwrap();
}

#[test]
fn blobs_without_names_live_beside_files() {
    let volume = Volume::fresh();
    volume.touch("/f").unwrap();
    let id = volume.run(|fs| fs.create_blob()).unwrap();
    let blob = volume.run(|fs| fs.open_blob(id, RW)).unwrap();
    volume.write(&blob, 0, b"blob").unwrap();
    volume.fsync(&blob).unwrap();
    assert_eq!(volume.run(|fs| fs.delete_blob(id)), Err(Errno::BUSY));
    volume.close(&blob).unwrap();
    let file = volume.stat("/f").unwrap();
    let named = BlobId {
        slot: file.inode,
        generation: file.generation,
    };
    assert_eq!(
        volume.run(|fs| fs.open_blob(named, RW)).map(drop),
        Err(Errno::NOENT)
    );
    assert_eq!(volume.run(|fs| fs.delete_blob(named)), Err(Errno::NOENT));
    assert_eq!(volume.check(), [""; 0]);
    volume.run(|fs| fs.delete_blob(id)).unwrap();
    assert_eq!(
        volume.run(|fs| fs.open_blob(id, RO)).map(drop),
        Err(Errno::NOENT)
    );
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn everything_is_there_after_a_clean_closing() {
    let device = memory(64 << 20);
    let volume = Volume::format(device.clone(), 16 << 20);
    volume.mkdir("/d").unwrap();
    volume.put("/d/f", &stamped(1, 0, 300_000)).unwrap();
    volume.link("/d/f", "/g").unwrap();
    volume.put("/small", b"s").unwrap();
    let before = (volume.stat("/d/f").unwrap(), volume.stat("/d").unwrap());
    volume.close_volume();
    let volume = Volume::open_on(device, 16 << 20);
    assert!(volume.get("/g").unwrap() == stamped(1, 0, 300_000));
    assert_eq!(volume.get("/small").unwrap(), b"s");
    let after = (volume.stat("/d/f").unwrap(), volume.stat("/d").unwrap());
    assert_eq!(after.1, before.1);
    assert_eq!(
        (after.0.modified, after.0.links, after.0.inode),
        (before.0.modified, 2, before.0.inode)
    );
    assert_eq!(volume.check(), [""; 0]);
}

/// `link` returned the attributes on the device, without the size of later writes: the kernel, for
/// a mount, showed an empty file.
#[test]
fn link_answers_with_the_size_that_writes_have_reached() {
    let volume = Volume::fresh();
    volume.put("/f", b"written, not yet home").unwrap();
    let stat = volume
        .run(|fs| fs.link(at("/f"), Follow::No, at("/g")))
        .unwrap();
    assert_eq!((stat.size_bytes, stat.links), (21, 2));
}

/// A check of many names held the worker to its end: all other operations waited. Their changes are
/// not damage.
#[test]
fn others_get_their_turn_while_names_are_checked() {
    let volume = Volume::fresh();
    for number in 0..5000 {
        volume.touch(&format!("/{number}")).expect("made");
    }
    // From here on all of them are in the cache.
    assert!(volume.check().is_empty());
    let (is_inside, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let checker = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let is_inside = &is_inside;
                let report = volume.run(|fs| async move {
                    is_inside.store(true, Ordering::Relaxed);
                    let report = fs.check_names().await;
                    is_inside.store(false, Ordering::Relaxed);
                    report
                });
                assert!(report.expect("checked").problems.is_empty());
            }
        });
        let is_ended = SetAtEnd(&is_over);
        let deadline = Instant::now() + Duration::from_secs(240);
        let mut was_inside = false;
        while !was_inside && Instant::now() < deadline {
            let is_inside = &is_inside;
            let turn = volume.run(|fs| async move {
                fs.mkdir(at("/new"), 0o700).await?;
                fs.rmdir(at("/new")).await?;
                Ok(is_inside.load(Ordering::Relaxed))
            });
            was_inside = turn.expect("run");
        }
        drop(is_ended);
        checker.join().expect("no panic");
        assert!(was_inside, "no turn within a check");
    });
}
