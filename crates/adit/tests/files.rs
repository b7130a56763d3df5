//! Files, directories and blobs through the public interface, on a volume in memory.

#[path = "support/served.rs"]
mod served;

use adit::{
    AllocateFlags, Errno, File, FileCursor, FileKind, FlockOperation, LockMode, LockOwner,
    OpenOptions, RangeLock, ReadRequest, RenameFlags, Volume, VolumeOptions,
};
use adit_block::{MemoryConfig, MemoryDevice};
use std::ffi::OsStr;
use std::io::{IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

fn volume() -> Volume {
    served::open("mem:64M").expect("a volume in memory")
}

fn create(volume: &Volume, path: &str) -> File {
    volume
        .open_file(path, OpenOptions::new().read(true).write(true).create(true))
        .expect("created")
}

fn errno<T: std::fmt::Debug>(result: adit::Result<T>) -> Errno {
    result.expect_err("it fails").errno()
}

#[test]
fn what_is_written_is_read_and_reads_end_at_the_end_of_the_file() {
    let volume = volume();
    let file = create(&volume, "/f");
    file.write_at(b"hello", 3).expect("written");
    let mut buffer = [9; 16];
    assert_eq!(file.read_at(&mut buffer, 0).expect("read"), 8);
    assert_eq!(&buffer[..8], b"\0\0\0hello");
    assert_eq!(file.read_at(&mut buffer, 8).expect("read"), 0);
    assert_eq!(errno(file.read_exact_at(&mut buffer, 0)), Errno::NODATA);
    let ended = file.read_exact_at(&mut buffer, 0).expect_err("8 bytes");
    assert_eq!(
        std::io::Error::from(ended).kind(),
        std::io::ErrorKind::UnexpectedEof
    );
    assert_eq!(
        (
            file.len().expect("known"),
            file.metadata().expect("known").len()
        ),
        (8, 8)
    );
    assert_eq!(volume.read("/f").expect("read"), b"\0\0\0hello");
}

/// `remove_dir_all("/")` emptied the whole volume, and then failed since a root can't be removed;
/// `"/d/e/.."` emptied `/d`.
#[test]
fn what_cannot_be_removed_keeps_what_is_in_it() {
    let volume = volume();
    volume.create_dir_all("/d/e").expect("made");
    volume.write("/d/f", "content").expect("written");
    volume.symlink("/", "/up").expect("made");
    let refused = [
        ("/", Errno::BUSY),
        ("", Errno::NOENT),
        ("//", Errno::BUSY),
        (".", Errno::BUSY),
        ("/..", Errno::BUSY),
        ("/d/..", Errno::BUSY),
        ("/d/e/../..", Errno::BUSY),
        ("/up/d/..", Errno::BUSY),
        ("/d/e/..", Errno::INVAL),
    ];
    for (path, expected) in refused {
        let error = volume.remove_dir_all(path).expect_err("refused");
        assert_eq!(error.errno(), expected, "{path}: {error}");
        assert_eq!(volume.read("/d/f").expect("there"), b"content", "{path}");
        assert!(volume.exists("/d/e").expect("known"), "{path}");
    }
    let words = volume.remove_dir_all("/").expect_err("refused").to_string();
    assert!(words.contains("it is the root of the volume"), "{words}");
    volume.remove_dir_all("/up/").expect("the link itself");
    volume.remove_dir_all("/d").expect("removed");
}

#[test]
fn vectored_forms_join_their_pieces() {
    let volume = volume();
    let file = create(&volume, "/f");
    let pieces = [
        IoSlice::new(b"one "),
        IoSlice::new(b""),
        IoSlice::new(b"two"),
    ];
    file.write_vectored_at(&pieces, 5000).expect("written");
    assert_eq!(file.append_vectored(&pieces).expect("appended"), 5007);
    let (mut a, mut b) = ([0; 5], [0; 20]);
    let got = file
        .read_vectored_at(
            &mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)],
            5000,
        )
        .expect("read");
    assert_eq!((got, &a, &b[..9]), (14, b"one t", b"woone two".as_slice()));
}

#[test]
fn appends_of_many_threads_neither_overlap_nor_leave_gaps() {
    let volume = volume();
    let log = volume
        .open_file(
            "/log",
            OpenOptions::new().read(true).append(true).create(true),
        )
        .expect("opened");
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let log = &log;
            scope.spawn(move || {
                for _ in 0..500 {
                    log.append(&[thread + 1; 7]).expect("appended");
                }
            });
        }
    });
    let content = volume.read("/log").expect("read");
    assert_eq!(content.len(), 4 * 500 * 7);
    for entry in content.chunks(7) {
        assert!(
            entry[0] != 0 && entry.iter().all(|&byte| byte == entry[0]),
            "{entry:?}"
        );
    }
}

#[test]
fn a_borrowed_buffer_keeps_its_content_whatever_is_written() {
    let volume = volume();
    let file = create(&volume, "/f");
    file.write_at(&[1; 8192], 0).expect("written");
    let before = file.read_borrowed(100, 4000).expect("borrowed");
    assert!(!before.is_empty() && before.len() <= 100);
    file.write_at(&[2; 8192], 0).expect("written");
    let after = file.read_borrowed(100, 4000).expect("borrowed");
    assert!(before.as_slice().iter().all(|&byte| byte == 1));
    assert!(after.as_slice().iter().all(|&byte| byte == 2));
    assert!(file.read_borrowed(10, 8192).expect("at the end").is_empty());
    drop((before, after));
}

#[test]
fn read_many_gives_every_request_its_own_result() {
    let volume = volume();
    let file = create(&volume, "/f");
    let content: Vec<u8> = (0..100_000_u32).map(|i| i as u8).collect();
    file.write_at(&content, 0).expect("written");
    let mut memory = vec![[0; 1000]; 50];
    let mut requests: Vec<ReadRequest> = memory
        .iter_mut()
        .enumerate()
        .map(|(i, buffer)| ReadRequest::new(i as u64 * 2047, buffer))
        .collect();
    file.read_many(&mut requests).expect("all tried");
    for request in &requests {
        let at = request.offset as usize;
        let expected = content.len().saturating_sub(at).min(1000);
        assert_eq!(request.result, Ok(expected), "at {at}");
        let there = &content[at.min(content.len())..];
        assert_eq!(request.buffer[..expected], there[..expected]);
    }
}

#[test]
fn asynchronous_twins_do_the_same_by_hand_by_waiting_and_by_callback() {
    let volume = volume();
    let mut open =
        volume.open_file_async("/f", OpenOptions::new().read(true).write(true).create(true));
    let file = loop {
        if let Some(opened) = open.poll_once() {
            break opened.expect("opened");
        }
    };
    let mut buffer = volume.buffer(4096).expect("memory");
    buffer.try_mut().expect("mine").fill(7);
    file.write_at_async(buffer.clone(), 4096)
        .wait()
        .expect("written");
    assert_eq!(
        file.append_async(buffer.slice(..10))
            .wait()
            .expect("appended"),
        8192
    );
    drop(buffer);
    file.sync_all_async().wait().expect("synced");
    let (sender, receiver) = std::sync::mpsc::channel();
    let memory = volume.buffer(8192).expect("memory");
    file.read_at_async(memory, 4096).on_complete(move |read| {
        sender
            .send(read.map(|buffer| (buffer.len(), buffer.as_slice()[4105])))
            .expect("sent");
    });
    assert_eq!(receiver.recv().expect("called").expect("read"), (4106, 7));
    volume.rename_async("/f", "/g").wait().expect("renamed");
    assert_eq!(
        volume.metadata_async("/g").wait().expect("known").len(),
        8202
    );
    volume.remove_file_async("/g").wait().expect("removed");
    volume.sync_async().wait().expect("synced");
    assert_eq!(errno(volume.metadata_async("/g").wait()), Errno::NOENT);
}

#[test]
fn an_operation_goes_on_when_its_handle_and_its_file_are_dropped() {
    let volume = volume();
    for round in 0..200_u64 {
        let file = create(&volume, "/f");
        let mut buffer = volume.buffer(4096).expect("memory");
        buffer.try_mut().expect("mine").fill(round as u8);
        drop(file.write_at_async(buffer, round * 4096));
        drop(file.sync_data_async());
    }
    volume.sync().expect("synced");
    let content = volume.read("/f").expect("read");
    assert_eq!(content.len(), 200 * 4096);
    assert!(
        content
            .chunks(4096)
            .enumerate()
            .all(|(i, page)| page == [i as u8; 4096])
    );
}

#[test]
fn an_unlinked_file_lives_until_it_is_closed() {
    let volume = volume();
    let before = volume.statfs().expect("known").free_bytes;
    let file = create(&volume, "/f");
    file.write_at(&[5; 1 << 20], 0).expect("written");
    volume.sync().expect("synced");
    volume.remove_file("/f").expect("removed");
    assert!(!volume.exists("/f").expect("known"));
    let mut byte = [0];
    file.read_exact_at(&mut byte, 1 << 19).expect("read");
    assert_eq!(byte, [5]);
    assert_eq!(file.metadata().expect("known").links(), 0);
    drop(file);
    volume.sync().expect("synced");
    let after = volume.statfs().expect("known").free_bytes;
    assert!(before - after < 1 << 18, "{before} became {after}");
}

#[test]
fn renames_replace_exchange_or_refuse() {
    let volume = volume();
    volume.write("/a", "a").expect("written");
    volume.write("/b", "b").expect("written");
    let no_replace = volume.rename_with("/a", "/b", RenameFlags::NO_REPLACE);
    assert_eq!(errno(no_replace), Errno::EXIST);
    volume
        .rename_with("/a", "/b", RenameFlags::EXCHANGE)
        .expect("exchanged");
    assert_eq!(volume.read("/a").expect("read"), b"b");
    volume.rename("/a", "/b").expect("renamed");
    assert_eq!(volume.read("/b").expect("read"), b"b");
    assert!(!volume.exists("/a").expect("known"));
    let message = volume.rename("/a", "/c").expect_err("gone").to_string();
    assert_eq!(
        message,
        "rename /a to /c: No such file or directory (ENOENT)"
    );
}

#[test]
fn directories_are_read_completely_and_from_any_cookie() {
    let volume = volume();
    volume.create_dir_all("/d/e/f").expect("made");
    volume.create_dir_all("/d/e/f").expect("made again");
    assert_eq!(errno(volume.create_dir("/d")), Errno::EXIST);
    for i in 0..3000 {
        create(&volume, &format!("/d/e/file-{i}"));
    }
    let all: Vec<_> = volume
        .read_dir("/d/e")
        .expect("opened")
        .map(|entry| entry.expect("read"))
        .collect();
    assert_eq!(all.len(), 3001);
    let mut names: Vec<_> = all.iter().map(|entry| entry.name.clone()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 3001);
    assert_eq!(
        all.iter()
            .filter(|entry| entry.kind == FileKind::Directory)
            .count(),
        1
    );
    for at in [0, 1, 999, 3000] {
        let rest: Vec<_> = volume
            .read_dir_from("/d/e", all[at].cookie)
            .expect("opened")
            .map(|entry| entry.expect("read"))
            .collect();
        assert_eq!(rest, all[at + 1..]);
    }
    assert_eq!(errno(volume.remove_dir("/d/e")), Errno::NOTEMPTY);
    volume.remove_dir_all("/d").expect("removed");
    assert!(!volume.exists("/d").expect("known"));
}

#[test]
fn sizes_can_be_set_and_ranges_allocated_punched_and_zeroed() {
    let volume = volume();
    let file = create(&volume, "/f");
    file.allocate(AllocateFlags::empty(), 0, 1 << 20)
        .expect("allocated");
    assert_eq!(file.len().expect("known"), 1 << 20);
    assert!(file.metadata().expect("known").allocated_bytes() >= 1 << 20);
    file.write_at(&[1; 65536], 0).expect("written");
    let punch = AllocateFlags::PUNCH_HOLE | AllocateFlags::KEEP_SIZE;
    file.allocate(punch, 4096, 8192).expect("punched");
    file.allocate(AllocateFlags::ZERO_RANGE, 20_000, 100)
        .expect("zeroed");
    let content = volume.read("/f").expect("read");
    assert!(
        content[4096..12288]
            .iter()
            .chain(&content[20_000..20_100])
            .all(|&byte| byte == 0)
    );
    assert!(
        [4095, 12288, 19_999, 20_100]
            .iter()
            .all(|&at| content[at] == 1)
    );
    file.set_len(10).expect("cut");
    file.set_len(20).expect("grown");
    assert_eq!(
        volume.read("/f").expect("read"),
        [[1; 10], [0; 10]].concat()
    );
    volume.truncate("/f", 3).expect("cut");
    assert_eq!(file.len().expect("known"), 3);
}

#[test]
fn attributes_are_kept() {
    let volume = volume();
    let file = create(&volume, "/f");
    let then = std::time::UNIX_EPOCH + std::time::Duration::new(86_400, 17);
    file.set_mode(0o640).expect("set");
    file.set_owner(Some(7), None).expect("set");
    file.set_times(None, Some(then)).expect("set");
    let metadata = volume.metadata("/f").expect("known");
    assert_eq!((metadata.mode(), metadata.uid()), (0o100_640, 7));
    assert_eq!(metadata.modified(), then);
    assert_eq!(metadata.inode(), file.id().slot);
    volume.set_mode("/f", 0o600).expect("set");
    assert_eq!(file.metadata().expect("known").mode() & 0o777, 0o600);
    file.set_xattr("user.colour", "red").expect("set");
    assert_eq!(file.xattr("user.colour").expect("there"), b"red");
    assert_eq!(file.xattr_names().expect("listed"), [b"user.colour"]);
    file.remove_xattr("user.colour").expect("removed");
    assert_eq!(errno(file.xattr("user.colour")), Errno::NODATA);
}

#[test]
fn locks_exclude_other_handles_until_they_are_closed() {
    let volume = volume();
    let (one, other) = (create(&volume, "/f"), create(&volume, "/f"));
    one.flock(FlockOperation::Exclusive { wait: false })
        .expect("free");
    assert_eq!(
        errno(other.flock(FlockOperation::Shared { wait: false })),
        Errno::AGAIN
    );
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| other.flock(FlockOperation::Exclusive { wait: true }));
        std::thread::sleep(std::time::Duration::from_millis(20));
        drop(one);
        waiter.join().expect("no panic").expect("got it");
    });
}

#[test]
fn range_locks_exclude_other_owners_where_they_overlap() {
    let volume = volume();
    let (one, other) = (create(&volume, "/f"), create(&volume, "/f"));
    let lock = |owner, offset, len| RangeLock::new(owner, LockMode::Exclusive, offset, len);
    let posix = LockOwner::Posix { id: 5, pid: 55 };
    let (left, right) = (lock(LockOwner::Descriptor, 0, 10), lock(posix, 10, 0));
    one.lock_range(&left, false).expect("free");
    one.lock_range(&right, false).expect("free");
    assert_eq!(errno(other.lock_range(&left, false)), Errno::AGAIN);
    let all = lock(LockOwner::Descriptor, 5, 0);
    assert_eq!(other.test_lock(&all).expect("asked"), Some(left));
    one.unlock_range(LockOwner::Descriptor, 0, 0)
        .expect("given back");
    assert_eq!(other.test_lock(&all).expect("asked"), Some(right));
    drop(one);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| other.lock_range(&all, true));
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!waiter.is_finished());
        create(&volume, "/f").release_locks(5).expect("given back");
        waiter.join().expect("no panic").expect("got it");
    });
}

#[test]
fn direct_io_is_coherent_with_the_cache() {
    let volume = volume();
    let cached = create(&volume, "/f");
    let direct = volume
        .open_file("/f", OpenOptions::new().read(true).write(true).direct(true))
        .expect("opened");
    cached.write_at(&[1; 8192], 0).expect("written");
    let mut buffer = volume.buffer(4096).expect("memory");
    let memory = buffer.try_mut().expect("mine");
    assert_eq!(direct.read_at(memory, 4096).expect("read"), 4096);
    assert!(memory.iter().all(|&byte| byte == 1));
    memory.fill(2);
    direct.write_at(memory, 0).expect("written");
    let mut byte = [0];
    cached.read_exact_at(&mut byte, 100).expect("read");
    assert_eq!(byte, [2]);
}

#[test]
fn a_cursor_reads_writes_and_seeks() {
    let volume = volume();
    let file = create(&volume, "/f");
    let mut cursor = FileCursor::new(&file);
    cursor.write_all(b"one two three").expect("written");
    cursor.seek(SeekFrom::End(-5)).expect("inside");
    let mut text = String::new();
    cursor.read_to_string(&mut text).expect("read");
    assert_eq!((text.as_str(), cursor.position()), ("three", 13));
    assert!(cursor.seek(SeekFrom::Current(-14)).is_err());
    let log = volume
        .open_file("/f", OpenOptions::new().append(true))
        .expect("opened");
    let mut cursor = FileCursor::new(log);
    cursor.write_all(b"!").expect("appended");
    assert_eq!(cursor.position(), 14);
}

#[test]
fn blobs_live_by_their_ids() {
    let volume = volume();
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let ids: Vec<_> = (0..500)
        .map(|_| volume.create_blob().expect("created"))
        .collect();
    for (i, id) in ids.iter().enumerate() {
        let blob = volume.open_blob(*id, &options).expect("opened");
        blob.write_at(&[i as u8; 100], 0).expect("written");
        assert_eq!(blob.id(), *id);
    }
    create(&volume, "/a file is no blob of this iteration");
    let mut found: Vec<_> = volume.blobs().map(|id| id.expect("read")).collect();
    let rest: Vec<_> = volume
        .blobs_after(found[249])
        .map(|id| id.expect("read"))
        .collect();
    assert_eq!(rest, found[250..]);
    found.sort();
    let mut expected = ids.clone();
    expected.sort();
    assert_eq!(found, expected);

    let open = volume.open_blob(ids[3], &options).expect("opened");
    assert_eq!(errno(volume.delete_blob(ids[3])), Errno::BUSY);
    drop(open);
    volume.delete_blob(ids[3]).expect("deleted");
    assert_eq!(errno(volume.open_blob(ids[3], &options)), Errno::NOENT);
    let again = volume.create_blob().expect("created");
    assert!(!ids.contains(&again), "an id is never given out twice");
}

#[test]
fn wrong_arguments_get_the_errno_that_linux_gives() {
    let volume = volume();
    let file = create(&volume, "/f");
    drop(
        volume
            .open_file("/f", OpenOptions::new().write(true))
            .map(|write_only| {
                assert_eq!(errno(write_only.read_at(&mut [0], 0)), Errno::BADF);
            }),
    );
    let read_only = volume
        .open_file("/f", OpenOptions::new().read(true))
        .expect("opened");
    assert_eq!(errno(read_only.write_at(b"x", 0)), Errno::BADF);
    assert_eq!(
        errno(volume.open_file("/f/g", OpenOptions::new().read(true))),
        Errno::NOTDIR
    );
    assert_eq!(
        errno(volume.open_file("/", OpenOptions::new().write(true))),
        Errno::ISDIR
    );
    assert_eq!(
        errno(volume.open_file("/f", OpenOptions::new().write(true).create_new(true))),
        Errno::EXIST
    );
    assert_eq!(
        errno(volume.open_file("", OpenOptions::new().read(true))),
        Errno::NOENT
    );
    assert_eq!(
        errno(volume.open_file("n".repeat(256), OpenOptions::new().read(true))),
        Errno::NAMETOOLONG
    );
    assert_eq!(errno(file.write_at(b"x", u64::MAX)), Errno::FBIG);
    assert_eq!(errno(file.write_at(b"x", 16 << 40)), Errno::FBIG);
    assert!(matches!(
        errno(file.set_len(u64::MAX)),
        Errno::FBIG | Errno::INVAL
    ));
    assert_eq!(file.read_at(&mut [0], u64::MAX).unwrap_or(0), 0);
    assert_eq!(errno(volume.rename("/", "/x")), Errno::BUSY);
}

#[test]
fn names_may_be_any_bytes_up_to_their_limit_and_say_enametoolong_beyond() {
    let volume = volume();
    let at = |name: &[u8]| std::path::PathBuf::from(OsStr::from_bytes(name));
    let (longest, longer) = ("n".repeat(255), "n".repeat(256));
    volume.create_dir(&longest).expect("fits");
    let file = create(&volume, &format!("{longest}/{longest}"));
    // Each operation that takes a name, with one that is too long; nothing comes of it.
    let long = Path::new(&longer);
    let below = Path::new(&longest).join(&longer);
    for path in [long, &below, &long.join("x")] {
        let read = OpenOptions::new().read(true).clone();
        assert_eq!(errno(volume.open_file(path, &read)), Errno::NAMETOOLONG);
        let make = OpenOptions::new().write(true).create(true).clone();
        assert_eq!(errno(volume.open_file(path, &make)), Errno::NAMETOOLONG);
        assert_eq!(errno(volume.create_dir(path)), Errno::NAMETOOLONG);
        assert_eq!(errno(volume.metadata(path)), Errno::NAMETOOLONG);
        assert_eq!(errno(volume.rename(&longest, path)), Errno::NAMETOOLONG);
        assert_eq!(errno(volume.rename(path, "/x")), Errno::NAMETOOLONG);
        let existing = Path::new(&longest).join(&longest);
        assert_eq!(errno(volume.hard_link(existing, path)), Errno::NAMETOOLONG);
        assert_eq!(errno(volume.remove_file(path)), Errno::NAMETOOLONG);
        assert_eq!(errno(volume.remove_dir(path)), Errno::NAMETOOLONG);
        assert_eq!(errno(volume.truncate(path, 0)), Errno::NAMETOOLONG);
        assert_eq!(errno(volume.read_dir(path).map(drop)), Errno::NAMETOOLONG);
    }
    assert_eq!(
        errno(file.set_xattr(format!("user.{}", "x".repeat(251)), "v")),
        Errno::RANGE
    );
    file.set_xattr(format!("user.{}", "x".repeat(250)), "v")
        .expect("fits");

    // A path has 4095 bytes, however many names; deeper is a matter of more than one step.
    let deep = format!("/{longest}{}", "/.".repeat(1919));
    assert_eq!(deep.len(), 4094);
    assert!(volume.metadata(&deep).expect("fits").is_dir());
    volume.metadata(format!("{deep}/")).expect("fits");
    assert_eq!(
        errno(volume.metadata(format!("{deep}//"))),
        Errno::NAMETOOLONG
    );

    // `.` and `..` are there, and can be neither made nor removed nor moved.
    volume.create_dir("/d").expect("made");
    let inode = |path: &str| volume.metadata(path).expect("there").inode();
    assert_eq!(inode("/d/."), inode("/d"));
    assert_eq!(inode("/d/.."), inode("/"));
    assert_eq!(inode("/../../d"), inode("/d"));
    assert_eq!(inode("//d///"), inode("/d"));
    assert_eq!(errno(volume.create_dir("/d/.")), Errno::EXIST);
    assert_eq!(errno(volume.create_dir("/d/..")), Errno::EXIST);
    assert_eq!(errno(volume.remove_dir("/d/.")), Errno::INVAL);
    assert_eq!(errno(volume.remove_dir("/d/..")), Errno::NOTEMPTY);
    assert_eq!(errno(volume.remove_file("/d/.")), Errno::ISDIR);
    assert_eq!(errno(volume.rename("/d/.", "/e")), Errno::BUSY);
    assert_eq!(errno(volume.rename("/d", "/x/..")), Errno::NOENT);

    // Nothing, and what no name can hold.
    assert_eq!(errno(volume.metadata("")), Errno::NOENT);
    assert_eq!(errno(volume.create_dir("")), Errno::NOENT);
    assert_eq!(errno(volume.rename("/d", "")), Errno::NOENT);
    assert_eq!(errno(volume.metadata("/a\0b")), Errno::INVAL);
    assert_eq!(errno(volume.create_dir("/a\0b")), Errno::INVAL);

    // Everything else comes back as it was.
    let odd: [&[u8]; 5] = [
        b"\xff\xfe",
        b"\n",
        b"\x1b[31m",
        "\u{e4}\u{308}".as_bytes(),
        b"a\\ b",
    ];
    volume.create_dir("/odd").expect("made");
    for name in odd {
        let path = at(b"/odd").join(at(name));
        volume.write(&path, name).expect("written");
        assert_eq!(volume.read(&path).expect("read"), name);
    }
    let entries = volume.read_dir("/odd").expect("listed");
    let mut found: Vec<_> = entries.map(|entry| entry.expect("read").name).collect();
    found.sort();
    let mut expected = odd.map(Box::from);
    expected.sort();
    assert_eq!(found, expected);
    volume.remove_dir_all("/odd").expect("removed");
}

#[test]
fn an_atomic_write_changes_all_of_its_ranges_or_none() {
    let volume = volume();
    let file = create(&volume, "/f");
    let max = file.atomic_write_max().expect("known");
    assert!(max >= 200_000 && max.is_multiple_of(4096));
    file.write_atomic(&[(0, b"one"), (100_000, b"two")])
        .expect("written");
    file.write_atomic_and_sync(&[(1, b"xx"), (2, b"y")])
        .expect("written");
    assert_eq!(file.len().expect("known"), 100_003);
    let content = volume.read("/f").expect("read");
    assert_eq!(
        (&content[..4], &content[100_000..]),
        (&b"oxy\0"[..], &b"two"[..])
    );
    let most = vec![7; max as usize];
    let refused = file.write_atomic(&[(0, b"old"), (1 << 20, &most)]);
    assert_eq!(errno(refused), Errno::TOOBIG);
    assert!(volume.read("/f").expect("read") == content);
    file.write_atomic(&[(1 << 20, &most)]).expect("written");
    assert!(volume.read("/f").expect("read")[1 << 20..] == most);
}

/// `sync` alone opened a file whose writes did not sync: the absent `dsync` took the bit that both
/// share.
#[test]
fn a_write_to_a_synchronous_file_is_on_the_device_when_it_returns() {
    let device = MemoryDevice::new(MemoryConfig::default()).expect("memory");
    let volume = Volume::on_device(device.clone(), &VolumeOptions::new(), true)
        .and_then(served::through)
        .expect("opened");
    let mut options = OpenOptions::new();
    options.write(true).create(true);
    for options in [options.clone().sync(true), options.clone().dsync(true)] {
        let file = volume.open_file("/file", options).expect("opened");
        volume.sync().expect("synced");
        let before = device.counts().writes;
        file.write_at(b"synced", 0).expect("written");
        assert!(device.counts().writes > before, "{options:?}");
    }
}

#[test]
fn a_write_with_its_sync_is_one_write_of_the_device() {
    let device = MemoryDevice::new(MemoryConfig::default()).expect("memory");
    let volume = Volume::on_device(device.clone(), &VolumeOptions::new(), true)
        .and_then(served::through)
        .expect("opened");
    let file = create(&volume, "/file");
    volume.sync().expect("synced");
    let pieces = [IoSlice::new(b"in "), IoSlice::new(b"pieces ")];
    for turn in 0..3 {
        let before = device.counts().writes;
        let at = file.append_and_sync(&pieces).expect("appended");
        assert_eq!(at, 10 * turn);
        assert_eq!(device.counts().writes, before + 1);
    }
    file.append_vectored(&pieces).expect("appended");
    let before = device.counts().writes;
    file.write_and_sync(&pieces[1..], 10).expect("written");
    assert_eq!(device.counts().writes, before + 1);
    let content = volume.read("/file").expect("read");
    assert_eq!(content, b"in pieces pieces es in pieces in pieces ");
}

/// A storage engine makes CURRENT, MANIFEST or a pid file so; by three calls it sent three
/// messages.
#[test]
fn a_file_is_created_with_its_content_durably_by_one_write_of_the_device() {
    let device = MemoryDevice::new(MemoryConfig::default()).expect("memory");
    let volume = Volume::on_device(device.clone(), &VolumeOptions::new(), true)
        .and_then(served::through)
        .expect("opened");
    volume.create_dir("/d").expect("made");
    volume.sync().expect("synced");
    let mut new = OpenOptions::new();
    new.read(true).write(true).create_new(true).mode(0o600);
    let mut before = device.counts();
    for (number, content) in [&b"MANIFEST-000001\n"[..], b"", &[7; 3000]]
        .iter()
        .enumerate()
    {
        let path = format!("/d/{number}");
        let file = volume.create_and_sync(&path, &new, content);
        let file = file.expect("created");
        let counts = device.counts();
        assert_eq!(counts.writes, before.writes + 1, "{number}");
        file.append(b"more").expect("appended");
        file.sync_data().expect("synced");
        before = device.counts();
        let read = volume.read(&path).expect("read");
        assert_eq!(read, [content, &b"more"[..]].concat());
        assert_eq!(file.metadata().expect("there").mode() & 0o7777, 0o600);
        let again = volume.create_and_sync(&path, &new, content);
        assert_eq!(again.expect_err("it exists").errno(), Errno::EXIST);
        assert_eq!(volume.read(&path).expect("read"), read);
    }
}

#[test]
fn a_file_is_created_with_its_content_as_it_is_opened() {
    let volume = volume();
    let options = |of: fn(&mut OpenOptions)| {
        let mut options = OpenOptions::new();
        options.write(true).read(true);
        of(&mut options);
        options
    };
    let create = options(|of| _ = of.create(true).truncate(true));
    let truncate = options(|of| _ = of.truncate(true));
    let missing = volume.create_and_sync("/f", &truncate, "x");
    assert_eq!(missing.expect_err("there is none").errno(), Errno::NOENT);
    // Up to what a message holds, a byte more, and much more.
    for len in [0, 1, 4096, 1 << 20, (1 << 20) + 1, 5 << 20] {
        let content: Vec<u8> = (0..len).map(|at| (at / 3) as u8).collect();
        for options in [&create, &truncate] {
            volume
                .write("/f", "what was there, and is longer")
                .expect("written");
            let file = volume.create_and_sync("/f", options, &content);
            let file = file.expect("created");
            assert_eq!(file.len().expect("size"), len);
            assert!(volume.read("/f").expect("read") == content, "{len} bytes");
        }
    }
    let log = options(|of| _ = of.append(true).create_new(true));
    let log = volume
        .create_and_sync("/log", &log, "first")
        .expect("created");
    log.write_at(b" second", 0).expect("appended");
    assert_eq!(volume.read("/log").expect("read"), b"first second");
    let direct = options(|of| _ = of.direct(true).create_new(true));
    volume
        .create_and_sync("/direct", &direct, "odd")
        .expect("created");
    assert_eq!(volume.read("/direct").expect("read"), b"odd");

    let refused = [
        OpenOptions::new(),
        options(|_| ()),
        options(|of| _ = of.create(true)),
        options(|of| _ = of.create_new(true).path_only(true)),
        options(|of| _ = of.write(false).create_new(true)),
        options(|of| _ = of.write(false).truncate(true)),
    ];
    for refused in refused {
        for content in [vec![1], vec![1; 2 << 20]] {
            let error = volume.create_and_sync("/refused", &refused, content);
            let error = error.expect_err("it may have content already");
            assert_eq!(error.errno(), Errno::INVAL, "{refused:?}");
            assert!(error.what().starts_with("create /refused"), "{error}");
        }
    }
    assert!(!volume.exists("/refused").expect("looked"));
    volume.create_dir("/d").expect("made");
    volume.symlink("/f", "/link").expect("made");
    for (path, options, errno) in [
        ("/d", &create, Errno::ISDIR),
        ("/no/f", &create, Errno::NOENT),
        ("/f/f", &create, Errno::NOTDIR),
        (
            "/link",
            &options(|of| _ = of.create_new(true)),
            Errno::EXIST,
        ),
        (
            "/link",
            &options(|of| _ = of.truncate(true).no_follow(true)),
            Errno::LOOP,
        ),
    ] {
        let error = volume.create_and_sync(path, options, "x");
        assert_eq!(error.expect_err("no file").errno(), errno, "{path}");
    }
    volume
        .create_and_sync("/link", &create, "through")
        .expect("created");
    assert_eq!(volume.read("/f").expect("read"), b"through");
    let long = format!("/{}", "n".repeat(5000));
    let error = volume.create_and_sync(&long, &create, vec![1; 1 << 20]);
    assert_eq!(error.expect_err("too long").errno(), Errno::NAMETOOLONG);
}
